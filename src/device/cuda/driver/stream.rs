//! Streams and events of our own, and the names of streams that programs give.

use std::ffi::c_int;

use cudarc::driver::sys::{CUdevice, CUevent, CUgraph, CUstream};

use super::context::Primary;
use super::result::{Driver, NOT_READY, Refusal, call};
use crate::device::DeviceId;
use crate::device::cuda::gpus;
use crate::error::{Error, Result};
use crate::sync::primitive::Arc;

/// A stream by its handle: a program's, or one of ours. 0 is the null stream, 1 the legacy one, 2 the thread's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamHandle(pub(in crate::device::cuda) CUstream);

// SAFETY: a handle, which the driver lets any thread use; 2 means the stream of whoever uses it.
unsafe impl Send for StreamHandle {}
// SAFETY: as above.
unsafe impl Sync for StreamHandle {}

impl StreamHandle {
    /// The stream of a handle.
    ///
    /// # Safety
    /// The handle is 0, 1, 2 or a stream of the driver that lives while this value is used.
    pub unsafe fn new(handle: CUstream) -> StreamHandle {
        StreamHandle(handle)
    }

    /// The stream of the thread that uses the handle.
    pub(in crate::device::cuda) fn per_thread() -> StreamHandle {
        StreamHandle(std::ptr::without_provenance_mut(PER_THREAD))
    }

    /// Whether it is one of the handles that mean a stream of whatever context is current: 0, 1 and 2.
    pub(super) fn is_of_current_context(self) -> bool {
        self.0.addr() <= PER_THREAD
    }

    /// Whether the handle means another stream in each thread.
    pub(in crate::device::cuda) fn is_per_thread(self) -> bool {
        self.0.addr() == PER_THREAD
    }

    /// What the stream captures, if anything.
    pub(in crate::device::cuda) fn capture(self, primary: &Primary) -> Result<Option<Capture>> {
        let (mut status, mut id) = (0, 0);
        let (mut graph, nodes, count) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        let graph_at = &raw mut graph;
        // SAFETY: the stream lives (`new`); three places are ours, and the driver skips the null ones.
        let asked = unsafe {
            call!(primary, cuStreamGetCaptureInfo(self.0, &raw mut status, &raw mut id, graph_at, nodes, count))
        };
        asked.map_err(|failure| primary.error(failure))?;
        match status {
            NOT_CAPTURING => Ok(None),
            CAPTURING => Ok(Some(Capture { id, graph })),
            _ => Err(Error::invalid_usage("the stream's capture has failed before: end it, and begin another")),
        }
    }
}

/// The GPU of a stream. The handles 0, 1 and 2 mean a stream of the context that is current in this thread; where none
/// is, of GPU 0, as in CUDA's runtime.
///
/// # Errors
/// As [`gpus`], and where the driver refuses the question.
pub fn device_of(stream: StreamHandle) -> Result<DeviceId> {
    let (gpus, driver) = (gpus()?, Driver::get()?);
    driver.check_process()?;
    let ordinal = ordinal_of(driver, stream).map_err(|failure| failure.at(driver))?;
    let found = gpus.iter().find(|gpu| gpu.device == ordinal).map(|gpu| gpu.id);
    found.ok_or_else(|| {
        Error::invalid_argument(format!("the stream is of GPU {ordinal}, which is none of this process's"))
    })
}

fn ordinal_of(driver: &Driver, stream: StreamHandle) -> Result<CUdevice, Refusal> {
    let (mut context, mut device) = (std::ptr::null_mut(), 0);
    if stream.is_of_current_context() {
        // SAFETY: the place is ours.
        unsafe { call!(driver, cuCtxGetCurrent(&raw mut context)) }?;
        if !context.is_null() {
            // SAFETY: the place is ours.
            unsafe { call!(driver, cuCtxGetDevice(&raw mut device)) }?;
        }
        return Ok(device);
    }
    // SAFETY: the stream lives (`new`), and the place is ours.
    unsafe { call!(driver, cuStreamGetCtx(stream.0, &raw mut context)) }?;
    // SAFETY: the context lives while its stream does.
    unsafe { call!(driver, cuCtxPushCurrent(context)) }?;
    // SAFETY: the place is ours.
    let asked = unsafe { call!(driver, cuCtxGetDevice(&raw mut device)) };
    // SAFETY: the place is ours; the context was pushed just now.
    unsafe { call!(driver, cuCtxPopCurrent(&raw mut context)) }.and(asked)?;
    Ok(device)
}

/// `CU_STREAM_PER_THREAD`
const PER_THREAD: usize = 2;
/// `CUstreamCaptureStatus`
const NOT_CAPTURING: c_int = 0;
const CAPTURING: c_int = 1;

/// Which capture a stream is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device::cuda) struct Capture {
    pub(in crate::device::cuda) id: u64,
    /// The graph that it becomes.
    pub(in crate::device::cuda) graph: CUgraph,
}

// SAFETY: the graph is a handle, which the driver lets any thread use.
unsafe impl Send for Capture {}
// SAFETY: as above.
unsafe impl Sync for Capture {}

/// A stream of ours. It does not wait for the null stream, and the null stream does not wait for it.
#[derive(Debug)]
pub(in crate::device::cuda) struct OwnStream {
    primary: Arc<Primary>,
    handle: CUstream,
}

// SAFETY: the stream is a handle, which the driver lets any thread use.
unsafe impl Send for OwnStream {}
// SAFETY: as above.
unsafe impl Sync for OwnStream {}

/// `CU_STREAM_NON_BLOCKING`
const NON_BLOCKING: u32 = 1;

impl OwnStream {
    pub(in crate::device::cuda) fn new(primary: &Arc<Primary>) -> Result<OwnStream> {
        let _entered = primary.enter()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the place is ours, and the context is current.
        let made = unsafe { call!(primary, cuStreamCreate(&raw mut handle, NON_BLOCKING)) };
        made.map_err(|failure| primary.error(failure))?;
        Ok(OwnStream { primary: Arc::clone(primary), handle })
    }

    pub(in crate::device::cuda) fn handle(&self) -> StreamHandle {
        StreamHandle(self.handle)
    }

    /// Whether all that was put into it is done. It never blocks.
    pub(in crate::device::cuda) fn is_idle(&self) -> Result<bool> {
        let _entered = self.primary.enter()?;
        // SAFETY: the stream is ours and lives.
        match unsafe { call!(self.primary, cuStreamQuery(self.handle)) } {
            Ok(()) => Ok(true),
            Err(failure) if failure.code == NOT_READY => Ok(false),
            Err(failure) => Err(self.primary.error(failure)),
        }
    }

    /// Waits for all work in it. Only for set-up, when no peer's kernel can be waiting for this process.
    pub(in crate::device::cuda) fn drain(&self) -> Result<()> {
        let _entered = self.primary.enter()?;
        // SAFETY: the stream is ours and lives.
        let drained = unsafe { call!(self.primary, cuStreamSynchronize(self.handle)) };
        drained.map_err(|failure| self.primary.error(failure))
    }
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        // SAFETY: the stream is ours, and nobody has its handle any more; the driver does what was put into it.
        self.primary.give_back(|| unsafe { call!(self.primary, cuStreamDestroy(self.handle)) });
    }
}

/// An event of ours.
#[derive(Debug)]
pub(in crate::device::cuda) struct OwnEvent {
    primary: Arc<Primary>,
    handle: CUevent,
}

// SAFETY: the event is a handle, which the driver lets any thread use.
unsafe impl Send for OwnEvent {}
// SAFETY: as above.
unsafe impl Sync for OwnEvent {}

/// `CU_EVENT_DISABLE_TIMING`: times cost a write of the GPU.
const DISABLE_TIMING: u32 = 2;

impl OwnEvent {
    pub(in crate::device::cuda) fn new(primary: &Arc<Primary>) -> Result<OwnEvent> {
        let _entered = primary.enter()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the place is ours, and the context is current.
        let made = unsafe { call!(primary, cuEventCreate(&raw mut handle, DISABLE_TIMING)) };
        made.map_err(|failure| primary.error(failure))?;
        Ok(OwnEvent { primary: Arc::clone(primary), handle })
    }

    /// Marks what is in the stream now. The context is current.
    pub(in crate::device::cuda) fn record(&self, stream: StreamHandle) -> Result<()> {
        // SAFETY: the event is ours and lives, and so does the stream (`StreamHandle::new`).
        let recorded = unsafe { call!(self.primary, cuEventRecord(self.handle, stream.0)) };
        recorded.map_err(|failure| self.primary.error(failure))
    }

    /// Makes the stream wait for the last mark. The context must be current.
    pub(in crate::device::cuda) fn holds_up(&self, stream: StreamHandle) -> Result<()> {
        // SAFETY: as in `record`.
        let waits = unsafe { call!(self.primary, cuStreamWaitEvent(stream.0, self.handle, 0)) };
        waits.map_err(|failure| self.primary.error(failure))
    }

    /// Whether what was marked is done. It never blocks.
    pub(in crate::device::cuda) fn is_done(&self) -> Result<bool> {
        let _entered = self.primary.enter()?;
        // SAFETY: the event is ours and lives.
        match unsafe { call!(self.primary, cuEventQuery(self.handle)) } {
            Ok(()) => Ok(true),
            Err(failure) if failure.code == NOT_READY => Ok(false),
            Err(failure) => Err(self.primary.error(failure)),
        }
    }
}

impl Drop for OwnEvent {
    fn drop(&mut self) {
        // SAFETY: the event is ours, and nobody has its handle any more; the driver frees it when it is done.
        self.primary.give_back(|| unsafe { call!(self.primary, cuEventDestroy(self.handle)) });
    }
}
