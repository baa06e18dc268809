//! The objects that are scheduled: contexts with their queues, streams, events, and the work that is not done.

use std::collections::{HashMap, VecDeque};
use std::thread::ThreadId;
use std::time::Instant;

use super::Surroundings;
use super::order::Operation;
use super::residency::Gpu;
use super::waits::HostWait;
use crate::driver::{CUresult, Outcome};
use crate::space::state::RecordId;

/// Everything under the engine's lock.
#[derive(Debug)]
pub struct World {
    /// Contexts by handle.
    pub contexts: HashMap<u64, Context>,
    /// Streams by handle.
    pub streams: HashMap<u64, Stream>,
    /// Events by handle.
    pub events: HashMap<u64, Event>,
    pub(super) operations: HashMap<u64, Operation>,
    pub(super) next_operation: u64,
    pub(super) gpus: Vec<Gpu>,
    /// Kernels that have started and have no grid yet.
    pub(super) pending_kernels: VecDeque<u64>,
    /// Copies and fills that may run.
    pub(super) transfers: VecDeque<u64>,
    /// Host functions that may be called.
    pub(super) host_calls: VecDeque<u64>,
    /// Blocks and transfers that workers have in hand, outside the lock: they touch memory.
    pub(super) in_hand: usize,
    pub(super) waits: HashMap<u64, HostWait>,
    pub(super) next_wait: u64,
    /// Since when calls that only look have found nothing new, and at which count of moves.
    pub(super) looked: Option<(u64, Instant)>,
    /// Work has ended since those who wait for some were woken.
    pub(super) has_news: bool,
    next_handle: u64,
}

/// A context.
#[derive(Debug)]
pub struct Context {
    /// Its GPU.
    pub gpu: u32,
    /// The flags it was made with.
    pub flags: u32,
    /// Whether it is the device's primary context.
    pub primary: bool,
    /// The error that a kernel or copy has met: all calls answer it from then on.
    pub error: Option<CUresult>,
    /// The legacy stream.
    pub null_stream: u64,
    /// Streams per thread.
    pub thread_streams: HashMap<ThreadId, u64>,
    /// Limits that were set (`cuCtxSetLimit`).
    pub limits: HashMap<u32, u64>,
    /// Its record; none for a primary context.
    pub record: Option<RecordId>,
    pub(super) queues: Vec<VecDeque<u64>>,
    next_queue: usize,
}

/// A stream.
#[derive(Debug)]
pub struct Stream {
    /// Its context.
    pub context: u64,
    /// The flags it was made with.
    pub flags: u32,
    /// Its priority, lower first.
    pub priority: i32,
    /// Whether it is the legacy stream of its context.
    pub legacy: bool,
    /// Its record; none for the streams that a context has by itself.
    pub record: Option<RecordId>,
    /// Its hardware queue, fixed when it was made.
    pub(super) queue: usize,
    /// The last work added, 0 for none.
    pub last: u64,
}

/// An event.
#[derive(Debug)]
pub struct Event {
    /// Its context.
    pub context: u64,
    /// The flags it was made with.
    pub flags: u32,
    /// The latest record.
    pub recorded: Option<Recorded>,
    /// Its record in the state.
    pub record: Option<RecordId>,
}

/// A record of an event in a stream.
#[derive(Debug, Clone, Copy)]
pub struct Recorded {
    /// The work that records it.
    pub operation: u64,
    /// When that was done.
    pub at: Option<Instant>,
}

/// `CU_STREAM_NON_BLOCKING`.
pub(crate) const NON_BLOCKING: u32 = 1;

impl World {
    pub(super) fn new(around: &Surroundings) -> World {
        World {
            contexts: HashMap::new(),
            streams: HashMap::new(),
            events: HashMap::new(),
            operations: HashMap::new(),
            next_operation: 0,
            gpus: around.machine.gpus.iter().map(Gpu::new).collect(),
            pending_kernels: VecDeque::new(),
            transfers: VecDeque::new(),
            host_calls: VecDeque::new(),
            in_hand: 0,
            waits: HashMap::new(),
            next_wait: 0,
            looked: None,
            has_news: false,
            next_handle: 0x10_0000,
        }
    }

    /// A handle that no other object of the process has.
    pub fn new_handle(&mut self) -> u64 {
        self.next_handle += 0x10;
        self.next_handle
    }

    /// Makes a context with its legacy stream.
    pub fn add_context(&mut self, around: &Surroundings, gpu: u32, flags: u32, record: Option<RecordId>) -> u64 {
        let id = self.new_handle();
        let context = Context {
            gpu,
            flags,
            primary: record.is_none(),
            error: None,
            null_stream: 0,
            thread_streams: HashMap::new(),
            limits: HashMap::new(),
            record,
            queues: vec![VecDeque::new(); around.conduct.connections],
            next_queue: 0,
        };
        self.contexts.insert(id, context);
        let null = self.add_stream(id, 0, 0, None);
        if let Some(stream) = null.and_then(|null| self.streams.get_mut(&null)) {
            stream.legacy = true;
        }
        if let Some(context) = self.contexts.get_mut(&id) {
            context.null_stream = null.unwrap_or(0);
        }
        id
    }

    /// Takes a context away, with its streams, events and work.
    pub fn remove_context(&mut self, id: u64) -> Option<(Context, Vec<RecordId>)> {
        self.abandon(id);
        let context = self.contexts.remove(&id)?;
        let mut records: Vec<RecordId> = context.record.into_iter().collect();
        let streams = self.streams.values().filter(|stream| stream.context == id).filter_map(|stream| stream.record);
        records.extend(streams);
        let events = self.events.values().filter(|event| event.context == id).filter_map(|event| event.record);
        records.extend(events);
        self.streams.retain(|_, stream| stream.context != id);
        self.events.retain(|_, event| event.context != id);
        Some((context, records))
    }

    /// Makes a stream; `None` if the context is gone.
    pub fn add_stream(&mut self, context: u64, flags: u32, priority: i32, record: Option<RecordId>) -> Option<u64> {
        let id = self.new_handle();
        let owner = self.contexts.get_mut(&context)?;
        let queue = owner.next_queue;
        owner.next_queue = (queue + 1) % owner.queues.len();
        self.streams.insert(id, Stream { context, flags, priority, legacy: false, record, queue, last: 0 });
        Some(id)
    }

    /// The error of a context, if it has met one.
    ///
    /// # Errors
    ///
    /// That error; `CONTEXT_IS_DESTROYED` if the context is gone.
    pub fn check_context(&self, id: u64) -> Outcome {
        match self.contexts.get(&id) {
            None => Err(CUresult::CONTEXT_IS_DESTROYED),
            Some(Context { error: Some(error), .. }) => Err(*error),
            Some(_) => Ok(()),
        }
    }

    /// Whether a piece of work is done (or was never added).
    pub fn is_done(&self, operation: u64) -> bool {
        !self.operations.contains_key(&operation)
    }

    /// The work of a context that is not done.
    pub fn unfinished(&self, context: u64) -> Vec<u64> {
        let of_context = self.operations.values().filter(|operation| operation.context == context);
        of_context.map(|operation| operation.id).collect()
    }

    /// The kernels of a context that have started and are not done.
    pub fn running_kernels(&self, context: u64) -> Vec<u64> {
        let kernels = self.operations.values().filter(|operation| operation.is_running_kernel());
        kernels.filter(|kernel| kernel.context == context).map(|kernel| kernel.id).collect()
    }

    /// Whether no kernel and no copy of this process runs: memory may be unmapped.
    pub fn is_idle(&self) -> bool {
        // Workers may still be at work for a context that has failed.
        self.operations.is_empty() && self.in_hand == 0
    }

    pub(super) fn has_host_calls(&self) -> bool {
        !self.host_calls.is_empty()
    }
}

impl Stream {
    /// Whether it keeps order with the legacy stream.
    pub fn is_blocking(&self) -> bool {
        self.flags & NON_BLOCKING == 0
    }
}
