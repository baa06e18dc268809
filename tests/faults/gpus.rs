//! Ranks that are processes, with a GPU each, or several to a GPU where they take turns: calls of all kinds, deaths,
//! mistakes. The tests of `jobs` do nothing where there is no GPU; the others start them again on virtual machines.

use crate::machine;

/// Runs one of the jobs on a machine, on which it must leave nothing, but for what a rank held when it was killed.
fn must_pass(name: &str, job: &str) {
    let test = format!("faults::gpus::jobs::{job}");
    let run = machine::run(name, &[], &[&test, "--exact"], &[]);
    run.must_pass(&format!("{name}, {job}"));
    let victims = run.output.lines().filter_map(|line| line.split_once(VICTIM_IS)).map(|(_, process)| process);
    let victims: Vec<String> = victims.map(|process| format!("by process {}", process.trim())).collect();
    let leaks = run.output.lines().skip_while(|line| !line.starts_with("vcuda: leaked")).skip(1);
    let others: Vec<&str> = leaks.filter(|leak| !victims.iter().any(|victim| leak.ends_with(victim))).collect();
    assert!(others.is_empty(), "{name}, {job}: {others:#?}");
}

/// What a job prints before the number of a process that it kills.
const VICTIM_IS: &str = "the victim is process ";

#[test]
fn processes_of_two_gpus() {
    must_pass("2-nvswitch", "a_sample_of_the_matrix");
}

#[test]
fn processes_of_two_gpus_by_handles() {
    must_pass("2-nvswitch", "the_sample_by_handles");
}

#[test]
fn processes_of_eight_gpus() {
    must_pass("8-nvswitch", "eight_ranks");
}

#[test]
fn processes_that_each_see_one_gpu() {
    must_pass("2-nvswitch", "each_sees_one_gpu");
}

#[test]
fn a_process_that_is_killed_is_named_by_kernels_that_wait_for_it() {
    must_pass("4-nvswitch", "a_rank_is_killed");
}

#[test]
fn threads_of_processes_share_their_gpu() {
    must_pass("2-nvswitch", "threads_in_processes");
}

#[test]
fn processes_take_turns_on_gpus_where_the_user_says_so() {
    must_pass("2-nvswitch", "two_processes_a_gpu");
    must_pass("1", "a_rank_of_a_shared_gpu_is_killed");
}

#[test]
fn an_abort_ends_the_kernels_of_all_processes() {
    must_pass("2-nvswitch", "an_abort");
}

#[test]
fn processes_whose_calls_differ_are_told() {
    must_pass("2-nvswitch", "calls_differ");
}

#[test]
fn a_process_that_does_not_come_is_named_at_the_deadline() {
    must_pass("2-nvswitch", "a_deadline");
}

/// What the ranks have for each other lies in memory of the host.
#[test]
fn processes_of_gpus_that_do_not_reach_each_other() {
    must_pass("4-pcie", "a_sample_of_the_matrix");
    must_pass("4-pcie", "a_rank_is_killed");
    must_pass("4-pcie", "each_sees_one_gpu");
}

/// Some of them reach each other.
#[test]
fn processes_of_a_mesh() {
    must_pass("8-cube-mesh", "eight_ranks");
    must_pass("8-cube-mesh", "a_rank_of_a_mesh_is_killed");
}

#[test]
fn processes_of_gpus_of_two_hosts_are_refused() {
    must_pass("2-nvswitch", "two_hosts");
}

/// What runs on a machine.
mod jobs {
    use std::io::Write;

    use rsccl::internals::device::cuda;

    use super::super::deaths::{must_go_on, must_name};
    use super::super::ranks::Job;
    use super::VICTIM_IS;
    use crate::{SHM, random, with};

    /// A hang becomes an error before the test gives up.
    const BOUNDED: &[(&str, &str)] = &[("NCCL_SOCKET_IFNAME", "lo"), ("RSCCL_TIMEOUT_MS", "20000")];
    /// The rank that dies.
    const VICTIM: usize = 2;

    /// Ranks that have joined, and what each held before; `None` where there is no GPU. Each is on a GPU of its own,
    /// where there are as many, else neighbours share one.
    fn on_gpus(ranks: usize, variables: &[(&str, &str)]) -> Option<(Job, Vec<(usize, usize)>)> {
        let gpus = cuda::gpus().ok()?.len().min(ranks);
        let mut job = Job::start(ranks, variables);
        // What the driver makes once for all is there from now on.
        for rank in &mut job.ranks {
            rank.must(&format!("gpu {}", rank.number * gpus / ranks));
            rank.must("host");
        }
        let before = job.holdings();
        job.join();
        for rank in &mut job.ranks {
            rank.must(&format!("gpu {}", rank.number * gpus / ranks));
        }
        Some((job, before))
    }

    /// Of ranks that share GPUs.
    const TURNS: &[(&str, &str)] = &[("NCCL_SOCKET_IFNAME", "lo"), ("RSCCL_COHORT", "split")];

    #[test]
    fn a_sample_of_the_matrix() {
        let Some((mut job, before)) = on_gpus(2, BOUNDED) else { return };
        job.must(&format!("cases {} 9011", random::seed()));
        job.must("device_ring 1000");
        job.must_leave_nothing(&before);
        for algorithm in ["Ring", "Tree"] {
            let forced = with(BOUNDED, &[("NCCL_ALGO", algorithm), ("NCCL_PROTO", "Simple")]);
            let Some((mut job, before)) = on_gpus(2, &forced) else { return };
            job.must("call all_reduce 1");
            job.must("call all_reduce 9011");
            job.must_leave_nothing(&before);
        }
    }

    #[test]
    fn the_sample_by_handles() {
        let Some((mut job, before)) = on_gpus(2, &with(BOUNDED, &[("NCCL_CUMEM_ENABLE", "0")])) else { return };
        job.must(&format!("cases {} 2003", random::seed()));
        job.must("device_ring 1000");
        job.must_leave_nothing(&before);
    }

    #[test]
    fn eight_ranks() {
        let Some((mut job, before)) = on_gpus(8, BOUNDED) else { return };
        for command in ["call all_reduce 1003", "call all_gather 300", "call reduce_scatter 300", "device_ring 100"] {
            job.must(command);
        }
        job.must_leave_nothing(&before);
    }

    /// As launchers do it that set `CUDA_VISIBLE_DEVICES` for each rank.
    #[test]
    fn each_sees_one_gpu() {
        if cuda::gpus().is_err() {
            return;
        }
        let seen = ["0", "1"];
        let mut job = Job::start_each(2, |rank| (Vec::new(), with(BOUNDED, &[("CUDA_VISIBLE_DEVICES", seen[rank])])));
        job.join();
        job.must("gpu 0");
        job.must("call all_reduce 1003");
        job.must("drop");
    }

    #[test]
    fn two_hosts() {
        if cuda::gpus().is_err() {
            return;
        }
        let hosts = ["one", "two"];
        let mut job = Job::start_each(2, |rank| (Vec::new(), with(BOUNDED, &[("NCCL_HOSTID", hosts[rank])])));
        job.join();
        for rank in &mut job.ranks {
            rank.must(&format!("gpu {}", rank.number));
        }
        job.begin("call all_reduce 1000", |_| true);
        for rank in &job.ranks {
            let failure = rank.failure();
            assert_eq!(failure.kind, "InvalidUsage", "rank {}: {}", rank.number, failure.text);
            assert!(failure.text.contains("it is on another host"), "{}", failure.text);
        }
        job.must("drop");
    }

    /// Each process has the threads of one GPU, whose ranks launch together.
    #[test]
    fn threads_in_processes() {
        if cuda::gpus().is_err() {
            return;
        }
        let mut job = Job::start(2, BOUNDED);
        job.make_id();
        for rank in &mut job.ranks {
            let number = rank.number;
            rank.say(&format!("gpu_crowd {} {} 2 4 {number} {}", job.id, 2 * number, random::seed()));
        }
        for rank in &job.ranks {
            rank.begun();
            rank.success("gpu_crowd");
        }
        job.must("drop");
    }

    #[test]
    fn two_processes_a_gpu() {
        let Some((mut job, before)) = on_gpus(4, &with(BOUNDED, &[("RSCCL_COHORT", "split")])) else { return };
        for command in ["call all_reduce 1003", "call all_gather 300", "device_ring 100"] {
            job.must(command);
        }
        job.must_leave_nothing(&before);
    }

    #[test]
    fn a_rank_is_killed() {
        killed(&["call all_reduce 3000", "repeat all_reduce 3000"], SHM);
    }

    #[test]
    fn a_rank_of_a_shared_gpu_is_killed() {
        killed(&["repeat all_reduce 300"], TURNS);
    }

    #[test]
    fn a_rank_of_a_mesh_is_killed() {
        // Rings pass links where there are some.
        killed_of(8, &["repeat all_reduce 3000"], &with(SHM, &[("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "Simple")]));
    }

    fn killed(commands: &[&str], variables: &[(&str, &str)]) {
        killed_of(4, commands, variables);
    }

    fn killed_of(ranks: usize, commands: &[&str], variables: &[(&str, &str)]) {
        for command in commands {
            let Some((mut job, before)) = on_gpus(ranks, variables) else { return };
            let repeats = command.starts_with("repeat");
            if !repeats {
                job.must(command);
            }
            job.begin(command, |rank| repeats || rank != VICTIM);
            if repeats {
                (0..3).for_each(|_| job.ranks[VICTIM].expect_line("turn"));
            }
            let process = job.ranks[VICTIM].process();
            writeln!(std::io::stderr(), "{VICTIM_IS}{process}").expect("standard error is open");
            job.kill(VICTIM);
            for rank in &job.ranks {
                must_name(VICTIM, rank.number, command, &rank.failure());
            }
            must_go_on(&mut job, VICTIM, &command.replace("repeat", "call"), &before);
        }
    }

    #[test]
    fn an_abort() {
        let Some((mut job, before)) = on_gpus(2, BOUNDED) else { return };
        job.must("call all_reduce 1000");
        job.begin("call all_reduce 1000", |rank| rank == 0);
        job.ranks[0].say("abort enough of this");
        let failure = job.ranks[0].failure();
        assert_eq!(failure.kind, "Aborted", "{}", failure.text);
        let failure = job.ranks[1].fails("call all_reduce 1000");
        assert_eq!(failure.kind, "Aborted", "{}", failure.text);
        assert!(failure.text.contains("rank 0") && failure.text.contains("enough of this"), "{}", failure.text);
        job.must_leave_nothing(&before);
    }

    #[test]
    fn calls_differ() {
        let Some((mut job, before)) = on_gpus(2, BOUNDED) else { return };
        job.must("call all_reduce 1000");
        job.begin("call all_reduce 1000", |rank| rank == 0);
        job.begin("call all_reduce 17", |rank| rank == 1);
        for rank in &job.ranks {
            let failure = rank.failure();
            assert_eq!(failure.kind, "Mismatch", "rank {}: {}", rank.number, failure.text);
            assert!(["1000", "17"].iter().all(|count| failure.text.contains(count)), "{}", failure.text);
        }
        job.must_leave_nothing(&before);
    }

    #[test]
    fn a_deadline() {
        let short = [("NCCL_SOCKET_IFNAME", "lo"), ("RSCCL_TIMEOUT_MS", "2000")];
        let Some((mut job, before)) = on_gpus(2, &short) else { return };
        job.must("call all_reduce 1000");
        job.begin("call all_reduce 1000", |rank| rank == 0);
        let failure = job.ranks[0].failure();
        assert_eq!(failure.kind, "Timeout", "{}", failure.text);
        job.must_leave_nothing(&before);
    }
}
