//! Makes the call that a shape stands for: on a communicator, or on a stream of a device.

use rsccl::comm::{Buffers, Call, DeviceSliceMut, OnStream};
use rsccl::types::{Collective, Rank};
use rsccl::{Communicator, Error, ReduceOp, Result};

use super::buffers::{Placement, RankBuffers};
use super::program::{Program, Shape};
use super::sample::Sample;

/// A call with two buffers, on whatever has the list of collectives.
macro_rules! out_of_place {
    ($on:expr, $send:expr, $recv:expr, ($shape:expr, $op:expr)) => {{
        let (send, recv, shape, op) = ($send, $recv, $shape, $op);
        // Only the root's counts are looked at.
        let counts: &[usize] = if shape.at_root() { &shape.counts } else { &[] };
        match shape.program {
            Program::AllReduce => $on.all_reduce(send, recv, op),
            Program::Broadcast => $on.broadcast_into(send, recv, shape.root),
            Program::Reduce => $on.reduce(send, recv, op, shape.root),
            Program::AllGather => $on.all_gather(send, recv),
            Program::ReduceScatter => $on.reduce_scatter(send, recv, op),
            Program::AllToAll => $on.all_to_all(send, recv),
            Program::Gather => $on.gather(send, recv, shape.root),
            Program::Scatter => $on.scatter(send, recv, shape.root),
            Program::SendRecv => $on.send_recv(send, shape.right(), recv, shape.left()),
            Program::Barrier => $on.barrier(),
            Program::AllGatherV => $on.all_gather_v(send, recv, &shape.counts),
            Program::ReduceScatterV => $on.reduce_scatter_v(send, recv, &shape.counts, op),
            Program::AllToAllV => $on.all_to_all_v(send, recv, (&shape.sends, &shape.receives)),
            Program::GatherV => $on.gather_v(send, recv, counts, shape.root),
            Program::ScatterV => $on.scatter_v(send, recv, counts, shape.root),
            Program::Scan => $on.scan(send, recv, op),
            Program::Exscan => $on.exscan(send, recv, op),
        }
    }};
}

/// A call with one buffer, on whatever has the list of collectives; `$buffers` makes the buffers of a described call.
macro_rules! in_place {
    ($on:expr, $buffer:expr, ($shape:expr, $op:expr), $buffers:expr) => {{
        let (buffer, shape, op) = ($buffer, $shape, $op);
        match shape.program {
            Program::AllReduce => $on.all_reduce_in_place(buffer, op),
            Program::Broadcast => $on.broadcast(buffer, shape.root),
            Program::Reduce => $on.reduce_in_place(buffer, op, shape.root),
            Program::AllGather => $on.all_gather_in_place(buffer),
            Program::ReduceScatter => $on.reduce_scatter_in_place(buffer, op),
            Program::Scan => $on.scan_in_place(buffer, op),
            Program::Exscan => $on.exscan_in_place(buffer, op),
            Program::Gather
            | Program::Scatter
            | Program::GatherV
            | Program::ScatterV
            | Program::AllGatherV
            | Program::ReduceScatterV => {
                let (collective, inside) = lies(shape);
                $on.run(&described::<T>(shape, collective, op, $buffers(buffer, inside)))
            }
            Program::AllToAll | Program::AllToAllV | Program::SendRecv | Program::Barrier => {
                Err(Error::invalid_usage(format!("{} has no in-place form", shape.program.name())))
            }
        }
    }};
}

/// Calls the collective once, by the typed methods of [`Communicator`] where there are any.
///
/// # Errors
/// Of the collective; [`rsccl::error::Kind::InvalidUsage`] where there is no such call.
#[inline]
pub fn perform<T: Sample>(
    comm: &Communicator,
    shape: &Shape,
    op: Option<ReduceOp>,
    buffers: &mut RankBuffers<T>,
) -> Result<()> {
    // Collectives without a reduction never look at it.
    let op = op.unwrap_or(ReduceOp::Sum);
    match buffers.placement() {
        Placement::OutOfPlace => {
            out_of_place!(comm, buffers.send.slice(), buffers.recv.slice_mut(), (shape, op))
        }
        Placement::InPlace => in_place!(comm, buffers.send.slice_mut(), (shape, op), on_host),
    }
}

/// [`perform`] on a stream and buffers of its device: `recv` where there are two, else `send` is both.
///
/// # Errors
/// As [`perform`].
pub fn perform_on<T: Sample>(
    on: &OnStream<'_>,
    shape: &Shape,
    op: Option<ReduceOp>,
    (send, recv): (DeviceSliceMut<'_, T>, Option<DeviceSliceMut<'_, T>>),
) -> Result<()> {
    let op = op.unwrap_or(ReduceOp::Sum);
    match recv {
        Some(recv) => out_of_place!(on, send.into_slice(), recv, (shape, op)),
        None => in_place!(on, send, (shape, op), on_device),
    }
}

/// How the smaller buffer of an in-place form lies in the larger: the elements before it, and its own.
enum Inside {
    Input(usize, usize),
    Output(usize, usize),
    Same,
}

fn on_host<T: Sample>(buffer: &mut [T], inside: Inside) -> Buffers<'_> {
    match inside {
        Inside::Input(before, count) => Buffers::input_inside(buffer, before, count),
        Inside::Output(before, count) => Buffers::output_inside(buffer, before, count),
        Inside::Same => Buffers::shared(buffer),
    }
}

fn on_device<T: Sample>(buffer: DeviceSliceMut<'_, T>, inside: Inside) -> Buffers<'_> {
    match inside {
        Inside::Input(before, count) => Buffers::input_inside_device(buffer, before, count),
        Inside::Output(before, count) => Buffers::output_inside_device(buffer, before, count),
        Inside::Same => Buffers::shared_on_device(buffer),
    }
}

/// The in-place forms that have no method of their own.
fn lies(shape: &Shape) -> (Collective, Inside) {
    let (before, mine) = (shape.before(shape.rank), shape.counts[shape.rank as usize]);
    match shape.program {
        Program::Gather if shape.at_root() => (Collective::Gather, Inside::Input(before, mine)),
        Program::Gather => (Collective::Gather, Inside::Same),
        Program::Scatter if shape.at_root() => (Collective::Scatter, Inside::Output(before, mine)),
        Program::Scatter => (Collective::Scatter, Inside::Same),
        Program::GatherV if shape.at_root() => (Collective::GatherV, Inside::Input(before, mine)),
        Program::GatherV => (Collective::GatherV, Inside::Same),
        Program::ScatterV if shape.at_root() => (Collective::ScatterV, Inside::Output(before, mine)),
        Program::ScatterV => (Collective::ScatterV, Inside::Same),
        Program::AllGatherV => (Collective::AllGatherV, Inside::Input(before, mine)),
        _ => (Collective::ReduceScatterV, Inside::Output(before, mine)),
    }
}

fn described<'a, T: Sample>(shape: &Shape, collective: Collective, op: ReduceOp, buffers: Buffers<'a>) -> Call<'a> {
    Call {
        collective,
        data_type: T::DATA_TYPE,
        op: collective.reduces().then_some(op),
        root: collective.rooted().then_some(Rank::new(shape.root)),
        count: shape.call_count(),
        buffers,
    }
}
