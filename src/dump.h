/* SPDX-License-Identifier: Apache-2.0 */
/* Calls written to safetensors files, which `sparsemla replay` runs again: for debugging, and slow. */
#ifndef SMLA_DUMP_H
#define SMLA_DUMP_H

#include "call.h"
#include "fs.h"
#include "kernel.h"

#include <stdatomic.h>

enum { SMLA_DUMP_MAX_FILES = 16 }; /* of a context */

struct smla_dump {
    const struct smla_fs *fs;
    const struct smla_log *log;
    char *dir; /* NULL: no call is dumped */
    bool faults_only;
    atomic_uint files;
};

struct smla_recording;

/* Copies the inputs of a checked call before it runs. `driver` NULL: they are on the host. NULL: not wanted now, or not
 * possible and logged. */
struct smla_recording *smla_dump_begin(struct smla_dump *dump, const struct smla_call *call,
                                       const struct smla_driver *driver, const struct smla_place *place);

/* Writes the file, if one is wanted after the call gave `status`, with the outputs if there are any. Keeps the sentence
 * of a failed call. */
void smla_dump_end(struct smla_dump *dump, struct smla_recording *recording, sparse_mla_status status);

#endif
