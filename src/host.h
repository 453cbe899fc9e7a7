/* SPDX-License-Identifier: Apache-2.0 */
/* The host backend: the whole contract in plain C on host pointers. */
#ifndef SMLA_HOST_H
#define SMLA_HOST_H

#include "call.h"

/* Every checked call is supported. OUT_OF_MEMORY for its scratch rows. */
sparse_mla_status smla_host_decode(const struct smla_call *call);

/* The lse that a caller gets, from the natural one without the sink. `has_sink`: the call brings one. */
double smla_host_lse(uint32_t flags, bool has_sink, double lse, double sink, bool empty);

/* The slots of a token's valid keys in one of the call's caches, at most its topk: how many. Adds to `faults`. */
int32_t smla_host_slots(const struct smla_call *call, const sparse_mla_cache *cache, int32_t token, int32_t *slots,
                        uint32_t *faults);

#endif
