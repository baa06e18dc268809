//! Random programs of ranks that are processes, of several ranks in a process, and with one rank that writes random
//! words into all memory that they share.

use crate::{NET, SHM, with};
use testing::random;
use testing::ranks::Job;

#[test]
fn random_programs_of_processes() {
    for (ranks, transport) in [(2, SHM), (3, SHM), (5, SHM), (3, NET)] {
        let (seed, steps) = (random::seed(), random::steps());
        eprintln!("{}", again("random_programs_of_processes", seed));
        let mut job = Job::start(ranks, &with(&with(transport, MINUTE), &random::variables(seed)));
        let before = job.holdings();
        job.join();
        job.must(&format!("random {seed} {steps}"));
        job.must_leave_nothing(&before);
    }
}

#[test]
fn random_programs_of_threads_in_processes() {
    for crowds in [&[2, 3][..], &[1, 1, 2], &[4, 4]] {
        let (seed, steps) = (random::seed(), random::steps());
        eprintln!("{}", again("random_programs_of_threads_in_processes", seed));
        let mut job = Job::start(crowds.len(), &with(SHM, MINUTE));
        job.make_id();
        let world: u32 = crowds.iter().sum();
        let mut first = 0;
        for (rank, ranks) in job.ranks.iter_mut().zip(crowds) {
            rank.say(&format!("crowd {} {first} {ranks} {world} {seed} {steps}", job.id));
            first += ranks;
        }
        for rank in &job.ranks {
            rank.begun();
            rank.success("crowd");
        }
    }
}

/// Every rank gets an error or some result; none dies, none hangs.
#[test]
fn a_rank_that_scribbles_over_shared_memory_kills_nobody() {
    let steps = random::steps();
    for turn in 0..steps.div_ceil(5) {
        let seed = random::seed().wrapping_add(turn);
        let place = if turn % 2 == 0 { "anywhere" } else { "said" };
        eprintln!("{}", again("a_rank_that_scribbles_over_shared_memory_kills_nobody", seed));
        let mut job = Job::joined(3, &with(&with(SHM, SECONDS), &random::variables(seed)));
        job.ranks[1].must(&format!("scribble {seed} {place}"));
        job.must(&format!("suffer {seed} {steps}"));
        job.must("drop");
    }
}

fn again(test: &str, seed: u64) -> String {
    let steps = random::steps();
    format!(
        "again: RSCCL_TEST_SEED={seed} RSCCL_RANDOM_STEPS={steps} cargo test --features cli --test faults_processes {test}"
    )
}

/// A hang becomes an error before the test gives up.
const MINUTE: &[(&str, &str)] = &[("RSCCL_TIMEOUT_MS", "20000")];
const SECONDS: &[(&str, &str)] = &[("RSCCL_TIMEOUT_MS", "1500"), ("RSCCL_INIT_TIMEOUT_MS", "5000")];
