// Kernels that wait, for programs that show what happens around a kernel that waits.
#include "words.h"

extern "C" __global__ void wait_for(const u32 *word, u32 value) {
    while (load_acquire(word) != value) {
    }
}

extern "C" __global__ void set_to(u32 *word, u32 value) {
    store_release(word, value);
}

// What nobody has launched yet: its first launch may load it.
extern "C" __global__ void never_launched_before(u32 *word, u32 value) {
    store_release(word, value);
}

// A barrier of the whole grid. It needs all blocks resident together: without a cooperative launch nothing promises that.
extern "C" __global__ void barrier_of_grid(u32 *arrived) {
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicAdd(arrived, 1u);
        while (load_acquire(arrived) < gridDim.x) {
        }
    }
    __syncthreads();
}
