//! Where concurrency types come from, so that a model checker can stand in for the standard library.

pub use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
pub use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};
