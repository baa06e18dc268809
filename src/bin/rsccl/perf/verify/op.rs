//! Operators as the command line names them.

use rsccl::types::Scalar;
use rsccl::{DataType, ReduceOp};

/// An operator by name; the scalar of `mulsum` follows from the rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    Sum,
    Prod,
    Min,
    Max,
    Avg,
    MulSum,
    BitAnd,
    BitOr,
    BitXor,
}

impl Op {
    /// All of them, in the order of tables.
    pub const ALL: &'static [Op] =
        &[Op::Sum, Op::Prod, Op::Min, Op::Max, Op::Avg, Op::MulSum, Op::BitAnd, Op::BitOr, Op::BitXor];

    /// Its name.
    pub fn name(self) -> &'static str {
        // Neither the type nor the rank is in the name.
        self.reduce_op(DataType::F32, 0).name()
    }

    /// The operator with this name.
    pub fn from_name(name: &str) -> Option<Op> {
        Op::ALL.iter().copied().find(|op| op.name().eq_ignore_ascii_case(name))
    }

    /// Whether the operator works on elements of `data_type`.
    pub fn fits(self, data_type: DataType) -> bool {
        !(self.reduce_op(data_type, 0).bitwise() && data_type.is_float())
    }

    /// What `rank` passes.
    pub fn reduce_op(self, data_type: DataType, rank: u32) -> ReduceOp {
        match self {
            Op::Sum => ReduceOp::Sum,
            Op::Prod => ReduceOp::Prod,
            Op::Min => ReduceOp::Min,
            Op::Max => ReduceOp::Max,
            Op::Avg => ReduceOp::Avg,
            Op::MulSum => ReduceOp::PreMulSum(scalar(data_type, rank)),
            Op::BitAnd => ReduceOp::BitAnd,
            Op::BitOr => ReduceOp::BitOr,
            Op::BitXor => ReduceOp::BitXor,
        }
    }
}

/// By what `mulsum` multiplies the input of `rank`: 1 or 2, as nccl-tests does, so that scaled floats stay exact.
pub fn factor(rank: u32) -> u8 {
    if rank.is_multiple_of(2) { 1 } else { 2 }
}

fn scalar(data_type: DataType, rank: u32) -> Scalar {
    let factor = factor(rank);
    match data_type {
        DataType::U8 | DataType::U32 | DataType::U64 => Scalar::Unsigned(factor.into()),
        DataType::I8 | DataType::I32 | DataType::I64 => Scalar::Signed(factor.into()),
        _ => Scalar::Float(factor.into()),
    }
}
