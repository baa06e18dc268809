//! Builds a plan from a spec: checks the spec, and calls the generator of the algorithm.

use super::pattern::Pattern;
use super::site::Site;
use super::team::Team;
use super::{
    Action, Count, Lane, Limits, Plan, RankBuffer, ScratchSets, Spec, Step, WINDOW_LANES, Windows, check, direct, mesh,
    pat,
};
use crate::sync::primitive::Arc;
use crate::types::{Algorithm, Collective, Counted, Elements, Rank};
use crate::{Error, Result};

/// Slots that every connection must have for plans to be free of deadlock.
pub const LEAST_SLOTS: u32 = 2;

/// Channels that a plan can name.
pub const MOST_CHANNELS: u32 = 256;

/// Channels that a plan with windows can name.
#[expect(clippy::cast_possible_truncation, reason = "a few lanes")]
const WINDOW_CHANNELS: u32 = WINDOW_LANES as u32;

/// Each set of scratch begins at a multiple of this many elements, so that no two sets share a cache line.
const STRIDE_UNIT: u64 = 64;

/// Scratch that a barrier over slots needs: the token sent and the token taken.
pub(super) const BARRIER_SCRATCH: usize = 2;

/// The algorithms that plan a collective; empty for a collective that is made of messages.
pub fn algorithms(collective: Collective) -> &'static [Algorithm] {
    use Algorithm::{Direct, Pat, Ring, Tree};
    match Pattern::of(collective) {
        Some(Pattern::AllReduce | Pattern::Broadcast | Pattern::Reduce) => &[Ring, Tree, Direct],
        Some(Pattern::AllGather | Pattern::ReduceScatter) if takes_counts(collective) => &[Ring, Direct],
        Some(Pattern::AllGather | Pattern::ReduceScatter) => &[Ring, Direct, Pat],
        Some(Pattern::AllToAll | Pattern::Gather | Pattern::Scatter) => &[Direct],
        Some(Pattern::Barrier) => &[Direct, Tree],
        None => &[],
    }
}

/// Whether a spec has a count for each rank.
fn takes_counts(collective: Collective) -> bool {
    collective.definition().counted == Counted::PerRank
}

impl Plan {
    /// The plan of one rank. All ranks of a world build theirs from specs that are equal but for `world.rank`.
    ///
    /// # Errors
    /// `InvalidArgument` where the spec contradicts itself, the algorithm does not do the collective, or the scratch is
    /// too small. `Internal` where what was built does not [fit](check::fits) its buffers or the executors.
    pub fn build(spec: &Spec) -> Result<Plan> {
        spec.validate()?;
        let pattern = spec.pattern()?;
        let lanes = lanes(spec.collective, spec.count.longest(), spec.limits);
        let lanes = usize::try_from(lanes).expect("a few hundred at most");
        let lanes = (0..lanes).map(|lane| plan_lane(Site { spec, pattern, lane, lanes }));
        let lanes: Vec<Option<Lane>> = lanes.collect::<Result<_>>()?;
        let mut plan = Plan { spec: spec.clone(), lanes: lanes.into_iter().flatten().collect() };
        plan.enter();
        plan.checked()
    }

    /// The plan of another count with the same steps. `None` where the count needs other steps, or where `spec` differs
    /// from this plan's in more than the count.
    ///
    /// # Errors
    /// As [`Plan::build`].
    pub fn resized(&self, spec: &Spec) -> Result<Option<Plan>> {
        spec.validate()?;
        let pattern = spec.pattern()?;
        let lanes = lanes(spec.collective, spec.count.longest(), spec.limits);
        let lanes = usize::try_from(lanes).expect("a few hundred at most");
        if lanes != self.lanes.len() || !spec.differs_in_count_alone(&self.spec) {
            return Ok(None);
        }
        let mut resized = Vec::with_capacity(lanes);
        for (number, lane) in self.lanes.iter().enumerate() {
            let Some(recipe) = lane.recipe else { return Ok(None) };
            let Some(sizes) = recipe.sizes(Site { spec, pattern, lane: number, lanes })? else { return Ok(None) };
            resized.push(Lane { channel: lane.channel, sizes, steps: Arc::clone(&lane.steps), recipe: lane.recipe });
        }
        Plan { spec: spec.clone(), lanes: resized }.checked().map(Some)
    }

    fn checked(self) -> Result<Plan> {
        check::fits(&self).map_err(|flaw| Error::internal(format!("a plan that no executor can run: {flaw}")))?;
        Ok(self)
    }

    /// Puts [`Action::Enter`] at the beginning of each lane if peers' memory is mapped.
    fn enter(&mut self) {
        let me = self.spec.world.rank;
        let host = self.spec.layout.hosts().iter().find(|ranks| ranks.contains(&me)).map_or(&[][..], Vec::as_slice);
        let mut peers: Vec<Rank> = host.iter().copied().filter(|rank| *rank != me).collect();
        if self.spec.windows == Windows::None || peers.is_empty() {
            return;
        }
        peers.sort_unstable();
        for lane in &mut self.lanes {
            let enter = Step { lag: 0, action: Action::Enter { peers: peers.clone() } };
            Arc::make_mut(&mut lane.steps).insert(0, enter);
        }
    }

    /// The sets of what the plan uses of the scratch that fit into the scratch.
    pub fn scratch_sets(&self) -> ScratchSets {
        let used = self
            .lanes
            .iter()
            .map(|lane| lane.sizes.scratch.end - lane.sizes.scratch.start)
            .max()
            .unwrap_or(Elements::ZERO);
        let stride = Elements(used.0.next_multiple_of(STRIDE_UNIT).max(STRIDE_UNIT));
        let ends = self.lanes.iter().skip(1).map(|lane| lane.sizes.scratch.start).chain([self.spec.limits.scratch]);
        let fit = self.lanes.iter().zip(ends).map(|(lane, end)| (end - lane.sizes.scratch.start).0 / stride.0);
        ScratchSets { count: fit.min().unwrap_or(1).max(1), stride }
    }
}

/// The number of lanes of a plan for `longest` elements of a rank: one for each channel, but fewer if a lane would not
/// fill a slot.
pub(crate) fn lanes(collective: Collective, longest: Elements, limits: Limits) -> u32 {
    let filled = longest.0.div_ceil(limits.slot.0.max(1)).max(1);
    let filled = u32::try_from(filled).unwrap_or(u32::MAX);
    if collective == Collective::Barrier { 1 } else { limits.channels.min(filled) }
}

fn plan_lane(site: Site<'_>) -> Result<Option<Lane>> {
    let spec = site.spec;
    let alone = spec.world.size == 1;
    let mapped = spec.windows != Windows::None && spec.layout.hosts().len() == 1;
    match site.pattern {
        Pattern::Barrier => match spec.algorithm {
            Algorithm::Direct if mapped => mesh::barrier_by_flags(site),
            Algorithm::Tree => mesh::barrier(site, true),
            Algorithm::Direct | Algorithm::Ring | Algorithm::Pat => mesh::barrier(site, false),
        },
        Pattern::AllToAll | Pattern::Gather | Pattern::Scatter if mapped => direct::lane(site),
        Pattern::Broadcast if mapped && direct::is_from_root(site) => direct::lane(site),
        Pattern::AllToAll | Pattern::Gather | Pattern::Scatter => mesh::lane(site),
        Pattern::AllReduce | Pattern::Broadcast | Pattern::Reduce | Pattern::AllGather | Pattern::ReduceScatter => {
            match spec.algorithm {
                Algorithm::Pat => pat::lane(site),
                Algorithm::Direct if !mapped && !alone => mesh::lane(site),
                Algorithm::Direct | Algorithm::Ring | Algorithm::Tree => Team::new(site).lane(),
            }
        }
    }
}

impl Spec {
    /// Checks that the spec can be planned.
    ///
    /// # Errors
    /// `InvalidArgument` naming what is wrong and what is allowed.
    pub fn validate(&self) -> Result<()> {
        self.validate_kind()?;
        self.validate_ranks()?;
        self.validate_limits()
    }

    fn differs_in_count_alone(&self, other: &Spec) -> bool {
        let Spec { collective, world, root, count: _, in_place, algorithm, protocol, windows, layout, limits } = self;
        (*collective, *world, *root, *in_place) == (other.collective, other.world, other.root, other.in_place)
            && (*algorithm, *protocol, *windows) == (other.algorithm, other.protocol, other.windows)
            && *limits == other.limits
            && (Arc::ptr_eq(layout, &other.layout) || *layout == other.layout)
    }

    /// Whether steps may name this buffer of another rank of my host.
    pub(super) fn maps(&self, buffer: RankBuffer) -> bool {
        let symmetric = || Pattern::of(self.collective).map_or(&[][..], Pattern::symmetric_buffers);
        match self.windows {
            Windows::None => false,
            Windows::Scratch => buffer == RankBuffer::Scratch,
            Windows::User => true,
            Windows::Symmetric => buffer == RankBuffer::Scratch || symmetric().contains(&buffer),
        }
    }

    fn pattern(&self) -> Result<Pattern> {
        let refused = || Error::invalid_argument(format!("{} is not done by plans", self.collective));
        Pattern::of(self.collective).ok_or_else(refused)
    }

    fn validate_kind(&self) -> Result<()> {
        let pattern = self.pattern()?;
        let allowed = algorithms(self.collective);
        if !allowed.contains(&self.algorithm) {
            let names: Vec<&str> = allowed.iter().map(|algorithm| algorithm.name()).collect();
            let (collective, names) = (self.collective, names.join(", "));
            return refuse(format!("{} does not do {collective}; allowed are {names}", self.algorithm));
        }
        if self.in_place && pattern == Pattern::AllToAll {
            return refuse(format!("{} is not done in place; give it two buffers", self.collective));
        }
        let vector = takes_counts(self.collective);
        match &self.count {
            Count::PerRank(counts) if vector && counts.len() != self.world.ranks().len() => {
                refuse(format!("{} counts for {} ranks", counts.len(), self.world.size))
            }
            Count::PerRank(_) if !vector => refuse(format!("{} takes one count for all ranks", self.collective)),
            Count::Each(_) if vector => refuse(format!("{} takes a count for each rank", self.collective)),
            Count::PerRank(_) | Count::Each(_) => Ok(()),
        }
    }

    fn validate_ranks(&self) -> Result<()> {
        let (size, rank, root) = (self.world.size, self.world.rank, self.root);
        if rank.get() >= size {
            return refuse(format!("rank {rank} is not below the world's size, {size}"));
        }
        if self.collective.rooted() && root.get() >= size {
            return refuse(format!("root {root} is not below the world's size, {size}"));
        }
        if self.layout.size() != self.world.ranks().len() {
            return refuse(format!("a layout of {} ranks for a world of {size}", self.layout.size()));
        }
        Ok(())
    }

    fn validate_limits(&self) -> Result<()> {
        let limits = self.limits;
        if limits.slot == Elements::ZERO || limits.slots < LEAST_SLOTS {
            let (slots, slot) = (limits.slots, limits.slot);
            return refuse(format!("{slots} slots of {slot} elements; plans need {LEAST_SLOTS} slots of 1 element"));
        }
        let most = if self.windows == Windows::None { MOST_CHANNELS } else { WINDOW_CHANNELS };
        if !(1..=most).contains(&limits.channels) {
            return refuse(format!("{} channels; allowed are 1 to {most}", limits.channels));
        }
        if self.collective == Collective::Barrier && limits.scratch.0 < BARRIER_SCRATCH as u64 {
            return refuse(format!("a barrier needs {BARRIER_SCRATCH} elements of scratch, not {}", limits.scratch));
        }
        let total = match &self.count {
            Count::Each(count) => count.0.checked_mul(u64::from(self.world.size)),
            Count::PerRank(counts) => counts.iter().try_fold(0_u64, |sum, count| sum.checked_add(count.0)),
        };
        // Places are computed before they are cut back to the block: a start, a block and a piece.
        match total.and_then(|total| total.checked_mul(4)) {
            Some(_) => Ok(()),
            None => refuse(format!("the elements of {} ranks are more than can be counted", self.world.size)),
        }
    }
}

fn refuse(message: String) -> Result<()> {
    Err(Error::invalid_argument(message))
}
