//! Exact checks of collectives: inputs that make every result exact, and the results, computed with no communication.
//!
//! A [`Shape`] says how many elements one rank passes and gets, [`Tables`] has their values, [`RankBuffers`] holds them
//! between guards, and [`perform`] makes the call. All values follow from (seed, rank, index, type, operator, world),
//! so each rank knows by itself the result that it must get, bit for bit, in whatever order ranks are reduced.
//!
//! `rsccl perf` and `tests/matrix.rs` share this module; it needs nothing but the public interface of the library.

#![forbid(unsafe_code)]

// With the paths spelled out, the module can be included from elsewhere.
#[path = "verify/buffers.rs"]
mod buffers;
#[path = "verify/op.rs"]
mod op;
#[path = "verify/perform.rs"]
mod perform;
#[path = "verify/program.rs"]
mod program;
#[path = "verify/sample.rs"]
mod sample;
#[path = "verify/tables.rs"]
mod tables;

pub(crate) use buffers::{Memory, Placement, RankBuffers};
pub(crate) use op::Op;
pub(crate) use perform::{perform, perform_on};
#[allow(unused_imports, reason = "only `tests/matrix.rs`, which includes this module, names it")]
pub(crate) use program::Source;
pub(crate) use program::{Program, Shape};
pub(crate) use sample::Sample;
pub(crate) use tables::Tables;

/// Runs `$body` with `$type` as the Rust type of the [`rsccl::DataType`] `$data_type`, or `$other` where a newer
/// library has more.
macro_rules! with_type {
    ($data_type:expr, $type:ident => $body:expr, else $other:expr) => {
        match $data_type {
            rsccl::DataType::I8 => with_type!(@ i8, $type, $body),
            rsccl::DataType::U8 => with_type!(@ u8, $type, $body),
            rsccl::DataType::I32 => with_type!(@ i32, $type, $body),
            rsccl::DataType::U32 => with_type!(@ u32, $type, $body),
            rsccl::DataType::I64 => with_type!(@ i64, $type, $body),
            rsccl::DataType::U64 => with_type!(@ u64, $type, $body),
            rsccl::DataType::F16 => with_type!(@ rsccl::types::f16, $type, $body),
            rsccl::DataType::F32 => with_type!(@ f32, $type, $body),
            rsccl::DataType::F64 => with_type!(@ f64, $type, $body),
            rsccl::DataType::BF16 => with_type!(@ rsccl::types::bf16, $type, $body),
            rsccl::DataType::F8E4M3 => with_type!(@ rsccl::types::F8E4M3, $type, $body),
            rsccl::DataType::F8E5M2 => with_type!(@ rsccl::types::F8E5M2, $type, $body),
            _ => $other,
        }
    };
    (@ $rust:ty, $type:ident, $body:expr) => {{
        type $type = $rust;
        $body
    }};
}
pub(crate) use with_type;
