//! How the ranks of a communicator share memory of their devices: in one process by a table, between processes by
//! handing memory over.
//!
//! Every rank has one piece of memory on its device, laid out by [`SideLayout`], in which the launches of other ranks
//! write and read; and, if some of those do not reach it, one of the host's ([`StagingLayout`]). An address is valid in
//! one process only, so each process finds its own address for the memory of each peer.

use std::collections::HashMap;

use crate::device::records::{ControlLayout, PeerMemory, SlotQueue};
use crate::device::{self, DeviceIdentity, DeviceRanks, Home, HostRegion, Region, Sharing, StatusPage, lines};
use crate::error::{Error, Result};
use crate::exec::{Cohort, Rendezvous};
use crate::log;
use crate::plan::{MOST_CHANNELS, WINDOW_LANES};
use crate::reach::crossings::Crossings;
use crate::reach::device_ways::{self, Known};
use crate::reach::sharers::Sharers;
use crate::reach::staging::{Staged, StagingLayout};
use crate::session::Session;
use crate::sync::Wait;
use crate::sync::primitive::{Arc, Mutex, MutexGuard, Weak};
use crate::sync::ring::Shape;
use crate::sys::fork::PerProcess;
use crate::sys::random;
use crate::topo::Topology;
use crate::topo::reach::ladder::LeavesBy;
use crate::transport::{Channel, ConnectionMemory, Need, QueueBytes, QueuePart, Way, process_token};
use crate::types::{Rank, World};
use crate::wire::{self, Reader, Writer};

/// What the ranks of this process share, and which ranks those are.
#[derive(Debug)]
pub struct Meeting {
    shared: Arc<Shared>,
    /// The process of each rank.
    processes: Vec<u64>,
    /// The device of each rank.
    devices: Vec<DeviceIdentity>,
    /// Of each rank: the number of the ranks with which it can share memory, on its host.
    hosts: Vec<usize>,
    staged: Arc<Staged>,
    /// Which ranks of other hosts reach each other's memory.
    crossings: Crossings,
    sharers: Sharers,
    /// Of each rank: whether it has `NCCL_P2P_DIRECT_DISABLE=1`.
    without_pointers: Vec<bool>,
    world: World,
}

/// What the ranks of a communicator that are threads of one process show each other.
#[derive(Debug, Default)]
struct Shared {
    sides: Mutex<HashMap<Rank, Region>>,
    /// Memory of the host, of the ranks that some peers do not reach.
    stages: Mutex<HashMap<Rank, HostRegion>>,
    cohorts: Mutex<HashMap<Home, Arc<Cohort>>>,
    /// The queues of connections inside this process, by sender, receiver and channel.
    queues: Mutex<HashMap<(Rank, Rank, Channel, QueuePart), Region>>,
    /// Where messages between ranks of one device meet.
    rendezvous: Rendezvous,
    /// Memory that is being registered, by the window's number and its rank.
    windows: Mutex<HashMap<(u32, Rank), Region>>,
    /// The status pages of the ranks on each device, where a process leads on each.
    pages: Mutex<HashMap<Home, HostRegion>>,
}

/// What a rank tells all others when they first meet on devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    pub process: u64,
    /// The key under which threads of one process find what they share.
    ticket: u64,
    pub device: DeviceIdentity,
    /// Whether it may be shared with other processes: [`crate::device::Device::runs_processes_together`], or
    /// `RSCCL_COHORT=split`.
    pub together: bool,
    pub(super) leaves_by: LeavesBy,
    /// `NCCL_P2P_DIRECT_DISABLE`
    pub(super) without_pointers: bool,
}

/// The layout of the memory that a rank shares: control words, the words of its sending ends, scratch.
#[derive(Debug, Clone, Copy)]
pub struct SideLayout {
    pub ranks: u32,
}

/// The memory of all ranks, as this rank's device addresses it; 0 where it has no address.
#[derive(Debug)]
pub struct Addresses {
    /// On their devices.
    sides: Vec<u64>,
    /// The host's.
    stages: Vec<u64>,
}

/// What this rank and the ranks of other processes have brought, and keeps it: see [`Meeting::addresses`].
#[derive(Debug, Default)]
pub struct Brought {
    /// On devices, by rank; of ranks of this process too whose pointers this rank does not use, or who lend it some.
    pub sides: HashMap<Rank, Region>,
    /// Of the host's memory, by rank; of this process's ranks too, as this rank's device addresses it.
    pub stages: HashMap<Rank, Region>,
    /// The status pages of the ranks on this rank's device, as it addresses them, where a process leads there.
    pub pages: Option<Region>,
}

/// The entry of a rank in the table of its process. It lives as long as one meeting.
struct Entry(u64);

impl Meeting {
    /// Meets the other ranks of the communicator, each of which brings its device. `topology` says which of them can
    /// share memory. Collective.
    ///
    /// # Errors
    /// Of a rank that does not come.
    pub fn new(session: &Session, home: Home, topology: &Topology, wait: &Wait) -> Result<Meeting> {
        let device = device::of(home)?;
        let (world, bootstrap) = (session.world, &session.bootstrap);
        let shared = Arc::new(Shared::default());
        let entry = Entry::new(&shared)?;
        let (process, identity) = (process_token()?, device.identity());
        // The user may say that it is worth the turns.
        let together = device.runs_processes_together() || session.settings.split_cohorts;
        let leaves_by = match (session.settings.device_sharing, device.has_descriptors()) {
            (Sharing::ProcessesByHandle, _) => LeavesBy::HandleBySetting,
            (_, true) => LeavesBy::Descriptor,
            (_, false) => LeavesBy::HandleByDevice,
        };
        let without_pointers = session.settings.ways.no_pointers;
        let mine = Facts { process, ticket: entry.0, device: identity, together, leaves_by, without_pointers };
        let told = bootstrap.all_gather(&mine.encode(), wait)?;
        let facts = world.ranks().zip(&told).map(|(rank, bytes)| Facts::decode(rank, bytes));
        let facts: Vec<Facts> = facts.collect::<Result<_>>()?;
        let mut hosts = vec![0; facts.len()];
        for (number, ranks) in topology.hosts().iter().enumerate() {
            ranks.iter().for_each(|rank| hosts[rank.index()] = number);
        }
        let sharers = Sharers::of(&facts, topology.hosts().len() > 1);
        if let Sharers::Turns(one, other) = sharers
            && [one, other].contains(&world.rank)
        {
            log::warn!(
                Init @ world.rank,
                "ranks {one} and {other} are processes that share a GPU, which runs the work of one process at a time, and some ranks \
                 share no memory: calls wait for each other's turns; give each process a GPU of its own, make its ranks threads of one \
                 process, or start NVIDIA's MPS and set RSCCL_COHORT=split"
            );
        }
        let first = facts.iter().find(|facts| facts.process == process).map_or(entry.0, |facts| facts.ticket);
        let found = meetings().get(&first).and_then(Weak::upgrade);
        let devices: Vec<DeviceIdentity> = facts.iter().map(|facts| facts.device).collect();
        let crossings = Crossings::find(session, home, (&devices, &hosts), wait)?;
        // Entries stay in the table until every rank has looked, and told what it reaches.
        let known = Known { facts: &facts, hosts: &hosts, crossings: &crossings };
        let staged = Arc::new(device_ways::agree(session, home, known, wait)?);
        let shared = found.ok_or_else(|| Error::internal("what the ranks of this process share is gone"))?;
        let processes = facts.iter().map(|facts| facts.process).collect();
        let without_pointers = facts.iter().map(|facts| facts.without_pointers).collect();
        Ok(Meeting { shared, processes, devices, hosts, staged, crossings, sharers, without_pointers, world })
    }

    /// The devices of all ranks, in rank order.
    pub fn devices(&self) -> &[DeviceIdentity] {
        &self.devices
    }

    /// Whether `rank` is a thread of this process.
    pub fn is_here(&self, rank: Rank) -> bool {
        self.processes[rank.index()] == self.processes[self.world.rank.index()]
    }

    /// Whether a process has several devices whose ranks do not use each other's pointers: no rank works in another's
    /// buffers then. The same on all ranks.
    pub fn is_without_pointers(&self) -> bool {
        let ranks = 0..self.devices.len();
        let is_apart = |one: usize, other: usize| {
            self.processes[one] == self.processes[other] && self.devices[one] != self.devices[other]
        };
        ranks
            .clone()
            .filter(|one| self.without_pointers[*one])
            .any(|one| ranks.clone().any(|other| is_apart(one, other)))
    }

    /// Whether this rank imports the memory of `rank`, which is of its process, as it would another process's.
    fn imports(&self, rank: Rank) -> bool {
        let me = self.world.rank;
        let without_pointers = self.without_pointers[me.index()] || self.without_pointers[rank.index()];
        let is_near = self.is_here(rank) && !self.is_far(rank) && !self.staged.parts(me, rank);
        without_pointers && is_near && self.devices[me.index()] != self.devices[rank.index()]
    }

    /// Memory of a rank of this process, as this rank's device has it.
    fn imported(&self, home: Home, memory: &Region) -> Result<Region> {
        let descriptor = device::of(memory.home())?.export(memory)?;
        device::of(home)?.import(descriptor, memory.bytes())
    }

    /// Whether calls work in all ranks' buffers as they are: those of threads of this process on one device. Their
    /// addresses mean nothing in another process; and a program's own memory of one device is reached from another only
    /// where the program has allowed it, as it has not for memory of pools.
    pub fn works_in_place(&self) -> bool {
        self.is_one() && !self.staged.is_any()
    }

    /// Whether all ranks are threads of one process on one device.
    fn is_one(&self) -> bool {
        self.is_one_device() && self.processes.iter().all(|process| *process == self.processes[0])
    }

    fn is_one_device(&self) -> bool {
        !self.has_far() && self.devices.iter().all(|device| *device == self.devices[0])
    }

    /// The ranks of other processes of this host, in order.
    pub fn elsewhere(&self) -> Vec<Rank> {
        self.world.ranks().filter(|rank| !self.is_here(*rank) && !self.is_far(*rank)).collect()
    }

    /// Whether the programs of ranks wait for each other on devices: else one launch does the work of all. The same on
    /// all ranks.
    pub(super) fn waits_on_devices(&self, session: &Session) -> bool {
        match self.sharers {
            Sharers::Led => !self.is_one_device(),
            Sharers::Beside | Sharers::Turns(..) => {
                self.world.size > 1 && (!self.is_one() || session.settings.split_cohorts)
            }
        }
    }

    /// Whether this rank and `rank` share no memory of a host, most often because they are on different ones: they send
    /// each other all they have.
    pub fn is_far(&self, rank: Rank) -> bool {
        self.hosts[rank.index()] != self.hosts[self.world.rank.index()]
    }

    /// Whether this rank and `rank` send each other all they have over the network.
    pub fn is_wired(&self, rank: Rank) -> bool {
        self.is_far(rank) && !self.crossings.joins(self.world.rank, rank)
    }

    /// The [far](Meeting::is_far) ranks with which this rank has queues in the memory of devices all the same, in order.
    pub fn crossing(&self) -> &[Rank] {
        self.crossings.peers_of(self.world.rank)
    }

    /// Whether some rank is [far](Meeting::is_far): the same on all ranks.
    pub fn has_far(&self) -> bool {
        self.hosts.iter().any(|host| *host != self.hosts[0])
    }

    /// Whether several processes share a device, and one process of each device launches collectives for all ranks
    /// there. The same on all ranks.
    pub fn is_led(&self) -> bool {
        self.sharers == Sharers::Led
    }

    /// The ranks on this rank's device, by their processes.
    pub fn device_ranks(&self) -> DeviceRanks {
        let me = self.world.rank;
        let is_here = |rank: &Rank| !self.is_far(*rank) && self.devices[rank.index()] == self.devices[me.index()];
        let ranks: Vec<Rank> = self.world.ranks().filter(is_here).collect();
        let lowest = |rank: &Rank| {
            let process = self.processes[rank.index()];
            ranks.iter().position(|other| self.processes[other.index()] == process).unwrap_or_default()
        };
        DeviceRanks {
            me: ranks.iter().position(|rank| *rank == me).unwrap_or_default(),
            first: ranks.iter().map(lowest).collect(),
            ranks: ranks.iter().map(|rank| rank.get()).collect(),
            waits: !self.is_one_device(),
        }
    }

    /// The status pages of the ranks on a device, which the lowest of them in this process leaves for the others.
    pub fn pages(&self) -> MutexGuard<'_, HashMap<Home, HostRegion>> {
        self.shared.pages.lock()
    }

    /// Which ranks do not reach each other's memory.
    pub fn staged(&self) -> &Arc<Staged> {
        &self.staged
    }

    /// Whether some ranks of different devices reach each other's memory, and some do not.
    pub fn is_partly_staged(&self) -> bool {
        let of = |rank: Rank| (self.hosts[rank.index()], self.devices[rank.index()]);
        self.staged.is_partial(|rank, other| of(rank) == of(other) || of(rank).0 != of(other).0)
    }

    /// The ranks of other processes with which this one works in the memory of devices.
    pub fn reached_elsewhere(&self) -> Vec<Rank> {
        let me = self.world.rank;
        self.elsewhere().into_iter().filter(|peer| !self.staged.parts(me, *peer)).collect()
    }

    /// Allocates what this rank brings, zeroed: on its device, and of the host's memory where it has peers that do not
    /// reach the device's. Enters it into the tables of its process. `sharing` is for ranks of other processes.
    ///
    /// # Errors
    /// Where there is no such memory.
    pub fn allocate(&self, home: Home, layout: &StagingLayout, sharing: Sharing) -> Result<Brought> {
        let me = self.world.rank;
        let is_shared = !self.reached_elsewhere().is_empty() || self.world.ranks().any(|rank| self.imports(rank));
        let sharing = match (self.crossing().is_empty(), is_shared) {
            (false, _) => Sharing::Hosts,
            (true, true) => sharing,
            (true, false) => Sharing::Threads,
        };
        let side = device::of(home)?.allocate(layout.device_bytes(me)?, sharing)?;
        let bytes = layout.host_bytes(me)?;
        if bytes > 0 {
            let sharing = if self.elsewhere().is_empty() { Sharing::Threads } else { Sharing::Processes };
            let stage = device::of(home)?.memory_of_host(bytes, sharing)?;
            self.shared.stages.lock().insert(me, stage);
        }
        self.shared.sides.lock().insert(me, side.clone());
        Ok(Brought { sides: HashMap::from([(me, side)]), stages: HashMap::new(), pages: None })
    }

    /// The layout of every rank's memory.
    pub fn layout(&self) -> SideLayout {
        SideLayout { ranks: self.world.size }
    }

    /// Leaves a rank's memory of a window for the ranks of this process.
    pub fn leave_window(&self, of: (u32, Rank), memory: &Region) {
        self.shared.windows.lock().insert(of, memory.clone());
    }

    /// The memory that a rank of this process has left.
    pub fn window(&self, of: (u32, Rank)) -> Option<Region> {
        self.shared.windows.lock().get(&of).cloned()
    }

    /// Takes away what [`Meeting::leave_window`] has left.
    pub fn take_window(&self, of: (u32, Rank)) {
        self.shared.windows.lock().remove(&of);
    }

    /// What this rank brings of the host's memory.
    pub fn stage(&self) -> Option<HostRegion> {
        self.shared.stages.lock().get(&self.world.rank).cloned()
    }

    /// Takes in the host's memory that ranks of this process and of others have brought, for the work of this device,
    /// and imports that of ranks of this process whose pointers it does not use. All ranks of this process must have
    /// allocated theirs.
    ///
    /// # Errors
    /// Where the device cannot work in it.
    pub fn take_in(&self, home: Home, elsewhere: &[(Rank, HostRegion)], brought: &mut Brought) -> Result<()> {
        let mut stages: Vec<(Rank, HostRegion)> =
            self.shared.stages.lock().iter().map(|(rank, stage)| (*rank, stage.clone())).collect();
        stages.extend(elsewhere.iter().cloned());
        for (rank, stage) in stages {
            brought.stages.insert(rank, device::of(home)?.take_in(&stage)?);
        }
        let is_lent = |rank: Rank| self.is_here(rank) && self.staged.works_on(self.world.rank, rank);
        for rank in self.world.ranks().filter(|rank| self.imports(*rank) || is_lent(*rank)) {
            let side = self.shared.sides.lock().get(&rank).cloned();
            let side = side.ok_or_else(|| Error::internal(format!("rank {rank} has left no memory")))?;
            // What a rank lends is kept like this rank's own, also by graphs that outlive the communicators.
            brought.sides.insert(rank, if self.imports(rank) { self.imported(home, &side)? } else { side });
        }
        Ok(())
    }

    /// Every rank's memory as this rank's device addresses it, and the part of it that the ranks' programs use. All ranks
    /// of this process must have allocated theirs; `brought` has the memory of other processes.
    ///
    /// # Errors
    /// Where some is missing.
    pub fn addresses(&self, brought: &Brought) -> Result<(Addresses, Arc<[PeerMemory]>)> {
        let (layout, sides) = (self.layout(), self.shared.sides.lock());
        let me = self.world.rank;
        let missing = |rank: Rank| Error::internal(format!("rank {rank} has no memory for work on devices"));
        let mut addresses = Addresses { sides: Vec::new(), stages: Vec::new() };
        let mut peers = Vec::new();
        for rank in self.world.ranks() {
            let side = if self.staged.parts(me, rank) || self.is_wired(rank) {
                0
            } else {
                let side = brought.sides.get(&rank).or_else(|| sides.get(&rank));
                address(side.ok_or_else(|| missing(rank))?, 0)
            };
            let stage = if self.staged.peers_of(rank).is_empty() || self.is_far(rank) {
                0
            } else {
                address(brought.stages.get(&rank).ok_or_else(|| missing(rank))?, 0)
            };
            let control = if stage == 0 { side } else { stage };
            peers.push(PeerMemory { control, scratch: control + layout.scratch() });
            addresses.sides.push(side);
            addresses.stages.push(stage);
        }
        Ok((addresses, peers.into()))
    }

    /// The page by which this rank's launches and the host inform each other. If ranks wait for each other on devices,
    /// all of them find out together whether their devices can do that: `ready` is what came of the steps before. All
    /// must have allocated their memory.
    ///
    /// # Errors
    /// That of `ready`; where a device has no room for more ranks.
    pub fn status_page(&self, session: &Session, (home, ready): (Home, Result<()>), wait: &Wait) -> Result<StatusPage> {
        let (reached, beside) = self.homes_here();
        let is_one_device =
            reached.iter().chain(&beside).all(|other| *other == home) && self.elsewhere().is_empty() && !self.has_far();
        if self.world.size == 1 || (is_one_device && !session.settings.split_cohorts) {
            return ready.and_then(|()| StatusPage::new());
        }
        let page = ready.and_then(|()| device::of(home)?.page_for(&reached, &beside));
        self.agree(session, (page, "with ranks on other devices"), wait)
    }

    /// Whether all ranks can work together: each says what it has made, or why it could not. Collective.
    ///
    /// # Errors
    /// This rank's own; of the first rank that could not.
    pub fn agree<T>(&self, session: &Session, (made, with): (Result<T>, &str), wait: &Wait) -> Result<T> {
        let reason = made.as_ref().err().map_or("", |error| wire::cut(error.message(), MOST_REASON_BYTES));
        let reasons = session.bootstrap.all_gather(reason.as_bytes(), wait)?;
        let made = made?;
        match self.world.ranks().zip(&reasons).find(|(_, reason)| !reason.is_empty()) {
            None => Ok(made),
            Some((rank, reason)) => {
                Err(Error::remote(rank, format!("rank {rank} cannot work {with}: {}", String::from_utf8_lossy(reason))))
            }
        }
    }

    /// The devices of this process's ranks: those whose memory this rank reaches, and the others.
    pub fn homes_here(&self) -> (Vec<Home>, Vec<Home>) {
        let sides = self.shared.sides.lock();
        let homes = |staged: bool| {
            let is_kind = move |rank: &Rank| self.staged.parts(self.world.rank, *rank) == staged && !self.is_far(*rank);
            sides.iter().filter(|(rank, _)| is_kind(rank)).map(|(_, side)| side.home()).collect()
        };
        (homes(false), homes(true))
    }

    /// The devices of this process on which ranks work.
    pub fn all_homes_here(&self) -> Vec<Home> {
        let (reached, beside) = self.homes_here();
        [reached, beside].concat()
    }

    /// The ranks of this process that work in `home`, which launch together. All have allocated their memory.
    pub fn cohort(&self, home: Home) -> Arc<Cohort> {
        let sides = self.shared.sides.lock();
        let mut members: Vec<Rank> =
            sides.iter().filter(|(_, side)| side.home() == home).map(|(rank, _)| *rank).collect();
        members.sort_unstable();
        Arc::clone(self.shared.cohorts.lock().entry(home).or_insert_with(|| Arc::new(Cohort::new(members))))
    }

    /// Where messages between ranks of this process and device meet.
    pub fn rendezvous(&self) -> &Rendezvous {
        &self.shared.rendezvous
    }

    /// The memory of a connection inside this process, for this rank, which works in `home`. Whichever end comes first
    /// allocates it.
    ///
    /// # Errors
    /// Where a device has no memory, or this rank cannot import it.
    pub fn queue(&self, home: Home, need: Need, shape: Shape) -> Result<ConnectionMemory> {
        let bytes = queue_bytes(shape, self.staged.reading_of(self.world.rank).contains(&need.peer))?;
        let part = |part: QueuePart, bytes: usize| -> Result<Region> {
            let made = self.queue_part(need, part, bytes)?;
            // This rank's own memory needs no way to it.
            let is_mine = part.is_owners(need.way);
            if !is_mine && self.imports(need.peer) { self.imported(home, &made) } else { Ok(made) }
        };
        let at_receiver = part(QueuePart::AtReceiver, bytes.at_receiver)?;
        let at_sender = bytes.at_sender.map(|bytes| part(QueuePart::AtSender, bytes)).transpose()?;
        Ok(ConnectionMemory { at_receiver, at_sender })
    }

    fn queue_part(&self, need: Need, part: QueuePart, bytes: usize) -> Result<Region> {
        let (from, to) = ends(self.world.rank, need);
        let sharing = if self.imports(need.peer) { Sharing::Processes } else { Sharing::Threads };
        let mut queues = self.shared.queues.lock();
        let key = (from, to, need.channel, part);
        if let Some(queue) = queues.get(&key) {
            return Ok(queue.clone());
        }
        let owner = if part == QueuePart::AtReceiver { to } else { from };
        let home = self.shared.sides.lock().get(&owner).map(Region::home);
        let missing = || Error::internal(format!("rank {owner} has no memory on a device"));
        let made = device::of(home.ok_or_else(missing)?)?.allocate(bytes, sharing)?;
        queues.insert(key, made.clone());
        Ok(made)
    }
}

impl Facts {
    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.u64(self.process).u64(self.ticket).raw(&self.device.0).u8(u8::from(self.together));
        writer.u8(self.leaves_by.code()).u8(u8::from(self.without_pointers));
        writer.finish()
    }

    fn decode(rank: Rank, bytes: &[u8]) -> Result<Facts> {
        let read = || -> Result<Facts> {
            let mut reader = Reader::new(bytes, "a rank's device");
            let (process, ticket) = (reader.u64()?, reader.u64()?);
            let (device, together) = (DeviceIdentity(reader.array()?), reader.u8()? != 0);
            let leaves_by = LeavesBy::of_code(reader.u8()?);
            let leaves_by = leaves_by.ok_or_else(|| reader.malformed("its memory leaves it in an unknown way"))?;
            let without_pointers = reader.u8()? != 0;
            reader.finish()?;
            Ok(Facts { process, ticket, device, together, leaves_by, without_pointers })
        };
        read().map_err(|error| error.about(rank))
    }
}

/// Bytes of a rank's stage, which lies behind its scratch of `scratch_bytes`, and where it begins there.
pub fn stage_bytes(scratch_bytes: usize) -> usize {
    scratch_bytes.next_multiple_of(STAGE_GRAIN)
}

impl Addresses {
    /// Where the memory of `rank` is that it brings on its device.
    pub fn side(&self, rank: Rank) -> u64 {
        self.sides[rank.index()]
    }
}

impl SideLayout {
    /// The layout of the control words, with which the memory begins.
    pub fn control(self) -> ControlLayout {
        ControlLayout { ranks: self.ranks, lanes: u32::try_from(WINDOW_LANES).unwrap_or(u32::MAX) }
    }

    /// Where a rank keeps the words of the connection on which it sends to `to`.
    fn sender(self, to: Rank, channel: Channel) -> u64 {
        self.control().bytes() + (u64::from(to.get()) * CHANNELS + channel_number(channel)) * QUEUE_WORDS
    }

    pub fn scratch(self) -> u64 {
        self.sender(Rank::new(self.ranks), Channel::PointToPoint).next_multiple_of(PAGE)
    }

    /// This rank's end of a connection in the memory of devices.
    pub fn end(
        self,
        (me, need): (Rank, Need),
        memory: &ConnectionMemory,
        places: &Addresses,
        shape: Shape,
    ) -> SlotQueue {
        let ((from, to), sends) = (ends(me, need), need.way == Way::Send);
        let sender = places.sides[from.index()] + self.sender(to, need.channel);
        let receiver = address(&memory.at_receiver, 0);
        let behind_words = receiver + QUEUE_WORDS;
        let (slots, behind) = match &memory.at_sender {
            Some(at_sender) => (address(at_sender, 0), behind_words),
            None => (behind_words, behind_words + lines::slots_bytes(slots_of(shape))),
        };
        SlotQueue {
            rank: from.get(),
            sends,
            slots,
            lines: lines::first(behind),
            count: shape.slots,
            payload: u64::from(shape.slot_bytes),
            tail: receiver,
            head: sender,
            mine: QUEUE_LINE + if sends { sender } else { receiver },
        }
    }
}

impl StagingLayout {
    /// This rank's end of a connection in the host's memory, and on a third rank's device.
    ///
    /// # Errors
    /// For a channel that has no queue.
    pub fn end(&self, (me, need): (Rank, Need), places: &Addresses) -> Result<SlotQueue> {
        let ((from, to), sends) = (ends(me, need), need.way == Way::Send);
        let queue = self.queue((from, to), need.channel);
        let queue = queue.ok_or_else(|| Error::internal(format!("no queue in the host's memory for {need:?}")))?;
        let receiver = places.stages[to.index()] + queue;
        let lent = self.lent((from, to), need.channel).map(|(third, at)| places.sides[third.index()] + at);
        let slots = lent.unwrap_or(receiver + QUEUE_WORDS);
        let (count, payload) = (self.slots((from, to)), u64::from(self.shape.slot_bytes));
        Ok(SlotQueue {
            rank: from.get(),
            sends,
            slots,
            lines: lines::first(slots + lines::slots_bytes((count, payload))),
            count,
            payload,
            tail: receiver,
            head: places.stages[from.index()] + self.side.sender(to, need.channel),
            mine: self.side.own_count(need, places.sides[me.index()]),
        })
    }
}

impl SideLayout {
    /// Where this rank counts what it has sent or received by a connection whose slots are in the host's memory: on its
    /// own device, where nothing else is kept for such a connection.
    pub fn own_count(self, need: Need, side: u64) -> u64 {
        let own = side + self.sender(need.peer, need.channel);
        if need.way == Way::Send { own + QUEUE_LINE } else { own }
    }
}

/// The number of a channel among the connections of a pair.
pub(super) fn channel_number(channel: Channel) -> u64 {
    match channel {
        Channel::PointToPoint => 0,
        Channel::Collective(number) => 1 + u64::from(number),
    }
}

/// Bytes of a connection's memory: at the receiver its words, then the slots, then the lines. If it `reads`, the slots
/// lie at the sender instead.
pub fn queue_bytes(shape: Shape, reads: bool) -> Result<QueueBytes> {
    let (slots, protocols) = (slots_of(shape), lines::PROTOCOLS);
    Ok(QueueBytes {
        at_receiver: fits(QUEUE_WORDS + lines::connection_bytes(if reads { (0, 0) } else { slots }, protocols))?,
        at_sender: if reads { Some(fits(lines::slots_bytes(slots))?) } else { None },
    })
}

/// How many slots there are, and the bytes of each.
fn slots_of(shape: Shape) -> (u32, u64) {
    (shape.slots, u64::from(shape.slot_bytes))
}

/// The sender and the receiver of the connection of which `me` needs an end.
fn ends(me: Rank, need: Need) -> (Rank, Rank) {
    if need.way == Way::Send { (me, need.peer) } else { (need.peer, me) }
}

pub fn address(region: &Region, offset: u64) -> u64 {
    region.base().addr().get() as u64 + offset
}

pub fn fits(bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(|_| Error::invalid_argument(format!("{bytes} bytes do not fit the address space")))
}

impl Entry {
    fn new(shared: &Arc<Shared>) -> Result<Entry> {
        let ticket = u64::from_le_bytes(random::bytes()?);
        meetings().insert(ticket, Arc::downgrade(shared));
        Ok(Entry(ticket))
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        meetings().remove(&self.0);
    }
}

/// The table in which ranks of one process find each other during a meeting: threads of one process have nothing else
/// in common. Its keys are random.
fn meetings() -> MutexGuard<'static, HashMap<u64, Weak<Shared>>> {
    static MEETINGS: PerProcess<Mutex<HashMap<u64, Weak<Shared>>>> = PerProcess::new();
    MEETINGS.get_or_init(Mutex::default).lock()
}

/// Bytes of a connection's words at each end: the count that the other end raises, and this end's own count, each in a
/// cache line of its own.
pub(super) const QUEUE_WORDS: u64 = 2 * QUEUE_LINE;
const QUEUE_LINE: u64 = 64;
/// An error of a driver.
const MOST_REASON_BYTES: usize = 1 << 10;
/// The connections from one rank to another: one for each channel of collectives, and one for messages.
const CHANNELS: u64 = MOST_CHANNELS as u64 + 1;
const PAGE: u64 = 4096;
const STAGE_GRAIN: usize = 4096;

#[cfg(test)]
#[cfg(not(loom))]
pub(super) mod tests {
    use super::*;
    use crate::topo::reach::ladder::WaySettings;

    pub(in crate::reach) fn facts(process: u64, device: u8, together: bool) -> Facts {
        let (device, leaves_by) = (DeviceIdentity([device; 16]), LeavesBy::HandleBySetting);
        Facts { process, ticket: 9, device, together, leaves_by, without_pointers: together }
    }

    /// A rank alone in its process, whose device has descriptors.
    pub(in crate::reach) fn process_of_its_own(process: u64, device: DeviceIdentity, settings: &WaySettings) -> Facts {
        let leaves_by = if settings.by_handle { LeavesBy::HandleBySetting } else { LeavesBy::Descriptor };
        let without_pointers = settings.no_pointers;
        Facts { process, ticket: 9, device, together: false, leaves_by, without_pointers }
    }

    #[test]
    fn facts_come_back_and_broken_ones_are_refused() {
        let mine = facts(7, 3, true);
        assert_eq!(Facts::decode(Rank::new(1), &mine.encode()).unwrap(), mine);
        for broken in [&mine.encode()[1..], &[], &[0; 36], &[9; 35]] {
            assert_eq!(Facts::decode(Rank::new(1), broken).unwrap_err().peer(), Some(1));
        }
    }

    /// Links lead from ranks 0 and 2 to rank 1.
    #[test]
    fn slots_over_another_device_lie_there_and_their_words_do_not() {
        let told = [[0, 1, 2], [1, 0, 1], [2, 1, 0]].map(Vec::from);
        let world = World { rank: Rank::new(0), size: 3 };
        let layout = StagingLayout {
            staged: Arc::new(Staged::of(world, &told, |_, _| true).unwrap()),
            side: SideLayout { ranks: 3 },
            scratch_bytes: 100,
            shape: Shape { slots: 8, slot_bytes: 64 },
            channels: 1,
            led: false,
        };
        let (sides, stages) = (vec![1 << 30, 2 << 30, 3 << 30], vec![4 << 30, 0, 5 << 30]);
        let places = Addresses { sides, stages };
        let end = |rank: u32, way: Way| {
            let need = Need { peer: Rank::new(2 - rank), way, channel: Channel::Collective(0) };
            layout.end((Rank::new(rank), need), &places).unwrap()
        };
        let (sends, receives) = (end(0, Way::Send), end(2, Way::Receive));
        assert_eq!([sends.slots, sends.tail, sends.head], [receives.slots, receives.tail, receives.head]);
        assert_eq!([sends.slots >> 30, sends.tail >> 30, sends.head >> 30], [2, 5, 4]);
        assert_eq!([sends.mine >> 30, receives.mine >> 30], [1, 3]);
    }

    /// Where the receiver reads, words and lines stay with it; else slots lie between them.
    #[test]
    fn slots_lie_at_the_receiver_or_at_the_sender() {
        let (layout, shape) = (SideLayout { ranks: 2 }, Shape { slots: 8, slot_bytes: 192 });
        let places = Addresses { sides: vec![1 << 30, 2 << 30], stages: vec![0, 0] };
        for reads in [false, true] {
            let bytes = queue_bytes(shape, reads).unwrap();
            let region = |bytes| device::HostMemory.allocate_host(bytes, Sharing::Threads).unwrap().as_region().clone();
            let memory =
                ConnectionMemory { at_receiver: region(bytes.at_receiver), at_sender: bytes.at_sender.map(region) };
            let end = |me: u32, way: Way| {
                let need = Need { peer: Rank::new(1 - me), way, channel: Channel::PointToPoint };
                layout.end((Rank::new(me), need), &memory, &places, shape)
            };
            let (sends, receives) = (end(0, Way::Send), end(1, Way::Receive));
            assert_eq!((sends.slots, sends.lines, sends.tail), (receives.slots, receives.lines, receives.tail));
            let place = |region: &Region, at: u64| {
                Some(at.checked_sub(address(region, 0))?).filter(|at| *at < region.bytes() as u64)
            };
            assert_eq!(place(&memory.at_receiver, sends.tail), Some(0));
            let lines = place(&memory.at_receiver, sends.lines).unwrap();
            let behind_lines = lines + lines::lines_bytes(lines::PROTOCOLS) - 128;
            assert!(sends.lines % 128 == 0 && behind_lines <= memory.at_receiver.bytes() as u64);
            match &memory.at_sender {
                Some(at_sender) => {
                    assert_eq!(place(at_sender, sends.slots), Some(0));
                    assert_eq!(at_sender.bytes() as u64, lines::slots_bytes((8, 192)));
                    assert!(lines < QUEUE_WORDS + 128);
                }
                None => {
                    assert_eq!(place(&memory.at_receiver, sends.slots), Some(QUEUE_WORDS));
                    assert!(lines >= QUEUE_WORDS + lines::slots_bytes((8, 192)));
                }
            }
        }
    }

    #[test]
    fn the_words_of_a_rank_do_not_overlap() {
        let layout = SideLayout { ranks: 3 };
        let last = Channel::Collective(u8::MAX);
        let first = layout.sender(Rank::new(0), Channel::PointToPoint);
        assert_eq!(first, layout.control().bytes());
        assert_eq!(layout.sender(Rank::new(0), last) + QUEUE_WORDS, layout.sender(Rank::new(1), Channel::PointToPoint));
        assert!(layout.sender(Rank::new(2), last) + QUEUE_WORDS <= layout.scratch());
    }
}
