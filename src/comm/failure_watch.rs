//! The watch of one operation: whether it can still end well.

use std::time::{Duration, Instant};

use crate::comm::peer_status::WaitingFor;
use crate::comm::session::Session;
use crate::error::{Error, Result};
use crate::sync::Watch;
use crate::sys::clock;

/// Ends the wait for one operation at the deadline, after an abort, and where a rank that it needs has failed, died or
/// left.
///
/// A call that waits looks in each of its slow turns. For work that no thread waits for, a monitor calls
/// [`Watch::look`] now and then.
pub(crate) struct FailureWatch<'a> {
    session: &'a Session,
    waiting_for: WaitingFor<'a>,
    timeout: Duration,
    /// When the first look was.
    since: Option<Instant>,
    /// Whether this rank has told the others that it is stuck.
    told: bool,
}

impl<'a> FailureWatch<'a> {
    /// A watch with the communicator's time-out, which begins at the first look.
    #[inline]
    pub(crate) fn new(session: &'a Session, waiting_for: WaitingFor<'a>) -> FailureWatch<'a> {
        FailureWatch { session, waiting_for, timeout: session.settings.timeout, since: None, told: false }
    }

    /// The same with another time-out.
    pub(crate) fn with_timeout(self, timeout: Duration) -> FailureWatch<'a> {
        FailureWatch { timeout, ..self }
    }

    /// The same, of a wait that began at `since`.
    pub(crate) fn since(self, since: Option<Instant>) -> FailureWatch<'a> {
        FailureWatch { since, ..self }
    }

    /// The error at the deadline. The rank that is waited for may wait itself, so the error blames a rank that has not
    /// said so.
    fn overdue(&self, waiting_for: String) -> Error {
        let message = format!("timed out after {:.1} s waiting for {waiting_for}", self.timeout.as_secs_f64());
        let WaitingFor::Collective(operation) = self.waiting_for else { return Error::timeout(message) };
        let silent = self.session.silent(operation);
        let named = silent.iter().take(NAMED_RANKS).map(|rank| format!("rank {rank}"));
        let named = named.collect::<Vec<_>>().join(", ");
        let more = if silent.len() > NAMED_RANKS { ", ..." } else { "" };
        match silent[..] {
            // Too soon for anybody to have said anything. Of two ranks it is the other that is waited for.
            [other] if self.timeout < 2 * STALL && self.session.world.size == 2 => Error::timeout(message).about(other),
            _ if self.timeout < 2 * STALL => Error::timeout(message),
            [] => Error::timeout(format!("{message}; all other ranks wait in it too")),
            [culprit] => {
                Error::timeout(format!("{message}; {named} alone has not said that it waits too")).about(culprit)
            }
            _ => Error::timeout(format!("{message}; {named}{more} have not said that they wait too")),
        }
    }
}

impl Watch for FailureWatch<'_> {
    fn look(&mut self, waiting_for: &dyn Fn() -> String) -> Result<()> {
        self.session.abort.check()?;
        let now = clock::now();
        self.session.look_at_peers(self.waiting_for, now)?;
        let since = *self.since.get_or_insert(now);
        let waited = now.duration_since(since);
        if waited >= self.timeout {
            return Err(self.overdue(waiting_for()));
        }
        if waited >= STALL && !self.told {
            self.told = true;
            if let WaitingFor::Collective(operation) = self.waiting_for {
                self.session.publish_stall(operation);
            }
        }
        Ok(())
    }
}

/// Ranks that a time-out names.
const NAMED_RANKS: usize = 8;
/// How long a collective waits before it tells the others in which call it is stuck.
const STALL: Duration = Duration::from_millis(500);

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::bootstrap::LocalBootstrap;
    use crate::comm::Settings;
    use crate::config::Config;
    use crate::error::Kind;
    use crate::exec::Operation;
    use crate::sync::AbortFlag;
    use crate::types::{Collective, DataType};

    fn sessions(timeout: Duration) -> [Session; 2] {
        let settings = Settings::read(&Config::default().with_timeout(timeout)).unwrap();
        let world = LocalBootstrap::world(2).unwrap().into_iter();
        let session = |rank| Session::new(Box::new(rank), settings.clone(), AbortFlag::new());
        world.map(session).collect::<Vec<_>>().try_into().unwrap()
    }

    /// What a monitor thread finds that looks at the session of rank 0, on which a collective is submitted and no
    /// thread waits. `happens` runs after its first look, which finds nothing; it returns the peer where that is to
    /// live on.
    fn monitored(timeout: Duration, happens: impl FnOnce(&Session, Session) -> Option<Session>) -> Error {
        let [mine, theirs] = sessions(timeout);
        let (collective, data_type) = (Collective::AllGather, DataType::I32);
        let sequence = mine.next_collective();
        let operation = Operation {
            collective,
            data_type,
            op: None,
            root: None,
            count: 1,
            sequence,
            past: 0,
            on_device: false,
            windows: 0,
        };
        mine.history.begin(&operation);
        let has_looked = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            let monitor = scope.spawn(|| {
                let mut watch = FailureWatch::new(&mine, WaitingFor::Collective(&operation));
                watch.look(&|| "its kernel".to_owned()).expect("nothing has happened yet");
                has_looked.wait();
                loop {
                    if let Err(error) = watch.look(&|| "its kernel".to_owned()) {
                        return error;
                    }
                    std::thread::yield_now();
                }
            });
            has_looked.wait();
            let _peer = happens(&mine, theirs);
            monitor.join().expect("the monitor does not panic")
        })
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_monitor_learns_of_a_dead_peer() {
        let error = monitored(LONG, |_, theirs| {
            drop(theirs);
            None
        });
        assert_eq!((error.kind(), error.peer()), (Kind::Remote, Some(1)), "{error}");
    }

    #[test]
    fn a_monitor_learns_of_a_peer_that_leaves_before_its_part() {
        let error = monitored(LONG, |_, theirs| {
            theirs.leave();
            Some(theirs)
        });
        assert_eq!((error.kind(), error.peer()), (Kind::Remote, Some(1)), "{error}");
        assert!(error.message().contains("finalized"), "{error}");
    }

    #[test]
    fn a_monitor_learns_of_an_abort() {
        let error = monitored(LONG, |mine, theirs| {
            mine.abort.raise(Error::aborted("enough"));
            Some(theirs)
        });
        assert_eq!((error.kind(), error.message()), (Kind::Aborted, "enough"));
    }

    #[test]
    fn a_monitor_learns_of_a_failure_also_when_another_thread_has_heard_of_it_first() {
        let error = monitored(LONG, |mine, theirs| {
            theirs.publish_failure(&Error::mismatch("counts differ").during("all_gather #0"));
            // The bootstrap delivers the note once: to one of this thread's looks, or to one of the monitor's.
            let mut watch = FailureWatch::new(mine, WaitingFor::Anything);
            while watch.look(&String::new).is_ok() {
                std::thread::yield_now();
            }
            Some(theirs)
        });
        assert_eq!(error.kind(), Kind::Mismatch, "{error}");
        assert_eq!(error.message(), "rank 1 reports in all_gather #0: counts differ");
    }

    #[test]
    fn a_monitor_learns_of_the_deadline() {
        let error = monitored(Duration::from_millis(2), |_, theirs| Some(theirs));
        assert_eq!(error.kind(), Kind::Timeout, "{error}");
        assert!(error.message().ends_with("waiting for its kernel"), "{error}");
    }
}
