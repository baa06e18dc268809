// The fold of k sources into 1..k targets, for one element type and one operator.
//
// A thread loads 16 bytes of each source in turn and folds them into accumulators, in the order of the sources, so that the
// result has the same bits whatever the number of threads and the alignment; then it divides, rounds once, and stores to
// every target. All of its loads come before its first store: a target may be a source. Where the operands do not lie alike,
// elements go one by one.
#pragma once

#include "copy.h"
#include "element.h"

/// The operators on accumulators.
struct Sum {
    static constexpr bool SCALES = false;
    template <class L> RSCCL_INLINE typename L::Wide fold(typename L::Wide a, typename L::Wide b) { return L::plus(a, b); }
};
/// s x + t y, or (x + y) / n: apart from the plain sum, which carries none of it.
struct ScaledSum {
    static constexpr bool SCALES = true;
    template <class L> RSCCL_INLINE typename L::Wide fold(typename L::Wide a, typename L::Wide b) { return L::plus(a, b); }
};
struct Product {
    static constexpr bool SCALES = false;
    template <class L> RSCCL_INLINE typename L::Wide fold(typename L::Wide a, typename L::Wide b) { return L::times(a, b); }
};
struct Least {
    static constexpr bool SCALES = false;
    template <class L> RSCCL_INLINE typename L::Wide fold(typename L::Wide a, typename L::Wide b) { return L::lesser(a, b); }
};
struct Greatest {
    static constexpr bool SCALES = false;
    template <class L> RSCCL_INLINE typename L::Wide fold(typename L::Wide a, typename L::Wide b) { return L::greater(a, b); }
};

/// Operators on bits: on any type of integers, as bytes.
struct BitAnd {
    RSCCL_INLINE u64 fold(u64 a, u64 b) { return a & b; }
};
struct BitOr {
    RSCCL_INLINE u64 fold(u64 a, u64 b) { return a | b; }
};
struct BitXor {
    RSCCL_INLINE u64 fold(u64 a, u64 b) { return a ^ b; }
};

/// An element at any address.
template <class Raw>
RSCCL_INLINE Raw load_element(u64 address) {
    if (address % sizeof(Raw) == 0) return *reinterpret_cast<const Raw *>(address);
    u64 bits = 0;
#pragma unroll 1
    for (u32 byte = 0; byte < sizeof(Raw); byte += 1) bits |= u64(*bytes_at(address + byte)) << (8 * byte);
    return Raw(bits);
}

template <class Raw>
RSCCL_INLINE void store_element(u64 address, Raw raw) {
    if (address % sizeof(Raw) == 0) {
        *reinterpret_cast<Raw *>(address) = raw;
        return;
    }
    const u64 bits = u64(raw);
#pragma unroll 1
    for (u32 byte = 0; byte < sizeof(Raw); byte += 1) *bytes_at(address + byte) = u8(bits >> (8 * byte));
}

/// Element `index` of a pack, and the same place with an element put there.
template <class Raw>
RSCCL_INLINE Raw element_of(const Pack &pack, u32 index) {
    constexpr u32 HALF = 8 / sizeof(Raw);
    return Raw(pack.half[index / HALF] >> (8 * sizeof(Raw) * (index % HALF)));
}

template <class Raw>
RSCCL_INLINE void put_element(Pack &pack, u32 index, Raw raw) {
    constexpr u32 HALF = 8 / sizeof(Raw);
    constexpr u64 FIELD = ~u64(0) >> (64 - 8 * sizeof(Raw));
    pack.half[index / HALF] |= (u64(raw) & FIELD) << (8 * sizeof(Raw) * (index % HALF));
}

/// The pack with another element at a place that is no constant.
template <class Raw>
RSCCL_INLINE void replace_element(Pack &pack, u32 index, Raw raw) {
    constexpr u32 HALF = 8 / sizeof(Raw);
    constexpr u64 FIELD = ~u64(0) >> (64 - 8 * sizeof(Raw));
    const u32 shift = 8 * sizeof(Raw) * (index % HALF);
    const u64 place = FIELD << shift, bits = (u64(raw) & FIELD) << shift;
    if (index < HALF) pack.half[0] = (pack.half[0] & ~place) | bits;
    else pack.half[1] = (pack.half[1] & ~place) | bits;
}

/// How the sources of a fold with `ScaledSum` are multiplied, and its results divided.
template <class L>
struct Scaling {
    using Raw = typename L::Raw;
    using Wide = typename L::Wide;

    Wide scalar;
    u32 raw;
    u32 divisor;
    u32 average;
    u32 first_input;
    u32 inputs;

    /// The value of a source's element.
    inline Wide next(Raw element, u32 source) const {
        const Wide value = L::widen(element);
        if constexpr (L::SHARES) {
            if (source - first_input < inputs) return L::times(value, scalar);
        }
        if (source != raw) return value;
        // Rounded to the type before it is added: the same whether a rank scales on the way out or at the fold.
        return L::widen(L::narrow(L::times(value, scalar)));
    }

    inline Raw finished(Wide value) const {
        if (average == NO_AVERAGE) return L::narrow(value);
        if constexpr (L::SHARES) {
            if (average == SHARES) return L::narrow(divisor != 0 ? from_shares(value) : partial(value));
        }
        return L::narrow(L::over(value, divisor));
    }

    /// A partial result of scaled shares.
    inline Wide partial(Wide value) const {
        if constexpr (L::IS_BOUNDED) return L::bounded(value, L::largest());
        else return value;
    }

    /// The average of a sum of scaled shares.
    inline Wide from_shares(Wide value) const { return L::over_scaled(value, divisor, scalar, L::largest()); }

    /// Whether a finished sum is no number, maybe because it was too large: the inputs are added up again, scaled down.
    inline bool is_lost(Wide value) const {
        if constexpr (L::SHARES) return L::OVERFLOWS && average == WHOLE && !L::is_number(value);
        else return false;
    }

    /// The average of the elements that `load` gives for each of so many sources, scaled before they are added.
    template <class Load>
    inline Raw again(u32 sources, const Load &load) const {
        if constexpr (L::SHARES) {
            Wide value = L::times(L::widen(load(0)), scalar);
#pragma unroll 1
            for (u32 index = 1; index < sources; index += 1) {
                value = L::plus(value, L::times(L::widen(load(index)), scalar));
            }
            return L::narrow(from_shares(value));
        } else {
            return Raw(0);
        }
    }
};

/// The operands of a step, and the walk through them: whole packs where all operands lie alike, elements elsewhere.
template <class Body, class Raw>
struct Walk {
    /// Elements that a thread folds at once.
    static constexpr u32 LANES = u32(PACK / sizeof(Raw));

    /// A copy: stores to the targets could change another, for all that the compiler knows.
    const Step step;
    const Operand *operands;

    inline u64 source(u32 index) const { return place_of(step, operands, step.first_source + index); }
    inline u64 target(u32 index) const { return place_of(step, operands, step.first_target + index); }

    inline void put(u64 at, Pack pack) const {
#pragma unroll 1
        for (u32 index = 0; index < step.targets; index += 1) *reinterpret_cast<Pack *>(target(index) + at) = pack;
    }

    inline void put_one(u64 at, Raw raw) const {
#pragma unroll 1
        for (u32 index = 0; index < step.targets; index += 1) store_element<Raw>(target(index) + at, raw);
    }

    /// Where all operands lie in their 16 bytes; `PACK` if they lie differently, or not at a multiple of an element.
    inline u64 common_place() const {
        const u64 place = source(0) % PACK;
        bool alike = place % sizeof(Raw) == 0;
#pragma unroll 1
        for (u32 index = 1; index < step.sources; index += 1) alike = alike && source(index) % PACK == place;
#pragma unroll 1
        for (u32 index = 0; index < step.targets; index += 1) alike = alike && target(index) % PACK == place;
        return alike ? place : PACK;
    }

    /// Gives every pack and every other element to one thread of the team.
    inline void run(const Body &body, Team team) const {
        const u64 place = common_place();
        u64 head = place == PACK ? step.count : (PACK - place) % PACK / sizeof(Raw);
        head = head < step.count ? head : step.count;
        const u64 packs = (step.count - head) / LANES, packed = packs * LANES;
#pragma unroll 1
        for (u64 i = team.index; i < packs; i += team.size) body.pack(*this, head * sizeof(Raw) + PACK * i);
        // What lies before and behind the packs.
#pragma unroll 1
        for (u64 i = team.index; i < step.count - packed; i += team.size) {
            body.one(*this, (i < head ? i : i + packed) * sizeof(Raw));
        }
    }
};

/// Folds lanes `L` with operator `O`.
template <class L, class O>
struct Fold {
    using Raw = typename L::Raw;
    using Wide = typename L::Wide;
    using Places = Walk<Fold, Raw>;

    Scaling<L> scaling;

    /// The value of a source's element.
    inline Wide next(Raw element, u32 source) const {
        return O::SCALES ? scaling.next(element, source) : L::widen(element);
    }

    inline Raw finished(Wide value) const { return O::SCALES ? scaling.finished(value) : L::narrow(value); }

    inline bool is_lost(Wide value) const { return O::SCALES && scaling.is_lost(value); }

    /// The average of the element at byte `at`, whose sum was lost.
    inline Raw again(const Places &places, u64 at) const {
        const auto load = [&](u32 index) { return load_element<Raw>(places.source(index) + at); };
        return scaling.again(places.step.sources, load);
    }

    /// Folds the element at byte `at` of each source.
    inline void one(const Places &places, u64 at) const {
        Wide value = next(load_element<Raw>(places.source(0) + at), 0);
#pragma unroll 1
        for (u32 index = 1; index < places.step.sources; index += 1) {
            value = O::template fold<L>(value, next(load_element<Raw>(places.source(index) + at), index));
        }
        places.put_one(at, is_lost(value) ? again(places, at) : finished(value));
    }

    /// Folds the 16 bytes at byte `at`, which are aligned everywhere.
    inline void pack(const Places &places, u64 at) const {
        Wide values[Places::LANES];
        const Pack first = *reinterpret_cast<const Pack *>(places.source(0) + at);
#pragma unroll
        for (u32 lane = 0; lane < Places::LANES; lane += 1) values[lane] = next(element_of<Raw>(first, lane), 0);
#pragma unroll 1
        for (u32 index = 1; index < places.step.sources; index += 1) {
            const Pack more = *reinterpret_cast<const Pack *>(places.source(index) + at);
#pragma unroll
            for (u32 lane = 0; lane < Places::LANES; lane += 1) {
                values[lane] = O::template fold<L>(values[lane], next(element_of<Raw>(more, lane), index));
            }
        }
        Pack out = {{0, 0}};
#pragma unroll
        for (u32 lane = 0; lane < Places::LANES; lane += 1) put_element<Raw>(out, lane, finished(values[lane]));
        u32 lost = 0;
#pragma unroll
        for (u32 lane = 0; lane < Places::LANES; lane += 1) lost |= u32(is_lost(values[lane])) << lane;
#pragma unroll 1
        for (u32 lane = 0; lost >> lane != 0; lane += 1) {
            if ((lost >> lane & 1) != 0) replace_element<Raw>(out, lane, again(places, at + sizeof(Raw) * lane));
        }
        places.put(at, out);
    }
};

/// Folds bytes with an operator on bits.
template <class O>
struct BitFold {
    using Places = Walk<BitFold, u8>;

    inline void one(const Places &places, u64 at) const {
        u64 value = load_element<u8>(places.source(0) + at);
#pragma unroll 1
        for (u32 index = 1; index < places.step.sources; index += 1) {
            value = O::fold(value, load_element<u8>(places.source(index) + at));
        }
        places.put_one(at, u8(value));
    }

    inline void pack(const Places &places, u64 at) const {
        Pack value = *reinterpret_cast<const Pack *>(places.source(0) + at);
#pragma unroll 1
        for (u32 index = 1; index < places.step.sources; index += 1) {
            const Pack more = *reinterpret_cast<const Pack *>(places.source(index) + at);
            value = Pack{{O::fold(value.half[0], more.half[0]), O::fold(value.half[1], more.half[1])}};
        }
        places.put(at, value);
    }
};

/// One step of a fold; the count is in elements.
template <class L, class O>
RSCCL_INLINE void fold_step(const Step &step, const Operand *operands, Team team) {
    using Body = Fold<L, O>;
    const Scaling<L> scaling = {L::scalar(step.scalar), step.raw, step.divisor, step.average, step.first_input, step.inputs};
    typename Body::Places{step, operands}.run(Body{scaling}, team);
}

/// One step of a fold of bits; the count is in bytes.
template <class O>
RSCCL_INLINE void bit_fold_step(const Step &step, const Operand *operands, Team team) {
    using Body = BitFold<O>;
    typename Body::Places{step, operands}.run(Body{}, team);
}
