//! One rank's side of a communicator: chooses the path of each call and runs it.

use std::time::Duration;

use crate::bootstrap::BackgroundWork;
use crate::device::Home;
use crate::engine::call_log;
use crate::engine::call_mover::{Awaited, CallMover};
use crate::engine::choose::{Chosen, Grounds, PlanPath, Question, SMALL_SCRATCH};
use crate::engine::host_chooser::{HostChooser, Path};
use crate::engine::on_device::DeviceSide;
use crate::error::{Error, Result};
use crate::exec::composed;
use crate::exec::epoch::{Epoch, Met};
use crate::exec::flat::Flat;
use crate::exec::run::{RunContext, ScratchTurns};
use crate::exec::{
    self, Accepted, Background, Begun, Call, LastCall, Message, MessageQueue, MessageRun, NoBackground, Operation,
    Order, Program, Task, WaitContext,
};
use crate::log;
use crate::plan::{Layout, Windows};
use crate::session::Session;
use crate::session::failure_watch::FailureWatch;
use crate::session::peer_status::{BootstrapCall, WaitingFor};
use crate::session::settings::Settings;
use crate::sync::primitive::{Arc, Ordering, fence};
use crate::sync::ring::Label;
use crate::sync::{AbortFlag, Backoff, Patience, Progress, TimeLimit, Turn as _, Turned, Wait};
use crate::sys::{clock, futex};
use crate::topo::Topology;
use crate::transport::{Fabric, HostWindows, KnownBuffer, Need, Receivers, Setup};
use crate::tune::Choice;
use crate::types::{Collective, DataType, Rank, World};

/// One rank's side of a communicator.
#[derive(Debug)]
pub(crate) struct Engine {
    /// What this rank knows. Other threads may look at it while a call runs.
    pub(crate) session: Arc<Session>,
    pub(super) mover: CallMover,
    /// The mapped memory of my host, once opened.
    pub(super) windows: Option<Arc<HostWindows>>,
    pub(super) chooser: HostChooser,
    last_call: LastCall,
    flat: Flat,
    mapped_runs: MappedRuns,
    /// Scratch of plans that need some without windows: the tokens of a barrier.
    scratch: Box<[u8; SMALL_SCRATCH]>,
    /// What this rank has on its device, since the first call there.
    pub(super) device_side: Option<Box<DeviceSide>>,
}

/// What plans with windows have used, counted alike by all ranks.
#[derive(Debug, Clone, Copy, Default)]
struct MappedRuns {
    /// Their sets of scratch.
    turns: ScratchTurns,
    /// Their rounds, which are the values of my host's flags.
    flag_base: u64,
}

impl Engine {
    /// The engine of a rank that knows its peers and the `layout` of all. `cores` is the least number of processors
    /// that a rank of the world may use.
    pub(crate) fn new(session: Session, fabric: Fabric, (layout, patience, cores): (Layout, Patience, u32)) -> Engine {
        let mut session = session;
        session.spans_hosts = fabric.hosts().hosts().len() > 1;
        let settings = &session.settings;
        let chooser = HostChooser::new(Grounds::new(session.world, (layout, fabric.near(), cores), settings));
        let progress = settings.progress.clone();
        let flat = Flat::new(fabric.my_host().len(), cores as usize, settings.reproducible);
        let last_call = LastCall::new(settings.reproducible);
        Engine {
            session: Arc::new(session),
            mover: CallMover::new(fabric, patience, progress),
            windows: None,
            chooser,
            last_call,
            flat,
            mapped_runs: MappedRuns::default(),
            scratch: Box::new([0; SMALL_SCRATCH]),
            device_side: None,
        }
    }

    /// The settings with which a child begins: this communicator's, with the hook that it has now.
    pub(crate) fn settings_of_child(&self) -> Settings {
        Settings { progress: self.mover.progress.clone(), ..self.session.settings.clone() }
    }

    /// Sets what is called while a call waits.
    pub(crate) fn set_progress(&mut self, hook: Option<Progress>) {
        self.session.hook.set(hook.clone());
        self.mover.progress = hook;
    }

    /// How patient waits are now.
    pub(crate) fn patience(&self) -> Patience {
        self.mover.patience
    }

    /// Runs a collective to its end, and `background` work whenever the collective waits.
    #[inline]
    pub(crate) fn collective(&mut self, call: &Call<'_>, background: &mut dyn Background) -> Result<()> {
        self.collective_in(call, Order::Caller, background)
    }

    /// Runs a collective in an order: to its end, or into a stream.
    pub(crate) fn collective_in(
        &mut self,
        call: &Call<'_>,
        order: Order<'_>,
        background: &mut dyn Background,
    ) -> Result<()> {
        let session = &*self.session;
        session.begin_call();
        let Accepted { lengths, kernel } = *self.last_call.check(call, session.world)?;
        call.buffers.check_order(order)?;
        let windows = self.window_label(call)?;
        let operation = Operation {
            collective: call.collective,
            data_type: call.data_type,
            op: call.op,
            root: call.root,
            count: call.count_label(),
            sequence: session.next_collective(),
            past: session.history.past(),
            on_device: call.buffers.home() != Home::Host || matches!(order, Order::Stream(_)),
            windows,
        };
        if log::hears_calls() {
            call_log::of_collective(session, &self.chooser, (call, &operation));
        }
        self.session.history.begin(&operation);
        let begun = Begun { call, operation: &operation, kernel, world: self.session.world, lengths };
        let ended = self.route(&begun, order, background);
        call.buffers.note_call();
        ended.map_err(|error| error.during(operation.to_string()))
    }

    /// How such a call is run; `None` where there is nobody to run it with, or it is messages. Of a communicator that
    /// has worked on a device, how such a call is run there.
    pub(crate) fn chosen(&self, asked: Question<'_>) -> Result<Option<Chosen>> {
        if asked.collective.is_messages() || self.session.world.size == 1 {
            return Ok(None);
        }
        match &self.device_side {
            None => self.chooser.chosen(asked).map(Some),
            Some(side) => side.chooser.chosen(asked).map(Some),
        }
    }

    fn route(&mut self, begun: &Begun<'_>, order: Order<'_>, background: &mut dyn Background) -> Result<()> {
        let call = begun.call;
        if begun.operation.on_device {
            return self.run_on_device(begun, order, background);
        }
        if call.collective.is_messages() {
            return self.run_messages(begun, background);
        }
        if self.session.world.size == 1 {
            return exec::alone::run(begun);
        }
        match self.chooser.path(Question::of(call))? {
            Path::Flat => self.run_flat(begun, background),
            Path::Plan(PlanPath::Windows(choice)) => self.run_windows(begun, choice, background),
            Path::Plan(PlanPath::Slots(choice)) => {
                let program = self.chooser.program(call, choice, Windows::None)?;
                self.run_plan(begun, &program, None, background)
            }
        }
    }

    /// A collective that is made of messages.
    fn run_messages(&mut self, begun: &Begun<'_>, background: &mut dyn Background) -> Result<()> {
        let (call, world) = (begun.call, self.session.world);
        if matches!(call.collective, Collective::GatherV | Collective::ScatterV) {
            return self.deliver(composed::blocks(call, world), begun.operation, background);
        }
        let mut scan = composed::Scan::new(call, &begun.kernel, world, self.session.settings.reproducible)?;
        while let Some(messages) = scan.round() {
            self.deliver(messages, begun.operation, background)?;
            scan.end_round();
        }
        Ok(())
    }

    /// Runs messages of one collective on the connections of collectives.
    fn deliver(
        &mut self,
        messages: Vec<Message<'_>>,
        operation: &Operation,
        background: &mut dyn Background,
    ) -> Result<()> {
        let others = exec::copy_to_self(self.session.world.rank, messages)?;
        // A part of a scan says how long the whole is: the first parts of two scans are often alike.
        let is_scan = matches!(operation.collective, Collective::Scan | Collective::Exscan);
        let whole = is_scan.then_some(operation.count);
        let run = |message| MessageRun::of_collective(message, operation, whole);
        let mut runs: Vec<MessageRun<'_>> = others.into_iter().map(run).collect();
        let needs: Vec<Need> = runs.iter().map(MessageRun::need).collect();
        self.drive_messages((&needs, Receivers::Come), &mut runs, Some(operation), background)
    }

    #[inline]
    fn run_flat(&mut self, begun: &Begun<'_>, background: &mut dyn Background) -> Result<()> {
        let operation = begun.operation;
        if self.windows.is_none() {
            self.open_windows(WaitingFor::Collective(operation), background)?;
        }
        let Some(windows) = &self.windows else { return Err(no_windows()) };
        let session = &*self.session;
        let mut watch = FailureWatch::of_call(session, WaitingFor::Collective(operation));
        let mut wait_context = self.mover.wait_context((session, Awaited::Ranks), &mut watch, background);
        exec::flat_call::run(begun, windows, &mut self.flat, &mut wait_context)
    }

    fn run_windows(&mut self, begun: &Begun<'_>, choice: Choice, background: &mut dyn Background) -> Result<()> {
        let Begun { call, operation, .. } = *begun;
        if self.windows.is_none() {
            self.open_windows(WaitingFor::Collective(operation), background)?;
        }
        let windows = self.windows.clone().ok_or_else(no_windows)?;
        let session = Arc::clone(&self.session);
        let mut epoch = Epoch::open(&windows, begun);
        let mut watch = FailureWatch::of_call(&session, WaitingFor::Collective(operation));
        let mut wait_context = self.mover.wait_context((&session, Awaited::Ranks), &mut watch, background);
        let met = epoch.meet(begun, &mut self.flat, &mut wait_context).and_then(|met| match met {
            Met::In(windows) => Ok(Some(windows)),
            Met::Reading => {
                let streams = exec::run::streams(begun, session.settings.streaming_bytes);
                let done = exec::pull::run(begun, &mut epoch, &mut self.flat, (streams, &mut wait_context))?;
                Ok((!done).then_some(Windows::Scratch))
            }
        });
        let result = match met {
            Ok(None) => Ok(()),
            Ok(Some(kind)) => {
                // If planning fails, it fails alike on all ranks and before any touches a peer's buffer: there is
                // nothing to publish.
                let windows = self.chooser.windows_across_teams(kind);
                let program = self.chooser.program(call, choice, windows)?;
                self.run_plan(begun, &program, Some(&mut epoch), background)
            }
            Err(error) => Err(error),
        };
        if result.is_ok() {
            return epoch.end();
        }
        let result = result.map_err(|error| self.cause(error));
        // Peers inside my buffers must learn of it before `epoch`, when it is dropped, waits for them.
        result.inspect_err(|error| session.publish_failure(error))
    }

    fn run_plan(
        &mut self,
        begun: &Begun<'_>,
        program: &Program,
        epoch: Option<&mut Epoch<'_>>,
        background: &mut dyn Background,
    ) -> Result<()> {
        let operation = begun.operation;
        if !program.is_connected() {
            let needs = (program.needs(), Receivers::Come);
            self.connect(needs, WaitingFor::Collective(operation), background)?;
            program.set_connected();
        }
        let flag_base = self.mapped_runs.flag_base;
        let mapped = program.plan().spec.windows != Windows::None;
        if mapped {
            self.mapped_runs.flag_base += u64::from(program.rounds());
        }
        let session = &*self.session;
        let context = RunContext {
            windows: self.windows.as_deref().filter(|_| mapped),
            scratch: &mut self.scratch[..],
            history: &session.history,
            turns: &mut self.mapped_runs.turns,
            flag_base,
            streaming_bytes: session.settings.streaming_bytes,
        };
        let mut watch = FailureWatch::of_call(session, WaitingFor::Collective(operation));
        let mut wait_context = self.mover.wait_context((session, Awaited::Ranks), &mut watch, background);
        exec::run::run(program, begun, epoch, context, &mut wait_context)
    }

    /// Sends and receives, all side by side. Messages of one connection keep their order.
    pub(crate) fn messages(&mut self, messages: Vec<Message<'_>>) -> Result<()> {
        self.messages_in(messages, Order::Caller)
    }

    /// [`Engine::messages`] in an order.
    pub(crate) fn messages_in(&mut self, messages: Vec<Message<'_>>, order: Order<'_>) -> Result<()> {
        // A send or recv whose peer is nobody: a device is not even entered.
        if messages.is_empty() {
            return Ok(());
        }
        self.session.begin_call();
        for message in &messages {
            message.check(self.session.world)?;
            message.keeper().check(order)?;
        }
        if on_a_device(&messages, order) {
            return self.device_messages(messages, None, (order, &mut NoBackground));
        }
        let others = self.copy_to_self(messages).map_err(|error| error.during(GROUP_OF_MESSAGES))?;
        let needs: Vec<Need> = others.iter().map(Message::need).collect();
        let mut runs: Vec<MessageRun<'_>> = others.into_iter().map(|message| self.begin_message(message)).collect();
        let single = if let [run] = &runs[..] { Some(run.name()) } else { None };
        let name = single.unwrap_or_else(|| GROUP_OF_MESSAGES.to_owned());
        self.drive_messages((&needs, Receivers::AreAsked), &mut runs, None, &mut NoBackground)
            .map_err(|error| error.during(name))
    }

    /// One send or receive. What `messages` does for several, with nothing allocated on the way.
    pub(crate) fn message(&mut self, message: Message<'_>) -> Result<()> {
        if message.peer() == self.session.world.rank || message.home() != Home::Host {
            return self.messages(vec![message]);
        }
        self.session.begin_call();
        message.check(self.session.world)?;
        let need = message.need();
        let mut run = self.begin_message(message);
        let awaited = run.awaited();
        let open = || vec![awaited];
        let needs = (&[need][..], Receivers::AreAsked);
        let result = self.connect(needs, WaitingFor::Messages(&open), &mut NoBackground).and_then(|()| {
            let session = &*self.session;
            let mut watch = FailureWatch::of_call(session, WaitingFor::Messages(&open));
            let mut nothing = NoBackground;
            let mut wait_context = self.mover.wait_context((session, Awaited::OneRank), &mut watch, &mut nothing);
            exec::drive_one(&mut run, &mut wait_context)
        });
        result.map_err(|error| error.during(run.name()))
    }

    /// Copies what sends to this rank itself have for its own recvs, and logs their lines; returns the messages to
    /// other ranks.
    pub(crate) fn copy_to_self<'a>(&self, messages: Vec<Message<'a>>) -> Result<Vec<Message<'a>>> {
        if log::hears_calls() {
            let me = self.session.world.rank;
            messages.iter().filter(|message| message.peer() == me).for_each(|message| _ = self.number_message(message));
        }
        exec::copy_to_self(self.session.world.rank, messages)
    }

    /// A message, checked and to another rank, with its number.
    #[inline]
    pub(crate) fn begin_message<'a>(&self, message: Message<'a>) -> MessageRun<'a> {
        let sequence = self.number_message(&message);
        MessageRun::new(message, Collective::Send, sequence).streaming_from(self.session.settings.streaming_bytes)
    }

    /// The number of a message that begins now; logs its line.
    pub(super) fn number_message(&self, message: &Message<'_>) -> u64 {
        let (session, peer) = (&*self.session, message.peer());
        let sequence = if message.sends() { session.next_send(peer) } else { session.next_receive(peer) };
        if log::hears_calls() {
            call_log::of_message(session, message, sequence);
        }
        sequence
    }

    /// `all_to_all_v`: every message of it belongs to one collective.
    pub(crate) fn exchange(&mut self, messages: Vec<Message<'_>>) -> Result<()> {
        self.exchange_in(messages, Order::Caller)
    }

    /// [`Engine::exchange`] in an order.
    pub(crate) fn exchange_in(&mut self, messages: Vec<Message<'_>>, order: Order<'_>) -> Result<()> {
        self.session.begin_call();
        for message in &messages {
            message.check(self.session.world)?;
            message.keeper().check(order)?;
        }
        if on_a_device(&messages, order) {
            let operation = self.next_exchange(messages.first().map_or(DataType::U8, Message::data_type), true);
            let result = self.device_messages(messages, Some(operation), (order, &mut NoBackground));
            return result.map_err(|error| error.during(operation.to_string()));
        }
        let (others, data_type) = self.open_exchange(messages)?;
        let needs: Vec<Need> = others.iter().map(Message::need).collect();
        let (operation, mut runs) = self.begin_exchange(others, data_type);
        let needs = (&needs[..], Receivers::Come);
        let result = self.drive_messages(needs, &mut runs, Some(&operation), &mut NoBackground);
        result.map_err(|error| error.during(operation.to_string()))
    }

    /// The messages of an `all_to_all_v` to other ranks, and their type; what this rank has for itself is copied.
    pub(crate) fn open_exchange<'a>(&self, messages: Vec<Message<'a>>) -> Result<(Vec<Message<'a>>, DataType)> {
        if log::hears_calls() {
            call_log::of_exchange(&self.session, &messages);
        }
        let data_type = messages.first().map_or(DataType::U8, Message::data_type);
        Ok((exec::copy_to_self(self.session.world.rank, messages)?, data_type))
    }

    /// The messages of an `all_to_all_v`, checked and to other ranks, with the number of their collective.
    pub(crate) fn begin_exchange<'a>(
        &self,
        messages: Vec<Message<'a>>,
        data_type: DataType,
    ) -> (Operation, Vec<MessageRun<'a>>) {
        let operation = self.next_exchange(data_type, false);
        let Operation { sequence, past, .. } = operation;
        let run = |message| MessageRun::new(message, Collective::AllToAllV, sequence).after(past);
        (operation, messages.into_iter().map(run).collect())
    }

    /// The `all_to_all_v` that begins now.
    fn next_exchange(&self, data_type: DataType, on_device: bool) -> Operation {
        let session = &*self.session;
        let (sequence, past) = (session.next_collective(), session.history.past());
        let collective = Collective::AllToAllV;
        let operation =
            Operation { collective, data_type, op: None, root: None, count: 0, sequence, past, on_device, windows: 0 };
        session.history.begin(&operation);
        operation
    }

    /// Runs messages side by side: those of a collective, or of their own.
    fn drive_messages(
        &mut self,
        needs: (&[Need], Receivers),
        runs: &mut [MessageRun<'_>],
        collective: Option<&Operation>,
        background: &mut dyn Background,
    ) -> Result<()> {
        let all = || runs.iter().map(MessageRun::awaited).collect::<Vec<_>>();
        self.connect(needs, collective.map_or(WaitingFor::Messages(&all), WaitingFor::Collective), background)?;
        let session = &*self.session;
        // The tasks know better which of them have not ended.
        let unknown = Vec::new;
        let waiting_for = collective.map_or(WaitingFor::Messages(&unknown), WaitingFor::Collective);
        let mut watch = FailureWatch::of_call(session, waiting_for);
        let mut wait_context = self.mover.wait_context((session, Awaited::Ranks), &mut watch, background);
        let mut queues = MessageQueue::by_connection(runs);
        let mut tasks: Vec<&mut dyn Task> = queues.iter_mut().map(|queue| queue as &mut dyn Task).collect();
        exec::drive(&mut tasks, &mut wait_context)
    }

    /// One turn of waiting for `background` work, while nothing else runs. False where nothing moved.
    ///
    /// # Errors
    /// Of the background work, or of the watch.
    pub(crate) fn turn(&mut self, background: &mut dyn Background, backoff: &mut Backoff) -> Result<bool> {
        let (session, mover) = (&*self.session, &mut self.mover);
        // The turn knows the messages.
        let unknown = Vec::new;
        let mut watch = FailureWatch::new(session, WaitingFor::Messages(&unknown)).turn_since(backoff.started());
        let WaitContext { mut turn, fabric } = mover.wait_context((session, Awaited::Ranks), &mut watch, background);
        match turn.turn_of_requests(fabric, backoff)? {
            Turned::Moved => {
                if backoff.started().is_some() {
                    session.goes_on();
                }
                mover.patience.follow_processors(backoff);
                *backoff = Backoff::new(mover.patience);
                return Ok(true);
            }
            Turned::Awake => {}
            Turned::Tired(slice) => futex::nap(slice.min(backoff.nap(REQUEST_NAP, LONG_REQUEST_NAP))),
        }
        Ok(false)
    }

    /// Whether all that was sent has been handed to the system.
    pub(crate) fn is_drained(&mut self) -> bool {
        self.mover.fabric.links().drained()
    }

    /// Hands what was sent to the system, as far as it takes it; rests a little where it takes nothing. No operation
    /// waits for that, so no deadline bounds it. True where something moved.
    pub(crate) fn push(&mut self) -> Result<bool> {
        let links = self.mover.fabric.links();
        if links.pump()? || links.drained() {
            return Ok(true);
        }
        links.rest_on_pumps(LONG_REQUEST_NAP).map(|()| false)
    }

    /// The connections.
    pub(crate) fn fabric(&mut self) -> &mut Fabric {
        &mut self.mover.fabric
    }

    /// Waits until all that was sent has been handed to the system.
    pub(crate) fn drain(&mut self) -> Result<()> {
        let session = &*self.session;
        let mut watch = FailureWatch::new(session, WaitingFor::Anything);
        let mut nothing = NoBackground;
        let mut wait_context = self.mover.wait_context((session, Awaited::Ranks), &mut watch, &mut nothing);
        exec::drive(&mut [], &mut wait_context)
    }

    /// Begins to open connections; turns of the background work move them on.
    pub(crate) fn begin_connect(&mut self, needs: &[Need], receivers: Receivers) -> Result<()> {
        // Of no call: requests have deadlines of their own.
        let wait = self.session.settings.timeout.wait(&self.session.abort).with_progress(self.mover.progress.clone());
        self.mover.fabric.begin_connect(needs, receivers, (&*self.session.bootstrap, &wait))
    }

    /// What this rank has on its device, and what moves data, which waits move on.
    pub(super) fn device_and_mover(&mut self) -> Result<(&mut DeviceSide, &mut CallMover)> {
        let side = self.device_side.as_deref_mut().ok_or_else(|| Error::internal("no side on a device"))?;
        Ok((side, &mut self.mover))
    }

    fn connect(
        &mut self,
        (needs, receivers): (&[Need], Receivers),
        waiting_for: WaitingFor<'_>,
        background: &mut dyn Background,
    ) -> Result<()> {
        if self.mover.fabric.has(needs) {
            return Ok(());
        }
        self.set_up(waiting_for, background, |fabric, setup| fabric.connect(needs, receivers, setup))
    }

    #[cold]
    fn open_windows(&mut self, waiting_for: WaitingFor<'_>, background: &mut dyn Background) -> Result<()> {
        self.set_up(waiting_for, background, Fabric::open_windows)?;
        self.windows = self.mover.fabric.windows();
        Ok(())
    }

    /// Opens connections or memory together with peers, as a part of the call that is under way. `background` work and
    /// the delivery of earlier messages go on meanwhile, because a peer may wait for them before it comes to the
    /// set-up.
    pub(super) fn set_up(
        &mut self,
        waiting_for: WaitingFor<'_>,
        background: &mut dyn Background,
        body: impl FnOnce(&mut Fabric, &mut Setup<'_>) -> Result<()>,
    ) -> Result<()> {
        let (wait, session) = (self.wait(), Arc::clone(&self.session));
        self.set_up_under((&wait, FailureWatch::of_call(&session, waiting_for)), background, body)
    }

    fn set_up_under(
        &mut self,
        (wait, mut watch): (&Wait, FailureWatch<'_>),
        background: &mut dyn Background,
        body: impl FnOnce(&mut Fabric, &mut Setup<'_>) -> Result<()>,
    ) -> Result<()> {
        let session = &*self.session;
        let WaitContext { mut turn, fabric } =
            self.mover.wait_context((session, Awaited::Ranks), &mut watch, background);
        body(fabric, &mut Setup { bootstrap: &*session.bootstrap, wait, turn: &mut turn })
    }

    /// Maps the memory of the ranks of my host now, in the communicator's set-up, and not at the first call.
    pub(crate) fn connect_early(&mut self, limit: TimeLimit) -> Result<()> {
        if self.chooser.grounds().maps_peers() {
            let session = Arc::clone(&self.session);
            let wait = limit.wait(&session.abort).with_progress(self.mover.progress.clone());
            let watch = FailureWatch::new(&session, WaitingFor::Anything).with_limit(limit);
            self.set_up_under((&wait, watch), &mut NoBackground, Fabric::open_windows)?;
            self.windows = self.mover.fabric.windows();
        }
        Ok(())
    }

    /// Waits until all ranks have come to `call`, a collective call of the bootstrap (split, placement). Such a call
    /// makes no progress on messages, and a peer may reach it only after it has received one: so `background` work is
    /// driven here until every rank has arrived. Returns the wait for the call itself, which ends early where a peer is
    /// stuck in another call or has failed. What follows in the call has a moment at least, since the last rank may
    /// have come at the last one.
    ///
    /// # Errors
    /// [`Kind::Mismatch`](crate::error::Kind::Mismatch) where a peer is known to be stuck in another call.
    pub(crate) fn meet(&mut self, call: &'static str, background: &mut dyn Background) -> Result<Wait> {
        self.session.begin_call();
        self.meet_before((call, self.session.collectives()), background)
    }

    /// [`Engine::meet`] for a call that comes before the collective of the number `collectives`, or is the first thing
    /// in it.
    pub(super) fn meet_before(
        &mut self,
        (call, collectives): (&'static str, u64),
        background: &mut dyn Background,
    ) -> Result<Wait> {
        let wait = self.wait();
        let (session, mover) = (&*self.session, &mut self.mover);
        session.use_here();
        let bootstrap = &*session.bootstrap;
        let waited = BootstrapCall { name: call, collectives, exchanges: bootstrap.exchanges() };
        let wait = wait.with_notes(Some(session.note_reader(waited)?));
        let mut watch = FailureWatch::of_call(session, WaitingFor::Bootstrap(waited));
        // The watch has the deadline: its error says who is late.
        let timeout = session.settings.timeout;
        let meeting = wait.until(timeout.and(WATCH_FIRST).deadline_since(session.call_waits_since(clock::now())));
        let busy = !background.is_empty() || !mover.fabric.links().drained();
        let waiting_for = || format!("all ranks (to call {call})");
        let mut wait_context = mover.wait_context((session, Awaited::Ranks), &mut watch, background);
        // A rank that has nothing under way sleeps in the bootstrap, which wakes it.
        let patience = if busy { *wait_context.turn.patience } else { Patience::fixed(0, Duration::ZERO) };
        let mut backoff = Backoff::new(patience);
        let mut turn = || {
            let WaitContext { turn, fabric } = &mut wait_context;
            let turned = match busy {
                true => turn.turn_of_requests(fabric, &mut backoff)?,
                false => turn.turn(fabric, &mut backoff, &waiting_for)?,
            };
            match turned {
                Turned::Moved => backoff = Backoff::new(patience),
                Turned::Tired(slice) if busy => futex::nap(slice.min(backoff.nap(REQUEST_NAP, LONG_REQUEST_NAP))),
                Turned::Tired(_) | Turned::Awake => {}
            }
            Ok(())
        };
        let pause = if busy { Duration::ZERO } else { MEETING_PAUSE };
        bootstrap.meet(call, &meeting, Some(BackgroundWork { turn: &mut turn, pause }))?;
        session.all_have_come();
        Ok(wait.until(session.deadline_of_call()))
    }

    /// Lets the other ranks work in `memory`, where all are on one host and map each other's memory. Collective; else
    /// it does nothing.
    pub(crate) fn register(&mut self, buffer: &KnownBuffer, background: &mut dyn Background) -> Result<()> {
        if !self.chooser.grounds().reaches_buffers() {
            return Ok(());
        }
        // All ranks are in this call: a rank that is in another one learns that, and does not wait for memory.
        let met = self.meet("register", background)?;
        self.give_back_registrations(&met)?;
        self.open_windows(WaitingFor::Anything, background)?;
        self.set_up(WaitingFor::Anything, background, |fabric, setup| fabric.register(buffer, setup))?;
        self.windows = self.mover.fabric.windows();
        Ok(())
    }

    /// Who is on which host.
    pub(crate) fn hosts(&self) -> &Topology {
        self.mover.fabric.hosts()
    }

    /// Who can map whose memory.
    pub(crate) fn memory_topology(&self) -> &Topology {
        self.mover.fabric.topology()
    }

    /// How many ranks my host has, and how many hosts there are.
    pub(crate) fn census(&self) -> (usize, usize) {
        (self.mover.fabric.my_host().len(), self.mover.fabric.topology().hosts().len())
    }

    /// A wait of the call that is under way.
    pub(crate) fn wait(&self) -> Wait {
        self.session.wait().with_progress(self.mover.progress.clone())
    }

    /// The hook, and the flag that ends this communicator.
    pub(crate) fn hook(&self) -> Option<(Progress, AbortFlag)> {
        self.mover.progress.clone().map(|hook| (hook, self.session.abort.clone()))
    }

    /// [`Session::fail`].
    pub(crate) fn fail(&self, error: Error) -> Error {
        self.session.fail(error, &|peer| self.first_difference(peer))
    }

    /// [`Session::cause`].
    pub(crate) fn cause(&self, error: Error) -> Error {
        self.session.cause(error, &|peer| self.first_difference(peer))
    }

    /// Looks for a collective that a peer called differently and in which neither waited for the other, such as a small
    /// broadcast of two roots: in the flat slots of this host, and among the messages that nobody has taken. It never
    /// waits.
    ///
    /// # Errors
    /// [`Kind::Mismatch`](crate::error::Kind::Mismatch).
    pub(crate) fn last_look(&mut self) -> Result<()> {
        // Pairs with the same fence of a peer that ends meanwhile. Each rank announces its calls before its fence and
        // looks after it, so of two ranks at least one sees the other's call; without the fences each may look before
        // its own call is seen.
        fence(Ordering::SeqCst);
        let World { rank, .. } = self.session.world;
        let near: Vec<Rank> = self.windows.iter().flat_map(|windows| windows.ranks.iter().copied()).collect();
        if let Some(difference) =
            near.into_iter().filter(|peer| *peer != rank).find_map(|peer| self.first_difference(peer))
        {
            return Err(difference);
        }
        let links = self.mover.fabric.links();
        // A peer that has left may have closed its connections: that ends nothing here.
        let _closed = links.pump();
        let history = &self.session.history;
        let differs = |(peer, label): (Rank, Label)| {
            let mine = history.at(exec::sequence(label))?;
            (!exec::same_call(mine, label)).then(|| exec::mismatch(mine, peer, label))
        };
        links.left_over().into_iter().find_map(differs).map_or(Ok(()), Err)
    }

    /// The first call that differs, by the labels in the flat slots of a rank of this host.
    fn first_difference(&self, peer: Rank) -> Option<Error> {
        let windows = self.windows.as_ref()?;
        let place = windows.ranks.binary_search(&peer).ok()?;
        let (mine, theirs) = self.flat.first_difference(windows, place)?;
        Some(exec::mismatch(mine, peer, theirs))
    }

    /// Makes this rank take its peers for far away.
    #[cfg(test)]
    #[cfg(not(loom))]
    pub(crate) fn take_peers_for_far(&mut self) {
        self.mover.fabric.links().staging = crate::device::StorePolicy::far();
    }

    /// The layout on which all calls are planned.
    #[cfg(test)]
    #[cfg(not(loom))]
    pub(crate) fn layout(&self) -> &Layout {
        self.chooser.layout()
    }

    /// The plan of a call over slots, and how many messages and bytes this rank has sent to whom on which channel.
    #[cfg(test)]
    #[cfg(not(loom))]
    pub(crate) fn plan_and_traffic(&mut self, call: &Call<'_>) -> Result<(crate::plan::Plan, Vec<SentTo>)> {
        let Path::Plan(PlanPath::Slots(choice)) = self.chooser.path(Question::of(call))? else {
            return Err(Error::internal("a call that takes no slots"));
        };
        let program = self.chooser.program(call, choice, Windows::None)?;
        let sends = program.needs().iter().filter(|need| need.way == crate::transport::Way::Send);
        let links = self.mover.fabric.links();
        let sent = sends.filter_map(|need| {
            let crate::transport::Channel::Collective(channel) = need.channel else { return None };
            Some((need.peer, channel, links.sender_ref(need.peer, need.channel)?.published()))
        });
        let sent = sent.collect();
        Ok((program.plan().clone(), sent))
    }

    /// Whether this rank has timed both ways of copies into memory that peers read.
    #[cfg(test)]
    #[cfg(not(loom))]
    pub(crate) fn knows_both_ways(&mut self) -> bool {
        self.mover.fabric.links().staging.knows_both()
    }
}

/// A peer, a channel, and the messages and bytes that were sent there.
#[cfg(test)]
#[cfg(not(loom))]
pub(crate) type SentTo = (Rank, u8, (u64, u64));

/// Whether messages are a device's to move.
fn on_a_device(messages: &[Message<'_>], order: Order<'_>) -> bool {
    matches!(order, Order::Stream(_)) || messages.iter().any(|message| message.home() != Home::Host)
}

#[cold]
fn no_windows() -> Error {
    Error::internal("the host's windows are not open")
}

/// What errors call messages that run side by side.
const GROUP_OF_MESSAGES: &str = "group of messages";
/// How long a worker of requests sleeps between two looks at what is under way and at what is new.
const REQUEST_NAP: Duration = Duration::from_micros(200);
/// The same, where nothing has moved for long: a new request may wait so long before it is looked at.
const LONG_REQUEST_NAP: Duration = Duration::from_millis(1);
/// How much later than the watch the meeting itself gives up.
const WATCH_FIRST: Duration = Duration::from_secs(1);
/// How long a rank that waits for the others in a split or the like sleeps between two looks for senders that ask for a
/// connection.
const MEETING_PAUSE: Duration = Duration::from_millis(5);
