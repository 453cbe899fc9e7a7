/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers, and numbers as the bytes of small float formats: rounded to nearest even, independent of src/. */
#include "problem_parts.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

enum { DRAWS = 1 << 16, LONGEST_ROW = 1024 };

/* One of 65536 draws each: a grid of large problems wants many millions. The second set is clamped to 1. */
static struct {
    float f32[DRAWS + LONGEST_ROW];
    uint16_t bf16[DRAWS + LONGEST_ROW], f16[DRAWS + LONGEST_ROW];
} draws[2];
static pthread_once_t drawn = PTHREAD_ONCE_INIT;

double random_uniform(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (double)(*state >> 11) / 9007199254740992.0;
}

int random_below(uint64_t *state, int n)
{
    return (int)(random_uniform(state) * n);
}

static void draw(void)
{
    uint64_t seed = 88172645463325252ull;
    for (int i = 0; i < DRAWS + LONGEST_ROW; i++) {
        const double radius = sqrt(-2 * log(1 - random_uniform(&seed)));
        const float value = (float)(radius * cos(6.283185307179586 * random_uniform(&seed)));
        draws[0].f32[i] = i < DRAWS ? value : draws[0].f32[i - DRAWS];
        draws[1].f32[i] = fmaxf(-1, fminf(1, draws[0].f32[i]));
        for (int set = 0; set < 2; set++) {
            draws[set].bf16[i] = encode_bf16(draws[set].f32[i]);
            draws[set].f16[i] = encode_f16(draws[set].f32[i]);
        }
    }
}

double random_normal(uint64_t *state)
{
    pthread_once(&drawn, draw);
    return (double)draws[0].f32[random_below(state, DRAWS)];
}

void random_values(float *to, int count, uint64_t *seed)
{
    pthread_once(&drawn, draw);
    const int from = random_below(seed, DRAWS);
    for (int i = 0; i < count; i++)
        to[i] = draws[0].f32[from + count - 1 - i];
}

void random_row(void *to, int dtype, int count, bool clamp, uint64_t *seed)
{
    pthread_once(&drawn, draw);
    const int from = random_below(seed, DRAWS);
    if (dtype == SPARSE_MLA_F32)
        memcpy(to, draws[clamp].f32 + from, 4 * (size_t)count);
    else
        memcpy(to, (dtype == SPARSE_MLA_BF16 ? draws[clamp].bf16 : draws[clamp].f16) + from, 2 * (size_t)count);
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Drops the low bits of a mantissa; a carry moves into the exponent by itself. */
static uint32_t round_off(uint32_t bits, int dropped)
{
    return (bits + ((1u << (dropped - 1)) - 1) + (bits >> dropped & 1)) >> dropped;
}

uint16_t encode_bf16(float value)
{
    return (uint16_t)round_off(bits_of(value), 16);
}

uint16_t encode_f16(float value)
{
    const uint16_t sign = (uint16_t)(bits_of(value) >> 16 & 0x8000);
    const float magnitude = fminf(fabsf(value), 65504);
    if (magnitude < 0x1p-14f)
        return sign | (uint16_t)rintf(magnitude * 0x1p24f);
    return sign | (uint16_t)(round_off(bits_of(magnitude), 13) - ((127 - 15) << 10));
}

uint8_t encode_e4m3(float value)
{
    const uint8_t sign = (uint8_t)(bits_of(value) >> 24 & 0x80);
    const float magnitude = fminf(fabsf(value), 448);
    if (magnitude < 0x1p-6f)
        return sign | (uint8_t)rintf(magnitude * 512);
    return sign | (uint8_t)(round_off(bits_of(magnitude), 20) - ((127 - 7) << 3));
}

int dtype_bytes(int dtype)
{
    return dtype == SPARSE_MLA_F32 ? 4 : 2;
}

void encode(void *tensor, int dtype, int64_t element, float value)
{
    if (dtype == SPARSE_MLA_F32)
        ((float *)tensor)[element] = value;
    else
        ((uint16_t *)tensor)[element] = dtype == SPARSE_MLA_BF16 ? encode_bf16(value) : encode_f16(value);
}
