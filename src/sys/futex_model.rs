//! Replaces `futex.rs` under loom: queues and barriers with the kernel's guarantees and no others.
//!
//! A sleep with a time-out may end at any time, so it hides lost wakes. A model that sleeps for [`Duration::MAX`] finds
//! them: nothing else ends that sleep, and loom reports that all threads wait.

use std::cell::Cell;
use std::collections::HashMap;
use std::time::Duration;

use crate::sync::primitive::{AtomicU64, Condvar, Mutex, Ordering, fence};

/// For each word, how often it has been woken; sleepers wait for that number to change.
struct Queues {
    wakes: Mutex<HashMap<usize, u64>>,
    changed: Condvar,
}

loom::lazy_static! {
    /// Belongs to the execution that loom currently runs.
    static ref QUEUES: Queues = Queues { wakes: Mutex::new(HashMap::new()), changed: Condvar::new() };
}

/// The behaviour of [`heavy_barrier`] on a modelled machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Membarrier {
    /// It works and says so.
    Works,
    /// It does nothing and says so, as where a container forbids the call.
    Refused,
    /// It does nothing but claims to work. No kernel does that: this shows that a model finds the defect that the
    /// barrier prevents.
    Lies,
}

thread_local! {
    /// loom runs all threads of a model on the system thread that called it.
    static MEMBARRIER: Cell<Membarrier> = const { Cell::new(Membarrier::Works) };
}

/// Runs a model on a machine with this kind of barrier.
pub fn model(membarrier: Membarrier, body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    // The variable LOOM_MAX_PREEMPTIONS overrides the bound.
    builder.preemption_bound.get_or_insert(PREEMPTIONS);
    MEMBARRIER.set(membarrier);
    builder.check(body);
    MEMBARRIER.set(Membarrier::Works);
}

/// The kernel compares and falls asleep while it holds the lock of the word's queue; it wakes under the same lock.
pub fn wait(word: &AtomicU64, expected: u64, timeout: Duration) {
    if timeout < Duration::MAX {
        return loom::thread::yield_now();
    }
    let place = std::ptr::from_ref(word).addr();
    let mut wakes = QUEUES.wakes.lock();
    // Relaxed, like the kernel's plain read. A change made before the waker took the lock is visible through the lock.
    if word.load(Ordering::Relaxed) != expected {
        return;
    }
    let before = wakes.get(&place).copied();
    while wakes.get(&place).copied() == before {
        wakes = QUEUES.changed.wait(wakes);
    }
}

/// A sleep with a time-out, which may end at any time.
pub fn wait_any(_words: &[(&AtomicU64, u64)], _timeout: Duration) -> bool {
    loom::thread::yield_now();
    true
}

/// Wakes every thread that sleeps on `word`.
pub fn wake_all(word: &AtomicU64) {
    let place = std::ptr::from_ref(word).addr();
    *QUEUES.wakes.lock().entry(place).or_default() += 1;
    QUEUES.changed.notify_all();
}

/// Nothing to register here: [`model`] decides what the barrier does.
pub fn register_barrier() -> bool {
    MEMBARRIER.get() != Membarrier::Refused
}

/// membarrier makes every running thread execute a full fence somewhere between two of its instructions; a thread that
/// is not running executes one when it is switched in. loom cannot insert a fence into another thread, so here both
/// halves are full fences: one where the waiter calls this, one between the publisher's store and its load. For that
/// pair the two are equivalent. A fence inserted after the store makes the store visible to the waiter's next look; one
/// inserted before the load makes the load see the waiter's count; there is no third position. SeqCst fences on both
/// sides forbid exactly that both miss each other, and leave everything else as it is.
pub fn heavy_barrier() -> bool {
    // SeqCst: the waiter's half; its partner is in `light_barrier`. Without either, the store and the load could pass
    // each other.
    fence(Ordering::SeqCst);
    MEMBARRIER.get() != Membarrier::Refused
}

/// The publisher's half; see [`heavy_barrier`].
pub fn light_barrier() {
    if MEMBARRIER.get() == Membarrier::Works {
        // SeqCst: partner of the fence in `heavy_barrier`.
        fence(Ordering::SeqCst);
    }
}

/// Lets other threads run.
pub fn nap(_duration: Duration) {
    loom::thread::yield_now();
}

/// How often a runnable thread is preempted in favour of another. Fewer preemptions already find every defect that was
/// planted to test the models; each further one takes ten times as long.
const PREEMPTIONS: usize = 3;
