//! How the ranks of a communicator share memory of their devices: in one process by a table, between processes by
//! handing memory over.
//!
//! Every rank has one piece of memory on its device, laid out by [`SideLayout`], in which the launches of other ranks
//! write and read; and, if some of those do not reach it, one of the host's ([`StagingLayout`]). An address is valid in
//! one process only, so each process finds its own address for the memory of each peer.

use std::collections::HashMap;

use crate::device::records::PeerMemory;
use crate::device::{self, DeviceIdentity, DeviceRanks, Home, HostRegion, Region, Sharing, StatusPage};
use crate::error::{Error, Result};
use crate::exec::{Cohort, Rendezvous};
use crate::log;
use crate::reach::channel_search::OnChannels;
use crate::reach::crossings::Crossings;
use crate::reach::device_ways::{self, Known};
use crate::reach::facts::Facts;
use crate::reach::sharers::Sharers;
use crate::reach::side_layout::{Addresses, SideLayout, address, ends, queue_bytes};
use crate::reach::staging::{Staged, StagingLayout};
use crate::session::Session;
use crate::sync::Wait;
use crate::sync::primitive::{Arc, Mutex, MutexGuard, Weak};
use crate::sync::ring::Shape;
use crate::sys::fork::PerProcess;
use crate::sys::random;
use crate::topo::Topology;
use crate::topo::transport_choice::ladder::LeavesBy;
use crate::transport::traffic::DeviceRoute;
use crate::transport::{Channel, ConnectionMemory, Need, QueuePart, process_token};
use crate::types::{Rank, World};
use crate::wire;

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

    /// How bytes get from this rank to `peer`, and back.
    pub fn route(&self, peer: Rank) -> DeviceRoute {
        let me = self.world.rank;
        let is_between = || [(me, peer), (peer, me)].into_iter().any(|pair| self.staged.between(pair).is_some());
        if self.is_wired(peer) {
            DeviceRoute::Wire
        } else if !self.is_far(peer) && self.devices[peer.index()] == self.devices[me.index()] {
            DeviceRoute::Inside
        } else if self.staged.parts(me, peer) && !is_between() {
            DeviceRoute::Pinned
        } else {
            DeviceRoute::Peer
        }
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

    /// Which long calls do better along channels than otherwise. The same on all ranks.
    pub fn on_channels(&self) -> OnChannels {
        let of = |rank: Rank| (self.hosts[rank.index()], self.devices[rank.index()]);
        let is_partial = self.staged.is_partial(|rank, other| of(rank) == of(other) || of(rank).0 != of(other).0);
        if is_partial || self.crossings.join_all() {
            OnChannels::All
        } else if self.staged.is_any() {
            OnChannels::None
        } else {
            OnChannels::Reached
        }
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

/// An error of a driver.
const MOST_REASON_BYTES: usize = 1 << 10;
