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

impl Node {
    /// The place of `me` in the first or second tree of hosts; the first rank of the first host is the root.
    pub(super) fn new((hosts, inside): (&[Vec<Rank>], WithinHost), second: bool, me: Rank) -> Node {
        // Each rank with the place of its parent in this list, which a host's first rank begins.
        let mut parents: Vec<(Rank, Option<usize>)> = Vec::new();
        let firsts: Vec<usize> =
            hosts.iter().scan(0, |next, ranks| Some(std::mem::replace(next, *next + ranks.len()))).collect();
        for (host, ranks) in hosts.iter().enumerate() {
            let above = parent(host, hosts.len(), second).map(|host| firsts[host]);
            parents.extend(ranks.iter().enumerate().map(|(seat, rank)| match seat.checked_sub(1) {
                None => (*rank, above),
                Some(before) => {
                    let above = match inside {
                        WithinHost::Heap => before / 2,
                        WithinHost::Chain => before,
                    };
                    (*rank, Some(firsts[host] + above))
                }
            }));
        }
        let place = parents.iter().position(|(rank, _)| *rank == me);
        let above = |place: usize| parents[place].1;
        let children =
            parents.iter().filter(|(_, parent)| parent.is_some() && *parent == place).map(|(child, _)| *child);
        let children = children.collect();
        let depth = |place: usize| std::iter::successors(above(place), |place| above(*place)).count();
        let lag = |depth: usize| {
            u8::try_from((depth * LAG_PER_EDGE).min(GREATEST_LAG)).expect("the greatest lag fits a byte")
        };
        let deepest = (0..parents.len()).map(depth).max().unwrap_or(0);
        let parent = place.and_then(above).map(|place| parents[place].0);
        let mine = place.map_or(0, depth);
        Node { parent, children, lag: lag(mine), greatest_lag: lag(deepest) }
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
