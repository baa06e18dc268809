//! Up and down two binary trees.
//!
//! Both trees have one root, which has one child; every other rank has children in at most one of the two, so that two
//! lanes with half the data each use all ranks evenly. The trees connect hosts; inside a host that is not planned
//! through windows, its ranks hang below the one that speaks for it: as a binary tree, or along the links that a search
//! has found.

use super::ring::Parcel;
use super::{Action, Operand, Step};
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
        let above = parent(host, hosts.len(), second).map(|host| ranks_of(host)[0]);
        // In the order of hosts, and of the ranks of a host.
        let within = || inside.children(seat, ranks.len()).map(|seat| ranks[seat]);
        let between = if seat == 0 { children(host, hosts.len(), second) } else { Vec::new() };
        let (before, after): (Vec<usize>, Vec<usize>) = between.into_iter().partition(|child| *child < host);
        let firsts = |hosts_below: Vec<usize>| hosts_below.into_iter().map(|child| ranks_of(child)[0]);
        let mine = depth(host, hosts.len(), second) + inside.depth(seat);
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
        // Of all positions the deepest has as many edges as the last position's number has bits.
        return most + (usize::BITS - hosts.len().saturating_sub(1).leading_zeros()) as usize;
    }
    let of_host = |(host, ranks)| depth(host, hosts.len(), second) + within(ranks);
    hosts.iter().enumerate().map(of_host).max().unwrap_or(0)
}

/// The parent of a position in the first or second tree over `size` positions; 0 is the root of both.
fn parent(position: usize, size: usize, second: bool) -> Option<usize> {
    if position == 0 {
        return None;
    }
    let seen = if second { swap(position, size) } else { position };
    let lowest = seen & seen.wrapping_neg();
    let beside = (seen ^ lowest) | (lowest << 1);
    let above = if beside < size { beside } else { seen ^ lowest };
    Some(if second && above != 0 { swap_back(above, size) } else { above })
}

/// The edges between a position and the root.
fn depth(position: usize, size: usize, second: bool) -> usize {
    std::iter::successors(parent(position, size, second), |position| parent(*position, size, second)).count()
}

/// The positions below one, in order. A child differs from its parent by one bit, which lies below the parent's lowest.
fn children(position: usize, size: usize, second: bool) -> Vec<usize> {
    let seen = if second && position != 0 { swap(position, size) } else { position };
    let lowest = if seen == 0 { size.next_power_of_two() } else { seen & seen.wrapping_neg() };
    let bits = std::iter::successors(Some(lowest / 2), |bit| Some(bit / 2)).take_while(|bit| *bit > 0);
    let seen_below = bits.map(|bit| seen + bit).chain((seen > 0 && lowest > 1).then(|| seen - lowest / 2));
    let below =
        seen_below.filter(|child| *child < size).map(|child| if second { swap_back(child, size) } else { child });
    let mut below: Vec<usize> = below.filter(|child| parent(*child, size, second) == Some(position)).collect();
    below.sort_unstable();
    below
}

/// Where a position other than the root stands in the second tree: leaves of the first, which are odd, become even.
fn swap(position: usize, size: usize) -> usize {
    if size % 2 == 1 { size - position } else { position % (size - 1) + 1 }
}

fn swap_back(position: usize, size: usize) -> usize {
    match (size % 2, position) {
        (1, _) => size - position,
        (_, 1) => size - 1,
        _ => position - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_has_children_in_one_tree_only_and_no_tree_is_deep() {
        for size in 1..200_usize {
            let mut inner = vec![0; size];
            for second in [false, true] {
                let parents: Vec<_> = (0..size).map(|position| parent(position, size, second)).collect();
                for position in 1..size {
                    let mut depth = 0;
                    let mut above = Some(position);
                    while let Some(next) = above.and_then(|position| parents[position]) {
                        depth += 1;
                        above = Some(next);
                        assert!(depth <= usize::BITS - size.leading_zeros(), "{size} {second} {position}");
                    }
                    assert_eq!(above, Some(0));
                }
                for (position, count) in inner.iter_mut().enumerate().skip(1) {
                    let children = parents.iter().filter(|parent| **parent == Some(position)).count();
                    assert!(children <= 2);
                    *count += usize::from(children > 0);
                }
                assert!(parents.iter().filter(|parent| **parent == Some(0)).count() <= 1);
            }
            assert!(inner.iter().skip(1).all(|trees| *trees <= 1), "{size}: {inner:?}");
        }
    }

    /// Each closed form against what the parents say.
    #[test]
    fn children_and_depths_follow_from_the_parents() {
        for (size, second) in (1..300_usize).flat_map(|size| [(size, false), (size, true)]) {
            let mut below = vec![Vec::new(); size];
            for position in 0..size {
                if let Some(parent) = parent(position, size, second) {
                    below[parent].push(position);
                }
            }
            for (position, below) in below.iter().enumerate() {
                assert_eq!(&children(position, size, second), below, "{position} of {size}, {second}");
            }
            let most = (0..size).map(|position| depth(position, size, second)).max().unwrap();
            let alone: Vec<Vec<Rank>> = (0..size).map(|rank| vec![Rank::new(u32::try_from(rank).unwrap())]).collect();
            for inside in [WithinHost::Heap, WithinHost::Chain] {
                assert_eq!(deepest(&alone, inside, second), most, "{size} {second}");
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
