//! Channels packed into the links of any machine: the search for machines that no simple pattern uses up, such as two
//! hives of linked GPUs that PCI Express joins.
//!
//! Channels are added one by one. Each takes the cheapest way through all GPUs, where a link costs the more the fuller
//! it is. Then channels are taken out one by one and put back on the ways that are cheapest now, as long as that makes
//! the fullest links less full. Of few GPUs the cheapest way is found exactly, and prices then prove what any channels
//! can carry at most (duality of linear programs): the search ends where that is reached. Of up to six GPUs all
//! channels are looked at in the end (`exact`), so that what is found is the best of up to 16 channels; but not where
//! they are too many (many NICs), nor further than the steps last.
//!
//! Everything is whole numbers, and the search is bounded by steps and not by time: equal machines have equal channels
//! on every rank.

mod cuts;
mod exact;
mod problems;
mod tours;

use std::cmp::Reverse;

use crate::topo::bandwidth::Bandwidth;
use crate::topo::search::MAX_CHANNELS;
use crate::topo::search::packing::exact::Columns;
use crate::topo::search::packing::tours::{HopCosts, NO_WAY, Start, Tour};
use crate::topo::system::NodeId;

/// What channels are searched for: the links of a machine, and what each piece of a channel puts on them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// How many GPUs each channel passes.
    size: usize,
    /// Each link in one direction, with what it carries.
    links: Vec<((NodeId, NodeId), Bandwidth)>,
    /// From each GPU to each GPU.
    hops: Vec<Loaded>,
    shape: Shape,
}

/// What a piece of a channel puts on a link, in tenths of the channel's width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Load {
    link: usize,
    tenths: u64,
}

/// The loads of a way; `None` where there is no way.
type Loaded = Option<Vec<Load>>;

/// Where channels begin and end.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Shape {
    /// The last GPU sends to the first.
    Ring,
    /// At any two GPUs: a tree inside a domain.
    Chain,
    /// The first GPU talks to the network by a port: for each port, the loads between it and each GPU.
    Tree(Vec<Vec<Loaded>>),
    /// In by one port and out by one. Without `crosses` that is the same one.
    Through { enters: Vec<Vec<Loaded>>, exits: Vec<Vec<Loaded>>, crosses: bool },
}

impl Shape {
    /// How many ways in and out there are.
    fn ports(&self) -> usize {
        match self {
            Shape::Ring | Shape::Chain => 0,
            Shape::Tree(ports) => ports.len(),
            Shape::Through { enters, exits, .. } => enters.len() + exits.len(),
        }
    }
}

/// One channel. GPUs and ports are places in [`crate::topo::search::domain::Ways`]; inside a domain the ports mean
/// nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane {
    /// The port where data enter.
    pub enter: usize,
    /// All GPUs.
    pub gpus: Vec<usize>,
    /// The port where data leave; of a tree, the one where they enter.
    pub exit: usize,
}

/// Channels that run at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    /// The channels.
    pub lanes: Vec<Lane>,
    /// What each of them carries.
    pub width: Bandwidth,
}

impl Packed {
    /// What all of them carry together.
    pub fn total(&self) -> Bandwidth {
        self.width * self.lanes.len() as u64
    }
}

/// What a search has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packings {
    /// The best channels of each number, from one channel on; `None` for numbers that were not tried.
    pub by_count: Vec<Option<Packed>>,
    /// No number of channels carries more, as far as is known.
    pub bound: Bandwidth,
    /// The steps that it took.
    pub steps: u64,
}

impl Packings {
    /// The best channels.
    pub fn best(&self) -> Option<&Packed> {
        let mut best: Option<&Packed> = None;
        for packed in self.by_count.iter().flatten() {
            if best.is_none_or(|best| worth(packed.total(), packed.lanes.len(), best.total())) {
                best = Some(packed);
            }
        }
        best
    }
}

/// Whether channels are worth more than fewer ones that carry `best`. Up to [`FEW_CHANNELS`] any gain counts: beyond,
/// it must outweigh what channels cost (a GPU's blocks, and memory for their slots).
pub fn worth(total: Bandwidth, count: usize, best: Bandwidth) -> bool {
    total.0 > best.0 + if count > FEW_CHANNELS { best.0 / 16 } else { 0 }
}

/// Domains of more GPUs keep the channels of simple patterns: a search's steps would not improve many channels there.
pub const MOST_GPUS: usize = 32;
/// More channels than this have to carry a sixteenth more.
pub const FEW_CHANNELS: usize = 16;
/// The most steps of one search. A step weighs one hop or one exchange of a tour, or checks one channel of few GPUs:
/// together they take some milliseconds. The channels of a host take two searches, of rings and of trees. Those
/// between hosts take three more, however many kinds of hosts there are: these share the steps of a search.
pub const STEPS: u64 = 1_500_000;
/// One in this many steps is for the exact step, where there is one.
const EXACT_PART: u64 = 3;
/// How often channels of some number are shaken, and tries of each time: enough for the steps of few GPUs.
const MOST_SHAKES: u64 = 2048;
const TRIES: usize = 16;
/// The multiplier of the numbers that decide what is shaken (Knuth's for 64 bits).
const LUCK: u64 = 6_364_136_223_846_793_005;
/// A search ends when no more than a 2,048th is missing.
const CLOSE: u64 = 2048;

/// How prices are made from how full links are.
#[derive(Debug, Clone, Copy)]
struct Pricing {
    /// How often the fullness is squared.
    squarings: u32,
    /// How much of a channel, in tenths, links are priced ahead of their load, so that of empty links the wide one is
    /// cheaper.
    ahead: u64,
}

/// The prices that are tried in turn.
const PRICES: [Pricing; 5] = [
    Pricing { squarings: 3, ahead: 10 },
    Pricing { squarings: 3, ahead: 5 },
    Pricing { squarings: 4, ahead: 2 },
    Pricing { squarings: 2, ahead: 10 },
    Pricing { squarings: 5, ahead: 5 },
];

impl Problem {
    /// Searches, unless what is `known` is as much as can be.
    pub fn pack(&self, known: Bandwidth) -> Packings {
        self.pack_within(known, STEPS)
    }

    /// As [`Problem::pack`], with at most this many steps.
    pub fn pack_within(&self, known: Bandwidth, steps: u64) -> Packings {
        let mut search = Search::new(self, known, self.cut_bound(), steps);
        search.run();
        search.found.steps = steps - search.left;
        search.found
    }

    /// Searches for channels of this number, from 1 to [`MAX_CHANNELS`], and takes what that costs from `steps`.
    pub fn pack_exactly(&self, count: usize, steps: &mut u64) -> Option<Packed> {
        let mut search = Search::new(self, Bandwidth(0), Bandwidth(u64::MAX), *steps);
        search.add(count);
        if search.lanes.len() == count {
            search.improve(1);
        }
        *steps = search.left;
        search.found.by_count.into_iter().nth(count.checked_sub(1)?)?
    }

    /// What a channel puts on links.
    fn each_load(&self, lane: &Lane, each: &mut impl FnMut(&Load)) {
        for pair in lane.gpus.windows(2) {
            self.hops[pair[0] * self.size + pair[1]].iter().flatten().for_each(&mut *each);
        }
        let (first, last) = (lane.gpus[0], lane.gpus[lane.gpus.len() - 1]);
        match &self.shape {
            Shape::Ring => self.hops[last * self.size + first].iter().flatten().for_each(&mut *each),
            Shape::Chain => {}
            Shape::Tree(ports) => ports[lane.enter][first].iter().flatten().for_each(&mut *each),
            Shape::Through { enters, exits, .. } => {
                enters[lane.enter][first].iter().flatten().for_each(&mut *each);
                exits[lane.exit][last].iter().flatten().for_each(&mut *each);
            }
        }
    }
}

struct Search<'a> {
    problem: &'a Problem,
    /// What the channels put on each link, in tenths of a channel's width.
    loads: Vec<u64>,
    lanes: Vec<Lane>,
    known: u64,
    found: Packings,
    left: u64,
}

impl<'a> Search<'a> {
    fn new(problem: &'a Problem, known: Bandwidth, bound: Bandwidth, left: u64) -> Search<'a> {
        let found = Packings { by_count: vec![None; MAX_CHANNELS], bound, steps: 0 };
        let loads = vec![0; problem.links.len()];
        Search { problem, loads, lanes: Vec::new(), known: known.0, found, left }
    }

    /// Adds channels up to `most`; for each number what they carry together.
    fn add(&mut self, most: usize) -> Vec<(u64, usize)> {
        let mut totals = Vec::new();
        while self.lanes.len() < most && !self.done() {
            let hint = self.lanes.last().cloned();
            if !self.put_cheapest(PRICES[0], (hint.as_ref(), Start::Both)) {
                break;
            }
            self.keep();
            totals.push((self.width() * self.lanes.len() as u64, self.lanes.len()));
        }
        totals
    }

    fn run(&mut self) {
        let kept = if self.problem.size <= exact::FEW_GPUS { self.left / EXACT_PART } else { 0 };
        self.left -= kept;
        let totals = self.approach();
        if kept > 0 && self.finish(kept) {
            return;
        }
        let few: Vec<usize> = totals.iter().map(|(_, count)| *count).filter(|count| *count <= FEW_CHANNELS).collect();
        for (shake, count) in (0..MOST_SHAKES).zip(few.into_iter().cycle()) {
            if self.done() {
                return;
            }
            if let Some(packed) = self.found.by_count[count - 1].clone() {
                self.lanes.clear();
                self.loads.fill(0);
                packed.lanes.into_iter().for_each(|lane| self.put(lane));
                self.shake(shake);
            }
        }
    }

    /// The exact step, with at most `kept` checks, of which the unused ones go back to the steps that are left. Whether
    /// it is certain that no channels carry more than what is known then.
    fn finish(&mut self, kept: u64) -> bool {
        // Each channel is rounded down by less than 1 MB/s.
        let is_bound = |search: &Self| search.known + FEW_CHANNELS as u64 >= search.found.bound.0;
        if is_bound(self) {
            return true;
        }
        let Some(columns) = Columns::of(self.problem) else {
            self.left += kept;
            return false;
        };
        let (prices, few) = columns.solve();
        if let Some(bound) = columns.bound(&prices) {
            self.found.bound = self.found.bound.min(bound);
        }
        if is_bound(self) {
            return true;
        }
        let mut left = kept;
        let (better, certain) = columns.better(&prices, few, self.known, &mut left);
        self.left += left;
        for packed in better {
            self.lanes = packed.lanes;
            self.loads.fill(0);
            for lane in &self.lanes {
                let loads = &mut self.loads;
                self.problem.each_load(lane, &mut |load| loads[load.link] += load.tenths);
            }
            self.keep();
        }
        certain
    }

    /// Adds channels, and then improves those of each number; what those of each number carried at first.
    fn approach(&mut self) -> Vec<(u64, usize)> {
        let mut totals = self.add(MAX_CHANNELS);
        self.prove();
        totals.sort_unstable_by_key(|(total, count)| (*count > FEW_CHANNELS, Reverse(*total), *count));
        for out in [1, 2] {
            for (total, count) in &totals {
                if self.done() {
                    return totals;
                }
                let packed = self.found.by_count[count - 1].clone();
                let known = Bandwidth(self.known);
                let Some(packed) = packed.filter(|_| *count <= FEW_CHANNELS || worth(Bandwidth(*total), *count, known))
                else {
                    continue;
                };
                self.lanes.clear();
                self.loads.fill(0);
                packed.lanes.into_iter().for_each(|lane| self.put(lane));
                self.improve(out);
                self.prove();
            }
        }
        totals
    }

    /// Takes a few channels out and puts them back at prices that are wrong by up to a factor of four, some times: out
    /// of a place where right prices change nothing. Which ones, and how wrong, follows from `seed`.
    fn shake(&mut self, seed: u64) {
        let mut luck = seed.wrapping_mul(LUCK) | 1;
        let mut next = |below: usize| {
            luck = luck.wrapping_mul(LUCK).wrapping_add(seed | 1);
            usize::try_from(luck >> 40).unwrap_or_default() % below
        };
        let (count, mut best) = (self.lanes.len(), self.fullness());
        for _ in 0..TRIES {
            if self.done() {
                return;
            }
            let out = (1 + next(4)).min(count);
            let old: Vec<Lane> = (0..out).map(|at| self.take(next(count - at))).collect();
            let mut again = true;
            for lane in &old {
                let mut prices = self.prices(PRICES[next(PRICES.len())], 1);
                prices.iter_mut().for_each(|price| *price = *price / 4 * (1 + next(4)) as u64);
                let lane = self.cheapest(&prices, (Some(lane), Start::Hint));
                again &= lane.map(|lane| self.put(lane)).is_some();
            }
            let now = self.fullness();
            if again && now <= best {
                best = now;
                self.keep();
                continue;
            }
            while self.lanes.len() > count - out {
                self.take(self.lanes.len() - 1);
            }
            old.into_iter().for_each(|lane| self.put(lane));
        }
    }

    /// Takes channels `out` at a time, one or two, and puts them back on other ways, until that makes no link less
    /// full.
    fn improve(&mut self, out: usize) {
        let count = self.lanes.len();
        let (mut idle, mut best) = (0, self.fullness());
        while !self.done() && out <= count && idle < PRICES.len() * count {
            let round = idle / count;
            let mut old = vec![self.take(0)];
            if out == 2 {
                old.push(self.take(idle % (count - 1)));
            }
            let start = if round == 0 { Start::Hint } else { Start::Both };
            let again = old.iter().all(|lane| self.put_cheapest(PRICES[round], (Some(lane), start)));
            let now = self.fullness();
            if again && now < best {
                (idle, best) = (0, now);
                self.keep();
                continue;
            }
            while self.lanes.len() > count - out {
                self.take(self.lanes.len() - 1);
            }
            old.into_iter().for_each(|lane| self.put(lane));
            idle += 1;
        }
    }

    /// Puts a channel on the cheapest way; whether there is one.
    fn put_cheapest(&mut self, how: Pricing, hint: (Option<&Lane>, Start)) -> bool {
        let lane = self.cheapest(&self.prices(how, 1), hint);
        lane.map(|lane| self.put(lane)).is_some()
    }

    fn put(&mut self, lane: Lane) {
        let loads = &mut self.loads;
        self.problem.each_load(&lane, &mut |load| loads[load.link] += load.tenths);
        self.lanes.push(lane);
    }

    fn take(&mut self, place: usize) -> Lane {
        let lane = self.lanes.remove(place);
        let loads = &mut self.loads;
        self.problem.each_load(&lane, &mut |load| loads[load.link] -= load.tenths);
        lane
    }

    /// What each channel carries.
    fn width(&self) -> u64 {
        let each = |((_, width), load): (&(_, Bandwidth), &u64)| (width.0 * 10).checked_div(*load);
        self.problem.links.iter().zip(&self.loads).filter_map(each).min().unwrap_or_default()
    }

    /// Keeps the channels if they are the best of their number.
    fn keep(&mut self) {
        let (width, count) = (Bandwidth(self.width()), self.lanes.len());
        let best = &mut self.found.by_count[count - 1];
        if width.0 > 0 && best.as_ref().is_none_or(|best| width > best.width) {
            *best = Some(Packed { lanes: self.lanes.clone(), width });
            if worth(width * count as u64, count, Bandwidth(self.known)) {
                self.known = width.0 * count as u64;
            }
        }
    }

    fn done(&self) -> bool {
        self.left == 0 || self.known >= self.found.bound.0 - self.found.bound.0 / CLOSE
    }

    /// The price of each link: what a tenth of a channel costs that passes it. The price grows with a power of how full
    /// the link is, compared with the fullest one, because the next channel should avoid full links. `least` is added
    /// so that an empty link costs something. The sum is divided by the link's width: a wide link has room for more.
    fn prices(&self, how: Pricing, least: u64) -> Vec<u64> {
        let ratios = |((_, width), load): (&(_, Bandwidth), &u64)| ((load + how.ahead) << 32) / width.0.max(1);
        let ratios: Vec<u64> = self.problem.links.iter().zip(&self.loads).map(ratios).collect();
        // A narrow link that no channel passes, such as a NIC for management, would make all others look empty.
        let loaded = ratios.iter().zip(&self.loads).filter(|(_, load)| **load > 0).map(|(ratio, _)| *ratio).max();
        let top = loaded.or_else(|| ratios.iter().copied().max()).unwrap_or_default().max(1);
        let price = |(ratio, (_, width)): (&u64, &(_, Bandwidth))| {
            let full = u64::try_from((u128::from(*ratio.min(&top)) << 16) / u128::from(top)).unwrap_or(1 << 16);
            let power = (0..how.squarings).fold(full, |full, _| (full * full) >> 16);
            ((power + least) << 32) / width.0.max(1)
        };
        ratios.iter().zip(&self.problem.links).map(price).collect()
    }

    /// How full the fullest link is; of equal ones, how many are nearly as full.
    fn fullness(&self) -> (u64, u64) {
        let ratio = |((_, width), load): (&(_, Bandwidth), &u64)| (load << 32) / width.0.max(1);
        let ratios = self.problem.links.iter().zip(&self.loads).map(ratio);
        let top = ratios.clone().max().unwrap_or_default();
        let near = |ratio: u64| {
            let full = u64::try_from((u128::from(ratio) << 20) / u128::from(top.max(1))).unwrap_or(1 << 20);
            (0..4).fold(full, |full, _| (full * full) >> 20)
        };
        (top, ratios.map(near).sum())
    }

    /// Tries sharper prices for a better bound.
    fn prove(&mut self) {
        for squarings in [4, 6] {
            if self.problem.size <= tours::EXACT && !self.done() {
                self.cheapest(&self.prices(Pricing { squarings, ahead: 1 }, 0), (None, Start::Both));
            }
        }
    }

    /// The cheapest channel at these prices; `None` where there is none, or the steps are used up.
    fn cheapest(&mut self, prices: &[u64], (hint, start): (Option<&Lane>, Start)) -> Option<Lane> {
        let problem = self.problem;
        // What it takes to make prices and costs, before any tour is weighed.
        let pieces = problem.hops.len() + problem.shape.ports() * problem.size;
        self.left = self.left.saturating_sub((problem.links.len() + 4 * pieces) as u64);
        let cost = |loads: &Loaded| match loads {
            Some(loads) => loads.iter().map(|load| load.tenths * prices[load.link]).sum::<u64>().min(NO_WAY),
            None => NO_WAY,
        };
        let ports = |ports: &[Vec<Loaded>]| -> Vec<Vec<u64>> {
            ports.iter().map(|gpus| gpus.iter().map(cost).collect()).collect()
        };
        let hops: Vec<u64> = problem.hops.iter().map(cost).collect();
        let hint = hint.map(|lane| lane.gpus.as_slice());
        let left = &mut self.left;
        let mut find = |ends: Option<(&[u64], &[u64])>| -> Option<Tour> {
            HopCosts::new(problem.size, &hops, ends).shortest((hint, start), left)
        };
        let free = vec![0; problem.size];
        let (tour, enter, exit) = match &problem.shape {
            Shape::Ring => (find(None)?, 0, 0),
            Shape::Chain => (find(Some((&free, &free)))?, 0, 0),
            Shape::Tree(all) => {
                let (costs, ports) = cheapest_ports(&ports(all), problem.size);
                let tour = find(Some((&costs, &free)))?;
                let port = ports[tour.order[0]];
                (tour, port, port)
            }
            Shape::Through { enters, exits, crosses: true } => {
                let (ins, enters) = cheapest_ports(&ports(enters), problem.size);
                let (outs, exits) = cheapest_ports(&ports(exits), problem.size);
                let tour = find(Some((&ins, &outs)))?;
                let (enter, exit) = (enters[tour.order[0]], exits[tour.order[problem.size - 1]]);
                (tour, enter, exit)
            }
            Shape::Through { enters, exits, crosses: false } => {
                let mut best: Option<(Tour, usize)> = None;
                for (port, (ins, outs)) in ports(enters).iter().zip(&ports(exits)).enumerate() {
                    let tour = find(Some((ins, outs)))?;
                    if best.as_ref().is_none_or(|(best, _)| tour.cost < best.cost) {
                        best = Some((tour, port));
                    }
                }
                let (tour, port) = best?;
                (tour, port, port)
            }
        };
        if tour.cost >= NO_WAY {
            return None;
        }
        if tour.exact {
            self.lower_bound(prices, tour.cost);
        }
        Some(Lane { enter, gpus: tour.order, exit })
    }

    /// No channel costs less than `least`, and all links together are worth what their widths cost: so many channels
    /// fit, whatever their ways.
    fn lower_bound(&mut self, prices: &[u64], least: u64) {
        let worth = |(price, (_, width)): (&u64, &(_, Bandwidth))| u128::from(*price) * u128::from(width.0) * 10;
        let all: u128 = prices.iter().zip(&self.problem.links).map(worth).sum();
        if let Some(bound) = all.checked_div(u128::from(least)) {
            let bound = Bandwidth(u64::try_from(bound).unwrap_or(u64::MAX));
            self.found.bound = self.found.bound.min(bound);
        }
    }
}

/// For each GPU the cost of the cheapest port, and that port.
fn cheapest_ports(ports: &[Vec<u64>], size: usize) -> (Vec<u64>, Vec<usize>) {
    let cheapest = |gpu: usize| ports.iter().zip(0..).map(|(costs, port)| (costs[gpu], port)).min();
    (0..size).map(|gpu| cheapest(gpu).unwrap_or((NO_WAY, 0))).unzip()
}
