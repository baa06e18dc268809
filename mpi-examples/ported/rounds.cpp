// rounds.c in the classes. Persistent calls are prepared once, on memory that stays where it is, and started in each step; the all-reduce
// is one, too, which `run` starts and waits for.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>

#include <rsccl/rsccl.hpp>

constexpr std::size_t points = 32;

static double mean(const double* at) { return 0.5 * at[0] + 0.25 * (at[-1] + at[1]); }

int main() {
    const rsccl::Communicator comm = rsccl::Communicator::from_env();
    const int left = (comm.rank() + comm.size() - 1) % comm.size(), right = (comm.rank() + 1) % comm.size();

    std::array<double, points + 2> now{}, next{};
    std::array<double, 2> ends{};
    std::array<double, 1> most{}, all{};
    for (std::size_t at = 1; at <= points; ++at) now[at] = static_cast<double>((static_cast<std::size_t>(comm.rank()) * points + at) % 7);
    // Messages between two ranks come in the order in which they are started: of two ranks each is the other's left and right, and the
    // order says which message is which.
    std::array<rsccl::PersistentCall, 4> swap{
        comm.prepare().recv(rsccl::view(&now[0], 1), left),           // MPI_Recv_init
        comm.prepare().recv(rsccl::view(&now[points + 1], 1), right), //
        comm.prepare().send(rsccl::view(&ends[1], 1), right),         // MPI_Send_init
        comm.prepare().send(rsccl::view(&ends[0], 1), left),          //
    };
    rsccl::PersistentCall greatest = comm.prepare().all_reduce(most, all, rsccl::ReduceOp::max); // MPI_Allreduce_init
    for (int step = 1; step <= 100; ++step) {
        ends = {now[1], now[points]};
        rsccl::start_all(swap); // MPI_Startall
        for (std::size_t at = 2; at < points; ++at) next[at] = mean(&now[at]);
        rsccl::wait_all(swap); // MPI_Waitall
        next[1] = mean(&now[1]);
        next[points] = mean(&now[points]);
        most[0] = 0.0;
        for (std::size_t at = 1; at <= points; ++at) {
            now[at] = next[at];
            most[0] = std::max(most[0], now[at]);
        }
        greatest.run(); // MPI_Start, MPI_Wait
        if (comm.rank() == 0 && step % 20 == 0) std::printf("step %d: at most %.17g\n", step, all[0]);
    }
}
