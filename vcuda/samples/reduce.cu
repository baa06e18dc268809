// The sum of whole numbers, by shuffles and by shared memory. The host zeroes *sum first.

typedef unsigned long long u64;
typedef unsigned int u32;

// Any block size that is a multiple of 32.
extern "C" __global__ void reduce_shuffle(const u32 *values, u64 *sum, u32 count) {
    u64 mine = 0;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        mine += values[i];
    }
    for (int distance = 16; distance > 0; distance /= 2) {
        mine += __shfl_down_sync(0xffffffffu, mine, distance);
    }
    if (threadIdx.x % 32 == 0) {
        atomicAdd(sum, mine);
    }
}

// Block size a power of two; shared memory: 8 bytes a thread.
extern "C" __global__ void reduce_shared(const u32 *values, u64 *sum, u32 count) {
    extern __shared__ u64 partial[];
    u64 mine = 0;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        mine += values[i];
    }
    partial[threadIdx.x] = mine;
    for (u32 half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            partial[threadIdx.x] += partial[threadIdx.x + half];
        }
    }
    if (threadIdx.x == 0) {
        atomicAdd(sum, partial[0]);
    }
}
