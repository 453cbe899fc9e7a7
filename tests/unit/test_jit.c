/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls on a fake driver and a fake NVRTC: when is compiled, loaded, launched, and what fails how. */
#define _GNU_SOURCE
#include "fake.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

enum { THREADS = 16 };

static char root[64];
static char dir[128];
static sparse_mla_options options;
static sparse_mla_context *context;
static sparse_mla_cache cache;
static sparse_mla_decode_args args;
static _Alignas(256) unsigned char workspace[256];
static struct CUstream_st *const stream = (struct CUstream_st *)(uintptr_t)0x5000;

static int set_up(void **state)
{
    (void)state;
    fake_reset();
    fake_make_dir(root);
    snprintf(dir, sizeof dir, "%s/cache", root);
    sparse_mla_options_init(&options);
    options.cache_dir = dir;
    options.log = fake_log_line;
    fake_glm5(&args, &cache);
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

static sparse_mla_status decode(void)
{
    return sparse_mla_decode(context, &args, stream);
}

/* A call that fails so, with these words in its sentence, and launches nothing. */
static void expect(sparse_mla_status status, sparse_mla_status expected, const char *words)
{
    if (status != expected || !strstr(sparse_mla_last_error(), words))
        print_error("%s: %s\n", sparse_mla_status_string(status), sparse_mla_last_error());
    assert_int_equal(status, expected);
    assert_non_null(strstr(sparse_mla_last_error(), words));
    assert_int_equal(fake.launches, 0);
}

static void expect_counts(int nvrtc_opens, int compiles, int loads, int launches)
{
    assert_int_equal(fake.nvrtc_opens, nvrtc_opens);
    assert_int_equal(fake.compiles, compiles);
    assert_int_equal(fake.loads, loads);
    assert_int_equal(fake.launches, launches);
}

/* ---- the three places a kernel comes from ---- */

static void cold_then_memory_then_disk(void **state)
{
    (void)state;
    start();
    assert_int_equal(decode(), SPARSE_MLA_OK);
    expect_counts(1, 1, 1, 1);
    assert_string_equal(fake.loaded, "cubin sm_90 #1");
    assert_int_equal(fake.nvrtc_for_driver, 13000);
    assert_int_equal(decode(), SPARSE_MLA_OK);
    expect_counts(1, 1, 1, 2);
    start();
    assert_int_equal(decode(), SPARSE_MLA_OK);
    expect_counts(0, 0, 1, 1);
    assert_string_equal(fake.loaded, "cubin sm_90 #1");
    assert_int_equal(fake.warnings, 0);
}

static void the_compiler_gets_the_variant_and_the_target(void **state)
{
    sparse_mla_plan_info info;
    char name[256];
    (void)state;
    start();
    assert_int_equal(decode(), SPARSE_MLA_OK);
    sparse_mla_plan_info_init(&info);
    assert_int_equal(sparse_mla_decode_explain(context, &args, stream, &info), SPARSE_MLA_OK);
    assert_string_equal(fake.entry_point, info.variant);
    snprintf(name, sizeof name, "=%s\n", info.variant);
    assert_non_null(strstr(fake.options, name));
    assert_non_null(strstr(fake.options, "-arch=sm_90\n"));
    assert_non_null(strstr(fake.options, "--std=c++17\n"));
    assert_non_null(strstr(fake.options, "-modify-stack-limit=false\n"));
    assert_non_null(strstr(fake.options, "-no-cache\n"));
    sparse_mla_cache_clear(context);
    fake.nvrtc_version = 12080; /* which does not know -no-cache */
    start();
    assert_int_equal(decode(), SPARSE_MLA_OK);
    assert_null(strstr(fake.options, "-no-cache"));
}

static void without_a_directory_memory_serves(void **state)
{
    (void)state;
    options.cache_dir = NULL;
    start();
    assert_int_equal(decode(), SPARSE_MLA_OK);
    assert_int_equal(decode(), SPARSE_MLA_OK);
    expect_counts(1, 1, 1, 2);
    assert_int_equal(fake.warnings, 0);
    assert_int_equal(fake.fs_calls, 0);
}

static void a_broken_disk_costs_a_warning(void **state)
{
    (void)state;
    fake.fs_failing = "write";
    fake.fs_errno = ENOSPC;
    start();
    assert_int_equal(decode(), SPARSE_MLA_OK);
    assert_int_equal(decode(), SPARSE_MLA_OK);
    expect_counts(1, 1, 1, 2);
    assert_int_equal(fake.warnings, 1);
    fake.fs_failing = "lock"; /* needed for nothing */
    fake.fs_errno = ENOLCK;
    start();
    assert_int_equal(decode(), SPARSE_MLA_OK);
    expect_counts(1, 1, 1, 1);
}

static void a_damaged_entry_is_compiled_anew(void **state)
{
    uint32_t bad;
    char command[256];
    (void)state;
    start();
    assert_int_equal(decode(), SPARSE_MLA_OK);
    snprintf(command, sizeof command, "for f in %s/*.cubin; do printf x >>$f; done", dir);
    assert_int_equal(system(command), 0);
    start();
    assert_int_equal(decode(), SPARSE_MLA_OK);
    expect_counts(1, 1, 1, 1);
    assert_int_equal(fake.warnings, 1);
    assert_int_equal(sparse_mla_cache_check(context, &bad), SPARSE_MLA_OK);
    assert_int_equal(bad, 0);
}

static void *decode_in_thread(void *status)
{
    *(sparse_mla_status *)status = decode();
    return NULL;
}

static void run_threads(sparse_mla_status expected)
{
    pthread_t threads[THREADS];
    sparse_mla_status statuses[THREADS];
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, decode_in_thread, &statuses[i]), 0);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(statuses[i], expected);
    }
}

static void many_threads_compile_once(void **state)
{
    (void)state;
    fake.compile_ms = 100;
    start();
    run_threads(SPARSE_MLA_OK);
    expect_counts(1, 1, 1, THREADS);
}

static void many_threads_fail_at_once(void **state)
{
    (void)state;
    fake.compile_ms = 300;
    fake.compile_result = SMLA_NVRTC_COMPILATION;
    start();
    run_threads(SPARSE_MLA_COMPILE_FAILED);
    expect_counts(1, 1, 0, 0);
    fake.compile_result = 0; /* and it is tried again later */
    assert_int_equal(decode(), SPARSE_MLA_OK);
    expect_counts(1, 2, 1, 1);
}

static void each_cuda_context_loads_its_own(void **state)
{
    (void)state;
    start();
    assert_int_equal(decode(), SPARSE_MLA_OK);
    fake.of_stream = fake_address(77);
    assert_int_equal(decode(), SPARSE_MLA_OK);
    expect_counts(1, 1, 2, 2);
    assert_true(fake.pushes > 0);
    assert_int_equal(fake.pushes, fake.pops);
}

/* ---- refused cubins ---- */

static void a_refused_cubin_is_replaced_once(void **state)
{
    static const int results[] = {SMLA_CU_INVALID_IMAGE, SMLA_CU_NO_BINARY_FOR_GPU, SMLA_CU_UNSUPPORTED_PTX_VERSION};
    (void)state;
    start();
    assert_int_equal(decode(), SPARSE_MLA_OK);
    for (int i = 0; i < 3; i++) {
        fake.refusals = 1;
        fake.refusal_result = results[i];
        fake.warnings = 0;
        start();
        assert_int_equal(decode(), SPARSE_MLA_OK);
        expect_counts(1, 1, 2, 1);
        assert_int_equal(fake.warnings, 1);
        start();
        assert_int_equal(decode(), SPARSE_MLA_OK);
        expect_counts(0, 0, 1, 1);
    }
}

static void a_fresh_cubin_that_is_refused_means_an_old_driver(void **state)
{
    (void)state;
    fake.refusals = 100;
    fake.refusal_result = SMLA_CU_UNSUPPORTED_PTX_VERSION;
    fake.driver_version = 12040;
    fake.nvrtc_version = 12080;
    start();
    expect(decode(), SPARSE_MLA_DRIVER_TOO_OLD, "CUDA driver 12.4 refuses the compiled kernel sparse_mla_decode_");
    expect_counts(1, 1, 1, 0);
    start();
    expect(decode(), SPARSE_MLA_DRIVER_TOO_OLD, "(222)");
    expect_counts(1, 1, 2, 0);
}

static void other_load_failures_are_not_refusals(void **state)
{
    (void)state;
    start();
    assert_int_equal(decode(), SPARSE_MLA_OK);
    start();
    fake.refusals = 1;
    fake.refusal_result = SMLA_CU_OUT_OF_MEMORY;
    expect(decode(), SPARSE_MLA_OUT_OF_MEMORY, "cuModuleLoadData failed: CUDA_ERROR_FAKE (2)");
    expect_counts(0, 0, 1, 0);
    assert_int_equal(decode(), SPARSE_MLA_OK);
    expect_counts(0, 0, 2, 1);
}

/* ---- when compiling is not allowed ---- */

static void on_miss_fail_never_compiles(void **state)
{
    (void)state;
    options.on_miss = SPARSE_MLA_ON_MISS_FAIL;
    start();
    expect(decode(), SPARSE_MLA_NOT_READY, "options.on_miss is FAIL");
    expect_counts(0, 0, 0, 0);
    assert_int_equal(sparse_mla_warm(context, &args, "sm_90"), SPARSE_MLA_OK);
    start();
    assert_int_equal(decode(), SPARSE_MLA_OK);
    expect_counts(0, 0, 1, 1);
}

static void a_capture_loads_but_never_compiles(void **state)
{
    (void)state;
    fake.capture = 1;
    start();
    expect(decode(), SPARSE_MLA_NOT_READY, "during stream capture");
    expect_counts(0, 0, 0, 0);
    fake.capture = 0;
    assert_int_equal(sparse_mla_decode_prepare(context, &args, stream), SPARSE_MLA_OK);
    expect_counts(1, 1, 1, 0);
    fake.capture = 1;
    assert_int_equal(decode(), SPARSE_MLA_OK); /* from memory */
    start();
    assert_int_equal(decode(), SPARSE_MLA_OK); /* from disk */
    expect_counts(0, 0, 1, 1);
}

static void an_unknown_capture_state_counts_as_capture(void **state)
{
    (void)state;
    fake.failing = "cuStreamIsCapturing";
    fake.failing_result = 906;
    start();
    expect(decode(), SPARSE_MLA_NOT_READY, "during stream capture");
}

/* ---- targets ---- */

static void an_unknown_device_gets_the_nearest_target_of_its_major(void **state)
{
    (void)state;
    fake.capability = 121;
    start();
    assert_int_equal(decode(), SPARSE_MLA_OK);
    assert_string_equal(fake.loaded, "cubin sm_120 #1");
    start();
    assert_int_equal(decode(), SPARSE_MLA_OK); /* NVRTC says which target, the disk has it */
    expect_counts(1, 0, 1, 1);
    fake.nvrtc_status = SPARSE_MLA_NO_COMPILER;
    start();
    assert_int_equal(decode(), SPARSE_MLA_OK);
    expect_counts(1, 0, 1, 1);
    assert_string_equal(fake.loaded, "cubin sm_120 #1");
}

static void a_device_beyond_nvrtc_is_its_own_sentence(void **state)
{
    (void)state;
    fake.capability = 130;
    start();
    expect(decode(), SPARSE_MLA_COMPILER_TOO_OLD,
           "NVRTC 13.0 cannot compile for sm_130; its architectures go from sm_80 to sm_120");
    fake.capability = 100;
    start();
    expect(decode(), SPARSE_MLA_UNSUPPORTED, "cannot compile for sm_100");
}

static void warm_takes_exactly_the_named_target(void **state)
{
    (void)state;
    fake.driver_status = SPARSE_MLA_NO_DRIVER;
    start();
    assert_int_equal(sparse_mla_warm(context, &args, "sm_120"), SPARSE_MLA_OK);
    assert_int_equal(fake.nvrtc_for_driver, 0);
    assert_int_equal(fake.compiles, 1);
    assert_int_equal(sparse_mla_warm(context, &args, "sm_120"), SPARSE_MLA_OK);
    assert_int_equal(fake.compiles, 1);
    expect(sparse_mla_warm(context, &args, "sm_121"), SPARSE_MLA_COMPILER_TOO_OLD, "sm_121");
    static const char *const bad[] = {"", "sm_", "120", "sm_120a", "sm_ 90", "sm_-1", "sm_1", "sm_1200", "compute_90"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        expect(sparse_mla_warm(context, &args, bad[i]), SPARSE_MLA_INVALID_ARGUMENT, "target is");
    expect(sparse_mla_warm(context, &args, NULL), SPARSE_MLA_INVALID_ARGUMENT, "target is \"NULL\"");
    /* What is in memory goes back to a disk that lost it. */
    assert_int_equal(sparse_mla_cache_clear(context), SPARSE_MLA_OK);
    assert_int_equal(sparse_mla_warm(context, &args, "sm_120"), SPARSE_MLA_OK);
    assert_int_equal(fake.compiles, 1);
    start();
    assert_int_equal(sparse_mla_warm(context, &args, "sm_120"), SPARSE_MLA_OK);
    assert_int_equal(fake.nvrtc_opens, 0);
}

/* Its whole purpose is the disk. */
static void warm_fails_without_a_disk(void **state)
{
    static const char *const operations[] = {"open_dir", "open", "write", "fsync", "rename"};
    (void)state;
    for (size_t i = 0; i < sizeof operations / sizeof operations[0]; i++) {
        fake.fs_failing = operations[i];
        fake.fs_errno = ENOSPC;
        start();
        expect(sparse_mla_warm(context, &args, "sm_90"), SPARSE_MLA_CACHE_ERROR, "No space left on device");
        expect(sparse_mla_warm(context, &args, "sm_90"), SPARSE_MLA_CACHE_ERROR, dir);
        assert_int_equal(fake.compiles, i > 0); /* not for a directory that cannot even be opened */
        fake.fs_failing = NULL;
        assert_int_equal(sparse_mla_warm(context, &args, "sm_90"), SPARSE_MLA_OK); /* from memory */
        assert_int_equal(fake.compiles, 1);
        start();
        assert_int_equal(decode(), SPARSE_MLA_OK);
        expect_counts(0, 0, 1, 1);
        assert_int_equal(sparse_mla_cache_clear(context), SPARSE_MLA_OK);
    }
    options.no_disk_cache = 1;
    start();
    expect(sparse_mla_warm(context, &args, "sm_90"), SPARSE_MLA_INVALID_ARGUMENT, "options.no_disk_cache is set");
    options.no_disk_cache = 0;
    options.cache_dir = NULL;
    start();
    expect(sparse_mla_warm(context, &args, "sm_90"), SPARSE_MLA_CACHE_ERROR, "there is no cache directory");
    assert_int_equal(fake.compiles, 0);
}

static void warm_speaks_of_the_target(void **state)
{
    (void)state;
    fake.driver_status = SPARSE_MLA_NO_DRIVER;
    start();
    expect(sparse_mla_warm(context, &args, "sm_75"), SPARSE_MLA_UNSUPPORTED, "target is \"sm_75\"; sm_80 or higher");
}

/* ---- what is missing or too old ---- */

static void a_missing_driver_is_its_own_status(void **state)
{
    (void)state;
    fake.driver_status = SPARSE_MLA_NO_DRIVER;
    start();
    expect(decode(), SPARSE_MLA_NO_DRIVER, "no fake driver");
    fake.driver_status = SPARSE_MLA_OK;
    fake.failing = "cuInit";
    fake.failing_result = SMLA_CU_NO_DEVICE;
    expect(decode(), SPARSE_MLA_NO_DRIVER, "the CUDA driver finds no device");
    fake.failing_result = 803;
    expect(decode(), SPARSE_MLA_NO_DRIVER, "cannot be used: cuInit failed: CUDA_ERROR_FAKE (803)");
    fake.failing = NULL;
    fake.driver_version = 11080;
    expect(decode(), SPARSE_MLA_DRIVER_TOO_OLD, "the CUDA driver is version 11.8; 12.0 or newer is needed");
    fake.driver_version = 12000;
    assert_int_equal(decode(), SPARSE_MLA_OK);
}

static void a_missing_compiler_is_its_own_status(void **state)
{
    (void)state;
    fake.nvrtc_status = SPARSE_MLA_NO_COMPILER;
    start();
    expect(decode(), SPARSE_MLA_NO_COMPILER, "no cache holds sparse_mla_decode_");
    expect(decode(), SPARSE_MLA_NO_COMPILER, "for sm_90, and no fake NVRTC");
    fake.nvrtc_status = SPARSE_MLA_OK;
    fake.nvrtc_version = 12060;
    expect(decode(), SPARSE_MLA_COMPILER_TOO_OLD, "NVRTC (fake) is version 12.6; 12.8 or newer is needed");
    fake.nvrtc_version = 12080;
    assert_int_equal(decode(), SPARSE_MLA_OK);
}

static void a_named_compiler_is_named_with_who_named_it(void **state)
{
    (void)state;
    fake.nvrtc_status = SPARSE_MLA_NO_COMPILER;
    fake.environment[0][0] = "SPARSEMLA_NVRTC", fake.environment[0][1] = "/there/nvrtc.so";
    start();
    expect(decode(), SPARSE_MLA_NO_COMPILER, ", and SPARSEMLA_NVRTC is /there/nvrtc.so: no fake NVRTC");
    options.nvrtc_path = "/here/nvrtc.so";
    start();
    expect(decode(), SPARSE_MLA_NO_COMPILER, ", and options.nvrtc_path is /here/nvrtc.so: no fake NVRTC");
    fake.nvrtc_status = SPARSE_MLA_OK;
    fake.nvrtc_version = 12060;
    expect(decode(), SPARSE_MLA_COMPILER_TOO_OLD, "options.nvrtc_path is /here/nvrtc.so: NVRTC (fake) is version 12.6");
    options.nvrtc_path = NULL;
    fake.environment[0][1] = "";
    start();
    expect(decode(), SPARSE_MLA_COMPILER_TOO_OLD, ", and NVRTC (fake) is version 12.6");
}

static void a_refused_source_shows_the_first_error(void **state)
{
    (void)state;
    fake.compile_result = SMLA_NVRTC_COMPILATION;
    start();
    expect(decode(), SPARSE_MLA_COMPILE_FAILED, "NVRTC_ERROR_COMPILATION (6); the log callback has its output");
    assert_int_equal(fake.warnings, 1);
    assert_true(fake_logged("nvrtc: root.cu(2): error: fake"));
    fake.compile_result = SMLA_NVRTC_OUT_OF_MEMORY;
    expect(decode(), SPARSE_MLA_OUT_OF_MEMORY, "NVRTC 13.0 failed to compile");
}

static void every_driver_function_may_fail(void **state)
{
    static const char *const functions[] = {
        "cuDriverGetVersion",  "cuStreamGetCtx",     "cuCtxGetId",         "cuCtxGetCurrent",
        "cuCtxPushCurrent",    "cuCtxGetDevice",     "cuModuleLoadData",   "cuDeviceGetAttribute",
        "cuModuleGetFunction", "cuFuncSetAttribute", "cuFuncGetAttribute", "cuLaunchKernelEx",
    };
    (void)state;
    fake.current = NULL; /* so that contexts are pushed */
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        start();
        fake.failing = functions[i];
        expect(decode(), SPARSE_MLA_DRIVER_ERROR, functions[i]);
        expect(decode(), SPARSE_MLA_DRIVER_ERROR, "failed: CUDA_ERROR_FAKE (700)");
        fake.failing = NULL;
        assert_int_equal(decode(), SPARSE_MLA_OK); /* the context stays usable */
        assert_int_equal(fake.pushes, fake.pops);
    }
    start();
    fake.failing = "cuMemsetD8Async";
    expect(sparse_mla_workspace_init(context, fake_address(5), 65536, stream), SPARSE_MLA_DRIVER_ERROR,
           "cuMemsetD8Async");
    sparse_mla_device info;
    sparse_mla_device_init(&info);
    fake.failing = "cuDeviceGetName";
    expect(sparse_mla_device_info(context, stream, &info), SPARSE_MLA_DRIVER_ERROR, "cuDeviceGetName");
}

static void a_failed_setup_unloads_its_module(void **state)
{
    (void)state;
    start();
    fake.failing = "cuFuncSetAttribute";
    expect(decode(), SPARSE_MLA_DRIVER_ERROR, "cuFuncSetAttribute");
    assert_int_equal(fake.unloads, 1);
    fake.failing = NULL;
    assert_int_equal(decode(), SPARSE_MLA_OK);
    start(); /* destroys the context */
    assert_int_equal(fake.unloads, 1);
}

static void no_current_context_is_the_callers_mistake(void **state)
{
    (void)state;
    start();
    fake.failing = "cuStreamGetCtx";
    fake.failing_result = SMLA_CU_INVALID_CONTEXT;
    expect(decode(), SPARSE_MLA_INVALID_ARGUMENT, "no CUDA context is current on this thread");
}

/* ---- launching ---- */

static void the_launch_is_what_the_plan_says(void **state)
{
    sparse_mla_plan_info info;
    size_t bytes = 0;
    (void)state;
    start();
    fake.capability = 80; /* no clusters: parts merge through the workspace */
    args.q_len = 2;
    args.lse = fake_address(6);
    args.sink = fake_address(7);
    args.lse_head_stride = 1;
    args.lse_token_stride = 8;
    args.lse_request_stride = 16;
    args.fault_count = fake_address(8);
    args.flags = SPARSE_MLA_LSE_BASE2;
    args.out_dtype = SPARSE_MLA_F32;
    cache.block_table = fake_address(9);
    cache.block_table_width = 40;
    cache.block_table_stride = 48;
    cache.lengths = fake_address(10);
    cache.length_mode = SPARSE_MLA_LENGTH_PER_REQUEST;
    sparse_mla_plan_info_init(&info);
    assert_int_equal(sparse_mla_decode_explain(context, &args, stream, &info), SPARSE_MLA_OK);
    assert_int_equal(info.cached, 0);
    assert_int_equal(info.registers, 0);
    assert_int_equal(decode(), SPARSE_MLA_OK);
    assert_int_equal(sparse_mla_decode_explain(context, &args, stream, &info), SPARSE_MLA_OK);
    assert_int_equal(info.cached, 2);
    assert_int_equal(info.registers, 168);

    assert_ptr_equal(fake.config.stream, stream);
    assert_int_equal(fake.config.grid_x, info.grid_x);
    assert_int_equal(fake.config.grid_y, info.grid_y);
    assert_int_equal(fake.config.grid_z, 1);
    assert_int_equal(fake.config.block_x, info.block_threads);
    assert_int_equal(fake.config.shared_bytes, info.shared_bytes);
    assert_int_equal(fake.dynamic_shared, info.shared_bytes);
    assert_int_equal(fake.config.num_attributes, 0);

    const struct smla_params *params = &fake.params;
    assert_ptr_equal(params->cache.data, fake_address(1));
    assert_ptr_equal(params->cache.indices, fake_address(2));
    assert_ptr_equal(params->cache.block_table, fake_address(9));
    assert_ptr_equal(params->cache.lengths, fake_address(10));
    assert_int_equal(params->cache.lengths_per_request, 1);
    assert_int_equal(params->cache.block_table_width, 40);
    assert_int_equal(params->cache.block_table_stride, 48);
    assert_int_equal(params->cache.page_stride, 64 * 656);
    assert_int_equal(params->cache.row_stride, 656);
    assert_int_equal(params->cache.topk, 2048);
    assert_int_equal(params->cache.page_size, 64);
    assert_int_equal(params->cache.num_slots, 64000);
    assert_ptr_equal(params->q_latent, fake_address(3));
    assert_ptr_equal(params->q_rope, (char *)fake_address(3) + 512 * 2);
    assert_int_equal(params->q_rope_stride.head, 576);
    assert_ptr_equal(params->out, fake_address(4));
    assert_int_equal(params->out_stride.head, 512);
    assert_int_equal(params->lse_stride.request, 16);
    assert_int_equal(params->lse_stride.token, 8);
    assert_ptr_equal(params->lse, fake_address(6));
    assert_ptr_equal(params->sink, fake_address(7));
    assert_ptr_equal(params->fault_count, fake_address(8));
    assert_int_equal(params->q_len, 2);
    assert_int_equal(params->num_requests, 2);
    assert_int_equal(params->num_heads, 8);
    assert_int_equal(params->flags, SPARSE_MLA_LSE_BASE2);
    assert_int_equal(params->out_dtype, SPARSE_MLA_F32);
    assert_true(params->scale_log2 > 0.0901684f && params->scale_log2 < 0.0901685f);

    /* Four tokens on 132 multiprocessors are split: counters, partial outputs, their lse. */
    assert_int_equal(params->num_splits, info.num_splits);
    assert_true(info.num_splits > 1);
    uint64_t rows = 4 * (uint64_t)info.num_splits * 8;
    assert_ptr_equal(params->counters, fake_address(5));
    assert_ptr_equal(params->partials, (char *)fake_address(5) + 65536);
    assert_ptr_equal(params->partial_lse, (char *)fake_address(5) + 65536 + rows * 512 * 4);
    assert_int_equal(info.workspace_bytes, 65536 + rows * 513 * 4);
    assert_int_equal(sparse_mla_decode_workspace(context, &args, stream, &bytes), SPARSE_MLA_OK);
    assert_true(bytes >= info.workspace_bytes);
}

static void no_split_needs_no_workspace(void **state)
{
    (void)state;
    start();
    args.num_tokens = 5000;
    args.workspace = NULL;
    args.workspace_size = 0;
    assert_int_equal(decode(), SPARSE_MLA_OK);
    assert_int_equal(fake.params.num_splits, 1);
    assert_null(fake.params.counters);
    assert_null(fake.params.partials);
    assert_null(fake.params.partial_lse);
}

static void a_wrong_workspace_is_refused(void **state)
{
    (void)state;
    start();
    fake.capability = 80;
    args.workspace_size = 1000;
    expect(decode(), SPARSE_MLA_WORKSPACE_TOO_SMALL, "workspace_size is 1000; this call needs ");
    args.workspace = (char *)args.workspace + 16;
    expect(decode(), SPARSE_MLA_INVALID_ARGUMENT, "workspace");
    args.workspace = NULL;
    expect(decode(), SPARSE_MLA_INVALID_ARGUMENT, "workspace is NULL; this call needs ");
    expect_counts(0, 0, 0, 0);
    expect(sparse_mla_workspace_init(context, NULL, 65536, stream), SPARSE_MLA_INVALID_ARGUMENT, "workspace is ");
    expect(sparse_mla_workspace_init(context, workspace + 1, 65536, stream), SPARSE_MLA_INVALID_ARGUMENT, "256");
    expect(sparse_mla_workspace_init(context, workspace, 65535, stream), SPARSE_MLA_WORKSPACE_TOO_SMALL, "65535");
    assert_int_equal(sparse_mla_workspace_init(context, NULL, 0, stream), SPARSE_MLA_OK);
    assert_int_equal(fake.zeroed_bytes, 0);
    assert_int_equal(sparse_mla_workspace_init(context, fake_address(5), 1 << 20, stream), SPARSE_MLA_OK);
    assert_int_equal(fake.zeroed_at, (uintptr_t)fake_address(5));
    assert_int_equal(fake.zeroed_bytes, 65536);
}

/* Where there are clusters, the parts of a token are one and need no workspace. */
static void parts_are_a_cluster(void **state)
{
    (void)state;
    start();
    args.workspace = NULL;
    assert_int_equal(decode(), SPARSE_MLA_OK);
    assert_true(fake.params.num_splits > 1);
    assert_int_equal(fake.params.clustered, 1);
    assert_int_equal(fake.config.num_attributes, 1);
    assert_int_equal(fake.attribute.id, SMLA_CU_LAUNCH_CLUSTER_DIMENSION);
    assert_int_equal(fake.attribute.value.cluster.x, 1);
    assert_int_equal(fake.attribute.value.cluster.y, fake.params.num_splits);
    assert_int_equal(fake.attribute.value.cluster.z, 1);
    assert_null(fake.params.partials);
}

static void no_token_is_a_success(void **state)
{
    size_t bytes = 7;
    (void)state;
    fake.driver_status = SPARSE_MLA_NO_DRIVER;
    start();
    args.num_tokens = 0;
    assert_int_equal(decode(), SPARSE_MLA_OK);
    assert_int_equal(sparse_mla_decode_prepare(context, &args, stream), SPARSE_MLA_OK);
    assert_int_equal(sparse_mla_decode_workspace(context, &args, stream, &bytes), SPARSE_MLA_OK);
    assert_int_equal(bytes, 0);
    expect_counts(0, 0, 0, 0);
}

static void a_green_context_counts_its_own_multiprocessors(void **state)
{
    sparse_mla_device info;
    (void)state;
    sparse_mla_device_init(&info);
    start();
    assert_int_equal(sparse_mla_device_info(context, stream, &info), SPARSE_MLA_OK);
    assert_int_equal(info.sm_count, 132);
    assert_int_equal(info.compute_capability, 90);
    assert_int_equal(info.driver_version, 13000);
    assert_int_equal(info.nvrtc_version, 13000);
    assert_int_equal(info.shared_bytes_per_block, 232448);
    assert_int_equal(info.profile, SPARSE_MLA_PROFILE_SM90);
    assert_string_equal(info.name, "Fake GPU");
    fake.green_sms = 16;
    start();
    assert_int_equal(sparse_mla_device_info(context, stream, &info), SPARSE_MLA_OK);
    assert_int_equal(info.sm_count, 16);
    fake.failing = "cuCtxGetDevResource"; /* optional */
    start();
    assert_int_equal(sparse_mla_device_info(context, stream, &info), SPARSE_MLA_OK);
    assert_int_equal(info.sm_count, 132);
}

/* ---- options and structs of other versions ---- */

static void options_are_checked(void **state)
{
    struct {
        sparse_mla_options known;
        int unknown;
    } newer;
    (void)state;
    options.backend = 2;
    expect(smla_context_create(&options, &fake_edges, &context), SPARSE_MLA_INVALID_ARGUMENT, "options.backend is 2");
    assert_null(context);
    options.backend = 0;
    options.on_miss = -1;
    expect(smla_context_create(&options, &fake_edges, &context), SPARSE_MLA_INVALID_ARGUMENT, "options.on_miss is -1");
    options.on_miss = 0;
    options.profile = 5;
    expect(smla_context_create(&options, &fake_edges, &context), SPARSE_MLA_INVALID_ARGUMENT, "options.profile is 5");
    options.profile = 0;
    options.struct_size = 9;
    expect(smla_context_create(&options, &fake_edges, &context), SPARSE_MLA_INVALID_ARGUMENT, "struct_size is 9");
    options.struct_size = 4;
    expect(smla_context_create(&options, &fake_edges, &context), SPARSE_MLA_INVALID_ARGUMENT, "struct_size is 4");
    expect(smla_context_create(NULL, &fake_edges, NULL), SPARSE_MLA_INVALID_ARGUMENT, "context is NULL");

    memset(&newer, 0, sizeof newer);
    sparse_mla_options_init(&newer.known);
    newer.known.struct_size = sizeof newer;
    assert_int_equal(smla_context_create(&newer.known, &fake_edges, &context), SPARSE_MLA_OK);
    newer.unknown = 1;
    sparse_mla_destroy(context);
    expect(smla_context_create(&newer.known, &fake_edges, &context), SPARSE_MLA_UNSUPPORTED, "options.struct_size");
    newer.known.struct_size = (size_t)1 << 40;
    expect(smla_context_create(&newer.known, &fake_edges, &context), SPARSE_MLA_INVALID_ARGUMENT, "1099511627776");

    options.struct_size = 64; /* less than any release has */
    expect(smla_context_create(&options, &fake_edges, &context), SPARSE_MLA_INVALID_ARGUMENT, "struct_size is 64");
}

/* The memory of the fake device is the host's: a call of one token over eight slots. */
static void calls_are_dumped(void **state)
{
    static _Alignas(16) unsigned char records[8 * 656], q[8 * 576 * 2], out[8 * 512 * 2];
    static const int32_t indices[16] = {1, 9, -1};
    char dump[128], path[192];
    (void)state;
    snprintf(dump, sizeof dump, "%s/dump", root);
    snprintf(path, sizeof path, "%s/call-%ld-00.safetensors", dump, (long)getpid());
    options.dump_dir = dump;
    options.dump_when = SPARSE_MLA_DUMP_ON_FAULT;
    args.num_tokens = 1;
    cache.num_slots = 8;
    cache.topk = 16;
    cache.indices_request_stride = cache.indices_token_stride = 16;
    cache.data = records;
    cache.indices = indices;
    args.q_latent = q;
    args.out = out;
    start();
    assert_int_equal(sparse_mla_decode_prepare(context, &args, stream), SPARSE_MLA_OK);
    fake.capture = 1;
    assert_int_equal(decode(), SPARSE_MLA_OK);
    assert_true(fake_logged("its stream is being captured"));
    fake.capture = 0;
    fake.failing = "cuMemcpyDtoH";
    fake.failing_result = 700;
    assert_int_equal(decode(), SPARSE_MLA_OK);
    assert_true(fake_logged("a call was not dumped: cuMemcpyDtoH failed"));
    assert_int_equal(access(path, F_OK), -1);
    fake.failing = "cuLaunchKernelEx";
    assert_int_equal(decode(), SPARSE_MLA_DRIVER_ERROR);
    assert_non_null(strstr(sparse_mla_last_error(), "cuLaunchKernelEx"));
    assert_int_equal(access(path, F_OK), 0);
}

static void results_have_the_callers_size(void **state)
{
    static const size_t first = 184, no_sizes[] = {0, 9, 176, sizeof(sparse_mla_plan_info) + 4, 4104};
    struct {
        sparse_mla_plan_info info;
        uint64_t newer;
    } result;
    sparse_mla_device device;
    (void)state;
    start();
    memset(&result, 0xaa, sizeof result);
    result.info.struct_size = sizeof result;
    assert_int_equal(sparse_mla_decode_explain(context, &args, stream, &result.info), SPARSE_MLA_OK);
    assert_int_equal(result.info.struct_size, sizeof result);
    assert_int_equal(result.info.grid_x, 4);
    assert_int_equal(result.info.reserved, 0);
    assert_int_equal(result.info.limit, SPARSE_MLA_LIMIT_LATENCY);
    assert_true(result.info.predicted_us > 0);
    assert_true(result.newer == UINT64_C(0xaaaaaaaaaaaaaaaa));
    memset(&result, 0xaa, sizeof result);
    result.info.struct_size = first; /* that of 0.1.0, which had no limit */
    assert_int_equal(sparse_mla_decode_explain(context, &args, stream, &result.info), SPARSE_MLA_OK);
    assert_int_equal(result.info.grid_x, 4);
    assert_int_equal(result.info.limit, (int)0xaaaaaaaa);
    args.num_tokens = 256; /* on as much memory as the driver says */
    result.info.struct_size = sizeof result.info;
    assert_int_equal(sparse_mla_decode_explain(context, &args, stream, &result.info), SPARSE_MLA_OK);
    assert_int_equal(result.info.limit, SPARSE_MLA_LIMIT_MEMORY);
    assert_true(result.info.predicted_us > 97 && result.info.predicted_us < 98);
    for (size_t i = 0; i < sizeof no_sizes / sizeof no_sizes[0]; i++) {
        memset(&result, 0xaa, sizeof result);
        result.info.struct_size = no_sizes[i];
        expect(sparse_mla_decode_explain(context, &args, stream, &result.info), SPARSE_MLA_INVALID_ARGUMENT,
               ": its _init() function sets it to 192");
        assert_int_equal(result.info.grid_x, 0xaaaaaaaa);
    }
    device.struct_size = sizeof device - 8;
    expect(sparse_mla_device_info(context, stream, &device), SPARSE_MLA_INVALID_ARGUMENT, "info.struct_size is 152");
}

static void null_arguments_are_refused(void **state)
{
    (void)state;
    start();
    expect(sparse_mla_decode(NULL, &args, stream), SPARSE_MLA_INVALID_ARGUMENT, "context is NULL");
    expect(sparse_mla_decode(context, NULL, stream), SPARSE_MLA_INVALID_ARGUMENT, "NULL");
    expect(sparse_mla_decode_workspace(context, &args, stream, NULL), SPARSE_MLA_INVALID_ARGUMENT, "bytes is NULL");
    expect(sparse_mla_decode_explain(context, &args, stream, NULL), SPARSE_MLA_INVALID_ARGUMENT, "info is NULL");
    expect(sparse_mla_device_info(context, stream, NULL), SPARSE_MLA_INVALID_ARGUMENT, "info is NULL");
    expect(sparse_mla_cache_list(context, NULL, NULL), SPARSE_MLA_INVALID_ARGUMENT, "visit is NULL");
    expect(sparse_mla_cache_check(context, NULL), SPARSE_MLA_INVALID_ARGUMENT, "bad is NULL");
    expect(sparse_mla_cache_clear(NULL), SPARSE_MLA_INVALID_ARGUMENT, "context is NULL");
    sparse_mla_destroy(NULL);
}

#define WITH_WORLD(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_WORLD(cold_then_memory_then_disk),
        WITH_WORLD(the_compiler_gets_the_variant_and_the_target),
        WITH_WORLD(without_a_directory_memory_serves),
        WITH_WORLD(a_broken_disk_costs_a_warning),
        WITH_WORLD(a_damaged_entry_is_compiled_anew),
        WITH_WORLD(many_threads_compile_once),
        WITH_WORLD(many_threads_fail_at_once),
        WITH_WORLD(each_cuda_context_loads_its_own),
        WITH_WORLD(a_refused_cubin_is_replaced_once),
        WITH_WORLD(a_fresh_cubin_that_is_refused_means_an_old_driver),
        WITH_WORLD(other_load_failures_are_not_refusals),
        WITH_WORLD(on_miss_fail_never_compiles),
        WITH_WORLD(a_capture_loads_but_never_compiles),
        WITH_WORLD(an_unknown_capture_state_counts_as_capture),
        WITH_WORLD(an_unknown_device_gets_the_nearest_target_of_its_major),
        WITH_WORLD(a_device_beyond_nvrtc_is_its_own_sentence),
        WITH_WORLD(warm_takes_exactly_the_named_target),
        WITH_WORLD(warm_fails_without_a_disk),
        WITH_WORLD(warm_speaks_of_the_target),
        WITH_WORLD(a_missing_driver_is_its_own_status),
        WITH_WORLD(a_missing_compiler_is_its_own_status),
        WITH_WORLD(a_named_compiler_is_named_with_who_named_it),
        WITH_WORLD(a_refused_source_shows_the_first_error),
        WITH_WORLD(every_driver_function_may_fail),
        WITH_WORLD(a_failed_setup_unloads_its_module),
        WITH_WORLD(no_current_context_is_the_callers_mistake),
        WITH_WORLD(the_launch_is_what_the_plan_says),
        WITH_WORLD(no_split_needs_no_workspace),
        WITH_WORLD(a_wrong_workspace_is_refused),
        WITH_WORLD(parts_are_a_cluster),
        WITH_WORLD(no_token_is_a_success),
        WITH_WORLD(a_green_context_counts_its_own_multiprocessors),
        WITH_WORLD(options_are_checked),
        WITH_WORLD(calls_are_dumped),
        WITH_WORLD(results_have_the_callers_size),
        WITH_WORLD(null_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
