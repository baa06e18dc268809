//! The PCI devices, network interfaces and NUMA nodes of this host, as sysfs shows them. What they mean is not for this
//! module.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::gpus::read;

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
    /// Network interfaces and InfiniBand ports that belong to it: name, and speed in Mbit/s where that is known.
    pub networks: Vec<(String, Option<u64>)>,
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
    HostDevices { devices: found.into_values().collect(), nodes: nodes(root), processor: processor(root) }
}

/// Interfaces of the device or of what its driver made below it (virtio, for instance), and ports of its InfiniBand
/// devices.
fn networks(place: &Path) -> Vec<(String, Option<u64>)> {
    let mut found = Vec::new();
    let mut folders = vec![(place.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().take(MAX_ENTRIES).flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let Some(name) = name.to_str() else { continue };
            match name {
                "infiniband" => found.extend(names(&path).into_iter().map(|name| {
                    let speed = infiniband_speed(&path.join(&name));
                    (name, speed)
                })),
                "net" => found.extend(names(&path).into_iter().map(|name| {
                    let speed = read(&path.join(&name).join("speed")).and_then(|text| text.trim().parse().ok());
                    (name, speed)
                })),
                _ if depth == 0 && name.starts_with("virtio") => folders.push((path, 1)),
                _ => {}
            }
        }
    }
    // An InfiniBand device has interfaces too: the device is what carries our data.
    let infiniband: Vec<_> =
        found.iter().filter(|(name, _)| place.join("infiniband").join(name).exists()).cloned().collect();
    let mut kept = if infiniband.is_empty() { found } else { infiniband };
    kept.sort();
    kept
}

/// `100 Gb/sec (4X EDR)` of the first port.
fn infiniband_speed(device: &Path) -> Option<u64> {
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
        write(root.path(), &format!("{place}/net/ib0/speed"), "-1\n");
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
        assert_eq!(nic.networks, [("mlx5_0".to_owned(), Some(400_000))]);
        assert_eq!(host.nodes.iter().map(|node| &*node.cpus).collect::<Vec<_>>(), ["00ff", "ff00"]);
        assert_eq!(host.processor, ["AuthenticAMD", "25", "1"]);
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
