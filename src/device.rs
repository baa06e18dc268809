//! What a kind of memory must offer, and the arithmetic done in it.
//!
//! Host memory, of this process and of shared windows, is the first kind: [`HostMemory`] allocates it and [`Kernel`] copies and
//! reduces there. Executors describe a step as a [`Pass`] and know nothing of types, operators or vector widths.
//!
//! # Adding a device
//! A device is one file that implements [`Device`], [`Queue`] and [`Event`], and one arm in [`of`]. `device/contract.rs` holds the
//! tests that every device must pass. The contract:
//!
//! | what | who calls it | the host's way |
//! |---|---|---|
//! | [`Device::allocate`] | arenas, rings, registered buffers | a mapping of zeroed pages |
//! | [`Device::export`], [`Device::import`] | the transports that hand memory to other processes | a sealed memfd |
//! | [`Device::locate`] | whoever gets a bare address from a program | every address that no other device claims |
//! | [`Queue::copy`], [`Queue::fold`] | executors | done before the call returns |
//! | [`Queue::record`], [`Queue::after`] | executors that order queues among each other | events are done when they are made |
//!
//! Threads of one process share a [`Region`] by cloning it: no device call is needed for that.

#[cfg(test)]
#[cfg(not(loom))]
mod contract;
#[cfg(feature = "cuda")]
pub mod cuda;
mod host;
mod memory;

use std::any::Any;
use std::fmt;
use std::os::fd::OwnedFd;

use crate::error::{Error, Result};
use crate::sync::primitive::Arc;

pub use crate::sys::memory::Generation;
pub use crate::sys::region::{DeviceId, Home, HostRegion, Keep, Place, Region};
pub use host::{Kernel, Pass, Store, StorePolicy, TimedCopy};
pub use memory::HostMemory;

/// Who shall be able to map memory that is allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Threads of this process.
    Threads,
    /// Other processes of this host too.
    Processes,
}

/// A kind of memory: makes it, hands it over, and gives queues that work in it.
pub trait Device: fmt::Debug + Send + Sync {
    /// Where the memory of this device lives.
    fn home(&self) -> Home;

    /// `bytes` of zeroed memory.
    ///
    /// # Errors
    /// Where the device has no such memory.
    fn allocate(&self, bytes: usize, sharing: Sharing) -> Result<Region>;

    /// A descriptor by which another process [imports](Device::import) `region`, which was allocated with [`Sharing::Processes`].
    ///
    /// # Errors
    /// Where the region cannot be shared: it is of another device, or was allocated for threads.
    fn export(&self, region: &Region) -> Result<OwnedFd>;

    /// Maps the memory behind a descriptor that a peer exported, which must have exactly `bytes`.
    ///
    /// # Errors
    /// [`crate::error::Kind::Remote`] where the descriptor is anything else.
    fn import(&self, descriptor: OwnedFd, bytes: usize) -> Result<Region>;

    /// Where the memory at `address` lives, if this device knows it.
    fn locate(&self, address: u64) -> Option<Home>;

    /// A queue of its own: what is put into one queue is done in that order.
    ///
    /// # Errors
    /// Where the device has no queue left.
    fn queue(&self) -> Result<Box<dyn Queue>>;
}

/// Work for a device, done in order. It may be done at once, or only while an [`Event`] is asked.
pub trait Queue: fmt::Debug + Send {
    /// Copies `from` to `to`, which have the same length. At least one of them lives on the queue's device, the other there or on the
    /// host.
    ///
    /// # Errors
    /// Where the device refuses; [`crate::error::Kind::InvalidArgument`] for homes or lengths that do not fit.
    ///
    /// # Safety
    /// Until an event that is recorded later is done, `from` is good for reading and `to` for writing, nobody else writes `from` or
    /// touches `to`, and they do not overlap.
    unsafe fn copy(&mut self, from: Place, to: Place) -> Result<()>;

    /// Does one pass of `kernel`. The pass names addresses of the queue's device.
    ///
    /// # Errors
    /// Where the device refuses.
    ///
    /// # Safety
    /// As [`Kernel::run`], until an event that is recorded later is done.
    unsafe fn fold(&mut self, kernel: &Kernel, pass: &Pass<'_>) -> Result<()>;

    /// What is put into this queue from now on begins when `event` is done.
    ///
    /// # Errors
    /// Where the queue cannot wait for this event: a queue that works inline takes only events that are done.
    fn after(&mut self, event: &Arc<dyn Event>) -> Result<()>;

    /// An event that is done when all that was put into this queue before is done.
    ///
    /// # Errors
    /// Where the device has no event left.
    fn record(&mut self) -> Result<Arc<dyn Event>>;
}

/// A point in a queue.
pub trait Event: Any + fmt::Debug + Send + Sync {
    /// Whether the queue has come to this point. It never blocks.
    ///
    /// # Errors
    /// Where the device has failed, which the queue's work shares.
    fn is_done(&self) -> Result<bool>;
}

/// The device whose memory `home` is.
///
/// # Errors
/// [`crate::error::Kind::InvalidArgument`] where this build or this host has no such device;
/// [`crate::error::Kind::System`] where there is no driver for it.
pub fn of(home: Home) -> Result<&'static dyn Device> {
    match home {
        Home::Host => Ok(&HostMemory),
        #[cfg(feature = "cuda")]
        Home::Device(id) => cuda::of(id).map(|gpu| gpu as &dyn Device),
        #[cfg(not(feature = "cuda"))]
        Home::Device(_) => Err(unsupported(home)),
    }
}

/// The error for arguments that live where no executor of this build can reach them.
#[cold]
pub fn unsupported(home: Home) -> Error {
    Error::invalid_argument(format!("the buffer lies in {home}, and this build works in host memory only"))
}
