//! Scopes: operations that go on while the program does other things, on buffers that the program has lent.
//!
//! A scope ends when all of its requests have ended, so the buffers outlive the requests: the compiler checks that they
//! outlive the scope. Requests that outlive their scope's body own their buffers ([`owned`](super::owned)).

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::comm::collectives::Submit;
use crate::comm::engine_home::EngineHome;
use crate::comm::group::{Steps, check_message, check_messages};
use crate::comm::job::Job;
use crate::comm::outcome::{Beginner, Outcome, Promise};
use crate::comm::request::Request;
use crate::comm::{Call, Communicator, Message};
use crate::error::{Error, Result};
use crate::sync::primitive::{Arc, Mutex};
use crate::types::World;

/// Begins operations that go on while the program does other things. Made by [`Communicator::scope`].
///
/// Its methods are those of [`Communicator`]. Each begins the operation, goes as far as that goes without waiting, and
/// returns a [`Request`]. What one rank alone can see to be wrong is the method's error; every other error of the
/// operation is the request's. A send to this rank itself, and a recv from it, go by [`Scope::send_recv`] only.
#[derive(Debug)]
pub struct Scope<'scope, 'env: 'scope> {
    world: World,
    shared: &'scope Arc<EngineHome>,
    begun: &'scope Outcomes,
    /// The lifetime of the buffers, which outlive the scope.
    scope: PhantomData<&'scope mut &'scope ()>,
    /// The lifetime that the program's own borrows outlive: the upper bound of `'scope`.
    env: PhantomData<&'env ()>,
}

impl Communicator {
    /// Runs `body`, which begins operations and goes on; returns when all of them have ended. Blocking calls of the
    /// communicator may stand between them, as in MPI between `MPI_Irecv` and `MPI_Wait`.
    ///
    /// # Errors
    /// That of `body`, or the first of the requests'.
    ///
    /// # Panics
    /// Where `body` panics. The panic first ends the communicator on all ranks, and the requests that have not ended
    /// yet, with errors.
    ///
    /// # Forked children
    /// To wait for a request is an error in a child that `body` forks. The child must end, or run another program,
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

    /// [`Communicator::scope`] for a body with an error type of its own, which errors of rsccl become by `From`. The
    /// type has to be named, as in `comm.try_scope::<_, MyError>(|scope| ...)`.
    ///
    /// # Errors
    /// As [`Communicator::scope`].
    pub fn try_scope<'env, T, E: From<Error>>(
        &self,
        body: impl for<'scope> FnOnce(&Scope<'scope, 'env>) -> Result<T, E>,
    ) -> Result<T, E> {
        // Here, and not where the first request begins: a communicator that cannot have requests says so.
        self.be_ready()?;
        let (world, shared, begun) = (self.world()?, &self.shared, &Outcomes::default());
        let scope = Scope { world, shared, begun, scope: PhantomData, env: PhantomData };
        let value = catch_unwind(AssertUnwindSafe(|| body(&scope)));
        if let Err(panic) = &value {
            // The buffers of the requests are about to be freed: the requests must end now.
            self.shared.status.abort.raise(Error::of_panic("the body of a scope", &**panic));
        }
        let ended = begun.end(shared);
        match value {
            Ok(value) => ended.map_err(E::from).and(value),
            Err(panic) => {
                // The abort flag has the reason. Where no request was under way, nobody has looked at it yet.
                drop(self.be_ready());
                resume_unwind(panic)
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

    #[inline]
    fn submit_message(self, message: Message<'scope>) -> Result<Request<'scope>> {
        check_message(&message, self.world)?;
        self.begin_message(message)
    }

    fn submit_messages(self, messages: Vec<Message<'scope>>) -> Result<Request<'scope>> {
        check_messages(&messages, self.world)?;
        self.queue(Job::Messages(messages))
    }

    fn submit_exchange(self, messages: Vec<Message<'scope>>) -> Result<Request<'scope>> {
        check_messages(&messages, self.world)?;
        let mut steps = Steps::default();
        steps.add_exchange(messages);
        self.queue(Job::Group(Vec::new(), steps))
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Begins any collective, described.
    ///
    /// # Errors
    /// As [`Communicator::run`], where one rank alone can see it; the rest is the request's.
    pub fn begin(&self, call: Call<'scope>) -> Result<Request<'scope>> {
        call.check(self.world).map_err(|error| error.at(self.world.rank))?;
        self.queue(Job::Collective(call))
    }

    /// Begins what a group holds.
    pub(super) fn begin_group(&self, messages: Vec<Message<'scope>>, steps: Steps<'scope>) -> Result<Request<'scope>> {
        check_messages(&messages, self.world)?;
        self.queue(Job::Group(messages, steps))
    }

    /// Begins one message, which goes by reference to where it begins: each move costs a small one more than the rest.
    #[inline]
    fn begin_message(&self, mut message: Message<'scope>) -> Result<Request<'scope>> {
        let mut beginner = OfScope { begun: self.begun, outcome: None };
        // SAFETY: only the lifetime changes, for the reason that `queue` gives.
        let message = unsafe { &mut *(&raw mut message).cast::<Message<'static>>() };
        let begun = self.shared.begin_message(message, &mut beginner);
        self.begun_by(begun, beginner)
    }

    fn queue(&self, job: Job<'scope>) -> Result<Request<'scope>> {
        let job = ManuallyDrop::new(job);
        // SAFETY: read once, and the original is not dropped; only the lifetime changes. What the job points to
        // outlives the scope. Either the job has ended and been dropped when `begin` returns, or a promise was asked
        // for before anybody kept it: then the scope does not end before the outcome is set, which is when the job has
        // been dropped.
        let job = unsafe { (&raw const *job).cast::<Job<'static>>().read() };
        let mut beginner = OfScope { begun: self.begun, outcome: None };
        let begun = self.shared.begin(job, &mut beginner);
        self.begun_by(begun, beginner)
    }

    #[inline]
    fn begun_by(&self, begun: Result<()>, beginner: OfScope<'scope>) -> Result<Request<'scope>> {
        match begun {
            Ok(()) => Ok(Request::new(self.shared, beginner.outcome)),
            Err(error) => {
                // It has not begun, and nobody gets an error of it but here.
                beginner.outcome.into_iter().for_each(|outcome| self.begun.forget(outcome));
                Err(error)
            }
        }
    }
}

/// What begins in a scope: where it does not end at once, the scope waits for it, whatever happens then.
struct OfScope<'scope> {
    begun: &'scope Outcomes,
    outcome: Option<&'scope Outcome>,
}

impl Beginner for OfScope<'_> {
    fn promise(&mut self) -> Promise {
        let (promise, outcome) = Promise::of_scope();
        self.outcome = Some(self.begun.keep(outcome));
        promise
    }

    fn is_asked(&self) -> bool {
        self.outcome.is_some()
    }

    fn ended(&mut self) {}

    fn is_told(&self) -> bool {
        self.outcome.is_none_or(Outcome::is_set)
    }
}

/// How the requests of a scope end: what they point to, and what the scope waits for.
#[derive(Debug, Default)]
struct Outcomes(Mutex<KeptOutcomes>);

#[derive(Debug, Default)]
struct KeptOutcomes {
    /// Most scopes have few requests.
    few: [Option<Arc<Outcome>>; FEW],
    count: usize,
    others: Vec<Arc<Outcome>>,
}

const FEW: usize = 4;

impl Drop for KeptOutcomes {
    fn drop(&mut self) {
        self.few.iter_mut().filter_map(Option::take).for_each(Outcome::leave_spare);
    }
}

impl Outcomes {
    /// Keeps the outcome of a request that is about to begin.
    fn keep(&self, outcome: Arc<Outcome>) -> &Outcome {
        let place = Arc::as_ptr(&outcome);
        let mut kept = self.0.lock();
        let count = kept.count;
        kept.count += 1;
        match kept.few.get_mut(count) {
            Some(free) => *free = Some(outcome),
            None => kept.others.push(outcome),
        }
        // SAFETY: what an `Arc` points to stays where it is, and the list keeps the `Arc` until it is dropped, or told
        // to forget it by whoever has this reference.
        unsafe { &*place }
    }

    /// Takes the outcome of a request that has not begun off the list.
    fn forget(&self, outcome: *const Outcome) {
        let is_other = |other: &Arc<Outcome>| !std::ptr::eq(&raw const **other, outcome);
        let mut kept = self.0.lock();
        kept.few.iter_mut().for_each(|few| _ = few.take_if(|few| !is_other(few)));
        kept.others.retain(is_other);
    }

    /// Waits until all requests have ended. The error is what ended the communicator, if anything did.
    fn end(&self, shared: &EngineHome) -> Result<()> {
        shared.check_process()?;
        let KeptOutcomes { few, others, .. } = &*self.0.lock();
        let mut ended = Ok(());
        for outcome in few.iter().flatten().chain(others).filter(|outcome| !outcome.is_well()) {
            let result = shared.wait_for(outcome);
            if result.is_err() && outcome.has_failed() {
                ended = ended.and(result);
            }
        }
        ended
    }
}
