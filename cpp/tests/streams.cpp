// Calls on CUDA streams, with GPU memory of the driver's own functions: neither a header nor a library of CUDA is needed to build
// this. Where there is no driver, calls say so. tests/vcuda/run gives it virtual GPUs.
#include <doctest/doctest.h>

#include <array>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <dlfcn.h>

#include "ranks.hpp"

namespace {

using ranks::require;
using rsccl::Communicator;
using rsccl::DataType;
using rsccl::ReduceOp;
using rsccl::Stream;

// The functions of the driver that the tests call themselves.
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

void check(int code, const char* call) { require(code == 0, std::string(call) + " returned " + std::to_string(code)); }

// Elements in the memory of the current GPU.
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

// A GPU that is current in this thread while the value lives, and a stream of it.
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

    Stream stream() const { return stream_; }
    void synchronize() const { check(Driver::get().synchronize(stream_), "cuStreamSynchronize"); }

  private:
    int device_;
    void* before_ = nullptr;
    CUstream_st* stream_ = nullptr;
};

// Where threads wait for each other: memory is allocated before anybody calls, and freed after all calls.
class Gate {
  public:
    explicit Gate(int threads) : threads_(threads) {}
    void wait() {
        std::unique_lock<std::mutex> lock(guard_);
        const int turn = turn_;
        if (++waiting_ == threads_) {
            waiting_ = 0;
            ++turn_;
            changed_.notify_all();
        }
        require(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return turn_ != turn; }), "a rank has not come");
    }

  private:
    std::mutex guard_;
    std::condition_variable changed_;
    const int threads_;
    int waiting_ = 0;
    int turn_ = 0;
};

bool has_gpus() {
    if (Driver::get().gpus == 0) {
        std::printf("skipped: no GPU, so no calls on streams\n");
    }
    return Driver::get().gpus > 0;
}

} // namespace

TEST_CASE("collectives, messages and groups on CUDA streams") {
    if (!has_gpus()) {
        return;
    }
    constexpr int size = 2;
    constexpr std::size_t count = 1003;
    Gate gate(size);
    ranks::run(size, [&gate](Communicator& comm) {
        const int rank = comm.rank();
        const int other = 1 - rank;
        const Gpu gpu(rank % Driver::get().gpus);
        std::vector<float> mine(count);
        std::iota(mine.begin(), mine.end(), static_cast<float>(rank));
        const OnGpu<float> in(mine);
        const OnGpu<float> sum(count);
        const OnGpu<float> all(size * count);
        const OnGpu<std::int32_t> word(std::vector<std::int32_t>{rank == 1 ? 77 : 0});
        const OnGpu<std::int32_t> theirs(std::vector<std::int32_t>{-1});
        const OnGpu<double> grouped(std::vector<double>{1.5 + rank, 2.0});
        gate.wait();

        const Stream stream = gpu.stream();
        comm.all_reduce(in.data(), sum.data(), count, DataType::float32, ReduceOp::sum, stream);
        comm.all_gather(rsccl::view(in.data(), count), rsccl::view(all.data(), size * count), stream);
        comm.broadcast(word.data(), word.data(), 1, DataType::int32, 1, stream);
        comm.barrier(stream);
        rsccl::group([&](rsccl::Group& calls) {
            calls.on(comm).send(word.data(), 1, DataType::int32, other, stream);
            calls.on(comm).recv(theirs.data(), 1, DataType::int32, other, stream);
            calls.on(comm).all_reduce(grouped.data(), grouped.data(), 2, DataType::float64, ReduceOp::max, stream);
        });
        gpu.synchronize();
        // CUDA's default stream, of the GPU that is current in this thread.
        comm.all_reduce(theirs.data(), theirs.data(), 1, DataType::int32, ReduceOp::sum, nullptr);
        check(Driver::get().synchronize(nullptr), "cuStreamSynchronize");
        gate.wait();

        const std::vector<float> sums = sum.get();
        const std::vector<float> gathered = all.get();
        for (std::size_t place = 0; place < count; ++place) {
            const auto value = static_cast<float>(place);
            require(sums[place] == 2 * value + 1, "sum " + std::to_string(place));
            require(gathered[place] == value && gathered[count + place] == value + 1, "gathered " + std::to_string(place));
        }
        require(word.get()[0] == 77, "the root's word");
        require(theirs.get()[0] == 2 * 77, "the other's word, twice");
        require(grouped.get() == std::vector<double>{2.5, 2.0}, "the greatest of both ranks");
        require(!comm.async_error(), "no error");
    });
}

TEST_CASE("what cannot go into a stream is refused, and the communicator goes on") {
    ranks::run(1, [](Communicator& comm) {
        std::array<int, 4> here{};
        const auto on_default = [&] { comm.all_reduce(here.data(), here.data(), 4, DataType::int32, ReduceOp::sum, nullptr); };
        try {
            on_default();
            require(false, "host memory was taken on a stream");
        } catch (const rsccl::InvalidArgument& error) {
            require(has_gpus() && error.message().find("`send`") != std::string::npos, error.what());
        } catch (const rsccl::SystemError& error) {
            require(!has_gpus() && error.message().find("driver") != std::string::npos, error.what());
        }
        require(!comm.async_error(), "the communicator goes on");
        comm.all_reduce_in_place(here);
    });
    if (!has_gpus()) {
        return;
    }
    ranks::run(1, [](Communicator& comm) {
        const Gpu gpu(0);
        const OnGpu<int> there(std::vector<int>{1, 2, 3, 4});
        std::array<int, 4> here{};
        const Stream stream = gpu.stream();
        const auto refused = [&comm](const std::string& words, auto call) {
            try {
                call();
                require(false, "not refused: " + words);
            } catch (const rsccl::Error& error) {
                require(error.code() == rsccl::ErrorCode::invalid_argument || error.code() == rsccl::ErrorCode::invalid_usage,
                        error.what());
                require(error.message().find(words) != std::string::npos, error.what());
            }
            require(!comm.async_error(), "the communicator goes on");
        };
        const auto reduce = [&](const void* from, void* into) {
            comm.all_reduce(from, into, 4, DataType::int32, ReduceOp::sum, stream);
        };
        refused("`recv`", [&] { reduce(there.data(), here.data()); });
        refused("start()", [&] { (void)comm.start().all_reduce(there.data(), there.data(), 4, DataType::int32, ReduceOp::sum, stream); });
        refused("one stream", [&] {
            rsccl::group([&](rsccl::Group& calls) {
                calls.on(comm).all_reduce_in_place(here);
                calls.on(comm).all_reduce(there.data(), there.data(), 4, DataType::int32, ReduceOp::sum, stream);
            });
        });
        if (Driver::get().gpus > 1) {
            const Gpu second(1);
            refused("the stream is of", [&] {
                comm.all_reduce(there.data(), there.data(), 4, DataType::int32, ReduceOp::sum, second.stream());
            });
        }
        reduce(there.data(), there.data());
        gpu.synchronize();
        require(there.get() == std::vector<int>{1, 2, 3, 4}, "the sum of one rank");
    });
}
