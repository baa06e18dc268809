//! The ladder's facts as far as a description of machines shows them: for a rank on each GPU, in the order of hosts and
//! of their devices, each a process of its own.
//!
//! What only a driver knows is asked of the caller ([`DriverSays`]). Where that does not know it, as of a file, GPUs of
//! a host reach each other unless their only links lead through another GPU.

use std::collections::HashMap;

use crate::topo::bandwidth::{Bandwidth, GpuGeneration};
use crate::topo::paths::{PathKind, Paths};
use crate::topo::search::domain::Ways;
use crate::topo::system::{Node, NodeId, NodeKind, System};
use crate::topo::transport_choice::ladder::{
    FarFacts, HostFacts, LeavesBy, OTHER_CLIQUE, PairAgreement, PairFacts, PeerDecision, PeerWay, Saying, Sayings,
    WaySettings,
};
use crate::topo::transport_choice::{Verdict, direct, flush};
use crate::types::{Rank, TransportKind};

/// What the driver says of two GPUs of a host: why the first does not reach the second's memory; `None` where it does
/// not say.
pub type DriverSays<'a> = &'a dyn Fn(NodeId, NodeId) -> Option<Result<(), String>>;

/// Ranks on the GPUs of a description.
#[allow(missing_debug_implementations, reason = "a driver is a function")]
pub struct Described<'a> {
    system: &'a System,
    settings: WaySettings,
    driver: DriverSays<'a>,
    /// That of each rank.
    gpus: Vec<NodeId>,
    /// How far away each rank's GPU is, from the ranks of the hosts that are asked about.
    kinds: HashMap<Rank, Vec<PathKind>>,
}

/// What is known of two devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownOfTwo {
    /// The GPU on which data lie that the one sends to the other.
    pub third: Option<NodeId>,
    /// In words; the way comes first.
    pub lines: Vec<String>,
}

/// What the ways between ranks mean for collectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DescribedReach {
    /// Whether some ranks of one host do not reach each other's memory.
    pub is_staged: bool,
    /// Whether some do.
    pub is_reached: bool,
    /// Whether NVLinks join all ranks of each host, which reach each other.
    pub is_linked: bool,
    /// Whether there are several hosts, and NVLinks lead from each rank to all of the others.
    pub is_joined: bool,
}

/// Nothing is known of the driver.
pub fn no_driver(_: NodeId, _: NodeId) -> Option<Result<(), String>> {
    None
}

impl<'a> Described<'a> {
    /// For questions about GPUs of these hosts.
    pub fn of(system: &'a System, (settings, driver): (WaySettings, DriverSays<'a>), hosts: &[u32]) -> Described<'a> {
        let gpus = ranked(system);
        let asked = ranks(&gpus).filter(|(_, gpu)| hosts.contains(&system.node(*gpu).host));
        let kinds_from = |gpu: NodeId| {
            let ways = Paths::from(system, gpu);
            gpus.iter().map(|to| ways.to(system, *to).kind).collect()
        };
        let kinds = asked.map(|(rank, gpu)| (rank, kinds_from(gpu))).collect();
        Described { system, settings, driver, kinds, gpus }
    }

    /// The rank on a GPU.
    pub fn rank(&self, gpu: NodeId) -> Option<Rank> {
        ranks(&self.gpus).find(|(_, own)| *own == gpu).map(|(rank, _)| rank)
    }

    /// The way from a rank to another.
    pub fn way(&self, from: Rank, to: Rank) -> PeerDecision {
        let ranks = u32::try_from(self.gpus.len()).unwrap_or(u32::MAX);
        let sayings = Sayings { ranks, of: |rank, peer| self.saying(rank, peer) };
        let is_parted = self.is_parted(from, to);
        // Memory that left its process by a handle goes with that process.
        let lends = |_: Rank, _: [Rank; 2]| !self.settings.by_handle;
        let third = if is_parted { sayings.between(from, to, lends) } else { None };
        self.decided(from, to).settled((from, to), PairAgreement { is_parted, third, reads: sayings.reads(from, to) })
    }

    /// Whether ranks work in each other's memory, without a third one's and without that of the host.
    pub fn reach_each_other(&self, from: Rank, to: Rank) -> bool {
        from == to
            || match self.way(from, to).way {
                PeerWay::Direct | PeerWay::CuMem | PeerWay::Ipc | PeerWay::Crossing => true,
                PeerWay::Indirect(_) | PeerWay::Pinned | PeerWay::Wire => false,
            }
    }

    /// What the ways between ranks mean for collectives.
    pub fn reach(&self) -> DescribedReach {
        let far = || {
            let pairs = ranks(&self.gpus).flat_map(|(one, _)| ranks(&self.gpus).map(move |(other, _)| (one, other)));
            pairs.filter(|(one, other)| self.is_far(*one, *other))
        };
        let is_joined =
            far().next().is_some() && far().all(|(one, other)| self.way(one, other).way == PeerWay::Crossing);
        let mut found = DescribedReach { is_staged: false, is_reached: false, is_linked: true, is_joined };
        for (one, _) in ranks(&self.gpus) {
            let near = ranks(&self.gpus).filter(|(other, _)| *other != one && !self.is_far(one, *other));
            for (other, _) in near {
                let is_parted = self.is_parted(one, other);
                found.is_staged |= is_parted;
                found.is_reached |= !is_parted;
                found.is_linked &= !is_parted && self.is_linked(one, other);
            }
        }
        found
    }

    fn is_parted(&self, one: Rank, other: Rank) -> bool {
        let ranks = u32::try_from(self.gpus.len()).unwrap_or(u32::MAX);
        Sayings { ranks, of: |rank, peer| self.saying(rank, peer) }.parts(one, other)
    }

    fn host(&self, rank: Rank) -> u32 {
        self.system.node(self.gpus[rank.index()]).host
    }

    /// Whether ranks share no memory of a host.
    fn is_far(&self, rank: Rank, peer: Rank) -> bool {
        rank != peer && (self.settings.no_shm || self.host(rank) != self.host(peer))
    }

    fn kind(&self, rank: Rank, peer: Rank) -> PathKind {
        self.kinds.get(&rank).map_or(PathKind::Dis, |kinds| kinds[peer.index()])
    }

    /// What a rank alone can say.
    fn decided(&self, rank: Rank, peer: Rank) -> PeerDecision {
        let WaySettings { no_p2p, no_shm, .. } = self.settings;
        let far = self.is_far(rank, peer).then(|| FarFacts::new((no_p2p, no_shm), self.why_not_crossing(rank, peer)));
        let is_near_other = far.is_none() && rank != peer;
        let forbidden = is_near_other.then(|| self.settings.forbids(Some(self.kind(rank, peer)))).flatten();
        let unreached = if is_near_other && forbidden.is_none() { self.unreached(rank, peer) } else { None };
        let leaves_by = if self.settings.by_handle { LeavesBy::HandleBySetting } else { LeavesBy::Descriptor };
        let facts =
            PairFacts { peer, far, forbidden, unreached, one_process: false, without_pointers: None, leaves_by };
        let mut decided = facts.decide();
        decided.note_links(is_near_other && self.is_linked(rank, peer));
        decided
    }

    fn saying(&self, rank: Rank, peer: Rank) -> Saying {
        let capability = match self.system.node(self.gpus[rank.index()]).kind {
            NodeKind::Gpu { generation: GpuGeneration::Nvidia { capability }, .. } => Some(capability),
            _ => None,
        };
        let wants_reading = rank != peer
            && !self.is_far(rank, peer)
            && self.settings.wants_reading(capability, || self.is_linked(rank, peer));
        Saying { access: self.decided(rank, peer).access().told(), wants_reading }
    }

    fn is_linked(&self, rank: Rank, peer: Rank) -> bool {
        self.kind(rank, peer) == PathKind::Nvl
    }

    fn told_by_driver(&self, rank: Rank, peer: Rank) -> Option<Result<(), String>> {
        (self.driver)(self.gpus[rank.index()], self.gpus[peer.index()])
    }

    /// Why a rank's GPU does not reach that of another on its host.
    fn unreached(&self, rank: Rank, peer: Rank) -> Option<String> {
        let known = self.told_by_driver(rank, peer);
        known.map_or_else(|| assumed_unreached(self.kind(rank, peer)), Result::err)
    }

    /// Why no fabric handles lead from one rank to another with which it shares no host; `None` where they do.
    fn why_not_crossing(&self, rank: Rank, peer: Rank) -> Option<String> {
        let is_joined =
            |rank: Rank, other: Rank| self.host(other) != self.host(rank) && self.kind(rank, other) != PathKind::Dis;
        let crosses = |rank: Rank| ranks(&self.gpus).any(|(other, _)| is_joined(rank, other));
        for rank in [rank, peer] {
            let lacks = || (!crosses(rank)).then_some("no NVLinks lead to other hosts");
            if let Some(reason) = self.settings.forbids_crossing().or_else(lacks) {
                return Some(format!("rank {rank}: {reason}"));
            }
        }
        let is_apart = self.kind(rank, peer) == PathKind::Dis;
        is_apart.then(|| OTHER_CLIQUE.to_owned())
    }
}

/// Why GPUs of a host whose driver nobody can ask do not reach each other.
pub fn assumed_unreached(kind: PathKind) -> Option<String> {
    (kind == PathKind::Nvb).then(|| "the only NVLinks between these GPUs lead through another one".to_owned())
}

/// The GPUs in the order of ranks: by host, and by their numbers there.
pub fn ranked(system: &System) -> Vec<NodeId> {
    let mut gpus = system.gpus();
    gpus.sort_by_key(|gpu| match system.node(*gpu) {
        Node { host, kind: NodeKind::Gpu { device, .. }, .. } => (*host, *device),
        Node { host, .. } => (*host, u32::MAX),
    });
    gpus
}

fn ranks(gpus: &[NodeId]) -> impl Iterator<Item = (Rank, NodeId)> {
    (0..).map(Rank::new).zip(gpus.iter().copied())
}

/// What is known of two devices, by settings and by the level of GPUDirect RDMA (`NCCL_NET_GDR_LEVEL`).
pub fn known(
    system: &System,
    (from, to): (NodeId, NodeId),
    (settings, level): (WaySettings, Option<PathKind>),
    driver: DriverSays<'_>,
) -> KnownOfTwo {
    let is_gpu = |id: NodeId| matches!(system.node(id).kind, NodeKind::Gpu { .. });
    match (is_gpu(from), is_gpu(to)) {
        (true, true) if from != to => between_gpus(system, (from, to), settings, driver),
        (true, false) => KnownOfTwo { third: None, lines: near_nic(system, (from, to), level) },
        (false, true) => KnownOfTwo { third: None, lines: near_nic(system, (to, from), level) },
        _ => KnownOfTwo { third: None, lines: Vec::new() },
    }
}

fn between_gpus(
    system: &System,
    (from, to): (NodeId, NodeId),
    settings: WaySettings,
    driver: DriverSays<'_>,
) -> KnownOfTwo {
    let hosts = [from, to].map(|gpu| system.node(gpu).host);
    let described = Described::of(system, (settings, driver), &hosts);
    let (Some(one), Some(other)) = (described.rank(from), described.rank(to)) else {
        return KnownOfTwo { third: None, lines: Vec::new() };
    };
    let decision = described.way(one, other);
    let third = if let PeerWay::Indirect(third) = decision.way { Some(described.gpus[third.index()]) } else { None };
    let reads = if decision.reads() { "/read" } else { "" };
    let mut lines =
        vec![format!("GPU memory of ranks {one} and {other}, a process on each GPU: {}{reads}", decision.way)];
    lines.push(format!("  {}", in_words(decision.way)));
    lines.extend(decision.refused().iter().map(|(way, reason)| format!("  not {way}: {reason}")));
    if let Some(third) = third {
        lines.push(format!("  the GPU between them is {}, to which NVLinks lead from both", system.name(third)));
    }
    if decision.reads() {
        let why = if settings.reads.is_some() { "NCCL_P2P_READ_ENABLE=1" } else { "NVLink and capability 8.0" };
        lines.push(format!("  the receiver reads, the sender does not write: {why}"));
    }
    let is_assumed = !described.is_far(one, other) && settings.forbids(Some(described.kind(one, other))).is_none();
    if is_assumed && described.told_by_driver(one, other).is_none() {
        lines.push(
            "  assumed, because only a driver knows: GPUs of a host have peer access, except where the only NVLinks \
             lead through another GPU"
                .to_owned(),
        );
    }
    let WaySettings { no_p2p, no_shm, .. } = settings;
    let facts = HostFacts { one_process: false, one_host: hosts[0] == hosts[1], no_p2p, no_shm };
    lines.push(of_host_memory(facts));
    if hosts[0] == hosts[1] {
        let said = match widths_to_nics(system, (from, to)) {
            Verdict::Yes(reason) => format!("not built, though wider: {reason}"),
            Verdict::No(reason) => format!("no, {reason}"),
        };
        lines.push(format!("NET in place of P2P: {said}"));
    }
    lines.push("NVLS: not built, reductions in NVLink switches".to_owned());
    KnownOfTwo { third, lines }
}

/// What ranks do on a way.
fn in_words(way: PeerWay) -> &'static str {
    match way {
        PeerWay::Direct => "each works in the other's memory, by its pointer",
        PeerWay::CuMem => "each works in the other's memory, which it maps by a descriptor",
        PeerWay::Ipc => "each works in the other's memory, which it maps by a handle",
        PeerWay::Crossing => "each works in the other's memory, which it maps by a fabric handle over NVLink switches",
        PeerWay::Indirect(_) => "what they send lies in memory of a GPU between them",
        PeerWay::Pinned => "what they send lies in pinned memory of their host",
        PeerWay::Wire => "what they send goes through sockets",
    }
}

/// The way of host memory: `host memory of these ranks: SHM (P2P: ...)`.
fn of_host_memory(facts: HostFacts) -> String {
    let name = |kind: TransportKind| match kind {
        TransportKind::Local => "P2P",
        TransportKind::Shm => "SHM",
        TransportKind::Net => "NET",
    };
    let refused = TransportKind::ALL.iter().map_while(|kind| Some((*kind, facts.refusal(*kind)?)));
    let reasons: Vec<String> = refused.map(|(kind, reason)| format!("{}: {reason}", name(kind))).collect();
    let way = TransportKind::ALL.iter().find(|kind| facts.refusal(**kind).is_none());
    format!("host memory of these ranks: {} ({})", way.map_or("none", |kind| name(*kind)), reasons.join("; "))
}

fn near_nic(system: &System, (gpu, port): (NodeId, NodeId), level: Option<PathKind>) -> Vec<String> {
    let way = Paths::from(system, gpu).to(system, port);
    let mut said = match direct(system, &way, level) {
        Verdict::Yes(reason) => {
            let flush = match flush(system, gpu) {
                Verdict::Yes(reason) => format!("flush: needed, {reason}"),
                Verdict::No(reason) => format!("flush: not needed, {reason}"),
            };
            vec![format!("GPUDirect RDMA: by a net plug-in that takes GPU memory, {reason}"), flush]
        }
        Verdict::No(reason) => vec![format!("GPUDirect RDMA: no, {reason}")],
    };
    let ways = Ways::new(system);
    let places = (ways.gpus.iter().position(|id| *id == gpu), ways.ports.iter().position(|id| *id == port));
    if let (Some(place), Some(at)) = places {
        let relay = ways.to_port(place, at).iter().skip(1).find(|id| ways.gpus.contains(id)).copied();
        said.push(match relay {
            Some(by) => {
                format!("PXN: not built, though {} is near that NIC, and NVLink leads there", system.name(by))
            }
            None => "PXN: not built, and no other GPU has a nearer way to that NIC".to_owned(),
        });
    }
    said.push(format!("rails: {NETWORK_AS_BUILT}"));
    said.push("SHARP: not built, reductions in network switches".to_owned());
    said
}

/// Whether two GPUs of a host have each a wider way to a NIC than to each other.
fn widths_to_nics(system: &System, (from, to): (NodeId, NodeId)) -> Verdict {
    let ways = Paths::from(system, from);
    let between = ways.to(system, to).bandwidth;
    let widest = |paths: &Paths| -> Bandwidth {
        let near =
            system.ports().into_iter().map(|port| paths.to(system, port)).filter(|way| way.kind <= PathKind::Pxb);
        near.map(|way| way.bandwidth).max().unwrap_or_default()
    };
    let networks = [widest(&ways), widest(&Paths::from(system, to))];
    if networks.contains(&Bandwidth::default()) {
        return Verdict::No(format!("{between} between the GPUs, and not each of them has a NIC within PXB"));
    }
    let text = format!("{between} between the GPUs, {} and {} to their NICs", networks[0], networks[1]);
    if networks.iter().all(|network| *network > between) { Verdict::Yes(text) } else { Verdict::No(text) }
}

/// How ranks of different hosts send.
pub const NETWORK_AS_BUILT: &str = "ranks send by TCP over all interfaces that one subnet joins (NCCL_SOCKET_IFNAME, \
                                    RSCCL_RAILS), from memory of the host; the log of a job names them";

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::topo::machines::{self, system};
    use crate::topo::xml;

    fn said(system: &System, (from, to): (usize, usize), settings: WaySettings) -> Vec<String> {
        let gpus = ranked(system);
        known(system, (gpus[from], gpus[to]), (settings, None), &no_driver).lines
    }

    fn first(machine: &str, pair: (usize, usize), settings: WaySettings) -> String {
        said(&system(machine), pair, settings)[0].split_once(": ").unwrap().1.to_owned()
    }

    #[test]
    fn without_a_level_the_driver_decides() {
        let usual = WaySettings::default();
        assert_eq!(first("h100x8", (0, 7), usual), "P2P/CUMEM");
        assert_eq!(first("a100bridge", (0, 4), usual), "P2P/CUMEM");
        let level = WaySettings { level: Some(PathKind::Pxb), ..usual };
        assert_eq!([first("h100x8", (0, 7), level), first("a100bridge", (0, 4), level)], ["P2P/CUMEM", "SHM/pinned"]);
        let lines = said(&system("a100bridge"), (0, 4), level);
        assert_eq!(lines[2], "  not P2P: SYS is beyond NCCL_P2P_LEVEL=PXB");
    }

    /// On a cube mesh GPUs 0 and 7 both have links to GPUs 3 and 4: each direction takes one of them.
    #[test]
    fn a_cube_mesh_has_gpus_between_those_without_a_link() {
        let (mesh, usual) = (system("dgx1v"), WaySettings::default());
        let gpus = ranked(&mesh);
        let third = |from: usize, to: usize| known(&mesh, (gpus[from], gpus[to]), (usual, None), &no_driver).third;
        assert_eq!([third(0, 7), third(7, 0), third(0, 2)], [Some(gpus[3]), Some(gpus[4]), None]);
        assert_eq!(first("dgx1v", (0, 7), usual), "P2P/indirect/3");
        // Memory by handles cannot be lent, and a level that forbids the pair forbids the way over others.
        for settings in [WaySettings { by_handle: true, ..usual }, WaySettings { level: Some(PathKind::Nvl), ..usual }]
        {
            assert_eq!(first("dgx1v", (0, 7), settings), "SHM/pinned");
        }
        // What the driver says counts, where it can be asked.
        let allows = |_: NodeId, _: NodeId| Some(Ok(()));
        assert_eq!(known(&mesh, (gpus[0], gpus[7]), (usual, None), &allows).third, None);
    }

    #[test]
    fn settings_and_drivers_forbid() {
        let (ndv4, usual) = (system("ndv4"), WaySettings::default());
        assert_eq!(first("ndv4", (0, 1), usual), "P2P/CUMEM/read");
        let disabled = said(&ndv4, (0, 1), WaySettings { no_p2p: true, ..usual });
        assert!(disabled[0].ends_with(": SHM/pinned") && disabled[2] == "  not P2P: NCCL_P2P_DISABLE is set");
        let denies = |_: NodeId, _: NodeId| Some(Err("no peer access, says NVML".to_owned()));
        let gpus = ranked(&ndv4);
        let denied = known(&ndv4, (gpus[0], gpus[1]), (usual, None), &denies).lines;
        assert!(
            denied[0].ends_with(": SHM/pinned") && denied[2] == "  not P2P: no peer access, says NVML",
            "{denied:?}"
        );
        // Hopper is written to, whatever the links, unless the user asks for it.
        assert_eq!(first("h100x8", (0, 1), usual), "P2P/CUMEM");
        assert_eq!(first("h100x8", (0, 1), WaySettings { reads: Some(true), ..usual }), "P2P/CUMEM/read");
        assert_eq!(first("ndv4", (0, 1), WaySettings { reads: Some(false), ..usual }), "P2P/CUMEM");
    }

    #[test]
    fn hosts_of_one_clique_reach_each_other_and_others_do_not() {
        let usual = WaySettings::default();
        assert_eq!(first("nvl72", (0, 71), usual), "P2P/MNNVL");
        let joined = |name: &str, settings: WaySettings| {
            let system = system(name);
            let hosts: Vec<u32> = system.gpus().iter().map(|gpu| system.node(*gpu).host).collect();
            Described::of(&system, (settings, &no_driver), &hosts).reach().is_joined
        };
        assert!(joined("nvl72", usual) && !joined("h100x8", usual));
        assert!(!joined("nvl72", WaySettings { no_mnnvl: true, ..usual }));
        let never = WaySettings { no_mnnvl: true, ..usual };
        assert!(first("nvl72", (0, 71), never).starts_with("NET/Socket/0"));
        let (machine, _) = xml::parse("h100x8", machines::text("h100x8")).unwrap();
        let two = System::new(&machine.repeated(2)).unwrap();
        assert!(said(&two, (0, 8), usual).iter().any(|line| line.contains("MNNVL: rank 0: no NVLinks lead to other")));
    }

    #[test]
    fn nics_would_serve_a_host_only_where_they_are_wider() {
        let wider = |name: &str| {
            let system = system(name);
            widths_to_nics(&system, (system.gpus()[0], system.gpus()[4])).is_yes()
        };
        assert_eq!([wider("a100bridge"), wider("h100x8")], [true, false]);
    }
}
