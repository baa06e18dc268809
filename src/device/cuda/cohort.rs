//! The ranks of one process on one GPU: one launch does the work of all of them.
//!
//! ```text
//! rank 0's stream   ──┬──────────── launch ──┬──
//! rank 1's stream   ──┴─ recorded, awaited   └─ recorded, awaited
//! ```
//!
//! The host lets the ranks meet; whoever comes last calls [`SharedGpu::run`] with what each of them has put down at its
//! [`SharedGpu::arrive`]. The launch goes into the stream of the lowest rank. The others' streams are joined to it by
//! events, before and behind; if all ranks use one stream, none is needed. Nothing on the GPU waits for another rank's
//! kernel.
//!
//! Captured calls work alike: the events become edges of the graph, if all streams are in the same capture.

use super::active::{Active, Mark};
use super::launch::{self, FoldOperand, FoldStep, PassKind};
use super::stream::{Capture, OwnEvent, OwnStream, StreamHandle};
use crate::device::{Kernel, Pass};
use crate::error::{Error, Result};
use crate::sync::primitive::Arc;

/// The ranks of this process on one GPU.
#[derive(Debug)]
pub struct SharedGpu {
    /// Where the launch goes if no rank's stream can be named by another thread.
    own: OwnStream,
    active: Arc<Active>,
}

/// What a rank puts down when it comes: its stream, and how far the stream is.
#[derive(Debug, Clone)]
pub struct Arrival {
    stream: StreamHandle,
    /// Of a stream that only this rank's thread can name.
    point: Option<Point>,
    /// What such a stream captures.
    capture: Option<Capture>,
}

/// The end of the work, which streams that only their own threads can name have yet to wait for.
#[derive(Debug, Clone)]
pub struct Departure(Option<Point>);

/// A point in a stream.
#[derive(Debug, Clone)]
enum Point {
    /// With an event that comes back to the others when it is done with.
    Live(Arc<Mark>),
    /// In a capture, with an event that is never used outside it.
    Captured(Arc<OwnEvent>),
}

impl Point {
    /// Where `stream` is now. The context is current.
    fn record(active: &Arc<Active>, stream: StreamHandle, capture: Option<Capture>) -> Result<Point> {
        if capture.is_none() {
            return active.mark(stream).map(Point::Live);
        }
        let event = OwnEvent::new(active.primary())?;
        event.record(stream)?;
        Ok(Point::Captured(Arc::new(event)))
    }

    /// Lets `stream` wait for it. The context is current.
    fn holds_up(&self, stream: StreamHandle) -> Result<()> {
        match self {
            Point::Live(mark) => mark.holds_up(stream),
            Point::Captured(event) => event.holds_up(stream),
        }
    }
}

impl SharedGpu {
    pub(super) fn new(active: Arc<Active>) -> Result<SharedGpu> {
        Ok(SharedGpu { own: OwnStream::new(active.primary())?, active })
    }

    /// A rank comes with its stream. Called on the rank's own thread, for the stream of a thread has no name on others.
    ///
    /// # Errors
    /// Where the driver refuses.
    pub fn arrive(&self, stream: StreamHandle) -> Result<Arrival> {
        if !stream.is_per_thread() {
            return Ok(Arrival { stream, point: None, capture: None });
        }
        let primary = self.active.primary();
        let _entered = primary.enter()?;
        let capture = stream.capture(primary)?;
        let point = Point::record(&self.active, stream, capture)?;
        Ok(Arrival { stream, point: Some(point), capture })
    }

    /// A rank goes on: what it puts into its stream from now on comes after the work. Called on the rank's own thread.
    ///
    /// # Errors
    /// Where the driver refuses.
    pub fn depart(&self, arrival: &Arrival, departure: &Departure) -> Result<()> {
        let Departure(Some(point)) = departure else { return Ok(()) };
        if arrival.point.is_none() {
            return Ok(());
        }
        let _entered = self.active.primary().enter()?;
        point.holds_up(arrival.stream)
    }

    /// Does the passes of `kernel` for all ranks, after what is in their streams and before what they put there later.
    /// No pass reads what another writes.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidUsage`] where some streams capture, and not all of them into one graph; else where
    /// the driver refuses: then nothing was launched, or what was launched is not awaited by all streams.
    ///
    /// # Safety
    /// As [`Kernel::run`] for each pass, with addresses of this GPU, until the ranks' streams have come past the work.
    /// All streams live until then.
    pub unsafe fn run(&self, ranks: &[Arrival], kernel: &Kernel, passes: &[Pass<'_>]) -> Result<Departure> {
        let _entered = self.active.primary().enter()?;
        let capture = self.capture(ranks)?;
        let named = ranks.iter().find(|rank| rank.point.is_none());
        let leader = named.map_or(self.own.handle(), |rank| rank.stream);
        let others = distinct(ranks, leader);
        for stream in &others {
            Point::record(&self.active, *stream, capture)?.holds_up(leader)?;
        }
        for point in ranks.iter().filter_map(|rank| rank.point.as_ref()) {
            point.holds_up(leader)?;
        }
        // SAFETY: the caller vouches for the passes, and the leader's stream has been told to wait for what the ranks
        // have put into theirs.
        unsafe { self.launch(leader, kernel, passes) }?;
        if capture.is_some() && others.is_empty() && named.is_some() && ranks.iter().all(|rank| rank.point.is_none()) {
            return Ok(Departure(None));
        }
        let done = Point::record(&self.active, leader, capture)?;
        for stream in &others {
            done.holds_up(*stream)?;
        }
        if let Point::Live(mark) = &done {
            self.active.under_way(Arc::clone(mark));
        }
        Ok(Departure(Some(done)))
    }

    /// The capture that all streams are in, or `None` if none is in any.
    fn capture(&self, ranks: &[Arrival]) -> Result<Option<Capture>> {
        let primary = self.active.primary();
        let mut common: Option<Option<Capture>> = None;
        for rank in ranks {
            // The thread of a stream without a name has asked itself.
            let capture = if rank.point.is_some() { rank.capture } else { rank.stream.capture(primary)? };
            if *common.get_or_insert(capture) != capture {
                return Err(Error::invalid_usage(
                    "ranks of one GPU in one process are captured together or not at all: let all their streams \
                     join one capture, by an event for instance, and call inside a group",
                ));
            }
        }
        Ok(common.flatten())
    }

    /// One launch for passes that use the same kernel one after the other.
    ///
    /// # Safety
    /// As [`SharedGpu::run`].
    unsafe fn launch(&self, stream: StreamHandle, kernel: &Kernel, passes: &[Pass<'_>]) -> Result<()> {
        let work = |pass: &Pass<'_>| PassKind::new(kernel, pass.sources.len(), pass.raw, pass.finish);
        let passes: Vec<&Pass<'_>> = passes.iter().filter(|pass| pass.count > 0 && !pass.sources.is_empty()).collect();
        for alike in passes.chunk_by(|one, next| work(one).entry == work(next).entry) {
            let (mut steps, mut operands) = (Vec::<FoldStep>::new(), Vec::<FoldOperand>::new());
            let mut bytes = 0;
            for pass in alike {
                let work = work(pass);
                let number = |count: usize| {
                    u32::try_from(count).map_err(|_| Error::invalid_argument("too many operands for one call"))
                };
                let sources = (number(operands.len())?, number(pass.sources.len())?);
                steps.push(work.step(pass.count as u64, sources, number(pass.targets.len())?));
                operands.extend(launch::operands_of(pass));
                bytes = bytes.max(work.bytes(pass.count as u64));
            }
            let entry = work(alike[0]).entry;
            // SAFETY: the caller vouches for the passes.
            unsafe { self.active.launch(stream, entry, (&steps, &operands), bytes) }?;
        }
        Ok(())
    }
}

/// The streams that others can name, each once, without that of the launch.
fn distinct(ranks: &[Arrival], leader: StreamHandle) -> Vec<StreamHandle> {
    let mut found: Vec<StreamHandle> = Vec::new();
    for rank in ranks.iter().filter(|rank| rank.point.is_none()) {
        if !rank.stream.is_same(leader) && !found.iter().any(|stream| stream.is_same(rank.stream)) {
            found.push(rank.stream);
        }
    }
    found
}
