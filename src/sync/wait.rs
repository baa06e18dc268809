//! Deadlines, and the bounds of every wait: a deadline, an abort flag, and the work that goes on meanwhile.

use std::fmt;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::sync::primitive::Arc;
use crate::sync::{AbortFlag, Progress, progress};
use crate::sys::clock;
use crate::types::Rank;

/// How long a wait may last; [`Duration::MAX`]: for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeLimit {
    /// From its beginning to its deadline.
    pub time: Duration,
    /// The variable that says so, for messages.
    pub variable: Option<&'static str>,
}

impl TimeLimit {
    /// A wait that begins now, which `abort` bounds too.
    pub fn wait(self, abort: &AbortFlag) -> Wait {
        Wait { deadline: self.deadline(), abort: abort.clone(), progress: None, notes: None }
    }

    /// This limit and `more`, by the same variable.
    #[must_use]
    pub fn and(self, more: Duration) -> TimeLimit {
        TimeLimit { time: self.time.saturating_add(more), ..self }
    }

    /// The deadline of a wait that begins now; `NEVER` if the clock cannot represent it.
    pub fn deadline(self) -> Deadline {
        clock::begin_wait();
        self.deadline_since(clock::now())
    }

    /// The deadline of a wait that began at `start`.
    pub(crate) fn deadline_since(self, start: Instant) -> Deadline {
        Deadline { moment: start.checked_add(self.time), limit: self }
    }
}

/// A time in seconds, a short one in milliseconds: no limit is "0.0 s".
pub fn time_in_words(time: Duration) -> String {
    match time < SHORT {
        true => format!("{} ms", time.as_millis()),
        false => format!("{:.1} s", time.as_secs_f64()),
    }
}

/// What one digit of a second would round away.
const SHORT: Duration = Duration::from_millis(100);

/// With what to change: "1.5 s (RSCCL_TIMEOUT_MS)".
impl fmt::Display for TimeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&time_in_words(self.time))?;
        self.variable.map_or(Ok(()), |variable| write!(f, " ({variable})"))
    }
}

/// The moment at which a wait gives up; [`Deadline::NEVER`] has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    moment: Option<Instant>,
    limit: TimeLimit,
}

impl Deadline {
    /// No deadline: only the abort flag or the death of a peer stops the wait.
    pub const NEVER: Deadline = Deadline { moment: None, limit: TimeLimit { time: Duration::MAX, variable: None } };

    /// `timeout` from now; `NEVER` if the clock cannot represent that.
    pub fn after(timeout: Duration) -> Deadline {
        TimeLimit { time: timeout, variable: None }.deadline()
    }

    /// Whether it has passed at `now`.
    pub fn passed(self, now: Instant) -> bool {
        self.moment.is_some_and(|moment| now >= moment)
    }

    /// Whether it has passed now, for a loop that waits and has no [`Wait`]: time in which this process stood still
    /// does not count.
    pub fn is_over(self) -> bool {
        clock::look();
        self.passed(clock::now())
    }

    /// After `time`, in a wait that has begun already.
    pub(crate) fn within_wait(time: Duration) -> Deadline {
        TimeLimit { time, variable: None }.deadline_since(clock::now())
    }

    /// The remaining time at `now`; `None` for `NEVER`.
    pub fn remaining(self, now: Instant) -> Option<Duration> {
        self.moment.map(|moment| moment.saturating_duration_since(now))
    }

    /// The shorter of the remaining time at `now` and `slice`.
    pub fn slice(self, now: Instant, slice: Duration) -> Duration {
        self.remaining(now).map_or(slice, |left| left.min(slice))
    }

    /// The later of the two deadlines.
    #[must_use]
    pub fn later(self, other: Deadline) -> Deadline {
        if self.earlier(other) == self { other } else { self }
    }

    /// The earlier of the two deadlines.
    #[must_use]
    pub fn earlier(self, other: Deadline) -> Deadline {
        match (self.moment, other.moment) {
            (Some(mine), Some(theirs)) if theirs < mine => other,
            (None, Some(_)) => other,
            (Some(_) | None, _) => self,
        }
    }
}

/// The bounds of a wait, and what runs meanwhile.
#[derive(Debug, Clone)]
pub struct Wait {
    /// When to give up.
    pub(crate) deadline: Deadline,
    /// Ends the wait when it is raised.
    pub(crate) abort: AbortFlag,
    /// The hook to call meanwhile, if any.
    pub(crate) progress: Option<Progress>,
    /// The reader of peers' notes, if any.
    pub(crate) notes: Option<NoteReader>,
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
        TimeLimit { time: timeout, variable: None }.wait(abort)
    }

    /// The same wait, which also calls a hook.
    #[must_use]
    pub(crate) fn with_progress(self, progress: Option<Progress>) -> Wait {
        Wait { progress, ..self }
    }

    /// The same wait, which also reads peers' notes.
    #[must_use]
    pub(crate) fn with_notes(self, notes: Option<NoteReader>) -> Wait {
        Wait { notes, ..self }
    }

    /// The same wait with another deadline.
    #[must_use]
    pub(crate) fn until(&self, deadline: Deadline) -> Wait {
        Wait { deadline, ..self.clone() }
    }

    /// How long the waiting loop may sleep now: at most `slice`, and less if the deadline is nearer or a hook must be
    /// called.
    pub fn slice(&self, slice: Duration) -> Duration {
        let slice = self.deadline.slice(clock::now(), progress::rest(self.progress.as_ref(), slice));
        clock::may_sleep(slice);
        slice
    }

    /// Passes notes to the reader.
    ///
    /// # Errors
    /// The reader's error.
    pub(crate) fn read<'a>(&self, mut come: impl Iterator<Item = (Rank, &'a [u8])>) -> Result<()> {
        match &self.notes {
            Some(NoteReader(read)) => come.try_for_each(|(from, bytes)| read(from, bytes)),
            None => Ok(()),
        }
    }

    /// The check that every waiting loop calls.
    ///
    /// # Errors
    /// The abort's reason; the hook's error; or [`crate::error::Kind::Timeout`] with the text of `waiting_for`: "timed
    /// out after 5.0 s: waited for the address of rank 3", with the variable that says how long.
    pub fn check(&self, waiting_for: impl FnOnce() -> String) -> Result<()> {
        clock::look();
        self.abort.check()?;
        progress::turn(self.progress.as_ref())?;
        if self.deadline.passed(clock::now()) {
            Err(Error::timeout(format!("timed out after {}: {}", self.deadline.limit, waiting_for())))
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    /// Regression: the deadline of a meeting, which lies behind that of the call, had lost the variable.
    #[test]
    fn a_limit_that_is_put_off_is_still_ruled_by_its_variable() {
        let limit = TimeLimit { time: Duration::ZERO, variable: Some("RSCCL_TIMEOUT_MS") };
        let put_off = limit.and(Duration::from_millis(10));
        assert_eq!(put_off.time, Duration::from_millis(10));
        assert_eq!(put_off.to_string(), "10 ms (RSCCL_TIMEOUT_MS)", "and not 0.0 s");
        let wait = limit.wait(&AbortFlag::new()).until(limit.and(Duration::ZERO).deadline());
        let error = wait.check(|| "waited for all ranks".to_owned()).unwrap_err();
        assert!(error.message().contains("(RSCCL_TIMEOUT_MS): waited for all ranks"), "{error}");
        // For ever and a moment more is for ever.
        let never = TimeLimit { time: Duration::MAX, ..limit };
        assert_eq!(never.and(Duration::from_secs(1)), never);
    }
}
