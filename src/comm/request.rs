//! Non-blocking operations: a scope whose requests run on a thread of its own.
//!
//! The engine moves to the scope's thread and comes back when the scope ends, which is after every request has ended: the buffers of
//! requests outlive them because they outlive the scope. Messages run side by side, also while a collective runs that was begun after
//! them; collectives run one after the other, in the order in which they were begun, as all ranks must begin them. A message that is
//! begun behind a collective waits for its end.

use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

use crate::bootstrap::Bootstrap;
use crate::comm::engine::Engine;
use crate::comm::group::{Step, Steps, run_calls};
use crate::comm::panics::{as_error, panicked};
use crate::comm::waiting_hooks::WaitingHooks;
use crate::comm::{Call, Communicator, Message, forked, typed};
use crate::error::{Error, Kind, Result};
use crate::exec::{Beside, MessageRun, Progress, Task, check_to_self};
use crate::sync::Backoff;
use crate::sync::primitive::{Arc, AtomicBool, Condvar, Mutex, MutexGuard, Ordering};
use crate::sys::fork::Birthplace;
use crate::sys::thread;
use crate::transport::{Fabric, Need};
use crate::types::{Element, Rank, ReduceOp, World};

/// Begins operations that go on while the program does other things. Made by [`Communicator::scope`].
#[derive(Debug)]
pub struct Scope<'scope, 'env: 'scope> {
    world: World,
    birthplace: Birthplace,
    jobs: Sender<Job<'scope>>,
    hooks: WaitingHooks,
    /// What the program's own borrows outlive; gives `'scope` its upper bound.
    env: PhantomData<&'env ()>,
}

/// An operation that was begun. Waiting is optional: the scope ends after all of its requests, with the first of their errors.
#[derive(Debug)]
#[must_use = "wait() says when the buffers hold the result"]
pub struct Request<'scope> {
    birthplace: Birthplace,
    outcome: Arc<Outcome>,
    hooks: WaitingHooks,
    scope: PhantomData<&'scope ()>,
}

impl Communicator {
    /// Runs `body`, which begins operations and goes on; returns when all of them have ended.
    ///
    /// # Errors
    /// That of `body`, or the first of the requests'.
    ///
    /// # Panics
    /// Where `body` does: once the requests have ended, with errors where they had not yet, and the communicator too, on all ranks.
    ///
    /// # Forked children
    /// A child that `body` forks has no thread that works at its requests: they are errors there. It must end, or run another program,
    /// before it leaves `body`.
    ///
    /// # Examples
    /// ```
    /// use rsccl::ReduceOp;
    ///
    /// rsccl::local::run(3, |comm| {
    ///     let (mine, mut sum) = ([comm.rank(); 1000], [0; 1000]);
    ///     let (right, left) = ((comm.rank() + 1) % 3, (comm.rank() + 2) % 3);
    ///     let mut theirs = [9; 1000];
    ///     comm.scope(|scope| {
    ///         // A receive may be begun before the send that its peer waits for.
    ///         let received = scope.recv(&mut theirs, left)?;
    ///         scope.send(&mine, right)?.wait()?;
    ///         let reduced = scope.all_reduce(&mine, &mut sum, ReduceOp::Sum)?;
    ///         // ... compute ...
    ///         received.wait()?;
    ///         reduced.wait()
    ///     })?;
    ///     assert_eq!((sum[999], theirs[999]), (3, left));
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn scope<'env, T>(&self, body: impl for<'scope> FnOnce(&Scope<'scope, 'env>) -> Result<T>) -> Result<T> {
        self.try_scope(body)
    }

    /// [`Communicator::scope`] for a body with an error type of its own, which errors of rsccl become by `From`. The type has to be
    /// named, as in `comm.try_scope::<_, MyError>(|scope| ...)`.
    ///
    /// # Errors
    /// As [`Communicator::scope`].
    pub fn try_scope<'env, T, E: From<Error>>(
        &self,
        body: impl for<'scope> FnOnce(&Scope<'scope, 'env>) -> Result<T, E>,
    ) -> Result<T, E> {
        let engine = self.lend()?;
        let (world, hooks) = (engine.session.world, WaitingHooks::of(&engine));
        let (worked, value) = std::thread::scope(|threads| {
            let (jobs, queue) = channel();
            let (promise, ended) = Promise::new();
            let worker = thread::spawn_in(threads, "rsccl requests", move || {
                let worked = work(engine, &queue, &AtomicBool::new(false));
                promise.set(Ok(()));
                worked
            });
            let worker = match worker {
                Ok(worker) => worker,
                Err(error) => return (Err(error.duplicate()), Ok(Err(error.into()))),
            };
            let scope = Scope { world, birthplace: self.birthplace, jobs, hooks: hooks.clone(), env: PhantomData };
            let value = catch_unwind(AssertUnwindSafe(|| body(&scope)));
            if let Err(panic) = &value {
                // Nobody waits for requests whose buffers are about to go.
                self.status.abort.raise(panicked("the body of a scope", &**panic));
            }
            drop(scope);
            // How the thread ended is what it returns; until then the hook goes on.
            drop(ended.wait(&hooks));
            (worker.join().map_err(|panic| panicked("the thread of requests", &*panic)), value)
        });
        let ended = self.bring_home(worked, value.is_err());
        match value {
            Ok(value) => ended.map_err(E::from).and(value),
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Takes the engine back from a thread of requests; what ended the communicator, if anything did.
    pub(super) fn bring_home(&self, worked: Result<(Box<Engine>, Result<()>)>, has_panicked: bool) -> Result<()> {
        match worked {
            // The reason stands in the flag; without a request under way nobody has looked at it.
            Ok((engine, ended)) if has_panicked => {
                self.take_back(engine, ended.and_then(|()| self.status.abort.check()))
            }
            Ok((engine, ended)) => self.take_back(engine, ended),
            Err(error) => {
                self.lose(error.duplicate());
                Err(error)
            }
        }
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Begins [`Communicator::send`].
    ///
    /// # Errors
    /// As the call's, where one rank alone can see it; the rest comes with the request.
    pub fn send<T: Element>(&self, buffer: &'scope [T], peer: u32) -> Result<Request<'scope>> {
        self.begin_message(Message::send(buffer, Rank::new(peer)))
    }

    /// Begins [`Communicator::recv`].
    ///
    /// # Errors
    /// As [`Scope::send`].
    pub fn recv<T: Element>(&self, buffer: &'scope mut [T], peer: u32) -> Result<Request<'scope>> {
        self.begin_message(Message::recv(buffer, Rank::new(peer)))
    }

    /// Begins [`Communicator::all_reduce`].
    ///
    /// # Errors
    /// As [`Scope::send`].
    pub fn all_reduce<T: Element>(
        &self,
        send: &'scope [T],
        recv: &'scope mut [T],
        op: ReduceOp,
    ) -> Result<Request<'scope>> {
        self.begin(typed::named(self.world, "all_reduce", typed::all_reduce(send, recv, op))?)
    }

    /// Begins [`Communicator::all_reduce_in_place`].
    ///
    /// # Errors
    /// As [`Scope::send`].
    pub fn all_reduce_in_place<T: Element>(&self, buffer: &'scope mut [T], op: ReduceOp) -> Result<Request<'scope>> {
        self.begin(typed::all_reduce_in_place(buffer, op))
    }

    /// Begins [`Communicator::broadcast`].
    ///
    /// # Errors
    /// As [`Scope::send`].
    pub fn broadcast<T: Element>(&self, buffer: &'scope mut [T], root: u32) -> Result<Request<'scope>> {
        self.begin(typed::broadcast(buffer, root))
    }

    /// Begins [`Communicator::broadcast_into`].
    ///
    /// # Errors
    /// As [`Scope::send`].
    pub fn broadcast_into<T: Element>(
        &self,
        send: &'scope [T],
        recv: &'scope mut [T],
        root: u32,
    ) -> Result<Request<'scope>> {
        self.begin(typed::named(self.world, "broadcast", typed::broadcast_into(self.world, (send, recv), root))?)
    }

    /// Begins [`Communicator::reduce`].
    ///
    /// # Errors
    /// As [`Scope::send`].
    pub fn reduce<T: Element>(
        &self,
        send: &'scope [T],
        recv: &'scope mut [T],
        op: ReduceOp,
        root: u32,
    ) -> Result<Request<'scope>> {
        self.begin(typed::named(self.world, "reduce", typed::reduce(self.world, (send, recv), op, root))?)
    }

    /// Begins [`Communicator::reduce_in_place`].
    ///
    /// # Errors
    /// As [`Scope::send`].
    pub fn reduce_in_place<T: Element>(
        &self,
        buffer: &'scope mut [T],
        op: ReduceOp,
        root: u32,
    ) -> Result<Request<'scope>> {
        self.begin(typed::reduce_in_place(buffer, op, root))
    }

    /// Begins [`Communicator::all_gather`].
    ///
    /// # Errors
    /// As [`Scope::send`].
    pub fn all_gather<T: Element>(&self, send: &'scope [T], recv: &'scope mut [T]) -> Result<Request<'scope>> {
        self.begin(typed::named(self.world, "all_gather", typed::all_gather(self.world, send, recv))?)
    }

    /// Begins [`Communicator::all_gather_in_place`].
    ///
    /// # Errors
    /// As [`Scope::send`].
    pub fn all_gather_in_place<T: Element>(&self, buffer: &'scope mut [T]) -> Result<Request<'scope>> {
        self.begin(typed::named(self.world, "all_gather", typed::all_gather_in_place(self.world, buffer))?)
    }

    /// Begins [`Communicator::reduce_scatter`].
    ///
    /// # Errors
    /// As [`Scope::send`].
    pub fn reduce_scatter<T: Element>(
        &self,
        send: &'scope [T],
        recv: &'scope mut [T],
        op: ReduceOp,
    ) -> Result<Request<'scope>> {
        self.begin(typed::named(self.world, "reduce_scatter", typed::reduce_scatter(self.world, (send, recv), op))?)
    }

    /// Begins [`Communicator::reduce_scatter_in_place`].
    ///
    /// # Errors
    /// As [`Scope::send`].
    pub fn reduce_scatter_in_place<T: Element>(
        &self,
        buffer: &'scope mut [T],
        op: ReduceOp,
    ) -> Result<Request<'scope>> {
        self.begin(typed::named(self.world, "reduce_scatter", typed::reduce_scatter_in_place(self.world, buffer, op))?)
    }

    /// Begins [`Communicator::all_to_all`].
    ///
    /// # Errors
    /// As [`Scope::send`].
    pub fn all_to_all<T: Element>(&self, send: &'scope [T], recv: &'scope mut [T]) -> Result<Request<'scope>> {
        self.begin(typed::named(self.world, "all_to_all", typed::all_to_all(self.world, send, recv))?)
    }

    /// Begins [`Communicator::gather`].
    ///
    /// # Errors
    /// As [`Scope::send`].
    pub fn gather<T: Element>(&self, send: &'scope [T], recv: &'scope mut [T], root: u32) -> Result<Request<'scope>> {
        self.begin(typed::named(self.world, "gather", typed::gather(self.world, (send, recv), root))?)
    }

    /// Begins [`Communicator::scatter`].
    ///
    /// # Errors
    /// As [`Scope::send`].
    pub fn scatter<T: Element>(&self, send: &'scope [T], recv: &'scope mut [T], root: u32) -> Result<Request<'scope>> {
        self.begin(typed::named(self.world, "scatter", typed::scatter(self.world, (send, recv), root))?)
    }

    /// Begins [`Communicator::barrier`].
    ///
    /// # Errors
    /// As [`Scope::send`].
    pub fn barrier(&self) -> Result<Request<'scope>> {
        self.begin(typed::barrier())
    }

    /// Begins [`Communicator::all_gather_v`].
    ///
    /// # Errors
    /// As [`Scope::send`].
    pub fn all_gather_v<T: Element>(
        &self,
        send: &'scope [T],
        recv: &'scope mut [T],
        counts: &[usize],
    ) -> Result<Request<'scope>> {
        self.begin(typed::named(self.world, "all_gather_v", typed::all_gather_v(self.world, (send, recv), counts))?)
    }

    /// Begins [`Communicator::reduce_scatter_v`].
    ///
    /// # Errors
    /// As [`Scope::send`].
    pub fn reduce_scatter_v<T: Element>(
        &self,
        send: &'scope [T],
        recv: &'scope mut [T],
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<Request<'scope>> {
        self.begin(typed::named(
            self.world,
            "reduce_scatter_v",
            typed::reduce_scatter_v(self.world, (send, recv), counts, op),
        )?)
    }

    /// Begins [`Communicator::all_to_all_v`].
    ///
    /// # Errors
    /// As [`Scope::send`].
    pub fn all_to_all_v<T: Element>(
        &self,
        send: &'scope [T],
        send_counts: &[usize],
        recv: &'scope mut [T],
        recv_counts: &[usize],
    ) -> Result<Request<'scope>> {
        self.begin_exchange(typed::named(
            self.world,
            "all_to_all_v",
            typed::all_to_all_v(self.world, (send, send_counts), (recv, recv_counts)),
        )?)
    }

    /// Begins [`Communicator::gather_v`].
    ///
    /// # Errors
    /// As [`Scope::send`].
    pub fn gather_v<T: Element>(
        &self,
        send: &'scope [T],
        recv: &'scope mut [T],
        counts: &[usize],
        root: u32,
    ) -> Result<Request<'scope>> {
        self.begin(typed::named(self.world, "gather_v", typed::gather_v(self.world, (send, recv), counts, root))?)
    }

    /// Begins [`Communicator::scatter_v`].
    ///
    /// # Errors
    /// As [`Scope::send`].
    pub fn scatter_v<T: Element>(
        &self,
        send: &'scope [T],
        recv: &'scope mut [T],
        counts: &[usize],
        root: u32,
    ) -> Result<Request<'scope>> {
        self.begin(typed::named(self.world, "scatter_v", typed::scatter_v(self.world, (send, recv), counts, root))?)
    }

    /// Begins [`Communicator::scan`].
    ///
    /// # Errors
    /// As [`Scope::send`].
    pub fn scan<T: Element>(&self, send: &'scope [T], recv: &'scope mut [T], op: ReduceOp) -> Result<Request<'scope>> {
        self.begin(typed::named(self.world, "scan", typed::scan(send, recv, op))?)
    }

    /// Begins [`Communicator::scan_in_place`].
    ///
    /// # Errors
    /// As [`Scope::send`].
    pub fn scan_in_place<T: Element>(&self, buffer: &'scope mut [T], op: ReduceOp) -> Result<Request<'scope>> {
        self.begin(typed::scan_in_place(buffer, op))
    }

    /// Begins [`Communicator::exscan`].
    ///
    /// # Errors
    /// As [`Scope::send`].
    pub fn exscan<T: Element>(
        &self,
        send: &'scope [T],
        recv: &'scope mut [T],
        op: ReduceOp,
    ) -> Result<Request<'scope>> {
        self.begin(typed::named(self.world, "exscan", typed::exscan(send, recv, op))?)
    }

    /// Begins [`Communicator::exscan_in_place`].
    ///
    /// # Errors
    /// As [`Scope::send`].
    pub fn exscan_in_place<T: Element>(&self, buffer: &'scope mut [T], op: ReduceOp) -> Result<Request<'scope>> {
        self.begin(typed::exscan_in_place(buffer, op))
    }

    /// Begins [`Communicator::send_recv`].
    ///
    /// # Errors
    /// As [`Scope::send`].
    pub fn send_recv<T: Element>(
        &self,
        send: &'scope [T],
        target: u32,
        recv: &'scope mut [T],
        source: u32,
    ) -> Result<Request<'scope>> {
        self.begin_messages(typed::send_recv((send, target), (recv, source)))
    }

    /// Begins any collective, described.
    ///
    /// # Errors
    /// As [`Scope::send`].
    pub fn begin(&self, call: Call<'scope>) -> Result<Request<'scope>> {
        call.check(self.world).map_err(|error| error.at(self.world.rank))?;
        self.queue(|outcome| Job::Group(Vec::new(), Steps::of(call), outcome))
    }

    fn begin_message(&self, message: Message<'scope>) -> Result<Request<'scope>> {
        check_message(&message, self.world)?;
        self.queue(|outcome| Job::Messages(vec![message], outcome))
    }

    fn begin_messages(&self, messages: Vec<Message<'scope>>) -> Result<Request<'scope>> {
        check_exchange(&messages, self.world)?;
        self.queue(|outcome| Job::Messages(messages, outcome))
    }

    fn begin_exchange(&self, messages: Vec<Message<'scope>>) -> Result<Request<'scope>> {
        check_exchange(&messages, self.world)?;
        self.queue(|outcome| Job::Exchange(messages, outcome))
    }

    fn queue(&self, job: impl FnOnce(Promise) -> Job<'scope>) -> Result<Request<'scope>> {
        if !self.birthplace.is_here() {
            return Err(forked().at(self.world.rank));
        }
        let (promise, outcome) = Promise::new();
        let gone = |_| Error::internal("the thread of requests has ended early").at(self.world.rank);
        self.jobs.send(job(promise)).map_err(gone)?;
        Ok(Request { birthplace: self.birthplace, outcome, hooks: self.hooks.clone(), scope: PhantomData })
    }
}

impl Request<'_> {
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

/// Refuses what one rank alone can see to be wrong of a message that is to be begun.
pub(super) fn check_message(message: &Message<'_>, world: World) -> Result<()> {
    message.check(world).map_err(|error| error.at(world.rank))?;
    if message.peer() == world.rank {
        let message = "a request cannot send to or receive from its own rank: use a group";
        return Err(Error::invalid_usage(message).at(world.rank));
    }
    Ok(())
}

/// Refuses what one rank alone can see to be wrong of an `all_to_all_v` that is to be begun.
pub(super) fn check_exchange(messages: &[Message<'_>], world: World) -> Result<()> {
    let checked = messages.iter().try_for_each(|message| message.check(world));
    checked.and_then(|()| check_to_self(world.rank, messages)).map_err(|error| error.at(world.rank))
}

/// Whether an error is the caller's own, after which the communicator goes on.
fn is_own(error: &Error) -> bool {
    matches!(error.kind(), Kind::InvalidArgument | Kind::InvalidUsage)
}

/// How a request ended.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    ended: Mutex<Option<Result<()>>>,
    changed: Condvar,
}

impl Outcome {
    fn lock(&self) -> MutexGuard<'_, Option<Result<()>>> {
        self.ended.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn set(&self, result: Result<()>) {
        *self.lock() = Some(result);
        self.changed.notify_all();
    }

    pub(super) fn is_set(&self) -> bool {
        self.lock().is_some()
    }

    /// Whether it ended with an error that ended the communicator.
    pub(super) fn has_failed(&self) -> bool {
        self.lock().as_ref().is_some_and(|ended| ended.as_ref().is_err_and(|error| !is_own(error)))
    }

    /// Waits until the request has ended; whoever works at it has a deadline.
    pub(super) fn wait(&self, hooks: &WaitingHooks) -> Result<()> {
        let mut ended = self.lock();
        loop {
            match &*ended {
                Some(Ok(())) => return Ok(()),
                Some(Err(error)) => return Err(error.duplicate()),
                None if hooks.is_empty() => {
                    ended = self.changed.wait(ended).unwrap_or_else(std::sync::PoisonError::into_inner);
                }
                None => {
                    let waited = self.changed.wait_timeout(ended, crate::sync::Progress::REST);
                    // Nobody is to wait for the lock while the hook runs.
                    drop(waited.unwrap_or_else(std::sync::PoisonError::into_inner));
                    hooks.turn();
                    ended = self.lock();
                }
            }
        }
    }
}

/// The duty to say how a request ended. Dropped without a word, as when another request ends the scope's thread, it says so:
/// nobody waits for a request that nothing works at.
#[derive(Debug)]
pub(super) struct Promise(Arc<Outcome>);

impl Promise {
    /// A promise, and where its word is found.
    pub(super) fn new() -> (Promise, Arc<Outcome>) {
        let outcome = Arc::<Outcome>::default();
        (Promise(Arc::clone(&outcome)), outcome)
    }

    pub(super) fn set(&self, result: Result<()>) {
        self.0.set(result);
    }

    /// Says that one part of an operation has ended well; the last to say so speaks for all.
    fn keep(part: Arc<Promise>) {
        if let Some(promise) = Arc::into_inner(part) {
            promise.set(Ok(()));
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if self.0.lock().is_none() {
            self.0.set(Err(Error::aborted(
                "another request has failed: the error of the scope or the communicator says how",
            )));
        }
    }
}

/// Something else that needs the engine, and all ranks: what is under way goes on beside it. Its value takes another way.
pub(super) type Setup<'scope> = Box<dyn FnOnce(&mut Engine, &mut dyn Beside) -> Result<()> + Send + 'scope>;

/// What a thread of requests is asked to do.
pub(super) enum Job<'scope> {
    /// Messages that run side by side: one, or those of a `send_recv`, which may go to the own rank.
    Messages(Vec<Message<'scope>>, Promise),
    /// The messages of one `all_to_all_v`: one to and one from each rank, all of one type.
    Exchange(Vec<Message<'scope>>, Promise),
    /// What a group has: messages side by side, then collectives one after the other. Each works on what those before it have made.
    Group(Vec<Message<'scope>>, Steps<'scope>, Promise),
    /// A split or the like.
    Setup(Setup<'scope>, Promise),
}

impl Job<'_> {
    /// Says how all of it has ended.
    fn set(&self, error: &Error) {
        match self {
            Job::Messages(_, promise)
            | Job::Exchange(_, promise)
            | Job::Group(_, _, promise)
            | Job::Setup(_, promise) => promise.set(Err(error.duplicate())),
        }
    }
}

/// Messages that have begun and not ended, in their order.
#[derive(Debug, Default)]
struct UnderWay<'scope> {
    /// Each with the promise of the operation that it is a part of.
    messages: Vec<(MessageRun<'scope>, Need, Arc<Promise>)>,
}

impl Beside for UnderWay<'_> {
    fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    fn turn(&mut self, fabric: &mut Fabric, bootstrap: &dyn Bootstrap) -> Result<bool> {
        let mut moved = fabric.links().pump()?;
        if fabric.is_connecting() {
            moved |= fabric.progress_connect(bootstrap)?;
        }
        let mut blocked: Vec<Need> = Vec::new();
        let mut still = Vec::with_capacity(self.messages.len());
        for (mut run, need, outcome) in std::mem::take(&mut self.messages) {
            // Messages of one connection keep their order: the first that is not over blocks those behind it.
            let ready = !blocked.contains(&need) && fabric.is_connected(&need);
            let progress = if ready { run.progress(fabric.links()) } else { Ok(Progress::Idle) };
            let progress = progress.inspect_err(|error| outcome.set(Err(error.duplicate())))?;
            moved |= progress != Progress::Idle;
            if progress == Progress::Done {
                Promise::keep(outcome);
            } else {
                blocked.push(need);
                still.push((run, need, outcome));
            }
        }
        self.messages = still;
        Ok(moved)
    }

    fn peers(&self) -> Vec<Rank> {
        self.messages.iter().map(|(run, ..)| run.peer()).collect()
    }
}

/// Works off the jobs until the queue is closed; gives the engine back, and the error that ended the communicator. `resting` says
/// whether it would give it back at once.
pub(super) fn work(
    mut engine: Box<Engine>,
    queue: &Receiver<Job<'_>>,
    resting: &AtomicBool,
) -> (Box<Engine>, Result<()>) {
    let mut under_way = UnderWay::default();
    // A progress hook may panic here; the communicator ends by it, and its engine stays to tell the others.
    let mut result = as_error("the thread of requests", || serve(&mut engine, (queue, resting), &mut under_way));
    if let Err(error) = &result {
        for (_, _, outcome) in under_way.messages {
            outcome.set(Err(error.duplicate()));
        }
        // Now, and not only when the queue is closed: the other ranks wait.
        engine.session.publish_failure(error);
        // What is still begun ends at once; the end of the scope or the desk closes the queue.
        while let Ok(job) = queue.recv() {
            job.set(error);
        }
        result = Err(error.duplicate());
    }
    (engine, result)
}

fn serve<'scope>(
    engine: &mut Engine,
    (queue, resting): (&Receiver<Job<'scope>>, &AtomicBool),
    under_way: &mut UnderWay<'scope>,
) -> Result<()> {
    let mut backoff = Backoff::new(engine.patience());
    let mut open = true;
    while open || !under_way.is_empty() {
        // A message that has ended may lie in the slots still: it has to arrive with no call of this rank.
        let idle = under_way.is_empty() && engine.is_drained();
        // Relaxed: nothing goes with it. Whoever finds a job's outcome, by its lock, finds what was said when that job was taken.
        resting.store(idle, Ordering::Relaxed);
        let job = if idle { queue.recv().map_err(|_| TryRecvError::Disconnected) } else { queue.try_recv() };
        resting.store(false, Ordering::Relaxed);
        match job {
            Ok(Job::Messages(messages, outcome)) => begin(engine, messages, outcome, under_way)?,
            Ok(Job::Exchange(messages, outcome)) => begin_exchange(engine, messages, outcome, under_way)?,
            Ok(Job::Group(messages, steps, outcome)) => {
                tell(run_group(engine, (messages, steps), under_way), &outcome)?;
            }
            Ok(Job::Setup(body, outcome)) => tell(body(engine, under_way), &outcome)?,
            Err(TryRecvError::Disconnected) => open = false,
            Err(TryRecvError::Empty) => {}
        }
        if !under_way.is_empty() {
            engine.turn(under_way, &mut backoff)?;
        } else if open {
            engine.push()?;
        }
    }
    engine.drain()
}

/// Says how a job has ended; yields its error where that ends the communicator.
fn tell(result: Result<()>, outcome: &Promise) -> Result<()> {
    outcome.set(result.as_ref().copied().map_err(Error::duplicate));
    result.or_else(|error| if is_own(&error) { Ok(()) } else { Err(error) })
}

/// Runs what a group has, beside what is under way.
fn run_group<'scope>(
    engine: &mut Engine,
    (messages, steps): (Vec<Message<'scope>>, Steps<'scope>),
    under_way: &mut UnderWay<'scope>,
) -> Result<()> {
    if !messages.is_empty() {
        let (promise, outcome) = Promise::new();
        begin(engine, messages, promise, under_way)?;
        await_end(engine, &outcome, under_way)?;
    }
    for step in steps.into_iter() {
        match step {
            Step::Calls(calls) => run_calls(engine, &calls, under_way)?,
            Step::Exchange(messages) => {
                let (promise, outcome) = Promise::new();
                begin_exchange(engine, messages, promise, under_way)?;
                await_end(engine, &outcome, under_way)?;
            }
        }
    }
    Ok(())
}

/// Moves what is under way until a part of it has ended.
fn await_end(engine: &mut Engine, outcome: &Outcome, under_way: &mut UnderWay<'_>) -> Result<()> {
    let mut backoff = Backoff::new(engine.patience());
    while !outcome.is_set() {
        engine.turn(under_way, &mut backoff)?;
    }
    Ok(())
}

fn begin<'scope>(
    engine: &mut Engine,
    messages: Vec<Message<'scope>>,
    outcome: Promise,
    under_way: &mut UnderWay<'scope>,
) -> Result<()> {
    // Here and not when they were queued, as in `begin_exchange`.
    let begun = engine.copy_to_self(messages).and_then(|others| {
        let needs: Vec<Need> = others.iter().map(Message::need).collect();
        engine.begin_connect(&needs).map(|()| (others, needs))
    });
    let (others, needs) = begun.inspect_err(|error| outcome.set(Err(error.duplicate())))?;
    let outcome = Arc::new(outcome);
    for (message, need) in others.into_iter().zip(needs) {
        under_way.messages.push((engine.begin_message(message), need, Arc::clone(&outcome)));
    }
    Promise::keep(outcome);
    Ok(())
}

fn begin_exchange<'scope>(
    engine: &mut Engine,
    messages: Vec<Message<'scope>>,
    outcome: Promise,
    under_way: &mut UnderWay<'scope>,
) -> Result<()> {
    // Here and not when it was queued: a collective of the same group that ran before may have written what is copied.
    let begun = engine.open_exchange(messages).and_then(|(others, data_type)| {
        let needs: Vec<Need> = others.iter().map(Message::need).collect();
        engine.begin_connect(&needs)?;
        Ok((engine.begin_exchange(others, data_type).1, needs))
    });
    let (runs, needs) = begun.inspect_err(|error| outcome.set(Err(error.duplicate())))?;
    let outcome = Arc::new(outcome);
    for (run, need) in runs.into_iter().zip(needs) {
        under_way.messages.push((run, need, Arc::clone(&outcome)));
    }
    // Where there is no other rank, all has ended.
    Promise::keep(outcome);
    Ok(())
}

#[cfg(all(test, loom))]
mod models {
    use loom::cell::UnsafeCell;

    use super::*;
    use crate::sys::futex::{Membarrier, model};

    /// A request's buffer as loom sees it.
    struct Buffer(UnsafeCell<()>);

    // SAFETY: that the program has it only when the worker has done is what the model proves; loom fails where it is not so.
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
