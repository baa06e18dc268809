// Goal: the collective that most programs come for. Every rank passes an array, every rank gets the element-wise sum; then the
// maximum, in place; then a sum in which each rank scales its part first; then the form for programs that know a buffer's type
// only at run time.
//
// Prints:
//
//     sum      6 10 14
//     maximum  30 10 20
//     scaled   3 5 7
#include <algorithm>
#include <array>
#include <cstdio>

#include "ranks.hpp"

int main() {
    run_ranks(4, [](rsccl::Communicator& comm) {
        const int rank = comm.rank();
        // Out of place: `mine` stays as it is. Anything contiguous is a buffer; the element type is checked at compile time.
        const std::vector<int> mine = {rank, rank + 1, rank + 2};
        std::array<int, 3> sum{};
        comm.all_reduce(mine, sum);

        // In place: one buffer is input and output.
        std::array<int, 3> maximum = {10 * rank, 10 - rank, 20 - rank};
        comm.all_reduce_in_place(maximum, rsccl::ReduceOp::max);

        // Each rank's scalar may differ; here all halve.
        float scaled[3] = {};
        std::copy(mine.begin(), mine.end(), scaled);
        comm.all_reduce_in_place(scaled, rsccl::ReduceOp::premul_sum(0.5F));

        // Memory, a count and a type.
        std::array<int, 3> erased{};
        comm.all_reduce(mine.data(), erased.data(), mine.size(), rsccl::DataType::int32, rsccl::ReduceOp::sum);

        if (rank == 0) {
            std::printf("sum      %d %d %d\n", sum[0], sum[1], sum[2]);
            std::printf("maximum  %d %d %d\n", maximum[0], maximum[1], maximum[2]);
            std::printf("scaled   %g %g %g\n", scaled[0], scaled[1], scaled[2]);
        }
        expect(sum == std::array<int, 3>{6, 10, 14} && erased == sum, "the sum");
        expect(maximum == std::array<int, 3>{30, 10, 20}, "the maximum");
        expect(scaled[0] == 3 && scaled[1] == 5 && scaled[2] == 7, "half of the sum");
    });
}
