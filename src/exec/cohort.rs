//! Ranks that share a device: their programs run in one launch.
//!
//! Two launches on one device may run one after the other, so a program that waits for a program of another launch
//! could wait for ever. Therefore the ranks of a communicator that share a device, its cohort, meet on the host in each
//! call, and the last of them launches the programs of all. Events order the launch after the work that each rank's
//! stream held before, and before the work that comes later. Programs on different devices wait for each other on the
//! devices.

use crate::device::records::LaunchPart;
use crate::device::{self, CaptureId, Event, Home, Place, Queue, StatusPage, Surroundings};
use crate::error::{Error, Result};
use crate::exec::rendezvous::captured_apart;
use crate::exec::stream_callers::StreamCallers;
use crate::sync::primitive::{Arc, Mutex, MutexGuard};
use crate::sync::{AbortFlag, HookSlot};
use crate::types::Rank;

/// A stream of a device: it does the work that is put into it in that order. Clones are the same stream.
///
/// A collective that is called on a stream ([`crate::Communicator::on`]) returns when it has been put there, and runs
/// when what the stream held before is done.
#[derive(Debug, Clone)]
pub struct DeviceStream {
    queue: Arc<Mutex<Box<dyn Queue>>>,
    surroundings: Option<Arc<dyn Surroundings>>,
    home: Home,
    callers: Arc<StreamCallers>,
}

// Programs that catch panics around calls on a stream count on it.
#[cfg(not(loom))]
const _: () = {
    const fn is_unwind_safe<T: std::panic::UnwindSafe + std::panic::RefUnwindSafe>() {}
    is_unwind_safe::<DeviceStream>();
};

impl DeviceStream {
    /// A new stream of device number `device` of this process.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where there is no such device; those of the device.
    pub fn new(device: u32) -> Result<DeviceStream> {
        let home = Home::Device(crate::device::DeviceId(device));
        Ok(DeviceStream::of(home, device::of(home)?.queue()?))
    }

    /// The stream that puts work into `queue`.
    pub(crate) fn of(home: Home, queue: Box<dyn Queue>) -> DeviceStream {
        let surroundings = queue.surroundings();
        DeviceStream { queue: Arc::new(Mutex::new(queue)), surroundings, home, callers: Arc::default() }
    }

    /// Where it works.
    pub(crate) fn home(&self) -> Home {
        self.home
    }

    /// A call of the communicator of this flag, hook and page was put into the stream, or `captured` from it.
    pub(crate) fn has_call_of(&self, of: (&AbortFlag, &HookSlot), status: &Arc<StatusPage>, captured: bool) {
        self.callers.add(of, status, captured);
    }

    /// Whether a wait for the stream has hooks to call.
    pub(super) fn has_hooks(&self) -> bool {
        self.callers.has_hooks()
    }

    /// One turn of a wait for the stream: calls the hooks of the communicators whose calls it has got. They have their
    /// own threads, or none: what moves their data is not at hand here.
    pub(super) fn turn(&self) {
        self.callers.turn();
    }

    /// Says, once all that was put into the stream is done, whether calls of a communicator may have ended early.
    ///
    /// # Errors
    /// What has ended the communicator.
    pub(super) fn check_calls(&self) -> Result<()> {
        self.callers.check()
    }

    /// Locks its queue, to ask it something or to put work into it. Callers hold the lock for that long only.
    pub(crate) fn queue(&self) -> MutexGuard<'_, Box<dyn Queue>> {
        self.queue.lock()
    }

    /// An event that is done when all that was put into the stream before is done.
    pub(crate) fn record(&self) -> Result<Arc<dyn Event>> {
        self.queue().record()
    }

    /// The capture that the stream is part of, if any.
    pub(crate) fn capture(&self) -> Result<Option<CaptureId>> {
        self.queue().capture()
    }

    /// Runs `put`, which puts work into the stream. It must run on the program's thread, because a per-thread stream
    /// can be named by its own thread only.
    pub(crate) fn on_thread<T>(&self, put: impl FnOnce() -> Result<T>) -> Result<T> {
        self.queue().enter()?;
        let result = put();
        // After a failure too, the thread's stream must wait for what was put there.
        let left = self.queue().leave();
        result.and_then(|value| left.map(|()| value))
    }

    /// Runs `put`, which makes several calls of the device and does not wait: waits may call the program, by its log or
    /// hooks, which would find the thread as the device's calls need it.
    pub(crate) fn at_once<T>(&self, put: impl FnOnce() -> Result<T>) -> Result<T> {
        let Some(surroundings) = &self.surroundings else { return put() };
        let (mut put, mut result) = (Some(put), None);
        surroundings.around(&mut || result = put.take().map(|put| put()));
        result.unwrap_or_else(|| Err(Error::internal("a device has called nothing in its surroundings")))
    }

    /// Puts a copy into the stream.
    ///
    /// # Safety
    /// As [`Queue::copy`].
    pub(crate) unsafe fn copy(&self, from: Place, to: Place) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { self.queue().copy(from, to) }
    }

    /// Refuses to wait for a stream that is being captured: the wait would never end, and the captured work would
    /// outlive the caller's borrow of its buffers.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidUsage`] while the stream is captured; those of the device.
    pub(crate) fn check_runs(&self) -> Result<()> {
        if self.capture()?.is_some() {
            return Err(Error::invalid_usage(
                "the stream is being captured: nothing can wait for it, or copy host memory, until the capture ends",
            ));
        }
        Ok(())
    }

    /// Whether both are the same stream.
    pub(crate) fn is(&self, other: &DeviceStream) -> bool {
        Arc::ptr_eq(&self.queue, &other.queue)
    }
}

/// The ranks of a communicator that share a device.
#[derive(Debug)]
pub struct Cohort {
    members: Vec<Rank>,
    meeting: Mutex<Meeting>,
}

/// The last launch, which the next one follows.
#[derive(Debug)]
pub struct Last {
    stream: DeviceStream,
    done: Arc<dyn Event>,
    /// The capture in which it was recorded, if any: only work of the same capture can wait for its event.
    capture: Option<CaptureId>,
}

/// A call that some members have made and others have not.
#[derive(Debug, Default)]
struct Meeting {
    /// Launches so far.
    launches: u64,
    /// What each member brought, by its place.
    arrived: Vec<Option<(LaunchPart, DeviceStream)>>,
    /// The last launch. All launches use the same words of device memory, so each follows the one before, whatever
    /// their streams.
    last: Option<Last>,
    /// The error of the last launch, for the members that waited for it. All of them have read it before the next
    /// launch.
    refused: Option<Error>,
}

impl Cohort {
    /// The cohort of these ranks, in order.
    pub fn new(members: Vec<Rank>) -> Cohort {
        let arrived = members.iter().map(|_| None).collect();
        Cohort { members, meeting: Mutex::new(Meeting { arrived, ..Meeting::default() }) }
    }

    /// Launches the program of `member` on its stream, together with the programs of the others, when all have come.
    /// `turn` is one turn of the wait for them; its argument is the list of members that are missing. The parts are of
    /// programs that were lowered from calls. Returns the end of the launch.
    ///
    /// # Errors
    /// Of `turn`: then nothing of this member is launched, unless the last of the others has come meanwhile. Of the
    /// device, for all members.
    pub fn launch(
        &self,
        member: Rank,
        (part, stream): (LaunchPart, &DeviceStream),
        turn: &mut dyn FnMut(&[Rank]) -> Result<()>,
    ) -> Result<Arc<dyn Event>> {
        let place = self.members.binary_search(&member).map_err(|_| Error::internal("no member of this cohort"))?;
        let mut meeting = self.meeting();
        let launches = meeting.launches;
        meeting.arrived[place] = Some((part, stream.clone()));
        if meeting.arrived.iter().all(Option::is_some) {
            let all = meeting.arrived.iter_mut().filter_map(Option::take).collect();
            // SAFETY: `Buffers` and `Message` vouch for users' memory until the streams are done, and a launch keeps
            // alive what it can. Words, scratch and slots are the communicator's own, and its launches follow each
            // other on each device.
            let result = unsafe { launch(all, &mut meeting.last) };
            meeting.launches += 1;
            meeting.refused = result.err();
            return meeting.outcome();
        }
        loop {
            let missing: Vec<Rank> = meeting.missing(&self.members);
            drop(meeting);
            let looked = turn(&missing);
            meeting = self.meeting();
            if meeting.launches > launches {
                return meeting.outcome();
            }
            if let Err(error) = looked {
                meeting.arrived[place] = None;
                return Err(error);
            }
        }
    }

    /// Whether it is the cohort of one rank, whose launches wait for nobody on the host.
    pub fn is_alone(&self) -> bool {
        self.members.len() == 1
    }

    /// Whether a rank is a member.
    pub fn has(&self, rank: Rank) -> bool {
        self.members.binary_search(&rank).is_ok()
    }

    fn meeting(&self) -> MutexGuard<'_, Meeting> {
        self.meeting.lock()
    }
}

/// Launches the program of one rank alone, after the `last` one: for messages, which other ranks of the device need not
/// have called. The part is of a program that was lowered from calls. Returns the end of the launch.
///
/// # Errors
/// Of the device.
pub fn launch_alone(part: LaunchPart, stream: &DeviceStream, last: &mut Option<Last>) -> Result<Arc<dyn Event>> {
    // SAFETY: as in `Cohort::launch`.
    unsafe { launch(vec![(part, stream.clone())], last) }?;
    end_of(last.as_ref())
}

fn end_of(last: Option<&Last>) -> Result<Arc<dyn Event>> {
    last.map(|last| Arc::clone(&last.done)).ok_or_else(|| Error::internal("a launch without an end"))
}

impl Meeting {
    /// The end of the last launch, or its error.
    fn outcome(&self) -> Result<Arc<dyn Event>> {
        self.refused.as_ref().map_or_else(|| end_of(self.last.as_ref()), |error| Err(error.duplicate()))
    }

    fn missing(&self, members: &[Rank]) -> Vec<Rank> {
        let missing = members.iter().zip(&self.arrived).filter(|(_, arrived)| arrived.is_none());
        missing.map(|(member, _)| *member).collect()
    }
}

/// One launch on the stream of the first member. It runs after the work that all the streams hold now, and before the
/// work that they get later.
///
/// # Safety
/// As [`Queue::launch`].
unsafe fn launch(arrived: Vec<(LaunchPart, DeviceStream)>, last: &mut Option<Last>) -> Result<()> {
    let (parts, streams): (Vec<LaunchPart>, Vec<DeviceStream>) = arrived.into_iter().unzip();
    let (leader, streams) = streams.split_first().ok_or_else(|| Error::internal("a launch without ranks"))?;
    // SAFETY: the caller's contract.
    leader.at_once(|| unsafe { launch_on(leader, parts, streams, last) })
}

/// [`launch`] on the stream of the first member, with those of the others.
///
/// # Safety
/// As there.
unsafe fn launch_on(
    leader: &DeviceStream,
    parts: Vec<LaunchPart>,
    streams: &[DeviceStream],
    last: &mut Option<Last>,
) -> Result<()> {
    let mut others: Vec<&DeviceStream> = Vec::new();
    for stream in streams {
        if !stream.is(leader) && !others.iter().any(|other| other.is(stream)) {
            others.push(stream);
        }
    }
    let capture = leader.capture()?;
    for stream in &others {
        if stream.capture()? != capture {
            return Err(captured_apart());
        }
    }
    for stream in &others {
        let before = stream.record()?;
        leader.queue().after(&before)?;
    }
    if let Some(last) = last
        && !last.stream.is(leader)
        && last.capture == capture
        && (capture.is_some() || !last.done.is_done()?)
    {
        leader.queue().after(&last.done)?;
    }
    // SAFETY: the caller's contract.
    let done = unsafe { leader.queue().launch(parts) }?;
    others.iter().try_for_each(|stream| stream.queue().after(&done))?;
    *last = Some(Last { stream: leader.clone(), done, capture });
    Ok(())
}
