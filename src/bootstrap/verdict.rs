//! Failures that ranks tell each other to agree on one of them: which is the cause, and how it travels.
//!
//! A note of a failure:
//!
//! | offset | width | field |
//! |--------|-------|-------|
//! | 0 | 1 | kind |
//! | 1 | 4 | peer + 1; 0 where none is named |
//! | 5 | 4 | bytes of text |
//! | 9 | up to [`MAX_TEXT_BYTES`] | the text |

use crate::error::{Error, Kind, Result};
use crate::types::Rank;
use crate::wire::{self, Reader, Writer};

/// How likely an error of this kind is the cause of the other ranks' errors; smaller is likelier.
pub(crate) fn likelihood(kind: Kind) -> i64 {
    match kind {
        Kind::InvalidArgument | Kind::InvalidUsage | Kind::Mismatch | Kind::System | Kind::Internal => 0,
        Kind::Timeout | Kind::InProgress => 1,
        Kind::Remote | Kind::Aborted => 2,
    }
}

/// The note of `error`.
pub(crate) fn encode(error: &Error) -> Vec<u8> {
    let mut text = match error.operation() {
        Some(operation) if operation != "init" => format!("{operation}: {}", error.message()),
        _ => error.message().to_owned(),
    };
    text.truncate(wire::cut(&text, MAX_TEXT_BYTES).len());
    let mut writer = Writer::with_capacity(MAX_NOTE_BYTES);
    let code = KINDS.iter().position(|kind| *kind == error.kind()).and_then(|place| u8::try_from(place).ok());
    writer.u8(code.unwrap_or(u8::MAX)).u32(error.peer().map_or(0, |peer| peer.saturating_add(1))).text(&text);
    writer.finish()
}

/// The error of `source` as the other ranks report it. Bytes behind the note are passed over.
pub(crate) fn decode(source: Rank, note: &[u8]) -> Error {
    match read(note) {
        Ok((kind, peer, text)) => {
            let kind = kind.unwrap_or(Kind::Remote);
            // In the words of the rank that failed, "this rank" is that rank.
            let text = text.replace("this rank", &format!("rank {source}"));
            Error::new(kind, format!("rank {source} reports: {text}")).about(peer.map_or(source, Rank::new))
        }
        Err(_) => Error::remote(source, format!("rank {source} failed, and its note of why is malformed")),
    }
}

/// The cause among the failures of all ranks: of the likeliest kind, and of those the lowest rank's. `notes` has an
/// empty note for each rank that has not failed.
pub(crate) fn cause<'a>(notes: impl Iterator<Item = (Rank, &'a [u8])>) -> Option<(Rank, Error)> {
    let failed = notes.filter(|(_, note)| !note.is_empty());
    let failed = failed.map(|(rank, note)| (rank, decode(rank, note)));
    failed.min_by_key(|(rank, error)| (likelihood(error.kind()), *rank))
}

fn read(note: &[u8]) -> Result<(Option<Kind>, Option<u32>, String)> {
    let mut reader = Reader::new(note, "a note of failure");
    let kind = KINDS.get(usize::from(reader.u8()?)).copied();
    Ok((kind, reader.u32()?.checked_sub(1), reader.text(MAX_TEXT_BYTES)?))
}

/// The kinds, in the order of their codes in a note.
const KINDS: [Kind; 9] = [
    Kind::InvalidArgument,
    Kind::InvalidUsage,
    Kind::Mismatch,
    Kind::Remote,
    Kind::Timeout,
    Kind::System,
    Kind::Internal,
    Kind::Aborted,
    Kind::InProgress,
];
/// The most bytes of an error's text that are sent: a few lines.
const MAX_TEXT_BYTES: usize = 4000;
/// The most bytes of a note.
pub(crate) const MAX_NOTE_BYTES: usize = 1 + 4 + 4 + MAX_TEXT_BYTES;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_cause_is_the_likeliest_failure_of_the_lowest_rank() {
        let [died, full, late] = [
            Error::remote(Rank::new(2), "rank 2 has died"),
            Error::new(Kind::System, "no descriptor"),
            Error::new(Kind::System, "no memory"),
        ]
        .map(|error| encode(&error));
        let told = [&died[..], &[], &full[..], &late[..]];
        let (rank, error) = cause((0..).map(Rank::new).zip(told)).unwrap();
        assert_eq!((rank.get(), error.kind(), error.message()), (2, Kind::System, "rank 2 reports: no descriptor"));
        assert!(cause((0..).map(Rank::new).zip([&[][..]; 3])).is_none());
    }

    proptest! {
        #[test]
        fn notes_come_back(code in 0..KINDS.len(), peer in proptest::option::of(0..u32::MAX), text in ".{0,5000}") {
            let mut error = Error::new(KINDS[code], text.clone());
            if let Some(peer) = peer {
                error = error.about(Rank::new(peer));
            }
            let note = encode(&error);
            prop_assert!(note.len() <= MAX_NOTE_BYTES);
            let heard = decode(Rank::new(7), &note);
            prop_assert_eq!((heard.kind(), heard.peer()), (KINDS[code], Some(peer.unwrap_or(7))));
            let kept = heard.message().strip_prefix("rank 7 reports: ").unwrap();
            prop_assert!(text.starts_with(kept) && (kept.len() == text.len() || kept.len() > MAX_TEXT_BYTES - 4));
        }

        #[test]
        fn any_bytes_are_some_error(note in proptest::collection::vec(any::<u8>(), 0..MAX_NOTE_BYTES + 9)) {
            prop_assert_eq!(decode(Rank::new(1), &note).rank(), None);
        }
    }
}
