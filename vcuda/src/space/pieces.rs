//! What lies at an address.

use std::sync::Arc;

use super::Backing;
use super::state::RecordId;

/// A piece of memory: an allocation, a mapping, or pinned memory of the host.
#[derive(Debug, Clone)]
pub struct Piece {
    /// Its first address.
    pub start: u64,
    /// Its size as it was asked for.
    pub bytes: u64,
    /// What it is.
    pub kind: PieceKind,
    /// The context it was made in; 0 for memory that belongs to no context.
    pub context: u64,
    /// The GPU whose memory it is (of host memory: of the context).
    pub gpu: u32,
    /// A number that no other piece has or had (`CU_POINTER_ATTRIBUTE_BUFFER_ID`).
    pub buffer_id: u64,
    /// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`.
    pub sync_memops: bool,
    pub(super) data: *mut u8,
    pub(super) shadow: *mut u8,
    pub(super) defined: *mut u8,
    /// Its record in the state; a module's variables have none.
    pub(super) record: Option<RecordId>,
}

/// Kinds of pieces.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum PieceKind {
    /// From `cuMemAlloc`, or a module's variables.
    Allocation {
        /// First address of the block that it is cut from.
        block: u64,
    },
    /// From `cuMemAllocAsync`.
    Pooled {
        /// First address of the block that it is cut from.
        block: u64,
        /// The pool.
        pool: u64,
    },
    /// Physical memory that `cuMemMap` has put here.
    Mapped {
        /// The memory.
        backing: Arc<Backing>,
        /// The GPUs that may touch it, and whether they may write.
        rights: Vec<(u32, bool)>,
    },
    /// Another process's allocation.
    Opened {
        /// The file that holds it, mapped whole from `base` on.
        backing: Arc<Backing>,
        /// Device address of the file's first byte.
        base: u64,
        /// The exporter's record: gone when it has freed the memory.
        exporter: RecordId,
        /// How often it is open.
        references: u32,
        /// Whether opening it enabled peer access.
        peer: bool,
    },
    /// From `cuMemHostAlloc`.
    Host {
        /// The flags of the call.
        flags: u32,
    },
    /// Pinned by `cuMemHostRegister`.
    Registered {
        /// The flags of the call.
        flags: u32,
    },
}

impl Piece {
    /// Whether it is memory of the host.
    pub fn is_host(&self) -> bool {
        matches!(self.kind, PieceKind::Host { .. } | PieceKind::Registered { .. })
    }

    /// The first address after it.
    pub fn end(&self) -> u64 {
        self.start + self.bytes
    }
}

// SAFETY: the pointers are addresses of mapped memory that is used through atomics; nothing is owned by them.
unsafe impl Send for Piece {}
// SAFETY: as above.
unsafe impl Sync for Piece {}
