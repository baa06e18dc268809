//! A piece of memory with the device that it lives on, and with what keeps it alive.
//!
//! A [`Region`] may lie on any device: its addresses are numbers that only an executor or a queue of that device may
//! follow. A [`HostRegion`] is a region that the processor can read and write; only that type gives out pointers. So
//! code that touches memory says in its signature that the memory is the host's.

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use crate::error::Result;
use crate::sync::primitive::Arc;
use crate::sys::memory::Generation;

/// The number of a device that has memory of its own, on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(pub u32);

/// Where memory lives, and so who can follow its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Home {
    /// The host's memory: every processor of the host can.
    Host,
    /// A device's memory: that device can. The host cannot.
    Device(DeviceId),
}

impl fmt::Display for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Home::Host => f.write_str("host memory"),
            Home::Device(DeviceId(number)) => write!(f, "the memory of device {number}"),
        }
    }
}

/// An allocation of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Adopted {
    /// An address in it.
    pub address: u64,
    /// What names it, among all allocations that the device has ever had.
    pub number: u64,
}

/// By which a device of another host imports memory. What the bytes mean only the driver knows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FabricHandle(pub [u8; FabricHandle::BYTES]);

impl FabricHandle {
    /// Its length.
    pub const BYTES: usize = 64;
}

/// Without the bytes, which let whoever has them map the memory.
impl fmt::Debug for FabricHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FabricHandle")
    }
}

/// What keeps the memory of a [`Region`]: dropping the last handle gives the memory back. It also lets the owner share
/// its memory with other processes, and take it back from them.
pub trait Keep: fmt::Debug + Send + Sync {
    /// The descriptor that another process imports the memory from; `None` where the memory cannot leave this process.
    fn descriptor(&self) -> Option<Arc<OwnedFd>>;

    /// The handle that devices of other hosts import the memory by; `None` where it cannot leave this host.
    fn fabric_handle(&self) -> Option<FabricHandle> {
        None
    }

    /// Of memory that the program has allocated itself: the allocations in which it lies, behind each other. The region
    /// does not keep them. Else none.
    fn adopted(&self) -> &[Adopted] {
        &[]
    }

    /// An operation lets peers work in the memory, of which they have mapped `generation`. False where other pages are
    /// behind the region by now: the peers must not work in it.
    fn lend(&self, generation: Generation) -> bool;

    /// The operation is over. False where the memory was detached meanwhile: what peers wrote may be missing.
    fn take_back(&self, generation: Generation) -> bool;

    /// Takes the memory out of the reach of the peers that have mapped it. The owner keeps address and content.
    ///
    /// # Errors
    /// Where the device has no memory for the copy, or cannot do this at all: the owner must wait for its peers then.
    fn detach(&self) -> Result<()>;

    /// Whether [`Keep::detach`] was called, and [`Keep::share_anew`] not since.
    fn is_detached(&self) -> bool;

    /// Makes the memory importable again after [`Keep::detach`], under the generation that this returns.
    ///
    /// # Errors
    /// Where there is no memory.
    fn share_anew(&self) -> Result<Generation>;

    /// What peers can map of a pool's memory as it is; `None` where it is detached, and of memory that is no pool's.
    fn shared(&self) -> Option<Generation> {
        None
    }

    /// Of memory that is put to use from its beginning on, as a pool is: this much was in use, and so much will be.
    ///
    /// # Errors
    /// Where there is no room for the rest.
    fn grow_use(&self, _before: usize, _bytes: usize) -> Result<()> {
        Ok(())
    }

    /// Gives memory back to the system whose content nobody wants, as far as other processes need it no more: whole
    /// pages. It is advice.
    fn discard(&self, _offset: usize, _bytes: usize) {}

    /// Asks for large pages, for fewer faults and TLB misses. It is advice: a refusal costs only speed.
    fn prefer_huge_pages(&self);
}

/// A piece of memory on some device. Clones share the memory.
#[derive(Clone)]
pub struct Region {
    base: NonNull<u8>,
    bytes: usize,
    home: Home,
    keep: Arc<dyn Keep>,
}

// SAFETY: a region is an address with an owner, and `Keep` has no thread affinity; users of the address keep their own
// order.
unsafe impl Send for Region {}
// SAFETY: as above; a region does not change.
unsafe impl Sync for Region {}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:p} in {}", self.bytes, self.base, self.home)
    }
}

impl Region {
    /// The region of `bytes` from `base` on, which `keep` keeps.
    ///
    /// # Safety
    /// Until `keep` is dropped, the range is memory of `home`, and a host region is mapped for reading and writing.
    pub unsafe fn new(base: NonNull<u8>, bytes: usize, home: Home, keep: Arc<dyn Keep>) -> Region {
        Region { base, bytes, home, keep }
    }

    /// The address of its first byte, which only its home may follow.
    #[inline]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Its length in bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where it lives.
    pub fn home(&self) -> Home {
        self.home
    }

    /// What keeps it.
    pub fn keep(&self) -> &Arc<dyn Keep> {
        &self.keep
    }

    /// The address `offset` bytes in, good for `bytes`; only its home may follow it.
    ///
    /// # Panics
    /// Where the range is not inside. Offsets come from our own layouts, or were compared with the length before.
    #[inline]
    pub fn at(&self, offset: usize, bytes: usize) -> NonNull<u8> {
        let end = offset.checked_add(bytes).expect("a layout's offsets are small");
        assert!(end <= self.bytes, "range {offset}..{end} outside a region of {} bytes", self.bytes);
        // SAFETY: `offset` is inside the region by the assertion, so the result is in the same allocation.
        unsafe { self.base.add(offset) }
    }

    /// The first `bytes` of it that begin at a multiple of `page`, in whatever home.
    ///
    /// # Panics
    /// Where there are not so many.
    #[must_use]
    pub fn on_pages(&self, page: usize, bytes: usize) -> Region {
        let start = self.base.addr().get();
        let base = self.at(start.next_multiple_of(page) - start, bytes);
        Region { base, bytes, ..self.clone() }
    }

    /// The same memory, as an owner has it who keeps `more` too.
    #[must_use]
    pub fn kept_with(&self, more: Arc<dyn Any + Send + Sync>) -> Region {
        let keep = Arc::new(KeptWith { keep: Arc::clone(&self.keep), _more: Unprinted(more) });
        Region { keep, ..self.clone() }
    }

    /// The same region, where the processor can touch it.
    pub fn on_host(&self) -> Option<HostRegion> {
        (self.home == Home::Host).then(|| HostRegion(self.clone()))
    }
}

/// See [`Region::kept_with`].
#[derive(Debug)]
struct KeptWith {
    keep: Arc<dyn Keep>,
    _more: Unprinted,
}

/// What a region keeps and says nothing of.
struct Unprinted(#[expect(dead_code, reason = "it is dropped with the region")] Arc<dyn Any + Send + Sync>);

impl fmt::Debug for Unprinted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("more")
    }
}

impl Keep for KeptWith {
    fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        self.keep.descriptor()
    }
    fn fabric_handle(&self) -> Option<FabricHandle> {
        self.keep.fabric_handle()
    }
    fn adopted(&self) -> &[Adopted] {
        self.keep.adopted()
    }
    fn lend(&self, generation: Generation) -> bool {
        self.keep.lend(generation)
    }
    fn take_back(&self, generation: Generation) -> bool {
        self.keep.take_back(generation)
    }
    fn detach(&self) -> Result<()> {
        self.keep.detach()
    }
    fn is_detached(&self) -> bool {
        self.keep.is_detached()
    }
    fn share_anew(&self) -> Result<Generation> {
        self.keep.share_anew()
    }
    fn shared(&self) -> Option<Generation> {
        self.keep.shared()
    }
    fn grow_use(&self, before: usize, bytes: usize) -> Result<()> {
        self.keep.grow_use(before, bytes)
    }
    fn discard(&self, offset: usize, bytes: usize) {
        self.keep.discard(offset, bytes);
    }
    fn prefer_huge_pages(&self) {
        self.keep.prefer_huge_pages();
    }
}

/// A region of host memory: its addresses are pointers of this process.
#[derive(Debug, Clone)]
pub struct HostRegion(Region);

impl HostRegion {
    /// The region of `bytes` of host memory from `base` on, which `keep` keeps.
    ///
    /// # Safety
    /// Until `keep` is dropped, the range is mapped for reading and writing.
    pub unsafe fn new(base: NonNull<u8>, bytes: usize, keep: Arc<dyn Keep>) -> HostRegion {
        HostRegion(Region { base, bytes, home: Home::Host, keep })
    }

    /// The part of `bytes` from `offset` on, which keeps the whole.
    ///
    /// # Panics
    /// As [`Region::at`].
    #[must_use]
    pub fn part(&self, offset: usize, bytes: usize) -> HostRegion {
        HostRegion(Region { base: self.at(offset, bytes), bytes, ..self.0.clone() })
    }

    /// The region itself, where any home will do.
    pub fn as_region(&self) -> &Region {
        &self.0
    }
}

impl Deref for HostRegion {
    type Target = Region;

    #[inline]
    fn deref(&self) -> &Region {
        &self.0
    }
}

/// One argument of an operation: where it begins, how long it is, and where it lives. It owns nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The address, which only `home` may follow; null where there are no bytes. Inputs are only read.
    pub address: *mut u8,
    /// Length in bytes.
    pub bytes: usize,
    /// Where it lives.
    pub home: Home,
}

impl Place {
    /// `bytes` of host memory.
    #[inline]
    pub fn on_host(address: *mut u8, bytes: usize) -> Place {
        Place { address, bytes, home: Home::Host }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::sys::memory::SharedMemory;

    #[test]
    #[should_panic(expected = "outside a region")]
    fn ranges_are_checked() {
        SharedMemory::anonymous(4096).unwrap().into_region().at(4090, 7);
    }

    #[test]
    fn a_region_keeps_what_it_is_given_to_keep() {
        let host = SharedMemory::anonymous(4096).unwrap().into_region();
        let more = Arc::new(5u8);
        let kept = host.kept_with(more.clone());
        assert_eq!((kept.base(), kept.bytes(), Arc::strong_count(&more)), (host.base(), 4096, 2));
        drop(kept);
        assert_eq!(Arc::strong_count(&more), 1);
    }

    #[test]
    fn only_host_memory_gives_pointers_and_a_region_keeps_its_memory() {
        let host = SharedMemory::anonymous(4096).unwrap().into_region().as_region().clone();
        let keep = Arc::clone(host.keep());
        let twin = host.clone();
        // SAFETY: the range is `keep`'s; that it should be another device's makes it no less mapped.
        let device = unsafe { Region::new(host.base(), 4096, Home::Device(DeviceId(3)), keep) };
        drop(host);
        let base = twin.on_host().unwrap().base();
        // SAFETY: inside the mapping, which `twin` keeps.
        assert_eq!(unsafe { base.as_ptr().read() }, 0);
        assert!(device.on_host().is_none());
        assert_eq!(device.home().to_string(), "the memory of device 3");
    }
}
