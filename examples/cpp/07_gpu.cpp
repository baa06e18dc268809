// Goal: a sum in the memory of GPUs, in the order of a CUDA stream. One rank a process; device, stream and copies come from the
// driver, which is loaded when the program runs, so that building it takes nothing of CUDA. With the CUDA runtime these lines are
// cudaSetDevice, cudaStreamCreate, cudaMemcpy, cudaStreamSynchronize: a cudaStream_t is what rsccl takes, and memory of cudaMalloc
// goes in the form with pointers, comm.all_reduce(in, out, count, rsccl::DataType::float32, rsccl::ReduceOp::sum, stream).
//
//     c++ -std=c++17 07_gpu.cpp -I PREFIX/include -L PREFIX/lib -lrsccl -ldl -o gpu
//     rsccl run -n 2 ./gpu
//     vcuda/run 2-nvswitch -- rsccl run -n 2 ./gpu     (two virtual GPUs: from a checkout, without any GPU)
//
// Prints (rank 0 of 2):
//
//     2 ranks on GPUs: every sum is 3
// or, where there is no GPU:
//
//     skipped: no GPU here
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include <dlfcn.h>

#include <rsccl/rsccl.hpp>

// A function of the driver, which says 0 when all is well.
template <class... Arguments>
void driver(const char* name, Arguments... arguments) {
    static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    auto* function = library == nullptr ? nullptr : reinterpret_cast<int (*)(Arguments...)>(dlsym(library, name));
    const int code = function == nullptr ? -1 : function(arguments...);
    if (code != 0) {
        throw std::runtime_error(std::string(name) + " returned " + std::to_string(code));
    }
}

int gpus() {
    int count = 0;
    try {
        driver("cuInit", 0U);
        driver("cuDeviceGetCount", &count);
    } catch (const std::runtime_error&) {
        count = 0;
    }
    return count;
}

using Address = unsigned long long;
Address on_gpu(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory); }

int main() {
    if (gpus() == 0) {
        std::printf("skipped: no GPU here\n");
        return 0;
    }
    try {
        auto comm = rsccl::Communicator::from_env();
        // The GPU that this rank should use, as a number of its process, becomes current.
        const auto place = comm.placement();
        void* context = nullptr;
        const int device = place.device ? place.device->ordinal : 0;
        driver("cuDevicePrimaryCtxRetain", &context, device);
        driver("cuCtxSetCurrent", context);
        CUstream_st* stream = nullptr;
        driver("cuStreamCreate", &stream, 1U);

        std::vector<float> values(1 << 20, static_cast<float>(comm.rank() + 1));
        {
            rsccl::gpu_buffer<float> memory(values.size(), stream);
            driver("cuMemcpyHtoD_v2", on_gpu(memory.data()), static_cast<const void*>(values.data()), values.size() * sizeof(float));
            // Without the stream this does not compile.
            comm.all_reduce_in_place(memory, rsccl::ReduceOp::sum, stream);
            driver("cuStreamSynchronize", stream);
            driver("cuMemcpyDtoH_v2", static_cast<void*>(values.data()), on_gpu(memory.data()), values.size() * sizeof(float));
        }
        const auto sum = static_cast<float>(comm.size() * (comm.size() + 1) / 2);
        if (std::any_of(values.begin(), values.end(), [sum](float value) { return value != sum; })) {
            throw std::runtime_error("a sum is wrong");
        }
        if (comm.rank() == 0) std::printf("%d ranks on GPUs: every sum is %g\n", comm.size(), sum);
        comm.finalize();
        driver("cuStreamDestroy_v2", stream);
        driver("cuDevicePrimaryCtxRelease_v2", device);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
