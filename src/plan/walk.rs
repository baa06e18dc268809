//! How rounds walk a lane: which steps run in which order, over which elements.

use super::{Action, Lane, Operand, RankBuffer, Span, Step};
use crate::types::Rank;

impl Lane {
    /// The steps in the order in which they run, each with its round.
    pub fn walk(&self) -> impl Iterator<Item = (u32, &Step)> {
        let turns = match self.sizes.rounds {
            0 => 0,
            rounds => u64::from(rounds) + u64::from(self.greatest_lag()),
        };
        (0..turns).flat_map(move |turn| {
            self.steps.iter().filter_map(move |step| self.round_of(step, turn).map(|round| (round, step)))
        })
    }

    /// The greatest lag of a step.
    pub fn greatest_lag(&self) -> u8 {
        self.steps.iter().map(|step| step.lag).max().unwrap_or(0)
    }

    /// The round that `step` runs in `turn`, if it does.
    pub fn round_of(&self, step: &Step, turn: u64) -> Option<u32> {
        if turn > 0 && matches!(step.action, Action::Enter { .. }) {
            return None;
        }
        let round = turn.checked_sub(u64::from(step.lag))?;
        u32::try_from(round).ok().filter(|round| *round < self.sizes.rounds)
    }
}

impl Operand {
    /// A block of my input.
    pub(super) fn input(block: u32) -> Operand {
        Operand::Local(Span { buffer: RankBuffer::Input, index: block })
    }

    /// A block of my output.
    pub(super) fn output(block: u32) -> Operand {
        Operand::Local(Span { buffer: RankBuffer::Output, index: block })
    }

    /// The same elements seen by another rank: mine as they are, a peer's through its window.
    pub(super) fn of(owner: Rank, me: Rank, span: Span) -> Operand {
        if owner == me { Operand::Local(span) } else { Operand::Window(owner, span) }
    }
}

impl Span {
    /// A region of scratch.
    pub(super) fn region(index: usize) -> Span {
        Span { buffer: RankBuffer::Scratch, index: number(index) }
    }
}

/// The number of a block or a region, of which a plan has a few for each rank.
pub(super) fn number(index: usize) -> u32 {
    u32::try_from(index).expect("blocks and regions fit 32 bits")
}
