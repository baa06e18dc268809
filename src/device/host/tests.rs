//! Tests every type × operator × sources × targets × size × alignment × level against an independent scalar reference.

#![expect(clippy::wildcard_enum_match_arm, reason = "the reference names the cases that differ only")]
#![expect(
    clippy::cast_possible_truncation,
    reason = "the reference cuts bits to the type's width, which is what it tests"
)]

use std::sync::LazyLock;

use crate::device::host::SourceRange;
use crate::device::host::lane::Divisor;
use crate::device::host::machine::Level;
use crate::device::{Average, Kernel, Pass, Store};
use crate::error::Kind;
use crate::types::minifloat::tests::power_of_two;
use crate::types::{DataType, ReduceOp, Scalar, bf16, f16};

/// The bytes before and after each target that must not change.
const MARGIN: usize = 128;
/// What they hold, for as many as there may be: an alignment and a shift more.
const OUTSIDE: [u8; 512] = [0xa5; 512];

/// Random bits from a seed (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// The bits of one element, in the low end.
type Bits = u64;

fn mask(data_type: DataType) -> u64 {
    u64::MAX >> (64 - 8 * data_type.size())
}

/// Values at the edges of the type.
fn edges(data_type: DataType) -> Vec<Bits> {
    let sign = 1u64 << (8 * data_type.size() - 1);
    let positive = match data_type {
        DataType::F16 => vec![0, 1, 0x3ff, 0x400, 0x3c00, 0x7bff, 0x7c00, 0x7c01, 0x7e00],
        DataType::BF16 => vec![0, 1, 0x7f, 0x80, 0x3f80, 0x7f7f, 0x7f80, 0x7f81, 0x7fc0],
        DataType::F32 => vec![0, 1, 0x7f_ffff, 0x80_0000, 0x3f80_0000, 0x7f7f_ffff, 0x7f80_0000, 0x7f80_0001],
        DataType::F64 => {
            vec![0, 1, 0x3ff0_0000_0000_0000, 0x7fef_ffff_ffff_ffff, 0x7ff0_0000_0000_0000, 0x7ff0_0000_0000_0001]
        }
        DataType::F8E4M3 => vec![0, 1, 7, 8, 0x38, 0x7e, 0x7f],
        DataType::F8E5M2 => vec![0, 1, 3, 4, 0x3c, 0x7b, 0x7c, 0x7d, 0x7e],
        _ => vec![0, 1, sign - 1, 2, 7],
    };
    positive.iter().flat_map(|bits| [*bits, *bits | sign, bits.wrapping_neg() & mask(data_type)]).collect()
}

fn elements(data_type: DataType, count: usize, random: &mut Random) -> Vec<Bits> {
    let edges = edges(data_type);
    let pick = |bits: u64| edges[usize::try_from(bits % 1009).unwrap() % edges.len()];
    (0..count)
        .map(|_| {
            let bits = random.next();
            if bits >> 62 == 0 { pick(bits) } else { random.next() & mask(data_type) }
        })
        .collect()
}

fn to_bytes(data_type: DataType, elements: &[Bits]) -> Vec<u8> {
    let size = data_type.size() as usize;
    elements.iter().flat_map(|bits| bits.to_le_bytes()[..size].to_vec()).collect()
}

/// The values of an 8-bit float's codes from 0 to below its special ones, by the format's definition.
fn f8_values(data_type: DataType) -> &'static [f64] {
    static E4M3: LazyLock<Vec<f64>> = LazyLock::new(|| (0..0x7f).map(|code| f8_value(code, 3, 7)).collect());
    static E5M2: LazyLock<Vec<f64>> = LazyLock::new(|| (0..0x7c).map(|code| f8_value(code, 2, 15)).collect());
    if data_type == DataType::F8E4M3 { &E4M3 } else { &E5M2 }
}

fn f8_value(code: i32, mantissa_bits: i32, bias: i32) -> f64 {
    let (exponent, fraction) = (code >> mantissa_bits, f64::from(code & ((1 << mantissa_bits) - 1)));
    let fraction = fraction / f64::from(1 << mantissa_bits);
    if exponent == 0 { fraction * power_of_two(1 - bias) } else { (1.0 + fraction) * power_of_two(exponent - bias) }
}

/// Decodes a float narrower than f32, with other code than the kernel's.
fn read_narrow(data_type: DataType, bits: Bits) -> f32 {
    match data_type {
        DataType::F16 => f16::from_bits(u16::try_from(bits).unwrap()).to_f32(),
        DataType::BF16 => bf16::from_bits(u16::try_from(bits).unwrap()).to_f32(),
        _ => {
            let values = f8_values(data_type);
            let magnitude = usize::try_from(bits & 0x7f).unwrap();
            let infinity = data_type == DataType::F8E5M2 && magnitude == 0x7c;
            let special = if infinity { f64::INFINITY } else { f64::NAN };
            let value = values.get(magnitude).copied().unwrap_or(special);
            (if bits >> 7 == 1 { -value } else { value }) as f32
        }
    }
}

fn write_narrow(data_type: DataType, value: f32) -> Bits {
    match data_type {
        DataType::F16 if value.is_nan() => 0x7e00,
        DataType::F16 => f16::from_f32(value).to_bits().into(),
        DataType::BF16 if value.is_nan() => 0x7fc0,
        DataType::BF16 => bf16::from_f32(value).to_bits().into(),
        DataType::F8E4M3 if value.is_nan() => 0x7f,
        _ if value.is_nan() => 0x7e,
        _ => {
            let values = f8_values(data_type);
            let magnitude = f64::from(value.abs());
            let above = values.partition_point(|known| *known < magnitude);
            let code = if above == 0 {
                0
            } else if above == values.len() {
                above - 1
            } else {
                let (down, up) = (magnitude - values[above - 1], values[above] - magnitude);
                let tie = if above % 2 == 0 { above } else { above - 1 };
                if down < up {
                    above - 1
                } else if up < down {
                    above
                } else {
                    tie
                }
            };
            u64::try_from(code).unwrap() | if value.is_sign_negative() { 0x80 } else { 0 }
        }
    }
}

macro_rules! float_reference {
    ($name:ident, $type:ident) => {
        fn $name(op: ReduceOp, values: &[$type], raw: Option<usize>, division: Option<u32>) -> $type {
            let value = |index: usize| match op {
                ReduceOp::PreMulSum(Scalar::Float(scalar)) if raw == Some(index) => values[index] * scalar as $type,
                ReduceOp::PreMulSum(Scalar::Signed(scalar)) if raw == Some(index) => values[index] * scalar as $type,
                _ => values[index],
            };
            let mut folded = value(0);
            for index in 1..values.len() {
                let next = value(index);
                let nan = folded.is_nan() || next.is_nan();
                folded = match op {
                    ReduceOp::Prod => folded * next,
                    ReduceOp::Min | ReduceOp::Max if nan => $type::NAN,
                    // total_cmp orders −0 below +0, and NaN was handled above.
                    ReduceOp::Min => {
                        if folded.total_cmp(&next).is_le() {
                            folded
                        } else {
                            next
                        }
                    }
                    ReduceOp::Max => {
                        if folded.total_cmp(&next).is_ge() {
                            folded
                        } else {
                            next
                        }
                    }
                    _ => folded + next,
                };
            }
            match division {
                Some(world) => folded / world as $type,
                None => folded,
            }
        }
    };
}

float_reference!(fold_f32, f32);
float_reference!(fold_f64, f64);

/// Sign-extended if the type is signed.
fn read_integer(data_type: DataType, bits: Bits) -> i128 {
    match data_type {
        DataType::I8 => i128::from(bits as u8 as i8),
        DataType::I32 => i128::from(bits as u32 as i32),
        DataType::I64 => i128::from(bits as i64),
        _ => i128::from(bits),
    }
}

fn fold_integers(
    data_type: DataType,
    op: ReduceOp,
    values: &[Bits],
    raw: Option<usize>,
    division: Option<u32>,
) -> Bits {
    let wrap = |value: i128| read_integer(data_type, value as u64 & mask(data_type));
    let value = |index: usize| {
        let value = read_integer(data_type, values[index]);
        match op {
            ReduceOp::PreMulSum(Scalar::Signed(scalar)) if raw == Some(index) => wrap(value * i128::from(scalar)),
            _ => value,
        }
    };
    let folded = (1..values.len()).fold(value(0), |folded, index| {
        let next = value(index);
        wrap(match op {
            ReduceOp::Prod => folded.wrapping_mul(next),
            ReduceOp::Min => folded.min(next),
            ReduceOp::Max => folded.max(next),
            ReduceOp::BitAnd => folded & next,
            ReduceOp::BitOr => folded | next,
            ReduceOp::BitXor => folded ^ next,
            _ => folded + next,
        })
    });
    let result = division.map_or(folded, |world| folded / i128::from(world));
    result as u64 & mask(data_type)
}

/// One computation to test.
#[derive(Debug, Clone, Copy)]
struct Case {
    data_type: DataType,
    op: ReduceOp,
    world: u32,
    raw: Option<usize>,
    finish: bool,
}

impl Case {
    fn element(&self, values: &[Bits]) -> Bits {
        let division = (self.finish && self.op == ReduceOp::Avg).then_some(self.world);
        let scaled = matches!(self.op, ReduceOp::PreMulSum(_)) && self.raw == Some(0);
        if values.len() == 1 && division.is_none() && !scaled {
            return values[0];
        }
        match self.data_type {
            DataType::F32 => {
                let floats: Vec<f32> = values.iter().map(|bits| f32::from_bits(*bits as u32)).collect();
                let folded = fold_f32(self.op, &floats, self.raw, division);
                (if folded.is_nan() { 0x7fc0_0000 } else { folded.to_bits() }).into()
            }
            DataType::F64 => {
                let floats: Vec<f64> = values.iter().map(|bits| f64::from_bits(*bits)).collect();
                let folded = fold_f64(self.op, &floats, self.raw, division);
                if folded.is_nan() { 0x7ff8_0000_0000_0000 } else { folded.to_bits() }
            }
            narrow if narrow.is_float() => {
                // Products are rounded to the element type before they are added.
                let float = |(index, bits): (usize, &Bits)| {
                    let value = read_narrow(narrow, *bits);
                    match self.op {
                        ReduceOp::PreMulSum(scalar) if self.raw == Some(index) => {
                            read_narrow(narrow, write_narrow(narrow, value * scalar.as_f64() as f32))
                        }
                        _ => value,
                    }
                };
                let floats: Vec<f32> = values.iter().enumerate().map(float).collect();
                write_narrow(narrow, fold_f32(self.op, &floats, None, division))
            }
            integer => fold_integers(integer, self.op, values, self.raw, division),
        }
    }

    /// The expected fold of `sources`, element by element, as bytes.
    fn expected(&self, sources: &[Vec<Bits>]) -> Vec<u8> {
        let results: Vec<Bits> = (0..sources[0].len())
            .map(|index| self.element(&sources.iter().map(|source| source[index]).collect::<Vec<_>>()))
            .collect();
        to_bytes(self.data_type, &results)
    }
}

/// The memory layout of a case.
#[derive(Debug, Clone, Copy)]
struct Layout {
    level: Level,
    targets: usize,
    shift: usize,
    store: Store,
    in_place: bool,
}

/// A buffer with a margin on both sides, and the offset of its data: `shift` bytes after a cache line.
fn buffer(bytes: usize, shift: usize) -> (Vec<u8>, usize) {
    let buffer = vec![0xa5; bytes + 2 * MARGIN + 64 + shift];
    let start = MARGIN + buffer.as_ptr().addr().wrapping_neg() % 64 + shift;
    (buffer, start)
}

fn check(case: Case, sources: &[Vec<u8>], expected: &[u8], layout: Layout) {
    let kernel = Kernel::reduce_at(layout.level, case.data_type, case.op, case.world).unwrap();
    let size = case.data_type.size() as usize;
    let count = expected.len() / size;
    let mut buffers: Vec<_> = sources
        .iter()
        .enumerate()
        .map(|(index, source)| {
            let (mut buffer, start) = buffer(source.len(), layout.shift * (index + 1));
            buffer[start..start + source.len()].copy_from_slice(source);
            (buffer, start)
        })
        .collect();
    let mut extra: Vec<_> = (0..layout.targets).map(|index| buffer(expected.len(), layout.shift * index)).collect();
    let mut pointers: Vec<*mut u8> = buffers.iter_mut().map(|(buffer, start)| buffer[*start..].as_mut_ptr()).collect();
    let mut targets: Vec<*mut u8> = extra.iter_mut().map(|(buffer, start)| buffer[*start..].as_mut_ptr()).collect();
    if layout.in_place {
        targets[0] = *pointers.last().unwrap();
    }
    let sources: Vec<*const u8> = pointers.drain(..).map(|pointer| pointer.cast_const()).collect();
    let pass = Pass {
        sources: &sources,
        raw: case.raw,
        targets: &targets,
        count,
        finish: case.finish,
        average: Average::Sum,
        store: layout.store,
    };
    // SAFETY: the buffers above hold `count` elements each and are apart, but for the target that is a source.
    unsafe { kernel.run(&pass) };
    let last = buffers.pop().unwrap();
    let results = if layout.in_place { [vec![last], extra.split_off(1)].concat() } else { extra };
    for (buffer, start) in results {
        let end = start + expected.len();
        // As slices: this is built unoptimised, where a closure for each element takes ten times as long.
        if buffer[start..end] != *expected {
            let differs = |at: &usize| buffer[start + at..start + at + size] != expected[*at..at + size];
            let at = (0..count).map(|index| index * size).find(differs).expect("one of them differs");
            let wrong = at / size;
            panic!(
                "{case:?} {layout:?} {} sources, element {wrong} of {count}: {:02x?}, not {:02x?}",
                sources.len(),
                &buffer[start + at..start + at + size],
                &expected[at..at + size]
            );
        }
        let is_kept = |outside: &[u8]| *outside == OUTSIDE[..outside.len()];
        assert!(is_kept(&buffer[..start]) && is_kept(&buffer[end..]), "{case:?} {layout:?}: outside");
    }
}

fn layouts(size: usize) -> Vec<Layout> {
    let mut layouts = Vec::new();
    for level in Level::available() {
        for shift in [0, 1, size, 3 * size] {
            for (targets, store, in_place) in [
                (1, Store::Cached, false),
                (1, Store::Cached, true),
                (2, Store::Cached, shift % 2 == 1),
                (1, Store::Streaming, false),
                (2, Store::Streaming, shift % 2 == 0),
                (4, Store::Streaming, false),
            ] {
                layouts.push(Layout { level, targets, shift, store, in_place });
            }
        }
    }
    layouts
}

/// More than the longest vectors of a kernel's turn.
const MANY: usize = 1000;

fn every_case(data_type: DataType) {
    let mut ops = ReduceOp::PLAIN.to_vec();
    ops.retain(|op| !(op.bitwise() && data_type.is_float()));
    ops.push(ReduceOp::PreMulSum(Scalar::Signed(-3)));
    if data_type.is_float() {
        ops.push(ReduceOp::PreMulSum(Scalar::Float(1.0 / 3.0)));
    }
    let mut random = Random(u64::from(data_type.code()));
    let layouts = layouts(data_type.size() as usize);
    #[expect(clippy::disallowed_methods, reason = "how much is tested is no setting of the library")]
    let is_whole = std::env::var_os("RSCCL_EXHAUSTIVE").is_some();
    let mut many = 0;
    for op in ops {
        for world in [1, 2, 3, 5] {
            for count in [0, 1, 3, 17, 64, 255, 1031, 2113] {
                many += usize::from(count >= MANY);
                let sources: Vec<_> = (0..world).map(|_| elements(data_type, count, &mut random)).collect();
                let bytes: Vec<_> = sources.iter().map(|source| to_bytes(data_type, source)).collect();
                for (turn, (raw, finish)) in [(None, false), (Some(1), true), (Some(0), true)].into_iter().enumerate() {
                    if raw == Some(0) && !matches!(op, ReduceOp::PreMulSum(_)) {
                        continue;
                    }
                    let case = Case { data_type, op, world, raw, finish };
                    let expected = case.expected(&sources);
                    // Many elements take the time: such a case meets a third of the layouts, with four worlds all.
                    let (first, stride) = if count < MANY || is_whole { (0, 1) } else { ((turn + many) % 3, 3) };
                    for layout in layouts.iter().skip(first).step_by(stride) {
                        check(case, &bytes, &expected, *layout);
                    }
                }
            }
        }
    }
}

macro_rules! every_case {
    ($($name:ident: $data_type:ident;)+) => {$(
        #[test]
        fn $name() {
            every_case(DataType::$data_type);
        }
    )+};
}

every_case! {
    every_case_of_i8: I8;
    every_case_of_u8: U8;
    every_case_of_i32: I32;
    every_case_of_u32: U32;
    every_case_of_i64: I64;
    every_case_of_u64: U64;
    every_case_of_f16: F16;
    every_case_of_f32: F32;
    every_case_of_f64: F64;
    every_case_of_bf16: BF16;
    every_case_of_f8e4m3: F8E4M3;
    every_case_of_f8e5m2: F8E5M2;
}

#[test]
fn says_which_levels_are_tested() {
    println!("vector levels of this machine, all tested: {:?}", Level::available());
    assert!(Level::available().contains(&Level::detect()));
}

/// For one byte, all codes against all codes; for two bytes, all codes against some codes.
#[test]
fn every_pair_of_narrow_codes_adds_up() {
    for data_type in [DataType::F16, DataType::BF16, DataType::F8E4M3, DataType::F8E5M2] {
        let case = Case { data_type, op: ReduceOp::Sum, world: 2, raw: None, finish: true };
        let codes: Vec<Bits> = (0..=mask(data_type)).collect();
        let stride = if data_type.size() == 1 { 1 } else { 4093 };
        for other in (0..=mask(data_type)).step_by(stride) {
            let sources = [codes.clone(), vec![other; codes.len()]];
            let expected = case.expected(&sources);
            let bytes = sources.map(|source| to_bytes(data_type, &source));
            for level in Level::available() {
                let layout = Layout { level, targets: 1, shift: 0, store: Store::Cached, in_place: false };
                check(case, &bytes, &expected, layout);
            }
        }
    }
}

#[test]
fn averages_divide_exactly_in_worlds_of_any_size() {
    let mut random = Random(7);
    for world in [1, 2, 3, 7, 127, 128, 200, 255, 256, 1000, 4096, 65537, 1 << 24, u32::MAX] {
        for data_type in [DataType::I8, DataType::U8, DataType::I32, DataType::U32, DataType::I64, DataType::U64] {
            let case = Case { data_type, op: ReduceOp::Avg, world, raw: None, finish: true };
            let mut values = elements(data_type, 500, &mut random);
            // Near multiples of the world's size, where wrong rounding shows.
            let near = |bits: u64| (bits - bits % u64::from(world)).wrapping_sub(bits & 1) & mask(data_type);
            values.extend((0..500).map(|_| near(random.next() & mask(data_type))));
            let sources = [values];
            let expected = case.expected(&sources);
            for level in Level::available() {
                let layout = Layout { level, targets: 1, shift: 0, store: Store::Cached, in_place: false };
                check(case, &[to_bytes(data_type, &sources[0])], &expected, layout);
            }
        }
    }
    assert!(format!("{:?}", Divisor::new(0)).contains("world: 1"), "no world divides by zero");
}

#[test]
fn copies_keep_all_bits_at_any_size_and_alignment() {
    let mut random = Random(3);
    for level in Level::available() {
        for bytes in [0, 1, 63, 64, 65, 8191, 8192, 8193, 70001] {
            let source: Vec<u8> = (0..bytes).map(|_| random.next().to_le_bytes()[0]).collect();
            for (from, to) in [(0, 0), (0, 1), (5, 3), (8, 40)] {
                for store in [Store::Cached, Store::Streaming] {
                    let (mut origin, first) = buffer(bytes, from);
                    origin[first..first + bytes].copy_from_slice(&source);
                    let mut copies: Vec<_> = (0..3).map(|index| buffer(bytes, to * index)).collect();
                    // One target is the source itself.
                    let origin_pointer = origin[first..].as_mut_ptr();
                    let mut targets: Vec<_> = copies.iter_mut().map(|(copy, at)| copy[*at..].as_mut_ptr()).collect();
                    targets.push(origin_pointer);
                    for targets in [&targets[..], &targets[..1]] {
                        let sources = [origin_pointer.cast_const()];
                        let pass = Pass {
                            sources: &sources,
                            raw: None,
                            targets,
                            count: bytes,
                            finish: true,
                            average: Average::Sum,
                            store,
                        };
                        // SAFETY: all buffers hold `bytes` and are apart, but for the target that is the source.
                        unsafe { Kernel::copy_at(level, DataType::U8).run(&pass) };
                    }
                    assert_eq!(origin[first..first + bytes], source);
                    for (copy, at) in copies {
                        assert_eq!(copy[at..at + bytes], source, "{level:?} {bytes} {from} {to} {store:?}");
                        assert!(copy[..at].iter().chain(&copy[at + bytes..]).all(|byte| *byte == 0xa5));
                    }
                }
            }
        }
    }
}

#[test]
fn more_sources_than_a_word_has_bits_fold_in_order() {
    let values: Vec<f32> = (0..100u8).map(|index| 1.0 / f32::from(index + 1)).collect();
    let sources: Vec<*const u8> = values.iter().map(|value| std::ptr::from_ref(value).cast()).collect();
    let mut sum = 0f32;
    let targets = [std::ptr::from_mut(&mut sum).cast()];
    let kernel = Kernel::reduce(DataType::F32, ReduceOp::Sum, 100).unwrap();
    // SAFETY: each source and the target are one f32.
    unsafe {
        kernel.run(&Pass {
            sources: &sources,
            raw: None,
            targets: &targets,
            count: 1,
            finish: true,
            average: Average::Sum,
            store: Store::Cached,
        });
    }
    assert_eq!(sum, values.iter().copied().reduce(|sum, value| sum + value).unwrap());
}

/// Regression: the raw sources were a mask of 64 bits, so the 65th source and those after it were never scaled.
#[test]
fn a_raw_source_beyond_the_64th_is_scaled() {
    let values = [1u32; 100];
    let sources: Vec<*const u8> = values.iter().map(|value| std::ptr::from_ref(value).cast()).collect();
    let kernel = Kernel::reduce(DataType::U32, ReduceOp::PreMulSum(Scalar::Signed(5)), 100).unwrap();
    for raw in [0, 1, 63, 64, 99] {
        let mut sum = 0u32;
        let targets = [std::ptr::from_mut(&mut sum).cast()];
        let (raw, store) = (Some(raw), Store::Cached);
        // SAFETY: each source and the target are one u32.
        unsafe {
            kernel.run(&Pass {
                sources: &sources,
                raw,
                targets: &targets,
                count: 1,
                finish: true,
                average: Average::Sum,
                store,
            })
        };
        assert_eq!(sum, 104, "source {raw:?}");
    }
}

#[test]
fn bitwise_operators_refuse_floats_by_name() {
    for data_type in DataType::ALL {
        for op in [ReduceOp::BitAnd, ReduceOp::BitOr, ReduceOp::BitXor] {
            match Kernel::reduce(*data_type, op, 2) {
                Ok(_) => assert!(!data_type.is_float()),
                Err(error) => {
                    assert!(data_type.is_float());
                    assert_eq!(error.kind(), Kind::InvalidArgument);
                    assert!(error.message().contains(op.name()) && error.message().contains(data_type.name()));
                }
            }
        }
    }
}

/// The largest number of a type, and another of half its size, as bits.
fn large(data_type: DataType) -> [Bits; 2] {
    match data_type {
        DataType::F16 => [0x7bff, 0x77ff],
        DataType::BF16 => [0x7f7f, 0x7eff],
        DataType::F32 => [0x7f7f_ffff, 0x7eff_ffff],
        DataType::F64 => [0x7fef_ffff_ffff_ffff, 0x7fdf_ffff_ffff_ffff],
        DataType::F8E4M3 => [0x7e, 0x76],
        DataType::F8E5M2 => [0x7b, 0x77],
        other => panic!("{other} is no float"),
    }
}

const FLOATS: [DataType; 6] =
    [DataType::F16, DataType::BF16, DataType::F32, DataType::F64, DataType::F8E4M3, DataType::F8E5M2];

/// The first source is an input, or the second is, or both are.
const FIRST: Average = Average::Parts(SourceRange { first: 0, end: 1 });
const SECOND: Average = Average::Parts(SourceRange { first: 1, end: 2 });
const BOTH: Average = Average::Parts(SourceRange::ALL);

/// One pass over sources of one element each.
fn pass_of(case: Case, level: Level, average: Average, sources: &[Bits]) -> Bits {
    let kernel = Kernel::reduce_at(level, case.data_type, case.op, case.world).unwrap();
    let size = case.data_type.size() as usize;
    let sources: Vec<Vec<u8>> = sources.iter().map(|bits| to_bytes(case.data_type, &[*bits])).collect();
    let sources: Vec<*const u8> = sources.iter().map(|source| source.as_ptr()).collect();
    let mut result = [0_u8; 8];
    let targets = [result.as_mut_ptr()];
    let (raw, finish, store) = (case.raw, case.finish, Store::Cached);
    let pass = Pass { sources: &sources, raw, targets: &targets, count: 1, finish, average, store };
    // SAFETY: each source has one element, and the target room for the largest.
    unsafe { kernel.run(&pass) };
    assert!(result[size..].iter().all(|byte| *byte == 0));
    u64::from_le_bytes(result)
}

/// The average as of a ring: the first rank's share is copied, and each of the others adds its own.
fn around(case: Case, level: Level, input: &[Bits]) -> Bits {
    let under_way = Case { finish: false, ..case };
    let first = pass_of(under_way, level, FIRST, &input[..1]);
    let add = |sum: Bits, next: &Bits| pass_of(under_way, level, SECOND, &[sum, *next]);
    let (last, others) = input[1..].split_last().unwrap();
    let sum = others.iter().fold(first, add);
    pass_of(case, level, SECOND, &[sum, *last])
}

/// Regression: the sum of finite numbers overflowed, and with it their average.
#[test]
fn averages_of_finite_numbers_are_finite_in_one_pass_and_by_partial_results() {
    for (data_type, world) in
        FLOATS.into_iter().flat_map(|data_type| [2, 3, 4, 5, 8, 31, 64].map(|world| (data_type, world)))
    {
        let [most, half] = large(data_type);
        let sign = 1 << (8 * data_type.size() - 1);
        let case = |finish| Case { data_type, op: ReduceOp::Avg, world, raw: None, finish };
        let ranks = world as usize;
        let inputs = [vec![most; ranks], vec![most | sign; ranks], vec![half; ranks]];
        for (level, input) in
            Level::available().into_iter().flat_map(|level| inputs.iter().map(move |input| (level, input)))
        {
            let whole = pass_of(case(true), level, Average::Whole, input);
            // Equal numbers in the scaled sum are rounded as in any sum: at most one place for each of them.
            let places = (input[0] - u64::from(world)..=input[0]).contains(&whole);
            assert!(places, "{data_type} {world} {level:?}: {whole:x} of {:x}", input[0]);
            if data_type.size() == 1 {
                continue;
            }
            let last = around(case(true), level, input);
            let (last, least) = (last & !sign, input[0] & !sign);
            let close = least - (least >> 4);
            assert!((close..=most).contains(&last), "{data_type} {world} {level:?}: {last:x} of {least:x}");
        }
    }
}

/// What a whole average gives is what a sum and a quotient give, wherever these are numbers.
#[test]
fn an_average_in_one_pass_is_the_sum_divided_once() {
    let mut random = Random(11);
    for (data_type, world) in FLOATS.into_iter().flat_map(|data_type| [1, 2, 3, 7, 64].map(|world| (data_type, world)))
    {
        let case = Case { data_type, op: ReduceOp::Avg, world, raw: None, finish: true };
        for _ in 0..200 {
            let input = elements(data_type, world as usize, &mut random);
            let plain = case.element(&input);
            let whole = pass_of(case, Level::detect(), Average::Whole, &input);
            let special = large(data_type)[0] & !(1 << (8 * data_type.size() - 1));
            if plain & !(1 << (8 * data_type.size() - 1)) <= special {
                assert_eq!(whole, plain, "{data_type} {world}: {input:x?}");
            }
        }
    }
}

/// Numbers that are not tiny lose nothing to the scale, integers of floats for instance.
#[test]
fn averages_by_partial_results_are_exact_where_sums_are() {
    for (data_type, one, two, three) in [
        (DataType::F16, 0x3c00, 0x4000, 0x4200),
        (DataType::BF16, 0x3f80, 0x4000, 0x4040),
        (DataType::F32, 0x3f80_0000, 0x4000_0000, 0x4040_0000),
        (DataType::F64, 0x3ff0_0000_0000_0000, 0x4000_0000_0000_0000, 0x4008_0000_0000_0000),
        (DataType::F8E4M3, 0x38, 0x40, 0x44),
        (DataType::F8E5M2, 0x3c, 0x40, 0x42),
    ] {
        let case = |finish| Case { data_type, op: ReduceOp::Avg, world: 3, raw: None, finish };
        let level = Level::detect();
        let first = pass_of(case(false), level, FIRST, &[one]);
        let sum = pass_of(case(false), level, SECOND, &[first, two]);
        assert_eq!(pass_of(case(true), level, SECOND, &[sum, three]), two, "{data_type}");
        // Infinities and NaN go their way.
        let (infinite, level) = (BOTH, Level::detect());
        if matches!(data_type, DataType::F32 | DataType::F64) {
            let inf = large(data_type)[0] + 1;
            assert_eq!(pass_of(case(true), level, infinite, &[inf, one]), inf);
            assert_eq!(pass_of(case(true), level, Average::Whole, &[inf, one, two]), inf);
        }
    }
}

/// Regression: f16 was scaled by half of what suffices, so that the average of its smallest numbers was 0. What
/// rounding adds to the largest ones is taken off instead.
#[test]
fn small_numbers_survive_averages_by_partial_results_and_large_ones_stay_finite() {
    for (world, level) in [2, 3, 4, 8, 100, 600, 1024, 1025, 3000]
        .into_iter()
        .flat_map(|world: u32| Level::available().into_iter().map(move |level| (world, level)))
    {
        let case = Case { data_type: DataType::F16, op: ReduceOp::Avg, world, raw: None, finish: true };
        let ranks = world as usize;
        // 2^-24 · 2^⌈log2 world⌉: the smallest number of which a share is a number of the type.
        let smallest = f16::from_f32(f32::powi(2.0, -24) * world.next_power_of_two() as f32).to_bits();
        if world <= 1024 {
            let found = around(case, level, &vec![smallest.into(); ranks]);
            assert_eq!(found, Bits::from(smallest), "{world} {level:?}");
        }
        for sign in [0, 0x8000] {
            let most = Bits::from(f16::MAX.to_bits() | sign);
            let found = around(case, level, &vec![most; ranks]);
            assert!(found & 0x7fff <= 0x7bff, "{world} {level:?}: {found:x}");
            assert!(world > 1024 || found & 0x7fff >= 0x7b00, "{world} {level:?}: {found:x}");
            // What is a little more than half a place of the sum is rounded up each time.
            let mut random = Random(u64::from(world));
            let rising: Vec<Bits> = (0..ranks).map(|_| most - random.next() % 0x400).collect();
            let found = around(case, level, &rising);
            assert!(found & 0x7fff <= 0x7bff, "{world} {level:?}: {found:x}");
            // An infinity is no number that rounding has made.
            let infinite = [vec![Bits::from(sign | 0x7c00)], vec![most; ranks - 1]].concat();
            assert_eq!(around(case, level, &infinite), Bits::from(sign | 0x7c00), "{world} {level:?}");
        }
    }
}
