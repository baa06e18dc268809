//! The connections of one communicator: made when a plan first needs them, kept until the end.
//!
//! Here: which ranks share a host, the memory that they map of each other, and what drives the hand-shakes (`opening`)
//! for rings and for queues on devices (`connection_ends`).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::bootstrap::{Bootstrap, Listen};
use crate::device::{Home, HostRegion, Region, Sharing};
use crate::error::{Error, Kind, Result};
use crate::sync::primitive::{Arc, Weak};
use crate::sync::{AbortFlag, Backoff, Chime, Deadline, Patience, Turn, Turned, Wait, Waiting};
use crate::sys::poller::Interest;
use crate::sys::{clock, futex};
use crate::topo::Topology;
use crate::transport::arena::Arena;
use crate::transport::connection::{EndKey, EndPart, EndRequest, Need, Receivers, TAG_ASK};
use crate::transport::connection_ends::{ConnectionEnds, ConnectionKind, OpenEnd};
use crate::transport::device_queues::{ConnectionMemory, DeviceQueues, QueueMemory};
use crate::transport::fabric_handles;
use crate::transport::kernel_slots::FarEnd;
use crate::transport::links::Links;
use crate::transport::opening::{Openings, ROUND_PEERS};
use crate::transport::peer_reads::PeerReads;
use crate::transport::pumps::PumpSources;
use crate::transport::routes::{Routes, Sizes, unreachable};
use crate::transport::table::{Imported, Offered, PeerOffer, TABLE, memory_for_peers};
use crate::transport::windows::{HostWindows, KnownBuffer, Neighbour, Registration, UserBoard, UserPointers};
use crate::transport::{DeadRoutes, Network, NicFacts, NicTable, PeerInfo, Policy, neighbourhood, select};
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
    fn send(&mut self, fabric: &mut Fabric, peer: Rank, (tag, bytes): (u32, &[u8])) -> Result<()> {
        self.bootstrap.post(peer, tag, bytes, self.wait)?;
        let what = "to make this call: the two are not connected yet";
        self.turn_until(fabric, (peer, what), |setup, slice| {
            let wait = setup.wait.until(Deadline::within_wait(slice));
            in_time(setup.bootstrap.settle(peer, &wait))
        })
    }

    /// [`Bootstrap::recv`], with turns meanwhile: what `peer` waits for may never come, and others may say so.
    fn recv(&mut self, fabric: &mut Fabric, peer: Rank, (tag, what): (u32, &str)) -> Result<Vec<u8>> {
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
    routes: Routes,
    topology: Topology,
    hosts: Topology,
    near: TransportKind,
    pub(super) windows: Option<Arc<HostWindows>>,
    /// How many buffers have ever been registered.
    registrations: u32,
    pub(super) links: Links,
    pub(super) queues: DeviceQueues,
    openings: Openings<EndKey, OpenEnd>,
    /// For words of few bytes, which wait for nothing. It is made once: a new one in each turn would begin a wait
    /// anew, and then nobody sees that the process stood still since the last look (`sys::clock`).
    at_once: Wait,
    /// See [`Fabric::owes`].
    owes: bool,
}

impl Fabric {
    /// A fabric with nothing connected yet.
    pub fn new(world: World, peers: &[PeerInfo], policy: Policy, sizes: Sizes) -> Fabric {
        let mine = &peers[world.rank.index()];
        Fabric {
            routes: Routes::new(world, peers, policy, sizes),
            near: nearest(peers, policy),
            topology: Topology::new(peers.iter().map(|peer| neighbourhood(peer, policy))),
            hosts: Topology::new(peers.iter().map(|peer| peer.host)),
            windows: None,
            registrations: 0,
            links: Links::new(PeerReads::new(mine, peers, policy)),
            queues: DeviceQueues::default(),
            openings: Openings::new(ROUND_PEERS),
            at_once: Wait::new(Duration::MAX, &AbortFlag::new()),
            owes: false,
        }
    }

    /// Learns which NICs all ranks have: data between hosts take several of them. What is found out about dead ones is
    /// kept in `dead`.
    #[must_use]
    pub fn with_nics(mut self, table: NicTable, dead: &DeadRoutes) -> Fabric {
        let table = Arc::new(table);
        self.routes.transports.iter_mut().for_each(|transport| transport.use_nics(&table, dead));
        self
    }

    /// Learns which network all ranks use between hosts.
    #[must_use]
    pub fn with_network(mut self, network: &Network) -> Fabric {
        self.routes.transports.iter_mut().for_each(|transport| transport.use_network(network));
        self
    }

    /// What is known of the NIC that takes requests of connections with other hosts, where one does.
    pub fn nic(&self) -> Option<NicFacts> {
        self.routes.transports.iter().find_map(|transport| transport.nic())
    }

    /// Answers peers that connect to this rank, or import its memory. It never blocks.
    ///
    /// # Errors
    /// Of a listener of this rank.
    pub fn serve(&mut self, now: Instant) -> Result<()> {
        self.routes.serve(now)
    }

    /// Whether an offer of this rank has not been taken, or a connection is under way, so that whoever waits must
    /// [pay](Fabric::pay) meanwhile. It costs nothing to ask.
    #[inline]
    pub fn owes(&self) -> bool {
        self.owes
    }

    /// Hands out what is still owed, and moves the connections under way on; true where something moved.
    ///
    /// # Errors
    /// Of a listener of this rank, a peer's offer, a socket, or a peer that has gone.
    pub fn pay(&mut self, bootstrap: &dyn Bootstrap) -> Result<bool> {
        let before = self.routes.outstanding().len();
        self.serve(clock::now())?;
        let (openings, mut ends) = self.openings(bootstrap, None);
        let moved = openings.is_any() && openings.progress(&mut ends)?;
        Ok((self.note_debt() < before) | moved)
    }

    /// Looks how many offers have not been taken.
    fn note_debt(&mut self) -> usize {
        let debt = self.routes.outstanding().len();
        self.owes = debt > 0 || self.openings.is_any();
        debt
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
        self.topology.local_ranks(self.routes.world.rank)
    }

    /// The mapped memory of my host, once opened.
    pub fn windows(&self) -> Option<Arc<HostWindows>> {
        self.windows.clone()
    }

    /// These are the host's from now on, for messages too.
    fn take_windows(&mut self, windows: HostWindows) {
        let windows = Arc::new(windows);
        self.links.shared = windows.registered.iter().any(Option::is_some).then(|| Arc::clone(&windows));
        self.windows = Some(windows);
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
        let me = ranks.binary_search(&self.routes.world.rank).expect("my host has me");
        let sharing = self.widest_sharing(&ranks);
        let (arena_bytes, stride) = (Arena::memory_bytes(self.routes.sizes.scratch_bytes), self.arena_stride());
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
        let neighbour = |rank: &Rank| match self.routes.sharing(*rank) {
            Some(Sharing::Threads) => Neighbour::Thread,
            Some(Sharing::Processes | Sharing::ProcessesByHandle | Sharing::Hosts) | None => {
                Neighbour::Process(self.links.reads.process(*rank))
            }
        };
        let neighbours = ranks.iter().map(neighbour).collect();
        let (rank, count) = (self.routes.world.rank, ranks.len());
        if let Some(transport) = self.routes.transports.iter().find(|transport| transport.sharing() == Some(sharing)) {
            transport.log_mapping(rank, &format!("Mapped {arena_bytes} bytes of each of {count} local ranks"));
        }
        self.take_windows(HostWindows { ranks, me, arenas, neighbours, boards, registered: Vec::new() });
        Ok(())
    }

    /// Bytes from one arena to the next: large pages hold no two.
    pub(super) fn arena_stride(&self) -> usize {
        Arena::memory_bytes(self.routes.sizes.scratch_bytes).next_multiple_of(LARGE_PAGE)
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
        let threads = |rank: &Rank| self.routes.sharing(*rank) == Some(Sharing::Threads);
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
        let serial = self.registrations;
        // Nobody's offer is that old.
        self.registrations = serial.wrapping_add(1);
        let generation = buffer.generation.map_or_else(|| mine.keep().share_anew(), Ok)?;
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
            (windows.registered.clone(), self.routes.world.rank, mine.bytes(), peers.len());
        let KnownBuffer { life, calls, placed, .. } = buffer.clone();
        let fresh = Some(Registration { serial, memory, generation, life, calls, placed });
        match registered.get_mut(number) {
            Some(place) => *place = fresh,
            None => registered.push(fresh),
        }
        let all = registered.iter().flatten().count();
        crate::log::detail!(Reg @ rank, "Registered a buffer of {length} bytes with {count} local ranks, {all} in all");
        self.take_windows(HostWindows { neighbours, registered, ..windows.alike() });
        Ok(())
    }

    /// Lets go of the registrations of `buffer`, of which peers still know.
    pub fn let_go(&mut self, buffer: &KnownBuffer) {
        let Some(windows) = &self.windows else { return };
        let mut registered = windows.registered.clone();
        for own in registered.iter_mut().flatten().filter(|own| own.life.ptr_eq(&buffer.life)) {
            own.life = Weak::new();
        }
        self.take_windows(HostWindows { registered, ..windows.alike() });
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
        let of = |(number, one): (usize, &Option<Registration>)| one.clone().filter(|_| !is_gone(number));
        let registered = windows.registered.iter().enumerate().map(of).collect();
        self.take_windows(HostWindows { registered, ..windows.alike() });
    }

    /// Hands `mine` to all other ranks of `takers`, and maps that of each of `owners` for the work of `home`, of so
    /// many bytes where that is known; `None` at my own place.
    fn exchange_memory(
        &mut self,
        (owners, takers): (&[(Rank, Option<usize>)], &[Rank]),
        mine: Option<Offered<'_>>,
        (tag, home): (u32, Home),
        setup: &mut Setup<'_>,
    ) -> Result<Vec<Option<Imported>>> {
        let (before, me) = (self.routes.outstanding(), self.routes.world.rank);
        if let Some(mine) = mine {
            self.offer_memory(takers, mine, tag, setup)?;
        }
        let mut importing = Vec::with_capacity(owners.len());
        for (place, (peer, bytes)) in owners.iter().enumerate().filter(|(_, (peer, _))| *peer != me) {
            let written = setup.recv(self, *peer, (tag, "to make this call: its memory is not mapped yet"))?;
            let (length, offer) = read_length(*peer, self.routes.read_offer(*peer, &written)?)?;
            if bytes.is_some_and(|bytes| bytes != length) {
                return Err(Error::remote(*peer, format!("rank {peer} offered memory of another size")));
            }
            let wanted = PeerOffer { owner: *peer, home, bytes: length };
            let import = self.routes.transport(*peer).import(wanted, offer, setup.bootstrap)?;
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
            let done = importing.is_empty() && fabric.routes.settled_since(&before);
            Ok(Served { done, moved: importing.len() < all, waiting })
        })?;
        Ok(imported)
    }

    /// Offers `mine` to all other ranks of `ranks`, once by each transport that reaches some of them.
    fn offer_memory(&mut self, ranks: &[Rank], mine: Offered<'_>, tag: u32, setup: &mut Setup<'_>) -> Result<()> {
        let length = u64::try_from(mine.0.bytes()).expect("lengths are at most 64 bits").to_le_bytes();
        for place in 0..self.routes.transports.len() {
            let others = ranks
                .iter()
                .copied()
                .filter(|rank| *rank != self.routes.world.rank && self.routes.place(*rank) == place);
            let takers: Vec<Rank> = others.collect();
            let Some(first) = takers.first() else { continue };
            let offer = self.routes.transports[place].offer(mine, &takers, setup.bootstrap)?;
            let written = self.routes.write_offer(*first, &[&length, &offer[..]].concat());
            for peer in takers {
                setup.send(self, peer, (tag, &written))?;
            }
        }
        Ok(())
    }

    /// Opens the connections of `needs` that are not open yet. The peers of each need call it with the matching need.
    ///
    /// # Errors
    /// Of memory or sockets, or of a peer that does not come by the deadline.
    pub fn connect(&mut self, needs: &[Need], receivers: Receivers, setup: &mut Setup<'_>) -> Result<()> {
        self.open((needs, ConnectionKind::Rings), receivers, setup)
    }

    /// Begins to open the connections of `needs` that are neither open nor under way. From then on the rank
    /// [owes](Fabric::owes).
    ///
    /// # Errors
    /// Of memory, or of the bootstrap that carries the offers.
    pub fn begin_connect(
        &mut self,
        needs: &[Need],
        receivers: Receivers,
        (bootstrap, wait): (&dyn Bootstrap, &Wait),
    ) -> Result<()> {
        self.begin((needs, ConnectionKind::Rings), receivers, (bootstrap, Some(wait))).map(drop)
    }

    /// Whether the connection of `need` is open at both ends.
    #[inline]
    pub fn is_connected(&self, need: &Need) -> bool {
        // Mostly no hand-shake is under way.
        let opens = || self.openings.is_any() && self.openings.has(EndKey { need: *need, part: EndPart::Ring });
        self.links.has(need) && !opens()
    }

    /// Begins to open this rank's end of the connection for which a peer asks, unless it has begun before, or can open
    /// none. From then on the rank [owes](Fabric::owes).
    ///
    /// # Errors
    /// As [`Fabric::begin_connect`].
    pub fn open_for(&mut self, ask: EndRequest, bootstrap: &dyn Bootstrap) -> Result<()> {
        match self.openings(bootstrap, None).1.asked(ask)? {
            Some((need, kind)) => self.begin((&[need], kind), Receivers::Come, (bootstrap, None)).map(drop),
            None => Ok(()),
        }
    }

    /// Opens the connections of `needs` that are not open yet.
    fn open(
        &mut self,
        connections: (&[Need], ConnectionKind),
        receivers: Receivers,
        setup: &mut Setup<'_>,
    ) -> Result<()> {
        let before = self.routes.outstanding();
        let keys = self.begin(connections, receivers, (setup.bootstrap, Some(setup.wait)))?;
        // The turns of this wait move them on, as those of any other wait do: this rank owes them.
        self.serve_until(setup, |fabric| {
            let is_open = !keys.iter().any(|key| fabric.openings.has(*key));
            let waiting = fabric.openings.first().map(|key| key.need.peer);
            Ok(Served { done: is_open && fabric.routes.settled_since(&before), moved: false, waiting })
        })
    }

    /// Begins to open what of the connections of `needs` is neither open nor under way, and asks peers to do the same;
    /// returns all ends of the connections.
    fn begin(
        &mut self,
        (needs, kind): (&[Need], ConnectionKind),
        receivers: Receivers,
        (bootstrap, wait): (&dyn Bootstrap, Option<&Wait>),
    ) -> Result<Vec<EndKey>> {
        let (openings, mut ends) = self.openings(bootstrap, wait);
        let mut keys = Vec::with_capacity(needs.len());
        for need in needs {
            let (first, mut has_begun) = (keys.len(), false);
            keys.extend(ends.keys(*need, kind)?);
            for key in &keys[first..] {
                has_begun |= openings.begin(*key, &mut ends)?;
            }
            if has_begun && receivers == Receivers::AreAsked {
                ends.ask(*need, kind)?;
            }
        }
        self.note_debt();
        Ok(keys)
    }

    /// The hand-shakes, and what they need; with a `wait` where one begins.
    fn openings<'a>(
        &'a mut self,
        bootstrap: &'a dyn Bootstrap,
        wait: Option<&'a Wait>,
    ) -> (&'a mut Openings<EndKey, OpenEnd>, ConnectionEnds<'a>) {
        let Fabric { routes, links, queues, openings, at_once, .. } = self;
        (openings, ConnectionEnds { routes, links, queues, bootstrap, wait: wait.unwrap_or(at_once) })
    }

    /// Prepares the sleep of a thread that takes turns with these connections and finds nothing to do: from now on
    /// `chime` rings, the flags of rings rise, or one of the descriptors that `listen` is given becomes readable where
    /// there may be work; returns after how long there is some at the latest. `None` where there is work, or something
    /// has to be looked at.
    ///
    /// # Errors
    /// Of `listen`.
    pub fn await_work(
        &mut self,
        bootstrap: &dyn Bootstrap,
        chime: &Arc<Chime>,
        listen: Listen<'_>,
    ) -> Result<Option<Duration>> {
        if self.openings.is_busy() {
            return Ok(None);
        }
        let Some(at_most) = bootstrap.await_news(chime, TAG_ASK, &mut *listen)? else { return Ok(None) };
        // Nobody else comes to the listeners, and what nobody looks at would end each sleep at once.
        let serves = self.openings.is_any() || !self.routes.outstanding().is_empty();
        for transport in self.routes.transports.iter().filter(|_| serves) {
            let Some(descriptors) = transport.sources(chime) else { return Ok(None) };
            descriptors.into_iter().try_for_each(|descriptor| listen(descriptor, Interest::Read))?;
        }
        let of_pumps = self.await_pumps(listen)?;
        Ok(of_pumps.map(|pumps| pumps.min(at_most)))
    }

    /// The same of pumps alone.
    ///
    /// # Errors
    /// As there.
    pub fn await_pumps(&mut self, listen: Listen<'_>) -> Result<Option<Duration>> {
        let Some(PumpSources { descriptors, at_most }) = self.links.sources()? else { return Ok(None) };
        descriptors.into_iter().try_for_each(|(descriptor, interest)| listen(descriptor, interest))?;
        Ok(Some(at_most))
    }

    /// Hands `mine`, memory of the device that this rank works on, to `peers`, and maps theirs, of the bytes that stand
    /// beside them, for that device. All peers make the same call. Queues of connections are as `queues` says from now
    /// on.
    ///
    /// # Errors
    /// Of memory, or of a peer that does not come by the deadline.
    pub fn share_with_processes(
        &mut self,
        mine: &Region,
        (peers, queues): (&[(Rank, usize)], QueueMemory),
        setup: &mut Setup<'_>,
    ) -> Result<Vec<Region>> {
        let home = mine.home();
        self.queues.here = Some((home, queues));
        let takers: Vec<Rank> = peers.iter().map(|(peer, _)| *peer).collect();
        let taken = self.exchange_memory((&wanted(peers), &takers), Some((mine, None)), (TAG_SIDE, home), setup)?;
        taken.into_iter().map(|imported| Ok(imported.ok_or_else(own_memory)?.memory)).collect()
    }

    /// The same with `peers` of other hosts, which the queues name as such: after [`Fabric::share_with_processes`]. The
    /// memory must stay until all have mapped it.
    ///
    /// # Errors
    /// Of memory, of a peer that does not come by the deadline, and where a handle does not lead here.
    pub fn share_with_hosts(
        &mut self,
        mine: &Region,
        peers: &[(Rank, usize)],
        setup: &mut Setup<'_>,
    ) -> Result<Vec<Region>> {
        if peers.is_empty() {
            return Ok(Vec::new());
        }
        let offer = fabric_handles::offer(mine)?;
        for (peer, _) in peers {
            setup.send(self, *peer, (TAG_FABRIC_SIDE, &offer))?;
        }
        let mut taken = Vec::with_capacity(peers.len());
        for (owner, bytes) in peers.iter().copied() {
            let theirs =
                setup.recv(self, owner, (TAG_FABRIC_SIDE, "to make this call: its memory is not mapped yet"))?;
            taken.push(fabric_handles::import(PeerOffer { owner, home: mine.home(), bytes }, &theirs)?);
        }
        Ok(taken)
    }

    /// The same for memory that is shared later, if this rank has some, and that of `owners`, for the work of the
    /// device `home`; queues stay as they were said to be.
    ///
    /// # Errors
    /// As [`Fabric::share_with_processes`].
    pub fn share_window(
        &mut self,
        (mine, home): (Option<&Region>, Home),
        (owners, takers): (&[(Rank, usize)], &[Rank]),
        setup: &mut Setup<'_>,
    ) -> Result<Vec<Region>> {
        let mine = mine.map(|mine| (mine, None));
        let taken = self.exchange_memory((&wanted(owners), takers), mine, (TAG_WINDOW, home), setup)?;
        taken.into_iter().map(|imported| Ok(imported.ok_or_else(own_memory)?.memory)).collect()
    }

    /// The same for memory of the host: hands `mine`, if this rank has some, to `takers`, and maps that of `owners`.
    ///
    /// # Errors
    /// As [`Fabric::share_with_processes`].
    pub fn share_of_host(
        &mut self,
        mine: Option<&HostRegion>,
        (owners, takers): (&[(Rank, usize)], &[Rank]),
        setup: &mut Setup<'_>,
    ) -> Result<Vec<HostRegion>> {
        let mine = mine.map(|mine| (mine.as_region(), None));
        let taken = self.exchange_memory((&wanted(owners), takers), mine, (TAG_STAGE, Home::Host), setup)?;
        let on_host = |(imported, (owner, _)): (Option<Imported>, &(Rank, usize))| {
            imported.ok_or_else(own_memory)?.on_host(*owner)
        };
        taken.into_iter().zip(owners).map(on_host).collect()
    }

    /// The queue of a connection that is open.
    pub fn queue(&self, need: &Need) -> Option<ConnectionMemory> {
        self.queues.queue(need)
    }

    /// The connection of `need` with a rank that is reached by wires, open; `None` where it was taken before.
    pub fn take_far_end(&mut self, need: &Need) -> Option<FarEnd> {
        self.queues.take_far_end(need)
    }

    /// Opens the queues of `needs` that are not open yet. The peers of each come to the matching need in a call of
    /// theirs, or in a wait: those of messages are asked to.
    ///
    /// # Errors
    /// Of memory, or of a peer that does not come by the deadline.
    pub fn open_queues(&mut self, needs: &[Need], setup: &mut Setup<'_>) -> Result<()> {
        self.open((needs, ConnectionKind::Queues), Receivers::AreAsked, setup)
    }

    /// How far connections under way have come, and what transports have refused, for the error of a set-up.
    #[cold]
    fn told_of_connections(&self) -> Vec<String> {
        let refused = self.routes.transports.iter().filter_map(|transport| transport.refused());
        let standing = self.openings.standing().map(|(key, told)| format!("to rank {}: {told}", key.need.peer));
        standing.take(MOST_TOLD).chain(refused).collect()
    }

    /// Answers peers until `step` says that all is done.
    fn serve_until(
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
            let unconnected = self.openings.keys().map(|key| key.need.peer).collect();
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
struct Served {
    done: bool,
    moved: bool,
    waiting: Option<Rank>,
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

/// Owners as [`Fabric::exchange_memory`] takes them.
fn wanted(owners: &[(Rank, usize)]) -> Vec<(Rank, Option<usize>)> {
    owners.iter().map(|(owner, bytes)| (*owner, Some(*bytes))).collect()
}

#[cold]
fn own_memory() -> Error {
    Error::internal("a rank shares no memory with itself")
}

/// The length before an offer of memory, and the offer.
fn read_length(peer: Rank, written: &[u8]) -> Result<(usize, &[u8])> {
    let broken = || Error::remote(peer, format!("rank {peer} offered memory of a broken length"));
    let (length, offer) = written.split_first_chunk().ok_or_else(broken)?;
    Ok((usize::try_from(u64::from_le_bytes(*length)).map_err(|_| broken())?, offer))
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
const TAG_SIDE: u32 = 0x5248_0000;
const TAG_STAGE: u32 = 0x524b_0000;
const TAG_WINDOW: u32 = 0x524c_0000;
const TAG_FABRIC_SIDE: u32 = 0x524f_0000;

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

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
