//! The requests of a communicator: what has begun and not ended, beside the engine.
//!
//! A request begins on the thread of its caller and goes as far as it goes without waiting. From there on it is moved
//! by whoever drives: a wait for any request of the communicator, a look whether one has ended, a blocking call in its
//! own waits, and the [`watcher`](super::watcher) where the program does none of these.
//!
//! Messages run side by side, also while a collective runs that was begun before them. Collectives run one after the
//! other, in the order in which they were begun, as all ranks must begin them; each is a [`Resumable`], which has the
//! engine until it has ended. A message that is begun behind a group or an `all_to_all_v` whose messages have not begun
//! waits for these: messages between two ranks keep their order.

mod ending;

use std::collections::VecDeque;
use std::time::Duration;

use crate::comm::group::{Step, Steps, run_calls};
use crate::comm::job::Job;
use crate::comm::long_rest::{LongRest, Wakes};
use crate::comm::outcome::{Beginner, Outcome, Promise, Traced, is_own};
use crate::comm::panics::as_error;
use crate::comm::queued::Queued;
use crate::comm::under_way::{Told, UnderWay};
use crate::comm::{Call, Message};
use crate::engine::{Announce, AnnouncedCall, Engine, LONG_REQUEST_NAP, REQUEST_NAP, Waiter, host_messages};
use crate::error::{Error, Result};
use crate::exec::{Asides, AwaitedFlags, Background, MessageRun, NoBackground, Resumable};
use crate::log::spans;
use crate::session::Session;
use crate::sync::primitive::Arc;
use crate::sync::{Backoff, Chime, Patience, Turned, Waiting, Watch, progress};
use crate::sys::coroutine::{self, Switch};
use crate::sys::float_mode::{self, OtherMode};
use crate::sys::{clock, futex};
use crate::transport::{Fabric, Need, Receivers};

/// What has begun on a communicator and not ended, and its engine meanwhile.
#[derive(Debug)]
pub(super) struct Requests {
    /// `None` while the collective that runs has it.
    engine: Option<Box<Engine>>,
    session: Arc<Session>,
    under_way: Box<UnderWay>,
    /// Groups and collectives; the first may have begun.
    queue: VecDeque<Queued>,
    running: Option<Collective>,
    /// A small collective that needs no stack of its own: nothing is left to do of it but to read what the others
    /// announce. One that they do not announce soon becomes one that runs.
    announced: Option<Box<AnnouncedCall>>,
    /// The stack of the next collective.
    switch: Option<Switch>,
    waiter: Waiter,
    /// Of the waits for a message.
    backoff: Backoff,
    /// Of looks between which the program does other things.
    looks: Backoff,
    /// How the thread computes that began the last request but for a message alone.
    mode: OtherMode,
    /// What ends the communicator, while peers are still in buffers of requests.
    end: Option<Error>,
}

type Collective = Resumable<(Box<Engine>, Result<()>)>;

impl Requests {
    /// No request yet.
    pub(super) fn new(engine: Box<Engine>) -> Requests {
        let session = Arc::clone(&engine.session);
        let waiter = Waiter { patience: engine.patience(), hook: engine.hook().map(|(hook, _)| hook) };
        let backoff = Backoff::new(waiter.patience);
        let under_way = Box::new(UnderWay::of(session.span_owner()));
        let (queue, mode) = (VecDeque::new(), float_mode::of_this_thread());
        let (running, announced, switch, looks) = (None, None, None, Backoff::new(LOOKING));
        Requests {
            engine: Some(engine),
            session,
            under_way,
            queue,
            running,
            announced,
            switch,
            waiter,
            backoff,
            looks,
            mode,
            end: None,
        }
    }

    /// Gets what `job` needs of the system: where that is not to be had, nothing has begun.
    ///
    /// # Errors
    /// Where there is no memory, or no thread.
    pub(super) fn prepare(&mut self, job: &Job<'_>) -> Result<()> {
        if matches!(job, Job::Collective(_) | Job::Group(..)) && self.switch.is_none() && self.running.is_none() {
            self.switch = Some(coroutine::switch()?);
        }
        Ok(())
    }

    /// Begins `job`, and goes as far as that goes.
    ///
    /// # Errors
    /// What ends the communicator; the request learns it from whoever ends the requests.
    pub(super) fn begin(&mut self, job: Job<'static>, beginner: &mut dyn Beginner) -> Result<()> {
        self.session.use_here();
        self.mode = float_mode::of_this_thread();
        match if spans::is_on() { job.span(&self.session) } else { None } {
            Some(span) => self.begin_job(job, &mut Traced { beginner, span }),
            None => self.begin_job(job, beginner),
        }
    }

    /// [`Requests::begin`] of one message.
    ///
    /// # Errors
    /// As [`Requests::begin`].
    pub(super) fn begin_message(&mut self, message: &mut Message<'static>, beginner: &mut dyn Beginner) -> Result<()> {
        self.session.use_here();
        if self.queue.iter().any(Queued::has_messages) {
            let (messages, promise) = (vec![message.take()], beginner.promise());
            self.queue.push_back(Queued { messages, steps: VecDeque::new(), promise, part: None });
            return Ok(());
        }
        let need = message.need();
        let is_connected =
            fabric_of(&mut self.engine, &mut self.running).is_some_and(|fabric| fabric.is_connected(&need));
        if !is_connected && let Err(error) = self.connect(&[need], Receivers::AreAsked) {
            return self.refuse(error, &beginner.promise());
        }
        let Requests { engine, running, session, under_way, .. } = self;
        let Some(fabric) = fabric_of(engine, running) else { return Err(no_connections()) };
        let run = || host_messages::begin_message(session, message.take());
        if under_way.add(fabric, (run, need), || Told::Alone(beginner.promise()))? {
            beginner.ended();
        }
        Ok(())
    }

    fn begin_job(&mut self, job: Job<'static>, beginner: &mut dyn Beginner) -> Result<()> {
        match job {
            Job::Message(mut message) => self.begin_message(&mut message, beginner),
            Job::Messages(messages) if !self.queue.iter().any(Queued::has_messages) => {
                let promise = Arc::new(beginner.promise());
                match self.begin_messages(messages, &promise) {
                    Ok(()) => {
                        // Of messages to the own rank alone nothing is under way: the promise is kept here.
                        Promise::keep(promise);
                        Ok(())
                    }
                    Err(error) => self.refuse(error, &promise),
                }
            }
            Job::Messages(messages) => {
                let promise = beginner.promise();
                self.queue.push_back(Queued { messages, steps: VecDeque::new(), promise, part: None });
                Ok(())
            }
            Job::Collective(call) if self.queue.is_empty() => self.begin_collective(call, beginner),
            Job::Collective(call) => {
                let (steps, promise) = (Steps::of(call).into_iter().collect(), beginner.promise());
                self.queue.push_back(Queued { messages: Vec::new(), steps, promise, part: None });
                Ok(())
            }
            Job::Group(messages, steps) => {
                let is_first = self.queue.is_empty();
                let (steps, promise) = (steps.into_iter().collect(), beginner.promise());
                self.queue.push_back(Queued { messages, steps, promise, part: None });
                if is_first { self.advance(Driver::Waits).map(drop) } else { Ok(()) }
            }
        }
    }

    /// Begins a collective behind which nothing waits: a small one that the others have begun ends here.
    fn begin_collective(&mut self, call: Call<'static>, beginner: &mut dyn Beginner) -> Result<()> {
        let begun = self.start_collective(call);
        if matches!(begun, Ok(true)) {
            beginner.ended();
            // A rank that always comes last never waits, so its messages are moved here: they may get no other turn.
            return match fabric_of(&mut self.engine, &mut self.running) {
                Some(fabric) if !self.under_way.is_empty() => self.under_way.progress(fabric).map(drop),
                _ => Ok(()),
            };
        }
        self.queue.push_back(Queued::told_at_end(beginner.promise()));
        self.tell_own(begun.map(drop))?;
        if self.running.is_some() { self.advance(Driver::Waits).map(drop) } else { Ok(()) }
    }

    /// Tells a request that it was not begun. Its error ends the communicator, or is its own.
    fn refuse(&self, error: Error, promise: &Promise) -> Result<()> {
        if is_own(&error) {
            promise.set(Err(error.at(self.session.world.rank)));
            return Ok(());
        }
        let ended = self.engine.as_ref().map_or_else(|| error.duplicate(), |engine| engine.fail(error.duplicate()));
        promise.set(Err(ended.duplicate()));
        Err(ended)
    }

    /// Whether nothing is under way, and peers need nothing of this rank to get what it has sent.
    pub(super) fn is_idle(&mut self) -> bool {
        let is_over = self.queue.is_empty() && self.under_way.is_empty();
        is_over && self.engine.as_mut().is_some_and(|engine| engine.is_drained())
    }

    /// What has not ended.
    pub(super) fn left(&mut self) -> Left {
        match (self.queue.is_empty(), self.under_way.is_empty()) {
            (false, _) => Left::Collectives,
            (true, false) => Left::Messages,
            (true, true) if self.is_idle() => Left::Nothing,
            (true, true) => Left::Unsent,
        }
    }

    /// Waits until peers need nothing of this rank to get what it has sent.
    ///
    /// # Errors
    /// What ends the communicator.
    pub(super) fn drain(&mut self) -> Result<()> {
        self.engine.as_mut().map_or(Ok(()), |engine| engine.drain())
    }

    /// The engine, for a call beside messages of requests; `None` while collectives have not ended.
    pub(super) fn engine(&mut self) -> Option<&mut Engine> {
        if self.queue.is_empty() { self.engine.as_deref_mut() } else { None }
    }

    /// Lends the messages to the engine, for a call of its.
    pub(super) fn go_beside(&mut self) {
        if let Some(engine) = &mut self.engine {
            let messages = std::mem::take(&mut self.under_way);
            engine.set_beside(messages);
        }
    }

    /// Takes them back, after a call.
    pub(super) fn return_from_beside(&mut self) {
        let back = self.engine.as_mut().and_then(|engine| engine.take_beside());
        if let Some(Ok(messages)) = back.map(|messages| messages.into_any().downcast()) {
            self.under_way = messages;
        }
        if let Some(engine) = &self.engine {
            self.waiter.hook = engine.hook().map(|(hook, _)| hook);
        }
        self.backoff = Backoff::new(self.waiter.patience);
    }

    /// The engine, once nothing is under way.
    pub(super) fn into_engine(self) -> Option<Box<Engine>> {
        self.engine
    }

    /// Whether `outcome` is of a request whose turn has not come, or that runs as a collective.
    pub(super) fn is_queued(&self, outcome: &Outcome) -> bool {
        self.queue.iter().any(|queued| queued.promise.is_of(outcome))
    }

    /// Whether any request has not begun, or runs as a collective.
    pub(super) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Moves what can move, and looks whether it can still end well. Never waits. True where something has moved.
    ///
    /// # Errors
    /// What ends the communicator.
    pub(super) fn poll(&mut self) -> Result<bool> {
        self.check()?;
        let _as_the_program = float_mode::in_place_of(self.mode);
        if !self.end_announced()? {
            // Its wait has a deadline from now on.
            self.await_announced()?;
        }
        let moved = self.advance(Driver::Passes)?;
        Ok(self.turn(Driver::Passes)? == Turned::Moved || moved)
    }

    /// A turn of a wait for a message. It sleeps where nothing has moved for long.
    ///
    /// # Errors
    /// What ends the communicator.
    pub(super) fn wait(&mut self) -> Result<()> {
        self.wait_at_most(Duration::MAX)
    }

    /// The same, which sleeps for `longest` at most.
    ///
    /// # Errors
    /// What ends the communicator.
    pub(super) fn wait_at_most(&mut self, longest: Duration) -> Result<()> {
        self.check()?;
        if self.queue.is_empty() && self.spin()? {
            return Ok(());
        }
        if !self.spin_on_announced()? {
            self.await_announced()?;
        }
        let moved = self.advance(Driver::Waits)?;
        match self.turn(Driver::Waits)? {
            Turned::Tired(slice) if !moved => self.rest(slice.min(longest)),
            Turned::Moved | Turned::Awake | Turned::Tired(_) => Ok(()),
        }
    }

    /// What ends a sleep of the watcher's beside them, which holds the engine meanwhile. `None` where it has to look
    /// again soon.
    pub(super) fn wakes(&mut self, rest: &mut LongRest) -> Option<Wakes<'_>> {
        let Requests { engine, running, session, under_way, looks, waiter, end, .. } = self;
        if waiter.hook.is_some() || end.is_some() {
            return None;
        }
        let (fabric, flags) = match engine {
            Some(engine) => (engine.fabric(), None),
            None => {
                let (fabric, flags) = running.as_mut()?.waits_for()?;
                (fabric, Some(flags?))
            }
        };
        let now = clock::now();
        let waited = looks.started().map_or(Duration::ZERO, |started| now.saturating_duration_since(started));
        let of_messages = match under_way.is_nothing() {
            true => Duration::MAX,
            false => session.settings.timeout.time.saturating_sub(waited).max(LEAST_SLEEP),
        };
        // A collective looks by itself whether it can end well.
        let left = if flags.is_none() { of_messages } else { of_messages.min(LONGEST_BESIDE_COLLECTIVE) };
        // The next look is to look at everything.
        looks.look_soon();
        rest.beside((session, fabric), (under_way, flags), left)
    }

    /// Whether a turn of theirs calls a hook of the program's.
    pub(super) fn has_hook(&self) -> bool {
        self.waiter.hook.is_some()
    }

    /// Lets the first of the queue end, or waits for a moment.
    ///
    /// # Errors
    /// What ends the communicator.
    pub(super) fn finish_first(&mut self) -> Result<()> {
        self.check()?;
        // Hooks, and requests of other communicators, need the turns.
        let stays = self.waiter.hook.is_none() && !Asides::is_any();
        if !self.spin_on_announced()? {
            self.await_announced()?;
        }
        if let Some(running) = self.running.as_mut().filter(|_| stays) {
            let ended = running.finish(&mut *self.under_way);
            if let Some(ended) = ended {
                self.end_collective(ended)?;
            }
            return self.advance(Driver::Waits).map(drop);
        }
        self.wait()
    }

    /// Whether they can still end well.
    ///
    /// # Errors
    /// What ends the communicator.
    pub(super) fn check(&self) -> Result<()> {
        self.end.as_ref().map_or_else(|| self.session.abort.check(), |end| Err(end.duplicate()))
    }

    fn add(&mut self, (run, need): (MessageRun<'static>, Need), told: impl FnOnce() -> Told) -> Result<bool> {
        match fabric_of(&mut self.engine, &mut self.running) {
            Some(fabric) => self.under_way.add(fabric, (|| run, need), told),
            None => Err(no_connections()),
        }
    }

    /// Spins on the flag that the first message waits for, as a blocking call does, and moves the messages once that is
    /// raised: what comes soon costs no whole turn. False where it has not come, or something else goes on meanwhile.
    fn spin(&mut self) -> Result<bool> {
        let Requests { engine: Some(engine), session, under_way, waiter, backoff, looks, .. } = self else {
            return Ok(false);
        };
        let fabric = engine.fabric();
        if fabric.owes() || fabric.links().has_pumps() || !under_way.spin(fabric.links(), backoff) {
            return Ok(false);
        }
        let moved = under_way.progress(fabric)?;
        if moved {
            // As a turn does that finds the same.
            if backoff.started().is_some() || looks.started().is_some() {
                session.goes_on();
            }
            waiter.patience.learn(backoff);
            *looks = Backoff::new(LOOKING);
            self.wait_anew();
        }
        Ok(moved)
    }

    /// What is waited for from now on is another wait.
    fn wait_anew(&mut self) {
        self.waiter.patience.heed_sleepers();
        self.backoff = Backoff::new(self.waiter.patience);
    }

    fn turn(&mut self, driver: Driver) -> Result<Turned> {
        let Requests { engine, running, session, under_way, waiter, backoff, looks, .. } = self;
        let Some(fabric) = fabric_of(engine, running) else { return Ok(Turned::Awake) };
        if under_way.is_empty() {
            // A collective looks by itself whether it can end well. What has ended here may still be on its way.
            return match (fabric.links().pump()?, driver) {
                (true, _) => Ok(Turned::Moved),
                (false, Driver::Waits) if backoff.spin() => Ok(Turned::Awake),
                (false, Driver::Waits) if Asides::turn() == Some(true) => Ok(Turned::Moved),
                (false, _) => {
                    progress::turn(waiter.hook.as_ref())?;
                    Ok(Turned::Tired(progress::rest(waiter.hook.as_ref(), LONG_REQUEST_NAP)))
                }
            };
        }
        let wait = if driver == Driver::Waits { &mut *backoff } else { &mut *looks };
        let turned = waiter.turn((session, fabric), &mut **under_way, wait)?;
        if turned == Turned::Moved {
            if driver == Driver::Waits {
                waiter.patience.learn(wait);
            }
            *looks = Backoff::new(LOOKING);
            self.wait_anew();
        }
        Ok(turned)
    }

    /// Sleeps until what they wait for may have come. A collective looks for itself whether it can end well, so it is
    /// resumed soon.
    fn rest(&mut self, slice: Duration) -> Result<()> {
        let nap = slice.min(self.backoff.nap(REQUEST_NAP, LONG_REQUEST_NAP));
        let Some(fabric) = fabric_of(&mut self.engine, &mut self.running) else { return Ok(()) };
        if fabric.links().has_pumps() {
            return fabric.links().rest_on_pumps(nap);
        }
        let slice = if self.running.is_none() { slice } else { nap };
        match self.awaited_flags().as_deref() {
            Some([(flag, target)]) => flag.park(*target, slice),
            Some(flags @ [_, _, ..]) if Chime::default().sleep(0, flags, slice) => {}
            _ => futex::nap(nap),
        }
        Ok(())
    }

    /// The flags that are waited for, each with the value beside it; `None` where something else is waited for.
    pub(super) fn awaited_flags(&mut self) -> Option<AwaitedFlags<'_>> {
        let Requests { engine, running, under_way, .. } = self;
        let (fabric, of_collective) = match engine {
            Some(engine) => (engine.fabric(), Some(Vec::new())),
            None => running.as_mut()?.waits_for()?,
        };
        let of_messages = under_way.flags(fabric.links());
        Some([of_messages?, of_collective?].concat())
    }

    /// Moves the first of the queue, and those behind it, as far as they go without waiting. What begins meanwhile is
    /// of the thread that has begun the requests, whoever moves them: the watcher stands in no call.
    fn advance(&mut self, driver: Driver) -> Result<bool> {
        let user = self.session.user();
        let moved = self.advance_here(driver);
        self.session.used_by(user);
        moved
    }

    fn advance_here(&mut self, driver: Driver) -> Result<bool> {
        let mut moved = false;
        loop {
            if !self.end_announced()? {
                return Ok(moved);
            }
            if let Some(running) = &mut self.running {
                let ended = match driver {
                    Driver::Waits => running.resume(None),
                    Driver::Passes => running.resume_in_passing(),
                };
                match ended {
                    None => return Ok(running.has_moved() | moved),
                    Some(ended) => self.end_collective(ended)?,
                }
                moved = true;
            }
            if !self.advance_first()? {
                return Ok(moved);
            }
            moved = true;
        }
    }

    /// Goes on with the first of the queue. False where it waits.
    fn advance_first(&mut self) -> Result<bool> {
        let Some(first) = self.queue.front_mut() else { return Ok(false) };
        if first.part.as_ref().is_some_and(|part| !part.is_set()) {
            return Ok(false);
        }
        first.part = None;
        if !first.messages.is_empty() && first.steps.is_empty() {
            // Messages alone: what comes behind them does not wait for their end.
            let Some(Queued { messages, promise, .. }) = self.queue.pop_front() else { return Ok(false) };
            let promise = Arc::new(promise);
            match self.begin_messages(messages, &promise) {
                Ok(()) => Promise::keep(promise),
                Err(error) if is_own(&error) => self.refuse(error, &promise)?,
                Err(error) => {
                    // Whoever ends the communicator tells all that is queued, and may first have others to move.
                    let left = Arc::into_inner(promise).into_iter();
                    left.for_each(|promise| self.queue.push_front(Queued::told_at_end(promise)));
                    return Err(error);
                }
            }
            return Ok(true);
        }
        let (begun, outcome) = if first.messages.is_empty() {
            match first.steps.pop_front() {
                None => {
                    if let Some(ended) = self.queue.pop_front() {
                        ended.promise.set(Ok(()));
                    }
                    return Ok(true);
                }
                Some(Step::Calls(calls)) => (self.start_collectives(calls), None),
                Some(Step::Exchange(messages)) => {
                    let (promise, outcome) = Promise::new();
                    let promise = Arc::new(promise);
                    let begun = self.begin_exchange(messages, &promise);
                    Promise::keep(promise);
                    (begun, Some(outcome))
                }
            }
        } else {
            let (messages, (promise, outcome)) = (std::mem::take(&mut first.messages), Promise::new());
            let promise = Arc::new(promise);
            let begun = self.begin_messages(messages, &promise);
            Promise::keep(promise);
            (begun, Some(outcome))
        };
        if let Some(first) = self.queue.front_mut() {
            first.part = outcome;
        }
        self.tell_own(begun)?;
        Ok(true)
    }

    /// Begins a collective. True where it has ended.
    fn start_collective(&mut self, call: Call<'static>) -> Result<bool> {
        let Some(engine) = &mut self.engine else { return Err(lost()) };
        match as_error("a request", || engine.announce(call))? {
            Announce::Ended => Ok(true),
            Announce::Waits(announced) => {
                self.announced = Some(announced);
                self.wait_anew();
                Ok(false)
            }
            Announce::No(call) => {
                let calls = vec![call];
                self.run_aside(move |engine, background| run_calls(engine, &calls, background)).map(|()| false)
            }
        }
    }

    fn start_collectives(&mut self, mut calls: Vec<Call<'static>>) -> Result<()> {
        match (calls.len(), calls.pop()) {
            (1, Some(call)) => self.start_collective(call).map(drop),
            (_, last) => {
                calls.extend(last);
                self.run_aside(move |engine, background| run_calls(engine, &calls, background))
            }
        }
    }

    /// Ends the collective that was announced, if all that it reads is there. True where none is left.
    fn end_announced(&mut self) -> Result<bool> {
        let (Some(announced), Some(engine)) = (&self.announced, &mut self.engine) else { return Ok(true) };
        if engine.awaited(announced).is_some() {
            return Ok(false);
        }
        let ended = as_error("a request", || engine.end_announced(announced, &mut NoBackground));
        self.announced = None;
        self.tell_own(ended).map(|()| true)
    }

    /// Spins on the flag that the announced collective waits for, as a blocking call does. True where none is left.
    fn spin_on_announced(&mut self) -> Result<bool> {
        let (Some(announced), Some(engine)) = (&self.announced, &mut self.engine) else { return Ok(true) };
        let fabric = engine.fabric();
        if !self.under_way.is_empty() || fabric.owes() || fabric.links().has_pumps() {
            return Ok(false);
        }
        let mut yields = 0;
        while let Some((flag, target)) = engine.awaited(announced) {
            while !flag.reached(target) {
                if !self.backoff.spin() {
                    if yields == SOON_YIELDS {
                        return Ok(false);
                    }
                    // The other rank may wait for this processor.
                    yields += 1;
                    if self.backoff.turn(&mut Unwatched, &String::new)?.is_some() {
                        return Ok(false);
                    }
                }
            }
        }
        self.waiter.patience.learn(&self.backoff);
        self.wait_anew();
        self.end_announced()
    }

    /// Lets the announced collective wait as others do.
    fn await_announced(&mut self) -> Result<()> {
        let Some(announced) = self.announced.take() else { return Ok(()) };
        self.run_aside(move |engine, background| engine.end_announced(&announced, background))
    }

    /// Runs what waits on a stack of its own.
    fn run_aside(
        &mut self,
        body: impl FnOnce(&mut Engine, &mut dyn Background) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let Some(mut engine) = self.engine.take() else { return Err(lost()) };
        let switch = match self.switch.take().map_or_else(coroutine::switch, Ok) {
            Ok(switch) => switch,
            Err(error) => {
                self.engine = Some(engine);
                return Err(error);
            }
        };
        // The program's code runs on the program's stacks: its languages know how far they go. Who drives calls it.
        let _kept_by_the_waiter = engine.exchange_hook(None);
        self.running = Some(Resumable::new(switch, move |background| {
            let result = as_error("a request", || body(&mut engine, background));
            (engine, result)
        }));
        Ok(())
    }

    fn end_collective(&mut self, (engine, result): (Box<Engine>, Result<()>)) -> Result<()> {
        let mut engine = engine;
        let _none = engine.exchange_hook(self.waiter.hook.clone());
        // What its waits have learnt.
        self.waiter.patience = engine.patience();
        self.engine = Some(engine);
        self.switch = self.running.take().and_then(Resumable::into_switch);
        self.backoff = Backoff::new(self.waiter.patience);
        self.tell_own(result)
    }

    /// Tells the first of the queue of an error of its own, which ends it. The rest ends the communicator.
    fn tell_own(&mut self, result: Result<()>) -> Result<()> {
        match result {
            Err(error) if is_own(&error) => {
                if let Some(ended) = self.queue.pop_front() {
                    ended.promise.set(Err(error.at(self.session.world.rank)));
                }
                Ok(())
            }
            result => result,
        }
    }

    fn begin_messages(&mut self, messages: Vec<Message<'static>>, promise: &Arc<Promise>) -> Result<()> {
        // Copied here and not when they were queued, for the reason that `begin_exchange` gives.
        let others = host_messages::copy_to_self(&self.session, messages)?;
        let needs: Vec<Need> = others.iter().map(Message::need).collect();
        self.connect(&needs, Receivers::AreAsked)?;
        for (message, need) in others.into_iter().zip(needs) {
            let run = host_messages::begin_message(&self.session, message);
            self.add((run, need), || Told::Together(Arc::clone(promise)))?;
        }
        Ok(())
    }

    fn begin_exchange(&mut self, messages: Vec<Message<'static>>, promise: &Arc<Promise>) -> Result<()> {
        // Copied here and not when it was queued: an earlier collective of the same group may have written what is
        // copied.
        let (others, data_type) = host_messages::open_exchange(&self.session, messages)?;
        let needs: Vec<Need> = others.iter().map(Message::need).collect();
        self.connect(&needs, Receivers::Come)?;
        let (_, runs) = host_messages::begin_exchange(&self.session, others, data_type);
        for (run, need) in runs.into_iter().zip(needs) {
            self.add((run, need), || Told::Together(Arc::clone(promise)))?;
        }
        Ok(())
    }

    fn connect(&mut self, needs: &[Need], receivers: Receivers) -> Result<()> {
        let Requests { engine, running, session, waiter, .. } = self;
        let Some(fabric) = fabric_of(engine, running) else { return Err(Error::internal("no connections")) };
        if fabric.has(needs) {
            return Ok(());
        }
        waiter.begin_connect((session, fabric), (needs, receivers))
    }
}

/// What has not ended of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    Nothing,
    /// What they have sent needs this rank's help.
    Unsent,
    Messages,
    Collectives,
}

/// Who takes a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Driver {
    /// One that does nothing else.
    Waits,
    /// One that goes on with something else.
    Passes,
}

/// How long the watcher sleeps beside a collective, whose own deadline and stall are parts of seconds away at least.
const LONGEST_BESIDE_COLLECTIVE: Duration = Duration::from_millis(100);
/// The watch of a wait that ends before a watch would look.
struct Unwatched;

impl Watch for Unwatched {
    fn look(&mut self, _: &dyn Waiting) -> Result<()> {
        Ok(())
    }
}

/// Yields before a small collective waits as others do.
const SOON_YIELDS: u32 = 4;
/// A deadline that has all but passed.
const LEAST_SLEEP: Duration = Duration::from_millis(1);
/// Of looks between which the program does other things: each looks whether requests can still end well, and none spins
/// or yields.
const LOOKING: Patience = Patience::fixed(0, Duration::ZERO);

/// The connections: the engine's, or those that the collective lends which has the engine.
fn fabric_of<'a>(engine: &'a mut Option<Box<Engine>>, running: &'a mut Option<Collective>) -> Option<&'a mut Fabric> {
    match engine {
        Some(engine) => Some(engine.fabric()),
        None => running.as_mut()?.fabric(),
    }
}

#[cold]
fn no_connections() -> Error {
    Error::internal("a request has no connections")
}

/// The error of requests whose engine has gone.
#[cold]
fn lost() -> Error {
    Error::internal("a request has no engine")
}

/// The error of a call that cannot run beside requests.
#[cold]
pub(super) fn under_way() -> Error {
    Error::invalid_usage("requests are under way on this communicator: wait for them before this call")
}
