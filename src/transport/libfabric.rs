//! libfabric behind NET's contract of [request-based NICs](crate::transport::net::request_nic): Slingshot, EFA,
//! Omni-Path and others, and TCP by it where that is asked for.
//!
//! [`library`] loads it while the program runs: nothing of it is needed to build rsccl, and no process loads it that
//! does not use it. [`providers`] chooses among what it lists. [`OfiNic`](nic::OfiNic) makes connections out of its
//! tags. [`abi`] is the only file that knows layouts.

mod abi;
mod contexts;
mod endpoint;
mod found;
mod greetings;
mod library;
mod nic;
mod objects;
mod providers;
#[cfg(not(loom))]
#[cfg(test)]
mod tests;

pub(super) use found::LIBRARY;
