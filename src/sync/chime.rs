//! What threads of this process ring for one that sleeps.

use std::time::Duration;

use crate::sync::primitive::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Flag, Mirror};
use crate::sys::futex;

/// Counts how often it was rung. One thread sleeps on it, together with flags: it reads the count first, then looks for
/// work, and does not fall asleep where the count has changed meanwhile.
#[derive(Debug, Default)]
pub struct Chime {
    rung: AtomicU64,
    has_sleeper: AtomicBool,
}

impl Chime {
    /// Wakes the thread that sleeps on it, or keeps it from falling asleep. What the caller has written before is
    /// visible to that thread. Without a sleeper it costs no system call.
    pub(crate) fn ring(&self) {
        // SeqCst, both: their partners are the store and the kernel's look in `sleep`. Either this thread sees the
        // sleeper, or the kernel sees the new count; with less, both could miss each other, and the sleep would last.
        self.rung.fetch_add(1, Ordering::SeqCst);
        if self.has_sleeper.load(Ordering::SeqCst) {
            futex::wake_all(&self.rung);
        }
    }

    /// How often it was rung.
    pub(crate) fn count(&self) -> u64 {
        // Pairs with `ring`: what was written before a ring that is counted is seen by whoever reads the count.
        self.rung.load(Ordering::Acquire)
    }

    /// Sleeps until the chime has rung more than `heard` times or one of `flags` may have reached the value beside it,
    /// at most `timeout`. False where the system cannot: then this thread has not slept.
    pub(crate) fn sleep(&self, heard: u64, flags: &[(&Flag, u64)], timeout: Duration) -> bool {
        // SeqCst: see `ring`.
        self.has_sleeper.store(true, Ordering::SeqCst);
        let slept = Flag::park_any(flags, (&self.rung, heard), timeout);
        // Relaxed: who still sees a sleeper makes a wake that nobody needs.
        self.has_sleeper.store(false, Ordering::Relaxed);
        slept
    }
}

/// It rings for an abort.
impl Mirror for Chime {
    fn raise(&self) {
        self.ring();
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::ptr::NonNull;

    use super::*;
    use crate::error::Error;
    use crate::sync::AbortFlag;
    use crate::sync::primitive::Arc;
    use crate::sys::clock;

    const LONG: Duration = Duration::from_secs(60);

    /// A flag's memory.
    #[derive(Default)]
    #[repr(C, align(16))]
    struct Place([u64; 2]);

    fn flag() -> &'static Flag {
        let place: &'static mut Place = Box::leak(Box::default());
        // SAFETY: aligned to 16 bytes, zeroed, never freed, and used as a flag only.
        unsafe { Flag::at(NonNull::from(place).cast()) }
    }

    /// A sleep of a minute ends at once by each of its ends, whether that comes before the sleep or in it.
    #[test]
    fn a_ring_a_flag_and_an_abort_end_a_sleep() {
        let (chime, abort) = (Arc::new(Chime::default()), AbortFlag::new());
        abort.mirror(&chime);
        let ends: [&(dyn Fn(&'static Flag) + Sync); 3] =
            [&|_| chime.ring(), &|flag| flag.raise(1), &|_| abort.raise(Error::aborted("enough"))];
        let (began, mut can_sleep) = (clock::now(), true);
        for (end, before) in ends.iter().flat_map(|end| [(end, true), (end, false)]) {
            for flags in 1..4 {
                let flags: Vec<&Flag> = (0..flags).map(|_| flag()).collect();
                let last = flags[flags.len() - 1];
                let awaited: Vec<_> = flags.iter().map(|flag| (*flag, 1)).collect();
                let heard = chime.count();
                std::thread::scope(|threads| {
                    if before {
                        end(last);
                    } else {
                        threads.spawn(|| end(last));
                    }
                    // Where the system cannot, it does not sleep, and says so.
                    can_sleep &= chime.sleep(heard, &awaited, LONG);
                });
            }
        }
        assert!(clock::now().duration_since(began) < LONG, "a sleep has lasted to its end");
        // Nothing ends it.
        let (began, short) = (clock::now(), Duration::from_millis(20));
        let slept = chime.sleep(chime.count(), &[(flag(), 1), (flag(), 1)], short);
        assert!(!slept || clock::now().duration_since(began) >= short, "it has not slept");
        assert_eq!(slept, can_sleep, "the system can, or cannot");
    }
}
