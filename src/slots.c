/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"
#include "tools.h"

#define F16_NEGATIVE_INFINITY 0xFC00

static sparse_mla_status check_scalars(const sparse_mla_map_slots_args *args)
{
    if (args->num_tokens < 0)
        return smla_invalid_integer("", "num_tokens", args->num_tokens, "0 or more are supported");
    if (args->q_len < 1)
        return smla_invalid_integer("", "q_len", args->q_len, "it must be at least 1");
    if (args->num_tokens % args->q_len != 0)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "q_len is %d: it must divide num_tokens, which is %d",
                         args->q_len, args->num_tokens);
    if (args->topk < 1)
        return smla_invalid_integer("", "topk", args->topk, "it must be at least 1");
    if (args->page_size < 1)
        return smla_invalid_integer("", "page_size", args->page_size, "it must be at least 1");
    if (args->num_slots < 0 || args->num_slots > INT32_MAX)
        return smla_invalid_integer("", "num_slots", args->num_slots, "0 to 2^31 - 1 are supported");
    if (args->length_mode < SPARSE_MLA_LENGTH_PER_TOKEN || args->length_mode > SPARSE_MLA_LENGTH_PER_REQUEST)
        return smla_invalid_integer("", "length_mode", args->length_mode,
                                    "0 (per token) and 1 (per request) are supported");
    if (args->num_requests < 0)
        return smla_invalid_integer("", "num_requests", args->num_requests, "it must be 0 or more");
    if (args->block_table && args->block_table_width < 1)
        return smla_invalid_integer("", "block_table_width", args->block_table_width, "it must be at least 1");
    if (args->mask && args->mask_width < 1)
        return smla_invalid_integer("", "mask_width", args->mask_width, "it must be at least 1");
    if (args->reserved != 0)
        return smla_invalid_integer("", "reserved", args->reserved, "it must be 0");
    return SPARSE_MLA_OK;
}

static sparse_mla_status check_strides(const sparse_mla_map_slots_args *args)
{
    const int64_t rows = args->num_tokens / args->q_len, q_len = args->q_len;
    const struct {
        const char *name;
        const void *tensor;
        int64_t stride, extent, least;
    } strides[] = {
        {"indices_request_stride", args->indices, args->indices_request_stride, rows, args->topk},
        {"indices_token_stride", args->indices, args->indices_token_stride, q_len, args->topk},
        {"block_table_stride", args->block_table, args->block_table_stride, args->num_requests,
         args->block_table_width},
        {"mask_request_stride", args->mask, args->mask_request_stride, rows, args->mask_width},
        {"mask_token_stride", args->mask, args->mask_token_stride, q_len, args->mask_width},
        {"slots_request_stride", args->slots, args->slots_request_stride, rows, args->topk},
        {"slots_token_stride", args->slots, args->slots_token_stride, q_len, args->topk},
    };
    for (size_t i = 0; i < sizeof strides / sizeof strides[0]; i++) {
        sparse_mla_status status =
            smla_check_stride("", strides[i].name, strides[i].stride, strides[i].tensor ? strides[i].extent : 0,
                              strides[i].least, 1, "elements");
        if (status != SPARSE_MLA_OK)
            return status;
    }
    return SPARSE_MLA_OK;
}

static sparse_mla_status check_pointers(const sparse_mla_map_slots_args *args)
{
    const struct smla_pointer pointers[] = {
        {"indices", args->indices, SMLA_OPTIONAL, 4},
        {"lengths", args->lengths, SMLA_OPTIONAL, 4},
        {"block_table", args->block_table, SMLA_OPTIONAL, 4},
        {"request_of_token", args->request_of_token, SMLA_OPTIONAL, 4},
        {"mask", args->mask, SMLA_OPTIONAL, 2},
        {"slots", args->slots, SMLA_REQUIRED, 4},
        {"counts", args->counts, SMLA_OPTIONAL, 4},
        {"fault_count", args->fault_count, SMLA_OPTIONAL, 4},
    };
    return smla_check_pointers("", pointers, sizeof pointers / sizeof pointers[0]);
}

sparse_mla_status smla_slots_check(sparse_mla_map_slots_args *to, const sparse_mla_map_slots_args *args)
{
    sparse_mla_map_slots_args_init(to);
    if (!args)
        return smla_invalid_pointer("", "args", args, "it is required");
    sparse_mla_status status = smla_copy_struct(to, sizeof *to, SMLA_MAP_SLOTS_ARGS_FIRST_SIZE, args, "args");
    if (status == SPARSE_MLA_OK)
        status = check_scalars(to);
    if (status != SPARSE_MLA_OK)
        return status;
    if (to->num_requests == 0)
        to->num_requests = to->num_tokens / to->q_len;
    status = check_strides(to);
    return status == SPARSE_MLA_OK && to->num_tokens > 0 ? check_pointers(to) : status;
}

/* ---- host backend ---- */

/* One token's rows. */
struct token_rows {
    const int32_t *indices, *table;
    const uint16_t *mask;
    int32_t *slots;
    int32_t length;
};

static struct token_rows rows_of(const sparse_mla_map_slots_args *args, int32_t token)
{
    const int64_t row = token / args->q_len, position = token % args->q_len;
    const int64_t request = args->request_of_token ? args->request_of_token[token] : row;
    struct token_rows rows = {.slots =
                                  args->slots + row * args->slots_request_stride + position * args->slots_token_stride};
    if (request < 0 || request >= args->num_requests)
        return rows;
    rows.length = args->topk;
    if (args->lengths) {
        const int32_t length =
            args->lengths[args->length_mode == SPARSE_MLA_LENGTH_PER_REQUEST ? request : (int64_t)token];
        rows.length = length < rows.length ? length : rows.length;
    }
    if (args->indices)
        rows.indices = args->indices + row * args->indices_request_stride + position * args->indices_token_stride;
    if (args->block_table)
        rows.table = args->block_table + request * args->block_table_stride;
    if (args->mask)
        rows.mask = args->mask + row * args->mask_request_stride + position * args->mask_token_stride;
    return rows;
}

/* The slot of an index that is not negative; num_slots or more when there is none. */
static int64_t slot_of_index(const sparse_mla_map_slots_args *args, const struct token_rows *rows, int32_t index)
{
    const int32_t page = index / args->page_size;
    if (rows->mask && index >= args->mask_width)
        return args->num_slots;
    if (!rows->table)
        return index;
    if (page >= args->block_table_width || rows->table[page] < 0)
        return args->num_slots;
    return (int64_t)rows->table[page] * args->page_size + index % args->page_size;
}

/* -1: masked, or past the length. */
static int32_t slot_of_column(const sparse_mla_map_slots_args *args, const struct token_rows *rows, int32_t column,
                              uint32_t *faults)
{
    if (column >= rows->length)
        return -1;
    const int32_t index = rows->indices ? rows->indices[column] : column;
    if (index < 0 || (rows->mask && index < args->mask_width && rows->mask[index] == F16_NEGATIVE_INFINITY))
        return -1;
    const int64_t slot = slot_of_index(args, rows, index);
    if (slot < args->num_slots)
        return (int32_t)slot;
    ++*faults;
    return -1;
}

static void map_token(const sparse_mla_map_slots_args *args, int32_t token, uint32_t *faults)
{
    const struct token_rows rows = rows_of(args, token);
    int32_t count = 0;
    for (int32_t column = 0; column < args->topk; column++) {
        const int32_t slot = slot_of_column(args, &rows, column, faults);
        if (!args->compact)
            rows.slots[column] = slot;
        else if (slot >= 0)
            rows.slots[count] = slot;
        count += slot >= 0;
    }
    for (int32_t column = count; args->compact && column < args->topk; column++)
        rows.slots[column] = -1;
    if (args->counts)
        args->counts[token] = count;
}

void smla_slots_host(const sparse_mla_map_slots_args *args)
{
    uint32_t faults = 0;
    for (int32_t token = 0; token < args->num_tokens; token++)
        map_token(args, token, &faults);
    /* Atomic: calls of several threads may share the word. */
    if (faults > 0 && args->fault_count)
        __atomic_fetch_add(args->fault_count, faults, __ATOMIC_RELAXED);
}

/* ---- CUDA backend ---- */

void smla_slots_params(struct smla_slots_params *params, const sparse_mla_map_slots_args *args)
{
    *params = (struct smla_slots_params){
        .indices = args->indices,
        .lengths = args->lengths,
        .block_table = args->block_table,
        .request_of_token = args->request_of_token,
        .mask = args->mask,
        .slots = args->slots,
        .counts = args->counts,
        .fault_count = args->fault_count,
        .num_slots = args->num_slots,
        .indices_request_stride = args->indices_request_stride,
        .indices_token_stride = args->indices_token_stride,
        .block_table_stride = args->block_table_stride,
        .mask_request_stride = args->mask_request_stride,
        .mask_token_stride = args->mask_token_stride,
        .slots_request_stride = args->slots_request_stride,
        .slots_token_stride = args->slots_token_stride,
        .q_len = args->q_len,
        .topk = args->topk,
        .page_size = args->page_size,
        .num_requests = args->num_requests,
        .lengths_per_request = args->length_mode == SPARSE_MLA_LENGTH_PER_REQUEST,
        .block_table_width = args->block_table_width,
        .mask_width = args->mask_width,
        .compact = args->compact != 0,
    };
}
