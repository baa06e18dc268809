//! abort() from another thread ends every rank's call.

use crate::{NET, SHM, with};
use testing::ranks::Job;

#[test]
fn abort_from_another_thread_ends_all_ranks() {
    let cases = [
        (SHM, "call all_reduce 2", ""),
        (SHM, "call all_reduce 300000", ""),
        (SHM, "call all_reduce 300000", "all_reduce:Ring"),
        (SHM, "recv 5 1", ""),
        (NET, "call barrier 0", ""),
        (NET, "call all_reduce 300000", "all_reduce:Ring"),
        (NET, "recv 5 1", ""),
    ];
    for (transport, command, algorithm) in cases {
        for warm in [false, true] {
            let path: &[(&str, &str)] = if algorithm.is_empty() { &[] } else { &[("NCCL_ALGO", algorithm)] };
            let mut job = Job::start(3, &with(transport, path));
            let before = job.holdings();
            job.join();
            if warm {
                job.must(if command.starts_with("recv") { "call sendrecv 5" } else { command });
            }
            // Rank 1 does not make the call, and learns of the abort in its next call.
            job.begin(command, |rank| rank != 1);
            job.ranks[0].say("abort enough of this");
            for rank in job.others(1) {
                let failure = rank.failure();
                assert_eq!(failure.kind, "Aborted", "{command}: {}", failure.text);
                assert!(failure.text.contains("enough of this"), "{}", failure.text);
            }
            // The others may have sent all that its first call needs, so it repeats the call until one fails.
            let late = if command.starts_with("recv") { "recv 5 0" } else { &command.replace("call", "repeat") };
            let failure = job.ranks[1].fails(late);
            assert_eq!(failure.kind, "Aborted", "{command}: {}", failure.text);
            assert!(failure.text.contains("rank 0") && failure.text.contains("enough of this"), "{}", failure.text);
            job.must_leave_nothing(&before);
        }
    }
}
