/* SPDX-License-Identifier: Apache-2.0 */
#include "variant.h"

#include "plan_calls.h"

#include <stdio.h>
#include <stdlib.h>

static const struct smla_variant glm5 = {.format = SPARSE_MLA_FP8_DS_MLA,
                                         .latent_dim = 512,
                                         .rope_dim = 64,
                                         .query = SPARSE_MLA_BF16,
                                         .caches = 1,
                                         .head_groups = 1,
                                         .dim_split = 2,
                                         .key_groups = 2,
                                         .stages = 3,
                                         .blocks_per_sm = 1,
                                         .topk_max = 2048,
                                         .profile = SPARSE_MLA_PROFILE_SM120};

static bool same(const struct smla_variant *a, const struct smla_variant *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

static void comes_back(const struct smla_variant *variant)
{
    char name[SMLA_VARIANT_NAME_MAX];
    struct smla_variant parsed;
    memset(&parsed, 0xFF, sizeof parsed);
    assert_true(smla_variant_valid(variant));
    smla_variant_name(variant, name);
    assert_true(smla_variant_parse(name, &parsed));
    assert_true(same(&parsed, variant));
}

static void a_name_is_frozen(void **state)
{
    char name[SMLA_VARIANT_NAME_MAX];
    struct smla_variant any = glm5;
    (void)state;
    smla_variant_name(&glm5, name);
    assert_string_equal(name, "sparse_mla_decode_fp8_512_64_qbf16_c1_h1x2_k2_s3_b1_t2048_sm120");
    any.topk_max = 0;
    any.format = SPARSE_MLA_FLAT_BF16;
    any.profile = SPARSE_MLA_PROFILE_SM90;
    smla_variant_name(&any, name);
    assert_string_equal(name, "sparse_mla_decode_bf16_512_64_qbf16_c1_h1x2_k2_s3_b1_tany_sm90");
}

static void shipped_names_come_back(void **state)
{
    struct smla_variant variant;
    (void)state;
    for (int profile = FIRST_PROFILE; profile <= LAST_PROFILE; profile++) {
        assert_true(smla_plan_shipped(profile, 0, &variant));
        for (int n = 0; smla_plan_shipped(profile, n, &variant); n++) {
            assert_int_equal(variant.profile, profile);
            comes_back(&variant);
        }
    }
}

static void check_planned_name(const struct shape *shape, const struct smla_plan *plan)
{
    (void)shape;
    comes_back(&plan->variant);
}

static void planned_names_come_back(void **state)
{
    (void)state;
    each_plan(1, 1, check_planned_name);
}

/* A name is that of one variant: when something else than `name` is accepted, it is the name of what came out. */
static void refused_or_exact(const char *text, int *accepted)
{
    char again[SMLA_VARIANT_NAME_MAX];
    struct smla_variant variant;
    if (!smla_variant_parse(text, &variant))
        return;
    assert_true(smla_variant_valid(&variant));
    smla_variant_name(&variant, again);
    assert_string_equal(again, text);
    ++*accepted;
}

static void changed_names_are_refused(void **state)
{
    char name[SMLA_VARIANT_NAME_MAX], text[SMLA_VARIANT_NAME_MAX + 1];
    int accepted = 0;
    (void)state;
    smla_variant_name(&glm5, name);
    const size_t length = strlen(name);
    for (size_t at = 0; at < length; at++)
        for (int c = 1; c < 256; c++) {
            strcpy(text, name);
            text[at] = (char)c;
            if (text[at] != name[at])
                refused_or_exact(text, &accepted);
        }
    assert_true(accepted > 0 && accepted < 16); /* other digits: two stages, four, one key group, no rope ... */
    for (size_t at = 0; at <= length; at++)
        for (int c = 1; c < 256; c++) { /* one more character */
            snprintf(text, sizeof text, "%.*s%c%s", (int)at, name, c, name + at);
            refused_or_exact(text, &accepted);
        }
    assert_true(accepted < 32);
}

static void parts_of_names_are_refused(void **state)
{
    static const char *const others[] = {
        "",
        "sparse_mla_decode_",
        "sparse_mla_decode_fp8_512_64_qbf16_c1_h1x2_k2_s3_b1_t2048_sm120 ",
        " sparse_mla_decode_fp8_512_64_qbf16_c1_h1x2_k2_s3_b1_t2048_sm120",
        "sparse_mla_decode_fp8_0512_64_qbf16_c1_h1x2_k2_s3_b1_t2048_sm120",
        "sparse_mla_decode_fp8_512_64_qbf16_c1_h+1x2_k2_s3_b1_t2048_sm120",
        "sparse_mla_decode_fp8_512_64_qbf16_c1_h 1x2_k2_s3_b1_t2048_sm120",
        "sparse_mla_decode_fp8_512_64_qbf16_c1_h01x2_k2_s3_b1_t2048_sm120",
        "sparse_mla_decode_fp8_512_64_qbf16_c1_h1x2_k2_s3_b1_t0_sm120",
        "sparse_mla_decode_fp8_512_64_qbf16_c1_h1x2_k2_s3_b1_t02048_sm120",
        "sparse_mla_decode_fp8_512_64_qbf16_c1_h1x2_k2_s3_b1_t4096_sm120",
        "sparse_mla_decode_fp8_512_64_qbf16_c1_h1x2_k2_s3_b1_t2048_auto",
        "sparse_mla_decode_fp8_512_64_qbf16_c1_h1x2_k2_s3_b1_t2048_sm100",
        "sparse_mla_decode_fp8_512_64_qbf16_c1_h1x2_k2_s3_b1_t2048",
        "sparse_mla_decode_nope_512_0_qbf16_c1_h1x2_k2_s3_b1_t2048_sm120",
        "sparse_mla_decode_fp8_512_32_qbf16_c1_h1x2_k2_s3_b1_t2048_sm120",
        "sparse_mla_decode_fp8_448_64_qbf16_c1_h1x2_k2_s3_b1_t2048_sm120",
        "sparse_mla_decode_fp8_512_64_qbf16_c1_h1x2_k2_s-3_b1_t2048_sm120",
        "sparse_mla_decode_fp8_512_64_qbf16_c1_h1x2_k2_s99_b1_t2048_sm120",
        "sparse_mla_decode_fp8_512_64_q_c1_h1x2_k2_s3_b1_t2048_sm120",
        "sparse_mla_decode_fp8_512_64_qf64_c1_h1x2_k2_s3_b1_t2048_sm120",
        "sparse_mla_decode_fp8_512_64_qbf16_c0_h1x2_k2_s3_b1_t2048_sm120",
        "sparse_mla_decode_fp8_512_64_qbf16_c3_h1x2_k2_s3_b1_t2048_sm120",
        "%s%n",
    };
    char name[SMLA_VARIANT_NAME_MAX], text[4096];
    struct smla_variant variant;
    (void)state;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_false(smla_variant_parse(others[i], &variant));
    smla_variant_name(&glm5, name);
    for (size_t length = 0; length < strlen(name); length++) {
        snprintf(text, sizeof text, "%.*s", (int)length, name);
        assert_false(smla_variant_parse(text, &variant));
        assert_false(smla_variant_parse(name + length + 1, &variant));
    }
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    assert_false(smla_variant_parse(text, &variant));
    memcpy(text, name, strlen(name));
    assert_false(smla_variant_parse(text, &variant));
}

static void defines_are_frozen(void **state)
{
    static const char *const expected[] = {
        "-DSMLA_NAME=sparse_mla_decode_fp8_512_64_qbf16_c1_h1x2_k2_s3_b1_t2048_sm120",
        "-DSMLA_FORMAT=0",
        "-DSMLA_LATENT=512",
        "-DSMLA_ROPE=64",
        "-DSMLA_QUERY=0",
        "-DSMLA_CACHES=1",
        "-DSMLA_HEAD_GROUPS=1",
        "-DSMLA_DIM_SPLIT=2",
        "-DSMLA_KEY_GROUPS=2",
        "-DSMLA_STAGES=3",
        "-DSMLA_BLOCKS_PER_SM=1",
        "-DSMLA_TOPK_MAX=2048",
        "-DSMLA_PROFILE=4",
    };
    enum { COUNT = sizeof expected / sizeof *expected };
    char defines[SMLA_VARIANT_DEFINES][SMLA_DEFINE_MAX], shared[SMLA_DEFINE_MAX];
    (void)state;
    assert_int_equal(smla_variant_defines(&glm5, defines), SMLA_VARIANT_DEFINES);
    assert_int_equal(SMLA_VARIANT_DEFINES, COUNT + 1);
    for (int i = 0; i < COUNT; i++)
        assert_string_equal(defines[i], expected[i]);
    snprintf(shared, sizeof shared, "-DSMLA_SHARED_BYTES=%d", smla_variant_shared_bytes(&glm5));
    assert_string_equal(defines[COUNT], shared);
}

/* Variants that differ from glm5 in one field each, all valid. */
static const struct {
    size_t field;
    int value;
} changes[] = {
    {offsetof(struct smla_variant, format), SPARSE_MLA_FLAT_F16},
    {offsetof(struct smla_variant, rope_dim), 0},
    {offsetof(struct smla_variant, query), SPARSE_MLA_F16},
    {offsetof(struct smla_variant, caches), 2},
    {offsetof(struct smla_variant, head_groups), 2},
    {offsetof(struct smla_variant, dim_split), 1},
    {offsetof(struct smla_variant, key_groups), 1},
    {offsetof(struct smla_variant, stages), 4},
    {offsetof(struct smla_variant, blocks_per_sm), 2},
    {offsetof(struct smla_variant, topk_max), 0},
    {offsetof(struct smla_variant, profile), SPARSE_MLA_PROFILE_SM90},
};
enum { CHANGES = sizeof changes / sizeof *changes };

static struct smla_variant with(size_t field, int value)
{
    struct smla_variant variant = glm5;
    memcpy((char *)&variant + field, &value, sizeof value);
    return variant;
}

static void every_field_is_in_name_and_defines(void **state)
{
    char name[SMLA_VARIANT_NAME_MAX], other[SMLA_VARIANT_NAME_MAX];
    char defines[SMLA_VARIANT_DEFINES][SMLA_DEFINE_MAX], others[SMLA_VARIANT_DEFINES][SMLA_DEFINE_MAX];
    (void)state;
    _Static_assert(CHANGES + 1 == sizeof glm5 / sizeof(int), "latent_dim apart, whose other values need a flat format");
    smla_variant_name(&glm5, name);
    smla_variant_defines(&glm5, defines);
    for (int i = 0; i < CHANGES; i++) {
        struct smla_variant variant = with(changes[i].field, changes[i].value);
        if (variant.format != glm5.format)
            variant.key_groups = 1; /* or it would not fit */
        assert_true(smla_variant_valid(&variant));
        comes_back(&variant);
        smla_variant_name(&variant, other);
        assert_string_not_equal(name, other);
        smla_variant_defines(&variant, others);
        int differ = 0;
        for (int d = 1; d < SMLA_VARIANT_DEFINES; d++)
            differ += strcmp(defines[d], others[d]) != 0;
        assert_true(differ > 0);
    }
}

static void fields_out_of_range_are_invalid(void **state)
{
    static const int always_bad[] = {-2147483647 - 1, -1, 2147483647, 1 << 30, 1000003, 17};
    (void)state;
    assert_true(smla_variant_valid(&glm5));
    for (size_t field = 0; field < sizeof glm5; field += sizeof(int))
        for (size_t i = 0; i < sizeof always_bad / sizeof *always_bad; i++) {
            const struct smla_variant variant = with(field, always_bad[i]);
            assert_false(smla_variant_valid(&variant));
        }
    static const size_t positive[] = {
        offsetof(struct smla_variant, latent_dim),    offsetof(struct smla_variant, head_groups),
        offsetof(struct smla_variant, caches),        offsetof(struct smla_variant, dim_split),
        offsetof(struct smla_variant, key_groups),    offsetof(struct smla_variant, stages),
        offsetof(struct smla_variant, blocks_per_sm), offsetof(struct smla_variant, profile)};
    for (size_t i = 0; i < sizeof positive / sizeof *positive; i++) {
        const struct smla_variant variant = with(positive[i], 0);
        assert_false(smla_variant_valid(&variant));
    }
    /* More warps than a block may have; each number alone is fine. */
    struct smla_variant wide = glm5;
    wide.head_groups = 4;
    wide.key_groups = 1;
    wide.stages = 6;
    assert_true(smla_variant_valid(&wide));
    wide.head_groups = 5;
    wide.stages = 5;
    assert_false(smla_variant_valid(&wide));
    /* FP8_DS_MLA_NOPE is the other spelling of FP8_DS_MLA without rope. */
    for (int format = 0; format <= SPARSE_MLA_Q8_0; format++) {
        struct smla_variant variant = with(offsetof(struct smla_variant, format), format);
        variant.key_groups = 1;
        if (format == SPARSE_MLA_FP8_V4)
            variant.latent_dim = 448;
        assert_int_equal(smla_variant_valid(&variant), format != SPARSE_MLA_FP8_DS_MLA_NOPE);
    }
}

static void shared_memory_stays_within_the_profile(void **state)
{
    struct smla_variant variant = glm5;
    (void)state;
    for (variant.profile = FIRST_PROFILE; variant.profile <= LAST_PROFILE; variant.profile++) {
        const int limit = smla_profile_shared_limit(variant.profile);
        int largest = 0;
        assert_int_equal(limit, devices[variant.profile].shared_per_block < 232448 ? 101376 : 232448);
        for (variant.stages = 2; variant.stages <= 16; variant.stages++) {
            const int bytes = smla_variant_shared_bytes(&variant);
            assert_true(bytes > variant.key_groups * variant.stages * smla_variant_tile_bytes(&variant));
            assert_true(bytes > largest);
            largest = bytes;
            assert_int_equal(smla_variant_valid(&variant), bytes <= limit);
        }
    }
}

static void rows_do_not_collide_in_banks(void **state)
{
    struct shape shape;
    (void)state;
    for (int n = 0; cache_shape(n, &shape); n++) {
        const struct smla_variant variant = {
            .format = shape.format, .latent_dim = shape.latent_dim, .rope_dim = shape.rope_dim};
        if (shape.format == SPARSE_MLA_FP8_DS_MLA_NOPE)
            continue;
        const int row_bytes = smla_variant_tile_bytes(&variant) / 16;
        assert_int_equal(row_bytes % 32, 16); /* an odd number of 16-byte units */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_name_is_frozen),
        cmocka_unit_test(shipped_names_come_back),
        cmocka_unit_test(planned_names_come_back),
        cmocka_unit_test(changed_names_are_refused),
        cmocka_unit_test(parts_of_names_are_refused),
        cmocka_unit_test(defines_are_frozen),
        cmocka_unit_test(every_field_is_in_name_and_defines),
        cmocka_unit_test(fields_out_of_range_are_invalid),
        cmocka_unit_test(shared_memory_stays_within_the_profile),
        cmocka_unit_test(rows_do_not_collide_in_banks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
