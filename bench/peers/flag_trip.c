/* Prints the time of a flag's round trip between two threads on two processors, in nanoseconds: the least of several
 * runs. Virtual processors move while a machine runs, and small messages cost what this costs: compare.py measures it
 * beside each sample and keeps near and far samples apart. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

enum { TRIPS = 20000, RUNS = 5, GIVE_UP_SPINS = 100000000 };
static _Alignas(128) atomic_int ping;
static _Alignas(128) atomic_int pong;
static int processors[2];

static void pin(int processor) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

/* Relaxed would do for the flag alone; acquire and release are what a message needs, and cost the same on x86. */
static int await(atomic_int *flag, int value) {
    for (long spins = 0; atomic_load_explicit(flag, memory_order_acquire) != value; spins++)
        if (spins > GIVE_UP_SPINS) return 0;
    return 1;
}

static void *answer(void *unused) {
    pin(processors[1]);
    for (int i = 1; i <= TRIPS * RUNS && await(&ping, i); i++) atomic_store_explicit(&pong, i, memory_order_release);
    return unused;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

int main(void) {
    cpu_set_t allowed;
    int found = 0;
    sched_getaffinity(0, sizeof allowed, &allowed);
    for (int i = 0; i < CPU_SETSIZE && found < 2; i++)
        if (CPU_ISSET(i, &allowed)) processors[found++] = i;
    if (found < 2) return 3; /* one processor: no trip to measure */
    pthread_t thread;
    if (pthread_create(&thread, NULL, answer, NULL)) return 1;
    pin(processors[0]);
    double least = 1e18;
    int at = 0;
    for (int run = 0; run < RUNS; run++) {
        double start = now();
        for (int i = 0; i < TRIPS; i++) {
            atomic_store_explicit(&ping, ++at, memory_order_release);
            if (!await(&pong, at)) return 1;
        }
        double trip = (now() - start) / TRIPS;
        if (trip < least) least = trip;
    }
    pthread_join(thread, NULL);
    printf("%.1f\n", least);
    return 0;
}
