//! The connections of one communicator: made when a plan first needs them, kept until the end.
//!
//! # How a connection is made
//! The receiver owns the ring. It makes the memory, offers it, and sends the offer to the sender over the bootstrap; the sender takes
//! it. A message back over the bootstrap ends the set-up on both sides, so that a rank whose `connect` returned knows that its peers
//! can reach it. Needs are worked off in rounds of [`ROUND_PEERS`].

use std::collections::HashMap;
use std::net::TcpStream;
use std::time::Duration;

use crate::bootstrap::Bootstrap;
use crate::error::{Error, Kind, Result};
use crate::plan::FLAGS;
use crate::sync::primitive::Arc;
use crate::sync::ring::{Receiver, Sender, Shape};
use crate::sync::{Backoff, Deadline, Patience, Wait, Watch};
use crate::sys::memory::SharedMemory;
use crate::sys::{clock, futex, poller};
use crate::transport::arena::Arena;
use crate::transport::door::{Doors, Taken};
use crate::transport::net::{ReceivePump, SendPump};
use crate::transport::port::SocketOptions;
use crate::transport::windows::{Board, HostWindows, Registered};
use crate::transport::{PeerInfo, Policy, select};
use crate::types::{Rank, TransportKind, World};

/// Which of the connections of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Channel {
    /// For collectives: the plan's channel.
    Collective(u8),
    /// For send and recv.
    PointToPoint,
}

/// Which end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Way {
    /// I receive. Before `Send`, so that sorted needs make offers before they wait for any.
    Receive,
    /// I send.
    Send,
}

/// A connection that a plan needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Need {
    /// Which end.
    pub way: Way,
    /// The other rank.
    pub peer: Rank,
    /// Which of the pair's connections.
    pub channel: Channel,
}

/// What a set-up needs from the communicator.
pub struct Setup<'a> {
    /// Carries the offers.
    pub bootstrap: &'a dyn Bootstrap,
    /// Bounds each wait.
    pub wait: &'a Wait,
    /// Looked at while waiting.
    pub watch: &'a mut dyn Watch,
}

impl std::fmt::Debug for Setup<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup").field("wait", self.wait).finish_non_exhaustive()
    }
}

impl Setup<'_> {
    /// [`Bootstrap::recv`], looking at the watch meanwhile: what `peer` waits for may never come, and others may say so.
    fn recv(&mut self, peer: Rank, tag: u32) -> Result<Vec<u8>> {
        loop {
            let deadline = Deadline::after(SETUP_LOOK).earlier(self.wait.deadline);
            let wait = Wait { deadline, abort: self.wait.abort.clone() };
            match self.bootstrap.recv(peer, tag, &wait) {
                Err(error) if error.kind() == Kind::Timeout && !self.wait.deadline.passed(clock::now()) => {
                    self.watch.look(&|| format!("rank {peer} (to set up a connection)"))?;
                }
                other => return other,
            }
        }
    }
}

/// The rings that are open.
#[derive(Debug, Default)]
pub struct Links {
    senders: HashMap<(Rank, Channel), Sender>,
    receivers: HashMap<(Rank, Channel), Receiver>,
    send_pumps: Vec<SendPump>,
    receive_pumps: Vec<ReceivePump>,
}

/// The connections of one communicator.
#[derive(Debug)]
pub struct Fabric {
    world: World,
    kinds: Vec<TransportKind>,
    hosts: Vec<Vec<Rank>>,
    near: TransportKind,
    sizes: Sizes,
    windows: Option<Arc<HostWindows>>,
    links: Links,
    doors: Doors,
}

/// Sizes of a fabric's memory; equal on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Of every ring.
    pub shape: Shape,
    /// Of every arena's scratch, in bytes.
    pub scratch_bytes: usize,
    /// Of the sockets of the NET transport.
    pub sockets: SocketOptions,
}

impl Fabric {
    /// A fabric with nothing connected yet.
    pub fn new(world: World, peers: &[PeerInfo], policy: Policy, sizes: Sizes) -> Fabric {
        let mine = &peers[world.rank.index()];
        let kinds = peers.iter().map(|peer| select(mine, peer, policy)).collect();
        Fabric {
            world,
            kinds,
            near: nearest(peers, policy),
            hosts: group_hosts(peers, policy),
            sizes,
            windows: None,
            links: Links::default(),
            doors: Doors::new(world.rank, sizes.sockets),
        }
    }

    /// The transport that my connections with `peer` use.
    pub fn kind(&self, peer: Rank) -> TransportKind {
        self.kinds[peer.index()]
    }

    /// The ranks that can map each other's memory, host by host.
    pub fn hosts(&self) -> &[Vec<Rank>] {
        &self.hosts
    }

    /// What connects ranks of one host, the slowest where hosts differ; the same on all ranks.
    pub fn near(&self) -> TransportKind {
        self.near
    }

    /// The ranks of my host, me among them.
    pub fn my_host(&self) -> &[Rank] {
        let mine = self.hosts.iter().find(|host| host.contains(&self.world.rank));
        mine.expect("every rank is on a host")
    }

    /// The mapped memory of my host, once opened.
    pub fn windows(&self) -> Option<&HostWindows> {
        self.windows.as_deref()
    }

    /// The same, to hold while the fabric is used otherwise.
    pub fn share_windows(&self) -> Option<Arc<HostWindows>> {
        self.windows.clone()
    }

    /// Windows and rings at once, for an executor.
    pub fn parts(&mut self) -> (Option<&HostWindows>, &mut Links) {
        (self.windows.as_deref(), &mut self.links)
    }

    /// Whether all of `needs` are connected.
    pub fn has(&self, needs: &[Need]) -> bool {
        needs.iter().all(|need| self.links.has(need))
    }

    /// The shape of every ring.
    pub fn shape(&self) -> Shape {
        self.sizes.shape
    }

    /// Maps the arenas of all ranks of my host. Collective over the host; the second call does nothing.
    ///
    /// # Errors
    /// Of memory, or of a peer that does not come by the deadline.
    pub fn open_windows(&mut self, setup: &mut Setup<'_>) -> Result<()> {
        if self.windows.is_some() {
            return Ok(());
        }
        let ranks = self.my_host().to_vec();
        let me = ranks.binary_search(&self.world.rank).expect("my host has me");
        let all_local = ranks.iter().all(|rank| self.kind(*rank) == TransportKind::Local);
        let mine = Arena::create(self.sizes.scratch_bytes, !all_local)?;
        let board = all_local.then(Arc::<Board>::default);
        let taken = self.exchange_memory(&ranks, (mine.memory(), board.as_ref()), TAG_ARENA, setup)?;
        let bytes = Arena::memory_bytes(self.sizes.scratch_bytes);
        let mut arenas = Vec::with_capacity(ranks.len());
        let mut boards: Vec<Arc<Board>> = Vec::with_capacity(ranks.len());
        for (peer, taken) in ranks.iter().zip(taken) {
            match taken {
                None => {
                    arenas.push(mine.clone());
                    boards.extend(board.clone());
                }
                Some(taken) => {
                    let (memory, theirs) = map_taken(*peer, taken, bytes)?;
                    arenas.push(Arena::new(memory));
                    boards.extend(theirs);
                }
            }
        }
        let boards = (boards.len() == ranks.len()).then_some(boards);
        self.windows = Some(Arc::new(HostWindows { ranks, me, arenas, boards, registered: Vec::new() }));
        Ok(())
    }

    /// Registers `mine` together with the buffers of the other ranks of my host, so that peers can work in them. Collective over the
    /// host, whose windows are open.
    ///
    /// # Errors
    /// As [`Fabric::open_windows`]; [`crate::error::Kind::InvalidUsage`] beyond [`MOST_REGISTRATIONS`].
    pub fn register(&mut self, mine: &Arc<SharedMemory>, setup: &mut Setup<'_>) -> Result<()> {
        let windows = self.windows.clone().ok_or_else(|| Error::internal("registered before the windows were open"))?;
        if windows.registered.len() == MOST_REGISTRATIONS {
            return Err(Error::invalid_usage(format!(
                "more than {MOST_REGISTRATIONS} registered buffers: register fewer, larger ones"
            )));
        }
        let peers: Vec<Rank> = windows.ranks.clone();
        let bytes = u64::try_from(mine.len()).expect("lengths are at most 64 bits").to_le_bytes();
        for peer in peers.iter().filter(|peer| **peer != self.world.rank) {
            setup.bootstrap.send(*peer, TAG_LENGTH, &bytes, setup.wait)?;
        }
        let taken = self.exchange_memory(&peers, (mine, None), TAG_BUFFER, setup)?;
        let mut memory = Vec::with_capacity(peers.len());
        for (peer, taken) in peers.iter().zip(taken) {
            let Some(taken) = taken else {
                memory.push(Arc::clone(mine));
                continue;
            };
            let length = setup.recv(*peer, TAG_LENGTH)?;
            let broken = || Error::remote(*peer, format!("rank {peer} registered a buffer of a broken length"));
            let length = <[u8; 8]>::try_from(length).map_err(|_| broken())?;
            let length = usize::try_from(u64::from_le_bytes(length)).map_err(|_| broken())?;
            memory.push(map_taken(*peer, taken, length)?.0);
        }
        let mut registered = windows.registered.clone();
        registered.push(Registered { memory });
        let fresh = HostWindows {
            ranks: windows.ranks.clone(),
            me: windows.me,
            arenas: windows.arenas.clone(),
            boards: windows.boards.clone(),
            registered,
        };
        self.windows = Some(Arc::new(fresh));
        Ok(())
    }

    /// Hands `mine` to all other ranks of `ranks` and takes theirs; `None` at my own place.
    fn exchange_memory(
        &mut self,
        ranks: &[Rank],
        mine: (&Arc<SharedMemory>, Option<&Arc<Board>>),
        tag: u32,
        setup: &mut Setup<'_>,
    ) -> Result<Vec<Option<Taken>>> {
        for kind in [TransportKind::Local, TransportKind::Shm] {
            let others = ranks.iter().copied().filter(|rank| *rank != self.world.rank && self.kind(*rank) == kind);
            let takers: Vec<Rank> = others.collect();
            if takers.is_empty() {
                continue;
            }
            let blob = self.doors.offer_memory(kind, mine, &takers, setup.bootstrap)?;
            for peer in takers {
                setup.bootstrap.send(peer, tag, &blob, setup.wait)?;
            }
        }
        let mut takings = Vec::with_capacity(ranks.len());
        for (place, peer) in ranks.iter().enumerate().filter(|(_, peer)| **peer != self.world.rank) {
            let blob = setup.recv(*peer, tag)?;
            takings.push((place, *peer, self.doors.take(self.kind(*peer), *peer, &blob, setup.bootstrap)?));
        }
        let mut taken: Vec<Option<Taken>> = ranks.iter().map(|_| None).collect();
        self.serve_until(setup, |doors| {
            let before = takings.len();
            for (place, peer, taking) in &mut takings {
                taken[*place] = taking.progress().map_err(|error| error.about(*peer))?;
            }
            takings.retain(|(place, ..)| taken[*place].is_none());
            let waiting = takings.first().map(|(_, peer, _)| *peer);
            Ok(Served { done: takings.is_empty() && doors.settled(), moved: takings.len() < before, waiting })
        })?;
        Ok(taken)
    }

    /// Opens the connections of `needs` that are not open yet. The peers of each need call it with the matching need.
    ///
    /// # Errors
    /// Of memory or sockets, or of a peer that does not come by the deadline.
    pub fn connect(&mut self, needs: &[Need], setup: &mut Setup<'_>) -> Result<()> {
        let mut missing: Vec<Need> = needs.iter().copied().filter(|need| !self.links.has(need)).collect();
        missing.sort_unstable();
        missing.dedup();
        let (receives, sends): (Vec<Need>, Vec<Need>) = missing.into_iter().partition(|need| need.way == Way::Receive);
        let mut expected = HashMap::new();
        for need in &receives {
            if let Some(ticket) = self.offer_ring(need, setup)? {
                expected.insert(ticket, *need);
            }
        }
        for round in sends.chunks(ROUND_PEERS) {
            self.take_rings(round, &mut expected, setup)?;
        }
        self.await_sockets(&mut expected, setup)?;
        for need in &sends {
            setup.bootstrap.send(need.peer, tag(TAG_DONE, need.channel), &[], setup.wait)?;
        }
        for need in &receives {
            setup.recv(need.peer, tag(TAG_DONE, need.channel))?;
        }
        Ok(())
    }

    /// Makes the ring of a connection that I receive by, and sends the offer. The ticket, where sockets must come first.
    fn offer_ring(&mut self, need: &Need, setup: &mut Setup<'_>) -> Result<Option<u64>> {
        let (kind, bytes) = (self.kind(need.peer), self.sizes.shape.memory_bytes());
        let tag = tag(TAG_RING, need.channel);
        if kind == TransportKind::Net {
            let (ticket, blob) = self.doors.expect_sockets(need.peer, setup.bootstrap)?;
            setup.bootstrap.send(need.peer, tag, &blob, setup.wait)?;
            return Ok(Some(ticket));
        }
        let shared = kind == TransportKind::Shm;
        let memory = Arc::new(if shared { SharedMemory::memfd(bytes)? } else { SharedMemory::anonymous(bytes)? });
        let blob = self.doors.offer_memory(kind, (&memory, None), &[need.peer], setup.bootstrap)?;
        setup.bootstrap.send(need.peer, tag, &blob, setup.wait)?;
        self.links.receivers.insert((need.peer, need.channel), Receiver::new(memory, self.sizes.shape));
        Ok(None)
    }

    /// Takes the rings of connections that I send by.
    fn take_rings(&mut self, needs: &[Need], expected: &mut HashMap<u64, Need>, setup: &mut Setup<'_>) -> Result<()> {
        let mut takings = Vec::with_capacity(needs.len());
        for need in needs {
            let blob = setup.recv(need.peer, tag(TAG_RING, need.channel))?;
            takings.push((*need, self.doors.take(self.kind(need.peer), need.peer, &blob, setup.bootstrap)?));
        }
        let mut taken = Vec::with_capacity(needs.len());
        let mut ready = Vec::new();
        self.serve_until(setup, |doors| {
            let before = takings.len();
            let mut left = Vec::with_capacity(before);
            for (need, mut taking) in std::mem::take(&mut takings) {
                match taking.progress().map_err(|error| error.about(need.peer))? {
                    Some(here) => taken.push((need, here)),
                    None => left.push((need, taking)),
                }
            }
            takings = left;
            ready.extend(doors.take_ready());
            let waiting = takings.first().map(|(need, _)| need.peer);
            Ok(Served { done: takings.is_empty(), moved: takings.len() < before, waiting })
        })?;
        for (ticket, sockets) in ready {
            self.receive_by(ticket, sockets, expected)?;
        }
        let shape = self.sizes.shape;
        for (need, taken) in taken {
            let sender = match taken {
                Taken::Sockets(sockets) => {
                    let memory = Arc::new(SharedMemory::anonymous(shape.memory_bytes())?);
                    let pump = SendPump::new(need.peer, Receiver::new(Arc::clone(&memory), shape), sockets);
                    self.links.send_pumps.push(pump);
                    Sender::new(memory, shape)
                }
                other => Sender::new(map_taken(need.peer, other, shape.memory_bytes())?.0, shape),
            };
            self.links.senders.insert((need.peer, need.channel), sender);
        }
        Ok(())
    }

    /// Waits until the sockets of every expected connection have come.
    fn await_sockets(&mut self, expected: &mut HashMap<u64, Need>, setup: &mut Setup<'_>) -> Result<()> {
        let mut ready = Vec::new();
        let mut open: Vec<(u64, Rank)> = expected.iter().map(|(ticket, need)| (*ticket, need.peer)).collect();
        self.serve_until(setup, |doors| {
            let before = open.len();
            ready.extend(doors.take_ready());
            open.retain(|(ticket, _)| !ready.iter().any(|(here, _)| here == ticket));
            let waiting = open.first().map(|(_, peer)| *peer);
            Ok(Served { done: open.is_empty() && doors.settled(), moved: open.len() < before, waiting })
        })?;
        for (ticket, sockets) in ready {
            self.receive_by(ticket, sockets, expected)?;
        }
        Ok(())
    }

    /// A connection that I receive by has its sockets: makes its ring and pump.
    fn receive_by(&mut self, ticket: u64, sockets: Vec<TcpStream>, expected: &mut HashMap<u64, Need>) -> Result<()> {
        let Some(need) = expected.remove(&ticket) else { return Ok(()) };
        let shape = self.sizes.shape;
        let memory = Arc::new(SharedMemory::anonymous(shape.memory_bytes())?);
        let pump = ReceivePump::new(need.peer, Sender::new(Arc::clone(&memory), shape), sockets);
        self.links.receive_pumps.push(pump);
        self.links.receivers.insert((need.peer, need.channel), Receiver::new(memory, shape));
        Ok(())
    }

    /// Serves the doors until `step` says that all is done.
    fn serve_until(&mut self, setup: &mut Setup<'_>, mut step: impl FnMut(&mut Doors) -> Result<Served>) -> Result<()> {
        let mut backoff = Backoff::new(SETUP_PATIENCE);
        loop {
            self.doors.serve(clock::now())?;
            let served = step(&mut self.doors)?;
            if served.done {
                return Ok(());
            }
            if served.moved {
                backoff.reset();
            }
            let waiting_for = || match served.waiting {
                Some(peer) => format!("rank {peer} (to hand over its memory)"),
                None => "peers that take this rank's memory".to_owned(),
            };
            if backoff.turn(setup.watch, &waiting_for)?.is_some() {
                futex::nap(SETUP_NAP);
            }
        }
    }
}

/// What a look while serving found.
struct Served {
    done: bool,
    moved: bool,
    waiting: Option<Rank>,
}

/// Memory that a peer handed over, mapped.
fn map_taken(peer: Rank, taken: Taken, bytes: usize) -> Result<(Arc<SharedMemory>, Option<Arc<Board>>)> {
    match taken {
        Taken::Local(offer) if offer.memory.len() == bytes => Ok((offer.memory, offer.board)),
        Taken::Local(_) => Err(Error::remote(peer, format!("rank {peer} offered memory of another size"))),
        Taken::File(file) => {
            let memory = SharedMemory::from_peer(file, bytes).map_err(|error| error.about(peer))?;
            memory.prefer_huge_pages();
            Ok((Arc::new(memory), None))
        }
        Taken::Sockets(_) => Err(Error::internal("sockets where memory is due")),
    }
}

impl Links {
    /// The sending end to `peer`.
    ///
    /// # Panics
    /// Where it was not connected; executors connect a plan's needs before they run it.
    #[inline]
    pub fn sender(&mut self, peer: Rank, channel: Channel) -> &mut Sender {
        self.senders.get_mut(&(peer, channel)).expect("connected before the plan runs")
    }

    /// The receiving end from `peer`.
    ///
    /// # Panics
    /// Where it was not connected; executors connect a plan's needs before they run it.
    #[inline]
    pub fn receiver(&mut self, peer: Rank, channel: Channel) -> &mut Receiver {
        self.receivers.get_mut(&(peer, channel)).expect("connected before the plan runs")
    }

    /// Both ends, for looking at flags.
    pub fn sender_ref(&self, peer: Rank, channel: Channel) -> Option<&Sender> {
        self.senders.get(&(peer, channel))
    }

    /// Both ends, for looking at flags.
    pub fn receiver_ref(&self, peer: Rank, channel: Channel) -> Option<&Receiver> {
        self.receivers.get(&(peer, channel))
    }

    /// Lets every pump move what it can. True where one did.
    ///
    /// # Errors
    /// Of a socket, naming the peer.
    #[inline]
    pub fn pump(&mut self) -> Result<bool> {
        let mut moved = false;
        for pump in &mut self.send_pumps {
            moved |= pump.progress()?;
        }
        for pump in &mut self.receive_pumps {
            moved |= pump.progress()?;
        }
        Ok(moved)
    }

    /// Whether any connection moves its bytes by a pump.
    pub fn has_pumps(&self) -> bool {
        !self.send_pumps.is_empty() || !self.receive_pumps.is_empty()
    }

    /// Whether every pump has handed all that was published to the system.
    pub fn drained(&self) -> bool {
        self.send_pumps.iter().all(SendPump::drained)
    }

    /// Sleeps until a socket is ready, at most `slice`.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] where the system cannot wait.
    pub fn rest_on_sockets(&self, slice: Duration) -> Result<()> {
        let sending = self.send_pumps.iter().flat_map(SendPump::interests);
        let receiving = self.receive_pumps.iter().flat_map(ReceivePump::interests);
        let interests: Vec<_> = sending.chain(receiving).collect();
        poller::wait_any(&interests, slice)
    }

    fn has(&self, need: &Need) -> bool {
        match need.way {
            Way::Receive => self.receivers.contains_key(&(need.peer, need.channel)),
            Way::Send => self.senders.contains_key(&(need.peer, need.channel)),
        }
    }
}

/// What connects ranks of one host, the slowest where hosts differ.
fn nearest(peers: &[PeerInfo], policy: Policy) -> TransportKind {
    let mut firsts: HashMap<u64, &PeerInfo> = HashMap::new();
    let kinds = peers.iter().filter_map(|peer| {
        let first = *firsts.entry(peer.host).or_insert(peer);
        (first.rank != peer.rank).then(|| select(first, peer, policy))
    });
    kinds.max().unwrap_or(TransportKind::Net)
}

/// Ranks that can map each other's memory, in rank order; the hosts in the order of their first ranks.
fn group_hosts(peers: &[PeerInfo], policy: Policy) -> Vec<Vec<Rank>> {
    let mut hosts: Vec<(Vec<Rank>, &PeerInfo)> = Vec::new();
    for peer in peers {
        let host = hosts.iter_mut().find(|(_, first)| select(first, peer, policy) != TransportKind::Net);
        match host {
            Some((ranks, _)) => ranks.push(peer.rank),
            None => hosts.push((vec![peer.rank], peer)),
        }
    }
    hosts.into_iter().map(|(ranks, _)| ranks).collect()
}

fn tag(purpose: u32, channel: Channel) -> u32 {
    purpose
        | match channel {
            Channel::Collective(number) => u32::from(number),
            Channel::PointToPoint => 1 << 8,
        }
}

/// Peers whose connections are under way at once.
const ROUND_PEERS: usize = 128;
const TAG_ARENA: u32 = 0x5243_0000;
const TAG_BUFFER: u32 = 0x5246_0000;
const TAG_LENGTH: u32 = 0x5247_0000;
const TAG_RING: u32 = 0x5244_0000;
const TAG_DONE: u32 = 0x5245_0000;

/// Registered buffers of a communicator.
const MOST_REGISTRATIONS: usize = 1024;
/// Set-up is rare and its peers may be late: it does not spin for long.
const SETUP_PATIENCE: Patience = Patience { spins: 16, awake: Duration::from_micros(200) };
/// How long a message of set-up is waited for between two looks at the news.
const SETUP_LOOK: Duration = Duration::from_millis(20);
const SETUP_NAP: Duration = Duration::from_micros(200);

const _: () = assert!(FLAGS <= 8, "an arena's layout has room for eight flags");
