// A master deals tasks of different length to whoever is free, in MPI: from MPI_ANY_SOURCE, with a tag that says what a message is.
// workers.cpp is the same in the classes.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define TASKS 40
enum { TASK = 1, RESULT = 2, END = 3 };

static long steps_of(long number) { // Collatz
    long steps = 0;
    for (; number != 1; ++steps) number = number % 2 ? 3 * number + 1 : number / 2;
    return steps;
}

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    int size, rank;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    long first = rank == 0 ? 837799 : 0; // the master has read it somewhere
    MPI_Bcast(&first, 1, MPI_LONG, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        long results[TASKS], answer[2], none = -1, next = 0;
        if (size < 2) MPI_Abort(MPI_COMM_WORLD, 1);
        for (int worker = 1; worker < size; ++worker, ++next) MPI_Send(&next, 1, MPI_LONG, worker, TASK, MPI_COMM_WORLD);
        for (int done = 0; done < TASKS; ++done) {
            MPI_Status status;
            MPI_Probe(MPI_ANY_SOURCE, RESULT, MPI_COMM_WORLD, &status);
            MPI_Recv(answer, 2, MPI_LONG, status.MPI_SOURCE, RESULT, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            results[answer[0]] = answer[1];
            if (next < TASKS) {
                MPI_Send(&next, 1, MPI_LONG, status.MPI_SOURCE, TASK, MPI_COMM_WORLD);
                ++next;
            } else {
                MPI_Send(&none, 1, MPI_LONG, status.MPI_SOURCE, END, MPI_COMM_WORLD);
            }
        }
        for (int task = 0; task < TASKS; ++task) printf("%ld ", results[task]);
        printf("\n");
    } else {
        for (;;) {
            long task;
            MPI_Status status;
            MPI_Recv(&task, 1, MPI_LONG, 0, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
            if (status.MPI_TAG == END) break;
            long answer[2] = {task, steps_of(first + task)};
            MPI_Send(answer, 2, MPI_LONG, 0, RESULT, MPI_COMM_WORLD);
        }
    }
    MPI_Finalize();
    return 0;
}
