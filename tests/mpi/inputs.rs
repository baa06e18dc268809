//! Bad input: each gives an error on every rank that says what is wrong and on which rank, and no rank hangs. What
//! still works afterwards is used.

use std::time::Duration;

use ::mpi::Threading;
use ::mpi::topology::Color;
use ::mpi::topology::Communicator as _;
use rsccl::error::Kind;
use rsccl::internals::sys::process::Exit;
use rsccl::{Communicator, Config, Error, ReduceOp, Result, mpi::communicator};

use crate::topics::handle::Handle;
use crate::{Act, begin, run};
use testing::mpi_rank::Rank;
use testing::mpirun::{Launcher, Plan};

pub(crate) const ACTS: &[Act] = &[("misuse", misuse), ("differ", differ), ("variables", variables), ("alone", alone)];

/// The error of what must not work.
fn refused<T>(result: Result<T>, what: &str) -> Error {
    match result {
        Ok(_) => panic!("{what}: no error"),
        Err(error) => error,
    }
}

#[track_caller]
fn must_name(error: &Error, kind: Kind, words: &[&str]) {
    let text = error.to_string();
    assert_eq!(error.kind(), kind, "{text}");
    for word in words {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
}

fn misuse(rank: &Rank) {
    let early = refused(communicator(&Handle::world(), &Config::default()), "before MPI_Init");
    must_name(&early, Kind::InvalidUsage, &["not initialised", "MPI_Init"]);
    refused(rsccl::mpi::progress(), "before MPI_Init");

    let universe = begin(rank, Threading::Funneled);
    let world = universe.world();
    let null = refused(communicator(&Handle::null(), &Config::default()), "MPI_COMM_NULL");
    must_name(&null, Kind::InvalidArgument, &["MPI_COMM_NULL"]);
    let half = world.split_by_color(Color::with_value(world.rank() % 2)).expect("each has a color");
    let inter = Handle::between(&half, &world, 1 - world.rank() % 2);
    let error = refused(communicator(&inter, &Config::default()), "an intercommunicator");
    must_name(&error, Kind::InvalidArgument, &["intercommunicator", "MPI_Intercomm_merge"]);
    let handle = Handle::of(&world);
    let elsewhere = std::thread::scope(|scope| {
        let call = move || {
            let handle = handle;
            communicator(&handle, &Config::default())
        };
        scope.spawn(call).join().expect("no panic")
    });
    let elsewhere = refused(elsewhere, "another thread under MPI_THREAD_FUNNELED");
    must_name(&elsewhere, Kind::InvalidUsage, &["thread", "MPI_THREAD_SERIALIZED"]);

    // None of it has hurt anything.
    let comm = communicator(&world, &Config::default()).unwrap();
    must_sum(&comm);
    for wrong in [Handle::null(), inter] {
        must_name(&refused(comm.check(&wrong), "check"), Kind::InvalidArgument, &["communicator"]);
    }
    let error = refused(comm.like(Some(&inter)), "like an intercommunicator");
    must_name(&error, Kind::InvalidArgument, &["intercommunicator"]);
    must_sum(&comm);
    drop(half);
    drop(universe);
    let late = refused(communicator(&Handle::world(), &Config::default()), "after MPI_Finalize");
    must_name(&late, Kind::InvalidUsage, &["finalised", "MPI_Finalize"]);
    let late = refused(comm.check(&Handle::world()), "check after MPI_Finalize");
    must_name(&late, Kind::InvalidUsage, &["finalised"]);
    must_sum(&comm);
    rank.say("done");
}

fn must_sum(comm: &Communicator) {
    let mut sum = [0u64];
    comm.all_reduce(&[u64::from(comm.rank()) + 1], &mut sum, ReduceOp::Sum).unwrap();
    let size = u64::from(comm.size());
    assert_eq!(sum[0], size * (size + 1) / 2);
}

/// What is wrong on rank 1 alone.
fn differ(rank: &Rank) {
    let universe = begin(rank, Threading::Single);
    let world = universe.world();
    let odd = rank.number == 1;
    let mut reproducible = Config::default();
    reproducible.reproducible = odd;
    let mut algorithm = Config::default();
    algorithm.algo = odd.then(|| "Nonsense".to_owned());
    let cases: [(&str, Config, Kind, &[&str]); 2] = [
        ("other settings", reproducible, Kind::Mismatch, &["other settings"]),
        ("a bad setting", algorithm, Kind::InvalidArgument, &["Nonsense"]),
    ];
    for (what, config, kind, words) in cases {
        let error = refused(communicator(&world, &config), what);
        must_name(&error, kind, words);
        must_name(&error, kind, &["rank 1"]);
        assert_eq!(error.rank(), Some(rank.number), "{error}");
        let comm = communicator(&world, &Config::default()).unwrap();
        must_sum(&comm);
        rank.say_error(what, &error);
    }
    rank.say("done");
}

/// Variables of the launcher are wrong on one rank, which the others hear of.
fn variables(rank: &Rank) {
    let universe = begin(rank, Threading::Single);
    let error = refused(communicator(&universe.world(), &Config::default()), "a wrong variable");
    assert!(!threads().contains(&"rsccl root".to_owned()), "{:?}", threads());
    rank.say_error("error", &error);
}

/// The names of this process's threads.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    // One that ends meanwhile has no name.
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    tasks.map(|task| name(task.unwrap()).trim().to_owned()).collect()
}

#[test]
fn what_mpi_or_its_communicator_does_not_allow() {
    let Some(outcome) = run("misuse", 3) else { return };
    outcome.must_say("done");
}

#[test]
fn settings_of_one_rank_that_differ_or_are_wrong() {
    let Some(outcome) = run("differ", 3) else { return };
    outcome.must_say("done");
    // Not by waiting for the deadline of init.
    assert!(outcome.elapsed < PROMPT, "{:?}: {}", outcome.elapsed, outcome.report);
}

#[test]
fn a_variable_of_one_rank_that_is_wrong() {
    let Some(launcher) = Launcher::matching() else { return };
    let cases = [("NCCL_ALGO", "Nonsense", "InvalidArgument"), ("NCCL_SOCKET_IFNAME", "=nosuch0", "InvalidUsage")];
    for (name, value, kind) in cases {
        for wrong in [0, 2] {
            let own: &[(&str, &str)] = &[(name, value)];
            let parts: Vec<(usize, &[(&str, &str)])> =
                (0..3).map(|rank| (1, if rank == wrong { own } else { &[] })).collect();
            let outcome = Plan::of_parts(&launcher, "variables", &parts).run();
            assert_eq!(outcome.exit, Exit::Code(0), "{}", outcome.report);
            assert!(outcome.elapsed < PROMPT, "{:?}: {}", outcome.elapsed, outcome.report);
            for rank in 0..3 {
                let line = outcome.line(rank, "error ");
                let peer = if rank == wrong { "-".to_owned() } else { wrong.to_string() };
                assert!(line.starts_with(&format!("{kind} {peer} ")), "rank {rank}: {line}");
                for word in [name, value, &format!("rank {wrong}")] {
                    assert!(line.contains(word), "rank {rank}: `{word}` is not in: {line}");
                }
            }
        }
    }
}

/// Far below every deadline, far above what an error takes to get around.
const PROMPT: Duration = Duration::from_secs(20);

/// MPI's world, whatever other variables say of ranks.
fn alone(rank: &Rank) {
    let universe = ::mpi::initialize().expect("MPI is initialised once");
    let comm = communicator(&universe.world(), &Config::default()).unwrap();
    rank.say(&format!("a world of {}", comm.size()));
}

/// The wrong mpirun, or `rsccl run` of a program of MPI, gave as many worlds of one rank, and exit code 0.
#[test]
fn a_world_of_one_where_the_launcher_started_several_is_told() {
    let Some(launcher) = Launcher::matching() else { return };
    let words = "has started 2 ranks, but MPI knows of one: each process is a world of its own";
    let outcome = Plan::new(&launcher, "alone", 1).with(&[("RANK", "0"), ("WORLD_SIZE", "2")]).run();
    outcome.must_say("a world of 1");
    assert!(outcome.report.contains(&format!("rsccl: warning: torchrun {words}")), "{}", outcome.report);
    let outcome = Plan::new(&launcher, "alone", 2).run();
    outcome.must_say("a world of 2");
    assert!(!outcome.report.contains(words), "{}", outcome.report);
}
