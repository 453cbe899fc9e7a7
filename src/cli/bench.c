/* SPDX-License-Identifier: Apache-2.0 */
/* One event before and one after a loop of calls, over index sets that rotate. What the processor needs to launch is in
 * it where that is longer than the kernel. */
#include "problem.h"
#include "report.h"

#include <stdlib.h>

enum { ROWS = 4096, MAX_SETS = 64, FIRST_CALLS = 20, MOST_CALLS = 5000 };
static const double gpu_pool_bytes = 512e6, gpu_set_bytes = 256e6, seconds = 0.2;

struct bench {
    struct problem problem;
    int sets;
    const int32_t *indices[2]; /* [sets, tokens, width] */
};

/* The same rows again and again. */
static sparse_mla_status fill_cache(struct bench *bench, int cache, const uint16_t *rows)
{
    struct problem *problem = &bench->problem;
    const int count = (int)problem->call.caches[cache].num_slots;
    int64_t *slots = host_alloc((size_t)count * sizeof *slots);
    for (int i = 0; i < count; i++)
        slots[i] = i;
    const int64_t *uploaded = problem_upload(problem, slots, (size_t)count * sizeof *slots);
    free(slots);
    sparse_mla_status status = SPARSE_MLA_OK;
    for (int i = 0; status == SPARSE_MLA_OK && i < count; i += ROWS)
        status = problem_append(problem, cache, rows, uploaded + i, count - i < ROWS ? count - i : ROWS);
    return status;
}

static void make_indices(struct bench *bench, int cache, uint64_t *state)
{
    struct problem *problem = &bench->problem;
    sparse_mla_cache *view = &problem->call.caches[cache];
    const size_t count = (size_t)bench->sets * (size_t)problem->shape.tokens * (size_t)view->topk;
    int32_t *indices = host_alloc(count * sizeof *indices);
    for (size_t i = 0; i < count; i++)
        indices[i] = (int32_t)(random_word(state) % (uint64_t)view->num_slots);
    view->indices = bench->indices[cache] = problem_upload(problem, indices, count * sizeof *indices);
    free(indices);
}

/* Between 0.5 and 2, of either sign, in any type. */
static void make_queries(struct problem *problem, uint64_t *state)
{
    const sparse_mla_decode_args *args = &problem->call.args;
    const bool wide = args->q_dtype == SPARSE_MLA_F32;
    const size_t bytes = (size_t)args->num_tokens * (size_t)args->q_latent_token_stride * (wide ? 4 : 2);
    uint32_t *q = host_alloc(bytes + 4);
    for (size_t i = 0; i < bytes / 4; i++)
        q[i] = wide ? (random_word(state) & 0x80FFFFFF) | 0x3F000000 : (random_word(state) & 0x80FF80FF) | 0x3F003F00;
    problem->call.args.q_latent = problem_upload(problem, q, bytes);
    free(q);
}

static double bytes_per_call(const struct shape *shape)
{
    return (double)shape->tokens * (shape->width.topk + shape->width.extra) * record_bytes(shape->format, shape->model);
}

static sparse_mla_status fill(struct bench *bench)
{
    struct problem *problem = &bench->problem;
    const struct shape *shape = &problem->shape;
    const size_t dims = (size_t)(shape->model->latent_dim + shape->model->rope_dim), bytes = 2 * dims * ROWS;
    uint64_t state = 1;
    uint16_t *rows = host_alloc(bytes);
    random_bf16(rows, dims * ROWS, &state);
    const uint16_t *uploaded = problem_upload(problem, rows, bytes);
    free(rows);
    const double sets = gpu_set_bytes / bytes_per_call(shape);
    bench->sets = !problem->session->device.gpu || sets < 1 ? 1 : sets > MAX_SETS ? MAX_SETS : (int)sets + 1;
    make_queries(problem, &state);
    sparse_mla_status status = SPARSE_MLA_OK;
    for (int cache = 0; status == SPARSE_MLA_OK && cache < (shape->width.extra ? 2 : 1); cache++) {
        make_indices(bench, cache, &state);
        status = fill_cache(bench, cache, uploaded);
    }
    return status;
}

static sparse_mla_status time_calls(struct bench *bench, int calls, double *microseconds)
{
    struct problem *problem = &bench->problem;
    const struct device *device = &problem->session->device;
    sparse_mla_status status = SPARSE_MLA_OK;
    struct timer timer;
    timer_start(device, &timer);
    for (int i = 0; status == SPARSE_MLA_OK && i < calls; i++) {
        for (int cache = 0; cache < 2; cache++) {
            sparse_mla_cache *view = &problem->call.caches[cache];
            if (bench->indices[cache])
                view->indices = bench->indices[cache] + (int64_t)(i % bench->sets) * problem->shape.tokens * view->topk;
        }
        status = sparse_mla_decode(problem->session->context, &problem->call.args, device->stream);
    }
    timer_stop(device, &timer);
    *microseconds = timer_microseconds(device, &timer) / calls;
    return status;
}

static sparse_mla_status measure(struct bench *bench, double *microseconds, int *calls)
{
    const bool gpu = bench->problem.session->device.gpu;
    sparse_mla_status status = time_calls(bench, 1, microseconds); /* compiles */
    if (status == SPARSE_MLA_OK && gpu)
        status = time_calls(bench, FIRST_CALLS, microseconds);
    if (status != SPARSE_MLA_OK)
        return status;
    const double wanted = seconds * 1e6 / *microseconds;
    *calls = wanted > MOST_CALLS ? MOST_CALLS : wanted < 1 ? 1 : (int)wanted;
    if (gpu && *calls < FIRST_CALLS)
        *calls = FIRST_CALLS;
    return time_calls(bench, *calls, microseconds);
}

static void print_row(struct report *report, const struct shape *shape, double microseconds, int calls)
{
    char width[32];
    report_row(report);
    report_text(report, "model", -17, shape->model->name);
    report_text(report, "format", -15, format_names[shape->format]);
    report_whole(report, "heads", 5, shape->heads);
    report_whole(report, "tokens", 6, shape->tokens);
    report_text(report, "topk", -10, width_text(shape->width, width));
    report_text(report, "queries", -7, dtype_names[shape->q_dtype]);
    report_real(report, "microseconds", 12, 4, microseconds);
    report_real(report, "cache_gbps", 10, 3, bytes_per_call(shape) / microseconds * 1e-3);
    report_whole(report, "calls", 5, calls);
}

static sparse_mla_status run_shape(const struct session *session, const struct shape *shape, struct report *report)
{
    const int64_t slots =
        session->device.gpu ? (int64_t)(gpu_pool_bytes / record_bytes(shape->format, shape->model)) : 2 * ROWS;
    struct bench bench = {0};
    double microseconds = 0;
    int calls = 0;
    sparse_mla_status status = problem_init(&bench.problem, session, shape, slots);
    if (status == SPARSE_MLA_OK)
        status = fill(&bench);
    if (status == SPARSE_MLA_OK)
        status = measure(&bench, &microseconds, &calls);
    if (status == SPARSE_MLA_OK)
        print_row(report, shape, microseconds, calls);
    problem_free(&bench.problem);
    return status;
}

int run_bench(const struct settings *settings)
{
    const struct list one = {1, {1}}, *tokens = settings->tokens.count ? &settings->tokens : &one;
    struct session session;
    struct report report;
    sparse_mla_status status = SPARSE_MLA_OK;
    int result = session_open(&session, settings);
    if (result != EXIT_FINE)
        return result;
    report_begin(&report, REPORT_TABLE, settings->json);
    for (int n = 0; status == SPARSE_MLA_OK && n < count_shapes(settings); n++)
        for (int t = 0; status == SPARSE_MLA_OK && t < tokens->count; t++) {
            const struct shape shape = nth_shape(settings, n, tokens->values[t]);
            status = run_shape(&session, &shape, &report);
        }
    report_end(&report);
    if (status != SPARSE_MLA_OK)
        result = report_failure(settings, status);
    session_close(&session);
    return result;
}
