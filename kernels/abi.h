// What the host hands to kernels: plain records of fixed widths, read field by field on both sides.
//
// A launch gets a table of steps and a table of operands. A step names its operands by their place in the table, because
// the operands of a plan stay the same while its steps differ, and because the number of sources has no bound. Small tables
// travel as the parameter of the launch itself, so that a launch needs no memory and a graph keeps what it captured.
#pragma once

#include "portable.h"

/// Where an operand's bytes begin: a base that a mapping gave, and an offset in it.
struct Operand {
    u64 base;    // 0   device address
    u64 offset;  // 8   bytes
};

/// One fold or copy: `targets[k][i]` becomes the fold of `sources[..][i]`, in the order of the sources.
struct Step {
    u64 count;         // 0   elements
    u64 offset;        // 8   bytes, added to each operand's place
    u64 scalar;        // 16  what source `raw`, or an average's inputs, are multiplied by: bits of the accumulators' type
    u32 first_source;  // 24  place of the first source in the table of operands
    u32 sources;       // 28  how many sources, at least 1
    u32 first_target;  // 32
    u32 targets;       // 36
    u32 raw;           // 40  which source is multiplied; NOT_RAW: none
    u32 divisor;       // 44  what the result is divided by, the number of ranks; 0: nothing
    u32 kind;          // 48  0, a fold or a copy; signals and waits are steps of programs (program.h)
    u32 average;       // 52  how an average adds up: NO_AVERAGE, DIVIDED, WHOLE or SHARES
    u32 first_input;   // 56  of SHARES: the first source that is a rank's input, which `scalar` scales
    u32 inputs;        // 60  how many such sources there are, side by side
};

constexpr u32 NOT_RAW = 0xffffffffu;

// How an average adds up, as `Average` of src/device/host.rs says.
/// The result stays as it is: it is no average, or one that is not scaled and not finished.
constexpr u32 NO_AVERAGE = 0;
/// The sum is divided.
constexpr u32 DIVIDED = 1;
/// The same, but where the sum is no number, all sources are added up once more, each multiplied by `scalar`.
constexpr u32 WHOLE = 2;
/// Sources are partial results that were scaled by `scalar`, and inputs, which are scaled now. Where there is a divisor, the
/// average is finished: dividing takes the scale back.
constexpr u32 SHARES = 3;

static_assert(sizeof(Operand) == 16 && alignof(Operand) == 8, "read by the host too");
static_assert(sizeof(Step) == 64 && alignof(Step) == 8, "read by the host too");
// Without gaps, so that the order of the fields gives their places; the host's test compares those with Rust's.
static_assert(sizeof(Step) == 3 * sizeof(u64) + 10 * sizeof(u32), "no padding");

/// Bytes of parameters that every driver takes.
constexpr u32 PARAMETER_BYTES = 4096;

/// The parameter of a launch. Both tables lie in `tables`, the steps first; or, where they do not fit, in memory.
struct Arguments {
    u64 steps_at;     // 0   device address of the steps; 0: the tables are here
    u64 operands_at;  // 8   device address of the operands; without meaning if the tables are here
    u32 steps;        // 16  how many steps
    u32 reserved;     // 20  zero
    u64 tables[(PARAMETER_BYTES - 24) / 8];  // 24  a launch may give fewer bytes: those that its tables have
};

static_assert(sizeof(Arguments) == PARAMETER_BYTES && alignof(Arguments) == 8, "filled by the host");

RSCCL_INLINE const Step *steps_of(const Arguments &arguments) {
    return reinterpret_cast<const Step *>(arguments.steps_at != 0 ? arguments.steps_at : u64(arguments.tables));
}

RSCCL_INLINE const Operand *operands_of(const Arguments &arguments) {
    const u64 behind = u64(arguments.tables) + sizeof(Step) * u64(arguments.steps);
    return reinterpret_cast<const Operand *>(arguments.steps_at != 0 ? arguments.operands_at : behind);
}

/// Where an operand of a step begins.
RSCCL_INLINE u64 place_of(const Step &step, const Operand *operands, u32 index) {
    const Operand &operand = operands[index];
    return operand.base + operand.offset + step.offset;
}
