// Parts of different length, dealt out and gathered again, in MPI; parts.cpp is the same in the classes.
#include <mpi.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

struct Particle {
    double place[3];
    short kind;
};

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int size, rank;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Datatype particle;
    MPI_Type_contiguous(sizeof(struct Particle), MPI_BYTE, &particle);
    MPI_Type_commit(&particle);

    // The root has all particles, and deals rank r r + 1 of them; between the parts it leaves one out.
    int* counts = malloc(sizeof(int) * size);
    int* begins = malloc(sizeof(int) * size);
    int total = 0;
    for (int peer = 0; peer < size; ++peer) {
        counts[peer] = peer + 1;
        begins[peer] = total;
        total += counts[peer] + 1;
    }
    struct Particle* all = calloc(total, sizeof *all);
    if (rank == 0) {
        for (int at = 0; at < total; ++at) all[at] = (struct Particle){{at, 2 * at, 3 * at}, (short)(at % 3)};
    }
    struct Particle* mine = malloc(sizeof *mine * (rank + 1));
    MPI_Scatterv(all, counts, begins, particle, mine, rank + 1, particle, 0, MPI_COMM_WORLD);

    // Each keeps those of its first one's kind, and the root learns how many.
    int kept = 0;
    double* places = malloc(sizeof(double) * 3 * (rank + 1));
    for (int at = 0; at <= rank; ++at) {
        if (mine[at].kind != mine[0].kind) continue;
        for (int axis = 0; axis < 3; ++axis) places[3 * kept + axis] = mine[at].place[axis] * 0.5;
        ++kept;
    }
    const int doubles = 3 * kept;
    int limit = 0, limits[64] = {0};
    for (int peer = 0; peer < size; ++peer) limits[peer] = 100 + peer;
    MPI_Scatter(limits, 1, MPI_INT, &limit, 1, MPI_INT, 0, MPI_COMM_WORLD);
    int* sizes = malloc(sizeof(int) * size);
    MPI_Gather(&doubles, 1, MPI_INT, sizes, 1, MPI_INT, 0, MPI_COMM_WORLD);
    int sum = 0;
    for (int peer = 0; rank == 0 && peer < size; ++peer) {
        begins[peer] = sum;
        sum += sizes[peer];
    }
    double* result = malloc(sizeof(double) * (sum + 1));
    MPI_Gatherv(places, doubles, MPI_DOUBLE, result, sizes, begins, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        for (int at = 0; at < sum; ++at) printf("%g ", result[at]);
        printf("\n");
    }
    if (MPI_Send(NULL, 0, MPI_INT, size, 0, MPI_COMM_WORLD) == MPI_SUCCESS || limit != 100 + rank) MPI_Abort(MPI_COMM_WORLD, 1);
    if (rank == 0) printf("there is no rank %d\n", size);
    MPI_Type_free(&particle);
    MPI_Finalize();
    return 0;
}
