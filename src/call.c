/* SPDX-License-Identifier: Apache-2.0 */
#include "call.h"

#include "format.h"

#include <math.h>

/* Strides whose products stay below this cannot overflow 64-bit addresses, even added to each other. */
#define SPAN_MAX 0x1p60

enum { HEADS_MAX = 128, OFFSET_MAX = 1 << 20, STRUCT_SIZE_MAX = 4096 };

static sparse_mla_status invalid_integer(const char *where, const char *name, int64_t value, const char *allowed)
{
    return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "%s%s is %lld: %s", where, name, (long long)value, allowed);
}

static sparse_mla_status invalid_pointer(const char *where, const char *name, const void *pointer, const char *allowed)
{
    if (!pointer)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "%s%s is NULL: %s", where, name, allowed);
    return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "%s%s is %p: %s", where, name, pointer, allowed);
}

sparse_mla_status smla_copy_struct(void *to, size_t known, size_t required, const void *from, const char *name)
{
    size_t size;
    memcpy(&size, from, sizeof size);
    if (size < required || size > STRUCT_SIZE_MAX || size % 8 != 0)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "%s.struct_size is %zu: its _init() function sets it to %zu",
                         name, size, known);
    for (size_t i = known; i < size; i++)
        if (((const unsigned char *)from)[i] != 0)
            return smla_fail(SPARSE_MLA_UNSUPPORTED,
                             "%s.struct_size is %zu and byte %zu is not 0: this library knows the first %zu bytes",
                             name, size, i, known);
    memcpy(to, from, size < known ? size : known);
    memcpy(to, &known, sizeof known);
    return SPARSE_MLA_OK;
}

static sparse_mla_status copy_cache(sparse_mla_cache *to, const sparse_mla_cache *from, const char *name)
{
    sparse_mla_cache_init(to);
    return smla_copy_struct(to, sizeof *to, offsetof(sparse_mla_cache, indices), from, name);
}

static sparse_mla_status copy_call(struct smla_call *call, const sparse_mla_decode_args *args)
{
    sparse_mla_status status;
    memset(call, 0, sizeof *call);
    sparse_mla_decode_args_init(&call->args);
    if (!args)
        return invalid_pointer("", "args", args, "it is required");
    status = smla_copy_struct(&call->args, sizeof call->args, offsetof(sparse_mla_decode_args, lse), args, "args");
    if (status != SPARSE_MLA_OK)
        return status;
    if (!call->args.main_cache)
        return invalid_pointer("", "main_cache", NULL, "it is required");
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
        return invalid_integer("", "num_tokens", args->num_tokens, "0 or more are supported");
    if (args->q_len < 1)
        return invalid_integer("", "q_len", args->q_len, "it must be at least 1");
    if (args->num_tokens % args->q_len != 0)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "q_len is %d: it must divide num_tokens, which is %d",
                         args->q_len, args->num_tokens);
    if (args->num_heads < 1 || args->num_heads > HEADS_MAX)
        return invalid_integer("", "num_heads", args->num_heads, "1 to 128 are supported");
    if (!isfinite(args->scale))
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "scale is %g: it must be finite", (double)args->scale);
    if (args->flags & ~flags)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "flags is 0x%x: bits 0x%x are not known", args->flags,
                         args->flags & ~flags);
    if (args->q_dtype < SPARSE_MLA_BF16 || args->q_dtype > SPARSE_MLA_F32)
        return invalid_integer("", "q_dtype", args->q_dtype, "0 (bf16), 1 (f16) and 2 (f32) are supported");
    if (args->out_dtype < SPARSE_MLA_BF16 || args->out_dtype > SPARSE_MLA_F32)
        return invalid_integer("", "out_dtype", args->out_dtype, "0 (bf16), 1 (f16) and 2 (f32) are supported");
    if (args->num_requests < 0)
        return invalid_integer("", "num_requests", args->num_requests, "it must be 0 or more");
    if (args->reserved != 0)
        return invalid_integer("", "reserved", args->reserved, "it must be 0");
    return SPARSE_MLA_OK;
}

static sparse_mla_status check_dims(const sparse_mla_decode_args *args, const struct smla_format *format)
{
    const int32_t latent_dim = args->latent_dim, rope_dim = args->rope_dim;
    if (format->latent_dim && latent_dim != format->latent_dim)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "latent_dim is %d: %s has %d", latent_dim, format->name,
                         format->latent_dim);
    if (latent_dim < 64 || latent_dim > 512 || latent_dim % 64 != 0)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "latent_dim is %d: %s has a multiple of 64 from 64 to 512",
                         latent_dim, format->name);
    if (rope_dim < 0 || rope_dim > 64 || rope_dim % 32 != 0 || !(format->rope_mask >> rope_dim / 32 & 1))
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "rope_dim is %d: %s has %s", rope_dim, format->name,
                         format->rope_dims);
    const int32_t value_dim = latent_dim + (format->rope_is_value ? rope_dim : 0);
    if (args->value_dim != value_dim)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "value_dim is %d: %s with these dims has %d", args->value_dim,
                         format->name, value_dim);
    return SPARSE_MLA_OK;
}

/* Fills in both offsets. */
static sparse_mla_status check_offsets(sparse_mla_cache *cache, const struct smla_format *format,
                                       const sparse_mla_decode_args *args, const char *where)
{
    const int32_t latent_bytes = args->latent_dim * format->flat_element_bytes;
    const int32_t rope_bytes = args->rope_dim * format->flat_element_bytes;
    if (!format->flat_element_bytes) {
        if (cache->latent_offset_bytes != 0)
            return invalid_integer(where, "latent_offset_bytes", cache->latent_offset_bytes,
                                   "only flat formats take another than 0");
        if (cache->rope_offset_bytes != -1)
            return invalid_integer(where, "rope_offset_bytes", cache->rope_offset_bytes,
                                   "only flat formats take another than -1");
        cache->rope_offset_bytes = format->rope_offset;
        return SPARSE_MLA_OK;
    }
    if (cache->latent_offset_bytes < 0 || cache->latent_offset_bytes > OFFSET_MAX ||
        cache->latent_offset_bytes % format->alignment != 0)
        return invalid_integer(where, "latent_offset_bytes", cache->latent_offset_bytes,
                               "it must be a multiple of 16 from 0 to 2^20");
    if (cache->rope_offset_bytes == -1)
        cache->rope_offset_bytes = cache->latent_offset_bytes + latent_bytes;
    if (cache->rope_offset_bytes < 0 || cache->rope_offset_bytes > 2 * OFFSET_MAX ||
        cache->rope_offset_bytes % format->alignment != 0)
        return invalid_integer(where, "rope_offset_bytes", cache->rope_offset_bytes,
                               "it must be -1 or a multiple of 16 from 0 to 2^21");
    if (rope_bytes > 0 && cache->rope_offset_bytes < cache->latent_offset_bytes + latent_bytes &&
        cache->latent_offset_bytes < cache->rope_offset_bytes + rope_bytes)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT,
                         "%srope_offset_bytes is %d: the rope would overlap the latent, which is bytes %d to %d", where,
                         cache->rope_offset_bytes, cache->latent_offset_bytes,
                         cache->latent_offset_bytes + latent_bytes - 1);
    return SPARSE_MLA_OK;
}

/* A stride over `extent` steps of at least `least` units each. Nobody takes a step along an extent of 1. */
static sparse_mla_status check_stride(const char *where, const char *name, int64_t stride, int64_t extent,
                                      int64_t least, int64_t multiple, const char *unit)
{
    if (extent <= 1)
        return SPARSE_MLA_OK;
    if (stride < least)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "%s%s is %lld: it must be at least %lld, in %s", where, name,
                         (long long)stride, (long long)least, unit);
    if (stride % multiple != 0)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "%s%s is %lld: it must be a multiple of %lld, in %s", where, name,
                         (long long)stride, (long long)multiple, unit);
    if ((double)stride * (double)extent > SPAN_MAX)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "%s%s is %lld: %lld such steps are more than 2^60 %s", where,
                         name, (long long)stride, (long long)extent, unit);
    return SPARSE_MLA_OK;
}

static sparse_mla_status check_pages(const sparse_mla_cache *cache, const struct smla_format *format,
                                     const sparse_mla_decode_args *args, const char *where)
{
    const int64_t bytes = smla_format_read_bytes(cache, args->latent_dim, args->rope_dim);
    sparse_mla_status status;
    if (cache->num_slots < 0 || cache->num_slots > INT32_MAX)
        return invalid_integer(where, "num_slots", cache->num_slots, "0 to 2^31 - 1 are supported");
    if (cache->page_size < 1)
        return invalid_integer(where, "page_size", cache->page_size, "it must be at least 1");
    status = check_stride(where, "row_stride_bytes", cache->row_stride_bytes, cache->page_size, bytes,
                          format->alignment, "bytes");
    if (status != SPARSE_MLA_OK)
        return status;
    return check_stride(where, "page_stride_bytes", cache->page_stride_bytes,
                        (cache->num_slots + cache->page_size - 1) / cache->page_size, bytes, format->alignment,
                        "bytes");
}

static sparse_mla_status check_rows(const sparse_mla_cache *cache, const sparse_mla_decode_args *args,
                                    const char *where)
{
    sparse_mla_status status = SPARSE_MLA_OK;
    if (cache->topk < 1)
        return invalid_integer(where, "topk", cache->topk, "it must be at least 1");
    if (cache->length_mode < SPARSE_MLA_LENGTH_PER_TOKEN || cache->length_mode > SPARSE_MLA_LENGTH_PER_REQUEST)
        return invalid_integer(where, "length_mode", cache->length_mode,
                               "0 (per token) and 1 (per request) are supported");
    if (cache->indices) {
        status = check_stride(where, "indices_request_stride", cache->indices_request_stride,
                              args->num_tokens / args->q_len, cache->topk, 1, "elements");
        if (status == SPARSE_MLA_OK)
            status = check_stride(where, "indices_token_stride", cache->indices_token_stride, args->q_len, cache->topk,
                                  1, "elements");
    }
    if (status != SPARSE_MLA_OK || !cache->block_table)
        return status;
    if (cache->block_table_width < 1)
        return invalid_integer(where, "block_table_width", cache->block_table_width, "it must be at least 1");
    return check_stride(where, "block_table_stride", cache->block_table_stride, args->num_requests,
                        cache->block_table_width, 1, "elements");
}

static sparse_mla_status check_cache(sparse_mla_cache *cache, const sparse_mla_decode_args *args, const char *where)
{
    const struct smla_format *format = smla_format_get(cache->format);
    sparse_mla_status status;
    if (!format)
        return invalid_integer(where, "format", cache->format, "it must be a sparse_mla_format, 0 to 6");
    status = check_dims(args, format);
    if (status == SPARSE_MLA_OK)
        status = check_offsets(cache, format, args, where);
    if (status == SPARSE_MLA_OK)
        status = check_pages(cache, format, args, where);
    if (status == SPARSE_MLA_OK)
        status = check_rows(cache, args, where);
    if (status == SPARSE_MLA_OK && cache->format == SPARSE_MLA_FLAT_E4M3 && !isfinite(cache->tensor_scale))
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "%stensor_scale is %g: it must be finite", where,
                         (double)cache->tensor_scale);
    return status;
}

/* `names`: of the request, token and head strides. */
static sparse_mla_status check_tensor(const sparse_mla_decode_args *args, const char *const names[3],
                                      const int64_t strides[3], int64_t row, int64_t multiple)
{
    const int64_t extents[3] = {args->num_tokens / args->q_len, args->q_len, args->num_heads};
    for (int i = 0; i < 3; i++) {
        sparse_mla_status status = check_stride("", names[i], strides[i], extents[i], row, multiple, "elements");
        if (status != SPARSE_MLA_OK)
            return status;
    }
    return SPARSE_MLA_OK;
}

static int dtype_bytes(int32_t dtype)
{
    return dtype == SPARSE_MLA_F32 ? 4 : 2;
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
    const int q_multiple = 16 / dtype_bytes(args->q_dtype), out_multiple = 16 / dtype_bytes(args->out_dtype);
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

enum need { OPTIONAL, REQUIRED };

static sparse_mla_status check_pointer(const char *where, const char *name, const void *pointer, enum need need,
                                       int alignment)
{
    if (!pointer && need == REQUIRED)
        return invalid_pointer(where, name, pointer, "it is required");
    if ((uintptr_t)pointer % (uintptr_t)alignment != 0)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "%s%s is %p: it must be aligned to %d bytes", where, name,
                         pointer, alignment);
    return SPARSE_MLA_OK;
}

static sparse_mla_status check_cache_pointers(const sparse_mla_cache *cache, const char *where)
{
    sparse_mla_status status = check_pointer(where, "data", cache->data, cache->num_slots > 0 ? REQUIRED : OPTIONAL,
                                             smla_format_get(cache->format)->alignment);
    if (status == SPARSE_MLA_OK)
        status = check_pointer(where, "indices", cache->indices, OPTIONAL, 4);
    if (status == SPARSE_MLA_OK)
        status = check_pointer(where, "lengths", cache->lengths, OPTIONAL, 4);
    if (status == SPARSE_MLA_OK)
        status = check_pointer(where, "block_table", cache->block_table, OPTIONAL, 4);
    return status;
}

static sparse_mla_status check_pointers(const struct smla_call *call)
{
    const sparse_mla_decode_args *args = &call->args;
    const struct {
        const char *name;
        const void *pointer;
        enum need need;
        int alignment;
    } pointers[] = {
        {"q_latent", args->q_latent, REQUIRED, 16},
        {"q_rope", args->q_rope, OPTIONAL, 16},
        {"out", args->out, REQUIRED, 16},
        {"lse", args->lse, OPTIONAL, 4},
        {"sink", args->sink, OPTIONAL, 4},
        {"request_of_token", args->request_of_token, OPTIONAL, 4},
        {"fault_count", args->fault_count, OPTIONAL, 4},
    };
    for (size_t i = 0; i < sizeof pointers / sizeof pointers[0]; i++) {
        sparse_mla_status status =
            check_pointer("", pointers[i].name, pointers[i].pointer, pointers[i].need, pointers[i].alignment);
        if (status != SPARSE_MLA_OK)
            return status;
    }
    sparse_mla_status status = check_cache_pointers(&call->main_cache, "main_cache.");
    return status == SPARSE_MLA_OK && call->has_extra ? check_cache_pointers(&call->extra_cache, "extra_cache.")
                                                      : status;
}

static void fill_defaults(sparse_mla_decode_args *args)
{
    if (args->q_rope && args->rope_dim)
        return;
    if (args->q_latent)
        args->q_rope = (const char *)args->q_latent + (size_t)args->latent_dim * (size_t)dtype_bytes(args->q_dtype);
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
