//! The progress thread: the one thread of the process that moves what no call waits for.
//!
//! It has duties of two kinds, each for all communicators: requests that the program leaves alone (`comm::watcher`),
//! and the proxies of kernels (`reach::proxy`). It starts with the first duty and ends with the last one. A duty never
//! waits, so that none holds up another one; one that panics is dropped, and the others go on. Once no duty has more to
//! move, the thread sleeps until what one of them waits for may have come, or somebody rings its chime.
//!
//! The watcher runs code of the program's here (wakers of tasks, buffers that are dropped, progress hooks). Such code
//! that blocks holds up all duties: it must not. Wakers and buffers may wait for kernels all the same, so while there
//! are proxies they have a thread of their own.

use std::cell::Cell;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::Result;
use crate::sync::Chime;
use crate::sync::primitive::{Arc, AtomicBool, Mutex, Ordering};
use crate::sync::rest::{RestEnds, Sleeper};
use crate::sys::cpu::Allowed;
use crate::sys::fork::PerProcess;
use crate::sys::thread;

/// Something that the thread moves.
pub(crate) trait ProgressDuty: Debug + Send {
    /// Moves what can move, and never waits. The chime had rung `heard` times before: what rings it from here on ends
    /// the sleep behind this round.
    fn round(&mut self, heard: u64) -> AfterRound;

    /// Sleeps by `sleep`, once, until there may be something to do here, or what stands in `ends` has come. `sleep`
    /// says where it cannot: then it may be called again with less to sleep beside.
    fn rest(&mut self, ends: RestEnds<'_>, sleep: &mut dyn FnMut(&RestEnds<'_>) -> bool) -> bool;
}

/// What a duty has to do behind a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterRound {
    /// More may move at once.
    GoesOn,
    /// Nothing moves for now.
    Rests,
    /// Nothing is left, and nothing will come.
    Over,
}

/// The thread of this process, while it has duties.
static PROGRESS: PerProcess<Mutex<Option<Running>>> = PerProcess::new();

#[derive(Debug)]
struct Running {
    shared: Arc<Entrance>,
    thread: JoinHandle<()>,
    seats: usize,
}

/// What the thread is told by.
#[derive(Debug, Default)]
struct Entrance {
    chime: Arc<Chime>,
    /// Duties that the thread does not know yet.
    joining: Mutex<Vec<Box<dyn ProgressDuty>>>,
    ends: AtomicBool,
}

/// Keeps the thread alive for one duty. To be dropped once the duty was told that it is over: the last one ends the
/// thread, and waits for it, unless it is the thread itself that drops it.
#[derive(Debug)]
pub(crate) struct ProgressSeat(Arc<Entrance>);

/// Gives the thread a duty, which `duty` makes for the chime that wakes the thread.
///
/// # Errors
/// [`crate::error::Kind::System`] where no thread can be started.
pub(crate) fn enter(duty: impl FnOnce(&Arc<Chime>) -> Box<dyn ProgressDuty>) -> Result<ProgressSeat> {
    let mut progress = PROGRESS.get_or_init(Mutex::default).lock();
    let running = match &mut *progress {
        Some(running) => running,
        none => none.insert(Running::start()?),
    };
    running.seats += 1;
    let shared = Arc::clone(&running.shared);
    drop(progress);
    let duty = duty(&shared.chime);
    shared.joining.lock().push(duty);
    shared.chime.ring();
    Ok(ProgressSeat(shared))
}

impl Drop for ProgressSeat {
    fn drop(&mut self) {
        // The duty has another round, in which it is over: others may keep the thread, and it may sleep for long.
        self.0.chime.ring();
        let Some(progress) = PROGRESS.get() else { return };
        let mut progress = progress.lock();
        // A forked child's copy is of a thread that the child has not.
        let is_last =
            progress.as_mut().filter(|running| Arc::ptr_eq(&running.shared, &self.0)).is_some_and(|running| {
                running.seats -= 1;
                running.seats == 0
            });
        let last = progress.take_if(|_| is_last);
        drop(progress);
        let Some(Running { shared, thread, .. }) = last else { return };
        // Release: pairs with the load in `Entrance::run`.
        shared.ends.store(true, Ordering::Release);
        shared.chime.ring();
        // Code of the program's that the thread runs may drop the last communicator: it does not wait for itself.
        if !is_here() {
            // It has nothing left to move, and catches what panics.
            let _ended = thread.join();
        }
    }
}

thread_local! {
    static IS_HERE: Cell<bool> = const { Cell::new(false) };
    static FIRST_PROCESSORS: Cell<Option<Allowed>> = const { Cell::new(None) };
}

/// On the thread: where it might run when it began. A duty that moves it leaves it there at its end, and so does what
/// it starts for the program.
pub(crate) fn first_processors() -> Option<Allowed> {
    FIRST_PROCESSORS.get()
}

/// Whether the caller is the thread: then it must not wait for what the thread moves.
pub(crate) fn is_here() -> bool {
    IS_HERE.get()
}

impl Running {
    fn start() -> Result<Running> {
        let shared = Arc::<Entrance>::default();
        let served = Arc::clone(&shared);
        let thread = thread::spawn("rsccl progress", move || {
            IS_HERE.set(true);
            FIRST_PROCESSORS.set(Allowed::here());
            served.run();
        })?;
        Ok(Running { shared, thread, seats: 0 })
    }
}

impl Entrance {
    fn run(&self) {
        let mut duties: Vec<Box<dyn ProgressDuty>> = Vec::new();
        let mut sleeper = Sleeper::new(&self.chime);
        loop {
            // First, so that what is told from here on ends the sleep behind this round.
            let heard = self.chime.count();
            // Acquire: pairs with the store where the last seat is dropped.
            let ends = self.ends.load(Ordering::Acquire);
            duties.append(&mut self.joining.lock());
            let mut goes_on = false;
            duties.retain_mut(|duty| {
                let after = unless_it_panics(duty, |duty| duty.round(heard)).unwrap_or(AfterRound::Over);
                goes_on |= after == AfterRound::GoesOn;
                after != AfterRound::Over
            });
            if ends && duties.is_empty() {
                return;
            }
            if !goes_on && !rest(&mut duties, RestEnds::at(LONGEST), &mut |ends| sleeper.sleep(heard, ends)) {
                self.chime.sleep(heard, &[], NAP);
            }
        }
    }
}

/// Lets each of the duties say what ends the sleep, and sleeps.
fn rest(
    duties: &mut [Box<dyn ProgressDuty>],
    ends: RestEnds<'_>,
    sleep: &mut dyn FnMut(&RestEnds<'_>) -> bool,
) -> bool {
    let Some((first, others)) = duties.split_first_mut() else {
        return catch_unwind(AssertUnwindSafe(|| sleep(&ends))).unwrap_or(false);
    };
    let of_first = |duty: &mut dyn ProgressDuty| duty.rest(ends, &mut |ends| rest(others, ends.clone(), sleep));
    // Behind a panic comes a round, not a nap.
    unless_it_panics(first, of_first).unwrap_or(true)
}

/// Lets a duty do something. A panic is a defect of ours, which the panic hook has told: the duty is dropped at once,
/// and others go on.
fn unless_it_panics<T>(duty: &mut Box<dyn ProgressDuty>, body: impl FnOnce(&mut dyn ProgressDuty) -> T) -> Option<T> {
    let done = catch_unwind(AssertUnwindSafe(|| body(&mut **duty))).ok();
    if done.is_none() {
        let broken = std::mem::replace(duty, Box::new(Dropped));
        // What it drops may be as broken as it is.
        let _second = catch_unwind(AssertUnwindSafe(|| drop(broken)));
    }
    done
}

/// In the place of a duty that has panicked, until the next round.
#[derive(Debug)]
struct Dropped;

impl ProgressDuty for Dropped {
    fn round(&mut self, _: u64) -> AfterRound {
        AfterRound::Over
    }

    fn rest(&mut self, ends: RestEnds<'_>, sleep: &mut dyn FnMut(&RestEnds<'_>) -> bool) -> bool {
        sleep(&ends)
    }
}

/// No duty depends on it.
const LONGEST: Duration = Duration::from_secs(3600);
/// How long the thread sleeps where the system lets it sleep beside nothing but its chime.
const NAP: Duration = Duration::from_micros(200);

#[cfg(test)]
#[cfg(not(loom))]
#[cfg(not(miri))]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::thread::{self, ThreadId};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// Where a duty panics.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Panics {
        Never,
        InRound,
        InRest,
    }

    /// What a duty tells, with its number.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Heard {
        Round,
        /// It panics now.
        Rest,
    }

    /// Tells of each round until it is told to end.
    #[derive(Debug)]
    struct Told {
        rounds: Sender<(usize, Heard, ThreadId)>,
        number: usize,
        ends: Arc<AtomicBool>,
        panics: Panics,
    }

    impl ProgressDuty for Told {
        fn round(&mut self, _: u64) -> AfterRound {
            // The test may have ended by an assertion.
            let _unheard = self.rounds.send((self.number, Heard::Round, thread::current().id()));
            assert!(self.panics != Panics::InRound, "on purpose");
            if self.ends.load(Ordering::Acquire) { AfterRound::Over } else { AfterRound::Rests }
        }

        fn rest(&mut self, ends: RestEnds<'_>, sleep: &mut dyn FnMut(&RestEnds<'_>) -> bool) -> bool {
            if self.panics == Panics::InRest {
                let _unheard = self.rounds.send((self.number, Heard::Rest, thread::current().id()));
                panic!("on purpose");
            }
            sleep(&ends)
        }
    }

    /// Regression: a panic in what a duty does before the sleep ended the thread, for all duties and for good.
    ///
    /// Other tests of this process may have duties too: only what is ours is looked at.
    #[test]
    fn duties_share_one_thread_and_one_that_panics_leaves_the_others_alone() {
        let (rounds, heard) = channel();
        let ends = Arc::new(AtomicBool::new(false));
        let mut chime = None;
        let mut seat = |(number, panics)| {
            let duty = Told { rounds: rounds.clone(), number, ends: Arc::clone(&ends), panics };
            let made = enter(|of_thread| {
                chime = Some(Arc::clone(of_thread));
                Box::new(duty)
            });
            made.unwrap()
        };
        let all = [Panics::Never, Panics::InRound, Panics::InRest, Panics::Never];
        let seats: Vec<_> = all.into_iter().enumerate().map(&mut seat).collect();
        let chime = chime.expect("it was given");
        // Each round that is heard of asks for another, until those that go on have had three behind the last panic.
        let (mut counts, mut is_broken, mut only) = ([0; 4], false, None);
        while !is_broken || counts[0] < 3 || counts[3] < 3 {
            let (number, what, on) = heard.recv_timeout(LIMIT).expect("they go on");
            assert!(number != 2 || !is_broken, "it has panicked");
            counts[number] += 1;
            if what == Heard::Rest {
                (counts[0], counts[3], is_broken) = (0, 0, true);
            }
            assert!(*only.get_or_insert(on) == on && on != thread::current().id());
            chime.ring();
        }
        assert_eq!(counts[1], 1, "it has panicked");
        ends.store(true, Ordering::Release);
        chime.ring();
        drop(rounds);
        // The duties are dropped, and with them the last senders.
        while heard
            .recv_timeout(LIMIT)
            .inspect_err(|error| assert!(*error == std::sync::mpsc::RecvTimeoutError::Disconnected))
            .is_ok()
        {}
        drop(seats);
    }
}
