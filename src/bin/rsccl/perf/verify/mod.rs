//! Exact checks of collectives: inputs that make every result exact, and the results, computed with no communication.
//!
//! A [`Shape`] says how many elements one rank passes and gets, [`Tables`] has their values, [`RankBuffers`] holds them
//! between guards, and [`perform`] makes the call. All values follow from (seed, rank, index, type, operator, world),
//! so each rank knows by itself the result that it must get, bit for bit, in whatever order ranks are reduced.
//!
//! `rsccl perf` has this module, and so has the crate `testing`, for tests: it needs nothing but the public interface
//! of the library. The file is called `mod.rs` so that it finds its parts from either crate.

#![forbid(unsafe_code)]
#![allow(unreachable_pub, reason = "`testing` gives it to others")]

mod buffers;
mod op;
mod perform;
mod program;
mod sample;
mod tables;

pub use buffers::{Memory, Placement, RankBuffers};
pub use op::Op;
pub use perform::{perform, perform_on};
#[allow(unused_imports, reason = "only `tests/matrix.rs` names it")]
pub use program::Source;
pub use program::{Program, Shape};
pub use sample::Sample;
pub use tables::Tables;

/// Runs `$body` with `$type` as the Rust type of the [`rsccl::DataType`] `$data_type`, or `$other` where a newer
/// library has more.
#[macro_export]
macro_rules! with_type {
    ($data_type:expr, $type:ident => $body:expr, else $other:expr) => {
        match $data_type {
            rsccl::DataType::I8 => $crate::with_type!(@ i8, $type, $body),
            rsccl::DataType::U8 => $crate::with_type!(@ u8, $type, $body),
            rsccl::DataType::I32 => $crate::with_type!(@ i32, $type, $body),
            rsccl::DataType::U32 => $crate::with_type!(@ u32, $type, $body),
            rsccl::DataType::I64 => $crate::with_type!(@ i64, $type, $body),
            rsccl::DataType::U64 => $crate::with_type!(@ u64, $type, $body),
            rsccl::DataType::F16 => $crate::with_type!(@ rsccl::types::f16, $type, $body),
            rsccl::DataType::F32 => $crate::with_type!(@ f32, $type, $body),
            rsccl::DataType::F64 => $crate::with_type!(@ f64, $type, $body),
            rsccl::DataType::BF16 => $crate::with_type!(@ rsccl::types::bf16, $type, $body),
            rsccl::DataType::F8E4M3 => $crate::with_type!(@ rsccl::types::F8E4M3, $type, $body),
            rsccl::DataType::F8E5M2 => $crate::with_type!(@ rsccl::types::F8E5M2, $type, $body),
            _ => $other,
        }
    };
    (@ $rust:ty, $type:ident, $body:expr) => {{
        type $type = $rust;
        $body
    }};
}
pub use with_type;
