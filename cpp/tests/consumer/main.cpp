// A user's program outside the tree: two ranks as threads, an exception that crosses from the library, memory of both sides.
//   consumer KIND, where KIND says which library it was linked with
#include <complex.h> // C's, which makes a macro of "I": headers must not mind
#include <array>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <rsccl/rsccl.hpp>

namespace {

int failures = 0;

void require(bool so, const char* what) {
    if (!so) {
        std::fprintf(stderr, "not so: %s\n", what);
        ++failures;
    }
}

void rank(rsccl::Communicator& comm) {
    const std::vector<double> mine(1000, comm.rank() + 1.0);
    std::array<double, 1000> sum{};
    comm.all_reduce(mine, sum);
    require(sum[0] == 3.0 && sum[999] == 3.0, "1 + 2");
    // Thrown in the library, caught here by class and by base.
    try {
        comm.broadcast(sum, 5);
        require(false, "there is no rank 5");
    } catch (const rsccl::InvalidArgument& error) {
        require(error.rank() == comm.rank(), error.what());
    }
    try {
        comm.send(sum, comm.rank());
        require(false, "nobody sends to himself");
    } catch (const std::exception& error) {
        require(dynamic_cast<const rsccl::InvalidUsage*>(&error) != nullptr, error.what());
    }
    rsccl::group([&](rsccl::Group& calls) { calls.on(comm).all_reduce_in_place(sum, rsccl::ReduceOp::max); });
    comm.finalize();
}

/// Which library the process has mapped.
bool has_shared_library() {
    std::FILE* maps = std::fopen("/proc/self/maps", "r");
    char line[4096];
    bool found = false;
    while (maps != nullptr && std::fgets(line, sizeof line, maps) != nullptr) {
        found = found || std::strstr(line, "librsccl.so") != nullptr;
    }
    if (maps != nullptr) {
        std::fclose(maps);
    }
    return found;
}

} // namespace

int main(int argc, char** argv) {
    require(argc == 2 && has_shared_library() == (std::strcmp(argv[1], "shared") == 0), "linked as asked for");
    require(rsccl::version() == RSCCL_VERSION_STRING, "headers and library are of one version");
    std::vector<rsccl::Communicator> comms = rsccl::Communicator::init_all(2);
    std::thread second([&] { rank(comms[1]); });
    rank(comms[0]);
    second.join();
    std::printf("rsccl %s, C++ %ld: %s\n", rsccl::version().c_str(), static_cast<long>(__cplusplus), failures == 0 ? "fine" : "wrong");
    return failures == 0 ? 0 : 1;
}
