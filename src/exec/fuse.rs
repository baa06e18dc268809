//! Small all-reduces of one type and operator that run as one call.

use crate::device::Home;
use crate::error::Result;
use crate::exec::{Buffers, Call, CallCount};
use crate::transport::FLAT_BYTES;
use crate::types::{Collective, ReduceOp};

/// Whether `call` may travel together with `first`. All ranks must decide this alike, so the decision uses nothing that
/// may differ between ranks, such as a scalar.
pub fn fuses(first: &Call<'_>, call: &Call<'_>) -> bool {
    call.collective == Collective::AllReduce
        && first.collective == Collective::AllReduce
        && !matches!(first.op, Some(ReduceOp::PreMulSum(_)))
        && (call.data_type, call.op) == (first.data_type, first.op)
        // The host packs the inputs, so they must be in host memory.
        && [first, call].iter().all(|call| call.buffers.home() == Home::Host)
}

/// How many of `calls`, which may be fused, fit into one flat slot together; at least 1.
pub fn fused_prefix(calls: &[Call<'_>]) -> usize {
    let mut bytes = 0u64;
    let fits = calls.iter().take_while(|call| {
        let more = call.count.of(crate::types::Rank::default()).saturating_mul(u64::from(call.data_type.size()));
        bytes = bytes.saturating_add(more);
        bytes <= FLAT_BYTES as u64
    });
    fits.count().max(1)
}

/// Packs the inputs of `calls`, runs one call on them, and unpacks the outputs. The calls have been checked, and may be
/// fused.
///
/// # Errors
/// Those of `run`.
pub fn run_fused(calls: &[Call<'_>], run: impl FnOnce(&Call<'_>) -> Result<()>) -> Result<()> {
    let Some(first) = calls.first() else { return Ok(()) };
    let size = first.data_type.size() as usize;
    let bytes_of = |call: &Call<'_>| match call.count {
        CallCount::Each(count) => usize::try_from(count).unwrap_or(0) * size,
        CallCount::PerRank(_) => 0,
    };
    let total: usize = calls.iter().map(bytes_of).sum();
    let mut packed = vec![0u8; total];
    let mut at = 0;
    for call in calls {
        let bytes = bytes_of(call);
        let into = packed[at..at + bytes].as_mut_ptr();
        // SAFETY: `Buffers` vouches for the input, whose length was checked; the target is a slice of as many bytes.
        unsafe { std::ptr::copy_nonoverlapping(call.buffers.source(), into, bytes) };
        at += bytes;
    }
    let place = packed.as_mut_ptr();
    // SAFETY: one vector, exclusively ours until the call returns.
    let buffers = unsafe { Buffers::from_raw((place.cast_const(), total), (place, total)) };
    let count = CallCount::Each((total / size) as u64);
    run(&Call {
        collective: Collective::AllReduce,
        data_type: first.data_type,
        op: first.op,
        root: None,
        count,
        buffers,
    })?;
    let mut at = 0;
    for call in calls {
        let bytes = bytes_of(call);
        let from = packed[at..at + bytes].as_ptr();
        // SAFETY: `Buffers` vouches for the output, whose length was checked; the source is a slice of as many bytes.
        unsafe { std::ptr::copy_nonoverlapping(from, call.buffers.target(), bytes) };
        at += bytes;
    }
    Ok(())
}
