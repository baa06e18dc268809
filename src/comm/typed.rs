//! Typed calls, described: what a communicator runs at once, a scope begins and a group adds. Buffers of the wrong
//! length are refused here; [`Call::check`] refuses the rest. What small calls pass is inline, so that a call is built
//! where it is used: moving it reads 16 bytes at a time, and waits for words that have just been stored.

use crate::error::{Error, Result};
use crate::exec::{Buffers, Call, CallCount, Message, ReadBuffer, WriteBuffer, wrong_counts};
use crate::types::{Collective, Counted, Element, Holding, InPlace, Rank, ReduceOp, RootSide, World};

/// A collective call but for its buffers. What these have to hold, and which of them tells the count, follows from the
/// collective's definition; where the collective is known while compiling, nothing of that is left at run time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Typed {
    collective: Collective,
    op: Option<ReduceOp>,
    root: Option<Rank>,
}

impl Typed {
    /// A call of a collective without operator and root.
    #[inline(always)]
    pub(super) const fn of(collective: Collective) -> Typed {
        Typed { collective, op: None, root: None }
    }

    /// The collective's name, for errors.
    #[inline]
    pub(super) const fn name(self) -> &'static str {
        self.collective.name()
    }

    /// With an operator.
    #[inline(always)]
    pub(super) const fn reducing_by(self, op: ReduceOp) -> Typed {
        Typed { op: Some(op), ..self }
    }

    /// With a root.
    #[inline(always)]
    pub(super) const fn rooted_at(self, root: u32) -> Typed {
        Typed { root: Some(Rank::new(root)), ..self }
    }

    /// The call with two buffers. The count is that of a buffer which every rank passes; the other has to fit.
    #[inline]
    pub(super) fn of_two<'a, T: Element>(
        self,
        world: World,
        send: impl ReadBuffer<'a, T>,
        recv: impl WriteBuffer<'a, T>,
    ) -> Result<Call<'a>> {
        let definition = self.collective.definition();
        let (input, output) = definition.sides(self.root == Some(world.rank));
        // Of two buffers that every rank passes, the one with one block tells the count.
        let by_output = match (definition.root, input, output) {
            (RootSide::Input, ..) | (RootSide::Neither, Holding::Each, Holding::One) => true,
            (RootSide::Output | RootSide::Neither, ..) => false,
        };
        let tells = if by_output { output } else { input };
        let told = if by_output { recv.count() } else { send.count() };
        let count = if tells == Holding::Each { block(world, told)? } else { told };
        let (name, holding, given) =
            if by_output { ("send", input, send.count()) } else { ("recv", output, recv.count()) };
        match holding {
            // Not looked at.
            Holding::Nothing => {}
            Holding::One => expect(name, given, count)?,
            Holding::Each => expect(name, given, times(world, count)?)?,
        }
        Ok(self.described::<T>(count, Buffers::of_two(send, recv)))
    }

    /// The call with one buffer, of a collective whose input and output begin at the same element.
    #[inline(always)]
    pub(super) fn of_one<'a, T: Element>(self, buffer: impl WriteBuffer<'a, T>) -> Call<'a> {
        self.described::<T>(buffer.count(), Buffers::of_one(buffer))
    }

    /// The call with one buffer of a block for each rank, of which this rank's is its input or its output.
    #[inline]
    pub(super) fn within<'a, T: Element>(self, world: World, buffer: impl WriteBuffer<'a, T>) -> Result<Call<'a>> {
        let count = block(world, buffer.count())?;
        let start = count * world.rank.index();
        let buffers = match self.collective.definition().in_place() {
            Some(InPlace::InputInOutput) => Buffers::input_within(buffer, start, count),
            Some(InPlace::OutputInInput) => Buffers::output_within(buffer, start, count),
            Some(InPlace::Same) | None => {
                return Err(Error::internal(format!("{} has no form within one buffer", self.collective)));
            }
        };
        Ok(self.described::<T>(count, buffers))
    }

    /// The call with a count for each rank. Where the root alone knows them, others pass any, and the count of their
    /// block is that of their buffer.
    pub(super) fn of_counts<'a, T: Element>(
        self,
        world: World,
        send: impl ReadBuffer<'a, T>,
        recv: impl WriteBuffer<'a, T>,
        counts: &[usize],
    ) -> Result<Call<'a>> {
        let (definition, is_root) = (self.collective.definition(), self.root == Some(world.rank));
        if definition.counted == Counted::AtRoot && !is_root {
            let own = if definition.root == RootSide::Input { recv.count() } else { send.count() };
            return Ok(self.described::<T>(own, Buffers::of_two(send, recv)));
        }
        let (mine, total) = sums(world, counts)?;
        let length = |holding| match holding {
            Holding::Nothing => 0,
            Holding::One => mine,
            Holding::Each => total,
        };
        let (input, output) = definition.sides(is_root);
        expect("send", send.count(), length(input))?;
        expect("recv", recv.count(), length(output))?;
        Ok(Call { count: per_rank::<T>(counts), ..self.described::<T>(0, Buffers::of_two(send, recv)) })
    }

    /// The call without buffers.
    pub(super) fn of_none(self) -> Call<'static> {
        self.described::<u8>(0, Buffers::none())
    }

    #[inline(always)]
    fn described<T: Element>(self, count: usize, buffers: Buffers<'_>) -> Call<'_> {
        // What does not fit has been refused where the buffers' lengths were compared: a buffer of so many values would
        // not fit either.
        let count = CallCount::Each((count * T::VALUES) as u64);
        Call { collective: self.collective, data_type: T::DATA_TYPE, op: self.op, root: self.root, count, buffers }
    }
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

fn per_rank<T: Element>(counts: &[usize]) -> CallCount {
    CallCount::PerRank(counts.iter().map(|count| (count * T::VALUES) as u64).collect())
}
