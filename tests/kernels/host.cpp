// The kernels' headers as host C++: every team member in turn does what a thread of the grid does.

#include "fold.h"

// Of the device alone; no host code calls what calls it.
static inline u32 atomicCAS_system(u32 *, u32, u32) {
    return 0;
}

#include "program.h"

namespace {

using Body = void (*)(const Step &, const Operand *, Team);

template <class L>
Body fold_of(u32 op) {
    const Body all[] = {fold_step<L, Sum>, fold_step<L, ScaledSum>, fold_step<L, Product>, fold_step<L, Least>,
                        fold_step<L, Greatest>};
    return op < 5 ? all[op] : nullptr;
}

Body body_of(u32 type, u32 op) {
    const Body bits[] = {bit_fold_step<BitAnd>, bit_fold_step<BitOr>, bit_fold_step<BitXor>, copy_step};
    if (op >= 5) return bits[op - 5];
    switch (type) {
    case 0: return fold_of<LaneI8>(op);
    case 1: return fold_of<LaneU8>(op);
    case 2: return fold_of<LaneI32>(op);
    case 3: return fold_of<LaneU32>(op);
    case 4: return fold_of<LaneI64>(op);
    case 5: return fold_of<LaneU64>(op);
    case 6: return fold_of<LaneF16>(op);
    case 7: return fold_of<LaneF32>(op);
    case 8: return fold_of<LaneF64>(op);
    case 9: return fold_of<LaneBF16>(op);
    case 10: return fold_of<LaneF8E4M3>(op);
    default: return fold_of<LaneF8E5M2>(op);
    }
}

}  // namespace

extern "C" void kernels_host_run(u32 type, u32 op, const Step *step, const Operand *operands, u64 first, u64 last, u64 size) {
    for (u64 index = first; index < last; index += 1) body_of(type, op)(*step, operands, Team{index, size});
}

/// Where the fields of the records lie, in their order.
extern "C" void kernels_host_places(u64 *places) {
    const u64 all[] = {sizeof(Operand),
                       __builtin_offsetof(Operand, base),
                       __builtin_offsetof(Operand, offset),
                       sizeof(Step),
                       __builtin_offsetof(Step, count),
                       __builtin_offsetof(Step, offset),
                       __builtin_offsetof(Step, scalar),
                       __builtin_offsetof(Step, first_source),
                       __builtin_offsetof(Step, sources),
                       __builtin_offsetof(Step, first_target),
                       __builtin_offsetof(Step, targets),
                       __builtin_offsetof(Step, raw),
                       __builtin_offsetof(Step, divisor),
                       __builtin_offsetof(Step, kind),
                       __builtin_offsetof(Step, average),
                       __builtin_offsetof(Step, first_input),
                       __builtin_offsetof(Step, inputs)};
    for (u64 place : all) *places++ = place;
}

/// Where the fields of the records of programs lie, then where words lie in control memory and on status pages.
extern "C" void kernels_host_program(u64 *places, u32 lanes, u32 ranks) {
    PartImage part = {};
    part.lanes = lanes;
    part.ranks = ranks;
    const u64 all[] = {sizeof(StepRecord),
                       __builtin_offsetof(StepRecord, block),
                       __builtin_offsetof(StepRecord, times),
                       __builtin_offsetof(StepRecord, first),
                       __builtin_offsetof(StepRecord, sources),
                       __builtin_offsetof(StepRecord, targets),
                       __builtin_offsetof(StepRecord, raw),
                       __builtin_offsetof(StepRecord, peer),
                       __builtin_offsetof(StepRecord, kind),
                       __builtin_offsetof(StepRecord, lag),
                       __builtin_offsetof(StepRecord, flag),
                       __builtin_offsetof(StepRecord, finish),
                       __builtin_offsetof(StepRecord, average),
                       __builtin_offsetof(StepRecord, first_input),
                       __builtin_offsetof(StepRecord, inputs),
                       sizeof(OperandRecord),
                       __builtin_offsetof(OperandRecord, kind),
                       __builtin_offsetof(OperandRecord, base),
                       __builtin_offsetof(OperandRecord, buffer),
                       __builtin_offsetof(OperandRecord, index),
                       sizeof(EnterLine),
                       __builtin_offsetof(EnterLine, ready),
                       __builtin_offsetof(EnterLine, label),
                       __builtin_offsetof(EnterLine, user),
                       __builtin_offsetof(EnterLine, user) + 8,
                       state_at(2),
                       line_at(part, 2, 7, 1),
                       flag_at(part, 2, 5, 1),
                       ENTER,
                       COMBINE,
                       SIGNAL,
                       WAIT,
                       OWN,
                       PEER,
                       SLOT,
                       INPUT,
                       OUTPUT,
                       SCRATCH,
                       NONE,
                       EVEN_EMPTY,
                       NO_AVERAGE,
                       DIVIDED,
                       WHOLE,
                       SHARES,
                       STATUS_CLAIMED,
                       STATUS_ABORTED,
                       STATUS_MISMATCH};
    for (u64 place : all) *places++ = place;
}
