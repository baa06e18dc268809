//! Ranks that are processes, with a GPU each, or all on one, or several to a GPU where they take turns: calls of all
//! kinds, deaths, mistakes. The tests of `jobs` do nothing where there is no GPU; the others start them again on virtual machines.

/// Runs one of the jobs on a machine, on which it must leave nothing, but for what a rank held when it was killed.
pub(super) fn must_pass(name: &str, job: &str) {
    must_pass_with(name, job, &[]);
}

fn must_pass_with(name: &str, job: &str, environment: &[(&str, &str)]) {
    must_pass_test(name, &format!("faults::gpus::jobs::{job}"), environment);
}

/// The same for any test of this program.
pub(super) fn must_pass_test(name: &str, test: &str, environment: &[(&str, &str)]) {
    let run = machine::run(name, &[], &[test, "--exact"], environment);
    run.must_pass(&format!("{name}, {test}"));
    let victims = run.output.lines().filter_map(|line| line.split_once(VICTIM_IS)).map(|(_, process)| process);
    let victims: Vec<String> = victims.map(|process| format!("by process {}", process.trim())).collect();
    let leaks = run.output.lines().skip_while(|line| !line.starts_with("vcuda: leaked")).skip(1);
    let others: Vec<&str> = leaks.filter(|leak| !victims.iter().any(|victim| leak.ends_with(victim))).collect();
    assert!(others.is_empty(), "{name}, {test}: {others:#?}");
}

/// What a job prints before the number of a process that it kills.
pub(super) const VICTIM_IS: &str = "the victim is process ";

#[test]
fn processes_of_two_gpus() {
    must_pass("2-nvswitch", "a_sample_of_the_matrix");
}

#[test]
fn processes_of_two_gpus_by_handles() {
    must_pass("2-nvswitch", "the_sample_by_handles");
}

/// Receivers read from the senders' memory.
#[test]
fn processes_of_two_gpus_that_read() {
    for job in ["a_sample_of_the_matrix", "the_sample_by_handles"] {
        must_pass_with("2-nvswitch", job, &[("NCCL_P2P_READ_ENABLE", "1")]);
    }
}

#[test]
fn processes_of_eight_gpus() {
    must_pass("8-nvswitch", "eight_ranks");
}

#[test]
fn processes_work_in_windows() {
    for job in [
        "in_windows",
        "in_windows_by_handles",
        "in_windows_of_threads",
        "in_windows_differ",
        "in_windows_of_own_memory",
        "in_windows_by_copy_engines",
    ] {
        must_pass("2-nvswitch", job);
    }
    must_pass("8-nvswitch", "in_windows_of_eight");
    must_pass("4-nvswitch", "in_windows_one_is_killed");
    must_pass("4-pcie", "in_windows_that_cannot_be_reached");
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
fn processes_of_one_gpu() {
    must_pass("1", "one_gpu_for_all");
}

#[test]
fn processes_of_one_gpu_with_buffers_longer_than_their_stages() {
    must_pass("1", "calls_in_pieces");
}

#[test]
fn threads_of_processes_on_one_gpu() {
    must_pass("1", "threads_in_processes_of_one_gpu");
}

#[test]
fn a_member_that_is_killed_is_named_by_all_whose_gpu_it_shared() {
    must_pass("1", "a_member_is_killed");
}

#[test]
fn a_leader_that_is_killed_is_named_by_all_whose_gpu_it_shared() {
    must_pass("1", "a_leader_is_killed");
}

#[test]
fn mistakes_of_processes_of_one_gpu_are_told() {
    must_pass("1", "calls_differ_on_one_gpu");
    must_pass("1", "aborts_on_one_gpu");
    must_pass("1", "deadlines_on_one_gpu");
}

/// Some sandboxes have no memory operations of streams.
#[test]
fn processes_of_one_gpu_whose_streams_cannot_wait_for_each_other() {
    must_pass_with("1", "no_memory_operations", &[("VCUDA_FAIL", "cuStreamBatchMemOp_v2:1+:801")]);
}

/// Of the processes only the leader's launches kernels, of which one fails in its second call: no member waits for it.
#[test]
fn a_leader_whose_driver_fails_lets_its_members_go_on() {
    must_pass_with("1", "the_driver_fails", &[("VCUDA_FAIL", "cuLaunchKernel:5:999")]);
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

/// Two that do not reach each other, and one between them.
#[test]
fn processes_over_another_gpu() {
    let machine = concat!(env!("CARGO_MANIFEST_DIR"), "/data/gpu-between.toml");
    must_pass(machine, "over_another_gpu");
    must_pass(machine, "a_lender_is_killed");
}

/// Kernels of each host send to those of the other through pinned memory and sockets.
#[test]
fn processes_of_two_hosts() {
    must_pass("2x4", "two_hosts");
}

#[test]
fn processes_of_eight_gpus_of_two_hosts() {
    must_pass("2x4", "eight_ranks");
    must_pass("2x4", "eight_ranks_by_trees");
}

#[test]
fn threads_of_two_hosts() {
    must_pass("2x4", "threads_of_hosts");
}

/// GPUs of one host that do not reach each other, and another host.
#[test]
fn processes_of_two_hosts_whose_gpus_do_not_reach_each_other() {
    must_pass("4-pcie", "two_halves_of_a_host");
}

#[test]
fn a_process_of_the_other_host_that_is_killed_is_named() {
    must_pass("2x4", "a_rank_is_killed");
}

#[test]
fn a_process_that_is_killed_while_graphs_replay_between_hosts_is_named() {
    must_pass("2x4", "killed_while_graphs_replay");
    must_pass("4-pcie", "killed_while_graphs_of_half_a_host_replay");
}

#[test]
fn every_call_that_fails_on_memory_of_the_program_is_an_error_and_leaves_nothing() {
    must_pass("2-nvswitch", "each_call_on_allocated_memory_fails");
    must_pass("2-nvswitch", "each_call_on_mapped_memory_fails");
}

#[test]
fn mistakes_between_hosts_are_told() {
    for job in ["an_abort", "calls_differ", "a_deadline"] {
        must_pass("2x4", job);
    }
}

/// What runs on a machine.
pub(super) mod jobs {
    use std::io::Write;

    use rsccl::internals::device::cuda;

    use super::super::deaths::{must_go_on, must_name};
    use super::super::{graph_deaths, own_faults, windows};
    use super::VICTIM_IS;
    use crate::{SHM, with};
    use machine::gpus::enough;
    use testing::random;
    use testing::ranks::Job;

    /// A hang becomes an error before the test gives up.
    pub(in crate::faults) const BOUNDED: &[(&str, &str)] =
        &[("NCCL_SOCKET_IFNAME", "lo"), ("RSCCL_TIMEOUT_MS", "20000")];
    /// The rank that dies.
    const VICTIM: usize = 2;

    /// Ranks that have joined, and what each held before; `None` where there is no GPU. Each is on a GPU of its own,
    /// where there are as many, else neighbours share one. On a machine of two hosts, the second half is on the other
    /// host.
    pub(in crate::faults) fn on_gpus(ranks: usize, variables: &[(&str, &str)]) -> Option<(Job, Vec<(usize, usize)>)> {
        on_gpus_each(ranks, |_| variables.to_vec())
    }

    /// The same with variables for each rank.
    pub(in crate::faults) fn on_gpus_each<'v>(
        ranks: usize,
        variables: impl Fn(usize) -> Vec<(&'v str, &'v str)>,
    ) -> Option<(Job, Vec<(usize, usize)>)> {
        on_gpus_placed(ranks, |rank| (Vec::new(), variables(rank)))
    }

    /// The same, with words before each rank's program.
    pub(in crate::faults) fn on_gpus_placed<'v>(
        ranks: usize,
        of: impl Fn(usize) -> (Vec<String>, Vec<(&'v str, &'v str)>),
    ) -> Option<(Job, Vec<(usize, usize)>)> {
        let gpus = enough(1, cuda::gpus())?;
        let hosts = hosts()?;
        let of_host = ranks.div_ceil(hosts.len());
        let gpus = gpus.len().min(of_host);
        let gpu = |rank: usize| format!("gpu {}", rank % of_host * gpus / of_host);
        let placed = |rank: usize| {
            let host = hosts[rank / of_host].iter().map(|(name, value)| (name.as_str(), value.as_str()));
            let (prefix, variables) = of(rank);
            (prefix, variables.into_iter().chain(host).collect())
        };
        let mut job = Job::start_each(ranks, placed);
        // What the driver makes once for all is there from now on.
        for rank in &mut job.ranks {
            rank.must(&gpu(rank.number));
            rank.must("host");
        }
        let before = job.holdings();
        job.join();
        for rank in &mut job.ranks {
            rank.must(&gpu(rank.number));
        }
        Some((job, before))
    }

    /// The variables of processes of each host of the machine. `None` for the tests of the second host: those of the
    /// first start ranks there too. A machine with real GPUs, where `bench/gpu-check` runs some of these tests, is one host.
    fn hosts() -> Option<Vec<Vec<(String, String)>>> {
        let Some(host) = machine::host() else { return machine::is_real().then(|| vec![Vec::new()]) };
        match (host, machine::of_host(1)) {
            (0, Some(second)) => Some(vec![machine::of_host(0)?, second]),
            (0, None) => Some(vec![Vec::new()]),
            _ => None,
        }
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
        let Some((mut job, before)) = on_gpus(2, &with(BOUNDED, &[("NCCL_CUMEM_ENABLE", "0"), SIMPLE])) else { return };
        job.must(&format!("cases {} 2003", random::seed()));
        job.must("device_ring 1000");
        job.must_leave_nothing(&before);
    }

    #[test]
    fn eight_ranks() {
        some_calls_of(8);
    }

    /// A few calls of many ranks, which leave nothing.
    pub(in crate::faults) fn some_calls_of(ranks: usize) {
        let Some((mut job, before)) = on_gpus(ranks, BOUNDED) else { return };
        for command in ["call all_reduce 1003", "call all_gather 300", "call reduce_scatter 300", "device_ring 100"] {
            job.must(command);
        }
        job.must_leave_nothing(&before);
    }

    #[test]
    fn eight_ranks_by_trees() {
        let trees = with(BOUNDED, &[("NCCL_ALGO", "Tree"), ("NCCL_PROTO", "Simple")]);
        let Some((mut job, before)) = on_gpus(8, &trees) else { return };
        job.must("call all_reduce 1");
        job.must("call all_reduce 9011");
        job.must_leave_nothing(&before);
    }

    /// Small calls too work in peers' memory.
    pub(in super::super) const SIMPLE: (&str, &str) = ("NCCL_PROTO", "Simple");

    #[test]
    fn in_windows() {
        let Some((mut job, before)) = on_gpus(2, &with(BOUNDED, &[SIMPLE])) else { return };
        windows::must_run(&mut job, 9_011, true);
        windows::must_run(&mut job, 3, true);
        job.must_leave_nothing(&before);
    }

    #[test]
    fn in_windows_by_copy_engines() {
        let memcpy = ("NCCL_P2P_USE_CUDA_MEMCPY", "1");
        let Some((mut job, before)) = on_gpus(2, &with(BOUNDED, &[SIMPLE, memcpy])) else { return };
        windows::must_run(&mut job, 9_011, true);
        windows::must_run_as(&mut job, "own_windows alloc 3001", true);
        job.must_leave_nothing(&before);
    }

    #[test]
    fn in_windows_by_handles() {
        let Some((mut job, before)) = on_gpus(2, &with(BOUNDED, &[("NCCL_CUMEM_ENABLE", "0"), SIMPLE])) else { return };
        windows::must_run(&mut job, 9_011, true);
        job.must_leave_nothing(&before);
    }

    #[test]
    fn in_windows_of_eight() {
        let Some((mut job, before)) = on_gpus(8, &with(BOUNDED, &[SIMPLE])) else { return };
        windows::must_run(&mut job, 1_003, true);
        job.must_leave_nothing(&before);
    }

    #[test]
    fn in_windows_of_own_memory() {
        let Some((mut job, before)) = on_gpus(2, &with(BOUNDED, &[SIMPLE])) else { return };
        let direct = ["alloc", "map", "parts", "many", "mixed"].map(|kind| (kind, true));
        for (kind, direct) in direct.into_iter().chain([("closed", false), ("pool", false)]) {
            windows::must_run_as(&mut job, &format!("own_windows {kind} 3001"), direct);
        }
        job.must_leave_nothing(&before);
    }

    #[test]
    fn in_windows_that_cannot_be_reached() {
        let Some((mut job, before)) = on_gpus(2, BOUNDED) else { return };
        windows::must_run(&mut job, 1_003, false);
        job.must_leave_nothing(&before);
    }

    #[test]
    fn in_windows_differ() {
        let Some((mut job, before)) = on_gpus(2, &with(BOUNDED, &[SIMPLE])) else { return };
        windows::must_be_told(&mut job);
        job.must_leave_nothing(&before);
    }

    #[test]
    fn in_windows_one_is_killed() {
        let Some((mut job, _)) = on_gpus(4, &with(SHM, &[SIMPLE])) else { return };
        let process = job.ranks[VICTIM].process();
        writeln!(std::io::stderr(), "{VICTIM_IS}{process}").expect("standard error is open");
        windows::kill_in_windows(&mut job);
        job.must("drop");
    }

    /// Each process has the threads of one GPU.
    #[test]
    fn in_windows_of_threads() {
        if enough(2, cuda::gpus()).is_none() {
            return;
        }
        let mut job = Job::start(2, BOUNDED);
        job.make_id();
        for rank in &mut job.ranks {
            let number = rank.number;
            rank.say(&format!("window_crowd {} {} 2 4 {number} 2003", job.id, 2 * number));
        }
        for rank in &job.ranks {
            rank.begun();
            rank.success("window_crowd");
        }
        job.must("drop");
    }

    /// As launchers do it that set `CUDA_VISIBLE_DEVICES` for each rank.
    #[test]
    fn each_sees_one_gpu() {
        if enough(2, cuda::gpus()).is_none() {
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
        let told = with(BOUNDED, &[("NCCL_DEBUG_SUBSYS", "NET"), SMALL_SLOTS]);
        let Some((mut job, before)) = on_gpus(2, &told) else { return };
        job.must(&format!("cases {} 1003", random::seed()));
        job.must("call all_reduce 40000");
        job.must("device_ring 1000");
        assert!(job.ranks[0].log().contains("GPU memory : 0 -> 1 via NET/Socket/0"), "{}", job.ranks[0].log());
        job.must_leave_nothing(&before);
    }

    /// Two ranks say that they are on another host than the other two.
    #[test]
    fn two_halves_of_a_host() {
        if enough(4, cuda::gpus()).is_none() {
            return;
        }
        let hosts = ["one", "one", "two", "two"];
        let mut job = Job::start_each(4, |rank| (Vec::new(), with(BOUNDED, &[("NCCL_HOSTID", hosts[rank])])));
        job.join();
        for rank in &mut job.ranks {
            rank.must(&format!("gpu {}", rank.number));
        }
        for call in ["all_reduce 1003", "all_reduce 9011", "all_gather 300", "all_to_all 300", "broadcast 2003"] {
            job.must(&format!("call {call}"));
        }
        job.must("device_ring 100");
        job.must("drop");
    }

    /// A process for each host: with a thread for each GPU, and with two on one.
    #[test]
    fn threads_of_hosts() {
        crowds_on(4, 4);
        crowds_on(2, 1);
    }

    pub(in crate::faults) fn crowds_on(threads: usize, gpus: usize) {
        if enough(gpus, cuda::gpus()).is_none() {
            return;
        }
        let Some(hosts) = hosts() else { return };
        let variables =
            |process: usize| hosts[process % hosts.len()].iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let placed = |process: usize| (Vec::new(), BOUNDED.iter().copied().chain(variables(process)).collect());
        let mut job = Job::start_each(2, placed);
        job.make_id();
        for rank in &mut job.ranks {
            let (first, world) = (threads * rank.number, 2 * threads);
            rank.say(&format!("gpus_crowd {} {first} {threads} {world} {gpus} {}", job.id, random::seed()));
        }
        for rank in &job.ranks {
            rank.begun();
            rank.success("gpus_crowd");
        }
        job.must("drop");
    }

    #[test]
    fn one_gpu_for_all() {
        for ranks in [2, 3] {
            let Some((mut job, before)) = on_gpus(ranks, BOUNDED) else { return };
            job.must(&format!("cases {} 9011", random::seed()));
            job.must("device_ring 100");
            job.must("call all_reduce 1");
            job.must_leave_nothing(&before);
        }
    }

    #[test]
    fn calls_in_pieces() {
        let small = with(BOUNDED, &[("RSCCL_SCRATCH_BYTES", "65536")]);
        let Some((mut job, before)) = on_gpus(3, &small) else { return };
        for call in
            ["all_reduce 40003", "broadcast 40003", "all_gather 20001", "reduce_scatter 20001", "all_to_all 20001"]
        {
            job.must(&format!("call {call}"));
        }
        job.must_leave_nothing(&before);
    }

    /// Each process has the threads of one GPU, whose ranks launch together.
    #[test]
    fn threads_in_processes() {
        crowds(&|process| process);
    }

    /// Each process has two ranks on the one GPU.
    #[test]
    fn threads_in_processes_of_one_gpu() {
        crowds(&|_| 0);
    }

    fn crowds(gpu: &dyn Fn(usize) -> usize) {
        if enough(1, cuda::gpus()).is_none() {
            return;
        }
        let mut job = Job::start(2, BOUNDED);
        job.make_id();
        for rank in &mut job.ranks {
            let number = rank.number;
            let gpu = gpu(number);
            rank.say(&format!("gpu_crowd {} {} 2 4 {gpu} {}", job.id, 2 * number, random::seed()));
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
        killed(VICTIM, &["call all_reduce 3000", "repeat all_reduce 3000"], SHM);
    }

    #[test]
    fn a_rank_of_a_shared_gpu_is_killed() {
        killed(VICTIM, &["repeat all_reduce 300"], TURNS);
    }

    #[test]
    fn a_member_is_killed() {
        killed(VICTIM, &["call all_reduce 3000", "repeat all_reduce 3000"], SHM);
    }

    #[test]
    fn a_leader_is_killed() {
        killed(0, &["call all_reduce 3000", "repeat all_reduce 3000"], SHM);
    }

    #[test]
    fn a_rank_of_a_mesh_is_killed() {
        // Rings pass links where there are some.
        let rings = with(SHM, &[("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "Simple")]);
        killed_of((VICTIM, 8), &["repeat all_reduce 3000"], &rings);
    }

    /// Rank 1 lends the others memory of its GPU. Handed over by a descriptor, it stays when that process has gone; by
    /// a handle it would not, and is not used.
    #[test]
    fn over_another_gpu() {
        let told = with(BOUNDED, &[("NCCL_DEBUG_SUBSYS", "P2P,SHM"), ("NCCL_BUFFSIZE", "16384")]);
        for (descriptors, way) in [("1", "P2P/indirect/1 (without a GPU between"), ("0", "SHM/pinned (P2P")] {
            let Some((mut job, before)) = on_gpus(3, &with(&told, &[("NCCL_CUMEM_ENABLE", descriptors)])) else {
                return;
            };
            job.must("device_ring 1000");
            let (log, way) = (job.ranks[0].log(), format!("GPU memory : 0 -> 2 via {way}: no peer access"));
            assert!(log.contains(&way), "{way}:\n{log}");
            if descriptors == "1" {
                job.ranks.remove(1).end();
                for (rank, peer) in [(0, 2), (1, 0)] {
                    job.ranks[rank].say(&format!("device_pass 20011 {peer}"));
                }
                for rank in &job.ranks {
                    rank.begun();
                    rank.success("device_pass");
                }
            }
            job.must_leave_nothing(&before);
        }
    }

    #[test]
    fn a_lender_is_killed() {
        killed_of((1, 3), &["repeat all_gather 3000"], SHM);
    }

    fn killed(victim: usize, commands: &[&str], variables: &[(&str, &str)]) {
        killed_of((victim, 4), commands, variables);
    }

    pub(in crate::faults) fn killed_of((victim, ranks): (usize, usize), commands: &[&str], variables: &[(&str, &str)]) {
        for command in commands {
            let Some((mut job, before)) = on_gpus(ranks, variables) else { return };
            let repeats = command.starts_with("repeat");
            if !repeats {
                job.must(command);
            }
            job.begin(command, |rank| repeats || rank != victim);
            if repeats {
                (0..3).for_each(|_| job.ranks[victim].expect_line("turn"));
            }
            let process = job.ranks[victim].process();
            writeln!(std::io::stderr(), "{VICTIM_IS}{process}").expect("standard error is open");
            job.kill(victim);
            for rank in &job.ranks {
                must_name(victim, rank.number, command, &rank.failure());
            }
            must_go_on(&mut job, victim, &command.replace("repeat", "call"), &before);
        }
    }

    /// Slots of 8 KiB, so that a call goes round its queues.
    const SMALL_SLOTS: (&str, &str) = ("NCCL_BUFFSIZE", "65536");

    /// Two ranks on each of two hosts.
    #[test]
    fn killed_while_graphs_replay() {
        graph_deaths::each_is_named(&|| on_gpus(4, &with(BOUNDED, &[SMALL_SLOTS])), &|rank| rank % 2);
    }

    /// On GPUs that do not reach each other.
    #[test]
    fn killed_while_graphs_of_half_a_host_replay() {
        let hosts = ["one", "one", "two", "two"];
        let start = || on_gpus_each(4, |rank| with(BOUNDED, &[SMALL_SLOTS, ("NCCL_HOSTID", hosts[rank])]));
        graph_deaths::each_is_named(&start, &|rank| rank);
    }

    #[test]
    fn each_call_on_allocated_memory_fails() {
        own_faults::each_call_fails("alloc", 4);
    }

    #[test]
    fn each_call_on_mapped_memory_fails() {
        own_faults::each_call_fails("parts", 8);
    }

    #[test]
    fn an_abort() {
        aborted_by(0, 2);
    }

    /// By the leader, which waits for a member; and by a member.
    #[test]
    fn aborts_on_one_gpu() {
        aborted_by(0, 3);
        aborted_by(1, 3);
    }

    fn aborted_by(aborting: usize, ranks: usize) {
        let Some((mut job, before)) = on_gpus(ranks, BOUNDED) else { return };
        job.must("call all_reduce 1000");
        job.begin("call all_reduce 1000", |rank| rank == aborting);
        job.ranks[aborting].say("abort enough of this");
        let failure = job.ranks[aborting].failure();
        assert_eq!(failure.kind, "Aborted", "{}", failure.text);
        for rank in (0..ranks).filter(|rank| *rank != aborting) {
            // What the aborting rank had sent is there: a call that finds it may still end, and is right.
            let failure = job.ranks[rank].fails("repeat all_reduce 1000");
            assert_eq!(failure.kind, "Aborted", "{}", failure.text);
            let told = [format!("rank {aborting}"), "enough of this".to_owned()];
            assert!(told.iter().all(|words| failure.text.contains(words)), "{}", failure.text);
        }
        job.must_leave_nothing(&before);
    }

    #[test]
    fn calls_differ() {
        one_differs(1, [1000, 17], 2);
    }

    /// A member from the others, and the leader from its members.
    #[test]
    fn calls_differ_on_one_gpu() {
        one_differs(2, [1000, 17], 3);
        one_differs(0, [17, 1000], 3);
    }

    /// A member from its leader, whose programs another GPU waits for: what the leader does for a member that has called
    /// something else reaches no rank.
    #[test]
    fn a_member_beside_another_gpu_differs() {
        one_differs(1, [1000, 17], 3);
    }

    /// One rank calls with `other_count`: results of the longer calls are wrong until the mismatch is known.
    fn one_differs(other: usize, [count, other_count]: [u32; 2], ranks: usize) {
        let Some((mut job, before)) = on_gpus(ranks, BOUNDED) else { return };
        job.must("call all_reduce 1000");
        job.begin(&format!("call all_reduce {count}"), |rank| rank != other);
        job.begin(&format!("call all_reduce {other_count}"), |rank| rank == other);
        for rank in &job.ranks {
            let failure = rank.failure();
            assert_eq!(failure.kind, "Mismatch", "rank {}: {}", rank.number, failure.text);
            assert!(["1000", "17"].iter().all(|count| failure.text.contains(count)), "{}", failure.text);
        }
        job.must_leave_nothing(&before);
    }

    #[test]
    fn a_deadline() {
        late(1, 2);
    }

    #[test]
    fn deadlines_on_one_gpu() {
        late(1, 3);
        late(0, 3);
    }

    /// Regression: when the deadline of the leader had passed, its stream went on without the member that had not come.
    /// It ran that member's program on what the call before had left, and the rank of the other GPU got wrong sums.
    #[test]
    fn the_deadline_of_a_leader_comes_first() {
        let timeouts = ["2000", "60000", "60000"];
        let of = |rank: usize| vec![("NCCL_SOCKET_IFNAME", "lo"), ("RSCCL_TIMEOUT_MS", timeouts[rank])];
        let Some((mut job, before)) = on_gpus_each(3, of) else { return };
        job.must("call all_reduce 1000");
        job.begin("call all_reduce 1000", |rank| rank != 1);
        for rank in [0, 2] {
            let failure = job.ranks[rank].failure();
            let told = ["timed out after 2.0 s", "rank 1"];
            assert!(told.iter().all(|words| failure.text.contains(words)), "rank {rank}: {}", failure.text);
        }
        job.must_leave_nothing(&before);
    }

    /// Rank `late` does not come.
    fn late(late: usize, ranks: usize) {
        let short = [("NCCL_SOCKET_IFNAME", "lo"), ("RSCCL_TIMEOUT_MS", "2000")];
        let Some((mut job, before)) = on_gpus(ranks, &short) else { return };
        job.must("call all_reduce 1000");
        job.begin("call all_reduce 1000", |rank| rank != late);
        for rank in job.ranks.iter().filter(|rank| rank.number != late) {
            let failure = rank.failure();
            // The first of them may have told the others.
            let told = ["timed out after 2.0 s".to_owned(), format!("rank {late}")];
            assert!(told.iter().all(|words| failure.text.contains(words)), "{}", failure.text);
        }
        job.must_leave_nothing(&before);
    }

    #[test]
    fn no_memory_operations() {
        let Some((mut job, before)) = on_gpus(2, BOUNDED) else { return };
        job.begin("call all_reduce 1000", |_| true);
        for rank in &job.ranks {
            let failure = rank.failure();
            assert_eq!(failure.kind, "InvalidUsage", "rank {}: {}", rank.number, failure.text);
            let told = ["streams of several processes cannot wait for each other", "RSCCL_COHORT=split"];
            assert!(told.iter().all(|words| failure.text.contains(words)), "{}", failure.text);
        }
        job.must_leave_nothing(&before);
    }

    #[test]
    fn the_driver_fails() {
        let Some((mut job, before)) = on_gpus(3, BOUNDED) else { return };
        job.must("call all_reduce 1000");
        job.begin("call all_reduce 1000", |_| true);
        for rank in &job.ranks {
            let failure = rank.failure();
            assert!(failure.text.contains("cuLaunchKernel"), "rank {}: {}", rank.number, failure.text);
        }
        job.must_leave_nothing(&before);
    }
}
