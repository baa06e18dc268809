//! Memory that several ranks map: anonymous for threads of one process, memfd for processes of one host.
//!
//! A memfd is sealed against shrinking before its descriptor leaves the process, and one that comes in must be sealed
//! and as large as it was said to be: a peer cannot make a mapping fault by cutting the file.
//!
//! Who has mapped a memfd can write it until it unmaps it. An owner that needs its memory for itself again, while a
//! peer may still write, [takes it out of the peers' reach](Keep::detach): its address stays, with its content; behind
//! it are other pages.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU8;

use crate::error::{Error, Kind, Result};
use crate::sync::primitive::{Arc, AtomicUsize, Mutex, MutexGuard, Ordering};
use crate::sys::fork::Birthplace;
use crate::sys::lending::Lending;
use crate::sys::region::{HostRegion, Keep};
use crate::sys::room::{self, PromisedFile};
use crate::sys::{limits, open, writing};

pub use crate::sys::lending::Generation;

/// A mapping that lives as long as its owner; zeroed when new, page-aligned.
#[derive(Debug)]
pub struct SharedMemory {
    base: NonNull<u8>,
    bytes: usize,
    /// Locked while it changes.
    backing: Mutex<Backing>,
    lending: Lending,
    /// The first part, in which this process or a peer has ever worked; the rest was never touched.
    used: AtomicUsize,
    /// The process that has it, where forked children have none of it: in a child another mapping may lie there.
    unforked: Option<Birthplace>,
}

/// Where the pages come from.
#[derive(Debug)]
enum Backing {
    /// A file of this process that peers map. The promise is of a program's buffer in this process, and ends before
    /// the file.
    Shared { _promise: Option<PromisedFile>, file: Arc<OwnedFd> },
    /// A peer's file, which is mapped and needs no descriptor any more: only its owner hands it on.
    OfPeer,
    /// A file that peers map, and copies of this process's own of some of its pages.
    Parting,
    /// This process has all pages for itself.
    Private,
}

impl Backing {
    /// A file that this process has made for a program's buffer.
    fn promised(file: OwnedFd, bytes: usize) -> Backing {
        Backing::Shared { _promise: Some(PromisedFile::new(&file, bytes)), file: Arc::new(file) }
    }
}

// SAFETY: the mapping is plain memory with no thread affinity; what is in it is reached through raw pointers and
// atomics by callers that keep their own order.
unsafe impl Send for SharedMemory {}
// SAFETY: as above; `SharedMemory` itself is immutable after construction.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Memory of this process only, for threads.
    ///
    /// # Errors
    /// [`Kind::System`] where the system has no such memory.
    pub fn anonymous(bytes: usize) -> Result<SharedMemory> {
        let base = map(bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?;
        Ok(SharedMemory::new(base, bytes, Backing::Private))
    }

    /// Memory of this process only, for a device that reads and writes it by itself: a forked child has none of it.
    ///
    /// Such a device goes on with the pages that it was given, whatever becomes of the process. A fork would have the
    /// process copy each page at its next store, and leave the old one to the device.
    ///
    /// # Errors
    /// [`Kind::System`] where the system has no such memory.
    pub fn for_device(bytes: usize) -> Result<SharedMemory> {
        let base = map(bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?;
        let mut memory = SharedMemory::new(base, bytes, Backing::Private);
        memory.unforked = Some(Birthplace::here());
        // SAFETY: the range is our own mapping; the advice changes no content.
        if unsafe { libc::madvise(base.as_ptr().cast(), bytes, libc::MADV_DONTFORK) } != 0 {
            return Err(Error::last_os(format!("madvise of {bytes} bytes for a device")));
        }
        Ok(memory)
    }

    /// Memory behind a descriptor that can be handed to other processes. Pages are taken when first touched.
    ///
    /// # Errors
    /// [`Kind::System`] where the system refuses.
    pub fn memfd(bytes: usize) -> Result<SharedMemory> {
        let file = sealed_file(ARENA_NAME, bytes)?;
        let base = map(bytes, libc::MAP_SHARED, file.as_raw_fd())?;
        let file = Arc::new(file);
        Ok(SharedMemory::new(base, bytes, Backing::Shared { _promise: None, file }))
    }

    /// [`SharedMemory::memfd`] of a program's buffer, which will be touched as a whole.
    ///
    /// # Errors
    /// [`Kind::System`] where the system refuses, or has no room for the pages.
    pub fn for_program(bytes: usize) -> Result<SharedMemory> {
        room::check(bytes)?;
        let file = sealed_file(BUFFER_NAME, bytes)?;
        let base = map(bytes, libc::MAP_SHARED, file.as_raw_fd())?;
        Ok(SharedMemory::new(base, bytes, Backing::promised(file, bytes)))
    }

    /// Memory for a program's pool: what of it is in use, [`Keep::grow_use`] says. No page is promised.
    ///
    /// # Errors
    /// [`Kind::System`] where the system refuses.
    pub fn for_pool(bytes: usize) -> Result<SharedMemory> {
        let file = sealed_file(BUFFER_NAME, bytes)?;
        let base = map(bytes, libc::MAP_SHARED | libc::MAP_NORESERVE, file.as_raw_fd())?;
        let backing = Backing::Shared { _promise: None, file: Arc::new(file) };
        let memory = SharedMemory::new(base, bytes, backing);
        memory.used.store(0, Ordering::Relaxed);
        Ok(memory)
    }

    /// Maps a descriptor that a peer sent, which must be a sealed memfd of exactly `bytes`.
    ///
    /// # Errors
    /// [`Kind::Remote`] where it is anything else.
    pub fn from_peer(file: OwnedFd, bytes: usize) -> Result<SharedMemory> {
        if !is_sealed(&file) {
            return Err(Error::new(Kind::Remote, "a peer sent a descriptor that is not a sealed memfd"));
        }
        let actual = std::fs::File::from(file);
        let metadata = actual.metadata().map_err(|error| Error::system("fstat of a peer's memfd", error))?;
        if metadata.len() != bytes as u64 {
            let message = format!("a peer sent a memfd of {} bytes where {bytes} were announced", metadata.len());
            return Err(Error::new(Kind::Remote, message));
        }
        let base = map(bytes, libc::MAP_SHARED, actual.as_raw_fd())?;
        Ok(SharedMemory::new(base, bytes, Backing::OfPeer))
    }

    fn new(base: NonNull<u8>, bytes: usize, backing: Backing) -> SharedMemory {
        SharedMemory {
            base,
            bytes,
            backing: Mutex::new(backing),
            lending: Lending::new(),
            used: AtomicUsize::new(bytes),
            unforked: None,
        }
    }

    /// How much of it is in use, in whole pages.
    fn used(&self) -> usize {
        // Relaxed: who uses memory has grown the use before, and what it does there reaches this thread by other ways.
        self.used.load(Ordering::Relaxed).next_multiple_of(LEAST_PAGE_BYTES).min(self.bytes)
    }

    /// The memory as a region, which owns it from now on.
    pub fn into_region(self) -> HostRegion {
        let (base, bytes) = (self.base, self.bytes);
        // SAFETY: the mapping is good for reading and writing, and ends when this value is dropped, which is the
        // region's keep.
        unsafe { HostRegion::new(base, bytes, Arc::new(self)) }
    }

    /// Where it starts.
    #[cfg(all(test, not(loom)))]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// How long it is.
    #[cfg(all(test, not(loom)))]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Moves the mapping `fresh`, of as many bytes, over this one: a thread that touches the memory meanwhile waits for
    /// the kernel.
    fn replace(&self, fresh: NonNull<u8>) -> Result<()> {
        let (flags, base) = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, self.base.as_ptr());
        // SAFETY: both ranges are whole mappings of ours of `bytes`; whoever has pointers into the old one finds the
        // same content.
        let moved = unsafe { libc::mremap(fresh.as_ptr().cast(), self.bytes, self.bytes, flags, base) };
        if moved == libc::MAP_FAILED {
            let error = Error::last_os(format!("mremap of {} bytes", self.bytes));
            // SAFETY: the mapping was not moved, and nobody else knows it.
            unsafe { libc::munmap(fresh.as_ptr().cast(), self.bytes) };
            return Err(error);
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Backing> {
        self.backing.lock()
    }

    /// A pointer `offset` bytes in, good for `bytes`.
    ///
    /// # Panics
    /// Where the range is not inside; offsets come from our own layout, never from a peer unchecked.
    pub fn at(&self, offset: usize, bytes: usize) -> NonNull<u8> {
        let end = offset.checked_add(bytes).expect("a layout's offsets are small");
        assert!(end <= self.bytes, "range {offset}..{end} outside shared memory of {} bytes", self.bytes);
        // SAFETY: `offset` is inside the mapping by the assertion, so the result is in the same allocation.
        unsafe { self.base.add(offset) }
    }
}

impl Keep for SharedMemory {
    /// The descriptor, where the memory has one.
    fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        match &*self.lock() {
            Backing::Shared { file, .. } => Some(Arc::clone(file)),
            Backing::OfPeer | Backing::Parting | Backing::Private => None,
        }
    }

    /// An operation lets peers work in the memory, of which they have mapped `generation`. False where that is no more
    /// what is behind it: they must not.
    fn lend(&self, generation: Generation) -> bool {
        self.lending.lend(generation)
    }

    /// The operation is over. False where the memory went out of the peers' reach meanwhile: what they wrote may be
    /// missing.
    fn take_back(&self, generation: Generation) -> bool {
        self.lending.take_back(generation)
    }

    /// Takes the memory out of the reach of whoever has mapped it: they keep the pages as they are now, and the owner
    /// goes on with a copy at the same address. No thread of this process notices: it may read and write the memory all
    /// the time, and no store is lost. The memory is an owner's that [`SharedMemory::memfd`] made; the second call does
    /// nothing.
    ///
    /// # Errors
    /// [`Kind::System`] where the system has no memory for the copy. Peers may still reach some of the pages then; a
    /// later call may succeed. Limits are not looked up before: a wrong refusal would keep the owner, whose call has
    /// failed already, waiting for a peer that stands still.
    fn detach(&self) -> Result<()> {
        let mut backing = self.lock();
        if let Backing::Shared { file, .. } = &*backing {
            self.lending.part();
            // Pages of a private mapping are the file's until the first store to each.
            // Of a pool most will never be copied.
            let fresh = map(self.bytes, libc::MAP_PRIVATE | libc::MAP_NORESERVE, file.as_raw_fd())?;
            self.replace(fresh)?;
            *backing = Backing::Parting;
        }
        if let Backing::Parting = &*backing {
            // What was never in use no peer was ever lent.
            // SAFETY: the range is our own mapping.
            unsafe { own_pages(self.base, self.used()) }?;
            *backing = Backing::Private;
        }
        Ok(())
    }

    /// Whether [`SharedMemory::detach`] was called, and [`SharedMemory::share_anew`] not since.
    fn is_detached(&self) -> bool {
        self.lending.is_parted()
    }

    /// Puts a file behind the memory again that peers can map, where [`SharedMemory::detach`] took it away; what is
    /// behind it now. Nobody writes the memory meanwhile.
    ///
    /// # Errors
    /// [`Kind::System`] where there is no memory.
    fn share_anew(&self) -> Result<Generation> {
        let mut backing = self.lock();
        if self.is_detached() {
            let used = self.used();
            room::check(used)?;
            let shared = sealed_file(BUFFER_NAME, self.bytes)?;
            let fresh = map(self.bytes, libc::MAP_SHARED, shared.as_raw_fd())?;
            // SAFETY: both mappings have at least as many bytes, and one is new; the caller keeps writers away.
            unsafe { std::ptr::copy_nonoverlapping(self.base.as_ptr().cast_const(), fresh.as_ptr(), used) };
            self.replace(fresh)?;
            self.prefer_huge_pages();
            *backing = Backing::promised(shared, used);
            self.lending.renew();
        }
        Ok(self.lending.generation())
    }

    fn shared(&self) -> Option<Generation> {
        self.lending.shared()
    }

    fn grow_use(&self, before: usize, bytes: usize) -> Result<()> {
        room::check(bytes.saturating_sub(before))?;
        // Relaxed: see `used`.
        self.used.fetch_max(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn discard(&self, offset: usize, bytes: usize) {
        if let Backing::Shared { file, .. } = &*self.lock() {
            cut(file, offset, bytes);
        }
    }

    /// Asks for huge pages: fewer faults and TLB misses for large buffers. A refusal costs only speed.
    fn prefer_huge_pages(&self) {
        // SAFETY: the range is our own mapping; advice changes no content.
        let _refused = unsafe { libc::madvise(self.base.as_ptr().cast(), self.bytes, libc::MADV_HUGEPAGE) };
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        if self.unforked.is_some_and(|birthplace| !birthplace.is_here()) {
            return;
        }
        // SAFETY: base and length are those of the mapping made in the constructor; holders of raw pointers into it
        // hold an `Arc` of this owner.
        let result = unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert_eq!(result, 0, "munmap of our own mapping");
    }
}

/// Makes every page of a private mapping this process's own, as a store does; no content changes.
///
/// # Errors
/// [`Kind::System`] where there is no memory.
///
/// # Safety
/// The range is mapped for reading and writing.
pub(super) unsafe fn own_pages(base: NonNull<u8>, bytes: usize) -> Result<()> {
    // SAFETY: the caller's promise; no content changes.
    let refused = unsafe { libc::madvise(base.as_ptr().cast(), bytes, libc::MADV_POPULATE_WRITE) };
    if refused == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    // Kernels before 5.14 do not know the advice.
    if error.raw_os_error() != Some(libc::EINVAL) {
        return Err(Error::system(format!("a copy of {bytes} bytes of shared memory"), error));
    }
    for offset in (0..bytes).step_by(LEAST_PAGE_BYTES) {
        // SAFETY: inside the range.
        let byte = unsafe { base.add(offset) };
        // SAFETY: as above; an atomic store of what is there loses no store of another thread.
        let byte = unsafe { AtomicU8::from_ptr(byte.as_ptr()) };
        byte.fetch_or(0, Ordering::Relaxed);
    }
    Ok(())
}

/// Frees the memory of a part of the file, whoever has it mapped. A refusal costs memory until all have let go of it.
pub(super) fn cut(file: &OwnedFd, offset: usize, bytes: usize) {
    let (Ok(offset), Ok(bytes)) = (libc::off_t::try_from(offset), libc::off_t::try_from(bytes)) else { return };
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: a plain call on a descriptor that we own.
    let _refused = unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, bytes) };
}

/// Whether a descriptor is a memfd that cannot shrink.
pub(super) fn is_sealed(file: &OwnedFd) -> bool {
    // SAFETY: a plain call on a descriptor that we own.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & libc::F_SEAL_SHRINK != 0
}

/// A memfd of this name and `bytes`, sealed.
pub(super) fn sealed_file(name: &CStr, bytes: usize) -> Result<OwnedFd> {
    let file = unsealed_file(name, bytes)?;
    seal(&file, SEALS)?;
    Ok(file)
}

/// Memory behind a descriptor of this name, which others may read, and which nobody can write or map for writing but
/// this process, by the mapping that is returned.
///
/// # Errors
/// [`Kind::System`] where the system refuses; kernels before 5.1 know no such seal.
#[cfg(not(all(loom, test)))]
pub(super) fn written_by_me(name: &CStr, bytes: usize) -> Result<(SharedMemory, OwnedFd)> {
    let file = unsealed_file(name, bytes)?;
    let base = map(bytes, libc::MAP_SHARED, file.as_raw_fd())?;
    // From here on the mapping has an owner.
    let memory = SharedMemory::new(base, bytes, Backing::Private);
    seal(&file, SEALS | libc::F_SEAL_FUTURE_WRITE)?;
    Ok((memory, file))
}

fn seal(file: &OwnedFd, seals: libc::c_int) -> Result<()> {
    // SAFETY: a plain call on a descriptor that we own.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
        return Err(Error::last_os("sealing a memfd"));
    }
    Ok(())
}

/// A memfd of `bytes` that can be sealed.
fn unsealed_file(name: &CStr, bytes: usize) -> Result<OwnedFd> {
    // SAFETY: the name ends with a NUL; the call has no other precondition.
    let raw = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    // SAFETY: it is what the call has just returned.
    let file = unsafe { open::own(raw) }.map_err(no_memfd)?;
    let length = libc::off_t::try_from(bytes)
        .map_err(|_| Error::invalid_argument(format!("shared memory of {bytes} bytes is too large")))?;
    let lengthened = writing::without_signal(|| {
        // SAFETY: a plain call on a descriptor that we own.
        let status = unsafe { libc::ftruncate(file.as_raw_fd(), length) };
        if status == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    });
    let named = |error| limits::with_remedy(Error::system(format!("shared memory of {bytes} bytes"), error));
    lengthened.map_err(named)?;
    Ok(file)
}

/// The error of memfd_create, with the remedy where the system refuses the call itself.
fn no_memfd(error: std::io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => {
            Error::system("memfd_create (refused by the system, perhaps by seccomp; set NCCL_SHM_DISABLE=1)", error)
        }
        _ => Error::system("memfd_create", error),
    }
}

pub(super) fn map(bytes: usize, flags: libc::c_int, raw: libc::c_int) -> Result<NonNull<u8>> {
    if bytes == 0 {
        return Err(Error::invalid_argument("a mapping of 0 bytes"));
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, raw, 0) };
    if base == libc::MAP_FAILED {
        return Err(limits::with_remedy(Error::last_os(format!("mmap of {bytes} bytes"))));
    }
    Ok(NonNull::new(base.cast()).expect("mmap never yields null without MAP_FIXED"))
}

/// How memory is called in `/proc/PID/maps`, where `rsccl status` counts it: what ranks of a host share, and buffers of
/// the program.
const ARENA_NAME: &CStr = c"rsccl-arena";
const BUFFER_NAME: &CStr = c"rsccl-buffer";
/// No machine has smaller pages.
const LEAST_PAGE_BYTES: usize = 4096;
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::sync::primitive::AtomicU64;
    use crate::sys::fork;

    #[test]
    fn memory_for_a_device_is_not_in_a_forked_child_and_its_drop_there_unmaps_nothing() {
        let memory = SharedMemory::for_device(3 * 4096 + 1).unwrap();
        // SAFETY: the first byte of our own mapping.
        unsafe { memory.base().as_ptr().write(7) };
        let mut memory = Some(memory);
        let is_fine = fork::in_child(|| {
            let place = memory.as_ref().unwrap().base();
            let (flags, access) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_READ | libc::PROT_WRITE);
            // SAFETY: nothing is mapped there, or the flag has the call fail.
            let other =
                unsafe { libc::mmap(place.as_ptr().cast(), 4096, access, flags | libc::MAP_FIXED_NOREPLACE, -1, 0) };
            drop(memory.take());
            // SAFETY: the child's own mapping, which the drop has left alone, or there is none.
            other.cast() == place.as_ptr() && unsafe { place.as_ptr().read() } == 0
        });
        assert!(is_fine);
        // SAFETY: as above.
        assert_eq!(unsafe { memory.unwrap().base().as_ptr().read() }, 7);
    }

    #[test]
    fn a_refused_memfd_names_the_way_round() {
        let told = |code| no_memfd(std::io::Error::from_raw_os_error(code)).to_string();
        assert!(told(libc::EPERM).contains("NCCL_SHM_DISABLE=1") && told(libc::ENOSYS).contains("NCCL_SHM_DISABLE=1"));
        assert!(!told(libc::EMFILE).contains("NCCL_SHM_DISABLE"));
    }

    #[test]
    fn a_peer_sees_the_same_bytes() {
        let mine = SharedMemory::memfd(8192).unwrap();
        let file = mine.descriptor().unwrap().try_clone().unwrap();
        let theirs = SharedMemory::from_peer(file, 8192).unwrap();
        // SAFETY: inside the mapping, one thread.
        unsafe { mine.at(5000, 1).as_ptr().write(7) };
        // SAFETY: as above.
        assert_eq!(unsafe { theirs.at(5000, 1).as_ptr().read() }, 7);
    }

    fn mapped_twice(bytes: usize) -> (SharedMemory, SharedMemory) {
        let mine = SharedMemory::memfd(bytes).unwrap();
        let theirs = SharedMemory::from_peer(mine.descriptor().unwrap().try_clone().unwrap(), bytes).unwrap();
        (mine, theirs)
    }

    fn fill(memory: &SharedMemory, byte: u8) {
        // SAFETY: inside the mapping, one thread.
        unsafe { memory.base().as_ptr().write_bytes(byte, memory.len()) };
    }

    fn holds(memory: &SharedMemory, byte: u8) -> bool {
        // SAFETY: inside the mapping; no other thread.
        let bytes = unsafe { std::slice::from_raw_parts(memory.base().as_ptr().cast_const(), memory.len()) };
        bytes.iter().all(|found| *found == byte)
    }

    #[test]
    fn what_was_detached_keeps_its_content_and_a_peer_cannot_write_it() {
        let (mine, theirs) = mapped_twice(3 * 4096 + 100);
        fill(&theirs, 5);
        let generation = mine.share_anew().unwrap();
        assert!(mine.lend(generation));
        mine.detach().unwrap();
        mine.detach().unwrap();
        fill(&theirs, 9);
        assert!(holds(&mine, 5) && holds(&theirs, 9) && mine.descriptor().is_none());
        assert!(!mine.take_back(generation) && !mine.lend(generation) && mine.is_detached());
        fill(&mine, 6);
        assert!(holds(&theirs, 9));
    }

    #[test]
    fn what_was_detached_can_be_shared_anew() {
        let (mine, old) = mapped_twice(2 * 4096);
        let before = mine.share_anew().unwrap();
        fill(&mine, 3);
        mine.detach().unwrap();
        let after = mine.share_anew().unwrap();
        assert!(!mine.lend(before) && mine.lend(after) && mine.take_back(after));
        let fresh = SharedMemory::from_peer(mine.descriptor().unwrap().try_clone().unwrap(), 2 * 4096).unwrap();
        fill(&old, 8);
        assert!(holds(&mine, 3) && holds(&fresh, 3));
        fill(&fresh, 4);
        assert!(holds(&mine, 4));
    }

    /// Other threads may be in other parts of the memory while it is detached.
    #[test]
    fn no_store_of_another_thread_is_lost_while_memory_is_detached() {
        const PAGES: usize = 64;
        for _ in 0..20 {
            let (mine, _theirs) = mapped_twice(PAGES * 4096);
            let mine = std::sync::Arc::new(mine);
            let (written, began) = (std::sync::Arc::clone(&mine), std::sync::Arc::new(std::sync::Barrier::new(2)));
            let begin = std::sync::Arc::clone(&began);
            let writer = crate::sys::thread::spawn("writer", move || {
                begin.wait();
                let mut turn = 0u64;
                while !written.is_detached() || turn < 2000 {
                    turn += 1;
                    for page in 0..PAGES {
                        let word = written.at(page * 4096 + 8, 8).cast::<AtomicU64>();
                        // SAFETY: inside the mapping, aligned; touched as an atomic only.
                        let word = unsafe { word.as_ref() };
                        assert_eq!(word.load(Ordering::Relaxed), turn - 1, "page {page}");
                        word.store(turn, Ordering::Relaxed);
                    }
                }
            });
            began.wait();
            mine.detach().unwrap();
            writer.unwrap().join().unwrap();
        }
    }

    /// What was taken away from peers leaves no mappings behind once it is dropped, and an allocator's blocks nearby
    /// grow as before.
    #[test]
    fn memory_that_was_taken_away_leaves_no_mapping() {
        assert!(room::alone(|| {
            let lines = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
            let life = |count: usize| {
                let all: Vec<_> =
                    (0..count).map(|number| SharedMemory::memfd((1 + number % 3) * 4096).unwrap()).collect();
                all.iter().for_each(|memory| memory.detach().unwrap());
                all.iter().step_by(2).for_each(|memory| _ = memory.share_anew().unwrap());
                lines()
            };
            // What the test itself needs of the allocator is there from the second time on.
            let _warm = (life(33), lines());
            let (before, most, after) = (lines(), life(33), lines());
            println!("{before} {most} {after}");
            most > before && after == before
        }));
    }

    /// A pool of much more than this process can have: what was never in use takes no memory when it is taken away.
    #[test]
    fn of_a_pool_only_what_is_in_use_is_copied_when_it_is_taken_away() {
        let pool = SharedMemory::for_pool(1 << 42).unwrap();
        pool.grow_use(0, 5000).unwrap();
        // SAFETY: inside the mapping, one thread.
        unsafe { pool.at(0, 5000).as_ptr().write_bytes(7, 5000) };
        let file = pool.descriptor().unwrap();
        let old = map(8192, libc::MAP_SHARED, file.as_raw_fd()).unwrap();
        pool.detach().unwrap();
        // SAFETY: inside the mapping, one thread.
        unsafe { old.as_ptr().write_bytes(9, 5000) };
        // SAFETY: as above.
        assert_eq!(unsafe { pool.at(4999, 1).as_ptr().read() }, 7, "out of the peer's reach");
        pool.share_anew().unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { pool.at(4999, 1).as_ptr().read() }, 7);
        // SAFETY: the mapping is this test's.
        assert_eq!(unsafe { libc::munmap(old.as_ptr().cast(), 8192) }, 0);
    }

    #[test]
    fn wrong_size_and_unsealed_files_are_refused() {
        let mine = SharedMemory::memfd(4096).unwrap();
        let file = mine.descriptor().unwrap().try_clone().unwrap();
        assert_eq!(SharedMemory::from_peer(file, 8192).unwrap_err().kind(), Kind::Remote);
        let plain = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(SharedMemory::from_peer(plain.into(), 4096).unwrap_err().kind(), Kind::Remote);
    }

    #[test]
    #[should_panic(expected = "outside shared memory")]
    fn ranges_are_checked() {
        SharedMemory::anonymous(4096).unwrap().at(4090, 7);
    }
}
