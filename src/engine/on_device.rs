//! A communicator on the memory of devices: how a call becomes a launch.
//!
//! The first call makes the rank's [`DeviceSide`]: words and scratch in the memory of its device, which the programs of
//! the other ranks reach, whether they are threads of this process or other processes of the host (`device_sharing`).
//! Every call, the first included, becomes a [`LaunchPart`], which the cohort launches. Between processes and between
//! devices plans work in scratch, because nobody else reaches users' buffers, unless the buffers lie in windows
//! (`engine::device_windows`); between hosts they send (`far_ends`).

use std::collections::HashMap;

use crate::device::records::{LaunchPart, PeerMemory, Reduction, SlotQueue};
use crate::device::{self, Event, Home, HostRegion, Region, Sharing, StatusPage};
use crate::engine::Engine;
use crate::engine::call_log::{self, LineOfWay};
use crate::engine::call_mover::{Awaited, CallMover};
use crate::engine::choose::{Question, SMALL_SCRATCH};
use crate::engine::device_chooser::DeviceChooser;
use crate::engine::device_windows::{DeviceWindows, Placed};
use crate::engine::monitor::Monitor;
use crate::error::{Error, Kind, Result};
use crate::exec::lower::{self, Lowered};
use crate::exec::{Background, Begun, Call, Cohort, DeviceStream, Last, Operation, Order, WaitContext, composed};
use crate::log;
use crate::plan::{self, Windows};
use crate::reach::channel_search;
use crate::reach::device_sharing::{self, Addresses, Brought, Meeting};
use crate::reach::far_ends::FarEnds;
use crate::reach::line_ways;
use crate::reach::proxy::Attention;
use crate::reach::staging::StagingLayout;
use crate::session::Session;
use crate::session::failure_watch::FailureWatch;
use crate::session::peer_status::WaitingFor;
use crate::sync::primitive::Arc;
use crate::sync::ring::Label;
use crate::sync::{AwaitedMessage, Backoff, Deadline, Waiting};
use crate::sys::{clock, futex};
use crate::transport::{ConnectionMemory, Fabric, Need, QueueMemory, Sizes};
use crate::types::{Collective, Elements, Protocol, Rank};

/// What one rank has on its device for one communicator.
#[derive(Debug)]
pub(crate) struct DeviceSide {
    pub(super) home: Home,
    /// Watches the launches on streams; made with the first of them. It is the first field to be dropped, before all
    /// that the launches use.
    monitor: Option<Monitor>,
    /// Connections with ranks that are reached over the network. Dropped next: it ends when all that launches have published is on its way.
    far: FarEnds,
    /// The stream for calls that return when they are done (`Order::Caller`).
    own_stream: DeviceStream,
    pub(super) meeting: Meeting,
    pub(super) chooser: DeviceChooser,
    cohort: Arc<Cohort>,
    pub(super) peers: Arc<[PeerMemory]>,
    addresses: Addresses,
    staging: StagingLayout,
    /// Keeps the memory behind `peers` alive: this rank's, that of other processes, and the host's.
    kept: Vec<Region>,
    status: Arc<StatusPage>,
    /// The ends of connections that are open, and the memory behind each.
    queues: HashMap<Need, (SlotQueue, ConnectionMemory)>,
    /// The ends that [`DeviceSide::staged_end`] has found.
    staged_ends: HashMap<Need, SlotQueue>,
    /// What all ranks have registered alike.
    pub(super) windows: DeviceWindows,
    /// The last launch of messages. Launches of messages use the same connections, so each follows the one before.
    pub(super) messages: Option<Last>,
    /// Scratch that no peer reads, for plans over connections alone: peers may still read what the plan before has put
    /// into the scratch that they see, and such a plan waits for none of them before it writes.
    own_scratch: Region,
    /// The last program that the chooser's cache does not hold: the next one is often the same.
    last_lowered: Option<(LoweredFrom, Lowered)>,
}

/// All that the program of a scan depends on, or of a rank that is alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LoweredFrom {
    collective: Collective,
    count: Elements,
    room: Elements,
    protocol: Protocol,
}

/// What a launch does, and so for which ranks it waits.
#[derive(Debug, Clone)]
pub(super) enum Launched {
    /// A collective: it waits for all ranks.
    Collective(Operation),
    /// Messages to and from other ranks.
    Messages(Vec<AwaitedMessage>),
}

/// What a call needs to put its work into a stream.
pub(super) struct Putting<'a> {
    pub(super) stream: &'a DeviceStream,
    /// Whether the stream is being captured.
    pub(super) captured: bool,
    /// One turn of a wait on the host for these ranks.
    pub(super) turn: &'a mut dyn FnMut(&[Rank]) -> Result<()>,
}

/// The wait of a call on a device: for its cohort and, if the call returns when it is done, for the end of its launch.
struct DeviceWait<'a> {
    context: WaitContext<'a>,
    backoff: Backoff,
    /// Whether its stream is being captured. What the program's hook calls of the device could spoil the capture.
    is_captured: bool,
}

/// Bytes of a rank's scratch that no peer reads: what plans over connections, and the pieces of a scan, take.
fn own_scratch_bytes(sizes: Sizes) -> usize {
    sizes.scratch_bytes.min(sizes.shape.slot_bytes as usize).max(SMALL_SCRATCH)
}

impl DeviceSide {
    /// This rank's side. All ranks of the process must have allocated their memory.
    fn new(
        session: &Session,
        (meeting, chooser, staging): (Meeting, DeviceChooser, StagingLayout),
        brought: Brought,
        (home, status): (Home, StatusPage),
    ) -> Result<DeviceSide> {
        let status = Arc::new(status);
        session.abort.mirror(&status);
        let (addresses, peers) = meeting.addresses(&brought)?;
        Ok(DeviceSide {
            home,
            monitor: None,
            far: FarEnds::default(),
            own_stream: DeviceStream::of(home, device::of(home)?.queue()?),
            cohort: meeting.cohort(home),
            peers,
            addresses,
            staging,
            meeting,
            chooser,
            kept: brought.sides.into_values().chain(brought.stages.into_values()).chain(brought.pages).collect(),
            status,
            queues: HashMap::new(),
            staged_ends: HashMap::new(),
            windows: DeviceWindows::default(),
            messages: None,
            last_lowered: None,
            own_scratch: device::of(home)?.allocate(own_scratch_bytes(session.settings.sizes), Sharing::Threads)?,
        })
    }

    /// The program that `lower` makes from `from`, made anew where the last one was made from something else.
    fn lowered_from(&mut self, from: LoweredFrom, lower: impl FnOnce() -> Lowered) -> Lowered {
        match &self.last_lowered {
            Some((last, lowered)) if *last == from => lowered.clone(),
            _ => self.last_lowered.insert((from, lower())).1.clone(),
        }
    }

    /// This rank's end of a connection whose words are in the host's memory; `None` where all is in the memory of the
    /// two devices.
    fn staged_end(&mut self, me: Rank, end: Need) -> Result<Option<SlotQueue>> {
        if !self.meeting.staged().parts(me, end.peer) {
            return Ok(None);
        }
        if let Some(known) = self.staged_ends.get(&end) {
            return Ok(Some(*known));
        }
        let made = self.staging.end((me, end), &self.addresses)?;
        self.staged_ends.insert(end, made);
        Ok(Some(made))
    }

    /// This rank's end of a connection over the network, which the fabric has opened.
    fn far_end(&mut self, session: &Arc<Session>, end: Need, fabric: &mut Fabric) -> Result<SlotQueue> {
        let (me, shape) = (session.world.rank, session.settings.sizes.shape);
        if !self.far.has(&end) {
            let opened = fabric.take_far_end(&end);
            let opened = opened.ok_or_else(|| Error::internal(format!("no connection for {end:?}")))?;
            let count = self.meeting.layout().own_count(end, self.addresses.side(me));
            self.far.open((session, &self.status), (me, end, self.home), (opened, shape), count)?;
        }
        self.far.attended(&end)
    }

    /// The ends that have no queue yet and for which another process, or another host, does something too.
    fn missing_elsewhere(&self, me: Rank, ends: &[Need]) -> Vec<Need> {
        let staged = self.meeting.staged();
        let is_missing = |end: &&Need| match self.meeting.is_wired(end.peer) {
            true => !self.far.has(end),
            false if self.meeting.is_far(end.peer) => !self.queues.contains_key(end),
            false => !self.queues.contains_key(end) && !self.meeting.is_here(end.peer) && !staged.parts(me, end.peer),
        };
        ends.iter().filter(is_missing).copied().collect()
    }

    /// Where the stage of a rank on this rank's device lies, as this process addresses it.
    pub(super) fn stage_of(&self, rank: Rank) -> u64 {
        self.addresses.side(rank) + self.staging.stage(rank)
    }

    /// A rank's part of a launch, without buffers and connections.
    pub(super) fn part(&self, me: Rank, lowered: &Lowered, (folding, labels): (Reduction, Vec<Label>)) -> LaunchPart {
        LaunchPart {
            records: Arc::clone(&lowered.steps.records),
            numbers: Arc::clone(&lowered.numbers),
            folding,
            rank: me.get(),
            labels,
            bases: Vec::new(),
            layout: self.meeting.layout().control(),
            peers: Arc::clone(&self.peers),
            queues: Vec::new(),
            status: Arc::clone(&self.status),
            keep: self.kept.clone(),
            across: None,
        }
    }
}

impl Engine {
    /// Runs a collective whose buffers live on a device, in its order.
    #[cold]
    pub(super) fn run_on_device(
        &mut self,
        begun: &Begun<'_>,
        order: Order<'_>,
        background: &mut dyn Background,
    ) -> Result<()> {
        let Begun { call, operation, world, .. } = *begun;
        let home = self.enter_device((call.buffers.home(), operation.sequence), order, background)?;
        if matches!(call.collective, Collective::GatherV | Collective::ScatterV) {
            let messages = composed::blocks(call, world).into_iter().map(|message| message.in_home(home)).collect();
            return self.launch_messages(messages, operation, (order, background));
        }
        if log::hears_calls() {
            call_log::of_choice(&self.session, call, |asked| self.side()?.chooser.chosen(asked));
        }
        if self.launch_across(begun, (order, &mut *background))? {
            return Ok(());
        }
        let (input, output) = call.buffers.places();
        let bases = [input, output].map(|place| place.addr() as u64);
        let placed = self.placed(call);
        if self.launch_copies(begun, placed.as_ref(), home, (order, &mut *background))? {
            return Ok(());
        }
        let Some((lowered, windows)) = self.device_program(call, placed.is_some())? else { return Ok(()) };
        let folding = Reduction { data_type: call.data_type, op: call.op, world: world.size };
        let queues = self.open_queues(&lowered.steps.ends, &Launched::Collective(*operation), &mut *background)?;
        let side = self.side_mut()?;
        let mut part = side.part(world.rank, &lowered, (folding, vec![operation.label()]));
        let scratch = if windows == Windows::None && world.size > 1 {
            part.keep.push(side.own_scratch.clone());
            device_sharing::address(&side.own_scratch, 0)
        } else {
            side.peers[world.rank.index()].scratch
        };
        part.bases = vec![bases[0], bases[1], scratch];
        if let Some(placed) = placed {
            part.bases.extend(side.windows.bases(&placed, world));
            part.keep.extend(side.windows.kept(&placed));
        }
        part.keep.extend(call.buffers.kept());
        part.queues = queues;
        self.launch_collective(part, operation, (order, background))
    }

    /// Where the buffers of a call lie in windows; `None` where it does not work there.
    pub(super) fn placed(&self, call: &Call<'_>) -> Option<Placed> {
        self.device_side.as_ref()?.windows.find(call, self.session.world)
    }

    /// What the label of a call says of windows; 0 where it does not work there.
    ///
    /// # Errors
    /// [`Kind::InvalidUsage`] where the memory of a window is no longer there.
    pub(super) fn window_label(&self, call: &Call<'_>) -> Result<u64> {
        let Some(side) = &self.device_side else { return Ok(0) };
        let Some(placed) = side.windows.find(call, self.session.world) else { return Ok(0) };
        side.windows.check(&placed)?;
        Ok(placed.check_sum())
    }

    /// The records of a call, which works `in_windows` or not, and what of its peers' memory they work in; `None` where
    /// there is nothing to do.
    pub(super) fn device_program(&mut self, call: &Call<'_>, in_windows: bool) -> Result<Option<(Lowered, Windows)>> {
        let world = self.session.world;
        if world.size == 1 {
            if call.collective == Collective::Exscan {
                return Ok(None);
            }
            let (input, output) = call.lengths(world)?;
            let count = input.min(output);
            let Some(lane) = plan::copy_lane(count) else { return Ok(None) };
            let from = LoweredFrom { collective: call.collective, count, room: count, protocol: Protocol::Simple };
            let lowered = self.side_mut()?.lowered_from(from, || lower::plan(&[lane], Windows::None));
            return Ok(Some((lowered, Windows::None)));
        }
        if matches!(call.collective, Collective::Scan | Collective::Exscan) {
            let (sizes, exclusive) = (&self.session.settings.sizes, call.collective == Collective::Exscan);
            let size = u64::from(call.data_type.size());
            let count = Elements(call.count.of(world.rank));
            let chooser = &self.side()?.chooser;
            let protocol = chooser.scan_protocol(Question::of(call))?;
            let room = Elements(chooser.slot_bytes(protocol).min(own_scratch_bytes(*sizes) as u64) / size);
            if log::hears_calls() {
                let line = LineOfWay { collective: call.collective, bytes: count.0 * size, peer: None, protocol };
                log::detail!(Tuning @ world.rank, "{line}");
            }
            if count.0 == 0 {
                return Ok(None);
            }
            let from = LoweredFrom { collective: call.collective, count, room, protocol };
            let lower = || {
                let lane = plan::scan_lane(world, exclusive, count, room);
                lower::plan_by(&[lane], (Windows::None, protocol))
            };
            return Ok(Some((self.side_mut()?.lowered_from(from, lower), Windows::None)));
        }
        if in_windows {
            let program = self.side_mut()?.chooser.program(call, Windows::Symmetric)?;
            if let entered @ 1.. = program.entered().len() {
                log::detail!(Tuning @ world.rank, "{}: works in the windows of {entered} peers", call.collective);
            }
            return Ok(Some((program.in_windows(), program.plan().spec.windows)));
        }
        let side = self.side_mut()?;
        let windows = if side.meeting.works_in_place() { Windows::User } else { Windows::Scratch };
        let program = side.chooser.program(call, windows)?;
        Ok(Some((program.lowered(), program.plan().spec.windows)))
    }

    /// The ends of connections that a program names, opened where they are not open yet.
    pub(super) fn open_queues(
        &mut self,
        ends: &[Need],
        launched: &Launched,
        background: &mut dyn Background,
    ) -> Result<Vec<SlotQueue>> {
        let me = self.session.world.rank;
        let missing = self.side_mut()?.missing_elsewhere(me, ends);
        if !missing.is_empty() {
            let open = || launched.messages();
            self.given()
                .set_up(launched.waiting_for(&open), background, |fabric, setup| fabric.open_queues(&missing, setup))?;
        }
        let (shape, session) = (self.session.settings.sizes.shape, Arc::clone(&self.session));
        let (side, CallMover { fabric, .. }) = self.device_and_mover()?;
        let mut queues = Vec::with_capacity(ends.len());
        for end in ends {
            if side.meeting.is_wired(end.peer) {
                queues.push(side.far_end(&session, *end, fabric)?);
                continue;
            }
            if let Some(staged) = side.staged_end(me, *end)? {
                queues.push(staged);
                continue;
            }
            if !side.queues.contains_key(end) {
                let memory = match fabric.queue(end) {
                    Some(memory) => memory,
                    None => side.meeting.queue(side.home, *end, shape)?,
                };
                let opened = side.meeting.layout().end((me, *end), &memory, &side.addresses, shape);
                side.queues.insert(*end, (opened, memory));
            }
            queues.push(side.queues[end].0);
        }
        Ok(queues)
    }

    /// Launches this rank's part of a collective together with those of its cohort.
    pub(super) fn launch_collective(
        &mut self,
        part: LaunchPart,
        operation: &Operation,
        meanwhile: (Order<'_>, &mut dyn Background),
    ) -> Result<()> {
        let me = self.session.world.rank;
        self.launch_all(operation, meanwhile, |side, Putting { stream, captured, turn }| {
            side.launch_one(me, (part, stream, captured), turn)
        })
    }

    /// Calls `put` for a collective, as [`Engine::launch`] does.
    pub(super) fn launch_all(
        &mut self,
        operation: &Operation,
        meanwhile: (Order<'_>, &mut dyn Background),
        put: impl FnOnce(&mut DeviceSide, Putting<'_>) -> Result<Arc<dyn Event>>,
    ) -> Result<()> {
        self.launch(&Launched::Collective(*operation), meanwhile, put)
    }

    /// Calls `put`, which puts work into the stream and returns its end. A call that returns when it is done
    /// (`Order::Caller`) then waits until the work has run.
    pub(super) fn launch(
        &mut self,
        launched: &Launched,
        (order, background): (Order<'_>, &mut dyn Background),
        put: impl FnOnce(&mut DeviceSide, Putting<'_>) -> Result<Arc<dyn Event>>,
    ) -> Result<()> {
        let session = Arc::clone(&self.session);
        let open = || launched.messages();
        let mut watch = FailureWatch::of_call(&session, launched.waiting_for(&open));
        let (side, mover) = self.device_and_mover()?;
        let mut wait = DeviceWait::new(mover.wait_context((&session, Awaited::Ranks), &mut watch, background));
        let stream = side.stream(order).clone();
        let alone = side.cohort.is_alone();
        let putting = || {
            let captured = stream.capture()?.is_some();
            if captured && matches!(order, Order::Caller) {
                stream.check_runs()?;
            }
            wait.is_captured = captured;
            let turn = &mut |missing: &[Rank]| match alone {
                // `at_once` is around this: the program's hook would not find its own context.
                true => Err(Error::internal("a launch of one rank waits for others")),
                false => wait.turn(&|| on_this_device(missing)),
            };
            Ok((put(side, Putting { stream: &stream, captured, turn }), captured))
        };
        // Not around a wait for other ranks: it may log, and the program's log callback must find its own context.
        let asked = if alone { stream.at_once(putting) } else { putting() };
        // Not before: what a graph keeps depends on whether the launch has any.
        let attention = side.far.take_attention();
        let (put, captured) = asked?;
        if put.is_ok() && matches!(order, Order::Stream(_)) {
            stream.has_call_of((&session.abort, &session.hook), &side.status, captured);
        }
        match (put, order) {
            // Captured work runs later, and as often as the program likes: there is nothing to wait for.
            (Ok(_), Order::Stream(_)) if captured => Ok(()),
            (Ok(end), Order::Stream(_)) => {
                side.watch_over(&session, (launched.clone(), end), attention, &mut |what| wait.turn(what))
            }
            (Ok(end), Order::Caller) => {
                let ended = wait.until(&*end);
                if ended.is_err() {
                    // The launch must not touch the caller's memory after this call returns.
                    let told = (&*end, Some(&*side.status));
                    await_end(told, session.deadline_of_call(), &mut || wait.context.turn_of_failed())?;
                }
                match (side.fault(&session), ended) {
                    // The launch was told to end because the wait had failed, which says more.
                    (Err(told), Err(error)) if told.kind() == Kind::Aborted => Err(error),
                    (fault, ended) => fault.and(ended),
                }
            }
            (Err(error), Order::Stream(_)) if !captured && matches!(launched, Launched::Messages(_)) => {
                // Some of the messages may be in the stream, of a communicator that goes on.
                let begun = (launched.clone(), stream.record()?);
                side.watch_over(&session, begun, attention, &mut |what| wait.turn(what))?;
                Err(error)
            }
            (Err(error), Order::Stream(_)) => Err(error),
            (Err(error), Order::Caller) => {
                // Other ranks may have started copies for this call: they must not touch the caller's memory after it
                // returns.
                let told = side.meeting.is_led().then_some(&*side.status);
                let meanwhile = &mut || wait.context.turn_of_failed();
                let deadline = session.deadline_of_call();
                stream.record().and_then(|end| await_end((&*end, told), deadline, meanwhile)).and(Err(error))
            }
        }
    }

    /// Makes this rank's side on the device of a call if there is none, and fails if an earlier launch has failed.
    /// Returns the device on which the call runs. The call is the collective of the number `next`, or a message before
    /// that.
    pub(super) fn enter_device(
        &mut self,
        (home, next): (Home, u64),
        order: Order<'_>,
        background: &mut dyn Background,
    ) -> Result<Home> {
        let home = match order {
            Order::Stream(stream) if home != Home::Host && home != stream.home() => {
                return Err(Error::invalid_argument(format!(
                    "the buffers lie in {home}, and the stream is of {}",
                    stream.home()
                )));
            }
            Order::Stream(stream) => stream.home(),
            Order::Caller => home,
        };
        if let Some(side) = &self.device_side {
            if side.home != home {
                return Err(Error::invalid_usage(format!(
                    "this communicator works in {} since its first call on a device, and this call is for {home}: use a communicator \
                     for each device",
                    side.home
                )));
            }
            return side.fault(&self.session).map(|()| home);
        }
        device::of(home)?;
        let wait = self.given().meet_before(("the first call on the memory of a device", next), background)?;
        let sizes = self.session.settings.sizes;
        let meeting = Meeting::new(&self.session, home, self.mover.fabric.topology(), &wait)?;
        let order = (self.hosts(), self.host.chooser.layout());
        let found = channel_search::find(&self.session, order, meeting.devices(), &wait)?;
        let line_ways = line_ways::agree(&self.session, &meeting, home, &wait)?;
        let chooser = DeviceChooser::new(self.host.chooser.grounds(), found, meeting.is_partly_staged(), line_ways)?;
        let staging = StagingLayout {
            staged: Arc::clone(meeting.staged()),
            side: meeting.layout(),
            scratch_bytes: sizes.scratch_bytes,
            shape: sizes.shape,
            channels: chooser.channels(),
            led: meeting.is_led(),
        };
        let mut brought = meeting.allocate(home, &staging, self.session.settings.device_sharing)?;
        self.session.bootstrap.barrier(&wait)?;
        let stages = self.share_elsewhere(&meeting, &staging, &mut brought, background)?;
        let ready = meeting.take_in(home, &stages, &mut brought);
        let status = if meeting.is_led() {
            self.page_across((&meeting, home), (ready, &mut brought), &wait, background)?
        } else {
            meeting.status_page(&self.session, (home, ready), &wait)?
        };
        let has_wires = self.session.world.ranks().any(|rank| meeting.is_wired(rank));
        let mut side = Box::new(DeviceSide::new(&self.session, (meeting, chooser, staging), brought, (home, status))?);
        if has_wires {
            side.far.prepare(home)?;
        }
        self.device_side = Some(side);
        Ok(home)
    }

    /// Hands what this rank brings to ranks of other processes, and takes what they bring: into `brought` what lies on
    /// devices, and returns what is the host's.
    fn share_elsewhere(
        &mut self,
        meeting: &Meeting,
        staging: &StagingLayout,
        brought: &mut Brought,
        background: &mut dyn Background,
    ) -> Result<Vec<(Rank, HostRegion)>> {
        let elsewhere = meeting.elsewhere();
        let crossing = meeting.crossing().to_vec();
        if elsewhere.is_empty() && crossing.is_empty() {
            return Ok(Vec::new());
        }
        let (me, sharing) = (self.session.world.rank, self.session.settings.device_sharing);
        let shape = self.session.settings.sizes.shape;
        let queues = QueueMemory {
            sharing,
            usual: device_sharing::queue_bytes(shape, false)?,
            with_readers: device_sharing::queue_bytes(shape, true)?,
            readers: meeting.staged().reading_of(me).to_vec(),
            crossing: crossing.clone(),
        };
        let mine = brought.sides.get(&me).cloned().ok_or_else(|| Error::internal("a side without memory"))?;
        let reached = meeting.reached_elsewhere();
        let owners = |ranks: &[Rank], bytes: &dyn Fn(Rank) -> Result<usize>| {
            ranks.iter().map(|rank| Ok((*rank, bytes(*rank)?))).collect::<Result<Vec<(Rank, usize)>>>()
        };
        let sides = owners(&reached, &|rank| staging.device_bytes(rank))?;
        let far_sides = owners(&crossing, &|rank| staging.device_bytes(rank))?;
        let staged: Vec<Rank> = elsewhere.iter().copied().filter(|rank| staging.has(*rank)).collect();
        let stages = owners(&staged, &|rank| staging.host_bytes(rank))?;
        let stage = meeting.stage();
        let mut taken = Vec::new();
        self.given().set_up(WaitingFor::Anything, background, |fabric, setup| {
            let regions = fabric.share_with_processes(&mine, (&sides, queues), setup)?;
            brought.sides.extend(reached.iter().copied().zip(regions));
            let regions = fabric.share_with_hosts(&mine, &far_sides, setup)?;
            brought.sides.extend(crossing.iter().copied().zip(regions));
            taken = fabric.share_of_host(stage.as_ref(), (&stages, &elsewhere), setup)?;
            Ok(())
        })?;
        Ok(staged.into_iter().zip(taken).collect())
    }

    /// Waits for what streams still do for this communicator, and then says goodbye: after a goodbye, peers take this
    /// rank's part in anything for lost.
    ///
    /// # Errors
    /// That of a launch, which has ended the communicator.
    pub fn leave(&mut self) -> Result<()> {
        let ended = self.device_side.as_deref_mut().map_or(Ok(()), |side| {
            side.close();
            self.session.abort.check()
        });
        self.session.leave();
        ended
    }

    pub(super) fn side(&self) -> Result<&DeviceSide> {
        self.device_side.as_deref().ok_or_else(|| Error::internal("no side on a device"))
    }

    pub(super) fn side_mut(&mut self) -> Result<&mut DeviceSide> {
        self.device_side.as_deref_mut().ok_or_else(|| Error::internal("no side on a device"))
    }
}

impl DeviceSide {
    /// Waits until all launches on streams have ended, each within the time that it has, and until what they have sent
    /// to other hosts is on its way. What goes wrong ends the communicator. Nothing is launched after this.
    fn close(&mut self) {
        drop(self.monitor.take());
        self.far.close();
    }

    /// Makes a part that is captured keep the memory of connections, because its graph may outlive the communicator.
    pub(super) fn keep_by_graph(&self, part: &mut LaunchPart, captured: bool) {
        if captured {
            let near = self.queues.values().flat_map(|(_, memory)| memory.regions());
            part.keep.extend(near.chain(self.far.kept_by_graph()));
        }
    }

    /// Whether a rank works on this rank's device.
    pub(super) fn shares_device(&self, rank: Rank) -> bool {
        self.cohort.has(rank)
    }

    /// Puts one launch into the stream, together with those of the ranks on the same device. Returns its end.
    pub(super) fn launch_one(
        &self,
        me: Rank,
        (mut part, stream, captured): (LaunchPart, &DeviceStream, bool),
        turn: &mut dyn FnMut(&[Rank]) -> Result<()>,
    ) -> Result<Arc<dyn Event>> {
        self.keep_by_graph(&mut part, captured);
        self.cohort.launch(me, (part, stream), turn)
    }

    fn stream<'s>(&'s self, order: Order<'s>) -> &'s DeviceStream {
        match order {
            Order::Caller => &self.own_stream,
            Order::Stream(stream) => stream,
        }
    }

    /// The error of a launch that has ended early.
    fn fault(&self, session: &Session) -> Result<()> {
        fault(&self.status, session)
    }

    /// Hands a launch for which no call waits to the monitor's thread.
    fn watch_over(
        &mut self,
        session: &Arc<Session>,
        launch: (Launched, Arc<dyn Event>),
        attention: Option<Attention>,
        turn: &mut dyn FnMut(&dyn Waiting) -> Result<()>,
    ) -> Result<()> {
        let monitor = match &mut self.monitor {
            Some(monitor) => monitor,
            none => {
                let gpu = device::of(self.home)?.identity();
                none.insert(Monitor::start(Arc::clone(session), Arc::clone(&self.status), gpu)?)
            }
        };
        monitor.add(launch, attention, turn)
    }
}

/// The error that a status page reports, if any.
pub(super) fn fault(status: &StatusPage, session: &Session) -> Result<()> {
    match status.fault() {
        None => Ok(()),
        Some(device::LaunchFault::Aborted) => {
            session.abort.check()?;
            Err(Error::new(Kind::Aborted, "a launch of this communicator was aborted"))
        }
        Some(device::LaunchFault::Mismatch { peer, mine, theirs }) => {
            Err(session.history.mismatch(mine, Rank::new(peer), theirs))
        }
    }
}

impl Launched {
    /// The messages; none of a collective.
    pub(super) fn messages(&self) -> Vec<AwaitedMessage> {
        match self {
            Launched::Collective(_) => Vec::new(),
            Launched::Messages(messages) => messages.clone(),
        }
    }

    /// The collective; `Send` of messages.
    pub(super) fn collective(&self) -> Collective {
        match self {
            Launched::Collective(operation) => operation.collective,
            Launched::Messages(_) => Collective::Send,
        }
    }

    /// What a wait is for; `open` yields [`Launched::messages`].
    pub(super) fn waiting_for<'a>(&'a self, open: &'a dyn Fn() -> Vec<AwaitedMessage>) -> WaitingFor<'a> {
        match self {
            Launched::Collective(operation) => WaitingFor::Collective(operation),
            Launched::Messages(_) => WaitingFor::Messages(open),
        }
    }

    /// Its name in errors.
    pub(super) fn name(&self) -> String {
        match self {
            Launched::Collective(operation) => operation.to_string(),
            Launched::Messages(_) => "messages on a stream".to_owned(),
        }
    }
}

impl<'a> DeviceWait<'a> {
    fn new(context: WaitContext<'a>) -> DeviceWait<'a> {
        let backoff = Backoff::new(*context.turn.patience);
        DeviceWait { context, backoff, is_captured: false }
    }

    /// One turn of the wait.
    fn turn(&mut self, what: &dyn Waiting) -> Result<()> {
        match self.is_captured {
            true => self.context.without_hook().turn_or_nap(&mut self.backoff, what, LAUNCH_NAP),
            false => self.context.turn_or_nap(&mut self.backoff, what, LAUNCH_NAP),
        }
    }

    fn until(&mut self, event: &dyn Event) -> Result<()> {
        self.backoff = Backoff::new(*self.context.turn.patience);
        while !event.is_done()? {
            self.turn(&|| "its launch".to_owned())?;
        }
        Ok(())
    }
}

/// Waits for a launch, which is `told` to end, until `deadline`, and for [`END_PATIENCE`] at least. Nothing frees memory that the
/// launch uses: the device's queue keeps it. `meanwhile` is what this rank still does for others: one turn.
///
/// # Errors
/// [`Kind::Timeout`] where the launch does not end; those of the device.
pub(super) fn await_end(
    (event, told): (&dyn Event, Option<&StatusPage>),
    deadline: Deadline,
    meanwhile: &mut dyn FnMut() -> Result<()>,
) -> Result<()> {
    let (began, deadline) = (clock::now(), deadline.later(Deadline::after(END_PATIENCE)));
    let mut goes_on = true;
    while !event.is_done()? {
        // Again in each turn: the stream takes back the word that lets it go on, and may have more calls that wait.
        told.into_iter().for_each(crate::sync::Mirror::raise);
        if deadline.is_over() {
            return Err(Error::timeout(format!(
                "a launch has not ended {:.1} s after it was told to stop: the device may still use the buffers of the \
                 call, so free none of them",
                clock::now().duration_since(began).as_secs_f64()
            )));
        }
        // The call has failed already: what goes wrong here is no news.
        goes_on = goes_on && meanwhile().is_ok();
        futex::nap(LAUNCH_NAP);
    }
    Ok(())
}

#[cold]
fn on_this_device(missing: &[Rank]) -> String {
    let named: Vec<String> = missing.iter().map(|rank| format!("rank {rank}")).collect();
    format!("{} to call it too, on the same device (if one thread has several ranks, use a group)", named.join(", "))
}

/// How long a launch that was told to end may take, whatever time is left. It looks at the word some thousand times a
/// second; what is in the stream before it takes its time.
const END_PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);
/// How long a wait for a launch sleeps between two looks.
const LAUNCH_NAP: std::time::Duration = std::time::Duration::from_micros(200);
