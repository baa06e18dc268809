//! A call on a device: its program, its connections, its launch.

use crate::device::Event;
use crate::device::records::{LaunchPart, SlotQueue};
use crate::engine::call_log::LineOfWay;
use crate::engine::choose::Question;
use crate::engine::device_side::{self, DeviceSide, LoweredFrom};
use crate::engine::given::{Awaited, Given};
use crate::engine::launches::{self, DeviceWait, Launched};
use crate::error::{Error, Result};
use crate::exec::lower::{self, Lowered};
use crate::exec::peer_traffic::PeerTraffic;
use crate::exec::{Background, Call, DeviceStream, Operation, Order};
use crate::log;
use crate::plan::{self, Windows};
use crate::session::failure_watch::FailureWatch;
use crate::sync::primitive::Arc;
use crate::transport::Need;
use crate::types::{Collective, Elements, Protocol, Rank};

/// A call on a device that is under way.
pub(super) struct DeviceCall<'a> {
    pub(super) side: &'a mut DeviceSide,
    pub(super) given: Given<'a>,
    pub(super) order: Order<'a>,
    pub(super) background: &'a mut dyn Background,
}

/// What a call needs to put its work into a stream.
pub(super) struct Putting<'a> {
    pub(super) stream: &'a DeviceStream,
    /// Whether the stream is being captured.
    pub(super) captured: bool,
    /// One turn of a wait on the host for these ranks.
    pub(super) turn: &'a mut dyn FnMut(&[Rank]) -> Result<()>,
}

impl DeviceCall<'_> {
    /// The records of a call, which works `in_windows` or not, and what of its peers' memory they work in; `None` where
    /// there is nothing to do.
    pub(super) fn program(&mut self, call: &Call<'_>, in_windows: bool) -> Result<Option<(Lowered, Windows)>> {
        let (world, side) = (self.given.session.world, &mut *self.side);
        if world.size == 1 {
            if call.collective == Collective::Exscan {
                return Ok(None);
            }
            let (input, output) = call.lengths(world)?;
            let count = input.min(output);
            let Some(lane) = plan::copy_lane(count) else { return Ok(None) };
            let from = LoweredFrom { collective: call.collective, count, room: count, protocol: Protocol::Simple };
            let lowered = side.lowered_from(from, || lower::plan(&[lane], Windows::None));
            return Ok(Some((lowered, Windows::None)));
        }
        if matches!(call.collective, Collective::Scan | Collective::Exscan) {
            let (sizes, exclusive) = (&self.given.session.settings.sizes, call.collective == Collective::Exscan);
            let size = u64::from(call.data_type.size());
            let count = Elements(call.count.of(world.rank));
            let chooser = &side.chooser;
            let protocol = chooser.scan_protocol(Question::of(call))?;
            let room = Elements(chooser.slot_bytes(protocol).min(device_side::own_scratch_bytes(*sizes) as u64) / size);
            if log::hears_calls() {
                let line = LineOfWay { collective: call.collective, bytes: count.0 * size, peer: None, protocol };
                log::detail!(Tuning @ world.rank, "{line}");
            }
            if count.0 == 0 {
                return Ok(None);
            }
            let from = LoweredFrom { collective: call.collective, count, room, protocol };
            let lower = || {
                let lane = plan::scan_lane(world, exclusive, count, room);
                lower::plan_by(&[lane], (Windows::None, protocol))
            };
            return Ok(Some((side.lowered_from(from, lower), Windows::None)));
        }
        if in_windows {
            let program = side.chooser.program(call, Windows::Symmetric)?;
            if let entered @ 1.. = program.entered().len() {
                log::detail!(Tuning @ world.rank, "{}: works in the windows of {entered} peers", call.collective);
            }
            return Ok(Some((program.in_windows(), program.plan().spec.windows)));
        }
        let windows = if side.meeting.works_in_place() { Windows::User } else { Windows::Scratch };
        let program = side.chooser.program(call, windows)?;
        Ok(Some((program.lowered(), program.plan().spec.windows)))
    }

    /// The ends of connections that a program names, opened where they are not open yet.
    pub(super) fn open_queues(&mut self, ends: &[Need], launched: &Launched) -> Result<Vec<SlotQueue>> {
        let missing = self.side.missing_elsewhere(self.given.session.world.rank, ends);
        if !missing.is_empty() {
            let open = || launched.messages();
            self.given.set_up(launched.waiting_for(&open), self.background, |fabric, setup| {
                fabric.open_queues(&missing, setup)
            })?;
        }
        ends.iter().map(|end| self.side.end(&mut self.given, *end)).collect()
    }

    /// Counts on the rank's page what a launch moves to and from the other ranks, of elements of so many bytes.
    pub(super) fn count(&self, traffic: &[PeerTraffic], element_bytes: u64) {
        let session = self.given.session;
        for moved in traffic.iter().filter(|moved| moved.peer != session.world.rank) {
            let (end, bytes) = ((moved.peer, moved.way), moved.elements.saturating_mul(element_bytes));
            session.page.count_on_device(end, self.side.meeting.route(moved.peer), (moved.messages, bytes));
        }
    }

    /// Launches this rank's part of a collective together with those of its cohort.
    pub(super) fn launch_collective(&mut self, part: LaunchPart, operation: &Operation) -> Result<()> {
        let me = self.given.session.world.rank;
        self.launch(&Launched::Collective(*operation), |side, Putting { stream, captured, turn }| {
            side.launch_one(me, (part, stream, captured), turn)
        })
    }

    /// Calls `put`, which puts work into the stream and returns its end. A call that returns when it is done
    /// (`Order::Caller`) then waits until the work has run.
    pub(super) fn launch(
        &mut self,
        launched: &Launched,
        put: impl FnOnce(&mut DeviceSide, Putting<'_>) -> Result<Arc<dyn Event>>,
    ) -> Result<()> {
        let DeviceCall { side, given, order, background } = self;
        let (session, order) = (given.session, *order);
        let open = || launched.messages();
        let mut watch = FailureWatch::of_call(session, launched.waiting_for(&open));
        let mut wait = DeviceWait::new(given.wait_context(Awaited::Ranks, &mut watch, &mut **background));
        let stream = side.stream(order).clone();
        let alone = side.cohort.is_alone();
        let putting = || {
            let captured = stream.capture()?.is_some();
            if captured && matches!(order, Order::Caller) {
                stream.check_runs()?;
            }
            wait.is_captured = captured;
            let turn = &mut |missing: &[Rank]| match alone {
                // `at_once` is around this: the program's hook would not find its own context.
                true => Err(Error::internal("a launch of one rank waits for others")),
                false => wait.turn(&|| on_this_device(missing)),
            };
            Ok((put(side, Putting { stream: &stream, captured, turn }), captured))
        };
        // Not around a wait for other ranks: it may log, and the program's log callback must find its own context.
        let asked = if alone { stream.at_once(putting) } else { putting() };
        // Not before: what a graph keeps depends on whether the launch has any.
        let attention = side.far.take_attention();
        let (put, captured) = asked?;
        if put.is_ok() && matches!(order, Order::Stream(_)) {
            stream.has_call_of((&session.abort, &session.hook), &side.status, captured);
        }
        match (put, order) {
            // Captured work runs later, and as often as the program likes: there is nothing to wait for.
            (Ok(_), Order::Stream(_)) if captured => Ok(()),
            (Ok(end), Order::Stream(_)) => {
                side.watch_over(session, (launched.clone(), end), attention, &mut |what| wait.turn(what))
            }
            (Ok(end), Order::Caller) => {
                let ended = wait.until(&*end);
                if ended.is_err() {
                    // The launch must not touch the caller's memory after this call returns.
                    let told = (&*end, Some(&*side.status));
                    launches::await_end(told, session.deadline_of_call(), &mut || wait.context.turn_of_failed())?;
                }
                match ended {
                    Ok(()) => launches::fault(&side.status, session, &mut || wait.turn(&launches::its_launch)),
                    Err(error) => Err(launches::fault_of_told(&side.status, session, error)),
                }
            }
            (Err(error), Order::Stream(_)) if !captured && matches!(launched, Launched::Messages(_)) => {
                // Some of the messages may be in the stream, of a communicator that goes on.
                let begun = (launched.clone(), stream.record()?);
                side.watch_over(session, begun, attention, &mut |what| wait.turn(what))?;
                Err(error)
            }
            (Err(error), Order::Stream(_)) => Err(error),
            (Err(error), Order::Caller) => {
                // Other ranks may have started copies for this call: they must not touch the caller's memory after it
                // returns.
                let told = side.meeting.is_led().then_some(&*side.status);
                let meanwhile = &mut || wait.context.turn_of_failed();
                let deadline = session.deadline_of_call();
                stream.record().and_then(|end| launches::await_end((&*end, told), deadline, meanwhile)).and(Err(error))
            }
        }
    }
}

#[cold]
fn on_this_device(missing: &[Rank]) -> String {
    let named: Vec<String> = missing.iter().map(|rank| format!("rank {rank}")).collect();
    format!("{} to call it too, on the same device (if one thread has several ranks, use a group)", named.join(", "))
}
