// Element types: how an element lies in memory (`Raw`), and the value that it is folded as (`Wide`).
//
// The same bits as on the host: floats of 16 and 8 bits are f32 while they are folded and rounded once, to nearest, ties
// to even; 8-bit floats saturate; any NaN that arithmetic yields becomes the type's one quiet NaN. The conversions are
// integer arithmetic on bits, because the conversion instructions differ between architectures and in NaNs.
#pragma once

#include "portable.h"

/// An integer of `Signed` and its counterpart without a sign.
template <class Integer, class Unsigned>
struct IntegerLane {
    using Raw = Integer;
    using Wide = Integer;
    static constexpr bool SIGNED = Integer(-1) < Integer(1);
    static constexpr bool SHARES = false;

    RSCCL_INLINE Wide widen(Raw raw) { return raw; }
    RSCCL_INLINE Raw narrow(Wide wide) { return wide; }
    RSCCL_INLINE Wide scalar(u64 bits) { return Wide(bits); }
    // Sums and products wrap: they have the same bits with and without a sign.
    RSCCL_INLINE Wide plus(Wide a, Wide b) { return Wide(Unsigned(Unsigned(a) + Unsigned(b))); }
    RSCCL_INLINE Wide times(Wide a, Wide b) {
        return Wide(sizeof(Raw) == 8 ? Unsigned(u64(a) * u64(b)) : Unsigned(u32(a) * u32(b)));
    }
    RSCCL_INLINE Wide lesser(Wide a, Wide b) { return b < a ? b : a; }
    RSCCL_INLINE Wide greater(Wide a, Wide b) { return b > a ? b : a; }

    /// The quotient, rounded towards zero.
    RSCCL_INLINE Wide over(Wide value, u32 divisor) {
        const bool negative = SIGNED && Unsigned(value) >> (8 * sizeof(Raw) - 1) != 0;
        const Unsigned size = negative ? Unsigned(Unsigned(0) - Unsigned(value)) : Unsigned(value);
        // Values of up to 32 bits need no division of 64.
        const Unsigned quotient = sizeof(Raw) == 8 ? Unsigned(u64(size) / divisor) : Unsigned(u32(size) / divisor);
        return Wide(negative ? Unsigned(Unsigned(0) - quotient) : quotient);
    }
};

/// The least and the greatest: NaN if either is, and -0 is less than +0. `INFINITE` are the bits of infinity, which are
/// those of the exponent.
template <class Float, class Bits, Bits NOT_A_NUMBER, Bits INFINITE>
struct FloatValue {
    RSCCL_INLINE Float lesser(Float a, Float b) {
        const Float less = a < b ? a : b;
        // Equal numbers differ in the sign of zero at most: either negative makes it negative.
        const Float either = bits_as<Float>(Bits(bits_as<Bits>(a) | bits_as<Bits>(b)));
        return a != a || b != b ? bits_as<Float>(NOT_A_NUMBER) : a == b ? either : less;
    }
    RSCCL_INLINE Float greater(Float a, Float b) {
        const Float more = a > b ? a : b;
        const Float both = bits_as<Float>(Bits(bits_as<Bits>(a) & bits_as<Bits>(b)));
        return a != a || b != b ? bits_as<Float>(NOT_A_NUMBER) : a == b ? both : more;
    }
    RSCCL_INLINE Float plus(Float a, Float b) { return a + b; }
    RSCCL_INLINE Float times(Float a, Float b) { return a * b; }
    RSCCL_INLINE Float over(Float value, u32 divisor) { return value / Float(divisor); }
    RSCCL_INLINE bool is_number(Float value) { return (bits_as<Bits>(value) & INFINITE) != INFINITE; }
    /// A number, but none beyond `largest`, with its sign.
    RSCCL_INLINE Float bounded(Float value, Float largest) {
        const Float above = value < -largest ? -largest : value;
        return is_number(value) ? above > largest ? largest : above : value;
    }
    /// The average for a sum of shares that were multiplied by `scale`.
    RSCCL_INLINE Float over_scaled(Float value, u32 divisor, Float scale, Float largest) {
        const Float quotient = value / (Float(divisor) * scale);
        // The quotient of a number may be too large for the accumulator.
        const Float above = quotient < -largest ? -largest : quotient;
        return is_number(value) ? above > largest ? largest : above : quotient;
    }
};

// Of the lanes of floats:
// `SHARES`: whether averages scale their inputs, as `Average` of src/device/host.rs says.
// `OVERFLOWS`: whether a sum of numbers may be no number.
// `IS_BOUNDED`: whether partial results of an average are bounded by the largest number of the type.

using Single = FloatValue<float, u32, 0x7fc00000u, 0x7f800000u>;
using Double = FloatValue<double, u64, 0x7ff8000000000000ull, 0x7ff0000000000000ull>;

struct LaneF32 : Single {
    using Raw = u32;
    using Wide = float;
    static constexpr bool SHARES = true, OVERFLOWS = true, IS_BOUNDED = false;
    RSCCL_INLINE Wide largest() { return bits_as<float>(0x7f7fffffu); }
    RSCCL_INLINE Wide widen(Raw raw) { return bits_as<float>(raw); }
    RSCCL_INLINE Raw narrow(Wide wide) { return wide != wide ? 0x7fc00000u : bits_as<u32>(wide); }
    RSCCL_INLINE Wide scalar(u64 bits) { return bits_as<float>(u32(bits)); }
};

struct LaneF64 : Double {
    using Raw = u64;
    using Wide = double;
    static constexpr bool SHARES = true, OVERFLOWS = true, IS_BOUNDED = false;
    RSCCL_INLINE Wide largest() { return bits_as<double>(0x7fefffffffffffffull); }
    RSCCL_INLINE Wide widen(Raw raw) { return bits_as<double>(raw); }
    RSCCL_INLINE Raw narrow(Wide wide) { return wide != wide ? 0x7ff8000000000000ull : bits_as<u64>(wide); }
    RSCCL_INLINE Wide scalar(u64 bits) { return bits_as<double>(bits); }
};

/// A float narrower than f32: `EXPONENT` and `MANTISSA` bits; `SPECIAL` is the least magnitude that is no number,
/// `OVERFLOWN` what a magnitude too large becomes, `NOT_A_NUMBER` the one NaN.
template <class Bits, u32 EXPONENT, u32 MANTISSA, u32 SPECIAL, u32 OVERFLOWN, u32 NOT_A_NUMBER>
struct MiniLane : Single {
    using Raw = Bits;
    using Wide = float;
    static constexpr u32 SIGN = 1u << (EXPONENT + MANTISSA);
    /// Mantissa bits of f32 that the format lacks.
    static constexpr u32 SHIFT = 23 - MANTISSA;
    /// What the exponent of f32 has more, in the place of f32's exponent.
    static constexpr u32 REBIAS = (127 - ((1u << (EXPONENT - 1)) - 1)) << 23;
    /// The least normal number, and the value of the last bit of a subnormal one, as f32 bits.
    static constexpr u32 LEAST_NORMAL = REBIAS + (1u << 23);
    static constexpr u32 LEAST = LEAST_NORMAL - (MANTISSA << 23);
    /// An f32 whose last bit has the value of `LEAST`: adding it rounds there.
    static constexpr u32 ANCHOR = LEAST + (23u << 23);
    static constexpr u32 INFINITE = 0x7f800000u;
    /// Floats of 8 bits have too few exponents to be scaled, and f32 has room for all sums.
    static constexpr bool SHARES = sizeof(Raw) > 1, OVERFLOWS = false, IS_BOUNDED = SHARES;
    RSCCL_INLINE Wide largest() { return bits_as<float>(((SPECIAL - 1) << SHIFT) + REBIAS); }

    RSCCL_INLINE Wide widen(Raw raw) {
        const u32 magnitude = raw & (SIGN - 1);
        const u32 subnormal = bits_as<u32>(float(i32(magnitude)) * bits_as<float>(LEAST));
        const u32 number = magnitude < (1u << MANTISSA) ? subnormal : (magnitude << SHIFT) + REBIAS;
        // Every special code but that of an infinity is a NaN.
        const u32 special = magnitude == SPECIAL && SPECIAL != NOT_A_NUMBER ? INFINITE : 0x7fc00000u;
        const u32 sign = (raw & SIGN) << (31 - EXPONENT - MANTISSA);
        return bits_as<float>((magnitude >= SPECIAL ? special : number) | sign);
    }

    RSCCL_INLINE Raw narrow(Wide wide) {
        const u32 bits = bits_as<u32>(wide), magnitude = bits & 0x7fffffffu;
        const u32 sign = bits >> (31 - EXPONENT - MANTISSA) & SIGN;
        const u32 below_half = (1u << (SHIFT - 1)) - 1, odd = magnitude >> SHIFT & 1;
        // Wraps for magnitudes alone that the next selections replace.
        const u32 normal = (magnitude + below_half + odd - REBIAS) >> SHIFT;
        const u32 subnormal = bits_as<u32>(bits_as<float>(magnitude) + bits_as<float>(ANCHOR)) - ANCHOR;
        const u32 number = magnitude < LEAST_NORMAL ? subnormal : normal;
        const u32 bounded = number >= SPECIAL ? OVERFLOWN : number;
        return Raw(magnitude > INFINITE ? NOT_A_NUMBER : bounded | sign);
    }

    RSCCL_INLINE Wide scalar(u64 bits) { return bits_as<float>(u32(bits)); }
};

struct LaneBF16 : Single {
    using Raw = u16;
    using Wide = float;
    static constexpr bool SHARES = true, OVERFLOWS = true, IS_BOUNDED = false;
    RSCCL_INLINE Wide largest() { return bits_as<float>(0x7f7f0000u); }
    RSCCL_INLINE Wide widen(Raw raw) { return bits_as<float>(u32(raw) << 16); }
    RSCCL_INLINE Raw narrow(Wide wide) {
        const u32 bits = bits_as<u32>(wide);
        return Raw(wide != wide ? 0x7fc0u : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
    }
    RSCCL_INLINE Wide scalar(u64 bits) { return bits_as<float>(u32(bits)); }
};

// By the library's numbers of element types.
using LaneI8 = IntegerLane<i8, u8>;
using LaneU8 = IntegerLane<u8, u8>;
using LaneI32 = IntegerLane<i32, u32>;
using LaneU32 = IntegerLane<u32, u32>;
using LaneI64 = IntegerLane<i64, u64>;
using LaneU64 = IntegerLane<u64, u64>;
using LaneF16 = MiniLane<u16, 5, 10, 0x7c00, 0x7c00, 0x7e00>;
using LaneF8E4M3 = MiniLane<u8, 4, 3, 0x7f, 0x7e, 0x7f>;
using LaneF8E5M2 = MiniLane<u8, 5, 2, 0x7c, 0x7b, 0x7e>;
