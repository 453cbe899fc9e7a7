/* SPDX-License-Identifier: Apache-2.0 */
/* Caches of every format, written without the library. A new record: record_of(), write_row() and, if its dims have
 * scales of their own, key_factor(). */
#include "problem_parts.h"

#include <math.h>
#include <string.h>

enum { DIMS_MAX = 512, V4_ROW = 576, V4_PAGE_BYTES_PER_ROW = 584, V4_SCALE_BYTES = 8 };

/* A record: where its parts are, how many bytes are its own, and how many at its front are ever read. */
struct record {
    int latent_at, rope_at, bytes, read;
    int alignment;
    bool default_rope; /* the rope is where it is without saying so */
};

static int run_bytes(const struct spec *spec, int dims)
{
    switch (spec->format) {
    case SPARSE_MLA_Q8_0:
        return dims / 32 * 34;
    case SPARSE_MLA_FLAT_E4M3:
        return dims;
    default:
        return 2 * dims;
    }
}

static struct record flat_record(const struct spec *spec, int kind)
{
    const int unit = spec->format == SPARSE_MLA_Q8_0 ? 4 : 16;
    const int latent = run_bytes(spec, spec->latent), rope = run_bytes(spec, spec->rope);
    struct record r = {.alignment = unit, .bytes = latent + rope, .read = latent + rope};
    switch (kind) {
    case RECORD_ROPE_FIRST:
        r.latent_at = rope;
        break;
    case RECORD_APART:
        r.latent_at = unit;
        r.rope_at = latent + 4 * unit;
        r.bytes = r.rope_at + rope + unit;
        break;
    case RECORD_APART_FIRST:
        r.rope_at = 2 * unit;
        r.latent_at = r.rope_at + rope + 3 * unit;
        r.bytes = r.latent_at + latent + unit;
        break;
    default:
        r.rope_at = latent;
        r.default_rope = true;
    }
    if (kind != RECORD_PLAIN)
        r.read = spec->rope && r.rope_at > r.latent_at ? r.rope_at + rope : r.latent_at + latent;
    return r;
}

static struct record record_of(const struct spec *spec, const struct key_spec *keys)
{
    switch (spec->format) {
    case SPARSE_MLA_FP8_DS_MLA:
        if (!keys->no_tail)
            return (struct record){
                .rope_at = 528, .bytes = 656, .read = spec->rope ? 656 : 528, .alignment = 16, .default_rope = true};
        /* fallthrough */
    case SPARSE_MLA_FP8_DS_MLA_NOPE:
        return (struct record){.bytes = 528, .read = 528, .alignment = 16, .default_rope = true};
    case SPARSE_MLA_FP8_V4:
        return (struct record){.rope_at = 448, .bytes = V4_ROW, .read = V4_ROW, .alignment = 16, .default_rope = true};
    default:
        return flat_record(spec, keys->record);
    }
}

/* ---- rows */

static double group_factor(const struct spec *spec, int group)
{
    static const int exponents[4] = {-20, -7, 7, 20};
    switch (spec->scales) {
    case SCALES_GROUPS:
        return ldexp(1, exponents[group % 4]);
    case SCALES_UP:
        return 0x1p60;
    case SCALES_DOWN:
        return 0x1p-60;
    default:
        return 1;
    }
}

double key_factor(const struct spec *spec, int dim)
{
    switch (spec->format) {
    case SPARSE_MLA_FP8_DS_MLA:
    case SPARSE_MLA_FP8_DS_MLA_NOPE:
        return dim < 512 ? group_factor(spec, dim / 128) : 1;
    case SPARSE_MLA_FP8_V4:
        return dim < 448 ? group_factor(spec, dim / 64) : 1;
    default:
        return 1;
    }
}

static void key_values(const struct spec *spec, float *value, int dims, uint64_t *seed)
{
    random_values(value, dims, seed);
    for (int d = 0; d < dims; d++)
        value[d] = clamped(spec, (double)value[d] * spec->key_size);
}

/* e4m3 and the scale that belongs to it. */
static double write_block(const struct spec *spec, unsigned char *to, int dims, bool power, uint64_t *seed)
{
    float value[128], amax = 1e-4f;
    key_values(spec, value, dims, seed);
    for (int d = 0; d < dims; d++)
        amax = fmaxf(amax, fabsf(value[d]));
    double scale = (double)amax / 448;
    if (power || spec->scales == SCALES_POW2)
        scale = exp2(ceil(log2(scale)));
    for (int d = 0; d < dims; d++)
        to[d] = encode_e4m3(value[d] / (float)scale);
    if (spec->scales == SCALES_KEYS)
        scale *= exp2(floor(random_uniform(seed) * 41) - 20);
    return scale;
}

static void write_floats(const struct spec *spec, unsigned char *to, int dims, uint64_t *seed)
{
    const int dtype = spec->format == SPARSE_MLA_FLAT_F16 ? SPARSE_MLA_F16 : SPARSE_MLA_BF16;
    float value[DIMS_MAX];
    key_values(spec, value, dims, seed);
    for (int d = 0; d < dims; d++)
        encode(to, dtype, d, value[d]);
}

static void write_ds_mla(const struct spec *spec, unsigned char *row, uint64_t *seed)
{
    for (int group = 0; group < 4; group++) {
        const float scale = (float)(write_block(spec, row + 128 * group, 128, false, seed) * group_factor(spec, group));
        memcpy(row + 512 + 4 * group, &scale, sizeof scale);
    }
    write_floats(spec, row + 528, spec->rope, seed);
}

static void write_v4(const struct spec *spec, unsigned char *row, unsigned char *scales, uint64_t *seed)
{
    for (int group = 0; group < 7; group++)
        scales[group] = (unsigned char)(127 + ilogb(write_block(spec, row + 64 * group, 64, true, seed) *
                                                    group_factor(spec, group)));
    write_floats(spec, row + 448, spec->rope, seed);
}

static void write_q8_0(const struct spec *spec, unsigned char *to, int dims, uint64_t *seed)
{
    for (int first = 0; first < dims; first += 32, to += 34) {
        float value[32], amax = 0;
        key_values(spec, value, 32, seed);
        for (int d = 0; d < 32; d++)
            amax = fmaxf(amax, fabsf(value[d]));
        const uint16_t scale = encode_f16(amax / 127);
        memcpy(to, &scale, sizeof scale);
        for (int d = 0; d < 32; d++)
            to[2 + d] = (unsigned char)(int8_t)roundf(amax > 0 ? value[d] / (amax / 127) : 0);
    }
}

static void write_e4m3(const struct spec *spec, unsigned char *to, int dims, uint64_t *seed)
{
    float value[DIMS_MAX];
    key_values(spec, value, dims, seed);
    for (int d = 0; d < dims; d++)
        to[d] = encode_e4m3(value[d] / (float)spec->tensor_scale);
}

static void write_run(const struct spec *spec, unsigned char *to, int dims, uint64_t *seed)
{
    if (spec->format == SPARSE_MLA_Q8_0)
        write_q8_0(spec, to, dims, seed);
    else if (spec->format == SPARSE_MLA_FLAT_E4M3)
        write_e4m3(spec, to, dims, seed);
    else
        write_floats(spec, to, dims, seed);
}

static unsigned char *v4_scales(const sparse_mla_cache *cache, int64_t slot)
{
    return (unsigned char *)cache->data + slot / cache->page_size * cache->page_stride_bytes +
           (int64_t)cache->page_size * V4_ROW + slot % cache->page_size * V4_SCALE_BYTES;
}

/* One NaN, in the latent, the rope or a scale. */
static void spoil_row(const struct spec *spec, const struct record *r, unsigned char *row, unsigned char *scales,
                      uint64_t *seed)
{
    const bool rope = spec->rope && random_below(seed, 3) == 0;
    const int dim = random_below(seed, rope ? spec->rope : spec->latent);
    unsigned char *part = row + (rope ? r->rope_at : r->latent_at);
    switch (spec->format) {
    case SPARSE_MLA_Q8_0: /* the scale of the dim's block */
        memset(part + dim / 32 * 34, 0xFF, 2);
        break;
    case SPARSE_MLA_FLAT_BF16:
    case SPARSE_MLA_FLAT_F16:
        memset(part + 2 * dim, 0xFF, 2);
        break;
    case SPARSE_MLA_FLAT_E4M3:
        part[dim] = 0x7F;
        break;
    default: /* bf16 rope, fp8 latent, scales */
        if (rope)
            memset(part + 2 * dim, 0xFF, 2);
        else if (random_below(seed, 2))
            part[dim] = 0xFF;
        else if (scales)
            scales[dim / 64] = 255;
        else
            memcpy(row + 512 + dim / 128 * 4, &(const float){NAN}, sizeof(float));
    }
}

static void write_row(const struct spec *spec, const struct record *r, const sparse_mla_cache *cache, int64_t slot,
                      uint64_t *seed)
{
    unsigned char *row = problem_row(cache, slot);
    unsigned char *scales = spec->format == SPARSE_MLA_FP8_V4 ? v4_scales(cache, slot) : NULL;
    if (scales) {
        write_v4(spec, row, scales, seed);
    } else if (spec->format == SPARSE_MLA_FP8_DS_MLA || spec->format == SPARSE_MLA_FP8_DS_MLA_NOPE) {
        write_ds_mla(spec, row, seed);
    } else {
        write_run(spec, row + r->latent_at, spec->latent, seed);
        write_run(spec, row + r->rope_at, spec->rope, seed);
    }
    if (spec->nan_rows > 0 && random_uniform(seed) < spec->nan_rows)
        spoil_row(spec, r, row, scales, seed);
}

/* ---- caches */

unsigned char *problem_row(const sparse_mla_cache *cache, int64_t slot)
{
    return (unsigned char *)cache->data + slot / cache->page_size * cache->page_stride_bytes +
           slot % cache->page_size * cache->row_stride_bytes;
}

static int64_t page_stride(const struct spec *spec, const struct key_spec *keys, int64_t row_stride)
{
    const int64_t unit = keys->page_pad == PAGES_OF_576 ? 576 : spec->format == SPARSE_MLA_Q8_0 ? 4 : 16;
    const int64_t bytes =
        keys->page_size * (spec->format == SPARSE_MLA_FP8_V4 ? (int64_t)V4_PAGE_BYTES_PER_ROW : row_stride);
    return (bytes + unit - 1) / unit * unit + (keys->page_pad > 0 ? keys->page_pad : 0);
}

/* Exactly what may be read: a guard follows. */
static int64_t data_bytes(const struct spec *spec, const sparse_mla_cache *cache, const struct record *r)
{
    const int64_t last = (cache->num_slots - 1) % cache->page_size;
    const int64_t page = (cache->num_slots - 1) / cache->page_size * cache->page_stride_bytes;
    if (spec->format == SPARSE_MLA_FP8_V4)
        return page + cache->page_size * (int64_t)V4_ROW + (last + 1) * V4_SCALE_BYTES;
    return page + last * cache->row_stride_bytes + r->read;
}

static void set_garbage_strides(const struct spec *spec, sparse_mla_cache *cache)
{
    if (!spec->odd_strides)
        return;
    if (cache->num_slots <= cache->page_size)
        cache->page_stride_bytes = -7777;
    if (cache->page_size == 1 && spec->format != SPARSE_MLA_FP8_V4)
        cache->row_stride_bytes = -777;
}

static void write_rows(struct problem *p, sparse_mla_cache *cache, const struct record *r, const bool *selected,
                       uint64_t *seed)
{
    for (int64_t slot = 0; slot < cache->num_slots; slot++)
        if (selected[slot]) {
            write_row(&p->spec, r, cache, slot, seed);
            arena_mark(p->arena, problem_row(cache, slot), (size_t)r->read);
            if (p->spec.format == SPARSE_MLA_FP8_V4)
                arena_mark(p->arena, v4_scales(cache, slot), V4_SCALE_BYTES);
        }
}

void make_cache(struct problem *p, sparse_mla_cache *cache, const struct key_spec *keys, const bool *selected,
                uint64_t *seed)
{
    const struct spec *spec = &p->spec;
    const struct record r = record_of(spec, keys);
    const int64_t sparse_from = (int64_t)1 << 31;
    cache->format = spec->format == SPARSE_MLA_FP8_DS_MLA && keys->no_tail ? SPARSE_MLA_FP8_DS_MLA_NOPE : spec->format;
    cache->tensor_scale = (float)spec->tensor_scale;
    cache->latent_offset_bytes = r.latent_at;
    cache->rope_offset_bytes = r.default_rope ? -1 : r.rope_at;
    cache->row_stride_bytes = r.bytes + (spec->format == SPARSE_MLA_FP8_V4 ? 0 : keys->row_pad);
    cache->page_stride_bytes = page_stride(spec, keys, cache->row_stride_bytes);
    if (cache->num_slots > 0) {
        const int64_t bytes = data_bytes(spec, cache, &r);
        cache->data = bytes >= sparse_from ? arena_take_sparse(p->arena, "cache", (size_t)bytes, (size_t)r.alignment)
                                           : arena_take(p->arena, "cache", (size_t)bytes, (size_t)r.alignment);
        write_rows(p, cache, &r, selected, seed);
    }
    set_garbage_strides(spec, cache);
}
