//! Translates device addresses to host memory, with the checks of a memory management unit and stricter ones: exact bounds,
//! freed memory.

use super::FaultKind;
use super::memory::{Extent, GlobalMemory, Home, MemoryFault};
use crate::alu::Lane;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Why an access is refused.
#[derive(Debug)]
pub(super) struct Trouble {
    pub(super) kind: FaultKind,
    pub(super) address: Option<u64>,
    pub(super) what: String,
}

impl Trouble {
    pub(super) fn new(kind: FaultKind, address: Option<u64>, what: impl Into<String>) -> Box<Self> {
        Box::new(Self { kind, address, what: what.into() })
    }
}

/// What goes wrong in an access; boxed, since it is rare.
pub(super) type Checked<T> = Result<T, Box<Trouble>>;

/// The extents used last.
#[derive(Debug, Default)]
pub(super) struct Translation {
    cached: Vec<Extent>,
    generation: u64,
    next: usize,
}

/// Extents that a block remembers: more than the operands of any one kernel here.
const CACHED: usize = 16;

impl Translation {
    /// The extent that holds `bytes` at `address`.
    #[inline]
    pub(super) fn find(
        &mut self,
        memory: &dyn GlobalMemory,
        gpu: u32,
        address: u64,
        bytes: u64,
        store: bool,
    ) -> Checked<&Extent> {
        let known = self.cached.first().is_some_and(|first| {
            address >= first.start && address.saturating_add(bytes) <= first.end && (first.writable || !store)
        });
        if !known {
            self.find_slowly(memory, gpu, address, bytes, store)?;
        }
        Ok(&self.cached[0])
    }

    /// The extent that holds `bytes` at `address`, if it was used of late.
    pub(super) fn known(&self, address: u64, bytes: u32) -> Option<&Extent> {
        let end = address.saturating_add(u64::from(bytes));
        self.cached.iter().find(|extent| address >= extent.start && end <= extent.end)
    }

    /// Whether the machine's memory is as it was at the last [`refresh`](Self::refresh).
    pub(super) fn is_fresh(&self, memory: &dyn GlobalMemory) -> bool {
        memory.generation() == self.generation
    }

    /// Forgets everything if the machine's memory was rearranged.
    pub(super) fn refresh(&mut self, memory: &dyn GlobalMemory) {
        let generation = memory.generation();
        if generation != self.generation {
            self.generation = generation;
            self.cached.clear();
        }
    }

    fn find_slowly(
        &mut self,
        memory: &dyn GlobalMemory,
        gpu: u32,
        address: u64,
        bytes: u64,
        store: bool,
    ) -> Checked<()> {
        let end = address.saturating_add(bytes);
        let known = self.cached.iter().position(|extent| address >= extent.start && end <= extent.end);
        if let Some(index) = known {
            self.cached.swap(0, index);
        } else {
            let extent = memory.extent(gpu, address).map_err(|fault| refusal(fault, address, bytes, store))?;
            if end > extent.end {
                let over = MemoryFault::RedZone { start: extent.start, bytes: extent.end - extent.start };
                return Err(refusal(over, address, bytes, store));
            }
            if self.cached.len() < CACHED {
                self.cached.insert(0, extent);
            } else {
                self.next = (self.next + 1) % CACHED;
                self.cached[self.next] = extent;
                self.cached.swap(0, self.next);
            }
        }
        if store && !self.cached[0].writable {
            return Err(refusal(MemoryFault::ReadOnly, address, bytes, store));
        }
        Ok(())
    }
}

fn refusal(fault: MemoryFault, address: u64, bytes: u64, store: bool) -> Box<Trouble> {
    let verb = if store { "a store of" } else { "a load of" };
    let access = format!("{verb} {bytes} bytes");
    let what = match fault {
        MemoryFault::Unmapped => format!("{access} where no memory is mapped"),
        MemoryFault::Freed { start, bytes } => {
            format!(
                "{access} in freed memory: {} bytes into an allocation of {bytes} bytes at {start:#x}",
                address - start
            )
        }
        MemoryFault::NoAccess { home: Home::Peer(gpu) } => {
            format!("{access} in the memory of GPU {gpu}, to which this GPU has no access")
        }
        MemoryFault::NoAccess { home: Home::Host } => {
            format!("{access} in host memory that is not mapped for this GPU")
        }
        MemoryFault::NoAccess { home: Home::ThisGpu } => format!("{access} in memory to which access was not set"),
        MemoryFault::RedZone { start, bytes } => {
            format!("{access} out of bounds: the allocation at {start:#x} has {bytes} bytes")
        }
        MemoryFault::ReadOnly => format!("{access} in memory that is mapped for reading only"),
    };
    Trouble::new(FaultKind::IllegalAddress, Some(address), what)
}

/// An access must be aligned to its size.
#[inline]
pub(super) fn check_alignment(address: u64, bytes: u64) -> Checked<()> {
    if address & (bytes - 1) == 0 {
        return Ok(());
    }
    let what = format!("an access of {bytes} bytes must be aligned to {bytes} bytes");
    Err(Trouble::new(FaultKind::MisalignedAddress, Some(address), what))
}

/// Host memory of a mapped access: 1, 2, 4 or 8 bytes, aligned.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cell {
    at: *mut u8,
    bytes: u32,
}

macro_rules! with_atomic {
    ($cell:expr, |$atomic:ident: $kind:ident| $body:expr) => {
        match $cell.bytes {
            1 => {
                type $kind = u8;
                // SAFETY: `Cell::new`'s caller promised mapped memory that all use atomically; a byte is aligned.
                let $atomic = unsafe { AtomicU8::from_ptr($cell.at) };
                $body
            }
            2 => {
                type $kind = u16;
                // SAFETY: as above, and the caller checked the alignment.
                let $atomic = unsafe { AtomicU16::from_ptr($cell.at.cast()) };
                $body
            }
            4 => {
                type $kind = u32;
                // SAFETY: as above, and the caller checked the alignment.
                let $atomic = unsafe { AtomicU32::from_ptr($cell.at.cast()) };
                $body
            }
            _ => {
                type $kind = u64;
                // SAFETY: as above, and the caller checked the alignment.
                let $atomic = unsafe { AtomicU64::from_ptr($cell.at.cast()) };
                $body
            }
        }
    };
}

impl Cell {
    /// The memory of an access inside `extent`.
    #[inline]
    pub(super) fn new(extent: &Extent, address: u64, bytes: u32) -> Self {
        let offset = usize::try_from(address - extent.start).expect("a host has as many addresses");
        Self { at: extent.data.wrapping_add(offset), bytes }
    }

    #[inline]
    pub(super) fn load(self) -> u64 {
        // Acquire costs nothing on the hosts that run this, and pairs with `store`.
        with_atomic!(self, |atomic: Kind| {
            let value: Kind = atomic.load(Ordering::Acquire);
            value.put()
        })
    }

    #[inline]
    pub(super) fn store(self, value: u64) {
        with_atomic!(self, |atomic: Kind| atomic.store(Kind::get(value), Ordering::Release));
    }

    /// Replaces the value by what `update` makes of it; returns the old one.
    pub(super) fn update(self, update: impl Fn(u64) -> u64) -> u64 {
        with_atomic!(self, |atomic: Kind| {
            let new = |old: Kind| Some(Kind::get(update(old.put())));
            match atomic.fetch_update(Ordering::AcqRel, Ordering::Acquire, new) {
                Ok(old) | Err(old) => old.put(),
            }
        })
    }
}
