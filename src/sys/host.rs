//! Facts about this machine and process: host name, boot id, wall clock, and the numbers of this process and thread.

use std::cell::Cell;
use std::ffi::CString;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::sys::limits;

/// The complete host name.
///
/// # Errors
/// [`crate::error::Kind::System`] if the system does not tell it.
pub fn hostname() -> Result<String> {
    let mut buffer = [0u8; HOST_NAME_BYTES];
    // SAFETY: the buffer is ours and writable for the length passed.
    let status = unsafe { libc::gethostname(buffer.as_mut_ptr().cast(), buffer.len()) };
    if status != 0 {
        return Err(Error::last_os("gethostname"));
    }
    // A name that fills the buffer may have no final zero.
    let end = buffer.iter().position(|byte| *byte == 0).unwrap_or(buffer.len());
    Ok(String::from_utf8_lossy(&buffer[..end]).into_owned())
}

/// The user whose rights this process has.
pub fn user_id() -> u32 {
    // SAFETY: the call takes nothing, and cannot fail.
    unsafe { libc::geteuid() }
}

/// A text that changes with each boot of the kernel; `None` if the system has none.
pub fn boot_id() -> Option<String> {
    known_boot_id().ok().flatten()
}

/// [`boot_id`], which is not taken for missing where it cannot be read for want of a descriptor.
///
/// # Errors
/// [`crate::error::Kind::System`] if no descriptor or no memory is left.
pub fn known_boot_id() -> Result<Option<String>> {
    match std::fs::read_to_string(BOOT_ID) {
        Ok(text) => Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty())),
        Err(error) if limits::is_exhausted(&error) => Err(Error::system(format!("reading {BOOT_ID}"), error)),
        // A container may hide the file: the caller then uses the host's name.
        Err(_) => Ok(None),
    }
}

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The kernel's number of this process.
pub fn process_id() -> u32 {
    std::process::id()
}

/// The kernel's number of this thread. Asked once in each thread.
#[inline(never)]
pub fn thread_id() -> u32 {
    thread_local! { static ID: Cell<(u32, u32)> = const { Cell::new((0, 0)) } }
    ID.with(|known| {
        let (process, thread) = known.get();
        // A forked child has its parent's memory but a process number of its own.
        if process == process_id() {
            return thread;
        }
        // SAFETY: the call has no arguments and cannot fail.
        let thread = u32::try_from(unsafe { libc::gettid() }).unwrap_or(0);
        known.set((process_id(), thread));
        thread
    })
}

/// The wall clock: the time since 1970, for log lines only. Deadlines use [`super::clock::now`].
pub fn wall_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a live timespec; a clock that fails leaves it as it is.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut time) };
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// `time` in the machine's zone as `strftime` prints it; empty where the format yields more than 256 bytes.
pub fn local_time(time: Duration, format: &str) -> String {
    let (Ok(format), Ok(seconds)) = (CString::new(format), libc::time_t::try_from(time.as_secs())) else {
        return String::new();
    };
    // SAFETY: `tm` is made of integers and a pointer, for all of which zero is a value.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live values of their types.
    if unsafe { libc::localtime_r(&raw const seconds, &raw mut parts) }.is_null() {
        return String::new();
    }
    let mut buffer = [0u8; LOCAL_TIME_BYTES];
    let (out, most) = (buffer.as_mut_ptr().cast(), buffer.len());
    // SAFETY: the buffer is writable for `most` bytes, the format ends in zero, `parts` was filled by localtime_r.
    let written = unsafe { libc::strftime(out, most, format.as_ptr(), &raw const parts) };
    String::from_utf8_lossy(&buffer[..written]).into_owned()
}

/// Linux allows 64 bytes; POSIX 255.
const HOST_NAME_BYTES: usize = 256;
/// The most bytes of a printed time.
const LOCAL_TIME_BYTES: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_has_a_name_and_the_thread_a_number() {
        let name = hostname().unwrap();
        assert!(!name.is_empty() && name.len() < HOST_NAME_BYTES);
        let here = thread_id();
        assert_eq!(here, thread_id());
        let there = crate::sys::thread::spawn("other", thread_id).unwrap().join().unwrap();
        assert!(there != 0 && there != here);
    }

    #[test]
    fn times_are_printed_and_bounded() {
        let time = Duration::from_secs(1_000_000_000);
        let year = local_time(time, "%Y");
        assert_eq!(year, "2001");
        assert_eq!(local_time(time, ""), "");
        assert_eq!(local_time(time, &"%F".repeat(100)), "");
        assert_eq!(local_time(Duration::from_secs(u64::MAX), "%Y"), "");
        assert!(wall_time().as_secs() > 1_500_000_000);
    }
}
