//! Copies between windows of the ranks of a call, by a device's copy engines.

use crate::device::{Home, Place};
use crate::error::{Error, Result};
use crate::exec::DeviceStream;

/// A copy between two addresses of one device, in windows of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowCopy {
    /// In this rank's input, or in a window of any rank, as this rank's device addresses it.
    pub from: u64,
    /// In this rank's output, or in a window of any rank.
    pub to: u64,
    /// How much.
    pub bytes: u64,
}

/// Puts the copies of a call into the stream, between a launch in which all ranks have come and one in which all have
/// left.
///
/// # Errors
/// Where the device refuses.
pub fn put_copies(stream: &DeviceStream, home: Home, copies: &[WindowCopy]) -> Result<()> {
    stream.on_thread(|| {
        for WindowCopy { from, to, bytes } in copies {
            let bytes = usize::try_from(*bytes).map_err(|_| Error::internal("a copy that no address space holds"))?;
            let [from, to] = [from, to].map(|address| {
                let address = usize::try_from(*address).map_or(std::ptr::null_mut(), std::ptr::without_provenance_mut);
                Place { address, bytes, home }
            });
            // SAFETY: `Buffers` vouches for the memory of the call until the stream is done, and so does each rank for
            // its own; the launch before lets the copies begin once all inputs are there and all outputs may be
            // written, and the launch behind keeps the windows, and ends once all ranks have copied.
            unsafe { stream.copy(from, to) }?;
        }
        Ok(())
    })
}
