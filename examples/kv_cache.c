/* SPDX-License-Identifier: Apache-2.0 */
#include "kv_cache.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

uint16_t float_to_bf16(float value)
{
    uint32_t bits = bits_of(value);
    if (isnan(value))
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

float bf16_to_float(uint16_t value)
{
    uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

uint8_t float_to_e4m3(float value)
{
    uint32_t sign = bits_of(value) >> 24 & 0x80;
    float magnitude = fabsf(value);
    if (isnan(value))
        return (uint8_t)(sign | 0x7F);
    if (magnitude >= 448.0f)
        return (uint8_t)(sign | 0x7E);
    if (magnitude < 0x1p-6f) /* subnormal: adding 2^14 rounds to multiples of 2^-9 */
        return (uint8_t)(sign | (bits_of(magnitude + 0x1p14f) - bits_of(0x1p14f)));
    uint32_t bits = bits_of(magnitude);
    return (uint8_t)(sign | (((bits + 0x7FFFF + (bits >> 20 & 1)) >> 20) - ((127 - 7) << 3)));
}

void write_fp8_ds_mla(unsigned char record[656], const float latent[512], const float *rope, int rope_dim)
{
    for (int group = 0; group < 4; group++) {
        const float *values = latent + 128 * group;
        float amax = 0;
        for (int i = 0; i < 128; i++)
            amax = fmaxf(amax, fabsf(values[i]));
        float scale = fmaxf(amax / 448.0f, FLT_MIN);
        for (int i = 0; i < 128; i++)
            record[128 * group + i] = float_to_e4m3(values[i] / scale);
        memcpy(record + 512 + 4 * group, &scale, sizeof scale);
    }
    for (int i = 0; i < rope_dim; i++)
        memcpy(record + 528 + 2 * i, &(uint16_t){float_to_bf16(rope[i])}, 2);
}

void write_flat_bf16(unsigned char *record, const float *latent, int latent_dim, const float *rope, int rope_dim)
{
    for (int i = 0; i < latent_dim; i++)
        memcpy(record + 2 * i, &(uint16_t){float_to_bf16(latent[i])}, 2);
    for (int i = 0; i < rope_dim; i++)
        memcpy(record + 2 * (latent_dim + i), &(uint16_t){float_to_bf16(rope[i])}, 2);
}

uint32_t random_bits(uint64_t *state) /* xorshift64* */
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (uint32_t)(*state * 0x2545F4914F6CDD1DULL >> 32);
}

static void shuffle(int32_t *table, int64_t count)
{
    uint64_t state = 1;
    for (int64_t i = 0; i < count; i++) {
        int64_t j = (int64_t)(((uint64_t)random_bits(&state) * (uint64_t)(i + 1)) >> 32);
        table[i] = table[j];
        table[j] = (int32_t)i;
    }
}

static int64_t pool_bytes(const struct kv_cache *cache)
{
    return cache->view.block_table_width * cache->view.page_stride_bytes;
}

void kv_cache_create(struct kv_cache *cache, const struct device *device, int format, int64_t capacity, int latent_dim,
                     int rope_dim)
{
    sparse_mla_cache *view = &cache->view;
    sparse_mla_cache_init(view);
    int64_t pages = (capacity + view->page_size - 1) / view->page_size;
    cache->latent_dim = latent_dim;
    cache->rope_dim = rope_dim;
    view->format = format;
    view->row_stride_bytes = format == SPARSE_MLA_FP8_DS_MLA ? 656 : 2 * (latent_dim + rope_dim);
    view->page_stride_bytes = view->page_size * view->row_stride_bytes;
    view->num_slots = pages * view->page_size;
    view->block_table_width = (int32_t)pages;
    view->block_table_stride = pages;
    cache->records = host_alloc((size_t)pool_bytes(cache));
    cache->block_table = host_alloc((size_t)pages * sizeof(int32_t));
    shuffle(cache->block_table, pages);
    view->data = device_alloc(device, (size_t)pool_bytes(cache));
    view->block_table = device_alloc(device, (size_t)pages * sizeof(int32_t));
}

void kv_cache_destroy(struct kv_cache *cache, const struct device *device)
{
    device_free(device, (void *)cache->view.data);
    device_free(device, (void *)cache->view.block_table);
    free(cache->records);
    free(cache->block_table);
}

int64_t kv_cache_put(struct kv_cache *cache, int64_t position, const float *latent, const float *rope)
{
    const sparse_mla_cache *view = &cache->view;
    int64_t page = cache->block_table[position / view->page_size];
    int64_t offset = page * view->page_stride_bytes + position % view->page_size * view->row_stride_bytes;
    if (view->format == SPARSE_MLA_FP8_DS_MLA)
        write_fp8_ds_mla(cache->records + offset, latent, rope, cache->rope_dim);
    else
        write_flat_bf16(cache->records + offset, latent, cache->latent_dim, rope, cache->rope_dim);
    return offset;
}

void kv_cache_upload_record(const struct kv_cache *cache, const struct device *device, int64_t offset)
{
    unsigned char *target = (unsigned char *)cache->view.data + offset;
    device_write(device, target, cache->records + offset, (size_t)cache->view.row_stride_bytes);
}

void kv_cache_upload(const struct kv_cache *cache, const struct device *device)
{
    size_t table_bytes = (size_t)cache->view.block_table_width * sizeof(int32_t);
    device_write(device, (void *)cache->view.data, cache->records, (size_t)pool_bytes(cache));
    device_write(device, (void *)cache->view.block_table, cache->block_table, table_bytes);
}
