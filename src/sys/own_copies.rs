//! Memory that a forked child gets a copy of, although it is shared with other processes.
//!
//! A fork leaves shared mappings shared: the child would see what its parent stores later, and the parent what the
//! child stores. The memory of a program's own allocations must not become such memory because the library has
//! registered it. So before a fork each range on the list is copied to private pages, and in the child these take its
//! place, before the child runs anything else. Where the kernel refuses the copy, the child maps the file
//! privately: its own stores are its own, but until it stores to a page it sees what its parent stores there.
//!
//! A child of `vfork`, `posix_spawn` or a bare `clone` shares the memory until it runs another program.

use std::cell::UnsafeCell;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::sync::primitive::statics;

/// A range on the list, which leaves it when this is dropped. The file behind it must stay open as long.
#[derive(Debug)]
pub(super) struct CopiedRange(u64);

/// What is behind the range now: whoever holds this keeps forks away.
#[derive(Debug)]
pub(super) struct Extent {
    /// Where it begins.
    pub(super) start: usize,
    /// How long it is; 0 if the list has nothing of it.
    pub(super) bytes: usize,
    /// Where it begins in the file.
    pub(super) offset: usize,
}

#[derive(Debug)]
struct Listed {
    number: u64,
    extent: Extent,
    file: RawFd,
    /// The copy for the child, while a fork lasts; 0 if there is none.
    copy: usize,
}

/// The list, and how many ranges it has had.
#[derive(Debug)]
struct List {
    ranges: Vec<Listed>,
    numbers: u64,
}

static LIST: statics::Mutex<List> = statics::Mutex::new(List { ranges: Vec::new(), numbers: 0 });

impl CopiedRange {
    /// A range of `file`, nothing of which is listed yet.
    pub(super) fn new(file: &OwnedFd) -> CopiedRange {
        let mut list = LIST.lock();
        list.numbers += 1;
        let number = list.numbers;
        let extent = Extent { start: 0, bytes: 0, offset: 0 };
        list.ranges.push(Listed { number, extent, file: file.as_raw_fd(), copy: 0 });
        CopiedRange(number)
    }

    /// Changes what is mapped there, and tells the list of it: no fork comes in between. `change` opens and waits for
    /// nothing.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Extent) -> T) -> T {
        let mut list = LIST.lock();
        let found = list.ranges.iter_mut().find(|listed| listed.number == self.0);
        // A forked child has an empty list: there the range is its own memory.
        let mut gone = Extent { start: 0, bytes: 0, offset: 0 };
        change(found.map_or(&mut gone, |listed| &mut listed.extent))
    }
}

impl Drop for CopiedRange {
    fn drop(&mut self) {
        LIST.lock().ranges.retain(|listed| listed.number != self.0);
    }
}

/// The lock that the thread has which forks.
struct HeldByFork(UnsafeCell<Option<statics::MutexGuard<'static, List>>>);

// SAFETY: only the thread touches it that has `LIST`.
unsafe impl Sync for HeldByFork {}

static HELD: HeldByFork = HeldByFork(UnsafeCell::new(None));

/// Before a fork: makes the copies.
pub(super) fn copy() {
    let mut list = LIST.lock();
    for listed in list.ranges.iter_mut().filter(|listed| listed.extent.bytes > 0) {
        let (start, bytes) = (listed.extent.start, listed.extent.bytes);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let copy = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if copy == libc::MAP_FAILED {
            continue;
        }
        let from = std::ptr::with_exposed_provenance::<u8>(start);
        // SAFETY: the list has ranges that are mapped, and the copy is new and as long. Threads that store meanwhile
        // make the copy old or new there, as a fork does.
        unsafe { std::ptr::copy_nonoverlapping(from, copy.cast(), bytes) };
        listed.copy = copy.expose_provenance();
    }
    // SAFETY: this thread has just got the lock.
    unsafe { *HELD.0.get() = Some(list) };
}

/// After a fork, in the parent: gives the copies back.
pub(super) fn forget_copies() {
    // SAFETY: this thread has the lock since `copy`.
    let Some(mut list) = (unsafe { (*HELD.0.get()).take() }) else { return };
    for listed in list.ranges.iter_mut().filter(|listed| listed.copy != 0) {
        let copy = std::ptr::with_exposed_provenance_mut(std::mem::take(&mut listed.copy));
        // SAFETY: a mapping of `copy`, which nobody else knows.
        unsafe { libc::munmap(copy, listed.extent.bytes) };
    }
}

/// In a forked child: puts the copies into their places. Makes system calls only.
pub(super) fn take_copies() {
    // SAFETY: this thread is the copy of the one that has the lock since `copy`.
    let Some(mut list) = (unsafe { (*HELD.0.get()).take() }) else { return };
    for listed in list.ranges.iter().filter(|listed| listed.extent.bytes > 0) {
        let Extent { start, bytes, offset } = listed.extent;
        let place = std::ptr::with_exposed_provenance_mut::<libc::c_void>(start);
        if listed.copy != 0 {
            let copy = std::ptr::with_exposed_provenance_mut::<libc::c_void>(listed.copy);
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            // SAFETY: both are mappings of `bytes`, and have the same content.
            if unsafe { libc::mremap(copy, bytes, bytes, flags, place) } != libc::MAP_FAILED {
                continue;
            }
        }
        let Ok(offset) = libc::off_t::try_from(offset) else { continue };
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_FIXED);
        // SAFETY: the range is this mapping's already, of the same part of the file, which is open: only whose stores
        // it shows changes. If this fails, the child shares the memory.
        let _shared = unsafe { libc::mmap(place, bytes, protection, flags, listed.file, offset) };
    }
    // Frees nothing.
    list.ranges.clear();
}
