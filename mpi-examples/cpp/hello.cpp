// Goal: the ranks of an MPI job are the ranks of an rsccl communicator, in one line; each learns where it runs, and MPI's own
// communicators find their likeness.
//
//     cpp/install.sh /opt/rsccl
//     mpicxx -std=c++17 mpi-examples/cpp/hello.cpp -I /opt/rsccl/include -L /opt/rsccl/lib -lrsccl -o hello
//     LD_LIBRARY_PATH=/opt/rsccl/lib mpirun -n 2 ./hello
//
// Prints, in any order:
//
//     rank 0 of 2: host node7 (0 of 1), local rank 0 of 2, leader, no GPU
//     rank 1 of 2: host node7 (0 of 1), local rank 1 of 2, no GPU
#include <array>
#include <cstdio>

#include "job.hpp"

int main(int argc, char** argv) {
    return run_job(argc, argv, [](rsccl::Communicator& comm) {
        const rsccl::Placement placement = comm.placement();
        std::printf("rank %d of %d: %s\n", comm.rank(), comm.size(), placement.printed.c_str());

        int rank = -1;
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        expect(comm.rank() == rank, "the rank that MPI gives");
        // Every host has one leader, its local rank 0.
        std::array<int, 1> leaders = {placement.leader_rank ? 1 : 0};
        comm.all_reduce_in_place(leaders);
        expect(leaders[0] == placement.hosts, "one leader for each host");

        // The ranks of a host, and those with one local rank, by rsccl; the odd and the even ones as MPI has split them.
        rsccl::Communicator local = comm.on_my_host();
        rsccl::Communicator cross = comm.cross();
        expect(local.size() == placement.local_size && local.rank() == placement.local_rank, "local");
        expect(cross.rank() == placement.host, "cross");
        MPI_Comm parity = MPI_COMM_NULL;
        MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &parity);
        rsccl::Communicator half = *rsccl::mpi::like(comm, parity);
        expect(half.rank() == rank / 2, "like MPI's own split");
        rsccl::mpi::check(half, parity);
        MPI_Comm_free(&parity);
    });
}
