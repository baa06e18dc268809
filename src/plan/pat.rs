//! PAT: all-gather and reduce-scatter in logarithmically many steps, for any number of ranks.
//!
//! Ranks stand on a ring. In the step of distance d (1, 2, 4, … below the number of ranks) of an all-gather, every rank
//! has the d blocks from its own position on and sends the first min(d, ranks - d) of them d places back. As many
//! neighbouring blocks as fit a slot make one message. A reduce-scatter runs the same steps backwards, and every rank
//! adds what comes to its own contribution to those blocks.
//!
//! In a step the i-th message taken follows the i-th message sent, so two slots for a connection suffice.

use super::site::{Draft, Site};
use super::sizes::{Cutting, Measure};
use super::{Combine, Lane, Operand, Span};
use crate::Result;
use crate::types::{Collective, Rank};

/// The lane of an all-gather or a reduce-scatter.
pub(super) fn lane(site: Site<'_>) -> Result<Option<Lane>> {
    let order: Vec<Rank> = site.spec.layout.hosts().iter().flatten().copied().collect();
    let position = order.iter().position(|rank| *rank == site.me()).expect("a checked spec has every rank on a host");
    let scatters = site.spec.collective == Collective::ReduceScatter;
    let kept = (0..order.len()).filter(|_| scatters).count() / 2;
    let measure = Measure { regions: kept, slotted: order.len() > 1, ..Measure::of(Cutting::EachRank) };
    let sizes = measure.sizes(site)?;
    // Neighbours on the ring are neighbours in memory only if rank order is ring order and no other lane has a part of
    // each block.
    let in_order = order.windows(2).all(|pair| pair[0] < pair[1]) && site.lanes == 1;
    let pat = Pat { order, position, aggregate: if in_order { site.aggregate(&sizes) } else { 1 } };
    let mut draft = Draft::default();
    if scatters {
        pat.reduce_scatter(&mut draft);
    } else {
        pat.all_gather(&mut draft);
    }
    Ok(site.finish(measure, sizes, draft))
}

struct Pat {
    order: Vec<Rank>,
    position: usize,
    /// Blocks in a message.
    aggregate: usize,
}

/// A message: blocks that stand side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    /// The first, counted from the taker's position (all-gather: the sender's; reduce-scatter: the taker's).
    first: usize,
    /// How many.
    blocks: usize,
}

impl Pat {
    fn size(&self) -> usize {
        self.order.len()
    }

    fn distances(&self) -> Vec<usize> {
        std::iter::successors(Some(1_usize), |far| far.checked_mul(2)).take_while(|far| *far < self.size()).collect()
    }

    fn at(&self, position: usize) -> Rank {
        self.order[position % self.size()]
    }

    fn back(&self, distance: usize) -> usize {
        (self.position + self.size() - distance) % self.size()
    }

    /// Blocks that move in the step of `distance`.
    fn moved(&self, distance: usize) -> usize {
        distance.min(self.size() - distance)
    }

    /// The messages of a step: blocks `0..moved` from `position` on, parted where the ring wraps, at `parting`, and
    /// where a slot is full. Both ends compute the same.
    fn runs(&self, position: usize, moved: usize, partings: [usize; 2]) -> Vec<Run> {
        let wrap = self.size() - position;
        let mut runs = Vec::new();
        let mut first = 0;
        while first < moved {
            let cuts = partings.into_iter().chain([wrap]).filter(|cut| *cut > first);
            let end = cuts.chain([moved, first.saturating_add(self.aggregate)]).min().unwrap_or(moved);
            runs.push(Run { first, blocks: end - first });
            first = end;
        }
        runs
    }

    /// The block of the rank at `position`.
    fn block(&self, position: usize) -> u32 {
        self.at(position).get()
    }

    /// A combine over `blocks` blocks: one round if several blocks move together, else as many rounds as the block
    /// needs.
    fn combine(&self, blocks: usize, sources: Vec<Operand>, targets: Vec<Operand>) -> Combine {
        let times = u32::try_from(blocks).expect("a count of ranks fits 32 bits");
        Combine { block: self.block(self.position), times, sources, targets, finish: false }
    }

    fn all_gather(&self, draft: &mut Draft) {
        let mine = self.block(self.position);
        draft.combine(0, self.combine(1, vec![Operand::input(mine)], vec![Operand::output(mine)]));
        for distance in self.distances() {
            let (target, source) = (self.back(distance), (self.position + distance) % self.size());
            let moved = self.moved(distance);
            let sent = self.runs(self.position, moved, [moved; 2]).into_iter().map(|run| {
                let span = Operand::output(self.block(self.position + run.first));
                self.combine(run.blocks, vec![span], vec![Operand::Slot(self.at(target))])
            });
            let taken = self.runs(source, moved, [moved; 2]).into_iter().map(|run| {
                let span = Operand::output(self.block(source + run.first));
                self.combine(run.blocks, vec![Operand::Slot(self.at(source))], vec![span])
            });
            alternate(sent.collect(), taken.collect(), draft);
        }
    }

    fn reduce_scatter(&self, draft: &mut Draft) {
        let distances = self.distances();
        let top = distances.last().copied().unwrap_or(1);
        if distances.is_empty() {
            let mine = self.block(self.position);
            let combine = self.combine(1, vec![Operand::input(mine)], vec![Operand::output(mine)]);
            return draft.combine(0, Combine { finish: true, ..combine });
        }
        // The first step adds to these blocks; the second step adds to all blocks that are still needed.
        let touched = self.moved(top);
        for distance in distances.into_iter().rev() {
            let (target, source) = ((self.position + distance) % self.size(), self.back(distance));
            let moved = self.moved(distance);
            // The partial sum of the block that is `offset` places ahead has the region of that number.
            let kept = |offset: usize, fresh: bool| match fresh {
                true => Operand::input(self.block(self.position + offset)),
                false => Operand::Local(Span::region(offset)),
            };
            let fresh = |offset: usize| distance == top || (distance * 2 == top && offset >= touched);
            // The taker's offset 0 is the sender's offset `distance`.
            let partings = [touched, touched.saturating_sub(distance)];
            let sent = self.runs(target, moved, partings).into_iter().map(|run| {
                let offset = run.first + distance;
                let sources = vec![kept(offset, fresh(offset))];
                self.combine(run.blocks, sources, vec![Operand::Slot(self.at(target))])
            });
            let taken = self.runs(self.position, moved, partings).into_iter().map(|run| {
                let last = distance == 1;
                let held = kept(run.first, fresh(run.first));
                let output = Operand::output(self.block(self.position));
                let result = if last { output } else { Operand::Local(Span::region(run.first)) };
                let combine = self.combine(run.blocks, vec![held, Operand::Slot(self.at(source))], vec![result]);
                Combine { finish: last, ..combine }
            });
            alternate(sent.collect(), taken.collect(), draft);
        }
    }
}

fn alternate(sent: Vec<Combine>, taken: Vec<Combine>, draft: &mut Draft) {
    let mut taken = taken.into_iter();
    for combine in sent {
        draft.combine(0, combine);
        taken.next().into_iter().for_each(|combine| draft.combine(0, combine));
    }
    taken.for_each(|combine| draft.combine(0, combine));
}
