//! A rank of `worker.rs` whose collective a graph replays.

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use rsccl::comm::{DeviceBuffer, DeviceStream};
use rsccl::error::Kind;
use rsccl::internals::sys::clock;
use rsccl::{Communicator, Error, ReduceOp, Result};

use super::{LONGEST_LOOK, SHOWN_TURNS, say};

/// `replay GPU COUNT`: captures a sum, and replays it until it fails; says `turn` after each of the first turns. No
/// call on the communicator is made meanwhile but `async_error`. The error is what that says, once the stream has been
/// used again and a replay of a communicator that has failed has ended.
pub(super) fn until_it_fails(comm: &Communicator, gpu: u32, count: usize) -> Result<()> {
    let context = CudaContext::new(gpu as usize).expect("the primary context");
    let own = context.new_stream().expect("a stream");
    let stream = DeviceStream::from_cudarc(&own)?;
    let (mut mine, mut sum) = (stream.alloc::<u32>(count)?, stream.alloc::<u32>(count)?);
    stream.upload(&vec![comm.rank() + 1; count], mine.slice_mut(..))?;
    // The set-up takes the host: a live call before.
    comm.on(&stream).all_reduce(mine.slice(..), sum.slice_mut(..), ReduceOp::Sum)?;
    stream.synchronize()?;
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    own.begin_capture(mode).expect("a capture");
    comm.on(&stream).all_reduce(mine.slice(..), sum.slice_mut(..), ReduceOp::Sum)?;
    let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = own.end_capture(flags).expect("the capture is valid").expect("a graph");
    let expected = (1..=comm.size()).sum::<u32>();
    let error = (0u32..).find_map(|turn| {
        stream.upload(&vec![0; count], sum.slice_mut(..)).expect("the stream is usable");
        graph.launch().expect("a launch");
        let ended = stream.synchronize().and_then(|()| must_be(&stream, &sum, expected));
        if ended.is_ok() && turn < SHOWN_TURNS {
            say("turn");
        }
        ended.err().map(|wrong| told(comm).unwrap_or(wrong)).or_else(|| comm.async_error())
    });
    // The stream goes on, and a replay ends without a result.
    stream.upload(&vec![7; count], mine.slice_mut(..))?;
    must_be(&stream, &mine, 7)?;
    graph.launch().expect("a launch");
    stream.synchronize()?;
    drop(graph);
    Err(error.unwrap_or_else(|| Error::internal("it never fails")))
}

/// Why a replay has ended without a result, which is known a little later than that it has.
fn told(comm: &Communicator) -> Option<Error> {
    let until = clock::now() + LONGEST_LOOK;
    loop {
        let error = comm.async_error();
        if error.is_some() || clock::now() > until {
            return error;
        }
        std::thread::yield_now();
    }
}

fn must_be(stream: &DeviceStream, buffer: &DeviceBuffer<u32>, value: u32) -> Result<()> {
    let mut found = vec![0; buffer.len()];
    stream.download(buffer.slice(..), &mut found)?;
    let differs = found.iter().find(|found| **found != value);
    differs.map_or(Ok(()), |other| Err(Error::new(Kind::Internal, format!("wrong: {other} where {value} should be"))))
}
