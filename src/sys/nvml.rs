//! What NVIDIA's management library tells of the GPUs of this host: capability, links, PCI Express. The library is
//! loaded when it is asked, so that a program runs on machines without it.
//!
//! Three layers: the table of functions (`Library`), their results as `Option` (`Device`), and what others see
//! ([`Gpu`]).

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::Path;

use crate::sys::{gpus, library};

/// A GPU as NVML describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Domain, bus, device and function in lower case: `0000:3b:00.0`.
    pub bus_id: String,
    /// Compute capability: 80 for 8.0.
    pub capability: u32,
    /// Generation and lanes of its PCI Express link, where NVML tells.
    pub pcie: Option<(u32, u32)>,
    /// For each of its NVLinks that is up, the bus id of what it leads to.
    pub links: Vec<String>,
    /// Its UUID, as the driver gives it to programs; `None` where NVML writes none.
    pub uuid: Option<[u8; 16]>,
    /// Its place in an NVLink fabric that spans hosts, where it has joined one.
    pub clique: Option<FabricClique>,
}

/// GPUs with equal cluster and clique reach each other over NVLink, whichever hosts they are in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FabricClique {
    /// The cluster's UUID.
    pub cluster: [u8; 16],
    /// The number of the clique in it.
    pub number: u32,
}

/// The GPUs in NVML's order; `None` where the library cannot be loaded or refuses.
pub fn gpus() -> Option<Vec<Gpu>> {
    let library = Library::open()?;
    // SAFETY: `init` is `nvmlInit_v2`, which takes nothing and may be called at any time.
    (unsafe { (library.init)() } == SUCCESS).then_some(())?;
    let gpus = (0..library.count().unwrap_or(0)).filter_map(|index| library.gpu(index)).collect();
    // SAFETY: as above; it ends what `init` began, and no handle is used afterwards.
    unsafe { (library.shutdown)() };
    Some(gpus)
}

/// Whether kernels of one GPU read and write the memory of another, by their UUIDs: NVML knows GPUs too that the
/// environment hides from the driver. `None` where it does not say.
pub fn reaches(one: [u8; 16], other: [u8; 16]) -> Option<bool> {
    ask_of_two(one, other, |library, one, other| {
        let reads = library.peer_status(one, other, P2P_READ)?;
        Some(reads && library.peer_status(one, other, P2P_WRITE)?)
    })
}

/// What NVML says of two GPUs, by their UUIDs.
fn ask_of_two(
    one: [u8; 16],
    other: [u8; 16],
    ask: impl FnOnce(&Library, Handle, Handle) -> Option<bool>,
) -> Option<bool> {
    let library = Library::open()?;
    // SAFETY: as in `gpus`.
    (unsafe { (library.init)() } == SUCCESS).then_some(())?;
    let handles = (0..library.count().unwrap_or(0)).filter_map(|index| library.handle(index));
    let named: Vec<(Handle, [u8; 16])> = handles.filter_map(|handle| Some((handle, library.uuid(handle)?))).collect();
    let handle = |uuid| named.iter().find(|(_, own)| *own == uuid).map(|(handle, _)| *handle);
    let told = handle(one).zip(handle(other)).and_then(|(one, other)| ask(&library, one, other));
    // SAFETY: as in `gpus`.
    unsafe { (library.shutdown)() };
    told
}

/// The clique of a GPU, by its UUID. `None` where it has joined none, or NVML does not say.
pub fn clique_of(gpu: [u8; 16]) -> Option<FabricClique> {
    gpus()?.into_iter().find(|told| told.uuid == Some(gpu))?.clique
}

/// Whether NVLinks join two GPUs, by their UUIDs. `None` where NVML does not say.
pub fn are_linked(one: [u8; 16], other: [u8; 16]) -> Option<bool> {
    ask_of_two(one, other, |library, one, other| library.peer_status(one, other, P2P_NVLINK))
}

/// The functions of NVML that are used, with the types of nvml.h.
struct Library {
    init: unsafe extern "C" fn() -> c_int,
    shutdown: unsafe extern "C" fn() -> c_int,
    count: unsafe extern "C" fn(*mut c_uint) -> c_int,
    by_index: unsafe extern "C" fn(c_uint, *mut Handle) -> c_int,
    pci: unsafe extern "C" fn(Handle, *mut PciInfo) -> c_int,
    capability: unsafe extern "C" fn(Handle, *mut c_int, *mut c_int) -> c_int,
    link_state: unsafe extern "C" fn(Handle, c_uint, *mut c_uint) -> c_int,
    link_remote: unsafe extern "C" fn(Handle, c_uint, *mut PciInfo) -> c_int,
    pcie_generation: unsafe extern "C" fn(Handle, *mut c_uint) -> c_int,
    pcie_width: unsafe extern "C" fn(Handle, *mut c_uint) -> c_int,
    uuid: unsafe extern "C" fn(Handle, *mut c_char, c_uint) -> c_int,
    peer_status: Option<unsafe extern "C" fn(Handle, Handle, c_uint, *mut c_uint) -> c_int>,
    /// Drivers before 545 have none.
    fabric: Option<unsafe extern "C" fn(Handle, *mut FabricInfo) -> c_int>,
}

type Handle = *mut c_void;

const SUCCESS: c_int = 0;
/// `NVML_P2P_CAPS_INDEX_READ`
const P2P_READ: c_uint = 0;
/// `NVML_P2P_CAPS_INDEX_WRITE`
const P2P_WRITE: c_uint = 1;
/// `NVML_P2P_CAPS_INDEX_NVLINK`
const P2P_NVLINK: c_uint = 2;
/// `NVML_P2P_STATUS_OK`
const P2P_OK: c_uint = 0;
/// More links than any GPU has (`NVML_NVLINK_MAX_LINKS` is 18 up to Blackwell).
const MOST_LINKS: c_uint = 36;
/// More GPUs than any host has.
const MOST_GPUS: c_uint = 256;

/// `nvmlPciInfo_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct PciInfo {
    legacy: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    device_id: c_uint,
    subsystem_id: c_uint,
    bus_id: [c_char; 32],
}

const _: () = assert!(size_of::<PciInfo>() == 68);

/// `nvmlGpuFabricInfo_v2_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct FabricInfo {
    version: c_uint,
    cluster: [u8; 16],
    status: c_int,
    clique: c_uint,
    state: u8,
    health: c_uint,
}

const _: () = assert!(size_of::<FabricInfo>() == 36);

/// `nvmlGpuFabricInfo_v2`: the structure's bytes, and 2 in the highest byte.
const FABRIC_VERSION: c_uint = 36 | 2 << 24;
/// `NVML_GPU_FABRIC_STATE_COMPLETED`
const FABRIC_COMPLETED: u8 = 3;
/// `NVML_DEVICE_UUID_V2_BUFFER_SIZE`
const UUID_BYTES: usize = 96;

impl PciInfo {
    const EMPTY: PciInfo =
        PciInfo { legacy: [0; 16], domain: 0, bus: 0, device: 0, device_id: 0, subsystem_id: 0, bus_id: [0; 32] };

    fn text(&self) -> String {
        format!("{:04x}:{:02x}:{:02x}.0", self.domain, self.bus, self.device)
    }
}

/// A function of the library, as the field that takes it has it; the function around ends with `None` where the
/// library lacks it.
macro_rules! load {
    ($library:expr, $name:literal) => {{
        // SAFETY: the fields of `Library` have the types that nvml.h declares for these names.
        unsafe { $library.function($name) }?
    }};
}

impl Library {
    /// Loads the library, which then stays loaded: NVIDIA's own starts threads that must not lose their code.
    fn open() -> Option<Library> {
        let library = library::Library::open(c"libnvidia-ml.so.1").ok()?;
        Some(Library {
            init: load!(library, c"nvmlInit_v2"),
            shutdown: load!(library, c"nvmlShutdown"),
            count: load!(library, c"nvmlDeviceGetCount_v2"),
            by_index: load!(library, c"nvmlDeviceGetHandleByIndex_v2"),
            pci: load!(library, c"nvmlDeviceGetPciInfo_v3"),
            capability: load!(library, c"nvmlDeviceGetCudaComputeCapability"),
            link_state: load!(library, c"nvmlDeviceGetNvLinkState"),
            link_remote: load!(library, c"nvmlDeviceGetNvLinkRemotePciInfo_v2"),
            pcie_generation: load!(library, c"nvmlDeviceGetCurrPcieLinkGeneration"),
            pcie_width: load!(library, c"nvmlDeviceGetCurrPcieLinkWidth"),
            uuid: load!(library, c"nvmlDeviceGetUUID"),
            // SAFETY: as in `load!`.
            peer_status: unsafe { library.function(c"nvmlDeviceGetP2PStatus") },
            // SAFETY: as in `load!`.
            fabric: unsafe { library.function(c"nvmlDeviceGetGpuFabricInfoV") },
        })
    }

    fn count(&self) -> Option<c_uint> {
        let mut count = 0;
        // SAFETY: the place is ours and lives through the call.
        (unsafe { (self.count)(&raw mut count) } == SUCCESS).then_some(count.min(MOST_GPUS))
    }

    fn handle(&self, index: c_uint) -> Option<Handle> {
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: the place is ours and lives through the call.
        (unsafe { (self.by_index)(index, &raw mut handle) } == SUCCESS).then_some(handle)
    }

    /// Whether one GPU can do to another what the index says.
    fn peer_status(&self, one: Handle, other: Handle, index: c_uint) -> Option<bool> {
        let mut status = c_uint::MAX;
        // SAFETY: the handles are NVML's of this session, and the place is ours.
        let asked = unsafe { (self.peer_status?)(one, other, index, &raw mut status) };
        (asked == SUCCESS).then_some(status == P2P_OK)
    }

    fn gpu(&self, index: c_uint) -> Option<Gpu> {
        let handle = self.handle(index)?;
        let mut pci = PciInfo::EMPTY;
        // SAFETY: the handle is NVML's of just now, and the place is ours.
        (unsafe { (self.pci)(handle, &raw mut pci) } == SUCCESS).then_some(())?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: as above.
        (unsafe { (self.capability)(handle, &raw mut major, &raw mut minor) } == SUCCESS).then_some(())?;
        let capability = u32::try_from(major * 10 + minor).ok()?;
        let links = (0..MOST_LINKS).filter_map(|link| self.remote(handle, link)).collect();
        let pcie = self.number(handle, self.pcie_generation).zip(self.number(handle, self.pcie_width));
        let (uuid, clique) = (self.uuid(handle), self.clique(handle));
        Some(Gpu { bus_id: pci.text(), capability, pcie, links, uuid, clique })
    }

    /// The 16 bytes of `GPU-00112233-4455-6677-8899-aabbccddeeff`.
    fn uuid(&self, handle: Handle) -> Option<[u8; 16]> {
        let mut text: [c_char; UUID_BYTES] = [0; UUID_BYTES];
        let room = c_uint::try_from(UUID_BYTES).ok()?;
        // SAFETY: the handle is NVML's of this session, and the place is ours and has the length that is told.
        (unsafe { (self.uuid)(handle, text.as_mut_ptr(), room) } == SUCCESS).then_some(())?;
        let bytes = text.map(|letter| letter.to_ne_bytes()[0]);
        uuid_of(CStr::from_bytes_until_nul(&bytes).ok()?.to_str().ok()?)
    }

    fn clique(&self, handle: Handle) -> Option<FabricClique> {
        let mut info =
            FabricInfo { version: FABRIC_VERSION, cluster: [0; 16], status: 0, clique: 0, state: 0, health: 0 };
        // SAFETY: the handle is NVML's of this session, and the place is ours and begins with its version.
        (unsafe { (self.fabric?)(handle, &raw mut info) } == SUCCESS).then_some(())?;
        let has_joined = info.state == FABRIC_COMPLETED && info.status == SUCCESS && info.cluster != [0; 16];
        has_joined.then_some(FabricClique { cluster: info.cluster, number: info.clique })
    }

    /// What a link leads to, if the GPU has it and it is up.
    fn remote(&self, handle: Handle, link: c_uint) -> Option<String> {
        let mut up = 0;
        // SAFETY: the handle is NVML's of this session, and the place is ours.
        (unsafe { (self.link_state)(handle, link, &raw mut up) } == SUCCESS && up == 1).then_some(())?;
        let mut pci = PciInfo::EMPTY;
        // SAFETY: as above.
        (unsafe { (self.link_remote)(handle, link, &raw mut pci) } == SUCCESS).then(|| pci.text())
    }

    fn number(&self, handle: Handle, ask: unsafe extern "C" fn(Handle, *mut c_uint) -> c_int) -> Option<u32> {
        let mut number = 0;
        // SAFETY: `ask` is a function of NVML that writes one number; the handle is of this session, and the place is
        // ours.
        (unsafe { ask(handle, &raw mut number) } == SUCCESS).then_some(number)
    }
}

pub(super) fn uuid_of(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text.strip_prefix("GPU-")?.bytes().filter(|byte| *byte != b'-').collect();
    let mut uuid = [0; 16];
    if digits.len() != 2 * uuid.len() {
        return None;
    }
    for (byte, pair) in uuid.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(uuid)
}

/// Whether this process may use memory of GPUs of other hosts: an IMEX channel was given to it. `root` is `/`, or what
/// stands for it in tests.
pub fn has_imex_channel(root: &Path) -> bool {
    let channels = std::fs::read_dir(root.join("dev/nvidia-caps-imex-channels")).into_iter().flatten().flatten();
    channels.take(MOST_CHANNELS).any(|channel| gpus::may_open(&channel.path(), libc::R_OK | libc::W_OK))
}

/// The driver makes at most this many channels.
const MOST_CHANNELS: usize = 2048;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_sixteen_bytes() {
        let uuid = uuid_of("GPU-00112233-4455-6677-8899-aabbccddeeff").unwrap();
        assert_eq!((uuid[0], uuid[1], uuid[15]), (0, 0x11, 0xff));
        for wrong in
            ["", "GPU-", "00112233-4455-6677-8899-aabbccddeeff", "GPU-0011", "GPU-zz112233-4455-6677-8899-aabbccddeeff"]
        {
            assert_eq!(uuid_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_channel_that_can_be_opened_counts() {
        let root = tempfile::tempdir().unwrap();
        assert!(!has_imex_channel(root.path()));
        let folder = root.path().join("dev/nvidia-caps-imex-channels");
        std::fs::create_dir_all(&folder).unwrap();
        assert!(!has_imex_channel(root.path()));
        std::fs::write(folder.join("channel0"), "").unwrap();
        assert!(has_imex_channel(root.path()));
    }
}
