//! GPU memory that the library allocates for C++ programs, and windows of it.

use super::failure::{Failure, guard};
use super::{Comm, stream};
use crate::comm::{DeviceBuffer, Window};
use crate::error::{Error, Result};

/// Memory of a GPU; `None` before it was allocated.
pub(super) struct GpuMemory(Option<DeviceBuffer<u8>>);

/// A window; `None` before it was registered, and once it was taken back.
pub(super) struct GpuWindow(Option<Window>);

pub(super) fn gpu_memory() -> Box<GpuMemory> {
    Box::new(GpuMemory(None))
}

/// # Safety
/// `handle` is 0, 1, 2 or a stream of the driver that lives until the call returns.
pub(super) unsafe fn allocate_on_gpu(
    memory: &mut GpuMemory,
    count: usize,
    element_bytes: usize,
    handle: usize,
) -> *mut Failure {
    guard(|| {
        let bytes = count.checked_mul(element_bytes).filter(|bytes| *bytes > 0);
        let bytes = bytes.ok_or_else(|| {
            Error::invalid_argument(format!("a buffer of {count} elements: give at least 1, and no more than fits"))
        })?;
        // SAFETY: the caller's promise.
        let stream = unsafe { stream::of(handle) }?;
        memory.0 = Some(stream.alloc_shareable(bytes)?);
        Ok(())
    })
}

/// Its address on the GPU; 0 for none.
pub(super) fn gpu_place(memory: &GpuMemory) -> usize {
    memory.0.as_ref().map_or(0, DeviceBuffer::address)
}

pub(super) fn gpu_window() -> Box<GpuWindow> {
    Box::new(GpuWindow(None))
}

pub(super) fn register_window(comm: &Comm, memory: &GpuMemory, window: &mut GpuWindow) -> *mut Failure {
    comm.on(|comm| {
        let buffer = memory.0.as_ref().ok_or_else(|| Error::internal("a window of memory that was never allocated"))?;
        window.0 = Some(comm.register_window(buffer)?);
        Ok(())
    })
}

/// # Safety
/// As [`allocate_on_gpu`]; and what [`DeviceBuffer::from_raw`] asks of the memory, until the window is gone.
pub(super) unsafe fn register_memory_of(
    comm: &Comm,
    address: usize,
    bytes: usize,
    handle: usize,
    window: &mut GpuWindow,
) -> *mut Failure {
    comm.on(|comm| {
        // SAFETY: the caller's promise.
        let stream = unsafe { stream::of(handle) }?;
        // SAFETY: the caller's promise.
        let memory = unsafe { DeviceBuffer::<u8>::from_raw(&stream, address as u64, bytes) }?;
        window.0 = Some(comm.register_window(&memory)?);
        Ok(())
    })
}

pub(super) fn deregister_window(comm: &Comm, window: &mut GpuWindow) -> *mut Failure {
    comm.on(|comm| {
        // Before the window is taken out: a call that is refused leaves it as it was.
        let taken: Result<Window> =
            window.0.take().ok_or_else(|| Error::internal("a window that was never registered"));
        comm.deregister_window(taken?)
    })
}

pub(super) fn is_direct(window: &GpuWindow) -> bool {
    window.0.as_ref().is_some_and(Window::is_direct)
}
