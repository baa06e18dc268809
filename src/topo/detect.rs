//! Describes a machine from what sysfs shows of its host. Links and capability of GPUs, which NVML knows, are added
//! afterwards.

use crate::topo::bandwidth::{GpuGeneration, PciSpeed};
use crate::topo::description::{
    Cpu, Function, Gpu, GpuLink, Machine, Nic, Pci, Port, ProcessorDetails, walk, walk_mut,
};
use crate::topo::notes::Notes;
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
    /// Its network ports.
    pub networks: Vec<PortShown<'a>>,
    /// Of a GPU: whether RDMA reaches its memory.
    pub rdma: bool,
}

/// A network port as sysfs shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PortShown<'a> {
    /// Its name.
    pub name: &'a str,
    /// Mbit/s; 0 of one whose link is down.
    pub megabits: Option<u64>,
    /// The subnet that it is in; empty where nobody knows.
    pub subnet: &'a str,
    /// Whether its card does RDMA.
    pub rdma: bool,
}

/// The host with these NUMA nodes (number and mask of processors) and devices. Devices that are neither GPU nor NIC,
/// and bridges with neither below them, are left out. The notes say what sysfs cannot tell.
///
/// Where all ports that work have a subnet, and not all the same one, each subnet is a rail: on such networks a port
/// may reach no port of another subnet. Where all are in one subnet, every port reaches every other.
pub fn host(
    architecture: &str,
    processor: [&str; 3],
    nodes: &[(u32, &str)],
    devices: &[Device<'_>],
) -> (Machine, Notes) {
    let mut notes = Notes::default();
    let mut machine = Machine::default();
    let identity = [architecture, processor[0], processor[1], processor[2]].map(str::to_owned);
    for (number, cpus) in nodes {
        machine.cpus.push(Cpu {
            host: 0,
            clique: 0,
            numa: *number,
            affinity: (*cpus).to_owned(),
            details: ProcessorDetails::default(),
            processor: xml::processor(&identity, processor[2].parse().unwrap_or(0)),
            identity: identity.clone(),
            devices: Vec::new(),
            nics: Vec::new(),
        });
    }
    let (mut gpus, mut ports) = (0, 0);
    let works = |port: &&PortShown<'_>| port.megabits != Some(0);
    let mut subnets = devices.iter().flat_map(|device| &device.networks).filter(works).map(|port| port.subnet);
    let first = subnets.next().unwrap_or_default();
    let has_rails =
        !first.is_empty() && subnets.clone().all(|subnet| !subnet.is_empty()) && subnets.any(|subnet| subnet != first);
    for device in devices {
        let Some(mut function) = function(device, &mut gpus, &mut ports, &mut notes) else { continue };
        if let (Function::Nic(nic), true) = (&mut function, has_rails) {
            let told = device.networks.iter().map(|port| (!port.subnet.is_empty()).then(|| rail_of(port.subnet)));
            nic.ports.iter_mut().zip(told).for_each(|(port, rail)| port.rail = rail);
        }
        let node = device.numa.and_then(|numa| machine.cpus.iter().position(|cpu| cpu.numa == numa)).unwrap_or(0);
        if let Some(cpu) = machine.cpus.get_mut(node) {
            place(&mut cpu.devices, device.path, devices, function);
        }
    }
    (machine, notes)
}

/// A number that ports of one subnet share on all hosts: FNV-1a of its text. Two of the few subnets of a network have
/// the same with a probability of 1 in 10⁸.
fn rail_of(subnet: &str) -> u32 {
    subnet.bytes().fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
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
    /// Equal for GPUs, also of other hosts, whose switches are joined: see [`clique_of`].
    pub clique: Option<u64>,
    /// Whether RDMA reaches its memory.
    pub rdma: bool,
}

/// The number of a clique of an NVLink fabric that spans hosts: made of the UUID of its cluster and its number there.
pub fn clique_of(cluster: [u8; 16], number: u32) -> u64 {
    cluster
        .iter()
        .chain(&number.to_le_bytes())
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// Adds what NVML tells to what sysfs or a file shows: capability and links, where no links are known yet. A PCI device
/// of which a file does not say that it is a GPU becomes one; a GPU that is not shown at all (on a virtual machine of
/// GPUs, or in a container) comes below the first NUMA node. A link that leads to no GPU leads to an NVLink switch.
pub fn add_nvidia(machine: &mut Machine, gpus: &[NvidiaGpu<'_>]) {
    // GPUs that this process may not use are shown all the same by sysfs: links lead to them too.
    let mut shown: Vec<String> = Vec::new();
    for cpu in &machine.cpus {
        walk(&cpu.devices, &mut |device| {
            if matches!(device.function, Function::Gpu(_)) {
                shown.push(device.bus_id.clone());
            }
        });
    }
    for told in gpus {
        let mut links: Vec<GpuLink> = Vec::new();
        for remote in told.links {
            let (target, target_class) = if gpus.iter().any(|gpu| gpu.bus_id == *remote) || shown.contains(remote) {
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
        let device = u32::try_from(machine.gpus().len()).unwrap_or(u32::MAX);
        let mut made =
            Some(Gpu { device, rank: None, generation, gdr: told.rdma, links, c2c: None, clique: told.clique });
        for cpu in &mut machine.cpus {
            walk_mut(&mut cpu.devices, &mut |shown| {
                if shown.bus_id != told.bus_id {
                    return;
                }
                let Some(new) = made.take() else { return };
                match &mut shown.function {
                    Function::Gpu(gpu) if gpu.links.is_empty() => {
                        (gpu.generation, gpu.links, gpu.clique) = (generation, new.links, new.clique);
                    }
                    Function::Gpu(gpu) => gpu.clique = gpu.clique.or(new.clique),
                    Function::Bridge if shown.devices.is_empty() => shown.function = Function::Gpu(new),
                    // A device that is something else to the file stays that.
                    Function::Bridge | Function::Nic(_) => {}
                }
            });
        }
        if let (Some(gpu), Some(cpu)) = (made, machine.cpus.first_mut()) {
            cpu.devices.push(Pci {
                bus_id: told.bus_id.to_owned(),
                class: GPU_CLASS,
                ids: std::array::from_fn(|_| String::new()),
                speed: told.pcie.and_then(|(generation, _)| PciSpeed::of_generation(generation)),
                lanes: told.pcie.map_or(0, |(_, lanes)| lanes),
                function: Function::Gpu(gpu),
                devices: Vec::new(),
            });
        }
    }
}

/// The bus id that stands for all NVLink switches, as in NCCL's files.
pub const SWITCHES: &str = "0000:00:00.0";
/// The class of a GPU without a display.
pub const GPU_CLASS: u32 = 0x03_0200;

fn function(device: &Device<'_>, gpus: &mut u32, ports: &mut u32, notes: &mut Notes) -> Option<Function> {
    let class = number(device.texts[0]);
    let bus_id = device.path.last()?;
    match (class >> 8, device.texts[1]) {
        (0x0300 | 0x0302, "0x10de") => {
            notes.about(bus_id, "its compute capability and its NVLinks are not in sysfs: only its PCI link is known");
            *gpus += 1;
            let generation = GpuGeneration::Nvidia { capability: 0 };
            Some(Function::Gpu(Gpu {
                device: *gpus - 1,
                rank: None,
                generation,
                gdr: device.rdma,
                links: Vec::new(),
                c2c: None,
                clique: None,
            }))
        }
        _ if !device.networks.is_empty() => {
            let port = |PortShown { name, megabits, rdma, .. }: &PortShown<'_>| {
                match megabits {
                    None => notes.about(*name, format!("its speed is not known: {USUAL_MEGABITS} Mbit/s are assumed")),
                    Some(0) => notes.about(*name, "its link is down: no channel uses it"),
                    Some(_) => {}
                }
                *ports += 1;
                Port {
                    name: (*name).to_owned(),
                    device: *ports - 1,
                    megabits: megabits.unwrap_or(USUAL_MEGABITS).min(xml::MAX_MEGABITS),
                    port: 1,
                    guid: 0,
                    connections: 0,
                    gdr: *rdma,
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
                lanes: lanes.parse().ok().filter(|lanes| u64::from(*lanes) <= xml::MAX_LANES).unwrap_or(0),
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
    use crate::topo::layout::{Layout, Level};
    use crate::topo::paths::{PathKind, Paths};
    use crate::topo::search::{self, domain::Domain};
    use crate::topo::system::{NodeId, NodeKind, System};
    use crate::topo::transport_choice::{self, Verdict};
    use crate::types::Rank;

    /// Numbers of a folder may be anything; 255 lanes are what the kernel writes for a width that it does not know.
    #[test]
    fn absurd_numbers_of_sysfs_are_bounded() {
        let path = ["0000:01:00.0".to_owned()];
        let networks = vec![PortShown { name: "e", megabits: Some(u64::MAX), subnet: "", rdma: false }];
        let device = Device { path: &path, link: ["8.0 GT/s PCIe", "255"], networks, ..Device::default() };
        let (machine, _) = host("x86_64", ["GenuineIntel", "6", "143"], &[(0, "ff")], &[device]);
        let card = &machine.cpus[0].devices[0];
        let Function::Nic(nic) = &card.function else { panic!("{machine:?}") };
        assert_eq!((card.lanes, nic.ports[0].megabits), (0, 1_000_000_000_000));
    }

    #[test]
    fn a_gpu_and_a_nic_below_one_switch_are_near() {
        let path = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
        let paths = [
            path(&["0000:00:01.0"]),
            path(&["0000:00:01.0", "0000:01:00.0", "0000:02:00.0"]),
            path(&["0000:00:01.0", "0000:01:00.0", "0000:03:00.0"]),
            path(&["0000:80:01.0", "0000:81:00.0"]),
        ];
        let port = |name, megabits, subnet| vec![PortShown { name, megabits, subnet, rdma: name != "eth0" }];
        let gpu = ["0x030200", "0x10de", "0x2330", "", ""];
        let nic = ["0x020700", "0x15b3", "0x1021", "", ""];
        let link = ["32.0 GT/s PCIe", "16"];
        let device =
            |path, texts, numa| Device { path, texts, link, numa: Some(numa), networks: Vec::new(), rdma: true };
        let devices = [
            device(&paths[0], ["0x060400", "", "", "", ""], 0),
            device(&paths[1], gpu, 0),
            Device { networks: port("mlx5_0", Some(400_000), ""), ..device(&paths[2], nic, 0) },
            Device { networks: port("eth0", None, ""), ..device(&paths[3], nic, 1) },
        ];
        let (machine, notes) = host("x86_64", ["GenuineIntel", "6", "143"], &[(0, "ff"), (1, "ff00")], &devices);
        let notes = notes.lines();
        assert_eq!(notes.len(), 2, "{notes:?}");
        let system = System::new(&machine).unwrap();
        let (gpus, ports) = (system.gpus(), system.ports());
        let ways = Paths::from(&system, gpus[0]);
        assert_eq!([0, 1].map(|port| ways.to(&system, ports[port]).kind), [PathKind::Pix, PathKind::Sys]);
        assert_eq!(ways.to(&system, ports[0]).bandwidth.gigabytes(), 48.0);
        assert_eq!(ways.to(&system, ports[1]).bandwidth.gigabytes(), 1.25);
        // Near enough for RDMA, and both ends can; an interface without it goes through host memory.
        let direct = |port: usize| transport_choice::direct(&system, &ways.to(&system, ports[port]), None);
        assert_eq!(direct(0), Verdict::Yes("PIX is within NCCL_NET_GDR_LEVEL=PXB".to_owned()));
        assert!(matches!(direct(1), Verdict::No(reason) if reason.starts_with("eth0 cannot reach memory of GPUs")));
    }

    /// Of two NICs one has no link: channels between hosts use the other one, whose subnet is a rail still.
    #[test]
    fn a_dead_nic_carries_no_channel() {
        let of = |speeds: [u64; 3]| {
            let paths: Vec<Vec<String>> = (1..5).map(|bus| vec![format!("0000:{bus:02x}:00.0")]).collect();
            let gpu =
                Device { path: &paths[3], texts: ["0x030200", "0x10de", "", "", ""], rdma: true, ..Device::default() };
            let port = |(path, (subnet, megabits))| Device {
                path,
                texts: ["0x020700", "0x15b3", "", "", ""],
                networks: vec![PortShown { name: "mlx5", megabits: Some(megabits), subnet, rdma: true }],
                ..Device::default()
            };
            let subnets = speeds.map(|speed| if speed == 0 { "" } else { "10.0.0.0/24" });
            let mut subnets = subnets.into_iter().zip(speeds).collect::<Vec<_>>();
            subnets[2].0 = "10.0.9.0/24";
            let mut devices: Vec<Device<'_>> = paths.iter().map(Vec::as_slice).zip(subnets).map(port).collect();
            devices.push(gpu);
            host("x86_64", ["", "", ""], &[(0, "ff")], &devices)
        };
        let (machine, notes) = of([400_000, 0, 400_000]);
        let notes = notes.lines();
        assert!(notes.iter().any(|note| note == "mlx5: its link is down: no channel uses it"), "{notes:?}");
        let system = System::new(&machine.repeated(2)).unwrap();
        let found = search::between::search(&system, &[0, 1], search::between::CrossNic::IfBetter).unwrap();
        let dead = system.ports()[1];
        assert!(found.ring.channels.iter().flatten().all(|hop| hop.enter != dead && hop.exit != dead));
        let rails = |id: NodeId| matches!(system.node(id).kind, NodeKind::Port { rail: Some(_), .. });
        assert_eq!([0, 1, 2].map(|port| rails(system.ports()[port])), [true, false, true]);
    }

    #[test]
    fn nvml_adds_links_and_gpus_that_sysfs_does_not_show() {
        let path = ["0000:01:00.0".to_owned()];
        let shown = Device {
            path: &path,
            texts: ["0x030200", "0x10de", "", "", ""],
            link: ["16.0 GT/s PCIe", "16"],
            numa: Some(0),
            ..Device::default()
        };
        let fresh = || host("x86_64", ["AuthenticAMD", "23", "49"], &[(0, "ff")], std::slice::from_ref(&shown)).0;
        let mut machine = fresh();
        let ids = ["0000:01:00.0", "0000:02:00.0", "0000:e0:00.0"].map(str::to_owned);
        let gpu = |own: usize, links| NvidiaGpu {
            bus_id: &ids[own],
            capability: 90,
            pcie: Some((5, 16)),
            links,
            clique: None,
            rdma: true,
        };
        // Two links: one alone is narrower than the way through the processor.
        let (to_second, to_first) = ([ids[1].clone(), ids[1].clone()], [ids[0].clone(), ids[0].clone()]);
        add_nvidia(&mut machine, &[gpu(0, &to_second), gpu(1, &to_first)]);
        let system = System::new(&machine).unwrap();
        let way = Paths::from(&system, system.gpus()[0]).to(&system, system.gpus()[1]);
        assert_eq!((way.kind, way.bandwidth.gigabytes()), (PathKind::Nvl, 41.2));
        assert_eq!(machine.cpus[0].devices[1].speed, Some(PciSpeed::Gen5));
        // Links to what is no GPU lead to switches, and are counted together.
        let to_switches = [ids[2].clone(), ids[2].clone()];
        let told = [gpu(0, &to_switches), gpu(1, &to_switches)];
        let mut switched = fresh();
        add_nvidia(&mut switched, &told);
        let links = &switched.gpus()[0].links;
        assert_eq!((links.len(), links[0].count, links[0].target_class), (1, 2, SWITCH_CLASS));
        // Links that are known already, from a file, stay.
        let before = machine.clone();
        add_nvidia(&mut machine, &told);
        assert_eq!(machine, before);
        // A file of a cloud shows PCI devices, and does not say which are GPUs.
        let mut bare = before;
        let cloud = |device: &mut Pci| device.function = Function::Bridge;
        walk_mut(&mut bare.cpus[0].devices, &mut { cloud });
        add_nvidia(&mut bare, &told);
        assert_eq!(bare.gpus().iter().map(|gpu| (gpu.device, gpu.links.len())).collect::<Vec<_>>(), [(0, 1), (1, 1)]);
        assert_eq!(bare.cpus[0].devices.len(), 2);
    }

    /// Two ranks that may use a GPU each: sysfs shows both to both, NVML only the own one. Fused they are what a rank
    /// sees that may use both.
    #[test]
    fn what_ranks_see_of_a_host_is_fused() {
        let paths = ["0000:01:00.0", "0000:02:00.0"].map(|id| vec![id.to_owned()]);
        let ids = [paths[0][0].clone(), paths[1][0].clone()];
        let device = |path| Device { path, texts: ["0x030200", "0x10de", "", "", ""], ..Device::default() };
        let devices = [device(&paths[0]), device(&paths[1])];
        let links = [vec![ids[1].clone(); 4], vec![ids[0].clone(); 4]];
        let told = |own: usize| NvidiaGpu {
            bus_id: &ids[own],
            capability: 80,
            pcie: Some((4, 16)),
            links: &links[own],
            clique: None,
            rdma: false,
        };
        let seen = |gpus: &[NvidiaGpu<'_>], shown: &[Device<'_>]| {
            let (mut machine, _) = host("x86_64", ["", "", ""], &[(0, "ff")], shown);
            add_nvidia(&mut machine, gpus);
            machine
        };
        let whole = seen(&[told(0), told(1)], &devices);
        let fused = Machine::fused([seen(&[told(0)], &devices), seen(&[told(1)], &devices)]);
        assert_eq!(fused, whole);
        let system = System::new(&fused).unwrap();
        assert_eq!(search::rings(&system, &system.gpus()).unwrap().total().gigabytes(), 80.0);
        // A container may hide the other GPU altogether.
        let apart = Machine::fused([seen(&[told(0)], &devices[..1]), seen(&[told(1)], &devices[1..])]);
        assert_eq!(apart.gpus().iter().map(|gpu| gpu.device).collect::<Vec<_>>(), [0, 1]);
    }

    /// Two hosts of four NICs, whose cables lead to four subnets, on the second host in another order.
    #[test]
    fn rails_are_subnets() {
        let rails = |subnets: [&str; 4]| -> Vec<Option<u32>> {
            let paths: Vec<Vec<String>> = (1..5).map(|bus| vec![format!("0000:{bus:02x}:00.0")]).collect();
            let device = |(path, subnet)| Device {
                path,
                texts: ["0x020700", "0x15b3", "", "", ""],
                networks: vec![PortShown { name: "mlx5", megabits: Some(400_000), subnet, rdma: true }],
                ..Device::default()
            };
            let devices: Vec<Device<'_>> = paths.iter().map(Vec::as_slice).zip(subnets).map(device).collect();
            let (machine, _) = host("x86_64", ["", "", ""], &[(0, "ff")], &devices);
            let system = System::new(&machine).unwrap();
            let rail = |port| match system.node(port).kind {
                crate::topo::system::NodeKind::Port { rail, .. } => rail,
                _ => None,
            };
            system.ports().into_iter().map(rail).collect()
        };
        let one = rails(["10.0.1.0/24", "10.0.2.0/24", "10.0.3.0/24", "10.0.4.0/24"]);
        let two = rails(["10.0.2.0/24", "10.0.1.0/24", "10.0.4.0/24", "10.0.3.0/24"]);
        assert_eq!([one[0], one[1], one[2], one[3]], [two[1], two[0], two[3], two[2]]);
        assert!(one[0].is_some() && one[0] != one[1] && one[2] != one[3]);
        assert_eq!(rails(["10.0.0.0/16"; 4]), [None; 4], "every port reaches every other");
        assert_eq!(rails(["10.0.1.0/24", "", "10.0.3.0/24", "10.0.4.0/24"]), [None; 4], "one may be anywhere");
    }

    fn rack(cliques: [[Option<u64>; 4]; 2]) -> System {
        let ids: Vec<String> = (1..5).map(|bus| format!("0000:{bus:02x}:00.0")).collect();
        let links = vec![SWITCHES.to_owned(); 18];
        let of = |cliques: [Option<u64>; 4]| {
            let nic = ["0000:81:00.0".to_owned()];
            let card = Device {
                path: &nic,
                texts: ["0x020700", "0x15b3", "", "", ""],
                networks: vec![PortShown { name: "mlx5_0", megabits: Some(400_000), subnet: "", rdma: true }],
                ..Device::default()
            };
            let (mut machine, _) = host("aarch64", ["", "", ""], &[(0, "ff")], &[card]);
            let gpu = |(bus_id, clique)| NvidiaGpu {
                bus_id,
                capability: 100,
                pcie: Some((5, 16)),
                links: &links,
                clique,
                rdma: true,
            };
            let gpus: Vec<NvidiaGpu<'_>> = ids.iter().map(String::as_str).zip(cliques).map(gpu).collect();
            add_nvidia(&mut machine, &gpus);
            machine
        };
        System::new(&Machine::joined(cliques.map(of).to_vec())).unwrap()
    }

    /// Cluster UUID and clique join hosts and split them; without them each host has its own switches.
    #[test]
    fn cliques_join_hosts_and_split_them() {
        let [one, two] = [1, 2].map(|number| Some(clique_of([7; 16], number)));
        assert_ne!(one, Some(clique_of([8; 16], 1)), "another cluster");
        let domains = |cliques| -> Vec<usize> {
            Domain::all(&rack(cliques)).iter().map(|domain| domain.part.gpus().len()).collect()
        };
        assert_eq!(domains([[one; 4], [one; 4]]), [8]);
        assert_eq!(domains([[one; 4], [two; 4]]), [4, 4]);
        assert_eq!(domains([[None; 4], [None; 4]]), [4, 4]);
        // A host in two cliques: the way between its halves is PCI Express.
        let split = rack([[one, one, two, two], [None; 4]]);
        let gpus = split.gpus();
        let ways = Paths::from(&split, gpus[0]);
        assert_eq!([1, 2].map(|to| ways.to(&split, gpus[to]).kind), [PathKind::Nvl, PathKind::Phb]);
        let half = search::rings(&split, &gpus[..2]).unwrap().total();
        let whole = search::rings(&split, &gpus[..4]).unwrap().total();
        // One ring and its way back, each as wide as PCIe 5.
        assert_eq!((half.gigabytes(), whole.gigabytes()), (721.8, 2.0 * 48.0));
        let shown = format!("{:?}", Layout::of_gpus(&split, &gpus).domains(Level::Clique));
        assert_eq!(shown, format!("{:?}", [[0, 1], [2, 3]].map(|pair| pair.map(Rank::new))));
    }
}
