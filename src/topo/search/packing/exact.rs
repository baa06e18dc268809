//! The last step of a search on few GPUs: it tries all sets of channels, except for those that cannot be better.
//!
//! Every way through the GPUs is a column of loads. A column that puts no less on any link than another one is left
//! out. Prices of links, the dual solution of the linear program in which channels may be split, tell how much of all
//! links each channel costs. A set of channels that carries more than what is known can waste little: branch and bound
//! passes over every set that wastes more. So the step finds the best set of each number of channels, as long as its
//! checks last.
//!
//! Floating-point numbers only suggest prices. Any prices are right: worse ones make the search longer. Additions,
//! multiplications and divisions give equal results on all processors, so that equal machines have equal channels.

use super::{FEW_CHANNELS, Lane, Packed, Problem, Shape};
use crate::topo::bandwidth::Bandwidth;

/// With at most this many GPUs all channels are looked at.
pub(super) const FEW_GPUS: usize = 6;
/// The most ways through GPUs and ports that are looked at: those of six GPUs and three ports. There is no exact step
/// for problems with more.
const MOST_WAYS: usize = 720 * 9;
/// More links than this are not looked at: memory and time grow with them.
const MOST_LINKS: usize = 256;
/// The most columns that are kept.
const MOST_COLUMNS: usize = 4096;
/// With how many columns the linear program begins, how many it takes in at a time, and how often.
const FIRST_COLUMNS: usize = 64;
const MORE_COLUMNS: usize = 8;
const ROUNDS: usize = 48;
/// The most exchanges of the linear program: some for each link.
const MOST_PIVOTS: usize = 300;
/// What prices are multiplied with to be whole numbers.
const PRICE_OF_ONE: f64 = (1_u64 << 32) as f64;

/// All channels that are worth a look.
pub(super) struct Columns {
    lanes: Vec<Lane>,
    /// In tenths of a channel's width, for each link.
    loads: Vec<Vec<u64>>,
    /// What each link carries, in MB/s.
    widths: Vec<u64>,
    /// Whether these are all.
    whole: bool,
}

/// How a try to find better channels ended.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    Better(Packed),
    /// No set of this number is better.
    None,
    /// The checks are used up.
    Unknown,
}

impl Columns {
    /// The columns of a problem; `None` where there are too many ways to look at.
    pub(super) fn of(problem: &Problem) -> Option<Columns> {
        let ways: Vec<(usize, usize)> = match &problem.shape {
            Shape::Ring | Shape::Chain => vec![(0, 0)],
            Shape::Tree(ports) => (0..ports.len()).map(|port| (port, port)).collect(),
            Shape::Through { enters, exits, crosses } => {
                let pairs = (0..enters.len()).flat_map(|enter| (0..exits.len()).map(move |exit| (enter, exit)));
                pairs.filter(|(enter, exit)| *crosses || enter == exit).collect()
            }
        };
        let orders: usize = (1..=problem.size).product();
        if problem.size > FEW_GPUS || orders * ways.len() > MOST_WAYS || problem.links.len() > MOST_LINKS {
            return None;
        }
        let mut found: Vec<(u64, Lane, Vec<u64>)> = Vec::new();
        let mut lane = Lane { enter: 0, gpus: Vec::new(), exit: 0 };
        problem.each_order(&mut lane.gpus, &mut |gpus| {
            for (enter, exit) in &ways {
                let lane = Lane { enter: *enter, gpus: gpus.to_vec(), exit: *exit };
                if problem.has_way(&lane) {
                    let mut loads = vec![0; problem.links.len()];
                    problem.each_load(&lane, &mut |load| loads[load.link] += load.tenths);
                    found.push((loads.iter().sum(), lane, loads));
                }
            }
        });
        // A column can only be worse than one that loads less in all.
        found.sort_by_key(|(sum, ..)| *sum);
        let widths = problem.links.iter().map(|(_, width)| width.0).collect();
        let mut columns = Columns { lanes: Vec::new(), loads: Vec::new(), widths, whole: true };
        let mut masks: Vec<u128> = Vec::new();
        for (_, lane, loads) in found {
            let mask = loads.iter().enumerate().fold(0, |mask, (at, load)| mask | u128::from(*load > 0) << (at % 128));
            let better = |(known, known_mask): (&Vec<u64>, &u128)| {
                known_mask & !mask == 0 && known.iter().zip(&loads).all(|(known, load)| known <= load)
            };
            if columns.loads.iter().zip(&masks).any(better) {
                continue;
            }
            if columns.lanes.len() == MOST_COLUMNS {
                columns.whole = false;
                break;
            }
            masks.push(mask);
            columns.lanes.push(lane);
            columns.loads.push(loads);
        }
        Some(columns)
    }

    /// Prices of links at which channels that may be split would use up what is worth something, and those channels:
    /// the dual and the primal solution of the linear program, by the simplex method on a dense table.
    ///
    /// The program begins with some columns, and takes in those that are cheapest at its prices, until it has them.
    pub(super) fn solve(&self) -> (Vec<u64>, Vec<usize>) {
        let mut set: Vec<usize> = (0..self.lanes.len().min(FIRST_COLUMNS)).collect();
        let mut solved = self.solve_part(&set);
        for _ in 0..ROUNDS {
            let mut costs: Vec<(u64, usize)> =
                self.loads.iter().zip(0..).map(|(loads, at)| (cost(&solved.0, loads), at)).collect();
            costs.sort_unstable();
            let before = set.len();
            for (_, at) in costs.into_iter().take(MORE_COLUMNS) {
                if !set.contains(&at) {
                    set.push(at);
                }
            }
            if set.len() == before {
                break;
            }
            solved = self.solve_part(&set);
        }
        solved
    }

    /// [`Columns::solve`], of some columns.
    fn solve_part(&self, set: &[usize]) -> (Vec<u64>, Vec<usize>) {
        let (rows, columns) = (self.widths.len(), set.len());
        #[expect(clippy::cast_precision_loss, reason = "loads and widths are far below 2^52")]
        let number = |of: u64| of as f64;
        let last = columns + rows;
        let row = |link: usize| {
            let mut row: Vec<f64> = set.iter().map(|at| number(self.loads[*at][link])).collect();
            row.extend((0..rows).map(|slack| if slack == link { 1.0 } else { 0.0 }));
            row.push(number(self.widths[link]) * 10.0);
            row
        };
        let mut table: Vec<Vec<f64>> = (0..rows).map(row).collect();
        // Which column each row has the value of: at first its own slack.
        let mut basis: Vec<usize> = (columns..last).collect();
        // The last row is the goal.
        table.push((0..=last).map(|at| if at < columns { -1.0 } else { 0.0 }).collect());
        for _ in 0..MOST_PIVOTS {
            let goal = &table[rows];
            let Some(enters) = (0..last).min_by(|one, two| goal[*one].total_cmp(&goal[*two])) else { break };
            if goal[enters] > -1e-9 {
                break;
            }
            let ratio = |row: &usize| table[*row][last] / table[*row][enters];
            let leaves = (0..rows).filter(|row| table[*row][enters] > 1e-9);
            let Some(leaves) = leaves.min_by(|one, two| ratio(one).total_cmp(&ratio(two))) else { break };
            basis[leaves] = enters;
            let by = table[leaves][enters];
            table[leaves].iter_mut().for_each(|value| *value /= by);
            let pivot = table[leaves].clone();
            for (_, row) in table.iter_mut().enumerate().filter(|(at, _)| *at != leaves) {
                let times = row[enters];
                if times != 0.0 {
                    row.iter_mut().zip(&pivot).for_each(|(value, pivot)| *value -= times * pivot);
                }
            }
        }
        let duals = &table[rows][columns..last];
        let most = duals.iter().copied().fold(0.0, f64::max);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 2^32")]
        let whole = |dual: &f64| if most > 0.0 { (dual.max(0.0) / most * PRICE_OF_ONE) as u64 } else { 0 };
        let prices = duals.iter().map(whole).collect();
        let mut used: Vec<(usize, f64)> = basis.iter().zip(&table).map(|(at, row)| (*at, row[last])).collect();
        used.retain(|(at, width)| *at < columns && *width > 1e-6);
        used.sort_by(|one, two| two.1.total_cmp(&one.1).then(one.0.cmp(&two.0)));
        (prices, used.into_iter().map(|(at, _)| set[at]).collect())
    }

    /// What all channels together can carry at these prices; `None` where the prices say nothing.
    pub(super) fn bound(&self, prices: &[u64]) -> Option<Bandwidth> {
        let least = self.loads.iter().map(|loads| cost(prices, loads)).min().filter(|least| *least > 0)?;
        let worth: u128 =
            prices.iter().zip(&self.widths).map(|(price, width)| u128::from(*price) * u128::from(*width)).sum();
        self.whole.then(|| Bandwidth(u64::try_from(worth * 10 / u128::from(least)).unwrap_or(u64::MAX)))
    }

    /// The best channels of each number that carry more than `known`, and whether it is certain that no others do. Each
    /// check of a channel takes one from `left`. First `few` columns alone are tried: sets of those that the linear
    /// program uses are mostly good, and they are not many.
    pub(super) fn better(&self, prices: &[u64], few: Vec<usize>, known: u64, left: &mut u64) -> (Vec<Packed>, bool) {
        let mut part = *left / 2;
        *left -= part;
        let (mut found, _) = self.better_of(prices, few, known, &mut part);
        *left += part;
        let known = found.last().map_or(known, |packed| packed.total().0);
        let costs: Vec<u64> = self.loads.iter().map(|loads| cost(prices, loads)).collect();
        let mut all: Vec<usize> = (0..self.lanes.len()).collect();
        all.sort_by_key(|at| (costs[*at], *at));
        let (more, certain) = self.better_of(prices, all, known, left);
        found.extend(more);
        (found, certain && self.whole)
    }

    /// The best channels of each number out of these columns, and whether all sets were tried.
    fn better_of(&self, prices: &[u64], order: Vec<usize>, known: u64, left: &mut u64) -> (Vec<Packed>, bool) {
        let (mut found, mut known, mut certain) = (Vec::new(), known, true);
        let costs: Vec<u64> = self.loads.iter().map(|loads| cost(prices, loads)).collect();
        let least = costs.iter().copied().min().unwrap_or_default();
        let rows = 0..self.widths.len();
        let lowest = rows.map(|row| self.loads.iter().map(|loads| loads[row]).min().unwrap_or_default()).collect();
        let wastes = order.iter().map(|at| costs[*at] - least).collect();
        let mut branches = Branches { columns: self, order, wastes, lowest, left: 0 };
        for count in 1..=FEW_CHANNELS {
            // Numbers of channels take equal parts of what is left.
            let share = *left / (FEW_CHANNELS + 1 - count) as u64;
            branches.left = share;
            let outcome = loop {
                match branches.beat(count, known, prices, least) {
                    Outcome::Better(packed) => {
                        known = packed.total().0;
                        found.push(packed);
                    }
                    ended => break ended,
                }
            };
            certain &= outcome == Outcome::None;
            *left -= share - branches.left;
        }
        (found, certain)
    }
}

fn cost(prices: &[u64], loads: &[u64]) -> u64 {
    prices.iter().zip(loads).map(|(price, load)| price * load).sum()
}

/// Sets of columns, of which each is tried in the order of what it wastes.
struct Branches<'a> {
    columns: &'a Columns,
    /// Columns, cheapest first.
    order: Vec<usize>,
    /// How much more than the cheapest one each costs, in this order.
    wastes: Vec<u64>,
    /// For each link, what every column puts on it at least.
    lowest: Vec<u64>,
    left: u64,
}

impl Branches<'_> {
    /// Looks for `count` channels that carry more than `known` together.
    fn beat(&mut self, count: usize, known: u64, prices: &[u64], least: u64) -> Outcome {
        let width = known / count as u64 + 1;
        let mut room: Vec<u64> = self.columns.widths.iter().map(|link| link * 10 / width).collect();
        let worth: u128 = prices.iter().zip(&room).map(|(price, room)| u128::from(*price) * u128::from(*room)).sum();
        let Some(slack) = worth.checked_sub(u128::from(least) * count as u128) else { return Outcome::None };
        let mut chosen = Vec::with_capacity(count);
        match self.fill((0, count), slack, &mut room, &mut chosen) {
            None => Outcome::Unknown,
            Some(false) => Outcome::None,
            Some(true) => {
                let lanes: Vec<Lane> = chosen.iter().map(|at| self.columns.lanes[*at].clone()).collect();
                let load = |row: usize| chosen.iter().map(|at| self.columns.loads[*at][row]).sum::<u64>();
                let widths = self.columns.widths.iter().enumerate();
                let width = widths.filter_map(|(row, link)| (link * 10).checked_div(load(row))).min();
                Outcome::Better(Packed { lanes, width: Bandwidth(width.unwrap_or_default()) })
            }
        }
    }

    /// Puts `more` columns, from place `from` of the order on, into the room that is left, and says whether they fit;
    /// `None` once the checks are used up.
    fn fill(
        &mut self,
        (from, more): (usize, usize),
        slack: u128,
        room: &mut [u64],
        chosen: &mut Vec<usize>,
    ) -> Option<bool> {
        if more == 0 {
            return Some(true);
        }
        if room.iter().zip(&self.lowest).any(|(room, lowest)| *room < lowest * more as u64) {
            return Some(false);
        }
        for place in from..self.order.len() {
            let waste = u128::from(self.wastes[place]);
            // All that follow waste as much, or next to nothing: what a linear program uses wastes nothing.
            if waste * more as u128 > slack {
                break;
            }
            self.left = self.left.checked_sub(1)?;
            let columns = self.columns;
            let loads = &columns.loads[self.order[place]];
            if loads.iter().zip(&*room).any(|(load, room)| load > room) {
                continue;
            }
            room.iter_mut().zip(loads).for_each(|(room, load)| *room -= load);
            chosen.push(self.order[place]);
            if self.fill((place, more - 1), slack - waste, room, chosen)? {
                return Some(true);
            }
            chosen.pop();
            room.iter_mut().zip(loads).for_each(|(room, load)| *room += load);
        }
        Some(false)
    }
}

impl Problem {
    /// Calls `each` with every order of the GPUs; of rings with those that begin with GPU 0.
    fn each_order(&self, order: &mut Vec<usize>, each: &mut impl FnMut(&[usize])) {
        if order.len() == self.size {
            each(order);
            return;
        }
        let firsts = if order.is_empty() && self.shape == Shape::Ring { 1 } else { self.size };
        for next in 0..firsts {
            if !order.contains(&next) {
                order.push(next);
                self.each_order(order, each);
                order.pop();
            }
        }
    }

    /// Whether ways lead from each GPU of a channel to the next one, and to and from its ports.
    fn has_way(&self, lane: &Lane) -> bool {
        let hop = |from: usize, to: usize| self.hops[from * self.size + to].is_some();
        let (first, last) = (lane.gpus[0], lane.gpus[lane.gpus.len() - 1]);
        lane.gpus.windows(2).all(|pair| hop(pair[0], pair[1]))
            && match &self.shape {
                Shape::Ring => hop(last, first),
                Shape::Chain => true,
                Shape::Tree(ports) => ports[lane.enter][first].is_some(),
                Shape::Through { enters, exits, .. } => {
                    enters[lane.enter][first].is_some() && exits[lane.exit][last].is_some()
                }
            }
    }
}
