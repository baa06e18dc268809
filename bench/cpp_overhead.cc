// What a C++ call costs over the Rust call: an all-reduce of one float on a communicator of one rank, where nothing else is to do, and
// of two ranks as threads. Both are timed in turns on the same communicator; medians of many rounds.
//
//   cargo rustc --release --lib --crate-type staticlib --features cpp --no-default-features
//   g++ -std=c++17 -O2 -Icpp/include -Icpp/src bench/cpp_overhead.cc target/release/librsccl.a -lpthread -ldl -lm -lrt -o overhead
//   ./overhead
//
// Exits with 1 where the difference on one rank is 50 ns or more.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

#include <rsccl/rsccl.hpp>

#include "testing.hpp"

namespace {

constexpr int rounds = 101;
constexpr unsigned turns = 10000;

struct Medians {
    double rust;
    double cpp;
};

double median(std::vector<double>& values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

double cpp_all_reduce_ns(rsccl::Communicator& comm) {
    std::vector<float> in(1, 1.0f);
    std::vector<float> out(1);
    const auto begun = std::chrono::steady_clock::now();
    for (unsigned turn = 0; turn < turns; ++turn) {
        comm.all_reduce(in, out);
    }
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begun).count() / turns;
}

Medians measure(rsccl::Communicator& comm) {
    std::vector<double> rust;
    std::vector<double> cpp;
    for (int round = 0; round < rounds; ++round) {
        rust.push_back(rsccl::testing::all_reduce_ns(comm, turns));
        cpp.push_back(cpp_all_reduce_ns(comm));
    }
    return {median(rust), median(cpp)};
}

} // namespace

int main() {
    double difference = 0;
    for (const int ranks : {1, 2}) {
        std::vector<rsccl::Communicator> all = rsccl::Communicator::init_all(ranks);
        std::vector<Medians> medians(all.size());
        std::vector<std::thread> threads;
        for (std::size_t rank = 0; rank < all.size(); ++rank) {
            threads.emplace_back([&, rank] { medians[rank] = measure(all[rank]); });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
        const Medians first = medians[0];
        std::printf("%d rank%s: Rust %.1f ns, C++ %.1f ns, difference %.1f ns\n", ranks, ranks == 1 ? "" : "s", first.rust, first.cpp,
                    first.cpp - first.rust);
        if (ranks == 1) {
            difference = first.cpp - first.rust;
        }
    }
    return difference < 50 ? 0 : 1;
}
