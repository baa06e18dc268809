//! Programs as the interpreter reads them: the records of `kernels/program.h`.
//!
//! An image of a lane, of its numbers or of a rank is one piece of memory, so that a block copies it at once. Images of
//! lanes are made once for a program, whatever the count; the rest is made for each launch.

use super::interpreter_of;
use crate::device::Kernel;
use crate::device::records::{
    COMBINE, ENTER, EnterLine, LaneNumbers, LaneRecord, LaunchPart, NONE, OperandRecord, PeerMemory, Records, SIGNAL,
    SLOT_HEADER, StepRecord,
};
use crate::error::{Error, Result};

/// `MOST_SEATS`: lanes of a block.
const MOST_SEATS: usize = 128;
/// `MOST_OPERANDS` of a step.
const MOST_OPERANDS: u32 = 256;

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
    scalar: Option<u64>,
    divisor: u32,
}

impl Arithmetic {
    pub(super) fn of(kernel: &Kernel) -> Arithmetic {
        let (interpreter, op) = interpreter_of(kernel);
        Arithmetic {
            interpreter,
            op,
            element: kernel.data_type().size(),
            scalar: kernel.scalar_bits(),
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
        (0..4).for_each(|_| words.long(0));
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
    let PartWords { part, arithmetic, page, .. } = *rank;
    let count = |items: usize| u32::try_from(items).unwrap_or(NONE);
    let mut words = Words::default();
    words.long(page);
    words.long(arithmetic.scalar.unwrap_or(0));
    // The length is known at the end.
    words.pair(0, part.rank);
    words.pair(part.layout.ranks, part.layout.lanes);
    words.pair(count(part.bases.len()), count(part.labels.len()));
    words.pair(arithmetic.divisor, u32::from(arithmetic.scalar.is_some()));
    words.pair(arithmetic.element, arithmetic.op);
    words.long(0);
    part.bases.iter().for_each(|base| words.long(*base));
    part.labels.iter().flatten().for_each(|word| words.long(*word));
    for peer in part.peers.iter() {
        words.long(peer.control);
        words.long(peer.scratch);
    }
    for queue in &part.queues {
        [queue.slots, queue.payload, queue.tail, queue.head, queue.mine].into_iter().for_each(|word| words.long(word));
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
