//! The RDMA devices of this host, as sysfs shows them, and whether this process has the files by which it would use
//! them. A container sees all of the host's devices in sysfs, but only those files that it was given.

use std::path::Path;

use super::devices;
use super::gpus::read;

/// An RDMA device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FabricDevice {
    /// Its name, as libraries of fabrics use it.
    pub name: String,
    /// The kernel's driver; empty where it has none, as devices in software.
    pub driver: String,
    /// Its device file, if that is not there.
    pub missing: Option<String>,
    /// Its NUMA node, where the system tells.
    pub node: Option<u32>,
    /// Megabits per second, where the system tells; 0 without a link.
    pub rate_mbit: Option<u32>,
    /// Whether it is a device of InfiniBand or RoCE.
    pub is_of_verbs: bool,
}

impl FabricDevice {
    /// Why this process can send nothing by it, or nothing faster than by TCP, or may do so only where it is asked to:
    /// whether ports of InfiniBand and RoCE reach those of other hosts, only a try tells, which may hang.
    pub fn refusal(&self) -> Option<String> {
        let name = &self.name;
        if let Some(file) = &self.missing {
            return Some(format!(
                "{name}: its device file {file} is not here; a container gets it by --device={file}, or by its device \
                 plug-in"
            ));
        }
        if self.driver.is_empty() {
            return Some(format!("{name}: software makes it"));
        }
        if self.rate_mbit == Some(0) {
            return Some(format!("{name}: its link is down"));
        }
        let words = "it is of InfiniBand or RoCE, whose ports may not reach those of other hosts";
        self.is_of_verbs.then(|| format!("{name}: {words}"))
    }
}

/// All of them, by name. `root` is `/`, or a folder that replaces it in tests. Where the host has none this costs a
/// look at two folders.
pub fn list(root: &Path) -> Vec<FabricDevice> {
    let mut devices = Vec::new();
    for class in ["infiniband", "cxi"] {
        let folder = root.join("sys/class").join(class);
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        let names = entries.flatten().take(MOST_DEVICES).filter_map(|entry| entry.file_name().into_string().ok());
        devices.extend(names.map(|name| device(root, class, name)));
    }
    devices.sort_by(|one, other| one.name.cmp(&other.name));
    devices
}

/// The NUMA node of the PCI device at this place, `0000:3b:00.0`, where the system tells.
pub fn node_on_bus(root: &Path, place: &str) -> Option<u32> {
    read(&root.join("sys/bus/pci/devices").join(place).join("numa_node"))?.trim().parse().ok()
}

fn device(root: &Path, class: &str, name: String) -> FabricDevice {
    let hardware = root.join("sys/class").join(class).join(&name).join("device");
    // A device in software has none.
    let driver = std::fs::read_link(hardware.join("driver")).ok();
    let driver = driver.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    let driver = driver.unwrap_or_default();
    let file = match (class, &*driver) {
        ("cxi", _) | (_, "hfi1") => Some(format!("/dev/{name}")),
        // Verbs: devices in software have no `device`, and their file is found by their own name for it.
        _ => verbs_file(root, &name),
    };
    let missing = file.filter(|file| !root.join(file.trim_start_matches('/')).exists());
    let node = read(&hardware.join("numa_node")).and_then(|text| text.trim().parse().ok());
    let rate = match class {
        "infiniband" => devices::infiniband_speed(&root.join("sys/class/infiniband").join(&name)),
        // Slingshot's card is a network interface too.
        _ => devices::fastest_interface(&hardware),
    };
    let rate_mbit = rate.and_then(|rate| u32::try_from(rate).ok());
    let is_of_verbs = class == "infiniband" && !matches!(&*driver, "efa" | "hfi1");
    FabricDevice { name, driver, missing, node, rate_mbit, is_of_verbs }
}

/// The file of verbs of an InfiniBand device.
fn verbs_file(root: &Path, name: &str) -> Option<String> {
    let entries = std::fs::read_dir(root.join("sys/class/infiniband_verbs")).ok()?;
    let is_its =
        |entry: &std::fs::DirEntry| read(&entry.path().join("ibdev")).is_some_and(|device| device.trim() == name);
    let entry = entries.flatten().take(MOST_DEVICES).find(is_its)?;
    Some(format!("/dev/infiniband/{}", entry.file_name().to_string_lossy()))
}

/// So many devices are looked at: more than any host has.
const MOST_DEVICES: usize = 1024;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn devices_are_found_with_their_drivers_and_the_files_that_a_container_lacks() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        assert!(list(root).is_empty());
        for (class, name, driver) in
            [("infiniband", "mlx5_0", "mlx5_core"), ("infiniband", "hfi1_0", "hfi1"), ("cxi", "cxi0", "cxi_core")]
        {
            let device = root.join(format!("sys/class/{class}/{name}/device"));
            std::fs::create_dir_all(&device).unwrap();
            std::os::unix::fs::symlink(format!("../../bus/pci/drivers/{driver}"), device.join("driver")).unwrap();
        }
        write(root, "sys/class/infiniband/mlx5_0/device/numa_node", "1\n");
        write(root, "sys/class/infiniband/hfi1_0/device/numa_node", "-1\n");
        write(root, "sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
        write(root, "sys/class/infiniband/mlx5_0/ports/1/rate", "200 Gb/sec (4X HDR)\n");
        write(root, "sys/class/infiniband/hfi1_0/ports/1/state", "1: DOWN\n");
        write(root, "sys/class/cxi/cxi0/device/net/hsn0/speed", "200000\n");
        write(root, "sys/class/infiniband/rxe0/parent", "eth0\n");
        write(root, "sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n");
        write(root, "sys/class/infiniband_verbs/uverbs1/ibdev", "rxe0\n");
        write(root, "dev/infiniband/uverbs1", "");
        let missing = |file: &str| Some(file.to_owned());
        let expected = [
            ("cxi0", "cxi_core", missing("/dev/cxi0"), None, Some(200_000)),
            ("hfi1_0", "hfi1", missing("/dev/hfi1_0"), None, Some(0)),
            ("mlx5_0", "mlx5_core", missing("/dev/infiniband/uverbs0"), Some(1), Some(200_000)),
            ("rxe0", "", None, None, None),
        ]
        .map(|(name, driver, missing, node, rate_mbit)| FabricDevice {
            name: name.to_owned(),
            driver: driver.to_owned(),
            missing,
            node,
            rate_mbit,
            is_of_verbs: matches!(name, "mlx5_0" | "rxe0"),
        });
        assert_eq!(list(root), expected);
        write(root, "dev/hfi1_0", "");
        write(root, "dev/infiniband/uverbs0", "");
        let refusals = list(root).into_iter().map(|device| device.refusal());
        let lacks = "cxi0: its device file /dev/cxi0 is not here; a container gets it by --device=/dev/cxi0, or by its \
                     device plug-in";
        let of_verbs = "mlx5_0: it is of InfiniBand or RoCE, whose ports may not reach those of other hosts";
        let expected = [lacks, "hfi1_0: its link is down", of_verbs, "rxe0: software makes it"];
        assert_eq!(refusals.collect::<Vec<_>>(), expected.map(|text| Some(text.to_owned())));
        // Of EFA and Omni-Path no more is asked than a link.
        write(root, "sys/class/infiniband/hfi1_0/ports/1/state", "4: ACTIVE\n");
        assert_eq!(list(root)[1].refusal(), None);
    }
}
