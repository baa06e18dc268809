//! Groups: calls that run as one.

use std::marker::PhantomData;

use crate::comm::bystander::Bystander;
use crate::comm::collectives::expect;
use crate::comm::engine::Engine;
use crate::comm::request::Promise;
use crate::comm::{Buffers, Call, Communicator, Message};
use crate::error::{Error, Result};
use crate::exec::{Beside, CallCount, Nothing};
use crate::types::{Collective, Element, Rank, ReduceOp};

/// Collects calls on one or several communicators; [`group()`] makes it, and runs them as one.
///
/// In a group, sends and recvs may stand in any order: all of them run side by side. Collectives of one communicator run in the order
/// in which they were added, after its messages; small all-reduces of one type and operator that follow each other travel as one.
/// Communicators run side by side, so that ranks may name them in any order.
#[derive(Debug)]
pub struct Group<'a> {
    parts: Vec<Part<'a>>,
    borrow: PhantomData<&'a mut ()>,
}

/// What a group has for one communicator.
#[derive(Debug)]
struct Part<'a> {
    comm: &'a Communicator,
    messages: Vec<Message<'a>>,
    calls: Vec<Call<'a>>,
}

/// A communicator inside a group ([`Group::on`]). Counts and types are checked as each call is added.
#[derive(Debug)]
pub struct Member<'g, 'a> {
    part: &'g mut Part<'a>,
}

/// Runs the calls that `body` adds as one. Nothing runs before `body` returns, and nothing runs where it returns an error.
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
    let mut group = Group { parts: Vec::new(), borrow: PhantomData };
    body(&mut group)?;
    group.run()
}

impl<'a> Group<'a> {
    /// The group's calls on `comm`.
    pub fn on(&mut self, comm: &'a Communicator) -> Member<'_, 'a> {
        let place = self.parts.iter().position(|part| std::ptr::eq(part.comm, comm)).unwrap_or_else(|| {
            self.parts.push(Part { comm, messages: Vec::new(), calls: Vec::new() });
            self.parts.len() - 1
        });
        Member { part: &mut self.parts[place] }
    }

    fn run(mut self) -> Result<()> {
        if self.parts.len() <= 1 {
            return self
                .parts
                .pop()
                .map_or(Ok(()), |part| part.comm.with_engine(|engine| run_part(engine, part.messages, part.calls)));
        }
        // Communicators are used by one thread at a time; each one's engine goes to a thread for the length of the group.
        let engines = lend_all(&self.parts)?;
        let bystander = Bystander::beside_all(engines.iter().map(|engine| &**engine));
        let (mut loans, mut work, mut outcomes) = (Vec::new(), Vec::new(), Vec::new());
        for (engine, part) in engines.into_iter().zip(self.parts) {
            let (promise, outcome) = Promise::new();
            loans.push(part.comm);
            work.push((engine, part.messages, part.calls, promise));
            outcomes.push(outcome);
        }
        let run = |(mut engine, messages, calls, promise): (Box<Engine>, _, Vec<Call<'_>>, Promise)| {
            let result = run_part(&mut engine, messages, calls);
            promise.set(Ok(()));
            (engine, result)
        };
        // How each part ended is what its thread returns; until then the hooks go on.
        let meanwhile = || outcomes.iter().for_each(|outcome| drop(outcome.wait(&bystander)));
        let results = crate::sys::thread::side_by_side("rsccl group", work, run, meanwhile)?;
        let mut first = Ok(());
        for (comm, (engine, result)) in loans.into_iter().zip(results) {
            let result = comm.take_back(engine, result);
            first = first.and(result);
        }
        first
    }
}

impl<'a> Member<'_, 'a> {
    /// Adds [`Communicator::send`]; to the own rank too, if the group has the recv.
    ///
    /// # Errors
    /// As the call's.
    pub fn send<T: Element>(&mut self, buffer: &'a [T], peer: u32) -> Result<()> {
        self.add_message(Message::send(buffer, Rank::new(peer)))
    }

    /// Adds [`Communicator::recv`].
    ///
    /// # Errors
    /// As the call's.
    pub fn recv<T: Element>(&mut self, buffer: &'a mut [T], peer: u32) -> Result<()> {
        self.add_message(Message::recv(buffer, Rank::new(peer)))
    }

    /// Adds [`Communicator::all_reduce`].
    ///
    /// # Errors
    /// As the call's.
    pub fn all_reduce<T: Element>(&mut self, send: &'a [T], recv: &'a mut [T], op: ReduceOp) -> Result<()> {
        expect("recv", recv.len(), send.len())?;
        let count = CallCount::Each(recv.len() as u64);
        let (collective, buffers) = (Collective::AllReduce, Buffers::apart(send, recv));
        self.add(Call { collective, data_type: T::DATA_TYPE, op: Some(op), root: None, count, buffers })
    }

    /// Adds [`Communicator::all_reduce_in_place`].
    ///
    /// # Errors
    /// As the call's.
    pub fn all_reduce_in_place<T: Element>(&mut self, buffer: &'a mut [T], op: ReduceOp) -> Result<()> {
        let count = CallCount::Each(buffer.len() as u64);
        let (collective, buffers) = (Collective::AllReduce, Buffers::shared(buffer));
        self.add(Call { collective, data_type: T::DATA_TYPE, op: Some(op), root: None, count, buffers })
    }

    /// Adds [`Communicator::broadcast`].
    ///
    /// # Errors
    /// As the call's.
    pub fn broadcast<T: Element>(&mut self, buffer: &'a mut [T], root: u32) -> Result<()> {
        let count = CallCount::Each(buffer.len() as u64);
        let (collective, buffers) = (Collective::Broadcast, Buffers::shared(buffer));
        self.add(Call { collective, data_type: T::DATA_TYPE, op: None, root: Some(Rank::new(root)), count, buffers })
    }

    /// Adds any other collective, described.
    ///
    /// # Errors
    /// As the call's.
    pub fn add(&mut self, call: Call<'a>) -> Result<()> {
        call.check(self.part.comm.world).map_err(|error| error.at(self.part.comm.world.rank))?;
        self.part.calls.push(call);
        Ok(())
    }

    /// Adds any message, described.
    ///
    /// # Errors
    /// As the call's.
    pub fn add_message(&mut self, message: Message<'a>) -> Result<()> {
        message.check(self.part.comm.world).map_err(|error| error.at(self.part.comm.world.rank))?;
        self.part.messages.push(message);
        Ok(())
    }
}

/// The engines of all parts; where one cannot be lent, those that could go back.
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

fn run_part(engine: &mut Engine, messages: Vec<Message<'_>>, calls: Vec<Call<'_>>) -> Result<()> {
    if !messages.is_empty() {
        engine.messages(messages)?;
    }
    run_calls(engine, &calls, &mut Nothing)
}

/// Runs collectives one after the other; those that fuse travel as one.
pub(super) fn run_calls(engine: &mut Engine, calls: &[Call<'_>], beside: &mut dyn Beside) -> Result<()> {
    let mut rest = calls;
    while let Some(first) = rest.first() {
        let same = rest.iter().take_while(|call| crate::exec::fuses(first, call)).count();
        let (run, left) = rest.split_at(crate::exec::fused_prefix(&rest[..same.max(1)]));
        match run {
            [single] => engine.collective(single, beside)?,
            several => crate::exec::run_fused(several, |call| engine.collective(call, beside))?,
        }
        rest = left;
    }
    Ok(())
}

/// The error of a communicator that is lent to a group twice.
pub(super) fn lent() -> Error {
    Error::invalid_usage("the communicator is in use by an outer call")
}
