//! The source of concurrency types, so that a model checker can replace those of the standard library.
//!
//! Tests that are built with `--cfg loom` get loom's atomics and locks; then only modules called `models` may use them,
//! inside a model. The flag changes nothing in other builds. `Arc` stays the standard library's: loom's cannot hold a
//! `dyn`. `tests/sanitize.sh` builds with `--cfg sanitize_thread`, for locks that the sanitizer can see.

#[cfg(all(loom, test))]
pub use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, fence};
pub use std::sync::atomic::Ordering;
#[cfg(not(all(loom, test)))]
pub use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, fence};
pub use std::sync::{Arc, OnceLock, Weak};

pub use crate::sync::lock::{Condvar, Mutex, MutexGuard};

/// For words in mapped memory of which no model is made: loom's are larger than the words.
pub mod mapped {
    pub use std::sync::atomic::AtomicU64;
}

/// For statics, which live as long as the process: loom does not reset them between executions.
pub mod statics {
    pub use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64};

    #[cfg(all(loom, test))]
    pub use crate::sync::lock::statics::{Mutex, MutexGuard};
    #[cfg(not(all(loom, test)))]
    pub use crate::sync::lock::{Mutex, MutexGuard};
}
