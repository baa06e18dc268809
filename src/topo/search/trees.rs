//! Two binary trees over the same domains, so that no domain passes data on in both: together they use all NICs in both
//! directions.
//!
//! In the first tree the domains with odd places pass data on and those with even places are leaves:
//!
//! ```text
//!        3
//!      ┌─┴─┐
//!      1   5
//!     ┌┴┐ ┌┴┐
//!     0 2 4 6
//! ```
//!
//! The second one is the mirror image where the number of domains is even, and else the first one moved on by one
//! place.

/// For each place its parent; the root has none.
pub type Parents = Vec<Option<usize>>;

/// The two trees over `size` places.
pub fn complementary(size: usize) -> [Parents; 2] {
    let one = binary(size);
    let other = if size.is_multiple_of(2) {
        (0..size).map(|place| one[size - 1 - place].map(|parent| size - 1 - parent)).collect()
    } else {
        (0..size).map(|place| one[(place + size - 1) % size].map(|parent| (parent + 1) % size)).collect()
    };
    [one, other]
}

/// Balanced over the odd places, with the even ones as leaves below their neighbours.
fn binary(size: usize) -> Parents {
    let mut parents = vec![None; size];
    if size == 2 {
        parents[0] = Some(1);
        return parents;
    }
    let inner = size / 2;
    let mut open = vec![(0, inner, None)];
    while let Some((from, to, parent)) = open.pop() {
        // Within from..to of the inner places, the middle one is the subtree's root.
        let middle = from + (to - from) / 2;
        if from == to {
            // A gap between two inner places is one leaf.
            if 2 * from < size {
                parents[2 * from] = parent;
            }
            continue;
        }
        parents[2 * middle + 1] = parent;
        let root = Some(2 * middle + 1);
        open.push((from, middle, root));
        open.push((middle + 1, to, root));
    }
    parents
}

#[cfg(test)]
mod tests {
    use super::*;

    fn children(parents: &Parents, of: usize) -> usize {
        parents.iter().filter(|parent| **parent == Some(of)).count()
    }

    fn depth(parents: &Parents, place: usize) -> usize {
        std::iter::successors(Some(place), |at| parents[*at]).take(parents.len() + 1).count()
    }

    #[test]
    fn both_trees_reach_all_places_and_none_passes_on_in_both() {
        for size in 1..=130 {
            let [one, other] = complementary(size);
            for tree in [&one, &other] {
                assert_eq!(tree.iter().filter(|parent| parent.is_none()).count(), 1, "{size}: one root");
                // At most one level more than the least for two children each.
                let levels = usize::try_from(size.ilog2()).unwrap() + 2;
                for place in 0..size {
                    assert!(children(tree, place) <= 2, "{size}: {place} has more than two children");
                    assert!(depth(tree, place) <= levels, "{size}: {place} is below {levels}");
                }
            }
            let inner = |place: &usize| size > 2 && children(&one, *place) > 0 && children(&other, *place) > 0;
            assert_eq!((0..size).filter(inner).collect::<Vec<_>>(), [0usize; 0], "{size}");
        }
    }
}
