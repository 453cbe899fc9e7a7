/* SPDX-License-Identifier: Apache-2.0 */
/* How long a launch takes, by a model whose constants are an H200's: what the planner compares splits by, and what
 * sparse_mla_decode_explain() tells. Pure. */
#ifndef SMLA_COST_H
#define SMLA_COST_H

#include "plan.h"

struct smla_cost { /* nanoseconds; their sum counts */
    int64_t turns; /* over tiles of keys */
    int64_t rest;  /* to start, end and merge blocks */
};

/* `rows` tokens, each once per block that shares its heads, in `splits` parts of `units` turns together. Of the plan
 * only the variant and max_cluster are looked at. */
struct smla_cost smla_cost_of_splits(const struct smla_plan *plan, const struct smla_device_facts *device, int64_t rows,
                                     int units, int splits);

/* Turns over keys that a block has for a row of so many columns, unless the row is split. */
int smla_cost_units(const struct smla_variant *variant, int64_t columns);

/* Blocks that run at the same time. */
int smla_cost_resident(const struct smla_variant *variant, const struct smla_device_facts *device, int cluster);

/* Of the plan of a call: predicted_us and limit of sparse_mla_plan_info. */
float smla_cost_predict(const struct smla_plan *plan, const struct smla_call *call,
                        const struct smla_device_facts *device, int32_t *limit);

#endif
