//! Small messages between ranks before data connections exist: unique id, root, control connections, stores.
//!
//! The rest of the crate sees [`Bootstrap`]. It has two implementations: `NetBootstrap` (TCP, processes anywhere) and
//! `LocalBootstrap` (threads of one process, no socket). Every test runs over both.

#![forbid(unsafe_code)]

mod acceptor;
pub mod address;
pub mod auth;
pub(crate) mod cause;
mod checkin;
mod client;
mod collective;
pub(crate) mod door;
mod gathered;
mod graph;
mod holder;
mod id;
mod inbox;
pub mod interface;
mod leash;
mod link;
pub(crate) mod lobby;
pub mod local;
mod lookup;
mod net;
mod options;
pub(crate) mod pmi;
pub(crate) mod pmix;
mod probe;
pub(crate) mod reach;
mod root;
mod roster;
mod rotation;
mod serving;
pub(crate) mod sealed;
pub(crate) mod socket;
mod spent;
pub mod store;
pub(crate) mod verdict;

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

pub use checkin::MAX_WORLD;
pub use id::UniqueId;
pub use local::LocalBootstrap;
pub use net::NetBootstrap;
pub(crate) use net::{JoinError, in_child, in_parent};
pub use options::{Options, SharedSecret};
pub use root::Root;

use crate::error::{Error, Result};
use crate::sync::primitive::Arc;
use crate::sync::{Chime, Wait};
use crate::sys::poller::Interest;
use crate::types::{Rank, World};
use crate::wire;
use crate::wire::frame::Frame;

/// For the fuzz tests: feeds `bytes` to every decoder of data from connections and files. None may panic.
#[doc(hidden)]
pub fn decode_anything(bytes: &[u8]) {
    let _refused = checkin::CheckIn::decode(bytes);
    let _refused = checkin::RankBlock::decode(bytes);
    let _refused = checkin::AddressTable::decode(bytes, 3);
    let _refused = checkin::decode_refusal(bytes);
    let _refused = checkin::decode_place(bytes);
    for kind in [checkin::SERVE, checkin::FIND] {
        let _refused = checkin::FurtherRoot::decode(&Frame { kind, tag: 0, payload: bytes.to_vec() });
    }
    lobby::decode_anything(bytes);
    let _refused =
        gathered::Gathered::read(wire::Reader::new(bytes, "what ranks tell"), bytes.len() % 8, gathered::MOST_BYTES);
    let _refused = collective::split_members(&[bytes.to_vec()], 0);
    net::decode_anything(bytes);
    store::decode_anything(bytes);
}

/// Small messages between the ranks of a communicator, and events about ranks that die or leave.
///
/// All-gather, broadcast and barrier are collective: every rank calls them in the same order. All calls end by the
/// deadline of their [`Wait`] with an error that names the ranks waited for.
///
/// One thread at a time makes the calls that take a [`Wait`]. Meanwhile any other thread may call [`Bootstrap::poll`],
/// [`Bootstrap::publish`] and the calls that only read, so that a monitor can watch the peers of a rank that does not
/// wait.
pub trait Bootstrap: Send + Sync + std::fmt::Debug {
    /// This rank and the size of its world.
    fn world(&self) -> World;

    /// A number that no other bootstrap has, the same on all ranks. It names the bootstrap in logs and handshakes.
    fn id(&self) -> u64;

    /// A secret that only the ranks of this bootstrap know. It is the key of the handshake on every further connection
    /// (data sockets, handed-over descriptors).
    fn key(&self) -> [u8; 32];

    /// The address for listening sockets that peers connect to: that of the chosen interface (with its IPv6 scope), and
    /// port 0.
    fn interface(&self) -> SocketAddr;

    /// Gathers every rank's bytes (at most [`MAX_GATHER_BYTES`] each, lengths may differ); every rank gets all of them
    /// in rank order.
    fn all_gather(&self, mine: &[u8], wait: &Wait) -> Result<Vec<Vec<u8>>>;

    /// [`Bootstrap::all_gather`] in which a rank passes an error if it has failed: then all ranks have that error.
    fn agree(&self, mine: Result<Vec<u8>>, wait: &Wait) -> Agreed<Vec<Vec<u8>>>;

    /// Broadcasts the root's bytes to every rank; the bytes that other ranks pass are ignored.
    fn broadcast(&self, root: Rank, bytes: &[u8], wait: &Wait) -> Result<Vec<u8>>;

    /// A barrier: no rank returns before every rank has called it.
    fn barrier(&self, wait: &Wait) -> Result<()>;

    /// A [`Bootstrap::barrier`] before the user's collective `call`. Ranks that pass different calls get an error that
    /// names both. Some ranks may pass `background` work and others none.
    fn meet(&self, call: &str, wait: &Wait, background: Option<BackgroundWork<'_>>) -> Result<()>;

    /// In words, what has kept this rank from connections with others so far, for an error of whoever waits for them.
    fn hindrance(&self) -> Option<String>;

    /// How many all-gathers, broadcasts, barriers, meetings and splits this rank has begun.
    fn exchanges(&self) -> u64;

    /// Sends `bytes` to `peer`, which takes them with [`Bootstrap::recv`] and the same tag. Messages of one pair and
    /// tag keep their order. The call does not wait for the receiver's `recv`. The first message to a rank may wait
    /// until that rank makes a call of its bootstrap. Once this call has returned, the message arrives without further
    /// help from the sender.
    fn send(&self, peer: Rank, tag: u32, bytes: &[u8], wait: &Wait) -> Result<()>;

    /// [`Bootstrap::send`] for a caller that goes on waiting in calls of this bootstrap: it waits neither for a
    /// connection to `peer` nor until the bytes have left, which those calls see to.
    fn post(&self, peer: Rank, tag: u32, bytes: &[u8], wait: &Wait) -> Result<()>;

    /// Waits until what was posted to `peer` has left. [`Bootstrap::post`] and then this call do what
    /// [`Bootstrap::send`] does, for a caller that looks at something else between two short waits.
    fn settle(&self, peer: Rank, wait: &Wait) -> Result<()>;

    /// Takes the next message of `peer` with this tag; waits for it.
    fn recv(&self, peer: Rank, tag: u32, wait: &Wait) -> Result<Vec<u8>>;

    /// Takes the next message of `peer` with this tag if it has arrived.
    fn try_recv(&self, peer: Rank, tag: u32) -> Result<Option<Vec<u8>>>;

    /// Takes a message with this tag, of whichever rank, if one has arrived; returns its sender. It costs no system
    /// call: [`Bootstrap::poll`] and every wait take what arrives from the connections.
    fn take_from_any(&self, tag: u32) -> Option<(Rank, Vec<u8>)>;

    /// Splits the ranks: those that pass the same color form a new bootstrap, ordered by (key, old rank); those that
    /// pass `None` get none. Collective over all ranks. The child does not depend on the parent.
    ///
    /// A rank that is in a child makes the rest of it by `make`. Then all ranks of the parent agree: if one of them
    /// could not make its part, or has passed an error for `part`, they all have that error, and the parent is as
    /// before; what `make` has made is to be dropped.
    fn split_with(&self, part: Result<(Option<u32>, i64)>, make: MakeChild<'_>, wait: &Wait) -> Agreed<()>;

    /// A new bootstrap of all ranks but `excluded`, which may be dead. Called by the survivors, with the same list.
    /// They agree as in [`Bootstrap::split_with`]; `ready` is an error if this rank cannot take part in the child.
    fn shrink_with(&self, excluded: &[Rank], ready: Result<()>, make: MakeChild<'_>, wait: &Wait) -> Agreed<()>;

    /// [`Bootstrap::split_with`] of a child that is only this bootstrap.
    fn split(&self, color: Option<u32>, key: i64, wait: &Wait) -> Result<Option<Child>> {
        let mut child = None;
        let agreed = self.split_with(Ok((color, key)), &mut |made| keep(&mut child, made), wait);
        agreed.inspect_err(|error| abandon(child.as_ref(), error))??;
        Ok(child)
    }

    /// [`Bootstrap::shrink_with`] of a child that is only this bootstrap.
    fn shrink(&self, excluded: &[Rank], wait: &Wait) -> Result<Child> {
        let mut child = None;
        let agreed = self.shrink_with(excluded, Ok(()), &mut |made| keep(&mut child, made), wait);
        agreed.inspect_err(|error| abandon(child.as_ref(), error))??;
        child.ok_or_else(|| Error::internal("a shrink without a child"))
    }

    /// Sends a note to every rank that can be reached without waiting. Ranks see it as [`Event::Note`]. Bytes past
    /// [`MAX_NOTE_BYTES`] are cut off.
    fn publish(&self, note: &[u8]);

    /// Takes the events that have arrived, without waiting: who died, who left, what was published. The slow path of
    /// every wait calls it. While another thread waits in this bootstrap, that thread watches the peers, and this call
    /// may return nothing.
    fn poll(&self) -> Vec<Event>;

    /// Prepares the sleep of a thread that polls: from now on `chime` rings whenever something has arrived, or one of
    /// the descriptors that `listen` is given becomes readable; returns after how long there is something to do at the
    /// latest. `None` where something has arrived already that [`Bootstrap::poll`], or [`Bootstrap::take_from_any`]
    /// with the tag `asks`, would take.
    ///
    /// # Errors
    /// Of `listen`.
    fn await_news(&self, chime: &Arc<Chime>, asks: u32, listen: Listen<'_>) -> Result<Option<Duration>>;

    /// Whether a connection with `peer` is open here, over which it says goodbye if it leaves. Of other ranks the news
    /// come by way of ranks between, which pass it on in their calls only.
    fn is_linked(&self, _peer: Rank) -> bool {
        false
    }

    /// Says goodbye, with a word for the peers: they see [`Event::Left`]. If a bootstrap is dropped without this call,
    /// they see [`Event::Died`].
    fn leave(&self, word: u64);

    /// Leaves because of `error`. The others receive the cause before they see this rank leave, and report that cause.
    fn give_up(&self, error: &Error) {
        self.publish(&cause::failure_note(error));
        self.leave(0);
    }

    /// [`Bootstrap::leave`] with no particular word.
    fn close(&self) {
        self.leave(0);
    }
}

/// Is given the descriptors of which one becomes ready when there may be work for a thread that sleeps.
pub type Listen<'a> = &'a mut dyn FnMut(BorrowedFd<'_>, Interest) -> Result<()>;

/// The outcome of a call in which each rank may say that it cannot do its part. The outer error is of the exchange. The
/// inner one is that of one rank, the same on all ranks, and leaves the bootstrap as it was.
pub type Agreed<T> = Result<Result<T>>;

/// What makes the rest of a child, which no other call of the parent's bootstrap may need.
pub type MakeChild<'a> = &'a mut dyn FnMut(Child) -> Result<()>;

fn keep(place: &mut Option<Child>, made: Child) -> Result<()> {
    *place = Some(made);
    Ok(())
}

/// Tells the ranks of a child that this rank leaves because of `error` of the parent: they may believe that it is made.
fn abandon(child: Option<&Child>, error: &Error) {
    if let Some(child) = child {
        child.bootstrap.give_up(&in_child(error, &child.members));
    }
}

/// Work that progresses while a rank waits in [`Bootstrap::meet`].
pub struct BackgroundWork<'a> {
    /// Called repeatedly. It may send and receive messages over the bootstrap.
    pub turn: &'a mut dyn FnMut() -> Result<()>,
    /// How long the bootstrap waits for a message of its own between two turns. Zero where the turns themselves rest.
    pub pause: Duration,
}

impl std::fmt::Debug for BackgroundWork<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BackgroundWork").field("pause", &self.pause).finish_non_exhaustive()
    }
}

/// What a [`Bootstrap::split_with`] or [`Bootstrap::shrink_with`] makes.
#[derive(Debug)]
pub struct Child {
    /// The new ranks' bootstrap.
    pub bootstrap: Box<dyn Bootstrap>,
    /// For each new rank, its rank in the parent.
    pub members: Vec<Rank>,
    /// A number that no other child has, the same on all members. It names the child in logs and keys.
    pub id: u64,
}

/// An event from [`Bootstrap::poll`]. Each is delivered once.
#[derive(Debug)]
pub enum Event {
    /// The rank's process or thread ended without goodbye; the text says how that was noticed.
    Died(Rank, String),
    /// The rank said goodbye, with this word.
    Left(Rank, u64),
    /// A rank published a note.
    Note {
        /// The rank that published it.
        from: Rank,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// The control plane itself failed.
    Failed(Error),
}

/// The most bytes that one rank may pass to an all-gather or send as a message.
pub const MAX_GATHER_BYTES: usize = 64 << 10;

/// The most bytes of a published note.
pub const MAX_NOTE_BYTES: usize = 4 << 10;
