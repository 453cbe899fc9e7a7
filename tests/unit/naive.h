/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of sparse_mla_decode() once more, as plainly as possible and without the library: what the host backend
 * is tested against. Two passes over the keys of each head, all in double. */
#ifndef NAIVE_H
#define NAIVE_H

#include <sparsemla/sparsemla.h>

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

enum { NAIVE_DIMS_MAX = 576 };

/* Any IEEE-like format: sign, `exponent_bits`, `fraction_bits`. */
static inline double naive_binary(uint32_t bits, int exponent_bits, int fraction_bits)
{
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const uint32_t fraction = bits & ((1u << fraction_bits) - 1);
    const int exponent = (int)(bits >> fraction_bits & ((1u << exponent_bits) - 1));
    const double sign = bits >> (exponent_bits + fraction_bits) & 1 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1)
        return fraction ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0)
        return sign * ldexp(fraction, 1 - bias - fraction_bits);
    return sign * ldexp(fraction + (1u << fraction_bits), exponent - bias - fraction_bits);
}

/* e4m3 has no infinity: its highest exponent is an ordinary one, but for the last number, which is NaN. */
static inline double naive_e4m3(uint8_t bits)
{
    if ((bits & 0x7F) == 0x7F)
        return (double)NAN;
    if ((bits & 0x78) == 0x78)
        return (bits & 0x80 ? -1 : 1) * ldexp(8 + (bits & 7), 5);
    return naive_binary(bits, 4, 3);
}

static inline double naive_number(const void *data, int dtype, int64_t element)
{
    uint16_t half;
    float single;
    if (dtype == SPARSE_MLA_F32) {
        memcpy(&single, (const char *)data + 4 * element, 4);
        return (double)single;
    }
    memcpy(&half, (const char *)data + 2 * element, 2);
    return dtype == SPARSE_MLA_BF16 ? naive_binary(half, 8, 7) : naive_binary(half, 5, 10);
}

static inline unsigned char *naive_record(const sparse_mla_cache *cache, int64_t slot)
{
    int64_t page = slot / cache->page_size, row = slot - page * cache->page_size;
    return (unsigned char *)cache->data + page * cache->page_stride_bytes + row * cache->row_stride_bytes;
}

static inline double naive_ue8m0(uint8_t bits)
{
    return bits == 255 ? (double)NAN : ldexp(1, bits - 127);
}

/* The eight bytes of scales of a DeepSeek-V4 slot: behind all rows of its page. */
static inline unsigned char *naive_v4_scales(const sparse_mla_cache *cache, int64_t slot)
{
    return naive_record(cache, slot / cache->page_size * cache->page_size) + cache->page_size * 576 +
           slot % cache->page_size * 8;
}

/* Bytes of so many neighbouring dims of a record whose latent and rope may lie anywhere. */
static inline int naive_run_bytes(const sparse_mla_cache *cache, int dims)
{
    return cache->format == SPARSE_MLA_Q8_0 ? dims / 32 * 34 : cache->format == SPARSE_MLA_FLAT_E4M3 ? dims : 2 * dims;
}

/* Where the rope begins in a record. */
static inline int naive_rope_at(const sparse_mla_cache *cache, int latent_dim)
{
    if (cache->format == SPARSE_MLA_FP8_DS_MLA || cache->format == SPARSE_MLA_FP8_DS_MLA_NOPE)
        return 528;
    if (cache->format == SPARSE_MLA_FP8_V4)
        return 448;
    return cache->rope_offset_bytes < 0 ? cache->latent_offset_bytes + naive_run_bytes(cache, latent_dim)
                                        : cache->rope_offset_bytes;
}

/* Dim `i` of a run that begins at `run`. */
static inline double naive_of_run(const sparse_mla_cache *cache, const unsigned char *run, int i)
{
    switch (cache->format) {
    case SPARSE_MLA_FLAT_F16:
        return naive_number(run, SPARSE_MLA_F16, i);
    case SPARSE_MLA_FLAT_E4M3:
        return naive_e4m3(run[i]) * (double)cache->tensor_scale;
    case SPARSE_MLA_Q8_0:
        run += i / 32 * 34;
        return naive_number(run, SPARSE_MLA_F16, 0) * (run[2 + i % 32] - (run[2 + i % 32] > 127 ? 256 : 0));
    default: /* FLAT_BF16, and the rope of fp8 records */
        return naive_number(run, SPARSE_MLA_BF16, i);
    }
}

/* Latent, then rope. */
static inline void naive_row(const sparse_mla_decode_args *args, const sparse_mla_cache *cache, int64_t slot,
                             double *row)
{
    const unsigned char *record = naive_record(cache, slot);
    for (int i = 0; i < args->latent_dim; i++)
        if (cache->format == SPARSE_MLA_FP8_DS_MLA || cache->format == SPARSE_MLA_FP8_DS_MLA_NOPE)
            row[i] = naive_e4m3(record[i]) * naive_number(record + 512, SPARSE_MLA_F32, i / 128);
        else if (cache->format == SPARSE_MLA_FP8_V4)
            row[i] = naive_e4m3(record[i]) * naive_ue8m0(naive_v4_scales(cache, slot)[i / 64]);
        else
            row[i] = naive_of_run(cache, record + cache->latent_offset_bytes, i);
    for (int i = 0; i < args->rope_dim; i++)
        row[args->latent_dim + i] = naive_of_run(cache, record + naive_rope_at(cache, args->latent_dim), i);
}

/* The slot of a column; -1: masked. */
static inline int64_t naive_slot(const sparse_mla_decode_args *args, const sparse_mla_cache *cache, int token,
                                 int column, uint32_t *faults)
{
    const int request = args->request_of_token ? args->request_of_token[token] : token / args->q_len;
    const int requests = args->num_requests ? args->num_requests : args->num_tokens / args->q_len;
    if (request < 0 || request >= requests)
        return -1;
    if (cache->lengths &&
        column >= cache->lengths[cache->length_mode == SPARSE_MLA_LENGTH_PER_REQUEST ? request : token])
        return -1;
    int64_t slot = column;
    if (cache->indices)
        slot = cache->indices[token / args->q_len * cache->indices_request_stride +
                              token % args->q_len * cache->indices_token_stride + column];
    if (slot < 0)
        return -1;
    if (cache->block_table) {
        const int64_t page = slot / cache->page_size;
        const int64_t entry =
            page < cache->block_table_width ? cache->block_table[request * cache->block_table_stride + page] : -1;
        slot = entry < 0 ? INT64_MAX : entry * cache->page_size + slot % cache->page_size;
    }
    if (slot < cache->num_slots)
        return slot;
    ++*faults;
    return -1;
}

/* Calls `visit` for every valid key of a token, in both caches. Returns the faults. */
static inline uint32_t naive_keys(const sparse_mla_decode_args *args, int token,
                                  void (*visit)(void *user, const sparse_mla_cache *cache, int64_t slot), void *user)
{
    const sparse_mla_cache *caches[2] = {args->main_cache, args->extra_cache};
    uint32_t faults = 0;
    for (int c = 0; c < 2 && caches[c]; c++)
        for (int column = 0; column < caches[c]->topk; column++) {
            int64_t slot = naive_slot(args, caches[c], token, column, &faults);
            if (slot >= 0)
                visit(user, caches[c], slot);
        }
    return faults;
}

struct naive_list {
    const sparse_mla_decode_args *args;
    double (*rows)[NAIVE_DIMS_MAX];
    double *scores;
    int count;
};

static inline void naive_append(void *user, const sparse_mla_cache *cache, int64_t slot)
{
    struct naive_list *list = user;
    naive_row(list->args, cache, slot, list->rows[list->count++]);
}

static inline void naive_head(const sparse_mla_decode_args *args, const struct naive_list *keys, int token, int head,
                              double *out, double *lse)
{
    const int64_t row = token / args->q_len, position = token % args->q_len;
    const int64_t latent = row * args->q_latent_request_stride + position * args->q_latent_token_stride +
                           head * args->q_latent_head_stride;
    const int64_t rope =
        row * args->q_rope_request_stride + position * args->q_rope_token_stride + head * args->q_rope_head_stride;
    double largest = (double)-INFINITY, sum = 0;
    bool empty = true; /* a row of keys whose scores are all -inf is as good as none */
    for (int key = 0; key < keys->count; key++) {
        double dot = 0;
        for (int i = 0; i < args->latent_dim; i++)
            dot += naive_number(args->q_latent, args->q_dtype, latent + i) * keys->rows[key][i];
        for (int i = 0; i < args->rope_dim; i++)
            dot += (args->q_rope ? naive_number(args->q_rope, args->q_dtype, rope + i)
                                 : naive_number(args->q_latent, args->q_dtype, latent + args->latent_dim + i)) *
                   keys->rows[key][args->latent_dim + i];
        keys->scores[key] = dot * (double)args->scale;
        largest = fmax(largest, keys->scores[key]);
        empty &= keys->scores[key] == (double)-INFINITY;
    }
    memset(out, 0, (size_t)args->value_dim * sizeof *out);
    for (int key = 0; key < keys->count; key++)
        sum += exp(keys->scores[key] - largest);
    const double own = empty ? (double)-INFINITY : largest + log(sum);
    const double sink = args->sink ? (double)args->sink[head] : (double)-INFINITY;
    for (int key = 0; key < keys->count && !empty; key++)
        for (int i = 0; i < args->value_dim; i++)
            out[i] += exp(keys->scores[key] - own) * keys->rows[key][i] / (1 + exp(sink - own));
    *lse = own;
    if (args->flags & SPARSE_MLA_LSE_WITH_SINK && args->sink && isnan(sink))
        *lse = sink;
    else if (args->flags & SPARSE_MLA_LSE_WITH_SINK && args->sink)
        *lse = isinf(sink) || empty ? fmax(own, sink) : fmax(own, sink) + log1p(exp(-fabs(sink - own)));
    else if (args->flags & SPARSE_MLA_LSE_EMPTY_POSINF && empty)
        *lse = (double)INFINITY;
    if (args->flags & SPARSE_MLA_LSE_BASE2)
        *lse /= log(2);
}

/* out: [T][H][value_dim], lse: [T][H]. Returns the faults. */
static inline uint32_t naive_decode(const sparse_mla_decode_args *args, double *out, double *lse)
{
    const int columns = args->main_cache->topk + (args->extra_cache ? args->extra_cache->topk : 0);
    struct naive_list keys = {args, malloc((size_t)columns * sizeof *keys.rows),
                              malloc((size_t)columns * sizeof *keys.scores), 0};
    uint32_t faults = 0;
    for (int token = 0; token < args->num_tokens; token++) {
        keys.count = 0;
        faults += naive_keys(args, token, naive_append, &keys);
        for (int head = 0; head < args->num_heads; head++) {
            const int64_t at = (int64_t)token * args->num_heads + head;
            naive_head(args, &keys, token, head, out + at * args->value_dim, lse + at);
        }
    }
    free(keys.rows);
    free(keys.scores);
    return faults;
}

#endif
