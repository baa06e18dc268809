//! Ranks that are processes, in the memory of devices that their processors cannot reach: calls of all kinds, deaths,
//! mistakes.

use super::deaths::{VICTIM, kill_in_the_middle, must_go_on, must_name};
use crate::{SHM, with};
use testing::random;
use testing::ranks::Job;
use testing::worker::LARGEST;

/// The deadline of a call: a hang becomes an error before the test gives up.
const BOUNDED: &[(&str, &str)] = &[("NCCL_SOCKET_IFNAME", "lo"), ("RSCCL_TIMEOUT_MS", "20000")];

/// `ranks` processes that have joined, each on one of the `devices`; and what each held before.
pub(super) fn on_devices(ranks: usize, devices: usize, variables: &[(&str, &str)]) -> (Job, Vec<(usize, usize)>) {
    let mut job = Job::start(ranks, variables);
    let before = job.holdings();
    job.join();
    for rank in &mut job.ranks {
        rank.must(&format!("device {}", rank.number % devices));
    }
    (job, before)
}

#[test]
fn every_program_on_devices_of_processes() {
    for (ranks, devices) in [(2, 1), (2, 2), (3, 2)] {
        let (mut job, before) = on_devices(ranks, devices, BOUNDED);
        job.must(&format!("cases {} {LARGEST}", random::seed()));
        job.must_leave_nothing(&before);
    }
}

/// Direct works in scratch between processes, the others through slots.
#[test]
fn every_algorithm_on_devices_of_processes() {
    for algorithm in ["Ring", "Tree", "all_gather:PAT;reduce_scatter:PAT"] {
        let forced = with(BOUNDED, &[("NCCL_ALGO", algorithm), ("NCCL_PROTO", "Simple")]);
        let (mut job, before) = on_devices(3, 2, &forced);
        for command in
            ["call all_gather 2003", "call reduce_scatter 70001", "call all_reduce 1", "call all_reduce 90001"]
        {
            let fits = algorithm.len() < 5 || !command.contains("all_reduce");
            if fits && (algorithm != "Tree" || command.contains("all_reduce")) {
                job.must(command);
            }
        }
        job.must_leave_nothing(&before);
    }
}

/// The first message of two ranks opens their connection in whatever call the other one is.
#[test]
fn a_ring_of_plain_messages_between_processes_ends() {
    for devices in [1, 3] {
        let (mut job, before) = on_devices(3, devices, BOUNDED);
        job.must("device_ring 1000");
        job.must_leave_nothing(&before);
    }
}

#[test]
fn threads_in_processes_on_devices() {
    for (crowds, devices) in [(&[2, 2][..], 1), (&[2, 2], 2), (&[1, 3], 3)] {
        let mut job = Job::start(crowds.len(), BOUNDED);
        let before = job.holdings();
        job.make_id();
        let (world, mut first) = (crowds.iter().sum::<u32>(), 0);
        for (rank, ranks) in job.ranks.iter_mut().zip(crowds) {
            rank.say(&format!("device_crowd {} {first} {ranks} {world} {devices} {}", job.id, random::seed()));
            first += ranks;
        }
        for rank in &job.ranks {
            rank.begun();
            rank.success("device_crowd");
        }
        job.must_leave_nothing(&before);
    }
}

/// A rank dies while the others wait for it on their devices.
#[test]
fn a_rank_that_is_killed_is_named_by_launches_that_wait_for_it() {
    for devices in [1, 4] {
        for command in ["call all_reduce 300000", "call all_gather 5000"] {
            let (mut job, before) = on_devices(4, devices, SHM);
            job.must(command);
            job.begin(command, |rank| rank != VICTIM);
            job.kill(VICTIM);
            for rank in &job.ranks {
                must_name(VICTIM, rank.number, command, &rank.failure());
            }
            must_go_on(&mut job, VICTIM, command, &before);
        }
    }
}

#[test]
fn a_rank_that_is_killed_in_the_middle_of_launches_is_named() {
    for (command, path) in [
        ("repeat all_reduce 300000", &[][..]),
        ("repeat all_reduce 300000", &[("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "Simple")]),
    ] {
        let (mut job, before) = on_devices(4, 2, &with(SHM, path));
        kill_in_the_middle(&mut job, command, &before);
    }
}

/// Two ranks on each of two hosts: those of a host work in each other's memory, and send to the other host.
fn on_two_hosts() -> (Job, Vec<(usize, usize)>) {
    let hosts = ["one", "one", "two", "two"];
    let mut job = Job::start_each(4, |rank| (Vec::new(), with(BOUNDED, &[("NCCL_HOSTID", hosts[rank])])));
    let before = job.holdings();
    job.join();
    for rank in &mut job.ranks {
        rank.must(&format!("device {}", rank.number));
    }
    (job, before)
}

#[test]
fn processes_of_two_hosts_on_devices() {
    let (mut job, before) = on_two_hosts();
    job.must(&format!("cases {} {LARGEST}", random::seed()));
    job.must("call all_reduce 300000");
    job.must("device_ring 1000");
    job.must_leave_nothing(&before);
}

#[test]
fn a_rank_of_another_host_that_is_killed_in_the_middle_of_launches_is_named() {
    let (mut job, before) = on_two_hosts();
    kill_in_the_middle(&mut job, "repeat all_reduce 300000", &before);
}

/// Nobody shares memory: all goes over sockets.
#[test]
fn ranks_without_shared_memory_send() {
    let (mut job, before) = on_devices(2, 2, &with(BOUNDED, &[("NCCL_SHM_DISABLE", "1")]));
    job.must("call all_reduce 1000");
    job.must("device_ring 1000");
    job.must_leave_nothing(&before);
}

/// One rank calls in the memory of its device, the other with a slice.
#[test]
fn a_rank_on_the_host_among_ranks_on_devices_is_an_error_that_says_so() {
    for warm in [false, true] {
        let mut job = Job::start(2, BOUNDED);
        let before = job.holdings();
        job.join();
        job.ranks[0].must("device 0");
        if warm {
            job.ranks[1].must("device 0");
            job.must("call all_reduce 1000");
            job.ranks[1].must("host");
        }
        job.begin("call all_reduce 1000", |_| true);
        for rank in &job.ranks {
            let failure = rank.failure();
            assert_eq!(failure.kind, "Mismatch", "rank {}, warm {warm}: {}", rank.number, failure.text);
            assert!(failure.text.contains("device"), "rank {}, warm {warm}: {}", rank.number, failure.text);
        }
        job.must_leave_nothing(&before);
    }
}
