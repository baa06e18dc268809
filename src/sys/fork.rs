//! Detects forked children: a child has its parent's memory, but none of its threads.

use crate::sync::primitive::{OnceLock, Ordering, statics};

/// The process in which a value was made. Checking it costs one load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Birthplace(u64);

impl Birthplace {
    /// The current process.
    pub fn here() -> Birthplace {
        static WATCHED: OnceLock<()> = OnceLock::new();
        WATCHED.get_or_init(|| {
            // This fails only without memory. Then calls in forked children are not refused; nothing else is lost.
            // SAFETY: the handler is a function of this library; it makes one atomic store, as a forked child may.
            let _refused = unsafe { libc::pthread_atfork(None, None, Some(count)) };
        });
        // Relaxed: a forked child counts before it runs anything else.
        Birthplace(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this is the process that called [`Birthplace::here`], and not a forked child of it.
    #[inline]
    pub fn is_here(self) -> bool {
        // Relaxed: see `here`.
        FORKS.load(Ordering::Relaxed) == self.0
    }
}

/// How many forks lie between this process and its first ancestor that loaded the library.
static FORKS: statics::AtomicU64 = statics::AtomicU64::new(0);

extern "C" fn count() {
    // Relaxed: a child begins with one thread.
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Runs `body` in a forked child; yields whether it returned true within a time limit. `body` must not print or wait
/// for another thread.
#[cfg(test)]
#[cfg(not(loom))]
pub(crate) fn in_child(body: impl FnOnce() -> bool) -> bool {
    use std::time::Duration;

    use crate::sync::Deadline;
    use crate::sys::{clock, futex};

    // SAFETY: the child runs `body` alone and ends without returning; the C library keeps its allocator usable there.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    if child == 0 {
        let is_fine = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(false);
        // SAFETY: ends the process; destructors and buffers are the parent's.
        unsafe { libc::_exit(i32::from(!is_fine)) };
    }
    let (mut status, deadline) = (0, Deadline::after(Duration::from_secs(20)));
    loop {
        // SAFETY: `status` is ours; the child is ours and is waited for here only.
        let ended = unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) };
        if ended == child {
            return libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
        }
        if deadline.passed(clock::now()) {
            // SAFETY: the child is ours and unreaped, so the number is its.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        futex::nap(Duration::from_millis(1));
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_child_knows_that_it_is_one_and_has_a_birthplace_of_its_own() {
        let mine = Birthplace::here();
        assert!(mine.is_here());
        assert!(in_child(|| {
            let own = Birthplace::here();
            !mine.is_here() && own.is_here() && in_child(|| !own.is_here() && !mine.is_here())
        }));
        assert!(mine.is_here());
    }
}
