//! Two binary trees over the same places (hosts, domains, ranks), so that none but the root passes data on in both:
//! together they use all NICs in both directions, each for half of the data.
//!
//! Place 0 is the root of both, and has one child. In the first tree places with odd numbers are leaves:
//!
//! ```text
//!   0
//!   └─ 4
//!     ┌┴──┐
//!     2   6
//!    ┌┴┐ ┌┴┐
//!    1 3 5 7
//! ```
//!
//! The second one is the first with its other places renumbered, so that leaves of the one pass data on in the other.
//! Plans take their trees from here, one place at a time, and pictures the whole of them.

/// For each place its parent; the root has none.
pub type Parents = Vec<Option<usize>>;

/// The two trees over `size` places.
pub fn complementary(size: usize) -> [Parents; 2] {
    [false, true].map(|second| (0..size).map(|place| parent(place, size, second)).collect())
}

/// The parent of a place in the first or second tree over `size` places.
pub fn parent(place: usize, size: usize, second: bool) -> Option<usize> {
    if place == 0 {
        return None;
    }
    let seen = if second { swap(place, size) } else { place };
    let lowest = seen & seen.wrapping_neg();
    let beside = (seen ^ lowest) | (lowest << 1);
    let above = if beside < size { beside } else { seen ^ lowest };
    Some(if second && above != 0 { swap_back(above, size) } else { above })
}

/// The edges between a place and the root.
pub fn depth(place: usize, size: usize, second: bool) -> usize {
    std::iter::successors(parent(place, size, second), |place| parent(*place, size, second)).count()
}

/// The most edges between a place and the root: as many as the last place's number has bits.
pub const fn deepest(size: usize) -> usize {
    (usize::BITS - size.saturating_sub(1).leading_zeros()) as usize
}

/// The places below one, in order. A child differs from its parent by one bit, which lies below the parent's lowest.
pub fn children(place: usize, size: usize, second: bool) -> Vec<usize> {
    let seen = if second && place != 0 { swap(place, size) } else { place };
    let lowest = if seen == 0 { size.next_power_of_two() } else { seen & seen.wrapping_neg() };
    let bits = std::iter::successors(Some(lowest / 2), |bit| Some(bit / 2)).take_while(|bit| *bit > 0);
    let seen_below = bits.map(|bit| seen + bit).chain((seen > 0 && lowest > 1).then(|| seen - lowest / 2));
    let below =
        seen_below.filter(|child| *child < size).map(|child| if second { swap_back(child, size) } else { child });
    let mut below: Vec<usize> = below.filter(|child| parent(*child, size, second) == Some(place)).collect();
    below.sort_unstable();
    below
}

/// Where a place other than the root stands in the second tree: leaves of the first, which are odd, become even.
fn swap(place: usize, size: usize) -> usize {
    if size % 2 == 1 { size - place } else { place % (size - 1) + 1 }
}

fn swap_back(place: usize, size: usize) -> usize {
    match (size % 2, place) {
        (1, _) => size - place,
        (_, 1) => size - 1,
        _ => place - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_children_in_one_tree_only_and_no_tree_is_deep() {
        for size in 1..200_usize {
            let mut inner = vec![0; size];
            for parents in complementary(size) {
                for place in 1..size {
                    let mut depth = 0;
                    let mut above = Some(place);
                    while let Some(next) = above.and_then(|place| parents[place]) {
                        depth += 1;
                        above = Some(next);
                        assert!(depth <= usize::BITS - size.leading_zeros(), "{size} {place}");
                    }
                    assert_eq!(above, Some(0));
                }
                for (place, count) in inner.iter_mut().enumerate().skip(1) {
                    let children = parents.iter().filter(|parent| **parent == Some(place)).count();
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
            for place in 0..size {
                if let Some(parent) = parent(place, size, second) {
                    below[parent].push(place);
                }
            }
            for (place, below) in below.iter().enumerate() {
                assert_eq!(&children(place, size, second), below, "{place} of {size}, {second}");
            }
            let most = (0..size).map(|place| depth(place, size, second)).max().unwrap();
            assert_eq!(deepest(size), most, "{size} {second}");
        }
    }
}
