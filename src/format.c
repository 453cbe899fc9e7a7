/* SPDX-License-Identifier: Apache-2.0 */
#include "format.h"

#include "number.h"

#include "tools_params.h"

/* The values of e4m3: for each exponent eight steps of one size, the lowest ones subnormal. A table, since arithmetic
 * on subnormal floats is slow and depends on the caller's floating-point mode. */
#define STEPS(step) 8 * (step), 9 * (step), 10 * (step), 11 * (step), 12 * (step), 13 * (step), 14 * (step)
#define OCTAVE(step) STEPS(step), 15 * (step)
#define OCTAVES(a, b, c, d) OCTAVE(a), OCTAVE(b), OCTAVE(c), OCTAVE(d)
#define SUBNORMALS(step) 0 * (step), step, 2 * (step), 3 * (step), 4 * (step), 5 * (step), 6 * (step), 7 * (step)
/* clang-format off */
#define E4M3_VALUES(sign)                                                                                              \
    SUBNORMALS(sign 0x1p-9f), OCTAVE(sign 0x1p-9f), OCTAVE(sign 0x1p-8f), OCTAVE(sign 0x1p-7f),                        \
        OCTAVES(sign 0x1p-6f, sign 0x1p-5f, sign 0x1p-4f, sign 0x1p-3f),                                               \
        OCTAVES(sign 0x1p-2f, sign 0x1p-1f, sign 0x1p+0f, sign 0x1p+1f),                                               \
        OCTAVE(sign 0x1p+2f), OCTAVE(sign 0x1p+3f), OCTAVE(sign 0x1p+4f), STEPS(sign 0x1p+5f), NAN
/* clang-format on */

static const float e4m3[256] = {E4M3_VALUES(+), E4M3_VALUES(-)};

static const unsigned char *record_of(const sparse_mla_cache *cache, int64_t slot)
{
    return (const unsigned char *)cache->data + slot / cache->page_size * cache->page_stride_bytes +
           slot % cache->page_size * cache->row_stride_bytes;
}

static void read_bf16(double *to, const unsigned char *from, int count)
{
    for (int i = 0; i < count; i++) {
        uint16_t bits;
        memcpy(&bits, from + 2 * i, sizeof bits);
        to[i] = (double)smla_from_bf16(bits);
    }
}

static void read_f16(double *to, const unsigned char *from, int count)
{
    for (int i = 0; i < count; i++) {
        uint16_t bits;
        memcpy(&bits, from + 2 * i, sizeof bits);
        to[i] = (double)smla_from_f16(bits);
    }
}

static void read_e4m3(double *to, const unsigned char *from, int count, double scale)
{
    for (int i = 0; i < count; i++)
        to[i] = (double)e4m3[from[i]] * scale;
}

/* 2^(e - 127); 2^-127 has no exponent of its own. */
static double from_ue8m0(unsigned char e)
{
    return e == 255 ? (double)NAN : (double)smla_bits_float(e ? (uint32_t)e << 23 : 1u << 22);
}

static void read_fp8_ds_mla(double *row, const sparse_mla_cache *cache, int64_t slot, int latent_dim, int rope_dim)
{
    enum { SCALES_AT = 512, ROPE_AT = 528, SCALE_BLOCK = 128 };
    const unsigned char *record = record_of(cache, slot);
    for (int first = 0; first < latent_dim; first += SCALE_BLOCK) {
        float scale;
        memcpy(&scale, record + SCALES_AT + 4 * (first / SCALE_BLOCK), sizeof scale);
        read_e4m3(row + first, record + first, SCALE_BLOCK, (double)scale);
    }
    read_bf16(row + latent_dim, record + ROPE_AT, rope_dim);
}

static void read_flat_bf16(double *row, const sparse_mla_cache *cache, int64_t slot, int latent_dim, int rope_dim)
{
    const unsigned char *record = record_of(cache, slot);
    read_bf16(row, record + cache->latent_offset_bytes, latent_dim);
    read_bf16(row + latent_dim, record + cache->rope_offset_bytes, rope_dim);
}

static void read_flat_f16(double *row, const sparse_mla_cache *cache, int64_t slot, int latent_dim, int rope_dim)
{
    const unsigned char *record = record_of(cache, slot);
    read_f16(row, record + cache->latent_offset_bytes, latent_dim);
    read_f16(row + latent_dim, record + cache->rope_offset_bytes, rope_dim);
}

static void read_flat_e4m3(double *row, const sparse_mla_cache *cache, int64_t slot, int latent_dim, int rope_dim)
{
    const unsigned char *record = record_of(cache, slot);
    read_e4m3(row, record + cache->latent_offset_bytes, latent_dim, (double)cache->tensor_scale);
    read_e4m3(row + latent_dim, record + cache->rope_offset_bytes, rope_dim, (double)cache->tensor_scale);
}

static void read_fp8_v4(double *row, const sparse_mla_cache *cache, int64_t slot, int latent_dim, int rope_dim)
{
    enum { ROPE_AT = 448, SCALE_BLOCK = 64, SCALE_BYTES = 8 };
    const unsigned char *record = record_of(cache, slot);
    const int64_t row_of_page = slot % cache->page_size;
    const unsigned char *page_end = record + (cache->page_size - row_of_page) * cache->row_stride_bytes;
    const unsigned char *scales = page_end + row_of_page * SCALE_BYTES;
    for (int first = 0; first < latent_dim; first += SCALE_BLOCK)
        read_e4m3(row + first, record + first, SCALE_BLOCK, from_ue8m0(scales[first / SCALE_BLOCK]));
    read_bf16(row + latent_dim, record + ROPE_AT, rope_dim);
}

static void read_blocks(double *to, const unsigned char *from, int count)
{
    enum { BLOCK = 32, HEADER = 2 };
    for (; count > 0; count -= BLOCK, to += BLOCK, from += HEADER + BLOCK) {
        double d;
        read_f16(&d, from, 1);
        for (int i = 0; i < BLOCK; i++)
            to[i] = (double)(int8_t)from[HEADER + i] * d;
    }
}

static void read_q8_0(double *row, const sparse_mla_cache *cache, int64_t slot, int latent_dim, int rope_dim)
{
    const unsigned char *record = record_of(cache, slot);
    read_blocks(row, record + cache->latent_offset_bytes, latent_dim);
    read_blocks(row + latent_dim, record + cache->rope_offset_bytes, rope_dim);
}

enum { NO_ROPE = 1 << 0, ROPE_32 = 1 << 1, ROPE_64 = 1 << 2 };

static const struct smla_format formats[] = {
    [SPARSE_MLA_FP8_DS_MLA] = {.name = "fp8_ds_mla",
                               .latent_dim = 512,
                               .rope_mask = ROPE_64 | NO_ROPE,
                               .rope_dims = "64 or 0",
                               .rope_offset = 528,
                               .record_bytes = 656,
                               .alignment = 16,
                               .scale_block = 128,
                               .latent_segment = SMLA_SEGMENT_E4M3_FLOAT,
                               .rope_segment = SMLA_SEGMENT_BF16,
                               .read = read_fp8_ds_mla},
    [SPARSE_MLA_FP8_DS_MLA_NOPE] = {.name = "fp8_ds_mla_nope",
                                    .latent_dim = 512,
                                    .rope_mask = NO_ROPE,
                                    .rope_dims = "0",
                                    .rope_offset = 528,
                                    .record_bytes = 528,
                                    .alignment = 16,
                                    .scale_block = 128,
                                    .latent_segment = SMLA_SEGMENT_E4M3_FLOAT,
                                    .rope_segment = SMLA_SEGMENT_BF16,
                                    .read = read_fp8_ds_mla},
    [SPARSE_MLA_FLAT_BF16] = {.name = "flat_bf16",
                              .flat_element_bytes = 2,
                              .rope_mask = ROPE_64 | ROPE_32 | NO_ROPE,
                              .rope_dims = "64, 32 or 0",
                              .alignment = 16,
                              .latent_segment = SMLA_SEGMENT_BF16,
                              .rope_segment = SMLA_SEGMENT_BF16,
                              .read = read_flat_bf16},
    [SPARSE_MLA_FLAT_F16] = {.name = "flat_f16",
                             .flat_element_bytes = 2,
                             .rope_mask = ROPE_64 | ROPE_32 | NO_ROPE,
                             .rope_dims = "64, 32 or 0",
                             .alignment = 16,
                             .latent_segment = SMLA_SEGMENT_F16,
                             .rope_segment = SMLA_SEGMENT_F16,
                             .read = read_flat_f16},
    [SPARSE_MLA_FLAT_E4M3] = {.name = "flat_e4m3",
                              .flat_element_bytes = 1,
                              .latent_dim = 512,
                              .rope_mask = ROPE_64,
                              .rope_dims = "64",
                              .alignment = 16,
                              .latent_segment = SMLA_SEGMENT_E4M3,
                              .rope_segment = SMLA_SEGMENT_E4M3,
                              .read = read_flat_e4m3},
    [SPARSE_MLA_FP8_V4] = {.name = "fp8_v4",
                           .latent_dim = 448,
                           .rope_mask = ROPE_64,
                           .rope_dims = "64",
                           .rope_is_value = true,
                           .rope_offset = 448,
                           .record_bytes = 576,
                           .alignment = 16,
                           .scale_block = 64,
                           .page_scale_bytes = 8,
                           .latent_segment = SMLA_SEGMENT_E4M3_UE8M0,
                           .rope_segment = SMLA_SEGMENT_BF16,
                           .read = read_fp8_v4},
    [SPARSE_MLA_Q8_0] = {.name = "q8_0",
                         .flat_element_bytes = 1,
                         .latent_dim = 512,
                         .rope_mask = ROPE_64,
                         .rope_dims = "64",
                         .alignment = 4,
                         .scale_block = 32,
                         .block_scale_bytes = 2,
                         .latent_segment = SMLA_SEGMENT_Q8_0,
                         .rope_segment = SMLA_SEGMENT_Q8_0,
                         .read = read_q8_0},
};

const struct smla_format *smla_format_get(int32_t format)
{
    const size_t count = sizeof formats / sizeof formats[0];
    return format >= 0 && (size_t)format < count ? &formats[format] : NULL;
}

int32_t smla_format_run_bytes(const struct smla_format *format, int32_t dims)
{
    return dims * format->flat_element_bytes +
           (format->block_scale_bytes ? dims / format->scale_block * format->block_scale_bytes : 0);
}

int64_t smla_format_read_bytes(const sparse_mla_cache *cache, int32_t latent_dim, int32_t rope_dim)
{
    const struct smla_format *format = smla_format_get(cache->format);
    if (!format->flat_element_bytes)
        return rope_dim ? format->record_bytes : format->rope_offset;
    const int64_t latent_end = (int64_t)cache->latent_offset_bytes + smla_format_run_bytes(format, latent_dim);
    const int64_t rope_end = (int64_t)cache->rope_offset_bytes + smla_format_run_bytes(format, rope_dim);
    return rope_dim && rope_end > latent_end ? rope_end : latent_end;
}

int64_t smla_format_page_bytes(const sparse_mla_cache *cache, int32_t latent_dim, int32_t rope_dim)
{
    const struct smla_format *format = smla_format_get(cache->format);
    if (!format->page_scale_bytes)
        return smla_format_read_bytes(cache, latent_dim, rope_dim);
    return (int64_t)cache->page_size * (format->record_bytes + format->page_scale_bytes);
}
