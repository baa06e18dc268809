//! Events: points in streams, to wait for and to measure between.

use super::{CUresult, Driver, Outcome};
use crate::schedule::{Event, Reason, Recorded, Work};
use crate::space::state::{Kind, Record};

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: u32 = 2;
/// `CU_EVENT_INTERPROCESS`, which needs `DISABLE_TIMING`.
const INTERPROCESS: u32 = 4;

impl Driver {
    /// `cuEventCreate`.
    pub fn event_create(&self, flags: u32) -> Outcome<u64> {
        let current = self.current()?;
        if flags > 7 || flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        let state = self.space.state();
        let record =
            self.space.record(Record { gpu: current.gpu, ..Record::new(Kind::Event, state.pid(), state.next_id()) })?;
        let mut world = self.engine.lock();
        let handle = world.new_handle();
        world.events.insert(handle, Event { context: current.context, flags, recorded: None, record: Some(record) });
        Ok(handle)
    }

    /// `cuEventDestroy`.
    pub fn event_destroy(&self, handle: u64) -> Outcome {
        let removed = self.engine.lock().events.remove(&handle).ok_or(CUresult::INVALID_HANDLE)?;
        self.forget_captured_event(handle);
        if let Some(record) = removed.record {
            self.space.state().lock().remove(record);
        }
        Ok(())
    }

    /// `cuEventRecord` and `cuEventRecordWithFlags` (1: as a node of a graph).
    pub fn event_record(&self, handle: u64, stream: u64, flags: u32) -> Outcome {
        if flags > 1 {
            return Err(CUresult::INVALID_VALUE);
        }
        let (stream, current) = self.stream(stream)?;
        let context = self.engine.lock().events.get(&handle).map(|event| event.context);
        if context.ok_or(CUresult::INVALID_HANDLE)? != current.context {
            return Err(CUresult::INVALID_HANDLE);
        }
        if self.capture_record(stream, handle, flags == 1)? {
            return Ok(());
        }
        let mut world = self.engine.lock();
        let operation = world.submit(stream, Work::Record { event: handle }, &[], None)?;
        if let Some(event) = world.events.get_mut(&handle) {
            event.recorded = Some(Recorded { operation, at: None });
        }
        self.engine.kick(&mut world);
        Ok(())
    }

    /// `cuEventQuery`: `NOT_READY` until the latest record is done.
    pub fn event_query(&self, handle: u64) -> Outcome {
        let (context, recorded) = self.event(handle)?;
        self.guard_capture()?;
        let world = self.engine.lock();
        world.check_context(context)?;
        if recorded.is_none_or(|recorded| world.is_done(recorded.operation)) {
            return Ok(());
        }
        drop(world);
        self.engine.looked_in_vain(context)?;
        Err(CUresult::NOT_READY)
    }

    /// `cuEventSynchronize`.
    pub fn event_synchronize(&self, handle: u64) -> Outcome {
        let (context, recorded) = self.event(handle)?;
        self.guard_capture()?;
        let work = recorded.map(|recorded| recorded.operation).into_iter().collect();
        self.engine.wait_for(context, work, Reason::Asked)
    }

    /// `cuEventElapsedTime`, in milliseconds.
    pub fn event_elapsed(&self, start: u64, end: u64) -> Outcome<f32> {
        let (_, from) = self.event(start)?;
        let (_, until) = self.event(end)?;
        let world = self.engine.lock();
        let timed = |event: u64| world.events.get(&event).is_some_and(|event| event.flags & DISABLE_TIMING == 0);
        let (Some(from), Some(until)) = (from, until) else { return Err(CUresult::INVALID_HANDLE) };
        if !timed(start) || !timed(end) {
            return Err(CUresult::INVALID_HANDLE);
        }
        match (from.at, until.at) {
            (Some(from), Some(until)) if until >= from => Ok((until - from).as_secs_f32() * 1000.0),
            (Some(from), Some(until)) => Ok(-(from - until).as_secs_f32() * 1000.0),
            _ => Err(CUresult::NOT_READY),
        }
    }

    /// An event's context and latest record.
    fn event(&self, handle: u64) -> Outcome<(u64, Option<Recorded>)> {
        let found = self.engine.lock().events.get(&handle).map(|event| (event.context, event.recorded));
        let found = found.ok_or(CUresult::INVALID_HANDLE)?;
        self.refuse_captured_event(handle)?;
        Ok(found)
    }
}
