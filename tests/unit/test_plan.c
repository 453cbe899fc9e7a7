/* SPDX-License-Identifier: Apache-2.0 */
/* What holds for every plan, whatever the cost model prefers. */
#include "plan.h"

#include "launch.h"
#include "params.h"
#include "plan_calls.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

enum { TILE = 16, WORKSPACE_LIMIT = 64 << 20, GRID_Y_LIMIT = 65535, RESERVED_SHARED = 1024, LANES = 32 };

static const struct smla_device_facts *const h200 = &devices[SPARSE_MLA_PROFILE_SM90];

static const struct shape glm5 = {SPARSE_MLA_FP8_DS_MLA, 512, 64, 8, 2048, 64, 0, 0};

/* ---- one plan */

static int64_t columns_of(const struct shape *shape)
{
    return shape->extra_topk ? (int64_t)(shape->topk + TILE - 1) / TILE * TILE + shape->extra_topk : shape->topk;
}

static void check_variant(const struct shape *shape, const struct smla_plan *plan)
{
    const struct smla_variant *v = &plan->variant;
    assert_true(smla_variant_valid(v));
    assert_int_equal(v->format, shape->format == SPARSE_MLA_FP8_DS_MLA_NOPE ? SPARSE_MLA_FP8_DS_MLA : shape->format);
    assert_int_equal(v->latent_dim, shape->latent_dim);
    assert_int_equal(v->rope_dim, shape->rope_dim);
    assert_int_equal(smla_variant_value_dim(v), shape->format == SPARSE_MLA_FP8_V4 ? 512 : shape->latent_dim);
    assert_int_equal(v->query, shape->query);
    assert_int_equal(v->caches, shape->extra_topk ? 2 : 1);
    assert_true(v->topk_max == 0 ? columns_of(shape) > 2048 : columns_of(shape) <= v->topk_max);
    assert_int_equal(plan->shared_bytes, smla_variant_shared_bytes(v));
    assert_true(plan->shared_bytes <= smla_profile_shared_limit(v->profile));
    assert_true(v->blocks_per_sm * (plan->shared_bytes + RESERVED_SHARED) <=
                devices[v->profile].shared_per_block + RESERVED_SHARED); /* what a multiprocessor has */
}

/* Heads are padded to the next 8 and no further: at most one octet per block has none. */
static void check_heads(const struct shape *shape, const struct smla_plan *plan)
{
    const int octets = (shape->num_heads + 7) / 8, in_block = smla_variant_heads(&plan->variant) / 8;
    assert_true(plan->head_blocks >= 1);
    assert_true(in_block * plan->head_blocks >= octets);
    assert_true(in_block * plan->head_blocks - octets < plan->head_blocks);
}

static int units_of(const struct shape *shape, const struct smla_plan *plan)
{
    const int64_t unit = (int64_t)TILE * plan->variant.key_groups;
    return (int)((columns_of(shape) + unit - 1) / unit);
}

static void check_splits(const struct shape *shape, const struct smla_plan *plan)
{
    const struct smla_variant *v = &plan->variant;
    const int units = units_of(shape, plan), part = (units + plan->num_splits - 1) / plan->num_splits;
    assert_true(plan->num_splits >= 1);
    assert_true((int64_t)part * (plan->num_splits - 1) < units); /* at full length no part is empty */
    if (plan->clustered) {
        assert_true(v->profile >= SPARSE_MLA_PROFILE_SM90);
        /* 8 is what every device with clusters takes. */
        assert_in_range(plan->num_splits, 2, v->profile == SPARSE_MLA_PROFILE_SM90 ? SMLA_MAX_CLUSTER : 8);
    }
    if (plan->num_splits == 1 || plan->clustered)
        return;
    assert_true(v->topk_max == 0 || plan->num_splits <= LANES); /* the merge gives a lane to each */
    assert_true((int64_t)4 * plan->num_splits * smla_variant_heads(v) <=
                (int64_t)v->key_groups * v->stages * smla_variant_tile_bytes(v)); /* and its weights the ring */
}

static void check_grid_and_workspace(const struct shape *shape, const struct smla_plan *plan)
{
    const struct smla_variant *v = &plan->variant;
    const uint64_t rows = (uint64_t)shape->num_tokens * (uint64_t)plan->head_blocks;
    assert_int_equal(plan->grid_x, shape->num_tokens);
    assert_int_equal(plan->grid_y, plan->head_blocks * plan->num_splits);
    assert_true(plan->grid_y <= GRID_Y_LIMIT);
    if (plan->num_splits == 1 || plan->clustered) {
        assert_int_equal(plan->partial_floats, 0);
        assert_int_equal(plan->workspace_bytes, 0);
        return;
    }
    assert_true(rows <= SMLA_COUNTER_BYTES / 4); /* a counter each */
    assert_int_equal(plan->partial_floats, rows * (uint64_t)plan->num_splits * (uint64_t)smla_variant_heads(v) *
                                               ((uint64_t)smla_variant_value_dim(v) + 1));
    assert_int_equal(plan->workspace_bytes, SMLA_COUNTER_BYTES + 4 * plan->partial_floats);
    assert_true(plan->workspace_bytes <= WORKSPACE_LIMIT);
}

static void check_plan(const struct shape *shape, const struct smla_plan *plan)
{
    check_variant(shape, plan);
    check_heads(shape, plan);
    check_splits(shape, plan);
    check_grid_and_workspace(shape, plan);
}

/* ---- plans */

static void every_shape_has_a_sound_plan(void **state)
{
    (void)state;
    each_plan(1, 1, check_plan);
    each_plan(37, 7, check_plan);
    each_plan(1000, 9, check_plan);
}

static void every_number_of_tokens_has_a_sound_plan(void **state)
{
    static const int heads[] = {1, 8, 24, 64, 65, 128};
    static const int tokens[] = {2, 3, 16, 63, 131, 132, 133, 264, 4096, 16385, 65536, 70000, 1 << 30, INT_MAX};
    (void)state;
    for (int profile = FIRST_PROFILE; profile <= LAST_PROFILE; profile++)
        for (size_t h = 0; h < sizeof heads / sizeof *heads; h++)
            for (int width = 0; width < WIDTHS; width++)
                for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++) {
                    const struct shape shape = {SPARSE_MLA_FP8_DS_MLA, 512,       64, heads[h],
                                                widths[width],         tokens[t], 0,  0};
                    const struct smla_plan plan = plan_of(&shape, &devices[profile], profile);
                    check_plan(&shape, &plan);
                }
}

static void no_tokens_are_no_blocks(void **state)
{
    struct shape shape = glm5;
    (void)state;
    shape.num_tokens = 0;
    const struct smla_plan plan = plan_of(&shape, h200, SPARSE_MLA_PROFILE_AUTO);
    assert_int_equal(plan.grid_x, 0);
    check_plan(&shape, &plan);
}

static void the_widest_row_has_a_sound_plan(void **state)
{
    struct shape shape = glm5;
    (void)state;
    shape.topk = INT_MAX;
    for (shape.num_tokens = 1; shape.num_tokens < 1 << 20; shape.num_tokens *= 4) {
        const struct smla_plan plan = plan_of(&shape, h200, SPARSE_MLA_PROFILE_AUTO);
        check_plan(&shape, &plan);
    }
}

/* Up to where every limit of a split is reached: the counters, the lanes, the ring and the workspace. */
static void every_device_has_a_sound_plan(void **state)
{
    static const int counts[] = {1, 2, 7, 15, 16, 17, 48, 108, 132, 188, 1024, 20000};
    static const struct shape shapes[] = {{SPARSE_MLA_FP8_DS_MLA, 512, 64, 8, 2048, 1, 0, 0},
                                          {SPARSE_MLA_FP8_DS_MLA, 512, 64, 64, 2048, 1, 0, 0},
                                          {SPARSE_MLA_FLAT_F16, 512, 64, 128, 1 << 20, 1, 0, 0},
                                          {SPARSE_MLA_FLAT_BF16, 64, 0, 8, 1 << 20, 1, 0, 0}};
    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
            for (int profile = FIRST_PROFILE; profile <= LAST_PROFILE; profile++) {
                struct smla_device_facts device = *h200;
                struct shape shape = shapes[s];
                device.sm_count = counts[i];
                for (; shape.num_tokens < 40000; shape.num_tokens = shape.num_tokens * 3 / 2 + 1) {
                    const struct smla_plan plan = plan_of(&shape, &device, profile);
                    check_plan(&shape, &plan);
                }
            }
}

static void widths_share_a_variant_by_class(void **state)
{
    static const struct {
        int first, last, topk_max;
    } classes[] = {{1, 128, 128}, {129, 512, 512}, {513, 2048, 2048}, {2049, INT_MAX, 0}};
    struct shape shape = glm5;
    (void)state;
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        shape.topk = classes[i].first;
        const struct smla_plan first = plan_of(&shape, h200, SPARSE_MLA_PROFILE_AUTO);
        shape.topk = classes[i].last;
        const struct smla_plan last = plan_of(&shape, h200, SPARSE_MLA_PROFILE_AUTO);
        assert_int_equal(first.variant.topk_max, classes[i].topk_max);
        assert_memory_equal(&first.variant, &last.variant, sizeof first.variant);
    }
}

static void records_with_and_without_a_tail_share_a_variant(void **state)
{
    struct shape shape = glm5;
    (void)state;
    shape.rope_dim = 0;
    const struct smla_plan with = plan_of(&shape, h200, SPARSE_MLA_PROFILE_AUTO);
    shape.format = SPARSE_MLA_FP8_DS_MLA_NOPE;
    const struct smla_plan without = plan_of(&shape, h200, SPARSE_MLA_PROFILE_AUTO);
    assert_memory_equal(&with, &without, sizeof with);
}

/* What may be NULL, and all that only changes pointers, strides or types of outputs, selects nothing. */
static void options_of_a_call_select_no_variant(void **state)
{
    struct smla_call call = call_of(&glm5);
    struct smla_plan plain, other;
    int something = 0;
    (void)state;
    assert_int_equal(smla_plan_make(&plain, &call, h200, SPARSE_MLA_PROFILE_AUTO), SPARSE_MLA_OK);
    call.args.out_dtype = SPARSE_MLA_F32;
    call.args.q_latent = call.args.q_rope = call.args.sink = call.args.lse = (void *)&something;
    call.args.request_of_token = call.main_cache.indices = call.main_cache.lengths = &something;
    call.main_cache.block_table = &something;
    call.args.flags = SPARSE_MLA_LSE_BASE2 | SPARSE_MLA_LSE_WITH_SINK | SPARSE_MLA_LSE_EMPTY_POSINF;
    call.args.q_latent_head_stride += 8;
    call.main_cache.page_size = 17;
    call.main_cache.row_stride_bytes += 48;
    assert_int_equal(smla_plan_make(&other, &call, h200, SPARSE_MLA_PROFILE_AUTO), SPARSE_MLA_OK);
    assert_memory_equal(&plain, &other, sizeof plain);
}

/* ---- other variants and splits than the planner's */

static void splits_and_variants_can_be_set(void **state)
{
    const struct smla_call call = call_of(&glm5);
    struct smla_plan plan = plan_of(&glm5, h200, SPARSE_MLA_PROFILE_SM80); /* no clusters */
    const struct smla_plan chosen = plan;
    (void)state;
    smla_plan_set_splits(&plan, 1);
    check_plan(&glm5, &plan);
    smla_plan_set_splits(&plan, 4);
    check_plan(&glm5, &plan);
    assert_true(plan.workspace_bytes > 0);
    smla_plan_set_variant(&plan, &call, h200, &chosen.variant);
    assert_memory_equal(&plan, &chosen, sizeof plan);
}

/* ---- lists of variants */

static bool is_listed(const struct smla_call *call, int profile, const struct smla_variant *variant)
{
    struct smla_variant listed;
    for (int n = 0; smla_plan_variant(call, &devices[profile], profile, n, &listed); n++) {
        assert_true(n < 100);
        if (memcmp(&listed, variant, sizeof listed) == 0)
            return true;
    }
    return false;
}

static void prepared_variants_are_all_that_is_planned(void **state)
{
    struct shape shape = glm5, most = glm5;
    (void)state;
    most.num_tokens = 600;
    for (int profile = FIRST_PROFILE; profile <= LAST_PROFILE; profile++)
        for (most.num_heads = 8; most.num_heads <= 128; most.num_heads += 24) {
            const struct smla_call call = call_of(&most);
            struct smla_variant listed, earlier;
            shape.num_heads = most.num_heads;
            for (shape.num_tokens = 1; shape.num_tokens <= most.num_tokens; shape.num_tokens++) {
                const struct smla_plan plan = plan_of(&shape, &devices[profile], profile);
                assert_true(is_listed(&call, profile, &plan.variant));
            }
            for (int n = 0; smla_plan_variant(&call, &devices[profile], profile, n, &listed); n++)
                for (int i = 0; i < n; i++)
                    assert_true(smla_plan_variant(&call, &devices[profile], profile, i, &earlier) &&
                                memcmp(&listed, &earlier, sizeof listed) != 0);
        }
}

static void nothing_is_prepared_for_a_refused_call(void **state)
{
    struct shape shape = glm5;
    struct smla_variant variant;
    (void)state;
    shape.extra_topk = 64;
    struct smla_call call = call_of(&shape);
    call.extra_cache.format = SPARSE_MLA_FLAT_F16;
    assert_false(smla_plan_variant(&call, h200, SPARSE_MLA_PROFILE_AUTO, 0, &variant));
}

static void shipped_variants_are_planned(void **state)
{
    struct smla_variant variant;
    (void)state;
    for (int profile = FIRST_PROFILE; profile <= LAST_PROFILE; profile++) {
        int n = 0;
        for (; smla_plan_shipped(profile, n, &variant); n++) {
            /* As many heads as a block has, or the next 8 less. */
            const int extra = variant.caches == 2 ? 64 : 0;
            bool planned = false;
            for (int heads = smla_variant_heads(&variant); heads > 0 && !planned; heads -= 8) {
                const struct shape shape = {variant.format,
                                            variant.latent_dim,
                                            variant.rope_dim,
                                            heads,
                                            variant.topk_max ? variant.topk_max - extra : 4096,
                                            1,
                                            variant.query,
                                            extra};
                const struct smla_call call = call_of(&shape);
                planned = is_listed(&call, profile, &variant);
            }
            assert_true(planned);
        }
        assert_true(n > 0);
        assert_false(smla_plan_shipped(profile, n + 1, &variant));
        assert_false(smla_plan_shipped(profile, -1, &variant));
        assert_false(smla_plan_shipped(profile, INT_MAX, &variant));
    }
}

/* ---- workspace */

static void check_workspace(struct shape shape, int profile)
{
    size_t before = 0, bytes = 0, needed = 0;
    for (shape.num_tokens = 1; shape.num_tokens <= 1200; shape.num_tokens += shape.num_tokens < 300 ? 1 : 37) {
        const struct smla_call call = call_of(&shape);
        const struct smla_plan plan = plan_of(&shape, &devices[profile], profile);
        if (plan.workspace_bytes > needed)
            needed = plan.workspace_bytes;
        if (shape.num_tokens % 16 != 1 && shape.num_tokens < 300)
            continue; /* asked now and then only: it plans every smaller call itself */
        assert_int_equal(smla_plan_workspace(&bytes, &call, &devices[profile], profile), SPARSE_MLA_OK);
        assert_true(bytes >= needed);
        assert_true(bytes >= before);
        assert_true(bytes <= WORKSPACE_LIMIT);
        before = bytes;
    }
}

static void a_workspace_serves_every_smaller_call(void **state)
{
    static const int heads[] = {8, 24, 64, 128};
    (void)state;
    for (int profile = FIRST_PROFILE; profile <= LAST_PROFILE; profile++)
        for (size_t h = 0; h < sizeof heads / sizeof *heads; h++)
            for (int width = 0; width < WIDTHS; width += 2)
                check_workspace((struct shape){SPARSE_MLA_FLAT_BF16, 512, 64, heads[h], widths[width], 0, 0, 0},
                                profile);
}

static void huge_calls_have_a_workspace(void **state)
{
    struct shape shape = glm5;
    size_t some, most, none;
    (void)state;
    shape.topk = 131072;
    shape.num_tokens = 4096;
    struct smla_call call = call_of(&shape);
    assert_int_equal(smla_plan_workspace(&some, &call, h200, SPARSE_MLA_PROFILE_AUTO), SPARSE_MLA_OK);
    shape.num_tokens = INT_MAX;
    call = call_of(&shape);
    assert_int_equal(smla_plan_workspace(&most, &call, h200, SPARSE_MLA_PROFILE_AUTO), SPARSE_MLA_OK);
    assert_true(most >= some && most <= WORKSPACE_LIMIT);
    shape.num_tokens = 0;
    call = call_of(&shape);
    assert_int_equal(smla_plan_workspace(&none, &call, h200, SPARSE_MLA_PROFILE_AUTO), SPARSE_MLA_OK);
    assert_int_equal(none, 0);
}

static void tokens_of_one_request_need_no_more(void **state)
{
    struct smla_call call = call_of(&glm5);
    size_t alone, together;
    (void)state;
    assert_int_equal(smla_plan_workspace(&alone, &call, h200, SPARSE_MLA_PROFILE_SM80), SPARSE_MLA_OK);
    call.args.q_len = glm5.num_tokens;
    assert_int_equal(smla_plan_workspace(&together, &call, h200, SPARSE_MLA_PROFILE_SM80), SPARSE_MLA_OK);
    assert_int_equal(alone, together);
}

/* ---- refusals */

static void refused(const struct smla_call *call, const struct smla_device_facts *device, int profile,
                    const char *sentence)
{
    struct smla_plan plan;
    size_t bytes = 1;
    assert_int_equal(smla_plan_make(&plan, call, device, profile), SPARSE_MLA_UNSUPPORTED);
    assert_string_equal(sparse_mla_last_error(), sentence);
    assert_int_equal(smla_plan_workspace(&bytes, call, device, profile), SPARSE_MLA_UNSUPPORTED);
    assert_string_equal(sparse_mla_last_error(), sentence);
    assert_int_equal(bytes, 0);
}

static void what_no_kernel_does_is_named(void **state)
{
    struct shape shape = glm5;
    (void)state;
    shape.extra_topk = 64;
    struct smla_call call = call_of(&shape);
    call.extra_cache.format = SPARSE_MLA_FLAT_BF16;
    refused(&call, h200, 0,
            "extra_cache.format is 2 (flat_bf16) and main_cache.format 0 (fp8_ds_mla): the CUDA backend takes two "
            "caches of one format");
    call = call_of(&shape);
    call.main_cache.topk = call.extra_cache.topk = 1 << 30;
    refused(&call, h200, 0,
            "extra_cache.topk is 1073741824 and main_cache.topk 1073741824: together they must be below 2^31");
    shape.format = SPARSE_MLA_FLAT_E4M3;
    call = call_of(&shape);
    call.extra_cache.tensor_scale = 2.0f;
    refused(&call, h200, 0,
            "extra_cache.tensor_scale is 2 and main_cache.tensor_scale 1: the CUDA backend takes two caches of one "
            "scale");
}

/* With the flag, parts depend on the width alone. */
static void invariant_splits_ignore_the_tokens(void **state)
{
    static const int splits[WIDTHS] = {1, 1, 1, 1, 1, 4, 5, 8, 8};
    (void)state;
    for (int profile = FIRST_PROFILE; profile <= LAST_PROFILE; profile++)
        for (int width = 0; width < WIDTHS; width++)
            for (int tokens = 1; tokens <= 16384; tokens *= 4) {
                struct shape shape = glm5;
                struct smla_plan plan;
                shape.topk = widths[width];
                shape.num_tokens = tokens;
                struct smla_call call = call_of(&shape);
                call.args.flags = SPARSE_MLA_BATCH_INVARIANT;
                assert_int_equal(smla_plan_make(&plan, &call, &devices[profile], 0), SPARSE_MLA_OK);
                assert_int_equal(plan.num_splits, profile < SPARSE_MLA_PROFILE_SM90 ? 1 : splits[width]);
                assert_int_equal(plan.workspace_bytes, 0);
            }
}

/* The launch is overlapped where the instruction that waits exists. */
static void programmatic_launch_needs_its_instruction(void **state)
{
    (void)state;
    for (int profile = FIRST_PROFILE; profile <= LAST_PROFILE; profile++) {
        struct smla_call call = call_of(&glm5);
        struct smla_plan plan;
        assert_int_equal(smla_plan_make(&plan, &call, &devices[profile], 0), SPARSE_MLA_OK);
        assert_false(plan.overlapped);
        call.args.flags = SPARSE_MLA_PROGRAMMATIC_LAUNCH | SPARSE_MLA_LSE_BASE2;
        assert_int_equal(smla_plan_make(&plan, &call, &devices[profile], 0), SPARSE_MLA_OK);
        assert_int_equal(plan.overlapped, profile >= SPARSE_MLA_PROFILE_SM90);
    }
}

static void devices_are_held_to_what_they_can_run(void **state)
{
    const struct smla_call call = call_of(&glm5);
    const struct smla_device_facts turing = {75, 68, 65536, 0}, small = {90, 132, 101376, 0};
    (void)state;
    refused(&call, &turing, SPARSE_MLA_PROFILE_AUTO, "the device has compute capability 7.5: 8.0 or more is needed");
    refused(&call, &turing, SPARSE_MLA_PROFILE_SM80, "the device has compute capability 7.5: 8.0 or more is needed");
    refused(&call, &devices[SPARSE_MLA_PROFILE_SM80], SPARSE_MLA_PROFILE_SM90,
            "options.profile is 3: a device of compute capability 8.0 cannot run its instructions");
    refused(&call, &devices[SPARSE_MLA_PROFILE_SM80], SPARSE_MLA_PROFILE_SM89,
            "options.profile is 2: a device of compute capability 8.0 cannot run its instructions");
    refused(&call, &devices[SPARSE_MLA_PROFILE_SM89], SPARSE_MLA_PROFILE_SM120,
            "options.profile is 4: a device of compute capability 8.9 cannot run its instructions");
    refused(&call, &devices[SPARSE_MLA_PROFILE_SM120], SPARSE_MLA_PROFILE_SM90,
            "options.profile is 3: it needs 232448 bytes of shared memory per block, and compute capability 12.0 has "
            "101376");
    refused(&call, &small, SPARSE_MLA_PROFILE_SM90,
            "options.profile is 3: it needs 232448 bytes of shared memory per block, and compute capability 9.0 has "
            "101376");
}

static void profiles_follow_the_device_unless_forced(void **state)
{
    static const struct {
        int compute_capability, profile;
    } own[] = {{0, SPARSE_MLA_PROFILE_AUTO},    {75, SPARSE_MLA_PROFILE_AUTO},  {80, SPARSE_MLA_PROFILE_SM80},
               {86, SPARSE_MLA_PROFILE_SM80},   {87, SPARSE_MLA_PROFILE_SM80},  {89, SPARSE_MLA_PROFILE_SM89},
               {90, SPARSE_MLA_PROFILE_SM90},   {100, SPARSE_MLA_PROFILE_SM90}, {103, SPARSE_MLA_PROFILE_SM90},
               {120, SPARSE_MLA_PROFILE_SM120}, {121, SPARSE_MLA_PROFILE_SM120}};
    (void)state;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        assert_int_equal(smla_profile_of(own[i].compute_capability), own[i].profile);
    for (int on = FIRST_PROFILE; on <= LAST_PROFILE; on++) {
        assert_int_equal(plan_of(&glm5, &devices[on], SPARSE_MLA_PROFILE_AUTO).variant.profile, on);
        for (int forced = FIRST_PROFILE; forced <= on; forced++)
            if (smla_profile_shared_limit(forced) <= devices[on].shared_per_block)
                assert_int_equal(plan_of(&glm5, &devices[on], forced).variant.profile, forced);
    }
    assert_int_equal(plan_of(&glm5, h200, SPARSE_MLA_PROFILE_SM120).variant.profile, SPARSE_MLA_PROFILE_SM120);
}

/* ---- what the kernel is given */

/* Kernels of the cache on disk were compiled with this struct: what changes it changes the sources' digest too. */
static void parameters_are_frozen(void **state)
{
    (void)state;
    assert_int_equal(sizeof(void *), 8);
    assert_int_equal(offsetof(struct smla_cache_params, num_slots), 32);
    assert_int_equal(offsetof(struct smla_cache_params, page_size), 80);
    assert_int_equal(offsetof(struct smla_cache_params, page_multiplier), 96);
    assert_int_equal(offsetof(struct smla_cache_params, scales_at), 112);
    assert_int_equal(sizeof(struct smla_cache_params), 120);
    assert_int_equal(offsetof(struct smla_params, q_latent), 120);
    assert_int_equal(offsetof(struct smla_params, counters), 176);
    assert_int_equal(offsetof(struct smla_params, q_latent_stride), 200);
    assert_int_equal(offsetof(struct smla_params, scale_log2), 296);
    assert_int_equal(offsetof(struct smla_params, clustered), 328);
    assert_int_equal(offsetof(struct smla_params, extra), 336);
    assert_int_equal(sizeof(struct smla_params), 456);
}

static void pages_are_divided_exactly(void **state)
{
    static const int sizes[] = {1, 2, 3, 7, 61, 64, 100, 127, 1000, 4096, 65537, 1 << 30, INT_MAX - 1, INT_MAX};
    struct smla_call call = call_of(&glm5);
    const struct smla_plan plan = plan_of(&glm5, h200, SPARSE_MLA_PROFILE_AUTO);
    struct smla_params params;
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const uint64_t size = (uint64_t)sizes[i];
        call.main_cache.page_size = sizes[i];
        smla_launch_params(&params, &call, &plan);
        assert_true(params.cache.page_shift >= 0 && params.cache.page_shift < 64);
        for (uint64_t multiple = 0; multiple <= INT_MAX; multiple += size * (1 + INT_MAX / size / 997))
            for (uint64_t position = multiple ? multiple - 1 : 0; position <= multiple + 1; position++)
                if (position <= INT_MAX)
                    assert_int_equal(position * params.cache.page_multiplier >> params.cache.page_shift,
                                     position / size);
        assert_int_equal((uint64_t)INT_MAX * params.cache.page_multiplier >> params.cache.page_shift, INT_MAX / size);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_has_a_sound_plan),
        cmocka_unit_test(every_number_of_tokens_has_a_sound_plan),
        cmocka_unit_test(no_tokens_are_no_blocks),
        cmocka_unit_test(the_widest_row_has_a_sound_plan),
        cmocka_unit_test(every_device_has_a_sound_plan),
        cmocka_unit_test(widths_share_a_variant_by_class),
        cmocka_unit_test(records_with_and_without_a_tail_share_a_variant),
        cmocka_unit_test(options_of_a_call_select_no_variant),
        cmocka_unit_test(splits_and_variants_can_be_set),
        cmocka_unit_test(prepared_variants_are_all_that_is_planned),
        cmocka_unit_test(nothing_is_prepared_for_a_refused_call),
        cmocka_unit_test(shipped_variants_are_planned),
        cmocka_unit_test(a_workspace_serves_every_smaller_call),
        cmocka_unit_test(huge_calls_have_a_workspace),
        cmocka_unit_test(tokens_of_one_request_need_no_more),
        cmocka_unit_test(what_no_kernel_does_is_named),
        cmocka_unit_test(invariant_splits_ignore_the_tokens),
        cmocka_unit_test(programmatic_launch_needs_its_instruction),
        cmocka_unit_test(devices_are_held_to_what_they_can_run),
        cmocka_unit_test(profiles_follow_the_device_unless_forced),
        cmocka_unit_test(parameters_are_frozen),
        cmocka_unit_test(pages_are_divided_exactly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
