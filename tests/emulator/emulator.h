/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU that is a library: what tests ask of it. One per process, for one thread of the host at a time. */
#ifndef EMULATOR_H
#define EMULATOR_H

#include <sparsemla/sparsemla.h>

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The device that contexts see from then on: compute capability 80, 89, 90 or 120, as many multiprocessors as a real
 * one has (0) or another number. A context asks once, at its first call. */
void emulator_set_device(int compute_capability, int multiprocessors);

/* What decides the order of threads and the landing of copies in the launches to come. */
void emulator_set_seed(uint64_t seed);

/* sparse_mla_create() with this device and its compiler. Compiled kernels are kept in $EMULATOR_CACHE_DIR, if given.
 * With $EMULATOR_KERNELS the sources of that directory are compiled instead of the library's. */
sparse_mla_status emulator_create(const sparse_mla_options *options, sparse_mla_context **context);

/* The report of the last launch, which failed if there is one; empty otherwise. */
const char *emulator_report(void);

/* Device memory of exactly so many bytes, which count as not written; `offset` from a multiple of 4096. */
void *emulator_alloc(size_t bytes, size_t offset);
/* The same for what threads write single bytes of: elsewhere two threads' bytes of one word are a race. */
void *emulator_alloc_bytes(size_t bytes, size_t offset);
void emulator_free(void *pointer);

/* Says that the host has written these bytes, or that whoever reads them is wrong; false outside an allocation. */
bool emulator_mark(void *pointer, size_t bytes, bool written);
bool emulator_written(const void *pointer, size_t bytes);

/* Compiles a file for a profile and runs a kernel of it, without the library; false after a report. */
struct emulator_grid {
    unsigned x, y, cluster_y, threads, shared_bytes;
    bool overlapped; /* as with programmatic launch */
};
void *emulator_compile(const char *path, int profile);
bool emulator_run(void *module, const char *kernel, const struct emulator_grid *grid, const void *params);

#ifdef __cplusplus
}
#endif
#endif
