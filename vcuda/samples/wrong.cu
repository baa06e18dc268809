// Kernels with one mistake each, for programs that show how it is reported.

typedef unsigned int u32;

extern "C" __global__ void store_at(u32 *words, unsigned long long index, u32 value) {
    words[index] = value;
}

// Counts the words that are not zero, also words that nobody has set.
extern "C" __global__ void count_set(const u32 *words, u32 *found) {
    if (words[threadIdx.x] != 0) atomicAdd(found, 1);
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
