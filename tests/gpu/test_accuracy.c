/* SPDX-License-Identifier: Apache-2.0 */
/* Relative L2 error against float64 on the same rounded inputs, N(0, 1) data, top-k 2048; FlashMLA's acceptance. */
#include "runner.h"

#include <stdio.h>

static const int head_counts[] = {8, 16, 32, 64, 128};
enum { HEAD_COUNTS = sizeof head_counts / sizeof *head_counts };

static void table_row(const char *what, int profile, int heads, const struct errors *e)
{
    print_message("%-24s %-6s heads %3d  relative %.2e  worst group %.2e  lse %.1e\n", what, profile_names[profile],
                  heads, e->relative, e->worst_group, e->lse);
}

static void test_heads(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int format, rope;
    } caches[] = {{"fp8_ds_mla", SPARSE_MLA_FP8_DS_MLA, 64},
                  {"fp8 rope-free", SPARSE_MLA_FP8_DS_MLA_NOPE, 0},
                  {"flat bf16", SPARSE_MLA_FLAT_BF16, 64},
                  {"flat f16", SPARSE_MLA_FLAT_F16, 64}};
    for (int profile = 1; profile < 5; profile++)
        for (int c = 0; contexts[profile] && c < 4; c++)
            for (int i = 0; i < HEAD_COUNTS; i++) {
                const struct errors e = runner_case(profile,
                                                    &(struct spec){.tokens = 3,
                                                                   .heads = head_counts[i],
                                                                   .format = caches[c].format,
                                                                   .latent = 512,
                                                                   .rope = caches[c].rope,
                                                                   .topk = 2048,
                                                                   .seed = (uint64_t)(c * 8 + i)},
                                                    0, 2.0e-3);
                table_row(caches[c].name, profile, head_counts[i], &e);
            }
}

/* Errors of every scale group by itself; float32 out shows what the rounding of the output hides. */
static void test_scales(void **state)
{
    (void)state;
    static const char *const names[] = {"scales amax", "pow2",      "groups 2^-20..2^20",
                                        "all 2^60",    "all 2^-60", "keys 2^-20..2^20"};
    for (int profile = 1; profile < 5; profile++)
        for (int scales = SCALES_AMAX; contexts[profile] && scales <= SCALES_KEYS; scales++)
            for (int out = 0; out < 2; out++)
                for (int i = 0; i < HEAD_COUNTS; i += 3) {
                    const struct errors e =
                        runner_case(profile,
                                    &(struct spec){.tokens = 2,
                                                   .heads = head_counts[i],
                                                   .latent = 512,
                                                   .rope = 64,
                                                   .topk = 2048,
                                                   .scales = scales,
                                                   .out_dtype = out ? SPARSE_MLA_F32 : SPARSE_MLA_BF16,
                                                   .seed = (uint64_t)(100 + scales)},
                                    0, out ? 1.0e-3 : 2.0e-3);
                    table_row(names[scales], profile, head_counts[i], &e);
                    if (!out)
                        assert_true(e.worst_head <= 4.0e-3);
                }
}

/* FlashMLA's decode grid for d = 576: every element of some tokens of every case. */
static void test_flashmla_grid(void **state)
{
    (void)state;
    static const int shapes[][3] = {{512, 64, 2},    {512, 64, 64},   {512, 64, 69},    {1024, 576, 2},
                                    {1024, 576, 61}, {2046, 2048, 2}, {2046, 2048, 64}, {2046, 2048, 576},
                                    {512, 64, 61},   {650, 576, 53}};
    static const int batches[] = {4, 74, 321}, formats[] = {SPARSE_MLA_FP8_DS_MLA, SPARSE_MLA_FLAT_BF16};
    int cases = 0;
    for (size_t shape = 0; shape < sizeof shapes / sizeof *shapes; shape++)
        for (int rest = 0; rest < 3 * 2 * 2 * 2 * 2; rest++) {
            const int b = batches[rest % 3], s_q = rest / 3 % 2 ? 3 : 1, heads = rest / 6 % 2 ? 128 : 64;
            const bool corner = shape >= 8;
            const struct spec spec = {.tokens = b * s_q,
                                      .q_len = s_q,
                                      .heads = heads,
                                      .latent = 512,
                                      .rope = 64,
                                      .format = formats[rest / 24],
                                      .slots = shapes[shape][0],
                                      .topk = shapes[shape][1],
                                      .page_size = shapes[shape][2],
                                      .clamp = true,
                                      .key_size = 0.1,
                                      .scales = SCALES_POW2,
                                      .masked = corner ? 1 : 0.05,
                                      .sink = rest / 12 % 2,
                                      .lengths = rest / 12 % 2,
                                      .seed = (uint64_t)rest};
            if (corner && b != 4)
                continue;
            const struct errors e = runner_case(0, &spec, 3, 3.0e-3);
            cases++;
            if (e.flashmla_bad || e.flashmla_lse_bad || e.cosine >= 5e-6)
                fail_msg("case %zu/%d: %ld elements, %ld lse outside, cosine %.1e", shape, rest, e.flashmla_bad,
                         e.flashmla_lse_bad, e.cosine);
        }
    print_message("%d cases of FlashMLA's decode grid\n", cases);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_scales),
        cmocka_unit_test(test_flashmla_grid),
    };
    runner_open();
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
