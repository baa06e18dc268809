//! Reduction operators.

use std::fmt;

/// How elements of all ranks become one.
///
/// 16- and 8-bit floats are accumulated in f32 wherever several sources meet. Integers wrap.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum ReduceOp {
    /// x₀ + x₁ + …
    Sum,
    /// x₀ · x₁ · …
    Prod,
    /// The least. A NaN on any rank gives NaN.
    Min,
    /// The greatest. A NaN on any rank gives NaN.
    Max,
    /// The sum divided by the number of ranks; integers round towards zero.
    Avg,
    /// s₀x₀ + s₁x₁ + …, each rank with a scalar of its own.
    PreMulSum(Scalar),
    /// Bitwise and; integers only.
    BitAnd,
    /// Bitwise or; integers only.
    BitOr,
    /// Bitwise exclusive or; integers only.
    BitXor,
}

/// The scalar of [`ReduceOp::PreMulSum`], converted to the element type as `as` does.
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

    /// Its name, as tables and errors spell it.
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

    /// Its number on the wire; the scalar of `PreMulSum` stays with its rank.
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

    /// Whether the operator works on bits, so that floats have none of it.
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
    /// As a float.
    pub fn as_f64(self) -> f64 {
        match self {
            Scalar::Signed(value) => value as f64,
            Scalar::Unsigned(value) => value as f64,
            Scalar::Float(value) => value,
        }
    }

    /// As the bits of a 64-bit integer; a float is cut off as `as` does.
    pub fn as_u64(self) -> u64 {
        match self {
            Scalar::Signed(value) => value.cast_unsigned(),
            Scalar::Unsigned(value) => value,
            #[expect(clippy::cast_possible_truncation, reason = "the documented conversion is that of `as`")]
            Scalar::Float(value) => (value as i64).cast_unsigned(),
        }
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
}
