// A producer on one GPU and a consumer that spins on another. Everything that is polled lies in the poller's own memory:
// `ready` beside the slots at the consumer, `taken` at the producer.
#include "words.h"

// One block. For each round: fills a slot at the peer, then says so; waits for the slot's last use before.
// Slot r % depth of `slots` has `words` words of u32; value i of round r is r * 1000003 + i.
extern "C" __global__ void produce(u32 *slots, u32 *ready, const u32 *taken, u32 words, u32 depth, u32 rounds) {
    for (u32 round = 0; round < rounds; round++) {
        if (threadIdx.x == 0 && round >= depth) {
            while ((int)(load_acquire(taken) - (round - depth + 1)) < 0) {
            }
        }
        __syncthreads();
        u32 *slot = slots + (u64)(round % depth) * words;
        for (u32 i = threadIdx.x; i < words; i += blockDim.x) {
            slot[i] = round * 1000003u + i;
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            store_release(ready, round + 1);
        }
    }
}

// One block. sums[r] is the sum of round r's words.
extern "C" __global__ void consume(const u32 *slots, const u32 *ready, u32 *taken, u64 *sums, u32 words, u32 depth, u32 rounds) {
    __shared__ u64 sum;
    for (u32 round = 0; round < rounds; round++) {
        if (threadIdx.x == 0) {
            sum = 0;
            while ((int)(load_acquire(ready) - (round + 1)) < 0) {
            }
        }
        __syncthreads();
        const u32 *slot = slots + (u64)(round % depth) * words;
        u64 mine = 0;
        for (u32 i = threadIdx.x; i < words; i += blockDim.x) {
            // Past the cache: the slot is read again in a later round.
            mine += *(const volatile u32 *)(slot + i);
        }
        atomicAdd(&sum, mine);
        __syncthreads();
        if (threadIdx.x == 0) {
            sums[round] = sum;
            store_release(taken, round + 1);
        }
    }
}
