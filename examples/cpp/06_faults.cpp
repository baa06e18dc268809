// Goal: errors with names in them in place of hangs. One class for each kind of fault: the ones of the caller leave the communicator
// as it was, the others end it on all ranks; the ranks that are left go on in a smaller one.
//
// Prints:
//
//     refused: rank 0: all_reduce: root 7 is out of range: the world has 3 ranks
//     ended on rank 0, which waited for rank 2
//     2 ranks go on
#include <array>
#include <cstdio>

#include "ranks.hpp"

int main() {
    run_ranks(3, [](rsccl::Communicator& comm) {
        std::array<int, 1> value = {1};
        try {
            comm.broadcast(value, 7);
            expect(false, "there is no rank 7");
        } catch (const rsccl::InvalidArgument& error) {
            if (comm.rank() == 0) {
                std::printf("refused: %s\n", error.what());
            }
        }
        // Nothing was sent: the communicator is as before.
        comm.all_reduce_in_place(value);
        expect(value[0] == 3, "the sum of three ones");

        if (comm.rank() == 2) {
            return; // leaves, where the others are about to call
        }
        try {
            comm.barrier();
            expect(false, "rank 2 has left");
        } catch (const rsccl::RemoteError& error) {
            expect(error.peer() == 2, error.what());
            if (comm.rank() == 0) {
                std::printf("ended on rank %d, which waited for rank %d\n", error.rank().value_or(-1), error.peer().value_or(-1));
            }
        }
        comm = comm.shrink({2});
        value[0] = 1;
        comm.all_reduce_in_place(value);
        expect(value[0] == 2, "the sum of two ones");
        if (comm.rank() == 0) {
            std::printf("%d ranks go on\n", comm.size());
        }
    });
}
