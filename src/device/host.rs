//! Copies and reductions in host memory, vectorised for every element type and operator.
//!
//! Entry points: [`Kernel::copy`] and [`Kernel::reduce`] resolve type, operator and the machine's vector width to a
//! function once; [`Kernel::run`] does one [`Pass`].
//!
//! # How a pass runs
//! ```text
//! for each block (512 bytes of accumulators):
//!     accumulators = fold of the sources' elements, in order      narrow floats widened to f32
//!     accumulators = accumulators / world                         a finished average; see `Average`
//!     staging      = accumulators narrowed                        rounded once
//!     each target  = staging                                      ordinary or non-temporal stores
//! ```
//! All reads of a block come before its first write, so that a target may be a source.
//!
//! # Results
//! The fold is element by element, so every vector width, alignment and block border gives the same bits. Nothing is
//! contracted to fused multiply-add. A NaN that arithmetic yields is always the type's canonical quiet NaN; a pass with
//! one source and nothing to multiply or divide is a copy and keeps all bits. What is said here holds in the standard
//! floating-point mode; [`Kernel::in_standard_mode`] sets it.

#![warn(clippy::wildcard_enum_match_arm)]

mod block;
mod copy;
mod fold;
mod lane;
mod measured;
#[cfg(not(target_arch = "x86_64"))]
mod portable;
mod store_policy;
mod vectors;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(test)]
mod tests;

pub use measured::add;
pub use store_policy::{StorePolicy, TimedCopy};

use std::ops::Range;

use crate::error::{Error, Result};
use crate::sys::float_mode;
use crate::types::{DataType, F8E4M3, F8E5M2, ReduceOp, Scalar, bf16, f16};

use fold::{And, Max, Min, Or, Prod, ScaledSum, Sum, Xor};
use lane::{Divisor, Integer, Lane};
#[cfg(not(target_arch = "x86_64"))]
use portable as machine;
#[cfg(target_arch = "x86_64")]
use x86 as machine;

use machine::Level;

/// The arithmetic of one collective: element type, operator, number of ranks.
///
/// Cheap to make and to copy; it holds no memory.
#[derive(Debug, Clone, Copy)]
pub struct Kernel {
    /// For passes that compute.
    reduce: Body,
    /// For passes that only copy.
    copy: Body,
    /// Lanes of `reduce` in an element: 1, or its bytes where lanes are bytes.
    lanes: usize,
    /// Bytes of an element.
    size: usize,
    /// What raw sources are multiplied by.
    scalar: Option<Scalar>,
    /// What finished results are divided by.
    divisor: Option<Divisor>,
    /// Whether passes that compute do so in the standard floating-point mode, whatever the thread's is.
    standard_mode: bool,
    /// For devices with kernels of their own.
    data_type: DataType,
    op: Option<ReduceOp>,
}

/// One step of copying or reducing: `targets[k][i]` becomes the fold of `sources[..][i]`, for every `i` below `count`.
#[derive(Debug, Clone, Copy)]
pub struct Pass<'a> {
    /// Where to read, in the order of the fold. At least one.
    pub sources: &'a [*const u8],
    /// The index of the source that is this rank's raw input, to be multiplied by the scalar of [`ReduceOp::PreMulSum`]
    /// first. Without effect for other operators.
    pub raw: Option<usize>,
    /// Where to write.
    pub targets: &'a [*mut u8],
    /// How many elements.
    pub count: usize,
    /// Whether the result is final, so that [`ReduceOp::Avg`] divides now.
    pub finish: bool,
    /// How averages of floats are kept from overflowing.
    pub average: Average,
    /// How to write.
    pub store: Store,
}

/// How a pass of [`ReduceOp::Avg`] on floats adds up: the average of finite numbers is finite, but their sum may not
/// be. Without effect for other operators and for integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Average {
    /// The sum, which a pass that finishes divides by the number of ranks. It may overflow.
    #[default]
    Sum,
    /// All inputs come together in this one pass: as `Sum`, but where the sum is no finite number, it is added up once
    /// more, scaled as in `Parts`. So nothing is lost to the scale, and all other results are those of `Sum`.
    Whole,
    /// Partial results go from rank to rank. They are scaled: the sources of this range are inputs, each of which is
    /// multiplied by 2^-e before it is added. All other sources are scaled already. A pass that finishes takes the
    /// scale back as it divides. Of n ranks
    /// - e = ⌈log2 n⌉ for f16: exact shares of n numbers are together at most the largest number. What rounding has
    ///   added beyond that is taken off each partial result, which f32 holds without overflow.
    /// - e = ⌈log2 n⌉ + 1 for bf16, f32 and f64, whose sums f32 and f64 do not always hold: exact shares are together
    ///   at most half of the largest number. Rounding at most doubles what is added: where it rounds up, the sum
    ///   grows by a place of it, and what was added is half of that place at least.
    /// - As `Sum` for floats of 8 bits, which saturate: they have too few exponents to be scaled, and no finite sum of
    ///   theirs becomes infinite.
    Parts(SourceRange),
}

/// Sources of a pass that stand side by side: those from `first` on that are before `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceRange {
    first: usize,
    end: usize,
}

impl SourceRange {
    /// No source.
    pub const NONE: SourceRange = SourceRange { first: 0, end: 0 };
    /// All sources.
    pub const ALL: SourceRange = SourceRange { first: 0, end: usize::MAX };

    /// Those among so many sources.
    pub fn among(self, sources: usize) -> Range<usize> {
        self.first.min(sources)..self.end.min(sources)
    }

    /// Whether the source of this index is one of them.
    #[inline(always)]
    pub fn has(self, source: usize) -> bool {
        self.first <= source && source < self.end
    }
}

impl From<Range<usize>> for SourceRange {
    #[inline]
    fn from(Range { start, end }: Range<usize>) -> SourceRange {
        SourceRange { first: start, end }
    }
}

/// Whether written data stays in the caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// It does: somebody reads it soon.
    Cached,
    /// It passes them by, as far as the target's alignment and the machine allow. The pass ends with a store fence, so
    /// that a release store after it publishes the data as usual.
    Streaming,
}

/// What a kernel does with a pass.
type Body = unsafe fn(&Kernel, &Pass<'_>);

impl Kernel {
    /// Copies elements of this type.
    pub fn copy(data_type: DataType) -> Kernel {
        Kernel::copy_at(Level::detect(), data_type)
    }

    /// Reduces elements of `data_type` with `op` among `world` ranks.
    ///
    /// - Integers wrap. An average of integers is the wrapped sum divided by `world`, rounded towards zero.
    /// - Floats of 16 and 8 bits are widened to f32, folded and divided there, and rounded once to nearest, ties to
    ///   even. 8-bit floats saturate: what is too large for them, an infinity included, becomes their greatest number.
    /// - `Min` and `Max` give NaN where any source is NaN, and take −0 to be less than +0.
    /// - `PreMulSum` multiplies in the element type; for the narrow floats in f32, rounded to the type before the
    ///   product is added.
    ///
    /// # Errors
    /// `InvalidArgument` for a bitwise operator on floats.
    pub fn reduce(data_type: DataType, op: ReduceOp, world: u32) -> Result<Kernel> {
        Kernel::reduce_at(Level::detect(), data_type, op, world)
    }

    /// This kernel in the [standard](float_mode) floating-point mode: it sets that around each pass that computes, so
    /// that the bits do not depend on the mode of the thread.
    #[must_use]
    pub fn in_standard_mode(self) -> Kernel {
        let floats = self.op.is_some_and(|op| !op.bitwise()) && self.data_type.is_float();
        Kernel { standard_mode: floats, ..self }
    }

    /// Does one pass.
    ///
    /// # Safety
    /// - Each source is readable and each target writable for `count` elements for the length of the call; any
    ///   alignment will do.
    /// - A target starts where a source starts, or shares no byte with any source; targets share no byte with each
    ///   other.
    /// - Nobody else writes sources, reads targets or writes targets meanwhile.
    #[inline]
    pub unsafe fn run(&self, pass: &Pass<'_>) {
        if pass.sources.is_empty() || pass.count == 0 {
            debug_assert!(pass.count == 0, "a pass needs a source");
            return;
        }
        let idle = self.is_copy(pass.raw, pass.finish, pass.average);
        let body = if pass.sources.len() == 1 && idle { self.copy } else { self.reduce };
        let _mode = self.standard_mode.then(float_mode::standard);
        // SAFETY: the caller vouches for the memory; the level that `body` was made for is one the machine has.
        unsafe { body(self, pass) }
    }

    /// Whether a pass with one source of this `raw`, `finish` and `average` would change no bit.
    #[inline]
    pub fn is_copy(&self, raw: Option<usize>, finish: bool, average: Average) -> bool {
        let is_scaled = match average {
            Average::Sum | Average::Whole => false,
            Average::Parts(inputs) => {
                inputs.has(0) && self.divisor.is_some() && self.data_type.is_float() && self.data_type.size() > 1
            }
        };
        (self.scalar.is_none() || raw != Some(0)) && (self.divisor.is_none() || !finish) && !is_scaled
    }

    /// The element type.
    pub fn data_type(&self) -> DataType {
        self.data_type
    }

    /// The operator; `None` for copies.
    pub fn op(&self) -> Option<ReduceOp> {
        self.op
    }

    /// What raw sources are multiplied by: the bits of the accumulators' type, which is f32 for narrow floats.
    pub fn scalar_bits(&self) -> Option<u64> {
        use lane::Wide;
        let scalar = self.scalar?;
        // A launch is rare and dear enough to convert alike on all ranks in every mode.
        let _mode = float_mode::standard();
        Some(match self.data_type {
            DataType::I8 => i8::from_scalar(scalar).cast_unsigned().into(),
            DataType::U8 => u8::from_scalar(scalar).into(),
            DataType::I32 => i32::from_scalar(scalar).cast_unsigned().into(),
            DataType::U32 => u32::from_scalar(scalar).into(),
            DataType::I64 => i64::from_scalar(scalar).cast_unsigned(),
            DataType::U64 => u64::from_scalar(scalar),
            DataType::F64 => f64::from_scalar(scalar).to_bits(),
            DataType::F16 | DataType::F32 | DataType::BF16 | DataType::F8E4M3 | DataType::F8E5M2 => {
                f32::from_scalar(scalar).to_bits().into()
            }
        })
    }

    /// What the inputs of averages are multiplied by where partial results travel ([`Average::Parts`]), as
    /// [`Kernel::scalar_bits`] gives it; `None` where nothing is scaled.
    pub fn share_bits(&self) -> Option<u64> {
        use lane::{Lane, Wide};
        let divisor = self.divisor?;
        let single = |headroom| u64::from(1_f32.scaled_down(divisor.share(headroom)).to_bits());
        match self.data_type {
            DataType::F64 => Some(1_f64.scaled_down(divisor.share(f64::HEADROOM)).to_bits()),
            DataType::F32 => Some(single(f32::HEADROOM)),
            DataType::F16 => Some(single(f16::HEADROOM)),
            DataType::BF16 => Some(single(bf16::HEADROOM)),
            DataType::F8E4M3 | DataType::F8E5M2 => None,
            DataType::I8 | DataType::U8 | DataType::I32 | DataType::U32 | DataType::I64 | DataType::U64 => None,
        }
    }

    /// What finished averages are divided by.
    pub fn divisor(&self) -> Option<u32> {
        self.divisor.map(|divisor| divisor.world())
    }

    /// [`Kernel::copy`] at a chosen level, which the machine must have.
    fn copy_at(level: Level, data_type: DataType) -> Kernel {
        let copy = machine::bind_copy(level);
        let size = bytes_of(data_type);
        Kernel {
            reduce: copy,
            copy,
            lanes: size,
            size,
            scalar: None,
            divisor: None,
            standard_mode: false,
            data_type,
            op: None,
        }
    }

    /// [`Kernel::reduce`] at a chosen level, which the machine must have.
    fn reduce_at(level: Level, data_type: DataType, op: ReduceOp, world: u32) -> Result<Kernel> {
        let mut kernel = Kernel::copy_at(level, data_type);
        kernel.op = Some(op);
        let op = match op {
            ReduceOp::BitAnd => return kernel.bitwise((data_type, op), machine::bind::<u8, And>(level)),
            ReduceOp::BitOr => return kernel.bitwise((data_type, op), machine::bind::<u8, Or>(level)),
            ReduceOp::BitXor => return kernel.bitwise((data_type, op), machine::bind::<u8, Xor>(level)),
            ReduceOp::Sum => Arithmetic::Sum,
            ReduceOp::Prod => Arithmetic::Prod,
            ReduceOp::Min => Arithmetic::Min,
            ReduceOp::Max => Arithmetic::Max,
            ReduceOp::Avg => {
                kernel.divisor = Some(Divisor::new(world));
                Arithmetic::ScaledSum
            }
            ReduceOp::PreMulSum(scalar) => {
                kernel.scalar = Some(scalar);
                Arithmetic::ScaledSum
            }
        };
        kernel.lanes = 1;
        kernel.reduce = match data_type {
            DataType::I8 => select_integer::<i8>(level, op),
            DataType::U8 => select_integer::<u8>(level, op),
            DataType::I32 => select_integer::<i32>(level, op),
            DataType::U32 => select_integer::<u32>(level, op),
            DataType::I64 => select_integer::<i64>(level, op),
            DataType::U64 => select_integer::<u64>(level, op),
            DataType::F16 => select::<f16>(level, op),
            DataType::F32 => select::<f32>(level, op),
            DataType::F64 => select::<f64>(level, op),
            DataType::BF16 => select::<bf16>(level, op),
            DataType::F8E4M3 => select::<F8E4M3>(level, op),
            DataType::F8E5M2 => select::<F8E5M2>(level, op),
        };
        Ok(kernel)
    }

    /// This kernel with the `body` of a bitwise operator, which folds bytes whatever the integer's size.
    fn bitwise(self, (data_type, op): (DataType, ReduceOp), body: Body) -> Result<Kernel> {
        if data_type.is_float() {
            return Err(Error::invalid_argument(format!(
                "operator {op} is for integers, not for {data_type}: choose an integer type or another operator"
            )));
        }
        Ok(Kernel { reduce: body, ..self })
    }
}

/// The folds of arithmetic operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arithmetic {
    Sum,
    Prod,
    Min,
    Max,
    /// The sum of sources that may be multiplied first, and divided at the end.
    ScaledSum,
}

/// The body for an arithmetic operator.
fn select<L: Lane>(level: Level, op: Arithmetic) -> Body {
    match op {
        Arithmetic::Sum => machine::bind::<L, Sum>(level),
        Arithmetic::Prod => machine::bind::<L, Prod>(level),
        Arithmetic::Min => machine::bind::<L, Min>(level),
        Arithmetic::Max => machine::bind::<L, Max>(level),
        Arithmetic::ScaledSum => machine::bind::<L, ScaledSum>(level),
    }
}

/// The same for integers: a wrapping product has the same bits with and without a sign.
fn select_integer<L: Integer>(level: Level, op: Arithmetic) -> Body {
    match op {
        Arithmetic::Prod => machine::bind::<L::Unsigned, Prod>(level),
        Arithmetic::Sum | Arithmetic::Min | Arithmetic::Max | Arithmetic::ScaledSum => select::<L>(level, op),
    }
}

/// Bytes of an element, for indexing.
fn bytes_of(data_type: DataType) -> usize {
    match data_type.size() {
        1 => 1,
        2 => 2,
        4 => 4,
        _ => 8,
    }
}
