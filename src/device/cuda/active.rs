//! A GPU in use: its context with the kernels loaded, a stream for set-up, events to lend, and memory that waits to be
//! freed.
//!
//! Most calls that free memory wait for kernels that run, and a peer's kernel may run until this thread has done
//! something else. So memory whose owner has gone is kept until all work that the library put on the GPU is done: see
//! [`Active::retire`].

use std::any::Any;

use super::context::Primary;
use super::graphs::{Captures, GraphKeep};
use super::kernels::{EntryPoint, Kernels};
use super::launch::{Arguments, FoldOperand, FoldStep, GridShape};
use super::memory::Allocation;
use super::polling::Polling;
use super::result::{Driver, call};
use super::stream::{Capture, OwnEvent, OwnStream, StreamHandle};
use super::tables::Tables;
use crate::device::{Event, Region};
use crate::error::{Error, Result};
use crate::sync::primitive::{Arc, Mutex, MutexGuard, Weak};

/// A GPU that somebody uses.
#[derive(Debug)]
pub(super) struct Active {
    // Dropped in this order: what waits, then the streams and kernels that could use it, then the context.
    state: Mutex<State>,
    /// Held while memory is freed, which waits for kernels, and while one is launched that may wait for this process.
    gate: Mutex<()>,
    /// For ranks that wait on the GPU, once there are some.
    polling: Mutex<Option<Arc<Polling>>>,
    tables: Tables,
    captures: Captures,
    service: OwnStream,
    kernels: Kernels,
    capability: (i32, i32),
    multiprocessors: u32,
    primary: Arc<Primary>,
}

/// What changes.
#[derive(Debug, Default)]
struct State {
    /// Memory whose owner has gone.
    retired: Vec<Allocation>,
    /// Streams of queues.
    streams: Vec<Weak<OwnStream>>,
    /// Ends of work that may be under way: on a program's streams, and on those of queues that have gone.
    ends: Vec<Arc<Mark>>,
    /// Events that nobody uses now.
    spare: Vec<OwnEvent>,
    /// GPUs whose kernels may be in our memory.
    neighbours: Vec<Weak<Active>>,
}

/// Events that are kept for the next use, at most: as many as a launch for many ranks takes.
const MOST_SPARE: usize = 256;

impl Active {
    pub(super) fn new(
        driver: &'static Driver,
        device: i32,
        capability: (i32, i32),
        multiprocessors: u32,
        user: Arc<()>,
    ) -> Result<Arc<Active>> {
        let primary = Arc::new(Primary::retain(driver, device, user)?);
        let kernels = Kernels::load(&primary, capability)?;
        let service = OwnStream::new(&primary)?;
        let tables = Tables::new(&primary)?;
        Ok(Arc::new(Active {
            state: Mutex::default(),
            gate: Mutex::default(),
            polling: Mutex::default(),
            tables,
            captures: Captures::default(),
            service,
            kernels,
            capability,
            multiprocessors,
            primary,
        }))
    }

    /// What ranks need that wait on the GPU. For set-up: the first call allocates and loads.
    pub(super) fn polling(&self) -> Result<Arc<Polling>> {
        // What the lock guards is whole after every statement, so a panic elsewhere does not spoil it.
        let mut polling = self.polling.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(made) = &*polling {
            return Ok(Arc::clone(made));
        }
        let made = Arc::new(Polling::new(&self.primary, self.capability, self.multiprocessors)?);
        Ok(Arc::clone(polling.insert(made)))
    }

    /// Lets kernels of this GPU work in the memory of `other`, and keeps memory there until they have ended.
    pub(super) fn reach(self: &Arc<Active>, other: &Arc<Active>) -> Result<()> {
        self.primary.reach(&other.primary)?;
        let mut state = other.lock();
        state.neighbours.retain(|neighbour| neighbour.strong_count() > 0);
        if !state.neighbours.iter().any(|neighbour| std::ptr::eq(neighbour.as_ptr(), Arc::as_ptr(self))) {
            state.neighbours.push(Arc::downgrade(self));
        }
        Ok(())
    }

    pub(super) fn primary(&self) -> &Arc<Primary> {
        &self.primary
    }

    #[cfg(test)]
    pub(super) fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    #[cfg(test)]
    pub(super) fn count_retired(&self) -> usize {
        self.lock().retired.len()
    }

    /// The stream for set-up; whoever uses it drains it.
    pub(super) fn service(&self) -> &OwnStream {
        &self.service
    }

    /// What the lock guards is whole after every statement, so a panic elsewhere does not spoil it.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// A stream for a queue.
    pub(super) fn stream(&self) -> Result<Arc<OwnStream>> {
        self.free_retired();
        let stream = Arc::new(OwnStream::new(&self.primary)?);
        let mut state = self.lock();
        state.streams.retain(|stream| stream.strong_count() > 0);
        state.streams.push(Arc::downgrade(&stream));
        Ok(stream)
    }

    /// An event that is recorded in `stream` now. Only for streams that do not capture: an event of a capture is of no
    /// use elsewhere. The context is current.
    pub(super) fn mark(self: &Arc<Active>, stream: StreamHandle) -> Result<Arc<Mark>> {
        let spare = self.lock().spare.pop();
        let event = spare.map_or_else(|| OwnEvent::new(&self.primary), Ok)?;
        let mark = Mark { event: Some(event), active: Arc::downgrade(self) };
        mark.event().record(stream)?;
        Ok(Arc::new(mark))
    }

    /// Where `stream` is now: a mark, or, while it is captured, a point that is of use in that capture alone. The
    /// context is current.
    pub(super) fn point(self: &Arc<Active>, stream: StreamHandle) -> Result<Arc<dyn Event>> {
        if stream.capture(&self.primary)?.is_none() {
            return Ok(self.mark(stream)?);
        }
        let event = OwnEvent::new(&self.primary)?;
        event.record(stream)?;
        Ok(Arc::new(CapturedPoint { event, active: Arc::downgrade(self) }))
    }

    /// Lets a stream wait for an event of this GPU's streams, or finds that it is done. The context is current.
    pub(super) fn hold_up(self: &Arc<Active>, stream: StreamHandle, event: &Arc<dyn Event>) -> Result<()> {
        let any: &dyn Any = &**event;
        let is_mine = |active: &Weak<Active>| std::ptr::eq(active.as_ptr(), Arc::as_ptr(self));
        match (any.downcast_ref::<Mark>(), any.downcast_ref::<CapturedPoint>()) {
            (Some(mark), _) if is_mine(&mark.active) => mark.event().holds_up(stream),
            (_, Some(point)) if is_mine(&point.active) => point.event.holds_up(stream),
            _ if event.is_done()? => Ok(()),
            _ => Err(Error::internal("a stream cannot wait for another device's event: wait for it before")),
        }
    }

    /// Has the graph of a capture keep `regions` and this GPU in use. The context is current.
    pub(super) fn keep_for_graph(
        self: &Arc<Active>,
        capture: Capture,
        regions: Vec<Region>,
    ) -> Result<Weak<GraphKeep>> {
        self.captures.keep(self, capture, regions)
    }

    /// Work that ends with `mark` may use memory of ours.
    pub(super) fn under_way(&self, mark: Arc<Mark>) {
        let mut state = self.lock();
        // The oldest ends first: what is done is forgotten, a few at a time.
        let done = state.ends.iter().take(FORGOTTEN).take_while(|end| matches!(end.is_done(), Ok(true))).count();
        let forgotten: Vec<Arc<Mark>> = state.ends.drain(..done).collect();
        state.ends.push(mark);
        drop(state);
        // They go back to the spare events, which takes the lock.
        drop(forgotten);
    }

    /// Takes memory whose owner has gone: it is freed at once if nothing of ours is under way, else by a later call
    /// that waits for the GPU anyhow.
    pub(super) fn retire(&self, memory: Allocation) {
        self.lock().retired.push(memory);
        self.free_retired();
    }

    /// Held while a kernel is launched that may wait for this process: no memory is freed meanwhile.
    pub(super) fn gate(&self) -> MutexGuard<'_, ()> {
        // It guards no data.
        self.gate.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Frees what was retired, unless work is under way.
    pub(super) fn free_retired(&self) {
        if self.lock().retired.is_empty() {
            return;
        }
        let _nothing_begins = self.gate();
        if !self.is_idle() {
            return;
        }
        let retired = std::mem::take(&mut self.lock().retired);
        drop(retired);
    }

    /// Whether all is done that the library has put on the GPU, and on those that reach its memory.
    fn is_idle(&self) -> bool {
        let neighbours: Vec<Arc<Active>> = self.lock().neighbours.iter().filter_map(Weak::upgrade).collect();
        self.has_ended() && neighbours.iter().all(|neighbour| neighbour.has_ended())
    }

    /// Whether all that the library has put on the GPU is done.
    fn has_ended(&self) -> bool {
        let (streams, ends) = {
            let state = self.lock();
            let streams: Vec<Arc<OwnStream>> = state.streams.iter().filter_map(Weak::upgrade).collect();
            (streams, state.ends.clone())
        };
        // Where nothing can be asked, nothing can be freed either.
        streams.iter().all(|stream| matches!(stream.is_idle(), Ok(true)))
            && ends.iter().all(|end| matches!(end.is_done(), Ok(true)))
    }

    /// Launches a kernel on all steps, which move `bytes` each at most. The context is current.
    ///
    /// # Safety
    /// Until the launch is done, the steps' operands are good for what the steps read and write.
    pub(super) unsafe fn launch(
        self: &Arc<Active>,
        stream: StreamHandle,
        entry: EntryPoint,
        (steps, operands): (&[FoldStep], &[FoldOperand]),
        bytes: u64,
    ) -> Result<()> {
        let function = self.kernels.function(entry);
        let shape = GridShape::of(bytes, function.blocks.saturating_mul(self.multiprocessors));
        let start = |mut arguments: Arguments| {
            let mut used = arguments.bytes();
            let parameters = arguments.as_mut_ptr().cast();
            let mut extra = [POINTER, parameters, SIZE, (&raw mut used).cast(), END];
            let GridShape { blocks, threads } = shape;
            // SAFETY: the function is loaded; the parameter has the form of `Arguments` in kernels/abi.h, and is copied
            // by the call; the caller vouches for what the tables name.
            let launched = unsafe {
                call!(
                    self.primary,
                    cuLaunchKernel(
                        function.handle,
                        blocks,
                        1,
                        1,
                        threads,
                        1,
                        1,
                        0,
                        stream.0,
                        std::ptr::null_mut(),
                        extra.as_mut_ptr()
                    )
                )
            };
            launched.map_err(|failure| self.primary.error(failure))
        };
        match Arguments::inline(steps, operands) {
            Some(arguments) => start(arguments),
            None => self.tables.launch(self, stream, (steps, operands), start),
        }
    }
}

/// Ends that one launch looks at to forget them: more than it adds.
const FORGOTTEN: usize = 4;
/// `CU_LAUNCH_PARAM_BUFFER_POINTER`, `CU_LAUNCH_PARAM_BUFFER_SIZE`, `CU_LAUNCH_PARAM_END`
const POINTER: *mut std::ffi::c_void = std::ptr::without_provenance_mut(1);
const SIZE: *mut std::ffi::c_void = std::ptr::without_provenance_mut(2);
const END: *mut std::ffi::c_void = std::ptr::null_mut();

/// A point in a stream, with an event that is lent to it.
#[derive(Debug)]
pub(super) struct Mark {
    /// `None` only while it is dropped.
    event: Option<OwnEvent>,
    /// Not more: what is under way would keep what keeps it.
    active: Weak<Active>,
}

impl Mark {
    fn event(&self) -> &OwnEvent {
        self.event.as_ref().expect("there until it is dropped")
    }
}

impl Event for Mark {
    fn is_done(&self) -> Result<bool> {
        self.event().is_done()
    }
}

/// A point in a stream that is captured, with an event that is never used outside the capture.
#[derive(Debug)]
struct CapturedPoint {
    event: OwnEvent,
    active: Weak<Active>,
}

impl Event for CapturedPoint {
    /// What is captured runs later, and any number of times. The driver is not asked, for that would end the capture.
    fn is_done(&self) -> Result<bool> {
        Ok(false)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let Some(active) = self.active.upgrade() else { return };
        let Some(event) = self.event.take() else { return };
        let mut state = active.lock();
        if state.spare.len() < MOST_SPARE {
            state.spare.push(event);
        }
    }
}
