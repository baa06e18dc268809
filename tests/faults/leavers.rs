//! Ranks that leave, stop, or call something else.

use rsccl::internals::sys::process::Signal;

use crate::{NET, SHM, with};
use testing::ranks::{Answer, Failure, Job};

const COMMANDS: &[&str] = &["call all_reduce 2", "call all_reduce 300000", "call barrier 0", "call sendrecv 1000"];

#[test]
fn a_rank_that_says_goodbye_is_named_by_those_who_wait_for_it() {
    for transport in [SHM, NET] {
        for (command, goodbye) in COMMANDS.iter().zip(["finalize", "drop", "end", "end"]) {
            for warm in [false, true] {
                let mut job = Job::start(3, transport);
                let before = job.holdings();
                job.join();
                if warm {
                    job.must(command);
                }
                job.begin(command, |rank| rank != 1);
                if goodbye == "end" {
                    job.ranks.remove(1).end();
                } else {
                    job.ranks[1].must(goodbye);
                }
                for rank in job.others(1) {
                    if warm && command.contains("sendrecv") && rank.number == 0 {
                        // This rank receives from rank 2, and the slots have room for what it sends to rank 1: so it
                        // succeeds.
                        rank.success(command);
                        continue;
                    }
                    let failure = rank.failure();
                    assert_eq!(
                        (failure.kind.as_str(), failure.peer),
                        ("Remote", Some(1)),
                        "{command}: {}",
                        failure.text
                    );
                    let says = |words: &str| failure.text.contains(words);
                    assert!(says("finalized") || says("has left"), "{command}: {}", failure.text);
                }
                job.must_leave_nothing(&before);
            }
        }
    }
}

#[test]
fn a_rank_that_panics_has_died() {
    for transport in [SHM, NET] {
        let mut job = Job::joined(3, transport);
        job.begin("call all_reduce 300000", |rank| rank != 2);
        job.ranks[2].must("panic");
        for rank in job.others(2) {
            let failure = rank.failure();
            assert_eq!((failure.kind.as_str(), failure.peer), ("Remote", Some(2)), "{}", failure.text);
            assert!(failure.text.contains("has died"), "{}", failure.text);
        }
    }
}

#[test]
fn what_was_begun_ends_though_a_process_leaves() {
    for transport in [SHM, NET] {
        for command in ["call broadcast 3", "call broadcast 300000", "call scatter 900"] {
            let mut job = Job::joined(4, transport);
            // The last rank is the root, and may leave before the others have read its data.
            job.begin(command, |_| true);
            let root = job.ranks.pop().expect("four ranks");
            root.success(command);
            root.end();
            for rank in &job.ranks {
                rank.success(command);
            }
        }
    }
}

#[test]
fn a_message_arrives_though_its_sender_has_left() {
    for transport in [SHM, NET] {
        let mut job = Job::joined(2, transport);
        job.must("call sendrecv 5");
        job.ranks[0].must("send 1000 1");
        job.ranks[0].must("finalize");
        job.ranks[1].must("recv 1000 0");
        let failure = job.ranks[1].fails("recv 1000 0");
        assert_eq!((failure.kind.as_str(), failure.peer), ("Remote", Some(0)), "{}", failure.text);
    }
}

#[test]
fn a_request_that_cannot_end_has_a_deadline_and_hears_of_leavers() {
    for transport in [SHM, NET] {
        for warm in [false, true] {
            let mut job = Job::start(3, &with(transport, &[("RSCCL_TIMEOUT_MS", "1000")]));
            let before = job.holdings();
            job.join();
            if warm {
                job.must("call sendrecv 5");
            }
            job.ranks[2].must("finalize");
            let failure = job.ranks[1].fails("request 10 2");
            assert_eq!((&*failure.kind, failure.peer), ("Remote", Some(2)), "{}", failure.text);
            drop(job);

            let mut job = Job::joined(3, &with(transport, &[("RSCCL_TIMEOUT_MS", "1000")]));
            if warm {
                job.must("call sendrecv 5");
            }
            // Rank 2 is alive, but sends nothing.
            let failure = job.ranks[1].fails("request 10 2");
            assert_eq!(failure.kind, "Timeout", "{}", failure.text);
            assert!(failure.text.contains("rank 2"), "{}", failure.text);
            job.must_leave_nothing(&before);
        }
    }
}

#[test]
fn threads_of_a_world_that_failed_leave_nothing_behind() {
    for variables in [&[("NCCL_P2P_DISABLE", "0")], &[("NCCL_P2P_DISABLE", "1")]] {
        let mut job = Job::start(1, &with(SHM, variables));
        let before = job.holdings();
        job.must("threads 4 300000");
        job.must("threads 3 5");
        job.must_leave_nothing(&before);
    }
    let mut job = Job::start(1, &with(NET, &[("NCCL_P2P_DISABLE", "1")]));
    let before = job.holdings();
    job.must("threads 4 300000");
    job.must_leave_nothing(&before);
}

/// What a rank sends to one that is stopped fills the system's buffers first and then the slots of its ring; the rest
/// stays with the caller. The error names the peer wherever the end of a message lies.
#[test]
fn a_stopped_receiver_is_named_whatever_the_size_of_the_message() {
    let small = [("RSCCL_TIMEOUT_MS", "500"), ("NCCL_SOCKET_SNDBUF", "65536"), ("NCCL_SOCKET_RCVBUF", "65536")];
    let mut late = 0;
    // Nearer to each other than a ring is long.
    for kilobytes in (400..6000).step_by(800) {
        let mut job = Job::start(3, &with(NET, &small));
        job.join();
        job.must("call sendrecv 1000");
        job.ranks[2].signal(Signal::STOP);
        // Rank 0 sends to rank 1, rank 1 to rank 2, and that to rank 0.
        let command = format!("call sendrecv {}", kilobytes * 1000 / size_of::<f32>());
        job.begin(&command, |rank| rank != 2);
        let says = |failure: Failure| {
            let Failure { kind, text, .. } = failure;
            assert!(matches!(&*kind, "Timeout" | "Remote"), "{command}: {kind}: {text}");
            assert!(text.contains("timed out") && text.contains("rank 2"), "{command}: {text}");
        };
        says(job.ranks[0].failure());
        if let Answer::Error(failure) = job.ranks[1].answer() {
            says(failure);
            late += 1;
        }
        job.ranks[2].signal(Signal::CONTINUE);
    }
    assert!(late > 2, "rank 1 met its deadline {late} times: the system's buffers have taken the other messages");
}

#[test]
fn a_stopped_rank_is_named_at_the_deadline_over_shm() {
    stopped(SHM);
}

#[test]
fn a_stopped_rank_is_named_at_the_deadline_over_net() {
    stopped(NET);
}

fn stopped(transport: &[(&str, &str)]) {
    let cases = COMMANDS.iter().map(|command| (*command, "")).chain(["Ring", "Tree"].map(|path| (COMMANDS[1], path)));
    // A small collective of a request is announced over shared memory, and waits for the stopped rank like that.
    for (command, path) in cases.chain([("started all_reduce 2", "")]) {
        let mut variables = with(transport, &[("RSCCL_TIMEOUT_MS", "1200")]);
        if !path.is_empty() {
            variables.push(("NCCL_ALGO", path));
        }
        let mut job = Job::start(4, &variables);
        job.join();
        job.must(command);
        job.ranks[3].signal(Signal::STOP);
        job.begin(command, |rank| rank != 3);
        for rank in job.others(3) {
            if command.contains("sendrecv") && rank.number != 0 {
                // Only rank 0 receives from rank 3, and the slots have room for what rank 2 sends to rank 3: so rank 2
                // succeeds.
                rank.success(command);
                continue;
            }
            let Failure { kind, text, .. } = rank.failure();
            // The rank that reaches its deadline first tells the others.
            assert!(matches!(&*kind, "Timeout" | "Remote"), "{command} {path}: {kind}: {text}");
            // In a ring most ranks wait for a rank that waits itself. The error names the rank that does not wait.
            assert!(text.contains("timed out") && text.contains("rank 3"), "{command} {path}: {text}");
        }
        job.ranks[3].signal(Signal::CONTINUE);
        // The others may have sent all that its call needs. So it repeats the call, and gets their error.
        let failure = if command.starts_with("started") {
            job.begin(command, |rank| rank == 3);
            match job.ranks[3].answer() {
                Answer::Error(failure) => failure,
                Answer::Ok(_) => job.ranks[3].fails(command),
            }
        } else {
            job.ranks[3].fails(&command.replace("call", "repeat"))
        };
        assert!(failure.text.contains("timed out"), "{command}: {}", failure.text);
    }
}

#[test]
fn processes_that_call_different_things_are_told_of_both() {
    for transport in [SHM, NET] {
        for (one, other, words) in [
            ("call all_reduce 4", "call barrier 0", ["all_reduce", "barrier"]),
            ("call all_reduce 300000", "call all_reduce 300001", ["300000", "300001"]),
            ("call all_reduce 4", "call all_reduce 400000", ["count 4", "400000"]),
        ] {
            let mut job = Job::joined(3, transport);
            job.begin(one, |rank| rank != 1);
            job.begin(other, |rank| rank == 1);
            for rank in &job.ranks {
                let failure = rank.failure();
                assert_eq!(failure.kind, "Mismatch", "rank {}, {one}, {other}: {}", rank.number, failure.text);
                for word in words {
                    assert!(failure.text.contains(word), "{one}, {other}: `{word}` is not in: {}", failure.text);
                }
            }
        }
    }
}
