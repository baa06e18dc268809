//! What a vector level does by instructions that the compiler does not find by itself.
//!
//! A machine module (`x86`, `portable`) has a `Level` that says which vectors the machine has, types that implement
//! [`Vectors`] for each level, and `bind`, which compiles the generic bodies once for each level.

use std::mem::MaybeUninit;

/// Bytes of a line: the unit and the alignment of non-temporal stores.
pub(super) const LINE: usize = 64;

/// A vector level.
///
/// # Safety
/// The methods may use instructions of the level: call them only where the machine has it.
pub(super) trait Vectors: 'static {
    /// Whether f16 is converted by instructions.
    const HALF: bool = false;

    /// Copies `bytes` past the caches, in whole lines.
    ///
    /// # Safety
    /// `source` is readable and `target` writable for `bytes`, a multiple of [`LINE`]; `target` is aligned to it.
    unsafe fn stream(source: *const u8, target: *mut u8, bytes: usize);

    /// Orders the stores of [`Vectors::stream`] before all later stores.
    fn fence();

    /// Widens as many f16 as both slices hold. Only where [`Vectors::HALF`].
    ///
    /// # Safety
    /// The machine has the level.
    unsafe fn widen_half(source: &[[u8; 2]], wide: &mut [MaybeUninit<f32>]);

    /// Narrows as many f32 as both slices hold, any NaN to the canonical one. Only where [`Vectors::HALF`].
    ///
    /// # Safety
    /// The machine has the level.
    unsafe fn narrow_half(wide: &[f32], target: &mut [MaybeUninit<[u8; 2]>]);
}
