//! Persistent calls: prepared once, started again and again, on buffers that they own.
//!
//! What a call finds out about itself is settled where it is prepared: its checks, its arithmetic, its way, the
//! addresses. Nothing is sent there. [`PersistentCall::run`] has the number and the past of the call to add; a round
//! that is started goes on as a request does, by the same machinery.
//!
//! The program gets the buffers between two rounds as slices: they can be filled and read, and stay where they are.

use std::fmt;

use crate::comm::engine_home::EngineHome;
use crate::comm::group::{Calls, Member, Step, Steps, check_messages, run_part};
use crate::comm::job::Job;
use crate::comm::outcome::{Outcome, Promise, Promised};
use crate::comm::owned::{OwnedPlace, job_of};
use crate::comm::request::Pending;
use crate::comm::{Buffer, Communicator, Message, OwnedElements, Registered, SharedVec};
use crate::device::Home;
use crate::engine::{Engine, Prepared};
use crate::error::{Error, Result};
use crate::exec::{NoBackground, Order};
use crate::sync::primitive::Arc;
use crate::types::Element;

/// A call, or several that run as one, that was prepared and runs any number of times. Made by
/// [`Communicator::prepare`]; it owns its buffers.
///
/// A round is [`PersistentCall::run`], or [`PersistentCall::start`] and [`PersistentCall::wait`]. Several persistent
/// calls of a communicator may be under way at once, beside requests and blocking calls.
///
/// Dropping it neither stops its round nor waits for it: the buffers are freed when the round has ended.
pub struct PersistentCall<B> {
    // Before the buffers, to which they point.
    rounds: Rounds,
    place: Arc<OwnedPlace<B>>,
}

/// Buffers that a persistent call can own: a `Vec`, a [`Buffer`] or a [`Registered`] of elements, tuples and arrays of
/// such, and `()`.
pub trait CallBuffers: private::Settled + Send + 'static {}

mod private {
    /// Buffers whose elements stay where they are when the buffers move.
    pub trait Settled {
        /// Their elements, as slices.
        type Slices<'a>
        where
            Self: 'a;

        /// Lets pointers without a history reach the elements.
        fn expose(&mut self);

        /// The elements.
        fn slices(&mut self) -> Self::Slices<'_>;
    }
}

/// What a program gets of the buffers of a persistent call: `&mut [T]` of a `Vec<T>` or a `Buffer<T>`, a tuple of a
/// tuple.
pub type Slices<'a, B> = <B as private::Settled>::Slices<'a>;

impl Communicator {
    /// Prepares the calls that `body` adds, on `buffers` that the persistent call owns: MPI's `MPI_Allreduce_init`,
    /// `MPI_Send_init`. `body` has a [`Member`], as in a [group](crate::group()), and the buffers as slices: it adds
    /// one call, or several that run as one.
    ///
    /// Each rank prepares for itself, in any order: nothing is sent, and no rank waits for another to prepare. Where
    /// collectives of requests are under way, preparing waits until they have ended, as blocking calls do, so until all
    /// ranks have begun them. Rounds are calls like any other: all ranks start those with collectives in the same order
    /// among their collectives. A rank whose prepared call differs is named in an error of the first round.
    ///
    /// # Errors
    /// That of `body`, which sees what this rank alone can see to be wrong; where a send to this rank itself has no
    /// recv; that of a collective of a request that was waited for, which has ended the communicator.
    ///
    /// # Examples
    /// ```
    /// use rsccl::ReduceOp;
    ///
    /// rsccl::local::run(3, |comm| {
    ///     let buffers = (vec![0.0; 100], vec![0.0; 100]);
    ///     let mut sum = comm.prepare(buffers, |calls, (mine, all)| calls.all_reduce(mine, all, ReduceOp::Sum))?;
    ///     for round in 0..10 {
    ///         let (mine, _) = sum.buffers()?;
    ///         mine.fill(f64::from(round));
    ///         sum.run()?;
    ///         let (_, all) = sum.buffers()?;
    ///         assert_eq!(all, [3.0 * f64::from(round); 100]);
    ///     }
    ///     // Beside other work; a ring of messages, both ends at once.
    ///     let ring = |distance: u32| (comm.rank() + distance) % 3;
    ///     let buffers = (vec![comm.rank()], vec![9]);
    ///     let mut halo = comm.prepare(buffers, |calls, (mine, left)| calls.send_recv(mine, ring(1), left, ring(2)))?;
    ///     halo.start()?;
    ///     sum.start()?;
    ///     // ... compute ...
    ///     sum.wait()?;
    ///     halo.wait()?;
    ///     let (_, left) = halo.into_buffers()?;
    ///     assert_eq!(left, [ring(2)]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn prepare<B: CallBuffers>(
        &self,
        buffers: B,
        body: impl for<'a> FnOnce(&mut Member<'_, 'a>, Slices<'a, B>) -> Result<()>,
    ) -> Result<PersistentCall<B>> {
        let world = self.world()?;
        let place = Arc::new(OwnedPlace::new(buffers));
        // SAFETY: the only reference, which is not kept.
        unsafe { place.lend() }.expose();
        let mut calls = Calls::default();
        // SAFETY: the only reference in use. It goes to `body` alone, which must work with any lifetime of it, so that
        // it can put it nowhere but into `calls`. These go into the persistent call: it has them drop before the place,
        // and runs them only while it has lent the buffers to nobody.
        let lent = unsafe { place.lend() };
        body(&mut Member::new(Ok(world), &mut calls), lent.slices())?;
        check_messages(&calls.messages, world)?;
        Ok(PersistentCall { rounds: self.prepare_rounds(exposed(calls))?, place })
    }

    /// Prepares calls on memory that outlives them.
    fn prepare_rounds(&self, calls: Calls<'static>) -> Result<Rounds> {
        check_on_host(&calls).map_err(|error| self.at(error))?;
        let work = match calls.into_collective() {
            Ok(call) => self.with_engine(|engine| engine.prepare(call)).map(|call| Work::Collective(Box::new(call)))?,
            Err(calls) => {
                self.with_engine(|_| Ok(()))?;
                Work::Calls(calls)
            }
        };
        Ok(Rounds { shared: Arc::clone(&self.shared), work, pending: None })
    }
}

impl<B: CallBuffers> PersistentCall<B> {
    /// Starts a round, and goes as far as that goes without waiting. The buffers are the round's until
    /// [`PersistentCall::wait`] has returned.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidUsage`] while the round before has not been waited for; that which has ended the
    /// communicator. Every other error of the calls comes with [`PersistentCall::wait`].
    pub fn start(&mut self) -> Result<()> {
        let PersistentCall { rounds, place } = self;
        rounds.start(|| promise_of(place))
    }

    /// Whether no round is under way: the last one has ended, well or not. Moves it, and never waits.
    pub fn is_finished(&self) -> bool {
        self.rounds.is_finished()
    }

    /// Waits until the round that was started has ended; the communicator's time-out bounds it. Returns at once where
    /// none was.
    ///
    /// # Errors
    /// The round's.
    pub fn wait(&mut self) -> Result<()> {
        self.rounds.wait()
    }

    /// A whole round: [`PersistentCall::start`] and [`PersistentCall::wait`] at once, and faster than the two.
    ///
    /// # Errors
    /// As those.
    #[inline]
    pub fn run(&mut self) -> Result<()> {
        let PersistentCall { rounds, place } = self;
        rounds.run(|| promise_of(place))
    }

    /// The buffers between two rounds, to be filled and read.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidUsage`] while a round has not been waited for.
    pub fn buffers(&mut self) -> Result<Slices<'_, B>> {
        self.rounds.check_idle()?;
        // SAFETY: no round is under way, so that the calls' pointers are not used while this borrow of `self` lasts.
        let buffers = unsafe { self.place.lend() };
        Ok(buffers.slices())
    }

    /// Gives the buffers back. Waits for the round that was started, if one was.
    ///
    /// # Errors
    /// The round's; the buffers are dropped then.
    pub fn into_buffers(mut self) -> Result<B> {
        self.rounds.wait()?;
        // SAFETY: no round is under way, and none will be.
        let buffers = unsafe { self.place.take() };
        buffers.map(|buffers| *buffers).ok_or_else(|| Error::internal("a persistent call has lost its buffers"))
    }

    pub(super) fn pending(&self) -> Option<&Pending> {
        self.rounds.pending.as_ref()
    }
}

/// Starts a round of each of `calls`, in their order.
///
/// # Errors
/// The first of [`PersistentCall::start`]: those before it are under way, those behind it are not.
pub fn start_all<'call, B: CallBuffers>(calls: impl IntoIterator<Item = &'call mut PersistentCall<B>>) -> Result<()> {
    calls.into_iter().try_for_each(PersistentCall::start)
}

impl<B> fmt::Debug for PersistentCall<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PersistentCall").field("is_finished", &self.rounds.is_finished()).finish_non_exhaustive()
    }
}

/// The promise of a round: the buffers live until it has ended.
fn promise_of<B: CallBuffers>(place: &Arc<OwnedPlace<B>>) -> (Promise, Arc<Outcome>) {
    Promise::keeping(Box::new(Arc::clone(place)))
}

/// Calls that were prepared, in memory of which their owner promises that it outlives them, and the round that is under
/// way.
#[derive(Debug)]
struct Rounds {
    shared: Arc<EngineHome>,
    work: Work,
    pending: Option<Pending>,
}

/// What runs in each round.
#[derive(Debug)]
enum Work {
    /// One collective.
    Collective(Box<Prepared>),
    /// Messages, or several calls.
    Calls(Calls<'static>),
}

impl Rounds {
    /// Starts a round, of which `promise` tells the end.
    ///
    /// # Errors
    /// As [`PersistentCall::start`].
    fn start(&mut self, promise: impl FnOnce() -> (Promise, Arc<Outcome>)) -> Result<()> {
        self.check_idle()?;
        self.shared.return_from_split()?;
        let (promise, outcome) = promise();
        self.shared.begin(self.work.again(), &mut Promised::new(promise, &outcome))?;
        self.pending = Some(Pending::new(Arc::clone(&self.shared), Some(outcome)));
        Ok(())
    }

    /// Whether no round is under way. Moves it, and never waits.
    fn is_finished(&self) -> bool {
        self.pending.as_ref().is_none_or(Pending::is_finished)
    }

    /// Waits for the end of the round, if one is under way.
    ///
    /// # Errors
    /// The round's.
    fn wait(&mut self) -> Result<()> {
        let Some(pending) = &self.pending else { return Ok(()) };
        let ended = pending.wait();
        self.pending = None;
        ended
    }

    /// [`Rounds::start`] and [`Rounds::wait`].
    ///
    /// # Errors
    /// As those.
    #[inline]
    fn run(&mut self, promise: impl FnOnce() -> (Promise, Arc<Outcome>)) -> Result<()> {
        if self.pending.is_some() {
            self.check_idle()?;
        }
        let shared = &*self.shared;
        let settle = |home: &mut _| shared.be_ready_for_call(home);
        match &self.work {
            Work::Collective(prepared) => {
                shared.with_engine(settle, |engine| engine.run_prepared(prepared, &mut NoBackground))
            }
            // Messages go behind those of requests.
            Work::Calls(_) if shared.is_busy() => {
                self.start(promise)?;
                self.wait()
            }
            Work::Calls(calls) => shared.with_engine(settle, |engine| run_once(engine, calls)),
        }
    }

    fn check_idle(&self) -> Result<()> {
        if self.pending.is_none() { Ok(()) } else { Err(self.shared.at(under_way())) }
    }
}

impl Work {
    /// A round, as a request.
    fn again(&self) -> Job<'static> {
        match self {
            Work::Calls(calls) => job_of(again(calls)),
            // SAFETY: the buffers outlive this and all rounds, and one round is under way at a time.
            Work::Collective(prepared) => Job::Collective(unsafe { prepared.call().again() }),
        }
    }
}

fn again(calls: &Calls<'static>) -> Calls<'static> {
    // SAFETY: as in `Work::again`.
    let message = |message: &Message<'static>| unsafe { message.again() };
    let messages = |all: &[Message<'static>]| all.iter().map(message).collect();
    let step = |step: &Step<'static>| match step {
        // SAFETY: as above.
        Step::Calls(calls) => Step::Calls(calls.iter().map(|call| unsafe { call.again() }).collect()),
        Step::Exchange(all) => Step::Exchange(messages(all)),
    };
    Calls { messages: messages(&calls.messages), steps: Steps(calls.steps.0.iter().map(step).collect()) }
}

/// A round on an engine that has no requests.
fn run_once(engine: &mut Engine, calls: &Calls<'static>) -> Result<()> {
    let mut calls = again(calls);
    match (calls.steps.is_empty(), calls.messages.len()) {
        (true, 1) => calls.messages.pop().map_or(Ok(()), |mut message| engine.message(&mut message)),
        (true, _) => engine.messages(calls.messages),
        (false, _) => run_part(engine, calls, Order::Caller),
    }
}

/// The same calls, by pointers that their owner's slices leave valid.
fn exposed(calls: Calls<'static>) -> Calls<'static> {
    let messages = |all: Vec<Message<'static>>| all.into_iter().map(Message::exposed).collect();
    let step = |step| match step {
        Step::Calls(calls) => Step::Calls(calls.into_iter().map(crate::comm::Call::exposed).collect()),
        Step::Exchange(all) => Step::Exchange(messages(all)),
    };
    Calls { messages: messages(calls.messages), steps: Steps(calls.steps.into_iter().map(step).collect()) }
}

/// Refuses calls on the memory of devices.
fn check_on_host(calls: &Calls<'_>) -> Result<()> {
    let messages = |all: &[Message<'_>]| all.iter().all(|message| message.home() == Home::Host);
    let step = |step: &Step<'_>| match step {
        Step::Calls(calls) => calls.iter().all(|call| call.buffers.home() == Home::Host),
        Step::Exchange(all) => messages(all),
    };
    if messages(&calls.messages) && calls.steps.0.iter().all(step) {
        return Ok(());
    }
    Err(Error::invalid_usage(
        "a persistent call on the memory of a device: persistent calls work on host memory; call it on a stream, again \
         and again",
    ))
}

/// A persistent call of which the caller promises that its memory outlives it: that of the C++ classes.
#[cfg(feature = "cpp")]
#[derive(Debug)]
pub(crate) struct ForeignCall(Rounds);

#[cfg(feature = "cpp")]
impl Communicator {
    /// Prepares messages and collectives, as they stand in a group.
    ///
    /// # Errors
    /// As [`Communicator::prepare`].
    pub(crate) fn prepare_foreign(
        &self,
        messages: Vec<Message<'static>>,
        steps: Steps<'static>,
    ) -> Result<ForeignCall> {
        let world = self.world()?;
        check_messages(&messages, world)?;
        for step in &steps.0 {
            match step {
                Step::Calls(calls) => calls.iter().try_for_each(|call| call.check(world).map(drop)),
                Step::Exchange(messages) => check_messages(messages, world),
            }
            .map_err(|error| self.at(error))?;
        }
        self.prepare_rounds(Calls { messages, steps }).map(ForeignCall)
    }
}

#[cfg(feature = "cpp")]
impl ForeignCall {
    /// [`PersistentCall::start`].
    pub(crate) fn start(&mut self) -> Result<()> {
        self.0.start(Promise::new)
    }

    /// [`PersistentCall::is_finished`].
    pub(crate) fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// [`PersistentCall::wait`].
    pub(crate) fn wait(&mut self) -> Result<()> {
        self.0.wait()
    }

    /// The same for whoever does not tell the program of an error.
    pub(crate) fn await_end(&mut self) {
        self.0.pending.take().iter().for_each(Pending::await_end);
    }

    /// [`PersistentCall::run`].
    #[inline]
    pub(crate) fn run(&mut self) -> Result<()> {
        self.0.run(Promise::new)
    }
}

/// The error of what cannot be done while a round is under way.
#[cold]
fn under_way() -> Error {
    Error::invalid_usage("a round of the persistent call was started and not waited for: wait() first")
}

impl CallBuffers for () {}
impl<T: Element> CallBuffers for Vec<T> {}
impl<T: Element> CallBuffers for Buffer<T> {}
impl<T: Element> CallBuffers for SharedVec<T> {}
impl<C: OwnedElements + 'static> CallBuffers for Registered<C> {}
impl<B: CallBuffers, const N: usize> CallBuffers for [B; N] {}

impl private::Settled for () {
    type Slices<'a> = ();

    fn expose(&mut self) {}

    fn slices(&mut self) {}
}

impl<T: Element> private::Settled for Vec<T> {
    type Slices<'a> = &'a mut [T];

    fn expose(&mut self) {
        self.as_mut_ptr().expose_provenance();
    }

    fn slices(&mut self) -> &mut [T] {
        self
    }
}

impl<T: Element> private::Settled for Buffer<T> {
    type Slices<'a> = &'a mut [T];

    fn expose(&mut self) {
        self.base().expose_provenance();
    }

    fn slices(&mut self) -> &mut [T] {
        self
    }
}

impl<T: Element> private::Settled for SharedVec<T> {
    type Slices<'a> = &'a mut [T];

    fn expose(&mut self) {
        self.as_mut_ptr().expose_provenance();
    }

    fn slices(&mut self) -> &mut [T] {
        self
    }
}

impl<C: OwnedElements> private::Settled for Registered<C> {
    type Slices<'a>
        = &'a mut [C::Item]
    where
        Self: 'a;

    fn expose(&mut self) {
        self.as_mut_ptr().expose_provenance();
    }

    fn slices(&mut self) -> &mut [C::Item] {
        self
    }
}

impl<B: private::Settled, const N: usize> private::Settled for [B; N] {
    type Slices<'a>
        = [B::Slices<'a>; N]
    where
        Self: 'a;

    fn expose(&mut self) {
        self.iter_mut().for_each(B::expose);
    }

    fn slices(&mut self) -> [B::Slices<'_>; N] {
        self.each_mut().map(B::slices)
    }
}

/// Buffers side by side.
macro_rules! side_by_side {
    ($($name:ident $place:tt),+) => {
        impl<$($name: CallBuffers),+> CallBuffers for ($($name,)+) {}

        impl<$($name: private::Settled),+> private::Settled for ($($name,)+) {
            type Slices<'a>
                = ($($name::Slices<'a>,)+)
            where
                Self: 'a;

            fn expose(&mut self) {
                $(self.$place.expose();)+
            }

            fn slices(&mut self) -> Self::Slices<'_> {
                ($(self.$place.slices(),)+)
            }
        }
    };
}

side_by_side!(A 0);
side_by_side!(A 0, B 1);
side_by_side!(A 0, B 1, C 2);
side_by_side!(A 0, B 1, C 2, D 3);
