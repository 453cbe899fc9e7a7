/* SPDX-License-Identifier: Apache-2.0 */
#include "problem.h"

#include "cuda.h"
#include "number.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

double random_uniform(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (double)(*state >> 11) / 9007199254740992.0;
}

/* One of 65536 draws: a grid of large problems wants many millions. */
double random_normal(uint64_t *state)
{
    static double draws[1 << 16];
    if (draws[0] == 0) {
        uint64_t seed = 88172645463325252ull;
        for (int i = 0; i < 1 << 16; i++) {
            const double radius = sqrt(-2 * log(1 - random_uniform(&seed)));
            draws[i] = radius * cos(6.283185307179586 * random_uniform(&seed));
        }
    }
    return draws[(int)(random_uniform(state) * (1 << 16))];
}

static void *keep(struct problem *p, size_t bytes)
{
    void *block = malloc(bytes ? bytes : 1);
    if (!block)
        exit(1);
    memset(block, 0xFF, bytes);
    return p->blocks[p->num_blocks++] = block;
}

static void *upload(struct problem *p, const void *data, size_t bytes)
{
    return p->device_blocks[p->num_device_blocks++] = cuda_upload(data, bytes);
}

static double clamped(const struct spec *spec, double value)
{
    return !spec->clamp ? value : value > 1 ? 1 : value < -1 ? -1 : value;
}

/* ---- cache */

static double group_factor(const struct spec *spec, int group)
{
    static const int exponents[4] = {-20, -7, 7, 20};
    switch (spec->scales) {
    case SCALES_GROUPS:
        return ldexp(1, exponents[group]);
    case SCALES_UP:
        return ldexp(1, 60);
    case SCALES_DOWN:
        return ldexp(1, -60);
    default:
        return 1;
    }
}

/* Round to nearest even; values past 448 become 448. */
static uint8_t nearest_e4m3(double value)
{
    const double magnitude = fmin(fabs(value), 448);
    const uint8_t sign = value < 0 ? 0x80 : 0;
    const int exponent = magnitude < 0x1p-6 ? -6 : ilogb(magnitude);
    const int mantissa = (int)rint(ldexp(magnitude, 3 - exponent)); /* 16 carries into the exponent by itself */
    return (uint8_t)(sign | (mantissa < 8 ? mantissa : (exponent + 6) * 8 + mantissa));
}

static void write_fp8_row(const struct spec *spec, unsigned char *row, uint64_t *seed)
{
    for (int group = 0; group < 4; group++) {
        double value[128], amax = 1e-4;
        for (int d = 0; d < 128; d++) {
            value[d] = clamped(spec, random_normal(seed) * spec->key_size);
            amax = fmax(amax, fabs(value[d]));
        }
        double scale = amax / 448;
        if (spec->scales == SCALES_POW2)
            scale = exp2(ceil(log2(scale)));
        for (int d = 0; d < 128; d++)
            row[group * 128 + d] = nearest_e4m3(value[d] / (float)scale);
        scale *= group_factor(spec, group);
        if (spec->scales == SCALES_KEYS)
            scale *= exp2(floor(random_uniform(seed) * 41) - 20);
        const float stored = (float)scale;
        memcpy(row + 512 + 4 * group, &stored, 4);
    }
    for (int d = 0; d < spec->rope; d++) {
        const uint16_t rope = smla_to_bf16(clamped(spec, random_normal(seed) * spec->key_size));
        memcpy(row + 528 + 2 * d, &rope, 2);
    }
}

static void write_row(const struct spec *spec, unsigned char *row, uint64_t *seed)
{
    if (spec->format == SPARSE_MLA_FP8_DS_MLA || spec->format == SPARSE_MLA_FP8_DS_MLA_NOPE) {
        write_fp8_row(spec, row, seed);
        return;
    }
    for (int d = 0; d < spec->latent + spec->rope; d++) {
        const double value = clamped(spec, random_normal(seed) * spec->key_size);
        const uint16_t element = spec->format == SPARSE_MLA_FLAT_BF16 ? smla_to_bf16(value) : smla_to_f16(value);
        memcpy(row + 2 * d, &element, 2);
    }
}

static void make_cache(struct problem *p, const bool *selected, uint64_t *seed)
{
    const struct spec *spec = &p->spec;
    sparse_mla_cache *cache = &p->host_cache;
    const int record = spec->format == SPARSE_MLA_FP8_DS_MLA        ? 656
                       : spec->format == SPARSE_MLA_FP8_DS_MLA_NOPE ? 528
                                                                    : 2 * (spec->latent + spec->rope);
    cache->row_stride_bytes = record + (spec->strided ? 48 : 0);
    cache->page_stride_bytes = cache->row_stride_bytes * spec->page_size + (spec->strided ? 80 : 0);
    const size_t bytes = (size_t)((spec->slots - 1) / spec->page_size + 1) * (size_t)cache->page_stride_bytes;
    unsigned char *data = keep(p, bytes);
    for (int slot = 0; slot < spec->slots; slot++)
        if (selected[slot])
            write_row(spec,
                      data + slot / spec->page_size * cache->page_stride_bytes +
                          slot % spec->page_size * cache->row_stride_bytes,
                      seed);
    cache->data = data;
    p->device_cache.row_stride_bytes = cache->row_stride_bytes;
    p->device_cache.page_stride_bytes = cache->page_stride_bytes;
    p->device_cache.data = upload(p, data, bytes);
}

/* ---- indices */

static void make_lengths(struct problem *p, uint64_t *seed)
{
    const struct spec *spec = &p->spec;
    const int count = spec->per_request ? spec->tokens / spec->q_len : spec->tokens;
    int32_t *lengths = keep(p, sizeof(int32_t) * (size_t)count);
    for (int i = 0; i < count; i++) {
        const double kind = random_uniform(seed);
        lengths[i] = kind < 0.1   ? -(int)(kind * 50)
                     : kind < 0.2 ? spec->topk + (int)(kind * 100)
                                  : 1 + (int)(random_uniform(seed) * spec->topk);
    }
    p->host_cache.lengths = lengths;
    p->host_cache.length_mode = spec->per_request;
    p->device_cache.lengths = upload(p, lengths, sizeof(int32_t) * (size_t)count);
    p->device_cache.length_mode = spec->per_request;
}

static void make_table(struct problem *p, int requests, int pages, uint64_t *seed)
{
    int32_t *table = keep(p, sizeof(int32_t) * (size_t)requests * (size_t)pages);
    for (int i = 0; i < requests * pages; i++)
        table[i] = random_uniform(seed) < 0.02 ? -1 : (int)(random_uniform(seed) * pages);
    p->host_cache.block_table = table;
    p->host_cache.block_table_width = pages;
    p->host_cache.block_table_stride = pages;
}

static int length_of(const struct problem *p, int token)
{
    if (!p->host_cache.lengths)
        return p->spec.topk;
    const int length = p->host_cache.lengths[p->spec.per_request ? token / p->spec.q_len : token];
    return length < 0 ? 0 : length > p->spec.topk ? p->spec.topk : length;
}

static int slot_of(const struct problem *p, int token, int index)
{
    if (index < 0 || !p->host_cache.block_table)
        return index;
    const int page = index / p->spec.page_size;
    if (page >= p->host_cache.block_table_width)
        return -1;
    const int entry = p->host_cache.block_table[token / p->spec.q_len * p->host_cache.block_table_width + page];
    return entry < 0 ? -1 : entry * p->spec.page_size + index % p->spec.page_size;
}

static void make_indices(struct problem *p, uint64_t *seed)
{
    const struct spec *spec = &p->spec;
    const int64_t stride = spec->topk + (spec->strided ? 5 : 0);
    bool *selected = keep(p, (size_t)spec->slots);
    memset(selected, 0, (size_t)spec->slots);
    if (spec->lengths)
        make_lengths(p, seed);
    const int pages = spec->slots / spec->page_size;
    if (spec->table)
        make_table(p, spec->tokens / spec->q_len, pages, seed);
    const size_t bytes = sizeof(int32_t) * (size_t)stride * (size_t)spec->tokens;
    int32_t *indices = keep(p, bytes);
    for (int t = 0; t < spec->tokens; t++)
        for (int j = 0; j < spec->topk; j++) {
            int32_t *index = indices + t * stride + j;
            const double kind = random_uniform(seed);
            *index = kind < spec->masked                ? -1 - (int)(kind * 1000)
                     : kind < spec->masked + spec->past ? spec->slots + (int)(kind * 1e6)
                                                        : (int)(random_uniform(seed) * spec->slots);
            if (j >= length_of(p, t))
                *index = j % 2 ? INT32_MAX : *index; /* garbage that nobody may follow */
            const int slot = slot_of(p, t, spec->dense ? j : *index);
            if (j < length_of(p, t) && slot >= 0 && slot < spec->slots)
                selected[slot] = true;
        }
    make_cache(p, selected, seed);
    if (!spec->dense) {
        p->host_cache.indices = indices;
        p->device_cache.indices = upload(p, indices, bytes);
        p->host_cache.indices_token_stride = p->device_cache.indices_token_stride = stride;
        p->host_cache.indices_request_stride = p->device_cache.indices_request_stride = stride * spec->q_len;
    }
    if (spec->table) {
        p->device_cache.block_table =
            upload(p, p->host_cache.block_table, sizeof(int32_t) * (size_t)(spec->tokens / spec->q_len * pages));
        p->device_cache.block_table_width = p->device_cache.block_table_stride = pages;
    }
}

/* ---- queries and outputs */

static void make_queries(struct problem *p, uint64_t *seed)
{
    const struct spec *spec = &p->spec;
    const int dims = spec->latent + spec->rope;
    const size_t count = (size_t)spec->tokens * (size_t)spec->heads * (size_t)dims;
    uint16_t *q = keep(p, 2 * count);
    sparse_mla_decode_args *a = &p->host;
    const int64_t tokens = spec->tokens, heads = spec->heads;
    if (spec->strided) { /* two tensors, heads outermost */
        a->q_latent_head_stride = tokens * spec->latent;
        a->q_latent_token_stride = spec->latent;
        a->q_rope_head_stride = tokens * spec->rope;
        a->q_rope_token_stride = spec->rope;
        a->q_rope = q + tokens * heads * spec->latent;
    } else {
        a->q_latent_head_stride = a->q_rope_head_stride = dims;
        a->q_latent_token_stride = a->q_rope_token_stride = heads * dims;
    }
    a->q_latent_request_stride = a->q_latent_token_stride * spec->q_len;
    a->q_rope_request_stride = a->q_rope_token_stride * spec->q_len;
    a->q_latent = q;
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t h = 0; h < heads; h++) {
            for (int d = 0; d < spec->latent; d++)
                q[t * a->q_latent_token_stride + h * a->q_latent_head_stride + d] =
                    smla_to_bf16(clamped(spec, random_normal(seed)) / group_factor(spec, d / 128 % 4));
            uint16_t *rope = spec->strided ? q + tokens * heads * spec->latent : q + spec->latent;
            for (int d = 0; d < spec->rope; d++)
                rope[t * a->q_rope_token_stride + h * a->q_rope_head_stride + d] =
                    smla_to_bf16(clamped(spec, random_normal(seed)));
        }
    p->device = *a;
    p->device.q_latent = upload(p, q, 2 * count);
    if (spec->strided && spec->rope)
        p->device.q_rope = (const uint16_t *)p->device.q_latent + tokens * heads * spec->latent;
    if (!spec->rope)
        a->q_rope = p->device.q_rope = NULL;
}

static void make_outputs(struct problem *p)
{
    const struct spec *spec = &p->spec;
    const int64_t pad = spec->strided ? 16 : 0, heads = spec->heads;
    sparse_mla_decode_args *a = &p->host;
    a->out_head_stride = spec->latent + pad;
    a->out_token_stride = a->out_head_stride * heads + pad;
    a->out_request_stride = a->out_token_stride * spec->q_len;
    a->lse_head_stride = spec->strided ? spec->tokens : 1;
    a->lse_token_stride = spec->strided ? 1 : heads;
    a->lse_request_stride = a->lse_token_stride * spec->q_len;
    p->out_bytes = (size_t)(a->out_token_stride * spec->tokens) * (spec->out_dtype == SPARSE_MLA_F32 ? 4 : 2);
    p->lse_bytes = sizeof(float) * (size_t)spec->tokens * (size_t)spec->heads;
    a->out_dtype = SPARSE_MLA_F32;
    a->out = keep(p, sizeof(float) * (size_t)a->out_token_stride);
    a->lse = keep(p, sizeof(float) * (size_t)spec->heads);
}

static void make_sink(struct problem *p, uint64_t *seed)
{
    float *sink = keep(p, sizeof(float) * (size_t)p->spec.heads);
    for (int h = 0; h < p->spec.heads; h++) {
        const double kind = random_uniform(seed);
        sink[h] = kind < 0.31 ? INFINITY : kind < 0.62 ? -INFINITY : (float)(random_normal(seed) * 3);
    }
    p->host.sink = sink;
    p->device.sink = upload(p, sink, sizeof(float) * (size_t)p->spec.heads);
}

void problem_init(struct problem *p, const struct spec *given)
{
    uint64_t seed = given->seed * 0x9E3779B97F4A7C15ull + 88172645463325252ull;
    memset(p, 0, sizeof *p);
    p->spec = *given;
    struct spec *spec = &p->spec;
    spec->q_len = spec->q_len ? spec->q_len : 1;
    spec->page_size = spec->page_size ? spec->page_size : 64;
    spec->slots = spec->slots ? spec->slots : 4096;
    spec->key_size = spec->key_size ? spec->key_size : 1;
    sparse_mla_cache_init(&p->host_cache);
    sparse_mla_decode_args_init(&p->host);
    p->host_cache.format = spec->format;
    p->host_cache.page_size = spec->page_size;
    p->host_cache.num_slots = spec->slots;
    p->host_cache.topk = spec->topk;
    p->device_cache = p->host_cache;
    sparse_mla_decode_args *a = &p->host;
    a->num_tokens = spec->tokens;
    a->q_len = spec->q_len;
    a->num_heads = spec->heads;
    a->latent_dim = a->value_dim = spec->latent;
    a->rope_dim = spec->rope;
    a->scale = (float)(spec->clamp ? pow(spec->latent + spec->rope, -0.55) : 1 / sqrt(spec->latent + spec->rope));
    a->flags = spec->flags;
    if (spec->scales == SCALES_KEYS)
        a->scale = ldexpf(a->scale, -20);
    make_outputs(p);
    const size_t out_bytes = p->out_bytes, lse_bytes = p->lse_bytes;
    make_queries(p, &seed);
    make_indices(p, &seed);
    if (spec->sink)
        make_sink(p, &seed);
    p->host.main_cache = &p->host_cache;
    p->host.fault_count = keep(p, sizeof(uint32_t));
    p->device.main_cache = &p->device_cache;
    p->device.out_dtype = spec->out_dtype;
    p->device.out = p->device_blocks[p->num_device_blocks++] = cuda_alloc(out_bytes);
    p->device.lse = p->device_blocks[p->num_device_blocks++] = cuda_alloc(lse_bytes);
    const uint32_t zero = 0;
    p->device.fault_count = upload(p, &zero, sizeof zero);
}

void problem_free(struct problem *p)
{
    for (int i = 0; i < p->num_blocks; i++)
        free(p->blocks[i]);
    for (int i = 0; i < p->num_device_blocks; i++)
        cuda_free(p->device_blocks[i]);
}

void problem_poison(struct problem *p)
{
    const uint32_t zero = 0;
    CUDA(cuMemsetD8_v2((uintptr_t)p->device.out, 0xFF, p->out_bytes));
    CUDA(cuMemsetD8_v2((uintptr_t)p->device.lse, 0xFF, p->lse_bytes));
    CUDA(cuMemcpyHtoD_v2((uintptr_t)p->device.fault_count, &zero, sizeof zero));
    CUDA(cuCtxSynchronize());
}

/* ---- comparison */

static double element(const void *tensor, int dtype, int64_t index)
{
    if (dtype == SPARSE_MLA_F32)
        return ((const float *)tensor)[index];
    const uint16_t half = ((const uint16_t *)tensor)[index];
    return dtype == SPARSE_MLA_BF16 ? smla_from_bf16(half) : smla_from_f16(half);
}

static bool untouched(const void *tensor, int dtype, int64_t index)
{
    if (dtype == SPARSE_MLA_F32)
        return ((const uint32_t *)tensor)[index] == 0xFFFFFFFFu;
    return ((const uint16_t *)tensor)[index] == 0xFFFFu;
}

struct sums {
    double difference, reference, product, own;
};

static void add(struct sums *sums, double own, double reference)
{
    sums->difference += (own - reference) * (own - reference);
    sums->reference += reference * reference;
    sums->product += own * reference;
    sums->own += own * own;
}

static double relative(const struct sums *sums)
{
    return sums->reference > 0 ? sqrt(sums->difference / sums->reference) : sums->difference > 0 ? INFINITY : 0;
}

static void compare_lse(struct errors *errors, double own, double reference)
{
    if (!isfinite(own) || !isfinite(reference)) {
        errors->special_bad += !(own == reference || (isnan(own) && isnan(reference)));
        return;
    }
    const double difference = fabs(own - reference);
    errors->lse = fmax(errors->lse, difference / fmax(1, fabs(reference)));
    errors->flashmla_lse_bad += !(difference < 1e-6 || difference < 8.01 / 65536 * fabs(reference));
}

/* The host's call for one token, with outputs at the front of its own tensors. */
static void run_host(struct problem *p, sparse_mla_context *context, int token)
{
    sparse_mla_decode_args a = p->host;
    sparse_mla_cache cache = p->host_cache;
    const int request = token / p->spec.q_len;
    a.num_tokens = a.q_len = 1;
    a.q_latent = (const uint16_t *)a.q_latent + token * a.q_latent_token_stride;
    if (a.q_rope)
        a.q_rope = (const uint16_t *)a.q_rope + token * a.q_rope_token_stride;
    if (cache.indices)
        cache.indices += token * cache.indices_token_stride;
    if (cache.lengths)
        cache.lengths += p->spec.per_request ? request : token;
    if (cache.block_table)
        cache.block_table += request * cache.block_table_stride;
    a.lse_head_stride = 1;
    a.main_cache = &cache;
    *a.fault_count = 0;
    if (sparse_mla_decode(context, &a, NULL) != SPARSE_MLA_OK) {
        fprintf(stderr, "host backend: %s\n", sparse_mla_last_error());
        exit(1);
    }
    p->faults += *a.fault_count;
}

static void compare_token(struct problem *p, struct errors *errors, struct sums *all, int token, const void *out,
                          const float *lse)
{
    const sparse_mla_decode_args *a = &p->host;
    const int dtype = p->spec.out_dtype;
    for (int h = 0; h < p->spec.heads; h++) {
        const int64_t at = token * a->out_token_stride + h * a->out_head_stride;
        const float *reference = (const float *)a->out + h * a->out_head_stride;
        struct sums head = {0}, group = {0};
        for (int d = 0; d < p->spec.latent; d++) {
            const double own = element(out, dtype, at + d), expected = reference[d];
            if (!isfinite(own) || !isfinite(expected)) {
                errors->special_bad += !(isnan(own) && isnan(expected));
                continue;
            }
            const double off = fabs(own - expected);
            errors->flashmla_bad += !(off < 1e-3 || off < 2.01 / 128 * fabs(expected));
            add(&head, own, expected);
            add(&group, own, expected);
            add(all, own, expected);
            if (d % 128 == 127 || d == p->spec.latent - 1) {
                errors->worst_group = fmax(errors->worst_group, relative(&group));
                group = (struct sums){0};
            }
        }
        errors->worst_head = fmax(errors->worst_head, relative(&head));
        for (int64_t d = p->spec.latent; d < a->out_head_stride; d++)
            errors->special_bad += !untouched(out, dtype, at + d);
        compare_lse(errors, lse[token * a->lse_token_stride + h * a->lse_head_stride], a->lse[h]);
    }
}

struct errors problem_compare(struct problem *p, sparse_mla_context *host_context, int samples)
{
    struct errors errors = {0};
    struct sums all = {0};
    void *out = malloc(p->out_bytes);
    float *lse = malloc(p->lse_bytes);
    if (!out || !lse)
        exit(1);
    CUDA(cuCtxSynchronize());
    CUDA(cuMemcpyDtoH_v2(out, (uintptr_t)p->device.out, p->out_bytes));
    CUDA(cuMemcpyDtoH_v2(lse, (uintptr_t)p->device.lse, p->lse_bytes));
    if (samples == 0 || samples > p->spec.tokens)
        samples = p->spec.tokens;
    p->faults = 0;
    for (int i = 0; i < samples; i++) {
        const int token = (int)((int64_t)i * (p->spec.tokens - 1) / (samples > 1 ? samples - 1 : 1));
        run_host(p, host_context, token);
        compare_token(p, &errors, &all, token, out, lse);
    }
    errors.relative = relative(&all);
    errors.cosine = all.own + all.reference > 0 ? 1 - 2 * all.product / (all.own + all.reference) : 0;
    free(out);
    free(lse);
    return errors;
}
