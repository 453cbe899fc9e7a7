/* SPDX-License-Identifier: Apache-2.0 */
#include "problem.h"
#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Both sides get the same bf16 rows, write them into their caches, and decode into float32. */
enum { SLOTS = 4096 };
/* Of the error of any head's output, in the Euclidean norm, and of lse. A key too many or too few of 2048 is 2e-2. */
static const double out_limit = 2e-3, lse_limit = 1e-3;

struct test {
    const char *model;
    int format, heads, tokens, q_dtype;
    struct width width;
};

/* Few kernels, for their compilation takes most of the time. */
static const struct test tests[] = {
    {"glm-5", SPARSE_MLA_FP8_DS_MLA, 8, 1, SPARSE_MLA_BF16, {2048, 0}},
    {"glm-5", SPARSE_MLA_FP8_DS_MLA, 8, 16, SPARSE_MLA_BF16, {600, 0}},
    {"deepseek-v3.2", SPARSE_MLA_FP8_DS_MLA, 16, 3, SPARSE_MLA_BF16, {2048, 0}},
    {"deepseek-v3.2", SPARSE_MLA_FP8_DS_MLA, 13, 3, SPARSE_MLA_BF16, {1001, 0}},
    {"glm-5", SPARSE_MLA_FP8_DS_MLA, 64, 1, SPARSE_MLA_BF16, {2048, 0}},
    {"deepseek-v3.2", SPARSE_MLA_FP8_DS_MLA, 128, 2, SPARSE_MLA_BF16, {2048, 0}},
    {"glm-5", SPARSE_MLA_FLAT_BF16, 8, 1, SPARSE_MLA_BF16, {2048, 0}},
    {"glm-5", SPARSE_MLA_FLAT_BF16, 8, 16, SPARSE_MLA_BF16, {600, 0}},
    {"glm-5", SPARSE_MLA_FLAT_BF16, 64, 2, SPARSE_MLA_BF16, {2048, 0}},
    {"glm-5.3-flash", SPARSE_MLA_FP8_DS_MLA, 8, 3, SPARSE_MLA_BF16, {2051, 0}},
    {"glm-5.3-flash", SPARSE_MLA_FP8_DS_MLA_NOPE, 8, 3, SPARSE_MLA_BF16, {2176, 0}},
    {"deepseek-v4-flash", SPARSE_MLA_FP8_V4, 8, 4, SPARSE_MLA_BF16, {128, 512}},
    {"deepseek-v4-pro", SPARSE_MLA_FP8_V4, 16, 3, SPARSE_MLA_BF16, {128, 1024}},
    {"glm-5", SPARSE_MLA_FLAT_E4M3, 8, 4, SPARSE_MLA_BF16, {2048, 0}},
    {"llama.cpp", SPARSE_MLA_FLAT_F16, 8, 4, SPARSE_MLA_F32, {2048, 0}},
    {"llama.cpp", SPARSE_MLA_Q8_0, 8, 4, SPARSE_MLA_F32, {2048, 0}},
};

enum { TESTS = sizeof tests / sizeof *tests };

/* On the host. Of the second cache: [1]. */
struct inputs {
    uint16_t *rows;      /* [SLOTS, latent + rope] */
    int64_t *slots[2];   /* [SLOTS] */
    int32_t *indices[2]; /* [tokens, width] */
    int32_t *lengths[2]; /* [tokens] */
    void *q;
    size_t rows_bytes, q_bytes;
};

struct outputs {
    unsigned char *records[2];
    float *out, *lse;
};

static int width_of(const struct shape *shape, int cache)
{
    return cache ? shape->width.extra : shape->width.topk;
}

/* A full row, shorter ones, and an empty one if there are several; one key in sixteen is masked. */
static void make_keys(struct inputs *in, const struct shape *shape, int cache, uint64_t *state)
{
    const int width = width_of(shape, cache), tokens = shape->tokens;
    const size_t count = (size_t)tokens * (size_t)width;
    in->slots[cache] = host_alloc(SLOTS * sizeof(int64_t));
    in->indices[cache] = host_alloc(count * sizeof(int32_t));
    in->lengths[cache] = host_alloc((size_t)tokens * sizeof(int32_t));
    for (int i = 0; i < SLOTS; i++)
        in->slots[cache][i] = cache ? SLOTS - 1 - i : i;
    for (size_t i = 0; i < count; i++) {
        const uint32_t word = random_word(state);
        in->indices[cache][i] = word % 16 ? (int32_t)(word / 16 % SLOTS) : -1;
    }
    for (int t = 0; t < tokens; t++)
        in->lengths[cache][t] = t == 0           ? width
                                : t + 1 < tokens ? 1 + (int32_t)(random_word(state) % (uint32_t)width)
                                                 : 0;
}

static void make_inputs(struct inputs *in, const struct shape *shape)
{
    const size_t dims = (size_t)(shape->model->latent_dim + shape->model->rope_dim);
    const size_t elements = dims * (size_t)shape->tokens * (size_t)shape->heads;
    uint64_t state = 88172645463325252u;
    *in = (struct inputs){.rows_bytes = 2 * dims * SLOTS, .q_bytes = elements * (size_t)dtype_bytes(shape->q_dtype)};
    in->rows = host_alloc(in->rows_bytes);
    random_bf16(in->rows, dims * SLOTS, &state);
    for (int cache = 0; cache < 2; cache++)
        if (width_of(shape, cache))
            make_keys(in, shape, cache, &state);
    in->q = host_alloc(in->q_bytes);
    if (shape->q_dtype == SPARSE_MLA_BF16)
        random_bf16(in->q, elements, &state);
    for (size_t i = 0; shape->q_dtype == SPARSE_MLA_F32 && i < elements; i++)
        ((float *)in->q)[i] = (float)(int32_t)random_word(&state) * 0x1p-30f;
}

static void free_inputs(struct inputs *in)
{
    for (int cache = 0; cache < 2; cache++) {
        free(in->slots[cache]);
        free(in->indices[cache]);
        free(in->lengths[cache]);
    }
    free(in->rows);
    free(in->q);
}

static void free_outputs(struct outputs *out)
{
    free(out->records[0]);
    free(out->records[1]);
    free(out->out);
    free(out->lse);
}

static sparse_mla_status write_caches(struct problem *problem, const struct inputs *in)
{
    const struct shape *shape = &problem->shape;
    const uint16_t *rows = problem_upload(problem, in->rows, in->rows_bytes);
    sparse_mla_status status = SPARSE_MLA_OK;
    for (int cache = 0; cache < 2 && status == SPARSE_MLA_OK && width_of(shape, cache); cache++) {
        const size_t tokens = (size_t)shape->tokens, bytes = 4 * tokens * (size_t)width_of(shape, cache);
        problem->call.caches[cache].indices = problem_upload(problem, in->indices[cache], bytes);
        problem->call.caches[cache].lengths = problem_upload(problem, in->lengths[cache], 4 * tokens);
        const int64_t *slots = problem_upload(problem, in->slots[cache], SLOTS * sizeof *slots);
        status = problem_append(problem, cache, rows, slots, SLOTS);
    }
    return status;
}

static void *read_back(const struct problem *problem, const void *data, size_t bytes)
{
    void *copy = host_alloc(bytes);
    device_read(&problem->session->device, copy, data, bytes);
    return copy;
}

static void read_outputs(const struct problem *problem, struct outputs *out)
{
    const struct shape *shape = &problem->shape;
    const size_t rows = (size_t)shape->tokens * (size_t)shape->heads;
    for (int cache = 0; cache < 2 && width_of(shape, cache); cache++)
        out->records[cache] = read_back(problem, problem->call.caches[cache].data, problem->pool_bytes);
    out->out = read_back(problem, problem->call.args.out, rows * (size_t)shape->model->value_dim * sizeof(float));
    out->lse = read_back(problem, problem->call.args.lse, rows * sizeof(float));
}

static sparse_mla_status run_side(const struct session *session, const struct shape *shape, const struct inputs *in,
                                  struct outputs *out, size_t *pool_bytes)
{
    struct problem problem;
    sparse_mla_status status = problem_init(&problem, session, shape, SLOTS);
    if (status == SPARSE_MLA_OK)
        status = write_caches(&problem, in);
    if (status == SPARSE_MLA_OK) {
        problem.call.args.q_latent = problem_upload(&problem, in->q, in->q_bytes);
        status = sparse_mla_decode(session->context, &problem.call.args, session->device.stream);
    }
    if (status == SPARSE_MLA_OK)
        read_outputs(&problem, out);
    *pool_bytes = problem.pool_bytes;
    problem_free(&problem);
    return status;
}

struct errors {
    double out, lse;
    bool same_records;
};

static double row_error(const float *own, const float *expected, int dims)
{
    double difference = 0, reference = 0;
    for (int d = 0; d < dims; d++) {
        const double off = (double)own[d] - (double)expected[d];
        difference += off * off;
        reference += (double)expected[d] * (double)expected[d];
    }
    if (!isfinite(difference))
        return INFINITY;
    return reference > 0 ? sqrt(difference / reference) : difference > 0 ? INFINITY : 0;
}

static double lse_error(double own, double expected)
{
    const double off = fabs(own - expected);
    return own == expected ? 0 : isfinite(off) ? off / fmax(1, fabs(expected)) : INFINITY;
}

static struct errors compare(const struct shape *shape, const struct outputs *own, const struct outputs *expected,
                             size_t pool_bytes)
{
    struct errors errors = {.same_records = true};
    const int rows = shape->tokens * shape->heads, dims = shape->model->value_dim;
    for (int row = 0; row < rows; row++) {
        const size_t at = (size_t)row * (size_t)dims;
        errors.out = fmax(errors.out, row_error(own->out + at, expected->out + at, dims));
        errors.lse = fmax(errors.lse, lse_error((double)own->lse[row], (double)expected->lse[row]));
    }
    for (int cache = 0; cache < 2; cache++)
        if (expected->records[cache])
            errors.same_records &= memcmp(own->records[cache], expected->records[cache], pool_bytes) == 0;
    return errors;
}

static bool print_row(struct report *report, const struct shape *shape, const struct errors *errors)
{
    const bool passed = errors->out <= out_limit && errors->lse <= lse_limit && errors->same_records;
    char width[32];
    report_row(report);
    report_text(report, "model", -17, shape->model->name);
    report_text(report, "format", -15, format_names[shape->format]);
    report_whole(report, "heads", 5, shape->heads);
    report_whole(report, "tokens", 6, shape->tokens);
    report_text(report, "topk", -10, width_text(shape->width, width));
    report_text(report, "queries", -7, dtype_names[shape->q_dtype]);
    report_real(report, "out_error", 9, 2, errors->out);
    report_real(report, "lse_error", 9, 2, errors->lse);
    report_text(report, "records", -7, errors->same_records ? "same" : "differ");
    report_text(report, "result", -6, passed ? "pass" : "FAIL");
    return passed;
}

static struct shape shape_of(const struct test *test)
{
    const struct model *model = models;
    while (model->name && strcmp(model->name, test->model) != 0)
        model++;
    return (struct shape){model, test->format, test->heads, test->tokens, test->q_dtype, SPARSE_MLA_F32, test->width};
}

static sparse_mla_status run_test(const struct session *session, const struct session *host, const struct shape *shape,
                                  struct errors *errors)
{
    struct inputs in;
    struct outputs own = {0}, expected = {0};
    size_t pool_bytes;
    make_inputs(&in, shape);
    sparse_mla_status status = run_side(session, shape, &in, &own, &pool_bytes);
    if (status == SPARSE_MLA_OK)
        status = run_side(host, shape, &in, &expected, &pool_bytes);
    if (status == SPARSE_MLA_OK)
        *errors = compare(shape, &own, &expected, pool_bytes);
    free_outputs(&own);
    free_outputs(&expected);
    free_inputs(&in);
    return status;
}

static int run_tests(const struct session *session, const struct session *host, const struct settings *settings)
{
    const double start = now();
    struct report report;
    sparse_mla_status status = SPARSE_MLA_OK;
    int done = 0, passed = 0;
    report_begin(&report, REPORT_TABLE, settings->json);
    for (; done < TESTS; done++) {
        const struct shape shape = shape_of(&tests[done]);
        struct errors errors = {0};
        show_progress(done, TESTS, shape.model->name);
        status = run_test(session, host, &shape, &errors);
        hide_progress();
        if (status != SPARSE_MLA_OK)
            break;
        passed += print_row(&report, &shape, &errors);
    }
    report_end(&report);
    if (status != SPARSE_MLA_OK)
        return report_failure(settings, status);
    if (!settings->json)
        printf("%d of %d passed (out at most %g, lse at most %g, records the same) in %.0f s\n", passed, TESTS,
               out_limit, lse_limit, now() - start);
    return passed == TESTS ? EXIT_FINE : EXIT_FAILED;
}

int run_verify(const struct settings *settings)
{
    struct settings on_host = *settings;
    struct session session, host;
    on_host.backend = SPARSE_MLA_BACKEND_HOST;
    int result = session_open(&session, settings);
    if (result != EXIT_FINE)
        return result;
    result = session_open(&host, &on_host);
    if (result == EXIT_FINE) {
        result = run_tests(&session, &host, settings);
        session_close(&host);
    }
    session_close(&session);
    return result;
}
