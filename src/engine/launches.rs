//! Launches under way: what waits for them, and what goes wrong with them.

use std::time::{Duration, Instant};

use crate::device::{Event, LaunchFault, StatusPage};
use crate::error::{Error, Kind, Result};
use crate::exec::{Asides, Operation, REASON_PATIENCE, WaitContext};
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

/// The error that a status page reports, if any. A page does not say why a launch was aborted: another rank of this
/// process may have told the launch of all to stop, of which this rank hears a moment later, in a `turn` of its wait.
pub(super) fn fault(status: &StatusPage, session: &Session, turn: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    let mut patience = None;
    while !is_well(status, session)? {
        turn()?;
        check_patience(&mut patience)?;
    }
    Ok(())
}

/// Whether a status page reports no error; false where it reports an abort of which the reason is not known yet.
///
/// # Errors
/// The one that it reports.
pub(super) fn is_well(status: &StatusPage, session: &Session) -> Result<bool> {
    match status.fault() {
        None => Ok(true),
        Some(LaunchFault::Mismatch { peer, mine, theirs }) => {
            Err(session.history.mismatch(mine, Rank::new(peer), theirs))
        }
        Some(LaunchFault::Aborted) => session.abort.check().map(|()| false),
    }
}

/// Bounds the wait for the reason of an abort, which begins with the first call.
///
/// # Errors
/// Once it is over.
pub(super) fn check_patience(patience: &mut Option<Deadline>) -> Result<()> {
    match patience.get_or_insert_with(|| Deadline::after(REASON_PATIENCE)).is_over() {
        true => Err(Error::new(Kind::Aborted, "a launch of this communicator was aborted")),
        false => Ok(()),
    }
}

/// The error of a launch that was told to end because the wait for it had failed with `error`, which says more than an
/// abort.
pub(super) fn fault_of_told(status: &StatusPage, session: &Session, error: Error) -> Error {
    match fault(status, session, &mut || Err(error.duplicate())) {
        Err(told) if told.kind() != Kind::Aborted => told,
        _ => error,
    }
}

/// What a wait for a launch waits for.
pub(super) fn its_launch() -> String {
    "its launch".to_owned()
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
            true => {
                let _none = Asides::none();
                self.context.without_hook().turn_or_nap(&mut self.backoff, what, LAUNCH_NAP)
            }
            false => self.context.turn_or_nap(&mut self.backoff, what, LAUNCH_NAP),
        }
    }

    /// Waits for an end.
    pub(super) fn until(&mut self, event: &dyn Event) -> Result<()> {
        self.backoff = Backoff::new(*self.context.turn.patience);
        while !event.is_done()? {
            self.turn(&its_launch)?;
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
    let end = ToldEnd::by(deadline);
    let mut goes_on = true;
    while !end.has_come((event, told))? {
        // The call has failed already: what goes wrong here is no news.
        goes_on = goes_on && meanwhile().is_ok();
        futex::nap(LAUNCH_NAP);
    }
    Ok(())
}

/// The end of a launch that was told to end.
#[derive(Debug)]
pub(super) struct ToldEnd {
    began: Instant,
    deadline: Deadline,
}

impl ToldEnd {
    /// It has until `deadline`, and [`END_PATIENCE`] at least.
    pub(super) fn by(deadline: Deadline) -> ToldEnd {
        ToldEnd { began: clock::now(), deadline: deadline.later(Deadline::after(END_PATIENCE)) }
    }

    /// Whether it has come; if not, the launch is `told` again.
    ///
    /// # Errors
    /// As [`await_end`].
    pub(super) fn has_come(&self, (event, told): (&dyn Event, Option<&StatusPage>)) -> Result<bool> {
        if event.is_done()? {
            return Ok(true);
        }
        // Again in each turn: the stream takes back the word that lets it go on, and may have more calls that wait.
        told.into_iter().for_each(crate::sync::Mirror::raise);
        if self.deadline.is_over() {
            return Err(Error::timeout(format!(
                "a launch has not ended {:.1} s after it was told to stop: the device may still use the buffers of the \
                 call, so free none of them",
                clock::now().duration_since(self.began).as_secs_f64()
            )));
        }
        Ok(false)
    }
}

/// How long a launch that was told to end may take, whatever time is left. It looks at the word some thousand times a
/// second; what is in the stream before it takes its time.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// How long a wait for a launch sleeps between two looks.
const LAUNCH_NAP: Duration = Duration::from_micros(200);

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::bootstrap::LocalBootstrap;
    use crate::config::Config;
    use crate::session::failure_watch::FailureWatch;
    use crate::session::settings::Settings;
    use crate::sync::{AbortFlag, Mirror, Watch};

    fn sessions() -> [Session; 2] {
        let settings = Settings::read(&Config::default()).unwrap();
        let world = LocalBootstrap::world(2).unwrap().into_iter();
        let session = |rank| Session::new(Box::new(rank), settings.clone(), AbortFlag::new());
        world.map(session).collect::<Vec<_>>().try_into().unwrap()
    }

    /// Regression: a rank whose launch another rank had ended said that it was aborted, and not why.
    #[test]
    fn the_reason_of_an_abort_may_come_after_the_launch_has_ended() {
        let ([mine, theirs], status) = (sessions(), StatusPage::new().unwrap());
        let mut watch = FailureWatch::new(&mine, WaitingFor::Anything);
        let mut turns = 0;
        let mut turn = || {
            turns += 1;
            if turns == 3 {
                theirs.publish_failure(&Error::timeout("timed out waiting for rank 7").during("all_reduce #0"));
            }
            watch.look(&String::new)
        };
        fault(&status, &mine, &mut turn).expect("it has ended well");
        status.raise();
        status.report(LaunchFault::Aborted);
        let error = fault(&status, &mine, &mut turn).unwrap_err();
        assert_eq!(error.kind(), Kind::Timeout, "{error}");
        assert!(error.message().contains("waiting for rank 7"), "{error}");
        assert!(turns >= 3);
    }

    #[test]
    fn what_this_rank_knows_of_an_abort_is_told_at_once() {
        let ([mine, _theirs], status) = (sessions(), StatusPage::new().unwrap());
        status.report(LaunchFault::Aborted);
        mine.abort.raise(Error::aborted("enough"));
        let error = fault(&status, &mine, &mut || panic!("nothing is waited for")).unwrap_err();
        assert_eq!((error.kind(), error.message()), (Kind::Aborted, "enough"));
    }
}
