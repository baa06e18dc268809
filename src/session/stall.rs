//! Where a rank is stuck, and the notes in which ranks tell each other.
//!
//! # Notes
//! One byte of kind, then:
//! ```text
//! 2 collective  four u64: the label of the operation that the rank waits in; the collective calls of the bootstrap
//!               that it had begun before; then labels of its collectives before that one, three u64 each, where it
//!               asks who called something else
//! 4 messages    u8: 1 if all are listed; then of each: u8 the call, u8 1 for a send, u32 the peer, u64 the number
//! 5 meeting     u64: the collective calls of the bootstrap that the rank had begun before; the rest: the call's name
//! 6 goes on     nothing: the rank waits no longer in what it has told
//! 7 begun       of each: u8 1 for sends, u32 the peer, u64: how many messages the rank has begun, where the peer waits
//!               for one of them
//! 8 elsewhere   u64: the number of another communicator, in which the thread of the rank waits; u8 and that many
//!               bytes: its name; then of each rank of that one for which it waits: u32 the rank, u8 and that many
//!               bytes: the call
//! 9 gave up     nothing: the wait of which the rank has told by 8 has failed
//! ```

use std::fmt;

use crate::bootstrap::MAX_NOTE_BYTES;
use crate::exec::{self, History, sequence};
use crate::sync::AwaitedMessage;
use crate::sync::ring::Label;
use crate::types::{Collective, Rank};

/// Where a rank is stuck.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stall {
    /// In a collective.
    Collective(CollectiveStall),
    /// In messages.
    Messages {
        /// Those that have not ended: all of them, or the first.
        open: Vec<AwaitedMessage>,
        is_all: bool,
    },
    /// In a call that all ranks make over the bootstrap, such as a split.
    Meeting {
        call: String,
        /// Such calls that the rank had begun before.
        exchanges: u64,
    },
    /// In a call of another communicator.
    Elsewhere(ElsewhereStall),
}

/// The call of another communicator in which the thread of a rank is stuck.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ElsewhereStall {
    /// The number of that communicator.
    pub(crate) communicator: u64,
    /// What the user has called it, which may be nothing.
    pub(crate) name: String,
    /// Ranks of that communicator for which it waits, and in which call: all of them, or the first.
    pub(crate) awaited: Vec<(Rank, String)>,
}

impl ElsewhereStall {
    fn encode(&self) -> Vec<u8> {
        let mut note = vec![NOTE_ELSEWHERE];
        note.extend(self.communicator.to_le_bytes());
        push_text(&mut note, &self.name);
        for (rank, call) in self.awaited.iter().take(TOLD_AWAITED) {
            note.extend(rank.get().to_le_bytes());
            push_text(&mut note, call);
        }
        note
    }

    /// What stands behind the note's kind.
    fn decode(bytes: &[u8]) -> Option<ElsewhereStall> {
        let (communicator, bytes) = bytes.split_first_chunk()?;
        let (name, mut bytes) = text(bytes)?;
        let mut awaited = Vec::new();
        while awaited.len() < TOLD_AWAITED && !bytes.is_empty() {
            let (rank, rest) = bytes.split_first_chunk()?;
            let (call, rest) = text(rest)?;
            awaited.push((Rank::new(u32::from_le_bytes(*rank)), call));
            bytes = rest;
        }
        Some(ElsewhereStall { communicator: u64::from_le_bytes(*communicator), name, awaited })
    }

    /// `call` of that communicator, in words: "barrier #4 of another communicator".
    pub(crate) fn words(&self, call: &str) -> String {
        match &self.name[..] {
            "" => format!("{call} of another communicator"),
            name => format!("{call} of communicator {name}"),
        }
    }
}

/// Its length in a byte, then its bytes, of which the first are told.
fn push_text(note: &mut Vec<u8>, text: &str) {
    let bytes = &text.as_bytes()[..text.len().min(MAX_CALL_BYTES)];
    note.push(u8::try_from(bytes.len()).unwrap_or(0));
    note.extend(bytes);
}

/// The text at the beginning of `bytes`, and what stands behind it.
fn text(bytes: &[u8]) -> Option<(String, &[u8])> {
    let (length, bytes) = bytes.split_first()?;
    let (text, rest) = bytes.split_at_checked(usize::from(*length))?;
    Some((shown(text), rest))
}

/// What another rank has told as a text, so that it can stand in an error.
fn shown(text: &[u8]) -> String {
    let text = &text[..text.len().min(MAX_CALL_BYTES)];
    String::from_utf8_lossy(text).escape_default().to_string()
}

/// The collective in which a rank is stuck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CollectiveStall {
    pub(crate) label: Label,
    /// Collective calls of the bootstrap that the rank had begun before.
    pub(crate) exchanges: u64,
}

impl CollectiveStall {
    /// Bytes behind the note's kind.
    pub(crate) const BYTES: usize = 4 * size_of::<u64>();

    fn encode(&self) -> Vec<u8> {
        let mut note = vec![NOTE_COLLECTIVE];
        note.extend(self.label.iter().chain([&self.exchanges]).flat_map(|word| word.to_le_bytes()));
        note
    }

    /// What stands behind the note's kind.
    fn decode(bytes: &[u8]) -> Option<CollectiveStall> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        Some(CollectiveStall { label: [word(0)?, word(8)?, word(16)?], exchanges: word(24)? })
    }
}

/// A note about where its rank stands, read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StallNote {
    Stuck(Stall),
    GoesOn,
    Begun(Vec<BegunMessages>),
    /// Its wait in another communicator, of which it has told, has failed.
    GaveUp,
}

/// How many messages a rank has begun with a peer, one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BegunMessages {
    pub(crate) peer: Rank,
    /// Whether the rank sends them.
    pub(crate) sends: bool,
    pub(crate) count: u64,
}

impl BegunMessages {
    const BYTES: usize = 13;

    /// The note of a rank that has begun `all`.
    pub(crate) fn encode(all: &[BegunMessages]) -> Vec<u8> {
        let mut note = vec![NOTE_BEGUN];
        for begun in all.iter().take(TOLD_BEGUN) {
            note.push(u8::from(begun.sends));
            note.extend(begun.peer.get().to_le_bytes());
            note.extend(begun.count.to_le_bytes());
        }
        note
    }

    fn decode([sends, rest @ ..]: &[u8; BegunMessages::BYTES]) -> Option<BegunMessages> {
        let (peer, count) = rest.split_first_chunk::<4>()?;
        let (peer, count) = (u32::from_le_bytes(*peer), u64::from_le_bytes(count.try_into().ok()?));
        Some(BegunMessages { peer: Rank::new(peer), sends: *sends == 1, count })
    }
}

impl StallNote {
    /// `None` if the note is about something else, or cannot be read.
    pub(crate) fn decode(note: &[u8]) -> Option<StallNote> {
        let (kind, bytes) = note.split_first()?;
        match *kind {
            NOTE_COLLECTIVE => CollectiveStall::decode(bytes).map(|stall| StallNote::Stuck(Stall::Collective(stall))),
            NOTE_MESSAGES => decode_messages(bytes).map(StallNote::Stuck),
            NOTE_MEETING => {
                let (exchanges, call) = bytes.split_first_chunk()?;
                Some(StallNote::Stuck(Stall::Meeting { call: shown(call), exchanges: u64::from_le_bytes(*exchanges) }))
            }
            NOTE_ELSEWHERE => ElsewhereStall::decode(bytes).map(|stall| StallNote::Stuck(Stall::Elsewhere(stall))),
            NOTE_GOES_ON => Some(StallNote::GoesOn),
            NOTE_GAVE_UP => Some(StallNote::GaveUp),
            NOTE_BEGUN => {
                let (all, _) = bytes.as_chunks();
                Some(StallNote::Begun(all.iter().take(TOLD_BEGUN).filter_map(BegunMessages::decode).collect()))
            }
            _ => None,
        }
    }

    /// The labels of earlier collectives that a note has behind the first.
    pub(crate) fn earlier_labels(note: &[u8]) -> impl Iterator<Item = Label> {
        let is_collective = note.first() == Some(&NOTE_COLLECTIVE);
        let rest = note.get(1 + CollectiveStall::BYTES..).filter(|_| is_collective).unwrap_or_default();
        rest.chunks_exact(size_of::<Label>()).map(label_of)
    }
}

impl Stall {
    /// The note that tells it.
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Stall::Collective(stall) => stall.encode(),
            Stall::Messages { open, is_all } => {
                let told = open.iter().take(TOLD_MESSAGES);
                let mut note = vec![NOTE_MESSAGES, u8::from(*is_all && open.len() <= TOLD_MESSAGES)];
                for message in told {
                    note.extend([message.call.code(), u8::from(message.sends)]);
                    note.extend(message.peer.get().to_le_bytes());
                    note.extend(message.number.to_le_bytes());
                }
                note
            }
            Stall::Meeting { call, exchanges } => {
                let mut note = vec![NOTE_MEETING];
                note.extend(exchanges.to_le_bytes());
                note.extend(call.as_bytes().iter().take(MAX_CALL_BYTES));
                note
            }
            Stall::Elsewhere(stall) => stall.encode(),
        }
    }

    /// Whether the rank is in the collective with this number, or in a later one: then it has done its part.
    pub(crate) fn has_come_to(&self, collective: u64) -> bool {
        match self {
            Stall::Collective(stall) => sequence(stall.label) >= collective,
            Stall::Messages { open, .. } => {
                open.iter().any(|message| !message.is_single() && message.number >= collective)
            }
            Stall::Meeting { .. } | Stall::Elsewhere(_) => false,
        }
    }

    /// The call in which it waits for `peer`, in words: "recv #3".
    pub(crate) fn call_for(&self, peer: Rank) -> String {
        match self {
            Stall::Collective(stall) => exec::short_name(stall.label),
            Stall::Messages { open, .. } => {
                open.iter().find(|message| message.peer == peer).map_or_else(String::new, AwaitedMessage::to_string)
            }
            Stall::Meeting { call, .. } => call.clone(),
            // Its ranks are those of that communicator.
            Stall::Elsewhere(stall) => stall.words(stall.awaited.first().map_or("a call", |(_, call)| call)),
        }
    }
}

/// The call alone, or that it is messages.
impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stall::Collective(stall) => f.write_str(&exec::short_name(stall.label)),
            Stall::Messages { open, .. } => match &open[..] {
                [one] => f.write_str(&one.full_name()),
                _ => f.write_str("messages"),
            },
            Stall::Meeting { call, .. } => f.write_str(call),
            Stall::Elsewhere(_) => f.write_str(&self.call_for(Rank::new(0))),
        }
    }
}

fn decode_messages(bytes: &[u8]) -> Option<Stall> {
    let (is_all, messages) = bytes.split_first()?;
    let decode = |bytes: &[u8; MESSAGE_BYTES]| {
        let [call, sends, rest @ ..] = bytes;
        let (peer, number) = rest.split_first_chunk::<4>()?;
        Some(AwaitedMessage {
            peer: Rank::new(u32::from_le_bytes(*peer)),
            call: Collective::from_code(*call)?,
            number: u64::from_le_bytes(number.try_into().ok()?),
            sends: *sends == 1,
        })
    };
    let (messages, rest) = messages.as_chunks::<MESSAGE_BYTES>();
    let open: Vec<AwaitedMessage> = messages.iter().take(TOLD_MESSAGES).map(decode).collect::<Option<_>>()?;
    (!open.is_empty() && rest.is_empty()).then_some(Stall::Messages { open, is_all: *is_all == 1 })
}

/// The note of a rank that goes on after it has told where it was stuck.
pub(crate) const GOES_ON: &[u8] = &[NOTE_GOES_ON];

/// The note of a rank whose wait in another communicator has failed after it has told of it.
pub(crate) const GAVE_UP: &[u8] = &[NOTE_GAVE_UP];

/// The note that asks the others to compare their latest collectives with this rank's.
pub(crate) fn comparison_note(operation: Label, exchanges: u64, history: &History) -> Vec<u8> {
    let mut note = CollectiveStall { label: operation, exchanges }.encode();
    note.extend(history.latest(COMPARED).iter().flatten().flat_map(|word| word.to_le_bytes()));
    note
}

/// The label in 24 bytes of a note.
fn label_of(bytes: &[u8]) -> Label {
    std::array::from_fn(|word| u64::from_le_bytes(std::array::from_fn(|byte| bytes[word * size_of::<u64>() + byte])))
}

const NOTE_COLLECTIVE: u8 = 2;
const NOTE_MESSAGES: u8 = 4;
const NOTE_MEETING: u8 = 5;
const NOTE_GOES_ON: u8 = 6;
const NOTE_BEGUN: u8 = 7;
const NOTE_ELSEWHERE: u8 = 8;
const NOTE_GAVE_UP: u8 = 9;
/// Labels in a note that asks for a comparison.
const COMPARED: usize = 64;
/// Bytes of a message in a note.
const MESSAGE_BYTES: usize = 14;
/// Messages in a note. Of more, the first are told: what is said of them stays true.
const TOLD_MESSAGES: usize = 256;
/// Counts of messages in a note.
const TOLD_BEGUN: usize = 256;
/// Ranks in a note about another communicator, for which its rank waits there.
const TOLD_AWAITED: usize = 48;
/// The most bytes of the name of a call or a communicator.
const MAX_CALL_BYTES: usize = 64;

const _: () = assert!(1 + CollectiveStall::BYTES + COMPARED * size_of::<Label>() <= MAX_NOTE_BYTES);
const _: () = assert!(2 + TOLD_MESSAGES * MESSAGE_BYTES <= MAX_NOTE_BYTES);
const _: () = assert!(TOLD_BEGUN * BegunMessages::BYTES < MAX_NOTE_BYTES);
const _: () = assert!(10 + MAX_CALL_BYTES + TOLD_AWAITED * (5 + MAX_CALL_BYTES) <= MAX_NOTE_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    fn message(peer: u32, number: u64) -> AwaitedMessage {
        AwaitedMessage { peer: Rank::new(peer), call: Collective::Recv, number, sends: false }
    }

    fn elsewhere(name: &str, awaited: u32) -> Stall {
        let awaited = (0..awaited).map(|rank| (Rank::new(rank), format!("recv #{rank}"))).collect();
        Stall::Elsewhere(ElsewhereStall { communicator: 1 << 60, name: name.to_owned(), awaited })
    }

    #[test]
    fn a_stall_is_read_as_it_was_told() {
        let open = vec![message(1, 7), AwaitedMessage { call: Collective::Send, sends: true, ..message(2, 1 << 40) }];
        let stalls = [
            Stall::Collective(CollectiveStall { label: [1, 2, 3], exchanges: 4 }),
            Stall::Messages { open: open.clone(), is_all: true },
            Stall::Messages { open, is_all: false },
            Stall::Meeting { call: "split".to_owned(), exchanges: 9 },
            elsewhere("", 2),
            elsewhere("inner", 0),
        ];
        for stall in stalls {
            assert_eq!(StallNote::decode(&stall.encode()), Some(StallNote::Stuck(stall)));
        }
        assert_eq!(StallNote::decode(GOES_ON), Some(StallNote::GoesOn));
        assert_eq!(StallNote::decode(GAVE_UP), Some(StallNote::GaveUp));
        let begun = |peer, sends| BegunMessages { peer: Rank::new(peer), sends, count: 1 << 40 };
        let all = vec![begun(1, true), begun(1 << 20, false)];
        assert_eq!(StallNote::decode(&BegunMessages::encode(&all)), Some(StallNote::Begun(all)));
    }

    #[test]
    fn of_many_messages_the_first_are_told() {
        let open: Vec<AwaitedMessage> = (0..1000).map(|number| message(1, number)).collect();
        let note = Stall::Messages { open: open.clone(), is_all: true }.encode();
        assert!(note.len() <= MAX_NOTE_BYTES);
        let told = Stall::Messages { open: open[..TOLD_MESSAGES].to_vec(), is_all: false };
        assert_eq!(StallNote::decode(&note), Some(StallNote::Stuck(told)));
        let long = "x".repeat(1000);
        let awaited = (0..1000).map(|rank| (Rank::new(rank), long.clone())).collect();
        let note = ElsewhereStall { communicator: 1, name: long.clone(), awaited }.encode();
        assert!(note.len() <= MAX_NOTE_BYTES);
        let Some(StallNote::Stuck(Stall::Elsewhere(told))) = StallNote::decode(&note) else { panic!("{note:?}") };
        assert_eq!((told.awaited.len(), told.name.len()), (TOLD_AWAITED, MAX_CALL_BYTES));
    }

    #[test]
    fn notes_that_cannot_be_read_are_none() {
        let mut long = Stall::Meeting { call: "x".repeat(1000), exchanges: 0 }.encode();
        let cut = long.len();
        assert_eq!(cut, 9 + MAX_CALL_BYTES);
        long.extend([b'x'; 4000]);
        let Some(StallNote::Stuck(Stall::Meeting { call, .. })) = StallNote::decode(&long) else { panic!("a meeting") };
        assert_eq!(call.len(), MAX_CALL_BYTES);
        let unknown_call = [&[NOTE_MESSAGES, 1, 255, 0][..], &[0; 12]].concat();
        let odd: [&[u8]; 8] = [&[], &[99, 1, 2], &[2, 1], &[4], &[4, 1], &[4, 1, 0, 0], &[5, 1], &unknown_call];
        let whole = elsewhere("inner", 2).encode();
        let cut = (1..whole.len()).map(|end| &whole[..end]);
        // Cut between two ranks it is a note of fewer.
        for note in odd.into_iter().chain(cut.filter(|cut| ![9 + 6, 9 + 6 + 12].contains(&cut.len()))) {
            assert_eq!(StallNote::decode(note), None, "{note:?}");
        }
    }
}
