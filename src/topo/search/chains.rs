//! Chains: the piece of each channel that lies in one domain, from the port where data enter through all GPUs to the
//! port where they leave.
//!
//! ```text
//!   network ── port ── GPU ── GPU ── … ── GPU ── port ── network
//! ```
//!
//! Several generators propose sets of chains, each for one kind of machine. All proposals are weighed in the same way,
//! by the loads they put on links, so a generator needs no knowledge of the others. All of them are bounded by
//! steps.

use std::cmp::Reverse;

use crate::topo::bandwidth::Bandwidth;
use crate::topo::paths::PathKind;
use crate::topo::search::domain::Ways;
use crate::topo::search::loads::{Loads, Weight};
use crate::topo::search::{self, rings_of_links};
use crate::topo::system::LinkKind;

/// A channel's piece of a domain. GPUs and ports are places in [`Ways`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// The port where data enter.
    pub enter: usize,
    /// All GPUs of the domain.
    pub gpus: Vec<usize>,
    /// The port where data leave.
    pub exit: usize,
}

impl Chain {
    /// The same way, walked from its end.
    pub fn reversed(&self) -> Chain {
        Chain { enter: self.exit, gpus: self.gpus.iter().rev().copied().collect(), exit: self.enter }
    }
}

/// Chains that run at once, and what they carry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainSet {
    /// The n-th enters on lane n.
    pub chains: Vec<Chain>,
    /// The width of each as a ring's piece.
    pub ring: Bandwidth,
    /// The width of each as a tree's piece: the first GPU talks to the network, by the port where the chain enters.
    pub tree: Bandwidth,
}

/// The ports where a chain enters and leaves.
pub type Ends = (usize, usize);

/// Proposes sets of chains for these ends.
type Generator = fn(&Ways<'_>, &[Ends]) -> Vec<Vec<Chain>>;

/// Steps of one search for paths over links: about a millisecond.
const STEPS: u32 = 20_000;
/// With at most this many GPUs and only PCI Express, every order between two ends is tried.
const FEW_GPUS: usize = 6;

/// All sets of chains that the generators find for `ends`, each with its widths.
pub fn propose(ways: &Ways<'_>, ends: &[Ends]) -> Vec<ChainSet> {
    let generators: [Generator; 5] = [over_switches, zigzags, cut_rings, over_links, over_paths];
    let mut sets = Vec::new();
    for generate in generators {
        sets.extend(generate(ways, ends).into_iter().filter_map(|chains| weigh(ways, chains)));
    }
    sets
}

/// Chains with what each of them carries; `None` where a GPU does not reach the next one.
pub fn weigh(ways: &Ways<'_>, chains: Vec<Chain>) -> Option<ChainSet> {
    let mut ring = Loads::new(ways.system);
    let mut tree = Loads::new(ways.system);
    let back = |nodes: &[_]| nodes.iter().rev().copied().collect::<Vec<_>>();
    for chain in &chains {
        let (first, last) = (*chain.gpus.first()?, *chain.gpus.last()?);
        let enter = back(ways.to_port(first, chain.enter));
        ring.add(&enter, Weight::Whole);
        ring.add(ways.to_port(last, chain.exit), Weight::Whole);
        tree.add(&enter, Weight::Whole);
        tree.add(ways.to_port(first, chain.enter), Weight::Whole);
        for pair in chain.gpus.windows(2) {
            let way = &ways.peer(pair[0], pair[1]).nodes;
            if way.is_empty() {
                return None;
            }
            ring.add(way, Weight::Whole);
            tree.add(way, Weight::Half);
            tree.add(&ways.peer(pair[1], pair[0]).nodes, Weight::Half);
        }
    }
    let (ring, tree) = (ring.width()?, tree.width()?);
    Some(ChainSet { chains, ring, tree })
}

/// Chooses the GPUs at the ends of chains: near their ports, each as seldom as can be.
struct EndGpus {
    starts: Vec<u32>,
    stops: Vec<u32>,
}

impl EndGpus {
    fn new(ways: &Ways<'_>) -> EndGpus {
        EndGpus { starts: vec![0; ways.gpus.len()], stops: vec![0; ways.gpus.len()] }
    }

    /// First and last GPU. Where the only GPU near the exit is the first, the last one is its neighbour, which passes
    /// its data on over that GPU.
    fn choose(&mut self, ways: &Ways<'_>, (enter, exit): Ends) -> (usize, usize) {
        let size = ways.gpus.len();
        let first = *ways.near(enter).iter().min_by_key(|gpu| (self.starts[**gpu], **gpu)).unwrap_or(&0);
        let near = ways.near(exit).iter().filter(|gpu| **gpu != first || size == 1);
        let last = near.min_by_key(|gpu| (self.stops[**gpu], **gpu)).copied().unwrap_or((first + size - 1) % size);
        self.starts[first] += 1;
        self.stops[last] += 1;
        (first, last)
    }
}

/// Every GPU hangs on the same NVLink switches: any order will do, and only the ends matter.
fn over_switches(ways: &Ways<'_>, ends: &[Ends]) -> Vec<Vec<Chain>> {
    let size = ways.gpus.len();
    let switch_of = |gpu: usize| search::switch_of(ways.system, ways.gpus[gpu]);
    let is_one = switch_of(0).is_some() && (0..size).all(|gpu| switch_of(gpu) == switch_of(0));
    if !is_one && size > 1 {
        return Vec::new();
    }
    let mut choice = EndGpus::new(ways);
    let chain = |end: &Ends| {
        let (first, last) = choice.choose(ways, *end);
        let between = (1..size).map(|step| (first + step) % size).filter(|gpu| *gpu != last);
        let mut gpus = vec![first];
        gpus.extend(between);
        if last != first {
            gpus.push(last);
        }
        Chain { enter: end.0, gpus, exit: end.1 }
    };
    vec![ends.iter().map(chain).collect()]
}

/// A full mesh of an even number of GPUs, each with a lane of its own, where lanes leave in pairs: `i` leaves where `j`
/// enters, and `j` where `i` enters. The zigzags `i, i+1, i-1, i+2, …, i+n/2` (Walecki's) use each directed link
/// exactly once.
fn zigzags(ways: &Ways<'_>, ends: &[Ends]) -> Vec<Vec<Chain>> {
    let size = ways.gpus.len();
    if size % 2 == 1 || ends.len() != size || !is_full_mesh(ways) {
        return Vec::new();
    }
    let mut choice = EndGpus::new(ways);
    let gpus: Vec<(usize, usize)> = ends.iter().map(|end| choice.choose(ways, *end)).collect();
    let mut places = vec![None; size];
    let mut order = vec![0; size];
    let mut pairs = 0;
    for (first, last) in &gpus {
        if places[*first].is_some() {
            continue;
        }
        if first == last || places[*last].is_some() || !gpus.contains(&(*last, *first)) {
            return Vec::new();
        }
        (places[*first], places[*last]) = (Some(pairs), Some(pairs + size / 2));
        (order[pairs], order[pairs + size / 2]) = (*first, *last);
        pairs += 1;
    }
    let chain = |((first, _), end): (&(usize, usize), &Ends)| {
        let from = places[*first].unwrap_or_default();
        let step = |at: usize| if at % 2 == 1 { at.div_ceil(2) } else { size - at / 2 };
        let gpus = (0..size).map(|at| order[(from + step(at)) % size]).collect();
        Chain { enter: end.0, gpus, exit: end.1 }
    };
    vec![gpus.iter().zip(ends).map(chain).collect()]
}

fn is_full_mesh(ways: &Ways<'_>) -> bool {
    let linked = |from: usize, to: usize| {
        let links = ways.system.links(ways.gpus[from]).iter();
        links.filter(|link| link.kind == LinkKind::NvLink).any(|link| link.to == ways.gpus[to])
    };
    let size = ways.gpus.len();
    (0..size).all(|from| (0..size).all(|to| from == to || linked(from, to)))
}

/// The rings inside the domain, cut before the GPU that is near the lane's port: the last GPU reaches the port over
/// that GPU, by the link that closed the ring.
fn cut_rings(ways: &Ways<'_>, ends: &[Ends]) -> Vec<Vec<Chain>> {
    if ends.iter().any(|(enter, exit)| enter != exit) || ways.gpus.len() < 2 {
        return Vec::new();
    }
    let Some(rings) = ways.rings() else { return Vec::new() };
    let mut choice = EndGpus::new(ways);
    let chain = |(lane, end): (usize, &Ends)| {
        let (first, _) = choice.choose(ways, *end);
        let ring = &rings.orders[lane % rings.orders.len()];
        let mut gpus: Vec<usize> = ring.iter().filter_map(|id| ways.gpus.iter().position(|gpu| gpu == id)).collect();
        let at = gpus.iter().position(|gpu| *gpu == first).unwrap_or_default();
        gpus.rotate_left(at);
        Chain { enter: end.0, gpus, exit: end.1 }
    };
    vec![ends.iter().enumerate().map(chain).collect()]
}

/// GPUs with links to each other: paths through all of them that share the links, by a bounded search, for widths from
/// the ports' down.
fn over_links(ways: &Ways<'_>, ends: &[Ends]) -> Vec<Vec<Chain>> {
    let size = ways.gpus.len();
    let uses = |port: usize| ends.iter().filter(|(enter, _)| *enter == port).count().max(1) as u64;
    let port = ends.iter().map(|(enter, _)| ways.port_width(*enter).0 / uses(*enter)).min().unwrap_or_default();
    if size < 3 || port == 0 {
        return Vec::new();
    }
    for (part, of) in [(1, 1), (3, 4), (2, 3), (1, 2), (1, 3), (1, 4)] {
        let arcs = rings_of_links::Arcs::of(ways.system, &ways.gpus, Bandwidth(port * part / of));
        if !arcs.may_have(ends.len()) {
            continue;
        }
        let mut search = PathSearch { ways, arcs, ends, done: Vec::new(), starts: vec![0; size], steps: STEPS };
        if search.next_lane() {
            let chains =
                ends.iter().zip(search.done).map(|((enter, exit), gpus)| Chain { enter: *enter, gpus, exit: *exit });
            return vec![chains.collect()];
        }
    }
    Vec::new()
}

struct PathSearch<'a, 'b> {
    ways: &'a Ways<'b>,
    /// Links that no path has taken.
    arcs: rings_of_links::Arcs,
    ends: &'a [Ends],
    done: Vec<Vec<usize>>,
    /// How many paths start at each GPU.
    starts: Vec<u32>,
    steps: u32,
}

impl PathSearch<'_, '_> {
    fn next_lane(&mut self) -> bool {
        let Some((enter, _)) = self.ends.get(self.done.len()) else { return true };
        let mut starts = self.ways.near(*enter).to_vec();
        starts.sort_by_key(|gpu| (self.starts[*gpu], *gpu));
        for start in starts {
            self.starts[start] += 1;
            if self.extend(&mut vec![start]) {
                return true;
            }
            self.starts[start] -= 1;
        }
        false
    }

    /// Depth first: the GPU with the most links left first; a full path hands over to the next lane.
    fn extend(&mut self, path: &mut Vec<usize>) -> bool {
        let Some(steps) = self.steps.checked_sub(1) else { return false };
        self.steps = steps;
        let size = self.ways.gpus.len();
        let (first, last) = (path[0], path[path.len() - 1]);
        if path.len() == size {
            return self.leave(path, first, last);
        }
        let mut next: Vec<usize> = (0..size).filter(|to| self.arcs.left(last, *to) > 0 && !path.contains(to)).collect();
        next.sort_by_key(|to| (Reverse(self.arcs.left(last, *to)), *to));
        for to in next {
            self.arcs.take(last, to);
            path.push(to);
            if self.extend(path) {
                return true;
            }
            path.pop();
            self.arcs.give_back(last, to);
        }
        false
    }

    /// The last GPU is near the exit; or the first one is and no other, and a link leads back to it.
    fn leave(&mut self, path: &[usize], first: usize, last: usize) -> bool {
        let (enter, exit) = self.ends[self.done.len()];
        let near = self.ways.near(exit);
        let back = !near.contains(&last) && enter == exit && near == [first] && self.arcs.left(last, first) > 0;
        if !near.contains(&last) && !back {
            return false;
        }
        if back {
            self.arcs.take(last, first);
        }
        self.done.push(path.to_vec());
        if self.next_lane() {
            return true;
        }
        self.done.pop();
        if back {
            self.arcs.give_back(last, first);
        }
        false
    }
}

/// GPUs on PCI Express: from each on to the nearest, with the last one kept for the end; of few GPUs every order. A
/// lane whose ends are those of an earlier one turned round walks that one's way back, for links have two directions.
fn over_paths(ways: &Ways<'_>, ends: &[Ends]) -> Vec<Vec<Chain>> {
    let size = ways.gpus.len();
    if (0..size).any(|gpu| ways.peer(0, gpu).kind == PathKind::Nvl) && ends.len() > 2 {
        return Vec::new();
    }
    let mut choice = EndGpus::new(ways);
    let mut chains: Vec<Chain> = Vec::new();
    for end in ends {
        if let Some(back) = chains.iter().find(|chain| (chain.exit, chain.enter) == *end && chain.enter != chain.exit) {
            let back = back.reversed();
            chains.push(back);
            continue;
        }
        let (first, last) = choice.choose(ways, *end);
        chains.push(Chain { enter: end.0, gpus: nearest_first(ways, first, last), exit: end.1 });
    }
    let mut sets = vec![chains];
    if let ([(enter, exit)], 3..=FEW_GPUS) = (ends, size) {
        every_order(size, &mut |gpus| {
            sets.push(vec![Chain { enter: *enter, gpus: gpus.to_vec(), exit: *exit }]);
        });
    }
    sets
}

fn nearest_first(ways: &Ways<'_>, first: usize, last: usize) -> Vec<usize> {
    let size = ways.gpus.len();
    let mut gpus = vec![first];
    while gpus.len() < size {
        let at = gpus[gpus.len() - 1];
        let free = (0..size).filter(|gpu| !gpus.contains(gpu) && (*gpu != last || gpus.len() + 1 == size));
        let next = free.min_by_key(|to| {
            let way = ways.peer(at, *to);
            (way.kind, Reverse(way.bandwidth), way.nodes.len(), *to)
        });
        gpus.extend(next);
    }
    gpus
}

fn every_order(size: usize, each: &mut impl FnMut(&[usize])) {
    fn grow(order: &mut Vec<usize>, size: usize, each: &mut impl FnMut(&[usize])) {
        if order.len() == size {
            each(order);
            return;
        }
        for next in 0..size {
            if !order.contains(&next) {
                order.push(next);
                grow(order, size, each);
                order.pop();
            }
        }
    }
    grow(&mut Vec::with_capacity(size), size, each);
}
