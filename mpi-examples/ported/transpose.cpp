// transpose.c in the classes: counts without displacements, since blocks lie one behind the other; both counts of all_to_all_v in braces.
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <vector>

#include <rsccl/rsccl.hpp>

constexpr int side = 60;

static int first_row(int rank, int size) { return side * rank * (rank + 1) / (size * (size + 1)); }

int main() {
    const rsccl::Communicator comm = rsccl::Communicator::from_env();
    const int size = comm.size(), rank = comm.rank();
    const int first = first_row(rank, size), rows = first_row(rank + 1, size) - first;
    std::vector<int> all_rows(static_cast<std::size_t>(size));
    comm.all_gather(rsccl::view(&rows, 1), all_rows);

    std::vector<std::int64_t> send;
    std::vector<std::size_t> to;
    int column = 0;
    for (const int theirs : all_rows) {
        for (int x = column; x < column + theirs; ++x) {
            for (int y = 0; y < rows; ++y) send.push_back(1000 * (first + y) + x);
        }
        to.push_back(static_cast<std::size_t>(theirs * rows));
        column += theirs;
    }
    const std::vector<std::size_t> from = comm.exchange_counts(to);
    std::vector<std::int64_t> recv(std::accumulate(from.begin(), from.end(), std::size_t{0}));
    comm.all_to_all_v(send, recv, {to, from});

    std::vector<std::int64_t> sums(static_cast<std::size_t>(rows));
    auto element = recv.begin();
    for (const int theirs : all_rows) {
        for (std::int64_t& sum : sums) {
            for (int y = 0; y < theirs; ++y) sum += *element++ * (y + 1);
        }
    }
    std::vector<std::int64_t> all_sums(side);
    comm.all_gather_v(sums, all_sums, all_rows);
    const std::int64_t mine = sums.empty() ? 0 : sums.back();
    std::int64_t theirs = 0;
    comm.send_recv(rsccl::view(&mine, 1), (rank + 1) % size, rsccl::view(&theirs, 1), (rank + size - 1) % size);
    if (rank == 0) {
        for (const std::int64_t sum : all_sums) std::printf("%lld ", static_cast<long long>(sum));
        std::printf("| %lld\n", static_cast<long long>(theirs));
    }
}
