//! The MPI glue, under the `mpirun` of the MPI that it was built with: communicators of every shape, bad input, ranks
//! that fail or never come, progress, several hosts. Says `skipped` where there is no `mpirun`.
#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

#[path = "mpi"]
mod topics {
    pub(crate) mod again;
    pub(crate) mod ends;
    pub(crate) mod goods;
    pub(crate) mod handle;
    pub(crate) mod hosts;
    pub(crate) mod inputs;
    pub(crate) mod progress;
}

use ::mpi::Threading;
use ::mpi::environment::Universe;
use ::mpi::traits::*;
use testing::mpi_rank::Rank;
use testing::mpirun::{Launcher, Outcome, Plan};

/// Where a test starts this program as a rank, this is the rank.
#[test]
#[ignore = "one rank of the jobs that the tests of this file start: alone it is no test"]
fn worker() {
    if let Some((rank, told)) = Rank::wanted() {
        let act = acts().find(|(name, _)| *name == told);
        act.unwrap_or_else(|| panic!("no such thing to do: {told}")).1(&rank);
    }
}

/// What a rank can be told to do.
type Act = (&'static str, fn(&Rank));

fn acts() -> impl Iterator<Item = &'static Act> {
    [
        topics::again::ACTS,
        topics::ends::ACTS,
        topics::goods::ACTS,
        topics::hosts::ACTS,
        topics::inputs::ACTS,
        topics::progress::ACTS,
    ]
    .into_iter()
    .flatten()
}

/// Runs `act` on `ranks` ranks; `None` if there is no MPI to run it.
fn run(act: &str, ranks: usize) -> Option<Outcome> {
    Some(Plan::new(&Launcher::matching()?, act, ranks).run())
}

/// Brings MPI up, and sees that this is the job that the launcher meant: the `mpirun` of another MPI starts worlds of
/// one.
fn begin(rank: &Rank, level: Threading) -> Universe {
    let (universe, provided) = ::mpi::initialize_with_threading(level).expect("MPI is initialised once");
    rsccl::mpi::abort_on_panic();
    assert!(provided >= level, "MPI gives {provided:?} where {level:?} was asked for");
    let world = universe.world();
    let (number, size) = (i32::try_from(rank.number).unwrap(), i32::try_from(rank.size).unwrap());
    assert_eq!(
        (world.rank(), world.size()),
        (number, size),
        "is this the mpirun of the MPI that the test was built with?"
    );
    universe
}
