//! How bytes get from rank to rank: local (threads), shm (processes of a host), net (TCP, or a NIC that takes
//! requests).
//!
//! Every transport yields the same two things: a ring of slots for a pair of ranks, and, where memory can be mapped,
//! windows on the peers' arenas and registered buffers. The table in `table` says which transport a pair uses, by the
//! ladder in `topo::transport_choice::ladder`, and what a transport must offer: memory that peers map, or wires.
//! [`Fabric`] sets connections up when a plan first needs them, by the one hand-shake of `opening`.
//!
//! Transports never see the algorithm, and the executor never sees the transport.

mod arena;
mod connection;
mod connection_ends;
mod data_handshake;
mod device_queues;
mod fabric;
mod fabric_bytes;
mod fabric_handles;
mod identity;
mod kernel_slots;
mod lease;
mod libfabric;
mod links;
mod local;
mod net;
mod net_plugin;
mod nic_hold;
pub mod nics;
mod opening;
mod peer;
mod peer_reads;
mod pump;
mod pumps;
mod routes;
mod shm;
mod socket_folder;
mod table;
pub mod traffic;
mod verbs;
mod windows;

pub use arena::{Arena, FLAG_LANES, FLAT_BYTES, FLAT_SLOTS, FlatSlot, INLINE_BYTES, LANE_FLAGS};
pub use connection::{Channel, EndRequest, Need, QueuePart, Receivers, Way};
pub use device_queues::{ConnectionMemory, QueueBytes, QueueMemory};
pub use fabric::{Fabric, Setup};
pub use fabric_bytes::FabricBytes;
pub use identity::{host_id, process_space, process_token};
pub use kernel_slots::{FarEnd, KernelSlots, PayloadsOnDevice};
pub use lease::{Lease, LeaseGuard};
pub use links::Links;
pub use net::{
    Agreement, Congestion, DeadRoutes, KnownNetwork, KnownNic, Network, NetworkSeeker, NetworkWish, NicFacts,
    OwnNetwork, SocketOptions, known_networks,
};
pub use nic_hold::NicHold;
pub use nics::{Crossing, NicTable};
pub use peer::{PeerInfo, SWITCH_LAYERS};
pub use peer_reads::Announced;
pub use pump::Taken;
pub use pumps::{PumpSources, Pumps};
pub use routes::Sizes;
pub use socket_folder::SocketFolder;
pub use table::{Policy, neighbourhood, select};
pub use verbs::VerbsSettings;
#[cfg(test)]
pub use windows::Registration;
pub use windows::{
    HostWindows, KnownBuffer, Loan, Neighbour, OfferedRange, PeerCalls, PlacedBuffer, UserBoard, UserRange,
};
