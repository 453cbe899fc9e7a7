/* SPDX-License-Identifier: Apache-2.0 */
/* Failure sentences and the log. Depends on nothing of this library. */
#ifndef SMLA_BASE_H
#define SMLA_BASE_H

#include <sparsemla/sparsemla.h>

#define SMLA_PRINTF(string, first) __attribute__((format(printf, string, first)))

struct smla_log {
    sparse_mla_log_fn fn; /* NULL: silent */
    void *user;
};

/* Stores the sentence for sparse_mla_last_error() of this thread and returns `status`. */
sparse_mla_status smla_fail(sparse_mla_status status, const char *format, ...) SMLA_PRINTF(2, 3);

void smla_log(const struct smla_log *log, sparse_mla_log_level level, const char *format, ...) SMLA_PRINTF(3, 4);

#endif
