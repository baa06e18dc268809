//! Splits and shrinks of which one rank has too few descriptors.

use std::time::{Duration, Instant};

use crate::{NET, SHM, with};
use testing::ranks::{Answer, Failure, Job};

/// Ranks of which `poor` has `spare` descriptors left do `command`, those of `which`.
struct Poverty<'a> {
    poor: usize,
    spare: usize,
    command: &'a str,
    which: fn(usize) -> bool,
}

/// All ranks: of a split.
const ALL: fn(usize) -> bool = |_| true;

impl Poverty<'_> {
    /// Begins the call, which fails on all ranks soon and alike; then the parent works, and its next child too.
    fn is_survived(&self, variables: &[(&str, &str)]) {
        let mut job =
            Job::joined(3, &with(variables, &[("RSCCL_TIMEOUT_MS", "25000"), ("RSCCL_INIT_TIMEOUT_MS", "25000")]));
        // Their connections exist from now on.
        job.must("call all_reduce 1000");
        job.must("call all_gather 100000");
        job.ranks[self.poor].must(&format!("spare {}", self.spare));
        let begun = now();
        job.begin(self.command, self.which);
        for rank in job.ranks.iter().filter(|rank| (self.which)(rank.number)) {
            self.check(rank.number, &rank.failure());
        }
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        job.must("call all_reduce 1000");
        job.must("call all_gather 100000");
        job.ranks[self.poor].must(PLENTY);
        job.begin(self.command, self.which);
        for rank in job.ranks.iter().filter(|rank| (self.which)(rank.number)) {
            rank.success(self.command);
        }
        job.begin("call all_reduce 100000", self.which);
        for rank in job.ranks.iter().filter(|rank| (self.which)(rank.number)) {
            rank.success("a sum in the child");
        }
    }

    fn check(&self, rank: usize, failure: &Failure) {
        let text = &failure.text;
        assert_eq!(failure.kind, "System", "rank {rank}: {text}");
        assert!(text.contains("Too many open files") && text.contains("ulimit -n"), "rank {rank}: {text}");
        assert!(text.contains(&format!("rank {}", self.poor)), "rank {rank}: {text}");
    }
}

#[test]
fn a_split_without_descriptors_fails_alike_and_its_parent_goes_on() {
    for variables in [SHM, NET] {
        for spare in [0, 2] {
            Poverty { poor: 1, spare, command: "split 0", which: ALL }.is_survived(variables);
        }
    }
}

#[test]
fn so_does_one_of_rank_0() {
    for (variables, spare) in [(SHM, 0), (NET, 2)] {
        Poverty { poor: 0, spare, command: "split 0", which: ALL }.is_survived(variables);
    }
}

#[test]
fn so_does_a_split_that_does_not_block() {
    for (variables, spare) in [(SHM, 2), (NET, 0)] {
        let variables = with(variables, &[("NCCL_COMM_BLOCKING", "0")]);
        Poverty { poor: 1, spare, command: "split 0", which: ALL }.is_survived(&variables);
    }
}

#[test]
fn so_does_a_shrink() {
    // One connection is all that a child of two ranks needs.
    for (variables, blocking, spare) in [(SHM, "1", 0), (NET, "0", 0)] {
        let variables = with(variables, &[("NCCL_COMM_BLOCKING", blocking)]);
        Poverty { poor: 1, spare, command: "shrink 2", which: |rank| rank < 2 }.is_survived(&variables);
    }
}

#[test]
fn so_does_a_split_by_hosts() {
    Poverty { poor: 1, spare: 2, command: "local", which: ALL }.is_survived(SHM);
}

/// With each number of spare descriptors up to what a split needs: whatever fails first, all ranks know it, those of
/// the other child too.
#[test]
fn wherever_the_descriptors_of_a_split_run_out_all_ranks_know() {
    for variables in [SHM, NET] {
        let early = with(variables, &[("RSCCL_INIT_TIMEOUT_MS", "25000"), ("NCCL_RUNTIME_CONNECT", "0")]);
        let mut job = Job::joined(6, &early);
        job.must("call all_reduce 1000");
        let mut spare = 0;
        loop {
            assert!(spare < MOST_NEEDED, "a split needs more than {MOST_NEEDED} descriptors");
            job.ranks[1].must(&format!("spare {spare}"));
            let begun = now();
            for rank in &mut job.ranks {
                rank.say(&format!("split {}", rank.number % 5 / 4));
            }
            job.ranks.iter().for_each(|rank| rank.begun());
            let answers: Vec<Answer> = job.ranks.iter().map(|rank| rank.answer()).collect();
            assert!(begun.elapsed() < SOON, "{spare} spare: {:?}", begun.elapsed());
            let poverty = Poverty { poor: 1, spare, command: "split", which: ALL };
            let mut made = 0;
            for (rank, answer) in answers.iter().enumerate() {
                match answer {
                    Answer::Ok(_) => made += 1,
                    Answer::Error(failure) => poverty.check(rank, failure),
                }
            }
            assert!(made == 0 || made == job.ranks.len(), "{spare} spare: {answers:?}");
            if made == 0 {
                job.must("call all_reduce 1000");
            }
            job.ranks[1].must(PLENTY);
            if made > 0 {
                job.must("call all_reduce 1000");
                break;
            }
            spare += 1;
        }
        assert!(spare > 3, "a split that needs {spare} descriptors");
    }
}

fn now() -> Instant {
    rsccl::internals::sys::clock::now()
}

/// So many descriptors that nothing fails.
const PLENTY: &str = "spare 1000";
/// Far below the deadline of init, and far above what an error takes on a machine that does other work too.
const SOON: Duration = Duration::from_secs(8);
/// Spare descriptors beyond which a split has enough.
const MOST_NEEDED: usize = 60;
