// An MPI library in the contest: Open MPI, MPICH, Intel MPI.
#include <mpi.h>

#include "in_use.hpp"

namespace {

using contest::Case;
using contest::Collective;

class Mpi final : public contest::Requests {
  public:
    Mpi() {
        MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
        MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
    }
    int rank() override { return rank_; }
    int ranks() override { return ranks_; }
    void barrier() override { MPI_Barrier(MPI_COMM_WORLD); }
    double max(double mine) override {
        double most = mine;
        MPI_Allreduce(&mine, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        return most;
    }
    double sum(double mine) override {
        double total = mine;
        MPI_Allreduce(&mine, &total, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        return total;
    }
    void call(const Case& it) override {
        int count = static_cast<int>(it.count);
        switch (it.collective) {
        case Collective::AllReduce: MPI_Allreduce(it.input, it.output, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
        case Collective::Broadcast: MPI_Bcast(it.input, count, MPI_FLOAT, 0, MPI_COMM_WORLD); break;
        case Collective::Reduce: MPI_Reduce(it.input, it.output, count, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD); break;
        case Collective::AllGather:
            MPI_Allgather(it.input, count, MPI_FLOAT, it.output, count, MPI_FLOAT, MPI_COMM_WORLD);
            break;
        case Collective::ReduceScatter:
            MPI_Reduce_scatter_block(it.input, it.output, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            break;
        case Collective::AllToAll:
            MPI_Alltoall(it.input, count, MPI_FLOAT, it.output, count, MPI_FLOAT, MPI_COMM_WORLD);
            break;
        case Collective::SendRecv: send_recv(it, count); break;
        }
    }
    void start(const Case& it) override {
        MPI_Iallreduce(it.input, it.output, static_cast<int>(it.count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request_);
    }
    void finish() override { MPI_Wait(&request_, MPI_STATUS_IGNORE); }
    bool test() override {
        int done = 0;
        MPI_Test(&request_, &done, MPI_STATUS_IGNORE);
        return done;
    }

    void exchange(const Case& it) override {
        int count = static_cast<int>(it.count), peer = rank_ ^ 1;
        MPI_Sendrecv(it.input, count, MPI_FLOAT, peer, 0, it.output, count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    void exchange_by_requests(const Case& it) override {
        int count = static_cast<int>(it.count), peer = rank_ ^ 1;
        MPI_Request both[2];
        MPI_Irecv(it.output, count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD, &both[0]);
        MPI_Isend(it.input, count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD, &both[1]);
        MPI_Waitall(2, both, MPI_STATUSES_IGNORE);
    }

    bool prepare(const Case& it) override {
        MPI_Allreduce_init(it.input, it.output, static_cast<int>(it.count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, MPI_INFO_NULL, &prepared_);
        return true;
    }
    void run_prepared() override {
        MPI_Start(&prepared_);
        MPI_Wait(&prepared_, MPI_STATUS_IGNORE);
    }
    void release() override { MPI_Request_free(&prepared_); }

  private:
    void send_recv(const Case& it, int count) const {
        int peer = rank_ ^ 1;
        if (peer >= ranks_) return;
        auto send = [&] { MPI_Send(it.input, count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD); };
        if (peer > rank_) send();
        MPI_Recv(it.output, count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (peer < rank_) send();
    }
    int rank_ = 0, ranks_ = 0;
    MPI_Request request_ = MPI_REQUEST_NULL, prepared_ = MPI_REQUEST_NULL;
};

} // namespace

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    Mpi library;
    int exit = contest::main_of<contest::InUse>(library, argc, argv);
    MPI_Finalize();
    return exit;
}
