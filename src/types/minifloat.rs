//! Conversions between f32 and the floats of 8 and 16 bits, as branch-free arithmetic on bits.
//!
//! The code is such that a loop over it vectorises at any vector width, and no step meets a subnormal f32: so the
//! result does not depend on a flush-to-zero mode of the caller's thread. Every rounding is to nearest, ties to even.
//! Every NaN becomes the format's one canonical NaN, quiet and positive, so that results have the same bits on every
//! path.

/// A float narrower than f32, by its layout: one sign bit, then [`Format::EXPONENT`], then [`Format::MANTISSA`] bits.
pub(crate) trait Format {
    /// The number of exponent bits.
    const EXPONENT: u32;
    /// The number of mantissa bits.
    const MANTISSA: u32;
    /// The smallest magnitude that is not a number of the format: an infinity, or NaN if the format has no infinity.
    const SPECIAL: u32;
    /// The result for a magnitude that is too large: infinity, or the greatest number (saturating).
    const OVERFLOW: u32;
    /// The canonical NaN.
    const NAN: u32;

    /// The bit of the sign.
    const SIGN: u32 = 1 << (Self::EXPONENT + Self::MANTISSA);
    /// How many mantissa bits f32 has more than the format.
    const SHIFT: u32 = f32::MANTISSA_DIGITS - 1 - Self::MANTISSA;
    /// The difference of the exponents' biases, at the position of f32's exponent.
    const REBIAS: u32 = (127 - ((1 << (Self::EXPONENT - 1)) - 1)) << 23;
    /// The smallest normal number, as f32 bits.
    const LEAST_NORMAL: u32 = Self::REBIAS + (1 << 23);
    /// The value of a subnormal's lowest bit, as f32 bits.
    const LEAST: u32 = Self::LEAST_NORMAL - (Self::MANTISSA << 23);
    /// An f32 whose last bit has the value of [`Format::LEAST`]: adding it rounds there.
    const ANCHOR: u32 = Self::LEAST + (23 << 23);
}

/// IEEE half precision.
pub(crate) struct Half;

impl Format for Half {
    const EXPONENT: u32 = 5;
    const MANTISSA: u32 = 10;
    const SPECIAL: u32 = 0x7c00;
    const OVERFLOW: u32 = 0x7c00;
    const NAN: u32 = 0x7e00;
}

/// OCP E4M3: no infinity, one NaN for each sign. Values that are too large become 448, as with CUDA's `__NV_SATFINITE`.
pub(crate) struct E4M3;

impl Format for E4M3 {
    const EXPONENT: u32 = 4;
    const MANTISSA: u32 = 3;
    const SPECIAL: u32 = 0x7f;
    const OVERFLOW: u32 = 0x7e;
    const NAN: u32 = 0x7f;
}

/// OCP E5M2. Values that are too large, including infinities, become 57344, as with CUDA's `__NV_SATFINITE`.
pub(crate) struct E5M2;

impl Format for E5M2 {
    const EXPONENT: u32 = 5;
    const MANTISSA: u32 = 2;
    const SPECIAL: u32 = 0x7c;
    const OVERFLOW: u32 = 0x7b;
    const NAN: u32 = 0x7e;
}

/// The exact value of `code`, of which only the low bits of the format's width count.
#[inline(always)]
pub(crate) fn decode<F: Format>(code: u32) -> f32 {
    let sign = (code & F::SIGN) << (31 - F::EXPONENT - F::MANTISSA);
    let magnitude = code & (F::SIGN - 1);
    // Fits i32, which every vector level can convert to f32; not every level can convert u32.
    let subnormal = magnitude.cast_signed() as f32 * f32::from_bits(F::LEAST);
    let normal = f32::from_bits((magnitude << F::SHIFT) + F::REBIAS);
    let number = if magnitude < (1 << F::MANTISSA) { subnormal } else { normal };
    // Every special code except that of infinity is a NaN. E4M3 has no infinity: its OVERFLOW is below SPECIAL.
    let infinite = magnitude == F::SPECIAL && F::SPECIAL != F::NAN;
    let special = if infinite { f32::INFINITY } else { f32::NAN };
    let value = if magnitude >= F::SPECIAL { special } else { number };
    f32::from_bits(value.to_bits() | sign)
}

/// The code nearest to `value`, ties to even.
#[inline(always)]
pub(crate) fn encode<F: Format>(value: f32) -> u32 {
    let bits = value.to_bits();
    let sign = (bits >> (31 - F::EXPONENT - F::MANTISSA)) & F::SIGN;
    let magnitude = bits & 0x7fff_ffff;
    let half_less_one = (1 << (F::SHIFT - 1)) - 1;
    let odd = (magnitude >> F::SHIFT) & 1;
    // Wraps only for magnitudes whose result the next selections replace.
    let normal = (magnitude + half_less_one + odd).wrapping_sub(F::REBIAS) >> F::SHIFT;
    let anchored = f32::from_bits(magnitude) + f32::from_bits(F::ANCHOR);
    let subnormal = anchored.to_bits().wrapping_sub(F::ANCHOR);
    let number = if magnitude < F::LEAST_NORMAL { subnormal } else { normal };
    let bounded = if number >= F::SPECIAL { F::OVERFLOW } else { number };
    if magnitude > f32::INFINITY.to_bits() { F::NAN } else { bounded | sign }
}

/// The exact value of a bfloat16.
#[inline(always)]
pub(crate) fn decode_bf16(code: u16) -> f32 {
    f32::from_bits(u32::from(code) << 16)
}

/// The bfloat16 nearest to `value`, ties to even.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "shifted right by 16 first")]
pub(crate) fn encode_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    (if value.is_nan() { 0x7fc0 } else { rounded }) as u16
}

#[cfg(test)]
pub(crate) mod tests {
    use half::{bf16, f16};

    use super::*;

    #[test]
    fn every_half_leads_back() {
        for code in 0..=u16::MAX {
            let theirs = f16::from_bits(code).to_f32();
            let ours = decode::<Half>(u32::from(code));
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{code:#06x}");
            let back = if theirs.is_nan() { Half::NAN } else { u32::from(code) };
            assert_eq!(encode::<Half>(ours), back, "{code:#06x}");
        }
    }

    #[test]
    fn every_bf16_leads_back() {
        for code in 0..=u16::MAX {
            let theirs = bf16::from_bits(code).to_f32();
            let ours = decode_bf16(code);
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{code:#06x}");
            assert_eq!(encode_bf16(ours), if theirs.is_nan() { 0x7fc0 } else { code }, "{code:#06x}");
        }
    }

    /// Exact on every machine, which `powi` need not be.
    pub(crate) fn power_of_two(power: i32) -> f64 {
        f64::from_bits(u64::try_from(power + 1023).expect("a normal number") << 52)
    }

    /// The value by the format's definition, in f64, where everything is exact.
    fn by_definition(code: u32, exponent_bits: u32, mantissa_bits: u32) -> f64 {
        let sign = if code >> 7 == 1 { -1.0 } else { 1.0 };
        let exponent = (code & 0x7f) >> mantissa_bits;
        let fraction = f64::from(code & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
        let bias = (1 << (exponent_bits - 1)) - 1;
        let (lead, power) = if exponent == 0 { (0.0, 1 - bias) } else { (1.0, exponent.cast_signed() - bias) };
        sign * (lead + fraction) * power_of_two(power)
    }

    #[test]
    fn every_f8_has_its_defined_value_and_leads_back() {
        for code in 0..=255u32 {
            let value = decode::<E4M3>(code);
            if code & 0x7f == 0x7f {
                assert!(value.is_nan());
                assert_eq!(encode::<E4M3>(value), 0x7f);
            } else {
                assert_eq!(f64::from(value).to_bits(), by_definition(code, 4, 3).to_bits(), "{code:#04x}");
                assert_eq!(encode::<E4M3>(value), code);
            }
            let value = decode::<E5M2>(code);
            match code & 0x7f {
                0x7c => {
                    assert!(value.is_infinite() && value.is_sign_negative() == (code > 0x7f));
                    assert_eq!(encode::<E5M2>(value), (code & 0x80) | 0x7b);
                }
                0x7d.. => {
                    assert!(value.is_nan());
                    assert_eq!(encode::<E5M2>(value), 0x7e);
                }
                _ => {
                    assert_eq!(f64::from(value).to_bits(), by_definition(code, 5, 2).to_bits(), "{code:#04x}");
                    assert_eq!(encode::<E5M2>(value), code);
                }
            }
        }
    }

    /// All codes of one sign are in order, so rounding can be checked between each code and the next.
    fn rounds_to_nearest_even<F: Format>(greatest: u32) {
        for code in 0..greatest {
            let (low, high) = (f64::from(decode::<F>(code)), f64::from(decode::<F>(code + 1)));
            #[expect(clippy::cast_possible_truncation, reason = "the middle of two narrow floats is an f32")]
            let middle = ((low + high) / 2.0) as f32;
            let even = code + (code & 1);
            assert_eq!(encode::<F>(middle), even, "between {code:#x} and the next");
            assert_eq!(encode::<F>(middle.next_down()), code);
            assert_eq!(encode::<F>(middle.next_up()), code + 1);
            assert_eq!(encode::<F>(-middle), even | F::SIGN);
        }
    }

    #[test]
    fn rounding_is_to_nearest_ties_to_even() {
        rounds_to_nearest_even::<E4M3>(0x7e);
        rounds_to_nearest_even::<E5M2>(0x7b);
        rounds_to_nearest_even::<Half>(0x7bff);
    }

    #[test]
    fn what_is_too_large_saturates_in_8_bits_and_is_infinite_in_16() {
        for large in [449.0, 464.0, 480.0, 1e10, f32::MAX, f32::INFINITY] {
            assert_eq!((encode::<E4M3>(large), encode::<E4M3>(-large)), (0x7e, 0xfe), "{large}");
        }
        for large in [57345.0, 61440.0, 65536.0, f32::MAX, f32::INFINITY] {
            assert_eq!((encode::<E5M2>(large), encode::<E5M2>(-large)), (0x7b, 0xfb), "{large}");
        }
        assert_eq!(
            (encode::<Half>(65519.0), encode::<Half>(65520.0), encode::<Half>(-f32::MAX)),
            (0x7bff, 0x7c00, 0xfc00)
        );
        assert_eq!((encode_bf16(f32::MAX), encode_bf16(-f32::INFINITY)), (0x7f80, 0xff80));
    }

    #[test]
    fn spread_over_all_f32_it_agrees_with_the_half_crate() {
        for step in 0..=(u32::MAX / 9973) {
            let value = f32::from_bits(step * 9973);
            if !value.is_nan() {
                assert_eq!(encode::<Half>(value), u32::from(f16::from_f32(value).to_bits()), "{value:e}");
                assert_eq!(encode_bf16(value), bf16::from_f32(value).to_bits(), "{value:e}");
            }
        }
    }
}
