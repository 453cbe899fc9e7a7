/* SPDX-License-Identifier: Apache-2.0 */
/* The contract's grid at small sizes on an emulated device: grid DEVICE [TEST], DEVICE being 80, 89, 90 or 120. Every
 * case runs under several seeds, must agree with the host backend, and must give the same bits each time. */
#include "emulator.h"

#include "../gpu/draw.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { DRAWS = 64, COUNTERS = 65536 };

static sparse_mla_context *host_context;
static sparse_mla_context *whole,
    *small; /* a device as it is, and one of so few multiprocessors that nothing is split */
static int profile;

/* ---- one case */

static void make_workspace(sparse_mla_context *context, struct problem *p)
{
    size_t bytes;
    if (sparse_mla_decode_workspace(context, &p->device, NULL, &bytes) != SPARSE_MLA_OK)
        fail_msg("%s", sparse_mla_last_error());
    p->device.workspace_size = bytes;
    p->device.workspace = bytes ? emulator_alloc(bytes, 0) : NULL;
    if (bytes)
        assert_int_equal(sparse_mla_workspace_init(context, p->device.workspace, bytes, NULL), SPARSE_MLA_OK);
}

static void drop_workspace(struct problem *p)
{
    for (size_t i = 0; p->device.workspace && i < COUNTERS / 4; i++)
        assert_int_equal(((const uint32_t *)p->device.workspace)[i], 0);
    emulator_free(p->device.workspace);
}

static void decode(sparse_mla_context *context, struct problem *p, uint64_t seed)
{
    problem_poison(p);
    make_workspace(context, p);
    emulator_set_seed(seed);
    if (sparse_mla_decode(context, &p->device, NULL) != SPARSE_MLA_OK)
        fail_msg("%s", sparse_mla_last_error());
    drop_workspace(p);
    const struct errors e = problem_compare(p, host_context, 0);
    if (!problem_within(&p->spec, &e, problem_tolerance(&p->spec)))
        fail_msg(
            "values: relative %.2e worst group %.2e head %.2e lse %.2e special %ld; EMULATOR_SEED=%llu runs it alone",
            e.relative, e.worst_group, e.worst_head, e.lse, e.special_bad, (unsigned long long)seed);
}

static void run_case(sparse_mla_context *context, const struct spec *spec, uint64_t seeds)
{
    const char *only = getenv("EMULATOR_SEED");
    char text[768];
    struct problem p;
    problem_init(&p, spec);
    p.threads = 1;
    spec_describe(spec, text, sizeof text);
    print_message("%s\n", text);
    void *first = malloc(p.out_bytes);
    assert_non_null(first);
    for (uint64_t i = 0; i < (only ? 1 : seeds); i++) {
        const uint64_t seed = only ? strtoull(only, NULL, 10) : spec->seed * 10 + i;
        decode(context, &p, seed);
        if (*emulator_report()) /* known */
            continue;
        if (i == 0)
            memcpy(first, p.device.out, p.out_bytes);
        if (memcmp(first, p.device.out, p.out_bytes) != 0)
            fail_msg("values: other bits than with the seed before; EMULATOR_SEED=%llu", (unsigned long long)seed);
    }
    free(first);
    problem_free(&p);
}

/* ---- the grid */

/* All formats, types, layouts and odd inputs: those of the random calls of tests/gpu that are for this profile. */
static void test_draws(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < DRAWS; seed++) {
        struct spec spec;
        if (draw_case(&spec, seed) == profile)
            run_case(whole, &spec, 2);
    }
}

static void test_head_counts(void **state)
{
    (void)state;
    static const int heads[] = {1, 8, 16, 20, 64, 65, 128};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        run_case(whole,
                 &(struct spec){.tokens = 1,
                                .heads = heads[i],
                                .latent = 512,
                                .rope = 64,
                                .main = {.topk = 100, .slots = 300, .masked = 0.2},
                                .seed = 1000 + (uint64_t)heads[i]},
                 2);
}

/* Long enough for every stage of a ring to be filled again, several times. */
static void test_long_rows(void **state)
{
    (void)state;
    static const struct {
        int format, latent, heads;
    } kinds[] = {{SPARSE_MLA_FP8_DS_MLA, 512, 8}, {SPARSE_MLA_FP8_DS_MLA, 512, 16}, {SPARSE_MLA_FP8_DS_MLA, 512, 64},
                 {SPARSE_MLA_FLAT_BF16, 512, 8},  {SPARSE_MLA_FLAT_BF16, 512, 64},  {SPARSE_MLA_FP8_V4, 448, 8},
                 {SPARSE_MLA_FP8_V4, 448, 64},    {SPARSE_MLA_Q8_0, 512, 16},       {SPARSE_MLA_FLAT_E4M3, 512, 32}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        run_case(small,
                 &(struct spec){.tokens = 1,
                                .heads = kinds[i].heads,
                                .format = kinds[i].format,
                                .latent = kinds[i].latent,
                                .rope = 64,
                                .main = {.topk = kinds[i].heads > 16 ? 500 : 900, .slots = 1000, .masked = 0.3},
                                .seed = 1200 + i},
                 2);
}

/* So wide that its parts are no cluster: they merge through the workspace. Most of it is masked. */
static void test_wide(void **state)
{
    (void)state;
    static const int heads[] = {8, 20, 64};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        run_case(whole,
                 &(struct spec){.tokens = 2,
                                .heads = heads[i],
                                .latent = 512,
                                .rope = 64,
                                .main = {.topk = 8320, .slots = 2000, .masked = 0.97},
                                .seed = 1300 + i},
                 2);
}

/* Parts of fixed size, and a launch that may overlap with the one before. */
static void test_launch_flags(void **state)
{
    (void)state;
    run_case(whole,
             &(struct spec){.tokens = 3,
                            .heads = 16,
                            .latent = 512,
                            .rope = 64,
                            .main = {.topk = 700, .slots = 900, .masked = 0.5, .lengths = LENGTHS_PER_TOKEN},
                            .flags = SPARSE_MLA_BATCH_INVARIANT | SPARSE_MLA_PROGRAMMATIC_LAUNCH,
                            .seed = 1400},
             2);
}

/* ---- the program */

static void print_warning(void *user, sparse_mla_log_level level, const char *message)
{
    (void)user;
    if (level == SPARSE_MLA_LOG_WARNING)
        fprintf(stderr, "warning: %s\n", message);
}

static sparse_mla_context *open_context(int backend, int capability, int multiprocessors)
{
    sparse_mla_options options;
    sparse_mla_context *context;
    sparse_mla_device device;
    sparse_mla_options_init(&options);
    sparse_mla_device_init(&device);
    options.backend = backend;
    options.log = print_warning;
    emulator_set_device(capability, multiprocessors);
    if (emulator_create(&options, &context) != SPARSE_MLA_OK ||
        (backend == SPARSE_MLA_BACKEND_CUDA && sparse_mla_device_info(context, NULL, &device) != SPARSE_MLA_OK)) {
        fprintf(stderr, "%s\n", sparse_mla_last_error());
        exit(1);
    }
    profile = device.profile;
    return context;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_draws), cmocka_unit_test(test_head_counts),  cmocka_unit_test(test_long_rows),
        cmocka_unit_test(test_wide),  cmocka_unit_test(test_launch_flags),
    };
    if (argc < 2)
        return 2;
    host_context = open_context(SPARSE_MLA_BACKEND_HOST, 0, 0);
    small = open_context(SPARSE_MLA_BACKEND_CUDA, atoi(argv[1]), 2);
    whole = open_context(SPARSE_MLA_BACKEND_CUDA, atoi(argv[1]), 0);
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
