/* SPDX-License-Identifier: Apache-2.0 */
/* sparse_mla_merge(), sparse_mla_map_slots() and sparse_mla_cache_append() on the GPU against the host backend: cache
 * records and slots to the byte, merged outputs within rounding.
 *
 * All tensors of a call lie in one block of memory with 0xFF (NaN, -1) between them, once on the host and once on the
 * device. Both backends work on theirs, then the whole blocks are compared: what neither may write is still the same.
 *
 * With the argument "times" the test prints how long some calls take. */
#include "runner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 1024 };
static const size_t BLOCK_BYTES = (size_t)96 << 20;

static struct {
    unsigned char *host, *device, *read_back;
    size_t used;
} block;
static uint64_t seed = 1;

static uint32_t random_bits(void)
{
    seed ^= seed >> 12;
    seed ^= seed << 25;
    seed ^= seed >> 27;
    return (uint32_t)(seed * 0x2545F4914F6CDD1DULL >> 32);
}

static int below(int limit)
{
    return (int)(random_bits() % (uint32_t)limit);
}

static float normal(void)
{
    static uint64_t state = 77;
    return (float)random_normal(&state);
}

static void clear(void)
{
    if (!block.host) {
        block.host = aligned_alloc(256, BLOCK_BYTES);
        block.read_back = malloc(BLOCK_BYTES);
        block.device = cuda_alloc(BLOCK_BYTES);
    }
    memset(block.host, 0xFF, block.used + GUARD < BLOCK_BYTES ? block.used + GUARD : BLOCK_BYTES);
    if (block.used == 0)
        memset(block.host, 0xFF, BLOCK_BYTES);
    block.used = GUARD;
}

/* Host memory of a tensor; its address is a multiple of `alignment` and of no more. */
static void *take(size_t bytes, size_t alignment)
{
    const size_t at = (block.used + GUARD + 255) / 256 * 256 + alignment % 256;
    block.used = at + bytes + GUARD;
    if (block.used > BLOCK_BYTES)
        fail_msg("a case needs %zu bytes", block.used);
    return block.host + at;
}

static void *on_device(const void *host)
{
    return host ? block.device + ((const unsigned char *)host - block.host) : NULL;
}

static void upload(void)
{
    CUDA(cuMemcpyHtoD_v2((uintptr_t)block.device, block.host, block.used));
    CUDA(cuCtxSynchronize()); /* pageable memory may still be on its way, and our stream waits for no other */
}

static void download(void)
{
    CUDA(cuStreamSynchronize(stream));
    CUDA(cuMemcpyDtoH_v2(block.read_back, (uintptr_t)block.device, block.used));
}

static void ok(sparse_mla_status status)
{
    if (status != SPARSE_MLA_OK)
        fail_msg("%s", sparse_mla_last_error());
}

/* After download() and the host's turn. */
static void compare(const char *what)
{
    if (memcmp(block.host, block.read_back, block.used) == 0)
        return;
    for (size_t i = 0; i < block.used; i++)
        if (block.host[i] != block.read_back[i])
            fail_msg("%s: byte %zu is %02x, the host has %02x", what, i, block.read_back[i], block.host[i]);
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

/* What the numbers of a source are. */
enum numbers {
    NORMAL, /* N(0, 1) times a power of two per 32 dims, some zeros */
    BITS,   /* any bits: NaN, infinities, subnormals of the source's type */
    NUMBERS
};

static void fill_source(void *to, int dtype, int64_t count, int numbers)
{
    int exponent = 0;
    for (int64_t i = 0; i < count; i++) {
        if (i % 32 == 0)
            exponent = dtype == SPARSE_MLA_F16 ? below(12) - 6 : below(4) ? below(20) - 10 : below(240) - 125;
        if (numbers == BITS && dtype == SPARSE_MLA_F32)
            ((uint32_t *)to)[i] = random_bits();
        else if (numbers == BITS)
            ((uint16_t *)to)[i] = (uint16_t)random_bits();
        else if (below(50) == 0 && dtype != SPARSE_MLA_F16)
            put(to, dtype, i, below(2) ? 0.0f : -0.0f);
        else
            put(to, dtype, i, ldexpf((dtype == SPARSE_MLA_F16 ? 1 : 0) + normal() * 0.1f, exponent));
    }
}

static void fill_slots(int64_t *slots, int rows, int64_t num_slots)
{
    unsigned char *taken = calloc((size_t)num_slots, 1);
    for (int i = 0; i < rows; i++) {
        int64_t slot = below((int)num_slots);
        while (taken[slot])
            slot = (slot + 1) % num_slots;
        const int kind = below(12);
        slots[i] = kind == 0 ? -1 - (int64_t)below(1000) : kind == 1 ? num_slots + below(5) : slot;
        taken[slot] = kind > 1;
    }
    if (rows > 2) {
        slots[0] = INT64_MAX;
        slots[1] = INT64_MIN;
        slots[2] = (int64_t)1 << 32; /* 0 in 32 bits */
    }
    free(taken);
}

static void fill_cache(sparse_mla_cache *cache, int format, int latent, int rope, int page_size, int64_t num_slots)
{
    static const int fixed[] = {656, 528, 0, 0, 576, 576, 612};
    const int record = fixed[format] ? fixed[format] : 2 * (latent + rope);
    const int alignment = format == SPARSE_MLA_Q8_0 ? 4 : 16;
    sparse_mla_cache_init(cache);
    cache->format = format;
    cache->page_size = page_size;
    cache->num_slots = num_slots;
    cache->tensor_scale = ldexpf(1 + (float)below(1000) / 1000, below(40) - 20);
    cache->row_stride_bytes = record + (format == SPARSE_MLA_FP8_V4 ? 0 : alignment * below(5));
    cache->page_stride_bytes = (page_size * (cache->row_stride_bytes + 8) + 15) / 16 * 16 + 16 * below(7);
    if (rope && format >= SPARSE_MLA_FLAT_BF16 && format != SPARSE_MLA_FP8_V4 && below(3) == 0) { /* rope first */
        const int rope_bytes = format == SPARSE_MLA_Q8_0 ? 68 : format == SPARSE_MLA_FLAT_E4M3 ? 64 : 2 * rope;
        cache->rope_offset_bytes = 0;
        cache->latent_offset_bytes = rope_bytes;
    }
    cache->data = take((size_t)((num_slots + page_size - 1) / page_size * cache->page_stride_bytes), (size_t)alignment);
}

static void append_case(int format, int latent, int rope, int dtype, int rule, int rows, int page_size, int numbers)
{
    char what[128];
    sparse_mla_cache cache, device_cache;
    sparse_mla_cache_append_args args, device_args;
    const int size = dtype == SPARSE_MLA_F32 ? 4 : 2;
    clear();
    fill_cache(&cache, format, latent, rope, page_size, rows + 1 + below(rows + 100));
    sparse_mla_cache_append_args_init(&args);
    args.num_rows = rows;
    args.latent_dim = latent;
    args.rope_dim = rope;
    args.src_dtype = dtype;
    args.scale_rule = rule;
    args.latent_stride = latent + below(3) * 33;
    args.rope_stride = rope + below(3) * 7;
    void *source = take((size_t)(rows * args.latent_stride * size), (size_t)size);
    fill_source(source, dtype, rows * args.latent_stride, numbers);
    args.latent = source;
    if (rope) {
        args.rope = source = take((size_t)(rows * args.rope_stride * size), (size_t)size);
        fill_source(source, dtype, rows * args.rope_stride, numbers);
    }
    int64_t *slots = take((size_t)rows * sizeof *slots, 8);
    fill_slots(slots, rows, cache.num_slots);
    args.slots = slots;
    args.fault_count = take(4, 4);
    *args.fault_count = 7;
    args.cache = &cache;
    device_cache = cache;
    device_args = args;
    device_cache.data = on_device(cache.data);
    device_args.cache = &device_cache;
    device_args.latent = on_device(args.latent);
    device_args.rope = on_device(args.rope);
    device_args.slots = on_device(args.slots);
    device_args.fault_count = on_device(args.fault_count);
    upload();
    ok(sparse_mla_cache_append(contexts[0], &device_args, stream));
    ok(sparse_mla_cache_append(host_context, &args, NULL));
    download();
    snprintf(what, sizeof what, "format %d, %d + %d, dtype %d, rule %d, %d rows, page size %d, numbers %d", format,
             latent, rope, dtype, rule, rows, page_size, numbers);
    compare(what);
}

static const struct {
    int format, latent, rope, first_rule, last_rule;
} records[] = {
    {SPARSE_MLA_FP8_DS_MLA, 512, 64, 0, 3},     {SPARSE_MLA_FP8_DS_MLA, 512, 0, 0, 3},
    {SPARSE_MLA_FP8_DS_MLA_NOPE, 512, 0, 0, 3}, {SPARSE_MLA_FLAT_BF16, 512, 64, 0, 0},
    {SPARSE_MLA_FLAT_BF16, 64, 32, 0, 0},       {SPARSE_MLA_FLAT_BF16, 320, 0, 0, 0},
    {SPARSE_MLA_FLAT_F16, 512, 64, 0, 0},       {SPARSE_MLA_FLAT_F16, 192, 32, 0, 0},
    {SPARSE_MLA_FLAT_E4M3, 512, 64, 0, 0},      {SPARSE_MLA_FP8_V4, 448, 64, 2, 3},
    {SPARSE_MLA_FP8_V4, 448, 64, 0, 0},         {SPARSE_MLA_Q8_0, 512, 64, 0, 0},
};

static void test_append(void **state)
{
    static const int rows[] = {1, 3, 70}, page_sizes[] = {1, 61, 64};
    (void)state;
    for (size_t r = 0; r < sizeof records / sizeof *records; r++)
        for (int rule = records[r].first_rule; rule <= records[r].last_rule; rule++)
            for (int dtype = SPARSE_MLA_BF16; dtype <= SPARSE_MLA_F32; dtype++)
                for (int numbers = 0; numbers < NUMBERS; numbers++)
                    for (int i = 0; i < 3; i++)
                        append_case(records[r].format, records[r].latent, records[r].rope, dtype, rule, rows[i],
                                    page_sizes[(i + rule) % 3], numbers);
}

/* Enough rows for several units of work per warp, and millions of different bits. */
static void test_append_many(void **state)
{
    (void)state;
    for (size_t r = 0; r < sizeof records / sizeof *records; r++)
        append_case(records[r].format, records[r].latent, records[r].rope, SPARSE_MLA_F32, records[r].last_rule, 2500,
                    64, (int)r % 2 ? BITS : NORMAL);
    append_case(SPARSE_MLA_FLAT_E4M3, 512, 64, SPARSE_MLA_F32, 0, 2500, 64, BITS);
    append_case(SPARSE_MLA_Q8_0, 512, 64, SPARSE_MLA_F32, 0, 2500, 64, NORMAL);
}

/* A page beyond 4 GiB: the record there is that of a small cache. */
static void test_append_far(void **state)
{
    enum { ROWS = 3, RECORD = 656 };
    static const int64_t far = ((int64_t)1 << 31) + 4096;
    unsigned char records[ROWS][RECORD];
    sparse_mla_cache cache;
    sparse_mla_cache_append_args args, device_args;
    cu_pointer memory;
    (void)state;
    if (cuda.cuMemAlloc_v2(&memory, (size_t)(2 * far + RECORD)) != 0)
        skip();
    clear();
    fill_cache(&cache, SPARSE_MLA_FP8_DS_MLA, 512, 64, 1, ROWS);
    sparse_mla_cache_append_args_init(&args);
    args.num_rows = ROWS;
    args.latent_dim = 512;
    args.rope_dim = 64;
    args.latent_stride = args.rope_stride = 576;
    unsigned char *source = take((size_t)ROWS * 576 * 2, 16);
    int64_t *slots = take(ROWS * sizeof *slots, 8);
    fill_source(source, SPARSE_MLA_BF16, (int64_t)ROWS * 576, NORMAL);
    for (int i = 0; i < ROWS; i++)
        slots[i] = ROWS - 1 - i;
    args.latent = source;
    args.rope = source + 1024;
    args.slots = slots;
    args.cache = &cache;
    device_args = args;
    device_args.latent = on_device(args.latent);
    device_args.rope = on_device(args.rope);
    device_args.slots = on_device(args.slots);
    upload();
    ok(sparse_mla_cache_append(host_context, &args, NULL));
    sparse_mla_cache device_cache = cache;
    device_cache.data = (void *)(uintptr_t)memory;
    device_cache.page_stride_bytes = far;
    device_args.cache = &device_cache;
    ok(sparse_mla_cache_append(contexts[0], &device_args, stream));
    CUDA(cuStreamSynchronize(stream));
    for (int i = 0; i < ROWS; i++) {
        CUDA(cuMemcpyDtoH_v2(records[i], memory + (cu_pointer)(i * far), RECORD));
        assert_memory_equal(records[i], (const char *)cache.data + i * cache.page_stride_bytes, RECORD);
    }
    CUDA(cuMemFree_v2(memory));
}

/* ---- slots */

enum {
    WITH_TABLE = 1,
    WITH_LENGTHS = 2,
    PER_REQUEST = 4,
    WITH_REQUESTS = 8,
    WITH_MASK = 16,
    COMPACT = 32,
    WITH_COUNTS = 64,
    DENSE = 128,
    OPTIONS = 256
};

static int32_t *random_table(int64_t count, int limit, int negative)
{
    int32_t *table = take((size_t)count * 4, 4);
    for (int64_t i = 0; i < count; i++)
        table[i] = negative && below(negative) == 0 ? -1 - below(1 << 30) : below(limit);
    return table;
}

static void fill_slot_tensors(sparse_mla_map_slots_args *a, int options)
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
        uint16_t *mask = take((size_t)(requests * a->mask_request_stride) * 2, 2);
        for (int64_t i = 0; i < requests * a->mask_request_stride; i++)
            mask[i] = (uint16_t)(below(3) == 0 ? 0xFC00 : below(3) == 0 ? (int)random_bits() : 0);
        a->mask = mask;
    }
    a->slots = take((size_t)(requests * a->slots_request_stride) * 4, 4);
    if (options & WITH_COUNTS)
        a->counts = take((size_t)tokens * 4, 4);
    a->fault_count = take(4, 4);
    *a->fault_count = 0;
}

static void slots_case(int requests, int q_len, int topk, int page_size, int options)
{
    char what[128];
    sparse_mla_map_slots_args args, device;
    clear();
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
    fill_slot_tensors(&args, options);
    device = args;
    device.indices = on_device(args.indices);
    device.lengths = on_device(args.lengths);
    device.request_of_token = on_device(args.request_of_token);
    device.block_table = on_device(args.block_table);
    device.mask = on_device(args.mask);
    device.slots = on_device(args.slots);
    device.counts = on_device(args.counts);
    device.fault_count = on_device(args.fault_count);
    upload();
    runner_poison_shared(stream);
    ok(sparse_mla_map_slots(contexts[0], &device, stream));
    ok(sparse_mla_map_slots(host_context, &args, NULL));
    download();
    snprintf(what, sizeof what, "%d requests of %d, top-k %d, page size %d, options %d", requests, q_len, topk,
             page_size, options);
    compare(what);
}

static void test_slots(void **state)
{
    static const int widths[] = {1, 31, 77, 256, 2048, 2051, 5000}, page_sizes[] = {1, 64, 61, 256};
    (void)state;
    for (int options = 0; options < OPTIONS; options++)
        for (int i = 0; i < 7; i++)
            slots_case(1 + (options + i) % 5, 1 + (options / 16 + i) % 3, widths[i], page_sizes[(options + i) % 4],
                       options);
    slots_case(300, 2, 2048, 64, WITH_TABLE | COMPACT | WITH_COUNTS | WITH_LENGTHS);
}

/* ---- merge */

struct merge_spec {
    int parts, tokens, heads, dim, part_dtype, out_dtype;
    uint32_t flags;
    bool sink, lse;
    int empty; /* one of so many parts; 0: none */
};

static void fill_merge(sparse_mla_merge_args *a, const struct merge_spec *s)
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
    unsigned char *parts = take((size_t)(s->parts * a->part_out_stride * part_size), 16);
    float *lse = take((size_t)(s->parts * a->part_lse_stride) * 4, 4), *sink = take((size_t)s->heads * 4, 4);
    for (int part = 0; part < s->parts; part++)
        for (int64_t row = 0; row < rows; row++) {
            const bool none = s->empty && below(s->empty) == 0;
            lse[part * a->part_lse_stride + row] = none ? empty[below(3)] : 4 * normal() - (below(20) == 0 ? 90 : 0);
        }
    for (int part = 0; part < s->parts; part++)
        for (int token = 0; token < s->tokens; token++)
            for (int head = 0; head < s->heads; head++)
                if (lse[part * a->part_lse_stride + head * s->tokens + token] < INFINITY)
                    for (int dim = 0; dim < s->dim; dim++)
                        put(parts, s->part_dtype,
                            part * a->part_out_stride + token * a->part_out_token_stride +
                                head * a->part_out_head_stride + dim,
                            (below(2) ? 1.0f : -1.0f) * (0.25f + (float)below(1000) / 500));
    for (int head = 0; head < s->heads; head++)
        sink[head] = below(4) == 0 ? sinks[below(2)] : 3 * normal();
    a->part_out = parts;
    a->part_lse = lse;
    a->sink = s->sink ? sink : NULL;
    a->out = take((size_t)(s->heads * a->out_head_stride * out_size), 16);
    a->lse = s->lse ? take((size_t)rows * 4, 4) : NULL;
}

static bool near(double got, double expected, double relative, double absolute)
{
    if (isnan(expected) || isinf(expected) || expected == 0)
        return got == expected || (isnan(got) && isnan(expected)) || (expected == 0 && fabs(got) <= 1e-30);
    return fabs(got - expected) <= relative * fabs(expected) + absolute;
}

/* Then makes the results the same, so that all else can be compared to the byte. */
static void compare_merged(const sparse_mla_merge_args *a, const char *what)
{
    const double relative = a->out_dtype == SPARSE_MLA_BF16 ? 0x1p-7 : a->out_dtype == SPARSE_MLA_F16 ? 0x1p-10 : 2e-6;
    unsigned char *got = block.read_back + ((unsigned char *)a->out - block.host);
    float *got_lse = a->lse ? (float *)(block.read_back + ((unsigned char *)a->lse - block.host)) : NULL;
    const int size = a->out_dtype == SPARSE_MLA_F32 ? 4 : 2;
    for (int token = 0; token < a->num_tokens; token++)
        for (int head = 0; head < a->num_heads; head++) {
            const int64_t at = token * a->out_token_stride + head * a->out_head_stride;
            const int64_t lse_at = token * a->lse_token_stride + head * a->lse_head_stride;
            for (int dim = 0; dim < a->value_dim; dim++)
                if (!near(get(got, a->out_dtype, at + dim), get(a->out, a->out_dtype, at + dim), relative, 4e-6))
                    fail_msg("%s: token %d, head %d, dim %d is %g, the host has %g", what, token, head, dim,
                             get(got, a->out_dtype, at + dim), get(a->out, a->out_dtype, at + dim));
            memcpy(got + at * size, (char *)a->out + at * size, (size_t)(a->value_dim * size));
            if (got_lse && !near((double)got_lse[lse_at], (double)a->lse[lse_at], 1e-6, 2e-6))
                fail_msg("%s: lse of token %d, head %d is %g, the host has %g", what, token, head,
                         (double)got_lse[lse_at], (double)a->lse[lse_at]);
            if (got_lse)
                got_lse[lse_at] = a->lse[lse_at];
        }
    compare(what);
}

static sparse_mla_merge_args merge_on_device(const sparse_mla_merge_args *args)
{
    sparse_mla_merge_args device = *args;
    device.part_out = on_device(args->part_out);
    device.part_lse = on_device(args->part_lse);
    device.out = on_device(args->out);
    device.lse = on_device(args->lse);
    device.sink = on_device(args->sink);
    return device;
}

static void merge_case(const struct merge_spec *s)
{
    char what[160];
    sparse_mla_merge_args args;
    clear();
    fill_merge(&args, s);
    const sparse_mla_merge_args device = merge_on_device(&args);
    upload();
    ok(sparse_mla_merge(contexts[0], &device, stream));
    ok(sparse_mla_merge(host_context, &args, NULL));
    download();
    snprintf(what, sizeof what, "%d parts, %d tokens, %d heads, %d dims, dtypes %d %d, flags %u, sink %d, empty %d",
             s->parts, s->tokens, s->heads, s->dim, s->part_dtype, s->out_dtype, s->flags, s->sink, s->empty);
    compare_merged(&args, what);
}

static void test_merge(void **state)
{
    static const uint32_t flags[] = {0,
                                     SPARSE_MLA_LSE_BASE2,
                                     SPARSE_MLA_LSE_WITH_SINK | SPARSE_MLA_PART_LSE_BASE2,
                                     SPARSE_MLA_LSE_EMPTY_POSINF,
                                     SPARSE_MLA_LSE_BASE2 | SPARSE_MLA_LSE_WITH_SINK | SPARSE_MLA_LSE_EMPTY_POSINF,
                                     SPARSE_MLA_LSE_BASE2 | SPARSE_MLA_PART_LSE_BASE2};
    static const int parts[] = {1, 2, 3, 8, 33}, dims[] = {512, 64, 8, 1000, 576};
    (void)state;
    for (int dtypes = 0; dtypes < 9; dtypes++)
        for (int f = 0; f < 6; f++)
            for (int i = 0; i < 5; i++)
                merge_case(&(struct merge_spec){.parts = parts[i],
                                                .tokens = 1 + (f + i) % 4,
                                                .heads = 1 + (dtypes + 3 * i) % 9,
                                                .dim = dims[(i + f) % 5],
                                                .part_dtype = dtypes / 3,
                                                .out_dtype = dtypes % 3,
                                                .flags = flags[f],
                                                .sink = (f + i) % 2,
                                                .lse = (f + i) % 3 != 0,
                                                .empty = (i + dtypes) % 4});
    merge_case(&(struct merge_spec){
        .parts = 8, .tokens = 64, .heads = 16, .dim = 512, .out_dtype = SPARSE_MLA_BF16, .lse = true, .empty = 5});
}

/* The same call gives the same bits. */
static void test_merge_twice(void **state)
{
    sparse_mla_merge_args args;
    (void)state;
    clear();
    fill_merge(&args, &(struct merge_spec){.parts = 7,
                                           .tokens = 9,
                                           .heads = 16,
                                           .dim = 512,
                                           .part_dtype = 2,
                                           .out_dtype = 2,
                                           .lse = true,
                                           .sink = true});
    const sparse_mla_merge_args device = merge_on_device(&args);
    upload();
    ok(sparse_mla_merge(contexts[0], &device, stream));
    download();
    memcpy(block.host, block.read_back, block.used);
    ok(sparse_mla_merge(contexts[0], &device, stream));
    download();
    compare("again");
}

/* ---- graphs */

static void test_capture(void **state)
{
    sparse_mla_merge_args args;
    void *graph, *exec;
    (void)state;
    ok(sparse_mla_tools_prepare(contexts[0], stream));
    clear();
    fill_merge(&args, &(struct merge_spec){.parts = 2, .tokens = 2, .heads = 8, .dim = 512, .lse = true});
    const sparse_mla_merge_args device = merge_on_device(&args);
    upload();
    CUDA(cuStreamBeginCapture_v2(stream, 0));
    ok(sparse_mla_merge(contexts[0], &device, stream));
    CUDA(cuStreamEndCapture(stream, &graph));
    CUDA(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CUDA(cuGraphLaunch(exec, stream));
    ok(sparse_mla_merge(host_context, &args, NULL));
    download();
    compare_merged(&args, "captured");
    CUDA(cuGraphExecDestroy(exec));
    CUDA(cuGraphDestroy(graph));
}

/* ---- times */

static double microseconds(void (*call)(const void *args), const void *args)
{
    enum { CALLS = 50 };
    void *start, *stop;
    float milliseconds;
    CUDA(cuEventCreate(&start, 0));
    CUDA(cuEventCreate(&stop, 0));
    call(args);
    CUDA(cuEventRecord(start, stream));
    for (int i = 0; i < CALLS; i++)
        call(args);
    CUDA(cuEventRecord(stop, stream));
    CUDA(cuEventSynchronize(stop));
    CUDA(cuEventElapsedTime(&milliseconds, start, stop));
    return (double)milliseconds * 1000 / CALLS;
}

static void call_append(const void *args)
{
    ok(sparse_mla_cache_append(contexts[0], args, stream));
}

static void call_slots(const void *args)
{
    ok(sparse_mla_map_slots(contexts[0], args, stream));
}

static void call_merge(const void *args)
{
    ok(sparse_mla_merge(contexts[0], args, stream));
}

static void time_append(int rows)
{
    sparse_mla_cache cache;
    sparse_mla_cache_append_args args;
    clear();
    fill_cache(&cache, SPARSE_MLA_FP8_DS_MLA, 512, 64, 64, rows);
    sparse_mla_cache_append_args_init(&args);
    args.num_rows = rows;
    args.latent_dim = 512;
    args.rope_dim = 64;
    args.latent_stride = args.rope_stride = 576;
    unsigned char *source = take((size_t)rows * 576 * 2, 16);
    memset(source, 0x3C, (size_t)rows * 576 * 2);
    int64_t *slots = take((size_t)rows * 8, 8);
    for (int i = 0; i < rows; i++)
        slots[i] = i;
    upload();
    cache.data = on_device(cache.data);
    args.cache = &cache;
    args.latent = on_device(source);
    args.rope = on_device(source + 1024);
    args.slots = on_device(slots);
    print_message("append %5d rows, bf16 to fp8_ds_mla: %.1f us per call\n", rows, microseconds(call_append, &args));
}

static void time_slots(int tokens, int compact)
{
    sparse_mla_map_slots_args args;
    clear();
    sparse_mla_map_slots_args_init(&args);
    args.num_tokens = tokens;
    args.topk = 2048;
    args.num_slots = 60 * 64;
    args.block_table_width = 100;
    args.mask_width = 1;
    args.compact = compact;
    fill_slot_tensors(&args, WITH_TABLE | WITH_COUNTS);
    upload();
    args.indices = on_device(args.indices);
    args.block_table = on_device(args.block_table);
    args.slots = on_device(args.slots);
    args.counts = compact ? on_device(args.counts) : NULL;
    args.fault_count = NULL;
    print_message("map_slots %4d tokens, top-k 2048%s: %.1f us per call\n", tokens, compact ? ", compaction" : "",
                  microseconds(call_slots, &args));
}

static void time_merge(int tokens)
{
    sparse_mla_merge_args args;
    clear();
    fill_merge(&args, &(struct merge_spec){.parts = 8, .tokens = tokens, .heads = 16, .dim = 512, .lse = true});
    args = merge_on_device(&args);
    upload();
    print_message("merge 8 parts, %3d tokens, 16 heads, bf16: %.1f us per call\n", tokens,
                  microseconds(call_merge, &args));
}

static void print_times(void)
{
    time_append(1);
    time_append(64);
    time_append(16384);
    for (int compact = 0; compact < 2; compact++) {
        time_slots(1, compact);
        time_slots(256, compact);
    }
    time_merge(1);
    time_merge(256);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_append),  cmocka_unit_test(test_append_many), cmocka_unit_test(test_append_far),
        cmocka_unit_test(test_slots),   cmocka_unit_test(test_merge),       cmocka_unit_test(test_merge_twice),
        cmocka_unit_test(test_capture),
    };
    runner_open();
    if (argc > 1 && strcmp(argv[1], "times") == 0) {
        print_times();
        return 0;
    }
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("tools", tests, NULL, NULL);
}
