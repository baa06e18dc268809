//! Processes of a rank each: two on one GPU, where one of them launches for both, or where they take turns; two on two
//! GPUs; four on two GPUs, where one leads on each. What they have captured replays. Nothing is left on a GPU. More of
//! processes on GPUs is in `tests/faults/gpus.rs`.

use crate::matrix::gpu::{must_pass, must_pass_with};

#[test]
fn processes_of_one_gpu() {
    must_pass("1", "gpu_processes::pair::on_one");
}

/// The captured launches of two processes wait for members on their own GPU, and for each other.
#[test]
fn graphs_of_processes_that_share_two_gpus() {
    must_pass("2-nvswitch", "gpu_processes::pair::on_shared_graphs_replay");
}

/// Each way between processes of a host is taken where it is the first that is open, and the log says why.
#[test]
fn graphs_of_processes() {
    let elsewhere = "direct pointer: rank 1 is in another process";
    let cases = [
        ("2-nvswitch", "1", format!("P2P/CUMEM ({elsewhere})")),
        ("2-nvswitch", "0", format!("P2P/IPC ({elsewhere}; CUMEM: rank 1 has NCCL_CUMEM_ENABLE=0)")),
        ("4-pcie", "1", "SHM/pinned (P2P: no peer access".to_owned()),
    ];
    for (machine, descriptors, way) in cases {
        let debug = [("NCCL_CUMEM_ENABLE", descriptors), ("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "P2P,SHM")];
        let told = must_pass_with(machine, "gpu_processes::pair::on_two", &debug);
        assert!(told.contains(&format!("GPU memory : 0 -> 1 via {way}")), "{machine}, {way}:\n{told}");
    }
}

/// By LL in memory of each other's GPU, which comes in two ways, or of the host; and by LL128.
#[test]
fn messages_of_processes() {
    for (machine, setting) in [
        ("2-nvswitch", ("NCCL_CUMEM_ENABLE", "1")),
        ("2-nvswitch", ("NCCL_CUMEM_ENABLE", "0")),
        ("2-nvswitch", ("NCCL_PROTO", "^LL")),
        ("4-pcie", ("NCCL_CUMEM_ENABLE", "1")),
    ] {
        let debug = [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "TUNING"), setting];
        let told = must_pass_with(machine, "gpu_processes::pair::messages_of_two", &debug);
        let protocol = if setting.1 == "^LL" { "LL128" } else { "LL" };
        assert!(told.contains(&format!("Recv: 121 Bytes from rank 0 -> proto {protocol}\n")), "{machine}:\n{told}");
    }
}

/// As if the processes were on two hosts: what is replayed when the communicators have gone ends early.
#[test]
fn graphs_of_processes_that_share_no_memory() {
    let apart =
        [("NCCL_P2P_DISABLE", "1"), ("NCCL_SHM_DISABLE", "1"), ("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "NET")];
    let told = must_pass_with("2-nvswitch", "gpu_processes::pair::on_two", &apart);
    let way = "GPU memory : 0 -> 1 via NET/Socket/0, staged in pinned memory of the host (P2P: NCCL_P2P_DISABLE is set; \
               SHM: NCCL_SHM_DISABLE is set; MNNVL: rank 0: NCCL_P2P_DISABLE is set)";
    assert!(told.contains(way), "{told}");
}

/// Each process is on a host of its own, and works in the other's memory; the graphs keep it when the communicators have
/// gone.
#[test]
fn graphs_of_processes_of_two_hosts_of_a_rack() {
    let debug = [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "P2P")];
    let told = must_pass_with("2x4-mnnvl", "gpu_processes::pair::on_two", &debug);
    let way = "GPU memory : 0 -> 1 via P2P/MNNVL (CUMEM: the rank is on another host)";
    assert!(told.contains(way), "{told}");
}

/// The processes work in each other's memory; their graphs keep it after the windows were given back.
#[test]
fn graphs_of_processes_in_windows() {
    must_pass("2-nvswitch", "gpu_processes::pair::in_windows");
}

/// The graphs have copies in place of kernels, and kernels before and behind them.
#[test]
fn graphs_of_processes_by_copy_engines() {
    let memcpy = [("NCCL_P2P_USE_CUDA_MEMCPY", "1"), ("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "TUNING")];
    let told = must_pass_with("2-nvswitch", "gpu_processes::pair::in_windows", &memcpy);
    for name in ["all_gather", "broadcast"] {
        assert!(told.contains(&format!("{name}: 2 copies by copy engines")), "{name}:\n{told}");
    }
}

/// Averages are finite where the average is: of processes that share a GPU, by one launch and by one each; and of two
/// hosts, over sockets, and over the links of a rack.
#[test]
fn floats_of_processes_that_share_a_gpu() {
    for cohort in ["joint", "split"] {
        must_pass_with("1", "gpu_processes::pair::averages_on_one", &[("RSCCL_COHORT", cohort)]);
    }
}

#[test]
fn floats_between_two_hosts() {
    let debug = [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "P2P,NET")];
    for (machine, way) in [("2x4", "NET/Socket/0"), ("2x4-mnnvl", "P2P/MNNVL")] {
        let told = must_pass_with(machine, "gpu_processes::pair::averages_on_two", &debug);
        assert!(told.contains(&format!("GPU memory : 0 -> 1 via {way}")), "{machine}:\n{told}");
    }
}

mod pair {
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    use cudarc::driver::CudaContext;
    use rsccl::comm::{DeviceBuffer, DeviceStream};
    use rsccl::internals::device::cuda;
    use rsccl::internals::sys::clock::now;
    use rsccl::{Communicator, Config, ReduceOp, Result, UniqueId};

    use crate::TIMEOUT;
    use crate::matrix::averages::{Agreed, averages_in};
    use crate::matrix::floats::Memory;
    use crate::matrix::gpu::streams::{begin, end};
    use crate::matrix::gpu_messages::pair::exchange;

    /// Runs `body` as rank 0, and `other`, an ignored test of this module, as rank 1 in another process.
    fn run(other: &str, body: impl FnOnce(&UniqueId, u32)) {
        run_with(1, other, body);
    }

    /// Runs `body` as rank 0, and `other`, an ignored test of this module, as so many `others`, each in a process: on the
    /// other host of a machine that has one.
    fn run_with(others: u8, other: &str, body: impl FnOnce(&UniqueId, u32)) {
        let host = machine::host();
        if machine::gpus::enough(1, cuda::gpus()).is_none() || host.is_some_and(|host| host > 0) {
            return;
        }
        let id = Communicator::unique_id(&config()).expect("an id");
        let start = |rank: u8| {
            let mut command = Command::new(std::env::current_exe().expect("a program"));
            command.args([&format!("matrix::gpu_processes::pair::{other}"), "--exact", "--ignored", "--nocapture"]);
            command.envs(machine::of_host(1).into_iter().flatten());
            let mut other = command.stdin(Stdio::piped()).spawn().expect("a process");
            let told = other.stdin.take().expect("a pipe").write_all(&[&[rank][..], &id.as_bytes()[..]].concat());
            (other, told)
        };
        let others: Vec<_> = (1..=others).map(start).collect();
        body(&id, 0);
        for (mut other, told) in others {
            assert!(other.wait().expect("it ends").success() && told.is_ok());
        }
    }

    /// Runs `body` as another rank, where [`run_with`] has started this process.
    fn run_other(body: impl FnOnce(&UniqueId, u32)) {
        let mut told = [0; 1 + UniqueId::BYTES];
        if std::io::stdin().read_exact(&mut told).is_ok() {
            assert!(machine::gpus::enough(1, cuda::gpus()).is_some(), "rank 0 has found GPUs");
            body(&UniqueId::from_bytes(&told[1..]).expect("an id"), u32::from(told[0]));
        }
    }

    fn config() -> Config {
        Config::default().with_timeout(TIMEOUT).with_socket_interfaces("lo")
    }

    #[test]
    fn on_one_graphs_replay() {
        run("graphs_of_one", |id, rank| replay_on_one(id, rank).expect("rank 0 ends well"));
    }

    #[test]
    #[ignore = "a rank that `on_one_graphs_replay` starts: alone it is no test"]
    fn graphs_of_one() {
        run_other(|id, rank| replay_on_one(id, rank).expect("rank 1 ends well"));
    }

    fn replay_on_one(id: &UniqueId, rank: u32) -> Result<()> {
        replay((id, rank, 2), 0, |comm, stream, sum, all| {
            comm.on(stream).all_reduce_in_place(sum.slice_mut(..), ReduceOp::Sum)?;
            comm.on(stream).all_gather(sum.slice(..COUNT / 2), all.slice_mut(..))
        })
    }

    #[test]
    fn on_shared_graphs_replay() {
        run_with(3, "graphs_of_shared", |id, rank| replay_on_shared(id, rank).expect("rank 0 ends well"));
    }

    #[test]
    #[ignore = "a rank that `on_shared_graphs_replay` starts: alone it is no test"]
    fn graphs_of_shared() {
        run_other(|id, rank| replay_on_shared(id, rank).expect("another rank ends well"));
    }

    fn replay_on_shared(id: &UniqueId, rank: u32) -> Result<()> {
        replay((id, rank, 4), rank % 2, |comm, stream, sum, all| {
            comm.on(stream).all_reduce_in_place(sum.slice_mut(..), ReduceOp::Sum)?;
            comm.on(stream).all_gather(sum.slice(..COUNT / 4), all.slice_mut(..))
        })
    }

    #[test]
    fn on_one_take_turns() {
        run("turns", |id, rank| take_turns(id, rank).expect("rank 0 ends well"));
    }

    #[test]
    #[ignore = "a rank that `on_one_take_turns` starts: alone it is no test"]
    fn turns() {
        run_other(|id, rank| take_turns(id, rank).expect("rank 1 ends well"));
    }

    fn take_turns(id: &UniqueId, rank: u32) -> Result<()> {
        let comm = Communicator::init(id, rank, 2, &config().with_cohort("split"))?;
        let stream = DeviceStream::new(0)?;
        let (mut sum, mut passed) = (stream.alloc::<u32>(COUNT)?, stream.alloc::<u32>(COUNT)?);
        stream.upload(&[rank + 1; COUNT], sum.slice_mut(..))?;
        let mut found = [[0; COUNT]; 2];
        for _ in 0..5 {
            comm.on(&stream).all_reduce_in_place(sum.slice_mut(..), ReduceOp::Sum)?;
            comm.on(&stream).send_recv(sum.slice(..), 1 - rank, passed.slice_mut(..), 1 - rank)?;
        }
        stream.download(sum.slice(..), &mut found[0])?;
        stream.download(passed.slice(..), &mut found[1])?;
        assert_eq!(found, [[3 << 4; COUNT]; 2]);
        comm.finalize()
    }

    #[test]
    fn averages_on_one_are_finite() {
        run("averages_of_one", |id, rank| average(id, rank).expect("rank 0 ends well"));
    }

    #[test]
    #[ignore = "a rank that `averages_on_one_are_finite` starts: alone it is no test"]
    fn averages_of_one() {
        run_other(|id, rank| average(id, rank).expect("rank 1 ends well"));
    }

    #[test]
    fn averages_on_two_hosts_are_finite() {
        run("averages_of_two_hosts", |id, rank| average(id, rank).expect("rank 0 ends well"));
    }

    #[test]
    #[ignore = "a rank that `averages_on_two_hosts_are_finite` starts: alone it is no test"]
    fn averages_of_two_hosts() {
        run_other(|id, rank| average(id, rank).expect("rank 1 ends well"));
    }

    /// Averages on the first GPU of this rank's host.
    fn average(id: &UniqueId, rank: u32) -> Result<()> {
        let comm = Communicator::init(id, rank, 2, &config())?;
        let memory = Memory::Device(DeviceStream::new(0)?);
        averages_in((&comm, &memory), &[5, 301], ("processes", &Agreed::default()))?;
        comm.finalize()
    }

    #[test]
    fn on_two_graphs_replay() {
        run("graphs", |id, rank| replay_on_two(id, rank).expect("rank 0 ends well"));
    }

    #[test]
    #[ignore = "a rank that `on_two_graphs_replay` starts: alone it is no test"]
    fn graphs() {
        run_other(|id, rank| replay_on_two(id, rank).expect("rank 1 ends well"));
    }

    fn replay_on_two(id: &UniqueId, rank: u32) -> Result<()> {
        replay((id, rank, 2), rank, |comm, stream, sum, passed| {
            comm.on(stream).all_reduce_in_place(sum.slice_mut(..), ReduceOp::Sum)?;
            comm.on(stream).send_recv(sum.slice(..), 1 - rank, passed.slice_mut(..), 1 - rank)
        })
    }

    #[test]
    fn messages_of_two_arrive() {
        run("messages_of_other", |id, rank| send_messages(id, rank).expect("rank 0 ends well"));
    }

    #[test]
    #[ignore = "a rank that `messages_of_two_arrive` starts: alone it is no test"]
    fn messages_of_other() {
        run_other(|id, rank| send_messages(id, rank).expect("rank 1 ends well"));
    }

    fn send_messages(id: &UniqueId, rank: u32) -> Result<()> {
        let comm = Communicator::init(id, rank, 2, &config())?;
        let stream = DeviceStream::new(rank)?;
        for _ in 0..3 {
            exchange(&comm, &stream, &[0, 1, 8, 121, 4_001, 16_384, 16_385, 17, 40_000, 2])?;
        }
        comm.finalize()
    }

    #[test]
    fn in_windows_graphs_replay() {
        run("graphs_of_windows", |id, rank| replay_in_windows(id, rank).expect("rank 0 ends well"));
    }

    #[test]
    #[ignore = "a rank that `in_windows_graphs_replay` starts: alone it is no test"]
    fn graphs_of_windows() {
        run_other(|id, rank| replay_in_windows(id, rank).expect("rank 1 ends well"));
    }

    fn replay_in_windows(id: &UniqueId, rank: u32) -> Result<()> {
        const MANY: usize = 50_000;
        let comm = Communicator::init(id, rank, 2, &config())?;
        let context = CudaContext::new(rank as usize).expect("the primary context");
        let own = [context.new_stream().expect("a stream")];
        let stream = DeviceStream::from_cudarc(&own[0])?;
        let (mut sum, mut all) = (stream.alloc_shareable::<u32>(MANY)?, stream.alloc_shareable::<u32>(2 * MANY)?);
        let (window, of_all) = (comm.register_window(&sum)?, comm.register_window(&all)?);
        assert!(window.is_direct());
        let mut twice = stream.alloc::<u32>(if rank == 1 { MANY } else { 0 })?;
        comm.on(&stream).all_reduce_in_place(sum.slice_mut(..), ReduceOp::Sum)?;
        stream.upload(&[rank + 1; MANY], sum.slice_mut(..))?;
        begin(&own);
        comm.on(&stream).all_reduce_in_place(sum.slice_mut(..), ReduceOp::Sum)?;
        comm.on(&stream).all_gather(sum.slice(..), all.slice_mut(..))?;
        // Rank 1 alone has it, outside of windows, and sends it to both.
        comm.on(&stream).reduce(sum.slice(..), twice.slice_mut(..), ReduceOp::Sum, 1)?;
        comm.on(&stream).broadcast_into(twice.slice(..), all.slice_mut(..MANY), 1)?;
        let graph = end(&own);
        for _ in 0..3 {
            graph.launch().expect("a launch");
            comm.on(&stream).all_reduce_in_place(sum.slice_mut(..), ReduceOp::Max)?;
        }
        let mut found = vec![0; MANY];
        stream.download(sum.slice(..), &mut found)?;
        assert!(found.iter().all(|value| *value == 3 << 2), "{:?}", &found[..8]);
        comm.deregister_window(window)?;
        comm.deregister_window(of_all)?;
        // The graph keeps the memory of both processes.
        graph.launch().expect("a launch");
        stream.download(sum.slice(..), &mut found)?;
        assert!(found.iter().all(|value| *value == 3 << 3), "{:?}", &found[..8]);
        let mut gathered = vec![0; 2 * MANY];
        stream.download(all.slice(..), &mut gathered)?;
        let (sums, gathered) = gathered.split_at(MANY);
        assert!(gathered.iter().all(|value| *value == 3 << 3), "{:?}", &gathered[..8]);
        assert!(sums.iter().all(|value| *value == 3 << 4), "{:?}", &sums[..8]);
        drop((sum, all, twice, stream));
        comm.finalize()?;
        own[0].synchronize().expect("its memory is there");
        drop((graph, own, context));
        wait_until_free(rank)
    }

    /// Each rank captures `calls` on its GPU for itself, and replays as often as the others, between live calls. The calls
    /// leave the sum of all ranks in the first buffer, and sums of all in the second.
    fn replay(
        (id, rank, world): (&UniqueId, u32, u32),
        gpu: u32,
        calls: impl Fn(&Communicator, &DeviceStream, &mut DeviceBuffer<u32>, &mut DeviceBuffer<u32>) -> Result<()>,
    ) -> Result<()> {
        let comm = Communicator::init(id, rank, world, &config())?;
        let once = world * (world + 1) / 2;
        let context = CudaContext::new(gpu as usize).expect("the primary context");
        let own = [context.new_stream().expect("a stream")];
        let stream = DeviceStream::from_cudarc(&own[0])?;
        let (mut sum, mut passed) = (stream.alloc::<u32>(COUNT)?, stream.alloc::<u32>(COUNT)?);
        // The set-up takes the host: live calls before.
        calls(&comm, &stream, &mut sum, &mut passed)?;
        stream.upload(&[rank + 1; COUNT], sum.slice_mut(..))?;
        begin(&own);
        calls(&comm, &stream, &mut sum, &mut passed)?;
        let graph = end(&own);
        for _ in 0..5 {
            (0..3).for_each(|_| graph.launch().expect("a launch"));
            comm.on(&stream).all_reduce_in_place(sum.slice_mut(..), ReduceOp::Max)?;
        }
        let mut found = [[0; COUNT]; 2];
        stream.download(sum.slice(..), &mut found[0])?;
        stream.download(passed.slice(..), &mut found[1])?;
        assert_eq!(found, [[once * world.pow(14); COUNT]; 2]);
        // It begins on the GPU when the first one has gone, and is given what that one has left.
        let second = comm.split(Some(0), 0)?.expect("all ranks");
        comm.finalize()?;
        let mut second_sums = || -> Result<()> {
            stream.upload(&[rank + 1; COUNT], sum.slice_mut(..))?;
            calls(&second, &stream, &mut sum, &mut passed)?;
            stream.download(sum.slice(..), &mut found[0])?;
            assert_eq!(found[0], [once; COUNT]);
            Ok(())
        };
        second_sums()?;
        // The graph keeps the memory of both processes, and the words by which it is told to end.
        graph.launch().expect("a launch");
        own[0].synchronize().expect("its memory is there");
        // Where it waits for the other process it has ended early, and the first wait says so.
        if let Err(error) = stream.synchronize() {
            assert!(error.message().contains("has ended early"), "{error}");
        }
        second_sums()?;
        drop((sum, passed, stream));
        second.finalize()?;
        drop((graph, own, context));
        wait_until_free(gpu)
    }

    /// Memory of a graph is given back by a thread, behind the graph's end.
    fn wait_until_free(gpu: u32) -> Result<()> {
        let (gpu, deadline) = (&cuda::gpus().expect("it was there")[gpu as usize], now() + TIMEOUT);
        while gpu.is_in_use() {
            assert!(now() < deadline, "nothing is left");
            std::thread::yield_now();
        }
        Ok(())
    }

    const COUNT: usize = 300;
}
