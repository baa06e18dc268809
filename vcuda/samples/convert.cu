// Conversions between f32 and the small floats, by CUDA's own headers. One thread a value; the host compares with its tables.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;

static __device__ __forceinline__ u32 index() {
    return blockIdx.x * blockDim.x + threadIdx.x;
}

extern "C" __global__ void f16_to_f32(const u16 *bits, float *values, u32 count) {
    u32 i = index();
    if (i < count) values[i] = __half2float(__ushort_as_half(bits[i]));
}

extern "C" __global__ void f32_to_f16(const float *values, u16 *bits, u32 count) {
    u32 i = index();
    if (i < count) bits[i] = __half_as_ushort(__float2half_rn(values[i]));
}

extern "C" __global__ void bf16_to_f32(const u16 *bits, float *values, u32 count) {
    u32 i = index();
    if (i < count) values[i] = __bfloat162float(__ushort_as_bfloat16(bits[i]));
}

extern "C" __global__ void f32_to_bf16(const float *values, u16 *bits, u32 count) {
    u32 i = index();
    if (i < count) bits[i] = __bfloat16_as_ushort(__float2bfloat16_rn(values[i]));
}

static __device__ __forceinline__ float fp8_value(u8 bits, __nv_fp8_interpretation_t kind) {
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(bits, kind)));
}

extern "C" __global__ void e4m3_to_f32(const u8 *bits, float *values, u32 count) {
    u32 i = index();
    if (i < count) values[i] = fp8_value(bits[i], __NV_E4M3);
}

extern "C" __global__ void e5m2_to_f32(const u8 *bits, float *values, u32 count) {
    u32 i = index();
    if (i < count) values[i] = fp8_value(bits[i], __NV_E5M2);
}

// A value beyond the range becomes the greatest finite one, as __NV_SATFINITE says.
extern "C" __global__ void f32_to_e4m3(const float *values, u8 *bits, u32 count) {
    u32 i = index();
    if (i < count) bits[i] = __nv_cvt_float_to_fp8(values[i], __NV_SATFINITE, __NV_E4M3);
}

extern "C" __global__ void f32_to_e5m2(const float *values, u8 *bits, u32 count) {
    u32 i = index();
    if (i < count) bits[i] = __nv_cvt_float_to_fp8(values[i], __NV_SATFINITE, __NV_E5M2);
}
