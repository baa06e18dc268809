//! The pages of the ranks of another process, read without its help. Nothing in them is trusted: they are memory of a
//! process that may be anything.

use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::NonNull;

use crate::sync::primitive::Ordering;
use crate::sync::primitive::mapped::AtomicU64;
use crate::sys::open;

/// The pages of the ranks of another process.
#[derive(Debug)]
pub struct ForeignPages {
    base: NonNull<AtomicU64>,
    words: usize,
}

impl ForeignPages {
    /// Opens what stands at `path`, a link in `/proc/PID/fd`.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::InvalidData`] for what is no memory of such pages, or not sealed: what could be
    /// cut while it is read is not mapped.
    pub fn open(path: &Path) -> io::Result<ForeignPages> {
        // What is called like pages may be a pipe.
        let file = open::file_at_once(path)?;
        // SAFETY: a plain call on a descriptor that we own.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        let bytes = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 || !(LEAST_BYTES..=MOST_BYTES).contains(&bytes) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no sealed memory of pages of ranks"));
        }
        let (protection, raw) = (libc::PROT_READ, file.as_raw_fd());
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, raw, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).expect("mmap never yields null without MAP_FIXED");
        Ok(ForeignPages { base, words: bytes / size_of::<u64>() })
    }

    /// The word of this number; 0 behind the end.
    pub fn word(&self, index: usize) -> u64 {
        if index >= self.words {
            return 0;
        }
        // SAFETY: inside of the mapping, which cannot become shorter; pages of memory are aligned for words.
        let word = unsafe { self.base.add(index) };
        // SAFETY: as above; nobody in this process writes it, and the other process stores whole words.
        let word = unsafe { word.as_ref() };
        // Acquire: pairs with the release of the magic number, behind which the head of the process stands.
        word.load(Ordering::Acquire)
    }
}

impl Drop for ForeignPages {
    fn drop(&mut self) {
        // SAFETY: base and length are those of the mapping made in the constructor; no reference to it leaves.
        let result = unsafe { libc::munmap(self.base.as_ptr().cast(), self.words * size_of::<u64>()) };
        debug_assert_eq!(result, 0, "munmap of our own mapping");
    }
}

/// A head of a process.
const LEAST_BYTES: usize = 4096;
/// Of any version to come.
const MOST_BYTES: usize = 256 << 20;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_sealed_memory_is_refused() {
        assert!(ForeignPages::open(Path::new("/dev/null")).is_err());
        assert!(ForeignPages::open(Path::new("/nowhere")).is_err());
        let folder = tempfile_path();
        std::fs::write(&folder, vec![0; 1 << 13]).unwrap();
        assert_eq!(ForeignPages::open(&folder).unwrap_err().kind(), io::ErrorKind::InvalidData);
        std::fs::remove_file(&folder).unwrap();
    }

    fn tempfile_path() -> std::path::PathBuf {
        std::env::temp_dir().join(format!("rsccl-no-pages-{}", std::process::id()))
    }
}
