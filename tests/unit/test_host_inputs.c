/* SPDX-License-Identifier: Apache-2.0 */
/* The host backend on what callers should not or seldom hand over: masks, garbage, misses, NaN, nothing at all. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "host_world.h"

#include <limits.h>

static void masks_holes_and_duplicates(void **state)
{
    struct shape shape = small(SPARSE_MLA_FP8_DS_MLA);
    struct world w;
    (void)state;
    build(&w, &shape);
    int32_t *row[4];
    for (int t = 0; t < 4; t++)
        row[t] = w.indices[0] + t / 2 * w.cache[0].indices_request_stride + t % 2 * w.cache[0].indices_token_stride;
    for (int j = 0; j < 70; j++) {
        row[0][j] = j < 66 ? -1 : j;               /* whole tiles masked in front */
        row[1][j] = 5;                             /* one key, seventy times */
        row[2][j] = INT_MIN;                       /* nothing */
        row[3][j] = j % 3 ? 150 + j : INT_MAX - j; /* nothing, with faults */
    }
    check(&w);
    assert_int_equal(w.faults, 2 * 70);
    w.args.fault_count = NULL;
    run(&w);
    compare(&w);
    destroy(&w);
}

static void columns_past_the_length_are_garbage(void **state)
{
    static const int32_t lengths[] = {-3, 0, 33, INT_MAX}, of_requests[] = {17, 1000, 5};
    static const int32_t requests[] = {2, 0, 1, 2};
    struct shape shape = small(SPARSE_MLA_FP8_DS_MLA);
    struct world w;
    (void)state;
    build(&w, &shape);
    set_lengths(&w, lengths, SPARSE_MLA_LENGTH_PER_TOKEN);
    for (int t = 0; t < 3; t++)
        for (int j = lengths[t] < 0 ? 0 : lengths[t]; j < 70; j++)
            w.indices[0][t / 2 * w.cache[0].indices_request_stride + t % 2 * w.cache[0].indices_token_stride + j] =
                j % 2 ? INT_MAX : 200;
    check(&w);
    assert_int_equal(w.faults, 0);
    set_lengths(&w, of_requests, SPARSE_MLA_LENGTH_PER_REQUEST);
    check(&w);
    w.args.request_of_token = requests;
    w.args.num_requests = 3;
    check(&w);
    destroy(&w);
}

static void requests_outside_the_table_are_empty_rows(void **state)
{
    static const int32_t requests[] = {-1, 1, 2, INT_MAX};
    struct shape shape = small(SPARSE_MLA_FP8_DS_MLA);
    struct world w;
    (void)state;
    shape.cache[0].table = true;
    build(&w, &shape);
    w.args.request_of_token = requests;
    check(&w);
    assert_true(isinf(lse_at(&w, 0, 0)) && isfinite(lse_at(&w, 1, 0)));
    assert_true(isinf(lse_at(&w, 2, 0)) && isinf(lse_at(&w, 3, 0)));
    w.args.request_of_token = NULL;
    w.args.num_requests = 1;
    check(&w);
    assert_true(isfinite(lse_at(&w, 1, 0)) && isinf(lse_at(&w, 2, 0)));
    destroy(&w);
}

static void table_misses_are_masked_and_counted(void **state)
{
    struct shape shape = small(SPARSE_MLA_FP8_DS_MLA);
    struct world w;
    (void)state;
    shape.cache[0].table = true;
    shape.cache[0].page_size = 7;
    build(&w, &shape);
    w.faults = 0xFFFFFFFE; /* wraps as any counter */
    w.table[0][0] = -1;
    w.table[0][1] = INT_MIN;
    w.table[0][2] = INT_MAX;                            /* a slot past 2^31 */
    w.table[0][3] = 21;                                 /* the last page, cut off by num_slots */
    w.table[0][4] = 613566757;                          /* times 7 is 2^32 + 3 */
    w.indices[0][0] = INT_MAX;                          /* a position past the table's row */
    w.indices[0][1] = 7 * w.cache[0].block_table_width; /* the first such */
    w.indices[0][2] = 3 * 7 + 6;
    for (int j = 3; j < 12; j++)
        w.indices[0][j] = 2 * (j - 3);
    check(&w);
    assert_in_range(w.faults + 2, 3 + 9, 4 * 70);
    destroy(&w);
}

/* One empty token, every combination of LSE flags, sinks of every kind or none. */
static void sinks_and_lse_flags(void **state)
{
    static const int32_t lengths[] = {70, 0, 40, 1};
    static const float sinks[] = {-INFINITY, INFINITY, 0, -80, 80, 1e30f, -1e30f};
    (void)state;
    for (uint32_t flags = 0; flags < 16; flags++) {
        struct shape shape = small(SPARSE_MLA_FP8_DS_MLA);
        struct world w;
        shape.sink = flags & 8;
        build(&w, &shape);
        memcpy(w.sink, sinks, sizeof sinks);
        w.args.flags = flags & 7;
        set_lengths(&w, lengths, SPARSE_MLA_LENGTH_PER_TOKEN);
        check(&w);
        w.args.lse = NULL;
        check(&w);
        destroy(&w);
    }
}

static void empty_rows_are_zero(void **state)
{
    static const int32_t lengths[4] = {0};
    struct shape shape = small(SPARSE_MLA_FP8_DS_MLA);
    struct world w;
    (void)state;
    build(&w, &shape);
    w.sink[3] = NAN;
    set_lengths(&w, lengths, SPARSE_MLA_LENGTH_PER_TOKEN);
    run(&w);
    for (int t = 0; t < 4; t++)
        for (int h = 0; h < 11; h++) {
            assert_true(lse_at(&w, t, h) == -INFINITY);
            for (int i = 0; i < 512; i++)
                assert_true(naive_number(w.args.out, SPARSE_MLA_F32, out_at(&w, t, h) + i) == 0);
        }
    w.args.flags = SPARSE_MLA_LSE_EMPTY_POSINF;
    run(&w);
    assert_true(lse_at(&w, 3, 10) == INFINITY);
    w.args.flags |= SPARSE_MLA_LSE_WITH_SINK | SPARSE_MLA_LSE_BASE2;
    run(&w);
    assert_true(fabs((double)lse_at(&w, 3, 10) - (double)w.sink[10] / log(2)) < 1e-6);
    destroy(&w);
}

static void nan_reaches_only_the_tokens_that_select_it(void **state)
{
    static const uint32_t bad[] = {0x7FC00000, 0x7F800000, 0xFF800000}; /* NaN, inf, -inf as a scale */
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct shape shape = small(SPARSE_MLA_FP8_DS_MLA);
        struct world w;
        build(&w, &shape);
        for (int t = 0; t < 4; t++)
            for (int j = 0; j < 70; j++)
                w.indices[0][t / 2 * w.cache[0].indices_request_stride + t % 2 * w.cache[0].indices_token_stride + j] =
                    1 + (t == 2 ? 0 : j);
        w.cache[0].data = memcpy((void *)w.cache[0].data, w.clean[0], w.cache_bytes[0]);
        w.indices[0][w.cache[0].indices_request_stride + 69] = 100;
        memcpy(naive_record(&w.cache[0], 100) + 512 + 8, &bad[i], 4);
        memcpy(naive_record(&w.cache[0], 0) + 512, &bad[i], 4);
        naive_decode(&w.args, w.want, w.want_lse);
        run(&w);
        for (int h = 0; h < 11; h++) {
            assert_true(isnan(naive_number(w.args.out, SPARSE_MLA_F32, out_at(&w, 2, h) + 511 - 128)));
            assert_true(!isfinite(lse_at(&w, 2, h)));
            for (int j = 0; j < 512; j++) {
                assert_true(isfinite(naive_number(w.args.out, SPARSE_MLA_F32, out_at(&w, 1, h) + j)));
                assert_true(isfinite(naive_number(w.args.out, SPARSE_MLA_F32, out_at(&w, 3, h) + j)));
            }
        }
        destroy(&w);
    }
}

/* Infinity in a rope reaches scores only: keys at -inf weigh nothing, even where a block has no others. */
static void scores_of_minus_infinity_weigh_nothing(void **state)
{
    enum { KEYS = 40 };
    struct shape shape = small(SPARSE_MLA_FP8_DS_MLA);
    struct world w;
    int finite = 0;
    (void)state;
    build(&w, &shape);
    for (int j = 0; j < KEYS; j++) {
        w.indices[0][j] = j;
        put(w.clean[0] + j * w.cache[0].row_stride_bytes + 528, SPARSE_MLA_BF16, 0, (double)-INFINITY);
    }
    for (int j = KEYS; j < 70; j++)
        w.indices[0][j] = j;
    check(&w);
    for (int h = 0; h < 11; h++)
        finite += isfinite(lse_at(&w, 0, h));
    assert_in_range(finite, 1, 10); /* the others have a negative query there */
    destroy(&w);
}

/* A row whose every score is -inf: an empty one, as on the GPU, sink and flags included. */
static void rows_of_minus_infinity_are_empty(void **state)
{
    (void)state;
    for (uint32_t flags = 0; flags < 16; flags++) {
        struct shape shape = small(SPARSE_MLA_FLAT_BF16);
        struct world w;
        int empty = 0;
        shape.sink = flags & 8;
        build(&w, &shape);
        w.args.flags = flags & 7;
        w.sink[1] = INFINITY;
        w.sink[2] = -INFINITY;
        for (int slot = 0; slot < 150; slot++)
            put(w.clean[0] + (naive_record(&w.cache[0], slot) - (const unsigned char *)w.cache[0].data) + 1024,
                SPARSE_MLA_BF16, 5, (double)-INFINITY);
        for (int t = 0; t < 4; t++)
            for (int h = 0; h < 11; h++) { /* positive: every score is -inf */
                const int64_t at = t / 2 * w.args.q_rope_request_stride + t % 2 * w.args.q_rope_token_stride +
                                   h * w.args.q_rope_head_stride + 5;
                ((float *)(uintptr_t)w.args.q_rope)[at] = 1;
            }
        check(&w);
        for (int h = 0; h < 11; h++)
            for (int i = 0; i < 512; i++)
                empty += naive_number(w.args.out, SPARSE_MLA_F32, out_at(&w, 3, h) + i) == 0;
        assert_int_equal(empty, 11 * 512);
        destroy(&w);
    }
}

static void nan_sinks_reach_out_and_lse(void **state)
{
    static const int32_t lengths[] = {70, 0, 40, 1};
    (void)state;
    for (uint32_t flags = 0; flags < 8; flags++) {
        struct shape shape = small(SPARSE_MLA_FP8_DS_MLA);
        struct world w;
        build(&w, &shape);
        w.sink[3] = NAN;
        w.args.flags = flags;
        set_lengths(&w, lengths, SPARSE_MLA_LENGTH_PER_TOKEN);
        check(&w);
        const bool with_sink = flags & SPARSE_MLA_LSE_WITH_SINK;
        assert_true(isnan(naive_number(w.args.out, SPARSE_MLA_F32, out_at(&w, 0, 3))));
        assert_true(naive_number(w.args.out, SPARSE_MLA_F32, out_at(&w, 1, 3)) == 0); /* an empty row */
        assert_int_equal(isnan(lse_at(&w, 0, 3)) != 0, with_sink);
        assert_int_equal(isnan(lse_at(&w, 1, 3)) != 0, with_sink);
        assert_true(!isnan(naive_number(w.args.out, SPARSE_MLA_F32, out_at(&w, 0, 4))));
        destroy(&w);
    }
}

/* Whatever the format: NaN in row 0, in every other row that nobody selects, and behind what is read of the others. */
static void row_0_is_not_read_for_masked_keys(void **state)
{
    static const int32_t lengths[] = {70, -1, 40, 0};
    (void)state;
    for (int format = 0; format < 2 * FORMATS; format++) {
        struct shape shape = small(format / 2);
        struct world w;
        shape.caches = 1 + format % 2;
        build(&w, &shape);
        for (int c = 0; c < shape.caches; c++)
            for (int j = 0; j < 2 * (int)w.cache[c].indices_request_stride; j++)
                if (w.indices[c][j] == 0)
                    w.indices[c][j] = -1;
        set_lengths(&w, lengths, SPARSE_MLA_LENGTH_PER_TOKEN);
        w.indices[0][9] = 150; /* masked too, and a fault */
        check(&w);
        for (int h = 0; h < 11; h++)
            assert_true(isfinite(lse_at(&w, 0, h)) && isfinite(lse_at(&w, 2, h)));
        destroy(&w);
    }
}

/* A NaN of every kind that a record can have, in one row: it is the token's that selects it. */
static void nan_of_every_format_stays_with_its_token(void **state)
{
    (void)state;
    for (int format = 0; format < FORMATS; format++)
        for (int where = 0; where < 3; where++) {
            struct shape shape = small(format);
            struct world w;
            build(&w, &shape);
            for (int t = 0; t < 4; t++)
                for (int j = 0; j < 70; j++)
                    w.indices[0][t / 2 * w.cache[0].indices_request_stride + t % 2 * w.cache[0].indices_token_stride +
                                 j] = t == 2 && j == 69 ? 100 : j;
            poison(&w);
            unsigned char *record = naive_record(&w.cache[0], 100);
            if (where == 0) /* latent, or the d of its first block */
                memset(record, 0xFF, 2);
            else if (where == 1 && shape.rope_dim)
                memset(record + naive_rope_at(&w.cache[0], shape.latent_dim), 0xFF, 2);
            else if (format == SPARSE_MLA_FP8_V4)
                naive_v4_scales(&w.cache[0], 100)[6] = 255;
            else if (!is_flat(format))
                memset(record + 512 + 12, 0xFF, 4);
            else
                memset(record, 0xFF, 2);
            naive_decode(&w.args, w.want, w.want_lse);
            run(&w);
            for (int h = 0; h < 11; h++) {
                assert_true(isnan(lse_at(&w, 2, h)));
                assert_true(isfinite(lse_at(&w, 1, h)) && isfinite(lse_at(&w, 3, h)));
            }
            for (int i = 0; i < 512; i++) {
                assert_true(isnan(naive_number(w.args.out, SPARSE_MLA_F32, out_at(&w, 2, 10) + i)));
                assert_true(isfinite(naive_number(w.args.out, SPARSE_MLA_F32, out_at(&w, 3, 0) + i)));
            }
            destroy(&w);
        }
}

/* As a captured graph pads its batch. */
static void padded_rows_and_no_rows(void **state)
{
    static const int32_t lengths[] = {70, -1, -1, -1};
    (void)state;
    for (int format = 0; format < FORMATS; format++) {
        struct shape shape = small(format);
        struct world w;
        build(&w, &shape);
        for (int t = 1; t < 4; t++)
            for (int j = 0; j < 70; j++)
                w.indices[0][t / 2 * w.cache[0].indices_request_stride + t % 2 * w.cache[0].indices_token_stride + j] =
                    -1;
        check(&w);
        set_lengths(&w, lengths, SPARSE_MLA_LENGTH_PER_TOKEN);
        check(&w);
        assert_int_equal(w.faults, 0);
        w.cache[0].num_slots = 0; /* every slot is past the end */
        w.cache[0].data = NULL;
        naive_decode(&w.args, w.want, w.want_lse);
        run(&w);
        compare(&w);
        w.args.num_tokens = 0;
        w.args.q_latent = w.args.out = NULL;
        w.args.lse = NULL;
        struct smla_call call;
        assert_int_equal(smla_call_init(&call, &w.args, SMLA_CHECK_POINTERS), SPARSE_MLA_OK);
        assert_int_equal(smla_host_decode(&call), SPARSE_MLA_OK);
        destroy(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_holes_and_duplicates),
        cmocka_unit_test(columns_past_the_length_are_garbage),
        cmocka_unit_test(requests_outside_the_table_are_empty_rows),
        cmocka_unit_test(table_misses_are_masked_and_counted),
        cmocka_unit_test(sinks_and_lse_flags),
        cmocka_unit_test(empty_rows_are_zero),
        cmocka_unit_test(nan_reaches_only_the_tokens_that_select_it),
        cmocka_unit_test(scores_of_minus_infinity_weigh_nothing),
        cmocka_unit_test(rows_of_minus_infinity_are_empty),
        cmocka_unit_test(nan_sinks_reach_out_and_lse),
        cmocka_unit_test(row_0_is_not_read_for_masked_keys),
        cmocka_unit_test(nan_of_every_format_stays_with_its_token),
        cmocka_unit_test(padded_rows_and_no_rows),
    };
    return cmocka_run_group_tests_name("host_inputs", tests, NULL, NULL);
}
