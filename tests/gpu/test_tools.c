/* SPDX-License-Identifier: Apache-2.0 */
/* The calls beside decode against the host backend: cache append, slot mapping, merge. tool_cases.h says how.
 *
 * With the argument "times" the test prints how long some calls take. */
#include "runner.h"
#include "tool_cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned char *memory; /* as large as the block on the host */

static void start_anew(void)
{
    if (!memory)
        memory = cuda_alloc(TOOL_BLOCK_BYTES);
}

static void take_place(size_t at, size_t bytes)
{
    (void)at, (void)bytes;
}

static void *address_of(size_t at)
{
    return memory + at;
}

static void upload(void)
{
    CUDA(cuMemcpyHtoD_v2((uintptr_t)memory, tool_block.host, tool_block.used));
    CUDA(cuCtxSynchronize()); /* pageable memory may still be on its way, and our stream waits for no other */
}

static void download(void)
{
    CUDA(cuStreamSynchronize(stream));
    CUDA(cuMemcpyDtoH_v2(tool_block.read_back, (uintptr_t)memory, tool_block.used));
}

static void poison_shared(void)
{
    runner_poison_shared(stream);
}

struct tool_device tool_device = {.clear = start_anew,
                                  .take = take_place,
                                  .address = address_of,
                                  .upload = upload,
                                  .download = download,
                                  .before = poison_shared};

static void test_append(void **state)
{
    static const int rows[] = {1, 3, 70}, page_sizes[] = {1, 61, 64};
    (void)state;
    for (size_t r = 0; tool_records[r].latent; r++)
        for (int rule = tool_records[r].first_rule; rule <= tool_records[r].last_rule; rule++)
            for (int dtype = SPARSE_MLA_BF16; dtype <= SPARSE_MLA_F32; dtype++)
                for (int numbers = 0; numbers < NUMBERS; numbers++)
                    for (int i = 0; i < 3; i++)
                        tool_append_case(tool_records[r].format, tool_records[r].latent, tool_records[r].rope, dtype,
                                         rule, rows[i], page_sizes[(i + rule) % 3], numbers);
}

/* Enough rows for several units of work per warp, and millions of different bits. */
static void test_append_many(void **state)
{
    (void)state;
    for (size_t r = 0; tool_records[r].latent; r++)
        tool_append_case(tool_records[r].format, tool_records[r].latent, tool_records[r].rope, SPARSE_MLA_F32,
                         tool_records[r].last_rule, 2500, 64, (int)r % 2 ? BITS : NORMAL);
    tool_append_case(SPARSE_MLA_FLAT_E4M3, 512, 64, SPARSE_MLA_F32, 0, 2500, 64, BITS);
    tool_append_case(SPARSE_MLA_Q8_0, 512, 64, SPARSE_MLA_F32, 0, 2500, 64, NORMAL);
}

/* A page beyond 4 GiB: the record there is that of a small cache. */
static void test_append_far(void **state)
{
    enum { ROWS = 3, RECORD = 656 };
    static const int64_t far = ((int64_t)1 << 31) + 4096;
    unsigned char records[ROWS][RECORD];
    sparse_mla_cache cache;
    sparse_mla_cache_append_args args, device_args;
    cu_pointer memory;
    (void)state;
    if (cuda.cuMemAlloc_v2(&memory, (size_t)(2 * far + RECORD)) != 0)
        skip();
    tool_clear();
    tool_fill_cache(&cache, SPARSE_MLA_FP8_DS_MLA, 512, 64, 1, ROWS);
    sparse_mla_cache_append_args_init(&args);
    args.num_rows = ROWS;
    args.latent_dim = 512;
    args.rope_dim = 64;
    args.latent_stride = args.rope_stride = 576;
    unsigned char *source = tool_take((size_t)ROWS * 576 * 2, 16);
    int64_t *slots = tool_take(ROWS * sizeof *slots, 8);
    tool_fill_source(source, SPARSE_MLA_BF16, (int64_t)ROWS * 576, NORMAL);
    for (int i = 0; i < ROWS; i++)
        slots[i] = ROWS - 1 - i;
    args.latent = source;
    args.rope = source + 1024;
    args.slots = slots;
    args.cache = &cache;
    device_args = args;
    device_args.latent = tool_on_device(args.latent);
    device_args.rope = tool_on_device(args.rope);
    device_args.slots = tool_on_device(args.slots);
    tool_device.upload();
    tool_ok(sparse_mla_cache_append(tool_device.host, &args, NULL));
    sparse_mla_cache device_cache = cache;
    device_cache.data = (void *)(uintptr_t)memory;
    device_cache.page_stride_bytes = far;
    device_args.cache = &device_cache;
    tool_ok(sparse_mla_cache_append(tool_device.context, &device_args, tool_device.stream));
    CUDA(cuStreamSynchronize(tool_device.stream));
    for (int i = 0; i < ROWS; i++) {
        CUDA(cuMemcpyDtoH_v2(records[i], memory + (cu_pointer)(i * far), RECORD));
        assert_memory_equal(records[i], (const char *)cache.data + i * cache.page_stride_bytes, RECORD);
    }
    CUDA(cuMemFree_v2(memory));
}

static void test_slots(void **state)
{
    static const int widths[] = {1, 31, 77, 256, 2048, 2051, 5000}, page_sizes[] = {1, 64, 61, 256};
    (void)state;
    for (int options = 0; options < SLOT_OPTIONS; options++)
        for (int i = 0; i < 7; i++)
            tool_slots_case(1 + (options + i) % 5, 1 + (options / 16 + i) % 3, widths[i], page_sizes[(options + i) % 4],
                            options);
    tool_slots_case(300, 2, 2048, 64, WITH_TABLE | COMPACT | WITH_COUNTS | WITH_LENGTHS);
}

static void test_merge(void **state)
{
    static const uint32_t flags[] = {0,
                                     SPARSE_MLA_LSE_BASE2,
                                     SPARSE_MLA_LSE_WITH_SINK | SPARSE_MLA_PART_LSE_BASE2,
                                     SPARSE_MLA_LSE_EMPTY_POSINF,
                                     SPARSE_MLA_LSE_BASE2 | SPARSE_MLA_LSE_WITH_SINK | SPARSE_MLA_LSE_EMPTY_POSINF,
                                     SPARSE_MLA_LSE_BASE2 | SPARSE_MLA_PART_LSE_BASE2};
    static const int parts[] = {1, 2, 3, 8, 33}, dims[] = {512, 64, 8, 1000, 576};
    (void)state;
    for (int dtypes = 0; dtypes < 9; dtypes++)
        for (int f = 0; f < 6; f++)
            for (int i = 0; i < 5; i++)
                tool_merge_case(&(struct merge_spec){.parts = parts[i],
                                                     .tokens = 1 + (f + i) % 4,
                                                     .heads = 1 + (dtypes + 3 * i) % 9,
                                                     .dim = dims[(i + f) % 5],
                                                     .part_dtype = dtypes / 3,
                                                     .out_dtype = dtypes % 3,
                                                     .flags = flags[f],
                                                     .sink = (f + i) % 2,
                                                     .lse = (f + i) % 3 != 0,
                                                     .empty = (i + dtypes) % 4});
    tool_merge_case(&(struct merge_spec){
        .parts = 8, .tokens = 64, .heads = 16, .dim = 512, .out_dtype = SPARSE_MLA_BF16, .lse = true, .empty = 5});
}

/* The same call gives the same bits. */
static void test_merge_twice(void **state)
{
    sparse_mla_merge_args args;
    (void)state;
    tool_clear();
    tool_fill_merge(&args, &(struct merge_spec){.parts = 7,
                                                .tokens = 9,
                                                .heads = 16,
                                                .dim = 512,
                                                .part_dtype = 2,
                                                .out_dtype = 2,
                                                .lse = true,
                                                .sink = true});
    const sparse_mla_merge_args device = tool_merge_on_device(&args);
    tool_device.upload();
    tool_ok(sparse_mla_merge(tool_device.context, &device, tool_device.stream));
    tool_device.download();
    memcpy(tool_block.host, tool_block.read_back, tool_block.used);
    tool_ok(sparse_mla_merge(tool_device.context, &device, tool_device.stream));
    tool_device.download();
    tool_compare("again");
}

/* ---- graphs */

static void test_capture(void **state)
{
    sparse_mla_merge_args args;
    void *graph, *exec;
    (void)state;
    tool_ok(sparse_mla_tools_prepare(tool_device.context, tool_device.stream));
    tool_clear();
    tool_fill_merge(&args, &(struct merge_spec){.parts = 2, .tokens = 2, .heads = 8, .dim = 512, .lse = true});
    const sparse_mla_merge_args device = tool_merge_on_device(&args);
    tool_device.upload();
    CUDA(cuStreamBeginCapture_v2(stream, 0));
    tool_ok(sparse_mla_merge(tool_device.context, &device, tool_device.stream));
    CUDA(cuStreamEndCapture(stream, &graph));
    CUDA(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CUDA(cuGraphLaunch(exec, tool_device.stream));
    tool_ok(sparse_mla_merge(tool_device.host, &args, NULL));
    tool_device.download();
    tool_compare_merged(&args, "captured");
    CUDA(cuGraphExecDestroy(exec));
    CUDA(cuGraphDestroy(graph));
}

/* ---- times */

static double microseconds(void (*call)(const void *args), const void *args)
{
    enum { CALLS = 50 };
    void *start, *stop;
    float milliseconds;
    CUDA(cuEventCreate(&start, 0));
    CUDA(cuEventCreate(&stop, 0));
    call(args);
    CUDA(cuEventRecord(start, tool_device.stream));
    for (int i = 0; i < CALLS; i++)
        call(args);
    CUDA(cuEventRecord(stop, tool_device.stream));
    CUDA(cuEventSynchronize(stop));
    CUDA(cuEventElapsedTime(&milliseconds, start, stop));
    return (double)milliseconds * 1000 / CALLS;
}

static void call_append(const void *args)
{
    tool_ok(sparse_mla_cache_append(tool_device.context, args, tool_device.stream));
}

static void call_slots(const void *args)
{
    tool_ok(sparse_mla_map_slots(tool_device.context, args, tool_device.stream));
}

static void call_merge(const void *args)
{
    tool_ok(sparse_mla_merge(tool_device.context, args, tool_device.stream));
}

static void time_append(int rows)
{
    sparse_mla_cache cache;
    sparse_mla_cache_append_args args;
    tool_clear();
    tool_fill_cache(&cache, SPARSE_MLA_FP8_DS_MLA, 512, 64, 64, rows);
    sparse_mla_cache_append_args_init(&args);
    args.num_rows = rows;
    args.latent_dim = 512;
    args.rope_dim = 64;
    args.latent_stride = args.rope_stride = 576;
    unsigned char *source = tool_take((size_t)rows * 576 * 2, 16);
    memset(source, 0x3C, (size_t)rows * 576 * 2);
    int64_t *slots = tool_take((size_t)rows * 8, 8);
    for (int i = 0; i < rows; i++)
        slots[i] = i;
    tool_device.upload();
    cache.data = tool_on_device(cache.data);
    args.cache = &cache;
    args.latent = tool_on_device(source);
    args.rope = tool_on_device(source + 1024);
    args.slots = tool_on_device(slots);
    print_message("append %5d rows, bf16 to fp8_ds_mla: %.1f us per call\n", rows, microseconds(call_append, &args));
}

static void time_slots(int tokens, int compact)
{
    sparse_mla_map_slots_args args;
    tool_clear();
    sparse_mla_map_slots_args_init(&args);
    args.num_tokens = tokens;
    args.topk = 2048;
    args.num_slots = 60 * 64;
    args.block_table_width = 100;
    args.mask_width = 1;
    args.compact = compact;
    tool_fill_slots(&args, WITH_TABLE | WITH_COUNTS);
    tool_device.upload();
    args.indices = tool_on_device(args.indices);
    args.block_table = tool_on_device(args.block_table);
    args.slots = tool_on_device(args.slots);
    args.counts = compact ? tool_on_device(args.counts) : NULL;
    args.fault_count = NULL;
    print_message("map_slots %4d tokens, top-k 2048%s: %.1f us per call\n", tokens, compact ? ", compaction" : "",
                  microseconds(call_slots, &args));
}

static void time_merge(int tokens)
{
    sparse_mla_merge_args args;
    tool_clear();
    tool_fill_merge(&args, &(struct merge_spec){.parts = 8, .tokens = tokens, .heads = 16, .dim = 512, .lse = true});
    args = tool_merge_on_device(&args);
    tool_device.upload();
    print_message("merge 8 parts, %3d tokens, 16 heads, bf16: %.1f us per call\n", tokens,
                  microseconds(call_merge, &args));
}

static void print_times(void)
{
    time_append(1);
    time_append(64);
    time_append(16384);
    for (int compact = 0; compact < 2; compact++) {
        time_slots(1, compact);
        time_slots(256, compact);
    }
    time_merge(1);
    time_merge(256);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_append),  cmocka_unit_test(test_append_many), cmocka_unit_test(test_append_far),
        cmocka_unit_test(test_slots),   cmocka_unit_test(test_merge),       cmocka_unit_test(test_merge_twice),
        cmocka_unit_test(test_capture),
    };
    runner_open();
    tool_device.context = contexts[0];
    tool_device.host = host_context;
    tool_device.stream = stream;
    if (argc > 1 && strcmp(argv[1], "times") == 0) {
        print_times();
        return 0;
    }
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("tools", tests, NULL, NULL);
}
