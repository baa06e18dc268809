//! A program as devices run it: plain records of fixed sizes, what a launch adds to them, and where the words lie in
//! device memory by which ranks wait for each other.
//!
//! # How a lane runs
//! As `plan` says, with these words for its terms. A lane begins when the lane that it stands `after` has ended. It
//! walks its steps [`LaneNumbers::turns`] times; a step runs in the turns whose round (turn − lag) is below
//! [`LaneNumbers::rounds`], an [`ENTER`] in the first turn alone.
//!
//! Records name no count: all that depends on it stands in a launch's [`Numbers`], so one program serves many counts.
//!
//! | step | what the lane does |
//! |---|---|
//! | [`ENTER`] | writes an [`EnterLine`] to each rank in the list, waits for theirs, and has their buffers from them |
//! | [`COMBINE`] | waits for full source and free target slots, folds sources into targets, gives the slots on |
//! | [`SIGNAL`] | raises its flag to `base + round + 1` in the memory of each rank in the list |
//! | [`WAIT`] | waits until the flag of `peer` in its own memory has come to `base + round + 1` |
//!
//! Slots are those of Simple: the receiver waits for their count. By other protocols the words of a message carry flags
//! ([`super::lines`]).
//!
//! All that a rank waits for lies in its own memory. Words only grow: a lane keeps its epoch (how often it has run)
//! and the base of its flags in [`ControlLayout::state`], takes them when it begins, and leaves them advanced when it
//! ends. So a launch can be captured and replayed with no host in between.

use std::mem::{align_of, offset_of, size_of};

use crate::device::{Average, Region};
use crate::sync::primitive::Arc;
use crate::sync::ring::Label;
use crate::types::{DataType, ReduceOp};

pub use super::status::{LaunchFault, StatusPage};

/// A lane of a program.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LaneRecord {
    /// The place of its first step in [`Records::steps`].
    pub first_step: u32,
    /// How many steps it has.
    pub steps: u32,
    /// The number of the lane's flags and of its epoch, or [`NONE`] where it has neither windows nor flags.
    pub flags: u32,
    /// The lane that must have ended before this one begins, or [`NONE`].
    pub after: u32,
    /// The place of its label in [`LaunchPart::labels`].
    pub label: u32,
    /// Zero.
    pub reserved: u32,
}

/// A step of a lane.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepRecord {
    /// The place in [`LaneNumbers::blocks`] of the block that it covers over all rounds.
    pub block: u32,
    /// How many blocks of that length, side by side in memory, move together; the piece is as many times as long.
    pub times: u32,
    /// The place of its first source in [`Records::operands`]; its targets follow its sources. Of a signal or an
    /// entering: of the first rank in [`Records::ranks`].
    pub first: u32,
    /// How many sources; of a signal or an entering: how many ranks.
    pub sources: u32,
    /// How many targets.
    pub targets: u32,
    /// Which source the rank's own scalar is applied to, or [`NONE`].
    pub raw: u32,
    /// The rank whose flag is waited for. Of a combine that takes a message: the protocols by which the message may
    /// come ([`super::lines::bit`]), because its sender, with another count, would choose another.
    pub peer: u32,
    /// [`ENTER`], [`COMBINE`], [`SIGNAL`] or [`WAIT`].
    pub kind: u8,
    /// Rounds that the step runs behind the first.
    pub lag: u8,
    /// Which flag is raised or waited for. Of a combine: [`EVEN_EMPTY`] in a lane of a message, where a round without
    /// elements takes and gives slots too; else 0.
    pub flag: u8,
    /// 1 where an average is divided now, else 0.
    pub finish: u8,
    /// How an average adds up: [`WHOLE`] or [`SHARES`]; in copies, which are none, [`NO_AVERAGE`].
    pub average: u32,
    /// Of [`SHARES`]: the first source that is a rank's input.
    pub first_input: u32,
    /// Of [`SHARES`]: how many such sources there are, side by side.
    pub inputs: u32,
    /// Zero.
    pub reserved: [u32; 5],
}

/// A place that a step reads or writes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OperandRecord {
    /// [`OWN`], [`PEER`] or [`SLOT`]; of a slot of another protocol than Simple, [`super::lines::slot_kind`].
    pub kind: u32,
    /// Of [`OWN`]: the place in [`LaunchPart::bases`]. Of [`PEER`]: the rank. Of slots: the place in
    /// [`LaunchPart::queues`].
    pub base: u32,
    /// Of [`OWN`] and [`PEER`]: [`INPUT`], [`OUTPUT`] or [`SCRATCH`]; of a buffer of messages, which has one block,
    /// [`INPUT`].
    pub buffer: u32,
    /// Of [`INPUT`] and [`OUTPUT`]: the place in [`LaneNumbers::blocks`] of the block that lies there. Of [`SCRATCH`]:
    /// the region.
    pub index: u32,
}

/// [`StepRecord::kind`]: enters.
pub const ENTER: u8 = 0;
/// [`StepRecord::kind`]: reduces or copies.
pub const COMBINE: u8 = 1;
/// [`StepRecord::kind`]: raises a flag.
pub const SIGNAL: u8 = 2;
/// [`StepRecord::kind`]: waits for a flag.
pub const WAIT: u8 = 3;

/// [`StepRecord::average`]: none.
pub const NO_AVERAGE: u32 = 0;
/// How a kernel finishes an average that is not scaled: the sum is divided. The average of no step.
pub const DIVIDED: u32 = 1;
/// [`StepRecord::average`]: [`Average::Whole`].
pub const WHOLE: u32 = 2;
/// [`StepRecord::average`]: [`Average::Parts`].
pub const SHARES: u32 = 3;

/// [`StepRecord::flag`] of a combine: see there.
pub const EVEN_EMPTY: u8 = 1;

/// [`OperandRecord::kind`]: a buffer of the rank itself.
pub const OWN: u32 = 0;
/// [`OperandRecord::kind`]: a buffer of another rank.
pub const PEER: u32 = 1;
/// [`OperandRecord::kind`]: the next slot of a connection.
pub const SLOT: u32 = 2;

/// The place of the input in [`LaunchPart::bases`], and [`OperandRecord::buffer`].
pub const INPUT: u32 = 0;
/// The same of the output.
pub const OUTPUT: u32 = 1;
/// The same of the scratch.
pub const SCRATCH: u32 = 2;
/// The first place in [`LaunchPart::bases`] that is none of the three: the buffers of messages, or of other ranks.
pub const FIRST_MESSAGE: u32 = 3;

/// No number.
pub const NONE: u32 = u32::MAX;

const _: () = assert!(size_of::<LaneRecord>() == 24 && align_of::<LaneRecord>() == 4);
const _: () = assert!(size_of::<StepRecord>() == 64 && align_of::<StepRecord>() == 4);
const _: () = assert!(offset_of!(StepRecord, first) == 8 && offset_of!(StepRecord, kind) == 28);
const _: () = assert!(offset_of!(StepRecord, average) == 32 && offset_of!(StepRecord, inputs) == 40);
const _: () = assert!(size_of::<OperandRecord>() == 16 && offset_of!(OperandRecord, index) == 12);

impl StepRecord {
    /// How an average adds up the sources of a combine.
    pub fn average(&self) -> Average {
        match self.average {
            SHARES => {
                let (first, inputs) = (self.first_input as usize, self.inputs as usize);
                Average::Parts((first..first.saturating_add(inputs)).into())
            }
            WHOLE => Average::Whole,
            _ => Average::Sum,
        }
    }
}

/// A program of one rank as records.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Records {
    /// Its lanes, side by side.
    pub lanes: Vec<LaneRecord>,
    /// The steps of all lanes.
    pub steps: Vec<StepRecord>,
    /// The operands of all steps.
    pub operands: Vec<OperandRecord>,
    /// The ranks that signals and enterings name.
    pub ranks: Vec<u32>,
}

/// What depends on the counts of a call, for each lane of its program.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// In the order of [`Records::lanes`].
    pub lanes: Vec<LaneNumbers>,
    /// Elements of the longest round of a combine.
    pub longest: u64,
}

/// What depends on the counts of a call, for one lane.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LaneNumbers {
    /// How many rounds its steps have.
    pub rounds: u32,
    /// How often they are walked: the rounds and the greatest lag; 0 where there are no steps.
    pub turns: u32,
    /// Elements of a block in one round.
    pub piece: u64,
    /// Pieces of a region of scratch, at least 1: later rounds walk through them again and again.
    pub depth: u32,
    /// The element of the scratch where the lane's regions begin.
    pub scratch: u64,
    /// The blocks that steps name.
    pub blocks: Vec<BlockNumbers>,
}

/// Elements that travel together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockNumbers {
    /// Where they begin in inputs.
    pub input: u64,
    /// Where they begin in outputs.
    pub output: u64,
    /// How many there are.
    pub length: u64,
}

impl LaneNumbers {
    /// Elements of a combine in `round`; none where the block is exhausted.
    pub fn length(&self, step: &StepRecord, round: u32) -> u64 {
        let (times, block) = (u64::from(step.times), self.blocks[step.block as usize].length);
        let before = self.piece.saturating_mul(u64::from(round));
        block.saturating_sub(before).min(self.piece) * times
    }

    /// The element where an operand of a combine, which is no slot, begins in `round`.
    pub fn start(&self, operand: &OperandRecord, step: &StepRecord, round: u32) -> u64 {
        let walked = |pieces: u32| u64::from(pieces) * self.piece * u64::from(step.times);
        match operand.buffer {
            SCRATCH => {
                let region = u64::from(self.depth) * u64::from(operand.index) * self.piece;
                self.scratch + region + walked(round % self.depth.max(1))
            }
            OUTPUT => self.blocks[operand.index as usize].output + walked(round),
            _ => self.blocks[operand.index as usize].input + walked(round),
        }
    }
}

/// The arithmetic of a launch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reduction {
    /// The elements' type.
    pub data_type: DataType,
    /// The operator, where the collective reduces.
    pub op: Option<ReduceOp>,
    /// By how many ranks an average is divided.
    pub world: u32,
}

impl Records {
    /// Whether some messages carry their flags with the data ([`super::lines`]).
    pub fn have_lines(&self) -> bool {
        self.operands.iter().any(|operand| operand.kind > SLOT)
    }
}

impl LaunchPart {
    /// Whether it is of messages, which have neither input nor output nor scratch.
    pub fn is_of_messages(&self) -> bool {
        self.bases.len() > FIRST_MESSAGE as usize && self.bases[SCRATCH as usize] == 0
    }
}

/// What one rank gives to a launch. Addresses are those of the device that runs it.
#[derive(Debug, Clone)]
pub struct LaunchPart {
    /// The program.
    pub records: Arc<Records>,
    /// What depends on the counts of the call.
    pub numbers: Arc<Numbers>,
    /// The arithmetic.
    pub folding: Reduction,
    /// The rank.
    pub rank: u32,
    /// What the lanes' partners must have called.
    pub labels: Vec<Label>,
    /// The rank's own buffers: input, output, scratch, then those of messages, or, of a call in windows, the input and
    /// the output of each rank.
    pub bases: Vec<u64>,
    /// How control words lie.
    pub layout: ControlLayout,
    /// Of each rank: its control words and its scratch.
    pub peers: Arc<[PeerMemory]>,
    /// The ends of connections that slots name.
    pub queues: Vec<SlotQueue>,
    /// Where the launch hears that it must stop, and says why it did.
    pub status: Arc<StatusPage>,
    /// The memory that the launch uses and nobody else keeps.
    pub keep: Vec<Region>,
    /// What the launch does with ranks of other processes that share the device, where one process leads it for all.
    pub across: Option<Across>,
}

/// What a launch of one process of a device does with the ranks of others: see `device::cuda::launch::members`.
#[derive(Debug, Clone, Default)]
pub struct Across {
    /// Copies that this process makes before it meets the others.
    pub before: Vec<StageCopy>,
    /// Copies that it makes after the leader's work.
    pub after: Vec<StageCopy>,
    /// On the leading rank alone: the parts of the ranks of other processes, whose buffers are their stages.
    pub absent: Vec<LaunchPart>,
}

/// A copy between a user's buffer and a stage. Addresses are those of the device in this process. Kernels take it.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageCopy {
    /// Where the bytes are.
    pub from: u64,
    /// Where they shall be.
    pub to: u64,
    /// How many.
    pub bytes: u64,
}

/// What a rank shows the ranks that share a launch or a link with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PeerMemory {
    /// Its control words, laid out by [`ControlLayout`].
    pub control: u64,
    /// Its scratch.
    pub scratch: u64,
}

/// One end of a connection: a queue of slots in the receiver's memory, or in the sender's, where the receiver reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotQueue {
    /// The rank that sends, which its slots name.
    pub rank: u32,
    /// Whether this end sends.
    pub sends: bool,
    /// The first slot: [`SLOT_HEADER`] bytes, then the payload.
    pub slots: u64,
    /// The header of the first slot: at its beginning, unless the host must read it and the slot lies on a device.
    pub headers: u64,
    /// From header to header.
    pub header_stride: u64,
    /// The first slot of lines ([`super::lines`]), in the receiver's memory, which polls them; a multiple of 128.
    pub lines: u64,
    /// How many slots there are.
    pub count: u32,
    /// Bytes of a payload at most, a multiple of 64.
    pub payload: u64,
    /// How many messages were published; a word in the receiver's memory.
    pub tail: u64,
    /// How many messages were taken; a word in the sender's memory. The next two count those of LL and LL128.
    pub head: u64,
    /// How many this end has published or taken; a word in its own memory. The next two count those of LL and LL128.
    pub mine: u64,
}

impl SlotQueue {
    /// From slot to slot, and so from header to header where each lies at the beginning of its slot.
    pub const fn stride(payload: u64) -> u64 {
        SLOT_HEADER + payload
    }
}

/// Bytes before the payload of a slot: the length in bytes, the label's three words, the rank that sent it.
pub const SLOT_HEADER: u64 = 64;

/// Where a rank's control words lie, from the beginning of its control memory. All ranks lay them out alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlLayout {
    /// How many ranks there are.
    pub ranks: u32,
    /// How many lanes have words.
    pub lanes: u32,
}

/// What a rank writes to each peer when a lane enters. `ready` is written last, with release.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EnterLine {
    /// The lane's epoch and one: how many times it has been entered.
    pub ready: u64,
    /// The call.
    pub label: Label,
    /// Where the rank's input is.
    pub input: u64,
    /// Where its output is.
    pub output: u64,
    /// Zero.
    pub reserved: [u64; 2],
}

/// Flags of a lane.
pub const FLAGS: u64 = 8;

const LINE: u64 = 64;
const _: () = assert!(size_of::<EnterLine>() as u64 == LINE);

#[cfg(test)]
#[test]
fn control_words_lie_where_the_kernels_look_for_them() {
    use super::headers::constant;
    assert_eq!([LINE, FLAGS, PARITIES.into()], ["LINE", "FLAGS", "PARITIES"].map(constant));
}

/// Enter lines have two sets, which epochs take in turn: a peer that has entered epoch n + 1 has read all lines of
/// epoch n − 1.
pub const PARITIES: u32 = 2;

impl ControlLayout {
    /// The words that a lane keeps from run to run: its epoch, then the base of its flags.
    pub fn state(&self, lane: u32) -> u64 {
        u64::from(lane) * LINE
    }

    /// The line into which `writer` writes when it enters epoch `epoch` of a lane.
    pub fn enter_line(&self, lane: u32, epoch: u64, writer: u32) -> u64 {
        let parity = epoch % u64::from(PARITIES);
        let before = (u64::from(lane) * u64::from(PARITIES) + parity) * u64::from(self.ranks) + u64::from(writer);
        (u64::from(self.lanes) + before) * LINE
    }

    /// The word of a lane's flag that `writer` raises.
    pub fn flag(&self, lane: u32, flag: u8, writer: u32) -> u64 {
        let lines = self.enter_line(self.lanes, 0, 0);
        let place = (u64::from(lane) * FLAGS + u64::from(flag)) * u64::from(self.ranks) + u64::from(writer);
        lines + place * size_of::<u64>() as u64
    }

    /// All of it, in bytes.
    pub fn bytes(&self) -> u64 {
        self.flag(self.lanes, 0, 0)
    }
}
