/* SPDX-License-Identifier: Apache-2.0 */
/* What sparse_mla_cache_append() must write, without the library: numbers are found by search among all that a format
 * has, powers of two by doubling. */
#ifndef QUANTISE_H
#define QUANTISE_H

#include "naive.h"

#include <float.h>

static inline double value_of_code(int code, int kind)
{
    const uint16_t half = (uint16_t)code;
    return kind == -1 ? naive_e4m3((uint8_t)code) : naive_number(&half, kind, 0);
}

/* The nearest of the codes 0 .. last, whose values ascend; of two equally near ones the even one. `kind`: -1 for e4m3,
 * else a sparse_mla_dtype. */
static inline int nearest_code(double magnitude, int kind, int last)
{
    int low = 0, high = last;
    if (magnitude >= value_of_code(last, kind))
        return last;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (value_of_code(middle, kind) <= magnitude)
            low = middle;
        else
            high = middle;
    }
    const double below = magnitude - value_of_code(low, kind), above = value_of_code(high, kind) - magnitude;
    return below < above || (below == above && low % 2 == 0) ? low : high;
}

static inline uint8_t quantise_e4m3(float value)
{
    if (isnan(value))
        return 0x7F;
    return (uint8_t)(nearest_code(fabs((double)value), -1, 0x7E) | (signbit(value) ? 0x80 : 0));
}

static inline uint16_t quantise_16(float value, int dtype)
{
    const int infinity = dtype == SPARSE_MLA_BF16 ? 0x7F80 : 0x7C00, sign = signbit(value) ? 0x8000 : 0;
    const double largest = value_of_code(infinity - 1, dtype), magnitude = fabs((double)value);
    if (isnan(value))
        return dtype == SPARSE_MLA_BF16 ? 0x7FC0 : 0x7E00;
    if (magnitude >= largest + (largest - value_of_code(infinity - 2, dtype)) / 2)
        return (uint16_t)(infinity | sign);
    return (uint16_t)(nearest_code(magnitude, dtype, infinity - 1) | sign);
}

static inline float quantise_amax(const float *values, int count)
{
    float amax = 0;
    for (int i = 0; i < count; i++)
        if (!isnan(values[i]) && fabsf(values[i]) > amax)
            amax = fabsf(values[i]);
    return amax;
}

static inline float quantise_scale(int rule, float amax)
{
    const float tenth_of_a_thousandth = 1e-4f;
    float quotient, power = FLT_MIN;
    if (rule == SPARSE_MLA_SCALE_V4)
        quotient = (amax > tenth_of_a_thousandth ? amax : tenth_of_a_thousandth) / 448.0f;
    else
        quotient = amax / 448.0f;
    if (rule == SPARSE_MLA_SCALE_AMAX)
        return quotient > FLT_MIN ? quotient : FLT_MIN;
    if (rule == SPARSE_MLA_SCALE_POW2 && quotient < tenth_of_a_thousandth)
        quotient = tenth_of_a_thousandth;
    while (power < quotient)
        power *= 2;
    return power;
}

static inline void quantise_block(unsigned char *to, const float *values, int count, float scale)
{
    for (int i = 0; i < count; i++) {
        const volatile float quotient = values[i] / scale;
        to[i] = quantise_e4m3(quotient);
    }
}

static inline void quantise_halves(unsigned char *to, const float *values, int count, int dtype)
{
    for (int i = 0; i < count; i++) {
        const uint16_t half = quantise_16(values[i], dtype);
        memcpy(to + 2 * i, &half, 2);
    }
}

/* ggml's quantize_row_q8_0_ref() on what it is made for; see sparsemla.h for the rest. */
static inline void quantise_q8_0(unsigned char *to, const float *values, int count)
{
    for (; count > 0; count -= 32, values += 32, to += 34) {
        float amax = 0;
        bool finite = true;
        for (int i = 0; i < 32; i++) {
            amax = fmaxf(amax, fabsf(values[i]));
            finite = finite && isfinite(values[i]);
        }
        const float d = amax / 127.0f, id = d != 0 ? 1.0f / d : 0.0f;
        const uint16_t half = finite ? quantise_16(d, SPARSE_MLA_F16) : 0x7E00;
        memcpy(to, &half, 2);
        for (int i = 0; i < 32; i++) {
            const volatile float x = values[i] * id;
            double q = isnan(x) || !finite ? 0 : floor(fabs((double)x) + 0.5);
            q = q > 127 ? 127 : q;
            to[2 + i] = (unsigned char)(int8_t)(signbit(x) ? -q : q);
        }
    }
}

/* Writes a row of latent and rope into a slot. `rule` is not DEFAULT. */
static inline void quantise_row(const sparse_mla_cache *cache, int64_t slot, const float *latent, int latent_dim,
                                const float *rope, int rope_dim, int rule)
{
    unsigned char *record = naive_record(cache, slot), *at = record + cache->latent_offset_bytes;
    unsigned char *rope_at = record + naive_rope_at(cache, latent_dim), *scales = naive_v4_scales(cache, slot);
    switch (cache->format) {
    case SPARSE_MLA_FLAT_BF16:
    case SPARSE_MLA_FLAT_F16:
        quantise_halves(at, latent, latent_dim,
                        cache->format == SPARSE_MLA_FLAT_F16 ? SPARSE_MLA_F16 : SPARSE_MLA_BF16);
        quantise_halves(rope_at, rope, rope_dim,
                        cache->format == SPARSE_MLA_FLAT_F16 ? SPARSE_MLA_F16 : SPARSE_MLA_BF16);
        return;
    case SPARSE_MLA_FLAT_E4M3:
        quantise_block(at, latent, latent_dim, cache->tensor_scale);
        quantise_block(rope_at, rope, rope_dim, cache->tensor_scale);
        return;
    case SPARSE_MLA_Q8_0:
        quantise_q8_0(at, latent, latent_dim);
        quantise_q8_0(rope_at, rope, rope_dim);
        return;
    case SPARSE_MLA_FP8_V4:
        for (int i = 0; i < latent_dim; i += 64) {
            float scale = quantise_scale(rule, quantise_amax(latent + i, 64));
            int exponent = 254;
            if (isfinite(scale))
                exponent = ilogb((double)scale) + 127;
            quantise_block(record + i, latent + i, 64, (float)ldexp(1, exponent - 127));
            scales[i / 64] = (unsigned char)exponent;
        }
        scales[7] = 0;
        break;
    default:
        for (int i = 0; i < latent_dim; i += 128) {
            const float scale = quantise_scale(rule, quantise_amax(latent + i, 128));
            quantise_block(record + i, latent + i, 128, scale);
            memcpy(record + 512 + i / 32, &scale, 4);
        }
    }
    quantise_halves(rope_at, rope, rope_dim, SPARSE_MLA_BF16);
}

#endif
