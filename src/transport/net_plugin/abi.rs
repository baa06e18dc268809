//! The binary interface of NCCL's network plug-ins, versions 8, 11 and 12.
//!
//! A plug-in exports a structure `ncclNetPlugin_vN` for each version that it has: its name and its functions. A
//! structure of one version is no beginning of the next one's. Functions are read as options: a plug-in may lack some.
//! Versions 11 and 12 differ in the properties of a device alone. `tests/machine/net_plugin/net_plugin.h` has the same
//! layouts in C, against which a test holds these.

use std::ffi::{c_char, c_int, c_void};

/// `ncclNetProperties_v8_t`: a device.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct NetPropertiesV8 {
    pub(super) name: *const c_char,
    pub(super) pci_path: *const c_char,
    pub(super) guid: u64,
    pub(super) pointers: c_int,
    pub(super) registers_globally: c_int,
    pub(super) speed: c_int,
    pub(super) port: c_int,
    pub(super) latency: f32,
    pub(super) most_comms: c_int,
    pub(super) most_receives: c_int,
    pub(super) device_type: c_int,
    pub(super) device_version: c_int,
}

/// `ncclNetProperties_v11_t` up to `netDeviceVersion`, with which version 12 begins too.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct NetPropertiesHead {
    pub(super) name: *const c_char,
    pub(super) pci_path: *const c_char,
    pub(super) guid: u64,
    pub(super) pointers: c_int,
    pub(super) registers_globally: c_int,
    pub(super) forces_flush: c_int,
    pub(super) speed: c_int,
    pub(super) port: c_int,
    pub(super) latency: f32,
    pub(super) most_comms: c_int,
    pub(super) most_receives: c_int,
    pub(super) device_type: c_int,
    pub(super) device_version: c_int,
}

/// `ncclNetProperties_v11_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct NetPropertiesV11 {
    pub(super) head: NetPropertiesHead,
    pub(super) parts: c_int,
    pub(super) part: [c_int; 4],
    pub(super) most_message_bytes: usize,
    pub(super) most_collective_bytes: usize,
    pub(super) most_requests_in_one: c_int,
}

/// `ncclNetProperties_v12_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct NetPropertiesV12 {
    pub(super) head: NetPropertiesHead,
    pub(super) parts: c_int,
    pub(super) part: [c_int; 8],
    pub(super) most_message_bytes: usize,
    pub(super) most_collective_bytes: usize,
    pub(super) most_requests_in_one: c_int,
    pub(super) rail: i16,
    pub(super) plane: i16,
}

/// `ncclNetCommConfig_v11_t` and `_v12_t`. Plug-ins read it without a look at the pointer.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct NetCommConfig {
    pub(super) traffic_class: c_int,
}

/// `ncclDebugLogger_t`, whose arguments after the format are variadic: level, subsystems, file, line, format.
pub(super) type NetLogger = unsafe extern "C" fn(c_int, u64, *const c_char, c_int, *const c_char);

/// `ncclProfilerCallback_t`: a handle, type, a handle, the plug-in's number, more.
pub(super) type NetProfiler = unsafe extern "C" fn(*mut *mut c_void, c_int, *mut c_void, i64, *mut c_void) -> NetResult;

/// `ncclResult_t`.
pub(super) type NetResult = c_int;

/// What `connect` and `accept` may give for kernels that drive the network themselves. It is not used.
pub(super) type NetDeviceHandle = *mut c_void;

pub(super) type NetDevices = unsafe extern "C" fn(*mut c_int) -> NetResult;
/// The device, and properties of the version.
pub(super) type NetProperties = unsafe extern "C" fn(c_int, *mut c_void) -> NetResult;
pub(super) type NetAccept = unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut NetDeviceHandle) -> NetResult;
/// A connection, memory and its length, the kind of pointer, where to put the registration.
pub(super) type NetRegister =
    unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, *mut *mut c_void) -> NetResult;
/// As above, with an offset and the descriptor of a dma-buf before the registration.
pub(super) type NetRegisterDmaBuf =
    unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, u64, c_int, *mut *mut c_void) -> NetResult;
pub(super) type NetDeregister = unsafe extern "C" fn(*mut c_void, *mut c_void) -> NetResult;
/// A connection, how many receives, their memory, lengths and registrations, where to put the request.
pub(super) type NetFlush = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut *mut c_void,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
) -> NetResult;
/// A request, whether it is done, and the lengths of its messages.
pub(super) type NetTest = unsafe extern "C" fn(*mut c_void, *mut c_int, *mut c_int) -> NetResult;
pub(super) type NetClose = unsafe extern "C" fn(*mut c_void) -> NetResult;

/// `ncclNet_v8_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct NetV8 {
    pub(super) name: *const c_char,
    pub(super) init: Option<unsafe extern "C" fn(NetLogger) -> NetResult>,
    pub(super) devices: Option<NetDevices>,
    pub(super) properties: Option<NetProperties>,
    /// The device, room for a handle, the listener.
    pub(super) listen: Option<NetListenV8>,
    /// The device, the handle of a listener, the connection.
    pub(super) connect: Option<NetConnectV8>,
    pub(super) accept: Option<NetAccept>,
    pub(super) register: Option<NetRegister>,
    pub(super) register_dma_buf: Option<NetRegisterDmaBuf>,
    pub(super) deregister: Option<NetDeregister>,
    pub(super) send: Option<NetSendV8>,
    pub(super) receive: Option<NetReceiveV8>,
    pub(super) flush: Option<NetFlush>,
    pub(super) test: Option<NetTest>,
    pub(super) close_send: Option<NetClose>,
    pub(super) close_receive: Option<NetClose>,
    pub(super) close_listen: Option<NetClose>,
    pub(super) device_registration: *const c_void,
    pub(super) receive_consumed: *const c_void,
}

pub(super) type NetListenV8 = unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void) -> NetResult;
pub(super) type NetConnectV8 =
    unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void, *mut NetDeviceHandle) -> NetResult;
/// A connection, memory and its length, a tag, the registration, the request.
pub(super) type NetSendV8 =
    unsafe extern "C" fn(*mut c_void, *mut c_void, c_int, c_int, *mut c_void, *mut *mut c_void) -> NetResult;
/// A connection, how many receives, their memory, lengths, tags and registrations, the request.
pub(super) type NetReceiveV8 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut *mut c_void,
    *mut c_int,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
) -> NetResult;

/// `ncclNet_v11_t` and `ncclNet_v12_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct NetV11 {
    pub(super) name: *const c_char,
    /// The context, the communicator's number, its configuration, the logger, the profiler.
    pub(super) init: Option<NetInitV11>,
    pub(super) devices: Option<NetDevices>,
    pub(super) properties: Option<NetProperties>,
    /// As in version 8, behind the context.
    pub(super) listen: Option<NetListenV11>,
    pub(super) connect: Option<NetConnectV11>,
    pub(super) accept: Option<NetAccept>,
    pub(super) register: Option<NetRegister>,
    pub(super) register_dma_buf: Option<NetRegisterDmaBuf>,
    pub(super) deregister: Option<NetDeregister>,
    pub(super) send: Option<NetSendV11>,
    pub(super) receive: Option<NetReceiveV11>,
    pub(super) flush: Option<NetFlush>,
    pub(super) test: Option<NetTest>,
    pub(super) close_send: Option<NetClose>,
    pub(super) close_receive: Option<NetClose>,
    pub(super) close_listen: Option<NetClose>,
    pub(super) device_registration: *const c_void,
    pub(super) receive_consumed: *const c_void,
    pub(super) make_virtual_device: *const c_void,
    pub(super) finalize: Option<NetClose>,
    pub(super) set_attributes: *const c_void,
}

pub(super) type NetInitV11 =
    unsafe extern "C" fn(*mut *mut c_void, u64, *mut NetCommConfig, NetLogger, NetProfiler) -> NetResult;
pub(super) type NetListenV11 = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, *mut *mut c_void) -> NetResult;
pub(super) type NetConnectV11 =
    unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, *mut *mut c_void, *mut NetDeviceHandle) -> NetResult;
/// As in version 8; a length of another width, and a profiler's handle behind the registration.
pub(super) type NetSendV11 = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    usize,
    c_int,
    *mut c_void,
    *mut c_void,
    *mut *mut c_void,
) -> NetResult;
/// As in version 8; lengths of another width, and profiler's handles behind the registrations.
pub(super) type NetReceiveV11 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut *mut c_void,
    *mut usize,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
) -> NetResult;

/// Bytes of a handle.
pub(super) const HANDLE_BYTES: usize = 128;
/// Memory of the host, as a bit of `pointers` and as the kind of a pointer.
pub(super) const POINTER_HOST: c_int = 1;
/// The same of memory of a GPU by its address, and by a DMA-BUF.
pub(super) const POINTER_CUDA: c_int = 2;
pub(super) const POINTER_DMA_BUF: c_int = 4;
/// A network that the host drives.
pub(super) const DEVICE_HOST: c_int = 0;
/// A traffic class that nobody has chosen.
pub(super) const TRAFFIC_CLASS_UNSET: c_int = -1;

/// The code of success.
pub(super) const SUCCESS: NetResult = 0;
/// What NCCL calls its codes, from 0 on.
pub(super) const RESULTS: [&str; 8] = [
    "ncclSuccess",
    "ncclUnhandledCudaError",
    "ncclSystemError",
    "ncclInternalError",
    "ncclInvalidArgument",
    "ncclInvalidUsage",
    "ncclRemoteError",
    "ncclInProgress",
];
/// The code of a call that may not be made.
pub(super) const INVALID_USAGE: NetResult = 5;
/// The code of an error that the other end has made.
pub(super) const REMOTE_ERROR: NetResult = 6;

/// Levels of the logger, and bits of its subsystems.
pub(super) const LOG_WARN: c_int = 2;
pub(super) const LOG_INFO: c_int = 3;
pub(super) const LOG_ABORT: c_int = 4;
pub(super) const LOG_OF_INIT: u64 = 1;

const _: () = assert!(size_of::<NetPropertiesV8>() == 64 && size_of::<NetPropertiesHead>() == 64);
const _: () = assert!(size_of::<NetPropertiesV11>() == 112 && size_of::<NetPropertiesV12>() == 128);
const _: () = assert!(size_of::<NetV8>() == 19 * 8 && size_of::<NetV11>() == 22 * 8);
