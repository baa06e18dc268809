//! Launches under way: what waits for them, and what goes wrong with them.

use std::time::Duration;

use crate::device::{self, Event, StatusPage};
use crate::error::{Error, Kind, Result};
use crate::exec::{Operation, WaitContext};
use crate::session::Session;
use crate::session::peer_status::WaitingFor;
use crate::sync::{AwaitedMessage, Backoff, Deadline, Waiting};
use crate::sys::{clock, futex};
use crate::types::{Collective, Rank};

/// What a launch does, and so for which ranks it waits.
#[derive(Debug, Clone)]
pub(super) enum Launched {
    /// A collective: it waits for all ranks.
    Collective(Operation),
    /// Messages to and from other ranks.
    Messages(Vec<AwaitedMessage>),
}

/// The wait of a call on a device: for its cohort and, if the call returns when it is done, for the end of its launch.
pub(super) struct DeviceWait<'a> {
    pub(super) context: WaitContext<'a>,
    backoff: Backoff,
    /// Whether its stream is being captured. What the program's hook calls of the device could spoil the capture.
    pub(super) is_captured: bool,
}

/// The error that a status page reports, if any.
pub(super) fn fault(status: &StatusPage, session: &Session) -> Result<()> {
    match status.fault() {
        None => Ok(()),
        Some(device::LaunchFault::Aborted) => {
            session.abort.check()?;
            Err(Error::new(Kind::Aborted, "a launch of this communicator was aborted"))
        }
        Some(device::LaunchFault::Mismatch { peer, mine, theirs }) => {
            Err(session.history.mismatch(mine, Rank::new(peer), theirs))
        }
    }
}

impl Launched {
    /// The messages; none of a collective.
    pub(super) fn messages(&self) -> Vec<AwaitedMessage> {
        match self {
            Launched::Collective(_) => Vec::new(),
            Launched::Messages(messages) => messages.clone(),
        }
    }

    /// The collective; `Send` of messages.
    pub(super) fn collective(&self) -> Collective {
        match self {
            Launched::Collective(operation) => operation.collective,
            Launched::Messages(_) => Collective::Send,
        }
    }

    /// What a wait is for; `open` yields [`Launched::messages`].
    pub(super) fn waiting_for<'a>(&'a self, open: &'a dyn Fn() -> Vec<AwaitedMessage>) -> WaitingFor<'a> {
        match self {
            Launched::Collective(operation) => WaitingFor::Collective(operation),
            Launched::Messages(_) => WaitingFor::Messages(open),
        }
    }

    /// Its name in errors.
    pub(super) fn name(&self) -> String {
        match self {
            Launched::Collective(operation) => operation.to_string(),
            Launched::Messages(_) => "messages on a stream".to_owned(),
        }
    }
}

impl<'a> DeviceWait<'a> {
    pub(super) fn new(context: WaitContext<'a>) -> DeviceWait<'a> {
        let backoff = Backoff::new(*context.turn.patience);
        DeviceWait { context, backoff, is_captured: false }
    }

    /// One turn of the wait.
    pub(super) fn turn(&mut self, what: &dyn Waiting) -> Result<()> {
        match self.is_captured {
            true => self.context.without_hook().turn_or_nap(&mut self.backoff, what, LAUNCH_NAP),
            false => self.context.turn_or_nap(&mut self.backoff, what, LAUNCH_NAP),
        }
    }

    /// Waits for an end.
    pub(super) fn until(&mut self, event: &dyn Event) -> Result<()> {
        self.backoff = Backoff::new(*self.context.turn.patience);
        while !event.is_done()? {
            self.turn(&|| "its launch".to_owned())?;
        }
        Ok(())
    }
}

/// Waits for a launch, which is `told` to end, until `deadline`, and for [`END_PATIENCE`] at least. Nothing frees
/// memory that the launch uses: the device's queue keeps it. `meanwhile` is one turn of what this rank still does for
/// others.
///
/// # Errors
/// [`Kind::Timeout`] where the launch does not end; those of the device.
pub(super) fn await_end(
    (event, told): (&dyn Event, Option<&StatusPage>),
    deadline: Deadline,
    meanwhile: &mut dyn FnMut() -> Result<()>,
) -> Result<()> {
    let (began, deadline) = (clock::now(), deadline.later(Deadline::after(END_PATIENCE)));
    let mut goes_on = true;
    while !event.is_done()? {
        // Again in each turn: the stream takes back the word that lets it go on, and may have more calls that wait.
        told.into_iter().for_each(crate::sync::Mirror::raise);
        if deadline.is_over() {
            return Err(Error::timeout(format!(
                "a launch has not ended {:.1} s after it was told to stop: the device may still use the buffers of the \
                 call, so free none of them",
                clock::now().duration_since(began).as_secs_f64()
            )));
        }
        // The call has failed already: what goes wrong here is no news.
        goes_on = goes_on && meanwhile().is_ok();
        futex::nap(LAUNCH_NAP);
    }
    Ok(())
}

/// How long a launch that was told to end may take, whatever time is left. It looks at the word some thousand times a
/// second; what is in the stream before it takes its time.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// How long a wait for a launch sleeps between two looks.
const LAUNCH_NAP: Duration = Duration::from_micros(200);
