// Heat in a plate on a grid of ranks, in MPI; halo.cpp is the same program in the classes. Each rank has a square block with a rim of one
// point; in each step it swaps the edges of its block with its neighbours, and averages.
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIDE 24
#define WIDTH (SIDE + 2)
#define AT(row, column) ((row)*WIDTH + (column))

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    int size, rank, dims[2] = {0, 0}, periods[2] = {0, 0}, place[2], up, down, left, right;
    MPI_Comm grid;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Dims_create(size, 2, dims);
    MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 0, &grid);
    MPI_Comm_rank(grid, &rank);
    MPI_Cart_coords(grid, rank, 2, place);
    MPI_Cart_shift(grid, 0, 1, &up, &down); // MPI_PROC_NULL at the plate's sides
    MPI_Cart_shift(grid, 1, 1, &left, &right);
    MPI_Datatype column;
    MPI_Type_vector(SIDE, 1, WIDTH, MPI_DOUBLE, &column);
    MPI_Type_commit(&column);

    double now[WIDTH * WIDTH] = {0}, next[WIDTH * WIDTH];
    if (up == MPI_PROC_NULL) {
        for (int at = 0; at < WIDTH; ++at) now[AT(0, at)] = 100.0;
    }
    memcpy(next, now, sizeof now);
    MPI_Barrier(grid);
    const double begun = MPI_Wtime();
    for (int step = 1; step <= 60; ++step) {
        MPI_Request requests[8];
        MPI_Irecv(&now[AT(0, 1)], SIDE, MPI_DOUBLE, up, 0, grid, &requests[0]);
        MPI_Irecv(&now[AT(SIDE + 1, 1)], SIDE, MPI_DOUBLE, down, 0, grid, &requests[1]);
        MPI_Irecv(&now[AT(1, 0)], 1, column, left, 0, grid, &requests[2]);
        MPI_Irecv(&now[AT(1, SIDE + 1)], 1, column, right, 0, grid, &requests[3]);
        MPI_Isend(&now[AT(1, 1)], SIDE, MPI_DOUBLE, up, 0, grid, &requests[4]);
        MPI_Isend(&now[AT(SIDE, 1)], SIDE, MPI_DOUBLE, down, 0, grid, &requests[5]);
        MPI_Isend(&now[AT(1, 1)], 1, column, left, 0, grid, &requests[6]);
        MPI_Isend(&now[AT(1, SIDE)], 1, column, right, 0, grid, &requests[7]);
        MPI_Waitall(8, requests, MPI_STATUSES_IGNORE);
        struct {
            double change;
            int where;
        } mine = {0.0, 0}, all;
        for (int row = 1; row <= SIDE; ++row) {
            for (int at = 1; at <= SIDE; ++at) {
                const double mean = 0.25 * ((now[AT(row - 1, at)] + now[AT(row + 1, at)]) + (now[AT(row, at - 1)] + now[AT(row, at + 1)]));
                const double change = fabs(mean - now[AT(row, at)]);
                if (change > mine.change) {
                    mine.change = change;
                    mine.where = ((place[0] * SIDE + row - 1) * dims[1] + place[1]) * SIDE + at - 1;
                }
                next[AT(row, at)] = mean;
            }
        }
        memcpy(now, next, sizeof now);
        if (step % 15 == 0) {
            MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE_INT, MPI_MAXLOC, grid);
            if (rank == 0) printf("step %d: point %d has changed by %.17g\n", step, all.where, all.change);
        }
    }
    if (MPI_Wtime() - begun > 60.0) MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Type_free(&column);
    MPI_Comm_free(&grid);
    MPI_Finalize();
    return 0;
}
