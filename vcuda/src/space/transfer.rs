//! Copies, fills and single words: what copy engines and memory operations do to memory.

use super::{Inner, Piece, PieceKind, Space, bytes, size};
use crate::simt::{Home, MemoryFault};

/// What kind of memory an address is, for a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Device memory, or an address of the device where nothing is.
    Device,
    /// Host memory that the driver has pinned.
    Pinned,
    /// Any other address: ordinary memory of the host.
    Pageable,
}

/// Why a copy cannot be made, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransferError {
    /// The first address that is not as it should be.
    pub address: u64,
    /// What is wrong with it.
    pub fault: MemoryFault,
}

/// Who copies: a context on a GPU.
#[derive(Debug, Clone, Copy)]
pub struct Agent {
    /// The context.
    pub context: u64,
    /// Its GPU.
    pub gpu: u32,
}

/// A run of bytes of one piece, or of ordinary host memory.
struct Run {
    data: *mut u8,
    /// Written bits of the piece, and the bit of the first byte; null where nobody counts.
    bits: (*mut u8, usize),
    bytes: usize,
}

impl Space {
    /// What kind of memory an address is.
    pub fn side(&self, address: u64) -> Side {
        let inner = self.read();
        match inner.piece(address) {
            Some(piece) if piece.is_host() => Side::Pinned,
            Some(_) => Side::Device,
            None if inner.addresses.contains(address) => Side::Device,
            None => Side::Pageable,
        }
    }

    /// Checks that a context may copy from or to all of a range.
    ///
    /// # Errors
    ///
    /// The first address that it may not touch.
    pub fn check_range(&self, agent: Agent, address: u64, bytes: u64) -> Result<(), TransferError> {
        let inner = self.read();
        let mut at = address;
        while at < address.saturating_add(bytes) {
            let run = self.run(&inner, agent, at, address + bytes - at)?;
            at += run.bytes as u64;
        }
        Ok(())
    }

    /// Copies between any two places.
    ///
    /// # Errors
    ///
    /// The first address that the context may not touch; bytes before it are copied.
    pub fn copy(&self, agent: Agent, target: u64, source: u64, length: u64) -> Result<(), TransferError> {
        let inner = self.read();
        let mut done = 0;
        while done < length {
            let from = self.run(&inner, agent, source + done, length - done)?;
            let to = self.run(&inner, agent, target + done, length - done)?;
            let step = from.bytes.min(to.bytes);
            // SAFETY: both runs lie in mapped memory while the lock is held (pageable memory: by the program's word).
            unsafe { bytes::copy(to.data, from.data, step) };
            if !to.bits.0.is_null() && from.bits.0.is_null() {
                // SAFETY: the bits of a piece are mapped as long as the piece.
                unsafe { bytes::set_bits(to.bits.0, to.bits.1, step) };
            } else if !to.bits.0.is_null() {
                // SAFETY: as above, for both.
                unsafe { bytes::copy_bits(to.bits, from.bits, step) };
            }
            done += step as u64;
        }
        drop(inner);
        self.state.bump();
        Ok(())
    }

    /// Fills `count` elements with a pattern.
    ///
    /// # Errors
    ///
    /// As [`Space::copy`].
    pub fn fill(&self, agent: Agent, target: u64, pattern: &[u8], count: u64) -> Result<(), TransferError> {
        let inner = self.read();
        let length = count * pattern.len() as u64;
        let mut done = 0;
        while done < length {
            let run = self.run(&inner, agent, target + done, length - done)?;
            // SAFETY: the run lies in mapped memory while the lock is held.
            unsafe { bytes::fill(run.data, pattern, run.bytes / pattern.len()) };
            if !run.bits.0.is_null() {
                // SAFETY: the bits of a piece are mapped as long as the piece.
                unsafe { bytes::set_bits(run.bits.0, run.bits.1, run.bytes) };
            }
            done += run.bytes as u64;
        }
        drop(inner);
        self.state.bump();
        Ok(())
    }

    /// Reads a word of 4 or 8 bytes for a memory operation.
    ///
    /// # Errors
    ///
    /// As [`Space::copy`].
    pub fn load_word(&self, agent: Agent, address: u64, wide: bool) -> Result<u64, TransferError> {
        let inner = self.read();
        let run = self.run(&inner, agent, address, if wide { 8 } else { 4 })?;
        // SAFETY: the run is mapped while the lock is held; memory operations are refused on unaligned addresses.
        Ok(unsafe { bytes::load(run.data, wide) })
    }

    /// Writes a word of 4 or 8 bytes for a memory operation.
    ///
    /// # Errors
    ///
    /// As [`Space::copy`].
    pub fn store_word(&self, agent: Agent, address: u64, wide: bool, value: u64) -> Result<(), TransferError> {
        let inner = self.read();
        let run = self.run(&inner, agent, address, if wide { 8 } else { 4 })?;
        // SAFETY: the run is mapped while the lock is held; memory operations are refused on unaligned addresses.
        unsafe { bytes::store(run.data, wide, value) };
        if !run.bits.0.is_null() {
            // SAFETY: the bits of a piece are mapped as long as the piece.
            unsafe { bytes::set_bits(run.bits.0, run.bits.1, run.bytes) };
        }
        drop(inner);
        self.state.bump();
        Ok(())
    }

    /// A name of the memory behind an address that is the same in all processes: file and offset, or the address itself.
    pub fn common_name(&self, address: u64) -> String {
        let inner = self.read();
        let place = inner.piece(address).and_then(|piece| match &piece.kind {
            PieceKind::Allocation { block } | PieceKind::Pooled { block, .. } => {
                Some((inner.blocks.get(block)?.backing.number, address - block))
            }
            PieceKind::Mapped { backing, .. } => Some((backing.number, address - piece.start)),
            PieceKind::Opened { backing, base, .. } => Some((backing.number, address - base)),
            PieceKind::Host { .. } | PieceKind::Registered { .. } => None,
        });
        match place {
            Some((file, offset)) => format!("word {offset:#x} of memory {file}"),
            None => format!("word {address:#x} of host memory"),
        }
    }

    /// The longest run from an address on, at most `limit` bytes.
    fn run(&self, inner: &Inner, agent: Agent, address: u64, limit: u64) -> Result<Run, TransferError> {
        let Some(piece) = inner.piece(address) else {
            if !inner.addresses.contains(address) {
                let next = inner.pieces.range(address..).next().map_or(u64::MAX, |(start, _)| *start);
                let bytes = size(limit.min(next - address));
                let data = std::ptr::with_exposed_provenance_mut(size(address));
                return Ok(Run { data, bits: (std::ptr::null_mut(), 0), bytes });
            }
            return Err(TransferError { address, fault: inner.nothing_at(address) });
        };
        let checked = may_copy(inner, piece, agent).and_then(|()| self.check_exporter(piece));
        checked.map_err(|fault| TransferError { address, fault })?;
        let offset = size(address - piece.start);
        let bytes = size(limit.min(piece.end() - address));
        Ok(Run { data: piece.data.wrapping_add(offset), bits: (piece.defined, offset), bytes })
    }

    #[cfg(test)]
    pub(super) fn read_for_test(&self, address: u64, target: &mut [u8]) {
        let agent = Agent { context: 7, gpu: 0 };
        let place = target.as_mut_ptr().expose_provenance() as u64;
        self.copy(agent, place, address, target.len() as u64).expect("readable");
    }
}

/// Copies go through the host where two GPUs have no path, so that memory of `cuMemAlloc` can always be copied; memory
/// that `cuMemMap` has mapped needs `cuMemSetAccess` for the context's GPU.
fn may_copy(inner: &Inner, piece: &Piece, agent: Agent) -> Result<(), MemoryFault> {
    match piece.kind {
        PieceKind::Mapped { .. } => inner.right(piece, agent.context, agent.gpu).map(|_| ()),
        PieceKind::Pooled { .. } if piece.gpu != agent.gpu => {
            Err(MemoryFault::NoAccess { home: Home::Peer(piece.gpu) })
        }
        _ => Ok(()),
    }
}
