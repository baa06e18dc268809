//! A domain: the devices that reach each other without the network. That is a host, or hosts that share NVLink
//! switches.
//!
//! A domain is searched in a copy of its own part of the graph. The copy has no names, so that equal hosts have equal
//! copies and the search runs once for all of them.

use std::cell::OnceCell;

use crate::topo::bandwidth::Bandwidth;
use crate::topo::paths::{Path, PathKind, Paths};
use crate::topo::search::{self, Inside};
use crate::topo::system::{NodeId, NodeKind, System};

/// One domain of a system.
#[derive(Debug, Clone)]
pub struct Domain {
    /// Its devices in the whole system; the n-th is node n of `part`.
    pub nodes: Vec<NodeId>,
    /// Its part of the graph, without names, ranks and bus ids.
    pub part: System,
}

impl Domain {
    /// The domains of a system that have GPUs, in the order of their first devices.
    pub fn all(system: &System) -> Vec<Domain> {
        let parts = system.components().into_iter().map(|nodes| Domain { part: system.part(&nodes), nodes });
        parts.filter(|domain| !domain.part.gpus().is_empty()).collect()
    }
}

/// The ways inside a domain between GPUs and from GPUs to NICs. GPUs and ports are named by their places here.
#[derive(Debug)]
pub struct Ways<'a> {
    /// The domain's part of the graph.
    pub system: &'a System,
    /// Its GPUs.
    pub gpus: Vec<NodeId>,
    /// Ports that work: a port without speed has no link, or nobody knows what it carries.
    pub ports: Vec<NodeId>,
    /// The rail of each port.
    pub rails: Vec<Option<u32>>,
    /// From each GPU to each GPU.
    peers: Vec<Path>,
    /// From each GPU to each port, with the kind that NCCL gives it.
    to_ports: Vec<(Vec<NodeId>, PathKind, Bandwidth)>,
    /// For each port the GPUs that are nearest to it.
    near: Vec<Vec<usize>>,
    rings: OnceCell<Option<Inside>>,
}

impl<'a> Ways<'a> {
    /// The ways of a domain's part of the graph.
    pub fn new(system: &'a System) -> Ways<'a> {
        let gpus = system.gpus();
        let works = |id: &NodeId| system.links(*id).iter().any(|link| link.bandwidth.0 > 0);
        let ports: Vec<NodeId> = system.ports().into_iter().filter(works).collect();
        let rail = |id: &NodeId| match system.node(*id).kind {
            NodeKind::Port { rail, .. } => rail,
            _ => None,
        };
        let paths: Vec<Paths> = gpus.iter().map(|gpu| Paths::from(system, *gpu)).collect();
        let peers = paths.iter().flat_map(|paths| gpus.iter().map(|to| paths.to(system, *to))).collect();
        let rails = ports.iter().map(rail).collect();
        let (to_ports, near, rings) = (Vec::new(), Vec::new(), OnceCell::new());
        let mut ways = Ways { system, gpus, ports, rails, peers, to_ports, near, rings };
        ways.find_ports(&paths);
        ways
    }

    fn find_ports(&mut self, paths: &[Paths]) {
        let (gpus, ports) = (self.gpus.len(), self.ports.len());
        let hosts: Vec<Paths> =
            self.gpus.iter().map(|gpu| Paths::from(self.system, self.system.cpu_of(*gpu))).collect();
        let direct: Vec<(Path, bool)> = (0..gpus)
            .flat_map(|gpu| self.ports.iter().map(move |port| (gpu, *port)))
            .map(|(gpu, port)| self.direct_or_through_host(&paths[gpu], &hosts[gpu], port))
            .collect();
        for gpu in 0..gpus {
            for port in 0..ports {
                let (own, direct_access) = &direct[gpu * ports + port];
                let relay = |by: &usize| {
                    let (way, direct_access) = &direct[by * ports + port];
                    *direct_access
                        && way.kind <= PathKind::Pxb
                        && matches!(self.peer(gpu, *by).kind, PathKind::Nvl)
                        && *by != gpu
                };
                let by_peer = (0..gpus).filter(relay).min_by_key(|by| (direct[by * ports + port].0.kind, *by));
                let way = match by_peer {
                    Some(by) if !direct_access || own.kind > PathKind::Pxb => {
                        let mut nodes = self.peer(gpu, by).nodes.clone();
                        nodes.extend(&direct[by * ports + port].0.nodes[1..]);
                        let width = self.peer(gpu, by).bandwidth.min(direct[by * ports + port].0.bandwidth);
                        (nodes, PathKind::Pxn, width)
                    }
                    _ => (own.nodes.clone(), own.kind, own.bandwidth),
                };
                self.to_ports.push(way);
            }
        }
        let rank = |gpu: usize, port: usize| {
            let (_, kind, width) = &self.to_ports[gpu * ports + port];
            (*kind, std::cmp::Reverse(*width))
        };
        let nearest = |port: usize| {
            let best = (0..gpus).map(|gpu| rank(gpu, port)).min();
            (0..gpus).filter(|gpu| Some(rank(*gpu, port)) == best).collect()
        };
        self.near = (0..ports).map(nearest).collect();
    }

    /// The way of a GPU to a port, and whether the NIC reaches the GPU's memory on it. If not, data go through host
    /// memory.
    fn direct_or_through_host(&self, gpu: &Paths, host: &Paths, port: NodeId) -> (Path, bool) {
        let way = gpu.to(self.system, port);
        let refuses = |id: &NodeId| {
            matches!(self.system.node(*id).kind, NodeKind::Gpu { gdr: false, .. } | NodeKind::Port { gdr: false, .. })
        };
        let refused = [way.nodes.first(), way.nodes.last()].into_iter().flatten().any(refuses);
        if !refused || way.kind > PathKind::Pxb {
            return (way, !refused);
        }
        let Some(start) = way.nodes.first() else { return (way, false) };
        let memory = self.system.cpu_of(*start);
        let (up, down) = (gpu.to(self.system, memory), host.to(self.system, port));
        let mut nodes = up.nodes;
        nodes.extend(down.nodes.iter().skip(1));
        (Path { nodes, kind: PathKind::Phb.max(down.kind), bandwidth: up.bandwidth.min(down.bandwidth) }, false)
    }

    /// From each GPU to each GPU.
    pub fn peers(&self) -> &[Path] {
        &self.peers
    }

    /// The way from one GPU to another.
    pub fn peer(&self, from: usize, to: usize) -> &Path {
        &self.peers[from * self.gpus.len() + to]
    }

    /// The devices between a GPU and a port.
    pub fn to_port(&self, gpu: usize, port: usize) -> &[NodeId] {
        &self.to_ports[gpu * self.ports.len() + port].0
    }

    /// The GPUs that are nearest to a port.
    pub fn near(&self, port: usize) -> &[usize] {
        &self.near[port]
    }

    /// What a port carries.
    pub fn port_width(&self, port: usize) -> Bandwidth {
        let widest = |gpu: &usize| self.to_ports[gpu * self.ports.len() + port].2;
        self.near[port].iter().map(widest).max().unwrap_or_default()
    }

    /// The rings inside the domain that a simple pattern finds.
    pub fn rings(&self) -> Option<&Inside> {
        self.rings.get_or_init(|| search::simple_rings(self.system, &self.gpus, &self.peers)).as_ref()
    }
}
