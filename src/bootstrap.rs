//! Bytes between ranks before there is anything better: unique id, root, control connections, stores.
//!
//! [`Bootstrap`] is what the rest of the crate sees. Two things fulfil it: `NetBootstrap` (TCP, processes anywhere)
//! and `LocalBootstrap` (threads of one process, no socket). Both are interchangeable in every test.

#![forbid(unsafe_code)]

mod acceptor;
pub mod address;
pub mod auth;
pub(crate) mod cause;
mod checkin;
mod client;
mod collective;
mod id;
mod inbox;
pub mod interface;
mod link;
pub mod local;
mod net;
mod options;
mod probe;
pub(crate) mod reach;
mod root;
mod roster;
pub(crate) mod socket;
pub mod store;

use std::net::SocketAddr;

pub use checkin::MAX_WORLD;
pub use id::UniqueId;
pub use local::LocalBootstrap;
pub use net::NetBootstrap;
pub(crate) use net::in_parent;
pub use options::{Options, Secret};
pub use root::Root;

use crate::error::{Error, Result};
use crate::sync::Wait;
use crate::types::{Rank, World};

/// Feeds `bytes` to every decoder of what connections and files bring, for the fuzz tests: none may panic.
#[doc(hidden)]
pub fn decode_anything(bytes: &[u8]) {
    let _refused = checkin::CheckIn::decode(bytes);
    let _refused = checkin::Block::decode(bytes);
    let _refused = checkin::Table::decode(bytes, 3);
    let _refused = checkin::decode_refusal(bytes);
    let _refused = collective::split_members(&[bytes.to_vec()], 0);
    net::decode_anything(bytes);
    store::decode_anything(bytes);
}

/// Small messages between the ranks of a communicator, and news of who failed.
///
/// All-gather, broadcast and barrier are collective: every rank calls them in the same order. All calls end by the
/// deadline of their [`Wait`] with an error that names the ranks waited for.
///
/// One thread at a time makes the calls that take a [`Wait`]. Meanwhile any other thread may call [`Bootstrap::poll`],
/// [`Bootstrap::publish`] and whatever only reads, so that a monitor can watch the peers of a rank that does not wait.
pub trait Bootstrap: Send + Sync + std::fmt::Debug {
    /// Who I am.
    fn world(&self) -> World;

    /// A number that the ranks of this bootstrap share and nobody else has: names it in logs and handshakes.
    fn id(&self) -> u64;

    /// A secret that the ranks of this bootstrap share and nobody else has: keys the handshake of every further connection
    /// (data sockets, handed-over descriptors).
    fn key(&self) -> [u8; 32];

    /// Where to bind sockets that the peers shall reach: the address (with its IPv6 scope) of the chosen interface, port 0.
    fn interface(&self) -> SocketAddr;

    /// Every rank passes its bytes (at most [`MAX_GATHER_BYTES`], lengths may differ) and gets everyone's in rank order.
    fn all_gather(&self, mine: &[u8], wait: &Wait) -> Result<Vec<Vec<u8>>>;

    /// The root passes bytes, every rank gets them; what others pass is ignored.
    fn broadcast(&self, root: Rank, bytes: &[u8], wait: &Wait) -> Result<Vec<u8>>;

    /// Nobody leaves before everyone has come.
    fn barrier(&self, wait: &Wait) -> Result<()>;

    /// [`Bootstrap::barrier`] of ranks that come to make the same `call` of the user's; those that come for another one are told both.
    /// What is `beside` is called again and again until all have come, for what must go on meanwhile; it may use this bootstrap for
    /// messages. Some ranks may have something beside and others not.
    fn meet(&self, call: &str, wait: &Wait, beside: Option<Beside<'_>>) -> Result<()>;

    /// How many all-gathers, broadcasts, barriers, meetings and splits this rank has begun.
    fn exchanges(&self) -> u64;

    /// Sends `bytes` to `peer`, which takes them with [`Bootstrap::recv`] and the same tag. Messages of one pair and tag keep
    /// their order. Does not wait for the receiver's `recv`, but the first message to a rank may wait until that rank is in any
    /// call of its bootstrap; once this returns, the message arrives without further help from the sender.
    fn send(&self, peer: Rank, tag: u32, bytes: &[u8], wait: &Wait) -> Result<()>;

    /// Takes the next message of `peer` with this tag.
    fn recv(&self, peer: Rank, tag: u32, wait: &Wait) -> Result<Vec<u8>>;

    /// Takes the next message of `peer` with this tag, if it is here.
    fn try_recv(&self, peer: Rank, tag: u32) -> Result<Option<Vec<u8>>>;

    /// Splits the ranks: those that pass the same color form a new bootstrap, ordered by (key, old rank); those that pass
    /// `None` get `None`. Collective over all ranks. The child does not need the parent to live on.
    fn split(&self, color: Option<u32>, key: i64, wait: &Wait) -> Result<Option<Child>>;

    /// A new bootstrap of all ranks but `excluded`, which may be dead. Called by the survivors, with the same list.
    fn shrink(&self, excluded: &[Rank], wait: &Wait) -> Result<Child>;

    /// Tells every rank that is still there, as far as it can be reached without waiting. Ranks see it as [`Event::Note`].
    /// What exceeds [`MAX_NOTE_BYTES`] is cut off.
    fn publish(&self, note: &[u8]);

    /// Takes news without waiting: who died or left, what was published. Called from the slow path of every wait. While another thread
    /// waits in this bootstrap, that thread watches the peers, and this call may return nothing.
    fn poll(&self) -> Vec<Event>;

    /// Says goodbye with a word for the peers, so that they see [`Event::Left`] and not [`Event::Died`]. Dropping without it is dying.
    fn leave(&self, word: u64);

    /// Leaves because of `error`: the others hear the cause before they see this rank go, and repeat it.
    fn give_up(&self, error: &Error) {
        self.publish(&cause::failure_note(error));
        self.leave(0);
    }

    /// [`Bootstrap::leave`] with nothing more to say.
    fn close(&self) {
        self.leave(0);
    }
}

/// What goes on beside a [`Bootstrap::meet`].
pub type Beside<'a> = &'a mut dyn FnMut() -> Result<()>;

/// What a [`Bootstrap::split`] or [`Bootstrap::shrink`] yields.
#[derive(Debug)]
pub struct Child {
    /// The new ranks' bootstrap.
    pub bootstrap: Box<dyn Bootstrap>,
    /// The parent's rank of each new rank.
    pub members: Vec<Rank>,
    /// A number that the members share and nobody else has: names the child in logs and keys.
    pub id: u64,
}

/// News from [`Bootstrap::poll`]. Each is delivered once.
#[derive(Debug)]
pub enum Event {
    /// The rank's process or thread ended without goodbye; why it is thought so.
    Died(Rank, String),
    /// The rank said goodbye, with this word.
    Left(Rank, u64),
    /// Somebody published this.
    Note {
        /// Who did.
        from: Rank,
        /// What.
        bytes: Vec<u8>,
    },
    /// The control plane itself failed.
    Failed(Error),
}

/// The most one rank may put into an all-gather or a message.
pub const MAX_GATHER_BYTES: usize = 64 << 10;

/// The most bytes of a published note.
pub const MAX_NOTE_BYTES: usize = 4 << 10;
