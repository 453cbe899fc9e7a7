/* SPDX-License-Identifier: Apache-2.0 */
#include "safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool refuse(struct safetensors *file, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool refuse(struct safetensors *file, const char *format, ...)
{
    const size_t size = sizeof file->error, named = (size_t)snprintf(file->error, size, "%s: ", file->path);
    va_list list;
    va_start(list, format);
    if (named < size)
        vsnprintf(file->error + named, size - named, format, list);
    va_end(list);
    return false;
}

/* Reads to the end, which works for pipes too and needs no trust in a reported size. */
static bool read_all(struct safetensors *file, size_t *size)
{
    FILE *stream = fopen(file->path, "rb");
    size_t capacity = 1 << 20, got = 0;
    if (!stream)
        return refuse(file, "%s", strerror(errno));
    for (*size = 0;; *size += got) {
        if (!file->bytes || *size == capacity) {
            capacity *= file->bytes ? 2 : 1;
            unsigned char *grown = realloc(file->bytes, capacity);
            if (!grown)
                break;
            file->bytes = grown;
        }
        got = fread(file->bytes + *size, 1, capacity - *size, stream);
        if (got == 0)
            break;
    }
    bool ok = feof(stream) != 0;
    if (!ok)
        refuse(file, "%s", ferror(stream) ? strerror(errno) : "no memory for this file");
    fclose(stream);
    return ok;
}

static bool parse_header(struct safetensors *file, size_t size)
{
    uint64_t length = 0;
    if (size < 8)
        return refuse(file, "%zu bytes are too few for a safetensors file", size);
    for (int i = 7; i >= 0; i--)
        length = length << 8 | file->bytes[i];
    if (length > size - 8)
        return refuse(file, "header of %llu bytes in a file of %zu", (unsigned long long)length, size);
    file->data_offset = 8 + (size_t)length;
    file->data_size = size - file->data_offset;
    file->header = cJSON_ParseWithLength((const char *)file->bytes + 8, (size_t)length);
    if (!cJSON_IsObject(file->header))
        return refuse(file, "the header is not a JSON object");
    return true;
}

bool safetensors_open(struct safetensors *file, const char *path)
{
    size_t size = 0;
    memset(file, 0, sizeof *file);
    file->path = path;
    if (read_all(file, &size) && parse_header(file, size))
        return true;
    safetensors_close(file);
    return false;
}

void safetensors_close(struct safetensors *file)
{
    cJSON_Delete(file->header);
    free(file->bytes);
    file->header = NULL;
    file->bytes = NULL;
}

/* JSON numbers are doubles: only whole ones that a double holds exactly are taken. */
static bool whole_number(const cJSON *item, int64_t *value)
{
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0) || item->valuedouble > 9007199254740992.0)
        return false;
    *value = (int64_t)item->valuedouble;
    return (double)*value == item->valuedouble;
}

static int dtype_bytes(const char *dtype)
{
    static const struct {
        const char *name;
        int bytes;
    } table[] = {{"F64", 8}, {"I64", 8}, {"F32", 4}, {"I32", 4}, {"BF16", 2}, {"F16", 2}, {"I8", 1}, {"U8", 1}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(table[i].name, dtype) == 0)
            return table[i].bytes;
    return 0;
}

static bool read_shape(const cJSON *shape, struct safetensors_tensor *tensor)
{
    const cJSON *dim;
    int count = cJSON_IsArray(shape) ? cJSON_GetArraySize(shape) : -1;
    if (count < 0 || count > SAFETENSORS_MAX_DIMS)
        return false;
    tensor->num_dims = 0;
    tensor->count = 1;
    cJSON_ArrayForEach(dim, shape)
    {
        int64_t *value = &tensor->dims[tensor->num_dims++];
        if (!whole_number(dim, value) || __builtin_mul_overflow(tensor->count, *value, &tensor->count))
            return false;
    }
    return true;
}

bool safetensors_find(struct safetensors *file, const char *name, struct safetensors_tensor *tensor)
{
    const cJSON *entry = cJSON_GetObjectItemCaseSensitive(file->header, name);
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(entry, "dtype");
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
    int64_t begin = 0, end = 0, bytes = 0;
    if (!entry)
        return refuse(file, "no tensor named %s", name);
    if (!cJSON_IsString(dtype) || dtype_bytes(dtype->valuestring) == 0)
        return refuse(file, "%s: unknown dtype", name);
    if (!read_shape(cJSON_GetObjectItemCaseSensitive(entry, "shape"), tensor))
        return refuse(file, "%s: the shape is not a list of at most %d dimensions", name, SAFETENSORS_MAX_DIMS);
    if (cJSON_GetArraySize(offsets) != 2 || !whole_number(cJSON_GetArrayItem(offsets, 0), &begin) ||
        !whole_number(cJSON_GetArrayItem(offsets, 1), &end) || begin > end || (uint64_t)end > file->data_size)
        return refuse(file, "%s: data_offsets do not lie within the %zu bytes of data", name, file->data_size);
    if (__builtin_mul_overflow(tensor->count, (int64_t)dtype_bytes(dtype->valuestring), &bytes) || bytes != end - begin)
        return refuse(file, "%s: shape and dtype do not fit %lld bytes of data", name, (long long)(end - begin));
    tensor->dtype = dtype->valuestring;
    tensor->data = file->bytes + file->data_offset + begin;
    return true;
}

const char *safetensors_metadata(const struct safetensors *file, const char *key)
{
    const cJSON *metadata = cJSON_GetObjectItemCaseSensitive(file->header, "__metadata__");
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(metadata, key));
}
