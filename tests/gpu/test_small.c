/* SPDX-License-Identifier: Apache-2.0 */
/* Small shapes of every code path, on all profiles: what a sanitizer can run through. Rows of the odd inputs that must
 * work, and which test has them (draw.c draws nearly all of them as well):
 *
 *     index negative, or >= num_slots (faults)              odd_inputs, all_masked, block_table
 *     columns past the length                               odd_inputs, block_table, dense
 *     length <= 0, no valid key, rows of padding            odd_inputs, all_masked, extra_empty, lse_flags
 *     length > width                                        odd_inputs
 *     heads up to the next 8                                head_counts
 *     request_of_token outside the table                    request_map
 *     scale NaN or infinite                                 test_calls.c: refusals
 *     NaN in rows that nobody selected, row 0, page space   every test: all of it is NaN
 *     NaN in a selected row                                 nan_rows; test_calls.c: nan_row
 *     sink = +inf, -inf                                     odd_inputs, all_masked, lse_flags
 *     T = 0                                                 test_calls.c: no_tokens
 *     leading tiles masked, holes anywhere                  odd_inputs; test_calls.c: masked_front
 *     no slots at all                                       no_slots
 *     > 4 GiB, > 2^31 elements                              test_large.c
 *     unsupported combinations                              test_calls.c: refusals
 *
 * Whatever a call may not write is checked in every test: guards around all buffers, gaps in outputs, inputs. */
#include "runner.h"

#include <stdio.h>

static const struct cache_kind {
    int format, latent, rope, record, q_dtype;
    bool no_tail;
} caches[] = {
    {SPARSE_MLA_FP8_DS_MLA, 512, 64, 0, SPARSE_MLA_BF16, false},
    {SPARSE_MLA_FP8_DS_MLA, 512, 0, 0, SPARSE_MLA_BF16, false},
    {SPARSE_MLA_FP8_DS_MLA, 512, 0, 0, SPARSE_MLA_BF16, true},
    {SPARSE_MLA_FP8_DS_MLA_NOPE, 512, 0, 0, SPARSE_MLA_F16, false},
    {SPARSE_MLA_FLAT_BF16, 512, 64, 0, SPARSE_MLA_BF16, false},
    {SPARSE_MLA_FLAT_BF16, 512, 64, RECORD_ROPE_FIRST, SPARSE_MLA_BF16, false},
    {SPARSE_MLA_FLAT_BF16, 512, 0, RECORD_APART, SPARSE_MLA_BF16, false},
    {SPARSE_MLA_FLAT_BF16, 64, 64, RECORD_APART, SPARSE_MLA_BF16, false},
    {SPARSE_MLA_FLAT_F16, 512, 64, 0, SPARSE_MLA_BF16, false},
    {SPARSE_MLA_FLAT_F16, 512, 64, RECORD_ROPE_FIRST, SPARSE_MLA_F32, false},
    {SPARSE_MLA_FLAT_F16, 256, 32, RECORD_APART_FIRST, SPARSE_MLA_F16, false},
    {SPARSE_MLA_FLAT_F16, 192, 0, 0, SPARSE_MLA_BF16, false},
    {SPARSE_MLA_FLAT_E4M3, 512, 64, 0, SPARSE_MLA_BF16, false},
    {SPARSE_MLA_FLAT_E4M3, 512, 64, RECORD_APART_FIRST, SPARSE_MLA_BF16, false},
    {SPARSE_MLA_FP8_V4, 448, 64, 0, SPARSE_MLA_BF16, false},
    {SPARSE_MLA_Q8_0, 512, 64, 0, SPARSE_MLA_F32, false},
    {SPARSE_MLA_Q8_0, 512, 64, RECORD_ROPE_FIRST, SPARSE_MLA_F32, false},
};
enum { CACHES = sizeof caches / sizeof *caches };

static struct spec with_cache(const struct spec *base, const struct cache_kind *kind)
{
    struct spec spec = *base;
    spec.format = kind->format;
    spec.latent = kind->latent;
    spec.rope = kind->rope;
    spec.q_dtype = kind->q_dtype;
    spec.main.record = kind->record;
    spec.main.no_tail = kind->no_tail;
    spec.extra.record = RECORDS - 1 - kind->record; /* the two caches of a call may differ in this */
    return spec;
}

static void add_each(struct case_list *list, const struct spec *base)
{
    for (int profile = 1; profile < 5; profile++)
        for (int c = 0; c < CACHES; c++) {
            struct spec spec = with_cache(base, &caches[c]);
            spec.seed += (uint64_t)(profile * 100 + c);
            runner_add(list, profile, &spec, 0, 0);
        }
}

static void run(struct case_list *list)
{
    runner_run(list);
    runner_drop(list);
}

static void each_profile(const struct spec *base)
{
    struct case_list list = {0};
    add_each(&list, base);
    run(&list);
}

static void test_one_token(void **state)
{
    (void)state;
    each_profile(&(struct spec){.tokens = 1, .heads = 8, .main = {.topk = 70, .slots = 200}});
}

static void test_odd_inputs(void **state)
{
    (void)state;
    each_profile(&(struct spec){.tokens = 6,
                                .q_len = 2,
                                .heads = 13,
                                .main = {.topk = 133,
                                         .slots = 300,
                                         .page_size = 61,
                                         .masked = 0.3,
                                         .past = 0.1,
                                         .lengths = LENGTHS_PER_TOKEN,
                                         .row_pad = 48,
                                         .page_pad = 80,
                                         .index_pad = 5},
                                .sink = true,
                                .q_layout = LAYOUT_HEADS_FIRST,
                                .q_views = true,
                                .out_layout = LAYOUT_PADDED,
                                .lse_layout = LAYOUT_TOKENS_LAST});
}

static void test_block_table(void **state)
{
    (void)state;
    each_profile(&(struct spec){.tokens = 4,
                                .q_len = 2,
                                .heads = 16,
                                .main = {.topk = 90,
                                         .slots = 320,
                                         .page_size = 16,
                                         .masked = 0.1,
                                         .past = 0.05,
                                         .lengths = LENGTHS_PER_REQUEST,
                                         .page_pad = PAGES_OF_576,
                                         .table = true,
                                         .index_pad = 3},
                                .out_dtype = SPARSE_MLA_F16});
}

static void test_dense(void **state)
{
    (void)state;
    each_profile(
        &(struct spec){.tokens = 2,
                       .heads = 24,
                       .main = {.topk = 150, .slots = 149, .page_size = 1, .dense = true, .lengths = LENGTHS_PER_TOKEN},
                       .out_dtype = SPARSE_MLA_F32});
}

static void test_request_map(void **state)
{
    (void)state;
    for (int lengths = LENGTHS_NONE; lengths <= LENGTHS_PER_REQUEST; lengths++)
        each_profile(&(struct spec){
            .tokens = 24,
            .heads = 8,
            .requests = 5,
            .main = {.topk = 60, .slots = 100, .page_size = 3, .lengths = lengths, .table = lengths > 0, .past = 0.02},
            .out_layout = LAYOUT_TOKENS_LAST,
            .seed = (uint64_t)lengths});
}

static void test_all_masked(void **state)
{
    (void)state;
    each_profile(
        &(struct spec){.tokens = 3, .heads = 8, .main = {.topk = 200, .masked = 1, .slots = 64}, .sink = true});
}

static void test_no_slots(void **state)
{
    (void)state;
    each_profile(&(struct spec){.tokens = 3, .heads = 8, .main = {.topk = 70, .masked = 0.2, .slots = NO_SLOTS}});
}

static void test_odd_strides(void **state)
{
    (void)state;
    each_profile(&(struct spec){.tokens = 1,
                                .heads = 1,
                                .main = {.topk = 40, .slots = 50, .page_size = 64, .table = true},
                                .odd_strides = true});
    each_profile(&(struct spec){.tokens = 3,
                                .q_len = 3,
                                .heads = 8,
                                .main = {.topk = 40, .slots = 50, .page_size = 1, .index_pad = 9},
                                .no_lse = true,
                                .no_faults = true,
                                .odd_strides = true});
}

static void test_head_counts(void **state)
{
    (void)state;
    static const int heads[] = {1, 8, 16, 24, 32, 40, 48, 56, 64, 65, 72, 88, 104, 120, 128};
    struct case_list list = {0};
    for (int profile = 1; profile < 5; profile++)
        for (int c = 0; c < CACHES; c++)
            for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
                struct spec spec = {.tokens = 1,
                                    .heads = heads[i],
                                    .main = {.topk = 100, .slots = 300, .masked = 0.2},
                                    .seed = (uint64_t)heads[i]};
                spec = with_cache(&spec, &caches[c]);
                /* All counts with fp8_ds_mla, others where the layout of a block is another. */
                if (c == 0 || heads[i] == 24 || heads[i] == 40 || heads[i] == 128)
                    runner_add(&list, profile, &spec, 0, 0);
            }
    run(&list);
}

static void test_dtypes(void **state)
{
    (void)state;
    struct case_list list = {0};
    for (int profile = 1; profile < 5; profile++)
        for (int c = 0; c < CACHES; c++)
            for (int dtypes = 0; dtypes < 9; dtypes++) {
                struct spec spec = {.tokens = 2, .heads = 16, .main = {.topk = 80, .slots = 300, .masked = 0.1}};
                spec = with_cache(&spec, &caches[c]);
                spec.q_dtype = dtypes / 3;
                spec.out_dtype = dtypes % 3;
                spec.q_layout = dtypes % 4;
                spec.out_layout = (dtypes + 1) % 4;
                spec.seed = (uint64_t)dtypes;
                runner_add(&list, profile, &spec, 0, 0);
            }
    run(&list);
}

/* Widths that are no multiple of a tile, page sizes of 64 and 2. */
static void test_extra_cache(void **state)
{
    (void)state;
    static const int widths[][2] = {{128, 512}, {1, 1}, {15, 33}};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        each_profile(&(struct spec){.tokens = 4,
                                    .q_len = 2,
                                    .heads = 8,
                                    .main = {.topk = widths[i][0],
                                             .slots = 256,
                                             .masked = 0.1,
                                             .past = 0.02,
                                             .lengths = LENGTHS_PER_TOKEN,
                                             .table = i == 1},
                                    .extra = {.topk = widths[i][1],
                                              .slots = 700,
                                              .page_size = 2,
                                              .page_pad = PAGES_OF_576,
                                              .masked = 0.2,
                                              .past = 0.02,
                                              .lengths = LENGTHS_PER_REQUEST,
                                              .table = i == 2,
                                              .index_pad = 7},
                                    .sink = i == 0,
                                    .seed = i});
}

static void test_extra_empty(void **state)
{
    (void)state;
    for (int masked = 1; masked < 4; masked++)
        each_profile(&(struct spec){.tokens = 2,
                                    .heads = 8,
                                    .main = {.topk = 100, .slots = 128, .masked = masked & 1},
                                    .extra = {.topk = 90, .slots = 99, .page_size = 2, .masked = masked >> 1},
                                    .seed = (uint64_t)masked});
    each_profile(&(struct spec){
        .tokens = 2, .heads = 8, .main = {.topk = 100, .slots = NO_SLOTS}, .extra = {.topk = 90, .slots = 99}});
    each_profile(&(struct spec){.tokens = 2,
                                .heads = 8,
                                .main = {.topk = 100, .slots = 128, .dense = true},
                                .extra = {.topk = 90, .slots = NO_SLOTS, .lengths = LENGTHS_PER_TOKEN}});
}

static void test_lse_flags(void **state)
{
    (void)state;
    for (uint32_t flags = 0; flags < 8; flags++)
        for (int profile = 1; profile < 5; profile++)
            for (int sink = 0; sink < 2; sink++)
                runner_case(
                    profile,
                    &(struct spec){.tokens = 5,
                                   .heads = 16,
                                   .latent = 512,
                                   .rope = 64,
                                   .main = {.topk = 64, .slots = 300, .masked = 0.2, .lengths = LENGTHS_PER_TOKEN},
                                   .sink = sink,
                                   .flags = flags,
                                   .seed = flags},
                    0, 0);
}

/* Both flags that change the launch, with and without a second cache. */
static void test_launch_flags(void **state)
{
    (void)state;
    for (uint32_t flags = 1; flags < 4; flags++)
        each_profile(&(struct spec){
            .tokens = 3,
            .heads = 16,
            .main = {.topk = 300, .slots = 400, .masked = 0.2, .lengths = LENGTHS_PER_TOKEN},
            .extra = {.topk = flags == 2 ? 900 : 0, .slots = 1000, .page_size = 2, .lengths = LENGTHS_PER_TOKEN},
            .flags = flags * SPARSE_MLA_BATCH_INVARIANT,
            .seed = flags});
}

static void test_nan_rows(void **state)
{
    (void)state;
    each_profile(&(struct spec){.tokens = 8, .heads = 8, .main = {.topk = 40, .slots = 400}, .nan_rows = 0.01});
    each_profile(&(struct spec){.tokens = 8,
                                .heads = 8,
                                .main = {.topk = 20, .slots = 400},
                                .extra = {.topk = 20, .slots = 400},
                                .nan_rows = 0.01,
                                .seed = 1});
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_token), cmocka_unit_test(test_odd_inputs),   cmocka_unit_test(test_block_table),
        cmocka_unit_test(test_dense),     cmocka_unit_test(test_request_map),  cmocka_unit_test(test_all_masked),
        cmocka_unit_test(test_no_slots),  cmocka_unit_test(test_odd_strides),  cmocka_unit_test(test_head_counts),
        cmocka_unit_test(test_dtypes),    cmocka_unit_test(test_extra_cache),  cmocka_unit_test(test_extra_empty),
        cmocka_unit_test(test_lse_flags), cmocka_unit_test(test_launch_flags), cmocka_unit_test(test_nan_rows),
    };
    runner_open();
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
