//! A counter that one rank raises and others wait for.

use std::ptr::NonNull;
use std::sync::atomic::compiler_fence;
use std::time::Duration;

use crate::sync::primitive::{AtomicU32, AtomicU64, Ordering};
use crate::sys::futex;

/// A counter in shared memory. Layouts give each a cache line of its own, [`Flag::LINE`], whose rest may carry what the flag tells of.
///
/// ```text
/// offset  width  meaning
/// 0       8      value: raised by its one writer, never lowered
/// 8       4      parked: how many waiters sleep on the low half of value
/// 12      4      unused
/// ```
#[derive(Debug)]
#[repr(C, align(16))]
pub struct Flag {
    value: AtomicU64,
    parked: AtomicU32,
}

const _: () = assert!(size_of::<Flag>() == Flag::BYTES);

impl Flag {
    /// Bytes that a flag takes.
    pub const BYTES: usize = 16;
    /// Bytes from one flag to the next, so that no two share a cache line.
    pub const LINE: usize = 64;

    /// The flag at `place`.
    ///
    /// # Safety
    /// `place` is aligned to 16 bytes and leads to 16 bytes of zeroed or flag memory that stay mapped for `'a`, and everyone who
    /// touches them does it through `Flag`.
    pub unsafe fn at<'a>(place: NonNull<u8>) -> &'a Flag {
        // SAFETY: the caller keeps alignment, size and life; any bit pattern is a valid flag, and all access is atomic.
        unsafe { place.cast::<Flag>().as_ref() }
    }

    /// Raises the value and wakes whoever sleeps on it. All that the writer wrote before is seen by whoever sees the value.
    #[inline]
    pub fn raise(&self, value: u64) {
        // Pairs with the acquire in `value`: data written before the flag is read after it.
        self.value.store(value, Ordering::Release);
        // The compiler must not move the load above the store. The processor may; `park` pays for that with a heavy barrier.
        compiler_fence(Ordering::SeqCst);
        if self.parked.load(Ordering::Relaxed) != 0 {
            self.wake();
        }
    }

    /// Wakes whoever sleeps on the flag without changing it, so that they look around.
    #[cold]
    pub fn wake(&self) {
        futex::wake_all(self.low_half());
    }

    /// The value as last raised.
    #[inline]
    pub fn value(&self) -> u64 {
        // Pairs with the release in `raise`.
        self.value.load(Ordering::Acquire)
    }

    /// Whether the value has come to `target`.
    #[inline]
    pub fn reached(&self, target: u64) -> bool {
        self.value() >= target
    }

    /// Sleeps until the value may have come to `target`, at most `timeout`.
    pub fn park(&self, target: u64, timeout: Duration) {
        self.parked.fetch_add(1, Ordering::SeqCst);
        // Partner of the missing fence in `raise`: after it, either the writer sees `parked` or we see its value.
        let certain = futex::heavy_barrier();
        let value = self.value();
        if value < target {
            let slice = if certain { timeout } else { timeout.min(UNCERTAIN_SLICE) };
            futex::wait(self.low_half(), low(value), slice);
        }
        self.parked.fetch_sub(1, Ordering::SeqCst);
    }

    fn low_half(&self) -> &AtomicU32 {
        let whole = self.value.as_ptr().cast::<AtomicU32>();
        let half = if cfg!(target_endian = "big") { whole.wrapping_add(1) } else { whole };
        // SAFETY: both halves of an AtomicU64 are aligned and live as long as it; only the kernel looks through this reference.
        unsafe { &*half }
    }
}

fn low(value: u64) -> u32 {
    u32::try_from(value & u64::from(u32::MAX)).expect("masked to 32 bits")
}

/// How long a park may miss a wake where the kernel has no global barrier.
const UNCERTAIN_SLICE: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::primitive::Arc;
    use crate::sys::{clock, thread};

    #[test]
    fn a_parked_waiter_is_woken() {
        futex::register_barrier();
        let flags = Arc::new([const { Flag { value: AtomicU64::new(0), parked: AtomicU32::new(0) } }; 2]);
        let theirs = Arc::clone(&flags);
        let echo = thread::spawn("echo", move || {
            for turn in 1..=2000 {
                while !theirs[0].reached(turn) {
                    theirs[0].park(turn, Duration::from_secs(20));
                }
                theirs[1].raise(turn);
            }
        })
        .unwrap();
        let start = clock::now();
        for turn in 1..=2000 {
            flags[0].raise(turn);
            while !flags[1].reached(turn) {
                flags[1].park(turn, Duration::from_secs(20));
            }
        }
        echo.join().unwrap();
        // A single lost wake would take 20 s.
        assert!(start.elapsed() < Duration::from_secs(19), "a wake was lost");
    }
}
