//! The body of a reduction: block by block through accumulators on the stack.

use std::mem::MaybeUninit;
use std::slice;

use crate::device::host::copy::{Alignment, put};
use crate::device::host::fold::Fold;
use crate::device::host::lane::{Divisor, Lane, ShareScale, Wide};
use crate::device::host::vectors::{LINE, Vectors};
use crate::device::host::{Average, Kernel, Pass, SourceRange, Store};

/// The bytes of a block's accumulators: few enough that a vector level keeps them in registers and that the machine
/// overlaps the loads of one block with the stores of another. Measured: 512 is faster than 1024 and 2048, by a third
/// from memory, by a fifth from the second-level cache. A multiple of eight cache lines, so that blocks keep a target's
/// alignment.
const BLOCK: usize = 512;

const _: () = assert!(BLOCK.is_multiple_of(LINE * 8));

/// Storage for one block, aligned to a cache line.
#[repr(align(64))]
struct Room(MaybeUninit<[u8; BLOCK]>);

impl Room {
    #[inline(always)]
    fn new() -> Room {
        Room(MaybeUninit::uninit())
    }

    /// The storage as `count` uninitialised values.
    #[inline(always)]
    fn values<T>(&mut self, count: usize) -> &mut [MaybeUninit<T>] {
        assert!(align_of::<T>() <= align_of::<Room>() && count <= BLOCK / size_of::<T>());
        // SAFETY: the assertion above keeps it inside the room and aligned; any bytes are valid as MaybeUninit.
        unsafe { slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), count) }
    }
}

/// Runs `pass` for lanes `L` with operator `O` at level `V`.
///
/// # Safety
/// As [`Kernel::run`]; also, the machine must have the level.
#[inline(always)]
pub(super) unsafe fn reduce<V: Vectors, L: Lane, O: Fold<L::Wide>>(kernel: &Kernel, pass: &Pass<'_>) {
    let lanes = pass.count * kernel.lanes;
    let placement = Alignment::new(pass, size_of::<L::Raw>());
    let mut start = 0;
    // First the lanes before the target's alignment, if there are any, then the rest.
    let mut end = if placement.head > 0 { placement.head.min(lanes) } else { lanes };
    loop {
        macro_rules! blocks_of {
            ($length:expr) => {
                let length = const { if $length > 0 { $length } else { 1 } };
                while end - start >= length {
                    // SAFETY: the caller vouches; a block of so many lanes is left. Each length is a constant, so that
                    // the block is straight vector code with its accumulators in registers.
                    unsafe { block::<V, L, O>(kernel, pass, start, length) };
                    start += length;
                }
            };
        }
        blocks_of!(BLOCK / size_of::<L::Wide>());
        blocks_of!(BLOCK / size_of::<L::Wide>() / 8);
        // Of accumulators of 8 bytes that is one, as the last.
        if const { BLOCK / size_of::<L::Wide>() / 64 > 1 } {
            blocks_of!(BLOCK / size_of::<L::Wide>() / 64);
        }
        blocks_of!(1);
        if end == lanes {
            break;
        }
        end = lanes;
    }
    placement.end::<V>();
}

/// Views values that have been written as initialised: like `assume_init_mut` for slices, which our minimum Rust
/// version lacks.
///
/// # Safety
/// All of them are initialised.
#[inline(always)]
unsafe fn written<T>(values: &mut [MaybeUninit<T>]) -> &mut [T] {
    // SAFETY: the two have one layout, and the caller vouches for the values.
    unsafe { &mut *(std::ptr::from_mut(values) as *mut [T]) }
}

/// Runs `length` lanes of a pass, at most one block, from `start` on.
///
/// # Safety
/// As [`reduce`]; also, the lanes are within the pass's count.
#[inline(always)]
unsafe fn block<V: Vectors, L: Lane, O: Fold<L::Wide>>(kernel: &Kernel, pass: &Pass<'_>, start: usize, length: usize) {
    let (mut wide, mut scratch) = (Room::new(), Room::new());
    let wide = wide.values(length);
    // Floats of 8 bits are not scaled.
    let is_scaled = const { size_of::<L::Raw>() > 1 };
    let inputs = match pass.average {
        Average::Parts(inputs) if O::SCALES && is_scaled => inputs,
        Average::Sum | Average::Whole | Average::Parts(_) => SourceRange::NONE,
    };
    // SAFETY: the caller vouches for the sources and the level; start + length is within the count.
    unsafe { fold::<V, L, O>((kernel, inputs), pass, start, wide, &mut scratch) };
    // SAFETY: `fold` has written each of them.
    let wide = unsafe { written(wide) };
    if O::SCALES
        && let Some(divisor) = &kernel.divisor
    {
        match pass.average {
            Average::Parts(_) if !pass.finish && L::HEADROOM == 0 => {
                wide.iter_mut().for_each(|value| *value = value.bounded(L::LARGEST));
            }
            _ if !pass.finish => {}
            Average::Whole if wide.iter().any(|value| !value.is_number()) => {
                // SAFETY: as above.
                unsafe { average_again::<V, L, O>((kernel, divisor), pass, start, wide) };
            }
            Average::Parts(_) if is_scaled => {
                let share = divisor.share(L::HEADROOM);
                wide.iter_mut().for_each(|value| *value = value.over_scaled(share, L::LARGEST));
            }
            Average::Sum | Average::Whole | Average::Parts(_) => {
                wide.iter_mut().for_each(|value| *value = value.over(divisor));
            }
        }
    }
    let at = |target: *mut u8| {
        // SAFETY: start is within the target's count.
        unsafe { target.cast::<L::Raw>().add(start) }
    };
    // Narrowing from 4 or 8 bytes costs nothing, so each target gets it from the registers.
    let cheap = size_of::<L::Raw>() == size_of::<L::Wide>();
    if pass.store == Store::Cached && (cheap || pass.targets.len() == 1) {
        for target in pass.targets {
            // SAFETY: the target has room for the block, and no source is read while the slice lives.
            let target = unsafe { slice::from_raw_parts_mut(at(*target).cast(), length) };
            // SAFETY: the caller vouches for the level.
            unsafe { narrow::<V, L>(wide, target) };
        }
        return;
    }
    let mut staging = Room::new();
    let staging = staging.values(length);
    // SAFETY: the caller vouches for the level.
    unsafe { narrow::<V, L>(wide, staging) };
    for target in pass.targets {
        // SAFETY: the staging is no target, and the target has room for the block, as the caller vouches.
        unsafe { put::<V>(staging.as_ptr().cast(), at(*target).cast(), size_of_val(staging), pass.store) };
    }
}

/// Narrows all of `wide` into `target`.
///
/// # Safety
/// The machine has the level.
#[inline(always)]
unsafe fn narrow<V: Vectors, L: Lane>(wide: &[L::Wide], target: &mut [MaybeUninit<L::Raw>]) {
    // SAFETY: the caller vouches for the level.
    if !unsafe { L::narrow_all::<V>(wide, target) } {
        for (raw, value) in target.iter_mut().zip(wide) {
            raw.write(L::narrow(*value));
        }
    }
}

/// Makes averages of the sums in `wide`. Where a sum is no number, maybe because it was too large, the inputs are added
/// up again, scaled down.
///
/// # Safety
/// As [`fold`].
#[cold]
#[inline(never)]
unsafe fn average_again<V: Vectors, L: Lane, O: Fold<L::Wide>>(
    (kernel, divisor): (&Kernel, &Divisor),
    pass: &Pass<'_>,
    start: usize,
    wide: &mut [L::Wide],
) {
    let (mut again, mut scratch) = (Room::new(), Room::new());
    let again = again.values(wide.len());
    // SAFETY: the caller's contract.
    unsafe { fold::<V, L, O>((kernel, SourceRange::ALL), pass, start, again, &mut scratch) };
    // SAFETY: `fold` has written each of them.
    let again = unsafe { written(again) };
    let share = divisor.share(L::HEADROOM);
    for (sum, scaled) in wide.iter_mut().zip(again) {
        let whole = sum.is_number();
        *sum = if whole { sum.over(divisor) } else { scaled.over_scaled(share, L::LARGEST) };
    }
}

/// What a source is multiplied by first.
#[derive(Debug, Clone, Copy)]
enum Factor<'a, W> {
    /// By a scalar; the product is rounded to the element type.
    Scalar(W),
    /// By the scale of an average's shares.
    Share(ShareScale<'a>),
}

impl<W: Wide> Factor<'_, W> {
    #[inline(always)]
    fn apply<L: Lane<Wide = W>>(self, value: W) -> W {
        match self {
            Factor::Scalar(scalar) => scaled::<L>(value, scalar),
            Factor::Share(share) => value.scaled_down(share),
        }
    }
}

/// Folds the elements of all sources from `start` on into `wide`; writes all of `wide`.
///
/// # Safety
/// Each source is readable up to `start + wide.len()` lanes, and the machine has the level.
#[inline(always)]
unsafe fn fold<V: Vectors, L: Lane, O: Fold<L::Wide>>(
    (kernel, inputs): (&Kernel, SourceRange),
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
    let scalar = if O::SCALES { kernel.scalar.map(L::Wide::from_scalar) } else { None };
    let raw = if scalar.is_some() { pass.raw } else { None };
    let share = if O::SCALES { kernel.divisor.as_ref().map(|divisor| divisor.share(L::HEADROOM)) } else { None };
    let factor = |source: usize| match (scalar, share) {
        (Some(scalar), _) if raw == Some(source) => Some(Factor::Scalar(scalar)),
        (_, Some(share)) if inputs.has(source) => Some(Factor::Share(share)),
        _ => None,
    };
    let mut done = 1;
    let first = block(pass.sources[0]);
    // SAFETY: the caller vouches for the level.
    let widened = unsafe { L::widen_all::<V>(first, wide) };
    if !widened && pass.sources.len() > 1 && factor(0).is_none() && factor(1).is_none() {
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
    let wide = unsafe { written(wide) };
    if done == 1
        && let Some(factor) = factor(0)
    {
        for value in wide.iter_mut() {
            *value = factor.apply::<L>(*value);
        }
    }
    for (index, source) in pass.sources.iter().enumerate().skip(done) {
        // SAFETY: the caller vouches for the level.
        unsafe { fold_one::<V, L, O>(block(*source), factor(index), wide, scratch) };
    }
}

/// Folds one more source into `wide`; multiplies it first if it has a factor.
///
/// # Safety
/// The machine has the level.
#[inline(always)]
unsafe fn fold_one<V: Vectors, L: Lane, O: Fold<L::Wide>>(
    source: &[L::Raw],
    factor: Option<Factor<'_, L::Wide>>,
    wide: &mut [L::Wide],
    scratch: &mut Room,
) {
    let values = scratch.values(source.len());
    // SAFETY: the caller vouches for the level.
    if unsafe { L::widen_all::<V>(source, values) } {
        // SAFETY: true says that each of them has been written.
        let values = unsafe { written(values) };
        match factor {
            Some(factor) => each(wide, values, |sum, next| O::fold(sum, factor.apply::<L>(next))),
            None => each(wide, values, |sum, next| O::fold(sum, next)),
        }
    } else {
        match factor {
            Some(factor) => each(wide, source, |sum, next| O::fold(sum, factor.apply::<L>(L::widen(next)))),
            None => each(wide, source, |sum, next| O::fold(sum, L::widen(next))),
        }
    }
}

/// The product as an element. It is rounded to the type before it is added, so that a rank's share has the same bits
/// whether it was scaled on the way into a slot or at the fold.
#[inline(always)]
fn scaled<L: Lane>(value: L::Wide, scalar: L::Wide) -> L::Wide {
    L::widen(L::narrow(value.times(scalar)))
}

/// Replaces each accumulator by the fold of it and the next element.
#[inline(always)]
fn each<W: Copy, T: Copy>(wide: &mut [W], values: &[T], next: impl Fn(W, T) -> W) {
    for (accumulator, value) in wide.iter_mut().zip(values) {
        *accumulator = next(*accumulator, *value);
    }
}
