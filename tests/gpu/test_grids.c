/* SPDX-License-Identifier: Apache-2.0 */
/* The test grids of FlashMLA, FlashInfer and vLLM, some tokens of every case compared element by element. */
#include "runner.h"

#include <math.h>
#include <stdio.h>

enum { SAMPLES = 3 };

static void finish(struct case_list *list, const char *whose)
{
    double most = 0;
    runner_run(list);
    for (int i = 0; i < list->count; i++)
        most = fmax(most, list->cases[i].errors.relative);
    print_message("%d cases of %s grid, relative errors to %.2e\n", list->count, whose, most);
    runner_drop(list);
}

/* ---- FlashMLA's decode grid */

static const struct {
    int slots, topk, page;
    bool corner; /* nothing valid */
} shapes[] = {{512, 64, 2, false},    {512, 64, 64, false},   {512, 64, 69, false},    {1024, 576, 2, false},
              {1024, 576, 61, false}, {2046, 2048, 2, false}, {2046, 2048, 64, false}, {2046, 2048, 576, false},
              {512, 64, 61, true},    {650, 576, 53, true}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* d = 576 has no extra cache there; some cases have one all the same where `extra` says so. */
static void add_flashmla(struct case_list *list, int format, int extra)
{
    static const int batches[] = {4, 74, 321};
    const bool v4 = format == SPARSE_MLA_FP8_V4;
    for (int shape = 0; shape < SHAPES; shape++)
        for (int rest = 0; rest < 3 * 2 * 2 * 2; rest++) {
            const int b = batches[rest % 3], s_q = rest / 3 % 2 ? 3 : 1;
            const bool odd = rest / 12; /* sinks and lengths */
            struct spec spec = {.tokens = b * s_q,
                                .q_len = s_q,
                                .heads = rest / 6 % 2 ? 128 : 64,
                                .latent = v4 ? 448 : 512,
                                .rope = 64,
                                .format = format,
                                .main = {.slots = shapes[shape].slots,
                                         .topk = shapes[shape].topk,
                                         .page_size = shapes[shape].page,
                                         .page_pad = v4 ? PAGES_OF_576 : 0,
                                         .masked = shapes[shape].corner ? 1 : 0.05,
                                         .lengths = odd ? LENGTHS_PER_REQUEST : LENGTHS_NONE},
                                .clamp = true,
                                .key_size = 0.1,
                                .scales = SCALES_POW2,
                                .lse_layout = LAYOUT_TOKENS_LAST,
                                .sink = odd,
                                .seed = (uint64_t)(shape * 100 + rest)};
            if (extra) {
                spec.extra = spec.main;
                spec.extra.slots = extra == 1 ? 1000 : 2046;
                spec.extra.topk = extra == 1 ? 64 : 576;
                spec.extra.page_size = extra == 1 ? 2 : 64;
                spec.extra.masked = shapes[shape].corner && rest % 2 ? 1 : 0.05;
            }
            if (!shapes[shape].corner || b == 4)
                runner_add(list, 0, &spec, SAMPLES, 3.0e-3);
        }
}

static void flashmla(int format, int extra)
{
    struct case_list list = {0};
    add_flashmla(&list, format, extra);
    runner_run(&list);
    for (int i = 0; i < list.count; i++) {
        const struct errors *e = &list.cases[i].errors;
        char text[768];
        spec_describe(&list.cases[i].spec, text, sizeof text);
        if (e->flashmla_bad || e->flashmla_lse_bad || e->cosine >= 5e-6)
            fail_msg("%s: %ld elements, %ld lse outside, cosine %.1e", text, e->flashmla_bad, e->flashmla_lse_bad,
                     e->cosine);
    }
    print_message("%d cases of FlashMLA's decode grid, format %d, extra %d\n", list.count, format, extra);
    runner_drop(&list);
}

static void test_flashmla_fp8(void **state)
{
    (void)state;
    flashmla(SPARSE_MLA_FP8_DS_MLA, 0);
}

static void test_flashmla_bf16(void **state)
{
    (void)state;
    flashmla(SPARSE_MLA_FLAT_BF16, 0);
}

static void test_flashmla_v4(void **state)
{
    (void)state;
    flashmla(SPARSE_MLA_FP8_V4, 0);
}

static void test_flashmla_v4_extra(void **state)
{
    (void)state;
    flashmla(SPARSE_MLA_FP8_V4, 1);
}

static void test_flashmla_v4_extra_576(void **state)
{
    (void)state;
    flashmla(SPARSE_MLA_FP8_V4, 2);
}

static void test_flashmla_fp8_extra(void **state)
{
    (void)state;
    flashmla(SPARSE_MLA_FP8_DS_MLA, 1);
}

/* ---- FlashInfer's, on the profile of sm120 and on the device's own */

static void test_flashinfer_heads(void **state)
{
    (void)state;
    static const int heads[] = {8, 16, 32, 64, 128}, tokens[] = {1, 16, 64, 128, 256};
    static const int profiles[] = {SPARSE_MLA_PROFILE_AUTO, SPARSE_MLA_PROFILE_SM120};
    struct case_list list = {0};
    for (int i = 0; i < 5 * 5 * 2; i++)
        runner_add(&list, profiles[i / 25],
                   &(struct spec){.tokens = tokens[i / 5 % 5],
                                  .heads = heads[i % 5],
                                  .latent = 512,
                                  .rope = 64,
                                  .main = {.topk = 2048, .slots = 8192, .masked = 0.5},
                                  .seed = (uint64_t)i},
                   SAMPLES, 0);
    finish(&list, "FlashInfer's heads and tokens");
}

/* DeepSeek-V4: one cache of every width, then 128 keys beside so many of a second one. */
static void test_flashinfer_v4(void **state)
{
    (void)state;
    static const int pairs[17][2] = {{8, 64},    {8, 128},   {8, 512},   {8, 1024},  {16, 128},  {16, 512},
                                     {16, 1024}, {32, 128},  {32, 512},  {32, 1024}, {64, 128},  {64, 512},
                                     {64, 640},  {64, 1024}, {128, 128}, {128, 512}, {128, 1152}};
    static const int extras[] = {64, 512, 1024, 1664}, pages[] = {64, 2};
    static const int profiles[] = {SPARSE_MLA_PROFILE_AUTO, SPARSE_MLA_PROFILE_SM120};
    struct case_list list = {0};
    for (int p = 0; p < 2; p++)
        for (int i = 0; i < 17; i++) {
            struct spec spec = {.tokens = 1 + 15 * (i % 2),
                                .heads = pairs[i][0],
                                .format = SPARSE_MLA_FP8_V4,
                                .latent = 448,
                                .rope = 64,
                                .main = {.topk = pairs[i][1], .masked = 0.5},
                                .seed = (uint64_t)i};
            runner_add(&list, profiles[p], &spec, SAMPLES, 0);
            spec.main.topk = 128;
            for (int e = 0; e < 8; e++) {
                spec.extra = (struct key_spec){.topk = extras[e % 4],
                                               .page_size = pages[e / 4],
                                               .page_pad = PAGES_OF_576,
                                               .masked = 0.5,
                                               .lengths = e % 2 ? LENGTHS_PER_TOKEN : LENGTHS_NONE};
                if (i == 0 || pairs[i][0] != pairs[i - 1][0])
                    runner_add(&list, profiles[p], &spec, SAMPLES, 0);
            }
        }
    finish(&list, "FlashInfer's V4 and dual-cache");
}

/* ---- vLLM's: request-local positions, block tables, one token per request; its heads of one GPU */

static void test_vllm(void **state)
{
    (void)state;
    static const int batches[][2] = {{4, 56}, {6, 2048}}, pages[] = {32, 64}, heads[] = {16, 64, 128};
    static const int formats[] = {SPARSE_MLA_FP8_DS_MLA, SPARSE_MLA_FLAT_BF16};
    struct case_list list = {0};
    for (int profile = 1; profile < 5; profile++)
        for (int i = 0; i < 2 * 2 * 3 * 2 * 2; i++) {
            const int *batch = batches[i % 2];
            const int slots = batch[0] * ((batch[1] + 63) / 64 * 64);
            runner_add(&list, profile,
                       &(struct spec){.tokens = batch[0] * 3,
                                      .heads = heads[i / 4 % 3],
                                      .format = formats[i / 12 % 2],
                                      .latent = 512,
                                      .rope = 64,
                                      .requests = i / 24 ? batch[0] : 0,
                                      .q_len = i / 24 ? 1 : 3,
                                      .q_layout = LAYOUT_HEADS_FIRST,
                                      .q_views = true,
                                      .main = {.topk = 128,
                                               .slots = slots,
                                               .page_size = pages[i / 2 % 2],
                                               .table = true,
                                               .masked = 0.1,
                                               .lengths = LENGTHS_PER_TOKEN},
                                      .seed = (uint64_t)i},
                       0, 0);
        }
    finish(&list, "vLLM's");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flashmla_fp8),
        cmocka_unit_test(test_flashmla_bf16),
        cmocka_unit_test(test_flashmla_v4),
        cmocka_unit_test(test_flashmla_v4_extra),
        cmocka_unit_test(test_flashmla_v4_extra_576),
        cmocka_unit_test(test_flashmla_fp8_extra),
        cmocka_unit_test(test_flashinfer_heads),
        cmocka_unit_test(test_flashinfer_v4),
        cmocka_unit_test(test_vllm),
    };
    runner_open();
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
