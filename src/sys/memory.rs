//! Memory that several ranks map: anonymous for threads of one process, memfd for processes of one host.
//!
//! A memfd is sealed against shrinking before its descriptor leaves the process, and one that comes in must be sealed
//! and as large as it was said to be: a peer cannot make a mapping fault by cutting the file.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use crate::error::{Error, Kind, Result};

/// A mapping that lives as long as its owner; zeroed when new, page-aligned.
#[derive(Debug)]
pub struct SharedMemory {
    base: NonNull<u8>,
    bytes: usize,
    file: Option<OwnedFd>,
}

// SAFETY: the mapping is plain memory with no thread affinity; what is in it is reached through raw pointers and atomics by
// callers that keep their own order.
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
        Ok(SharedMemory { base, bytes, file: None })
    }

    /// Memory behind a descriptor that can be handed to other processes. Pages are taken when first touched.
    ///
    /// # Errors
    /// [`Kind::System`] where the system refuses.
    pub fn memfd(bytes: usize) -> Result<SharedMemory> {
        // SAFETY: the name is a NUL-terminated literal; the call has no other precondition.
        let raw = unsafe { libc::memfd_create(c"rsccl".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        if raw < 0 {
            return Err(Error::last_os("memfd_create"));
        }
        // SAFETY: `raw` was just returned by the kernel and nobody else has it.
        let file = unsafe { OwnedFd::from_raw_fd(raw) };
        let length = libc::off_t::try_from(bytes)
            .map_err(|_| Error::invalid_argument(format!("shared memory of {bytes} bytes is too large")))?;
        // SAFETY: a plain call on a descriptor that we own.
        if unsafe { libc::ftruncate(raw, length) } != 0 {
            return Err(Error::last_os(format!("ftruncate of a memfd to {bytes} bytes")));
        }
        // SAFETY: a plain call on a descriptor that we own.
        if unsafe { libc::fcntl(raw, libc::F_ADD_SEALS, SEALS) } != 0 {
            return Err(Error::last_os("sealing a memfd"));
        }
        let base = map(bytes, libc::MAP_SHARED, raw)?;
        Ok(SharedMemory { base, bytes, file: Some(file) })
    }

    /// Maps a descriptor that a peer sent, which must be a sealed memfd of exactly `bytes`.
    ///
    /// # Errors
    /// [`Kind::Remote`] where it is anything else.
    pub fn from_peer(file: OwnedFd, bytes: usize) -> Result<SharedMemory> {
        let raw = file.as_raw_fd();
        // SAFETY: a plain call on a descriptor that we own.
        let seals = unsafe { libc::fcntl(raw, libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
            return Err(Error::new(Kind::Remote, "a peer sent a descriptor that is not a sealed memfd"));
        }
        let actual = std::fs::File::from(file);
        let metadata = actual.metadata().map_err(|error| Error::system("fstat of a peer's memfd", error))?;
        if metadata.len() != bytes as u64 {
            let message = format!("a peer sent a memfd of {} bytes where {bytes} were announced", metadata.len());
            return Err(Error::new(Kind::Remote, message));
        }
        let base = map(bytes, libc::MAP_SHARED, actual.as_raw_fd())?;
        Ok(SharedMemory { base, bytes, file: Some(actual.into()) })
    }

    /// Where it starts.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// How long it is.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// The descriptor, where the memory has one.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
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

    /// Asks for huge pages: fewer faults and TLB misses for large buffers. A refusal costs only speed.
    pub fn prefer_huge_pages(&self) {
        // SAFETY: the range is our own mapping; advice changes no content.
        let _refused = unsafe { libc::madvise(self.base.as_ptr().cast(), self.bytes, libc::MADV_HUGEPAGE) };
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: base and length are those of the mapping made in the constructor; holders of raw pointers into it hold an
        // `Arc` of this owner.
        let result = unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert_eq!(result, 0, "munmap of our own mapping");
    }
}

fn map(bytes: usize, flags: libc::c_int, raw: libc::c_int) -> Result<NonNull<u8>> {
    if bytes == 0 {
        return Err(Error::invalid_argument("a mapping of 0 bytes"));
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, raw, 0) };
    if base == libc::MAP_FAILED {
        return Err(Error::last_os(format!("mmap of {bytes} bytes")));
    }
    Ok(NonNull::new(base.cast()).expect("mmap never yields null without MAP_FIXED"))
}

const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_sees_the_same_bytes() {
        let mine = SharedMemory::memfd(8192).unwrap();
        let file = mine.file().unwrap().try_clone_to_owned().unwrap();
        let theirs = SharedMemory::from_peer(file, 8192).unwrap();
        // SAFETY: inside the mapping, one thread.
        unsafe { mine.at(5000, 1).as_ptr().write(7) };
        // SAFETY: as above.
        assert_eq!(unsafe { theirs.at(5000, 1).as_ptr().read() }, 7);
    }

    #[test]
    fn wrong_size_and_unsealed_files_are_refused() {
        let mine = SharedMemory::memfd(4096).unwrap();
        let file = mine.file().unwrap().try_clone_to_owned().unwrap();
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
