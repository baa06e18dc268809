//! Machines as problems of packing: what the hops of rings, trees and channels between hosts put on links.

use std::collections::HashMap;

use super::{Load, Loaded, Problem, Shape};
use crate::topo::bandwidth::Bandwidth;
use crate::topo::paths::{Path, share_of_links};
use crate::topo::search::domain::Ways;
use crate::topo::search::loads::Weight;
use crate::topo::system::{NodeId, System};

/// The links that ways lead over, each with its number.
struct Links<'a> {
    system: &'a System,
    numbers: HashMap<(NodeId, NodeId), usize>,
    all: Vec<((NodeId, NodeId), Bandwidth)>,
}

impl<'a> Links<'a> {
    fn new(system: &'a System) -> Links<'a> {
        Links { system, numbers: HashMap::new(), all: Vec::new() }
    }

    /// What the ways, all passed at once, put on links; `None` if one of them is none, or leads over a link that
    /// carries nothing.
    fn loads(&mut self, ways: &[&[NodeId]], weight: Weight) -> Loaded {
        let halves = match weight {
            Weight::Whole => 2,
            Weight::Half => 1,
        };
        let mut loads: Vec<Load> = Vec::new();
        for nodes in ways {
            if nodes.is_empty() {
                return None;
            }
            for share in share_of_links(self.system, nodes) {
                if share.bandwidth.0 == 0 {
                    return None;
                }
                let link = *self.numbers.entry(share.link).or_insert_with(|| {
                    self.all.push((share.link, share.bandwidth));
                    self.all.len() - 1
                });
                let tenths = share.fifths * halves;
                match loads.iter_mut().find(|load| load.link == link) {
                    Some(load) => load.tenths += tenths,
                    None => loads.push(Load { link, tenths }),
                }
            }
        }
        Some(loads)
    }

    fn hops(&mut self, peers: &[Path], size: usize, weight: Weight) -> Vec<Loaded> {
        let mut hop = |from: usize, to: usize| {
            let [there, back] = [from * size + to, to * size + from].map(|at| peers[at].nodes.as_slice());
            match weight {
                _ if from == to => None,
                Weight::Whole => self.loads(&[there], weight),
                Weight::Half => self.loads(&[there, back], weight),
            }
        };
        (0..size * size).map(|at| hop(at / size, at % size)).collect()
    }
}

impl Problem {
    /// Rings of GPUs, given the ways from each to each.
    pub fn rings(system: &System, peers: &[Path], size: usize) -> Problem {
        let mut links = Links::new(system);
        let hops = links.hops(peers, size, Weight::Whole);
        Problem { size, links: links.all, hops, shape: Shape::Ring }
    }

    /// Trees that are chains of GPUs: each direction carries half.
    pub fn chains(system: &System, peers: &[Path], size: usize) -> Problem {
        let mut links = Links::new(system);
        let hops = links.hops(peers, size, Weight::Half);
        Problem { size, links: links.all, hops, shape: Shape::Chain }
    }

    /// Trees between domains: chains of GPUs whose first one talks to the network.
    pub fn trees(ways: &Ways<'_>) -> Problem {
        let size = ways.gpus.len();
        let mut links = Links::new(ways.system);
        let hops = links.hops(ways.peers(), size, Weight::Half);
        let mut loads = |gpu: usize, port: usize| {
            let out = ways.to_port(gpu, port);
            let back: Vec<NodeId> = out.iter().rev().copied().collect();
            links.loads(&[&back, out], Weight::Whole)
        };
        let ports = 0..ways.ports.len();
        let ports = ports.map(|port| (0..size).map(|gpu| loads(gpu, port)).collect()).collect();
        Problem { size, links: links.all, hops, shape: Shape::Tree(ports) }
    }

    /// The pieces of rings between domains. Where it `crosses`, they may leave by another port than they enter by.
    pub fn through(ways: &Ways<'_>, crosses: bool) -> Problem {
        let size = ways.gpus.len();
        let mut links = Links::new(ways.system);
        let hops = links.hops(ways.peers(), size, Weight::Whole);
        let mut ports = |inwards: bool| -> Vec<Vec<Loaded>> {
            let mut loads = |gpu: usize, port: usize| {
                let mut way = ways.to_port(gpu, port).to_vec();
                if inwards {
                    way.reverse();
                }
                links.loads(&[&way], Weight::Whole)
            };
            (0..ways.ports.len()).map(|port| (0..size).map(|gpu| loads(gpu, port)).collect()).collect()
        };
        let (enters, exits) = (ports(true), ports(false));
        Problem { size, links: links.all, hops, shape: Shape::Through { enters, exits, crosses } }
    }
}
