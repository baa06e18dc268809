//! Ranges in the pictures of NVIDIA's profilers: NVTX, where its library loads. A call allocates nothing for them.

use std::ffi::{CStr, c_char, c_int};

use crate::sys::fork::PerProcess;
use crate::sys::library::Library;

/// The two functions that the library is asked for.
#[derive(Debug)]
struct Ranges {
    push: unsafe extern "C" fn(*const c_char) -> c_int,
    pop: unsafe extern "C" fn() -> c_int,
}

/// Those of this process; `None` if the library does not load. A forked child looks again: its parent may have been in
/// the middle of it.
static RANGES: PerProcess<Option<Ranges>> = PerProcess::new();

/// Looks for the library. Whether ranges are shown from now on.
pub fn load() -> bool {
    RANGES.get_or_init(find).is_some()
}

fn find() -> Option<Ranges> {
    let library = Library::open(c"libnvToolsExt.so.1").or_else(|_| Library::open(c"libnvToolsExt.so")).ok()?;
    // SAFETY: the type that NVTX's header gives it.
    let push = unsafe { library.function(c"nvtxRangePushA") }?;
    // SAFETY: as above.
    let pop = unsafe { library.function(c"nvtxRangePop") }?;
    Some(Ranges { push, pop })
}

/// Begins a range of this thread. False where there are none: then nothing is to be ended.
pub fn push(name: &str) -> bool {
    let Some(Some(ranges)) = RANGES.get() else { return false };
    let mut text = [0u8; MOST_BYTES];
    // The last byte stays zero.
    let bytes = b"rsccl ".iter().chain(name.as_bytes());
    text[..MOST_BYTES - 1].iter_mut().zip(bytes).for_each(|(place, byte)| *place = *byte);
    let Ok(text) = CStr::from_bytes_until_nul(&text) else { return false };
    // SAFETY: the text ends in a zero byte and lives to the end of the call, which copies it.
    unsafe { (ranges.push)(text.as_ptr()) };
    true
}

/// Ends the range that this thread began last.
pub fn pop() {
    if let Some(Some(ranges)) = RANGES.get() {
        // SAFETY: it takes nothing.
        unsafe { (ranges.pop)() };
    }
}

/// Of a name, with the zero byte behind it.
const MOST_BYTES: usize = 64;
