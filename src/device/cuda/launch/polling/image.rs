//! Programs as the interpreter reads them: the records of `kernels/program.h`.
//!
//! An image of a lane, of its numbers or of a rank is one piece of memory, so that a block copies it at once. Images of
//! lanes are made once for a program, whatever the count; the rest is made for each launch.

use super::interpreter_of;
use crate::device::Kernel;
use crate::device::records::{
    COMBINE, ENTER, EnterLine, LaneNumbers, LaneRecord, LaunchPart, NONE, OperandRecord, PeerMemory, Records, SIGNAL,
    SLOT_HEADER, SlotQueue, StepRecord,
};
use crate::error::{Error, Result};

/// `MOST_SEATS`: lanes of a block.
const MOST_SEATS: usize = 128;
/// `MOST_OPERANDS` of a step.
const MOST_OPERANDS: u32 = 256;
/// `PartImage::scales`: `scalar` is that of the sources that steps call raw.
const RAW_SOURCES: u32 = 1;
/// The same: it scales the inputs of averages.
const INPUTS_OF_AVERAGES: u32 = 2;

// As the static assertions of program.h.
const _: () = assert!(size_of::<StepRecord>() == 64 && size_of::<OperandRecord>() == 16);
const _: () = assert!(size_of::<PeerMemory>() == 16 && size_of::<EnterLine>() == 64 && SLOT_HEADER == 64);

/// Builds an image of 64-bit words. Fields of 32 bits are added in pairs.
#[derive(Debug, Default)]
struct Words {
    words: Vec<u64>,
}

impl Words {
    fn long(&mut self, value: u64) {
        self.words.push(value);
    }

    fn pair(&mut self, low: u32, high: u32) {
        self.words.push(u64::from(low) | u64::from(high) << 32);
    }

    fn bytes(&self) -> u32 {
        u32::try_from(size_of_val(&self.words[..])).unwrap_or(NONE)
    }
}

/// The arithmetic of a launch, as the interpreter knows it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arithmetic {
    /// The number of the interpreter.
    pub(super) interpreter: usize,
    op: u32,
    element: u32,
    scalar: u64,
    /// Of what `scalar` is: 0, [`RAW_SOURCES`] or [`INPUTS_OF_AVERAGES`].
    scales: u32,
    divisor: u32,
}

impl Arithmetic {
    pub(super) fn of(kernel: &Kernel) -> Arithmetic {
        let (interpreter, op) = interpreter_of(kernel);
        let (scalar, scales) = match (kernel.scalar_bits(), kernel.share_bits()) {
            (Some(scalar), _) => (scalar, RAW_SOURCES),
            (None, Some(share)) => (share, INPUTS_OF_AVERAGES),
            (None, None) => (0, 0),
        };
        Arithmetic {
            interpreter,
            op,
            element: kernel.data_type().size(),
            scalar,
            scales,
            divisor: kernel.divisor().unwrap_or(0),
        }
    }
}

/// One rank's part of a launch.
#[derive(Debug, Clone, Copy)]
pub(super) struct PartWords<'a> {
    pub(super) part: &'a LaunchPart,
    pub(super) arithmetic: Arithmetic,
    /// The status page, as the GPU addresses it.
    pub(super) page: u64,
    /// How many blocks its lanes may have.
    pub(super) blocks: u32,
    /// Whether the blocks ask before their first step whether they must stop: a meeting of processes that comes before
    /// them in the stream may have failed.
    pub(super) asks: bool,
}

/// The images of a program's lanes, behind each other.
#[derive(Debug)]
pub(super) struct LaneImages {
    pub(super) words: Vec<u64>,
    /// The offset in bytes of each lane's image.
    pub(super) places: Vec<u64>,
}

/// `LaneImage`, for each lane.
pub(super) fn lanes(records: &Records) -> Result<LaneImages> {
    let (mut words, mut places) = (Vec::new(), Vec::new());
    for lane in &records.lanes {
        let steps = &records.steps[lane.first_step as usize..][..lane.steps as usize];
        for step in steps.iter().filter(|step| step.kind == COMBINE) {
            if step.sources.saturating_add(step.targets) > MOST_OPERANDS {
                return Err(Error::invalid_usage(format!(
                    "a step of {} sources and {} targets: GPUs take {MOST_OPERANDS} operands; choose another \
                    algorithm (NCCL_ALGO)",
                    step.sources, step.targets
                )));
            }
        }
        places.push(size_of_val(&words[..]) as u64);
        words.extend(lane_words(records, lane, steps));
    }
    Ok(LaneImages { words, places })
}

fn lane_words(records: &Records, lane: &LaneRecord, steps: &[StepRecord]) -> Vec<u64> {
    let operands_of = |step: &StepRecord| (step.kind == COMBINE).then_some((step.first, step.sources + step.targets));
    let ranks_of = |step: &StepRecord| matches!(step.kind, ENTER | SIGNAL).then_some((step.first, step.sources));
    let (first_operand, operands) = span(steps.iter().filter_map(operands_of));
    let (first_rank, ranks) = span(steps.iter().filter_map(ranks_of));
    let mut words = Words::default();
    // The length is known at the end.
    words.pair(0, lane.steps);
    words.pair(operands, lane.flags);
    words.pair(lane.label, 0);
    for step in steps {
        let before = match step.kind {
            COMBINE => first_operand,
            ENTER | SIGNAL => first_rank,
            _ => step.first,
        };
        words.pair(step.block, step.times);
        words.pair(step.first - before, step.sources);
        words.pair(step.targets, step.raw);
        words.pair(step.peer, u32::from_le_bytes([step.kind, step.lag, step.flag, step.finish]));
        words.pair(step.average, step.first_input);
        words.pair(step.inputs, 0);
        (0..2).for_each(|_| words.long(0));
    }
    for operand in &records.operands[first_operand as usize..][..operands as usize] {
        words.pair(operand.kind, operand.base);
        words.pair(operand.buffer, operand.index);
    }
    for pair in records.ranks[first_rank as usize..][..ranks as usize].chunks(2) {
        words.pair(pair[0], pair.get(1).copied().unwrap_or(0));
    }
    words.words[0] |= u64::from(words.bytes());
    words.words
}

/// `NumbersImage`
fn number_words(numbers: &LaneNumbers) -> Vec<u64> {
    let mut words = Words::default();
    // The length is known at the end.
    words.pair(0, numbers.rounds);
    words.pair(numbers.turns, numbers.depth);
    words.long(numbers.piece);
    words.long(numbers.scratch);
    for block in &numbers.blocks {
        [block.input, block.output, block.length].into_iter().for_each(|word| words.long(word));
    }
    words.words[0] |= u64::from(words.bytes());
    words.words
}

/// What holds all of these ranges: its first place and its length.
fn span(ranges: impl Iterator<Item = (u32, u32)>) -> (u32, u32) {
    let (first, end) = ranges
        .filter(|(_, length)| *length > 0)
        .fold((u32::MAX, 0), |(first, end), (at, length)| (first.min(at), end.max(at + length)));
    if end == 0 { (0, 0) } else { (first, end - first) }
}

/// `PartImage`.
fn part_words(rank: &PartWords<'_>) -> Vec<u64> {
    let PartWords { part, arithmetic, page, asks, .. } = *rank;
    let count = |items: usize| u32::try_from(items).unwrap_or(NONE);
    let mut words = Words::default();
    words.long(page);
    words.long(arithmetic.scalar);
    // The length is known at the end.
    words.pair(0, part.rank);
    words.pair(part.layout.ranks, part.layout.lanes);
    words.pair(count(part.bases.len()), count(part.labels.len()));
    words.pair(arithmetic.divisor, arithmetic.scales);
    words.pair(arithmetic.element, arithmetic.op);
    words.pair(u32::from(asks), 0);
    part.bases.iter().for_each(|base| words.long(*base));
    part.labels.iter().flatten().for_each(|word| words.long(*word));
    for peer in part.peers.iter() {
        words.long(peer.control);
        words.long(peer.scratch);
    }
    for queue in &part.queues {
        let SlotQueue { slots, lines, headers, header_stride, payload, tail, head, mine, .. } = *queue;
        let longs = [slots, lines, headers, header_stride, payload, tail, head, mine];
        longs.into_iter().for_each(|word| words.long(word));
        words.pair(queue.count, queue.rank);
    }
    words.words[2] |= u64::from(words.bytes());
    words.words
}

/// Where the images of a launch's blocks lie, and how many there are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Blocks {
    pub(super) address: u64,
    pub(super) count: u32,
}

/// The images that belong to one launch, for memory that begins at `address`: first those of blocks, then those of
/// ranks, numbers and seats. `lanes` holds the places of each rank's lane images.
pub(super) fn launch(parts: &[PartWords<'_>], lanes: &[Vec<u64>], address: u64) -> Result<(Vec<u64>, Blocks)> {
    let mut blocks: Vec<(usize, Vec<Seat>)> = Vec::new();
    for (number, (rank, lanes)) in parts.iter().zip(lanes).enumerate() {
        blocks.extend(shared_out(rank, lanes)?.into_iter().map(|seats| (number, seats)));
    }
    let count = u32::try_from(blocks.len()).unwrap_or(NONE);
    let mut behind = Words::default();
    let begin = address + blocks.len() as u64 * BLOCK_BYTES;
    let place = |behind: &Words| begin + u64::from(behind.bytes());
    let mut ranks = Vec::with_capacity(parts.len());
    for rank in parts {
        ranks.push(place(&behind));
        behind.words.extend(part_words(rank));
    }
    let mut words = Words::default();
    for (rank, seats) in &blocks {
        let numbers = &parts[*rank].part.numbers.lanes;
        let mut places = Vec::with_capacity(seats.len());
        for seat in seats {
            places.push(place(&behind));
            behind.words.extend(numbers.get(seat.number).map(number_words).unwrap_or_default());
        }
        words.long(ranks[*rank]);
        words.long(place(&behind));
        words.pair(u32::try_from(seats.len()).unwrap_or(NONE), 0);
        for (seat, numbers) in seats.iter().zip(places) {
            behind.long(seat.image);
            behind.long(numbers);
            behind.pair(seat.after, 0);
        }
    }
    words.words.extend(behind.words);
    Ok((words.words, Blocks { address, count }))
}

/// `sizeof(BlockImage)`
const BLOCK_BYTES: u64 = 24;

/// A lane of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seat {
    /// Which of its rank's lanes it is.
    number: usize,
    /// Where its image lies.
    image: u64,
    /// The seat of the lane that must end before it, in the same block.
    after: u32,
}

/// Distributes the lanes of a rank over its blocks. Lanes that follow each other go to the same block.
fn shared_out(rank: &PartWords<'_>, places: &[u64]) -> Result<Vec<Vec<Seat>>> {
    let records = &rank.part.records.lanes;
    let heads = records.iter().filter(|lane| lane.after == NONE).count();
    let mut blocks: Vec<Vec<Seat>> = vec![Vec::new(); heads.min(rank.blocks as usize)];
    let mut at: Vec<(usize, u32)> = Vec::with_capacity(records.len());
    let mut next = 0;
    for (number, (lane, image)) in records.iter().zip(places).enumerate() {
        let before = (lane.after != NONE).then(|| at.get(lane.after as usize).copied()).flatten();
        let (block, after) = before.unwrap_or_else(|| {
            next += 1;
            ((next - 1) % blocks.len(), NONE)
        });
        at.push((block, u32::try_from(blocks[block].len()).unwrap_or(NONE)));
        blocks[block].push(Seat { number, image: *image, after });
    }
    if let Some(full) = blocks.iter().find(|seats| seats.len() > MOST_SEATS) {
        return Err(Error::invalid_usage(format!(
            "a call of rank {} has {} lanes or messages for one block of the GPU, and {MOST_SEATS} fit: make \
            groups of fewer messages",
            rank.part.rank,
            full.len()
        )));
    }
    Ok(blocks)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::device::StatusPage;
    use crate::device::headers::constant;
    use crate::device::records::{BlockNumbers, ControlLayout, Numbers, Reduction};
    use crate::sync::primitive::Arc;
    use crate::types::{DataType, ReduceOp};

    const HEADER: &str = include_str!("../../../../../kernels/program.h");

    /// Where the fields of a record of program.h lie, with the bytes of each, as C++ lays them out.
    struct Fields {
        places: BTreeMap<&'static str, (usize, usize)>,
        bytes: usize,
    }

    impl Fields {
        fn of(record: &str) -> Fields {
            let after = HEADER.split_once(&format!("\nstruct {record} {{\n")).expect("program.h has the record").1;
            let (mut places, mut at) = (BTreeMap::new(), 0);
            for line in after.split_once("};").expect("it ends").0.lines() {
                let declared = line.split("//").next().unwrap_or_default().trim().trim_end_matches(';');
                let Some((width, name)) = declared.split_once(' ') else { continue };
                let width = ["u8", "", "", "u32", "", "", "", "u64"].iter().position(|name| *name == width);
                let width = width.unwrap_or_else(|| panic!("{record}: {line}")) + 1;
                let (name, count) = name.split_once('[').unwrap_or((name, "1]"));
                assert!(at % width == 0, "{record}: a gap before {name}");
                places.insert(name, (at, width));
                at += width * count.trim_end_matches(']').parse::<usize>().expect("a number");
            }
            Fields { places, bytes: at }
        }

        /// The fields of the record at `offset`, in the order of the names.
        #[track_caller]
        fn must_be(&self, words: &[u64], offset: usize, expected: &[(&str, u64)]) {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            for (name, value) in expected {
                let (at, width) = self.places[name];
                let found = bytes[offset + at..][..width].iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte));
                assert_eq!(found, *value, "{name}");
            }
        }
    }

    fn records() -> Records {
        let step = StepRecord { block: 11, times: 12, sources: 2, ..StepRecord::default() };
        let combine = StepRecord { targets: 1, raw: 16, peer: 17, kind: COMBINE, lag: 18, flag: 1, finish: 1, ..step };
        let combine = StepRecord { average: 3, first_input: 19, inputs: 20, ..combine };
        let operand = |kind| OperandRecord { kind, base: 41, buffer: 42, index: 43 };
        Records {
            lanes: vec![LaneRecord { steps: 2, flags: 5, after: NONE, label: 7, ..LaneRecord::default() }],
            steps: vec![combine, StepRecord { kind: SIGNAL, flag: 6, ..step }],
            operands: vec![operand(0), operand(1), operand(2)],
            ranks: vec![21, 22],
        }
    }

    #[test]
    fn kernels_have_the_same_constants() {
        let host = [MOST_SEATS as u64, MOST_OPERANDS.into(), RAW_SOURCES.into(), INPUTS_OF_AVERAGES.into()];
        assert_eq!(host, ["MOST_SEATS", "MOST_OPERANDS", "RAW_SOURCES", "INPUTS_OF_AVERAGES"].map(constant));
    }

    #[test]
    fn images_of_lanes_and_numbers_lie_as_the_kernels_read_them() {
        let images = lanes(&records()).unwrap();
        let (lane, step, operand) = (Fields::of("LaneImage"), Fields::of("StepRecord"), Fields::of("OperandRecord"));
        let words = &images.words;
        let whole = size_of_val(&words[..]);
        let header = [("bytes", whole as u64), ("steps", 2), ("operands", 3), ("flags", 5), ("label", 7)];
        lane.must_be(words, 0, &header);
        let numbered = [("block", 11), ("times", 12), ("first", 0), ("sources", 2)];
        let first = [("targets", 1), ("raw", 16), ("peer", 17), ("kind", 1), ("lag", 18), ("flag", 1), ("finish", 1)];
        let third = [("average", 3), ("first_input", 19), ("inputs", 20)];
        step.must_be(words, lane.bytes, &[&numbered[..], &first, &third].concat());
        let second = [("targets", 0), ("kind", 2), ("lag", 0), ("flag", 6), ("finish", 0)];
        step.must_be(words, lane.bytes + step.bytes, &[&numbered[..], &second].concat());
        let behind = lane.bytes + 2 * step.bytes;
        for kind in 0..3 {
            let fields = [("kind", kind), ("base", 41), ("buffer", 42), ("index", 43)];
            operand.must_be(words, behind + usize::try_from(kind).unwrap() * operand.bytes, &fields);
        }
        assert_eq!(words[(behind + 3 * operand.bytes) / 8], 21 | 22 << 32);
        assert_eq!(whole, behind + 3 * operand.bytes + 8);

        let (numbers, block) = (Fields::of("NumbersImage"), Fields::of("BlockNumbers"));
        let blocks = vec![BlockNumbers { input: 36, output: 37, length: 38 }];
        let words = number_words(&LaneNumbers { rounds: 31, turns: 32, piece: 33, depth: 34, scratch: 35, blocks });
        let bytes = size_of_val(&words[..]) as u64;
        let fields = [("bytes", bytes), ("rounds", 31), ("turns", 32), ("depth", 34), ("piece", 33), ("scratch", 35)];
        numbers.must_be(&words, 0, &fields);
        block.must_be(&words, numbers.bytes, &[("input", 36), ("output", 37), ("length", 38)]);
    }

    #[test]
    fn images_of_blocks_and_ranks_lie_as_the_kernels_read_them() {
        let queue = SlotQueue {
            rank: 61,
            sends: true,
            slots: 62,
            headers: 69,
            header_stride: 70,
            lines: 68,
            count: 63,
            payload: 64,
            tail: 65,
            head: 66,
            mine: 67,
        };
        let numbers = Numbers { lanes: vec![LaneNumbers { rounds: 31, ..LaneNumbers::default() }], longest: 1 };
        let part = LaunchPart {
            records: Arc::new(records()),
            numbers: Arc::new(numbers),
            folding: Reduction { data_type: DataType::F32, op: Some(ReduceOp::Sum), world: 2 },
            rank: 1,
            labels: vec![[51, 52, 53]],
            bases: vec![54, 55, 56],
            layout: ControlLayout { ranks: 2, lanes: 9 },
            peers: [PeerMemory { control: 57, scratch: 58 }; 2].into(),
            queues: vec![queue],
            status: Arc::new(StatusPage::new().unwrap()),
            keep: Vec::new(),
            across: None,
        };
        let arithmetic = Arithmetic { interpreter: 0, op: 71, element: 4, scalar: 72, scales: 75, divisor: 73 };
        let rank = PartWords { part: &part, arithmetic, page: 74, blocks: 4, asks: true };
        let (words, blocks) = launch(&[rank], &[vec![8_000]], ADDRESS).unwrap();
        assert_eq!((blocks.address, blocks.count), (ADDRESS, 1));
        let [block, image, seat] = ["BlockImage", "PartImage", "SeatImage"].map(Fields::of);
        assert_eq!(block.bytes as u64, BLOCK_BYTES);
        // The image of the rank lies behind that of the block, then the numbers of the lane, then its seat.
        let at = block.bytes;
        let bases = at + image.bytes;
        let peers = bases + 8 * 3 + 8 * 3;
        let (peer, queues) = (Fields::of("PeerMemory"), Fields::of("QueueImage"));
        let numbers = peers + 2 * peer.bytes + queues.bytes;
        let seats = numbers + Fields::of("NumbersImage").bytes;
        block.must_be(&words, 0, &[("part", ADDRESS + at as u64), ("seats", ADDRESS + seats as u64), ("count", 1)]);
        let told = [("status", 74), ("scalar", 72), ("bytes", (numbers - at) as u64), ("rank", 1), ("ranks", 2)];
        image.must_be(&words, at, &told);
        let told = [("lanes", 9), ("bases", 3), ("labels", 1), ("divisor", 73), ("scales", 75), ("element", 4)];
        image.must_be(&words, at, &[&told[..], &[("op", 71), ("asks", 1), ("reserved", 0)]].concat());
        assert_eq!(words[bases / 8..][..6], [54, 55, 56, 51, 52, 53]);
        peer.must_be(&words, peers + peer.bytes, &[("control", 57), ("scratch", 58)]);
        let ends =
            [("slots", 62), ("payload", 64), ("tail", 65), ("head", 66), ("mine", 67), ("count", 63), ("rank", 61)];
        queues.must_be(
            &words,
            peers + 2 * peer.bytes,
            &[&ends[..], &[("lines", 68), ("headers", 69), ("header_stride", 70)]].concat(),
        );
        Fields::of("NumbersImage").must_be(&words, numbers, &[("rounds", 31)]);
        let lane = [("lane", 8_000), ("numbers", ADDRESS + numbers as u64), ("after", u64::from(NONE))];
        seat.must_be(&words, seats, &lane);
        assert_eq!(size_of_val(&words[..]), seats + seat.bytes);
    }

    const ADDRESS: u64 = 1 << 20;
}
