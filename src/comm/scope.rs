//! Scopes: operations that run on a thread of their own while the program goes on.
//!
//! The scope's thread has the engine, and gives it back when the scope ends, after every request has ended. So the
//! buffers of requests outlive the requests: the compiler checks that they outlive the scope. The thread and its
//! order of work are in [`worker`](super::worker).

use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::channel;

use crate::comm::collectives::Submit;
use crate::comm::group::Steps;
use crate::comm::panics::panicked;
use crate::comm::request::{Promise, Request};
use crate::comm::waiting_hooks::WaitingHooks;
use crate::comm::worker::{Job, Jobs, check_message, check_messages, jobs, work};
use crate::comm::{Call, Communicator, Message, forked};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::sync::primitive::AtomicBool;
use crate::sys::fork::Birthplace;
use crate::sys::thread;
use crate::types::World;

/// Begins operations that go on while the program does other things. Made by [`Communicator::scope`].
///
/// Its methods are those of [`Communicator`]. Each begins the operation and returns a [`Request`]. What one rank alone
/// can see to be wrong is the method's error; every other error of the operation is the request's. A send to this rank
/// itself, and a recv from it, go by [`Scope::send_recv`] only.
#[derive(Debug)]
pub struct Scope<'scope, 'env: 'scope> {
    world: World,
    birthplace: Birthplace,
    jobs: Jobs<'scope>,
    hooks: WaitingHooks,
    /// The lifetime that the program's own borrows outlive: the upper bound of `'scope`.
    env: PhantomData<&'env ()>,
}

impl Communicator {
    /// Runs `body`, which begins operations and goes on; returns when all of them have ended.
    ///
    /// # Errors
    /// That of `body`, or the first of the requests'.
    ///
    /// # Panics
    /// Where `body` panics. The panic first ends the communicator on all ranks, and the requests that have not ended
    /// yet, with errors.
    ///
    /// # Forked children
    /// A child that `body` forks does not have the thread that works at requests: waiting for them is an error there.
    /// The child must end, or run another program, before it leaves `body`.
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

    /// [`Communicator::scope`] for a body with an error type of its own, which errors of rsccl become by `From`. The
    /// type has to be named, as in `comm.try_scope::<_, MyError>(|scope| ...)`.
    ///
    /// # Errors
    /// As [`Communicator::scope`].
    pub fn try_scope<'env, T, E: From<Error>>(
        &self,
        body: impl for<'scope> FnOnce(&Scope<'scope, 'env>) -> Result<T, E>,
    ) -> Result<T, E> {
        let (worked, value) = std::thread::scope(|threads| {
            let (jobs, queue) = jobs();
            let (hand, taken) = channel::<Box<Engine>>();
            let (promise, ended) = Promise::new();
            let serve = move || {
                let worked = taken.recv().ok().map(|engine| work(engine, &queue, &AtomicBool::new(false)));
                promise.set(Ok(()));
                worked
            };
            // The thread first: where none can be started, the engine stays here. Where the engine cannot be lent,
            // `hand` is dropped, which ends the thread.
            let worker = thread::spawn_in(threads, "rsccl requests", serve);
            let worker = worker.map_err(|error| self.at(error.inside("scope")))?;
            let engine = self.lend()?;
            let (world, hooks) = (engine.session.world, WaitingHooks::of(&engine));
            // The thread is there: it takes it.
            drop(hand.send(engine));
            let scope = Scope { world, birthplace: self.birthplace, jobs, hooks: hooks.clone(), env: PhantomData };
            let value = catch_unwind(AssertUnwindSafe(|| body(&scope)));
            if let Err(panic) = &value {
                // The buffers of the requests are about to be freed: the requests must end now.
                self.status.abort.raise(panicked("the body of a scope", &**panic));
            }
            drop(scope);
            // The thread returns how it ended; until then the program's hook is called.
            drop(ended.wait(&hooks));
            let worked = worker.join().map_err(|panic| panicked("the thread of requests", &*panic));
            let worked = worked.and_then(|worked| worked.ok_or_else(|| Error::internal("a scope without an engine")));
            Ok::<_, Error>((worked, value))
        })?;
        let ended = self.bring_home(worked, value.is_err());
        match value {
            Ok(value) => ended.map_err(E::from).and(value),
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Takes the engine back from a thread of requests. The error is what ended the communicator, if anything did.
    pub(super) fn bring_home(&self, worked: Result<(Box<Engine>, Result<()>)>, has_panicked: bool) -> Result<()> {
        match worked {
            // The abort flag has the reason. Where no request was under way, nobody has looked at it yet.
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

impl<'scope> Submit<'scope> for &Scope<'scope, '_> {
    type Output = Request<'scope>;

    fn world(&self) -> Result<World> {
        Ok(self.world)
    }

    fn submit(self, call: Call<'scope>) -> Result<Request<'scope>> {
        self.begin(call)
    }

    fn submit_message(self, message: Message<'scope>) -> Result<Request<'scope>> {
        check_message(&message, self.world)?;
        self.queue(|promise| Job::Messages(vec![message], promise))
    }

    fn submit_messages(self, messages: Vec<Message<'scope>>) -> Result<Request<'scope>> {
        check_messages(&messages, self.world)?;
        self.queue(|promise| Job::Messages(messages, promise))
    }

    fn submit_exchange(self, messages: Vec<Message<'scope>>) -> Result<Request<'scope>> {
        check_messages(&messages, self.world)?;
        self.queue(|promise| Job::Exchange(messages, promise))
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Begins any collective, described.
    ///
    /// # Errors
    /// As [`Communicator::run`], where one rank alone can see it; the rest is the request's.
    pub fn begin(&self, call: Call<'scope>) -> Result<Request<'scope>> {
        call.check(self.world).map_err(|error| error.at(self.world.rank))?;
        self.queue(|promise| Job::Group(Vec::new(), Steps::of(call), promise))
    }

    fn queue(&self, job: impl FnOnce(Promise) -> Job<'scope>) -> Result<Request<'scope>> {
        if !self.birthplace.is_here() {
            return Err(forked().at(self.world.rank));
        }
        let (promise, outcome) = Promise::new();
        let gone = |_| Error::internal("the thread of requests has ended early").at(self.world.rank);
        self.jobs.send(job(promise), &outcome).map_err(gone)?;
        Ok(Request::new(self.birthplace, outcome, self.hooks.clone()))
    }
}
