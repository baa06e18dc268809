//! The notes in which a failing rank tells the others the root cause: before it leaves, so that they do not blame it,
//! and where it cannot make its part of a child, so that they do not wait for it there.
//!
//! # The notes
//! ```text
//! 1 (failure)   kind u8, peer + 1 u32 (0: none), length u16, operation text, the rest: message
//! 3 (child)     1 split or 2 shrink u8, its number u32, the rest: see `verdict`
//! ```

use crate::bootstrap::collective::ChildKind;
use crate::bootstrap::{MAX_NOTE_BYTES, verdict};
use crate::error::{Error, Kind};
use crate::sync::NoteReader;
use crate::types::Rank;

/// The first byte of a failure note.
pub(crate) const NOTE_FAILURE: u8 = 1;

/// The first byte of a note about a child.
pub(crate) const NOTE_CHILD: u8 = 3;

/// The note that reports `error` to everyone.
pub(crate) fn failure_note(error: &Error) -> Vec<u8> {
    let operation = error.operation().unwrap_or("").as_bytes();
    let operation = &operation[..operation.len().min(255)];
    let mut note = vec![NOTE_FAILURE, kind_code(error.kind())];
    note.extend(error.peer().map_or(0, |peer| peer.saturating_add(1)).to_le_bytes());
    note.extend(u16::try_from(operation.len()).expect("cut to 255").to_le_bytes());
    note.extend(operation);
    note.extend(error.message().as_bytes());
    note.truncate(MAX_NOTE_BYTES);
    note
}

/// Decodes the failure that `from` reports; `bytes` are those after the note's first byte.
pub(crate) fn decode_failure(from: Rank, bytes: &[u8]) -> Error {
    let vague = || Error::remote(from, format!("rank {from} has failed"));
    let (Some(kind), Some(peer), Some(length)) = (bytes.first(), bytes.get(1..5), bytes.get(5..7)) else {
        return vague();
    };
    let peer = u32::from_le_bytes(peer.try_into().expect("4 bytes")).checked_sub(1);
    let length = usize::from(u16::from_le_bytes(length.try_into().expect("2 bytes")));
    let (Some(operation), Some(message)) = (bytes.get(7..7 + length), bytes.get(7 + length..)) else { return vague() };
    let (operation, message) = (String::from_utf8_lossy(operation), String::from_utf8_lossy(message));
    // In the words of the rank that failed, "this rank" is that rank.
    let message = message.replace("this rank", &format!("rank {from}"));
    let of = if operation.is_empty() { String::new() } else { format!(" in {operation}") };
    let error = Error::new(kind_from(*kind), format!("rank {from} reports{of}: {message}"));
    error.about(peer.map_or(from, Rank::new))
}

/// A reader that ends a wait when a peer has reported a failure, and ignores other notes.
pub(crate) fn failure_reader() -> NoteReader {
    NoteReader::new(|from, bytes| match bytes.first() {
        Some(&NOTE_FAILURE) => Err(decode_failure(from, &bytes[1..])),
        _ => Ok(()),
    })
}

/// The note of a rank that cannot make its part of a child because of `error`. It does not end the parent.
pub(super) fn child_note(child: ChildKind, error: &Error) -> Vec<u8> {
    let mut note = child_head(child);
    note.extend(verdict::encode(error));
    note
}

/// The failure that `from` reports of this `child`; `None` if the note is of another one. It is a remote one here:
/// where the ranks agree on the cause, `from` has the better words for it.
pub(super) fn decode_child(from: Rank, note: &[u8], child: ChildKind) -> Option<Error> {
    let told = verdict::decode(from, note.strip_prefix(&child_head(child)[..])?);
    Some(Error::remote(from, told.message()))
}

/// A split's children of all colors have one number: where one of them fails, none is made.
fn child_head(child: ChildKind) -> Vec<u8> {
    let (call, number) = match child {
        ChildKind::Split(count, _) => (1, count),
        ChildKind::Shrink(number) => (2, number),
    };
    let mut head = vec![NOTE_CHILD, call];
    head.extend(number.to_le_bytes());
    head
}

const _: () = assert!(1 + 1 + 4 + verdict::MAX_NOTE_BYTES <= MAX_NOTE_BYTES);

fn kind_code(kind: Kind) -> u8 {
    match kind {
        Kind::Mismatch => 1,
        Kind::Aborted => 2,
        Kind::Timeout => 3,
        Kind::InvalidArgument
        | Kind::InvalidUsage
        | Kind::Remote
        | Kind::System
        | Kind::Internal
        | Kind::InProgress => 0,
    }
}

/// A mismatch, an abort or a missed deadline keeps its kind on every rank; any other failure of a peer is a remote
/// failure here.
fn kind_from(code: u8) -> Kind {
    match code {
        1 => Kind::Mismatch,
        2 => Kind::Aborted,
        3 => Kind::Timeout,
        _ => Kind::Remote,
    }
}
