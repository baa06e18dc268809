//! Channels inside a host: rings through all of its GPUs, so that together they use what the links have.
//!
//! There are three simple kinds of hosts. GPUs on NVLink switches: every order is equally good, so there are as many
//! rings as a GPU has links. GPUs linked to each other: the links are split into rings, by a search that is bounded by
//! steps and not by time. GPUs on PCI Express alone: the order of the PCI tree, there and back, measured against every
//! link that it passes. Where what these find is less than the links may carry, and there is no switch, channels are
//! packed into the links one by one ([`packing`]), and win if they carry more.
//!
//! All of it is a function of the graph: equal graphs give equal channels on every rank.

use std::collections::HashMap;

pub mod between;
pub mod chains;
pub mod domain;
pub mod loads;
pub mod packing;
pub mod rings_of_links;
pub mod trees;

use crate::topo::bandwidth::{self, Bandwidth};
use crate::topo::paths::{Path, Paths};
use crate::topo::search::loads::{Loads, Weight};
use crate::topo::search::packing::{MOST_GPUS, Problem, worth};
use crate::topo::search::rings_of_links::Arcs;
use crate::topo::system::{NodeId, NodeKind, System};

/// Channels through the GPUs of one domain: rings, or chains for trees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inside {
    /// The order of each channel; the last GPU of a ring sends to the first.
    pub orders: Vec<Vec<NodeId>>,
    /// What each channel carries.
    pub width: Bandwidth,
}

impl Inside {
    /// What all channels carry together: the bus bandwidth of a large all-reduce.
    pub fn total(&self) -> Bandwidth {
        self.width * self.orders.len() as u64
    }
}

/// Whether an exchange of all `gpus` with all crowds their links, so that data along these rings are quicker by a
/// quarter and more: where pairs have links of their own, or a switch each can fill, both are alike.
pub fn is_crowded(system: &System, gpus: &[NodeId], rings: &Inside) -> bool {
    let mut loads = Loads::new(system);
    for from in gpus {
        let ways = Paths::from(system, *from);
        for to in gpus.iter().filter(|to| *to != from) {
            loads.add(&ways.to(system, *to).nodes, Weight::Whole);
        }
    }
    // What a rank sends to all others together, against what it passes on in all rings.
    let each = loads.width().unwrap_or_default() * (gpus.len() as u64).saturating_sub(1);
    rings.total().0 * 4 > each.0 * 5
}

/// Whether all-reduces along these chains, as trees, are quicker by a quarter and more than along these rings. A ring
/// carries each byte over a link twice but for one rank's part, a tree once in each direction: where few links join two
/// halves of the GPUs, such as one between sockets, a tree takes half of the time.
pub fn are_trees_wider(rings: &Inside, chains: &Inside, gpus: usize) -> bool {
    let ranks = gpus as u64;
    chains.total().0 * ranks.saturating_sub(1) * 4 > rings.total().0 * ranks * 5
}

/// The most channels that a search returns: as many as a communicator may have.
#[expect(clippy::cast_possible_truncation, reason = "NCCL's maximum is 64")]
pub const MAX_CHANNELS: usize = crate::config::MAX_CHANNELS as usize;
/// With at most this many GPUs, a ring is cut open at each of them in turn.
const FEW_CUTS: usize = 8;
/// With at most this many GPUs and only PCI Express, every order is tried.
const FEW_GPUS: usize = 5;

/// The rings of `gpus`, which are all in one host. Fewer than two GPUs have no ring.
pub fn rings(system: &System, gpus: &[NodeId]) -> Option<Inside> {
    if gpus.len() < 2 {
        return None;
    }
    by_switch(system, gpus).or_else(|| {
        let peers = peers(system, gpus);
        let simple = simple_rings(system, gpus, &peers);
        if gpus.len() > MOST_GPUS {
            return simple;
        }
        pack(system, gpus, &Problem::rings(system, &peers, gpus.len()), simple)
    })
}

/// The rings of a simple pattern, given the ways from each GPU to each: a start for channels that leave the host.
pub fn simple_rings(system: &System, gpus: &[NodeId], peers: &[Path]) -> Option<Inside> {
    if gpus.len() < 2 {
        return None;
    }
    by_switch(system, gpus).or_else(|| by_links(system, gpus)).or_else(|| by_paths(system, gpus, peers))
}

/// The chains of `gpus`, which are of one host: trees inside it. Data are reduced towards the first GPU of each, and
/// results go back, so that each direction of a link carries half of what the chain does. They are the rings, each cut
/// open, or packed chains that carry more.
pub fn chains_inside(system: &System, gpus: &[NodeId]) -> Option<Inside> {
    chains_of(system, gpus, &rings(system, gpus)?)
}

/// The chains of `gpus`, given their rings.
pub fn chains_of(system: &System, gpus: &[NodeId], rings: &Inside) -> Option<Inside> {
    let peers = peers(system, gpus);
    let places: HashMap<NodeId, usize> = gpus.iter().copied().zip(0..).collect();
    let way = |from: &NodeId, to: &NodeId| &peers[places[from] * gpus.len() + places[to]].nodes;
    let cuts = if gpus.len() <= FEW_CUTS { gpus.len() } else { 1 };
    let cut = |first: usize| {
        let mut orders = rings.orders.clone();
        let mut loads = Loads::new(system);
        for (place, order) in orders.iter_mut().enumerate() {
            order.rotate_left((first + place) % gpus.len());
            for pair in order.windows(2) {
                loads.add(way(&pair[0], &pair[1]), Weight::Half);
                loads.add(way(&pair[1], &pair[0]), Weight::Half);
            }
        }
        Some(Inside { orders, width: loads.width()? })
    };
    let best = (0..cuts).filter_map(cut).reduce(|best, next| if next.width > best.width { next } else { best });
    // Over switches there are as many chains as a GPU has links: other numbers carry a few hundredths more at most.
    if by_switch(system, gpus).is_some() || gpus.len() > MOST_GPUS {
        return best;
    }
    pack(system, gpus, &Problem::chains(system, &peers, gpus.len()), best)
}

/// The way from each GPU to each.
fn peers(system: &System, gpus: &[NodeId]) -> Vec<Path> {
    let paths = gpus.iter().map(|gpu| Paths::from(system, *gpu));
    paths.flat_map(|paths| gpus.iter().map(move |to| paths.to(system, *to)).collect::<Vec<_>>()).collect()
}

/// The channels that a search packs into the links, if they are worth more than those that are known. None is wider
/// than one link of a GPU: several take the place of a wider one.
fn pack(system: &System, gpus: &[NodeId], problem: &Problem, known: Option<Inside>) -> Option<Inside> {
    let total = known.as_ref().map(Inside::total).unwrap_or_default();
    let found = problem.pack(total);
    let Some(best) = found.best().filter(|best| worth(best.total(), best.lanes.len(), total)) else { return known };
    let unit = gpus.iter().filter_map(|gpu| unit(system, *gpu)).min().filter(|unit| unit.0 > 0)?;
    let times = usize::try_from(best.width.0.div_ceil(unit.0)).unwrap_or(1).min(MAX_CHANNELS / best.lanes.len()).max(1);
    let order = |places: &Vec<usize>| places.iter().map(|place| gpus[*place]).collect::<Vec<NodeId>>();
    let orders: Vec<Vec<NodeId>> = best.lanes.iter().map(|lane| order(&lane.gpus)).collect();
    let orders = std::iter::repeat_n(orders, times).flatten().collect();
    let packed = Inside { orders, width: Bandwidth(best.width.0 / times as u64) };
    if packed.total() > total { Some(packed) } else { known }
}

/// All GPUs hang on the same NVLink switches: as many rings as the weakest GPU has links, each as wide as one.
fn by_switch(system: &System, gpus: &[NodeId]) -> Option<Inside> {
    // GPUs of one host may be in two cliques, whose switches are not joined.
    let switch = switch_of(system, *gpus.first()?)?;
    let switched = |gpu: &NodeId| {
        let links = system.links(*gpu).iter();
        links.filter(|link| link.to == switch).map(|link| link.bandwidth).max()
    };
    let widths: Vec<Bandwidth> = gpus.iter().map(switched).collect::<Option<_>>()?;
    let least = widths.into_iter().min()?;
    let count = usize::try_from(least.0.checked_div(gpus.iter().filter_map(|gpu| unit(system, *gpu)).max()?.0)?)
        .ok()?
        .clamp(1, MAX_CHANNELS);
    let rotated = |channel: usize| {
        let mut order = gpus.to_vec();
        order.rotate_left(channel % gpus.len());
        order
    };
    Some(Inside { orders: (0..count).map(rotated).collect(), width: Bandwidth(least.0 / count as u64) })
}

/// The NVLink switches on which a GPU hangs.
fn switch_of(system: &System, gpu: NodeId) -> Option<NodeId> {
    system.links(gpu).iter().map(|link| link.to).find(|to| system.node(*to).kind == NodeKind::Switch)
}

fn unit(system: &System, gpu: NodeId) -> Option<Bandwidth> {
    match system.node(gpu).kind {
        NodeKind::Gpu { generation, .. } => Some(bandwidth::gpu_link(generation)),
        _ => None,
    }
}

/// GPUs linked to each other: arcs as many as there are links, split into rings. Where whole links leave some over,
/// halves may not: four GPUs with a link between each two have two rings of whole links, and six of halves.
fn by_links(system: &System, gpus: &[NodeId]) -> Option<Inside> {
    let unit = gpus.iter().filter_map(|gpu| unit(system, *gpu)).min()?;
    let mut best: Option<Inside> = None;
    for parts in [1u64, 2] {
        let arcs = Arcs::of(system, gpus, Bandwidth(unit.0 / parts));
        for count in (1..=arcs.most_rings()).rev() {
            let width = Bandwidth(unit.0 / parts);
            if best.as_ref().is_some_and(|rings| rings.total() >= width * count as u64) {
                break;
            }
            if let Some(orders) = arcs.split(count) {
                let orders =
                    orders.into_iter().map(|order| order.into_iter().map(|place| gpus[place]).collect()).collect();
                best = Some(Inside { orders, width });
                break;
            }
        }
    }
    best
}

/// GPUs that only PCI Express joins, or links that no ring passes: orders are weighed by the links of their ways.
fn by_paths(system: &System, gpus: &[NodeId], ways: &[Path]) -> Option<Inside> {
    let size = gpus.len();
    let near = near_first(ways, size);
    let mut orders = vec![near.clone()];
    if size <= FEW_GPUS {
        permutations(size, &mut orders);
    }
    let mut sets: Vec<Vec<Vec<usize>>> = Vec::new();
    for order in &orders {
        sets.push(vec![order.clone()]);
        let mut back = order.clone();
        back[1..].reverse();
        sets.push(vec![order.clone(), back]);
    }
    let mut best: Option<Inside> = None;
    for set in sets {
        let Some(width) = width_of(system, ways, size, &set) else { continue };
        let orders: Vec<Vec<NodeId>> =
            set.iter().map(|order| order.iter().map(|place| gpus[*place]).collect()).collect();
        let rings = Inside { orders, width };
        if best.as_ref().is_none_or(|best| rings.total() > best.total()) {
            best = Some(rings);
        }
    }
    best
}

/// From each GPU on to the nearest one that is left: bridge by bridge, socket by socket.
fn near_first(ways: &[Path], size: usize) -> Vec<usize> {
    let mut order = vec![0];
    while order.len() < size {
        let last = order[order.len() - 1];
        let next = (0..size)
            .filter(|to| !order.contains(to))
            .min_by_key(|to| (ways[last * size + to].kind, ways[last * size + to].nodes.len(), *to));
        order.extend(next);
    }
    order
}

/// Every order that begins with GPU 0.
fn permutations(size: usize, orders: &mut Vec<Vec<usize>>) {
    fn grow(order: &mut Vec<usize>, size: usize, orders: &mut Vec<Vec<usize>>) {
        if order.len() == size {
            orders.push(order.clone());
            return;
        }
        for next in 1..size {
            if !order.contains(&next) {
                order.push(next);
                grow(order, size, orders);
                order.pop();
            }
        }
    }
    grow(&mut vec![0], size, orders);
}

/// What each ring of `set` carries where all run at once: of every link, its bandwidth over what the rings put on it.
fn width_of(system: &System, ways: &[Path], size: usize, set: &[Vec<usize>]) -> Option<Bandwidth> {
    let mut loads = Loads::new(system);
    for order in set {
        for (place, from) in order.iter().enumerate() {
            let to = order[(place + 1) % order.len()];
            let way = &ways[from * size + to];
            if way.nodes.is_empty() {
                return None;
            }
            loads.add(&way.nodes, Weight::Whole);
        }
    }
    loads.width()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topo::bandwidth::GpuGeneration;
    use crate::topo::description::{Function, GpuLink};
    use crate::topo::paths::share_of_links;
    use crate::topo::{machines, xml};

    /// Each ring passes every GPU once, and all rings together put no more on a link than it carries.
    fn hold(system: &System, gpus: &[NodeId], rings: &Inside) {
        let mut loads: HashMap<(NodeId, NodeId), (Bandwidth, u64)> = HashMap::new();
        for order in &rings.orders {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            let mut all = gpus.to_vec();
            all.sort_unstable();
            assert_eq!(sorted, all);
            for (place, from) in order.iter().enumerate() {
                let to = order[(place + 1) % order.len()];
                let way = Paths::from(system, *from).to(system, to);
                for share in share_of_links(system, &way.nodes) {
                    loads.entry(share.link).or_insert((share.bandwidth, 0)).1 += share.fifths * rings.width.0;
                }
            }
        }
        for (link, (bandwidth, load)) in loads {
            assert!(load <= bandwidth.0 * 5, "{link:?} carries {bandwidth}, and gets {load} fifths of a MB/s");
        }
    }

    /// A quarter of a ring's rate is the measure: pairs of GPUs at one root, or in two sockets, share links.
    #[test]
    fn links_that_many_pairs_share_are_crowded() {
        let is_crowded = |name: &str| {
            let system = machines::system(name);
            let gpus = system.gpus();
            let found = rings(&system, &gpus).expect("two GPUs and more");
            (gpus.len() > 1).then(|| is_crowded(&system, &gpus, &found))
        };
        let all = ["a100bridge", "r8pcie", "dgx1v", "dgx1p"].map(is_crowded);
        assert_eq!(all, [Some(true); 4], "over PCI Express, or through other GPUs");
        let none = ["h100x8", "b200x8", "p4d", "ndv4", "a100x4mesh"].map(is_crowded);
        assert_eq!(none, [Some(false); 5], "switches, and a link for each pair");
    }

    /// Two halves that one link between sockets joins; elsewhere a tree's share of the links is a ring's, or little
    /// more.
    #[test]
    fn trees_are_wider_where_few_links_join_two_halves() {
        let wider = |name: &&str| {
            let system = machines::system(name);
            let gpus = system.gpus();
            let rings = rings(&system, &gpus).expect("two GPUs and more");
            are_trees_wider(&rings, &chains_of(&system, &gpus, &rings).expect("rings cut open"), gpus.len())
        };
        assert_eq!(machines::ALL.iter().copied().filter(wider).collect::<Vec<_>>(), ["a100bridge"]);
    }

    /// The bounds are arithmetic: what leaves the GPU with the fewest links, or the narrowest root or socket link.
    #[test]
    fn rings_reach_the_bound_of_every_machine() {
        let bounds = [
            ("a100bridge", 22.0), // the socket link, both ways
            ("a100x4mesh", 240.0),
            ("b200x8", 721.8),
            ("dgx1p", 72.0),
            ("dgx1v", 120.0),
            ("h100x8", 370.8),
            ("ncv4-gen4", 24.0),
            ("ndv4", 240.0),
            ("nvl72", 721.8),
            ("p4d", 240.0),
            ("r4p3l", 72.0),
            ("r8pcie", 10.0),
        ];
        assert_eq!(bounds.map(|(name, _)| name), machines::ALL);
        for (name, bound) in bounds {
            let system = machines::system(name);
            let gpus = system.gpus();
            let rings = rings(&system, &gpus).unwrap();
            assert!((rings.total().gigabytes() - bound).abs() < 0.01, "{name}: {} of {bound}", rings.total());
            hold(&system, &gpus, &rings);
        }
    }

    /// Eight GPUs with a link between each two, as eight of AMD's have: seven rings use all 56 arcs.
    #[test]
    fn a_full_mesh_of_eight_splits_into_seven_rings() {
        let (mut machine, _) = xml::parse("h100x8", machines::text("h100x8")).unwrap();
        let bus_ids: Vec<String> = (1..=8).map(|number| format!("0000:{number:02x}:00.0")).collect();
        for cpu in &mut machine.cpus {
            for device in cpu.devices.iter_mut().flat_map(|bridge| &mut bridge.devices) {
                if let Function::Gpu(gpu) = &mut device.function {
                    let others = bus_ids.iter().filter(|other| **other != device.bus_id);
                    gpu.generation = GpuGeneration::Amd { gfx: 0x942 };
                    gpu.links = others
                        .map(|target| GpuLink { target: target.clone(), target_class: 0x030200, count: 1 })
                        .collect();
                }
            }
        }
        let system = System::new(&machine).unwrap();
        let rings = rings(&system, &system.gpus()).unwrap();
        assert_eq!((rings.orders.len(), rings.total().gigabytes()), (7, 336.0));
        hold(&system, &system.gpus(), &rings);
    }

    #[test]
    fn one_gpu_has_no_ring() {
        let system = machines::system("h100x8");
        assert_eq!(rings(&system, &system.gpus()[..1]), None);
    }
}
