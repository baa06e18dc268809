//! Sleeping on a word of memory, and the one-sided barrier that keeps the waker's side free of fences.

use std::sync::atomic::compiler_fence;
use std::time::Duration;

use crate::sync::primitive::{AtomicU64, Ordering, fence};

/// Sleeps while the low half of `*word` is that of `expected`, at most `timeout`. Returns on a wake, a change, a signal or the
/// time-out: the caller looks again in any case. Works between processes that map the same page.
pub fn wait(word: &AtomicU64, expected: u64, timeout: Duration) {
    let limit = libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(timeout.subsec_nanos()),
    };
    let expected = u32::try_from(expected & u64::from(u32::MAX)).expect("masked to 32 bits");
    // SAFETY: `word` outlives the call, `limit` is a valid timespec; the kernel only reads both.
    unsafe { libc::syscall(libc::SYS_futex, low_half(word), libc::FUTEX_WAIT, expected, &raw const limit) };
}

/// Wakes everyone who sleeps on `word`.
pub fn wake_all(word: &AtomicU64) {
    // SAFETY: FUTEX_WAKE reads no memory of ours; the address only names the queue.
    unsafe { libc::syscall(libc::SYS_futex, low_half(word), libc::FUTEX_WAKE, i32::MAX) };
}

/// What the kernel compares: a futex has 32 bits.
fn low_half(word: &AtomicU64) -> *const u32 {
    let whole = word.as_ptr().cast::<u32>();
    if cfg!(target_endian = "big") { whole.wrapping_add(1) } else { whole }
}

/// Lets [`heavy_barrier`] of other processes reach this one. Called once per process before it publishes to parked waiters;
/// false where the kernel has no such barrier (waiters then sleep in short slices).
pub fn register_barrier() -> bool {
    // Miri is a kernel without it.
    // SAFETY: membarrier takes no pointer.
    !cfg!(miri)
        && unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0 }
}

/// A full fence on every running thread of every registered process. The waiter pays for it before it parks, so that a publisher
/// needs only a store of the flag and a load of the parked count, with no fence between: either the publisher's load sees the
/// count, or the waiter's next look sees the flag. False where the kernel refuses; only this thread is fenced then.
pub fn heavy_barrier() -> bool {
    fence(Ordering::SeqCst);
    // SAFETY: membarrier takes no pointer.
    !cfg!(miri) && unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) == 0 }
}

/// The publisher's half, which costs nothing: between its store and its load it keeps the compiler from swapping the two. The
/// processor may swap them; its partner, [`heavy_barrier`], sees to it that this is as if it had not.
#[inline(always)]
pub fn light_barrier() {
    compiler_fence(Ordering::SeqCst);
}

/// Sleeps for `duration` with nothing to wake it.
pub fn nap(duration: Duration) {
    let nobody = AtomicU64::new(0);
    wait(&nobody, 0, duration);
}
