// Loads and stores with an order, in the words of PTX. A poll is an acquiring load; what it frees follows it.

typedef unsigned int u32;
typedef unsigned long long u64;

static __device__ __forceinline__ u32 load_acquire(const u32 *word) {
    u32 value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

static __device__ __forceinline__ void store_release(u32 *word, u32 value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" : : "l"(word), "r"(value) : "memory");
}

static __device__ __forceinline__ u64 load_relaxed(const u64 *word) {
    u64 value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

static __device__ __forceinline__ void store_relaxed(u64 *word, u64 value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
}
