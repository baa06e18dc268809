//! `cvt` between single values.

use super::formats::{
    BRAIN, DOUBLE, Format, HALF, Round, SINGLE, brain_from_f32, brain_to_f32, half_from_f32, half_to_f32,
};
use super::packed::narrow_to_f64;
use super::{Lane, Row, Unary, lanes};
use crate::ptx::types::{Class, Type};

/// A conversion that has no function of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Conversion {
    pub(crate) to: Type,
    pub(crate) from: Type,
    pub(crate) round: Round,
    /// `.rni` and its like: to a whole number.
    pub(crate) whole: bool,
    pub(crate) saturate: bool,
    pub(crate) flush: bool,
}

impl Conversion {
    /// A function for the conversions that kernels use most.
    pub(crate) fn fast(self) -> Option<Unary> {
        if self.saturate || self.flush {
            return None;
        }
        let nearest = self.round == Round::Nearest;
        Some(match (self.to, self.from) {
            (Type::U64 | Type::S64, Type::U32) => lanes!(u32, |a| a),
            (Type::U64 | Type::S64, Type::S32) => lanes!(i32, |a| i64::from(a)),
            (Type::U32 | Type::S32, Type::U64 | Type::S64) => lanes!(u64, |a| a as u32),
            (Type::U16 | Type::S16, Type::U32 | Type::S32 | Type::U64 | Type::S64) => lanes!(u64, |a| a as u16),
            (Type::U32 | Type::S32 | Type::U64 | Type::S64, Type::U16) => lanes!(u16, |a| a),
            (Type::U32 | Type::S32, Type::S16) => lanes!(i16, |a| i32::from(a)),
            (Type::F32, Type::S32) if nearest => lanes!(i32, |a| a as f32),
            (Type::F32, Type::U32) if nearest => lanes!(u32, |a| a as f32),
            (Type::F32, Type::F16) if !self.whole => lanes!(u16, |a| quiet(half_to_f32(a))),
            (Type::F32, Type::Bf16) if !self.whole => lanes!(u16, |a| brain_to_f32(a)),
            (Type::F16, Type::F32) if nearest && !self.whole => lanes!(f32, |a| half_from_f32(a)),
            (Type::Bf16, Type::F32) if nearest && !self.whole => lanes!(f32, |a| brain_from_f32(a)),
            (Type::F64, Type::F32) if !self.whole => lanes!(f32, |a| f64::from(a)),
            _ => return None,
        })
    }

    /// Converts every lane.
    pub(crate) fn run(self, source: &Row, out: &mut Row) {
        for (out, bits) in out.iter_mut().zip(source) {
            *out = self.lane(*bits);
        }
    }

    fn lane(self, bits: u64) -> u64 {
        if self.from.class() == Class::Float {
            let value = match self.from {
                Type::F64 => f64::get(bits),
                Type::F32 => {
                    let value = f32::get(bits);
                    f64::from(if self.flush && value.is_subnormal() { 0f32.copysign(value) } else { value })
                }
                narrow => narrow_to_f64(narrow, bits),
            };
            if self.to.class() == Class::Float { self.to_float(value) } else { self.to_integer(value) }
        } else {
            let value = integer(self.from, bits);
            if let Some(format) = format(self.to) {
                let magnitude = u64::try_from(value.unsigned_abs()).expect("a register has 64 bits");
                return format.pack(value < 0, magnitude, 0, self.round, false);
            }
            let clamped = if self.saturate { value.clamp(limits(self.to).0, limits(self.to).1) } else { value };
            truncated(self.to, clamped)
        }
    }

    fn to_float(self, value: f64) -> u64 {
        let value = if self.whole { whole(value, self.round) } else { value };
        let value = if self.saturate { if value.is_nan() { 0.0 } else { value.clamp(0.0, 1.0) + 0.0 } } else { value };
        match self.to {
            Type::F64 => value.put(),
            to => {
                let bits = format(to).expect("a float type").rounded(value, self.round, false);
                if self.flush && to == Type::F32 && f32::get(bits).is_subnormal() { bits & 0x8000_0000 } else { bits }
            }
        }
    }

    fn to_integer(self, value: f64) -> u64 {
        if value.is_nan() {
            return if self.from == Type::F64 && self.to.bits() == 64 { 1 << 63 } else { 0 };
        }
        let (low, high) = limits(self.to);
        let whole = whole(value, self.round);
        // Whatever lies outside is clamped; `as` saturates at the ends of i128.
        truncated(self.to, (whole as i128).clamp(low, high))
    }
}

fn quiet(value: f32) -> f32 {
    if value.is_nan() { f32::from_bits(0x7fff_ffff) } else { value }
}

fn whole(value: f64, round: Round) -> f64 {
    match round {
        Round::Nearest => value.round_ties_even(),
        Round::Zero => value.trunc(),
        Round::Down => value.floor(),
        Round::Up => value.ceil(),
    }
}

fn format(kind: Type) -> Option<Format> {
    match kind {
        Type::F16 => Some(HALF),
        Type::Bf16 => Some(BRAIN),
        Type::F32 => Some(SINGLE),
        Type::F64 => Some(DOUBLE),
        _ => None,
    }
}

fn limits(kind: Type) -> (i128, i128) {
    let bits = kind.bits();
    if kind.is_signed() { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

fn integer(kind: Type, bits: u64) -> i128 {
    let unused = 64 - kind.bits();
    if kind.is_signed() {
        i128::from((bits << unused).cast_signed() >> unused)
    } else {
        i128::from(bits << unused >> unused)
    }
}

fn truncated(kind: Type, value: i128) -> u64 {
    let bits = value as u64;
    bits & (u64::MAX >> (64 - kind.bits()))
}

/// Sign-extends from `from` bits to `to` bits, or only cuts off what is above `from`.
pub(crate) fn extend(value: u64, from: u32, to: u32, signed: bool) -> u64 {
    let unused = 64 - from;
    if signed {
        let wide = ((value << unused).cast_signed() >> unused).cast_unsigned();
        wide & (u64::MAX >> (64 - to))
    } else {
        value << unused >> unused
    }
}
