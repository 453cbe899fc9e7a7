/* SPDX-License-Identifier: Apache-2.0 */
/* A context: options, log, driver, cache and kernels. */
#ifndef SMLA_CONTEXT_H
#define SMLA_CONTEXT_H

#include "dump.h"
#include "jit.h"

/* Everything through which a context reaches the world. */
struct smla_edges {
    const struct smla_fs *fs;
    smla_environment_fn environment;
    sparse_mla_status (*open_driver)(struct smla_driver *driver);
    smla_nvrtc_open_fn open_nvrtc;
};

struct sparse_mla_context {
    int backend;
    int profile;
    char *nvrtc_path;            /* NULL: search */
    const char *nvrtc_path_from; /* what named it */
    struct smla_log log;
    struct smla_cache cache;
    struct smla_jit jit;
    struct smla_dump dump;
    sparse_mla_status (*open_driver)(struct smla_driver *driver);

    pthread_mutex_t mutex;     /* guards what follows */
    struct smla_driver driver; /* version 0: not open; constant once open */
    struct smla_seen *seen;    /* facts of every CUDA context met so far */
};

/* sparse_mla_create() with the given edges. */
sparse_mla_status smla_context_create(const sparse_mla_options *options, const struct smla_edges *edges,
                                      sparse_mla_context **context);

/* Opens the driver if it is not open. */
sparse_mla_status smla_context_driver(sparse_mla_context *context);

/* Stream, CUDA context and device facts of a call; opens the driver if need be. Cheap once warm. */
sparse_mla_status smla_context_place(sparse_mla_context *context, struct CUstream_st *stream, struct smla_place *place,
                                     struct smla_device_facts *facts);

#endif
