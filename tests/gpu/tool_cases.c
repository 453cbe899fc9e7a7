/* SPDX-License-Identifier: Apache-2.0 */
#include "tool_cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 1024 };

struct tool_block tool_block;
static uint64_t seed = 1;

static uint32_t random_bits(void)
{
    seed ^= seed >> 12;
    seed ^= seed << 25;
    seed ^= seed >> 27;
    return (uint32_t)(seed * 0x2545F4914F6CDD1DULL >> 32);
}

int tool_below(int limit)
{
    return (int)(random_bits() % (uint32_t)limit);
}

static float normal(void)
{
    static uint64_t state = 77;
    return (float)random_normal(&state);
}

void tool_clear(void)
{
    if (!tool_block.host) {
        tool_block.host = aligned_alloc(256, TOOL_BLOCK_BYTES);
        tool_block.read_back = malloc(TOOL_BLOCK_BYTES);
        if (!tool_block.host || !tool_block.read_back)
            fail_msg("no memory");
        memset(tool_block.host, 0xFF, TOOL_BLOCK_BYTES);
    }
    memset(tool_block.host, 0xFF, tool_block.used);
    tool_block.used = GUARD;
    tool_device.clear();
}

void *tool_take(size_t bytes, size_t alignment)
{
    const size_t at = (tool_block.used + GUARD + 255) / 256 * 256 + alignment % 256;
    tool_block.used = at + bytes + GUARD;
    if (tool_block.used > TOOL_BLOCK_BYTES)
        fail_msg("a case needs %zu bytes", tool_block.used);
    tool_device.take(at, bytes);
    return tool_block.host + at;
}

void *tool_on_device(const void *host)
{
    return host ? tool_device.address((size_t)((const unsigned char *)host - tool_block.host)) : NULL;
}

void tool_ok(sparse_mla_status status)
{
    if (status != SPARSE_MLA_OK)
        fail_msg("%s", sparse_mla_last_error());
}

void tool_compare(const char *what)
{
    if (memcmp(tool_block.host, tool_block.read_back, tool_block.used) == 0)
        return;
    for (size_t i = 0; i < tool_block.used; i++)
        if (tool_block.host[i] != tool_block.read_back[i])
            fail_msg("values: %s: byte %zu is %02x, the host has %02x", what, i, tool_block.read_back[i],
                     tool_block.host[i]);
}

static void put(void *tensor, int dtype, int64_t element, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (dtype == SPARSE_MLA_F32)
        memcpy((char *)tensor + 4 * element, &value, 4);
    else if (dtype == SPARSE_MLA_BF16)
        memcpy((char *)tensor + 2 * element, &(uint16_t){(uint16_t)(bits >> 16)}, 2);
    else /* truncated; only what f16 has as a normal number */
        memcpy((char *)tensor + 2 * element,
               &(uint16_t){(uint16_t)((bits >> 16 & 0x8000) | (((bits & 0x7FFFFFFF) >> 13) - (112u << 10)))}, 2);
}

static double get(const void *tensor, int dtype, int64_t element)
{
    uint16_t half;
    float single;
    if (dtype == SPARSE_MLA_F32)
        return (double)((const float *)tensor)[element];
    memcpy(&half, (const char *)tensor + 2 * element, 2);
    if (dtype == SPARSE_MLA_BF16) {
        memcpy(&single, &(uint32_t){(uint32_t)half << 16}, 4);
        return (double)single;
    }
    const int exponent = half >> 10 & 31, fraction = half & 1023;
    const double sign = half & 0x8000 ? -1 : 1;
    if (exponent == 31)
        return fraction ? (double)NAN : sign * (double)INFINITY;
    return sign * (exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24));
}

/* ---- append */

void tool_fill_source(void *to, int dtype, int64_t count, int numbers)
{
    int exponent = 0;
    for (int64_t i = 0; i < count; i++) {
        if (i % 32 == 0)
            exponent = dtype == SPARSE_MLA_F16 ? tool_below(12) - 6
                       : tool_below(4)         ? tool_below(20) - 10
                                               : tool_below(240) - 125;
        if (numbers == BITS && dtype == SPARSE_MLA_F32)
            ((uint32_t *)to)[i] = random_bits();
        else if (numbers == BITS)
            ((uint16_t *)to)[i] = (uint16_t)random_bits();
        else if (tool_below(50) == 0 && dtype != SPARSE_MLA_F16)
            put(to, dtype, i, tool_below(2) ? 0.0f : -0.0f);
        else
            put(to, dtype, i, ldexpf((dtype == SPARSE_MLA_F16 ? 1 : 0) + normal() * 0.1f, exponent));
    }
}

static void fill_slots(int64_t *slots, int rows, int64_t num_slots)
{
    unsigned char *taken = calloc((size_t)num_slots, 1);
    for (int i = 0; i < rows; i++) {
        int64_t slot = tool_below((int)num_slots);
        while (taken[slot])
            slot = (slot + 1) % num_slots;
        const int kind = tool_below(12);
        slots[i] = kind == 0 ? -1 - (int64_t)tool_below(1000) : kind == 1 ? num_slots + tool_below(5) : slot;
        taken[slot] = kind > 1;
    }
    if (rows > 2) {
        slots[0] = INT64_MAX;
        slots[1] = INT64_MIN;
        slots[2] = (int64_t)1 << 32; /* 0 in 32 bits */
    }
    free(taken);
}

void tool_fill_cache(sparse_mla_cache *cache, int format, int latent, int rope, int page_size, int64_t num_slots)
{
    static const int fixed[] = {656, 528, 0, 0, 576, 576, 612};
    const int record = fixed[format] ? fixed[format] : 2 * (latent + rope);
    const int alignment = format == SPARSE_MLA_Q8_0 ? 4 : 16;
    sparse_mla_cache_init(cache);
    cache->format = format;
    cache->page_size = page_size;
    cache->num_slots = num_slots;
    cache->tensor_scale = ldexpf(1 + (float)tool_below(1000) / 1000, tool_below(40) - 20);
    cache->row_stride_bytes = record + (format == SPARSE_MLA_FP8_V4 ? 0 : alignment * tool_below(5));
    cache->page_stride_bytes = (page_size * (cache->row_stride_bytes + 8) + 15) / 16 * 16 + 16 * tool_below(7);
    if (rope && format >= SPARSE_MLA_FLAT_BF16 && format != SPARSE_MLA_FP8_V4 && tool_below(3) == 0) { /* rope first */
        const int rope_bytes = format == SPARSE_MLA_Q8_0 ? 68 : format == SPARSE_MLA_FLAT_E4M3 ? 64 : 2 * rope;
        cache->rope_offset_bytes = 0;
        cache->latent_offset_bytes = rope_bytes;
    }
    cache->data =
        tool_take((size_t)((num_slots + page_size - 1) / page_size * cache->page_stride_bytes), (size_t)alignment);
}

void tool_append_case(int format, int latent, int rope, int dtype, int rule, int rows, int page_size, int numbers)
{
    char what[128];
    sparse_mla_cache cache, device_cache;
    sparse_mla_cache_append_args args, device_args;
    const int size = dtype == SPARSE_MLA_F32 ? 4 : 2;
    tool_clear();
    tool_fill_cache(&cache, format, latent, rope, page_size, rows + 1 + tool_below(rows + 100));
    sparse_mla_cache_append_args_init(&args);
    args.num_rows = rows;
    args.latent_dim = latent;
    args.rope_dim = rope;
    args.src_dtype = dtype;
    args.scale_rule = rule;
    args.latent_stride = latent + tool_below(3) * 33;
    args.rope_stride = rope + tool_below(3) * 7;
    void *source = tool_take((size_t)(rows * args.latent_stride * size), (size_t)size);
    tool_fill_source(source, dtype, rows * args.latent_stride, numbers);
    args.latent = source;
    if (rope) {
        args.rope = source = tool_take((size_t)(rows * args.rope_stride * size), (size_t)size);
        tool_fill_source(source, dtype, rows * args.rope_stride, numbers);
    }
    int64_t *slots = tool_take((size_t)rows * sizeof *slots, 8);
    fill_slots(slots, rows, cache.num_slots);
    args.slots = slots;
    args.fault_count = tool_take(4, 4);
    *args.fault_count = 7;
    args.cache = &cache;
    device_cache = cache;
    device_args = args;
    device_cache.data = tool_on_device(cache.data);
    device_args.cache = &device_cache;
    device_args.latent = tool_on_device(args.latent);
    device_args.rope = tool_on_device(args.rope);
    device_args.slots = tool_on_device(args.slots);
    device_args.fault_count = tool_on_device(args.fault_count);
    tool_device.upload();
    tool_device.before();
    tool_ok(sparse_mla_cache_append(tool_device.context, &device_args, tool_device.stream));
    tool_ok(sparse_mla_cache_append(tool_device.host, &args, NULL));
    tool_device.download();
    snprintf(what, sizeof what, "format %d, %d + %d, dtype %d, rule %d, %d rows, page size %d, numbers %d", format,
             latent, rope, dtype, rule, rows, page_size, numbers);
    tool_compare(what);
}

const struct tool_record tool_records[] = {
    {SPARSE_MLA_FP8_DS_MLA, 512, 64, 0, 3},
    {SPARSE_MLA_FP8_DS_MLA, 512, 0, 0, 3},
    {SPARSE_MLA_FP8_DS_MLA_NOPE, 512, 0, 0, 3},
    {SPARSE_MLA_FLAT_BF16, 512, 64, 0, 0},
    {SPARSE_MLA_FLAT_BF16, 64, 32, 0, 0},
    {SPARSE_MLA_FLAT_BF16, 320, 0, 0, 0},
    {SPARSE_MLA_FLAT_F16, 512, 64, 0, 0},
    {SPARSE_MLA_FLAT_F16, 192, 32, 0, 0},
    {SPARSE_MLA_FLAT_E4M3, 512, 64, 0, 0},
    {SPARSE_MLA_FP8_V4, 448, 64, 2, 3},
    {SPARSE_MLA_FP8_V4, 448, 64, 0, 0},
    {SPARSE_MLA_Q8_0, 512, 64, 0, 0},
    {0},
};

/* ---- slots */

static int32_t *random_table(int64_t count, int limit, int negative)
{
    int32_t *table = tool_take((size_t)count * 4, 4);
    for (int64_t i = 0; i < count; i++)
        table[i] = negative && tool_below(negative) == 0 ? -1 - tool_below(1 << 30) : tool_below(limit);
    return table;
}

void tool_fill_slots(sparse_mla_map_slots_args *a, int options)
{
    const int requests = a->num_tokens / a->q_len, positions = a->block_table_width * a->page_size + 40;
    const int64_t tokens = a->num_tokens;
    a->indices_token_stride = a->topk + 3;
    a->indices_request_stride = a->q_len * a->indices_token_stride + 5;
    a->slots_token_stride = a->topk + 1;
    a->slots_request_stride = a->q_len * a->slots_token_stride;
    a->mask_token_stride = a->mask_width + 9;
    a->mask_request_stride = a->q_len * a->mask_token_stride;
    a->block_table_stride = a->block_table_width + 2;
    if (!(options & DENSE))
        a->indices = random_table(requests * a->indices_request_stride, positions, 6);
    if (options & WITH_LENGTHS) {
        int32_t *lengths = random_table(tokens, a->topk + a->topk / 8 + 2, 9);
        for (int i = 0; i < 3 && i < a->num_tokens; i++)
            lengths[i] = i == 0 ? a->topk : i == 1 ? INT32_MAX : INT32_MIN;
        a->lengths = lengths;
    }
    if (options & WITH_REQUESTS)
        a->request_of_token = random_table(tokens, requests + 1, 8);
    if (options & WITH_TABLE) {
        int32_t *table = random_table(requests * a->block_table_stride, 60, 10);
        table[0] = INT32_MAX; /* times page_size: past 32 bits */
        a->block_table = table;
    }
    if (options & WITH_MASK) {
        uint16_t *mask = tool_take((size_t)(requests * a->mask_request_stride) * 2, 2);
        for (int64_t i = 0; i < requests * a->mask_request_stride; i++)
            mask[i] = (uint16_t)(tool_below(3) == 0 ? 0xFC00 : tool_below(3) == 0 ? (int)random_bits() : 0);
        a->mask = mask;
    }
    a->slots = tool_take((size_t)(requests * a->slots_request_stride) * 4, 4);
    if (options & WITH_COUNTS)
        a->counts = tool_take((size_t)tokens * 4, 4);
    a->fault_count = tool_take(4, 4);
    *a->fault_count = 0;
}

void tool_slots_case(int requests, int q_len, int topk, int page_size, int options)
{
    char what[128];
    sparse_mla_map_slots_args args, device;
    tool_clear();
    sparse_mla_map_slots_args_init(&args);
    args.num_tokens = requests * q_len;
    args.q_len = q_len;
    args.topk = topk;
    args.page_size = page_size;
    args.num_slots = 50 * page_size + 1;
    args.length_mode = options & PER_REQUEST ? SPARSE_MLA_LENGTH_PER_REQUEST : SPARSE_MLA_LENGTH_PER_TOKEN;
    args.block_table_width = topk / page_size / 2 + 2;
    args.mask_width = topk / 2 + 10;
    args.compact = options & COMPACT;
    tool_fill_slots(&args, options);
    device = args;
    device.indices = tool_on_device(args.indices);
    device.lengths = tool_on_device(args.lengths);
    device.request_of_token = tool_on_device(args.request_of_token);
    device.block_table = tool_on_device(args.block_table);
    device.mask = tool_on_device(args.mask);
    device.slots = tool_on_device(args.slots);
    device.counts = tool_on_device(args.counts);
    device.fault_count = tool_on_device(args.fault_count);
    tool_device.upload();
    tool_device.before();
    tool_ok(sparse_mla_map_slots(tool_device.context, &device, tool_device.stream));
    tool_ok(sparse_mla_map_slots(tool_device.host, &args, NULL));
    tool_device.download();
    snprintf(what, sizeof what, "%d requests of %d, top-k %d, page size %d, options %d", requests, q_len, topk,
             page_size, options);
    tool_compare(what);
}

/* ---- merge */

void tool_fill_merge(sparse_mla_merge_args *a, const struct merge_spec *s)
{
    static const float empty[] = {-INFINITY, INFINITY, NAN}, sinks[] = {INFINITY, -INFINITY};
    const int64_t rows = (int64_t)s->tokens * s->heads;
    const int part_size = s->part_dtype == SPARSE_MLA_F32 ? 4 : 2, out_size = s->out_dtype == SPARSE_MLA_F32 ? 4 : 2;
    sparse_mla_merge_args_init(a);
    a->num_parts = s->parts;
    a->num_tokens = s->tokens;
    a->num_heads = s->heads;
    a->value_dim = s->dim;
    a->flags = s->flags;
    a->part_dtype = s->part_dtype;
    a->out_dtype = s->out_dtype;
    a->part_out_head_stride = s->dim + 8;
    a->part_out_token_stride = s->heads * a->part_out_head_stride;
    a->part_out_stride = s->tokens * a->part_out_token_stride + 16;
    a->part_lse_head_stride = s->tokens; /* tokens inside */
    a->part_lse_token_stride = 1;
    a->part_lse_stride = rows + 3;
    a->out_token_stride = s->dim + 16; /* tokens inside */
    a->out_head_stride = s->tokens * a->out_token_stride;
    a->lse_token_stride = s->heads;
    a->lse_head_stride = 1;
    unsigned char *parts = tool_take((size_t)(s->parts * a->part_out_stride * part_size), 16);
    float *lse = tool_take((size_t)(s->parts * a->part_lse_stride) * 4, 4), *sink = tool_take((size_t)s->heads * 4, 4);
    for (int part = 0; part < s->parts; part++)
        for (int64_t row = 0; row < rows; row++) {
            const bool none = s->empty && tool_below(s->empty) == 0;
            lse[part * a->part_lse_stride + row] =
                none ? empty[tool_below(3)] : 4 * normal() - (tool_below(20) == 0 ? 90 : 0);
        }
    for (int part = 0; part < s->parts; part++)
        for (int token = 0; token < s->tokens; token++)
            for (int head = 0; head < s->heads; head++)
                if (lse[part * a->part_lse_stride + head * s->tokens + token] < INFINITY)
                    for (int dim = 0; dim < s->dim; dim++)
                        put(parts, s->part_dtype,
                            part * a->part_out_stride + token * a->part_out_token_stride +
                                head * a->part_out_head_stride + dim,
                            (tool_below(2) ? 1.0f : -1.0f) * (0.25f + (float)tool_below(1000) / 500));
    for (int head = 0; head < s->heads; head++)
        sink[head] = tool_below(4) == 0 ? sinks[tool_below(2)] : 3 * normal();
    a->part_out = parts;
    a->part_lse = lse;
    a->sink = s->sink ? sink : NULL;
    a->out = tool_take((size_t)(s->heads * a->out_head_stride * out_size), 16);
    a->lse = s->lse ? tool_take((size_t)rows * 4, 4) : NULL;
}

static bool near(double got, double expected, double relative, double absolute)
{
    if (isnan(expected) || isinf(expected) || expected == 0)
        return got == expected || (isnan(got) && isnan(expected)) || (expected == 0 && fabs(got) <= 1e-30);
    return fabs(got - expected) <= relative * fabs(expected) + absolute;
}

void tool_compare_merged(const sparse_mla_merge_args *a, const char *what)
{
    const double relative = a->out_dtype == SPARSE_MLA_BF16 ? 0x1p-7 : a->out_dtype == SPARSE_MLA_F16 ? 0x1p-10 : 2e-6;
    unsigned char *got = tool_block.read_back + ((unsigned char *)a->out - tool_block.host);
    float *got_lse = a->lse ? (float *)(tool_block.read_back + ((unsigned char *)a->lse - tool_block.host)) : NULL;
    const int size = a->out_dtype == SPARSE_MLA_F32 ? 4 : 2;
    for (int token = 0; token < a->num_tokens; token++)
        for (int head = 0; head < a->num_heads; head++) {
            const int64_t at = token * a->out_token_stride + head * a->out_head_stride;
            const int64_t lse_at = token * a->lse_token_stride + head * a->lse_head_stride;
            for (int dim = 0; dim < a->value_dim; dim++)
                if (!near(get(got, a->out_dtype, at + dim), get(a->out, a->out_dtype, at + dim), relative, 4e-6))
                    fail_msg("values: %s: token %d, head %d, dim %d is %g, the host has %g", what, token, head, dim,
                             get(got, a->out_dtype, at + dim), get(a->out, a->out_dtype, at + dim));
            memcpy(got + at * size, (char *)a->out + at * size, (size_t)(a->value_dim * size));
            if (got_lse && !near((double)got_lse[lse_at], (double)a->lse[lse_at], 1e-6, 2e-6))
                fail_msg("values: %s: lse of token %d, head %d is %g, the host has %g", what, token, head,
                         (double)got_lse[lse_at], (double)a->lse[lse_at]);
            if (got_lse)
                got_lse[lse_at] = a->lse[lse_at];
        }
    tool_compare(what);
}

sparse_mla_merge_args tool_merge_on_device(const sparse_mla_merge_args *args)
{
    sparse_mla_merge_args device = *args;
    device.part_out = tool_on_device(args->part_out);
    device.part_lse = tool_on_device(args->part_lse);
    device.out = tool_on_device(args->out);
    device.lse = tool_on_device(args->lse);
    device.sink = tool_on_device(args->sink);
    return device;
}

void tool_merge_case(const struct merge_spec *s)
{
    char what[160];
    sparse_mla_merge_args args;
    tool_clear();
    tool_fill_merge(&args, s);
    const sparse_mla_merge_args device = tool_merge_on_device(&args);
    tool_device.upload();
    tool_device.before();
    tool_ok(sparse_mla_merge(tool_device.context, &device, tool_device.stream));
    tool_ok(sparse_mla_merge(tool_device.host, &args, NULL));
    tool_device.download();
    snprintf(what, sizeof what, "%d parts, %d tokens, %d heads, %d dims, dtypes %d %d, flags %u, sink %d, empty %d",
             s->parts, s->tokens, s->heads, s->dim, s->part_dtype, s->out_dtype, s->flags, s->sink, s->empty);
    tool_compare_merged(&args, what);
}
