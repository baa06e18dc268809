//! Typed calls, described: what a communicator runs at once, a scope begins and a group adds. Buffers of the wrong
//! length are refused here; [`Call::check`] refuses the rest. What small calls pass is inline, so that a call is built
//! where it is used: moving it reads 16 bytes at a time, and waits for words that have just been stored.

use crate::error::{Error, Result};
use crate::exec::{Buffers, Call, CallCount, Message, ReadBuffer, WriteBuffer, wrong_counts};
use crate::types::{Collective, Element, NO_RANK, Rank, ReduceOp, World};

#[inline]
pub(super) fn all_reduce<'a, T: Element>(
    _: World,
    send: impl ReadBuffer<'a, T>,
    recv: impl WriteBuffer<'a, T>,
    op: ReduceOp,
) -> Result<Call<'a>> {
    expect("recv", recv.count(), send.count())?;
    Ok(Call { op: Some(op), ..apart(Collective::AllReduce, recv.count(), (send, recv)) })
}

#[inline]
pub(super) fn all_reduce_in_place<'a, T: Element>(buffer: impl WriteBuffer<'a, T>, op: ReduceOp) -> Call<'a> {
    Call { op: Some(op), ..in_place(Collective::AllReduce, buffer) }
}

#[inline]
pub(super) fn broadcast<'a, T: Element>(buffer: impl WriteBuffer<'a, T>, root: u32) -> Call<'a> {
    Call { root: Some(Rank::new(root)), ..in_place(Collective::Broadcast, buffer) }
}

#[inline]
pub(super) fn broadcast_into<'a, T: Element>(
    world: World,
    send: impl ReadBuffer<'a, T>,
    recv: impl WriteBuffer<'a, T>,
    root: u32,
) -> Result<Call<'a>> {
    if root == world.rank.get() {
        expect("send", send.count(), recv.count())?;
    }
    Ok(Call { root: Some(Rank::new(root)), ..apart(Collective::Broadcast, recv.count(), (send, recv)) })
}

#[inline]
pub(super) fn reduce<'a, T: Element>(
    world: World,
    send: impl ReadBuffer<'a, T>,
    recv: impl WriteBuffer<'a, T>,
    op: ReduceOp,
    root: u32,
) -> Result<Call<'a>> {
    if root == world.rank.get() {
        expect("recv", recv.count(), send.count())?;
    }
    let basic = apart(Collective::Reduce, send.count(), (send, recv));
    Ok(Call { op: Some(op), root: Some(Rank::new(root)), ..basic })
}

#[inline]
pub(super) fn reduce_in_place<'a, T: Element>(buffer: impl WriteBuffer<'a, T>, op: ReduceOp, root: u32) -> Call<'a> {
    Call { op: Some(op), root: Some(Rank::new(root)), ..in_place(Collective::Reduce, buffer) }
}

#[inline]
pub(super) fn all_gather<'a, T: Element>(
    world: World,
    send: impl ReadBuffer<'a, T>,
    recv: impl WriteBuffer<'a, T>,
) -> Result<Call<'a>> {
    expect("recv", recv.count(), times(world, send.count())?)?;
    Ok(apart(Collective::AllGather, send.count(), (send, recv)))
}

#[inline]
pub(super) fn all_gather_in_place<'a, T: Element>(world: World, buffer: impl WriteBuffer<'a, T>) -> Result<Call<'a>> {
    let count = block(world, buffer.count())?;
    let start = count * world.rank.index();
    Ok(describe::<T>(Collective::AllGather, count, Buffers::input_within(buffer, start, count)))
}

#[inline]
pub(super) fn reduce_scatter<'a, T: Element>(
    world: World,
    send: impl ReadBuffer<'a, T>,
    recv: impl WriteBuffer<'a, T>,
    op: ReduceOp,
) -> Result<Call<'a>> {
    expect("send", send.count(), times(world, recv.count())?)?;
    Ok(Call { op: Some(op), ..apart(Collective::ReduceScatter, recv.count(), (send, recv)) })
}

#[inline]
pub(super) fn reduce_scatter_in_place<'a, T: Element>(
    world: World,
    buffer: impl WriteBuffer<'a, T>,
    op: ReduceOp,
) -> Result<Call<'a>> {
    let count = block(world, buffer.count())?;
    let buffers = Buffers::output_within(buffer, count * world.rank.index(), count);
    Ok(Call { op: Some(op), ..describe::<T>(Collective::ReduceScatter, count, buffers) })
}

#[inline]
pub(super) fn all_to_all<'a, T: Element>(
    world: World,
    send: impl ReadBuffer<'a, T>,
    recv: impl WriteBuffer<'a, T>,
) -> Result<Call<'a>> {
    expect("recv", recv.count(), send.count())?;
    Ok(apart(Collective::AllToAll, block(world, send.count())?, (send, recv)))
}

#[inline]
pub(super) fn gather<'a, T: Element>(
    world: World,
    send: impl ReadBuffer<'a, T>,
    recv: impl WriteBuffer<'a, T>,
    root: u32,
) -> Result<Call<'a>> {
    if root == world.rank.get() {
        expect("recv", recv.count(), times(world, send.count())?)?;
    }
    Ok(Call { root: Some(Rank::new(root)), ..apart(Collective::Gather, send.count(), (send, recv)) })
}

#[inline]
pub(super) fn scatter<'a, T: Element>(
    world: World,
    send: impl ReadBuffer<'a, T>,
    recv: impl WriteBuffer<'a, T>,
    root: u32,
) -> Result<Call<'a>> {
    if root == world.rank.get() {
        expect("send", send.count(), times(world, recv.count())?)?;
    }
    Ok(Call { root: Some(Rank::new(root)), ..apart(Collective::Scatter, recv.count(), (send, recv)) })
}

pub(super) fn barrier() -> Call<'static> {
    describe::<u8>(Collective::Barrier, 0, Buffers::none())
}

pub(super) fn all_gather_v<'a, T: Element>(
    world: World,
    send: impl ReadBuffer<'a, T>,
    recv: impl WriteBuffer<'a, T>,
    counts: &[usize],
) -> Result<Call<'a>> {
    let (mine, total) = sums(world, counts)?;
    expect("send", send.count(), mine)?;
    expect("recv", recv.count(), total)?;
    Ok(Call { count: per_rank::<T>(counts), ..apart(Collective::AllGatherV, 0, (send, recv)) })
}

pub(super) fn reduce_scatter_v<'a, T: Element>(
    world: World,
    send: impl ReadBuffer<'a, T>,
    recv: impl WriteBuffer<'a, T>,
    counts: &[usize],
    op: ReduceOp,
) -> Result<Call<'a>> {
    let (mine, total) = sums(world, counts)?;
    expect("recv", recv.count(), mine)?;
    expect("send", send.count(), total)?;
    let basic = apart(Collective::ReduceScatterV, 0, (send, recv));
    Ok(Call { op: Some(op), count: per_rank::<T>(counts), ..basic })
}

pub(super) fn gather_v<'a, T: Element>(
    world: World,
    send: impl ReadBuffer<'a, T>,
    recv: impl WriteBuffer<'a, T>,
    counts: &[usize],
    root: u32,
) -> Result<Call<'a>> {
    let (length, room) = (send.count(), recv.count());
    let basic = Call { root: Some(Rank::new(root)), ..apart(Collective::GatherV, length, (send, recv)) };
    if root != world.rank.get() {
        return Ok(basic);
    }
    let (mine, total) = sums(world, counts)?;
    expect("send", length, mine)?;
    expect("recv", room, total)?;
    Ok(Call { count: per_rank::<T>(counts), ..basic })
}

pub(super) fn scatter_v<'a, T: Element>(
    world: World,
    send: impl ReadBuffer<'a, T>,
    recv: impl WriteBuffer<'a, T>,
    counts: &[usize],
    root: u32,
) -> Result<Call<'a>> {
    let (room, length) = (send.count(), recv.count());
    let basic = Call { root: Some(Rank::new(root)), ..apart(Collective::ScatterV, length, (send, recv)) };
    if root != world.rank.get() {
        return Ok(basic);
    }
    let (mine, total) = sums(world, counts)?;
    expect("recv", length, mine)?;
    expect("send", room, total)?;
    Ok(Call { count: per_rank::<T>(counts), ..basic })
}

pub(super) fn scan<'a, T: Element>(
    _: World,
    send: impl ReadBuffer<'a, T>,
    recv: impl WriteBuffer<'a, T>,
    op: ReduceOp,
) -> Result<Call<'a>> {
    expect("recv", recv.count(), send.count())?;
    Ok(Call { op: Some(op), ..apart(Collective::Scan, recv.count(), (send, recv)) })
}

pub(super) fn scan_in_place<'a, T: Element>(buffer: impl WriteBuffer<'a, T>, op: ReduceOp) -> Call<'a> {
    Call { op: Some(op), ..in_place(Collective::Scan, buffer) }
}

pub(super) fn exscan<'a, T: Element>(
    _: World,
    send: impl ReadBuffer<'a, T>,
    recv: impl WriteBuffer<'a, T>,
    op: ReduceOp,
) -> Result<Call<'a>> {
    expect("recv", recv.count(), send.count())?;
    Ok(Call { op: Some(op), ..apart(Collective::Exscan, recv.count(), (send, recv)) })
}

pub(super) fn exscan_in_place<'a, T: Element>(buffer: impl WriteBuffer<'a, T>, op: ReduceOp) -> Call<'a> {
    Call { op: Some(op), ..in_place(Collective::Exscan, buffer) }
}

/// The sending end of a message.
#[inline]
pub(super) fn send<'a, T: Element>(send: impl ReadBuffer<'a, T>, peer: u32) -> Message<'a> {
    Message::sending(send, Rank::new(peer))
}

/// The receiving end of a message.
#[inline]
pub(super) fn recv<'a, T: Element>(recv: impl WriteBuffer<'a, T>, peer: u32) -> Message<'a> {
    Message::receiving(recv, Rank::new(peer))
}

/// The two messages of a `send_recv`; to or from nobody there is none.
#[inline]
pub(super) fn send_recv<'a, T: Element>(
    (send, target): (impl ReadBuffer<'a, T>, u32),
    (recv, source): (impl WriteBuffer<'a, T>, u32),
) -> (Option<Message<'a>>, Option<Message<'a>>) {
    let sent = (target != NO_RANK).then(|| self::send(send, target));
    let received = (source != NO_RANK).then(|| self::recv(recv, source));
    (sent, received)
}

/// The messages of an `all_to_all_v`: one to and one from each rank, in rank order.
pub(super) fn all_to_all_v<'a, T: Element>(
    world: World,
    send: impl ReadBuffer<'a, T>,
    recv: impl WriteBuffer<'a, T>,
    (send_counts, recv_counts): (&[usize], &[usize]),
) -> Result<Vec<Message<'a>>> {
    expect("send", send.count(), sums(world, send_counts)?.1)?;
    expect("recv", recv.count(), sums(world, recv_counts)?.1)?;
    let mut messages = Vec::with_capacity(2 * send_counts.len());
    let (mut send_rest, mut recv_rest) = (send, recv);
    for (rank, (to, from)) in world.ranks().zip(send_counts.iter().zip(recv_counts)) {
        let (mine, rest) = send_rest.halves(*to);
        messages.push(Message::sending(mine, rank));
        send_rest = rest;
        let (theirs, rest) = recv_rest.halves(*from);
        messages.push(Message::receiving(theirs, rank));
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
#[inline]
fn times(world: World, count: usize) -> Result<usize> {
    let total = count.checked_mul(world.size as usize);
    total.ok_or_else(|| {
        Error::invalid_argument(format!("{count} elements for each of {} ranks is too large", world.size))
    })
}

/// The count of one of as many blocks as ranks.
#[inline]
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
fn apart<'a, T: Element>(
    collective: Collective,
    count: usize,
    (send, recv): (impl ReadBuffer<'a, T>, impl WriteBuffer<'a, T>),
) -> Call<'a> {
    describe::<T>(collective, count, Buffers::of_two(send, recv))
}

#[inline]
fn in_place<'a, T: Element>(collective: Collective, buffer: impl WriteBuffer<'a, T>) -> Call<'a> {
    describe::<T>(collective, buffer.count(), Buffers::of_one(buffer))
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
