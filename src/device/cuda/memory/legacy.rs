//! Memory that other processes open by a handle (`cuIpcGetMemHandle`): for GPUs whose memory has no descriptors, and
//! where `NCCL_CUMEM_ENABLE` is 0.
//!
//! What leaves the process is a note:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 8 | [`MAGIC`] |
//! | 8 | 8 | the length of the memory |
//! | 16 | 8 | where it begins in the allocation: a handle stands for the whole, whatever address it was asked for |
//! | 24 | 64 | the handle |
//!
//! CUDA does not say what becomes of memory that is freed before the others have closed it. So the owner keeps it until
//! no process holds the note, as long as the GPU is used; then for [`PATIENCE`] at most.

use std::ffi::{c_char, c_uint};
use std::os::fd::OwnedFd;
use std::time::Duration;

use cudarc::driver::sys::{CUdeviceptr, CUipcMemHandle};

use super::allocation::{foreign, refused};
use crate::device::cuda::driver::context::Primary;
use crate::device::cuda::driver::result::call;
use crate::error::{Error, Kind, Result};
use crate::sync::Deadline;
use crate::sync::primitive::Arc;
use crate::sys::note::{LentNote, NOTE_BYTES, TakenNote};
use crate::sys::{clock, futex};
use crate::wire::{Reader, Writer};

/// Memory of this process that others can open.
#[derive(Debug)]
pub(in crate::device::cuda) struct Handed {
    primary: Arc<Primary>,
    address: CUdeviceptr,
    note: LentNote,
}

/// Memory of another process.
#[derive(Debug)]
pub(in crate::device::cuda) struct Opened {
    primary: Arc<Primary>,
    /// Of the whole allocation.
    base: CUdeviceptr,
    offset: u64,
    // The last field: its owner may free the memory when it is gone.
    _note: TakenNote,
}

impl Handed {
    /// New memory, whose content is not defined. The context is current.
    pub(in crate::device::cuda) fn new(primary: &Arc<Primary>, bytes: usize) -> Result<Handed> {
        let mut address = 0;
        // SAFETY: the place is ours, and the context is current.
        let made = unsafe { call!(primary, cuMemAlloc(&raw mut address, bytes)) };
        made.map_err(|failure| refused(primary, failure, bytes))?;
        match note_of(primary, address, bytes) {
            Ok(note) => Ok(Handed { primary: Arc::clone(primary), address, note }),
            Err(error) => {
                // SAFETY: the memory is ours, and nothing has used it yet.
                primary.give_back(|| unsafe { call!(primary, cuMemFree(address)) });
                Err(error)
            }
        }
    }

    pub(in crate::device::cuda) fn address(&self) -> CUdeviceptr {
        self.address
    }

    /// A descriptor of the note.
    pub(in crate::device::cuda) fn descriptor(&self) -> Result<OwnedFd> {
        self.note.descriptor()
    }

    pub(in crate::device::cuda) fn is_open_elsewhere(&self) -> bool {
        self.note.is_held_elsewhere()
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        let deadline = Deadline::after(PATIENCE);
        while self.is_open_elsewhere() && !deadline.passed(clock::now()) {
            futex::nap(LOOK_EVERY);
        }
        // SAFETY: the memory is ours, and no work of ours uses it any more: whoever frees has seen to that.
        self.primary.give_back(|| unsafe { call!(self.primary, cuMemFree(self.address)) });
    }
}

impl Opened {
    /// Opens what a note names for the work of this GPU. The context is current.
    pub(in crate::device::cuda) fn open(
        primary: &Arc<Primary>,
        (note, told): (TakenNote, [u8; NOTE_BYTES]),
        bytes: usize,
    ) -> Result<Opened> {
        let (length, offset, handle) = decode(&told)?;
        if length != bytes as u64 {
            return Err(Error::new(
                Kind::Remote,
                format!("a peer handed over {length} bytes of GPU memory where {bytes} were announced"),
            ));
        }
        let mut base = 0;
        // SAFETY: the place is ours and lives through the call; the driver refuses a handle that names nothing.
        unsafe { call!(primary, cuIpcOpenMemHandle(&raw mut base, handle, LAZY_PEER_ACCESS)) }
            .map_err(|failure| foreign(primary, failure, bytes))?;
        let opened = Opened { primary: Arc::clone(primary), base, offset, _note: note };
        let (mut start, mut whole) = (0, 0);
        // SAFETY: both places are ours and live through the call.
        unsafe { call!(primary, cuMemGetAddressRange(&raw mut start, &raw mut whole, base)) }
            .map_err(|failure| primary.error(failure))?;
        let end = offset.checked_add(length);
        if start != base || end.is_none_or(|end| end > whole as u64) {
            let place = format!("{length} bytes from byte {offset} on of an allocation of {whole}");
            return Err(Error::new(
                Kind::Remote,
                format!("a peer handed over GPU memory that it does not have: {place}"),
            ));
        }
        Ok(opened)
    }

    pub(in crate::device::cuda) fn address(&self) -> CUdeviceptr {
        self.base + self.offset
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: opened once, and no work of ours uses it any more.
        self.primary.give_back(|| unsafe { call!(self.primary, cuIpcCloseMemHandle(self.base)) });
    }
}

/// The note of memory of this process.
pub(super) fn note_of(primary: &Primary, address: CUdeviceptr, bytes: usize) -> Result<LentNote> {
    let (mut base, mut whole) = (0, 0);
    // SAFETY: both places are ours and live through the call.
    unsafe { call!(primary, cuMemGetAddressRange(&raw mut base, &raw mut whole, address)) }
        .map_err(|failure| primary.error(failure))?;
    let mut handle = CUipcMemHandle { reserved: [0; HANDLE_BYTES] };
    // SAFETY: the place is ours and lives through the call.
    unsafe { call!(primary, cuIpcGetMemHandle(&raw mut handle, address)) }.map_err(|failure| primary.error(failure))?;
    LentNote::new(&encode(bytes as u64, address - base, &handle))
}

fn encode(length: u64, offset: u64, handle: &CUipcMemHandle) -> [u8; NOTE_BYTES] {
    let mut writer = Writer::new();
    writer.u64(MAGIC).u64(length).u64(offset).raw(&handle.reserved.map(|byte| byte.to_ne_bytes()[0]));
    let mut note = [0; NOTE_BYTES];
    let written = writer.finish();
    note[..written.len()].copy_from_slice(&written);
    note
}

fn decode(note: &[u8; NOTE_BYTES]) -> Result<(u64, u64, CUipcMemHandle)> {
    let mut reader = Reader::new(note, "a note of GPU memory");
    let (magic, length, offset) = (reader.u64()?, reader.u64()?, reader.u64()?);
    if magic != MAGIC {
        return Err(reader.malformed("it names no GPU memory"));
    }
    let handle: [u8; HANDLE_BYTES] = reader.array()?;
    Ok((length, offset, CUipcMemHandle { reserved: handle.map(|byte| c_char::from_ne_bytes([byte])) }))
}

/// "rscclipc"
const MAGIC: u64 = u64::from_le_bytes(*b"rscclipc");
/// Of a `CUipcMemHandle`.
const HANDLE_BYTES: usize = 64;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`
const LAZY_PEER_ACCESS: c_uint = 1;
/// How long the last user of a GPU waits for processes that have its memory open: peers that drop their communicators
/// at the same time.
const PATIENCE: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(1);

const _: () = assert!(3 * 8 + HANDLE_BYTES <= NOTE_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_come_back_and_others_are_refused() {
        let handle = CUipcMemHandle { reserved: [-7; HANDLE_BYTES] };
        let note = encode(4096, 512, &handle);
        let (length, offset, read) = decode(&note).unwrap();
        assert_eq!((length, offset, read.reserved), (4096, 512, handle.reserved));
        assert_eq!(decode(&[0; NOTE_BYTES]).unwrap_err().kind(), Kind::Remote);
    }
}
