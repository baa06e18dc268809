//! Communicators from MPI communicators: for jobs that `mpirun` or `srun` starts and that use MPI themselves.
//!
//! [`communicator`] does what users of NCCL write by hand: rank 0 makes the unique id, MPI carries it to all ranks,
//! each joins, and all agree on the outcome. [`Communicator::placement`](crate::Communicator::placement) replaces the
//! other handwritten part: hosts, local ranks, and the GPU to use. A job that does not use MPI itself needs none of
//! this: [`Communicator::from_env`](crate::Communicator::from_env) reads the launcher's variables and links no MPI.
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
//! Sub-communicators come from MPI by [`communicator`] too, or from an existing rsccl communicator:
//! [`split`](crate::Communicator::split) with its short forms [`on_my_host`](crate::Communicator::on_my_host),
//! [`cross`](crate::Communicator::cross) and [`by_color`](crate::Communicator::by_color), and
//! [`like`](crate::Communicator::like), which copies a sub-communicator of MPI rank by rank.
//! [`check`](crate::Communicator::check) asserts that two communicators have the same ranks in the same order.
//!
//! # The rule of progress
//!
//! MPI moves most messages only while a rank is in a call of MPI; rsccl moves its own only while a rank is in a call of
//! rsccl. A rank that waits in one library does not progress the other. So:
//!
//! > Between `MPI_Isend`, `MPI_Irecv` or another call that starts an operation, and the `MPI_Wait` that completes it, a
//! > rank must not wait in rsccl for a rank that needs that very message. Complete it before, or set the hook of
//! > [`progress`].
//!
//! The shortest program that breaks the rule: rank 0 begins a large `MPI_Isend` to rank 1 and enters a barrier of
//! rsccl; rank 1 receives the message and then enters the barrier. A large message needs an answer of its sender when
//! the receiver is ready. But the sender is in the barrier, which waits for the receiver: both wait until the barrier's
//! deadline. Small messages hide the fault, since MPI sends them at once; so do some paths inside a host, where the
//! receiver reads the sender's memory by itself.
//!
//! With `comm.set_progress(Some(rsccl::mpi::progress()?))?` a rank that waits on this communicator probes MPI
//! meanwhile, and the program above ends. The hook helps in one direction. A rank that blocks in MPI (`MPI_Recv`,
//! `MPI_Barrier`) does not progress rsccl, but no other rank needs that: a call of rsccl is completed by the ranks that
//! are in it, and the data that it has sent arrives without further help. A thread of rsccl's progresses the requests
//! of a scope; MPI progresses while the program waits for them.
//!
//! # Threads
//!
//! | MPI's level | who may call [`communicator`], [`placement`], [`progress`], `check`, `like` | where the hook works |
//! |---|---|---|
//! | `SINGLE`, `FUNNELED` | the thread that initialised MPI; others get an error | on that thread |
//! | `SERIALIZED` | any thread, while no other calls MPI | on the thread that made it, while no other calls MPI |
//! | `MULTIPLE` | any thread | on all |
//!
//! The functions of this page call MPI on the caller's thread only. Nothing else in rsccl calls MPI except the hook,
//! which runs on the thread that waits; with `MULTIPLE` that may be one of rsccl's own. As with every collective of
//! MPI, two threads must not be in [`communicator`], [`placement`] or `check` with the same MPI communicator at the
//! same time.
//!
//! # Errors
//!
//! If one rank fails in [`communicator`], all ranks get that rank's error, which names it, soon after and not at the
//! deadline. `like`, `check` and [`placement`] do the same over rsccl. One case remains, a rank that never calls: the
//! others get [`Kind::Timeout`](crate::error::Kind::Timeout), and MPI keeps a collective that never ends, so the job
//! should end by [`abort`] or [`or_abort`]. A rank that merely returns an error from `main` waits in `MPI_Finalize` for
//! the others, which wait for it: end the job there too. [`abort_on_panic`] does so for panics.
//!
//! Errors of MPI on the program's own communicators go to the program's error handler, which by default ends the job;
//! on the private duplicate they become [`Kind::System`](crate::error::Kind::System) with MPI's text.
//!
//! # The end
//!
//! No object of MPI is kept: a communicator may be used and dropped before or after `MPI_Finalize`, in any order. After
//! it the hook of [`progress`] does nothing, and [`communicator`] and `check` are errors.
//!
//! # What it runs with
//!
//! MPI 3.0 or later; tested under Open MPI 4.1 and 5.0, MPICH 4.0 and 5.0, and tried under Intel MPI 2021.18
//! (`mpi-examples/README.md` lists the builds, and how that went). The crate `mpi` finds its MPI by `MPICC`, and does
//! not notice when that changes: use a target folder for each MPI. If the `mpirun` of another MPI starts a program,
//! each process is a world of one rank: compare the size with the number of ranks that you asked for. Worlds that MPI
//! connects later (`MPI_Comm_spawn`) work with [`communicator`], but not with `like` and `check`, which identify ranks
//! by their number in `MPI_COMM_WORLD`. Sessions without `MPI_Init` are not supported.

mod ending;
mod hosts;
mod join;
mod progress;
mod relatives;
mod rsmpi;

pub use crate::comm::Placement;
pub use ending::{abort, abort_on_panic, or_abort};
pub use hosts::placement;
pub use join::communicator;
pub use progress::progress;
