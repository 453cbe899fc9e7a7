/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz target: entries of the cache and the keys inside them, from any bytes. */
#include "target.h"

/* The sources themselves: their branches are counted, and their checksum makes an input worth parsing. */
#include "../../src/entry.c"
#include "../../src/key.c"

/* What was accepted is what smla_entry_write() makes of it, to the byte. */
static void accepted(const unsigned char *bytes, size_t size, const struct smla_entry *entry)
{
    static struct smla_key key;
    struct smla_key_parts parts;
    size_t again_size;
    REQUIRE(entry->key == bytes + SMLA_ENTRY_HEADER && entry->cubin == entry->key + entry->key_size);
    REQUIRE(entry->cubin_size > 0 && entry->cubin + entry->cubin_size == bytes + size);
    REQUIRE(entry->key_size <= sizeof key.bytes);
    memcpy(key.bytes, entry->key, entry->key_size);
    key.size = entry->key_size;
    const struct smla_cubin cubin = {(void *)(uintptr_t)entry->cubin, entry->cubin_size, entry->nvrtc_version};
    void *again = smla_entry_write(&key, &cubin, &again_size);
    REQUIRE(again && again_size == size && memcmp(again, bytes, size) == 0);
    free(again);
    memset(&parts, 'x', sizeof parts);
    if (smla_key_parse(entry->key, entry->key_size, &parts))
        REQUIRE(memchr(parts.digest, 0, sizeof parts.digest) && memchr(parts.target, 0, sizeof parts.target) &&
                memchr(parts.variant, 0, sizeof parts.variant));
}

static void parse(const unsigned char *bytes, size_t size)
{
    struct smla_entry entry;
    if (smla_entry_parse(bytes, size, &entry) == SMLA_ENTRY_OK)
        accepted(bytes, size, &entry);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct smla_key_parts parts;
    (void)smla_key_parse(data, size, &parts);
    parse(data, size);
    if (size >= SMLA_ENTRY_HEADER) { /* as if it had been written so: else the checksum hides what comes after it */
        unsigned char *copy = malloc(size);
        REQUIRE(copy);
        memcpy(copy, data, size);
        memcpy(copy, MAGIC, 8);
        checksum(copy, size, copy + CHECKSUM_OFFSET);
        parse(copy, size);
        free(copy);
    }
    return 0;
}
