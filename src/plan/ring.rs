//! The ring algorithms: plans around a ring, and along a chain.
//!
//! Each round moves one piece of every block, so that a rank has at most one message more in flight than it has taken:
//! two slots for a connection suffice.

use super::{Action, Combine, Operand, Step};
use crate::types::Rank;

/// What a rank gives to a block that travels, and what it does with the block's result.
#[derive(Debug, Clone, Default)]
pub(super) struct Parcel {
    /// Which block.
    pub(super) block: u32,
    /// What together makes this rank's contribution.
    pub(super) sources: Vec<Operand>,
    /// Where the result goes.
    pub(super) targets: Vec<Operand>,
}

impl Parcel {
    /// A combine of the block.
    pub(super) fn step(&self, sources: Vec<Operand>, targets: Vec<Operand>, finish: bool) -> Step {
        let combine = Combine { block: self.block, times: 1, sources, targets, finish };
        Step { lag: 0, action: Action::Combine(combine) }
    }
}

/// My place on a ring, or on a chain from the first of `order` to the last.
#[derive(Debug)]
pub(super) struct Ring {
    /// The ranks, in turn.
    pub(super) order: Vec<Rank>,
    /// Mine.
    pub(super) position: usize,
}

impl Ring {
    fn at(&self, ahead: usize) -> Rank {
        self.order[(self.position + ahead) % self.order.len()]
    }

    fn next(&self) -> Operand {
        Operand::Slot(self.at(1))
    }

    fn previous(&self) -> Operand {
        Operand::Slot(self.at(self.order.len() - 1))
    }

    /// The block that stands `behind` places behind me.
    fn behind<'p>(&self, parcels: &'p [Option<Parcel>], behind: usize) -> Option<&'p Parcel> {
        let size = self.order.len();
        parcels[(self.position + 2 * size - behind) % size].as_ref()
    }

    /// Every block, reduced, to everyone.
    pub(super) fn all_reduce(&self, parcels: &[Option<Parcel>]) -> Vec<Step> {
        let mut steps = self.reduce_scatter(parcels);
        if self.order.len() == 1 {
            return steps;
        }
        if let Some(Step { action: Action::Combine(last), .. }) = steps.last_mut() {
            last.targets.push(self.next());
        }
        steps.extend((1..self.order.len()).filter_map(|behind| self.pass(parcels, behind)));
        steps
    }

    /// Every block to everyone; the block at my position is mine.
    pub(super) fn all_gather(&self, parcels: &[Option<Parcel>]) -> Vec<Step> {
        (0..self.order.len()).filter_map(|behind| self.pass(parcels, behind)).collect()
    }

    /// Every block, reduced, to the rank at its position.
    pub(super) fn reduce_scatter(&self, parcels: &[Option<Parcel>]) -> Vec<Step> {
        let size = self.order.len();
        let add = |behind: usize| {
            let parcel = self.behind(parcels, behind)?;
            let mut sources = parcel.sources.clone();
            if behind > 1 {
                sources.push(self.previous());
            }
            let last = behind == size;
            let targets = if last { parcel.targets.clone() } else { vec![self.next()] };
            Some(parcel.step(sources, targets, last))
        };
        (1..=size).filter_map(add).collect()
    }

    fn pass(&self, parcels: &[Option<Parcel>], behind: usize) -> Option<Step> {
        let parcel = self.behind(parcels, behind)?;
        let sources = if behind == 0 { parcel.sources.clone() } else { vec![self.previous()] };
        let mut targets = parcel.targets.clone();
        if behind + 1 < self.order.len() {
            targets.push(self.next());
        }
        Some(parcel.step(sources, targets, false))
    }

    /// One block from the first rank of the chain to all.
    pub(super) fn broadcast(&self, parcel: &Parcel) -> Step {
        let sources = if self.position == 0 { parcel.sources.clone() } else { vec![self.previous()] };
        let mut targets = parcel.targets.clone();
        if self.position + 1 < self.order.len() {
            targets.push(self.next());
        }
        parcel.step(sources, targets, false)
    }

    /// One block, reduced from the last rank of the chain to the first.
    pub(super) fn reduce(&self, parcel: &Parcel) -> Step {
        let mut sources = parcel.sources.clone();
        if self.position + 1 < self.order.len() {
            sources.push(self.next());
        }
        let first = self.position == 0;
        let targets = if first { parcel.targets.clone() } else { vec![self.previous()] };
        parcel.step(sources, targets, first)
    }
}
