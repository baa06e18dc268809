//! Memory of a GPU: for the threads of this process, pieces of [`Chunks`]; and mapped memory of its own length, which
//! other processes can import.
//!
//! A descriptor stands for whole granules (2 MiB). If a region leaves room in its last granule, the last word there
//! holds the region's length, which [`Allocation::import`] compares with the length that the peer announced.

use std::os::fd::OwnedFd;

use cudarc::driver::sys::{CUdevice, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc};

use super::chunks::{ChunkPiece, Chunks};
use super::host_pins::OfHost;
use super::legacy::{Handed, Opened};
use super::physical::{Handles, Physical, granule, location};
use crate::device::cuda::driver::context::Primary;
use crate::device::cuda::driver::result::{Driver, Refusal, call};
use crate::device::cuda::driver::stream::OwnStream;
use crate::device::{FabricHandle, HostRegion};
use crate::error::{Error, Kind, Result};
use crate::sync::primitive::{Arc, Mutex, MutexGuard};
use crate::sys::note::{NOTE_BYTES, TakenNote};

/// Memory that lives as long as its owner; zeroed when new.
#[derive(Debug)]
pub(in crate::device::cuda) enum Allocation {
    /// Of this process alone.
    Piece(ChunkPiece),
    /// Of this process alone, from a driver that maps no memory.
    Ordinary(Ordinary),
    /// Other processes can map it.
    Mapped(Mapped),
    /// Other processes can open it by a handle.
    Handed(Handed),
    /// Another process's, opened by its handle.
    Opened(Opened),
    /// Allocations of another process, behind each other.
    Joined(JoinedMemory),
    /// The host's, as a GPU addresses it.
    OfHost(OfHost),
}

impl Allocation {
    /// `bytes` for threads of this process, which all GPUs reach that have a way to this one. It waits for no kernel,
    /// unless the driver maps no memory.
    pub(in crate::device::cuda) fn for_threads(
        chunks: &Arc<Chunks>,
        primary: &Arc<Primary>,
        service: &OwnStream,
        bytes: usize,
    ) -> Result<Allocation> {
        let _entered = primary.enter()?;
        let memory = if primary.memory_ways().maps {
            Allocation::Piece(chunks.take(bytes)?)
        } else {
            Allocation::Ordinary(Ordinary::new(primary, bytes)?)
        };
        fill_with_zero(primary, memory.address(), bytes, service)?;
        Ok(memory)
    }

    /// `bytes` that other processes can map by these `handles`.
    pub(in crate::device::cuda) fn shareable(
        primary: &Arc<Primary>,
        (bytes, handles): (usize, Handles),
        service: &OwnStream,
    ) -> Result<Allocation> {
        let _entered = primary.enter()?;
        let layout = Layout::new(bytes, granule(primary, handles)?)?;
        let memory = Mapped::own(primary, layout, handles)?;
        fill_with_zero(primary, memory.reserved.address, layout.whole, service)?;
        memory.write_length(primary, service)?;
        Ok(Allocation::Mapped(memory))
    }

    /// `bytes` that other processes can open by a handle.
    pub(in crate::device::cuda) fn by_handle(
        primary: &Arc<Primary>,
        bytes: usize,
        service: &OwnStream,
    ) -> Result<Allocation> {
        let _entered = primary.enter()?;
        let memory = Handed::new(primary, bytes)?;
        fill_with_zero(primary, memory.address(), bytes, service)?;
        Ok(Allocation::Handed(memory))
    }

    /// Opens what a peer's note names, which must have `bytes`.
    pub(in crate::device::cuda) fn open(
        primary: &Arc<Primary>,
        note: (TakenNote, [u8; NOTE_BYTES]),
        bytes: usize,
    ) -> Result<Allocation> {
        let _entered = primary.enter()?;
        Opened::open(primary, note, bytes).map(Allocation::Opened)
    }

    /// Memory of the host, for the work of this GPU. It waits for kernels that run.
    pub(in crate::device::cuda) fn of_host(
        driver: &Driver,
        primary: &Arc<Primary>,
        memory: &HostRegion,
    ) -> Result<Allocation> {
        OfHost::new(driver, primary, memory).map(Allocation::OfHost)
    }

    /// Maps memory of `bytes` that a peer exported.
    pub(in crate::device::cuda) fn import(
        primary: &Arc<Primary>,
        descriptor: &OwnedFd,
        bytes: usize,
        service: &OwnStream,
    ) -> Result<Allocation> {
        let _entered = primary.enter()?;
        let physical = Physical::import(primary, descriptor)?;
        Allocation::visited(physical, (bytes, Handles::Descriptor), service)
    }

    /// Maps memory of `bytes` that a peer on another host exported.
    pub(in crate::device::cuda) fn import_fabric(
        primary: &Arc<Primary>,
        handle: &FabricHandle,
        bytes: usize,
        service: &OwnStream,
    ) -> Result<Allocation> {
        let _entered = primary.enter()?;
        let physical = Physical::import_fabric(primary, handle)?;
        Allocation::visited(physical, (bytes, Handles::AlsoFabric), service)
    }

    /// A peer's memory, mapped for this GPU alone. The context is current.
    fn visited(physical: Physical, (bytes, handles): (usize, Handles), service: &OwnStream) -> Result<Allocation> {
        let primary = &Arc::clone(physical.primary());
        let layout = Layout::new(bytes, granule(primary, handles)?)?;
        let reserved = Reserved::new(primary, layout)?;
        let visitors = [primary.device()];
        let memory = Mapped::new(reserved, physical, layout, &visitors);
        let memory = memory.map_err(|failure| foreign(primary, failure, bytes))?;
        let told = memory.read_length(primary, service)?;
        if told.is_some_and(|told| told != bytes as u64) {
            let message = "a peer sent memory of another length than it announced, or memory that rsccl did not make";
            return Err(Error::new(Kind::Remote, format!("{message}; {bytes} bytes were announced")));
        }
        Ok(Allocation::Mapped(memory))
    }

    /// A descriptor that other processes can import.
    pub(in crate::device::cuda) fn export(&self) -> Result<OwnedFd> {
        match self {
            Allocation::Piece(_) | Allocation::Ordinary(_) => {
                Err(Error::internal("this GPU memory was allocated for threads"))
            }
            Allocation::Mapped(memory) => memory.export(),
            Allocation::Handed(memory) => memory.descriptor(),
            Allocation::Opened(_) | Allocation::Joined(_) | Allocation::OfHost(_) => {
                Err(Error::internal("this memory is another process's, or the host's"))
            }
        }
    }

    /// The handle that GPUs of other hosts can import; `None` of memory that has none.
    pub(in crate::device::cuda) fn fabric_handle(&self) -> Result<Option<FabricHandle>> {
        match self {
            Allocation::Mapped(memory) => memory.fabric_handle(),
            Allocation::Piece(_)
            | Allocation::Ordinary(_)
            | Allocation::Handed(_)
            | Allocation::Opened(_)
            | Allocation::Joined(_)
            | Allocation::OfHost(_) => Ok(None),
        }
    }

    /// Puts other memory with the same content behind the addresses. Peers keep the old memory mapped, and no longer
    /// see what is written here. No work of this process may use the memory meanwhile.
    pub(in crate::device::cuda) fn replace(&self, primary: &Arc<Primary>, service: &OwnStream) -> Result<()> {
        match self {
            Allocation::Piece(_) | Allocation::Ordinary(_) | Allocation::OfHost(_) => Ok(()),
            Allocation::Mapped(memory) => memory.replace(primary, service),
            Allocation::Joined(_) => Err(Error::internal("another process's memory cannot be replaced")),
            Allocation::Handed(_) | Allocation::Opened(_) => {
                Err(Error::new(Kind::System, "GPU memory that is shared by a handle cannot be taken back"))
            }
        }
    }

    /// Where it begins.
    pub(in crate::device::cuda) fn address(&self) -> CUdeviceptr {
        match self {
            Allocation::Piece(memory) => memory.address(),
            Allocation::Ordinary(memory) => memory.address,
            Allocation::Mapped(memory) => memory.address(),
            Allocation::Handed(memory) => memory.address(),
            Allocation::Opened(memory) => memory.address(),
            Allocation::Joined(memory) => memory.reserved.address,
            Allocation::OfHost(memory) => memory.address(),
        }
    }

    /// Whether another process works in it by this process's handle: freed now, it would be gone under its kernels.
    pub(in crate::device::cuda) fn is_open_elsewhere(&self) -> bool {
        matches!(self, Allocation::Handed(memory) if memory.is_open_elsewhere())
    }
}

/// Memory by `cuMemAlloc`.
#[derive(Debug)]
pub(in crate::device::cuda) struct Ordinary {
    primary: Arc<Primary>,
    address: CUdeviceptr,
}

impl Ordinary {
    /// Waits for kernels that run.
    fn new(primary: &Arc<Primary>, bytes: usize) -> Result<Ordinary> {
        let mut address = 0;
        // SAFETY: the place is ours, and the context is current.
        let made = unsafe { call!(primary, cuMemAlloc(&raw mut address, bytes)) };
        made.map_err(|failure| refused(primary, failure, bytes))?;
        Ok(Ordinary { primary: Arc::clone(primary), address })
    }
}

impl Drop for Ordinary {
    fn drop(&mut self) {
        // SAFETY: the memory is ours. No work of ours uses it any more: `Active::free_retired` waits for that.
        self.primary.give_back(|| unsafe { call!(self.primary, cuMemFree(self.address)) });
    }
}

/// How many granules a region takes, and where its length is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    bytes: usize,
    granule: usize,
    /// Whole granules.
    whole: usize,
}

/// Bytes of the length at the end.
const LENGTH_BYTES: usize = size_of::<u64>();

impl Layout {
    fn new(bytes: usize, granule: usize) -> Result<Layout> {
        let whole = bytes.max(1).checked_next_multiple_of(granule);
        let whole = whole.ok_or_else(|| Error::invalid_argument(format!("{bytes} bytes are too large")))?;
        Ok(Layout { bytes, granule, whole })
    }

    /// Where the length is written, if there is room.
    fn length_at(self) -> Option<usize> {
        (self.whole - self.bytes >= LENGTH_BYTES).then_some(self.whole - LENGTH_BYTES)
    }
}

/// Memory in two parts: reserved addresses, and behind them physical memory, which other processes can map.
#[derive(Debug)]
pub(in crate::device::cuda) struct Mapped {
    layout: Layout,
    /// Locked while it changes; `None` after a change that failed half-way, which leaves nothing at the addresses.
    physical: Mutex<Option<Physical>>,
    reserved: Reserved,
}

impl Mapped {
    /// New memory behind new addresses; what is in it is not defined.
    fn own(primary: &Arc<Primary>, layout: Layout, handles: Handles) -> Result<Mapped> {
        let physical = Physical::new(primary, layout.whole, handles)?;
        let reserved = Reserved::new(primary, layout)?;
        let visitors = &primary.memory_ways().visitors;
        Mapped::new(reserved, physical, layout, visitors).map_err(|failure| primary.error(failure))
    }

    /// New memory of at least `bytes`, with any content. The context must be current.
    pub(in crate::device::cuda) fn for_threads(primary: &Arc<Primary>, bytes: usize) -> Result<Mapped> {
        let granule = granule(primary, Handles::Descriptor)?;
        let whole = Layout::new(bytes, granule)?.whole;
        Mapped::own(primary, Layout::new(whole, granule)?, Handles::Descriptor)
    }

    /// Where it begins.
    pub(in crate::device::cuda) fn address(&self) -> CUdeviceptr {
        self.reserved.address
    }

    /// Bytes that may be used.
    pub(in crate::device::cuda) fn bytes(&self) -> usize {
        self.layout.bytes
    }

    /// Memory that the kernels of these devices may use.
    fn new(reserved: Reserved, physical: Physical, layout: Layout, visitors: &[CUdevice]) -> Result<Mapped, Refusal> {
        reserved.map(&physical, visitors)?;
        Ok(Mapped { layout, physical: Mutex::new(Some(physical)), reserved })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Physical>> {
        self.physical.lock()
    }

    fn export(&self) -> Result<OwnedFd> {
        let physical = self.lock();
        physical.as_ref().ok_or_else(nothing_mapped)?.descriptor()
    }

    fn fabric_handle(&self) -> Result<Option<FabricHandle>> {
        let physical = self.lock();
        physical.as_ref().ok_or_else(nothing_mapped)?.fabric_handle()
    }

    fn replace(&self, primary: &Arc<Primary>, service: &OwnStream) -> Result<()> {
        let _entered = primary.enter()?;
        let mut place = self.lock();
        let fresh = Mapped::own(primary, self.layout, Handles::Descriptor)?;
        copy(primary, self.reserved.address, fresh.reserved.address, self.layout.whole, service)?;
        let mine = place.as_ref().ok_or_else(nothing_mapped)?;
        let other = fresh.into_physical().map_err(|failure| primary.error(failure))?;
        self.reserved.unmap().map_err(|failure| primary.error(failure))?;
        let visitors = &primary.memory_ways().visitors;
        if let Err(failure) = self.reserved.map(&other, visitors) {
            // The old memory goes back; without even that nothing is mapped.
            if self.reserved.map(mine, visitors).is_err() {
                *place = None;
            }
            return Err(primary.error(failure));
        }
        *place = Some(other);
        Ok(())
    }

    /// The memory alone, without addresses.
    fn into_physical(self) -> Result<Physical, Refusal> {
        self.reserved.unmap()?;
        Ok(self.lock().take().expect("made a moment ago, and nobody else has it"))
    }

    fn write_length(&self, primary: &Arc<Primary>, service: &OwnStream) -> Result<()> {
        let Some(at) = self.layout.length_at() else { return Ok(()) };
        let length = self.layout.bytes as u64;
        let from = (&raw const length).expose_provenance() as CUdeviceptr;
        copy(primary, from, self.reserved.address + at as u64, LENGTH_BYTES, service)
    }

    fn read_length(&self, primary: &Arc<Primary>, service: &OwnStream) -> Result<Option<u64>> {
        let Some(at) = self.layout.length_at() else { return Ok(None) };
        let mut length = 0_u64;
        let into = (&raw mut length).expose_provenance() as CUdeviceptr;
        copy(primary, self.reserved.address + at as u64, into, LENGTH_BYTES, service)?;
        Ok(Some(length))
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if self.lock().is_some() {
            self.reserved.primary.give_back(|| self.reserved.unmap());
        }
    }
}

/// Allocations of another process behind each other, at addresses of ours.
#[derive(Debug)]
pub(in crate::device::cuda) struct JoinedMemory {
    parts: Vec<(Physical, usize)>,
    filled: usize,
    granule: usize,
    reserved: Reserved,
}

impl JoinedMemory {
    /// Addresses for `bytes`.
    pub(in crate::device::cuda) fn new(primary: &Arc<Primary>, bytes: usize) -> Result<JoinedMemory> {
        let _entered = primary.enter()?;
        let layout = Layout::new(bytes, granule(primary, Handles::Descriptor)?)?;
        if layout.whole != bytes {
            return Err(Error::new(Kind::Remote, format!("a peer's memory of {bytes} bytes is no whole allocations")));
        }
        let reserved = Reserved::new(primary, layout)?;
        Ok(JoinedMemory { parts: Vec::new(), filled: 0, granule: layout.granule, reserved })
    }

    /// Maps an allocation of `bytes` behind those before.
    pub(in crate::device::cuda) fn add(&mut self, descriptor: &OwnedFd, bytes: usize) -> Result<()> {
        let primary = Arc::clone(&self.reserved.primary);
        let _entered = primary.enter()?;
        if bytes == 0 || !bytes.is_multiple_of(self.granule) || bytes > self.reserved.bytes - self.filled {
            let message = format!("an allocation of a peer of {bytes} bytes, behind {} of its memory", self.filled);
            return Err(Error::new(Kind::Remote, message));
        }
        let physical = Physical::import(&primary, descriptor)?;
        let mapped = self.reserved.map_at((self.filled, bytes), &physical, &[primary.device()]);
        mapped.map_err(|failure| foreign(&primary, failure, bytes))?;
        self.parts.push((physical, bytes));
        self.filled += bytes;
        Ok(())
    }

    /// Its bytes, which are all mapped.
    pub(in crate::device::cuda) fn whole(&self) -> Result<usize> {
        let all = self.filled == self.reserved.bytes;
        if all { Ok(self.filled) } else { Err(Error::internal("a peer's memory with a gap at its end")) }
    }
}

impl Drop for JoinedMemory {
    fn drop(&mut self) {
        let mut at = 0;
        for (physical, bytes) in self.parts.drain(..) {
            physical.primary().give_back(|| self.reserved.unmap_at((at, bytes)));
            at += bytes;
        }
    }
}

/// Addresses of ours.
#[derive(Debug)]
struct Reserved {
    primary: Arc<Primary>,
    address: CUdeviceptr,
    bytes: usize,
}

impl Reserved {
    fn new(primary: &Arc<Primary>, layout: Layout) -> Result<Reserved> {
        let mut address = 0;
        let (bytes, granule) = (layout.whole, layout.granule);
        // SAFETY: the place is ours; 0 lets the driver choose the address.
        let made = unsafe { call!(primary, cuMemAddressReserve(&raw mut address, bytes, granule, 0, 0)) };
        made.map_err(|failure| primary.error(failure))?;
        Ok(Reserved { primary: Arc::clone(primary), address, bytes })
    }

    /// Maps memory of as many bytes, for kernels of `visitors`.
    fn map(&self, physical: &Physical, visitors: &[CUdevice]) -> Result<(), Refusal> {
        self.map_at((0, self.bytes), physical, visitors)
    }

    fn unmap(&self) -> Result<(), Refusal> {
        self.unmap_at((0, self.bytes))
    }

    /// The same for `bytes` behind the first `before`.
    ///
    /// # Panics
    /// For more than is reserved.
    fn map_at(
        &self,
        (before, bytes): (usize, usize),
        physical: &Physical,
        visitors: &[CUdevice],
    ) -> Result<(), Refusal> {
        assert!(before <= self.bytes && bytes <= self.bytes - before, "addresses of ours");
        let (primary, address) = (&self.primary, self.address + before as u64);
        // SAFETY: nothing is mapped at these addresses of ours, and the handle is ours.
        unsafe { call!(primary, cuMemMap(address, bytes, 0, physical.handle(), 0)) }?;
        let flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access: Vec<CUmemAccessDesc> =
            visitors.iter().map(|visitor| CUmemAccessDesc { location: location(*visitor), flags }).collect();
        // SAFETY: the addresses were mapped above, and the descriptions are ours, as many as are told.
        let allowed = unsafe { call!(primary, cuMemSetAccess(address, bytes, access.as_ptr(), access.len())) };
        if allowed.is_err() {
            primary.give_back(|| self.unmap_at((before, bytes)));
        }
        allowed
    }

    /// Takes away what was mapped there.
    fn unmap_at(&self, (before, bytes): (usize, usize)) -> Result<(), Refusal> {
        // SAFETY: the addresses are ours and were mapped as a whole; no work of ours uses them any more.
        unsafe { call!(self.primary, cuMemUnmap(self.address + before as u64, bytes)) }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // SAFETY: the addresses are ours, and nothing is mapped there any more.
        self.primary.give_back(|| unsafe { call!(self.primary, cuMemAddressFree(self.address, self.bytes)) });
    }
}

/// Zeroes memory on a stream of ours: on the null stream it would wait for the program's work, and spoil captures.
fn fill_with_zero(primary: &Primary, address: CUdeviceptr, bytes: usize, service: &OwnStream) -> Result<()> {
    // SAFETY: the memory is new and ours, and the stream lives.
    let put = unsafe { call!(primary, cuMemsetD8Async(address, 0, bytes, service.handle().0)) };
    put.map_err(|failure| primary.error(failure))?;
    service.drain()
}

/// Copies, and waits until the copy is done. Both places are ours and have `bytes`.
fn copy(primary: &Primary, from: CUdeviceptr, into: CUdeviceptr, bytes: usize, service: &OwnStream) -> Result<()> {
    // SAFETY: the callers, all in this file, pass memory of their own, which lives until the stream is drained.
    let put = unsafe { call!(primary, cuMemcpyAsync(into, from, bytes, service.handle().0)) };
    let put = put.map_err(|failure| primary.error(failure));
    // Drain after a failure too: work in the stream must not outlive the places.
    put.and(service.drain())
}

#[cold]
pub(in crate::device::cuda) fn refused(primary: &Primary, failure: Refusal, bytes: usize) -> Error {
    let error = primary.error(failure);
    Error::new(error.kind(), format!("{bytes} bytes of GPU memory: {}", error.message()))
}

/// The error of a peer's memory that cannot be mapped.
#[cold]
pub(super) fn foreign(primary: &Primary, failure: Refusal, bytes: usize) -> Error {
    let error = primary.error(failure);
    Error::new(Kind::Remote, format!("{bytes} bytes of a peer's memory cannot be mapped: {}", error.message()))
}

#[cold]
fn nothing_mapped() -> Error {
    Error::new(Kind::System, "GPU memory whose pages could not be replaced before")
}
