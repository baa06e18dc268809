//! Device memory of `cuMemAlloc`, pinned memory of the host, and legacy IPC. What allocates, frees or pins waits for the
//! context's kernels, as real drivers do now and then; what passes here does not lean on that they do not.

use super::{CUresult, Driver, Outcome};
use crate::schedule::Reason;
use crate::space::{IpcHandle, Opener, Owner, PieceKind, Pinner, Whose};

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
const LAZY_ENABLE_PEER_ACCESS: u32 = 1;
/// Flags of `cuMemHostAlloc`: portable, mapped, write-combined.
const HOST_ALLOC_FLAGS: u32 = 7;
/// Flags of `cuMemHostRegister`: portable, mapped, I/O memory (refused), read only.
const REGISTER_FLAGS: u32 = 15;
const REGISTER_IO_MEMORY: u32 = 4;

impl Driver {
    /// `cuMemGetInfo`: free bytes, all bytes.
    pub fn memory_info(&self) -> Outcome<(u64, u64)> {
        Ok(self.space.free_and_total(self.current()?.gpu))
    }

    /// `cuMemAlloc`.
    pub fn allocate(&self, bytes: u64) -> Outcome<u64> {
        let current = self.current()?;
        if bytes == 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        self.guard_capture()?;
        self.wait_for_kernels(current)?;
        self.tidy_memory();
        let owner = Owner { context: current.context, pool: 0, gpu: current.gpu };
        self.space.allocate(owner, bytes, Whose::Program)
    }

    /// `cuMemFree`: waits for all work of the memory's context.
    pub fn free(&self, address: u64) -> Outcome {
        let current = self.current()?;
        if address == 0 {
            return Ok(());
        }
        let piece = self.space.piece(address).filter(|piece| piece.start == address).ok_or(CUresult::INVALID_VALUE)?;
        let context = match piece.kind {
            PieceKind::Allocation { .. } => piece.context,
            PieceKind::Pooled { .. } => current.context,
            _ => return Err(CUresult::INVALID_VALUE),
        };
        self.guard_capture()?;
        let owner = super::Current { context, gpu: piece.gpu };
        self.wait_for_all(owner, Reason::Implicit)?;
        self.space.free(address).ok_or(CUresult::INVALID_VALUE)?;
        self.tidy_memory();
        Ok(())
    }

    /// `cuMemHostAlloc`.
    pub fn host_allocate(&self, bytes: u64, flags: u32) -> Outcome<u64> {
        let current = self.current()?;
        if flags & !HOST_ALLOC_FLAGS != 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        self.guard_capture()?;
        self.wait_for_kernels(current)?;
        self.space.host_allocate(Pinner { context: current.context, gpu: current.gpu, flags }, bytes)
    }

    /// `cuMemFreeHost`: waits for all work of all contexts, since all may use the memory.
    pub fn host_free(&self, address: u64) -> Outcome {
        let current = self.current()?;
        let is_ours = self
            .space
            .piece(address)
            .is_some_and(|piece| piece.start == address && matches!(piece.kind, PieceKind::Host { .. }));
        if !is_ours {
            return Err(CUresult::INVALID_VALUE);
        }
        self.guard_capture()?;
        let contexts: Vec<u64> = self.engine.lock().contexts.keys().copied().collect();
        for context in contexts {
            let outcome = self.wait_for_all(super::Current { context, ..current }, Reason::Implicit);
            if context == current.context {
                outcome?;
            }
        }
        // Of a context that has failed a worker may still have a block in hand.
        self.engine.wait_for_workers();
        if self.space.host_free(address) { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
    }

    /// `cuMemHostRegister`.
    pub fn host_register(&self, address: u64, bytes: u64, flags: u32) -> Outcome {
        let current = self.current()?;
        if flags & !REGISTER_FLAGS != 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        if flags & REGISTER_IO_MEMORY != 0 {
            return Err(CUresult::NOT_SUPPORTED);
        }
        self.guard_capture()?;
        self.wait_for_kernels(current)?;
        self.space.register(Pinner { context: current.context, gpu: current.gpu, flags }, address, bytes)
    }

    /// `cuMemHostUnregister`.
    pub fn host_unregister(&self, address: u64) -> Outcome {
        let current = self.current()?;
        self.guard_capture()?;
        if address == 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        self.wait_for_all(current, Reason::Implicit)?;
        if self.space.unregister(address) { Ok(()) } else { Err(CUresult::HOST_MEMORY_NOT_REGISTERED) }
    }

    /// `cuMemHostGetDevicePointer`.
    pub fn host_device_pointer(&self, address: u64, flags: u32) -> Outcome<u64> {
        self.current()?;
        if flags != 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        let is_pinned = self.space.piece(address).is_some_and(|piece| piece.is_host());
        if is_pinned { Ok(address) } else { Err(CUresult::INVALID_VALUE) }
    }

    /// `cuMemHostGetFlags`.
    pub fn host_flags(&self, address: u64) -> Outcome<u32> {
        self.current()?;
        match self.space.piece(address).map(|piece| piece.kind) {
            // Mapped and portable whatever was asked for, since addresses are unified.
            Some(PieceKind::Host { flags } | PieceKind::Registered { flags }) => Ok(flags | 3),
            _ => Err(CUresult::INVALID_VALUE),
        }
    }

    /// `cuMemGetAddressRange`: first address and size of what lies at a device address.
    pub fn address_range(&self, address: u64) -> Outcome<(u64, u64)> {
        self.current()?;
        let piece = self.space.piece(address).filter(|piece| !piece.is_host());
        piece.map(|piece| (piece.start, piece.bytes)).ok_or(CUresult::INVALID_VALUE)
    }

    /// `cuIpcGetMemHandle`.
    pub fn ipc_handle(&self, address: u64) -> Outcome<IpcHandle> {
        self.current()?;
        if !self.machine.legacy_ipc {
            return Err(CUresult::NOT_SUPPORTED);
        }
        self.space.ipc_handle(address)
    }

    /// `cuIpcOpenMemHandle`.
    pub fn ipc_open(&self, handle: Option<IpcHandle>, flags: u32) -> Outcome<u64> {
        let current = self.current()?;
        if flags & !LAZY_ENABLE_PEER_ACCESS != 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        if !self.machine.legacy_ipc {
            return Err(CUresult::NOT_SUPPORTED);
        }
        self.guard_capture()?;
        let handle = handle.ok_or(CUresult::INVALID_VALUE)?;
        let lazy_peer = flags & LAZY_ENABLE_PEER_ACCESS != 0;
        self.space.open_ipc(Opener { context: current.context, gpu: current.gpu, lazy_peer }, handle)
    }

    /// `cuIpcCloseMemHandle`.
    pub fn ipc_close(&self, address: u64) -> Outcome {
        let current = self.current()?;
        self.guard_capture()?;
        self.wait_for_all(current, Reason::Implicit)?;
        self.space.close_ipc(address)?;
        self.tidy_memory();
        Ok(())
    }
}
