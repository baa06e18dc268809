//! A machine as a graph: what stands in it, and the links between.
//!
//! ```text
//!   GPU ──NVL── switch ──NVL── GPU        GPU ──PCI── bridge ──PCI── CPU ──SYS── CPU
//!                                         NIC ──PCI──┘                 NIC ──NET── port
//! ```

use std::collections::HashMap;

use crate::error::{Error, Result, shown};
use crate::topo::bandwidth::{self, Bandwidth, GpuGeneration, Processor};
use crate::topo::description::{self, Function, Machine, Pci};

/// A node, by its place among all nodes of its [`System`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

impl NodeId {
    /// As an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Something that links lead to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The host that it stands in, by its place in [`Machine::hosts`].
    pub host: u32,
    /// Its NUMA node there; of a switch, 0.
    pub numa: u32,
    /// Its PCI bus id, where it has one.
    pub bus_id: Option<String>,
    /// What it is.
    pub kind: NodeKind,
}

/// What a node is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeKind {
    /// A GPU.
    Gpu {
        /// Its number on the host.
        device: u32,
        /// The rank that has it.
        rank: Option<u32>,
        /// What it is.
        generation: GpuGeneration,
        /// Whether NICs can reach its memory.
        gdr: bool,
    },
    /// A PCI bridge or switch.
    Pci,
    /// All NVLink switches of a clique.
    Switch,
    /// A NUMA node.
    Cpu(Processor),
    /// A network card.
    Nic,
    /// A port of a card, with the network behind it.
    Port {
        /// What the system calls it.
        name: String,
        /// Its number on the host.
        device: u32,
        /// Whether it reaches memory of GPUs.
        gdr: bool,
        /// The rail that it is on.
        rail: Option<u32>,
    },
}

/// What a link is, in NCCL's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinkKind {
    /// NVLink or xGMI (NVL).
    NvLink,
    /// The coherent link between a GPU and its processor (C2C).
    Coherent,
    /// PCI Express (PCI).
    Pci,
    /// Between sockets or NUMA nodes (SYS).
    System,
    /// Between a card and one of its ports (NET).
    Network,
}

/// A link in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// Where it leads.
    pub to: NodeId,
    /// What it is.
    pub kind: LinkKind,
    /// What it carries in this direction.
    pub bandwidth: Bandwidth,
}

/// The graph of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct System {
    nodes: Vec<Node>,
    links: Vec<Vec<Link>>,
    hosts: u32,
}

impl System {
    /// The graph of `machine`.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] for links of GPUs to devices that the machine does not have.
    pub fn new(machine: &Machine) -> Result<System> {
        let mut system = System { nodes: Vec::new(), links: Vec::new(), hosts: 0 };
        let hosts = machine.hosts();
        system.hosts = u32::try_from(hosts.len()).unwrap_or(u32::MAX);
        let mut cpus: Vec<Vec<NodeId>> = vec![Vec::new(); hosts.len()];
        for cpu in &machine.cpus {
            let host = hosts.iter().position(|host| *host == cpu.host).unwrap_or_default();
            let place = Place { host: u32::try_from(host).unwrap_or(u32::MAX), numa: cpu.numa };
            let node = system.add(place, None, NodeKind::Cpu(cpu.processor));
            for other in &cpus[host] {
                // Not by `join`, which looks for a link between the two: there is none yet, and many pairs.
                let (kind, bandwidth) = (LinkKind::System, bandwidth::between_sockets(&cpu.processor));
                system.links[node.index()].push(Link { to: *other, kind, bandwidth });
                system.links[other.index()].push(Link { to: node, kind, bandwidth });
            }
            cpus[host].push(node);
            cpu.devices.iter().for_each(|device| system.add_pci(place, node, device));
            for nic in &cpu.nics {
                system.add_nic(place, None, (node, Bandwidth::LOCAL), nic);
            }
        }
        system.add_gpu_links(machine, &hosts)?;
        Ok(system)
    }

    fn add(&mut self, place: Place, bus_id: Option<&str>, kind: NodeKind) -> NodeId {
        let id = NodeId(u32::try_from(self.nodes.len()).expect("files have less than 2^32 devices"));
        let bus_id = bus_id.map(str::to_owned);
        self.nodes.push(Node { host: place.host, numa: place.numa, bus_id, kind });
        self.links.push(Vec::new());
        id
    }

    /// A link in each direction; more of it where there is one already.
    fn join(&mut self, one: NodeId, two: NodeId, kind: LinkKind, bandwidth: Bandwidth) {
        for (from, to) in [(one, two), (two, one)] {
            self.widen(from, to, kind, bandwidth);
        }
    }

    fn widen(&mut self, from: NodeId, to: NodeId, kind: LinkKind, bandwidth: Bandwidth) {
        let links = &mut self.links[from.index()];
        match links.iter_mut().find(|link| link.to == to && link.kind == kind) {
            Some(link) => link.bandwidth += bandwidth,
            None => links.push(Link { to, kind, bandwidth }),
        }
    }

    fn add_pci(&mut self, place: Place, above: NodeId, device: &Pci) {
        let width = device.width();
        let bus_id = Some(&*device.bus_id);
        let node = match &device.function {
            Function::Bridge => self.add(place, bus_id, NodeKind::Pci),
            Function::Nic(nic) => {
                let card = self.add_nic(place, bus_id, (above, width), nic);
                device.devices.iter().for_each(|below| self.add_pci(place, card, below));
                return;
            }
            Function::Gpu(gpu) => {
                let description::Gpu { device, rank, generation, gdr, .. } = *gpu;
                self.add(place, bus_id, NodeKind::Gpu { device, rank, generation, gdr })
            }
        };
        self.join(node, above, LinkKind::Pci, width);
        device.devices.iter().for_each(|below| self.add_pci(place, node, below));
    }

    fn add_nic(
        &mut self,
        place: Place,
        bus_id: Option<&str>,
        (above, width): (NodeId, Bandwidth),
        nic: &description::Nic,
    ) -> NodeId {
        let card = self.add(place, bus_id, NodeKind::Nic);
        self.join(card, above, LinkKind::Pci, width);
        for port in &nic.ports {
            let kind = NodeKind::Port { name: port.name.clone(), device: port.device, gdr: port.gdr, rail: port.rail };
            let node = self.add(place, None, kind);
            self.join(card, node, LinkKind::Network, Bandwidth::of_network(port.megabits));
        }
        card
    }

    /// Links between GPUs are told by both ends, so each end adds its own direction; those to a switch or a processor
    /// by the GPU alone.
    fn add_gpu_links(&mut self, machine: &Machine, hosts: &[u64]) -> Result<()> {
        let mut gpus: HashMap<(u32, &str), NodeId> = HashMap::new();
        for (id, node) in (0..).map(NodeId).zip(&self.nodes) {
            if let (NodeKind::Gpu { .. }, Some(bus_id)) = (&node.kind, &node.bus_id) {
                gpus.insert((node.host, bus_id), id);
            }
        }
        let gpus: HashMap<(u32, String), NodeId> =
            gpus.into_iter().map(|((host, bus_id), id)| ((host, bus_id.to_owned()), id)).collect();
        // What GPUs say of themselves, and what is known of their host, are numbers of two kinds.
        let mut switches: HashMap<(bool, u64), NodeId> = HashMap::new();
        for cpu in &machine.cpus {
            let host = hosts.iter().position(|host| *host == cpu.host).unwrap_or_default();
            let host = u32::try_from(host).unwrap_or(u32::MAX);
            let mut found = Vec::new();
            description::walk(&cpu.devices, &mut |device| {
                if let Function::Gpu(gpu) = &device.function {
                    found.push((device.bus_id.clone(), gpu));
                }
            });
            for (bus_id, gpu) in found {
                let from = gpus[&(host, bus_id.clone())];
                for link in &gpu.links {
                    let width = bandwidth::gpu_link(gpu.generation) * u64::from(link.count);
                    if link.target_class == SWITCH_CLASS {
                        let place = Place { host, numa: 0 };
                        let clique = gpu.clique.map_or((false, cpu.clique), |clique| (true, clique));
                        let switch = *switches.entry(clique).or_insert_with(|| self.add(place, None, NodeKind::Switch));
                        self.join(from, switch, LinkKind::NvLink, width);
                    } else if let Some(to) = gpus.get(&(host, link.target.clone())) {
                        self.widen(from, *to, LinkKind::NvLink, width);
                    } else if link.target_class >> 16 == BRIDGE_CLASS {
                        let to = self.cpu_of(from);
                        self.join(from, to, LinkKind::NvLink, width);
                    } else {
                        return Err(Error::invalid_argument(format!(
                            "GPU {} has links to {}, which is not a GPU of its host, a switch or a bridge",
                            shown(&bus_id),
                            shown(&link.target)
                        )));
                    }
                }
                if let Some((count, megabytes)) = gpu.c2c {
                    let to = self.cpu_of(from);
                    self.join(from, to, LinkKind::Coherent, Bandwidth(megabytes) * u64::from(count));
                }
            }
        }
        Ok(())
    }

    /// The NUMA node of a device.
    pub fn cpu_of(&self, device: NodeId) -> NodeId {
        let of = &self.nodes[device.index()];
        let is = |node: &Node| matches!(node.kind, NodeKind::Cpu(_)) && (node.host, node.numa) == (of.host, of.numa);
        self.ids().find(|id| is(self.node(*id))).unwrap_or(device)
    }

    /// All nodes, in the order of the description; switches come last.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..u32::try_from(self.nodes.len()).unwrap_or(u32::MAX)).map(NodeId)
    }

    /// What a node is.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// The links that leave a node.
    pub fn links(&self, id: NodeId) -> &[Link] {
        &self.links[id.index()]
    }

    /// How many hosts there are.
    pub fn hosts(&self) -> u32 {
        self.hosts
    }

    /// The devices that are joined by links, without the network: each host's, or those of hosts that share NVLink
    /// switches. In the order of their first devices.
    pub fn components(&self) -> Vec<Vec<NodeId>> {
        let mut seen = vec![false; self.nodes.len()];
        let mut components = Vec::new();
        for start in self.ids() {
            let mut found = Vec::new();
            let mut open = vec![start];
            while let Some(id) = open.pop() {
                if !std::mem::replace(&mut seen[id.index()], true) {
                    found.push(id);
                    open.extend(self.links[id.index()].iter().map(|link| link.to));
                }
            }
            if !found.is_empty() {
                found.sort_unstable();
                components.push(found);
            }
        }
        components
    }

    /// The graph of these nodes alone, the n-th of them as node n. It has no names, ranks and bus ids, and its hosts
    /// count from 0: equal hosts have equal parts.
    pub fn part(&self, nodes: &[NodeId]) -> System {
        let places: HashMap<NodeId, NodeId> = nodes.iter().copied().zip((0..).map(NodeId)).collect();
        let mut hosts: Vec<u32> = nodes.iter().map(|id| self.nodes[id.index()].host).collect();
        hosts.sort_unstable();
        hosts.dedup();
        let anonymous = |id: &NodeId| {
            let node = &self.nodes[id.index()];
            let kind = match &node.kind {
                NodeKind::Gpu { device, generation, gdr, .. } => {
                    NodeKind::Gpu { device: *device, rank: None, generation: *generation, gdr: *gdr }
                }
                NodeKind::Port { device, gdr, rail, .. } => {
                    NodeKind::Port { name: String::new(), device: *device, gdr: *gdr, rail: *rail }
                }
                other => other.clone(),
            };
            let host = hosts.binary_search(&node.host).unwrap_or_default();
            Node { host: u32::try_from(host).unwrap_or(u32::MAX), numa: node.numa, bus_id: None, kind }
        };
        let inside = |id: &NodeId| {
            let links = self.links[id.index()].iter();
            links.filter_map(|link| places.get(&link.to).map(|to| Link { to: *to, ..*link })).collect()
        };
        System {
            nodes: nodes.iter().map(anonymous).collect(),
            links: nodes.iter().map(inside).collect(),
            hosts: u32::try_from(hosts.len()).unwrap_or(u32::MAX),
        }
    }

    /// The GPUs, in the order of the description.
    pub fn gpus(&self) -> Vec<NodeId> {
        self.ids().filter(|id| matches!(self.node(*id).kind, NodeKind::Gpu { .. })).collect()
    }

    /// The ports of NICs, in the order of the description.
    pub fn ports(&self) -> Vec<NodeId> {
        self.ids().filter(|id| matches!(self.node(*id).kind, NodeKind::Port { .. })).collect()
    }

    /// What people call a node: `GPU 3`, `NIC m0`, `CPU 1`; with its host where there are several.
    pub fn name(&self, id: NodeId) -> String {
        let node = self.node(id);
        let name = match &node.kind {
            NodeKind::Gpu { device, .. } => format!("GPU {device}"),
            NodeKind::Pci => format!("PCI {}", node.bus_id.as_deref().unwrap_or("?")),
            NodeKind::Switch => "NVSwitch".to_owned(),
            NodeKind::Cpu(_) => format!("CPU {}", node.numa),
            NodeKind::Nic => format!("card {}", node.bus_id.as_deref().unwrap_or("?")),
            NodeKind::Port { name, device, .. } if name.is_empty() => format!("NIC {device}"),
            NodeKind::Port { name, .. } => format!("NIC {name}"),
        };
        if self.hosts > 1 { format!("host {} {name}", node.host) } else { name }
    }
}

/// Where nodes stand.
#[derive(Debug, Clone, Copy)]
struct Place {
    host: u32,
    numa: u32,
}

/// The PCI class of an NVLink switch.
pub const SWITCH_CLASS: u32 = 0x06_8000;
/// The PCI base class of bridges: an NVLink that leads to one ends at the processor (IBM Power).
pub const BRIDGE_CLASS: u32 = 0x06;
