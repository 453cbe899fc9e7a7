/* SPDX-License-Identifier: Apache-2.0 */
#include "plan.h"

#include "cost.h"
#include "format.h"
#include "params.h"

#include <string.h>

enum {
    RESERVED_SHARED = 1024, /* per block, by the driver */
    WAVES_OF_PARTS = 4,     /* parts of split tokens, in units of resident blocks */
    INVARIANT_PART = 512,   /* columns */
    MAX_PARTS = 32,         /* per token, where the width is bounded: a lane each; as in kernels_src/merge.cuh */
};

static const size_t MAX_WORKSPACE = (size_t)64 << 20;

/* ---- variant */

int smla_profile_of(int compute_capability)
{
    if (compute_capability >= 120)
        return SPARSE_MLA_PROFILE_SM120;
    if (compute_capability >= 90)
        return SPARSE_MLA_PROFILE_SM90;
    if (compute_capability >= 89)
        return SPARSE_MLA_PROFILE_SM89;
    return compute_capability >= 80 ? SPARSE_MLA_PROFILE_SM80 : SPARSE_MLA_PROFILE_AUTO;
}

static int topk_class(int topk)
{
    return topk <= 128 ? 128 : topk <= 512 ? 512 : topk <= 2048 ? 2048 : 0;
}

static int divide_up(int64_t a, int64_t b)
{
    return (int)((a + b - 1) / b);
}

/* As many stages as fit; false when that is too few to overlap copies with work. */
static bool fill_stages(struct smla_variant *v)
{
    const int limit = smla_profile_shared_limit(v->profile);
    const int per_block = v->blocks_per_sm == 1 ? limit : (limit + RESERVED_SHARED) / 2 - RESERVED_SHARED;
    const int least = v->head_groups * v->dim_split == 1 ? 2 : 3;
    for (v->stages = SMLA_MAX_STAGES; v->stages >= least; v->stages--)
        if (smla_variant_shared_bytes(v) <= per_block && smla_variant_valid(v))
            return true;
    return false;
}

/* `in_block` octets of heads in a block, a warp each; false when shared memory does not hold it. Even numbers of octets
 * go in pairs of warps that share every conversion; key groups fill the block up to eight warps as far as shared memory
 * allows. */
static bool try_layout(struct smla_variant *v, int in_block)
{
    v->dim_split = in_block % 2 == 0 ? 2 : 1;
    v->head_groups = in_block / v->dim_split;
    v->blocks_per_sm = in_block == 1 && v->profile == SPARSE_MLA_PROFILE_SM90 ? 2 : 1;
    for (v->key_groups = 4; v->key_groups >= 1; v->key_groups /= 2)
        if (v->key_groups * in_block <= SMLA_MAX_WARPS && fill_stages(v))
            return true;
    return false;
}

/* Eight heads, an octet, are one warp's columns. */
static void choose_layout(struct smla_variant *v, int num_heads)
{
    const int octets = divide_up(num_heads, 8);
    for (int blocks = divide_up(octets, SMLA_MAX_WARPS);; blocks++) {
        int in_block = divide_up(octets, blocks);
        /* Beside copies of 16 bytes at a time, these layouts want more registers than there are. */
        const bool short_pair = in_block == 2 && v->format == SPARSE_MLA_FP8_DS_MLA && v->rope_dim == 0;
        if (v->profile < SPARSE_MLA_PROFILE_SM90 && (in_block % 2 == 1 || short_pair))
            in_block = 1;
        if (try_layout(v, in_block) || in_block == 1)
            return;
    }
}

/* What decides the variant of a call beside the device. */
struct shape {
    int format, latent_dim, rope_dim, query, caches, num_heads, columns;
};

/* FP8_DS_MLA_NOPE is the other one without rope. */
static int kernel_format(int format)
{
    return format == SPARSE_MLA_FP8_DS_MLA_NOPE ? SPARSE_MLA_FP8_DS_MLA : format;
}

static struct smla_variant choose_variant(const struct shape *shape, int profile)
{
    struct smla_variant v = {.format = kernel_format(shape->format),
                             .latent_dim = shape->latent_dim,
                             .rope_dim = shape->rope_dim,
                             .query = shape->query,
                             .caches = shape->caches,
                             .topk_max = topk_class(shape->columns),
                             .profile = profile};
    choose_layout(&v, shape->num_heads);
    return v;
}

int64_t smla_plan_columns(const struct smla_call *call)
{
    const int64_t main = call->main_cache.topk;
    return call->has_extra ? divide_up(main, SMLA_TILE) * (int64_t)SMLA_TILE + call->extra_cache.topk : main;
}

static struct shape shape_of(const struct smla_call *call)
{
    const sparse_mla_decode_args *args = &call->args;
    return (struct shape){.format = call->main_cache.format,
                          .latent_dim = args->latent_dim,
                          .rope_dim = args->rope_dim,
                          .query = args->q_dtype,
                          .caches = call->has_extra ? 2 : 1,
                          .num_heads = args->num_heads,
                          .columns = (int)smla_plan_columns(call)};
}

bool smla_plan_shipped(int profile, int n, struct smla_variant *variant)
{
    static const struct {
        int format, rope_dim;
    } caches[] = {{SPARSE_MLA_FP8_DS_MLA, 64},
                  {SPARSE_MLA_FP8_DS_MLA, 0},
                  {SPARSE_MLA_FLAT_BF16, 64},
                  {SPARSE_MLA_FLAT_BF16, 0},
                  {SPARSE_MLA_FLAT_F16, 64}};
    /* 8 and 64: GLM-5 on eight GPUs and one; 16 and 128 (two blocks of 64): DeepSeek-V3.2. 0: any width, for the
     * rope-free GLM-5.3-Flash with its tail. */
    static const struct {
        int num_heads, topk;
    } shapes[] = {{8, 2048}, {16, 2048}, {32, 2048}, {64, 2048}, {8, 4096}, {64, 4096}, {24, 512}, {8, 128}};
    /* DeepSeek-V4 with its two caches, tensors of e4m3, ggml's queries. */
    static const struct shape others[] = {
        {SPARSE_MLA_FP8_V4, 448, 64, SPARSE_MLA_BF16, 2, 8, 640},
        {SPARSE_MLA_FP8_V4, 448, 64, SPARSE_MLA_BF16, 2, 16, 1152},
        {SPARSE_MLA_FP8_V4, 448, 64, SPARSE_MLA_BF16, 2, 64, 640},
        {SPARSE_MLA_FLAT_E4M3, 512, 64, SPARSE_MLA_BF16, 1, 8, 2048},
        {SPARSE_MLA_FLAT_E4M3, 512, 64, SPARSE_MLA_BF16, 1, 64, 2048},
        {SPARSE_MLA_Q8_0, 512, 64, SPARSE_MLA_F32, 1, 8, 2048},
        {SPARSE_MLA_Q8_0, 512, 64, SPARSE_MLA_F32, 1, 64, 2048},
        {SPARSE_MLA_FLAT_F16, 512, 64, SPARSE_MLA_F32, 1, 64, 2048},
        {SPARSE_MLA_FLAT_BF16, 512, 64, SPARSE_MLA_F16, 1, 8, 2048},
        {SPARSE_MLA_FP8_DS_MLA, 512, 64, SPARSE_MLA_F32, 1, 64, 2048},
    };
    enum { CACHES = sizeof caches / sizeof *caches, SHAPES = sizeof shapes / sizeof *shapes };
    enum { OTHERS = sizeof others / sizeof *others };
    if (profile == SPARSE_MLA_PROFILE_AUTO || n < 0 || n >= CACHES * SHAPES + OTHERS)
        return false;
    if (n >= CACHES * SHAPES) {
        *variant = choose_variant(&others[n - CACHES * SHAPES], profile);
        return true;
    }
    *variant =
        choose_variant(&(struct shape){caches[n / SHAPES].format, 512, caches[n / SHAPES].rope_dim, SPARSE_MLA_BF16, 1,
                                       shapes[n % SHAPES].num_heads, shapes[n % SHAPES].topk},
                       profile);
    return true;
}

/* ---- what no kernel does */

static sparse_mla_status check_supported(const struct smla_call *call)
{
    const sparse_mla_cache *main = &call->main_cache, *extra = &call->extra_cache;
    if (!call->has_extra)
        return SPARSE_MLA_OK;
    if (kernel_format(extra->format) != kernel_format(main->format))
        return smla_fail(
            SPARSE_MLA_UNSUPPORTED,
            "extra_cache.format is %d (%s) and main_cache.format %d (%s): the CUDA backend takes two caches "
            "of one format",
            (int)extra->format, smla_format_get(extra->format)->name, (int)main->format,
            smla_format_get(main->format)->name);
    if (smla_plan_columns(call) > INT32_MAX)
        return smla_fail(SPARSE_MLA_UNSUPPORTED,
                         "extra_cache.topk is %d and main_cache.topk %d: together they must be below 2^31",
                         (int)extra->topk, (int)main->topk);
    if (main->format == SPARSE_MLA_FLAT_E4M3 && extra->tensor_scale != main->tensor_scale)
        return smla_fail(SPARSE_MLA_UNSUPPORTED,
                         "extra_cache.tensor_scale is %g and main_cache.tensor_scale %g: the CUDA backend takes two "
                         "caches of one scale",
                         (double)extra->tensor_scale, (double)main->tensor_scale);
    return SPARSE_MLA_OK;
}

static sparse_mla_status resolve_profile(int *profile, const struct smla_device_facts *device, int wanted)
{
    const int own = smla_profile_of(device->compute_capability);
    if (own == SPARSE_MLA_PROFILE_AUTO)
        return smla_fail(SPARSE_MLA_UNSUPPORTED, "the device has compute capability %d.%d: 8.0 or more is needed",
                         device->compute_capability / 10, device->compute_capability % 10);
    *profile = wanted == SPARSE_MLA_PROFILE_AUTO ? own : wanted;
    if ((*profile >= SPARSE_MLA_PROFILE_SM90 && own < SPARSE_MLA_PROFILE_SM90) ||
        (*profile >= SPARSE_MLA_PROFILE_SM89 && own < SPARSE_MLA_PROFILE_SM89))
        return smla_fail(SPARSE_MLA_UNSUPPORTED,
                         "options.profile is %d: a device of compute capability %d.%d cannot run its instructions",
                         wanted, device->compute_capability / 10, device->compute_capability % 10);
    if (smla_profile_shared_limit(*profile) > device->shared_per_block)
        return smla_fail(SPARSE_MLA_UNSUPPORTED,
                         "options.profile is %d: it needs %d bytes of shared memory per block, and compute capability "
                         "%d.%d has %d",
                         wanted, smla_profile_shared_limit(*profile), device->compute_capability / 10,
                         device->compute_capability % 10, device->shared_per_block);
    return SPARSE_MLA_OK;
}

/* ---- splits */

/* 8 is what every device with clusters takes; 16 what was seen to fit on the H200, of 132 multiprocessors. */
static int max_cluster(const struct smla_variant *v, const struct smla_device_facts *device)
{
    const int cc = device->compute_capability;
    if (v->profile < SPARSE_MLA_PROFILE_SM90)
        return 1;
    return v->profile == SPARSE_MLA_PROFILE_SM90 && (cc == 90 || cc == 100 || cc == 103) && device->sm_count >= 132
               ? SMLA_MAX_CLUSTER
               : 8;
}

static uint64_t floats_per_part(const struct smla_variant *v)
{
    return (uint64_t)smla_variant_heads(v) * ((uint64_t)smla_variant_value_dim(v) + 1);
}

static int64_t predicted_time(const struct smla_plan *plan, const struct smla_device_facts *device, int64_t rows,
                              int units, int splits)
{
    const struct smla_cost cost = smla_cost_of_splits(plan, device, rows, units, splits);
    return cost.turns + cost.rest;
}

static int most_splits(const struct smla_plan *plan, const struct smla_device_facts *device, int64_t rows, int units)
{
    const struct smla_variant *v = &plan->variant;
    const uint64_t part_bytes = 4 * floats_per_part(v);
    const int64_t room = (int64_t)((MAX_WORKSPACE - SMLA_COUNTER_BYTES) / part_bytes);
    int64_t parts = (int64_t)smla_cost_resident(v, device, 1) * WAVES_OF_PARTS;
    if (parts > room)
        parts = room;
    if (parts > SMLA_COUNTER_BYTES / 4)
        parts = SMLA_COUNTER_BYTES / 4;
    int64_t most = parts / rows;
    const int weights = v->key_groups * v->stages * smla_variant_tile_bytes(v) / (4 * smla_variant_heads(v));
    if (most > weights)
        most = weights;
    if (v->topk_max && most > MAX_PARTS)
        most = MAX_PARTS;
    return (int)(most > units ? units : most);
}

/* Whatever the number of tokens: parts of INVARIANT_PART columns, while a cluster has room for them. */
static int invariant_splits(const struct smla_plan *plan, int64_t columns)
{
    const int most = plan->max_cluster < 8 ? plan->max_cluster : 8, parts = divide_up(columns, INVARIANT_PART);
    return parts < most ? parts : most;
}

static int choose_splits(const struct smla_plan *plan, const struct smla_device_facts *device, int64_t rows,
                         int64_t columns)
{
    const int units = smla_cost_units(&plan->variant, columns);
    const int most = most_splits(plan, device, rows, units);
    int best = 1;
    int64_t best_time = predicted_time(plan, device, rows, units, best);
    for (int splits = 2; splits <= most; splits++) {
        if (divide_up(units, divide_up(units, splits)) != splits)
            continue; /* a part would stay empty */
        const int64_t time = predicted_time(plan, device, rows, units, splits);
        if (time < best_time) {
            best = splits;
            best_time = time;
        }
    }
    return best;
}

void smla_plan_set_splits(struct smla_plan *plan, int num_splits)
{
    plan->num_splits = num_splits;
    plan->grid_y = (uint32_t)(plan->head_blocks * num_splits);
    plan->partial_floats = 0;
    plan->workspace_bytes = 0;
    plan->clustered = num_splits > 1 && num_splits <= plan->max_cluster;
    if (num_splits == 1 || plan->clustered)
        return;
    plan->partial_floats = (uint64_t)plan->grid_x * plan->grid_y * floats_per_part(&plan->variant);
    plan->workspace_bytes = SMLA_COUNTER_BYTES + 4 * (size_t)plan->partial_floats;
}

void smla_plan_set_variant(struct smla_plan *plan, const struct smla_call *call, const struct smla_device_facts *device,
                           const struct smla_variant *variant)
{
    plan->variant = *variant;
    plan->max_cluster = max_cluster(variant, device);
    plan->head_blocks = divide_up(call->args.num_heads, smla_variant_heads(variant));
    plan->shared_bytes = smla_variant_shared_bytes(variant);
    plan->grid_x = (uint32_t)call->args.num_tokens;
    plan->overlapped = call->args.flags & SPARSE_MLA_PROGRAMMATIC_LAUNCH && variant->profile >= SPARSE_MLA_PROFILE_SM90;
    const int64_t rows = (int64_t)call->args.num_tokens * plan->head_blocks;
    if (call->args.flags & SPARSE_MLA_BATCH_INVARIANT)
        smla_plan_set_splits(plan, invariant_splits(plan, smla_plan_columns(call)));
    else
        smla_plan_set_splits(plan, rows ? choose_splits(plan, device, rows, smla_plan_columns(call)) : 1);
}

/* ---- plans */

sparse_mla_status smla_plan_make(struct smla_plan *plan, const struct smla_call *call,
                                 const struct smla_device_facts *device, int profile)
{
    const struct shape shape = shape_of(call);
    memset(plan, 0, sizeof *plan);
    sparse_mla_status status = resolve_profile(&profile, device, profile);
    if (status == SPARSE_MLA_OK)
        status = check_supported(call);
    if (status != SPARSE_MLA_OK)
        return status;
    const struct smla_variant variant = choose_variant(&shape, profile);
    smla_plan_set_variant(plan, call, device, &variant);
    return SPARSE_MLA_OK;
}

bool smla_plan_variant(const struct smla_call *call, const struct smla_device_facts *device, int profile, int n,
                       struct smla_variant *variant)
{
    struct smla_plan plan;
    if (n != 0 || smla_plan_make(&plan, call, device, profile) != SPARSE_MLA_OK)
        return false;
    *variant = plan.variant; /* the number of tokens changes the grid only */
    return true;
}

sparse_mla_status smla_plan_workspace(size_t *bytes, const struct smla_call *call,
                                      const struct smla_device_facts *device, int profile)
{
    struct smla_plan plan;
    struct smla_call smaller = *call;
    *bytes = 0;
    smaller.args.q_len = 1;
    sparse_mla_status status = smla_plan_make(&plan, call, device, profile);
    if (status != SPARSE_MLA_OK)
        return status;
    const int most =
        WAVES_OF_PARTS * smla_cost_resident(&plan.variant, device, 1) / plan.head_blocks; /* more are never split */
    for (int tokens = 1; tokens <= call->args.num_tokens && tokens <= most; tokens++) {
        smaller.args.num_tokens = tokens;
        status = smla_plan_make(&plan, &smaller, device, profile);
        if (status != SPARSE_MLA_OK)
            return status;
        if (plan.workspace_bytes > *bytes)
            *bytes = plan.workspace_bytes;
    }
    return SPARSE_MLA_OK;
}
