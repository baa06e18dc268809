//! Collectives of a world of one rank.

use crate::device::{Average, Pass, Store};
use crate::error::Result;
use crate::exec::call::{Begun, CallExtent};

/// A world of one: output is input, scaled where the operator says so.
pub fn run(begun: &Begun<'_>) -> Result<()> {
    let Begun { call, kernel, extent: &CallExtent { input, output, .. }, .. } = *begun;
    let count = input.index().min(output.index());
    let (source, target) = (call.buffers.source(), call.buffers.target());
    if count == 0 || (source == target.cast_const() && kernel.is_copy(Some(0), true, Average::Whole)) {
        return Ok(());
    }
    let pass = Pass {
        sources: &[source],
        raw: Some(0),
        targets: &[target],
        count,
        finish: true,
        average: Average::Whole,
        store: Store::Cached,
    };
    // SAFETY: the engine has checked that both buffers have `count` elements; `Buffers` vouches for them.
    unsafe { kernel.run(&pass) };
    Ok(())
}
