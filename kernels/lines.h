// Messages whose words carry their own flags, as NCCL's protocols LL and LL128 have them. Device only.
//
// A receiver polls the data itself in its own memory, so the sender needs no fence and no second store that says "it is
// there". Lines lie in memory that nothing else is ever written to:
//
//     offset   bytes    what
//     0        64       the header in words of LL: bytes of the message, then the three words of its label
//     128      32,768   LL:    for 8 bytes of data two words {data, flag}, each of 32 + 32 bits
//                       LL128: lines of 128 bytes, 120 of data and a flag of 64 bits
//
// LL is sound by PTX's memory model: a naturally aligned word of 64 bits is stored and loaded as a whole, so a reader
// that sees the flag has the data beside it. LL128 needs more than PTX promises: that a line which a warp stores by one
// instruction arrives as a whole. NVLink and a GPU's own memory do that; the host chooses LL128 there alone.
//
// Why an old flag is never taken for a new one. A slot of lines is used by one sender, turn after turn. The flag of LL
// is turn % (2^32 - 1) + 1, that of LL128 turn + 1; memory that was never written is 0. The sender begins a turn when
// the receiver has given the slot back, so in every word that the message of turn t will write stands the flag of an
// earlier turn. Of LL128, and in the header, that flag differs. Of LL it could be equal only if it was 2^32 - 1 turns
// old, or a multiple: a word far behind in the slot may be that old, since messages are most often shorter. Therefore
// each turn whose flag is a multiple of 2^30 writes all words of the slot, so that none gets older than 2^31 turns.
// Turns are counted on the device by both ends, for each protocol apart, so a replayed graph goes on where the last
// launch ended.
#pragma once

#include "fold.h"
#include "program.h"

/// Slots of lines of a connection, for each protocol: as many messages as a connection promises to take ahead of their
/// receiver.
constexpr u64 LINE_SLOTS = 8;
/// Bytes before the lines, and of the lines.
constexpr u64 LINE_HEADER = 128, LINE_BYTES = 32768;
/// Words of 8 bytes of data in a slot of LL.
constexpr u64 SLOT_WORDS = LINE_BYTES / 16;
/// Of a line of LL128: bytes, bytes of data, threads that store it.
constexpr u64 LINE_128 = 128, DATA_128 = 120;
constexpr u32 LINE_THREADS = 8;
/// Flags of LL, and every how many turns all words of a slot are written.
constexpr u64 FLAGS_OF_LL = 0xffffffffu;
constexpr u32 CLEAN_TURNS = 1u << 30;
/// Words of the header.
constexpr u32 HEADER_WORDS = 4;
/// Looks of a thread at a word between two looks at the status page, which lies in host memory.
constexpr u32 LINE_LOOKS = 1024;

RSCCL_INLINE void store_pair(u64 address, u64 low, u64 high) {
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" : : "l"(address), "l"(low), "l"(high) : "memory");
}

RSCCL_INLINE void load_pair(u64 address, u64 &low, u64 &high) {
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(low), "=l"(high) : "l"(address) : "memory");
}

/// The slot of message `number` of a connection; `protocol` is 1 for LL, 2 for LL128.
RSCCL_INLINE u64 lines_at(const QueueImage &queue, u32 protocol, u64 number) {
    return queue.lines + ((protocol - 1) * LINE_SLOTS + number % LINE_SLOTS) * (LINE_HEADER + LINE_BYTES);
}

/// Its flag.
RSCCL_INLINE u64 flag_of(u32 protocol, u64 number) {
    const u64 turn = number / LINE_SLOTS;
    return (protocol == LL ? turn % FLAGS_OF_LL : turn) + 1;
}

/// Stores 8 bytes of data as two words of LL.
RSCCL_INLINE void store_word(u64 address, u64 data, u32 flag) {
    store_pair(address, u32(data) | u64(flag) << 32, data >> 32 | u64(flag) << 32);
}

/// Says to the threads of a block that it ends early.
RSCCL_INLINE void give_up(u32 &failed) {
    *static_cast<volatile u32 *>(&failed) = 1;
}

RSCCL_INLINE bool has_failed(const u32 &failed) {
    return *static_cast<const volatile u32 *>(&failed) != 0;
}

/// Looks once for the 8 bytes of data of two words of LL: whether both have the flag.
RSCCL_INLINE bool has_word(u64 address, u32 flag, u64 &data) {
    u64 low, high;
    load_pair(address, low, high);
    data = u64(u32(low)) | high << 32;
    return u32(low >> 32) == flag && u32(high >> 32) == flag;
}

/// Takes the 8 bytes of data of two words of LL, once both have the flag; false where `ends` says before that the launch
/// must stop.
template <class Ends>
RSCCL_INLINE bool take_word(u64 address, u32 flag, const Ends &ends, u64 &data) {
    u32 looks = 0;
#pragma unroll 1
    for (;;) {
        if (has_word(address, flag, data)) return true;
        looks += 1;
        if (looks % LINE_LOOKS == 0 && ends()) return false;
    }
}

/// Whether the launch with this status page must stop.
struct Told {
    u64 status;

    inline bool operator()() const { return must_stop(status); }
};

/// Takes 16 bytes of a line of LL128, once its last thread has seen the flag. All threads of the warp call it; those
/// for which there is no line do not `wait`.
RSCCL_INLINE bool take_line(u64 address, u64 flag, bool waits, bool last, u64 status, u64 &low, u64 &high) {
    u32 looks = 0;
#pragma unroll 1
    for (;;) {
        if (waits) load_pair(address, low, high);
        if (!__any_sync(0xffffffffu, waits && last && high != flag)) break;
        looks += 1;
        if (looks % LINE_LOOKS == 0 && __any_sync(0xffffffffu, must_stop(status))) return false;
    }
    // The threads of one instruction load in no order: all load again once every flag has been seen.
    if (waits) load_pair(address, low, high);
    return true;
}

/// Up to 8 bytes at any address; the rest is 0.
RSCCL_INLINE u64 load_bytes(u64 address, u64 bytes) {
    if (bytes == 8 && address % 8 == 0) return *reinterpret_cast<const u64 *>(address);
    u64 data = 0;
    if (address % 4 == 0 && bytes % 4 == 0) {
#pragma unroll 1
        for (u64 at = 0; at < bytes; at += 4) data |= u64(*reinterpret_cast<const u32 *>(address + at)) << (8 * at);
        return data;
    }
#pragma unroll 1
    for (u64 at = 0; at < bytes; at += 1) data |= u64(*bytes_at(address + at)) << (8 * at);
    return data;
}

RSCCL_INLINE void store_bytes(u64 address, u64 data, u64 bytes) {
    if (bytes == 8 && address % 8 == 0) {
        *reinterpret_cast<u64 *>(address) = data;
    } else if (address % 4 == 0 && bytes % 4 == 0) {
#pragma unroll 1
        for (u64 at = 0; at < bytes; at += 4) *reinterpret_cast<u32 *>(address + at) = u32(data >> (8 * at));
    } else {
#pragma unroll 1
        for (u64 at = 0; at < bytes; at += 1) *bytes_at(address + at) = u8(data >> (8 * at));
    }
}

/// What is done to the elements of words.
struct WordWork {
    u64 scalar;
    u32 op;
    u32 raw;
    u32 divisor;
    u32 average;
    u32 first_input;
    u32 inputs;
    /// Whether some sources are multiplied.
    bool scales;
    /// One source, whose bits stay as they are.
    bool copies;
};

/// A word of 8 bytes while it is folded, in the order of the sources and with the bits of `fold.h`.
#ifdef BITS
struct FoldedWord {
    u64 bits;

    inline void first(const WordWork &, u64 word) { bits = word; }
    inline void next(const WordWork &work, u64 word, u32) {
        bits = work.op == 0 ? bits & word : work.op == 1 ? bits | word : bits ^ word;
    }
    template <class Load>
    inline u64 finished(const WordWork &, u32, const Load &) const { return bits; }
};
#else
struct FoldedWord {
    using Raw = LANE::Raw;
    using Wide = LANE::Wide;
    static constexpr u32 LANES = 8 / sizeof(Raw);

    u64 bits;
    Wide values[LANES];

    static inline Raw element(u64 word, u32 lane) { return Raw(word >> (8 * sizeof(Raw) * lane)); }

    static inline Scaling<LANE> scaling_of(const WordWork &work) {
        return {LANE::scalar(work.scalar), work.raw, work.divisor, work.average, work.first_input, work.inputs};
    }

    static inline Wide value(const WordWork &work, Raw raw, u32 source) {
        return work.scales ? scaling_of(work).next(raw, source) : LANE::widen(raw);
    }

    inline void first(const WordWork &work, u64 word) {
        bits = word;
#pragma unroll
        for (u32 lane = 0; lane < LANES; lane += 1) values[lane] = value(work, element(word, lane), 0);
    }

    inline void next(const WordWork &work, u64 word, u32 source) {
#pragma unroll
        for (u32 lane = 0; lane < LANES; lane += 1) {
            const Wide more = value(work, element(word, lane), source);
            Wide &sum = values[lane];
            if (work.op <= 1) sum = LANE::plus(sum, more);
            else if (work.op == 2) sum = LANE::times(sum, more);
            else if (work.op == 3) sum = LANE::lesser(sum, more);
            else sum = LANE::greater(sum, more);
        }
    }

    static inline u64 placed(Raw raw, u32 lane) {
        constexpr u64 FIELD = ~u64(0) >> (64 - 8 * sizeof(Raw));
        return (u64(raw) & FIELD) << (8 * sizeof(Raw) * lane);
    }

    /// The word of the results; `load` gives that of a source once more.
    template <class Load>
    inline u64 finished(const WordWork &work, u32 sources, const Load &load) const {
        if (work.copies) return bits;
        u64 word = 0;
        if (work.average == NO_AVERAGE) {
#pragma unroll
            for (u32 lane = 0; lane < LANES; lane += 1) word |= placed(LANE::narrow(values[lane]), lane);
            return word;
        }
        const Scaling<LANE> scaling = scaling_of(work);
        u32 lost = 0;
#pragma unroll
        for (u32 lane = 0; lane < LANES; lane += 1) {
            const bool is_lost = scaling.is_lost(values[lane]);
            lost |= u32(is_lost) << lane;
            word |= is_lost ? 0 : placed(scaling.finished(values[lane]), lane);
        }
#pragma unroll 1
        for (u32 lane = 0; lost >> lane != 0; lane += 1) {
            const auto load_lane = [&](u32 source) { return element(load(source), lane); };
            if ((lost >> lane & 1) != 0) word |= placed(scaling.again(sources, load_lane), lane);
        }
        return word;
    }
};
#endif

/// A message, or a fold of messages: where its operands lie, and what is done.
struct LineWork {
    WordWork words;
    u64 bytes;
    u64 status;
    const u64 *label;
    const Operand *operands;  // of a slot: its place, and in `offset` its flag, which is never 0
    u32 sources;
    u32 targets;
};

/// The word of a message's header.
RSCCL_INLINE u64 header_word(const LineWork &work, u32 word) {
    return word == 0 ? work.bytes : work.label[word - 1];
}

RSCCL_INLINE void send_headers(const LineWork &work, Team team) {
#pragma unroll 1
    for (u64 i = team.index; i < u64(work.targets) * HEADER_WORDS; i += team.size) {
        const Operand &target = work.operands[work.sources + i / HEADER_WORDS];
        const u32 word = i % HEADER_WORDS;
        if (target.offset != 0) store_word(target.base + 16 * word, header_word(work, word), u32(target.offset));
    }
}

/// Waits for the headers of all messages that are taken: NONE, or the first source that a thread found to be of another
/// call. `sources` where `ends` says that the launch must stop.
template <class Ends>
RSCCL_INLINE u32 check_headers(const LineWork &work, const Ends &ends, Team team) {
#pragma unroll 1
    for (u64 i = team.index; i < u64(work.sources) * HEADER_WORDS; i += team.size) {
        const Operand &source = work.operands[i / HEADER_WORDS];
        const u32 word = i % HEADER_WORDS;
        if (source.offset == 0) continue;
        u64 theirs;
        if (!take_word(source.base + 16 * word, u32(source.offset), ends, theirs)) return work.sources;
        if (theirs != header_word(work, word)) return u32(i / HEADER_WORDS);
    }
    return NONE;
}

/// Folds or copies all words that this thread has by LL; false where the launch must stop.
RSCCL_INLINE bool move_ll(const LineWork &work, Team team) {
    const u64 words = (work.bytes + 7) / 8;
#pragma unroll 1
    for (u64 i = team.index; i < words; i += team.size) {
        const u64 at = 8 * i, rest = work.bytes - at, bytes = rest < 8 ? rest : 8;
        FoldedWord folded;
#pragma unroll 1
        for (u32 source = 0; source < work.sources; source += 1) {
            const Operand &from = work.operands[source];
            u64 word;
            if (from.offset == 0) word = load_bytes(from.base + at, bytes);
            else if (!take_word(from.base + LINE_HEADER + 2 * at, u32(from.offset), Told{work.status}, word)) return false;
            if (source == 0) folded.first(work.words, word);
            else folded.next(work.words, word, source);
        }
        // What has come stays until the slot is given back.
        const auto load = [&](u32 source) {
            const Operand &from = work.operands[source];
            u64 data;
            if (from.offset == 0) return load_bytes(from.base + at, bytes);
            has_word(from.base + LINE_HEADER + 2 * at, u32(from.offset), data);
            return data;
        };
        const u64 word = folded.finished(work.words, work.sources, load);
#pragma unroll 1
        for (u32 target = 0; target < work.targets; target += 1) {
            const Operand &to = work.operands[work.sources + target];
            if (to.offset == 0) store_bytes(to.base + at, word, bytes);
            else store_word(to.base + LINE_HEADER + 2 * at, word, u32(to.offset));
        }
    }
    // See above, why an old flag is never taken for a new one.
#pragma unroll 1
    for (u32 target = 0; target < work.targets; target += 1) {
        const Operand &to = work.operands[work.sources + target];
        if (to.offset == 0 || u32(to.offset) % CLEAN_TURNS != 0) continue;
#pragma unroll 1
        for (u64 i = words + team.index; i < SLOT_WORDS; i += team.size) {
            store_word(to.base + LINE_HEADER + 16 * i, 0, u32(to.offset));
        }
    }
    return true;
}

/// The same by LL128. The threads of a warp go together, eight to a line.
RSCCL_INLINE bool move_ll128(const LineWork &work, Team team) {
    const u64 lines = (work.bytes + DATA_128 - 1) / DATA_128;
    const u32 part = team.index % LINE_THREADS;
    const bool last = part == LINE_THREADS - 1;
    const u64 lines_of_warp = 32 / LINE_THREADS, stride = team.size / LINE_THREADS;
#pragma unroll 1
    for (u64 first = team.index / 32 * lines_of_warp; first < lines; first += stride) {
        const u64 line = first + team.index % 32 / LINE_THREADS;
        const bool has_line = line < lines;
        const u64 at = line * DATA_128 + 16 * part, place = LINE_HEADER + line * LINE_128 + 16 * part;
        const u64 rest = has_line && at < work.bytes ? work.bytes - at : 0;
        const u64 low_bytes = rest < 8 ? rest : 8, high_bytes = last || rest < 8 ? 0 : rest < 16 ? rest - 8 : 8;
        FoldedWord lower, upper;
#pragma unroll 1
        for (u32 source = 0; source < work.sources; source += 1) {
            const Operand &from = work.operands[source];
            u64 low = 0, high = 0;
            if (from.offset == 0) {
                low = load_bytes(from.base + at, low_bytes);
                high = load_bytes(from.base + at + 8, high_bytes);
            } else if (!take_line(from.base + place, from.offset, has_line, last, work.status, low, high)) {
                return false;
            }
            if (source == 0) {
                lower.first(work.words, low);
                upper.first(work.words, high);
            } else {
                lower.next(work.words, low, source);
                upper.next(work.words, high, source);
            }
        }
        // As by LL. A thread without a line has nothing to load.
        const auto load = [&](u32 source, u64 half) {
            const Operand &from = work.operands[source];
            if (from.offset == 0) return load_bytes(from.base + at + 8 * half, half == 0 ? low_bytes : high_bytes);
            u64 words[2] = {0, 0};
            if (has_line) load_pair(from.base + place, words[0], words[1]);
            return half == 0 ? words[0] : words[1];
        };
        const u64 low = lower.finished(work.words, work.sources, [&](u32 source) { return load(source, 0); });
        const u64 high = upper.finished(work.words, work.sources, [&](u32 source) { return load(source, 1); });
#pragma unroll 1
        for (u32 target = 0; target < work.targets; target += 1) {
            const Operand &to = work.operands[work.sources + target];
            if (to.offset == 0) {
                store_bytes(to.base + at, low, low_bytes);
                store_bytes(to.base + at + 8, high, high_bytes);
            } else {
                // All threads of a line store by one instruction.
                __syncwarp();
                if (has_line) store_pair(to.base + place, low, last ? to.offset : high);
            }
        }
    }
    return true;
}
