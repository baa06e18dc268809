//! Calls between GPUs by LL and LL128, whose words carry their flags with the data: what is chosen, every program, weak
//! memory, and mistakes. Nothing is left on a GPU. That messages come whole where flags begin anew is a test of
//! `src/device/cuda/tests/lines.rs`.

use crate::matrix::gpu::{must_pass, must_pass_with, seeds_of_weak_memory};

/// Small calls go by LL, longer ones by LL128 where the path allows it. Those that are longer still are a test of
/// `tune`.
#[test]
fn the_protocol_follows_the_bytes_and_the_path() {
    let told = |machine: &str, test: &str, setting: (&str, &str)| {
        let debug = [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "TUNING"), setting];
        must_pass_with(machine, &format!("gpu_lines::pair::on_two_{test}"), &debug)
    };
    let (two_sizes, small) = ("calls_of_two_sizes_run", "a_small_call_runs");
    let text = told("2-nvswitch", two_sizes, ("NCCL_PROTO", ""));
    for line in ["1200 Bytes -> Algo Direct proto LL ", "68000 Bytes -> Algo Direct proto LL128 "] {
        assert!(text.contains(line), "{line}:\n{text}");
    }
    let text = told("4-pcie", two_sizes, ("NCCL_PROTO", ""));
    let refused = "LL128 is not used: rank 1 is reached by SHM";
    for line in ["1200 Bytes -> Algo Direct proto LL ", "68000 Bytes -> Algo Direct proto Simple ", refused] {
        assert!(text.contains(line), "{line}:\n{text}");
    }
    for (filter, protocol) in [("^LL", "LL128"), ("Simple", "Simple"), ("LL", "LL")] {
        let text = told("2-nvswitch", small, ("NCCL_PROTO", filter));
        let line = format!("AllReduce: 1200 Bytes -> Algo Direct proto {protocol} ");
        assert!(text.contains(&line), "{filter}, {line}:\n{text}");
    }
    let text = must_pass_with(
        "8-nvswitch",
        "gpu_lines::several::on_eight",
        &[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "TUNING")],
    );
    for protocol in ["LL ", "LL128 "] {
        let line = format!("AllGather: 800 Bytes -> Algo Direct proto {protocol}");
        assert!(text.contains(&line), "{line}:\n{text}");
    }
    // A wish that the devices cannot fulfil leaves what they have.
    let text = told("4-pcie", small, ("NCCL_PROTO", "LL128"));
    assert!(text.contains("1200 Bytes -> Algo Direct proto LL "), "{text}");
}

#[test]
fn every_program_by_lines() {
    must_pass("2-nvswitch", "gpu_lines::several::on_two");
    must_pass("4-pcie", "gpu_lines::several::on_four");
}

/// A block that polls a message cannot work on its other lanes, for which its peer may wait.
#[test]
fn lanes_that_share_a_block_do_not_wait_for_each_other() {
    let machine = concat!(env!("CARGO_MANIFEST_DIR"), "/data/few-multiprocessors.toml");
    must_pass(machine, "gpu_lines::several::on_two_rings");
}

/// Graphs of processes: live calls and replays use the same slots in turn.
#[test]
fn graphs_of_processes_by_lines() {
    must_pass_with("2-nvswitch", "gpu_processes::pair::on_two", &[("NCCL_PROTO", "LL128")]);
}

/// Stores become visible in another order with each seed.
#[test]
fn weak_memory_tears_no_message() {
    for seed in seeds_of_weak_memory("gpu_lines::weak_memory") {
        must_pass_with("2-nvswitch", "gpu_lines::pair::on_two_weak", &[("VCUDA_SEED", &seed.to_string())]);
    }
}

#[test]
fn calls_by_different_protocols_are_told() {
    must_pass("2-nvswitch", "gpu_lines::pair::on_two_a_call_by_another_protocol");
}

mod pair {
    use rsccl::comm::DeviceStream;
    use rsccl::error::Kind;
    use rsccl::internals::device::cuda;
    use rsccl::internals::sys::clock::now;
    use rsccl::{Communicator, Config, ReduceOp, Result, local};

    use crate::TIMEOUT;
    use machine::gpus::enough;

    fn on_two<T: Send>(config: &Config, body: impl Fn(Communicator, DeviceStream) -> Result<T> + Sync) -> Vec<T> {
        if enough(2, cuda::gpus()).is_none() {
            return Vec::new();
        }
        let config = config.clone().with_timeout(TIMEOUT);
        local::run_with(2, &config, |comm| {
            let stream = DeviceStream::new(comm.rank())?;
            body(comm, stream)
        })
        .expect("ranks start and end")
    }

    /// Calls of `count` elements, `turns` times, each with the sum of the one before.
    fn sum(config: &Config, counts: &[usize], turns: u32) {
        on_two(config, |comm, stream| {
            for count in counts.iter().copied() {
                let (mut sum, mut all) = (stream.alloc::<u32>(count)?, stream.alloc::<u32>(2 * count)?);
                let mine: Vec<u32> = (0..count).map(|place| u32::try_from(place).expect("few") + comm.rank()).collect();
                stream.upload(&mine, sum.slice_mut(..))?;
                for _ in 0..turns {
                    comm.on(&stream).all_reduce_in_place(sum.slice_mut(..), ReduceOp::Sum)?;
                    comm.on(&stream).all_gather(sum.slice(..), all.slice_mut(..))?;
                }
                let mut found = vec![0; 2 * count];
                stream.download(all.slice(..), &mut found)?;
                let expected = |place: usize| (2 * u32::try_from(place % count).expect("few") + 1) << (turns - 1);
                assert!((0..2 * count).all(|place| found[place] == expected(place)), "{count}: {:?}", &found[..8]);
            }
            comm.finalize()
        });
    }

    #[test]
    fn on_two_calls_of_two_sizes_run() {
        sum(&Config::default(), &[300, 17_000], 1);
    }

    #[test]
    fn on_two_a_small_call_runs() {
        sum(&Config::default(), &[300], 1);
    }

    /// More turns than there are slots; sums by LL, and their copies by LL128.
    #[test]
    fn on_two_weak_memory_tears_no_line() {
        sum(&Config::default().with_proto("all_reduce:LL;all_gather:LL128"), &[131], 10);
    }

    /// One rank polls a message by LL, and the other enters its peer's window.
    #[test]
    fn on_two_a_call_by_another_protocol_is_told() {
        let told = on_two(&Config::default(), |comm, stream| {
            let mut buffer = stream.alloc::<u32>(60_000)?;
            stream.upload(&[7; 64], buffer.slice_mut(..64))?;
            comm.on(&stream).barrier()?;
            let count = if comm.rank() == 1 { 60_000 } else { 64 };
            comm.on(&stream).all_reduce_in_place(buffer.slice_mut(..count), ReduceOp::Sum)?;
            let deadline = now() + TIMEOUT;
            while comm.async_error().is_none() && now() < deadline {
                std::thread::yield_now();
            }
            let error = comm.on(&stream).barrier().expect_err("the communicator has ended");
            let mut values = [0; 64];
            stream.download(buffer.slice(..64), &mut values)?;
            assert_eq!(values, [7; 64]);
            Ok((error.kind(), error.to_string()))
        });
        for (kind, text) in told {
            assert_eq!(kind, Kind::Mismatch, "{text}");
            assert!(text.contains("count 64") && text.contains("count 60000"), "{text}");
        }
    }
}

pub(crate) mod several {
    use rsccl::Config;

    use crate::matrix::gpu::several::run;
    use crate::{KINDS, TIMEOUT, every_operator, every_program};

    /// All calls by one protocol.
    pub(crate) fn by(protocol: &str) -> Config {
        let by_name = ["all_to_all", "gather", "scatter", "all_to_all_v", "gather_v", "scatter_v", "scan", "exscan"];
        let named = by_name.map(|collective| format!(";{collective}:{protocol}"));
        Config::default().with_timeout(TIMEOUT).with_proto(format!("{protocol}{}", named.concat()))
    }

    #[test]
    fn on_two_every_program_runs() {
        for protocol in ["LL", "LL128"] {
            run((2, 1), &by(protocol), &every_program(2, &[1, 1_003], &KINDS[..1]));
        }
        // More bytes than a slot, and scalars of the ranks' own.
        run((2, 2), &by("LL"), &every_program(4, &[9_011], &KINDS[5..]));
        run((2, 1), &by("LL128"), &every_operator(&[131]));
    }

    /// LL by way of the host.
    #[test]
    fn on_four_every_program_runs() {
        run((4, 1), &by("LL"), &every_program(4, &[203], &KINDS[..1]));
    }

    #[test]
    fn on_eight_a_sample_runs() {
        let mut cases = every_program(8, &[203], &KINDS[..1]);
        cases.retain(|case| ["all_reduce", "all_gather", "reduce"].contains(&case.program.name()));
        for protocol in ["LL", "LL128"] {
            run((8, 1), &by(protocol), &cases);
        }
    }

    /// Each hop takes messages and sends them on.
    #[test]
    fn on_two_rings_and_trees_run() {
        for (protocol, algorithm) in [("LL", "Ring"), ("LL128", "Tree")] {
            let mut cases = every_program(4, &[9_011], &KINDS[..1]);
            cases.retain(|case| case.program.name() == "all_reduce");
            run((2, 2), &by(protocol).with_algo(format!("all_reduce:{algorithm}")), &cases);
        }
    }
}
