//! How the ranks of a communicator share memory of their devices: in one process by a table, between processes by
//! handing memory over.
//!
//! Every rank has one piece of memory on its device, laid out by [`SideLayout`], in which the launches of other ranks
//! write and read. An address is valid in one process only, so each process finds its own address for the memory of
//! each peer.

use std::collections::HashMap;
use std::sync::PoisonError;

use crate::comm::session::Session;
use crate::device::records::{self, ControlLayout, PeerMemory, SlotQueue};
use crate::device::{self, DeviceIdentity, Home, Region, Sharing, StatusPage};
use crate::error::{Error, Result};
use crate::exec::{Cohort, Rendezvous};
use crate::plan::{MOST_CHANNELS, WINDOW_LANES};
use crate::sync::Wait;
use crate::sync::primitive::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use crate::sync::ring::Shape;
use crate::sys::random;
use crate::transport::{Channel, Need, Way, process_token};
use crate::types::{Rank, World};
use crate::wire::{Reader, Writer};

/// What the ranks of this process share, and which ranks those are.
#[derive(Debug)]
pub(super) struct Meeting {
    shared: Arc<Shared>,
    /// The process of each rank.
    processes: Vec<u64>,
    /// The device of each rank.
    devices: Vec<DeviceIdentity>,
    world: World,
}

/// What the ranks of a communicator that are threads of one process show each other.
#[derive(Debug, Default)]
struct Shared {
    sides: Mutex<HashMap<Rank, Region>>,
    cohorts: Mutex<HashMap<Home, Arc<Cohort>>>,
    /// The queues of connections inside this process, by sender, receiver and channel.
    queues: Mutex<HashMap<(Rank, Rank, Channel), Region>>,
    /// Where messages between ranks of one device meet.
    rendezvous: Rendezvous,
}

/// What a rank tells all others when they first meet on devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Facts {
    process: u64,
    /// The key under which threads of one process find what they share.
    ticket: u64,
    device: DeviceIdentity,
    /// Whether it may be shared with other processes: [`crate::device::Device::runs_processes_together`], or
    /// `RSCCL_COHORT=split`.
    together: bool,
}

/// The layout of the memory that a rank shares: control words, the words of its sending ends, scratch.
#[derive(Debug, Clone, Copy)]
pub(super) struct SideLayout {
    ranks: u32,
}

/// The entry of a rank in the table of its process. It lives as long as one meeting.
struct Entry(u64);

impl Meeting {
    /// Meets the other ranks of the communicator, each of which brings its device. Collective.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidUsage`] on all ranks where several processes use a device that cannot run them
    /// side by side; of a rank that does not come.
    pub(super) fn new(session: &Session, home: Home, wait: &Wait) -> Result<Meeting> {
        let device = device::of(home)?;
        let (world, bootstrap) = (session.world, &session.bootstrap);
        let shared = Arc::new(Shared::default());
        let entry = Entry::new(&shared)?;
        let (process, identity) = (process_token()?, device.identity());
        // The user may say that it is worth the turns.
        let together = device.runs_processes_together() || session.settings.split_cohorts;
        let mine = Facts { process, ticket: entry.0, device: identity, together };
        let told = bootstrap.all_gather(&mine.encode(), wait)?;
        let facts = world.ranks().zip(&told).map(|(rank, bytes)| Facts::decode(rank, bytes));
        let facts: Vec<Facts> = facts.collect::<Result<_>>()?;
        check_together(&facts)?;
        let first = facts.iter().find(|facts| facts.process == process).map_or(entry.0, |facts| facts.ticket);
        let found = meetings().get(&first).and_then(Weak::upgrade);
        // Entries stay in the table until every rank has looked.
        bootstrap.barrier(wait)?;
        let shared = found.ok_or_else(|| Error::internal("what the ranks of this process share is gone"))?;
        let processes = facts.iter().map(|facts| facts.process).collect();
        let devices = facts.iter().map(|facts| facts.device).collect();
        Ok(Meeting { shared, processes, devices, world })
    }

    /// The devices of all ranks, in rank order.
    pub(super) fn devices(&self) -> &[DeviceIdentity] {
        &self.devices
    }

    /// Whether `rank` is a thread of this process.
    pub(super) fn is_here(&self, rank: Rank) -> bool {
        self.processes[rank.index()] == self.processes[self.world.rank.index()]
    }

    /// The ranks of other processes, in order.
    pub(super) fn elsewhere(&self) -> Vec<Rank> {
        self.world.ranks().filter(|rank| !self.is_here(*rank)).collect()
    }

    /// Allocates this rank's shared memory on its device, zeroed, and enters it into the table of its process. `sharing`
    /// is for ranks of other processes.
    ///
    /// # Errors
    /// Where the device has no such memory.
    pub(super) fn allocate(&self, home: Home, scratch_bytes: usize, sharing: Sharing) -> Result<Region> {
        let sharing = if self.elsewhere().is_empty() { Sharing::Threads } else { sharing };
        let bytes = fits(self.layout().scratch())?.saturating_add(scratch_bytes);
        let memory = device::of(home)?.allocate(bytes, sharing)?;
        lock(&self.shared.sides).insert(self.world.rank, memory.clone());
        Ok(memory)
    }

    /// The layout of every rank's memory.
    pub(super) fn layout(&self) -> SideLayout {
        SideLayout { ranks: self.world.size }
    }

    /// Every rank's memory as this process addresses it. All ranks of this process must have allocated theirs; `taken`
    /// is the memory of the ranks of other processes, in the order of [`Meeting::elsewhere`].
    ///
    /// # Errors
    /// Where one is missing.
    pub(super) fn peers(&self, taken: &[Region]) -> Result<Arc<[PeerMemory]>> {
        let (layout, sides) = (self.layout(), lock(&self.shared.sides));
        let elsewhere = self.elsewhere();
        let found = self.world.ranks().map(|rank| {
            let region = sides.get(&rank).or_else(|| taken.get(elsewhere.binary_search(&rank).ok()?));
            let region = region.ok_or_else(|| Error::internal(format!("rank {rank} has no memory on a device")))?;
            let control = address(region, 0);
            Ok(PeerMemory { control, scratch: control + layout.scratch() })
        });
        found.collect()
    }

    /// The page by which this rank's launches and the host inform each other. If ranks wait for each other on devices,
    /// all of them find out together whether their devices can do that. All must have allocated their memory.
    ///
    /// # Errors
    /// Where a device cannot reach the others, or has no room for more ranks.
    pub(super) fn status_page(&self, session: &Session, home: Home, wait: &Wait) -> Result<StatusPage> {
        let homes: Vec<Home> = lock(&self.shared.sides).values().map(Region::home).collect();
        let is_one_device = homes.iter().all(|other| *other == home) && self.elsewhere().is_empty();
        if self.world.size == 1 || (is_one_device && !session.settings.split_cohorts) {
            return StatusPage::new();
        }
        let elsewhere: Vec<DeviceIdentity> =
            self.elsewhere().into_iter().map(|rank| self.devices[rank.index()]).collect();
        let page = device::of(home)?.page_for(&homes, &elsewhere);
        let can = session.bootstrap.all_gather(&[u8::from(page.is_ok())], wait)?;
        let page = page?;
        match can.iter().position(|can| can != &[1]) {
            None => Ok(page),
            Some(rank) => Err(Error::invalid_usage(format!(
                "rank {rank} cannot work with ranks on other devices: its error says why"
            ))),
        }
    }

    /// The ranks of this process that work in `home`, which launch together. All have allocated their memory.
    pub(super) fn cohort(&self, home: Home) -> Arc<Cohort> {
        let sides = lock(&self.shared.sides);
        let mut members: Vec<Rank> =
            sides.iter().filter(|(_, side)| side.home() == home).map(|(rank, _)| *rank).collect();
        members.sort_unstable();
        Arc::clone(lock(&self.shared.cohorts).entry(home).or_insert_with(|| Arc::new(Cohort::new(members))))
    }

    /// Where messages between ranks of this process and device meet.
    pub(super) fn rendezvous(&self) -> &Rendezvous {
        &self.shared.rendezvous
    }

    /// The queue of a connection inside this process. Whichever end comes first allocates it.
    ///
    /// # Errors
    /// Where the receiver's device has no memory.
    pub(super) fn queue(&self, need: Need, shape: Shape) -> Result<Region> {
        let (from, to) = ends(self.world.rank, need);
        let mut queues = lock(&self.shared.queues);
        if let Some(queue) = queues.get(&(from, to, need.channel)) {
            return Ok(queue.clone());
        }
        let home = lock(&self.shared.sides).get(&to).map(Region::home);
        let device = device::of(home.ok_or_else(|| Error::internal(format!("rank {to} has no memory on a device")))?)?;
        let made = device.allocate(queue_bytes(shape)?, Sharing::Threads)?;
        queues.insert((from, to, need.channel), made.clone());
        Ok(made)
    }
}

impl Facts {
    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.u64(self.process).u64(self.ticket).raw(&self.device.0).u8(u8::from(self.together));
        writer.finish()
    }

    fn decode(rank: Rank, bytes: &[u8]) -> Result<Facts> {
        let read = || -> Result<Facts> {
            let mut reader = Reader::new(bytes, "a rank's device");
            let (process, ticket) = (reader.u64()?, reader.u64()?);
            let (device, together) = (DeviceIdentity(reader.array()?), reader.u8()? != 0);
            reader.finish()?;
            Ok(Facts { process, ticket, device, together })
        };
        read().map_err(|error| error.about(rank))
    }
}

/// Refuses several processes on one device whose launches cannot run side by side. All ranks get the same answer.
fn check_together(facts: &[Facts]) -> Result<()> {
    for (rank, one) in facts.iter().enumerate().filter(|(_, facts)| !facts.together) {
        let other = facts.iter().position(|other| other.device == one.device && other.process != one.process);
        if let Some(other) = other {
            return Err(Error::invalid_usage(format!(
                "ranks {rank} and {other} are different processes on one device, which runs the work of one process at a time: a wait of \
                 one for the other lasts as long as a turn; give each process a device of its own, make its ranks threads of one process, \
                 or set RSCCL_COHORT=split for all ranks, which accepts that (and is quick where NVIDIA's MPS runs processes together)"
            )));
        }
    }
    Ok(())
}

impl SideLayout {
    /// The layout of the control words, with which the memory begins.
    pub(super) fn control(self) -> ControlLayout {
        ControlLayout { ranks: self.ranks, lanes: u32::try_from(WINDOW_LANES).unwrap_or(u32::MAX) }
    }

    /// Where a rank keeps the words of the connection on which it sends to `to`.
    fn sender(self, to: Rank, channel: Channel) -> u64 {
        let channel = match channel {
            Channel::PointToPoint => 0,
            Channel::Collective(number) => 1 + u64::from(number),
        };
        self.control().bytes() + (u64::from(to.get()) * CHANNELS + channel) * QUEUE_WORDS
    }

    fn scratch(self) -> u64 {
        self.sender(Rank::new(self.ranks), Channel::PointToPoint).next_multiple_of(PAGE)
    }

    /// This rank's end of a connection, whose slots lie in `queue`.
    pub(super) fn end(self, (me, need): (Rank, Need), queue: &Region, peers: &[PeerMemory], shape: Shape) -> SlotQueue {
        let ((from, to), sends) = (ends(me, need), need.way == Way::Send);
        let sender = peers[from.index()].control + self.sender(to, need.channel);
        let receiver = address(queue, 0);
        SlotQueue {
            rank: from.get(),
            sends,
            slots: receiver + QUEUE_WORDS,
            count: shape.slots,
            payload: u64::from(shape.slot_bytes),
            tail: receiver,
            head: sender,
            mine: QUEUE_LINE + if sends { sender } else { receiver },
        }
    }
}

/// Bytes of a connection's memory, which lies at the receiver: the receiver's words, then the slots.
pub(super) fn queue_bytes(shape: Shape) -> Result<usize> {
    fits(QUEUE_WORDS + u64::from(shape.slots) * (records::SLOT_HEADER + u64::from(shape.slot_bytes)))
}

/// The sender and the receiver of the connection of which `me` needs an end.
fn ends(me: Rank, need: Need) -> (Rank, Rank) {
    if need.way == Way::Send { (me, need.peer) } else { (need.peer, me) }
}

fn address(region: &Region, offset: u64) -> u64 {
    region.base().addr().get() as u64 + offset
}

fn fits(bytes: u64) -> Result<usize> {
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
    static MEETINGS: OnceLock<Mutex<HashMap<u64, Weak<Shared>>>> = OnceLock::new();
    lock(MEETINGS.get_or_init(Mutex::default))
}

/// The data behind these locks is whole after every statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes of a connection's words at each end: the count that the other end raises, and this end's own count, each in a
/// cache line of its own.
const QUEUE_WORDS: u64 = 2 * QUEUE_LINE;
const QUEUE_LINE: u64 = 64;
/// The connections from one rank to another: one for each channel of collectives, and one for messages.
const CHANNELS: u64 = MOST_CHANNELS as u64 + 1;
const PAGE: u64 = 4096;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn facts(process: u64, device: u8, together: bool) -> Facts {
        Facts { process, ticket: 9, device: DeviceIdentity([device; 16]), together }
    }

    #[test]
    fn facts_come_back_and_broken_ones_are_refused() {
        let mine = facts(7, 3, true);
        assert_eq!(Facts::decode(Rank::new(1), &mine.encode()).unwrap(), mine);
        for broken in [&mine.encode()[1..], &[], &[0; 34]] {
            assert_eq!(Facts::decode(Rank::new(1), broken).unwrap_err().peer(), Some(1));
        }
    }

    #[test]
    fn processes_share_a_device_only_where_it_runs_them_together() {
        assert!(check_together(&[facts(1, 1, true), facts(2, 1, true)]).is_ok());
        assert!(check_together(&[facts(1, 1, false), facts(1, 1, false), facts(2, 2, false)]).is_ok());
        let error = check_together(&[facts(1, 1, false), facts(2, 2, false), facts(3, 1, false)]).unwrap_err();
        assert!(error.message().contains("ranks 0 and 2"), "{error}");
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
