/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of one call, in memory where a session's backend works. */
#ifndef CLI_PROBLEM_H
#define CLI_PROBLEM_H

#include "cli.h"

enum { MAX_OWNED = 16 };

struct problem {
    const struct session *session;
    struct shape shape;
    struct call call;
    size_t pool_bytes; /* of each cache */
    void *owned[MAX_OWNED];
    int num_owned;
};

/* Zeroed caches of `num_slots` slots, outputs full of NaN, and a workspace; indices, lengths and q are the caller's to
 * set. */
sparse_mla_status problem_init(struct problem *problem, const struct session *session, const struct shape *shape,
                               int64_t num_slots);
void problem_free(struct problem *problem);

/* Copies that live as long as the problem. */
void *problem_upload(struct problem *problem, const void *data, size_t bytes);

/* Writes bf16 rows of latent and rope into slots, as sparse_mla_cache_append() does; all pointers as uploaded. */
sparse_mla_status problem_append(struct problem *problem, int cache, const uint16_t *rows, const int64_t *slots,
                                 int count);

uint32_t random_word(uint64_t *state); /* the state is any number but 0 */
/* bf16 numbers, uniform in -2 .. 2. */
void random_bf16(uint16_t *values, size_t count, uint64_t *state);

#endif
