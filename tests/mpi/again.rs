//! Many joins, one after the other and at the same time: each gives back what it takes from MPI and from the system,
//! and joins that overlap do not mix.

use ::mpi::Threading;
use ::mpi::ffi;
use ::mpi::topology::Communicator as _;
use ::mpi::topology::{Color, SimpleCommunicator};
use ::mpi::traits::*;
use rsccl::error::Kind;
use rsccl::mpi::{communicator, placement};
use rsccl::{Communicator, Config, ReduceOp};

use crate::topics::goods::must_be;
use crate::topics::handle::Handle;
use crate::{Act, begin, run};
use testing::mpi_rank::Rank;
use testing::mpirun::{LEFTOVER_PATIENCE, Launcher, Plan, until};

pub(crate) const ACTS: &[Act] = &[("again", again), ("overlap", overlap), ("errors return", errors_return)];

/// Made, placed, checked, split like MPI's, refused and dropped, many times, with hardly a communicator of MPI's left
/// to take: MPICH has 2048 in all.
fn again(rank: &Rank) {
    let universe = begin(rank, Threading::Funneled);
    let world = universe.world();
    let _taken: Vec<SimpleCommunicator> = (0..TAKEN).map(|_| world.duplicate()).collect();
    let mut held = None;
    for round in 0..ROUNDS {
        make_and_drop(rank, &world, round);
        // The first round opens what stays open.
        let (files, most) = *held.get_or_insert_with(|| (open_files(), threads()));
        assert_eq!(open_files(), files, "files after {round} rounds");
        // A thread that has been joined is counted until the kernel has put it away.
        assert!(
            until(LEFTOVER_PATIENCE, || threads() <= most),
            "{} threads after {round} rounds, {most} before",
            threads()
        );
    }
    rank.say("done");
}

fn make_and_drop(rank: &Rank, world: &SimpleCommunicator, round: u32) {
    let comm = communicator(world, &Config::default()).unwrap();
    comm.barrier().unwrap();
    match round % 4 {
        0 => drop(placement(&comm, world).unwrap()),
        1 => comm.check(world).unwrap(),
        2 => drop(comm.like(Some(world)).unwrap()),
        _ => {
            let mut config = Config::default();
            config.algo = (rank.number == 1).then(|| "Nonsense".to_owned());
            drop(communicator(world, &config).expect_err("rank 1 has a wrong setting"));
        }
    }
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// The ranks 0 to n-2 and the ranks 1 to n-1 join at the same time, each communicator from a thread of its own, while
/// all join too.
fn overlap(rank: &Rank) {
    let universe = begin(rank, Threading::Multiple);
    let world = universe.world();
    let part = |stays_out: u32| {
        let color = if rank.number == stays_out { Color::undefined() } else { Color::with_value(0) };
        world.split_by_color(color)
    };
    let (all, low, high) = (world.duplicate(), part(rank.size - 1), part(0));
    for _ in 0..OVERLAPS {
        let comms: Vec<Option<Communicator>> = std::thread::scope(|scope| {
            let join = |mpi: Option<&SimpleCommunicator>| {
                let handle = mpi.map(Handle::of);
                scope.spawn(move || {
                    let handle = handle;
                    let comm = handle.map(|handle| communicator(&handle, &Config::default()).unwrap());
                    if let Some(comm) = &comm {
                        comm.barrier().unwrap();
                    }
                    comm
                })
            };
            let threads = [join(low.as_ref()), join(Some(&all)), join(high.as_ref())];
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        for (comm, mpi) in comms.iter().zip([low.as_ref(), Some(&all), high.as_ref()]) {
            assert_eq!(comm.is_some(), mpi.is_some());
            if let (Some(comm), Some(mpi)) = (comm, mpi) {
                must_be(comm, mpi);
            }
        }
    }
    rank.say("done");
}

/// A program that looks at what MPI returns: nothing changes, and its own communicator keeps its handler.
fn errors_return(rank: &Rank) {
    let universe = begin(rank, Threading::Funneled);
    let world = universe.world();
    Handle::of(&world).return_errors();
    let comm = communicator(&world, &Config::default()).unwrap();
    drop(placement(&comm, &world).unwrap());
    must_be(&comm, &world);
    assert!(Handle::of(&world).returns_errors(), "the program's handler is gone");
    let error = communicator(&Handle::null(), &Config::default()).map(drop).unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidArgument, "{error}");
    // A send to a rank that is not there: MPI returns, and the job goes on.
    // SAFETY: no bytes are read.
    let code = unsafe { ffi::MPI_Send(std::ptr::null(), 0, ffi::RSMPI_UINT8_T, world.size(), 0, world.as_raw()) };
    assert_ne!(code, 0);
    let mut sum = [1u32];
    comm.all_reduce_in_place(&mut sum, ReduceOp::Sum).unwrap();
    assert_eq!(sum[0], rank.size);
    rank.say("done");
}

#[test]
fn nothing_is_used_up_by_joining_again_and_again() {
    let Some(outcome) = run("again", 2) else { return };
    outcome.must_say("done");
}

#[test]
fn joins_that_overlap_do_not_meet() {
    let Some(outcome) = run("overlap", 4) else { return };
    outcome.must_say("done");
}

#[test]
fn programs_that_let_mpi_return_its_errors() {
    let Some(outcome) = run("errors return", 3) else { return };
    outcome.must_say("done");
}

#[test]
fn five_ranks() {
    let Some(launcher) = Launcher::matching() else { return };
    Plan::new(&launcher, "multiple", 5).run().must_say("done");
}

/// Communicators of MPI's that the program has already.
const TAKEN: usize = 1900;
/// With one duplicate left behind in each, MPICH would have none left.
const ROUNDS: u32 = 200;
/// A few, each with three joins at a time.
const OVERLAPS: usize = 5;
