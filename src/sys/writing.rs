//! Writing without the signals that end whoever writes: SIGXFSZ beyond the limit of file sizes (`RLIMIT_FSIZE`,
//! `ulimit -f`), SIGPIPE to a pipe that nobody reads.
//!
//! A library must not end its program: [`without_signal`] makes an error of them. What the program itself does with
//! these signals stays as it is. Memory behind a descriptor is a file for the limit of file sizes.

use std::io;

use crate::sync::primitive::Ordering;
use crate::sync::primitive::statics::AtomicBool;

/// Runs `change`, which writes to a file or a pipe, or makes a file longer. Where the kernel would send a signal as
/// well, it is the error alone: `EFBIG` or `EPIPE`.
///
/// # Errors
/// Those of `change`.
pub fn without_signal<T>(change: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let blocked = Blocked::begin()?;
    let changed = change();
    let error = changed.as_ref().err().and_then(io::Error::raw_os_error);
    if let Some(signal) = SIGNALS.into_iter().find_map(|(of, signal)| (error == Some(of)).then_some(signal)) {
        blocked.take(signal);
    }
    changed
}

/// For a program that is ours: a file that may not grow is an error in all that this process writes from now on.
/// Children that [`super::process::Group`] starts get back what this process found.
pub fn ignore_the_limit_of_files() {
    // SAFETY: SIG_IGN is a disposition, no handler of ours is involved.
    let before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    // Relaxed: set before this process starts another.
    IGNORES_NOW.store(before == libc::SIG_DFL, Ordering::Relaxed);
}

/// Gives the signal its default action back, if [`ignore_the_limit_of_files`] has taken it. Between fork and exec.
pub(super) fn heed_the_limit_of_files() {
    if IGNORES_NOW.load(Ordering::Relaxed) {
        // SAFETY: SIG_DFL is a disposition; the call is async-signal-safe.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_DFL) };
    }
}

static IGNORES_NOW: AtomicBool = AtomicBool::new(false);

/// The errors, and the signals that the kernel sends with them to the thread that writes.
const SIGNALS: [(libc::c_int, libc::c_int); 2] = [(libc::EFBIG, libc::SIGXFSZ), (libc::EPIPE, libc::SIGPIPE)];

/// The signals are blocked in this thread, until this is dropped.
struct Blocked {
    before: libc::sigset_t,
    /// What the program had waiting already: only signals that it had blocked itself.
    waiting: libc::sigset_t,
}

impl Blocked {
    fn begin() -> io::Result<Blocked> {
        let (signals, mut before, mut waiting) = (set(&SIGNALS.map(|(_, signal)| signal)), set(&[]), set(&[]));
        // SAFETY: both sets are ours and initialised.
        let status = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, &raw mut before) };
        if status != 0 {
            return Err(io::Error::from_raw_os_error(status));
        }
        if SIGNALS.iter().any(|(_, signal)| has(&before, *signal)) {
            // SAFETY: the set is ours and writable; the call cannot fail with it.
            unsafe { libc::sigpending(&raw mut waiting) };
        }
        Ok(Blocked { before, waiting })
    }

    /// Takes the signal that the kernel has just sent to this thread, if it did.
    fn take(&self, signal: libc::c_int) {
        let (only, now) = (set(&[signal]), libc::timespec { tv_sec: 0, tv_nsec: 0 });
        while !has(&self.waiting, signal) {
            // SAFETY: the set and the time are initialised; nothing more is asked for.
            let taken = unsafe { libc::sigtimedwait(&raw const only, std::ptr::null_mut(), &raw const now) };
            // Another signal's handler may interrupt the call. Any other error means that no signal was sent.
            if taken >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                return;
            }
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set is what the system gave as this thread's; the call cannot fail with it.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

fn has(set: &libc::sigset_t, signal: libc::c_int) -> bool {
    // SAFETY: the set is initialised; the number is libc's own.
    unsafe { libc::sigismember(set, signal) == 1 }
}

fn set(signals: &[libc::c_int]) -> libc::sigset_t {
    // SAFETY: a set is made of integers, for which zero is a value.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is ours and writable.
    unsafe { libc::sigemptyset(&raw mut set) };
    for signal in signals {
        // SAFETY: `set` is initialised; the numbers are libc's own.
        unsafe { libc::sigaddset(&raw mut set, *signal) };
    }
    set
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use super::*;
    use crate::error::Kind;
    use crate::sys::memory::SharedMemory;
    use crate::sys::room::alone;

    /// From now on, in this process, files end at this length.
    fn limit(bytes: u64) {
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: the call reads one `rlimit`.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }, 0);
    }

    fn waits(signal: libc::c_int) -> bool {
        has(&Blocked::begin().expect("a mask").waiting, signal)
    }

    /// Regression: a limit of file sizes ended ranks by SIGXFSZ, without a word.
    #[test]
    fn memory_beyond_the_limit_of_file_sizes_is_an_error_with_a_remedy() {
        assert!(alone(|| {
            limit(64 << 10);
            let refused = SharedMemory::memfd(1 << 20).err();
            let told =
                refused.is_some_and(|error| error.kind() == Kind::System && error.message().contains("ulimit -f"));
            told && SharedMemory::memfd(64 << 10).is_ok()
        }));
    }

    #[test]
    fn a_line_beyond_the_limit_is_an_error_and_the_mask_is_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = File::create(folder.path().join("log")).unwrap();
        assert!(alone(|| {
            limit(10);
            let written = without_signal(|| file.write_all(&[b'x'; 11]));
            let mask = Blocked::begin().expect("a mask").before;
            written.is_err_and(|error| error.raw_os_error() == Some(libc::EFBIG)) && !has(&mask, libc::SIGXFSZ)
        }));
    }

    #[test]
    fn a_line_that_nobody_reads_is_an_error() {
        assert!(alone(|| {
            // SAFETY: Rust's tests ignore the signal; here it has its usual effect, which is to end the process.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
            let (reader, mut writer) = std::io::pipe().expect("a pipe");
            drop(reader);
            let written = without_signal(|| writer.write_all(b"line"));
            written.is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
        }));
    }

    /// A program that has blocked the signal, and that waits for it, keeps its own.
    #[test]
    fn what_the_program_has_waiting_stays() {
        assert!(alone(|| {
            let outer = Blocked::begin().expect("a mask");
            limit(0);
            let refused = || SharedMemory::memfd(4096).is_err();
            let clean = refused() && !waits(libc::SIGXFSZ);
            // SAFETY: sends a signal that is blocked to this thread.
            unsafe { libc::raise(libc::SIGXFSZ) };
            let kept = refused() && waits(libc::SIGXFSZ);
            outer.take(libc::SIGXFSZ);
            clean && kept && !waits(libc::SIGXFSZ)
        }));
    }
}
