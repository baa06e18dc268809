//! Which devices reach each other's memory: each "no" comes with its reason.
//!
//! [`ladder`] is the way between two ranks, of communicators and tools alike; [`described`] has its facts from a graph.
//! Here are the levels of distance, and what stands between GPUs and NICs.

pub mod described;
pub mod ladder;

use crate::error::{Error, Result};
use crate::topo::bandwidth::GpuGeneration;
use crate::topo::paths::{Path, PathKind};
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

/// Whether the NIC at one end of `way` can read and write the GPU's memory at the other (GPUDirect RDMA). `level` is
/// how far apart they may be (`NCCL_NET_GDR_LEVEL`); `None`: several PCI bridges, or a coherent link and then PCI.
pub fn direct(system: &System, way: &Path, level: Option<PathKind>) -> Verdict {
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
    within(way.kind, level)
}

/// The same of a GPU and a NIC that are so far apart, and of which nothing else is against it.
pub fn within(kind: PathKind, level: Option<PathKind>) -> Verdict {
    let level = level.unwrap_or(if kind == PathKind::P2c { PathKind::P2c } else { PathKind::Pxb });
    if kind <= level {
        Verdict::Yes(format!("{kind} is within NCCL_NET_GDR_LEVEL={level}"))
    } else {
        Verdict::No(format!("{kind} is beyond NCCL_NET_GDR_LEVEL={level}: data go through host memory"))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topo::machines::{self, system};
    use crate::topo::paths::Paths;
    use crate::topo::xml;

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
        let to = |port: usize, level| direct(&system, &ways.to(&system, system.ports()[port]), level).is_yes();
        assert_eq!([to(0, None), to(1, None), to(7, None)], [true, false, false]);
        assert!(to(7, Some(PathKind::Sys)) && !to(0, Some(PathKind::Loc)));
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
