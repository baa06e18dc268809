#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
typedef unsigned int u32; typedef unsigned long long u64; typedef unsigned char u8; typedef long long i64;
template<typename T> struct Sum { static __device__ T f(T a, T b){ return a+b; } };
template<typename T> struct Mx { static __device__ T f(T a, T b){ return a<b?b:a; } };
template<typename T, class Op> __device__ void fold(const T* const* src, int k, T* dst, size_t n){
  for(size_t i=blockIdx.x*(size_t)blockDim.x+threadIdx.x;i<n;i+=(size_t)gridDim.x*blockDim.x){ T a=src[0][i]; for(int j=1;j<k;j++) a=Op::f(a,src[j][i]); dst[i]=a; } }
struct Args { const void* src[8]; void* dst; size_t n; int k; int op; };
extern "C" __global__ void fold_f32(Args a){ fold<float,Sum<float>>((const float*const*)a.src,a.k,(float*)a.dst,a.n);}
extern "C" __global__ void fold_f64(Args a){ fold<double,Mx<double>>((const double*const*)a.src,a.k,(double*)a.dst,a.n);}
extern "C" __global__ void fold_half(Args a){ fold<__half,Sum<__half>>((const __half*const*)a.src,a.k,(__half*)a.dst,a.n);}
extern "C" __global__ void fold_bf(Args a){ fold<__nv_bfloat16,Sum<__nv_bfloat16>>((const __nv_bfloat16*const*)a.src,a.k,(__nv_bfloat16*)a.dst,a.n);}
extern "C" __global__ void fold_bfm(Args a){ fold<__nv_bfloat16,Mx<__nv_bfloat16>>((const __nv_bfloat16*const*)a.src,a.k,(__nv_bfloat16*)a.dst,a.n);}
extern "C" __global__ void fold_u8(Args a){ fold<u8,Mx<u8>>((const u8*const*)a.src,a.k,(u8*)a.dst,a.n);}
extern "C" __global__ void fold_i64(Args a){ fold<i64,Mx<i64>>((const i64*const*)a.src,a.k,(i64*)a.dst,a.n);}
extern "C" __global__ void reduce_shfl(const float* x, float* out, int n){
  float v=0; for(int i=threadIdx.x;i<n;i+=blockDim.x) v+=x[i];
  for(int o=16;o;o>>=1) v+=__shfl_xor_sync(~0u,v,o);
  __shared__ float s[32]; if((threadIdx.x&31)==0) s[threadIdx.x>>5]=v; __syncthreads();
  if(threadIdx.x<32){ v= threadIdx.x<blockDim.x/32? s[threadIdx.x]:0; for(int o=16;o;o>>=1) v+=__shfl_down_sync(~0u,v,o); if(!threadIdx.x) *out=v; } }
extern "C" __global__ void hist(const u8* x, u32* h, size_t n){ extern __shared__ u32 s[]; for(int i=threadIdx.x;i<256;i+=blockDim.x) s[i]=0; __syncthreads();
  for(size_t i=blockIdx.x*blockDim.x+threadIdx.x;i<n;i+=gridDim.x*blockDim.x) atomicAdd(&s[x[i]],1u); __syncthreads(); for(int i=threadIdx.x;i<256;i+=blockDim.x) atomicAdd(&h[i],s[i]); }
extern "C" __global__ void prodcons(volatile u32* flag, u32* data, u32* out, int who){
 if(who==0){ data[threadIdx.x]=threadIdx.x; __syncthreads(); if(!threadIdx.x){ asm volatile("fence.acq_rel.sys;":::"memory"); asm volatile("st.relaxed.sys.global.u32 [%0], %1;"::"l"(flag),"r"(1):"memory"); } }
 else { if(!threadIdx.x){ u32 v; do { asm volatile("{ .reg .pred p; ld.acquire.sys.global.u32 %0, [%1]; }":"=r"(v):"l"(flag):"memory"); } while(v!=1); } __syncthreads(); out[threadIdx.x]=data[threadIdx.x]; } }
extern "C" __global__ void vec(const uint4* a, uint4* b, int n){ int i=blockIdx.x*blockDim.x+threadIdx.x; if(i<n){ uint4 v=a[i]; v.x=__brev(v.x); v.y=__popc(v.y); v.z=__byte_perm(v.z,v.w,0x3210+v.x); v.w=__funnelshift_r(v.z,v.w,v.x); b[i]=v; } }
extern "C" __global__ void conv8(const u32* in, u8* o1, u8* o2, float* f){ int i=blockIdx.x*blockDim.x+threadIdx.x; float x=__uint_as_float(in[i]); __nv_fp8_e4m3 a(x); __nv_fp8_e5m2 b(x); o1[i]=a.__x; o2[i]=b.__x; f[i]=float(a)+float(b); }
extern "C" __global__ void casts(const double* d, int* a, u64* b, float* c, __half* h, __half2* h2, short* s){ int i=threadIdx.x; a[i]=__double2int_rn(d[i]); b[i]=(u64)d[i]; c[i]=__double2float_rz(d[i]); h[i]=__float2half_rz(c[i]); h2[i]=__floats2half2_rn(c[i],c[i]*2); s[i]=(short)rintf(c[i]); c[i]=floorf(c[i])/ceilf(c[i]+3)+sqrtf(c[i])+fmaf(c[i],c[i],1.f)+(float)(a[i]/7)+(float)(b[i]%13); }
extern "C" __global__ void locals(int* p, int n){ int a[32]; for(int i=0;i<32;i++) a[i]=p[i]*n; int s=0; for(int i=0;i<n;i++) s+=a[(i*p[i])&31]; p[threadIdx.x]=s; }
__device__ __noinline__ int helper(int a, int b, float* f){ *f += a; return a*b+threadIdx.x; }
extern "C" __global__ void calls(int* p, float* f){ int x=helper(p[0],p[1],f); if(x>3) x+=helper(x,2,f+1); p[2]=x; }
__device__ u64 counter; __constant__ float table[4]={1,2,3,4};
extern "C" __global__ void atomics(double* d, u64* u, int* i, __half2* h, __nv_bfloat16* b, float* f){ atomicAdd(d,1.0); atomicCAS(u,1ull,2ull); atomicExch(i,4); atomicMax(i,7); atomicInc((u32*)i,9u); atomicAdd(h,__floats2half2_rn(1,2)); atomicAdd(f,table[threadIdx.x&3]); atomicAdd(&counter,1ull); atomicAdd_system(u,3ull); atomicAnd_block(i,3); __threadfence(); __threadfence_system(); __threadfence_block(); }
extern "C" __global__ void votes(u32* o, u32 m){ u32 t=threadIdx.x; o[t]=__ballot_sync(m,t&1)+__any_sync(m,t>3)+__all_sync(m,t<9)+__match_any_sync(m,t/2)+__reduce_add_sync(m,t)+__activemask()+__syncthreads_count(t>4)+__syncthreads_or(t)+__clz(t)+__ffs(t)+__clzll(t)+clock()+(u32)clock64(); __nanosleep(20); int p; o[t]+=__match_all_sync(m,t,&p); }
extern "C" __global__ void sw(int* p, int k){ switch(k){case 0:p[0]=1;break;case 1:p[1]=5;break;case 2:p[2]=p[3]*2;break;case 3:p[0]+=9;break;case 4: p[8]=1; break; case 5: p[7]-=3; break; default: __trap(); } }
extern "C" __global__ void __launch_bounds__(512,1) ll(u64* buf, u64* out, u32 ep){ u64 a; volatile u64* v=buf; do{ a=v[threadIdx.x]; }while((u32)(a>>32)!=ep); out[threadIdx.x]=a; u64 x,y; asm volatile("ld.volatile.global.v2.u64 {%0,%1}, [%2];":"=l"(x),"=l"(y):"l"(buf+2*threadIdx.x)); asm volatile("st.volatile.global.v2.u64 [%2], {%0,%1};"::"l"(x),"l"(y),"l"(out+2*threadIdx.x)); }
