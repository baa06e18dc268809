//! A GPU in use: its context with the kernels loaded, a stream for set-up, events to lend, and memory that waits to be
//! freed.
//!
//! Memory whose owner has gone is kept until the work is done that the library had put on the GPU by then: see
//! [`Active::retire`]. Most calls that give memory back to the driver wait for the kernels that run, and a peer's
//! kernel may run until this thread does its part. To avoid that deadlock, they are made only while nothing of the
//! library is under way on any GPU of the process, by turns with launches (`gate`); pieces of chunks are used again
//! without a call.

use std::any::Any;
use std::mem::ManuallyDrop;

use super::driver::context::Primary;
use super::driver::result::call;
use super::driver::stream::{Capture, OwnEvent, OwnStream, StreamHandle};
use super::launch::arguments::{Arguments, FoldOperand, FoldStep, GridShape};
use super::launch::graphs::{Captures, GraphKeep};
use super::launch::kernels::{EntryPoint, Kernels, LoadedKernel, Meets};
use super::launch::polling::Polling;
use super::launch::tables::Tables;
use super::launch::walks::Walks;
use super::memory::allocation::Allocation;
use super::memory::chunks::Chunks;
use crate::device::{Event, Region, StatusPage};
use crate::error::{Error, Result};
use crate::log;
use crate::sync::primitive::{Arc, Mutex, MutexGuard, Weak};
use crate::sys::thread;

/// A GPU that somebody uses.
#[derive(Debug)]
pub(super) struct Active {
    // Fields are dropped in this order: memory that waits to be freed, then the streams and kernels that could use it,
    // then the context.
    state: Mutex<State>,
    /// For ranks that wait on the GPU, once there are some.
    polling: Mutex<Option<Arc<Polling>>>,
    /// For processes that share the GPU, once there are some.
    meets: Mutex<Option<Arc<Meets>>>,
    tables: Tables,
    walks: Walks,
    captures: Captures,
    service: OwnStream,
    chunks: Arc<Chunks>,
    kernels: Kernels,
    capability: (i32, i32),
    multiprocessors: u32,
    primary: Arc<Primary>,
}

/// The part of [`Active`] that changes, behind its lock.
#[derive(Debug, Default)]
struct State {
    retired: Vec<Retired>,
    /// Streams of queues.
    streams: Vec<Weak<OwnStream>>,
    /// Events at the end of work that may be under way on a program's streams, or on streams whose queues have gone.
    ends: Vec<Arc<Mark>>,
    /// Events for the next use.
    spare: Vec<OwnEvent>,
    /// GPUs whose kernels may access this GPU's memory, or host memory that both work in.
    neighbours: Vec<Weak<Active>>,
}

/// Memory whose owner has gone.
#[derive(Debug)]
struct Retired {
    memory: Allocation,
    /// Events at the end of the work that may use it. `None`: it has to wait until nothing is under way.
    until: Option<Vec<Arc<Mark>>>,
}

impl Retired {
    /// Whether no work uses it any more, and no call of the driver is needed to give it back.
    fn is_free(&self) -> bool {
        self.until.as_ref().is_some_and(|until| until.iter().all(|end| matches!(end.is_done(), Ok(true))))
    }
}

/// Events that are kept for the next use, at most: as many as a launch for many ranks takes.
const MOST_SPARE: usize = 256;

impl Active {
    pub(super) fn new(primary: Primary, capability: (i32, i32), multiprocessors: u32) -> Result<Arc<Active>> {
        let primary = Arc::new(primary);
        if !primary.memory_ways().maps {
            log::info!(
                Alloc,
                "GPU {}: the driver maps no memory (virtual memory management), so that an allocation waits for \
                kernels that run: ranks must allocate before any of them calls",
                primary.device()
            );
        }
        let kernels = Kernels::load(&primary, capability)?;
        let service = OwnStream::new(&primary)?;
        let tables = Tables::new(&primary)?;
        Ok(Arc::new(Active {
            state: Mutex::default(),
            polling: Mutex::default(),
            meets: Mutex::default(),
            tables,
            walks: Walks::default(),
            captures: Captures::default(),
            service,
            chunks: Chunks::new(&primary),
            kernels,
            capability,
            multiprocessors,
            primary,
        }))
    }

    /// The interpreter, images and status pages for ranks that wait on the GPU. Call it during set-up only: the first
    /// call allocates memory and loads kernels.
    pub(super) fn polling(&self) -> Result<Arc<Polling>> {
        let mut polling = self.polling.lock();
        if let Some(made) = &*polling {
            return Ok(Arc::clone(made));
        }
        let made = Arc::new(Polling::new(&self.primary, self.capability, self.multiprocessors)?);
        Ok(Arc::clone(polling.insert(made)))
    }

    /// The kernels around calls of several processes. Call it during set-up only: the first call loads them.
    pub(super) fn meets(&self) -> Result<Arc<Meets>> {
        let mut meets = self.meets.lock();
        if let Some(loaded) = &*meets {
            return Ok(Arc::clone(loaded));
        }
        let loaded = Arc::new(Meets::load(&self.primary, self.capability)?);
        Ok(Arc::clone(meets.insert(loaded)))
    }

    /// Memory that `other` uses is kept until kernels of this GPU have ended: they work in it too.
    pub(super) fn works_with(self: &Arc<Active>, other: &Arc<Active>) {
        let mut state = other.lock();
        state.neighbours.retain(|neighbour| neighbour.strong_count() > 0);
        if !state.neighbours.iter().any(|neighbour| std::ptr::eq(neighbour.as_ptr(), Arc::as_ptr(self))) {
            state.neighbours.push(Arc::downgrade(self));
        }
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

    /// Memory for threads of this process.
    pub(super) fn chunks(&self) -> &Arc<Chunks> {
        &self.chunks
    }

    /// What walks through programs have yielded.
    pub(super) fn walks(&self) -> &Walks {
        &self.walks
    }

    /// The stream for set-up. Each user drains it.
    pub(super) fn service(&self) -> &OwnStream {
        &self.service
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
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

    /// An event that is recorded in `stream` now. The stream must not be captured: an event of a capture cannot be used
    /// outside it. The context must be current.
    pub(super) fn mark(self: &Arc<Active>, stream: StreamHandle) -> Result<Arc<Mark>> {
        let spare = self.lock().spare.pop();
        let event = spare.map_or_else(|| OwnEvent::new(&self.primary), Ok)?;
        let mark = Mark { event: Some(event), active: Arc::downgrade(self) };
        mark.event().record(stream)?;
        Ok(Arc::new(mark))
    }

    /// The end of the work that `stream` has now: a mark, or, while the stream is captured, a point for that capture
    /// only. The context must be current.
    pub(super) fn point(self: &Arc<Active>, stream: StreamHandle) -> Result<Arc<dyn Event>> {
        if stream.capture(&self.primary)?.is_none() {
            return Ok(self.mark(stream)?);
        }
        self.captured_point(stream)
    }

    /// The end of the work that a stream has now which is being captured, for that capture only. The context must be
    /// current.
    pub(super) fn captured_point(self: &Arc<Active>, stream: StreamHandle) -> Result<Arc<dyn Event>> {
        let event = OwnEvent::new(&self.primary)?;
        event.record(stream)?;
        Ok(Arc::new(CapturedPoint { event, active: Arc::downgrade(self) }))
    }

    /// Makes a stream wait for an event of one of this GPU's streams, unless the event is already done. The context
    /// must be current.
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

    /// Makes the graph of a capture keep these regions and status pages, and keep this GPU in use. The context must be
    /// current.
    pub(super) fn keep_for_graph(
        self: &Arc<Active>,
        capture: Capture,
        kept: (Vec<Region>, Vec<Arc<StatusPage>>),
    ) -> Result<Weak<GraphKeep>> {
        self.captures.keep(self, capture, kept)
    }

    /// Notes that work may use this GPU's memory until `mark` is done.
    pub(super) fn under_way(&self, mark: Arc<Mark>) {
        let mut state = self.lock();
        // The oldest work ends first. Forget a few marks that are done.
        let done = state.ends.iter().take(FORGOTTEN).take_while(|end| matches!(end.is_done(), Ok(true))).count();
        let forgotten: Vec<Arc<Mark>> = state.ends.drain(..done).collect();
        state.ends.push(mark);
        drop(state);
        // Dropped after the lock is released, because their events go back to the spare ones, which takes the lock.
        drop(forgotten);
    }

    /// Takes memory whose owner has gone. It is given back now if no work of the library is under way, else by a later
    /// call.
    pub(super) fn retire(self: &Arc<Active>, memory: Allocation) {
        let until = matches!(memory, Allocation::Piece(_)).then(|| self.ends_of_all()).flatten();
        self.lock().retired.push(Retired { memory, until });
        self.free_retired();
    }

    /// Events at the end of all work that is under way and may use this GPU's memory; `None` where they cannot be had.
    fn ends_of_all(self: &Arc<Active>) -> Option<Vec<Arc<Mark>>> {
        let mut ends = self.ends()?;
        for neighbour in self.neighbours() {
            ends.extend(neighbour.ends()?);
        }
        Some(ends)
    }

    /// Events at the end of what the library has put on this GPU.
    fn ends(self: &Arc<Active>) -> Option<Vec<Arc<Mark>>> {
        let (streams, mut ends) = self.under_way_now();
        ends.retain(|end| !matches!(end.is_done(), Ok(true)));
        let _entered = self.primary.enter().ok()?;
        for stream in streams {
            // In a capture there is no event to wait for.
            if stream.handle().capture(&self.primary).ok()?.is_some() {
                return None;
            }
            if !stream.is_idle().ok()? {
                ends.push(self.mark(stream.handle()).ok()?);
            }
        }
        Some(ends)
    }

    /// Gives back retired memory that no work uses any more.
    pub(super) fn free_retired(&self) {
        let mut state = self.lock();
        let free: Vec<Retired> = state.retired.extract_if(.., |retired| retired.is_free()).collect();
        let has_more = !state.retired.is_empty();
        drop(state);
        // Dropped after the lock is released, because their events go back to the spare ones, which takes the lock.
        drop(free);
        if !has_more && !self.chunks.has_spare() {
            return;
        }
        let Some(in_use) = super::in_use() else { return };
        match self.primary.gate().free() {
            Some(_nothing_begins) if in_use.iter().all(|active| active.has_ended()) => {
                let is_free = |retired: &mut Retired| !retired.memory.is_open_elsewhere();
                let free: Vec<Retired> = self.lock().retired.extract_if(.., is_free).collect();
                drop(free);
                self.chunks.trim();
                drop(in_use);
            }
            _ => in_use.into_iter().for_each(Active::let_go),
        }
    }

    /// Forgets a GPU of which this thread is no user. If its users have gone meanwhile, all that it had is freed, which
    /// waits for kernels, so a thread of its own does it.
    fn let_go(active: Arc<Active>) {
        if let Some(last) = Arc::into_inner(active) {
            let last = ManuallyDrop::new(last);
            // If no thread starts, the memory leaks: freeing it here could block this thread for ever.
            let _started = thread::spawn("rsccl gpu", move || drop(ManuallyDrop::into_inner(last)));
        }
    }

    fn neighbours(&self) -> Vec<Arc<Active>> {
        self.lock().neighbours.iter().filter_map(Weak::upgrade).collect()
    }

    /// The streams that may have work, and the ends of other work.
    fn under_way_now(&self) -> (Vec<Arc<OwnStream>>, Vec<Arc<Mark>>) {
        let state = self.lock();
        (state.streams.iter().filter_map(Weak::upgrade).collect(), state.ends.clone())
    }

    /// Whether all that the library has put on the GPU is done.
    fn has_ended(&self) -> bool {
        let (streams, ends) = self.under_way_now();
        // A stream that cannot be queried counts as busy.
        streams.iter().all(|stream| matches!(stream.is_idle(), Ok(true)))
            && ends.iter().all(|end| matches!(end.is_done(), Ok(true)))
    }

    /// Blocks and threads of a kernel's launch that moves `bytes`.
    pub(super) fn shape(&self, function: LoadedKernel, bytes: u64) -> GridShape {
        GridShape::of(bytes, function.blocks.saturating_mul(self.multiprocessors))
    }

    /// Launches a kernel on all steps, each of which moves at most `bytes`. The context must be current.
    ///
    /// # Safety
    /// Until the launch is done, the steps' operands must be valid for what the steps read and write.
    pub(super) unsafe fn launch(
        self: &Arc<Active>,
        stream: StreamHandle,
        entry: EntryPoint,
        (steps, operands): (&[FoldStep], &[FoldOperand]),
        bytes: u64,
    ) -> Result<()> {
        let function = self.kernels.function(entry);
        let shape = self.shape(function, bytes);
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
    /// Weak, because `Active` keeps the marks of work that is under way.
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
    /// Always false: captured work runs later, any number of times. The driver is not asked, because the query would
    /// end the capture.
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
