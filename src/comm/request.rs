//! Non-blocking calls: the requests of a program, and how each of them ends.

use std::task::Waker;

use crate::comm::engine_home::EngineHome;
use crate::comm::outcome::Outcome;
use crate::error::Result;
use crate::sync::primitive::Arc;

/// An operation that was begun in a scope. Waiting is optional: the scope ends after all of its requests, with the
/// first of their errors.
#[derive(Debug)]
#[must_use = "wait() says when the buffers hold the result"]
pub struct Request<'scope> {
    shared: &'scope EngineHome,
    /// `None` where it ended well as it began.
    outcome: Option<&'scope Outcome>,
}

impl<'scope> Request<'scope> {
    /// The request of a scope, which keeps both.
    pub(super) fn new(shared: &'scope EngineHome, outcome: Option<&'scope Outcome>) -> Request<'scope> {
        Request { shared, outcome }
    }

    /// The program does not go on before it, or another, has ended.
    pub(super) fn note_wait(&self) {
        self.outcome.into_iter().for_each(Outcome::note_wait);
    }

    /// Whether it ended as it began.
    #[cfg(all(test, not(loom)))]
    pub(super) fn ended_at_once(&self) -> bool {
        self.outcome.is_none()
    }

    /// Waits until the operation has ended; the communicator's time-out bounds it. Other requests of the communicator
    /// go on meanwhile.
    ///
    /// # Errors
    /// The operation's.
    pub fn wait(self) -> Result<()> {
        self.outcome.map_or_else(|| self.shared.check_process(), |outcome| self.shared.wait_for(outcome))
    }

    /// Whether the operation has ended, well or not. Moves it, and never waits.
    pub fn is_finished(&self) -> bool {
        self.outcome.is_none_or(|outcome| self.shared.is_finished(outcome))
    }
}

/// An operation that was begun, in memory that outlives it. Dropping it neither stops it nor waits for it.
#[derive(Debug)]
#[must_use = "wait() says when the buffers hold the result"]
pub(crate) struct Pending {
    shared: Arc<EngineHome>,
    /// `None` where it ended well as it began.
    outcome: Option<Arc<Outcome>>,
}

impl Pending {
    /// The request of a communicator whose end `outcome` tells.
    pub(super) fn new(shared: Arc<EngineHome>, outcome: Option<Arc<Outcome>>) -> Pending {
        Pending { shared, outcome }
    }

    /// The program does not go on before it, or another, has ended.
    pub(super) fn note_wait(&self) {
        self.outcome.iter().for_each(|outcome| outcome.note_wait());
    }

    /// Whether it has ended, by what others do: this moves nothing.
    #[cfg(all(test, not(loom)))]
    pub(super) fn has_ended(&self) -> bool {
        self.outcome.as_ref().is_none_or(|outcome| outcome.is_set())
    }

    /// Waits until the operation has ended; the communicator's time-out bounds it.
    ///
    /// # Errors
    /// The operation's.
    pub(crate) fn wait(&self) -> Result<()> {
        match &self.outcome {
            Some(outcome) => self.shared.wait_for(outcome),
            None => self.shared.check_process(),
        }
    }

    /// The same for whoever does not tell the program of an error.
    #[cfg(feature = "cpp")]
    pub(crate) fn await_end(&self) {
        if let Some(outcome) = self.outcome.as_ref().filter(|_| self.shared.birthplace.is_here()) {
            // The communicator remembers what ended it.
            self.shared.await_end(outcome);
        }
    }

    /// The same for a task: where it has not ended, the watcher moves it from now on, and `waker` is woken at its end.
    pub(super) fn poll_end(&self, waker: &Waker) -> bool {
        let Some(outcome) = &self.outcome else { return true };
        if self.is_finished() || !self.shared.birthplace.is_here() {
            return true;
        }
        outcome.note_wait();
        outcome.wake_at_end(waker);
        self.shared.hand_over();
        outcome.is_set()
    }

    /// Whether the operation has ended, well or not. Moves it, and never waits.
    pub(crate) fn is_finished(&self) -> bool {
        self.outcome.as_ref().is_none_or(|outcome| self.shared.is_finished(outcome))
    }
}
