/* SPDX-License-Identifier: Apache-2.0 */
#include "entry.h"

#include <stdlib.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define MAGIC "SMLAcub\n"
#define CHECKSUM_OFFSET 32

static void put(unsigned char *at, int bytes, uint64_t value)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (unsigned char)(value >> (8 * i));
}

static uint64_t get(const unsigned char *at, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

static void checksum(const unsigned char *bytes, size_t size, unsigned char sum[16])
{
    /* Over two ranges at once: the hash of the first seeds that of the second. */
    uint64_t header = XXH3_64bits(bytes, CHECKSUM_OFFSET);
    XXH128_hash_t rest =
        XXH3_128bits_withSeed(bytes + SMLA_ENTRY_HEADER, size - SMLA_ENTRY_HEADER, (XXH64_hash_t)header);
    put(sum, 8, rest.low64);
    put(sum + 8, 8, rest.high64);
}

void smla_cubin_free(struct smla_cubin *cubin)
{
    free(cubin->data);
    memset(cubin, 0, sizeof *cubin);
}

enum smla_entry_result smla_entry_parse(const void *bytes, size_t size, struct smla_entry *entry)
{
    const unsigned char *at = bytes;
    unsigned char sum[16];
    if (size < SMLA_ENTRY_HEADER || size > SMLA_ENTRY_MAX || memcmp(at, MAGIC, 8) != 0)
        return SMLA_ENTRY_DAMAGED;
    if (get(at + 8, 4) != SMLA_SCHEMA)
        return SMLA_ENTRY_OTHER_SCHEMA;
    uint64_t key_size = get(at + 16, 4), cubin_size = get(at + 24, 8), body = size - SMLA_ENTRY_HEADER;
    if (key_size > SMLA_KEY_MAX || key_size > body || cubin_size != body - key_size || cubin_size == 0 ||
        get(at + 20, 4) != 0)
        return SMLA_ENTRY_DAMAGED;
    checksum(at, size, sum);
    if (memcmp(at + CHECKSUM_OFFSET, sum, sizeof sum) != 0)
        return SMLA_ENTRY_DAMAGED;
    *entry = (struct smla_entry){
        .key = at + SMLA_ENTRY_HEADER,
        .key_size = (size_t)key_size,
        .cubin = at + SMLA_ENTRY_HEADER + key_size,
        .cubin_size = (size_t)cubin_size,
        .nvrtc_version = (int)get(at + 12, 4),
    };
    return SMLA_ENTRY_OK;
}

void *smla_entry_write(const struct smla_key *key, const struct smla_cubin *cubin, size_t *size)
{
    *size = SMLA_ENTRY_HEADER + key->size + cubin->size;
    unsigned char *at = calloc(*size, 1);
    if (!at)
        return NULL;
    memcpy(at, MAGIC, 8);
    put(at + 8, 4, SMLA_SCHEMA);
    put(at + 12, 4, (uint64_t)cubin->nvrtc_version);
    put(at + 16, 4, key->size);
    put(at + 24, 8, cubin->size);
    memcpy(at + SMLA_ENTRY_HEADER, key->bytes, key->size);
    memcpy(at + SMLA_ENTRY_HEADER + key->size, cubin->data, cubin->size);
    checksum(at, *size, at + CHECKSUM_OFFSET);
    return at;
}
