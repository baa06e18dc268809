// Goal: four ranks, each a thread of this program, meet and learn of each other.
//
//     cpp/install.sh /opt/rsccl
//     g++ -std=c++17 -pthread examples/cpp/01_hello.cpp -I /opt/rsccl/include -L /opt/rsccl/lib -lrsccl -o hello
//     LD_LIBRARY_PATH=/opt/rsccl/lib ./hello
//
// Prints:
//
//     rank 0 of 4 has heard from 0 1 2 3
#include <array>
#include <cstdio>

#include "ranks.hpp"

int main() {
    run_ranks(4, [](rsccl::Communicator& comm) {
        const std::array<int, 1> mine = {comm.rank()};
        std::vector<int> heard(static_cast<std::size_t>(comm.size()));
        comm.all_gather(mine, heard);
        if (comm.rank() == 0) {
            std::printf("rank %d of %d has heard from", comm.rank(), comm.size());
            for (int rank : heard) {
                std::printf(" %d", rank);
            }
            std::printf("\n");
        }
        expect(heard == std::vector<int>{0, 1, 2, 3}, "one word of each rank, in rank order");
    });
}
