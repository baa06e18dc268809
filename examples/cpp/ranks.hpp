// What every example here needs: ranks as threads of this program, and a check that ends the program.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include <rsccl/rsccl.hpp>

// Ends the program with an error unless `so`.
inline void expect(bool so, const char* what) {
    if (!so) {
        std::fprintf(stderr, "not as expected: %s\n", what);
        std::exit(1);
    }
}

// Runs `body(comm)` on `ranks` threads, each with a communicator of its own. An error on any rank ends the program.
template <class Body>
void run_ranks(int ranks, Body body) {
    std::vector<std::thread> threads;
    for (rsccl::Communicator& comm : rsccl::Communicator::init_all(ranks)) {
        threads.emplace_back([body, mine = std::move(comm)]() mutable {
            try {
                body(mine);
                mine.finalize();
            } catch (const std::exception& error) {
                std::fprintf(stderr, "%s\n", error.what());
                std::exit(1);
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
}
