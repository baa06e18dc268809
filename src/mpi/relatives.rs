//! Relations between an rsccl communicator and MPI communicators: checks that the ranks are the same, and splits like
//! MPI.

use std::collections::HashMap;

use ::mpi::ffi::MPI_Comm;
use ::mpi::raw::AsRaw;

use crate::comm::Communicator;
use crate::error::{Error, Result};
use crate::mpi::agreement::{Carrier, agree};
use crate::mpi::calls::{self, Private, Theirs};
use crate::mpi::waiting::{finish, within};
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
    /// [`Communicator::check`].
    Check = 1,
    /// [`super::placement`].
    Placement = 2,
}

impl Communicator {
    /// Reproduces a split of MPI's: for each sub-communicator of MPI it makes a communicator with the same ranks in the
    /// same order. Collective over this communicator. A rank passes its sub-communicator, or `None` or `MPI_COMM_NULL`
    /// if it is in none; it gets a communicator or `None` accordingly. Sends no message of MPI and keeps no handle.
    ///
    /// # Errors
    /// On every rank, naming one that has it: [`crate::error::Kind::InvalidArgument`] if a sub-communicator has ranks
    /// that are not in this communicator, or is an intercommunicator; [`crate::error::Kind::Mismatch`] if ranks of one
    /// sub-communicator pass different ones; [`crate::error::Kind::InvalidUsage`] if MPI may not be called. Also those
    /// of [`Communicator::split`].
    ///
    /// # Examples
    /// ```no_run
    /// use mpi::topology::Color;
    /// use mpi::traits::*;
    ///
    /// # fn example(world: &mpi::topology::SimpleCommunicator, comm: &rsccl::Communicator) -> rsccl::Result<()> {
    /// let row = world.split_by_color(Color::with_value(world.rank() / 2));
    /// if let Some(same) = comm.like(row.as_ref())? {
    ///     same.barrier()?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn like(&self, sub: Option<&impl AsRaw<Raw = MPI_Comm>>) -> Result<Option<Communicator>> {
        let sub = sub.filter(|sub| !calls::is_null(sub.as_raw()));
        let members = self.members(sub.map(Theirs::new)).map_err(|error| error.inside("like"))?;
        let place =
            |members: &Vec<u32>| (members.first().copied(), members.iter().position(|rank| *rank == self.rank()));
        let (color, key) = members.as_ref().map_or((None, None), place);
        let key = key.and_then(|key| i64::try_from(key).ok()).unwrap_or(0);
        let child = self.split_now(color, key)?;
        let (wanted, got) = (members.map(|members| (key, members.len())), child.as_ref());
        let got = got.map(|child| (i64::from(child.rank()), child.size() as usize));
        if wanted != got {
            return Err(Error::internal(format!("like yields (rank, size) {got:?} for MPI's {wanted:?}")));
        }
        Ok(child)
    }

    /// Asserts that rank i here is rank i of `mpi`, for every rank. Collective over both.
    ///
    /// # Errors
    /// On every rank: [`crate::error::Kind::Mismatch`] with the first rank that has another number in `mpi` or is not
    /// in it; [`crate::error::Kind::Timeout`] at the deadline of init if ranks pass different communicators with the
    /// same ranks in the same order, such as one and its duplicate: MPI reveals that only by messages that never
    /// arrive, and keeps the operations started on them; [`crate::error::Kind::InvalidArgument`] and
    /// [`crate::error::Kind::InvalidUsage`] as [`super::communicator`].
    ///
    /// # Examples
    /// ```no_run
    /// # fn example() -> rsccl::Result<()> {
    /// let universe = mpi::initialize().expect("MPI is initialised once");
    /// let world = universe.world();
    /// let comm = rsccl::mpi::communicator(&world, &rsccl::Config::default())?;
    /// comm.check(&world)
    /// # }
    /// ```
    pub fn check(&self, mpi: &impl AsRaw<Raw = MPI_Comm>) -> Result<()> {
        self.private_duplicate(mpi, CheckPurpose::Check).and_then(Private::free).map_err(|error| error.inside("check"))
    }

    /// [`Communicator::check`], which yields a private duplicate of `mpi`. It exists on all ranks, for the same
    /// `purpose`.
    pub(super) fn private_duplicate(&self, mpi: &impl AsRaw<Raw = MPI_Comm>, purpose: CheckPurpose) -> Result<Private> {
        let told = self.ranks_in_world()?;
        let theirs = agree(&mut Ranks(self), same_ranks(mpi, &told))?;
        // A rank that gets past this knows that all ranks have come and none has failed, so calls that block in MPI may
        // follow.
        agree(&mut Ranks(self), self.same_context(&theirs, purpose))
    }

    /// Duplicates `theirs`, and proves that all ranks have passed handles of one communicator, for one purpose: a
    /// minimum over MPI shows that all have the same number, which only the ranks of this rsccl communicator know, and
    /// the same purpose.
    fn same_context(&self, theirs: &Theirs<'_>, purpose: CheckPurpose) -> Result<Private> {
        let number = i64::try_from(self.number()? >> 1).unwrap_or(0);
        let wait = within(self.init_timeout()?);
        let words =
            "the ranks pass different MPI communicators, or not all ranks of this one came to rsccl's check of it";
        let comm = Private::adopt(&finish(theirs.duplicate()?, &wait, words)?)?;
        let mine = purpose as i64;
        let extremes = finish(comm.least(vec![number, -number, mine, -mine])?, &wait, words)?.1;
        if extremes[..2] != [number, -number] {
            return Err(Error::mismatch("the ranks of the MPI communicator belong to different rsccl communicators"));
        }
        match extremes[2..] == [mine, -mine] {
            true => Ok(comm),
            false => Err(Error::mismatch("some ranks called check, others placement: all must make the same call")),
        }
    }

    /// The ranks in this communicator of the ranks of `sub`, in its order; checked to be the same on all ranks of
    /// `sub`.
    fn members(&self, sub: Option<Result<Theirs<'_>>>) -> Result<Option<Vec<u32>>> {
        let told = self.ranks_in_world()?;
        let mine = sub.transpose().and_then(|sub| sub.map(|sub| numbers_here(&sub, &told)).transpose());
        let members = agree(&mut Ranks(self), mine)?;
        let mine = members.as_deref().map_or(0, fingerprint);
        let mut all = vec![0; told.len()];
        self.all_gather(&[mine], &mut all)?;
        let stranger = members.iter().flatten().find(|rank| all.get(**rank as usize) != Some(&mine));
        let alike = match stranger {
            None => Ok(()),
            Some(rank) => {
                let message = format!("rank {rank} is in this rank's MPI sub-communicator, but passes another one");
                Err(Error::mismatch(message).about(Rank::new(*rank)))
            }
        };
        agree(&mut Ranks(self), alike.map(|()| members))
    }

    /// For each rank of this communicator, in order, its rank in `MPI_COMM_WORLD`.
    fn ranks_in_world(&self) -> Result<Vec<u32>> {
        let here = agree(&mut Ranks(self), calls::rank_in_world())?;
        let mut told = vec![0; self.size() as usize];
        self.all_gather(&[here], &mut told)?;
        let mut seen = HashMap::new();
        for (rank, place) in (0..).zip(&told) {
            if let Some(other) = seen.insert(*place, rank) {
                // All ranks see the same numbers, so all return this.
                return Err(Error::invalid_usage(format!(
                    "ranks {other} and {rank} of this communicator are both rank {place} of MPI_COMM_WORLD, by which \
                     they are compared with MPI: they are threads of one process, or of worlds that MPI has connected \
                     (MPI_Comm_spawn)"
                )));
            }
        }
        Ok(told)
    }
}

/// Checks for every i that rank i of `mpi` is the rank `told[i]` of `MPI_COMM_WORLD`.
fn same_ranks<'a>(mpi: &'a impl AsRaw<Raw = MPI_Comm>, told: &[u32]) -> Result<Theirs<'a>> {
    let theirs = Theirs::new(mpi)?;
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
fn numbers_here(sub: &Theirs<'_>, told: &[u32]) -> Result<Vec<u32>> {
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
