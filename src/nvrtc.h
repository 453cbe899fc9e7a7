/* SPDX-License-Identifier: Apache-2.0 */
/* NVRTC as a table of functions, filled from libnvrtc at run time or by a test. Values as in nvrtc.h. */
#ifndef SMLA_NVRTC_H
#define SMLA_NVRTC_H

#include "base.h"

#include <stdbool.h>

#define SMLA_NVRTC_FLOOR 12080

enum { /* nvrtcResult */
       SMLA_NVRTC_SUCCESS = 0,
       SMLA_NVRTC_OUT_OF_MEMORY = 1,
       SMLA_NVRTC_COMPILATION = 6
};

struct _nvrtcProgram;

struct smla_nvrtc {
    int version; /* 1000 * major + 10 * minor */

    int (*get_version)(int *major, int *minor);
    const char *(*get_error_string)(int result);
    int (*get_num_supported_archs)(int *count);
    int (*get_supported_archs)(int *archs);
    int (*create_program)(struct _nvrtcProgram **program, const char *source, const char *name, int num_headers,
                          const char *const *headers, const char *const *header_names);
    int (*destroy_program)(struct _nvrtcProgram **program);
    int (*compile_program)(struct _nvrtcProgram *program, int num_options, const char *const *options);
    int (*get_cubin_size)(struct _nvrtcProgram *program, size_t *size);
    int (*get_cubin)(struct _nvrtcProgram *program, char *cubin);
    int (*get_program_log_size)(struct _nvrtcProgram *program, size_t *size);
    int (*get_program_log)(struct _nvrtcProgram *program, char *log);
};

/* Loads NVRTC from `path`, or (NULL) the newest that is found and whose major is not above that of
 * `driver_version` (0: any). NO_COMPILER, COMPILER_TOO_OLD. It stays loaded until the process ends. */
sparse_mla_status smla_nvrtc_open(struct smla_nvrtc *nvrtc, const char *path, int driver_version,
                                  const struct smla_log *log);

/* Reads the version of a table whose functions are filled in; COMPILER_TOO_OLD below the floor. */
sparse_mla_status smla_nvrtc_start(struct smla_nvrtc *nvrtc, const char *path);

/* The target to compile for on a device of compute capability `wanted`: itself, else (unless `exact`) the
 * highest lower one of the same major. COMPILER_TOO_OLD or UNSUPPORTED with a sentence. */
sparse_mla_status smla_nvrtc_target(const struct smla_nvrtc *nvrtc, int wanted, bool exact, int *target);

#endif
