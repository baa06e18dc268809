//! A rank that is stopped in the middle of a call, and goes on when the others have given it up.

use std::time::Duration;

use rsccl::internals::sys::poller;
use rsccl::internals::sys::process::Signal;

use crate::{NET, SHM, with};
use testing::ranks::Job;

/// Regression: the others waited 5 s for it, then had their buffers back, and it wrote millions of elements into them
/// when it went on.
#[test]
fn a_rank_that_is_stopped_inside_registered_buffers_changes_nothing_when_it_goes_on() {
    goes_on_without_a_trace("registered 6000000", "400");
}

/// The same of vectors that are registered where they lie.
#[test]
fn a_rank_that_is_stopped_inside_vectors_of_others_changes_nothing_when_it_goes_on() {
    // Longer, because the first touches of pages that have moved take a while.
    goes_on_without_a_trace("placed 6000000", "1500");
}

fn goes_on_without_a_trace(sums: &str, timeout_ms: &str) {
    let mut caught = 0;
    for _ in 0..TRIES {
        let mut job = Job::start(2, &with(SHM, &[("RSCCL_TIMEOUT_MS", timeout_ms)]));
        let before = job.holdings();
        job.join();
        job.begin(sums, |_| true);
        for _ in 0..3 {
            job.ranks[1].expect_line("turn");
        }
        job.ranks[1].signal(Signal::STOP);
        let failure = job.ranks[0].failure();
        assert_eq!(failure.kind, "Timeout", "{}", failure.text);
        let was_inside = job.ranks[0].log().contains("took this rank's registered buffers away");
        job.ranks[1].signal(Signal::CONTINUE);
        let failure = job.ranks[1].failure();
        assert!(matches!(failure.kind.as_str(), "Remote" | "Timeout"), "{}", failure.text);
        for rank in &mut job.ranks {
            rank.must("unchanged");
        }
        job.must_leave_nothing(&before);
        caught += u32::from(was_inside);
        if caught == ENOUGH {
            return;
        }
    }
    panic!("in {TRIES} tries the rank was stopped inside {caught} times");
}

/// A buffer that was taken away from a stopped rank is shared with the ranks of the next communicator.
#[test]
fn a_buffer_that_was_taken_away_is_registered_anew() {
    is_registered_anew("registered 1000000");
}

/// The same of a vector that is registered where it lies.
#[test]
fn a_vector_that_was_taken_away_is_registered_anew() {
    is_registered_anew("placed 1000000");
}

fn is_registered_anew(sums: &str) {
    for _ in 0..TRIES {
        let mut job = Job::joined(3, &with(SHM, &[("RSCCL_TIMEOUT_MS", "2000")]));
        job.begin(sums, |_| true);
        for _ in 0..3 {
            job.ranks[2].expect_line("turn");
        }
        job.ranks[2].signal(Signal::STOP);
        for rank in job.others(2) {
            rank.failure();
        }
        let was_inside = job.others(2).all(|rank| rank.log().contains("took this rank's registered buffers away"));
        job.kill(2);
        job.must("shrink 2");
        job.begin(sums, |_| true);
        for rank in &job.ranks {
            (0..3).for_each(|_| rank.expect_line("turn"));
        }
        job.ranks[0].say("abort enough of this");
        for rank in &job.ranks {
            rank.failure();
        }
        for rank in &mut job.ranks {
            rank.must("unchanged");
        }
        if was_inside {
            return;
        }
    }
    panic!("in {TRIES} tries the rank was never stopped inside");
}

/// Regression: ranks that exchange with their neighbours each waited for the next one, and all named a neighbour of
/// the stopped rank.
#[test]
fn a_rank_that_is_stopped_in_a_ring_is_named_by_all() {
    let stopped = 1;
    for variables in [with(SHM, &[("RSCCL_TIMEOUT_MS", "1500")]), with(NET, &[("RSCCL_TIMEOUT_MS", "1500")])] {
        let mut job = Job::joined(4, &variables);
        job.begin("repeat sendrecv 1000", |_| true);
        for rank in &job.ranks {
            rank.expect_line("turn");
        }
        job.ranks[stopped].signal(Signal::STOP);
        for rank in job.others(stopped) {
            let failure = rank.failure();
            assert_eq!(failure.peer, Some(1), "{}", failure.text);
            assert!(failure.text.contains("rank 1 has not said that it waits"), "{}", failure.text);
        }
        job.ranks[stopped].signal(Signal::CONTINUE);
        job.ranks[stopped].failure();
    }
}

/// Regression: the time in which a whole job stood still counted as the lateness of its ranks.
#[test]
fn a_job_that_is_stopped_and_goes_on_misses_no_deadline() {
    let calls = [
        ("call barrier 0", "call barrier 0"),
        ("call all_reduce 1000000", "call all_reduce 1000000"),
        ("split 0", "split 0"),
        ("recv 5 1", "send 5 0"),
        ("request 5 1", "send 5 0"),
    ];
    let limit = [("RSCCL_TIMEOUT_MS", "3000")];
    let of = |transport| calls.map(|call| (call, Job::joined(2, &with(transport, &limit))));
    let mut jobs: Vec<_> = [SHM, NET].into_iter().flat_map(of).collect();
    for ((waits, _), job) in &mut jobs {
        job.begin(waits, |rank| rank == 0);
    }
    let signal = |jobs: &[((&str, &str), Job)], signal| {
        jobs.iter().flat_map(|(_, job)| &job.ranks).for_each(|rank| rank.signal(signal));
    };
    signal(&jobs, Signal::STOP);
    // Longer than the deadline.
    poller::pause(Duration::from_secs(4));
    signal(&jobs, Signal::CONTINUE);
    for ((waits, comes), job) in &mut jobs {
        job.ranks[1].must(comes);
        job.ranks[0].success(waits);
    }
}

/// A rank is inside for most of a turn, so a few tries are enough.
const TRIES: u32 = 30;
const ENOUGH: u32 = 2;
