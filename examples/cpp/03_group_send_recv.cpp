// Goal: messages between pairs, in a group. Each rank passes a token to its right neighbour and takes one from its left, until
// every token has come home. Alone, a send of more than 1 MiB waits for its receiver, and a ring of such sends would wait for ever; in a
// group, send and recv of any size run side by side, whatever their order. The second time round requests do the same, and the rank could compute
// meanwhile.
//
// Prints:
//
//     after 5 hops every token of 100000 words is home again
#include <cstdio>

#include "ranks.hpp"

namespace {

constexpr int ranks = 5;
constexpr std::size_t words = 100000;

} // namespace

int main() {
    run_ranks(ranks, [](rsccl::Communicator& comm) {
        const int left = (comm.rank() + ranks - 1) % ranks;
        const int right = (comm.rank() + 1) % ranks;
        std::vector<int> token(words, comm.rank());
        std::vector<int> next(words);
        for (int hop = 0; hop < ranks; ++hop) {
            rsccl::group([&](rsccl::Group& calls) {
                calls.on(comm).send(token, right);
                calls.on(comm).recv(next, left);
            });
            std::swap(token, next);
        }
        expect(token[0] == comm.rank() && token[words - 1] == comm.rank(), "my token came home");

        rsccl::Request received = comm.start().recv(next, left);
        rsccl::Request sent = comm.start().send(token, right);
        // ... compute ...
        received.wait();
        sent.wait();
        expect(next[words - 1] == left, "my left neighbour's token");
        if (comm.rank() == 0) {
            std::printf("after %d hops every token of %zu words is home again\n", ranks, words);
        }
    });
}
