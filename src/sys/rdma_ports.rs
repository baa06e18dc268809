//! The ports of RDMA devices, as sysfs shows them.

use std::path::Path;

use super::gpus::read;

/// What sysfs tells of a device that has ports of verbs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RdmaDevice {
    /// What kind of device it is, such as "1: CA".
    pub kind: String,
    /// Its ports, by their numbers.
    pub ports: Vec<RdmaPort>,
}

/// A port of such a device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RdmaPort {
    /// Its number, from 1 on.
    pub number: u8,
    /// Its state, such as "4: ACTIVE".
    pub state: String,
    /// Its rate, such as "100 Gb/sec (4X EDR)".
    pub rate: String,
}

/// What is told of the device of this name; `None` where it has no ports of verbs. `root` is `/`, or a folder that
/// replaces it in tests.
pub fn of(root: &Path, name: &str) -> Option<RdmaDevice> {
    let folder = root.join("sys/class/infiniband").join(name);
    let entries = std::fs::read_dir(folder.join("ports")).ok()?;
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let port = |number: u8| {
        let port = folder.join("ports").join(number.to_string());
        RdmaPort { number, state: text(&port.join("state")), rate: text(&port.join("rate")) }
    };
    let mut ports: Vec<RdmaPort> = numbers.take(MOST_PORTS).map(port).collect();
    ports.sort_by_key(|port| port.number);
    Some(RdmaDevice { kind: text(&folder.join("node_type")), ports })
}

fn text(path: &Path) -> String {
    read(path).unwrap_or_default().trim().chars().take(MOST_TEXT).collect()
}

/// So many ports of a device are looked at.
const MOST_PORTS: usize = 64;
/// So many characters of a file are looked at.
const MOST_TEXT: usize = 64;
