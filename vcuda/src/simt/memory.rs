//! What the interpreter asks of the machine's memory.

use super::stores::Queue;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of shadow for each 16 bytes of memory. The layout is the interpreter's own; fresh shadow is all zero.
pub const SHADOW_BYTES_PER_16: usize = 32;

/// The machine's memory, as the interpreter sees it: device, peer and host memory of one process.
///
/// Implemented by the driver. Pointers that [`extent`](Self::extent) gives stay readable and writable while
/// [`generation`](Self::generation) stays the same and a kernel of this process runs.
pub trait GlobalMemory: Send + Sync {
    /// The piece of an allocation around `address`, as GPU `gpu` sees it.
    ///
    /// # Errors
    /// Why that GPU may not touch it.
    fn extent(&self, gpu: u32, address: u64) -> Result<Extent, MemoryFault>;

    /// A number that grows whenever an extent given earlier may no longer hold.
    fn generation(&self) -> u64;

    /// Counts visible changes of memory by anybody (stores that reached memory, copies, memory operations), in all
    /// processes of the machine. The interpreter takes it for the time.
    fn changes(&self) -> u64;

    /// Counts one change more, wakes sleepers, and returns the new count.
    fn bump(&self) -> u64;
}

/// A piece of memory that a GPU may touch.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    /// Its first device address, a multiple of 16; a multiple of 128 where `ll128` or `shadow` are set.
    pub start: u64,
    /// The first device address after it: the allocation's size as it was asked for, so that bounds are exact.
    pub end: u64,
    /// The host address of `start`.
    pub data: *mut u8,
    /// [`SHADOW_BYTES_PER_16`] for each 16 bytes, rounded up to whole 128 bytes, shared by all processes that share the
    /// memory; null: this memory is never weak.
    pub shadow: *mut u8,
    /// One bit a byte, set where something has been stored; null: everything counts as defined.
    pub defined: *mut u8,
    /// Where the memory lies.
    pub home: Home,
    /// Whether stores are allowed.
    pub writable: bool,
    /// Whether a warp's store of an aligned 128-byte line arrives as one.
    pub ll128: bool,
}

// SAFETY: the pointers are plain addresses of memory that all threads of the process may use through atomics; nothing
// is owned.
unsafe impl Send for Extent {}

/// Where memory lies, seen from the GPU that asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Home {
    /// In its own memory.
    ThisGpu,
    /// In the memory of the GPU with this number.
    Peer(u32),
    /// In the host's memory.
    Host,
}

/// Why a GPU may not touch an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryFault {
    /// Nothing was ever there.
    Unmapped,
    /// It was freed.
    Freed {
        /// Where the allocation began.
        start: u64,
        /// Its size.
        bytes: u64,
    },
    /// It lies elsewhere, and access was not enabled.
    NoAccess {
        /// Where it lies.
        home: Home,
    },
    /// It lies beside an allocation, out of its bounds.
    RedZone {
        /// Where that allocation begins.
        start: u64,
        /// Its size.
        bytes: u64,
    },
    /// It may be read only.
    ReadOnly,
}

/// Stores of a GPU on their way to memory elsewhere: one for each GPU in each process, kept by the driver and given to
/// every launch on that GPU.
#[derive(Debug)]
pub struct GpuStores {
    pub(super) queue: Mutex<Queue>,
}

impl GpuStores {
    /// An empty queue.
    #[must_use]
    pub fn new() -> Self {
        Self { queue: Mutex::new(Queue::of_gpu()) }
    }

    /// Whether every store has arrived: so when a grid's last block is done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Queue> {
        // A thread that panicked with the lock left whole entries behind.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for GpuStores {
    fn default() -> Self {
        Self::new()
    }
}
