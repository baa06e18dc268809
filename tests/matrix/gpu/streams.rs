//! Calls on streams that a program has made: cudarc's, and handles of the driver.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier};

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaGraph, CudaStream, DevicePtr as _, DevicePtrMut as _};
use rsccl::comm::{Buffers, Call, CallCount, DeviceBuffer, DeviceSlice, DeviceSliceMut, DeviceStream};
use rsccl::error::Kind;
use rsccl::internals::device::cuda;
use rsccl::internals::sys::clock::now;
use rsccl::types::{Collective, DataType, Scalar};
use rsccl::{Communicator, Config, Progress, ReduceOp, Result, local};

use crate::TIMEOUT;
use machine::gpus::enough;
use testing::own_memory::OwnMemory;

/// cudarc's context of GPU 0, if there is a GPU.
fn context() -> Option<Arc<CudaContext>> {
    enough(1, cuda::gpus())?;
    Some(CudaContext::new(0).expect("the primary context"))
}

fn config() -> Config {
    Config::default().with_timeout(TIMEOUT)
}

const COUNT: usize = 300;

/// Sums, ten times, what the program's stream copies into `mine`, with nothing on the host that waits between.
fn sum_in_turn(comm: &Communicator, own: &Arc<CudaStream>) -> Result<()> {
    sums_in_turn::<COUNT>(comm, own)
}

fn sums_in_turn<const COUNT: usize>(comm: &Communicator, own: &Arc<CudaStream>) -> Result<()> {
    let stream = DeviceStream::from_cudarc(own)?;
    let mut mine = own.alloc_zeros::<u32>(COUNT).expect("memory");
    let mut sum = own.alloc_zeros::<u32>(COUNT).expect("memory");
    for turn in 0..10 {
        own.memcpy_htod(&[turn + comm.rank(); COUNT], &mut mine).expect("a copy");
        {
            let (from, _read) = mine.device_ptr(own);
            let (into, _written) = sum.device_ptr_mut(own);
            // SAFETY: the memory has as many elements, and its owners free it in the order of the same stream.
            let from = unsafe { DeviceSlice::<u32>::from_raw(&stream, from, COUNT) };
            // SAFETY: as above.
            let into = unsafe { DeviceSliceMut::<u32>::from_raw(&stream, into, COUNT) };
            comm.on(&stream).all_reduce(from, into, ReduceOp::Sum)?;
        }
        let found = own.clone_dtoh(&sum).expect("a copy");
        own.synchronize().expect("the work ends");
        let expected = (0..comm.size()).map(|rank| turn + rank).sum::<u32>();
        assert_eq!(found, [expected; COUNT], "rank {} of {}, turn {turn}", comm.rank(), comm.size());
    }
    Ok(())
}

#[test]
fn calls_take_their_turn_in_streams_of_cudarc() {
    let Some(context) = context() else { return };
    for ranks in [1, 2, 5] {
        let each = |comm: Communicator| sum_in_turn(&comm, &context.new_stream().expect("a stream"));
        local::run_with(ranks, &config(), each).expect("own streams");
    }
    let one = context.new_stream().expect("a stream");
    local::run_with(3, &config(), |comm| sum_in_turn(&comm, &one)).expect("one stream");
    local::run_with(2, &config(), |comm| sum_in_turn(&comm, &context.default_stream())).expect("the null stream");
    let per_thread = |comm: Communicator| sum_in_turn(&comm, &context.per_thread_stream());
    local::run_with(2, &config(), per_thread).expect("the threads' streams");
}

/// What cudarc allocates is memory of a pool, which other GPUs do not reach.
#[test]
fn on_several_gpus_calls_work_in_memory_of_pools() {
    if enough(2, cuda::gpus()).is_none() {
        return;
    }
    local::run_with(2, &config(), |comm| {
        let context = CudaContext::new(comm.rank() as usize).expect("the primary context");
        let own = context.new_stream().expect("a stream");
        sums_in_turn::<COUNT>(&comm, &own)?;
        // More than lines take.
        sums_in_turn::<100_000>(&comm, &own)?;
        comm.finalize()
    })
    .expect("each in its own pool");
}

/// The program works with the other GPU's context. Rank 1 comes once the hook of rank 0 was called.
#[test]
fn on_several_gpus_a_hook_finds_the_context_of_the_program() {
    if enough(2, cuda::gpus()).is_none() {
        return;
    }
    let (calls, strange) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let ended = local::run_with(2, &config(), |comm| {
        let stream = DeviceStream::new(comm.rank())?;
        let mut memory = stream.alloc::<u32>(COUNT)?;
        let other = CudaContext::new(1 - comm.rank() as usize).expect("the primary context");
        other.bind_to_thread().expect("it becomes current");
        let mine = other.cu_ctx().addr();
        for kind in 0..3 {
            let mut call = || match kind {
                0 => comm.run(&Call {
                    collective: Collective::AllReduce,
                    data_type: DataType::U32,
                    op: Some(ReduceOp::Sum),
                    root: None,
                    count: CallCount::Each(COUNT as u64),
                    buffers: Buffers::shared_on_device(memory.slice_mut(..)),
                }),
                1 => {
                    comm.on(&stream).all_reduce_in_place(memory.slice_mut(..), ReduceOp::Sum)?;
                    stream.synchronize()
                }
                _ => {
                    comm.on(&stream).all_reduce_in_place(memory.slice_mut(..), ReduceOp::Sum)?;
                    stream.download(memory.slice(..), &mut [0; COUNT])
                }
            };
            call()?;
            comm.barrier()?;
            let before = calls.load(Ordering::Acquire);
            comm.barrier()?;
            if comm.rank() == 0 {
                let (counted, wrong) = (Arc::clone(&calls), Arc::clone(&strange));
                comm.set_progress(Some(Progress::new(move || {
                    let current = cudarc::driver::result::ctx::get_current().expect("the driver tells it");
                    let is_mine = current.is_some_and(|current| current.addr() == mine);
                    wrong.fetch_add(u32::from(!is_mine), Ordering::AcqRel);
                    counted.fetch_add(1, Ordering::AcqRel);
                    Ok(())
                })))?;
            } else {
                let deadline = now() + TIMEOUT;
                while calls.load(Ordering::Acquire) == before && now() < deadline {
                    std::thread::yield_now();
                }
                assert!(calls.load(Ordering::Acquire) > before, "kind {kind}: no hook was called");
            }
            call()?;
            comm.set_progress(None)?;
        }
        stream.synchronize()?;
        drop((memory, stream));
        comm.finalize()
    });
    ended.expect("both ranks end well");
    assert_eq!(strange.load(Ordering::Acquire), 0, "in {} calls of the hook", calls.load(Ordering::Acquire));
}

/// Two threads, each on a GPU, with memory that they have allocated themselves in the way of that name.
fn with_own_memory(body: impl Fn(&Communicator, &DeviceStream, &dyn Fn(&str) -> OwnMemory) -> Result<()> + Sync) {
    if enough(2, cuda::gpus()).is_none() {
        return;
    }
    let simple = config().with_proto("Simple");
    let ended = local::run_with(2, &simple, |comm| {
        let gpu = comm.rank();
        let stream = DeviceStream::new(gpu)?;
        body(&comm, &stream, &|kind| OwnMemory::new(gpu as usize, kind, 4 * MANY))?;
        stream.synchronize()?;
        // Nobody frees what the other one's kernels work in.
        comm.barrier()?;
        comm.finalize()
    });
    ended.expect("both ranks end");
}

const MANY: usize = 20_000;

fn sum_in(comm: &Communicator, stream: &DeviceStream, buffer: &mut DeviceBuffer<u32>) -> Result<()> {
    stream.upload(&vec![comm.rank() + 1; MANY], buffer.slice_mut(..))?;
    comm.on(stream).all_reduce_in_place(buffer.slice_mut(..), ReduceOp::Sum)?;
    let mut found = vec![0; MANY];
    stream.download(buffer.slice(..), &mut found)?;
    assert_eq!(found, [3; MANY], "rank {}", comm.rank());
    Ok(())
}

/// Memory that other GPUs may not touch is registered in name.
#[test]
fn on_several_gpus_windows_of_own_memory() {
    with_own_memory(|comm, stream, allocate| {
        for (kind, direct) in [("alloc", true), ("map", false), ("parts", false), ("pool", false)] {
            let memory = allocate(kind);
            // SAFETY: so much lies there, and it is freed below, when both ranks have come to the barrier.
            let mut buffer = unsafe { DeviceBuffer::from_raw(stream, memory.address, MANY) }?;
            let window = comm.register_window(&buffer)?;
            assert_eq!(window.is_direct(), direct, "{kind}");
            sum_in(comm, stream, &mut buffer)?;
            comm.deregister_window(window)?;
            sum_in(comm, stream, &mut buffer)?;
            comm.barrier()?;
        }
        Ok(())
    });
}

/// The driver gives the same address to other memory: the window is not of that.
#[test]
fn on_several_gpus_memory_that_was_freed_is_no_window() {
    with_own_memory(|comm, stream, allocate| {
        let memory = allocate("alloc");
        // SAFETY: so much lies there, and no call works in it once it is freed, since each is refused.
        let mut buffer = unsafe { DeviceBuffer::<u32>::from_raw(stream, memory.address, MANY) }?;
        let window = comm.register_window(&buffer)?;
        sum_in(comm, stream, &mut buffer)?;
        comm.barrier()?;
        drop(memory);
        let _other = allocate("alloc");
        let refused = comm.on(stream).all_reduce_in_place(buffer.slice_mut(..), ReduceOp::Sum).unwrap_err();
        assert!(refused.kind() == Kind::InvalidUsage && refused.message().contains("was freed"), "{refused}");
        comm.deregister_window(window)
    });
}

#[test]
fn on_several_gpus_memory_that_is_not_there_is_refused() {
    with_own_memory(|_, stream, allocate| {
        let memory = allocate("alloc");
        // SAFETY: it is refused, so nothing works in it.
        let refused = |address, count| unsafe { DeviceBuffer::<u32>::from_raw(stream, address, count) }.unwrap_err();
        for (address, count, words) in [
            (memory.address, 1 << 30, "bytes there"),
            (4096, 1, "there is no GPU memory"),
            (memory.address + 1, 1, "cannot hold"),
            (memory.address, usize::MAX, "too large"),
        ] {
            let error = refused(address, count);
            assert!(error.kind() == Kind::InvalidArgument && error.message().contains(words), "{error}");
        }
        Ok(())
    });
}

/// The null stream has two names, and the third handle is each thread's own stream.
#[test]
fn the_handles_that_always_exist_are_streams() {
    if context().is_none() {
        return;
    }
    for handles in [[0, 0], [1, 0], [2, 2], [0, 2], [2, 1]] {
        let ended = local::run_with(2, &config(), |comm| {
            let handle = std::ptr::without_provenance_mut(handles[comm.rank() as usize]);
            // SAFETY: these streams always exist.
            let stream = unsafe { DeviceStream::from_raw(0, handle) }?;
            let mut values = stream.alloc::<u32>(COUNT)?;
            for turn in 1..5 {
                stream.upload(&[turn + comm.rank(); COUNT], values.slice_mut(..))?;
                comm.on(&stream).all_reduce_in_place(values.slice_mut(..), ReduceOp::Sum)?;
                let mut found = [0; COUNT];
                stream.download(values.slice(..), &mut found)?;
                assert_eq!(found, [2 * turn + 1; COUNT], "{handles:?}");
            }
            comm.finalize()
        });
        ended.expect("both ranks end well");
    }
}

/// Begins a capture in global mode, which any unsafe call of any thread spoils, and makes the other streams join it.
pub(crate) fn begin(streams: &[Arc<CudaStream>]) {
    streams[0].begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).expect("a capture");
    streams[1..].iter().for_each(|stream| stream.join(&streams[0]).expect("a fork"));
}

/// Begins a capture that unsafe calls of this thread alone spoil: other threads capture and instantiate graphs meanwhile.
pub(crate) fn begin_beside(stream: &Arc<CudaStream>) {
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("a capture");
}

/// What the streams have captured, which runs on the first. Nobody may capture in global mode meanwhile: to instantiate a
/// graph is an unsafe call, which invalidates such a capture (driver 13.0 on an H200).
pub(crate) fn end(streams: &[Arc<CudaStream>]) -> CudaGraph {
    streams[1..].iter().for_each(|stream| streams[0].join(stream).expect("a join"));
    let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    streams[0].end_capture(flags).expect("the capture is valid").expect("a graph")
}

/// The graph keeps what it needs, also when nobody else does any more.
#[test]
fn a_captured_sequence_replays_a_thousand_times_between_live_calls() {
    let Some(context) = context() else { return };
    let streams: Vec<_> = (0..3).map(|_| context.new_stream().expect("a stream")).collect();
    let meeting = Barrier::new(3);
    let ended = local::run_with(3, &config(), |comm| {
        let (rank, own) = (comm.rank(), &streams[comm.rank() as usize]);
        let stream = DeviceStream::from_cudarc(own)?;
        let (mut sum, mut passed) = (stream.alloc::<u32>(COUNT)?, stream.alloc::<u32>(COUNT)?);
        let mut gathered = stream.alloc::<u32>(3 * COUNT)?;
        // The set-up takes the host: a live call before.
        comm.on(&stream).all_reduce_in_place(sum.slice_mut(..), ReduceOp::Sum)?;
        stream.upload(&[rank + 1; COUNT], sum.slice_mut(..))?;
        meeting.wait();
        if rank == 0 {
            begin(&streams);
        }
        meeting.wait();
        let on = comm.on(&stream);
        on.all_reduce_in_place(sum.slice_mut(..), ReduceOp::Sum)?;
        on.all_gather(sum.slice(..), gathered.slice_mut(..))?;
        on.send_recv(gathered.slice(2 * COUNT..), (rank + 1) % 3, passed.slice_mut(..), (rank + 2) % 3)?;
        let waited = stream.synchronize();
        meeting.wait();
        let graph = (rank == 0).then(|| end(&streams));
        assert_eq!(waited.expect_err("it is captured").kind(), Kind::InvalidUsage);
        for _ in 0..10 {
            meeting.wait();
            if let Some(graph) = &graph {
                (0..100).for_each(|_| graph.launch().expect("a launch"));
                own.synchronize().expect("the replays end");
            }
            meeting.wait();
            // All have the same: nothing changes.
            comm.on(&stream).all_reduce_in_place(sum.slice_mut(..), ReduceOp::Max)?;
            stream.synchronize()?;
        }
        let expected = (1..1000).fold(6u32, |sum, _| sum.wrapping_mul(3));
        let mut found = [[0; COUNT]; 2];
        stream.download(sum.slice(..), &mut found[0])?;
        stream.download(passed.slice(..), &mut found[1])?;
        assert_eq!(found, [[expected; COUNT]; 2]);
        drop((sum, passed, gathered, stream));
        comm.finalize()?;
        meeting.wait();
        if let Some(graph) = &graph {
            graph.launch().expect("a launch");
            own.synchronize().expect("its memory is there");
        }
        Ok(())
    });
    ended.expect("all ranks end well");
    nothing_is_left();
}

/// Memory of a graph is given back by a thread, behind the graph's end.
pub(crate) fn nothing_is_left() {
    let (gpus, deadline) = (cuda::gpus().expect("they were there"), now() + TIMEOUT);
    while gpus.iter().any(cuda::Cuda::is_in_use) {
        assert!(now() < deadline, "nothing is left");
        std::thread::yield_now();
    }
}

/// Each rank captures what its own GPU does. The kernels of both graphs find each other, however often they run, and
/// live calls go on behind them.
#[test]
fn on_several_gpus_captured_calls_replay_a_thousand_times_between_live_ones() {
    if enough(2, cuda::gpus()).is_none() {
        return;
    }
    let rounds = testing::random::how_many("RSCCL_TEST_ROUNDS", 10, 10);
    let meeting = Barrier::new(2);
    let ended = local::run_with(2, &config(), |comm| {
        let (rank, other) = (comm.rank(), 1 - comm.rank());
        let context = CudaContext::new(rank as usize).expect("the primary context");
        let own = [context.new_stream().expect("a stream")];
        let stream = DeviceStream::from_cudarc(&own[0])?;
        let (mut sum, mut passed) = (stream.alloc::<u32>(COUNT)?, stream.alloc::<u32>(COUNT)?);
        // The set-up takes the host: live calls before.
        comm.on(&stream).all_reduce_in_place(sum.slice_mut(..), ReduceOp::Sum)?;
        comm.on(&stream).send_recv(sum.slice(..), other, passed.slice_mut(..), other)?;
        stream.upload(&[rank + 1; COUNT], sum.slice_mut(..))?;
        meeting.wait();
        begin_beside(&own[0]);
        // Three times the value that both ranks have.
        let scaled = ReduceOp::PreMulSum(Scalar::Unsigned(u64::from(rank) + 1));
        comm.on(&stream).all_reduce_in_place(sum.slice_mut(..), scaled)?;
        comm.on(&stream).send_recv(sum.slice(..), other, passed.slice_mut(..), other)?;
        let graph = end(&own);
        meeting.wait();
        for _ in 0..rounds {
            (0..100).for_each(|_| graph.launch().expect("a launch"));
            // All have the same: nothing changes.
            comm.on(&stream).all_reduce_in_place(sum.slice_mut(..), ReduceOp::Max)?;
        }
        let expected = (1..100 * rounds).fold(5_u32, |sum, _| sum.wrapping_mul(3));
        let mut found = [[0; COUNT]; 2];
        stream.download(sum.slice(..), &mut found[0])?;
        stream.download(passed.slice(..), &mut found[1])?;
        assert_eq!(found, [[expected; COUNT]; 2]);
        drop((sum, passed, stream));
        comm.finalize()?;
        meeting.wait();
        graph.launch().expect("a launch");
        own[0].synchronize().expect("its memory is there");
        // Each graph works in the memory that the other keeps.
        meeting.wait();
        Ok(())
    });
    ended.expect("both ranks end well");
    nothing_is_left();
}

/// Ends the capture of a stream, of which nothing is kept. Nothing is instantiated, because other streams may still capture.
fn must_be_valid(stream: &Arc<CudaStream>) {
    // SAFETY: the stream lives, and this thread has begun its capture.
    let graph =
        unsafe { cudarc::driver::result::stream::end_capture(stream.cu_stream()) }.expect("the capture is valid");
    // SAFETY: nobody else has the graph.
    unsafe { cudarc::driver::result::graph::destroy(graph) }.expect("the graph is there");
}

#[test]
fn ranks_in_separate_captures_are_one_clear_error() {
    let Some(context) = context() else { return };
    let streams: Vec<_> = (0..2).map(|_| context.new_stream().expect("a stream")).collect();
    let meeting = Barrier::new(2);
    let ended = local::run_with(2, &config(), |comm| {
        let own = &streams[comm.rank() as usize];
        let stream = DeviceStream::from_cudarc(own)?;
        let mut values = stream.alloc::<u32>(COUNT)?;
        stream.upload(&[1; COUNT], values.slice_mut(..))?;
        comm.on(&stream).all_reduce_in_place(values.slice_mut(..), ReduceOp::Sum)?;
        for capturing in [1, 2] {
            meeting.wait();
            if comm.rank() < capturing {
                begin(&streams[comm.rank() as usize..][..1]);
            }
            meeting.wait();
            let on = comm.on(&stream);
            let other = 1 - comm.rank();
            let called = [
                on.all_reduce_in_place(values.slice_mut(..), ReduceOp::Sum),
                if other == 1 { on.send(values.slice(..), 1) } else { on.recv(values.slice_mut(..), 0) },
            ];
            meeting.wait();
            // Neither capture was touched.
            if comm.rank() < capturing {
                must_be_valid(own);
            }
            for called in called {
                let error = called.expect_err("they are captured apart");
                let told = error.message().contains("captured together or not at all");
                assert!(error.kind() == Kind::InvalidUsage && told, "{error}");
            }
        }
        meeting.wait();
        comm.on(&stream).all_reduce_in_place(values.slice_mut(..), ReduceOp::Sum)?;
        let mut found = [0; COUNT];
        stream.download(values.slice(..), &mut found)?;
        assert_eq!(found, [4; COUNT]);
        comm.finalize()
    });
    ended.expect("all ranks end well");
}
