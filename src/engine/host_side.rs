//! What a rank has for calls on host memory, and how such a call becomes an exchange of slots, a plan or messages.

use std::borrow::Borrow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::engine::choose::{PlanPath, Question, SMALL_SCRATCH};
use crate::engine::given::{Awaited, Given};
use crate::engine::host_chooser::{HostChooser, Path};
use crate::engine::host_messages;
use crate::error::{Error, Kind, Result};
use crate::exec::composed;
use crate::exec::epoch::{Epoch, Met};
use crate::exec::flat::Flat;
use crate::exec::flat_call::SlotReads;
use crate::exec::run::{RunContext, ScratchTurns};
use crate::exec::{self, Background, Begun, Call, Message, MessageRun, NoBackground, Operation, Program, StepOwner};
use crate::plan::Windows;
use crate::session::Session;
use crate::session::failure_watch::FailureWatch;
use crate::session::page::CallWayShown;
use crate::session::peer_status::WaitingFor;
use crate::sync::primitive::{Arc, Ordering, fence};
use crate::sync::ring::Label;
use crate::sync::{Flag, TimeLimit};
use crate::transport::{Fabric, HostWindows, Need, Receivers};
use crate::tune::Choice;
use crate::types::{Folded, Rank, World};

/// What one rank has for calls on host memory.
#[derive(Debug)]
pub(super) struct HostSide {
    pub(super) chooser: HostChooser,
    /// The mapped memory of my host, once opened.
    windows: Option<Arc<HostWindows>>,
    flat: Flat,
    mapped_runs: MappedRuns,
    /// Scratch of plans that need some without windows: the tokens of a barrier.
    scratch: Box<[u8; SMALL_SCRATCH]>,
}

/// What plans with windows have used, counted alike by all ranks.
#[derive(Debug, Clone, Copy, Default)]
struct MappedRuns {
    /// Their sets of scratch.
    turns: ScratchTurns,
    /// Their rounds, which are the values of my host's flags.
    flag_base: u64,
}

/// How a collective on host memory goes.
#[derive(Debug, Clone, Copy)]
pub(super) enum CallWay {
    /// As messages.
    Messages,
    /// In a world of one rank.
    Alone,
    /// As the chooser says.
    Path(Path),
}

/// Counts a call on its way, but for those by flat slots.
#[inline(always)]
fn count(session: &Session, begun: &Begun<'_>, way: CallWay) {
    let way = match way {
        CallWay::Path(Path::Flat) => return,
        CallWay::Messages => CallWayShown::Messages,
        CallWay::Alone => CallWayShown::Alone,
        CallWay::Path(Path::Plan(PlanPath::Windows(_))) => CallWayShown::Windows,
        CallWay::Path(Path::Plan(PlanPath::Slots(_))) => CallWayShown::Slots,
    };
    session.page.count(way, begun.extent.longest_bytes);
}

/// How a rank's page shows it.
#[inline(always)]
fn shown(way: CallWay) -> u64 {
    match way {
        CallWay::Messages => CallWayShown::Messages.code(),
        CallWay::Alone => CallWayShown::Alone.code(),
        CallWay::Path(Path::Flat) => CallWayShown::Flat.code(),
        CallWay::Path(Path::Plan(PlanPath::Windows(choice))) => CallWayShown::Windows.by(choice.algorithm),
        CallWay::Path(Path::Plan(PlanPath::Slots(choice))) => CallWayShown::Slots.by(choice.algorithm),
    }
}

impl HostSide {
    pub(super) fn new(chooser: HostChooser, flat: Flat) -> HostSide {
        let scratch = Box::new([0; SMALL_SCRATCH]);
        HostSide { chooser, windows: None, flat, mapped_runs: MappedRuns::default(), scratch }
    }

    /// How a collective goes: the same whenever it runs.
    ///
    /// # Errors
    /// As [`HostChooser::path`].
    #[inline]
    pub(super) fn way(&self, call: &Call<'_>, world: World) -> Result<CallWay> {
        if call.collective.is_messages() {
            return Ok(CallWay::Messages);
        }
        if world.size == 1 {
            return Ok(CallWay::Alone);
        }
        self.chooser.path(Question::of(call)).map(CallWay::Path)
    }

    /// Runs a collective to its end.
    #[inline]
    pub(super) fn collective(
        &mut self,
        mut given: Given<'_>,
        (begun, way): (&Begun<'_>, CallWay),
        background: &mut dyn Background,
    ) -> Result<()> {
        given.session.page.goes(shown(way));
        count(given.session, begun, way);
        match way {
            CallWay::Messages => run_messages(given, begun, background),
            CallWay::Alone => exec::alone::run(begun),
            CallWay::Path(Path::Flat) => {
                let reads = || SlotReads::of(begun.call, begun.world, *begun.extent);
                self.run_flat(given, begun, reads, background)
            }
            CallWay::Path(Path::Plan(PlanPath::Windows(choice))) => self.run_windows(given, begun, choice, background),
            CallWay::Path(Path::Plan(PlanPath::Slots(choice))) => {
                let program = self.chooser.program(begun.call, choice, Windows::None)?;
                self.run_plan(&mut given, (begun, &program), None, background)
            }
        }
    }

    /// Whether a call by flat slots can be announced without a wait.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.windows.is_some() && self.flat.has_room()
    }

    /// Runs a call by flat slots. `reads` yields what it reads there, once it is announced.
    #[inline]
    pub(super) fn run_flat<R: Borrow<SlotReads>>(
        &mut self,
        mut given: Given<'_>,
        begun: &Begun<'_>,
        reads: impl FnOnce() -> R,
        background: &mut dyn Background,
    ) -> Result<()> {
        let waiting_for = WaitingFor::Collective(begun.operation);
        if !self.has_room() {
            self.make_room(&mut given, waiting_for, background)?;
        }
        let HostSide { windows: Some(windows), flat, .. } = self else { return Err(no_windows()) };
        given.session.page.count_flat(begun.extent.longest_bytes);
        let exchange = exec::flat_call::announce(begun, windows, flat, &mut given.mover.fabric.links().staging);
        let reads = reads();
        let mut watch = FailureWatch::of_call(given.session, waiting_for);
        let mut wait_context = given.wait_context(Awaited::Ranks, &mut watch, background);
        exec::flat_call::read((begun, reads.borrow()), &exchange, flat, &mut wait_context)
    }

    /// Whether a call by flat slots can be announced without a wait, and ended when the slots that it reads are there.
    pub(super) fn can_announce(&self) -> bool {
        self.has_room() && !self.flat.has_teams()
    }

    /// Announces a call by flat slots; its number there.
    ///
    /// # Errors
    /// Where it cannot be announced.
    pub(super) fn announce(&mut self, given: Given<'_>, begun: &Begun<'_>) -> Result<u64> {
        let HostSide { windows: Some(windows), flat, .. } = self else { return Err(no_windows()) };
        given.session.page.count_flat(begun.extent.longest_bytes);
        let exchange = exec::flat_call::announce(begun, windows, flat, &mut given.mover.fabric.links().staging);
        Ok(exchange.number())
    }

    /// The flag that an announced call waits for, with the value that it must reach; `None` where it can end.
    pub(super) fn missing(&self, of: (&Call<'_>, World, &SlotReads), number: u64) -> Option<(&Flag, u64)> {
        exec::flat_call::missing(of, (self.windows.as_ref()?, number))
    }

    /// Ends an announced call; `has_waited` says whether this rank has waited for the others meanwhile.
    ///
    /// # Errors
    /// Of waiting for peers, and of peers that run another operation.
    pub(super) fn end_announced(
        &mut self,
        mut given: Given<'_>,
        (begun, reads, (number, has_waited)): (&Begun<'_>, &SlotReads, (u64, bool)),
        background: &mut dyn Background,
    ) -> Result<()> {
        let HostSide { windows: Some(windows), flat, .. } = self else { return Err(no_windows()) };
        let bytes = begun.extent.input.index() * begun.extent.element_bytes;
        let exchange = flat.exchange(windows, (begun.operation, begun.label), (bytes, number));
        if has_waited {
            exchange.note_wait();
        }
        let mut watch = FailureWatch::of_call(given.session, WaitingFor::Collective(begun.operation));
        let mut wait_context = given.wait_context(Awaited::Ranks, &mut watch, background);
        exec::flat_call::read((begun, reads), &exchange, flat, &mut wait_context)
    }

    #[cold]
    fn make_room(
        &mut self,
        given: &mut Given<'_>,
        waiting_for: WaitingFor<'_>,
        background: &mut dyn Background,
    ) -> Result<()> {
        if self.windows.is_none() {
            self.open_windows(given, waiting_for, background)?;
        }
        let HostSide { windows: Some(windows), flat, .. } = self else { return Err(no_windows()) };
        if flat.has_room() {
            return Ok(());
        }
        let mut watch = FailureWatch::of_call(given.session, waiting_for);
        let mut wait_context = given.wait_context(Awaited::Ranks, &mut watch, background);
        flat.make_room(windows, &mut wait_context)
    }

    fn run_windows(
        &mut self,
        mut given: Given<'_>,
        begun: &Begun<'_>,
        choice: Choice,
        background: &mut dyn Background,
    ) -> Result<()> {
        if self.windows.is_none() {
            self.open_windows(&mut given, WaitingFor::Collective(begun.operation), background)?;
        }
        let windows = self.windows.clone().ok_or_else(no_windows)?;
        let session = given.session;
        let mut epoch = Epoch::open(&windows, begun);
        // After a panic this rank leaves as after an error: peers hear of it first, and a call on a stack of its own
        // stops while they leave, which it cannot do while it unwinds.
        let body = || self.work_in(&mut epoch, &mut given, (begun, choice), background);
        let (error, panic) = match catch_unwind(AssertUnwindSafe(body)) {
            Ok(Ok(Planned::Done)) => return epoch.end(),
            Ok(Ok(Planned::Not(error))) => return Err(error),
            Ok(Err(error)) => {
                // Who drives a call on a stack of its own may have others to move while a peer may still say why.
                while background.is_on_own_stack()
                    && self.awaits_cause(session, &error)
                    && background.stop_for_peers(&mut given.mover.fabric)
                {}
                (self.cause(session, error), None)
            }
            Err(panic) => (Error::of_panic("a call", &*panic), Some(panic)),
        };
        // Peers inside my buffers must learn of it before this rank waits for them.
        session.publish_failure(&error);
        epoch.give_up(&mut given.mover.fabric, background);
        match panic {
            Some(panic) => resume_unwind(panic),
            None => Err(error),
        }
    }

    /// Meets the other ranks of the host, and works in their buffers.
    ///
    /// # Errors
    /// Those that the other ranks have to hear of.
    fn work_in(
        &mut self,
        epoch: &mut Epoch<'_>,
        given: &mut Given<'_>,
        (begun, choice): (&Begun<'_>, Choice),
        background: &mut dyn Background,
    ) -> Result<Planned> {
        let session = given.session;
        let mut watch = FailureWatch::of_call(session, WaitingFor::Collective(begun.operation));
        let mut wait_context = given.wait_context(Awaited::Ranks, &mut watch, background);
        let kind = match epoch.meet(begun, &mut self.flat, &mut wait_context)? {
            Met::In(windows) => windows,
            Met::Reading => {
                let streams = exec::run::streams(begun, session.settings.streaming_bytes);
                if exec::pull::run(begun, epoch, &mut self.flat, (streams, &mut wait_context))? {
                    return Ok(Planned::Done);
                }
                Windows::Scratch
            }
        };
        let windows = self.chooser.windows_across_teams(kind);
        match self.chooser.program(begun.call, choice, windows) {
            Ok(program) => self.run_plan(given, (begun, &program), Some(epoch), background).map(|()| Planned::Done),
            Err(error) => Ok(Planned::Not(error)),
        }
    }

    fn run_plan(
        &mut self,
        given: &mut Given<'_>,
        (begun, program): (&Begun<'_>, &Program),
        epoch: Option<&mut Epoch<'_>>,
        background: &mut dyn Background,
    ) -> Result<()> {
        let operation = begun.operation;
        if !program.is_connected() {
            let needs = (program.needs(), Receivers::Come);
            given.connect(needs, WaitingFor::Collective(operation), background)?;
            program.set_connected();
        }
        let flag_base = self.mapped_runs.flag_base;
        let mapped = program.plan().spec.windows != Windows::None;
        if mapped {
            self.mapped_runs.flag_base += u64::from(program.rounds());
        }
        let session = given.session;
        let context = RunContext {
            windows: self.windows.as_deref().filter(|_| mapped),
            scratch: &mut self.scratch[..],
            history: &session.history,
            turns: &mut self.mapped_runs.turns,
            flag_base,
            streaming_bytes: session.settings.streaming_bytes,
            spans: Some(StepOwner { of: session.span_owner(), is_request: background.is_on_own_stack() }),
        };
        let mut watch = FailureWatch::of_call(session, WaitingFor::Collective(operation));
        let mut wait_context = given.wait_context(Awaited::Ranks, &mut watch, background);
        exec::run::run(program, begun, epoch, context, &mut wait_context)
    }

    /// Maps the memory of the ranks of my host.
    #[cold]
    pub(super) fn open_windows(
        &mut self,
        given: &mut Given<'_>,
        waiting_for: WaitingFor<'_>,
        background: &mut dyn Background,
    ) -> Result<()> {
        given.set_up(waiting_for, background, Fabric::open_windows)?;
        self.take_windows(given);
        Ok(())
    }

    /// The same in the communicator's set-up, and not at the first call, where ranks map each other's memory at all.
    pub(super) fn open_early(&mut self, given: &mut Given<'_>, limit: TimeLimit) -> Result<()> {
        if !self.chooser.grounds().maps_peers() {
            return Ok(());
        }
        let session = given.session;
        let wait = limit.wait(&session.abort).with_progress(given.mover.progress.clone());
        let watch = FailureWatch::new(session, WaitingFor::Anything).with_limit(limit);
        given.set_up_under((&wait, watch), &mut NoBackground, Fabric::open_windows)?;
        self.take_windows(given);
        Ok(())
    }

    /// Takes what the fabric has mapped by now.
    pub(super) fn take_windows(&mut self, given: &Given<'_>) {
        self.windows = given.mover.fabric.windows();
    }

    /// The mapped memory of my host, once opened.
    #[cfg(test)]
    #[cfg(not(loom))]
    pub(super) fn windows(&self) -> Option<&HostWindows> {
        self.windows.as_deref()
    }

    /// The program of a call over slots.
    #[cfg(test)]
    #[cfg(not(loom))]
    pub(super) fn program_over_slots(&mut self, call: &Call<'_>) -> Result<Arc<Program>> {
        let Path::Plan(PlanPath::Slots(choice)) = self.chooser.path(Question::of(call))? else {
            return Err(Error::internal("a call that takes no slots"));
        };
        self.chooser.program(call, choice, Windows::None)
    }

    /// [`Session::awaits_cause`].
    pub(super) fn awaits_cause(&self, session: &Session, error: &Error) -> bool {
        let is_named = |peer: u32| self.first_difference(Rank::new(peer)).is_some();
        let is_known = error.kind() == Kind::Mismatch && error.peer().is_some_and(is_named);
        !is_known && session.awaits_cause(error)
    }

    /// [`Session::cause`].
    pub(super) fn cause(&self, session: &Session, error: Error) -> Error {
        session.cause(error, &|peer| self.first_difference(peer))
    }

    /// The first call that differs, by the labels in the flat slots of a rank of this host.
    pub(super) fn first_difference(&self, peer: Rank) -> Option<Error> {
        let windows = self.windows.as_ref()?;
        let place = windows.ranks.binary_search(&peer).ok()?;
        let (mine, theirs) = self.flat.first_difference(windows, place)?;
        Some(exec::mismatch(mine, peer, theirs))
    }

    /// Looks for a collective that a peer called differently and in which neither waited for the other, such as a small
    /// broadcast of two roots: in the flat slots of this host, and among the messages that nobody has taken. It never
    /// waits.
    ///
    /// # Errors
    /// [`Kind::Mismatch`](crate::error::Kind::Mismatch).
    pub(super) fn last_look(&self, given: Given<'_>) -> Result<()> {
        // Pairs with the same fence of a peer that ends meanwhile. Each rank announces its calls before its fence and
        // looks after it, so of two ranks at least one sees the other's call; without the fences each may look before
        // its own call is seen.
        fence(Ordering::SeqCst);
        let Given { session, mover } = given;
        let World { rank, .. } = session.world;
        let near = self.windows.iter().flat_map(|windows| windows.ranks.iter().copied());
        if let Some(difference) = near.filter(|peer| *peer != rank).find_map(|peer| self.first_difference(peer)) {
            return Err(difference);
        }
        let links = mover.fabric.links();
        // A turn in which something moves does not ask all connections. A peer that has left may have closed its own:
        // that ends nothing here.
        for _ in 0..LAST_TURNS {
            if !matches!(links.pump(), Ok(true)) {
                break;
            }
        }
        let differs = |(peer, label): (Rank, Label)| {
            let mine = session.history.at(exec::sequence(label))?;
            (!exec::same_call(mine, label)).then(|| exec::mismatch(mine, peer, label))
        };
        links.left_over().into_iter().find_map(differs).map_or(Ok(()), Err)
    }
}

/// Turns in which a rank that ends looks for messages that nobody has received: more than its connections have slots.
const LAST_TURNS: u32 = 10_000;

/// A collective that is made of messages.
fn run_messages(mut given: Given<'_>, begun: &Begun<'_>, background: &mut dyn Background) -> Result<()> {
    let (call, world) = (begun.call, begun.world);
    if call.collective.definition().folded == Folded::No {
        return deliver(&mut given, composed::blocks(call, world), begun.operation, background);
    }
    let mut scan = composed::Scan::new(call, begun.kernel, world, given.session.settings.reproducible)?;
    while let Some(messages) = scan.round() {
        deliver(&mut given, messages, begun.operation, background)?;
        scan.end_round();
    }
    Ok(())
}

/// Runs messages of one collective on the connections of collectives.
fn deliver(
    given: &mut Given<'_>,
    messages: Vec<Message<'_>>,
    operation: &Operation,
    background: &mut dyn Background,
) -> Result<()> {
    let others = exec::copy_to_self(given.session.world.rank, messages)?;
    // A part of a scan says how long the whole is: the first parts of two scans are often alike.
    let whole = operation.collective.reduces().then_some(operation.count);
    let run = |message| MessageRun::of_collective(message, operation, whole);
    let mut runs: Vec<MessageRun<'_>> = others.into_iter().map(run).collect();
    let needs: Vec<Need> = runs.iter().map(MessageRun::need).collect();
    let result = host_messages::drive_all(given, (&needs, Receivers::Come), (&mut runs, Some(operation)), background);
    if result.is_err() {
        // Dropping them waits for the same, and cannot stop.
        while !exec::leave_all(&mut runs) && background.stop_for_peers(&mut given.mover.fabric) {}
    }
    result
}

/// What came of a call in the host's buffers that no peer has to hear of.
enum Planned {
    Done,
    /// There is no plan for it. All ranks find this alike, and before any of them touches a peer's buffer.
    Not(Error),
}

#[cold]
fn no_windows() -> Error {
    Error::internal("the host's windows are not open")
}
