// Goal: heat in a plate, by Jacobi's method on a grid of ranks; mpi-examples/06_jacobi.rs in C++, with the same numbers. Each rank
// has a block of the plate; in each step it swaps the edges of its block with its neighbours (sends and recvs in one group) and
// averages; now and then an all-reduce tells all ranks how much still changes. Rank 0 gathers the field, solves all of it alone, and
// finds the same bits.
//
// Prints:
//
//     2 x 2 ranks, 200 x 200 points: 1220 steps, the same field as the serial run, bit by bit
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <vector>

#include "job.hpp"

namespace {

constexpr int side = 200;          // points of the plate along each side
constexpr double hot = 100.0;      // how hot one side of the plate is held; the other three are at zero
constexpr double tolerance = 0.02; // solved, once no point changes by more in a step
constexpr int steps_between_checks = 20;
constexpr int most_steps = 100000;

using Points = std::vector<std::size_t>;

// Points of the plate, with a rim of one point around them that belongs to the neighbours or is the plate's side.
struct Block {
    int first_row, rows, first_column, columns;
    std::vector<double> field, next; // row by row, rim included: row and column 0 are rim

    Block(int row, int last_row, int column, int last_column)
        : first_row(row), rows(last_row - row), first_column(column), columns(last_column - column),
          field(static_cast<std::size_t>((rows + 2) * (columns + 2))) {
        if (first_row == 0) {
            std::fill_n(field.begin(), columns + 2, hot);
        }
        next = field;
    }
    std::size_t at(int row, int column) const { return static_cast<std::size_t>(row * (columns + 2) + column); }
    Points row(int number) const {
        Points points;
        for (int column = 1; column <= columns; ++column) points.push_back(at(number, column));
        return points;
    }
    Points column(int number) const {
        Points points;
        for (int row = 1; row <= rows; ++row) points.push_back(at(row, number));
        return points;
    }
    // Makes every point the mean of its four neighbours. Returns the greatest change.
    double step() {
        double greatest = 0.0;
        for (int row = 1; row <= rows; ++row) {
            for (int column = 1; column <= columns; ++column) {
                // Always in this order, so that every way to cut the plate gives the same bits.
                const double vertical = field[at(row - 1, column)] + field[at(row + 1, column)];
                const double horizontal = field[at(row, column - 1)] + field[at(row, column + 1)];
                const double mean = 0.25 * (vertical + horizontal);
                greatest = std::max(greatest, std::abs(mean - field[at(row, column)]));
                next[at(row, column)] = mean;
            }
        }
        std::swap(field, next);
        return greatest;
    }
};

// Ranks as the cells of a grid, row by row; as near to a square as their number allows, at least as wide as high.
struct Grid {
    int rows = 1, columns = 1;
    explicit Grid(int ranks) {
        for (int candidate = 1; candidate * candidate <= ranks; ++candidate) {
            if (ranks % candidate == 0) rows = candidate;
        }
        columns = ranks / rows;
    }
    // Rows and columns of the plate are dealt out as evenly as they go.
    Block block_of(int rank) const {
        const int row = rank / columns;
        const int column = rank % columns;
        return {row * side / rows, (row + 1) * side / rows, column * side / columns, (column + 1) * side / columns};
    }
};

// What is swapped with one neighbour: where my points stand that it needs, and where its points go.
struct Halo {
    int peer;
    Points edge, rim;
    std::vector<double> sent, received;
    Halo(int who, Points mine, Points theirs)
        : peer(who), edge(std::move(mine)), rim(std::move(theirs)), sent(edge.size()), received(rim.size()) {}
};

// One for each side of the block that is not a side of the plate.
std::vector<Halo> halos_of(const Grid& grid, int rank, const Block& block) {
    std::vector<Halo> halos;
    const int row = rank / grid.columns;
    const int column = rank % grid.columns;
    if (row > 0) halos.emplace_back(rank - grid.columns, block.row(1), block.row(0));
    if (row + 1 < grid.rows) halos.emplace_back(rank + grid.columns, block.row(block.rows), block.row(block.rows + 1));
    if (column > 0) halos.emplace_back(rank - 1, block.column(1), block.column(0));
    if (column + 1 < grid.columns) halos.emplace_back(rank + 1, block.column(block.columns), block.column(block.columns + 1));
    return halos;
}

// Swaps all edges at once: in a group the order of sends and recvs does not matter.
void exchange(const rsccl::Communicator& comm, Block& block, std::vector<Halo>& halos) {
    for (Halo& halo : halos) {
        std::transform(halo.edge.begin(), halo.edge.end(), halo.sent.begin(), [&](std::size_t point) { return block.field[point]; });
    }
    rsccl::group([&](rsccl::Group& calls) {
        for (Halo& halo : halos) {
            calls.on(comm).send(halo.sent, halo.peer);
            calls.on(comm).recv(halo.received, halo.peer);
        }
    });
    for (Halo& halo : halos) {
        for (std::size_t place = 0; place < halo.rim.size(); ++place) block.field[halo.rim[place]] = halo.received[place];
    }
}

// Steps until nothing changes much; `swap` fills the block's rim, `greatest` finds the greatest of all blocks' changes.
int solve(Block& block, const std::function<void(Block&)>& swap, const std::function<double(double)>& greatest) {
    for (int step = 1; step <= most_steps; ++step) {
        swap(block);
        const double change = block.step();
        if (step % steps_between_checks == 0 && greatest(change) < tolerance) return step;
    }
    expect(false, "the plate comes to rest");
    return 0;
}

// The blocks of all ranks, on rank 0; none elsewhere.
std::vector<Block> gather(const rsccl::Communicator& comm, const Grid& grid, const Block& block) {
    std::vector<Block> parts;
    for (int rank = 0; comm.rank() == 0 && rank < comm.size(); ++rank) parts.push_back(grid.block_of(rank));
    rsccl::group([&](rsccl::Group& calls) {
        for (std::size_t rank = 0; rank < parts.size(); ++rank) calls.on(comm).recv(parts[rank].field, static_cast<int>(rank));
        calls.on(comm).send(block.field, 0);
    });
    return parts;
}

void compare_with_serial(const std::vector<Block>& parts, int steps) {
    Block whole(0, side, 0, side);
    const int serial_steps = solve(whole, [](Block&) {}, [](double change) { return change; });
    expect(steps == serial_steps, "as many steps as the serial run");
    for (const Block& part : parts) {
        for (int row = 1; row <= part.rows; ++row) {
            const double* mine = &part.field[part.at(row, 1)];
            const double* theirs = &whole.field[whole.at(part.first_row + row, part.first_column + 1)];
            expect(std::memcmp(mine, theirs, static_cast<std::size_t>(part.columns) * sizeof(double)) == 0, "the serial run's bits");
        }
    }
}

} // namespace

int main(int argc, char** argv) {
    return run_job(argc, argv, [](rsccl::Communicator& comm) {
        const Grid grid(comm.size());
        Block block = grid.block_of(comm.rank());
        std::vector<Halo> halos = halos_of(grid, comm.rank(), block);
        const int steps = solve(
            block, [&](Block& mine) { exchange(comm, mine, halos); },
            [&](double mine) { return comm.all_reduce_value(mine, rsccl::ReduceOp::max); });
        const std::vector<Block> parts = gather(comm, grid, block);
        if (comm.rank() == 0) {
            compare_with_serial(parts, steps);
            std::printf("%d x %d ranks, %d x %d points: %d steps, the same field as the serial run, bit by bit\n", grid.rows, grid.columns,
                        side, side, steps);
        }
    });
}
