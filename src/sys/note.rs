//! A few bytes that a process hands to others of its host by a descriptor, and whether one of them still has them.
//!
//! The bytes stand in a sealed memfd. Who takes them holds a lock on the file until it lets go of them or ends, however
//! it ends: so the owner can find out whether what the bytes stand for is in use elsewhere. Threads of a process that
//! take the same note share its lock, which ends when the first of them lets go.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use crate::error::{Error, Kind, Result};
use crate::sys::{memory, writing};

/// Bytes of each note.
pub const NOTE_BYTES: usize = 128;

/// A note of this process.
#[derive(Debug)]
pub struct LentNote {
    file: File,
}

/// A note of another process, which learns when this is dropped.
#[derive(Debug)]
pub struct TakenNote {
    _file: File,
}

impl LentNote {
    /// A note of these bytes.
    ///
    /// # Errors
    /// [`Kind::System`] where the system has no memory or descriptor for it.
    pub fn new(bytes: &[u8; NOTE_BYTES]) -> Result<LentNote> {
        let file = File::from(memory::sealed_file(c"rsccl-note", NOTE_BYTES)?);
        let written = writing::without_signal(|| file.write_all_at(bytes, 0));
        written.map_err(|error| Error::system("writing a note for other processes", error))?;
        Ok(LentNote { file })
    }

    /// A descriptor by which another process takes it.
    ///
    /// # Errors
    /// [`Kind::System`] where the process has no descriptor left.
    pub fn descriptor(&self) -> Result<OwnedFd> {
        let twin = self.file.try_clone().map_err(|error| Error::system("dup of a note's descriptor", error))?;
        Ok(twin.into())
    }

    /// Whether another process has taken it and not let go of it.
    pub fn is_held_elsewhere(&self) -> bool {
        let mut lock = whole_file(libc::F_WRLCK);
        // SAFETY: a call on a descriptor that we own, with a lock that lives through it.
        let asked = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_GETLK, &raw mut lock) };
        asked == 0 && libc::c_int::from(lock.l_type) != libc::F_UNLCK
    }
}

impl TakenNote {
    /// The note behind a descriptor, and its bytes; the descriptor itself where it is anything else.
    ///
    /// # Errors
    /// [`Kind::System`] where the note cannot be locked or read.
    pub fn take(descriptor: OwnedFd) -> Result<std::result::Result<(TakenNote, [u8; NOTE_BYTES]), OwnedFd>> {
        if !memory::is_sealed(&descriptor) {
            return Ok(Err(descriptor));
        }
        let file = File::from(descriptor);
        let length = file.metadata().map_err(|error| Error::system("fstat of a note", error))?.len();
        if length != NOTE_BYTES as u64 {
            return Err(Error::new(Kind::Remote, format!("a peer sent a note of {length} bytes, not {NOTE_BYTES}")));
        }
        let lock = whole_file(libc::F_RDLCK);
        // SAFETY: a call on a descriptor that we own, with a lock that lives through it. It does not wait: nobody locks
        // for writing.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock) } != 0 {
            return Err(Error::last_os("locking a note of a peer"));
        }
        let mut bytes = [0; NOTE_BYTES];
        file.read_exact_at(&mut bytes, 0).map_err(|error| Error::system("reading a note of a peer", error))?;
        Ok(Ok((TakenNote { _file: file }, bytes)))
    }
}

fn whole_file(kind: libc::c_int) -> libc::flock {
    let l_type = libc::c_short::try_from(kind).expect("the kinds of locks are small numbers");
    let l_whence = libc::c_short::try_from(libc::SEEK_SET).expect("a small number");
    libc::flock { l_type, l_whence, l_start: 0, l_len: 0, l_pid: 0 }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::sys::memory::SharedMemory;
    use crate::sys::region::Keep;

    #[test]
    fn a_note_is_read_and_other_descriptors_come_back() {
        let note = LentNote::new(&[7; NOTE_BYTES]).unwrap();
        let (taken, bytes) = TakenNote::take(note.descriptor().unwrap()).unwrap().unwrap();
        assert_eq!(bytes, [7; NOTE_BYTES]);
        // A process's own locks do not count; `tests/faults/gpus.rs` has another process.
        assert!(!note.is_held_elsewhere());
        drop(taken);
        let other = OwnedFd::from(File::open("/proc/self/exe").unwrap());
        assert!(TakenNote::take(other).unwrap().is_err());
        let page = SharedMemory::memfd(4096).unwrap().descriptor().unwrap().try_clone().unwrap();
        assert_eq!(TakenNote::take(page).unwrap_err().kind(), Kind::Remote);
    }
}
