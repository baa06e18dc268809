// What kernels need of their compiler: fixed-width types, and the few operations that device and host spell differently.
//
// NVRTC has no host headers, so nothing is included. The same text compiles as C++17 for the host, where tests run it
// without a GPU: `-ffp-contract=off`, as the device code is compiled with `--fmad=false`.
#pragma once

using i8 = signed char;
using u8 = unsigned char;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;

static_assert(sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8 && sizeof(void *) == 8, "a 64-bit machine");

// Both compilers make a move between registers of it.
#ifdef __CUDACC__
#define RSCCL_MEMCPY memcpy
#else
#define RSCCL_MEMCPY __builtin_memcpy
#endif

#define RSCCL_INLINE static inline __attribute__((always_inline))

/// The bits of a value as a type of the same size.
template <class To, class From>
RSCCL_INLINE To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From), "another size");
    To to;
    RSCCL_MEMCPY(&to, &from, sizeof to);
    return to;
}

/// 16 bytes that are loaded and stored as one.
struct alignas(16) Pack {
    u64 half[2];
};

/// The threads that share a step, and which of them this is.
struct Team {
    u64 index;
    u64 size;
};
