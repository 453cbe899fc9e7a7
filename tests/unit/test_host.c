/* SPDX-License-Identifier: Apache-2.0 */
/* The host backend on ordinary calls: layouts, dims, types, caches, ranges. test_host_inputs.c has the odd ones. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "host_world.h"

static void every_format_and_page_size(void **state)
{
    static const int pages[] = {1, 2, 61, 64, 69, 256};
    (void)state;
    for (int format = 0; format < FORMATS; format++)
        for (int i = 0; i < 6; i++) {
            struct shape shape = small(format);
            shape.cache[0].page_size = pages[i];
            check_shape(&shape);
            shape.cache[0].table = true;
            check_shape(&shape);
        }
}

static void rope_free_656_never_reads_its_tail(void **state)
{
    struct shape shape = small(SPARSE_MLA_FP8_DS_MLA);
    (void)state;
    shape.rope_dim = 0;
    check_shape(&shape);
}

static void flat_dims_and_offsets(void **state)
{
    static const int latent[] = {64, 192, 448, 512}, rope[] = {0, 32, 64};
    (void)state;
    for (int i = 0; i < 4 * 3 * 2 * 2; i++) {
        struct shape shape = small(i & 1 ? SPARSE_MLA_FLAT_F16 : SPARSE_MLA_FLAT_BF16);
        shape.cache[0].rope_first = i & 2;
        shape.latent_dim = latent[i / 4 % 4];
        shape.rope_dim = rope[i / 16];
        check_shape(&shape);
    }
}

/* As llama.cpp's caches have it: nothing between the rope's two blocks and the latent's sixteen. */
static void q8_0_rope_first_without_gaps(void **state)
{
    struct shape shape = small(SPARSE_MLA_Q8_0);
    struct world w;
    (void)state;
    shape.cache[0].rope_first = true;
    build(&w, &shape);
    w.cache[0].rope_offset_bytes = 0;
    w.cache[0].latent_offset_bytes = 68;
    w.cache[0].row_stride_bytes = 612;
    w.cache[0].page_stride_bytes = 64 * 612;
    for (int slot = 0; slot < 150; slot++) {
        w.cache[0].data = w.clean[0];
        fill_record(&w, &w.cache[0], slot);
    }
    naive_decode(&w.args, w.want, w.want_lse);
    run(&w);
    compare(&w);
    destroy(&w);
}

static void formats_of_fixed_dims_with_offsets(void **state)
{
    static const int formats[] = {SPARSE_MLA_FLAT_E4M3, SPARSE_MLA_Q8_0};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct shape shape = small(formats[i]);
        shape.cache[0].rope_first = true;
        check_shape(&shape);
        shape.cache[0].table = true;
        shape.one_view = true;
        check_shape(&shape);
    }
}

static void head_counts(void **state)
{
    static const int heads[] = {1, 7, 8, 9, 16, 127, 128};
    (void)state;
    for (int i = 0; i < 7; i++) {
        struct shape shape = small(SPARSE_MLA_FP8_DS_MLA);
        shape.heads = heads[i];
        check_shape(&shape);
    }
}

static void dtypes_and_views(void **state)
{
    (void)state;
    for (int format = 0; format < FORMATS; format++)
        for (int i = 0; i < 3 * 3 * 2; i++) {
            struct shape shape = small(format);
            shape.heads = 9;
            shape.cache[0].topk = 20;
            shape.q_dtype = i % 3;
            shape.out_dtype = i / 3 % 3;
            shape.one_view = i / 9;
            check_shape(&shape);
        }
}

static void widths(void **state)
{
    static const int topk[] = {1, 15, 16, 17, 2048, 2051};
    (void)state;
    for (int i = 0; i < 6; i++) {
        struct shape shape = small(SPARSE_MLA_FLAT_BF16);
        shape.heads = 3;
        shape.cache[0].topk = topk[i];
        check_shape(&shape);
    }
}

static void dense_needs_no_indices(void **state)
{
    static const int32_t lengths[] = {1, 149, 150, 90};
    (void)state;
    for (int i = 0; i < 2 * FORMATS; i++) {
        struct shape shape = small(i / 2);
        struct world w;
        shape.cache[0].topk = 150;
        shape.cache[0].dense = true;
        shape.cache[0].table = i % 2;
        build(&w, &shape);
        w.cache[0].lengths = lengths;
        check(&w);
        destroy(&w);
    }
}

static void two_caches_share_one_softmax(void **state)
{
    static const int32_t none[] = {0, 0, 70, 70};
    struct shape shape = small(SPARSE_MLA_FP8_DS_MLA);
    struct world w;
    (void)state;
    shape.caches = 2;
    shape.cache[1].format = SPARSE_MLA_FLAT_F16;
    shape.cache[1].table = true;
    build(&w, &shape);
    check(&w);
    set_lengths(&w, none, SPARSE_MLA_LENGTH_PER_TOKEN);
    w.cache[1].lengths = none + 1;
    w.cache[1].length_mode = SPARSE_MLA_LENGTH_PER_REQUEST;
    check(&w);
    w.indices[0][w.cache[0].indices_request_stride] = 150; /* a fault in each */
    w.indices[1][w.cache[1].indices_request_stride] = 200;
    check(&w);
    destroy(&w);
}

/* Each with its own layout, page size, strides, table and kind of lengths. */
static void two_caches_of_any_formats(void **state)
{
    static const int32_t per_token[] = {70, 3, 0, 66}, per_request[] = {12, 0, 37}, requests[] = {2, 0, 1, 7};
    (void)state;
    for (int i = 0; i < FORMATS * FORMATS; i++) {
        struct shape shape = small(i % FORMATS);
        struct world w;
        const int other = i / FORMATS;
        if (small(other).latent_dim != shape.latent_dim || small(other).rope_dim != shape.rope_dim)
            continue;
        shape.heads = 3;
        shape.caches = 2;
        shape.cache[1].format = other;
        shape.cache[1].rope_first = is_flat(other);
        shape.cache[0].table = true;
        build(&w, &shape);
        w.cache[1].tensor_scale = -0.031f;
        check(&w);
        set_lengths(&w, per_token, SPARSE_MLA_LENGTH_PER_TOKEN);
        w.cache[1].lengths = per_request;
        w.cache[1].length_mode = SPARSE_MLA_LENGTH_PER_REQUEST;
        w.cache[1].block_table = w.table[1];
        check(&w);
        w.args.request_of_token = requests;
        w.args.num_requests = 3;
        w.cache[0].block_table = w.cache[1].block_table = NULL;
        check(&w);
        destroy(&w);
    }
}

/* DeepSeek-V4: a window of 128 rows in pages of 64, and compressed rows in pages of 2, 64 and 256. */
static void v4_window_and_compressed_rows(void **state)
{
    static const struct {
        int page_size, topk;
    } extra[] = {{64, 512}, {2, 1024}, {256, 8320}};
    static const int32_t window[] = {128, 7};
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct shape shape = small(SPARSE_MLA_FP8_V4);
        struct world w;
        shape.requests = 1;
        shape.heads = 4;
        shape.caches = 2;
        shape.one_view = true;
        shape.cache[0].topk = 128;
        shape.cache[0].slots = 300;
        shape.cache[1].slots = 1500;
        shape.cache[1].page_size = extra[i].page_size;
        shape.cache[1].topk = extra[i].topk;
        build(&w, &shape);
        assert_int_equal(w.args.value_dim, 512);
        set_lengths(&w, window, SPARSE_MLA_LENGTH_PER_TOKEN);
        check(&w);
        destroy(&w);
    }
}

/* Scores that climb over thousands, so that the reference rises in nearly every block, then fall as far. */
static void scores_of_any_size(void **state)
{
    static const float scales[] = {1e4f, -1e4f, 0, 1e-30f, -0.0625f};
    (void)state;
    for (int i = 0; i < 5; i++) {
        struct shape shape = small(SPARSE_MLA_FP8_DS_MLA);
        struct world w;
        shape.cache[0].topk = 150;
        shape.cache[0].dense = true;
        build(&w, &shape);
        w.args.scale = scales[i];
        check(&w);
        destroy(&w);
    }
}

static void multiply_scales(struct world *w, int group, double factor)
{
    for (int slot = 0; slot < w->cache[0].num_slots; slot++) {
        unsigned char *scales =
            w->clean[0] + (naive_record(&w->cache[0], slot) - (const unsigned char *)w->cache[0].data) + 512;
        put(scales, SPARSE_MLA_F32, group, naive_number(scales, SPARSE_MLA_F32, group) * factor);
    }
}

/* Exact per scale group, since the tolerance of compare() is that of each element. */
static void scales_of_any_size(void **state)
{
    static const int exponents[] = {-60, 60, 100};
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct shape shape = small(SPARSE_MLA_FP8_DS_MLA);
        struct world w;
        shape.rope_dim = 0; /* it has no scales */
        build(&w, &shape);
        w.args.scale = (float)ldexp(0.0625, -exponents[i]);
        for (int group = 0; group < 4; group++)
            multiply_scales(&w, group, ldexp(1, exponents[i]));
        check(&w);
        w.args.scale = 0.0625f;
        for (int group = 0; group < 4; group++)
            multiply_scales(&w, group, ldexp(1, -exponents[i] - 20 + 40 * group / 3));
        check(&w);
        destroy(&w);
    }
}

static void a_token_does_not_depend_on_the_others(void **state)
{
    struct shape shape = small(SPARSE_MLA_FP8_DS_MLA);
    struct world w;
    float together[512], lse;
    (void)state;
    build(&w, &shape);
    check(&w);
    memcpy(together, (float *)w.args.out + out_at(&w, 2, 9), sizeof together);
    lse = lse_at(&w, 2, 9);
    w.args.num_tokens = w.args.q_len = 1;
    w.args.q_latent = (const float *)w.args.q_latent + w.args.q_latent_request_stride;
    w.args.q_rope = (const float *)w.args.q_rope + w.args.q_rope_request_stride;
    w.cache[0].indices += w.cache[0].indices_request_stride;
    run(&w);
    assert_memory_equal(together, (float *)w.args.out + out_at(&w, 0, 9), sizeof together);
    assert_memory_equal(&lse, &w.args.lse[9 * w.args.lse_head_stride], 4);
    destroy(&w);
}

/* Two million slots over 16 GiB of addresses, most of which nobody ever touches. */
static void slots_past_4_gib(void **state)
{
    enum { PAGES = 32769 };
    static const int32_t chosen[] = {2097151, 0, 1048576, 1572929};
    const size_t bytes = (size_t)PAGES << 19;
    struct shape shape = small(SPARSE_MLA_FLAT_BF16);
    struct world w;
    (void)state;
    unsigned char *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED)
        skip();
    shape.cache[0].topk = 4;
    build(&w, &shape);
    w.cache[0].data = data;
    w.cache[0].num_slots = PAGES * 64;
    w.cache[0].page_stride_bytes = 1 << 19;
    for (int t = 0; t < 4; t++)
        memcpy(w.indices[0] + t / 2 * w.cache[0].indices_request_stride + t % 2 * w.cache[0].indices_token_stride,
               chosen, sizeof chosen);
    for (int j = 0; j < 4; j++)
        fill_record(&w, &w.cache[0], chosen[j]);
    naive_decode(&w.args, w.want, w.want_lse);
    run(&w);
    compare(&w);
    munmap(data, bytes);
    destroy(&w);
}

/* decode, prepare, workspace and explain take and refuse the same calls. */
static void all_four_functions_agree(void **state)
{
    sparse_mla_options options;
    sparse_mla_context *context;
    (void)state;
    sparse_mla_options_init(&options);
    options.backend = SPARSE_MLA_BACKEND_HOST;
    assert_int_equal(sparse_mla_create(&options, &context), SPARSE_MLA_OK);
    for (int i = 0; i < 3 * FORMATS; i++) {
        struct shape shape = small(i / 3);
        struct world w;
        size_t bytes = 1;
        sparse_mla_plan_info info;
        sparse_mla_plan_info_init(&info);
        build(&w, &shape);
        w.args.num_heads = i % 3 == 1 ? 129 : w.args.num_heads;
        w.cache[0].format = i % 3 == 2 ? FORMATS : w.cache[0].format;
        const sparse_mla_status status = i % 3 ? SPARSE_MLA_INVALID_ARGUMENT : SPARSE_MLA_OK;
        assert_int_equal(sparse_mla_decode(context, &w.args, NULL), status);
        assert_int_equal(sparse_mla_decode_prepare(context, &w.args, NULL), status);
        assert_int_equal(sparse_mla_decode_workspace(context, &w.args, NULL, &bytes), status);
        assert_int_equal(bytes, 0);
        assert_int_equal(sparse_mla_decode_explain(context, &w.args, NULL, &info), status);
        assert_int_equal(info.limit, SPARSE_MLA_LIMIT_NONE);
        assert_true(info.predicted_us == 0);
        destroy(&w);
    }
    sparse_mla_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_and_page_size),
        cmocka_unit_test(rope_free_656_never_reads_its_tail),
        cmocka_unit_test(flat_dims_and_offsets),
        cmocka_unit_test(q8_0_rope_first_without_gaps),
        cmocka_unit_test(formats_of_fixed_dims_with_offsets),
        cmocka_unit_test(head_counts),
        cmocka_unit_test(dtypes_and_views),
        cmocka_unit_test(widths),
        cmocka_unit_test(dense_needs_no_indices),
        cmocka_unit_test(two_caches_share_one_softmax),
        cmocka_unit_test(two_caches_of_any_formats),
        cmocka_unit_test(v4_window_and_compressed_rows),
        cmocka_unit_test(scores_of_any_size),
        cmocka_unit_test(scales_of_any_size),
        cmocka_unit_test(a_token_does_not_depend_on_the_others),
        cmocka_unit_test(slots_past_4_gib),
        cmocka_unit_test(all_four_functions_agree),
    };
    return cmocka_run_group_tests_name("host", tests, NULL, NULL);
}
