//! The Rust calls that compare a communicator with MPI's, and that split it like MPI. The work is done in
//! `over_mpi::relatives`.

use ::mpi::ffi::MPI_Comm;
use ::mpi::raw::AsRaw;

use crate::comm::Communicator;
use crate::error::Result;
use crate::mpi::rsmpi::{handle_of, mpi_calls};
use crate::over_mpi;

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
        let sub = sub.map_or(mpi_calls().null, handle_of);
        // SAFETY: `AsRaw` promises a handle that is valid, and `sub` is borrowed for the length of the call.
        unsafe { over_mpi::like(mpi_calls(), self, sub) }
    }

    /// Asserts that rank i here is rank i of `mpi`, for every rank. Collective over both.
    ///
    /// # Errors
    /// On every rank: [`crate::error::Kind::Mismatch`] with the first rank that has another number in `mpi` or is not
    /// in it; [`crate::error::Kind::Timeout`] at this one's deadline if ranks pass different communicators with the
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
        // SAFETY: `AsRaw` promises a handle that is valid, and `mpi` is borrowed for the length of the call.
        unsafe { over_mpi::check(mpi_calls(), self, handle_of(mpi)) }
    }
}
