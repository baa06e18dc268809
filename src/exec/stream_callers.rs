//! The communicators whose calls were put into a stream: whoever waits for the stream hears if one of them has ended,
//! because its calls may have ended early, and their buffers then hold anything.

use std::time::Duration;

use crate::device::StatusPage;
use crate::error::{Error, Kind, Result};
use crate::sync::primitive::{Arc, Mutex, MutexGuard, Weak};
use crate::sync::{AbortFlag, Deadline, HookSlot, Progress, WeakHook};
use crate::sys::futex;

/// The communicators whose calls a stream has got since somebody has waited for it: those that live, and a bounded
/// number of those that are gone.
#[derive(Debug, Default)]
pub(super) struct StreamCallers(Mutex<Vec<Caller>>);

#[derive(Debug, Clone)]
struct Caller {
    /// Raised with the error that ends the communicator.
    abort: AbortFlag,
    /// What the program wants called in waits.
    hook: WeakHook,
    /// Says that a launch has ended early; gone with the communicator and its graphs.
    status: Weak<StatusPage>,
    /// How many calls it has put into the stream.
    calls: u64,
    /// Whether a graph may run calls again, of which the stream does not hear.
    is_captured: bool,
    /// Whether a wait has told of the error.
    is_told: bool,
}

impl StreamCallers {
    fn callers(&self) -> MutexGuard<'_, Vec<Caller>> {
        self.0.lock()
    }

    /// A call of the communicator of this flag, hook and page was put into the stream. Errors of other communicators
    /// are forgotten once the program knows them, since it goes on: a wait has told them, or the communicator itself.
    /// Of communicators that are gone and whose errors nobody has told, the first [`MOST_ENDED`] stay: a wait fails by
    /// these.
    pub(super) fn add(&self, (abort, hook): (&AbortFlag, &HookSlot), status: &Arc<StatusPage>, is_captured: bool) {
        let status = Arc::downgrade(status);
        let mut callers = self.callers();
        let mut ended = 0;
        callers.retain(|caller| {
            let (is_ended, is_known) = (!caller.lives(), caller.is_told || caller.abort.is_heard());
            if caller.status.ptr_eq(&status) {
                return true;
            }
            if is_known || (is_ended && !caller.abort.is_raised()) {
                return false;
            }
            ended += usize::from(is_ended);
            !is_ended || ended <= MOST_ENDED
        });
        match callers.iter_mut().find(|caller| caller.status.ptr_eq(&status)) {
            Some(known) => (known.calls, known.is_captured) = (known.calls + 1, known.is_captured || is_captured),
            None => {
                let (abort, hook) = (abort.clone(), hook.downgrade());
                callers.push(Caller { abort, hook, status, calls: 1, is_captured, is_told: false });
            }
        }
    }

    /// Whether a communicator has a hook.
    pub(super) fn has_hooks(&self) -> bool {
        self.callers().iter().any(|caller| caller.hook.get().is_some())
    }

    /// Calls the hooks of the communicators once. A hook that fails ends its communicator, whose launches then end.
    pub(super) fn turn(&self) {
        let hook_of = |caller: &Caller| {
            let hook = if caller.abort.is_raised() { None } else { caller.hook.get() };
            hook.map(|hook| (hook, caller.abort.clone()))
        };
        // Not under the lock: a hook may put calls of another communicator into the stream.
        let hooks: Vec<(Progress, AbortFlag)> = self.callers().iter().filter_map(hook_of).collect();
        for (hook, abort) in hooks {
            if let Err(error) = hook.turn() {
                abort.raise(error);
            }
        }
    }

    /// What has ended a communicator, for a wait that has seen the end of all calls. Where several have ended, one wait
    /// after the other tells of each. The last error is told again until the program shows that it knows: it gets the
    /// error from the communicator too, or puts a call of another one into the stream.
    pub(super) fn check(&self) -> Result<()> {
        let known = self.callers().clone();
        let ended: Vec<Result<()>> = known.iter().map(Caller::ended).collect();
        let mut callers = self.callers();
        let mut told: Option<(&Caller, Error)> = None;
        for (caller, ended) in known.iter().zip(ended) {
            match ended {
                Err(error) if told.as_ref().is_none_or(|(first, _)| first.is_told && !caller.is_told) => {
                    told = Some((caller, error));
                }
                Err(_) => {}
                Ok(()) if caller.is_captured && !caller.abort.is_heard() => {}
                // Unless another thread has put one more into the stream meanwhile.
                Ok(()) => callers.retain(|other| !other.is(caller) || other.calls != caller.calls),
            }
        }
        let Some((caller, error)) = told else { return Ok(()) };
        callers.iter_mut().filter(|other| other.is(caller)).for_each(|other| other.is_told = true);
        caller.abort.set_told();
        Err(error)
    }
}

impl Caller {
    fn is(&self, other: &Caller) -> bool {
        self.status.ptr_eq(&other.status)
    }

    /// Whether something of the communicator may still run.
    fn lives(&self) -> bool {
        self.status.strong_count() > 0
    }

    fn ended(&self) -> Result<()> {
        if self.abort.is_heard() {
            return Ok(());
        }
        self.abort.check()?;
        if self.status.upgrade().is_none_or(|status| status.fault().is_none()) {
            return Ok(());
        }
        // The monitor looks now and then at what has ended, and knows the reason a moment later.
        let deadline = Deadline::after(REASON_PATIENCE);
        while !deadline.is_over() {
            self.abort.check()?;
            futex::nap(REASON_NAP);
        }
        Err(Error::new(Kind::Aborted, "a call in the stream has ended early: its communicator says why"))
    }
}

/// How long a wait waits for the reason of an abort, once a launch has ended by it. A monitor looks each 2 ms, on a
/// busy computer later, and another rank tells its reason when its part of the launch has ended.
pub(crate) const REASON_PATIENCE: Duration = Duration::from_secs(2);
const REASON_NAP: Duration = Duration::from_millis(1);
/// Communicators that are gone and whose errors no wait has told.
const MOST_ENDED: usize = 64;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::device::LaunchFault;

    fn add(callers: &StreamCallers, abort: &AbortFlag, status: &Arc<StatusPage>, is_captured: bool) {
        callers.add((abort, &HookSlot::default()), status, is_captured);
    }

    fn communicator() -> (AbortFlag, Arc<StatusPage>) {
        (AbortFlag::new(), Arc::new(StatusPage::new().unwrap()))
    }

    #[test]
    fn a_wait_hears_of_communicators_that_have_ended_until_another_goes_on() {
        let (callers, (abort, status), (other, page)) = (StreamCallers::default(), communicator(), communicator());
        add(&callers, &other, &page, false);
        add(&callers, &abort, &status, false);
        add(&callers, &abort, &status, false);
        assert!(callers.check().is_ok());
        abort.raise(Error::aborted("a peer has died"));
        assert!(callers.check().is_ok(), "its calls had ended well before");
        add(&callers, &abort, &status, false);
        add(&callers, &other, &page, false);
        for _ in 0..2 {
            assert_eq!(callers.check().unwrap_err().message(), "a peer has died");
        }
        add(&callers, &other, &page, false);
        assert!(callers.check().is_ok(), "the program goes on with the other");
        // An error that nobody has heard of stays, also when the communicator has gone.
        add(&callers, &abort, &status, false);
        drop(status);
        add(&callers, &other, &page, false);
        assert!(callers.check().is_err());
    }

    #[test]
    fn a_launch_that_has_ended_early_is_told_with_the_reason_that_comes_later() {
        let (callers, (abort, status)) = (StreamCallers::default(), communicator());
        add(&callers, &abort, &status, false);
        status.report(LaunchFault::Mismatch { peer: 1, mine: [1; 3], theirs: [2; 3] });
        std::thread::scope(|scope| {
            scope.spawn(|| abort.raise(Error::mismatch("roots differ")));
            assert_eq!(callers.check().unwrap_err().message(), "roots differ");
        });
    }

    /// As tests of what is left in memory need it.
    #[test]
    fn a_program_that_has_the_error_from_the_communicator_may_use_the_stream() {
        let (callers, (abort, status)) = (StreamCallers::default(), communicator());
        add(&callers, &abort, &status, false);
        abort.raise(Error::aborted("a peer has died"));
        assert!(callers.check().is_err() && callers.check().is_err() && abort.is_known());
        abort.set_heard(true);
        assert!(callers.check().is_ok());
    }

    #[test]
    fn a_graph_may_run_calls_again() {
        let (callers, (abort, status)) = (StreamCallers::default(), communicator());
        add(&callers, &abort, &status, true);
        assert!(callers.check().is_ok());
        abort.raise(Error::aborted("a peer has died"));
        assert!(callers.check().is_err());
    }

    /// Regression: a wait counted the errors of all communicators as told, and told the first.
    #[test]
    fn each_communicator_that_has_ended_is_told() {
        let callers = StreamCallers::default();
        let ended = ["one has died", "two has died"].map(|reason| {
            let (abort, status) = communicator();
            add(&callers, &abort, &status, false);
            abort.raise(Error::aborted(reason));
            (abort, status)
        });
        let told = || callers.check().map_err(|error| error.message().to_owned());
        assert_eq!(told(), Err("one has died".to_owned()));
        assert!(ended[0].0.is_known() && !ended[1].0.is_known());
        assert_eq!(told(), Err("two has died".to_owned()));
        assert!(told().is_err(), "until the program shows that it knows");
        // A call of another communicator shows that for those that were told.
        add(&callers, &communicator().0, &communicator().1, false);
        assert_eq!(told(), Ok(()));
    }

    #[test]
    fn what_a_communicator_has_told_is_not_told_again_and_what_it_has_not_is() {
        let callers = StreamCallers::default();
        let ended = ["heard", "captured", "last"].map(|reason| {
            let (abort, status) = communicator();
            add(&callers, &abort, &status, reason == "captured");
            abort.raise(Error::aborted(reason));
            abort.set_heard(reason == "heard");
            (abort, status)
        });
        let told = || callers.check().unwrap_err().message().to_owned();
        assert_eq!([told(), told()], ["captured", "last"]);
        // A call of one that was told shows nothing of itself: its error stays, and the others' go.
        add(&callers, &ended[1].0, &ended[1].1, false);
        assert_eq!([told(), told()], ["captured", "captured"]);
        ended[1].0.set_heard(true);
        assert!(callers.check().is_ok() && callers.callers().is_empty());
    }

    /// Regression: the list grew with each communicator that ended while nobody waited for the stream.
    #[test]
    fn the_list_is_bounded_and_what_it_leaves_out_is_told_by_others() {
        let callers = StreamCallers::default();
        for number in 0..10 * MOST_ENDED {
            let (abort, status) = communicator();
            add(&callers, &abort, &status, number % 2 == 0);
            abort.raise(Error::aborted(format!("end {number}")));
        }
        assert!(callers.callers().len() <= MOST_ENDED + 1, "{}", callers.callers().len());
        assert_eq!(callers.check().unwrap_err().message(), "end 0");
        // Errors that programs have got from communicators are no part of it.
        let callers = StreamCallers::default();
        let kept: Vec<_> = (0..10).map(|_| communicator()).collect();
        for (abort, status) in &kept {
            add(&callers, abort, status, true);
            abort.raise(Error::aborted("a peer has died"));
            abort.set_heard(true);
        }
        assert!(callers.callers().len() <= 1, "{}", callers.callers().len());
    }
}
