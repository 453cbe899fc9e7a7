/* SPDX-License-Identifier: Apache-2.0 */
/* A driver, an NVRTC, a file system, an environment and a log that obey a test. One world per process. */
#ifndef SMLA_FAKE_H
#define SMLA_FAKE_H

#include "context.h"

#include "params.h"
#include "tools_params.h"

enum { FAKE_LINES = 64 };

struct fake_world {
    /* driver */
    sparse_mla_status driver_status; /* what opening it gives, before the rest is looked at */
    int driver_version;
    const char *failing;      /* name of the driver function that fails: "cuModuleLoadData" */
    int failing_result;       /* with this */
    int refusals;             /* so many next loads are refused */
    int refusal_result;       /* with this */
    int capture;              /* CUstreamCaptureStatus */
    int capability;           /* 10 * major + minor */
    int green_sms;            /* multiprocessors of the context's own share; 0: no such function */
    struct CUctx_st *current; /* context of the calling thread */
    struct CUctx_st *of_stream;
    int pushes, pops, loads, unloads;
    int launches;
    char loaded[64]; /* the last image */
    char entry_point[128];
    int dynamic_shared;
    struct smla_cu_launch_config config;
    struct smla_cu_launch_attribute attribute; /* the first of config */
    char launched[128];                        /* name of the last kernel that ran, and its argument */
    struct smla_params params;
    struct smla_merge_params merge_params;
    struct smla_slots_params slots_params;
    struct smla_append_params append_params;
    unsigned long long zeroed_at;
    size_t zeroed_bytes;

    /* NVRTC; counters are atomic since threads compile at once */
    sparse_mla_status nvrtc_status;
    int nvrtc_version;
    int nvrtc_for_driver; /* driver version that the choice was limited by */
    int archs[4];
    int compile_result;
    int compile_ms;
    atomic_int nvrtc_opens, compiles;
    char options[4096]; /* of the last compile, one a line */

    /* file system: the real one, unless an operation is told to fail */
    const char *fs_failing; /* "write" */
    int fs_errno;
    void (*fs_hook)(const char *operation); /* called before each */
    atomic_int fs_calls;

    const char *environment[8][2];

    pthread_mutex_t mutex;
    int warnings;
    int lines;
    char text[FAKE_LINES][256];
};

extern struct fake_world fake;
extern const struct smla_edges fake_edges;
extern const struct smla_fs fake_fs;
extern const struct smla_log fake_log;

/* A world where everything works: driver 13.0, one device of compute capability 9.0, NVRTC 13.0. */
void fake_reset(void);

const char *fake_environment(const char *name);
void fake_log_line(void *user, sparse_mla_log_level level, const char *message);

/* Whether some log line contains the text. */
bool fake_logged(const char *text);

/* A new empty directory below the temporary one, and its end. */
void fake_make_dir(char path[64]);
void fake_remove_dir(const char *path);

/* Of device memory: far apart, and not to be touched. */
void *fake_address(uintptr_t number);

/* GLM-5 on one of eight GPUs, four tokens; tensors at the addresses 1 to 5. */
void fake_glm5(sparse_mla_decode_args *args, sparse_mla_cache *cache);

/* A filled-in table, as opening gives it. */
void fake_driver(struct smla_driver *driver);
void fake_nvrtc(struct smla_nvrtc *nvrtc);

#endif
