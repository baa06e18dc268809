//! What builders of one lane share: the spec, the lane's part of the work, and a place to put steps.

use super::cut::Range;
use super::pattern::Pattern;
use super::sizes::{Block, LaneSizes, Measure, Recipe};
use super::{Action, Combine, Count, Lane, Operand, Spec, Step, Windows};
use crate::sync::primitive::Arc;
use crate::types::{Algorithm, CallBlocks, Counts, Elements, Holding, Places, Rank};
use crate::{Error, Result};

/// One lane of a spec.
#[derive(Debug, Clone, Copy)]
pub(super) struct Site<'a> {
    /// The spec.
    pub(super) spec: &'a Spec,
    /// What moves from whom to whom.
    pub(super) pattern: Pattern,
    /// Which lane.
    pub(super) lane: usize,
    /// Of how many.
    pub(super) lanes: usize,
}

impl<'a> Site<'a> {
    /// My rank.
    pub(super) fn me(&self) -> Rank {
        self.spec.world.rank
    }

    /// All other ranks, from the one after mine to the one before mine. Each rank thus starts with another peer, so
    /// that not all ranks work with the same peer at once.
    pub(super) fn peers(&self) -> impl Iterator<Item = Rank> + use<'a> {
        let world = self.spec.world;
        (1..world.size).map(move |distance| world.rank.after(distance, world.size))
    }

    /// Which block of the input of `owner` is for `reader`, and which of the reader's output it becomes.
    pub(super) fn places(&self, owner: Rank, reader: Rank) -> Places {
        let Spec { collective, root, world, .. } = self.spec;
        // Which blocks belong together is the same for all counts.
        CallBlocks::new(*collective, Some(*root), Counts::Each(0), world.size).places(owner, reader)
    }

    /// The lane's part of `length` elements.
    pub(super) fn part(&self, length: Elements) -> Range {
        Range::first(length).cut(self.lanes, self.lane)
    }

    /// The lane's part of the scratch.
    pub(super) fn scratch(&self) -> Range {
        self.part(self.spec.limits.scratch)
    }

    /// The lane's part of a collective whose ranks all have the same whole buffer.
    pub(super) fn whole(&self) -> Range {
        self.part(self.spec.count.of(Rank::new(0)))
    }

    /// The lane's part of the block that belongs to each rank, where it lies in inputs and outputs: in a buffer of all
    /// ranks' blocks behind those of the ranks before, in a buffer of one block at its start.
    pub(super) fn blocks_of_ranks(&self) -> impl Iterator<Item = Block> {
        let definition = self.spec.collective.definition();
        let mut before = Elements::ZERO;
        self.spec.world.ranks().map(move |rank| {
            let count = self.spec.count.of(rank);
            let part = self.part(count);
            let place = |holding| if holding == Holding::Each { before + part.start } else { part.start };
            let (input, output) = (place(definition.input), place(definition.output));
            before = before + count;
            Block { input, output, length: part.length }
        })
    }

    /// The lane of these steps; `None` where no rank has anything to do. A lane may be empty on one rank only: lanes of
    /// one number belong together. Combines of blocks without elements are left out.
    pub(super) fn finish(&self, measure: Measure, sizes: LaneSizes, draft: Draft) -> Option<Lane> {
        let channel = u8::try_from(self.lane).expect("a spec has at most 256 channels");
        let mut steps = draft.steps;
        steps.retain(|step| match &step.action {
            Action::Combine(combine) => sizes.block(combine) > Elements::ZERO,
            Action::Enter { .. } | Action::Signal { .. } | Action::Wait { .. } => true,
        });
        let recipe = Recipe::of(measure, *self, &sizes);
        (sizes.rounds > 0).then(|| Lane { channel, sizes, steps: Arc::new(steps), recipe })
    }

    /// Whether every rank that wants the result reduces all buffers by itself.
    pub(super) fn is_one_shot(&self) -> bool {
        is_one_shot(self.whole().length, self.spec.world.size)
    }

    /// Whether a rank's scratch holds the whole of an input.
    pub(super) fn fits_scratch(&self) -> bool {
        self.whole().length <= self.scratch().length
    }

    /// Whether a rooted collective goes through the root's seat alone, which saves a hop.
    pub(super) fn is_small(&self) -> bool {
        self.whole().length.0 <= SMALL
    }

    /// The memory that steps use. For few bytes, a copy is cheaper than a second wait.
    pub(super) fn windows(&self) -> Windows {
        let spec = self.spec;
        let needed = spec.count.longest().0.saturating_mul(u64::from(spec.world.size));
        let fits = needed.saturating_mul(u64::from(DEPTH_OF_ONE_FLAG)) <= spec.limits.scratch.0;
        let few = matches!(spec.windows, Windows::User | Windows::Symmetric) && needed <= SMALL && fits;
        if few { Windows::Scratch } else { spec.windows }
    }

    /// The blocks that one message of PAT holds: several where a slot holds several whole ones.
    pub(super) fn aggregate(&self, sizes: &LaneSizes) -> usize {
        let whole = sizes.blocks.iter().all(|block| block.length <= sizes.piece);
        let fit = || usize::try_from(self.spec.limits.slot.0 / sizes.piece.0.max(1)).unwrap_or(usize::MAX);
        if whole { fit().max(1) } else { 1 }
    }

    /// A piece for blocks of at most `longest` elements, where `regions` of `depth` pieces must fit the lane's scratch
    /// and, if `slotted`, a piece must fit a slot.
    pub(super) fn piece(&self, longest: Elements, regions: usize, depth: u32, slotted: bool) -> Result<Elements> {
        let places = u64::try_from(regions).unwrap_or(u64::MAX).saturating_mul(u64::from(depth));
        let scratch = self.scratch().length.0;
        let fits = scratch.checked_div(places).unwrap_or(u64::MAX);
        if fits == 0 {
            return Err(Error::invalid_argument(format!(
                "{} {} of {} ranks needs {places} elements of scratch in each of {} lanes, and the limit leaves {scratch}",
                self.spec.algorithm, self.spec.collective, self.spec.world.size, self.lanes
            )));
        }
        let slot = if slotted { self.spec.limits.slot.0 } else { u64::MAX };
        Ok(Elements(longest.0.min(fits).min(slot).max(1)))
    }
}

/// What planners decide by the count. For two counts with equal choices a lane has the same steps: a planner may look
/// at the count, at lengths and at rounds through these alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Choices {
    is_one_shot: bool,
    fits_scratch: bool,
    is_small: bool,
    windows: Windows,
    reused: bool,
    aggregate: usize,
}

impl Choices {
    pub(super) fn of(site: Site<'_>, sizes: &LaneSizes) -> Choices {
        // Other algorithms do not ask.
        let direct = site.spec.algorithm == Algorithm::Direct;
        Choices {
            is_one_shot: direct && site.is_one_shot(),
            fits_scratch: direct && site.fits_scratch(),
            is_small: site.spec.collective.rooted() && site.is_small(),
            windows: site.windows(),
            reused: sizes.reused(),
            aggregate: if site.spec.algorithm == Algorithm::Pat { site.aggregate(sizes) } else { 1 },
        }
    }
}

/// Whether every rank that wants the result reduces all buffers by itself. Then data takes one hop instead of two,
/// which is faster if all ranks together have few elements. The cost model of `tune` calls this too.
pub(crate) fn is_one_shot(whole: Elements, ranks: u32) -> bool {
    whole.0.saturating_mul(u64::from(ranks)) <= ONE_SHOT
}

/// Elements of all ranks together up to which data takes one hop.
const ONE_SHOT: u64 = 8192;

/// The most elements of a rooted collective that goes through the root's seat alone.
const SMALL: u64 = 2048;

/// Pieces of a region of scratch that one flag a round protects; `check` proves it.
pub(super) const DEPTH_OF_ONE_FLAG: u32 = 4;

/// The most elements of a staged piece: a piece of this size is still in a cache when its reader comes.
pub(super) const CACHED_PIECE: u64 = 1 << 15;

/// How many rounds walk blocks of at most `longest` elements.
pub(super) fn rounds(longest: Elements, piece: Elements) -> Result<u32> {
    u32::try_from(longest.0.div_ceil(piece.0)).map_err(|_| {
        Error::invalid_argument(format!("{longest} elements in pieces of {piece} are more than {} rounds", u32::MAX))
    })
}

impl Count {
    /// The elements of `rank`.
    pub fn of(&self, rank: Rank) -> Elements {
        match self {
            Count::Each(count) => *count,
            Count::PerRank(counts) => counts.get(rank.index()).copied().unwrap_or(Elements::ZERO),
        }
    }

    /// The elements of all ranks before `rank`.
    pub fn before(&self, rank: Rank) -> Elements {
        match self {
            Count::Each(count) => *count * u64::from(rank.get()),
            Count::PerRank(counts) => Elements(counts.iter().take(rank.index()).map(|count| count.0).sum()),
        }
    }

    /// The most elements of a rank.
    pub fn longest(&self) -> Elements {
        match self {
            Count::Each(count) => *count,
            Count::PerRank(counts) => counts.iter().copied().max().unwrap_or(Elements::ZERO),
        }
    }
}

/// Steps in the making.
#[derive(Debug, Default)]
pub(super) struct Draft {
    /// So far.
    pub(super) steps: Vec<Step>,
}

impl Draft {
    /// Adds an action.
    pub(super) fn push(&mut self, lag: u8, action: Action) {
        self.steps.push(Step { lag, action });
    }

    /// Adds a combine.
    pub(super) fn combine(&mut self, lag: u8, combine: Combine) {
        self.push(lag, Action::Combine(combine));
    }

    /// Adds a copy of a block.
    pub(super) fn copy(&mut self, lag: u8, block: u32, (source, target): (Operand, Operand)) {
        self.combine(lag, Combine { block, times: 1, sources: vec![source], targets: vec![target], finish: false });
    }

    /// Adds a signal, unless nobody waits for it.
    pub(super) fn signal(&mut self, lag: u8, flag: u8, listeners: impl IntoIterator<Item = Rank>) {
        let mut listeners: Vec<Rank> = listeners.into_iter().collect();
        listeners.sort_unstable();
        if !listeners.is_empty() {
            self.push(lag, Action::Signal { flag, listeners });
        }
    }

    /// Adds a wait for each of `peers`.
    pub(super) fn wait(&mut self, lag: u8, flag: u8, peers: impl IntoIterator<Item = Rank>) {
        for peer in peers {
            self.push(lag, Action::Wait { peer, flag });
        }
    }
}
