//! The call that a rank checked last.
//!
//! Programs run the same collective on the same buffers again and again. Whether a call is right depends on nothing but
//! the call itself, so that the same one again costs a comparison: of 8 bytes, checks are a fourth of a call's
//! instructions (bench/NOTES.md).

use crate::device::{Home, Kernel, Place};
use crate::error::{Error, Result};
use crate::exec::{Call, CallCount};
use crate::types::{Collective, DataType, Elements, Rank, ReduceOp, World};

/// The last call that [`LastCall::check`] has accepted.
#[derive(Debug, Default)]
pub struct LastCall {
    /// `None` where a call like it is checked again.
    key: Option<Key>,
    accepted: Option<Accepted>,
    /// Whether kernels compute in the standard floating-point mode.
    standard_mode: bool,
}

/// What a check finds out about a call.
#[derive(Debug, Clone, Copy)]
pub struct Accepted {
    /// Elements of the rank's input and output.
    pub lengths: (Elements, Elements),
    /// Copies or reduces elements of the call's type.
    pub kernel: Kernel,
}

/// All that a check looks at.
#[derive(Debug, Clone, Copy, PartialEq)]
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
    #[inline]
    fn of(call: &Call<'_>) -> Option<Key> {
        let Call { collective, data_type, op, root, ref count, ref buffers } = *call;
        let &CallCount::Each(count) = count else { return None };
        let span = |place: Place| (place.address.addr(), place.bytes);
        let (input, output) = (span(buffers.input), span(buffers.output));
        let is_on_host = buffers.input.home == Home::Host && buffers.output.home == Home::Host;
        is_on_host.then_some(Key { collective, data_type, op, root, count, input, output })
    }
}

impl LastCall {
    /// No call yet. Where results are `reproducible`, they do not depend on the floating-point mode of the thread that
    /// computes them.
    pub fn new(reproducible: bool) -> LastCall {
        LastCall { standard_mode: reproducible, ..LastCall::default() }
    }

    /// [`Call::check`] and the call's arithmetic. `world` is the same for all calls.
    ///
    /// # Errors
    /// As [`Call::check`].
    #[inline]
    pub fn check(&mut self, call: &Call<'_>, world: World) -> Result<&Accepted> {
        let key = Key::of(call);
        if key.is_none() || key != self.key {
            let Accepted { lengths, kernel } = accept(call, world)?;
            let kernel = if self.standard_mode { kernel.in_standard_mode() } else { kernel };
            self.accepted = Some(Accepted { lengths, kernel });
            self.key = key;
        }
        self.accepted.as_ref().ok_or_else(|| Error::internal("a call was accepted and is not remembered"))
    }
}

fn accept(call: &Call<'_>, world: World) -> Result<Accepted> {
    let lengths = call.check(world)?;
    let kernel = match call.op {
        Some(op) => Kernel::reduce(call.data_type, op, world.size)?,
        None => Kernel::copy(call.data_type),
    };
    Ok(Accepted { lengths, kernel })
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::error::Kind;
    use crate::exec::Buffers;

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
        let mut last = LastCall::default();
        let mut kind = |call: &Call<'_>| last.check(call, WORLD).err().map(|error| error.kind());
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
        let mut last = LastCall::default();
        for count in [4, 2, 2, 4, 0] {
            let accepted = last.check(&sum(&input, &mut output, count), WORLD).unwrap();
            assert_eq!(accepted.lengths, (Elements(count), Elements(count)));
        }
    }
}
