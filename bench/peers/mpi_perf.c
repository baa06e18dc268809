/* Times collectives of an MPI library the way `rsccl perf` times ours: float sum, out of place, the slowest rank of
 * each repetition, the median over repetitions. Prints one JSON object a line.
 *
 *   mpirun -n 2 mpi_perf COLLECTIVE BYTES[,BYTES...] [REPETITIONS [LOOP]]
 *
 * BYTES counts as nccl-tests counts: all_reduce, broadcast: the buffer; all_gather: the output; reduce_scatter,
 * all_to_all: the input. A repetition is a loop of LOOP calls, or where that is absent of as many as fill 10 ms; its time
 * is divided by the loop's length.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_REPETITIONS = 1001, WARM_UPS = 5, MAX_LOOP = 100000 };
static const double LOOP_SECONDS = 0.01; /* of a repetition: thousands of clock ticks, a few scheduler slices */

typedef struct {
    const char *collective;
    float *input, *output;
    int count; /* elements that the call is given */
    int ranks;
} Case;

static void run_once(const Case *c) {
    if (!strcmp(c->collective, "all_reduce"))
        MPI_Allreduce(c->input, c->output, c->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (!strcmp(c->collective, "broadcast"))
        MPI_Bcast(c->input, c->count, MPI_FLOAT, 0, MPI_COMM_WORLD);
    else if (!strcmp(c->collective, "all_gather"))
        MPI_Allgather(c->input, c->count, MPI_FLOAT, c->output, c->count, MPI_FLOAT, MPI_COMM_WORLD);
    else if (!strcmp(c->collective, "reduce_scatter"))
        MPI_Reduce_scatter_block(c->input, c->output, c->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else
        MPI_Alltoall(c->input, c->count, MPI_FLOAT, c->output, c->count, MPI_FLOAT, MPI_COMM_WORLD);
}

/* Seconds of a call on the slowest rank, averaged over a loop. */
static double time_loop(const Case *c, int loop) {
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (int i = 0; i < loop; i++) run_once(c);
    double mine = (MPI_Wtime() - start) / loop, slowest;
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

static int by_value(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

/* Every rank puts in rank + 1 everywhere, so that each result is a small whole number. */
static long count_wrong(const Case *c, int rank, size_t elements) {
    long wrong = 0;
    int is_sum = !strcmp(c->collective, "all_reduce") || !strcmp(c->collective, "reduce_scatter");
    int is_broadcast = !strcmp(c->collective, "broadcast");
    for (size_t i = 0; i < elements; i++) c->input[i] = (float)(rank + 1);
    run_once(c);
    size_t outputs = !strcmp(c->collective, "all_gather") ? (size_t)c->count * c->ranks
                   : !strcmp(c->collective, "all_to_all") ? elements : (size_t)c->count;
    for (size_t i = 0; i < outputs; i++) {
        float expected = is_sum ? c->ranks * (c->ranks + 1) / 2.0f : is_broadcast ? 1.0f : (float)(i / c->count + 1);
        wrong += (is_broadcast ? c->input : c->output)[i] != expected;
    }
    return wrong;
}

static void measure(const char *collective, size_t bytes, int repetitions, int wanted_loop) {
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    size_t elements = bytes / sizeof(float) < 1 ? 1 : bytes / sizeof(float);
    int is_shared = strcmp(collective, "all_reduce") && strcmp(collective, "broadcast");
    if (is_shared) elements = elements < (size_t)ranks ? (size_t)ranks : elements / ranks * ranks;
    Case c = {collective, NULL, NULL, (int)(is_shared ? elements / ranks : elements), ranks};
    c.input = aligned_alloc(4096, (elements * sizeof(float) + 4095) / 4096 * 4096);
    c.output = aligned_alloc(4096, (elements * sizeof(float) + 4095) / 4096 * 4096);
    if (!c.input || !c.output) MPI_Abort(MPI_COMM_WORLD, 2);
    memset(c.output, 0, elements * sizeof(float));
    long wrong = count_wrong(&c, rank, elements), all_wrong;
    MPI_Allreduce(&wrong, &all_wrong, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);

    /* Zeroes from here on: their sum stays what it is, however long the loop. */
    memset(c.input, 0, elements * sizeof(float));
    double once = time_loop(&c, 1);
    for (int i = 0; i < WARM_UPS; i++) { /* the least, so that one slice lost to another process shortens no loop */
        double again = time_loop(&c, 4);
        if (again < once) once = again;
    }
    int loop = once * MAX_LOOP < LOOP_SECONDS ? MAX_LOOP : (int)(LOOP_SECONDS / once);
    if (wanted_loop > 0) loop = wanted_loop;
    if (loop < 1) loop = 1;
    double times[MAX_REPETITIONS];
    for (int i = 0; i < repetitions; i++) times[i] = time_loop(&c, loop);
    qsort(times, repetitions, sizeof *times, by_value);
    if (rank == 0)
        printf("{\"collective\":\"%s\",\"ranks\":%d,\"bytes\":%zu,\"count\":%d,\"time_us\":%.3f,\"least_us\":%.3f,"
               "\"repetitions\":%d,\"loop\":%d,\"wrong\":%ld}\n",
               collective, ranks, elements * sizeof(float), c.count, times[repetitions / 2] * 1e6, times[0] * 1e6,
               repetitions, loop, all_wrong);
    fflush(stdout);
    free(c.input);
    free(c.output);
}

int main(int argc, char **argv) {
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    static const char *known[] = {"all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all"};
    int is_known = 0;
    for (size_t i = 0; argc > 1 && i < sizeof known / sizeof *known; i++) is_known |= !strcmp(argv[1], known[i]);
    int repetitions = argc > 3 ? atoi(argv[3]) : 21;
    int loop = argc > 4 ? atoi(argv[4]) : 0;
    if (argc < 3 || !is_known || repetitions < 1 || repetitions > MAX_REPETITIONS || loop < 0 || loop > MAX_LOOP) {
        if (rank == 0) fprintf(stderr, "usage: mpi_perf COLLECTIVE BYTES[,BYTES...] [REPETITIONS [LOOP]]\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    for (char *size = strtok(argv[2], ","); size; size = strtok(NULL, ","))
        measure(argv[1], strtoull(size, NULL, 10), repetitions, loop);
    MPI_Finalize();
    return 0;
}
