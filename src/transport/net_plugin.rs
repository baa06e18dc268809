//! NCCL's network plug-ins behind NET's contract of [request-based NICs](crate::transport::net::request_nic): what
//! clouds and vendors ship for NCCL (EFA and Slingshot by aws-ofi-nccl, HPC-X, Google), versions 8, 11 and 12 of their
//! interface.
//!
//! [`library`] finds and loads them in NCCL's order; [`found`] chooses a device. [`PlugInNic`](endpoint::PlugInNic) has
//! the connections of a communicator, which [`opening`] makes out of a plug-in's one-way ones. [`logger`] is where
//! plug-ins log ([`lines`]). [`abi`] is the only file that knows layouts.
//!
//! Memory of GPUs is registered as a DMA-BUF, or by its address, and flushed as the contract says.
//!
//! **What a plug-in is not believed**: lengths that it tells are held against what was posted; what it leaves unset is
//! zero; a request that it does not return is "later"; what it does to variables of NCCL's and rsccl's is taken back;
//! and it is never unloaded.

mod abi;
mod endpoint;
mod found;
mod library;
mod lines;
mod logger;
mod opening;
mod requests;
#[cfg(not(loom))]
#[cfg(test)]
mod tests;

pub(super) use found::LIBRARY;
