//! The Rust call that compares MPI's hosts with rsccl's. The comparison itself is in `over_mpi::hosts`.

use ::mpi::ffi::MPI_Comm;
use ::mpi::raw::AsRaw;

use crate::comm::{Communicator, Placement};
use crate::error::Result;
use crate::mpi::rsmpi::{handle_of, mpi_calls};
use crate::over_mpi;

/// [`Communicator::placement`], compared with what MPI reports about shared memory (`MPI_Comm_split_type`). If the two
/// disagree, as in containers and network namespaces, one warning in the log says how, and rsccl's view counts.
/// Collective over both communicators, which must have the same ranks ([`Communicator::check`]).
///
/// # Errors
/// As [`Communicator::check`] and [`Communicator::placement`]; [`crate::error::Kind::Mismatch`] on every rank if some
/// ranks call `check` instead.
///
/// # Examples
/// ```no_run
/// # fn example() -> rsccl::Result<()> {
/// let universe = mpi::initialize().expect("MPI is initialised once");
/// let comm = rsccl::mpi::communicator(&universe.world(), &rsccl::Config::default())?;
/// println!("{}", rsccl::mpi::placement(&comm, &universe.world())?);
/// # Ok(())
/// # }
/// ```
pub fn placement(comm: &Communicator, mpi: &impl AsRaw<Raw = MPI_Comm>) -> Result<Placement> {
    // SAFETY: `AsRaw` promises a handle that is valid, and `mpi` is borrowed for the length of the call.
    unsafe { over_mpi::placement(mpi_calls(), comm, handle_of(mpi)) }
}
