/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors are stored without gaps, whatever their strides, which are metadata. Of a cache only the records that the
 * call reads are stored, in pages that are renumbered in their order: indices, or the block table, follow, and what was
 * a fault stays one. */
#define _GNU_SOURCE
#include "dump.h"

#include "check.h"
#include "format.h"
#include "host.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_TENSORS = 16, HEADER_BYTES = 16384 };
#define MAX_BYTES ((int64_t)1 << 30) /* of a file */

struct tensor {
    const char *prefix, *name, *dtype;
    int64_t dims[3]; /* 0: no such dim */
    char *data;
    int64_t bytes;
};

struct smla_recording {
    const struct smla_driver *driver; /* NULL: host */
    const struct smla_place *place;
    struct smla_call given; /* with the caller's pointers */
    struct smla_call call;  /* indices, lengths and tables are those of `tensors` */
    struct tensor tensors[MAX_TENSORS];
    int count;
    int64_t bytes;
    uint32_t faults;
    const char *reason; /* why it cannot be written; NULL: nothing is wrong */
    char header[HEADER_BYTES];
    size_t header_size;
};

static const char *const dtypes[] = {"BF16", "F16", "F32"};

static void read_bytes(struct smla_recording *r, void *to, const void *from, int64_t bytes)
{
    if (r->reason || bytes == 0)
        return;
    if (!r->driver)
        memcpy(to, from, (size_t)bytes);
    else if (smla_kernel_read(r->driver, r->place, to, from, (size_t)bytes) != SPARSE_MLA_OK)
        r->reason = sparse_mla_last_error();
}

static char *add(struct smla_recording *r, const char *prefix, const char *name, const char *dtype, int64_t a,
                 int64_t b, int64_t c, int64_t element)
{
    int64_t bytes;
    if (r->reason)
        return NULL;
    if (__builtin_mul_overflow(a * (b ? b : 1), (c ? c : 1) * element, &bytes) || bytes > MAX_BYTES - r->bytes) {
        r->reason = "it has more than 1 GiB";
        return NULL;
    }
    struct tensor *tensor = &r->tensors[r->count];
    *tensor = (struct tensor){prefix, name, dtype, {a, b, c}, calloc(1, (size_t)bytes + 1), bytes};
    if (!tensor->data) {
        r->reason = "no memory";
        return NULL;
    }
    r->count++;
    r->bytes += bytes;
    return tensor->data;
}

static const void *add_flat(struct smla_recording *r, const char *prefix, const char *name, const char *dtype,
                            const void *from, int64_t count)
{
    char *to = from ? add(r, prefix, name, dtype, count, 0, 0, 4) : NULL;
    if (to)
        read_bytes(r, to, from, 4 * count);
    return to;
}

/* Rows of `width` elements, of which a head has one; strides of request, token and head. */
static char *add_rows(struct smla_recording *r, const char *prefix, const char *name, const char *dtype, int heads,
                      int64_t width, int element, const void *from, const int64_t strides[3])
{
    const sparse_mla_decode_args *args = &r->given.args;
    char *const data = heads ? add(r, prefix, name, dtype, args->num_tokens, heads, width == 1 ? 0 : width, element)
                             : add(r, prefix, name, dtype, args->num_tokens, width, 0, element);
    char *to = data;
    for (int32_t token = 0; to && token < args->num_tokens; token++)
        for (int head = 0; head < (heads ? heads : 1); head++, to += width * element)
            read_bytes(r, to,
                       (const char *)from + element * (token / args->q_len * strides[0] +
                                                       token % args->q_len * strides[1] + head * strides[2]),
                       width * element);
    return data;
}

static int compare(const void *a, const void *b)
{
    const int32_t first = *(const int32_t *)a, second = *(const int32_t *)b;
    return (first > second) - (first < second);
}

static int32_t unique(int32_t *values, int32_t count)
{
    int32_t kept = 0;
    if (count)
        qsort(values, (size_t)count, sizeof *values, compare);
    for (int32_t i = 0; i < count; i++)
        if (kept == 0 || values[kept - 1] != values[i])
            values[kept++] = values[i];
    return kept;
}

/* Ascending; to be freed. */
static int32_t *slots_of(struct smla_recording *r, const sparse_mla_cache *cache, int32_t *count)
{
    int64_t total = 0, capacity = 4096;
    int32_t *slots = malloc((size_t)capacity * sizeof *slots);
    for (int32_t token = 0; slots && token < r->call.args.num_tokens; token++) {
        if (capacity - total < cache->topk) {
            total = unique(slots, (int32_t)total);
            capacity = 2 * total + cache->topk;
            int32_t *grown = capacity < INT32_MAX ? realloc(slots, (size_t)capacity * sizeof *slots) : NULL;
            if (!grown)
                free(slots);
            slots = grown;
        }
        if (slots)
            total += smla_host_slots(&r->call, cache, token, slots + total, &r->faults);
    }
    *count = slots ? unique(slots, (int32_t)total) : 0;
    if (!slots)
        r->reason = "no memory";
    return slots;
}

static int32_t new_page(const int32_t *pages, int32_t num_pages, int32_t page)
{
    const int32_t *found = num_pages ? bsearch(&page, pages, (size_t)num_pages, sizeof page, compare) : NULL;
    return found ? (int32_t)(found - pages) : -1;
}

static void copy_records(struct smla_recording *r, const char *prefix, const sparse_mla_cache *cache,
                         const int32_t *slots, int32_t num_slots, const int32_t *pages, int32_t num_pages,
                         int64_t new_slots)
{
    const sparse_mla_decode_args *args = &r->call.args;
    const bool whole = smla_format_get(cache->format)->page_scale_bytes > 0;
    const int64_t bytes = whole ? smla_format_page_bytes(cache, args->latent_dim, args->rope_dim)
                                : smla_format_read_bytes(cache, args->latent_dim, args->rope_dim);
    const char *data = cache->data;
    char *to = add(r, prefix, whole ? "pages" : "rows", "U8", whole ? num_pages : new_slots, bytes, 0, 1);
    if (!to)
        return;
    for (int32_t i = 0; whole && i < num_pages; i++)
        read_bytes(r, to + i * bytes, data + pages[i] * cache->page_stride_bytes, bytes);
    for (int32_t i = 0; !whole && i < num_slots; i++) {
        const int32_t page = slots[i] / cache->page_size, row = slots[i] % cache->page_size;
        read_bytes(r, to + ((int64_t)new_page(pages, num_pages, page) * cache->page_size + row) * bytes,
                   data + page * cache->page_stride_bytes + row * cache->row_stride_bytes, bytes);
    }
}

static void renumber(int32_t *values, int64_t count, const int32_t *pages, int32_t num_pages, int32_t page_size)
{
    for (int64_t i = 0; i < count; i++) {
        if (values[i] < 0)
            continue;
        const int32_t page = new_page(pages, num_pages, values[i] / page_size);
        values[i] = page < 0 ? INT32_MAX : page * page_size + values[i] % page_size;
    }
}

static void record_cache(struct smla_recording *r, const char *prefix, const sparse_mla_cache *given,
                         sparse_mla_cache *cache)
{
    const sparse_mla_decode_args *args = &r->call.args;
    const int64_t strides[3] = {given->indices_request_stride, given->indices_token_stride, 0};
    char *indices = NULL, *table = NULL;
    int32_t num_slots;
    if (given->indices)
        indices = add_rows(r, prefix, "indices", "I32", 0, given->topk, 4, given->indices, strides);
    cache->indices = (const int32_t *)indices;
    cache->indices_token_stride = cache->topk;
    cache->indices_request_stride = (int64_t)cache->topk * args->q_len;
    cache->lengths =
        add_flat(r, prefix, "lengths", "I32", given->lengths,
                 given->length_mode == SPARSE_MLA_LENGTH_PER_TOKEN ? args->num_tokens : args->num_requests);
    if (given->block_table)
        table = add(r, prefix, "block_table", "I32", args->num_requests, given->block_table_width, 0, 4);
    for (int32_t row = 0; table && row < args->num_requests; row++)
        read_bytes(r, table + 4 * (int64_t)row * given->block_table_width,
                   given->block_table + row * given->block_table_stride, 4 * (int64_t)given->block_table_width);
    cache->block_table = (const int32_t *)table;
    cache->block_table_stride = cache->block_table_width;
    int32_t *slots = r->reason ? NULL : slots_of(r, cache, &num_slots);
    int32_t *pages = slots ? malloc(((size_t)num_slots + 1) * sizeof *pages) : NULL;
    if (slots && !pages)
        r->reason = "no memory";
    if (pages) {
        for (int32_t i = 0; i < num_slots; i++)
            pages[i] = slots[i] / cache->page_size;
        const int32_t num_pages = unique(pages, num_slots);
        /* The last page of the cache may be cut off by num_slots, and stays the last. */
        const int64_t cut = num_pages ? ((int64_t)pages[num_pages - 1] + 1) * cache->page_size - cache->num_slots : 0;
        const int64_t new_slots = (int64_t)num_pages * cache->page_size - (cut > 0 ? cut : 0);
        copy_records(r, prefix, cache, slots, num_slots, pages, num_pages, new_slots);
        cache->num_slots = new_slots;
        if (table)
            renumber((int32_t *)table, (int64_t)args->num_requests * cache->block_table_width, pages, num_pages, 1);
        else if (indices)
            renumber((int32_t *)indices, (int64_t)args->num_tokens * cache->topk, pages, num_pages, cache->page_size);
    }
    free(pages);
    free(slots);
}

static void record_inputs(struct smla_recording *r)
{
    const sparse_mla_decode_args *args = &r->given.args;
    const int element = smla_dtype_bytes(args->q_dtype);
    const int64_t latent[3] = {args->q_latent_request_stride, args->q_latent_token_stride, args->q_latent_head_stride};
    const int64_t rope[3] = {args->q_rope_request_stride, args->q_rope_token_stride, args->q_rope_head_stride};
    r->call.args.request_of_token =
        add_flat(r, "", "request_of_token", "I32", args->request_of_token, args->num_tokens);
    record_cache(r, "main.", &r->given.main_cache, &r->call.main_cache);
    if (r->given.has_extra)
        record_cache(r, "extra.", &r->given.extra_cache, &r->call.extra_cache);
    add_flat(r, "", "sink", "F32", args->sink, args->num_heads);
    add_rows(r, "", "q_latent", dtypes[args->q_dtype], args->num_heads, args->latent_dim, element, args->q_latent,
             latent);
    if (args->rope_dim)
        add_rows(r, "", "q_rope", dtypes[args->q_dtype], args->num_heads, args->rope_dim, element, args->q_rope, rope);
}

static void record_outputs(struct smla_recording *r)
{
    const sparse_mla_decode_args *args = &r->given.args;
    const int64_t out[3] = {args->out_request_stride, args->out_token_stride, args->out_head_stride};
    const int64_t lse[3] = {args->lse_request_stride, args->lse_token_stride, args->lse_head_stride};
    add_rows(r, "", "out", dtypes[args->out_dtype], args->num_heads, args->value_dim, smla_dtype_bytes(args->out_dtype),
             args->out, out);
    if (args->lse)
        add_rows(r, "", "lse", "F32", args->num_heads, 1, 4, args->lse, lse);
}

struct smla_recording *smla_dump_begin(struct smla_dump *dump, const struct smla_call *call,
                                       const struct smla_driver *driver, const struct smla_place *place)
{
    if (atomic_load(&dump->files) >= SMLA_DUMP_MAX_FILES)
        return NULL;
    if (driver && smla_kernel_capturing(driver, place)) {
        smla_log(dump->log, SPARSE_MLA_LOG_WARNING, "a call was not dumped: its stream is being captured");
        return NULL;
    }
    struct smla_recording *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->driver = driver;
    r->place = place;
    r->given = r->call = *call;
    if (driver && smla_kernel_wait(driver, place) != SPARSE_MLA_OK)
        r->reason = sparse_mla_last_error();
    record_inputs(r);
    if (!r->reason)
        return r;
    smla_dump_end(dump, r, SPARSE_MLA_INVALID_ARGUMENT);
    return NULL;
}

/* HEADER_BYTES hold all of it: numbers have at most 20 digits, and nothing else varies. */
SMLA_PRINTF(2, 3) static void print(struct smla_recording *r, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    r->header_size += (size_t)vsnprintf(r->header + r->header_size, HEADER_BYTES - r->header_size, format, list);
    va_end(list);
}

/* clang-format off */
#define WHOLE(from, field) print(r, ",\"%s" #field "\":\"%lld\"", prefix, (long long)(from)->field)

static void print_cache(struct smla_recording *r, const char *prefix, const sparse_mla_cache *given, int64_t num_slots)
{
    const bool flat = smla_format_get(given->format)->flat_element_bytes > 0;
    print(r, ",\"%snum_slots\":\"%lld\",\"%srope_offset_bytes\":\"%d\",\"%stensor_scale\":\"%.9g\"", prefix,
          (long long)num_slots, prefix, flat ? given->rope_offset_bytes : -1, prefix, (double)given->tensor_scale);
    WHOLE(given, page_stride_bytes); WHOLE(given, row_stride_bytes); WHOLE(given, format); WHOLE(given, page_size);
    WHOLE(given, latent_offset_bytes); WHOLE(given, topk); WHOLE(given, indices_request_stride);
    WHOLE(given, indices_token_stride); WHOLE(given, length_mode); WHOLE(given, block_table_width);
    WHOLE(given, block_table_stride);
}

static void print_call(struct smla_recording *r, sparse_mla_status status)
{
    const sparse_mla_decode_args *args = &r->given.args;
    const char *prefix = "";
    print(r, "{\"__metadata__\":{\"content\":\"sparsemla call 1\",\"backend\":\"%s\",\"library_version\":\"%d\"",
          r->driver ? "cuda" : "host", sparse_mla_version());
    print(r, ",\"status\":\"%d\",\"faults\":\"%u\",\"scale\":\"%.9g\"", status, r->faults, (double)args->scale);
    WHOLE(args, num_tokens); WHOLE(args, q_len); WHOLE(args, num_heads); WHOLE(args, latent_dim); WHOLE(args, rope_dim);
    WHOLE(args, value_dim); WHOLE(args, flags); WHOLE(args, q_dtype); WHOLE(args, out_dtype); WHOLE(args, num_requests);
    WHOLE(args, q_latent_request_stride); WHOLE(args, q_latent_token_stride); WHOLE(args, q_latent_head_stride);
    WHOLE(args, q_rope_request_stride); WHOLE(args, q_rope_token_stride); WHOLE(args, q_rope_head_stride);
    WHOLE(args, out_request_stride); WHOLE(args, out_token_stride); WHOLE(args, out_head_stride);
    WHOLE(args, lse_request_stride); WHOLE(args, lse_token_stride); WHOLE(args, lse_head_stride);
    print_cache(r, "main.", &r->given.main_cache, r->call.main_cache.num_slots);
    if (r->given.has_extra)
        print_cache(r, "extra.", &r->given.extra_cache, r->call.extra_cache.num_slots);
    print(r, ",\"tensors\":\"");
    for (int i = 0; i < r->count; i++)
        print(r, "%s%s%s", i ? " " : "", r->tensors[i].prefix, r->tensors[i].name);
    print(r, "\"}");
}
/* clang-format on */

static void print_tensors(struct smla_recording *r)
{
    int64_t offset = 0;
    for (int i = 0; i < r->count; i++) {
        const struct tensor *tensor = &r->tensors[i];
        print(r, ",\"%s%s\":{\"dtype\":\"%s\",\"shape\":[%lld", tensor->prefix, tensor->name, tensor->dtype,
              (long long)tensor->dims[0]);
        for (int dim = 1; dim < 3 && tensor->dims[dim]; dim++)
            print(r, ",%lld", (long long)tensor->dims[dim]);
        print(r, "],\"data_offsets\":[%lld,%lld]}", (long long)offset, (long long)(offset + tensor->bytes));
        offset += tensor->bytes;
    }
    print(r, "}");
    while (r->header_size % 8)
        print(r, " ");
}

/* All of the file; to be freed. */
static char *compose(struct smla_recording *r, sparse_mla_status status, size_t *size)
{
    print_call(r, status);
    print_tensors(r);
    *size = 8 + r->header_size;
    char *const bytes = malloc(*size + (size_t)r->bytes);
    if (!bytes)
        return NULL;
    for (int i = 0; i < 8; i++)
        bytes[i] = (char)((uint64_t)r->header_size >> 8 * i);
    memcpy(bytes + 8, r->header, r->header_size);
    for (int i = 0; i < r->count; *size += (size_t)r->tensors[i++].bytes)
        memcpy(bytes + *size, r->tensors[i].data, (size_t)r->tensors[i].bytes);
    return bytes;
}

static void write_file(struct smla_dump *dump, struct smla_recording *r, sparse_mla_status status)
{
    char name[64], temporary[72];
    size_t size;
    int dir;
    const unsigned number = atomic_fetch_add(&dump->files, 1u);
    if (number >= SMLA_DUMP_MAX_FILES)
        return;
    snprintf(name, sizeof name, "call-%ld-%02u.safetensors", (long)getpid(), number);
    snprintf(temporary, sizeof temporary, ".tmp-%s", name);
    char *bytes = compose(r, status, &size);
    int error = bytes ? smla_fs_make_dirs(dump->fs, dump->dir) : ENOMEM;
    if (!error)
        error = smla_fs_open_trusted(dump->fs, dump->dir, false, &dir);
    if (!error) {
        error = smla_fs_publish(dump->fs, dir, temporary, name, bytes, size);
        dump->fs->close(dir);
    }
    free(bytes);
    if (error)
        smla_log(dump->log, SPARSE_MLA_LOG_WARNING, "a call cannot be dumped to %s: %s", dump->dir, strerror(error));
    else
        smla_log(dump->log, SPARSE_MLA_LOG_INFO, "a call was dumped to %s/%s", dump->dir, name);
}

void smla_dump_end(struct smla_dump *dump, struct smla_recording *r, sparse_mla_status status)
{
    char sentence[512];
    if (!r)
        return;
    snprintf(sentence, sizeof sentence, "%s", sparse_mla_last_error());
    sparse_mla_status result = status;
    if (result == SPARSE_MLA_OK && r->driver)
        result = smla_kernel_wait(r->driver, r->place);
    if (result == SPARSE_MLA_OK)
        record_outputs(r);
    if (r->reason)
        smla_log(dump->log, SPARSE_MLA_LOG_WARNING, "a call was not dumped: %s", r->reason);
    else if (result == SPARSE_MLA_DRIVER_ERROR || (result == SPARSE_MLA_OK && (!dump->faults_only || r->faults)))
        write_file(dump, r, result);
    if (status != SPARSE_MLA_OK)
        (void)smla_fail(status, "%s", sentence);
    while (r->count)
        free(r->tensors[--r->count].data);
    free(r);
}
