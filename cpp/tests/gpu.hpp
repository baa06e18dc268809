/// @file
/// GPUs for tests, by the driver's own functions: neither a header nor a library of CUDA is needed. Where there is no driver, there are
/// no GPUs.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include <dlfcn.h>

#include "ranks.hpp"

namespace gpu {

/// The functions of the driver that the tests call themselves.
struct Driver {
    using Address = unsigned long long;

    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    int gpus = 0;
    int (*retain)(void**, int) = function<int(void**, int)>("cuDevicePrimaryCtxRetain");
    int (*release)(int) = function<int(int)>("cuDevicePrimaryCtxRelease_v2");
    int (*get_current)(void**) = function<int(void**)>("cuCtxGetCurrent");
    int (*set_current)(void*) = function<int(void*)>("cuCtxSetCurrent");
    int (*allocate)(Address*, std::size_t) = function<int(Address*, std::size_t)>("cuMemAlloc_v2");
    int (*free)(Address) = function<int(Address)>("cuMemFree_v2");
    int (*upload)(Address, const void*, std::size_t) = function<int(Address, const void*, std::size_t)>("cuMemcpyHtoD_v2");
    int (*download)(void*, Address, std::size_t) = function<int(void*, Address, std::size_t)>("cuMemcpyDtoH_v2");
    int (*create)(CUstream_st**, unsigned) = function<int(CUstream_st**, unsigned)>("cuStreamCreate");
    int (*synchronize)(CUstream_st*) = function<int(CUstream_st*)>("cuStreamSynchronize");
    int (*destroy)(CUstream_st*) = function<int(CUstream_st*)>("cuStreamDestroy_v2");

    Driver() {
        auto* init = function<int(unsigned)>("cuInit");
        auto* count = function<int(int*)>("cuDeviceGetCount");
        if (init == nullptr || count == nullptr || init(0) != 0 || count(&gpus) != 0) {
            gpus = 0;
        }
    }

    static const Driver& get() {
        static const Driver driver;
        return driver;
    }

  private:
    template <typename F> F* function(const char* name) const {
        return library == nullptr ? nullptr : reinterpret_cast<F*>(dlsym(library, name));
    }
};

inline void check(int code, const char* call) { ranks::require(code == 0, std::string(call) + " returned " + std::to_string(code)); }

/// Elements in the memory of the current GPU.
template <typename T> class OnGpu {
  public:
    explicit OnGpu(std::size_t count) : count_(count) { check(Driver::get().allocate(&address_, count * sizeof(T)), "cuMemAlloc"); }
    explicit OnGpu(const std::vector<T>& values) : OnGpu(values.size()) { set(values); }
    ~OnGpu() { Driver::get().free(address_); }
    OnGpu(const OnGpu&) = delete;
    OnGpu& operator=(const OnGpu&) = delete;

    // NOLINTNEXTLINE: an address of a GPU
    T* data() const { return reinterpret_cast<T*>(static_cast<std::uintptr_t>(address_)); }
    std::size_t size() const { return count_; }
    void set(const std::vector<T>& values) { check(Driver::get().upload(address_, values.data(), count_ * sizeof(T)), "cuMemcpyHtoD"); }
    std::vector<T> get() const {
        std::vector<T> values(count_);
        check(Driver::get().download(values.data(), address_, count_ * sizeof(T)), "cuMemcpyDtoH");
        return values;
    }

  private:
    Driver::Address address_ = 0;
    std::size_t count_;
};

/// A GPU that is current in this thread while the value lives, and a stream of it.
class Gpu {
  public:
    explicit Gpu(int device) : device_(device) {
        void* context = nullptr;
        check(Driver::get().get_current(&before_), "cuCtxGetCurrent");
        check(Driver::get().retain(&context, device), "cuDevicePrimaryCtxRetain");
        check(Driver::get().set_current(context), "cuCtxSetCurrent");
        check(Driver::get().create(&stream_, 1), "cuStreamCreate");
    }
    ~Gpu() {
        Driver::get().destroy(stream_);
        Driver::get().set_current(before_);
        Driver::get().release(device_);
    }
    Gpu(const Gpu&) = delete;
    Gpu& operator=(const Gpu&) = delete;

    rsccl::Stream stream() const { return stream_; }
    void synchronize() const { check(Driver::get().synchronize(stream_), "cuStreamSynchronize"); }

  private:
    int device_;
    void* before_ = nullptr;
    CUstream_st* stream_ = nullptr;
};

/// Whether there are GPUs; prints that the test skips where there are none. On a virtual machine (vcuda) there are
/// some: a test that finds none there fails.
inline bool has_gpus() {
    if (Driver::get().gpus == 0) {
        if (std::getenv("VCUDA_STATE") != nullptr) {
            throw std::runtime_error("a virtual machine has GPUs, but the driver tells of none");
        }
        std::printf("skipped: no GPU, so no calls on GPUs\n");
    }
    return Driver::get().gpus > 0;
}

} // namespace gpu
