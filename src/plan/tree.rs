//! Up and down two binary trees.
//!
//! The trees are those of [`trees`]: every rank but the root has children in at most one of the two, so that two lanes
//! with half the data each use all ranks evenly. The trees connect hosts; inside a host that is not planned
//! through windows, its ranks hang below the one that speaks for it: as a binary tree, or along the links that a search
//! has found.

use super::ring::Parcel;
use super::{Action, Operand, Step};
use crate::topo::search::trees;
use crate::types::Rank;

/// Turns that a piece may be on its way up and down for each edge between a rank and the root.
const LAG_PER_EDGE: usize = 2;

/// The most that a result may lag behind its contribution.
const GREATEST_LAG: usize = 32;

/// My place in a tree; by default that of a rank alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Node {
    parent: Option<Rank>,
    children: Vec<Rank>,
    /// Turns that the way down lags behind the way up.
    pub(super) lag: u8,
    /// The greatest such lag of a rank.
    pub(super) greatest_lag: u8,
}

/// How the ranks of a host hang below its first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WithinHost {
    /// Each has two below it.
    Heap,
    /// Each below the one before it.
    Chain,
}

impl WithinHost {
    /// The seat above the one behind `before`.
    fn parent(self, before: usize) -> usize {
        match self {
            WithinHost::Heap => before / 2,
            WithinHost::Chain => before,
        }
    }

    fn children(self, seat: usize, seats: usize) -> impl Iterator<Item = usize> {
        let below = match self {
            WithinHost::Heap => 2 * seat + 1..2 * seat + 3,
            WithinHost::Chain => seat + 1..seat + 2,
        };
        below.filter(move |child| *child < seats)
    }

    /// The edges between a seat and the first.
    fn depth(self, seat: usize) -> usize {
        match self {
            WithinHost::Heap => (seat + 1).ilog2() as usize,
            WithinHost::Chain => seat,
        }
    }
}

impl Node {
    /// The place of `me` in the first or second tree of hosts; the first rank of the first host is the root.
    pub(super) fn new<H: AsRef<[Rank]>>((hosts, inside): (&[H], WithinHost), second: bool, me: Rank) -> Node {
        let ranks_of = |host: usize| hosts[host].as_ref();
        let found = hosts
            .iter()
            .enumerate()
            .find_map(|(host, ranks)| ranks.as_ref().iter().position(|rank| *rank == me).map(|seat| (host, seat)));
        let Some((host, seat)) = found else { return Node::default() };
        let ranks = ranks_of(host);
        let above = trees::parent(host, hosts.len(), second).map(|host| ranks_of(host)[0]);
        // In the order of hosts, and of the ranks of a host.
        let within = || inside.children(seat, ranks.len()).map(|seat| ranks[seat]);
        let between = if seat == 0 { trees::children(host, hosts.len(), second) } else { Vec::new() };
        let (before, after): (Vec<usize>, Vec<usize>) = between.into_iter().partition(|child| *child < host);
        let firsts = |hosts_below: Vec<usize>| hosts_below.into_iter().map(|child| ranks_of(child)[0]);
        let mine = trees::depth(host, hosts.len(), second) + inside.depth(seat);
        Node {
            parent: seat.checked_sub(1).map_or(above, |before| Some(ranks[inside.parent(before)])),
            children: firsts(before).chain(within()).chain(firsts(after)).collect(),
            lag: lag(mine),
            greatest_lag: lag(deepest(hosts, inside, second)),
        }
    }

    fn below(&self) -> impl Iterator<Item = Operand> {
        self.children.iter().map(|child| Operand::Slot(*child))
    }

    /// The block, reduced, to everyone.
    pub(super) fn all_reduce(&self, parcel: &Parcel) -> Vec<Step> {
        let mut up = self.reduce(parcel);
        if self.parent.is_some() {
            return vec![up, Step { lag: self.lag, ..self.broadcast(parcel) }];
        }
        if let Action::Combine(top) = &mut up.action {
            top.targets.extend(self.below());
        }
        vec![up]
    }

    /// The block from the root to all.
    pub(super) fn broadcast(&self, parcel: &Parcel) -> Step {
        let sources = self.parent.map_or_else(|| parcel.sources.clone(), |parent| vec![Operand::Slot(parent)]);
        let targets = parcel.targets.iter().copied().chain(self.below()).collect();
        parcel.step(sources, targets, false)
    }

    /// The block, reduced, to the root.
    pub(super) fn reduce(&self, parcel: &Parcel) -> Step {
        let sources = parcel.sources.iter().copied().chain(self.below()).collect();
        let targets = self.parent.map_or_else(|| parcel.targets.clone(), |parent| vec![Operand::Slot(parent)]);
        parcel.step(sources, targets, self.parent.is_none())
    }
}

fn lag(depth: usize) -> u8 {
    u8::try_from((depth * LAG_PER_EDGE).min(GREATEST_LAG)).expect("the greatest lag fits a byte")
}

/// The most edges between a rank and the root.
fn deepest<H: AsRef<[Rank]>>(hosts: &[H], inside: WithinHost, second: bool) -> usize {
    let within = |ranks: &H| inside.depth(ranks.as_ref().len() - 1);
    let most = hosts.iter().map(within).max().unwrap_or(0);
    if hosts.iter().all(|ranks| within(ranks) == most) {
        return most + trees::deepest(hosts.len());
    }
    let of_host = |(host, ranks)| trees::depth(host, hosts.len(), second) + within(ranks);
    hosts.iter().enumerate().map(of_host).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Inside hosts, and of hosts of one rank each.
    #[test]
    fn children_and_depths_follow_from_the_parents() {
        for size in [1, 2, 3, 7, 8, 33] {
            let alone: Vec<Vec<Rank>> = (0..size).map(|rank| vec![Rank::new(rank)]).collect();
            for (inside, second) in [(WithinHost::Heap, false), (WithinHost::Chain, true)] {
                assert_eq!(deepest(&alone, inside, second), trees::deepest(alone.len()), "{size} {second}");
            }
        }
        for (inside, seats) in
            [WithinHost::Heap, WithinHost::Chain].into_iter().flat_map(|way| (1..40).map(move |n| (way, n)))
        {
            for seat in 1..seats {
                let above = inside.parent(seat - 1);
                assert!(inside.children(above, seats).any(|child| child == seat));
                assert_eq!(inside.depth(seat), inside.depth(above) + 1);
            }
        }
    }

    #[test]
    fn ranks_of_a_host_hang_below_its_first() {
        let hosts: Vec<Vec<Rank>> =
            [vec![0, 1, 2], vec![3, 4]].iter().map(|host| host.iter().copied().map(Rank::new).collect()).collect();
        let node = Node::new((&hosts, WithinHost::Heap), false, Rank::new(3));
        assert_eq!((node.parent, node.children.as_slice()), (Some(Rank::new(0)), [Rank::new(4)].as_slice()));
        assert_eq!((node.lag, node.greatest_lag), (2, 4));
        let last = Node::new((&hosts, WithinHost::Chain), false, Rank::new(2));
        assert_eq!((last.parent, last.lag), (Some(Rank::new(1)), 4));
    }
}
