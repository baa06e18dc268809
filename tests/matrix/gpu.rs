//! The same cases in the memory of a GPU, for ranks that share it: this program's tests of the module `alone`, started
//! again on a virtual machine (`vcuda`).

mod faults;
mod lent;
pub(crate) mod streams;

use std::collections::BTreeMap;

use testing::random;

use crate::is_exhaustive;

/// Runs the tests of this program whose names have `filter` in them on a virtual machine: whether all is well, what
/// was printed.
fn on_machine(name: &str, filter: &str, environment: &[(&str, &str)]) -> machine::Run {
    // The streams of a GPU share eight hardware queues: the kernels of two tests, each on several GPUs, could stand in
    // one order in a queue of one GPU, in the other order on another GPU, and wait for each other.
    let threads = if filter.contains("several") { "--test-threads=1" } else { "--test-threads=2" };
    machine::run(name, &["--strict"], &[filter, threads], environment)
}

/// Expects that some tests ran, that all passed, and that nothing was left on the GPU.
pub(crate) fn must_pass(machine: &str, filter: &str) {
    must_pass_with(machine, filter, &[]);
}

/// The same with these variables; returns what was printed.
pub(crate) fn must_pass_with(machine: &str, filter: &str, environment: &[(&str, &str)]) -> String {
    let run = on_machine(machine, filter, environment);
    run.must_pass(&format!("{machine}, {filter}"));
    run.output
}

#[test]
fn ranks_of_one_gpu() {
    must_pass("1", "gpu::alone::");
}

#[test]
fn streams_of_programs() {
    for test in ["calls_take", "the_handles", "a_captured", "ranks_in_separate"] {
        must_pass("1", &format!("gpu::streams::{test}"));
    }
}

#[test]
fn slices_of_cudarc_are_lent() {
    for test in ["slices_of_any", "memory_lives", "what_is_lent", "nothing_is_lent"] {
        must_pass("1", &format!("gpu::lent::{test}"));
    }
    must_pass("2-nvswitch", "gpu::lent::on_several_gpus");
}

#[test]
fn every_call_of_the_driver_that_fails_is_an_error_and_leaves_nothing() {
    every_call_fails("1");
}

/// The same of ranks that work through memory of the host.
#[test]
fn every_call_that_fails_between_gpus_that_do_not_reach_each_other() {
    every_call_fails("4-pcie");
}

/// Seeds of weak memory: with each, stores become visible in another order. A few in each run, from a place that is
/// printed; all of them with `RSCCL_EXHAUSTIVE=1`.
pub(crate) fn seeds_of_weak_memory(test: &str) -> Vec<u64> {
    if is_exhaustive() {
        return (1..=SEEDS).collect();
    }
    let first = random::changing_seed(&format!("matrix {test} --features cuda"));
    (0..SEEDS).step_by(SEEDS_APART).map(|step| 1 + (first % SEEDS + step) % SEEDS).collect()
}

pub(crate) const SEEDS: u64 = 20;
const SEEDS_APART: usize = 5;

pub(crate) fn every_call_fails(machine: &str) {
    const TEST: &str = "gpu::faults::communicators_work_again";
    let run = on_machine(machine, TEST, &[("VCUDA_DEBUG", "1")]);
    run.must_pass(machine);
    let output = run.output;
    // How often each function is called.
    let mut calls = BTreeMap::<&str, usize>::new();
    for (name, _) in output.lines().filter_map(|line| line.strip_prefix("vcuda: ")?.split_once(": ")) {
        *calls.entry(name).or_default() += 1;
    }
    calls.retain(|name, _| name.starts_with("cu"));
    assert!(calls.len() > 25, "{calls:?}");
    // Each fails at its first call; then, in another run, in the midst of an attempt.
    for part in [usize::MAX, 4] {
        let faults: Vec<String> = calls.iter().map(|(name, count)| format!("{name}:{}", 1 + count / part)).collect();
        let faults = faults.join(",");
        let machine::Run { succeeded, output, .. } = on_machine(machine, TEST, &[("VCUDA_FAIL", &faults)]);
        assert!(succeeded, "{faults}:\n{output}");
        let told = output.lines().find_map(|line| line.strip_prefix("calls that failed: ")?.parse::<usize>().ok());
        // Some are made again, or are calls of destructors; and of two ranks that fail in one attempt one is named.
        assert!(told.is_some_and(|told| told > 10), "{faults}:\n{output}");
    }
}

#[test]
fn ranks_of_two_gpus() {
    must_pass("2-nvswitch", "gpu::several::on_two");
}

#[test]
fn memory_of_pools_between_gpus() {
    must_pass("2-nvswitch", "gpu::streams::on_several_gpus_calls_work");
    must_pass("2-nvswitch", "gpu::streams::on_several_gpus_a_hook");
}

#[test]
fn memory_of_the_program_between_gpus() {
    must_pass("2-nvswitch", "gpu::streams::on_several_gpus_windows");
    must_pass("2-nvswitch", "gpu::streams::on_several_gpus_memory");
}

/// The driver maps no memory, so that `cuMemAlloc` has to do, which waits for kernels.
#[test]
fn ranks_of_a_gpu_whose_driver_maps_no_memory() {
    let machine = concat!(env!("CARGO_MANIFEST_DIR"), "/data/no-virtual-memory.toml");
    let test = "gpu::alone::calls_follow_each_other";
    let output = must_pass_with(machine, test, &[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "ALLOC")]);
    assert!(output.contains("1 passed"), "{output}");
    assert!(output.contains("GPU 0: the driver maps no memory (virtual memory management)"), "{output}");
}

#[test]
fn ranks_of_eight_gpus() {
    must_pass("8-nvswitch", "gpu::several::on_eight");
}

/// Four GPUs of a mesh, all with links to each other, but not as many between each two.
#[test]
fn ranks_of_a_mesh() {
    must_pass("8-cube-mesh", "gpu::several::on_a_mesh");
}

/// On the GPUs that do not reach each other a hundred replays, and the thousand with `RSCCL_EXHAUSTIVE=1`.
#[test]
fn captured_calls_of_two_gpus() {
    let test = "gpu::streams::on_several_gpus_captured";
    must_pass("2-nvswitch", test);
    let rounds = if is_exhaustive() { "all" } else { "1" };
    must_pass_with("4-pcie", test, &[("RSCCL_TEST_ROUNDS", rounds)]);
}

#[test]
fn ranks_of_one_gpu_that_wait_for_each_other() {
    must_pass("1", "gpu::several::on_one");
}

/// What the ranks have for each other lies in memory of the host.
#[test]
fn ranks_of_gpus_that_do_not_reach_each_other() {
    // Operators are the same wherever their data lies: `ranks_of_two_gpus` runs all of them.
    for test in ["sums", "every_program", "every_algorithm", "memory", "ranks"] {
        must_pass("4-pcie", &format!("gpu::several::on_two_{test}"));
    }
    must_pass("4-pcie", "gpu::several::on_four");
}

/// Eight GPUs, some of which have links to each other; the others do not reach each other.
#[test]
fn ranks_of_a_whole_mesh() {
    must_pass("8-cube-mesh", "gpu::several::on_eight");
}

/// The way to the other GPU is told, and follows the settings.
#[test]
fn ways_between_gpus() {
    let test = "gpu::several::on_two_sums_follow_each_other";
    let told = |machine: &str, setting: (&str, &str), way: &str| {
        let debug = [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "P2P,SHM"), setting];
        let output = must_pass_with(machine, test, &debug);
        assert!(output.contains(way), "{machine} {setting:?}, {way}:\n{output}");
    };
    told("2-nvswitch", ("NCCL_P2P_DISABLE", "0"), "GPU memory : 0 -> 1 via P2P/direct pointer");
    told("2-nvswitch", ("NCCL_P2P_DISABLE", "1"), "GPU memory : 0 -> 1 via SHM/pinned (P2P: NCCL_P2P_DISABLE is set)");
    let beyond = "GPU memory : 1 -> 0 via SHM/pinned (P2P: NVL is beyond NCCL_P2P_LEVEL=LOC";
    told("2-nvswitch", ("NCCL_P2P_LEVEL", "LOC"), beyond);
    let imported = "GPU memory : 1 -> 0 via P2P/CUMEM (direct pointer: rank 1 has NCCL_P2P_DIRECT_DISABLE=1)";
    told("2-nvswitch", ("NCCL_P2P_DIRECT_DISABLE", "1"), imported);
    told("2-nvswitch", ("NCCL_P2P_READ_ENABLE", "1"), "GPU memory : 1 -> 0 via P2P/direct pointer/read");
    let reason = "GPU memory : 1 -> 0 via SHM/pinned (P2P: no peer access between GPU 1 and GPU 0";
    told("4-pcie", ("NCCL_P2P_DISABLE", "0"), reason);
}

/// They import each other's memory, as processes do, and give it back while other ranks launch.
#[test]
fn ranks_of_one_process_without_pointers() {
    for test in ["every_algorithm", "ranks_allocate"] {
        must_pass_with("2-nvswitch", &format!("gpu::several::on_two_{test}"), &[("NCCL_P2P_DIRECT_DISABLE", "1")]);
    }
    // A process cannot open its own handles.
    let by_handle = [
        ("NCCL_P2P_DIRECT_DISABLE", "1"),
        ("NCCL_CUMEM_ENABLE", "0"),
        ("NCCL_DEBUG", "INFO"),
        ("NCCL_DEBUG_SUBSYS", "SHM"),
    ];
    let told = must_pass_with("2-nvswitch", "gpu::several::on_two_sums_follow_each_other", &by_handle);
    let way = "0 -> 1 via SHM/pinned (P2P: rank 0 has NCCL_P2P_DIRECT_DISABLE=1, rank 1 has NCCL_CUMEM_ENABLE=0, and";
    assert!(told.contains(way), "{told}");
}

/// Receivers read from the senders' memory (read mode). `gpu_between` has GPUs that do so by themselves.
#[test]
fn ranks_of_two_gpus_that_read() {
    let reading = ("NCCL_P2P_READ_ENABLE", "1");
    must_pass_with("2-nvswitch", "gpu::several::on_two_every_algorithm", &[reading]);
    must_pass_with("2-nvswitch", "gpu::several::on_two_ranks_allocate", &[reading, ("NCCL_P2P_DIRECT_DISABLE", "1")]);
}

#[test]
fn gpus_that_nothing_connects() {
    must_pass("4-pcie", "gpu::several::without_shared_memory");
}

mod alone {
    use rsccl::comm::DeviceStream;
    use rsccl::error::Kind;
    use rsccl::internals::device::cuda;
    use rsccl::internals::sys::clock::now;
    use rsccl::types::Algorithm;
    use rsccl::{Config, ReduceOp, Result, group, local};

    use crate::{
        KINDS, SIZES, SLOT_KINDS, TIMEOUT, every_operator, every_program, every_program_by, judge, run_rank, seed,
        tried,
    };
    use machine::gpus::enough;
    use testing::case::{Case, Placed};

    /// What each rank returns that works on GPU 0; nothing where there is none.
    fn on_gpu<T: Send>(
        ranks: u32,
        config: &Config,
        body: impl Fn(rsccl::Communicator, DeviceStream) -> Result<T> + Sync,
    ) -> Vec<T> {
        if enough(1, cuda::gpus()).is_none() {
            return Vec::new();
        }
        let config = config.clone().with_timeout(TIMEOUT);
        let results = local::run_with(ranks, &config, |comm| body(comm, DeviceStream::new(0)?));
        results.expect("ranks start and end")
    }

    fn run(ranks: u32, config: &Config, cases: &[Case]) {
        let seed = seed();
        let name = format!("{ranks} ranks on a GPU, {:?}, seed {seed}", config.algo);
        let cases = &*tried(cases, &name);
        let failures = on_gpu(ranks, config, |comm, stream| run_rank(comm, &Placed::Device(stream), cases, seed));
        judge(&name, failures.concat());
    }

    #[test]
    fn every_program_runs() {
        for (ranks, kinds) in [(1, KINDS), (2, KINDS), (4, &KINDS[..3])] {
            run(ranks, &Config::default(), &every_program(ranks, SIZES, kinds));
        }
        run(2, &Config::default(), &every_program(2, &[400_009], &KINDS[..1]));
    }

    #[test]
    fn every_operator_runs() {
        run(2, &Config::default(), &every_operator(&[131, 9_000]));
    }

    #[test]
    fn every_algorithm_runs() {
        for algorithm in Algorithm::ALL.iter().copied() {
            let (forced, mut cases) = every_program_by(algorithm, 3, &[0, 1, 1_003, 20_011]);
            cases.retain(|case| SLOT_KINDS.iter().any(|(data_type, _)| *data_type == case.data_type));
            run(3, &Config::default().with_algo(forced).with_proto("Simple"), &cases);
        }
    }

    /// Calls behind each other, with nothing that waits for them between.
    #[test]
    fn calls_follow_each_other() {
        on_gpu(2, &Config::default(), |comm, stream| {
            let mut values = [0_u64; 1_003];
            let (mut input, mut sum) = (stream.alloc::<u64>(1_003)?, stream.alloc::<u64>(1_003)?);
            stream.upload(&[1; 1_003], input.slice_mut(..))?;
            for _ in 0..50 {
                comm.on(&stream).all_reduce(input.slice(..), sum.slice_mut(..), ReduceOp::Sum)?;
                comm.on(&stream).all_reduce(sum.slice(..), input.slice_mut(..), ReduceOp::Max)?;
            }
            stream.download(input.slice(..), &mut values)?;
            // Each sum doubles.
            assert_eq!(values, [1 << 50; 1_003]);
            comm.finalize()
        });
    }

    /// All ranks hear of it, the memory is as it was, and the stream goes on.
    #[test]
    fn calls_that_differ_are_told() {
        let told = on_gpu(3, &Config::default(), |comm, stream| {
            let mut buffer = stream.alloc::<u32>(64)?;
            stream.upload(&[7; 64], buffer.slice_mut(..))?;
            let (on, count) = (comm.on(&stream), if comm.rank() == 1 { 17 } else { 64 });
            on.all_reduce_in_place(buffer.slice_mut(..count), ReduceOp::Sum)?;
            let deadline = now() + TIMEOUT;
            while comm.async_error().is_none() && now() < deadline {
                std::thread::yield_now();
            }
            let error = on.barrier().expect_err("the communicator has ended");
            let mut values = [0; 64];
            stream.download(buffer.slice(..), &mut values)?;
            assert_eq!(values, [7; 64]);
            Ok((error.kind(), error.to_string()))
        });
        for (kind, text) in told {
            assert_eq!(kind, Kind::Mismatch, "{text}");
            assert!(text.contains("count 17") && text.contains("count 64"), "{text}");
        }
    }

    /// Round after round: each rank sends to the right what it got from the left, a message to itself beside, in one
    /// group; then two messages of one pair, which keep their order.
    #[test]
    fn a_ring_of_messages_in_one_group_goes_round() {
        on_gpu(3, &Config::default(), |comm, stream| {
            let (left, right) = ((comm.rank() + 2) % 3, (comm.rank() + 1) % 3);
            let (mut mine, mut got) = (stream.alloc::<u32>(700)?, stream.alloc::<u32>(700)?);
            let mut own = stream.alloc::<u32>(700)?;
            stream.upload(&[comm.rank(); 700], mine.slice_mut(..))?;
            for round in 1..5 {
                group(|group| {
                    let mut on = group.on_stream(&comm, &stream);
                    on.recv(got.slice_mut(..), left)?;
                    on.send(mine.slice(..), right)?;
                    on.send(mine.slice(..), comm.rank())?;
                    on.recv(own.slice_mut(..), comm.rank())
                })?;
                let mut values = [[9; 700]; 2];
                stream.download(got.slice(..), &mut values[0])?;
                stream.download(own.slice(..), &mut values[1])?;
                let origin = |rounds: u32| [(comm.rank() + 2 * rounds) % 3; 700];
                assert_eq!(values, [origin(round), origin(round - 1)], "round {round} of rank {}", comm.rank());
                std::mem::swap(&mut mine, &mut got);
            }
            let on = comm.on(&stream);
            match comm.rank() {
                0 => {
                    on.send(mine.slice(..300), 2)?;
                    on.send(mine.slice(300..), 2)?;
                }
                2 => {
                    on.recv(got.slice_mut(..300), 0)?;
                    on.recv(got.slice_mut(300..), 0)?;
                    let mut values = [9; 700];
                    stream.download(got.slice(..), &mut values)?;
                    // Rank 0's after four rounds.
                    assert_eq!(values, [2; 700]);
                }
                _ => {}
            }
            comm.finalize()
        });
    }

    /// Both ranks hear of it.
    #[test]
    fn messages_that_differ_are_told() {
        let told = on_gpu(2, &Config::default(), |comm, stream| {
            let buffer = stream.alloc::<u32>(64)?;
            let mut other = stream.alloc::<f32>(64)?;
            let called = match comm.rank() {
                0 => comm.on(&stream).send(buffer.slice(..), 1),
                _ => comm.on(&stream).recv(other.slice_mut(..17), 0),
            };
            let error = called.expect_err("they differ");
            Ok((error.kind(), error.to_string()))
        });
        for (kind, text) in told {
            assert_eq!(kind, Kind::Mismatch, "{text}");
            let named = ["count 64, uint32", "count 17, float"].iter().all(|words| text.contains(words));
            assert!(named, "{text}");
        }
    }

    /// The rank that does not come is named at the deadline.
    #[test]
    fn a_message_without_its_other_end_ends_at_the_deadline() {
        let over = std::sync::Barrier::new(2);
        let short = Config::default().with_timeout(std::time::Duration::from_secs(2));
        if enough(1, cuda::gpus()).is_none() {
            return;
        }
        let told = local::run_with(2, &short, |comm| {
            let stream = DeviceStream::new(0)?;
            let buffer = stream.alloc::<u32>(64)?;
            comm.on(&stream).barrier()?;
            let called = if comm.rank() == 0 { comm.on(&stream).send(buffer.slice(..), 1) } else { Ok(()) };
            over.wait();
            Ok(called.err().map(|error| (error.kind(), error.to_string())))
        });
        let told = told.expect("ranks start and end");
        let (kind, text) = told[0].as_ref().expect("nobody receives");
        assert!(*kind == Kind::Timeout && text.contains("rank 1 to call it too"), "{text}");
    }
}

/// Ranks on several GPUs, whose programs wait for each other there.
pub(crate) mod several {
    use rsccl::comm::{DeviceBuffer, DeviceStream};
    use rsccl::error::Kind;
    use rsccl::internals::device::cuda;
    use rsccl::internals::sys::clock::now;
    use rsccl::internals::topo::graphs::{self, Graph};
    use rsccl::internals::topo::xml;
    use rsccl::types::Algorithm;
    use rsccl::{Communicator, Config, Error, ReduceOp, Result, local};

    use crate::{
        KINDS, SLOT_KINDS, TIMEOUT, every_operator, every_program, every_program_by, judge, run_rank, seed, tried,
    };
    use machine::gpus::enough;
    use testing::case::{Case, Placed};

    /// What each rank returns; `ranks` of them on each of `gpus`. Nothing where there are no GPUs.
    pub(crate) fn on_gpus<T: Send>(
        (gpus, ranks): (u32, u32),
        config: &Config,
        body: impl Fn(Communicator, DeviceStream) -> Result<T> + Sync,
    ) -> Vec<T> {
        if enough(gpus as usize, cuda::gpus()).is_none() {
            return Vec::new();
        }
        let results = local::run_with(gpus * ranks, config, |comm| {
            let stream = DeviceStream::new(comm.rank() / ranks)?;
            body(comm, stream)
        });
        results.expect("ranks start and end")
    }

    fn patient() -> Config {
        Config::default().with_timeout(TIMEOUT)
    }

    pub(crate) fn run((gpus, ranks): (u32, u32), config: &Config, cases: &[Case]) {
        let seed = seed();
        let name = format!("{ranks} ranks on each of {gpus} GPUs, {:?}, seed {seed}", config.algo);
        let cases = &*tried(cases, &name);
        let failures =
            on_gpus((gpus, ranks), config, |comm, stream| run_rank(comm, &Placed::Device(stream), cases, seed));
        judge(&name, failures.concat());
    }

    /// Behind each other, with nothing that waits for them between.
    fn sums_follow_each_other(gpus: u32, ranks: u32, config: &Config) {
        on_gpus((gpus, ranks), config, |comm, stream| {
            let mut values = [0.0_f32; 1_003];
            let (mut input, mut sum) = (stream.alloc::<f32>(1_003)?, stream.alloc::<f32>(1_003)?);
            let mine: Vec<f32> = (0..1_003_u16).map(f32::from).collect();
            stream.upload(&mine, input.slice_mut(..))?;
            for _ in 0..10 {
                comm.on(&stream).all_reduce(input.slice(..), sum.slice_mut(..), ReduceOp::Sum)?;
                comm.on(&stream).all_reduce(sum.slice(..), input.slice_mut(..), ReduceOp::Avg)?;
            }
            stream.download(sum.slice(..), &mut values)?;
            let whole = (0..10).fold(1.0_f32, |whole, _| whole * f32::from(u16::try_from(comm.size()).expect("few")));
            assert!(values.iter().zip(&mine).all(|(sum, mine)| *sum == whole * mine));
            comm.finalize()
        });
    }

    #[test]
    fn on_two_sums_follow_each_other() {
        sums_follow_each_other(2, 1, &patient());
        sums_follow_each_other(2, 2, &patient());
    }

    #[test]
    fn on_two_every_program_runs() {
        for (ranks, kinds) in [(1, KINDS), (2, &KINDS[..3])] {
            run((2, ranks), &in_windows(), &every_program(2 * ranks, &[0, 1, 5, 1_003, 9_011], kinds));
        }
    }

    /// Small calls too work in peers' memory; `gpu_lines` has those that do not.
    pub(crate) fn in_windows() -> Config {
        patient().with_proto("Simple;all_to_all:Simple;gather:Simple;scatter:Simple")
    }

    #[test]
    fn on_two_every_operator_runs() {
        run((2, 1), &in_windows(), &every_operator(&[131]));
    }

    /// Direct works in peers' memory, the others through slots.
    #[test]
    fn on_two_every_algorithm_runs() {
        for algorithm in Algorithm::ALL.iter().copied() {
            let (forced, mut cases) = every_program_by(algorithm, 4, &[0, 1, 4_003]);
            cases.retain(|case| SLOT_KINDS.iter().any(|(data_type, _)| *data_type == case.data_type));
            run((2, 2), &patient().with_algo(forced).with_proto("Simple"), &cases);
        }
    }

    /// Rank 1 makes the first communicator's call last: until then, rank 0's kernel of that call waits on its GPU. Both
    /// allocate meanwhile, set up a second communicator on their GPUs, and open its connections.
    #[test]
    fn on_two_memory_is_allocated_while_a_kernel_waits() {
        on_gpus((2, 1), &patient(), |comm, stream| {
            let (me, other) = (comm.rank(), 1 - comm.rank());
            let second = comm.split(Some(0), i64::from(me))?.expect("all ranks are in it");
            let beside = DeviceStream::new(me)?;
            let mut sum = stream.alloc::<u32>(COUNT)?;
            stream.upload(&[me + 1; COUNT], sum.slice_mut(..))?;
            comm.on(&stream).barrier()?;
            stream.synchronize()?;
            if me == 0 {
                comm.on(&stream).all_reduce_in_place(sum.slice_mut(..), ReduceOp::Sum)?;
            }
            // Small, in a chunk that is there; and longer than a chunk.
            for count in [COUNT, 3 << 20] {
                let (mut mine, mut theirs) = (beside.alloc::<u32>(count)?, beside.alloc::<u32>(count)?);
                beside.upload(&[me + 5; COUNT], mine.slice_mut(..COUNT))?;
                let on = second.on(&beside);
                on.send_recv(mine.slice(..COUNT), other, theirs.slice_mut(..COUNT), other)?;
                let mut values = [9; COUNT];
                beside.download(theirs.slice(..COUNT), &mut values)?;
                assert_eq!(values, [other + 5; COUNT]);
                beside.download(theirs.slice(count - 1..), &mut values[..1])?;
                assert_eq!(values[0], if count == COUNT { other + 5 } else { 0 }, "memory is zero when it is new");
            }
            if me == 1 {
                comm.on(&stream).all_reduce_in_place(sum.slice_mut(..), ReduceOp::Sum)?;
            }
            let mut values = [9; COUNT];
            stream.download(sum.slice(..), &mut values)?;
            assert_eq!(values, [3; COUNT]);
            second.finalize()?;
            comm.finalize()
        });
    }

    const COUNT: usize = 64;

    /// No rank waits for its stream: memory is retired while calls use it, and used again when they are done.
    #[test]
    fn on_two_ranks_allocate_between_calls() {
        on_gpus((2, 2), &patient(), |comm, stream| {
            let mut sums = Vec::new();
            for turn in 0..24_u32 {
                let count = COUNT << (turn % 5);
                let (mut mine, mut sum) = (stream.alloc::<u32>(count)?, stream.alloc::<u32>(count)?);
                stream.upload(&vec![turn + comm.rank(); count], mine.slice_mut(..))?;
                comm.on(&stream).all_reduce(mine.slice(..), sum.slice_mut(..), ReduceOp::Sum)?;
                sums.push((turn, sum));
                if sums.len() > 3 {
                    let (turn, sum) = sums.remove(0);
                    let mut first = [0];
                    stream.download(sum.slice(..1), &mut first)?;
                    assert_eq!(first, [4 * turn + 6]);
                }
            }
            comm.finalize()
        });
    }

    #[test]
    fn on_eight_a_sample_runs() {
        run((8, 1), &in_windows(), &every_program(8, &[1_003], &KINDS[..1]));
    }

    /// Where some of the GPUs reach each other, these follow channels, and shorter ones work in scratch.
    #[test]
    fn on_eight_long_calls_run() {
        let mut cases = every_program(8, &[20_011], &KINDS[..1]);
        cases.retain(|case| case.program.name() == "all_reduce");
        assert!(!cases.is_empty());
        run((8, 1), &patient(), &cases);
    }

    /// Slots of 2 KiB, so that small calls fill several channels.
    fn many_channels() -> Config {
        patient().with_buffer_bytes(16_384_u64).with_proto("Simple")
    }

    #[test]
    fn on_eight_rings_and_trees_follow_channels() {
        for algorithm in [Algorithm::Ring, Algorithm::Tree] {
            let (forced, mut cases) = every_program_by(algorithm, 8, &[4_003]);
            cases.retain(|case| SLOT_KINDS[..1].iter().any(|(data_type, _)| *data_type == case.data_type));
            run((8, 1), &many_channels().with_algo(forced), &cases);
        }
    }

    #[test]
    fn on_a_mesh_rings_and_trees_follow_channels() {
        for algorithm in [Algorithm::Ring, Algorithm::Tree] {
            let (forced, mut cases) = every_program_by(algorithm, 4, &[0, 1, 4_003]);
            cases.retain(|case| SLOT_KINDS.iter().any(|(data_type, _)| *data_type == case.data_type));
            run((4, 1), &many_channels().with_algo(forced), &cases);
        }
    }

    /// The channels that a communicator of four ranks works on, as it writes them: an all-reduce on `config`.
    fn channels_of(config: &Config) -> Result<Vec<Graph>> {
        let folder = tempfile::tempdir().expect("a folder");
        let (graphs, topology) = (folder.path().join("graphs.xml"), folder.path().join("topology.xml"));
        let config = config.clone().with_graph_dump_file(&graphs).with_topo_dump_file(&topology);
        local::run_with(4, &config, |comm| {
            let stream = DeviceStream::new(comm.rank())?;
            let mut buffer = stream.alloc::<f32>(4_003)?;
            stream.upload(&[1.0; 4_003], buffer.slice_mut(..))?;
            comm.on(&stream).all_reduce_in_place(buffer.slice_mut(..), ReduceOp::Sum)?;
            let mut values = [0.0; 4_003];
            stream.download(buffer.slice(..), &mut values)?;
            assert_eq!(values, [4.0; 4_003]);
            comm.finalize()
        })?;
        let [text, machine] = [graphs, topology].map(|path| std::fs::read_to_string(path).expect("rank 0 writes both"));
        assert_eq!(xml::parse("dump", &machine)?.0.gpus().len(), 4, "the GPUs of ranks alone");
        graphs::parse("dump", &text)
    }

    /// Each GPU has four links to the other three: four rings use all of them. A file's ring is used in their place.
    #[test]
    fn on_a_mesh_channels_are_searched_for_or_read() {
        if enough(4, cuda::gpus()).is_none() {
            return;
        }
        let config = many_channels().with_algo("Ring");
        let found = channels_of(&config).expect("ranks start and end");
        assert_eq!((found.len(), found[0].channels.len()), (2, 4));
        assert!(found[1].channels.len() >= 4, "chains of trees use the links as well: {found:?}");
        // Links of each two GPUs, from the machine's file.
        let links = [[0, 1, 1, 2], [1, 0, 2, 1], [1, 2, 0, 2], [2, 1, 2, 0]];
        let mut used = [[0; 4]; 4];
        for channel in &found[0].channels {
            let gpus: Vec<usize> = channel.gpus.iter().map(|gpu| *gpu as usize).collect();
            (0..4).for_each(|place| used[gpus[place]][gpus[(place + 1) % 4]] += 1);
        }
        assert!((0..4).all(|from| (0..4).all(|to| used[from][to] <= links[from][to])), "{used:?}");

        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("one.xml");
        let mut one = found.clone();
        one[0].channels.truncate(1);
        one[0].channels[0].gpus = vec![0, 2, 1, 3];
        std::fs::write(&path, graphs::write(&one)).expect("written");
        let read = channels_of(&config.clone().with_graph_file(&path)).expect("ranks start and end");
        assert_eq!((&read[0].channels, &read[1].channels), (&one[0].channels, &one[1].channels));

        one[0].channels[0].gpus.pop();
        std::fs::write(&path, graphs::write(&one)).expect("written");
        let error = channels_of(&config.with_graph_file(&path)).expect_err("a ring of three");
        assert_eq!(error.kind(), Kind::InvalidArgument, "{error}");
        assert!(error.message().contains("passes rank 3 0 times"), "{error}");
    }

    #[test]
    fn on_one_split_ranks_wait_for_each_other() {
        let split = patient().with_cohort("split");
        run((1, 4), &split, &every_program(4, &[0, 5, 1_003], &KINDS[..2]));
        sums_follow_each_other(1, 4, &split);
    }

    /// Runs `body`, which ends in an error, now or when its launch does, on two GPUs; then the memory must be as it was and the stream
    /// must go on.
    fn end_in(
        config: &Config,
        body: impl Fn(&Communicator, &DeviceStream, &mut DeviceBuffer<u32>) -> Result<()> + Sync,
    ) -> Vec<Error> {
        on_gpus((2, 1), config, |comm, stream| {
            let mut buffer = stream.alloc::<u32>(64)?;
            stream.upload(&[7; 64], buffer.slice_mut(..))?;
            // All have a side on their device when one of them does not come.
            comm.on(&stream).barrier()?;
            let ended = body(&comm, &stream, &mut buffer);
            let deadline = now() + TIMEOUT;
            while ended.is_ok() && comm.async_error().is_none() && now() < deadline {
                std::thread::yield_now();
            }
            let error = ended.and_then(|()| comm.on(&stream).barrier()).expect_err("the communicator has ended");
            let mut values = [0; 64];
            stream.download(buffer.slice(..), &mut values)?;
            assert_eq!(values, [7; 64]);
            Ok(error)
        })
    }

    #[test]
    fn on_two_calls_that_differ_are_told() {
        let errors = end_in(&patient(), |comm, stream, buffer| {
            let count = if comm.rank() == 1 { 17 } else { 64 };
            comm.on(stream).all_reduce_in_place(buffer.slice_mut(..count), ReduceOp::Sum)
        });
        for error in errors {
            assert_eq!(error.kind(), Kind::Mismatch, "{error}");
            let text = error.to_string();
            assert!(text.contains("count 17") && text.contains("count 64"), "{text}");
        }
    }

    #[test]
    fn on_two_an_abort_ends_a_kernel_that_waits() {
        let errors = end_in(&patient(), |comm, stream, buffer| {
            if comm.rank() == 1 {
                return comm.barrier();
            }
            comm.on(stream).all_reduce_in_place(buffer.slice_mut(..), ReduceOp::Sum)?;
            comm.abort("enough");
            Ok(())
        });
        assert!(errors.iter().all(|error| error.kind() == Kind::Aborted), "{errors:?}");
    }

    /// Regression: both waits said Ok, and the data were wrong.
    #[test]
    fn on_two_waits_for_a_stream_return_the_error_that_has_ended_its_calls() {
        let launched = std::sync::Barrier::new(2);
        on_gpus((2, 1), &patient(), |comm, stream| {
            let mut buffer = stream.alloc::<u32>(64)?;
            stream.upload(&[7; 64], buffer.slice_mut(..))?;
            let part = comm.split(Some(0), 0)?.expect("all ranks are in it");
            comm.on(&stream).barrier()?;
            part.on(&stream).barrier()?;
            stream.synchronize()?;
            if comm.rank() == 1 {
                launched.wait();
                part.abort("on purpose");
                part.barrier().expect_err("it is aborted");
                return comm.finalize();
            }
            part.on(&stream).all_reduce_in_place(buffer.slice_mut(..), ReduceOp::Sum)?;
            launched.wait();
            let mut values = [0; 64];
            for waited in [stream.synchronize(), stream.download(buffer.slice(..), &mut values), stream.synchronize()] {
                let error = waited.expect_err("the sum has ended early");
                assert!(error.message().contains("on purpose"), "{error}");
            }
            // The program goes on when it has asked the communicator.
            assert!(part.async_error().is_some());
            stream.upload(&[5; 64], buffer.slice_mut(..))?;
            stream.download(buffer.slice(..), &mut values)?;
            assert_eq!(values, [5; 64]);
            comm.finalize()
        });
    }

    #[test]
    fn on_four_a_sample_runs() {
        for (ranks, sizes) in [(1, &[5, 1_003][..]), (2, &[201])] {
            run((4, ranks), &in_windows(), &every_program(4 * ranks, sizes, &KINDS[..1]));
        }
    }

    #[test]
    fn without_shared_memory_the_error_says_so() {
        if enough(3, cuda::gpus()).is_none() {
            return;
        }
        let errors = local::run_with(3, &patient().with_shm_disable(true), |comm| {
            let stream = DeviceStream::new(comm.rank().max(1))?;
            let mut buffer = stream.alloc::<f32>(64)?;
            let called = comm.on(&stream).all_reduce_in_place(buffer.slice_mut(..), ReduceOp::Sum);
            called.map_or_else(Ok, |()| Err(Error::internal("it went through")))
        });
        for error in errors.expect("ranks start and end") {
            let told = error.message().contains("nothing connects the devices of ranks 0 and 2");
            assert!(error.kind() == Kind::InvalidUsage && told, "{error}");
            assert!(error.message().contains("NCCL_SHM_DISABLE is set"), "{error}");
        }
    }
}
