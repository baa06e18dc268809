//! The clock. No other module reads it, so that state machines take the time as a value.
//!
//! It stands still while this process does: stopped by a signal, or with its machine. That is not the lateness of a
//! peer for which the process waits. Nobody tells a process that it has stood still; but a thread that waits looks at
//! what it waits for many times a second, or says how long it sleeps at most. It finds that its last look, or the end of
//! that sleep, was long ago, and no other thread's later. A stop that ends within the sleep is not seen.
//!
//! A gap between two looks is time in which the process stood still, less
//! - what this thread has worked in it: a call also copies and reduces between its waits;
//! - the times of which other threads know that the process ran: each two looks of one thread, close to each other,
//!   vouch for the time between them.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::sync::primitive::{Ordering, statics};
use crate::sys::fork::PerProcess;

/// The time of the monotonic clock, less the time in which the process stood still while it waited.
pub fn now() -> Instant {
    let now = read();
    // Relaxed: a thread that does not see the newest sum yet sees it in a later turn of its wait.
    let lost = Duration::from_nanos(LOST.load(Ordering::Relaxed));
    if lost.is_zero() { now } else { now.checked_sub(lost).unwrap_or(now) }
}

/// The monotonic clock of this host in nanoseconds, which processes can compare.
pub fn monotonic_nanoseconds() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a live timespec; a clock that fails leaves it as it is.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    let (seconds, rest) = (u64::try_from(time.tv_sec).unwrap_or(0), u64::try_from(time.tv_nsec).unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}

/// This thread begins to wait, or comes back from work of the program's.
#[inline(never)]
pub(crate) fn begin_wait() {
    LAST_LOOK.set(Some(ClockLook { moment: read(), worked: worked() }));
}

/// This thread, which waits, sleeps for `time` at most until its next look.
#[inline(never)]
pub(crate) fn may_sleep(time: Duration) {
    LAST_LOOK.set(read().checked_add(time).map(|moment| ClockLook { moment, worked: worked() }));
}

/// This thread looks at what it waits for.
#[inline(never)]
pub(crate) fn look() {
    let look = ClockLook { moment: read(), worked: worked() };
    let Some(last) = LAST_LOOK.replace(Some(look)) else { return };
    let ran = RAN.get_or_init(statics::Mutex::default);
    let mut ran = ran.lock();
    let still = ran.note(last.moment, look.moment).saturating_sub(look.worked.saturating_sub(last.worked));
    if still > LONGEST_GAP {
        // Relaxed: only the number counts.
        LOST.fetch_add(u64::try_from(still.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// A look of one thread.
#[derive(Debug, Clone, Copy)]
struct ClockLook {
    /// When it was, or was to be at the latest.
    moment: Instant,
    /// How much processor time the thread had used.
    worked: Duration,
}

/// What is known of when the process ran: until `before`, and from `since` until `until`. Of the time between `before`
/// and `since` nothing is known, since nobody looked.
#[derive(Debug, Default)]
struct Ran {
    /// The end of the known time before; `None` where all that is unknown was counted already.
    before: Option<Instant>,
    /// The beginning of the latest known time.
    since: Option<Instant>,
    /// The end of it.
    until: Option<Instant>,
}

impl Ran {
    /// A thread has looked at `from` and `to`, and not between them. Returns how much of that time is not known.
    fn note(&mut self, from: Instant, to: Instant) -> Duration {
        // A sleep that was to last longer.
        let from = from.min(to);
        let (Some(since), Some(until)) = (self.since, self.until) else {
            (self.since, self.until) = (Some(from), Some(to));
            return to.saturating_duration_since(from);
        };
        let behind = to.saturating_duration_since(from.max(until));
        if from > until && from.duration_since(until) > LONGEST_GAP && behind <= LONGEST_GAP {
            // Before this time nobody who has looked since can say what was.
            (self.before, self.since, self.until) = (Some(until), Some(from), Some(to));
            return behind;
        }
        let before = self.before.unwrap_or(since);
        let hole = since.saturating_duration_since(from.max(before));
        if !hole.is_zero() {
            // Counted now, once for all threads.
            self.before = None;
            self.since = Some(from.min(before));
        }
        self.until = Some(until.max(to));
        hole + behind
    }
}

/// The processor time that this thread has used.
fn worked() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a live timespec; a clock that fails leaves it as it is.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn read() -> Instant {
    #![expect(clippy::disallowed_methods, reason = "the one home of the clock")]
    Instant::now()
}

thread_local! {
    /// When this thread, which waits, last looked, or when it meant to look at the latest.
    static LAST_LOOK: Cell<Option<ClockLook>> = const { Cell::new(None) };
}

/// The time in which the process stood still, in nanoseconds.
static LOST: statics::AtomicU64 = statics::AtomicU64::new(0);
/// What the threads that wait know together. A child makes it anew: a thread that it does not have may hold the lock.
static RAN: PerProcess<statics::Mutex<Ran>> = PerProcess::new();

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

    /// Regression: what a call copied and reduced between two of its waits counted as time in which the process stood
    /// still.
    #[test]
    fn work_between_two_waits_counts() {
        assert!(fork::in_child(|| {
            begin_wait();
            let (before, worked_before) = (now(), worked());
            while read().duration_since(before) < STOP {
                std::hint::spin_loop();
            }
            look();
            // On a busy machine this thread has not had the processor all the time.
            let has_worked = worked().saturating_sub(worked_before);
            2 * now().duration_since(before) >= has_worked.min(STOP)
        }));
    }

    /// Regression: a thread that began to wait just after the stop, and looked first, hid it from the thread that had
    /// waited all along.
    #[test]
    fn a_stop_is_not_hidden_by_a_thread_that_begins_to_wait_behind_it() {
        let start = read();
        let at = |milliseconds: u64| start + Duration::from_millis(milliseconds);
        let gap = |from, to, ran: &mut Ran| ran.note(at(from), at(to)).as_millis();
        let ran = &mut Ran::default();
        assert_eq!(gap(0, 10, ran), 10);
        // Stopped until 5,000. One thread begins then; another has waited since 10, and so has a third.
        assert_eq!(gap(5000, 5010, ran), 10);
        assert_eq!(gap(10, 5011, ran), 4991);
        assert_eq!(gap(10, 5012, ran), 1, "it was counted once");
        assert_eq!(gap(5011, 5021, ran), 9);
        // A thread that had no processor, while others looked.
        for turn in 0..100 {
            assert!(gap(5021 + 10 * turn, 5031 + 10 * turn, ran) <= 10);
        }
        assert_eq!(gap(5021, 6022, ran), 1);
        // Nobody waited for long; then each looks at what it knows.
        assert_eq!(gap(60_000, 60_010, ran), 10);
        assert_eq!(gap(60_000, 60_011, ran), 1);
        // One that is woken early from a sleep of a minute.
        assert_eq!(gap(120_000, 61_000, ran), 0);
        assert_eq!(gap(61_000, 61_010, ran), 10);
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
