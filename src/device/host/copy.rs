//! Copies through the caches, and copies past them (streaming).

use std::ptr;

use crate::device::host::vectors::{LINE, Vectors};
use crate::device::host::{Kernel, Pass, Store};

/// The bytes that go to each target in turn, so that a source is read from memory only once for all targets.
const PIECE: usize = 8192;
/// A source of at most so many bytes stays in the second-level cache, so each target gets all of it before the next
/// target begins. Turns of [`PIECE`] cost up to a third more time (measured: `bench/NOTES.md`, "What peers wait for
/// goes first").
const WHOLE: usize = 256 << 10;

/// The position of a pass's blocks relative to the alignment of its first target.
pub(super) struct Alignment {
    /// The number of lanes before the first target is aligned to a cache line; 0 if it is aligned, or if no lane starts
    /// at a line.
    pub(super) head: usize,
    /// Whether the pass streams.
    streams: bool,
}

impl Alignment {
    /// The placement of a pass with lanes of `size` bytes.
    #[inline(always)]
    pub(super) fn new(pass: &Pass<'_>, size: usize) -> Alignment {
        let streams = pass.store == Store::Streaming;
        let bytes = match pass.targets.first() {
            Some(target) if streams => target.addr().wrapping_neg() % LINE,
            _ => 0,
        };
        let head = if bytes.is_multiple_of(size) { bytes / size } else { 0 };
        Alignment { head, streams }
    }

    /// Ends the pass: orders streamed stores before later stores.
    #[inline(always)]
    pub(super) fn end<V: Vectors>(&self) {
        if self.streams {
            V::fence();
        }
    }
}

/// Copies `bytes`; streams whole lines if `store` asks for it and the target is aligned.
///
/// # Safety
/// `source` is readable and `target` writable for `bytes`, they do not overlap, and the machine has the level.
#[inline(always)]
pub(super) unsafe fn put<V: Vectors>(source: *const u8, target: *mut u8, bytes: usize, store: Store) {
    let streamed =
        if store == Store::Streaming && target.addr().is_multiple_of(LINE) { bytes - bytes % LINE } else { 0 };
    if streamed != 0 {
        // SAFETY: whole lines within `bytes`, to an aligned target.
        unsafe { V::stream(source, target, streamed) };
    }
    // SAFETY: within `bytes`.
    let source = unsafe { source.add(streamed) };
    // SAFETY: within `bytes`.
    let target = unsafe { target.add(streamed) };
    // SAFETY: what is left of both; they do not overlap by the contract.
    unsafe { ptr::copy_nonoverlapping(source, target, bytes - streamed) };
}

/// Runs a pass that copies its first source into all targets.
///
/// # Safety
/// As [`Kernel::run`]; also, the machine must have the level.
#[inline(always)]
pub(super) unsafe fn copy<V: Vectors>(kernel: &Kernel, pass: &Pass<'_>) {
    let bytes = pass.count * kernel.size;
    let source = pass.sources[0];
    let placement = Alignment::new(pass, 1);
    let piece = if pass.targets.len() == 1 || bytes <= WHOLE { bytes } else { PIECE };
    let mut start = 0;
    let mut length = if placement.head == 0 { piece } else { placement.head };
    while start < bytes {
        length = length.min(bytes - start);
        // SAFETY: start is within the source.
        let from = unsafe { source.add(start) };
        for target in pass.targets {
            if ptr::eq(*target, source) {
                continue;
            }
            // SAFETY: start is within the target.
            let to = unsafe { target.add(start) };
            // SAFETY: the caller vouches for both; a target that is not the source shares nothing with it.
            unsafe { put::<V>(from, to, length, pass.store) };
        }
        start += length;
        length = piece;
    }
    placement.end::<V>();
}
