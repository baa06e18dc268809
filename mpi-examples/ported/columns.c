// A matrix in blocks on a grid of ranks: sums of its rows and columns, its norm and running totals, in MPI; columns.cpp is the same in the
// classes.
#include <math.h>
#include <mpi.h>
#include <stdio.h>

#define ROWS 6
#define COLUMNS 8
#define GRID 2 // ranks in a row of the grid

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm world, row, column, host;
    MPI_Comm_dup(MPI_COMM_WORLD, &world);
    int size, rank, local;
    MPI_Comm_size(world, &size);
    MPI_Comm_rank(world, &rank);
    MPI_Comm_split(world, rank / GRID, rank, &row);
    MPI_Comm_split(world, rank % GRID, rank, &column);
    MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host);
    MPI_Comm_size(host, &local);
    int row_size, column_rank, row_rank;
    MPI_Comm_size(row, &row_size);
    MPI_Comm_rank(row, &row_rank);
    MPI_Comm_rank(column, &column_rank);

    double block[ROWS][COLUMNS], by_column[COLUMNS] = {0}, by_row[ROWS] = {0}, squares = 0.0;
    for (int y = 0; y < ROWS; ++y) {
        for (int x = 0; x < COLUMNS; ++x) {
            block[y][x] = (rank + 1) * 10 + y * 3 + x;
            by_column[x] += block[y][x];
            by_row[y] += block[y][x];
            squares += block[y][x] * block[y][x];
        }
    }
    double column_sums[COLUMNS];
    MPI_Reduce(by_column, column_sums, COLUMNS, MPI_DOUBLE, MPI_SUM, 0, column);
    MPI_Allreduce(MPI_IN_PLACE, by_row, ROWS, MPI_DOUBLE, MPI_SUM, row);
    MPI_Allreduce(MPI_IN_PLACE, &squares, 1, MPI_DOUBLE, MPI_SUM, world);
    // Each rank of a row of the grid keeps the sum of its part of the columns, over that row.
    double part[COLUMNS / GRID];
    int counts[GRID];
    for (int peer = 0; peer < row_size; ++peer) counts[peer] = COLUMNS / row_size;
    MPI_Reduce_scatter_block(by_column, part, COLUMNS / row_size, MPI_DOUBLE, MPI_MAX, row);
    MPI_Reduce_scatter(by_column, part, counts, MPI_DOUBLE, MPI_SUM, row);
    int before = 0, until = 0, mine = rank + 1, bits = 1 << rank, all_bits;
    MPI_Exscan(&mine, &before, 1, MPI_INT, MPI_SUM, world);
    MPI_Scan(&mine, &until, 1, MPI_INT, MPI_SUM, world);
    MPI_Allreduce(&bits, &all_bits, 1, MPI_INT, MPI_BOR, world);

    for (int turn = 0; turn < size; ++turn) { // in rank order: each rank's line goes to rank 0
        double line[6] = {by_row[1], part[0], before, until, column_rank == 0 ? column_sums[2] : 0.0, local};
        if (turn > 0 && rank == turn) MPI_Send(line, 6, MPI_DOUBLE, 0, 0, world);
        if (rank == 0) {
            if (turn > 0) MPI_Recv(line, 6, MPI_DOUBLE, turn, 0, world, MPI_STATUS_IGNORE);
            printf("%d: %g %g %g %g %g %g\n", turn, line[0], line[1], line[2], line[3], line[4], line[5]);
        }
    }
    if (rank == 0) printf("norm %.17g, bits %d\n", sqrt(squares), all_bits);
    MPI_Finalize();
    return 0;
}
