/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"
#include "number.h"
#include "tools.h"

#include <float.h>

enum { FLAT_WIDTH = 64, WIDTH_MAX = 128 }; /* dims of a segment: where there are no scales; at most */

static sparse_mla_status copy_append(struct smla_append *to, const sparse_mla_cache_append_args *args)
{
    sparse_mla_cache_append_args_init(&to->args);
    sparse_mla_cache_init(&to->cache);
    if (!args)
        return smla_invalid_pointer("", "args", args, "it is required");
    sparse_mla_status status =
        smla_copy_struct(&to->args, sizeof to->args, SMLA_CACHE_APPEND_ARGS_FIRST_SIZE, args, "args");
    if (status != SPARSE_MLA_OK)
        return status;
    if (!to->args.cache)
        return smla_invalid_pointer("", "cache", NULL, "it is required");
    status = smla_copy_struct(&to->cache, sizeof to->cache, SMLA_CACHE_FIRST_SIZE, to->args.cache, "cache");
    to->args.cache = NULL;
    return status;
}

/* Fills in the rule that DEFAULT means. */
static sparse_mla_status check_scale_rule(sparse_mla_cache_append_args *args, const struct smla_format *format)
{
    const bool exponents = format->latent_segment == SMLA_SEGMENT_E4M3_UE8M0;
    if (args->scale_rule < SPARSE_MLA_SCALE_DEFAULT || args->scale_rule > SPARSE_MLA_SCALE_V4)
        return smla_invalid_integer("", "scale_rule", args->scale_rule, "it must be a sparse_mla_scale_rule, 0 to 3");
    if (args->scale_rule == SPARSE_MLA_SCALE_DEFAULT)
        args->scale_rule = exponents ? SPARSE_MLA_SCALE_V4 : SPARSE_MLA_SCALE_AMAX;
    else if (!exponents && format->latent_segment != SMLA_SEGMENT_E4M3_FLOAT)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "scale_rule is %d: %s takes only 0 (DEFAULT)", args->scale_rule,
                         format->name);
    else if (exponents && args->scale_rule == SPARSE_MLA_SCALE_AMAX)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT,
                         "scale_rule is 1 (AMAX): %s has powers of two, which 0 (DEFAULT), 2 (POW2) and 3 (V4) give",
                         format->name);
    return SPARSE_MLA_OK;
}

static sparse_mla_status check_source(const sparse_mla_cache_append_args *args)
{
    sparse_mla_status status = smla_check_dtype("src_dtype", args->src_dtype);
    if (status == SPARSE_MLA_OK)
        status = smla_check_stride("", "latent_stride", args->latent_stride, args->num_rows, args->latent_dim, 1,
                                   "elements");
    if (status == SPARSE_MLA_OK && args->rope_dim > 0)
        status = smla_check_stride("", "rope_stride", args->rope_stride, args->num_rows, args->rope_dim, 1, "elements");
    return status;
}

static sparse_mla_status check_pointers(const struct smla_append *append)
{
    const sparse_mla_cache_append_args *args = &append->args;
    const int bytes = smla_dtype_bytes(args->src_dtype);
    const bool rope = args->rope_dim > 0;
    const struct smla_pointer pointers[] = {
        {"latent", args->latent, SMLA_REQUIRED, bytes},
        {"rope", rope ? args->rope : NULL, rope ? SMLA_REQUIRED : SMLA_OPTIONAL, bytes},
        {"slots", args->slots, SMLA_REQUIRED, 8},
        {"fault_count", args->fault_count, SMLA_OPTIONAL, 4},
        {"cache.data", append->cache.data, append->cache.num_slots > 0 ? SMLA_REQUIRED : SMLA_OPTIONAL,
         smla_format_get(append->cache.format)->alignment},
    };
    return smla_check_pointers("", pointers, sizeof pointers / sizeof pointers[0]);
}

sparse_mla_status smla_append_check(struct smla_append *to, const sparse_mla_cache_append_args *args)
{
    sparse_mla_status status = copy_append(to, args);
    if (status != SPARSE_MLA_OK)
        return status;
    if (to->args.num_rows < 0)
        return smla_invalid_integer("", "num_rows", to->args.num_rows, "0 or more are supported");
    if (to->args.reserved != 0)
        return smla_invalid_integer("", "reserved", to->args.reserved, "it must be 0");
    status = smla_check_record(&to->cache, to->args.latent_dim, to->args.rope_dim, "cache.");
    if (status != SPARSE_MLA_OK)
        return status;
    const struct smla_format *format = smla_format_get(to->cache.format);
    if (format->latent_segment == SMLA_SEGMENT_E4M3 && to->cache.tensor_scale == 0)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "cache.tensor_scale is 0: rows are divided by it");
    status = check_scale_rule(&to->args, format);
    if (status == SPARSE_MLA_OK)
        status = check_source(&to->args);
    return status == SPARSE_MLA_OK && to->args.num_rows > 0 ? check_pointers(to) : status;
}

/* How the rows of a call are cut into segments: kernel and host backend go by the same numbers. */
void smla_append_params(struct smla_append_params *params, const struct smla_append *append)
{
    const sparse_mla_cache_append_args *args = &append->args;
    const sparse_mla_cache *cache = &append->cache;
    const struct smla_format *format = smla_format_get(cache->format);
    const int latent_width = format->scale_block ? format->scale_block : FLAT_WIDTH;
    const int rope_width = format->rope_segment == SMLA_SEGMENT_Q8_0 ? format->scale_block : args->rope_dim;
    *params = (struct smla_append_params){
        .data = (unsigned char *)cache->data + cache->latent_offset_bytes,
        .latent = args->latent,
        .rope = args->rope,
        .slots = (const long long *)args->slots,
        .fault_count = args->fault_count,
        .num_slots = cache->num_slots,
        .page_stride = cache->page_stride_bytes,
        .row_stride = cache->row_stride_bytes,
        .latent_stride = args->latent_stride,
        .rope_stride = args->rope_stride,
        .rope_at = cache->rope_offset_bytes - cache->latent_offset_bytes,
        .scales_at = format->latent_segment == SMLA_SEGMENT_E4M3_UE8M0
                         ? (int64_t)cache->page_size * cache->row_stride_bytes
                         : args->latent_dim,
        .num_rows = args->num_rows,
        .page_size = cache->page_size,
        .latent_segment = format->latent_segment,
        .rope_segment = format->rope_segment,
        .latent_width = latent_width,
        .rope_width = rope_width,
        .latent_segments = args->latent_dim / latent_width,
        .rope_segments = args->rope_dim > 0 ? args->rope_dim / rope_width : 0,
        .src_dtype = args->src_dtype,
        .scale_rule = args->scale_rule,
        .tensor_scale = cache->tensor_scale,
    };
}

/* ---- host backend ---- */

/* To nearest even, saturating. */
static unsigned char to_e4m3(float value)
{
    const float magnitude = fabsf(value);
    const unsigned sign = smla_float_bits(value) >> 24 & 0x80u;
    if (isnan(value))
        return 0x7F;
    if (magnitude >= 448)
        return (unsigned char)(sign | 0x7E);
    if (magnitude < 0x1p-6f) /* subnormal: beside 2^14 a float has steps of 2^-9 */
        return (unsigned char)(sign | (smla_float_bits(magnitude + 0x1p14f) & 0xFF));
    const uint32_t bits = smla_float_bits(magnitude);
    return (unsigned char)(sign | (((bits + 0x7FFFF + (bits >> 20 & 1)) >> 20) - ((127 - 7) << 3)));
}

/* The smallest power of two that is not below a normal number or infinity. */
static float power_of_two_from(float value)
{
    const uint32_t bits = smla_float_bits(value);
    return smla_bits_float((bits + 0x7FFFFF) & 0x7F800000);
}

static float scale_of(int rule, float amax)
{
    if (rule == SPARSE_MLA_SCALE_AMAX)
        return fmaxf(amax / 448, FLT_MIN);
    return power_of_two_from(rule == SPARSE_MLA_SCALE_POW2 ? fmaxf(amax / 448, 1e-4f) : fmaxf(amax, 1e-4f) / 448);
}

static float largest_magnitude(const float *values, int count)
{
    float amax = 0;
    for (int i = 0; i < count; i++)
        amax = fabsf(values[i]) > amax ? fabsf(values[i]) : amax;
    return amax;
}

static void write_16_bit(unsigned char *to, const float *values, int count, uint16_t (*narrow)(double))
{
    for (int i = 0; i < count; i++)
        memcpy(to + 2 * i, &(uint16_t){narrow((double)values[i])}, 2);
}

static void write_e4m3(unsigned char *to, const float *values, int count, float scale)
{
    for (int i = 0; i < count; i++)
        to[i] = to_e4m3(values[i] / scale);
}

static void write_q8_0(unsigned char *to, const float *values, int count)
{
    bool finite = true;
    for (int i = 0; i < count; i++)
        finite &= isfinite(values[i]) != 0;
    const float d = finite ? largest_magnitude(values, count) / 127 : NAN;
    const float inverse = d != 0 ? 1 / d : 0; /* infinite for the smallest subnormals */
    memcpy(to, &(uint16_t){smla_to_f16((double)d)}, 2);
    for (int i = 0; i < count; i++) {
        const float value = roundf(values[i] * inverse);
        to[2 + i] = (unsigned char)(signed char)(isnan(value) ? 0 : fmaxf(-127, fminf(127, value)));
    }
}

/* `scale_to`: where the scale of the segment goes, if it has one. */
static void write_segment(const struct smla_append_params *p, int segment, unsigned char *to, unsigned char *scale_to,
                          const float *values, int width)
{
    if (segment == SMLA_SEGMENT_BF16) {
        write_16_bit(to, values, width, smla_to_bf16);
    } else if (segment == SMLA_SEGMENT_F16) {
        write_16_bit(to, values, width, smla_to_f16);
    } else if (segment == SMLA_SEGMENT_Q8_0) {
        write_q8_0(to, values, width);
    } else if (segment == SMLA_SEGMENT_E4M3) {
        write_e4m3(to, values, width, p->tensor_scale);
    } else if (segment == SMLA_SEGMENT_E4M3_FLOAT) {
        const float scale = scale_of(p->scale_rule, largest_magnitude(values, width));
        memcpy(scale_to, &scale, sizeof scale);
        write_e4m3(to, values, width, scale);
    } else {
        const float scale = fminf(scale_of(p->scale_rule, largest_magnitude(values, width)), 0x1p127f);
        *scale_to = (unsigned char)(smla_float_bits(scale) >> 23);
        write_e4m3(to, values, width, scale);
    }
}

/* The dims of one segment of a row. */
static void load_segment(const struct smla_append_params *p, const void *from, int64_t first, float *values, int width)
{
    for (int i = 0; i < width; i++)
        values[i] = (float)smla_load(from, p->src_dtype, first + i);
}

static int segment_bytes(int segment, int width)
{
    if (segment == SMLA_SEGMENT_Q8_0)
        return width + 2;
    return segment == SMLA_SEGMENT_BF16 || segment == SMLA_SEGMENT_F16 ? 2 * width : width;
}

static void write_row(const struct smla_append_params *p, int64_t row, int64_t slot)
{
    float values[WIDTH_MAX];
    unsigned char *page = p->data + slot / p->page_size * p->page_stride;
    unsigned char *record = page + slot % p->page_size * p->row_stride;
    const bool in_footer = p->latent_segment == SMLA_SEGMENT_E4M3_UE8M0;
    unsigned char *scales =
        in_footer ? page + p->scales_at + slot % p->page_size * SMLA_UE8M0_ROW_BYTES : record + p->scales_at;
    const int latent_bytes = segment_bytes(p->latent_segment, p->latent_width);
    const int rope_bytes = segment_bytes(p->rope_segment, p->rope_width);
    for (int i = 0; i < p->latent_segments; i++) {
        load_segment(p, p->latent, row * p->latent_stride + i * p->latent_width, values, p->latent_width);
        write_segment(p, p->latent_segment, record + i * latent_bytes, scales + i * (in_footer ? 1 : 4), values,
                      p->latent_width);
    }
    for (int i = 0; i < p->rope_segments; i++) {
        load_segment(p, p->rope, row * p->rope_stride + i * p->rope_width, values, p->rope_width);
        write_segment(p, p->rope_segment, record + p->rope_at + i * rope_bytes, NULL, values, p->rope_width);
    }
    if (in_footer)
        memset(scales + p->latent_segments, 0, (size_t)(SMLA_UE8M0_ROW_BYTES - p->latent_segments));
}

void smla_append_host(const struct smla_append *append)
{
    struct smla_append_params p;
    uint32_t faults = 0;
    smla_append_params(&p, append);
    for (int64_t row = 0; row < p.num_rows; row++) {
        const int64_t slot = p.slots[row];
        if (slot >= p.num_slots)
            faults++;
        else if (slot >= 0)
            write_row(&p, row, slot);
    }
    /* Atomic: calls of several threads may share the word. */
    if (faults > 0 && p.fault_count)
        __atomic_fetch_add(p.fault_count, faults, __ATOMIC_RELAXED);
}
