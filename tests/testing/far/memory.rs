//! The memory of the software devices of this process: which host memory stands behind which device address.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rsccl::internals::device::{Generation, Home, HostRegion, Keep, Region};
use rsccl::{Error, Result};

/// What stands behind the addresses of devices.
pub(super) struct Memory {
    next: u64,
    blocks: BTreeMap<u64, (HostRegion, Home)>,
}

/// One allocation; dropped with the last of its regions.
#[derive(Debug)]
struct Block {
    address: u64,
    behind: HostRegion,
}

/// The first device address. Processors with 48 to 57 address bits fault on it.
const FIRST: u64 = 0x5ea1_0000_0000_0000;
/// The gap between two allocations, so that an access beyond one does not reach the next.
const GAP: u64 = 1 << 20;

impl Memory {
    fn lock() -> MutexGuard<'static, Memory> {
        static MEMORY: Mutex<Memory> = Mutex::new(Memory { next: FIRST, blocks: BTreeMap::new() });
        MEMORY.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory of `home` with `behind` behind it.
    pub(super) fn map(behind: HostRegion, home: Home) -> Region {
        let mut memory = Memory::lock();
        let (address, bytes) = (memory.next, behind.bytes());
        memory.next += (bytes as u64).next_multiple_of(GAP) + GAP;
        memory.blocks.insert(address, (behind.clone(), home));
        let pointer = std::ptr::without_provenance_mut(usize::try_from(address).expect("64 bits"));
        let block = Arc::new(Block { address, behind });
        // SAFETY: it is memory of the device alone, which the block keeps.
        unsafe { Region::new(NonNull::new(pointer).expect("above 0"), bytes, home, block) }
    }

    /// What stands behind a region of `home`.
    pub(super) fn behind(region: &Region, home: Home) -> Result<Region> {
        let found = Memory::lock().blocks.get(&(region.base().addr().get() as u64)).cloned();
        let found = found.filter(|_| region.home() == home).map(|(behind, _)| behind.as_region().clone());
        found.ok_or_else(|| Error::internal("not to be shared"))
    }

    /// Where `address` lives.
    pub(super) fn home(address: u64) -> Option<Home> {
        Memory::lock().find(address, 1).map(|(_, home)| home)
    }

    /// Allocations that live in `home`.
    pub(super) fn count(home: Home) -> usize {
        Memory::lock().blocks.values().filter(|(_, found)| *found == home).count()
    }

    /// What stands behind `bytes` at `address`, and where they live.
    pub(super) fn follow(address: u64, bytes: usize) -> std::result::Result<(*mut u8, Home), String> {
        let found = Memory::lock().find(address, bytes);
        found.ok_or_else(|| format!("{bytes} bytes at {address:#x} are not allocated"))
    }

    fn find(&self, address: u64, bytes: usize) -> Option<(*mut u8, Home)> {
        let (start, (behind, home)) = self.blocks.range(..=address).next_back()?;
        let offset = usize::try_from(address - start).ok()?;
        let end = offset.checked_add(bytes).filter(|end| *end <= behind.bytes())?;
        Some((behind.at(offset, end - offset).as_ptr(), *home))
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        Memory::lock().blocks.remove(&self.address);
    }
}

impl Keep for Block {
    fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        self.behind.keep().descriptor()
    }
    fn lend(&self, generation: Generation) -> bool {
        self.behind.keep().lend(generation)
    }
    fn take_back(&self, generation: Generation) -> bool {
        self.behind.keep().take_back(generation)
    }
    fn detach(&self) -> Result<()> {
        self.behind.keep().detach()
    }
    fn is_detached(&self) -> bool {
        self.behind.keep().is_detached()
    }
    fn share_anew(&self) -> Result<Generation> {
        self.behind.keep().share_anew()
    }
    fn prefer_huge_pages(&self) {}
}
