/* SPDX-License-Identifier: Apache-2.0 */
#include "key.h"

#include <stdio.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define HASH_DIGITS 32
#define TEXT_OF(value) #value
#define TEXT(value) TEXT_OF(value)
#define SCHEMA_TEXT TEXT(SMLA_SCHEMA)

/* Parts are bounded by the callers' own limits, which SMLA_KEY_MAX exceeds. */
static void append(struct smla_key *key, const char *part)
{
    size_t length = strlen(part);
    if (length + 4 > SMLA_KEY_MAX - key->size)
        length = SMLA_KEY_MAX - key->size - 4;
    for (int i = 0; i < 4; i++)
        key->bytes[key->size++] = (unsigned char)(length >> (8 * i));
    memcpy(key->bytes + key->size, part, length);
    key->size += length;
}

void smla_key_make(struct smla_key *key, const char *digest, int target, const struct smla_options_list *options,
                   const char *variant)
{
    char number[32];
    memset(key, 0, sizeof *key);
    append(key, SCHEMA_TEXT);
    append(key, digest);
    snprintf(number, sizeof number, "sm_%d", target);
    append(key, number);
    for (int i = 0; i < options->count; i++)
        append(key, options->text[i]);
    append(key, variant);

    XXH128_hash_t hash = XXH3_128bits(key->bytes, key->size);
    key->hash = hash.low64;
    snprintf(key->file, sizeof key->file, "%016llx%016llx" SMLA_KEY_SUFFIX, (unsigned long long)hash.high64,
             (unsigned long long)hash.low64);
}

struct reader {
    const unsigned char *bytes;
    size_t left;
};

/* The next part, copied into `text` if it fits and is text. */
static bool next(struct reader *reader, char *text, size_t size)
{
    if (reader->left < 4)
        return false;
    const unsigned char *b = reader->bytes;
    size_t length = (size_t)b[0] | (size_t)b[1] << 8 | (size_t)b[2] << 16 | (size_t)b[3] << 24;
    reader->bytes += 4;
    reader->left -= 4;
    if (length > reader->left || length >= size || memchr(reader->bytes, 0, length))
        return false;
    memcpy(text, reader->bytes, length);
    text[length] = 0;
    reader->bytes += length;
    reader->left -= length;
    return true;
}

bool smla_key_parse(const unsigned char *bytes, size_t size, struct smla_key_parts *parts)
{
    struct reader reader = {bytes, size};
    char schema[32], part[SMLA_DEFINE_MAX];
    if (!next(&reader, schema, sizeof schema) || strcmp(schema, SCHEMA_TEXT) != 0 ||
        !next(&reader, parts->digest, sizeof parts->digest) || !next(&reader, parts->target, sizeof parts->target) ||
        !next(&reader, part, sizeof part))
        return false;
    while (reader.left)
        if (!next(&reader, part, sizeof part))
            return false;
    if (strlen(part) >= sizeof parts->variant)
        return false;
    strcpy(parts->variant, part);
    return true;
}

bool smla_key_is_file(const char *name)
{
    return strspn(name, "0123456789abcdef") == HASH_DIGITS && strcmp(name + HASH_DIGITS, SMLA_KEY_SUFFIX) == 0;
}
