//! Communicators from MPI communicators: for jobs that `mpirun` or `srun` starts and that use MPI themselves.
//!
//! [`communicator`] does what users of NCCL write by hand: rank 0 makes the unique id, MPI carries it to all, each joins, and all
//! agree on the outcome. [`Communicator::placement`](crate::Communicator::placement) replaces the other handwritten part: hosts,
//! local ranks, and the GPU to use. A job that does not use MPI itself needs none of this:
//! [`Communicator::from_env`](crate::Communicator::from_env) learns all from the launcher's variables and links no MPI.
//!
//! Feature `mpi` of the crate; it needs `mpicc` and libclang to build, and uses the crate `mpi` (rsmpi) 0.8.
//!
//! ```no_run
//! use rsccl::mpi::{abort_on_panic, communicator, or_abort};
//! use rsccl::{Config, ReduceOp};
//!
//! fn main() {
//!     // mpirun -n 4 target/debug/this-program
//!     abort_on_panic();
//!     let universe = mpi::initialize().expect("MPI is initialised once");
//!     let comm = or_abort(communicator(&universe.world(), &Config::default()));
//!     let placement = or_abort(comm.placement());
//!     let mut sum = [comm.rank()];
//!     or_abort(comm.all_reduce_in_place(&mut sum, ReduceOp::Sum));
//!     println!("rank {} of {}: sum {}, {placement}", comm.rank(), comm.size(), sum[0]);
//! }
//! ```
//!
//! Sub-communicators come from MPI by [`communicator`] too, or from an rsccl communicator that is there:
//! [`split`](crate::Communicator::split) with its short forms [`local`](crate::Communicator::local),
//! [`cross`](crate::Communicator::cross) and [`by_color`](crate::Communicator::by_color), and
//! [`like`](crate::Communicator::like), which copies a sub-communicator of MPI rank by rank.
//! [`check`](crate::Communicator::check) asserts that two orders are the same.
//!
//! # The rule of progress
//!
//! MPI moves most messages only while a rank is in a call of MPI; rsccl moves its own only while a rank is in a call of rsccl. A rank that
//! waits in the one library does not serve the other. So:
//!
//! > Between `MPI_Isend`, `MPI_Irecv` or another call that MPI has begun, and the `MPI_Wait` that ends it, a rank must not wait in
//! > rsccl for a rank that needs that very message to get there. Complete it before, or set the hook of [`progress`].
//!
//! The shortest program that breaks it: rank 0 begins a large `MPI_Isend` to rank 1 and enters a barrier of rsccl; rank 1 receives the message
//! and then enters the barrier. A large message needs its sender to answer when the receiver is ready. The sender is in the barrier,
//! which waits for the receiver: neither goes on, until the barrier's deadline ends it. Small messages hide the fault, since MPI
//! sends them at once; so do some paths inside a host, where the receiver reads the sender's memory by itself.
//!
//! With `comm.set_progress(Some(rsccl::mpi::progress()?))?` a rank that waits on this communicator probes MPI meanwhile, and the program
//! above ends. The hook helps in one direction. A rank that blocks in MPI (`MPI_Recv`, `MPI_Barrier`) serves no call of
//! rsccl, but none needs it to: calls of rsccl are finished by the ranks that are in them, and what a call has sent arrives with no further
//! help. A request of a scope goes on by a thread of rsccl's, and MPI while the program waits for it.
//!
//! # Threads
//!
//! | level of MPI | who may call [`communicator`], [`placement`], [`progress`], `check`, `like` | where the hook works |
//! |---|---|---|
//! | `SINGLE`, `FUNNELED` | the thread that initialised MPI; others get an error | on that thread |
//! | `SERIALIZED` | any thread, while no other calls MPI | on the thread that made it, while no other calls MPI |
//! | `MULTIPLE` | any thread | on all |
//!
//! The functions of this page call MPI on the caller's thread only, and nothing else of rsccl calls it but the hook, on whichever
//! thread waits; with `MULTIPLE` that may be one of rsccl's own. As with every collective of MPI, two threads must not be in
//! [`communicator`], [`placement`] or `check` with the same MPI communicator at a time.
//!
//! # Errors
//!
//! Where one rank fails in [`communicator`], all ranks get that rank's error, which names it, soon after and not at the deadline.
//! `like`, `check` and [`placement`] do the same over rsccl. What remains is a rank that never calls: the others get
//! [`Kind::Timeout`](crate::error::Kind::Timeout), and MPI keeps a collective that never ends, so the job should end by
//! [`abort`] or [`or_abort`]. A rank that only returns from `main` with an error waits in `MPI_Finalize` for the others, which wait for
//! it: end the job there too. [`abort_on_panic`] does so for panics.
//!
//! Errors of MPI on the program's own communicators go to the program's error handler, which by default ends the job; on the
//! private duplicate they are [`Kind::System`](crate::error::Kind::System) with MPI's words.
//!
//! # The end
//!
//! Nothing of MPI is kept: a communicator may be used and dropped before or after `MPI_Finalize`, in any order. After it
//! the hook of [`progress`] does nothing, and [`communicator`] and `check` are errors.
//!
//! # What it runs with
//!
//! MPI 3.0 or later; tested under Open MPI 4.1 and 5.0, MPICH 4.0 and 5.0, and tried under Intel MPI 2021.18
//! (`mpi-examples/README.md` lists the builds, and how that went). The crate
//! `mpi` finds its MPI by `MPICC`, and does not notice when that changes: a target folder for each MPI.
//! A program that is started by the `mpirun` of another MPI runs as so many worlds of one rank: compare the size with what
//! you asked for. Worlds that MPI connects later (`MPI_Comm_spawn`) are fine for [`communicator`], but not for `like` and
//! `check`, which tell ranks by their number in `MPI_COMM_WORLD`. Sessions without `MPI_Init` are not supported.

mod agreement;
mod alarm;
mod calls;
mod ending;
mod hosts;
mod join;
mod progress;
mod relatives;
mod waiting;

pub use crate::comm::Placement;
pub use ending::{abort, abort_on_panic, or_abort};
pub use hosts::placement;
pub use join::communicator;
pub use progress::progress;
