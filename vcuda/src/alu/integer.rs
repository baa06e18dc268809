//! Integer, bit and comparison operations.

use super::{Binary, Lane, Ternary, Test, Unary, by_type, lanes, test};
use crate::ptx::types::Type;

/// Which part of a product, or how it is widened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Low,
    High,
    Wide,
}

/// `not`, `neg`, `abs`, `cnot`, `brev`, `popc`, `clz`, `bfind`.
pub(crate) fn unary(name: &str, kind: Type) -> Option<Unary> {
    match name {
        "not" => by_type!(kind, [B16: u16, B32: u32, B64: u64], |a| !a),
        "neg" => by_type!(kind, [S16: i16, S32: i32, S64: i64], |a| a.wrapping_neg()),
        "abs" => by_type!(kind, [S16: i16, S32: i32, S64: i64], |a| a.wrapping_abs()),
        "cnot" => match kind {
            Type::B16 => Some(lanes!(u16, |a| u16::from(a == 0))),
            Type::B32 => Some(lanes!(u32, |a| u32::from(a == 0))),
            Type::B64 => Some(lanes!(u64, |a| u64::from(a == 0))),
            _ => None,
        },
        "brev" => by_type!(kind, [B32: u32, B64: u64], |a| a.reverse_bits()),
        "popc" => by_type!(kind, [B32: u32, B64: u64], |a| a.count_ones()),
        "clz" => by_type!(kind, [B32: u32, B64: u64], |a| a.leading_zeros()),
        "bfind" => match kind {
            Type::U32 => Some(lanes!(u32, |a| find(u64::from(a)))),
            Type::U64 => Some(lanes!(u64, |a| find(a))),
            Type::S32 => Some(lanes!(i32, |a| find(u64::from((a ^ (a >> 31)).cast_unsigned())))),
            Type::S64 => Some(lanes!(i64, |a| find((a ^ (a >> 63)).cast_unsigned()))),
            _ => None,
        },
        // `bfind.shiftamt`: how far to shift left so that the bit found becomes the highest.
        "bfind.shiftamt" => match kind {
            Type::U32 => Some(lanes!(u32, |a| if a == 0 { u32::MAX } else { a.leading_zeros() })),
            Type::U64 => Some(lanes!(u64, |a| if a == 0 { u32::MAX } else { a.leading_zeros() })),
            Type::S32 => Some(lanes!(i32, |a| shift_amount(u64::from((a ^ (a >> 31)).cast_unsigned()), 32))),
            Type::S64 => Some(lanes!(i64, |a| shift_amount((a ^ (a >> 63)).cast_unsigned(), 64))),
            _ => None,
        },
        _ => None,
    }
}

fn find(bits: u64) -> u32 {
    if bits == 0 { u32::MAX } else { bits.ilog2() }
}

fn shift_amount(bits: u64, width: u32) -> u32 {
    if bits == 0 { u32::MAX } else { width - 1 - bits.ilog2() }
}

/// `add`, `sub`, `div`, `rem`, `min`, `max`, `and`, `or`, `xor`, `shl`, `shr`, and `add.sat`, `sub.sat`.
pub(crate) fn binary(name: &str, kind: Type) -> Option<Binary> {
    match name {
        "add" => match kind {
            Type::U16x2 | Type::S16x2 => Some(lanes!(u32, |a, b| halves(a, b, u16::wrapping_add))),
            _ => by_type!(kind, [U16: u16, U32: u32, U64: u64, S16: i16, S32: i32, S64: i64], |a, b| a.wrapping_add(b)),
        },
        "sub" => by_type!(kind, [U16: u16, U32: u32, U64: u64, S16: i16, S32: i32, S64: i64], |a, b| a.wrapping_sub(b)),
        "add.sat" => by_type!(kind, [S32: i32], |a, b| a.saturating_add(b)),
        "sub.sat" => by_type!(kind, [S32: i32], |a, b| a.saturating_sub(b)),
        // A division by zero gives all bits set on hardware.
        "div" => match kind {
            Type::S16 => Some(lanes!(i16, |a, b| if b == 0 { -1 } else { a.wrapping_div(b) })),
            Type::S32 => Some(lanes!(i32, |a, b| if b == 0 { -1 } else { a.wrapping_div(b) })),
            Type::S64 => Some(lanes!(i64, |a, b| if b == 0 { -1 } else { a.wrapping_div(b) })),
            Type::U16 => Some(lanes!(u16, |a, b| a.checked_div(b).unwrap_or(u16::MAX))),
            Type::U32 => Some(lanes!(u32, |a, b| a.checked_div(b).unwrap_or(u32::MAX))),
            Type::U64 => Some(lanes!(u64, |a, b| a.checked_div(b).unwrap_or(u64::MAX))),
            _ => None,
        },
        "rem" => {
            by_type!(kind, [U16: u16, U32: u32, U64: u64, S16: i16, S32: i32, S64: i64], |a, b| if b == 0 { a } else { a.wrapping_rem(b) })
        }
        "min" => match kind {
            Type::U16x2 => Some(lanes!(u32, |a, b| halves(a, b, u16::min))),
            Type::S16x2 => {
                Some(lanes!(u32, |a, b| halves(a, b, |x, y| x.cast_signed().min(y.cast_signed()).cast_unsigned())))
            }
            _ => by_type!(kind, [U16: u16, U32: u32, U64: u64, S16: i16, S32: i32, S64: i64], |a, b| a.min(b)),
        },
        "max" => match kind {
            Type::U16x2 => Some(lanes!(u32, |a, b| halves(a, b, u16::max))),
            Type::S16x2 => {
                Some(lanes!(u32, |a, b| halves(a, b, |x, y| x.cast_signed().max(y.cast_signed()).cast_unsigned())))
            }
            _ => by_type!(kind, [U16: u16, U32: u32, U64: u64, S16: i16, S32: i32, S64: i64], |a, b| a.max(b)),
        },
        "and" => by_type!(kind, [B16: u16, B32: u32, B64: u64], |a, b| a & b),
        "or" => by_type!(kind, [B16: u16, B32: u32, B64: u64], |a, b| a | b),
        "xor" => by_type!(kind, [B16: u16, B32: u32, B64: u64], |a, b| a ^ b),
        "shl" => shift_left(kind),
        "shr" => shift_right(kind),
        _ => None,
    }
}

fn halves(a: u32, b: u32, combine: impl Fn(u16, u16) -> u16) -> u32 {
    let low = combine(a as u16, b as u16);
    let high = combine((a >> 16) as u16, (b >> 16) as u16);
    u32::from(low) | u32::from(high) << 16
}

/// The amount is always 32 bits, and amounts at or above the width shift everything out.
fn shift_left(kind: Type) -> Option<Binary> {
    match kind {
        Type::B16 => Some(lanes!(u64, |a, n| (a as u16).checked_shl(n as u32).unwrap_or(0))),
        Type::B32 => Some(lanes!(u64, |a, n| (a as u32).checked_shl(n as u32).unwrap_or(0))),
        Type::B64 => Some(lanes!(u64, |a, n| a.checked_shl(n as u32).unwrap_or(0))),
        _ => None,
    }
}

fn shift_right(kind: Type) -> Option<Binary> {
    match kind {
        Type::B16 | Type::U16 => Some(lanes!(u64, |a, n| (a as u16).checked_shr(n as u32).unwrap_or(0))),
        Type::B32 | Type::U32 => Some(lanes!(u64, |a, n| (a as u32).checked_shr(n as u32).unwrap_or(0))),
        Type::B64 | Type::U64 => Some(lanes!(u64, |a, n| a.checked_shr(n as u32).unwrap_or(0))),
        Type::S16 => Some(lanes!(u64, |a, n| i16::get(a) >> (n as u32).min(15))),
        Type::S32 => Some(lanes!(u64, |a, n| i32::get(a) >> (n as u32).min(31))),
        Type::S64 => Some(lanes!(u64, |a, n| i64::get(a) >> (n as u32).min(63))),
        _ => None,
    }
}

/// `mul` of integers.
pub(crate) fn multiply(part: Part, kind: Type) -> Option<Binary> {
    match part {
        Part::Low => {
            by_type!(kind, [U16: u16, U32: u32, U64: u64, S16: i16, S32: i32, S64: i64], |a, b| a.wrapping_mul(b))
        }
        Part::High => match kind {
            Type::U16 => Some(lanes!(u16, |a, b| ((u32::from(a) * u32::from(b)) >> 16) as u16)),
            Type::S16 => Some(lanes!(i16, |a, b| ((i32::from(a) * i32::from(b)) >> 16) as i16)),
            Type::U32 => Some(lanes!(u32, |a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32)),
            Type::S32 => Some(lanes!(i32, |a, b| ((i64::from(a) * i64::from(b)) >> 32) as i32)),
            Type::U64 => Some(lanes!(u64, |a, b| high(a, b))),
            Type::S64 => Some(lanes!(i64, |a, b| high_signed(a, b))),
            _ => None,
        },
        Part::Wide => match kind {
            Type::U16 => Some(lanes!(u16, |a, b| u32::from(a) * u32::from(b))),
            Type::S16 => Some(lanes!(i16, |a, b| i32::from(a) * i32::from(b))),
            Type::U32 => Some(lanes!(u32, |a, b| u64::from(a) * u64::from(b))),
            Type::S32 => Some(lanes!(i32, |a, b| i64::from(a) * i64::from(b))),
            _ => None,
        },
    }
}

fn high(a: u64, b: u64) -> u64 {
    ((u128::from(a) * u128::from(b)) >> 64) as u64
}

fn high_signed(a: i64, b: i64) -> i64 {
    ((i128::from(a) * i128::from(b)) >> 64) as i64
}

/// `mad` of integers.
pub(crate) fn multiply_add(part: Part, kind: Type) -> Option<Ternary> {
    match part {
        Part::Low => by_type!(kind, [U16: u16, U32: u32, U64: u64, S16: i16, S32: i32, S64: i64], |a, b, c| a
            .wrapping_mul(b)
            .wrapping_add(c)),
        Part::High => match kind {
            Type::U16 => Some(lanes!(u16, |a, b, c| (((u32::from(a) * u32::from(b)) >> 16) as u16).wrapping_add(c))),
            Type::S16 => Some(lanes!(i16, |a, b, c| (((i32::from(a) * i32::from(b)) >> 16) as i16).wrapping_add(c))),
            Type::U32 => Some(lanes!(u32, |a, b, c| (((u64::from(a) * u64::from(b)) >> 32) as u32).wrapping_add(c))),
            Type::S32 => Some(lanes!(i32, |a, b, c| (((i64::from(a) * i64::from(b)) >> 32) as i32).wrapping_add(c))),
            Type::U64 => Some(lanes!(u64, |a, b, c| high(a, b).wrapping_add(c))),
            Type::S64 => Some(lanes!(i64, |a, b, c| high_signed(a, b).wrapping_add(c))),
            _ => None,
        },
        Part::Wide => match kind {
            Type::U16 => {
                Some(lanes!(u64, |a, b, c| (u32::from(a as u16) * u32::from(b as u16)).wrapping_add(c as u32)))
            }
            Type::S16 => {
                Some(lanes!(u64, |a, b, c| (i32::from(a as i16) * i32::from(b as i16)).wrapping_add(c as i32)))
            }
            Type::U32 => Some(lanes!(u64, |a, b, c| (u64::from(a as u32) * u64::from(b as u32)).wrapping_add(c))),
            Type::S32 => {
                Some(lanes!(u64, |a, b, c| (i64::from(a as i32) * i64::from(b as i32)).wrapping_add(c.cast_signed())))
            }
            _ => None,
        },
    }
}

/// The product of two numbers of 24 bits: its low 32 bits, or its bits from 16 on.
fn product_24(part: Part, a: i64, b: i64) -> u32 {
    let product = a * b;
    if part == Part::High { (product >> 16) as u32 } else { product as u32 }
}

/// The low 24 bits, with and without a sign.
fn unsigned_24(a: u32) -> i64 {
    i64::from(a & 0xff_ffff)
}

fn signed_24(a: u32) -> i64 {
    i64::from((a << 8).cast_signed() >> 8)
}

/// `mul24`.
pub(crate) fn multiply_24(part: Part, kind: Type) -> Option<Binary> {
    match (part, kind) {
        (Part::Low, Type::U32) => Some(lanes!(u32, |a, b| product_24(Part::Low, unsigned_24(a), unsigned_24(b)))),
        (Part::High, Type::U32) => Some(lanes!(u32, |a, b| product_24(Part::High, unsigned_24(a), unsigned_24(b)))),
        (Part::Low, Type::S32) => Some(lanes!(u32, |a, b| product_24(Part::Low, signed_24(a), signed_24(b)))),
        (Part::High, Type::S32) => Some(lanes!(u32, |a, b| product_24(Part::High, signed_24(a), signed_24(b)))),
        _ => None,
    }
}

/// `mad24`, without saturation.
pub(crate) fn multiply_add_24(part: Part, kind: Type) -> Option<Ternary> {
    match (part, kind) {
        (Part::Low, Type::U32) => {
            Some(lanes!(u32, |a, b, c| product_24(Part::Low, unsigned_24(a), unsigned_24(b)).wrapping_add(c)))
        }
        (Part::High, Type::U32) => {
            Some(lanes!(u32, |a, b, c| product_24(Part::High, unsigned_24(a), unsigned_24(b)).wrapping_add(c)))
        }
        (Part::Low, Type::S32) => {
            Some(lanes!(u32, |a, b, c| product_24(Part::Low, signed_24(a), signed_24(b)).wrapping_add(c)))
        }
        (Part::High, Type::S32) => {
            Some(lanes!(u32, |a, b, c| product_24(Part::High, signed_24(a), signed_24(b)).wrapping_add(c)))
        }
        _ => None,
    }
}

/// Products of bytes of `a` (halves where `COUNT` is 2) and bytes of `b` from byte `FIRST` on, summed.
fn dot<const COUNT: usize, const FIRST: usize>(a: u32, b: u32, signed: [bool; 2]) -> u32 {
    let part = |value: u32, index: usize, bits: u32, signed: bool| {
        let raised = value << (32 - bits * (index as u32 + 1));
        if signed { i64::from(raised.cast_signed() >> (32 - bits)) } else { i64::from(raised >> (32 - bits)) }
    };
    let bits = if COUNT == 2 { 16 } else { 8 };
    let products = (0..COUNT).map(|index| part(a, index, bits, signed[0]) * part(b, FIRST + index, 8, signed[1]));
    products.sum::<i64>() as u32
}

/// `dp4a` and `dp2a`; the sum has the same bits with and without a sign.
pub(crate) fn dot_product(name: &str, a: Type, b: Type) -> Option<Ternary> {
    macro_rules! by_signs {
        ($count:literal, $first:literal) => {
            match (a, b) {
                (Type::U32, Type::U32) => {
                    Some(lanes!(u32, |a, b, c| dot::<$count, $first>(a, b, [false, false]).wrapping_add(c)))
                }
                (Type::U32, Type::S32) => {
                    Some(lanes!(u32, |a, b, c| dot::<$count, $first>(a, b, [false, true]).wrapping_add(c)))
                }
                (Type::S32, Type::U32) => {
                    Some(lanes!(u32, |a, b, c| dot::<$count, $first>(a, b, [true, false]).wrapping_add(c)))
                }
                (Type::S32, Type::S32) => {
                    Some(lanes!(u32, |a, b, c| dot::<$count, $first>(a, b, [true, true]).wrapping_add(c)))
                }
                _ => None,
            }
        };
    }
    match name {
        "dp4a." => by_signs!(4, 0),
        "dp2a.lo" => by_signs!(2, 0),
        "dp2a.hi" => by_signs!(2, 2),
        _ => None,
    }
}

/// `sad`, `bfe`, `prmt` (by mode), `shf`, `slct`, `fns`.
pub(crate) fn ternary(name: &str, kind: Type) -> Option<Ternary> {
    match name {
        "sad" => match kind {
            Type::U16 => Some(lanes!(u16, |a, b, c| c.wrapping_add(a.abs_diff(b)))),
            Type::U32 => Some(lanes!(u32, |a, b, c| c.wrapping_add(a.abs_diff(b)))),
            Type::U64 => Some(lanes!(u64, |a, b, c| c.wrapping_add(a.abs_diff(b)))),
            Type::S16 => Some(lanes!(i16, |a, b, c| c.wrapping_add(a.abs_diff(b).cast_signed()))),
            Type::S32 => Some(lanes!(i32, |a, b, c| c.wrapping_add(a.abs_diff(b).cast_signed()))),
            Type::S64 => Some(lanes!(i64, |a, b, c| c.wrapping_add(a.abs_diff(b).cast_signed()))),
            _ => None,
        },
        "bfe" => match kind {
            Type::U32 => Some(lanes!(u64, |a, b, c| extract(a, b, c, 32, false) as u32)),
            Type::S32 => Some(lanes!(u64, |a, b, c| extract(a, b, c, 32, true) as u32)),
            Type::U64 => Some(lanes!(u64, |a, b, c| extract(a, b, c, 64, false))),
            Type::S64 => Some(lanes!(u64, |a, b, c| extract(a, b, c, 64, true))),
            _ => None,
        },
        "prmt" => Some(lanes!(u32, |a, b, c| permute(a, b, c))),
        "prmt.f4e" => Some(lanes!(u32, |a, b, c| permute(a, b, [0x3210, 0x4321, 0x5432, 0x6543][(c & 3) as usize]))),
        "prmt.b4e" => Some(lanes!(u32, |a, b, c| permute(a, b, [0x5670, 0x6701, 0x7012, 0x0123][(c & 3) as usize]))),
        "prmt.rc8" => Some(lanes!(u32, |a, b, c| permute(a, b, [0x0000, 0x1111, 0x2222, 0x3333][(c & 3) as usize]))),
        "prmt.ecl" => Some(lanes!(u32, |a, b, c| permute(a, b, [0x3210, 0x3211, 0x3222, 0x3333][(c & 3) as usize]))),
        "prmt.ecr" => Some(lanes!(u32, |a, b, c| permute(a, b, [0x0000, 0x1110, 0x2210, 0x3210][(c & 3) as usize]))),
        "prmt.rc16" => Some(lanes!(u32, |a, b, c| permute(a, b, [0x1010, 0x3232, 0x1010, 0x3232][(c & 3) as usize]))),
        "shf.l.wrap" => Some(lanes!(u32, |a, b, c| (joined(a, b) << (c & 31) >> 32) as u32)),
        "shf.l.clamp" => Some(lanes!(u32, |a, b, c| (joined(a, b) << c.min(32) >> 32) as u32)),
        "shf.r.wrap" => Some(lanes!(u32, |a, b, c| (joined(a, b) >> (c & 31)) as u32)),
        "shf.r.clamp" => Some(lanes!(u32, |a, b, c| (joined(a, b) >> c.min(32)) as u32)),
        "slct.s32" => match kind.bits() {
            16 | 32 | 64 => Some(lanes!(u64, |a, b, c| if (c as u32).cast_signed() >= 0 { a } else { b })),
            _ => None,
        },
        "slct.f32" => match kind.bits() {
            16 | 32 | 64 => Some(lanes!(u64, |a, b, c| if f32::get(c) >= 0.0 { a } else { b })),
            _ => None,
        },
        "fns" => Some(lanes!(u32, |a, b, c| nth_set(a, b, c.cast_signed()))),
        _ => None,
    }
}

/// `bfi`: the low `length` bits of the first source, put into the second at `position`.
pub(crate) fn insert(value: u64, into: u64, position: u64, length: u64, width: u32) -> u64 {
    let (position, length) = (position as u32 & 0xff, length as u32 & 0xff);
    if position >= width || length == 0 {
        return into;
    }
    let length = length.min(width - position);
    let mask = (u64::MAX >> (64 - length)) << position;
    (into & !mask) | ((value << position) & mask)
}

/// `lop3` for the truth table `table`.
pub(crate) fn logic3(a: u64, b: u64, c: u64, table: u8) -> u64 {
    let mut out = 0;
    for case in 0..8u8 {
        if table >> case & 1 == 1 {
            let pick = |value: u64, bit: u8| if case >> bit & 1 == 1 { value } else { !value };
            out |= pick(a, 2) & pick(b, 1) & pick(c, 0);
        }
    }
    out & 0xffff_ffff
}

fn extract(value: u64, position: u64, length: u64, width: u32, signed: bool) -> u64 {
    let (position, length) = (position as u32 & 0xff, length as u32 & 0xff);
    // Positions past the end give the sign (or zero) in every bit.
    let wide = if !signed {
        i128::from(value)
    } else if width == 32 {
        i128::from(i32::get(value))
    } else {
        i128::from(value.cast_signed())
    };
    if length == 0 {
        return 0;
    }
    let length = length.min(width);
    let shifted = (wide >> position.min(127)) as u64;
    let field = shifted & (u64::MAX >> (64 - length));
    // The sign of a field that passes the end is the value's own sign, which the shift has put there already.
    if signed && field >> (length - 1) & 1 == 1 { field | !(u64::MAX >> (64 - length)) } else { field }
}

fn joined(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn permute(a: u32, b: u32, selector: u32) -> u32 {
    let bytes = joined(a, b).to_le_bytes();
    let mut out = [0u8; 4];
    for (index, out) in out.iter_mut().enumerate() {
        let choice = selector >> (4 * index) & 0xf;
        let byte = bytes[(choice & 7) as usize];
        *out = if choice & 8 == 0 { byte } else { (byte.cast_signed() >> 7).cast_unsigned() };
    }
    u32::from_le_bytes(out)
}

/// `fns`: the position of the `offset`-th set bit from `base`, or all bits set.
fn nth_set(mask: u32, base: u32, offset: i32) -> u32 {
    let base = base & 31;
    let set = |bit: &u32| mask >> bit & 1 == 1;
    let found = match offset {
        0 => Some(base).filter(set),
        1.. => (base..32).filter(set).nth(offset as usize - 1),
        _ => (0..=base).rev().filter(set).nth(offset.unsigned_abs() as usize - 1),
    };
    found.unwrap_or(u32::MAX)
}

/// Comparisons of integers and bits.
pub(crate) fn compare(name: &str, kind: Type) -> Option<Test> {
    macro_rules! cases {
        ([$($variant:ident: $lane:ty),*], |$a:ident, $b:ident| $result:expr) => {
            match kind {
                $(Type::$variant => Some(test!($lane, |$a, $b| $result)),)*
                _ => None,
            }
        };
    }
    match name {
        "eq" => {
            cases!([B16: u16, B32: u32, B64: u64, U16: u16, U32: u32, U64: u64, S16: i16, S32: i32, S64: i64], |a, b| a == b)
        }
        "ne" => {
            cases!([B16: u16, B32: u32, B64: u64, U16: u16, U32: u32, U64: u64, S16: i16, S32: i32, S64: i64], |a, b| a != b)
        }
        "lt" | "lo" => cases!([U16: u16, U32: u32, U64: u64, S16: i16, S32: i32, S64: i64], |a, b| a < b),
        "le" | "ls" => cases!([U16: u16, U32: u32, U64: u64, S16: i16, S32: i32, S64: i64], |a, b| a <= b),
        "gt" | "hi" => cases!([U16: u16, U32: u32, U64: u64, S16: i16, S32: i32, S64: i64], |a, b| a > b),
        "ge" | "hs" => cases!([U16: u16, U32: u32, U64: u64, S16: i16, S32: i32, S64: i64], |a, b| a >= b),
        _ => None,
    }
}
