//! How requests end, and whose duty it is to say so.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use crate::error::{Error, Kind, Result};
use crate::log::spans::{self, TraceSpan};
use crate::sync::primitive::{Arc, AtomicBool, AtomicU32, Mutex, Ordering};
use crate::sys::futex;

/// How a request ended.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// [`UNDER_WAY`], [`WELL`] or [`FAILED`].
    state: AtomicU32,
    error: Mutex<Option<Error>>,
    /// Whether a thread has waited for it.
    is_awaited: AtomicBool,
    /// Whether its error only says that another request has failed.
    is_left: AtomicBool,
    /// The task that waits for it, if one does.
    waker: Mutex<Option<Waker>>,
    has_waker: AtomicBool,
}

const UNDER_WAY: u32 = 0;
const WELL: u32 = 1;
const FAILED: u32 = 2;

impl Outcome {
    fn set(&self, result: Result<()>) {
        let state = match result {
            Ok(()) => WELL,
            Err(error) => {
                *self.error.lock() = Some(error);
                FAILED
            }
        };
        // Pairs with the acquire in `is_set`: whoever sees the end sees what the operation has written.
        self.state.store(state, Ordering::Release);
        // Partner of the heavy barrier in `wake_at_end`: either this thread sees the waker, or the task sees the end.
        futex::light_barrier();
        if self.has_waker.load(Ordering::Relaxed) {
            let waker = self.waker.lock().take();
            waker.into_iter().for_each(|waker| leave(Due::Waker(waker)));
        }
    }

    /// Wakes the task of `waker` when the request ends. The caller looks again whether it has.
    pub(super) fn wake_at_end(&self, waker: &Waker) {
        *self.waker.lock() = Some(waker.clone());
        self.has_waker.store(true, Ordering::Relaxed);
        if !futex::heavy_barrier() {
            // Nobody knows what the other thread has seen: the task looks again.
            waker.wake_by_ref();
        }
    }

    /// One that is under way: of a scope of this thread that has ended, if there is one.
    #[inline(never)]
    fn spare() -> Arc<Outcome> {
        SPARE.try_with(|kept| kept.borrow_mut().pop()).ok().flatten().unwrap_or_default()
    }

    /// Keeps it for a later scope of this thread, if nobody else has it and it has ended well.
    #[inline(never)]
    pub(super) fn leave_spare(mut outcome: Arc<Outcome>) {
        let is_well = outcome.is_well();
        let Some(unshared) = Arc::get_mut(&mut outcome).filter(|_| is_well) else { return };
        // Relaxed, as below: nobody else has it.
        if unshared.has_waker.load(Ordering::Relaxed) {
            return;
        }
        unshared.state.store(UNDER_WAY, Ordering::Relaxed);
        unshared.is_awaited.store(false, Ordering::Relaxed);
        unshared.is_left.store(false, Ordering::Relaxed);
        // A thread whose variables are gone frees it.
        let _gone = SPARE.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            if kept.len() < MOST_SPARE {
                kept.push(outcome);
            }
        });
    }

    #[inline]
    pub(super) fn is_set(&self) -> bool {
        self.state.load(Ordering::Acquire) != UNDER_WAY
    }

    /// Whether it has ended well.
    #[inline]
    pub(super) fn is_well(&self) -> bool {
        self.state.load(Ordering::Acquire) == WELL
    }

    /// How it has ended; to be asked once it has.
    pub(super) fn result(&self) -> Result<()> {
        match self.state.load(Ordering::Acquire) {
            WELL => Ok(()),
            UNDER_WAY => Err(Error::internal("a request has not ended")),
            _ => Err(self.error.lock().as_ref().map_or_else(|| Error::internal("no reason"), Error::duplicate)),
        }
    }

    /// Whether the request ended with an error that ended the communicator.
    pub(super) fn has_failed(&self) -> bool {
        self.is_set() && self.error.lock().as_ref().is_some_and(|error| !is_own(error))
    }

    /// Whether its error only says that another request has failed.
    pub(super) fn is_left(&self) -> bool {
        // Relaxed: it was set before the end, which the caller has seen.
        self.is_left.load(Ordering::Relaxed)
    }

    /// Notes that the program does not go on before the request has ended.
    pub(super) fn note_wait(&self) {
        // Relaxed: it is told to other ranks, and nothing is published by it.
        self.is_awaited.store(true, Ordering::Relaxed);
    }
}

/// The duty to say how a request ended. A promise that is dropped before it was kept, as when another request's error
/// ends the thread, sets an error: otherwise `wait` would wait for a request at which no thread works.
#[derive(Debug)]
pub(super) struct Promise {
    outcome: Arc<Outcome>,
    /// The buffers of a request that owns them. They live until every part of the operation has ended, and are dropped
    /// after the outcome was set.
    buffers: Option<Box<dyn Kept>>,
    /// What the trace has of the request, where there is one.
    span: Option<Box<TraceSpan>>,
}

/// Buffers that a promise keeps alive.
pub(super) trait Kept: std::fmt::Debug + Send + Sync {}

impl Promise {
    /// A promise, and the outcome that it sets.
    pub(super) fn new() -> (Promise, Arc<Outcome>) {
        Promise::with(None)
    }

    /// The same with an outcome that a scope of this thread has left, if there is one.
    pub(super) fn of_scope() -> (Promise, Arc<Outcome>) {
        Promise::setting(Outcome::spare(), None)
    }

    /// A promise that keeps `buffers` alive, and the outcome that it sets.
    pub(super) fn keeping(buffers: Box<dyn Kept>) -> (Promise, Arc<Outcome>) {
        Promise::with(Some(buffers))
    }

    fn with(buffers: Option<Box<dyn Kept>>) -> (Promise, Arc<Outcome>) {
        Promise::setting(Arc::default(), buffers)
    }

    fn setting(outcome: Arc<Outcome>, buffers: Option<Box<dyn Kept>>) -> (Promise, Arc<Outcome>) {
        (Promise { outcome: Arc::clone(&outcome), buffers, span: None }, outcome)
    }

    /// The same, of a request that the trace has from its begin on.
    pub(super) fn traced(mut self, span: TraceSpan) -> Promise {
        self.span = Some(Box::new(span));
        self
    }

    pub(super) fn set(&self, result: Result<()>) {
        if let Some(span) = &self.span {
            end_span(span);
        }
        self.outcome.set(result);
    }

    /// Whether it is the promise of `outcome`.
    pub(super) fn is_of(&self, outcome: &Outcome) -> bool {
        std::ptr::eq(&*self.outcome, outcome)
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

/// Who is told how an operation ends that begins now. What ends at once needs no promise.
pub(super) trait Beginner {
    /// The promise, where it has not ended yet. Asked for once.
    fn promise(&mut self) -> Promise;

    /// Whether it was asked for.
    fn is_asked(&self) -> bool;

    /// It has ended well, and no promise was asked for.
    fn ended(&mut self);

    /// Whether it is known how it has ended.
    fn is_told(&self) -> bool;
}

/// A promise that was made before.
#[derive(Debug)]
pub(super) struct Promised<'a> {
    promise: Option<Promise>,
    outcome: &'a Outcome,
}

impl Promised<'_> {
    pub(super) fn new(promise: Promise, outcome: &Outcome) -> Promised<'_> {
        Promised { promise: Some(promise), outcome }
    }
}

impl Beginner for Promised<'_> {
    fn promise(&mut self) -> Promise {
        self.promise.take().unwrap_or_else(|| Promise::new().0)
    }

    fn is_asked(&self) -> bool {
        self.promise.is_none()
    }

    fn ended(&mut self) {
        self.promise.take().into_iter().for_each(|promise| promise.set(Ok(())));
    }

    fn is_told(&self) -> bool {
        self.outcome.is_set()
    }
}

/// The beginner of a request that the trace has from its begin on.
pub(super) struct Traced<'a> {
    pub(super) beginner: &'a mut dyn Beginner,
    pub(super) span: TraceSpan,
}

impl Beginner for Traced<'_> {
    fn promise(&mut self) -> Promise {
        self.beginner.promise().traced(self.span)
    }

    fn is_asked(&self) -> bool {
        self.beginner.is_asked()
    }

    fn ended(&mut self) {
        end_span(&self.span);
        self.beginner.ended();
    }

    fn is_told(&self) -> bool {
        self.beginner.is_told()
    }
}

fn end_span(span: &TraceSpan) {
    spans::record(&TraceSpan { times: (span.times.0, spans::now()), ..*span });
}

/// One that is made where it is asked for, and how that ends.
#[cfg(any(feature = "cpp", all(test, not(loom))))]
#[derive(Debug, Default)]
pub(super) struct IfLeft(pub(super) Option<Arc<Outcome>>);

#[cfg(any(feature = "cpp", all(test, not(loom))))]
impl Beginner for IfLeft {
    fn promise(&mut self) -> Promise {
        let (promise, outcome) = Promise::new();
        self.0 = Some(outcome);
        promise
    }

    fn is_asked(&self) -> bool {
        self.0.is_some()
    }

    fn ended(&mut self) {}

    fn is_told(&self) -> bool {
        self.0.as_ref().is_none_or(|outcome| outcome.is_set())
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if !self.outcome.is_set() {
            self.outcome.is_left.store(true, Ordering::Relaxed);
            self.outcome.set(Err(Error::aborted(
                "another request has failed: the error of the scope or the communicator says how",
            )));
        }
        self.buffers.take().into_iter().for_each(|buffers| leave(Due::Buffers(buffers)));
    }
}

/// What of the program's is due when requests have ended: it may make calls of communicators, or panic, so it runs only
/// once this thread has no engine in hand.
#[derive(Debug)]
enum Due {
    /// Wakes a task, or runs it.
    Waker(Waker),
    /// To be dropped, if nobody else has them.
    Buffers(Box<dyn Kept>),
}

thread_local! {
    static LEFT: RefCell<VecDeque<Due>> = const { RefCell::new(VecDeque::new()) };
    /// Whether something may be left: this is asked after each turn, and mostly nothing is.
    static HAS_LEFT: Cell<bool> = const { Cell::new(false) };
    /// Outcomes of scopes that have ended, for later ones: most scopes would allocate and free as many again.
    static SPARE: RefCell<Vec<Arc<Outcome>>> = const { RefCell::new(Vec::new()) };
}

/// Outcomes that a thread keeps.
const MOST_SPARE: usize = 8;

/// Keeps it for [`release`]. A thread that ends releases it, too.
fn leave(due: Due) {
    let mut due = Some(due);
    HAS_LEFT.set(true);
    let kept = LEFT.try_with(|kept| due.take().into_iter().for_each(|due| kept.borrow_mut().push_back(due)));
    if kept.is_err() {
        // A thread whose variables are gone already has no engine in hand.
        due.into_iter().for_each(run);
    }
}

/// Whether something is due of this thread's.
pub(super) fn is_due() -> bool {
    LEFT.try_with(|kept| !kept.borrow().is_empty()).unwrap_or(false)
}

/// What is due of this thread's, for another one to run: this one has an engine in hand still.
pub(super) fn take() -> LeftOver {
    LeftOver(LEFT.try_with(|kept| std::mem::take(&mut *kept.borrow_mut())).unwrap_or_default())
}

/// What another thread has left.
#[derive(Debug, Default)]
pub(super) struct LeftOver(VecDeque<Due>);

impl LeftOver {
    /// Whether nothing is due.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Also what `other` has.
    pub(super) fn add(&mut self, other: LeftOver) {
        self.0.extend(other.0);
    }

    /// As [`release`].
    pub(super) fn run(self) {
        self.0.into_iter().for_each(run);
    }
}

/// Wakes the tasks of requests that have ended, and drops buffers that nobody asks for. To be called by whoever has had
/// an engine in hand, once it has not.
///
/// Not inlined: a call of a request may go on on another thread, whose variables are others.
#[inline(never)]
pub(super) fn release() {
    if HAS_LEFT.get() {
        release_left();
    }
}

#[cold]
fn release_left() {
    HAS_LEFT.set(false);
    let next = || LEFT.try_with(|kept| kept.borrow_mut().pop_front()).ok().flatten();
    while let Some(due) = next() {
        run(due);
    }
}

fn run(due: Due) {
    // The program's panic hook has told it. Requests of others, and the thread that serves them, go on.
    let _panicked = catch_unwind(AssertUnwindSafe(|| match due {
        Due::Waker(waker) => waker.wake(),
        Due::Buffers(buffers) => drop(buffers),
    }));
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
                assert_eq!(outcome.result().is_ok(), is_well);
            }
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
