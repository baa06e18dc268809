//! One rank's side of a communicator: begins each call, and gives it to the side whose memory it works in.

use crate::device::{self, Home, Region};
use crate::engine::choose::{Chosen, Grounds, Question};
use crate::engine::device_entry::DeviceEntry;
use crate::engine::device_windows::RegisteredWindow;
use crate::engine::given::{Awaited, Beside, CallMover, Given};
use crate::engine::heard::{HeardCall, NumberedEnd};
use crate::engine::host_chooser::HostChooser;
use crate::engine::host_side::HostSide;
use crate::engine::prepared::{self, Announce, AnnouncedCall, Prepared, SettledCall, SettledWay};
use crate::engine::{
    call_log, device_collectives, device_messages, host_messages, memory, registrations, window_registration,
};
use crate::error::{Error, Result};
use crate::exec::flat::Flat;
use crate::exec::{
    self, Accepted, Background, Begun, Call, LastCalls, Message, MessageRun, NoBackground, Operation, Order,
};
use crate::log;
use crate::plan::Layout;
use crate::session::Session;
use crate::session::failure_watch::FailureWatch;
use crate::session::page::{CallWayShown, MemoryKind};
use crate::session::peer_status::WaitingFor;
use crate::session::settings::Settings;
use crate::sync::primitive::Arc;
use crate::sync::ring::Label;
use crate::sync::{AbortFlag, Flag, Patience, Progress, TimeLimit, Wait};
use crate::topo::Topology;
use crate::transport::{Fabric, KnownBuffer, Need, Receivers};
use crate::types::{Collective, DataType, Rank};

/// One rank's side of a communicator.
#[derive(Debug)]
pub(crate) struct Engine {
    /// What this rank knows. Other threads may look at it while a call runs.
    pub(crate) session: Arc<Session>,
    mover: CallMover,
    last_calls: LastCalls<SettledCall>,
    /// What this rank has for calls on host memory.
    host: HostSide,
    /// What this rank has on its device, since the first call there.
    device: DeviceEntry,
}

impl Engine {
    /// The engine of a rank that knows its peers and the `layout` of all. `cores` is the least number of processors
    /// that a rank of the world may use.
    pub(crate) fn new(
        session: Session,
        fabric: Fabric,
        (layout, patience, cores): (Layout, Patience, u32),
        host_mbit: Option<u64>,
    ) -> Engine {
        let mut session = session;
        let mut fabric = fabric;
        fabric.links().count_on(session.page.memory());
        session.spans_hosts = fabric.hosts().hosts().len() > 1;
        let settings = &session.settings;
        let grounds = Grounds::new(session.world, (layout, fabric.near(), cores), settings).over_nics_of(host_mbit);
        let grounds = Arc::new(grounds);
        let progress = settings.progress.clone();
        let flat = Flat::new(fabric.my_host().len(), cores as usize, settings.reproducible);
        let last_calls = LastCalls::new(settings.reproducible);
        Engine {
            session: Arc::new(session),
            mover: CallMover::new(fabric, patience, progress),
            last_calls,
            host: HostSide::new(HostChooser::new(&grounds), flat),
            device: DeviceEntry::new(&grounds),
        }
    }

    /// The settings with which a child begins: this communicator's, with the hook that it has now.
    pub(crate) fn settings_of_child(&self) -> Settings {
        let first_rank = Some(self.session.settings.first_rank.unwrap_or(self.session.world.rank));
        Settings { progress: self.mover.progress.clone(), first_rank, ..self.session.settings.clone() }
    }

    /// Sets what is called while a call waits.
    pub(crate) fn set_progress(&mut self, hook: Option<Progress>) {
        self.session.hook.set(hook.clone());
        self.mover.progress = hook;
    }

    /// Puts another hook in the place of the one that calls of this engine call; which that was.
    pub(crate) fn exchange_hook(&mut self, hook: Option<Progress>) -> Option<Progress> {
        std::mem::replace(&mut self.mover.progress, hook)
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
        match log::hears_calls() {
            true => self.collective_heard(call, order, background),
            false => self.collective_as::<false>((call, order, background), |_, _| {}),
        }
    }

    /// The same, of which somebody hears.
    #[cold]
    fn collective_heard(&mut self, call: &Call<'_>, order: Order<'_>, background: &mut dyn Background) -> Result<()> {
        let heard = HeardCall::begin_collective(call.collective, background);
        self.collective_as::<true>((call, order, background), |session, label| heard.end_collective(session, label))
    }

    #[inline(always)]
    fn collective_as<const HEARD: bool>(
        &mut self,
        (call, order, background): (&Call<'_>, Order<'_>, &mut dyn Background),
        end: impl FnOnce(&Session, Label),
    ) -> Result<()> {
        let is_on_host = call.buffers.home() == Home::Host && matches!(order, Order::Caller);
        if !is_on_host || self.device.side().is_some() {
            return self.collective_beside_device::<HEARD>((call, order, background), end);
        }
        let Engine { session, mover, host, last_calls, .. } = self;
        let world = session.world;
        let settled = last_calls.settled(call, world, |accepted| SettledCall::of(call, world, host, accepted))?;
        call.buffers.check_order(order)?;
        run_settled::<HEARD>((host, Given { session, mover }), (call, settled), background, end)
    }

    /// A collective of a rank that works on its device, or is about to.
    fn collective_beside_device<const HEARD: bool>(
        &mut self,
        (call, order, background): (&Call<'_>, Order<'_>, &mut dyn Background),
        end: impl FnOnce(&Session, Label),
    ) -> Result<()> {
        let session = &*self.session;
        session.begin_call();
        let Accepted { extent, kernel } = self.last_calls.check(call, session.world)?;
        call.buffers.check_order(order)?;
        let windows = self.device.side().map_or(Ok(0), |side| side.window_label(call, session.world))?;
        let on_device = call.buffers.home() != Home::Host || matches!(order, Order::Stream(_));
        let operation = Operation {
            sequence: session.next_collective(),
            past: session.history.past(),
            ..prepared::operation_of(call, on_device, windows)
        };
        if HEARD {
            call_log::of_collective(session, &self.host.chooser, (call, &operation));
        }
        let label = operation.label();
        self.session.history.begin_as(label, windows);
        let begun =
            Begun { call, operation: &operation, label, kernel: &kernel, world: self.session.world, extent: &extent };
        let ended = self.route(&begun, order, background);
        call.buffers.note_call();
        end(&self.session, label);
        ended.map_err(|error| error.during(operation.to_string()))
    }

    /// How such a call is run; `None` where there is nobody to run it with, or it is messages. Of a communicator that
    /// has worked on a device, how such a call is run there.
    pub(crate) fn chosen(&self, asked: Question<'_>) -> Result<Option<Chosen>> {
        if asked.collective.is_messages() || self.session.world.size == 1 {
            return Ok(None);
        }
        match self.device.side() {
            None => self.host.chooser.chosen(asked).map(Some),
            Some(side) => side.chooser.chosen(asked).map(Some),
        }
    }

    fn route(&mut self, begun: &Begun<'_>, order: Order<'_>, background: &mut dyn Background) -> Result<()> {
        if begun.operation.on_device {
            return self.run_on_device(begun, order, background);
        }
        let way = self.host.way(begun.call, begun.world)?;
        self.host.collective(Given { session: &self.session, mover: &mut self.mover }, (begun, way), background)
    }

    /// Prepares a collective on host memory, which [`Engine::run_prepared`] runs any number of times: its checks, its
    /// arithmetic and its way are settled here. Nothing is sent.
    ///
    /// # Errors
    /// As the call's, where this rank alone can see it.
    pub(crate) fn prepare(&mut self, call: Call<'static>) -> Result<Prepared> {
        let world = self.session.world;
        let settled = SettledCall::of(&call, world, &self.host, self.last_calls.check(&call, world)?)?;
        Ok(Prepared { call, settled })
    }

    /// Runs a prepared collective to its end.
    ///
    /// # Errors
    /// Of what other ranks are part of.
    #[inline]
    pub(crate) fn run_prepared(&mut self, prepared: &Prepared, background: &mut dyn Background) -> Result<()> {
        match log::hears_calls() {
            true => self.run_prepared_heard(prepared, background),
            false => self.run_prepared_as::<false>((prepared, background), |_, _| {}),
        }
    }

    /// The same, of which somebody hears.
    #[cold]
    fn run_prepared_heard(&mut self, prepared: &Prepared, background: &mut dyn Background) -> Result<()> {
        let heard = HeardCall::begin_collective(prepared.call.collective, background);
        self.run_prepared_as::<true>((prepared, background), |session, label| heard.end_collective(session, label))
    }

    #[inline(always)]
    fn run_prepared_as<const HEARD: bool>(
        &mut self,
        (prepared, background): (&Prepared, &mut dyn Background),
        end: impl FnOnce(&Session, Label),
    ) -> Result<()> {
        let Engine { session, mover, host, .. } = self;
        let Prepared { call, settled } = prepared;
        run_settled::<HEARD>((host, Given { session, mover }), (call, settled), background, end)
    }

    /// Announces a collective of a request, if it goes by flat slots, and ends it if the others have announced it by
    /// now. Never waits.
    ///
    /// # Errors
    /// As the call's.
    pub(crate) fn announce(&mut self, call: Call<'static>) -> Result<Announce> {
        if call.buffers.home() != Home::Host || self.device.side().is_some() || !self.host.can_announce() {
            return Ok(Announce::No(call));
        }
        let Engine { session, mover, host, last_calls, .. } = self;
        let world = session.world;
        let settled = last_calls.settled(&call, world, |accepted| SettledCall::of(&call, world, host, accepted))?;
        let SettledCall { operation, label, kernel, extent, way: SettledWay::Flat(reads) } = settled else {
            return Ok(Announce::No(call));
        };
        let (kernel, extent, reads) = (*kernel, *extent, reads.clone());
        let given = Given { session, mover };
        let session = given.session;
        session.begin_call();
        let (sequence, past) = (session.next_collective(), session.history.past());
        let operation = Operation { sequence, past, ..*operation };
        let label = exec::relabelled(*label, sequence, past);
        if log::hears_calls() {
            call_log::of_collective(session, &host.chooser, (&call, &operation));
        }
        session.history.begin_as(label, 0);
        session.page.goes(CallWayShown::Flat.code());
        let mut announced =
            AnnouncedCall { call, operation, label, kernel, extent, reads, number: 0, has_waited: false };
        announced.number = host.announce(given, &announced.begun(session.world))?;
        if self.awaited(&announced).is_some() {
            announced.has_waited = true;
            return Ok(Announce::Waits(Box::new(announced)));
        }
        self.end_announced(&announced, &mut NoBackground)?;
        Ok(Announce::Ended)
    }

    /// The flag that an announced call waits for, with the value that it must reach; `None` where it ends without a
    /// wait.
    pub(crate) fn awaited(&self, announced: &AnnouncedCall) -> Option<(&Flag, u64)> {
        let AnnouncedCall { call, reads, number, .. } = announced;
        self.host.missing((call, self.session.world, reads), *number)
    }

    /// Ends an announced call, beside `background` work where it has to wait.
    ///
    /// # Errors
    /// Of what other ranks are part of.
    pub(crate) fn end_announced(&mut self, announced: &AnnouncedCall, background: &mut dyn Background) -> Result<()> {
        let (host, _, given) = self.parts();
        let begun = announced.begun(given.session.world);
        let of = (&begun, &announced.reads, (announced.number, announced.has_waited));
        let ended = host.end_announced(given, of, background);
        announced.call.buffers.note_call();
        ended.map_err(|error| error.during(announced.operation.to_string()))
    }

    #[cold]
    fn run_on_device(&mut self, begun: &Begun<'_>, order: Order<'_>, background: &mut dyn Background) -> Result<()> {
        if !device::POSSIBLE {
            return Err(device::unsupported(begun.call.buffers.home()));
        }
        let (_, device, given) = self.parts();
        given.session.page.goes(CallWayShown::Device.code());
        given.session.page.count(CallWayShown::Device, begun.extent.longest_bytes);
        let of = (begun.call.buffers.home(), begun.operation.sequence);
        let ran = device_collectives::run(&mut device.enter(given, of, (order, background))?, begun);
        // The first calls open what later ones use.
        if begun.operation.sequence.is_power_of_two() || begun.operation.sequence == 0 {
            self.note_memory();
        }
        ran
    }

    /// The two sides, and what one of them gets for a call.
    fn parts(&mut self) -> (&mut HostSide, &mut DeviceEntry, Given<'_>) {
        let Engine { session, mover, host, device, .. } = self;
        (host, device, Given { session, mover })
    }

    /// What a call gets that neither side runs.
    fn given(&mut self) -> Given<'_> {
        Given { session: &self.session, mover: &mut self.mover }
    }

    /// Sends and receives, all side by side. Messages of one connection keep their order.
    pub(crate) fn messages(&mut self, messages: Vec<Message<'_>>) -> Result<()> {
        match <[Message<'_>; 2]>::try_from(messages) {
            Ok(both) => self.send_and_receive(both),
            Err(messages) => self.messages_in(messages, Order::Caller),
        }
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
            return self.run_messages_on_device((messages, None), order);
        }
        let heard = log::hears_calls().then(|| HeardCall::begin(MESSAGES));
        let others =
            host_messages::copy_to_self(&self.session, messages).map_err(|error| error.during(GROUP_OF_MESSAGES))?;
        let needs: Vec<Need> = others.iter().map(Message::need).collect();
        let mut runs: Vec<MessageRun<'_>> =
            others.into_iter().map(|message| host_messages::begin_message(&self.session, message)).collect();
        let ends = heard.iter().flat_map(|_| runs.iter().map(NumberedEnd::of)).collect::<Vec<_>>();
        let single = if let [run] = &runs[..] { Some(run.name()) } else { None };
        let name = single.unwrap_or_else(|| GROUP_OF_MESSAGES.to_owned());
        let needs = (&needs[..], Receivers::AreAsked);
        let ended = host_messages::drive_all(&mut self.given(), needs, (&mut runs, None), &mut NoBackground);
        heard.iter().for_each(|heard| heard.end_messages(&self.session, &ends));
        ended.map_err(|error| error.during(name))
    }

    /// A message to a rank and one from a rank, side by side. What `messages` does for several, with nothing allocated
    /// on the way.
    pub(crate) fn send_and_receive(&mut self, messages: [Message<'_>; 2]) -> Result<()> {
        let world = self.session.world;
        if !is_pair(&messages, world.rank) {
            return self.messages_in(messages.into(), Order::Caller);
        }
        match log::hears_calls() {
            true => self.pair_heard(messages),
            false => self.pair_as::<false>(messages, |_, _| {}),
        }
    }

    /// The same, of which somebody hears.
    #[cold]
    fn pair_heard(&mut self, messages: [Message<'_>; 2]) -> Result<()> {
        let heard = HeardCall::begin(MESSAGES);
        self.pair_as::<true>(messages, |session, runs| heard.end_messages(session, &runs.map(NumberedEnd::of)))
    }

    #[inline(always)]
    fn pair_as<const HEARD: bool>(
        &mut self,
        [sent, received]: [Message<'_>; 2],
        end: impl FnOnce(&Session, [&MessageRun<'_>; 2]),
    ) -> Result<()> {
        let world = self.session.world;
        self.session.begin_call();
        sent.check(world)?;
        received.check(world)?;
        let needs = [sent.need(), received.need()];
        // Each made in its place: an array that is mapped moves what it has just written.
        let begin = |message| host_messages::begin_message_as::<HEARD>(&self.session, message);
        let mut runs = [begin(sent), begin(received)];
        let ended = host_messages::drive_pair(self.given(), needs, &mut runs);
        end(&self.session, [&runs[0], &runs[1]]);
        ended.map_err(|error| error.during(GROUP_OF_MESSAGES))
    }

    /// One send or receive. What `messages` does for several, with nothing allocated on the way.
    pub(crate) fn message(&mut self, message: &mut Message<'_>) -> Result<()> {
        if message.peer() == self.session.world.rank || message.home() != Home::Host {
            return self.messages(vec![message.reborrow()]);
        }
        match log::hears_calls() {
            true => self.message_heard(message),
            false => self.message_as::<false>(message, |_, _| {}),
        }
    }

    /// The same, of which somebody hears.
    #[cold]
    fn message_heard(&mut self, message: &mut Message<'_>) -> Result<()> {
        let heard = HeardCall::begin(if message.sends() { "send" } else { "recv" });
        self.message_as::<true>(message, |session, run| heard.end_messages(session, &[NumberedEnd::of(run)]))
    }

    #[inline(always)]
    fn message_as<const HEARD: bool>(
        &mut self,
        message: &mut Message<'_>,
        end: impl FnOnce(&Session, &MessageRun<'_>),
    ) -> Result<()> {
        self.session.begin_call();
        message.check(self.session.world)?;
        let need = message.need();
        let mut run = host_messages::begin_message_as::<HEARD>(&self.session, message.reborrow());
        let result = host_messages::drive_one(self.given(), need, &mut run);
        end(&self.session, &run);
        result.map_err(|error| error.during(run.name()))
    }

    /// Messages of device memory, of an `all_to_all_v` or by themselves.
    #[cold]
    fn run_messages_on_device(
        &mut self,
        messages: (Vec<Message<'_>>, Option<Operation>),
        order: Order<'_>,
    ) -> Result<()> {
        if !device::POSSIBLE {
            return Err(device::unsupported(messages.0.first().map_or(Home::Host, Message::home)));
        }
        let (_, device, given) = self.parts();
        device_messages::run(device, given, messages, (order, &mut NoBackground))
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
            let data_type = messages.first().map_or(DataType::U8, Message::data_type);
            let operation = host_messages::next_exchange(&self.session, data_type, true);
            let result = self.run_messages_on_device((messages, Some(operation)), order);
            return result.map_err(|error| error.during(operation.to_string()));
        }
        let heard = log::hears_calls().then(|| HeardCall::begin(Collective::AllToAllV.name()));
        let (others, data_type) = host_messages::open_exchange(&self.session, messages)?;
        let needs: Vec<Need> = others.iter().map(Message::need).collect();
        let bytes = others.iter().map(|message| message.bytes() as u64).sum();
        self.session.page.count(CallWayShown::Messages, bytes);
        let (operation, mut runs) = host_messages::begin_exchange(&self.session, others, data_type);
        let needs = (&needs[..], Receivers::Come);
        let result =
            host_messages::drive_all(&mut self.given(), needs, (&mut runs, Some(&operation)), &mut NoBackground);
        heard.iter().for_each(|heard| heard.end_collective(&self.session, operation.label()));
        result.map_err(|error| error.during(operation.to_string()))
    }

    /// Lets `messages` of requests go on beside the calls that follow.
    pub(crate) fn set_beside(&mut self, messages: Box<dyn Beside>) {
        self.mover.beside = Some(messages);
    }

    /// Takes the messages of requests back.
    pub(crate) fn take_beside(&mut self) -> Option<Box<dyn Beside>> {
        self.mover.beside.take()
    }

    /// Whether all that was sent has been handed to the system.
    pub(crate) fn is_drained(&mut self) -> bool {
        self.mover.fabric.links().drained()
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

    /// Maps the memory of the ranks of my host now, in the communicator's set-up, and not at the first call.
    pub(crate) fn connect_early(&mut self, limit: TimeLimit) -> Result<()> {
        let (host, _, mut given) = self.parts();
        host.open_early(&mut given, limit)
    }

    /// [`Given::meet`].
    pub(crate) fn meet(&mut self, call: &'static str, background: &mut dyn Background) -> Result<Wait> {
        self.given().meet(call, background)
    }

    /// [`registrations::register`].
    pub(crate) fn register(&mut self, buffer: &KnownBuffer, background: &mut dyn Background) -> Result<()> {
        let (host, _, mut given) = self.parts();
        registrations::register((host, &mut given), buffer, background)
    }

    /// [`registrations::deregister`].
    pub(crate) fn deregister(&mut self, buffer: &KnownBuffer, background: &mut dyn Background) -> Result<()> {
        let (host, _, mut given) = self.parts();
        let taken = registrations::deregister((host, &mut given), buffer, background);
        self.note_memory();
        taken
    }

    /// Registers memory of a device as a window, on all ranks.
    pub(crate) fn register_window(
        &mut self,
        memory: &Region,
        background: &mut dyn Background,
    ) -> Result<RegisteredWindow> {
        if !device::POSSIBLE {
            return Err(device::unsupported(memory.home()));
        }
        let (_, device, given) = self.parts();
        let registered = window_registration::register(device, given, memory, background);
        self.note_memory();
        registered
    }

    /// Takes a window back, on all ranks.
    pub(crate) fn deregister_window(
        &mut self,
        window: &RegisteredWindow,
        background: &mut dyn Background,
    ) -> Result<()> {
        if !device::POSSIBLE {
            return Err(device::unsupported(Home::Host));
        }
        let (_, device, given) = self.parts();
        let taken = window_registration::deregister(device, given, window, background);
        self.note_memory();
        taken
    }

    /// Takes a window back that no peer needs to hear of.
    pub(crate) fn forget_window(&mut self, window: &RegisteredWindow) {
        if let Some(side) = self.device.side_mut() {
            side.windows.forget(window);
        }
    }

    /// Waits for what streams still do for this communicator, and then says goodbye: after a goodbye, peers take this
    /// rank's part in anything for lost.
    ///
    /// # Errors
    /// That of a launch, which has ended the communicator.
    pub(crate) fn leave(&mut self) -> Result<()> {
        let ended = self.device.side_mut().map_or(Ok(()), |side| {
            side.close();
            self.session.abort.check()
        });
        self.session.leave();
        ended
    }

    /// How much memory is held for this, and the GPU on which the rank works.
    pub(crate) fn memory(&mut self) -> ([u64; MemoryKind::ALL.len()], Option<u32>) {
        self.note_memory();
        let page = &self.session.page;
        (MemoryKind::ALL.map(|kind| page.held(kind)), page.gpu())
    }

    /// Looks anew how much memory is held, for the page.
    fn note_memory(&mut self) {
        let (_, device, given) = self.parts();
        memory::note(given.session, &given.mover.fabric, device.side());
    }

    /// Who is on which host.
    pub(crate) fn hosts(&self) -> &Topology {
        self.mover.fabric.hosts()
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
        self.session.fail(error, &|peer| self.host.first_difference(peer))
    }

    /// [`Session::awaits_cause`].
    pub(crate) fn awaits_cause(&self, error: &Error) -> bool {
        self.host.awaits_cause(&self.session, error)
    }

    /// [`Session::cause`].
    pub(crate) fn cause(&self, error: Error) -> Error {
        self.host.cause(&self.session, error)
    }

    /// Looks for a collective that a peer called differently and in which neither waited for the other, such as a small
    /// broadcast of two roots: in the flat slots of this host, and among the messages that nobody has taken. It never
    /// waits.
    ///
    /// # Errors
    /// [`Kind::Mismatch`](crate::error::Kind::Mismatch).
    pub(crate) fn last_look(&mut self) -> Result<()> {
        let (host, _, given) = self.parts();
        host.last_look(given)
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
        &self.host.chooser.grounds().layout
    }

    /// What this rank plans for a call on host memory, with root 0, where ranks work in scratch; `None` where it goes
    /// by flat slots.
    #[cfg(test)]
    #[cfg(not(loom))]
    pub(crate) fn spec(&self, asked: Question<'_>) -> Result<Option<crate::plan::Spec>> {
        let chooser = &self.host.chooser;
        let planned = chooser.planned(asked, crate::plan::Windows::Scratch)?;
        let spec = |(choice, windows)| {
            let (means, grounds) = (crate::engine::choose::means(choice, windows), chooser.grounds());
            let places = (crate::types::Rank::default(), false);
            grounds.spec_of(asked, places, means, (grounds.world, &grounds.layout))
        };
        Ok(planned.map(spec))
    }

    /// The plan of a call over slots, and how many messages and bytes this rank has sent to whom on which channel.
    #[cfg(test)]
    #[cfg(not(loom))]
    pub(crate) fn plan_and_traffic(&mut self, call: &Call<'_>) -> Result<(crate::plan::Plan, Vec<SentTo>)> {
        let program = self.host.program_over_slots(call)?;
        let sends = program.needs().iter().filter(|need| need.way == crate::transport::Way::Send);
        let links = self.mover.fabric.links();
        let sent = sends.filter_map(|need| {
            let crate::transport::Channel::Collective(channel) = need.channel else { return None };
            Some((need.peer, channel, links.sender_ref(need.peer, need.channel)?.published()))
        });
        let sent = sent.collect();
        Ok((program.plan().clone(), sent))
    }

    /// Which registrations this rank knows, by number.
    #[cfg(test)]
    #[cfg(not(loom))]
    pub(crate) fn known_registrations(&self) -> Vec<bool> {
        let windows = self.host.windows().expect("they are open");
        windows.registered.iter().map(Option::is_some).collect()
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

/// Runs a settled collective on host memory to its end.
#[inline(always)]
fn run_settled<const HEARD: bool>(
    (host, given): (&mut HostSide, Given<'_>),
    (call, settled): (&Call<'_>, &SettledCall),
    background: &mut dyn Background,
    end: impl FnOnce(&Session, Label),
) -> Result<()> {
    let session = given.session;
    let SettledCall { kernel, extent, way, .. } = settled;
    let (sequence, past) = (session.next_collective(), session.history.past());
    let operation = &Operation { sequence, past, ..settled.operation };
    if HEARD {
        call_log::of_collective(session, &host.chooser, (call, operation));
    }
    session.begin_call();
    let label = exec::relabelled(settled.label, sequence, past);
    let begun = &Begun { call, operation, label, kernel, world: session.world, extent };
    let ended = match way {
        // What the others do not wait for comes once they have what they wait for.
        SettledWay::Flat(reads) if host.has_room() => {
            session.page.goes(CallWayShown::Flat.code());
            let reads = || {
                session.history.begin_as(label, 0);
                reads
            };
            host.run_flat(given, begun, reads, background)
        }
        SettledWay::Flat(_) | SettledWay::Other(_) => {
            session.history.begin_as(label, 0);
            host.collective(given, (begun, way.call_way()), background)
        }
    };
    call.buffers.note_call();
    end(session, label);
    ended.map_err(|error| error.during(operation.to_string()))
}

/// Whether messages are a device's to move.
fn on_a_device(messages: &[Message<'_>], order: Order<'_>) -> bool {
    matches!(order, Order::Stream(_)) || messages.iter().any(|message| message.home() != Home::Host)
}

/// Whether they are a message to another rank and one from another rank, in the host's memory.
#[inline]
fn is_pair(messages: &[Message<'_>; 2], me: Rank) -> bool {
    let [first, second] = messages;
    let is_apart = |message: &Message<'_>| message.peer() != me && message.home() == Home::Host;
    first.sends() != second.sends() && is_apart(first) && is_apart(second)
}

/// What errors call messages that run side by side.
const GROUP_OF_MESSAGES: &str = "group of messages";
/// What profilers call them.
const MESSAGES: &str = "messages";
