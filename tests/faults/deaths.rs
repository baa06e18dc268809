//! A rank is killed: before the others wait for it, while they wait, or in the middle of the work.

use std::time::Duration;

use rsccl::internals::sys::clock;

use crate::{NET, SHM, with};
use testing::ranks::{Failure, Job};

/// A collective that the others wait in: the command, and variables that force its path.
type Case = (&'static str, &'static [(&'static str, &'static str)]);

const CASES: &[Case] = &[
    ("call all_reduce 2", &[]),
    ("call all_reduce 300000", &[]),
    ("call all_reduce 300000", &[("NCCL_ALGO", "Ring")]),
    ("call all_reduce 300000", &[("NCCL_ALGO", "Tree")]),
    ("call all_gather 60000", &[("NCCL_ALGO", "all_gather:PAT")]),
    ("call reduce_scatter 3000", &[]),
    ("call all_to_all_v 40000", &[]),
    ("call barrier 0", &[]),
    ("round all_reduce 2", &[]),
    ("started all_reduce 2", &[]),
    ("started all_reduce 300000", &[]),
];

/// The bound of an error that waits for no time-out, and takes milliseconds on an idle machine.
const AT_ONCE: Duration = Duration::from_secs(4);
/// The rank that dies.
pub(super) const VICTIM: usize = 2;

#[test]
fn killed_before_the_first_collective_over_shm() {
    CASES.iter().for_each(|case| killed(SHM, *case, false));
}

#[test]
fn killed_before_the_first_collective_over_net() {
    CASES.iter().for_each(|case| killed(NET, *case, false));
}

#[test]
fn killed_between_collectives_over_shm() {
    CASES.iter().for_each(|case| killed(SHM, *case, true));
}

#[test]
fn killed_between_collectives_over_net() {
    CASES.iter().for_each(|case| killed(NET, *case, true));
}

fn killed(transport: &[(&str, &str)], (command, path): Case, warm: bool) {
    let mut job = Job::start(4, &with(transport, path));
    let before = job.holdings();
    job.join();
    if warm {
        job.must(command);
    }
    job.begin(command, |rank| rank != VICTIM);
    job.kill(VICTIM);
    for rank in &job.ranks {
        must_name(VICTIM, rank.number, command, &rank.failure());
    }
    must_go_on(&mut job, VICTIM, command, &before);
}

#[test]
fn killed_in_the_middle() {
    let cases: &[(&str, Case)] = &[
        ("shm", ("repeat all_reduce 2", &[])),
        ("shm", ("repeat all_reduce 300000", &[])),
        ("shm", ("repeat all_reduce 300000", &[("NCCL_ALGO", "Ring")])),
        ("net", ("repeat all_reduce 100000", &[("NCCL_ALGO", "Ring")])),
        ("net", ("repeat all_reduce 100000", &[("NCCL_ALGO", "Tree")])),
        ("net", ("repeat sendrecv 100000", &[])),
    ];
    for (transport, (command, path)) in cases {
        let transport = if *transport == "shm" { SHM } else { NET };
        let mut job = Job::start(4, &with(transport, path));
        let before = job.holdings();
        job.join();
        kill_in_the_middle(&mut job, command, &before);
    }
}

/// Kills a rank after some turns of `command`, which begins with `repeat`; the others must name it and go on.
pub(super) fn kill_in_the_middle(job: &mut Job, command: &str, before: &[(usize, usize)]) {
    job.begin(command, |_| true);
    for _ in 0..3 {
        job.ranks[VICTIM].expect_line("turn");
    }
    job.kill(VICTIM);
    for rank in &job.ranks {
        must_name(VICTIM, rank.number, command, &rank.failure());
    }
    must_go_on(job, VICTIM, &command.replace("repeat", "call"), before);
}

#[test]
fn killed_while_others_send_to_it_and_receive_from_it() {
    for transport in [SHM, NET] {
        for warm in [false, true] {
            let mut job = Job::start(4, transport);
            let before = job.holdings();
            job.join();
            if warm {
                job.must("call sendrecv 10");
            }
            job.ranks[0].say("recv 7 2");
            job.ranks[1].say("recv 500000 2");
            // Far more than the slots and sockets of a connection hold.
            job.ranks[3].say("send 9000000 2");
            for rank in job.others(VICTIM) {
                rank.begun();
            }
            job.kill(VICTIM);
            for (rank, name) in job.ranks.iter().zip(["recv", "recv", "send"]) {
                must_name(VICTIM, rank.number, name, &rank.failure());
            }
            must_go_on(&mut job, VICTIM, "call sendrecv 10", &before);
        }
    }
}

/// Regression: the others waited 5 s for the dead rank to leave their buffers.
#[test]
fn killed_inside_the_registered_buffers_of_others() {
    for sums in ["registered 700000", "placed 700000", "registered 700000", "placed 700000"] {
        let mut job = Job::start(4, &with(SHM, &[("RSCCL_TIMEOUT_MS", "20000")]));
        let before = job.holdings();
        job.join();
        job.begin(sums, |_| true);
        for _ in 0..3 {
            job.ranks[VICTIM].expect_line("turn");
        }
        job.kill(VICTIM);
        let killed = clock::now();
        for rank in &job.ranks {
            must_name(VICTIM, rank.number, "all_reduce", &rank.failure());
        }
        let took = clock::now().duration_since(killed);
        assert!(took < AT_ONCE, "the last error came {took:?} after the death");
        must_go_on(&mut job, VICTIM, "call all_reduce 300000", &before);
    }
}

#[test]
fn two_die_at_once_and_then_a_third() {
    for transport in [SHM, NET] {
        let mut job = Job::joined(6, transport);
        job.lose_the_last_two_of_six();
        job.begin("call all_reduce 300000", |rank| rank != 0);
        job.kill(0);
        for rank in &job.ranks {
            let failure = rank.failure();
            assert_eq!((failure.kind.as_str(), failure.peer), ("Remote", Some(0)), "{}", failure.text);
        }
        job.must("shrink 0");
        job.must("call all_reduce 1000");
    }
}

/// `failure` of `command` says that `victim` is the cause.
pub(super) fn must_name(victim: usize, rank: usize, command: &str, failure: &Failure) {
    let text = &failure.text;
    assert_eq!((failure.kind.as_str(), failure.peer), ("Remote", Some(victim)), "rank {rank}, {command}: {text}");
    let is_name = |word: &&str| !matches!(*word, "call" | "repeat" | "inside" | "lying" | "round" | "started");
    let operation = command.split(' ').find(is_name).unwrap_or_default();
    let operation = if operation == "sendrecv" { "group of messages" } else { operation };
    for word in [operation, &format!("rank {victim}")] {
        assert!(text.contains(word), "rank {rank}, {command}: `{word}` is not in: {text}");
    }
}

/// The survivors make a communicator without the victim, use it, and leave nothing behind.
pub(super) fn must_go_on(job: &mut Job, victim: usize, command: &str, before: &[(usize, usize)]) {
    job.begin(&format!("shrink {victim}"), |_| true);
    let left = job.ranks.len();
    for (place, rank) in job.ranks.iter().enumerate() {
        assert_eq!(rank.success("shrink"), format!("{place} {left}"));
    }
    job.must("call all_reduce 1000");
    job.must(command);
    job.must_leave_nothing(before);
}
