//! The machine that a program is shown: its hosts, GPUs, links and driver, read from a TOML file.
//!
//! `machine/file.rs` reads the text and names the line of a mistake; this module holds what the driver, NVML and the
//! schedule ask: who reaches whom, by which path, with what rights. The ready machines lie in `machines/*.toml`.

mod fields;
mod file;
mod kind;

use std::fs;
use std::path::Path as FilePath;

pub use self::kind::Limits;

/// The ready machines: name and text.
const READY: [(&str, &str); 8] = [
    ("1", include_str!("../machines/1.toml")),
    ("2-nvswitch", include_str!("../machines/2-nvswitch.toml")),
    ("4-nvswitch", include_str!("../machines/4-nvswitch.toml")),
    ("8-nvswitch", include_str!("../machines/8-nvswitch.toml")),
    ("8-cube-mesh", include_str!("../machines/8-cube-mesh.toml")),
    ("4-pcie", include_str!("../machines/4-pcie.toml")),
    ("2x4", include_str!("../machines/2x4.toml")),
    ("2x4-mnnvl", include_str!("../machines/2x4-mnnvl.toml")),
];

/// A machine: everything that a program can find out about its GPUs, and how strictly they behave.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// The name of the ready machine or of the file, without its ending.
    pub name: String,
    /// What `cuDriverGetVersion` answers: 12080 is CUDA 12.8.
    pub driver_version: u32,
    /// What NVML calls the driver's version, like `570.86.15`.
    pub driver_name: String,
    /// Hosts of the whole machine, those of other views included.
    pub hosts: u32,
    /// The host whose GPUs `gpus` holds; `None` while the machine is whole.
    pub host: Option<u32>,
    /// GPUs in the order of the driver's ordinals (host by host while the machine is whole).
    pub gpus: Vec<Gpu>,
    /// NVLinks between two GPUs, by index into `gpus`.
    pub links: Vec<Link>,
    /// NVSwitch domains: GPUs of one domain reach each other at full speed.
    pub switches: Vec<Switch>,
    /// Whether GPUs without NVLink reach each other over PCIe.
    pub pcie_peer: bool,
    /// Hardware queues that the streams of a context share (`CUDA_DEVICE_MAX_CONNECTIONS`).
    pub connections: u32,
    /// Whether kernels of several processes run at the same time on a GPU.
    pub mps: bool,
    /// Whether `cuMemCreate` and its kin work.
    pub virtual_memory: bool,
    /// Whether `cuIpcGetMemHandle` works.
    pub legacy_ipc: bool,
    /// Whether memory may be exported as a POSIX file descriptor.
    pub posix_fd: bool,
    /// What the fabric attribute says, and whether it is true.
    pub fabric: FabricAttr,
    /// Whether memory is weak: stores become visible late and out of order, as far as PTX allows it.
    pub weak: bool,
    /// Whether uninitialised reads and races in shared memory are looked for; bounds are checked always.
    pub checks: bool,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpu {
    /// The product's name.
    pub name: String,
    /// What makes a GPU the same GPU for all processes.
    pub uuid: [u8; 16],
    /// As `cuDeviceGetPCIBusId` prints it: `0000:1B:00.0`.
    pub bus_id: String,
    /// The host it is plugged into.
    pub host: u32,
    /// The NUMA node of its PCIe root.
    pub numa_node: u32,
    /// GPUs of one host with the same number hang on one PCIe switch.
    pub pcie_switch: u32,
    /// Compute capability: (9, 0) is sm_90.
    pub capability: (u32, u32),
    /// Memory in all.
    pub memory_bytes: u64,
    /// Streaming multiprocessors.
    pub sms: u32,
    /// What one of them holds at a time, and what a block may ask for.
    pub limits: Limits,
    /// PCIe generation, of the GPU and of its link.
    pub pcie_generation: u32,
    /// PCIe lanes.
    pub pcie_width: u32,
    /// NVLinks of this GPU, to GPUs or to a switch.
    pub nvlinks: u32,
}

/// NVLinks between two GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// One end, an index into [`Machine::gpus`].
    pub a: u32,
    /// The other end.
    pub b: u32,
    /// How many links there are.
    pub count: u32,
    /// Whether a warp's store of a 128-byte line arrives whole.
    pub ll128: bool,
}

/// An NVSwitch domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switch {
    /// Its GPUs, as indices into [`Machine::gpus`].
    pub gpus: Vec<u32>,
    /// Links of each GPU to it.
    pub links: u32,
    /// Whether a warp's store of a 128-byte line arrives whole.
    pub ll128: bool,
}

/// The attribute `HANDLE_TYPE_FABRIC_SUPPORTED`, and what is behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FabricAttr {
    /// The attribute is 0, and fabric handles do not exist.
    None,
    /// The attribute is 1, and `cuMemCreate` answers `CUDA_ERROR_NOT_PERMITTED`: a GPU that could, without an IMEX channel.
    Lies,
    /// As `Lies`, on hosts whose GPUs are of one clique: what is missing is the channel alone.
    NoChannel,
    /// The attribute is 1, and fabric handles cross between the hosts of the machine.
    Works,
}

/// How two GPUs of a machine are connected, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Path {
    /// It is one GPU.
    Same,
    /// So many direct NVLinks.
    NvLink(u32),
    /// So many NVLinks each, through NVSwitches.
    NvSwitch(u32),
    /// One PCIe switch.
    PcieSwitch,
    /// One NUMA node, through its PCIe root.
    PcieHost,
    /// Two NUMA nodes of one host.
    System,
    /// No path of memory: two hosts.
    Network,
}

impl Machine {
    /// Reads a machine: a ready one by name, else a TOML file by its path.
    ///
    /// # Errors
    /// There is neither a ready machine nor a file of this name, or the file has a mistake: the text names the line.
    ///
    /// # Examples
    /// ```
    /// let machine = vcuda::machine::Machine::load("2-nvswitch")?;
    /// assert!(machine.can_access_peer(0, 1));
    /// # Ok::<(), String>(())
    /// ```
    pub fn load(name_or_path: &str) -> Result<Machine, String> {
        let text = Machine::text(name_or_path)?;
        Machine::parse(&file_name(name_or_path), &text).map_err(|what| format!("machine {name_or_path}: {what}"))
    }

    /// The text of a machine file, by the name of a ready machine or by path.
    ///
    /// # Errors
    /// There is neither a ready machine nor a file of this name.
    pub fn text(name_or_path: &str) -> Result<String, String> {
        if let Some((_, text)) = READY.iter().find(|(name, _)| *name == name_or_path) {
            return Ok((*text).to_owned());
        }
        let ready = Machine::ready().join(", ");
        fs::read_to_string(FilePath::new(name_or_path)).map_err(|error| {
            format!("machine {name_or_path:?} is not one of {ready}, and there is no such file: {error}")
        })
    }

    /// The names of the ready machines.
    #[must_use]
    pub fn ready() -> [&'static str; READY.len()] {
        READY.map(|(name, _)| name)
    }

    /// Reads a machine from the text of a file.
    ///
    /// # Errors
    /// The text has a mistake, named with its line.
    pub fn parse(name: &str, text: &str) -> Result<Machine, String> {
        file::parse(name, text)
    }

    /// The machine as the processes of one host see it: that host's GPUs alone, numbered from 0.
    #[must_use]
    pub fn on_host(&self, host: u32) -> Machine {
        let kept: Vec<usize> = (0..self.gpus.len()).filter(|gpu| self.gpus[*gpu].host == host).collect();
        let renumbered =
            |gpu: u32| kept.iter().position(|old| *old == index(gpu)).and_then(|new| u32::try_from(new).ok());
        let links =
            self.links.iter().filter_map(|link| Some(Link { a: renumbered(link.a)?, b: renumbered(link.b)?, ..*link }));
        let switches = self.switches.iter().filter_map(|switch| {
            let gpus: Vec<u32> = switch.gpus.iter().filter_map(|gpu| renumbered(*gpu)).collect();
            (!gpus.is_empty()).then_some(Switch { gpus, ..*switch })
        });
        Machine {
            host: Some(host),
            gpus: kept.iter().map(|gpu| self.gpus[*gpu].clone()).collect(),
            links: links.collect(),
            switches: switches.collect(),
            ..self.clone()
        }
    }

    /// How two GPUs are connected.
    #[must_use]
    pub fn path(&self, a: u32, b: u32) -> Path {
        if a == b {
            return Path::Same;
        }
        let direct = self.links.iter().find(|link| link.joins(a, b)).map(|link| Path::NvLink(link.count));
        let switched =
            self.switches.iter().find(|switch| switch.joins(a, b)).map(|switch| Path::NvSwitch(switch.links));
        direct.or(switched).unwrap_or_else(|| self.path_over_pcie(a, b))
    }

    fn path_over_pcie(&self, a: u32, b: u32) -> Path {
        let (a, b) = (&self.gpus[index(a)], &self.gpus[index(b)]);
        match () {
            () if a.host != b.host => Path::Network,
            () if a.numa_node != b.numa_node => Path::System,
            () if a.pcie_switch != b.pcie_switch => Path::PcieHost,
            () => Path::PcieSwitch,
        }
    }

    /// Whether GPU `a` may be given access to the memory of GPU `b` (`cuDeviceCanAccessPeer`). A GPU is no peer of itself.
    #[must_use]
    pub fn can_access_peer(&self, a: u32, b: u32) -> bool {
        let same_host = |a: u32, b: u32| self.gpus[index(a)].host == self.gpus[index(b)].host;
        match self.path(a, b) {
            Path::Same | Path::Network => false,
            Path::NvLink(_) | Path::NvSwitch(_) => same_host(a, b),
            Path::PcieSwitch | Path::PcieHost => self.pcie_peer,
            // As in life: no peer access between the PCIe roots of two processors.
            Path::System => false,
        }
    }

    /// Whether GPU `a` performs atomics on the memory of GPU `b` by itself: over NVLink, not over PCIe.
    #[must_use]
    pub fn native_atomics(&self, a: u32, b: u32) -> bool {
        matches!(self.path(a, b), Path::Same | Path::NvLink(_) | Path::NvSwitch(_))
    }

    /// Whether a warp's store of an aligned 128-byte line arrives whole where the switches of a GPU lead to another host.
    #[must_use]
    pub fn has_switch(&self, gpu: u32) -> bool {
        self.switches.iter().any(|switch| switch.ll128 && switch.gpus.contains(&gpu))
    }

    /// Whether its hosts share memory by fabric handles, and this is the view of one of them.
    #[must_use]
    pub fn shares_a_fabric(&self) -> bool {
        self.hosts > 1 && self.host.is_some() && self.fabric == FabricAttr::Works
    }

    /// Whether a warp's store of an aligned 128-byte line from GPU `a` arrives whole in the memory of GPU `b`.
    #[must_use]
    pub fn ll128(&self, a: u32, b: u32) -> bool {
        if a == b {
            return true;
        }
        let direct = self.links.iter().find(|link| link.joins(a, b)).map(|link| link.ll128);
        let switched = self.switches.iter().find(|switch| switch.joins(a, b)).map(|switch| switch.ll128);
        direct.or(switched).unwrap_or(false)
    }

    /// The GPUs that `CUDA_VISIBLE_DEVICES` leaves, in its order: ordinals or beginnings of UUIDs (`GPU-...`). The list ends
    /// at the first entry that names no GPU, and a list that names one twice is empty, as in life.
    #[must_use]
    pub fn visible(&self, list: &str) -> Vec<u32> {
        let mut seen = Vec::new();
        for entry in list.split(',') {
            let Some(gpu) = self.find(entry.trim()) else { break };
            if seen.contains(&gpu) {
                return Vec::new();
            }
            seen.push(gpu);
        }
        seen
    }

    fn find(&self, entry: &str) -> Option<u32> {
        let count = u32::try_from(self.gpus.len()).ok()?;
        if let Ok(ordinal) = entry.parse::<u32>() {
            return (ordinal < count).then_some(ordinal);
        }
        if entry.len() <= "GPU-".len() {
            return None;
        }
        let mut matching = (0..count).filter(|gpu| self.gpus[index(*gpu)].uuid_text().starts_with(entry));
        let found = matching.next()?;
        matching.next().is_none().then_some(found)
    }
}

impl Gpu {
    /// The UUID as NVML prints it: `GPU-` and hexadecimal digits in five groups.
    #[must_use]
    pub fn uuid_text(&self) -> String {
        let digits: String = self.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        let groups = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
        format!("GPU-{}", groups.join("-"))
    }

    /// Domain, bus and device of the bus id.
    #[must_use]
    pub fn bus_numbers(&self) -> (u32, u32, u32) {
        let mut numbers = self.bus_id.split([':', '.']).map(|part| u32::from_str_radix(part, 16).unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        (next(), next(), next())
    }
}

impl Link {
    fn joins(&self, a: u32, b: u32) -> bool {
        (self.a, self.b) == (a, b) || (self.a, self.b) == (b, a)
    }
}

impl Switch {
    fn joins(&self, a: u32, b: u32) -> bool {
        self.gpus.contains(&a) && self.gpus.contains(&b)
    }
}

fn index(gpu: u32) -> usize {
    usize::try_from(gpu).unwrap_or(usize::MAX)
}

fn file_name(path: &str) -> String {
    let stem = FilePath::new(path).file_stem().map(|stem| stem.to_string_lossy().into_owned());
    stem.unwrap_or_else(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{FabricAttr, Machine, Path, READY};

    #[test]
    fn every_ready_machine_is_read() {
        for (name, _) in READY {
            let machine = Machine::load(name).unwrap();
            assert_eq!(machine.name, name);
            for (number, gpu) in machine.gpus.iter().enumerate() {
                let twins = machine
                    .gpus
                    .iter()
                    .filter(|other| other.uuid == gpu.uuid || (other.host, &other.bus_id) == (gpu.host, &gpu.bus_id));
                assert_eq!(twins.count(), 1, "machine {name}: GPU {number} is not unique");
            }
        }
    }

    #[test]
    fn the_cube_mesh_has_the_links_of_its_original() {
        let machine = Machine::load("8-cube-mesh").unwrap();
        let row = |gpu| -> Vec<u32> {
            let links = |other| if let Path::NvLink(count) = machine.path(gpu, other) { count } else { 0 };
            (0..8).map(links).collect()
        };
        assert_eq!(row(0), [0, 1, 1, 2, 2, 0, 0, 0]);
        assert_eq!(row(7), [0, 0, 0, 1, 2, 1, 2, 0]);
        for gpu in 0..8 {
            assert_eq!(row(gpu).iter().sum::<u32>(), 6, "GPU {gpu} has six links");
            assert_eq!(machine.gpus[usize::try_from(gpu).unwrap()].nvlinks, 6);
        }
        assert!(machine.can_access_peer(0, 4), "a link between the processors");
        assert!(!machine.can_access_peer(0, 5), "no link, two processors");
    }

    #[test]
    fn without_links_there_is_no_peer_access() {
        let machine = Machine::load("4-pcie").unwrap();
        for (a, b) in [(0, 1), (0, 2), (3, 0)] {
            assert!(!machine.can_access_peer(a, b) && !machine.ll128(a, b));
        }
        assert!(!machine.can_access_peer(1, 1), "a GPU is no peer of itself");
        assert_eq!(machine.path(0, 1), Path::PcieSwitch);
        assert_eq!(machine.path(0, 3), Path::System);
    }

    #[test]
    fn a_host_sees_its_own_gpus() {
        let whole = Machine::load("2x4").unwrap();
        assert_eq!((whole.hosts, whole.gpus.len()), (2, 8));
        assert_eq!(whole.path(0, 4), Path::Network);
        assert!(!whole.can_access_peer(3, 4));
        let second = whole.on_host(1);
        assert_eq!(second.gpus, whole.gpus[4..]);
        assert!(second.can_access_peer(0, 3) && second.ll128(0, 3));
        assert_eq!(second.fabric, FabricAttr::Lies);
        // Switches that join the hosts give no access by address: memory crosses by fabric handles.
        let rack = Machine::load("2x4-mnnvl").unwrap();
        assert_eq!((rack.path(0, 4), rack.fabric), (Path::NvSwitch(18), FabricAttr::Works));
        assert!(!rack.can_access_peer(3, 4) && rack.on_host(1).can_access_peer(0, 3));
    }

    #[test]
    fn visible_devices_are_ordinals_or_uuids() {
        let machine = Machine::load("4-nvswitch").unwrap();
        assert_eq!(machine.visible("2,0"), [2, 0]);
        assert_eq!(machine.visible("1,9,2"), [1], "what follows a wrong entry does not count");
        assert_eq!(machine.visible("1,1"), [0_u32; 0]);
        assert_eq!(machine.visible(""), [0_u32; 0]);
        assert_eq!(machine.visible(&machine.gpus[3].uuid_text()), [3]);
        assert_eq!(machine.visible(&machine.gpus[3].uuid_text()[..12]), [3]);
        assert_eq!(machine.visible("GPU-"), [0_u32; 0]);
    }

    #[test]
    fn an_unknown_machine_is_answered_with_the_ready_ones() {
        let error = Machine::load("3-nvswitch").unwrap_err();
        assert!(error.contains("8-cube-mesh"), "{error}");
    }
}
