//! `libnvidia-ml.so.1` of the virtual GPU machine: C functions that check their pointers and ask `vcuda::nvml`.

use std::ffi::{CStr, c_char, c_int, c_longlong, c_uint};

use vcuda::nvml::{self, Code, Device, Outcome, PciAddress};

/// `nvmlDevice_t`: opaque; the machine's numbers of GPUs from 1.
pub type Handle = usize;

/// `nvmlPciInfo_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PciInfo {
    bus_id_legacy: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    device_id: c_uint,
    subsystem_id: c_uint,
    bus_id: [c_char; 32],
}

/// `nvmlFieldValue_t`, with its union as 64 bits.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct FieldValue {
    field: c_uint,
    scope: c_uint,
    timestamp: c_longlong,
    latency_us: c_longlong,
    value_type: c_uint,
    code: c_int,
    value: u64,
}

/// `nvmlGpuFabricInfo_v2_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct FabricInfo {
    version: c_uint,
    cluster_uuid: [u8; 16],
    status: c_int,
    clique: c_uint,
    state: u8,
    health_mask: c_uint,
}

const _: () = assert!(size_of::<PciInfo>() == 68 && size_of::<FieldValue>() == 40 && size_of::<FabricInfo>() == 36);

/// The size in the low bytes, the number of the version in the highest: 36 bytes, version 2.
const FABRIC_VERSION_2: c_uint = 36 | 2 << 24;
/// `NVML_VALUE_TYPE_UNSIGNED_LONG_LONG`.
const UNSIGNED_LONG_LONG: c_uint = 3;

macro_rules! entries {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*) $body:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// Pointers are null or lead to what NVML's documentation says, writable where it writes.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            answer(stringify!($name), || $body)
        }
    )*};
}

entries! {
    /// Reads the machine.
    fn nvmlInit_v2() nvml::init();
    /// Forgets it.
    fn nvmlShutdown() nvml::shutdown();
    /// How many GPUs the host has.
    fn nvmlDeviceGetCount_v2(count: *mut c_uint) nvml::with(|machine| {
        put(count, c_uint::try_from(machine.gpus.len()).map_err(|_| Code::Unknown)?)
    });
    /// The GPU of an index.
    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut Handle) nvml::with(|machine| {
        put(device, Device::of_index(machine, index)?.handle())
    });
    /// The GPU at a bus id.
    fn nvmlDeviceGetHandleByPciBusId_v2(bus_id: *const c_char, device: *mut Handle) nvml::with(|machine| {
        put(device, Device::of_bus_id(machine, text_at(bus_id)?)?.handle())
    });
    /// The index of a GPU.
    fn nvmlDeviceGetIndex(device: Handle, index: *mut c_uint) nvml::with(|machine| {
        put(index, Device::of_handle(machine, device)?.index())
    });
    /// The UUID of a GPU.
    fn nvmlDeviceGetUUID(device: Handle, uuid: *mut c_char, length: c_uint) nvml::with(|machine| {
        put_text(uuid, length, &Device::of_handle(machine, device)?.gpu(machine)?.uuid_text())
    });
    /// The product's name.
    fn nvmlDeviceGetName(device: Handle, name: *mut c_char, length: c_uint) nvml::with(|machine| {
        put_text(name, length, &Device::of_handle(machine, device)?.gpu(machine)?.name)
    });
    /// Where a GPU is plugged in.
    fn nvmlDeviceGetPciInfo_v3(device: Handle, pci: *mut PciInfo) nvml::with(|machine| {
        put(pci, pci_info(&Device::of_handle(machine, device)?.pci(machine)?))
    });
    /// Whether a link is up.
    fn nvmlDeviceGetNvLinkState(device: Handle, link: c_uint, active: *mut c_uint) nvml::with(|machine| {
        put(active, c_uint::from(Device::of_handle(machine, device)?.link_is_up(machine, link)?))
    });
    /// Where a link leads.
    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(device: Handle, link: c_uint, pci: *mut PciInfo) nvml::with(|machine| {
        put(pci, pci_info(&Device::of_handle(machine, device)?.remote_pci(machine, link)?))
    });
    /// What a link can do.
    fn nvmlDeviceGetNvLinkCapability(device: Handle, link: c_uint, capability: c_uint, result: *mut c_uint) nvml::with(|machine| {
        put(result, c_uint::from(Device::of_handle(machine, device)?.link_capability(machine, link, capability)?))
    });
    /// Compute capability.
    fn nvmlDeviceGetCudaComputeCapability(device: Handle, major: *mut c_int, minor: *mut c_int) nvml::with(|machine| {
        let (first, second) = Device::of_handle(machine, device)?.gpu(machine)?.capability;
        put(major, c_int::try_from(first).map_err(|_| Code::Unknown)?)?;
        put(minor, c_int::try_from(second).map_err(|_| Code::Unknown)?)
    });
    /// What two GPUs can do with each other's memory.
    fn nvmlDeviceGetP2PStatus(first: Handle, second: Handle, index: c_uint, status: *mut c_uint) nvml::with(|machine| {
        let (first, second) = (Device::of_handle(machine, first)?, Device::of_handle(machine, second)?);
        put(status, first.p2p_status(second, machine, index)?)
    });
    /// Fields by number, each with its own code.
    fn nvmlDeviceGetFieldValues(device: Handle, count: c_int, values: *mut FieldValue) nvml::with(|machine| {
        let device = Device::of_handle(machine, device)?;
        let count = usize::try_from(count).map_err(|_| Code::InvalidArgument)?;
        if values.is_null() || count == 0 {
            return Err(Code::InvalidArgument);
        }
        // SAFETY: the caller promises so many values at this place, which is not null.
        for value in unsafe { std::slice::from_raw_parts_mut(values, count) } {
            let found = device.field(machine, value.field);
            value.code = found.err().map_or(0, |code| code as c_int);
            (value.value_type, value.value) = (UNSIGNED_LONG_LONG, found.unwrap_or(0));
        }
        Ok(())
    });
    /// The fabric's state.
    fn nvmlDeviceGetGpuFabricInfoV(device: Handle, info: *mut FabricInfo) nvml::with(|machine| {
        let fabric = Device::of_handle(machine, device)?.fabric(machine)?;
        if info.is_null() {
            return Err(Code::InvalidArgument);
        }
        // SAFETY: it is not null, and the caller promises a structure that begins with its version.
        let version = unsafe { (*info).version };
        if version != FABRIC_VERSION_2 {
            return Err(Code::ArgumentVersionMismatch);
        }
        let (cluster_uuid, clique, state) = (fabric.cluster_uuid, fabric.clique, fabric.state);
        put(info, FabricInfo { version, cluster_uuid, status: 0, clique, state, health_mask: 0 })
    });
    /// PCIe generation of the link now.
    fn nvmlDeviceGetCurrPcieLinkGeneration(device: Handle, generation: *mut c_uint) nvml::with(|machine| {
        put(generation, Device::of_handle(machine, device)?.gpu(machine)?.pcie_generation)
    });
    /// PCIe lanes of the link now.
    fn nvmlDeviceGetCurrPcieLinkWidth(device: Handle, width: *mut c_uint) nvml::with(|machine| {
        put(width, Device::of_handle(machine, device)?.gpu(machine)?.pcie_width)
    });
    /// The fastest that the PCIe link does.
    fn nvmlDeviceGetPcieLinkMaxSpeed(device: Handle, speed: *mut c_uint) nvml::with(|machine| {
        put(speed, Device::of_handle(machine, device)?.pcie_speed(machine)?)
    });
    /// The driver's version.
    fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) nvml::with(|machine| {
        put_text(version, length, &machine.driver_name)
    });
}

/// The text of a code.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(code: c_int) -> *const c_char {
    nvml::error_string(code).as_ptr().cast()
}

/// The code of a call; the list of faults comes first.
fn answer(name: &str, call: impl FnOnce() -> Outcome<()>) -> c_int {
    match nvml::fault_of(name) {
        Some(code) => code,
        None => call().err().map_or(0, |code| code as c_int),
    }
}

fn put<T>(place: *mut T, value: T) -> Outcome<()> {
    if place.is_null() {
        return Err(Code::InvalidArgument);
    }
    // SAFETY: it is not null, and the caller of the C function promises a writable place of this type.
    unsafe { place.write(value) };
    Ok(())
}

fn put_text(place: *mut c_char, length: c_uint, text: &str) -> Outcome<()> {
    if place.is_null() {
        return Err(Code::InvalidArgument);
    }
    if usize::try_from(length).is_ok_and(|length| length <= text.len()) {
        return Err(Code::InsufficientSize);
    }
    // SAFETY: the place is not null and has room for the text and its final zero byte, as the caller promises by `length`.
    let room = unsafe { std::slice::from_raw_parts_mut(place.cast::<u8>(), text.len() + 1) };
    room[..text.len()].copy_from_slice(text.as_bytes());
    room[text.len()] = 0;
    Ok(())
}

fn text_at<'a>(place: *const c_char) -> Outcome<&'a str> {
    if place.is_null() {
        return Err(Code::InvalidArgument);
    }
    // SAFETY: it is not null, and the caller promises a text that ends in a zero byte.
    let text = unsafe { CStr::from_ptr(place) };
    text.to_str().map_err(|_| Code::InvalidArgument)
}

fn pci_info(address: &PciAddress) -> PciInfo {
    let (domain, bus, device) = address.numbers;
    PciInfo {
        bus_id_legacy: fixed(&address.bus_id_legacy),
        domain,
        bus,
        device,
        device_id: address.device_id,
        subsystem_id: 0,
        bus_id: fixed(&address.bus_id),
    }
}

/// A text in a field of fixed size, with at least one zero byte behind it.
fn fixed<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (place, byte) in field.iter_mut().zip(text.bytes().take(N - 1)) {
        *place = byte.cast_signed();
    }
    field
}
