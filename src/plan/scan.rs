//! Scans along a chain, for executors whose arithmetic is steps alone: rank after rank adds its input to what comes
//! from below.
//!
//! The host's executor moves scans by messages, in the rounds of [`scan_rounds`](super::scan_rounds): it doubles the
//! reach in each round where that takes fewer messages behind each other.

use super::{Action, Block, Combine, Lane, LaneSizes, Operand, Span, Step};
use crate::sync::primitive::Arc;
use crate::types::{Elements, World};

/// The lane of one rank's scan of `count` elements, or of its exscan. A slot and the scratch have `room` elements each.
pub(crate) fn scan_lane(world: World, exclusive: bool, count: Elements, room: Elements) -> Lane {
    let piece = count.min(room).max(Elements(1));
    let rounds = u32::try_from(count.0.div_ceil(piece.0)).unwrap_or(u32::MAX);
    let (input, output, held) = (Operand::input(0), Operand::output(0), Span::region(0));
    let (me, size) = (world.rank, world.size);
    let below = (me.get() > 0).then(|| Operand::Slot(me.after(size - 1, size)));
    let above = (me.get() + 1 < size).then(|| Operand::Slot(me.after(1, size)));
    let step = |sources: Vec<Operand>, targets: Vec<Operand>| {
        let combine = Combine { block: 0, times: 1, sources, targets, finish: false };
        Step { lag: 0, action: Action::Combine(combine) }
    };
    let steps = match (exclusive, below, above) {
        (false, below, above) => {
            vec![step(below.into_iter().chain([input]).collect(), [output].into_iter().chain(above).collect())]
        }
        (true, None, above) => above.into_iter().map(|above| step(vec![input], vec![above])).collect(),
        (true, Some(below), None) => vec![step(vec![below], vec![output])],
        // What came from below is needed twice, and in place the output is the input.
        (true, Some(below), Some(above)) => vec![
            step(vec![below], vec![Operand::Local(held)]),
            step(vec![Operand::Local(held), input], vec![above]),
            step(vec![Operand::Local(held)], vec![output]),
        ],
    };
    let sizes = LaneSizes { rounds, piece, depth: 1, scratch: Elements::ZERO..piece, blocks: whole(count) };
    Lane { channel: 0, sizes, steps: Arc::new(steps), recipe: None }
}

fn whole(count: Elements) -> Vec<Block> {
    vec![Block::at(Elements::ZERO, count)]
}

/// The lane of a world of one: output is input, scaled and divided where the operator says so. `None` for no elements.
pub(crate) fn copy_lane(count: Elements) -> Option<Lane> {
    let (sources, targets) = (vec![Operand::input(0)], vec![Operand::output(0)]);
    let combine = Combine { block: 0, times: 1, sources, targets, finish: true };
    let steps = vec![Step { lag: 0, action: Action::Combine(combine) }];
    let sizes =
        LaneSizes { rounds: 1, piece: count, depth: 1, scratch: Elements::ZERO..Elements::ZERO, blocks: whole(count) };
    (count.0 > 0).then(|| Lane { channel: 0, sizes, steps: Arc::new(steps), recipe: None })
}
