//! Which path a call takes, and its plan.

use crate::exec::{Call, CallCount};
use crate::comm::Settings;
use crate::error::Result;
use crate::plan::{Count, Limits, Plan, Spec, Windows};
use crate::sync::primitive::Arc;
use crate::sync::ring::Shape;
use crate::transport::{FLAT_BYTES, WINDOW_LANES};
use crate::types::{Algorithm, Collective, Elements, Protocol, Rank, World};

/// How a call is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Path {
    /// By flat slots: small, inside one host.
    Flat,
    /// By a plan that names windows.
    Windows,
    /// By a plan over slots alone.
    Slots,
}

/// Chooses for one communicator.
#[derive(Debug)]
pub(crate) struct Chooser {
    world: World,
    hosts: Vec<Vec<Rank>>,
    shape: Shape,
    scratch_bytes: usize,
    channels: u32,
    recent: Vec<Arc<Plan>>,
}

impl Chooser {
    pub(crate) fn new(world: World, hosts: &[Vec<Rank>], shape: Shape, settings: &Settings) -> Chooser {
        Chooser {
            world,
            hosts: hosts.to_vec(),
            shape,
            scratch_bytes: settings.sizes.scratch_bytes,
            channels: settings.channels,
            recent: Vec::new(),
        }
    }

    /// Whether all ranks are on one host and map each other's memory.
    pub(crate) fn maps_peers(&self) -> bool {
        self.hosts.len() == 1 && self.hosts[0].len() <= MOST_MAPPED && self.world.size > 1
    }

    /// The path of `call`, the same on all ranks.
    pub(crate) fn path(&self, call: &Call<'_>) -> Path {
        if !self.maps_peers() {
            return Path::Slots;
        }
        if self.flat_bytes(call).is_some_and(|bytes| bytes <= FLAT_BYTES) { Path::Flat } else { Path::Windows }
    }

    /// The most bytes that any rank would write into a flat slot; `None` on overflow.
    fn flat_bytes(&self, call: &Call<'_>) -> Option<usize> {
        let ranks = u64::from(self.world.size);
        let count = match &call.count {
            CallCount::Each(count) => *count,
            CallCount::PerRank(counts) => counts.iter().copied().max().unwrap_or(0),
        };
        let elements = match call.collective {
            Collective::ReduceScatter | Collective::ReduceScatterV | Collective::AllToAll | Collective::Scatter => {
                count.checked_mul(ranks)?
            }
            _ => count,
        };
        usize::try_from(elements.checked_mul(u64::from(call.data_type.size()))?).ok()
    }

    /// The plan of `call`. The latest plans are kept.
    pub(crate) fn plan(&mut self, call: &Call<'_>, windows: Windows) -> Result<Arc<Plan>> {
        let spec = self.spec(call, windows);
        if let Some(known) = self.recent.iter().find(|plan| plan.spec == spec) {
            return Ok(Arc::clone(known));
        }
        let plan = Arc::new(Plan::build(&spec)?);
        if self.recent.len() == RECENT_PLANS {
            self.recent.remove(0);
        }
        self.recent.push(Arc::clone(&plan));
        Ok(plan)
    }

    fn spec(&self, call: &Call<'_>, windows: Windows) -> Spec {
        let size = u64::from(call.data_type.size());
        let mapped = windows != Windows::None;
        let scratch_bytes = (if mapped { self.scratch_bytes } else { SMALL_SCRATCH }) as u64;
        let lanes = u32::try_from(WINDOW_LANES).expect("a few");
        Spec {
            collective: call.collective,
            world: self.world,
            root: call.root.unwrap_or_default(),
            count: match &call.count {
                CallCount::Each(count) => Count::Each(Elements(*count)),
                CallCount::PerRank(counts) => Count::PerRank(counts.iter().copied().map(Elements).collect()),
            },
            in_place: call.in_place(self.world),
            algorithm: self.algorithm(call, windows),
            protocol: Protocol::Simple,
            windows,
            hosts: self.hosts.clone(),
            limits: Limits {
                slot: Elements(u64::from(self.shape.slot_bytes) / size),
                slots: self.shape.slots,
                scratch: Elements(scratch_bytes / size),
                channels: if mapped { self.channels.min(lanes) } else { self.channels },
            },
        }
    }

    fn algorithm(&self, call: &Call<'_>, windows: Windows) -> Algorithm {
        let direct = windows != Windows::None || crate::plan::algorithms(call.collective) == [Algorithm::Direct];
        if direct { Algorithm::Direct } else { crate::plan::algorithms(call.collective)[0] }
    }
}

/// Ranks of a host that map each other; more use slots.
const MOST_MAPPED: usize = 64;
/// Bytes of scratch of plans without windows: the tokens of a barrier.
pub(crate) const SMALL_SCRATCH: usize = 4096;
/// Plans that are kept.
const RECENT_PLANS: usize = 32;
