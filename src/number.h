/* SPDX-License-Identifier: Apache-2.0 */
/* 16-bit floats without compiler support for them. Narrowing rounds once, to nearest even, from double. */
#ifndef SMLA_NUMBER_H
#define SMLA_NUMBER_H

#include <sparsemla/sparsemla.h>

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t smla_float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float smla_bits_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float smla_from_bf16(uint16_t value)
{
    return smla_bits_float((uint32_t)value << 16);
}

static inline float smla_from_f16(uint16_t value)
{
    /* Both cases are computed and one is picked, so that loops over it vectorise. */
    const uint32_t magnitude = value & 0x7FFFu, rebias = (127 - 15) << 23;
    const uint32_t subnormal = smla_float_bits((float)(int32_t)magnitude * 0x1p-24f);
    const uint32_t normal = (magnitude << 13) + rebias + (magnitude >= 0x7C00u ? rebias : 0);
    return smla_bits_float((magnitude < 0x400u ? subnormal : normal) | (uint32_t)(value & 0x8000u) << 16);
}

/* `value` in a binary format of `precision` significant bits whose smallest positive number is 2^lowest. */
static inline double smla_round(double value, int precision, int lowest)
{
    int exponent;
    if (!isfinite(value))
        return value;
    frexp(value, &exponent);
    exponent = exponent - precision > lowest ? exponent - precision : lowest;
    return ldexp(rint(ldexp(value, -exponent)), exponent);
}

static inline uint16_t smla_to_bf16(double value)
{
    if (isnan(value))
        return 0x7FC0;
    return (uint16_t)(smla_float_bits((float)smla_round(value, 8, -133)) >> 16);
}

static inline uint16_t smla_to_f16(double value)
{
    const double magnitude = fabs(smla_round(value, 11, -24));
    const unsigned sign = signbit(value) ? 0x8000u : 0;
    if (isnan(value))
        return 0x7E00;
    if (magnitude > 65504)
        return (uint16_t)(sign | 0x7C00u);
    if (magnitude < 0x1p-14)
        return (uint16_t)(sign | (unsigned)(magnitude * 0x1p24));
    return (uint16_t)(sign | ((smla_float_bits((float)magnitude) >> 13) - ((127 - 15) << 10)));
}

/* Elements of a tensor of any sparse_mla_dtype. */
static inline double smla_load(const void *tensor, int32_t dtype, int64_t element)
{
    if (dtype == SPARSE_MLA_F32)
        return (double)((const float *)tensor)[element];
    const uint16_t bits = ((const uint16_t *)tensor)[element];
    return (double)(dtype == SPARSE_MLA_BF16 ? smla_from_bf16(bits) : smla_from_f16(bits));
}

static inline void smla_store(void *tensor, int32_t dtype, int64_t element, double value)
{
    if (dtype == SPARSE_MLA_F32)
        ((float *)tensor)[element] = (float)value;
    else
        ((uint16_t *)tensor)[element] = dtype == SPARSE_MLA_BF16 ? smla_to_bf16(value) : smla_to_f16(value);
}

#endif
