//! Element types: what a buffer holds.

use std::fmt;

pub use half::{bf16, f16};

use crate::types::minifloat;

/// The type of a buffer's elements, for callers that know it only at run time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum DataType {
    /// 8-bit signed integer.
    I8 = 0,
    /// 8-bit unsigned integer.
    U8 = 1,
    /// 32-bit signed integer.
    I32 = 2,
    /// 32-bit unsigned integer.
    U32 = 3,
    /// 64-bit signed integer.
    I64 = 4,
    /// 64-bit unsigned integer.
    U64 = 5,
    /// IEEE half precision.
    F16 = 6,
    /// IEEE single precision.
    F32 = 7,
    /// IEEE double precision.
    F64 = 8,
    /// bfloat16.
    BF16 = 9,
    /// 8-bit float, 4 bits of exponent, 3 of mantissa, no infinity (OCP E4M3).
    F8E4M3 = 10,
    /// 8-bit float, 5 bits of exponent, 2 of mantissa (OCP E5M2).
    F8E5M2 = 11,
}

impl DataType {
    /// All of them, in the order of NCCL's numbers.
    pub const ALL: &'static [DataType] = &[
        DataType::I8,
        DataType::U8,
        DataType::I32,
        DataType::U32,
        DataType::I64,
        DataType::U64,
        DataType::F16,
        DataType::F32,
        DataType::F64,
        DataType::BF16,
        DataType::F8E4M3,
        DataType::F8E5M2,
    ];

    /// Bytes of one element.
    pub const fn size(self) -> u32 {
        match self {
            DataType::I8 | DataType::U8 | DataType::F8E4M3 | DataType::F8E5M2 => 1,
            DataType::F16 | DataType::BF16 => 2,
            DataType::I32 | DataType::U32 | DataType::F32 => 4,
            DataType::I64 | DataType::U64 | DataType::F64 => 8,
        }
    }

    /// Its name, as nccl-tests spells it.
    pub const fn name(self) -> &'static str {
        match self {
            DataType::I8 => "int8",
            DataType::U8 => "uint8",
            DataType::I32 => "int32",
            DataType::U32 => "uint32",
            DataType::I64 => "int64",
            DataType::U64 => "uint64",
            DataType::F16 => "half",
            DataType::F32 => "float",
            DataType::F64 => "double",
            DataType::BF16 => "bfloat16",
            DataType::F8E4M3 => "f8e4m3",
            DataType::F8E5M2 => "f8e5m2",
        }
    }

    /// The type with this name.
    pub fn from_name(name: &str) -> Option<DataType> {
        DataType::ALL.iter().copied().find(|known| known.name() == name)
    }

    /// Its number on the wire, which is NCCL's.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The type with this number.
    pub fn from_code(code: u8) -> Option<DataType> {
        DataType::ALL.get(usize::from(code)).copied()
    }

    /// Whether it is a float of any width.
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            DataType::F16 | DataType::F32 | DataType::F64 | DataType::BF16 | DataType::F8E4M3 | DataType::F8E5M2
        )
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A Rust type that buffers may hold. Sealed: plain data made of values of a known [`DataType`], any bit pattern valid.
///
/// Numbers are elements, and arrays of elements: `[f32; 3]` travels as 3 floats and is reduced as 3 floats, and the
/// other ranks may as well pass three times as many `f32`. [`crate::types::bytes_of`] makes bytes of a buffer of plain
/// structs.
///
/// `bool` and `char` are not elements. What arrives in a buffer is whatever the peer sent, and in a registered
/// [`crate::Buffer`] the peers write themselves, so no check by this rank could keep other values out, and a `bool`
/// that is neither 0 nor 1 is undefined behaviour. Pass the bytes, and check what arrived with
/// [`crate::types::values_of`], which has an example.
///
/// ```compile_fail,E0277
/// fn broadcast(comm: &rsccl::Communicator, flags: &mut [bool]) -> rsccl::Result<()> {
///     comm.broadcast(flags, 0) // the trait `Element` is not implemented for `bool`
/// }
/// ```
///
/// # Examples
/// ```
/// use rsccl::ReduceOp;
///
/// rsccl::local::run(2, |comm| {
///     let mut forces = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0f64]];
///     comm.all_reduce_in_place(&mut forces, ReduceOp::Sum)?;
///     assert_eq!(forces, [[2.0, 4.0, 6.0], [8.0, 10.0, 12.0]]);
///     let mut lengths = vec![0usize; 2];
///     comm.all_gather(&[forces.len() + comm.rank() as usize], &mut lengths)?;
///     assert_eq!(lengths, [2, 3]);
///     Ok(())
/// })?;
/// # Ok::<(), rsccl::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a number that rsccl knows how to move",
    label = "not an `Element`",
    note = "elements are i8 to i64, u8 to u64, isize, usize, f16, bf16, f32, f64, the two f8 types, and arrays of them",
    note = "a plain struct, or an integer of 16 bits, travels as bytes: `rsccl::types::bytes_of`, with `values_of` at the other end",
    note = "a `bool` travels as `u8`: `Max` is or, `Min` is and"
)]
pub trait Element: Copy + Send + Sync + fmt::Debug + PartialEq + 'static + sealed::Sealed {
    /// The run-time name of the values' type.
    const DATA_TYPE: DataType;
    /// Values of [`Element::DATA_TYPE`] in one element: 1, or an array's.
    const VALUES: usize = 1;
}

mod sealed {
    pub trait Sealed {}
}

/// 8-bit float, 4 bits of exponent, 3 of mantissa, no infinity (OCP E4M3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct F8E4M3(
    /// The bits.
    pub u8,
);

impl F8E4M3 {
    /// The greatest number, 448.
    pub const MAX: F8E4M3 = F8E4M3(0x7e);
    /// The NaN that conversions and reductions give.
    pub const NAN: F8E4M3 = F8E4M3(0x7f);

    /// The nearest to `value`, ties to even. What is too large, an infinity included, becomes ±[`F8E4M3::MAX`], as
    /// CUDA's `__NV_SATFINITE` conversions have it; every NaN becomes [`F8E4M3::NAN`].
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the format has 8 bits")]
    pub fn from_f32(value: f32) -> F8E4M3 {
        F8E4M3(minifloat::encode::<minifloat::E4M3>(value) as u8)
    }

    /// Its value, exact.
    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        minifloat::decode::<minifloat::E4M3>(u32::from(self.0))
    }
}

impl From<F8E4M3> for f32 {
    fn from(value: F8E4M3) -> f32 {
        value.to_f32()
    }
}

/// 8-bit float, 5 bits of exponent, 2 of mantissa (OCP E5M2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct F8E5M2(
    /// The bits.
    pub u8,
);

impl F8E5M2 {
    /// The greatest number, 57344.
    pub const MAX: F8E5M2 = F8E5M2(0x7b);
    /// The NaN that conversions and reductions give.
    pub const NAN: F8E5M2 = F8E5M2(0x7e);

    /// The nearest to `value`, ties to even. What is too large, an infinity included, becomes ±[`F8E5M2::MAX`], as
    /// CUDA's `__NV_SATFINITE` conversions have it; every NaN becomes [`F8E5M2::NAN`].
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the format has 8 bits")]
    pub fn from_f32(value: f32) -> F8E5M2 {
        F8E5M2(minifloat::encode::<minifloat::E5M2>(value) as u8)
    }

    /// Its value, exact.
    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        minifloat::decode::<minifloat::E5M2>(u32::from(self.0))
    }
}

impl From<F8E5M2> for f32 {
    fn from(value: F8E5M2) -> f32 {
        value.to_f32()
    }
}

macro_rules! element {
    ($($type:ty => $data_type:ident,)+) => {
        $(
            impl sealed::Sealed for $type {}
            impl Element for $type {
                const DATA_TYPE: DataType = DataType::$data_type;
            }
            const _: () = assert!(size_of::<$type>() == DataType::$data_type.size() as usize);
        )+
    };
}

element! {
    i8 => I8,
    u8 => U8,
    i32 => I32,
    u32 => U32,
    i64 => I64,
    u64 => U64,
    f16 => F16,
    f32 => F32,
    f64 => F64,
    bf16 => BF16,
    F8E4M3 => F8E4M3,
    F8E5M2 => F8E5M2,
}

#[cfg(target_pointer_width = "64")]
element! {
    isize => I64,
    usize => U64,
}

#[cfg(target_pointer_width = "32")]
element! {
    isize => I32,
    usize => U32,
}

impl<T: Element, const N: usize> sealed::Sealed for [T; N] {}
impl<T: Element, const N: usize> Element for [T; N] {
    const DATA_TYPE: DataType = T::DATA_TYPE;
    const VALUES: usize = N * T::VALUES;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes_lead_back() {
        for data_type in DataType::ALL {
            assert_eq!(DataType::from_name(data_type.name()), Some(*data_type));
            assert_eq!(DataType::from_code(data_type.code()), Some(*data_type));
        }
        assert_eq!(DataType::from_code(12), None);
    }
}
