//! Topology: which ranks are on which host ([`Topology`], [`layout`]), and machines as graphs with the search for
//! channels through their GPUs ([`system`], [`paths`], [`search`]). Pure.

#![forbid(unsafe_code)]

pub mod affinity;
pub mod bandwidth;
pub mod channels;
pub mod description;
pub mod detect;
pub mod doubts;
pub mod graphs;
pub mod hwloc;
pub mod layout;
#[cfg(test)]
pub mod machines;
pub mod machine_file;
pub mod masks;
pub mod notes;
pub mod overlay;
pub mod paths;
pub mod rails;
pub mod transport_choice;
pub mod search;
pub mod switches;
pub mod system;
pub mod xml;

use std::collections::HashMap;
use std::hash::Hash;

use crate::types::Rank;

/// The hosts of a communicator and the ranks on each.
///
/// Hosts stand in the order of their first ranks, and the ranks of a host in rank order, so that all ranks compute the
/// same from the same facts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    hosts: Vec<Vec<Rank>>,
    /// For each rank its host.
    places: Vec<usize>,
}

impl Topology {
    /// The topology of ranks whose hosts have these ids, in rank order.
    pub fn new<H: Eq + Hash>(host_ids: impl IntoIterator<Item = H>) -> Topology {
        let mut numbers = HashMap::new();
        let mut hosts: Vec<Vec<Rank>> = Vec::new();
        let host_ids = host_ids.into_iter();
        let mut places = Vec::with_capacity(host_ids.size_hint().0);
        for (id, rank) in host_ids.zip(0..) {
            let host = *numbers.entry(id).or_insert(hosts.len());
            if host == hosts.len() {
                hosts.push(Vec::new());
            }
            places.push(host);
            hosts[host].push(Rank::new(rank));
        }
        Topology { hosts, places }
    }

    /// The ranks of each host.
    pub fn hosts(&self) -> &[Vec<Rank>] {
        &self.hosts
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.places.len()
    }

    /// The ranks of a rank's host, itself among them.
    ///
    /// # Panics
    /// Where the rank is not of this topology.
    pub fn local_ranks(&self, rank: Rank) -> &[Rank] {
        &self.hosts[self.places[rank.index()]]
    }

    /// How many ranks every host has, if all have as many.
    pub fn even(&self) -> Option<usize> {
        let first = self.hosts.first()?.len();
        self.hosts.iter().all(|ranks| ranks.len() == first).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_stand_in_the_order_of_their_first_ranks() {
        let topology = Topology::new(["b", "a", "b", "c", "a"]);
        let numbers: Vec<Vec<u32>> =
            topology.hosts().iter().map(|ranks| ranks.iter().map(|rank| rank.get()).collect()).collect();
        assert_eq!(numbers, [vec![0, 2], vec![1, 4], vec![3]]);
        assert_eq!(topology.local_ranks(Rank::new(4)), [Rank::new(1), Rank::new(4)]);
        assert_eq!((topology.even(), topology.size()), (None, 5));
    }

    #[test]
    fn hosts_may_be_even() {
        assert_eq!(Topology::new([1, 2, 2, 1]).even(), Some(2));
        assert_eq!(Topology::new([(); 0]).even(), None);
    }
}
