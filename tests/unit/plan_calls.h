/* SPDX-License-Identifier: Apache-2.0 */
/* Calls to plan: valid ones of any shape, and devices to plan them for. */
#ifndef TESTS_UNIT_PLAN_CALLS_H
#define TESTS_UNIT_PLAN_CALLS_H

#include "plan.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

struct shape {
    int format, latent_dim, rope_dim, num_heads, topk, num_tokens;
    int query, extra_topk; /* extra_topk: 0 for no extra cache */
};

/* By profile; what the devices of these names have. */
static const struct smla_device_facts devices[] = {
    [SPARSE_MLA_PROFILE_SM80] = {80, 108, 166912, 2039},
    [SPARSE_MLA_PROFILE_SM89] = {89, 142, 101376, 864},
    [SPARSE_MLA_PROFILE_SM90] = {90, 132, 232448, 4916},
    [SPARSE_MLA_PROFILE_SM120] = {120, 188, 101376, 1792},
};

enum { FIRST_PROFILE = SPARSE_MLA_PROFILE_SM80, LAST_PROFILE = SPARSE_MLA_PROFILE_SM120 };

static const int widths[] = {1, 64, 128, 129, 512, 2048, 2051, 8192, 131072};
enum { WIDTHS = sizeof widths / sizeof *widths };

/* The n-th format, latent and rope dims (with queries, and an extra cache, of some kinds); false past the last. */
static inline bool cache_shape(int n, struct shape *shape)
{
    static const struct shape fixed[] = {{.format = SPARSE_MLA_FP8_DS_MLA, .latent_dim = 512, .rope_dim = 64},
                                         {.format = SPARSE_MLA_FP8_DS_MLA, .latent_dim = 512},
                                         {.format = SPARSE_MLA_FP8_DS_MLA_NOPE, .latent_dim = 512},
                                         {.format = SPARSE_MLA_FLAT_E4M3, .latent_dim = 512, .rope_dim = 64},
                                         {.format = SPARSE_MLA_Q8_0, .latent_dim = 512, .rope_dim = 64},
                                         {.format = SPARSE_MLA_Q8_0, .latent_dim = 512, .rope_dim = 64, .query = 2},
                                         {.format = SPARSE_MLA_FP8_V4, .latent_dim = 448, .rope_dim = 64},
                                         {SPARSE_MLA_FP8_V4, 448, 64, .extra_topk = 512},
                                         {SPARSE_MLA_FP8_V4, 448, 64, .query = 1, .extra_topk = 8320},
                                         {SPARSE_MLA_FP8_DS_MLA, 512, 64, .query = 2, .extra_topk = 1},
                                         {SPARSE_MLA_FLAT_BF16, 512, 64, .query = 2},
                                         {SPARSE_MLA_FLAT_BF16, 512, 0, .query = 1},
                                         {SPARSE_MLA_FLAT_F16, 512, 64, .query = 2}};
    static const int ropes[] = {0, 32, 64};
    enum { FIXED = sizeof fixed / sizeof *fixed, LATENTS = 8, ROPES = 3 };
    if (n < FIXED) {
        *shape = fixed[n];
        return true;
    }
    n -= FIXED;
    *shape = (struct shape){.format = n < LATENTS * ROPES ? SPARSE_MLA_FLAT_BF16 : SPARSE_MLA_FLAT_F16,
                            .latent_dim = 64 * (1 + n / ROPES % LATENTS),
                            .rope_dim = ropes[n % ROPES]};
    return n < 2 * LATENTS * ROPES;
}

static inline struct smla_call call_of(const struct shape *shape)
{
    static const int record_bytes[] = {[SPARSE_MLA_FP8_DS_MLA] = 656,
                                       [SPARSE_MLA_FP8_DS_MLA_NOPE] = 528,
                                       [SPARSE_MLA_FLAT_E4M3] = 576,
                                       [SPARSE_MLA_FP8_V4] = 576,
                                       [SPARSE_MLA_Q8_0] = 612};
    const bool flat16 = shape->format == SPARSE_MLA_FLAT_BF16 || shape->format == SPARSE_MLA_FLAT_F16;
    const int width = shape->latent_dim + shape->rope_dim;
    const int value_dim = shape->format == SPARSE_MLA_FP8_V4 ? width : shape->latent_dim;
    sparse_mla_cache extra;
    sparse_mla_decode_args args;
    sparse_mla_cache cache;
    struct smla_call call;
    sparse_mla_cache_init(&cache);
    cache.format = shape->format;
    cache.num_slots = 1000;
    cache.row_stride_bytes = flat16 ? 2 * width : record_bytes[shape->format];
    cache.page_stride_bytes = 64 * cache.row_stride_bytes + (shape->format == SPARSE_MLA_FP8_V4 ? 64 * 8 : 0);
    cache.topk = shape->topk;
    extra = cache;
    extra.topk = shape->extra_topk;
    sparse_mla_decode_args_init(&args);
    args.num_tokens = shape->num_tokens;
    args.num_heads = shape->num_heads;
    args.latent_dim = shape->latent_dim;
    args.rope_dim = shape->rope_dim;
    args.value_dim = value_dim;
    args.q_dtype = shape->query;
    args.scale = 0.0625f;
    args.q_latent_head_stride = width;
    args.q_latent_request_stride = (int64_t)shape->num_heads * width;
    args.out_head_stride = value_dim;
    args.out_request_stride = (int64_t)shape->num_heads * value_dim;
    args.main_cache = &cache;
    args.extra_cache = shape->extra_topk ? &extra : NULL;
    assert_int_equal(smla_call_init(&call, &args, SMLA_CHECK_SHAPES), SPARSE_MLA_OK);
    return call;
}

static inline struct smla_plan plan_of(const struct shape *shape, const struct smla_device_facts *device, int profile)
{
    const struct smla_call call = call_of(shape);
    struct smla_plan plan;
    assert_int_equal(smla_plan_make(&plan, &call, device, profile), SPARSE_MLA_OK);
    return plan;
}

/* Every cache, head count and width on every profile's device, with this many tokens. */
static inline void each_plan(int num_tokens, int head_step,
                             void (*check)(const struct shape *shape, const struct smla_plan *plan))
{
    struct shape shape;
    for (int profile = FIRST_PROFILE; profile <= LAST_PROFILE; profile++)
        for (int n = 0; cache_shape(n, &shape); n++)
            for (int width = 0; width < WIDTHS; width++)
                for (int heads = 1; heads <= 128; heads += head_step) {
                    shape.num_tokens = num_tokens;
                    shape.num_heads = heads;
                    shape.topk = widths[width];
                    const struct smla_plan plan = plan_of(&shape, &devices[profile], profile);
                    check(&shape, &plan);
                }
}

#endif
