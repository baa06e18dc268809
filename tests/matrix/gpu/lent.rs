//! Slices of cudarc that streams lend to their calls.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cudarc::driver::sys::{
    CUgraphInstantiate_flags, CUstreamCaptureMode, cuStreamWaitValue32_v2, cuStreamWriteValue32_v2,
};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr as _};
use rsccl::comm::{Buffers, Call, CallCount, DeviceStream};
use rsccl::error::Kind;
use rsccl::internals::device::cuda;
use rsccl::types::{Collective, DataType};
use rsccl::{Communicator, Config, Error, ReduceOp, Result, group, local};

use crate::TIMEOUT;
use machine::gpus::enough;

fn config() -> Config {
    Config::default().with_timeout(TIMEOUT)
}

/// How many GPUs there are.
fn gpus() -> usize {
    cuda::gpus().map_or(0, <[_]>::len)
}

/// cudarc's context of a rank's GPU.
fn context(rank: u32) -> Arc<CudaContext> {
    CudaContext::new(rank as usize % gpus()).expect("the primary context")
}

/// Calls of all kinds by what the stream `of_calls` lends, in slices of the stream `of_slices`.
fn calls(comm: &Communicator, of_calls: &Arc<CudaStream>, of_slices: &Arc<CudaStream>, count: usize) -> Result<()> {
    let on = DeviceStream::from_cudarc(of_calls)?;
    let (rank, size) = (comm.rank(), comm.size());
    let ring = |distance: u32| (rank + distance) % size;
    for turn in 0..2 {
        let mine = of_slices.clone_htod(&vec![turn + rank; count]).expect("memory");
        let mut sum = of_slices.alloc_zeros::<u32>(count).expect("memory");
        on.lend_both(&mine, &mut sum, |mine, sum| comm.on(&on).all_reduce(mine, sum, ReduceOp::Sum))?;
        let expected = (0..size).map(|rank| turn + rank).sum::<u32>();
        assert_eq!(of_slices.clone_dtoh(&sum).expect("a copy"), vec![expected; count], "rank {rank}, turn {turn}");
        // In place, in the middle of a slice.
        let mut wide = of_slices.clone_htod(&vec![rank + 1; count + 9]).expect("memory");
        let mut part = wide.slice_mut(7..count + 7);
        on.lend_mut(&mut part, |part| comm.on(&on).all_reduce_in_place(part, ReduceOp::Max))?;
        let mut expected = vec![rank + 1; count + 9];
        expected[7..count + 7].fill(size);
        assert_eq!(of_slices.clone_dtoh(&wide).expect("a copy"), expected, "rank {rank}, turn {turn}");
        // One inside the other, in a group: a view of the one, part of which is written.
        let mut passed = of_slices.alloc_zeros::<u32>(count).expect("memory");
        if size > 1 {
            let (_first, mut rest) = passed.split_at_mut(1);
            on.lend(&mine.slice(1..), |mine| {
                on.lend_mut(&mut rest, |rest| {
                    group(|group| {
                        let mut member = group.on_stream(comm, &on);
                        member.send(mine, ring(1))?;
                        member.recv(rest, ring(size - 1))
                    })
                })
            })?;
            let mut expected = vec![turn + ring(size - 1); count];
            expected[0] = 0;
            assert_eq!(of_slices.clone_dtoh(&passed).expect("a copy"), expected, "rank {rank}, turn {turn}");
        }
        // The copy to the host is ordered too.
        let mut found = vec![0; count];
        on.lend(&sum, |sum| on.download(sum, &mut found))?;
        assert_eq!(found, of_slices.clone_dtoh(&sum).expect("a copy"));
    }
    Ok(())
}

/// Ranks in each combination of a stream of calls and one of slices.
fn in_all_streams(ranks: u32, count: usize) {
    let run = |streams: &(dyn Fn(&Arc<CudaContext>) -> [Arc<CudaStream>; 2] + Sync)| {
        let ended = local::run_with(ranks, &config(), |comm| {
            let [of_calls, of_slices] = streams(&context(comm.rank()));
            calls(&comm, &of_calls, &of_slices, count)
        });
        ended.expect("all ranks end well");
    };
    let new = |context: &Arc<CudaContext>| context.new_stream().expect("a stream");
    // The thread's stream and the null stream wait for each other by themselves, and cudarc keeps no events.
    run(&|context| [context.per_thread_stream(), context.default_stream()]);
    run(&|context| {
        let one = new(context);
        [Arc::clone(&one), one]
    });
    run(&|context| [new(context), new(context)]);
    run(&|context| [new(context), context.default_stream()]);
    run(&|context| [context.per_thread_stream(), new(context)]);
}

#[test]
fn slices_of_any_stream_go_into_calls_of_any_stream() {
    if enough(1, cuda::gpus()).is_none() {
        return;
    }
    for ranks in [1, 2, 3] {
        in_all_streams(ranks, 300);
    }
}

#[test]
fn on_several_gpus_slices_of_any_stream_go_into_calls_of_any_stream() {
    if enough(2, cuda::gpus()).is_none() {
        return;
    }
    in_all_streams(2, 300);
    // More than lines take.
    let ended = local::run_with(2, &config().with_proto("Simple"), |comm| {
        let streams = [(); 2].map(|()| context(comm.rank()).new_stream().expect("a stream"));
        calls(&comm, &streams[0], &streams[1], 5000)
    });
    ended.expect("both ranks end well");
}

/// Holds streams up until it is opened.
struct Gate {
    word: CudaSlice<u32>,
    opener: Arc<CudaStream>,
}

impl Gate {
    fn new(context: &Arc<CudaContext>) -> Gate {
        let opener = context.new_stream().expect("a stream");
        let word = opener.alloc_zeros(1).expect("memory");
        opener.synchronize().expect("it is zero");
        Gate { word, opener }
    }

    fn hold(&self, stream: &CudaStream) {
        // SAFETY: the word lives until the gate is dropped, when all that it holds has gone on.
        let held = unsafe { cuStreamWaitValue32_v2(stream.cu_stream(), self.address(), 1, 1) };
        held.result().expect("the stream waits");
    }

    fn open(&self) {
        // SAFETY: as above.
        let written = unsafe { cuStreamWriteValue32_v2(self.opener.cu_stream(), self.address(), 1, 0) };
        written.result().expect("the stream writes");
    }

    fn address(&self) -> u64 {
        self.word.device_ptr(&self.opener).0
    }
}

/// What cudarc knows of the call when its slices are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// What it notes by events.
    All,
    /// Nothing: the program has turned the events off.
    Nothing,
    /// Of the input, the copy on a third stream that came after the call.
    AnotherRead,
    /// What it notes, after a panic inside the closure.
    Panic,
}

/// The input is dropped behind the call, which has not begun, and the slices' stream writes memory that it allocates
/// then. The output is dropped behind a copy.
fn dropped_at_once(comm: &Communicator, count: usize, known: Known) -> Result<()> {
    let context = context(comm.rank());
    let (of_calls, of_slices) = (context.new_stream().expect("a stream"), context.new_stream().expect("a stream"));
    let gate = Gate::new(&context);
    let on = DeviceStream::from_cudarc(&of_calls)?;
    // The set-up takes the host.
    let mut warm = of_slices.alloc_zeros::<u32>(count).expect("memory");
    on.lend_mut(&mut warm, |warm| comm.on(&on).all_reduce_in_place(warm, ReduceOp::Sum))?;
    if known == Known::Nothing {
        // SAFETY: the streams of the slices and of the calls are ordered by what is tested; nothing is used on a third.
        unsafe { context.disable_event_tracking() };
    }
    let mine = of_slices.clone_htod(&vec![comm.rank() + 1; count]).expect("memory");
    let mut sum = of_slices.alloc_zeros::<u32>(count).expect("memory");
    of_slices.synchronize().expect("they are filled");
    gate.hold(&of_calls);
    let lent = || {
        on.lend_both(&mine, &mut sum, |mine, sum| {
            comm.on(&on).all_reduce(mine, sum, ReduceOp::Sum)?;
            assert!(known != Known::Panic, "as the test wants it");
            Ok(())
        })
    };
    let called = catch_unwind(AssertUnwindSafe(lent));
    assert_eq!(called.is_err(), known == Known::Panic);
    called.unwrap_or(Ok(()))?;
    let copy = (known == Known::AnotherRead).then(|| gate.opener.clone_dtod(&mine).expect("a copy"));
    gate.opener.synchronize().expect("the copy ends");
    drop(mine);
    let others: Vec<_> = (0..4).map(|_| of_slices.alloc_zeros::<u32>(count).expect("memory")).collect();
    // Time in which memory that is not held would be freed: all that another stream holds is done.
    gate.opener.synchronize().expect("nothing holds it up");
    gate.open();
    let found = of_slices.clone_dtoh(&sum).expect("a copy");
    drop(sum);
    of_slices.synchronize().expect("the work ends");
    let expected = (1..=comm.size()).sum::<u32>();
    assert_eq!(found, vec![expected; count], "rank {}, {known:?}", comm.rank());
    drop((copy, others, warm));
    Ok(())
}

fn all_dropped_at_once(ranks: u32, count: usize) {
    for known in [Known::All, Known::Nothing, Known::AnotherRead, Known::Panic] {
        let ended = local::run_with(ranks, &config(), |comm| dropped_at_once(&comm, count, known));
        ended.unwrap_or_else(|error| panic!("{known:?}: {error}"));
    }
}

/// One rank: two would need more streams than the GPU has hardware queues, and the held one would hold up others.
#[test]
fn memory_lives_until_the_calls_are_through_to_which_it_was_lent() {
    if enough(1, cuda::gpus()).is_some() {
        all_dropped_at_once(1, 3000);
    }
}

#[test]
fn on_several_gpus_memory_lives_until_the_calls_are_through_to_which_it_was_lent() {
    if enough(2, cuda::gpus()).is_some() {
        all_dropped_at_once(2, 300);
    }
}

fn must_refuse<T: std::fmt::Debug>(refused: Result<T>, kind: Kind, words: &str) {
    let error: Error = refused.expect_err(words);
    assert!(error.kind() == kind && error.message().contains(words), "{words}: {error}");
}

/// Each refusal leaves communicator, streams and captures as they were.
#[test]
fn what_is_lent_goes_into_calls_of_its_stream_alone() {
    if enough(1, cuda::gpus()).is_none() {
        return;
    }
    let ended = local::run_with(1, &config(), |comm| {
        let context = context(0);
        let (own, other) = (context.new_stream().expect("a stream"), context.new_stream().expect("a stream"));
        let (on, elsewhere) = (DeviceStream::from_cudarc(&own)?, DeviceStream::from_cudarc(&other)?);
        let mut values = own.clone_htod(&[5_u32; 9]).expect("memory");
        let mut lend = |elsewhere: &dyn Fn(rsccl::comm::DeviceSliceMut<'_, u32>) -> Result<()>| {
            on.lend_mut(&mut values, elsewhere)
        };
        let another = "lent for calls on one stream";
        let refused = lend(&|values| comm.on(&elsewhere).all_reduce_in_place(values, ReduceOp::Sum));
        must_refuse(refused, Kind::InvalidUsage, another);
        must_refuse(lend(&|values| comm.on(&elsewhere).send(values.into_slice(), 0)), Kind::InvalidUsage, another);
        must_refuse(lend(&|values| elsewhere.upload(&[1; 9], values)), Kind::InvalidUsage, another);
        must_refuse(lend(&|values| elsewhere.download(values.into_slice(), &mut [0; 9])), Kind::InvalidUsage, another);
        let in_the_callers_order = lend(&|values| {
            comm.run(&Call {
                collective: Collective::AllReduce,
                data_type: DataType::U32,
                op: Some(ReduceOp::Sum),
                root: None,
                count: CallCount::Each(9),
                buffers: Buffers::shared_on_device(values),
            })
        });
        must_refuse(in_the_callers_order, Kind::InvalidUsage, another);
        let grouped = lend(&|values| {
            group(|group| group.on_stream(&comm, &elsewhere).all_reduce_in_place(values, ReduceOp::Sum))
        });
        must_refuse(grouped, Kind::InvalidUsage, another);
        let none_of_cudarcs = DeviceStream::new(0)?;
        must_refuse(none_of_cudarcs.lend_mut(&mut values, |_| Ok(())), Kind::InvalidUsage, "DeviceStream::from_cudarc");
        on.lend_mut(&mut values, |values| comm.on(&on.clone()).all_reduce_in_place(values, ReduceOp::Sum))?;
        assert_eq!(own.clone_dtoh(&values).expect("a copy"), [5; 9]);
        comm.finalize()
    });
    ended.expect("the rank ends well");
}

#[test]
fn nothing_is_lent_to_a_stream_that_is_captured() {
    if enough(1, cuda::gpus()).is_none() {
        return;
    }
    let ended = local::run_with(1, &config(), |comm| {
        let context = context(0);
        let (own, other) = (context.new_stream().expect("a stream"), context.new_stream().expect("a stream"));
        let on = DeviceStream::from_cudarc(&own)?;
        let mut values = own.clone_htod(&[5_u32; 9]).expect("memory");
        let mut others = other.clone_htod(&[6_u32; 9]).expect("memory");
        let global = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let words = "unsafe DeviceSlice::from_raw";
        own.synchronize().expect("the work ends");
        other.synchronize().expect("the work ends");
        for captured in [&own, &other] {
            captured.begin_capture(global).expect("a capture");
            must_refuse(on.lend(&others, |_| Ok(())), Kind::InvalidUsage, words);
            captured.end_capture(flags).expect("the capture is valid");
        }
        // Inside the closure, before the call; and behind the call, which the end of the slice waits for.
        on.lend_mut(&mut values, |values| {
            own.begin_capture(global).expect("a capture");
            must_refuse(comm.on(&on).all_reduce_in_place(values, ReduceOp::Sum), Kind::InvalidUsage, words);
            own.end_capture(flags).map(drop).map_err(Error::other)
        })?;
        on.lend_mut(&mut others, |others| {
            comm.on(&on).all_reduce_in_place(others, ReduceOp::Sum)?;
            own.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).map_err(Error::other)
        })?;
        own.end_capture(flags).expect("the capture is valid");
        // Its event lies in the capture, so that cudarc cannot wait for it; but the stream that frees it waits.
        drop(others);
        context.check_err().expect_err("cudarc tells it");
        assert_eq!(own.clone_dtoh(&values).expect("a copy"), [5; 9]);
        comm.finalize()
    });
    ended.expect("the rank ends well");
}

#[test]
fn on_several_gpus_a_slice_of_another_gpu_is_refused() {
    if enough(2, cuda::gpus()).is_none() {
        return;
    }
    let ended = local::run_with(2, &config(), |comm| {
        let own = context(comm.rank()).new_stream().expect("a stream");
        let on = DeviceStream::from_cudarc(&own)?;
        let there = context(1 - comm.rank()).new_stream().expect("a stream");
        let mut values = there.alloc_zeros::<u32>(9).expect("memory");
        let refused = on.lend_mut(&mut values, |values| comm.on(&on).all_reduce_in_place(values, ReduceOp::Sum));
        must_refuse(refused, Kind::InvalidArgument, "they must be of one");
        let mut here = own.alloc_zeros::<u32>(9).expect("memory");
        let refused = on.lend_both(&values, &mut here, |from, into| comm.on(&on).all_reduce(from, into, ReduceOp::Sum));
        must_refuse(refused, Kind::InvalidArgument, "they must be of one");
        on.lend_mut(&mut here, |here| comm.on(&on).all_reduce_in_place(here, ReduceOp::Sum))?;
        comm.finalize()
    });
    ended.expect("both ranks end well");
}
