//! The path of a call on host memory, and its plan.

use crate::engine::choose::{self, Chosen, Grounds, PlanPath, Question};
use crate::engine::programs::Programs;
use crate::error::Result;
use crate::exec::{Call, Program};
use crate::plan::Windows;
use crate::sync::primitive::Arc;
use crate::tune::Choice;
use crate::types::{Algorithm, CallBlocks, Protocol};

/// How a call is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Path {
    /// By flat slots: small, inside one host.
    Flat,
    /// By a plan.
    Plan(PlanPath),
}

/// Chooses for the calls of one communicator on host memory.
#[derive(Debug)]
pub(super) struct HostChooser {
    grounds: Arc<Grounds>,
    programs: Programs,
}

impl HostChooser {
    pub(super) fn new(grounds: &Arc<Grounds>) -> HostChooser {
        HostChooser { grounds: Arc::clone(grounds), programs: Programs::default() }
    }

    /// What the choices stand on.
    pub(super) fn grounds(&self) -> &Grounds {
        &self.grounds
    }

    /// How a call is run, the same on all ranks.
    ///
    /// # Errors
    /// As [`HostChooser::path`].
    pub(super) fn chosen(&self, asked: Question<'_>) -> Result<Chosen> {
        Ok(match self.planned(asked, Windows::Scratch)? {
            None => Chosen { algorithm: Algorithm::Direct, protocol: Protocol::LowLatency, channels: 1 },
            Some((choice, windows)) => self.grounds.lanes(asked, choice, windows),
        })
    }

    /// The path of a call, the same on all ranks.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where the user's filters leave nothing.
    pub(super) fn path(&self, asked: Question<'_>) -> Result<Path> {
        let bytes = self.flat_bytes(asked);
        let Grounds { settings, .. } = &*self.grounds;
        let direct = self.grounds.maps_peers() && settings.algorithms.allows(asked.collective, Algorithm::Direct);
        let low_latency = settings.protocols.allows(asked.collective, Protocol::LowLatency);
        if direct && low_latency && bytes.is_some_and(|bytes| bytes <= self.grounds.most_flat_bytes()) {
            return Ok(Path::Flat);
        }
        self.grounds.path_of_plans(asked, direct, settings.tuning.is_some()).map(Path::Plan)
    }

    /// The most bytes that any rank would write into a flat slot; `None` on overflow.
    fn flat_bytes(&self, asked: Question<'_>) -> Option<usize> {
        // Only its length is asked, and that is the same wherever the root is.
        let blocks = CallBlocks::new(asked.collective, None, asked.count.counts(), self.grounds.world.size);
        let elements = blocks.longest_input()?;
        usize::try_from(elements.checked_mul(u64::from(asked.data_type.size()))?).ok()
    }

    /// The program of `call`.
    pub(super) fn program(&mut self, call: &Call<'_>, choice: Choice, windows: Windows) -> Result<Arc<Program>> {
        let (means, HostChooser { grounds, programs }) = (choose::means(choice, windows), self);
        let world = grounds.world;
        programs.of(call, world, means, || grounds.spec(call, means, (world, &grounds.layout)))
    }

    /// The choice of a call that runs by a plan, and its windows where ranks have met in `met`; `None` where it goes by
    /// flat slots.
    ///
    /// # Errors
    /// As [`HostChooser::path`].
    pub(super) fn planned(&self, asked: Question<'_>, met: Windows) -> Result<Option<(Choice, Windows)>> {
        Ok(match self.path(asked)? {
            Path::Flat => None,
            Path::Plan(PlanPath::Windows(choice)) => Some((choice, self.windows_across_teams(met))),
            Path::Plan(PlanPath::Slots(choice)) => Some((choice, Windows::None)),
        })
    }

    /// Windows of a plan for several teams: users' buffers can be reached on one host and not on the other, scratch
    /// always.
    pub(super) fn windows_across_teams(&self, met: Windows) -> Windows {
        if self.grounds.layout.teams().len() == 1 { met } else { Windows::Scratch }
    }
}
