//! Memory for the threads of this process: pieces of large mappings, which are made once and used again.
//!
//! Nothing here waits for kernels but [`Chunks::trim`]. The driver maps new memory beside kernels that run, while it
//! may wait for them in `cuMemAlloc`, and does in calls that free or unmap. A peer's kernel may run until this thread
//! does its part, so that a rank could wait for ever in such a call.

use cudarc::driver::sys::CUdeviceptr;

use super::allocation::Mapped;
use super::pieces::{FreePieces, Piece};
use crate::device::cuda::driver::context::Primary;
use crate::error::{Error, Result};
use crate::sync::primitive::{Arc, Mutex, MutexGuard};

/// Bytes of a chunk, unless one piece needs more. Four of the driver's granules.
const CHUNK_BYTES: usize = 8 << 20;
/// Alignment of pieces in bytes: that of `cuMemAlloc`.
const GRAIN: usize = 256;

/// The chunks of a GPU.
#[derive(Debug)]
pub(in crate::device::cuda) struct Chunks {
    primary: Arc<Primary>,
    chunks: Mutex<Vec<Chunk>>,
}

#[derive(Debug)]
struct Chunk {
    memory: Mapped,
    free: FreePieces,
}

/// A piece of a chunk. Whoever drops it knows that no work uses it any more.
#[derive(Debug)]
pub(in crate::device::cuda) struct ChunkPiece {
    chunks: Arc<Chunks>,
    /// Where the chunk begins.
    chunk: CUdeviceptr,
    piece: Piece,
}

impl Chunks {
    pub(in crate::device::cuda) fn new(primary: &Arc<Primary>) -> Arc<Chunks> {
        Arc::new(Chunks { primary: Arc::clone(primary), chunks: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Chunk>> {
        self.chunks.lock()
    }

    /// A piece of at least `bytes`, with any content. The context must be current.
    ///
    /// # Errors
    /// Where the GPU has no memory left.
    pub(in crate::device::cuda) fn take(self: &Arc<Chunks>, bytes: usize) -> Result<ChunkPiece> {
        let bytes = bytes.max(1).checked_next_multiple_of(GRAIN);
        let bytes = bytes.ok_or_else(|| Error::invalid_argument("a length near the end of the address space"))?;
        let mut chunks = self.lock();
        let best = chunks.iter_mut().filter_map(|chunk| Some((chunk.free.best(bytes)?, chunk))).min_by_key(|fit| fit.0);
        if let Some((_, chunk)) = best
            && let Some(piece) = chunk.free.take(bytes)
        {
            return Ok(ChunkPiece { chunks: Arc::clone(self), chunk: chunk.memory.address(), piece });
        }
        let memory = Mapped::for_threads(&self.primary, bytes.max(CHUNK_BYTES))?;
        let mut free = FreePieces::new(memory.bytes());
        let piece = free.take(bytes).ok_or_else(|| Error::internal("a new chunk has too few bytes"))?;
        let chunk = memory.address();
        chunks.push(Chunk { memory, free });
        Ok(ChunkPiece { chunks: Arc::clone(self), chunk, piece })
    }

    /// Whether [`Chunks::trim`] would free something.
    pub(in crate::device::cuda) fn has_spare(&self) -> bool {
        Chunks::spare(&self.lock()).next().is_some()
    }

    /// Frees the chunks of which nothing is used, but one, which is kept for the next piece. That waits for kernels
    /// that run.
    pub(in crate::device::cuda) fn trim(&self) {
        let mut chunks = self.lock();
        let spare: Vec<usize> = Chunks::spare(&chunks).collect();
        let gone: Vec<Chunk> = spare.into_iter().rev().map(|index| chunks.swap_remove(index)).collect();
        // Unlocked, because a wait for a kernel must hold up nobody who allocates.
        drop(chunks);
        drop(gone);
    }

    /// The places of the chunks that are free as a whole, but for the first one of usual length.
    fn spare(chunks: &[Chunk]) -> impl Iterator<Item = usize> {
        let is_free = |chunk: &Chunk| chunk.free.is_all(chunk.memory.bytes());
        let is_usual = move |chunk: &Chunk| is_free(chunk) && chunk.memory.bytes() == CHUNK_BYTES;
        let kept = chunks.iter().position(is_usual);
        (0..chunks.len()).filter(move |index| is_free(&chunks[*index]) && Some(*index) != kept)
    }
}

impl ChunkPiece {
    /// Where it begins.
    pub(in crate::device::cuda) fn address(&self) -> CUdeviceptr {
        self.chunk + self.piece.offset as u64
    }
}

impl Drop for ChunkPiece {
    fn drop(&mut self) {
        let mut chunks = self.chunks.lock();
        if let Some(chunk) = chunks.iter_mut().find(|chunk| chunk.memory.address() == self.chunk) {
            chunk.free.give_back(self.piece);
        }
    }
}
