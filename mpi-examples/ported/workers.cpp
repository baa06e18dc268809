// workers.c in the classes. In place of MPI_ANY_SOURCE one recv per worker is under way, and the master asks which has ended; in place of
// a tag the message says what it is: a task below 0 is the end.
#include <array>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include <rsccl/rsccl.hpp>

constexpr std::int64_t tasks = 40, end = -1;

static std::int64_t steps_of(std::int64_t number) { // Collatz
    std::int64_t steps = 0;
    for (; number != 1; ++steps) number = number % 2 != 0 ? 3 * number + 1 : number / 2;
    return steps;
}

static void master(const rsccl::Communicator& comm) {
    const auto ranks = static_cast<std::size_t>(comm.size());
    std::vector<std::int64_t> results(tasks);
    std::vector<std::array<std::int64_t, 2>> answers(ranks);
    std::vector<std::int64_t> task(ranks);
    std::vector<rsccl::Request> open(ranks);
    std::int64_t next = 0, done = 0;
    const auto deal = [&](std::size_t worker) {
        task[worker] = next < tasks ? next++ : end;
        comm.start().send(rsccl::view(&task[worker], 1), static_cast<int>(worker)).wait();
        if (task[worker] != end) open[worker] = comm.start().recv(answers[worker], static_cast<int>(worker));
    };
    if (ranks < 2) return comm.abort("workers are wanted");
    for (std::size_t worker = 1; worker < ranks; ++worker) deal(worker);
    while (done < tasks) { // MPI_ANY_SOURCE
        for (std::size_t worker = 1; worker < ranks; ++worker) {
            if (open[worker] && open[worker].test()) {
                results[static_cast<std::size_t>(answers[worker][0])] = answers[worker][1];
                ++done;
                deal(worker);
            }
        }
        std::this_thread::yield();
    }
    for (const std::int64_t result : results) std::printf("%lld ", static_cast<long long>(result));
    std::printf("\n");
}

int main() {
    const rsccl::Communicator comm = rsccl::Communicator::from_env();
    std::int64_t first = comm.rank() == 0 ? 837799 : 0;
    comm.broadcast(rsccl::view(&first, 1), 0);
    if (comm.rank() == 0) {
        master(comm);
        return 0;
    }
    for (std::int64_t task = 0;;) {
        comm.recv(rsccl::view(&task, 1), 0);
        if (task == end) break;
        comm.send(std::array<std::int64_t, 2>{task, steps_of(first + task)}, 0);
    }
}
