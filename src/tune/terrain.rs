//! Where the ranks of a simulation stand: their domains, the links that join them, and what each rank can do by itself.
//!
//! A domain is a set of ranks that reach each other without the network: a host, or the hosts of an NVLink clique.
//! Equal domains share one [`DomainLinks`]. A link of a domain is one direction of a link of its graph.

use super::Costs;
use super::cost::Link;
use crate::topo::bandwidth::{Bandwidth, GpuGeneration};
use crate::topo::paths::share_of_links;
use crate::topo::search::domain::{Domain, Ways};
use crate::topo::system::{NodeId, NodeKind, System};
use crate::topo::transport_choice::described::{Described, no_driver};
use crate::topo::transport_choice::ladder::WaySettings;
use crate::types::{Rank, TransportKind};
use crate::{Error, Result};

use std::collections::HashMap;

/// Where the ranks of a simulation stand.
#[derive(Debug, Clone)]
pub struct Terrain {
    /// Every class of equal domains.
    pub(super) classes: Vec<DomainLinks>,
    /// The class of each domain.
    pub(super) domains: Vec<usize>,
    /// The domain of each rank, and its seat there.
    pub(super) places: Vec<(usize, usize)>,
    /// The ranks of each domain, seat by seat.
    pub(super) ranks: Vec<Vec<Rank>>,
    /// The costs of a rank's steps apart from the links.
    pub(super) labour: Labour,
    /// Microseconds of a message in the network between domains.
    pub(super) network_latency_us: f64,
}

/// The costs of a rank's steps apart from the links.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Labour {
    /// Microseconds of a step, apart from its bytes.
    pub(super) step_us: f64,
    /// Microseconds of a message to another domain, or from one.
    pub(super) message_us: f64,
    /// Microseconds from the raising of a flag until the waiter sees it.
    pub(super) flag_us: f64,
    /// Who moves a step's bytes.
    pub(super) mover: Mover,
}

/// Who moves a step's bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Mover {
    /// One core, which runs one step of the rank at a time.
    Core {
        /// Bytes that it copies in a microsecond.
        bytes_per_us: f64,
        /// The same for bytes that stay in its cache.
        cached_bytes_per_us: f64,
        /// How many bytes stay there.
        cache_bytes: f64,
        /// How many times as long a reduction takes as a copy of as many bytes.
        reduction_factor: f64,
    },
    /// A GPU, whose lanes run side by side and share its memory.
    Gpu {
        /// Bytes that its memory copies (reads and writes) in a microsecond.
        bytes_per_us: f64,
    },
}

/// The links of a domain, and the ways of its ranks over them.
#[derive(Debug, Clone, Default)]
pub(super) struct DomainLinks {
    /// What each link carries: bytes in a microsecond.
    pub(super) bytes_per_us: Vec<f64>,
    /// Both ends of each link, as nodes of the whole system in the first domain of the class; empty if no graph is
    /// known.
    pub(super) ends: Vec<(NodeId, NodeId)>,
    pub(super) seats: usize,
    /// Whether ranks reach each other's memory.
    pub(super) maps: bool,
    /// What leaves by all ports together.
    pub(super) network_bytes_per_us: f64,
    /// From each seat to each seat.
    pub(super) near: Vec<Course>,
    /// The ways between each seat and each port: from the seat to the port, and back.
    pub(super) to_ports: Vec<(Course, Course)>,
    /// The rail of each port.
    pub(super) rails: Vec<Option<u32>>,
    /// The ports that a seat uses, in turn.
    pub(super) used: Vec<Vec<usize>>,
}

/// The links that a message takes.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Course {
    /// Each with the bytes that go over it for one byte of the message.
    pub(super) links: Vec<(usize, f64)>,
    /// Microseconds in addition to the time on the links.
    pub(super) latency_us: f64,
}

impl Terrain {
    /// Hosts of which only the costs are known: cores make the copies, and each host has one link to the network.
    pub fn of_hosts(hosts: &[Vec<Rank>], near: TransportKind, costs: &Costs) -> Terrain {
        let Link { latency_us, .. } = costs.link(near);
        let class = |seats: usize| {
            let network = Course { links: vec![(0, 1.0)], latency_us: 0.0 };
            DomainLinks {
                bytes_per_us: vec![costs.net.bytes_per_us],
                ends: Vec::new(),
                seats,
                maps: true,
                network_bytes_per_us: costs.net.bytes_per_us,
                near: vec![Course { links: Vec::new(), latency_us }; seats * seats],
                to_ports: vec![(network, Course::default()); seats],
                rails: vec![None],
                used: vec![vec![0]; seats],
            }
        };
        let mut sizes: Vec<usize> = hosts.iter().map(Vec::len).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let domains = hosts.iter().map(|ranks| sizes.partition_point(|size| *size < ranks.len())).collect();
        let mover = Mover::Core {
            bytes_per_us: costs.copy_bytes_per_us,
            cached_bytes_per_us: costs.cached_bytes_per_us,
            cache_bytes: costs.cache_bytes,
            reduction_factor: costs.reduction_factor(),
        };
        Terrain {
            classes: sizes.into_iter().map(class).collect(),
            domains,
            places: places(hosts),
            ranks: hosts.to_vec(),
            labour: Labour { step_us: costs.step_us, message_us: costs.net_message_us, flag_us: costs.flag_us, mover },
            network_latency_us: costs.net.latency_us,
        }
    }

    /// [`Terrain::of_hosts`] of processes, which share their host's memory.
    pub fn of_processes(hosts: &[Vec<Rank>], costs: &Costs) -> Terrain {
        Terrain::of_hosts(hosts, BETWEEN_PROCESSES, costs)
    }

    /// A rank on each GPU of `system`, domain by domain. Every domain stands for `times` equal domains, which follow
    /// each other, so that many equal hosts need one graph.
    ///
    /// # Errors
    /// `InvalidArgument` where there is no GPU, where no way joins two GPUs, or where a GPU needs the network and has
    /// no way to it.
    pub fn of_gpus(system: &System, times: u32, settings: WaySettings) -> Result<Terrain> {
        let domains = Domain::all(system);
        if domains.is_empty() {
            return Err(Error::invalid_argument("the machine has no GPU for a rank to stand on: --overlay adds GPUs"));
        }
        let mut firsts: Vec<&Domain> = Vec::new();
        let mut classes = Vec::new();
        let mut of_domain = Vec::new();
        let times = usize::try_from(times.max(1)).unwrap_or(usize::MAX);
        let alone = domains.len() * times == 1;
        for domain in &domains {
            let known = firsts.iter().position(|first| first.part == domain.part);
            of_domain.push(known.unwrap_or(firsts.len()));
            if known.is_none() {
                firsts.push(domain);
                classes.push(DomainLinks::of(system, domain, (alone, settings))?);
            }
        }
        let all = classes.iter().flat_map(|class| &class.near).map(|way| way.latency_us);
        let flag_us = all.fold(0.0, f64::max).min(FLAG_MOST_US);
        let domains: Vec<usize> = std::iter::repeat_n(of_domain, times).flatten().collect();
        let mut next = 0;
        let mut ranks = Vec::with_capacity(domains.len());
        for class in &domains {
            let seats = u32::try_from(classes[*class].seats).unwrap_or(u32::MAX);
            ranks.push((next..next + seats).map(Rank::new).collect::<Vec<Rank>>());
            next += seats;
        }
        let memory = system.gpus().iter().map(|gpu| memory_bytes_per_us(system, *gpu)).fold(f64::MAX, f64::min);
        Ok(Terrain {
            classes,
            domains,
            places: places(&ranks),
            ranks,
            labour: Labour {
                step_us: GPU_STEP_US,
                message_us: 0.0,
                flag_us,
                mover: Mover::Gpu { bytes_per_us: memory },
            },
            network_latency_us: NETWORK_LATENCY_US,
        })
    }

    /// The ranks of each domain.
    pub fn domains(&self) -> &[Vec<Rank>] {
        &self.ranks
    }

    /// How many ranks there are.
    pub fn size(&self) -> u32 {
        u32::try_from(self.places.len()).unwrap_or(u32::MAX)
    }

    /// The first domains alone.
    ///
    /// # Errors
    /// Where their ranks are not the first ones.
    pub fn first(&self, domains: usize) -> Result<Terrain> {
        let ranks: Vec<Vec<Rank>> = self.ranks.iter().take(domains).cloned().collect();
        let size = ranks.iter().map(Vec::len).sum();
        if ranks.iter().flatten().any(|rank| rank.index() >= size) {
            return Err(Error::internal("the first domains have ranks that are not the first ones"));
        }
        let mut part = self.clone();
        part.domains.truncate(domains);
        part.places.truncate(size);
        part.ranks = ranks;
        Ok(part)
    }

    /// Whether all domains are equal.
    pub fn is_even(&self) -> bool {
        self.domains.iter().all(|class| *class == self.domains[0])
    }

    /// Whether the ranks of every domain reach each other's memory.
    pub fn maps(&self) -> bool {
        self.classes.iter().all(|class| class.maps)
    }

    /// Bytes that each rank can send in a microsecond while all ranks of its domain send to all others, in the
    /// narrowest domain.
    pub fn egress(&self) -> f64 {
        self.classes.iter().map(DomainLinks::egress).fold(f64::INFINITY, f64::min)
    }

    /// Bytes that a rank can send in a microsecond, to whichever peers of its domain: what its links carry that lead
    /// away from it, on the average of a domain, in the domain with the least. No collective makes all ranks send more.
    pub fn link_egress(&self) -> f64 {
        self.classes.iter().map(DomainLinks::link_egress).fold(f64::INFINITY, f64::min)
    }

    /// Bytes that all ports of a domain send in a microsecond, in the domain with the least.
    pub fn network(&self) -> f64 {
        self.classes.iter().map(|class| class.network_bytes_per_us).fold(f64::INFINITY, f64::min)
    }

    /// What collectives cost here.
    pub fn costs(&self) -> Costs {
        let usual = Costs::default();
        let latencies = self.classes.iter().flat_map(|class| &class.near).map(|way| way.latency_us);
        let latency_us = latencies.fold(0.0, f64::max);
        let egress = self.egress();
        let Labour { step_us, message_us, flag_us, mover } = self.labour;
        let (memory, cached, cache_bytes, reduction_factor) = match mover {
            Mover::Core { bytes_per_us, cached_bytes_per_us, cache_bytes, reduction_factor } => {
                (bytes_per_us, cached_bytes_per_us, cache_bytes, reduction_factor)
            }
            Mover::Gpu { bytes_per_us } => (bytes_per_us, bytes_per_us, 0.0, 1.0),
        };
        let near = Link { latency_us, bytes_per_us: egress.min(memory) };
        // The tuner counts a byte that is read from a peer, or written to it, as half a copied byte. Such a byte passes
        // the link once, so that its time is 1 / egress.
        let peer_factor = (2.0 * memory / egress).max(1.0);
        let lanes_side_by_side = matches!(mover, Mover::Gpu { .. });
        Costs {
            local: near,
            shm: near,
            net: Link { latency_us: self.network_latency_us, bytes_per_us: self.network().min(MOST_BYTES_PER_US) },
            net_message_us: message_us,
            flag_us,
            step_us,
            copy_bytes_per_us: memory,
            cached_bytes_per_us: cached,
            reduce_bytes_per_us: memory / reduction_factor,
            cache_bytes,
            peer_factor: if egress.is_finite() { peer_factor } else { 1.0 },
            side_by_side: if lanes_side_by_side { f64::from(GPU_CHANNELS) } else { usual.side_by_side },
            overlap: if lanes_side_by_side { SIDE_BY_SIDE } else { usual.overlap },
            channels: if lanes_side_by_side { GPU_CHANNELS } else { usual.channels },
            ..usual
        }
    }

    /// A rank's domain, and its seat there.
    pub(super) fn place(&self, rank: Rank) -> (usize, usize) {
        self.places[rank.index()]
    }

    /// What each link of a domain carries.
    pub(super) fn links(&self, domain: usize) -> &[f64] {
        &self.classes[self.domains[domain]].bytes_per_us
    }

    /// Both ends of a domain's link, as the first domain of its class has them.
    pub fn ends(&self, domain: usize, link: usize) -> Option<(NodeId, NodeId)> {
        self.classes[self.domains[domain]].ends.get(link).copied()
    }

    /// The way inside a domain.
    pub(super) fn near(&self, domain: usize, from: usize, to: usize) -> &Course {
        let class = &self.classes[self.domains[domain]];
        &class.near[from * class.seats + to]
    }

    /// The way between two domains on a lane: out of the one, into the other, and the latency of both and the network.
    /// Both ports are on one rail, where rails are known.
    pub(super) fn far(&self, from: Rank, to: Rank, lane: usize) -> (&Course, &Course, f64) {
        let ((domain, seat), (other, other_seat)) = (self.place(from), self.place(to));
        let (source, target) = (&self.classes[self.domains[domain]], &self.classes[self.domains[other]]);
        let port = |class: &DomainLinks, seat: usize, of: &[usize]| of[(seat % class.seats + lane) % of.len()];
        let out = port(source, seat, &source.used[seat]);
        let same_rail = |rail: u32| -> Vec<usize> {
            (0..target.rails.len()).filter(|port| target.rails[*port] == Some(rail)).collect()
        };
        let on_rail = source.rails[out].map(same_rail).filter(|ports| !ports.is_empty());
        let usual = &target.used[other_seat];
        let ports = match &on_rail {
            Some(ports) if !usual.iter().any(|port| ports.contains(port)) => ports,
            Some(_) | None => usual,
        };
        let into = match source.rails[out] {
            Some(rail) if usual.iter().any(|port| target.rails[*port] == Some(rail)) => {
                usual.iter().copied().find(|port| target.rails[*port] == Some(rail)).unwrap_or(ports[0])
            }
            Some(_) | None => port(target, other_seat, ports),
        };
        let (leave, _) = &source.to_ports[seat * source.rails.len() + out];
        let (_, enter) = &target.to_ports[other_seat * target.rails.len() + into];
        (leave, enter, leave.latency_us + enter.latency_us + self.network_latency_us)
    }
}

/// What connects processes of a host.
pub const BETWEEN_PROCESSES: TransportKind = TransportKind::Shm;

/// The domain of each rank, and its seat there.
pub(super) fn places(hosts: &[Vec<Rank>]) -> Vec<(usize, usize)> {
    let mut places = vec![(0, 0); hosts.iter().map(Vec::len).sum()];
    for (domain, ranks) in hosts.iter().enumerate() {
        for (seat, rank) in ranks.iter().enumerate() {
            places[rank.index()] = (domain, seat);
        }
    }
    places
}

impl DomainLinks {
    /// The links of a domain of GPUs. A domain that is `alone` needs no port.
    fn of(system: &System, domain: &Domain, (alone, settings): (bool, WaySettings)) -> Result<DomainLinks> {
        let ways = Ways::new(&domain.part);
        let (seats, ports) = (ways.gpus.len(), ways.ports.len());
        let widths = (0..ports).map(|port| bytes_per_us(ways.port_width(port)));
        let network_bytes_per_us = widths.sum();
        let rails = ways.rails.clone();
        let mut found = DomainLinks { seats, rails, maps: true, network_bytes_per_us, ..DomainLinks::default() };
        let mut numbers: HashMap<(NodeId, NodeId), usize> = HashMap::new();
        let hosts: Vec<u32> = ways.gpus.iter().map(|gpu| domain.part.node(*gpu).host).collect();
        let described = Described::of(&domain.part, (settings, &no_driver), &hosts);
        let rank = |seat: usize| described.rank(ways.gpus[seat]);
        for (from, to) in (0..seats * seats).map(|pair| (pair / seats, pair % seats)) {
            let path = ways.peer(from, to);
            if path.nodes.is_empty() {
                let names = [from, to].map(|seat| system.name(domain.nodes[ways.gpus[seat].index()]));
                return Err(Error::invalid_argument(format!("no way leads from {} to {}", names[0], names[1])));
            }
            let reached = rank(from).zip(rank(to)).is_some_and(|(one, other)| described.reach_each_other(one, other));
            found.maps &= reached;
            let latency_us = if from == to { 0.0 } else { latency_us(&domain.part, &path.nodes) };
            let way = found.way(&domain.part, &path.nodes, (&mut numbers, latency_us));
            found.near.push(way);
        }
        if ports == 0 && !alone {
            let name = system.name(domain.nodes[0]);
            return Err(Error::invalid_argument(format!("{name} and what is joined to it has no NIC that works")));
        }
        for (seat, port) in (0..seats * ports).map(|pair| (pair / ports, pair % ports)) {
            let out = ways.to_port(seat, port).to_vec();
            let into: Vec<NodeId> = out.iter().rev().copied().collect();
            let [out, into] = [out, into].map(|nodes| found.way(&domain.part, &nodes, (&mut numbers, 0.0)));
            found.to_ports.push((out, into));
        }
        for seat in 0..seats {
            let near: Vec<usize> = (0..ports).filter(|port| ways.near(*port).contains(&seat)).collect();
            let usable = |port: &usize| !ways.to_port(seat, *port).is_empty();
            let used = if near.is_empty() { (0..ports).filter(usable).collect() } else { near };
            found.used.push(used);
        }
        found.ends =
            found.ends.iter().map(|(from, to)| (domain.nodes[from.index()], domain.nodes[to.index()])).collect();
        Ok(found)
    }

    /// What each seat can send while all seats send to all others: the least ratio of a link's bandwidth to the load
    /// that they put on it.
    fn egress(&self) -> f64 {
        let others = f64::from(u32::try_from(self.seats).unwrap_or(u32::MAX)) - 1.0;
        let mut loads = vec![0.0; self.bytes_per_us.len()];
        for (link, part) in self.near.iter().flat_map(|way| &way.links) {
            loads[*link] += part / others;
        }
        let each =
            self.bytes_per_us.iter().zip(&loads).filter(|(_, load)| **load > 0.0).map(|(width, load)| width / load);
        each.fold(f64::INFINITY, f64::min)
    }

    /// What the first links of a seat's ways carry together, on the average of the seats; infinite where none is known.
    fn link_egress(&self) -> f64 {
        let of_seat = |ways: &[Course]| {
            let mut firsts: Vec<usize> = ways.iter().filter_map(|way| Some(way.links.first()?.0)).collect();
            firsts.sort_unstable();
            firsts.dedup();
            firsts.iter().map(|link| self.bytes_per_us[*link]).sum::<f64>()
        };
        let all: f64 = self.near.chunks(self.seats.max(1)).map(of_seat).sum();
        if all > 0.0 { all / f64::from(u32::try_from(self.seats).unwrap_or(u32::MAX)) } else { f64::INFINITY }
    }

    fn way(
        &mut self,
        part: &System,
        nodes: &[NodeId],
        (numbers, latency_us): (&mut HashMap<(NodeId, NodeId), usize>, f64),
    ) -> Course {
        let mut links = Vec::new();
        for share in share_of_links(part, nodes) {
            let number = *numbers.entry(share.link).or_insert(self.bytes_per_us.len());
            if number == self.bytes_per_us.len() {
                self.bytes_per_us.push(bytes_per_us(share.bandwidth));
                self.ends.push(share.link);
            }
            #[expect(clippy::cast_precision_loss, reason = "5 or 6")]
            links.push((number, share.fifths as f64 / 5.0));
        }
        Course { links, latency_us }
    }
}

/// Bytes in a microsecond: the same number as MB/s.
fn bytes_per_us(bandwidth: Bandwidth) -> f64 {
    bandwidth.gigabytes() * 1e3
}

/// Microseconds from the moment when a GPU writes a message until another GPU sees it.
fn latency_us(part: &System, nodes: &[NodeId]) -> f64 {
    let through_processor = nodes.iter().any(|id| matches!(part.node(*id).kind, NodeKind::Cpu(_)));
    let through_pci = nodes.iter().any(|id| matches!(part.node(*id).kind, NodeKind::Pci));
    if through_processor || through_pci { PCI_LATENCY_US } else { LINK_LATENCY_US }
}

/// Bytes that a GPU's memory copies in a microsecond: half of the data sheet's bandwidth, because a copy reads and
/// writes, and nine tenths of that half, which programs reach. The data sheet is that of the generation's largest
/// model.
fn memory_bytes_per_us(system: &System, gpu: NodeId) -> f64 {
    let sheet = match system.node(gpu).kind {
        NodeKind::Gpu { generation, .. } => match generation {
            GpuGeneration::Nvidia { capability: 100.. } => 8_000_000.0,
            GpuGeneration::Nvidia { capability: 90..=99 } => 3_350_000.0,
            GpuGeneration::Nvidia { capability: 80..=89 } => 1_555_000.0,
            GpuGeneration::Nvidia { capability: 70..=79 } => 900_000.0,
            GpuGeneration::Nvidia { capability: _ } => 732_000.0,
            GpuGeneration::Amd { gfx: 0x940.. } => 5_300_000.0,
            GpuGeneration::Amd { gfx: 0x90a..=0x93f } => 1_600_000.0,
            GpuGeneration::Amd { gfx: _ } => 1_000_000.0,
        },
        NodeKind::Pci | NodeKind::Switch | NodeKind::Cpu(_) | NodeKind::Nic | NodeKind::Port { .. } => 100_000.0,
    };
    sheet * 0.45
}

/// Microseconds of a message by NVLink or xGMI, by PCI, and by the network: what NCCL's tuner books for a hop of a ring
/// with its protocol Simple, less the 1 µs that a step takes here.
const LINK_LATENCY_US: f64 = 2.4;
const PCI_LATENCY_US: f64 = 4.7;
const NETWORK_LATENCY_US: f64 = 13.0;
/// A step of a GPU's lane: its threads synchronise twice, at about half a microsecond each time.
const GPU_STEP_US: f64 = 1.0;
/// Lanes of a GPU run side by side, so the links inside domains and those between them are busy at the same time,
/// except at the beginning and the end.
const SIDE_BY_SIDE: f64 = 16.0;
/// As many lanes as a plan with windows may have.
#[expect(clippy::cast_possible_truncation, reason = "a few")]
const GPU_CHANNELS: u32 = crate::plan::WINDOW_LANES as u32;
/// Stands for a network that nobody uses: one domain.
const MOST_BYTES_PER_US: f64 = 1e9;
/// A flag is one word, and a message of NCCL's protocol LL is little more: NCCL's tuner books 0.6 µs for its hop by
/// NVLink and 1.0 µs by PCI.
const FLAG_MOST_US: f64 = 1.0;
