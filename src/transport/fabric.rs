//! The connections of one communicator: made when a plan first needs them, kept until the end.
//!
//! # How a connection is made
//! The receiver owns the ring. It makes the memory, offers it, and sends the offer to the sender over the bootstrap; the sender takes
//! it. A message back over the bootstrap ends the set-up on both sides, so that a rank whose `connect` returned knows that its peers
//! can reach it. Needs are worked off in rounds of [`ROUND_PEERS`].

use std::collections::HashMap;
use std::time::Duration;

use crate::bootstrap::Bootstrap;
use crate::error::{Error, Kind, Result};
use crate::plan::FLAGS;
use crate::sync::primitive::Arc;
use crate::sync::ring::{Receiver, Sender, Shape};
use crate::sync::{Wait, Watch};
use crate::sys::memory::SharedMemory;
use crate::transport::arena::Arena;
use crate::transport::offer::{LocalOffer, LocalOffers, take_local};
use crate::transport::windows::{Board, HostWindows};
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

/// The rings that are open.
#[derive(Debug, Default)]
pub struct Links {
    senders: HashMap<(Rank, Channel), Sender>,
    receivers: HashMap<(Rank, Channel), Receiver>,
}

/// The connections of one communicator.
#[derive(Debug)]
pub struct Fabric {
    world: World,
    kinds: Vec<TransportKind>,
    hosts: Vec<Vec<Rank>>,
    shape: Shape,
    scratch_bytes: usize,
    windows: Option<Arc<HostWindows>>,
    links: Links,
    offers: LocalOffers,
}

/// Sizes of a fabric's memory; equal on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Of every ring.
    pub shape: Shape,
    /// Of every arena's scratch, in bytes.
    pub scratch_bytes: usize,
}

impl Fabric {
    /// A fabric with nothing connected yet.
    pub fn new(world: World, peers: &[PeerInfo], policy: Policy, sizes: Sizes) -> Fabric {
        let mine = &peers[world.rank.index()];
        let kinds = peers.iter().map(|peer| select(mine, peer, policy)).collect();
        Fabric {
            world,
            kinds,
            hosts: group_hosts(peers, policy),
            shape: sizes.shape,
            scratch_bytes: sizes.scratch_bytes,
            windows: None,
            links: Links::default(),
            offers: LocalOffers::default(),
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
        self.shape
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
        let mine = Arena::create(self.scratch_bytes, !all_local)?;
        let board = all_local.then(Arc::<Board>::default);
        let offer = LocalOffer { memory: Arc::clone(mine.memory()), board: board.clone() };
        let ticket = self.offers.offer(offer, ranks.len() - 1)?;
        for peer in ranks.iter().filter(|rank| **rank != self.world.rank) {
            setup.bootstrap.send(*peer, TAG_ARENA, &ticket.to_le_bytes(), setup.wait)?;
        }
        let mut arenas = Vec::with_capacity(ranks.len());
        let mut boards = Vec::with_capacity(ranks.len());
        for peer in &ranks {
            if *peer == self.world.rank {
                arenas.push(mine.clone());
                boards.extend(board.clone());
                continue;
            }
            let taken = take_local(ticket_from(*peer, &setup.bootstrap.recv(*peer, TAG_ARENA, setup.wait)?)?)?;
            if taken.memory.len() != Arena::memory_bytes(self.scratch_bytes) {
                return Err(Error::remote(*peer, format!("rank {peer} offered an arena of another size")));
            }
            arenas.push(Arena::new(taken.memory));
            boards.extend(taken.board);
        }
        let boards = (boards.len() == ranks.len()).then_some(boards);
        self.windows = Some(Arc::new(HostWindows { ranks, me, arenas, boards, registered: Vec::new() }));
        Ok(())
    }

    /// Opens the connections of `needs` that are not open yet. The peers of each need call it with the matching need.
    ///
    /// # Errors
    /// Of memory or sockets, or of a peer that does not come by the deadline.
    pub fn connect(&mut self, needs: &[Need], setup: &mut Setup<'_>) -> Result<()> {
        let mut missing: Vec<Need> = needs.iter().copied().filter(|need| !self.links.has(need)).collect();
        missing.sort_unstable();
        missing.dedup();
        for round in missing.chunks(ROUND_PEERS) {
            self.connect_round(round, setup)?;
        }
        Ok(())
    }

    fn connect_round(&mut self, needs: &[Need], setup: &mut Setup<'_>) -> Result<()> {
        for need in needs.iter().filter(|need| need.way == Way::Receive) {
            let memory = Arc::new(SharedMemory::anonymous(self.shape.memory_bytes())?);
            let ticket = self.offers.offer(LocalOffer { memory: Arc::clone(&memory), board: None }, 1)?;
            setup.bootstrap.send(need.peer, tag(TAG_RING, need.channel), &ticket.to_le_bytes(), setup.wait)?;
            self.links.receivers.insert((need.peer, need.channel), Receiver::new(memory, self.shape));
        }
        for need in needs.iter().filter(|need| need.way == Way::Send) {
            let blob = setup.bootstrap.recv(need.peer, tag(TAG_RING, need.channel), setup.wait)?;
            let taken = take_local(ticket_from(need.peer, &blob)?)?;
            self.links.senders.insert((need.peer, need.channel), Sender::new(taken.memory, self.shape));
            setup.bootstrap.send(need.peer, tag(TAG_DONE, need.channel), &[], setup.wait)?;
        }
        for need in needs.iter().filter(|need| need.way == Way::Receive) {
            setup.bootstrap.recv(need.peer, tag(TAG_DONE, need.channel), setup.wait)?;
        }
        Ok(())
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
    pub fn pump(&mut self) -> Result<bool> {
        Ok(false)
    }

    /// Whether any connection moves its bytes by a pump.
    pub fn has_pumps(&self) -> bool {
        false
    }

    /// Whether every pump has handed all that was published to the system.
    pub fn drained(&self) -> bool {
        true
    }

    /// Sleeps until a socket is ready, at most `slice`.
    pub fn rest_on_sockets(&self, slice: Duration) {
        crate::sys::futex::nap(slice);
    }

    fn has(&self, need: &Need) -> bool {
        match need.way {
            Way::Receive => self.receivers.contains_key(&(need.peer, need.channel)),
            Way::Send => self.senders.contains_key(&(need.peer, need.channel)),
        }
    }
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

fn ticket_from(peer: Rank, blob: &[u8]) -> Result<u64> {
    let bytes = blob.try_into().map_err(|_| {
        Error::new(Kind::Remote, format!("rank {peer} sent an offer of {} bytes where 8 are due", blob.len()))
            .about(peer)
    })?;
    Ok(u64::from_le_bytes(bytes))
}

/// Peers whose connections are under way at once.
const ROUND_PEERS: usize = 128;
const TAG_ARENA: u32 = 0x5243_0000;
const TAG_RING: u32 = 0x5244_0000;
const TAG_DONE: u32 = 0x5245_0000;

const _: () = assert!(FLAGS <= 8, "an arena's layout has room for eight flags");
