//! What a call lends the side that runs it: what this rank knows, and what moves data while the call waits.

use std::any::Any;
use std::fmt;
use std::time::Duration;

use crate::bootstrap::BackgroundWork;
use crate::error::Result;
use crate::exec::{Background, CallTurn, WaitContext};
use crate::session::Session;
use crate::session::failure_watch::FailureWatch;
use crate::session::peer_status::{BootstrapCall, WaitingFor};
use crate::sync::primitive::Arc;
use crate::sync::{Backoff, Patience, Progress, Turn as _, Turned, Wait};
use crate::sys::{clock, futex};
use crate::transport::{Fabric, FabricBytes, Need, Receivers, Setup};

/// What the side that runs a call gets for it: what this rank knows, and what moves data.
#[derive(Debug)]
pub(super) struct Given<'a> {
    pub(super) session: &'a Arc<Session>,
    pub(super) mover: &'a mut CallMover,
}

impl Given<'_> {
    /// A wait of the call that is under way.
    pub(super) fn wait(&self) -> Wait {
        self.session.wait().with_progress(self.mover.progress.clone())
    }

    /// [`CallMover::wait_context`].
    #[inline]
    pub(super) fn wait_context<'b>(
        &'b mut self,
        awaited: Awaited,
        watch: &'b mut FailureWatch<'_>,
        background: &'b mut dyn Background,
    ) -> WaitContext<'b> {
        self.mover.wait_context((self.session, awaited), watch, background)
    }

    /// Opens the connections that are not open yet.
    pub(super) fn connect(
        &mut self,
        (needs, receivers): (&[Need], Receivers),
        waiting_for: WaitingFor<'_>,
        background: &mut dyn Background,
    ) -> Result<()> {
        if self.mover.fabric.has(needs) {
            return Ok(());
        }
        self.set_up(waiting_for, background, |fabric, setup| fabric.connect(needs, receivers, setup))
    }

    /// Opens connections or memory together with peers, as a part of the call that is under way. `background` work and
    /// the delivery of earlier messages go on meanwhile, because a peer may wait for them before it comes to the
    /// set-up.
    pub(super) fn set_up(
        &mut self,
        waiting_for: WaitingFor<'_>,
        background: &mut dyn Background,
        body: impl FnOnce(&mut Fabric, &mut Setup<'_>) -> Result<()>,
    ) -> Result<()> {
        let watch = FailureWatch::of_call(self.session, waiting_for);
        self.set_up_under((&self.wait(), watch), background, body)
    }

    /// [`Given::set_up`] under a wait and a watch of its own.
    pub(super) fn set_up_under(
        &mut self,
        (wait, mut watch): (&Wait, FailureWatch<'_>),
        background: &mut dyn Background,
        body: impl FnOnce(&mut Fabric, &mut Setup<'_>) -> Result<()>,
    ) -> Result<()> {
        let bootstrap = &*self.session.bootstrap;
        let WaitContext { mut turn, fabric } = self.wait_context(Awaited::Ranks, &mut watch, background);
        let made = body(fabric, &mut Setup { bootstrap, wait, turn: &mut turn });
        self.session.page.note_connections(FabricBytes::of(&self.mover.fabric));
        made
    }

    /// Waits until all ranks have come to `call`, a collective call of the bootstrap (split, shrink). Such a call
    /// makes no progress on messages, and a peer may reach it only after it has received one: so `background` work is
    /// driven here until every rank has arrived. Returns the wait for the call itself, which ends early where a peer is
    /// stuck in another call or has failed. What follows in the call has a moment at least, since the last rank may
    /// have come at the last one.
    ///
    /// # Errors
    /// [`Kind::Mismatch`](crate::error::Kind::Mismatch) where a peer is known to be stuck in another call.
    pub(super) fn meet(&mut self, call: &'static str, background: &mut dyn Background) -> Result<Wait> {
        self.session.begin_call();
        self.meet_before((call, self.session.collectives()), background)
    }

    /// [`Given::meet`] for a call that comes before the collective of the number `collectives`, or is the first thing
    /// in it.
    pub(super) fn meet_before(
        &mut self,
        (call, collectives): (&'static str, u64),
        background: &mut dyn Background,
    ) -> Result<Wait> {
        let (wait, session) = (self.wait(), self.session);
        session.use_here();
        let bootstrap = &*session.bootstrap;
        let waited = BootstrapCall { name: call, collectives, exchanges: bootstrap.exchanges() };
        let wait = wait.with_notes(Some(session.note_reader(waited)?));
        let mut watch = FailureWatch::of_call(session, WaitingFor::Bootstrap(waited));
        // The watch has the deadline: its error says who is late.
        let timeout = session.settings.timeout;
        let meeting = wait.until(timeout.and(WATCH_FIRST).deadline_since(session.call_waits_since(clock::now())));
        let has_requests = self.mover.beside.is_some() || !background.is_empty();
        let busy = has_requests || !self.mover.fabric.links().drained();
        let waiting_for = || format!("all ranks (to call {call})");
        let mut wait_context = self.wait_context(Awaited::Ranks, &mut watch, background);
        // A rank that has nothing under way sleeps in the bootstrap, which wakes it.
        let patience = if busy { *wait_context.turn.patience } else { Patience::fixed(0, Duration::ZERO) };
        let mut backoff = Backoff::new(patience);
        let mut turn = || {
            let WaitContext { turn, fabric } = &mut wait_context;
            let turned = match busy {
                true => turn.turn_of_requests(fabric, &mut backoff)?,
                false => turn.turn(fabric, &mut backoff, &waiting_for)?,
            };
            match turned {
                Turned::Moved => backoff = Backoff::new(patience),
                Turned::Tired(slice) if busy => futex::nap(slice.min(backoff.nap(REQUEST_NAP, LONG_REQUEST_NAP))),
                Turned::Tired(_) | Turned::Awake => {}
            }
            Ok(())
        };
        let pause = if busy { Duration::ZERO } else { MEETING_PAUSE };
        bootstrap.meet(call, &meeting, Some(BackgroundWork { turn: &mut turn, pause }))?;
        session.all_have_come();
        Ok(wait.until(session.deadline_of_call()))
    }
}

/// The connections, and how this rank waits for what they carry. One thread at a time has it.
#[derive(Debug)]
pub(super) struct CallMover {
    pub(super) fabric: Fabric,
    /// How patient waits are: learnt from wait to wait.
    pub(super) patience: Patience,
    /// How patient waits for one rank alone are, while ranks share processors. It is learnt too.
    patience_for_one: Patience,
    /// What the program wants moved while a call waits.
    pub(super) progress: Option<Progress>,
    /// The messages of requests that go on beside the call that runs now.
    pub(super) beside: Option<Box<dyn Beside>>,
}

/// Messages of requests that go on beside a call.
pub(crate) trait Beside: Background + fmt::Debug + Send {
    /// The same, for whoever knows its type.
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

/// For whom an operation waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Awaited {
    /// For one rank alone, as a message does.
    OneRank,
    /// For any number of ranks.
    Ranks,
}

impl CallMover {
    /// Waits begin as patient as `patience`.
    pub(super) fn new(fabric: Fabric, patience: Patience, progress: Option<Progress>) -> CallMover {
        CallMover { fabric, patience, patience_for_one: patience.for_one_rank(), progress, beside: None }
    }

    /// The context in which an operation waits: `watch` says whether the operation can still end well, and `background`
    /// work goes on during the wait. A call beside requests has theirs in place of its own.
    #[inline]
    pub(super) fn wait_context<'a>(
        &'a mut self,
        (session, awaited): (&'a Session, Awaited),
        watch: &'a mut FailureWatch<'_>,
        background: &'a mut dyn Background,
    ) -> WaitContext<'a> {
        let CallMover { fabric, patience, patience_for_one, progress, beside } = self;
        let background = match beside {
            Some(beside) => &mut **beside as &mut dyn Background,
            None => background,
        };
        let is_for_one = awaited == Awaited::OneRank && patience.is_crowded();
        let patience = if is_for_one { patience_for_one } else { patience };
        let bootstrap = &*session.bootstrap;
        WaitContext { turn: CallTurn { patience, watch, bootstrap, background, progress: progress.as_ref() }, fabric }
    }
}

/// How long a wait for requests sleeps between two looks at what is under way.
pub(crate) const REQUEST_NAP: Duration = Duration::from_micros(200);
/// The same, where nothing has moved for long: a new request may wait so long before it is looked at.
pub(crate) const LONG_REQUEST_NAP: Duration = Duration::from_millis(1);
/// How much later than the watch the meeting itself gives up.
const WATCH_FIRST: Duration = Duration::from_secs(1);
/// How long a rank that waits for the others in a split or the like sleeps between two looks for senders that ask for a
/// connection.
const MEETING_PAUSE: Duration = Duration::from_millis(5);
