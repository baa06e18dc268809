//! Who is near whom: hosts and their ranks, from what the ranks say about themselves. Pure.

#![forbid(unsafe_code)]

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
    /// For each rank its host and its place there.
    places: Vec<(usize, usize)>,
}

impl Topology {
    /// The topology of ranks whose hosts have these ids, in rank order.
    pub fn new<H: Eq + Hash>(host_ids: impl IntoIterator<Item = H>) -> Topology {
        let mut numbers = HashMap::new();
        let mut hosts: Vec<Vec<Rank>> = Vec::new();
        let mut places = Vec::new();
        for (id, rank) in host_ids.into_iter().zip(0..) {
            let host = *numbers.entry(id).or_insert(hosts.len());
            if host == hosts.len() {
                hosts.push(Vec::new());
            }
            places.push((host, hosts[host].len()));
            hosts[host].push(Rank::new(rank));
        }
        Topology { hosts, places }
    }

    /// So many ranks on one host.
    pub fn one_host(size: u32) -> Topology {
        Topology::new((0..size).map(|_| ()))
    }

    /// The ranks of each host.
    pub fn hosts(&self) -> &[Vec<Rank>] {
        &self.hosts
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.places.len()
    }

    /// The number of a rank's host.
    ///
    /// # Panics
    /// Where the rank is not of this topology; so do the queries below.
    pub fn host(&self, rank: Rank) -> usize {
        self.places[rank.index()].0
    }

    /// A rank's place among the ranks of its host.
    pub fn local_rank(&self, rank: Rank) -> usize {
        self.places[rank.index()].1
    }

    /// The ranks of a rank's host, itself among them.
    pub fn local_ranks(&self, rank: Rank) -> &[Rank] {
        &self.hosts[self.host(rank)]
    }

    /// How many ranks a rank's host has.
    pub fn local_size(&self, rank: Rank) -> usize {
        self.local_ranks(rank).len()
    }

    /// Whether two ranks are on one host.
    pub fn same_host(&self, one: Rank, other: Rank) -> bool {
        self.host(one) == self.host(other)
    }

    /// The first rank of a rank's host.
    pub fn leader(&self, rank: Rank) -> Rank {
        self.local_ranks(rank)[0]
    }

    /// The first rank of each host.
    pub fn leaders(&self) -> impl Iterator<Item = Rank> {
        self.hosts.iter().map(|ranks| ranks[0])
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
        let four = Rank::new(4);
        assert_eq!((topology.host(four), topology.local_rank(four), topology.local_size(four)), (1, 1, 2));
        assert_eq!(topology.leader(four), Rank::new(1));
        assert!(topology.same_host(Rank::new(0), Rank::new(2)));
        assert!(!topology.same_host(Rank::new(0), Rank::new(1)));
        assert_eq!(topology.leaders().map(Rank::get).collect::<Vec<_>>(), [0, 1, 3]);
        assert_eq!((topology.even(), topology.size()), (None, 5));
    }

    #[test]
    fn one_host_has_all() {
        let topology = Topology::one_host(3);
        assert_eq!((topology.hosts().len(), topology.even()), (1, Some(3)));
        assert_eq!(Topology::one_host(0).even(), None);
    }
}
