//! A hook that moves MPI while a rank waits in rsccl.

use crate::error::Result;
use crate::mpi::rsmpi::mpi_calls;
use crate::over_mpi::calls::{self, Stage};
use crate::sync::Progress;
use crate::sys::host;

/// A hook for [`crate::Communicator::set_progress`] that lets MPI progress while a call on the communicator waits: it
/// probes for a message that is never sent. The [module's rule](super#the-rule-of-progress) says when it is needed.
///
/// With `MPI_THREAD_MULTIPLE` it works on every thread. Below that it works on the thread that made it and does nothing
/// on others; with `MPI_THREAD_SERIALIZED` no other thread may call MPI while this one is in a call of rsccl. Once MPI
/// is finalised it does nothing.
///
/// # Errors
/// [`crate::error::Kind::InvalidUsage`] if MPI is not running, or if this thread may not call it.
///
/// # Examples
/// ```no_run
/// use rsccl::{Config, ReduceOp};
///
/// let universe = mpi::initialize().expect("MPI is initialised once");
/// let comm = rsccl::mpi::communicator(&universe.world(), &Config::default())?;
/// comm.set_progress(Some(rsccl::mpi::progress()?))?;
/// // Large MPI_Isends that have been started progress while this waits for the other ranks.
/// comm.barrier()?;
/// # Ok::<(), rsccl::Error>(())
/// ```
pub fn progress() -> Result<Progress> {
    let everywhere = calls::check_thread(mpi_calls())?;
    let maker = host::thread_id();
    Ok(Progress::new(move || {
        let may_call = everywhere || host::thread_id() == maker;
        if may_call && calls::stage(mpi_calls()) == Stage::Running { calls::poke(mpi_calls()) } else { Ok(()) }
    }))
}
