//! The operations of a vector level that need instructions the compiler does not find by itself.
//!
//! A machine module (`x86`, `portable`) has a `Level` (the vectors that the machine has), types that implement
//! [`Vectors`] for each level, and `bind`, which compiles the generic functions once for each level.

use std::mem::MaybeUninit;

/// The bytes of a cache line: the unit and the alignment of non-temporal stores.
pub(super) const LINE: usize = 64;

/// A vector level.
///
/// # Safety
/// The methods may use instructions of the level: call them only on a machine that has it.
pub(super) trait Vectors: 'static {
    /// Whether the level has instructions to convert f16.
    const HALF: bool = false;

    /// Copies `bytes` past the caches, in whole cache lines.
    ///
    /// # Safety
    /// `source` is readable and `target` writable for `bytes`, a multiple of [`LINE`]; `target` is aligned to it.
    unsafe fn stream(source: *const u8, target: *mut u8, bytes: usize);

    /// Orders the stores of [`Vectors::stream`] before all later stores.
    fn fence();

    /// Widens f16 values, as many as both slices hold. Requires [`Vectors::HALF`].
    ///
    /// # Safety
    /// The machine has the level.
    unsafe fn widen_half(source: &[[u8; 2]], wide: &mut [MaybeUninit<f32>]);

    /// Narrows f32 values, as many as both slices hold; any NaN becomes the canonical one. Requires [`Vectors::HALF`].
    ///
    /// # Safety
    /// The machine has the level.
    unsafe fn narrow_half(wide: &[f32], target: &mut [MaybeUninit<[u8; 2]>]);
}
