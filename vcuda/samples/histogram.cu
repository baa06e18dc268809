// How often each byte occurs: counted in shared memory, added up in global memory. The host zeroes the 256 counts first.

typedef unsigned int u32;

extern "C" __global__ void histogram(const unsigned char *bytes, u32 *counts, u32 count) {
    __shared__ u32 here[256];
    for (u32 i = threadIdx.x; i < 256; i += blockDim.x) {
        here[i] = 0;
    }
    __syncthreads();
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        atomicAdd(&here[bytes[i]], 1u);
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < 256; i += blockDim.x) {
        atomicAdd(&counts[i], here[i]);
    }
}

// The same without shared memory, and the least, the greatest and the exclusive or of all bytes beside.
extern "C" __global__ void histogram_global(const unsigned char *bytes, u32 *counts, u32 *facts, u32 count) {
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        u32 byte = bytes[i];
        atomicAdd(&counts[byte], 1u);
        atomicMin(&facts[0], byte);
        atomicMax(&facts[1], byte);
        atomicXor(&facts[2], byte);
        // A compare-and-swap loop that counts, as code without a fetching add writes it.
        u32 seen = facts[3], expected;
        do {
            expected = seen;
            seen = atomicCAS(&facts[3], expected, expected + 1);
        } while (seen != expected);
    }
}
