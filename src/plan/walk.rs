//! How rounds walk a lane: which steps run in which order, over which elements.

use super::{Action, Buffer, Combine, Lane, Operand, Span, Step, Walk};
use crate::types::{Elements, Rank};

impl Lane {
    /// The steps in the order in which they run, each with its round.
    pub fn walk(&self) -> impl Iterator<Item = (u32, &Step)> {
        let turns = match self.rounds {
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
        u32::try_from(round).ok().filter(|round| *round < self.rounds)
    }
}

impl Combine {
    /// The elements of a round; none where the block is exhausted.
    pub fn length(&self, round: u32) -> Elements {
        let before = self.piece.0.saturating_mul(u64::from(round));
        Elements(self.block.0.saturating_sub(before).min(self.piece.0))
    }
}

impl Span {
    /// Where a round starts.
    pub fn at(&self, round: u32, piece: Elements) -> Elements {
        let pieces = match self.walk {
            Walk::Linear => u64::from(round),
            Walk::Cycle(depth) => u64::from(round % depth.max(1)),
        };
        self.start + piece * pieces
    }
}

impl Operand {
    /// My input from `start` on.
    pub(super) fn input(start: Elements) -> Operand {
        Operand::Local(Span::linear(Buffer::Input, start))
    }

    /// My output from `start` on.
    pub(super) fn output(start: Elements) -> Operand {
        Operand::Local(Span::linear(Buffer::Output, start))
    }

    /// The same elements seen by another rank: mine as they are, a peer's through its window.
    pub(super) fn of(owner: Rank, me: Rank, span: Span) -> Operand {
        if owner == me { Operand::Local(span) } else { Operand::Window(owner, span) }
    }
}

impl Span {
    /// Elements that go on from round to round.
    pub(super) fn linear(buffer: Buffer, start: Elements) -> Span {
        Span { buffer, start, walk: Walk::Linear }
    }
}
