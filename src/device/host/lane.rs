//! Elements as they are stored in memory, and the wider values in which they are folded.

use std::mem::MaybeUninit;

use crate::device::host::vectors::Vectors;
use crate::types::{F8E4M3, F8E5M2, Scalar, bf16, f16, minifloat};

/// A value of an accumulator.
///
/// Each operation is branch-free, so that loops over it vectorise, and exact or rounded as IEEE 754 says, so that every
/// vector width gives the same bits (except NaN payloads, which [`Lane::narrow`] makes canonical).
pub(super) trait Wide: Copy + 'static {
    /// The scalar converted to this type with `as`.
    fn from_scalar(scalar: Scalar) -> Self;
    /// The sum; integers wrap.
    fn plus(self, other: Self) -> Self;
    /// The product; integers wrap.
    fn times(self, other: Self) -> Self;
    /// The smaller value; NaN if either is NaN; −0 is less than +0.
    fn lesser(self, other: Self) -> Self;
    /// The greater value; NaN if either is NaN; −0 is less than +0.
    fn greater(self, other: Self) -> Self;
    /// The quotient; integers round towards zero.
    fn over(self, divisor: &Divisor) -> Self;
    /// Whether it is a number of finite size, as all integers are.
    fn is_number(self) -> bool;
    /// A float as a share of an average whose partial results travel: the exact product with the scale of the world,
    /// unless it is subnormal. Integers stay.
    fn scaled_down(self, share: ShareScale<'_>) -> Self;
    /// The average for a sum of shares that were scaled down; `largest` is the largest number of the element type,
    /// which no average of numbers exceeds but by rounding.
    fn over_scaled(self, share: ShareScale<'_>, largest: Self) -> Self;
    /// A number, but none beyond the `largest` of the element type, with its sign.
    fn bounded(self, largest: Self) -> Self;
}

/// An element type: its form in memory and its accumulator.
pub(super) trait Lane: 'static {
    /// The element's bytes: an array, and so without alignment.
    type Raw: Copy + 'static;
    /// The type of the accumulator.
    type Wide: Wide;
    /// The largest number.
    const LARGEST: Self::Wide;
    /// Binary places that shares of an average leave above their sum, for what rounding adds; 0 where the accumulator
    /// has room for that, so that partial results can be [bounded](Wide::bounded) instead. See `Average::Parts`.
    const HEADROOM: i32 = 1;

    /// The value of an element.
    fn widen(raw: Self::Raw) -> Self::Wide;

    /// The element nearest to a value; any NaN becomes the canonical one.
    fn narrow(wide: Self::Wide) -> Self::Raw;

    /// Widens all of `source` into the front of `wide` with instructions of the level. False, with nothing written, if
    /// the level has none for this.
    ///
    /// # Safety
    /// The machine has the level.
    #[inline(always)]
    unsafe fn widen_all<V: Vectors>(_source: &[Self::Raw], _wide: &mut [MaybeUninit<Self::Wide>]) -> bool {
        false
    }

    /// Narrows with instructions of the level; false as for [`Lane::widen_all`].
    ///
    /// # Safety
    /// The machine has the level.
    #[inline(always)]
    unsafe fn narrow_all<V: Vectors>(_wide: &[Self::Wide], _target: &mut [MaybeUninit<Self::Raw>]) -> bool {
        false
    }
}

/// An integer lane.
pub(super) trait Integer: Lane {
    /// The same width without a sign.
    type Unsigned: Lane;
}

/// A number of ranks to divide by, prepared for types without vector division: one multiplication and shifts, exact for
/// every value (Granlund and Montgomery 1994, figure 4.1).
#[derive(Debug, Clone, Copy)]
pub(super) struct Divisor {
    /// The number of ranks, at least 1.
    world: u32,
    /// 2³² · (2^bits − world) / world + 1, for values of 32 bits, where bits = ⌈log2 world⌉.
    magic_32: u32,
    /// 2⁶⁴ · (2^bits − world) / world + 1, for values of 64 bits.
    magic_64: u64,
    /// min(bits, 1)
    first_shift: u32,
    /// max(bits, 1) − 1
    second_shift: u32,
}

impl Divisor {
    /// Divides by `world`; by 1 if `world` is 0, which no real world is.
    pub(super) fn new(world: u32) -> Divisor {
        let world = world.max(1);
        let bits = u32::BITS - (world - 1).leading_zeros();
        let divisor = u64::from(world);
        // Digit by digit of 32 bits; the quotients are below 2^32, because 2^bits is less than twice the divisor.
        let first = ((1 << bits) - divisor) << 32;
        let second = (first % divisor) << 32;
        let high = first / divisor;
        #[expect(clippy::cast_possible_truncation, reason = "below 2^32")]
        let magic_32 = high as u32 + 1;
        let magic_64 = (high << 32) + second / divisor + 1;
        Divisor { world, magic_32, magic_64, first_shift: bits.min(1), second_shift: bits.max(1) - 1 }
    }

    /// The number of ranks.
    pub(in crate::device) fn world(&self) -> u32 {
        self.world
    }

    /// How inputs are scaled where partial results of an average travel.
    #[inline(always)]
    pub(super) fn share(&self, headroom: i32) -> ShareScale<'_> {
        let bits = u32::BITS - (self.world - 1).leading_zeros();
        ShareScale { divisor: self, exponent: -bits.cast_signed() - headroom }
    }

    /// `value / world`
    #[inline(always)]
    fn divide_32(&self, value: u32) -> u32 {
        let high = ((u64::from(self.magic_32) * u64::from(value)) >> 32) as u32;
        (high + ((value - high) >> self.first_shift)) >> self.second_shift
    }

    /// `value / world`
    #[inline(always)]
    fn divide_64(&self, value: u64) -> u64 {
        let high = ((u128::from(self.magic_64) * u128::from(value)) >> 64) as u64;
        (high + ((value - high) >> self.first_shift)) >> self.second_shift
    }
}

/// The scale of an average whose partial results travel.
#[derive(Debug, Clone, Copy)]
pub(super) struct ShareScale<'a> {
    /// The number of ranks.
    divisor: &'a Divisor,
    /// The binary exponent of what an input is multiplied by.
    exponent: i32,
}

/// The minimum and maximum of floats, with signed zeros ordered and NaN kept.
macro_rules! float {
    ($($type:ident: $power:ident;)+) => {$(
        impl Wide for $type {
            #[inline(always)]
            #[allow(clippy::cast_possible_truncation, reason = "the documented conversion is that of `as`")]
            fn from_scalar(scalar: Scalar) -> $type {
                match scalar {
                    Scalar::Signed(value) => value as $type,
                    Scalar::Unsigned(value) => value as $type,
                    Scalar::Float(value) => value as $type,
                }
            }

            #[inline(always)]
            fn plus(self, other: $type) -> $type {
                self + other
            }

            #[inline(always)]
            fn times(self, other: $type) -> $type {
                self * other
            }

            #[inline(always)]
            fn lesser(self, other: $type) -> $type {
                let lesser = if self < other { self } else { other };
                // Equal numbers differ at most in the sign of zero: if either is negative, the result is.
                let either = $type::from_bits(self.to_bits() | other.to_bits());
                let ordered = if self == other { either } else { lesser };
                if self.is_nan() | other.is_nan() { $type::NAN } else { ordered }
            }

            #[inline(always)]
            fn greater(self, other: $type) -> $type {
                let greater = if self > other { self } else { other };
                let both = $type::from_bits(self.to_bits() & other.to_bits());
                let ordered = if self == other { both } else { greater };
                if self.is_nan() | other.is_nan() { $type::NAN } else { ordered }
            }

            #[inline(always)]
            fn over(self, divisor: &Divisor) -> $type {
                #[allow(clippy::cast_lossless, reason = "f32 has no lossless conversion; worlds beyond 2^24 round")]
                let world = divisor.world as $type;
                self / world
            }

            #[inline(always)]
            fn is_number(self) -> bool {
                self.is_finite()
            }

            #[inline(always)]
            fn scaled_down(self, share: ShareScale<'_>) -> $type {
                self * $power(share.exponent)
            }

            #[inline(always)]
            fn over_scaled(self, share: ShareScale<'_>, largest: $type) -> $type {
                #[allow(clippy::cast_lossless, reason = "as in `over`")]
                let world = share.divisor.world as $type * $power(share.exponent);
                let quotient = self / world;
                // The quotient of a number may be too large for the accumulator.
                if self.is_finite() { quotient.clamp(-largest, largest) } else { quotient }
            }

            #[inline(always)]
            fn bounded(self, largest: $type) -> $type {
                if self.is_finite() { self.clamp(-largest, largest) } else { self }
            }
        }
    )+};
}

float! {
    f32: power_of_two_f32;
    f64: power_of_two_f64;
}

/// 2 to the power of a normal number's exponent.
#[inline(always)]
fn power_of_two_f32(exponent: i32) -> f32 {
    f32::from_bits((127 + exponent).cast_unsigned() << 23)
}

/// The same.
#[inline(always)]
fn power_of_two_f64(exponent: i32) -> f64 {
    f64::from_bits(u64::from((1023 + exponent).cast_unsigned()) << 52)
}

macro_rules! integer {
    ($($type:ident as $unsigned:ident: $over:expr;)+) => {$(
        impl Wide for $type {
            #[inline(always)]
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_possible_wrap,
                reason = "the documented conversion is that of `as`"
            )]
            fn from_scalar(scalar: Scalar) -> $type {
                match scalar {
                    Scalar::Signed(value) => value as $type,
                    Scalar::Unsigned(value) => value as $type,
                    Scalar::Float(value) => value as $type,
                }
            }

            #[inline(always)]
            fn plus(self, other: $type) -> $type {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn times(self, other: $type) -> $type {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn lesser(self, other: $type) -> $type {
                self.min(other)
            }

            #[inline(always)]
            fn greater(self, other: $type) -> $type {
                self.max(other)
            }

            #[inline(always)]
            #[allow(clippy::cast_possible_truncation, reason = "a quotient of narrow values is narrow")]
            fn over(self, divisor: &Divisor) -> $type {
                let over: fn($type, &Divisor) -> $type = $over;
                over(self, divisor)
            }

            #[inline(always)]
            fn is_number(self) -> bool {
                true
            }

            #[inline(always)]
            fn scaled_down(self, _share: ShareScale<'_>) -> $type {
                self
            }

            #[inline(always)]
            fn over_scaled(self, share: ShareScale<'_>, _largest: $type) -> $type {
                self.over(share.divisor)
            }

            #[inline(always)]
            fn bounded(self, _largest: $type) -> $type {
                self
            }
        }

        impl Lane for $type {
            type Raw = [u8; size_of::<$type>()];
            type Wide = $type;
            const LARGEST: $type = $type::MAX;

            #[inline(always)]
            fn widen(raw: Self::Raw) -> $type {
                $type::from_ne_bytes(raw)
            }

            #[inline(always)]
            fn narrow(wide: $type) -> Self::Raw {
                wide.to_ne_bytes()
            }
        }

        impl Integer for $type {
            type Unsigned = $unsigned;
        }
    )+};
}

integer! {
    i8 as u8: |value, divisor| {
        let quotient = divisor.divide_32(u32::from(value.unsigned_abs())) as i8;
        if value < 0 { quotient.wrapping_neg() } else { quotient }
    };
    u8 as u8: |value, divisor| divisor.divide_32(u32::from(value)) as u8;
    i32 as u32: |value, divisor| {
        let quotient = divisor.divide_32(value.unsigned_abs()).cast_signed();
        if value < 0 { quotient.wrapping_neg() } else { quotient }
    };
    u32 as u32: |value, divisor| divisor.divide_32(value);
    i64 as u64: |value, divisor| {
        let quotient = divisor.divide_64(value.unsigned_abs()).cast_signed();
        if value < 0 { quotient.wrapping_neg() } else { quotient }
    };
    u64 as u64: |value, divisor| divisor.divide_64(value);
}

impl Lane for f32 {
    type Raw = [u8; 4];
    type Wide = f32;
    const LARGEST: f32 = f32::MAX;

    #[inline(always)]
    fn widen(raw: [u8; 4]) -> f32 {
        f32::from_ne_bytes(raw)
    }

    #[inline(always)]
    fn narrow(wide: f32) -> [u8; 4] {
        (if wide.is_nan() { f32::NAN } else { wide }).to_ne_bytes()
    }
}

impl Lane for f64 {
    type Raw = [u8; 8];
    type Wide = f64;
    const LARGEST: f64 = f64::MAX;

    #[inline(always)]
    fn widen(raw: [u8; 8]) -> f64 {
        f64::from_ne_bytes(raw)
    }

    #[inline(always)]
    fn narrow(wide: f64) -> [u8; 8] {
        (if wide.is_nan() { f64::NAN } else { wide }).to_ne_bytes()
    }
}

impl Lane for f16 {
    type Raw = [u8; 2];
    type Wide = f32;
    const LARGEST: f32 = 65_504.0;
    const HEADROOM: i32 = 0;

    #[inline(always)]
    fn widen(raw: [u8; 2]) -> f32 {
        minifloat::decode::<minifloat::Half>(u32::from(u16::from_ne_bytes(raw)))
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the format has 16 bits")]
    fn narrow(wide: f32) -> [u8; 2] {
        (minifloat::encode::<minifloat::Half>(wide) as u16).to_ne_bytes()
    }

    #[inline(always)]
    unsafe fn widen_all<V: Vectors>(source: &[[u8; 2]], wide: &mut [MaybeUninit<f32>]) -> bool {
        if V::HALF {
            // SAFETY: the caller vouches for the level.
            unsafe { V::widen_half(source, wide) };
        }
        V::HALF
    }

    #[inline(always)]
    unsafe fn narrow_all<V: Vectors>(wide: &[f32], target: &mut [MaybeUninit<[u8; 2]>]) -> bool {
        if V::HALF {
            // SAFETY: the caller vouches for the level.
            unsafe { V::narrow_half(wide, target) };
        }
        V::HALF
    }
}

impl Lane for bf16 {
    type Raw = [u8; 2];
    type Wide = f32;
    const LARGEST: f32 = f32::from_bits(0x7f7f_0000);

    #[inline(always)]
    fn widen(raw: [u8; 2]) -> f32 {
        minifloat::decode_bf16(u16::from_ne_bytes(raw))
    }

    #[inline(always)]
    fn narrow(wide: f32) -> [u8; 2] {
        minifloat::encode_bf16(wide).to_ne_bytes()
    }
}

impl Lane for F8E4M3 {
    type Raw = [u8; 1];
    type Wide = f32;
    const LARGEST: f32 = 448.0;

    #[inline(always)]
    fn widen(raw: [u8; 1]) -> f32 {
        F8E4M3(raw[0]).to_f32()
    }

    #[inline(always)]
    fn narrow(wide: f32) -> [u8; 1] {
        [F8E4M3::from_f32(wide).0]
    }
}

impl Lane for F8E5M2 {
    type Raw = [u8; 1];
    type Wide = f32;
    const LARGEST: f32 = 57_344.0;

    #[inline(always)]
    fn widen(raw: [u8; 1]) -> f32 {
        F8E5M2(raw[0]).to_f32()
    }

    #[inline(always)]
    fn narrow(wide: f32) -> [u8; 1] {
        [F8E5M2::from_f32(wide).0]
    }
}
