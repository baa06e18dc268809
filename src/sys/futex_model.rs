//! What stands in for `futex.rs` where loom runs the threads: queues and barriers as the kernel promises them, and no more.
//!
//! A sleep with an end may end at any time, so a model that sleeps for ever, [`Duration::MAX`], is the one that finds a lost wake:
//! nothing else ends it, and loom reports that all threads wait.

use std::cell::Cell;
use std::collections::HashMap;
use std::time::Duration;

use crate::sync::primitive::{AtomicU64, Condvar, Mutex, Ordering, fence};

/// Sleepers are woken by number: for each word, how often it has been woken.
struct Queues {
    wakes: Mutex<HashMap<usize, u64>>,
    changed: Condvar,
}

loom::lazy_static! {
    /// Of the execution that loom runs.
    static ref QUEUES: Queues = Queues { wakes: Mutex::new(HashMap::new()), changed: Condvar::new() };
}

/// What [`heavy_barrier`] does on a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Membarrier {
    /// What it says.
    Works,
    /// Nothing, and says so, as where a container forbids the call.
    Refused,
    /// Nothing, and does not say so. No kernel does: it shows that a model finds what goes wrong without the barrier.
    Lies,
}

thread_local! {
    /// All threads of a model run on the system's thread that called it.
    static MEMBARRIER: Cell<Membarrier> = const { Cell::new(Membarrier::Works) };
}

/// Runs a model on a machine with such a barrier.
pub fn model(membarrier: Membarrier, body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    // LOOM_MAX_PREEMPTIONS sets another bound.
    builder.preemption_bound.get_or_insert(PREEMPTIONS);
    MEMBARRIER.set(membarrier);
    builder.check(body);
    MEMBARRIER.set(Membarrier::Works);
}

/// The kernel compares and falls asleep under the lock of the word's queue, and wakes under it.
pub fn wait(word: &AtomicU64, expected: u64, timeout: Duration) {
    if timeout < Duration::MAX {
        return loom::thread::yield_now();
    }
    let place = std::ptr::from_ref(word).addr();
    let mut wakes = QUEUES.wakes.lock().expect("no model panics in here");
    // Relaxed: the kernel reads it plainly. Whoever raised the word before it took the lock to wake is seen by the lock.
    if word.load(Ordering::Relaxed) != expected {
        return;
    }
    let before = wakes.get(&place).copied();
    while wakes.get(&place).copied() == before {
        wakes = QUEUES.changed.wait(wakes).expect("no model panics in here");
    }
}

/// Wakes everyone who sleeps on `word`.
pub fn wake_all(word: &AtomicU64) {
    let place = std::ptr::from_ref(word).addr();
    *QUEUES.wakes.lock().expect("no model panics in here").entry(place).or_default() += 1;
    QUEUES.changed.notify_all();
}

/// Nothing has to be registered here; [`model`] says what the barrier does.
pub fn register_barrier() -> bool {
    MEMBARRIER.get() != Membarrier::Refused
}

/// membarrier makes every thread that runs execute a full fence somewhere between two of its instructions; one that does not run
/// executes one when it is switched to. loom cannot put a fence into another thread. So its two halves are both full fences here, one
/// where the waiter calls it and one between the publisher's store and its load. For that pair the two are the same: a fence put in
/// behind the store makes the store visible to the waiter's next look, one put in before the load makes the load see the waiter's
/// count, and there is no third place. What a fence there forbids, that both miss each other, is what SeqCst fences on both sides
/// forbid, and all else they leave as it is.
pub fn heavy_barrier() -> bool {
    // SeqCst: the waiter's half; its partner stands in `light_barrier`. Without either, store and load pass each other.
    fence(Ordering::SeqCst);
    MEMBARRIER.get() != Membarrier::Refused
}

/// The publisher's half, as said of [`heavy_barrier`].
pub fn light_barrier() {
    if MEMBARRIER.get() == Membarrier::Works {
        // SeqCst: partner of the fence in `heavy_barrier`.
        fence(Ordering::SeqCst);
    }
}

/// Lets others run.
pub fn nap(_duration: Duration) {
    loom::thread::yield_now();
}

/// How often a thread that could go on is stopped for another. Fewer find every defect that was put in to try the models; each more
/// takes ten times as long.
const PREEMPTIONS: usize = 3;
