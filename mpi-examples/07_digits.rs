//! Goal: the training of `examples/digits` as an MPI job: the same model, images and steps; only how the ranks meet differs.
//!
//!     cargo build --release --features mpi --example mpi_digits
//!     mpirun -n 4 target/release/examples/mpi_digits
//!
//! Rank 0 prints loss and accuracy, the bytes reduced and the time in collectives. Fails unless at least 95 % of the held-out
//! images are read rightly and every rank ends with the same weights, bit for bit.
#![expect(clippy::print_stdout, reason = "an example reports to whoever started it")]

#[path = "../examples/digits"]
mod digits {
    #[expect(dead_code, reason = "ranks of this job add up on the host")]
    pub(crate) mod gradients;
    pub(crate) mod images;
    pub(crate) mod model;
    pub(crate) mod train;
}
mod job;

use digits::{gradients, train};
use mpi::topology::SimpleCommunicator;
use rsccl::mpi::{abort_on_panic, communicator, or_abort};
use rsccl::{Config, Result};

fn main() {
    abort_on_panic();
    let universe = mpi::initialize().expect("MPI starts once");
    or_abort(digits(&universe.world()));
}

fn digits(world: &SimpleCommunicator) -> Result<()> {
    let comm = communicator(world, &Config::default())?;
    job::expect_ranks(comm.size());
    train::train(&comm, &mut gradients::Gradients::OnHost)
}
