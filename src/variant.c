/* SPDX-License-Identifier: Apache-2.0 */
#include "variant.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SCALE_GROUPS = 4, /* as in kernels_src/variant.cuh, whose shared memory layout is summed up here */
    FRAGMENT_BYTES = 512
};

static const char *const format_names[] = {
    [SPARSE_MLA_FP8_DS_MLA] = "fp8", [SPARSE_MLA_FLAT_BF16] = "bf16", [SPARSE_MLA_FLAT_F16] = "f16",
    [SPARSE_MLA_FLAT_E4M3] = "e4m3", [SPARSE_MLA_FP8_V4] = "v4",      [SPARSE_MLA_Q8_0] = "q8"};

static const char *const query_names[] = {
    [SPARSE_MLA_BF16] = "bf16", [SPARSE_MLA_F16] = "f16", [SPARSE_MLA_F32] = "f32"};

static const char *const profile_names[] = {[SPARSE_MLA_PROFILE_SM80] = "sm80",
                                            [SPARSE_MLA_PROFILE_SM89] = "sm89",
                                            [SPARSE_MLA_PROFILE_SM90] = "sm90",
                                            [SPARSE_MLA_PROFILE_SM120] = "sm120"};

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

int smla_variant_warps(const struct smla_variant *v)
{
    return v->key_groups * v->head_groups * v->dim_split;
}

int smla_variant_threads(const struct smla_variant *v)
{
    return 32 * smla_variant_warps(v);
}

int smla_variant_heads(const struct smla_variant *v)
{
    return 8 * v->head_groups * v->dim_split;
}

int smla_variant_tile_bytes(const struct smla_variant *v)
{
    const bool fp8 = v->format == SPARSE_MLA_FP8_DS_MLA;
    const int read = v->latent_dim * (fp8 ? 1 : 2) + (fp8 ? 4 * SCALE_GROUPS : 0) + 2 * v->rope_dim;
    return SMLA_TILE * 16 * (read / 16 | 1);
}

int smla_variant_value_dim(const struct smla_variant *v)
{
    return v->latent_dim + (v->format == SPARSE_MLA_FP8_V4 ? v->rope_dim : 0);
}

/* Bytes per head of the query's terms that lie in shared memory: those of dims that are key only, and the low ones. */
static int query_bytes(const struct smla_variant *v)
{
    const bool bf16 = v->format == SPARSE_MLA_FLAT_BF16 || v->format == SPARSE_MLA_FP8_V4;
    const bool bf16_rope = bf16 || v->format == SPARSE_MLA_FP8_DS_MLA;
    const bool f16 = v->query == SPARSE_MLA_F16, f32 = v->query == SPARSE_MLA_F32;
    const int value_dim = smla_variant_value_dim(v), key_only = v->latent_dim + v->rope_dim - value_dim;
    return 2 * key_only * (f32 || (f16 && bf16_rope) ? 2 : 1) + (f32 || (f16 && bf16) ? 2 * value_dim : 0);
}

static int ring_bytes(const struct smla_variant *v)
{
    return v->key_groups * v->stages * smla_variant_tile_bytes(v);
}

int smla_variant_shared_bytes(const struct smla_variant *v)
{
    const int warps = smla_variant_warps(v), heads = smla_variant_heads(v), group_heads = 8 * v->dim_split;
    const int exchange = v->dim_split == 1 ? 0 : warps * 2 * 4 * 32 * 4 * v->dim_split;
    const int query_factors = 4 * heads * (SCALE_GROUPS + v->dim_split);
    const int queries = heads * query_bytes(v);
    const int value_factors = 4 * warps * 32;
    const int softmax = 4 * warps * (group_heads + 32 * 2 * v->dim_split + 2 * group_heads);
    const int merge = 4 * heads * (1 + SMLA_MAX_CLUSTER);
    const int barriers = (24 + 4) * v->key_groups * v->stages + 8 * warps;
    return ring_bytes(v) + exchange + query_factors + queries + value_factors + softmax + barriers + merge + 16;
}

int smla_profile_shared_limit(int profile)
{
    return profile == SPARSE_MLA_PROFILE_SM90 ? 232448 : 101376;
}

static bool within(int value, int low, int high)
{
    return value >= low && value <= high;
}

static bool dims_valid(const struct smla_variant *v)
{
    if (!within(v->format, 0, COUNT(format_names) - 1) || !format_names[v->format])
        return false;
    if (v->format == SPARSE_MLA_FP8_DS_MLA)
        return v->latent_dim == 512 && (v->rope_dim == 0 || v->rope_dim == 64);
    if (v->format == SPARSE_MLA_FP8_V4)
        return v->latent_dim == 448 && v->rope_dim == 64;
    if (v->format == SPARSE_MLA_FLAT_E4M3 || v->format == SPARSE_MLA_Q8_0)
        return v->latent_dim == 512 && v->rope_dim == 64;
    return within(v->latent_dim, 64, 512) && v->latent_dim % 64 == 0 &&
           (v->rope_dim == 0 || v->rope_dim == 32 || v->rope_dim == 64);
}

bool smla_variant_valid(const struct smla_variant *v)
{
    if (!dims_valid(v) || !within(v->query, 0, COUNT(query_names) - 1) || !within(v->caches, 1, 2) ||
        !within(v->profile, 1, COUNT(profile_names) - 1) || !within(v->dim_split, 1, 2) ||
        !within(v->head_groups, 1, SMLA_MAX_WARPS) || !within(v->key_groups, 1, SMLA_MAX_WARPS) ||
        !within(v->stages, 2, SMLA_MAX_STAGES) || !within(v->blocks_per_sm, 1, 2) ||
        smla_variant_warps(v) > SMLA_MAX_WARPS)
        return false;
    if (v->topk_max != 0 && v->topk_max != 128 && v->topk_max != 512 && v->topk_max != 2048)
        return false;
    /* The outputs pass through the ring in at most four rounds. */
    const int out_bytes = smla_variant_warps(v) * smla_variant_value_dim(v) / 16 * FRAGMENT_BYTES;
    return out_bytes <= 4 * ring_bytes(v) && smla_variant_shared_bytes(v) <= smla_profile_shared_limit(v->profile);
}

void smla_variant_name(const struct smla_variant *v, char name[SMLA_VARIANT_NAME_MAX])
{
    char topk[16] = "any";
    if (v->topk_max)
        snprintf(topk, sizeof topk, "%d", v->topk_max);
    snprintf(name, SMLA_VARIANT_NAME_MAX, "sparse_mla_decode_%s_%d_%d_q%s_c%d_h%dx%d_k%d_s%d_b%d_t%s_%s",
             format_names[v->format], v->latent_dim, v->rope_dim, query_names[v->query], v->caches, v->head_groups,
             v->dim_split, v->key_groups, v->stages, v->blocks_per_sm, topk, profile_names[v->profile]);
}

static int find_name(const char *const *names, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (names[i] && strcmp(names[i], name) == 0)
            return i;
    return -1;
}

bool smla_variant_parse(const char *name, struct smla_variant *v)
{
    char format[8], query[8], topk[8], profile[8], again[SMLA_VARIANT_NAME_MAX];
    struct smla_variant parsed = {0};
    if (strlen(name) >= SMLA_VARIANT_NAME_MAX ||
        sscanf(name,
               "sparse_mla_decode_%7[a-z0-9]_%4d_%4d_q%7[a-z0-9]_c%2d_h%2dx%2d_k%2d_s%2d_b%2d_t%7[a-z0-9]_%7[a-z0-9]",
               format, &parsed.latent_dim, &parsed.rope_dim, query, &parsed.caches, &parsed.head_groups,
               &parsed.dim_split, &parsed.key_groups, &parsed.stages, &parsed.blocks_per_sm, topk, profile) != 12)
        return false;
    parsed.query = find_name(query_names, COUNT(query_names), query);
    parsed.format = find_name(format_names, COUNT(format_names), format);
    parsed.profile = find_name(profile_names, COUNT(profile_names), profile);
    parsed.topk_max = atoi(topk); /* "any" is 0; what else is no number fails the comparison below */
    if (!smla_variant_valid(&parsed))
        return false;
    smla_variant_name(&parsed, again);
    if (strcmp(again, name) != 0)
        return false;
    *v = parsed;
    return true;
}

int smla_variant_defines(const struct smla_variant *v, char defines[SMLA_VARIANT_DEFINES][SMLA_DEFINE_MAX])
{
    const struct {
        const char *name;
        int value;
    } numbers[] = {
        {"FORMAT", v->format},
        {"LATENT", v->latent_dim},
        {"ROPE", v->rope_dim},
        {"QUERY", v->query},
        {"CACHES", v->caches},
        {"HEAD_GROUPS", v->head_groups},
        {"DIM_SPLIT", v->dim_split},
        {"KEY_GROUPS", v->key_groups},
        {"STAGES", v->stages},
        {"BLOCKS_PER_SM", v->blocks_per_sm},
        {"TOPK_MAX", v->topk_max},
        {"PROFILE", v->profile},
        {"SHARED_BYTES", smla_variant_shared_bytes(v)},
    };
    _Static_assert(COUNT(numbers) + 1 == SMLA_VARIANT_DEFINES, "one line per define");
    char name[SMLA_VARIANT_NAME_MAX];
    smla_variant_name(v, name);
    snprintf(defines[0], SMLA_DEFINE_MAX, "-DSMLA_NAME=%s", name);
    for (int i = 0; i < COUNT(numbers); i++)
        snprintf(defines[i + 1], SMLA_DEFINE_MAX, "-DSMLA_%s=%d", numbers[i].name, numbers[i].value);
    return SMLA_VARIANT_DEFINES;
}
