//! Channels through several domains: rings, and two complementary trees.
//!
//! Each channel has a lane, and each lane a port in each domain. A domain's chains enter on one lane each and leave on
//! the same one, or on another where `NCCL_CROSS_NIC` allows that. Chains that change lanes are walked forwards in one
//! domain and backwards in the next, so that data leave a domain on the lane where the next one takes them. Where all
//! ports name their rails, a lane is a rail: ports of different rails may not reach each other. Where some do not, the
//! network is taken as one in which every port reaches every other.
//!
//! Equal domains are searched once. The narrowest domain sets the width of all. Where simple patterns leave something
//! of what the domains' links carry, channels are packed into each domain one by one ([`packing`]), and win if they
//! carry more.

use crate::topo::bandwidth::Bandwidth;
use crate::topo::search::MAX_CHANNELS;
use crate::topo::search::chains::{self, Chain, ChainSet, Ends};
use crate::topo::search::domain::{Domain, Ways};
use crate::topo::search::packing::{self, Packings, Problem};
use crate::topo::search::trees::{self, Parents};
use crate::topo::system::{NodeId, System};

/// Whether a channel may leave a domain by another NIC than it enters by (`NCCL_CROSS_NIC`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrossNic {
    /// 0: never.
    Never,
    /// 1: wherever that is no worse.
    Allowed,
    /// 2: only where it is better.
    IfBetter,
}

impl CrossNic {
    /// What `NCCL_CROSS_NIC` means by a number: 0, 1 or 2.
    pub const fn of_number(number: u32) -> CrossNic {
        match number {
            0 => CrossNic::Never,
            1 => CrossNic::Allowed,
            _ => CrossNic::IfBetter,
        }
    }
}

/// A channel's piece of one domain, in devices of the whole system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    /// The port where data enter; of a tree, its only port.
    pub enter: NodeId,
    /// All GPUs of the domain.
    pub gpus: Vec<NodeId>,
    /// The port where data leave.
    pub exit: NodeId,
}

/// Channels of one pattern through all domains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Channels {
    /// For each channel its hop in each domain, in the order that was asked for.
    pub channels: Vec<Vec<Hop>>,
    /// What each channel carries.
    pub width: Bandwidth,
    /// Whether channels leave domains by other ports than they enter by.
    pub crosses: bool,
}

impl Channels {
    /// What all channels carry together.
    pub fn total(&self) -> Bandwidth {
        self.width * self.channels.len() as u64
    }
}

/// What the search between domains found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Between {
    /// The last hop of each channel leads back to the first.
    pub ring: Channels,
    /// Within a domain data go along the chain; its first GPU talks to the parent's and the children's first GPUs.
    pub tree: Channels,
    /// The two trees over the hops of every channel of `tree`, each for half of the data: those that plans run.
    pub parents: [Parents; 2],
}

/// With at most this many ports, each pair of them is tried for one or two channels.
const FEW_PORTS: usize = 16;

/// The channels through the domains of `system`, which follow each other as `order` says: places in [`Domain::all`].
///
/// # Errors
/// The reason why there are no channels between domains: there is one domain only, a domain has no working NIC, or no
/// rail reaches all domains.
pub fn search(system: &System, order: &[usize], cross: CrossNic) -> Result<Between, String> {
    let domains = Domain::all(system);
    let order: Vec<usize> = order.iter().copied().filter(|place| *place < domains.len()).collect();
    if order.len() < 2 {
        return Err("there is one domain: no channel leaves it".to_owned());
    }
    let mut firsts: Vec<usize> = Vec::new();
    let mut classes = Vec::with_capacity(order.len());
    for place in &order {
        let class = firsts.iter().position(|first| domains[*first].part == domains[*place].part);
        classes.push(class.unwrap_or(firsts.len()));
        if class.is_none() {
            firsts.push(*place);
        }
    }
    let ways: Vec<Ways<'_>> = firsts.iter().map(|first| Ways::new(&domains[*first].part)).collect();
    for (ways, first) in ways.iter().zip(&firsts) {
        if ways.ports.is_empty() {
            return Err(format!("{} has no NIC that works", system.name(domains[*first].nodes[0])));
        }
    }
    let search = Search { lanes: Lanes::of(&ways)?, ways, domains: classes.len() };
    let (ring, tree) = search.best(cross);
    let (ring, tree) = search.packed(cross, ring, tree);
    let (Some(ring), Some(tree)) = (ring, tree) else {
        return Err("no way leads from the GPUs to the NICs".to_owned());
    };
    let spell = |found: &Found| {
        let channels = (0..found.count).map(|lane| {
            let walk = found.walk(&classes, lane).into_iter().zip(&order);
            walk.map(|((class, chain), place)| spelled(&search.ways[class], &domains[*place], &chain)).collect()
        });
        channels.collect::<Vec<Vec<Hop>>>()
    };
    Ok(Between {
        ring: Channels { channels: spell(&ring), width: ring.ring, crosses: ring.crosses() },
        tree: Channels { channels: spell(&tree), width: tree.tree, crosses: false },
        parents: trees::complementary(order.len()),
    })
}

fn spelled(ways: &Ways<'_>, domain: &Domain, chain: &Chain) -> Hop {
    let global = |id: NodeId| domain.nodes[id.index()];
    Hop {
        enter: global(ways.ports[chain.enter]),
        gpus: chain.gpus.iter().map(|gpu| global(ways.gpus[*gpu])).collect(),
        exit: global(ways.ports[chain.exit]),
    }
}

/// What lanes are.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Lanes {
    /// Every port reaches every other: each domain has its lanes on ports of its own choice.
    Free,
    /// The rails that all domains have.
    Rails(Vec<u32>),
}

impl Lanes {
    fn of(ways: &[Ways<'_>]) -> Result<Lanes, String> {
        let Some(rails) =
            ways.iter().map(|ways| ways.rails.iter().copied().collect()).collect::<Option<Vec<Vec<u32>>>>()
        else {
            return Ok(Lanes::Free);
        };
        let mut all: Vec<u32> = rails.first().cloned().unwrap_or_default();
        all.sort_unstable();
        all.dedup();
        let shared: Vec<u32> = all.into_iter().filter(|rail| rails.iter().all(|have| have.contains(rail))).collect();
        if shared.is_empty() {
            return Err(format!("the hosts share no rail: their NICs are on {rails:?}"));
        }
        Ok(Lanes::Rails(shared))
    }
}

struct Search<'a> {
    lanes: Lanes,
    /// One for each class of equal domains.
    ways: Vec<Ways<'a>>,
    domains: usize,
}

/// Where lanes lead inside domains, in turn: lane n leaves on lane `turns[_][n]`.
type Turns = Vec<Vec<usize>>;

/// Channels of one number, with the chains of each class for each turn.
#[derive(Debug, Clone)]
struct Found {
    count: usize,
    turns: Turns,
    /// By turn, then by class.
    sets: Vec<Vec<ChainSet>>,
    ring: Bandwidth,
    tree: Bandwidth,
}

impl Found {
    fn crosses(&self) -> bool {
        self.sets.iter().flatten().flat_map(|set| &set.chains).any(|chain| chain.enter != chain.exit)
    }

    /// The chains of a channel, domain by domain. An odd number of domains begins with three turns that undo each
    /// other, where there are three; all others go there and back.
    fn walk(&self, classes: &[usize], start: usize) -> Vec<(usize, Chain)> {
        let opening = if self.turns.len() == 3 { 3 } else { 0 };
        let mut lane = start;
        let mut hops = Vec::with_capacity(classes.len());
        for (place, class) in classes.iter().enumerate() {
            let turn = if place < opening { place } else { 0 };
            let chains = &self.sets[turn][*class].chains;
            let back = place >= opening && (place - opening) % 2 == 1;
            let from = if back { self.turns[turn].iter().position(|to| *to == lane).unwrap_or(lane) } else { lane };
            lane = if back { from } else { self.turns[turn][from] };
            // A chain that stays on its port begins with the GPU near to it, in whichever order hosts are passed.
            let turned = back && chains[from].enter != chains[from].exit;
            hops.push((*class, if turned { chains[from].reversed() } else { chains[from].clone() }));
        }
        hops
    }
}

impl Search<'_> {
    /// The widest ring and the widest tree. Fewer channels win a tie.
    fn best(&self, cross: CrossNic) -> (Option<Found>, Option<Found>) {
        let mut ring: Option<Found> = None;
        let mut tree: Option<Found> = None;
        let limit = |count: usize| self.ways.iter().map(|ways| limit(ways, count)).min().unwrap_or_default();
        let mut counts: Vec<usize> = self.ways.iter().flat_map(counts).collect();
        counts.sort_by_key(|count| (std::cmp::Reverse(limit(*count)), *count));
        counts.dedup();
        for count in counts {
            let least = ring.iter().map(Found::ring_total).chain(tree.iter().map(Found::tree_total)).min();
            if tree.is_some() && least.is_some_and(|least| least >= limit(count)) {
                continue;
            }
            for turns in self.turns(count, cross) {
                let Some(found) = self.solve(count, &turns, cross != CrossNic::Never) else { continue };
                let wins = cross == CrossNic::Allowed && found.crosses();
                if ring.as_ref().is_none_or(|best| {
                    found.ring_total() > best.ring_total() || (wins && found.ring_total() == best.ring_total())
                }) {
                    ring = Some(found.clone());
                }
                if tree.as_ref().is_none_or(|best| found.tree_total() > best.tree_total()) {
                    tree = Some(found);
                }
            }
        }
        (ring, tree)
    }

    /// The turns to try: every lane stays on itself; then, where NICs may be crossed, lanes change in pairs.
    fn turns(&self, count: usize, cross: CrossNic) -> Vec<Turns> {
        let stay: Vec<usize> = (0..count).collect();
        let mut turns = vec![vec![stay]];
        let block = match &self.lanes {
            Lanes::Rails(rails) => rails.len().min(count),
            Lanes::Free => self.ways.iter().map(|ways| ways.ports.len()).min().unwrap_or(1).min(count),
        };
        if cross == CrossNic::Never || (block == 1 && self.lanes != Lanes::Free) {
            return turns;
        }
        // Several channels of a rail change as the rail does.
        let spread = |to: &dyn Fn(usize) -> usize| -> Vec<usize> {
            (0..count).map(|lane| (lane - lane % block + to(lane % block)).min(count - 1)).collect()
        };
        let closed = |turn: &Vec<usize>| (0..count).all(|lane| turn.contains(&lane));
        let pairs =
            spread(&|lane| if block.is_multiple_of(2) { (lane + block / 2) % block } else { (lane + 1) % block });
        let odd_rails = self.domains % 2 == 1 && self.lanes != Lanes::Free;
        let crossing = match (odd_rails, block) {
            (false, _) => vec![pairs],
            // Three exchanges of pairs, of which any two make the third.
            (true, block) if block.is_multiple_of(4) => [1, 2, 3].map(|bits| spread(&|lane| lane ^ bits)).to_vec(),
            (true, 3..) => {
                let next = spread(&|lane| (lane + 1) % block);
                vec![next.clone(), next, spread(&|lane| (lane + block - 2) % block)]
            }
            (true, _) => return turns,
        };
        if crossing.iter().all(closed) {
            turns.push(crossing);
        }
        turns
    }

    fn solve(&self, count: usize, turns: &Turns, cross: bool) -> Option<Found> {
        let mut found = Found {
            count,
            turns: turns.clone(),
            sets: Vec::with_capacity(turns.len()),
            ring: Bandwidth(u64::MAX),
            tree: Bandwidth(u64::MAX),
        };
        for turn in turns {
            let crosses = turn.iter().enumerate().any(|(lane, to)| lane != *to);
            let mut of_turn = Vec::with_capacity(self.ways.len());
            for ways in &self.ways {
                let ends = match &self.lanes {
                    Lanes::Rails(rails) => vec![on_rails(ways, rails, turn)],
                    Lanes::Free => free_ends(ways, turn, cross && (crosses || count == 1)),
                };
                let sets = ends.iter().flat_map(|ends| chains::propose(ways, ends));
                // The first of the best.
                let best =
                    sets.reduce(|best, set| if (set.ring, set.tree) > (best.ring, best.tree) { set } else { best })?;
                found.ring = found.ring.min(best.ring);
                found.tree = found.tree.min(best.tree);
                of_turn.push(best);
            }
            found.sets.push(of_turn);
        }
        Some(found)
    }
}

impl Search<'_> {
    /// Packed channels instead of those that were found, where they are worth more.
    fn packed(&self, cross: CrossNic, ring: Option<Found>, tree: Option<Found>) -> (Option<Found>, Option<Found>) {
        // On rails a channel of one class has to follow those of the others: these are not packed.
        let many = self.ways.iter().any(|ways| ways.gpus.len() > packing::MOST_GPUS);
        if many || (self.lanes != Lanes::Free && self.ways.len() > 1) {
            return (ring, tree);
        }
        let more = |known: Option<Found>, total: fn(&Found) -> Bandwidth, problem: &dyn Fn(&Ways<'_>) -> Problem| {
            let before = known.as_ref().map(total).unwrap_or_default();
            let packed = self.pack(before, problem);
            packed.filter(|found| packing::worth(total(found), found.count, before)).or(known)
        };
        let tree = more(tree, Found::tree_total, &Problem::trees);
        let mut ring = more(ring, Found::ring_total, &|ways| Problem::through(ways, false));
        // On rails that do not meet, a domain's exits are the next one's entries, and the last one's the first one's.
        let closes = self.lanes == Lanes::Free || self.domains.is_multiple_of(2);
        if cross != CrossNic::Never && closes {
            ring = more(ring, Found::ring_total, &|ways| Problem::through(ways, true));
        }
        (ring, tree)
    }

    /// Channels of one number, packed into each class of domains.
    fn pack(&self, known: Bandwidth, problem: &dyn Fn(&Ways<'_>) -> Problem) -> Option<Found> {
        let problems: Vec<Problem> = self.ways.iter().map(problem).collect();
        // Half of the steps are for channels of the numbers that other classes have.
        let mut left = if problems.len() > 1 { packing::STEPS / 2 } else { packing::STEPS };
        let mut classes: Vec<Packings> = Vec::with_capacity(problems.len());
        for (place, problem) in problems.iter().enumerate() {
            let found = problem.pack_within(known, left / (problems.len() - place) as u64);
            left -= found.steps;
            classes.push(found);
        }
        // A wide domain's search ends with fewer channels than a narrow one's.
        let mut counts: Vec<usize> = classes.iter().filter_map(|found| Some(found.best()?.lanes.len())).collect();
        counts.sort_unstable();
        counts.dedup();
        let mut left = packing::STEPS - classes.iter().map(|found| found.steps).sum::<u64>();
        let mut tries = problems.len() * counts.len();
        for (problem, found) in problems.iter().zip(&mut classes).filter(|_| problems.len() > 1) {
            for count in &counts {
                let (slot, share) = (&mut found.by_count[count - 1], left / tries as u64);
                let mut unused = share;
                *slot = slot.take().or_else(|| problem.pack_exactly(*count, &mut unused));
                left -= share - unused;
                tries -= 1;
            }
        }
        let sets = |count: usize| -> Option<Vec<ChainSet>> {
            let sets = self.ways.iter().zip(&classes).map(|(ways, found)| {
                let lanes = &found.by_count[count - 1].as_ref()?.lanes;
                let chain =
                    |lane: &packing::Lane| Chain { enter: lane.enter, gpus: lane.gpus.clone(), exit: lane.exit };
                let mut set = chains::weigh(ways, lanes.iter().map(chain).collect())?;
                // Every other domain is passed the other way round.
                if set.chains.iter().any(|chain| chain.enter != chain.exit) {
                    let back = chains::weigh(ways, set.chains.iter().map(Chain::reversed).collect())?;
                    set.ring = set.ring.min(back.ring);
                }
                Some(set)
            });
            sets.collect()
        };
        let width = |count: usize| {
            classes.iter().map(|found| Some(found.by_count[count - 1].as_ref()?.width)).collect::<Option<Vec<_>>>()
        };
        let mut best: Option<(usize, Bandwidth)> = None;
        for count in 1..=MAX_CHANNELS {
            let Some(width) = width(count).and_then(|widths| widths.into_iter().min()) else { continue };
            let total = width * count as u64;
            if packing::worth(total, count, best.map(|(_, total)| total).unwrap_or_default()) {
                best = Some((count, total));
            }
        }
        let count = best?.0;
        let sets = sets(count)?;
        let least = |width: fn(&ChainSet) -> Bandwidth| sets.iter().map(width).min().unwrap_or_default();
        let (ring, tree) = (least(|set| set.ring), least(|set| set.tree));
        Some(Found { count, turns: vec![(0..count).collect()], sets: vec![sets], ring, tree })
    }
}

impl Found {
    fn ring_total(&self) -> Bandwidth {
        self.ring * self.count as u64
    }

    fn tree_total(&self) -> Bandwidth {
        self.tree * self.count as u64
    }
}

/// Numbers of channels worth a try: by ports, by GPUs, and by what the GPUs pass on.
fn counts(ways: &Ways<'_>) -> Vec<usize> {
    let (ports, gpus) = (ways.ports.len(), ways.gpus.len());
    let widest = (0..ports).map(|port| ways.port_width(port)).max().unwrap_or_default();
    let inside = ways.rings().map_or(Bandwidth(0), |rings| rings.total());
    let by_gpus = usize::try_from(inside.0.div_ceil(widest.0.max(1))).unwrap_or(MAX_CHANNELS);
    let mut counts = vec![1, 2, 4, ports / 2, ports, 2 * ports, gpus.saturating_sub(1), gpus, by_gpus];
    counts.retain(|count| (1..=MAX_CHANNELS).contains(count));
    counts
}

/// The most that channels of this number can carry through the domain's ports.
fn limit(ways: &Ways<'_>, count: usize) -> Bandwidth {
    let ports = by_width(ways);
    let each = |lane: usize| {
        let uses = count.div_ceil(ports.len()) as u64;
        Bandwidth(ways.port_width(ports[lane % ports.len()]).0 / uses)
    };
    (0..count).map(each).min().unwrap_or_default() * count as u64
}

/// The ports, widest first.
fn by_width(ways: &Ways<'_>) -> Vec<usize> {
    let mut ports: Vec<usize> = (0..ways.ports.len()).collect();
    ports.sort_by_key(|port| std::cmp::Reverse(ways.port_width(*port)));
    ports
}

/// The ends of chains where every port reaches every other one: lanes are spread over the widest ports. Of few lanes
/// and ports, every choice.
fn free_ends(ways: &Ways<'_>, turn: &[usize], cross: bool) -> Vec<Vec<Ends>> {
    let count = turn.len();
    let ports = by_width(ways);
    let least = ports.get(count - 1).map(|port| ways.port_width(*port));
    let mut enough: Vec<usize> =
        ports.iter().copied().filter(|port| least.is_none_or(|least| ways.port_width(*port) >= least)).collect();
    enough.sort_unstable();
    let lane = |lane: usize| {
        if count <= enough.len() { enough[lane * enough.len() / count] } else { enough[lane % enough.len()] }
    };
    let mut all = vec![(0..count).map(|from| (lane(from), lane(turn[from]))).collect()];
    if enough.len() > FEW_PORTS {
        return all;
    }
    for (place, one) in enough.iter().copied().enumerate() {
        let others = &enough[place + 1..];
        match (count, cross) {
            (1, false) => all.push(vec![(one, one)]),
            (1, true) => all.extend(others.iter().map(|other| vec![(one, *other)])),
            (2, false) => all.extend(others.iter().map(|other| vec![(one, one), (*other, *other)])),
            (2, true) => all.extend(others.iter().map(|other| vec![(one, *other), (*other, one)])),
            _ => {}
        }
    }
    all
}

/// The ends of chains where lanes are rails. Several ports of a rail take turns.
fn on_rails(ways: &Ways<'_>, rails: &[u32], turn: &[usize]) -> Vec<Ends> {
    let count = turn.len();
    let by_width = by_width(ways);
    let port = |lane: usize| {
        let (rail, turn) = if count <= rails.len() {
            (rails[lane * rails.len() / count], 0)
        } else {
            (rails[lane % rails.len()], lane / rails.len())
        };
        let ports: Vec<usize> = by_width.iter().copied().filter(|port| ways.rails[*port] == Some(rail)).collect();
        ports.get(turn % ports.len().max(1)).copied().unwrap_or_default()
    };
    (0..count).map(|lane| (port(lane), port(turn[lane]))).collect()
}

#[cfg(test)]
mod tests;
