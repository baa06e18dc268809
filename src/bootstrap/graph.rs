//! The graph of control connections: which ranks a rank stays connected with, and the tree in it that collectives use.
//!
//! Rank i of N is connected with the ranks 3i, 3i + 1 and 3i + 2, modulo N: the generalized de Bruijn graph of base 3.
//! No rank has more than six neighbours in a world of any size, and between any two ranks there are at most ⌈log₃ N⌉
//! connections. The connections that do not wrap around are a tree with rank 0 as its root: the parent of rank i is
//! rank ⌊i / 3⌋. The others lead from its leaves to all ranks, so that news go around ranks that have died.

#![forbid(unsafe_code)]

use crate::types::Rank;

/// How many ranks a rank leads to.
const BASE: u32 = 3;

/// The most neighbours of a rank.
#[cfg(test)]
pub(super) const MOST_NEIGHBOURS: usize = 6;

/// A rank that this rank is connected with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Neighbour {
    pub(super) rank: Rank,
    /// True if this rank opens the connection; the neighbour has the opposite value.
    pub(super) dial: bool,
}

/// The ranks that `me` is connected with in a world of `size` ranks, each once.
pub(super) fn neighbours(me: Rank, size: u32) -> Vec<Neighbour> {
    let (me, world) = (u64::from(me.get()), u64::from(size));
    let next = |turn: u32| (u64::from(BASE) * me + u64::from(turn)) % world;
    let previous = |turn: u32| (u64::from(turn) * world + me) / u64::from(BASE);
    let mut all: Vec<Neighbour> = Vec::new();
    let mut add = |rank: u64, dial: bool| {
        let Ok(rank) = u32::try_from(rank).map(Rank::new) else { return };
        if u64::from(rank.get()) != me && all.iter().all(|other| other.rank != rank) {
            all.push(Neighbour { rank, dial });
        }
    };
    for rank in (0..BASE).map(next) {
        // Where each of two ranks leads to the other, the lower one connects.
        let is_mutual = (0..BASE).map(previous).any(|other| other == rank);
        add(rank, !is_mutual || me < rank);
    }
    for rank in (0..BASE).map(previous) {
        add(rank, false);
    }
    all
}

/// The tree of a group of `size` places, as one of them sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TreePlace {
    place: u32,
    size: u32,
}

impl TreePlace {
    pub(super) fn new(place: u32, size: u32) -> TreePlace {
        TreePlace { place, size }
    }

    pub(super) fn parent(self) -> Option<u32> {
        (self.place > 0).then_some(self.place / BASE)
    }

    pub(super) fn children(self) -> impl Iterator<Item = u32> {
        let first = u64::from(self.place) * u64::from(BASE);
        let below = u64::from(self.size);
        (first..(first + u64::from(BASE)).min(below)).filter_map(|child| u32::try_from(child).ok()).filter(|c| *c != 0)
    }

    /// The places from here down, each before those below it.
    pub(super) fn descent(self) -> Descent {
        Descent { next: vec![self.place], size: self.size }
    }

    /// The neighbour in the tree that is next on the way to `other`; `None` if that is this place.
    pub(super) fn towards(self, other: u32) -> Option<u32> {
        let up = std::iter::successors(Some(other), |place| TreePlace::new(*place, self.size).parent());
        let below = up.take_while(|place| *place != self.place);
        let last = below.last()?;
        // The way from `other` to the root ends at a child of this place, or it goes past this place.
        if TreePlace::new(last, self.size).parent() == Some(self.place) { Some(last) } else { self.parent() }
    }
}

/// See [`TreePlace::descent`].
#[derive(Debug)]
pub(super) struct Descent {
    next: Vec<u32>,
    size: u32,
}

impl Iterator for Descent {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let place = self.next.pop()?;
        let at = self.next.len();
        self.next.extend(TreePlace::new(place, self.size).children());
        self.next[at..].reverse();
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [u32; 8] = [128, 242, 243, 244, 1000, 1024, 4096, 10_007];

    #[test]
    fn neighbours_are_few_and_agree_on_who_connects() {
        for size in (1..100).chain(SIZES) {
            for me in (0..size).map(Rank::new) {
                let mine = neighbours(me, size);
                assert!(mine.len() <= MOST_NEIGHBOURS, "{me} of {size}: {mine:?}");
                for neighbour in mine {
                    assert_ne!(neighbour.rank, me);
                    let theirs = neighbours(neighbour.rank, size);
                    let back: Vec<_> = theirs.iter().filter(|other| other.rank == me).collect();
                    assert_eq!(back.len(), 1, "{me} and {neighbour:?} of {size}");
                    assert_ne!(back[0].dial, neighbour.dial, "{me} and {neighbour:?} of {size}");
                }
            }
        }
    }

    /// How far each rank that is not in `dead` is from `from`, over ranks that are not.
    fn distances(from: u32, size: u32, dead: &[u32]) -> Vec<Option<u32>> {
        let mut found = vec![None; Rank::new(size).index()];
        found[Rank::new(from).index()] = Some(0);
        let mut queue = std::collections::VecDeque::from([from]);
        while let Some(rank) = queue.pop_front() {
            let far = found[Rank::new(rank).index()].map(|far| far + 1);
            for neighbour in neighbours(Rank::new(rank), size) {
                let seat = &mut found[neighbour.rank.index()];
                if seat.is_none() && !dead.contains(&neighbour.rank.get()) {
                    *seat = far;
                    queue.push_back(neighbour.rank.get());
                }
            }
        }
        found
    }

    #[test]
    fn everyone_is_near() {
        for size in (2..100).chain([242, 243, 244, 1000, 1024]) {
            let most = (0..).find(|power| BASE.pow(*power) >= size).unwrap();
            for from in 0..size {
                let far = distances(from, size, &[]).into_iter().map(Option::unwrap).max().unwrap();
                assert!(far <= most, "{from} of {size}: {far} > {most}");
            }
        }
    }

    /// Two ranks that die at the same time part no others, whichever they are; nor do three or four neighbours of one
    /// rank that has more.
    #[test]
    fn deaths_at_the_same_time_part_nobody_else() {
        let parts = |size: u32, dead: &[u32]| {
            let from = (0..size).find(|rank| !dead.contains(rank)).unwrap();
            let reached = distances(from, size, dead).iter().flatten().count();
            reached + dead.len() < Rank::new(size).index()
        };
        for size in [5, 8, 9, 10, 27, 28, 40, 64] {
            for one in 0..size {
                for other in one + 1..size {
                    assert!(!parts(size, &[one, other]), "{one} and {other} of {size}");
                }
            }
        }
        for size in [64, 1000, 1024] {
            for rank in (0..size).map(Rank::new) {
                let near: Vec<u32> = neighbours(rank, size).iter().map(|neighbour| neighbour.rank.get()).collect();
                for most in 3..near.len() {
                    assert!(!parts(size, &near[..most]), "{most} neighbours of {rank} of {size}");
                }
            }
        }
    }

    #[test]
    fn the_tree_is_a_part_of_the_graph_and_has_everyone_once() {
        for size in (1..100).chain(SIZES) {
            let mut all: Vec<u32> = TreePlace::new(0, size).descent().collect();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..size));
            for place in 0..size {
                let near = neighbours(Rank::new(place), size);
                let mut tree: Vec<u32> = TreePlace::new(place, size).children().collect();
                for child in &tree {
                    assert_eq!(TreePlace::new(*child, size).parent(), Some(place));
                }
                tree.extend(TreePlace::new(place, size).parent());
                for other in tree {
                    assert!(near.iter().any(|neighbour| neighbour.rank.get() == other), "{place}, {other} of {size}");
                }
            }
        }
    }

    #[test]
    fn each_step_on_the_way_is_one_nearer() {
        for size in [1, 2, 3, 4, 13, 40, 41] {
            for (from, to) in (0..size).flat_map(|from| (0..size).map(move |to| (from, to))) {
                let step = |place: &u32| TreePlace::new(*place, size).towards(to);
                let way: Vec<u32> = std::iter::successors(Some(from), step).take(20).collect();
                assert_eq!(way.last(), Some(&to), "{from} to {to} of {size}: {way:?}");
            }
        }
    }
}
