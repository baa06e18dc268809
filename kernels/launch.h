// The launch of steps. Device only.
//
// All threads of the grid share the steps, one after the other. A step may not use what another of the same launch has
// written: no barrier stands between them.
#pragma once

#include "abi.h"

/// Threads of a block at most; one such block on a multiprocessor must be possible, so a thread may have 128 registers.
constexpr u32 THREADS = 512;

RSCCL_INLINE Team team_of_grid() {
    return Team{u64(blockIdx.x) * blockDim.x + threadIdx.x, u64(gridDim.x) * blockDim.x};
}

/// Defines the entry point `name`, which does every step by `function`. `__grid_constant__`: the tables are read where the
/// launch has put them, without a copy for each thread.
#define STEPS(name, function)                                                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) name(const __grid_constant__ Arguments arguments) {    \
        const Step *steps = steps_of(arguments);                                                                    \
        const Operand *operands = operands_of(arguments);                                                           \
        _Pragma("unroll 1") for (u32 i = 0; i < arguments.steps; i += 1) function(steps[i], operands, team_of_grid()); \
    }
