// A user's program with MPI: it is built to see that rsccl::mpi brings all that rsccl/mpi.hpp needs. mpi-examples/cpp runs such.
#include <array>

#include <rsccl/mpi.hpp>
#include <rsccl/rsccl.hpp>

int main(int argc, char** argv) {
    int provided = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    int status = 1;
    {
        rsccl::Communicator comm = rsccl::from_mpi(MPI_COMM_WORLD);
        std::array<int, 1> sum = {1};
        comm.all_reduce_in_place(sum);
        status = sum[0] == comm.size() ? 0 : 1;
    }
    MPI_Finalize();
    return status;
}
