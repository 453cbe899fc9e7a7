/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of a call: lengths, block table, indices, and a cache whose selected rows are written. */
#include "problem_parts.h"

#include <stdlib.h>
#include <string.h>

/* While it is made. */
struct keys {
    struct problem *p;
    const struct key_spec *spec;
    sparse_mla_cache *cache;
    int requests; /* rows of lengths and of the block table */
};

static void make_lengths(const struct keys *k, uint64_t *seed)
{
    const struct spec *spec = &k->p->spec;
    const bool per_request = k->spec->lengths == LENGTHS_PER_REQUEST;
    const int count = per_request ? k->requests : spec->tokens;
    int32_t *lengths = arena_take(k->p->arena, "lengths", sizeof(int32_t) * (size_t)count, sizeof(int32_t));
    for (int i = 0; i < count; i++) {
        const double kind = random_uniform(seed);
        lengths[i] = kind < 0.01   ? INT32_MIN
                     : kind < 0.1  ? -(int)(kind * 50)
                     : kind < 0.19 ? k->spec->topk + (int)(kind * 100)
                     : kind < 0.2  ? INT32_MAX
                                   : 1 + random_below(seed, k->spec->topk);
    }
    k->cache->lengths = lengths;
    k->cache->length_mode = per_request ? SPARSE_MLA_LENGTH_PER_REQUEST : SPARSE_MLA_LENGTH_PER_TOKEN;
}

/* An entry that names no page, among them some that 32-bit arithmetic would take for one. */
static int32_t bad_entry(const struct keys *k, int pages, uint64_t *seed)
{
    const int64_t wrapped = ((int64_t)1 << 32) / k->cache->page_size + random_below(seed, pages);
    switch (random_below(seed, 4)) {
    case 0:
        return -1 - random_below(seed, 1000);
    case 1:
        return INT32_MAX;
    case 2:
        return wrapped <= INT32_MAX ? (int32_t)wrapped : -1;
    default:
        return pages + random_below(seed, 1000);
    }
}

static void make_table(const struct keys *k, uint64_t *seed)
{
    const int pages = (int)((k->cache->num_slots + k->cache->page_size - 1) / k->cache->page_size);
    const int width = pages > 1 ? pages : 1, stride = width + k->spec->index_pad;
    const size_t elements = (size_t)(k->requests - 1) * (size_t)stride + (size_t)width;
    int32_t *table = arena_take(k->p->arena, "block table", sizeof(int32_t) * elements, sizeof(int32_t));
    for (int i = 0; i < k->requests; i++)
        for (int j = 0; j < width; j++)
            table[i * stride + j] =
                random_uniform(seed) < 0.03 || pages == 0 ? bad_entry(k, width, seed) : random_below(seed, pages);
    k->cache->block_table = table;
    k->cache->block_table_width = width;
    k->cache->block_table_stride = k->p->spec.odd_strides && k->requests == 1 ? -77 : stride;
}

static int request_of(const struct problem *p, int token)
{
    return p->host.request_of_token ? p->host.request_of_token[token] : token / p->spec.q_len;
}

static int length_of(const struct keys *k, int token)
{
    const int request = request_of(k->p, token);
    if (request < 0 || request >= k->requests)
        return 0;
    if (!k->cache->lengths)
        return k->spec->topk;
    const int length = k->cache->lengths[k->spec->lengths == LENGTHS_PER_REQUEST ? request : token];
    return length < 0 ? 0 : length > k->spec->topk ? k->spec->topk : length;
}

/* -1: none. */
static int64_t slot_of(const struct keys *k, int token, int index)
{
    const sparse_mla_cache *cache = k->cache;
    int64_t slot = index;
    if (index >= 0 && cache->block_table) {
        const int page = index / cache->page_size;
        if (page >= cache->block_table_width)
            return -1;
        const int64_t stride = k->requests > 1 ? cache->block_table_stride : 0;
        const int32_t entry = cache->block_table[request_of(k->p, token) * stride + page];
        slot = entry < 0 ? -1 : (int64_t)entry * cache->page_size + index % cache->page_size;
    }
    return slot < cache->num_slots ? slot : -1;
}

static int32_t choose_index(const struct keys *k, uint64_t *seed)
{
    const struct key_spec *spec = k->spec;
    const int slots = (int)k->cache->num_slots;
    const double kind = random_uniform(seed);
    if (kind < spec->masked)
        return kind < spec->masked * 0.01 ? INT32_MIN : -1 - (int)(kind * 1000);
    if (kind < spec->masked + spec->past || slots == 0)
        return kind < spec->masked + spec->past * 0.05 ? INT32_MAX
               : random_below(seed, 2)                 ? slots
                                                       : slots + (int)(kind * 1e6);
    return kind > 0.99 ? slots - 1 : random_below(seed, slots);
}

static void make_indices(const struct keys *k, bool *selected, uint64_t *seed)
{
    const struct spec *spec = &k->p->spec;
    const int topk = k->spec->topk, requests = spec->tokens / spec->q_len;
    const int64_t token_stride = topk + k->spec->index_pad;
    const int64_t request_stride = token_stride * spec->q_len + k->spec->index_pad;
    int32_t *indices = NULL;
    if (!k->spec->dense) {
        const int64_t elements = (requests - 1) * request_stride + (spec->q_len - 1) * token_stride + topk;
        indices = arena_take(k->p->arena, "indices", sizeof(int32_t) * (size_t)elements, sizeof(int32_t));
        k->cache->indices = indices;
        k->cache->indices_token_stride = spec->odd_strides && spec->q_len == 1 ? -7 : token_stride;
        k->cache->indices_request_stride = spec->odd_strides && requests == 1 ? -77 : request_stride;
    }
    for (int t = 0; t < spec->tokens; t++) {
        int32_t *row = indices ? indices + t / spec->q_len * request_stride + t % spec->q_len * token_stride : NULL;
        const int length = length_of(k, t);
        for (int j = 0; j < topk; j++) {
            int index = j;
            if (row) {
                index = choose_index(k, seed);
                row[j] = j >= length && j % 2 ? INT32_MAX : index; /* past the length: nobody may follow it */
            }
            const int64_t slot = j < length ? slot_of(k, t, index) : -1;
            if (slot >= 0)
                selected[slot] = true;
        }
    }
}

void make_keys(struct problem *p, sparse_mla_cache *cache, const struct key_spec *spec, uint64_t *seed)
{
    struct keys k = {p, spec, cache, p->spec.requests ? p->spec.requests : p->spec.tokens / p->spec.q_len};
    sparse_mla_cache_init(cache);
    cache->num_slots = spec->slots == NO_SLOTS ? 0 : spec->slots;
    cache->page_size = spec->page_size;
    cache->topk = spec->topk;
    bool *selected = calloc(1, (size_t)cache->num_slots + 1);
    if (!selected)
        exit(1);
    if (spec->lengths)
        make_lengths(&k, seed);
    if (spec->table)
        make_table(&k, seed);
    make_indices(&k, selected, seed);
    make_cache(p, cache, spec, selected, seed);
    free(selected);
}
