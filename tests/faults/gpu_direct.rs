//! GPU memory between hosts by a network plug-in that takes it (GPUDirect RDMA): a stand-in in C that reaches memory of
//! virtual GPUs as a NIC does, and lets nobody see what has come before it was flushed.

use crate::faults::gpus::must_pass_test;

/// On GPUs that may see a NIC's writes out of order.
fn must_pass(job: &str) {
    let machine = concat!(env!("CARGO_MANIFEST_DIR"), "/data/two-hosts.toml");
    must_pass_test(machine, &format!("faults::gpu_direct::jobs::{job}"), &[]);
}

#[test]
fn a_plug_in_takes_gpu_memory_as_a_dma_buf() {
    must_pass("by_dma_buf");
}

#[test]
fn a_plug_in_takes_gpu_memory_by_its_address() {
    must_pass("by_address");
}

#[test]
fn ends_with_gpu_memory_and_with_host_memory_understand_each_other() {
    must_pass("by_one_end_alone");
}

#[test]
fn settings_and_refusals_leave_gpu_memory_to_the_host() {
    must_pass("not_at_all");
    must_pass("not_as_the_nic_refuses");
}

/// What runs on a machine.
mod jobs {
    use rsccl::internals::device::cuda;

    use crate::faults::gpus::jobs::{BOUNDED, on_gpus_each};
    use machine::gpus::enough;
    use testing::random;

    /// What the ranks have logged, and the lines of the plug-in.
    struct Run {
        logs: Vec<String>,
    }

    impl Run {
        /// Runs a bit of everything by a plug-in of these options; `None` without GPUs. `variables` are those of each
        /// rank.
        fn of<'v>(options: &[&str], variables: impl Fn(usize) -> Vec<(&'v str, &'v str)>) -> Option<Run> {
            enough(1, cuda::gpus())?;
            if machine::host() != Some(0) {
                return None;
            }
            let folder = tempfile::Builder::new().prefix("plugin").tempdir_in("/tmp").unwrap();
            let options = [&["LOOPBACK=1"], options].concat();
            let file = machine::net_plugin::stand_in(folder.path(), "plugin.so", &options)?;
            let file = file.to_string_lossy().into_owned();
            let all = |rank: usize| {
                let more = variables(rank).into_iter().chain([
                    ("NCCL_NET_PLUGIN", file.as_str()),
                    ("NCCL_DEBUG_SUBSYS", "INIT,NET"),
                    // So that messages go round their slots.
                    ("NCCL_BUFFSIZE", "65536"),
                ]);
                BOUNDED.iter().copied().chain(more).collect()
            };
            let (mut job, _) = on_gpus_each(2, all)?;
            job.must(&format!("cases {} 1003", random::seed()));
            job.must("call all_reduce 40000");
            job.must("device_ring 5000");
            job.must("drop");
            let logs = job.ranks.iter().map(|rank| rank.log()).collect::<Vec<_>>();
            for log in &logs {
                assert!(!log.contains("stand-in of a plug-in: "), "it found fault with its caller:\n{log}");
            }
            Some(Run { logs })
        }

        /// The plug-in's lines of one rank on GPU memory: what became of it, by so many registrations of each kind.
        fn lines(&self, rank: usize) -> Vec<&str> {
            self.logs[rank].lines().filter(|line| line.contains(" of GPU memory were ")).collect()
        }

        fn must_say(&self, rank: usize, words: &str) {
            assert!(self.logs[rank].contains(words), "{words}:\n{}", self.logs[rank]);
        }
    }

    const EVERYWHERE: (&str, &str) = ("NCCL_NET_GDR_LEVEL", "SYS");
    const NOWHERE: (&str, &str) = ("NCCL_NET_GDR_LEVEL", "LOC");

    /// Connections each way have lines; what was received was flushed.
    fn must_go_direct(run: &Run, rank: usize, by: &str) {
        let lines = run.lines(rank);
        let (sent, came): (Vec<&str>, Vec<&str>) = lines.iter().partition(|line| line.contains(" were sent: "));
        assert!(!sent.is_empty() && !came.is_empty(), "{lines:#?}\n{}", run.logs[rank]);
        assert!(lines.iter().all(|line| line.contains(by)), "{lines:#?}");
        assert!(came.iter().all(|line| !line.contains(", 0 flushes")), "{lines:#?}");
        assert!(sent.iter().all(|line| line.contains(", 0 flushes")), "{lines:#?}");
    }

    #[test]
    fn by_dma_buf() {
        let options = ["VERSIONS=4", "POINTERS=7", "FLUSH=1", "AGAIN_EVERY=5", "LATE=1"];
        let Some(run) = Run::of(&options, |_| vec![EVERYWHERE]) else { return };
        for rank in [0, 1] {
            run.must_say(rank, "GPUDirect RDMA: yes, between ");
            run.must_say(rank, "PHB is within NCCL_NET_GDR_LEVEL=SYS");
            must_go_direct(&run, rank, ": 1 registrations by DMA-BUF, 0 by address");
        }
    }

    #[test]
    fn by_address() {
        let options = ["VERSIONS=1", "POINTERS=3", "FLUSH=1"];
        let Some(run) = Run::of(&options, |_| vec![EVERYWHERE]) else { return };
        for rank in [0, 1] {
            must_go_direct(&run, rank, ": 0 registrations by DMA-BUF, 1 by address");
        }
    }

    /// Rank 0 has its payloads on the GPU, and rank 1 those that it receives alone.
    #[test]
    fn by_one_end_alone() {
        let options = ["POINTERS=7", "FLUSH=1", "AGAIN_EVERY=3"];
        let settings = [vec![EVERYWHERE], vec![EVERYWHERE, ("NCCL_NET_GDR_READ", "0")]];
        let Some(run) = Run::of(&options, |rank| settings[rank].clone()) else { return };
        must_go_direct(&run, 0, " by DMA-BUF");
        run.must_say(1, "receives alone (NCCL_NET_GDR_READ)");
        assert!(run.lines(1).iter().all(|line| line.contains(" were asked for: ")), "{:#?}", run.lines(1));
        let settings = [vec![EVERYWHERE, ("NCCL_DMABUF_ENABLE", "0")], vec![NOWHERE]];
        let Some(run) = Run::of(&options, |rank| settings[rank].clone()) else { return };
        must_go_direct(&run, 0, ": 0 registrations by DMA-BUF, 1 by address");
        assert!(run.lines(1).is_empty(), "{:#?}", run.lines(1));
    }

    /// A NIC whose place nobody knows is too far away, unless the user says otherwise; and a plug-in may take none.
    #[test]
    fn not_at_all() {
        let far = "PHB is beyond NCCL_NET_GDR_LEVEL=PXB: data go through host memory, for a NIC whose place is not known \
                   counts as PHB";
        for (options, level, why) in [
            ("POINTERS=7", None, far),
            ("POINTERS=7", Some(NOWHERE), "PHB is beyond NCCL_NET_GDR_LEVEL=LOC"),
            ("POINTERS=1", Some(EVERYWHERE), "this NIC takes memory of the host alone"),
        ] {
            let Some(run) = Run::of(&[options], |_| level.into_iter().collect()) else { return };
            for rank in [0, 1] {
                run.must_say(rank, "GPUDirect RDMA: no, between ");
                run.must_say(rank, why);
                assert!(run.lines(rank).is_empty(), "{:#?}", run.lines(rank));
            }
        }
    }

    /// All looked well, and then the plug-in does not register the memory.
    #[test]
    fn not_as_the_nic_refuses() {
        let Some(run) = Run::of(&["POINTERS=5", "NO_DMA_BUF=1"], |_| vec![EVERYWHERE]) else { return };
        for rank in [0, 1] {
            run.must_say(
                rank,
                "GPU memory goes through the host's, though GPUDirect RDMA would do: net plug-in Stand-in: ",
            );
            run.must_say(rank, "regMrDmaBuf gives ncclUnhandledCudaError (1); it takes no addresses of GPUs");
            assert!(run.lines(rank).is_empty(), "{:#?}", run.lines(rank));
        }
    }
}
