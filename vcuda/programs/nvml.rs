//! What NVML tells about the GPUs that it counts.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

type Call0 = unsafe extern "C" fn() -> c_int;
type Count = unsafe extern "C" fn(*mut c_uint) -> c_int;
type ByIndex = unsafe extern "C" fn(c_uint, *mut usize) -> c_int;
type Text = unsafe extern "C" fn(usize, *mut c_char, c_uint) -> c_int;
type Link = unsafe extern "C" fn(usize, c_uint, *mut c_uint) -> c_int;
type Status = unsafe extern "C" fn(usize, usize, c_uint, *mut c_uint) -> c_int;

/// `NVML_P2P_CAPS_INDEX_NVLINK`.
const P2P_NVLINK: c_uint = 2;
const LINKS: c_uint = 18;
const INSUFFICIENT_SIZE: c_int = 7;
const UNINITIALIZED: c_int = 1;

/// The address of a function of the library, as that function's type.
macro_rules! function {
    ($library:expr, $name:literal, $type:ty) => {{
        // SAFETY: the library stays open, and the name ends in a zero byte.
        let address = unsafe { libc::dlsym($library, concat!($name, "\0").as_ptr().cast()) };
        if address.is_null() {
            return Err(concat!("NVML has no ", $name).to_owned());
        }
        // SAFETY: nvml.h declares a function of this type by this name.
        unsafe { std::mem::transmute::<*mut c_void, $type>(address) }
    }};
}

pub(crate) fn nvml() -> Result<(), String> {
    // SAFETY: the name ends in a zero byte; the library's initialisers do what the library does.
    let library = unsafe { libc::dlopen(c"libnvidia-ml.so.1".as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        return Err("there is no libnvidia-ml.so.1: start the program by `vcuda run`".to_owned());
    }
    let (init, shutdown) = (function!(library, "nvmlInit_v2", Call0), function!(library, "nvmlShutdown", Call0));
    let count = function!(library, "nvmlDeviceGetCount_v2", Count);
    let mut gpus = 0;
    // SAFETY: the place is ours.
    let before = unsafe { count(&raw mut gpus) };
    if before != UNINITIALIZED {
        return Err(format!("before nvmlInit the count answers {before}"));
    }
    // SAFETY: the call takes nothing.
    ok("nvmlInit_v2", unsafe { init() })?;
    // SAFETY: the place is ours.
    ok("nvmlDeviceGetCount_v2", unsafe { count(&raw mut gpus) })?;
    println!("NVML devices: {gpus}");
    let devices = (0..gpus).map(|index| describe(library, index)).collect::<Result<Vec<usize>, String>>()?;
    peers(library, &devices)?;
    // SAFETY: the call takes nothing.
    ok("nvmlShutdown", unsafe { shutdown() })
}

fn describe(library: *mut c_void, index: c_uint) -> Result<usize, String> {
    let by_index = function!(library, "nvmlDeviceGetHandleByIndex_v2", ByIndex);
    let uuid = function!(library, "nvmlDeviceGetUUID", Text);
    let link_state = function!(library, "nvmlDeviceGetNvLinkState", Link);
    let mut device = 0;
    // SAFETY: the place is ours.
    ok("nvmlDeviceGetHandleByIndex_v2", unsafe { by_index(index, &raw mut device) })?;
    let mut text = [0; 96];
    // SAFETY: the place is ours and larger than the length that is told.
    let short = unsafe { uuid(device, text.as_mut_ptr(), 8) };
    if short != INSUFFICIENT_SIZE {
        return Err(format!("a UUID in 8 bytes: {short}"));
    }
    // SAFETY: the place is ours and has 96 bytes.
    ok("nvmlDeviceGetUUID", unsafe { uuid(device, text.as_mut_ptr(), 96) })?;
    // SAFETY: the call has put a final zero byte.
    let uuid = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned();
    let mut up = 0;
    for link in 0..LINKS {
        let mut active = 0;
        // SAFETY: the place is ours. A GPU with fewer links answers that it has none of this number.
        if unsafe { link_state(device, link, &raw mut active) } == 0 {
            up += active;
        }
    }
    println!("NVML device {index}: {uuid}, {up} NVLinks");
    Ok(device)
}

fn peers(library: *mut c_void, devices: &[usize]) -> Result<(), String> {
    let p2p_status = function!(library, "nvmlDeviceGetP2PStatus", Status);
    for (a, from) in devices.iter().enumerate() {
        for (b, to) in devices.iter().enumerate().filter(|(b, _)| *b != a) {
            let mut status = 0;
            // SAFETY: handles are the library's own, and the place is ours.
            ok("nvmlDeviceGetP2PStatus", unsafe { p2p_status(*from, *to, P2P_NVLINK, &raw mut status) })?;
            println!("NVLink {a} to {b}: {}", if status == 0 { "yes" } else { "no" });
        }
    }
    Ok(())
}

fn ok(call: &str, code: c_int) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("{call} answered {code}")) }
}
