//! The management library over the machine file: what NCCL asks of NVML, and nothing else.
//!
//! NVML counts all GPUs of a host by bus id and knows nothing of `CUDA_VISIBLE_DEVICES`. `libnvidia-ml/` checks pointers and
//! calls in here.

use std::env;
use std::sync::Mutex;

use crate::fault;
use crate::machine::{FabricAttr, Gpu, Machine, Path};

/// A code of `nvmlReturn_t` that is not success, or a value.
pub type Outcome<T> = Result<T, Code>;

/// `nvmlReturn_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Code {
    /// `nvmlInit_v2` was not called.
    Uninitialized = 1,
    /// A null pointer, an unknown handle, a number out of range.
    InvalidArgument = 2,
    /// This GPU has no such thing.
    NotSupported = 3,
    /// No GPU of that description.
    NotFound = 6,
    /// The text does not fit.
    InsufficientSize = 7,
    /// There is no machine: `VCUDA_MACHINE` names no file that can be read.
    DriverNotLoaded = 9,
    /// The GPU has fallen off the bus.
    GpuIsLost = 15,
    /// A structure of another version.
    ArgumentVersionMismatch = 25,
    /// As `VCUDA_FAIL` asks.
    Unknown = 999,
}

/// A GPU as programs hold it: opaque there, its index here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device(u32);

/// Where a link leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciAddress {
    /// Domain, bus, device.
    pub numbers: (u32, u32, u32),
    /// Device and vendor, as one number.
    pub device_id: u32,
    /// With a domain of eight digits, as in `nvmlPciInfo_t::busId`.
    pub bus_id: String,
    /// With a domain of four digits, as in `busIdLegacy`.
    pub bus_id_legacy: String,
}

/// State of the fabric of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fabric {
    /// The same for all GPUs of a domain; zero: none.
    pub cluster_uuid: [u8; 16],
    /// Which part of the domain.
    pub clique: u32,
    /// 0: not supported; 3: completed.
    pub state: u8,
}

/// One end of an NVLink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Remote {
    Gpu(u32),
    Switch(usize),
}

/// Capabilities of a link, as `nvmlNvLinkCapability_t` counts them: P2P, atomics over P2P, valid.
const CAPABILITIES_PRESENT: [u32; 3] = [0, 2, 5];
const CAPABILITIES: u32 = 6;
/// Of `nvmlGpuP2PCapsIndex_t`.
const P2P_NVLINK: u32 = 2;
const P2P_ATOMICS: u32 = 3;
const P2P_INDICES: u32 = 5;
/// Of `nvmlGpuP2PStatus_t`.
const P2P_OK: u32 = 0;
const P2P_CHIPSET_NOT_SUPPORTED: u32 = 1;
const P2P_NOT_SUPPORTED: u32 = 5;
const NVIDIA: u32 = 0x10de;
const FABRIC_COMPLETED: u8 = 3;
/// Field ids: speed of all links in MB/s, number of links, links to switches.
const FIELD_LINK_SPEED: u32 = 90;
const FIELD_LINK_COUNT: u32 = 91;
const FIELD_SWITCH_LINK_COUNT: u32 = 147;
/// A link's 25 GB/s a direction, as generations 3 to 5 are told from each other by their number only.
const LINK_MB_S: u64 = 26_562;

/// The library's state: how often it was initialised, and the machine while it is.
struct Library {
    users: u32,
    machine: Option<Machine>,
}

static LIBRARY: Mutex<Library> = Mutex::new(Library { users: 0, machine: None });

/// Reads the machine; each call has its [`shutdown`].
///
/// # Errors
/// `DriverNotLoaded` without a machine; the reason is printed.
pub fn init() -> Outcome<()> {
    let mut library = LIBRARY.lock().map_err(|_| Code::Unknown)?;
    if library.machine.is_none() {
        let path = env::var("VCUDA_MACHINE")
            .map_err(|_| "VCUDA_MACHINE is not set: start the program by `vcuda run`".to_owned());
        let machine = path.and_then(|path| Machine::load(&path)).map_err(|what| {
            eprintln!("vcuda: {what}");
            Code::DriverNotLoaded
        })?;
        library.machine = Some(machine);
    }
    library.users += 1;
    Ok(())
}

/// Ends what one [`init`] began.
///
/// # Errors
/// `Uninitialized`: there was no `init`.
pub fn shutdown() -> Outcome<()> {
    let mut library = LIBRARY.lock().map_err(|_| Code::Unknown)?;
    library.users = library.users.checked_sub(1).ok_or(Code::Uninitialized)?;
    if library.users == 0 {
        library.machine = None;
    }
    Ok(())
}

/// Runs a call on the machine.
///
/// # Errors
/// `Uninitialized` before [`init`], and what the call answers.
pub fn with<T>(call: impl FnOnce(&Machine) -> Outcome<T>) -> Outcome<T> {
    let library = LIBRARY.lock().map_err(|_| Code::Unknown)?;
    call(library.machine.as_ref().ok_or(Code::Uninitialized)?)
}

/// The code that `VCUDA_FAIL` asks of a call by its exported name.
#[must_use]
pub fn fault_of(name: &str) -> Option<i32> {
    fault::check(name)
}

/// The text of a code, for `nvmlErrorString`; with its final zero byte.
#[must_use]
pub fn error_string(code: i32) -> &'static str {
    match code {
        0 => "Success\0",
        1 => "Uninitialized\0",
        2 => "Invalid Argument\0",
        3 => "Not Supported\0",
        6 => "Not Found\0",
        7 => "Insufficient Size\0",
        9 => "Driver Not Loaded\0",
        15 => "GPU is lost\0",
        25 => "Argument version mismatch\0",
        _ => "Unknown Error\0",
    }
}

impl Device {
    /// The device of a number that a program passed as a handle.
    ///
    /// # Errors
    /// `InvalidArgument`: it is no handle of this machine.
    pub fn of_handle(machine: &Machine, handle: usize) -> Outcome<Device> {
        let index = handle.checked_sub(1).and_then(|index| u32::try_from(index).ok()).ok_or(Code::InvalidArgument)?;
        Device::of_index(machine, index)
    }

    /// The device of an index.
    ///
    /// # Errors
    /// `InvalidArgument`: there are fewer.
    pub fn of_index(machine: &Machine, index: u32) -> Outcome<Device> {
        if usize::try_from(index).is_ok_and(|index| index < machine.gpus.len()) {
            Ok(Device(index))
        } else {
            Err(Code::InvalidArgument)
        }
    }

    /// The device at a bus id, whose domain may have four or eight digits and whose function may be missing.
    ///
    /// # Errors
    /// `NotFound`: none is there.
    pub fn of_bus_id(machine: &Machine, bus_id: &str) -> Outcome<Device> {
        let numbers = |text: &str| -> Option<Vec<u32>> {
            text.split([':', '.']).take(3).map(|part| u32::from_str_radix(part, 16).ok()).collect()
        };
        let asked = numbers(bus_id).filter(|asked| asked.len() == 3).ok_or(Code::InvalidArgument)?;
        let found = machine.gpus.iter().position(|gpu| numbers(&gpu.bus_id).is_some_and(|numbers| numbers == asked));
        found.and_then(|index| u32::try_from(index).ok()).map(Device).ok_or(Code::NotFound)
    }

    /// What a program holds.
    #[must_use]
    pub fn handle(self) -> usize {
        usize::try_from(self.0).map_or(0, |index| index + 1)
    }

    /// The index.
    #[must_use]
    pub fn index(self) -> u32 {
        self.0
    }

    /// The GPU, unless it has fallen off the bus.
    ///
    /// # Errors
    /// `GpuIsLost`.
    pub fn gpu(self, machine: &Machine) -> Outcome<&Gpu> {
        if fault::lost(self.0).is_some() {
            return Err(Code::GpuIsLost);
        }
        usize::try_from(self.0).ok().and_then(|index| machine.gpus.get(index)).ok_or(Code::InvalidArgument)
    }

    /// Where it is plugged in.
    ///
    /// # Errors
    /// `GpuIsLost`.
    pub fn pci(self, machine: &Machine) -> Outcome<PciAddress> {
        let gpu = self.gpu(machine)?;
        Ok(pci_address(&gpu.bus_id, device_id(gpu.capability)))
    }

    /// The other end of one of its NVLinks.
    ///
    /// # Errors
    /// `InvalidArgument`: NVML has no such link; `NotSupported`: this GPU has fewer; `GpuIsLost`.
    pub fn remote_pci(self, machine: &Machine, link: u32) -> Outcome<PciAddress> {
        match self.remote(machine, link)? {
            Remote::Gpu(gpu) => Device(gpu).pci(machine),
            // Bus ids of switches lie where no machine file puts a GPU by itself.
            Remote::Switch(number) => {
                Ok(pci_address(&format!("0000:{:02X}:00.0", 0xe0 + number), 0x22a3 << 16 | NVIDIA))
            }
        }
    }

    /// Whether a link is up: all that exist are.
    ///
    /// # Errors
    /// As [`Device::remote_pci`].
    pub fn link_is_up(self, machine: &Machine, link: u32) -> Outcome<bool> {
        self.remote(machine, link).map(|_| true)
    }

    /// Whether a link has a capability of `nvmlNvLinkCapability_t`.
    ///
    /// # Errors
    /// As [`Device::remote_pci`], and `InvalidArgument` for an unknown capability.
    pub fn link_capability(self, machine: &Machine, link: u32, capability: u32) -> Outcome<bool> {
        if capability >= CAPABILITIES {
            return Err(Code::InvalidArgument);
        }
        self.remote(machine, link).map(|_| CAPABILITIES_PRESENT.contains(&capability))
    }

    fn remote(self, machine: &Machine, link: u32) -> Outcome<Remote> {
        let gpu = self.gpu(machine)?;
        // NVML counts up to 18 links, whatever the GPU has.
        if link >= 18 {
            return Err(Code::InvalidArgument);
        }
        if link >= gpu.nvlinks {
            return Err(Code::NotSupported);
        }
        let direct = machine.links.iter().filter_map(|link| match self.0 {
            end if end == link.a => Some((Remote::Gpu(link.b), link.count)),
            end if end == link.b => Some((Remote::Gpu(link.a), link.count)),
            _ => None,
        });
        let switched = machine.switches.iter().enumerate().filter(|(_, switch)| switch.gpus.contains(&self.0));
        let all = direct.chain(switched.map(|(number, switch)| (Remote::Switch(number), switch.links)));
        let mut before = link;
        for (remote, count) in all {
            if before < count {
                return Ok(remote);
            }
            before -= count;
        }
        Err(Code::NotSupported)
    }

    /// The status of what `index` of `nvmlGpuP2PCapsIndex_t` names, between two GPUs.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown index, `GpuIsLost`.
    pub fn p2p_status(self, other: Device, machine: &Machine, index: u32) -> Outcome<u32> {
        self.gpu(machine)?;
        other.gpu(machine)?;
        let linked = matches!(machine.path(self.0, other.0), Path::NvLink(_) | Path::NvSwitch(_));
        match index {
            P2P_NVLINK => Ok(if linked { P2P_OK } else { P2P_NOT_SUPPORTED }),
            P2P_ATOMICS if !machine.native_atomics(self.0, other.0) => Ok(P2P_NOT_SUPPORTED),
            index if index >= P2P_INDICES => Err(Code::InvalidArgument),
            _ if machine.can_access_peer(self.0, other.0) => Ok(P2P_OK),
            _ => Ok(P2P_CHIPSET_NOT_SUPPORTED),
        }
    }

    /// The value of a field, of those that tell about NVLinks.
    ///
    /// # Errors
    /// `NotSupported` for other fields, `GpuIsLost`.
    pub fn field(self, machine: &Machine, field: u32) -> Outcome<u64> {
        let gpu = self.gpu(machine)?;
        let switched = machine
            .switches
            .iter()
            .filter(|switch| switch.gpus.contains(&self.0))
            .map(|switch| switch.links)
            .sum::<u32>();
        match field {
            FIELD_LINK_SPEED if gpu.nvlinks > 0 => Ok(LINK_MB_S),
            FIELD_LINK_COUNT => Ok(u64::from(gpu.nvlinks)),
            FIELD_SWITCH_LINK_COUNT => Ok(u64::from(switched)),
            _ => Err(Code::NotSupported),
        }
    }

    /// The fabric's state. Where the attribute lies, the state is that of a fabric all the same, as in life.
    ///
    /// # Errors
    /// `GpuIsLost`.
    pub fn fabric(self, machine: &Machine) -> Outcome<Fabric> {
        self.gpu(machine)?;
        Ok(match machine.fabric {
            FabricAttr::None => Fabric { cluster_uuid: [0; 16], clique: 0, state: 0 },
            FabricAttr::Lies => Fabric { cluster_uuid: [0; 16], clique: 0, state: FABRIC_COMPLETED },
            FabricAttr::NoChannel | FabricAttr::Works => {
                Fabric { cluster_uuid: *b"vcuda's own rack", clique: 1, state: FABRIC_COMPLETED }
            }
        })
    }

    /// The fastest that the PCIe link does, in MB/s a lane as `nvmlDeviceGetPcieLinkMaxSpeed` counts.
    ///
    /// # Errors
    /// `GpuIsLost`.
    pub fn pcie_speed(self, machine: &Machine) -> Outcome<u32> {
        let generation = self.gpu(machine)?.pcie_generation;
        // Generation 3 has 8 GT/s, and each next one twice as much.
        Ok(8_000 << generation.saturating_sub(3))
    }
}

fn pci_address(bus_id: &str, device_id: u32) -> PciAddress {
    let mut numbers = bus_id.split([':', '.']).map(|part| u32::from_str_radix(part, 16).unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    PciAddress {
        numbers: (next(), next(), next()),
        device_id,
        bus_id: format!("0000{bus_id}"),
        bus_id_legacy: bus_id.to_owned(),
    }
}

/// Of the first product of each capability.
fn device_id(capability: (u32, u32)) -> u32 {
    let device = match capability.0 {
        8 => 0x20b2,
        9 => 0x2330,
        10 => 0x2901,
        _ => 0x2b85,
    };
    device << 16 | NVIDIA
}

#[cfg(test)]
mod tests {
    use super::{Code, Device};
    use crate::machine::Machine;

    #[test]
    fn links_lead_to_gpus_or_to_switches() {
        let mesh = Machine::load("8-cube-mesh").unwrap();
        let first = Device::of_index(&mesh, 0).unwrap();
        let ends: Vec<String> = (0..6).map(|link| first.remote_pci(&mesh, link).unwrap().bus_id_legacy).collect();
        let at = |gpu: usize| mesh.gpus[gpu].bus_id.clone();
        assert_eq!(ends, [at(1), at(2), at(3), at(3), at(4), at(4)]);
        assert_eq!(first.link_is_up(&mesh, 6), Err(Code::NotSupported));
        assert_eq!(first.link_is_up(&mesh, 18), Err(Code::InvalidArgument));
        let switched = Machine::load("2-nvswitch").unwrap();
        let gpu = Device::of_index(&switched, 1).unwrap();
        assert_eq!(gpu.remote_pci(&switched, 17).unwrap(), gpu.remote_pci(&switched, 0).unwrap());
        assert!(switched.gpus.iter().all(|other| other.bus_id != gpu.remote_pci(&switched, 0).unwrap().bus_id_legacy));
        assert_eq!((gpu.field(&switched, 91), gpu.field(&switched, 147)), (Ok(18), Ok(18)));
        assert!(gpu.link_capability(&switched, 0, 0).unwrap() && !gpu.link_capability(&switched, 0, 1).unwrap());
    }

    #[test]
    fn a_gpu_is_found_by_any_form_of_its_bus_id() {
        let machine = Machine::load("4-pcie").unwrap();
        let gpu = &machine.gpus[2];
        for text in [gpu.bus_id.clone(), format!("0000{}", gpu.bus_id), gpu.bus_id.to_lowercase()] {
            assert_eq!(Device::of_bus_id(&machine, &text).map(Device::index), Ok(2), "{text}");
        }
        assert_eq!(Device::of_bus_id(&machine, "0000:01:00.0"), Err(Code::NotFound));
        assert_eq!(Device::of_bus_id(&machine, "nonsense"), Err(Code::InvalidArgument));
        assert_eq!(Device::of_handle(&machine, 0), Err(Code::InvalidArgument));
        assert_eq!(Device::of_handle(&machine, 5), Err(Code::InvalidArgument));
    }

    #[test]
    fn peer_status_follows_the_paths() {
        let mesh = Machine::load("8-cube-mesh").unwrap();
        let device = |index| Device::of_index(&mesh, index).unwrap();
        assert_eq!(device(0).p2p_status(device(4), &mesh, 2), Ok(0));
        assert_eq!(device(0).p2p_status(device(5), &mesh, 2), Ok(5));
        assert_eq!(device(0).p2p_status(device(5), &mesh, 0), Ok(1));
        assert_eq!(device(0).p2p_status(device(5), &mesh, 9), Err(Code::InvalidArgument));
        assert_eq!(device(0).pcie_speed(&mesh), Ok(16_000));
    }
}
