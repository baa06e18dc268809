// A plugin that uses rsccl; the program that loads it is not linked with rsccl. `run` makes two ranks, which live until the plugin
// is unloaded.
#include <array>
#include <thread>
#include <vector>

#include <rsccl/rsccl.hpp>

namespace {

std::vector<rsccl::Communicator> kept;

int rank(rsccl::Communicator& comm) {
    std::array<int, 3> sum = {1, 2, 3};
    comm.start().all_reduce_in_place(sum).wait();
    try {
        comm.broadcast(sum, 9);
    } catch (const rsccl::InvalidArgument&) {
        return sum[2] == 6 ? 0 : 1;
    }
    return 2;
}

} // namespace

extern "C" __attribute__((visibility("default"))) int run() {
    std::vector<rsccl::Communicator> comms = rsccl::Communicator::init_all(2);
    int theirs = -1;
    std::thread second([&] { theirs = rank(comms[1]); });
    const int mine = rank(comms[0]);
    second.join();
    kept = std::move(comms);
    return mine + theirs;
}
