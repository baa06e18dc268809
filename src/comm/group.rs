//! Groups: calls that run as one.

use std::marker::PhantomData;

use crate::comm::collectives::Submit;
use crate::comm::panics::as_error;
use crate::comm::waiting_hooks::{PartsLeft, WaitingHooks};
use crate::comm::{Call, Communicator, Message};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::exec::{Background, DeviceStream, NoBackground, Order, check_to_self};
use crate::sys::float_mode;
use crate::sys::kept_thread::{KeptThread, run_on};
use crate::types::{NO_RANK, World};

/// Collects calls on one or several communicators; [`group()`] makes it, and runs them as one.
///
/// In a group, sends and recvs may stand in any order: all of them run side by side. Collectives of one communicator
/// run in the order in which they were added, after its messages; small all-reduces of one type and operator that
/// follow each other travel as one. Communicators run side by side, so that ranks may name them in any order.
#[derive(Debug)]
pub struct Group<'a> {
    parts: Vec<Part<'a>>,
    borrow: PhantomData<&'a mut ()>,
}

/// The calls of a group on one communicator.
#[derive(Debug)]
struct Part<'a> {
    comm: &'a Communicator,
    order: Order<'a>,
    calls: Calls<'a>,
}

/// Calls on one communicator that run as one: its messages side by side, then its collectives one after the other.
#[derive(Debug, Default)]
pub(super) struct Calls<'a> {
    pub(super) messages: Vec<Message<'a>>,
    pub(super) steps: Steps<'a>,
}

/// The collectives of a group on one communicator, in their order.
#[derive(Debug, Default)]
pub(crate) struct Steps<'a>(pub(super) Vec<Step<'a>>);

/// Collectives that follow each other.
#[derive(Debug)]
pub(super) enum Step<'a> {
    /// Collectives of equal counts, or with a count for each rank. Some of them may travel as one.
    Calls(Vec<Call<'a>>),
    /// An `all_to_all_v`, described as its messages.
    Exchange(Vec<Message<'a>>),
}

impl<'a> Calls<'a> {
    /// The call, where it is one collective and nothing else.
    pub(super) fn into_collective(self) -> std::result::Result<Call<'a>, Calls<'a>> {
        let Calls { messages, steps: Steps(mut steps) } = self;
        if let (true, [Step::Calls(calls)]) = (messages.is_empty(), &mut steps[..])
            && calls.len() == 1
            && let Some(call) = calls.pop()
        {
            return Ok(call);
        }
        Err(Calls { messages, steps: Steps(steps) })
    }
}

impl<'a> Steps<'a> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes of its largest call or message, about.
    pub(super) fn bytes(&self) -> usize {
        let of = |step: &Step<'_>| match step {
            Step::Calls(calls) => calls.iter().map(Call::bytes).max().unwrap_or(0),
            Step::Exchange(messages) => messages.iter().map(Message::bytes).max().unwrap_or(0),
        };
        self.0.iter().map(of).max().unwrap_or(0)
    }

    pub(super) fn of(call: Call<'a>) -> Steps<'a> {
        Steps(vec![Step::Calls(vec![call])])
    }

    pub(crate) fn add(&mut self, call: Call<'a>) {
        match self.0.last_mut() {
            Some(Step::Calls(calls)) => calls.push(call),
            Some(Step::Exchange(_)) | None => self.0.push(Step::Calls(vec![call])),
        }
    }

    pub(crate) fn add_exchange(&mut self, messages: Vec<Message<'a>>) {
        self.0.push(Step::Exchange(messages));
    }

    pub(super) fn into_iter(self) -> impl Iterator<Item = Step<'a>> {
        self.0.into_iter()
    }
}

/// A communicator inside a group ([`Group::on`]).
///
/// Its methods are those of [`Communicator`]. Each adds the call to the group. What one rank alone can see to be wrong
/// is the method's error; every other error of the call is that of [`group()`]. A message may go to this rank itself,
/// if the group has both its ends.
#[derive(Debug)]
pub struct Member<'g, 'a> {
    world: Result<World>,
    calls: &'g mut Calls<'a>,
}

/// A communicator on a stream inside a group ([`Group::on_stream`]).
///
/// Its methods are those of [`OnStream`](crate::comm::OnStream), and each adds the call to the group as a [`Member`]
/// does.
#[derive(Debug)]
pub struct StreamMember<'g, 'a>(Member<'g, 'a>);

/// Runs the calls that `body` adds as one. Nothing runs before `body` returns, and nothing runs where it returns an
/// error.
///
/// Only `group.on(&comm)` adds. `comm.send(..)` itself, inside of `body`, is no call of the group: it runs at once and
/// waits for its peer, who may wait for this group (C++ refuses it there).
///
/// # Errors
/// That of `body`, or the first of the calls'.
///
/// # Examples
/// ```
/// rsccl::local::run(3, |comm| {
///     let (mine, mut left) = ([comm.rank()], [0]);
///     let ring = |distance: u32| (comm.rank() + distance) % comm.size();
///     rsccl::group(|group| {
///         group.on(&comm).recv(&mut left, ring(2))?;
///         group.on(&comm).send(&mine, ring(1))
///     })?;
///     assert_eq!(left[0], ring(2));
///     Ok(())
/// })?;
/// # Ok::<(), rsccl::Error>(())
/// ```
pub fn group<'a>(body: impl FnOnce(&mut Group<'a>) -> Result<()>) -> Result<()> {
    try_group(body)
}

/// [`group()`] for a body with an error type of its own, which errors of rsccl become by `From`. The type has to be
/// named, as in `try_group::<MyError>(|group| ...)`.
///
/// # Errors
/// As [`group()`].
pub fn try_group<'a, E: From<Error>>(body: impl FnOnce(&mut Group<'a>) -> Result<(), E>) -> Result<(), E> {
    let mut group = Group { parts: Vec::new(), borrow: PhantomData };
    body(&mut group)?;
    Ok(group.run()?)
}

impl<'a> Group<'a> {
    /// The group's calls on `comm`.
    pub fn on(&mut self, comm: &'a Communicator) -> Member<'_, 'a> {
        self.in_order(comm, Order::Caller)
    }

    /// The group's calls on `comm` that go into `stream`, as those of [`Communicator::on`]. All calls of one communicator in a
    /// group have one stream, or none.
    ///
    /// # Examples
    /// ```
    /// use rsccl::comm::DeviceStream;
    ///
    /// // Where this process has no device 0, there is no stream of it.
    /// if let Ok(stream) = DeviceStream::new(0) {
    ///     rsccl::local::run(2, |comm| {
    ///         let (mine, mut theirs) = (stream.alloc::<f32>(100)?, stream.alloc::<f32>(100)?);
    ///         let other = 1 - comm.rank();
    ///         rsccl::group(|group| {
    ///             let mut on = group.on_stream(&comm, &stream);
    ///             on.send(mine.slice(..), other)?;
    ///             on.recv(theirs.slice_mut(..), other)
    ///         })?;
    ///         stream.synchronize()
    ///     })?;
    /// }
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn on_stream(&mut self, comm: &'a Communicator, stream: &'a DeviceStream) -> StreamMember<'_, 'a> {
        StreamMember(self.in_order(comm, Order::Stream(stream)))
    }

    /// The group's calls on `comm`, on the host or in a stream.
    #[cfg(feature = "cpp")]
    pub(crate) fn calls_on(&mut self, comm: &'a Communicator, stream: Option<&'a DeviceStream>) -> Member<'_, 'a> {
        self.in_order(comm, stream.map_or(Order::Caller, Order::Stream))
    }

    fn in_order(&mut self, comm: &'a Communicator, order: Order<'a>) -> Member<'_, 'a> {
        let place = self.parts.iter().position(|part| std::ptr::eq(part.comm, comm)).unwrap_or_else(|| {
            self.parts.push(Part { comm, order, calls: Calls::default() });
            self.parts.len() - 1
        });
        let part = &mut self.parts[place];
        let world = if part.order.is(order) { comm.world() } else { Err(two_orders()) };
        Member::new(world, &mut part.calls)
    }

    fn run(self) -> Result<()> {
        let streams: Vec<&DeviceStream> = self.parts.iter().filter_map(|part| part.order.stream()).collect();
        on_threads_of(&streams, || self.run_parts())
    }

    fn run_parts(mut self) -> Result<()> {
        let is_beside = |part: &Part<'_>| matches!(part.order, Order::Caller) && part.comm.shared.is_busy();
        if self.parts.iter().any(is_beside) && !self.parts.iter().any(|part| part.order.stream().is_some()) {
            return run_beside(self.parts);
        }
        if self.parts.len() <= 1 {
            let Some(part) = self.parts.pop() else { return Ok(()) };
            return part.comm.with_engine(|engine| run_part(engine, part.calls, part.order));
        }
        // A communicator is used by one thread at a time, so each engine goes to a thread of its own for the length of
        // the group. Communicators keep these threads.
        let threads = threads_of(&self.parts)?;
        let engines = match lend_all(&self.parts) {
            Ok(engines) => engines,
            Err(error) => {
                self.parts.iter().zip(threads).for_each(|(part, thread)| part.comm.keep_thread(thread));
                return Err(error);
            }
        };
        let hooks = WaitingHooks::of_all(engines.iter().map(|engine| &**engine));
        let (mut loans, mut work, parts_left) = (Vec::new(), Vec::new(), PartsLeft::new(self.parts.len()));
        for (engine, part) in engines.into_iter().zip(self.parts) {
            loans.push(part.comm);
            work.push((engine, (part.calls, part.order)));
        }
        let mode = float_mode::of_this_thread();
        let run = |(mut engine, (calls, order)): (Box<Engine>, (Calls<'_>, Order<'_>))| {
            // A call computes in its caller's mode, which a thread that was kept does not have from it.
            let _as_here = float_mode::in_place_of(mode);
            let result = as_error("a call of a group", || run_part(&mut engine, calls, order));
            parts_left.end_one();
            (engine, result)
        };
        // Each thread returns how its part ended; until then the programs' hooks are called.
        let meanwhile = || parts_left.call_meanwhile(&hooks);
        let results = run_on(&threads, work, run, meanwhile);
        loans.iter().zip(threads).for_each(|(comm, thread)| comm.keep_thread(thread));
        let mut first = Ok(());
        for (comm, (engine, result)) in loans.into_iter().zip(results) {
            let result = comm.take_back(engine, result);
            first = first.and(result);
        }
        first
    }
}

impl<'a> Submit<'a> for &mut Member<'_, 'a> {
    type Output = ();

    fn world(&self) -> Result<World> {
        self.known_world()
    }

    fn submit(self, call: Call<'a>) -> Result<()> {
        self.add(call)
    }

    fn submit_message(self, message: Message<'a>) -> Result<()> {
        self.add_message(message)
    }

    fn submit_messages(self, messages: Vec<Message<'a>>) -> Result<()> {
        messages.into_iter().try_for_each(|message| self.add_message(message))
    }

    fn submit_exchange(self, messages: Vec<Message<'a>>) -> Result<()> {
        check_messages(&messages, Submit::world(&self)?)?;
        self.calls.steps.add_exchange(messages);
        Ok(())
    }
}

impl<'a> Submit<'a> for &mut StreamMember<'_, 'a> {
    type Output = ();

    fn world(&self) -> Result<World> {
        self.0.known_world()
    }

    fn submit(self, call: Call<'a>) -> Result<()> {
        self.0.submit(call)
    }

    fn submit_message(self, message: Message<'a>) -> Result<()> {
        self.0.submit_message(message)
    }

    fn submit_messages(self, messages: Vec<Message<'a>>) -> Result<()> {
        self.0.submit_messages(messages)
    }

    fn submit_exchange(self, messages: Vec<Message<'a>>) -> Result<()> {
        self.0.submit_exchange(messages)
    }
}

impl<'g, 'a> Member<'g, 'a> {
    /// A member that adds to `calls`. Where `world` is not known, the first call says why.
    pub(super) fn new(world: Result<World>, calls: &'g mut Calls<'a>) -> Member<'g, 'a> {
        Member { world, calls }
    }

    fn known_world(&self) -> Result<World> {
        self.world.as_ref().copied().map_err(Error::duplicate)
    }

    /// Adds any collective, described.
    ///
    /// # Errors
    /// As [`Communicator::run`], where one rank alone can see it.
    pub fn add(&mut self, call: Call<'a>) -> Result<()> {
        let world = Submit::world(&self)?;
        call.check(world).map_err(|error| error.at(world.rank))?;
        self.calls.steps.add(call);
        Ok(())
    }

    /// Adds any message, described; to this rank itself too, if the group has the other end.
    ///
    /// # Errors
    /// As [`Communicator::send`], where one rank alone can see it.
    pub fn add_message(&mut self, message: Message<'a>) -> Result<()> {
        let world = Submit::world(&self)?;
        if message.peer().get() == NO_RANK {
            return Ok(());
        }
        message.check(world).map_err(|error| error.at(world.rank))?;
        self.calls.messages.push(message);
        Ok(())
    }

    /// Adds collectives that have been checked.
    #[cfg(feature = "cpp")]
    pub(crate) fn add_steps(&mut self, steps: Steps<'a>) {
        self.calls.steps.0.extend(steps.0);
    }
}

/// The threads on which the parts run: those that their communicators have kept, and new ones. Where one cannot be
/// started, the others are kept for the next group.
fn threads_of(parts: &[Part<'_>]) -> Result<Vec<KeptThread>> {
    let mut threads = Vec::with_capacity(parts.len());
    for part in parts {
        match part.comm.thread_of_groups() {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                parts.iter().zip(threads).for_each(|(part, thread)| part.comm.keep_thread(thread));
                return Err(error);
            }
        }
    }
    Ok(threads)
}

impl Communicator {
    /// The thread of its parts of groups over several communicators, for one group. A caller on other processors gets
    /// a new one.
    fn thread_of_groups(&self) -> Result<KeptThread> {
        self.check_process()?;
        let kept = self.thread_of_groups.lock().take();
        let kept = kept.filter(KeptThread::has_my_processors);
        kept.map_or_else(|| KeptThread::start("rsccl group").map_err(|error| self.at(error.inside("group"))), Ok)
    }

    /// Keeps that thread for the next group.
    fn keep_thread(&self, thread: KeptThread) {
        // One that another group has left here ends after the lock.
        let before = self.thread_of_groups.lock().replace(thread);
        drop(before);
    }
}

/// Lends the engines of all parts. Where one cannot be lent, those that were lent before it go back.
#[expect(clippy::vec_box, reason = "engines come in boxes and go back in them")]
fn lend_all(parts: &[Part<'_>]) -> Result<Vec<Box<Engine>>> {
    let mut engines = Vec::with_capacity(parts.len());
    for part in parts {
        match part.comm.lend() {
            Ok(engine) => engines.push(engine),
            Err(error) => {
                parts.iter().zip(engines).try_for_each(|(part, engine)| part.comm.take_back(engine, Ok(())))?;
                return Err(error);
            }
        }
    }
    Ok(engines)
}

/// [`DeviceStream::on_thread`] for all of them.
fn on_threads_of(streams: &[&DeviceStream], run: impl FnOnce() -> Result<()>) -> Result<()> {
    match streams {
        [] => run(),
        [first, others @ ..] => first.on_thread(|| on_threads_of(others, Box::new(run) as Box<dyn FnOnce() -> _>)),
    }
}

/// Runs the calls of one communicator.
pub(super) fn run_part(engine: &mut Engine, calls: Calls<'_>, order: Order<'_>) -> Result<()> {
    if !calls.messages.is_empty() {
        engine.messages_in(calls.messages, order)?;
    }
    calls.steps.into_iter().try_for_each(|step| match (step, order) {
        (Step::Calls(calls), Order::Caller) => run_calls(engine, &calls, &mut NoBackground),
        (Step::Calls(calls), Order::Stream(_)) => {
            calls.iter().try_for_each(|call| engine.collective_in(call, order, &mut NoBackground))
        }
        (Step::Exchange(messages), _) => engine.exchange_in(messages, order),
    })
}

/// Runs the parts beside requests that are under way: as requests too, which are all waited for.
fn run_beside(mut parts: Vec<Part<'_>>) -> Result<()> {
    let Some(Part { comm, calls, .. }) = parts.pop() else { return Ok(()) };
    comm.scope(|scope| {
        let begun = scope.begin_group(calls.messages, calls.steps);
        let others = run_beside(parts);
        begun?.wait().and(others)
    })
}

/// The error of calls of one communicator that do not all go into one stream.
#[cold]
fn two_orders() -> Error {
    Error::invalid_usage(
        "a group has calls of one communicator on two streams, or on one and on none: give all of them the same stream",
    )
}

/// Runs collectives one after the other; small ones that can be fused travel as one.
pub(super) fn run_calls(engine: &mut Engine, calls: &[Call<'_>], background: &mut dyn Background) -> Result<()> {
    let mut rest = calls;
    while let Some(first) = rest.first() {
        let same = rest.iter().take_while(|call| crate::exec::fuses(first, call)).count();
        let (run, left) = rest.split_at(crate::exec::fused_prefix(&rest[..same.max(1)]));
        match run {
            [single] => engine.collective(single, background)?,
            several => crate::exec::run_fused(several, |call| engine.collective(call, background))?,
        }
        rest = left;
    }
    Ok(())
}

/// Refuses a message of which this rank alone can see that it is wrong.
pub(super) fn check_message(message: &Message<'_>, world: World) -> Result<()> {
    message.check(world).map_err(|error| error.at(world.rank))?;
    if message.peer() == world.rank {
        let message = "a request cannot send to or receive from its own rank: use a group";
        return Err(Error::invalid_usage(message).at(world.rank));
    }
    Ok(())
}

/// Refuses messages that run side by side, where this rank alone can see that one is wrong.
pub(super) fn check_messages(messages: &[Message<'_>], world: World) -> Result<()> {
    let checked = messages.iter().try_for_each(|message| message.check(world));
    checked.and_then(|()| check_to_self(world.rank, messages)).map_err(|error| error.at(world.rank))
}

/// The error of a call while a group has the communicator.
#[cold]
pub(super) fn lent_to_group() -> Error {
    Error::invalid_usage("a group has the communicator: a call on it comes after the group's end")
}
