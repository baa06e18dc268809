//! Ranks that are processes on hosts of one rack, whose GPUs NVLinks join across the hosts: which way each pair takes,
//! and what is wrong when memory does not cross. The jobs of `gpus` run there too.

use super::gpus::{must_pass, must_pass_test};

/// Runs one of the jobs of this file as [`must_pass`] does.
fn must_pass_here(name: &str, job: &str) {
    must_pass_test(name, &format!("faults::rack::jobs::{job}"), &[]);
}

/// Kernels of each host work in the memory of the other, to which NVLinks lead.
#[test]
fn processes_of_two_hosts_of_a_rack() {
    must_pass_here("2x4-mnnvl", "two_hosts_of_a_rack");
    must_pass("2x4-mnnvl", "eight_ranks");
    must_pass("2x4-mnnvl", "eight_ranks_by_trees");
}

#[test]
fn threads_of_two_hosts_of_a_rack() {
    must_pass("2x4-mnnvl", "threads_of_hosts");
}

/// Some pairs go by NVLinks, others by the network.
#[test]
fn a_rank_of_a_rack_that_goes_by_the_network() {
    must_pass_here("2x4-mnnvl", "one_of_four_by_the_network");
}

#[test]
fn hosts_of_a_rack_go_by_the_network_where_nvlinks_are_not_wanted_or_fail() {
    must_pass_here("2x4-mnnvl", "not_by_nvlinks");
    must_pass_here("2x4-mnnvl", "trials_that_fail");
    must_pass_here(RACK_WITHOUT_CHANNEL, "without_a_channel");
    must_pass_here("2x4", "without_a_clique");
}

#[test]
fn hosts_that_must_go_by_nvlinks_and_cannot_are_told() {
    must_pass_here(RACK_WITHOUT_CHANNEL, "must_go_by_nvlinks");
    must_pass_here("2x4-mnnvl", "two_hosts_that_must");
}

#[test]
fn a_graph_file_that_hosts_do_not_use_is_told() {
    must_pass_here("2x4-mnnvl", "a_graph_file_of_one_host");
}

const RACK_WITHOUT_CHANNEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/rack-without-channel.toml");

/// After the trial has worked.
#[test]
fn calls_of_the_driver_that_fail_between_hosts_of_a_rack_are_errors_that_leave_nothing() {
    must_pass_here("2x4-mnnvl", "the_driver_fails_after_the_trial");
}

#[test]
fn a_process_of_the_other_host_of_a_rack_that_is_killed_is_named() {
    must_pass("2x4-mnnvl", "a_rank_is_killed");
}

#[test]
fn mistakes_between_hosts_of_a_rack_are_told() {
    for job in ["an_abort", "calls_differ", "a_deadline"] {
        must_pass("2x4-mnnvl", job);
    }
}

/// The thread that moves what GPUs send to another host, and the one that watches their kernels.
#[test]
fn threads_of_gpus_stand_on_the_node_of_their_gpu() {
    let machine = concat!(env!("CARGO_MANIFEST_DIR"), "/data/two-hosts-of-nodes.toml");
    must_pass_here(machine, "threads_near_their_gpu");
}

/// What runs on a machine.
mod jobs {
    use super::super::gpus::jobs::{BOUNDED, on_gpus, on_gpus_each, on_gpus_placed};
    use crate::with;
    use rsccl::internals::sys::numa;
    use std::io::Write;
    use std::path::Path;
    use std::process::Command;
    use testing::random;
    use testing::ranks::{self, Job};

    /// What the ranks tell of their ways.
    const TOLD: (&str, &str) = ("NCCL_DEBUG_SUBSYS", "P2P,NET");

    #[track_caller]
    fn must_go(job: &Job, (rank, peer): (usize, usize), way: &str) {
        let (log, line) = (job.ranks[rank].log(), format!("GPU memory : {rank} -> {peer} via {way}"));
        assert!(log.contains(&line), "{line}\n{log}");
    }

    #[test]
    fn two_hosts_of_a_rack() {
        two_hosts("2");
    }

    #[test]
    fn two_hosts_that_must() {
        two_hosts("1");
    }

    /// Between hosts channels are searched for: nobody reads the file, and rank 0 says so.
    #[test]
    fn a_graph_file_of_one_host() {
        let no_graphs = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let Some((mut job, before)) = on_gpus(4, &with(BOUNDED, &[("NCCL_GRAPH_FILE", no_graphs)])) else { return };
        job.must("call all_reduce 20011");
        let told = |rank: &usize| job.ranks[*rank].log().contains("is not used: it has the channels of one host");
        assert_eq!((0..4).filter(told).collect::<Vec<usize>>(), [0], "{}", job.ranks[0].log());
        job.must_leave_nothing(&before);
    }

    fn two_hosts(enabled: &str) {
        // Slots of 8 KiB, so that a call goes round its queues.
        let more = [TOLD, ("NCCL_BUFFSIZE", "65536"), ("NCCL_MNNVL_ENABLE", enabled)];
        let Some((mut job, before)) = on_gpus(2, &with(BOUNDED, &more)) else { return };
        job.must(&format!("cases {} 1003", random::seed()));
        job.must("call all_reduce 40000");
        job.must("device_ring 1000");
        must_go(&job, (0, 1), "P2P/MNNVL (CUMEM: the rank is on another host)");
        must_go(&job, (1, 0), "P2P/MNNVL (CUMEM: the rank is on another host)");
        job.must_leave_nothing(&before);
    }

    #[test]
    fn one_of_four_by_the_network() {
        let of_rank = |rank| with(BOUNDED, &[TOLD, ("NCCL_MNNVL_ENABLE", if rank == 1 { "0" } else { "2" })]);
        let Some((mut job, before)) = on_gpus_each(4, of_rank) else { return };
        for command in ["call all_reduce 20011", "call all_to_all 2003", "call all_gather 300", "device_ring 1000"] {
            job.must(command);
        }
        must_go(&job, (0, 2), "P2P/MNNVL");
        for (rank, peer) in [(1, 2), (2, 1)] {
            let reason = "P2P: the rank is on another host; SHM: the rank is on another host; MNNVL: rank 1: \
                          NCCL_MNNVL_ENABLE is 0";
            must_go(&job, (rank, peer), &format!("NET/Socket/0, staged in pinned memory of the host ({reason}"));
        }
        job.must_leave_nothing(&before);
    }

    type Variables<'v> = &'v [(&'v str, &'v str)];

    /// Two ranks of two hosts, with variables of both and of rank 1, work by NET, of which both tell this reason.
    fn by_net((both, last): (Variables<'_>, Variables<'_>), reason: &str) {
        let told = with(&with(BOUNDED, &[TOLD]), both);
        let of_rank = |rank| with(&told, if rank == 1 { last } else { &[] });
        let Some((mut job, before)) = on_gpus_each(2, of_rank) else { return };
        job.must("call all_reduce 9011");
        job.must("device_ring 1000");
        for (rank, peer) in [(0, 1), (1, 0)] {
            must_go(&job, (rank, peer), "NET/Socket/0, staged in pinned memory of the host");
            let log = job.ranks[rank].log();
            let why = log.split("; MNNVL: rank ").nth(1).and_then(|why| why.get(1..)).unwrap_or_default();
            assert!(why.trim_start_matches(": ").starts_with(reason), "{reason}\n{log}");
        }
        job.must_leave_nothing(&before);
    }

    #[test]
    fn not_by_nvlinks() {
        // These must be equal on all ranks.
        by_net((&[("NCCL_P2P_DISABLE", "1")], &[]), "NCCL_P2P_DISABLE is set");
        by_net((&[("NCCL_P2P_LEVEL", "LOC")], &[]), "NCCL_P2P_LEVEL is LOC");
        by_net((&[], &[("NCCL_MNNVL_ENABLE", "0")]), "NCCL_MNNVL_ENABLE is 0");
        by_net((&[], &[("NCCL_CUMEM_ENABLE", "0")]), "NCCL_CUMEM_ENABLE is 0");
    }

    /// Calls that are made for the trial alone, or there first.
    #[test]
    fn trials_that_fail() {
        for (call, reason) in [
            ("cuMemExportToShareableHandle:2", "GPU 0: cuMemExportToShareableHandle"),
            ("cuMemImportFromShareableHandle:1", " could not map memory of rank 0: a peer's fabric handle: "),
        ] {
            by_net((&[], &[("VCUDA_FAIL", call)]), reason);
        }
    }

    #[test]
    fn without_a_channel() {
        by_net((&[], &[]), "GPU 0: cuMemCreate with fabric handles: CUDA_ERROR_NOT_PERMITTED (800)");
    }

    #[test]
    fn without_a_clique() {
        by_net((&[], &[]), "GPU-");
    }

    #[test]
    fn must_go_by_nvlinks() {
        let of_rank = |rank| with(BOUNDED, &[("NCCL_MNNVL_ENABLE", if rank == 1 { "1" } else { "2" })]);
        let Some((mut job, before)) = on_gpus_each(2, of_rank) else { return };
        job.begin("call all_reduce 3000", |_| true);
        for rank in &job.ranks {
            let failure = rank.failure();
            assert_eq!(failure.kind, "InvalidUsage", "{}", failure.text);
            assert!(failure.text.contains("NCCL_MNNVL_ENABLE is 1 on rank 1"), "{}", failure.text);
            assert!(failure.text.contains("NOT_PERMITTED"), "{}", failure.text);
        }
        job.must_leave_nothing(&before);
    }

    #[test]
    fn the_driver_fails_after_the_trial() {
        // The trial makes and maps one piece of memory; the next ones are what the rank brings, and a queue.
        for call in [
            "cuMemCreate:3",
            "cuMemExportToShareableHandle:4",
            "cuMemImportFromShareableHandle:2",
            "cuMemImportFromShareableHandle:3",
        ] {
            let of_rank = |rank| if rank == 1 { with(BOUNDED, &[("VCUDA_FAIL", call)]) } else { BOUNDED.to_vec() };
            let Some((mut job, before)) = on_gpus_each(2, of_rank) else { return };
            job.begin("call all_reduce 3000", |_| true);
            for rank in &job.ranks {
                let failure = rank.failure();
                let name = call.split(':').next().expect("a name");
                assert!(failure.text.contains(name), "{call}, rank {}: {}", rank.number, failure.text);
            }
            job.must_leave_nothing(&before);
        }
    }

    /// Two processors of this process, as the kernel numbers them; `None` where it has but one.
    fn two_processors() -> Option<[u32; 2]> {
        let own = allowed(Path::new("/proc/thread-self/status"));
        Some([*own.first()?, *own.get(1)?])
    }

    /// The processors that a thread may use, by its file of `/proc`; none where the thread has ended.
    fn allowed(status: &Path) -> Vec<u32> {
        let text = std::fs::read_to_string(status).unwrap_or_default();
        let list = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or_default();
        numa::list(list).expect("the kernel writes a list")
    }

    /// The folders of a test, and the system's in whose place its ranks see them.
    const MOUNTS: [(&str, &str); 3] =
        [("driver", "/proc/driver"), ("devices", "/sys/bus/pci/devices"), ("node", "/sys/devices/system/node")];

    /// The words before a rank's program, which sees the GPU of `uuid` on NUMA node `node` of two, each with one of
    /// `processors`.
    fn on_nodes(folder: &Path, (uuid, node): (&str, usize), processors: [u32; 2]) -> Vec<String> {
        let put = |path: &str, text: &str| {
            let path = folder.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("driver/nvidia/gpus/0000:3b:00.0/information", &format!("GPU UUID: {uuid}\nDevice Minor: 0\n"));
        put("devices/0000:3b:00.0/numa_node", &format!("{node}\n"));
        for (number, processor) in processors.iter().enumerate() {
            put(&format!("node/node{number}/cpulist"), &format!("{processor}\n"));
        }
        let mounts = MOUNTS.map(|(made, seen)| format!("mount --bind \"$0\"/{made} {seen} && "));
        let script = format!("{}exec \"$@\"", mounts.concat());
        let folder = folder.to_str().expect("the path of a test's folder is text");
        ["unshare", "--mount", "sh", "-c", &script, folder].map(str::to_owned).to_vec()
    }

    /// The processors of the threads of this name.
    fn processors_of(process: u32, name: &str) -> Vec<Vec<u32>> {
        let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
        let tasks = tasks.map(|task| task.unwrap().path());
        let named =
            |task: &std::path::PathBuf| std::fs::read_to_string(task.join("comm")).is_ok_and(|own| own.trim() == name);
        tasks.filter(named).map(|task| allowed(&task.join("status"))).collect()
    }

    #[test]
    fn threads_near_their_gpu() {
        let are_there = MOUNTS.iter().all(|(_, seen)| Path::new(seen).is_dir());
        let unshare = || Command::new("unshare").args(["--mount", "true"]).status();
        let may_mount = are_there && unshare().is_ok_and(|status| status.success());
        let (Some(processors), true) = (two_processors(), may_mount) else {
            let needed = "two processors, root, and the folders of the kernel in whose place they are shown";
            writeln!(std::io::stderr(), "skipped: two NUMA nodes need {needed}").unwrap();
            return;
        };
        let folder = tempfile::tempdir().unwrap();
        let gpus = [("GPU-00112233-4455-6677-8899-aabbccddee00", 1), ("GPU-00112233-4455-6677-8899-aabbccddee01", 0)];
        let prefix = |rank: usize| on_nodes(&folder.path().join(rank.to_string()), gpus[rank], processors);
        let Some((mut job, before)) = on_gpus_placed(2, |rank| (prefix(rank), BOUNDED.to_vec())) else { return };
        job.must("call all_reduce 20011");
        for rank in &job.ranks {
            let near = vec![vec![processors[gpus[rank.number].1]]];
            for name in ["rsccl progress", "rsccl service"] {
                // The thread moves in its first round, and the call may end before.
                let what = format!("{name} of rank {} stands on {near:?}", rank.number);
                ranks::until(&what, || processors_of(rank.process(), name) == near);
            }
        }
        job.must_leave_nothing(&before);
    }
}
