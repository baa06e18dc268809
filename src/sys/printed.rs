//! Texts that C libraries hand over as a format and its arguments, as `printf` takes them.

use std::ffi::{CStr, c_char, c_int, c_void};

unsafe extern "C" {
    fn vsnprintf(into: *mut c_char, bytes: usize, format: *const c_char, arguments: *mut c_void) -> c_int;
}

/// The text, or the beginning of a long one, without what would end a line or control a terminal.
///
/// # Safety
/// `format` is null or ends in a zero byte; `arguments` is what the platform's C hands on as a `va_list`, and has what
/// the format asks for.
pub unsafe fn text(format: *const c_char, arguments: *mut c_void) -> String {
    if format.is_null() {
        return String::new();
    }
    let mut room = [0u8; MOST_BYTES];
    // SAFETY: the room and its length, of which the C library writes no more; the rest is the caller's word.
    let wanted = unsafe { vsnprintf(room.as_mut_ptr().cast(), room.len(), format, arguments) };
    if wanted < 0 {
        return String::new();
    }
    let text = CStr::from_bytes_until_nul(&room).unwrap_or_default().to_string_lossy();
    text.trim_end().chars().map(|one| if one.is_control() { ' ' } else { one }).collect()
}

/// The longest text, and the zero byte behind it.
const MOST_BYTES: usize = 1024;
