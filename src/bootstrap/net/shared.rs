//! A lock that a waiting thread holds almost all the time, and that other threads still get.

use std::time::Duration;

use crate::sync::primitive::{AtomicU32, Mutex, MutexGuard, Ordering};
use crate::sys::futex;

/// A value that one thread drives in a loop and other threads use now and then.
///
/// A mutex is not fair: the loop would take it again before a thread that sleeps on it has woken up. So a thread that
/// must wait counts itself, and the loop sleeps a moment between two turns if the count is not 0
/// ([`Shared::give_way`]).
#[derive(Debug)]
pub(super) struct Shared<T> {
    value: Mutex<T>,
    /// The number of threads that wait for the lock.
    waiting: AtomicU32,
}

impl<T> Shared<T> {
    pub(super) fn new(value: T) -> Shared<T> {
        Shared { value: Mutex::new(value), waiting: AtomicU32::new(0) }
    }

    /// Takes the lock; waits for at most one turn of the loop. The value is consistent after every statement, so a
    /// poisoned lock may be used.
    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        if let Some(guard) = self.try_lock() {
            return guard;
        }
        // Relaxed: a loop that reads an old number gives way one turn later.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let guard = self.value.lock();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// Takes the lock if it is free; `None` while another thread holds it.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.value.try_lock()
    }

    /// Gives the lock to threads that wait for it; the caller must not hold it.
    pub(super) fn give_way(&self) {
        // Relaxed: see `lock`.
        if self.waiting.load(Ordering::Relaxed) > 0 {
            futex::nap(HANDOVER);
        }
    }
}

/// How long the loop sleeps: longer than a thread takes to wake up.
const HANDOVER: Duration = Duration::from_micros(200);
