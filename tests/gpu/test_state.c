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

/* ---- PROGRAMMATIC_LAUNCH: a call may start early, but sees what is before it in the stream */

enum { STEPS = 24, LATE = 40000 /* clocks */ };

static const char put_source[] = "extern \"C\" __global__ void put(int *to, const int *from, int count, int clocks) {"
                                 "long long start = clock64(); while (clock64() - start < clocks) ;"
                                 "for (int i = threadIdx.x; i < count; i += blockDim.x) to[i] = from[i]; }";

struct chain {
    struct problem p;
    int profile;
    unsigned char *outs; /* device, one per step */
    size_t out_bytes;
    void *put;
    int32_t *rows; /* device: indices of every step */
};

static void decode_step(struct chain *c, int step, uint32_t flags, const void *q)
{
    sparse_mla_decode_args args = c->p.device;
    args.flags = flags;
    args.workspace = runner_workspace();
    args.workspace_size = WORKSPACE_BYTES;
    args.out = c->outs + c->out_bytes * (size_t)step;
    if (q)
        args.q_latent = q;
    if (sparse_mla_decode(contexts[c->profile], &args, stream) != SPARSE_MLA_OK)
        fail_msg("%s", sparse_mla_last_error());
}

/* Another half of the keys each time, written late by a kernel just before the call. */
static void run_order(struct chain *c, uint32_t flags)
{
    for (int step = 0; step < STEPS; step++) {
        int count = c->p.spec.tokens * c->p.spec.main.topk, clocks = LATE;
        int32_t *to = (int32_t *)(uintptr_t)c->p.device_cache.indices;
        const int32_t *from = c->rows + (ptrdiff_t)step * count;
        void *params[] = {&to, &from, &count, &clocks};
        CUDA(cuLaunchKernel(c->put, 1, 1, 1, 256, 1, 1, 0, stream, params, NULL));
        decode_step(c, step, flags, NULL);
        if (!flags)
            CUDA(cuStreamSynchronize(stream));
    }
}

/* Each call's queries are the output of the one before; all share a workspace. */
static void run_chain(struct chain *c, uint32_t flags)
{
    for (int step = 0; step < STEPS; step++) {
        decode_step(c, step, flags, step ? c->outs + c->out_bytes * (size_t)(step - 1) : NULL);
        if (!flags)
            CUDA(cuStreamSynchronize(stream));
    }
}

static unsigned char *outs_of(struct chain *c, void (*run)(struct chain *, uint32_t), uint32_t flags)
{
    unsigned char *outs = malloc(STEPS * c->out_bytes);
    assert_non_null(outs);
    CUDA(cuMemsetD8_v2((uintptr_t)c->outs, 0xFF, STEPS * c->out_bytes));
    CUDA(cuCtxSynchronize());
    run(c, flags);
    CUDA(cuStreamSynchronize(stream));
    CUDA(cuMemcpyDtoH_v2(outs, (uintptr_t)c->outs, STEPS * c->out_bytes));
    return outs;
}

static int32_t *upload_rows(const struct problem *p)
{
    const size_t count = (size_t)(p->spec.tokens * p->spec.main.topk);
    int32_t *rows = malloc(STEPS * count * sizeof *rows);
    uint64_t seed = 4711;
    assert_non_null(rows);
    for (size_t i = 0; i < STEPS * count; i++)
        rows[i] = random_below(&seed, 2) ? -1 : p->host_cache.indices[i % count];
    int32_t *uploaded = cuda_upload(rows, STEPS * count * sizeof *rows);
    CUDA(cuCtxSynchronize());
    free(rows);
    return uploaded;
}

static void compare_orders(int profile, const struct spec *spec, void (*run)(struct chain *, uint32_t))
{
    static void *put;
    if (!put)
        put = cuda_compile(put_source, "put");
    if (!put)
        skip();
    struct chain c = {.profile = profile, .put = put};
    problem_init(&c.p, spec);
    c.out_bytes = c.p.out_bytes;
    c.outs = cuda_alloc(STEPS * c.out_bytes);
    c.rows = upload_rows(&c.p);
    unsigned char *waited = outs_of(&c, run, 0);
    for (int round = 0; round < 5; round++) {
        unsigned char *early = outs_of(&c, run, SPARSE_MLA_PROGRAMMATIC_LAUNCH);
        assert_memory_equal(waited, early, STEPS * c.out_bytes);
        free(early);
    }
    free(waited);
    cuda_free(c.outs);
    cuda_free(c.rows);
    problem_free(&c.p);
}

static void compare_all_orders(void (*run)(struct chain *, uint32_t))
{
    static const int shapes[][3] = {{1, 8, 2048}, {3, 8, 2048}, {2, 64, 2048}, {200, 16, 300}, {16, 128, 1000}};
    for (int profile = 1; profile < 5; profile++)
        for (size_t i = 0; contexts[profile] && i < sizeof shapes / sizeof *shapes; i++)
            compare_orders(profile,
                           &(struct spec){.tokens = shapes[i][0],
                                          .heads = shapes[i][1],
                                          .latent = 512,
                                          .rope = 64,
                                          .main.topk = shapes[i][2],
                                          .q_views = true,
                                          .seed = i},
                           run);
}

static void test_launch_order(void **state)
{
    (void)state;
    compare_all_orders(run_order);
}

static void test_launch_chain(void **state)
{
    (void)state;
    compare_all_orders(run_chain);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_workspace), cmocka_unit_test(test_capture_modes),
        cmocka_unit_test(test_repeatable),    cmocka_unit_test(test_launch_order),
        cmocka_unit_test(test_launch_chain),  cmocka_unit_test(test_workspace_size),
    };
    runner_open();
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
