//! Traps of GPUs that a communicator must not fall into: orders of launches, a deadline while a kernel polls, weak
//! memory, and what `CUDA_VISIBLE_DEVICES` hides. The tests of `jobs` do nothing where there is no GPU; the others start
//! them again on virtual machines. Which trap is tested where: `tests/gpu-traps.md`.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::matrix::gpu::{must_pass, must_pass_with, seeds_of_weak_memory};

/// Kernels of several communicators poll at the same time, in any order, since all of them are resident.
#[test]
fn communicators_of_the_same_gpus_poll_side_by_side() {
    must_pass("2-nvswitch", "gpu_traps::jobs::communicators");
}

/// As above, but one kernel stands behind the other in the only queue: that is the program's mistake, and an error.
#[test]
fn orders_that_differ_in_one_queue_end_at_the_deadline() {
    let machine = concat!(env!("CARGO_MANIFEST_DIR"), "/data/one-connection.toml");
    must_pass(machine, "gpu_traps::jobs::orders_differ_in_one_queue");
}

#[test]
fn a_kernel_that_polls_for_a_rank_of_its_process_ends_at_the_deadline() {
    must_pass("2-nvswitch", "gpu_traps::jobs::a_deadline");
}

#[test]
fn every_call_that_fails_between_gpus_is_an_error_and_leaves_nothing() {
    crate::matrix::gpu::every_call_fails("2-nvswitch");
}

/// With `CUDA_LAUNCH_BLOCKING=1` each launch waits for its kernel, and the kernel for the launch on the other GPU: a group
/// launches for each communicator on a thread of its own.
#[test]
fn one_thread_drives_two_gpus_where_launches_block() {
    for value in ["0", "1"] {
        let blocking = [("CUDA_LAUNCH_BLOCKING", value)];
        must_pass_with("2-nvswitch", "gpu_traps::jobs::one_thread_drives_two_gpus", &blocking);
    }
}

/// Each seed is another order in which stores become visible, and another part of the matrix.
#[test]
fn results_are_right_with_seeds_of_weak_memory() {
    // This builds the machine; the other seeds take it as it is.
    machine::run("1", &[], &["no test has this name"], &[]);
    let program = std::env::current_exe().expect("a program");
    let vcuda = program.ancestors().nth(2).expect("a folder of builds").join("vcuda");
    for seed in seeds_of_weak_memory("gpu_traps::results_are_right") {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=10", "120"]).arg(&vcuda).args(["run", "--strict", "--seed", &seed.to_string()]);
        command
            .args(["2-nvswitch", "--"])
            .arg(&program)
            .args(["matrix::gpu_traps::jobs::a_part_of_the_matrix", "--nocapture"]);
        command.env("RSCCL_TEST_PART", seed.to_string()).env_remove("VCUDA_FAIL").env_remove("CUDA_VISIBLE_DEVICES");
        let finished = command.stdin(Stdio::null()).output().expect("the machine starts");
        let output = String::from_utf8_lossy(&[finished.stdout, finished.stderr].concat()).into_owned();
        let seen = machine::gpus::all_have_seen("2-nvswitch", &output);
        assert!(finished.status.success() && seen.is_ok(), "seed {seed}: {seen:?}\n{output}");
    }
}

/// Placements count GPUs as the driver does, whatever hides some of them.
#[test]
fn placements_follow_what_the_driver_shows() {
    let seen = |list: Option<&str>| {
        let variables = list.map(|list| ("CUDA_VISIBLE_DEVICES", list));
        let job = ["matrix::gpu_traps::jobs::placements", "--exact"];
        let run = machine::run("4-nvswitch", &["--strict"], &job, variables.as_slice());
        run.must_pass(&format!("{list:?}"));
        let seen = run.output.lines().find_map(|line| line.split_once(VISIBLE_ARE)).map(|(_, names)| names.to_owned());
        seen.expect("it says what is visible").split_whitespace().map(str::to_owned).collect::<Vec<String>>()
    };
    let all = seen(None);
    let only = |numbers: &[usize]| numbers.iter().map(|number| all[*number].clone()).collect::<Vec<String>>();
    assert_eq!(all.len(), 4);
    assert_eq!(seen(Some("2,0")), only(&[2, 0]));
    assert_eq!(seen(Some("3,9,1")), only(&[3]), "the list ends at what names no GPU");
    assert_eq!(seen(Some("1,1")), only(&[]), "one is named twice");
    for none in ["-1", ""] {
        assert_eq!(seen(Some(none)), only(&[]), "{none:?}");
    }
    let mixed = format!("{},{},0,-1,2", all[3], &all[1][..16]);
    assert_eq!(seen(Some(&mixed)), only(&[3, 1, 0]), "a UUID, the beginning of one, a number");
}

/// Each word in backticks with an underscore is a test.
#[test]
fn the_table_of_traps_names_tests_that_there_are() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are a folder of the tree");
    let table = std::fs::read_to_string(root.join("tests/gpu-traps.md")).expect("the table");
    let (mut sources, mut folders) = (String::new(), vec![root.join("src"), root.join("tests"), root.join("vcuda")]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                sources.push_str(&std::fs::read_to_string(path).expect("a source"));
            }
        }
    }
    let words = table.split('`').skip(1).step_by(2);
    let is_test =
        |word: &&str| word.contains('_') && word.chars().all(|c| c.is_ascii_lowercase() || "_0123456789".contains(c));
    let names: Vec<&str> = words.filter(is_test).filter(|word| *word != "gpu_traps").collect();
    assert!(names.len() > 50, "{names:?}");
    // The functions behind `#[test]`, and not any of that name; and those that a macro makes tests of.
    let behind = sources.split("#[test]\n").skip(1).filter_map(|rest| rest.split_once("fn ")?.1.split_once('('));
    let mut tests: BTreeSet<&str> = behind.map(|(name, _)| name).collect();
    let lists = sources.split("in_both_worlds! {\n").skip(1).filter_map(|rest| rest.split_once('}'));
    tests.extend(lists.flat_map(|(names, _)| names.lines().map(str::trim)));
    let absent: Vec<&&str> = names.iter().filter(|name| !tests.contains(**name)).collect();
    assert!(absent.is_empty(), "tests/gpu-traps.md names what is no test: {absent:?}");
}

/// What a job prints before the UUIDs of the GPUs that it sees.
const VISIBLE_ARE: &str = "visible are";

mod jobs {
    use std::io::Write;
    use std::sync::Barrier;
    use std::time::Duration;

    use rsccl::comm::{DeviceStream, Placement};
    use rsccl::error::Kind;
    use rsccl::internals::device::cuda;
    use rsccl::internals::sys::clock::now;
    use rsccl::internals::sys::nvml;
    use rsccl::{Communicator, Config, Error, ReduceOp, Result, group, local};

    use super::VISIBLE_ARE;
    use crate::matrix::gpu::SEEDS;
    use crate::{KINDS, TIMEOUT, every_program, judge, run_rank, seed};
    use machine::gpus::enough;
    use testing::case::Placed;

    const COUNT: usize = 300;
    /// Calls that follow each other with nothing that waits between.
    const CALLS: u32 = 8;

    fn patient() -> Config {
        Config::default().with_timeout(TIMEOUT)
    }

    fn no_gpu() -> bool {
        enough(1, cuda::gpus()).is_none()
    }

    /// Sums, again and again, on a stream of the rank's own.
    fn sums(comm: &Communicator, start: u32) -> Result<()> {
        let stream = DeviceStream::new(comm.rank())?;
        let mut values = stream.alloc::<u32>(COUNT)?;
        stream.upload(&[comm.rank() + start; COUNT], values.slice_mut(..))?;
        for _ in 0..CALLS {
            comm.on(&stream).all_reduce_in_place(values.slice_mut(..), ReduceOp::Sum)?;
        }
        let mut found = [0; COUNT];
        stream.download(values.slice(..), &mut found)?;
        assert_eq!(found, [(2 * start + 1) << (CALLS - 1); COUNT]);
        Ok(())
    }

    /// Each has threads and streams of its own.
    #[test]
    fn communicators_of_two_threads_for_each_gpu() {
        if no_gpu() {
            return;
        }
        let ended = std::thread::scope(|scope| {
            let job = |start| scope.spawn(move || local::run_with(2, &patient(), |comm| sums(&comm, start)));
            let jobs: Vec<_> = [1, 5, 9].map(job).into_iter().collect();
            jobs.into_iter().map(|job| job.join().expect("no rank panics")).collect::<Vec<_>>()
        });
        ended.into_iter().for_each(|ended| assert!(ended.is_ok(), "{ended:?}"));
    }

    /// Rank 0 calls on the first communicator and then on the second, rank 1 the other way round, on two streams each.
    fn in_two_orders(comm: &Communicator) -> Result<()> {
        let me = comm.rank();
        let second = comm.split(Some(0), i64::from(me))?.expect("all ranks are in it");
        let streams = [DeviceStream::new(me)?, DeviceStream::new(me)?];
        let mut values = [streams[0].alloc::<u32>(COUNT)?, streams[1].alloc::<u32>(COUNT)?];
        // The set-up of each waits for the other rank.
        for (comm, stream) in [comm, &second].into_iter().zip(&streams) {
            comm.on(stream).barrier()?;
            stream.synchronize()?;
        }
        for (stream, values) in streams.iter().zip(&mut values) {
            stream.upload(&[me + 1; COUNT], values.slice_mut(..))?;
        }
        for turn in 0..CALLS {
            for place in [me + turn, me + turn + 1].map(|place| place as usize % 2) {
                let comm = [comm, &second][place];
                comm.on(&streams[place]).all_reduce_in_place(values[place].slice_mut(..), ReduceOp::Sum)?;
            }
        }
        for (stream, values) in streams.iter().zip(&values) {
            let mut found = [0; COUNT];
            stream.download(values.slice(..), &mut found)?;
            // Why a launch ended early is known a little later than that it has ended.
            let until = now() + SHORT;
            if found != [3 << (CALLS - 1); COUNT] {
                loop {
                    assert!(now() < until, "{:?}", &found[..3]);
                    [comm, &second].into_iter().find_map(Communicator::async_error).map_or(Ok(()), Err)?;
                    std::thread::yield_now();
                }
            }
        }
        second.finalize()
    }

    #[test]
    fn communicators_called_in_different_orders() {
        if no_gpu() {
            return;
        }
        let ended = local::run_with(2, &patient(), |comm| in_two_orders(&comm));
        ended.expect("the orders of different streams do not matter");
    }

    #[test]
    fn orders_differ_in_one_queue() {
        if no_gpu() {
            return;
        }
        let config = Config::default().with_timeout(SHORT);
        let error = local::run_with(2, &config, |comm| in_two_orders(&comm)).expect_err("each waits for the other");
        assert_eq!(error.kind(), Kind::Timeout, "{error}");
    }

    /// Far below the time after which the machine calls it a deadlock.
    const SHORT: Duration = Duration::from_secs(2);

    #[test]
    fn one_thread_drives_two_gpus() {
        if no_gpu() {
            return;
        }
        let comms = local::run_with(2, &patient(), Ok).expect("both start");
        let streams: Vec<_> = (0..2).map(|gpu| DeviceStream::new(gpu).expect("a stream")).collect();
        let mut values: Vec<_> = streams.iter().map(|stream| stream.alloc::<u32>(COUNT).expect("memory")).collect();
        for (rank, (stream, values)) in (0..).zip(streams.iter().zip(&mut values)) {
            stream.upload(&[rank + 1; COUNT], values.slice_mut(..)).expect("a copy");
        }
        for _ in 0..CALLS {
            let called = group(|group| {
                let both = comms.iter().zip(&streams).zip(&mut values);
                both.into_iter().try_for_each(|((comm, stream), values)| {
                    group.on_stream(comm, stream).all_reduce_in_place(values.slice_mut(..), ReduceOp::Sum)
                })
            });
            called.expect("the group runs");
        }
        for (stream, values) in streams.iter().zip(&values) {
            let mut found = [0; COUNT];
            stream.download(values.slice(..), &mut found).expect("a copy");
            assert_eq!(found, [3 << (CALLS - 1); COUNT]);
        }
        group_finalize(comms);
    }

    /// Each rank's end waits for the other's.
    fn group_finalize(comms: Vec<Communicator>) {
        std::thread::scope(|scope| {
            comms.into_iter().for_each(|comm| drop(scope.spawn(move || comm.finalize().expect("all is done"))));
        });
    }

    /// Rank 1 never calls; the memory is as it was, the stream goes on, and the error names rank 1.
    #[test]
    fn a_deadline_while_a_kernel_polls() {
        if no_gpu() {
            return;
        }
        let over = Barrier::new(2);
        let told = local::run_with(2, &Config::default().with_timeout(SHORT), |comm| {
            let stream = DeviceStream::new(comm.rank())?;
            let mut buffer = stream.alloc::<u32>(COUNT)?;
            stream.upload(&[7; COUNT], buffer.slice_mut(..))?;
            comm.on(&stream).barrier()?;
            stream.synchronize()?;
            if comm.rank() == 1 {
                over.wait();
                return Ok(String::new());
            }
            let called = comm.on(&stream).all_reduce_in_place(buffer.slice_mut(..), ReduceOp::Sum);
            let until = now() + TIMEOUT;
            while called.is_ok() && comm.async_error().is_none() && now() < until {
                std::thread::yield_now();
            }
            let error = called.and_then(|()| comm.on(&stream).barrier());
            let mut found = [0; COUNT];
            let read = stream.download(buffer.slice(..), &mut found);
            over.wait();
            read?;
            assert_eq!(found, [7; COUNT]);
            Ok(error.expect_err("rank 1 does not come").to_string())
        });
        let told = told.expect("both ranks end").concat();
        assert!(told.contains("timed out after 2.0 s") && told.contains("rank 1"), "{told}");
    }

    /// As many parts as there are seeds make the whole.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test that starts this one says which part")]
    fn a_part_of_the_matrix() {
        if no_gpu() {
            return;
        }
        let part: u64 = std::env::var("RSCCL_TEST_PART").map_or(0, |part| part.parse().expect("a number"));
        let all = (0..).zip(every_program(4, &[131], &KINDS[..1]));
        let cases: Vec<_> = all.filter(|(number, _)| number % SEEDS == part % SEEDS).map(|(_, case)| case).collect();
        assert!(!cases.is_empty());
        let (config, seed) = (patient().with_proto("Simple"), seed());
        let failures = local::run_with(4, &config, |comm| {
            let stream = DeviceStream::new(comm.rank() / 2)?;
            run_rank(comm, &Placed::Device(stream), &cases, seed)
        });
        judge(&format!("part {part}, seed {seed}"), failures.expect("ranks start and end").concat());
    }

    #[test]
    fn placements() {
        let seen: Vec<[u8; 16]> = cuda::gpus().unwrap_or_default().iter().map(|gpu| gpu.uuid().0).collect();
        // The test that starts this one may hide all of them; how many there are, it compares.
        enough(0, Ok::<_, Error>(cuda::gpus().unwrap_or_default()));
        let names: Vec<String> = cuda::gpus().unwrap_or_default().iter().map(|gpu| gpu.uuid().to_string()).collect();
        writeln!(std::io::stderr(), "{VISIBLE_ARE} {}", names.join(" ")).expect("standard error is open");
        let placements = local::run_with(4, &patient(), |comm| comm.placement()).expect("all tell where they are");
        let known = nvml::gpus().unwrap_or_default();
        for (rank, Placement { device, .. }) in placements.iter().enumerate() {
            let Some(device) = device else {
                assert!(seen.is_empty(), "rank {rank} has no GPU");
                continue;
            };
            assert_eq!(device.ordinal as usize, rank % seen.len(), "rank {rank}");
            let sharers = (0..4).filter(|other| other % seen.len() == rank % seen.len()).count();
            assert_eq!(device.shared_by as usize, sharers, "rank {rank}");
            let gpu = known.iter().find(|gpu| gpu.bus_id == device.bus_id).expect("NVML knows its place");
            assert_eq!(gpu.uuid, Some(seen[device.ordinal as usize]), "rank {rank}");
            DeviceStream::new(device.ordinal).expect("it can be used");
        }
    }
}
