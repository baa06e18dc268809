//! What a launch hands to a kernel: the records of `kernels/abi.h`, and the shape of the grid.

use super::kernels::{BitOp, EntryPoint, FoldOp};
use crate::device::{Average, Kernel, Pass, records};
use crate::types::{DataType, ReduceOp};

/// Threads of a block at most, as the kernels are compiled (`kernels/launch.h`).
pub(super) const THREADS: u32 = 512;
/// Threads of a warp: a block of fewer would leave its lanes idle.
const WARP: u32 = 32;
/// Bytes that a thread moves at once.
const PACK_BYTES: u64 = 16;

/// `FoldOperand`: where an operand's bytes begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device::cuda) struct FoldOperand {
    /// Device address.
    pub(in crate::device::cuda) base: u64,
    /// Bytes from there.
    pub(in crate::device::cuda) offset: u64,
}

/// `FoldStep`: a fold or copy. The operands are numbered from the first source on, and the targets follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device::cuda) struct FoldStep {
    /// Elements; of copies and folds of bits, bytes.
    pub(in crate::device::cuda) count: u64,
    /// Bytes, added to each operand's place.
    pub(in crate::device::cuda) offset: u64,
    /// What the raw source, or an average's inputs, are multiplied by: bits of the accumulators' type.
    pub(in crate::device::cuda) scalar: u64,
    /// Place of the first source in the table of operands.
    pub(super) first_source: u32,
    /// How many sources.
    pub(in crate::device::cuda) sources: u32,
    /// Place of the first target.
    pub(super) first_target: u32,
    /// How many targets.
    pub(in crate::device::cuda) targets: u32,
    /// Which source is multiplied.
    pub(in crate::device::cuda) raw: Option<u32>,
    /// What the result is divided by; 0: nothing.
    pub(super) divisor: u32,
    /// How an average adds up: one of [`records`]' numbers from [`records::NO_AVERAGE`] to [`records::SHARES`].
    pub(in crate::device::cuda) average: u32,
    /// Of [`records::SHARES`]: the first source that is an input.
    pub(super) first_input: u32,
    /// How many inputs there are.
    pub(in crate::device::cuda) inputs: u32,
}

/// `NOT_RAW`
const NOT_RAW: u32 = u32::MAX;
/// Words of a step, of an operand, and of what precedes the tables in `Arguments`.
const STEP_WORDS: usize = 8;
const OPERAND_WORDS: usize = 2;
const HEAD_WORDS: usize = 3;
/// `PARAMETER_BYTES`, in words.
const PARAMETER_WORDS: usize = 4096 / 8;

impl FoldStep {
    /// As the kernels read it.
    fn words(&self) -> [u64; STEP_WORDS] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        [
            self.count,
            self.offset,
            self.scalar,
            pair(self.first_source, self.sources),
            pair(self.first_target, self.targets),
            pair(self.raw.unwrap_or(NOT_RAW), self.divisor),
            // A fold or a copy.
            pair(0, self.average),
            pair(self.first_input, self.inputs),
        ]
    }
}

/// `Arguments`: the parameter of a launch.
pub(in crate::device::cuda) struct Arguments {
    words: [u64; PARAMETER_WORDS],
    used: usize,
}

impl Arguments {
    /// The tables themselves; `None` if they do not fit.
    pub(in crate::device::cuda) fn inline(steps: &[FoldStep], operands: &[FoldOperand]) -> Option<Arguments> {
        if !Arguments::fit(steps.len(), operands.len()) {
            return None;
        }
        let used = HEAD_WORDS + table_words(steps, operands);
        let mut words = [0; PARAMETER_WORDS];
        words[2] = steps.len() as u64;
        write_tables(steps, operands, &mut words[HEAD_WORDS..used]);
        Some(Arguments { words, used })
    }

    /// Whether the parameter holds tables of so many steps and operands.
    pub(in crate::device::cuda) fn fit(steps: usize, operands: usize) -> bool {
        HEAD_WORDS + steps * STEP_WORDS + operands * OPERAND_WORDS <= PARAMETER_WORDS
    }

    /// Tables that lie in memory, written there by [`write_tables`].
    pub(super) fn apart(address: u64, steps: usize) -> Arguments {
        let mut words = [0; PARAMETER_WORDS];
        words[0] = address;
        words[1] = address + (steps * STEP_WORDS * size_of::<u64>()) as u64;
        words[2] = steps as u64;
        Arguments { words, used: HEAD_WORDS }
    }

    /// The first byte of the parameter.
    pub(in crate::device::cuda) fn as_mut_ptr(&mut self) -> *mut u64 {
        self.words.as_mut_ptr()
    }

    /// How many bytes of it are used.
    pub(in crate::device::cuda) fn bytes(&self) -> usize {
        self.used * size_of::<u64>()
    }
}

/// Words that both tables take.
pub(super) fn table_words(steps: &[FoldStep], operands: &[FoldOperand]) -> usize {
    steps.len() * STEP_WORDS + operands.len() * OPERAND_WORDS
}

/// Writes the steps, then the operands. The place has [`table_words`] words.
pub(super) fn write_tables(steps: &[FoldStep], operands: &[FoldOperand], into: &mut [u64]) {
    let (first, second) = into.split_at_mut(steps.len() * STEP_WORDS);
    for (place, step) in first.chunks_exact_mut(STEP_WORDS).zip(steps) {
        place.copy_from_slice(&step.words());
    }
    for (place, operand) in second.chunks_exact_mut(OPERAND_WORDS).zip(operands) {
        place.copy_from_slice(&[operand.base, operand.offset]);
    }
}

/// Blocks and threads of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device::cuda) struct GridShape {
    pub(in crate::device::cuda) blocks: u32,
    pub(in crate::device::cuda) threads: u32,
}

impl GridShape {
    /// For operands of `bytes` on a GPU that holds `resident` such blocks at once.
    pub(in crate::device::cuda) fn of(bytes: u64, resident: u32) -> GridShape {
        let packs = bytes.div_ceil(PACK_BYTES).max(1);
        let blocks = packs.div_ceil(u64::from(THREADS)).min(u64::from(resident.max(1)));
        let threads = packs.min(u64::from(THREADS));
        let narrow = |value: u64| u32::try_from(value).expect("bounded by a 32-bit number");
        GridShape { blocks: narrow(blocks), threads: narrow(threads).next_multiple_of(WARP) }
    }
}

/// What a pass is to the kernels of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device::cuda) struct PassKind {
    pub(in crate::device::cuda) entry: EntryPoint,
    /// Bytes of a unit of the step's count: an element, or one byte.
    unit: u64,
    scalar: u64,
    raw: Option<u32>,
    divisor: u32,
    average: u32,
    first_input: u32,
    inputs: u32,
    element: u64,
}

impl PassKind {
    /// A pass of `kernel` on `sources` operands, the `raw` of which is this rank's own, with a final result or not.
    pub(in crate::device::cuda) fn new(
        kernel: &Kernel,
        sources: usize,
        raw: Option<usize>,
        (finish, average): (bool, Average),
    ) -> PassKind {
        let (data_type, op) = (kernel.data_type(), kernel.op());
        let element = u64::from(data_type.size());
        let copies = sources == 1 && kernel.is_copy(raw, finish, average);
        let entry = op.filter(|_| !copies).map_or(EntryPoint::Copy, |op| entry_of(data_type, op));
        let mut work = PassKind {
            entry,
            unit: 1,
            scalar: 0,
            raw: None,
            divisor: 0,
            average: records::NO_AVERAGE,
            first_input: 0,
            inputs: 0,
            element,
        };
        if let EntryPoint::Fold(..) = entry {
            work.unit = element;
            work.divisor = kernel.divisor().filter(|_| finish).unwrap_or(0);
            if let Some(bits) = kernel.scalar_bits() {
                work.scalar = bits;
                work.raw = raw.and_then(|raw| u32::try_from(raw).ok());
            } else if kernel.divisor().is_some() {
                work.adds_up(kernel.share_bits(), sources, (finish, average));
            }
        }
        work
    }

    /// Sets how an average adds up, whose inputs are multiplied by `share` where they are scaled.
    fn adds_up(&mut self, share: Option<u64>, sources: usize, (finish, average): (bool, Average)) {
        self.average = if finish { records::DIVIDED } else { records::NO_AVERAGE };
        let Some(share) = share else { return };
        match average {
            Average::Sum => {}
            Average::Whole if !finish => {}
            Average::Whole => (self.average, self.scalar) = (records::WHOLE, share),
            Average::Parts(inputs) => {
                let number = |place: usize| u32::try_from(place).unwrap_or(u32::MAX);
                let inputs = inputs.among(sources);
                (self.average, self.scalar) = (records::SHARES, share);
                (self.first_input, self.inputs) = (number(inputs.start), number(inputs.len()));
            }
        }
    }

    /// The step for `count` elements, with the targets behind the sources in the table of operands.
    pub(in crate::device::cuda) fn step(
        &self,
        count: u64,
        (first_source, sources): (u32, u32),
        targets: u32,
    ) -> FoldStep {
        FoldStep {
            count: count * (self.element / self.unit),
            offset: 0,
            scalar: self.scalar,
            first_source,
            sources,
            first_target: first_source + sources,
            targets,
            raw: self.raw,
            divisor: self.divisor,
            average: self.average,
            first_input: self.first_input,
            inputs: self.inputs,
        }
    }

    /// Bytes of `count` elements.
    pub(in crate::device::cuda) fn bytes(&self, count: u64) -> u64 {
        count * self.element
    }
}

/// The kernel of an operator; sums that scale or divide have one of their own.
pub(super) fn entry_of(data_type: DataType, op: ReduceOp) -> EntryPoint {
    let fold = match op {
        ReduceOp::Sum => FoldOp::Sum,
        ReduceOp::Avg | ReduceOp::PreMulSum(_) => FoldOp::ScaledSum,
        ReduceOp::Prod => FoldOp::Prod,
        ReduceOp::Min => FoldOp::Min,
        ReduceOp::Max => FoldOp::Max,
        ReduceOp::BitAnd => return EntryPoint::Bits(BitOp::And),
        ReduceOp::BitOr => return EntryPoint::Bits(BitOp::Or),
        ReduceOp::BitXor => return EntryPoint::Bits(BitOp::Xor),
    };
    EntryPoint::Fold(data_type, fold)
}

/// The operands of a pass, the sources first.
pub(super) fn operands_of(pass: &Pass<'_>) -> Vec<FoldOperand> {
    let place = |address: usize| FoldOperand { base: address as u64, offset: 0 };
    let sources = pass.sources.iter().map(|source| place(source.addr()));
    sources.chain(pass.targets.iter().map(|target| place(target.addr()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::headers::constant;
    use crate::types::Scalar;

    #[test]
    fn kernels_have_the_same_constants() {
        let host = [u64::from(THREADS), PACK_BYTES, u64::from(NOT_RAW), 8 * PARAMETER_WORDS as u64];
        assert_eq!(host, ["THREADS", "PACK", "NOT_RAW", "PARAMETER_BYTES"].map(constant));
        let averages = [records::NO_AVERAGE, records::DIVIDED, records::WHOLE, records::SHARES].map(u64::from);
        assert_eq!(averages, ["NO_AVERAGE", "DIVIDED", "WHOLE", "SHARES"].map(constant));
    }

    #[test]
    fn small_tables_travel_with_the_launch_and_large_ones_lie_apart() {
        let step = FoldStep {
            count: 5,
            offset: 0,
            scalar: 9,
            first_source: 0,
            sources: 2,
            first_target: 2,
            targets: 1,
            raw: None,
            divisor: 3,
            average: records::SHARES,
            first_input: 1,
            inputs: 7,
        };
        let operands = [FoldOperand { base: 4096, offset: 8 }; 3];
        let arguments = Arguments::inline(&[step], &operands).unwrap();
        assert_eq!(arguments.bytes(), 24 + 64 + 3 * 16);
        assert_eq!(arguments.words[..6], [0, 0, 1, 5, 0, 9]);
        assert_eq!(arguments.words[6..9], [2 << 32, 2 | 1 << 32, u64::from(u32::MAX) | 3 << 32]);
        assert_eq!(arguments.words[9..13], [3 << 32, 1 | 7 << 32, 4096, 8]);
        // 4,072 bytes are left: a step and 250 operands.
        assert!(Arguments::inline(&[step], &[operands[0]; 250]).is_some());
        assert!(Arguments::inline(&[step], &[operands[0]; 251]).is_none());
        let apart = Arguments::apart(1 << 20, 2);
        assert_eq!((apart.words[0], apart.words[1], apart.words[2], apart.bytes()), (1 << 20, (1 << 20) + 128, 2, 24));
    }

    #[test]
    fn a_grid_has_what_the_bytes_need_and_the_gpu_holds() {
        let shape = |bytes, resident| {
            let shape = GridShape::of(bytes, resident);
            (shape.blocks, shape.threads)
        };
        assert_eq!(shape(0, 264), (1, 32));
        assert_eq!(shape(8, 264), (1, 32));
        assert_eq!(shape(16 * 33, 264), (1, 64));
        assert_eq!(shape(8 << 10, 264), (1, 512));
        assert_eq!(shape((8 << 10) + 1, 264), (2, 512));
        assert_eq!(shape(1 << 40, 264), (264, 512));
    }

    #[test]
    fn a_pass_becomes_the_kernel_of_its_type_and_operator() {
        let work = |op, sources, raw, finish| {
            PassKind::new(&Kernel::reduce(DataType::F16, op, 4).unwrap(), sources, raw, (finish, Average::Sum))
        };
        assert_eq!(work(ReduceOp::Sum, 1, None, true).entry, EntryPoint::Copy);
        assert_eq!(work(ReduceOp::Sum, 2, None, true).entry, EntryPoint::Fold(DataType::F16, FoldOp::Sum));
        let average = work(ReduceOp::Avg, 1, None, true);
        assert_eq!((average.entry, average.divisor), (EntryPoint::Fold(DataType::F16, FoldOp::ScaledSum), 4));
        assert_eq!(work(ReduceOp::Avg, 2, None, false).divisor, 0);
        let scaled = work(ReduceOp::PreMulSum(Scalar::Float(0.5)), 2, Some(1), true);
        assert_eq!((scaled.raw, scaled.scalar), (Some(1), u64::from(0.5_f32.to_bits())));
        assert_eq!(work(ReduceOp::PreMulSum(Scalar::Float(0.5)), 1, None, true).entry, EntryPoint::Copy);
        let bits = PassKind::new(&Kernel::reduce(DataType::I32, ReduceOp::BitXor, 4).unwrap(), 3, Some(0), LAST);
        assert_eq!((bits.entry, bits.raw), (EntryPoint::Bits(BitOp::Xor), None));
        assert_eq!(bits.step(5, (0, 3), 1).count, 20);
        assert_eq!(average.step(5, (0, 1), 1).count, 5);
        assert_eq!(PassKind::new(&Kernel::copy(DataType::F64), 1, None, LAST).step(3, (7, 1), 2).first_target, 8);
    }

    const LAST: (bool, Average) = (true, Average::Sum);

    /// The number and the scalar of an average, its divisor and its inputs.
    #[track_caller]
    fn must_add_up(work: PassKind, (average, scalar): (u32, u64), divisor: u32, inputs: (u32, u32)) {
        let step = work.step(5, (0, 3), 1);
        assert_eq!((step.average, step.scalar, step.divisor), (average, scalar, divisor));
        assert_eq!((step.first_input, step.inputs, step.raw), (inputs.0, inputs.1, None));
    }

    #[test]
    fn an_average_tells_its_kernel_which_sources_it_scales() {
        let parts = Average::Parts((1..9).into());
        let work = |data_type, sources, how| {
            PassKind::new(&Kernel::reduce(data_type, ReduceOp::Avg, 3).unwrap(), sources, Some(0), how)
        };
        // Of three ranks 2^-2 for f16; 2^-3 for the others.
        let (quarter, eighth) = (u64::from(0.25_f32.to_bits()), u64::from(0.125_f32.to_bits()));
        must_add_up(work(DataType::F16, 3, (false, parts)), (records::SHARES, quarter), 0, (1, 2));
        must_add_up(work(DataType::BF16, 3, (true, parts)), (records::SHARES, eighth), 3, (1, 2));
        must_add_up(work(DataType::F32, 3, (true, Average::Whole)), (records::WHOLE, eighth), 3, (0, 0));
        must_add_up(work(DataType::F32, 3, (false, Average::Whole)), (records::NO_AVERAGE, 0), 0, (0, 0));
        must_add_up(work(DataType::F64, 3, (true, parts)), (records::SHARES, 0.125_f64.to_bits()), 3, (1, 2));
        for data_type in [DataType::F8E4M3, DataType::F8E5M2, DataType::I32] {
            must_add_up(work(data_type, 3, (true, parts)), (records::DIVIDED, 0), 3, (0, 0));
            must_add_up(work(data_type, 3, (false, parts)), (records::NO_AVERAGE, 0), 0, (0, 0));
        }
        // One source is copied, unless it is an input.
        let input = Average::Parts((0..1).into());
        assert_eq!(work(DataType::F16, 1, (false, parts)).entry, EntryPoint::Copy);
        assert_eq!(work(DataType::F16, 1, (false, input)).entry, EntryPoint::Fold(DataType::F16, FoldOp::ScaledSum));
    }
}
