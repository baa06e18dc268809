//! Which devices reach each other's memory, and by which transport two GPUs should talk: each "no" comes with its
//! reason.
//!
//! What drivers and containers forbid is a fact that the caller brings ([`Pair::denied`]); everything else is in the
//! graph.

use crate::error::{Error, Result};
use crate::topo::bandwidth::{Bandwidth, GpuGeneration};
use crate::topo::paths::{Path, PathKind, Paths};
use crate::topo::search::domain::Ways;
use crate::topo::system::{LinkKind, NodeId, NodeKind, System};

/// An answer, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It can.
    Yes(String),
    /// It cannot.
    No(String),
}

impl Verdict {
    /// Whether it can.
    pub const fn is_yes(&self) -> bool {
        matches!(self, Verdict::Yes(_))
    }
}

/// How far apart two devices may be for each way to reach memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Levels {
    /// Between GPUs (`NCCL_P2P_LEVEL`; `NCCL_P2P_DISABLE=1` is LOC); `None`: any way, the driver alone decides. It is
    /// what communicators do: NCCL's own limit, PXB, is none of theirs.
    pub peer: Option<PathKind>,
    /// Between a GPU and a NIC (`NCCL_NET_GDR_LEVEL`); `None`: several PCI bridges, or a coherent link and then PCI.
    pub direct: Option<PathKind>,
}

/// Reads a level: NCCL's word for a distance (`PXB`, in any case), or one of its older numbers, 0 (LOC) to 5 (SYS).
///
/// # Errors
/// [`crate::error::Kind::InvalidArgument`] that names the variable and what is allowed.
pub fn level(variable: &str, text: &str) -> Result<PathKind> {
    const NUMBERS: [PathKind; 6] =
        [PathKind::Loc, PathKind::Pix, PathKind::Pxb, PathKind::Phb, PathKind::Sys, PathKind::Sys];
    let word = text.trim();
    let by_name = PathKind::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(word));
    let by_number = || word.parse().ok().and_then(|number: usize| NUMBERS.get(number).copied());
    by_name.or_else(by_number).ok_or_else(|| {
        let names = PathKind::ALL.map(PathKind::name).join(", ");
        Error::invalid_argument(format!("{variable}={text:?} is not a distance; allowed: {names}, or 0 to 5"))
    })
}

/// Two GPUs that may talk to each other, and what the graph does not show of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair<'a> {
    /// The GPU that sends.
    pub from: NodeId,
    /// The GPU that receives.
    pub to: NodeId,
    /// Why the driver forbids access, where it does (NVML's peer status).
    pub denied: Option<&'a str>,
}

/// What [`check_p2p`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peers {
    /// Whether one reaches the other's memory without the host.
    pub access: Verdict,
    /// Whether the receiver should read from the sender, in place of being written to: NVLink between GPUs of
    /// capability 8.0.
    pub read: bool,
    /// The GPU between them, which has to hold a buffer.
    pub relay: Option<NodeId>,
}

/// Whether two GPUs reach each other's memory: on one host or in one NVLink clique, near enough, and allowed by the
/// driver.
pub fn check_p2p(system: &System, pair: Pair<'_>, levels: Levels) -> Peers {
    let way = Paths::from(system, pair.from).to(system, pair.to);
    let mut access = peers(system, &way, levels);
    if let (Verdict::Yes(_), Some(reason)) = (&access, pair.denied) {
        access = Verdict::No(format!("the driver forbids it: {reason}"));
    }
    let is_gpu = |id: &&NodeId| matches!(system.node(**id).kind, NodeKind::Gpu { .. });
    let between = way.nodes.get(1..way.nodes.len().saturating_sub(1)).unwrap_or_default();
    let ampere = |id: NodeId| {
        let generation = GpuGeneration::Nvidia { capability: 80 };
        matches!(&system.node(id).kind, NodeKind::Gpu { generation: of, .. } if *of == generation)
    };
    Peers {
        read: access.is_yes() && way.kind == PathKind::Nvl && ampere(pair.from) && ampere(pair.to),
        relay: between.iter().find(is_gpu).copied().filter(|_| access.is_yes()),
        access,
    }
}

/// Whether two GPUs of a host should talk over their NICs: where both have a wider way to one than to each other, and
/// `NCCL_NET_DISABLE_INTRA` does not forbid it.
pub fn check_net(system: &System, pair: Pair<'_>, disabled: bool) -> Verdict {
    if disabled {
        return Verdict::No("NCCL_NET_DISABLE_INTRA=1".to_owned());
    }
    let ways = Paths::from(system, pair.from);
    let between = ways.to(system, pair.to).bandwidth;
    let widest = |paths: &Paths| -> Bandwidth {
        let near =
            system.ports().into_iter().map(|port| paths.to(system, port)).filter(|way| way.kind <= PathKind::Pxb);
        near.map(|way| way.bandwidth).max().unwrap_or_default()
    };
    let networks = [widest(&ways), widest(&Paths::from(system, pair.to))];
    if networks.contains(&Bandwidth::default()) {
        return Verdict::No(format!("{between} between the GPUs, and not each of them has a NIC within PXB"));
    }
    let text = format!("{between} between the GPUs, {} and {} to their NICs", networks[0], networks[1]);
    if networks.iter().all(|network| *network > between) { Verdict::Yes(text) } else { Verdict::No(text) }
}

/// Whether GPU `from` reaches the memory of GPU `to` without the host: by PCI or by GPU links.
pub fn peers(system: &System, way: &Path, levels: Levels) -> Verdict {
    let kind = way.kind;
    match (kind, levels.peer) {
        (PathKind::Dis, _) => Verdict::No("no way leads there: they are on different hosts".to_owned()),
        (_, Some(level)) if kind > level => {
            Verdict::No(format!("{kind} is beyond NCCL_P2P_LEVEL={level}: data go through host memory"))
        }
        (PathKind::Nvb, _) => {
            let between = way.nodes[1..way.nodes.len() - 1]
                .iter()
                .find(|id| matches!(system.node(**id).kind, NodeKind::Gpu { .. }));
            let name = between.map_or_else(String::new, |id| system.name(*id));
            Verdict::Yes(format!("with the buffer on {name}, which both reach by their links"))
        }
        (_, Some(level)) => Verdict::Yes(format!("{kind} is within NCCL_P2P_LEVEL={level}")),
        (_, None) => Verdict::Yes(format!("by {kind}, where the driver allows it: NCCL_P2P_LEVEL is not set")),
    }
}

/// Whether the NIC at one end of `way` reads and writes the GPU's memory at the other (GPUDirect RDMA).
pub fn direct(system: &System, way: &Path, levels: Levels) -> Verdict {
    let ends = [way.nodes.first(), way.nodes.last()].into_iter().flatten();
    for end in ends {
        match &system.node(*end).kind {
            NodeKind::Gpu { gdr: false, .. } => {
                let why = "neither nvidia_peermem nor DMA-BUF, or gdr=\"0\" in a file";
                return Verdict::No(format!("NICs cannot reach this GPU's memory: {why}"));
            }
            NodeKind::Port { gdr: false, name, .. } => {
                let why = "no RDMA device, or gdr=\"0\" in a file";
                return Verdict::No(format!("{name} cannot reach memory of GPUs: {why}"));
            }
            _ => {}
        }
    }
    let level = levels.direct.unwrap_or(if way.kind == PathKind::P2c { PathKind::P2c } else { PathKind::Pxb });
    if way.kind <= level {
        Verdict::Yes(format!("{} is within NCCL_NET_GDR_LEVEL={level}", way.kind))
    } else {
        Verdict::No(format!("{} is beyond NCCL_NET_GDR_LEVEL={level}: data go through host memory", way.kind))
    }
}

/// Whether the receiver must have what a NIC wrote into the GPU's memory flushed before a kernel may read it: on GPUs
/// before capability 9.0, and where a coherent link lies between, since data and the word that announces them can come
/// by different ways there.
pub fn flush(system: &System, gpu: NodeId) -> Verdict {
    let coherent = system.links(gpu).iter().any(|link| link.kind == LinkKind::Coherent);
    match system.node(gpu).kind {
        _ if coherent => Verdict::Yes("its memory is reached by PCI and by the coherent link".to_owned()),
        NodeKind::Gpu { generation: GpuGeneration::Nvidia { capability: 90.. }, .. } => {
            Verdict::No("since capability 9.0 a NIC's writes are seen in order".to_owned())
        }
        _ => Verdict::Yes("before capability 9.0 a NIC's writes can be seen out of order".to_owned()),
    }
}

/// What is known of two devices, each fact with its name; the transport comes first.
pub fn verdicts(system: &System, from: NodeId, to: NodeId, levels: Levels) -> Vec<(&'static str, Verdict)> {
    let is_gpu = |id: NodeId| matches!(system.node(id).kind, NodeKind::Gpu { .. });
    let not_built = |what: &str| Verdict::No(format!("{what}: not built"));
    match (is_gpu(from), is_gpu(to)) {
        (true, true) => {
            let pair = Pair { from, to, denied: None };
            let peers = check_p2p(system, pair, levels);
            let mut said = vec![("transport", transport(system, pair, &peers)), ("peer access", peers.access)];
            if peers.read {
                said.push(("reading", Verdict::Yes("NVLink between GPUs of capability 8.0".to_owned())));
            }
            if system.node(from).host == system.node(to).host {
                said.push((
                    "NET in place of P2P",
                    match check_net(system, pair, false) {
                        Verdict::Yes(reason) => Verdict::No(format!("{reason}: NICs inside a host are not built")),
                        no @ Verdict::No(_) => no,
                    },
                ));
            }
            said.push(("NVLS", not_built("reductions in NVLink switches")));
            said
        }
        (true, false) => near_nic(system, from, to, levels),
        (false, true) => near_nic(system, to, from, levels),
        (false, false) => Vec::new(),
    }
}

fn near_nic(system: &System, gpu: NodeId, port: NodeId, levels: Levels) -> Vec<(&'static str, Verdict)> {
    let way = Paths::from(system, gpu).to(system, port);
    let access = direct(system, &way, levels);
    let mut said = vec![("GPUDirect RDMA", access.clone())];
    if access.is_yes() {
        said.push(("flush", flush(system, gpu)));
        said.push(("RDMA", Verdict::No("NET goes through sockets and host memory: verbs are not built".to_owned())));
    }
    let ways = Ways::new(system);
    let places = (ways.gpus.iter().position(|id| *id == gpu), ways.ports.iter().position(|id| *id == port));
    if let (Some(place), Some(at)) = places {
        let relay = ways.to_port(place, at).iter().skip(1).find(|id| ways.gpus.contains(id)).copied();
        said.push((
            "PXN",
            match relay {
                Some(by) => Verdict::Yes(format!("{} is near that NIC, and NVLink leads there", system.name(by))),
                None => Verdict::No("no other GPU has a nearer way to that NIC".to_owned()),
            },
        ));
    }
    said.push(("SHARP", Verdict::No("reductions in network switches: not built".to_owned())));
    said
}

fn transport(system: &System, pair: Pair<'_>, peers: &Peers) -> Verdict {
    let same_host = system.node(pair.from).host == system.node(pair.to).host;
    Verdict::Yes(match (&peers.access, same_host) {
        (Verdict::Yes(_), true) => "P2P: one reaches the other's memory".to_owned(),
        (Verdict::Yes(_), false) => "P2P: the hosts share NVLink switches".to_owned(),
        (Verdict::No(_), true) => "SHM: through memory of their host".to_owned(),
        (Verdict::No(_), false) => "NET: they are on different hosts".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topo::machines::{self, system};
    use crate::topo::xml;

    fn gpu(system: &System, number: u32) -> NodeId {
        let is = |id: &NodeId| matches!(system.node(*id).kind, NodeKind::Gpu { device, .. } if device == number);
        system.ids().find(is).unwrap()
    }

    fn pair(system: &System, from: u32, to: u32) -> Pair<'static> {
        Pair { from: gpu(system, from), to: gpu(system, to), denied: None }
    }

    fn between(machine: &str, from: u32, to: u32) -> (PathKind, Verdict) {
        let system = system(machine);
        let way = Paths::from(&system, gpu(&system, from)).to(&system, gpu(&system, to));
        (way.kind, peers(&system, &way, Levels::default()))
    }

    #[test]
    fn without_a_level_the_driver_decides() {
        for (machine, from, to, kind) in [("h100x8", 0, 7, PathKind::Nvl), ("a100bridge", 0, 4, PathKind::Sys)] {
            let found = between(machine, from, to);
            let words = format!("by {kind}, where the driver allows it: NCCL_P2P_LEVEL is not set");
            assert_eq!(found, (kind, Verdict::Yes(words)));
        }
    }

    #[test]
    fn links_reach_and_sockets_do_not() {
        let at = |machine: &str, to: u32| {
            let system = system(machine);
            let way = Paths::from(&system, gpu(&system, 0)).to(&system, gpu(&system, to));
            peers(&system, &way, Levels { peer: Some(PathKind::Pxb), direct: None })
        };
        assert_eq!(at("h100x8", 7), Verdict::Yes("NVL is within NCCL_P2P_LEVEL=PXB".to_owned()));
        let beyond = "SYS is beyond NCCL_P2P_LEVEL=PXB: data go through host memory";
        assert_eq!(at("a100bridge", 4), Verdict::No(beyond.to_owned()));
    }

    #[test]
    fn a_cube_mesh_has_a_gpu_between_those_without_a_link() {
        assert_eq!(between("dgx1v", 0, 2).0, PathKind::Nvl);
        let system = system("dgx1v");
        let found = check_p2p(&system, pair(&system, 0, 7), Levels::default());
        let relay = system.name(found.relay.unwrap());
        assert!(matches!(&found.access, Verdict::Yes(reason) if reason.contains(&relay)), "{found:?}");
        assert_eq!(check_p2p(&system, pair(&system, 0, 2), Levels::default()).relay, None);
    }

    #[test]
    fn levels_and_drivers_forbid() {
        let system = system("ndv4");
        let level = |peer| Levels { peer: Some(peer), direct: None };
        let at = |levels, denied| check_p2p(&system, Pair { denied, ..pair(&system, 0, 1) }, levels);
        let usual = at(Levels::default(), None);
        assert!(usual.access.is_yes() && usual.read);
        assert!(!at(level(PathKind::Loc), None).access.is_yes());
        let denied = at(Levels::default(), Some("NVML says CHIPSET_NOT_SUPPORTED"));
        assert_eq!(denied.access, Verdict::No("the driver forbids it: NVML says CHIPSET_NOT_SUPPORTED".to_owned()));
        assert!(!denied.read);
        // Hopper is written to, whatever the links.
        let hopper = machines::system("h100x8");
        assert!(!check_p2p(&hopper, pair(&hopper, 0, 1), Levels::default()).read);
    }

    #[test]
    fn hosts_of_one_clique_reach_each_other_and_others_do_not() {
        let rack = system("nvl72");
        let (first, last) = (rack.gpus()[0], rack.gpus()[71]);
        assert_ne!(rack.node(first).host, rack.node(last).host);
        let found = check_p2p(&rack, Pair { from: first, to: last, denied: None }, Levels::default());
        assert!(found.access.is_yes());
        let (machine, _) = xml::parse("h100x8", machines::text("h100x8")).unwrap();
        let two = System::new(&machine.repeated(2)).unwrap();
        let apart = Pair { from: two.gpus()[0], to: two.gpus()[8], denied: None };
        assert!(!check_p2p(&two, apart, Levels::default()).access.is_yes());
    }

    #[test]
    fn nics_serve_a_host_only_where_they_are_wider() {
        let bridged = system("a100bridge");
        assert!(check_net(&bridged, pair(&bridged, 0, 4), false).is_yes());
        assert_eq!(check_net(&bridged, pair(&bridged, 0, 4), true), Verdict::No("NCCL_NET_DISABLE_INTRA=1".to_owned()));
        let switched = system("h100x8");
        assert!(!check_net(&switched, pair(&switched, 0, 4), false).is_yes());
    }

    #[test]
    fn levels_have_words_and_numbers() {
        for (text, kind) in [("pxb", PathKind::Pxb), ("SYS", PathKind::Sys), ("0", PathKind::Loc), ("3", PathKind::Phb)]
        {
            assert_eq!(level("NCCL_P2P_LEVEL", text).unwrap(), kind);
        }
        for text in ["far", "6", "", "-1"] {
            let error = level("NCCL_P2P_LEVEL", text).unwrap_err();
            assert!(
                error.message().starts_with(&format!("NCCL_P2P_LEVEL={text:?} is not a distance; allowed: LOC, NVL"))
            );
        }
    }

    #[test]
    fn a_nic_of_the_same_switch_reaches_a_gpus_memory() {
        let system = system("h100x8");
        let ways = Paths::from(&system, system.gpus()[0]);
        let to = |port: usize, levels| direct(&system, &ways.to(&system, system.ports()[port]), levels);
        assert!(to(0, Levels::default()).is_yes());
        assert!(!to(1, Levels::default()).is_yes() && !to(7, Levels::default()).is_yes());
        assert!(to(7, Levels { peer: None, direct: Some(PathKind::Sys) }).is_yes());
        assert!(!to(0, Levels { peer: None, direct: Some(PathKind::Loc) }).is_yes());
    }

    #[test]
    fn writes_of_nics_are_flushed_before_hopper_and_beside_coherent_links() {
        let needs = |name: &str| flush(&system(name), system(name).gpus()[0]).is_yes();
        assert!(needs("ndv4") && !needs("h100x8") && needs("r4p3l"));
        let text = machines::text("h100x8").replace("<nvlink ", "<c2c bw=\"300000\" count=\"1\"/><nvlink ");
        let coherent = System::new(&xml::parse("c2c", &text).unwrap().0).unwrap();
        assert!(flush(&coherent, coherent.gpus()[0]).is_yes());
    }

    /// Two ports of one card share its PCI link.
    #[test]
    fn ports_of_a_card_share_its_link() {
        let text = r#"<system version="1"><cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="1" modelid="1">
            <pci busid="0000:01:00.0" class="0x060400" link_speed="16 GT/s" link_width="16">
            <pci busid="0000:02:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"><gpu dev="0" sm="80" gdr="1"/></pci>
            <pci busid="0000:03:00.0" class="0x020700" link_speed="16 GT/s" link_width="16"><nic>
              <net name="p0" dev="0" speed="200000" port="1" gdr="1"/><net name="p1" dev="1" speed="200000" port="2" gdr="1"/>
            </nic></pci></pci></cpu></system>"#;
        let (machine, _) = xml::parse("card", text).unwrap();
        let system = System::new(&machine.repeated(2)).unwrap();
        let found =
            crate::topo::search::between::search(&system, &[0, 1], crate::topo::search::between::CrossNic::IfBetter);
        // Two ports of 25 GB/s behind a link of 24.
        assert_eq!(found.unwrap().ring.total().gigabytes(), 24.0);
    }
}
