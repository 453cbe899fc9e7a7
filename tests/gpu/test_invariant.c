/* SPDX-License-Identifier: Apache-2.0 */
/* BATCH_INVARIANT: a token's bits are the same alone, among 300 and among 16384, whatever the others are. */
#include "runner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 16384, SLICE = 300, SEARCHED = 40 };

struct outputs {
    unsigned char *out;
    float *lse;
};

static const struct kind {
    const char *name;
    int format, latent, rope, q_dtype, heads, main, extra;
} kinds[] = {
    {"fp8_ds_mla", SPARSE_MLA_FP8_DS_MLA, 512, 64, SPARSE_MLA_BF16, 8, 1100, 0},
    {"fp8_ds_mla, 2048", SPARSE_MLA_FP8_DS_MLA, 512, 64, SPARSE_MLA_BF16, 16, 2048, 0},
    {"fp8_ds_mla rope-free, 2176", SPARSE_MLA_FP8_DS_MLA_NOPE, 512, 0, SPARSE_MLA_BF16, 8, 2176, 0},
    {"fp8_ds_mla, two caches", SPARSE_MLA_FP8_DS_MLA, 512, 64, SPARSE_MLA_BF16, 8, 600, 500},
    {"flat bf16", SPARSE_MLA_FLAT_BF16, 512, 64, SPARSE_MLA_BF16, 8, 1100, 0},
    {"flat f16, q f32", SPARSE_MLA_FLAT_F16, 512, 64, SPARSE_MLA_F32, 8, 600, 0},
    {"flat e4m3", SPARSE_MLA_FLAT_E4M3, 512, 64, SPARSE_MLA_BF16, 8, 600, 0},
    {"fp8_v4, 128 + 512", SPARSE_MLA_FP8_V4, 448, 64, SPARSE_MLA_BF16, 8, 128, 512},
    {"q8_0, q f32", SPARSE_MLA_Q8_0, 512, 64, SPARSE_MLA_F32, 8, 600, 0},
    {"fp8_ds_mla, 64 heads", SPARSE_MLA_FP8_DS_MLA, 512, 64, SPARSE_MLA_BF16, 64, 300, 0},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static size_t row_bytes(const struct problem *p)
{
    return p->out_bytes / (size_t)p->spec.tokens;
}

/* Runs `count` tokens in the place where they are and reads theirs. */
static struct outputs run_tokens(struct problem *p, int profile, int token, int count)
{
    const size_t out_bytes = row_bytes(p) * (size_t)count;
    const size_t lse_bytes = sizeof(float) * (size_t)(count * p->spec.heads);
    struct outputs o = {malloc(out_bytes), malloc(lse_bytes)};
    struct part part;
    assert_true(o.out && o.lse);
    part_init(&part, &p->device, token, count, 0, p->spec.heads);
    part.args.workspace = runner_workspace();
    part.args.workspace_size = WORKSPACE_BYTES;
    CUDA(cuMemsetD8_v2((uintptr_t)part.args.out, 0xFF, out_bytes));
    CUDA(cuMemsetD8_v2((uintptr_t)part.args.lse, 0xFF, lse_bytes));
    CUDA(cuCtxSynchronize());
    if (sparse_mla_decode(contexts[profile], &part.args, stream) != SPARSE_MLA_OK)
        fail_msg("%s", sparse_mla_last_error());
    CUDA(cuStreamSynchronize(stream));
    CUDA(cuMemcpyDtoH_v2(o.out, (uintptr_t)part.args.out, out_bytes));
    CUDA(cuMemcpyDtoH_v2(o.lse, (uintptr_t)part.args.lse, lse_bytes));
    return o;
}

static void drop(struct outputs o)
{
    free(o.out);
    free(o.lse);
}

/* Row `row` of some outputs and row `other` of others. */
static void expect_same(const struct problem *p, const struct outputs *a, int row, const struct outputs *b, int other,
                        const char *what)
{
    const size_t bytes = row_bytes(p), heads = (size_t)p->spec.heads;
    if (memcmp(a->out + (size_t)row * bytes, b->out + (size_t)other * bytes, bytes) != 0 ||
        memcmp(a->lse + (size_t)row * heads, b->lse + (size_t)other * heads, heads * sizeof(float)) != 0)
        fail_msg("%s: row %d of one call and row %d of another differ", what, row, other);
}

/* The lengths of all tokens but one become others. */
static void change_neighbours(struct problem *p, int token)
{
    uint64_t seed = 12345 + (uint64_t)token;
    sparse_mla_cache *caches[2] = {&p->host_cache, &p->host_extra};
    for (int c = 0; c < 2; c++) {
        int32_t *lengths = (int32_t *)(uintptr_t)caches[c]->lengths;
        for (int t = 0; lengths && t < p->spec.tokens; t++)
            if (t != token)
                lengths[t] = random_below(&seed, caches[c]->topk + 1);
    }
    problem_upload(p);
}

static void run_kind(int profile, const struct kind *kind)
{
    struct problem p;
    char what[128];
    snprintf(what, sizeof what, "%s, profile %s", kind->name, profile_names[profile]);
    problem_init(&p, &(struct spec){.tokens = TOKENS,
                                    .heads = kind->heads,
                                    .format = kind->format,
                                    .latent = kind->latent,
                                    .rope = kind->rope,
                                    .q_dtype = kind->q_dtype,
                                    .main = {.topk = kind->main, .masked = 0.2, .lengths = LENGTHS_PER_TOKEN},
                                    .extra = {.topk = kind->extra, .masked = 0.2, .lengths = LENGTHS_PER_TOKEN},
                                    .flags = SPARSE_MLA_BATCH_INVARIANT,
                                    .seed = (uint64_t)kind->main});
    struct outputs all = run_tokens(&p, profile, 0, TOKENS);
    const struct errors e = problem_compare(&p, host_context, 8);
    if (!problem_within(&p.spec, &e, problem_tolerance(&p.spec)))
        fail_msg("%s: relative %.2e group %.2e lse %.1e special %ld", what, e.relative, e.worst_group, e.lse,
                 e.special_bad);
    for (int first = 0; first < TOKENS; first += TOKENS - SLICE) {
        struct outputs slice = run_tokens(&p, profile, first, SLICE);
        for (int t = 0; t < SLICE; t++)
            expect_same(&p, &all, first + t, &slice, t, what);
        drop(slice);
    }
    for (int i = 0; i < SEARCHED; i++) {
        const int token = i * (TOKENS - 1) / (SEARCHED - 1);
        struct outputs one = run_tokens(&p, profile, token, 1);
        expect_same(&p, &all, token, &one, 0, what);
        drop(one);
    }
    const int token = TOKENS / 2 + kind->main % 7;
    change_neighbours(&p, token);
    for (int count = SLICE; count <= TOKENS; count += TOKENS - SLICE) {
        const int first = count == TOKENS ? 0 : token - 100;
        struct outputs changed = run_tokens(&p, profile, first, count);
        expect_same(&p, &all, token, &changed, token - first, what);
        drop(changed);
    }
    drop(all);
    problem_free(&p);
}

#define TEST_OF(profile)                                                                                               \
    static void test_profile_##profile(void **state)                                                                   \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        for (int i = 0; contexts[profile] && i < KINDS; i++)                                                           \
            run_kind(profile, &kinds[i]);                                                                              \
    }
TEST_OF(1)
TEST_OF(2)
TEST_OF(3)
TEST_OF(4)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_profile_1),
        cmocka_unit_test(test_profile_2),
        cmocka_unit_test(test_profile_3),
        cmocka_unit_test(test_profile_4),
    };
    runner_open();
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
