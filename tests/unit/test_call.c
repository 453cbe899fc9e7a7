/* SPDX-License-Identifier: Apache-2.0 */
#include "call.h"

#include "call_rules.h"
#include "check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

/* A valid call of 2 requests with 2 tokens each, 8 heads, both caches, everything optional given. No pointer is ever
 * followed. */
struct fixture {
    sparse_mla_decode_args args;
    sparse_mla_cache main, extra;
    struct smla_call call;
};

#define AT(address) ((void *)(uintptr_t)(address))

static void fill_cache(sparse_mla_cache *cache, int format, int row_bytes)
{
    sparse_mla_cache_init(cache);
    cache->format = format;
    cache->data = AT(0x10000);
    cache->num_slots = 1000;
    cache->row_stride_bytes = row_bytes;
    cache->page_stride_bytes = 64 * row_bytes;
    cache->topk = 2048;
    cache->indices = AT(0x20004);
    cache->indices_request_stride = 4096;
    cache->indices_token_stride = 2048;
    cache->lengths = AT(0x30004);
    cache->block_table = AT(0x40004);
    cache->block_table_width = 16;
    cache->block_table_stride = 16;
}

static void fill(struct fixture *f)
{
    sparse_mla_decode_args *args = &f->args;
    fill_cache(&f->main, SPARSE_MLA_FP8_DS_MLA, 656);
    fill_cache(&f->extra, SPARSE_MLA_FLAT_BF16, 1152);
    sparse_mla_decode_args_init(args);
    args->num_tokens = 4;
    args->q_len = 2;
    args->num_heads = 8;
    args->latent_dim = args->value_dim = 512;
    args->rope_dim = 64;
    args->scale = 0.0625f;
    args->q_latent = AT(0x100010);
    args->q_latent_request_stride = 2 * 8 * 512;
    args->q_latent_token_stride = 8 * 512;
    args->q_latent_head_stride = 512;
    args->q_rope = AT(0x200010);
    args->q_rope_request_stride = 2 * 8 * 64;
    args->q_rope_token_stride = 8 * 64;
    args->q_rope_head_stride = 64;
    args->main_cache = &f->main;
    args->extra_cache = &f->extra;
    args->out = AT(0x300010);
    args->out_request_stride = 2 * 8 * 512;
    args->out_token_stride = 8 * 512;
    args->out_head_stride = 512;
    args->lse = AT(0x400004);
    args->lse_request_stride = 16;
    args->lse_token_stride = 8;
    args->lse_head_stride = 1;
    args->sink = AT(0x500004);
    args->request_of_token = AT(0x600004);
    args->num_requests = 2;
    args->fault_count = AT(0x700004);
}

/* The same with one cache and without what is optional. */
static void fill_least(struct fixture *f)
{
    fill(f);
    f->args.extra_cache = NULL;
    f->args.lse = NULL;
    f->args.sink = NULL;
    f->args.request_of_token = NULL;
    f->args.fault_count = NULL;
    f->args.num_requests = 0;
    f->main.indices = f->main.lengths = f->main.block_table = NULL;
}

static void fill_flat(struct fixture *f)
{
    fill_least(f);
    f->main.format = SPARSE_MLA_FLAT_F16;
    f->main.row_stride_bytes = 1152;
    f->main.page_stride_bytes = 64 * 1152;
}

static void fill_v4(struct fixture *f)
{
    fill_least(f);
    f->args.latent_dim = 448;
    f->main.format = SPARSE_MLA_FP8_V4;
    f->main.row_stride_bytes = 576;
    f->main.page_stride_bytes = 65 * 576; /* 64 * 584, padded */
}

static void fill_q8_0(struct fixture *f)
{
    fill_least(f);
    f->main.format = SPARSE_MLA_Q8_0;
    f->main.row_stride_bytes = 612;
    f->main.page_stride_bytes = 64 * 612;
}

static void accepts(struct fixture *f)
{
    if (smla_call_init(&f->call, &f->args, SMLA_CHECK_POINTERS) != SPARSE_MLA_OK)
        fail_msg("%s", sparse_mla_last_error());
}

static void refuses(struct fixture *f, sparse_mla_status status, const char *sentence)
{
    assert_int_equal(smla_call_init(&f->call, &f->args, SMLA_CHECK_POINTERS), status);
    assert_string_equal(sparse_mla_last_error(), sentence);
}

#define REFUSAL(name, breakage, sentence)                                                                              \
    static void refuses_##name(void **state)                                                                           \
    {                                                                                                                  \
        struct fixture f;                                                                                              \
        (void)state;                                                                                                   \
        fill(&f);                                                                                                      \
        (void)(breakage);                                                                                              \
        refuses(&f, SPARSE_MLA_INVALID_ARGUMENT, sentence);                                                            \
    }
RULES(REFUSAL)

static void args_missing(void **state)
{
    struct fixture f;
    (void)state;
    assert_int_equal(smla_call_init(&f.call, NULL, SMLA_CHECK_POINTERS), SPARSE_MLA_INVALID_ARGUMENT);
    assert_string_equal(sparse_mla_last_error(), "args is NULL: it is required");
}

static void odd_struct_sizes_are_refused(void **state)
{
    struct fixture f;
    (void)state;
    fill(&f);
    f.args.struct_size = 0;
    refuses(&f, SPARSE_MLA_INVALID_ARGUMENT, "args.struct_size is 0: its _init() function sets it to 240");
    f.args.struct_size = 9;
    refuses(&f, SPARSE_MLA_INVALID_ARGUMENT, "args.struct_size is 9: its _init() function sets it to 240");
    f.args.struct_size = sizeof f.args + 4;
    refuses(&f, SPARSE_MLA_INVALID_ARGUMENT, "args.struct_size is 244: its _init() function sets it to 240");
    f.args.struct_size = SMLA_DECODE_ARGS_FIRST_SIZE - 8;
    refuses(&f, SPARSE_MLA_INVALID_ARGUMENT, "args.struct_size is 232: its _init() function sets it to 240");
    f.args.struct_size = (size_t)1 << 40;
    refuses(&f, SPARSE_MLA_INVALID_ARGUMENT, "args.struct_size is 1099511627776: its _init() function sets it to 240");
    fill(&f);
    f.extra.struct_size = SMLA_CACHE_FIRST_SIZE - 8;
    refuses(&f, SPARSE_MLA_INVALID_ARGUMENT, "extra_cache.struct_size is 112: its _init() function sets it to 120");
}

/* A library that knows 40 bytes of a struct whose first release had 24. */
static void older_headers_get_defaults(void **state)
{
    (void)state;
    for (size_t size = 0; size <= 40; size++) {
        const uint64_t from[5] = {size, 1, 2, 3, 4};
        uint64_t to[5] = {0, 100, 100, 100, 100};
        const bool known = size >= 24 && size % 8 == 0;
        assert_int_equal(smla_copy_struct(to, 40, 24, from, "from"),
                         known ? SPARSE_MLA_OK : SPARSE_MLA_INVALID_ARGUMENT);
        assert_int_equal(to[0], known ? 40 : 0);
        for (size_t i = 1; i < 5; i++)
            assert_int_equal(to[i], known && 8 * i < size ? i : 100);
    }
}

static void newer_headers_may_not_use_what_is_new(void **state)
{
    struct {
        sparse_mla_decode_args args;
        unsigned char tail[16];
    } newer;
    struct fixture f;
    struct smla_call call;
    (void)state;
    fill(&f);
    memset(&newer, 0, sizeof newer);
    newer.args = f.args;
    newer.args.struct_size = sizeof newer;
    assert_int_equal(smla_call_init(&call, &newer.args, SMLA_CHECK_POINTERS), SPARSE_MLA_OK);
    newer.tail[15] = 1;
    assert_int_equal(smla_call_init(&call, &newer.args, SMLA_CHECK_POINTERS), SPARSE_MLA_UNSUPPORTED);
    assert_string_equal(sparse_mla_last_error(),
                        "args.struct_size is 256 and byte 255 is not 0: this library knows the first 240 bytes");
}

static void defaults_are_filled_in(void **state)
{
    struct fixture f;
    (void)state;
    fill_flat(&f);
    f.args.q_rope = NULL;
    f.args.q_latent_head_stride = 576;
    f.args.q_rope_head_stride = 3;
    f.main.latent_offset_bytes = 0;
    accepts(&f);
    assert_false(f.call.has_extra);
    assert_ptr_equal(f.call.args.q_rope, (const char *)f.args.q_latent + 1024);
    assert_int_equal(f.call.args.q_rope_request_stride, f.args.q_latent_request_stride);
    assert_int_equal(f.call.args.q_rope_token_stride, f.args.q_latent_token_stride);
    assert_int_equal(f.call.args.q_rope_head_stride, 576);
    assert_int_equal(f.call.args.num_requests, 2);
    assert_int_equal(f.call.main_cache.rope_offset_bytes, 1024);
    assert_null(f.call.args.main_cache);
    f.args.q_dtype = SPARSE_MLA_F32;
    accepts(&f);
    assert_ptr_equal(f.call.args.q_rope, (const char *)f.args.q_latent + 2048);
}

static void what_is_given_is_kept(void **state)
{
    struct fixture f;
    (void)state;
    fill(&f);
    f.args.num_requests = 7;
    f.extra.latent_offset_bytes = 128;
    f.extra.rope_offset_bytes = 0;
    accepts(&f);
    assert_true(f.call.has_extra);
    assert_int_equal(f.call.args.num_requests, 7);
    assert_ptr_equal(f.call.args.q_rope, f.args.q_rope);
    assert_int_equal(f.call.args.q_rope_head_stride, 64);
    assert_int_equal(f.call.extra_cache.latent_offset_bytes, 128);
    assert_int_equal(f.call.extra_cache.rope_offset_bytes, 0);
    assert_int_equal(f.call.main_cache.rope_offset_bytes, 528);
    assert_ptr_equal(f.call.extra_cache.block_table, f.extra.block_table);
}

/* A stride is looked at only where there is a second step to take. */
static void strides_of_single_steps_are_ignored(void **state)
{
    struct fixture f;
    (void)state;
    fill(&f);
    f.args.num_tokens = f.args.q_len = f.args.num_heads = f.args.num_requests = 1;
    f.main.num_slots = 64;
    f.extra.page_size = 1;
    f.main.page_stride_bytes = f.extra.row_stride_bytes = 3;
    f.args.q_latent_request_stride = f.args.q_latent_token_stride = f.args.q_latent_head_stride = 3;
    f.args.q_rope_request_stride = f.args.q_rope_token_stride = f.args.q_rope_head_stride = 3;
    f.args.out_request_stride = f.args.out_token_stride = f.args.out_head_stride = 3;
    f.args.lse_request_stride = f.args.lse_token_stride = f.args.lse_head_stride = 0;
    f.main.indices_request_stride = f.main.indices_token_stride = f.main.block_table_stride = 0;
    accepts(&f);
}

static void shapes_need_no_pointers(void **state)
{
    struct fixture f;
    (void)state;
    fill_flat(&f);
    f.args.q_latent = f.args.q_rope = f.args.out = NULL;
    f.args.q_latent_head_stride = 576;
    f.main.data = NULL;
    assert_int_equal(smla_call_init(&f.call, &f.args, SMLA_CHECK_SHAPES), SPARSE_MLA_OK);
    assert_int_equal(smla_call_init(&f.call, &f.args, SMLA_CHECK_POINTERS), SPARSE_MLA_INVALID_ARGUMENT);
    f.args.num_tokens = 0;
    accepts(&f);
    f.args.num_heads = 129;
    refuses(&f, SPARSE_MLA_INVALID_ARGUMENT, "num_heads is 129: 1 to 128 are supported");
}

static void extremes_are_accepted(void **state)
{
    struct fixture f;
    (void)state;
    fill_least(&f);
    f.args.num_tokens = INT32_MAX;
    f.args.q_len = 1;
    f.args.num_heads = 128;
    f.main.num_slots = INT32_MAX;
    f.main.topk = INT32_MAX;
    accepts(&f);
    assert_int_equal(f.call.args.num_requests, INT32_MAX);
    f.main.page_size = INT32_MAX;
    accepts(&f);
    f.main.num_slots = 0;
    f.main.data = NULL;
    accepts(&f);
    fill_q8_0(&f);
    f.main.data = AT(0x1004);
    accepts(&f);
}

/* Which need no more than these bytes. */
static void every_format_is_accepted(void **state)
{
    struct fixture f;
    (void)state;
    fill_v4(&f);
    accepts(&f);
    assert_int_equal(f.call.main_cache.rope_offset_bytes, 448);
    f.main.page_stride_bytes = 64 * 584;
    accepts(&f);
    f.main.page_size = 2;
    f.main.page_stride_bytes = 1168;
    accepts(&f);
    f.main.page_size = 1;
    f.main.page_stride_bytes = 592;
    accepts(&f);
    fill_q8_0(&f);
    accepts(&f);
    assert_int_equal(f.call.main_cache.rope_offset_bytes, 544);
    f.main.latent_offset_bytes = 68;
    f.main.rope_offset_bytes = 0;
    accepts(&f);
    fill_least(&f);
    f.main.format = SPARSE_MLA_FLAT_E4M3;
    f.main.row_stride_bytes = 576;
    accepts(&f);
    assert_int_equal(f.call.main_cache.rope_offset_bytes, 512);
    f.main.latent_offset_bytes = 64;
    f.main.rope_offset_bytes = 0;
    accepts(&f);
}

/* Both caches have the dims of the call; where their bytes agree with that, their formats need not. */
static void two_formats_of_the_same_dims_are_accepted(void **state)
{
    static const int formats[] = {SPARSE_MLA_FP8_DS_MLA, SPARSE_MLA_FLAT_BF16, SPARSE_MLA_FLAT_F16,
                                  SPARSE_MLA_FLAT_E4M3, SPARSE_MLA_Q8_0};
    struct fixture f;
    (void)state;
    for (int i = 0; i < 5 * 5; i++) {
        fill(&f);
        fill_cache(&f.main, formats[i % 5], 1152);
        fill_cache(&f.extra, formats[i / 5], 1152);
        accepts(&f);
    }
    fill_v4(&f);
    f.extra = f.main;
    f.extra.page_size = 2;
    f.extra.page_stride_bytes = 3 * 576;
    f.args.extra_cache = &f.extra;
    accepts(&f);
    fill_cache(&f.extra, SPARSE_MLA_FLAT_BF16, 1024); /* its value would have 448 dims, without the rope */
    refuses(&f, SPARSE_MLA_INVALID_ARGUMENT, "value_dim is 512: flat_bf16 with these dims has 448");
}

#define ENTRY(name, breakage, sentence) cmocka_unit_test(refuses_##name),

int main(void)
{
    const struct CMUnitTest tests[] = {
        RULES(ENTRY) cmocka_unit_test(args_missing),
        cmocka_unit_test(odd_struct_sizes_are_refused),
        cmocka_unit_test(older_headers_get_defaults),
        cmocka_unit_test(newer_headers_may_not_use_what_is_new),
        cmocka_unit_test(defaults_are_filled_in),
        cmocka_unit_test(what_is_given_is_kept),
        cmocka_unit_test(strides_of_single_steps_are_ignored),
        cmocka_unit_test(shapes_need_no_pointers),
        cmocka_unit_test(extremes_are_accepted),
        cmocka_unit_test(every_format_is_accepted),
        cmocka_unit_test(two_formats_of_the_same_dims_are_accepted),
    };
    return cmocka_run_group_tests_name("call", tests, NULL, NULL);
}
