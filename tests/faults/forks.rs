//! Ranks that have forked children (no exec): data loaders, pools of workers. A child holds copies of all that its
//! parent had, and none of its threads.

use super::deaths::{VICTIM, must_go_on, must_name};
use crate::{NET, SHM, with};
use testing::ranks::{Job, until};

/// Calls that the others wait in.
const CALLS: &[&str] = &["call all_reduce 2", "call all_reduce 300000", "call barrier 0"];

/// Regression: the child's copies kept the dead rank's connections open, so that the others waited until the deadline.
#[test]
fn a_rank_that_is_killed_beside_an_idle_child_is_known_to_be_dead() {
    for transport in [SHM, NET] {
        for command in CALLS {
            for warm in [false, true] {
                let mut job = Job::start(4, transport);
                let before = job.holdings();
                job.join();
                if warm {
                    job.must(command);
                }
                fork_idle(&mut job, VICTIM);
                job.begin(command, |rank| rank != VICTIM);
                let _child = job.kill_alone(VICTIM);
                for rank in &job.ranks {
                    must_name(VICTIM, rank.number, command, &rank.failure());
                }
                must_go_on(&mut job, VICTIM, command, &before);
            }
        }
    }
}

/// The child is forked while its parent is in a call, by another thread.
#[test]
fn a_rank_that_is_killed_in_the_middle_beside_an_idle_child_is_known_to_be_dead() {
    for (transport, command) in
        [(SHM, "repeat all_reduce 300000"), (NET, "repeat all_reduce 100000"), (NET, "repeat sendrecv 100000")]
    {
        let mut job = Job::start(4, transport);
        let before = job.holdings();
        job.join();
        job.begin(command, |_| true);
        for _ in 0..3 {
            job.ranks[VICTIM].expect_line("turn");
        }
        job.ranks[VICTIM].say("beside idle");
        job.ranks[VICTIM].await_line("beside ok");
        let _child = job.kill_alone(VICTIM);
        for rank in &job.ranks {
            must_name(VICTIM, rank.number, command, &rank.failure());
        }
        must_go_on(&mut job, VICTIM, &command.replace("repeat", "call"), &before);
    }
}

#[test]
fn a_request_and_a_message_learn_of_the_death_beside_an_idle_child() {
    for transport in [SHM, NET] {
        let mut job = Job::joined(4, transport);
        fork_idle(&mut job, VICTIM);
        job.ranks[0].say("request 7 2");
        job.ranks[1].say("recv 500000 2");
        job.ranks[3].say("send 9000000 2");
        for rank in job.others(VICTIM) {
            rank.begun();
        }
        let _child = job.kill_alone(VICTIM);
        for rank in &job.ranks {
            let failure = rank.failure();
            assert_eq!((failure.kind.as_str(), failure.peer), ("Remote", Some(VICTIM)), "{}", failure.text);
        }
    }
}

#[test]
fn a_rank_that_is_killed_in_init_beside_an_idle_child_is_known_to_be_dead() {
    for transport in [SHM, NET] {
        let mut job = Job::start(4, &with(transport, &[("NCCL_DEBUG", "TRACE"), ("RSCCL_INIT_TIMEOUT_MS", "25000")]));
        job.make_id();
        for number in [0, 1, VICTIM] {
            job.say_init(number);
            job.ranks[number].begun();
        }
        until("the victim has checked in", || job.ranks[0].log().contains("rank 2 has checked in"));
        job.ranks[VICTIM].say("beside idle");
        job.ranks[VICTIM].await_line("beside ok");
        let _child = job.kill_alone(VICTIM);
        let command = format!("init {} 3 4", job.id);
        job.ranks[VICTIM].say(&command);
        job.ranks[VICTIM].begun();
        for rank in &job.ranks {
            let failure = rank.failure();
            assert!(failure.text.contains("rank 2"), "rank {}: {}", rank.number, failure.text);
            assert_eq!(failure.kind, "Remote", "rank {}: {}", rank.number, failure.text);
        }
    }
}

/// A child that no handler of forks knows of has live copies of its parent's sockets. Ranks of the same host look at the
/// process itself.
#[test]
fn a_rank_that_is_killed_beside_a_child_of_a_bare_clone_is_known_to_be_dead() {
    for transport in [SHM, NET] {
        for (command, operation) in [("call all_reduce 2", "all_reduce"), ("recv 7 2", "recv")] {
            let mut job = Job::joined(3, transport);
            job.must("call all_reduce 2");
            job.ranks[VICTIM].say("beside clone");
            job.ranks[VICTIM].expect_line("beside ok");
            job.begin(command, |rank| rank != VICTIM);
            let _child = job.kill_alone(VICTIM);
            for rank in &job.ranks {
                must_name(VICTIM, rank.number, operation, &rank.failure());
            }
        }
    }
}

/// A rank that has said goodbye and ended is not dead to a wait that lasts and does not need it. Rank 6 has connections
/// with those at a distance of 1, 2 and 4. Rank 1, at 3, hears its goodbye by way of others only, which pass it on in calls.
#[test]
fn a_process_that_has_left_and_ended_is_not_called_dead() {
    let mut jobs = [SHM, NET].map(|transport| {
        let mut job = Job::joined(8, transport);
        job.must("call barrier 0");
        let mut leaver = job.ranks.remove(6);
        leaver.must("finalize");
        leaver.end();
        for waiting in [1, 4] {
            job.ranks[waiting].say("recv 7 0");
            job.ranks[waiting].begun();
        }
        job
    });
    // Twice as long as a wait takes that finds such a process.
    rsccl::internals::sys::poller::pause(std::time::Duration::from_secs(3));
    for job in &mut jobs {
        for waiting in [1, 4] {
            job.ranks[0].must(&format!("send 7 {waiting}"));
            job.ranks[waiting].success("recv");
        }
    }
}

/// A child of the process in which the root is: once the process is killed, nobody listens at the root's address.
#[test]
fn the_root_of_a_killed_process_does_not_live_on_in_an_idle_child() {
    let mut job = Job::start(3, &with(SHM, &[("NCCL_SOCKET_RETRY_CNT", "3"), ("RSCCL_INIT_TIMEOUT_MS", "25000")]));
    job.make_id();
    for number in [1, 2] {
        job.say_init(number);
        job.ranks[number].begun();
    }
    fork_idle(&mut job, 0);
    let _child = job.kill_alone(0);
    for rank in &job.ranks {
        let failure = rank.failure();
        assert!(failure.text.contains("root"), "rank {}: {}", rank.number, failure.text);
        // The root has gone: not one that is late.
        assert!(!failure.text.contains("25.0 s"), "{}: {}", failure.kind, failure.text);
    }
}

/// A rank that ends well while its child lives on is one that has left, as without a child.
#[test]
fn a_rank_that_leaves_beside_an_idle_child_has_left() {
    for transport in [SHM, NET] {
        let mut job = Job::joined(3, transport);
        job.must("call all_reduce 2");
        fork_idle(&mut job, 1);
        job.ranks[1].must("finalize");
        job.begin("call all_reduce 2", |rank| rank != 1);
        for rank in job.others(1) {
            let failure = rank.failure();
            assert_eq!((failure.kind.as_str(), failure.peer), ("Remote", Some(1)), "{}", failure.text);
        }
    }
}

/// Regression: the children had their parent's token, so that they took each other for its threads.
#[test]
fn forked_workers_make_a_communicator_whatever_their_parent_has_had() {
    for transport in [SHM, NET] {
        let patient = with(transport, &[("RSCCL_INIT_TIMEOUT_MS", "15000"), ("RSCCL_TIMEOUT_MS", "15000")]);
        let mut job = Job::start(2, &patient);
        let mut turn = 0;
        let mut work = |job: &mut Job, command: &str| {
            for rank in 0..job.ranks.len() {
                turn += 1;
                let folder = job.folder(&format!("forked-{turn}"));
                job.ranks[rank].must(&format!("{command} {folder}"));
            }
        };
        // The worker has made a communicator of one rank when it started, which is gone.
        for command in ["workers 3", "workers_tcp 3", "workers_between 3", "server 3"] {
            work(&mut job, command);
        }
        job.join();
        job.must("call all_reduce 300000");
        for command in ["workers 3", "workers_tcp 3", "workers_between 3", "server 3"] {
            work(&mut job, command);
        }
        job.must("call all_reduce 300000");
        job.must("split 0");
        work(&mut job, "workers 2");
        job.must("call all_reduce 300000");
        job.must("finalize");
        work(&mut job, "workers 3");
        job.must("call all_reduce 300000");
        job.must("drop");
        work(&mut job, "workers 3");
    }
}

/// The parent's other thread is in a call, and goes on.
#[test]
fn forked_workers_make_a_communicator_while_their_parent_is_in_a_call() {
    for transport in [SHM, NET] {
        let mut job = Job::joined(2, transport);
        job.must("call all_reduce 2");
        job.ranks[0].say("recv 300000 1");
        job.ranks[0].begun();
        for turn in 0..3 {
            let folder = job.folder(&format!("forked-{turn}"));
            job.ranks[0].say(&format!("beside workers 3 {folder}"));
            job.ranks[0].await_line("beside ok");
        }
        job.ranks[1].must("send 300000 0");
        job.ranks[0].success("recv");
        // Both are in calls all the time.
        job.begin("repeat all_reduce 30000", |_| true);
        for turn in 3..6 {
            let folder = job.folder(&format!("forked-{turn}"));
            job.ranks[1].say(&format!("beside workers 2 {folder}"));
            job.ranks[1].await_line("beside ok");
        }
        job.ranks[0].say("abort enough");
        for rank in &job.ranks {
            assert_eq!(rank.failure().kind, "Aborted");
        }
    }
}

/// A child that uses what it has inherited, drops it and ends harms nobody.
#[test]
fn a_child_that_drops_what_it_has_inherited_harms_nobody() {
    for transport in [SHM, NET] {
        let mut job = Job::start(3, transport);
        let before = job.holdings();
        job.join();
        for turn in 0..3 {
            job.must("call all_reduce 2");
            job.must("call all_reduce 300000");
            let folder = job.folder(&format!("forked-{turn}"));
            job.ranks[1].must(&format!("inherit {folder}"));
        }
        job.must("call all_reduce 300000");
        job.must("finalize");
        job.must_leave_nothing(&before);
    }
}

fn fork_idle(job: &mut Job, number: usize) {
    job.ranks[number].say("beside idle");
    job.ranks[number].expect_line("beside ok");
}
