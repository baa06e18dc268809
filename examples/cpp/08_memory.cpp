// Goal: large collectives between processes of one host that copy nothing. Memory must be such that others can map it. Containers of a pool
// are so from the start; a vector that something else has allocated is registered where it lies.
//
// Prints:
//
//     in a pool: every sum is 3
//     where it lies: every sum is 3
#include <algorithm>
#include <cstdio>
#include <memory_resource>
#include <vector>

#include "ranks.hpp"

int main() {
    constexpr std::size_t count = 1 << 20;
    run_ranks(2, [](rsccl::Communicator& comm) {
        const auto contribution = static_cast<float>(comm.rank() + 1);
        const auto all_three = [](const auto& sums) { return std::all_of(sums.begin(), sums.end(), [](float sum) { return sum == 3; }); };

        // Memory is taken where it is written: the pool may be as large as the program will ever need.
        rsccl::pool pool(std::size_t{1} << 30);
        comm.register_buffer(pool);
        std::vector<float, rsccl::allocator<float>> born(count, contribution, pool);
        comm.all_reduce_in_place(born);
        std::pmr::vector<float> resource(count, contribution, &pool);
        comm.all_reduce_in_place(resource);
        expect(all_three(born) && all_three(resource), "the sums in a pool");

        // A solver's array. Nobody touches it while its pages move, and it does not grow while it is registered.
        std::vector<float> field(count);
        {
            // A GiB takes about half a second to move, and more to move back, which some dozens of calls save: register once a program, not
            // around a call.
            rsccl::registered<float> shared = rsccl::register_memory(field.data(), field.size());
            expect(shared.refusal().empty(), shared.refusal().c_str());
            comm.register_buffer(shared);
            for (int step = 0; step < 3; ++step) {
                std::fill(shared.begin(), shared.end(), contribution);
                comm.all_reduce_in_place(shared);
            }
            comm.deregister_buffer(shared);
            // The end of `shared` gives the pages back.
        }
        expect(all_three(field), "the sum where it lies");

        if (comm.rank() == 0) {
            std::printf("in a pool: every sum is 3\nwhere it lies: every sum is 3\n");
        }
    });
}
