/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of a problem share. */
#ifndef TESTS_GPU_PROBLEM_PARTS_H
#define TESTS_GPU_PROBLEM_PARTS_H

#include "problem.h"

#include <stdio.h>

/* arena.c */

/* Bytes of 0xFF between guards. The address is a multiple of `alignment` and, in a tight arena, of no more. */
void *arena_take(struct arena *arena, const char *name, size_t bytes, size_t alignment);
/* The same for what may be larger than the host's memory: only what is marked is uploaded, and nothing is read back. */
void *arena_take_sparse(struct arena *arena, const char *name, size_t bytes, size_t alignment);
void arena_mark(struct arena *arena, const void *host, size_t bytes); /* of no effect in other blocks */
void arena_clear(struct arena *arena, bool tight);
void arena_upload_all(struct arena *arena);
void arena_upload(struct arena *arena, const void *host, size_t bytes);
size_t arena_offset(const struct arena *arena, const void *host);
void arena_upload_from(struct arena *arena, size_t offset); /* all that was taken from there on */
void *arena_device(const struct arena *arena, const void *host);
/* Waits; then what the device holds, at the same offsets. */
unsigned char *arena_read_back(struct arena *arena);
/* How many buffers and guards are no longer what was uploaded; says so on stderr. */
long arena_changed(const struct arena *arena);

/* problem_cache.c: format, strides and data of a cache, of which only the selected slots are written */
void make_cache(struct problem *p, sparse_mla_cache *cache, const struct key_spec *keys, const bool *selected,
                uint64_t *seed);
/* What its scales do to a dim of a key. */
double key_factor(const struct spec *spec, int dim);

/* problem_keys.c: everything of a cache */
void make_keys(struct problem *p, sparse_mla_cache *cache, const struct key_spec *keys, uint64_t *seed);

/* encode.c */
uint16_t encode_bf16(float value);
uint16_t encode_f16(float value);
uint8_t encode_e4m3(float value); /* values past 448 become 448 */
void encode(void *tensor, int dtype, int64_t element, float value);
int dtype_bytes(int dtype);
/* `count` neighbours of a fixed table of N(0, 1) draws from a random place. */
void random_row(void *to, int dtype, int count, bool clamp, uint64_t *seed);
/* The same backwards, for keys: what they have in common with queries by chance is not more than chance. */
void random_values(float *to, int count, uint64_t *seed);

static inline float clamped(const struct spec *spec, double value)
{
    return (float)(!spec->clamp ? value : value > 1 ? 1 : value < -1 ? -1 : value);
}

#endif
