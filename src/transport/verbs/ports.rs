//! The ports of this host's RDMA devices as sysfs shows them, which of them the user wants, and in which order they
//! are tried. The library is loaded only where one of them may do.

use std::path::Path;

use crate::sys::fabric_devices::FabricDevice;
use crate::sys::rdma_ports::{self, RdmaDevice, RdmaPort};
use crate::transport::verbs::settings::VerbsSettings;

/// A port of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VerbsPort {
    pub(super) device: String,
    pub(super) number: u8,
    pub(super) rate_mbit: Option<u32>,
    pub(super) node: Option<u32>,
}

/// Ports that may do, the best first, and why not the others.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct VerbsChoice {
    pub(super) ports: Vec<VerbsPort>,
    pub(super) noes: Vec<String>,
}

/// Looks at the ports of `devices`. `root` is `/`, or a folder that replaces it in tests.
pub(super) fn choose(root: &Path, devices: &[FabricDevice], settings: &VerbsSettings) -> VerbsChoice {
    let mut choice = VerbsChoice::default();
    let wanted = settings.devices.as_deref().map(WantedDevices::parse);
    for device in devices {
        let Some(RdmaDevice { kind, ports }) = rdma_ports::of(root, &device.name) else { continue };
        if let Some(why) = refusal(&kind, device) {
            choice.noes.push(format!("{}: {why}", device.name));
            continue;
        }
        for RdmaPort { number, state, rate } in ports {
            let name = format!("{}:{number}", device.name);
            if wanted.as_ref().is_some_and(|wanted| !wanted.has(&device.name, number)) {
                let asked = settings.devices.as_deref().unwrap_or_default();
                choice.noes.push(format!("{name}: NCCL_IB_HCA={asked} leaves it out"));
            } else if !is_active(&state) {
                choice.noes.push(format!("{name}: the port is {}", shown_state(&state)));
            } else {
                let (device, node) = (device.name.clone(), device.node);
                choice.ports.push(VerbsPort { device, number, rate_mbit: rate_of(&rate), node });
            }
        }
    }
    // Stable: among equals the first name and number.
    choice.ports.sort_by_key(|port| std::cmp::Reverse(port.rate_mbit));
    choice
}

/// Whether a port of this state, in sysfs's words, carries data.
pub(super) fn is_active(state: &str) -> bool {
    state.ends_with(" ACTIVE")
}

/// A state without its number.
pub(super) fn shown_state(state: &str) -> &str {
    state.rsplit(' ').next().filter(|state| !state.is_empty()).unwrap_or("without a state")
}

/// Why no port of a device will do.
fn refusal(kind: &str, device: &FabricDevice) -> Option<String> {
    if device.driver == "efa" {
        return Some("EFA has no reliable connections; NCCL_NET=libfabric uses it".to_owned());
    }
    if kind.starts_with("4:") {
        return Some("iWARP has no messages with a number, which are used here".to_owned());
    }
    if !kind.starts_with("1:") {
        let kind = if kind.is_empty() { "unknown" } else { kind };
        return Some(format!("it is no channel adapter (node_type {kind})"));
    }
    let file = device.missing.as_ref()?;
    Some(format!("{file} is not here: a container has to be given it (--device {file})"))
}

/// The megabits per second in sysfs's words, such as "100 Gb/sec (4X EDR)" or "2.5 Gb/sec (1X SDR)".
pub(super) fn rate_of(words: &str) -> Option<u32> {
    let number = words.split_once(" Gb/sec")?.0.trim();
    let (whole, tenth) = number.split_once('.').unwrap_or((number, "0"));
    let whole: u32 = whole.parse().ok()?;
    let tenth: u32 = tenth.get(..1)?.parse().ok()?;
    whole.checked_mul(1000)?.checked_add(tenth * 100).filter(|rate| *rate > 0)
}

/// The megabits per second of a link of this width and speed, as libibverbs numbers them. Where sysfs tells nothing.
pub(super) fn rate_of_link(width: u32, speed: u32) -> Option<u32> {
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => return None,
    };
    let lane_mbit = match speed {
        1 => 2_500,
        2 => 5_000,
        // QDR, FDR10.
        4 | 8 => 10_000,
        // FDR, EDR, HDR, NDR, XDR.
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        256 => 200_000,
        _ => return None,
    };
    Some(lanes * lane_mbit)
}

/// `NCCL_IB_HCA`: a list of names, each with a port behind a colon where only that one is meant. `=` before the list
/// asks for whole names in place of beginnings, `^` for all but those.
#[derive(Debug)]
struct WantedDevices<'a> {
    excludes: bool,
    is_exact: bool,
    names: Vec<(&'a str, Option<&'a str>)>,
}

impl<'a> WantedDevices<'a> {
    fn parse(list: &'a str) -> WantedDevices<'a> {
        let (excludes, list) = list.strip_prefix('^').map_or((false, list), |list| (true, list));
        let (is_exact, list) = list.strip_prefix('=').map_or((false, list), |list| (true, list));
        let entry = |entry: &'a str| {
            // Behind the port NCCL takes the number of a rail, which counts for nothing here: one port is used.
            let mut parts = entry.trim().split(':');
            (parts.next().unwrap_or_default(), parts.next().filter(|port| !port.is_empty()))
        };
        let names = list.split(',').map(entry).filter(|(name, _)| !name.is_empty()).collect();
        WantedDevices { excludes, is_exact, names }
    }

    fn has(&self, device: &str, port: u8) -> bool {
        let is_named = self.names.iter().any(|(name, only)| {
            let is_it = if self.is_exact { device == *name } else { device.starts_with(name) };
            is_it && only.is_none_or(|only| only.parse() == Ok(port))
        });
        is_named != self.excludes
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::sys::fabric_devices;

    /// A made-up tree of sysfs: name, driver, node_type, file of the device, and ports with state and rate.
    type MadeUp<'a> = (&'a str, &'a str, &'a str, bool, &'a [(&'a str, &'a str)]);

    fn tree(devices: &[MadeUp<'_>]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: String, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        for (place, (name, driver, kind, has_file, ports)) in devices.iter().enumerate() {
            let device = format!("sys/class/infiniband/{name}");
            if !driver.is_empty() {
                write(format!("{device}/device/numa_node"), "1\n");
                let target = format!("../../bus/pci/drivers/{driver}");
                std::os::unix::fs::symlink(target, folder.path().join(&device).join("device/driver")).unwrap();
            }
            write(format!("{device}/node_type"), kind);
            for (number, (state, rate)) in (1..).zip(*ports) {
                write(format!("{device}/ports/{number}/state"), state);
                write(format!("{device}/ports/{number}/rate"), rate);
            }
            write(format!("sys/class/infiniband_verbs/uverbs{place}/ibdev"), name);
            if *has_file {
                write(format!("dev/infiniband/uverbs{place}"), "");
            }
        }
        folder
    }

    fn choose_in(root: &Path, devices: Option<&str>) -> VerbsChoice {
        let settings = VerbsSettings { devices: devices.map(str::to_owned), ..VerbsSettings::default() };
        choose(root, &fabric_devices::list(root), &settings)
    }

    fn names(choice: &VerbsChoice) -> Vec<String> {
        choice.ports.iter().map(|port| format!("{}:{}", port.device, port.number)).collect()
    }

    const UP: &str = "4: ACTIVE\n";

    #[test]
    fn the_fastest_port_that_is_up_comes_first_and_each_no_has_a_sentence() {
        let root = tree(&[
            ("efa_0", "efa", "7: <unspecified>\n", true, &[(UP, "100 Gb/sec (4X EDR)\n")]),
            ("iw_0", "iw_cxgb4", "4: RNIC\n", true, &[(UP, "100 Gb/sec\n")]),
            ("mlx5_0", "mlx5_core", "1: CA\n", true, &[(UP, "100 Gb/sec (4X EDR)\n"), ("1: DOWN\n", "10 Gb/sec\n")]),
            ("mlx5_1", "mlx5_core", "1: CA\n", true, &[(UP, "400 Gb/sec (4X NDR)\n")]),
            ("mlx5_2", "mlx5_core", "1: CA\n", false, &[(UP, "400 Gb/sec (4X NDR)\n")]),
            ("mlx5_3", "mlx5_core", "1: CA\n", true, &[(UP, "400 Gb/sec (4X NDR)\n"), ("2: INIT\n", "")]),
            ("rxe0", "", "1: CA\n", true, &[(UP, "")]),
        ]);
        let choice = choose_in(root.path(), None);
        assert_eq!(names(&choice), ["mlx5_1:1", "mlx5_3:1", "mlx5_0:1", "rxe0:1"]);
        let port = |device: &str, rate_mbit, node| VerbsPort { device: device.to_owned(), number: 1, rate_mbit, node };
        assert_eq!(choice.ports[0], port("mlx5_1", Some(400_000), Some(1)));
        assert_eq!(choice.ports[3], port("rxe0", None, None));
        assert_eq!(
            choice.noes,
            [
                "efa_0: EFA has no reliable connections; NCCL_NET=libfabric uses it",
                "iw_0: iWARP has no messages with a number, which are used here",
                "mlx5_0:2: the port is DOWN",
                concat!(
                    "mlx5_2: /dev/infiniband/uverbs4 is not here: a container has to be given it ",
                    "(--device /dev/infiniband/uverbs4)"
                ),
                "mlx5_3:2: the port is INIT",
            ]
        );
        assert_eq!(choose_in(tree(&[]).path(), None), VerbsChoice::default());
    }

    #[test]
    fn devices_and_ports_are_named_as_in_nccl() {
        let up = [(UP, "100 Gb/sec (4X EDR)\n"); 2];
        let devices = ["mlx5_0", "mlx5_1", "mlx5_10", "bnxt_re0"].map(|name| (name, "", "1: CA", true, &up[..1]));
        let mut devices = devices.to_vec();
        devices[1].4 = &up;
        let root = tree(&devices);
        for (list, expected) in [
            ("mlx5", &["mlx5_0:1", "mlx5_1:1", "mlx5_1:2", "mlx5_10:1"][..]),
            ("mlx5_1", &["mlx5_1:1", "mlx5_1:2", "mlx5_10:1"]),
            ("=mlx5_1", &["mlx5_1:1", "mlx5_1:2"]),
            ("=mlx5_1:2,mlx5_0", &["mlx5_0:1", "mlx5_1:2"]),
            ("=mlx5_1:2:7", &["mlx5_1:2"]),
            ("^mlx5", &["bnxt_re0:1"]),
            ("^=mlx5_1:1, mlx5_10", &["bnxt_re0:1", "mlx5_0:1", "mlx5_1:2"]),
            ("bnxt_re0:x", &[]),
            ("mlx4", &[]),
            ("", &[]),
        ] {
            let choice = choose_in(root.path(), Some(list));
            assert_eq!(names(&choice), expected, "{list:?}");
            assert_eq!(choice.ports.len() + choice.noes.len(), 5);
            assert!(
                choice.noes.iter().all(|no| no.contains(&format!("NCCL_IB_HCA={list} leaves it out"))),
                "{choice:?}"
            );
        }
    }

    #[test]
    fn rates_are_those_of_the_links() {
        for (words, expected) in [
            ("2.5 Gb/sec (1X SDR)", Some(2_500)),
            ("40 Gb/sec (4X QDR)", Some(40_000)),
            ("10 Gb/sec (1X FDR10)", Some(10_000)),
            ("56 Gb/sec (4X FDR)", Some(56_000)),
            ("100 Gb/sec (4X EDR)", Some(100_000)),
            ("200 Gb/sec (4X HDR)", Some(200_000)),
            ("400 Gb/sec (4X NDR)", Some(400_000)),
            ("800 Gb/sec (4X XDR)", Some(800_000)),
            ("0 Gb/sec (4X SDR)", None),
            ("", None),
            ("99999999999 Gb/sec", None),
            ("4294968 Gb/sec", None),
            ("1.é Gb/sec", None),
            ("-1 Gb/sec", None),
        ] {
            assert_eq!(rate_of(words), expected, "{words:?}");
        }
        for (width, speed, expected) in [
            (2, 4, Some(40_000)),
            (2, 8, Some(40_000)),
            (2, 16, Some(56_000)),
            (2, 32, Some(100_000)),
            (2, 64, Some(200_000)),
            (16, 64, Some(100_000)),
            (2, 128, Some(400_000)),
            (2, 256, Some(800_000)),
            (8, 1, Some(30_000)),
            (1, 2, Some(5_000)),
            (4, 2, Some(40_000)),
            (3, 4, None),
            (2, 3, None),
            (0, 0, None),
        ] {
            assert_eq!(rate_of_link(width, speed), expected, "{width} {speed}");
        }
    }
}
