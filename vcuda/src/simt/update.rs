//! The results of atomic operations and reductions on two values.

use crate::alu::float;
use crate::alu::formats::Round;
use crate::alu::packed;
use crate::alu::{Binary, Lane, integer};
use crate::ptx::instruction::Update;
use crate::ptx::types::Type;

/// The new value of a word: `b` is the operand, `c` the value that a compare-and-swap puts there.
pub(super) fn updated(update: Update, kind: Type, old: u64, b: u64, c: u64) -> u64 {
    match update {
        Update::Exchange => b,
        Update::CompareExchange => {
            let mask = u64::MAX >> (64 - kind.bits());
            if old == b & mask { c } else { old }
        }
        Update::And => old & b,
        Update::Or => old | b,
        Update::Xor => old ^ b,
        Update::Add => match kind {
            Type::U32 | Type::S32 => u64::from(u32::get(old).wrapping_add(u32::get(b))),
            Type::U64 | Type::S64 => old.wrapping_add(b),
            Type::F32 => one(float::binary("add", kind, Round::Nearest), old, b),
            Type::F64 | Type::F16 | Type::Bf16 => one(float::binary("add", kind, Round::Nearest), old, b),
            _ => one(packed::binary("add", kind), old, b),
        },
        Update::Min => one(integer::binary("min", kind), old, b),
        Update::Max => one(integer::binary("max", kind), old, b),
        Update::Increment => {
            let (old, limit) = (u32::get(old), u32::get(b));
            u64::from(if old >= limit { 0 } else { old + 1 })
        }
        Update::Decrement => {
            let (old, limit) = (u32::get(old), u32::get(b));
            u64::from(if old == 0 || old > limit { limit } else { old - 1 })
        }
    }
}

/// Which bytes of the new value are defined: `old`, `b` are values with a bit for each defined byte; `c` is the bits alone.
pub(super) fn defined(update: Update, old: (u64, u8), b: (u64, u8), c: u8) -> u8 {
    let all = |set: u8| set == u8::MAX;
    match update {
        Update::Exchange => b.1,
        // Whether it swaps depends on all of the two that are compared.
        Update::CompareExchange if !all(old.1 & b.1) => 0,
        Update::CompareExchange => {
            if old.0 == b.0 {
                c
            } else {
                old.1
            }
        }
        Update::And | Update::Or | Update::Xor => old.1 & b.1,
        Update::Add | Update::Min | Update::Max | Update::Increment | Update::Decrement => {
            if all(old.1 & b.1) {
                u8::MAX
            } else {
                0
            }
        }
    }
}

/// A row operation on one value. The loader admits only types for which there is one.
fn one(run: Option<Binary>, a: u64, b: u64) -> u64 {
    let mut out = [0; 32];
    if let Some(run) = run {
        run(&[a; 32], &[b; 32], &mut out);
    }
    out[0]
}
