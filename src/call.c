/* SPDX-License-Identifier: Apache-2.0 */
#include "call.h"

#include "check.h"
#include "format.h"

#include <math.h>

enum { HEADS_MAX = 128 };

static sparse_mla_status copy_cache(sparse_mla_cache *to, const sparse_mla_cache *from, const char *name)
{
    sparse_mla_cache_init(to);
    return smla_copy_struct(to, sizeof *to, SMLA_CACHE_FIRST_SIZE, from, name);
}

static sparse_mla_status copy_call(struct smla_call *call, const sparse_mla_decode_args *args)
{
    sparse_mla_status status;
    memset(call, 0, sizeof *call);
    sparse_mla_decode_args_init(&call->args);
    if (!args)
        return smla_invalid_pointer("", "args", args, "it is required");
    status = smla_copy_struct(&call->args, sizeof call->args, SMLA_DECODE_ARGS_FIRST_SIZE, args, "args");
    if (status != SPARSE_MLA_OK)
        return status;
    if (!call->args.main_cache)
        return smla_invalid_pointer("", "main_cache", NULL, "it is required");
    call->has_extra = call->args.extra_cache != NULL;
    status = copy_cache(&call->main_cache, call->args.main_cache, "main_cache");
    if (status == SPARSE_MLA_OK && call->has_extra)
        status = copy_cache(&call->extra_cache, call->args.extra_cache, "extra_cache");
    call->args.main_cache = call->args.extra_cache = NULL;
    return status;
}

static sparse_mla_status check_scalars(const sparse_mla_decode_args *args)
{
    const uint32_t flags = SPARSE_MLA_LSE_BASE2 | SPARSE_MLA_LSE_WITH_SINK | SPARSE_MLA_LSE_EMPTY_POSINF |
                           SPARSE_MLA_BATCH_INVARIANT | SPARSE_MLA_PROGRAMMATIC_LAUNCH;
    if (args->num_tokens < 0)
        return smla_invalid_integer("", "num_tokens", args->num_tokens, "0 or more are supported");
    if (args->q_len < 1)
        return smla_invalid_integer("", "q_len", args->q_len, "it must be at least 1");
    if (args->num_tokens % args->q_len != 0)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "q_len is %d: it must divide num_tokens, which is %d",
                         args->q_len, args->num_tokens);
    if (args->num_heads < 1 || args->num_heads > HEADS_MAX)
        return smla_invalid_integer("", "num_heads", args->num_heads, "1 to 128 are supported");
    if (!isfinite(args->scale))
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "scale is %g: it must be finite", (double)args->scale);
    if (args->flags & ~flags)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "flags is 0x%x: bits 0x%x are not known", args->flags,
                         args->flags & ~flags);
    sparse_mla_status status = smla_check_dtype("q_dtype", args->q_dtype);
    if (status == SPARSE_MLA_OK)
        status = smla_check_dtype("out_dtype", args->out_dtype);
    if (status != SPARSE_MLA_OK)
        return status;
    if (args->num_requests < 0)
        return smla_invalid_integer("", "num_requests", args->num_requests, "it must be 0 or more");
    if (args->reserved != 0)
        return smla_invalid_integer("", "reserved", args->reserved, "it must be 0");
    return SPARSE_MLA_OK;
}

static sparse_mla_status check_rows(const sparse_mla_cache *cache, const sparse_mla_decode_args *args,
                                    const char *where)
{
    sparse_mla_status status = SPARSE_MLA_OK;
    if (cache->topk < 1)
        return smla_invalid_integer(where, "topk", cache->topk, "it must be at least 1");
    if (cache->length_mode < SPARSE_MLA_LENGTH_PER_TOKEN || cache->length_mode > SPARSE_MLA_LENGTH_PER_REQUEST)
        return smla_invalid_integer(where, "length_mode", cache->length_mode,
                                    "0 (per token) and 1 (per request) are supported");
    if (cache->indices) {
        status = smla_check_stride(where, "indices_request_stride", cache->indices_request_stride,
                                   args->num_tokens / args->q_len, cache->topk, 1, "elements");
        if (status == SPARSE_MLA_OK)
            status = smla_check_stride(where, "indices_token_stride", cache->indices_token_stride, args->q_len,
                                       cache->topk, 1, "elements");
    }
    if (status != SPARSE_MLA_OK || !cache->block_table)
        return status;
    if (cache->block_table_width < 1)
        return smla_invalid_integer(where, "block_table_width", cache->block_table_width, "it must be at least 1");
    return smla_check_stride(where, "block_table_stride", cache->block_table_stride, args->num_requests,
                             cache->block_table_width, 1, "elements");
}

static sparse_mla_status check_cache(sparse_mla_cache *cache, const sparse_mla_decode_args *args, const char *where)
{
    sparse_mla_status status = smla_check_record(cache, args->latent_dim, args->rope_dim, where);
    if (status != SPARSE_MLA_OK)
        return status;
    const struct smla_format *format = smla_format_get(cache->format);
    const int32_t value_dim = args->latent_dim + (format->rope_is_value ? args->rope_dim : 0);
    if (args->value_dim != value_dim)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "value_dim is %d: %s with these dims has %d", args->value_dim,
                         format->name, value_dim);
    return check_rows(cache, args, where);
}

/* `names`: of the request, token and head strides. */
static sparse_mla_status check_tensor(const sparse_mla_decode_args *args, const char *const names[3],
                                      const int64_t strides[3], int64_t row, int64_t multiple)
{
    const int64_t extents[3] = {args->num_tokens / args->q_len, args->q_len, args->num_heads};
    for (int i = 0; i < 3; i++) {
        sparse_mla_status status = smla_check_stride("", names[i], strides[i], extents[i], row, multiple, "elements");
        if (status != SPARSE_MLA_OK)
            return status;
    }
    return SPARSE_MLA_OK;
}

static sparse_mla_status check_tensors(const sparse_mla_decode_args *args)
{
    static const char *const latent[3] = {"q_latent_request_stride", "q_latent_token_stride", "q_latent_head_stride"};
    static const char *const rope[3] = {"q_rope_request_stride", "q_rope_token_stride", "q_rope_head_stride"};
    static const char *const out[3] = {"out_request_stride", "out_token_stride", "out_head_stride"};
    static const char *const lse[3] = {"lse_request_stride", "lse_token_stride", "lse_head_stride"};
    const int64_t latent_strides[3] = {args->q_latent_request_stride, args->q_latent_token_stride,
                                       args->q_latent_head_stride};
    const int64_t rope_strides[3] = {args->q_rope_request_stride, args->q_rope_token_stride, args->q_rope_head_stride};
    const int64_t out_strides[3] = {args->out_request_stride, args->out_token_stride, args->out_head_stride};
    const int64_t lse_strides[3] = {args->lse_request_stride, args->lse_token_stride, args->lse_head_stride};
    const int q_multiple = 16 / smla_dtype_bytes(args->q_dtype), out_multiple = 16 / smla_dtype_bytes(args->out_dtype);
    const bool two_views = args->q_rope && args->rope_dim;

    sparse_mla_status status =
        check_tensor(args, latent, latent_strides, args->latent_dim + (two_views ? 0 : args->rope_dim), q_multiple);
    if (status == SPARSE_MLA_OK && two_views)
        status = check_tensor(args, rope, rope_strides, args->rope_dim, q_multiple);
    if (status == SPARSE_MLA_OK)
        status = check_tensor(args, out, out_strides, args->value_dim, out_multiple);
    if (status == SPARSE_MLA_OK && args->lse)
        status = check_tensor(args, lse, lse_strides, 1, 1);
    return status;
}

static sparse_mla_status check_cache_pointers(const sparse_mla_cache *cache, const char *where)
{
    const struct smla_pointer pointers[] = {
        {"data", cache->data, cache->num_slots > 0 ? SMLA_REQUIRED : SMLA_OPTIONAL,
         smla_format_get(cache->format)->alignment},
        {"indices", cache->indices, SMLA_OPTIONAL, 4},
        {"lengths", cache->lengths, SMLA_OPTIONAL, 4},
        {"block_table", cache->block_table, SMLA_OPTIONAL, 4},
    };
    return smla_check_pointers(where, pointers, sizeof pointers / sizeof pointers[0]);
}

static sparse_mla_status check_pointers(const struct smla_call *call)
{
    const sparse_mla_decode_args *args = &call->args;
    const struct smla_pointer pointers[] = {
        {"q_latent", args->q_latent, SMLA_REQUIRED, 16},
        {"q_rope", args->q_rope, SMLA_OPTIONAL, 16},
        {"out", args->out, SMLA_REQUIRED, 16},
        {"lse", args->lse, SMLA_OPTIONAL, 4},
        {"sink", args->sink, SMLA_OPTIONAL, 4},
        {"request_of_token", args->request_of_token, SMLA_OPTIONAL, 4},
        {"fault_count", args->fault_count, SMLA_OPTIONAL, 4},
    };
    sparse_mla_status status = smla_check_pointers("", pointers, sizeof pointers / sizeof pointers[0]);
    if (status == SPARSE_MLA_OK)
        status = check_cache_pointers(&call->main_cache, "main_cache.");
    return status == SPARSE_MLA_OK && call->has_extra ? check_cache_pointers(&call->extra_cache, "extra_cache.")
                                                      : status;
}

static void fill_defaults(sparse_mla_decode_args *args)
{
    if (args->q_rope && args->rope_dim)
        return;
    if (args->q_latent)
        args->q_rope =
            (const char *)args->q_latent + (size_t)args->latent_dim * (size_t)smla_dtype_bytes(args->q_dtype);
    args->q_rope_request_stride = args->q_latent_request_stride;
    args->q_rope_token_stride = args->q_latent_token_stride;
    args->q_rope_head_stride = args->q_latent_head_stride;
}

sparse_mla_status smla_call_init(struct smla_call *call, const sparse_mla_decode_args *args, enum smla_check check)
{
    sparse_mla_status status = copy_call(call, args);
    if (status == SPARSE_MLA_OK)
        status = check_scalars(&call->args);
    if (status != SPARSE_MLA_OK)
        return status;
    if (call->args.num_requests == 0)
        call->args.num_requests = call->args.num_tokens / call->args.q_len;
    status = check_cache(&call->main_cache, &call->args, "main_cache.");
    if (status == SPARSE_MLA_OK && call->has_extra)
        status = check_cache(&call->extra_cache, &call->args, "extra_cache.");
    if (status == SPARSE_MLA_OK)
        status = check_tensors(&call->args);
    /* A call for no token touches nothing, and frameworks give empty tensors no address. */
    if (status == SPARSE_MLA_OK && check == SMLA_CHECK_POINTERS && call->args.num_tokens > 0)
        status = check_pointers(call);
    if (status == SPARSE_MLA_OK)
        fill_defaults(&call->args);
    return status;
}
