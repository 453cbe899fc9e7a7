/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"
#include "report.h"

static const char *const cached_names[] = {"would be compiled", "on disk", "in memory"};
static const char *const limit_names[] = {[SPARSE_MLA_LIMIT_NONE] = "none",
                                          [SPARSE_MLA_LIMIT_MEMORY] = "memory",
                                          [SPARSE_MLA_LIMIT_TENSOR] = "tensor",
                                          [SPARSE_MLA_LIMIT_LATENCY] = "latency"};

static void print_plan(struct report *report, const struct shape *shape, const sparse_mla_plan_info *plan)
{
    char width[32];
    report_row(report);
    report_text(report, "model", 0, shape->model->name);
    report_text(report, "format", 0, format_names[shape->format]);
    report_whole(report, "heads", 0, shape->heads);
    report_whole(report, "tokens", 0, shape->tokens);
    report_text(report, "topk", 0, width_text(shape->width, width));
    report_text(report, "variant", 0, plan->variant);
    report_whole(report, "grid_x", 0, plan->grid_x);
    report_whole(report, "grid_y", 0, plan->grid_y);
    report_whole(report, "block_threads", 0, plan->block_threads);
    report_whole(report, "splits", 0, plan->num_splits);
    report_whole(report, "shared_bytes_per_block", 0, plan->shared_bytes);
    report_whole(report, "blocks_per_sm", 0, plan->blocks_per_sm);
    report_whole(report, "stages", 0, plan->stages);
    report_whole(report, "workspace_bytes", 0, (long long)plan->workspace_bytes);
    report_text(report, "kernel", 0, cached_names[plan->cached]);
    report_text(report, "limit", 0, limit_names[plan->limit]);
    report_real(report, "predicted_us", 0, 3, plan->predicted_us);
}

static sparse_mla_status explain(const struct session *session, const struct shape *shape, struct report *report)
{
    struct call call;
    sparse_mla_plan_info plan;
    sparse_mla_plan_info_init(&plan);
    call_init(&call, shape, 1 << 20);
    const sparse_mla_status status =
        sparse_mla_decode_explain(session->context, &call.args, session->device.stream, &plan);
    if (status == SPARSE_MLA_OK)
        print_plan(report, shape, &plan);
    return status;
}

int run_explain(const struct settings *settings)
{
    const struct list one = {1, {1}}, *tokens = settings->tokens.count ? &settings->tokens : &one;
    struct session session;
    struct report report;
    sparse_mla_status status = SPARSE_MLA_OK;
    int result = session_open(&session, settings);
    if (result != EXIT_FINE)
        return result;
    report_begin(&report, REPORT_LIST, settings->json);
    for (int n = 0; status == SPARSE_MLA_OK && n < count_shapes(settings); n++)
        for (int t = 0; status == SPARSE_MLA_OK && t < tokens->count; t++) {
            const struct shape shape = nth_shape(settings, n, tokens->values[t]);
            status = explain(&session, &shape, &report);
        }
    if (status != SPARSE_MLA_OK)
        result = report_failure(settings, status);
    report_end(&report);
    session_close(&session);
    return result;
}
