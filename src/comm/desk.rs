//! Requests without a scope: for memory that is never given back, and for the C++ classes, whose users keep it.
//!
//! A scope proves that the buffers of requests outlive them; a desk takes only what outlives everything. The engine moves to a
//! thread with the first request and comes back with the first other call after the last of them has ended: calls with no request
//! under way cost what they cost without a desk.

use std::cell::RefCell;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use crate::comm::bystander::Bystander;
use crate::comm::engine::Engine;
use crate::comm::request::{Job, Outcome, Promise, check_message, work};
use crate::comm::{Call, Communicator, Home, Message};
use crate::error::{Error, Result};
use crate::exec::copy_to_self;
use crate::sync::primitive::{Arc, AtomicBool, Ordering};
use crate::sys::thread;
use crate::types::DataType;

/// A communicator whose operations may go on while the program does other things, in memory that lives for ever.
///
/// # Examples
/// ```
/// use rsccl::comm::{Buffers, Call, CallCount, Desk};
/// use rsccl::types::Collective;
/// use rsccl::{DataType, ReduceOp};
///
/// rsccl::local::run(3, |comm| {
///     let rank = comm.rank();
///     let desk = Desk::new(comm);
///     let buffer: &'static mut [u32] = Box::leak(vec![rank; 1000].into());
///     let count = CallCount::Each(1000);
///     let (collective, data_type, op) = (Collective::AllReduce, DataType::U32, Some(ReduceOp::Sum));
///     let sum = desk.begin(Call { collective, data_type, op, root: None, count, buffers: Buffers::shared(buffer) })?;
///     // ... compute ...
///     sum.wait()?;
///     desk.finalize()
/// })?;
/// # Ok::<(), rsccl::Error>(())
/// ```
#[derive(Debug)]
pub struct Desk {
    // Before the communicator: what is under way ends first.
    worker: RefCell<Option<Worker>>,
    communicator: Communicator,
}

/// An operation that was begun at a [`Desk`]. Dropping it neither stops it nor waits for it.
#[derive(Debug)]
#[must_use = "wait() says when the buffers hold the result"]
pub struct Pending {
    outcomes: Vec<Arc<Outcome>>,
    bystander: Bystander,
}

/// The thread that has the engine.
#[derive(Debug)]
struct Worker {
    jobs: Option<Sender<Job<'static>>>,
    thread: Option<JoinHandle<Option<Worked>>>,
    unfinished: Vec<Arc<Outcome>>,
    /// How the thread has ended.
    ended: Arc<Outcome>,
    bystander: Bystander,
    /// Whether the engine can be had at once: nothing is under way, nor what requests have sent still here.
    resting: Arc<AtomicBool>,
}

/// The engine as a worker gives it back, and what ended the communicator meanwhile.
type Worked = (Box<Engine>, Result<()>);

impl Desk {
    /// A desk for `communicator`.
    pub fn new(communicator: Communicator) -> Desk {
        Desk { worker: RefCell::new(None), communicator }
    }

    /// The communicator, for what neither waits nor sends: rank, size, abort. Its calls are errors while requests are under way;
    /// [`Desk::at_rest`] says so in better words.
    pub fn communicator(&self) -> &Communicator {
        &self.communicator
    }

    /// The communicator for calls that cannot run beside requests.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidUsage`] while requests are under way.
    pub fn at_rest(&self) -> Result<&Communicator> {
        if self.settle() {
            return Ok(&self.communicator);
        }
        let message = "requests are under way on this communicator: wait for them before this call";
        Err(Error::invalid_usage(message).at(self.communicator.world.rank))
    }

    /// Runs a collective to its end, behind those that are under way.
    ///
    /// # Errors
    /// As [`Communicator::run`].
    #[inline]
    pub fn run(&self, call: Call<'static>) -> Result<()> {
        if self.worker.borrow().is_none() || self.settle() {
            return self.communicator.run(&call);
        }
        self.begin(call)?.wait()
    }

    /// Runs one send or recv to its end.
    ///
    /// # Errors
    /// As [`Communicator::send`].
    pub fn message(&self, message: Message<'static>) -> Result<()> {
        if self.is_home() { self.communicator.message(message) } else { self.begin_message(message)?.wait() }
    }

    /// Runs an `all_to_all_v`, described as its messages, to its end. A message between two ranks that was begun before it is received
    /// before it.
    ///
    /// # Errors
    /// As [`Communicator::all_to_all_v`].
    pub fn exchange(&self, messages: Vec<Message<'static>>) -> Result<()> {
        if self.is_home() { self.communicator.exchange(messages) } else { self.begin_exchange(messages)?.wait() }
    }

    /// Begins a collective. Collectives run one after the other, in the order in which they were begun, as all ranks must begin them.
    ///
    /// # Errors
    /// As the call's, where one rank alone can see it; the rest comes with [`Pending::wait`].
    pub fn begin(&self, call: Call<'static>) -> Result<Pending> {
        self.begin_all(Vec::new(), vec![call])
    }

    /// Begins one send or recv; not to or from the own rank.
    ///
    /// # Errors
    /// As [`Desk::begin`].
    pub fn begin_message(&self, message: Message<'static>) -> Result<Pending> {
        check_message(&message, self.communicator.world)?;
        self.begin_all(vec![message], Vec::new())
    }

    /// Begins an `all_to_all_v`, described as its messages: one to and one from each rank, in rank order.
    ///
    /// # Errors
    /// As [`Desk::begin`].
    pub fn begin_exchange(&self, messages: Vec<Message<'static>>) -> Result<Pending> {
        let data_type = messages.first().map_or(DataType::U8, Message::data_type);
        let others = self.checked(messages)?;
        let mut promised = Vec::with_capacity(others.len());
        let mut outcomes = Vec::with_capacity(others.len());
        for message in others {
            let (promise, outcome) = Promise::new();
            promised.push((message, promise));
            outcomes.push(outcome);
        }
        self.queue(vec![Job::Exchange(promised, data_type)], outcomes)
    }

    /// Begins what a group holds: messages, which may go to the own rank in pairs, and collectives, of which those that follow each
    /// other travel as one where the group's would.
    ///
    /// # Errors
    /// As [`Desk::begin`].
    pub fn begin_all(&self, messages: Vec<Message<'static>>, calls: Vec<Call<'static>>) -> Result<Pending> {
        let world = self.communicator.world;
        for call in &calls {
            call.check(world).map_err(|error| error.at(world.rank))?;
        }
        let (mut jobs, mut outcomes) = (Vec::new(), Vec::new());
        for message in self.checked(messages)? {
            let (promise, outcome) = Promise::new();
            jobs.push(Job::Message(message, promise));
            outcomes.push(outcome);
        }
        if !calls.is_empty() {
            let (promise, outcome) = Promise::new();
            jobs.push(Job::Collectives(calls, promise));
            outcomes.push(outcome);
        }
        self.queue(jobs, outcomes)
    }

    /// What ended this communicator, if anything did. Never waits.
    pub fn async_error(&self) -> Option<Error> {
        // A request that failed ended all others: its error is here once the engine is. A worker that is well is left alone, since it
        // may have to wait for peers before it ends.
        let has_failed = self.worker.borrow().as_ref().is_some_and(Worker::has_failed);
        if has_failed {
            self.settle();
        }
        self.communicator.async_error()
    }

    /// Waits for the requests that are under way, then [`Communicator::finalize`].
    ///
    /// # Errors
    /// As [`Communicator::finalize`].
    pub fn finalize(self) -> Result<()> {
        let Desk { worker, communicator } = self;
        if let Some(worker) = worker.into_inner() {
            close(&communicator, worker);
        }
        communicator.finalize()
    }

    /// The messages to others, after those to the own rank were copied.
    fn checked(&self, messages: Vec<Message<'static>>) -> Result<Vec<Message<'static>>> {
        let world = self.communicator.world;
        for message in &messages {
            message.check(world).map_err(|error| error.at(world.rank))?;
        }
        copy_to_self(world.rank, messages).map_err(|error| error.at(world.rank))
    }

    fn queue(&self, jobs: Vec<Job<'static>>, outcomes: Vec<Arc<Outcome>>) -> Result<Pending> {
        let mut worker = self.worker.borrow_mut();
        if worker.is_none() {
            *worker = Some(self.open()?);
        }
        let gone = || Error::internal("the thread of requests has ended early").at(self.communicator.world.rank);
        let open = worker.as_mut().ok_or_else(gone)?;
        // Those that have ended need not be remembered: the list is as long as what is under way.
        open.unfinished.retain(|outcome| !outcome.is_set());
        open.unfinished.extend(outcomes.iter().cloned());
        let sender = open.jobs.as_ref().ok_or_else(gone)?;
        for job in jobs {
            sender.send(job).map_err(|_| gone())?;
        }
        Ok(Pending { outcomes, bystander: open.bystander.clone() })
    }

    /// Starts the thread, then lends it the engine: where there is no thread, the engine stays.
    fn open(&self) -> Result<Worker> {
        let (jobs, queue) = channel();
        let (hand, taken) = channel::<Box<Engine>>();
        let (promise, ended) = Promise::new();
        let resting = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&resting);
        let body = move || {
            let worked = taken.recv().ok().map(|engine| work(engine, &queue, &resting));
            promise.set(Ok(()));
            worked
        };
        let thread = thread::spawn("rsccl requests", body).map_err(|error| error.at(self.communicator.world.rank))?;
        // On an error `hand` goes, and with it the thread.
        let engine = self.communicator.lend()?;
        let bystander = Bystander::beside(&engine);
        let (jobs, thread) = (Some(jobs), Some(thread));
        let worker = Worker { jobs, thread, unfinished: Vec::new(), ended, bystander, resting: seen };
        match hand.send(engine) {
            Ok(()) => Ok(worker),
            Err(back) => {
                self.communicator.take_back(back.0, Ok(()))?;
                Err(Error::internal("the thread of requests has ended early").at(self.communicator.world.rank))
            }
        }
    }

    /// Takes the engine back where that takes no time. Whether it is here: else messages have to go where it is, since to wait until
    /// peers have taken what requests have sent might be to wait for peers that wait for the message.
    fn is_home(&self) -> bool {
        let is_away = |open: &Worker| !is_resting(&open.unfinished, &open.resting) && !open.has_failed();
        if self.worker.borrow().as_ref().is_some_and(is_away) { false } else { self.settle() }
    }

    /// Takes the engine back where no request is under way, once peers have taken what requests have sent. Whether it is here.
    fn settle(&self) -> bool {
        let mut worker = self.worker.borrow_mut();
        let busy = |open: &Worker| open.unfinished.iter().any(|outcome| !outcome.is_set());
        if worker.as_ref().is_some_and(busy) {
            return false;
        }
        if let Some(worker) = worker.take() {
            close(&self.communicator, worker);
        }
        true
    }
}

/// Whether all requests have ended and the thread that worked at them has nothing left to do.
fn is_resting(unfinished: &[Arc<Outcome>], resting: &AtomicBool) -> bool {
    // In this order: each outcome, by its lock, shows what was said when its job was taken, so Relaxed will do. Looked at before them,
    // a thread that has not taken the last job yet would seem to rest after it.
    unfinished.iter().all(|outcome| outcome.is_set()) && resting.load(Ordering::Relaxed)
}

/// Waits for a worker's requests and gives the engine back to `communicator`.
fn close(communicator: &Communicator, mut worker: Worker) {
    if let Some((engine, result)) = worker.end() {
        // The requests have said it; the communicator remembers it for the next call.
        drop(communicator.take_back(engine, result));
    } else {
        let error = Error::internal("the thread of requests panicked").at(communicator.world.rank);
        communicator.home.replace(Home::Failed(None, error));
    }
}

impl Worker {
    /// Whether it has nothing more to do than to give the engine back, with an error.
    fn has_failed(&self) -> bool {
        let ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        ended || self.unfinished.iter().any(|outcome| outcome.has_failed())
    }

    /// Closes the queue and waits for the thread. Nothing where it panicked.
    fn end(&mut self) -> Option<Worked> {
        self.jobs = None;
        let thread = self.thread.take()?;
        // How it ended is what it returns; until then the hook goes on.
        drop(self.ended.wait(&self.bystander));
        thread.join().ok().flatten()
    }
}

impl Drop for Worker {
    /// For a desk that is dropped: its requests end, then it says goodbye.
    fn drop(&mut self) {
        if let Some((mut engine, result)) = self.end()
            && !std::thread::panicking()
        {
            // Whoever waited for the request has seen the error.
            drop(result);
            engine.leave();
        }
    }
}

impl Pending {
    /// Waits until the operation has ended; the communicator's time-out bounds it.
    ///
    /// # Errors
    /// The operation's.
    pub fn wait(&self) -> Result<()> {
        let mut first = Ok(());
        for outcome in &self.outcomes {
            first = first.and(outcome.wait(&self.bystander));
        }
        first
    }

    /// Whether the operation has ended, well or not. Never waits.
    pub fn is_finished(&self) -> bool {
        self.outcomes.iter().all(|outcome| outcome.is_set())
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::comm::{Buffers, CallCount, local};
    use crate::error::Kind;
    use crate::types::{Collective, Rank, ReduceOp};

    fn leaked(count: usize, value: u32) -> &'static mut [u32] {
        Box::leak(vec![value; count].into())
    }

    fn sum(buffer: &'static mut [u32]) -> Call<'static> {
        let (count, buffers) = (CallCount::Each(buffer.len() as u64), Buffers::shared(buffer));
        let (collective, data_type, op) = (Collective::AllReduce, DataType::U32, Some(ReduceOp::Sum));
        Call { collective, data_type, op, root: None, count, buffers }
    }

    /// Calls of every kind in one order, on ranks that have requests under way and on ranks that have none.
    #[test]
    fn calls_run_beside_requests_and_without_any() {
        local::run(3, |comm| {
            let (rank, size) = (comm.rank(), comm.size());
            let (right, left) = (Rank::new((rank + 1) % size), Rank::new((rank + 2) % size));
            let own = Rank::new(rank);
            let desk = Desk::new(comm);
            for busy in [0, 1, 2] {
                // What rank `busy` has begun is taken only behind other calls.
                let receives = own.after(2, size) == Rank::new(busy);
                let sends = rank == busy;
                let early = sends.then(|| desk.begin_message(Message::send(leaked(300_000, 7), right))).transpose()?;
                desk.run(sum(leaked(10, rank)))?;
                let mut group = vec![Message::send(leaked(3, rank), own), Message::recv(leaked(3, 9), own)];
                group.extend([Message::send(leaked(5, rank), left), Message::recv(leaked(5, 9), right)]);
                desk.begin_all(group, vec![sum(leaked(4, 1)), sum(leaked(4, 2))])?.wait()?;
                let both = |peer: u32| {
                    let peer = Rank::new(peer);
                    [Message::send(leaked(2, rank), peer), Message::recv(leaked(2, 9), peer)]
                };
                if receives {
                    desk.message(Message::recv(leaked(300_000, 9), left))?;
                }
                desk.exchange((0..size).flat_map(both).collect())?;
                desk.begin_exchange((0..size).flat_map(both).collect())?.wait()?;
                if let Some(early) = early {
                    early.wait()?;
                    assert!(early.is_finished());
                }
            }
            desk.at_rest()?.barrier()?;
            assert!(desk.async_error().is_none());
            desk.finalize()
        })
        .unwrap();
    }

    #[test]
    fn what_cannot_run_beside_requests_says_so() {
        local::run(2, |comm| {
            let rank = comm.rank();
            let desk = Desk::new(comm);
            let theirs = Rank::new(1 - rank);
            let pending = desk.begin_message(Message::recv(leaked(1, 9), theirs))?;
            assert_eq!(desk.at_rest().unwrap_err().kind(), Kind::InvalidUsage);
            let own = Message::send(leaked(1, 9), Rank::new(rank));
            assert_eq!(desk.begin_message(own).unwrap_err().kind(), Kind::InvalidUsage);
            desk.begin_message(Message::send(leaked(1, 7), theirs))?.wait()?;
            pending.wait()?;
            desk.at_rest().map(drop)
        })
        .unwrap();
    }

    #[test]
    fn a_request_that_fails_ends_the_communicator_on_all_ranks() {
        local::run(3, |comm| {
            let rank = comm.rank();
            let desk = Desk::new(comm);
            let count = if rank == 2 { 2000 } else { 1000 };
            let error = desk.begin(sum(leaked(count, rank)))?.wait().unwrap_err();
            assert_eq!(error.kind(), Kind::Mismatch, "{error}");
            assert!(desk.async_error().is_some());
            assert!(desk.run(sum(leaked(1, 1))).is_err() && desk.begin(sum(leaked(1, 1))).is_err());
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn a_desk_that_is_dropped_waits_for_its_requests() {
        local::run(2, |comm| {
            let theirs = Rank::new(1 - comm.rank());
            let sends = comm.rank() == 0;
            let desk = Desk::new(comm);
            let pending = match sends {
                true => desk.begin_message(Message::send(leaked(300_000, 7), theirs))?,
                false => desk.begin_message(Message::recv(leaked(300_000, 9), theirs))?,
            };
            drop(desk);
            assert!(pending.is_finished());
            pending.wait()
        })
        .unwrap();
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sys::futex::{Membarrier, model};

    /// A thread that rested, takes a send, and ends the request as soon as the message lies in slots: until peers have taken it from
    /// there the engine cannot be had at once.
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
