//! Arithmetic on rows: one operation on the 32 lanes of a warp.
//!
//! A [`Row`] is a register of a warp: 64 bits for each lane, the bits above the register's own width zero. The functions
//! here map opcode and type to a plain function over whole rows, which the loader keeps in the instruction, so running an
//! instruction costs one indirect call for 32 lanes. They compute every lane, also those that are switched off: none of
//! them can fail.

#![expect(
    clippy::cast_possible_truncation,
    reason = "a row holds 64 bits a lane and every operation takes the low ones of its own width: that is what registers do"
)]

pub(crate) mod convert;
pub(crate) mod float;
pub(crate) mod formats;
pub(crate) mod integer;
pub(crate) mod packed;

/// A register of a warp.
pub(crate) type Row = [u64; 32];
/// An operation with one source.
pub(crate) type Unary = fn(&Row, &mut Row);
/// An operation with two sources.
pub(crate) type Binary = fn(&Row, &Row, &mut Row);
/// An operation with three sources.
pub(crate) type Ternary = fn(&Row, &Row, &Row, &mut Row);
/// A comparison: a bit for each lane.
pub(crate) type Test = fn(&Row, &Row) -> u32;

/// A value of a lane in a row.
pub(crate) trait Lane: Copy {
    /// The low bits of a lane as this type.
    fn get(bits: u64) -> Self;
    /// This value as a lane's bits.
    fn put(self) -> u64;
}

macro_rules! integer_lane {
    ($($kind:ty as $unsigned:ty),*) => {
        $(impl Lane for $kind {
            #[inline(always)]
            fn get(bits: u64) -> Self {
                bits as Self
            }
            #[inline(always)]
            fn put(self) -> u64 {
                u64::from(self as $unsigned)
            }
        })*
    };
}

integer_lane!(u8 as u8, u16 as u16, u32 as u32, u64 as u64, i8 as u8, i16 as u16, i32 as u32, i64 as u64);

impl Lane for f32 {
    #[inline(always)]
    fn get(bits: u64) -> Self {
        Self::from_bits(bits as u32)
    }
    #[inline(always)]
    fn put(self) -> u64 {
        u64::from(self.to_bits())
    }
}

impl Lane for f64 {
    #[inline(always)]
    fn get(bits: u64) -> Self {
        Self::from_bits(bits)
    }
    #[inline(always)]
    fn put(self) -> u64 {
        self.to_bits()
    }
}

/// A row operation from an expression over lanes; the sources' type is given, the result's follows.
macro_rules! lanes {
    ($kind:ty, |$a:ident| $result:expr) => {{
        fn run(x: &$crate::alu::Row, out: &mut $crate::alu::Row) {
            for (out, x) in out.iter_mut().zip(x) {
                let $a: $kind = $crate::alu::Lane::get(*x);
                *out = $crate::alu::Lane::put($result);
            }
        }
        run as $crate::alu::Unary
    }};
    ($kind:ty, |$a:ident, $b:ident| $result:expr) => {{
        fn run(x: &$crate::alu::Row, y: &$crate::alu::Row, out: &mut $crate::alu::Row) {
            for ((out, x), y) in out.iter_mut().zip(x).zip(y) {
                let $a: $kind = $crate::alu::Lane::get(*x);
                let $b: $kind = $crate::alu::Lane::get(*y);
                *out = $crate::alu::Lane::put($result);
            }
        }
        run as $crate::alu::Binary
    }};
    ($kind:ty, |$a:ident, $b:ident, $c:ident| $result:expr) => {{
        fn run(x: &$crate::alu::Row, y: &$crate::alu::Row, z: &$crate::alu::Row, out: &mut $crate::alu::Row) {
            for (((out, x), y), z) in out.iter_mut().zip(x).zip(y).zip(z) {
                let $a: $kind = $crate::alu::Lane::get(*x);
                let $b: $kind = $crate::alu::Lane::get(*y);
                let $c: $kind = $crate::alu::Lane::get(*z);
                *out = $crate::alu::Lane::put($result);
            }
        }
        run as $crate::alu::Ternary
    }};
}

/// The same for the types named, chosen by a [`Type`](crate::ptx::types::Type); None for any other.
macro_rules! by_type {
    ($kind:expr, [$($variant:ident: $lane:ty),* $(,)?], |$a:ident| $result:expr) => {
        match $kind {
            $($crate::ptx::types::Type::$variant => Some($crate::alu::lanes!($lane, |$a| $result)),)*
            _ => None,
        }
    };
    ($kind:expr, [$($variant:ident: $lane:ty),* $(,)?], |$a:ident, $b:ident| $result:expr) => {
        match $kind {
            $($crate::ptx::types::Type::$variant => Some($crate::alu::lanes!($lane, |$a, $b| $result)),)*
            _ => None,
        }
    };
    ($kind:expr, [$($variant:ident: $lane:ty),* $(,)?], |$a:ident, $b:ident, $c:ident| $result:expr) => {
        match $kind {
            $($crate::ptx::types::Type::$variant => Some($crate::alu::lanes!($lane, |$a, $b, $c| $result)),)*
            _ => None,
        }
    };
}

pub(crate) use by_type;
pub(crate) use lanes;

/// A comparison of rows from an expression over lanes.
macro_rules! test {
    ($kind:ty, |$a:ident, $b:ident| $result:expr) => {{
        fn run(x: &$crate::alu::Row, y: &$crate::alu::Row) -> u32 {
            let mut bits = 0;
            for (lane, (x, y)) in x.iter().zip(y).enumerate() {
                let $a: $kind = $crate::alu::Lane::get(*x);
                let $b: $kind = $crate::alu::Lane::get(*y);
                bits |= u32::from($result) << lane;
            }
            bits
        }
        run as $crate::alu::Test
    }};
}
pub(crate) use test;
