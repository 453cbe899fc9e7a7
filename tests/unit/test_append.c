/* SPDX-License-Identifier: Apache-2.0 */
/* sparse_mla_cache_append() on the host, against the quantisers of quantise.h: whole caches, to the byte. */
#include "host_context.h"
#include "quantise.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { ROWS = 24, SLOTS = 40, UNTOUCHED = 0xA5 };

static uint64_t seed;

static uint32_t random_bits(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 32);
}

static float random_number(void)
{
    return (float)((int32_t)random_bits()) * 0x1p-31f;
}

/* One case: a cache, the rows for it, and the cache as it must become. */
struct world {
    sparse_mla_cache cache, expected;
    sparse_mla_cache_append_args args;
    size_t bytes;
    float latent[ROWS][512], rope[ROWS][64]; /* as the source dtype rounds them */
    unsigned char latent_source[ROWS * 600 * 4], rope_source[ROWS * 100 * 4];
    int64_t slots[ROWS];
    uint32_t faults, expected_faults;
};

/* Blocks of every magnitude, with zeros, subnormals, infinities and NaN in some. */
static float make_value(int row, int dim)
{
    static const float sizes[] = {1, 1e-3f, 300, 1e-30f, 2e-38f, 3e-42f, 1e30f, 0, 5e-6f, 7e4f};
    const float size = sizes[(row + dim / 32) % 10];
    if (row >= 12 && random_bits() % 61 == 0) {
        static const float odd[] = {INFINITY, -INFINITY, NAN, 3.4028234e38f, -0.0f, 1e-45f};
        return odd[random_bits() % 6];
    }
    return random_bits() % 16 == 0 ? size * (float)(1 << random_bits() % 10) : size * random_number();
}

static float store_value(unsigned char *source, int dtype, int64_t element, float value)
{
    if (dtype == SPARSE_MLA_F32) {
        memcpy(source + 4 * element, &value, 4);
        return value;
    }
    const uint16_t half = quantise_16(value, dtype);
    memcpy(source + 2 * element, &half, 2);
    return (float)naive_number(&half, dtype, 0);
}

static void fill_source(struct world *w)
{
    for (int row = 0; row < ROWS; row++) {
        for (int i = 0; i < w->args.latent_dim; i++)
            w->latent[row][i] =
                store_value(w->latent_source, w->args.src_dtype, row * w->args.latent_stride + i, make_value(row, i));
        for (int i = 0; i < w->args.rope_dim; i++)
            w->rope[row][i] =
                store_value(w->rope_source, w->args.src_dtype, row * w->args.rope_stride + i, make_value(row, i + 5));
        w->slots[row] = row % 8 == 7 ? -1 - row : (row * 7 + 3) % SLOTS;
    }
    w->slots[2] = SLOTS;
    w->slots[9] = INT64_MAX;
    w->slots[12] = INT64_MIN;
    w->expected_faults = 2;
}

static struct world *make_world(int format, int latent_dim, int rope_dim, int page_size, int dtype)
{
    struct world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    const int record = format == SPARSE_MLA_FP8_DS_MLA        ? 656
                       : format == SPARSE_MLA_FP8_DS_MLA_NOPE ? 528
                       : format == SPARSE_MLA_FLAT_E4M3       ? 576
                       : format == SPARSE_MLA_FP8_V4          ? 576
                       : format == SPARSE_MLA_Q8_0            ? 612
                                                              : 2 * (latent_dim + rope_dim);
    sparse_mla_cache_init(&w->cache);
    w->cache.format = format;
    w->cache.page_size = page_size;
    w->cache.num_slots = SLOTS;
    w->cache.row_stride_bytes = format == SPARSE_MLA_FP8_V4 ? 576 : record + 48;
    w->cache.page_stride_bytes = (page_size * (w->cache.row_stride_bytes + 8) + 15) / 16 * 16 + 64;
    w->cache.tensor_scale = 0.37f;
    w->bytes = (size_t)((SLOTS + page_size - 1) / page_size * w->cache.page_stride_bytes);
    w->expected = w->cache;
    w->cache.data = malloc(w->bytes);
    w->expected.data = malloc(w->bytes);
    memset((void *)w->cache.data, UNTOUCHED, w->bytes);
    memset((void *)w->expected.data, UNTOUCHED, w->bytes);
    sparse_mla_cache_append_args_init(&w->args);
    w->args.num_rows = ROWS;
    w->args.latent_dim = latent_dim;
    w->args.rope_dim = rope_dim;
    w->args.src_dtype = dtype;
    w->args.latent = w->latent_source;
    w->args.latent_stride = latent_dim + 37;
    w->args.rope = rope_dim ? w->rope_source : NULL;
    w->args.rope_stride = rope_dim + 13;
    w->args.slots = w->slots;
    w->args.cache = &w->cache;
    w->args.fault_count = &w->faults;
    fill_source(w);
    return w;
}

static void free_world(struct world *w)
{
    free((void *)w->cache.data);
    free((void *)w->expected.data);
    free(w);
}

static void check_world(struct world *w, int expected_rule)
{
    for (int row = 0; row < ROWS; row++)
        if (w->slots[row] >= 0 && w->slots[row] < SLOTS)
            quantise_row(&w->expected, w->slots[row], w->latent[row], w->args.latent_dim, w->rope[row],
                         w->args.rope_dim, expected_rule);
    if (sparse_mla_cache_append(context, &w->args, NULL) != SPARSE_MLA_OK)
        fail_msg("%s", sparse_mla_last_error());
    const unsigned char *got = w->cache.data, *expected = w->expected.data;
    for (size_t i = 0; i < w->bytes; i++)
        if (got[i] != expected[i])
            fail_msg("format %d, dtype %d, rule %d, page size %d: byte %zu (record %zu + %zu) is %02x, not %02x",
                     w->cache.format, w->args.src_dtype, w->args.scale_rule, w->cache.page_size, i,
                     i / (size_t)w->cache.row_stride_bytes, i % (size_t)w->cache.row_stride_bytes, got[i], expected[i]);
    assert_int_equal(w->faults, w->expected_faults);
    free_world(w);
}

static void each_page_and_dtype(int format, int latent_dim, int rope_dim, int rule, int expected_rule)
{
    static const int page_sizes[] = {1, 7, 64};
    for (int dtype = SPARSE_MLA_BF16; dtype <= SPARSE_MLA_F32; dtype++)
        for (size_t i = 0; i < sizeof page_sizes / sizeof *page_sizes; i++) {
            struct world *w = make_world(format, latent_dim, rope_dim, page_sizes[i], dtype);
            w->args.scale_rule = rule;
            check_world(w, expected_rule);
        }
}

static void fp8_ds_mla(void **state)
{
    (void)state;
    for (int rule = SPARSE_MLA_SCALE_DEFAULT; rule <= SPARSE_MLA_SCALE_V4; rule++) {
        const int expected = rule == SPARSE_MLA_SCALE_DEFAULT ? SPARSE_MLA_SCALE_AMAX : rule;
        each_page_and_dtype(SPARSE_MLA_FP8_DS_MLA, 512, 64, rule, expected);
        each_page_and_dtype(SPARSE_MLA_FP8_DS_MLA, 512, 0, rule, expected); /* leaves the tail alone */
        each_page_and_dtype(SPARSE_MLA_FP8_DS_MLA_NOPE, 512, 0, rule, expected);
    }
}

static void fp8_v4(void **state)
{
    (void)state;
    each_page_and_dtype(SPARSE_MLA_FP8_V4, 448, 64, SPARSE_MLA_SCALE_DEFAULT, SPARSE_MLA_SCALE_V4);
    each_page_and_dtype(SPARSE_MLA_FP8_V4, 448, 64, SPARSE_MLA_SCALE_V4, SPARSE_MLA_SCALE_V4);
    each_page_and_dtype(SPARSE_MLA_FP8_V4, 448, 64, SPARSE_MLA_SCALE_POW2, SPARSE_MLA_SCALE_POW2);
}

static void flat_rows(void **state)
{
    static const int latents[] = {64, 192, 512}, ropes[] = {0, 32, 64};
    (void)state;
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++) {
            each_page_and_dtype(SPARSE_MLA_FLAT_BF16, latents[i], ropes[k], 0, 0);
            each_page_and_dtype(SPARSE_MLA_FLAT_F16, latents[i], ropes[k], 0, 0);
        }
}

static void flat_e4m3_and_q8_0(void **state)
{
    (void)state;
    each_page_and_dtype(SPARSE_MLA_FLAT_E4M3, 512, 64, 0, 0);
    each_page_and_dtype(SPARSE_MLA_Q8_0, 512, 64, 0, 0);
}

static void rope_first(void **state)
{
    (void)state;
    for (int format = SPARSE_MLA_FLAT_BF16; format <= SPARSE_MLA_Q8_0; format++) {
        if (format == SPARSE_MLA_FP8_V4)
            continue;
        struct world *w = make_world(format, 512, 64, 7, SPARSE_MLA_F32);
        w->cache.rope_offset_bytes = w->expected.rope_offset_bytes = 0;
        w->cache.latent_offset_bytes = w->expected.latent_offset_bytes = format == SPARSE_MLA_Q8_0 ? 68 : 128;
        if (format == SPARSE_MLA_FLAT_E4M3)
            w->cache.row_stride_bytes = w->expected.row_stride_bytes = 640;
        w->cache.page_stride_bytes = w->expected.page_stride_bytes = 7 * w->cache.row_stride_bytes;
        check_world(w, 0);
    }
}

/* Every float near the borders of e4m3, and the largest ones, through a scale of 1. */
static void e4m3_rounds_to_nearest_even(void **state)
{
    struct world *w = make_world(SPARSE_MLA_FLAT_E4M3, 512, 64, 64, SPARSE_MLA_F32);
    (void)state;
    w->cache.tensor_scale = w->expected.tensor_scale = 1;
    for (int i = 0; i < 126; i++) {
        const double low = naive_e4m3((uint8_t)i), high = naive_e4m3((uint8_t)(i + 1));
        const float middle = (float)((low + high) / 2);
        const float near[4] = {middle, nextafterf(middle, 0), nextafterf(middle, INFINITY), -middle};
        for (int k = 0; k < 4; k++)
            w->latent[0][4 * i + k] = store_value(w->latent_source, SPARSE_MLA_F32, 4 * i + k, near[k]);
    }
    const float large[8] = {448, 463.9f, 464, 465, 1e30f, INFINITY, -INFINITY, NAN};
    for (int k = 0; k < 8; k++)
        w->latent[0][504 + k] = store_value(w->latent_source, SPARSE_MLA_F32, 504 + k, large[k]);
    check_world(w, 0);
}

/* Scales just below, at and above powers of two. */
static void powers_of_two_are_exact(void **state)
{
    (void)state;
    for (int rule = SPARSE_MLA_SCALE_POW2; rule <= SPARSE_MLA_SCALE_V4; rule++)
        for (int exponent = -24; exponent < 119; exponent += 7) {
            struct world *w = make_world(SPARSE_MLA_FP8_DS_MLA, 512, 64, 64, SPARSE_MLA_F32);
            const float exact = (float)ldexp(448, exponent);
            const float near[4] = {exact, nextafterf(exact, 0), nextafterf(exact, INFINITY), 1.5f * exact};
            for (int i = 0; i < 512; i++)
                w->latent[0][i] =
                    store_value(w->latent_source, SPARSE_MLA_F32, i, i % 128 == 77 ? near[i / 128] : exact / 3);
            w->args.scale_rule = rule;
            check_world(w, rule);
        }
}

/* What is written is what the reader of the same format understands. */
static void rows_come_back(void **state)
{
    static const struct {
        int format, latent_dim, rope_dim;
        double tolerance; /* of the largest number of its block */
    } cases[] = {
        {SPARSE_MLA_FP8_DS_MLA, 512, 64, 0x1p-4}, {SPARSE_MLA_FP8_DS_MLA_NOPE, 512, 0, 0x1p-4},
        {SPARSE_MLA_FLAT_BF16, 512, 64, 0x1p-8},  {SPARSE_MLA_FLAT_F16, 512, 64, 0x1p-11},
        {SPARSE_MLA_FLAT_E4M3, 512, 64, 0x1p-4},  {SPARSE_MLA_FP8_V4, 448, 64, 0x1p-4},
        {SPARSE_MLA_Q8_0, 512, 64, 1.01 / 127},
    };
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct world *w = make_world(cases[c].format, cases[c].latent_dim, cases[c].rope_dim, 7, SPARSE_MLA_F32);
        sparse_mla_decode_args args;
        double row[NAIVE_DIMS_MAX];
        for (int i = 0; i < w->args.latent_dim; i++)
            w->latent[0][i] = store_value(w->latent_source, SPARSE_MLA_F32, i, random_number());
        for (int i = 0; i < w->args.rope_dim; i++)
            w->rope[0][i] = store_value(w->rope_source, SPARSE_MLA_F32, i, random_number());
        w->args.num_rows = 1;
        assert_int_equal(sparse_mla_cache_append(context, &w->args, NULL), SPARSE_MLA_OK);
        sparse_mla_decode_args_init(&args);
        args.latent_dim = w->args.latent_dim;
        args.rope_dim = w->args.rope_dim;
        naive_row(&args, &w->cache, w->slots[0], row);
        for (int i = 0; i < args.latent_dim + args.rope_dim; i++) {
            const float value = i < args.latent_dim ? w->latent[0][i] : w->rope[0][i - args.latent_dim];
            assert_true(fabs(row[i] - (double)value) <= cases[c].tolerance);
        }
        free_world(w);
    }
}

/* ---- refusals ---- */

static void refuses(struct world *w, const char *sentence)
{
    const sparse_mla_status status = sparse_mla_cache_append(context, &w->args, NULL);
    if (status != SPARSE_MLA_INVALID_ARGUMENT || strcmp(sparse_mla_last_error(), sentence) != 0)
        fail_msg("%d: \"%s\" instead of \"%s\"", status, sparse_mla_last_error(), sentence);
    for (size_t i = 0; i < w->bytes; i++)
        assert_int_equal(((const unsigned char *)w->cache.data)[i], UNTOUCHED);
}

#define REFUSES(format, latent_dim, rope_dim, change, sentence)                                                        \
    do {                                                                                                               \
        struct world *w = make_world(format, latent_dim, rope_dim, 7, SPARSE_MLA_F32);                                 \
        const void *const data = w->cache.data;                                                                        \
        change;                                                                                                        \
        if (w->cache.data == data) {                                                                                   \
            refuses(w, sentence);                                                                                      \
        } else {                                                                                                       \
            assert_int_equal(sparse_mla_cache_append(context, &w->args, NULL), SPARSE_MLA_INVALID_ARGUMENT);           \
            assert_string_equal(sparse_mla_last_error(), sentence);                                                    \
            w->cache.data = data;                                                                                      \
        }                                                                                                              \
        free_world(w);                                                                                                 \
    } while (0)

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    assert_int_equal(sparse_mla_cache_append(NULL, NULL, NULL), SPARSE_MLA_INVALID_ARGUMENT);
    assert_string_equal(sparse_mla_last_error(), "context is NULL; sparse_mla_create() makes one");
    assert_int_equal(sparse_mla_cache_append(context, NULL, NULL), SPARSE_MLA_INVALID_ARGUMENT);
    assert_string_equal(sparse_mla_last_error(), "args is NULL: it is required");
    REFUSES(0, 512, 64, w->args.struct_size = 80, "args.struct_size is 80: its _init() function sets it to 88");
    REFUSES(0, 512, 64, w->args.cache = NULL, "cache is NULL: it is required");
    REFUSES(0, 512, 64, w->cache.struct_size = 8, "cache.struct_size is 8: its _init() function sets it to 120");
    REFUSES(0, 512, 64, w->args.num_rows = -1, "num_rows is -1: 0 or more are supported");
    REFUSES(0, 512, 64, w->args.reserved = 1, "reserved is 1: it must be 0");
    REFUSES(0, 512, 64, w->args.latent_dim = 448, "latent_dim is 448: fp8_ds_mla has 512");
    REFUSES(0, 512, 64, w->args.rope_dim = 32, "rope_dim is 32: fp8_ds_mla has 64 or 0");
    REFUSES(0, 512, 64, w->cache.format = 7, "cache.format is 7: it must be a sparse_mla_format, 0 to 6");
    REFUSES(0, 512, 64, w->cache.row_stride_bytes = 640,
            "cache.row_stride_bytes is 640: it must be at least 656, in bytes");
    REFUSES(0, 512, 64, w->args.src_dtype = 3, "src_dtype is 3: 0 (bf16), 1 (f16) and 2 (f32) are supported");
    REFUSES(0, 512, 64, w->args.scale_rule = 4, "scale_rule is 4: it must be a sparse_mla_scale_rule, 0 to 3");
    REFUSES(0, 512, 64, w->args.scale_rule = -1, "scale_rule is -1: it must be a sparse_mla_scale_rule, 0 to 3");
    REFUSES(SPARSE_MLA_FLAT_BF16, 512, 64, w->args.scale_rule = SPARSE_MLA_SCALE_POW2,
            "scale_rule is 2: flat_bf16 takes only 0 (DEFAULT)");
    REFUSES(SPARSE_MLA_Q8_0, 512, 64, w->args.scale_rule = SPARSE_MLA_SCALE_AMAX,
            "scale_rule is 1: q8_0 takes only 0 (DEFAULT)");
    REFUSES(SPARSE_MLA_FP8_V4, 448, 64, w->args.scale_rule = SPARSE_MLA_SCALE_AMAX,
            "scale_rule is 1 (AMAX): fp8_v4 has powers of two, which 0 (DEFAULT), 2 (POW2) and 3 (V4) give");
    REFUSES(SPARSE_MLA_FLAT_E4M3, 512, 64, w->cache.tensor_scale = 0,
            "cache.tensor_scale is 0: rows are divided by it");
    REFUSES(0, 512, 64, w->args.latent_stride = 511, "latent_stride is 511: it must be at least 512, in elements");
    REFUSES(0, 512, 64, w->args.rope_stride = -64, "rope_stride is -64: it must be at least 64, in elements");
    REFUSES(0, 512, 64, w->args.latent = NULL, "latent is NULL: it is required");
    REFUSES(0, 512, 64, w->args.latent = (void *)2, "latent is 0x2: it must be aligned to 4 bytes");
    REFUSES(0, 512, 64, w->args.rope = NULL, "rope is NULL: it is required");
    REFUSES(0, 512, 64, w->args.slots = NULL, "slots is NULL: it is required");
    REFUSES(0, 512, 64, w->args.slots = (int64_t *)4, "slots is 0x4: it must be aligned to 8 bytes");
    REFUSES(0, 512, 64, w->args.fault_count = (uint32_t *)2, "fault_count is 0x2: it must be aligned to 4 bytes");
    REFUSES(0, 512, 64, w->cache.data = NULL, "cache.data is NULL: it is required");
}

static void no_row_is_a_success(void **state)
{
    struct world *w = make_world(0, 512, 64, 7, SPARSE_MLA_F32);
    (void)state;
    w->args.num_rows = 0;
    w->args.latent = w->args.rope = w->args.slots = NULL;
    assert_int_equal(sparse_mla_cache_append(context, &w->args, NULL), SPARSE_MLA_OK);
    free_world(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fp8_ds_mla),
        cmocka_unit_test(fp8_v4),
        cmocka_unit_test(flat_rows),
        cmocka_unit_test(flat_e4m3_and_q8_0),
        cmocka_unit_test(rope_first),
        cmocka_unit_test(e4m3_rounds_to_nearest_even),
        cmocka_unit_test(powers_of_two_are_exact),
        cmocka_unit_test(rows_come_back),
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(no_row_is_a_success),
    };
    return cmocka_run_group_tests_name("append", tests, open_context, close_context);
}
