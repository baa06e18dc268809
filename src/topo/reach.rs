//! Which devices reach each other's memory, by how far they are apart: a "no" comes with its reason.

use crate::topo::bandwidth::Processor;
use crate::topo::paths::{Path, PathKind, Paths};
use crate::topo::system::{NodeId, NodeKind, System};

/// An answer, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It can.
    Yes(String),
    /// It cannot.
    No(String),
}

/// How far apart two devices may be for each way to reach memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Levels {
    /// Between GPUs (`NCCL_P2P_LEVEL`); `None`: several PCI bridges, and with two GPUs on AMD processors any way.
    pub peer: Option<PathKind>,
    /// Between a GPU and a NIC (`NCCL_NET_GDR_LEVEL`).
    pub direct: PathKind,
}

impl Default for Levels {
    fn default() -> Levels {
        Levels { peer: None, direct: PathKind::Pxb }
    }
}

/// Whether GPU `from` reaches the memory of GPU `to` without the host: by PCI or by GPU links. What drivers and containers forbid is
/// not seen here.
pub fn peers(system: &System, way: &Path, levels: Levels) -> Verdict {
    let (kind, level) = (way.kind, levels.peer.unwrap_or_else(|| usual_level(system)));
    match kind {
        PathKind::Dis => Verdict::No("no way leads there: they are on different hosts".to_owned()),
        PathKind::Nvb => {
            let between = way.nodes[1..way.nodes.len() - 1]
                .iter()
                .find(|id| matches!(system.node(**id).kind, NodeKind::Gpu { .. }));
            let name = between.map_or_else(String::new, |id| system.name(*id));
            Verdict::Yes(format!("with the buffer on {name}, which both reach by their links"))
        }
        _ if kind <= level => Verdict::Yes(format!("{kind} is within NCCL_P2P_LEVEL={level}")),
        _ => Verdict::No(format!("{kind} is beyond NCCL_P2P_LEVEL={level}: data go through host memory")),
    }
}

/// Roots of AMD's processors pass peer traffic on well, as long as two GPUs alone share them.
fn usual_level(system: &System) -> PathKind {
    let amd = system.ids().any(|id| matches!(system.node(id).kind, NodeKind::Cpu(Processor::Amd)));
    if amd && system.gpus().len() <= 2 { PathKind::Sys } else { PathKind::Pxb }
}

/// Whether the NIC at one end of `way` reads and writes the GPU's memory at the other (GPUDirect RDMA).
pub fn direct(system: &System, way: &Path, levels: Levels) -> Verdict {
    let ends = [way.nodes.first(), way.nodes.last()].into_iter().flatten();
    for end in ends {
        match &system.node(*end).kind {
            NodeKind::Gpu { gdr: false, .. } => {
                return Verdict::No("NICs cannot reach this GPU's memory (gdr=\"0\")".to_owned());
            }
            NodeKind::Port { gdr: false, name, .. } => {
                return Verdict::No(format!("{name} cannot reach memory of GPUs (gdr=\"0\")"));
            }
            _ => {}
        }
    }
    if way.kind <= levels.direct {
        Verdict::Yes(format!("{} is within NCCL_NET_GDR_LEVEL={}", way.kind, levels.direct))
    } else {
        Verdict::No(format!("{} is beyond NCCL_NET_GDR_LEVEL={}: data go through host memory", way.kind, levels.direct))
    }
}

/// What there is to say of two devices, each with its name.
pub fn verdicts(system: &System, from: NodeId, to: NodeId) -> Vec<(&'static str, Verdict)> {
    let way = Paths::from(system, from).to(system, to);
    let is_gpu = |id: NodeId| matches!(system.node(id).kind, NodeKind::Gpu { .. });
    let levels = Levels::default();
    match (is_gpu(from), is_gpu(to)) {
        (true, true) => {
            vec![("peer access", peers(system, &way, levels)), ("NVLS", Verdict::No("not built".to_owned()))]
        }
        (true, false) | (false, true) => vec![("GPUDirect RDMA", direct(system, &way, levels))],
        (false, false) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topo::machines::system;

    fn between(machine: &str, from: u32, to: u32) -> (PathKind, Verdict) {
        let system = system(machine);
        let gpu = |number| {
            let is = |id: &NodeId| matches!(system.node(*id).kind, NodeKind::Gpu { device, .. } if device == number);
            system.ids().find(is).unwrap()
        };
        let way = Paths::from(&system, gpu(from)).to(&system, gpu(to));
        (way.kind, peers(&system, &way, Levels::default()))
    }

    #[test]
    fn links_reach_and_sockets_do_not() {
        let (kind, verdict) = between("h100x8", 0, 7);
        assert_eq!((kind, verdict), (PathKind::Nvl, Verdict::Yes("NVL is within NCCL_P2P_LEVEL=PXB".to_owned())));
        let (kind, verdict) = between("a100bridge", 0, 4);
        assert_eq!(kind, PathKind::Sys);
        assert_eq!(verdict, Verdict::No("SYS is beyond NCCL_P2P_LEVEL=PXB: data go through host memory".to_owned()));
    }

    #[test]
    fn a_cube_mesh_has_a_gpu_between_those_without_a_link() {
        assert_eq!(between("dgx1v", 0, 2).0, PathKind::Nvl);
        let (kind, verdict) = between("dgx1v", 0, 7);
        assert_eq!(kind, PathKind::Nvb);
        assert!(
            matches!(&verdict, Verdict::Yes(reason) if reason.contains("GPU 3") || reason.contains("GPU 4")),
            "{verdict:?}"
        );
    }

    #[test]
    fn a_nic_of_the_same_switch_reaches_a_gpus_memory() {
        let system = system("h100x8");
        let ways = Paths::from(&system, system.gpus()[0]);
        let to = |port: usize| direct(&system, &ways.to(&system, system.ports()[port]), Levels::default());
        assert!(matches!(to(0), Verdict::Yes(_)));
        assert!(matches!(to(1), Verdict::No(_)) && matches!(to(7), Verdict::No(_)));
    }
}
