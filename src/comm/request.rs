//! Non-blocking calls: the requests of a scope, and how the worker's thread reports the end of each.

use std::marker::PhantomData;

use crate::comm::forked;
use crate::comm::waiting_hooks::WaitingHooks;
use crate::error::{Error, Kind, Result};
use crate::sync::Chime;
use crate::sync::primitive::{Arc, AtomicBool, Condvar, Mutex, MutexGuard, OnceLock, Ordering};
use crate::sys::fork::Birthplace;

/// An operation that was begun. Waiting is optional: the scope ends after all of its requests, with the first of their
/// errors.
#[derive(Debug)]
#[must_use = "wait() says when the buffers hold the result"]
pub struct Request<'scope> {
    birthplace: Birthplace,
    outcome: Arc<Outcome>,
    hooks: WaitingHooks,
    scope: PhantomData<&'scope ()>,
}

impl Request<'_> {
    /// The request whose end `outcome` tells.
    pub(super) fn new(birthplace: Birthplace, outcome: Arc<Outcome>, hooks: WaitingHooks) -> Self {
        Request { birthplace, outcome, hooks, scope: PhantomData }
    }

    /// Waits until the operation has ended; the communicator's time-out bounds it.
    ///
    /// # Errors
    /// The operation's.
    pub fn wait(self) -> Result<()> {
        if self.birthplace.is_here() { self.outcome.wait(&self.hooks) } else { Err(forked()) }
    }

    /// Whether the operation has ended, well or not. Never waits.
    pub fn is_finished(&self) -> bool {
        self.outcome.is_set()
    }
}

/// How a request ended.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    ended: Mutex<Option<Result<()>>>,
    changed: Condvar,
    /// Whether the program has got the error with which the request ended, whatever it is.
    is_heard: AtomicBool,
    /// Whether a thread has waited for it.
    is_awaited: AtomicBool,
    /// Whether its error only says that another request has failed.
    is_left: AtomicBool,
    /// Wakes the thread that works at it.
    worker: OnceLock<Arc<Chime>>,
}

impl Outcome {
    fn lock(&self) -> MutexGuard<'_, Option<Result<()>>> {
        self.ended.lock()
    }

    fn set(&self, result: Result<()>) {
        *self.lock() = Some(result);
        self.changed.notify_all();
    }

    pub(super) fn is_set(&self) -> bool {
        self.lock().is_some()
    }

    /// Whether the request ended with an error that ended the communicator.
    pub(super) fn has_failed(&self) -> bool {
        self.lock().as_ref().is_some_and(|ended| ended.as_ref().is_err_and(|error| !is_own(error)))
    }

    /// Whether the program has got the error that ended the communicator from this request.
    pub(super) fn has_told_the_end(&self) -> bool {
        // Relaxed: nothing is read because of it. `is_left` was set before the outcome, under whose lock `has_failed`
        // looks.
        self.is_heard.load(Ordering::Relaxed) && self.has_failed() && !self.is_left.load(Ordering::Relaxed)
    }

    /// Notes that the program does not go on before the request has ended.
    pub(super) fn note_wait(&self) {
        // Relaxed: it is told to other ranks, and nothing is published by it.
        self.is_awaited.store(true, Ordering::Relaxed);
        // It may sleep for long where nobody waits.
        if let Some(worker) = self.worker.get() {
            worker.ring();
        }
    }

    /// Says what wakes the thread that works at the request.
    pub(super) fn set_worker(&self, worker: &Arc<Chime>) {
        // Set once: a request has one thread.
        self.worker.get_or_init(|| Arc::clone(worker));
    }

    /// Waits until the request has ended, and gives the program its error.
    pub(super) fn wait(&self, hooks: &WaitingHooks) -> Result<()> {
        self.note_wait();
        self.await_end(hooks).inspect_err(|_| self.is_heard.store(true, Ordering::Relaxed))
    }

    /// Waits until the request has ended. The thread that works at it has a deadline, so this wait ends too.
    pub(super) fn await_end(&self, hooks: &WaitingHooks) -> Result<()> {
        let mut ended = self.lock();
        loop {
            match &*ended {
                Some(Ok(())) => return Ok(()),
                Some(Err(error)) => return Err(error.duplicate()),
                None if hooks.is_empty() => {
                    ended = self.changed.wait(ended);
                }
                None => {
                    // The hook may run for long: another thread must not wait for the lock meanwhile.
                    drop(self.changed.wait_timeout(ended, crate::sync::Progress::REST));
                    hooks.turn();
                    ended = self.lock();
                }
            }
        }
    }
}

/// The duty to say how a request ended. A promise that is dropped before it was kept, as when another request's error
/// ends the thread, sets an error: otherwise `wait` would wait for a request at which no thread works.
#[derive(Debug)]
pub(super) struct Promise {
    outcome: Arc<Outcome>,
    /// The buffers of a request that owns them. They live until every part of the operation has ended, and are dropped
    /// after the outcome was set.
    _buffers: Option<Box<dyn Kept>>,
}

/// Buffers that a promise keeps alive.
pub(super) trait Kept: std::fmt::Debug + Send + Sync {}

impl Promise {
    /// A promise, and the outcome that it sets.
    pub(super) fn new() -> (Promise, Arc<Outcome>) {
        Promise::with(None)
    }

    /// A promise that keeps `buffers` alive, and the outcome that it sets.
    pub(super) fn keeping(buffers: Box<dyn Kept>) -> (Promise, Arc<Outcome>) {
        Promise::with(Some(buffers))
    }

    fn with(buffers: Option<Box<dyn Kept>>) -> (Promise, Arc<Outcome>) {
        let outcome = Arc::<Outcome>::default();
        (Promise { outcome: Arc::clone(&outcome), _buffers: buffers }, outcome)
    }

    pub(super) fn set(&self, result: Result<()>) {
        self.outcome.set(result);
    }

    /// Whether a thread waits for the operation.
    pub(super) fn is_awaited(&self) -> bool {
        self.outcome.is_awaited.load(Ordering::Relaxed)
    }

    /// Says that one part of an operation has ended well. The last part to end sets the outcome.
    pub(super) fn keep(part: Arc<Promise>) {
        if let Some(promise) = Arc::into_inner(part) {
            promise.set(Ok(()));
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if self.outcome.lock().is_none() {
            self.outcome.is_left.store(true, Ordering::Relaxed);
            self.outcome.set(Err(Error::aborted(
                "another request has failed: the error of the scope or the communicator says how",
            )));
        }
    }
}

/// Whether an error is the caller's own: the communicator goes on after it.
pub(super) fn is_own(error: &Error) -> bool {
    matches!(error.kind(), Kind::InvalidArgument | Kind::InvalidUsage)
}

#[cfg(all(test, loom))]
mod models {
    use loom::cell::UnsafeCell;

    use super::*;
    use crate::sys::futex::{Membarrier, model};

    /// A request's buffer as loom sees it.
    struct Buffer(UnsafeCell<()>);

    // SAFETY: that the program has it only when the worker has done is what the model proves; loom fails where it is
    // not so.
    unsafe impl Sync for Buffer {}
    // SAFETY: as above.
    unsafe impl Send for Buffer {}

    fn after_the_worker(work: impl Fn(Promise) + Copy + Send + Sync + 'static, is_well: bool) {
        model(Membarrier::Works, move || {
            let buffer = Arc::new(Buffer(UnsafeCell::new(())));
            let (promise, outcome) = Promise::new();
            let worked = Arc::clone(&buffer);
            let worker = loom::thread::spawn(move || {
                worked.0.with_mut(|_| ());
                work(promise);
            });
            if outcome.is_set() {
                buffer.0.with_mut(|_| ());
            }
            assert_eq!(outcome.wait(&WaitingHooks::default()).is_ok(), is_well);
            buffer.0.with_mut(|_| ());
            worker.join().expect("loom ends the model before a panic comes here");
        });
    }

    #[test]
    fn the_buffer_is_the_programs_when_the_request_has_ended() {
        after_the_worker(|promise| promise.set(Ok(())), true);
    }

    #[test]
    fn a_request_that_nobody_works_at_ends() {
        after_the_worker(drop, false);
    }
}
