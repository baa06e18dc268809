//! Ranks in processes that work in each other's windows: results, mistakes, deaths; on devices in software, and, by
//! `gpus.rs`, on virtual machines.

use super::deaths::{VICTIM, must_name};
use super::devices::on_devices;
use crate::{SHM, with};
use testing::ranks::Job;

/// The deadline of a call: a hang becomes an error before the test gives up.
pub(super) const BOUNDED: &[(&str, &str)] = &[("NCCL_SOCKET_IFNAME", "lo"), ("RSCCL_TIMEOUT_MS", "20000")];

/// All calls with so many elements of each rank, in windows that are reached directly, or not.
pub(super) fn must_run(job: &mut Job, count: usize, direct: bool) {
    must_run_as(job, &format!("windows {count}"), direct);
}

pub(super) fn must_run_as(job: &mut Job, command: &str, direct: bool) {
    job.begin(command, |_| true);
    for rank in &job.ranks {
        assert_eq!(rank.success(command), direct.to_string(), "rank {}", rank.number);
    }
}

#[test]
fn processes_work_in_each_others_windows() {
    for (ranks, devices) in [(2, 2), (3, 2)] {
        let (mut job, before) = on_devices(ranks, devices, BOUNDED);
        must_run(&mut job, 20_011, true);
        must_run(&mut job, 3, true);
        job.must_leave_nothing(&before);
    }
    // By rings, which move data through slots whatever is registered.
    let (mut job, before) = on_devices(3, 2, &with(BOUNDED, &[("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "Simple")]));
    must_run(&mut job, 3_001, true);
    job.must_leave_nothing(&before);
}

#[test]
fn windows_that_differ_are_refused_or_told() {
    let (mut job, before) = on_devices(3, 3, BOUNDED);
    must_be_told(&mut job);
    job.must_leave_nothing(&before);
}

/// Mistakes that leave the communicator as it was, and then one that ends it.
pub(super) fn must_be_told(job: &mut Job) {
    let last = job.ranks.len() - 1;
    for rank in &mut job.ranks {
        rank.say(&format!("window_of {}", if rank.number == last { 4001 } else { 4000 }));
    }
    for rank in &job.ranks {
        rank.begun();
        let failure = rank.failure();
        let told = failure.kind == "InvalidArgument" && failure.text.contains("give the same length");
        assert!(told, "rank {}: {}", rank.number, failure.text);
    }
    for (command, direct) in [("window_of 4000", "true"), ("window_inside 4000", "false")] {
        job.begin(command, |_| true);
        job.ranks.iter().for_each(|rank| assert_eq!(rank.success(command), direct, "{command}"));
    }
    // Places that differ: rank 1 is four elements further.
    for rank in &mut job.ranks {
        rank.say(&format!("window_at {} 3000", if rank.number == 1 { 4 } else { 0 }));
    }
    for rank in &job.ranks {
        rank.begun();
        let failure = rank.failure();
        let told =
            failure.kind == "Mismatch" && failure.text.matches("in windows at places with check sum").count() == 2;
        assert!(told, "rank {}: {}", rank.number, failure.text);
    }
}

#[test]
fn a_rank_that_dies_in_windows_is_not_waited_for() {
    let (mut job, _) = on_devices(4, 4, SHM);
    kill_in_windows(&mut job);
    job.must("drop");
}

/// The others get an error that names it, and give their windows back.
pub(super) fn kill_in_windows(job: &mut Job) {
    let command = "window_repeat 3000";
    job.begin(command, |_| true);
    (0..3).for_each(|_| job.ranks[VICTIM].expect_line("turn"));
    job.kill(VICTIM);
    for rank in &job.ranks {
        must_name(VICTIM, rank.number, "repeat all_reduce 3000", &rank.failure());
    }
}
