//! A queue of a GPU: a stream of our own, or a program's.

use std::any::Any;

use cudarc::driver::sys::CUdeviceptr;

use super::arguments::{self, PassKind};
use super::levels::LevelLaunch;
use super::{members, polling};
use crate::device::cuda::active::{Active, Mark};
use crate::device::cuda::driver::result::call;
use crate::device::cuda::driver::stream::{Capture, OwnStream, StreamHandle};
use crate::device::records::LaunchPart;
use crate::device::{CaptureId, Event, Home, Kernel, Pass, Place, Queue, Surroundings};
use crate::error::{Error, Result};
use crate::sync::primitive::Arc;

/// A stream as a queue.
#[derive(Debug)]
pub(in crate::device::cuda) struct StreamQueue {
    // Dropped before `keep`.
    stream: Stream,
    home: Home,
    active: Arc<Active>,
    /// Keeps a program's stream alive while this queue lives, if the program gave something that does.
    keep: Option<Arc<dyn Any + Send + Sync>>,
}

/// Whose stream it is.
#[derive(Debug)]
enum Stream {
    Own(Arc<OwnStream>),
    /// A program's, which any thread can name.
    Named(StreamHandle),
    /// The per-thread stream of the calling thread. Other threads cannot name it, so the work goes to a stream of our
    /// own: [`Queue::enter`] makes our stream wait for the thread's, and [`Queue::leave`] makes the thread's wait for
    /// ours.
    PerThread(Arc<OwnStream>),
}

impl Stream {
    /// Where the work goes.
    fn handle(&self) -> StreamHandle {
        match self {
            Stream::Own(stream) | Stream::PerThread(stream) => stream.handle(),
            Stream::Named(handle) => *handle,
        }
    }
}

impl StreamQueue {
    /// A queue on a stream of its own.
    pub(in crate::device::cuda) fn new(active: Arc<Active>, home: Home) -> Result<StreamQueue> {
        Ok(StreamQueue { stream: Stream::Own(active.stream()?), home, active, keep: None })
    }

    /// A queue on a program's stream, which `keep` keeps alive if it is given.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] for a stream of another context than the GPU's primary one.
    pub(in crate::device::cuda) fn of(
        active: Arc<Active>,
        home: Home,
        stream: StreamHandle,
        keep: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<StreamQueue> {
        active.primary().check_owns(stream)?;
        let stream = if stream.is_per_thread() { Stream::PerThread(active.stream()?) } else { Stream::Named(stream) };
        Ok(StreamQueue { stream, home, active, keep })
    }

    /// The capture under way, if any. Makes its graph keep the memory of a launch, and the status pages of its ranks:
    /// what is replayed when a communicator has gone must not see the page of another one in that place.
    fn keep_captured(&self, parts: &[LaunchPart]) -> Result<Option<Capture>> {
        let capture = self.stream.handle().capture(self.active.primary())?;
        if let Some(capture) = capture {
            let regions = parts.iter().flat_map(|part| part.keep.iter().cloned()).collect();
            let pages = parts.iter().map(|part| Arc::clone(&part.status)).collect();
            self.active.keep_for_graph(capture, (regions, pages))?;
        }
        Ok(capture)
    }

    /// The end of a launch that has just been put here, in this capture if there is one; `marked` is a mark of it, if
    /// there is one.
    fn end(&self, capture: Option<Capture>, marked: Option<Arc<Mark>>) -> Result<Arc<dyn Event>> {
        let stream = self.stream.handle();
        if capture.is_some() {
            return self.active.captured_point(stream);
        }
        let end = marked.map_or_else(|| self.active.mark(stream), Ok)?;
        self.note_end(&end);
        Ok(end)
    }

    /// Notes the end of work on a program's stream: `Active` knows our own streams only.
    fn note_end(&self, end: &Arc<Mark>) {
        if matches!(self.stream, Stream::Named(_)) {
            self.active.under_way(Arc::clone(end));
        }
    }

    /// [`StreamQueue::note_end`] of work for which nobody wants an event.
    fn note(&self) -> Result<()> {
        if let Stream::Named(stream) = self.stream
            && stream.capture(self.active.primary())?.is_none()
        {
            self.active.under_way(self.active.mark(stream)?);
        }
        Ok(())
    }
}

impl Queue for StreamQueue {
    unsafe fn copy(&mut self, from: Place, to: Place) -> Result<()> {
        let homes = [from.home, to.home];
        let fits = homes.contains(&self.home) && homes.iter().all(|home| [Home::Host, self.home].contains(home));
        if !fits || from.bytes != to.bytes {
            return Err(Error::invalid_argument(format!(
                "a queue of {} cannot copy {} bytes of {} to {} bytes of {}",
                self.home, from.bytes, from.home, to.bytes, to.home
            )));
        }
        if to.bytes == 0 {
            return Ok(());
        }
        let primary = self.active.primary();
        let _entered = primary.enter()?;
        let (from, into) = (address(from), address(to));
        // SAFETY: the caller vouches for both places until an event is done that is recorded later.
        let put = unsafe { call!(primary, cuMemcpyAsync(into, from, to.bytes, self.stream.handle().0)) };
        put.map_err(|failure| primary.error(failure))?;
        self.note()
    }

    unsafe fn fold(&mut self, kernel: &Kernel, pass: &Pass<'_>) -> Result<()> {
        if pass.sources.is_empty() || pass.count == 0 {
            return Ok(());
        }
        let count = |operands: usize| u32::try_from(operands).map_err(|_| Error::invalid_argument("too many operands"));
        let (sources, targets) = (count(pass.sources.len())?, count(pass.targets.len())?);
        let work = PassKind::new(kernel, pass.sources.len(), pass.raw, (pass.finish, pass.average));
        let step = work.step(pass.count as u64, (0, sources), targets);
        let _entered = self.active.primary().enter()?;
        self.keep_captured(&[])?;
        let tables = (&[step][..], &arguments::operands_of(pass)[..]);
        // SAFETY: the caller vouches for sources and targets until an event is done that is recorded later.
        unsafe { self.active.launch(self.stream.handle(), work.entry, tables, work.bytes(pass.count as u64)) }?;
        self.note()
    }

    unsafe fn launch(&mut self, parts: Vec<LaunchPart>) -> Result<Arc<dyn Event>> {
        let stream = self.stream.handle();
        let _entered = self.active.primary().enter()?;
        let capture = self.keep_captured(&parts)?;
        let mut marked = None;
        let launched = if parts.iter().any(|part| part.across.is_some()) {
            // SAFETY: the caller's contract.
            unsafe { members::launch(&self.active, stream, parts) }
        } else if polling::polls(&parts) {
            // SAFETY: the caller's contract.
            unsafe { polling::launch(&self.active, stream, &parts) }.map(|end| marked = end)
        } else {
            let launches = self.active.walks().launches(&parts)?;
            let mut all = launches.iter().flat_map(|launches| &**launches);
            all.try_for_each(|LevelLaunch { entry, steps, operands, bytes }| {
                // SAFETY: the caller vouches for all memory of the parts until an event is done that is recorded later.
                // What the parts keep goes when this call returns; `Active::retire` keeps it while this stream works.
                unsafe { self.active.launch(stream, *entry, (steps, operands), *bytes) }
            })
        };
        // Of a launch that has failed, a part may be in the stream.
        let end = self.end(capture, marked);
        launched.and(end)
    }

    fn capture(&mut self) -> Result<Option<CaptureId>> {
        if matches!(self.stream, Stream::Own(_)) {
            // A stream of our own joins a capture only by an event of that capture.
            return Ok(None);
        }
        let primary = self.active.primary();
        let _entered = primary.enter()?;
        Ok(self.stream.handle().capture(primary)?.map(|capture| CaptureId(capture.id)))
    }

    fn enter(&mut self) -> Result<()> {
        let Stream::PerThread(relay) = &self.stream else { return Ok(()) };
        let _entered = self.active.primary().enter()?;
        self.active.hold_up(relay.handle(), &self.active.point(StreamHandle::per_thread())?)
    }

    fn leave(&mut self) -> Result<()> {
        let Stream::PerThread(relay) = &self.stream else { return Ok(()) };
        let _entered = self.active.primary().enter()?;
        self.active.hold_up(StreamHandle::per_thread(), &self.active.point(relay.handle())?)
    }

    fn after(&mut self, event: &Arc<dyn Event>) -> Result<()> {
        let _entered = self.active.primary().enter()?;
        self.active.hold_up(self.stream.handle(), event)
    }

    fn kept_stream(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.keep.clone()
    }

    fn record(&mut self) -> Result<Arc<dyn Event>> {
        let _entered = self.active.primary().enter()?;
        self.active.point(self.stream.handle())
    }

    fn surroundings(&self) -> Option<Arc<dyn Surroundings>> {
        Some(Arc::clone(self.active.primary()) as Arc<dyn Surroundings>)
    }
}

impl Drop for StreamQueue {
    /// Work in the stream goes on without the queue. Memory is not freed until that work is done.
    fn drop(&mut self) {
        // A program's stream may be gone already; `note_end` has noted its work.
        let (Stream::Own(stream) | Stream::PerThread(stream)) = &self.stream else { return };
        if matches!(stream.is_idle(), Ok(true)) {
            return;
        }
        let Ok(_entered) = self.active.primary().enter() else { return };
        // If no event can be made, the driver itself waits for the work when it frees memory.
        if let Ok(mark) = self.active.mark(stream.handle()) {
            self.active.under_way(mark);
        }
    }
}

/// An address as the driver takes it, of the host too.
fn address(place: Place) -> CUdeviceptr {
    place.address.expose_provenance() as CUdeviceptr
}
