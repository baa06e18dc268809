//! Plans as the simulation plays them: peers, flags and ways are numbers.

use std::collections::HashMap;

use super::events::Played;
use super::{Folding, LinkLoad, Traffic};
use crate::plan::{Action, Combine, Lane, Operand, Plan};
use crate::tune::terrain::{Course, Terrain};
use crate::types::Rank;

/// The lanes of all ranks that are simulated.
#[derive(Debug)]
pub(super) struct Script<'a> {
    terrain: &'a Terrain,
    fold: Folding,
    element_bytes: u64,
    pub(super) lanes: Vec<LaneScript>,
    pub(super) connections: Vec<PlayedConnection>,
    numbers: HashMap<(Rank, Rank, u8), usize>,
    flags: HashMap<(Rank, usize, u8), usize>,
    /// How many ranks there are, to number those that work.
    pub(super) ranks: usize,
    /// The slots of a connection.
    pub(super) slots: u32,
    /// The bytes of the longest block.
    pub(super) longest_bytes: u64,
    /// For each domain where its links begin among all; `None` where it is not simulated.
    first_links: Vec<Option<usize>>,
    /// What each link carries: of all simulated domains.
    pub(super) bytes_per_us: Vec<f64>,
    ways: HashMap<(Rank, Rank, Option<u8>), usize>,
    /// Ways with the numbers of all domains' links.
    pub(super) routes: Vec<Course>,
}

/// One lane of a rank.
#[derive(Debug)]
pub(super) struct LaneScript {
    pub(super) rank: Rank,
    pub(super) turns: u64,
    pub(super) rounds: u32,
    pub(super) steps: Vec<Move>,
}

/// One step.
#[derive(Debug)]
pub(super) struct Move {
    pub(super) lag: u8,
    pub(super) act: Act,
}

/// What a step does.
#[derive(Debug)]
pub(super) enum Act {
    /// Raises a flag.
    Raise(usize),
    /// Waits for a flag.
    Await(usize),
    /// Moves bytes.
    Move(Transfer),
}

/// A combine.
#[derive(Debug)]
pub(super) struct Transfer {
    /// Bytes over all rounds, and in one.
    block: u64,
    piece: u64,
    /// How many places it reads and writes.
    pub(super) operands: f64,
    /// Whether it reduces several sources, and is no copy.
    pub(super) reduces: bool,
    /// Connections that it takes messages from.
    pub(super) sources: Vec<usize>,
    /// Connections that it publishes on.
    pub(super) targets: Vec<usize>,
    /// Over which its bytes go while it runs.
    pub(super) routes: Vec<usize>,
}

/// A connection as both ends know it.
#[derive(Debug)]
pub(super) struct PlayedConnection {
    /// The links that messages take by themselves; `None` inside a domain, where the sender's step does it.
    pub(super) route: Option<usize>,
    /// From the end of a message's way to its being seen.
    pub(super) latency_us: f64,
}

impl Transfer {
    /// The bytes of a round.
    pub(super) fn bytes(&self, round: u32) -> u64 {
        self.block.saturating_sub(self.piece.saturating_mul(u64::from(round))).min(self.piece)
    }
}

impl<'a> Script<'a> {
    pub(super) fn new(terrain: &'a Terrain, fold: Folding, element_bytes: u32) -> Script<'a> {
        let mut bytes_per_us = Vec::new();
        let mut first_links = Vec::new();
        for domain in 0..terrain.domains().len() {
            first_links.push(fold.keeps(domain).then_some(bytes_per_us.len()));
            if fold.keeps(domain) {
                bytes_per_us.extend_from_slice(terrain.links(domain));
            }
        }
        let (lanes, connections, routes) = (Vec::new(), Vec::new(), Vec::new());
        Script {
            terrain,
            fold,
            element_bytes: u64::from(element_bytes),
            lanes,
            connections,
            numbers: HashMap::new(),
            flags: HashMap::new(),
            ranks: 0,
            slots: 0,
            longest_bytes: 0,
            first_links,
            bytes_per_us,
            ways: HashMap::new(),
            routes,
        }
    }

    /// Adds a rank.
    pub(super) fn add(&mut self, plan: &Plan) {
        self.slots = plan.spec.limits.slots;
        self.longest_bytes = plan.spec.count.longest().0.saturating_mul(self.element_bytes);
        self.ranks = self.ranks.max(plan.spec.world.rank.index() + 1);
        let rank = plan.spec.world.rank;
        for (number, lane) in plan.lanes.iter().enumerate() {
            let at = Place { rank, lane: number, channel: lane.channel };
            let steps = lane.steps.iter().flat_map(|step| {
                let lag = step.lag;
                self.acts(at, &step.action, lane).into_iter().map(move |act| Move { lag, act })
            });
            let steps: Vec<Move> = steps.collect();
            let turns =
                if lane.sizes.rounds == 0 { 0 } else { u64::from(lane.sizes.rounds) + u64::from(lane.greatest_lag()) };
            self.lanes.push(LaneScript { rank, turns, rounds: lane.sizes.rounds, steps });
        }
    }

    fn acts(&mut self, at: Place, action: &Action, lane: &Lane) -> Vec<Act> {
        match action {
            // The cost of a call counts the entering.
            Action::Enter { .. } => Vec::new(),
            Action::Signal { flag, .. } => vec![Act::Raise(self.flag(at.rank, at.lane, *flag))],
            Action::Wait { peer, flag } => vec![Act::Await(self.flag(*peer, at.lane, *flag))],
            Action::Combine(combine) => vec![Act::Move(self.transfer(at, combine, lane))],
        }
    }

    fn flag(&mut self, rank: Rank, lane: usize, flag: u8) -> usize {
        let next = self.flags.len();
        *self.flags.entry((rank, lane, flag)).or_insert(next)
    }

    /// How many flags there are.
    pub(super) fn flag_count(&self) -> usize {
        self.flags.len()
    }

    fn transfer(&mut self, at: Place, combine: &Combine, lane: &Lane) -> Transfer {
        let Place { rank: me, channel, .. } = at;
        let mut made = Transfer {
            block: lane.sizes.block(combine).0.saturating_mul(self.element_bytes),
            piece: lane.sizes.piece(combine).0.saturating_mul(self.element_bytes),
            operands: f64::from(u32::try_from(combine.sources.len() + combine.targets.len()).unwrap_or(u32::MAX)),
            reduces: combine.sources.len() > 1,
            sources: Vec::new(),
            targets: Vec::new(),
            routes: Vec::new(),
        };
        for source in &combine.sources {
            match source {
                Operand::Slot(peer) => made.sources.push(self.connection(*peer, me, channel)),
                Operand::Window(peer, _) => made.routes.push(self.near(*peer, me)),
                Operand::Local(_) => {}
            }
        }
        for target in &combine.targets {
            match target {
                Operand::Slot(peer) => {
                    made.targets.push(self.connection(me, *peer, channel));
                    if self.terrain.place(me).0 == self.terrain.place(*peer).0 {
                        made.routes.push(self.near(me, *peer));
                    }
                }
                Operand::Window(peer, _) => made.routes.push(self.near(me, *peer)),
                Operand::Local(_) => {}
            }
        }
        made.routes.retain(|route| !self.routes[*route].links.is_empty());
        made
    }

    fn near(&mut self, from: Rank, to: Rank) -> usize {
        if let Some(known) = self.ways.get(&(from, to, None)) {
            return *known;
        }
        let ((domain, seat), (_, other)) = (self.terrain.place(from), self.terrain.place(to));
        let way = self.terrain.near(domain, seat, other);
        let route = self.numbered([(domain, way)], way.latency_us);
        self.ways.insert((from, to, None), route);
        route
    }

    fn far(&mut self, from: Rank, to: Rank, channel: u8) -> usize {
        if let Some(known) = self.ways.get(&(from, to, Some(channel))) {
            return *known;
        }
        let (out, into, latency_us) = self.terrain.far(from, to, usize::from(channel));
        let domains = [from, to].map(|rank| self.fold.kept(self.terrain.place(rank).0));
        let route = self.numbered([(domains[0], out), (domains[1], into)], latency_us);
        self.ways.insert((from, to, Some(channel)), route);
        route
    }

    fn numbered<const N: usize>(&mut self, parts: [(usize, &Course); N], latency_us: f64) -> usize {
        let mut links = Vec::new();
        for (domain, way) in parts {
            let first = self.first_links[domain].unwrap_or_default();
            links.extend(way.links.iter().map(|(link, bytes)| (first + link, *bytes)));
        }
        self.routes.push(Course { links, latency_us });
        self.routes.len() - 1
    }

    /// The connection, as its receiver in a domain that is kept knows it.
    fn connection(&mut self, from: Rank, to: Rank, channel: u8) -> usize {
        let (from, to) = self.fold.seen_by_receiver(self.terrain, (from, to));
        if let Some(known) = self.numbers.get(&(from, to, channel)) {
            return *known;
        }
        let near = self.terrain.place(from).0 == self.terrain.place(to).0;
        let route = if near { self.near(from, to) } else { self.far(from, to, channel) };
        let latency_us = self.routes[route].latency_us;
        self.connections.push(PlayedConnection { route: (!near).then_some(route), latency_us });
        self.numbers.insert((from, to, channel), self.connections.len() - 1);
        self.connections.len() - 1
    }

    /// What went over each connection.
    pub(super) fn traffic(&self, played: &Played) -> Vec<Traffic> {
        let each = self.numbers.iter().map(|((from, to, channel), number)| {
            let (messages, bytes) = played.sent[*number];
            Traffic { from: *from, to: *to, channel: *channel, messages, bytes }
        });
        let mut traffic: Vec<Traffic> = each.filter(|traffic| traffic.messages > 0).collect();
        traffic.sort_unstable();
        traffic
    }

    /// What went over each link.
    pub(super) fn loads(&self, played: &Played) -> Vec<LinkLoad> {
        let mut loads = Vec::with_capacity(self.bytes_per_us.len());
        for (domain, first) in self.first_links.iter().enumerate() {
            let Some(first) = first else { continue };
            for link in 0..self.terrain.links(domain).len() {
                let busy = if played.time_us > 0.0 { played.busy_us[first + link] / played.time_us } else { 0.0 };
                loads.push(LinkLoad { domain, link, busy });
            }
        }
        loads
    }
}

/// Where a step stands.
#[derive(Debug, Clone, Copy)]
struct Place {
    rank: Rank,
    lane: usize,
    channel: u8,
}
