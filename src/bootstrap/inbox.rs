//! What has arrived and nobody has taken yet: messages by sender and channel, ranks that are gone, events for the user.
//!
//! Holds no socket and no lock; `LocalBootstrap` puts one behind a mutex, `NetBootstrap` owns one.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::bootstrap::Event;
use crate::bootstrap::cause::NOTE_CHILD;
use crate::error::{Error, Result};
use crate::sync::primitive::{Arc, Weak};
use crate::sync::{Chime, Wait};
use crate::types::Rank;

/// The most bytes of one peer's messages that wait to be taken. Beyond it the peer's stream is not read.
pub(super) const MAX_WAITING_BYTES: usize = 16 << 20;

/// The most messages of one peer that wait to be taken.
pub(super) const MAX_WAITING_MESSAGES: usize = 8192;

/// The most published notes that wait for a poll; beyond it the oldest is dropped.
pub(super) const MAX_NOTES: usize = 1024;

/// The most notes about children that are kept; beyond it the oldest is dropped.
const MAX_CHILD_NOTES: usize = 64;

/// What a message belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Channel {
    /// A user's message with this tag.
    Message(u32),
    /// The collective with this sequence number.
    Collective(u32),
    /// The gathering of survivors for the shrink with this number.
    Shrink(u32),
}

impl std::fmt::Display for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Channel::Message(_) => write!(f, "its message of the set-up"),
            Channel::Collective(sequence) => {
                write!(f, "its part of step {sequence} of the set-up, which all ranks take")
            }
            Channel::Shrink(_) => write!(f, "its part of a shrink"),
        }
    }
}

/// How a rank ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Gone {
    /// Without goodbye; the text says how that was noticed.
    Died(String),
    /// With goodbye, and this word.
    Left(u64),
}

impl Gone {
    /// The error for a caller who waits for `rank`.
    pub(super) fn error(&self, rank: Rank) -> Error {
        match self {
            Gone::Died(why) => Error::remote(rank, format!("rank {rank} has died: {why}")),
            Gone::Left(_) => Error::remote(rank, format!("rank {rank} has left: it closed its communicator")),
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    queues: HashMap<(Rank, Channel), VecDeque<Vec<u8>>>,
    waiting: HashMap<Rank, Backlog>,
    gone: BTreeMap<Rank, Gone>,
    dead: usize,
    events: VecDeque<Event>,
    notes: usize,
    /// Notes about children that are being made. No poll takes them, since they concern the call that makes the child.
    child_notes: VecDeque<(Rank, Vec<u8>)>,
    /// What rings when something has arrived.
    chimes: Vec<Weak<Chime>>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Backlog {
    messages: usize,
    bytes: usize,
}

impl Inbox {
    /// Whether there is room for another message of `from`.
    pub(super) fn has_room(&self, from: Rank) -> bool {
        self.waiting
            .get(&from)
            .is_none_or(|backlog| backlog.messages < MAX_WAITING_MESSAGES && backlog.bytes < MAX_WAITING_BYTES)
    }

    /// Queues a message. The caller has checked [`Inbox::has_room`], or bounds how far it exceeds it.
    pub(super) fn push(&mut self, from: Rank, channel: Channel, bytes: Vec<u8>) {
        let backlog = self.waiting.entry(from).or_default();
        backlog.messages += 1;
        backlog.bytes += bytes.len();
        self.queues.entry((from, channel)).or_default().push_back(bytes);
        self.ring();
    }

    /// Rings `chime` whenever something arrives from now on, as long as the chime lives. False where events wait for a
    /// poll, or a message with the tag `asks` for its receiver; and the first time, since nothing has rung for what has
    /// come before.
    pub(super) fn ring_at_news(&mut self, chime: &Arc<Chime>, asks: u32) -> bool {
        let is_this = |other: &Weak<Chime>| std::ptr::eq(other.as_ptr(), Arc::as_ptr(chime));
        let is_known = self.chimes.iter().any(is_this);
        self.chimes.retain(|other| other.strong_count() > 0 && !is_this(other));
        self.chimes.push(Arc::downgrade(chime));
        is_known && self.events.is_empty() && self.sender_on(Channel::Message(asks)).is_none()
    }

    fn ring(&self) {
        self.chimes.iter().filter_map(Weak::upgrade).for_each(|chime| chime.ring());
    }

    /// Takes the oldest message of `from` on `channel`.
    pub(super) fn take(&mut self, from: Rank, channel: Channel) -> Option<Vec<u8>> {
        let queue = self.queues.get_mut(&(from, channel))?;
        let bytes = queue.pop_front()?;
        if queue.is_empty() {
            self.queues.remove(&(from, channel));
        }
        if let Some(backlog) = self.waiting.get_mut(&from) {
            backlog.messages -= 1;
            backlog.bytes -= bytes.len();
            if backlog.messages == 0 {
                self.waiting.remove(&from);
            }
        }
        Some(bytes)
    }

    /// A rank of which a message waits on `channel`.
    pub(super) fn sender_on(&self, channel: Channel) -> Option<Rank> {
        self.queues.keys().find(|(_, of)| *of == channel).map(|(from, _)| *from)
    }

    /// Fails if a wait for `from` on `channel` cannot succeed: the rank is gone, or its queue is full of other
    /// messages.
    pub(super) fn check(&self, from: Rank, channel: Channel) -> Result<()> {
        if let Some(gone) = self.gone.get(&from) {
            return Err(gone.error(from));
        }
        if !self.has_room(from) {
            return Err(Error::mismatch(format!(
                "this rank waits for {channel}, but rank {from} has sent {MAX_WAITING_MESSAGES} messages or \
                 {MAX_WAITING_BYTES} bytes that nobody took: check the tags"
            ))
            .about(from));
        }
        Ok(())
    }

    /// The error of the first dead rank for which `of_interest` is true.
    pub(super) fn check_dead(&self, of_interest: impl Fn(Rank) -> bool) -> Result<()> {
        if self.dead == 0 {
            return Ok(());
        }
        match self.gone.iter().find(|(rank, gone)| matches!(gone, Gone::Died(_)) && of_interest(**rank)) {
            Some((rank, gone)) => Err(gone.error(*rank)),
            None => Ok(()),
        }
    }

    /// A better reason than "the peer left", if one is known: a rank may have left because of another rank's death.
    pub(super) fn cause(&self, channel: Channel, wait: &Wait) -> Option<Error> {
        match channel {
            Channel::Collective(_) => wait.read(self.notes()).and_then(|()| self.check_dead(|_| true)).err(),
            // A shrink excludes dead ranks, and a message concerns two ranks only: in neither does another rank's death
            // matter.
            Channel::Shrink(_) | Channel::Message(_) => None,
        }
    }

    /// How `rank` went, if it has.
    pub(super) fn gone(&self, rank: Rank) -> Option<&Gone> {
        self.gone.get(&rank)
    }

    /// All ranks that are gone, and how they went.
    pub(super) fn all_gone(&self) -> impl Iterator<Item = (Rank, &Gone)> {
        self.gone.iter().map(|(rank, how)| (*rank, how))
    }

    /// Records that `rank` is gone; false if that was known.
    pub(super) fn mark_gone(&mut self, rank: Rank, how: Gone) -> bool {
        if self.gone.contains_key(&rank) {
            return false;
        }
        self.events.push_back(match &how {
            Gone::Died(why) => Event::Died(rank, why.clone()),
            Gone::Left(word) => Event::Left(rank, *word),
        });
        self.dead += usize::from(matches!(how, Gone::Died(_)));
        self.gone.insert(rank, how);
        self.ring();
        true
    }

    /// Queues a published note; drops the oldest if there are too many.
    pub(super) fn note(&mut self, from: Rank, bytes: Vec<u8>) {
        if bytes.first() == Some(&NOTE_CHILD) {
            if self.child_notes.len() >= MAX_CHILD_NOTES {
                self.child_notes.pop_front();
            }
            self.child_notes.push_back((from, bytes));
            return self.ring();
        }
        if self.notes >= MAX_NOTES
            && let Some(oldest) = self.events.iter().position(|event| matches!(event, Event::Note { .. }))
        {
            self.events.remove(oldest);
            self.notes -= 1;
        }
        self.notes += 1;
        self.events.push_back(Event::Note { from, bytes });
        self.ring();
    }

    /// Queues a failure of the control plane itself.
    pub(super) fn failed(&mut self, error: Error) {
        self.events.push_back(Event::Failed(error));
        self.ring();
    }

    /// The published notes that no poll has taken yet.
    pub(super) fn notes(&self) -> impl Iterator<Item = (Rank, &[u8])> {
        self.events.iter().filter_map(|event| match event {
            Event::Note { from, bytes } => Some((*from, &bytes[..])),
            Event::Died(..) | Event::Left(..) | Event::Failed(_) => None,
        })
    }

    /// What peers have told of children that cannot be made.
    pub(super) fn child_notes(&self) -> impl Iterator<Item = (Rank, &[u8])> {
        self.child_notes.iter().map(|(from, bytes)| (*from, &bytes[..]))
    }

    /// Takes all events.
    pub(super) fn events(&mut self) -> Vec<Event> {
        self.notes = 0;
        self.events.drain(..).collect()
    }

    /// A waiting message of a shrink with another number than `number`, and its rank, which may have passed another
    /// list: best the one of the rank that the `error` of the shrink is about.
    pub(super) fn other_shrink(&self, number: u32, error: &Error) -> Option<(Rank, &[u8])> {
        let is_other = |channel: &Channel| matches!(channel, Channel::Shrink(other) if *other != number);
        let others = self.queues.iter().filter(|((_, channel), _)| is_other(channel));
        let (sender, queue) = others.max_by_key(|((rank, _), _)| error.peer() == Some(rank.get()))?;
        Some((sender.0, queue.front()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE: Rank = Rank::new(3);

    #[test]
    fn messages_keep_their_order_by_sender_and_channel() {
        let mut inbox = Inbox::default();
        inbox.push(THREE, Channel::Message(1), vec![1]);
        inbox.push(THREE, Channel::Collective(1), vec![2]);
        inbox.push(THREE, Channel::Message(1), vec![3]);
        assert_eq!(inbox.take(THREE, Channel::Collective(1)), Some(vec![2]));
        assert_eq!(inbox.take(THREE, Channel::Message(1)), Some(vec![1]));
        assert_eq!(inbox.take(THREE, Channel::Message(1)), Some(vec![3]));
        assert_eq!(inbox.take(THREE, Channel::Message(1)), None);
        assert!(inbox.waiting.is_empty() && inbox.queues.is_empty());
    }

    /// Regression: what had come between the last look and the first sleep rang for nobody, and was slept over.
    #[test]
    fn a_new_chime_has_missed_what_has_come_before() {
        const ASKS: u32 = 7;
        let (mut inbox, chime) = (Inbox::default(), Arc::<Chime>::default());
        inbox.push(THREE, Channel::Message(1), vec![1]);
        assert!(!inbox.ring_at_news(&chime, ASKS), "look again");
        assert!(inbox.ring_at_news(&chime, ASKS), "from now on it rings");
        let heard = chime.count();
        inbox.push(THREE, Channel::Message(1), vec![2]);
        assert_eq!(chime.count(), heard + 1);
        inbox.push(THREE, Channel::Message(ASKS), vec![3]);
        assert!(!inbox.ring_at_news(&chime, ASKS), "it is asked for something");
    }

    #[test]
    fn a_full_queue_is_an_error_for_who_waits_for_something_else() {
        let mut inbox = Inbox::default();
        for _ in 0..MAX_WAITING_MESSAGES {
            assert!(inbox.has_room(THREE));
            inbox.push(THREE, Channel::Message(1), Vec::new());
        }
        assert!(!inbox.has_room(THREE) && inbox.has_room(Rank::new(4)));
        assert!(inbox.check(THREE, Channel::Message(2)).unwrap_err().to_string().contains("check the tags"));
        inbox.take(THREE, Channel::Message(1));
        assert!(inbox.has_room(THREE));
    }

    #[test]
    fn a_rank_goes_once_and_notes_are_bounded() {
        let mut inbox = Inbox::default();
        assert!(inbox.mark_gone(THREE, Gone::Left(7)));
        assert!(!inbox.mark_gone(THREE, Gone::Died("late".into())));
        inbox.check_dead(|_| true).unwrap();
        for i in 0..MAX_NOTES + 10 {
            inbox.note(THREE, i.to_be_bytes().to_vec());
        }
        let events = inbox.events();
        assert_eq!(events.len(), 1 + MAX_NOTES);
        assert!(matches!(events[0], Event::Left(THREE, 7)));
        assert!(matches!(&events[1], Event::Note { bytes, .. } if *bytes == 10usize.to_be_bytes()));
        assert!(inbox.events().is_empty());
    }

    #[test]
    fn notes_about_children_stay_where_a_poll_takes_all_others() {
        let mut inbox = Inbox::default();
        for i in 0..MAX_CHILD_NOTES + 1 {
            inbox.note(THREE, vec![NOTE_CHILD, u8::try_from(i).unwrap()]);
        }
        assert!(inbox.events().is_empty() && inbox.notes().next().is_none());
        assert_eq!(inbox.child_notes().count(), MAX_CHILD_NOTES);
        assert_eq!(inbox.child_notes().next(), Some((THREE, &[NOTE_CHILD, 1][..])));
    }
}
