//! Ending an MPI job from an rsccl error or a panic: one rank that goes alone leaves the others waiting.

use std::io::Write;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::mpi::calls::{self, Stage};
use crate::sync::primitive::{Ordering, statics::AtomicBool};
use crate::sys::futex;

/// Makes a panic of any thread end the whole MPI job: after the panic's message, `MPI_Abort` on `MPI_COMM_WORLD` with code 101. Without it
/// a rank that panics unwinds into `MPI_Finalize`, which waits for the others, who wait for it. Where MPI is not initialised or
/// is finalised, a panic goes on as ever. Called again, it does nothing.
///
/// # Examples
/// ```no_run
/// rsccl::mpi::abort_on_panic();
/// let universe = mpi::initialize().expect("MPI is initialised once");
/// ```
pub fn abort_on_panic() {
    // Relaxed: the flag guards nothing but this call.
    if INSTALLED.swap(true, Ordering::Relaxed) {
        return;
    }
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        before(panic);
        if calls::stage() == Stage::Running {
            futex::nap(FORWARDING);
            calls::abort(PANIC_CODE);
        }
    }));
}

/// Ends the whole MPI job with `error`: one line on standard error, then `MPI_Abort` on `MPI_COMM_WORLD` with NCCL's number of the error
/// ([`crate::error::Kind::nccl_code`]). Where MPI is not up, this process aborts.
///
/// # Examples
/// ```no_run
/// # let comm = rsccl::Communicator::init_all(1, &rsccl::Config::default()).unwrap().remove(0);
/// if let Err(error) = comm.barrier() {
///     rsccl::mpi::abort(&error);
/// }
/// ```
pub fn abort(error: &Error) -> ! {
    // All that anybody learns; where it cannot be written, there is nobody to tell. One write: other ranks write too.
    let words = error.to_string().replace('\n', " ");
    let line = format!("rsccl: {words}: aborting the MPI job\n");
    let _written = std::io::stderr().write_all(line.as_bytes());
    futex::nap(FORWARDING);
    calls::abort(error.kind().nccl_code());
    std::process::abort()
}

/// The value, or the end of the whole MPI job by [`abort`].
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

/// Whether the hook of panics is set: a process has one.
static INSTALLED: AtomicBool = AtomicBool::new(false);
/// How long a launcher has to take over a rank's last words: Hydra ends at once when the job is aborted, with what it has not read
/// by then.
const FORWARDING: Duration = Duration::from_millis(100);
/// What a Rust program that panics exits with.
const PANIC_CODE: i32 = 101;
