//! Ranks that do not join, die, panic or give up: the others get an error, and the job ends in seconds.

use std::time::Duration;

use ::mpi::Threading;
use ::mpi::traits::*;
use rsccl::error::Kind;
use rsccl::internals::sys::process::Exit;
use rsccl::mpi::{abort, communicator, or_abort, placement};
use rsccl::{Config, Error};

use crate::{Act, begin, run};
use testing::mpi_rank::Rank;
use testing::mpirun::{Family, Launcher, Outcome, Plan};

pub(crate) const ACTS: &[Act] = &[
    ("absent", absent),
    ("impatient", impatient),
    ("unplaced", unplaced),
    ("at odds", at_odds),
    ("astray", astray),
    ("die before", |rank| die(rank, false)),
    ("die within", |rank| die(rank, true)),
    ("panic", panics),
    ("abort", aborts),
    ("wrong result", wrong_result),
];

/// Rank 2 never calls: it waits in MPI until the others have failed. In addition, rank 3 has a wrong setting.
fn absent(rank: &Rank) {
    let universe = begin(rank, Threading::Funneled);
    let world = universe.world();
    if rank.number == 2 {
        for peer in [0, 1, 3] {
            world.process_at_rank(peer).receive::<u8>();
        }
        rank.say("heard");
        // As a program does whose other ranks failed: it ends with them.
        world.barrier();
        return;
    }
    let mut config = Config::default();
    config.init_timeout = Duration::from_millis(1500);
    config.algo = (rank.number == 3).then(|| "Nonsense".to_owned());
    let error = communicator(&world, &config).expect_err("rank 2 does not come");
    rank.say_error("error", &error);
    world.process_at_rank(2).send(&1u8);
    if rank.number == 0 {
        assert!(rank.has_said(1, "error") && rank.has_said(2, "heard") && rank.has_said(3, "error"));
        abort(&error);
    }
    world.barrier();
}

/// Rank 1 has a wrong variable, and another that says how long it waits; rank 0 does not come before it has given up.
fn impatient(rank: &Rank) {
    let universe = begin(rank, Threading::Funneled);
    if rank.number == 1 {
        let error = communicator(&universe.world(), &Config::default()).expect_err("its variable is wrong");
        rank.say_error("error", &error);
        assert!(rank.has_said(0, "heard"));
        abort(&error);
    }
    assert!(rank.has_said(1, "error"));
    rank.say("heard");
    universe.world().barrier();
}

/// Rank 2 never comes to a placement: on a communicator that is new, and on one with which a placement was made
/// before.
fn unplaced(rank: &Rank) {
    let universe = begin(rank, Threading::Funneled);
    let world = universe.world();
    let config = Config::default().with_timeout(Duration::from_secs(2)).with_init_timeout(Duration::from_secs(5));
    let new = or_abort(communicator(&world, &config));
    let known = or_abort(communicator(&world, &config));
    drop(or_abort(placement(&known, &world)));
    if rank.number == 2 {
        assert!(rank.has_said(0, "known") && rank.has_said(1, "known"));
        return;
    }
    for (what, comm) in [("new", &new), ("known", &known)] {
        let error = placement(comm, &world).expect_err("rank 2 does not come");
        rank.say_error(what, &error);
    }
}

/// Rank 0 makes calls that are exchanges between all ranks, the others collectives; and the other way round.
fn at_odds(rank: &Rank) {
    let universe = begin(rank, Threading::Funneled);
    let world = universe.world();
    for exchanges in [true, false] {
        for splits in [false, true] {
            let comm = or_abort(communicator(&world, &Config::default()));
            let result = match ((rank.number == 0) == exchanges, splits) {
                (true, false) => placement(&comm, &world).map(drop),
                (true, true) => comm.split(Some(0), 0).map(drop),
                (false, _) => comm.barrier(),
            };
            rank.say_error("error", &result.expect_err("the ranks make different calls"));
        }
    }
}

/// Rank 1 passes a duplicate where the others pass the world: the same ranks in the same order, and yet not the same
/// communicator.
fn astray(rank: &Rank) {
    let universe = begin(rank, Threading::Funneled);
    let world = universe.world();
    let copy = world.duplicate();
    let mut config = Config::default();
    config.timeout = Duration::from_millis(3000);
    let comm = or_abort(communicator(&world, &config));
    let error = comm.check(if rank.number == 1 { &copy } else { &world }).expect_err("they differ");
    rank.say_error("error", &error);
    // It is the MPI communicator that cannot be used any more.
    or_abort(comm.barrier());
    rank.say("still works");
    if rank.number == 0 {
        assert!(rank.has_said(1, "still works") && rank.has_said(2, "still works"));
        abort(&error);
    }
    or_abort(comm.recv(&mut [0u8], 0));
}

/// Rank 1 ends by a signal: before the others begin, or once they have.
fn die(rank: &Rank, within: bool) {
    let universe = begin(rank, Threading::Multiple);
    let world = universe.world();
    let mut config = Config::default();
    config.init_timeout = Duration::from_millis(3000);
    if rank.number == 1 {
        rank.say("dies");
        if within {
            // Its own part begins, and ends with the process.
            let handle = crate::topics::handle::Handle::of(&world);
            let begins = move || {
                let handle = handle;
                drop(communicator(&handle, &Config::default()));
            };
            drop(rsccl::internals::sys::thread::spawn("begins", begins).unwrap());
        }
        std::process::abort();
    }
    let result = communicator(&world, &config);
    if let Err(error) = &result {
        rank.say_error("error", error);
    }
    // Made before the death or not at all: what comes next finds it out.
    let ended = or_abort(result).barrier();
    if let Err(error) = &ended {
        rank.say_error("error", error);
    } else {
        rank.say("all is well");
    }
    or_abort(ended);
}

/// Rank 1 panics while the others wait: half of them in rsccl, half in MPI.
fn panics(rank: &Rank) {
    let universe = begin(rank, Threading::Funneled);
    let world = universe.world();
    let comm = or_abort(communicator(&world, &Config::default()));
    rank.say("ready");
    match rank.number {
        1 => panic!("on purpose"),
        2 => world.barrier(),
        _ => drop(comm.barrier()),
    }
}

/// Rank 1 ends the job with an error; the others wait.
fn aborts(rank: &Rank) {
    let universe = begin(rank, Threading::Funneled);
    let world = universe.world();
    let comm = or_abort(communicator(&world, &Config::default()));
    rank.say("ready");
    if rank.number == 1 {
        abort(&Error::invalid_usage("the grid has\nno columns").during("setup"));
    }
    drop(comm.barrier());
    world.barrier();
}

/// The same by a call's result.
fn wrong_result(rank: &Rank) {
    let universe = begin(rank, Threading::Funneled);
    let comm = or_abort(communicator(&universe.world(), &Config::default()));
    assert_eq!(or_abort(comm.split(None, 0)).map(|child| child.size()), None);
    rank.say("ready");
    if rank.number == 1 {
        or_abort(comm.send(&[1u8], 77));
        rank.say("not ended");
    }
    universe.world().barrier();
}

/// It failed, and soon.
fn must_have_failed(outcome: &Outcome, within: Duration) {
    assert_ne!(outcome.exit, Exit::Code(0), "{}", outcome.report);
    assert!(outcome.elapsed < within, "{:?}: {}", outcome.elapsed, outcome.report);
}

#[test]
fn a_rank_that_never_calls() {
    let Some(outcome) = run("absent", 4) else { return };
    must_have_failed(&outcome, SOON);
    for rank in [0, 1] {
        let line = outcome.line(rank, "error Timeout ");
        for word in ["rsccl::mpi::communicator", "1.5 s", "4 ranks", "end the job"] {
            assert!(line.contains(word), "`{word}` is not in: {line}");
        }
    }
    // What it knows of itself says more.
    let line = outcome.line(3, "error InvalidArgument ");
    assert!(line.contains("Nonsense"), "{line}");
    assert!(outcome.said[2].contains(&"heard".to_owned()), "{}", outcome.report);
}

#[test]
fn a_wrong_variable_leaves_the_deadline_of_init_that_is_set_beside_it() {
    let Some(launcher) = Launcher::matching() else { return };
    let own: &[(&str, &str)] = &[("NCCL_SHM_DISABLE", "perhaps"), ("RSCCL_INIT_TIMEOUT_MS", "1500")];
    let outcome = Plan::of_parts(&launcher, "impatient", &[(1, &[]), (1, own)]).run();
    must_have_failed(&outcome, SOON);
    let line = outcome.line(1, "error InvalidArgument ");
    assert!(line.contains("NCCL_SHM_DISABLE"), "{line}");
}

#[test]
fn a_rank_that_never_comes_to_the_placement() {
    let Some(outcome) = run("unplaced", 3) else { return };
    assert_eq!(outcome.exit, Exit::Code(0), "{}", outcome.report);
    assert!(outcome.elapsed < SOON, "{:?}: {}", outcome.elapsed, outcome.report);
    for rank in [0, 1] {
        for what in ["new ", "known "] {
            let line = outcome.line(rank, what);
            assert!(line.starts_with("Timeout ") || line.starts_with("Remote "), "{line}");
            assert!(line.contains("rank 2") && line.contains("placement"), "{line}");
        }
    }
}

#[test]
fn an_exchange_beside_a_collective_is_named_on_every_rank() {
    let Some(outcome) = run("at odds", 3) else { return };
    assert_eq!(outcome.exit, Exit::Code(0), "{}", outcome.report);
    assert!(outcome.elapsed < SOON, "{:?}: {}", outcome.elapsed, outcome.report);
    for said in &outcome.said {
        assert_eq!(said.len(), 4, "{}", outcome.report);
        // A placement asks MPI, and then the ranks agree on its answers.
        for (line, name) in said.iter().zip(["all_reduce", "split", "all_reduce", "split"]) {
            assert!(line.starts_with("error Mismatch "), "{line}");
            assert!(line.contains(&format!("called {name}")) && line.contains("called barrier"), "{line}");
        }
    }
}

#[test]
fn ranks_that_check_different_communicators_of_the_same_ranks() {
    let Some(outcome) = run("astray", 3) else { return };
    must_have_failed(&outcome, SOON);
    for rank in 0..3 {
        let line = outcome.line(rank, "error Timeout ");
        assert!(line.contains("the ranks pass different MPI communicators"), "{line}");
        assert!(outcome.said[rank].contains(&"still works".to_owned()), "{}", outcome.report);
    }
}

#[test]
fn a_rank_that_dies_in_init() {
    let Some(launcher) = Launcher::matching() else { return };
    for act in ["die before", "die within"] {
        let outcome = Plan::new(&launcher, act, 3).run();
        must_have_failed(&outcome, SOON);
        // The job failed by this death, and not before it; and no survivor went on as if nothing had happened.
        assert_eq!(outcome.said[1], ["dies"], "{}", outcome.report);
        for rank in [0, 2] {
            let silent = outcome.said[rank].is_empty();
            assert!(silent || !outcome.line(rank, "error ").is_empty(), "{}", outcome.report);
        }
    }
}

/// Launchers kill a job of which a rank has died, unless they are told to go on: then the survivors learn it from rsccl
/// alone.
#[test]
fn a_rank_that_dies_in_init_where_the_launcher_lets_the_others_live() {
    let Some(launcher) = Launcher::matching() else { return };
    let option = match launcher.family {
        Family::Orte | Family::Prrte => "--enable-recovery",
        Family::Hydra => "-disable-auto-cleanup",
    };
    for act in ["die before", "die within"] {
        // What the launcher's own exit says then differs from one to the next.
        let outcome = Plan::new(&launcher, act, 3).options(&[option]).run();
        assert!(outcome.elapsed < SOON, "{:?}: {}", outcome.elapsed, outcome.report);
        for rank in [0, 2] {
            let line = outcome.line(rank, "error ");
            assert!(line.starts_with("Timeout ") || line.starts_with("Remote "), "{line}");
        }
    }
}

#[test]
fn a_panic_ends_the_job() {
    let Some(outcome) = run("panic", 4) else { return };
    must_have_failed(&outcome, SOON);
    assert!(outcome.report.contains("on purpose"), "{}", outcome.report);
    for said in &outcome.said {
        assert_eq!(said[..], ["ready".to_owned()], "{}", outcome.report);
    }
}

#[test]
fn an_error_ends_the_job_with_one_line_that_names_it() {
    let lines = [
        ("abort", "rsccl: setup: the grid has no columns: aborting the MPI job", Kind::InvalidUsage),
        ("wrong result", "rsccl: rank 1: ", Kind::InvalidArgument),
    ];
    for (act, start, kind) in lines {
        let Some(outcome) = run(act, 3) else { return };
        must_have_failed(&outcome, SOON);
        assert_eq!(outcome.exit, Exit::Code(kind.nccl_code()), "{}", outcome.report);
        // Open MPI's own words may stand before it, with no end of line.
        let lines: Vec<&str> = outcome.report.lines().filter(|line| line.contains("aborting the MPI job")).collect();
        let [line] = lines[..] else { panic!("{} such lines: {}", lines.len(), outcome.report) };
        assert!(line.contains(start), "{}", outcome.report);
        assert!(!outcome.report.contains("not ended"), "{}", outcome.report);
    }
}

/// Far below every deadline but those that are set above, and far above what an end takes.
const SOON: Duration = Duration::from_secs(20);
