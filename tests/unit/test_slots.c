/* SPDX-License-Identifier: Apache-2.0 */
/* sparse_mla_map_slots() on the host, against naive_slot(), which is decode's rule. */
#include "host_context.h"
#include "naive.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { TOKENS = 12, TOPK = 77, REQUESTS = 6, TABLE_WIDTH = 9, MASK_WIDTH = 100, UNTOUCHED = -77 };

static uint64_t seed;

static int random_below(int limit)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int)((seed >> 33) % (uint64_t)limit);
}

static struct {
    int32_t indices[TOKENS * (TOPK + 3)], lengths[TOKENS], table[REQUESTS * (TABLE_WIDTH + 2)], requests[TOKENS];
    uint16_t mask[TOKENS * (MASK_WIDTH + 5)];
    int32_t slots[TOKENS * (TOPK + 1)], counts[TOKENS];
    uint32_t faults;
    sparse_mla_map_slots_args args;
} w;

static void fill_mask(void)
{
    /* Values other than -inf count as 0. */
    static const uint16_t values[] = {0, 0xFC00, 0, 0xFC00, 0x8000, 0x7C00, 0x7E00, 0xFBFF, 0xFC01, 0x3C00};
    for (int i = 0; i < TOKENS * (MASK_WIDTH + 5); i++)
        w.mask[i] = i % (MASK_WIDTH + 5) < MASK_WIDTH ? values[random_below(10)] : 0xFC00;
}

/* q_len tokens per request, all tensors with strides. */
static void fill(int q_len, int page_size)
{
    memset(&w, 0, sizeof w);
    for (int i = 0; i < TOKENS * (TOPK + 3); i++)
        w.indices[i] = random_below(8) == 0 ? -1 - random_below(1 << 30) : random_below(TABLE_WIDTH * page_size + 20);
    for (int i = 0; i < TOKENS; i++) {
        w.lengths[i] = random_below(TOPK + 20) - 5;
        w.requests[i] = random_below(REQUESTS + 2) - 1;
    }
    for (int i = 0; i < REQUESTS * (TABLE_WIDTH + 2); i++)
        w.table[i] = random_below(10) == 0 ? -1 - random_below(1 << 30) : random_below(50);
    fill_mask();
    for (int i = 0; i < TOKENS * (TOPK + 1); i++)
        w.slots[i] = UNTOUCHED;
    sparse_mla_map_slots_args_init(&w.args);
    w.args.num_tokens = TOKENS;
    w.args.q_len = q_len;
    w.args.topk = TOPK;
    w.args.page_size = page_size;
    w.args.num_slots = 40 * page_size;
    w.args.indices = w.indices;
    w.args.indices_token_stride = TOPK + 3;
    w.args.indices_request_stride = q_len * (TOPK + 3);
    w.args.block_table_width = TABLE_WIDTH;
    w.args.block_table_stride = TABLE_WIDTH + 2;
    w.args.num_requests = TOKENS / q_len < REQUESTS ? TOKENS / q_len : REQUESTS;
    w.args.mask_width = MASK_WIDTH;
    w.args.mask_token_stride = MASK_WIDTH + 5;
    w.args.mask_request_stride = q_len * (MASK_WIDTH + 5);
    w.args.slots = w.slots;
    w.args.slots_token_stride = TOPK + 1;
    w.args.slots_request_stride = q_len * (TOPK + 1);
    w.args.fault_count = &w.faults;
}

/* The same tokens as decode sees them. */
static void as_decode(sparse_mla_decode_args *args, sparse_mla_cache *cache)
{
    sparse_mla_decode_args_init(args);
    sparse_mla_cache_init(cache);
    args->num_tokens = w.args.num_tokens;
    args->q_len = w.args.q_len;
    args->request_of_token = w.args.request_of_token;
    args->num_requests = w.args.num_requests;
    cache->page_size = w.args.page_size;
    cache->num_slots = w.args.num_slots;
    cache->topk = w.args.topk;
    cache->indices = w.args.indices;
    cache->indices_request_stride = w.args.indices_request_stride;
    cache->indices_token_stride = w.args.indices_token_stride;
    cache->lengths = w.args.lengths;
    cache->length_mode = w.args.length_mode;
    cache->block_table = w.args.block_table;
    cache->block_table_width = w.args.block_table_width;
    cache->block_table_stride = w.args.block_table_stride;
}

static int32_t expected_slot(const sparse_mla_decode_args *args, const sparse_mla_cache *cache, int token, int column,
                             uint32_t *faults)
{
    uint32_t faults_before_mask = 0;
    const int32_t index = w.args.indices ? w.indices[token * (TOPK + 3) + column] : column;
    const int32_t slot = (int32_t)naive_slot(args, cache, token, column, &faults_before_mask);
    const bool counts = slot >= 0 || faults_before_mask; /* not masked by length, request or sign */
    if (counts && w.args.mask && index >= MASK_WIDTH) {
        ++*faults;
        return -1;
    }
    if (counts && w.args.mask && w.mask[token * (MASK_WIDTH + 5) + index] == 0xFC00)
        return -1;
    *faults += faults_before_mask;
    return slot;
}

static void check(void)
{
    sparse_mla_decode_args args;
    sparse_mla_cache cache;
    uint32_t faults = 0;
    as_decode(&args, &cache);
    if (sparse_mla_map_slots(context, &w.args, NULL) != SPARSE_MLA_OK)
        fail_msg("%s", sparse_mla_last_error());
    for (int token = 0; token < TOKENS; token++) {
        int32_t expected[TOPK], count = 0;
        for (int column = 0; column < TOPK; column++) {
            const int32_t slot = expected_slot(&args, &cache, token, column, &faults);
            if (!w.args.compact)
                expected[column] = slot;
            else if (slot >= 0)
                expected[count] = slot;
            count += slot >= 0;
        }
        for (int column = count; w.args.compact && column < TOPK; column++)
            expected[column] = -1;
        assert_memory_equal(w.slots + token * (TOPK + 1), expected, sizeof expected);
        assert_int_equal(w.slots[token * (TOPK + 1) + TOPK], UNTOUCHED);
        assert_int_equal(w.counts[token], w.args.counts ? count : 0);
    }
    assert_int_equal(w.faults, faults);
}

/* Every combination of what is optional. */
static void agrees_with_decode(void **state)
{
    static const int q_lens[] = {1, 2, 3, 12}, page_sizes[] = {1, 5, 64};
    (void)state;
    for (int options = 0; options < 256; options++)
        for (int i = 0; i < 4; i++) {
            fill(q_lens[i], page_sizes[(options + i) % 3]);
            w.args.block_table = options & 1 ? w.table : NULL;
            w.args.lengths = options & 2 ? w.lengths : NULL;
            w.args.length_mode = options & 4 ? SPARSE_MLA_LENGTH_PER_REQUEST : SPARSE_MLA_LENGTH_PER_TOKEN;
            w.args.request_of_token = options & 8 ? w.requests : NULL;
            w.args.mask = options & 16 ? w.mask : NULL;
            w.args.compact = options & 32;
            w.args.counts = options & 64 ? w.counts : NULL;
            w.args.indices = options & 128 ? NULL : w.indices;
            check();
        }
}

static void columns_past_the_length_are_not_looked_at(void **state)
{
    (void)state;
    fill(1, 64);
    for (int i = 0; i < TOKENS * (TOPK + 3); i++)
        if (i % (TOPK + 3) >= 10)
            w.indices[i] = INT32_MAX;
    for (int i = 0; i < TOKENS; i++)
        w.lengths[i] = i % 11;
    w.args.lengths = w.lengths;
    w.args.mask = w.mask;
    check();
}

static void without_a_fault_word_nothing_is_counted(void **state)
{
    (void)state;
    fill(1, 64);
    w.args.num_slots = 0;
    w.args.fault_count = NULL;
    assert_int_equal(sparse_mla_map_slots(context, &w.args, NULL), SPARSE_MLA_OK);
    for (int i = 0; i < TOPK; i++)
        assert_int_equal(w.slots[i], -1);
}

static void refuses(const char *sentence)
{
    const sparse_mla_status status = sparse_mla_map_slots(context, &w.args, NULL);
    if (status != SPARSE_MLA_INVALID_ARGUMENT || strcmp(sparse_mla_last_error(), sentence) != 0)
        fail_msg("%d: \"%s\" instead of \"%s\"", status, sparse_mla_last_error(), sentence);
    assert_int_equal(w.slots[0], UNTOUCHED);
}

#define REFUSES(change, sentence)                                                                                      \
    do {                                                                                                               \
        fill(2, 64);                                                                                                   \
        w.args.block_table = w.table;                                                                                  \
        w.args.mask = w.mask;                                                                                          \
        change;                                                                                                        \
        refuses(sentence);                                                                                             \
    } while (0)

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    assert_int_equal(sparse_mla_map_slots(NULL, &w.args, NULL), SPARSE_MLA_INVALID_ARGUMENT);
    assert_int_equal(sparse_mla_map_slots(context, NULL, NULL), SPARSE_MLA_INVALID_ARGUMENT);
    assert_string_equal(sparse_mla_last_error(), "args is NULL: it is required");
    REFUSES(w.args.struct_size = 168, "args.struct_size is 168: its _init() function sets it to 176");
    REFUSES(w.args.num_tokens = -2, "num_tokens is -2: 0 or more are supported");
    REFUSES(w.args.q_len = 0, "q_len is 0: it must be at least 1");
    REFUSES(w.args.q_len = 5, "q_len is 5: it must divide num_tokens, which is 12");
    REFUSES(w.args.topk = 0, "topk is 0: it must be at least 1");
    REFUSES(w.args.page_size = 0, "page_size is 0: it must be at least 1");
    REFUSES(w.args.num_slots = -1, "num_slots is -1: 0 to 2^31 - 1 are supported");
    REFUSES(w.args.num_slots = 1LL << 31, "num_slots is 2147483648: 0 to 2^31 - 1 are supported");
    REFUSES(w.args.length_mode = 2, "length_mode is 2: 0 (per token) and 1 (per request) are supported");
    REFUSES(w.args.num_requests = -1, "num_requests is -1: it must be 0 or more");
    REFUSES(w.args.block_table_width = 0, "block_table_width is 0: it must be at least 1");
    REFUSES(w.args.mask_width = 0, "mask_width is 0: it must be at least 1");
    REFUSES(w.args.reserved = 7, "reserved is 7: it must be 0");
    REFUSES(w.args.indices_request_stride = 76, "indices_request_stride is 76: it must be at least 77, in elements");
    REFUSES(w.args.indices_token_stride = 0, "indices_token_stride is 0: it must be at least 77, in elements");
    REFUSES(w.args.block_table_stride = 8, "block_table_stride is 8: it must be at least 9, in elements");
    REFUSES(w.args.mask_request_stride = 99, "mask_request_stride is 99: it must be at least 100, in elements");
    REFUSES(w.args.mask_token_stride = -1, "mask_token_stride is -1: it must be at least 100, in elements");
    REFUSES(w.args.slots_request_stride = 76, "slots_request_stride is 76: it must be at least 77, in elements");
    REFUSES(w.args.slots_token_stride = 76, "slots_token_stride is 76: it must be at least 77, in elements");
    REFUSES(w.args.slots = NULL, "slots is NULL: it is required");
    REFUSES(w.args.slots = (int32_t *)2, "slots is 0x2: it must be aligned to 4 bytes");
    REFUSES(w.args.indices = (int32_t *)2, "indices is 0x2: it must be aligned to 4 bytes");
    REFUSES(w.args.lengths = (int32_t *)2, "lengths is 0x2: it must be aligned to 4 bytes");
    REFUSES(w.args.block_table = (int32_t *)2, "block_table is 0x2: it must be aligned to 4 bytes");
    REFUSES(w.args.request_of_token = (int32_t *)2, "request_of_token is 0x2: it must be aligned to 4 bytes");
    REFUSES(w.args.mask = (uint16_t *)1, "mask is 0x1: it must be aligned to 2 bytes");
    REFUSES(w.args.counts = (int32_t *)2, "counts is 0x2: it must be aligned to 4 bytes");
    REFUSES(w.args.fault_count = (uint32_t *)2, "fault_count is 0x2: it must be aligned to 4 bytes");
}

static void no_token_is_a_success(void **state)
{
    (void)state;
    fill(1, 64);
    w.args.num_tokens = 0;
    w.args.slots = NULL;
    assert_int_equal(sparse_mla_map_slots(context, &w.args, NULL), SPARSE_MLA_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_decode),
        cmocka_unit_test(columns_past_the_length_are_not_looked_at),
        cmocka_unit_test(without_a_fault_word_nothing_is_counted),
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(no_token_is_a_success),
    };
    return cmocka_run_group_tests_name("slots", tests, open_context, close_context);
}
