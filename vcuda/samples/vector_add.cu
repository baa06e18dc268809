// sum[i] = a[i] + b[i], in a loop over the grid.
extern "C" __global__ void vector_add(const float *a, const float *b, float *sum, unsigned long long count) {
    unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        sum[i] = a[i] + b[i];
    }
}
