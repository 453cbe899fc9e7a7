/* SPDX-License-Identifier: Apache-2.0 */
/* Everything is computed in double, with eight heads side by side in vector registers, so that no sum has to be
 * reordered to be fast. Keys come in blocks with an online softmax: a call of any width needs the same scratch memory.
 */
#include "host.h"

#include "format.h"
#include "number.h"

#include <stdlib.h>

#define LOG2_E 1.4426950408889634

enum { LANES = 8, BLOCK_KEYS = 16, VALUE_DIMS_MAX = 512 };

/* Two lanes: what every 64-bit machine has a register for. Compilers make worse of a plain loop over lanes. */
typedef double pair __attribute__((vector_size(16)));

/* One number per head. */
union lanes {
    double of[LANES];
    pair pairs[LANES / 2];
};

struct place {
    int32_t token, row, position; /* token = row * q_len + position */
    int32_t request;              /* row of block tables and lengths; may be out of range */
};

/* The keys of one token in one cache. */
struct key_walk {
    const sparse_mla_cache *cache;
    const int32_t *indices; /* of the token; NULL: column j is position j */
    const int32_t *table;   /* of the request; NULL: positions are slots */
    int32_t column, length;
    uint32_t faults;
};

/* Up to eight heads of one token. */
struct group {
    int lanes;                            /* heads that exist; the others have a query of zero */
    union lanes query[SMLA_ROW_DIMS_MAX]; /* scaled */
    double rows[BLOCK_KEYS][SMLA_ROW_DIMS_MAX];
    union lanes weights[BLOCK_KEYS]; /* exp(score - reference); first the scores */
    union lanes reference;           /* the largest score so far */
    union lanes sum;                 /* of all weights */
    union lanes out[VALUE_DIMS_MAX]; /* of all weights * values */
};

static struct place place_of(const sparse_mla_decode_args *args, int32_t token)
{
    const int32_t row = token / args->q_len;
    return (struct place){token, row, token % args->q_len,
                          args->request_of_token ? args->request_of_token[token] : row};
}

static struct key_walk start_walk(const sparse_mla_cache *cache, const sparse_mla_decode_args *args, struct place at)
{
    struct key_walk walk = {.cache = cache, .length = cache->topk};
    if (at.request < 0 || at.request >= args->num_requests) {
        walk.length = 0;
        return walk;
    }
    if (cache->lengths) {
        const bool per_token = cache->length_mode == SPARSE_MLA_LENGTH_PER_TOKEN;
        const int32_t length = cache->lengths[per_token ? at.token : at.request];
        walk.length = length < cache->topk ? length : cache->topk;
    }
    if (cache->indices)
        walk.indices =
            cache->indices + at.row * cache->indices_request_stride + at.position * cache->indices_token_stride;
    if (cache->block_table)
        walk.table = cache->block_table + at.request * cache->block_table_stride;
    return walk;
}

/* The slot at a position of the request, or num_slots when there is none. */
static int64_t slot_of(const struct key_walk *walk, int32_t position)
{
    const sparse_mla_cache *cache = walk->cache;
    const int32_t page = position / cache->page_size;
    if (!walk->table)
        return position;
    if (page >= cache->block_table_width || walk->table[page] < 0)
        return cache->num_slots;
    return (int64_t)walk->table[page] * cache->page_size + position % cache->page_size;
}

/* The next valid key's slot; -1 past the last. */
static int64_t next_slot(struct key_walk *walk)
{
    while (walk->column < walk->length) {
        const int32_t column = walk->column++;
        const int32_t index = walk->indices ? walk->indices[column] : column;
        if (index < 0)
            continue;
        const int64_t slot = slot_of(walk, index);
        if (slot < walk->cache->num_slots)
            return slot;
        walk->faults++;
    }
    return -1;
}

int32_t smla_host_slots(const struct smla_call *call, const sparse_mla_cache *cache, int32_t token, int32_t *slots,
                        uint32_t *faults)
{
    struct key_walk walk = start_walk(cache, &call->args, place_of(&call->args, token));
    int32_t count = 0;
    for (int64_t slot = next_slot(&walk); slot >= 0; slot = next_slot(&walk))
        slots[count++] = (int32_t)slot;
    *faults += walk.faults;
    return count;
}

static void start_group(struct group *group, const sparse_mla_decode_args *args, struct place at, int32_t first_head)
{
    memset(group, 0, sizeof *group);
    group->lanes = args->num_heads - first_head < LANES ? args->num_heads - first_head : LANES;
    for (int lane = 0; lane < LANES; lane++)
        group->reference.of[lane] = -INFINITY;
    for (int lane = 0; lane < group->lanes; lane++) {
        const int64_t latent = at.row * args->q_latent_request_stride + at.position * args->q_latent_token_stride +
                               (first_head + lane) * args->q_latent_head_stride;
        const int64_t rope = at.row * args->q_rope_request_stride + at.position * args->q_rope_token_stride +
                             (first_head + lane) * args->q_rope_head_stride;
        for (int i = 0; i < args->latent_dim; i++)
            group->query[i].of[lane] = smla_load(args->q_latent, args->q_dtype, latent + i) * (double)args->scale;
        for (int i = 0; i < args->rope_dim; i++)
            group->query[args->latent_dim + i].of[lane] =
                smla_load(args->q_rope, args->q_dtype, rope + i) * (double)args->scale;
    }
}

static void multiply_add(union lanes *sum, const union lanes *a, double b)
{
    for (int i = 0; i < LANES / 2; i++)
        sum->pairs[i] += a->pairs[i] * b;
}

/* rows, query -> weights, which are scores until weigh() */
static void score(struct group *group, int count, int dims)
{
    for (int key = 0; key < count; key++) {
        union lanes sum = {{0}};
        for (int i = 0; i < dims; i++)
            multiply_add(&sum, &group->query[i], group->rows[key][i]);
        group->weights[key] = sum;
    }
}

/* Raises the references to this block's scores and takes what was summed before along. */
static void raise_references(struct group *group, int count, int value_dim)
{
    double factor[LANES];
    bool raised = false;
    for (int lane = 0; lane < LANES; lane++) {
        double largest = group->reference.of[lane];
        for (int key = 0; key < count; key++)
            largest = group->weights[key].of[lane] > largest ? group->weights[key].of[lane] : largest;
        factor[lane] = largest > group->reference.of[lane] ? exp(group->reference.of[lane] - largest) : 1;
        raised |= factor[lane] != 1;
        group->reference.of[lane] = largest;
        group->sum.of[lane] *= factor[lane];
    }
    for (int i = 0; raised && i < value_dim; i++)
        for (int lane = 0; lane < LANES; lane++)
            group->out[i].of[lane] *= factor[lane];
}

static void weigh(struct group *group, int count)
{
    for (int lane = 0; lane < LANES; lane++) {
        /* Scores may all be -inf or NaN: -inf - -inf would make NaN of the former. */
        const double reference = group->reference.of[lane] == -INFINITY ? 0 : group->reference.of[lane];
        for (int key = 0; key < count; key++) {
            group->weights[key].of[lane] = exp(group->weights[key].of[lane] - reference);
            group->sum.of[lane] += group->weights[key].of[lane];
        }
    }
}

static void add_values(struct group *group, int count, int value_dim)
{
    for (int i = 0; i < value_dim; i++) {
        union lanes sum = group->out[i];
        for (int key = 0; key < count; key++)
            multiply_add(&sum, &group->weights[key], group->rows[key][i]);
        group->out[i] = sum;
    }
}

/* Returns the faults it met. */
static uint32_t attend(struct group *group, const sparse_mla_cache *cache, const sparse_mla_decode_args *args,
                       struct place at)
{
    const struct smla_format *format = smla_format_get(cache->format);
    struct key_walk walk = start_walk(cache, args, at);
    int64_t slot = next_slot(&walk);
    while (slot >= 0) {
        int count = 0;
        for (; slot >= 0 && count < BLOCK_KEYS; slot = next_slot(&walk))
            format->read(group->rows[count++], cache, slot, args->latent_dim, args->rope_dim);
        score(group, count, args->latent_dim + args->rope_dim);
        raise_references(group, count, args->value_dim);
        weigh(group, count);
        add_values(group, count, args->value_dim);
    }
    return walk.faults;
}

double smla_host_lse(uint32_t flags, bool has_sink, double lse, double sink, bool empty)
{
    if (flags & SPARSE_MLA_LSE_WITH_SINK && has_sink) {
        const double largest = lse > sink ? lse : sink;
        if (empty || isinf(largest))
            lse = isnan(lse) ? lse : largest;
        else
            lse = largest + log(exp(lse - largest) + exp(sink - largest));
    } else if (empty && flags & SPARSE_MLA_LSE_EMPTY_POSINF) {
        lse = INFINITY;
    }
    return flags & SPARSE_MLA_LSE_BASE2 ? lse * LOG2_E : lse;
}

static void finish_head(const struct group *group, int lane, const sparse_mla_decode_args *args, struct place at,
                        int32_t head)
{
    const double sink = args->sink ? (double)args->sink[head] : -INFINITY;
    /* No key, or none with a score above -inf. */
    const bool empty = group->sum.of[lane] == 0;
    const double lse = empty ? -INFINITY : group->reference.of[lane] + log(group->sum.of[lane]);
    const double sink_factor = args->sink ? 1 / (1 + exp(sink - lse)) : 1;
    const double factor = empty ? 0 : sink_factor / group->sum.of[lane];
    const int64_t first =
        at.row * args->out_request_stride + at.position * args->out_token_stride + head * args->out_head_stride;
    for (int i = 0; i < args->value_dim; i++)
        smla_store(args->out, args->out_dtype, first + i, group->out[i].of[lane] * factor);
    if (args->lse)
        args->lse[at.row * args->lse_request_stride + at.position * args->lse_token_stride +
                  head * args->lse_head_stride] = (float)smla_host_lse(args->flags, args->sink, lse, sink, empty);
}

static void decode_token(const struct smla_call *call, struct group *group, int32_t token)
{
    const sparse_mla_decode_args *args = &call->args;
    const struct place at = place_of(args, token);
    uint32_t faults = 0;
    for (int32_t first_head = 0; first_head < args->num_heads; first_head += LANES) {
        start_group(group, args, at, first_head);
        faults = attend(group, &call->main_cache, args, at);
        if (call->has_extra)
            faults += attend(group, &call->extra_cache, args, at);
        for (int lane = 0; lane < group->lanes; lane++)
            finish_head(group, lane, args, at, first_head + lane);
    }
    /* Every group met the same ones. Atomic: calls of several threads may share the word. */
    if (faults > 0 && args->fault_count)
        __atomic_fetch_add(args->fault_count, faults, __ATOMIC_RELAXED);
}

sparse_mla_status smla_host_decode(const struct smla_call *call)
{
    if (call->args.num_tokens == 0)
        return SPARSE_MLA_OK;
    struct group *group = malloc(sizeof *group);
    if (!group)
        return smla_fail(SPARSE_MLA_OUT_OF_MEMORY, "the host backend cannot allocate %zu bytes", sizeof *group);
    for (int32_t token = 0; token < call->args.num_tokens; token++)
        decode_token(call, group, token);
    free(group);
    return SPARSE_MLA_OK;
}
