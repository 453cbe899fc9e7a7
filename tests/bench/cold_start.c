/* SPDX-License-Identifier: Apache-2.0 */
/* First calls with the real NVRTC and disk and a driver that does nothing. Milliseconds on standard output:
 *
 *   cold      processes that start at once on an empty cache directory, until the last has launched; and one alone
 *   warm      a first call that finds its kernel on disk, from the call to its return; the driver is initialised
 *
 *   cold_start [PROCESSES [ROUNDS]]      8 and 5; medians over the rounds
 *
 * Exit status 77: there is no NVRTC. */
#define _GNU_SOURCE
#include "process.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { MOST_ROUNDS = 99 };

static struct smla_edges edges;
static double *warm_ms; /* shared with the process that measures it */

static double now_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e3 * (double)time.tv_sec + 1e-6 * (double)time.tv_nsec;
}

static bool call_first(int number)
{
    sparse_mla_context *context;
    sparse_mla_device device;
    (void)number;
    sparse_mla_device_init(&device);
    if (smla_context_create(&process_options, &edges, &context) != SPARSE_MLA_OK ||
        sparse_mla_device_info(context, NULL, &device) != SPARSE_MLA_OK)
        return false;
    const double start = now_ms();
    const sparse_mla_status status = process_decode(context);
    *warm_ms = now_ms() - start;
    if (status != SPARSE_MLA_OK)
        fprintf(stderr, "%s\n", sparse_mla_last_error());
    sparse_mla_destroy(context);
    return status == SPARSE_MLA_OK && fake.launches == 1;
}

/* From the first fork to the last exit. */
static double time_cold(int processes)
{
    fake_remove_dir(process_dir);
    const double start = now_ms();
    if (process_crowd(processes, call_first) != 0)
        exit(77);
    return now_ms() - start;
}

static double time_warm(void)
{
    if (process_crowd(1, call_first) != 0)
        exit(1);
    return *warm_ms;
}

static int compare(const void *a, const void *b)
{
    const double first = *(const double *)a, second = *(const double *)b;
    return (first > second) - (first < second);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare);
    return values[count / 2];
}

int main(int argc, char **argv)
{
    const int processes = argc > 1 ? atoi(argv[1]) : 8, rounds = argc > 2 ? atoi(argv[2]) : 5;
    double one[MOST_ROUNDS], many[MOST_ROUNDS], warm[MOST_ROUNDS];
    if (processes < 1 || rounds < 1 || rounds > MOST_ROUNDS || process_set_up(NULL) != 0)
        return 2;
    warm_ms = mmap(NULL, sizeof *warm_ms, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    process_options.nvrtc_path = getenv("SPARSEMLA_NVRTC");
    edges = fake_edges;
    edges.fs = &smla_fs_system;
    edges.open_nvrtc = smla_nvrtc_open;
    for (int i = 0; i < rounds; i++) {
        one[i] = time_cold(1);
        many[i] = time_cold(processes);
        warm[i] = time_warm();
    }
    const double alone = median(one, rounds), together = median(many, rounds);
    printf("cold, 1 process: %.0f\ncold, %d processes: %.0f (%.2f x)\nwarm: %.2f\n", alone, processes, together,
           together / alone, median(warm, rounds));
    return process_tear_down(NULL);
}
