// Heat in a ring, in MPI; rounds.cpp is the same program in the classes. Each rank has a part of the ring; in each step it swaps the ends of
// its part with its neighbours by persistent requests, which are made once, and works inside meanwhile.
#include <mpi.h>
#include <stdio.h>

#define POINTS 32

static double mean(const double* at) { return 0.5 * at[0] + 0.25 * (at[-1] + at[1]); }

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    int size, rank;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const int left = (rank + size - 1) % size, right = (rank + 1) % size;

    double now[POINTS + 2], next[POINTS + 2], ends[2];
    for (int at = 1; at <= POINTS; ++at) now[at] = (rank * POINTS + at) % 7;
    MPI_Request swap[4];
    MPI_Recv_init(&now[0], 1, MPI_DOUBLE, left, 0, MPI_COMM_WORLD, &swap[0]);
    MPI_Recv_init(&now[POINTS + 1], 1, MPI_DOUBLE, right, 1, MPI_COMM_WORLD, &swap[1]);
    MPI_Send_init(&ends[1], 1, MPI_DOUBLE, right, 0, MPI_COMM_WORLD, &swap[2]);
    MPI_Send_init(&ends[0], 1, MPI_DOUBLE, left, 1, MPI_COMM_WORLD, &swap[3]);
    for (int step = 1; step <= 100; ++step) {
        ends[0] = now[1];
        ends[1] = now[POINTS];
        MPI_Startall(4, swap);
        for (int at = 2; at < POINTS; ++at) next[at] = mean(&now[at]);
        MPI_Waitall(4, swap, MPI_STATUSES_IGNORE);
        next[1] = mean(&now[1]);
        next[POINTS] = mean(&now[POINTS]);
        double most = 0.0, all;
        for (int at = 1; at <= POINTS; ++at) {
            now[at] = next[at];
            if (now[at] > most) most = now[at];
        }
        // (MPI 4 has MPI_Allreduce_init for this.)
        MPI_Allreduce(&most, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        if (rank == 0 && step % 20 == 0) printf("step %d: at most %.17g\n", step, all);
    }
    for (int at = 0; at < 4; ++at) MPI_Request_free(&swap[at]);
    MPI_Finalize();
    return 0;
}
