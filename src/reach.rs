//! Whose memory of devices a rank reaches, and how: found out once, when a communicator first works on devices.
//!
//! Ranks tell each other what they see ([`this_host`], [`channel_search`], [`device_sharing`]); from equal facts each
//! decides the same way for every pair (`device_ways`), by the ladder that the tools ask too
//! (`topo::transport_choice::ladder`). What memory a way needs is made here too: in place ([`side_layout`]), in pinned
//! memory of the host ([`staging`]), across hosts (`crossings`), or behind the thread of a [`proxy`].

pub mod channel_search;
mod crossings;
pub mod device_sharing;
mod device_ways;
mod facts;
pub mod far_ends;
pub mod gpu_direct;
mod gpu_distance;
pub mod line_ways;
pub mod proxy;
mod sharers;
pub mod side_layout;
pub mod staging;
pub mod this_host;
pub mod visible_gpus;
