//! The time of plans without running them.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::Costs;
use crate::plan::{Action, Combine, Lane, Operand, Plan, Step};
use crate::types::{Rank, TransportKind};
use crate::{Error, Result};

/// Runs the plans of all ranks, in rank order, on a model of the machines, and gives the time until the last rank is done.
///
/// Every rank has a core, which runs one step at a time; every host has a network, which sends one message at a time;
/// hosts are the spec's. `near` connects the ranks of a host, and an element has `element_bytes`. Steps run in the
/// order in which they can start.
///
/// # Errors
/// `Internal` where the plans block one another, which [`prove`](crate::plan::check::prove) explains.
pub fn simulate(plans: &[Plan], near: TransportKind, element_bytes: u32, costs: &Costs) -> Result<Duration> {
    let mut simulation = Simulation::new(plans, near, f64::from(element_bytes), costs);
    while let Some((worker, start)) = simulation.earliest() {
        simulation.run(worker, start);
    }
    if simulation.workers.iter().any(|worker| worker.next.is_some()) {
        return Err(Error::internal("the plans of this collective wait for one another"));
    }
    let end = simulation.workers.iter().map(|worker| worker.now).fold(0.0, f64::max);
    Ok(Duration::from_secs_f64(end / 1e6))
}

struct Worker<'a> {
    rank: Rank,
    lane: &'a Lane,
    number: usize,
    walk: Box<dyn Iterator<Item = (u32, &'a Step)> + 'a>,
    next: Option<(u32, &'a Step)>,
    now: f64,
}

#[derive(Default)]
struct Connection {
    /// When each message that waits can be seen.
    arrived: VecDeque<f64>,
    /// When each slot that is free could be used again; slots never used are not listed.
    freed: VecDeque<f64>,
    /// Slots that have been used.
    used: u32,
}

struct Simulation<'a> {
    costs: &'a Costs,
    near: TransportKind,
    element_bytes: f64,
    copy_bytes_per_us: f64,
    slots: u32,
    hosts: Vec<usize>,
    workers: Vec<Worker<'a>>,
    connections: HashMap<(Rank, Rank, u8), Connection>,
    flags: HashMap<(Rank, usize, u8), Vec<f64>>,
    /// When each rank's core is free.
    cores: Vec<f64>,
    /// When each host's network is free.
    networks: Vec<f64>,
}

impl<'a> Simulation<'a> {
    fn new(plans: &'a [Plan], near: TransportKind, element_bytes: f64, costs: &'a Costs) -> Simulation<'a> {
        let mut hosts = vec![0; plans.len()];
        let spec = plans.first().map(|plan| &plan.spec);
        for (host, ranks) in spec.iter().flat_map(|spec| spec.hosts.iter().enumerate()) {
            ranks.iter().for_each(|rank| hosts[rank.index()] = host);
        }
        let workers = plans.iter().flat_map(|plan| {
            plan.lanes.iter().enumerate().map(|(number, lane)| {
                let walk = Box::new(lane.walk());
                Worker { rank: plan.spec.world.rank, lane, number, walk, next: None, now: 0.0 }
            })
        });
        #[expect(clippy::cast_precision_loss, reason = "a model's elements need no more than 53 bits")]
        let longest = spec.map_or(0, |spec| spec.count.longest().0) as f64;
        let cached = longest * element_bytes <= costs.cache_bytes;
        let mut simulation = Simulation {
            costs,
            near,
            element_bytes,
            copy_bytes_per_us: if cached { costs.cached_bytes_per_us } else { costs.copy_bytes_per_us },
            slots: spec.map_or(0, |spec| spec.limits.slots),
            cores: vec![0.0; plans.len()],
            networks: vec![0.0; hosts.iter().max().map_or(0, |host| host + 1)],
            hosts,
            workers: workers.collect(),
            connections: HashMap::new(),
            flags: HashMap::new(),
        };
        simulation.workers.iter_mut().for_each(Worker::go_on);
        simulation
    }

    /// The lane whose next step can start first, and when.
    fn earliest(&self) -> Option<(usize, f64)> {
        let starts = self.workers.iter().enumerate().filter_map(|(index, worker)| {
            let start = self.ready(worker)?.max(worker.now).max(self.cores[worker.rank.index()]);
            Some((index, start))
        });
        starts.min_by(|one, other| one.1.total_cmp(&other.1))
    }

    /// When all that a lane's next step waits for is there; `None` where that is not known yet.
    fn ready(&self, worker: &Worker<'_>) -> Option<f64> {
        let (round, step) = worker.next?;
        match &step.action {
            Action::Signal { .. } => Some(0.0),
            Action::Wait { peer, flag } => {
                let raised = self.flags.get(&(*peer, worker.number, *flag))?;
                raised.get(usize::try_from(round).ok()?).map(|time| time + self.costs.flag_us)
            }
            Action::Combine(combine) => {
                let connection = |from: Rank, to: Rank| self.connections.get(&(from, to, worker.lane.channel));
                let mut ready = 0.0_f64;
                for from in slots(&combine.sources) {
                    ready = ready.max(*connection(from, worker.rank)?.arrived.front()?);
                }
                for to in slots(&combine.targets) {
                    let used = connection(worker.rank, to);
                    let fresh = used.is_none_or(|connection| connection.used < self.slots);
                    if !fresh {
                        ready = ready.max(*used?.freed.front()?);
                    }
                }
                Some(ready)
            }
        }
    }

    fn run(&mut self, index: usize, start: f64) {
        let worker = &mut self.workers[index];
        let Some((round, step)) = worker.next else { return };
        let (rank, number, channel) = (worker.rank, worker.number, worker.lane.channel);
        let mut end = start + self.costs.step_us;
        if let Action::Combine(combine) = &step.action {
            end += self.bytes(combine, round) * operands(combine) / 2.0 / self.copy_bytes_per_us;
            let peers = slots(&combine.sources).chain(slots(&combine.targets));
            let far = peers.filter(|peer| self.hosts[peer.index()] != self.hosts[rank.index()]);
            end = far.fold(end, |end, _| end + self.costs.net_message_us);
        }
        let worker = &mut self.workers[index];
        worker.now = end;
        worker.go_on();
        self.cores[rank.index()] = end;
        match &step.action {
            Action::Wait { .. } => {}
            Action::Signal { flag, .. } => self.flags.entry((rank, number, *flag)).or_default().push(end),
            Action::Combine(combine) => self.publish((rank, channel), combine, round, end),
        }
    }

    fn publish(&mut self, (rank, channel): (Rank, u8), combine: &Combine, round: u32, end: f64) {
        let bytes = self.bytes(combine, round);
        for from in slots(&combine.sources) {
            let latency = self.latency(from, rank);
            let connection = self.connections.entry((from, rank, channel)).or_default();
            connection.arrived.pop_front();
            connection.freed.push_back(end + latency);
        }
        for to in slots(&combine.targets) {
            let mut sent = end;
            if self.hosts[rank.index()] != self.hosts[to.index()] {
                let network = &mut self.networks[self.hosts[rank.index()]];
                *network = network.max(end) + bytes / self.costs.net.bytes_per_us;
                sent = *network;
            }
            let arrival = sent + self.latency(rank, to);
            let slots = self.slots;
            let connection = self.connections.entry((rank, to, channel)).or_default();
            if connection.used < slots {
                connection.used += 1;
            } else {
                connection.freed.pop_front();
            }
            connection.arrived.push_back(arrival);
        }
    }

    fn bytes(&self, combine: &Combine, round: u32) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a model's elements need no more than 53 bits")]
        let elements = combine.length(round).0 as f64;
        elements * self.element_bytes
    }

    fn latency(&self, from: Rank, to: Rank) -> f64 {
        let near = self.hosts[from.index()] == self.hosts[to.index()];
        self.costs.link(if near { self.near } else { TransportKind::Net }).latency_us
    }
}

impl Worker<'_> {
    /// Goes to the next step that is run.
    fn go_on(&mut self) {
        let runs = |(round, step): &(u32, &Step)| !matches!(&step.action, Action::Combine(combine) if combine.length(*round).0 == 0);
        self.next = self.walk.find(runs);
    }
}

fn slots(operands: &[Operand]) -> impl Iterator<Item = Rank> {
    operands.iter().filter_map(|operand| match operand {
        Operand::Slot(rank) => Some(*rank),
        Operand::Local(_) | Operand::Window(..) => None,
    })
}

fn operands(combine: &Combine) -> f64 {
    let count = combine.sources.len() + combine.targets.len();
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Count, Limits, Spec, Windows};
    use crate::types::{Algorithm, Collective, Elements, Protocol, World};

    fn time(algorithm: Algorithm, windows: Windows, elements: u64, hosts: u32) -> Duration {
        time_by_channels(algorithm, windows, elements, hosts, 2)
    }

    fn time_by_channels(algorithm: Algorithm, windows: Windows, elements: u64, hosts: u32, channels: u32) -> Duration {
        let size = 8;
        let edge = |host: u32| size * host / hosts;
        let spec = |rank| Spec {
            collective: Collective::AllReduce,
            world: World { rank, size },
            root: Rank::new(0),
            count: Count::Each(Elements(elements)),
            in_place: false,
            algorithm,
            protocol: Protocol::Simple,
            windows,
            hosts: (0..hosts).map(|host| (edge(host)..edge(host + 1)).map(Rank::new).collect()).collect(),
            limits: Limits { slot: Elements(1 << 16), slots: 4, scratch: Elements(1 << 20), channels },
        };
        let plans: Vec<Plan> = (0..size).map(|rank| Plan::build(&spec(Rank::new(rank))).unwrap()).collect();
        simulate(&plans, TransportKind::Shm, 4, &Costs::default()).unwrap()
    }

    #[test]
    fn windows_beat_slots_on_one_host() {
        for elements in [2, 1 << 12, 1 << 22] {
            let ring = time(Algorithm::Ring, Windows::None, elements, 1);
            let staged = time(Algorithm::Direct, Windows::Scratch, elements, 1);
            assert!(staged < ring, "{elements}: {staged:?} {ring:?}");
        }
        let staged = time(Algorithm::Direct, Windows::Scratch, 1 << 22, 1);
        assert!(time(Algorithm::Direct, Windows::User, 1 << 22, 1) < staged);
    }

    /// What `CHANNELS_FAR` rests on.
    #[test]
    fn a_second_lane_hides_the_messages_of_a_ring_of_hosts_and_a_third_gains_nothing() {
        let of = |channels| time_by_channels(Algorithm::Ring, Windows::None, 1 << 24, 8, channels).as_secs_f64() * 1e3;
        let [one, two, four] = [1, 2, 4].map(of);
        println!("64 MiB, ring of 8 hosts: {one:.1} ms with one lane, {two:.1} with two, {four:.1} with four");
        assert!(two < 0.7 * one && four > 0.97 * two, "{one} {two} {four}");
    }

    #[test]
    fn a_hierarchy_beats_a_flat_ring() {
        for elements in [2, 1 << 20] {
            let flat = time(Algorithm::Ring, Windows::None, elements, 2);
            assert!(time(Algorithm::Ring, Windows::Scratch, elements, 2) < flat);
        }
    }

    #[test]
    fn plans_that_block_are_an_error() {
        let spec = Spec {
            collective: Collective::Barrier,
            world: World { rank: Rank::new(0), size: 2 },
            root: Rank::new(0),
            count: Count::Each(Elements(0)),
            in_place: false,
            algorithm: Algorithm::Direct,
            protocol: Protocol::Simple,
            windows: Windows::None,
            hosts: vec![vec![Rank::new(0), Rank::new(1)]],
            limits: Limits { slot: Elements(1), slots: 2, scratch: Elements(2), channels: 1 },
        };
        let mut silent = Plan::build(&Spec { world: World { rank: Rank::new(1), size: 2 }, ..spec.clone() }).unwrap();
        silent.lanes[0].steps.clear();
        let plans = [Plan::build(&spec).unwrap(), silent];
        assert!(simulate(&plans, TransportKind::Local, 1, &Costs::default()).is_err());
    }
}
