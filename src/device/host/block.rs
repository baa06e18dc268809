//! The body of a reduction: block by block through accumulators on the stack.

use std::mem::MaybeUninit;
use std::slice;

use crate::device::host::copy::{Placement, put};
use crate::device::host::fold::Fold;
use crate::device::host::lane::{Lane, Wide};
use crate::device::host::vectors::{LINE, Vectors};
use crate::device::host::{Kernel, Pass};

/// Bytes of a block's accumulators. A multiple of [`LINE`], so that blocks keep a target's alignment.
const BLOCK: usize = 2048;

const _: () = assert!(BLOCK.is_multiple_of(LINE * 8));

/// Room for one block, aligned to a line.
#[repr(align(64))]
struct Room(MaybeUninit<[u8; BLOCK]>);

impl Room {
    #[inline(always)]
    fn new() -> Room {
        Room(MaybeUninit::uninit())
    }

    /// The room as `count` values.
    #[inline(always)]
    fn values<T>(&mut self, count: usize) -> &mut [MaybeUninit<T>] {
        assert!(align_of::<T>() <= align_of::<Room>() && count <= BLOCK / size_of::<T>());
        // SAFETY: the assertion above keeps it inside the room and aligned; any bytes are valid as MaybeUninit.
        unsafe { slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), count) }
    }
}

/// Does `pass` for lanes `L` with operator `O` at level `V`.
///
/// # Safety
/// As [`Kernel::run`], and the machine has the level.
#[inline(always)]
pub(super) unsafe fn reduce<V: Vectors, L: Lane, O: Fold<L::Wide>>(kernel: &Kernel, pass: &Pass<'_>) {
    let lanes = pass.count * kernel.lanes;
    let placement = Placement::new(pass, size_of::<L::Raw>());
    let (mut wide, mut scratch, mut staging) = (Room::new(), Room::new(), Room::new());
    let whole = BLOCK / size_of::<L::Wide>();
    let mut start = 0;
    let mut length = if placement.head == 0 { whole } else { placement.head };
    while start < lanes {
        length = length.min(lanes - start);
        let wide = wide.values(length);
        // SAFETY: the caller vouches for the sources and the level; start + length is within the count.
        unsafe { fold::<V, L, O>(kernel, pass, start, wide, &mut scratch) };
        // SAFETY: `fold` has written each of them.
        let wide = unsafe { wide.assume_init_mut() };
        if O::SUM && pass.finish {
            divide(kernel, wide);
        }
        let narrow = staging.values(length);
        // SAFETY: the caller vouches for the level.
        if !unsafe { L::narrow_all::<V>(wide, narrow) } {
            for (raw, value) in narrow.iter_mut().zip(&*wide) {
                raw.write(L::narrow(*value));
            }
        }
        for target in pass.targets {
            // SAFETY: start is within the target's count.
            let target = unsafe { target.add(start * size_of::<L::Raw>()) };
            // SAFETY: the staging is no target, and the target has room for the block, as the caller vouches.
            unsafe { put::<V>(narrow.as_ptr().cast(), target, size_of_val(narrow), pass.store) };
        }
        start += length;
        length = whole;
    }
    placement.end::<V>();
}

/// Divides accumulators where the kernel has a divisor.
#[inline(always)]
fn divide<W: Wide>(kernel: &Kernel, wide: &mut [W]) {
    if let Some(divisor) = kernel.divisor {
        for value in wide {
            *value = value.over(&divisor);
        }
    }
}

/// Folds elements from `start` on of all sources into `wide`, all of which is written.
///
/// # Safety
/// Each source is readable up to `start + wide.len()` lanes, and the machine has the level.
#[inline(always)]
unsafe fn fold<V: Vectors, L: Lane, O: Fold<L::Wide>>(
    kernel: &Kernel,
    pass: &Pass<'_>,
    start: usize,
    wide: &mut [MaybeUninit<L::Wide>],
    scratch: &mut Room,
) {
    let length = wide.len();
    let block = |source: *const u8| {
        // SAFETY: start is within the source's count.
        let first = unsafe { source.cast::<L::Raw>().add(start) };
        // SAFETY: readable by the contract; the raw type has no alignment; no target is written while the slice lives.
        unsafe { slice::from_raw_parts(first, length) }
    };
    let raw = if O::SUM { kernel.raw(pass) } else { 0 };
    let scalar = kernel.scalar.map(L::Wide::from_scalar);
    let is_raw = |index: usize| index < 64 && (raw >> index) & 1 == 1;
    let mut done = 1;
    let first = block(pass.sources[0]);
    // SAFETY: the caller vouches for the level.
    let widened = unsafe { L::widen_all::<V>(first, wide) };
    if !widened && pass.sources.len() > 1 && raw & 3 == 0 {
        for ((value, a), b) in wide.iter_mut().zip(first).zip(block(pass.sources[1])) {
            value.write(O::fold(L::widen(*a), L::widen(*b)));
        }
        done = 2;
    } else if !widened {
        for (value, a) in wide.iter_mut().zip(first) {
            value.write(L::widen(*a));
        }
    }
    // SAFETY: either the level's instructions or one of the branches above has written each of them.
    let wide = unsafe { wide.assume_init_mut() };
    if let Some(scalar) = scalar
        && is_raw(0)
    {
        for value in wide.iter_mut() {
            *value = value.times(scalar);
        }
    }
    for (index, source) in pass.sources.iter().enumerate().skip(done) {
        let scalar = if is_raw(index) { scalar } else { None };
        // SAFETY: the caller vouches for the level.
        unsafe { fold_one::<V, L, O>(block(*source), scalar, wide, scratch) };
    }
}

/// Folds one more source into `wide`, multiplied first where it has a scalar.
///
/// # Safety
/// The machine has the level.
#[inline(always)]
unsafe fn fold_one<V: Vectors, L: Lane, O: Fold<L::Wide>>(
    source: &[L::Raw],
    scalar: Option<L::Wide>,
    wide: &mut [L::Wide],
    scratch: &mut Room,
) {
    let values = scratch.values(source.len());
    // SAFETY: the caller vouches for the level.
    if unsafe { L::widen_all::<V>(source, values) } {
        // SAFETY: true says that each of them has been written.
        let values = unsafe { values.assume_init_ref() };
        match scalar {
            Some(scalar) => each(wide, values, |sum, next| O::fold(sum, next.times(scalar))),
            None => each(wide, values, |sum, next| O::fold(sum, next)),
        }
    } else {
        match scalar {
            Some(scalar) => each(wide, source, |sum, next| O::fold(sum, L::widen(next).times(scalar))),
            None => each(wide, source, |sum, next| O::fold(sum, L::widen(next))),
        }
    }
}

/// Replaces each accumulator by `next` of it and its element.
#[inline(always)]
fn each<W: Copy, T: Copy>(wide: &mut [W], values: &[T], next: impl Fn(W, T) -> W) {
    for (accumulator, value) in wide.iter_mut().zip(values) {
        *accumulator = next(*accumulator, *value);
    }
}
