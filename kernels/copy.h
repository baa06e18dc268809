// Copies: any alignment of source and target, 64-bit counts.
//
// Stores are whole 16 bytes of the target. Where the source lies otherwise, the bytes come from aligned words of 8, put
// together by shifts. No byte outside the source is read: the first and last bytes go one by one.
#pragma once

#include "abi.h"

/// Bytes that are stored as one.
constexpr u64 PACK = 16;

RSCCL_INLINE u8 *bytes_at(u64 address) {
    return reinterpret_cast<u8 *>(address);
}

/// Copies bytes one by one.
RSCCL_INLINE void copy_bytes(u64 from, u64 to, u64 bytes, Team team) {
#pragma unroll 1
    for (u64 i = team.index; i < bytes; i += team.size) {
        *bytes_at(to + i) = *bytes_at(from + i);
    }
}

/// Copies `packs` whole packs; both places are aligned to them.
RSCCL_INLINE void copy_aligned(u64 from, u64 to, u64 packs, Team team) {
    for (u64 i = team.index; i < packs; i += team.size) {
        *reinterpret_cast<Pack *>(to + PACK * i) = *reinterpret_cast<const Pack *>(from + PACK * i);
    }
}

/// Copies `packs` packs to an aligned place. `from` is not a multiple of 8; the words around it may be read.
RSCCL_INLINE void copy_shifted(u64 from, u64 to, u64 packs, Team team) {
    const u32 low = u32(from % 8) * 8, high = 64 - low;
    const u64 first = from - from % 8;
    for (u64 i = team.index; i < packs; i += team.size) {
        const u64 *words = reinterpret_cast<const u64 *>(first + PACK * i);
        const u64 a = words[0], b = words[1], c = words[2];
        *reinterpret_cast<Pack *>(to + PACK * i) = Pack{{a >> low | b << high, b >> low | c << high}};
    }
}

/// Copies `packs` packs to an aligned place from a multiple of 8.
RSCCL_INLINE void copy_words(u64 from, u64 to, u64 packs, Team team) {
    for (u64 i = team.index; i < packs; i += team.size) {
        const u64 *words = reinterpret_cast<const u64 *>(from + PACK * i);
        *reinterpret_cast<Pack *>(to + PACK * i) = Pack{{words[0], words[1]}};
    }
}

/// Copies `bytes` bytes; the places are the same or share no byte.
RSCCL_INLINE void copy_range(u64 from, u64 to, u64 bytes, Team team) {
    // Up to a multiple of 16 of the target; where words are shifted, 16 more, so that the word around the first byte
    // lies in the source.
    const bool shifts = (from ^ to) % 8 != 0;
    u64 head = (PACK - to % PACK) % PACK + (shifts ? PACK : 0);
    head = head < bytes ? head : bytes;
    // The last word of a shifted pack ends up to 7 bytes behind it.
    const u64 rest = bytes - head, spare = shifts ? 8 : 0;
    const u64 packs = rest < spare ? 0 : (rest - spare) / PACK;
    copy_bytes(from, to, head, team);
    if ((from ^ to) % PACK == 0) {
        copy_aligned(from + head, to + head, packs, team);
    } else if (shifts) {
        copy_shifted(from + head, to + head, packs, team);
    } else {
        copy_words(from + head, to + head, packs, team);
    }
    const u64 done = head + PACK * packs;
    copy_bytes(from + done, to + done, bytes - done, team);
}

/// Copies a step's one source to each of its targets; the count is in bytes.
RSCCL_INLINE void copy_step(const Step &step, const Operand *operands, Team team) {
    const u64 from = place_of(step, operands, step.first_source);
#pragma unroll 1
    for (u32 target = 0; target < step.targets; target += 1) {
        const u64 to = place_of(step, operands, step.first_target + target);
        // A target may be the source itself.
        if (to != from) copy_range(from, to, step.count, team);
    }
}
