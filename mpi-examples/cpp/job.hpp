// What every program here does: start MPI, look at the number of ranks, and end the whole job where one rank fails.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include <rsccl/mpi.hpp>
#include <rsccl/rsccl.hpp>

// Ends the whole job unless `so`: a rank that went alone would leave the others waiting.
inline void expect(bool so, const char* what) {
    if (!so) {
        std::fprintf(stderr, "not as expected: %s\n", what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

// Runs `body(comm)` between MPI_Init and MPI_Finalize, with a communicator of all ranks of the job.
//
// `--ranks N` on the command line says how many there have to be: the mpirun of another MPI starts programs that each believe to be
// alone, and such a job would end well and have shown nothing.
template <class Body>
int run_job(int argc, char** argv, Body body) {
    MPI_Init(&argc, &argv);
    try {
        rsccl::Communicator comm = rsccl::from_mpi(MPI_COMM_WORLD);
        for (int place = 1; place + 1 < argc; ++place) {
            if (std::strcmp(argv[place], "--ranks") == 0) {
                expect(std::atoi(argv[place + 1]) == comm.size(), "as many ranks as the job was started for");
            }
        }
        body(comm);
        comm.finalize();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Finalize();
    return 0;
}
