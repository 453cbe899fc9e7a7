/* SPDX-License-Identifier: Apache-2.0 */
/* A compiled kernel and its form in a file. Pure.
 *
 *     0  8  magic          16  4  size of the key      32 16  XXH3-128 of all other bytes
 *     8  4  schema         20  4  zero                 48     key, then cubin, to the end of the file
 *    12  4  NVRTC version  24  8  size of the cubin    Integers are little-endian. */
#ifndef SMLA_ENTRY_H
#define SMLA_ENTRY_H

#include "key.h"

#define SMLA_ENTRY_HEADER 48
#define SMLA_ENTRY_MAX (32u << 20) /* larger files are damaged */

/* data is owned and freed by smla_cubin_free(). */
struct smla_cubin {
    void *data; /* NULL: none */
    size_t size;
    int nvrtc_version; /* 1000 * major + 10 * minor of the compiler that made it */
};

void smla_cubin_free(struct smla_cubin *cubin);

/* Views into the parsed bytes. */
struct smla_entry {
    const unsigned char *key;
    size_t key_size;
    const unsigned char *cubin;
    size_t cubin_size;
    int nvrtc_version;
};

enum smla_entry_result { SMLA_ENTRY_OK, SMLA_ENTRY_DAMAGED, SMLA_ENTRY_OTHER_SCHEMA };

/* Takes any bytes; anything but what smla_entry_write() wrote is refused. */
enum smla_entry_result smla_entry_parse(const void *bytes, size_t size, struct smla_entry *entry);

/* The bytes of an entry, to be freed; NULL without memory. */
void *smla_entry_write(const struct smla_key *key, const struct smla_cubin *cubin, size_t *size);

#endif
