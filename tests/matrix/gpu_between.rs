//! GPUs that do not reach each other, and one between them to which links lead from both: what they send to each other
//! lies in its memory. Nothing is left on a GPU. Processes, and one of them that is killed, are in
//! `tests/faults/gpus.rs`, on a mesh.

use crate::matrix::gpu::{must_pass, must_pass_with};

/// GPUs 0 and 2 do not reach each other.
const MACHINE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/gpu-between.toml");

/// The way is told, with the reason against the direct one, and follows the settings.
#[test]
fn the_way_over_another_gpu_is_told() {
    let told = |setting: (&str, &str), ways: [&str; 2]| {
        let debug = [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "P2P,SHM,TUNING"), setting];
        let text = must_pass_with(MACHINE, "gpu_between::row::on_three_a_message_passes", &debug);
        for way in ways {
            assert!(text.contains(way), "{setting:?}, {way}:\n{text}");
        }
    };
    let over = "GPU memory : 0 -> 2 via P2P/indirect/1 (without a GPU between: no peer access between GPU 0 and GPU 2";
    told(
        ("NCCL_P2P_DISABLE", "0"),
        [over, "LL128 is not used by collectives: rank 2 is reached over another GPU, which may tear lines"],
    );
    // A100s with NVLinks read.
    told(("NCCL_P2P_READ_ENABLE", "-1"), [over, "GPU memory : 0 -> 1 via P2P/direct pointer/read"]);
    told(("NCCL_P2P_READ_ENABLE", "0"), [over, "GPU memory : 0 -> 1 via P2P/direct pointer\n"]);
    told(("NCCL_P2P_DIRECT_DISABLE", "1"), [over, "GPU memory : 1 -> 2 via P2P/CUMEM/read"]);
    let beyond = "GPU memory : 2 -> 0 via SHM/pinned (P2P: NVB is beyond NCCL_P2P_LEVEL=NVL";
    told(("NCCL_P2P_LEVEL", "NVL"), [beyond, "GPU memory : 0 -> 1 via P2P/direct pointer/read"]);
}

#[test]
fn calls_over_another_gpu() {
    for test in ["every", "rings", "the_memory"] {
        must_pass(MACHINE, &format!("gpu_between::row::on_three_{test}"));
    }
}

/// Stores become visible in another order with each seed.
#[test]
fn weak_memory_between_gpus_tears_no_message() {
    for seed in 1..=3 {
        must_pass_with(MACHINE, "gpu_between::row::on_three_weak", &[("VCUDA_SEED", &seed.to_string())]);
    }
}

mod row {
    use std::sync::Barrier;

    use cudarc::driver::CudaContext;
    use rsccl::comm::DeviceStream;
    use rsccl::internals::device::cuda;
    use rsccl::types::Algorithm;
    use rsccl::{Communicator, Config, Result, local};

    use crate::matrix::gpu::several::run;
    use crate::matrix::gpu::streams::{begin_beside, end, nothing_is_left};
    use crate::matrix::gpu_lines::several::by;
    use crate::{KINDS, SLOT_KINDS, TIMEOUT, every_program, every_program_by};
    use machine::gpus::enough;

    /// Slots of 2 KiB, so that messages go round.
    fn small_slots() -> Config {
        Config::default().with_timeout(TIMEOUT).with_buffer_bytes(16_384_u64)
    }

    fn on_three<T: Send>(config: &Config, body: impl Fn(Communicator) -> Result<T> + Sync) {
        if enough(3, cuda::gpus()).is_some() {
            local::run_with(3, config, body).expect("ranks start and end");
        }
    }

    const COUNT: usize = 20_011;

    /// From rank 0 to rank 2 and back.
    fn pass(comm: &Communicator, stream: &DeviceStream, turns: u32) -> Result<()> {
        let (rank, other) = (comm.rank(), 2 - comm.rank());
        let (mut mine, mut theirs) = (stream.alloc::<u32>(COUNT)?, stream.alloc::<u32>(COUNT)?);
        let values: Vec<u32> = (0..COUNT).map(|place| u32::try_from(place).expect("few") * 2 + rank).collect();
        stream.upload(&values, mine.slice_mut(..))?;
        for _ in 0..turns {
            comm.on(stream).send_recv(mine.slice(..), other, theirs.slice_mut(..), other)?;
            comm.on(stream).send_recv(theirs.slice(..), other, mine.slice_mut(..), other)?;
        }
        let mut found = vec![0; COUNT];
        for (buffer, from) in [(&mine, rank), (&theirs, other)] {
            stream.download(buffer.slice(..), &mut found)?;
            assert!((0..).zip(&found).all(|(place, value)| *value == place * 2 + from), "of rank {from}");
        }
        Ok(())
    }

    #[test]
    fn on_three_a_message_passes() {
        on_three(&small_slots(), |comm| {
            let stream = DeviceStream::new(comm.rank())?;
            comm.on(&stream).barrier()?;
            if comm.rank() != 1 {
                pass(&comm, &stream, 1)?;
            }
            comm.finalize()
        });
    }

    #[test]
    fn on_three_weak_memory_tears_no_message() {
        let mut cases = every_program(3, &[1_003], &KINDS[..1]);
        cases.retain(|case| ["all_to_all", "all_gather"].contains(&case.program.name()));
        let config = small_slots().with_proto("Simple;all_to_all:LL").with_algo("all_gather:Ring");
        run((3, 1), &config, &cases);
    }

    #[test]
    fn on_three_every_program_runs() {
        run((3, 1), &by("LL"), &every_program(3, &[203], &KINDS[..1]));
        run((3, 2), &by("Simple").with_buffer_bytes(16_384_u64), &every_program(6, &[1_003], &KINDS[..1]));
    }

    #[test]
    fn on_three_rings_and_trees_run() {
        for algorithm in [Algorithm::Ring, Algorithm::Tree] {
            let (forced, mut cases) = every_program_by(algorithm, 3, &[4_003]);
            cases.retain(|case| SLOT_KINDS[..1].iter().any(|(data_type, _)| *data_type == case.data_type));
            run((3, 1), &small_slots().with_algo(forced).with_proto("Simple"), &cases);
        }
    }

    /// The rank whose memory it is goes first, and then the others' communicators, whose graphs still use it.
    #[test]
    fn on_three_the_memory_stays_while_it_is_used() {
        let (meeting, pair) = (Barrier::new(3), Barrier::new(2));
        on_three(&small_slots(), |comm| {
            let rank = comm.rank();
            let context = CudaContext::new(rank as usize).expect("the primary context");
            let own = [context.new_stream().expect("a stream")];
            let stream = DeviceStream::from_cudarc(&own[0])?;
            comm.on(&stream).barrier()?;
            stream.synchronize()?;
            if rank == 1 {
                drop(stream);
                comm.finalize()?;
                drop((own, context));
                for _ in 0..3 {
                    meeting.wait();
                }
                return Ok(());
            }
            meeting.wait();
            pass(&comm, &stream, 2)?;
            let other = 2 - rank;
            let (mut mine, mut theirs) = (stream.alloc::<u32>(COUNT)?, stream.alloc::<u32>(COUNT)?);
            stream.upload(&vec![rank + 5; COUNT], mine.slice_mut(..))?;
            pair.wait();
            begin_beside(&own[0]);
            comm.on(&stream).send_recv(mine.slice(..), other, theirs.slice_mut(..), other)?;
            let graph = end(&own);
            pair.wait();
            comm.finalize()?;
            meeting.wait();
            for _ in 0..3 {
                graph.launch().expect("a launch");
            }
            let mut found = vec![0; COUNT];
            stream.download(theirs.slice(..), &mut found)?;
            assert_eq!(found, vec![other + 5; COUNT]);
            own[0].synchronize().expect("its memory is there");
            // Each graph works in the memory that the other keeps.
            meeting.wait();
            Ok(())
        });
        if cuda::gpus().is_ok() {
            nothing_is_left();
        }
    }
}
