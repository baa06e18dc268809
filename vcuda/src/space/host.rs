//! Pinned memory of the host: allocated by the driver, or the program's own, registered.

use std::io;

use super::state::{Kind, Record};
use super::{Piece, PieceKind, Space, round_up, size};
use crate::driver::{CUresult, Outcome};

const PAGE: u64 = 4096;

/// For whom memory is pinned.
#[derive(Debug, Clone, Copy)]
pub struct Pinner {
    /// The context of the call.
    pub context: u64,
    /// Its GPU.
    pub gpu: u32,
    /// The flags of the call.
    pub flags: u32,
}

impl Space {
    /// Allocates pinned memory; its device address is the host's.
    ///
    /// # Errors
    ///
    /// `INVALID_VALUE` for no bytes, `OUT_OF_MEMORY` where the host has none.
    pub fn host_allocate(&self, pinner: Pinner, bytes: u64) -> Outcome<u64> {
        let length = round_up(bytes, PAGE).filter(|bytes| *bytes != 0).ok_or(CUresult::INVALID_VALUE)?;
        let start = map_anonymous(size(length)).map_err(|_| CUresult::OUT_OF_MEMORY)?;
        self.insert_host(pinner, start, bytes, PieceKind::Host { flags: pinner.flags }, Kind::HostMemory)?;
        Ok(start)
    }

    /// Frees pinned memory by its first address; false if none begins there.
    pub fn host_free(&self, start: u64) -> bool {
        let mut inner = self.write();
        if !matches!(inner.pieces.get(&start), Some(Piece { kind: PieceKind::Host { .. }, .. })) {
            return false;
        }
        let Some(piece) = inner.remove(start) else { return false };
        if let Some(record) = piece.record {
            self.state.lock().remove(record);
        }
        drop(inner);
        self.state.new_generation();
        let length = size(round_up(piece.bytes, PAGE).unwrap_or(piece.bytes));
        // SAFETY: mapped by `host_allocate` with this length; the program gave it back, and no kernel of its context runs.
        unsafe { libc::munmap(piece.data.cast(), length) };
        true
    }

    /// Pins memory of the program.
    ///
    /// # Errors
    ///
    /// `INVALID_VALUE` for no bytes, no address, or addresses that are not mapped; `HOST_MEMORY_ALREADY_REGISTERED` where
    /// a part of it is pinned.
    pub fn register(&self, pinner: Pinner, start: u64, bytes: u64) -> Outcome {
        let end = start.checked_add(bytes).filter(|_| start != 0 && bytes != 0).ok_or(CUresult::INVALID_VALUE)?;
        let inner = self.read();
        if inner.addresses.contains(start) || !is_mapped(start, end) {
            return Err(CUresult::INVALID_VALUE);
        }
        if inner.pieces.range(..end).next_back().is_some_and(|(_, piece)| piece.end() > start) {
            return Err(CUresult::HOST_MEMORY_ALREADY_REGISTERED);
        }
        drop(inner);
        self.insert_host(pinner, start, bytes, PieceKind::Registered { flags: pinner.flags }, Kind::Registration)
    }

    /// Undoes a registration by its first address; false if none begins there.
    pub fn unregister(&self, start: u64) -> bool {
        let mut inner = self.write();
        if !matches!(inner.pieces.get(&start), Some(Piece { kind: PieceKind::Registered { .. }, .. })) {
            return false;
        }
        let piece = inner.remove(start);
        drop(inner);
        if let Some(record) = piece.and_then(|piece| piece.record) {
            self.state.lock().remove(record);
        }
        self.state.new_generation();
        true
    }

    fn insert_host(&self, pinner: Pinner, start: u64, bytes: u64, kind: PieceKind, record: Kind) -> Outcome {
        let id = self.state.next_id();
        let record = Record { bytes, gpu: pinner.gpu, inode: start, ..Record::new(record, self.state.pid(), id) };
        let record = Some(self.record(record)?);
        let null = std::ptr::null_mut();
        self.write().insert(Piece {
            start,
            bytes,
            kind,
            context: pinner.context,
            gpu: pinner.gpu,
            buffer_id: id,
            sync_memops: false,
            data: std::ptr::with_exposed_provenance_mut(size(start)),
            // The host stores without telling us: neither old values nor written bits can be kept.
            shadow: null,
            defined: null,
            record,
        });
        self.state.new_generation();
        Ok(())
    }
}

fn map_anonymous(length: usize) -> io::Result<u64> {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), length, rights, flags, -1, 0) };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(address.expose_provenance() as u64)
}

/// Whether all pages of a range are mapped.
fn is_mapped(start: u64, end: u64) -> bool {
    let from = start / PAGE * PAGE;
    let Some(until) = round_up(end, PAGE) else { return false };
    let mut residency = vec![0_u8; size((until - from) / PAGE)];
    let address = std::ptr::with_exposed_provenance_mut::<u8>(size(from));
    // SAFETY: mincore only looks at the page table; the vector has a byte for each page.
    unsafe { libc::mincore(address.cast(), size(until - from), residency.as_mut_ptr()) == 0 }
}
