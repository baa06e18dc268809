//! Faults before there is a communicator.

use crate::{NET, SHM, with};
use testing::ranks::{Answer, Job, until};

#[test]
fn killed_after_it_has_joined_while_others_are_still_missing() {
    let mut job = Job::start(4, &with(SHM, &[("NCCL_DEBUG", "TRACE")]));
    let before = job.holdings();
    job.make_id();
    for number in [0, 1, 2] {
        job.say_init(number);
        job.ranks[number].begun();
    }
    // The root, in rank 0's process, logs who has come.
    until("rank 2 has checked in", || job.ranks[0].log().contains("rank 2 has checked in"));
    job.kill(2);
    // Rank 3 joins a world that cannot be completed any more.
    let command = format!("init {} 3 4", job.id);
    job.ranks[2].say(&command);
    job.ranks[2].begun();
    for rank in &job.ranks {
        let failure = rank.failure();
        assert!(failure.text.contains("rank 2"), "rank {}: {}", rank.number, failure.text);
        assert_eq!(failure.kind, "Remote", "rank {}: {}", rank.number, failure.text);
    }
    job.must_leave_nothing(&before);
}

#[test]
fn a_rank_that_never_comes_is_named_at_the_deadline_of_init() {
    let mut job = Job::start(4, &with(SHM, &[("RSCCL_INIT_TIMEOUT_MS", "1500")]));
    let before = job.holdings();
    job.make_id();
    for number in [0, 1, 3] {
        job.say_init(number);
    }
    job.kill(2);
    for rank in &job.ranks {
        rank.begun();
        let failure = rank.failure();
        assert_eq!(failure.kind, "Timeout", "rank {}: {}", rank.number, failure.text);
        assert!(failure.text.contains("2 of 4"), "rank {}: {}", rank.number, failure.text);
    }
    job.must_leave_nothing(&before);
}

#[test]
fn killed_with_the_root_in_its_process() {
    let mut job = Job::start(3, &with(SHM, &[("NCCL_SOCKET_RETRY_CNT", "3")]));
    job.make_id();
    for number in [1, 2] {
        job.say_init(number);
        job.ranks[number].begun();
    }
    job.kill(0);
    for rank in &job.ranks {
        let failure = rank.failure();
        assert!(failure.text.contains("root"), "rank {}: {}", rank.number, failure.text);
        assert!(matches!(&*failure.kind, "Remote" | "Timeout"), "{}: {}", failure.kind, failure.text);
    }
}

#[test]
fn killed_at_odd_moments_of_init() {
    kill_at_odd_moments_of_init(SHM, [0, 2, 4, 6, 8, 10]);
}

#[test]
fn killed_at_odd_moments_of_init_over_sockets() {
    kill_at_odd_moments_of_init(NET, [1, 3, 5, 7, 9, 11]);
}

/// A rank is killed at any moment of init: the test kills it after the others have made some steps, a different number
/// in each turn.
fn kill_at_odd_moments_of_init(transport: &[(&str, &str)], turns: [u32; 6]) {
    for turn in turns {
        // Windows and rings are opened at init, so that there is more to interrupt. Only where the rank dies before it
        // has reached the root do the others wait for the deadline, which a busy machine must not reach otherwise.
        let mut job =
            Job::start(4, &with(transport, &[("NCCL_RUNTIME_CONNECT", "0"), ("RSCCL_INIT_TIMEOUT_MS", "8000")]));
        let before = job.holdings();
        job.make_id();
        for number in 0..4 {
            job.say_init(number);
        }
        job.ranks[3].begun();
        for _ in 0..turn * 200 {
            std::thread::yield_now();
        }
        job.kill(3);
        for rank in &job.ranks {
            rank.begun();
        }
        let (mut joined, mut texts) = (Vec::new(), Vec::new());
        for rank in &job.ranks {
            match rank.answer() {
                Answer::Ok(_) => joined.push(rank.number),
                Answer::Error(failure) => {
                    // A rank that had not reached the root yet ends by its deadline.
                    let (kind, text) = (failure.kind, failure.text);
                    assert!(kind != "Timeout" || text.contains("3 of 4"), "{text}");
                    texts.push(text);
                }
            }
        }
        // Ranks that joined learn of the death in their first call.
        job.begin("call all_reduce 5", |rank| joined.contains(&rank));
        for rank in job.ranks.iter().filter(|rank| joined.contains(&rank.number)) {
            let failure = rank.failure();
            assert_eq!(failure.kind, "Remote", "{}", failure.text);
            texts.push(failure.text);
        }
        assert!(texts.iter().all(|text| text.contains("rank 3") || text.contains("3 of 4")), "turn {turn}: {texts:?}");
        job.must_leave_nothing(&before);
    }
}

#[test]
fn settings_that_differ_are_an_error_on_every_rank() {
    let mut job = Job::start_each(3, |rank| {
        (Vec::new(), if rank == 1 { with(SHM, &[("NCCL_BUFFSIZE", "65536")]) } else { SHM.to_vec() })
    });
    let before = job.holdings();
    job.make_id();
    for number in 0..3 {
        job.say_init(number);
    }
    for rank in &job.ranks {
        rank.begun();
        let failure = rank.failure();
        assert_eq!(failure.kind, "Mismatch", "rank {}: {}", rank.number, failure.text);
        assert!(failure.text.contains("settings"), "rank {}: {}", rank.number, failure.text);
    }
    job.must_leave_nothing(&before);
}

#[test]
fn a_number_that_is_taken_is_an_error() {
    let mut job = Job::start(3, &with(SHM, &[("RSCCL_INIT_TIMEOUT_MS", "3000")]));
    job.make_id();
    for (process, number) in [(0, 0), (1, 1), (2, 1)] {
        let command = format!("init {} {number} 3", job.id);
        job.ranks[process].say(&command);
        job.ranks[process].begun();
    }
    let failures: Vec<_> = job.ranks.iter().map(|rank| rank.failure()).collect();
    // Either of the two may come first. The other gets its error at once; ranks that wait for rank 2 get theirs at
    // their
    // deadline.
    assert_eq!(failures.iter().filter(|failure| failure.kind == "Mismatch").count(), 1, "{failures:?}");
    for failure in &failures {
        assert!(failure.text.contains("two ranks have the number 1"), "{failures:?}");
        assert!(failure.kind == "Mismatch" || failure.text.contains("2 of 3"), "{failures:?}");
    }
}

/// Regression: the error said of ranks whose connections the root could not accept that they never came.
#[test]
fn a_root_with_no_descriptor_left_says_so() {
    // A process with all rights raises its limits itself.
    let few = ["setpriv", "--bounding-set=-sys_resource", "sh", "-c", "ulimit -n 32 && exec \"$@\"", "sh"];
    let variables = with(SHM, &[("RSCCL_INIT_TIMEOUT_MS", "3000"), ("NCCL_DEBUG", "TRACE")]);
    let mut job = Job::start_each(2, |rank| {
        let prefix = if rank == 0 { few.map(str::to_owned).to_vec() } else { Vec::new() };
        (prefix, variables.clone())
    });
    job.make_id();
    let id = job.id.clone();
    job.ranks[0].say(&format!("init {id} 0 41"));
    job.ranks[0].begun();
    until("rank 0 has its own connection", || job.ranks[0].log().contains("rank 0 has checked in"));
    job.ranks[1].say(&format!("crowd {id} 1 40 41 1 1"));
    job.ranks[1].begun();
    let failure = job.ranks[0].failure();
    assert_eq!(failure.kind, "Timeout", "{}", failure.text);
    for words in ["the root could not accept every connection", "ulimit -n"] {
        assert!(failure.text.contains(words), "`{words}` is not in: {}", failure.text);
    }
    drop(job.ranks[1].failure());
}

#[test]
fn worlds_of_different_sizes_are_an_error() {
    let mut job = Job::start(3, &with(SHM, &[("RSCCL_INIT_TIMEOUT_MS", "3000")]));
    job.make_id();
    for (number, world) in [(0, 3), (1, 3), (2, 4)] {
        let command = format!("init {} {number} {world}", job.id);
        job.ranks[number].say(&command);
        job.ranks[number].begun();
    }
    let failures: Vec<_> = job.ranks.iter().map(|rank| rank.failure()).collect();
    // The first rank sets the size. A rank with another size gets its error at once, the others at their deadline.
    assert!(failures.iter().any(|failure| failure.kind == "Mismatch"), "{failures:?}");
    for failure in &failures {
        assert!(matches!(&*failure.kind, "Mismatch" | "Timeout"), "{failures:?}");
        assert!(failure.text.contains('3') && failure.text.contains('4'), "{failures:?}");
    }
}

#[test]
fn an_id_that_is_cut_or_changed_is_an_error_of_the_caller() {
    let mut job = Job::start(1, SHM);
    job.make_id();
    let mut changed = job.id.clone().into_bytes();
    changed[40] ^= 1;
    for id in [job.id[..200].to_owned(), String::from_utf8(changed).unwrap()] {
        let failure = job.ranks[0].fails(&format!("init {id} 0 1"));
        assert_eq!(failure.kind, "InvalidArgument", "{}", failure.text);
    }
}
