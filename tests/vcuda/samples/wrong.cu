// Kernels with one mistake each, for programs that show how it is reported.

typedef unsigned int u32;

extern "C" __global__ void store_at(u32 *words, unsigned long long index, u32 value) {
    words[index] = value;
}

extern "C" __global__ void copy_words(const u32 *from, u32 *to, u32 count) {
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) to[i] = from[i];
}

// Neighbours read what a thread has stored, with no barrier between.
extern "C" __global__ void race(u32 *to) {
    __shared__ u32 words[64];
    words[threadIdx.x] = threadIdx.x;
    to[threadIdx.x] = words[(threadIdx.x + 33) % 64];
}

extern "C" __global__ void misaligned(unsigned char *bytes) {
    *(u32 *)(bytes + 1) = 1;
}

extern "C" __global__ void trap() {
    asm volatile("trap;");
}
