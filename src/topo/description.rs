//! What is known of a machine before it is a graph: the tree of its PCI devices, with GPUs, their links, and NICs.
//!
//! NCCL's topology files say the same, so that [`super::xml`] reads and writes one for the other. Fields hold what was
//! said, not what follows from it: an unknown speed stays unknown here, and [`super::system::System`] assumes the usual
//! one and says so.

use crate::topo::bandwidth::{self, Bandwidth, GpuGeneration, PciSpeed, Processor};

/// One or several hosts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Machine {
    /// NUMA nodes, each with the PCI devices below its root.
    pub cpus: Vec<Cpu>,
}

/// A NUMA node of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cpu {
    /// Which host it belongs to: equal for all NUMA nodes of one.
    pub host: u64,
    /// Which NVLink switches its GPUs hang on: equal for hosts whose GPUs reach each other through them.
    pub clique: u64,
    /// Its number on the host.
    pub numa: u32,
    /// Which of its host's processors are its own, as sysfs writes it.
    pub affinity: String,
    /// What it is.
    pub processor: Processor,
    /// As the file or CPUID gave it: architecture, vendor, family, model.
    pub identity: [String; 4],
    /// What of its memory, cores and caches is known; NCCL's files have no place for it.
    pub details: ProcessorDetails,
    /// What hangs below its PCI root.
    pub devices: Vec<Pci>,
    /// NICs whose PCI device nobody knows.
    pub nics: Vec<Nic>,
}

/// Memory, cores and caches of a NUMA node, for people.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProcessorDetails {
    /// The socket that it belongs to.
    pub package: Option<u32>,
    /// Its memory; 0 where unknown.
    pub memory_bytes: u64,
    /// Its cores; 0 where unknown.
    pub cores: u32,
    /// Its caches of data, the largest first.
    pub caches: Vec<CpuCaches>,
}

/// Caches of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuCaches {
    /// 1 to 4.
    pub level: u32,
    /// Of each.
    pub bytes: u64,
    /// How many there are.
    pub count: u32,
}

/// A PCI device: a bridge, a GPU or a NIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pci {
    /// Domain, bus, device and function: `0000:3b:00.0`.
    pub bus_id: String,
    /// The class code, 0x030200 for a 3D controller; 0 where unknown.
    pub class: u32,
    /// Vendor, device, subsystem vendor and subsystem device, as written; empty where unknown.
    pub ids: [String; 4],
    /// The speed of the link to what stands above; `None` where unknown.
    pub speed: Option<PciSpeed>,
    /// Lanes of that link; 0 where unknown.
    pub lanes: u32,
    /// What it carries, where it is no bridge.
    pub function: Function,
    /// What hangs below it, where it is a bridge.
    pub devices: Vec<Pci>,
}

impl Pci {
    /// Its lanes; where nobody says how many there are, those of a GPU or a fast NIC.
    pub const fn usual_lanes(&self) -> u32 {
        if self.lanes == 0 { 16 } else { self.lanes }
    }

    /// What its link carries; one of unknown speed is taken for PCIe 3.
    pub fn width(&self) -> Bandwidth {
        bandwidth::pci(self.speed.unwrap_or(PciSpeed::Gen3), self.usual_lanes())
    }
}

/// What a PCI device is to us.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Function {
    /// A bridge or a switch, or something that plays no part.
    #[default]
    Bridge,
    /// A GPU.
    Gpu(Gpu),
    /// A NIC.
    Nic(Nic),
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Its number on the host.
    pub device: u32,
    /// The rank that has it, where one has.
    pub rank: Option<u32>,
    /// What it is.
    pub generation: GpuGeneration,
    /// Whether NICs can reach its memory.
    pub gdr: bool,
    /// Its NVLinks or xGMI links, by what they lead to.
    pub links: Vec<GpuLink>,
    /// Its coherent link to the processor, where it has one: links and MB/s of each.
    pub c2c: Option<(u32, u64)>,
    /// The NVLink clique that it says it is in, made of the cluster's UUID and the clique's number: equal for GPUs
    /// whose switches are joined, in one host or several. In its place counts [`Cpu::clique`] where it says none.
    pub clique: Option<u64>,
}

impl Gpu {
    /// Whether nobody has told what it is, nor its links.
    pub fn is_unknown(&self) -> bool {
        let unknown =
            matches!(self.generation, GpuGeneration::Nvidia { capability: 0 } | GpuGeneration::Amd { gfx: 0 });
        unknown && self.links.is_empty()
    }
}

/// Links of a GPU to one other device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuLink {
    /// The bus id of the other device.
    pub target: String,
    /// The class of the other device: a GPU, an NVLink switch (0x068000), or a bridge of the processor.
    pub target_class: u32,
    /// How many links.
    pub count: u32,
}

/// A network card: its ports share its PCI link.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Nic {
    /// Its ports.
    pub ports: Vec<Port>,
}

/// A port of a network card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// What the system calls it.
    pub name: String,
    /// Its number on the host.
    pub device: u32,
    /// Mbit/s.
    pub megabits: u64,
    /// Its number on the card.
    pub port: u32,
    /// An id that no other card has; ports of one card share it.
    pub guid: u64,
    /// Connections that it can have.
    pub connections: u32,
    /// Whether it reaches memory of GPUs.
    pub gdr: bool,
    /// The rail that it is on, where that is known: ports of one rail reach each other.
    pub rail: Option<u32>,
    /// µs of latency that the network adds, as written; empty where unknown.
    pub latency: String,
}

impl Machine {
    /// Every GPU, in the order of the description.
    pub fn gpus(&self) -> Vec<&Gpu> {
        let mut found = Vec::new();
        for cpu in &self.cpus {
            walk(&cpu.devices, &mut |device| {
                if let Function::Gpu(gpu) = &device.function {
                    found.push(gpu);
                }
            });
        }
        found
    }

    /// The hosts, in the order of the description.
    pub fn hosts(&self) -> Vec<u64> {
        let mut hosts: Vec<u64> = Vec::new();
        for cpu in &self.cpus {
            if !hosts.contains(&cpu.host) {
                hosts.push(cpu.host);
            }
        }
        hosts
    }

    /// Whether it has neither GPUs nor NICs, nor anything else that is plugged in.
    pub fn has_processors_alone(&self) -> bool {
        self.cpus.iter().all(|cpu| cpu.devices.is_empty() && cpu.nics.is_empty())
    }

    /// The NUMA node of the first host to which all of these processors belong; `None` where there is none, or no
    /// processor.
    pub fn node_of(&self, processors: &[u32]) -> Option<u32> {
        let first = self.cpus.first()?.host;
        let mut nodes = self.cpus.iter().filter(|cpu| cpu.host == first);
        let has_all = |cpu: &Cpu| !processors.is_empty() && processors.iter().all(|processor| cpu.has(*processor));
        nodes.find(|cpu| has_all(cpu)).map(|cpu| cpu.numa)
    }

    /// These machines as one, with their hosts in this order. NVLink switches of two machines are joined where GPUs of
    /// both say that they are in one clique, and nowhere else.
    pub fn joined(machines: Vec<Machine>) -> Machine {
        let mut cpus = Vec::new();
        let mut hosts = 0;
        for (machine, place) in machines.into_iter().zip(0..) {
            let of_one = machine.hosts();
            for mut cpu in machine.cpus {
                cpu.clique = place;
                cpu.host = hosts + of_one.iter().position(|host| *host == cpu.host).map_or(0, |place| place as u64) + 1;
                cpus.push(cpu);
            }
            hosts += of_one.len() as u64;
        }
        Machine { cpus }
    }

    /// What several ranks of one host see of it, as one: where each sees its own GPUs alone, all GPUs are there. Of
    /// what two of them tell differently the first counts, but a GPU is told by whom NVML has shown it.
    pub fn fused(machines: impl IntoIterator<Item = Machine>) -> Machine {
        let mut fused = Machine::default();
        for cpu in machines.into_iter().flat_map(|machine| machine.cpus) {
            match fused.cpus.iter_mut().find(|known| known.numa == cpu.numa) {
                Some(known) => fuse(&mut known.devices, cpu.devices),
                None => fused.cpus.push(cpu),
            }
        }
        let mut next = 0;
        for cpu in &mut fused.cpus {
            walk_mut(&mut cpu.devices, &mut |device| {
                if let Function::Gpu(gpu) = &mut device.function {
                    gpu.device = next;
                    next += 1;
                }
            });
        }
        fused
    }

    /// Takes away the GPUs for which `keeps` is false, and the links to them: nobody passes data on there.
    pub fn keep_gpus(&mut self, mut keeps: impl FnMut(&str) -> bool) {
        let mut gone: Vec<String> = Vec::new();
        for cpu in &mut self.cpus {
            walk_mut(&mut cpu.devices, &mut |device| {
                if matches!(device.function, Function::Gpu(_)) && !keeps(&device.bus_id) {
                    device.function = Function::Bridge;
                    gone.push(device.bus_id.clone());
                }
            });
        }
        for cpu in &mut self.cpus {
            walk_mut(&mut cpu.devices, &mut |device| {
                if let Function::Gpu(gpu) = &mut device.function {
                    gpu.links.retain(|link| !gone.contains(&link.target));
                }
            });
        }
    }

    /// As many hosts, each equal to this machine.
    pub fn repeated(&self, hosts: u32) -> Machine {
        let of_one = self.hosts();
        let ranks = u32::try_from(self.gpus().len()).unwrap_or(u32::MAX);
        let mut cpus = Vec::new();
        for copy in 0..hosts {
            for cpu in &self.cpus {
                let mut cpu = cpu.clone();
                let place = of_one.iter().position(|host| *host == cpu.host).unwrap_or(0);
                cpu.clique = u64::from(copy);
                cpu.host = u64::from(copy) * of_one.len() as u64 + place as u64 + 1;
                walk_mut(&mut cpu.devices, &mut |device| {
                    let Function::Gpu(gpu) = &mut device.function else { return };
                    let next = |rank: u32| rank.checked_add(copy.checked_mul(ranks)?);
                    gpu.rank = gpu.rank.and_then(next);
                    gpu.clique = gpu.clique.map(|clique| clique.wrapping_add(u64::from(copy)));
                });
                cpus.push(cpu);
            }
        }
        Machine { cpus }
    }
}

impl Cpu {
    /// Whether a processor is in the mask of its own: hexadecimal digits, highest first, with commas between groups.
    fn has(&self, processor: u32) -> bool {
        let mut digits = self.affinity.chars().rev().filter(char::is_ascii_hexdigit);
        let digit = usize::try_from(processor / 4).ok().and_then(|place| digits.nth(place)?.to_digit(16));
        digit.is_some_and(|digit| digit >> (processor % 4) & 1 == 1)
    }
}

/// Adds devices to those that are known already. Where several of both have one bus id, as place-holders of clouds do,
/// the n-th of `more` is taken for the n-th that is known.
fn fuse(known: &mut Vec<Pci>, more: Vec<Pci>) {
    let mut seen: Vec<String> = Vec::with_capacity(more.len());
    for device in more {
        let before = seen.iter().filter(|bus_id| **bus_id == device.bus_id).count();
        seen.push(device.bus_id.clone());
        let Some(same) = known.iter_mut().filter(|known| known.bus_id == device.bus_id).nth(before) else {
            known.push(device);
            continue;
        };
        let knows_more = match (&same.function, &device.function) {
            (Function::Gpu(known), Function::Gpu(gpu)) => known.links.is_empty() && !gpu.links.is_empty(),
            (Function::Bridge, Function::Gpu(_) | Function::Nic(_)) => same.devices.is_empty(),
            _ => false,
        };
        if knows_more {
            same.function = device.function;
        }
        fuse(&mut same.devices, device.devices);
    }
}

/// Calls `each` for every device of the trees, a bridge before what hangs below it.
pub fn walk<'a>(devices: &'a [Pci], each: &mut impl FnMut(&'a Pci)) {
    for device in devices {
        each(device);
        walk(&device.devices, each);
    }
}

/// As [`walk`], for changes.
pub fn walk_mut(devices: &mut [Pci], each: &mut impl FnMut(&mut Pci)) {
    for device in devices {
        each(device);
        walk_mut(&mut device.devices, each);
    }
}
