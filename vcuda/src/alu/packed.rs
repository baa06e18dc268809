//! Two halves or two bfloat16 in a register, and the 8-bit formats.

use super::float::{Brain, Half, Narrow};
use super::formats::{E4M3, E5M2, Format, HALF, Round, brain_from_f32, brain_to_f32, half_to_f32};
use super::{Binary, Lane, Row, Ternary, Test, Unary, lanes};
use crate::ptx::types::Type;

fn pair<T: Narrow>(a: u64, b: u64, combine: impl Fn(T, T) -> T) -> u32 {
    let low = combine(T::of(a as u16), T::of(b as u16));
    let high = combine(T::of((a >> 16) as u16), T::of((b >> 16) as u16));
    u32::from(low.bits()) | u32::from(high.bits()) << 16
}

/// `add`, `sub`, `mul`, `min`, `max` of pairs.
pub(crate) fn binary(name: &str, kind: Type) -> Option<Binary> {
    match kind {
        Type::F16x2 => of_pairs::<Half>(name),
        Type::Bf16x2 => of_pairs::<Brain>(name),
        _ => None,
    }
}

fn of_pairs<T: Narrow>(name: &str) -> Option<Binary> {
    fn apply<T: Narrow>(x: &Row, y: &Row, out: &mut Row, combine: impl Fn(T, T) -> T + Copy) {
        for ((out, x), y) in out.iter_mut().zip(x).zip(y) {
            *out = u64::from(pair(*x, *y, combine));
        }
    }
    Some(match name {
        "add" => |x, y, out| apply(x, y, out, T::add),
        "sub" => |x, y, out| apply(x, y, out, |a: T, b| a.add(b.neg())),
        "mul" => |x, y, out| apply(x, y, out, T::mul),
        "min" => |x, y, out| apply(x, y, out, |a: T, b| a.extreme(b, false, false)),
        "max" => |x, y, out| apply(x, y, out, |a: T, b| a.extreme(b, true, false)),
        "min.NaN" => |x, y, out| apply(x, y, out, |a: T, b| a.extreme(b, false, true)),
        "max.NaN" => |x, y, out| apply(x, y, out, |a: T, b| a.extreme(b, true, true)),
        _ => return None,
    })
}

fn fused<T: Narrow>(a: u64, b: u64, c: u64) -> u32 {
    let part = |shift: u32| T::of((a >> shift) as u16).fma(T::of((b >> shift) as u16), T::of((c >> shift) as u16));
    u32::from(part(0).bits()) | u32::from(part(16).bits()) << 16
}

/// `fma` of pairs.
pub(crate) fn multiply_add(kind: Type) -> Option<Ternary> {
    match kind {
        Type::F16x2 => Some(lanes!(u64, |a, b, c| fused::<Half>(a, b, c))),
        Type::Bf16x2 => Some(lanes!(u64, |a, b, c| fused::<Brain>(a, b, c))),
        _ => None,
    }
}

/// `neg`, `abs` of pairs.
pub(crate) fn unary(name: &str, kind: Type) -> Option<Unary> {
    match (kind, name) {
        (Type::F16x2 | Type::Bf16x2, "neg") => Some(lanes!(u32, |a| a ^ 0x8000_8000)),
        (Type::F16x2 | Type::Bf16x2, "abs") => Some(lanes!(u32, |a| a & 0x7fff_7fff)),
        _ => None,
    }
}

/// A comparison of the low and of the high parts.
pub(crate) fn compare(name: &str, kind: Type) -> Option<Test> {
    let part = match kind {
        Type::F16x2 => Type::F16,
        Type::Bf16x2 => Type::Bf16,
        _ => return None,
    };
    super::float::compare(name, part)
}

/// `cvt.rn.f16x2.f32` and its like: the first source goes into the high part.
pub(crate) fn pack(kind: Type, round: Round) -> Option<Binary> {
    fn join(low: u64, high: u64) -> u32 {
        (low as u32) | (high as u32) << 16
    }
    fn half(value: u64, round: Round) -> u64 {
        HALF.rounded(f64::from(f32::get(value)), round, false)
    }
    fn brain_toward_zero(value: u64) -> u64 {
        super::formats::BRAIN.rounded(f64::from(f32::get(value)), Round::Zero, false)
    }
    fn eight(format: Format, value: u64) -> u64 {
        format.rounded(f64::from(f32::get(value)), Round::Nearest, true)
    }
    Some(match (kind, round) {
        (Type::F16x2, Round::Nearest) => lanes!(u64, |a, b| join(half(b, Round::Nearest), half(a, Round::Nearest))),
        (Type::F16x2, Round::Zero) => lanes!(u64, |a, b| join(half(b, Round::Zero), half(a, Round::Zero))),
        (Type::Bf16x2, Round::Nearest) => {
            lanes!(f32, |a, b| join(u64::from(brain_from_f32(b)), u64::from(brain_from_f32(a))))
        }
        (Type::Bf16x2, Round::Zero) => lanes!(u64, |a, b| join(brain_toward_zero(b), brain_toward_zero(a))),
        (Type::E4m3x2, Round::Nearest) => lanes!(u64, |a, b| (eight(E4M3, a) << 8 | eight(E4M3, b)) as u16),
        (Type::E5m2x2, Round::Nearest) => lanes!(u64, |a, b| (eight(E5M2, a) << 8 | eight(E5M2, b)) as u16),
        _ => return None,
    })
}

/// `cvt` between pairs of halves and pairs of 8-bit floats.
pub(crate) fn repack(to: Type, from: Type) -> Option<Unary> {
    fn narrow(format: Format, value: u32) -> u16 {
        let part = |bits: u32| format.rounded(f64::from(half_to_f32(bits as u16)), Round::Nearest, true);
        (part(value >> 16) << 8 | part(value)) as u16
    }
    fn widen(format: Format, value: u16) -> u32 {
        let part = |bits: u16| HALF.rounded(format.to_f64(u64::from(bits & 0xff)), Round::Nearest, false) as u32;
        part(value >> 8) << 16 | part(value)
    }
    Some(match (to, from) {
        (Type::E4m3x2, Type::F16x2) => lanes!(u32, |a| narrow(E4M3, a)),
        (Type::E5m2x2, Type::F16x2) => lanes!(u32, |a| narrow(E5M2, a)),
        (Type::F16x2, Type::E4m3x2) => lanes!(u16, |a| widen(E4M3, a)),
        (Type::F16x2, Type::E5m2x2) => lanes!(u16, |a| widen(E5M2, a)),
        _ => return None,
    })
}

/// The value of a half or bfloat16 as a double; exact.
pub(crate) fn narrow_to_f64(kind: Type, bits: u64) -> f64 {
    match kind {
        Type::Bf16 => f64::from(brain_to_f32(bits as u16)),
        _ => f64::from(half_to_f32(bits as u16)),
    }
}
