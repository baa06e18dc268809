//! The watch of one operation: whether it can still end well.

use std::time::{Duration, Instant};

use crate::error::{Error, Kind, Result};
use crate::session::Session;
use crate::session::peer_status::WaitingFor;
use crate::session::stall::{CollectiveStall, GAVE_UP, Stall};
use crate::sync::{AwaitedMessage, TimeLimit, Waiting, Watch};
use crate::sys::clock;
use crate::types::Rank;

/// Ends the wait for one operation at the deadline, after an abort, and where a rank that it needs has failed, died or
/// left. A wait that lasts tells the other ranks where this one is stuck, and its end that this one goes on.
///
/// A call that waits looks in each of its slow turns. For work that no thread waits for, a monitor calls
/// [`Watch::look`] now and then.
pub(crate) struct FailureWatch<'a> {
    session: &'a Session,
    waiting_for: WaitingFor<'a>,
    limit: TimeLimit,
    /// When the first look was, or the first of the call.
    since: Option<Instant>,
    /// Whether it is a part of the call that is under way, with whose other parts it has one deadline.
    is_of_call: bool,
    /// How long the wait lasts when this rank next tells the others where it is stuck.
    next_telling: Duration,
    /// What this rank does about what it has told, when the watch ends.
    at_end: AtEnd,
    /// Whether the rank's page says that it waits, which the end of the watch takes back.
    is_shown: bool,
}

/// What a watch tells the other ranks when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AtEnd {
    /// Nothing: it has told nothing, or has failed, or its wait goes on with another watch.
    Nothing,
    /// That this rank goes on.
    GoesOn,
    /// Nothing, whatever it tells meanwhile.
    Never,
}

/// A watch between two looks, for who watches several operations in turn.
#[derive(Debug)]
pub(crate) struct PausedWatch {
    since: Option<Instant>,
    next_telling: Duration,
    at_end: AtEnd,
    is_shown: bool,
}

impl<'a> FailureWatch<'a> {
    /// A watch that goes on where it was paused.
    pub(crate) fn resumed(
        session: &'a Session,
        waiting_for: WaitingFor<'a>,
        paused: Option<PausedWatch>,
    ) -> FailureWatch<'a> {
        let mut watch = FailureWatch::new(session, waiting_for);
        if let Some(PausedWatch { since, next_telling, at_end, is_shown }) = paused {
            (watch.since, watch.next_telling) = (since, next_telling);
            (watch.at_end, watch.is_shown) = (at_end, is_shown);
        }
        watch
    }

    /// Pauses it, which tells nobody anything. It ends when one that was [resumed](FailureWatch::resumed) is dropped.
    pub(crate) fn paused(mut self) -> PausedWatch {
        let FailureWatch { since, next_telling, at_end, is_shown, .. } = self;
        (self.at_end, self.is_shown) = (AtEnd::Nothing, false);
        PausedWatch { since, next_telling, at_end, is_shown }
    }

    /// A watch with the communicator's time-out, which begins at the first look.
    #[inline]
    pub(crate) fn new(session: &'a Session, waiting_for: WaitingFor<'a>) -> FailureWatch<'a> {
        let limit = session.settings.timeout;
        let (next_telling, at_end) = (STALL, AtEnd::Nothing);
        FailureWatch {
            session,
            waiting_for,
            limit,
            since: None,
            is_of_call: false,
            next_telling,
            at_end,
            is_shown: false,
        }
    }

    /// The same with another time-out.
    pub(crate) fn with_limit(mut self, limit: TimeLimit) -> FailureWatch<'a> {
        self.limit = limit;
        self
    }

    /// The same for a part of the call that is under way: one deadline bounds all its parts, from the first look of the
    /// first of them on.
    #[inline]
    pub(crate) fn of_call(session: &'a Session, waiting_for: WaitingFor<'a>) -> FailureWatch<'a> {
        FailureWatch { is_of_call: true, ..FailureWatch::new(session, waiting_for) }
    }

    /// The same, for one turn of a wait that began at `since`. Who waits calls [`Session::goes_on`] when it goes on.
    pub(crate) fn turn_since(mut self, since: Option<Instant>) -> FailureWatch<'a> {
        (self.since, self.at_end) = (since, AtEnd::Never);
        self
    }

    /// Where this rank is stuck; `None` if no peer can make use of that.
    fn stall(&self, waiting: &dyn Waiting) -> Option<Stall> {
        let exchanges = self.session.bootstrap.exchanges();
        match self.waiting_for {
            WaitingFor::Anything => None,
            WaitingFor::Bootstrap(call) => {
                Some(Stall::Meeting { call: call.name.to_owned(), exchanges: call.exchanges })
            }
            WaitingFor::Collective(operation) => {
                Some(Stall::Collective(CollectiveStall { label: operation.label(), exchanges }))
            }
            WaitingFor::Messages(all) => {
                let mut open = waiting.blocking().unwrap_or_else(all);
                if let Some(ranks) = waiting.unconnected() {
                    open.retain(|message| ranks.contains(&message.peer));
                }
                (!open.is_empty()).then_some(Stall::Messages { open, is_all: true })
            }
        }
    }

    /// The error at the deadline. The rank that is waited for may wait itself, so the error says who waits for whom,
    /// and blames a rank that has not said that it waits.
    fn overdue(&self, waiting: &dyn Waiting) -> Error {
        let message = format!("timed out after {} waiting for {}", self.limit, waiting.words());
        let known = [waiting.beside(), self.session.bootstrap.hindrance()].into_iter().flatten();
        let known = known.filter(|known| !message.contains(known.as_str()));
        let beside: String = known.map(|known| format!("; {known}")).collect();
        let Some(stall) = self.stall(waiting) else { return Error::timeout(message + &beside) };
        // Too soon for anybody to have said anything. Where one rank alone is waited for, it is that one.
        if self.limit.time < 2 * STALL {
            let error = Error::timeout(message + &beside);
            return match self.only_peer(&stall) {
                Some(peer) => error.about(peer),
                None => error,
            };
        }
        let culprit = self.session.culprit(&stall);
        let words = culprit.words(&stall, self.session.spans_hosts);
        let error = Error::timeout(format!("{message}; {words}{beside}"));
        match culprit.rank().or_else(|| self.only_peer(&stall)) {
            Some(rank) => error.about(rank),
            None => error,
        }
    }

    /// The rank that is waited for, where it is one alone.
    fn only_peer(&self, stall: &Stall) -> Option<Rank> {
        match stall {
            Stall::Messages { open, .. } => {
                let first = open.first()?.peer;
                open.iter().all(|message| message.peer == first).then_some(first)
            }
            Stall::Collective(_) | Stall::Meeting { .. } | Stall::Elsewhere(_) => {
                let mut others = self.session.world.ranks().filter(|rank| *rank != self.session.world.rank);
                others.next().filter(|_| others.next().is_none())
            }
        }
    }

    fn look_at(&mut self, waiting: &dyn Waiting) -> Result<()> {
        match self.since {
            Some(_) => clock::look(),
            None if self.is_of_call => self.session.begin_part_of_call(),
            None => clock::begin_wait(),
        }
        self.session.abort.check()?;
        let now = clock::now();
        let looked = match self.waiting_for {
            WaitingFor::Messages(all) => {
                let open = || -> Vec<AwaitedMessage> { waiting.messages().unwrap_or_else(all) };
                self.session.look_at_peers(WaitingFor::Messages(&open), now)
            }
            other => self.session.look_at_peers(other, now),
        };
        looked.map_err(|error| match waiting.beside() {
            // The peer whose deadline passed first does not know what this side's connections tell.
            Some(known) if error.kind() == Kind::Timeout => error.advising(&known),
            _ => error,
        })?;
        if self.waited(now) >= self.limit.time {
            return Err(self.overdue(waiting));
        }
        self.show(waiting, now);
        self.tell(waiting, now);
        Ok(())
    }

    /// Shows on the rank's page that it waits, if the wait has lasted.
    fn show(&mut self, waiting: &dyn Waiting, now: Instant) {
        let waited = self.waited(now);
        if waited >= SHOWN_AFTER {
            self.session.page.waits(waited, self.stall(waiting).as_ref(), &waiting.words());
            // Who waits in turns calls `goes_on`.
            self.is_shown = self.at_end != AtEnd::Never;
        }
    }

    /// How long the wait has lasted at `now`, which may be its beginning.
    fn waited(&mut self, now: Instant) -> Duration {
        let begun = || if self.is_of_call { self.session.call_waits_since(now) } else { now };
        now.saturating_duration_since(*self.since.get_or_insert_with(begun))
    }

    /// Tells the others where this rank is stuck, if the wait has lasted: for a wait that something else ends.
    pub(crate) fn tell(&mut self, waiting: &dyn Waiting, now: Instant) {
        let waited = self.waited(now);
        if waited < self.next_telling {
            return;
        }
        // Again after a while: some of the messages may have ended.
        self.next_telling = waited + STALL;
        self.session.tell_begun();
        self.session.look_at_processes();
        if let Some(stall) = self.stall(waiting) {
            self.session.tell_elsewhere(&stall);
            self.session.tell_stall(stall);
            if self.at_end == AtEnd::Nothing {
                self.at_end = AtEnd::GoesOn;
            }
        }
    }
}

impl Watch for FailureWatch<'_> {
    fn look(&mut self, waiting_for: &dyn Waiting) -> Result<()> {
        self.look_at(waiting_for).inspect_err(|_| {
            // The failure is told next, and says more; in other communicators nobody hears of it.
            self.at_end = AtEnd::Never;
            self.session.comes_back(GAVE_UP);
        })
    }
}

impl Drop for FailureWatch<'_> {
    fn drop(&mut self) {
        if self.at_end == AtEnd::GoesOn {
            self.session.goes_on();
        } else if self.is_shown {
            self.session.page.goes_on();
        }
    }
}

/// How long a wait lasts before the rank's page shows it: each look from then on costs a microsecond or two.
const SHOWN_AFTER: Duration = Duration::from_millis(100);
/// How long a wait lasts before it tells the others in which call it is stuck.
const STALL: Duration = Duration::from_millis(500);

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::bootstrap::LocalBootstrap;
    use crate::config::Config;
    use crate::exec::Operation;
    use crate::session::culprit::Culprit;
    use crate::session::settings::Settings;
    use crate::sync::AbortFlag;
    use crate::types::{Collective, DataType};

    fn sessions(timeout: Duration) -> [Session; 2] {
        let settings = Settings::read(&Config::default().with_timeout(timeout)).unwrap();
        let world = LocalBootstrap::world(2).unwrap().into_iter();
        let session = |rank| Session::new(Box::new(rank), settings.clone(), AbortFlag::new());
        world.map(session).collect::<Vec<_>>().try_into().unwrap()
    }

    /// Regression: each piece of a scan had a deadline of its own, so that a scan of many pieces could last for ever.
    #[test]
    fn parts_of_one_call_have_one_deadline() {
        let [mine, _theirs] = sessions(Duration::from_secs(1));
        let words = || "its piece".to_owned();
        let part = || FailureWatch::of_call(&mine, WaitingFor::Anything).look(&words);
        mine.begin_call();
        part().unwrap();
        // What the bootstrap does in a set-up has the same deadline as what waits for flags.
        let deadline = mine.deadline_of_call();
        while !deadline.passed(clock::now()) {
            crate::sys::futex::nap(Duration::from_millis(5));
            clock::look();
        }
        assert_eq!(part().unwrap_err().kind(), Kind::Timeout, "a part that has just begun");
        assert!(mine.wait().deadline.passed(clock::now()), "a set-up that has just begun");
        FailureWatch::new(&mine, WaitingFor::Anything).look(&words).expect("work of no call");
        mine.all_have_come();
        part().expect("what ranks exchange once all have come has a moment");
        assert!(!mine.deadline_of_call().passed(clock::now()), "a set-up, too");
        mine.begin_call();
        part().expect("the next call");
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
    const RECV: AwaitedMessage = AwaitedMessage { peer: Rank::new(0), call: Collective::Recv, number: 3, sends: false };

    /// What rank 0, which waits for rank 1, takes for its culprit by now.
    fn culprit_of(mine: &Session) -> Culprit {
        mine.look_at_peers(WaitingFor::Anything, clock::now()).expect("nobody has failed");
        mine.culprit(&Stall::Messages { open: vec![AwaitedMessage { peer: Rank::new(1), ..RECV }], is_all: true })
    }

    #[test]
    fn a_rank_is_stuck_in_a_message_from_when_it_says_so_until_it_goes_on() {
        let [mine, theirs] = sessions(LONG);
        let open = || vec![RECV];
        let long_ago = clock::now().checked_sub(2 * STALL);
        let mut watch = FailureWatch::new(&theirs, WaitingFor::Messages(&open));
        watch.look(&String::new).unwrap();
        assert!(matches!(culprit_of(&mine), Culprit::Silent(..)), "it has only begun to wait");
        watch.since = long_ago;
        watch.look(&String::new).unwrap();
        assert!(matches!(culprit_of(&mine), Culprit::Cycle(edges) if edges.len() == 2));
        drop(watch);
        assert!(matches!(culprit_of(&mine), Culprit::Silent(..)), "it has gone on");
        // A wait that is made of turns, of which each has a watch.
        let mut turn = FailureWatch::new(&theirs, WaitingFor::Messages(&open)).turn_since(long_ago);
        turn.look(&String::new).unwrap();
        drop(turn);
        assert!(matches!(culprit_of(&mine), Culprit::Cycle(_)), "it waits on");
        theirs.goes_on();
        assert!(matches!(culprit_of(&mine), Culprit::Silent(..)));
    }

    #[test]
    fn a_wait_for_messages_knows_which_of_them_are_open() {
        let [mine, theirs] = sessions(Duration::ZERO);
        struct Group;
        impl Waiting for Group {
            fn words(&self) -> String {
                "its group".to_owned()
            }
            fn messages(&self) -> Option<Vec<AwaitedMessage>> {
                Some(vec![AwaitedMessage { peer: Rank::new(1), ..RECV }])
            }
        }
        let all = || vec![AwaitedMessage { peer: Rank::new(7), ..RECV }];
        let error = FailureWatch::new(&mine, WaitingFor::Messages(&all)).look(&Group).unwrap_err();
        assert_eq!((error.kind(), error.peer()), (Kind::Timeout, Some(1)), "{error}");
        drop(theirs);
    }
}
