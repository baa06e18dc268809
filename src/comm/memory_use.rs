//! How much memory a rank's part of a communicator holds.

use crate::comm::Communicator;
use crate::error::Result;

/// Bytes of memory that a rank holds for one communicator. What its children hold is theirs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct MemoryUse {
    /// What the ranks of a host map of this rank: slots of small calls, flags and scratch. Pages that no call has
    /// touched take no memory yet.
    pub arenas: u64,
    /// Slots of messages, which come with the first message or plan between two ranks.
    pub rings: u64,
    /// The program's registered buffers.
    pub registered: u64,
    /// The program's windows on a GPU.
    pub windows: u64,
    /// Memory of the host that is pinned for a GPU.
    pub pinned: u64,
    /// The library's own memory on the GPU.
    pub gpu: u64,
    /// Which GPU that is, as CUDA numbers it in this process; `None` before the first call there.
    pub gpu_ordinal: Option<u32>,
}

impl Communicator {
    /// How much memory this rank holds for the communicator, by what it is for. No other rank is asked; `rsccl status`
    /// shows the same from outside.
    ///
    /// # Errors
    /// While another call has the communicator, and once it has failed.
    ///
    /// # Examples
    /// ```
    /// let held = rsccl::local::run(2, |comm| {
    ///     let before = comm.memory()?;
    ///     comm.register(&rsccl::Buffer::<f32>::new(1024)?)?;
    ///     Ok(comm.memory()?.registered - before.registered)
    /// })?;
    /// assert!(held.iter().all(|bytes| *bytes >= 4096));
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn memory(&self) -> Result<MemoryUse> {
        self.with_engine(|engine| {
            let ([arenas, rings, registered, windows, pinned, gpu], gpu_ordinal) = engine.memory();
            Ok(MemoryUse { arenas, rings, registered, windows, pinned, gpu, gpu_ordinal })
        })
    }
}
