/* SPDX-License-Identifier: Apache-2.0 */
#include "problem_parts.h"

#include <math.h>
#include <string.h>

enum { ARENA_GIB = 64 };

/* ---- layouts */

struct strides {
    int64_t request, token, head;
};

/* Rows of so many elements; gaps are multiples of `unit`. */
static struct strides lay_out(const struct spec *spec, int layout, int64_t row, int64_t unit)
{
    const int64_t heads = spec->heads, q_len = spec->q_len, requests = spec->tokens / spec->q_len;
    struct strides s;
    switch (layout) {
    case LAYOUT_PADDED:
        s.head = row + unit;
        s.token = heads * s.head + 2 * unit;
        s.request = q_len * s.token + 3 * unit;
        break;
    case LAYOUT_HEADS_FIRST:
        s.token = row + unit;
        s.request = q_len * s.token + 2 * unit;
        s.head = requests * s.request + unit;
        break;
    case LAYOUT_TOKENS_LAST:
        s.token = row + unit;
        s.head = q_len * s.token + unit;
        s.request = heads * s.head + 2 * unit;
        break;
    default:
        s.head = row;
        s.token = heads * row;
        s.request = q_len * s.token;
    }
    return s;
}

/* Up to the last element: a guard follows. */
static size_t elements(const struct spec *spec, struct strides s, int64_t row)
{
    return (size_t)((spec->tokens / spec->q_len - 1) * s.request + (spec->q_len - 1) * s.token +
                    (spec->heads - 1) * s.head + row);
}

static int64_t at(const struct spec *spec, struct strides s, int token, int head)
{
    return token / spec->q_len * s.request + token % spec->q_len * s.token + head * s.head;
}

static void set_strides(const struct spec *spec, struct strides s, int64_t *request, int64_t *token, int64_t *head)
{
    const bool garbage = spec->odd_strides;
    *request = garbage && spec->tokens == spec->q_len ? -12345 : s.request;
    *token = garbage && spec->q_len == 1 ? -1234567 : s.token;
    *head = garbage && spec->heads == 1 ? -123 : s.head;
}

/* ---- queries */

static void fill_row(const struct spec *spec, void *tensor, int64_t first, int dim, int count, uint64_t *seed)
{
    const bool scaled = spec->scales == SCALES_GROUPS || spec->scales == SCALES_UP || spec->scales == SCALES_DOWN;
    if (!scaled) {
        random_row((char *)tensor + first * dtype_bytes(spec->q_dtype), spec->q_dtype, count, spec->clamp, seed);
        return;
    }
    for (int d = 0; d < count; d++)
        encode(tensor, spec->q_dtype, first + d,
               (float)((double)clamped(spec, random_normal(seed)) / key_factor(spec, dim + d)));
}

static void make_queries(struct problem *p, uint64_t *seed)
{
    const struct spec *spec = &p->spec;
    sparse_mla_decode_args *a = &p->host;
    const int bytes = dtype_bytes(spec->q_dtype), unit = 16 / bytes;
    const bool views = spec->q_views && spec->rope;
    const int row = spec->latent + (views ? 0 : spec->rope);
    const struct strides latent = lay_out(spec, spec->q_layout, row, unit);
    void *q = arena_take(p->arena, "q", (size_t)bytes * elements(spec, latent, row), 16);
    a->q_dtype = spec->q_dtype;
    a->q_latent = q;
    set_strides(spec, latent, &a->q_latent_request_stride, &a->q_latent_token_stride, &a->q_latent_head_stride);
    for (int t = 0; t < spec->tokens; t++)
        for (int h = 0; h < spec->heads; h++)
            fill_row(spec, q, at(spec, latent, t, h), 0, row, seed);
    if (!views)
        return;
    const struct strides rope = lay_out(spec, spec->q_layout, spec->rope, 2 * unit);
    q = arena_take(p->arena, "q_rope", (size_t)bytes * elements(spec, rope, spec->rope), 16);
    a->q_rope = q;
    set_strides(spec, rope, &a->q_rope_request_stride, &a->q_rope_token_stride, &a->q_rope_head_stride);
    for (int t = 0; t < spec->tokens; t++)
        for (int h = 0; h < spec->heads; h++)
            fill_row(spec, q, at(spec, rope, t, h), spec->latent, spec->rope, seed);
}

/* ---- the rest */

static void make_outputs(struct problem *p)
{
    const struct spec *spec = &p->spec;
    sparse_mla_decode_args *a = &p->host;
    const int bytes = dtype_bytes(spec->out_dtype);
    const struct strides out = lay_out(spec, spec->out_layout, p->value, 16 / bytes);
    const struct strides lse = lay_out(spec, spec->lse_layout, 1, 1);
    p->out_bytes = (size_t)bytes * elements(spec, out, p->value);
    p->lse_bytes = sizeof(float) * elements(spec, lse, 1);
    a->out_dtype = spec->out_dtype;
    a->out = arena_take(p->arena, "out", p->out_bytes, 16);
    p->outputs_at = arena_offset(p->arena, a->out);
    set_strides(spec, out, &a->out_request_stride, &a->out_token_stride, &a->out_head_stride);
    if (!spec->no_lse)
        a->lse = arena_take(p->arena, "lse", p->lse_bytes, 4);
    set_strides(spec, lse, &a->lse_request_stride, &a->lse_token_stride, &a->lse_head_stride);
    if (!spec->no_faults) {
        a->fault_count = arena_take(p->arena, "fault_count", sizeof(uint32_t), 4);
        *a->fault_count = 0;
    }
}

static void make_sink(struct problem *p, uint64_t *seed)
{
    float *sink = arena_take(p->arena, "sink", sizeof(float) * (size_t)p->spec.heads, 4);
    for (int h = 0; h < p->spec.heads; h++) {
        const double kind = random_uniform(seed);
        sink[h] = kind < 0.31 ? INFINITY : kind < 0.62 ? -INFINITY : (float)(random_normal(seed) * 3);
    }
    p->host.sink = sink;
}

static void make_requests(struct problem *p, uint64_t *seed)
{
    const struct spec *spec = &p->spec;
    int32_t *request =
        arena_take(p->arena, "request_of_token", sizeof(int32_t) * (size_t)spec->tokens, sizeof(int32_t));
    for (int t = 0; t < spec->tokens; t++) {
        const double kind = random_uniform(seed);
        request[t] = kind < 0.04   ? -1 - (int)(kind * 1000)
                     : kind < 0.08 ? spec->requests + (int)(kind * 100) - 4
                     : kind < 0.09 ? INT32_MAX
                                   : random_below(seed, spec->requests);
    }
    p->host.request_of_token = request;
    p->host.num_requests = spec->requests;
}

static void fill_defaults(struct spec *spec)
{
    struct key_spec *keys[2] = {&spec->main, &spec->extra};
    spec->q_len = spec->q_len ? spec->q_len : 1;
    spec->key_size = spec->key_size > 0 ? spec->key_size : 1;
    if (spec->tensor_scale == 0)
        spec->tensor_scale = 4.37 * spec->key_size / 448;
    for (int i = 0; i < 2; i++) {
        keys[i]->slots = keys[i]->slots ? keys[i]->slots : 4096;
        keys[i]->page_size = keys[i]->page_size ? keys[i]->page_size : 64;
    }
}

static void set_scalars(sparse_mla_decode_args *a, const struct spec *spec, int value)
{
    const double dims = spec->latent + spec->rope;
    double scale = spec->clamp ? pow(dims, -0.55) : 1 / (sqrt(dims) * spec->key_size);
    if (spec->format == SPARSE_MLA_FLAT_E4M3) /* whatever the scale is, keys were made for a certain one */
        scale = spec->clamp ? scale : 1 / sqrt(dims);
    if (spec->score_size > 0 && !spec->clamp)
        scale *= spec->score_size;
    if (spec->scales == SCALES_KEYS &&
        (spec->format <= SPARSE_MLA_FP8_DS_MLA_NOPE || spec->format == SPARSE_MLA_FP8_V4))
        scale = ldexp(scale, -20);
    a->num_tokens = spec->tokens;
    a->q_len = spec->q_len;
    a->num_heads = spec->heads;
    a->latent_dim = spec->latent;
    a->rope_dim = spec->rope;
    a->value_dim = value;
    a->scale = (float)scale;
    a->flags = spec->flags;
}

static void set_device_cache(const struct problem *p, sparse_mla_cache *device, const sparse_mla_cache *host)
{
    *device = *host;
    device->data = problem_device(p, host->data);
    device->indices = problem_device(p, host->indices);
    device->lengths = problem_device(p, host->lengths);
    device->block_table = problem_device(p, host->block_table);
}

static void set_device(struct problem *p)
{
    const sparse_mla_decode_args *host = &p->host;
    sparse_mla_decode_args *device = &p->device;
    set_device_cache(p, &p->device_cache, &p->host_cache);
    set_device_cache(p, &p->device_extra, &p->host_extra);
    *device = *host;
    device->q_latent = problem_device(p, host->q_latent);
    device->q_rope = problem_device(p, host->q_rope);
    device->out = problem_device(p, host->out);
    device->lse = problem_device(p, host->lse);
    device->sink = problem_device(p, host->sink);
    device->request_of_token = problem_device(p, host->request_of_token);
    device->fault_count = problem_device(p, host->fault_count);
    device->main_cache = &p->device_cache;
    if (host->extra_cache)
        device->extra_cache = &p->device_extra;
}

void problem_init_in(struct problem *p, const struct spec *given, struct arena *arena)
{
    uint64_t seed = (given->seed + 1) * 0x9E3779B97F4A7C15ull;
    memset(p, 0, sizeof *p);
    p->spec = *given;
    p->arena = arena;
    const struct spec *spec = &p->spec;
    fill_defaults(&p->spec);
    for (int i = 0; i < 8; i++)
        random_uniform(&seed);
    arena_clear(arena, random_below(&seed, 2));
    p->value = spec->latent + (spec->format == SPARSE_MLA_FP8_V4 ? spec->rope : 0);
    sparse_mla_decode_args_init(&p->host);
    set_scalars(&p->host, spec, p->value);
    if (spec->requests)
        make_requests(p, &seed);
    make_queries(p, &seed);
    make_keys(p, &p->host_cache, &spec->main, &seed);
    p->host.main_cache = &p->host_cache;
    if (spec->extra.topk) {
        make_keys(p, &p->host_extra, &spec->extra, &seed);
        p->host.extra_cache = &p->host_extra;
    }
    if (spec->sink)
        make_sink(p, &seed);
    make_outputs(p);
    problem_upload(p);
    set_device(p);
}

void problem_init(struct problem *p, const struct spec *spec)
{
    problem_init_in(p, spec, arena_new(NULL, (size_t)ARENA_GIB << 30));
    p->own_arena = true;
}

void problem_free(struct problem *p)
{
    if (p->own_arena)
        arena_free(p->arena);
}

void problem_upload(struct problem *p)
{
    arena_upload_all(p->arena);
}

void problem_poison(struct problem *p)
{
    arena_upload_from(p->arena, p->outputs_at);
}

void *problem_device(const struct problem *p, const void *host)
{
    return arena_device(p->arena, host);
}

/* ---- parts of calls */

static void advance(sparse_mla_cache *cache, const sparse_mla_decode_args *args, int token)
{
    const int row = token / args->q_len, position = token % args->q_len;
    if (cache->indices)
        cache->indices += row * cache->indices_request_stride + position * cache->indices_token_stride;
    if (cache->lengths && cache->length_mode == SPARSE_MLA_LENGTH_PER_TOKEN)
        cache->lengths += token;
    if (args->request_of_token)
        return;
    if (cache->lengths && cache->length_mode == SPARSE_MLA_LENGTH_PER_REQUEST)
        cache->lengths += row;
    if (cache->block_table)
        cache->block_table += row * cache->block_table_stride;
}

static const void *step(const void *tensor, int dtype, int64_t count)
{
    return tensor ? (const char *)tensor + count * dtype_bytes(dtype) : NULL;
}

void part_init(struct part *part, const sparse_mla_decode_args *args, int token, int count, int head, int heads)
{
    sparse_mla_decode_args *a = &part->args;
    const int row = token / args->q_len, position = token % args->q_len;
    *a = *args;
    part->main = *args->main_cache;
    advance(&part->main, args, token);
    a->main_cache = &part->main;
    if (args->extra_cache) {
        part->extra = *args->extra_cache;
        advance(&part->extra, args, token);
        a->extra_cache = &part->extra;
    }
    a->num_tokens = count;
    a->q_len = count == 1 ? 1 : args->q_len;
    a->num_heads = heads;
    a->q_latent = step(args->q_latent, args->q_dtype,
                       row * args->q_latent_request_stride + position * args->q_latent_token_stride +
                           head * args->q_latent_head_stride);
    a->q_rope = step(args->q_rope, args->q_dtype,
                     row * args->q_rope_request_stride + position * args->q_rope_token_stride +
                         head * args->q_rope_head_stride);
    a->out =
        (void *)step(args->out, args->out_dtype,
                     row * args->out_request_stride + position * args->out_token_stride + head * args->out_head_stride);
    a->lse =
        (void *)step(args->lse, SPARSE_MLA_F32,
                     row * args->lse_request_stride + position * args->lse_token_stride + head * args->lse_head_stride);
    a->sink = step(args->sink, SPARSE_MLA_F32, head);
    if (args->request_of_token)
        a->request_of_token += token;
}
