// Goal: communicators of a part of the ranks. Six ranks form a grid of two rows and three columns; each rank adds up its row in one
// communicator and its column in another. Then those with odd numbers leave: no color, no communicator.
//
// Prints:
//
//     sums of the rows:    3 12
//     sums of the columns: 3 5 7
//     the even ranks, turned round: 4 2 0
#include <array>
#include <cstdio>
#include <optional>

#include "ranks.hpp"

namespace {

constexpr int columns = 3;

// One value of each rank, in the order of `comm`'s ranks.
std::vector<int> gather(const rsccl::Communicator& comm, int value) {
    std::vector<int> all(static_cast<std::size_t>(comm.size()));
    comm.all_gather(std::array<int, 1>{value}, all);
    return all;
}

} // namespace

int main() {
    run_ranks(2 * columns, [](rsccl::Communicator& comm) {
        const int rank = comm.rank();
        rsccl::Communicator row = comm.by_color(rank / columns);
        rsccl::Communicator column = comm.by_color(rank % columns);
        const std::vector<int> rows = gather(comm, row.all_reduce_value(rank));
        const std::vector<int> sums = gather(comm, column.all_reduce_value(rank));

        // Ranks of a child follow their keys: the greatest old rank has the least key.
        const std::optional<int> color = rank % 2 == 0 ? std::optional<int>(0) : std::nullopt;
        std::optional<rsccl::Communicator> evens = comm.split(color, -rank);
        expect(evens.has_value() == (rank % 2 == 0), "the odd ranks have no communicator");
        std::vector<int> turned;
        if (evens) {
            turned = gather(*evens, rank);
            expect(turned == std::vector<int>{4, 2, 0}, "the even ranks, turned round");
        }
        expect(rows == std::vector<int>{3, 3, 3, 12, 12, 12}, "sums of the rows");
        expect(sums == std::vector<int>{3, 5, 7, 3, 5, 7}, "sums of the columns");
        if (rank == 0) {
            std::printf("sums of the rows:    %d %d\n", rows[0], rows[columns]);
            std::printf("sums of the columns: %d %d %d\n", sums[0], sums[1], sums[2]);
            std::printf("the even ranks, turned round: %d %d %d\n", turned[0], turned[1], turned[2]);
        }
    });
}
