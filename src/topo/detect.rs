//! Describes a machine from what sysfs shows of its host. Links and capability of GPUs, which NVML knows, are added
//! afterwards.

use crate::topo::bandwidth::{GpuGeneration, PciSpeed};
use crate::topo::description::{Cpu, Function, Gpu, GpuLink, Machine, Nic, Pci, Port, walk_mut};
use crate::topo::system::SWITCH_CLASS;
use crate::topo::xml;

/// A PCI device as sysfs shows it: see `sys::devices`.
#[derive(Debug, Clone, Default)]
pub struct Device<'a> {
    /// The bus ids from the root port down to the device itself.
    pub path: &'a [String],
    /// Class, vendor, device, subsystem's vendor, subsystem.
    pub texts: [&'a str; 5],
    /// Speed and width of its link.
    pub link: [&'a str; 2],
    /// Its NUMA node.
    pub numa: Option<u32>,
    /// Names and Mbit/s of its network ports.
    pub networks: &'a [(String, Option<u64>)],
}

/// The host with these NUMA nodes (number and mask of processors) and devices. Devices that are neither GPU nor NIC,
/// and bridges with neither below them, are left out. The notes say what sysfs cannot tell.
pub fn host(
    architecture: &str,
    processor: [&str; 3],
    nodes: &[(u32, &str)],
    devices: &[Device<'_>],
) -> (Machine, Vec<String>) {
    let mut notes = Vec::new();
    let mut machine = Machine::default();
    let identity = [architecture, processor[0], processor[1], processor[2]].map(str::to_owned);
    for (number, cpus) in nodes {
        machine.cpus.push(Cpu {
            host: 0,
            clique: 0,
            numa: *number,
            affinity: (*cpus).to_owned(),
            processor: xml::processor(&identity, processor[2].parse().unwrap_or(0)),
            identity: identity.clone(),
            devices: Vec::new(),
            nics: Vec::new(),
        });
    }
    let (mut gpus, mut ports) = (0, 0);
    for device in devices {
        let Some(function) = function(device, &mut gpus, &mut ports, &mut notes) else { continue };
        let node = device.numa.and_then(|numa| machine.cpus.iter().position(|cpu| cpu.numa == numa)).unwrap_or(0);
        if let Some(cpu) = machine.cpus.get_mut(node) {
            place(&mut cpu.devices, device.path, devices, function);
        }
    }
    (machine, notes)
}

/// A GPU as NVML describes it: see `sys::nvml`.
#[derive(Debug, Clone, Copy)]
pub struct NvidiaGpu<'a> {
    /// Where it is plugged in.
    pub bus_id: &'a str,
    /// 80 for 8.0.
    pub capability: u32,
    /// Generation and lanes of its PCI Express link.
    pub pcie: Option<(u32, u32)>,
    /// For each NVLink that is up, the bus id of what it leads to.
    pub links: &'a [String],
}

/// Adds what NVML tells to what sysfs shows: capability and links. A GPU that sysfs does not show (on a virtual machine
/// of GPUs, or in a container) comes below the first NUMA node. A link that leads to no GPU leads to an NVLink switch.
pub fn add_nvidia(machine: &mut Machine, gpus: &[NvidiaGpu<'_>]) {
    for told in gpus {
        let mut links: Vec<GpuLink> = Vec::new();
        for remote in told.links {
            let (target, target_class) = if gpus.iter().any(|gpu| gpu.bus_id == *remote) {
                (&**remote, GPU_CLASS)
            } else {
                (SWITCHES, SWITCH_CLASS)
            };
            match links.iter_mut().find(|link| link.target == target) {
                Some(link) => link.count += 1,
                None => links.push(GpuLink { target: target.to_owned(), target_class, count: 1 }),
            }
        }
        let generation = GpuGeneration::Nvidia { capability: told.capability };
        let mut known = false;
        for cpu in &mut machine.cpus {
            walk_mut(&mut cpu.devices, &mut |device| {
                if let Function::Gpu(gpu) = &mut device.function
                    && device.bus_id == told.bus_id
                {
                    (gpu.generation, gpu.links) = (generation, std::mem::take(&mut links));
                    known = true;
                }
            });
        }
        let device = u32::try_from(machine.gpus().len()).unwrap_or(u32::MAX);
        if let (false, Some(cpu)) = (known, machine.cpus.first_mut()) {
            cpu.devices.push(Pci {
                bus_id: told.bus_id.to_owned(),
                class: GPU_CLASS,
                ids: std::array::from_fn(|_| String::new()),
                speed: told.pcie.and_then(|(generation, _)| PciSpeed::of_generation(generation)),
                lanes: told.pcie.map_or(0, |(_, lanes)| lanes),
                function: Function::Gpu(Gpu { device, rank: None, generation, gdr: false, links, c2c: None }),
                devices: Vec::new(),
            });
        }
    }
}

/// The bus id that stands for all NVLink switches, as in NCCL's files.
pub const SWITCHES: &str = "0000:00:00.0";
/// The class of a GPU without a display.
pub const GPU_CLASS: u32 = 0x03_0200;

fn function(device: &Device<'_>, gpus: &mut u32, ports: &mut u32, notes: &mut Vec<String>) -> Option<Function> {
    let class = number(device.texts[0]);
    let bus_id = device.path.last()?;
    match (class >> 8, device.texts[1]) {
        (0x0300 | 0x0302, "0x10de") => {
            notes.push(format!(
                "{bus_id}: its compute capability and its NVLinks are not in sysfs: only its PCI link is known"
            ));
            *gpus += 1;
            let generation = GpuGeneration::Nvidia { capability: 0 };
            Some(Function::Gpu(Gpu {
                device: *gpus - 1,
                rank: None,
                generation,
                gdr: false,
                links: Vec::new(),
                c2c: None,
            }))
        }
        _ if !device.networks.is_empty() => {
            let port = |(name, megabits): &(String, Option<u64>)| {
                if megabits.is_none() {
                    notes.push(format!("{name}: its speed is not known: {USUAL_MEGABITS} Mbit/s are assumed"));
                }
                *ports += 1;
                Port {
                    name: name.clone(),
                    device: *ports - 1,
                    megabits: megabits.unwrap_or(USUAL_MEGABITS),
                    port: 1,
                    guid: 0,
                    connections: 0,
                    gdr: false,
                    rail: None,
                    latency: String::new(),
                }
            };
            Some(Function::Nic(Nic { ports: device.networks.iter().map(port).collect() }))
        }
        _ => None,
    }
}

/// Puts a device below its bridges, which are made where they do not stand there yet.
fn place(into: &mut Vec<Pci>, path: &[String], all: &[Device<'_>], function: Function) {
    let mut level = into;
    for depth in 0..path.len() {
        let bus_id = &path[depth];
        let at = level.iter().position(|pci| pci.bus_id == *bus_id).unwrap_or_else(|| {
            let known = all.iter().find(|device| device.path.last() == Some(bus_id));
            let [class, ids @ ..] = known.map_or([""; 5], |device| device.texts);
            let [speed, lanes] = known.map_or([""; 2], |device| device.link);
            level.push(Pci {
                bus_id: bus_id.clone(),
                class: number(class),
                ids: ids.map(str::to_owned),
                speed: PciSpeed::parse(speed),
                lanes: lanes.parse().unwrap_or(0),
                function: Function::Bridge,
                devices: Vec::new(),
            });
            level.len() - 1
        });
        if depth + 1 == path.len() {
            level[at].function = function;
            return;
        }
        level = &mut level[at].devices;
    }
}

fn number(text: &str) -> u32 {
    u32::from_str_radix(text.trim_start_matches("0x"), 16).unwrap_or(0)
}

/// The speed that is assumed for a network port of unknown speed: that of a virtual port, 10 Gbit/s.
const USUAL_MEGABITS: u64 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topo::paths::{PathKind, Paths};
    use crate::topo::system::System;

    #[test]
    fn a_gpu_and_a_nic_below_one_switch_are_near() {
        let path = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
        let paths = [
            path(&["0000:00:01.0"]),
            path(&["0000:00:01.0", "0000:01:00.0", "0000:02:00.0"]),
            path(&["0000:00:01.0", "0000:01:00.0", "0000:03:00.0"]),
            path(&["0000:80:01.0", "0000:81:00.0"]),
        ];
        let networks = [("mlx5_0".to_owned(), Some(400_000)), ("eth0".to_owned(), None)];
        let gpu = ["0x030200", "0x10de", "0x2330", "", ""];
        let nic = ["0x020700", "0x15b3", "0x1021", "", ""];
        let link = ["32.0 GT/s PCIe", "16"];
        let device = |path, texts, numa| Device { path, texts, link, numa: Some(numa), networks: &[] };
        let devices = [
            device(&paths[0], ["0x060400", "", "", "", ""], 0),
            device(&paths[1], gpu, 0),
            Device { networks: &networks[..1], ..device(&paths[2], nic, 0) },
            Device { networks: &networks[1..], ..device(&paths[3], nic, 1) },
        ];
        let (machine, notes) = host("x86_64", ["GenuineIntel", "6", "143"], &[(0, "ff"), (1, "ff00")], &devices);
        assert_eq!(notes.len(), 2, "{notes:?}");
        let system = System::new(&machine).unwrap();
        let (gpus, ports) = (system.gpus(), system.ports());
        let ways = Paths::from(&system, gpus[0]);
        assert_eq!([0, 1].map(|port| ways.to(&system, ports[port]).kind), [PathKind::Pix, PathKind::Sys]);
        assert_eq!(ways.to(&system, ports[0]).bandwidth.gigabytes(), 48.0);
        assert_eq!(ways.to(&system, ports[1]).bandwidth.gigabytes(), 1.25);
    }

    #[test]
    fn nvml_adds_links_and_gpus_that_sysfs_does_not_show() {
        let path = ["0000:01:00.0".to_owned()];
        let shown = Device {
            path: &path,
            texts: ["0x030200", "0x10de", "", "", ""],
            link: ["16.0 GT/s PCIe", "16"],
            numa: Some(0),
            networks: &[],
        };
        let (mut machine, _) = host("x86_64", ["AuthenticAMD", "23", "49"], &[(0, "ff")], &[shown]);
        let ids = ["0000:01:00.0", "0000:02:00.0", "0000:e0:00.0"].map(str::to_owned);
        let gpu = |own: usize, links| NvidiaGpu { bus_id: &ids[own], capability: 90, pcie: Some((5, 16)), links };
        // Two links: one alone is narrower than the way through the processor.
        let (to_second, to_first) = ([ids[1].clone(), ids[1].clone()], [ids[0].clone(), ids[0].clone()]);
        add_nvidia(&mut machine, &[gpu(0, &to_second), gpu(1, &to_first)]);
        let system = System::new(&machine).unwrap();
        let way = Paths::from(&system, system.gpus()[0]).to(&system, system.gpus()[1]);
        assert_eq!((way.kind, way.bandwidth.gigabytes()), (PathKind::Nvl, 41.2));
        assert_eq!(machine.cpus[0].devices[1].speed, Some(PciSpeed::Gen5));
        // Links to what is no GPU lead to switches, and are counted together.
        let to_switches = [ids[2].clone(), ids[2].clone()];
        add_nvidia(&mut machine, &[gpu(0, &to_switches), gpu(1, &to_switches)]);
        let links = &machine.gpus()[0].links;
        assert_eq!((links.len(), links[0].count, links[0].target_class), (1, 2, SWITCH_CLASS));
    }
}
