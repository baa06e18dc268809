// Ranks as threads, in a program that is compiled with ThreadSanitizer: calls, messages, requests, groups, a split; buffers that are made,
// written and freed between calls. With the word `race` two ranks also write one number that nothing orders.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <rsccl/rsccl.hpp>

namespace {

int shared_by_mistake = 0;

void must(bool right) {
    if (!right) {
        std::puts("wrong");
        std::abort();
    }
}

void calls_of(rsccl::Communicator& comm, int round) {
    const int me = static_cast<int>(comm.rank()), size = static_cast<int>(comm.size());
    for (std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{100000}}) {
        std::vector<float> in(count, static_cast<float>(me + 1)), out(count), got(count);
        comm.all_reduce(in, out, rsccl::ReduceOp::sum);
        must(out[count - 1] == static_cast<float>(size * (size + 1) / 2));
        in.assign(count, static_cast<float>(round));
        comm.broadcast(in, 0);
        std::vector<float> all(count * static_cast<std::size_t>(size));
        comm.all_gather(out, all);
        comm.send_recv(out, (me + 1) % size, got, (me + size - 1) % size);
        auto request = comm.start().all_reduce(in, got, rsccl::ReduceOp::max);
        request.wait();
        must(got[0] == static_cast<float>(round));
        comm.barrier();
    }
    auto child = comm.split(me % 2, me);
    if (child) {
        std::vector<int> one{me}, all(static_cast<std::size_t>(child->size()));
        child->all_gather(one, all);
    }
}

void race_on() { shared_by_mistake += 1; }

} // namespace

int main(int argc, char** argv) {
    const bool races = argc > 1 && std::string(argv[1]) == "race";
    auto comms = rsccl::Communicator::init_all(3);
    for (int round = 0; round < 3; ++round) {
        std::vector<std::thread> threads;
        for (auto& comm : comms) {
            threads.emplace_back([&comm, round, races] {
                calls_of(comm, round);
                if (races) {
                    race_on();
                }
            });
        }
        for (auto& thread : threads) {
            thread.join();
        }
    }
    comms.clear();
    std::puts("right");
}
