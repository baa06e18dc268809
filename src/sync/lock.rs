//! Locks that recover by themselves.
//!
//! A thread that panics with a lock in hand ends no other thread: what stands behind a lock of this library is whole
//! after every statement, so whoever comes next finds what that thread has left, and goes on. A value that can be left
//! half changed must say so itself.

use std::sync::{PoisonError, TryLockError};
use std::time::Duration;

#[cfg(all(loom, test))]
use loom::sync as raw;
#[cfg(not(any(all(loom, test), sanitize_thread)))]
use std::sync as raw;

#[cfg(sanitize_thread)]
use crate::sync::seen as raw;

macro_rules! recovering {
    ($raw:ident, $($constant:ident)?) => {
        pub use $raw::MutexGuard;

        /// [`std::sync::Mutex`], which a panic does not poison.
        #[derive(Debug, Default)]
        pub struct Mutex<T>($raw::Mutex<T>);

        impl<T> Mutex<T> {
            /// Holds `value`.
            pub $($constant)? fn new(value: T) -> Mutex<T> {
                Mutex($raw::Mutex::new(value))
            }

            /// Waits for the value.
            pub fn lock(&self) -> MutexGuard<'_, T> {
                self.0.lock().unwrap_or_else(PoisonError::into_inner)
            }

            /// The value, if nobody has it.
            pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
                match self.0.try_lock() {
                    Ok(value) => Some(value),
                    Err(TryLockError::Poisoned(value)) => Some(value.into_inner()),
                    Err(TryLockError::WouldBlock) => None,
                }
            }
        }
    };
}

#[cfg(all(loom, test))]
recovering!(raw,);
#[cfg(not(all(loom, test)))]
recovering!(raw, const);

/// For statics, of which loom makes no model.
#[cfg(all(loom, test))]
pub mod statics {
    use std::sync as raw;

    use super::{PoisonError, TryLockError};

    recovering!(raw, const);
}

/// [`std::sync::Condvar`], for these locks.
#[derive(Debug, Default)]
pub struct Condvar(raw::Condvar);

impl Condvar {
    /// Nobody waits yet.
    pub fn new() -> Condvar {
        Condvar::default()
    }

    /// Gives the value away until somebody notifies; it may also come back for nothing.
    pub fn wait<'a, T>(&self, value: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(value).unwrap_or_else(PoisonError::into_inner)
    }

    /// The same for `limit` at most.
    pub fn wait_timeout<'a, T>(&self, value: MutexGuard<'a, T>, limit: Duration) -> MutexGuard<'a, T> {
        self.0.wait_timeout(value, limit).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Wakes a thread that waits.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all threads that wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn a_panic_leaves_the_value_to_the_next() {
        let lock = Mutex::new(1);
        let ended = catch_unwind(|| {
            let mut held = lock.lock();
            *held = 2;
            panic!("with the lock in hand");
        });
        assert!(ended.is_err());
        assert_eq!(*lock.lock(), 2);
        assert_eq!(lock.try_lock().map(|value| *value), Some(2));
        let _held = lock.lock();
        assert!(lock.try_lock().is_none(), "somebody has it");
    }
}
