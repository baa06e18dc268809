//! Collectives on streams of devices whose memory the processor cannot touch: several devices, capture, mismatches,
//! ranks that never come. And the contract that every kind of device keeps, in `devices::contract`.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end where something fails")]

mod devices {
    mod contract;
    mod waits;
}

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rsccl::comm::DeviceStream;
use rsccl::error::Kind;
use rsccl::internals::sys::clock::now;
use rsccl::{Communicator, Config, ReduceOp, local};
use testing::far::{Far, FarGraph};

/// Ranks 0 and 1 on device 0, ranks 2 and 3 on device 1.
#[test]
fn ranks_on_two_devices_work_in_each_others_memory_by_streams() {
    Far::add(0..2);
    local::run(4, |comm| {
        let stream = DeviceStream::new(comm.rank() / 2)?;
        for count in [1, 1000, 100_000] {
            let mut mine = stream.alloc::<u32>(count)?;
            let mut sum = stream.alloc::<u32>(count)?;
            stream.upload(&vec![comm.rank() + 1; count], mine.slice_mut(..))?;
            let on = comm.on(&stream);
            on.all_reduce(mine.slice(..), sum.slice_mut(..), ReduceOp::Sum)?;
            on.broadcast(mine.slice_mut(..), 2)?;
            let (mut reduced, mut sent) = (vec![0; count], vec![0; count]);
            stream.download(sum.slice(..), &mut reduced)?;
            stream.download(mine.slice(..), &mut sent)?;
            assert_eq!((reduced, sent), (vec![10; count], vec![3; count]), "{count} elements, rank {}", comm.rank());
        }
        Ok(())
    })
    .unwrap();
}

/// A captured call is replayed a hundred times without host code in between: epochs and flags go on counting in device
/// memory.
#[test]
fn captured_collectives_replay_a_hundred_times() {
    replay(10..12, 100, &Config::default());
}

/// The same of ranks that may not share memory, as if each were on a host of its own: a thread serves the replays.
#[test]
fn captured_collectives_of_several_hosts_replay_a_thousand_times() {
    replay(20..22, 1000, &apart());
}

/// As if each rank were on a host of its own.
fn apart() -> Config {
    Config::default().with_p2p_disable(true).with_shm_disable(true).with_socket_interfaces("lo")
}

/// Captures calls of four ranks on two devices, and replays them `runs` times.
fn replay(devices: std::ops::Range<u32>, runs: u32, config: &Config) {
    Far::add(devices.clone());
    let (meeting, graph) = (std::sync::Barrier::new(4), std::sync::Mutex::new(None));
    local::run_with(4, config, |comm| {
        let stream = DeviceStream::new(devices.start + comm.rank() / 2)?;
        let on = comm.on(&stream);
        let (mut sum, mut gathered) = (stream.alloc::<u32>(1000)?, stream.alloc::<u32>(4000)?);
        let mut passed = stream.alloc::<u32>(1000)?;
        let (left, right) = ((comm.rank() + 3) % 4, (comm.rank() + 1) % 4);
        // The set-up runs on the host, so a call outside the capture comes first.
        on.all_reduce_in_place(sum.slice_mut(..), ReduceOp::Sum)?;
        on.send_recv(sum.slice(..), right, passed.slice_mut(..), left)?;
        stream.upload(&vec![comm.rank() + 1; 1000], sum.slice_mut(..))?;
        meeting.wait();
        if comm.rank() == 0 {
            FarGraph::begin(devices.clone());
        }
        meeting.wait();
        // Each run multiplies by the number of ranks, once all have the same.
        on.all_reduce_in_place(sum.slice_mut(..), ReduceOp::Sum)?;
        on.all_gather(sum.slice(..), gathered.slice_mut(..))?;
        on.send_recv(gathered.slice(3000..), right, passed.slice_mut(..), left)?;
        let waited = [stream.synchronize(), stream.upload(&[1; 1000], passed.slice_mut(..))];
        meeting.wait();
        if comm.rank() == 0 {
            let mut captured = FarGraph::end(devices.clone());
            (0..runs).for_each(|_| captured.launch());
            *graph.lock().unwrap() = Some(captured);
        }
        meeting.wait();
        for waited in waited {
            assert_eq!(waited.expect_err("it is captured").kind(), Kind::InvalidUsage);
        }
        stream.synchronize()?;
        let expected = (1..runs).fold(10u32, |sum, _| sum.wrapping_mul(4));
        let (mut sums, mut all) = (vec![0; 1000], vec![0; 4000]);
        stream.download(sum.slice(..), &mut sums)?;
        stream.download(gathered.slice(..), &mut all)?;
        assert_eq!((&sums, &all), (&vec![expected; 1000], &vec![expected; 4000]));
        stream.download(passed.slice(..), &mut sums)?;
        assert_eq!(sums, vec![expected; 1000]);
        // Calls outside the graph go on from the words that the replays have left.
        on.all_reduce_in_place(sum.slice_mut(..), ReduceOp::Max)?;
        stream.download(sum.slice(..), &mut sums)?;
        assert_eq!(sums, vec![expected; 1000]);
        Ok(())
    })
    .unwrap();
}

/// Regression: the rank said goodbye at once, and its receiver, whose stream was busy, took it for gone half a second later.
#[test]
fn a_rank_that_finalizes_behind_a_long_send_leaves_when_it_is_sent() {
    // More than slots and sockets hold.
    const LONG: usize = 16 << 20;
    Far::add(80..83);
    let config = apart().with_timeout(Duration::from_secs(60));
    let leaves = AtomicBool::new(false);
    local::run_with(3, &config, |comm| {
        let stream = DeviceStream::new(80 + comm.rank())?;
        let mut buffer = stream.alloc::<u32>(LONG)?;
        // What rank 1 waits for before it receives, in a communicator that rank 0 is not in.
        let gate = comm.split((comm.rank() > 0).then_some(0), 0)?;
        comm.on(&stream).barrier()?;
        // Connections are opened now: a call that opens one waits for its peer.
        match (comm.rank(), &gate) {
            (1, Some(gate)) => {
                gate.on(&stream).recv(buffer.slice_mut(..1), 1)?;
                comm.on(&stream).recv(buffer.slice_mut(..1), 0)?;
            }
            (2, Some(gate)) => gate.on(&stream).send(buffer.slice(..1), 0)?,
            _ => comm.on(&stream).send(buffer.slice(..1), 1)?,
        }
        match (comm.rank(), &gate) {
            (1, Some(gate)) => {
                gate.on(&stream).recv(buffer.slice_mut(..1), 1)?;
                comm.on(&stream).recv(buffer.slice_mut(..), 0)?;
                let mut found = vec![0; LONG];
                stream.download(buffer.slice(..), &mut found)?;
                assert!(found.iter().all(|value| *value == 7), "all of it has come");
            }
            (2, Some(gate)) => {
                // For longer than peers believe in a rank that has said goodbye; one that has not is unharmed by any time.
                let deadline = now() + Duration::from_secs(20);
                while !leaves.load(Ordering::Acquire) && now() < deadline {
                    std::thread::yield_now();
                }
                let (_sender, nothing) = std::sync::mpsc::channel::<()>();
                nothing.recv_timeout(Duration::from_secs(1)).expect_err("nobody sends");
                gate.on(&stream).send(buffer.slice(..1), 0)?;
            }
            _ => {
                stream.upload(&vec![7; LONG], buffer.slice_mut(..))?;
                comm.on(&stream).send(buffer.slice(..), 1)?;
                leaves.store(true, Ordering::Release);
            }
        }
        if let Some(gate) = gate {
            gate.finalize()?;
        }
        comm.finalize()
    })
    .unwrap();
}

/// A rank that calls something else is named, the streams go on, and their memory can be used and freed.
#[test]
fn a_mismatch_on_a_stream_names_both_calls_and_leaves_the_stream_usable() {
    Far::add(20..22);
    let config = Config::default().with_timeout(Duration::from_secs(20));
    let errors = local::run_with(2, &config, |comm| {
        let stream = DeviceStream::new(20 + comm.rank())?;
        let on = comm.on(&stream);
        let mut values = stream.alloc::<u32>(300)?;
        on.barrier()?;
        let count = if comm.rank() == 0 { 300 } else { 200 };
        on.all_reduce_in_place(values.slice_mut(..count), ReduceOp::Sum)?;
        assert_eq!(stream.synchronize().expect_err("the calls differ").kind(), Kind::Mismatch);
        let deadline = now() + Duration::from_secs(20);
        while comm.async_error().is_none() && now() < deadline {
            std::thread::yield_now();
        }
        let error = on.barrier().expect_err("the communicator has ended");
        stream.upload(&[7; 300], values.slice_mut(..))?;
        let mut back = [0; 300];
        stream.download(values.slice(..), &mut back)?;
        assert_eq!(back, [7; 300]);
        Ok((error.kind(), error.to_string()))
    });
    for (kind, text) in errors.unwrap() {
        assert_eq!(kind, Kind::Mismatch, "{text}");
        assert!(text.contains("count 300") && text.contains("count 200"), "{text}");
    }
}

/// A rank that never calls is named at the deadline, where ranks share the device and where they do not.
#[test]
fn a_rank_that_never_calls_is_found_at_the_deadline() {
    Far::add(30..32);
    for devices in [1, 2] {
        let config = Config::default().with_timeout(Duration::from_secs(2));
        let over = std::sync::Barrier::new(2);
        let outcome = local::run_with(2, &config, |comm| {
            let stream = DeviceStream::new(30 + comm.rank() % devices)?;
            let on = comm.on(&stream);
            on.barrier()?;
            stream.synchronize()?;
            if comm.rank() == 1 {
                over.wait();
                return Ok(Vec::new());
            }
            let called = on.barrier();
            let synchronized = stream.synchronize();
            // Two devices wait on the devices, so that the stream says it; else the call has.
            assert_eq!(called.is_ok(), synchronized.is_err());
            let error = called.and_then(|()| on.barrier()).expect_err("rank 1 does not come");
            over.wait();
            Ok([Some(error), synchronized.err()].into_iter().flatten().map(|error| error.to_string()).collect())
        });
        let told = outcome.unwrap().concat();
        assert_eq!(told.len(), devices as usize);
        assert!(told.iter().all(|told| told.contains("rank 1")), "{devices} devices: {told:?}");
    }
}

/// Messages are between their two ranks: others on the same device need not call.
#[test]
fn two_ranks_of_a_device_exchange_messages_while_the_others_do_something_else() {
    Far::add(40..41);
    local::run(4, |comm| {
        let stream = DeviceStream::new(40)?;
        let on = comm.on(&stream);
        on.barrier()?;
        let (mut mine, mut theirs) = (stream.alloc::<u64>(300_000)?, stream.alloc::<u64>(300_000)?);
        if comm.rank() < 2 {
            let other = 1 - comm.rank();
            stream.upload(&vec![u64::from(comm.rank()); 300_000], mine.slice_mut(..))?;
            on.send_recv(mine.slice(..), other, theirs.slice_mut(..), other)?;
            let mut got = vec![9; 300_000];
            stream.download(theirs.slice(..), &mut got)?;
            assert_eq!(got, vec![u64::from(other); 300_000]);
        }
        on.barrier()?;
        stream.synchronize()
    })
    .unwrap();
}

/// One rank passes device memory, the other host memory, in the first call on devices or in a later one: each gets an
/// error that tells the other's call.
#[test]
fn a_rank_that_calls_on_host_memory_is_told_from_one_on_a_device() {
    Far::add(50..51);
    for calls_before in [0, 1] {
        let config = Config::default().with_timeout(Duration::from_secs(20));
        let errors = local::run_with(2, &config, |comm| {
            let stream = DeviceStream::new(50)?;
            (0..calls_before).try_for_each(|_| comm.on(&stream).barrier())?;
            let mut there = stream.alloc::<u32>(10)?;
            let result = if comm.rank() == 0 {
                comm.all_reduce_in_place(&mut [1u32; 10], ReduceOp::Sum)
            } else {
                let mine = comm.on(&stream).all_reduce_in_place(there.slice_mut(..), ReduceOp::Sum);
                mine.and_then(|()| stream.synchronize())
            };
            let error = result.expect_err("the other rank gives other memory");
            Ok((error.kind(), error.to_string()))
        });
        for (kind, text) in errors.unwrap() {
            assert_eq!(kind, Kind::Mismatch, "{calls_before} calls before: {text}");
            assert!(text.contains("a device"), "{calls_before} calls before: {text}");
        }
    }
}

/// One thread has all ranks. The calls of a group wait for each other; calls on one stream keep their order, and
/// messages may be added in any order.
#[test]
fn a_group_puts_the_calls_of_all_ranks_of_a_thread_into_their_streams() {
    const DEVICES: std::ops::Range<u32> = 60..62;
    Far::add(DEVICES);
    let comms = Communicator::init_all(4, &Config::default().with_timeout(Duration::from_secs(20))).unwrap();
    let streams = [0, 0, 1, 1].map(|device| DeviceStream::new(DEVICES.start + device).unwrap());
    let mut memory: Vec<_> = (0u32..)
        .zip(&streams)
        .map(|(rank, stream)| {
            let mut buffers = [(); 3].map(|()| stream.alloc::<u32>(500).unwrap());
            buffers.iter_mut().for_each(|buffer| stream.upload(&[rank + 1; 500], buffer.slice_mut(..)).unwrap());
            buffers
        })
        .collect();
    rsccl::group(|group| {
        for ((comm, stream), [reduced, sent, passed]) in comms.iter().zip(&streams).zip(&mut memory) {
            let (left, right) = ((comm.rank() + 3) % 4, (comm.rank() + 1) % 4);
            group.on_stream(comm, stream).all_reduce_in_place(reduced.slice_mut(..), ReduceOp::Sum)?;
            group.on_stream(comm, stream).recv(passed.slice_mut(..), left)?;
            group.on_stream(comm, stream).send(sent.slice(..), right)?;
        }
        Ok(())
    })
    .unwrap();
    for ((comm, stream), [reduced, _, passed]) in comms.iter().zip(&streams).zip(&memory) {
        let (mut sum, mut got) = ([0; 500], [0; 500]);
        stream.download(reduced.slice(..), &mut sum).unwrap();
        stream.download(passed.slice(..), &mut got).unwrap();
        assert_eq!((sum, got), ([10; 500], [(comm.rank() + 3) % 4 + 1; 500]), "rank {}", comm.rank());
    }
}

/// Ranks 0 and 1 share a device, and one of them captures: their message is an error, which does no harm. Regression: of
/// the message to rank 2, in the same call, nobody moved more than fits into slots.
#[test]
fn the_messages_of_a_call_that_fails_in_part_arrive() {
    const LONG: usize = 16 << 20;
    Far::add(100..102);
    let meeting = std::sync::Barrier::new(3);
    local::run_with(3, &apart().with_timeout(Duration::from_secs(20)), |comm| {
        let stream = DeviceStream::new(100 + comm.rank() / 2)?;
        let (mut long, mut short) = (stream.alloc::<u32>(LONG)?, stream.alloc::<u32>(1)?);
        comm.on(&stream).barrier()?;
        stream.upload(&vec![comm.rank(); LONG], long.slice_mut(..))?;
        stream.synchronize()?;
        meeting.wait();
        match comm.rank() {
            0 => {
                let deadline = now() + Duration::from_secs(20);
                while !FarGraph::has_captured(100) {
                    assert!(now() < deadline, "rank 1 calls");
                    std::thread::yield_now();
                }
                drop(FarGraph::end(100..101));
                let error = comm.on(&stream).send_recv(long.slice(..), 2, short.slice_mut(..), 1);
                assert_eq!(error.expect_err("rank 1 captures").kind(), Kind::InvalidUsage);
            }
            1 => {
                FarGraph::begin(100..101);
                let error = comm.on(&stream).send(short.slice(..), 0);
                assert_eq!(error.expect_err("rank 0 does not capture").kind(), Kind::InvalidUsage);
            }
            _ => {
                comm.on(&stream).recv(long.slice_mut(..), 0)?;
                let mut found = vec![1; LONG];
                stream.download(long.slice(..), &mut found)?;
                assert!(found.iter().all(|value| *value == 0), "all of it has come");
            }
        }
        comm.finalize()
    })
    .unwrap();
}

/// Regression: a communicator that had failed kept it, and the others' memory with it.
#[test]
fn a_communicator_that_has_failed_takes_a_window_back() {
    const DEVICE: u32 = 90;
    Far::add(DEVICE..DEVICE + 1);
    let comm = Communicator::init_all(1, &Config::default()).unwrap().remove(0);
    let stream = DeviceStream::new(DEVICE).unwrap();
    let buffer = stream.alloc_shareable::<u32>(1000).unwrap();
    let window = comm.register_window(&buffer).unwrap();
    comm.abort("enough");
    let before = Far::allocations(DEVICE);
    drop(buffer);
    assert_eq!(Far::allocations(DEVICE), before, "the window keeps it");
    let error = comm.deregister_window(window).expect_err("it has failed");
    assert_eq!(error.kind(), Kind::Aborted, "{error}");
    assert_eq!(Far::allocations(DEVICE), before - 1);
}

/// More calls than the monitor watches at a time: the caller waits for the oldest.
#[test]
fn a_stream_takes_any_number_of_calls() {
    Far::add(70..71);
    local::run(2, |comm| {
        let stream = DeviceStream::new(70)?;
        let mut values = stream.alloc::<u32>(3)?;
        stream.upload(&[comm.rank(); 3], values.slice_mut(..))?;
        for _ in 0..2500 {
            comm.on(&stream).all_reduce_in_place(values.slice_mut(..), ReduceOp::Max)?;
        }
        let mut found = [0; 3];
        stream.download(values.slice(..), &mut found)?;
        assert_eq!(found, [1; 3]);
        comm.finalize()
    })
    .unwrap();
}

#[cfg(feature = "cuda")]
#[test]
fn the_contract_holds_on_virtual_gpus() {
    for name in ["1", "2-nvswitch"] {
        let run = machine::run(name, &["--strict"], &["devices::contract::", "--test-threads=2"], &[]);
        run.must_pass(name);
    }
}
