/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"
#include "host.h"
#include "number.h"
#include "tools.h"

#include <float.h>

#define LN_2 0.69314718055994530942

enum { VALUE_DIM_MAX = 65536, CHUNK = 8 }; /* value_dim is a multiple of CHUNK */

static sparse_mla_status check_scalars(const sparse_mla_merge_args *args)
{
    const uint32_t flags =
        SPARSE_MLA_LSE_BASE2 | SPARSE_MLA_LSE_WITH_SINK | SPARSE_MLA_LSE_EMPTY_POSINF | SPARSE_MLA_PART_LSE_BASE2;
    if (args->num_parts < 1)
        return smla_invalid_integer("", "num_parts", args->num_parts, "it must be at least 1");
    if (args->num_tokens < 0)
        return smla_invalid_integer("", "num_tokens", args->num_tokens, "0 or more are supported");
    if (args->num_heads < 1)
        return smla_invalid_integer("", "num_heads", args->num_heads, "it must be at least 1");
    if (args->value_dim < 8 || args->value_dim > VALUE_DIM_MAX || args->value_dim % 8 != 0)
        return smla_invalid_integer("", "value_dim", args->value_dim, "it must be a multiple of 8 from 8 to 65536");
    if (args->flags & ~flags)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "flags is 0x%x: bits 0x%x are not known here", args->flags,
                         args->flags & ~flags);
    if (args->reserved != 0)
        return smla_invalid_integer("", "reserved", args->reserved, "it must be 0");
    sparse_mla_status status = smla_check_dtype("part_dtype", args->part_dtype);
    return status == SPARSE_MLA_OK ? smla_check_dtype("out_dtype", args->out_dtype) : status;
}

static sparse_mla_status check_strides(const sparse_mla_merge_args *args)
{
    const int64_t parts = args->num_parts, tokens = args->num_tokens, heads = args->num_heads, dims = args->value_dim;
    const int part_multiple = 16 / smla_dtype_bytes(args->part_dtype);
    const int out_multiple = 16 / smla_dtype_bytes(args->out_dtype);
    const struct {
        const char *name;
        int64_t stride, extent, least, multiple;
    } strides[] = {
        {"part_out_stride", args->part_out_stride, parts, dims, part_multiple},
        {"part_out_token_stride", args->part_out_token_stride, tokens, dims, part_multiple},
        {"part_out_head_stride", args->part_out_head_stride, heads, dims, part_multiple},
        {"part_lse_stride", args->part_lse_stride, parts, 1, 1},
        {"part_lse_token_stride", args->part_lse_token_stride, tokens, 1, 1},
        {"part_lse_head_stride", args->part_lse_head_stride, heads, 1, 1},
        {"out_token_stride", args->out_token_stride, tokens, dims, out_multiple},
        {"out_head_stride", args->out_head_stride, heads, dims, out_multiple},
        {"lse_token_stride", args->lse_token_stride, args->lse ? tokens : 0, 1, 1},
        {"lse_head_stride", args->lse_head_stride, args->lse ? heads : 0, 1, 1},
    };
    for (size_t i = 0; i < sizeof strides / sizeof strides[0]; i++) {
        sparse_mla_status status = smla_check_stride("", strides[i].name, strides[i].stride, strides[i].extent,
                                                     strides[i].least, strides[i].multiple, "elements");
        if (status != SPARSE_MLA_OK)
            return status;
    }
    return SPARSE_MLA_OK;
}

static sparse_mla_status check_pointers(const sparse_mla_merge_args *args)
{
    const struct smla_pointer pointers[] = {
        {"part_out", args->part_out, SMLA_REQUIRED, 16}, {"part_lse", args->part_lse, SMLA_REQUIRED, 4},
        {"out", args->out, SMLA_REQUIRED, 16},           {"lse", args->lse, SMLA_OPTIONAL, 4},
        {"sink", args->sink, SMLA_OPTIONAL, 4},
    };
    return smla_check_pointers("", pointers, sizeof pointers / sizeof pointers[0]);
}

sparse_mla_status smla_merge_check(sparse_mla_merge_args *to, const sparse_mla_merge_args *args)
{
    sparse_mla_merge_args_init(to);
    if (!args)
        return smla_invalid_pointer("", "args", args, "it is required");
    sparse_mla_status status = smla_copy_struct(to, sizeof *to, SMLA_MERGE_ARGS_FIRST_SIZE, args, "args");
    if (status == SPARSE_MLA_OK)
        status = check_scalars(to);
    if (status == SPARSE_MLA_OK)
        status = check_strides(to);
    return status == SPARSE_MLA_OK && to->num_tokens > 0 ? check_pointers(to) : status;
}

/* ---- host backend ---- */

struct row {
    int64_t token, head;
};

/* The natural lse of a part; -inf for an empty one. */
static double part_lse(const sparse_mla_merge_args *args, struct row at, int32_t part)
{
    const float lse = args->part_lse[part * args->part_lse_stride + at.token * args->part_lse_token_stride +
                                     at.head * args->part_lse_head_stride];
    if (!(lse < INFINITY))
        return -INFINITY;
    return (double)lse * (args->flags & SPARSE_MLA_PART_LSE_BASE2 ? LN_2 : 1);
}

static void merge_row(const sparse_mla_merge_args *args, struct row at)
{
    const int64_t out = at.token * args->out_token_stride + at.head * args->out_head_stride;
    const int64_t first = at.token * args->part_out_token_stride + at.head * args->part_out_head_stride;
    const double sink = args->sink ? (double)args->sink[at.head] : -INFINITY;
    double largest = -INFINITY, sum = 0;
    for (int32_t part = 0; part < args->num_parts; part++)
        largest = fmax(largest, part_lse(args, at, part));
    const bool empty = largest == -INFINITY;
    for (int32_t part = 0; part < args->num_parts && !empty; part++)
        sum += exp(part_lse(args, at, part) - largest);
    const double lse = empty ? -INFINITY : largest + log(sum);
    const double factor = empty ? 0 : (args->sink ? 1 / (1 + exp(sink - lse)) : 1) / sum;
    for (int32_t dim = 0; dim < args->value_dim; dim += CHUNK) {
        double sums[CHUNK] = {0};
        for (int32_t part = 0; part < args->num_parts && !empty; part++) {
            const double weight = exp(part_lse(args, at, part) - largest);
            for (int i = 0; i < CHUNK && weight >= (double)FLT_MIN; i++)
                sums[i] += weight *
                           smla_load(args->part_out, args->part_dtype, part * args->part_out_stride + first + dim + i);
        }
        for (int i = 0; i < CHUNK; i++)
            smla_store(args->out, args->out_dtype, out + dim + i, sums[i] * factor);
    }
    if (args->lse)
        args->lse[at.token * args->lse_token_stride + at.head * args->lse_head_stride] =
            (float)smla_host_lse(args->flags, args->sink, lse, sink, empty);
}

void smla_merge_host(const sparse_mla_merge_args *args)
{
    for (int32_t token = 0; token < args->num_tokens; token++)
        for (int32_t head = 0; head < args->num_heads; head++)
            merge_row(args, (struct row){token, head});
}

/* ---- CUDA backend ---- */

void smla_merge_params(struct smla_merge_params *params, const sparse_mla_merge_args *args)
{
    *params = (struct smla_merge_params){
        .part_out = args->part_out,
        .part_lse = args->part_lse,
        .out = args->out,
        .lse = args->lse,
        .sink = args->sink,
        .part_out_stride = args->part_out_stride,
        .part_out_token_stride = args->part_out_token_stride,
        .part_out_head_stride = args->part_out_head_stride,
        .part_lse_stride = args->part_lse_stride,
        .part_lse_token_stride = args->part_lse_token_stride,
        .part_lse_head_stride = args->part_lse_head_stride,
        .out_token_stride = args->out_token_stride,
        .out_head_stride = args->out_head_stride,
        .lse_token_stride = args->lse_token_stride,
        .lse_head_stride = args->lse_head_stride,
        .rows = (int64_t)args->num_tokens * args->num_heads,
        .num_parts = args->num_parts,
        .num_heads = args->num_heads,
        .value_dim = args->value_dim,
        .part_dtype = args->part_dtype,
        .out_dtype = args->out_dtype,
        .flags = args->flags,
    };
}
