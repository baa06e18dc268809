//! The rule of progress: MPI moves only inside its own calls, so a rank that waits in rsccl stops those who wait for it
//! in MPI, unless it has a hook.
//!
//! Rank 0 begins a large `MPI_Isend` to rank 1, waits in rsccl, and only then in MPI; rank 1 receives before it enters
//! rsccl. The message is too large for MPI's eager protocol, so MPI sends it by rendezvous, and the settings below make
//! it do so in each round: rank 0 has to answer rank 1's request inside MPI.

use std::time::Duration;

use ::mpi::Threading;
use ::mpi::request::{WaitGuard, scope};
use ::mpi::topology::Communicator as _;
use ::mpi::topology::SimpleCommunicator;
use ::mpi::traits::*;
use rsccl::mpi::communicator;
use rsccl::{Communicator, Config, ReduceOp, Result};

use crate::{Act, begin};
use testing::mpi_rank::Rank;
use testing::mpirun::{Job, Launcher, Plan};

pub(crate) const ACTS: &[Act] = &[
    ("progress, none", |rank| mixed(rank, &[all_reduce], false)),
    ("progress, hook", |rank| mixed(rank, CALLS, true)),
    ("progress, none, split", |rank| mixed(rank, &[split], false)),
    ("progress, none, finalize", |rank| mixed(rank, &[finalize], false)),
];

/// What both ranks do with rsccl.
type Call = fn(&Communicator) -> Result<()>;

const CALLS: &[Call] =
    &[all_reduce, barrier, message, group, group_of_two, request, end_of_scope, split, split_again, finalize];

fn all_reduce(comm: &Communicator) -> Result<()> {
    let mut sums = vec![0u32; 100_003];
    comm.all_reduce(&vec![comm.rank() + 1; sums.len()], &mut sums, ReduceOp::Sum)?;
    assert!(sums.iter().all(|sum| *sum == 3));
    Ok(())
}

fn barrier(comm: &Communicator) -> Result<()> {
    comm.barrier()
}

fn message(comm: &Communicator) -> Result<()> {
    let mut word = [0u8; 3];
    if comm.rank() == 1 { comm.send(&[1u8, 2, 3], 0) } else { comm.recv(&mut word, 1) }
}

fn group(comm: &Communicator) -> Result<()> {
    let (mine, mut theirs, peer) = ([comm.rank(); 5], [9; 5], 1 - comm.rank());
    rsccl::group(|group| {
        group.on(comm).send(&mine, peer)?;
        group.on(comm).recv(&mut theirs, peer)
    })?;
    assert_eq!(theirs, [peer; 5]);
    Ok(())
}

/// Runs on threads of rsccl's, on which MPI may not be called; so do the two below.
fn group_of_two(comm: &Communicator) -> Result<()> {
    let alone = Communicator::init_all(1, &Config::default())?.remove(0);
    let (mut mine, mut sums) = ([7u32; 3], [1u32; 5]);
    rsccl::group(|group| {
        group.on(&alone).all_reduce_in_place(&mut mine, ReduceOp::Sum)?;
        group.on(comm).all_reduce_in_place(&mut sums, ReduceOp::Sum)
    })?;
    assert_eq!((mine, sums), ([7; 3], [2; 5]));
    Ok(())
}

fn request(comm: &Communicator) -> Result<()> {
    comm.scope(|scope| scope.barrier()?.wait())
}

fn end_of_scope(comm: &Communicator) -> Result<()> {
    comm.scope(|scope| scope.barrier().map(drop))
}

fn split(comm: &Communicator) -> Result<()> {
    let child = comm.split(Some(0), 0)?.expect("a color was passed");
    child.barrier()
}

/// On a child, which has its parent's hook.
fn split_again(comm: &Communicator) -> Result<()> {
    let child = comm.split(Some(0), 0)?.expect("a color was passed");
    // Its first call connects.
    all_reduce(&child)?;
    split(&child)
}

/// Says goodbye on a child: each waits until all have.
fn finalize(comm: &Communicator) -> Result<()> {
    comm.split(Some(0), 0)?.expect("a color was passed").finalize()
}

/// Each of `calls`, with a message of MPI on its way.
fn mixed(rank: &Rank, calls: &[Call], with_hook: bool) {
    let universe = begin(rank, Threading::Funneled);
    let world = universe.world();
    let mut config = Config::default();
    config.timeout = if with_hook { Duration::from_secs(30) } else { Duration::from_secs(1) };
    // That of a split and of a goodbye.
    config.init_timeout = if with_hook { Duration::from_secs(30) } else { Duration::from_secs(3) };
    let comm = communicator(&world, &config).unwrap();
    if with_hook {
        comm.set_progress(Some(rsccl::mpi::progress().unwrap())).unwrap();
    }
    // With no message in the way everything works. Connections are made by the first calls.
    if with_hook {
        calls.iter().for_each(|call| call(&comm).unwrap());
    }
    for call in calls {
        let result = beside_message(&world, &comm, *call);
        // Both are through with MPI's message, whatever came of the call.
        world.barrier();
        match result {
            Ok(()) => rank.say("passed"),
            Err(error) => return rank.say_error("error", &error),
        }
    }
    rank.say("done");
}

fn beside_message(world: &SimpleCommunicator, comm: &Communicator, call: Call) -> Result<()> {
    let mut words = vec![0u64; WORDS];
    if comm.rank() == 0 {
        words.iter_mut().zip(1..).for_each(|(word, place)| *word = place);
        return scope(|scope| {
            // It is waited for behind the call.
            let _sending = WaitGuard::from(world.process_at_rank(1).immediate_send(scope, &words[..]));
            call(comm)
        });
    }
    world.process_at_rank(0).receive_into(&mut words[..]);
    assert!(words.iter().zip(1..).all(|(word, place)| *word == place));
    call(comm)
}

/// Takes from MPI the ways by which a receiver copies a sender's memory without its help.
const SETTINGS: &[(&str, &str)] = &[
    ("OMPI_MCA_btl_vader_single_copy_mechanism", "none"),
    ("OMPI_MCA_smsc", "^cma,xpmem,knem"),
    ("MPIR_CVAR_CH4_CMA_ENABLE", "0"),
    ("MPIR_CVAR_CH4_XPMEM_ENABLE", "0"),
];

fn start(act: &str) -> Option<Job> {
    Some(Plan::new(&Launcher::matching()?, act, 2).with(SETTINGS).start())
}

#[test]
fn without_a_hook_ranks_wait_for_each_other_in_vain() {
    // All at once: they wait for their deadlines.
    let acts = ["progress, none", "progress, none, split", "progress, none, finalize"];
    for (act, job) in acts.map(|act| (act, start(act))) {
        let Some(outcome) = job.map(Job::finish) else { return };
        assert_eq!(outcome.exit, rsccl::internals::sys::process::Exit::Code(0), "{}", outcome.report);
        // Rank 0 gave up by its deadline; then it went on to MPI, and rank 1 came and found it gone.
        let line = outcome.line(0, "error Timeout ");
        assert!(line.contains("rank 1"), "{act}: {line}");
        assert!(line.contains("set_progress(mpi::progress())"), "{act} does not name the hook: {line}");
        assert!(outcome.said[1].iter().any(|line| line.starts_with("error")), "{act}: {}", outcome.report);
    }
}

#[test]
fn with_the_hook_they_do_not() {
    let Some(outcome) = start("progress, hook").map(Job::finish) else { return };
    outcome.must_say("done");
    for said in &outcome.said {
        assert_eq!(said.iter().filter(|line| *line == "passed").count(), CALLS.len(), "{}", outcome.report);
    }
}

/// 1 MiB: above what any MPI sends without asking.
const WORDS: usize = 1 << 17;
