// A panic in the library does not cross the bridge: it comes as InternalError, and the program goes on. Linked with the static
// library, since what provokes the panic is not shown by the shared one.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <rsccl/rsccl.hpp>

#include "../../src/testing.hpp"

namespace {

void require(bool so, const char* what) {
    if (!so) {
        std::fprintf(stderr, "not so: %s\n", what);
        std::exit(1);
    }
}

} // namespace

int main() {
    bool caught = false;
    try {
        rsccl::testing::panic();
    } catch (const rsccl::InternalError& error) {
        caught = error.code() == rsccl::ErrorCode::internal && !error.message().empty();
        std::printf("as InternalError: %s\n", error.what());
    }
    require(caught, "a panic outside of any communicator is an InternalError");

    std::vector<rsccl::Communicator> comms = rsccl::Communicator::init_all(2);
    caught = false;
    try {
        rsccl::testing::panic(comms[0]);
    } catch (const rsccl::InternalError& error) {
        caught = true;
        std::printf("as InternalError: %s\n", error.what());
    }
    require(caught, "a panic in a call is an InternalError");
    // The communicator that the panic interrupted has ended, and the other rank does not wait for it.
    for (rsccl::Communicator& comm : comms) {
        caught = false;
        try {
            comm.barrier();
        } catch (const rsccl::Error& error) {
            caught = true;
            std::printf("afterwards: %s\n", error.what());
        }
        require(caught, "the communicator has ended on all ranks");
    }
    comms.clear();

    // The library goes on.
    std::vector<rsccl::Communicator> one = rsccl::Communicator::init_all(1);
    std::array<int, 1> value = {7};
    one[0].all_reduce_in_place(value);
    require(value[0] == 7, "a new communicator works");
    return 0;
}
