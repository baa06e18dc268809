//! Locks whose every step ThreadSanitizer sees, for `tests/sanitize.sh`. The sanitizer sees only code that is compiled
//! with it; the standard library is not, so a contended lock of the standard library looks as if it ordered nothing.
//! These locks are slow but have the same interface.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{LockResult, TryLockError, TryLockResult};
use std::time::{Duration, Instant};

use crate::sys::cpu;

/// Like the standard library's, except that a panic does not poison it.
#[derive(Debug, Default)]
pub struct Mutex<T> {
    taken: AtomicBool,
    data: UnsafeCell<T>,
}

// SAFETY: `taken` lets one thread at a time to the data.
unsafe impl<T: Send> Sync for Mutex<T> {}
// The standard library's are, whatever they hold.
impl<T> UnwindSafe for Mutex<T> {}
impl<T> RefUnwindSafe for Mutex<T> {}

/// The held lock.
#[derive(Debug)]
pub struct MutexGuard<'a, T>(&'a Mutex<T>);

/// Like the standard library's; it may wake spuriously.
#[derive(Debug, Default)]
pub struct Condvar {
    told: AtomicU64,
}

impl<T> Mutex<T> {
    /// A mutex around `data`.
    pub const fn new(data: T) -> Mutex<T> {
        Mutex { taken: AtomicBool::new(false), data: UnsafeCell::new(data) }
    }

    /// Waits for the lock.
    ///
    /// # Errors
    /// Never.
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        loop {
            if let Ok(guard) = self.try_lock() {
                return Ok(guard);
            }
            cpu::yield_now();
        }
    }

    /// Takes the lock if it is free.
    ///
    /// # Errors
    /// If the lock is held.
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        // Acquire pairs with the release where a guard is dropped: the writes of the previous owner are visible.
        if self.taken.swap(true, Ordering::Acquire) { Err(TryLockError::WouldBlock) } else { Ok(MutexGuard(self)) }
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        // Pairs with the acquire in `try_lock`.
        self.0.taken.store(false, Ordering::Release);
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the guard has the lock.
        unsafe { &*self.0.data.get() }
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard has the lock, and `self` is borrowed alone.
        unsafe { &mut *self.0.data.get() }
    }
}

impl Condvar {
    /// Wakes all waiters, which counts as a spurious wake for all but one.
    pub fn notify_one(&self) {
        self.notify_all();
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        // Release pairs with the acquires of waits; the lock orders the data itself.
        self.told.fetch_add(1, Ordering::Release);
    }

    /// Releases the lock, waits for a notification, and takes the lock again.
    ///
    /// # Errors
    /// Never.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        let Ok((guard, _)) = self.wait_timeout(guard, Duration::MAX) else { unreachable!("no lock here is poisoned") };
        Ok(guard)
    }

    /// The same with a time limit; also yields whether the limit ended the wait.
    ///
    /// # Errors
    /// Never.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        limit: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, bool)> {
        // Acquire, here and below: pairs with `notify_all`.
        #[expect(clippy::disallowed_methods, reason = "the library's clock stands on this lock")]
        let (before, began) = (self.told.load(Ordering::Acquire), Instant::now());
        let lock = guard.0;
        drop(guard);
        let mut late = false;
        while self.told.load(Ordering::Acquire) == before && !late {
            cpu::yield_now();
            late = began.elapsed() >= limit;
        }
        let Ok(guard) = lock.lock() else { unreachable!("no lock here is poisoned") };
        Ok((guard, late))
    }
}
