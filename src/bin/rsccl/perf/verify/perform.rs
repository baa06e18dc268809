//! The calls.

use rsccl::comm::{Buffers, Call};
use rsccl::types::{Collective, Rank};
use rsccl::{Communicator, Error, ReduceOp, Result};

use super::buffers::{Placement, RankBuffers};
use super::program::{Program, Shape};
use super::sample::Sample;

/// Calls the collective once, by the typed methods of [`Communicator`] where there are any.
///
/// # Errors
/// Of the collective; [`rsccl::error::Kind::InvalidUsage`] where there is no such call.
#[inline]
pub(crate) fn perform<T: Sample>(
    comm: &Communicator,
    shape: &Shape,
    op: Option<ReduceOp>,
    buffers: &mut RankBuffers<T>,
) -> Result<()> {
    // Collectives without a reduction never look at it.
    let op = op.unwrap_or(ReduceOp::Sum);
    match buffers.placement() {
        Placement::OutOfPlace => out_of_place(comm, shape, op, buffers),
        Placement::InPlace => in_place(comm, shape, op, buffers.send.slice_mut()),
    }
}

#[inline]
fn out_of_place<T: Sample>(
    comm: &Communicator,
    shape: &Shape,
    op: ReduceOp,
    buffers: &mut RankBuffers<T>,
) -> Result<()> {
    let (send, recv) = (buffers.send.slice(), buffers.recv.slice_mut());
    match shape.program {
        Program::AllReduce => comm.all_reduce(send, recv, op),
        Program::Broadcast => comm.broadcast_into(send, recv, shape.root),
        Program::Reduce => comm.reduce(send, recv, op, shape.root),
        Program::AllGather => comm.all_gather(send, recv),
        Program::ReduceScatter => comm.reduce_scatter(send, recv, op),
        Program::AllToAll => comm.all_to_all(send, recv),
        Program::Gather => comm.gather(send, recv, shape.root),
        Program::Scatter => comm.scatter(send, recv, shape.root),
        Program::SendRecv => comm.send_recv(send, shape.right(), recv, shape.left()),
        Program::Barrier => comm.barrier(),
        Program::AllGatherV => comm.all_gather_v(send, recv, &shape.counts),
        Program::ReduceScatterV => comm.reduce_scatter_v(send, recv, &shape.counts, op),
        Program::AllToAllV => comm.all_to_all_v(send, &shape.sends, recv, &shape.receives),
        // Only the root's counts are looked at.
        Program::GatherV => comm.gather_v(send, recv, if shape.at_root() { &shape.counts } else { &[] }, shape.root),
        Program::ScatterV => comm.scatter_v(send, recv, if shape.at_root() { &shape.counts } else { &[] }, shape.root),
        Program::Scan => comm.scan(send, recv, op),
        Program::Exscan => comm.exscan(send, recv, op),
    }
}

#[inline]
fn in_place<T: Sample>(comm: &Communicator, shape: &Shape, op: ReduceOp, buffer: &mut [T]) -> Result<()> {
    match shape.program {
        Program::AllReduce => comm.all_reduce_in_place(buffer, op),
        Program::Broadcast => comm.broadcast(buffer, shape.root),
        Program::Reduce => comm.reduce_in_place(buffer, op, shape.root),
        Program::AllGather => comm.all_gather_in_place(buffer),
        Program::ReduceScatter => comm.reduce_scatter_in_place(buffer, op),
        Program::Scan => comm.scan_in_place(buffer, op),
        Program::Exscan => comm.exscan_in_place(buffer, op),
        Program::Gather
        | Program::Scatter
        | Program::GatherV
        | Program::ScatterV
        | Program::AllGatherV
        | Program::ReduceScatterV => comm.run(&described(shape, op, buffer)),
        Program::AllToAll | Program::AllToAllV | Program::SendRecv | Program::Barrier => {
            Err(Error::invalid_usage(format!("{} has no in-place form", shape.program.name())))
        }
    }
}

/// The in-place forms that have no method of their own.
fn described<'a, T: Sample>(shape: &Shape, op: ReduceOp, buffer: &'a mut [T]) -> Call<'a> {
    let (before, mine) = (shape.before(shape.rank), shape.counts[shape.rank as usize]);
    let (collective, buffers) = match shape.program {
        Program::Gather if shape.at_root() => (Collective::Gather, Buffers::input_inside(buffer, before, mine)),
        Program::Gather => (Collective::Gather, Buffers::shared(buffer)),
        Program::Scatter if shape.at_root() => (Collective::Scatter, Buffers::output_inside(buffer, before, mine)),
        Program::Scatter => (Collective::Scatter, Buffers::shared(buffer)),
        Program::GatherV if shape.at_root() => (Collective::GatherV, Buffers::input_inside(buffer, before, mine)),
        Program::GatherV => (Collective::GatherV, Buffers::shared(buffer)),
        Program::ScatterV if shape.at_root() => (Collective::ScatterV, Buffers::output_inside(buffer, before, mine)),
        Program::ScatterV => (Collective::ScatterV, Buffers::shared(buffer)),
        Program::AllGatherV => (Collective::AllGatherV, Buffers::input_inside(buffer, before, mine)),
        _ => (Collective::ReduceScatterV, Buffers::output_inside(buffer, before, mine)),
    };
    Call {
        collective,
        data_type: T::DATA_TYPE,
        op: collective.reduces().then_some(op),
        root: collective.rooted().then_some(Rank::new(shape.root)),
        count: shape.call_count(),
        buffers,
    }
}
