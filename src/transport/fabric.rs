//! The connections of one communicator: made when a plan first needs them, kept until the end.
//!
//! Here: which ranks share a host, and the memory that they map of each other. Rings are made in `connect`.

use std::collections::HashMap;
use std::time::Duration;

use crate::bootstrap::Bootstrap;
use crate::device::{HostMemory, HostRegion, Sharing};
use crate::error::{Error, Kind, Result};
use crate::log;
use crate::plan::FLAGS;
use crate::sync::primitive::Arc;
use crate::sync::ring::Shape;
use crate::sync::{Backoff, Deadline, Patience, Wait, Watch, progress};
use crate::sys::{clock, futex};
use crate::topo::Topology;
use crate::transport::arena::Arena;
use crate::transport::connect::Connecting;
use crate::transport::door::{Doors, Taken};
use crate::transport::links::{Links, Need};
use crate::transport::offer::LocalOffer;
use crate::transport::port::SocketOptions;
use crate::transport::shm::Fetched;
use crate::transport::windows::{Board, HostWindows, Neighbour, Registered};
use crate::transport::{PeerInfo, Policy, neighbourhood, select};
use crate::types::{Rank, TransportKind, World};

/// What a set-up needs from the communicator.
pub struct Setup<'a> {
    /// Carries the offers.
    pub bootstrap: &'a dyn Bootstrap,
    /// Bounds each wait.
    pub wait: &'a Wait,
    /// Looked at while waiting.
    pub watch: &'a mut dyn Watch,
    /// What peers may wait for before they come to the set-up: moves it, true where anything moved. `None` where there is no such thing.
    pub beside: Option<Turn<'a>>,
}

/// Does what can be done beside a set-up. True where something moved.
pub type Turn<'a> = &'a mut (dyn FnMut(&mut Fabric) -> Result<bool> + 'a);

impl std::fmt::Debug for Setup<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup").field("wait", self.wait).finish_non_exhaustive()
    }
}

impl Setup<'_> {
    /// [`Bootstrap::recv`], looking at the watch meanwhile: what `peer` waits for may never come, and others may say so.
    fn recv(&mut self, fabric: &mut Fabric, peer: Rank, (tag, what): (u32, &str)) -> Result<Vec<u8>> {
        loop {
            while self.turn(fabric)? {}
            let look = if self.beside.is_some() { SETUP_NAP } else { SETUP_LOOK };
            let deadline = Deadline::after(look).earlier(self.wait.deadline);
            let wait = self.wait.until(deadline);
            match self.bootstrap.recv(peer, tag, &wait) {
                Err(error) if error.kind() == Kind::Timeout && !self.wait.deadline.passed(clock::now()) => {
                    self.watch.look(&|| format!("rank {peer} {what}"))?;
                }
                Err(error) if error.kind() == Kind::Timeout => {
                    return Err(Error::timeout(format!("timed out: waited for rank {peer} {what}")).about(peer));
                }
                other => return other,
            }
        }
    }

    fn turn(&mut self, fabric: &mut Fabric) -> Result<bool> {
        self.beside.as_mut().map_or(Ok(false), |beside| beside(fabric))
    }
}

/// The connections of one communicator.
#[derive(Debug)]
pub struct Fabric {
    pub(super) world: World,
    kinds: Vec<TransportKind>,
    topology: Topology,
    hosts: Topology,
    near: TransportKind,
    pub(super) sizes: Sizes,
    windows: Option<Arc<HostWindows>>,
    pub(super) links: Links,
    pub(super) doors: Doors,
    pub(super) connecting: Connecting,
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
            topology: Topology::new(peers.iter().map(|peer| neighbourhood(peer, policy))),
            hosts: Topology::new(peers.iter().map(|peer| peer.host)),
            sizes,
            windows: None,
            links: Links::default(),
            doors: Doors::new(world.rank, sizes.sockets),
            connecting: Connecting::default(),
        }
    }

    /// The transport that my connections with `peer` use.
    pub fn kind(&self, peer: Rank) -> TransportKind {
        self.kinds[peer.index()]
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
    /// # Errors
    /// Of memory, or of a peer that does not come by the deadline.
    pub fn open_windows(&mut self, setup: &mut Setup<'_>) -> Result<()> {
        if self.windows.is_some() {
            return Ok(());
        }
        let ranks = self.my_host().to_vec();
        let me = ranks.binary_search(&self.world.rank).expect("my host has me");
        let all_local = ranks.iter().all(|rank| self.kind(*rank) == TransportKind::Local);
        let mine =
            Arena::create(self.sizes.scratch_bytes, if all_local { Sharing::Threads } else { Sharing::Processes })?;
        let board = all_local.then(Arc::<Board>::default);
        let taken = self.exchange_memory(&ranks, (mine.memory(), board.as_ref()), TAG_ARENA, setup)?;
        let bytes = Arena::memory_bytes(self.sizes.scratch_bytes);
        let (mut arenas, mut neighbours) = (Vec::with_capacity(ranks.len()), vec![Neighbour::Thread; ranks.len()]);
        let mut boards: Vec<Arc<Board>> = Vec::with_capacity(ranks.len());
        for ((peer, taken), neighbour) in ranks.iter().zip(taken).zip(&mut neighbours) {
            match taken {
                None => {
                    arenas.push(mine.clone());
                    boards.extend(board.clone());
                }
                Some(taken) => {
                    let mapped = map_taken(*peer, taken, bytes)?;
                    arenas.push(Arena::new(mapped.memory));
                    boards.extend(mapped.board);
                    *neighbour = mapped.neighbour;
                }
            }
        }
        let boards = (boards.len() == ranks.len()).then_some(boards);
        let (rank, count) = (self.world.rank, ranks.len());
        if all_local {
            log::detail!(P2p @ rank, "Mapped {bytes} bytes of each of {count} local ranks via P2P/direct pointer");
        } else {
            log::detail!(Shm @ rank, "Mapped {bytes} bytes of each of {count} local ranks via SHM/memfd");
        }
        self.windows = Some(Arc::new(HostWindows { ranks, me, arenas, neighbours, boards, registered: Vec::new() }));
        Ok(())
    }

    /// Registers `mine` together with the buffers of the other ranks of my host, so that peers can work in them. Collective over the
    /// host, whose windows are open.
    ///
    /// # Errors
    /// As [`Fabric::open_windows`]; [`crate::error::Kind::InvalidUsage`] beyond 1024 registrations.
    pub fn register(&mut self, mine: &HostRegion, setup: &mut Setup<'_>) -> Result<()> {
        let windows = self.windows.clone().ok_or_else(|| Error::internal("registered before the windows were open"))?;
        if windows.registered.len() == MOST_REGISTRATIONS {
            return Err(Error::invalid_usage(format!(
                "more than {MOST_REGISTRATIONS} registered buffers: register fewer, larger ones"
            )));
        }
        let generation = mine.keep().share_anew()?;
        let peers: Vec<Rank> = windows.ranks.clone();
        let bytes = u64::try_from(mine.bytes()).expect("lengths are at most 64 bits").to_le_bytes();
        for peer in peers.iter().filter(|peer| **peer != self.world.rank) {
            setup.bootstrap.send(*peer, TAG_LENGTH, &bytes, setup.wait)?;
        }
        let taken = self.exchange_memory(&peers, (mine, None), TAG_BUFFER, setup)?;
        let mut memory = Vec::with_capacity(peers.len());
        for (peer, taken) in peers.iter().zip(taken) {
            let Some(taken) = taken else {
                memory.push(mine.clone());
                continue;
            };
            let length = setup.recv(self, *peer, (TAG_LENGTH, "to tell how long its buffer is"))?;
            let broken = || Error::remote(*peer, format!("rank {peer} registered a buffer of a broken length"));
            let length = <[u8; 8]>::try_from(length).map_err(|_| broken())?;
            let length = usize::try_from(u64::from_le_bytes(length)).map_err(|_| broken())?;
            memory.push(map_taken(*peer, taken, length)?.memory);
        }
        let (mut registered, rank, length, count) =
            (windows.registered.clone(), self.world.rank, mine.bytes(), peers.len());
        registered.push(Registered { memory, generation });
        log::detail!(Reg @ rank, "Registered a buffer of {length} bytes with {count} local ranks, {} in all", registered.len());
        let fresh = HostWindows {
            ranks: windows.ranks.clone(),
            me: windows.me,
            arenas: windows.arenas.clone(),
            neighbours: windows.neighbours.clone(),
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
        mine: (&HostRegion, Option<&Arc<Board>>),
        tag: u32,
        setup: &mut Setup<'_>,
    ) -> Result<Vec<Option<Taken>>> {
        let before = self.doors.outstanding();
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
        let me = self.world.rank;
        for (place, peer) in ranks.iter().enumerate().filter(|(_, peer)| **peer != me) {
            let blob = setup.recv(self, *peer, (tag, "to offer its memory"))?;
            takings.push((place, *peer, self.doors.take(self.kind(*peer), *peer, &blob, setup.bootstrap)?));
        }
        let mut taken: Vec<Option<Taken>> = ranks.iter().map(|_| None).collect();
        self.serve_until(setup, |fabric| {
            let all = takings.len();
            for (place, peer, taking) in &mut takings {
                taken[*place] = taking.progress().map_err(|error| unreachable(*peer, &error))?;
            }
            takings.retain(|(place, ..)| taken[*place].is_none());
            let waiting = takings.first().map(|(_, peer, _)| *peer);
            let done = takings.is_empty() && fabric.doors.settled_since(&before);
            Ok(Served { done, moved: takings.len() < all, waiting })
        })?;
        Ok(taken)
    }

    /// Serves the doors until `step` says that all is done.
    pub(super) fn serve_until(
        &mut self,
        setup: &mut Setup<'_>,
        mut step: impl FnMut(&mut Fabric) -> Result<Served>,
    ) -> Result<()> {
        let mut backoff = Backoff::new(SETUP_PATIENCE);
        loop {
            self.doors.serve(clock::now())?;
            let served = step(self)?;
            if served.done {
                return Ok(());
            }
            if setup.turn(self)? || served.moved {
                backoff.reset();
            }
            let waiting_for = || match served.waiting {
                Some(peer) => format!("rank {peer} (to hand over its memory)"),
                None => "peers that take this rank's memory".to_owned(),
            };
            if backoff.turn(setup.watch, &waiting_for)?.is_some() {
                progress::turn(setup.wait.progress.as_ref())?;
                futex::nap(progress::rest(setup.wait.progress.as_ref(), backoff.nap(SETUP_NAP, LONG_SETUP_NAP)));
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

/// A connection that cannot be set up, most often because `peer` has just died: this side may see that first.
pub(super) fn unreachable(peer: Rank, error: &Error) -> Error {
    Error::remote(peer, format!("cannot set up a connection with rank {peer}: {}", error.message()))
}

/// Memory that a peer handed over, mapped.
pub(super) struct Mapped {
    pub(super) memory: HostRegion,
    board: Option<Arc<Board>>,
    neighbour: Neighbour,
}

/// Maps what `peer` handed over, which must have `bytes`.
pub(super) fn map_taken(peer: Rank, taken: Taken, bytes: usize) -> Result<Mapped> {
    match taken {
        Taken::Local(LocalOffer { memory, board }) if memory.bytes() == bytes => {
            Ok(Mapped { memory, board, neighbour: Neighbour::Thread })
        }
        Taken::Local(_) => Err(Error::remote(peer, format!("rank {peer} offered memory of another size"))),
        Taken::File(Fetched { file, owner }) => {
            let memory = HostMemory.import_host(file, bytes).map_err(|error| error.about(peer))?;
            memory.keep().prefer_huge_pages();
            Ok(Mapped { memory, board: None, neighbour: Neighbour::Process(owner) })
        }
        Taken::Sockets(_) => Err(Error::internal("sockets where memory is due")),
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

const TAG_ARENA: u32 = 0x5243_0000;
const TAG_BUFFER: u32 = 0x5246_0000;
const TAG_LENGTH: u32 = 0x5247_0000;

/// Registered buffers of a communicator.
const MOST_REGISTRATIONS: usize = 1024;
/// Set-up is rare and its peers may be late: it does not spin for long.
const SETUP_PATIENCE: Patience = Patience::fixed(16, Duration::from_micros(200));
/// How long a message of set-up is waited for between two looks at the news.
const SETUP_LOOK: Duration = Duration::from_millis(20);
const SETUP_NAP: Duration = Duration::from_micros(200);
/// The same, of a wait that has lasted long.
const LONG_SETUP_NAP: Duration = Duration::from_millis(5);

const _: () = assert!(FLAGS <= 8, "an arena's layout has room for eight flags");
