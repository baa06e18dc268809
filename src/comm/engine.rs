//! One rank's side of a communicator: chooses the path of each call and runs it.

use std::time::Duration;

use crate::bootstrap::Bootstrap;
use crate::bootstrap::cause::failure_note;
use crate::comm::Settings;
use crate::comm::choose::{Chooser, Chosen, Path, Question, SMALL_SCRATCH};
use crate::comm::journal::{self, CallLine, CallTrace, ChoiceLine, MessageLine, MessageTrace};
use crate::comm::news::{self, Awaited, Exchange, News, Vigil};
use crate::device::Kernel;
use crate::error::{Error, Kind, Result};
use crate::exec::composed;
use crate::exec::flat::Flat;
use crate::exec::host::{self, Surroundings, Visit};
use crate::exec::{self, Beside, Call, History, Idle, Message, MessageQueue, MessageRun, Nothing, Operation, Task};
use crate::log;
use crate::plan::{Plan, Windows};
use crate::sync::primitive::Arc;
use crate::sync::{AbortFlag, Backoff, Deadline, Progress, Wait, progress};
use crate::sys::memory::SharedMemory;
use crate::sys::{clock, futex};
use crate::topo::Topology;
use crate::transport::{Fabric, HostWindows, Need, Setup};
use crate::types::{Algorithm, Collective, DataType, Rank, World};

/// One rank's side of a communicator.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) world: World,
    pub(crate) settings: Settings,
    pub(crate) bootstrap: Box<dyn Bootstrap>,
    fabric: Fabric,
    /// The mapped memory of my host, once opened.
    windows: Option<Arc<HostWindows>>,
    news: News,
    history: History,
    abort: AbortFlag,
    chooser: Chooser,
    flat: Flat,
    counters: Counters,
    /// Scratch of plans that need some without windows: the tokens of a barrier.
    scratch: Box<[u8; SMALL_SCRATCH]>,
}

/// Numbers that all ranks count alike.
#[derive(Debug)]
struct Counters {
    /// Collectives begun.
    collectives: u64,
    /// Plans with windows that ran.
    runs: u64,
    /// Rounds of the plans that used my host's flags.
    flag_base: u64,
    /// Messages begun with each peer: to it, from it.
    messages: Vec<(u64, u64)>,
}

/// Borrows what every wait needs from the fields of an engine, leaving the other fields free.
macro_rules! vigil {
    ($engine:ident, $awaited:expr) => {
        Vigil::new(
            (&*$engine.bootstrap, &$engine.abort),
            (&mut $engine.news, &$engine.history),
            $engine.settings.timeout,
            $awaited,
        )
    };
}

/// How an operation of an engine waits.
macro_rules! idle {
    ($engine:ident, $vigil:ident, $beside:expr) => {
        Idle {
            patience: &mut $engine.settings.patience,
            watch: &mut $vigil,
            fabric: &mut $engine.fabric,
            bootstrap: &*$engine.bootstrap,
            beside: $beside,
            progress: $engine.settings.progress.as_ref(),
        }
    };
}

impl Engine {
    pub(crate) fn new(
        bootstrap: Box<dyn Bootstrap>,
        fabric: Fabric,
        (settings, cores): (Settings, u32),
        abort: AbortFlag,
    ) -> Engine {
        let world = bootstrap.world();
        let chooser = Chooser::new(world, (fabric.topology(), fabric.near(), cores), &settings);
        let counters = Counters { collectives: 0, runs: 0, flag_base: 0, messages: vec![(0, 0); world.size as usize] };
        let (news, history, flat) = (News::default(), History::default(), Flat::default());
        Engine {
            world,
            settings,
            bootstrap,
            fabric,
            windows: None,
            news,
            history,
            abort,
            chooser,
            flat,
            counters,
            scratch: Box::new([0; SMALL_SCRATCH]),
        }
    }

    /// Runs a collective to its end, and what is `beside` whenever it waits.
    pub(crate) fn collective(&mut self, call: &Call<'_>, beside: &mut dyn Beside) -> Result<()> {
        call.check(self.world)?;
        let kernel = match call.op {
            Some(op) => Kernel::reduce(call.data_type, op, self.world.size)?,
            None => Kernel::copy(call.data_type),
        };
        let operation = Operation {
            collective: call.collective,
            data_type: call.data_type,
            op: call.op,
            root: call.root,
            count: call.count_label(),
            sequence: self.counters.collectives,
            past: self.history.past(),
        };
        self.counters.collectives += 1;
        if log::hears_calls() {
            self.log_call(call, &operation);
        }
        self.history.begin(operation.label());
        self.route((call, &operation), kernel, beside).map_err(|error| error.during(operation.to_string()))
    }

    /// How such a call is run; `None` where there is nobody to run it with, or it is messages.
    pub(crate) fn chosen(&self, asked: Question<'_>) -> Result<Option<Chosen>> {
        if asked.collective.is_messages() || self.world.size == 1 {
            return Ok(None);
        }
        self.chooser.path(asked).map(|path| Some(path.into()))
    }

    fn route(&mut self, what: (&Call<'_>, &Operation), kernel: Kernel, beside: &mut dyn Beside) -> Result<()> {
        if what.0.collective.is_messages() {
            return self.run_messages(what, &kernel, beside);
        }
        if self.world.size == 1 {
            return host::run_alone(what.0, self.world, &kernel);
        }
        match self.chooser.path(Question::of(what.0))? {
            Path::Flat => self.run_flat(what, &kernel, beside),
            Path::Windows(algorithm) => self.run_windows(what, (kernel, algorithm), beside),
            Path::Slots(algorithm) => {
                let plan = self.chooser.plan(what.0, algorithm, Windows::None)?;
                self.run_plan((&plan, None), what, kernel, beside)
            }
        }
    }

    /// A collective that is made of messages.
    fn run_messages(&mut self, what: (&Call<'_>, &Operation), kernel: &Kernel, beside: &mut dyn Beside) -> Result<()> {
        let (call, operation) = what;
        if matches!(call.collective, Collective::GatherV | Collective::ScatterV) {
            return self.deliver(composed::blocks(call, self.world), operation, beside);
        }
        let mut scan = composed::Scan::new(call, kernel, self.world)?;
        while let Some(messages) = scan.round() {
            self.deliver(messages, operation, beside)?;
            scan.end_round();
        }
        Ok(())
    }

    /// Runs messages of one collective on the connections of collectives.
    fn deliver(&mut self, messages: Vec<Message<'_>>, operation: &Operation, beside: &mut dyn Beside) -> Result<()> {
        let others = exec::copy_to_self(self.world.rank, messages)?;
        let run = |message| MessageRun::new(message, operation.collective, operation.sequence);
        let mut runs: Vec<MessageRun<'_>> = others.into_iter().map(run).collect();
        let needs: Vec<Need> = runs.iter().map(MessageRun::need).collect();
        self.drive_messages(&needs, &mut runs, Awaited::Collective(operation), beside)
    }

    #[inline]
    fn run_flat(&mut self, what: (&Call<'_>, &Operation), kernel: &Kernel, beside: &mut dyn Beside) -> Result<()> {
        if self.windows.is_none() {
            self.open_windows(Awaited::Collective(what.1), beside)?;
        }
        let Some(windows) = &self.windows else { return Err(no_windows()) };
        let mut vigil = vigil!(self, Awaited::Collective(what.1));
        let mut idle = idle!(self, vigil, beside);
        host::run_flat((windows, &mut self.flat), what, (self.world, kernel), &mut idle)
    }

    fn run_windows(
        &mut self,
        what: (&Call<'_>, &Operation),
        (kernel, algorithm): (Kernel, Algorithm),
        beside: &mut dyn Beside,
    ) -> Result<()> {
        if self.windows.is_none() {
            self.open_windows(Awaited::Collective(what.1), beside)?;
        }
        let windows = self.windows.clone().ok_or_else(no_windows)?;
        let mut visit = Visit::open(&windows, what.0, what.1);
        let mut vigil = vigil!(self, Awaited::Collective(what.1));
        let mut idle = idle!(self, vigil, beside);
        let met = visit.meet(&mut self.flat, what, self.world, &mut idle);
        let result = match met {
            Ok(kind) => {
                // Where there is no plan, all ranks find that alike and none enters another's buffers: it is no failure to tell of.
                let plan = self.chooser.plan(what.0, algorithm, self.chooser.windows_across_hosts(kind))?;
                self.run_plan((&plan, Some(&mut visit)), what, kernel, beside)
            }
            Err(error) => Err(error),
        };
        if result.is_ok() {
            return visit.end();
        }
        let result = result.map_err(|error| self.cause(error));
        // Peers inside my buffers must learn of it before `visit` waits for them.
        result.inspect_err(|error| self.publish_failure(error))
    }

    fn run_plan(
        &mut self,
        (plan, visit): (&Plan, Option<&mut Visit<'_>>),
        what: (&Call<'_>, &Operation),
        kernel: Kernel,
        beside: &mut dyn Beside,
    ) -> Result<()> {
        self.connect(&exec::needs(plan), Awaited::Collective(what.1), beside)?;
        let Counters { runs, flag_base, .. } = self.counters;
        let mapped = plan.spec.windows != Windows::None;
        if mapped {
            let rounds = plan.lanes.iter().map(|lane| lane.rounds).max().unwrap_or(0);
            self.counters.flag_base += u64::from(rounds);
            self.counters.runs += 1;
        }
        let surroundings = Surroundings {
            world: self.world,
            kernel,
            windows: self.windows.as_deref().filter(|_| mapped),
            scratch: &mut self.scratch[..],
            history: &self.history,
            runs,
            flag_base,
            streaming_bytes: self.settings.streaming_bytes,
        };
        let mut vigil = vigil!(self, Awaited::Collective(what.1));
        let mut idle = idle!(self, vigil, beside);
        host::run_plan((plan, visit), what, surroundings, &mut idle)
    }

    /// Sends and receives, all side by side. Messages of one connection keep their order.
    pub(crate) fn messages(&mut self, messages: Vec<Message<'_>>) -> Result<()> {
        for message in &messages {
            message.check(self.world)?;
        }
        let others = self.copy_to_self(messages)?;
        let needs: Vec<Need> = others.iter().map(Message::need).collect();
        let mut runs: Vec<MessageRun<'_>> = others.into_iter().map(|message| self.begin_message(message)).collect();
        let single = if let [run] = &runs[..] { Some(run.name()) } else { None };
        let name = single.unwrap_or_else(|| "group of messages".to_owned());
        let peers = || needs.iter().map(|need| need.peer).collect();
        self.drive_messages(&needs, &mut runs, Awaited::Messages(&peers), &mut Nothing)
            .map_err(|error| error.during(name))
    }

    /// One send or receive. What `messages` does for several, with nothing allocated on the way.
    pub(crate) fn message(&mut self, message: Message<'_>) -> Result<()> {
        if message.peer() == self.world.rank {
            return self.messages(vec![message]);
        }
        message.check(self.world)?;
        let need = message.need();
        let mut run = self.begin_message(message);
        let peers = || vec![need.peer];
        let result = self.connect(&[need], Awaited::Messages(&peers), &mut Nothing).and_then(|()| {
            let mut vigil = vigil!(self, Awaited::Messages(&peers));
            let mut idle = idle!(self, vigil, &mut Nothing);
            exec::drive_one(&mut run, &mut idle)
        });
        result.map_err(|error| error.during(run.name()))
    }

    /// Copies what sends to this rank itself have for its own recvs, and logs their lines; returns the messages to other ranks.
    pub(crate) fn copy_to_self<'a>(&mut self, messages: Vec<Message<'a>>) -> Result<Vec<Message<'a>>> {
        if log::hears_calls() {
            let me = self.world.rank;
            messages.iter().filter(|message| message.peer() == me).for_each(|message| _ = self.number_message(message));
        }
        exec::copy_to_self(self.world.rank, messages)
    }

    /// A message, checked and to another rank, with its number.
    pub(crate) fn begin_message<'a>(&mut self, message: Message<'a>) -> MessageRun<'a> {
        let sequence = self.number_message(&message);
        MessageRun::new(message, Collective::Send, sequence)
    }

    /// The number of a message that begins now; logs its line.
    fn number_message(&mut self, message: &Message<'_>) -> u64 {
        let counter = &mut self.counters.messages[message.peer().index()];
        let counter = if message.sends() { &mut counter.0 } else { &mut counter.1 };
        let sequence = *counter;
        *counter += 1;
        if log::hears_calls() {
            self.log_message(message, sequence);
        }
        sequence
    }

    /// `all_to_all_v`: every message of it belongs to one collective.
    pub(crate) fn exchange(&mut self, messages: Vec<Message<'_>>) -> Result<()> {
        for message in &messages {
            message.check(self.world)?;
        }
        let (others, data_type) = self.open_exchange(messages)?;
        let needs: Vec<Need> = others.iter().map(Message::need).collect();
        let (operation, mut runs) = self.begin_exchange(others, data_type);
        let result = self.drive_messages(&needs, &mut runs, Awaited::Collective(&operation), &mut Nothing);
        result.map_err(|error| error.during(operation.to_string()))
    }

    /// The messages of an `all_to_all_v` to other ranks, and their type; what this rank has for itself is copied.
    pub(crate) fn open_exchange<'a>(&self, messages: Vec<Message<'a>>) -> Result<(Vec<Message<'a>>, DataType)> {
        if log::hears_calls() {
            self.log_exchange(&messages);
        }
        let data_type = messages.first().map_or(DataType::U8, Message::data_type);
        Ok((exec::copy_to_self(self.world.rank, messages)?, data_type))
    }

    /// The messages of an `all_to_all_v`, checked and to other ranks, with the number of their collective.
    pub(crate) fn begin_exchange<'a>(
        &mut self,
        messages: Vec<Message<'a>>,
        data_type: DataType,
    ) -> (Operation, Vec<MessageRun<'a>>) {
        let sequence = self.counters.collectives;
        let collective = Collective::AllToAllV;
        let past = self.history.past();
        let operation = Operation { collective, data_type, op: None, root: None, count: 0, sequence, past };
        self.counters.collectives += 1;
        self.history.begin(operation.label());
        let run = |message| MessageRun::new(message, Collective::AllToAllV, sequence).after(past);
        (operation, messages.into_iter().map(run).collect())
    }

    fn drive_messages(
        &mut self,
        needs: &[Need],
        runs: &mut [MessageRun<'_>],
        awaited: Awaited<'_>,
        beside: &mut dyn Beside,
    ) -> Result<()> {
        self.connect(needs, awaited, beside)?;
        let mut vigil = vigil!(self, awaited);
        let mut idle = idle!(self, vigil, beside);
        let mut queues = MessageQueue::by_connection(runs);
        let mut tasks: Vec<&mut dyn Task> = queues.iter_mut().map(|queue| queue as &mut dyn Task).collect();
        exec::drive(&mut tasks, &mut idle)
    }

    /// One turn of waiting for what is `beside`, while nothing else runs. False where nothing moved.
    ///
    /// # Errors
    /// Of what is beside, or of the watch.
    pub(crate) fn turn(&mut self, beside: &mut dyn Beside, backoff: &mut Backoff) -> Result<bool> {
        if beside.turn(&mut self.fabric, &*self.bootstrap)? {
            *backoff = Backoff::new(self.settings.patience);
            return Ok(true);
        }
        let peers = || beside.peers();
        let mut vigil = vigil!(self, Awaited::Messages(&peers)).since(backoff.started());
        if backoff.turn(&mut vigil, &|| messages_of(peers()))?.is_some() {
            progress::turn(self.settings.progress.as_ref())?;
            let nap = backoff.nap(REQUEST_NAP, LONG_REQUEST_NAP);
            futex::nap(progress::rest(self.settings.progress.as_ref(), nap));
        }
        Ok(false)
    }

    /// Whether all that was sent has been handed to the system.
    pub(crate) fn is_drained(&mut self) -> bool {
        self.fabric.links().drained()
    }

    /// Hands what was sent to the system, as far as it takes it; rests a little where it takes nothing. No operation waits for that, so
    /// no deadline bounds it.
    pub(crate) fn push(&mut self) -> Result<()> {
        let links = self.fabric.links();
        if links.pump()? || links.drained() { Ok(()) } else { links.rest_on_sockets(LONG_REQUEST_NAP) }
    }

    /// Waits until all that was sent has been handed to the system.
    pub(crate) fn drain(&mut self) -> Result<()> {
        let mut vigil = vigil!(self, Awaited::Anything);
        let mut idle = idle!(self, vigil, &mut Nothing);
        exec::drive(&mut [], &mut idle)
    }

    /// Begins to open connections; a turn of what is beside moves them on.
    pub(crate) fn begin_connect(&mut self, needs: &[Need]) -> Result<()> {
        let wait = self.wait();
        self.fabric.begin_connect(needs, &*self.bootstrap, &wait)
    }

    fn connect(&mut self, needs: &[Need], awaited: Awaited<'_>, beside: &mut dyn Beside) -> Result<()> {
        if self.fabric.has(needs) {
            return Ok(());
        }
        let wait = self.wait();
        let busy = !beside.is_empty() || !self.fabric.links().drained();
        let bootstrap = &*self.bootstrap;
        let mut vigil = vigil!(self, awaited);
        let mut turn = |fabric: &mut Fabric| beside.turn(fabric, bootstrap);
        let mut setup = Setup { bootstrap, wait: &wait, watch: &mut vigil, beside: busy.then_some(&mut turn) };
        self.fabric.connect(needs, &mut setup)
    }

    #[cold]
    fn open_windows(&mut self, awaited: Awaited<'_>, beside: &mut dyn Beside) -> Result<()> {
        let wait = self.wait();
        let busy = !beside.is_empty() || !self.fabric.links().drained();
        let bootstrap = &*self.bootstrap;
        let mut vigil = vigil!(self, awaited);
        let mut turn = |fabric: &mut Fabric| beside.turn(fabric, bootstrap);
        let mut setup = Setup { bootstrap, wait: &wait, watch: &mut vigil, beside: busy.then_some(&mut turn) };
        self.fabric.open_windows(&mut setup)?;
        self.windows = self.fabric.windows();
        Ok(())
    }

    /// Maps the memory of the ranks of my host now and not at the first call.
    pub(crate) fn connect_early(&mut self) -> Result<()> {
        if self.chooser.maps_peers() { self.open_windows(Awaited::Anything, &mut Nothing) } else { Ok(()) }
    }

    /// Waits until all ranks have come to `call`, which is an exchange of the bootstrap's: such an exchange waits with no regard to
    /// messages, and a rank may come to it only when it has had one. What is `beside` goes on meanwhile; once all have come, none waits
    /// for it. The wait for the exchange itself, which ends where a peer is stuck in another call, or has failed.
    ///
    /// # Errors
    /// [`Kind::Mismatch`] where a peer is known to be stuck in another call.
    pub(crate) fn meet(&mut self, call: &'static str, beside: &mut dyn Beside) -> Result<Wait> {
        let (collectives, exchanges) = (self.counters.collectives, self.bootstrap.exchanges());
        let exchange = Exchange { call, collectives, exchanges };
        let wait = self.init_wait().with_notes(Some(self.news.reader(exchange)?));
        if beside.is_empty() && self.fabric.links().drained() {
            return self.bootstrap.meet(call, &wait, None).map(|()| wait);
        }
        let (bootstrap, fabric) = (&*self.bootstrap, &mut self.fabric);
        let (mut backoff, awaited) = (Backoff::new(self.settings.patience), Awaited::Exchange(exchange));
        let mut vigil =
            Vigil::new((bootstrap, &self.abort), (&mut self.news, &self.history), self.settings.init_timeout, awaited);
        let met = bootstrap.meet(
            call,
            &wait,
            Some(&mut || {
                if beside.turn(fabric, bootstrap)? || fabric.links().pump()? {
                    backoff = Backoff::new(self.settings.patience);
                } else if backoff.turn(&mut vigil, &|| messages_of(beside.peers()))?.is_some() {
                    futex::nap(progress::rest(
                        self.settings.progress.as_ref(),
                        backoff.nap(REQUEST_NAP, LONG_REQUEST_NAP),
                    ));
                }
                Ok(())
            }),
        );
        met.map(|()| wait)
    }

    /// Lets the other ranks work in `memory`, where all are on one host and map each other's memory. Collective; else it does nothing.
    pub(crate) fn register(&mut self, memory: &Arc<SharedMemory>, beside: &mut dyn Beside) -> Result<()> {
        if !self.chooser.maps_peers() {
            return Ok(());
        }
        // All ranks are in this call: who is in another one is told so, and not left to wait for memory.
        self.meet("register", beside)?;
        self.open_windows(Awaited::Anything, beside)?;
        let wait = self.wait();
        let busy = !beside.is_empty() || !self.fabric.links().drained();
        let bootstrap = &*self.bootstrap;
        let mut vigil = vigil!(self, Awaited::Anything);
        let mut turn = |fabric: &mut Fabric| beside.turn(fabric, bootstrap);
        let mut setup = Setup { bootstrap, wait: &wait, watch: &mut vigil, beside: busy.then_some(&mut turn) };
        self.fabric.register(memory, &mut setup)?;
        self.windows = self.fabric.windows();
        Ok(())
    }

    /// The lines of a collective: that it is called, and how it is run.
    #[cold]
    fn log_call(&self, call: &Call<'_>, operation: &Operation) {
        let (world, id) = (self.world, self.bootstrap.id());
        log::trace!(Call @ world.rank, "{}", CallTrace { call, id });
        log::detail!(Coll @ world.rank, "{}", CallLine { call, operation, world, id });
        // Where the filters leave nothing, the call itself says so.
        if let Ok(Some(chosen)) = self.chosen(Question::of(call)) {
            log::detail!(Tuning @ world.rank, "{}", ChoiceLine { call, world, chosen });
        }
    }

    /// The line of a message.
    #[cold]
    fn log_message(&self, message: &Message<'_>, sequence: u64) {
        let (world, id) = (self.world, self.bootstrap.id());
        log::trace!(Call @ world.rank, "{}", MessageTrace { message, id });
        log::detail!(Coll @ world.rank, "{}", MessageLine { message, sequence, world, id });
    }

    /// Who is on which host.
    pub(crate) fn hosts(&self) -> &Topology {
        self.fabric.hosts()
    }

    /// The lines of an `all_to_all_v` that begins now, of all its messages.
    #[cold]
    fn log_exchange(&self, messages: &[Message<'_>]) {
        let (world, id, exchange) = (self.world, self.bootstrap.id(), journal::Exchange::of(messages));
        log::trace!(Call @ world.rank, "{}", exchange.trace(id));
        log::detail!(Coll @ world.rank, "{}", exchange.line(self.counters.collectives, world, id));
    }

    /// How many ranks my host has, and how many hosts there are.
    pub(crate) fn census(&self) -> (usize, usize) {
        (self.fabric.my_host().len(), self.fabric.topology().hosts().len())
    }

    /// A wait of the communicator's time-out that begins now.
    pub(crate) fn wait(&self) -> Wait {
        Wait::new(self.settings.timeout, &self.abort).with_progress(self.settings.progress.clone())
    }

    /// A wait of init's time-out that begins now.
    pub(crate) fn init_wait(&self) -> Wait {
        Wait::new(self.settings.init_timeout, &self.abort).with_progress(self.settings.progress.clone())
    }

    /// The hook, and the flag that ends this communicator.
    pub(crate) fn hook(&self) -> Option<(Progress, AbortFlag)> {
        self.settings.progress.clone().map(|hook| (hook, self.abort.clone()))
    }

    /// The cause of `error`, with which the communicator ends, and of which everyone has been told.
    pub(crate) fn fail(&mut self, error: Error) -> Error {
        let error = self.cause(error).at(self.world.rank);
        self.publish_failure(&error);
        self.abort.raise(error.duplicate());
        error
    }

    /// Tells everyone of `error`, so that nobody waits for this rank any more.
    pub(crate) fn publish_failure(&self, error: &Error) {
        self.bootstrap.publish(&failure_note(error));
    }

    /// The error behind `error`: a data connection that breaks says nothing of why; the news do, which may come a moment later.
    pub(crate) fn cause(&mut self, error: Error) -> Error {
        if error.kind() == Kind::Mismatch {
            return self.first_mismatch(error);
        }
        if error.kind() != Kind::Remote {
            return error;
        }
        let patience = Deadline::after(if self.news.is_cause { Duration::ZERO } else { CAUSE_PATIENCE });
        let cause = loop {
            if let Some(told) = self.news.explain(error.peer(), self.bootstrap.poll(), &self.history) {
                break match error.operation() {
                    Some(operation) => told.during(operation),
                    None => told,
                };
            }
            if patience.passed(clock::now()) {
                break error;
            }
            futex::nap(CAUSE_NAP);
        };
        // What it is from here on is the cause, or none is to be had.
        self.news.is_cause = true;
        cause
    }

    /// The first call that differs, for a mismatch that this rank has found: a rank in whose call nobody waits, such as a root, goes on,
    /// and the difference shows in a later call.
    fn first_mismatch(&mut self, error: Error) -> Error {
        if self.news.is_cause {
            return error;
        }
        self.news.is_cause = true;
        let named = match error.peer().map(Rank::new).and_then(|peer| self.first_difference(peer)) {
            Some(named) => Some(named),
            None if self.history.is_unnamed() => self.ask_for_the_first_difference(),
            None => None,
        };
        match (named, error.operation()) {
            (Some(named), Some(operation)) => named.during(operation),
            (Some(named), None) => named,
            (None, _) => error,
        }
    }

    /// What the labels in the flat slots of a rank of this host say.
    fn first_difference(&self, peer: Rank) -> Option<Error> {
        let windows = self.windows.as_ref()?;
        let place = windows.ranks.binary_search(&peer).ok()?;
        let (mine, theirs) = self.flat.first_difference(windows, place)?;
        Some(exec::mismatch(mine, peer, theirs))
    }

    /// Tells the others what this rank has called, and waits a little for one that has called something else.
    fn ask_for_the_first_difference(&mut self) -> Option<Error> {
        let now = *self.history.latest(1).first()?;
        self.bootstrap.publish(&news::comparison_note(now, self.bootstrap.exchanges(), &self.history));
        let patience = Deadline::after(CAUSE_PATIENCE);
        loop {
            let told = self.news.explain(None, self.bootstrap.poll(), &self.history);
            if told.is_some() || patience.passed(clock::now()) {
                return told.filter(|told| told.kind() == Kind::Mismatch);
            }
            futex::nap(CAUSE_NAP);
        }
    }

    /// Makes this rank take its peers for far away.
    #[cfg(test)]
    #[cfg(not(loom))]
    pub(crate) fn take_peers_for_far(&mut self) {
        self.fabric.links().staging = crate::device::Staging::far();
    }

    /// Whether this rank has timed both ways of copies into memory that peers read.
    #[cfg(test)]
    #[cfg(not(loom))]
    pub(crate) fn knows_both_ways(&mut self) -> bool {
        self.fabric.links().staging.knows_both()
    }

    /// Says goodbye.
    pub(crate) fn leave(&mut self) {
        self.bootstrap.leave(self.counters.collectives);
        let (World { rank, size }, id) = (self.world, self.bootstrap.id());
        log::info!(Init @ rank, "comm {id:016x} rank {rank} nranks {size} - Destroy COMPLETE");
        log::trace!(Call @ rank, "CommFinalize({id:016x})");
    }
}

/// What requests wait for, in words.
#[cold]
fn messages_of(mut peers: Vec<Rank>) -> String {
    peers.sort_unstable();
    peers.dedup();
    let named: Vec<String> = peers.iter().take(NAMED_PEERS).map(|peer| format!("rank {peer}")).collect();
    format!("messages with {}{}", named.join(", "), if peers.len() > NAMED_PEERS { ", ..." } else { "" })
}

#[cold]
fn no_windows() -> Error {
    Error::internal("the host's windows are not open")
}

/// How long a worker of requests sleeps between two looks at what is under way and at what is new.
const REQUEST_NAP: Duration = Duration::from_micros(200);
/// The same, where nothing has moved for long: a new request may wait so long before it is looked at.
const LONG_REQUEST_NAP: Duration = Duration::from_millis(1);
/// How long news of a peer whose data connection broke are waited for: goodbyes and deaths travel as fast as data.
const CAUSE_PATIENCE: Duration = Duration::from_millis(200);
/// Between two looks for them.
const CAUSE_NAP: Duration = Duration::from_millis(1);
/// Peers that the error of a request names.
const NAMED_PEERS: usize = 8;
