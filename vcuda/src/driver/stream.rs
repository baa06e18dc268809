//! Streams, host functions and stream memory operations.

use super::{CUresult, Current, Driver, Outcome};
use crate::schedule::{Memop, Reason, Work};
use crate::space::Side;
use crate::space::state::{Kind, Record};

/// `CU_STREAM_LEGACY`.
const LEGACY: u64 = 1;
/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: u64 = 2;
/// The most urgent priority; 0 is the least.
pub(super) const GREATEST_PRIORITY: i32 = -5;
/// Memory operations of one batch, at most.
const BATCH: usize = 255;
/// `CU_STREAM_WAIT_VALUE_FLUSH`.
const WAIT_FLUSH: u32 = 1 << 30;

impl Driver {
    /// The stream behind a handle (0 and 1: the legacy one, 2: this thread's), and its context.
    pub(super) fn stream(&self, handle: u64) -> Outcome<(u64, Current)> {
        if handle > PER_THREAD {
            let world = self.engine.lock();
            let stream = world.streams.get(&handle).ok_or(CUresult::INVALID_HANDLE)?;
            return Ok((handle, self.usable(&world, stream.context)?));
        }
        let current = self.current()?;
        let mut world = self.engine.lock();
        let context = world.contexts.get(&current.context).ok_or(CUresult::CONTEXT_IS_DESTROYED)?;
        if handle <= LEGACY {
            return Ok((context.null_stream, current));
        }
        let thread = std::thread::current().id();
        if let Some(stream) = context.thread_streams.get(&thread) {
            return Ok((*stream, current));
        }
        let stream = world.add_stream(current.context, 0, 0, None).ok_or(CUresult::CONTEXT_IS_DESTROYED)?;
        if let Some(context) = world.contexts.get_mut(&current.context) {
            context.thread_streams.insert(thread, stream);
        }
        Ok((stream, current))
    }

    /// `cuStreamCreate` and `cuStreamCreateWithPriority`.
    pub fn stream_create(&self, flags: u32, priority: i32) -> Outcome<u64> {
        let current = self.current()?;
        if flags > 1 {
            return Err(CUresult::INVALID_VALUE);
        }
        let state = self.space.state();
        let record = self
            .space
            .record(Record { gpu: current.gpu, ..Record::new(Kind::Stream, state.pid(), state.next_id()) })?;
        let priority = priority.clamp(GREATEST_PRIORITY, 0);
        let made = self.engine.lock().add_stream(current.context, flags, priority, Some(record));
        made.ok_or(CUresult::CONTEXT_IS_DESTROYED)
    }

    /// `cuStreamDestroy`: what the stream has still goes on.
    pub fn stream_destroy(&self, handle: u64) -> Outcome {
        if handle <= PER_THREAD {
            return Err(CUresult::INVALID_HANDLE);
        }
        self.invalidate_capture_of(handle);
        let removed = self.engine.lock().streams.remove(&handle).ok_or(CUresult::INVALID_HANDLE)?;
        if let Some(record) = removed.record {
            self.space.state().lock().remove(record);
        }
        Ok(())
    }

    /// `cuStreamSynchronize`.
    pub fn stream_synchronize(&self, handle: u64) -> Outcome {
        let (stream, current) = self.stream(handle)?;
        self.refuse_capturing(stream)?;
        let last = self.work_of(stream);
        self.engine.wait_for(current.context, last, Reason::Asked)
    }

    /// `cuStreamQuery`: `NOT_READY` while there is work.
    pub fn stream_query(&self, handle: u64) -> Outcome {
        let (stream, current) = self.stream(handle)?;
        self.refuse_capturing(stream)?;
        let last = self.work_of(stream);
        let world = self.engine.lock();
        if last.iter().all(|last| world.is_done(*last)) {
            return world.check_context(current.context);
        }
        drop(world);
        self.engine.looked_in_vain(current.context)?;
        Err(CUresult::NOT_READY)
    }

    /// The last work of a stream; the legacy stream stands for all blocking streams.
    fn work_of(&self, stream: u64) -> Vec<u64> {
        let world = self.engine.lock();
        let Some(line) = world.streams.get(&stream) else { return Vec::new() };
        if !line.legacy {
            return vec![line.last];
        }
        let of_context = world.streams.values().filter(|other| other.context == line.context && other.is_blocking());
        of_context.map(|other| other.last).collect()
    }

    /// `cuStreamWaitEvent`: the stream waits for the event's latest record.
    pub fn stream_wait_event(&self, handle: u64, event: u64, flags: u32) -> Outcome {
        if flags > 1 {
            return Err(CUresult::INVALID_VALUE);
        }
        let (stream, _) = self.stream(handle)?;
        if !self.engine.lock().events.contains_key(&event) {
            return Err(CUresult::INVALID_HANDLE);
        }
        if self.capture_wait(stream, event, flags == 1)? {
            return Ok(());
        }
        let recorded = self.engine.lock().events.get(&event).and_then(|event| event.recorded);
        match recorded {
            None => Ok(()),
            Some(recorded) => self.engine.submit(stream, Work::Mark, &[recorded.operation]).map(|_| ()),
        }
    }

    /// `cuStreamGetCtx`.
    pub fn stream_context(&self, handle: u64) -> Outcome<u64> {
        self.stream(handle).map(|(_, current)| current.context)
    }

    /// `cuStreamGetFlags`.
    pub fn stream_flags(&self, handle: u64) -> Outcome<u32> {
        let (stream, _) = self.stream(handle)?;
        Ok(self.engine.lock().streams.get(&stream).map_or(0, |stream| stream.flags))
    }

    /// `cuStreamGetPriority`.
    pub fn stream_priority(&self, handle: u64) -> Outcome<i32> {
        let (stream, _) = self.stream(handle)?;
        Ok(self.engine.lock().streams.get(&stream).map_or(0, |stream| stream.priority))
    }

    /// `cuStreamGetId`.
    pub fn stream_id(&self, handle: u64) -> Outcome<u64> {
        self.stream(handle).map(|(stream, _)| stream >> 4)
    }

    /// `cuLaunchHostFunc`.
    pub fn launch_host_function(&self, handle: u64, function: usize, data: usize) -> Outcome {
        self.stream(handle)?;
        if function == 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        self.enqueue(handle, Work::Host { function, data }).map(|_| ())
    }

    /// Memory operations of version 2, one or a batch.
    pub fn memops(&self, handle: u64, list: Vec<Memop>) -> Outcome {
        self.stream(handle)?;
        if list.len() > BATCH {
            return Err(CUresult::INVALID_VALUE);
        }
        for memop in &list {
            self.check_memop(*memop)?;
        }
        if list.is_empty() {
            return Ok(());
        }
        self.enqueue(handle, Work::Memops { list, done: 0 }).map(|_| ())
    }

    fn check_memop(&self, memop: Memop) -> Outcome {
        let (address, wide, how) = match memop {
            Memop::Write { address, wide, .. } => (address, wide, 0),
            Memop::Wait { address, wide, how, .. } => (address, wide, how),
            Memop::Barrier => return Ok(()),
        };
        if how & WAIT_FLUSH != 0 {
            return Err(CUresult::NOT_SUPPORTED);
        }
        let aligned = address.is_multiple_of(if wide { 8 } else { 4 });
        let exists = self.space.piece(address).is_some() && self.space.side(address) != Side::Pageable;
        if how <= 3 && aligned && exists { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
    }
}
