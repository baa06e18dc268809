//! Several processes on one device.

use std::sync::atomic::{AtomicU32, Ordering};

use rsccl::internals::sys::process::Signal;
use testing::ranks::{Job, until};
use testing::verify::Program;

use crate::{ASKS, must_use_verbs, sh};

/// Ranks that have joined, each a host of its own.
fn job(ranks: usize, more: &[(&str, &str)]) -> Job {
    let mut job = launched(ranks, more);
    job.must("from_env");
    job
}

fn launched(ranks: usize, more: &[(&str, &str)]) -> Job {
    launched_each(ranks, more, |_| Vec::new())
}

/// `of` yields further variables of each rank.
fn launched_each<'a>(ranks: usize, more: &[(&'a str, &'a str)], of: impl Fn(usize) -> Vec<(&'a str, &'a str)>) -> Job {
    static JOBS: AtomicU32 = AtomicU32::new(0);
    // Nothing else runs in the machine.
    let port = (29_500 + JOBS.fetch_add(1, Ordering::Relaxed)).to_string();
    let numbers: Vec<String> = (0..=ranks).map(|number| number.to_string()).collect();
    Job::start_each(ranks, |rank| {
        let mut variables = vec![("MASTER_ADDR", "10.8.0.1"), ("MASTER_PORT", &*port), ("NCCL_SOCKET_IFNAME", "=v0")];
        variables.extend([("RANK", &*numbers[rank]), ("WORLD_SIZE", &*numbers[ranks])]);
        variables.extend([("NCCL_HOSTID", &*numbers[rank]), ("NCCL_IB_HCA", "=rxe0")]);
        variables.extend(ASKS);
        variables.extend(more);
        variables.extend(of(rank));
        (Vec::new(), variables)
    })
}

/// Objects of this kind that processes have: the kernel's own have no process.
fn of_processes(kind: &str) -> usize {
    sh(&format!("rdma resource show {kind}")).lines().filter(|line| line.contains(" pid ")).count()
}

fn pairs_of_processes() -> usize {
    of_processes("qp")
}

/// Queue pairs, memory, queues of completions, domains.
const KINDS: [&str; 4] = ["qp", "mr", "cq", "pd"];

#[test]
#[ignore = "inside a machine with soft RoCE"]
fn everything_goes_by_verbs_and_nothing_is_left() {
    for (ranks, pairs, counts) in [(2, "1", &[1, 60_001][..]), (3, "2", &[1_003])] {
        let mut job = job(ranks, &[("NCCL_IB_QPS_PER_CONNECTION", pairs)]);
        for program in Program::ALL {
            for count in counts {
                job.must(&format!("call {} {count}", program.name()));
            }
        }
        must_use_verbs(&job);
        assert!(KINDS.iter().all(|kind| of_processes(kind) > 0));
        // The processes live on.
        job.must("drop");
        until("all is closed", || KINDS.iter().all(|kind| of_processes(kind) == 0));
    }
}

#[test]
#[ignore = "inside a machine with soft RoCE"]
fn random_programs_go_by_verbs() {
    let seed = testing::random::seed();
    eprintln!("RSCCL_TEST_SEED={seed}");
    let mut variables = testing::random::variables(seed).to_vec();
    variables.push(("NCCL_IB_QPS_PER_CONNECTION", "3"));
    let mut job = job(2, &variables);
    job.must(&format!("random {seed} 10"));
    must_use_verbs(&job);
}

/// The ends use the smaller number of queue pairs.
#[test]
#[ignore = "inside a machine with soft RoCE"]
fn ranks_with_different_numbers_of_queue_pairs_talk() {
    let counts = [["3", "1"], ["2", "3"]].map(|asked| {
        let mut job = launched_each(2, &[], |rank| vec![("NCCL_IB_QPS_PER_CONNECTION", asked[rank])]);
        job.must("from_env");
        job.must("ring 200000");
        let count = pairs_of_processes();
        job.must("call all_reduce 20001");
        must_use_verbs(&job);
        drop(job);
        until("queue pairs of processes that have ended are gone", || pairs_of_processes() == 0);
        count
    });
    assert!(counts[0] > 0 && counts[1] == 2 * counts[0], "one pair and two of each connection: {counts:?}");
}

/// A device tells nobody of a killed peer, and with 7 retries, NCCL's usual number, soft RoCE goes on for ever: the
/// control connections tell.
#[test]
#[ignore = "inside a machine with soft RoCE"]
fn a_killed_peer_is_named_whatever_the_number_of_retries() {
    for (retries, count) in [("7", 3), ("6", 200_001)] {
        let mut job = job(2, &[("NCCL_IB_RETRY_CNT", retries), ("NCCL_IB_TIMEOUT", "14")]);
        job.begin(&format!("repeat all_reduce {count}"), |_| true);
        job.ranks[0].expect_line("turn");
        must_use_verbs(&job);
        job.kill(1);
        assert_eq!(job.ranks[0].failure().peer, Some(1));
        drop(job);
        until("queue pairs of killed processes are gone", || pairs_of_processes() == 0);
    }
}

/// Its process lives, and so do its control connection and its queue pairs: only the deadline ends the call.
#[test]
#[ignore = "inside a machine with soft RoCE"]
fn a_stopped_peer_is_named_at_the_deadline_whatever_the_number_of_retries() {
    for retries in ["7", "6"] {
        let mut job = job(2, &[("NCCL_IB_RETRY_CNT", retries), ("RSCCL_TIMEOUT_MS", "2000")]);
        job.must("ring 200000");
        job.ranks[1].signal(Signal::STOP);
        job.begin("call all_reduce 200001", |rank| rank == 0);
        let failure = job.ranks[0].failure();
        assert!(failure.kind == "Timeout" && failure.text.contains("rank 1"), "{} {}", failure.kind, failure.text);
        must_use_verbs(&job);
        job.ranks[1].signal(Signal::CONTINUE);
    }
}

#[test]
#[ignore = "inside a machine with soft RoCE"]
fn an_abort_ends_a_call_and_mismatched_calls_are_named() {
    let mut job = job(2, &[]);
    job.must("ring 200000");
    job.begin("recv 300000 1", |rank| rank == 0);
    job.ranks[0].say("abort enough of this");
    let failure = job.ranks[0].failure();
    assert!(failure.kind == "Aborted" && failure.text.contains("enough of this"), "{} {}", failure.kind, failure.text);
    drop(job);
    let mut job = self::job(2, &[]);
    job.must("ring 3");
    job.begin("call all_reduce 300", |rank| rank == 0);
    job.begin("call all_reduce 301", |rank| rank == 1);
    for rank in &job.ranks {
        let failure = rank.failure();
        assert_eq!(failure.kind, "Mismatch", "{}", failure.text);
    }
}

#[test]
#[ignore = "inside a machine with soft RoCE"]
fn where_no_port_will_do_sockets_are_used_or_all_get_the_error() {
    for (variable, why) in [
        (("NCCL_IB_GID_INDEX", "9"), "NCCL_IB_GID_INDEX=9 is no entry of its table of GIDs, which has "),
        (("NCCL_IB_HCA", "mlx5"), "rxe0:1: NCCL_IB_HCA=mlx5 leaves it out"),
        (("NCCL_IB_DISABLE", "1"), "NCCL_IB_DISABLE=1 leaves no device"),
    ] {
        let mut softly = launched(2, &[variable]);
        softly.must("from_env");
        softly.must("ring 3");
        let log = softly.ranks[1].log();
        assert!(log.contains(why) && log.contains("via NET/Socket") && !log.contains("via NET/IB"), "{log}");
    }
    let mut strictly = launched(2, &[("NCCL_IB_DISABLE", "1"), ("RSCCL_NET_STRICT", "1")]);
    strictly.begin("from_env", |_| true);
    for rank in &strictly.ranks {
        let text = rank.failure().text;
        assert!(text.contains("has not the network that it must use: NCCL_NET=IB: NCCL_IB_DISABLE=1 leaves"), "{text}");
    }
}
