// Calls that a compiler cannot place in line: functions that call themselves, and calls by address.
typedef unsigned int u32;

__device__ __noinline__ u32 fibonacci(u32 n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
extern "C" __global__ void recurse(u32 *out) { out[threadIdx.x] = fibonacci(threadIdx.x % 11); }

__device__ __noinline__ u32 odd(u32 n);
__device__ __noinline__ u32 even(u32 n) { return n == 0 ? 1 : odd(n - 1); }
__device__ __noinline__ u32 odd(u32 n) { return n == 0 ? 0 : even(n - 1); }
extern "C" __global__ void mutual(u32 *out) { out[threadIdx.x] = even(threadIdx.x); }

// Each level has an array of its own, and writes the one of the level above.
__device__ __noinline__ void fill(u32 *above, u32 depth) {
    u32 own[4];
    for (int i = 0; i < 4; i++) {
        own[i] = 0;
    }
    if (depth > 0) {
        fill(own, depth - 1);
    }
    for (int i = 0; i < 4; i++) {
        above[i] = own[i] + depth + i;
    }
}
extern "C" __global__ void frames(u32 *out) {
    u32 mine[4];
    fill(mine, threadIdx.x % 5);
    for (int i = 0; i < 4; i++) {
        out[threadIdx.x * 4 + i] = mine[i];
    }
}

struct Pair { u32 a; u32 b; };
typedef Pair (*Operation)(Pair, u32);
__device__ __noinline__ Pair sum(Pair p, u32 x) { return Pair{p.a + x, p.b}; }
__device__ __noinline__ Pair product(Pair p, u32 x) { return Pair{p.a, p.b * x}; }
__device__ __noinline__ Pair swap(Pair p, u32 x) { return x & 1 ? Pair{p.b, p.a} : p; }
__device__ Operation table[3] = {sum, product, swap};
// Lanes of one warp call three functions.
extern "C" __global__ void by_address(u32 *out) {
    Pair p = {threadIdx.x, 3};
    for (u32 i = 0; i < 6; i++) {
        p = table[(threadIdx.x + i) % 3](p, i + 1);
    }
    out[2 * threadIdx.x] = p.a;
    out[2 * threadIdx.x + 1] = p.b;
}

struct Shape {
    __device__ virtual u32 area() const = 0;
};
struct Square : Shape {
    u32 side;
    __device__ Square(u32 side) : side(side) {}
    __device__ u32 area() const override { return side * side; }
};
struct Strip : Shape {
    u32 length;
    __device__ Strip(u32 length) : length(length) {}
    __device__ u32 area() const override { return length; }
};
__device__ __noinline__ u32 area_of(const Shape &shape) { return shape.area(); }
extern "C" __global__ void virtual_calls(u32 *out) {
    Square square(threadIdx.x);
    Strip strip(threadIdx.x + 100);
    const Shape *shape = threadIdx.x % 2 ? (const Shape *)&square : (const Shape *)&strip;
    out[threadIdx.x] = area_of(*shape);
}

extern "C" __global__ void too_deep(u32 *out) {
    u32 mine[4];
    fill(mine, 1000 * out[0]);
    out[0] = mine[0];
}

extern "C" __global__ void no_function(u32 *out, Operation called) {
    Pair p = called(Pair{1, 2}, 3);
    out[0] = p.a;
}
