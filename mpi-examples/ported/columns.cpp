// columns.c in the classes: children by split, one number by all_reduce_value, MPI_IN_PLACE by the forms that are called so.
#include <array>
#include <cmath>
#include <cstdio>
#include <vector>

#include <rsccl/rsccl.hpp>

constexpr std::size_t rows = 6, columns = 8;
constexpr int grid = 2; // ranks in a row of the grid

int main() {
    using rsccl::ReduceOp;
    // A second communicator of the same ranks (MPI_Comm_dup) is by_color(0); from_env() makes one more each time, too.
    const rsccl::Communicator world = rsccl::Communicator::from_env().by_color(0);
    const int size = world.size(), rank = world.rank();
    const rsccl::Communicator row = world.by_color(rank / grid);
    const rsccl::Communicator column = world.by_color(rank % grid);
    const rsccl::Communicator host = world.on_my_host();

    std::vector<double> by_column(columns), by_row(rows), column_sums(columns);
    double squares = 0.0;
    for (std::size_t y = 0; y < rows; ++y) {
        for (std::size_t x = 0; x < columns; ++x) {
            const double value = (rank + 1) * 10 + static_cast<double>(y * 3 + x);
            by_column[x] += value;
            by_row[y] += value;
            squares += value * value;
        }
    }
    column.reduce(by_column, column_sums, ReduceOp::sum, 0);
    row.all_reduce_in_place(by_row);
    squares = world.all_reduce_value(squares);
    std::vector<double> part(columns / static_cast<std::size_t>(row.size()));
    row.reduce_scatter(by_column, part, ReduceOp::max);
    row.reduce_scatter_v(by_column, part, std::vector<std::size_t>(static_cast<std::size_t>(row.size()), part.size()));
    int before = 0, until = 0;
    const int mine = rank + 1;
    world.exscan(rsccl::view(&mine, 1), rsccl::view(&before, 1));
    world.scan(rsccl::view(&mine, 1), rsccl::view(&until, 1));
    const int all_bits = world.all_reduce_value(1 << rank, ReduceOp::bor);

    for (int turn = 0; turn < size; ++turn) {
        std::array<double, 6> line = {by_row[1], part[0], static_cast<double>(before), static_cast<double>(until),
                                      column.rank() == 0 ? column_sums[2] : 0.0, static_cast<double>(host.size())};
        if (turn > 0 && rank == turn) world.send(line, 0);
        if (rank == 0) {
            if (turn > 0) world.recv(line, turn);
            std::printf("%d: %g %g %g %g %g %g\n", turn, line[0], line[1], line[2], line[3], line[4], line[5]);
        }
    }
    if (rank == 0) std::printf("norm %.17g, bits %d\n", std::sqrt(squares), all_bits);
}
