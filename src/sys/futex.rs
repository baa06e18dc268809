//! Sleeping on a word of memory, and an asymmetric barrier that spares the waking side a fence.

use std::sync::atomic::compiler_fence;
use std::time::Duration;

use crate::sync::primitive::{AtomicU64, Ordering, fence};

/// Sleeps at most `timeout` while the low half of `*word` equals that of `expected`. Returns on a wake, a change, a
/// signal or the time-out, so the caller must check the word again. Works between processes that map the same page.
pub fn wait(word: &AtomicU64, expected: u64, timeout: Duration) {
    let limit = libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(timeout.subsec_nanos()),
    };
    let expected = u32::try_from(expected & u64::from(u32::MAX)).expect("masked to 32 bits");
    // SAFETY: `word` outlives the call, `limit` is a valid timespec; the kernel only reads both.
    unsafe { libc::syscall(libc::SYS_futex, low_half(word), libc::FUTEX_WAIT, expected, &raw const limit) };
}

/// Sleeps at most `timeout` while each of `words` has the value beside it, as [`wait`] compares one. False where the
/// kernel cannot wait for so many words (before Linux 5.16 for one only): then this thread has not slept.
pub fn wait_any(words: &[(&AtomicU64, u64)], timeout: Duration) -> bool {
    if let [(word, expected)] = words {
        wait(word, *expected, timeout);
        return true;
    }
    // Miri does not have this call.
    if cfg!(miri) {
        return false;
    }
    let waiters: Vec<FutexWaiter> = words
        .iter()
        .map(|(word, expected)| FutexWaiter {
            value: *expected & u64::from(u32::MAX),
            address: low_half(word).expose_provenance() as u64,
            flags: FUTEX_32,
            unused: 0,
        })
        .collect();
    let mut limit = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `limit` is a live timespec, which the kernel fills.
    if unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut limit) } != 0 {
        return false;
    }
    let nanoseconds = limit.tv_nsec + i64::from(timeout.subsec_nanos());
    let seconds = libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX);
    limit.tv_sec = limit.tv_sec.saturating_add(seconds).saturating_add(nanoseconds / 1_000_000_000);
    limit.tv_nsec = nanoseconds % 1_000_000_000;
    // SAFETY: the kernel reads as many waiters as the length says, from a vector that lives to the end of the call, the
    // words that they name, which `words` borrows, and the limit.
    let woken = unsafe {
        libc::syscall(
            libc::SYS_futex_waitv,
            waiters.as_ptr(),
            waiters.len(),
            0,
            &raw const limit,
            libc::CLOCK_MONOTONIC,
        )
    };
    let error = std::io::Error::last_os_error().raw_os_error();
    woken >= 0 || matches!(error, Some(libc::EAGAIN | libc::EINTR | libc::ETIMEDOUT))
}

/// `struct futex_waitv`.
#[repr(C)]
struct FutexWaiter {
    value: u64,
    address: u64,
    flags: u32,
    unused: u32,
}

/// `FUTEX2_SIZE_U32`, of words that other processes may map.
const FUTEX_32: u32 = 2;

/// Wakes every thread that sleeps on `word`.
pub fn wake_all(word: &AtomicU64) {
    // SAFETY: FUTEX_WAKE reads no memory of ours; the address only names the queue.
    unsafe { libc::syscall(libc::SYS_futex, low_half(word), libc::FUTEX_WAKE, i32::MAX) };
}

/// The half that the kernel compares: a futex has 32 bits.
fn low_half(word: &AtomicU64) -> *const u32 {
    let whole = word.as_ptr().cast::<u32>();
    if cfg!(target_endian = "big") { whole.wrapping_add(1) } else { whole }
}

/// Makes this process a target of [`heavy_barrier`]. Called once per process before it publishes to parked waiters.
/// False if the kernel has no such barrier: waiters then sleep in short slices.
pub fn register_barrier() -> bool {
    // Miri does not have this call.
    // SAFETY: membarrier takes no pointer.
    !cfg!(miri)
        && unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0 }
}

/// A full fence on every running thread of every registered process. The waiter pays for it before it parks, so that a
/// publisher needs only a store of the flag and a load of the parked count, with no fence between them: either the
/// publisher's load sees the count, or the waiter's next look sees the flag. False if the kernel refuses; then only
/// this thread is fenced.
pub fn heavy_barrier() -> bool {
    fence(Ordering::SeqCst);
    // SAFETY: membarrier takes no pointer.
    !cfg!(miri) && unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) == 0 }
}

/// The publisher's half, which costs no instruction: it only keeps the compiler from swapping the store and the load.
/// The processor may still swap them; its partner, [`heavy_barrier`], makes that harmless.
#[inline(always)]
pub fn light_barrier() {
    compiler_fence(Ordering::SeqCst);
}

/// Sleeps for `duration`; nothing wakes it earlier.
pub fn nap(duration: Duration) {
    let nobody = AtomicU64::new(0);
    wait(&nobody, 0, duration);
}
