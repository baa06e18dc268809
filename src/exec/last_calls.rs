//! The calls that a rank made last.
//!
//! Programs run the same few collectives on the same buffers again and again. Whether a call is right, and how it goes,
//! depends on nothing but the call itself, so that the same one again costs a comparison: of 8 bytes, checks and
//! choices are a third of a call's instructions (bench/NOTES.md).

use crate::device::{Home, Kernel, Place};
use crate::error::{Error, Result};
use crate::exec::{Buffers, Call, CallCount, CallExtent};
use crate::types::{Collective, DataType, Rank, ReduceOp, Scalar, World};

/// What is settled of the last calls that were right, as whoever keeps it has settled it.
#[derive(Debug)]
pub struct LastCalls<T> {
    /// A call has one place, which another one may take.
    places: [Option<(Key, T)>; PLACES],
    /// Of a call that is settled again each time.
    other: Option<T>,
    /// Whether kernels compute in the standard floating-point mode.
    standard_mode: bool,
}

/// What a check finds out about a call.
#[derive(Debug, Clone, Copy)]
pub struct Accepted {
    /// How much memory it works in.
    pub extent: CallExtent,
    /// Copies or reduces elements of the call's type.
    pub kernel: Kernel,
}

/// The place of a call: of the few calls of a loop, each mostly has its own.
#[inline]
fn place(call: &Call<'_>) -> usize {
    let Buffers { input, output, .. } = &call.buffers;
    let bits = input.address.addr() ^ output.address.addr().rotate_left(13) ^ input.bytes;
    let mixed = (bits as u64).wrapping_mul(SPREAD);
    usize::try_from(mixed >> (u64::BITS - PLACES.ilog2())).unwrap_or_default()
}

/// All that a check looks at.
#[derive(Debug, Clone, Copy)]
struct Key {
    collective: Collective,
    data_type: DataType,
    op: Option<ReduceOp>,
    root: Option<Rank>,
    count: u64,
    input: Span,
    output: Span,
}

/// Address and length of a buffer; never followed.
type Span = (usize, usize);

impl Key {
    /// `None` where a check looks at more: at counts of each rank, or at a device.
    fn of(call: &Call<'_>) -> Option<Key> {
        let Call { collective, data_type, op, root, ref count, ref buffers } = *call;
        let &CallCount::Each(count) = count else { return None };
        let (input, output) = (span(&buffers.input), span(&buffers.output));
        is_on_host(call).then_some(Key { collective, data_type, op, root, count, input, output })
    }

    /// Whether it is `call`'s. Field by field: a key that is put together first is read before it has left the
    /// processor's store buffer.
    #[inline]
    fn is_of(&self, call: &Call<'_>) -> bool {
        let Call { collective, data_type, op, root, ref count, ref buffers } = *call;
        let is_count = matches!(count, CallCount::Each(count) if *count == self.count);
        is_count
            && span(&buffers.input) == self.input
            && span(&buffers.output) == self.output
            && (collective, data_type) == (self.collective, self.data_type)
            && root == self.root
            && is_same_op(op, self.op)
            && is_on_host(call)
    }
}

/// Whether both are the same bit by bit: -0.0 as a scalar is not 0.0, though they are equal.
#[inline]
fn is_same_op(one: Option<ReduceOp>, other: Option<ReduceOp>) -> bool {
    match (one, other) {
        (Some(ReduceOp::PreMulSum(Scalar::Float(one))), Some(ReduceOp::PreMulSum(Scalar::Float(other)))) => {
            one.to_bits() == other.to_bits()
        }
        (one, other) => one == other,
    }
}

#[inline]
fn span(place: &Place) -> Span {
    (place.address.addr(), place.bytes)
}

#[inline]
fn is_on_host(call: &Call<'_>) -> bool {
    call.buffers.input.home == Home::Host && call.buffers.output.home == Home::Host
}

impl<T> LastCalls<T> {
    /// No call yet. Where results are `reproducible`, they do not depend on the floating-point mode of the thread that
    /// computes them.
    pub fn new(reproducible: bool) -> LastCalls<T> {
        LastCalls { places: std::array::from_fn(|_| None), other: None, standard_mode: reproducible }
    }

    /// What is settled of `call`: what was, where it is one of the last; else what `settle` makes of a call that is
    /// right. `world` is the same for all calls, and what is settled depends on nothing but the call.
    ///
    /// # Errors
    /// As [`Call::check`] and `settle`; the call is not remembered then.
    #[inline]
    pub fn settled(&mut self, call: &Call<'_>, world: World, settle: impl FnOnce(Accepted) -> Result<T>) -> Result<&T> {
        let place = place(call);
        if !self.places[place].as_ref().is_some_and(|(key, _)| key.is_of(call)) {
            let settled = settle(self.check(call, world)?)?;
            let Some(key) = Key::of(call) else { return Ok(self.other.insert(settled)) };
            self.places[place] = Some((key, settled));
        }
        let remembered = self.places[place].as_ref().map(|(_, settled)| settled);
        remembered.ok_or_else(|| Error::internal("a call was settled and is not remembered"))
    }

    /// [`Call::check`] and the call's arithmetic; remembers nothing.
    ///
    /// # Errors
    /// As [`Call::check`].
    pub fn check(&self, call: &Call<'_>, world: World) -> Result<Accepted> {
        let extent = CallExtent::of(call.data_type, call.check(world)?);
        let kernel = match call.op {
            Some(op) => Kernel::reduce(call.data_type, op, world.size)?,
            None => Kernel::copy(call.data_type),
        };
        Ok(Accepted { extent, kernel: if self.standard_mode { kernel.in_standard_mode() } else { kernel } })
    }
}

/// How many calls are remembered: a solver's loop has a few.
const PLACES: usize = 4;
/// Mixes all bits of what it multiplies into the highest ones.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::error::Kind;
    use crate::exec::Buffers;
    use crate::types::Elements;

    const WORLD: World = World { rank: Rank::new(0), size: 2 };

    fn sum<'a>(input: &'a [u32], output: &'a mut [u32], count: u64) -> Call<'a> {
        Call {
            collective: Collective::AllReduce,
            data_type: DataType::U32,
            op: Some(ReduceOp::Sum),
            root: None,
            count: CallCount::Each(count),
            buffers: Buffers::apart(input, output),
        }
    }

    #[test]
    fn a_call_that_differs_in_anything_is_checked() {
        let (input, mut output, mut short) = ([1; 4], [0; 4], [0; 3]);
        let mut last = LastCalls::new(false);
        let mut kind = |call: &Call<'_>| last.settled(call, WORLD, Ok).err().map(|error| error.kind());
        for _ in 0..2 {
            assert_eq!(kind(&sum(&input, &mut output, 4)), None);
        }
        let wrong = Some(Kind::InvalidArgument);
        assert_eq!(kind(&sum(&input, &mut output, 5)), wrong);
        assert_eq!(kind(&sum(&input, &mut short, 4)), wrong);
        assert_eq!(kind(&sum(&input[1..], &mut output, 4)), wrong);
        assert_eq!(kind(&Call { op: None, ..sum(&input, &mut output, 4) }), wrong);
        assert_eq!(kind(&Call { root: Some(Rank::new(1)), ..sum(&input, &mut output, 4) }), wrong);
        assert_eq!(kind(&Call { collective: Collective::AllGather, ..sum(&input, &mut output, 4) }), wrong);
        let floats = DataType::F32;
        assert_eq!(kind(&Call { data_type: floats, op: Some(ReduceOp::BitAnd), ..sum(&input, &mut output, 4) }), wrong);
        assert_eq!(kind(&Call { data_type: DataType::U64, ..sum(&input, &mut output, 4) }), wrong);
        let counts = CallCount::PerRank(vec![4, 4]);
        assert_eq!(kind(&Call { count: counts, ..sum(&input, &mut output, 4) }), wrong);
        assert_eq!(kind(&sum(&input, &mut output, 4)), None);
    }

    #[test]
    fn what_is_remembered_is_of_the_call_that_is_asked_for() {
        let (input, mut output) = ([1; 4], [0; 4]);
        let mut last = LastCalls::new(false);
        for count in [4, 2, 2, 4, 0] {
            let accepted = last.settled(&sum(&input, &mut output, count), WORLD, Ok).unwrap();
            assert_eq!(accepted.extent, CallExtent::of(DataType::U32, (Elements(count), Elements(count))));
        }
    }

    #[test]
    fn a_call_that_comes_again_is_settled_once_also_between_others() {
        let (input, mut output) = ([1; 4], [0; 4]);
        let (mut last, mut settled) = (LastCalls::new(false), 0);
        for turn in 0..6 {
            let call = sum(&input, &mut output, 4);
            let once_more = |_| {
                settled += 1;
                Ok(())
            };
            last.settled(&call, WORLD, once_more).unwrap();
            // What is never remembered takes nobody's place.
            let counts = Call {
                collective: Collective::AllGatherV,
                op: None,
                count: CallCount::PerRank(vec![2, 2]),
                ..sum(&input[..2], &mut output, 2)
            };
            last.settled(&counts, WORLD, |_| Ok(())).unwrap();
            assert_eq!(settled, 1, "turn {turn}");
        }
    }

    #[test]
    fn scalars_are_compared_by_their_bits() {
        let (input, mut output) = ([1.0; 4], [0.0; 4]);
        let (mut last, mut settled) = (LastCalls::new(false), Vec::new());
        for scalar in [0.0_f64, 0.0, -0.0, f64::NAN, f64::NAN] {
            let call = Call {
                collective: Collective::AllReduce,
                data_type: DataType::F64,
                op: Some(ReduceOp::premul_sum(scalar)),
                root: None,
                count: CallCount::Each(4),
                buffers: Buffers::apart(&input, &mut output),
            };
            let note = |_| {
                settled.push(scalar.to_bits());
                Ok(())
            };
            last.settled(&call, WORLD, note).unwrap();
        }
        assert_eq!(settled, [0.0_f64, -0.0, f64::NAN].map(f64::to_bits));
    }
}
