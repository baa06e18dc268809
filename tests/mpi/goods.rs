//! What must work: communicators of every shape at every thread level, joins while the program's own messages are under
//! way, splits like MPI's, and communicators that outlive MPI.

use ::mpi::Threading;
use ::mpi::collective::SystemOperation;
use ::mpi::request::{WaitGuard, scope};
use ::mpi::topology::Communicator as _;
use ::mpi::topology::{Color, SimpleCommunicator};
use ::mpi::traits::*;
use rsccl::error::Kind;
use rsccl::mpi::communicator;
use rsccl::{Communicator, Config, ReduceOp};

use crate::topics::handle::Handle;
use crate::{Act, begin, run};
use testing::mpi_rank::Rank;
use testing::mpirun::{Launcher, Plan};

pub(crate) const ACTS: &[Act] = &[
    ("single", |rank| at_level(rank, Threading::Single)),
    ("funneled", |rank| at_level(rank, Threading::Funneled)),
    ("serialized", |rank| at_level(rank, Threading::Serialized)),
    ("multiple", |rank| at_level(rank, Threading::Multiple)),
    ("late", late),
];

/// All that works at any level, and what works at this one.
fn at_level(rank: &Rank, level: Threading) {
    let universe = begin(rank, level);
    let world = universe.world();
    shapes(&world);
    beside_messages(&world);
    two_at_once(&world);
    likes_and_checks(&world);
    hosts(&world);
    pretended_hosts(rank, &world);
    if level >= Threading::Serialized {
        let handle = Handle::of(&world);
        std::thread::scope(|scope| {
            let make = move || {
                let handle = handle;
                let comm = communicator(&handle, &Config::default()).unwrap();
                comm.check(&handle).unwrap();
                comm
            };
            let comm = scope.spawn(make).join().expect("no panic");
            must_be(&comm, &world);
        });
    }
    if level == Threading::Multiple {
        several_threads(&world);
    }
    rank.say("done");
}

/// `comm` has the ranks of `mpi`, in its order, and works.
pub(crate) fn must_be(comm: &Communicator, mpi: &SimpleCommunicator) {
    let here = (i32::try_from(comm.rank()).unwrap(), i32::try_from(comm.size()).unwrap());
    assert_eq!(here, (mpi.rank(), mpi.size()));
    let mine = std::process::id();
    let (mut ours, mut theirs) = (vec![0u32; comm.size() as usize], vec![0u32; comm.size() as usize]);
    comm.all_gather(&[mine], &mut ours).unwrap();
    mpi.all_gather_into(&mine, &mut theirs[..]);
    assert_eq!(ours, theirs);
    let values: Vec<i64> = (0..10_007).map(|place| place * i64::from(comm.rank() + 1)).collect();
    let (mut ours, mut theirs) = (vec![0i64; values.len()], vec![0i64; values.len()]);
    comm.all_reduce(&values, &mut ours, ReduceOp::Sum).unwrap();
    mpi.all_reduce_into(&values[..], &mut theirs[..], SystemOperation::sum());
    assert_eq!(ours, theirs);
}

fn reversed(mpi: &SimpleCommunicator) -> SimpleCommunicator {
    mpi.split_by_color_with_key(Color::with_value(0), -mpi.rank()).expect("each has a color")
}

fn shapes(world: &SimpleCommunicator) {
    let make = |mpi: &SimpleCommunicator| communicator(mpi, &Config::default()).unwrap();
    must_be(&make(world), world);
    // The MPI communicator may go before ours.
    let copy = world.duplicate();
    let comm = make(&copy);
    drop(copy);
    must_be(&comm, world);
    let backwards = reversed(world);
    must_be(&make(&backwards), &backwards);
    // Odd ranks, even ranks, one that stays out; the halves at the same time, and backwards.
    let stays_out = world.rank() == world.size() - 1;
    let color = if stays_out { Color::undefined() } else { Color::with_value(world.rank() % 2) };
    if let Some(half) = world.split_by_color_with_key(color, -world.rank()) {
        must_be(&make(&half), &half);
    }
    let alone = world.split_by_color(Color::with_value(world.rank())).expect("each has a color");
    must_be(&make(&alone), &alone);
}

/// Joins while messages and a collective of the program are under way on the same MPI communicator, with receives from
/// any source and tag.
fn beside_messages(world: &SimpleCommunicator) {
    let (rank, size) = (world.rank(), world.size());
    let to = world.process_at_rank((rank + 1) % size);
    let left = (rank + size - 1) % size;
    let tags = [0, 1, 32_767];
    let sent = tags.map(|tag| [rank, tag]);
    let mut received = [[-1i32; 2]; 3];
    scope(|scope| {
        let mut receives: Vec<_> = received
            .iter_mut()
            .map(|place| WaitGuard::from(world.any_process().immediate_receive_into(scope, &mut place[..])))
            .collect();
        let early = WaitGuard::from(to.immediate_send_with_tag(scope, &sent[0][..], tags[0]));
        let gathering = world.immediate_barrier();
        let comm = communicator(world, &Config::default()).unwrap();
        let mut sum = [0i32];
        comm.all_reduce(&[rank], &mut sum, ReduceOp::Sum).unwrap();
        assert_eq!(sum[0], size * (size - 1) / 2);
        comm.check(world).unwrap();
        let later: Vec<_> = (1..tags.len())
            .map(|number| WaitGuard::from(to.immediate_send_with_tag(scope, &sent[number][..], tags[number])))
            .collect();
        drop(early);
        drop(later);
        while let Some(receive) = receives.pop() {
            drop(receive);
        }
        gathering.wait_without_status();
    });
    assert_eq!(received, tags.map(|tag| [left, tag]));
}

fn two_at_once(world: &SimpleCommunicator) {
    let backwards = reversed(world);
    let first = communicator(world, &Config::default()).unwrap();
    let second = communicator(&backwards, &Config::default()).unwrap();
    let (size, mut taken) = (first.size(), [[u32::MAX]; 2]);
    let [one, two] = &mut taken;
    let mine = [[first.rank()], [second.rank()]];
    rsccl::group(|group| {
        group.on(&first).send(&mine[0], (first.rank() + 1) % size)?;
        group.on(&second).send(&mine[1], (second.rank() + 1) % size)?;
        group.on(&second).recv(two, (second.rank() + size - 1) % size)?;
        group.on(&first).recv(one, (first.rank() + size - 1) % size)
    })
    .unwrap();
    assert_eq!(taken, [[(first.rank() + size - 1) % size], [(second.rank() + size - 1) % size]]);
    must_be(&second, &backwards);
    drop(first);
    must_be(&second, &backwards);
}

fn likes_and_checks(world: &SimpleCommunicator) {
    let comm = communicator(world, &Config::default()).unwrap();
    let backwards = reversed(world);
    let rank = world.rank();
    comm.check(world).unwrap();
    comm.check(&world.duplicate()).unwrap();
    let like = comm.like(Some(&backwards)).unwrap().expect("this rank is in it");
    must_be(&like, &backwards);
    like.check(&backwards).unwrap();
    // Sub-communicators of another order, on some ranks only.
    let color = if rank == 1 { Color::undefined() } else { Color::with_value(rank % 2) };
    let part = world.split_by_color_with_key(color, -rank);
    let like = comm.like(part.as_ref()).unwrap();
    match (&like, &part) {
        (Some(like), Some(part)) => must_be(like, part),
        (None, None) => {}
        (like, _) => panic!("rank {rank}: {:?}", like.as_ref().map(Communicator::size)),
    }
    if world.size() > 1 {
        other_than_they_should_be(world, &comm);
    }
}

fn other_than_they_should_be(world: &SimpleCommunicator, comm: &Communicator) {
    let error = comm.check(&reversed(world)).unwrap_err();
    assert_eq!(error.kind(), Kind::Mismatch, "{error}");
    // A communicator of fewer ranks is not the whole, and the whole is not one of its parts.
    let halves = world.split_by_color(Color::with_value(world.rank() % 2)).expect("each has a color");
    let error = comm.check(&halves).unwrap_err();
    assert_eq!(error.kind(), Kind::Mismatch, "{error}");
    let ours = comm.like(Some(&halves)).unwrap().expect("this rank is in it");
    let error = ours.like(Some(world)).expect_err("it has ranks that this one has not");
    assert_eq!(error.kind(), Kind::InvalidArgument, "{error}");
    // What follows a check and a placement differs: nobody waits in MPI for who has gone on.
    let placed = || rsccl::mpi::placement(comm, world).map(drop);
    let error = if world.rank() == 0 { comm.check(world) } else { placed() }.unwrap_err();
    assert_eq!(error.kind(), Kind::Mismatch, "{error}");
    assert!(error.to_string().contains("some ranks called check, others placement"), "{error}");
    // Ranks that speak of different ones.
    let wrong = if world.rank() == 0 { &halves } else { world };
    assert_eq!(comm.like(Some(wrong)).err().map(|error| error.kind()), Some(Kind::Mismatch));
    must_be(comm, world);
}

/// On one host: all ranks are local, and nobody is across.
fn hosts(world: &SimpleCommunicator) {
    let comm = communicator(world, &Config::default()).unwrap();
    let placement = rsccl::mpi::placement(&comm, world).unwrap();
    assert_eq!(placement, comm.placement().unwrap());
    assert_eq!((placement.host, placement.hosts), (0, 1));
    assert_eq!((placement.local_rank, placement.local_size), (comm.rank(), comm.size()));
    assert_eq!(placement.leader_rank, (comm.rank() == 0).then_some(0));
    must_be(&comm.on_my_host().unwrap(), &world.split_shared(world.rank()));
    let across = comm.cross().unwrap();
    assert_eq!((across.rank(), across.size()), (0, 1));
}

/// Hosts of two ranks by their names alone: our view counts, not that of MPI, and the log says so.
fn pretended_hosts(rank: &Rank, world: &SimpleCommunicator) {
    let mut config = Config::default();
    config.host_id = Some(format!("pretended-{}", rank.number / 2));
    let comm = communicator(world, &config).unwrap();
    let placement = rsccl::mpi::placement(&comm, world).unwrap();
    assert_eq!((placement.host, placement.hosts), (rank.number / 2, rank.size.div_ceil(2)));
    let local_size = if rank.number - rank.number % 2 + 1 < rank.size { 2 } else { 1 };
    assert_eq!((placement.local_rank, placement.local_size), (rank.number % 2, local_size));
    assert_eq!(placement.leader_rank, (placement.local_rank == 0).then_some(placement.host));
    let by_mpi = |color: u32| world.split_by_color(Color::with_value(i32::try_from(color).unwrap())).unwrap();
    must_be(&comm.on_my_host().unwrap(), &by_mpi(placement.host));
    must_be(&comm.cross().unwrap(), &by_mpi(placement.local_rank));
    must_be(&comm.by_color(rank.number % 3, 0).unwrap(), &by_mpi(rank.number % 3));
}

/// Threads of each rank make communicators at the same time, each from an MPI communicator of its own.
fn several_threads(world: &SimpleCommunicator) {
    let copies = [world.duplicate(), reversed(world), world.duplicate()];
    let handles = copies.each_ref().map(Handle::of);
    let comms: Vec<Communicator> = std::thread::scope(|scope| {
        let make = |handle: Handle| {
            move || {
                let handle = handle;
                let comm = communicator(&handle, &Config::default()).unwrap();
                comm.barrier().unwrap();
                comm
            }
        };
        let threads = handles.map(|handle| scope.spawn(make(handle)));
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    for (comm, mpi) in comms.iter().zip(&copies) {
        must_be(comm, mpi);
    }
}

/// A communicator outlives MPI.
fn late(rank: &Rank) {
    let universe = begin(rank, Threading::Funneled);
    let comm = communicator(&universe.world(), &Config::default()).unwrap();
    let used = communicator(&universe.world(), &Config::default()).unwrap();
    comm.set_progress(Some(rsccl::mpi::progress().unwrap())).unwrap();
    used.barrier().unwrap();
    drop(universe);
    let mut sum = [0u32];
    used.all_reduce(&[1], &mut sum, ReduceOp::Sum).unwrap();
    assert_eq!(sum[0], used.size());
    drop(used);
    // The hook has nothing to move any more; that is no error.
    comm.barrier().unwrap();
    let half = comm.split(Some(rank.number % 2), 0).unwrap().expect("a color was passed");
    half.finalize().unwrap();
    drop(comm);
    rank.say("done");
}

#[test]
fn communicators_at_the_lowest_thread_levels() {
    for (level, ranks) in [("single", 4), ("funneled", 3)] {
        let Some(outcome) = run(level, ranks) else { return };
        outcome.must_say("done");
    }
}

#[test]
fn communicators_at_the_highest_thread_levels() {
    for (level, ranks) in [("serialized", 3), ("multiple", 4)] {
        let Some(outcome) = run(level, ranks) else { return };
        outcome.must_say("done");
    }
}

#[test]
fn few_ranks() {
    let Some(launcher) = Launcher::matching() else { return };
    for ranks in [1, 2] {
        Plan::new(&launcher, "funneled", ranks).run().must_say("done");
    }
}

#[test]
fn where_mpi_sees_other_hosts_the_log_says_so() {
    let Some(launcher) = Launcher::matching() else { return };
    let outcome = Plan::new(&launcher, "single", 3).with(&[("NCCL_DEBUG", "WARN")]).run();
    outcome.must_say("done");
    let lines: Vec<&str> = outcome.report.lines().filter(|line| line.contains("rsccl's view counts")).collect();
    let [line] = lines[..] else { panic!("{} such lines: {}", lines.len(), outcome.report) };
    assert!(line.contains("0, 1, 2"), "{line}");
}

#[test]
fn a_communicator_outlives_mpi() {
    let Some(outcome) = run("late", 3) else { return };
    outcome.must_say("done");
}
