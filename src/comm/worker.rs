//! The thread that works at requests: it has the engine, takes jobs from a queue, and moves what is under way.
//!
//! Messages run side by side, also while a collective runs that was begun after them. Collectives run one after the
//! other, in the order in which they were begun, as all ranks must begin them. A message that is begun behind a
//! collective waits for its end.

use std::sync::mpsc::{Receiver, SendError, Sender, TryRecvError, channel};
use std::time::Duration;

use crate::bootstrap::Bootstrap;
use crate::comm::Message;
use crate::comm::group::{Step, Steps, run_calls};
use crate::comm::long_rest::{AwaitedFlags, LongRest, RequestsUnderWay, WorkLeft};
use crate::comm::panics::as_error;
use crate::comm::request::{Outcome, Promise, is_own};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::exec::{Background, Blocked, MessageRun, Progress, Task, check_to_self};
use crate::sync::primitive::{Arc, AtomicBool, Ordering};
use crate::sync::{AwaitedMessage, Backoff, Chime, Patience};
use crate::transport::{Fabric, Links, Need, Receivers};
use crate::types::World;

/// A job that needs the engine and all ranks, such as a split; what is under way goes on meanwhile. Its result returns
/// through a channel of its own.
pub(super) type Setup<'scope> = Box<dyn FnOnce(&mut Engine, &mut dyn Background) -> Result<()> + Send + 'scope>;

/// What a thread of requests is asked to do.
pub(super) enum Job<'scope> {
    /// Messages that run side by side: one, or those of a `send_recv`, which may go to the own rank.
    Messages(Vec<Message<'scope>>, Promise),
    /// The messages of one `all_to_all_v`: one to and one from each rank, all of one type.
    Exchange(Vec<Message<'scope>>, Promise),
    /// The calls of a group: messages side by side, then collectives one after the other. Each works on what those
    /// before it have written.
    Group(Vec<Message<'scope>>, Steps<'scope>, Promise),
    /// A split or the like.
    Setup(Setup<'scope>, Promise),
}

impl Job<'_> {
    /// Says that the job has ended with `error`.
    fn set(&self, error: &Error) {
        match self {
            Job::Messages(_, promise)
            | Job::Exchange(_, promise)
            | Job::Group(_, _, promise)
            | Job::Setup(_, promise) => promise.set(Err(error.duplicate())),
        }
    }
}

/// The end of a queue of jobs where they are handed in. The queue ends when it is dropped.
#[derive(Debug)]
pub(super) struct Jobs<'scope> {
    sender: Option<Sender<Job<'scope>>>,
    chime: Arc<Chime>,
}

/// The end of a queue of jobs where a thread takes them.
pub(super) struct JobQueue<'scope> {
    jobs: Receiver<Job<'scope>>,
    /// Wakes the thread where it sleeps beside messages under way.
    chime: Arc<Chime>,
}

/// A queue of jobs.
pub(super) fn jobs<'scope>() -> (Jobs<'scope>, JobQueue<'scope>) {
    let ((sender, jobs), chime) = (channel(), Arc::<Chime>::default());
    (Jobs { sender: Some(sender), chime: Arc::clone(&chime) }, JobQueue { jobs, chime })
}

impl<'scope> Jobs<'scope> {
    /// Hands in a job, whose end `outcome` tells.
    ///
    /// # Errors
    /// The job, where the thread takes no more.
    pub(super) fn send(&self, job: Job<'scope>, outcome: &Outcome) -> std::result::Result<(), SendError<Job<'scope>>> {
        outcome.set_worker(&self.chime);
        match &self.sender {
            Some(sender) => sender.send(job)?,
            None => return Err(SendError(job)),
        }
        self.chime.ring();
        Ok(())
    }
}

impl Drop for Jobs<'_> {
    fn drop(&mut self) {
        // First the end, then the ring: the thread finds what it was rung for.
        self.sender = None;
        self.chime.ring();
    }
}

/// Messages that have begun and not ended, in their order.
#[derive(Debug, Default)]
pub(super) struct UnderWay<'scope> {
    /// Each message with the connection that it needs and the promise of its operation.
    messages: Vec<(MessageRun<'scope>, Need, Arc<Promise>)>,
}

impl RequestsUnderWay for UnderWay<'_> {
    fn flags<'a>(&'a self, links: &'a Links) -> AwaitedFlags<'a> {
        let mut seen: Vec<Need> = Vec::new();
        let mut flags = Vec::new();
        for (run, need, _) in &self.messages {
            if seen.contains(need) {
                continue;
            }
            seen.push(*need);
            // The others wait for their connections.
            if links.has(need) {
                let Blocked { flag } = run.blocked(links)?;
                flags.push(flag);
            }
        }
        Some(flags)
    }

    fn work(&self) -> WorkLeft {
        if self.messages.is_empty() {
            return WorkLeft::ToPush;
        }
        let is_awaited = self.messages.iter().any(|(_, _, promise)| promise.is_awaited());
        if is_awaited { WorkLeft::Awaited } else { WorkLeft::Unawaited }
    }
}

impl Background for UnderWay<'_> {
    fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    fn turn(&mut self, fabric: &mut Fabric, _: &dyn Bootstrap) -> Result<bool> {
        let mut moved = false;
        let mut blocked: Vec<Need> = Vec::new();
        let mut still = Vec::with_capacity(self.messages.len());
        let mut messages = std::mem::take(&mut self.messages).into_iter();
        while let Some((mut run, need, outcome)) = messages.next() {
            // Messages of one connection keep their order: the first that has not ended blocks those behind it.
            let ready = !blocked.contains(&need) && fabric.is_connected(&need);
            let progress = if ready { run.progress(fabric.links()) } else { Ok(Progress::Idle) };
            let progress = match progress {
                Ok(progress) => progress,
                Err(error) => {
                    // `work` tells the request, once the communicator has ended.
                    still.push((run, need, outcome));
                    still.extend(messages);
                    self.messages = still;
                    return Err(error);
                }
            };
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

    fn messages(&self) -> Vec<AwaitedMessage> {
        self.messages.iter().map(|(run, ..)| run.awaited()).collect()
    }

    fn blocking(&self) -> Vec<AwaitedMessage> {
        let blocking = self.messages.iter().filter(|(_, _, promise)| promise.is_awaited());
        blocking.map(|(run, ..)| run.awaited()).collect()
    }
}

/// Does the jobs until the queue is closed. Returns the engine, and the error that ended the communicator. While
/// `resting` is true the thread has nothing left to do, and would return the engine at once.
pub(super) fn work(mut engine: Box<Engine>, queue: &JobQueue<'_>, resting: &AtomicBool) -> (Box<Engine>, Result<()>) {
    let mut under_way = UnderWay::default();
    // A progress hook may panic here. That ends the communicator; its engine remains, to tell the other ranks.
    let mut result = as_error("the thread of requests", || serve(&mut engine, (queue, resting), &mut under_way));
    if let Err(error) = result {
        // Told at once, and not when the queue is closed: the other ranks wait. And before the requests say so: whoever
        // has seen one fail finds that the communicator has ended.
        let error = &engine.fail(error);
        for (_, _, outcome) in under_way.messages {
            outcome.set(Err(error.duplicate()));
        }
        // Requests that are begun from now on end at once, until the end of the scope or of the detached communicator
        // closes the queue.
        while let Ok(job) = queue.jobs.recv() {
            job.set(error);
        }
        result = Err(error.duplicate());
    }
    (engine, result)
}

fn serve<'scope>(
    engine: &mut Engine,
    (JobQueue { jobs: queue, chime }, resting): (&JobQueue<'scope>, &AtomicBool),
    under_way: &mut UnderWay<'scope>,
) -> Result<()> {
    engine.session.abort.mirror(chime);
    let mut backoff = Backoff::new(engine.patience());
    // Of what was sent and has not left.
    let mut pushing = Backoff::new(Patience::fixed(0, Duration::ZERO));
    let mut rest = LongRest::new(chime);
    let mut open = true;
    while open || !under_way.is_empty() {
        // Before all that is looked at: who rings later is not slept over.
        let heard = chime.count();
        // A message that has ended for this rank may still lie in its slots: it must arrive without another call of
        // this rank.
        let idle = under_way.is_empty() && engine.is_drained();
        // Relaxed: the flag publishes no other data. A thread that has seen a job's outcome, under the outcome's lock,
        // also sees the value that was stored when the job was taken.
        resting.store(idle, Ordering::Relaxed);
        let job = if idle { queue.recv().map_err(|_| TryRecvError::Disconnected) } else { queue.try_recv() };
        resting.store(false, Ordering::Relaxed);
        match job {
            Ok(Job::Messages(messages, outcome)) => begin(engine, messages, outcome, under_way)?,
            Ok(Job::Exchange(messages, outcome)) => begin_exchange(engine, messages, outcome, under_way)?,
            Ok(Job::Group(messages, steps, outcome)) => {
                let result = run_group(engine, (messages, steps), under_way);
                tell(engine, result, &outcome)?;
                // What is under way has moved meanwhile.
                backoff = Backoff::new(engine.patience());
            }
            Ok(Job::Setup(body, outcome)) => {
                let result = body(engine, under_way);
                tell(engine, result, &outcome)?;
                backoff = Backoff::new(engine.patience());
            }
            Err(TryRecvError::Disconnected) => open = false,
            Err(TryRecvError::Empty) => {}
        }
        let (moved, wait) = match under_way.is_empty() {
            false => (engine.turn(under_way, &mut backoff)?, &mut backoff),
            true if open => (engine.push()?, &mut pushing),
            true => (true, &mut pushing),
        };
        if moved { rest.note_moved() } else { rest.rest(engine, (heard, under_way), wait)? }
    }
    engine.drain()
}

/// Says how a job has ended. Returns its error if that error ends the communicator, which it has done by then.
fn tell(engine: &Engine, result: Result<()>, outcome: &Promise) -> Result<()> {
    let result = result.map_err(|error| ended(engine, error));
    outcome.set(result.as_ref().copied().map_err(Error::duplicate));
    result.or_else(|error| if is_own(&error) { Ok(()) } else { Err(error) })
}

/// Ends the communicator if `error` does that; the cause of `error`, for a request.
fn ended(engine: &Engine, error: Error) -> Error {
    if is_own(&error) { error } else { engine.fail(error) }
}

/// Runs the calls of a group; messages of other requests go on meanwhile.
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

/// Moves what is under way until a part of it has ended. An error ends the communicator, whatever its kind: that part
/// has begun, and may still be under way.
fn await_end(engine: &mut Engine, outcome: &Outcome, under_way: &mut UnderWay<'_>) -> Result<()> {
    let mut backoff = Backoff::new(engine.patience());
    outcome.note_wait();
    while !outcome.is_set() {
        let ended = |error: Error| match is_own(&error) {
            true => Error::internal("a message that had begun was refused").with_source(error),
            false => error,
        };
        engine.turn(under_way, &mut backoff).map_err(ended)?;
    }
    Ok(())
}

fn begin<'scope>(
    engine: &mut Engine,
    messages: Vec<Message<'scope>>,
    outcome: Promise,
    under_way: &mut UnderWay<'scope>,
) -> Result<()> {
    // Copied here and not when they were queued, for the reason that `begin_exchange` gives.
    let begun = engine.copy_to_self(messages).and_then(|others| {
        let needs: Vec<Need> = others.iter().map(Message::need).collect();
        engine.begin_connect(&needs, Receivers::AreAsked).map(|()| (others, needs))
    });
    let (others, needs) =
        begun.map_err(|error| ended(engine, error)).inspect_err(|error| outcome.set(Err(error.duplicate())))?;
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
    // Copied here and not when it was queued: an earlier collective of the same group may have written what is copied.
    let begun = engine.open_exchange(messages).and_then(|(others, data_type)| {
        let needs: Vec<Need> = others.iter().map(Message::need).collect();
        engine.begin_connect(&needs, Receivers::Come)?;
        Ok((engine.begin_exchange(others, data_type).1, needs))
    });
    let (runs, needs) =
        begun.map_err(|error| ended(engine, error)).inspect_err(|error| outcome.set(Err(error.duplicate())))?;
    let outcome = Arc::new(outcome);
    for (run, need) in runs.into_iter().zip(needs) {
        under_way.messages.push((run, need, Arc::clone(&outcome)));
    }
    // In a world of one rank nothing is under way: the promise is kept here.
    Promise::keep(outcome);
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
