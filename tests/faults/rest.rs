//! Ranks that wait sleep, and idle communicators use no processor.

use std::io::Write;
use std::time::Duration;

use rsccl::internals::sys::poller;

use crate::{NET, SHM, with};
use testing::ranks::{Job, Rank};

/// Regression: a ring of plain sends waited until the deadline. A rank that is asked for a connection while it waits
/// opens it.
#[test]
fn a_ring_of_small_sends_between_processes() {
    for transport in [SHM, NET] {
        let mut job = Job::joined(5, &with(transport, &[]));
        job.must("ring 3");
        job.must("ring 200000");
        job.must("call all_reduce 300000");
    }
}

#[test]
fn a_rank_that_waits_for_a_late_one_sleeps() {
    if !is_told() {
        return;
    }
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
            let (most, most_wakes) =
                if warm { (MOST_USED, MOST_WAKES) } else { (MOST_USED + CONNECTING, MOST_WAKES + CONNECTING_WAKES) };
            let mut wakes = u64::MAX;
            let least = least_used(most, || {
                let (before, slept) = (processor_times(&job), sleeps(&job));
                job.begin(command, |rank| rank != 1);
                poller::pause(LATE);
                let used = most_used(&job, &before, |rank| rank != 1);
                wakes = wakes.min((sleeps(&job)[0] - slept[0]).max(sleeps(&job)[2] - slept[2]));
                job.begin(command, |rank| rank == 1);
                for rank in &job.ranks {
                    rank.success(command);
                }
                used
            });
            println!("{command} {path:?} {warm}: {least:?}, {wakes} wakes");
            assert!(least < most, "{command} {path:?} {warm}: a rank used {least:?} in {LATE:?}");
            assert!(wakes < most_wakes, "{command} {path:?} {warm}: a rank woke {wakes} times in {LATE:?}");
        }
    }
}

#[test]
fn an_idle_communicator_uses_no_processor() {
    if !is_told() {
        return;
    }
    for transport in [SHM, NET] {
        let mut job = Job::joined(3, transport);
        job.must("call all_reduce 2");
        job.must("call all_reduce 300000");
        let least = least_used(MOST_USED_IDLE, || {
            let before = processor_times(&job);
            poller::pause(IDLE);
            most_used(&job, &before, |_| true)
        });
        assert!(least < MOST_USED_IDLE, "a rank used {least:?} in {IDLE:?}");
    }
}

/// While nobody waits and nothing moves, no thread wakes: neither of a communicator without requests, nor of one that had
/// some, nor of one whose receives have no send yet. They are received all the same, soon after they were sent.
#[test]
fn no_thread_wakes_while_nobody_waits_and_nothing_moves() {
    // Two messages by each of both ways: in slots, and in more than all slots hold.
    let counts = [3, 1_000_000];
    for transport in [SHM, NET] {
        for warm in [false, true] {
            let mut job = Job::joined(3, &with(transport, &[]));
            if warm {
                job.must("ring 3");
                job.must("call all_reduce 300000");
            }
            let quiet = |job: &Job| wakes_of_a_quiet_while(job);
            assert_eq!(quiet(&job), [0; 3], "{transport:?} {warm}: no requests");
            for round in 0..2 {
                for count in counts {
                    job.ranks[0].must(&format!("post {count} 1"));
                    job.ranks[0].must(&format!("post {count} 2"));
                }
                assert_eq!(quiet(&job), [0; 3], "{transport:?} {warm} {round}: receives that have no send");
                for (count, sender) in counts.iter().flat_map(|count| [(count, 1), (count, 2)]) {
                    job.ranks[sender].must(&format!("send {count} 0"));
                    job.ranks[0].must("collect");
                }
                assert_eq!(quiet(&job), [0; 3], "{transport:?} {warm} {round}: receives that have ended");
            }
        }
    }
}

/// How often the threads of each rank wake in a while in which nothing happens. A rank goes to rest within a moment, on a
/// busy machine within some: what is counted is the quietest while of some.
fn wakes_of_a_quiet_while(job: &Job) -> Vec<u64> {
    let mut least = vec![u64::MAX; job.ranks.len()];
    for _ in 0..TRIES {
        let before = sleeps(job);
        poller::pause(QUIET);
        let wakes: Vec<u64> =
            sleeps(job).iter().zip(&before).map(|(after, before)| after.saturating_sub(*before)).collect();
        least = least.iter().zip(wakes).map(|(least, wakes)| wakes.min(*least)).collect();
        if least.iter().all(|wakes| *wakes == 0) {
            break;
        }
    }
    least
}

/// Whether the kernel reports the processor time of threads; prints that the test is skipped if it does not.
fn is_told() -> bool {
    let is_told = std::path::Path::new("/proc/self/schedstat").exists();
    if !is_told {
        writeln!(std::io::stderr(), "skipped: this kernel has no /proc/self/schedstat")
            .expect("standard error can be written");
    }
    is_told
}

/// The least processor time of several tries of `measure`: other work on the machine can only add to it.
fn least_used(enough: Duration, mut measure: impl FnMut() -> Duration) -> Duration {
    let mut least = Duration::MAX;
    for _ in 0..TRIES {
        least = least.min(measure());
        if least < enough {
            break;
        }
    }
    least
}

fn sleeps(job: &Job) -> Vec<u64> {
    job.ranks.iter().map(Rank::sleeps).collect()
}

fn processor_times(job: &Job) -> Vec<Duration> {
    job.ranks.iter().map(Rank::processor_time).collect()
}

/// The most processor time that any rank of `which` used.
fn most_used(job: &Job, before: &[Duration], which: impl Fn(usize) -> bool) -> Duration {
    let of = |rank: &Rank| rank.processor_time().saturating_sub(before[rank.number]);
    job.ranks.iter().filter(|rank| which(rank.number)).map(of).max().expect("there is a rank")
}

/// How late a rank is: so late that spinning would show in the processor time.
const LATE: Duration = Duration::from_secs(1);
/// The most processor time of a rank that waits for `LATE`, at least of some tries. It spins for 1 ms, and wakes about 100
/// times, each for 10 us on a quiet machine and for 60 us on a busy one.
const MOST_USED: Duration = Duration::from_millis(20);
/// What it takes more to connect, on a busy machine.
const CONNECTING: Duration = Duration::from_millis(15);
/// How often its threads wake meanwhile, whatever else the machine does: 50 times were measured, and 103. A wait that naps
/// for 4 ms wakes more often.
const MOST_WAKES: u64 = 250;
/// What it takes more to connect: 70 to 120 were measured.
const CONNECTING_WAKES: u64 = 150;
/// How long nothing happens: a nap of 20 ms would show several times.
const QUIET: Duration = Duration::from_millis(100);
const IDLE: Duration = Duration::from_secs(1);
/// The most processor time of an idle rank. 0.02 ms were measured.
const MOST_USED_IDLE: Duration = Duration::from_micros(500);
/// On a busy machine other work adds to some of them.
const TRIES: u32 = 12;
