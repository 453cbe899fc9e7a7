/* SPDX-License-Identifier: Apache-2.0 */
/* Calls made by hand: what a few bytes change, what nothing may change, what is refused. */
#include "runner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The first 200 of 250 columns masked: whole tiles without a key, in front of some with. */
static void test_masked_front(void **state)
{
    (void)state;
    for (int profile = 1; profile < 5; profile++)
        for (int format = 0; contexts[profile] && format <= SPARSE_MLA_Q8_0; format++) {
            struct problem p;
            const bool v4 = format == SPARSE_MLA_FP8_V4;
            const struct spec spec = {.tokens = 2,
                                      .heads = 8,
                                      .format = format,
                                      .latent = v4 ? 448 : 512,
                                      .rope = format == SPARSE_MLA_FP8_DS_MLA_NOPE ? 0 : 64,
                                      .main = {.topk = 250, .slots = 300}};
            problem_init(&p, &spec);
            int32_t *indices = (int32_t *)(uintptr_t)p.host_cache.indices;
            for (int t = 0; t < 2; t++)
                for (int j = 0; j < 200; j++)
                    indices[t * 250 + j] = -1;
            problem_upload(&p);
            runner_decode(contexts[profile], &p);
            const struct errors e = problem_compare(&p, host_context, 0);
            assert_true(problem_within(&spec, &e, problem_tolerance(&spec)));
            problem_free(&p);
        }
}

static unsigned char *row_of(const struct problem *p, int32_t slot)
{
    return problem_row(&p->host_cache, slot);
}

/* A NaN in one selected row reaches the tokens that selected it and no other. */
static void test_nan_row(void **state)
{
    (void)state;
    struct problem p;
    problem_init(
        &p, &(struct spec){
                .tokens = 4, .heads = 8, .latent = 512, .rope = 64, .main = {.topk = 40, .slots = 400}, .seed = 5});
    row_of(&p, p.host_cache.indices[40 + 17])[300] = 0x7F;
    problem_upload(&p);
    runner_decode(contexts[0], &p);
    const struct errors e = problem_compare(&p, host_context, 0);
    assert_int_equal(e.special_bad, 0);
    float lse[32];
    CUDA(cuMemcpyDtoH_v2(lse, (uintptr_t)p.device.lse, sizeof lse));
    assert_true(lse[8] != lse[8]);
    problem_free(&p);
}

/* Keys that have the weight and values of zero, beside one of large scales whose weight is zero. */
static void test_zero_weight_of_large_scale(void **state)
{
    (void)state;
    const float none[4] = {0, 0, 0, 0}, large[4] = {4096, 1e30f, -1e38f, 3e38f};
    for (int profile = 1; profile < 5; profile++) {
        struct problem p;
        if (!contexts[profile])
            continue;
        problem_init(
            &p, &(struct spec){.tokens = 1, .heads = 1, .latent = 512, .rope = 64, .main = {.topk = 16, .slots = 64}});
        const uint16_t *q = p.host.q_latent;
        for (int key = 0; key < 16; key++) {
            unsigned char *row = row_of(&p, p.host_cache.indices[key]);
            memcpy(row + 512, none, sizeof none);
        }
        unsigned char *row = row_of(&p, p.host_cache.indices[7]);
        memcpy(row + 512, large, sizeof large);
        for (int d = 0; d < 512; d++) /* 1.0, against the sign of the query and of the scale */
            row[d] = 0x38 | ((q[d] >> 15 ^ (d / 128 != 2)) << 7);
        problem_upload(&p);
        runner_decode(contexts[profile], &p);
        assert_int_equal(problem_compare(&p, host_context, 0).special_bad, 0);
        problem_free(&p);
    }
}

static void expect_untouched(const struct problem *p)
{
    unsigned char *out = malloc(p->out_bytes);
    assert_non_null(out);
    CUDA(cuCtxSynchronize());
    CUDA(cuMemcpyDtoH_v2(out, (uintptr_t)p->device.out, p->out_bytes));
    for (size_t i = 0; i < p->out_bytes; i++)
        assert_int_equal(out[i], 0xFF);
    free(out);
}

static void test_no_tokens(void **state)
{
    (void)state;
    struct problem p;
    problem_init(&p, &(struct spec){.tokens = 2, .heads = 8, .latent = 512, .rope = 64, .main = {.topk = 64}});
    p.device.num_tokens = 0;
    for (int profile = 0; profile < 5; profile++)
        if (contexts[profile])
            assert_int_equal(sparse_mla_decode(contexts[profile], &p.device, stream), SPARSE_MLA_OK);
    expect_untouched(&p);
    p.device.q_latent = p.device.out = p.device.lse = NULL;
    p.device_cache.data = NULL;
    assert_int_equal(sparse_mla_decode(contexts[0], &p.device, stream), SPARSE_MLA_OK);
    problem_free(&p);
}

static void expect_refusal(const struct problem *p, sparse_mla_status status, const char *word)
{
    assert_int_equal(sparse_mla_decode(contexts[1], &p->device, stream), status);
    assert_non_null(strstr(sparse_mla_last_error(), word));
}

/* What the CUDA backend refuses leaves outputs and workspace as they were. The sm80 path
 * always merges through the workspace. */
static void test_refusals(void **state)
{
    (void)state;
    struct problem p;
    problem_init(&p,
                 &(struct spec){.tokens = 1, .heads = 8, .latent = 512, .rope = 64, .main = {.topk = 2048}, .seed = 6});
    const float scale = p.device.scale;
    p.device.workspace_size = 100;
    p.device.workspace = runner_workspace();
    expect_refusal(&p, SPARSE_MLA_WORKSPACE_TOO_SMALL, "workspace");
    p.device.scale = NAN;
    expect_refusal(&p, SPARSE_MLA_INVALID_ARGUMENT, "scale");
    p.device.scale = INFINITY;
    expect_refusal(&p, SPARSE_MLA_INVALID_ARGUMENT, "scale");
    p.device.scale = scale;
    sparse_mla_cache extra = p.device_cache;
    extra.format = SPARSE_MLA_FLAT_BF16;
    extra.row_stride_bytes = 1152;
    extra.page_stride_bytes = 64 * 1152;
    p.device.extra_cache = &extra;
    expect_refusal(&p, SPARSE_MLA_UNSUPPORTED, "extra_cache.format");
    p.device.extra_cache = NULL;
    expect_untouched(&p);
    runner_decode(contexts[0], &p);
    assert_true(problem_compare(&p, host_context, 0).relative < 2.0e-3);
    problem_free(&p);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masked_front),
        cmocka_unit_test(test_nan_row),
        cmocka_unit_test(test_zero_weight_of_large_scale),
        cmocka_unit_test(test_no_tokens),
        cmocka_unit_test(test_refusals),
    };
    runner_open();
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
