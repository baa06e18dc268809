//! The kernels of `kernels/`: the PTX that ships, run by the virtual GPU, and the same headers compiled for the host by
//! g++, give the bits of the host's own reductions.
//!
//! Values: types of 8 bits are tested with all pairs, types of 16 bits with all values paired with some, the others
//! with special values and seeded samples. Layouts: numbers of sources and targets, counts, alignments, targets that
//! are sources.

mod averages;
#[path = "../../vcuda/tests/flat/mod.rs"]
mod flat;
mod host;

use std::collections::BTreeMap;
use std::fs;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flat::{Flat, Parameters, config, launch};
use host::{Host, host};
use miniz_oxide::inflate::decompress_to_vec_zlib;
use rsccl::ReduceOp;
use rsccl::internals::device::records::{self, ControlLayout, EnterLine, OperandRecord, StatusPage, StepRecord};
use rsccl::internals::device::{Average, Kernel, Pass, Store};
use rsccl::types::{DataType, Scalar};
use vcuda::ptx::Module;

/// `Operand` of `kernels/abi.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Operand {
    base: u64,
    offset: u64,
}

/// `Step` of `kernels/abi.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Step {
    count: u64,
    offset: u64,
    scalar: u64,
    first_source: u32,
    sources: u32,
    first_target: u32,
    targets: u32,
    raw: u32,
    divisor: u32,
    kind: u32,
    average: u32,
    first_input: u32,
    inputs: u32,
}

const NOT_RAW: u32 = u32::MAX;
/// Where the fields lie, as `kernels_host_places` lists them.
const PLACES: [usize; 17] = [
    size_of::<Operand>(),
    offset_of!(Operand, base),
    offset_of!(Operand, offset),
    size_of::<Step>(),
    offset_of!(Step, count),
    offset_of!(Step, offset),
    offset_of!(Step, scalar),
    offset_of!(Step, first_source),
    offset_of!(Step, sources),
    offset_of!(Step, first_target),
    offset_of!(Step, targets),
    offset_of!(Step, raw),
    offset_of!(Step, divisor),
    offset_of!(Step, kind),
    offset_of!(Step, average),
    offset_of!(Step, first_input),
    offset_of!(Step, inputs),
];

impl Operand {
    fn bytes(&self) -> Vec<u8> {
        [self.base.to_le_bytes(), self.offset.to_le_bytes()].concat()
    }
}

impl Step {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = [self.count, self.offset, self.scalar].map(u64::to_le_bytes).concat();
        let words =
            [self.first_source, self.sources, self.first_target, self.targets, self.raw, self.divisor, self.kind];
        let average = [self.average, self.first_input, self.inputs];
        words.iter().chain(&average).for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes
    }
}

/// `Arguments` of `kernels/abi.h`: the tables themselves, or where they lie.
fn arguments(memory: &Flat, steps: &[Step], operands: &[u8], apart: bool) -> Parameters {
    let table = steps.iter().flat_map(Step::bytes).collect::<Vec<_>>();
    let count = u32::try_from(steps.len()).expect("few");
    let place = |bytes: &[u8]| {
        let at = memory.allocate(Some(0), bytes.len());
        memory.write(at, bytes);
        at
    };
    let (steps_at, operands_at) = if apart { (place(&table), place(operands)) } else { (0, 0) };
    let mut parameters = Parameters::default().long(steps_at).long(operands_at).word(count).word(0);
    let tables = if apart { Vec::new() } else { [&table, operands].concat() };
    for word in tables.chunks_exact(8) {
        parameters = parameters.long(u64::from_le_bytes(word.try_into().expect("eight bytes")));
    }
    // What a launch leaves out is undefined.
    let rest = (PARAMETER_BYTES - size_of::<u64>() * 3 - tables.len()) / 8;
    (0..rest).fold(parameters, |parameters, _| parameters.long(0xcbcb_cbcb_cbcb_cbcb))
}

/// `PARAMETER_BYTES` of `kernels/abi.h`.
const PARAMETER_BYTES: usize = 4096;

/// The operators, in the order of `host.cpp`.
const ENTRIES: [&str; 9] =
    ["fold_sum", "fold_scaled_sum", "fold_prod", "fold_min", "fold_max", "fold_and", "fold_or", "fold_xor", "copy"];
const COPY: usize = 8;

fn entry_of(op: ReduceOp) -> usize {
    match op {
        ReduceOp::Sum => 0,
        ReduceOp::Avg | ReduceOp::PreMulSum(_) => 1,
        ReduceOp::Prod => 2,
        ReduceOp::Min => 3,
        ReduceOp::Max => 4,
        ReduceOp::BitAnd => 5,
        ReduceOp::BitOr => 6,
        ReduceOp::BitXor => 7,
        other => panic!("{other}: no entry point"),
    }
}

/// The name of a type in the names of modules.
fn short_name(data_type: DataType) -> &'static str {
    match data_type {
        DataType::I8 => "i8",
        DataType::U8 => "u8",
        DataType::I32 => "i32",
        DataType::U32 => "u32",
        DataType::I64 => "i64",
        DataType::U64 => "u64",
        DataType::F16 => "f16",
        DataType::F32 => "f32",
        DataType::F64 => "f64",
        DataType::BF16 => "bf16",
        DataType::F8E4M3 => "f8e4m3",
        DataType::F8E5M2 => "f8e5m2",
        other => panic!("{other}: no module"),
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels")
}

/// The shipped module with this entry point.
fn module(data_type: DataType, entry: usize) -> Module {
    let name = match entry {
        COPY => "copy".to_owned(),
        5..COPY => "bits".to_owned(),
        _ => format!("fold_{}", short_name(data_type)),
    };
    let packed = fs::read(folder().join(format!("compiled/{name}.ptx.z"))).expect("kernels/build has written it");
    let text = String::from_utf8(decompress_to_vec_zlib(&packed).expect("zlib")).expect("PTX is text");
    Module::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A fold with its operands' bytes.
#[derive(Clone)]
struct Case {
    data_type: DataType,
    op: ReduceOp,
    /// Each with the alignment of its first byte in 64.
    sources: Vec<(Vec<u8>, usize)>,
    /// Alignment of each target; None: the target is this source.
    targets: Vec<Result<usize, usize>>,
    raw: Option<usize>,
    world: u32,
    finish: bool,
    average: Average,
}

impl Case {
    fn new(data_type: DataType, op: ReduceOp, sources: Vec<Vec<u8>>) -> Case {
        let sources = sources.into_iter().map(|bytes| (bytes, 0)).collect();
        let average = Average::Sum;
        Case { data_type, op, sources, targets: vec![Ok(0)], raw: None, world: 1, finish: false, average }
    }

    fn size(&self) -> usize {
        self.data_type.size() as usize
    }

    fn bytes(&self) -> usize {
        self.sources[0].0.len()
    }

    fn kernel(&self) -> Kernel {
        Kernel::reduce(self.data_type, self.op, self.world).expect("the type has the operator")
    }

    /// What the host makes of it.
    fn expected(&self) -> Vec<u8> {
        let sources: Vec<*const u8> = self.sources.iter().map(|(bytes, _)| bytes.as_ptr()).collect();
        let mut target = vec![0; self.bytes()];
        let targets = [target.as_mut_ptr()];
        let count = self.bytes() / self.size();
        let pass = Pass {
            sources: &sources,
            raw: self.raw,
            targets: &targets,
            count,
            finish: self.finish,
            average: self.average,
            store: Store::Cached,
        };
        // SAFETY: sources and target have the count's bytes, and nobody else uses them.
        unsafe { self.kernel().run(&pass) };
        target
    }

    /// The entry point: one source that nothing changes is copied.
    fn entry(&self) -> usize {
        let copies = self.sources.len() == 1 && self.kernel().is_copy(self.raw, self.finish, self.average);
        if copies { COPY } else { entry_of(self.op) }
    }

    fn step(&self) -> Step {
        let in_bytes = self.entry() >= 5;
        let (average, share, inputs) = self.adds_up();
        let scalar = match self.op {
            ReduceOp::PreMulSum(scalar) => scalar_bits(self.data_type, scalar),
            _ => share,
        };
        let divides = self.finish && self.op == ReduceOp::Avg;
        let number = |count: usize| u32::try_from(count).expect("few operands");
        Step {
            count: (self.bytes() / if in_bytes { 1 } else { self.size() }) as u64,
            offset: 0,
            scalar,
            first_source: 0,
            sources: number(self.sources.len()),
            first_target: number(self.sources.len()),
            targets: number(self.targets.len()),
            raw: if scalar_of(self.op) { self.raw.map_or(NOT_RAW, number) } else { NOT_RAW },
            divisor: if divides { self.world } else { 0 },
            kind: 0,
            average,
            first_input: number(inputs.start),
            inputs: number(inputs.len()),
        }
    }

    /// How the step's average adds up, by what inputs are multiplied, and which sources these are.
    fn adds_up(&self) -> (u32, u64, std::ops::Range<usize>) {
        let is_scaled = self.data_type.is_float() && self.size() > 1;
        if self.op != ReduceOp::Avg || !is_scaled {
            let divides = self.op == ReduceOp::Avg && self.finish;
            return (if divides { records::DIVIDED } else { records::NO_AVERAGE }, 0, 0..0);
        }
        // 2^-e, where e is the least for which 2^e shares are all ranks', and one more but for f16.
        let places = self.world.next_power_of_two().trailing_zeros() + u32::from(self.data_type != DataType::F16);
        let share = scalar_bits(self.data_type, Scalar::Float(0.5_f64.powi(i32::try_from(places).expect("few"))));
        match self.average {
            Average::Parts(inputs) => (records::SHARES, share, inputs.among(self.sources.len())),
            Average::Whole if self.finish => (records::WHOLE, share, 0..0),
            Average::Sum if self.finish => (records::DIVIDED, 0, 0..0),
            Average::Sum | Average::Whole => (records::NO_AVERAGE, 0, 0..0),
        }
    }

    /// Runs the shipped PTX; the targets' bytes.
    fn on_gpu(&self, (grid, threads): (u32, u32), checks: bool) -> Vec<Vec<u8>> {
        let memory = Flat::new(checks);
        let allocate = |place: usize, bytes: usize| memory.allocate(Some(0), place + bytes.max(1)) + place as u64;
        let sources: Vec<u64> = self.sources.iter().map(|(bytes, place)| allocate(*place, bytes.len())).collect();
        for (address, (bytes, _)) in sources.iter().zip(&self.sources) {
            memory.write(*address, bytes);
        }
        let target = |target: &Result<usize, usize>| match target {
            Ok(place) => allocate(*place, self.bytes()),
            Err(source) => sources[*source],
        };
        let targets: Vec<u64> = self.targets.iter().map(target).collect();
        // Half of each place is in the base and half in the offset.
        let operands =
            sources.iter().chain(&targets).map(|address| Operand { base: address - 100, offset: 100 }.bytes());
        let operands = operands.collect::<Vec<_>>().concat();
        // Small tables come with the launch, others lie in memory: both forms are taken.
        let parameters = arguments(&memory, &[self.step()], &operands, self.bytes() % 2 == 1);
        let module = module(self.data_type, self.entry());
        let mut config = config(grid, threads, parameters);
        (config.weak, config.checks) = (checks, checks);
        let entry = ENTRIES[self.entry()];
        launch(&module, entry, config, &memory).unwrap_or_else(|fault| panic!("{}: {fault}", self.name()));
        targets.iter().map(|target| memory.read(*target, self.bytes())).collect()
    }

    /// Runs the headers as the host's compiler has compiled them, as a team of `team` threads.
    fn on_host(&self, host: &Host, team: u64) -> Vec<Vec<u8>> {
        // Words of 64 bytes, so that places in them are places in memory.
        let room = |place: usize| vec![[0_u64; 8]; (place + self.bytes()).div_ceil(64) + 1];
        let mut sources: Vec<Vec<[u64; 8]>> = self.sources.iter().map(|(_, place)| room(*place + 63)).collect();
        let aligned = |memory: &mut Vec<[u64; 8]>, place: usize| {
            let address = memory.as_mut_ptr().expose_provenance();
            address.next_multiple_of(64) + place
        };
        let put = |address: usize, bytes: &[u8]| {
            let to = std::ptr::with_exposed_provenance_mut::<u8>(address);
            // SAFETY: the address lies in the room made above, with as many bytes behind it.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        };
        let get = |address: usize| {
            let from = std::ptr::with_exposed_provenance::<u8>(address);
            // SAFETY: the address lies in the room made above, with as many bytes behind it.
            unsafe { std::slice::from_raw_parts(from, self.bytes()) }.to_vec()
        };
        let mut places: Vec<usize> = Vec::new();
        for (memory, (bytes, place)) in sources.iter_mut().zip(&self.sources) {
            places.push(aligned(memory, *place));
            put(places[places.len() - 1], bytes);
        }
        let mut targets: Vec<Vec<[u64; 8]>> = self.targets.iter().map(|_| room(127)).collect();
        for (memory, target) in targets.iter_mut().zip(&self.targets) {
            let place = match target {
                Ok(place) => aligned(memory, *place),
                Err(source) => places[*source],
            };
            places.push(place);
        }
        let operands: Vec<Operand> =
            places.iter().map(|address| Operand { base: *address as u64 - 100, offset: 100 }).collect();
        host.run(self.data_type, self.entry(), &self.step(), &operands, 0..team, team);
        places[self.sources.len()..].iter().map(|address| get(*address)).collect()
    }

    fn name(&self) -> String {
        let places: Vec<usize> = self.sources.iter().map(|(_, place)| *place).collect();
        format!(
            "{} {}, {} bytes from {places:?} to {:?}, raw {:?}, world {}, finish {}, {:?}",
            self.data_type,
            self.op,
            self.bytes(),
            self.targets,
            self.raw,
            self.world,
            self.finish,
            self.average
        )
    }

    fn compare(&self, what: &str, found: &[Vec<u8>]) {
        let expected = self.expected();
        for target in found {
            if let Some(at) = (0..expected.len()).find(|at| target[*at] != expected[*at]) {
                let first = at / self.size() * self.size();
                let element = |bytes: &[u8]| bytes[first..first + self.size()].to_vec();
                let operands: Vec<Vec<u8>> = self.sources.iter().map(|(bytes, _)| element(bytes)).collect();
                let (wrong, right) = (element(target), element(&expected));
                panic!(
                    "{what}: {}: byte {at}: of {operands:02x?} it makes {wrong:02x?}, not {right:02x?}",
                    self.name()
                );
            }
        }
    }

    /// Both must give the host's bits.
    fn check(&self, shape: (u32, u32), checks: bool) {
        self.compare("PTX", &self.on_gpu(shape, checks));
        if let Some(host) = host() {
            self.compare("g++", &self.on_host(host, u64::from(shape.0 * shape.1)));
        }
    }
}

fn scalar_of(op: ReduceOp) -> bool {
    matches!(op, ReduceOp::PreMulSum(_))
}

/// A scalar as accumulators of the type have it.
fn scalar_bits(data_type: DataType, scalar: Scalar) -> u64 {
    match (data_type, scalar) {
        (DataType::F64, scalar) => scalar.as_f64().to_bits(),
        #[expect(clippy::cast_possible_truncation, reason = "rounded to the accumulators' type, as the host does")]
        (data_type, scalar) if data_type.is_float() => u64::from((scalar.as_f64() as f32).to_bits()),
        (_, Scalar::Signed(value)) => value.cast_unsigned(),
        (_, Scalar::Unsigned(value)) => value,
        (data_type, scalar) => panic!("{scalar:?} for {data_type}"),
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).expect("below a usize")
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next().to_le_bytes()[0]).collect()
    }
}

/// FNV-1a of 64 bits, as `kernels/build` computes it.
fn fnv(data: &[u8]) -> u64 {
    data.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[test]
fn the_compiled_kernels_belong_to_their_sources() {
    let mut there = BTreeMap::new();
    for entry in fs::read_dir(folder()).expect("the kernels are in the tree") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|ending| ending == "cu" || ending == "h") {
            let name = path.file_name().expect("a file").to_string_lossy().into_owned();
            there.insert(name, format!("{:016x}", fnv(&fs::read(&path).expect("readable"))));
        }
    }
    let kept = fs::read_to_string(folder().join("compiled/sources.txt")).expect("what kernels/build has written");
    let lines = kept.lines().map(|line| line.split_once(' ').expect("hash and name"));
    let kept: BTreeMap<String, String> = lines.map(|(hash, name)| (name.to_owned(), hash.to_owned())).collect();
    assert_eq!(there, kept, "sources have changed since they were compiled: run kernels/build");
}

#[test]
fn records_lie_alike_in_rust_and_in_c() {
    let Some(host) = host() else { return };
    let mut places = [0_u64; PLACES.len()];
    // SAFETY: the function writes as many numbers as this file lists.
    unsafe { (host.places)(places.as_mut_ptr()) };
    assert_eq!(places, PLACES.map(|place| place as u64));
}

#[test]
fn records_of_programs_and_control_words_lie_alike_in_rust_and_in_c() {
    let Some(host) = host() else { return };
    let layout = ControlLayout { lanes: 3, ranks: 2 };
    macro_rules! places {
        ($($record:ident: $($field:ident)*;)*) => {
            [$(size_of::<$record>() as u64, $(offset_of!($record, $field) as u64,)*)*]
        };
    }
    let records = places! {
        StepRecord: block times first sources targets raw peer kind lag flag finish average first_input inputs;
        OperandRecord: kind base buffer index;
        EnterLine: ready label input output;
    };
    let words = [layout.state(2), layout.enter_line(2, 7, 1), layout.flag(2, 5, 1)];
    let kinds = [records::ENTER, records::COMBINE, records::SIGNAL, records::WAIT].map(u64::from);
    let operands = [records::OWN, records::PEER, records::SLOT].map(u64::from);
    let buffers = [records::INPUT, records::OUTPUT, records::SCRATCH, records::NONE].map(u64::from);
    let flag = [u64::from(records::EVEN_EMPTY)];
    let averages = [records::NO_AVERAGE, records::DIVIDED, records::WHOLE, records::SHARES].map(u64::from);
    let codes = [StatusPage::CLAIMED, StatusPage::ABORTED, StatusPage::MISMATCH].map(u64::from);
    let expected = [&records[..], &words, &kinds, &operands, &buffers, &flag, &averages, &codes].concat();
    let mut found = [0_u64; 47];
    assert_eq!(found.len(), expected.len());
    // SAFETY: the function writes as many numbers as this test lists.
    unsafe { (host.program)(found.as_mut_ptr(), layout.lanes, layout.ranks) };
    assert_eq!(found[..], expected);
}

/// The operators of a type that fold two values, with those that scale.
fn operators(data_type: DataType) -> Vec<(ReduceOp, Option<usize>, u32, bool)> {
    let mut all: Vec<_> =
        [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max].map(|op| (op, None, 1, false)).to_vec();
    all.push((ReduceOp::Avg, None, 3, true));
    let scalar = if data_type.is_float() { ReduceOp::premul_sum(1.7) } else { ReduceOp::premul_sum(3_u32) };
    let signed = matches!(data_type, DataType::I8 | DataType::I32 | DataType::I64);
    let scalar = if signed { ReduceOp::premul_sum(-3) } else { scalar };
    all.push((scalar, Some(1), 2, true));
    all
}

/// All operators on two sources of values.
fn check_values(data_type: DataType, a: &[u8], b: &[u8]) {
    for (op, raw, world, finish) in operators(data_type) {
        let case = Case { raw, world, finish, ..Case::new(data_type, op, vec![a.to_vec(), b.to_vec()]) };
        case.check((1, 256), false);
    }
}

fn check_all_pairs(data_type: DataType) {
    let (a, b): (Vec<u8>, Vec<u8>) = (0..=u8::MAX).flat_map(|a| (0..=u8::MAX).map(move |b| (a, b))).unzip();
    check_values(data_type, &a, &b);
}

#[test]
fn all_pairs_of_integers_of_8_bits() {
    check_all_pairs(DataType::I8);
    check_all_pairs(DataType::U8);
}

#[test]
fn all_pairs_of_floats_of_8_bits() {
    check_all_pairs(DataType::F8E4M3);
    check_all_pairs(DataType::F8E5M2);
}

/// Every value beside special ones and beside seeded ones.
fn check_all_values(data_type: DataType, specials: &[u16]) {
    let mut random = Random(16);
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for special in specials {
        check_values(data_type, &all, &special.to_le_bytes().repeat(1 << 16));
    }
    check_values(data_type, &all, &random.bytes(all.len()));
}

#[test]
fn all_values_of_halves() {
    // 1, -0, a subnormal, a NaN.
    check_all_values(DataType::F16, &[0x3c00, 0x8000, 0x0001, 0x7e01]);
}

#[test]
fn all_values_of_bfloat16() {
    check_all_values(DataType::BF16, &[0x3f80, 0x8000, 0x0001, 0xff81]);
}

/// All pairs of special values and seeded values beside them.
fn check_samples<const BYTES: usize>(data_type: DataType, specials: &[[u8; BYTES]]) {
    let mut random = Random(u64::from(data_type.code()));
    let mut a: Vec<u8> = specials.iter().flat_map(|a| a.repeat(specials.len())).collect();
    let mut b: Vec<u8> = specials.concat().repeat(specials.len());
    a.extend(random.bytes(BYTES * 2_000));
    b.extend(random.bytes(BYTES * 2_000));
    // Near each other in size, so that sums round and products stay finite.
    for _ in 0..2_000 {
        let (mut low, mut high) = (random.bytes(BYTES), random.bytes(BYTES));
        (low[BYTES - 1], high[BYTES - 1]) = (0x3f, 0xbf);
        a.extend(low);
        b.extend(high);
    }
    check_values(data_type, &a, &b);
}

#[test]
fn samples_of_floats_of_32_and_64_bits() {
    let singles = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        1e-45,
        -1e-45,
        1.175_494_4e-38,
        3.402_823_5e38,
        -3.402_823_5e38,
        1.000_000_1,
        16_777_216.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::from_bits(0xffc0_1234),
        f32::from_bits(0x7f80_0001),
    ];
    check_samples(DataType::F32, &singles.map(f32::to_le_bytes));
    let doubles = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        5e-324,
        -5e-324,
        f64::MIN_POSITIVE,
        f64::MAX,
        f64::MIN,
        1.0 + f64::EPSILON,
        9e15,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        f64::from_bits(0xfff8_0000_1234_0000),
        f64::from_bits(0x7ff0_0000_0000_0001),
    ];
    check_samples(DataType::F64, &doubles.map(f64::to_le_bytes));
}

#[test]
fn samples_of_integers_of_32_and_64_bits() {
    let words =
        [0, 1, 2, 3, 7, 1 << 31, (1 << 31) - 1, (1 << 31) + 1, u32::MAX, u32::MAX - 1, 0xffff, 0x1_0000, 12_345];
    check_samples(DataType::I32, &words.map(u32::to_le_bytes));
    check_samples(DataType::U32, &words.map(u32::to_le_bytes));
    let words =
        [0, 1, 2, 3, 7, 1 << 63, (1 << 63) - 1, (1 << 63) + 1, u64::MAX, u64::MAX - 1, 1 << 32, (1 << 32) - 1, 12_345];
    check_samples(DataType::I64, &words.map(u64::to_le_bytes));
    check_samples(DataType::U64, &words.map(u64::to_le_bytes));
}

/// A case of random layout: operands alike or not, aligned or not, some of them in place.
fn random_case(random: &mut Random) -> Case {
    let data_type = DataType::ALL[random.below(DataType::ALL.len())];
    let size = data_type.size() as usize;
    let mut all = operators(data_type);
    if !data_type.is_float() {
        all.extend([ReduceOp::BitAnd, ReduceOp::BitOr, ReduceOp::BitXor].map(|op| (op, None, 1, false)));
    }
    let (op, raw, _, finish) = all[random.below(all.len())];
    let count = [0, 1, 2, 3, 15, 16, 17, 33, 100, 257][random.below(10)];
    let sources = [1, 2, 2, 3, 5, 8][random.below(6)];
    let common = size * random.below(20);
    let mode = random.below(3);
    let place = |random: &mut Random| match mode {
        0 => common,
        1 => size * random.below(20),
        _ => random.below(40),
    };
    let raw = raw.map(|_| random.below(sources));
    let sources: Vec<(Vec<u8>, usize)> = (0..sources).map(|_| (random.bytes(count * size), place(random))).collect();
    let mut targets: Vec<Result<usize, usize>> = (0..1 + random.below(3)).map(|_| Ok(place(random))).collect();
    if random.below(3) == 0 {
        targets[0] = Err(random.below(sources.len()));
    }
    let first = random.below(sources.len());
    let average = [Average::Sum, Average::Whole, Average::Parts((first..first + 2).into())][random.below(3)];
    let world = 1 + u32::try_from(random.below(9)).expect("small");
    Case { data_type, op, sources, targets, raw, world, finish, average }
}

#[test]
fn folds_of_any_layout_touch_what_they_must_alone() {
    let mut random = Random(2026);
    for _ in 0..300 {
        // With all checks: bounds to the byte, undefined bytes, weak memory.
        random_case(&mut random).check([(1, 32), (2, 64), (3, 96)][random.below(3)], true);
    }
}

#[test]
fn copies_of_any_alignment() {
    let mut random = Random(7);
    for from in 0..17 {
        for to in [0, 1, 3, 4, 8, 15, 16] {
            let bytes = [0, 1, 15, 16, 40, 64, 200][random.below(7)] + random.below(9);
            let mut case = Case::new(DataType::U8, ReduceOp::Sum, vec![random.bytes(bytes)]);
            case.sources[0].1 = from;
            case.targets = vec![Ok(to), Ok(from)];
            assert_eq!(case.entry(), COPY);
            case.check((2, 32), true);
        }
    }
    // In place nothing is written.
    let mut case = Case::new(DataType::U8, ReduceOp::Sum, vec![random.bytes(100)]);
    case.targets = vec![Err(0)];
    case.check((1, 32), true);
}

/// A mapping of some GiB of which a few pages are used.
struct Sparse {
    at: *mut u8,
}

const SPARSE: usize = 5 << 30;

impl Sparse {
    fn new() -> Sparse {
        let (rights, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
        // SAFETY: a fresh mapping at a place that the system chooses.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), SPARSE, rights, flags, -1, 0) };
        assert!(at != libc::MAP_FAILED, "no {SPARSE} bytes of addresses");
        Sparse { at: at.cast() }
    }

    fn at(&self, offset: usize) -> *mut u32 {
        assert!(offset < SPARSE);
        self.at.wrapping_add(offset).cast()
    }
}

impl Drop for Sparse {
    fn drop(&mut self) {
        // SAFETY: the mapping made above.
        assert_eq!(unsafe { libc::munmap(self.at.cast(), SPARSE) }, 0);
    }
}

#[test]
fn counts_and_offsets_have_64_bits() {
    let Some(host) = host() else { return };
    let (source, target) = (Sparse::new(), Sparse::new());
    // The one member of a large team whose pack lies beyond 4 GiB.
    let at = (4 << 30) + 4096;
    // SAFETY: in the mapping, aligned.
    unsafe { source.at(at).write(21.0_f32.to_bits()) };
    let operands =
        [&source, &source, &target].map(|map| Operand { base: map.at.expose_provenance() as u64, offset: 0 });
    let member = at as u64 / 16;
    let fold = Step {
        count: SPARSE as u64 / 4,
        offset: 0,
        scalar: 0,
        first_source: 0,
        sources: 2,
        first_target: 2,
        targets: 1,
        raw: NOT_RAW,
        divisor: 0,
        kind: 0,
        average: records::NO_AVERAGE,
        first_input: 0,
        inputs: 0,
    };
    host.run(DataType::F32, 0, &fold, &operands, member..member + 1, 1 << 40);
    // SAFETY: in the mapping, aligned.
    assert_eq!(unsafe { target.at(at).read() }, 42.0_f32.to_bits());
    let copy = Step { count: SPARSE as u64, sources: 1, ..fold };
    host.run(DataType::U8, COPY, &copy, &operands, member..member + 1, 1 << 40);
    // SAFETY: in the mapping, aligned.
    assert_eq!(unsafe { target.at(at).read() }, 21.0_f32.to_bits());
}

#[test]
fn a_launch_does_all_of_its_steps() {
    let memory = Flat::new(true);
    let bytes: Vec<u8> = (0..96).collect();
    let (source, target) = (memory.allocate(Some(0), 96), memory.allocate(Some(0), 96));
    memory.write(source, &bytes);
    let operands = [source, target].map(|base| Operand { base, offset: 0 }.bytes()).concat();
    // Three steps, the last of which has nothing to do.
    let step = |offset: u64, count: u64| Step {
        count,
        offset,
        scalar: 0,
        first_source: 0,
        sources: 1,
        first_target: 1,
        targets: 1,
        raw: NOT_RAW,
        divisor: 0,
        kind: 0,
        average: records::NO_AVERAGE,
        first_input: 0,
        inputs: 0,
    };
    for apart in [false, true] {
        memory.write(target, &[0; 96]);
        let parameters = arguments(&memory, &[step(0, 40), step(40, 56), step(96, 0)], &operands, apart);
        let mut config = config(1, 32, parameters);
        (config.weak, config.checks) = (true, true);
        launch(&module(DataType::U8, COPY), "copy", config, &memory).unwrap_or_else(|fault| panic!("{fault}"));
        assert_eq!(memory.read(target, 96), bytes);
    }
}

#[test]
fn every_module_has_its_entry_points_and_the_registers_of_each() {
    for data_type in DataType::ALL {
        for (entry, name) in ENTRIES.iter().enumerate() {
            let function = Arc::clone(module(*data_type, entry).function(name).expect("an entry point"));
            assert_eq!(function.max_threads, 512, "{name}");
            assert!((8..=128).contains(&function.registers_on((9, 0))), "{name}");
        }
    }
}
