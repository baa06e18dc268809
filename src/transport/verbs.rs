//! Verbs behind NET's contract of [request-based NICs](crate::transport::net::request_nic): InfiniBand and RoCE, for
//! memory of the host.
//!
//! [`ports`] chooses a port by what sysfs shows, and [`gids`] its address. [`library`] loads libibverbs while the
//! program runs: nothing of it is needed to build rsccl. [`device`] owns what is open; [`set_up`] tells the ends of a
//! connection each other's queue pairs, out of which [`nic`] makes connections. [`verdicts`] says what codes of
//! libibverbs mean. [`abi`] is the only file that knows layouts.

mod abi;
mod device;
mod found;
mod gids;
mod joining;
mod library;
mod nic;
mod ports;
mod requests;
mod set_up;
mod settings;
#[cfg(not(loom))]
#[cfg(test)]
mod tests;
mod verdicts;

pub(super) use found::LIBRARY;
pub use settings::VerbsSettings;
