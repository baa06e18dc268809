//! What ranks tell each other besides data: failures and stalls; and the watch that every wait looks at.
//!
//! # Notes
//! Published through the bootstrap, read by whoever waits. One byte of kind, then:
//! ```text
//! 1 failure   see `bootstrap::cause`
//! 2 stall     four u64: the label of the operation that the rank waits in; the exchanges of the bootstrap that it had begun before;
//!             then labels of its collectives before that one, three u64 each, where it asks who called something else
//! ```

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::bootstrap::cause::{NOTE_FAILURE, decode_failure};
use crate::bootstrap::{Bootstrap, Event, MAX_NOTE_BYTES};
use crate::error::{Error, Result};
use crate::exec::{History, Operation, mismatch, same_call, sequence};
use crate::sync::ring::Label;
use crate::sync::{AbortFlag, NoteReader, Watch};
use crate::sys::clock;
use crate::types::{Rank, World};

/// What a communicator knows of its peers.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// Ranks that died, with the reason.
    dead: Vec<(Rank, String)>,
    /// Ranks that left, with the first collective that they take no part in, and when this was heard.
    left: Vec<(Rank, u64, Instant)>,
    /// Ranks that have said where they are stuck.
    stalled: HashMap<Rank, Stall>,
    /// Whether a wait has ended with news: then they are the cause.
    pub(crate) is_cause: bool,
}

impl News {
    /// The error for what is `awaited` where a rank that it needs has gone.
    fn gone(&self, awaited: Awaited<'_>, now: Instant) -> Result<()> {
        if let Some((rank, why)) = self.dead.first() {
            return Err(died(*rank, why));
        }
        if let Awaited::Exchange(exchange) = awaited {
            self.stalled.iter().try_for_each(|(from, stall)| exchange.compare(*from, stall))?;
        }
        if self.left.is_empty() {
            return Ok(());
        }
        let gone = match awaited {
            Awaited::Anything | Awaited::Exchange(_) => None,
            Awaited::Collective(operation) => self.left.iter().find(|(_, until, _)| *until <= operation.sequence),
            Awaited::Messages(peers) => {
                let peers = peers();
                let due = |heard: Instant| now.duration_since(heard) >= LAST_WORDS;
                self.left.iter().find(|(rank, _, heard)| due(*heard) && peers.contains(rank))
            }
        };
        gone.map_or(Ok(()), |(rank, ..)| Err(finalized(*rank)))
    }

    /// The ranks of `world` that have not said that they are stuck in `operation` too.
    fn silent(&self, operation: &Operation, world: World) -> Vec<Rank> {
        let is_stuck =
            |rank: &Rank| self.stalled.get(rank).is_some_and(|stall| sequence(stall.label) == operation.sequence);
        world.ranks().filter(|rank| *rank != world.rank && !is_stuck(rank)).collect()
    }

    /// What `events` and what was heard before say of the end of `peer`, best of all in the words of whoever failed first.
    pub(crate) fn explain(&mut self, peer: Option<u32>, events: Vec<Event>, history: &History) -> Option<Error> {
        let mut told = None;
        for event in events {
            // A failure of the control plane explains nothing about a peer.
            if !matches!(event, Event::Failed(_))
                && let Err(error) = self.hear(event, history)
            {
                told.get_or_insert(error);
            }
        }
        let is_it = |rank: Rank| Some(rank.get()) == peer;
        let dead = || self.dead.iter().find(|(rank, _)| is_it(*rank)).map(|(rank, why)| died(*rank, why));
        // What came by the news says already who was missed, and by whom: not always by this rank.
        let left =
            || self.left.iter().find(|(rank, ..)| is_it(*rank) && !self.is_cause).map(|(rank, ..)| finalized(*rank));
        told.or_else(dead).or_else(left)
    }

    fn hear(&mut self, event: Event, history: &History) -> Result<()> {
        match event {
            Event::Died(rank, why) => {
                self.dead.push((rank, why));
                Ok(())
            }
            Event::Left(rank, until) => {
                self.left.push((rank, until, clock::now()));
                Ok(())
            }
            Event::Failed(error) => Err(error),
            Event::Note { from, bytes } => self.read_note(from, &bytes, history),
        }
    }

    /// Notes come from ranks that know the secret; still, what cannot be read is passed over and not trusted.
    fn read_note(&mut self, from: Rank, bytes: &[u8], history: &History) -> Result<()> {
        match bytes.first() {
            Some(&NOTE_FAILURE) => Err(decode_failure(from, &bytes[1..])),
            Some(&NOTE_STALL) => match Stall::decode(&bytes[1..]) {
                Some(stall) => {
                    self.stalled.insert(from, stall);
                    let before = bytes[1..].get(Stall::BYTES..).unwrap_or_default().chunks_exact(size_of::<Label>());
                    before.map(label_of).try_for_each(|label| compare(history, from, label))?;
                    compare(history, from, stall.label)
                }
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// What ends an exchange of this rank's early: the notes that come while it waits, and those that came before.
    ///
    /// # Errors
    /// [`Kind::Mismatch`] where a peer has said already that it is stuck elsewhere.
    pub(crate) fn reader(&self, exchange: Exchange) -> Result<NoteReader> {
        self.stalled.iter().try_for_each(|(from, stall)| exchange.compare(*from, stall))?;
        Ok(NoteReader::new(move |from, bytes| match bytes.first() {
            Some(&NOTE_FAILURE) => Err(decode_failure(from, &bytes[1..])),
            Some(&NOTE_STALL) => Stall::decode(&bytes[1..]).map_or(Ok(()), |stall| exchange.compare(from, &stall)),
            _ => Ok(()),
        }))
    }
}

/// Compares the collective in which a peer is stuck with this rank's of the same number.
fn compare(history: &History, from: Rank, theirs: Label) -> Result<()> {
    match history.at(sequence(theirs)) {
        Some(mine) if !same_call(mine, theirs) => Err(mismatch(mine, from, theirs)),
        _ => Ok(()),
    }
}

/// Where a rank is stuck: in which collective, having begun so many exchanges of the bootstrap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stall {
    label: Label,
    exchanges: u64,
}

impl Stall {
    /// Bytes behind the note's kind.
    const BYTES: usize = 4 * size_of::<u64>();

    fn encode(&self) -> Vec<u8> {
        let mut note = vec![NOTE_STALL];
        note.extend(self.label.iter().chain([&self.exchanges]).flat_map(|word| word.to_le_bytes()));
        note
    }

    /// What stands behind the note's kind.
    fn decode(bytes: &[u8]) -> Option<Stall> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        Some(Stall { label: [word(0)?, word(8)?, word(16)?], exchanges: word(24)? })
    }
}

/// The note that asks the others to compare their latest collectives with this rank's.
pub(crate) fn comparison_note(operation: Label, exchanges: u64, history: &History) -> Vec<u8> {
    let mut note = Stall { label: operation, exchanges }.encode();
    note.extend(history.latest(COMPARED).iter().flatten().flat_map(|word| word.to_le_bytes()));
    note
}

/// The label in 24 bytes of a note.
fn label_of(bytes: &[u8]) -> Label {
    std::array::from_fn(|word| u64::from_le_bytes(std::array::from_fn(|byte| bytes[word * size_of::<u64>() + byte])))
}

/// A call that is an exchange of the bootstrap's, and its place in this rank's program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exchange {
    /// What the user called.
    pub(crate) call: &'static str,
    /// The number of the next collective.
    pub(crate) collectives: u64,
    /// How many exchanges this rank had begun before.
    pub(crate) exchanges: u64,
}

impl Exchange {
    /// Whether a peer that is stuck somewhere can still come here. It cannot if it waits in a collective that this rank begins later
    /// and has not begun this exchange: then the two programs have the calls in different orders.
    fn compare(&self, from: Rank, stall: &Stall) -> Result<()> {
        if sequence(stall.label) < self.collectives || stall.exchanges > self.exchanges {
            return Ok(());
        }
        let (mine, theirs) = (self.call, crate::exec::describe(stall.label));
        Err(Error::mismatch(format!("this rank called {mine}, rank {from} called {theirs}")).about(from))
    }
}

/// What a wait is for: whose leaving ends it.
#[derive(Clone, Copy)]
pub(crate) enum Awaited<'a> {
    /// Nobody's in particular: the set-up of a communicator.
    Anything,
    /// The same; stuck peers that will not come to it are told of.
    Exchange(Exchange),
    /// All ranks', unless they have done their part before.
    Collective(&'a Operation),
    /// Those of the ranks that messages go to and come from; asked for when somebody has left.
    Messages(&'a dyn Fn() -> Vec<Rank>),
}

/// The watch of one operation.
pub(crate) struct Vigil<'a> {
    bootstrap: &'a dyn Bootstrap,
    news: &'a mut News,
    history: &'a History,
    abort: &'a AbortFlag,
    timeout: Duration,
    /// What runs; stalls are told of collectives only.
    awaited: Awaited<'a>,
    /// When the first slow turn came.
    since: Option<Instant>,
    /// Whether the stall has been told.
    told: bool,
}

impl Watch for Vigil<'_> {
    fn look(&mut self, waiting_for: &dyn Fn() -> String) -> Result<()> {
        self.abort.check()?;
        let now = clock::now();
        let heard = self.bootstrap.poll().into_iter().try_for_each(|event| self.news.hear(event, self.history));
        if let Err(error) = heard.and_then(|()| self.news.gone(self.awaited, now)) {
            self.news.is_cause = true;
            return Err(error);
        }
        let since = *self.since.get_or_insert(now);
        let waited = now.duration_since(since);
        if waited >= self.timeout {
            return Err(self.overdue(waiting_for()));
        }
        if waited >= STALL && !self.told {
            self.told = true;
            if let Awaited::Collective(operation) = self.awaited {
                let stall = Stall { label: operation.label(), exchanges: self.bootstrap.exchanges() };
                self.bootstrap.publish(&stall.encode());
            }
        }
        Ok(())
    }
}

impl Vigil<'_> {
    /// The error at the deadline. The rank that is waited for may wait itself: who has not said so is to blame.
    fn overdue(&self, waiting_for: String) -> Error {
        let message = format!("timed out after {:.1} s waiting for {waiting_for}", self.timeout.as_secs_f64());
        let Awaited::Collective(operation) = self.awaited else { return Error::timeout(message) };
        let silent = self.news.silent(operation, self.bootstrap.world());
        let named = silent.iter().take(NAMED_RANKS).map(|rank| format!("rank {rank}"));
        let named = named.collect::<Vec<_>>().join(", ");
        let more = if silent.len() > NAMED_RANKS { ", ..." } else { "" };
        match silent[..] {
            // Too soon for anybody to have said anything.
            _ if self.timeout < 2 * STALL => Error::timeout(message),
            [] => Error::timeout(format!("{message}; all other ranks wait in it too")),
            [culprit] => {
                Error::timeout(format!("{message}; {named} alone has not said that it waits too")).about(culprit)
            }
            _ => Error::timeout(format!("{message}; {named}{more} have not said that they wait too")),
        }
    }
}

impl<'a> Vigil<'a> {
    /// The watch of what is `awaited`.
    #[inline]
    pub(crate) fn new(
        (bootstrap, abort): (&'a dyn Bootstrap, &'a AbortFlag),
        (news, history): (&'a mut News, &'a History),
        timeout: Duration,
        awaited: Awaited<'a>,
    ) -> Vigil<'a> {
        Vigil { bootstrap, news, history, abort, timeout, awaited, since: None, told: false }
    }

    /// The same, of a wait that began before.
    pub(crate) fn since(self, since: Option<Instant>) -> Vigil<'a> {
        Vigil { since, ..self }
    }
}

fn died(rank: Rank, why: &str) -> Error {
    Error::remote(rank, format!("rank {rank} has died: {why}"))
}

fn finalized(rank: Rank) -> Error {
    Error::remote(rank, format!("rank {rank} has finalized and takes no part in this"))
}

const NOTE_STALL: u8 = 2;
/// Labels in a note that asks for a comparison.
const COMPARED: usize = 64;

const _: () = assert!(1 + Stall::BYTES + COMPARED * size_of::<Label>() <= MAX_NOTE_BYTES);

/// Ranks that a time-out names.
const NAMED_RANKS: usize = 8;
/// How long a collective waits before it asks whether the others run the same.
const STALL: Duration = Duration::from_millis(500);
/// What a rank sent before its goodbye may come so much later: goodbyes travel over connections of their own.
const LAST_WORDS: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::cause::failure_note;
    use crate::error::Kind;
    use crate::sync::Wait;
    use crate::types::{Collective, DataType};

    fn operation(count: u64, sequence: u64) -> Operation {
        let (collective, data_type) = (Collective::AllGather, DataType::I32);
        Operation { collective, data_type, op: None, root: None, count, sequence, past: 0 }
    }

    fn stall_note(label: Label) -> Vec<u8> {
        Stall { label, exchanges: 3 }.encode()
    }

    #[test]
    fn a_peer_that_is_stuck_before_an_exchange_will_not_come_to_it() {
        let at = |collectives, exchanges| Exchange { call: "split", collectives, exchanges };
        // It waits in collective 6 and has begun 3 exchanges.
        let note = stall_note(operation(4, 6).label());
        let heard_before = |exchange: Exchange| {
            let mut news = News::default();
            news.read_note(Rank::new(2), &note, &History::default()).unwrap();
            news.reader(exchange).map(drop)
        };
        let hears = |exchange: Exchange| {
            let wait = Wait::new(Duration::ZERO, &AbortFlag::new()).with_notes(Some(News::default().reader(exchange)?));
            wait.read([(Rank::new(2), &note[..])].into_iter())
        };
        let cases = [
            (at(6, 3), false, "its collective comes first to it, this exchange to us"),
            (at(5, 4), false, "so it is further on with collectives, and back with exchanges"),
            (at(7, 3), true, "we are through with its collective: it may come"),
            (at(6, 2), true, "it has begun our exchange: it is here, or was"),
        ];
        for (exchange, is_fine, why) in cases {
            for result in [heard_before(exchange), hears(exchange)] {
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
        let exchange = Exchange { call: "split", collectives: 0, exchanges: 0 };
        let reader = News::default().reader(exchange).unwrap();
        let wait = Wait::new(Duration::ZERO, &AbortFlag::new()).with_notes(Some(reader));
        let error = wait.read([(Rank::new(1), &note[..])].into_iter()).unwrap_err();
        assert_eq!(error.message(), "rank 1 reports in all_reduce #3: counts differ");
        assert!(wait.read([(Rank::new(1), &[9u8, 9][..])].into_iter()).is_ok());
    }

    #[test]
    fn a_failure_keeps_its_kind_peer_and_words() {
        let error = Error::mismatch("counts differ").about(Rank::new(4)).during("all_reduce #3");
        let note = failure_note(&error);
        let heard = News::default().read_note(Rank::new(1), &note, &History::default()).unwrap_err();
        assert_eq!((heard.kind(), heard.peer()), (Kind::Mismatch, Some(4)));
        assert_eq!(heard.message(), "rank 1 reports in all_reduce #3: counts differ");
    }

    #[test]
    fn a_stalled_peer_with_another_call_is_a_mismatch() {
        let mut news = News::default();
        let mut history = History::default();
        history.begin(operation(4, 0).label());
        history.begin(operation(4, 1).label());
        assert!(news.read_note(Rank::new(2), &stall_note(operation(4, 1).label()), &history).is_ok());
        assert!(news.read_note(Rank::new(2), &stall_note(operation(9, 7).label()), &history).is_ok());
        let error = news.read_note(Rank::new(2), &stall_note(operation(5, 1).label()), &history).unwrap_err();
        assert_eq!(error.kind(), Kind::Mismatch);
        assert!(error.message().contains("count 4") && error.message().contains("rank 2"), "{error}");
    }

    #[test]
    fn a_peer_that_asks_is_told_the_first_call_that_differs() {
        let (mut mine, mut theirs) = (History::default(), History::default());
        for (history, count) in [(&mut mine, 4), (&mut theirs, 5)] {
            history.begin(operation(1, 0).label());
            history.begin(operation(count, 1).label());
            history.begin(operation(1, 2).label());
        }
        let note = comparison_note(operation(1, 2).label(), 0, &theirs);
        let error = News::default().read_note(Rank::new(2), &note, &mine).unwrap_err();
        assert_eq!((error.kind(), error.peer()), (Kind::Mismatch, Some(2)));
        assert!(error.message().contains("#1 (count 4") && error.message().contains("#1 (count 5"), "{error}");
        assert!(News::default().read_note(Rank::new(2), &note, &theirs).is_ok());
    }

    #[test]
    fn a_rank_that_left_ends_only_what_it_takes_no_part_in() {
        let mut news = News::default();
        news.hear(Event::Left(Rank::new(3), 5), &History::default()).unwrap();
        let (now, later) = (clock::now(), clock::now() + 2 * LAST_WORDS);
        assert!(news.gone(Awaited::Collective(&operation(1, 4)), now).is_ok());
        assert_eq!(news.gone(Awaited::Collective(&operation(1, 5)), now).unwrap_err().peer(), Some(3));
        let (others, them) = (|| vec![Rank::new(2)], || vec![Rank::new(2), Rank::new(3)]);
        assert!(news.gone(Awaited::Messages(&others), later).is_ok());
        assert!(news.gone(Awaited::Messages(&them), now).is_ok(), "its last words may be on their way");
        assert_eq!(news.gone(Awaited::Messages(&them), later).unwrap_err().peer(), Some(3));
    }

    #[test]
    fn who_has_not_said_that_it_waits_is_known() {
        let mut news = News::default();
        let history = History::default();
        news.read_note(Rank::new(1), &stall_note(operation(4, 6).label()), &history).unwrap();
        news.read_note(Rank::new(2), &stall_note(operation(4, 5).label()), &history).unwrap();
        let world = World { rank: Rank::new(0), size: 4 };
        assert_eq!(news.silent(&operation(4, 6), world), [Rank::new(2), Rank::new(3)]);
        assert_eq!(news.silent(&operation(4, 5), world), [Rank::new(1), Rank::new(3)]);
    }

    #[test]
    fn garbage_is_passed_over() {
        for note in [&[][..], &[9, 1, 2], &[NOTE_STALL, 1]] {
            assert!(News::default().read_note(Rank::new(0), note, &History::default()).is_ok());
        }
        let failure = News::default().read_note(Rank::new(0), &[NOTE_FAILURE, 0, 0], &History::default());
        assert_eq!(failure.unwrap_err().peer(), Some(0));
    }
}
