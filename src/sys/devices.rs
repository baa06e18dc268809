//! The PCI devices, network interfaces and NUMA nodes of this host, as sysfs shows them. What they mean is not for this
//! module.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use super::gpus::read;
use super::interfaces::Interface;
use super::numa;

/// A PCI device and the bridges above it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PciDevice {
    /// The bus ids from the root port down to the device itself.
    pub path: Vec<String>,
    /// The class code, `0x030200`, and the ids of vendor, device, subsystem's vendor and subsystem, as sysfs writes
    /// them.
    pub texts: [String; 5],
    /// `max_link_speed` and `max_link_width`; empty where there is none.
    pub link: [String; 2],
    /// The NUMA node; `None` where the system does not tell.
    pub numa: Option<u32>,
    /// Network interfaces, InfiniBand ports and Slingshot devices that belong to it.
    pub networks: Vec<NetworkPort>,
}

/// A network interface, the first port of an InfiniBand device, or a Slingshot device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct NetworkPort {
    /// Its name.
    pub name: String,
    /// Mbit/s, where that is known; 0 of one whose link is down.
    pub megabits: Option<u64>,
    /// The subnet prefix of an InfiniBand network; empty on others.
    pub prefix: String,
    /// The interfaces that belong to it: its own name, or those of its card.
    pub interfaces: Vec<String>,
    /// Whether its card reads and writes memory by itself (RDMA): an InfiniBand or Slingshot device that is no
    /// software's.
    pub rdma: bool,
}

impl NetworkPort {
    /// The subnet that it is in: the InfiniBand network's, or the IP network of the first of its interfaces that has
    /// one; IPv4 before IPv6, and no link-local address. Empty where there is none.
    pub fn subnet(&self, addresses: &[Interface]) -> String {
        if !self.prefix.is_empty() {
            return self.prefix.clone();
        }
        let network = |address: &Interface| match (address.address, address.netmask) {
            (IpAddr::V4(ip), IpAddr::V4(mask)) if !ip.is_link_local() => Some(format!("{}/{mask}", ip & mask)),
            (IpAddr::V6(ip), IpAddr::V6(mask)) if !ip.is_unicast_link_local() => Some(format!("{}/{mask}", ip & mask)),
            _ => None,
        };
        let own = |is_v4: bool| {
            let mine = addresses.iter().filter(move |address| self.interfaces.contains(&address.name));
            mine.filter(move |address| address.address.is_ipv4() == is_v4).find_map(network)
        };
        own(true).or_else(|| own(false)).unwrap_or_default()
    }
}

/// A NUMA node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumaNode {
    /// Its number.
    pub number: u32,
    /// Its processors as a mask of hexadecimal digits.
    pub cpus: String,
}

/// What sysfs and procfs show.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostDevices {
    /// In the order of their bus ids.
    pub devices: Vec<PciDevice>,
    /// In the order of their numbers; at least one.
    pub nodes: Vec<NumaNode>,
    /// Vendor, family and model of the first processor, as `/proc/cpuinfo` writes them.
    pub processor: [String; 3],
    /// Whether cards that do RDMA reach memory of NVIDIA's GPUs.
    pub gpu_rdma: bool,
}

/// Reads them; `root` is `/`, or what stands for it in tests. What cannot be read is left out.
pub fn scan(root: &Path) -> HostDevices {
    let mut found: BTreeMap<String, PciDevice> = BTreeMap::new();
    for entry in fs::read_dir(root.join("sys/bus/pci/devices")).into_iter().flatten().take(MAX_ENTRIES).flatten() {
        let Ok(place) = fs::canonicalize(entry.path()) else { continue };
        let path: Vec<String> =
            place.iter().filter_map(|part| part.to_str()).filter(|part| is_bus_id(part)).map(str::to_owned).collect();
        let Some(bus_id) = path.last().cloned() else { continue };
        let text = |name: &str| read(&place.join(name)).map(|text| text.trim().to_owned()).unwrap_or_default();
        let device = PciDevice {
            path,
            texts: ["class", "vendor", "device", "subsystem_vendor", "subsystem_device"].map(text),
            link: ["max_link_speed", "max_link_width"].map(text),
            numa: text("numa_node").parse().ok(),
            networks: networks(&place),
        };
        found.insert(bus_id, device);
    }
    let devices = found.into_values().collect();
    HostDevices { devices, nodes: nodes(root), processor: processor(root), gpu_rdma: gpu_rdma(root) }
}

/// Whether RDMA reaches memory of NVIDIA's GPUs: by the module `nvidia_peermem` (or its older forms), or by DMA-BUF,
/// which NVIDIA's open kernel modules hand out from 515 on and the kernel takes from 5.12 on. The driver's own word on
/// DMA-BUF (`CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`) is not asked for: it costs a context-less start of CUDA in a
/// process that may still want to fork.
pub fn gpu_rdma(root: &Path) -> bool {
    const MODULES: [&str; 3] =
        ["sys/module/nvidia_peermem", "sys/kernel/mm/memory_peers/nv_mem", "sys/kernel/mm/memory_peers/nv_mem_nc"];
    let version = |text: &str| -> Option<(u32, u32)> {
        let mut numbers = text.split('.').map(|number| number.parse().ok());
        Some((numbers.next()??, numbers.next()??))
    };
    let shares = || {
        let driver = read(&root.join("proc/driver/nvidia/version"))?;
        let line = driver.lines().find(|line| line.contains("Open Kernel Module"))?;
        let driver = line.split_ascii_whitespace().find_map(version)?;
        let kernel = version(read(&root.join("proc/sys/kernel/osrelease"))?.trim())?;
        Some(driver >= (515, 0) && kernel >= (5, 12))
    };
    MODULES.iter().any(|module| root.join(module).exists()) || shares().unwrap_or(false)
}

/// Interfaces of the device or of what its driver made below it (virtio, for instance), or its InfiniBand and Slingshot
/// devices: where it has both, those are what carries our data.
fn networks(place: &Path) -> Vec<NetworkPort> {
    let (mut interfaces, mut ports, mut cards) = (Vec::new(), Vec::new(), Vec::new());
    let mut folders = vec![(place.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().take(MAX_ENTRIES).flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let Some(name) = name.to_str() else { continue };
            match name {
                "infiniband" => ports.extend(names(&path).into_iter().map(|name| {
                    let device = path.join(&name);
                    let (megabits, prefix) = (infiniband_speed(&device), infiniband_prefix(&device));
                    // Soft RoCE says below which interface it works; hardware does not.
                    let rdma = !device.join("parent").exists();
                    NetworkPort { name, megabits, prefix, interfaces: Vec::new(), rdma }
                })),
                "net" => interfaces.extend(names(&path).into_iter().map(|name| {
                    let megabits = interface_speed(&path.join(&name));
                    NetworkPort { interfaces: vec![name.clone()], name, megabits, ..NetworkPort::default() }
                })),
                // Slingshot's, whose interface tells its rate.
                "cxi" => cards.extend(names(&path)),
                _ if depth == 0 && name.starts_with("virtio") => folders.push((path, 1)),
                _ => {}
            }
        }
    }
    interfaces.sort();
    let names: Vec<String> = interfaces.iter().map(|interface| interface.name.clone()).collect();
    let megabits = interfaces.iter().filter_map(|interface| interface.megabits).max();
    ports.extend(cards.into_iter().map(|name| NetworkPort { name, megabits, rdma: true, ..NetworkPort::default() }));
    ports.iter_mut().for_each(|port| port.interfaces.clone_from(&names));
    let mut kept = if ports.is_empty() { interfaces } else { ports };
    kept.sort();
    kept
}

/// The subnet prefix of the first port, the upper half of its first address, unless the link is Ethernet.
fn infiniband_prefix(device: &Path) -> String {
    let layer = read(&device.join("ports/1/link_layer")).unwrap_or_default();
    let gid = read(&device.join("ports/1/gids/0")).unwrap_or_default();
    let prefix: Vec<&str> = gid.trim().split(':').take(4).collect();
    if layer.trim() == "InfiniBand" && prefix.len() == 4 { prefix.join(":") } else { String::new() }
}

/// Mbit/s; 0 without a link. A virtual interface tells neither.
fn interface_speed(interface: &Path) -> Option<u64> {
    let text = |name: &str| read(&interface.join(name)).unwrap_or_default();
    if text("operstate").trim() == "down" { Some(0) } else { text("speed").trim().parse().ok() }
}

/// Mbit/s of the fastest interface of a card; 0 where none has a link.
pub(super) fn fastest_interface(card: &Path) -> Option<u64> {
    let folder = card.join("net");
    names(&folder).into_iter().filter_map(|name| interface_speed(&folder.join(name))).max()
}

/// `100 Gb/sec (4X EDR)` of the first port, whose state is `4: ACTIVE` where it has a link.
pub(super) fn infiniband_speed(device: &Path) -> Option<u64> {
    if read(&device.join("ports/1/state")).is_some_and(|state| !state.contains("ACTIVE")) {
        return Some(0);
    }
    let rate = read(&device.join("ports/1/rate"))?;
    let gigabits: f64 = rate.split_ascii_whitespace().next()?.parse().ok()?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate in Gbit/s, bounded here")]
    (0.0..=1e6).contains(&gigabits).then_some((gigabits * 1e3) as u64)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().take(MAX_ENTRIES).flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn nodes(root: &Path) -> Vec<NumaNode> {
    let folder: PathBuf = root.join("sys/devices/system/node");
    let mut nodes: Vec<NumaNode> = Vec::new();
    for name in names(&folder) {
        if let Some(number) = name.strip_prefix("node").and_then(|number| number.parse().ok()) {
            let cpus = read(&folder.join(&name).join("cpumap")).map(|text| text.trim().to_owned()).unwrap_or_default();
            nodes.push(NumaNode { number, cpus });
        }
    }
    if nodes.is_empty() {
        nodes.push(NumaNode { number: 0, cpus: String::new() });
    }
    nodes.sort_by_key(|node| node.number);
    nodes
}

/// Memory, cores and caches of a NUMA node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeParts {
    /// The socket of its processors, where they have one.
    pub package: Option<u32>,
    /// Its memory; 0 where the system does not tell.
    pub memory_bytes: u64,
    /// Its cores; 0 where the system does not tell.
    pub cores: u32,
    /// Its caches of data: level, bytes of each, how many; the largest first.
    pub caches: Vec<(u32, u64, u32)>,
}

/// What a NUMA node of this host has. It reads some 20 files for each processor: for people, and not for each rank.
pub fn parts_of_node(root: &Path, number: u32) -> NodeParts {
    let own = root.join(format!("sys/devices/system/node/node{number}"));
    if !own.exists() {
        // A kernel without NUMA: all that there is.
        let online = read(&root.join("sys/devices/system/cpu/online")).unwrap_or_default();
        let memory_bytes = memory_bytes(&read(&root.join("proc/meminfo")).unwrap_or_default());
        return NodeParts { memory_bytes, ..parts_of(root, &numa::list(&online).unwrap_or_default()) };
    }
    let list = read(&own.join("cpulist")).and_then(|text| numa::list(&text)).unwrap_or_default();
    NodeParts { memory_bytes: memory_bytes(&read(&own.join("meminfo")).unwrap_or_default()), ..parts_of(root, &list) }
}

/// `Node 0 MemTotal:  65536 kB`
fn memory_bytes(text: &str) -> u64 {
    let of = |line: &str| line.split_once("MemTotal:")?.1.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok();
    text.lines().find_map(of).unwrap_or_default().saturating_mul(1024)
}

/// Socket, cores and caches of these processors. A core or a cache counts by the first processor that it serves.
fn parts_of(root: &Path, processors: &[u32]) -> NodeParts {
    let (mut cores, mut caches) = (BTreeSet::new(), BTreeSet::new());
    let mut package = None;
    for processor in processors {
        let folder = root.join(format!("sys/devices/system/cpu/cpu{processor}"));
        let text = |name: &str| read(&folder.join(name)).map(|text| text.trim().to_owned());
        package = package.or_else(|| text("topology/physical_package_id")?.parse().ok());
        cores.extend(text("topology/thread_siblings_list"));
        for index in 0..MAX_CACHES {
            let Some(level) = text(&format!("cache/index{index}/level")) else { break };
            let file = |name: &str| text(&format!("cache/index{index}/{name}")).unwrap_or_default();
            if file("type") == "Instruction" {
                continue;
            }
            let size = file("size");
            let kibibytes: u64 = size.strip_suffix('K').and_then(|size| size.parse().ok()).unwrap_or_default();
            let level: u32 = level.parse().unwrap_or_default();
            caches.insert((level, kibibytes.saturating_mul(1024), file("shared_cpu_list")));
        }
    }
    let mut counted: Vec<(u32, u64, u32)> = Vec::new();
    for (level, bytes, _) in caches.into_iter().rev() {
        match counted.iter_mut().find(|(known, size, _)| (*known, *size) == (level, bytes)) {
            Some((.., count)) => *count += 1,
            None => counted.push((level, bytes, 1)),
        }
    }
    NodeParts { package, cores: u32::try_from(cores.len()).unwrap_or(u32::MAX), caches: counted, memory_bytes: 0 }
}

fn processor(root: &Path) -> [String; 3] {
    let text = read(&root.join("proc/cpuinfo")).unwrap_or_default();
    let field = |name: &str| {
        let of = |line: &str| {
            line.split_once(':').filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
        };
        text.lines().find_map(of).unwrap_or_default()
    };
    [field("vendor_id"), field("cpu family"), field("model")]
}

/// Caches of a processor: of instructions and of data, and some to spare.
const MAX_CACHES: usize = 16;

/// `0000:3b:00.0`; a domain may have more digits.
fn is_bus_id(text: &str) -> bool {
    let parts: Vec<&str> = text.split([':', '.']).collect();
    let [domain, bus, device, function] = parts[..] else { return false };
    let digits = |text: &str, count: std::ops::RangeInclusive<usize>| {
        count.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    text.contains('.')
        && digits(domain, 4..=8)
        && digits(bus, 2..=2)
        && digits(device, 2..=2)
        && digits(function, 1..=1)
}

/// Entries of a folder that are looked at: more than PCI has devices in a domain.
const MAX_ENTRIES: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn bridges_stand_above_their_devices() {
        let root = tempfile::tempdir().unwrap();
        let place = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0";
        for (name, text) in [
            ("class", "0x020700\n"),
            ("vendor", "0x15b3\n"),
            ("max_link_speed", "32.0 GT/s PCIe\n"),
            ("numa_node", "1\n"),
        ] {
            write(root.path(), &format!("{place}/{name}"), text);
        }
        write(root.path(), &format!("{place}/infiniband/mlx5_0/ports/1/rate"), "400 Gb/sec (4X NDR)\n");
        write(root.path(), &format!("{place}/infiniband/mlx5_0/ports/1/link_layer"), "InfiniBand\n");
        let gid = "fe80:0000:0000:0001:ec0d:9a03:0078:6453\n";
        write(root.path(), &format!("{place}/infiniband/mlx5_0/ports/1/gids/0"), gid);
        write(root.path(), &format!("{place}/net/ib0/speed"), "-1\n");
        write(root.path(), &format!("{place}/infiniband/rxe0/parent"), "ib0\n");
        write(root.path(), "sys/devices/system/node/node1/cpumap", "ff00\n");
        write(root.path(), "sys/devices/system/node/node0/cpumap", "00ff\n");
        write(
            root.path(),
            "proc/cpuinfo",
            "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\n",
        );
        let devices = root.path().join("sys/bus/pci/devices");
        fs::create_dir_all(&devices).unwrap();
        std::os::unix::fs::symlink(root.path().join(place), devices.join("0000:01:00.0")).unwrap();
        let host = scan(root.path());
        assert_eq!(host.devices.len(), 1);
        let nic = &host.devices[0];
        assert_eq!(nic.path, ["0000:00:01.0", "0000:01:00.0"]);
        assert_eq!(
            (nic.numa, &*nic.texts[0], &*nic.link[0], &*nic.link[1]),
            (Some(1), "0x020700", "32.0 GT/s PCIe", "")
        );
        let port = &nic.networks[0];
        assert_eq!((nic.networks.len(), &*port.name, port.megabits), (2, "mlx5_0", Some(400_000)));
        assert_eq!((port.rdma, nic.networks[1].rdma), (true, false), "Soft RoCE is the processor's work");
        assert_eq!((&*port.prefix, &port.interfaces[..]), ("fe80:0000:0000:0001", &["ib0".to_owned()][..]));
        assert_eq!(port.subnet(&[]), "fe80:0000:0000:0001");
        assert_eq!(host.nodes.iter().map(|node| &*node.cpus).collect::<Vec<_>>(), ["00ff", "ff00"]);
        assert_eq!(host.processor, ["AuthenticAMD", "25", "1"]);
    }

    #[test]
    fn a_port_without_a_link_carries_nothing() {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("infiniband/mlx5_0/ports/1/state", "1: DOWN\n"),
            ("infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n"),
            ("infiniband/mlx5_1/ports/1/state", "4: ACTIVE\n"),
            ("infiniband/mlx5_1/ports/1/rate", "200 Gb/sec (4X HDR)\n"),
        ] {
            write(root.path(), path, text);
        }
        let speeds = |place: &Path| networks(place).iter().map(|port| port.megabits).collect::<Vec<_>>();
        assert_eq!(speeds(root.path()), [Some(0), Some(200_000)]);
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("net/eth0/operstate", "down\n"),
            ("net/eth1/operstate", "up\n"),
            ("net/eth1/speed", "25000\n"),
            ("net/eth2/operstate", "unknown\n"),
            ("net/eth2/speed", "-1\n"),
        ] {
            write(root.path(), path, text);
        }
        assert_eq!(speeds(root.path()), [Some(0), Some(25_000), None]);
        // Slingshot's card, below the driver of which its interface stands.
        write(root.path(), "net/eth2/speed", "200000\n");
        write(root.path(), "cxi/cxi0/dev", "508:0\n");
        let interfaces = ["eth0", "eth1", "eth2"].map(str::to_owned).to_vec();
        let card =
            NetworkPort { name: "cxi0".to_owned(), megabits: Some(200_000), rdma: true, ..NetworkPort::default() };
        assert_eq!(networks(root.path()), [NetworkPort { interfaces, ..card }]);
    }

    /// Each way by which RDMA reaches memory of GPUs, and what looks like one.
    #[test]
    fn memory_of_gpus_is_reached_by_a_module_or_by_dma_buf() {
        let nvrm =
            |kind: &str, number: &str| format!("NVRM version: NVIDIA UNIX {kind} for x86_64  {number}  Release\n");
        let (open, closed) = ("Open Kernel Module", "x86_64 Kernel Module");
        let (version, release) = ("proc/driver/nvidia/version", "proc/sys/kernel/osrelease");
        let cases: [(&[(&str, String)], bool); 7] = [
            (&[], false),
            (&[("sys/module/nvidia_peermem/initstate", "live\n".to_owned())], true),
            (&[("sys/kernel/mm/memory_peers/nv_mem/version", "1.3\n".to_owned())], true),
            (&[(version, nvrm(open, "550.54.15")), (release, "6.8.0-41-generic\n".to_owned())], true),
            (&[(version, nvrm(open, "510.108.03")), (release, "6.8.0\n".to_owned())], false),
            (&[(version, nvrm(open, "550.54.15")), (release, "5.4.0-150\n".to_owned())], false),
            (&[(version, nvrm(closed, "550.54.15")), (release, "6.8.0\n".to_owned())], false),
        ];
        for (files, expected) in cases {
            let root = tempfile::tempdir().unwrap();
            files.iter().for_each(|(path, text)| write(root.path(), path, text));
            assert_eq!(gpu_rdma(root.path()), expected, "{files:?}");
        }
    }

    #[test]
    fn a_port_of_ethernet_is_in_its_interfaces_subnet() {
        let port = |name: &str| NetworkPort { interfaces: vec![name.to_owned()], ..NetworkPort::default() };
        let at = |name: &str, address: &str, netmask: &str| Interface {
            name: name.to_owned(),
            address: address.parse().unwrap(),
            netmask: netmask.parse().unwrap(),
            scope: 0,
            running: true,
        };
        let all = [
            at("eth0", "fe80::1", "ffff:ffff:ffff:ffff::"),
            at("eth0", "2001:db8:0:7::5", "ffff:ffff:ffff:ffff::"),
            at("eth1", "2001:db8::5", "ffff:ffff:ffff:ffff::"),
            at("eth1", "10.2.3.4", "255.255.0.0"),
            at("eth2", "169.254.3.4", "255.255.0.0"),
        ];
        let subnets = ["eth0", "eth1", "eth2", "eth3"].map(|name| port(name).subnet(&all));
        assert_eq!(subnets, ["2001:db8:0:7::/ffff:ffff:ffff:ffff::", "10.2.0.0/255.255.0.0", "", ""]);
    }

    #[test]
    fn a_host_without_sysfs_has_one_node_and_no_device() {
        let root = tempfile::tempdir().unwrap();
        let host = scan(root.path());
        assert_eq!((host.devices.len(), host.nodes.len()), (0, 1));
    }

    #[test]
    fn bus_ids_are_told_from_other_parts_of_a_path() {
        assert!(is_bus_id("0000:3b:00.0") && is_bus_id("10000:e1:00.0"));
        assert!(
            !is_bus_id("pci0000:00")
                && !is_bus_id("virtio2")
                && !is_bus_id("0000:3b:00")
                && !is_bus_id("0000.3b.00.0.0")
        );
    }
}
