//! Where concurrency types come from, so that a model checker can stand in for the standard library.
//!
//! Tests that are built with `--cfg loom` get loom's atomics and locks, and only modules called `models` may use them then, inside
//! of a model. Nobody else's program changes by that word. `Arc` stays the standard library's: loom's holds no `dyn`.
//! `tests/sanitize.sh` builds with `--cfg sanitize_thread`, for locks that the sanitizer sees.

#[cfg(all(loom, test))]
pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, fence};
#[cfg(all(loom, test))]
pub use loom::sync::{Condvar, Mutex, MutexGuard};
pub use std::sync::atomic::Ordering;
#[cfg(not(all(loom, test)))]
pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, fence};
pub use std::sync::{Arc, OnceLock, Weak};
#[cfg(not(any(all(loom, test), sanitize_thread)))]
pub use std::sync::{Condvar, Mutex, MutexGuard};

#[cfg(sanitize_thread)]
pub use crate::sync::seen::{Condvar, Mutex, MutexGuard};

/// For statics, which live as long as the process: no model begins them anew.
pub mod statics {
    #[cfg(feature = "mpi")]
    pub use std::sync::atomic::AtomicBool;
    pub use std::sync::atomic::AtomicU64;
}
