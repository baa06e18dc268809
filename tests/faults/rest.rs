//! Ranks that wait sleep, and idle communicators use no processor.

use std::time::Duration;

use rsccl::internals::sys::poller;

use super::ranks::Job;
use crate::{NET, SHM, with};

#[test]
fn a_rank_that_waits_for_a_late_one_sleeps() {
    let cases = [
        (SHM, "call all_reduce 2", ""),
        (SHM, "call all_reduce 300000", ""),
        (SHM, "call all_reduce 300000", "all_reduce:Ring"),
        (SHM, "call sendrecv 10", ""),
        (NET, "call all_reduce 300000", "all_reduce:Ring"),
        (NET, "call all_reduce 2", "all_reduce:Tree"),
        (NET, "call sendrecv 10", ""),
    ];
    for (transport, command, path) in &cases {
        for warm in [false, true] {
            let path: &[(&str, &str)] = if path.is_empty() { &[] } else { &[("NCCL_ALGO", path)] };
            let mut job = Job::joined(3, &with(transport, path));
            if warm {
                job.must(command);
            }
            let before: Vec<Duration> = job.ranks.iter().map(super::ranks::Rank::processor_time).collect();
            job.begin(command, |rank| rank != 1);
            poller::pause(LATE);
            for rank in job.others(1) {
                let used = rank.processor_time().saturating_sub(before[rank.number]);
                assert!(used < MOST_USED, "{command} {path:?} {warm}: rank {} used {used:?} in {LATE:?}", rank.number);
            }
            job.begin(command, |rank| rank == 1);
            for rank in &job.ranks {
                rank.success(command);
            }
        }
    }
}

#[test]
fn an_idle_communicator_uses_no_processor() {
    for transport in [SHM, NET] {
        let mut job = Job::joined(3, transport);
        job.must("call all_reduce 2");
        job.must("call all_reduce 300000");
        let before: Vec<Duration> = job.ranks.iter().map(super::ranks::Rank::processor_time).collect();
        poller::pause(IDLE);
        for rank in &job.ranks {
            let used = rank.processor_time().saturating_sub(before[rank.number]);
            assert!(used < IDLE / 200, "rank {} used {used:?} in {IDLE:?}", rank.number);
        }
    }
}

/// By how much a rank is late, so long that spinning would show.
const LATE: Duration = Duration::from_secs(1);
/// Of that, spinning 1 ms and looking round now and then; generous, since other work on the machine makes both dearer.
const MOST_USED: Duration = Duration::from_millis(50);
const IDLE: Duration = Duration::from_secs(1);
