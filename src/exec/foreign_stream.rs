//! Streams of programs that use a GPU besides.

use std::any::Any;
use std::ffi::c_void;

use cudarc::driver::CudaStream;

use crate::device::cuda::{self, StreamHandle};
use crate::device::{DeviceId, DeviceMemory};
use crate::error::Result;
use crate::exec::DeviceStream;
use crate::sync::primitive::Arc;

impl DeviceStream {
    /// The stream behind a handle of CUDA, a `CUstream` or `cudaStream_t`, of GPU number `device` of this process. 0
    /// and 1 are the null stream of that GPU, and 2 is the stream of whatever thread calls.
    ///
    /// Calls leave the current context as they found it. A stream that is captured keeps the calls for its graph, and
    /// the graph keeps all memory that they need: its replays need no code of the host. Ranks that share a GPU are
    /// captured into one graph, or none of them is. Before it is captured, a communicator needs one call that is not.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where there is no such GPU, or the stream is not of its primary context
    /// (which CUDA's runtime and cudarc use); [`crate::error::Kind::System`] where there is no driver.
    ///
    /// # Safety
    /// The handle is 0, 1, 2, or a stream of the driver that lives until this value and its clones have been dropped.
    ///
    /// # Examples
    /// ```
    /// use rsccl::comm::DeviceStream;
    ///
    /// // SAFETY: each GPU has a null stream.
    /// match unsafe { DeviceStream::from_raw(0, std::ptr::null_mut()) } {
    ///     Ok(stream) => stream.synchronize()?,
    ///     // This machine has no driver.
    ///     Err(error) => assert!(error.message().contains("no GPU driver"), "{error}"),
    /// }
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub unsafe fn from_raw(device: u32, handle: *mut c_void) -> Result<DeviceStream> {
        // SAFETY: the caller's contract.
        let handle = unsafe { StreamHandle::new(handle.cast()) };
        DeviceStream::of_program(device, handle, None)
    }

    /// The same stream as a stream of cudarc, which lives as long as this value and its clones.
    ///
    /// It lends slices of cudarc to its calls: [`DeviceStream::lend_both`], [`DeviceStream::lend`] and
    /// [`DeviceStream::lend_mut`]. Calls that are captured take them by their addresses
    /// ([`DeviceSlice::from_raw`](crate::comm::DeviceSlice::from_raw)).
    ///
    /// # Errors
    /// As [`DeviceStream::from_raw`].
    pub fn from_cudarc(stream: &Arc<CudaStream>) -> Result<DeviceStream> {
        let device = u32::try_from(stream.context().ordinal()).unwrap_or(u32::MAX);
        let keep: Arc<dyn Any + Send + Sync> = Arc::<CudaStream>::clone(stream);
        // SAFETY: the queue keeps the stream.
        let handle = unsafe { StreamHandle::new(stream.cu_stream()) };
        DeviceStream::of_program(device, handle, Some(keep))
    }

    fn of_program(device: u32, handle: StreamHandle, keep: Option<Arc<dyn Any + Send + Sync>>) -> Result<DeviceStream> {
        let gpu = cuda::of(DeviceId(device))?;
        Ok(DeviceStream::of(gpu.home(), gpu.queue_of(handle, keep)?))
    }
}
