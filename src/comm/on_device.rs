//! A communicator on the memory of devices: what its ranks share for that, and how a call becomes a launch.
//!
//! The first call makes the rank's [`DeviceSide`]: words and scratch in the memory of its device, which the other ranks' programs
//! reach. Every call after that is a [`LaunchPart`], which the cohort launches.

use std::collections::HashMap;
use std::sync::PoisonError;

use crate::comm::engine::Engine;
use crate::comm::failure_watch::FailureWatch;
use crate::comm::monitor::Monitor;
use crate::comm::peer_status::WaitingFor;
use crate::comm::session::Session;
use crate::device::records::{self, ControlLayout, LaunchPart, PeerMemory, Reduction, SlotQueue};
use crate::device::{self, Device, Event, Home, Region, Sharing, StatusPage};
use crate::error::{Error, Kind, Result};
use crate::exec::lower::{self, Lowered};
use crate::exec::{
    self, Background, Begun, Call, Cohort, DeviceStream, Last, Message, Operation, Order, Rendezvous, composed,
};
use crate::plan::{self, WINDOW_LANES, Windows};
use crate::sync::primitive::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use crate::sync::ring::{Label, Shape};
use crate::sync::{Backoff, Patience, Wait};
use crate::sys::{futex, random};
use crate::transport::{Channel, Need, Way};
use crate::types::{Collective, DataType, Elements, Rank, World};

/// What one rank has on its device for one communicator.
#[derive(Debug)]
pub(crate) struct DeviceSide {
    home: Home,
    /// What waits for the launches of streams, made with the first of them. Before what they use: it is dropped first.
    monitor: Option<Monitor>,
    /// For calls in the caller's order.
    own_stream: DeviceStream,
    shared: Arc<Shared>,
    cohort: Arc<Cohort>,
    peers: Arc<[PeerMemory]>,
    scratch: u64,
    status: Arc<StatusPage>,
    /// The ends of connections that are open.
    queues: HashMap<Need, SlotQueue>,
    /// The last launch of messages: they use the same connections, so that they follow each other.
    messages: Option<Last>,
}

/// What a launch is of, and so for whom it waits.
#[derive(Debug, Clone)]
pub(super) enum Launched {
    /// A collective, of all ranks.
    Collective(Operation),
    /// Messages with these ranks.
    Messages(Vec<Rank>),
}

/// What the ranks of a communicator, threads of one process, show each other.
#[derive(Debug)]
struct Shared {
    sides: Mutex<Vec<Option<ShownSide>>>,
    cohorts: Mutex<HashMap<Home, Arc<Cohort>>>,
    links: Mutex<HashMap<(Rank, Rank, Channel), LinkMemory>>,
    /// Where messages between ranks of one device meet.
    rendezvous: Rendezvous,
}

/// One rank's memory that programs of other ranks reach.
#[derive(Debug, Clone)]
struct ShownSide {
    home: Home,
    control: Region,
    scratch: Region,
}

/// The memory of a connection: its head is the sender's, its slots are the receiver's.
#[derive(Debug, Clone)]
struct LinkMemory {
    at_sender: Region,
    at_receiver: Region,
}

/// How a call on a device waits for its cohort and, in the caller's order, for its end.
struct DeviceWait<'a> {
    waiting_for: WaitingFor<'a>,
    patience: Patience,
}

impl DeviceSide {
    /// Makes this rank's side, together with all other ranks. `wait` bounds it.
    fn new(session: &Session, home: Home, scratch_bytes: usize, wait: &Wait) -> Result<DeviceSide> {
        let device = device::of(home)?;
        let world = session.world;
        let shared = Shared::meet(session, wait)?;
        let control = device.allocate(fits(layout(world.ranks().len()).bytes())?, Sharing::Threads)?;
        let scratch = device.allocate(scratch_bytes, Sharing::Threads)?;
        shared.sides()[world.rank.index()] = Some(ShownSide { home, control, scratch });
        session.bootstrap.barrier(wait)?;
        let sides: Vec<ShownSide> = shared.sides().iter().flatten().cloned().collect();
        let address = |region: &Region| region.base().addr().get() as u64;
        let shown = |side: &ShownSide| PeerMemory { control: address(&side.control), scratch: address(&side.scratch) };
        let peers: Arc<[PeerMemory]> = sides.iter().map(shown).collect();
        let members = world.ranks().filter(|rank| sides[rank.index()].home == home).collect();
        let cohort = Arc::clone(lock(&shared.cohorts).entry(home).or_insert_with(|| Arc::new(Cohort::new(members))));
        let status = Arc::new(StatusPage::new()?);
        session.abort.mirror(&status);
        Ok(DeviceSide {
            home,
            monitor: None,
            own_stream: DeviceStream::of(home, device.queue()?),
            scratch: peers[world.rank.index()].scratch,
            shared,
            cohort,
            peers,
            status,
            queues: HashMap::new(),
            messages: None,
        })
    }

    /// The ends of connections that a program names, opened where they are not open yet.
    fn open(&mut self, me: Rank, ends: &[Need], shape: Shape) -> Result<Vec<SlotQueue>> {
        let mut queues = Vec::with_capacity(ends.len());
        for end in ends {
            let queue = match self.queues.get(end) {
                Some(open) => *open,
                None => {
                    let opened = self.shared.link(me, *end, shape)?;
                    self.queues.insert(*end, opened);
                    opened
                }
            };
            queues.push(queue);
        }
        Ok(queues)
    }

    fn part(&self, me: Rank, lowered: &Lowered, (folding, labels): (Reduction, Vec<Label>)) -> LaunchPart {
        LaunchPart {
            records: Arc::clone(&lowered.records),
            folding,
            rank: me.get(),
            labels,
            bases: Vec::new(),
            layout: layout(self.peers.len()),
            peers: Arc::clone(&self.peers),
            queues: Vec::new(),
            status: Arc::clone(&self.status),
            keep: Vec::new(),
        }
    }
}

impl Shared {
    fn new(world: World) -> Shared {
        Shared {
            sides: Mutex::new(world.ranks().map(|_| None).collect()),
            cohorts: Mutex::default(),
            links: Mutex::default(),
            rendezvous: Rendezvous::default(),
        }
    }

    /// What the ranks share: rank 0 makes it, and the others find it in the process by a random number.
    fn meet(session: &Session, wait: &Wait) -> Result<Arc<Shared>> {
        let (world, bootstrap) = (session.world, &session.bootstrap);
        let root = Rank::new(0);
        if world.rank == root {
            let (shared, ticket) = (Arc::new(Shared::new(world)), random::bytes::<8>()?);
            meetings().insert(u64::from_le_bytes(ticket), Arc::downgrade(&shared));
            bootstrap.broadcast(root, &ticket, wait)?;
            // Everyone has looked.
            let found = bootstrap.all_gather(&[1], wait);
            meetings().remove(&u64::from_le_bytes(ticket));
            all_found(&found?)?;
            return Ok(shared);
        }
        let ticket = bootstrap.broadcast(root, &[], wait)?;
        let ticket: Option<[u8; 8]> = ticket.try_into().ok();
        let found = ticket.and_then(|ticket| meetings().get(&u64::from_le_bytes(ticket)).and_then(Weak::upgrade));
        all_found(&bootstrap.all_gather(&[u8::from(found.is_some())], wait)?)?;
        found.ok_or_else(|| Error::internal("the ranks' common memory is gone"))
    }

    fn sides(&self) -> MutexGuard<'_, Vec<Option<ShownSide>>> {
        lock(&self.sides)
    }

    /// This rank's end of a connection. Whoever of the two comes first allocates its memory.
    fn link(&self, me: Rank, end: Need, shape: Shape) -> Result<SlotQueue> {
        let (from, to) = if end.way == Way::Send { (me, end.peer) } else { (end.peer, me) };
        let mut links = lock(&self.links);
        let memory = match links.get(&(from, to, end.channel)) {
            Some(memory) => memory.clone(),
            None => {
                let made = self.allocate_link((from, to), shape)?;
                links.insert((from, to, end.channel), made.clone());
                made
            }
        };
        let address = |region: &Region, offset: u64| region.base().addr().get() as u64 + offset;
        let sends = end.way == Way::Send;
        Ok(SlotQueue {
            rank: from.get(),
            sends,
            slots: address(&memory.at_receiver, QUEUE_WORDS),
            count: shape.slots,
            payload: u64::from(shape.slot_bytes),
            tail: address(&memory.at_receiver, 0),
            head: address(&memory.at_sender, 0),
            mine: address(if sends { &memory.at_sender } else { &memory.at_receiver }, QUEUE_LINE),
        })
    }

    fn allocate_link(&self, (from, to): (Rank, Rank), shape: Shape) -> Result<LinkMemory> {
        let device = |rank: Rank| -> Result<&'static dyn Device> {
            let home = self.sides()[rank.index()].as_ref().map(|side| side.home);
            device::of(home.ok_or_else(|| Error::internal("a rank has no side"))?)
        };
        let slots = u64::from(shape.slots) * (records::SLOT_HEADER + u64::from(shape.slot_bytes));
        Ok(LinkMemory {
            at_sender: device(from)?.allocate(fits(QUEUE_WORDS)?, Sharing::Threads)?,
            at_receiver: device(to)?.allocate(fits(QUEUE_WORDS + slots)?, Sharing::Threads)?,
        })
    }
}

/// What ranks that make a [`Shared`] look it up in: threads of one process have nothing else in common. Its keys are random, and an
/// entry is there for the length of one set-up.
fn meetings() -> MutexGuard<'static, HashMap<u64, Weak<Shared>>> {
    static MEETINGS: OnceLock<Mutex<HashMap<u64, Weak<Shared>>>> = OnceLock::new();
    lock(MEETINGS.get_or_init(Mutex::default))
}

/// The data behind these locks is whole after every statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn all_found(found: &[Vec<u8>]) -> Result<()> {
    let other = found.iter().position(|found| found != &[1]);
    other.map_or(Ok(()), |rank| {
        Err(Error::invalid_usage(format!(
            "rank {rank} is in another process than rank 0: the ranks of a call on the memory of devices must be threads of one process"
        )))
    })
}

fn layout(ranks: usize) -> ControlLayout {
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    ControlLayout { ranks: number(ranks), lanes: number(WINDOW_LANES) }
}

fn fits(bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(|_| Error::invalid_argument(format!("{bytes} bytes do not fit the address space")))
}

/// Words of a connection at each end: what the other end raises, and how far this end is, each in a line of its own.
const QUEUE_WORDS: u64 = 2 * QUEUE_LINE;
const QUEUE_LINE: u64 = 64;

impl Engine {
    /// Runs a collective whose buffers live on a device, in its order.
    #[cold]
    pub(super) fn run_on_device(
        &mut self,
        begun: Begun<'_>,
        order: Order<'_>,
        beside: &mut dyn Background,
    ) -> Result<()> {
        let Begun { call, operation, world, .. } = begun;
        let home = self.enter_device(call.buffers.home(), order, beside)?;
        if matches!(call.collective, Collective::GatherV | Collective::ScatterV) {
            let messages = composed::blocks(call, world).into_iter().map(|message| message.in_home(home)).collect();
            return self.launch_messages(messages, operation, order);
        }
        let (input, output) = call.buffers.places();
        let bases = [input, output].map(|place| place.addr() as u64);
        let Some(lowered) = self.device_program(call)? else { return Ok(()) };
        let folding = Reduction { data_type: call.data_type, op: call.op, world: world.size };
        let shape = self.session.settings.sizes.shape;
        let side = self.side_mut()?;
        let mut part = side.part(world.rank, &lowered, (folding, vec![operation.label()]));
        part.bases = vec![bases[0], bases[1], side.scratch];
        part.keep = call.buffers.kept();
        part.queues = side.open(world.rank, &lowered.ends, shape)?;
        self.launch_collective(part, operation, order)
    }

    /// The records of a call; `None` where there is nothing to do.
    fn device_program(&mut self, call: &Call<'_>) -> Result<Option<Lowered>> {
        let world = self.session.world;
        if world.size == 1 {
            if call.collective == Collective::Exscan {
                return Ok(None);
            }
            let (input, output) = call.lengths(world)?;
            let lane = plan::copy_lane(input.min(output));
            return Ok(lane.map(|lane| lower::plan(&[lane], Windows::None)));
        }
        if matches!(call.collective, Collective::Scan | Collective::Exscan) {
            let (sizes, exclusive) = (&self.session.settings.sizes, call.collective == Collective::Exscan);
            let size = u64::from(call.data_type.size());
            let count = Elements(call.count.of(world.rank));
            let room = (u64::from(sizes.shape.slot_bytes)).min(sizes.scratch_bytes as u64) / size;
            let lane = plan::scan_lane(world, exclusive, count, Elements(room));
            return Ok((count.0 > 0).then(|| lower::plan(&[lane], Windows::None)));
        }
        let program = self.chooser.device_program(call)?;
        Ok(Some(program.lowered().clone()))
    }

    /// Messages of device memory, in their order. What this rank has for itself is copied.
    #[cold]
    pub(super) fn device_messages(
        &mut self,
        messages: Vec<Message<'_>>,
        collective: Option<Operation>,
        order: Order<'_>,
    ) -> Result<()> {
        let home = messages.iter().map(Message::home).find(|home| *home != Home::Host).unwrap_or(Home::Host);
        if let Some(other) = messages.iter().find(|message| message.count() > 0 && message.home() != home) {
            return Err(Error::invalid_argument(format!(
                "messages of {home} and of {} in one call: give all in one memory",
                other.home()
            )));
        }
        let home = self.enter_device(home, order, &mut exec::NoBackground)?;
        let messages = messages.into_iter().map(|message| message.in_home(home)).collect();
        match collective {
            Some(operation) => self.launch_messages(messages, &operation, order),
            None => self.launch_singles(messages, order),
        }
    }

    /// Launches the messages of a collective, which all ranks call, together with those of the other ranks.
    fn launch_messages(&mut self, messages: Vec<Message<'_>>, operation: &Operation, order: Order<'_>) -> Result<()> {
        exec::check_to_self(self.session.world.rank, &messages)?;
        let channel = match operation.collective {
            Collective::GatherV | Collective::ScatterV => Channel::Collective(0),
            _ => Channel::PointToPoint,
        };
        let of_message = |message: &Message<'_>| Operation {
            data_type: message.data_type(),
            op: None,
            root: None,
            count: message.count(),
            ..*operation
        };
        let labels = messages.iter().map(|message| of_message(message).label()).collect();
        let part = self.message_part((&messages, labels), channel)?;
        self.launch_collective(part, operation, order)
    }

    /// Launches sends and recvs: those between ranks of this device meet on the host, the others go through slots.
    fn launch_singles(&mut self, messages: Vec<Message<'_>>, order: Order<'_>) -> Result<()> {
        let me = self.session.world.rank;
        exec::check_to_self(me, &messages)?;
        let peers: Vec<Rank> = messages.iter().map(Message::peer).filter(|peer| *peer != me).collect();
        let label = |message: &Message<'_>| {
            let sequence = self.number_message(message);
            let (data_type, count) = (message.data_type(), message.count());
            Operation { collective: Collective::Send, data_type, op: None, root: None, count, sequence, past: 0 }
                .label()
        };
        let labels: Vec<Label> = messages.iter().map(label).collect();
        let (mut ends, mut others, mut others_labels) = (Vec::new(), Vec::new(), Vec::new());
        for (message, label) in messages.into_iter().zip(labels) {
            if self.side_mut()?.shares_device(message.peer()) {
                ends.push(message.end(label));
            } else {
                others.push(message);
                others_labels.push(label);
            }
        }
        // What goes to other devices is put first: it waits there, and not on the host, so that all ranks come to their meetings.
        let through_slots = match others.is_empty() {
            true => None,
            false => Some(self.message_part((&others, others_labels), Channel::PointToPoint)?),
        };
        let blank = self.message_part((&[], Vec::new()), Channel::PointToPoint)?;
        self.launch(&Launched::Messages(peers), order, |side, stream, turn| {
            through_slots.map_or(Ok(()), |part| exec::launch_alone(part, stream, &mut side.messages))?;
            side.shared.rendezvous.meet((me, blank), ends, stream, turn)
        })
    }

    /// This rank's part of a launch of messages through slots.
    fn message_part(
        &mut self,
        (messages, labels): (&[Message<'_>], Vec<Label>),
        channel: Channel,
    ) -> Result<LaunchPart> {
        let (me, shape) = (self.session.world.rank, self.session.settings.sizes.shape);
        let folding = Reduction { data_type: DataType::U8, op: None, world: self.session.world.size };
        let lowered = lower::messages(messages, me, (channel, u64::from(shape.slot_bytes)));
        let side = self.side_mut()?;
        let mut part = side.part(me, &lowered, (folding, labels));
        part.bases =
            [0; records::FIRST_MESSAGE as usize].into_iter().chain(messages.iter().map(Message::address)).collect();
        part.queues = side.open(me, &lowered.ends, shape)?;
        part.keep = messages.iter().filter_map(Message::kept).collect();
        Ok(part)
    }

    /// Launches this rank's part of a collective together with those of its cohort.
    fn launch_collective(&mut self, part: LaunchPart, operation: &Operation, order: Order<'_>) -> Result<()> {
        let me = self.session.world.rank;
        self.launch(&Launched::Collective(*operation), order, |side, stream, turn| {
            side.cohort.launch(me, (part, stream), turn)
        })
    }

    /// Has `put` put work into the stream, which may wait on the host for other ranks: it is given one turn of that wait. In the caller's
    /// order: waits until the work has run.
    fn launch(
        &mut self,
        launched: &Launched,
        order: Order<'_>,
        put: impl FnOnce(&mut DeviceSide, &DeviceStream, &mut dyn FnMut(&[Rank]) -> Result<()>) -> Result<()>,
    ) -> Result<()> {
        let session = Arc::clone(&self.session);
        let peers = || launched.peers();
        let wait = DeviceWait { waiting_for: launched.waiting_for(&peers), patience: self.patience() };
        let side = self.side_mut()?;
        let stream = side.stream(order).clone();
        if matches!(order, Order::Caller) {
            stream.check_runs()?;
        }
        let mut watch = FailureWatch::new(&session, wait.waiting_for);
        let mut backoff = Backoff::new(wait.patience);
        let mut turn = |missing: &[Rank]| wait.turn(&mut watch, &mut backoff, &|| on_this_device(missing));
        let is_put = put(side, &stream, &mut turn);
        if let (Err(error), Order::Caller) = (&is_put, order) {
            // Messages that other ranks have moved must not touch the caller's memory when this call has returned.
            let error = error.duplicate();
            return stream.record().and_then(|event| wait.out(&*event)).and(Err(error));
        }
        is_put?;
        let event = stream.record()?;
        match order {
            // What is captured runs later, and as often as the program likes: nothing to wait for.
            Order::Stream(_) if stream.capture()?.is_some() => Ok(()),
            Order::Stream(_) => side.watch_over(&session, launched.clone(), event),
            Order::Caller => {
                let mut backoff = Backoff::new(wait.patience);
                let ended = wait.until(&*event, &mut watch, &mut backoff);
                if ended.is_err() {
                    // The launch must not touch the caller's memory when this call has returned.
                    crate::sync::Mirror::raise(&*side.status);
                    wait.out(&*event)?;
                }
                side.fault(&session).and(ended)
            }
        }
    }

    /// Sees to it that this rank has a side on the device of a call, and that no launch has failed. Where the call runs.
    fn enter_device(&mut self, home: Home, order: Order<'_>, beside: &mut dyn Background) -> Result<Home> {
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
        let wait = self.meet("the first call on the memory of a device", beside)?;
        let scratch_bytes = self.session.settings.sizes.scratch_bytes;
        self.device_side = Some(Box::new(DeviceSide::new(&self.session, home, scratch_bytes, &wait)?));
        Ok(home)
    }

    fn side_mut(&mut self) -> Result<&mut DeviceSide> {
        self.device_side.as_deref_mut().ok_or_else(|| Error::internal("no side on a device"))
    }
}

impl DeviceSide {
    /// Whether a rank works on this rank's device.
    fn shares_device(&self, rank: Rank) -> bool {
        self.cohort.has(rank)
    }

    fn stream<'s>(&'s self, order: Order<'s>) -> &'s DeviceStream {
        match order {
            Order::Caller => &self.own_stream,
            Order::Stream(stream) => stream,
        }
    }

    /// The error of a launch that has ended before its time.
    fn fault(&self, session: &Session) -> Result<()> {
        fault(&self.status, session)
    }

    /// Lets a thread look after a launch for which no call waits.
    fn watch_over(&mut self, session: &Arc<Session>, launched: Launched, event: Arc<dyn Event>) -> Result<()> {
        let monitor = match &mut self.monitor {
            Some(monitor) => monitor,
            none => none.insert(Monitor::start(Arc::clone(session), Arc::clone(&self.status))?),
        };
        monitor.add(launched, event);
        Ok(())
    }
}

/// The error that a status page tells, if it does.
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
    /// The ranks of the messages; none of a collective.
    pub(super) fn peers(&self) -> Vec<Rank> {
        match self {
            Launched::Collective(_) => Vec::new(),
            Launched::Messages(peers) => peers.clone(),
        }
    }

    /// For whom a wait is; `peers` are [`Launched::peers`].
    pub(super) fn waiting_for<'a>(&'a self, peers: &'a dyn Fn() -> Vec<Rank>) -> WaitingFor<'a> {
        match self {
            Launched::Collective(operation) => WaitingFor::Collective(operation),
            Launched::Messages(_) => WaitingFor::Messages(peers),
        }
    }

    /// What it is called in errors.
    pub(super) fn name(&self) -> String {
        match self {
            Launched::Collective(operation) => operation.to_string(),
            Launched::Messages(_) => "messages on a stream".to_owned(),
        }
    }
}

impl DeviceWait<'_> {
    fn turn(&self, watch: &mut FailureWatch<'_>, backoff: &mut Backoff, what: &dyn Fn() -> String) -> Result<()> {
        if let Some(slice) = backoff.turn(watch, what)? {
            futex::nap(slice.min(LAUNCH_NAP));
        }
        Ok(())
    }

    fn until(&self, event: &dyn Event, watch: &mut FailureWatch<'_>, backoff: &mut Backoff) -> Result<()> {
        while !event.is_done()? {
            self.turn(watch, backoff, &|| "its launch".to_owned())?;
        }
        Ok(())
    }

    /// Waits for a launch that has been told to end.
    fn out(&self, event: &dyn Event) -> Result<()> {
        while !event.is_done()? {
            futex::nap(LAUNCH_NAP);
        }
        Ok(())
    }
}

#[cold]
fn on_this_device(missing: &[Rank]) -> String {
    let named: Vec<String> = missing.iter().map(|rank| format!("rank {rank}")).collect();
    format!("{} to call it too, on the same device (if one thread has several ranks, use a group)", named.join(", "))
}

/// How long a wait for a launch sleeps between two looks.
const LAUNCH_NAP: std::time::Duration = std::time::Duration::from_micros(200);
