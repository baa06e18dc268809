//! The connections of one communicator: made when a plan first needs them, kept until the end.
//!
//! Here: which ranks share a host, and the memory that they map of each other. Rings are made in `connect`.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::bootstrap::Bootstrap;
use crate::device::{Home, HostRegion, Sharing};
use crate::error::{Error, Kind, Result};
use crate::sync::primitive::{Arc, Weak};
use crate::sync::ring::Shape;
use crate::sync::{Backoff, Deadline, Patience, Turn, Turned, Wait, Waiting};
use crate::sys::{clock, futex, limits};
use crate::topo::Topology;
use crate::transport::arena::Arena;
use crate::transport::connect::Connecting;
use crate::transport::device_queues::DeviceQueues;
use crate::transport::links::{Channel, Links, Need};
use crate::transport::net::SocketOptions;
use crate::transport::peer_reads::PeerReads;
use crate::transport::table::{
    self, Imported, MOST_OFFER_BYTES, Offered, PeerOffer, TABLE, Transport, memory_for_peers, refusals,
};
use crate::transport::windows::{HostWindows, KnownBuffer, Neighbour, Registered, UserBoard, UserPointers};
use crate::transport::{PeerInfo, Policy, neighbourhood, select};
use crate::types::{Rank, TransportKind, World};

/// What a set-up needs from the communicator.
pub struct Setup<'a> {
    /// Carries the offers.
    pub bootstrap: &'a dyn Bootstrap,
    /// Bounds what the bootstrap does.
    pub wait: &'a Wait,
    /// What goes on in each wait: peers may wait for it before they come to the set-up.
    pub turn: &'a mut dyn Turn<Fabric>,
}

impl std::fmt::Debug for Setup<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup").field("wait", self.wait).finish_non_exhaustive()
    }
}

impl Setup<'_> {
    /// [`Bootstrap::send`], with turns meanwhile: a first message leaves only when `peer` is in a call of its own, and
    /// after a failure, of which others have told, it may come to none.
    pub(super) fn send(&mut self, fabric: &mut Fabric, peer: Rank, (tag, bytes): (u32, &[u8])) -> Result<()> {
        self.bootstrap.post(peer, tag, bytes, self.wait)?;
        let what = "to make this call: the two are not connected yet";
        self.turn_until(fabric, (peer, what), |setup, slice| {
            let wait = setup.wait.until(Deadline::within_wait(slice));
            in_time(setup.bootstrap.settle(peer, &wait))
        })
    }

    /// [`Bootstrap::recv`], with turns meanwhile: what `peer` waits for may never come, and others may say so.
    pub(super) fn recv(&mut self, fabric: &mut Fabric, peer: Rank, (tag, what): (u32, &str)) -> Result<Vec<u8>> {
        self.turn_until(fabric, (peer, what), |setup, slice| {
            if slice.is_zero() {
                return setup.bootstrap.try_recv(peer, tag);
            }
            in_time(setup.bootstrap.recv(peer, tag, &setup.wait.until(Deadline::within_wait(slice))))
        })
    }

    /// Takes turns until `done` gives something: it looks, and may wait for the time that it is given.
    fn turn_until<T>(
        &mut self,
        fabric: &mut Fabric,
        (peer, what): (Rank, &str),
        mut done: impl FnMut(&Self, Duration) -> Result<Option<T>>,
    ) -> Result<T> {
        let mut backoff = Backoff::new(SETUP_PATIENCE);
        let mut slice = Duration::ZERO;
        loop {
            if let Some(done) = done(self, slice)? {
                return Ok(done);
            }
            let turned = self.turn.turn(fabric, &mut backoff, &|| format!("rank {peer} ({what})"));
            // Where the watch knows of nobody in particular, the rank that is waited for is late.
            let late = |error: Error| if error.kind() == Kind::Timeout { error.about(peer) } else { error };
            slice = match turned.map_err(late)? {
                Turned::Moved => {
                    backoff.reset();
                    Duration::ZERO
                }
                Turned::Awake => Duration::ZERO,
                Turned::Tired(slice) => slice,
            };
        }
    }
}

/// What has ended in time; the turn has the deadline, and its error says more.
fn in_time<T>(ended: Result<T>) -> Result<Option<T>> {
    match ended {
        Err(error) if error.kind() == Kind::Timeout => Ok(None),
        other => other.map(Some),
    }
}

/// The connections of one communicator.
#[derive(Debug)]
pub struct Fabric {
    pub(super) world: World,
    /// One side of each transport, in the order of the table.
    pub(super) transports: Vec<Box<dyn Transport>>,
    /// By rank: the place of the transport between us.
    places: Vec<u8>,
    topology: Topology,
    hosts: Topology,
    near: TransportKind,
    pub(super) sizes: Sizes,
    windows: Option<Arc<HostWindows>>,
    pub(super) links: Links,
    pub(super) connecting: Connecting,
    pub(super) queues: DeviceQueues,
    /// See [`Fabric::owes`].
    owes: bool,
}

/// Sizes of a fabric's memory; equal on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Of every ring but the next two.
    pub shape: Shape,
    /// Of the rings in memory that messages between two ranks go by: each message takes several slots, so that its
    /// receiver copies one while the sender fills the next.
    pub messages_in_memory: Shape,
    /// Of the rings behind sockets that messages between two ranks go by: fewer and larger pieces take fewer system
    /// calls and wake-ups. Shared memory loses by them, since they leave the caches; so would plans, whose pieces have
    /// one size on all connections.
    pub messages_over_sockets: Shape,
    /// Of every arena's scratch, in bytes.
    pub scratch_bytes: usize,
    /// Of the sockets of the NET transport.
    pub sockets: SocketOptions,
}

impl Fabric {
    /// A fabric with nothing connected yet.
    pub fn new(world: World, peers: &[PeerInfo], policy: Policy, sizes: Sizes) -> Fabric {
        let mine = &peers[world.rank.index()];
        let place = |peer: &PeerInfo| u8::try_from(table::choose(mine, peer, policy)).expect("a short table");
        log_refusals(mine, peers, policy);
        Fabric {
            world,
            transports: TABLE.iter().map(|entry| (entry.open)(world.rank, sizes.sockets)).collect(),
            places: peers.iter().map(place).collect(),
            near: nearest(peers, policy),
            topology: Topology::new(peers.iter().map(|peer| neighbourhood(peer, policy))),
            hosts: Topology::new(peers.iter().map(|peer| peer.host)),
            sizes,
            windows: None,
            links: Links::new(PeerReads::new(mine, peers, policy)),
            connecting: Connecting::default(),
            queues: DeviceQueues::default(),
            owes: false,
        }
    }

    /// The place of the transport between `peer` and me.
    pub(super) fn place(&self, peer: Rank) -> usize {
        usize::from(self.places[peer.index()])
    }

    /// The shape of the ring of `need`, the same at both ends.
    pub(super) fn shape(&self, need: &Need) -> Shape {
        let over_sockets = self.transports[self.place(need.peer)].sharing().is_none();
        match need.channel {
            Channel::PointToPoint if over_sockets => self.sizes.messages_over_sockets,
            Channel::PointToPoint => self.sizes.messages_in_memory,
            Channel::Collective(_) => self.sizes.shape,
        }
    }

    /// The transport between `peer` and me.
    pub(super) fn transport(&mut self, peer: Rank) -> &mut dyn Transport {
        let place = self.place(peer);
        &mut *self.transports[place]
    }

    /// An offer for `peer`, behind the code of the transport that this rank has chosen.
    pub(super) fn write_offer(&self, peer: Rank, offer: &[u8]) -> Vec<u8> {
        let mut written = Vec::with_capacity(1 + offer.len());
        written.push(TABLE[self.place(peer)].kind.code());
        written.extend_from_slice(offer);
        written
    }

    /// The offer of `peer`, which must be for the transport that this rank has chosen too.
    pub(super) fn read_offer<'a>(&self, peer: Rank, written: &'a [u8]) -> Result<&'a [u8]> {
        let kind = TABLE[self.place(peer)].kind;
        match written.split_first() {
            Some((code, offer)) if *code == kind.code() && offer.len() <= MOST_OFFER_BYTES => Ok(offer),
            Some((code, _)) if *code != kind.code() => {
                let theirs = TransportKind::from_code(*code).map_or("an unknown transport", TransportKind::name);
                Err(Error::mismatch(format!(
                    "rank {peer} selected {theirs} for a connection where this rank selected {kind}"
                ))
                .about(peer))
            }
            _ => Err(Error::remote(peer, format!("rank {peer} sent a broken offer"))),
        }
    }

    /// Answers peers that connect to this rank, or import its memory. It never blocks.
    ///
    /// # Errors
    /// Of a listener of this rank.
    pub fn serve(&mut self, now: Instant) -> Result<()> {
        self.transports.iter_mut().try_for_each(|transport| transport.serve(now))
    }

    /// Whether an offer of this rank has not been taken, or a connection for which a sender asked is under way, so that
    /// whoever waits must [pay](Fabric::pay) meanwhile. It costs nothing to ask.
    #[inline]
    pub fn owes(&self) -> bool {
        self.owes
    }

    /// Hands out what is still owed; true where a peer took something.
    ///
    /// # Errors
    /// As [`Fabric::serve`] and [`Fabric::progress_connect`].
    pub fn pay(&mut self, bootstrap: &dyn Bootstrap) -> Result<bool> {
        let before = self.outstanding().len();
        self.serve(clock::now())?;
        let moved = self.progress_asked_for(bootstrap)?;
        Ok((self.note_debt() < before) | moved)
    }

    /// Looks how many offers have not been taken.
    pub(super) fn note_debt(&mut self) -> usize {
        let debt = self.outstanding().len();
        self.owes = debt > 0 || self.is_asked_for_any();
        debt
    }

    /// The offers that have not been taken. An offer ends with its rank, so a rank waits for its peers to take it.
    pub(super) fn outstanding(&mut self) -> Vec<(usize, u64)> {
        let of = |(place, transport): (usize, &mut Box<dyn Transport>)| {
            transport.outstanding().into_iter().map(move |ticket| (place, ticket))
        };
        self.transports.iter_mut().enumerate().flat_map(of).collect()
    }

    /// Whether all was taken but what was `outstanding` before: that is for peers which may come later, and whoever
    /// offered it serves them.
    pub(super) fn settled_since(&mut self, before: &[(usize, u64)]) -> bool {
        self.outstanding().iter().all(|offer| before.contains(offer))
    }

    /// The ranks of each host, whether or not they may map each other's memory.
    pub fn hosts(&self) -> &Topology {
        &self.hosts
    }

    /// The ranks that can map each other's memory, host by host.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// What connects ranks of one host, the slowest where hosts differ; the same on all ranks.
    pub fn near(&self) -> TransportKind {
        self.near
    }

    /// The ranks of my host, me among them.
    pub fn my_host(&self) -> &[Rank] {
        self.topology.local_ranks(self.world.rank)
    }

    /// The mapped memory of my host, once opened.
    pub fn windows(&self) -> Option<Arc<HostWindows>> {
        self.windows.clone()
    }

    /// The rings that are open.
    #[inline]
    pub fn links(&mut self) -> &mut Links {
        &mut self.links
    }

    /// Whether all of `needs` are connected.
    pub fn has(&self, needs: &[Need]) -> bool {
        needs.iter().all(|need| self.links.has(need))
    }

    /// Maps the arenas of all ranks of my host. Collective over the host; the second call does nothing.
    ///
    /// The arenas of neighbours are one piece of memory, which the first of them makes and hands to all: so a rank
    /// takes a piece for each [`PIECE_RANKS`] ranks, and not one for each rank.
    ///
    /// # Errors
    /// Of memory, or of a peer that does not come by the deadline.
    pub fn open_windows(&mut self, setup: &mut Setup<'_>) -> Result<()> {
        if self.windows.is_some() {
            return Ok(());
        }
        let ranks = self.my_host().to_vec();
        let me = ranks.binary_search(&self.world.rank).expect("my host has me");
        let sharing = self.widest_sharing(&ranks);
        let (arena_bytes, stride) = (Arena::memory_bytes(self.sizes.scratch_bytes), self.arena_stride());
        let pieces: Vec<&[Rank]> = ranks.chunks(PIECE_RANKS).collect();
        let owners: Vec<(Rank, Option<usize>)> =
            pieces.iter().map(|piece| (piece[0], Some(piece.len() * stride))).collect();
        let makes = me.is_multiple_of(PIECE_RANKS);
        let mine = makes.then(|| self.new_piece(pieces[me / PIECE_RANKS].len(), sharing)).transpose()?;
        let offered = mine.as_ref().map(|(memory, pointers)| (memory.as_region(), pointers.as_ref()));
        let taken = self.exchange_memory((&owners, &ranks), offered, (TAG_ARENA, Home::Host), setup)?;
        let (mut arenas, mut boards) = (Vec::with_capacity(ranks.len()), Vec::with_capacity(ranks.len()));
        for (taken, piece) in taken.into_iter().zip(&pieces) {
            let (memory, pointers) = match (taken, &mine) {
                (Some(taken), _) => (taken.on_host(piece[0])?, taken.pointers),
                (None, Some(mine)) => mine.clone(),
                (None, None) => return Err(Error::internal("a rank took no memory of a peer")),
            };
            arenas.extend((0..piece.len()).map(|place| Arena::new(memory.part(place * stride, arena_bytes))));
            boards.extend(pointers.into_iter().flat_map(|pointers| UserBoard::all(&pointers)));
        }
        if let Some(witness) = self.links.reads.witness() {
            arenas[me].show_witness(witness);
        }
        let boards = (boards.len() == ranks.len()).then_some(boards);
        // A process says who it is. A rank that says it wrongly, from another container, reads nothing here; before it
        // works in a registered buffer, the system says who it is, when the buffer's descriptor is handed over.
        let neighbour = |rank: &Rank| match self.transports[self.place(*rank)].sharing() {
            Some(Sharing::Threads) => Neighbour::Thread,
            Some(Sharing::Processes | Sharing::ProcessesByHandle | Sharing::Hosts) | None => {
                Neighbour::Process(self.links.reads.process(*rank))
            }
        };
        let neighbours = ranks.iter().map(neighbour).collect();
        let (rank, count) = (self.world.rank, ranks.len());
        if let Some(transport) = self.transports.iter().find(|transport| transport.sharing() == Some(sharing)) {
            transport.log_mapping(rank, &format!("Mapped {arena_bytes} bytes of each of {count} local ranks"));
        }
        self.windows = Some(Arc::new(HostWindows { ranks, me, arenas, neighbours, boards, registered: Vec::new() }));
        Ok(())
    }

    /// Bytes from one arena to the next: large pages hold no two.
    fn arena_stride(&self) -> usize {
        Arena::memory_bytes(self.sizes.scratch_bytes).next_multiple_of(LARGE_PAGE)
    }

    /// Memory for the arenas of so many ranks; between threads, also for what they tell of their users' buffers.
    fn new_piece(&self, ranks: usize, sharing: Sharing) -> Result<(HostRegion, Option<Arc<[UserPointers]>>)> {
        let memory = memory_for_peers(ranks * self.arena_stride(), sharing)?;
        memory.keep().prefer_huge_pages();
        let pointers = (sharing == Sharing::Threads).then(|| (0..ranks).map(|_| UserPointers::default()).collect());
        Ok((memory, pointers))
    }

    /// How memory is allocated that all of `ranks` can map: for processes as soon as one of them is in another.
    fn widest_sharing(&self, ranks: &[Rank]) -> Sharing {
        let threads = |rank: &Rank| self.transports[self.place(*rank)].sharing() == Some(Sharing::Threads);
        if ranks.iter().all(threads) { Sharing::Threads } else { Sharing::Processes }
    }

    /// Registers `mine` together with the buffers of the other ranks of my host, so that peers can work in them.
    /// Collective over the host, whose windows are open.
    ///
    /// # Errors
    /// As [`Fabric::open_windows`]; [`crate::error::Kind::InvalidUsage`] beyond 1024 registrations.
    pub fn register(&mut self, buffer: &KnownBuffer, setup: &mut Setup<'_>) -> Result<()> {
        let windows = self.windows.clone().ok_or_else(|| Error::internal("registered before the windows were open"))?;
        let mine = &buffer.memory;
        // All ranks take the same number.
        let number = windows.registered.iter().position(Option::is_none).unwrap_or(windows.registered.len());
        if number == MOST_REGISTRATIONS {
            return Err(Error::invalid_usage(format!(
                "more than {MOST_REGISTRATIONS} registered buffers: register fewer, larger ones"
            )));
        }
        let generation = mine.keep().share_anew()?;
        let peers: Vec<Rank> = windows.ranks.clone();
        let owners: Vec<(Rank, Option<usize>)> = peers.iter().map(|peer| (*peer, None)).collect();
        let offered = Some((mine.as_region(), None));
        let taken = self.exchange_memory((&owners, &peers), offered, (TAG_BUFFER, Home::Host), setup)?;
        let mut neighbours = windows.neighbours.clone();
        let mut memory: Vec<HostRegion> = Vec::with_capacity(peers.len());
        for ((taken, neighbour), peer) in taken.into_iter().zip(&mut neighbours).zip(&peers) {
            memory.push(match taken {
                Some(imported) => {
                    *neighbour = imported.neighbour;
                    imported.on_host(*peer)?
                }
                None => mine.clone(),
            });
        }
        let (mut registered, rank, length, count) =
            (windows.registered.clone(), self.world.rank, mine.bytes(), peers.len());
        let fresh = Some(Registered { memory, generation, life: buffer.life.clone() });
        match registered.get_mut(number) {
            Some(place) => *place = fresh,
            None => registered.push(fresh),
        }
        let all = registered.iter().flatten().count();
        crate::log::detail!(Reg @ rank, "Registered a buffer of {length} bytes with {count} local ranks, {all} in all");
        self.windows = Some(Arc::new(HostWindows { neighbours, registered, ..windows.alike() }));
        Ok(())
    }

    /// Lets go of the registrations of `memory`, of which peers still know.
    pub fn let_go(&mut self, memory: &HostRegion) {
        let Some(windows) = &self.windows else { return };
        let mut registered = windows.registered.clone();
        for own in registered.iter_mut().flatten().filter(|own| own.memory[windows.me].base() == memory.base()) {
            own.life = Weak::new();
        }
        self.windows = Some(Arc::new(HostWindows { registered, ..windows.alike() }));
    }

    /// A bit for each registration of which this rank has let go, or that is none; `None` where there are none.
    pub fn registrations_let_go(&self) -> Option<Vec<u8>> {
        let registered = &self.windows.as_ref()?.registered;
        let mut gone = vec![0; registered.len().div_ceil(8)];
        for (number, one) in registered.iter().enumerate() {
            let is_gone = one.as_ref().is_none_or(|one| one.life.strong_count() == 0);
            gone[number / 8] |= u8::from(is_gone) << (number % 8);
        }
        registered.iter().any(Option::is_some).then_some(gone)
    }

    /// Forgets the registrations that `is_gone` names.
    pub fn unregister(&mut self, is_gone: impl Fn(usize) -> bool) {
        let Some(windows) = &self.windows else { return };
        let of = |(number, one): (usize, &Option<Registered>)| one.clone().filter(|_| !is_gone(number));
        let registered = windows.registered.iter().enumerate().map(of).collect();
        self.windows = Some(Arc::new(HostWindows { registered, ..windows.alike() }));
    }

    /// Hands `mine` to all other ranks of `takers`, and maps that of each of `owners` for the work of `home`, of so
    /// many bytes where that is known; `None` at my own place.
    pub(super) fn exchange_memory(
        &mut self,
        (owners, takers): (&[(Rank, Option<usize>)], &[Rank]),
        mine: Option<Offered<'_>>,
        (tag, home): (u32, Home),
        setup: &mut Setup<'_>,
    ) -> Result<Vec<Option<Imported>>> {
        let (before, me) = (self.outstanding(), self.world.rank);
        if let Some(mine) = mine {
            self.offer_memory(takers, mine, tag, setup)?;
        }
        let mut importing = Vec::with_capacity(owners.len());
        for (place, (peer, bytes)) in owners.iter().enumerate().filter(|(_, (peer, _))| *peer != me) {
            let written = setup.recv(self, *peer, (tag, "to make this call: its memory is not mapped yet"))?;
            let (length, offer) = read_length(*peer, self.read_offer(*peer, &written)?)?;
            if bytes.is_some_and(|bytes| bytes != length) {
                return Err(Error::remote(*peer, format!("rank {peer} offered memory of another size")));
            }
            let wanted = PeerOffer { owner: *peer, home, bytes: length };
            let import = self.transport(*peer).import(wanted, offer, setup.bootstrap)?;
            importing.push((place, *peer, import));
        }
        let mut imported: Vec<Option<Imported>> = owners.iter().map(|_| None).collect();
        self.serve_until(setup, |fabric| {
            let all = importing.len();
            for (place, peer, import) in &mut importing {
                imported[*place] = import.progress().map_err(|error| unreachable(*peer, &error))?;
            }
            importing.retain(|(place, ..)| imported[*place].is_none());
            let waiting = importing.first().map(|(_, peer, _)| *peer);
            let done = importing.is_empty() && fabric.settled_since(&before);
            Ok(Served { done, moved: importing.len() < all, waiting })
        })?;
        Ok(imported)
    }

    /// Offers `mine` to all other ranks of `ranks`, once by each transport that reaches some of them.
    fn offer_memory(&mut self, ranks: &[Rank], mine: Offered<'_>, tag: u32, setup: &mut Setup<'_>) -> Result<()> {
        let length = u64::try_from(mine.0.bytes()).expect("lengths are at most 64 bits").to_le_bytes();
        for place in 0..self.transports.len() {
            let others = ranks.iter().copied().filter(|rank| *rank != self.world.rank && self.place(*rank) == place);
            let takers: Vec<Rank> = others.collect();
            let Some(first) = takers.first() else { continue };
            let offer = self.transports[place].offer(mine, &takers, setup.bootstrap)?;
            let written = self.write_offer(*first, &[&length, &offer[..]].concat());
            for peer in takers {
                setup.send(self, peer, (tag, &written))?;
            }
        }
        Ok(())
    }

    /// How far connections under way have come, and what transports have refused, for the error of a set-up.
    #[cold]
    fn told_of_connections(&self) -> Vec<String> {
        let refused = self.transports.iter().filter_map(|transport| transport.refused());
        self.connecting.standing().take(MOST_TOLD).chain(refused).collect()
    }

    /// Answers peers until `step` says that all is done.
    pub(super) fn serve_until(
        &mut self,
        setup: &mut Setup<'_>,
        mut step: impl FnMut(&mut Fabric) -> Result<Served>,
    ) -> Result<()> {
        let mut backoff = Backoff::new(SETUP_PATIENCE);
        loop {
            self.serve(clock::now())?;
            let Served { done, moved, waiting } = step(self)?;
            if done {
                self.note_debt();
                return Ok(());
            }
            if moved {
                backoff.reset();
            }
            let unconnected = self.connecting.peers().collect();
            // Words are made where the wait is slow enough for somebody to read them.
            let told = if backoff.started().is_some() { self.told_of_connections() } else { Vec::new() };
            let waiting_for = Serving { waiting, unconnected, told };
            match setup.turn.turn(self, &mut backoff, &waiting_for)? {
                Turned::Moved => backoff.reset(),
                Turned::Awake => {}
                Turned::Tired(slice) => futex::nap(slice.min(backoff.nap(SETUP_NAP, LONG_SETUP_NAP))),
            }
        }
    }
}

/// What a look while serving found.
pub(super) struct Served {
    pub(super) done: bool,
    pub(super) moved: bool,
    pub(super) waiting: Option<Rank>,
}

/// What a set-up waits for.
struct Serving {
    waiting: Option<Rank>,
    /// Some come more than once.
    unconnected: Vec<Rank>,
    /// How far connections have come, and what was refused.
    told: Vec<String>,
}

impl Waiting for Serving {
    fn words(&self) -> String {
        match self.waiting {
            Some(peer) => format!("rank {peer} (to make the matching call: the two are not connected yet)"),
            None => "other ranks of this host (to make this call: this rank's memory is not mapped yet)".to_owned(),
        }
    }

    fn unconnected(&self) -> Option<Vec<Rank>> {
        (!self.unconnected.is_empty()).then(|| self.unconnected.clone())
    }

    fn beside(&self) -> Option<String> {
        (!self.told.is_empty()).then(|| self.told.join("; "))
    }
}

/// Connections under way that an error tells of.
const MOST_TOLD: usize = 4;

/// A connection that cannot be set up, most often because `peer` has just died: this side may see that first. What this
/// side has run out of is no fault of the peer.
pub(super) fn unreachable(peer: Rank, error: &Error) -> Error {
    if limits::is_shortage(error) {
        return error.duplicate();
    }
    Error::remote(peer, format!("cannot set up a connection with rank {peer}: {}", error.message()))
}

/// The length before an offer of memory, and the offer.
fn read_length(peer: Rank, written: &[u8]) -> Result<(usize, &[u8])> {
    let broken = || Error::remote(peer, format!("rank {peer} offered memory of a broken length"));
    let (length, offer) = written.split_first_chunk().ok_or_else(broken)?;
    Ok((usize::try_from(u64::from_le_bytes(*length)).map_err(|_| broken())?, offer))
}

/// Says for each rank of my host why no better transport connects us.
fn log_refusals(mine: &PeerInfo, peers: &[PeerInfo], policy: Policy) {
    for peer in peers.iter().filter(|peer| peer.host == mine.host && peer.rank != mine.rank) {
        let (me, kind) = (mine.rank, select(mine, peer, policy));
        if kind != TABLE[0].kind {
            crate::log::trace!(Graph @ me, "{me} -> {} by {kind}, not by {}", peer.rank, refusals(mine, peer, policy));
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
    kinds.max().unwrap_or(TABLE[TABLE.len() - 1].kind)
}

const TAG_ARENA: u32 = 0x5243_0000;
const TAG_BUFFER: u32 = 0x5246_0000;

/// Ranks whose arenas are one piece of memory.
const PIECE_RANKS: usize = 32;
/// A large page of the machines that rsccl knows.
const LARGE_PAGE: usize = 2 << 20;
/// Registered buffers of a communicator.
const MOST_REGISTRATIONS: usize = 1024;
/// Set-up is rare and its peers may be late: it does not spin for long.
const SETUP_PATIENCE: Patience = Patience::fixed(16, Duration::from_micros(200));
/// How long a set-up sleeps between two looks at its peers.
const SETUP_NAP: Duration = Duration::from_micros(200);
/// The same, of a wait that has lasted long.
const LONG_SETUP_NAP: Duration = Duration::from_millis(5);
