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
    outcome: &'scope Outcome,
}

impl<'scope> Request<'scope> {
    /// The request of a scope, which keeps both.
    pub(super) fn new(shared: &'scope EngineHome, outcome: &'scope Outcome) -> Request<'scope> {
        Request { shared, outcome }
    }

    pub(super) fn outcome(&self) -> &Outcome {
        self.outcome
    }

    /// Waits until the operation has ended; the communicator's time-out bounds it. Other requests of the communicator
    /// go on meanwhile.
    ///
    /// # Errors
    /// The operation's.
    pub fn wait(self) -> Result<()> {
        self.shared.wait_for(self.outcome)
    }

    /// Whether the operation has ended, well or not. Moves it, and never waits.
    pub fn is_finished(&self) -> bool {
        self.shared.is_finished(self.outcome)
    }
}

/// An operation that was begun, in memory that outlives it. Dropping it neither stops it nor waits for it.
#[derive(Debug)]
#[must_use = "wait() says when the buffers hold the result"]
pub(crate) struct Pending {
    shared: Arc<EngineHome>,
    outcome: Arc<Outcome>,
}

impl Pending {
    /// The request of a communicator whose end `outcome` tells.
    pub(super) fn new(shared: Arc<EngineHome>, outcome: Arc<Outcome>) -> Pending {
        Pending { shared, outcome }
    }

    /// What tells its end.
    pub(super) fn outcome(&self) -> &Arc<Outcome> {
        &self.outcome
    }

    /// Waits until the operation has ended; the communicator's time-out bounds it.
    ///
    /// # Errors
    /// The operation's.
    pub(crate) fn wait(&self) -> Result<()> {
        self.shared.wait_for(&self.outcome)
    }

    /// The same for whoever does not tell the program of an error.
    #[cfg(feature = "cpp")]
    pub(crate) fn await_end(&self) {
        if self.shared.birthplace.is_here() {
            // The communicator remembers what ended it.
            self.shared.await_end(&self.outcome);
        }
    }

    /// The same for a task: where it has not ended, the watcher moves it from now on, and `waker` is woken at its end.
    pub(super) fn poll_end(&self, waker: &Waker) -> bool {
        if self.is_finished() || !self.shared.birthplace.is_here() {
            return true;
        }
        self.outcome.note_wait();
        self.outcome.wake_at_end(waker);
        self.shared.hand_over();
        self.outcome.is_set()
    }

    /// Whether the operation has ended, well or not. Moves it, and never waits.
    pub(crate) fn is_finished(&self) -> bool {
        self.shared.is_finished(&self.outcome)
    }
}
