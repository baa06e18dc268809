//! What each collective is: which ranks pass and get what, and where it lies. This is the one definition, and all that
//! checks, runs, tunes or describes calls reads it.
//!
//! [`Collective::definition`] says of each collective what an input and an output hold: nothing, one block, or a block
//! of each rank. The rest follows: [`CallBlocks`] says for the counts of a call how long each buffer is, and where what
//! one rank has for another lies in their buffers.
//!
//! | input | output | what rank `o` has for rank `r` | collectives |
//! |---|---|---|---|
//! | one block | one block | the whole input, for the whole output | all_reduce, reduce, broadcast, scans |
//! | one block | of each | the whole input, for block `o` of the output | all_gather, gather |
//! | of each | one block | block `r` of the input, for the whole output | reduce_scatter, scatter |
//! | of each | of each | block `r` of the input, for block `o` of the output | all_to_all |
//!
//! A vector form has what its plain form has, with blocks of different lengths.
//!
//! `plan::check` and the verification of `rsccl perf` define collectives by themselves, so that a mistake made here
//! does not prove itself right.

use std::ops::Range;

use super::names::named;
use super::quantity::Rank;

named! {
    /// The operations of a communicator. Vector forms have a count for each rank.
    Collective {
        /// Every rank gets the reduction of all.
        AllReduce = "all_reduce",
        /// Every rank gets the root's buffer.
        Broadcast = "broadcast",
        /// The root gets the reduction of all.
        Reduce = "reduce",
        /// Every rank gets every rank's block, in rank order.
        AllGather = "all_gather",
        /// Rank r gets block r of the reduction of all.
        ReduceScatter = "reduce_scatter",
        /// Rank r gets block r of every rank, in rank order.
        AllToAll = "all_to_all",
        /// The root gets every rank's block, in rank order.
        Gather = "gather",
        /// Rank r gets block r of the root's buffer.
        Scatter = "scatter",
        /// No rank returns before every rank has called it.
        Barrier = "barrier",
        /// One message to one peer.
        Send = "send",
        /// One message from one peer.
        Recv = "recv",
        /// `AllGather` with a count for each rank.
        AllGatherV = "all_gather_v",
        /// `ReduceScatter` with a count for each rank.
        ReduceScatterV = "reduce_scatter_v",
        /// `AllToAll` with a count for each pair.
        AllToAllV = "all_to_all_v",
        /// `Gather` with a count for each rank.
        GatherV = "gather_v",
        /// `Scatter` with a count for each rank.
        ScatterV = "scatter_v",
        /// Rank r gets the reduction of ranks 0 to r.
        Scan = "scan",
        /// Rank r gets the reduction of the ranks below it.
        Exscan = "exscan",
    }
}

/// What the ranks of a collective pass and get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Definition {
    /// What a rank's input holds, if the rank has one.
    pub(crate) input: Holding,
    /// What a rank's output holds, if the rank has one.
    pub(crate) output: Holding,
    /// Which of its two buffers the root alone has.
    pub(crate) root: RootSide,
    /// Which inputs are reduced.
    pub(crate) folded: Folded,
    /// Which counts a rank passes.
    pub(crate) counted: Counted,
    /// What carries it out.
    pub(crate) carried: CarriedBy,
}

/// What a buffer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holding {
    /// Nothing: a barrier. The two ends of a message have no blocks: what they move is the message.
    Nothing,
    /// One block.
    One,
    /// A block of each rank, in rank order, one behind the other.
    Each,
}

/// Which of its two buffers only the root has. The other ranks' is empty, and what they pass is not looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RootSide {
    /// None: there is no root.
    Neither,
    /// Only the root has an input.
    Input,
    /// Only the root has an output.
    Output,
}

/// Whose inputs meet in one element of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Folded {
    /// One rank's: nothing is reduced.
    No,
    /// The inputs of all ranks.
    All,
    /// The inputs of the ranks up to the one that gets the output.
    UpToMine,
    /// The inputs of the ranks below the one that gets the output. Rank 0 gets nothing: its output stays as it is.
    BelowMine,
}

/// Which counts a rank passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counted {
    /// One count, the same on all ranks.
    Once,
    /// The count of each rank's block, the same on all ranks.
    PerRank,
    /// At the root the count of each rank's block, elsewhere that of its own.
    AtRoot,
    /// What it sends to each rank, and what it receives from each.
    PerPair,
}

/// What carries a collective out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CarriedBy {
    /// A plan.
    Plan,
    /// Messages on connections of their own.
    Messages,
    /// Messages among those of the user, on the same connections.
    UserMessages,
}

/// How input and output lie in one buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InPlace {
    /// Both begin at the same element.
    Same,
    /// The input is this rank's block of the output.
    InputInOutput,
    /// The output is this rank's block of the input.
    OutputInInput,
}

impl Collective {
    /// What the collective is.
    #[inline(always)]
    pub(crate) const fn definition(self) -> Definition {
        DEFINITIONS[self as usize]
    }

    const fn defined(self) -> Definition {
        use Holding::{Each, Nothing, One};
        const fn of(input: Holding, output: Holding) -> Definition {
            let (root, folded) = (RootSide::Neither, Folded::No);
            Definition { input, output, root, folded, counted: Counted::Once, carried: CarriedBy::Plan }
        }
        const ALL_REDUCE: Definition = Definition { folded: Folded::All, ..of(One, One) };
        const REDUCE_SCATTER: Definition = Definition { folded: Folded::All, ..of(Each, One) };
        const GATHER: Definition = Definition { root: RootSide::Output, ..of(One, Each) };
        const SCATTER: Definition = Definition { root: RootSide::Input, ..of(Each, One) };
        const AT_ROOT: Counted = Counted::AtRoot;
        match self {
            Collective::AllReduce => ALL_REDUCE,
            Collective::Broadcast => Definition { root: RootSide::Input, ..of(One, One) },
            Collective::Reduce => Definition { root: RootSide::Output, ..ALL_REDUCE },
            Collective::AllGather => of(One, Each),
            Collective::ReduceScatter => REDUCE_SCATTER,
            Collective::AllToAll => of(Each, Each),
            Collective::Gather => GATHER,
            Collective::Scatter => SCATTER,
            Collective::Barrier => of(Nothing, Nothing),
            Collective::Send | Collective::Recv => {
                Definition { carried: CarriedBy::UserMessages, ..of(Nothing, Nothing) }
            }
            Collective::AllGatherV => Definition { counted: Counted::PerRank, ..of(One, Each) },
            Collective::ReduceScatterV => Definition { counted: Counted::PerRank, ..REDUCE_SCATTER },
            Collective::AllToAllV => {
                Definition { counted: Counted::PerPair, carried: CarriedBy::UserMessages, ..of(Each, Each) }
            }
            Collective::GatherV => Definition { counted: AT_ROOT, carried: CarriedBy::Messages, ..GATHER },
            Collective::ScatterV => Definition { counted: AT_ROOT, carried: CarriedBy::Messages, ..SCATTER },
            Collective::Scan => Definition { folded: Folded::UpToMine, carried: CarriedBy::Messages, ..of(One, One) },
            Collective::Exscan => {
                Definition { folded: Folded::BelowMine, carried: CarriedBy::Messages, ..of(One, One) }
            }
        }
    }

    /// Whether the collective reduces (and so takes an operator).
    #[inline]
    pub fn reduces(self) -> bool {
        self.definition().folded != Folded::No
    }

    /// Whether the collective has a root.
    #[inline]
    pub fn rooted(self) -> bool {
        self.definition().root != RootSide::Neither
    }

    /// Whether it runs as messages without a plan, so that no algorithm is chosen for it.
    #[inline]
    pub fn is_messages(self) -> bool {
        self.definition().carried != CarriedBy::Plan
    }
}

/// [`Collective::defined`] of each collective, by its number: a call of a few bytes looks it up several times.
static DEFINITIONS: [Definition; Collective::ALL.len()] = {
    let mut all = [Collective::AllReduce.defined(); Collective::ALL.len()];
    let mut number = 0;
    while number < all.len() {
        all[number] = Collective::ALL[number].defined();
        number += 1;
    }
    all
};

impl Definition {
    /// What the buffers of a rank hold, which is the root or not.
    #[inline(always)]
    pub(crate) const fn sides(self, is_root: bool) -> (Holding, Holding) {
        match self.root {
            RootSide::Input if !is_root => (Holding::Nothing, self.output),
            RootSide::Output if !is_root => (self.input, Holding::Nothing),
            RootSide::Neither | RootSide::Input | RootSide::Output => (self.input, self.output),
        }
    }

    /// Whether it only moves data, and is carried out by a plan: each element of an output is one of one input.
    pub(crate) fn only_moves(self) -> bool {
        self.folded == Folded::No && self.output != Holding::Nothing && self.carried == CarriedBy::Plan
    }

    /// How its input and output lie in one buffer; `None` where they have to be two. On all ranks alike, also where the
    /// root alone has one of them.
    #[inline(always)]
    pub(crate) const fn in_place(self) -> Option<InPlace> {
        match (self.input, self.output) {
            (Holding::One, Holding::One) => Some(InPlace::Same),
            (Holding::One, Holding::Each) => Some(InPlace::InputInOutput),
            (Holding::Each, Holding::One) => Some(InPlace::OutputInInput),
            (Holding::Each, Holding::Each) | (Holding::Nothing, _) | (_, Holding::Nothing) => None,
        }
    }
}

/// The blocks of two buffers that belong together: those of which ranks. Where a buffer holds one block, that is it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Places {
    /// Which block of the owner's input.
    pub(crate) given: Rank,
    /// Which block of the reader's output.
    pub(crate) taken: Rank,
}

/// The counts of a call, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counts<'a> {
    /// Of each block. Where the root alone knows those of all ranks, elsewhere that of the rank's own block.
    Each(u64),
    /// Of the block of each rank. A rank beyond the end has none.
    PerRank(&'a [u64]),
}

impl Counts<'_> {
    /// The elements of a rank's block.
    #[inline(always)]
    pub(crate) fn of(self, rank: Rank) -> u64 {
        match self {
            Counts::Each(count) => count,
            Counts::PerRank(counts) => counts.get(rank.index()).copied().unwrap_or(0),
        }
    }

    /// The elements of the blocks before a rank's; of a call whose [`Counts::total`] can be counted.
    #[inline]
    pub(crate) fn before(self, rank: Rank) -> u64 {
        match self {
            Counts::Each(count) => count.saturating_mul(u64::from(rank.get())),
            Counts::PerRank(counts) => {
                counts.iter().take(rank.index()).fold(0, |sum: u64, count| sum.saturating_add(*count))
            }
        }
    }

    /// The elements of all blocks; `None` where these are more than can be counted.
    #[inline(always)]
    pub(crate) fn total(self, ranks: u32) -> Option<u64> {
        match self {
            Counts::Each(count) => count.checked_mul(u64::from(ranks)),
            Counts::PerRank(counts) => counts.iter().try_fold(0u64, |sum, count| sum.checked_add(*count)),
        }
    }

    /// The elements of the longest block.
    #[inline(always)]
    pub(crate) fn longest(self) -> u64 {
        match self {
            Counts::Each(count) => count,
            Counts::PerRank(counts) => counts.iter().copied().max().unwrap_or(0),
        }
    }
}

/// The blocks of a call: how long the buffers are, and what each rank has for each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallBlocks<'a> {
    definition: Definition,
    /// Rank 0 where there is none.
    root: Rank,
    counts: Counts<'a>,
    ranks: u32,
}

/// What one rank's input has for the output of another, or for its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Contribution {
    /// Whose input.
    pub(crate) owner: Rank,
    /// The first element in the owner's input.
    pub(crate) from: u64,
    /// The first element in the reader's output.
    pub(crate) to: u64,
    /// How many elements; there may be none.
    pub(crate) elements: u64,
}

impl<'a> CallBlocks<'a> {
    /// Those of a call among `ranks`.
    #[inline(always)]
    pub(crate) fn new(collective: Collective, root: Option<Rank>, counts: Counts<'a>, ranks: u32) -> CallBlocks<'a> {
        CallBlocks { definition: collective.definition(), root: root.unwrap_or_default(), counts, ranks }
    }

    /// The elements of a rank's input and output; `None` where those of all ranks are more than can be counted.
    #[inline(always)]
    pub(crate) fn lengths(&self, rank: Rank) -> Option<(u64, u64)> {
        let total = self.counts.total(self.ranks)?;
        let length = |holding| match holding {
            Holding::Nothing => 0,
            Holding::One => self.counts.of(rank),
            Holding::Each => total,
        };
        let (input, output) = self.definition.sides(rank == self.root);
        Some((length(input), length(output)))
    }

    /// The elements of the longest input of a rank; `None` where they are more than can be counted.
    #[inline(always)]
    pub(crate) fn longest_input(&self) -> Option<u64> {
        match self.definition.input {
            Holding::Nothing => Some(0),
            Holding::One => Some(self.counts.longest()),
            Holding::Each => self.counts.total(self.ranks),
        }
    }

    /// The blocks that a buffer holds, in order: where each begins, and its elements.
    pub(crate) fn held(&self, holding: Holding, rank: Rank) -> impl Iterator<Item = (u64, u64)> + use<'a> {
        let (counts, ranks) = (self.counts, self.ranks);
        let held = match holding {
            Holding::Nothing => 0..0,
            Holding::One => rank.get()..rank.get() + 1,
            Holding::Each => 0..ranks,
        };
        let mut start = 0_u64;
        held.map(move |number| {
            let (begin, elements) = (start, counts.of(Rank::new(number)));
            start = start.saturating_add(elements);
            (begin, elements)
        })
    }

    /// The ranks whose inputs have something for the output of `reader`.
    #[inline]
    pub(crate) fn owners(&self, reader: Rank) -> Range<u32> {
        let Definition { input, output, root, folded, .. } = self.definition;
        let is_root = reader == self.root;
        match (folded, root) {
            _ if input == Holding::Nothing || output == Holding::Nothing => 0..0,
            (_, RootSide::Output) if !is_root => 0..0,
            (_, RootSide::Input) => self.root.get()..self.root.get() + 1,
            (Folded::UpToMine, _) => 0..reader.get() + 1,
            (Folded::BelowMine, _) => 0..reader.get(),
            (Folded::No | Folded::All, RootSide::Neither | RootSide::Output) => 0..self.ranks,
        }
    }

    /// Which block of the input of `owner` is for `reader`, and which block of the reader's output it becomes.
    #[inline(always)]
    pub(crate) fn places(&self, owner: Rank, reader: Rank) -> Places {
        let given = match self.definition.input {
            Holding::Each => reader,
            Holding::One | Holding::Nothing => owner,
        };
        let taken = match self.definition.output {
            Holding::Each => owner,
            Holding::One | Holding::Nothing => reader,
        };
        Places { given, taken }
    }

    /// What the input of `owner` has for the output of `reader`; `None` where it has nothing for it by definition. A
    /// block without elements is one, too. Where the root alone knows all counts, others know the place in their own
    /// buffer only.
    #[inline]
    pub(crate) fn between(&self, owner: Rank, reader: Rank) -> Option<Contribution> {
        if !self.owners(reader).contains(&owner.get()) {
            return None;
        }
        let Definition { input, output, .. } = self.definition;
        let Places { given, taken } = self.places(owner, reader);
        let start = |holding, block| if holding == Holding::Each { self.counts.before(block) } else { 0 };
        let (from, to) = (start(input, given), start(output, taken));
        // A vector form has blocks of each rank on one side alone: on the other, the block has the length of its own.
        let elements = self.counts.of(if output == Holding::Each { taken } else { reader });
        Some(Contribution { owner, from, to, elements })
    }
}

#[cfg(test)]
mod tests;
