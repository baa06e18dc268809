//! How bytes get from rank to rank: local (threads), shm (processes of a host), net (TCP).
//!
//! Every transport yields the same two things: a ring of slots for a pair of ranks, and, where memory can be mapped, windows on
//! the peers' arenas and registered buffers. [`select`] decides which transport a pair uses; it does no I/O, so that it reads as a
//! table. [`Fabric`] sets connections up when a plan first needs them.
//!
//! Transports never see the algorithm, and the executor never sees the transport.

mod arena;
mod connect;
mod door;
mod fabric;
mod greet;
mod identity;
mod lease;
mod links;
mod net;
mod offer;
mod peer;
mod port;
mod select;
mod shm;
mod windows;

pub use arena::{Arena, FLAT_BYTES, FLAT_SLOTS, FlatSlot, INLINE_BYTES};
pub use fabric::{Fabric, Setup, Sizes};
pub use identity::{host_id, process_token};
pub use lease::{Lease, LeaseGuard};
pub use links::{Channel, Links, Need, Way};
pub use peer::PeerInfo;
pub use port::SocketOptions;
pub use select::{Policy, neighbourhood, select};
#[cfg(test)]
pub use windows::Registered;
pub use windows::{Board, HostWindows, Loan, Neighbour, UserRange};
