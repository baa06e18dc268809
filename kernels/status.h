// The page by which kernels and the hosts of ranks hear from each other, as `StatusPage` (src/device/status.rs) has it.
// Device only.
#pragma once

#include "portable.h"

// Where its words lie.
constexpr u64 STATUS_ABORT = 0, STATUS_FAULT = 64, STATUS_DETAILS = 72;
constexpr u32 STATUS_CLAIMED = 1, STATUS_ABORTED = 2, STATUS_MISMATCH = 3;

RSCCL_INLINE u32 look(u64 address) {
    u32 value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}

RSCCL_INLINE u64 &word_at(u64 address) {
    return *reinterpret_cast<u64 *>(address);
}

/// Whether the launch of the rank with this page must end.
RSCCL_INLINE bool must_stop(u64 page) {
    return look(page + STATUS_ABORT) != 0 || look(page + STATUS_FAULT) != 0;
}

RSCCL_INLINE bool differs(const u64 *a, const u64 *b) {
    return a[0] != b[0] || a[1] != b[1] || a[2] != b[2];
}

/// Says on a page why the launch ends early; the first fault of a page stays. Pairs with the host's acquire of the code.
RSCCL_INLINE void report(u64 page, u32 code, u32 peer, const u64 *mine, const u64 *theirs) {
    if (atomicCAS_system(reinterpret_cast<u32 *>(page + STATUS_FAULT), 0u, STATUS_CLAIMED) != 0) return;
    word_at(page + STATUS_DETAILS) = peer;
    // Unrolled: a label may be in registers.
#pragma unroll
    for (u32 i = 0; i < 3; i += 1) {
        if (mine == nullptr) break;
        word_at(page + STATUS_DETAILS + 8 * (1 + i)) = mine[i];
        word_at(page + STATUS_DETAILS + 8 * (4 + i)) = theirs[i];
    }
    asm volatile("st.release.sys.global.u32 [%0], %1;" : : "l"(page + STATUS_FAULT), "r"(code) : "memory");
}
