//! Named threads with an owner that joins them.

use std::cell::Cell;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use crate::error::{Error, Result};
use crate::sync::primitive::{Ordering, statics};
use crate::sys::limits;

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
    builder(name).spawn(body).map_err(|error| refused(name, error))
}

fn builder(name: &str) -> std::thread::Builder {
    #[cfg(test)]
    STARTED.with(|started| started.set(started.get() + 1));
    std::thread::Builder::new().name(name.to_owned())
}

#[cfg(test)]
thread_local! {
    /// How many threads this one has tried to start.
    pub static STARTED: Cell<usize> = const { Cell::new(0) };
}

fn refused(name: &str, error: std::io::Error) -> Error {
    let is_limit = error.kind() == std::io::ErrorKind::WouldBlock;
    let error = Error::system(format!("starting the thread {name}"), error);
    if is_limit { error.advising(limits::MORE_THREADS) } else { limits::with_remedy(error) }
}

/// Runs `body` on each element of `work`, each on its own thread, and `meanwhile` on this one; yields the results of
/// `body` in order.
///
/// # Errors
/// [`crate::error::Kind::System`] if the system cannot start a thread; nothing has begun then: no thread begins before
/// all are there.
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
        let mut threads = Vec::with_capacity(work.len());
        for number in 0..work.len() {
            let (hand, taken) = channel::<W>();
            // A hand that is dropped ends its thread.
            match spawn_in(scope, &format!("{name} {number}"), move || taken.recv().ok().map(body)) {
                Ok(thread) => threads.push((hand, thread)),
                Err(error) => return Err(error),
            }
        }
        for ((hand, _), work) in threads.iter().zip(work) {
            // The thread is there: it takes it.
            drop(hand.send(work));
        }
        meanwhile();
        let join = |(_, thread): (_, std::thread::ScopedJoinHandle<'_, Option<R>>)| match thread.join() {
            Ok(result) => result.expect("its work was sent before its hand was dropped"),
            Err(panic) => std::panic::resume_unwind(panic),
        };
        Ok(threads.into_iter().map(join).collect())
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
    builder(name).spawn_scoped(scope, body).map_err(|error| refused(name, error))
}
