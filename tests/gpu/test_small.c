/* SPDX-License-Identifier: Apache-2.0 */
/* Small shapes of every code path, on all profiles: what a sanitizer can run through. Odd inputs of all kinds. */
#include "runner.h"

#include <stdio.h>
#include <string.h>

static const struct {
    int format, latent, rope;
} caches[] = {{SPARSE_MLA_FP8_DS_MLA, 512, 64}, {SPARSE_MLA_FP8_DS_MLA, 512, 0}, {SPARSE_MLA_FP8_DS_MLA_NOPE, 512, 0},
              {SPARSE_MLA_FLAT_BF16, 512, 64},  {SPARSE_MLA_FLAT_BF16, 512, 0},  {SPARSE_MLA_FLAT_F16, 512, 64},
              {SPARSE_MLA_FLAT_F16, 256, 32},   {SPARSE_MLA_FLAT_BF16, 64, 64},  {SPARSE_MLA_FLAT_F16, 192, 0}};
enum { CACHES = sizeof caches / sizeof *caches };

static void each_profile(const struct spec *base)
{
    for (int profile = 1; profile < 5; profile++)
        for (int c = 0; contexts[profile] && c < CACHES; c++) {
            struct spec spec = *base;
            spec.format = caches[c].format;
            spec.latent = caches[c].latent;
            spec.rope = caches[c].rope;
            spec.seed += (uint64_t)(profile * 100 + c);
            runner_case(profile, &spec, 0, 2.0e-3);
        }
}

static void test_one_token(void **state)
{
    (void)state;
    each_profile(&(struct spec){.tokens = 1, .heads = 8, .topk = 70, .slots = 200});
}

static void test_odd_inputs(void **state)
{
    (void)state;
    each_profile(&(struct spec){.tokens = 6,
                                .q_len = 2,
                                .heads = 13,
                                .topk = 133,
                                .slots = 300,
                                .page_size = 61,
                                .masked = 0.3,
                                .past = 0.1,
                                .lengths = true,
                                .sink = true,
                                .strided = true});
}

static void test_block_table(void **state)
{
    (void)state;
    each_profile(&(struct spec){.tokens = 4,
                                .q_len = 2,
                                .heads = 16,
                                .topk = 90,
                                .slots = 320,
                                .page_size = 16,
                                .masked = 0.1,
                                .past = 0.05,
                                .lengths = true,
                                .per_request = true,
                                .table = true,
                                .out_dtype = SPARSE_MLA_F16});
}

static void test_dense(void **state)
{
    (void)state;
    each_profile(&(struct spec){.tokens = 2,
                                .heads = 24,
                                .topk = 150,
                                .slots = 149,
                                .page_size = 1,
                                .dense = true,
                                .lengths = true,
                                .out_dtype = SPARSE_MLA_F32});
}

static void test_all_masked(void **state)
{
    (void)state;
    each_profile(&(struct spec){.tokens = 3, .heads = 8, .topk = 200, .masked = 1, .slots = 64, .sink = true});
}

static void test_head_counts(void **state)
{
    (void)state;
    static const int heads[] = {1, 8, 16, 24, 32, 40, 48, 56, 64, 65, 72, 88, 104, 120, 128};
    for (int profile = 1; profile < 5; profile++)
        for (size_t i = 0; contexts[profile] && i < sizeof heads / sizeof *heads; i++)
            runner_case(profile,
                        &(struct spec){.tokens = 1,
                                       .heads = heads[i],
                                       .latent = 512,
                                       .rope = 64,
                                       .topk = 100,
                                       .slots = 300,
                                       .masked = 0.2,
                                       .seed = (uint64_t)heads[i]},
                        0, 2.0e-3);
}

static void test_lse_flags(void **state)
{
    (void)state;
    static const uint32_t flags[] = {SPARSE_MLA_LSE_BASE2, SPARSE_MLA_LSE_WITH_SINK, SPARSE_MLA_LSE_EMPTY_POSINF,
                                     SPARSE_MLA_LSE_BASE2 | SPARSE_MLA_LSE_WITH_SINK};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        runner_case(0,
                    &(struct spec){.tokens = 5,
                                   .heads = 16,
                                   .latent = 512,
                                   .rope = 64,
                                   .topk = 64,
                                   .slots = 300,
                                   .masked = 0.2,
                                   .lengths = true,
                                   .sink = true,
                                   .flags = flags[i],
                                   .seed = i},
                    0, 2.0e-3);
}

/* A NaN in one selected row reaches the tokens that selected it and no other. */
static void test_nan_row(void **state)
{
    (void)state;
    struct problem p;
    problem_init(
        &p, &(struct spec){.tokens = 4, .heads = 8, .latent = 512, .rope = 64, .topk = 40, .slots = 400, .seed = 5});
    const int32_t slot = p.host_cache.indices[40 + 17];
    unsigned char *row = (unsigned char *)p.host_cache.data +
                         slot / p.host_cache.page_size * p.host_cache.page_stride_bytes +
                         slot % p.host_cache.page_size * p.host_cache.row_stride_bytes;
    row[300] = 0x7F;
    CUDA(cuMemcpyHtoD_v2((uintptr_t)p.device_cache.data + (uintptr_t)(row - (unsigned char *)p.host_cache.data), row,
                         656));
    runner_decode(contexts[0], &p);
    const struct errors e = problem_compare(&p, host_context, 0);
    assert_int_equal(e.special_bad, 0);
    float lse[32];
    CUDA(cuMemcpyDtoH_v2(lse, (uintptr_t)p.device.lse, sizeof lse));
    assert_true(lse[8] != lse[8]);
    problem_free(&p);
}

/* What the CUDA backend refuses leaves outputs and workspace as they were. The sm80 path
 * always merges through the workspace. */
static void test_refusals(void **state)
{
    (void)state;
    struct problem p;
    problem_init(&p, &(struct spec){.tokens = 1, .heads = 8, .latent = 512, .rope = 64, .topk = 2048, .seed = 6});
    p.device.workspace_size = 100;
    p.device.workspace = runner_workspace();
    assert_int_equal(sparse_mla_decode(contexts[1], &p.device, stream), SPARSE_MLA_WORKSPACE_TOO_SMALL);
    assert_non_null(strstr(sparse_mla_last_error(), "workspace"));
    p.device.q_dtype = SPARSE_MLA_F32;
    assert_int_equal(sparse_mla_decode(contexts[1], &p.device, stream), SPARSE_MLA_UNSUPPORTED);
    assert_non_null(strstr(sparse_mla_last_error(), "q_dtype"));
    p.device.q_dtype = SPARSE_MLA_BF16;
    runner_decode(contexts[0], &p);
    assert_true(problem_compare(&p, host_context, 0).relative < 2.0e-3);
    problem_free(&p);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_token), cmocka_unit_test(test_odd_inputs), cmocka_unit_test(test_block_table),
        cmocka_unit_test(test_dense),     cmocka_unit_test(test_all_masked), cmocka_unit_test(test_head_counts),
        cmocka_unit_test(test_lse_flags), cmocka_unit_test(test_nan_row),    cmocka_unit_test(test_refusals),
    };
    runner_open();
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
