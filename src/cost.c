/* SPDX-License-Identifier: Apache-2.0 */
#include "cost.h"

#include "format.h"

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

int smla_cost_units(const struct smla_variant *v, int64_t columns)
{
    return (int)divide_up(columns, (int64_t)SMLA_TILE * v->key_groups);
}

/* A cluster lies within a group of 12 to 18 multiprocessors (seen on the H200); pairs always find room. */
int smla_cost_resident(const struct smla_variant *v, const struct smla_device_facts *device, int cluster)
{
    enum { GROUP = 16, LEAST_OF_GROUP = 12 };
    if (cluster <= 2 || device->sm_count < GROUP)
        return device->sm_count * v->blocks_per_sm;
    const int in_group = LEAST_OF_GROUP * v->blocks_per_sm / cluster;
    return cluster * (in_group ? in_group * (device->sm_count / GROUP) : 1); /* some groups are larger */
}

/* What matters to the planner is the order of the candidates, and that it is the same everywhere. */
struct smla_cost smla_cost_of_splits(const struct smla_plan *plan, const struct smla_device_facts *device, int64_t rows,
                                     int units, int splits)
{
    enum { BLOCK = 7000, BLOCK_OCTET = 700, TURN = 1400, CLUSTER = 1000, WORKSPACE = 3000, WORKSPACE_PART = 250 };
    const struct smla_variant *v = &plan->variant;
    const int octets = smla_variant_heads(v) / 8;
    const bool cluster = splits > 1 && splits <= plan->max_cluster;
    const int64_t blocks = rows * splits, resident = smla_cost_resident(v, device, cluster ? splits : 1);
    const int64_t waves = divide_up(blocks, resident);
    const bool crowded = (blocks < resident ? blocks : resident) * 5 > (int64_t)device->sm_count * 7;
    const int64_t turns = divide_up(units, splits) * (crowded ? 2 : 1);
    const int64_t merge = splits == 1 ? 0 : cluster ? CLUSTER : WORKSPACE + (int64_t)WORKSPACE_PART * octets * splits;
    return (struct smla_cost){.turns = waves * TURN * turns, .rest = waves * (BLOCK + BLOCK_OCTET * octets) + merge};
}

/* Of a full row in a cache. */
static int64_t row_bytes(const sparse_mla_cache *cache, const sparse_mla_decode_args *args)
{
    const int64_t scales = smla_format_get(cache->format)->page_scale_bytes;
    return cache->topk * (smla_format_read_bytes(cache, args->latent_dim, args->rope_dim) + scales);
}

/* To read every row once. */
static int64_t memory_time(const struct smla_call *call, const struct smla_device_facts *device)
{
    enum { PERCENT = 83 }; /* of the peak, as an H200 reads such rows */
    const int64_t bytes =
        row_bytes(&call->main_cache, &call->args) + (call->has_extra ? row_bytes(&call->extra_cache, &call->args) : 0);
    return device->memory_gbps ? bytes * call->args.num_tokens * 100 / ((int64_t)PERCENT * device->memory_gbps) : 0;
}

float smla_cost_predict(const struct smla_plan *plan, const struct smla_call *call,
                        const struct smla_device_facts *device, int32_t *limit)
{
    const int64_t rows = (int64_t)call->args.num_tokens * plan->head_blocks, blocks = rows * plan->num_splits;
    const int units = smla_cost_units(&plan->variant, smla_plan_columns(call));
    const struct smla_cost cost = smla_cost_of_splits(plan, device, rows, units, plan->num_splits);
    const int64_t own = cost.turns + cost.rest, memory = memory_time(call, device);
    if (blocks == 0) {
        *limit = SPARSE_MLA_LIMIT_NONE;
        return 0;
    }
    if (2 * memory >= own)
        *limit = SPARSE_MLA_LIMIT_MEMORY;
    else if (cost.rest > cost.turns || 2 * blocks < device->sm_count)
        *limit = SPARSE_MLA_LIMIT_LATENCY;
    else
        *limit = SPARSE_MLA_LIMIT_TENSOR;
    return (float)(own > memory ? own : memory) / 1000;
}
