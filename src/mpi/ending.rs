//! Ending an MPI job because of an rsccl error or a panic: a rank that ended alone would leave the others waiting.

use std::io::Write;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::mpi::rsmpi::{abort as abort_job, mpi_calls};
use crate::over_mpi::calls::{self, Stage};
use crate::sync::primitive::{Ordering, statics::AtomicBool};
use crate::sys::futex;

/// Makes a panic of any thread end the whole MPI job: after the panic's message, it calls `MPI_Abort` on
/// `MPI_COMM_WORLD` with code 101. Without it a rank that panics unwinds into `MPI_Finalize`, which waits for the
/// others, which wait for it. If MPI is not initialised, or is finalised, a panic has its usual effect. A second call
/// does nothing.
///
/// # Examples
/// ```no_run
/// rsccl::mpi::abort_on_panic();
/// let universe = mpi::initialize().expect("MPI is initialised once");
/// ```
pub fn abort_on_panic() {
    // Relaxed: the flag guards only this call.
    if INSTALLED.swap(true, Ordering::Relaxed) {
        return;
    }
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        before(panic);
        if calls::stage(mpi_calls()) == Stage::Running {
            futex::nap(FORWARDING);
            abort_job(PANIC_CODE);
        }
    }));
}

/// Ends the whole MPI job with `error`: prints one line on standard error, then calls `MPI_Abort` on `MPI_COMM_WORLD`
/// with NCCL's number of the error ([`crate::error::Kind::nccl_code`]). If MPI is not running, this process aborts.
///
/// # Examples
/// ```no_run
/// # let comm = rsccl::Communicator::init_all(1, &rsccl::Config::default()).unwrap().remove(0);
/// if let Err(error) = comm.barrier() {
///     rsccl::mpi::abort(&error);
/// }
/// ```
pub fn abort(error: &Error) -> ! {
    // A failure to write cannot be reported anywhere. The line is one write, because other ranks write too.
    let words = error.to_string().replace('\n', " ");
    let line = format!("rsccl: {words}: aborting the MPI job\n");
    let _written = std::io::stderr().write_all(line.as_bytes());
    futex::nap(FORWARDING);
    abort_job(error.kind().nccl_code());
    std::process::abort()
}

/// The value of `result`; on an error, ends the whole MPI job by [`abort`].
///
/// # Examples
/// ```no_run
/// use rsccl::mpi::or_abort;
///
/// let universe = mpi::initialize().expect("MPI is initialised once");
/// let comm = or_abort(rsccl::mpi::communicator(&universe.world(), &rsccl::Config::default()));
/// or_abort(comm.barrier());
/// ```
pub fn or_abort<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| abort(&error))
}

/// Whether the panic hook is set; a process has only one.
static INSTALLED: AtomicBool = AtomicBool::new(false);
/// How long a launcher gets to forward a rank's last line: when the job is aborted, Hydra ends at once and loses what
/// it has not read.
const FORWARDING: Duration = Duration::from_millis(100);
/// The exit code of a Rust program that panics.
const PANIC_CODE: i32 = 101;
