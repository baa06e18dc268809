// halo.c in the classes. The grid and its neighbours are arithmetic; a column is packed by hand; a neighbour that is not there is
// rsccl::no_rank; sends and recvs of one step stand in a group.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <vector>

#include <rsccl/rsccl.hpp>

constexpr std::size_t side = 24, width = side + 2;
constexpr std::size_t at(std::size_t row, std::size_t column) { return row * width + column; }

int main() {
    const rsccl::Communicator comm = rsccl::Communicator::from_env(); // MPI_Init; the destructor is MPI_Finalize
    // MPI_Dims_create: as near to a square as the number of ranks allows, at least as high as wide.
    int columns = 1;
    for (int candidate = 1; candidate * candidate <= comm.size(); ++candidate) {
        if (comm.size() % candidate == 0) columns = candidate;
    }
    const int rows = comm.size() / columns, row = comm.rank() / columns, column = comm.rank() % columns;
    // MPI_Cart_shift
    const int up = row > 0 ? comm.rank() - columns : rsccl::no_rank, down = row + 1 < rows ? comm.rank() + columns : rsccl::no_rank;
    const int left = column > 0 ? comm.rank() - 1 : rsccl::no_rank, right = column + 1 < columns ? comm.rank() + 1 : rsccl::no_rank;

    std::vector<double> now(width * width);
    if (up == rsccl::no_rank) std::fill_n(now.begin(), width, 100.0);
    std::vector<double> next = now, to_left(side), to_right(side), from_left(side), from_right(side);
    comm.barrier();
    const auto begun = std::chrono::steady_clock::now(); // MPI_Wtime
    for (int step = 1; step <= 60; ++step) {
        for (std::size_t y = 0; y < side; ++y) { // MPI_Type_vector
            to_left[y] = now[at(y + 1, 1)], to_right[y] = now[at(y + 1, side)];
            from_left[y] = now[at(y + 1, 0)], from_right[y] = now[at(y + 1, side + 1)];
        }
        rsccl::group([&](rsccl::Group& calls) { // MPI_Irecv, MPI_Isend, MPI_Waitall
            const auto on = calls.on(comm);
            on.recv(rsccl::view(&now[at(0, 1)], side), up);
            on.recv(rsccl::view(&now[at(side + 1, 1)], side), down);
            on.recv(from_left, left);
            on.recv(from_right, right);
            on.send(rsccl::view(&now[at(1, 1)], side), up);
            on.send(rsccl::view(&now[at(side, 1)], side), down);
            on.send(to_left, left);
            on.send(to_right, right);
        });
        for (std::size_t y = 0; y < side; ++y) now[at(y + 1, 0)] = from_left[y], now[at(y + 1, side + 1)] = from_right[y];
        double change = 0.0;
        std::int64_t where = 0;
        for (std::size_t y = 1; y <= side; ++y) {
            for (std::size_t x = 1; x <= side; ++x) {
                const double mean = 0.25 * ((now[at(y - 1, x)] + now[at(y + 1, x)]) + (now[at(y, x - 1)] + now[at(y, x + 1)]));
                if (const double by = std::fabs(mean - now[at(y, x)]); by > change) {
                    change = by;
                    const auto points = static_cast<std::size_t>(columns) * side;
                    where = static_cast<std::int64_t>((static_cast<std::size_t>(row) * side + y - 1) * points +
                                                      static_cast<std::size_t>(column) * side + x - 1);
                }
                next[at(y, x)] = mean;
            }
        }
        now = next;
        if (step % 15 == 0) { // MPI_MAXLOC: the greatest, and of those that have it the lowest place
            const double most = comm.all_reduce_value(change, rsccl::ReduceOp::max);
            const std::int64_t none = std::numeric_limits<std::int64_t>::max();
            const std::int64_t first = comm.all_reduce_value(change == most ? where : none, rsccl::ReduceOp::min);
            if (comm.rank() == 0) std::printf("step %d: point %d has changed by %.17g\n", step, static_cast<int>(first), most);
        }
    }
    if (std::chrono::steady_clock::now() - begun > std::chrono::seconds(60)) comm.abort("too slow"); // MPI_Abort
}
