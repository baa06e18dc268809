//! Deadlines, and the bounds of every wait: a deadline, an abort flag, and the work that goes on meanwhile.

use std::fmt;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::sync::primitive::Arc;
use crate::sync::{AbortFlag, Progress, progress};
use crate::sys::clock;
use crate::types::Rank;

/// The moment at which a wait gives up; [`Deadline::NEVER`] has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// No deadline: only the abort flag or the death of a peer stops the wait.
    pub const NEVER: Deadline = Deadline(None);

    /// `timeout` from now; `NEVER` if the clock cannot represent that.
    pub fn after(timeout: Duration) -> Deadline {
        Deadline(clock::now().checked_add(timeout))
    }

    /// Whether it has passed at `now`.
    pub fn passed(self, now: Instant) -> bool {
        self.0.is_some_and(|moment| now >= moment)
    }

    /// The remaining time at `now`; `None` for `NEVER`.
    pub fn remaining(self, now: Instant) -> Option<Duration> {
        self.0.map(|moment| moment.saturating_duration_since(now))
    }

    /// The shorter of the remaining time at `now` and `slice`.
    pub fn slice(self, now: Instant, slice: Duration) -> Duration {
        self.remaining(now).map_or(slice, |left| left.min(slice))
    }

    /// The earlier of the two deadlines.
    #[must_use]
    pub fn earlier(self, other: Deadline) -> Deadline {
        match (self.0, other.0) {
            (Some(a), Some(b)) => Deadline(Some(a.min(b))),
            (a, b) => Deadline(a.or(b)),
        }
    }
}

/// The bounds of a wait, and what runs meanwhile.
#[derive(Debug, Clone)]
pub struct Wait {
    /// When to give up.
    pub deadline: Deadline,
    /// Ends the wait when it is raised.
    pub abort: AbortFlag,
    /// The hook to call meanwhile, if any.
    pub progress: Option<Progress>,
    /// The reader of peers' notes, if any.
    pub notes: Option<NoteReader>,
}

/// Reads the notes that peers publish, and fails if a note means that the wait cannot succeed.
#[derive(Clone)]
pub struct NoteReader(Arc<Read>);

type Read = dyn Fn(Rank, &[u8]) -> Result<()> + Send + Sync;

impl NoteReader {
    /// A reader that calls `read` with the peer and its note; an error of `read` ends the wait.
    pub fn new(read: impl Fn(Rank, &[u8]) -> Result<()> + Send + Sync + 'static) -> NoteReader {
        NoteReader(Arc::new(read))
    }
}

impl fmt::Debug for NoteReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NoteReader").finish_non_exhaustive()
    }
}

impl Wait {
    /// A wait that `timeout` and `abort` bound.
    pub fn new(timeout: Duration, abort: &AbortFlag) -> Wait {
        Wait { deadline: Deadline::after(timeout), abort: abort.clone(), progress: None, notes: None }
    }

    /// The same wait, which also calls a hook.
    #[must_use]
    pub fn with_progress(self, progress: Option<Progress>) -> Wait {
        Wait { progress, ..self }
    }

    /// The same wait, which also reads peers' notes.
    #[must_use]
    pub fn with_notes(self, notes: Option<NoteReader>) -> Wait {
        Wait { notes, ..self }
    }

    /// The same wait with another deadline.
    #[must_use]
    pub fn until(&self, deadline: Deadline) -> Wait {
        Wait { deadline, ..self.clone() }
    }

    /// How long the waiting loop may sleep now: at most `slice`, and less if the deadline is nearer or a hook must be
    /// called.
    pub fn slice(&self, slice: Duration) -> Duration {
        self.deadline.slice(clock::now(), progress::rest(self.progress.as_ref(), slice))
    }

    /// Passes notes to the reader.
    ///
    /// # Errors
    /// The reader's error.
    pub fn read<'a>(&self, mut come: impl Iterator<Item = (Rank, &'a [u8])>) -> Result<()> {
        match &self.notes {
            Some(NoteReader(read)) => come.try_for_each(|(from, bytes)| read(from, bytes)),
            None => Ok(()),
        }
    }

    /// The check that every waiting loop calls.
    ///
    /// # Errors
    /// The abort's reason; the hook's error; or [`crate::error::Kind::Timeout`] with the text of `waiting_for`: "timed
    /// out: waited for the address of rank 3".
    pub fn check(&self, waiting_for: impl FnOnce() -> String) -> Result<()> {
        self.abort.check()?;
        progress::turn(self.progress.as_ref())?;
        if self.deadline.passed(clock::now()) {
            Err(Error::timeout(format!("timed out: {}", waiting_for())))
        } else {
            Ok(())
        }
    }
}
