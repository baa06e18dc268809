// A matrix by rows, of which ranks have different numbers, becomes one by columns, in MPI; transpose.cpp is the same in the classes.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define SIDE 60

static int first_row(int rank, int size) { return SIDE * rank * (rank + 1) / (size * (size + 1)); }

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    int size, rank;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const int first = first_row(rank, size), rows = first_row(rank + 1, size) - first;
    int* all_rows = malloc(sizeof(int) * size);
    MPI_Allgather(&rows, 1, MPI_INT, all_rows, 1, MPI_INT, MPI_COMM_WORLD);

    // Every other rank's columns of my rows, packed; each part is transposed on the way.
    long* send = malloc(sizeof(long) * (rows * SIDE + 1));
    long* recv = malloc(sizeof(long) * (rows * SIDE + 1));
    int *to = malloc(sizeof(int) * size), *from = malloc(sizeof(int) * size);
    int *to_begin = malloc(sizeof(int) * size), *from_begin = malloc(sizeof(int) * size);
    int packed = 0;
    for (int peer = 0, column = 0; peer < size; column += all_rows[peer++]) {
        to_begin[peer] = packed;
        for (int x = column; x < column + all_rows[peer]; ++x) {
            for (int y = 0; y < rows; ++y) send[packed++] = 1000L * (first + y) + x;
        }
        to[peer] = packed - to_begin[peer];
    }
    MPI_Alltoall(to, 1, MPI_INT, from, 1, MPI_INT, MPI_COMM_WORLD);
    for (int peer = 0, begin = 0; peer < size; begin += from[peer++]) from_begin[peer] = begin;
    MPI_Alltoallv(send, to, to_begin, MPI_LONG, recv, from, from_begin, MPI_LONG, MPI_COMM_WORLD);

    // Element (column, row) of the transposed matrix, in parts of all_rows[peer] columns; row sums of all ranks, one behind the other.
    long* sums = calloc(rows + 1, sizeof(long));
    for (int peer = 0; peer < size; ++peer) {
        for (int x = 0; x < rows; ++x) {
            for (int y = 0; y < all_rows[peer]; ++y) sums[x] += recv[from_begin[peer] + x * all_rows[peer] + y] * (y + 1);
        }
    }
    long* all_sums = malloc(sizeof(long) * SIDE);
    int* begin = malloc(sizeof(int) * size);
    for (int peer = 0; peer < size; ++peer) begin[peer] = first_row(peer, size);
    MPI_Allgatherv(sums, rows, MPI_LONG, all_sums, all_rows, begin, MPI_LONG, MPI_COMM_WORLD);
    // What the left neighbour has last.
    long mine = rows > 0 ? sums[rows - 1] : 0, theirs = 0;
    MPI_Sendrecv(&mine, 1, MPI_LONG, (rank + 1) % size, 0, &theirs, 1, MPI_LONG, (rank + size - 1) % size, 0, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    if (rank == 0) {
        for (int x = 0; x < SIDE; ++x) printf("%ld ", all_sums[x]);
        printf("| %ld\n", theirs);
    }
    MPI_Finalize();
    return 0;
}
