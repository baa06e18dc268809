// Calls on CUDA streams, with GPU memory of the driver's own functions: neither a header nor a library of CUDA is needed to build
// this. Where there is no driver, calls say so. vcuda/run gives it virtual GPUs.
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

#include "gpu.hpp"
#include "ranks.hpp"

namespace {

using gpu::check;
using gpu::Driver;
using gpu::Gpu;
using gpu::has_gpus;
using gpu::OnGpu;
using ranks::require;
using rsccl::Communicator;
using rsccl::DataType;
using rsccl::ReduceOp;
using rsccl::Stream;

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
        // Nobody: the first call on the GPU, made by one rank alone, waits for no other. Rank 1 calls once it has returned.
        if (rank == 0) {
            comm.send_recv(in.data(), count, rsccl::no_rank, sum.data(), count, rsccl::no_rank, DataType::float32, stream);
        }
        gate.wait();
        comm.all_reduce(in.data(), sum.data(), count, DataType::float32, ReduceOp::sum, stream);
        comm.all_gather(rsccl::view(in.data(), count), rsccl::view(all.data(), size * count), stream);
        comm.broadcast(word.data(), word.data(), 1, DataType::int32, 1, stream);
        comm.barrier(stream);
        rsccl::group([&](rsccl::Group& calls) {
            calls.on(comm).send(word.data(), 1, DataType::int32, other, stream);
            calls.on(comm).recv(theirs.data(), 1, DataType::int32, other, stream);
            calls.on(comm).recv(all.data(), count, DataType::float32, rsccl::no_rank, stream);
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
        rsccl::gpu_buffer<int> shared(4, stream);
        refused("the stream of the call is the host", [&] { comm.all_reduce_in_place(shared, ReduceOp::sum, Stream::host()); });
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

// Regression: it said "no GPU driver: libcuda.so.1: cannot open shared object file", and nothing of the argument that asks for one.
TEST_CASE("a literal 0 beside memory of the host is told to be a stream") {
    ranks::run(2, [](Communicator& comm) {
        std::vector<int> four(4), other(4);
        const auto told = [&](const char* how, const auto& call) {
            try {
                call();
            } catch (const rsccl::Error& error) {
                const std::string words = error.what();
                require(words.find("CUDA's default") != std::string::npos, std::string(how) + ": " + words);
                require(words.find("Stream::host()") != std::string::npos || words.find("pass no Stream") != std::string::npos, words);
                return;
            }
            throw std::logic_error(std::string(how) + " was not refused");
        };
        const int peer = 1 - comm.rank();
        told("send of memory", [&] { comm.send(four.data(), 4, DataType::int32, peer, 0); });
        told("recv into a view", [&] { comm.recv(rsccl::view(four.data(), 4), peer, 0); });
        told("all_reduce of memory", [&] { comm.all_reduce(four.data(), other.data(), 4, DataType::int32, ReduceOp::sum, 0); });
        rsccl::Group calls;
        told("in a group", [&] { calls.on(comm).broadcast(rsccl::view(four.data(), 4), 0, 0); });
    });
}
