// parts.c in the classes: parts lie one behind the other, so gaps are left out before; a struct goes as its bytes; errors are exceptions.
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <vector>

#include <rsccl/rsccl.hpp>

struct Particle {
    double place[3];
    short kind;
};

int main() {
    const rsccl::Communicator comm = rsccl::Communicator::from_env();
    const int size = comm.size(), rank = comm.rank();

    // In place of displacements: the parts without what lies between them. Counts are of elements, and these are bytes.
    std::vector<Particle> all;
    std::vector<std::size_t> bytes;
    for (int peer = 0, at = 0; peer < size; ++peer, ++at) {
        for (int end = at + peer + 1; at < end; ++at) {
            if (rank == 0) all.push_back({{1.0 * at, 2.0 * at, 3.0 * at}, static_cast<short>(at % 3)});
        }
        bytes.push_back(static_cast<std::size_t>(peer + 1) * sizeof(Particle));
    }
    std::vector<Particle> mine(static_cast<std::size_t>(rank + 1));
    comm.scatter_v(rsccl::bytes_of(all), rsccl::bytes_of(mine), bytes, 0);

    std::vector<double> places;
    for (const Particle& particle : mine) {
        if (particle.kind != mine[0].kind) continue;
        for (const double place : particle.place) places.push_back(place * 0.5);
    }
    const auto doubles = static_cast<std::int64_t>(places.size());
    int limit = 0;
    std::vector<int> limits(static_cast<std::size_t>(rank == 0 ? size : 0));
    std::iota(limits.begin(), limits.end(), 100);
    comm.scatter(limits, rsccl::view(&limit, 1), 0);
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(rank == 0 ? size : 0));
    comm.gather(rsccl::view(&doubles, 1), sizes, 0);
    std::vector<double> result(static_cast<std::size_t>(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0})));
    comm.gather_v(places, result, sizes, 0);
    if (rank == 0) {
        for (const double place : result) std::printf("%g ", place);
        std::printf("\n");
    }
    try {
        comm.send(places, size);
    } catch (const rsccl::InvalidArgument&) { // told before anything is sent: the communicator is as before
        if (rank == 0 && limit == 100) std::printf("there is no rank %d\n", size);
    }
}
