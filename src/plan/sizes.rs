//! The numbers of a lane: all that depends on the count.
//!
//! A planner says how its lane is measured: how the elements are cut into blocks, how many regions of scratch it needs,
//! how deep these are. [`Measure::sizes`] computes the numbers of any count from that. They are the same on all ranks.

use std::ops::Range;

use super::site::{Choices, Site, rounds};
use super::{Combine, RankBuffer, Span};
use crate::Result;
use crate::types::Elements;

/// Elements that travel together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Where they begin in the inputs that hold them.
    pub input: Elements,
    /// Where they begin in the outputs that hold them.
    pub output: Elements,
    /// How many.
    pub length: Elements,
}

impl Block {
    /// No elements.
    pub(super) const EMPTY: Block = Block { input: Elements::ZERO, output: Elements::ZERO, length: Elements::ZERO };

    /// Elements that stand at one place in inputs and outputs.
    pub(super) fn at(start: Elements, length: Elements) -> Block {
        Block { input: start, output: start, length }
    }
}

/// The numbers of a lane, the same on all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneSizes {
    /// How often the steps are walked.
    pub rounds: u32,
    /// Elements of a block in one round.
    pub piece: Elements,
    /// Pieces of a region of scratch.
    pub depth: u32,
    /// The part of the scratch that the steps of this lane may use.
    pub scratch: Range<Elements>,
    /// The blocks that steps name.
    pub blocks: Vec<Block>,
}

impl LaneSizes {
    /// The elements of a combine over all rounds.
    #[inline]
    pub fn block(&self, combine: &Combine) -> Elements {
        let length = self.blocks.get(combine.block as usize).map_or(Elements::ZERO, |block| block.length);
        Elements(length.0.saturating_mul(u64::from(combine.times)))
    }

    /// The elements of a combine in one round.
    #[inline]
    pub fn piece(&self, combine: &Combine) -> Elements {
        Elements(self.piece.0.saturating_mul(u64::from(combine.times)))
    }

    /// The elements of a combine in `round`; none where the block is exhausted.
    #[inline]
    pub fn length(&self, combine: &Combine, round: u32) -> Elements {
        let piece = self.piece(combine).0;
        let before = piece.saturating_mul(u64::from(round));
        Elements(self.block(combine).0.saturating_sub(before).min(piece))
    }

    /// Where a span begins in the first round.
    #[inline]
    pub fn start(&self, span: &Span) -> Elements {
        let block = || self.blocks.get(span.index as usize).copied().unwrap_or(Block::EMPTY);
        match span.buffer {
            RankBuffer::Input => block().input,
            RankBuffer::Output => block().output,
            RankBuffer::Scratch => {
                let pieces = u64::from(self.depth) * u64::from(span.index);
                Elements(self.scratch.start.0.saturating_add(self.piece.0.saturating_mul(pieces)))
            }
        }
    }

    /// Where a span of a combine begins in `round`.
    #[inline]
    pub fn at(&self, span: &Span, combine: &Combine, round: u32) -> Elements {
        let pieces = self.cycle(span).map_or(round, |depth| round % depth);
        self.start(span) + self.piece(combine) * u64::from(pieces)
    }

    /// Whether a piece of scratch is written a second time.
    pub(super) fn reused(&self) -> bool {
        self.rounds > self.depth
    }

    /// After how many rounds a span is at its start again; `None` where it never is.
    #[inline]
    pub fn cycle(&self, span: &Span) -> Option<u32> {
        (span.buffer == RankBuffer::Scratch).then_some(self.depth.max(1))
    }
}

/// How the elements of a lane are cut into blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cutting {
    /// One element that stands for no data.
    Token,
    /// The lane's part of a buffer that all ranks have, cut into shares, and each share into parts: share by share.
    Shares { shares: usize, parts: usize },
    /// As `Shares` with one part each, but one share has all elements.
    OneShare { shares: usize, all: usize },
    /// The lane's part of each rank's block, in rank order.
    EachRank,
}

/// How a lane is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Measure {
    pub(super) cutting: Cutting,
    /// Regions of scratch.
    pub(super) regions: usize,
    /// Pieces of a region, where there are as many rounds.
    pub(super) depth: u32,
    /// The most elements of a piece.
    pub(super) most: u64,
    /// The pieces into which the longest block should be cut; 1 if blocks themselves are the pipeline.
    pub(super) under_way: u64,
    /// Whether a piece must fit a slot.
    pub(super) slotted: bool,
}

/// The fewest elements of a piece that is pipelined over several hops, unless the block itself is shorter.
const LEAST_PIECE: u64 = 1024;

impl Measure {
    /// Blocks without scratch.
    pub(super) const fn of(cutting: Cutting) -> Measure {
        Measure { cutting, regions: 0, depth: 1, most: u64::MAX, under_way: 1, slotted: false }
    }

    /// The sizes of a lane.
    pub(super) fn sizes(self, site: Site<'_>) -> Result<LaneSizes> {
        let blocks = self.blocks(site);
        let longest = blocks.iter().map(|block| block.length).max().unwrap_or(Elements::ZERO);
        let wanted = longest.0.div_ceil(self.under_way).max(LEAST_PIECE).min(longest.0).min(self.most);
        let piece = site.piece(Elements(wanted), self.regions, self.depth, self.slotted)?;
        let rounds = rounds(longest, piece)?;
        let depth = rounds.clamp(1, self.depth);
        let start = site.scratch().start;
        let regions = u64::try_from(self.regions).expect("a count of regions fits 64 bits");
        Ok(LaneSizes { rounds, piece, depth, scratch: start..start + piece * (u64::from(depth) * regions), blocks })
    }

    fn blocks(self, site: Site<'_>) -> Vec<Block> {
        match self.cutting {
            Cutting::Token => vec![Block::at(Elements::ZERO, Elements(1))],
            Cutting::Shares { shares, parts } => {
                let whole = site.whole();
                let parts = |share: usize| (0..parts).map(move |part| whole.cut(shares, share).cut(parts, part));
                (0..shares).flat_map(parts).map(|range| Block::at(range.start, range.length)).collect()
            }
            Cutting::OneShare { shares, all } => {
                let whole = site.whole();
                let mut blocks = vec![Block::at(whole.start, Elements::ZERO); shares];
                blocks[all].length = whole.length;
                blocks
            }
            Cutting::EachRank => site.blocks_of_ranks().collect(),
        }
    }

    /// Whether a block is empty that other counts fill.
    fn has_holes(self, sizes: &LaneSizes) -> bool {
        let empty = |block: &Block| block.length == Elements::ZERO;
        match self.cutting {
            Cutting::OneShare { all, .. } => sizes.blocks.get(all).is_none_or(empty),
            Cutting::Token | Cutting::Shares { .. } | Cutting::EachRank => sizes.blocks.iter().any(empty),
        }
    }
}

/// How to compute the sizes of another count, and for which counts the steps are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Recipe {
    measure: Measure,
    choices: Choices,
}

impl Recipe {
    /// The recipe of a lane with these sizes; `None` where its steps leave out blocks because they are empty.
    pub(super) fn of(measure: Measure, site: Site<'_>, sizes: &LaneSizes) -> Option<Recipe> {
        (!measure.has_holes(sizes)).then(|| Recipe { measure, choices: Choices::of(site, sizes) })
    }

    /// The sizes of the site's count; `None` where a planner would decide otherwise than for the recipe's.
    pub(super) fn sizes(&self, site: Site<'_>) -> Result<Option<LaneSizes>> {
        let sizes = self.measure.sizes(site)?;
        Ok((Recipe::of(self.measure, site, &sizes).as_ref() == Some(self)).then_some(sizes))
    }
}
