//! What channels put on each link of a system, and how wide they can therefore be.

use std::collections::HashMap;

use crate::topo::bandwidth::Bandwidth;
use crate::topo::paths::share_of_links;
use crate::topo::system::{NodeId, System};

/// How much of a channel's width passes a way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// All of it: a hop of a ring, or a tree's way to its NIC, which carries the reduction and the result.
    Whole,
    /// Half of it: one direction of a link inside a tree. The reduction uses one direction and the result the other.
    Half,
}

/// The loads of all channels together, in tenths of a channel's width.
#[derive(Debug)]
pub struct Loads<'a> {
    system: &'a System,
    of: HashMap<(NodeId, NodeId), (Bandwidth, u64)>,
}

impl<'a> Loads<'a> {
    /// No channel yet.
    pub fn new(system: &'a System) -> Loads<'a> {
        Loads { system, of: HashMap::new() }
    }

    /// Adds one way, given by its devices.
    pub fn add(&mut self, nodes: &[NodeId], part: Weight) {
        let halves = match part {
            Weight::Whole => 2,
            Weight::Half => 1,
        };
        for share in share_of_links(self.system, nodes) {
            self.of.entry(share.link).or_insert((share.bandwidth, 0)).1 += share.fifths * halves;
        }
    }

    /// The width that each channel can have while all run at once: the least of bandwidth over load. `None` without any
    /// load.
    pub fn width(&self) -> Option<Bandwidth> {
        self.of.values().map(|(bandwidth, tenths)| Bandwidth(bandwidth.0 * 10 / tenths)).min()
    }
}
