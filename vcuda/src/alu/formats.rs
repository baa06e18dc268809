//! Floating-point formats by integer arithmetic: every rounding is decided on the exact value's bits.

/// A binary format with one sign bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Format {
    pub(crate) exponent_bits: u32,
    pub(crate) mantissa_bits: u32,
    /// The largest finite value's bits.
    pub(crate) largest: u64,
    /// Infinity's bits; e4m3 has none and gives its NaN.
    pub(crate) infinity: u64,
    /// The NaN that NVIDIA's instructions give.
    pub(crate) nan: u64,
}

pub(crate) const HALF: Format =
    Format { exponent_bits: 5, mantissa_bits: 10, largest: 0x7bff, infinity: 0x7c00, nan: 0x7fff };
pub(crate) const BRAIN: Format =
    Format { exponent_bits: 8, mantissa_bits: 7, largest: 0x7f7f, infinity: 0x7f80, nan: 0x7fff };
pub(crate) const SINGLE: Format =
    Format { exponent_bits: 8, mantissa_bits: 23, largest: 0x7f7f_ffff, infinity: 0x7f80_0000, nan: 0x7fff_ffff };
pub(crate) const DOUBLE: Format = Format {
    exponent_bits: 11,
    mantissa_bits: 52,
    largest: 0x7fef_ffff_ffff_ffff,
    infinity: 0x7ff0_0000_0000_0000,
    nan: 0xfff8_0000_0000_0000,
};
pub(crate) const E4M3: Format = Format { exponent_bits: 4, mantissa_bits: 3, largest: 0x7e, infinity: 0x7f, nan: 0x7f };
pub(crate) const E5M2: Format = Format { exponent_bits: 5, mantissa_bits: 2, largest: 0x7b, infinity: 0x7c, nan: 0x7f };

/// PTX's rounding modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    /// `.rn`: to nearest, ties to even.
    Nearest,
    /// `.rz`
    Zero,
    /// `.rm`
    Down,
    /// `.rp`
    Up,
}

impl Format {
    fn bias(self) -> i32 {
        (1 << (self.exponent_bits - 1)) - 1
    }

    fn sign(self) -> u64 {
        1 << (self.exponent_bits + self.mantissa_bits)
    }

    /// Rounds plus or minus `mantissa * 2^exponent` to this format; `saturate` gives the largest value for what is
    /// too large.
    pub(crate) fn pack(self, negative: bool, mantissa: u64, exponent: i32, round: Round, saturate: bool) -> u64 {
        let sign = if negative { self.sign() } else { 0 };
        if mantissa == 0 {
            return sign;
        }
        let fraction = self.mantissa_bits.cast_signed();
        let smallest = 1 - self.bias() - fraction;
        let highest = mantissa.ilog2().cast_signed();
        let quantum = (exponent + highest - fraction).max(smallest);
        let shift = quantum - exponent;
        let (mut significand, half) = match u32::try_from(shift) {
            Err(_) | Ok(0) => (mantissa << shift.unsigned_abs(), std::cmp::Ordering::Less),
            Ok(shift @ 1..64) => {
                let rest = mantissa & ((1 << shift) - 1);
                (mantissa >> shift, rest.cmp(&(1 << (shift - 1))))
            }
            Ok(64) => (0, mantissa.cmp(&(1 << 63))),
            Ok(_) => (0, std::cmp::Ordering::Less),
        };
        let exact = match u32::try_from(shift) {
            Err(_) | Ok(0) => true,
            Ok(shift @ 1..64) => mantissa & ((1 << shift) - 1) == 0,
            Ok(_) => false,
        };
        let away = match round {
            Round::Nearest => half.is_gt() || (half.is_eq() && significand & 1 == 1),
            Round::Zero => false,
            Round::Down => negative && !exact,
            Round::Up => !negative && !exact,
        };
        significand += u64::from(away);
        // Subnormals have the exponent field 0, and one that rounds up to a normal number carries into it by itself.
        let field = (quantum - smallest).cast_unsigned();
        let bits = (u64::from(field) << self.mantissa_bits) + significand;
        if bits <= self.largest {
            return sign | bits;
        }
        let to_largest = saturate
            || match round {
                Round::Nearest => false,
                Round::Zero => true,
                Round::Down => !negative,
                Round::Up => negative,
            };
        sign | if to_largest { self.largest } else { self.infinity }
    }

    /// The nearest value, or the one that `round` says, of this format to a double.
    pub(crate) fn rounded(self, value: f64, round: Round, saturate: bool) -> u64 {
        if value.is_nan() {
            return self.nan;
        }
        let sign = if value.is_sign_negative() { self.sign() } else { 0 };
        if value.is_infinite() {
            return sign | if saturate { self.largest } else { self.infinity };
        }
        let bits = value.to_bits();
        let fraction = bits & ((1 << 52) - 1);
        let field = (bits >> 52 & 0x7ff).cast_signed();
        let (mantissa, exponent) = if field == 0 { (fraction, -1074) } else { (fraction | 1 << 52, field - 1075) };
        let exponent = i32::try_from(exponent).expect("a double's exponent has 11 bits");
        self.pack(value.is_sign_negative(), mantissa, exponent, round, saturate)
    }

    /// The value of these bits, exactly.
    pub(crate) fn to_f64(self, bits: u64) -> f64 {
        let negative = bits & self.sign() != 0;
        let magnitude = bits & (self.sign() - 1);
        if magnitude > self.infinity || (magnitude == self.infinity && self.infinity == self.nan) {
            return f64::NAN;
        }
        let value = if magnitude == self.infinity {
            f64::INFINITY
        } else {
            let fraction = magnitude & ((1 << self.mantissa_bits) - 1);
            let field = (magnitude >> self.mantissa_bits) as i32;
            let smallest = 1 - self.bias() - self.mantissa_bits.cast_signed();
            let (mantissa, exponent) = if field == 0 {
                (fraction, smallest)
            } else {
                (fraction | 1 << self.mantissa_bits, smallest + field - 1)
            };
            f64::from_bits(DOUBLE.pack(false, mantissa, exponent, Round::Nearest, false))
        };
        if negative { -value } else { value }
    }
}

/// A half's value; exact.
#[inline]
pub(crate) fn half_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff);
    // As a single, with its exponent moved: subnormal halves are normal singles, so a multiplication by 2^112 does it.
    if magnitude >= 0x7c00 {
        let fraction = magnitude & 0x3ff;
        return f32::from_bits(sign | 0x7f80_0000 | fraction << 13);
    }
    let scaled = f32::from_bits(magnitude << 13) * f32::from_bits(0x7780_0000);
    f32::from_bits(scaled.to_bits() | sign)
}

/// The nearest half, ties to even.
#[inline]
pub(crate) fn half_from_f32(value: f32) -> u16 {
    HALF.rounded(f64::from(value), Round::Nearest, false) as u16
}

/// A bfloat16's value; exact.
#[inline]
pub(crate) fn brain_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The nearest bfloat16, ties to even.
#[inline]
pub(crate) fn brain_from_f32(value: f32) -> u16 {
    if value.is_nan() {
        return 0x7fff;
    }
    let bits = value.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// A rounded sum, product, quotient or root, and the sign of what the rounding left out (exact minus rounded).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rounded {
    pub(crate) value: f64,
    pub(crate) rest: f64,
}

impl Rounded {
    pub(crate) fn sum(a: f64, b: f64) -> Self {
        let value = a + b;
        let part = value - a;
        Self { value, rest: (a - (value - part)) + (b - part) }
    }

    pub(crate) fn product(a: f64, b: f64) -> Self {
        let value = a * b;
        Self { value, rest: a.mul_add(b, -value) }
    }

    pub(crate) fn quotient(a: f64, b: f64) -> Self {
        let value = a / b;
        let rest = (-value).mul_add(b, a);
        Self { value, rest: if b < 0.0 { -rest } else { rest } }
    }

    pub(crate) fn root(a: f64) -> Self {
        let value = a.sqrt();
        Self { value, rest: (-value).mul_add(value, a) }
    }

    /// Rounded to odd instead: a second rounding to a narrower format then gives what one rounding would have given.
    pub(crate) fn to_odd(self) -> f64 {
        let Self { value, rest } = self;
        if rest == 0.0 || !rest.is_finite() || !value.is_finite() {
            return value;
        }
        let toward_zero = if (rest < 0.0) == (value < 0.0) { value.to_bits() } else { value.to_bits() - 1 };
        f64::from_bits(toward_zero | 1)
    }

    /// Rounded the other way, where `round` wants it.
    pub(crate) fn directed(self, round: Round) -> f64 {
        let Self { value, rest } = self;
        if rest == 0.0 || rest.is_nan() || value.is_nan() {
            return value;
        }
        match round {
            Round::Nearest => value,
            Round::Up if rest > 0.0 => value.next_up(),
            Round::Down if rest < 0.0 => value.next_down(),
            Round::Zero if rest < 0.0 && value > 0.0 => value.next_down(),
            Round::Zero if rest > 0.0 && value < 0.0 => value.next_up(),
            Round::Up | Round::Down | Round::Zero => value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of a half or 8-bit float by its definition, apart from the code above.
    fn defined_value(format: Format, bits: u64) -> f64 {
        let fraction = bits & ((1 << format.mantissa_bits) - 1);
        let field = bits >> format.mantissa_bits & ((1 << format.exponent_bits) - 1);
        let scale = 2f64.powi(1 - format.bias() - format.mantissa_bits.cast_signed());
        let magnitude = match field {
            0 => fraction as f64 * scale,
            _ => (fraction | 1 << format.mantissa_bits) as f64 * scale * 2f64.powi(field as i32 - 1),
        };
        if bits & format.sign() == 0 { magnitude } else { -magnitude }
    }

    fn finite(format: Format) -> impl Iterator<Item = u64> {
        (0..=format.largest).flat_map(move |bits| [bits, bits | format.sign()])
    }

    #[test]
    fn every_value_of_every_small_format_is_read_and_written_exactly() {
        for format in [HALF, BRAIN, E4M3, E5M2] {
            for bits in finite(format) {
                let value = format.to_f64(bits);
                assert_eq!(value.to_bits(), defined_value(format, bits).to_bits(), "{format:?} {bits:#x}");
                for round in [Round::Nearest, Round::Zero, Round::Down, Round::Up] {
                    assert_eq!(format.rounded(value, round, false), bits, "{format:?} {bits:#x} {round:?}");
                }
            }
        }
    }

    #[test]
    fn what_lies_between_two_values_is_rounded_as_each_mode_says() {
        for format in [HALF, BRAIN, E4M3, E5M2] {
            for low in 0..format.largest {
                let (below, above) = (defined_value(format, low), defined_value(format, low + 1));
                let middle = below + (above - below) / 2.0;
                let even = low + (low & 1);
                let cases = [(middle.next_down(), low), (middle, even), (middle.next_up(), low + 1)];
                for (value, nearest) in cases {
                    let sign = format.sign();
                    assert_eq!(format.rounded(value, Round::Nearest, true), nearest, "{format:?} {value:e}");
                    assert_eq!(format.rounded(-value, Round::Nearest, true), nearest | sign, "{format:?} {value:e}");
                    assert_eq!(format.rounded(value, Round::Zero, true), low);
                    assert_eq!(format.rounded(value, Round::Up, true), low + 1);
                    assert_eq!(format.rounded(value, Round::Down, true), low);
                    assert_eq!(format.rounded(-value, Round::Up, true), low | sign);
                    assert_eq!(format.rounded(-value, Round::Down, true), (low + 1) | sign);
                }
            }
        }
    }

    #[test]
    fn too_large_values_and_nans_become_what_nvidia_says() {
        assert_eq!(
            [65_519.99, 65_520.0, f64::INFINITY].map(|value| HALF.rounded(value, Round::Nearest, false)),
            [0x7bff, 0x7c00, 0x7c00]
        );
        assert_eq!(HALF.rounded(1e30, Round::Zero, false), 0x7bff);
        assert_eq!([465.0, 1e9, f64::INFINITY].map(|value| E4M3.rounded(-value, Round::Nearest, true)), [0xfe; 3]);
        assert_eq!([61_440.0, f64::INFINITY].map(|value| E5M2.rounded(value, Round::Nearest, true)), [0x7b; 2]);
        assert_eq!(
            [HALF, BRAIN, E4M3, E5M2].map(|format| format.rounded(f64::NAN, Round::Nearest, true)),
            [0x7fff, 0x7fff, 0x7f, 0x7f]
        );
    }

    #[test]
    fn the_quick_conversions_agree_with_the_exact_ones() {
        for bits in 0..=u16::MAX {
            let (half, brain) = (half_to_f32(bits), brain_to_f32(bits));
            if !half.is_nan() {
                assert_eq!(f64::from(half).to_bits(), HALF.to_f64(u64::from(bits)).to_bits(), "{bits:#x}");
            }
            for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let value = f32::from_bits(u32::from(bits) << 16 | low);
                let want = BRAIN.rounded(f64::from(value), Round::Nearest, false);
                assert_eq!(u64::from(brain_from_f32(value)), want, "{value:e}");
            }
            assert_eq!(brain.is_nan(), BRAIN.to_f64(u64::from(bits)).is_nan());
        }
    }

    #[test]
    fn rounding_to_odd_first_gives_what_one_rounding_gives() {
        // 1 + 2^-11 is half-way between two halves; what is added is below a double's last bit.
        let tie = 1.0 + 2f64.powi(-11);
        for (rest, want) in [(-1e-30, 0x3c00), (0.0, 0x3c00), (1e-30, 0x3c01)] {
            assert_eq!(HALF.rounded(Rounded::sum(tie, rest).to_odd(), Round::Nearest, false), want);
        }
        assert_eq!(Rounded::quotient(1.0, 3.0).directed(Round::Up), (1.0f64 / 3.0).next_up());
        assert_eq!(Rounded::quotient(-1.0, 3.0).directed(Round::Up), -1.0 / 3.0);
        assert_eq!(Rounded::root(2.0).directed(Round::Down), 2f64.sqrt().next_down());
    }
}
