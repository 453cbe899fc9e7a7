/* SPDX-License-Identifier: Apache-2.0 */
/* Program -> loaded kernel: memory table, disk cache, compiler, in this order. Thread-safe. */
#ifndef SMLA_JIT_H
#define SMLA_JIT_H

#include "cache.h"
#include "compile.h"
#include "kernel.h"

#include <pthread.h>

typedef sparse_mla_status (*smla_nvrtc_open_fn)(struct smla_nvrtc *nvrtc, const char *path, int driver_version,
                                                const struct smla_log *log);

struct smla_jit {
    const struct smla_log *log;
    struct smla_cache *cache;
    smla_nvrtc_open_fn open_nvrtc;
    const char *nvrtc_path;      /* NULL: search */
    const char *nvrtc_path_from; /* what named it, for sentences */
    bool fail_on_miss;

    pthread_mutex_t mutex; /* guards what follows; never held while compiling, loading or touching files */
    pthread_cond_t idle;   /* some slot is no longer busy */
    struct smla_jit_slot *slots;
    pthread_mutex_t nvrtc_mutex; /* guards the opening of nvrtc */
    struct smla_nvrtc nvrtc;     /* version 0: not open */
};

sparse_mla_status smla_jit_init(struct smla_jit *jit, const struct smla_log *log, struct smla_cache *cache,
                                smla_nvrtc_open_fn open_nvrtc, const char *nvrtc_path, const char *nvrtc_path_from,
                                bool fail_on_miss);

/* Frees tables and cubins. Modules stay loaded. */
void smla_jit_finish(struct smla_jit *jit);

/* The kernel of `program` in the place's context, loaded or compiled if need be. One thread works on a program,
 * the others that want it wait and share its failure. Never compiles during a stream capture: NOT_READY. */
sparse_mla_status smla_jit_get(struct smla_jit *jit, const struct smla_driver *driver, const struct smla_place *place,
                               const struct smla_program *program, int compute_capability, struct smla_kernel *kernel);

/* Makes sure that the kernel for exactly sm_`target` is in memory and in the disk cache, else CACHE_ERROR; needs no
 * driver, whose version (0: none) only limits the choice of NVRTC. */
sparse_mla_status smla_jit_warm(struct smla_jit *jit, const struct smla_program *program, int target,
                                int driver_version);

/* Where the kernel is: 0 nowhere, 1 on disk, 2 in memory; `registers` 0 unless it is loaded in that context. */
int smla_jit_peek(struct smla_jit *jit, const struct smla_place *place, const struct smla_program *program,
                  int compute_capability, int *registers);

/* Version of NVRTC, opened if need be; 0: none. */
int smla_jit_nvrtc_version(struct smla_jit *jit, int driver_version);

#endif
