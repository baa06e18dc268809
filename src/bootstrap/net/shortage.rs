//! What keeps a rank from opening connections: most often no descriptor is left.
//!
//! It passes when descriptors are closed, so the rank tries again. A wait that needs a new connection fails once the
//! shortage has lasted for [`PATIENCE`]; any other wait goes on, and names it if its deadline passes.

use std::io;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Shortage(Option<Noted>);

#[derive(Debug)]
struct Noted {
    error: io::Error,
    first: Instant,
    last: Instant,
}

/// How long a rank pauses before it tries again to open a connection.
pub(super) const PAUSE: Duration = Duration::from_millis(50);

/// How long a shortage lasts before a wait that needs a connection fails: other threads may hold descriptors for a
/// moment only.
const PATIENCE: Duration = Duration::from_millis(500);

/// A shortage that was noted longer ago than this says nothing of now: nobody has tried since.
const FRESH: Duration = Duration::from_millis(250);

impl Shortage {
    /// Notes that a connection could not be opened at `now`.
    pub(super) fn note(&mut self, error: io::Error, now: Instant) {
        let first = self.fresh(now).map_or(now, |noted| noted.first);
        self.0 = Some(Noted { error, first, last: now });
    }

    /// Notes that a connection could be opened.
    pub(super) fn end(&mut self) {
        self.0 = None;
    }

    /// # Errors
    /// [`crate::error::Kind::System`] if the shortage has lasted too long.
    pub(super) fn check(&self, now: Instant) -> Result<()> {
        match self.fresh(now) {
            Some(noted) if now.duration_since(noted.first) >= PATIENCE => {
                // The source has the code, by which the remedy is found.
                let source = noted.error.raw_os_error().map_or(noted.error.kind().into(), io::Error::from_raw_os_error);
                Err(Error::system("this rank can open no more connections", source))
            }
            _ => Ok(()),
        }
    }

    /// The shortage in words, for a wait that has timed out.
    pub(super) fn words(&self, now: Instant) -> Option<String> {
        self.fresh(now).map(|noted| format!("this rank can open no more connections: {}", noted.error))
    }

    fn fresh(&self, now: Instant) -> Option<&Noted> {
        self.0.as_ref().filter(|noted| now.saturating_duration_since(noted.last) < FRESH)
    }
}

const _: () = assert!(PAUSE.as_millis() < FRESH.as_millis() && FRESH.as_millis() < PATIENCE.as_millis());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_counts_once_it_has_lasted_and_while_it_lasts() {
        let start = crate::sys::clock::now();
        let error = || io::Error::from_raw_os_error(24);
        let mut shortage = Shortage::default();
        for turn in 0..10 {
            let now = start + PAUSE * turn;
            shortage.note(error(), now);
            shortage.check(now).unwrap();
        }
        let late = start + PATIENCE;
        assert!(shortage.check(late).unwrap_err().message().contains("Too many open files"));
        assert!(shortage.words(late).is_some());
        shortage.check(late + FRESH).unwrap();
        // Nobody has tried for a while: the shortage may have ended and begun anew.
        shortage.note(error(), late + FRESH * 2);
        shortage.check(late + FRESH * 2).unwrap();
        shortage.end();
        assert!(shortage.words(late + FRESH * 2).is_none());
    }
}
