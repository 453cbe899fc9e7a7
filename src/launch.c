/* SPDX-License-Identifier: Apache-2.0 */
#include "launch.h"

#define LOG2_E 1.44269504088896340736

sparse_mla_status smla_launch_check(const struct smla_call *call, const struct smla_plan *plan)
{
    const sparse_mla_decode_args *args = &call->args;
    if (plan->workspace_bytes == 0)
        return SPARSE_MLA_OK;
    if (!args->workspace)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "workspace is NULL; this call needs %zu bytes",
                         plan->workspace_bytes);
    if ((uintptr_t)args->workspace % SMLA_WORKSPACE_ALIGNMENT != 0)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "workspace (%p) is not aligned to %d bytes", args->workspace,
                         SMLA_WORKSPACE_ALIGNMENT);
    if (args->workspace_size < plan->workspace_bytes)
        return smla_fail(SPARSE_MLA_WORKSPACE_TOO_SMALL, "workspace_size is %zu; this call needs %zu bytes",
                         args->workspace_size, plan->workspace_bytes);
    return SPARSE_MLA_OK;
}

/* n / divisor == n * multiplier >> shift for 0 <= n < 2^31 (Granlund and Montgomery, 1994, with N = 31). */
static void division_by(int32_t divisor, unsigned *multiplier, int *shift)
{
    int bits = 0;
    while ((int64_t)1 << bits < divisor)
        bits++;
    *shift = 31 + bits;
    *multiplier = (unsigned)((((uint64_t)1 << *shift) + (uint64_t)divisor - 1) / (uint64_t)divisor);
}

static struct smla_cache_params cache_params(const sparse_mla_cache *cache)
{
    struct smla_cache_params params = {
        .data = (const unsigned char *)cache->data + cache->latent_offset_bytes,
        .indices = cache->indices,
        .lengths = cache->lengths,
        .block_table = cache->block_table,
        .num_slots = cache->num_slots,
        .page_stride = cache->page_stride_bytes,
        .row_stride = cache->row_stride_bytes,
        .indices_request_stride = cache->indices_request_stride,
        .indices_token_stride = cache->indices_token_stride,
        .block_table_stride = cache->block_table_stride,
        .page_size = cache->page_size,
        .topk = cache->topk,
        .lengths_per_request = cache->length_mode == SPARSE_MLA_LENGTH_PER_REQUEST,
        .block_table_width = cache->block_table_width,
        .rope_at = cache->rope_offset_bytes - cache->latent_offset_bytes,
        .scales_at = (long long)cache->page_size * cache->row_stride_bytes,
    };
    division_by(cache->page_size, &params.page_multiplier, &params.page_shift);
    return params;
}

static void place_workspace(struct smla_params *params, const struct smla_call *call, const struct smla_plan *plan)
{
    if (plan->workspace_bytes == 0)
        return;
    char *workspace = call->args.workspace;
    uint64_t rows = (uint64_t)call->args.num_tokens * (uint64_t)plan->head_blocks * (uint64_t)plan->num_splits *
                    (uint64_t)smla_variant_heads(&plan->variant);
    params->counters = (unsigned *)workspace;
    params->partials = (float *)(workspace + SMLA_COUNTER_BYTES);
    params->partial_lse = params->partials + rows * (uint64_t)call->args.value_dim;
}

void smla_launch_params(struct smla_params *params, const struct smla_call *call, const struct smla_plan *plan)
{
    const sparse_mla_decode_args *args = &call->args;
    const float tensor_scale = call->main_cache.format == SPARSE_MLA_FLAT_E4M3 ? call->main_cache.tensor_scale : 1.0f;
    *params = (struct smla_params){
        .cache = cache_params(&call->main_cache),
        .q_latent = args->q_latent,
        .q_rope = args->q_rope,
        .out = args->out,
        .lse = args->lse,
        .sink = args->sink,
        .request_of_token = args->request_of_token,
        .fault_count = args->fault_count,
        .q_latent_stride = {args->q_latent_request_stride, args->q_latent_token_stride, args->q_latent_head_stride},
        .q_rope_stride = {args->q_rope_request_stride, args->q_rope_token_stride, args->q_rope_head_stride},
        .out_stride = {args->out_request_stride, args->out_token_stride, args->out_head_stride},
        .lse_stride = {args->lse_request_stride, args->lse_token_stride, args->lse_head_stride},
        .scale_log2 = (float)((double)args->scale * (double)tensor_scale * LOG2_E),
        .value_scale = tensor_scale,
        .q_len = args->q_len,
        .num_heads = args->num_heads,
        .num_requests = args->num_requests,
        .num_splits = plan->num_splits,
        .clustered = plan->clustered,
        .out_dtype = args->out_dtype,
        .flags = args->flags,
    };
    if (call->has_extra)
        params->extra = cache_params(&call->extra_cache);
    place_workspace(params, call, plan);
}
