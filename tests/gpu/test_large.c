/* SPDX-License-Identifier: Apache-2.0 */
/* What 32 bits do not count: caches of more than 4 GiB and of more than 2^31 elements, pages far apart, many tokens,
 * queries and outputs of more than 2^31 elements. Skipped where memory is too small. */
#include "runner.h"

#include <stdio.h>
#include <unistd.h>

static bool fits(double device_gib, double host_gib)
{
    size_t free_bytes, total;
    const double host = (double)sysconf(_SC_AVPHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    CUDA(cuMemGetInfo_v2(&free_bytes, &total));
    if ((double)free_bytes >= device_gib * 0x1p30 && host >= host_gib * 0x1p30)
        return true;
    print_message("not run: needs %.0f GiB on the device, %.0f on the host\n", device_gib, host_gib);
    return false;
}

static void run_cache(int profile, const char *name, const struct spec *spec)
{
    struct problem p;
    if (!contexts[profile])
        return;
    problem_init(&p, spec);
    runner_decode(contexts[profile], &p);
    const struct errors e = problem_compare(&p, host_context, 0);
    if (!problem_within(spec, &e, problem_tolerance(spec)))
        fail_msg("%s, profile %s: relative %.2e group %.2e lse %.1e special %ld", name, profile_names[profile],
                 e.relative, e.worst_group, e.lse, e.special_bad);
    problem_free(&p);
}

static void test_caches(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int format, latent, rope, slots, page_size, page_pad;
        bool table;
    } caches[] = {
        {"fp8_ds_mla, 7.0 million slots", SPARSE_MLA_FP8_DS_MLA, 512, 64, 7000000, 64, 0, false},
        {"fp8_ds_mla, block table", SPARSE_MLA_FP8_DS_MLA, 512, 64, 7000000, 64, 0, true},
        {"flat bf16, 2.3e9 elements", SPARSE_MLA_FLAT_BF16, 512, 64, 4000000, 64, 0, false},
        {"flat f16, pages of 1", SPARSE_MLA_FLAT_F16, 512, 64, 4000000, 1, 0, true},
        {"flat e4m3, 7.7 million slots", SPARSE_MLA_FLAT_E4M3, 512, 64, 7700000, 64, 0, false},
        {"fp8_v4, 7.6 million slots", SPARSE_MLA_FP8_V4, 448, 64, 7600000, 64, PAGES_OF_576, false},
        {"q8_0, 7.2 million slots", SPARSE_MLA_Q8_0, 512, 64, 7200000, 61, 0, true},
        {"fp8_ds_mla, pages 1 MiB apart", SPARSE_MLA_FP8_DS_MLA, 512, 64, 16000, 2, 1 << 20, false},
        {"fp8_v4, one page of 4.4 GB", SPARSE_MLA_FP8_V4, 448, 64, 7600000, 7600000, 0, false},
    };
    if (!fits(16, 4))
        skip();
    for (size_t i = 0; i < sizeof caches / sizeof *caches; i++)
        for (int profile = 1; profile < 5; profile++)
            run_cache(profile, caches[i].name,
                      &(struct spec){.tokens = 3,
                                     .heads = 8,
                                     .format = caches[i].format,
                                     .latent = caches[i].latent,
                                     .rope = caches[i].rope,
                                     .main = {.topk = 1000,
                                              .slots = caches[i].slots,
                                              .page_size = caches[i].page_size,
                                              .page_pad = caches[i].page_pad,
                                              .table = caches[i].table,
                                              .past = 0.01},
                                     .seed = i});
}

/* The large one second. */
static void test_extra_cache(void **state)
{
    (void)state;
    if (!fits(16, 4))
        skip();
    for (int profile = 1; profile < 5; profile++)
        run_cache(profile, "fp8_v4 128 + 512",
                  &(struct spec){.tokens = 3,
                                 .heads = 8,
                                 .format = SPARSE_MLA_FP8_V4,
                                 .latent = 448,
                                 .rope = 64,
                                 .main = {.topk = 128},
                                 .extra = {.topk = 512, .slots = 7600000, .page_size = 2, .page_pad = PAGES_OF_576}});
}

static void test_many_tokens(void **state)
{
    (void)state;
    static const int shapes[][2] = {{70000, 128}, {16384, 256}};
    static const struct {
        int format, latent, rope, extra;
    } kinds[] = {{SPARSE_MLA_FP8_DS_MLA, 512, 64, 0}, {SPARSE_MLA_FP8_V4, 448, 64, 64}};
    for (int i = 0; i < 4; i++)
        runner_case(0,
                    &(struct spec){.tokens = shapes[i % 2][0],
                                   .heads = 8 << i % 2,
                                   .format = kinds[i / 2].format,
                                   .latent = kinds[i / 2].latent,
                                   .rope = kinds[i / 2].rope,
                                   .main.topk = shapes[i % 2][1],
                                   .extra.topk = kinds[i / 2].extra,
                                   .seed = (uint64_t)(13 + i)},
                    24, 0);
}

/* q has 2.4e9 elements, out 2.1e9. */
static void test_large_tensors(void **state)
{
    (void)state;
    if (!fits(16, 48))
        skip();
    runner_case(
        0,
        &(struct spec){
            .tokens = 32768, .heads = 128, .latent = 512, .rope = 64, .main = {.topk = 16, .slots = 1000}, .seed = 17},
        24, 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_caches),
        cmocka_unit_test(test_extra_cache),
        cmocka_unit_test(test_many_tokens),
        cmocka_unit_test(test_large_tensors),
    };
    runner_open();
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
