/* SPDX-License-Identifier: Apache-2.0 */
#include "call_file.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>

#define MAX_BYTES ((int64_t)1 << 33) /* of a tensor with its gaps */

static bool refuse(struct call_file *file, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool refuse(struct call_file *file, const char *format, ...)
{
    va_list list;
    const int used = snprintf(file->error, sizeof file->error, "%.300s: ", file->tensors.path);
    va_start(list, format);
    vsnprintf(file->error + used, sizeof file->error - (size_t)used, format, list);
    va_end(list);
    return false;
}

static const char *text_of(struct call_file *file, const char *prefix, const char *name)
{
    char key[64];
    snprintf(key, sizeof key, "%s%s", prefix, name);
    return safetensors_metadata(&file->tensors, key);
}

static bool whole(struct call_file *file, const char *prefix, const char *name, int64_t least, int64_t most,
                  int64_t *value)
{
    const char *text = text_of(file, prefix, name);
    char *end = NULL;
    errno = 0;
    const long long number = text ? strtoll(text, &end, 10) : 0;
    if (!text)
        return refuse(file, "no %s%s in the metadata; the file is no call that the library dumped", prefix, name);
    if (end == text || *end || errno || number < least || number > most)
        return refuse(file, "%s%s is \"%.40s\"; allowed: %lld to %lld", prefix, name, text, (long long)least,
                      (long long)most);
    *value = number;
    return true;
}

static bool real(struct call_file *file, const char *prefix, const char *name, float *value)
{
    const char *text = text_of(file, prefix, name);
    char *end = NULL;
    *value = text ? strtof(text, &end) : 0;
    if (!text || end == text || *end)
        return refuse(file, "%s%s is no number", prefix, name);
    return true;
}

struct field {
    const char *name;
    int64_t least, most;
    void *to;
    size_t bytes; /* 4 or 8 */
};

#define FIELD(from, name, least, most)                                                                                 \
    {                                                                                                                  \
#name, least, most, &(from)->name, sizeof(from)->name                                                          \
    }
#define STRIDE(from, name) FIELD(from, name, 0, MAX_BYTES)

static bool read_fields(struct call_file *file, const char *prefix, const struct field *fields, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int64_t value = 0;
        if (!whole(file, prefix, fields[i].name, fields[i].least, fields[i].most, &value))
            return false;
        if (fields[i].bytes == 8) {
            memcpy(fields[i].to, &value, sizeof value);
        } else {
            const int32_t narrow = (int32_t)(uint32_t)value;
            memcpy(fields[i].to, &narrow, sizeof narrow);
        }
    }
    return true;
}

static bool read_args(struct call_file *file)
{
    sparse_mla_decode_args *args = &file->args;
    const struct field fields[] = {
        FIELD(args, num_tokens, 1, 1 << 24),    FIELD(args, q_len, 1, 1 << 24),      FIELD(args, num_heads, 1, 128),
        FIELD(args, latent_dim, 64, 512),       FIELD(args, rope_dim, 0, 64),        FIELD(args, value_dim, 64, 576),
        FIELD(args, flags, 0, UINT32_MAX),      FIELD(args, q_dtype, 0, 2),          FIELD(args, out_dtype, 0, 2),
        STRIDE(args, q_latent_request_stride),  STRIDE(args, q_latent_token_stride), STRIDE(args, q_latent_head_stride),
        STRIDE(args, q_rope_request_stride),    STRIDE(args, q_rope_token_stride),   STRIDE(args, q_rope_head_stride),
        STRIDE(args, out_request_stride),       STRIDE(args, out_token_stride),      STRIDE(args, out_head_stride),
        STRIDE(args, lse_request_stride),       STRIDE(args, lse_token_stride),      STRIDE(args, lse_head_stride),
        FIELD(args, num_requests, 1, INT32_MAX)};
    sparse_mla_decode_args_init(args);
    if (!read_fields(file, "", fields, sizeof fields / sizeof *fields) || !real(file, "", "scale", &args->scale))
        return false;
    return args->num_tokens % args->q_len == 0 || refuse(file, "q_len does not divide num_tokens");
}

static bool read_cache(struct call_file *file, const char *prefix, sparse_mla_cache *cache)
{
    const struct field fields[] = {FIELD(cache, num_slots, 0, INT32_MAX),
                                   STRIDE(cache, page_stride_bytes),
                                   STRIDE(cache, row_stride_bytes),
                                   FIELD(cache, format, 0, SPARSE_MLA_Q8_0),
                                   FIELD(cache, page_size, 1, INT32_MAX),
                                   FIELD(cache, latent_offset_bytes, 0, INT32_MAX),
                                   FIELD(cache, rope_offset_bytes, -1, INT32_MAX),
                                   FIELD(cache, topk, 1, INT32_MAX),
                                   STRIDE(cache, indices_request_stride),
                                   STRIDE(cache, indices_token_stride),
                                   FIELD(cache, length_mode, 0, 1),
                                   FIELD(cache, block_table_width, 0, INT32_MAX),
                                   STRIDE(cache, block_table_stride)};
    sparse_mla_cache_init(cache);
    return read_fields(file, prefix, fields, sizeof fields / sizeof *fields) &&
           real(file, prefix, "tensor_scale", &cache->tensor_scale);
}

/* With the sentence of the safetensors reader. */
static bool look_up(struct call_file *file, const char *name, struct safetensors_tensor *tensor)
{
    if (safetensors_find(&file->tensors, name, tensor))
        return true;
    snprintf(file->error, sizeof file->error, "%s", file->tensors.error);
    return false;
}

static bool find(struct call_file *file, const char *name, const char *dtype, struct safetensors_tensor *tensor)
{
    if (!look_up(file, name, tensor))
        return false;
    if (strcmp(tensor->dtype, dtype) != 0)
        return refuse(file, "%s is %.10s; it must be %s", name, tensor->dtype, dtype);
    return true;
}

/* Bytes that the runs span; false when they are too many. */
static bool span(const int64_t extents[3], const int64_t steps[3], int64_t width, int64_t *bytes)
{
    int64_t total = width;
    for (int i = 0; i < 3; i++) {
        int64_t way;
        if (extents[i] > 1 &&
            (__builtin_mul_overflow(extents[i] - 1, steps[i], &way) || __builtin_add_overflow(total, way, &total)))
            return false;
    }
    *bytes = total;
    return total <= MAX_BYTES;
}

/* A tensor of the file with `extents` runs of `width` bytes, which go where `steps` say. */
static bool place(struct call_file *file, const char *name, const char *dtype, int element, const int64_t extents[3],
                  const int64_t steps[3], int64_t width, const void **pointer)
{
    struct safetensors_tensor tensor;
    struct placed *placed = &file->placed[file->num_placed];
    int64_t rows, bytes;
    if (!find(file, name, dtype, &tensor))
        return false;
    if (__builtin_mul_overflow(extents[0] * extents[1], extents[2], &rows) ||
        __builtin_mul_overflow(rows, width, &bytes) || bytes != tensor.count * element)
        return refuse(file, "%s has %lld bytes, which are not those of the call", name,
                      (long long)(tensor.count * element));
    *placed = (struct placed){
        tensor.data, rows, width, {extents[0], extents[1], extents[2]}, {steps[0], steps[1], steps[2]}, 0, pointer};
    if (!span(extents, steps, width, &placed->bytes))
        return refuse(file, "%s: its strides span more than 8 GiB", name);
    file->num_placed += pointer != NULL;
    return true;
}

static bool is_there(const struct call_file *file, const char *name)
{
    struct safetensors copy = file->tensors;
    struct safetensors_tensor tensor;
    return safetensors_find(&copy, name, &tensor) || !strstr(copy.error, "no tensor named");
}

/* Many tensors may be absent from a call; those of this one must be there. */
static bool all_there(struct call_file *file)
{
    struct safetensors_tensor tensor;
    const char *names = text_of(file, "", "tensors");
    char name[64];
    int length;
    if (!names)
        return refuse(file, "no tensors in the metadata; the file is no call that the library dumped");
    for (; sscanf(names, "%63s%n", name, &length) == 1; names += length)
        if (!look_up(file, name, &tensor))
            return false;
    return true;
}

static bool place_flat(struct call_file *file, const char *prefix, const char *name, const char *dtype, int64_t count,
                       const void **pointer)
{
    char key[64];
    const int64_t extents[3] = {1, 1, 1}, steps[3] = {0};
    snprintf(key, sizeof key, "%s%s", prefix, name);
    return !is_there(file, key) || place(file, key, dtype, 4, extents, steps, 4 * count, pointer);
}

/* How wide a record is, the file says. */
static bool place_records(struct call_file *file, const char *prefix, sparse_mla_cache *cache)
{
    struct safetensors_tensor tensor;
    char key[64];
    const bool pages = cache->format == SPARSE_MLA_FP8_V4;
    const int64_t num_pages = (cache->num_slots + cache->page_size - 1) / cache->page_size;
    const int64_t rows = pages ? num_pages : cache->num_slots;
    snprintf(key, sizeof key, "%s%s", prefix, pages ? "pages" : "rows");
    if (!find(file, key, "U8", &tensor))
        return false;
    if (tensor.num_dims != 2 || tensor.dims[0] != rows || tensor.dims[1] > 1 << 30)
        return refuse(file, "%s has not the shape of %lld records", key, (long long)rows);
    if (rows == 0)
        return true;
    const int64_t width = tensor.dims[1];
    if (pages && width < (int64_t)cache->page_size * 584)
        return refuse(file, "%s: %lld bytes are less than a page", key, (long long)width);
    /* No record of any format ends further behind its offsets: what the file lacks is 0. */
    const int32_t offset =
        cache->latent_offset_bytes > cache->rope_offset_bytes ? cache->latent_offset_bytes : cache->rope_offset_bytes;
    const int64_t least = (int64_t)offset + 2048;
    struct placed *placed = &file->placed[file->num_placed++];
    const int64_t in_page = pages || cache->num_slots < cache->page_size ? rows : cache->page_size;
    *placed = (struct placed){tensor.data,
                              rows,
                              width,
                              {num_pages, pages ? 1 : in_page, 1},
                              {cache->page_stride_bytes, cache->row_stride_bytes, 0},
                              0,
                              &cache->data};
    if (!span(placed->extents, placed->steps, width > least ? width : least, &placed->bytes))
        return refuse(file, "%s: its strides span more than 8 GiB", key);
    return true;
}

static bool place_cache(struct call_file *file, const char *prefix, sparse_mla_cache *cache)
{
    const sparse_mla_decode_args *args = &file->args;
    const int64_t requests = args->num_tokens / args->q_len;
    const int64_t extents[3] = {requests, args->q_len, 1};
    const int64_t steps[3] = {4 * cache->indices_request_stride, 4 * cache->indices_token_stride, 0};
    const int64_t table_extents[3] = {args->num_requests, 1, 1}, table_steps[3] = {4 * cache->block_table_stride};
    char indices[32], table[32];
    snprintf(indices, sizeof indices, "%sindices", prefix);
    snprintf(table, sizeof table, "%sblock_table", prefix);
    return place_records(file, prefix, cache) &&
           (!is_there(file, indices) ||
            place(file, indices, "I32", 4, extents, steps, 4 * (int64_t)cache->topk, (const void **)&cache->indices)) &&
           place_flat(file, prefix, "lengths", "I32",
                      cache->length_mode == SPARSE_MLA_LENGTH_PER_TOKEN ? args->num_tokens : args->num_requests,
                      (const void **)&cache->lengths) &&
           (!is_there(file, table) || place(file, table, "I32", 4, table_extents, table_steps,
                                            4 * (int64_t)cache->block_table_width, (const void **)&cache->block_table));
}

/* A tensor with a row per head. `to` NULL: an output, of which `data` is all that is stored. */
static bool place_heads(struct call_file *file, const char *name, int dtype, int width, const int64_t strides[3],
                        const void **to, const unsigned char **data, int64_t *bytes)
{
    static const char *const names[] = {"BF16", "F16", "F32"};
    const sparse_mla_decode_args *args = &file->args;
    const int element = dtype_bytes(dtype);
    const int64_t extents[3] = {args->num_tokens / args->q_len, args->q_len, args->num_heads};
    const int64_t steps[3] = {element * strides[0], element * strides[1], element * strides[2]};
    if (bytes && !span(extents, steps, (int64_t)width * element, bytes))
        return refuse(file, "the strides of %s span more than 8 GiB", name);
    if (data && !is_there(file, name))
        return true;
    if (!place(file, name, names[dtype], element, extents, steps, (int64_t)width * element, to))
        return false;
    if (data)
        *data = file->placed[file->num_placed].data;
    return true;
}

static bool place_tensors(struct call_file *file)
{
    sparse_mla_decode_args *args = &file->args;
    const int64_t latent[3] = {args->q_latent_request_stride, args->q_latent_token_stride, args->q_latent_head_stride};
    const int64_t rope[3] = {args->q_rope_request_stride, args->q_rope_token_stride, args->q_rope_head_stride};
    const int64_t out[3] = {args->out_request_stride, args->out_token_stride, args->out_head_stride};
    const int64_t lse[3] = {args->lse_request_stride, args->lse_token_stride, args->lse_head_stride};
    file->lse_bytes = (size_t)args->num_tokens * (size_t)args->num_heads * sizeof(float);
    return place_flat(file, "", "request_of_token", "I32", args->num_tokens, (const void **)&args->request_of_token) &&
           place_flat(file, "", "sink", "F32", args->num_heads, (const void **)&args->sink) &&
           place_cache(file, "main.", &file->caches[0]) &&
           (!args->extra_cache || place_cache(file, "extra.", &file->caches[1])) &&
           place_heads(file, "q_latent", args->q_dtype, args->latent_dim, latent, &args->q_latent, NULL, NULL) &&
           (!args->rope_dim ||
            place_heads(file, "q_rope", args->q_dtype, args->rope_dim, rope, &args->q_rope, NULL, NULL)) &&
           place_heads(file, "out", args->out_dtype, args->value_dim, out, NULL, &file->out, &file->out_span) &&
           place_heads(file, "lse", SPARSE_MLA_F32, 1, lse, NULL, &file->lse, &file->lse_span);
}

static bool read_call(struct call_file *file)
{
    const char *content = text_of(file, "", "content"), *backend = text_of(file, "", "backend");
    int64_t version;
    if (!content || strcmp(content, "sparsemla call 1") != 0)
        return refuse(file, "its content is \"%.40s\"; it must be \"sparsemla call 1\"", content ? content : "");
    if (!all_there(file) || !read_args(file) || !read_cache(file, "main.", &file->caches[0]) ||
        !whole(file, "", "library_version", 0, INT32_MAX, &version))
        return false;
    file->same_host = backend && strcmp(backend, "host") == 0 && version == sparse_mla_version();
    file->args.main_cache = &file->caches[0];
    if (text_of(file, "extra.", "format")) {
        if (!read_cache(file, "extra.", &file->caches[1]))
            return false;
        file->args.extra_cache = &file->caches[1];
    }
    return place_tensors(file);
}

bool call_file_open(struct call_file *file, const char *path)
{
    memset(file, 0, sizeof *file);
    if (!safetensors_open(&file->tensors, path)) {
        snprintf(file->error, sizeof file->error, "%s", file->tensors.error);
        return false;
    }
    if (read_call(file))
        return true;
    safetensors_close(&file->tensors);
    return false;
}

void call_file_close(struct call_file *file)
{
    safetensors_close(&file->tensors);
}

static void *spread(const struct placed *placed, const struct device *device)
{
    unsigned char *bytes = host_alloc((size_t)placed->bytes);
    int64_t row = 0;
    for (int64_t i = 0; i < placed->extents[0]; i++)
        for (int64_t j = 0; j < placed->extents[1]; j++)
            for (int64_t k = 0; k < placed->extents[2] && row < placed->rows; k++, row++)
                memcpy(bytes + i * placed->steps[0] + j * placed->steps[1] + k * placed->steps[2],
                       placed->data + row * placed->width, (size_t)placed->width);
    void *pointer = device_upload(device, bytes, (size_t)placed->bytes);
    free(bytes);
    return pointer;
}

static void *nothing_yet(const struct device *device, size_t bytes)
{
    void *values = host_alloc(bytes);
    memset(values, 0xFF, bytes);
    void *pointer = device_upload(device, values, bytes);
    free(values);
    return pointer;
}

/* The same field of the copy. */
static void point(const struct call_file *file, struct loaded_call *loaded, const struct placed *placed, void *to)
{
    const char *at = (const char *)placed->pointer, *args = (const char *)&file->args;
    const char *caches = (const char *)file->caches;
    if (at >= args && at < args + sizeof file->args)
        memcpy((char *)&loaded->args + (at - args), &to, sizeof to);
    else
        memcpy((char *)loaded->caches + (at - caches), &to, sizeof to);
}

void call_file_load(const struct call_file *file, const struct device *device, struct loaded_call *loaded)
{
    *loaded = (struct loaded_call){.args = file->args, .caches = {file->caches[0], file->caches[1]}};
    loaded->args.main_cache = &loaded->caches[0];
    if (file->args.extra_cache)
        loaded->args.extra_cache = &loaded->caches[1];
    for (int i = 0; i < file->num_placed; i++) {
        void *pointer = loaded->owned[loaded->num_owned++] = spread(&file->placed[i], device);
        point(file, loaded, &file->placed[i], pointer);
    }
    loaded->out_bytes = (size_t)file->out_span;
    loaded->args.out = loaded->owned[loaded->num_owned++] = nothing_yet(device, loaded->out_bytes);
    loaded->lse_bytes = (size_t)file->lse_span;
    if (file->lse || !file->out)
        loaded->args.lse = loaded->owned[loaded->num_owned++] = nothing_yet(device, loaded->lse_bytes);
}

void call_file_unload(const struct device *device, struct loaded_call *loaded)
{
    while (loaded->num_owned)
        device_free(device, loaded->owned[--loaded->num_owned]);
}
