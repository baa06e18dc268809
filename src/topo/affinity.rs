//! Which GPU each rank of a host should use.
//!
//! Ranks and GPUs are paired in rounds; in a round a GPU takes one rank at most, and as many ranks are served as can
//! be. So no GPU has two ranks while one stands idle that a rank could use, also where ranks see different GPUs. Within
//! a round those go first who get a GPU of their own NUMA node; among equals the lower rank takes the lower ordinal, so
//! that ranks of equal standing go round robin.

use std::collections::HashMap;

/// A rank of the host, as far as the choice needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seat {
    /// The NUMA node whose processors the rank is bound to, if it is one.
    pub node: Option<u32>,
    /// The GPUs that the rank sees, in the order of its ordinals.
    pub devices: Vec<Device>,
}

/// A GPU as a rank sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// What names it on its host: equal where two ranks see the same.
    pub id: String,
    /// Its NUMA node, where known.
    pub node: Option<u32>,
}

/// The GPU of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// Its place among those that the rank sees.
    pub ordinal: u32,
    /// How many ranks have it, this one included.
    pub shared_by: u32,
}

/// A GPU for each rank of a host, in the order of `seats`; `None` for a rank that sees none.
pub fn assign(seats: &[Seat]) -> Vec<Option<Choice>> {
    let mut numbers = HashMap::new();
    let wishes: Vec<Vec<Wish>> = seats.iter().map(|seat| wishes(seat, &mut numbers)).collect();
    let mut chosen: Vec<Option<Wish>> = vec![None; seats.len()];
    loop {
        let open: Vec<usize> = (0..seats.len()).filter(|seat| chosen[*seat].is_none()).collect();
        let round = Round::play(&wishes, &open, numbers.len());
        let mut moved = false;
        for (seat, wish) in round.taken.into_iter().flatten() {
            chosen[seat] = Some(wish);
            moved = true;
        }
        if !moved {
            break;
        }
    }
    let mut sharers: HashMap<usize, u32> = HashMap::new();
    chosen.iter().flatten().for_each(|wish| *sharers.entry(wish.device).or_default() += 1);
    let choice =
        |wish: Wish| Choice { ordinal: wish.ordinal, shared_by: sharers.get(&wish.device).copied().unwrap_or(1) };
    chosen.into_iter().map(|wish| wish.map(choice)).collect()
}

/// A GPU that a rank could use.
#[derive(Debug, Clone, Copy)]
struct Wish {
    /// Its number on the host.
    device: usize,
    ordinal: u32,
    /// It is on the rank's node.
    near: bool,
}

/// The GPUs of a rank, those of its node first; GPUs that nobody had named get the next number.
fn wishes<'a>(seat: &'a Seat, numbers: &mut HashMap<&'a str, usize>) -> Vec<Wish> {
    let mut wishes = Vec::with_capacity(seat.devices.len());
    for (ordinal, device) in (0..).zip(&seat.devices) {
        let next = numbers.len();
        let number = *numbers.entry(&device.id).or_insert(next);
        wishes.push(Wish { device: number, ordinal, near: seat.node.is_some() && seat.node == device.node });
    }
    // Stable: within each half the ordinals stay in order.
    wishes.sort_by_key(|wish| !wish.near);
    wishes
}

/// One round: for each GPU the rank that takes it.
struct Round<'a> {
    wishes: &'a [Vec<Wish>],
    taken: Vec<Option<(usize, Wish)>>,
}

impl<'a> Round<'a> {
    fn play(wishes: &'a [Vec<Wish>], open: &[usize], devices: usize) -> Round<'a> {
        let mut round = Round { wishes, taken: vec![None; devices] };
        for near_only in [true, false] {
            for seat in open {
                if !round.taken.iter().flatten().any(|(taker, _)| taker == seat) {
                    round.place(*seat, near_only, &mut vec![false; devices]);
                }
            }
        }
        round
    }

    /// Finds a GPU for a rank: a free one, or one whose taker can move on.
    fn place(&mut self, seat: usize, near_only: bool, tried: &mut [bool]) -> bool {
        let all = self.wishes;
        let wishes = || all[seat].iter().filter(|wish| wish.near || !near_only);
        if let Some(wish) = wishes().find(|wish| self.taken[wish.device].is_none()) {
            self.taken[wish.device] = Some((seat, *wish));
            return true;
        }
        for wish in wishes() {
            if std::mem::replace(&mut tried[wish.device], true) {
                continue;
            }
            let Some((other, _)) = self.taken[wish.device] else { continue };
            if self.place(other, near_only, tried) {
                self.taken[wish.device] = Some((seat, *wish));
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seat(node: Option<u32>, devices: &[(&str, Option<u32>)]) -> Seat {
        let device = |(id, node): &(&str, Option<u32>)| Device { id: (*id).to_owned(), node: *node };
        Seat { node, devices: devices.iter().map(device).collect() }
    }

    fn ordinals(seats: &[Seat]) -> Vec<Option<u32>> {
        assign(seats).into_iter().map(|choice| choice.map(|choice| choice.ordinal)).collect()
    }

    const FOUR: &[(&str, Option<u32>)] = &[("a", Some(0)), ("b", Some(0)), ("c", Some(1)), ("d", Some(1))];

    #[test]
    fn the_choice_is_fair_and_near() {
        let cases: &[(&str, Vec<Seat>, &[u32])] = &[
            ("unbound ranks go round robin", vec![seat(None, FOUR); 6], &[0, 1, 2, 3, 0, 1]),
            ("bound ranks stay on their node", [1, 1, 0, 0].map(|node| seat(Some(node), FOUR)).to_vec(), &[2, 3, 0, 1]),
            (
                "the far ones take what is left before anything is shared",
                [0, 0, 0, 1].map(|node| seat(Some(node), FOUR)).to_vec(),
                &[0, 1, 3, 2],
            ),
            (
                "unknown nodes of GPUs count for nothing",
                [1, 0].map(|node| seat(Some(node), &[("a", None), ("b", None)])).to_vec(),
                &[0, 1],
            ),
            (
                "two ranks of each node share that node's",
                [0, 0, 1, 1].map(|node| seat(Some(node), &[("a", Some(0)), ("b", Some(1))])).to_vec(),
                &[0, 0, 1, 1],
            ),
            (
                "each its own list, as launchers set it",
                ["c", "a", "b"].map(|id| seat(Some(0), &[(id, Some(0))])).to_vec(),
                &[0, 0, 0],
            ),
            (
                "who has a choice leaves the only GPU to who has none",
                vec![seat(None, &[("a", None), ("b", None)]), seat(None, &[("a", None)])],
                &[1, 0],
            ),
            (
                "a list in another order has other ordinals",
                vec![seat(None, &[("a", None), ("b", None)]), seat(None, &[("b", None), ("a", None)])],
                &[0, 0],
            ),
        ];
        for (name, seats, expected) in cases {
            let expected: Vec<Option<u32>> = expected.iter().copied().map(Some).collect();
            assert_eq!(ordinals(seats), expected, "{name}");
        }
    }

    #[test]
    fn who_sees_no_gpu_gets_none() {
        assert_eq!(ordinals(&[seat(Some(0), &[]), seat(None, &[("a", None)])]), [None, Some(0)]);
        assert!(assign(&[]).is_empty());
    }

    #[test]
    fn sharers_are_counted() {
        let shared: Vec<u32> =
            assign(&vec![seat(None, &FOUR[..2]); 3]).into_iter().flatten().map(|choice| choice.shared_by).collect();
        assert_eq!(shared, [2, 1, 2]);
    }

    proptest! {
        /// With equal lists no GPU has two ranks more than another.
        #[test]
        fn equal_lists_are_shared_evenly(nodes in proptest::collection::vec(proptest::option::of(0u32..3), 0..24),
                                         gpus in proptest::collection::vec(proptest::option::of(0u32..3), 1..9)) {
            let devices: Vec<Device> =
                gpus.iter().enumerate().map(|(n, node)| Device { id: n.to_string(), node: *node }).collect();
            let seats: Vec<Seat> = nodes.iter().map(|node| Seat { node: *node, devices: devices.clone() }).collect();
            let mut loads = vec![0usize; gpus.len()];
            for choice in assign(&seats) {
                loads[choice.unwrap().ordinal as usize] += 1;
            }
            prop_assert!(loads.iter().max().unwrap() - loads.iter().min().unwrap() <= 1);
        }

        /// Whatever the lists: who sees a GPU has one of its own list.
        #[test]
        fn who_sees_a_gpu_has_one(lists in proptest::collection::vec(proptest::collection::btree_set(0u32..6, 0..5), 0..10)) {
            let device = |number: &u32| Device { id: number.to_string(), node: Some(number % 2) };
            let seats: Vec<Seat> =
                lists.iter().map(|list| Seat { node: Some(0), devices: list.iter().map(device).collect() }).collect();
            for (list, choice) in lists.iter().zip(assign(&seats)) {
                prop_assert_eq!(choice.is_some(), !list.is_empty());
                prop_assert!(choice.is_none_or(|choice| (choice.ordinal as usize) < list.len()));
            }
        }
    }
}
