//! The Rust call that makes an rsccl communicator from an MPI communicator. The protocol is in `over_mpi::join`.

use ::mpi::ffi::MPI_Comm;
use ::mpi::raw::AsRaw;

use crate::comm::Communicator;
use crate::config::Config;
#[allow(unused_imports, reason = "the documentation names it")]
use crate::error::{Kind, Result};
use crate::mpi::rsmpi::{handle_of, mpi_calls};
use crate::over_mpi;

/// The rsccl communicator with the same ranks as `mpi`. Collective: every rank of `mpi` calls it.
///
/// It works on any intracommunicator: the world, a split, a duplicate, one with its ranks in another order. No object
/// of MPI is kept: the rsccl communicator remains valid when `mpi` is freed, and may be dropped after `MPI_Finalize`.
/// Meanwhile the ranks communicate on a private duplicate, so their messages cannot be confused with the program's.
///
/// The environment overrides `config` ([`Config::resolve`]). If the result is non-blocking, this call blocks all the
/// same, because it must know whether all ranks have joined.
///
/// # Errors
/// If one rank fails, every rank gets an error that names it. The deadline of init bounds the wait for all ranks to
/// call this; the wait for all to have joined has the same bound plus a few seconds.
///
/// - [`Kind::InvalidUsage`] if MPI is not initialised, is finalised, or may not be called by this thread;
///   [`Kind::InvalidArgument`] for `MPI_COMM_NULL` and an intercommunicator. A rank that gets one of these alone has
///   not taken part: the others time out.
/// - [`Kind::Timeout`] if not all ranks of `mpi` make the call. MPI cannot cancel a collective that has begun, so the
///   job should end then, for instance by [`super::abort`].
/// - The errors of [`Communicator::init`]: [`Kind::InvalidArgument`] for a bad setting of one rank, [`Kind::Mismatch`]
///   for settings that differ, and so on.
/// - [`Kind::System`] with MPI's own text if a call of MPI fails.
///
/// # Examples
/// ```no_run
/// use rsccl::{Config, ReduceOp};
///
/// // mpirun -n 4 target/debug/this-program
/// let universe = mpi::initialize().expect("MPI is initialised once");
/// let comm = rsccl::mpi::communicator(&universe.world(), &Config::default())?;
/// let mut sum = [comm.rank()];
/// comm.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
/// # Ok::<(), rsccl::Error>(())
/// ```
pub fn communicator(mpi: &impl AsRaw<Raw = MPI_Comm>, config: &Config) -> Result<Communicator> {
    // SAFETY: `AsRaw` promises a handle that is valid, and `mpi` is borrowed for the length of the call.
    unsafe { over_mpi::communicator(mpi_calls(), handle_of(mpi), config) }
}
