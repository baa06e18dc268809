// oneCCL in the contest, on host memory, over the MPI that launches it.
#include <mpi.h>
#include <oneapi/ccl.hpp>

#include "loop.hpp"

// Where a profiler would hook in: its library sets these, and null means that there is none. Intel's static library names them and does
// not bring them.
extern "C" {
#define NO_PROFILER(name) void* name##_ptr__3_0 = nullptr;
NO_PROFILER(__itt_domain_create)
NO_PROFILER(__itt_event_create)
NO_PROFILER(__itt_event_end)
NO_PROFILER(__itt_event_start)
NO_PROFILER(__itt_metadata_add)
NO_PROFILER(__itt_string_handle_create)
NO_PROFILER(__itt_task_begin)
NO_PROFILER(__itt_task_end)
NO_PROFILER(__itt_thread_set_name)
}

namespace {

using contest::Case;
using contest::Collective;

ccl::communicator make() {
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    ccl::init();
    ccl::shared_ptr_class<ccl::kvs> store;
    ccl::kvs::address_type address;
    if (rank == 0) {
        store = ccl::create_main_kvs();
        address = store->get_address();
    }
    MPI_Bcast(address.data(), static_cast<int>(address.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
    if (rank != 0) store = ccl::create_kvs(address);
    return ccl::create_communicator(ranks, rank, store);
}

class OneCcl final : public contest::Library {
  public:
    OneCcl() : comm_(make()) {}
    int rank() override { return comm_.rank(); }
    int ranks() override { return comm_.size(); }
    // Those of MPI: the loop's own bookkeeping is no part of what is measured.
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
        const auto sum = ccl::reduction::sum;
        const auto type = ccl::datatype::float32;
        switch (it.collective) {
        case Collective::AllReduce: ccl::allreduce(it.input, it.output, it.count, type, sum, comm_).wait(); break;
        case Collective::Broadcast: ccl::broadcast(it.input, it.count, type, 0, comm_).wait(); break;
        case Collective::Reduce: ccl::reduce(it.input, it.output, it.count, type, sum, 0, comm_).wait(); break;
        case Collective::AllGather: {
            std::vector<std::size_t> counts(static_cast<std::size_t>(comm_.size()), it.count);
            ccl::allgatherv(it.input, it.count, it.output, counts, type, comm_).wait();
            break;
        }
        case Collective::ReduceScatter: ccl::reduce_scatter(it.input, it.output, it.count, type, sum, comm_).wait(); break;
        case Collective::AllToAll: ccl::alltoall(it.input, it.output, it.count, type, comm_).wait(); break;
        case Collective::SendRecv: contest::fail("oneCCL has no send_recv on host memory that the contest knows");
        }
    }
    void start(const Case& it) override {
        pending_ = ccl::allreduce(it.input, it.output, it.count, ccl::datatype::float32, ccl::reduction::sum, comm_);
    }
    void finish() override { pending_.wait(); }

  private:
    ccl::communicator comm_;
    ccl::event pending_;
};

} // namespace

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    int exit;
    {
        OneCcl library;
        exit = contest::main_of(library, argc, argv);
    }
    MPI_Finalize();
    return exit;
}
