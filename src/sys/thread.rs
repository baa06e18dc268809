//! Named threads with an owner that joins them.

use std::cell::Cell;
use std::thread::JoinHandle;

use crate::error::{Error, Result};
use crate::sync::primitive::{Ordering, statics};

/// The least number that a thread gets.
pub const FIRST_NUMBER: u64 = 16;

/// This thread's number, which no other thread of the process has or gets.
#[inline]
pub fn number() -> u64 {
    #[cfg(not(all(loom, test)))]
    thread_local! {
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    // loom runs all threads of a model on one thread of the system.
    #[cfg(all(loom, test))]
    loom::thread_local! {
        static NUMBER: Cell<u64> = Cell::new(0);
    }
    NUMBER.with(|number| match number.get() {
        0 => {
            // Relaxed: a number has to be its own, and orders nothing.
            number.set(NEXT_NUMBER.fetch_add(1, Ordering::Relaxed));
            number.get()
        }
        known => known,
    })
}

static NEXT_NUMBER: statics::AtomicU64 = statics::AtomicU64::new(FIRST_NUMBER);

/// Starts a thread called `name` (tools show 15 bytes of it).
///
/// # Errors
/// [`crate::error::Kind::System`] if the system cannot start a thread.
pub fn spawn<T: Send + 'static>(name: &str, body: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map_err(|error| Error::system(format!("starting the thread {name}"), error))
}

/// Runs `body` on each element of `work`, each on its own thread, and `meanwhile` on this one; yields the results of
/// `body` in order.
///
/// # Errors
/// [`crate::error::Kind::System`] if the system cannot start a thread; the threads that were started are joined.
///
/// # Panics
/// If `body` panics.
pub fn side_by_side<W: Send, R: Send>(
    name: &str,
    work: Vec<W>,
    body: impl Fn(W) -> R + Sync,
    meanwhile: impl FnOnce(),
) -> Result<Vec<R>> {
    let body = &body;
    std::thread::scope(|scope| {
        let threads: Vec<_> = work
            .into_iter()
            .enumerate()
            .map(|(number, work)| {
                let builder = std::thread::Builder::new().name(format!("{name} {number}"));
                let started = builder.spawn_scoped(scope, move || body(work));
                started.map_err(|error| Error::system(format!("starting the thread {name} {number}"), error))
            })
            .collect();
        meanwhile();
        let join = |thread: Result<std::thread::ScopedJoinHandle<'_, R>>| match thread?.join() {
            Ok(result) => Ok(result),
            Err(panic) => std::panic::resume_unwind(panic),
        };
        threads.into_iter().map(join).collect()
    })
}

/// Starts a thread called `name` in `scope`.
///
/// # Errors
/// [`crate::error::Kind::System`] if the system cannot start a thread.
pub fn spawn_in<'scope, 'env, T: Send + 'scope>(
    scope: &'scope std::thread::Scope<'scope, 'env>,
    name: &str,
    body: impl FnOnce() -> T + Send + 'scope,
) -> Result<std::thread::ScopedJoinHandle<'scope, T>> {
    let builder = std::thread::Builder::new().name(name.to_owned());
    builder.spawn_scoped(scope, body).map_err(|error| Error::system(format!("starting the thread {name}"), error))
}
