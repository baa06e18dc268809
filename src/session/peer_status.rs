//! What a communicator knows of its peers: who failed, died, left or is stuck. Ranks tell each other in notes, which
//! they publish through the bootstrap: the first byte is the kind, 1 and 3 of `bootstrap::cause`, the others of
//! [`stall`](crate::session::stall).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::bootstrap::Event;
use crate::bootstrap::cause::{NOTE_FAILURE, decode_failure};
use crate::error::{Error, Result};
use crate::exec::{History, Operation, same_call, sequence};
use crate::session::culprit::{BegunCounts, Picture};
use crate::session::elsewhere::RemoteState;
use crate::session::stall::{BegunMessages, Stall, StallNote};
use crate::sync::ring::Label;
use crate::sync::{AwaitedMessage, NoteReader};
use crate::sys::clock;
use crate::types::{Rank, World};

/// What a communicator knows of its peers.
#[derive(Debug)]
pub(crate) struct PeerStatus {
    world: World,
    dead: Vec<Dead>,
    left: Vec<Left>,
    /// Ranks whose process had ended at the last look.
    ended: Vec<Rank>,
    /// Ranks that have said where they are stuck.
    stalled: HashMap<Rank, Stall>,
    /// When ranks have said that their wait in another communicator has failed.
    gave_up: HashMap<Rank, Instant>,
    /// How many messages ranks have begun for which others wait.
    begun: BegunCounts,
    /// The first failure that a peer told of, or a difference that its note showed. The bootstrap delivers each note
    /// once, and every thread that looks must learn of it.
    failure: Option<Error>,
    /// The first failure of the control plane.
    control_failure: Option<Error>,
    /// Whether a wait has ended with one of these: then that is the cause of all errors that follow.
    pub(crate) is_cause: bool,
}

/// A rank that died.
#[derive(Debug)]
struct Dead {
    rank: Rank,
    why: String,
}

/// A rank that said goodbye.
#[derive(Debug)]
struct Left {
    rank: Rank,
    /// The first collective in which it takes no part.
    until: u64,
    heard: Instant,
}

impl PeerStatus {
    /// Nothing yet, of the peers in `world`.
    pub(crate) fn new(world: World) -> PeerStatus {
        PeerStatus {
            world,
            dead: Vec::new(),
            left: Vec::new(),
            ended: Vec::new(),
            stalled: HashMap::new(),
            gave_up: HashMap::new(),
            begun: BegunCounts::default(),
            failure: None,
            control_failure: None,
            is_cause: false,
        }
    }

    /// Says whether an operation that waits for `waiting_for` can still end well.
    ///
    /// # Errors
    /// Why it cannot, which is then the cause of the communicator's end.
    pub(crate) fn check(&mut self, waiting_for: WaitingFor<'_>, now: Instant) -> Result<()> {
        let failed = self.failure.as_ref().or(self.control_failure.as_ref()).map(Error::duplicate);
        let checked = failed.map_or(Ok(()), Err).and_then(|()| self.gone(waiting_for, now));
        checked.inspect_err(|_| self.is_cause = true)
    }

    /// How long the last words of a rank that has left may be on their way: then a message of that rank ends badly.
    pub(crate) fn last_words(&self, now: Instant) -> Option<Duration> {
        let left = self.left.iter().map(|left| LAST_WORDS.saturating_sub(now.saturating_duration_since(left.heard)));
        left.filter(|time| !time.is_zero()).min()
    }

    /// The error of an operation that waits for `waiting_for` where a rank that it needs has gone.
    fn gone(&self, waiting_for: WaitingFor<'_>, now: Instant) -> Result<()> {
        if let Some(Dead { rank, why }) = self.dead.first() {
            return Err(died(*rank, why));
        }
        if let WaitingFor::Bootstrap(call) = waiting_for {
            self.compare(call)?;
        }
        if self.left.is_empty() {
            return Ok(());
        }
        let gone = match waiting_for {
            WaitingFor::Anything | WaitingFor::Bootstrap(_) => None,
            WaitingFor::Collective(operation) => self.left.iter().find(|left| left.until <= operation.sequence),
            WaitingFor::Messages(open) => {
                let open = open();
                let is_due = |left: &Left| now.saturating_duration_since(left.heard) >= LAST_WORDS;
                self.left.iter().find(|left| is_due(left) && open.iter().any(|message| message.peer == left.rank))
            }
        };
        gone.map_or(Ok(()), |left| Err(finalized(left.rank)))
    }

    /// Of the ranks whose process has ended, those whose had ended at the last look too and of whom nothing was heard
    /// since: a goodbye may have been on its way.
    pub(crate) fn ended(&mut self, now: Vec<Rank>) -> Vec<Rank> {
        let before = std::mem::replace(&mut self.ended, now);
        let is_known = |rank: &Rank| {
            self.left.iter().any(|left| left.rank == *rank) || self.dead.iter().any(|dead| dead.rank == *rank)
        };
        self.ended.iter().copied().filter(|rank| before.contains(rank) && !is_known(rank)).collect()
    }

    /// What all ranks have told, for this rank, which is stuck in `mine` and has begun so many messages. `is_me`:
    /// whether it is a rank of another communicator.
    pub(crate) fn picture<'a>(
        &'a mut self,
        (mine, begun): (&'a Stall, &[BegunMessages]),
        is_me: &'a dyn Fn(u64, Rank) -> bool,
    ) -> Picture<'a> {
        self.note_begun(self.world.rank, begun);
        let now = clock::now();
        let is_over = |heard: Instant| now.saturating_duration_since(heard) >= JUST_NOW;
        for (rank, _) in self.gave_up.extract_if(|_, heard| is_over(*heard)) {
            self.stalled.remove(&rank);
        }
        Picture::new(self.world, (mine, is_me), (&self.stalled, &self.begun))
    }

    /// Takes what `rank` has begun, all of which stands in one note, for what it told before. A note that names a rank
    /// which does not exist tells nothing.
    fn note_begun(&mut self, rank: Rank, begun: &[BegunMessages]) {
        if rank.get() < self.world.size && begun.iter().all(|begun| begun.peer.get() < self.world.size) {
            let counts = begun.iter().map(|begun| ((begun.peer, begun.sends), begun.count));
            self.begun.insert(rank, counts.collect());
        }
    }

    /// The messages of which ranks that are stuck wait for the end of rank `me`: the rank, and whether `me` sends.
    pub(crate) fn wanted_of(&self, me: Rank) -> Vec<AwaitedMessage> {
        let mut wanted = Vec::new();
        for (rank, stall) in &self.stalled {
            let Stall::Messages { open, .. } = stall else { continue };
            let of_me = open.iter().filter(|message| message.peer == me && message.is_single());
            wanted.extend(of_me.map(|message| message.other_end(*rank)));
        }
        wanted
    }

    /// # Errors
    /// [`Kind::Mismatch`](crate::error::Kind::Mismatch) where a peer is stuck in a collective that comes before `call`
    /// to it and after `call` to this rank.
    fn compare(&self, call: BootstrapCall) -> Result<()> {
        self.stalled.iter().try_for_each(|(from, stall)| call.compare(*from, stall))
    }

    /// What `events`, and what was heard before, say of the end of `peer`: at best in the words of the rank that failed
    /// first.
    pub(crate) fn explain(&mut self, peer: Option<u32>, events: Vec<Event>, history: &History) -> Option<Error> {
        // Where an earlier failure has ended a wait already, only a new one can say more.
        let mut told = self.failure.as_ref().filter(|_| !self.is_cause).map(Error::duplicate);
        for event in events {
            let is_note = matches!(event, Event::Note { .. });
            // A failure of the control plane explains nothing about a peer.
            if let (Err(error), true) = (self.read(event, history), is_note) {
                told.get_or_insert(error);
            }
        }
        let is_it = |rank: Rank| Some(rank.get()) == peer;
        let dead = || self.dead.iter().find(|dead| is_it(dead.rank)).map(|dead| died(dead.rank, &dead.why));
        // An error learnt from a peer already names the rank that left. Our own view may blame the wrong rank.
        let left = || self.left.iter().find(|left| is_it(left.rank) && !self.is_cause).map(|left| finalized(left.rank));
        told.or_else(dead).or_else(left)
    }

    /// What is known of `rank`.
    pub(crate) fn standing(&self, rank: Rank) -> RemoteState {
        let dead = self.dead.iter().find(|dead| dead.rank == rank).map(|dead| RemoteState::Dead(dead.why.clone()));
        let left = || self.left.iter().any(|left| left.rank == rank).then_some(RemoteState::Left);
        let waits = || self.stalled.get(&rank).map(|stall| RemoteState::Waits(stall.to_string()));
        dead.or_else(left).or_else(waits).unwrap_or(RemoteState::Silent)
    }

    /// Remembers what an event says.
    pub(crate) fn hear(&mut self, event: Event, history: &History) {
        // Its error is remembered, and every check returns it.
        let _remembered = self.read(event, history);
    }

    /// Remembers what an event says, and returns the failure that it tells of.
    fn read(&mut self, event: Event, history: &History) -> Result<()> {
        let (told, kept) = match event {
            Event::Died(rank, why) => {
                self.dead.push(Dead { rank, why });
                return Ok(());
            }
            Event::Left(rank, until) => {
                self.left.push(Left { rank, until, heard: clock::now() });
                return Ok(());
            }
            Event::Failed(error) => (Err(error), &mut self.control_failure),
            Event::Note { from, bytes } => (self.read_note(from, &bytes, history), &mut self.failure),
        };
        told.inspect_err(|error| {
            kept.get_or_insert_with(|| error.duplicate());
        })
    }

    /// Notes come from ranks that know the secret. Even so, a note that cannot be read is passed over and not trusted.
    fn read_note(&mut self, from: Rank, bytes: &[u8], history: &History) -> Result<()> {
        if bytes.first() == Some(&NOTE_FAILURE) {
            return Err(decode_failure(from, &bytes[1..]));
        }
        match StallNote::decode(bytes) {
            Some(StallNote::Stuck(stall)) => {
                let label = if let Stall::Collective(stall) = &stall { Some(stall.label) } else { None };
                self.gave_up.remove(&from);
                self.stalled.insert(from, stall);
                let labels = StallNote::earlier_labels(bytes).chain(label);
                labels.into_iter().try_for_each(|label| compare(history, from, label))
            }
            Some(StallNote::GoesOn) => {
                self.gave_up.remove(&from);
                self.stalled.remove(&from);
                Ok(())
            }
            Some(StallNote::GaveUp) => {
                if let Some(Stall::Elsewhere(_)) = self.stalled.get(&from) {
                    self.gave_up.insert(from, clock::now());
                }
                Ok(())
            }
            Some(StallNote::Begun(all)) => {
                self.note_begun(from, &all);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// What ends a collective call of the bootstrap early: notes that come while it waits, and those that came before.
    ///
    /// # Errors
    /// [`Kind::Mismatch`] where a peer has said already that it is stuck elsewhere.
    pub(crate) fn reader(&self, call: BootstrapCall) -> Result<NoteReader> {
        self.compare(call)?;
        Ok(NoteReader::new(move |from, bytes| match (bytes.first(), StallNote::decode(bytes)) {
            (Some(&NOTE_FAILURE), _) => Err(decode_failure(from, &bytes[1..])),
            (_, Some(StallNote::Stuck(stall))) => call.compare(from, &stall),
            (_, Some(StallNote::GoesOn | StallNote::GaveUp | StallNote::Begun(_)) | None) => Ok(()),
        }))
    }
}

/// Compares the collective in which a peer is stuck with this rank's of the same number.
fn compare(history: &History, from: Rank, theirs: Label) -> Result<()> {
    match history.at(sequence(theirs)) {
        Some(mine) if !same_call(mine, theirs) => Err(history.differs(mine, from, theirs)),
        _ => Ok(()),
    }
}

/// A call of the user's that is a collective call of the bootstrap (split, shrink), and its place in this rank's
/// program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BootstrapCall {
    /// What the user called.
    pub(crate) name: &'static str,
    /// The number of this rank's next collective.
    pub(crate) collectives: u64,
    /// How many collective calls of the bootstrap this rank had begun before.
    pub(crate) exchanges: u64,
}

impl BootstrapCall {
    /// Says whether a peer that is stuck somewhere can still come to this call. It cannot if it waits in a collective
    /// that this rank begins later and has not begun this call: then the two programs have the calls in different
    /// orders.
    fn compare(&self, from: Rank, stall: &Stall) -> Result<()> {
        let Stall::Collective(stall) = stall else { return Ok(()) };
        if sequence(stall.label) < self.collectives || stall.exchanges > self.exchanges {
            return Ok(());
        }
        let (mine, theirs) = (self.name, crate::exec::describe(stall.label));
        Err(Error::mismatch(format!("this rank called {mine}, rank {from} called {theirs}")).about(from))
    }
}

/// What an operation waits for, which says whose leaving ends the wait.
#[derive(Clone, Copy)]
pub(crate) enum WaitingFor<'a> {
    /// No specific rank: communicator set-up.
    Anything,
    /// A collective call of the bootstrap. Peers that are stuck in another call are reported as a mismatch.
    Bootstrap(BootstrapCall),
    /// All ranks, unless they have done their part before.
    Collective(&'a Operation),
    /// The messages that have not ended. The list is made only when a rank has left or this one is stuck.
    Messages(&'a dyn Fn() -> Vec<AwaitedMessage>),
}

fn died(rank: Rank, why: &str) -> Error {
    Error::remote(rank, format!("rank {rank} has died: {why}"))
}

fn finalized(rank: Rank) -> Error {
    Error::remote(rank, format!("rank {rank} has finalized and takes no part in this"))
}

/// How long after a rank's goodbye its messages may still come: goodbyes travel over connections of their own.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// How long a wait in another communicator counts after it has failed: of ranks that wait for each other, the deadline
/// of one passes first, and the others tell of the same cycle.
const JUST_NOW: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::cause::failure_note;
    use crate::error::Kind;
    use crate::session::culprit::Culprit;
    use crate::session::stall::{CollectiveStall, ElsewhereStall, GAVE_UP, GOES_ON, comparison_note};
    use crate::sync::{AbortFlag, Wait};
    use crate::types::{Collective, DataType};

    fn status() -> PeerStatus {
        PeerStatus::new(World { rank: Rank::new(0), size: 4 })
    }

    /// Regression: each note added to what was known, whatever ranks it named.
    #[test]
    fn what_peers_have_begun_is_bounded_and_names_ranks_that_exist() {
        let mut peers = status();
        let begun = |peer, count| BegunMessages { peer: Rank::new(peer), sends: true, count };
        let mut hear = |from, all: &[BegunMessages]| {
            peers.read_note(Rank::new(from), &BegunMessages::encode(all), &History::default()).unwrap();
            peers.begun.values().map(HashMap::len).sum::<usize>()
        };
        assert_eq!(hear(1, &[begun(0, 7), begun(2, 1)]), 2);
        assert_eq!(hear(1, &[begun(0, 9), begun(4, 1)]), 2, "there is no rank 4");
        assert_eq!(hear(9, &[begun(0, 9)]), 2, "nor 9");
        assert_eq!(hear(1, &[begun(3, 5)]), 1, "a note is all that its rank has begun");
        for peer in 4..1000 {
            assert_eq!(hear(2, &[begun(peer, 1)]), 1);
        }
        assert_eq!(peers.begun[&Rank::new(1)], HashMap::from([((Rank::new(3), true), 5)]));
    }

    fn operation(count: u64, sequence: u64) -> Operation {
        let (collective, data_type) = (Collective::AllGather, DataType::I32);
        Operation {
            collective,
            data_type,
            op: None,
            root: None,
            count,
            sequence,
            past: 0,
            on_device: false,
            windows: 0,
        }
    }

    fn stall_note(label: Label) -> Vec<u8> {
        Stall::Collective(CollectiveStall { label, exchanges: 3 }).encode()
    }

    #[test]
    fn a_peer_that_is_stuck_before_an_exchange_will_not_come_to_it() {
        let at = |collectives, exchanges| BootstrapCall { name: "split", collectives, exchanges };
        // It waits in collective 6 and has begun 3 exchanges.
        let note = stall_note(operation(4, 6).label());
        let heard_before = |call: BootstrapCall| {
            let mut peers = status();
            peers.read_note(Rank::new(2), &note, &History::default()).unwrap();
            peers.reader(call).map(drop)
        };
        let hears = |call: BootstrapCall| {
            let wait = Wait::new(Duration::ZERO, &AbortFlag::new()).with_notes(Some(status().reader(call)?));
            wait.read([(Rank::new(2), &note[..])].into_iter())
        };
        let cases = [
            (at(6, 3), false, "its collective comes first to it, this exchange to us"),
            (at(5, 4), false, "so it is further on with collectives, and back with exchanges"),
            (at(7, 3), true, "we are through with its collective: it may come"),
            (at(6, 2), true, "it has begun our exchange: it is here, or was"),
        ];
        for (call, is_fine, why) in cases {
            for result in [heard_before(call), hears(call)] {
                assert_eq!(result.is_ok(), is_fine, "{why}");
                if let Err(error) = result {
                    assert_eq!((error.kind(), error.peer()), (Kind::Mismatch, Some(2)));
                    assert!(error.message().starts_with("this rank called split, rank 2 called all_gather"), "{error}");
                }
            }
        }
    }

    #[test]
    fn a_failure_ends_an_exchange() {
        let note = failure_note(&Error::mismatch("counts differ").during("all_reduce #3"));
        let call = BootstrapCall { name: "split", collectives: 0, exchanges: 0 };
        let reader = status().reader(call).unwrap();
        let wait = Wait::new(Duration::ZERO, &AbortFlag::new()).with_notes(Some(reader));
        let error = wait.read([(Rank::new(1), &note[..])].into_iter()).unwrap_err();
        assert_eq!(error.message(), "rank 1 reports in all_reduce #3: counts differ");
        assert!(wait.read([(Rank::new(1), &[9u8, 9][..])].into_iter()).is_ok());
    }

    #[test]
    fn a_failure_keeps_its_kind_peer_and_words() {
        let error = Error::mismatch("counts differ").about(Rank::new(4)).during("all_reduce #3");
        let note = failure_note(&error);
        let heard = status().read_note(Rank::new(1), &note, &History::default()).unwrap_err();
        assert_eq!((heard.kind(), heard.peer()), (Kind::Mismatch, Some(4)));
        assert_eq!(heard.message(), "rank 1 reports in all_reduce #3: counts differ");
    }

    #[test]
    fn a_stalled_peer_with_another_call_is_a_mismatch() {
        let mut peers = status();
        let history = History::default();
        history.begin(&operation(4, 0));
        history.begin(&operation(4, 1));
        assert!(peers.read_note(Rank::new(2), &stall_note(operation(4, 1).label()), &history).is_ok());
        assert!(peers.read_note(Rank::new(2), &stall_note(operation(9, 7).label()), &history).is_ok());
        let error = peers.read_note(Rank::new(2), &stall_note(operation(5, 1).label()), &history).unwrap_err();
        assert_eq!(error.kind(), Kind::Mismatch);
        assert!(error.message().contains("count 4") && error.message().contains("rank 2"), "{error}");
    }

    #[test]
    fn a_peer_that_asks_is_told_the_first_call_that_differs() {
        let (mine, theirs) = (History::default(), History::default());
        for (history, count) in [(&mine, 4), (&theirs, 5)] {
            history.begin(&operation(1, 0));
            history.begin(&operation(count, 1));
            history.begin(&operation(1, 2));
        }
        let note = comparison_note(operation(1, 2).label(), 0, &theirs);
        let error = status().read_note(Rank::new(2), &note, &mine).unwrap_err();
        assert_eq!((error.kind(), error.peer()), (Kind::Mismatch, Some(2)));
        assert!(error.message().contains("#1 (count 4") && error.message().contains("#1 (count 5"), "{error}");
        assert!(status().read_note(Rank::new(2), &note, &theirs).is_ok());
    }

    #[test]
    fn a_rank_that_left_ends_only_what_it_takes_no_part_in() {
        let mut peers = status();
        peers.hear(Event::Left(Rank::new(3), 5), &History::default());
        let (now, later) = (clock::now(), clock::now() + 2 * LAST_WORDS);
        assert!(peers.gone(WaitingFor::Collective(&operation(1, 4)), now).is_ok());
        assert_eq!(peers.gone(WaitingFor::Collective(&operation(1, 5)), now).unwrap_err().peer(), Some(3));
        let recv = |peer| AwaitedMessage { peer: Rank::new(peer), call: Collective::Recv, number: 0, sends: false };
        let (others, them) = (|| vec![recv(2)], || vec![recv(2), recv(3)]);
        assert!(peers.gone(WaitingFor::Messages(&others), later).is_ok());
        assert!(peers.gone(WaitingFor::Messages(&them), now).is_ok(), "its last words may be on their way");
        assert_eq!(peers.gone(WaitingFor::Messages(&them), later).unwrap_err().peer(), Some(3));
    }

    #[test]
    fn who_has_not_said_that_it_waits_is_known() {
        let mut peers = PeerStatus::new(World { rank: Rank::new(0), size: 3 });
        let history = History::default();
        peers.read_note(Rank::new(1), &stall_note(operation(4, 6).label()), &history).unwrap();
        let mine = Stall::Collective(CollectiveStall { label: operation(4, 6).label(), exchanges: 3 });
        let culprit = |peers: &mut PeerStatus| peers.picture((&mine, &[]), &|_, _| false).culprit();
        assert_eq!(culprit(&mut peers), Culprit::Silent(vec![Rank::new(2)], Vec::new()));
        peers.read_note(Rank::new(2), &stall_note(operation(4, 5).label()), &history).unwrap();
        assert!(matches!(culprit(&mut peers), Culprit::Behind(_)));
        peers.read_note(Rank::new(2), GOES_ON, &history).unwrap();
        assert!(matches!(culprit(&mut peers), Culprit::Silent(..)));
    }

    /// Of two ranks that wait for each other in two communicators the deadline of one passes first.
    #[test]
    fn a_wait_elsewhere_counts_for_a_moment_after_it_has_failed() {
        let mut peers = PeerStatus::new(World { rank: Rank::new(0), size: 2 });
        let hear =
            |peers: &mut PeerStatus, note: &[u8]| peers.read_note(Rank::new(1), note, &History::default()).unwrap();
        let awaited = vec![(Rank::new(0), "recv #1".to_owned())];
        let elsewhere = Stall::Elsewhere(ElsewhereStall { communicator: 9, name: String::new(), awaited }).encode();
        let mine = Stall::Collective(CollectiveStall { label: operation(4, 6).label(), exchanges: 3 });
        let is_cycle =
            |peers: &mut PeerStatus| matches!(peers.picture((&mine, &[]), &|_, _| true).culprit(), Culprit::Cycle(_));
        hear(&mut peers, GAVE_UP);
        assert!(!is_cycle(&mut peers), "it had told nothing");
        hear(&mut peers, &elsewhere);
        assert!(is_cycle(&mut peers));
        hear(&mut peers, GAVE_UP);
        assert!(is_cycle(&mut peers));
        peers.gave_up.values_mut().for_each(|heard| *heard = heard.checked_sub(JUST_NOW).unwrap());
        assert!(!is_cycle(&mut peers), "it may do something else by now");
        hear(&mut peers, &elsewhere);
        assert!(is_cycle(&mut peers), "it stands there again");
        hear(&mut peers, GOES_ON);
        assert!(!is_cycle(&mut peers));
    }

    /// Rank 1 waits for a message that this rank has begun, and for one that it has not.
    #[test]
    fn messages_for_which_peers_wait_are_known() {
        let mut peers = status();
        let open = vec![
            AwaitedMessage { peer: Rank::new(0), call: Collective::Recv, number: 3, sends: false },
            AwaitedMessage { peer: Rank::new(2), call: Collective::Send, number: 4, sends: true },
            AwaitedMessage { peer: Rank::new(0), call: Collective::AllToAllV, number: 4, sends: true },
        ];
        let stall = Stall::Messages { open, is_all: true };
        peers.read_note(Rank::new(1), &stall.encode(), &History::default()).unwrap();
        let wanted = AwaitedMessage { peer: Rank::new(1), call: Collective::Send, number: 3, sends: true };
        assert_eq!(peers.wanted_of(Rank::new(0)), [wanted]);
        let told = BegunMessages::encode(&[BegunMessages { peer: Rank::new(1), sends: true, count: 4 }]);
        peers.read_note(Rank::new(0), &told, &History::default()).unwrap();
        assert_eq!(peers.begun[&Rank::new(0)].get(&(Rank::new(1), true)), Some(&4));
    }

    #[test]
    fn garbage_is_passed_over() {
        for note in [&[][..], &[9, 1, 2], &[2, 1]] {
            assert!(status().read_note(Rank::new(0), note, &History::default()).is_ok());
        }
        let failure = status().read_note(Rank::new(0), &[NOTE_FAILURE, 0, 0], &History::default());
        assert_eq!(failure.unwrap_err().peer(), Some(0));
    }
}
