//! Programs without MPI, started by the launchers of MPIs: a rank learns its number from the variables that the
//! launcher sets, and from nothing else.
//!
//! Uses every launcher that this machine has; prints `skipped` if there is none.
#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

use rsccl::config::{Environment, Launch};
use rsccl::internals::sys::process::{Exit, Signal};
use rsccl::{Communicator, Config, ReduceOp};
use testing::mpi_rank::Rank;
use testing::mpirun::{Family, Launcher, Plan};

/// Where a test starts this program as a rank, this is the rank.
#[test]
#[ignore = "one rank of the jobs that the tests of this file start: alone it is no test"]
fn worker() {
    if let Some(value) = value() {
        return add_up(value);
    }
    let Some((rank, told)) = Rank::wanted() else { return };
    match &*told {
        "meet" => meet(&rank),
        "tell" => drop(tell(&rank)),
        "twice" => twice(&rank),
        _ => panic!("no such thing to do: {told}"),
    }
}

/// The number of the job to which this rank belongs, in the labs (`tests/labs/jobs.sh`).
fn value() -> Option<u64> {
    #![expect(clippy::disallowed_methods, reason = "the role of a test's process is no configuration of the library")]
    std::env::var("LAB_VALUE").ok()?.parse().ok()
}

/// Adds up the jobs' numbers over all ranks, and prints one line: a rank of another job in this world would be seen.
#[expect(clippy::print_stdout, reason = "the labs read it from what the launcher hands on")]
fn add_up(value: u64) {
    let total = Communicator::from_env().and_then(|comm| {
        let mut total = [value];
        comm.all_reduce_in_place(&mut total, ReduceOp::Sum)?;
        let said = format!("rank {} of {}: total {}", comm.rank(), comm.size(), total[0]);
        comm.finalize()?;
        Ok(said)
    });
    // The test's own output has begun a line.
    match total {
        Ok(said) => println!("\nLAB {value} {said}"),
        Err(error) => {
            println!("\nLAB {value} error: {error}");
            panic!("{error}");
        }
    }
}

/// Says what the launcher has set.
fn tell(rank: &Rank) -> Launch {
    let environment = Environment::capture();
    let config = Config::default().resolve_in(&environment).expect("nothing is wrong with the variables");
    let launch = Launch::learn(&environment, &config).expect("there is a launcher");
    let (local_rank, local_size) = (launch.local_rank.expect("a local rank"), launch.local_size.expect("a local size"));
    rank.say(&format!("{} of {}, {local_rank} of {local_size}", launch.world.rank, launch.world.size));
    rank.say(&format!("launched by {}", launch.source));
    launch
}

fn meet(rank: &Rank) {
    let launch = tell(rank);
    let comm = Communicator::from_env().unwrap();
    assert_eq!((comm.rank(), comm.size()), (launch.world.rank.get(), launch.world.size));
    let mut sum = [0u32];
    comm.all_reduce(&[comm.rank() + 1], &mut sum, ReduceOp::Sum).unwrap();
    rank.say(&format!("sum {}", sum[0]));
    comm.finalize().unwrap();
}

fn twice(rank: &Rank) {
    meet(rank);
    let comm = Communicator::from_env().unwrap();
    let mut sum = [comm.rank() + 1];
    comm.all_reduce_in_place(&mut sum, ReduceOp::Sum).unwrap();
    rank.say(&format!("again {}", sum[0]));
}

fn name_of(family: Family) -> &'static str {
    match family {
        Family::Orte | Family::Prrte => "Open MPI",
        Family::Hydra => "PMI",
    }
}

#[test]
fn ranks_meet_at_a_store_and_know_who_they_are() {
    for launcher in Launcher::all() {
        let plan = Plan::new(&launcher, "meet", 3);
        let store = format!("file://{}", plan.folder().join("store").display());
        let outcome = plan.with(&[("RSCCL_STORE", &store)]).run();
        outcome.must_say("sum 6");
        outcome.must_say(&format!("launched by {}", name_of(launcher.family)));
        let mut local_ranks = Vec::new();
        for (rank, said) in outcome.said.iter().enumerate() {
            let (its, local) = said[0].split_once(", ").unwrap();
            assert_eq!(its, format!("{rank} of 3"), "{}: {}", launcher.version, outcome.report);
            local_ranks.push(local);
        }
        // Open MPI 5 does not always deal them out in the order of ranks.
        local_ranks.sort_unstable();
        assert_eq!(local_ranks, ["0 of 3", "1 of 3", "2 of 3"], "{}: {}", launcher.version, outcome.report);
    }
}

#[test]
fn what_is_more_inside_wins() {
    for launcher in Launcher::all() {
        // As where a script between launcher and program deals out numbers of its own.
        let ours = [("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")];
        // As in a batch script of Slurm, which sets this in all that it starts.
        let slurm = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1"), ("SLURM_LOCALID", "0")];
        let outcome = Plan::of_parts(&launcher, "tell", &[(1, &ours), (1, &slurm)]).run();
        // MPICH's launcher dies of SIGPIPE if it writes to a process that never calls MPI and has just ended.
        let dies = launcher.family == Family::Hydra && outcome.exit == Exit::Signal(Signal::PIPE);
        assert!(dies || outcome.exit == Exit::Code(0), "{:?}: {}", outcome.exit, outcome.report);
        let name = name_of(launcher.family);
        let expected = [("0 of 1, 0 of 1", "torchrun"), ("1 of 2, 1 of 2", name)];
        for (said, (line, source)) in outcome.said.iter().zip(expected) {
            assert_eq!(said[..], [line.to_owned(), format!("launched by {source}")], "{}", outcome.report);
        }
    }
}

#[test]
fn on_one_host_ranks_meet_without_a_store() {
    for launcher in Launcher::all() {
        // Two communicators, one after the other, each with a place of its own; two jobs at the same time keep apart.
        let jobs = [Plan::new(&launcher, "twice", 3).start(), Plan::new(&launcher, "twice", 3).start()];
        for job in jobs {
            let outcome = job.finish();
            outcome.must_say("sum 6");
            outcome.must_say("again 6");
        }
    }
}

#[test]
fn without_a_place_to_meet_the_error_says_what_to_set() {
    for launcher in Launcher::all() {
        // As where a script deals out the numbers: that tells nothing of hosts.
        // Numbers that differ from the launcher's: a copy of its own would be its job.
        let ours = |rank| [("RANK", rank), ("WORLD_SIZE", "2"), ("LOCAL_RANK", rank), ("LOCAL_WORLD_SIZE", "2")];
        let outcome = Plan::of_parts(&launcher, "meet", &[(1, &ours("1")), (1, &ours("0"))]).run();
        assert_ne!(outcome.exit, Exit::Code(0), "{}", outcome.report);
        for word in ["no place to meet", "MASTER_ADDR", "RSCCL_STORE"] {
            assert!(outcome.report.contains(word), "`{word}` is not in: {}", outcome.report);
        }
    }
}

/// Regressions: two steps with one `MASTER_PORT` formed one world, and below variables of a launcher around `srun` each
/// rank was a world of its own.
#[test]
fn slurm_jobs_never_mix_and_ranks_know_who_they_are() {
    const CASES: usize = 35;
    // The lab ends by itself.
    const LIMIT_S: &str = "150";
    let lab = |name: &str| format!("{}/labs/{name}", env!("CARGO_MANIFEST_DIR"));
    let output = std::process::Command::new(lab("slurm.sh"))
        .args(["3", &lab("jobs.sh")])
        .env("PROGRAM", std::env::current_exe().unwrap())
        .env("LAB_LIMIT_S", LIMIT_S)
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let report = format!("{}: {said}{}", output.status, String::from_utf8_lossy(&output.stderr));
    let skipped: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("skipped: ")).collect();
    skipped.iter().for_each(|why| testing::mpirun::skip(why));
    assert!(output.status.success(), "{report}");
    let cases: Vec<&str> = said.lines().filter(|line| line.starts_with("case ")).collect();
    assert!(cases.iter().all(|case| case.ends_with(": right")), "{report}");
    let no_lab = cases.is_empty() && skipped.len() == 1;
    assert!(no_lab || cases.len() + skipped.len() == CASES, "{report}");
}
