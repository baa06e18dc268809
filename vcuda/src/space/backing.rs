//! A file with device memory: its data, the interpreter's shadow of it, and the bits that say which bytes were written.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::size;
use super::state::{Kind, Record, RecordId, State, anonymous_file};
use crate::driver::{CUresult, Outcome};
use crate::simt::SHADOW_BYTES_PER_16;

/// Fresh memory holds this byte: as a float a huge number, as an index far outside.
const POISON: u8 = 0xA7;
/// Larger pieces are poisoned at their two ends only: to write them whole would cost more than it finds.
const POISON_WHOLE: u64 = 32 << 20;
const POISON_END: u64 = 1 << 20;

/// A file with memory of a GPU, as this process holds it.
#[derive(Debug)]
pub struct Backing {
    file: File,
    /// The file's number on this machine.
    pub number: u64,
    /// The GPU whose memory it is; one of another host has a number that no GPU here has.
    pub gpu: u32,
    /// Bytes of data, a multiple of the granularity.
    pub bytes: u64,
    hold: RecordId,
    /// Handles and mappings of this process; the hold ends with the last.
    users: AtomicU32,
    /// Shadow and written bits, mapped; null where the machine does without.
    shadow: *mut u8,
    defined: *mut u8,
    state: Arc<State>,
}

// SAFETY: the pointers are addresses of shared mappings, used through atomics; they live as long as the value.
unsafe impl Send for Backing {}
// SAFETY: as above.
unsafe impl Sync for Backing {}

/// What a new file is for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub(super) gpu: u32,
    pub(super) bytes: u64,
    /// Memory of the GPU in all.
    pub(super) total: u64,
    /// Bits of handle types that it may be exported as.
    pub(super) types: u64,
}

impl Backing {
    /// Makes a file and takes its bytes from the GPU's memory.
    pub(super) fn create(state: &Arc<State>, request: Request, watch: Watch) -> Outcome<Arc<Backing>> {
        let Request { gpu, bytes, total, types } = request;
        let line = state.line_of(gpu);
        if !state.take_bytes(line, bytes, total) {
            // Somebody who died may hold what is missing.
            state.reap_memory();
            if !state.take_bytes(line, bytes, total) {
                return Err(CUresult::OUT_OF_MEMORY);
            }
        }
        let number = state.next_id();
        let made = make_file(state, number, bytes).and_then(|file| {
            let inode = file.metadata()?.ino();
            Ok((file, inode))
        });
        let Ok((file, inode)) = made else {
            state.return_bytes(line, bytes);
            return Err(CUresult::OUT_OF_MEMORY);
        };
        let record = Record {
            file: number,
            bytes,
            gpu: line,
            inode,
            flags: types,
            references: 1,
            ..Record::new(Kind::File, state.pid(), number)
        };
        state.lock().add(record).ok_or(CUresult::OUT_OF_MEMORY)?;
        let backing = Backing::hold(state, file, &record, watch)?;
        backing.poison(0, bytes)?;
        Ok(backing)
    }

    /// Opens the file of a record by its name.
    pub(super) fn open(state: &Arc<State>, record: &Record, watch: Watch) -> Outcome<Arc<Backing>> {
        let path = state.file_path(record.file).ok_or(CUresult::INVALID_VALUE)?;
        let file = File::options().read(true).write(true).open(path).map_err(|_| CUresult::INVALID_VALUE)?;
        Backing::hold(state, file, record, watch)
    }

    /// Takes a descriptor that stands for the file of a record.
    pub(super) fn adopt(state: &Arc<State>, fd: OwnedFd, record: &Record, watch: Watch) -> Outcome<Arc<Backing>> {
        Backing::hold(state, File::from(fd), record, watch)
    }

    fn hold(state: &Arc<State>, file: File, record: &Record, watch: Watch) -> Outcome<Arc<Backing>> {
        let hold =
            Record { file: record.file, gpu: record.gpu, ..Record::new(Kind::Hold, state.pid(), state.next_id()) };
        let mut guard = state.lock();
        let hold = guard.add(hold).ok_or(CUresult::OUT_OF_MEMORY)?;
        if let Some((id, _)) = guard.find(Kind::File, |file| file.file == record.file && file.references == 0) {
            // Everybody had let go of it, but a descriptor was about: the memory is in use again.
            guard.change(id, |record| record.references = 1);
            state.take_bytes(record.gpu, record.bytes, u64::MAX);
        }
        drop(guard);
        let shadow_bytes = shadow_bytes(record.bytes);
        let shadow = if watch.weak { map_part(&file, record.bytes, shadow_bytes)? } else { std::ptr::null_mut() };
        let at = record.bytes + shadow_bytes;
        let defined = if watch.defined { map_part(&file, at, record.bytes / 8)? } else { std::ptr::null_mut() };
        Ok(Arc::new(Backing {
            file,
            number: record.file,
            gpu: state.gpu_of(record.gpu),
            bytes: record.bytes,
            hold,
            users: AtomicU32::new(0),
            shadow,
            defined,
            state: Arc::clone(state),
        }))
    }

    /// One user more: a handle or a mapping.
    pub(super) fn add_user(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    /// One user less; with the last, this process's hold ends and the memory may be free.
    pub(super) fn drop_user(&self) {
        if self.users.fetch_sub(1, Ordering::AcqRel) == 1 {
            let mut guard = self.state.lock();
            guard.remove(self.hold);
            self.state.drop_file_without_holders(&mut guard, self.number);
        }
    }

    /// The descriptor, for mapping and export.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The interpreter's shadow of the byte at `offset`, a multiple of 128; null where the machine does without.
    pub(super) fn shadow_at(&self, offset: u64) -> *mut u8 {
        if self.shadow.is_null() { self.shadow } else { self.shadow.wrapping_add(size(shadow_bytes(offset))) }
    }

    /// The written bits from `offset` on, a multiple of 8; null where the machine does without.
    pub(super) fn defined_at(&self, offset: u64) -> *mut u8 {
        if self.defined.is_null() { self.defined } else { self.defined.wrapping_add(size(offset / 8)) }
    }

    /// Makes a part fresh: poison in it, no history, no byte written.
    pub(super) fn refresh(&self, offset: u64, bytes: u64) -> Outcome {
        self.poison(offset, bytes)?;
        let (from, until) = (offset / 16 * 16, offset + bytes);
        self.write_over(self.bytes + shadow_bytes(from), shadow_bytes(until.next_multiple_of(16) - from), 0)?;
        self.write_over(self.bytes + shadow_bytes(self.bytes) + offset / 8, bytes.div_ceil(8), 0)
    }

    fn poison(&self, offset: u64, bytes: u64) -> Outcome {
        if bytes <= POISON_WHOLE {
            return self.write_over(offset, bytes, POISON);
        }
        self.write_over(offset, POISON_END, POISON)?;
        self.write_over(offset + bytes - POISON_END, POISON_END, POISON)
    }

    fn write_over(&self, offset: u64, bytes: u64, byte: u8) -> Outcome {
        let chunk = [byte; 1 << 16];
        let mut done = 0;
        while done < bytes {
            let next = (bytes - done).min(chunk.len() as u64);
            self.file.write_all_at(&chunk[..size(next)], offset + done).map_err(|_| CUresult::OUT_OF_MEMORY)?;
            done += next;
        }
        Ok(())
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        let parts = [(self.shadow, shadow_bytes(self.bytes)), (self.defined, self.bytes / 8)];
        for (address, bytes) in parts.into_iter().filter(|part| !part.0.is_null()) {
            // SAFETY: mapped by `hold` with this length; the last owner is gone.
            unsafe { libc::munmap(address.cast(), size(bytes)) };
        }
    }
}

/// Which books the machine keeps about memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Watch {
    /// Old values, for weak memory.
    pub(super) weak: bool,
    /// Which bytes were written.
    pub(super) defined: bool,
}

fn shadow_bytes(bytes: u64) -> u64 {
    bytes / 16 * SHADOW_BYTES_PER_16 as u64
}

fn make_file(state: &State, number: u64, bytes: u64) -> io::Result<File> {
    let file = match state.file_path(number) {
        Some(path) => File::options().read(true).write(true).create_new(true).open(path)?,
        None => File::from(anonymous_file("vcuda-memory")?),
    };
    file.set_len(bytes + shadow_bytes(bytes) + bytes / 8)?;
    Ok(file)
}

fn map_part(file: &File, offset: u64, bytes: u64) -> Outcome<*mut u8> {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
    let at = i64::try_from(offset).map_err(|_| CUresult::OUT_OF_MEMORY)?;
    // SAFETY: a new shared mapping of a file that is long enough, at an address of the kernel's choice.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), size(bytes), rights, flags, file.as_raw_fd(), at) };
    if address == libc::MAP_FAILED { Err(CUresult::OUT_OF_MEMORY) } else { Ok(address.cast()) }
}
