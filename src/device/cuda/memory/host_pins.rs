//! Memory of the host in which kernels work: where GPUs do not reach each other's memory, what they have for each other
//! lies there.
//!
//! The driver pins memory once for a process, for all of its GPUs; each GPU asks for the address that it uses itself.
//! Pinning waits for kernels that run, and such a kernel may wait for what this thread does next. So threads get pieces
//! of a large block, which is pinned when the first piece is: another communicator's set-up finds room in it.

use std::collections::HashMap;

use cudarc::driver::sys::CUdeviceptr;

use super::pieces::{FreePieces, Piece};
use super::unshared::Unshared;
use crate::device::cuda::driver::context::Primary;
use crate::device::cuda::driver::result::{Driver, call};
use crate::device::{HostMemory, HostRegion, Sharing};
use crate::error::{Error, Kind, Result};
use crate::log;
use crate::sync::primitive::{Arc, Mutex, MutexGuard, Weak};

/// Host memory as one GPU addresses it.
#[derive(Debug)]
pub(in crate::device::cuda) struct OfHost {
    address: CUdeviceptr,
    _pin: Arc<Pin>,
    _memory: HostRegion,
}

/// Keeps host memory pinned.
#[derive(Debug)]
struct Pin {
    /// Whose context was current when the memory was pinned.
    primary: Arc<Primary>,
    // After the driver has been told.
    memory: HostRegion,
}

/// What the driver has pinned for this library in this process. It refuses to pin memory twice.
#[derive(Debug, Default)]
pub(in crate::device::cuda) struct Pins {
    /// By address.
    pins: Mutex<HashMap<usize, Weak<Pin>>>,
    /// As long as pieces of them are used.
    blocks: Mutex<Vec<Weak<Block>>>,
}

/// Memory from which threads get pieces.
#[derive(Debug)]
struct Block {
    memory: HostRegion,
    free: Mutex<FreePieces>,
}

/// A piece that is in use. Whoever drops it knows that no work uses it any more.
#[derive(Debug)]
struct BlockPiece {
    block: Arc<Block>,
    piece: Piece,
}

/// Bytes of a block: enough for the usual memory of several communicators of four ranks.
const BLOCK_BYTES: usize = 64 << 20;
const PAGE: usize = 4096;
/// `CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP`
const PORTABLE_MAPPED: u32 = 1 | 2;

impl OfHost {
    /// Pins `memory`, or the block of which it is a piece, unless that was done in this process. Call it during set-up:
    /// pinning waits for kernels that run.
    pub(in crate::device::cuda) fn new(driver: &Driver, primary: &Arc<Primary>, memory: &HostRegion) -> Result<OfHost> {
        let _entered = primary.enter()?;
        let pins = driver.pins();
        let whole = pins.block_of(memory).unwrap_or_else(|| memory.clone());
        let pin = pins.take(primary, &whole)?;
        let mut address = 0;
        let start = memory.base().as_ptr().cast();
        // SAFETY: the memory is pinned and mapped for all GPUs, and the place is ours.
        let asked = unsafe { call!(primary, cuMemHostGetDevicePointer(&raw mut address, start, 0)) };
        asked.map_err(|failure| primary.error(failure))?;
        Ok(OfHost { address, _pin: pin, _memory: memory.clone() })
    }

    /// Where it begins.
    pub(in crate::device::cuda) fn address(&self) -> CUdeviceptr {
        self.address
    }
}

impl Pins {
    /// A zeroed piece of a block.
    pub(in crate::device::cuda) fn piece(&self, bytes: usize) -> Result<HostRegion> {
        let bytes = bytes.max(1).checked_next_multiple_of(PAGE);
        let bytes = bytes.ok_or_else(|| Error::invalid_argument("a length near the end of the address space"))?;
        let mut blocks = self.blocks();
        blocks.retain(|block| block.strong_count() > 0);
        for block in blocks.iter().filter_map(Weak::upgrade) {
            if let Some(region) = block.take(bytes) {
                return Ok(region);
            }
        }
        let memory = HostMemory.allocate_host(bytes.max(BLOCK_BYTES), Sharing::Threads)?;
        let free = Mutex::new(FreePieces::new(memory.bytes()));
        let block = Arc::new(Block { memory, free });
        blocks.push(Arc::downgrade(&block));
        block.take(bytes).ok_or_else(|| Error::internal("a new block has too few bytes"))
    }

    fn blocks(&self) -> MutexGuard<'_, Vec<Weak<Block>>> {
        self.blocks.lock()
    }

    /// The block in which `memory` lies, if it is a piece.
    fn block_of(&self, memory: &HostRegion) -> Option<HostRegion> {
        let at = memory.base().addr().get();
        let mut blocks = self.blocks().iter().filter_map(Weak::upgrade).collect::<Vec<_>>().into_iter();
        let start = |block: &Arc<Block>| block.memory.base().addr().get();
        let found = blocks.find(|block| (start(block)..start(block) + block.memory.bytes()).contains(&at))?;
        Some(found.memory.clone())
    }

    /// The context must be current.
    fn take(&self, primary: &Arc<Primary>, memory: &HostRegion) -> Result<Arc<Pin>> {
        let mut pins = self.pins.lock();
        pins.retain(|_, pin| pin.strong_count() > 0);
        let key = memory.base().addr().get();
        if let Some(pin) = pins.get(&key).and_then(Weak::upgrade) {
            return Ok(pin);
        }
        let bytes = memory.bytes();
        let device = primary.device();
        log::info!(Alloc, "GPU {device}: pinning {bytes} bytes of host memory, which waits for kernels that run");
        // SAFETY: the region is mapped for reading and writing, and the pin keeps it until the driver has let go of it.
        let made = unsafe { call!(primary, cuMemHostRegister(memory.base().as_ptr().cast(), bytes, PORTABLE_MAPPED)) };
        made.map_err(|failure| {
            let error = primary.error(failure);
            Error::new(
                Kind::System,
                format!("{bytes} bytes of host memory cannot be pinned for the work of GPUs: {}", error.message()),
            )
        })?;
        let pin = Arc::new(Pin { primary: Arc::clone(primary), memory: memory.clone() });
        pins.insert(key, Arc::downgrade(&pin));
        Ok(pin)
    }
}

impl Block {
    fn take(self: &Arc<Block>, bytes: usize) -> Option<HostRegion> {
        let piece = self.free().take(bytes)?;
        let start = self.memory.at(piece.offset, piece.bytes);
        let keep = BlockPiece { block: Arc::clone(self), piece };
        // SAFETY: the piece lies in the block, belongs to nobody else, and no work uses it.
        unsafe { start.write_bytes(0, piece.bytes) };
        // SAFETY: the piece is the region's alone until `keep` is dropped, which keeps the block.
        Some(unsafe { HostRegion::new(start, bytes, Arc::new(Unshared(keep))) })
    }

    fn free(&self) -> MutexGuard<'_, FreePieces> {
        self.free.lock()
    }
}

impl Drop for BlockPiece {
    fn drop(&mut self) {
        self.block.free().give_back(self.piece);
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        // SAFETY: the memory was pinned for us alone, and no work of ours uses it any more: `Active::free_retired`
        // waits for that.
        self.primary
            .give_back(|| unsafe { call!(self.primary, cuMemHostUnregister(self.memory.base().as_ptr().cast())) });
    }
}
