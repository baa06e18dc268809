// GPU memory that the library allocates, and windows of it: between threads, between processes, and what is refused.
// vcuda/run gives it virtual GPUs.
#include <doctest/doctest.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gpu.hpp"
#include "ranks.hpp"

namespace {

using gpu::check;
using gpu::Driver;
using gpu::Gpu;
using gpu::has_gpus;
using ranks::require;
using ranks::require_each;
using rsccl::Communicator;
using rsccl::gpu_buffer;
using rsccl::ReduceOp;
using rsccl::Window;

constexpr std::size_t count = 10'007;

Driver::Address address(const void* place) { return reinterpret_cast<std::uintptr_t>(place); }

template <class T> std::vector<T> get(const gpu_buffer<T>& buffer) {
    std::vector<T> values(buffer.size());
    check(Driver::get().download(values.data(), address(buffer.data()), values.size() * sizeof(T)), "cuMemcpyDtoH");
    return values;
}

template <class T> void set(gpu_buffer<T>& buffer, const std::vector<T>& values) {
    check(Driver::get().upload(address(buffer.data()), values.data(), values.size() * sizeof(T)), "cuMemcpyHtoD");
}

// Calls in windows give what calls give. The ranks work in each other's memory, unless they share a GPU.
void work_in_windows(Communicator& comm) {
    const bool direct = Driver::get().gpus >= comm.size();
    const auto ranks = static_cast<std::size_t>(comm.size());
    const auto rank = static_cast<std::size_t>(comm.rank());
    const Gpu gpu(comm.rank() % Driver::get().gpus);
    gpu_buffer<float> in(count, gpu.stream());
    gpu_buffer<float> all(ranks * count, gpu.stream());
    require_each(get(all), "new memory", [](std::size_t) { return 0.0F; });
    Window of_in = comm.register_window(in);
    Window of_all = comm.register_window(all);
    require(of_in.is_direct() == direct && of_all.is_direct() == direct, "whether windows are direct");

    std::vector<float> mine(count);
    std::iota(mine.begin(), mine.end(), static_cast<float>(rank));
    set(in, mine);
    comm.all_gather(in, all, gpu.stream());
    comm.all_reduce_in_place(in, ReduceOp::sum, gpu.stream());
    gpu.synchronize();
    require_each(get(all), "gathered", [](std::size_t place) { return static_cast<float>(place / count + place % count); });
    const std::size_t shares = ranks * (ranks - 1) / 2;
    require_each(get(in), "sum", [&](std::size_t place) { return static_cast<float>(ranks * place + shares); });

    const rsccl::MemoryUse held = comm.memory();
    require(held.gpu > 0 && held.gpu_ordinal == static_cast<std::uint32_t>(comm.rank() % Driver::get().gpus), "memory on a GPU");
    require(!direct || held.windows >= (ranks + 1) * count * sizeof(float), "memory of windows");

    Window moved = std::move(of_in);
    require(moved.is_direct() == direct && !of_in.is_direct(), "a moved-from window is empty"); // NOLINT: on purpose
    comm.deregister_window(std::move(moved));
    try {
        comm.deregister_window(std::move(of_in)); // NOLINT: on purpose
        require(false, "an empty window was taken back");
    } catch (const rsccl::InvalidUsage&) {
    }
    {
        // Memory of the program's own. The barrier says that nobody works in it any more.
        const gpu::OnGpu<float> own(count);
        Window of_own = comm.register_window(own.data(), count * sizeof(float), gpu.stream());
        require(of_own.is_direct() == direct, "whether a window of own memory is direct");
        comm.all_reduce(in.data(), own.data(), count, rsccl::DataType::float32, ReduceOp::max, gpu.stream());
        gpu.synchronize();
        require_each(own.get(), "maximum", [&](std::size_t place) { return static_cast<float>(ranks * place + shares); });
        comm.deregister_window(std::move(of_own));
        comm.barrier();
    }

    // What is registered no longer serves as any memory does; what still is goes with the communicator.
    comm.all_reduce_in_place(in, ReduceOp::max, gpu.stream());
    gpu.synchronize();
    require_each(get(in), "maximum", [&](std::size_t place) { return static_cast<float>(ranks * place + shares); });
    comm.finalize();
}

int in_windows(const std::vector<std::string>&) {
    rsccl::Communicator comm = rsccl::Communicator::from_env(ranks::quick());
    work_in_windows(comm);
    return 0;
}
const ranks::Named windows_worker("in_windows", in_windows);

// Rank 1 says another length; both hear of it, and nothing is lost.
int unlike_windows(const std::vector<std::string>&) {
    rsccl::Communicator comm = rsccl::Communicator::from_env(ranks::quick());
    const Gpu gpu(comm.rank() % Driver::get().gpus);
    const gpu_buffer<float> memory(comm.rank() == 1 ? count + 1 : count, gpu.stream());
    try {
        const Window window = comm.register_window(memory);
        require(false, "windows of different lengths were registered");
    } catch (const rsccl::InvalidArgument& error) {
        require(error.message().find("give the same length") != std::string::npos, error.what());
    }
    return 0;
}
const ranks::Named unlike_worker("unlike_windows", unlike_windows);

} // namespace

TEST_CASE("windows between processes, and between threads") {
    if (!has_gpus()) {
        return;
    }
    CHECK(ranks::processes(2, "in_windows") == std::vector<int>{0, 0});
    CHECK(ranks::processes(2, "unlike_windows") == std::vector<int>{0, 0});
    ranks::run(2, [](Communicator& comm) { work_in_windows(comm); });
}

TEST_CASE("GPU memory that there is not") {
    using Bytes = gpu_buffer<std::uint8_t>;
    CHECK_THROWS_AS(Bytes(1, rsccl::Stream::host()), rsccl::InvalidUsage);
    CHECK_THROWS_AS(Bytes(0, nullptr), rsccl::InvalidArgument);
    CHECK_THROWS_AS(gpu_buffer<double>(SIZE_MAX / 2, nullptr), rsccl::InvalidArgument);
    if (!has_gpus()) {
        CHECK_THROWS_AS(Bytes(1, nullptr), rsccl::SystemError);
        return;
    }
    const Gpu gpu(0);
    CHECK_THROWS_AS(Bytes(std::size_t{1} << 50, gpu.stream()), rsccl::SystemError);
    Bytes one(1, gpu.stream());
    const Bytes two(std::move(one));
    CHECK(two.size() == 1);
    CHECK(one.empty()); // NOLINT: on purpose
    CHECK(one.data() == nullptr);
    ranks::run(1, [&one, &two](Communicator& comm) {
        try {
            const Window window = comm.register_window(one);
            require(false, "a moved-from buffer was registered");
        } catch (const rsccl::InvalidArgument&) {
        }
        Window window = comm.register_window(two);
        Communicator other = comm.by_color(0);
        try {
            other.deregister_window(std::move(window));
            require(false, "a communicator took another's window back");
        } catch (const rsccl::InvalidUsage& error) {
            require(error.message().find("another communicator") != std::string::npos, error.what());
        }
    });
}
