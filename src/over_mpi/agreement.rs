//! Agreement: either all ranks continue, or all fail with the same error.
//!
//! Each rank votes with its result; the smallest vote wins. Among failed ranks, those whose error is most likely the
//! cause come first (one that is not about another rank), and of those the lowest rank. That rank sends its error to
//! everyone as a note of fixed size:
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

/// The carrier of votes and notes between the ranks: MPI, or an rsccl communicator. Its calls are collective.
pub(super) trait Carrier {
    /// This rank.
    fn rank(&self) -> Rank;

    /// The minimum of all ranks' values.
    fn least(&mut self, mine: i64) -> Result<i64>;

    /// Broadcasts the bytes of `root`; all ranks must pass the same number of bytes.
    fn spread(&mut self, root: Rank, bytes: Vec<u8>) -> Result<Vec<u8>>;
}

/// `mine` if no rank has failed; otherwise the same error on all ranks.
pub(super) fn agree<T>(carrier: &mut impl Carrier, mine: Result<T>) -> Result<T> {
    match carrier.least(vote(carrier.rank(), &mine)) {
        Ok(least) => conclude(carrier, least, mine),
        // The carrier failed, so there is nobody to agree with: this rank's own error is the more useful one.
        Err(error) => Err(mine.err().unwrap_or(error)),
    }
}

/// [`agree`] after the vote, whose minimum is `least`.
pub(super) fn conclude<T>(carrier: &mut impl Carrier, least: i64, mine: Result<T>) -> Result<T> {
    let Some(source) = source_of(least) else { return mine };
    let own = match mine {
        Err(error) if source == carrier.rank() => {
            // The others receive the error or time out; this rank knows it in any case.
            let _told = carrier.spread(source, encode(&error));
            return Err(error.at(source));
        }
        Err(error) => Some(error),
        Ok(_) => None,
    };
    match carrier.spread(source, vec![0; NOTE_BYTES]) {
        Ok(note) => Err(decode(source, &note).at(carrier.rank())),
        Err(error) => Err(own.unwrap_or(error)),
    }
}

/// A rank's vote: [`NO_FAILURE`] for a success; for failures, the smaller the likelier it is the cause.
pub(super) fn vote<T>(rank: Rank, result: &Result<T>) -> i64 {
    match result {
        Ok(_) => NO_FAILURE,
        Err(error) => likelihood(error.kind()) << 32 | i64::from(rank.get()),
    }
}

/// The vote of a rank that has not failed, or that failed only because another did.
pub(super) const NO_FAILURE: i64 = i64::MAX;

fn source_of(least: i64) -> Option<Rank> {
    (least != NO_FAILURE).then(|| Rank::new(u32::try_from(least & i64::from(u32::MAX)).expect("masked to 32 bits")))
}

/// How likely an error of this kind is the cause of the other ranks' errors; smaller is likelier.
fn likelihood(kind: Kind) -> i64 {
    match kind {
        Kind::InvalidArgument | Kind::InvalidUsage | Kind::Mismatch | Kind::System | Kind::Internal => 0,
        Kind::Timeout | Kind::InProgress => 1,
        Kind::Remote | Kind::Aborted => 2,
    }
}

fn encode(error: &Error) -> Vec<u8> {
    let mut text = match error.operation() {
        Some(operation) if operation != "init" => format!("{operation}: {}", error.message()),
        _ => error.message().to_owned(),
    };
    text.truncate(wire::cut(&text, MAX_TEXT_BYTES).len());
    let mut writer = Writer::with_capacity(NOTE_BYTES);
    let code = KINDS.iter().position(|kind| *kind == error.kind()).and_then(|place| u8::try_from(place).ok());
    writer.u8(code.unwrap_or(u8::MAX)).u32(error.peer().map_or(0, |peer| peer.saturating_add(1))).text(&text);
    let mut note = writer.finish();
    note.resize(NOTE_BYTES, 0);
    note
}

/// The error of `source` as the other ranks report it.
fn decode(source: Rank, note: &[u8]) -> Error {
    let read = || -> Result<(Option<Kind>, Option<u32>, String)> {
        let mut reader = Reader::new(note, "a note of failure");
        let kind = KINDS.get(usize::from(reader.u8()?)).copied();
        Ok((kind, reader.u32()?.checked_sub(1), reader.text(MAX_TEXT_BYTES)?))
    };
    match read() {
        Ok((kind, peer, text)) => {
            let kind = kind.unwrap_or(Kind::Remote);
            // In the words of the rank that failed, "this rank" is that rank.
            let text = text.replace("this rank", &format!("rank {source}"));
            Error::new(kind, format!("rank {source} reports: {text}")).about(peer.map_or(source, Rank::new))
        }
        Err(_) => Error::remote(source, format!("rank {source} failed, and its note of why is malformed")),
    }
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
/// The bytes of a note.
const NOTE_BYTES: usize = 1 + 4 + 4 + MAX_TEXT_BYTES;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Ranks as threads over an rsccl communicator.
    fn outcomes(ranks: u32, fails: impl Fn(u32) -> Option<Error> + Sync) -> Vec<std::result::Result<u32, Error>> {
        crate::local::run(ranks, |comm| {
            let rank = comm.rank();
            Ok(agree(&mut crate::over_mpi::relatives::Ranks(&comm), fails(rank).map_or(Ok(rank), Err)))
        })
        .unwrap()
    }

    #[test]
    fn without_failure_each_keeps_its_own() {
        let kept: Vec<u32> = outcomes(3, |_| None).into_iter().map(|outcome| outcome.unwrap()).collect();
        assert_eq!(kept, [0, 1, 2]);
    }

    #[test]
    fn all_have_the_error_of_the_lowest_rank_that_is_to_blame() {
        let errors = outcomes(4, |rank| match rank {
            0 => Some(Error::remote(Rank::new(2), "rank 2 has died")),
            2 => Some(Error::invalid_argument("NCCL_ALGO=x").during("reading")),
            3 => Some(Error::internal("too late")),
            _ => None,
        });
        for (rank, error) in errors.into_iter().enumerate() {
            let error = error.unwrap_err();
            assert_eq!((error.kind(), error.rank()), (Kind::InvalidArgument, u32::try_from(rank).ok()));
            if rank == 2 {
                assert_eq!(error.to_string(), "rank 2: reading: NCCL_ALGO=x");
            } else {
                assert_eq!(error.to_string(), format!("rank {rank}: rank 2 reports: reading: NCCL_ALGO=x"));
                assert_eq!(error.peer(), Some(2));
            }
        }
    }

    proptest! {
        #[test]
        fn notes_come_back(code in 0..KINDS.len(), peer in proptest::option::of(0..u32::MAX), text in ".{0,5000}") {
            let mut error = Error::new(KINDS[code], text.clone());
            if let Some(peer) = peer {
                error = error.about(Rank::new(peer));
            }
            let note = encode(&error);
            prop_assert_eq!(note.len(), NOTE_BYTES);
            let heard = decode(Rank::new(7), &note);
            prop_assert_eq!((heard.kind(), heard.peer()), (KINDS[code], Some(peer.unwrap_or(7))));
            let kept = heard.message().strip_prefix("rank 7 reports: ").unwrap();
            prop_assert!(text.starts_with(kept) && (kept.len() == text.len() || kept.len() > MAX_TEXT_BYTES - 4));
        }

        #[test]
        fn any_bytes_are_some_error(note in proptest::collection::vec(any::<u8>(), 0..NOTE_BYTES + 9)) {
            prop_assert_eq!(decode(Rank::new(1), &note).rank(), None);
        }
    }

    #[test]
    fn votes_order_by_likelihood_and_rank() {
        let of = |rank, kind| vote::<()>(Rank::new(rank), &Err(Error::new(kind, "")));
        assert!(of(9, Kind::System) < of(0, Kind::Timeout) && of(9, Kind::Timeout) < of(0, Kind::Remote));
        assert!(of(u32::MAX, Kind::Aborted) < NO_FAILURE);
        assert_eq!(source_of(of(u32::MAX, Kind::Aborted)), Some(Rank::new(u32::MAX)));
        assert_eq!(source_of(vote(Rank::new(0), &Ok(()))), None);
    }
}
