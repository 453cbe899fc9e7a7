/* SPDX-License-Identifier: Apache-2.0 */
/* The identity of a compiled kernel. Pure.
 *
 * A key is a list of parts, each a little-endian uint32 length and its bytes: schema, digest of the embedded
 * sources, target, compiler options in order, variant name. Its hash names the file in the cache; the key that
 * is stored inside decides whether the file is a hit. Not in it: NVRTC version (a warm start must not need
 * NVRTC), driver, GPU name, paths. */
#ifndef SMLA_KEY_H
#define SMLA_KEY_H

#include "program.h"

#define SMLA_SCHEMA 1 /* of keys and entries; grows with every change of either */
#define SMLA_OPTIONS_MAX (SMLA_VARIANT_DEFINES + 4)
#define SMLA_KEY_MAX 4096
#define SMLA_KEY_FILE_MAX 48
#define SMLA_KEY_SUFFIX ".cubin"

/* Compiler options that make a difference to the cubin, in order, without the target. */
struct smla_options_list {
    char text[SMLA_OPTIONS_MAX][SMLA_DEFINE_MAX];
    int count;
};

struct smla_key {
    unsigned char bytes[SMLA_KEY_MAX];
    size_t size;
    uint64_t hash;                /* for choosing among locks */
    char file[SMLA_KEY_FILE_MAX]; /* 32 hex digits and the suffix */
};

/* What can be read back from a key. */
struct smla_key_parts {
    char digest[40];
    char target[16]; /* "sm_120" */
    char variant[SMLA_VARIANT_NAME_MAX];
};

void smla_key_make(struct smla_key *key, const char *digest, int target, const struct smla_options_list *options,
                   const char *variant);

/* False unless `bytes` is a well-formed key of this schema. Takes any bytes. */
bool smla_key_parse(const unsigned char *bytes, size_t size, struct smla_key_parts *parts);

/* Whether a file name is one that smla_key_make() writes. */
bool smla_key_is_file(const char *name);

#endif
