//! Conversions of the small floats over all their values, against tables that are made here from the formats' definitions.

use crate::driver::{Driver, Gpu, Module, Shape, Word};

const CONVERT: &[u8] = include_bytes!("../samples/compiled/convert.ptx.z");

/// A float of sign, exponent and mantissa.
#[derive(Clone, Copy, Debug)]
struct Format {
    name: &'static str,
    exponent_bits: u32,
    mantissa_bits: u32,
    /// IEEE: the greatest exponent is infinity and NaN. Else only the greatest pattern is NaN, and nothing is infinite.
    has_infinity: bool,
    /// Beyond the range: the greatest finite value, not infinity.
    saturates: bool,
}

const F16: Format = Format { name: "f16", exponent_bits: 5, mantissa_bits: 10, has_infinity: true, saturates: false };
const BF16: Format = Format { name: "bf16", exponent_bits: 8, mantissa_bits: 7, has_infinity: true, saturates: false };
const E4M3: Format = Format { name: "e4m3", exponent_bits: 4, mantissa_bits: 3, has_infinity: false, saturates: true };
const E5M2: Format = Format { name: "e5m2", exponent_bits: 5, mantissa_bits: 2, has_infinity: true, saturates: true };

impl Format {
    fn bits(self) -> u32 {
        1 + self.exponent_bits + self.mantissa_bits
    }

    fn sign(self) -> u32 {
        1 << (self.bits() - 1)
    }

    /// The greatest pattern that is a finite number.
    fn greatest(self) -> u32 {
        let infinity = ((1 << self.exponent_bits) - 1) << self.mantissa_bits;
        if self.has_infinity { infinity - 1 } else { self.sign() - 2 }
    }

    /// The value of a pattern, exactly: every one of these formats fits into f32, and this is computed in f64.
    fn value(self, pattern: u32) -> f64 {
        let magnitude = pattern & (self.sign() - 1);
        let (exponent, mantissa) = (magnitude >> self.mantissa_bits, magnitude & ((1 << self.mantissa_bits) - 1));
        let bias = (1 << (self.exponent_bits - 1)) - 1;
        let value = match magnitude {
            magnitude if magnitude == self.greatest() + 1 && self.has_infinity => f64::INFINITY,
            magnitude if magnitude > self.greatest() => f64::NAN,
            _ if exponent == 0 => f64::from(mantissa) * power_of_two(1 - bias - self.mantissa_bits.cast_signed()),
            _ => {
                let significand = f64::from((1 << self.mantissa_bits) | mantissa);
                significand * power_of_two(exponent.cast_signed() - bias - self.mantissa_bits.cast_signed())
            }
        };
        if pattern & self.sign() == 0 { value } else { -value }
    }

    /// The pattern nearest to a value, ties to even; `None`: any NaN.
    fn pattern(self, value: f32) -> Option<u32> {
        if value.is_nan() {
            return None;
        }
        let magnitude = f64::from(value.abs());
        let sign = if value.is_sign_negative() { self.sign() } else { 0 };
        // The last pattern that is not above the value: patterns are ordered as their values are.
        let (mut low, mut high) = (0, self.greatest() + 1);
        while high - low > 1 {
            let middle = low.midpoint(high);
            if self.value(middle) <= magnitude { low = middle } else { high = middle }
        }
        Some(sign | self.rounded(low, magnitude))
    }

    /// `low` or the next pattern, whichever is nearer.
    fn rounded(self, low: u32, magnitude: f64) -> u32 {
        // One step beyond the greatest, where infinity would begin if the format went on.
        let next =
            if low == self.greatest() { 2.0 * self.value(low) - self.value(low - 1) } else { self.value(low + 1) };
        // Both lie in f32's range with few digits, so that this sum is exact.
        let middle = f64::midpoint(self.value(low), next);
        let up = magnitude > middle || (magnitude == middle && low & 1 == 1);
        let nearest = if up { low + 1 } else { low };
        if self.saturates { nearest.min(self.greatest()) } else { nearest }
    }
}

fn power_of_two(exponent: i32) -> f64 {
    2.0_f64.powi(exponent)
}

pub(crate) fn convert(driver: &Driver) -> Result<(), String> {
    let gpu = driver.gpu(0)?;
    let module = gpu.module(CONVERT)?;
    for format in [F16, BF16] {
        let patterns: Vec<u16> = (0..=u16::MAX).collect();
        decoded(&gpu, &module, format, &patterns)?;
        encoded::<u16>(&gpu, &module, format, &values_around(format, 1))?;
    }
    for format in [E4M3, E5M2] {
        let patterns: Vec<u8> = (0..=u8::MAX).collect();
        decoded(&gpu, &module, format, &patterns)?;
        let mut values = values_around(format, 1);
        values.extend(values_around(F16, 7));
        encoded::<u8>(&gpu, &module, format, &values)?;
    }
    Ok(())
}

/// Each finite value of a format, the middle to the next one, what lies just below and above that, with both signs; every
/// `step`-th of them; and specials.
fn values_around(format: Format, step: usize) -> Vec<f32> {
    let mut values = vec![0.0, f32::INFINITY, f32::NAN, f32::MAX, f32::MIN_POSITIVE, f32::from_bits(1)];
    for pattern in (0..=format.greatest()).step_by(step) {
        let (this, next) = (format.value(pattern), format.value((pattern + 1).min(format.greatest())));
        let middle = narrow(f64::midpoint(this, next));
        values.extend([narrow(this), middle, middle.next_down().max(0.0), middle.next_up()]);
    }
    let negative: Vec<f32> = values.iter().map(|value| -value).collect();
    values.extend(negative);
    values
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "values and middles of these formats are f32, but for the last of bf16, which rounds"
)]
fn narrow(value: f64) -> f32 {
    value as f32
}

fn shape(count: usize) -> Shape {
    Shape::new(u32::try_from(count.div_ceil(256)).unwrap_or(u32::MAX), 256)
}

fn count_of(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

fn decoded<T: Word + Into<u32>>(
    gpu: &Gpu<'_>,
    module: &Module<'_>,
    format: Format,
    patterns: &[T],
) -> Result<(), String> {
    let source = gpu.holding(patterns)?;
    let target = gpu.zeroed(patterns.len() * 4)?;
    let function = module.function(&format!("{}_to_f32", format.name))?;
    function.launch(None, shape(patterns.len()), &[source.address, target.address, count_of(patterns.len())])?;
    for (pattern, found) in patterns.iter().zip(target.read::<f32>()?) {
        let pattern: u32 = (*pattern).into();
        let expected = format.value(pattern);
        // Which NaN it is PTX leaves open.
        let right = if expected.is_nan() { found.is_nan() } else { f64::from(found).to_bits() == expected.to_bits() };
        if !right {
            return Err(format!("{} {pattern:#x} is {found:?}, not {expected:?}", format.name));
        }
    }
    println!("{} to f32: right", format.name);
    Ok(())
}

fn encoded<T: Word + Into<u32>>(
    gpu: &Gpu<'_>,
    module: &Module<'_>,
    format: Format,
    values: &[f32],
) -> Result<(), String> {
    let source = gpu.holding(values)?;
    let target = gpu.zeroed(values.len() * size_of::<T>())?;
    let function = module.function(&format!("f32_to_{}", format.name))?;
    function.launch(None, shape(values.len()), &[source.address, target.address, count_of(values.len())])?;
    let mut nan = None;
    for (value, found) in values.iter().zip(target.read::<T>()?) {
        let found: u32 = found.into();
        let right = match format.pattern(*value) {
            Some(expected) => found == expected,
            None => {
                nan = nan.or(Some(found));
                format.value(found).is_nan()
            }
        };
        if !right {
            return Err(format!("{value:?} becomes {} {found:#x}, not {:#x?}", format.name, format.pattern(*value)));
        }
    }
    println!("f32 to {}: right, {} values, NaN {:#x}", format.name, values.len(), nan.unwrap_or(0));
    Ok(())
}
