//! Requests that no scope bounds: those that own their buffers ([`owned`](super::owned)), and those of the C++ classes,
//! whose users keep the buffers.
//!
//! The engine moves to a thread with the first request, and comes back with the first other call after the last request
//! has ended. So calls with no request under way cost what they cost on the communicator itself.

use std::sync::mpsc::channel;
use std::thread::JoinHandle;

#[cfg(any(feature = "cpp", all(test, not(loom))))]
use crate::comm::group::Steps;
use crate::comm::request::{Outcome, Promise};
use crate::comm::split::{no_child, split_off};
use crate::comm::waiting_hooks::WaitingHooks;
use crate::comm::worker::{Job, Jobs, jobs, work};
#[cfg(any(feature = "cpp", all(test, not(loom))))]
use crate::comm::worker::{check_message, check_messages};
use crate::comm::{Buffer, Communicator, Placement, forked, group, last_words};
#[cfg(any(feature = "cpp", all(test, not(loom))))]
use crate::comm::{Call, Message};
#[cfg(feature = "cpp")]
use crate::comm::{away, starting};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::exec::{Background, NoBackground};
use crate::sync::primitive::{Arc, AtomicBool, Ordering};
use crate::sync::{AbortFlag, TurnGuard, Turns};
use crate::sys::fork::Birthplace;
use crate::sys::thread;
use crate::types::Element;

/// A communicator whose requests can be stored: each owns its buffers, and no scope bounds it. [`Detached::start`] has
/// an example.
///
/// Blocking calls go through [`Detached::at_rest`] while no request is under way. One thread at a time makes calls, as
/// on a [`Communicator`]; those of a second thread meanwhile are [`InvalidUsage`](crate::error::Kind::InvalidUsage) and
/// do no harm. Dropping it waits until its requests have ended.
#[derive(Debug)]
pub struct Detached {
    // Declared, and so dropped, before the communicator: requests that are under way end first.
    // Taken for a moment, to look where the engine is; the length of a call is the communicator's own turn.
    worker: Turns<Option<Worker>>,
    communicator: Communicator,
}

/// An operation that was begun on a [`Detached`] communicator. Dropping it neither stops it nor waits for it.
#[derive(Debug)]
#[must_use = "wait() says when the buffers hold the result"]
pub(crate) struct Pending {
    birthplace: Birthplace,
    outcome: Arc<Outcome>,
    hooks: WaitingHooks,
}

/// The thread that has the engine.
#[derive(Debug)]
struct Worker {
    birthplace: Birthplace,
    jobs: Option<Jobs<'static>>,
    thread: Option<JoinHandle<Option<Worked>>>,
    unfinished: Vec<Arc<Outcome>>,
    /// Set when the thread has ended.
    ended: Arc<Outcome>,
    hooks: WaitingHooks,
    /// Whether the engine can be taken back at once: no request is under way, and peers have taken all that requests
    /// have sent.
    resting: Arc<AtomicBool>,
}

/// What a worker returns: the engine, and the error that ended the communicator meanwhile.
type Worked = (Box<Engine>, Result<()>);

impl Detached {
    /// Detaches the requests of `communicator` from scopes.
    pub fn new(communicator: Communicator) -> Detached {
        Detached { worker: Turns::new(None), communicator }
    }

    /// The communicator, for its rank, size and abort handle. Its calls are errors while requests are under way;
    /// [`Detached::at_rest`] says so in better words.
    pub fn communicator(&self) -> &Communicator {
        &self.communicator
    }

    /// The communicator for calls that cannot run beside requests.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidUsage`] while requests are under way.
    pub fn at_rest(&self) -> Result<&Communicator> {
        if self.settle(&mut *self.turn()?) {
            return Ok(&self.communicator);
        }
        let message = "requests are under way on this communicator: wait for them, or destroy them, before this call";
        Err(Error::invalid_usage(message).at(self.communicator.me()))
    }

    /// Runs `body` on the engine, beside the requests that are under way, to its end.
    fn on_engine<T: Send + 'static>(
        &self,
        body: impl FnOnce(&mut Engine, &mut dyn Background) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if self.is_home()? {
            return self.communicator.with_engine(|engine| body(engine, &mut NoBackground));
        }
        let (value, made) = channel();
        let setup = move |engine: &mut Engine, background: &mut dyn Background| {
            // The receiver is read below, after the job has ended.
            body(engine, background).map(|made| drop(value.send(made)))
        };
        let (promise, outcome) = Promise::new();
        self.queue(Job::Setup(Box::new(setup), promise), outcome)?.wait()?;
        made.try_recv().map_err(|_| Error::internal("a set-up has ended with nothing").at(self.communicator.me()))
    }

    /// [`Communicator::split`], beside the requests that are under way. With requests under way it waits for the other
    /// ranks, even where the configuration says non-blocking.
    ///
    /// # Errors
    /// As [`Communicator::split`].
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Communicator>> {
        if self.is_home()? {
            return self.communicator.split(color, key);
        }
        let made = self
            .on_engine(move |engine, background| split_off(engine, Ok((color, key, &AbortFlag::new())), background))?;
        Ok(made.map_err(|error| self.communicator.at(error))?.map(Communicator::ready))
    }

    /// [`Communicator::on_my_host`], beside the requests that are under way.
    ///
    /// # Errors
    /// As [`Communicator::on_my_host`].
    pub fn on_my_host(&self) -> Result<Communicator> {
        if self.is_home()? {
            return self.communicator.on_my_host();
        }
        let here = self.placement()?;
        self.by_color(here.host, here.local_rank)
    }

    /// [`Communicator::cross`], beside the requests that are under way.
    ///
    /// # Errors
    /// As [`Communicator::cross`].
    pub fn cross(&self) -> Result<Communicator> {
        if self.is_home()? {
            return self.communicator.cross();
        }
        let here = self.placement()?;
        self.by_color(here.local_rank, here.host)
    }

    fn by_color(&self, color: u32, key: u32) -> Result<Communicator> {
        self.split(Some(color), i64::from(key))?.ok_or_else(|| no_child().at(self.communicator.me()))
    }

    /// [`Communicator::placement`], which requests do not hinder.
    ///
    /// # Errors
    /// As [`Communicator::placement`].
    pub fn placement(&self) -> Result<Placement> {
        self.communicator.placement()
    }

    /// [`Communicator::register`], beside the requests that are under way.
    ///
    /// # Errors
    /// As [`Communicator::register`].
    pub fn register<T: Element>(&self, buffer: &Buffer<T>) -> Result<()> {
        let buffer = buffer.known();
        self.on_engine(move |engine, background| {
            engine.register(&buffer, background).map_err(|error| error.during("register"))
        })
    }

    /// [`Communicator::deregister`], beside the requests that are under way.
    ///
    /// # Errors
    /// As [`Communicator::deregister`].
    pub fn deregister<T: Element>(&self, buffer: &Buffer<T>) -> Result<()> {
        let buffer = buffer.known();
        self.on_engine(move |engine, background| {
            engine.deregister(&buffer, background).map_err(|error| error.during("deregister"))
        })
    }

    /// What ended this communicator, if anything did: also a request's error, before its wait returns. Never waits; any
    /// thread may call it, also while another is in a call.
    pub fn async_error(&self) -> Option<Error> {
        self.communicator.async_error()
    }

    /// Waits for the requests that are under way, then [`Communicator::finalize`].
    ///
    /// # Errors
    /// As [`Communicator::finalize`].
    pub fn finalize(self) -> Result<()> {
        self.close()
    }

    /// [`Detached::finalize`], where other threads may still have the communicator.
    pub(crate) fn close(&self) -> Result<()> {
        if let Some(worker) = self.turn()?.take() {
            bring_home(&self.communicator, worker);
        }
        self.communicator.close()
    }

    /// [`Detached::close`] for a caller who may call again: where a thread makes a child, it does not wait for that.
    ///
    /// # Errors
    /// As there; [`crate::error::Kind::InProgress`] while a non-blocking split or shrink is under way, of the parent
    /// and of the child.
    #[cfg(feature = "cpp")]
    pub(crate) fn close_now(&self) -> Result<()> {
        self.communicator.check_process()?;
        let status = &self.communicator.status;
        if status.makes_child() {
            return Err(self.communicator.at(away()));
        }
        // Only a split does not know it before all ranks have come.
        if status.is_starting() && status.world().is_none() {
            return Err(starting());
        }
        self.close()
    }

    /// Waits for the requests that are under way, and closes a communicator that nobody finalizes.
    ///
    /// # Errors
    /// Where it is not here to be closed.
    #[cfg(feature = "cpp")]
    pub(crate) fn discard(&self) -> Result<()> {
        if let Some(worker) = self.turn()?.take() {
            bring_home(&self.communicator, worker);
        }
        self.communicator.discard()
    }

    /// Whether it was finalized.
    #[cfg(feature = "cpp")]
    pub(crate) fn is_closed(&self) -> bool {
        self.communicator.status.is_closed()
    }

    /// The right to look at the worker.
    ///
    /// # Errors
    /// `InvalidUsage` while another thread has it, and in a forked child.
    #[inline]
    fn turn(&self) -> Result<TurnGuard<'_, Option<Worker>>> {
        self.communicator.check_process()?;
        self.worker.try_take().ok_or_else(|| self.communicator.at(group::lent()))
    }

    /// Hands a job to the thread of requests, which is started for the first.
    pub(super) fn queue(&self, job: Job<'static>, outcome: Arc<Outcome>) -> Result<Pending> {
        let mut worker = self.turn()?;
        if worker.is_none() {
            *worker = Some(self.open()?);
        }
        let gone = || Error::internal("the thread of requests has ended early").at(self.communicator.me());
        let open = worker.as_mut().ok_or_else(gone)?;
        // Forgets requests that have ended well, so that the list holds only those under way, and the one that ended
        // them all.
        open.unfinished.retain(|outcome| !outcome.is_set() || outcome.has_failed());
        open.unfinished.push(Arc::clone(&outcome));
        let sender = open.jobs.as_ref().ok_or_else(gone)?;
        sender.send(job, &outcome).map_err(|_| gone())?;
        Ok(Pending { birthplace: open.birthplace, outcome, hooks: open.hooks.clone() })
    }

    /// Starts the thread, then lends it the engine: where no thread can be started, the engine stays here.
    fn open(&self) -> Result<Worker> {
        let (jobs, queue) = jobs();
        let (hand, taken) = channel::<Box<Engine>>();
        let (promise, ended) = Promise::new();
        let resting = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&resting);
        let body = move || {
            let worked = taken.recv().ok().map(|engine| work(engine, &queue, &resting));
            promise.set(Ok(()));
            worked
        };
        let thread = thread::spawn("rsccl requests", body).map_err(|error| error.at(self.communicator.me()))?;
        // On an error `hand` is dropped, which ends the thread.
        let engine = self.communicator.lend()?;
        let hooks = WaitingHooks::of(&engine);
        let (jobs, thread) = (Some(jobs), Some(thread));
        let worker = Worker {
            birthplace: self.communicator.birthplace,
            jobs,
            thread,
            unfinished: Vec::new(),
            ended,
            hooks,
            resting: seen,
        };
        match hand.send(engine) {
            Ok(()) => Ok(worker),
            Err(back) => {
                self.communicator.take_back(back.0, Ok(()))?;
                Err(Error::internal("the thread of requests has ended early").at(self.communicator.me()))
            }
        }
    }

    /// Takes the engine back if the worker has nothing left to do; returns whether the engine is here. If not, the
    /// caller must send its message through the worker: waiting for the worker could deadlock with a peer that waits
    /// for this very message.
    fn is_home(&self) -> Result<bool> {
        let mut worker = self.turn()?;
        let is_away = |open: &Worker| !is_resting(&open.unfinished, &open.resting) && !open.has_failed();
        Ok(if worker.as_ref().is_some_and(is_away) { false } else { self.settle(&mut worker) })
    }

    /// Takes the engine back if no request is under way, once peers have taken what requests have sent; returns whether
    /// it is here.
    fn settle(&self, worker: &mut Option<Worker>) -> bool {
        let busy = |open: &Worker| open.unfinished.iter().any(|outcome| !outcome.is_set());
        if worker.as_ref().is_some_and(busy) {
            return false;
        }
        if let Some(worker) = worker.take() {
            bring_home(&self.communicator, worker);
        }
        true
    }
}

/// Calls that are described, in memory of which the caller promises that it outlives them.
#[cfg(any(feature = "cpp", all(test, not(loom))))]
impl Detached {
    /// Runs a collective to its end, after those that are under way.
    ///
    /// # Errors
    /// As [`Communicator::run`].
    #[inline]
    pub(crate) fn run(&self, call: Call<'static>) -> Result<()> {
        let mut worker = self.turn()?;
        let is_here = worker.is_none() || self.settle(&mut worker);
        drop(worker);
        if is_here { self.communicator.run(&call) } else { self.begin(call)?.wait() }
    }

    /// Runs one send or recv to its end.
    ///
    /// # Errors
    /// As [`Communicator::send`].
    pub(crate) fn message(&self, message: Message<'static>) -> Result<()> {
        if self.is_home()? { self.communicator.message(message) } else { self.begin_message(message)?.wait() }
    }

    /// Runs messages side by side to their ends; those to and from the own rank go in pairs.
    ///
    /// # Errors
    /// As [`Communicator::send_recv`].
    #[cfg(feature = "cpp")]
    pub(crate) fn messages(&self, messages: Vec<Message<'static>>) -> Result<()> {
        match self.is_home()? {
            true => self.communicator.messages(messages),
            // To and from nobody: what is under way is not waited for.
            false if messages.is_empty() => Ok(()),
            false => self.begin_messages(messages)?.wait(),
        }
    }

    /// Runs an `all_to_all_v`, described as its messages, to its end. A message between two ranks that was begun before
    /// it is received before it.
    ///
    /// # Errors
    /// As [`Communicator::all_to_all_v`].
    pub(crate) fn exchange(&self, messages: Vec<Message<'static>>) -> Result<()> {
        if self.is_home()? { self.communicator.exchange(messages) } else { self.begin_exchange(messages)?.wait() }
    }

    /// Begins a collective. Collectives run one after the other, in the order in which they were begun, as all ranks
    /// must begin them.
    ///
    /// # Errors
    /// As the call's, where one rank alone can see it; the rest comes with [`Pending::wait`].
    pub(crate) fn begin(&self, call: Call<'static>) -> Result<Pending> {
        self.begin_all(Vec::new(), vec![call])
    }

    /// Begins one send or recv; not to or from the own rank.
    ///
    /// # Errors
    /// As [`Detached::begin`].
    pub(crate) fn begin_message(&self, message: Message<'static>) -> Result<Pending> {
        check_message(&message, self.communicator.world()?)?;
        let (promise, outcome) = Promise::new();
        self.queue(Job::Messages(vec![message], promise), outcome)
    }

    /// Begins messages that run side by side; those to and from the own rank go in pairs.
    ///
    /// # Errors
    /// As [`Detached::begin`].
    #[cfg(feature = "cpp")]
    pub(crate) fn begin_messages(&self, messages: Vec<Message<'static>>) -> Result<Pending> {
        check_messages(&messages, self.communicator.world()?)?;
        let (promise, outcome) = Promise::new();
        self.queue(Job::Messages(messages, promise), outcome)
    }

    /// Begins an `all_to_all_v`, described as its messages: one to and one from each rank, in rank order.
    ///
    /// # Errors
    /// As [`Detached::begin`].
    pub(crate) fn begin_exchange(&self, messages: Vec<Message<'static>>) -> Result<Pending> {
        check_messages(&messages, self.communicator.world()?)?;
        let (promise, outcome) = Promise::new();
        self.queue(Job::Exchange(messages, promise), outcome)
    }

    /// Begins what a group holds: messages, which may go to the own rank in pairs, and collectives, of which those that
    /// follow each other travel as one where the group's would.
    ///
    /// # Errors
    /// As [`Detached::begin`].
    pub(crate) fn begin_all(&self, messages: Vec<Message<'static>>, calls: Vec<Call<'static>>) -> Result<Pending> {
        let mut steps = Steps::default();
        for call in calls {
            call.check(self.communicator.world()?).map_err(|error| error.at(self.communicator.me()))?;
            steps.add(call);
        }
        self.begin_steps(messages, steps)
    }

    /// [`Detached::begin_all`] with collectives that have been checked, `all_to_all_v` among them.
    pub(crate) fn begin_steps(&self, messages: Vec<Message<'static>>, steps: Steps<'static>) -> Result<Pending> {
        check_messages(&messages, self.communicator.world()?)?;
        let (promise, outcome) = Promise::new();
        self.queue(Job::Group(messages, steps, promise), outcome)
    }
}

/// Whether all requests have ended and the thread that worked at them has nothing left to do.
fn is_resting(unfinished: &[Arc<Outcome>], resting: &AtomicBool) -> bool {
    // Outcomes first: an outcome that is set, under its lock, shows the value of `resting` that was stored when its job
    // was taken, so Relaxed is enough. Read before the outcomes, `resting` could still be true from before the last job
    // was taken.
    unfinished.iter().all(|outcome| outcome.is_set()) && resting.load(Ordering::Relaxed)
}

/// Waits for a worker's requests and gives its engine back to `communicator`.
fn bring_home(communicator: &Communicator, mut worker: Worker) {
    if let Some((engine, result)) = worker.end() {
        let is_heard = communicator.status.abort.is_heard() || worker.is_heard();
        // The requests have reported the error; the communicator keeps it for the next call.
        drop(communicator.take_back(engine, result));
        communicator.status.abort.set_heard(is_heard);
    } else {
        let error = Error::internal("the thread of requests panicked").at(communicator.me());
        communicator.lose(error);
    }
}

impl Worker {
    /// Whether an error has ended it, so that it gives the engine back at once.
    fn has_failed(&self) -> bool {
        let ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        ended || self.unfinished.iter().any(|outcome| outcome.has_failed())
    }

    /// Whether a request has given the program the error that ended them all.
    fn is_heard(&self) -> bool {
        self.unfinished.iter().any(|outcome| outcome.has_told_the_end())
    }

    /// Closes the queue and waits for the thread. `None` where the thread panicked.
    fn end(&mut self) -> Option<Worked> {
        self.jobs = None;
        let thread = self.thread.take()?;
        // The thread returns how it ended; until then the program's hook is called.
        drop(self.ended.wait(&self.hooks));
        thread.join().ok().flatten()
    }
}

impl Drop for Worker {
    /// A detached communicator that is dropped waits for its requests, then says goodbye to the other ranks.
    fn drop(&mut self) {
        if !self.birthplace.is_here() {
            // A forked child has none of its parent's threads: there is nothing to wait for, and the goodbye is the
            // parent's to say.
            return std::mem::forget((self.jobs.take(), self.thread.take()));
        }
        if let Some((mut engine, result)) = self.end()
            && !std::thread::panicking()
        {
            match result {
                Ok(()) => last_words::leave(&mut engine),
                Err(error) => last_words::leave_failed(&mut engine, error, self.is_heard()),
            }
        }
    }
}

impl Pending {
    /// Waits until the operation has ended; the communicator's time-out bounds it.
    ///
    /// # Errors
    /// The operation's.
    pub(crate) fn wait(&self) -> Result<()> {
        if self.birthplace.is_here() { self.outcome.wait(&self.hooks) } else { Err(forked()) }
    }

    /// The same for whoever does not tell the program of an error.
    #[cfg(feature = "cpp")]
    pub(crate) fn await_end(&self) {
        if self.birthplace.is_here() {
            // The communicator remembers what ended it.
            drop(self.outcome.await_end(&self.hooks));
        }
    }

    /// Whether the operation has ended, well or not. Never waits.
    pub(crate) fn is_finished(&self) -> bool {
        self.outcome.is_set()
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests;

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sys::futex::{Membarrier, model};

    /// A thread that rested, takes a send, and ends the request as soon as the message lies in slots: until peers have
    /// taken it from there the engine cannot be had at once.
    #[test]
    fn a_worker_that_has_just_taken_its_last_job_does_not_rest() {
        model(Membarrier::Works, || {
            let resting = Arc::new(AtomicBool::new(true));
            let (promise, outcome) = Promise::new();
            let said = Arc::clone(&resting);
            let worker = loom::thread::spawn(move || {
                said.store(false, Ordering::Relaxed);
                promise.set(Ok(()));
            });
            assert!(!is_resting(&[outcome], &resting), "the message is not with its peer yet");
            worker.join().expect("loom ends the model before a panic comes here");
        });
    }
}
