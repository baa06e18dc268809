//! Copies from the memory of another process, or of this one, by the kernel.
//!
//! The kernel lets a process read another's memory where it would let it debug that process (`ptrace(2)`,
//! `PTRACE_MODE_ATTACH_REALCREDS`): the same user, no capability that the reader lacks, and no Yama or container that
//! forbids it. Addresses of the other process stay numbers here: the kernel looks them up in that process, and an
//! address without memory is an error.

use std::io;
use std::ptr::NonNull;
use std::time::Duration;

use crate::sys::alive::Process;
use crate::sys::clock;
use crate::sys::fork::PerProcess;

/// A word in the memory of a process that no other process has at that address: a random number. Reading it first, in
/// the same system call, proves that a process's number does not belong to another process by now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Witness {
    /// Where the word is, in its process.
    pub address: u64,
    /// What it is.
    pub value: u64,
}

/// Copies up to `bytes` from the address `from` of `process` to `into`; returns how many. Fewer are copied, or none,
/// where there is no memory that can be read.
///
/// # Errors
/// Of the kernel: `EPERM` where it forbids it, `ESRCH` where there is no such process. `EFAULT` where the process has
/// no memory at the address of the witness, and [`io::ErrorKind::NotFound`] where it has another word there: the number
/// belongs to another process.
///
/// # Safety
/// `into` is good for writing `bytes`, and nobody else touches them. They are unspecified after an error.
pub unsafe fn copy_from(
    process: Process,
    witness: Witness,
    from: u64,
    (into, bytes): (NonNull<u8>, usize),
) -> io::Result<usize> {
    let mut word = 0u64;
    let part = |base: *mut u8, length| libc::iovec { iov_base: base.cast(), iov_len: length };
    let remote = |address: u64, length| {
        let address = usize::try_from(address).map_err(|_| io::Error::from_raw_os_error(libc::EFAULT))?;
        Ok::<_, io::Error>(part(std::ptr::without_provenance_mut(address), length))
    };
    let here = [part((&raw mut word).cast(), WORD), part(into.as_ptr(), bytes)];
    let there = [remote(witness.address, WORD)?, remote(from, bytes)?];
    // SAFETY: the local parts are a word of this frame and what the caller gives; the kernel checks the remote ones.
    let copied = unsafe { libc::process_vm_readv(process.number(), here.as_ptr(), 2, there.as_ptr(), 2, 0) };
    let copied = usize::try_from(copied).map_err(|_| io::Error::last_os_error())?;
    if copied < WORD || word != witness.value {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the process's number belongs to another process here"));
    }
    Ok(copied - WORD)
}

const WORD: usize = size_of::<u64>();

/// How many times as long the kernel takes for a copy of 256 KiB as a plain copy takes, both in this process and with
/// warm caches; `None` where the kernel forbids it. Measured once, in less than a millisecond: the kernel looks up and
/// pins each page, which takes between a fraction of the copy and several times as long, by machine.
pub fn slowness() -> Option<f64> {
    static SLOWNESS: PerProcess<Option<f64>> = PerProcess::new();
    *SLOWNESS.get_or_init(measured_slowness)
}

#[cold]
fn measured_slowness() -> Option<f64> {
    const BYTES: usize = 256 << 10;
    const ROUNDS: u32 = 6;
    if cfg!(miri) {
        return None;
    }
    let word = 0x736c_6f77_6e65_7373_u64;
    let witness = Witness { address: (&raw const word).expose_provenance() as u64, value: word };
    let me = Process::of(i32::try_from(std::process::id()).ok()?)?;
    let (from, mut into) = (vec![1u8; BYTES], vec![2u8; BYTES]);
    let address = from.as_ptr().expose_provenance() as u64;
    let (mut by_kernel, mut plain) = (Duration::MAX, Duration::MAX);
    for _ in 0..ROUNDS {
        let begun = clock::now();
        let place = (NonNull::new(into.as_mut_ptr())?, BYTES);
        // SAFETY: the vector has as many bytes, and nobody else has it.
        let copied = unsafe { copy_from(me, witness, address, place) }.ok()?;
        by_kernel = by_kernel.min(clock::now().duration_since(begun));
        let begun = clock::now();
        std::hint::black_box(&mut into[..copied]).copy_from_slice(std::hint::black_box(&from[..copied]));
        plain = plain.min(clock::now().duration_since(begun));
    }
    Some(by_kernel.as_secs_f64() / plain.as_secs_f64().max(f64::MIN_POSITIVE))
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::sys::memory::SharedMemory;

    static WORD_OF_MINE: u64 = 0x5eed_1234_0000_0001;

    fn me() -> Process {
        Process::of(i32::try_from(std::process::id()).unwrap()).unwrap()
    }

    fn witness() -> Witness {
        Witness { address: (&raw const WORD_OF_MINE).addr() as u64, value: WORD_OF_MINE }
    }

    /// What is copied from `from` of this process.
    fn copied(witness: Witness, from: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let mut into = vec![0u8; bytes];
        let place = NonNull::new(into.as_mut_ptr()).unwrap();
        // SAFETY: as long as said, and nobody else has it.
        let copied = unsafe { copy_from(me(), witness, from, (place, bytes)) }?;
        into.truncate(copied);
        Ok(into)
    }

    #[test]
    fn memory_is_read_as_far_as_there_is_some() {
        let data: Vec<u8> = (0..10_000u32).map(|at| at.to_le_bytes()[0]).collect();
        assert_eq!(copied(witness(), data.as_ptr().addr() as u64, data.len()).unwrap(), data);
        assert!(copied(witness(), data.as_ptr().addr() as u64, 0).unwrap().is_empty());
        let memory = SharedMemory::anonymous(8192).unwrap().into_region();
        let page = memory.base().as_ptr().addr() as u64;
        assert_eq!(copied(witness(), page, 8192).unwrap().len(), 8192);
        // Nobody else gets the addresses, as after an unmap.
        // SAFETY: the pages are the region's, and nobody reads them from here on.
        assert_eq!(unsafe { libc::mprotect(memory.base().as_ptr().cast(), 8192, libc::PROT_NONE) }, 0);
        assert!(copied(witness(), page, 8192).unwrap().is_empty());
    }

    #[test]
    fn a_process_without_the_witness_is_not_believed() {
        let data = [7u8; 64];
        let address = data.as_ptr().addr() as u64;
        let other = Witness { value: 1, ..witness() };
        assert_eq!(copied(other, address, 64).unwrap_err().kind(), io::ErrorKind::NotFound);
        let nowhere = Witness { address: 8, ..witness() };
        assert_eq!(copied(nowhere, address, 64).unwrap_err().raw_os_error(), Some(libc::EFAULT));
    }

    #[test]
    fn the_kernel_s_copies_are_measured_once() {
        let Some(slowness) = slowness() else {
            let line = b"skipped: this kernel has no copies between processes for us: a sandbox may forbid them\n";
            drop(io::Write::write_all(&mut io::stderr(), line));
            return;
        };
        assert!(slowness.is_finite() && slowness > 0.0, "{slowness}");
        assert_eq!(super::slowness(), Some(slowness));
    }

    #[test]
    fn a_process_that_has_ended_is_an_error() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let process = Process::of(i32::try_from(child.id()).unwrap()).unwrap();
        child.wait().unwrap();
        let mut byte = 0u8;
        // SAFETY: a byte of this frame.
        let error = unsafe { copy_from(process, witness(), 8, (NonNull::from(&mut byte), 1)) }.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    }
}
