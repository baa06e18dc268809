// The C++ half of bench/cpp_overhead.sh: the same calls as rust.rs by the C++ classes, in turns with it, in one process.
//   cpp_overhead RANKS CALLS ROUNDS, which prints the medians of both and their difference
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include <rsccl/rsccl.hpp>

extern "C" double rust_round(std::uint32_t ranks, std::uint32_t calls);

namespace {

// Keeps the compiler from knowing what is in the buffers.
template <class T>
T& hidden(T& value) {
    asm volatile("" : : "r"(&value) : "memory");
    return value;
}

double rank_round(rsccl::Communicator comm, int calls) {
    std::array<float, 2> send = {1.0F, 2.0F};
    std::array<float, 2> recv{};
    double nanoseconds = 0;
    // The first lap opens connections and warms caches.
    for (int lap = 0; lap < 2; ++lap) {
        comm.barrier();
        const auto begun = std::chrono::steady_clock::now();
        for (int call = 0; call < calls; ++call) {
            comm.all_reduce(hidden(send), hidden(recv));
        }
        nanoseconds = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begun).count() / calls;
    }
    return nanoseconds;
}

// Every rank on a thread of its own, as in the Rust half.
double cpp_round(int ranks, int calls) {
    std::vector<rsccl::Communicator> comms = rsccl::Communicator::init_all(ranks);
    std::vector<double> nanoseconds(comms.size());
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < comms.size(); ++rank) {
        threads.emplace_back([&, rank] { nanoseconds[rank] = rank_round(std::move(comms[rank]), calls); });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    return nanoseconds[0];
}

double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
    return values[values.size() / 2];
}

} // namespace

int main(int argc, char** argv) {
    if (argc != 4) {
        std::fprintf(stderr, "usage: cpp_overhead RANKS CALLS ROUNDS\n");
        return 2;
    }
    const int ranks = std::atoi(argv[1]);
    const int calls = std::atoi(argv[2]);
    std::vector<double> rust;
    std::vector<double> cpp;
    std::vector<double> difference;
    for (int round = 0; round < std::atoi(argv[3]); ++round) {
        // The two take turns in going first, so that neither has the quieter half of every pair.
        const bool first = round % 2 == 0;
        const double one = first ? rust_round(static_cast<std::uint32_t>(ranks), static_cast<std::uint32_t>(calls)) : cpp_round(ranks, calls);
        const double two = first ? cpp_round(ranks, calls) : rust_round(static_cast<std::uint32_t>(ranks), static_cast<std::uint32_t>(calls));
        rust.push_back(first ? one : two);
        cpp.push_back(first ? two : one);
        if (rust.back() < 0) {
            return 1;
        }
        difference.push_back(cpp.back() - rust.back());
    }
    std::printf("%d rank%s: Rust %.1f ns, C++ %.1f ns, C++ less Rust %.1f ns (median of %zu pairs of rounds)\n", ranks, ranks == 1 ? "" : "s",
                median(rust), median(cpp), median(difference), difference.size());
    // The bound is for a call that waits for nobody: between threads, the time of a call is that of cache lines and of the scheduler.
    return ranks == 1 && median(difference) >= 50 ? 1 : 0;
}
