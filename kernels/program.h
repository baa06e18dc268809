// What a launch of programs hands to their interpreter: plain records, read in place or from a copy in shared memory.
//
// The first four records, the lines and the layout of the control words are those of `src/device/records.rs`. The others
// are images that the host makes of them (`src/device/cuda/launch/polling/image.rs`): everything that a lane or a rank needs
// lies behind each other, so that a block copies it in one go.
#pragma once

#include "status.h"

/// One step of a lane.
struct StepRecord {
    u32 block;    // 0   the block that it covers over all rounds
    u32 times;    // 4   how many blocks of that length move together
    u32 first;    // 8   place of the first operand, or of the first rank
    u32 sources;  // 12  how many sources, or ranks
    u32 targets;  // 16
    u32 raw;      // 20  the source that the rank's scalar is applied to
    u32 peer;     // 24  whose flag is waited for; of a message: by which protocols it may come, a bit each
    u8 kind;      // 28
    u8 lag;       // 29
    u8 flag;      // 30
    u8 finish;    // 31
    u32 average;      // 32  how an average adds up: WHOLE or SHARES (abi.h); NO_AVERAGE in copies
    u32 first_input;  // 36  of SHARES: the first source that is a rank's input
    u32 inputs;       // 40  how many such sources there are, side by side
    u32 reserved[5];
};

/// A place that a step reads or writes.
struct OperandRecord {
    u32 kind;    // 0
    u32 base;    // 4
    u32 buffer;  // 8
    u32 index;   // 12  which block of an input or output, which region of the scratch
};

constexpr u8 ENTER = 0, COMBINE = 1, SIGNAL = 2, WAIT = 3;
constexpr u8 EVEN_EMPTY = 1;
constexpr u32 OWN = 0, PEER = 1, SLOT = 2;
/// A slot of another protocol has the kind SLOT + 1 or SLOT + 2.
constexpr u32 SIMPLE = 0, LL = 1, LL128 = 2;
constexpr u32 INPUT = 0, OUTPUT = 1, SCRATCH = 2;
constexpr u32 NONE = 0xffffffffu;

/// What a rank shows its peers.
struct PeerMemory {
    u64 control;
    u64 scratch;
};

/// What a rank writes to each peer when a lane enters; `ready` last.
struct EnterLine {
    u64 ready;
    u64 label[3];
    u64 user[2];  // input, output
    u64 reserved[2];
};

/// What comes before the payload of a slot.
struct SlotHeader {
    u64 bytes;
    u64 label[3];
    u64 rank;
    u64 reserved[3];
};

static_assert(sizeof(StepRecord) == 64 && sizeof(OperandRecord) == 16, "src/device/records.rs");
static_assert(sizeof(PeerMemory) == 16 && sizeof(EnterLine) == 64 && sizeof(SlotHeader) == 64, "src/device/records.rs");

/// A lane: its image goes on with the steps, their operands, and the ranks that they name, each numbered from 0.
struct LaneImage {
    u32 bytes;     // 0   of the whole image, a multiple of 8
    u32 steps;     // 4
    u32 operands;  // 8
    u32 flags;     // 12  number of its flags and of its epoch, or NONE
    u32 label;     // 16  place in the labels of the part
    u32 reserved;  // 20
};

/// Elements that travel together.
struct BlockNumbers {
    u64 input;   // where they begin in inputs
    u64 output;  // where they begin in outputs
    u64 length;
};

/// What depends on the count of a lane's call: its image goes on with the blocks.
struct NumbersImage {
    u32 bytes;    // 0   of the whole image, a multiple of 8
    u32 rounds;   // 4
    u32 turns;    // 8
    u32 depth;    // 12  pieces of a region of scratch
    u64 piece;    // 16  elements of a block in one round
    u64 scratch;  // 24  the element of the scratch where the lane's regions begin
};

/// A rank: its image goes on with its bases, the labels, a PeerMemory for each rank, and the queues.
struct PartImage {
    u64 status;    // 0   its status page
    u64 scalar;    // 8   what raw sources, or the inputs of averages, are multiplied by
    u32 bytes;     // 16  of the whole image, a multiple of 8
    u32 rank;      // 20
    u32 ranks;     // 24  of the control words' layout
    u32 lanes;     // 28  of the same
    u32 bases;     // 32  how many
    u32 labels;    // 36
    u32 divisor;   // 40  by what a finished average is divided; 0: nothing
    u32 scales;    // 44  of what `scalar` is: 0, RAW_SOURCES or INPUTS_OF_AVERAGES
    u32 element;   // 48  bytes of an element
    u32 op;        // 52  which of the module's operators
    u32 asks;      // 56  not 0: its blocks ask before their first step whether they must stop
    u32 reserved;  // 60
};

constexpr u32 RAW_SOURCES = 1, INPUTS_OF_AVERAGES = 2;

/// One end of a connection. `head` and `mine` are the words of Simple; those of LL and LL128 lie behind each.
struct QueueImage {
    u64 slots;  // a header and a payload each
    u64 lines;  // a multiple of 128
    u64 headers;  // those in the slots, or, where the host cannot read these, one behind the other in its own memory
    u64 header_stride;
    u64 payload;
    u64 tail;
    u64 head;
    u64 mine;
    u32 count;
    u32 rank;
};

/// A lane of a block: a block has some, which take turns.
struct SeatImage {
    u64 lane;     // where its image lies
    u64 numbers;  // where its numbers lie
    u32 after;    // the seat whose lane must have ended before, or NONE
    u32 reserved;
};

/// What one block does: lanes of one rank.
struct BlockImage {
    u64 part;   // where the image of the rank lies
    u64 seats;  // where the seats lie
    u32 count;  // how many
    u32 reserved;
};

static_assert(sizeof(LaneImage) == 24 && sizeof(NumbersImage) == 32 && sizeof(PartImage) == 64 && sizeof(QueueImage) == 72, "filled by the host");
static_assert(sizeof(SeatImage) == 24 && sizeof(BlockImage) == 24, "filled by the host");

/// The parameter of a launch.
struct ProgramArguments {
    u64 blocks;  // where the images of the blocks lie
};

/// Lanes of a block, and operands of a step, at most: the host refuses more.
constexpr u32 MOST_SEATS = 128;
constexpr u32 MOST_OPERANDS = 256;

// Where words lie in a rank's control memory, as `ControlLayout` has it.
constexpr u64 LINE = 64;
constexpr u64 FLAGS = 8;
constexpr u64 PARITIES = 2;

RSCCL_INLINE u64 state_at(u32 lane) {
    return lane * LINE;
}

RSCCL_INLINE u64 line_at(const PartImage &part, u32 lane, u64 epoch, u32 writer) {
    return (part.lanes + (lane * PARITIES + epoch % PARITIES) * part.ranks + writer) * LINE;
}

RSCCL_INLINE u64 flag_at(const PartImage &part, u32 lane, u32 flag, u32 writer) {
    return line_at(part, part.lanes, 0, 0) + ((lane * FLAGS + flag) * part.ranks + writer) * sizeof(u64);
}

// The parts of images.
RSCCL_INLINE const BlockNumbers *blocks_of(const NumbersImage *numbers) {
    return reinterpret_cast<const BlockNumbers *>(numbers + 1);
}
RSCCL_INLINE const StepRecord *steps_of(const LaneImage *lane) {
    return reinterpret_cast<const StepRecord *>(lane + 1);
}
RSCCL_INLINE const OperandRecord *operands_of(const LaneImage *lane) {
    return reinterpret_cast<const OperandRecord *>(steps_of(lane) + lane->steps);
}
RSCCL_INLINE const u32 *ranks_of(const LaneImage *lane) {
    return reinterpret_cast<const u32 *>(operands_of(lane) + lane->operands);
}
RSCCL_INLINE const u64 *bases_of(const PartImage *part) {
    return reinterpret_cast<const u64 *>(part + 1);
}
RSCCL_INLINE const u64 *label_of(const PartImage *part, u32 label) {
    return bases_of(part) + part->bases + 3 * label;
}
RSCCL_INLINE const PeerMemory *peers_of(const PartImage *part) {
    return reinterpret_cast<const PeerMemory *>(label_of(part, part->labels));
}
RSCCL_INLINE const QueueImage *queues_of(const PartImage *part) {
    return reinterpret_cast<const QueueImage *>(peers_of(part) + part->ranks);
}
