//! Agreement: either all ranks continue, or all fail with the same error.
//!
//! Each rank votes with its result; the smallest vote wins. Among failed ranks, those whose error is most likely the
//! cause come first (one that is not about another rank), and of those the lowest rank. That rank sends its error to
//! everyone as a note of fixed size ([`verdict`]).

use crate::bootstrap::verdict;
use crate::error::{Error, Result};
use crate::types::Rank;

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
        Ok(note) => Err(verdict::decode(source, &note).at(carrier.rank())),
        Err(error) => Err(own.unwrap_or(error)),
    }
}

/// A rank's vote: [`NO_FAILURE`] for a success; for failures, the smaller the likelier it is the cause.
pub(super) fn vote<T>(rank: Rank, result: &Result<T>) -> i64 {
    match result {
        Ok(_) => NO_FAILURE,
        Err(error) => verdict::likelihood(error.kind()) << 32 | i64::from(rank.get()),
    }
}

/// The vote of a rank that has not failed, or that failed only because another did.
pub(super) const NO_FAILURE: i64 = i64::MAX;

fn source_of(least: i64) -> Option<Rank> {
    (least != NO_FAILURE).then(|| Rank::new(u32::try_from(least & i64::from(u32::MAX)).expect("masked to 32 bits")))
}

/// The note of `error`, as long as all notes are.
fn encode(error: &Error) -> Vec<u8> {
    let mut note = verdict::encode(error);
    note.resize(NOTE_BYTES, 0);
    note
}

/// The bytes of a note.
const NOTE_BYTES: usize = verdict::MAX_NOTE_BYTES;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

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

    #[test]
    fn votes_order_by_likelihood_and_rank() {
        let of = |rank, kind| vote::<()>(Rank::new(rank), &Err(Error::new(kind, "")));
        assert!(of(9, Kind::System) < of(0, Kind::Timeout) && of(9, Kind::Timeout) < of(0, Kind::Remote));
        assert!(of(u32::MAX, Kind::Aborted) < NO_FAILURE);
        assert_eq!(source_of(of(u32::MAX, Kind::Aborted)), Some(Rank::new(u32::MAX)));
        assert_eq!(source_of(vote(Rank::new(0), &Ok(()))), None);
    }
}
