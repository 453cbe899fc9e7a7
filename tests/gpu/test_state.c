/* SPDX-License-Identifier: Apache-2.0 */
/* What lasts from call to call: one workspace for all, captured graphs, the same bits every time, many tokens. */
#include "runner.h"

#include <stdlib.h>
#include <string.h>

static void expect_right(struct problem *p, int samples)
{
    const struct errors e = problem_compare(p, host_context, samples);
    assert_int_equal(e.special_bad, 0);
    assert_true(e.relative <= 2.0e-3);
}

static void *capture(sparse_mla_context *context, struct problem *p, int mode)
{
    void *graph, *exec;
    p->device.workspace = runner_workspace();
    p->device.workspace_size = WORKSPACE_BYTES;
    CUDA(cuStreamBeginCapture_v2(stream, mode));
    if (sparse_mla_decode(context, &p->device, stream) != SPARSE_MLA_OK)
        fail_msg("%s", sparse_mla_last_error());
    CUDA(cuStreamEndCapture(stream, &graph));
    CUDA(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CUDA(cuGraphDestroy(graph));
    return exec;
}

static void test_one_workspace(void **state)
{
    (void)state;
    struct problem replayed, other[4];
    problem_init(&replayed, &(struct spec){.tokens = 2, .heads = 8, .latent = 512, .rope = 64, .main.topk = 2048});
    problem_init(&other[0],
                 &(struct spec){.tokens = 1, .heads = 8, .latent = 512, .rope = 64, .main.topk = 2048, .seed = 1});
    problem_init(&other[1], &(struct spec){.tokens = 256,
                                           .heads = 64,
                                           .latent = 512,
                                           .rope = 64,
                                           .main.topk = 2048,
                                           .format = SPARSE_MLA_FLAT_BF16,
                                           .seed = 2});
    problem_init(&other[2], &(struct spec){.tokens = 3,
                                           .heads = 128,
                                           .latent = 512,
                                           .main.topk = 2051,
                                           .seed = 3,
                                           .format = SPARSE_MLA_FP8_DS_MLA_NOPE});
    problem_init(&other[3], &(struct spec){.tokens = 16,
                                           .heads = 16,
                                           .latent = 512,
                                           .rope = 64,
                                           .main.topk = 512,
                                           .format = SPARSE_MLA_FLAT_F16,
                                           .main.lengths = LENGTHS_PER_TOKEN,
                                           .seed = 4});
    assert_int_equal(sparse_mla_decode_prepare(contexts[1], &replayed.device, stream), SPARSE_MLA_OK);
    void *exec = capture(contexts[1], &replayed, 2);
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 4; i++) {
            runner_decode(contexts[(i + round) % 5 && contexts[(i + round) % 5] ? (i + round) % 5 : 1], &other[i]);
            expect_right(&other[i], 3);
            problem_poison(&replayed);
            CUDA(cuGraphLaunch(exec, stream));
            expect_right(&replayed, 0);
        }
    CUDA(cuGraphExecDestroy(exec));
    problem_free(&replayed);
    for (int i = 0; i < 4; i++)
        problem_free(&other[i]);
}

/* A capture in every mode; the replay has the bits of the direct call. */
static void test_capture_modes(void **state)
{
    (void)state;
    struct problem p;
    problem_init(&p, &(struct spec){.tokens = 5, .heads = 16, .latent = 512, .rope = 64, .main.topk = 2048, .seed = 9});
    runner_decode(contexts[0], &p);
    void *direct = malloc(p.out_bytes), *replayed = malloc(p.out_bytes);
    assert_true(direct && replayed);
    CUDA(cuMemcpyDtoH_v2(direct, (uintptr_t)p.device.out, p.out_bytes));
    for (int mode = 0; mode < 3; mode++) {
        void *exec = capture(contexts[0], &p, mode);
        problem_poison(&p);
        CUDA(cuGraphLaunch(exec, stream));
        CUDA(cuStreamSynchronize(stream));
        CUDA(cuMemcpyDtoH_v2(replayed, (uintptr_t)p.device.out, p.out_bytes));
        assert_memory_equal(direct, replayed, p.out_bytes);
        CUDA(cuGraphExecDestroy(exec));
    }
    free(direct);
    free(replayed);
    problem_free(&p);
}

static void test_repeatable(void **state)
{
    (void)state;
    static const int shapes[][2] = {{1, 8}, {7, 16}, {64, 64}};
    for (int profile = 1; profile < 5; profile++)
        for (int i = 0; contexts[profile] && i < 3; i++) {
            struct problem p;
            problem_init(&p, &(struct spec){.tokens = shapes[i][0],
                                            .heads = shapes[i][1],
                                            .latent = 512,
                                            .rope = 64,
                                            .main.topk = 2048,
                                            .main.masked = 0.1,
                                            .seed = 11});
            unsigned char *first = malloc(p.out_bytes), *again = malloc(p.out_bytes);
            assert_true(first && again);
            for (int run = 0; run < 20; run++) {
                runner_decode(contexts[profile], &p);
                CUDA(cuMemcpyDtoH_v2(run ? again : first, (uintptr_t)p.device.out, p.out_bytes));
                if (run)
                    assert_memory_equal(first, again, p.out_bytes);
            }
            free(first);
            free(again);
            problem_free(&p);
        }
}

static void test_many_tokens(void **state)
{
    (void)state;
    runner_case(0, &(struct spec){.tokens = 70000, .heads = 8, .latent = 512, .rope = 64, .main.topk = 128, .seed = 13},
                24, 0);
    runner_case(0,
                &(struct spec){.tokens = 16384, .heads = 16, .latent = 512, .rope = 64, .main.topk = 256, .seed = 14},
                24, 0);
}

/* The workspace that the library asks for is enough for every smaller number of tokens, and not shrinking. */
static void test_workspace_size(void **state)
{
    (void)state;
    struct problem p;
    size_t before = 0, bytes;
    problem_init(&p,
                 &(struct spec){.tokens = 300, .heads = 16, .latent = 512, .rope = 64, .main.topk = 2048, .seed = 15});
    for (int tokens = 1; tokens <= 300; tokens += 7) {
        p.device.num_tokens = tokens;
        assert_int_equal(sparse_mla_decode_workspace(contexts[0], &p.device, stream, &bytes), SPARSE_MLA_OK);
        assert_true(bytes >= before && bytes <= 64 << 20);
        before = bytes;
        sparse_mla_plan_info info;
        sparse_mla_plan_info_init(&info);
        assert_int_equal(sparse_mla_decode_explain(contexts[0], &p.device, stream, &info), SPARSE_MLA_OK);
        assert_true(info.workspace_bytes <= bytes);
    }
    problem_free(&p);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_workspace), cmocka_unit_test(test_capture_modes),  cmocka_unit_test(test_repeatable),
        cmocka_unit_test(test_many_tokens),   cmocka_unit_test(test_workspace_size),
    };
    runner_open();
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
