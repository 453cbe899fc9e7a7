/* SPDX-License-Identifier: Apache-2.0 */
/* The calls beside decode on a fake driver and a fake NVRTC: what is compiled when, and what is launched. */
#include "fake.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static char root[64];
static char dir[128];
static sparse_mla_options options;
static sparse_mla_context *context;
static sparse_mla_cache cache;
static sparse_mla_merge_args merge;
static sparse_mla_map_slots_args map;
static sparse_mla_cache_append_args append;
static struct CUstream_st *const stream = (struct CUstream_st *)(uintptr_t)0x5000;

static void fill_merge(void)
{
    sparse_mla_merge_args_init(&merge);
    merge.num_parts = 2;
    merge.num_tokens = 5;
    merge.num_heads = 3;
    merge.value_dim = 512;
    merge.flags = SPARSE_MLA_LSE_WITH_SINK | SPARSE_MLA_PART_LSE_BASE2;
    merge.part_dtype = SPARSE_MLA_F32;
    merge.out_dtype = SPARSE_MLA_F16;
    merge.part_out = fake_address(1);
    merge.part_out_stride = 100000;
    merge.part_out_token_stride = 2000;
    merge.part_out_head_stride = 516;
    merge.part_lse = fake_address(2);
    merge.part_lse_stride = 15;
    merge.part_lse_token_stride = 3;
    merge.part_lse_head_stride = 1;
    merge.out = fake_address(3);
    merge.out_token_stride = 1600;
    merge.out_head_stride = 520;
    merge.lse = fake_address(4);
    merge.lse_token_stride = 7;
    merge.lse_head_stride = 2;
    merge.sink = fake_address(5);
}

static void fill_map(void)
{
    sparse_mla_map_slots_args_init(&map);
    map.num_tokens = 6;
    map.q_len = 2;
    map.topk = 2048;
    map.page_size = 64;
    map.num_slots = 64000;
    map.indices = fake_address(1);
    map.indices_request_stride = 4200;
    map.indices_token_stride = 2100;
    map.lengths = fake_address(2);
    map.length_mode = SPARSE_MLA_LENGTH_PER_REQUEST;
    map.block_table = fake_address(3);
    map.block_table_width = 40;
    map.block_table_stride = 48;
    map.request_of_token = fake_address(4);
    map.mask = fake_address(5);
    map.mask_width = 4096;
    map.mask_request_stride = 9000;
    map.mask_token_stride = 4100;
    map.slots = fake_address(6);
    map.slots_request_stride = 4100;
    map.slots_token_stride = 2050;
    map.counts = fake_address(7);
    map.compact = -1;
    map.fault_count = fake_address(8);
}

static void fill_append(int format, int latent_dim, int rope_dim, int64_t row_stride)
{
    sparse_mla_cache_init(&cache);
    cache.format = format;
    cache.data = fake_address(1);
    cache.num_slots = 6400;
    cache.row_stride_bytes = row_stride;
    cache.page_stride_bytes = 64 * (row_stride + 16);
    cache.tensor_scale = 0.5f;
    sparse_mla_cache_append_args_init(&append);
    append.num_rows = 9;
    append.latent_dim = latent_dim;
    append.rope_dim = rope_dim;
    append.src_dtype = SPARSE_MLA_F16;
    append.latent = fake_address(2);
    append.latent_stride = 576;
    append.rope = fake_address(3);
    append.rope_stride = 99;
    append.slots = fake_address(4);
    append.cache = &cache;
    append.fault_count = fake_address(5);
}

static int set_up(void **state)
{
    (void)state;
    fake_reset();
    fake_make_dir(root);
    snprintf(dir, sizeof dir, "%s/cache", root);
    sparse_mla_options_init(&options);
    options.cache_dir = dir;
    options.log = fake_log_line;
    fill_merge();
    fill_map();
    fill_append(SPARSE_MLA_FP8_DS_MLA, 512, 64, 656);
    context = NULL;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    sparse_mla_destroy(context);
    fake_remove_dir(root);
    return 0;
}

/* A process that starts: nothing in memory, the disk as it is. */
static void start(void)
{
    sparse_mla_destroy(context);
    assert_int_equal(smla_context_create(&options, &fake_edges, &context), SPARSE_MLA_OK);
    fake.nvrtc_opens = 0;
    fake.compiles = 0;
    fake.loads = fake.launches = 0;
}

static void expect_counts(int compiles, int loads, int launches)
{
    assert_int_equal(fake.compiles, compiles);
    assert_int_equal(fake.loads, loads);
    assert_int_equal(fake.launches, launches);
}

static sparse_mla_status call(int which)
{
    return which == 0   ? sparse_mla_merge(context, &merge, stream)
           : which == 1 ? sparse_mla_map_slots(context, &map, stream)
                        : sparse_mla_cache_append(context, &append, stream);
}

static void expect(sparse_mla_status status, sparse_mla_status expected, const char *words)
{
    if (status != expected || !strstr(sparse_mla_last_error(), words))
        fail_msg("%s: %s", sparse_mla_status_string(status), sparse_mla_last_error());
}

static const char *const names[3] = {"sparse_mla_merge", "sparse_mla_map_slots", "sparse_mla_cache_append"};

static void each_compiles_its_own_kernel_once(void **state)
{
    char words[64];
    (void)state;
    start();
    for (int i = 0; i < 3; i++) {
        assert_int_equal(call(i), SPARSE_MLA_OK);
        expect_counts(i + 1, i + 1, 2 * i + 1);
        assert_string_equal(fake.launched, names[i]);
        snprintf(words, sizeof words, "-DSMLA_NAME=%s\n-DSMLA_PROGRAM=%d\n", names[i], i + 1);
        assert_non_null(strstr(fake.options, words));
        assert_int_equal(call(i), SPARSE_MLA_OK);
        expect_counts(i + 1, i + 1, 2 * i + 2);
    }
    start();
    for (int i = 0; i < 3; i++)
        assert_int_equal(call(i), SPARSE_MLA_OK); /* from disk */
    expect_counts(0, 3, 3);
    assert_int_equal(fake.nvrtc_opens, 0);
}

/* Shapes, dtypes and formats are run-time parameters. */
static void another_shape_compiles_nothing(void **state)
{
    (void)state;
    start();
    for (int i = 0; i < 3; i++)
        assert_int_equal(call(i), SPARSE_MLA_OK);
    merge.value_dim = 64;
    merge.part_dtype = SPARSE_MLA_BF16;
    merge.part_out_head_stride = 512;
    map.topk = 17;
    map.mask = NULL;
    fill_append(SPARSE_MLA_Q8_0, 512, 64, 612);
    for (int i = 0; i < 3; i++)
        assert_int_equal(call(i), SPARSE_MLA_OK);
    options.profile = SPARSE_MLA_PROFILE_SM80;
    start();
    for (int i = 0; i < 3; i++)
        assert_int_equal(call(i), SPARSE_MLA_OK);
    expect_counts(0, 3, 3);
}

static void a_capture_loads_but_never_compiles(void **state)
{
    (void)state;
    start();
    fake.capture = 1;
    for (int i = 0; i < 3; i++) {
        expect(call(i), SPARSE_MLA_NOT_READY, names[i]);
        expect(call(i), SPARSE_MLA_NOT_READY, "during stream capture; call sparse_mla_tools_prepare() before it");
    }
    expect_counts(0, 0, 0);
    fake.capture = 0;
    assert_int_equal(sparse_mla_tools_prepare(context, stream), SPARSE_MLA_OK);
    expect_counts(3, 3, 0);
    fake.capture = 1;
    for (int i = 0; i < 3; i++)
        assert_int_equal(call(i), SPARSE_MLA_OK);
    expect_counts(3, 3, 3);
}

static void on_miss_fail_and_warm(void **state)
{
    (void)state;
    options.on_miss = SPARSE_MLA_ON_MISS_FAIL;
    start();
    for (int i = 0; i < 3; i++)
        expect(call(i), SPARSE_MLA_NOT_READY, "options.on_miss is FAIL");
    expect(sparse_mla_tools_prepare(context, stream), SPARSE_MLA_NOT_READY, "options.on_miss is FAIL");
    expect(sparse_mla_tools_warm(context, "sm_9"), SPARSE_MLA_INVALID_ARGUMENT, "target is \"sm_9\"");
    expect(sparse_mla_tools_warm(context, "sm_75"), SPARSE_MLA_UNSUPPORTED, "sm_80 or higher");
    expect(sparse_mla_tools_warm(NULL, "sm_90"), SPARSE_MLA_INVALID_ARGUMENT, "context is NULL");
    expect(sparse_mla_tools_prepare(NULL, stream), SPARSE_MLA_INVALID_ARGUMENT, "context is NULL");
    fake.driver_status = SPARSE_MLA_NO_DRIVER;
    assert_int_equal(sparse_mla_tools_warm(context, "sm_90"), SPARSE_MLA_OK);
    expect_counts(3, 0, 0);
    fake.driver_status = SPARSE_MLA_OK;
    start();
    for (int i = 0; i < 3; i++)
        assert_int_equal(call(i), SPARSE_MLA_OK);
    expect_counts(0, 3, 3);
}

static void decode_prepare_leaves_them_alone(void **state)
{
    sparse_mla_decode_args args;
    (void)state;
    start();
    sparse_mla_decode_args_init(&args);
    args.num_tokens = 1;
    args.num_heads = 8;
    args.latent_dim = args.value_dim = 512;
    args.rope_dim = 64;
    args.scale = 1;
    args.q_latent_head_stride = 576;
    args.out_head_stride = 512;
    cache.topk = 64;
    args.main_cache = &cache;
    assert_int_equal(sparse_mla_decode_prepare(context, &args, stream), SPARSE_MLA_OK);
    assert_non_null(strstr(fake.entry_point, "sparse_mla_decode_"));
    const int compiles = fake.compiles;
    assert_int_equal(call(0), SPARSE_MLA_OK);
    assert_int_equal(fake.compiles, compiles + 1);
}

static void failures_are_those_of_the_driver(void **state)
{
    static const char *const functions[] = {"cuStreamGetCtx", "cuModuleLoadData", "cuLaunchKernelEx"};
    (void)state;
    for (int i = 0; i < 3; i++)
        for (size_t f = 0; f < sizeof functions / sizeof *functions; f++) {
            start();
            fake.failing = functions[f];
            expect(call(i), SPARSE_MLA_DRIVER_ERROR, functions[f]);
            fake.failing = NULL;
            assert_int_equal(call(i), SPARSE_MLA_OK);
        }
    fake.capability = 75;
    start();
    for (int i = 0; i < 3; i++)
        expect(call(i), SPARSE_MLA_UNSUPPORTED, "the device has compute capability 7.5: 8.0 or more is needed");
}

static void nothing_to_do_needs_no_driver(void **state)
{
    (void)state;
    fake.driver_status = SPARSE_MLA_NO_DRIVER;
    start();
    for (int i = 0; i < 3; i++)
        expect(call(i), SPARSE_MLA_NO_DRIVER, "no fake driver");
    merge.num_tokens = map.num_tokens = append.num_rows = 0;
    for (int i = 0; i < 3; i++)
        assert_int_equal(call(i), SPARSE_MLA_OK);
    options.backend = SPARSE_MLA_BACKEND_HOST;
    start();
    assert_int_equal(sparse_mla_tools_prepare(context, stream), SPARSE_MLA_OK);
    expect_counts(0, 0, 0);
}

static void expect_launch(unsigned blocks, unsigned threads, unsigned shared_bytes)
{
    assert_ptr_equal(fake.config.stream, stream);
    assert_int_equal(fake.config.grid_x, blocks);
    assert_int_equal(fake.config.grid_y, 1);
    assert_int_equal(fake.config.grid_z, 1);
    assert_int_equal(fake.config.block_x, threads);
    assert_int_equal(fake.config.block_y, 1);
    assert_int_equal(fake.config.block_z, 1);
    assert_int_equal(fake.config.shared_bytes, shared_bytes);
    assert_int_equal(fake.dynamic_shared, shared_bytes);
    assert_int_equal(fake.config.num_attributes, 0);
}

static void merge_launches_a_warp_per_row(void **state)
{
    const struct smla_merge_params *p = &fake.merge_params;
    (void)state;
    start();
    assert_int_equal(call(0), SPARSE_MLA_OK);
    expect_launch(4, 128, 0);
    assert_ptr_equal(p->part_out, fake_address(1));
    assert_ptr_equal(p->part_lse, fake_address(2));
    assert_ptr_equal(p->out, fake_address(3));
    assert_ptr_equal(p->lse, fake_address(4));
    assert_ptr_equal(p->sink, fake_address(5));
    assert_int_equal(p->part_out_stride, 100000);
    assert_int_equal(p->part_out_token_stride, 2000);
    assert_int_equal(p->part_out_head_stride, 516);
    assert_int_equal(p->part_lse_stride, 15);
    assert_int_equal(p->part_lse_token_stride, 3);
    assert_int_equal(p->part_lse_head_stride, 1);
    assert_int_equal(p->out_token_stride, 1600);
    assert_int_equal(p->out_head_stride, 520);
    assert_int_equal(p->lse_token_stride, 7);
    assert_int_equal(p->lse_head_stride, 2);
    assert_int_equal(p->rows, 15);
    assert_int_equal(p->num_parts, 2);
    assert_int_equal(p->num_heads, 3);
    assert_int_equal(p->value_dim, 512);
    assert_int_equal(p->part_dtype, SMLA_F32);
    assert_int_equal(p->out_dtype, SMLA_F16);
    assert_int_equal(p->flags, SMLA_LSE_WITH_SINK | SMLA_PART_LSE_BASE2);
    assert_int_equal(p->blocks, 4);
    merge.num_tokens = 0x7fffffff;
    merge.num_heads = 1;
    assert_int_equal(call(0), SPARSE_MLA_OK);
    expect_launch(1 << 20, 128, 0);
    assert_int_equal(p->blocks, 1 << 20);
}

static void map_slots_launches_a_block_per_token(void **state)
{
    const struct smla_slots_params *p = &fake.slots_params;
    (void)state;
    start();
    assert_int_equal(call(1), SPARSE_MLA_OK);
    expect_launch(6, 256, 32);
    assert_ptr_equal(p->indices, fake_address(1));
    assert_ptr_equal(p->lengths, fake_address(2));
    assert_ptr_equal(p->block_table, fake_address(3));
    assert_ptr_equal(p->request_of_token, fake_address(4));
    assert_ptr_equal(p->mask, fake_address(5));
    assert_ptr_equal(p->slots, fake_address(6));
    assert_ptr_equal(p->counts, fake_address(7));
    assert_ptr_equal(p->fault_count, fake_address(8));
    assert_int_equal(p->num_slots, 64000);
    assert_int_equal(p->indices_request_stride, 4200);
    assert_int_equal(p->indices_token_stride, 2100);
    assert_int_equal(p->block_table_stride, 48);
    assert_int_equal(p->mask_request_stride, 9000);
    assert_int_equal(p->mask_token_stride, 4100);
    assert_int_equal(p->slots_request_stride, 4100);
    assert_int_equal(p->slots_token_stride, 2050);
    assert_int_equal(p->q_len, 2);
    assert_int_equal(p->topk, 2048);
    assert_int_equal(p->page_size, 64);
    assert_int_equal(p->num_requests, 3);
    assert_int_equal(p->lengths_per_request, 1);
    assert_int_equal(p->block_table_width, 40);
    assert_int_equal(p->mask_width, 4096);
    assert_int_equal(p->compact, 1);
}

/* Format, dims, row stride; then segment kinds, widths and counts, where rope and scales begin, and the blocks. */
static const struct {
    int format, latent_dim, rope_dim, row_stride;
    int latent_segment, latent_width, latent_segments, rope_segment, rope_width, rope_segments;
    int rope_at, scales_at, blocks;
} records[] = {
    {SPARSE_MLA_FP8_DS_MLA, 512, 64, 656, SMLA_SEGMENT_E4M3_FLOAT, 128, 4, SMLA_SEGMENT_BF16, 64, 1, 528, 512, 12},
    {SPARSE_MLA_FP8_DS_MLA, 512, 0, 656, SMLA_SEGMENT_E4M3_FLOAT, 128, 4, SMLA_SEGMENT_BF16, 0, 0, 528, 512, 9},
    {SPARSE_MLA_FP8_DS_MLA_NOPE, 512, 0, 528, SMLA_SEGMENT_E4M3_FLOAT, 128, 4, SMLA_SEGMENT_BF16, 0, 0, 528, 512, 9},
    {SPARSE_MLA_FLAT_BF16, 192, 32, 448, SMLA_SEGMENT_BF16, 64, 3, SMLA_SEGMENT_BF16, 32, 1, 384, 192, 9},
    {SPARSE_MLA_FLAT_F16, 512, 64, 1152, SMLA_SEGMENT_F16, 64, 8, SMLA_SEGMENT_F16, 64, 1, 1024, 512, 21},
    {SPARSE_MLA_FLAT_E4M3, 512, 64, 576, SMLA_SEGMENT_E4M3, 64, 8, SMLA_SEGMENT_E4M3, 64, 1, 512, 512, 21},
    {SPARSE_MLA_FP8_V4, 448, 64, 576, SMLA_SEGMENT_E4M3_UE8M0, 64, 7, SMLA_SEGMENT_BF16, 64, 1, 448, 64 * 576, 18},
    {SPARSE_MLA_Q8_0, 512, 64, 612, SMLA_SEGMENT_Q8_0, 32, 16, SMLA_SEGMENT_Q8_0, 32, 2, 544, 512, 41},
};

static void append_launches_a_warp_per_segment(void **state)
{
    const struct smla_append_params *p = &fake.append_params;
    (void)state;
    start();
    for (size_t i = 0; i < sizeof records / sizeof *records; i++) {
        fill_append(records[i].format, records[i].latent_dim, records[i].rope_dim, records[i].row_stride);
        assert_int_equal(call(2), SPARSE_MLA_OK);
        expect_launch((unsigned)records[i].blocks, 128, 0);
        assert_int_equal(p->blocks, records[i].blocks);
        assert_int_equal(p->latent_segment, records[i].latent_segment);
        assert_int_equal(p->latent_width, records[i].latent_width);
        assert_int_equal(p->latent_segments, records[i].latent_segments);
        assert_int_equal(p->rope_segment, records[i].rope_segment);
        assert_int_equal(p->rope_width, records[i].rope_width);
        assert_int_equal(p->rope_segments, records[i].rope_segments);
        assert_int_equal(p->rope_at, records[i].rope_at);
        assert_int_equal(p->scales_at, records[i].scales_at);
    }
    assert_ptr_equal(p->data, fake_address(1));
    assert_ptr_equal(p->latent, fake_address(2));
    assert_ptr_equal(p->rope, fake_address(3));
    assert_ptr_equal(p->slots, fake_address(4));
    assert_ptr_equal(p->fault_count, fake_address(5));
    assert_int_equal(p->num_slots, 6400);
    assert_int_equal(p->page_stride, 64 * (612 + 16));
    assert_int_equal(p->row_stride, 612);
    assert_int_equal(p->latent_stride, 576);
    assert_int_equal(p->rope_stride, 99);
    assert_int_equal(p->num_rows, 9);
    assert_int_equal(p->page_size, 64);
    assert_int_equal(p->src_dtype, SMLA_F16);
    assert_true(p->tensor_scale == 0.5f);
}

static void scale_rules_and_offsets_are_handed_over(void **state)
{
    const struct smla_append_params *p = &fake.append_params;
    (void)state;
    start();
    assert_int_equal(call(2), SPARSE_MLA_OK);
    assert_int_equal(p->scale_rule, SMLA_SCALE_AMAX);
    append.scale_rule = SPARSE_MLA_SCALE_POW2;
    assert_int_equal(call(2), SPARSE_MLA_OK);
    assert_int_equal(p->scale_rule, SMLA_SCALE_POW2);
    fill_append(SPARSE_MLA_FP8_V4, 448, 64, 576);
    assert_int_equal(call(2), SPARSE_MLA_OK);
    assert_int_equal(p->scale_rule, SMLA_SCALE_V4);
    fill_append(SPARSE_MLA_FLAT_F16, 512, 64, 1168);
    cache.rope_offset_bytes = 16;
    cache.latent_offset_bytes = 144;
    assert_int_equal(call(2), SPARSE_MLA_OK);
    assert_ptr_equal(p->data, (char *)fake_address(1) + 144);
    assert_int_equal(p->rope_at, -128);
}

/* Read by two compilers: neither may put padding in. */
static void the_sizes_of_parameters_are_frozen(void **state)
{
    (void)state;
    assert_int_equal(sizeof(struct smla_merge_params), 160);
    assert_int_equal(sizeof(struct smla_slots_params), 160);
    assert_int_equal(sizeof(struct smla_append_params), 144);
}

#define WITH_WORLD(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_WORLD(each_compiles_its_own_kernel_once),       WITH_WORLD(another_shape_compiles_nothing),
        WITH_WORLD(a_capture_loads_but_never_compiles),      WITH_WORLD(on_miss_fail_and_warm),
        WITH_WORLD(decode_prepare_leaves_them_alone),        WITH_WORLD(failures_are_those_of_the_driver),
        WITH_WORLD(nothing_to_do_needs_no_driver),           WITH_WORLD(merge_launches_a_warp_per_row),
        WITH_WORLD(map_slots_launches_a_block_per_token),    WITH_WORLD(append_launches_a_warp_per_segment),
        WITH_WORLD(scale_rules_and_offsets_are_handed_over), cmocka_unit_test(the_sizes_of_parameters_are_frozen),
    };
    return cmocka_run_group_tests_name("tools", tests, NULL, NULL);
}
