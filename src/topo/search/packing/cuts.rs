//! What no channels can exceed: wherever links are cut so that GPUs are parted from each other, or from the network,
//! every channel passes the cut.

use std::collections::{HashMap, VecDeque};

use super::{Loaded, Problem, Shape};
use crate::topo::bandwidth::Bandwidth;
use crate::topo::system::NodeId;

/// Links as a network of pipes between places.
struct Pipes {
    /// By place: where a pipe leads, what it carries, and its counterpart's number at that place.
    pipes: Vec<Vec<(usize, u64, usize)>>,
}

impl Pipes {
    fn join(&mut self, from: usize, to: usize, width: u64) {
        let (there, back) = (self.pipes[from].len(), self.pipes[to].len());
        self.pipes[from].push((to, width, back));
        self.pipes[to].push((from, 0, there));
    }

    /// What flows from one place to another at most; it uses up the pipes.
    fn flow(mut self, from: usize, to: usize) -> u64 {
        let mut total = 0;
        while let Some(more) = self.widen(from, to) {
            total += more;
        }
        total
    }

    /// Edmonds and Karp's: one shortest way with something left.
    fn widen(&mut self, from: usize, to: usize) -> Option<u64> {
        let mut came: Vec<Option<(usize, usize)>> = vec![None; self.pipes.len()];
        let mut open = VecDeque::from([from]);
        while let Some(at) = open.pop_front() {
            for (number, (next, width, _)) in self.pipes[at].iter().enumerate() {
                if *width > 0 && *next != from && came[*next].is_none() {
                    came[*next] = Some((at, number));
                    open.push_back(*next);
                }
            }
        }
        let mut way = Vec::new();
        let mut at = to;
        while at != from {
            let (before, number) = came[at]?;
            way.push((before, number));
            at = before;
        }
        let more = way.iter().map(|(at, number)| self.pipes[*at][*number].1).min()?;
        for (at, number) in way {
            let (next, width, back) = self.pipes[at][number];
            self.pipes[at][number].1 = width - more;
            self.pipes[next][back].1 += more;
        }
        Some(more)
    }
}

impl Problem {
    /// What no channels can exceed, by the links that part the GPUs from each other or from the network.
    pub fn cut_bound(&self) -> Bandwidth {
        let mut places: HashMap<NodeId, usize> = HashMap::new();
        let mut pipes = Vec::with_capacity(self.links.len());
        for ((from, to), width) in &self.links {
            let mut place = |node: &NodeId| {
                let next = places.len();
                *places.entry(*node).or_insert(next)
            };
            pipes.push((place(from), place(to), width.0));
        }
        let gpus: Vec<usize> = (0..self.size).filter_map(|gpu| self.place_of(gpu, &places)).collect();
        if gpus.len() < self.size {
            return Bandwidth(u64::MAX);
        }
        let (network, count) = (places.len(), places.len() + 1);
        let ports = self.ports(&places);
        let between = |from: usize, to: usize| {
            let mut all = Pipes { pipes: vec![Vec::new(); count] };
            pipes.iter().for_each(|(from, to, width)| all.join(*from, *to, *width));
            for port in &ports {
                all.join(network, *port, u64::MAX >> 16);
                all.join(*port, network, u64::MAX >> 16);
            }
            all.flow(from, to)
        };
        let first = if ports.is_empty() { gpus[0] } else { network };
        let others = gpus.iter().filter(|gpu| **gpu != first);
        let least = others.map(|gpu| between(first, *gpu).min(between(*gpu, first))).min().unwrap_or(u64::MAX >> 1);
        if matches!(self.shape, Shape::Ring | Shape::Through { .. }) {
            return Bandwidth(least);
        }
        // Each direction of a tree carries half of what the tree does: all GPUs but those at the ends of its chain send
        // as much as it carries, these half of it.
        let leaving = pipes.iter().filter(|(from, ..)| gpus.contains(from)).map(|(_, _, width)| width).sum::<u64>();
        let sent = leaving.checked_div(self.size as u64 - 1).unwrap_or(u64::MAX);
        Bandwidth((least * 2).min(sent).min(self.entering(&places)))
    }

    /// What trees may bring in by all ports: all of what each carries.
    fn entering(&self, places: &HashMap<NodeId, usize>) -> u64 {
        if !matches!(self.shape, Shape::Tree(_)) {
            return u64::MAX;
        }
        let ports = self.ports(places);
        let from = |((from, _), width): &((NodeId, NodeId), Bandwidth)| {
            places.get(from).filter(|place| ports.contains(place)).map(|_| width.0)
        };
        self.links.iter().filter_map(from).sum()
    }

    /// Where the ways of a GPU begin.
    fn place_of(&self, gpu: usize, places: &HashMap<NodeId, usize>) -> Option<usize> {
        let hops = (0..self.size).filter_map(|to| self.hops[gpu * self.size + to].as_ref());
        hops.flatten().next().and_then(|load| places.get(&self.links[load.link].0.0).copied())
    }

    /// Where the ways of ports begin.
    fn ports(&self, places: &HashMap<NodeId, usize>) -> Vec<usize> {
        let (Shape::Tree(ports) | Shape::Through { enters: ports, .. }) = &self.shape else { return Vec::new() };
        let begin = |gpus: &Vec<Loaded>| {
            let load = gpus.iter().flatten().flatten().next()?;
            places.get(&self.links[load.link].0.0).copied()
        };
        ports.iter().filter_map(begin).collect()
    }
}
