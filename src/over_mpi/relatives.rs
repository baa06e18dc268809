//! Relations between an rsccl communicator and MPI communicators: checks that the ranks are the same, and splits like
//! MPI.

use std::collections::HashMap;

use crate::comm::Communicator;
use crate::error::{Error, Result};
use crate::over_mpi::agreement::{Carrier, agree};
use crate::over_mpi::calls::{self, Private, Theirs};
use crate::over_mpi::waiting::finish;
use crate::over_mpi::{Handle, Mpi};
use crate::sync::AbortFlag;
use crate::types::{Rank, ReduceOp};

/// An rsccl communicator as the carrier of an agreement.
pub(super) struct Ranks<'a>(pub(super) &'a Communicator);

impl Carrier for Ranks<'_> {
    fn rank(&self) -> Rank {
        Rank::new(self.0.rank())
    }

    fn least(&mut self, mine: i64) -> Result<i64> {
        let mut least = [mine];
        self.0.all_reduce_in_place(&mut least, ReduceOp::Min)?;
        Ok(least[0])
    }

    fn spread(&mut self, root: Rank, mut bytes: Vec<u8>) -> Result<Vec<u8>> {
        self.0.broadcast(&mut bytes, root.get())?;
        Ok(bytes)
    }
}

/// Why ranks compare their communicator with MPI's. What follows differs, so a rank that is in one call must not wait
/// for ranks that are in the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckPurpose {
    /// [`check`].
    Check = 1,
    /// [`placement`](super::placement).
    Placement = 2,
}

/// Reproduces a split of MPI's: for each sub-communicator of MPI it makes a communicator with the same ranks in the
/// same order. Collective over `comm`. A rank passes its sub-communicator, or null if it is in none.
///
/// # Errors
/// As [`Communicator::like`] of feature `mpi` says.
///
/// # Safety
/// `sub` is a handle of this MPI's, null or of a communicator that lives during the call.
pub(crate) unsafe fn like(mpi: Mpi, comm: &Communicator, sub: Handle) -> Result<Option<Communicator>> {
    // SAFETY: the caller's promise.
    let sub = (sub != mpi.null).then(|| unsafe { Theirs::new(mpi, sub) });
    let members = members(mpi, comm, sub).map_err(|error| error.inside("like"))?;
    let place = |members: &Vec<u32>| (members.first().copied(), members.iter().position(|rank| *rank == comm.rank()));
    let (color, key) = members.as_ref().map_or((None, None), place);
    let key = key.and_then(|key| i64::try_from(key).ok()).unwrap_or(0);
    let child = comm.split_now(color, key)?;
    let (wanted, got) = (members.map(|members| (key, members.len())), child.as_ref());
    let got = got.map(|child| (i64::from(child.rank()), child.size() as usize));
    if wanted != got {
        return Err(Error::internal(format!("like yields (rank, size) {got:?} for MPI's {wanted:?}")));
    }
    Ok(child)
}

/// Asserts that rank i of `comm` is rank i of `theirs`, for every rank. Collective over both.
///
/// # Errors
/// As [`Communicator::check`] of feature `mpi` says.
///
/// # Safety
/// As [`like`].
pub(crate) unsafe fn check(mpi: Mpi, comm: &Communicator, theirs: Handle) -> Result<()> {
    // SAFETY: the caller's promise.
    let private = unsafe { private_duplicate(mpi, comm, theirs, CheckPurpose::Check) };
    private.and_then(Private::free).map_err(|error| error.inside("check"))
}

/// [`check`], which yields a private duplicate of `theirs`. It exists on all ranks, for the same `purpose`.
///
/// # Safety
/// As [`like`].
pub(super) unsafe fn private_duplicate(
    mpi: Mpi,
    comm: &Communicator,
    theirs: Handle,
    purpose: CheckPurpose,
) -> Result<Private> {
    let told = ranks_in_world(mpi, comm)?;
    // SAFETY: the caller's promise.
    let theirs = unsafe { Theirs::new(mpi, theirs) }.and_then(|theirs| same_ranks(theirs, &told));
    let theirs = agree(&mut Ranks(comm), theirs)?;
    // A rank that gets past this knows that all ranks have come and none has failed, so calls that block in MPI may
    // follow.
    agree(&mut Ranks(comm), same_context(mpi, comm, &theirs, purpose))
}

/// Duplicates `theirs`, and proves that all ranks have passed handles of one communicator, for one purpose: a minimum
/// over MPI shows that all have the same number, which only the ranks of this rsccl communicator know, and the same
/// purpose.
fn same_context(mpi: Mpi, comm: &Communicator, theirs: &Theirs, purpose: CheckPurpose) -> Result<Private> {
    let number = i64::try_from(comm.number()? >> 1).unwrap_or(0);
    let wait = comm.timeout()?.wait(&AbortFlag::new());
    let words = "the ranks pass different MPI communicators, or not all ranks of this one came to rsccl's check of it";
    let private = Private::adopt(mpi, &finish(theirs.duplicate()?, &wait, words)?)?;
    let mine = purpose as i64;
    let extremes = finish(private.least(vec![number, -number, mine, -mine])?, &wait, words)?.1;
    if extremes[..2] != [number, -number] {
        return Err(Error::mismatch("the ranks of the MPI communicator belong to different rsccl communicators"));
    }
    match extremes[2..] == [mine, -mine] {
        true => Ok(private),
        false => Err(Error::mismatch("some ranks called check, others placement: all must make the same call")),
    }
}

/// The ranks in `comm` of the ranks of `sub`, in its order; checked to be the same on all ranks of `sub`.
fn members(mpi: Mpi, comm: &Communicator, sub: Option<Result<Theirs>>) -> Result<Option<Vec<u32>>> {
    let told = ranks_in_world(mpi, comm)?;
    let mine = sub.transpose().and_then(|sub| sub.map(|sub| numbers_here(&sub, &told)).transpose());
    let members = agree(&mut Ranks(comm), mine)?;
    let mine = members.as_deref().map_or(0, fingerprint);
    let mut all = vec![0; told.len()];
    comm.all_gather(&[mine], &mut all)?;
    let stranger = members.iter().flatten().find(|rank| all.get(**rank as usize) != Some(&mine));
    let alike = match stranger {
        None => Ok(()),
        Some(rank) => {
            let message = format!("rank {rank} is in this rank's MPI sub-communicator, but passes another one");
            Err(Error::mismatch(message).about(Rank::new(*rank)))
        }
    };
    agree(&mut Ranks(comm), alike.map(|()| members))
}

/// For each rank of `comm`, in order, its rank in `MPI_COMM_WORLD`.
fn ranks_in_world(mpi: Mpi, comm: &Communicator) -> Result<Vec<u32>> {
    let here = agree(&mut Ranks(comm), calls::rank_in_world(mpi))?;
    let mut told = vec![0; comm.size() as usize];
    comm.all_gather(&[here], &mut told)?;
    let mut seen = HashMap::new();
    for (rank, place) in (0..).zip(&told) {
        if let Some(other) = seen.insert(*place, rank) {
            // All ranks see the same numbers, so all return this.
            return Err(Error::invalid_usage(format!(
                "ranks {other} and {rank} of this communicator are both rank {place} of MPI_COMM_WORLD, by which they \
                 are compared with MPI: they are threads of one process, or of worlds that MPI has connected \
                 (MPI_Comm_spawn)"
            )));
        }
    }
    Ok(told)
}

/// Checks for every i that rank i of `theirs` is the rank `told[i]` of `MPI_COMM_WORLD`.
fn same_ranks(theirs: Theirs, told: &[u32]) -> Result<Theirs> {
    let ranks = theirs.ranks_in_world()?;
    if ranks.len() != told.len() {
        return Err(Error::mismatch(format!(
            "the MPI communicator has {} ranks, the rsccl communicator {}",
            ranks.len(),
            told.len()
        )));
    }
    match (0u32..).zip(ranks.iter().zip(told)).find(|(_, (mpi, here))| mpi != here) {
        Some((rank, (mpi, here))) => {
            let message = format!(
                "rank {rank} is the first that differs: rank {here} of MPI_COMM_WORLD to rsccl, rank {mpi} to the MPI \
                 communicator"
            );
            Err(Error::mismatch(message).about(Rank::new(rank)))
        }
        None => Ok(theirs),
    }
}

/// The ranks in this communicator of the ranks of `sub`; `told` has the rank in `MPI_COMM_WORLD` of each.
fn numbers_here(sub: &Theirs, told: &[u32]) -> Result<Vec<u32>> {
    let here: HashMap<u32, u32> = told.iter().copied().zip(0..).collect();
    let number = |(place, world): (usize, u32)| {
        here.get(&world).copied().ok_or_else(|| {
            Error::invalid_argument(format!(
                "rank {place} of the MPI sub-communicator, which is rank {world} of MPI_COMM_WORLD, is not in this \
                 communicator"
            ))
        })
    };
    sub.ranks_in_world()?.into_iter().enumerate().map(number).collect()
}

/// A hash of a list: equal for equal lists, and never 0, which means "no list".
fn fingerprint(members: &[u32]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    members.iter().for_each(|rank| {
        hasher.update(&rank.to_le_bytes());
    });
    let hash = hasher.finalize();
    u64::from_le_bytes(std::array::from_fn(|place| hash.as_bytes()[place])) | 1
}
