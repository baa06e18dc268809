//! Arithmetic of singles, doubles, halves and bfloat16.

use super::formats::{
    BRAIN, Format, HALF, Round, Rounded, SINGLE, brain_from_f32, brain_to_f32, half_from_f32, half_to_f32,
};
use super::{Binary, Lane, Ternary, Test, Unary, lanes, test};
use crate::ptx::types::Type;

/// A half in a lane.
#[derive(Debug, Clone, Copy)]
pub(super) struct Half(pub(super) u16);
/// A bfloat16 in a lane.
#[derive(Debug, Clone, Copy)]
pub(super) struct Brain(pub(super) u16);

impl Lane for Half {
    fn get(bits: u64) -> Self {
        Self(bits as u16)
    }
    fn put(self) -> u64 {
        u64::from(self.0)
    }
}

impl Lane for Brain {
    fn get(bits: u64) -> Self {
        Self(bits as u16)
    }
    fn put(self) -> u64 {
        u64::from(self.0)
    }
}

/// What the 16-bit formats share: arithmetic through singles and doubles, rounded once.
pub(super) trait Narrow: Lane {
    const FORMAT: Format;
    fn bits(self) -> u16;
    fn wide(self) -> f32;
    fn of(bits: u16) -> Self;
    fn round(value: f32) -> Self;

    fn add(self, other: Self) -> Self {
        // Two bfloat16 can differ so much in size that their sum needs more bits than a single has.
        let sum = Rounded::sum(f64::from(self.wide()), f64::from(other.wide()));
        Self::narrow(sum.to_odd())
    }
    fn mul(self, other: Self) -> Self {
        // A product has at most 22 bits: exact in a double.
        Self::narrow(f64::from(self.wide()) * f64::from(other.wide()))
    }
    fn fma(self, other: Self, addend: Self) -> Self {
        let product = f64::from(self.wide()) * f64::from(other.wide());
        Self::narrow(Rounded::sum(product, f64::from(addend.wide())).to_odd())
    }
    fn neg(self) -> Self {
        Self::of(self.bits() ^ 0x8000)
    }
    fn narrow(value: f64) -> Self {
        let bits = Self::FORMAT.rounded(value, Round::Nearest, false);
        Self::of(bits as u16)
    }
    fn extreme(self, other: Self, largest: bool, keep_nan: bool) -> Self {
        let (a, b) = (self.wide(), other.wide());
        if a.is_nan() || b.is_nan() {
            return if keep_nan || (a.is_nan() && b.is_nan()) {
                Self::of(0x7fff)
            } else if a.is_nan() {
                other
            } else {
                self
            };
        }
        if first_is_it(a, b, largest) { self } else { other }
    }
}

impl Narrow for Half {
    const FORMAT: Format = HALF;
    fn bits(self) -> u16 {
        self.0
    }
    fn wide(self) -> f32 {
        half_to_f32(self.0)
    }
    fn of(bits: u16) -> Self {
        Self(bits)
    }
    fn round(value: f32) -> Self {
        Self(half_from_f32(value))
    }
}

impl Narrow for Brain {
    const FORMAT: Format = BRAIN;
    fn bits(self) -> u16 {
        self.0
    }
    fn wide(self) -> f32 {
        brain_to_f32(self.0)
    }
    fn of(bits: u16) -> Self {
        Self(bits)
    }
    fn round(value: f32) -> Self {
        Self(brain_from_f32(value))
    }
}

/// Whether `a` is the smaller (or larger) one; minus zero is below plus zero.
fn first_is_it(a: f32, b: f32, largest: bool) -> bool {
    if a == b {
        return a.is_sign_negative() != largest;
    }
    (a < b) != largest
}

/// A single with NVIDIA's NaN.
#[inline(always)]
pub(super) fn single(value: f32) -> f32 {
    if value.is_nan() { f32::from_bits(0x7fff_ffff) } else { value }
}

/// A double: the first source that is a NaN, made quiet, or else NVIDIA's NaN.
#[inline(always)]
fn double(value: f64, sources: [f64; 2]) -> f64 {
    if !value.is_nan() {
        return value;
    }
    match sources.into_iter().find(|source| source.is_nan()) {
        Some(source) => f64::from_bits(source.to_bits() | 1 << 51),
        None => f64::from_bits(0xfff8_0000_0000_0000),
    }
}

fn extreme_f32(a: f32, b: f32, largest: bool, keep_nan: bool) -> f32 {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => single(f32::NAN),
        (true, false) | (false, true) if keep_nan => single(f32::NAN),
        (true, false) => b,
        (false, true) => a,
        (false, false) => {
            if first_is_it(a, b, largest) {
                a
            } else {
                b
            }
        }
    }
}

fn extreme_f64(a: f64, b: f64, largest: bool) -> f64 {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => double(f64::NAN, [a, b]),
        (true, false) => b,
        (false, true) => a,
        (false, false) if a == b => {
            if a.is_sign_negative() == largest {
                b
            } else {
                a
            }
        }
        (false, false) => {
            if (a < b) == largest {
                b
            } else {
                a
            }
        }
    }
}

fn to_single(value: f64, round: Round) -> f32 {
    f32::from_bits(SINGLE.rounded(value, round, false) as u32)
}

/// A directed operation on singles, from its exactly rounded double.
macro_rules! directed_single {
    ($round:expr, |$a:ident, $b:ident| $rounded:expr) => {
        match $round {
            Round::Nearest => lanes!(f32, |$a, $b| to_single(($rounded).to_odd(), Round::Nearest)),
            Round::Zero => lanes!(f32, |$a, $b| to_single(($rounded).to_odd(), Round::Zero)),
            Round::Down => lanes!(f32, |$a, $b| to_single(($rounded).to_odd(), Round::Down)),
            Round::Up => lanes!(f32, |$a, $b| to_single(($rounded).to_odd(), Round::Up)),
        }
    };
}

macro_rules! directed_double {
    ($round:expr, |$a:ident, $b:ident| $rounded:expr) => {
        match $round {
            Round::Nearest => lanes!(f64, |$a, $b| double(($rounded).value, [$a, $b])),
            Round::Zero => lanes!(f64, |$a, $b| double(($rounded).directed(Round::Zero), [$a, $b])),
            Round::Down => lanes!(f64, |$a, $b| double(($rounded).directed(Round::Down), [$a, $b])),
            Round::Up => lanes!(f64, |$a, $b| double(($rounded).directed(Round::Up), [$a, $b])),
        }
    };
}

/// `add`, `sub`, `mul`, `div`, `min`, `max`, `min.NaN`, `max.NaN`, `copysign`, `div.approx`, `div.full`.
pub(crate) fn binary(name: &str, kind: Type, round: Round) -> Option<Binary> {
    match kind {
        Type::F32 => binary_single(name, round),
        Type::F64 => binary_double(name, round),
        Type::F16 if round == Round::Nearest => binary_narrow::<Half>(name),
        Type::Bf16 if round == Round::Nearest => binary_narrow::<Brain>(name),
        _ => None,
    }
}

fn binary_single(name: &str, round: Round) -> Option<Binary> {
    Some(match (name, round) {
        ("add", Round::Nearest) => lanes!(f32, |a, b| single(a + b)),
        ("sub", Round::Nearest) => lanes!(f32, |a, b| single(a - b)),
        ("mul", Round::Nearest) => lanes!(f32, |a, b| single(a * b)),
        ("div", Round::Nearest) => lanes!(f32, |a, b| single(a / b)),
        ("add", _) => directed_single!(round, |a, b| Rounded::sum(f64::from(a), f64::from(b))),
        ("sub", _) => directed_single!(round, |a, b| Rounded::sum(f64::from(a), -f64::from(b))),
        ("mul", _) => directed_single!(round, |a, b| Rounded { value: f64::from(a) * f64::from(b), rest: 0.0 }),
        ("div", _) => directed_single!(round, |a, b| Rounded::quotient(f64::from(a), f64::from(b))),
        ("div.approx" | "div.full", _) => lanes!(f32, |a, b| single(a / b)),
        ("min", _) => lanes!(f32, |a, b| extreme_f32(a, b, false, false)),
        ("max", _) => lanes!(f32, |a, b| extreme_f32(a, b, true, false)),
        ("min.NaN", _) => lanes!(f32, |a, b| extreme_f32(a, b, false, true)),
        ("max.NaN", _) => lanes!(f32, |a, b| extreme_f32(a, b, true, true)),
        ("copysign", _) => lanes!(f32, |a, b| b.copysign(a)),
        _ => return None,
    })
}

fn binary_double(name: &str, round: Round) -> Option<Binary> {
    Some(match name {
        "add" => directed_double!(round, |a, b| Rounded::sum(a, b)),
        "sub" => directed_double!(round, |a, b| Rounded::sum(a, -b)),
        "mul" => directed_double!(round, |a, b| Rounded::product(a, b)),
        "div" => directed_double!(round, |a, b| Rounded::quotient(a, b)),
        "min" => lanes!(f64, |a, b| extreme_f64(a, b, false)),
        "max" => lanes!(f64, |a, b| extreme_f64(a, b, true)),
        "copysign" => lanes!(f64, |a, b| b.copysign(a)),
        _ => return None,
    })
}

fn binary_narrow<T: Narrow>(name: &str) -> Option<Binary> {
    fn apply<T: Narrow>(x: &super::Row, y: &super::Row, out: &mut super::Row, combine: impl Fn(T, T) -> T) {
        for ((out, x), y) in out.iter_mut().zip(x).zip(y) {
            *out = combine(T::get(*x), T::get(*y)).put();
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

/// `fma`, `mad`, `fma.relu`.
pub(crate) fn multiply_add(kind: Type, round: Round, relu: bool) -> Option<Ternary> {
    Some(match (kind, round, relu) {
        (Type::F32, Round::Nearest, false) => lanes!(f32, |a, b, c| single(a.mul_add(b, c))),
        (Type::F32, Round::Zero, false) => lanes!(f32, |a, b, c| directed_fma(a, b, c, Round::Zero)),
        (Type::F32, Round::Down, false) => lanes!(f32, |a, b, c| directed_fma(a, b, c, Round::Down)),
        (Type::F32, Round::Up, false) => lanes!(f32, |a, b, c| directed_fma(a, b, c, Round::Up)),
        (Type::F64, Round::Nearest, false) => {
            lanes!(f64, |a, b, c| double(a.mul_add(b, c), [a, if b.is_nan() { b } else { c }]))
        }
        (Type::F64, Round::Zero, false) => lanes!(f64, |a, b, c| directed_fma_double(a, b, c, Round::Zero)),
        (Type::F64, Round::Down, false) => lanes!(f64, |a, b, c| directed_fma_double(a, b, c, Round::Down)),
        (Type::F64, Round::Up, false) => lanes!(f64, |a, b, c| directed_fma_double(a, b, c, Round::Up)),
        (Type::F16, Round::Nearest, false) => lanes!(Half, |a, b, c| a.fma(b, c)),
        (Type::Bf16, Round::Nearest, false) => lanes!(Brain, |a, b, c| a.fma(b, c)),
        (Type::F16, Round::Nearest, true) => lanes!(Half, |a, b, c| relu_of(a.fma(b, c))),
        (Type::Bf16, Round::Nearest, true) => lanes!(Brain, |a, b, c| relu_of(a.fma(b, c))),
        _ => return None,
    })
}

fn relu_of<T: Narrow>(value: T) -> T {
    if value.wide() < 0.0 { T::of(0) } else { value }
}

/// A sum of doubles and of products of two, exact: an integer of 4,608 bits in two's complement, in units of 2^-2300.
struct Exact([u64; 72]);

impl Exact {
    const UNIT: i32 = 2_300;

    /// Sign, mantissa and exponent of a finite double.
    fn parts(value: f64) -> (bool, u64, i32) {
        let bits = value.to_bits();
        let (field, fraction) = ((bits >> 52 & 0x7ff) as i32, bits & ((1 << 52) - 1));
        let (mantissa, exponent) = if field == 0 { (fraction, -1_074) } else { (fraction | 1 << 52, field - 1_075) };
        (value.is_sign_negative(), mantissa, exponent)
    }

    fn add(&mut self, negative: bool, mantissa: u128, exponent: i32) {
        let at = (exponent + Self::UNIT) as usize;
        let (word, shift) = (at / 64, at % 64);
        let (low, high) = (u128::from(mantissa as u64) << shift, (mantissa >> 64) << shift);
        let given = [low as u64, (low >> 64) as u64 | high as u64, (high >> 64) as u64];
        let mut carry = false;
        for (index, place) in self.0[word..].iter_mut().enumerate() {
            let term = given.get(index).copied().unwrap_or(0);
            let step = if negative { u64::overflowing_sub } else { u64::overflowing_add };
            let (first, over) = step(*place, term);
            let (second, again) = step(first, u64::from(carry));
            (*place, carry) = (second, over || again);
        }
    }

    /// How `a * b + c` compares with `rounded`, all finite.
    fn compare(a: f64, b: f64, c: f64, rounded: f64) -> std::cmp::Ordering {
        let mut sum = Self([0; 72]);
        let ((a_negative, a, a_exponent), (b_negative, b, b_exponent)) = (Self::parts(a), Self::parts(b));
        sum.add(a_negative != b_negative, u128::from(a) * u128::from(b), a_exponent + b_exponent);
        let (negative, mantissa, exponent) = Self::parts(c);
        sum.add(negative, u128::from(mantissa), exponent);
        let (negative, mantissa, exponent) = Self::parts(rounded);
        sum.add(!negative, u128::from(mantissa), exponent);
        if sum.0.iter().all(|word| *word == 0) {
            std::cmp::Ordering::Equal
        } else if sum.0[71] >> 63 == 1 {
            std::cmp::Ordering::Less
        } else {
            std::cmp::Ordering::Greater
        }
    }
}

/// `fma` of doubles, rounded towards zero, down or up: the nearest one, or its neighbour where that lies on the wrong side.
fn directed_fma_double(a: f64, b: f64, c: f64, round: Round) -> f64 {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let nearest = a.mul_add(b, c);
    if ![a, b, c].into_iter().all(f64::is_finite) {
        return double(nearest, [a, if b.is_nan() { b } else { c }]);
    }
    // Beyond the greatest number the exact value lies between that and the infinity.
    let exact = match nearest {
        f64::INFINITY => Less,
        f64::NEG_INFINITY => Greater,
        nearest => Exact::compare(a, b, c, nearest),
    };
    let opposed = (a.is_sign_negative() != b.is_sign_negative()) != c.is_sign_negative();
    match (round, exact) {
        (Round::Down, Equal) if nearest == 0.0 && opposed => -0.0,
        (Round::Up, Greater) => nearest.next_up(),
        (Round::Down, Less) => nearest.next_down(),
        (Round::Zero, Greater) if nearest < 0.0 => nearest.next_up(),
        (Round::Zero, Less) if nearest > 0.0 => nearest.next_down(),
        _ => nearest,
    }
}

fn directed_fma(a: f32, b: f32, c: f32, round: Round) -> f32 {
    to_single(Rounded::sum(f64::from(a) * f64::from(b), f64::from(c)).to_odd(), round)
}

/// `neg`, `abs`, `rcp`, `sqrt`, `rsqrt`, `ex2`, `lg2`, `sin`, `cos`, `tanh`; the approximations are computed well.
pub(crate) fn unary(name: &str, kind: Type, round: Round) -> Option<Unary> {
    Some(match (kind, name) {
        (Type::F32, "neg") => lanes!(f32, |a| -a),
        (Type::F32, "abs") => lanes!(f32, |a| a.abs()),
        (Type::F32, "rcp") => match round {
            Round::Nearest => lanes!(f32, |a| single(1.0 / a)),
            Round::Zero => lanes!(f32, |a| to_single(Rounded::quotient(1.0, f64::from(a)).to_odd(), Round::Zero)),
            Round::Down => lanes!(f32, |a| to_single(Rounded::quotient(1.0, f64::from(a)).to_odd(), Round::Down)),
            Round::Up => lanes!(f32, |a| to_single(Rounded::quotient(1.0, f64::from(a)).to_odd(), Round::Up)),
        },
        (Type::F32, "sqrt") => match round {
            Round::Nearest => lanes!(f32, |a| single(a.sqrt())),
            Round::Zero => lanes!(f32, |a| to_single(Rounded::root(f64::from(a)).to_odd(), Round::Zero)),
            Round::Down => lanes!(f32, |a| to_single(Rounded::root(f64::from(a)).to_odd(), Round::Down)),
            Round::Up => lanes!(f32, |a| to_single(Rounded::root(f64::from(a)).to_odd(), Round::Up)),
        },
        (Type::F32, "rsqrt") => lanes!(f32, |a| single((1.0 / f64::from(a).sqrt()) as f32)),
        (Type::F32, "ex2") => lanes!(f32, |a| single(f64::from(a).exp2() as f32)),
        (Type::F32, "lg2") => lanes!(f32, |a| single(f64::from(a).log2() as f32)),
        (Type::F32, "sin") => lanes!(f32, |a| single(f64::from(a).sin() as f32)),
        (Type::F32, "cos") => lanes!(f32, |a| single(f64::from(a).cos() as f32)),
        (Type::F32, "tanh") => lanes!(f32, |a| single(f64::from(a).tanh() as f32)),
        (Type::F64, "neg") => lanes!(f64, |a| -a),
        (Type::F64, "abs") => lanes!(f64, |a| a.abs()),
        (Type::F64, "rcp") => match round {
            Round::Nearest => lanes!(f64, |a| double(1.0 / a, [a, a])),
            Round::Zero => lanes!(f64, |a| double(Rounded::quotient(1.0, a).directed(Round::Zero), [a, a])),
            Round::Down => lanes!(f64, |a| double(Rounded::quotient(1.0, a).directed(Round::Down), [a, a])),
            Round::Up => lanes!(f64, |a| double(Rounded::quotient(1.0, a).directed(Round::Up), [a, a])),
        },
        (Type::F64, "sqrt") => match round {
            Round::Nearest => lanes!(f64, |a| double(a.sqrt(), [a, a])),
            Round::Zero => lanes!(f64, |a| double(Rounded::root(a).directed(Round::Zero), [a, a])),
            Round::Down => lanes!(f64, |a| double(Rounded::root(a).directed(Round::Down), [a, a])),
            Round::Up => lanes!(f64, |a| double(Rounded::root(a).directed(Round::Up), [a, a])),
        },
        (Type::F64, "rsqrt") => lanes!(f64, |a| double(1.0 / a.sqrt(), [a, a])),
        (Type::F16 | Type::Bf16, "neg") => lanes!(u16, |a| a ^ 0x8000),
        (Type::F16 | Type::Bf16, "abs") => lanes!(u16, |a| a & 0x7fff),
        (Type::F16, "ex2") => lanes!(Half, |a| Half::round(f64::from(a.wide()).exp2() as f32)),
        (Type::F16, "tanh") => lanes!(Half, |a| Half::round(f64::from(a.wide()).tanh() as f32)),
        (Type::Bf16, "ex2") => lanes!(Brain, |a| Brain::round(f64::from(a.wide()).exp2() as f32)),
        (Type::Bf16, "tanh") => lanes!(Brain, |a| Brain::round(f64::from(a.wide()).tanh() as f32)),
        _ => return None,
    })
}

/// Subnormal singles become zeros of their sign.
pub(crate) fn flush(row: &mut super::Row) {
    for lane in row {
        if f32::get(*lane).is_subnormal() {
            *lane &= 0x8000_0000;
        }
    }
}

/// `.sat`: clamped to 0..1, NaN to 0.
pub(crate) fn saturate(kind: Type, row: &mut super::Row) {
    for lane in row {
        *lane = match kind {
            Type::F64 => unit(f64::get(*lane)).put(),
            Type::F16 => Half::narrow(unit(f64::from(half_to_f32(*lane as u16)))).put(),
            _ => (unit(f64::from(f32::get(*lane))) as f32).put(),
        };
    }
}

fn unit(value: f64) -> f64 {
    // Adding zero makes plus zero of minus zero.
    if value.is_nan() { 0.0 } else { value.clamp(0.0, 1.0) + 0.0 }
}

/// Comparisons; those that end in `u` are true for NaN.
pub(crate) fn compare(name: &str, kind: Type) -> Option<Test> {
    use std::cmp::Ordering::{Equal, Greater, Less};
    macro_rules! cases {
        ($lane:ty, |$a:ident, $b:ident| $order:expr) => {
            match name {
                "eq" => test!($lane, |$a, $b| matches!($order, Some(Equal))),
                "ne" => test!($lane, |$a, $b| matches!($order, Some(Less | Greater))),
                "lt" => test!($lane, |$a, $b| matches!($order, Some(Less))),
                "le" => test!($lane, |$a, $b| matches!($order, Some(Less | Equal))),
                "gt" => test!($lane, |$a, $b| matches!($order, Some(Greater))),
                "ge" => test!($lane, |$a, $b| matches!($order, Some(Greater | Equal))),
                "equ" => test!($lane, |$a, $b| matches!($order, None | Some(Equal))),
                "neu" => test!($lane, |$a, $b| matches!($order, None | Some(Less | Greater))),
                "ltu" => test!($lane, |$a, $b| matches!($order, None | Some(Less))),
                "leu" => test!($lane, |$a, $b| matches!($order, None | Some(Less | Equal))),
                "gtu" => test!($lane, |$a, $b| matches!($order, None | Some(Greater))),
                "geu" => test!($lane, |$a, $b| matches!($order, None | Some(Greater | Equal))),
                "num" => test!($lane, |$a, $b| $order.is_some()),
                "nan" => test!($lane, |$a, $b| $order.is_none()),
                _ => return None,
            }
        };
    }
    Some(match kind {
        Type::F32 => cases!(f32, |a, b| a.partial_cmp(&b)),
        Type::F64 => cases!(f64, |a, b| a.partial_cmp(&b)),
        Type::F16 => cases!(Half, |a, b| a.wide().partial_cmp(&b.wide())),
        Type::Bf16 => cases!(Brain, |a, b| a.wide().partial_cmp(&b.wide())),
        _ => return None,
    })
}

/// `testp`; the second row is not looked at.
pub(crate) fn property(name: &str, kind: Type) -> Option<Test> {
    macro_rules! cases {
        ($lane:ty) => {
            match name {
                "finite" => test!($lane, |a, _b| a.is_finite()),
                "infinite" => test!($lane, |a, _b| a.is_infinite()),
                "number" => test!($lane, |a, _b| !a.is_nan()),
                "notanumber" => test!($lane, |a, _b| a.is_nan()),
                "normal" => test!($lane, |a, _b| a.is_normal()),
                "subnormal" => test!($lane, |a, _b| a.is_subnormal()),
                _ => return None,
            }
        };
    }
    Some(match kind {
        Type::F32 => cases!(f32),
        Type::F64 => cases!(f64),
        _ => return None,
    })
}
