//! Typed calls, described: what a communicator runs at once, a scope begins and a group adds. Buffers of the wrong
//! length are refused here; [`Call::check`] refuses the rest.

use crate::error::{Error, Result};
use crate::exec::{Buffers, Call, CallCount, Message, wrong_counts};
use crate::types::{Collective, Element, Rank, ReduceOp, World};

#[inline]
pub(super) fn all_reduce<'a, T: Element>(_: World, send: &'a [T], recv: &'a mut [T], op: ReduceOp) -> Result<Call<'a>> {
    expect("recv", recv.len(), send.len())?;
    Ok(Call { op: Some(op), ..apart(Collective::AllReduce, recv.len(), (send, recv)) })
}

#[inline]
pub(super) fn all_reduce_in_place<T: Element>(buffer: &mut [T], op: ReduceOp) -> Call<'_> {
    Call { op: Some(op), ..in_place(Collective::AllReduce, buffer) }
}

pub(super) fn broadcast<T: Element>(buffer: &mut [T], root: u32) -> Call<'_> {
    Call { root: Some(Rank::new(root)), ..in_place(Collective::Broadcast, buffer) }
}

pub(super) fn broadcast_into<'a, T: Element>(
    world: World,
    send: &'a [T],
    recv: &'a mut [T],
    root: u32,
) -> Result<Call<'a>> {
    if root == world.rank.get() {
        expect("send", send.len(), recv.len())?;
    }
    Ok(Call { root: Some(Rank::new(root)), ..apart(Collective::Broadcast, recv.len(), (send, recv)) })
}

pub(super) fn reduce<'a, T: Element>(
    world: World,
    send: &'a [T],
    recv: &'a mut [T],
    op: ReduceOp,
    root: u32,
) -> Result<Call<'a>> {
    if root == world.rank.get() {
        expect("recv", recv.len(), send.len())?;
    }
    let basic = apart(Collective::Reduce, send.len(), (send, recv));
    Ok(Call { op: Some(op), root: Some(Rank::new(root)), ..basic })
}

pub(super) fn reduce_in_place<T: Element>(buffer: &mut [T], op: ReduceOp, root: u32) -> Call<'_> {
    Call { op: Some(op), root: Some(Rank::new(root)), ..in_place(Collective::Reduce, buffer) }
}

pub(super) fn all_gather<'a, T: Element>(world: World, send: &'a [T], recv: &'a mut [T]) -> Result<Call<'a>> {
    expect("recv", recv.len(), times(world, send.len())?)?;
    Ok(apart(Collective::AllGather, send.len(), (send, recv)))
}

pub(super) fn all_gather_in_place<T: Element>(world: World, buffer: &mut [T]) -> Result<Call<'_>> {
    let count = block(world, buffer.len())?;
    let start = count * world.rank.index();
    Ok(describe::<T>(Collective::AllGather, count, Buffers::input_inside(buffer, start, count)))
}

pub(super) fn reduce_scatter<'a, T: Element>(
    world: World,
    send: &'a [T],
    recv: &'a mut [T],
    op: ReduceOp,
) -> Result<Call<'a>> {
    expect("send", send.len(), times(world, recv.len())?)?;
    Ok(Call { op: Some(op), ..apart(Collective::ReduceScatter, recv.len(), (send, recv)) })
}

pub(super) fn reduce_scatter_in_place<T: Element>(world: World, buffer: &mut [T], op: ReduceOp) -> Result<Call<'_>> {
    let count = block(world, buffer.len())?;
    let buffers = Buffers::output_inside(buffer, count * world.rank.index(), count);
    Ok(Call { op: Some(op), ..describe::<T>(Collective::ReduceScatter, count, buffers) })
}

pub(super) fn all_to_all<'a, T: Element>(world: World, send: &'a [T], recv: &'a mut [T]) -> Result<Call<'a>> {
    expect("recv", recv.len(), send.len())?;
    Ok(apart(Collective::AllToAll, block(world, send.len())?, (send, recv)))
}

pub(super) fn gather<'a, T: Element>(world: World, send: &'a [T], recv: &'a mut [T], root: u32) -> Result<Call<'a>> {
    if root == world.rank.get() {
        expect("recv", recv.len(), times(world, send.len())?)?;
    }
    Ok(Call { root: Some(Rank::new(root)), ..apart(Collective::Gather, send.len(), (send, recv)) })
}

pub(super) fn scatter<'a, T: Element>(world: World, send: &'a [T], recv: &'a mut [T], root: u32) -> Result<Call<'a>> {
    if root == world.rank.get() {
        expect("send", send.len(), times(world, recv.len())?)?;
    }
    Ok(Call { root: Some(Rank::new(root)), ..apart(Collective::Scatter, recv.len(), (send, recv)) })
}

pub(super) fn barrier() -> Call<'static> {
    describe::<u8>(Collective::Barrier, 0, Buffers::none())
}

pub(super) fn all_gather_v<'a, T: Element>(
    world: World,
    send: &'a [T],
    recv: &'a mut [T],
    counts: &[usize],
) -> Result<Call<'a>> {
    let (mine, total) = sums(world, counts)?;
    expect("send", send.len(), mine)?;
    expect("recv", recv.len(), total)?;
    Ok(Call { count: per_rank::<T>(counts), ..apart(Collective::AllGatherV, 0, (send, recv)) })
}

pub(super) fn reduce_scatter_v<'a, T: Element>(
    world: World,
    send: &'a [T],
    recv: &'a mut [T],
    counts: &[usize],
    op: ReduceOp,
) -> Result<Call<'a>> {
    let (mine, total) = sums(world, counts)?;
    expect("recv", recv.len(), mine)?;
    expect("send", send.len(), total)?;
    let basic = apart(Collective::ReduceScatterV, 0, (send, recv));
    Ok(Call { op: Some(op), count: per_rank::<T>(counts), ..basic })
}

pub(super) fn gather_v<'a, T: Element>(
    world: World,
    send: &'a [T],
    recv: &'a mut [T],
    counts: &[usize],
    root: u32,
) -> Result<Call<'a>> {
    let room = recv.len();
    let basic = Call { root: Some(Rank::new(root)), ..apart(Collective::GatherV, send.len(), (send, recv)) };
    if root != world.rank.get() {
        return Ok(basic);
    }
    let (mine, total) = sums(world, counts)?;
    expect("send", send.len(), mine)?;
    expect("recv", room, total)?;
    Ok(Call { count: per_rank::<T>(counts), ..basic })
}

pub(super) fn scatter_v<'a, T: Element>(
    world: World,
    send: &'a [T],
    recv: &'a mut [T],
    counts: &[usize],
    root: u32,
) -> Result<Call<'a>> {
    let length = recv.len();
    let basic = Call { root: Some(Rank::new(root)), ..apart(Collective::ScatterV, length, (send, recv)) };
    if root != world.rank.get() {
        return Ok(basic);
    }
    let (mine, total) = sums(world, counts)?;
    expect("recv", length, mine)?;
    expect("send", send.len(), total)?;
    Ok(Call { count: per_rank::<T>(counts), ..basic })
}

pub(super) fn scan<'a, T: Element>(_: World, send: &'a [T], recv: &'a mut [T], op: ReduceOp) -> Result<Call<'a>> {
    expect("recv", recv.len(), send.len())?;
    Ok(Call { op: Some(op), ..apart(Collective::Scan, recv.len(), (send, recv)) })
}

pub(super) fn scan_in_place<T: Element>(buffer: &mut [T], op: ReduceOp) -> Call<'_> {
    Call { op: Some(op), ..in_place(Collective::Scan, buffer) }
}

pub(super) fn exscan<'a, T: Element>(_: World, send: &'a [T], recv: &'a mut [T], op: ReduceOp) -> Result<Call<'a>> {
    expect("recv", recv.len(), send.len())?;
    Ok(Call { op: Some(op), ..apart(Collective::Exscan, recv.len(), (send, recv)) })
}

pub(super) fn exscan_in_place<T: Element>(buffer: &mut [T], op: ReduceOp) -> Call<'_> {
    Call { op: Some(op), ..in_place(Collective::Exscan, buffer) }
}

/// The two messages of a `send_recv`.
pub(super) fn send_recv<'a, T: Element>(
    send: &'a [T],
    target: u32,
    recv: &'a mut [T],
    source: u32,
) -> Vec<Message<'a>> {
    vec![Message::send(send, Rank::new(target)), Message::recv(recv, Rank::new(source))]
}

/// The messages of an `all_to_all_v`: one to and one from each rank, in rank order.
pub(super) fn all_to_all_v<'a, T: Element>(
    world: World,
    send: &'a [T],
    send_counts: &[usize],
    recv: &'a mut [T],
    recv_counts: &[usize],
) -> Result<Vec<Message<'a>>> {
    expect("send", send.len(), sums(world, send_counts)?.1)?;
    expect("recv", recv.len(), sums(world, recv_counts)?.1)?;
    let mut messages = Vec::with_capacity(2 * send_counts.len());
    let (mut send_rest, mut recv_rest) = (send, recv);
    for (rank, (to, from)) in world.ranks().zip(send_counts.iter().zip(recv_counts)) {
        let (mine, rest) = send_rest.split_at(*to);
        messages.push(Message::send(mine, rank));
        send_rest = rest;
        let (theirs, rest) = std::mem::take(&mut recv_rest).split_at_mut(*from);
        messages.push(Message::recv(theirs, rank));
        recv_rest = rest;
    }
    Ok(messages)
}

/// Refuses a buffer of the wrong length.
#[inline]
fn expect(name: &str, length: usize, expected: usize) -> Result<()> {
    if length == expected {
        return Ok(());
    }
    Err(Error::invalid_argument(format!("`{name}` has {length} elements where {expected} are needed")))
}

/// `count` for each rank.
fn times(world: World, count: usize) -> Result<usize> {
    let total = count.checked_mul(world.size as usize);
    total.ok_or_else(|| {
        Error::invalid_argument(format!("{count} elements for each of {} ranks is too large", world.size))
    })
}

/// The count of one of as many blocks as ranks.
fn block(world: World, length: usize) -> Result<usize> {
    let ranks = world.size as usize;
    if length.is_multiple_of(ranks) {
        return Ok(length / ranks);
    }
    Err(Error::invalid_argument(format!("a buffer of {length} elements is not one block for each of {ranks} ranks")))
}

/// My count, and the sum of all.
fn sums(world: World, counts: &[usize]) -> Result<(usize, usize)> {
    if counts.len() != world.size as usize {
        return Err(wrong_counts(counts.len(), world.size));
    }
    let total = counts.iter().try_fold(0usize, |sum, count| sum.checked_add(*count));
    let total = total.ok_or_else(|| Error::invalid_argument("the counts together are too large"))?;
    Ok((counts[world.rank.index()], total))
}

#[inline]
fn apart<'a, T: Element>(collective: Collective, count: usize, (send, recv): (&'a [T], &'a mut [T])) -> Call<'a> {
    describe::<T>(collective, count, Buffers::apart(send, recv))
}

#[inline]
fn in_place<T: Element>(collective: Collective, buffer: &mut [T]) -> Call<'_> {
    describe::<T>(collective, buffer.len(), Buffers::shared(buffer))
}

#[inline]
fn describe<T: Element>(collective: Collective, count: usize, buffers: Buffers<'_>) -> Call<'_> {
    // What does not fit has been refused where the buffers' lengths were compared: a buffer of so many values would not
    // fit either.
    let count = CallCount::Each((count * T::VALUES) as u64);
    Call { collective, data_type: T::DATA_TYPE, op: None, root: None, count, buffers }
}

fn per_rank<T: Element>(counts: &[usize]) -> CallCount {
    CallCount::PerRank(counts.iter().map(|count| (count * T::VALUES) as u64).collect())
}
