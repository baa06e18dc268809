//! Calls of C++ on CUDA streams, with buffers in GPU memory.

use super::call::Work;
use crate::comm::{Communicator, DeviceStream};
use crate::error::{Error, Kind, Result};

/// Why there are no streams.
#[cfg(not(feature = "cuda"))]
fn no_streams() -> Error {
    Error::invalid_usage(
        "the call is on a CUDA stream (null is CUDA's default one), and this library was built without feature cuda: \
         build it with that, or pass no Stream, or Stream::host()",
    )
}

#[cfg(not(feature = "cuda"))]
pub(super) unsafe fn of(_handle: usize) -> Result<DeviceStream> {
    Err(no_streams())
}

#[cfg(not(feature = "cuda"))]
pub(super) fn on_gpu(_work: Work, _stream: &DeviceStream) -> Result<Work> {
    Err(no_streams())
}

/// The stream behind a `cudaStream_t` or `CUstream`, of whichever GPU it is.
///
/// # Safety
/// The handle is 0, 1, 2 or a stream of the driver that lives until the value is dropped.
#[cfg(feature = "cuda")]
pub(super) unsafe fn of(handle: usize) -> Result<DeviceStream> {
    use crate::device::cuda::{self, StreamHandle};

    let handle: *mut std::ffi::c_void = std::ptr::with_exposed_provenance_mut(handle);
    // SAFETY: the caller's promise.
    let device = cuda::device_of(unsafe { StreamHandle::new(handle.cast()) })?;
    // SAFETY: the caller's promise.
    unsafe { DeviceStream::from_raw(device.0, handle) }
}

/// [`of`], of a call. Its error says where a stream comes from that nobody has asked for.
///
/// # Safety
/// As [`of`].
pub(super) unsafe fn of_call(handle: usize) -> Result<DeviceStream> {
    // SAFETY: the caller's promise.
    let stream = unsafe { of(handle) };
    stream.map_err(|error| match error.kind() {
        Kind::System => error.advising(
            "the call's last argument is a CUDA stream (a literal 0 is CUDA's default stream, as NCCL has it): leave \
             it out for memory of the host, or pass Stream::host()",
        ),
        _ => error,
    })
}

/// The same work, with its buffers in the memory in which the driver knows them.
///
/// # Errors
/// `InvalidArgument` for a buffer that is not memory of the stream's GPU.
#[cfg(feature = "cuda")]
pub(super) fn on_gpu(work: Work, stream: &DeviceStream) -> Result<Work> {
    use crate::device::{Home, cuda};

    let located = |name: &str, address: u64| -> Result<Home> {
        match cuda::locate(address)? {
            Some(home) if home == stream.home() => Ok(home),
            Some(home) => Err(Error::invalid_argument(format!(
                "`{name}` lies in {home}, and the stream is of {}: give memory of that GPU",
                stream.home()
            ))),
            None => Err(Error::invalid_argument(format!(
                "`{name}` at {address:#x} is not memory that a GPU allocated, and the call is on a stream of {} (a \
                 literal 0 is CUDA's default stream): give memory of that GPU, or pass no Stream",
                stream.home()
            ))),
        }
    };
    let all = |messages: Vec<crate::comm::Message<'static>>| {
        messages.into_iter().map(|message| message.located(&located)).collect::<Result<Vec<_>>>()
    };
    Ok(match work {
        Work::Collective(mut call) => {
            call.buffers = call.buffers.located(&located)?;
            Work::Collective(call)
        }
        Work::Message(message) => Work::Message(message.located(&located)?),
        Work::Messages(messages) => Work::Messages(all(messages)?),
        Work::Exchange(messages) => Work::Exchange(all(messages)?),
    })
}

/// Puts `work` into the stream.
///
/// # Safety
/// As [`of`].
#[cold]
pub(super) unsafe fn run(comm: &Communicator, handle: usize, work: Work) -> Result<()> {
    let rank = comm.world()?.rank;
    let at = |error: Error| error.at(rank);
    // SAFETY: the caller's promise.
    let stream = unsafe { of_call(handle) }.map_err(at)?;
    let on = comm.on(&stream);
    match on_gpu(work, &stream).map_err(at)? {
        Work::Collective(call) => on.run(&call),
        Work::Message(message) => on.run_messages(vec![message]),
        Work::Messages(messages) => on.run_messages(messages),
        Work::Exchange(messages) => on.run_exchange(messages),
    }
}
