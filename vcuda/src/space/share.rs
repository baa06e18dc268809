//! Legacy IPC: handles of allocations, opened in other processes with a count of references.

use super::state::{FLAG_EXPORTED, Kind, Record, State, pid_is_alive};
use super::{Backing, GRANULARITY, Piece, PieceKind, Space};
use crate::driver::{CUresult, Outcome};

/// Bytes of a `CUipcMemHandle`.
pub const IPC_HANDLE_BYTES: usize = 64;

/// What stands first in a handle, so that other bytes are recognised as none.
const MAGIC: u64 = 0x7663_7564_612d_6970;

/// A `CUipcMemHandle`: it stands for an allocation's base, whatever address it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpcHandle {
    record: u64,
    key: u64,
    pid: u32,
}

/// Who opens a handle.
#[derive(Debug, Clone, Copy)]
pub struct Opener {
    /// The context of the call.
    pub context: u64,
    /// Its GPU.
    pub gpu: u32,
    /// Whether `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS` was asked for.
    pub lazy_peer: bool,
}

impl IpcHandle {
    /// The handle's bytes.
    pub fn to_bytes(self) -> [u8; IPC_HANDLE_BYTES] {
        let mut bytes = [0; IPC_HANDLE_BYTES];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.record.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.key.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.pid.to_le_bytes());
        bytes
    }

    /// Reads a handle; `None` if the bytes are none.
    pub fn from_bytes(bytes: &[u8; IPC_HANDLE_BYTES]) -> Option<IpcHandle> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes[at..at + 8].try_into().ok()?));
        let pid = u32::from_le_bytes(bytes[24..28].try_into().ok()?);
        (word(0)? == MAGIC).then_some(IpcHandle { record: word(8)?, key: word(16)?, pid })
    }
}

impl Space {
    /// The handle of the allocation around an address.
    ///
    /// # Errors
    ///
    /// `INVALID_VALUE` where no `cuMemAlloc` allocation lies: memory of pools, of `cuMemMap`, of the host, of others.
    pub fn ipc_handle(&self, address: u64) -> Outcome<IpcHandle> {
        let inner = self.read();
        let piece = inner.piece(address).ok_or(CUresult::INVALID_VALUE)?;
        let (PieceKind::Allocation { .. }, Some(record)) = (&piece.kind, piece.record) else {
            return Err(CUresult::INVALID_VALUE);
        };
        let mut key = 0;
        let mut guard = self.state.lock();
        guard.change(record, |record| {
            // The key only tells a stale handle from a fresh one; it keeps nobody out.
            record.key = record.id.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            record.flags |= FLAG_EXPORTED;
            key = record.key;
        });
        Ok(IpcHandle { record: record.id, key, pid: self.state.pid() })
    }

    /// Opens another process's allocation, or counts one reference more where this context has it open.
    ///
    /// # Errors
    ///
    /// `INVALID_CONTEXT` in the exporter's own process, or where another context of the process has it open;
    /// `INVALID_VALUE` when the memory or the process that exported it is gone, or on another host; `PEER_ACCESS_UNSUPPORTED` when it lies on a GPU without a path here.
    pub fn open_ipc(&self, opener: Opener, handle: IpcHandle) -> Outcome<u64> {
        if handle.pid == self.state.pid() {
            return Err(CUresult::INVALID_CONTEXT);
        }
        let exported = |record: &Record| record.id == handle.record && record.key == handle.key;
        let (exporter, record, file) = {
            let guard = self.state.lock();
            let (id, record) = guard.find(Kind::Allocation, exported).ok_or(CUresult::INVALID_VALUE)?;
            let of_it = |file: &Record| file.file == record.file && !State::is_foreign(self.state.gpu_of(file.gpu));
            let (_, file) = guard.find(Kind::File, of_it).ok_or(CUresult::INVALID_VALUE)?;
            (id, record, file)
        };
        // A killed exporter has freed nothing, so its record is still there. What its handle means then is undefined: refuse it,
        // also where others still have the memory open.
        if !pid_is_alive(record.pid) {
            return Err(CUresult::INVALID_VALUE);
        }
        if record.gpu != opener.gpu && !self.machine.can_access_peer(opener.gpu, record.gpu) {
            return Err(CUresult::PEER_ACCESS_UNSUPPORTED);
        }
        let mut inner = self.write();
        let is_same =
            |piece: &&mut Piece| matches!(piece.kind, PieceKind::Opened { exporter: other, .. } if other == exporter);
        if let Some(piece) = inner.pieces.values_mut().find(is_same) {
            if piece.context != opener.context {
                return Err(CUresult::INVALID_CONTEXT);
            }
            if let PieceKind::Opened { references, .. } = &mut piece.kind {
                *references += 1;
            }
            return Ok(piece.start);
        }
        let backing = Backing::open(&self.state, &file, self.watch())?;
        let base = inner.addresses.take(backing.bytes + GRANULARITY, GRANULARITY, 0).ok_or(CUresult::OUT_OF_MEMORY)?;
        inner.addresses.map(base, backing.bytes, backing.fd()).map_err(|_| CUresult::MAP_FAILED)?;
        backing.add_user();
        let start = base + record.offset;
        let id = self.state.next_id();
        let own = Record {
            file: record.file,
            offset: record.offset,
            bytes: record.bytes,
            gpu: record.gpu,
            inode: start,
            ..Record::new(Kind::Opened, self.state.pid(), id)
        };
        let own = self.record(own)?;
        let data = inner.addresses.data(start);
        inner.insert(Piece {
            start,
            bytes: record.bytes,
            data,
            shadow: backing.shadow_at(record.offset),
            defined: backing.defined_at(record.offset),
            kind: PieceKind::Opened { backing, base, exporter, references: 1, peer: opener.lazy_peer },
            context: opener.context,
            gpu: record.gpu,
            buffer_id: id,
            sync_memops: false,
            record: Some(own),
        });
        drop(inner);
        self.state.new_generation();
        Ok(start)
    }

    /// Closes an opened allocation: with the last reference its addresses are free again.
    ///
    /// # Errors
    ///
    /// `INVALID_VALUE` where none begins.
    pub fn close_ipc(&self, start: u64) -> Outcome {
        let mut guard = self.write();
        let inner = &mut *guard;
        let Some(Piece { kind: PieceKind::Opened { references, .. }, .. }) = inner.pieces.get_mut(&start) else {
            return Err(CUresult::INVALID_VALUE);
        };
        *references -= 1;
        if *references > 0 {
            return Ok(());
        }
        let piece = inner.remove(start).ok_or(CUresult::INVALID_VALUE)?;
        if let Some(record) = piece.record {
            self.state.lock().remove(record);
        }
        if let PieceKind::Opened { backing, base, .. } = piece.kind {
            backing.drop_user();
            inner.buried.push((base, backing.bytes + GRANULARITY, backing));
        }
        drop(guard);
        self.state.new_generation();
        Ok(())
    }
}
