// Data that carries its own flag: a reader polls the data and needs no fence.
#include "words.h"

// LL: each 64-bit word is { 32 bits of data, 32 bits of flag }, and PTX promises that such a word is never torn.
extern "C" __global__ void ll_send(u64 *line, const u32 *data, u32 count, u32 flag) {
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        store_relaxed(line + i, (u64)flag << 32 | data[i]);
    }
}

extern "C" __global__ void ll_receive(const u64 *line, u32 *data, u32 count, u32 flag) {
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        u64 word;
        do {
            word = load_relaxed(line + i);
        } while ((u32)(word >> 32) != flag);
        data[i] = (u32)word;
    }
}

// LL128: 120 bytes of data and 8 of flag, stored by one instruction of a warp: 8 lanes, 16 bytes each, so 4 lines a warp. That
// such a store arrives whole is a promise of NVLink, not of PTX: the machine file says on which paths.
// One warp a block; count: lines, a multiple of 4 for each block.
extern "C" __global__ void ll128_send(u64 *lines, const u64 *data, u32 count, u64 flag) {
    u32 lane = threadIdx.x % 32, part = lane % 8;
    for (u32 first = blockIdx.x * 4; first < count; first += gridDim.x * 4) {
        u32 line = first + lane / 8;
        u64 low = data[line * 15ull + part * 2];
        u64 high = part == 7 ? flag : data[line * 15ull + part * 2 + 1];
        asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" : : "l"(lines + line * 16ull + part * 2), "l"(low), "l"(high) : "memory");
    }
}

extern "C" __global__ void ll128_receive(const u64 *lines, u64 *data, u32 count, u64 flag) {
    u32 lane = threadIdx.x % 32, part = lane % 8;
    for (u32 first = blockIdx.x * 4; first < count; first += gridDim.x * 4) {
        u32 line = first + lane / 8;
        const u64 *place = lines + line * 16ull + part * 2;
        u64 low, high;
        bool waits;
        do {
            asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];" : "=l"(low), "=l"(high) : "l"(place) : "memory");
            waits = part == 7 && high != flag;
        } while (__any_sync(0xffffffffu, waits));
        // Lanes of one instruction load in no order: all load again once every flag has been seen.
        asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];" : "=l"(low), "=l"(high) : "l"(place) : "memory");
        data[line * 15ull + part * 2] = low;
        if (part != 7) {
            data[line * 15ull + part * 2 + 1] = high;
        }
    }
}
