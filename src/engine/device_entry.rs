//! The first call on a device: what a rank has there is made together with all ranks.

use crate::device::{self, Home, HostRegion, StatusPage};
use crate::engine::across;
use crate::engine::choose::Grounds;
use crate::engine::device_call::DeviceCall;
use crate::engine::device_chooser::DeviceChooser;
use crate::engine::device_side::DeviceSide;
use crate::engine::given::{Awaited, Given};
use crate::engine::launches::{self, DeviceWait};
use crate::error::{Error, Result};
use crate::exec::{Background, Order};
use crate::log;
use crate::log::spans;
use crate::reach::channel_search;
use crate::reach::device_sharing::{Brought, Meeting};
use crate::reach::gpu_direct::GpuDirect;
use crate::reach::line_ways;
use crate::reach::side_layout;
use crate::reach::staging::StagingLayout;
use crate::session::Session;
use crate::session::failure_watch::FailureWatch;
use crate::session::peer_status::WaitingFor;
use crate::session::trace_text::{self, SpanKind};
use crate::sync::primitive::Arc;
use crate::transport::QueueMemory;
use crate::types::{Rank, World};

/// What a rank has on its device, which its first call there makes.
#[derive(Debug)]
pub(super) struct DeviceEntry {
    grounds: Arc<Grounds>,
    side: Option<Box<DeviceSide>>,
}

impl DeviceEntry {
    /// Of a communicator that has not worked on a device.
    pub(super) fn new(grounds: &Arc<Grounds>) -> DeviceEntry {
        DeviceEntry { grounds: Arc::clone(grounds), side: None }
    }

    /// The side, once made.
    #[inline]
    pub(super) fn side(&self) -> Option<&DeviceSide> {
        if device::POSSIBLE { self.side.as_deref() } else { None }
    }

    /// The side, once made.
    pub(super) fn side_mut(&mut self) -> Option<&mut DeviceSide> {
        if device::POSSIBLE { self.side.as_deref_mut() } else { None }
    }

    /// Makes this rank's side on the device of a call if there is none, and fails if an earlier launch has failed. The
    /// call is the collective of the number `next`, or a message before that.
    pub(super) fn enter<'a>(
        &'a mut self,
        mut given: Given<'a>,
        (home, next): (Home, u64),
        (order, background): (Order<'a>, &'a mut dyn Background),
    ) -> Result<DeviceCall<'a>> {
        let home = match order {
            Order::Stream(stream) if home != Home::Host && home != stream.home() => {
                return Err(Error::invalid_argument(format!(
                    "the buffers lie in {home}, and the stream is of {}",
                    stream.home()
                )));
            }
            Order::Stream(stream) => stream.home(),
            Order::Caller => home,
        };
        let DeviceEntry { grounds, side } = self;
        let side = match side {
            Some(side) if side.home != home => {
                return Err(Error::invalid_usage(format!(
                    "this communicator works in {} since its first call on a device, and this call is for {home}: \
                     use a communicator for each device",
                    side.home
                )));
            }
            Some(side) => {
                if side.status.fault().is_some() {
                    earlier_fault(&side.status, &mut given, order, background)?;
                }
                side
            }
            none => none.insert(make((&mut given, grounds), (home, next), background)?),
        };
        Ok(DeviceCall { side, given, order, background })
    }
}

/// The error of an earlier launch, which has ended early.
#[cold]
fn earlier_fault(
    status: &StatusPage,
    given: &mut Given<'_>,
    order: Order<'_>,
    background: &mut dyn Background,
) -> Result<()> {
    let session = given.session;
    let mut watch = FailureWatch::of_call(session, WaitingFor::Anything);
    let mut wait = DeviceWait::new(given.wait_context(Awaited::Ranks, &mut watch, background));
    if let Order::Stream(stream) = order {
        wait.is_captured = stream.capture()?.is_some();
    }
    launches::fault(status, session, &mut || wait.turn(&|| "the reason why an earlier launch was aborted".to_owned()))
}

/// This rank's side, made together with all ranks.
fn make(
    (given, grounds): (&mut Given<'_>, &Arc<Grounds>),
    (home, next): (Home, u64),
    background: &mut dyn Background,
) -> Result<Box<DeviceSide>> {
    device::of(home)?;
    let mut times = SetUpTimes::begin();
    let wait = given.meet_before(("the first call on the memory of a device", next), background)?;
    let session = given.session;
    let sizes = session.settings.sizes;
    let meeting = Meeting::new(session, home, given.mover.fabric.topology(), &wait)?;
    times.lap("meeting");
    let order = (given.mover.fabric.hosts(), &*grounds.layout);
    let found = channel_search::find(session, order, meeting.devices(), &wait)?;
    let line_ways = line_ways::agree(session, &meeting, home, &wait)?;
    let chooser = DeviceChooser::new(grounds, found, meeting.on_channels(), line_ways)?;
    times.lap("channels");
    let staging = StagingLayout {
        staged: Arc::clone(meeting.staged()),
        side: meeting.layout(),
        scratch_bytes: sizes.scratch_bytes,
        shape: sizes.shape,
        channels: chooser.channels(),
        led: meeting.is_led(),
    };
    let mut brought = meeting.allocate(home, &staging, session.settings.device_sharing)?;
    session.bootstrap.barrier(&wait)?;
    let stages = share_elsewhere(given, (&meeting, &staging), &mut brought, background)?;
    let ready = meeting.take_in(home, &stages, &mut brought);
    let status = if meeting.is_led() {
        across::status_page(given, (&meeting, home), (ready, &mut brought), (&wait, background))?
    } else {
        meeting.status_page(session, (home, ready), &wait)?
    };
    let wired = session.world.ranks().filter(|rank| meeting.is_wired(*rank)).count();
    let mut side = Box::new(DeviceSide::new(session, (meeting, chooser, staging), brought, (home, status))?);
    if wired > 0 {
        side.far.prepare(home, (wired, sizes.shape))?;
        side.far.go_direct(GpuDirect::decide(session, home, given.mover.fabric.nic())?);
    }
    times.lap("memory");
    times.tell(session);
    Ok(side)
}

/// How long the parts of a set-up on a device took, which is no part of the init: its first call there makes it.
struct SetUpTimes {
    begun: u64,
    lap: u64,
    parts: String,
}

impl SetUpTimes {
    fn begin() -> SetUpTimes {
        let now = spans::now();
        SetUpTimes { begun: now, lap: now, parts: String::new() }
    }

    /// A part has ended.
    fn lap(&mut self, name: &str) {
        let now = spans::now();
        let comma = if self.parts.is_empty() { "" } else { ", " };
        self.parts.push_str(&format!("{comma}{name} {}", seconds(now - std::mem::replace(&mut self.lap, now))));
    }

    fn tell(&self, session: &Session) {
        let World { rank, size } = session.world;
        let (total, parts) = (seconds(self.lap - self.begun), &self.parts);
        log::info!(Init @ rank, "Init timings - GPU set-up: rank {rank} nranks {size} total {total} ({parts})");
        if spans::is_on() {
            let words = [trace_text::GPU_SET_UP, 0, 0];
            spans::record(&SpanKind::Phase.span(session, (self.begun, self.lap), words));
        }
    }
}

fn seconds(nanoseconds: u64) -> String {
    format!("{}.{:03}", nanoseconds / 1_000_000_000, nanoseconds / 1_000_000 % 1000)
}

/// Hands what this rank brings to ranks of other processes, and takes what they bring: into `brought` what lies on
/// devices, and returns what is the host's.
fn share_elsewhere(
    given: &mut Given<'_>,
    (meeting, staging): (&Meeting, &StagingLayout),
    brought: &mut Brought,
    background: &mut dyn Background,
) -> Result<Vec<(Rank, HostRegion)>> {
    let elsewhere = meeting.elsewhere();
    let crossing = meeting.crossing().to_vec();
    if elsewhere.is_empty() && crossing.is_empty() {
        return Ok(Vec::new());
    }
    let (me, sharing) = (given.session.world.rank, given.session.settings.device_sharing);
    let shape = given.session.settings.sizes.shape;
    let queues = QueueMemory {
        sharing,
        usual: side_layout::queue_bytes(shape, false)?,
        with_readers: side_layout::queue_bytes(shape, true)?,
        readers: meeting.staged().reading_of(me).to_vec(),
        crossing: crossing.clone(),
    };
    let mine = brought.sides.get(&me).cloned().ok_or_else(|| Error::internal("a side without memory"))?;
    let reached = meeting.reached_elsewhere();
    let owners = |ranks: &[Rank], bytes: &dyn Fn(Rank) -> Result<usize>| {
        ranks.iter().map(|rank| Ok((*rank, bytes(*rank)?))).collect::<Result<Vec<(Rank, usize)>>>()
    };
    let sides = owners(&reached, &|rank| staging.device_bytes(rank))?;
    let far_sides = owners(&crossing, &|rank| staging.device_bytes(rank))?;
    let staged: Vec<Rank> = elsewhere.iter().copied().filter(|rank| staging.has(*rank)).collect();
    let stages = owners(&staged, &|rank| staging.host_bytes(rank))?;
    let stage = meeting.stage();
    let mut taken = Vec::new();
    given.set_up(WaitingFor::Anything, background, |fabric, setup| {
        let regions = fabric.share_with_processes(&mine, (&sides, queues), setup)?;
        brought.sides.extend(reached.iter().copied().zip(regions));
        let regions = fabric.share_with_hosts(&mine, &far_sides, setup)?;
        brought.sides.extend(crossing.iter().copied().zip(regions));
        taken = fabric.share_of_host(stage.as_ref(), (&stages, &elsewhere), setup)?;
        Ok(())
    })?;
    Ok(staged.into_iter().zip(taken).collect())
}
