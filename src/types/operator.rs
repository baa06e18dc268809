//! Reduction operators.

use std::fmt;

use crate::types::{DataType, F8E4M3, F8E5M2, bf16, f16};

/// How the elements of all ranks become one.
///
/// Integers wrap. Floats of 16 and 8 bits are added up in f32 wherever several of them meet, and rounded to their type
/// where a result is written. That is once if all inputs come together on one rank (flat slots of up to 16 ranks,
/// direct reductions, reproducible mode). If partial results go from rank to rank, they have the type's bits, and are
/// rounded by each rank that adds to them: by a ring or tree at each rank, or at each team of ranks that share memory;
/// by PAT and by scans in each step; by flat slots of more ranks once for each team of at most 16. All elements of a
/// call are reduced in the same way.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum ReduceOp {
    /// x₀ + x₁ + …
    Sum,
    /// x₀ · x₁ · …
    Prod,
    /// The minimum. A NaN on any rank gives the type's one quiet NaN, positive and without payload; of zeros with both
    /// signs −0 is the minimum. The order of the ranks, the path and the kind of memory change nothing.
    Min,
    /// The maximum. A NaN on any rank gives NaN, as for [`ReduceOp::Min`]; of zeros with both signs +0 is the maximum.
    Max,
    /// The sum divided by the number of ranks; integers round towards zero, and their sum wraps.
    ///
    /// The average of finite floats is finite, also where their sum is too large for the type, in every memory. If
    /// all inputs come together on one rank (flat slots, direct reductions, reproducible mode), a sum that is too large
    /// is added up again, scaled down. If partial results go from rank to rank (ring, tree, PAT, teams), all inputs are
    /// scaled down by a power of two, and the division takes the scale back. Of n ranks the power is 2^-⌈log2 n⌉ for
    /// `f16`, and half of that for `bf16`, `f32` and `f64`, which have small numbers in plenty. That is exact but for
    /// numbers near the smallest ones of the type, which lose their last bits: of `f16` those below 2^-14 · 2^⌈log2 n⌉
    /// (8 ranks: 0.0005), and those below 2^-25 · 2^⌈log2 n⌉ are lost. Floats of 8 bits are not scaled: their partial
    /// results saturate.
    Avg,
    /// s₀x₀ + s₁x₁ + …, where each rank has its own scalar: [`ReduceOp::premul_sum`] takes any number.
    PreMulSum(Scalar),
    /// Bitwise and; integers only.
    BitAnd,
    /// Bitwise or; integers only.
    BitOr,
    /// Bitwise exclusive or; integers only.
    BitXor,
}

/// The scalar of [`ReduceOp::PreMulSum`], made by `From` of any number. A call refuses a scalar that is not a value of
/// its element type: for integers a fraction or a number out of range, for floats a finite number beyond the largest
/// one. Floats round other scalars.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Scalar {
    /// For signed integers.
    Signed(i64),
    /// For unsigned integers.
    Unsigned(u64),
    /// For floats.
    Float(f64),
}

impl ReduceOp {
    /// [`ReduceOp::PreMulSum`] with any number.
    ///
    /// # Examples
    /// ```
    /// use rsccl::ReduceOp;
    ///
    /// rsccl::local::run(2, |comm| {
    ///     let (mut whole, mut halves) = ([1 + comm.rank()], [4.0]);
    ///     comm.all_reduce_in_place(&mut whole, ReduceOp::premul_sum(3))?;
    ///     comm.all_reduce_in_place(&mut halves, ReduceOp::premul_sum(0.5))?;
    ///     assert_eq!((whole[0], halves[0]), (3 + 6, 2.0 + 2.0));
    ///     let refused = comm.all_reduce_in_place(&mut whole, ReduceOp::premul_sum(0.5)).expect_err("no u32");
    ///     assert_eq!(refused.message(), "the scalar 0.5 of mulsum is not a value of uint32");
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn premul_sum(scalar: impl Into<Scalar>) -> ReduceOp {
        ReduceOp::PreMulSum(scalar.into())
    }

    /// The operators that take no scalar, in the order of their codes.
    pub const PLAIN: &'static [ReduceOp] = &[
        ReduceOp::Sum,
        ReduceOp::Prod,
        ReduceOp::Min,
        ReduceOp::Max,
        ReduceOp::Avg,
        ReduceOp::BitAnd,
        ReduceOp::BitOr,
        ReduceOp::BitXor,
    ];

    /// The name in tables and errors.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Prod => "prod",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
            ReduceOp::Avg => "avg",
            ReduceOp::PreMulSum(_) => "mulsum",
            ReduceOp::BitAnd => "band",
            ReduceOp::BitOr => "bor",
            ReduceOp::BitXor => "bxor",
        }
    }

    /// The number on the wire; the scalar of `PreMulSum` is not sent.
    pub const fn code(self) -> u8 {
        match self {
            ReduceOp::Sum => 0,
            ReduceOp::Prod => 1,
            ReduceOp::Min => 2,
            ReduceOp::Max => 3,
            ReduceOp::Avg => 4,
            ReduceOp::BitAnd => 5,
            ReduceOp::BitOr => 6,
            ReduceOp::BitXor => 7,
            ReduceOp::PreMulSum(_) => 8,
        }
    }

    /// The name of the operator with this number on the wire.
    pub fn name_of_code(code: u8) -> Option<&'static str> {
        if code == 8 { Some("mulsum") } else { ReduceOp::PLAIN.get(usize::from(code)).map(|op| op.name()) }
    }

    /// Whether the operator works on bits, so that it does not apply to floats.
    pub const fn bitwise(self) -> bool {
        matches!(self, ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor)
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Scalar {
    /// The scalar as a float.
    pub fn as_f64(self) -> f64 {
        match self {
            Scalar::Signed(value) => value as f64,
            Scalar::Unsigned(value) => value as f64,
            Scalar::Float(value) => value,
        }
    }

    /// Whether elements of `data_type` can be multiplied by the scalar. An integer type must represent it exactly; a
    /// float type may round it, but not a finite number to infinity.
    pub fn is_value_of(self, data_type: DataType) -> bool {
        let integer = match self {
            Scalar::Signed(value) => Some(i128::from(value)),
            Scalar::Unsigned(value) => Some(i128::from(value)),
            #[expect(
                clippy::cast_possible_truncation,
                reason = "a whole number within the bounds of i128's conversion"
            )]
            Scalar::Float(value) if value.trunc() == value && value.abs() < WHOLE_BELOW => Some(value as i128),
            Scalar::Float(_) => None,
        };
        let within = |least: i128, most: i128| integer.is_some_and(|value| least <= value && value <= most);
        let value = self.as_f64();
        #[expect(clippy::cast_possible_truncation, reason = "rounding to the narrower type is what is asked for")]
        let narrow = value as f32;
        match data_type {
            DataType::I8 => within(i8::MIN.into(), i8::MAX.into()),
            DataType::U8 => within(0, u8::MAX.into()),
            DataType::I32 => within(i32::MIN.into(), i32::MAX.into()),
            DataType::U32 => within(0, u32::MAX.into()),
            DataType::I64 => within(i64::MIN.into(), i64::MAX.into()),
            DataType::U64 => within(0, u64::MAX.into()),
            DataType::F64 => true,
            DataType::F32 => narrow.is_finite() || !value.is_finite(),
            DataType::F16 => f16::from_f64(value).is_finite() || !value.is_finite(),
            DataType::BF16 => bf16::from_f64(value).is_finite() || !value.is_finite(),
            // These formats have no infinity, or are never rounded to it.
            DataType::F8E4M3 => value.is_nan() || narrow.abs() <= F8E4M3::MAX.to_f32(),
            DataType::F8E5M2 => value.is_nan() || narrow.abs() <= F8E5M2::MAX.to_f32(),
        }
    }
}

/// A float below this is within the bounds of `i128`, and every integer type is far below it.
const WHOLE_BELOW: f64 = 1e38;

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Signed(value) => fmt::Display::fmt(value, f),
            Scalar::Unsigned(value) => fmt::Display::fmt(value, f),
            Scalar::Float(value) => fmt::Display::fmt(value, f),
        }
    }
}

macro_rules! scalar_from {
    ($($variant:ident: $($type:ty)+,)+) => {
        $($(
            impl From<$type> for Scalar {
                fn from(value: $type) -> Scalar {
                    Scalar::$variant(value.into())
                }
            }
        )+)+
    };
}

scalar_from! {
    Signed: i8 i16 i32 i64,
    Unsigned: u8 u16 u32 u64,
    Float: f64 f16 bf16,
}

impl From<f32> for Scalar {
    fn from(value: f32) -> Scalar {
        // The number of units in the last place of subnormal numbers is small enough to be converted as an integer:
        // a thread that takes subnormal operands for zero has the same scalar.
        let magnitude = value.to_bits() & !SIGN_OF_F32;
        let is_subnormal = magnitude < f32::MIN_POSITIVE.to_bits();
        let subnormal = (f64::from(magnitude) * LEAST_F32).copysign(value.into());
        Scalar::Float(if is_subnormal { subnormal } else { value.into() })
    }
}

/// The sign bit.
const SIGN_OF_F32: u32 = 1 << 31;
/// The smallest positive f32, 2⁻¹⁴⁹.
const LEAST_F32: f64 = f64::from_bits((1023 - 149) << 52);

impl From<isize> for Scalar {
    fn from(value: isize) -> Scalar {
        Scalar::Signed(value as i64)
    }
}

impl From<usize> for Scalar {
    fn from(value: usize) -> Scalar {
        Scalar::Unsigned(value as u64)
    }
}

impl From<F8E4M3> for Scalar {
    fn from(value: F8E4M3) -> Scalar {
        Scalar::Float(value.to_f32().into())
    }
}

impl From<F8E5M2> for Scalar {
    fn from(value: F8E5M2) -> Scalar {
        Scalar::Float(value.to_f32().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_agree() {
        for op in ReduceOp::PLAIN {
            assert_eq!(ReduceOp::name_of_code(op.code()), Some(op.name()));
        }
        assert_eq!(ReduceOp::name_of_code(ReduceOp::PreMulSum(Scalar::Float(2.0)).code()), Some("mulsum"));
        assert_eq!(ReduceOp::name_of_code(9), None);
    }

    #[test]
    fn a_scalar_of_f32_is_exact() {
        for bits in [0, 1, 2, 0x7f_ffff, 0x80_0000, 0x3f80_0001, 0x7f7f_ffff, 0x7f80_0000] {
            for value in [f32::from_bits(bits), -f32::from_bits(bits)] {
                let Scalar::Float(scalar) = Scalar::from(value) else { panic!("a float") };
                assert_eq!(scalar.to_bits(), f64::from(value).to_bits(), "{value}");
            }
        }
        assert!(Scalar::from(f32::NAN).as_f64().is_nan());
    }

    #[test]
    fn a_scalar_is_refused_where_the_type_does_not_have_it() {
        use DataType::{F8E4M3, F16, F32, F64, I8, I64, U8, U64};
        let cases: &[(Scalar, &[DataType], &[DataType])] = &[
            ((-1).into(), &[I8, I64, F16, F8E4M3], &[U8, U64]),
            (200u8.into(), &[U8, U64, I64, F16], &[I8]),
            (u64::MAX.into(), &[U64, F32, F64], &[I64, U8, F16, F8E4M3]),
            (0.5.into(), &[F8E4M3, F16, F32, F64], &[I8, U8, I64, U64]),
            (3.0.into(), &[I8, U8, U64, F32], &[]),
            (1e300.into(), &[F64], &[F32, F16, F8E4M3, U64, I64]),
            (f64::INFINITY.into(), &[F64, F32, F16], &[F8E4M3, I64, U8]),
            (f64::NAN.into(), &[F64, F16, F8E4M3], &[I64, U8]),
            (1usize.into(), &[U8, U64, I64, F16], &[]),
            (f16::from_f32(448.0).into(), &[F8E4M3, I64, F16], &[U8]),
        ];
        for (scalar, fits, refused) in cases {
            for data_type in *fits {
                assert!(scalar.is_value_of(*data_type), "{scalar} of {data_type}");
            }
            for data_type in *refused {
                assert!(!scalar.is_value_of(*data_type), "{scalar} of {data_type}");
            }
        }
    }
}
