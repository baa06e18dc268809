//! Processes of which several share each of several GPUs: one leads on each. The jobs run on virtual machines, as those of
//! `gpus` do, and some of those run here too.

use super::gpus::{must_pass as must_pass_of_gpus, must_pass_test};

fn must_pass(machine: &str, job: &str) {
    must_pass_test(machine, &format!("faults::shared_gpus::jobs::{job}"), &[]);
}

/// One process of each GPU launches for all there, and its kernels wait for those of the other GPU.
#[test]
fn processes_that_share_several_gpus() {
    must_pass("2-nvswitch", "shared_gpus");
    must_pass_of_gpus("2-nvswitch", "calls_in_pieces");
    must_pass("2-nvswitch", "threads_in_processes_of_two_gpus");
}

/// GPUs that do not reach each other, and some that do.
#[test]
fn processes_that_share_gpus_in_pairs() {
    must_pass_of_gpus("4-pcie", "eight_ranks");
    must_pass("4-pcie", "a_member_beside_is_killed");
    must_pass("8-cube-mesh", "ten_ranks");
}

#[test]
fn ranks_that_are_killed_are_named_by_processes_that_share_several_gpus() {
    must_pass("2-nvswitch", "a_member_beside_is_killed");
    for job in ["a_leader_is_killed", "a_rank_is_killed"] {
        must_pass_of_gpus("2-nvswitch", job);
    }
}

#[test]
fn mistakes_of_processes_that_share_several_gpus_are_told() {
    for job in ["calls_differ_on_one_gpu", "aborts_on_one_gpu", "deadlines_on_one_gpu"] {
        must_pass_of_gpus("2-nvswitch", job);
    }
}

/// Two ranks are on one GPU, and the third on another, which learns of no mistake from what the two send it.
#[test]
fn no_rank_of_another_gpu_gets_what_a_member_has_not_brought() {
    for job in ["a_member_beside_another_gpu_differs", "the_deadline_of_a_leader_comes_first"] {
        must_pass_of_gpus("2-nvswitch", job);
    }
}

/// On each GPU of machines of eight.
#[test]
fn two_processes_of_each_of_eight_gpus() {
    must_pass("8-nvswitch", "two_of_each_gpu");
    must_pass("8-cube-mesh", "two_of_each_gpu");
}

/// Nobody can lead there: processes take turns, and the log says so.
#[test]
fn processes_of_two_hosts_that_share_gpus_take_turns() {
    must_pass("1", "shared_gpus_of_two_hosts");
    must_pass("2x4", "two_of_each_gpu");
}

/// What runs on a machine.
mod jobs {
    use rsccl::internals::device::cuda;

    use super::super::gpus::jobs::{BOUNDED, crowds_on, killed_of, on_gpus, some_calls_of};
    use crate::{SHM, with};
    use machine::gpus::enough;
    use testing::random;
    use testing::ranks::Job;

    /// Two ranks on each of two GPUs, and two on one and one on the other.
    #[test]
    fn shared_gpus() {
        for ranks in [4, 3] {
            let Some((mut job, before)) = on_gpus(ranks, BOUNDED) else { return };
            job.must(&format!("cases {} 9011", random::seed()));
            job.must("device_ring 100");
            job.must("call all_reduce 1");
            job.must_leave_nothing(&before);
        }
    }

    #[test]
    fn ten_ranks() {
        some_calls_of(10);
    }

    #[test]
    fn two_of_each_gpu() {
        some_calls_of(16);
    }

    /// Two ranks of each of two processes on each of two GPUs: one process leads on both.
    #[test]
    fn threads_in_processes_of_two_gpus() {
        crowds_on(4, 2);
    }

    /// Rank 1, which is never the lowest on its GPU.
    #[test]
    fn a_member_beside_is_killed() {
        let Some(gpus) = enough(1, cuda::gpus()) else { return };
        let ranks = if gpus.len() > 2 { 8 } else { 4 };
        killed_of((1, ranks), &["call all_reduce 3000", "repeat all_reduce 3000"], SHM);
    }

    /// Processes 0 and 1 are on one host, and 2 and 3 on the other, as `NCCL_HOSTID` says.
    #[test]
    fn shared_gpus_of_two_hosts() {
        if enough(1, cuda::gpus()).is_none() {
            return;
        }
        let told = with(BOUNDED, &[("NCCL_DEBUG", "WARN")]);
        let hosts = ["one", "one", "two", "two"];
        let mut job = Job::start_each(4, |rank| (Vec::new(), with(&told, &[("NCCL_HOSTID", hosts[rank])])));
        for rank in &mut job.ranks {
            rank.must("gpu 0");
            rank.must("host");
        }
        let before = job.holdings();
        job.join();
        for rank in &mut job.ranks {
            rank.must("gpu 0");
        }
        job.must("call all_reduce 1003");
        job.must("call all_gather 300");
        let log = job.ranks[0].log();
        assert!(log.contains("ranks 0 and 1 are processes that share a GPU"), "{log}");
        job.must_leave_nothing(&before);
    }
}
