//! Who may touch what, and what the interpreter is told about it.

use std::sync::Arc;

use super::state::State;
use super::{Inner, Piece, PieceKind, Space};
use crate::simt::{Extent, GlobalMemory, Home, MemoryFault};

/// `CU_MEMHOSTREGISTER_READ_ONLY`.
const REGISTERED_READ_ONLY: u32 = 8;
/// How far behind an allocation an access counts as one beyond its end.
const BEYOND: u64 = 4096;

/// The memory as the kernels of one context see it.
#[derive(Debug)]
pub struct View {
    space: Arc<Space>,
    context: u64,
    gpu: u32,
}

impl View {
    /// The view of a context on a GPU.
    pub fn new(space: Arc<Space>, context: u64, gpu: u32) -> View {
        View { space, context, gpu }
    }
}

impl GlobalMemory for View {
    fn extent(&self, gpu: u32, address: u64) -> Result<Extent, MemoryFault> {
        debug_assert_eq!(gpu, self.gpu, "a context's kernels run on its own GPU");
        self.space.extent(self.context, self.gpu, address)
    }

    fn generation(&self) -> u64 {
        self.space.state().generation()
    }

    fn changes(&self) -> u64 {
        self.space.state().changes()
    }

    fn bump(&self) -> u64 {
        // A kernel has changed memory. That is a step of the machine too, even if the block then sleeps at once: kernels
        // that only answer each other's words are not stuck.
        self.space.state().moved();
        self.space.state().bump()
    }
}

impl Space {
    /// The piece at an address as a context's kernels may touch it.
    ///
    /// # Errors
    ///
    /// Why they may not.
    pub fn extent(&self, context: u64, gpu: u32, address: u64) -> Result<Extent, MemoryFault> {
        let inner = self.read();
        let Some(piece) = inner.piece(address) else { return Err(inner.nothing_at(address)) };
        let writable = inner.right(piece, context, gpu)?;
        self.check_exporter(piece)?;
        let home = match piece.kind {
            PieceKind::Host { .. } | PieceKind::Registered { .. } => Home::Host,
            _ if piece.gpu == gpu => Home::ThisGpu,
            _ => Home::Peer(piece.gpu),
        };
        let ll128 = !piece.is_host()
            && if State::is_foreign(piece.gpu) {
                self.machine.has_switch(gpu)
            } else {
                self.machine.ll128(gpu, piece.gpu)
            };
        Ok(Extent {
            start: piece.start,
            end: piece.end(),
            data: piece.data,
            shadow: piece.shadow,
            defined: piece.defined,
            home,
            writable,
            ll128,
        })
    }

    /// Memory of another process is gone when that process has freed it.
    pub(super) fn check_exporter(&self, piece: &Piece) -> Result<(), MemoryFault> {
        match piece.kind {
            PieceKind::Opened { exporter, .. } if self.state.lock().get(exporter).is_none() => {
                Err(MemoryFault::Freed { start: piece.start, bytes: piece.bytes })
            }
            _ => Ok(()),
        }
    }
}

impl Inner {
    /// Whether a context's kernels may write the piece.
    ///
    /// # Errors
    ///
    /// `NoAccess` if they may not even read it.
    pub(super) fn right(&self, piece: &Piece, context: u64, gpu: u32) -> Result<bool, MemoryFault> {
        let home = Home::Peer(piece.gpu);
        let allowed = match &piece.kind {
            PieceKind::Host { .. } => Some(true),
            PieceKind::Registered { flags } => Some(flags & REGISTERED_READ_ONLY == 0),
            PieceKind::Allocation { .. } => {
                let own = piece.context == context;
                (own || self.peers.contains(&(context, piece.context))).then_some(true)
            }
            PieceKind::Pooled { .. } => (piece.gpu == gpu).then_some(true),
            PieceKind::Mapped { rights, .. } => rights.iter().find(|right| right.0 == gpu).map(|right| right.1),
            PieceKind::Opened { peer, .. } => (piece.context == context && (piece.gpu == gpu || *peer)).then_some(true),
        };
        allowed.ok_or(MemoryFault::NoAccess { home })
    }

    /// Why nothing is at an address.
    pub(super) fn nothing_at(&self, address: u64) -> MemoryFault {
        let freed = self.freed.range(..=address).next_back();
        if let Some((start, bytes)) = freed.filter(|(start, bytes)| address < **start + **bytes) {
            return MemoryFault::Freed { start: *start, bytes: *bytes };
        }
        let before = self.pieces.range(..=address).next_back().map(|(_, piece)| piece);
        let after = self.pieces.range(address..).next().map(|(_, piece)| piece);
        let beside = before.filter(|piece| address < piece.end() + BEYOND);
        let beside = beside.or(after.filter(|piece| piece.start - address < BEYOND));
        match beside.filter(|piece| !piece.is_host()) {
            Some(piece) => MemoryFault::RedZone { start: piece.start, bytes: piece.bytes },
            None => MemoryFault::Unmapped,
        }
    }
}
