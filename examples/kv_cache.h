/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine's cache writer does: rows of latent and rope become records in pages, and the pages of a request
 * lie anywhere in the pool. */
#ifndef EXAMPLES_KV_CACHE_H
#define EXAMPLES_KV_CACHE_H

#include "device.h"

#include <sparsemla/sparsemla.h>

/* Round to nearest even. */
uint16_t float_to_bf16(float value);
float bf16_to_float(uint16_t value);
/* The finite fp8 format; values past 448 become 448, NaN stays NaN. */
uint8_t float_to_e4m3(float value);

/* fp8_ds_mla by vLLM's rule: per 128 dims the scale max(amax / 448, FLT_MIN), and value / scale in e4m3. `rope` is
 * not read with rope_dim 0. */
void write_fp8_ds_mla(unsigned char record[656], const float latent[512], const float *rope, int rope_dim);
void write_flat_bf16(unsigned char *record, const float *latent, int latent_dim, const float *rope, int rope_dim);

struct kv_cache {
    sparse_mla_cache view; /* what the library gets: device pointers, block_table included */
    int latent_dim, rope_dim;
    unsigned char *records; /* host copy of view.data */
    int32_t *block_table;   /* host copy of view.block_table: the page of each 64 positions */
};

/* A cache of `capacity` positions of one request whose pages lie in shuffled order; format is
 * SPARSE_MLA_FP8_DS_MLA (latent_dim 512, rope_dim 64 or 0) or SPARSE_MLA_FLAT_BF16. */
void kv_cache_create(struct kv_cache *cache, const struct device *device, int format, int64_t capacity, int latent_dim,
                     int rope_dim);
void kv_cache_destroy(struct kv_cache *cache, const struct device *device);

/* Writes the host copy of one position; returns its byte offset in the pool. */
int64_t kv_cache_put(struct kv_cache *cache, int64_t position, const float *latent, const float *rope);
/* Copies one record, or everything, to the device. */
void kv_cache_upload_record(const struct kv_cache *cache, const struct device *device, int64_t offset);
void kv_cache_upload(const struct kv_cache *cache, const struct device *device);

/* A small random generator; the state is any number but 0. */
uint32_t random_bits(uint64_t *state);

#endif
