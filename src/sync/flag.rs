//! A counter that one rank raises and others wait for.

use std::ptr::NonNull;
use std::time::Duration;

use crate::sync::backoff::note_sleeper;
use crate::sync::primitive::{AtomicU32, AtomicU64, Ordering};
use crate::sys::futex;

/// A counter in shared memory. Layouts give each flag a cache line of its own ([`Flag::LINE`]), whose other bytes may
/// carry the data that the flag announces.
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
    /// The bytes of a flag.
    pub const BYTES: usize = 16;
    /// The bytes from one flag to the next, so that no two share a cache line.
    pub const LINE: usize = 64;

    /// The flag at `place`.
    ///
    /// # Safety
    /// `place` is aligned to 16 bytes and points to 16 bytes of zeroed or flag memory that stay mapped for `'a`, and
    /// every access to them goes through `Flag`.
    pub unsafe fn at<'a>(place: NonNull<u8>) -> &'a Flag {
        // SAFETY: the caller keeps alignment, size and life; any bit pattern is a valid flag, and all access is atomic.
        unsafe { place.cast::<Flag>().as_ref() }
    }

    /// Raises the value and wakes the waiters that sleep on it. Everything that the writer wrote before is visible to
    /// those who see the value.
    #[inline]
    pub fn raise(&self, value: u64) {
        // Pairs with the acquire in `value`: data written before the flag is read after it.
        self.value.store(value, Ordering::Release);
        // Pairs with the heavy barrier in `park`, which pays for both: here it only keeps the compiler from moving the
        // load up.
        futex::light_barrier();
        if self.parked.load(Ordering::Relaxed) != 0 {
            self.wake();
        }
    }

    /// Wakes the waiters that sleep on the flag without changing it, so that they check their conditions.
    #[cold]
    pub fn wake(&self) {
        note_sleeper();
        futex::wake_all(&self.value);
    }

    /// The last raised value.
    #[inline]
    pub fn value(&self) -> u64 {
        // Pairs with the release in `raise`.
        self.value.load(Ordering::Acquire)
    }

    /// Whether the value has reached `target`.
    #[inline]
    pub fn reached(&self, target: u64) -> bool {
        self.value() >= target
    }

    /// Sleeps at most `timeout`, until the value may have reached `target`.
    pub fn park(&self, target: u64, timeout: Duration) {
        // Relaxed: the barrier below orders it before the check of the value.
        self.parked.fetch_add(1, Ordering::Relaxed);
        // Partner of the light barrier in `raise`: after it, either the writer sees `parked` or this thread sees the
        // value.
        let certain = futex::heavy_barrier();
        let value = self.value();
        if value < target {
            let slice = if certain { timeout } else { timeout.min(UNCERTAIN_SLICE) };
            futex::wait(&self.value, value, slice);
            note_sleeper();
        }
        // Relaxed: a writer that still sees the old count makes a wake that nobody needs.
        self.parked.fetch_sub(1, Ordering::Relaxed);
    }

    /// Sleeps at most `timeout`, until one of `flags` may have reached the value beside it, or `word` no longer has the
    /// value beside it. False where the system cannot: then this thread has not slept.
    pub(super) fn park_any(flags: &[(&Flag, u64)], word: (&AtomicU64, u64), timeout: Duration) -> bool {
        for (flag, _) in flags {
            // Relaxed: as in `park`.
            flag.parked.fetch_add(1, Ordering::Relaxed);
        }
        // As in `park`, once for all flags.
        let is_certain = flags.is_empty() || futex::heavy_barrier();
        let values = flags.iter().map(|(flag, target)| (flag, flag.value(), target));
        let mut words = vec![word];
        let mut is_up = false;
        for (flag, value, target) in values {
            is_up |= value >= *target;
            words.push((&flag.value, value));
        }
        let slept = is_up || (is_certain && futex::wait_any(&words, timeout));
        for (flag, _) in flags {
            // Relaxed: as in `park`.
            flag.parked.fetch_sub(1, Ordering::Relaxed);
        }
        slept
    }
}

/// How late a park may notice a change if the kernel has no global barrier.
const UNCERTAIN_SLICE: Duration = Duration::from_millis(1);

#[cfg(test)]
#[cfg(not(loom))]
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

#[cfg(all(test, loom))]
pub(crate) mod models {
    use super::*;
    use crate::sync::primitive::Arc;
    use crate::sys::futex::{Membarrier, model};

    /// A sleep that only a wake ends.
    pub(crate) const EVER: Duration = Duration::MAX;

    impl Flag {
        /// A flag with value 0. loom numbers its atomics, so zeroed memory is not a valid flag under loom.
        pub(crate) fn unraised() -> Flag {
            Flag { value: AtomicU64::new(0), parked: AtomicU32::new(0) }
        }

        /// Constructs a flag at `place`.
        ///
        /// # Safety
        /// As [`Flag::at`], before any other access to the place.
        pub(crate) unsafe fn lay(place: NonNull<u8>) {
            // SAFETY: the caller keeps size, alignment and solitude.
            unsafe { place.cast::<Flag>().write(Flag::unraised()) };
        }

        /// Waits; only a wake ends a sleep.
        pub(crate) fn await_value(&self, target: u64) {
            while !self.reached(target) {
                self.park(target, EVER);
            }
        }
    }

    /// One thread raises the flag to `last`; for each value on the way, another thread sleeps until it is reached.
    fn sleepers(membarrier: Membarrier, last: u64) {
        model(membarrier, move || {
            let flag = Arc::new(Flag::unraised());
            let sleeper = |target| {
                let flag = Arc::clone(&flag);
                loom::thread::spawn(move || flag.await_value(target))
            };
            let sleepers: Vec<_> = (1..=last).map(sleeper).collect();
            (1..=last).for_each(|value| flag.raise(value));
            for sleeper in sleepers {
                sleeper.join().expect("loom ends the model before a panic comes here");
            }
            // The count of sleepers is back to 0: the next raise makes no system call.
            assert_eq!(flag.parked.load(Ordering::Relaxed), 0);
        });
    }

    #[test]
    fn whoever_sleeps_is_woken() {
        sleepers(Membarrier::Works, 2);
    }

    #[test]
    fn without_a_barrier_a_sleep_ends_by_itself() {
        sleepers(Membarrier::Refused, 1);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_barrier_that_does_nothing_loses_a_wake() {
        sleepers(Membarrier::Lies, 1);
    }

    /// Two ranks that wait for each other in turn, as in every exchange.
    #[test]
    fn ranks_that_wait_for_each_other_meet() {
        model(Membarrier::Works, || {
            let flags = Arc::new([Flag::unraised(), Flag::unraised()]);
            let theirs = Arc::clone(&flags);
            let peer = loom::thread::spawn(move || {
                for turn in 1..=2 {
                    theirs[0].await_value(turn);
                    theirs[1].raise(turn);
                }
            });
            for turn in 1..=2 {
                flags[0].raise(turn);
                flags[1].await_value(turn);
            }
            peer.join().expect("loom ends the model before a panic comes here");
        });
    }
}
