/* SPDX-License-Identifier: Apache-2.0 */
/* sparse_mla_merge() on the host: by its formula, by odd inputs, and against decode over all keys at once. */
#include "host_context.h"
#include "naive.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { PARTS = 5, TOKENS = 3, HEADS = 4, DIM = 24, ROWS = TOKENS * HEADS, PITCH = DIM + 8 };

static uint64_t seed;

static double random_number(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(int32_t)(seed >> 32) * 0x1p-31;
}

static struct {
    _Alignas(16) unsigned char part_out[PARTS * ROWS * PITCH * 4];
    _Alignas(16) unsigned char out[ROWS * PITCH * 4];
    float part_lse[PARTS * ROWS * 2], lse[ROWS * 2], sink[HEADS];
    sparse_mla_merge_args args;
} w;

/* Numbers that are exact in every dtype. */
static void set_part(int part, int row, int dim, double value)
{
    const int64_t element = ((int64_t)part * ROWS + row) * PITCH + dim;
    const float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, 4);
    uint16_t half = (uint16_t)(bits >> 16);
    if (w.args.part_dtype == SPARSE_MLA_F32) {
        memcpy(w.part_out + 4 * element, &single, 4);
        return;
    }
    if (w.args.part_dtype == SPARSE_MLA_F16)
        half = (uint16_t)((bits >> 16 & 0x8000) | (isnan(value) ? 0x7E00
                                                   : value == 0 ? 0
                                                                : (bits >> 13 & 0x3FFFF) - (112 << 10)));
    memcpy(w.part_out + 2 * element, &half, 2);
}

static double part_value(int part, int row, int dim)
{
    return naive_number(w.part_out, w.args.part_dtype, ((int64_t)part * ROWS + row) * PITCH + dim);
}

static float *part_lse(int part, int row)
{
    return &w.part_lse[(part * ROWS + row) * 2];
}

/* Everything that must not be read or written is NaN. */
static void fill(int part_dtype, int out_dtype)
{
    memset(&w, 0xFF, sizeof w);
    sparse_mla_merge_args_init(&w.args);
    w.args.num_parts = PARTS;
    w.args.num_tokens = TOKENS;
    w.args.num_heads = HEADS;
    w.args.value_dim = DIM;
    w.args.part_dtype = part_dtype;
    w.args.out_dtype = out_dtype;
    w.args.part_out = w.part_out;
    w.args.part_out_stride = ROWS * PITCH;
    w.args.part_out_token_stride = HEADS * PITCH;
    w.args.part_out_head_stride = PITCH;
    w.args.part_lse = w.part_lse;
    w.args.part_lse_stride = ROWS * 2;
    w.args.part_lse_token_stride = HEADS * 2;
    w.args.part_lse_head_stride = 2;
    w.args.out = w.out;
    w.args.out_token_stride = HEADS * PITCH;
    w.args.out_head_stride = PITCH;
    w.args.lse = w.lse;
    w.args.lse_token_stride = HEADS * 2;
    w.args.lse_head_stride = 2;
    for (int part = 0; part < PARTS; part++)
        for (int row = 0; row < ROWS; row++) {
            *part_lse(part, row) = (float)(8 * random_number());
            for (int dim = 0; dim < DIM; dim++)
                set_part(part, row, dim, (1 + floor(random_number() * 64)) / 64);
        }
    for (int head = 0; head < HEADS; head++)
        w.sink[head] = (float)(8 * random_number());
}

static double natural_lse(int part, int row)
{
    const double lse = (double)*part_lse(part, row);
    if (isnan(lse) || lse == (double)INFINITY)
        return (double)-INFINITY;
    return w.args.flags & SPARSE_MLA_PART_LSE_BASE2 ? lse * log(2) : lse;
}

static void check_element(int row, int dim, double expected)
{
    const double got = naive_number(w.out, w.args.out_dtype, (int64_t)row * PITCH + dim);
    const double tolerance = w.args.out_dtype == SPARSE_MLA_F32   ? 2e-6
                             : w.args.out_dtype == SPARSE_MLA_F16 ? 1e-3
                                                                  : 5e-3;
    if (!(fabs(got - expected) <= tolerance * (0.1 + fabs(expected))))
        fail_msg("row %d, dim %d: %g, not %g", row, dim, got, expected);
}

static double expected_lse(double lse, double sink, bool empty)
{
    double result = lse;
    if (w.args.flags & SPARSE_MLA_LSE_WITH_SINK && w.args.sink)
        result = empty ? sink : isinf(sink) ? fmax(lse, sink) : log(exp(lse) + exp(sink));
    else if (empty && w.args.flags & SPARSE_MLA_LSE_EMPTY_POSINF)
        result = (double)INFINITY;
    return w.args.flags & SPARSE_MLA_LSE_BASE2 ? result / log(2) : result;
}

static void check_row(int row)
{
    double sum = 0;
    const double sink = w.args.sink ? (double)w.sink[row % HEADS] : (double)-INFINITY;
    for (int part = 0; part < PARTS; part++)
        sum += exp(natural_lse(part, row));
    for (int dim = 0; dim < PITCH; dim++) {
        double value = 0;
        if (dim >= DIM) {
            assert_true(isnan(naive_number(w.out, w.args.out_dtype, (int64_t)row * PITCH + dim)));
            continue;
        }
        for (int part = 0; part < PARTS; part++)
            if (natural_lse(part, row) > (double)-INFINITY)
                value += exp(natural_lse(part, row)) * part_value(part, row, dim) / (sum + exp(sink));
        check_element(row, dim, isinf(sink) && sink > 0 ? 0 : value);
    }
    const double lse = expected_lse(log(sum), sink, sum == 0), got = (double)w.lse[2 * row];
    assert_true(w.args.lse ? got == lse || fabs(got - lse) < 1e-5 : isnan(got));
    assert_true(isnan(w.lse[2 * row + 1]));
}

static void merge(void)
{
    if (sparse_mla_merge(context, &w.args, NULL) != SPARSE_MLA_OK)
        fail_msg("%s", sparse_mla_last_error());
}

static void check(void)
{
    merge();
    for (int row = 0; row < ROWS; row++)
        check_row(row);
}

static void every_dtype_and_flag(void **state)
{
    (void)state;
    for (int dtypes = 0; dtypes < 9; dtypes++)
        for (int options = 0; options < 64; options++) {
            fill(dtypes / 3, dtypes % 3);
            w.args.flags = (options & 1 ? SPARSE_MLA_LSE_BASE2 : 0) | (options & 2 ? SPARSE_MLA_LSE_WITH_SINK : 0) |
                           (options & 4 ? SPARSE_MLA_LSE_EMPTY_POSINF : 0) |
                           (options & 8 ? SPARSE_MLA_PART_LSE_BASE2 : 0);
            w.args.sink = options & 16 ? w.sink : NULL;
            w.args.lse = options & 32 ? w.lse : NULL;
            check();
        }
}

/* Empty parts have NaN for output; row 0 has nothing but such parts, row 1 one that is not. */
static void empty_parts_are_not_read(void **state)
{
    static const float empty[] = {-INFINITY, INFINITY, NAN};
    (void)state;
    for (int flags = 0; flags < 8; flags++)
        for (int with_sink = 0; with_sink < 2; with_sink++) {
            fill(SPARSE_MLA_BF16, SPARSE_MLA_F32);
            w.args.flags = (uint32_t)flags;
            w.args.sink = with_sink ? w.sink : NULL;
            for (int row = 0; row < ROWS; row++)
                for (int part = 0; part < PARTS; part++)
                    if (row == 0 || (row == 1 ? part != 3 : random_number() > 0)) {
                        *part_lse(part, row) = empty[(part + row) % 3];
                        for (int dim = 0; dim < DIM; dim++)
                            set_part(part, row, dim, (double)NAN);
                    }
            check();
            for (int dim = 0; dim < DIM; dim++)
                assert_true(naive_number(w.out, SPARSE_MLA_F32, dim) == 0);
        }
}

static void sinks_at_infinity(void **state)
{
    (void)state;
    for (int flags = 0; flags < 4; flags++) {
        fill(SPARSE_MLA_F16, SPARSE_MLA_F32);
        w.args.flags = (uint32_t)flags;
        w.args.sink = w.sink;
        w.sink[0] = INFINITY;
        w.sink[1] = -INFINITY;
        check();
    }
}

static void far_apart_and_large(void **state)
{
    (void)state;
    fill(SPARSE_MLA_F32, SPARSE_MLA_F32);
    for (int part = 0; part < PARTS; part++)
        *part_lse(part, 0) = 1e30f * (float)(part - PARTS); /* the last one wins */
    for (int part = 0; part < PARTS; part++)
        *part_lse(part, 1) = 3e38f;
    merge();
    double sum = 0;
    for (int dim = 0; dim < DIM; dim++)
        check_element(0, dim, part_value(PARTS - 1, 0, dim));
    for (int part = 0; part < PARTS; part++)
        sum += part_value(part, 1, 0) / PARTS;
    check_element(1, 0, sum);
    assert_true(w.lse[0] == -1e30f && w.lse[2] == 3e38f);
}

static void one_part_comes_back(void **state)
{
    (void)state;
    fill(SPARSE_MLA_BF16, SPARSE_MLA_BF16);
    w.args.num_parts = 1;
    w.args.part_out_stride = w.args.part_lse_stride = 0;
    merge();
    for (int row = 0; row < ROWS; row++) {
        assert_memory_equal(w.out + 2 * row * PITCH, w.part_out + 2 * row * PITCH, 2 * DIM);
        assert_true(w.lse[2 * row] == w.part_lse[2 * row]);
    }
}

/* ---- against decode: keys dealt out to ranks, without the sink, give what all keys give with it ---- */

enum { KEYS = 50, RANKS = 3, D_LATENT = 64, D_HEADS = 3 };

static struct {
    _Alignas(16) uint16_t rows[KEYS][D_LATENT];
    _Alignas(16) float q[2 * D_HEADS * D_LATENT];
    _Alignas(16) float out[RANKS + 2][2 * D_HEADS * D_LATENT];
    float lse[RANKS + 2][2 * D_HEADS], sink[D_HEADS];
    int32_t indices[2 * KEYS];
} d;

static void decode(int which, const float *sink, uint32_t flags)
{
    sparse_mla_cache cache;
    sparse_mla_decode_args args;
    sparse_mla_cache_init(&cache);
    cache.format = SPARSE_MLA_FLAT_F16;
    cache.data = d.rows;
    cache.num_slots = KEYS;
    cache.row_stride_bytes = 2 * D_LATENT;
    cache.page_stride_bytes = 64 * 2 * D_LATENT;
    cache.topk = KEYS;
    cache.indices = d.indices;
    cache.indices_request_stride = KEYS;
    sparse_mla_decode_args_init(&args);
    args.num_tokens = 2;
    args.num_heads = D_HEADS;
    args.latent_dim = args.value_dim = D_LATENT;
    args.scale = 0.3f;
    args.flags = flags;
    args.q_dtype = args.out_dtype = SPARSE_MLA_F32;
    args.q_latent = d.q;
    args.q_latent_request_stride = D_HEADS * D_LATENT;
    args.q_latent_head_stride = D_LATENT;
    args.main_cache = &cache;
    args.out = d.out[which];
    args.out_request_stride = D_HEADS * D_LATENT;
    args.out_head_stride = D_LATENT;
    args.lse = d.lse[which];
    args.lse_request_stride = D_HEADS;
    args.lse_head_stride = 1;
    args.sink = sink;
    assert_int_equal(sparse_mla_decode(context, &args, NULL), SPARSE_MLA_OK);
}

static void ranks_together_are_one_decode(void **state)
{
    (void)state;
    for (int key = 0; key < KEYS; key++)
        for (int dim = 0; dim < D_LATENT; dim++)
            d.rows[key][dim] = (uint16_t)(0x3000 + (int)(random_number() * 0x800) + (random_number() < 0 ? 0x8000 : 0));
    for (int i = 0; i < 2 * D_HEADS * D_LATENT; i++)
        d.q[i] = (float)random_number();
    for (int head = 0; head < D_HEADS; head++)
        d.sink[head] = (float)random_number();
    for (int rank = 0; rank < RANKS; rank++) {
        for (int i = 0; i < 2 * KEYS; i++) /* the second token is all the first rank's */
            d.indices[i] = (i < KEYS ? i % RANKS == rank : rank == 0) ? i % KEYS : -1;
        decode(rank, NULL, 0);
    }
    for (int i = 0; i < 2 * KEYS; i++)
        d.indices[i] = i % KEYS;
    decode(RANKS, d.sink, SPARSE_MLA_LSE_WITH_SINK);
    sparse_mla_merge_args args;
    sparse_mla_merge_args_init(&args);
    args.num_parts = RANKS;
    args.num_tokens = 2;
    args.num_heads = D_HEADS;
    args.value_dim = D_LATENT;
    args.flags = SPARSE_MLA_LSE_WITH_SINK;
    args.part_dtype = args.out_dtype = SPARSE_MLA_F32;
    args.part_out = d.out;
    args.part_out_stride = 2 * D_HEADS * D_LATENT;
    args.part_out_token_stride = args.out_token_stride = D_HEADS * D_LATENT;
    args.part_out_head_stride = args.out_head_stride = D_LATENT;
    args.part_lse = d.lse[0];
    args.part_lse_stride = 2 * D_HEADS;
    args.part_lse_token_stride = args.lse_token_stride = D_HEADS;
    args.part_lse_head_stride = args.lse_head_stride = 1;
    args.out = d.out[RANKS + 1];
    args.lse = d.lse[RANKS + 1];
    args.sink = d.sink;
    assert_int_equal(sparse_mla_merge(context, &args, NULL), SPARSE_MLA_OK);
    for (int i = 0; i < 2 * D_HEADS * D_LATENT; i++)
        assert_true(fabsf(d.out[RANKS + 1][i] - d.out[RANKS][i]) < 1e-6f);
    for (int i = 0; i < 2 * D_HEADS; i++)
        assert_true(fabsf(d.lse[RANKS + 1][i] - d.lse[RANKS][i]) < 1e-6f);
}

static void refuses(const char *sentence)
{
    const sparse_mla_status status = sparse_mla_merge(context, &w.args, NULL);
    if (status != SPARSE_MLA_INVALID_ARGUMENT || strcmp(sparse_mla_last_error(), sentence) != 0)
        fail_msg("%d: \"%s\" instead of \"%s\"", status, sparse_mla_last_error(), sentence);
    for (size_t i = 0; i < sizeof w.out; i++)
        assert_int_equal(w.out[i], 0xFF);
}

#define REFUSES(change, sentence)                                                                                      \
    do {                                                                                                               \
        fill(SPARSE_MLA_F32, SPARSE_MLA_BF16);                                                                         \
        change;                                                                                                        \
        refuses(sentence);                                                                                             \
    } while (0)

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    assert_int_equal(sparse_mla_merge(NULL, &w.args, NULL), SPARSE_MLA_INVALID_ARGUMENT);
    assert_int_equal(sparse_mla_merge(context, NULL, NULL), SPARSE_MLA_INVALID_ARGUMENT);
    assert_string_equal(sparse_mla_last_error(), "args is NULL: it is required");
    REFUSES(w.args.struct_size = 0, "args.struct_size is 0: its _init() function sets it to 160");
    REFUSES(w.args.num_parts = 0, "num_parts is 0: it must be at least 1");
    REFUSES(w.args.num_tokens = -1, "num_tokens is -1: 0 or more are supported");
    REFUSES(w.args.num_heads = 0, "num_heads is 0: it must be at least 1");
    REFUSES(w.args.value_dim = 0, "value_dim is 0: it must be a multiple of 8 from 8 to 65536");
    REFUSES(w.args.value_dim = 20, "value_dim is 20: it must be a multiple of 8 from 8 to 65536");
    REFUSES(w.args.value_dim = 65544, "value_dim is 65544: it must be a multiple of 8 from 8 to 65536");
    REFUSES(w.args.flags = SPARSE_MLA_BATCH_INVARIANT, "flags is 0x8: bits 0x8 are not known here");
    REFUSES(w.args.part_dtype = 3, "part_dtype is 3: 0 (bf16), 1 (f16) and 2 (f32) are supported");
    REFUSES(w.args.out_dtype = -1, "out_dtype is -1: 0 (bf16), 1 (f16) and 2 (f32) are supported");
    REFUSES(w.args.reserved = 1, "reserved is 1: it must be 0");
    REFUSES(w.args.part_out_stride = 0, "part_out_stride is 0: it must be at least 24, in elements");
    REFUSES(w.args.part_out_token_stride = 26, "part_out_token_stride is 26: it must be a multiple of 4, in elements");
    REFUSES(w.args.part_out_head_stride = 20, "part_out_head_stride is 20: it must be at least 24, in elements");
    REFUSES(w.args.part_lse_stride = 0, "part_lse_stride is 0: it must be at least 1, in elements");
    REFUSES(w.args.part_lse_token_stride = -1, "part_lse_token_stride is -1: it must be at least 1, in elements");
    REFUSES(w.args.part_lse_head_stride = 0, "part_lse_head_stride is 0: it must be at least 1, in elements");
    REFUSES(w.args.out_token_stride = 28, "out_token_stride is 28: it must be a multiple of 8, in elements");
    REFUSES(w.args.out_head_stride = 16, "out_head_stride is 16: it must be at least 24, in elements");
    REFUSES(w.args.lse_token_stride = 0, "lse_token_stride is 0: it must be at least 1, in elements");
    REFUSES(w.args.lse_head_stride = 0, "lse_head_stride is 0: it must be at least 1, in elements");
    REFUSES(w.args.part_out = NULL, "part_out is NULL: it is required");
    REFUSES(w.args.part_out = (void *)8, "part_out is 0x8: it must be aligned to 16 bytes");
    REFUSES(w.args.part_lse = NULL, "part_lse is NULL: it is required");
    REFUSES(w.args.out = NULL, "out is NULL: it is required");
    REFUSES(w.args.out = (void *)8, "out is 0x8: it must be aligned to 16 bytes");
    REFUSES(w.args.lse = (float *)2, "lse is 0x2: it must be aligned to 4 bytes");
    REFUSES(w.args.sink = (float *)2, "sink is 0x2: it must be aligned to 4 bytes");
}

static void no_token_is_a_success(void **state)
{
    (void)state;
    fill(SPARSE_MLA_F32, SPARSE_MLA_F32);
    w.args.num_tokens = 0;
    w.args.part_out = w.args.out = NULL;
    assert_int_equal(sparse_mla_merge(context, &w.args, NULL), SPARSE_MLA_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_dtype_and_flag),      cmocka_unit_test(empty_parts_are_not_read),
        cmocka_unit_test(sinks_at_infinity),         cmocka_unit_test(far_apart_and_large),
        cmocka_unit_test(one_part_comes_back),       cmocka_unit_test(ranks_together_are_one_decode),
        cmocka_unit_test(bad_arguments_are_refused), cmocka_unit_test(no_token_is_a_success),
    };
    return cmocka_run_group_tests_name("merge", tests, open_context, close_context);
}
