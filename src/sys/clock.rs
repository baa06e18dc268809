//! The clock. No other module reads it, so that state machines take the time as a value.
//!
//! It stands still while this process does: stopped by a signal, or with its machine. That is not the lateness of a
//! peer for which the process waits. Nobody tells a process that it has stood still; but a thread that waits looks at
//! what it waits for many times a second, and finds that its last look was long ago, and no other thread's later.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::sync::primitive::{OnceLock, Ordering, statics};

/// The time of the monotonic clock, less the time in which the process stood still while it waited.
pub fn now() -> Instant {
    let now = read();
    // Relaxed: a thread that does not see the newest sum yet sees it in a later turn of its wait.
    let lost = Duration::from_nanos(LOST.load(Ordering::Relaxed));
    if lost.is_zero() { now } else { now.checked_sub(lost).unwrap_or(now) }
}

/// This thread begins to wait, or comes back from work of the program's.
pub(crate) fn begin_wait() {
    let now = read();
    // What is counted from the first wait of the process on includes that wait.
    since_start(now);
    LAST_LOOK.set(Some(now));
}

/// This thread, which waits, sleeps for `time` at most until its next look.
pub(crate) fn may_sleep(time: Duration) {
    let now = read();
    since_start(now);
    LAST_LOOK.set(now.checked_add(time));
}

/// This thread looks at what it waits for.
pub(crate) fn look() {
    let now = read();
    let seen = see(now);
    let Some(last) = LAST_LOOK.replace(Some(now)) else { return };
    // Where another thread has looked meanwhile, the process ran, and this thread alone had no processor.
    let still = since_start(now).saturating_sub(since_start(last).max(seen));
    if Duration::from_nanos(still) > LONGEST_GAP {
        // Relaxed: only the number counts.
        LOST.fetch_add(still, Ordering::Relaxed);
    }
}

/// Notes that a thread looks at `now`; yields until when that was known, in nanoseconds since the start.
fn see(now: Instant) -> u64 {
    // Relaxed: only the number counts; of threads that go on after a stop one finds the number from before it.
    SEEN.fetch_max(since_start(now), Ordering::Relaxed)
}

/// Nanoseconds since the first wait of the process.
fn since_start(moment: Instant) -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let start = *START.get_or_init(|| moment);
    u64::try_from(moment.saturating_duration_since(start).as_nanos()).unwrap_or(u64::MAX)
}

fn read() -> Instant {
    #![expect(clippy::disallowed_methods, reason = "the one home of the clock")]
    Instant::now()
}

thread_local! {
    /// When this thread, which waits, last looked, or when it meant to look at the latest.
    static LAST_LOOK: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The time in which the process stood still, in nanoseconds.
static LOST: statics::AtomicU64 = statics::AtomicU64::new(0);
/// When a thread that waits last looked, in nanoseconds since the start.
static SEEN: statics::AtomicU64 = statics::AtomicU64::new(0);

/// The longest time between two looks of a thread that waits and gets a processor now and then: waits look every 20 ms,
/// or say how long they sleep.
const LONGEST_GAP: Duration = Duration::from_millis(250);

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::sys::{fork, futex};

    const STOP: Duration = Duration::from_millis(700);

    /// Stops this process, which another one lets go on.
    fn stand_still() {
        let me = std::process::id();
        assert!(fork::in_child(|| {
            // SAFETY: a second child, which is left to itself and ends by itself.
            if unsafe { libc::fork() } == 0 {
                futex::nap(STOP);
                // SAFETY: the number is the parent's, which lives: it waits for this signal.
                let sent = unsafe { libc::kill(i32::try_from(me).unwrap(), libc::SIGCONT) };
                // SAFETY: ends the process; destructors and buffers are the parent's.
                unsafe { libc::_exit(sent) };
            }
            true
        }));
        // SAFETY: stops this process, which the child above lets go on.
        assert_eq!(unsafe { libc::raise(libc::SIGSTOP) }, 0);
    }

    #[test]
    fn the_clock_stands_still_while_a_process_that_waits_is_stopped() {
        assert!(fork::in_child(|| {
            begin_wait();
            let (before, began) = (now(), read());
            stand_still();
            look();
            let real = read().duration_since(began);
            real >= STOP && now().duration_since(before) < real / 2
        }));
    }

    /// Of many threads on few processors some have none for long: then the process runs all the same.
    #[test]
    fn a_thread_that_had_no_processor_does_not_stop_the_clock() {
        assert!(fork::in_child(|| {
            begin_wait();
            let before = now();
            let starved = LAST_LOOK.get();
            for _ in 0..7 {
                futex::nap(STOP / 7);
                // As another thread does that waits, too.
                look();
            }
            LAST_LOOK.set(starved);
            look();
            now().duration_since(before) >= STOP
        }));
    }

    #[test]
    fn time_in_which_nobody_waits_counts() {
        assert!(fork::in_child(|| {
            begin_wait();
            may_sleep(STOP);
            let before = now();
            futex::nap(STOP);
            look();
            let slept = now().duration_since(before) >= STOP;
            futex::nap(STOP);
            begin_wait();
            look();
            slept && now().duration_since(before) >= 2 * STOP
        }));
    }
}
