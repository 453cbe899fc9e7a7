/* SPDX-License-Identifier: Apache-2.0 */
/* Relative L2 error against float64 on the same rounded inputs, N(0, 1) data: the largest of each row of a table.
 * test_grids.c has the grids of other libraries. */
#include "runner.h"

#include <math.h>
#include <stdio.h>

static const int head_counts[] = {8, 16, 32, 64, 128};
enum { HEAD_COUNTS = sizeof head_counts / sizeof *head_counts };

/* `names`: of every case, what row of the table it is in. Cases that follow each other share one. */
static void print_table(const struct case_list *list, const char *const *names)
{
    for (int i = 0; i < list->count; i++) {
        const struct test_case *c = &list->cases[i];
        print_message("%-30s %-6s heads %3d  relative %.2e  worst group %.2e  lse %.1e\n", names[c->spec.seed / 1000],
                      profile_names[c->profile], c->spec.heads, c->errors.relative, c->errors.worst_group,
                      c->errors.lse);
    }
}

/* Named rows of one shape each, on all profiles and head counts (every `step`-th). seed / 1000 is the row. */
struct row {
    const char *name;
    struct spec spec;
};

static void run_rows(const struct row *rows, int count, int step)
{
    struct case_list list = {0};
    const char *names[32];
    assert_true(count <= 32);
    for (int row = 0; row < count; row++) {
        names[row] = rows[row].name;
        for (int profile = 1; profile < 5; profile++)
            for (int i = 0; i < HEAD_COUNTS; i += step) {
                struct spec spec = rows[row].spec;
                spec.tokens = spec.tokens ? spec.tokens : 3;
                spec.heads = head_counts[i];
                spec.seed = (uint64_t)(row * 1000 + i);
                runner_add(&list, profile, &spec, 0, 0);
            }
    }
    runner_run(&list);
    print_table(&list, names);
    runner_drop(&list);
}

#define ROWS(rows) rows, (int)(sizeof(rows) / sizeof *(rows))

static void test_heads(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"fp8_ds_mla", {.format = SPARSE_MLA_FP8_DS_MLA, .latent = 512, .rope = 64, .main.topk = 2048}},
        {"fp8_ds_mla rope-free", {.format = SPARSE_MLA_FP8_DS_MLA_NOPE, .latent = 512, .main.topk = 2048}},
        {"flat bf16", {.format = SPARSE_MLA_FLAT_BF16, .latent = 512, .rope = 64, .main.topk = 2048}},
        {"flat f16", {.format = SPARSE_MLA_FLAT_F16, .latent = 512, .rope = 64, .main.topk = 2048}},
        {"flat e4m3", {.format = SPARSE_MLA_FLAT_E4M3, .latent = 512, .rope = 64, .main.topk = 2048}},
        {"q8_0", {.format = SPARSE_MLA_Q8_0, .latent = 512, .rope = 64, .main.topk = 2048}},
    };
    run_rows(ROWS(rows), 1);
}

#define V4(...)                                                                                                        \
    {                                                                                                                  \
        .format = SPARSE_MLA_FP8_V4, .latent = 448, .rope = 64, __VA_ARGS__                                            \
    }

static void test_v4(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"fp8_v4 128", V4(.main = {.topk = 128})},
        {"fp8_v4 128 + 512", V4(.main = {.topk = 128}, .extra = {.topk = 512})},
        {"fp8_v4 128 + 512, f32", V4(.main = {.topk = 128}, .extra = {.topk = 512}, .out_dtype = SPARSE_MLA_F32)},
        {"fp8_v4 128 + 1024, page 2", V4(.main = {.topk = 128}, .extra = {.topk = 1024, .page_size = 2})},
        {"fp8_v4 128 + 8320",
         V4(.tokens = 1, .main = {.topk = 128}, .extra = {.topk = 8320, .slots = 9000, .page_size = 256})},
    };
    run_rows(ROWS(rows), 1);
}

/* Queries that no MMA operand holds exactly, with an output that hides nothing: errors against the q that was given. */
static void test_queries(void **state)
{
    (void)state;
#define QUERIES(name, form, latent_dim, type)                                                                          \
    {                                                                                                                  \
        name,                                                                                                          \
        {                                                                                                              \
            .format = form, .latent = latent_dim, .rope = 64, .main.topk = 2048, .q_dtype = type,                      \
            .out_dtype = SPARSE_MLA_F32                                                                                \
        }                                                                                                              \
    }
    static const struct row rows[] = {
        QUERIES("q f32, fp8_ds_mla", SPARSE_MLA_FP8_DS_MLA, 512, SPARSE_MLA_F32),
        QUERIES("q f32, flat bf16", SPARSE_MLA_FLAT_BF16, 512, SPARSE_MLA_F32),
        QUERIES("q f32, flat f16", SPARSE_MLA_FLAT_F16, 512, SPARSE_MLA_F32),
        QUERIES("q f32, flat e4m3", SPARSE_MLA_FLAT_E4M3, 512, SPARSE_MLA_F32),
        QUERIES("q f32, fp8_v4", SPARSE_MLA_FP8_V4, 448, SPARSE_MLA_F32),
        QUERIES("q f32, q8_0", SPARSE_MLA_Q8_0, 512, SPARSE_MLA_F32),
        QUERIES("q f16, fp8_ds_mla", SPARSE_MLA_FP8_DS_MLA, 512, SPARSE_MLA_F16),
        QUERIES("q f16, flat bf16", SPARSE_MLA_FLAT_BF16, 512, SPARSE_MLA_F16),
        QUERIES("q f16, fp8_v4", SPARSE_MLA_FP8_V4, 448, SPARSE_MLA_F16),
        QUERIES("q bf16, flat f16", SPARSE_MLA_FLAT_F16, 512, SPARSE_MLA_BF16),
    };
    run_rows(ROWS(rows), 2);
}

/* Errors of every scale group by itself; float32 out shows what the rounding of the output hides. */
static void test_scales(void **state)
{
    (void)state;
#define SCALES(kind)                                                                                                   \
    {                                                                                                                  \
        .latent = 512, .rope = 64, .tokens = 2, .main.topk = 2048, .scales = kind                                      \
    }
#define SCALES_F32(kind)                                                                                               \
    {                                                                                                                  \
        .latent = 512, .rope = 64, .tokens = 2, .main.topk = 2048, .scales = kind, .out_dtype = SPARSE_MLA_F32         \
    }
#define SCALES_V4(kind) V4(.tokens = 2, .main.topk = 2048, .scales = kind, .out_dtype = SPARSE_MLA_F32)
    static const struct row rows[] = {
        {"scales amax", SCALES(SCALES_AMAX)},
        {"scales pow2", SCALES(SCALES_POW2)},
        {"groups 2^-20..2^20", SCALES(SCALES_GROUPS)},
        {"all 2^60", SCALES(SCALES_UP)},
        {"all 2^-60", SCALES(SCALES_DOWN)},
        {"keys 2^-20..2^20", SCALES(SCALES_KEYS)},
        {"scales amax, f32", SCALES_F32(SCALES_AMAX)},
        {"scales pow2, f32", SCALES_F32(SCALES_POW2)},
        {"groups 2^-20..2^20, f32", SCALES_F32(SCALES_GROUPS)},
        {"all 2^60, f32", SCALES_F32(SCALES_UP)},
        {"all 2^-60, f32", SCALES_F32(SCALES_DOWN)},
        {"keys 2^-20..2^20, f32", SCALES_F32(SCALES_KEYS)},
        {"v4 groups 2^-20..2^20, f32", SCALES_V4(SCALES_GROUPS)},
        {"v4 all 2^60, f32", SCALES_V4(SCALES_UP)},
        {"v4 all 2^-60, f32", SCALES_V4(SCALES_DOWN)},
        {"v4 keys 2^-20..2^20, f32", SCALES_V4(SCALES_KEYS)},
    };
    run_rows(ROWS(rows), 3);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_v4),
        cmocka_unit_test(test_queries),
        cmocka_unit_test(test_scales),
    };
    runner_open();
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
