//! Architectures without vector levels of ours: the compiler vectorises the plain loops.

use std::mem::MaybeUninit;
use std::ptr;

use crate::device::host::block;
use crate::device::host::copy;
use crate::device::host::fold::Fold;
use crate::device::host::lane::Lane;
use crate::device::host::vectors::Vectors;
use crate::device::host::{Body, Kernel, Pass};

/// The vector levels of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    /// The vectors that every machine of this architecture has.
    Baseline,
}

impl Level {
    /// The best level that the machine has.
    pub(super) fn detect() -> Level {
        Level::Baseline
    }

    /// All levels that the machine has.
    #[cfg(test)]
    pub(super) fn available() -> Vec<Level> {
        vec![Level::Baseline]
    }
}

/// Uses ordinary stores in place of streaming ones.
struct Baseline;

impl Vectors for Baseline {
    unsafe fn stream(source: *const u8, target: *mut u8, bytes: usize) {
        // SAFETY: the caller vouches for both.
        unsafe { ptr::copy_nonoverlapping(source, target, bytes) };
    }

    fn fence() {}

    unsafe fn widen_half(_source: &[[u8; 2]], _wide: &mut [MaybeUninit<f32>]) {
        unreachable!("HALF is false");
    }

    unsafe fn narrow_half(_wide: &[f32], _target: &mut [MaybeUninit<[u8; 2]>]) {
        unreachable!("HALF is false");
    }
}

/// The function that reduces lanes `L` with `O`.
pub(super) fn bind<L: Lane, O: Fold<L::Wide>>(_level: Level) -> Body {
    reduce::<L, O>
}

/// The function that copies.
pub(super) fn bind_copy(_level: Level) -> Body {
    copy_all
}

unsafe fn reduce<L: Lane, O: Fold<L::Wide>>(kernel: &Kernel, pass: &Pass<'_>) {
    // SAFETY: the caller's contract; every machine has the level.
    unsafe { block::reduce::<Baseline, L, O>(kernel, pass) };
}

unsafe fn copy_all(kernel: &Kernel, pass: &Pass<'_>) {
    // SAFETY: the caller's contract; every machine has the level.
    unsafe { copy::copy::<Baseline>(kernel, pass) };
}
