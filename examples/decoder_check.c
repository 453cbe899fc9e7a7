/* SPDX-License-Identifier: Apache-2.0 */
#include "decoder.h"

#include <stdio.h>
#include <stdlib.h>

enum { PRINTED_TOKENS = 16 };

/* Per head. Rounding of cache, queries and output alone costs most of this; tests/golden/README.md has the numbers. */
struct bounds {
    double max, median;
};

static struct bounds bounds_of(int format)
{
    return format == SPARSE_MLA_FP8_DS_MLA ? (struct bounds){7e-2, 4e-2} : (struct bounds){1.3e-2, 6e-3};
}

static void fill_cache(struct kv_cache *cache, const struct device *device, const struct attention_file *file)
{
    for (int64_t key = 0; key < file->keys; key++)
        kv_cache_put(cache, key, file->latent + key * file->latent_dim, file->k_rope + key * file->rope_dim);
    kv_cache_upload(cache, device);
}

/* All tokens belong to one request: they share a row of the block table. */
static void fill_args(sparse_mla_decode_args *args, const struct attention_file *file, const sparse_mla_cache *cache)
{
    int64_t width = file->latent_dim + file->rope_dim;
    sparse_mla_decode_args_init(args);
    args->num_tokens = args->q_len = (int32_t)file->tokens;
    args->num_heads = (int32_t)file->heads;
    args->latent_dim = args->value_dim = (int32_t)file->latent_dim;
    args->rope_dim = (int32_t)file->rope_dim;
    args->scale = file->scale;
    args->main_cache = cache;
    args->q_latent_head_stride = width; /* one [T, H, latent + rope] tensor: q_rope stays NULL */
    args->q_latent_token_stride = file->heads * width;
    args->out_head_stride = file->latent_dim;
    args->out_token_stride = file->heads * file->latent_dim;
}

static void decode(struct session *session, const sparse_mla_decode_args *args)
{
    check_status(sparse_mla_decode(session->context, args, session->device.stream));
}

/* Microseconds of a call with this token alone. */
static double time_token(struct session *session, sparse_mla_decode_args args, int64_t token)
{
    const struct device *device = &session->device;
    sparse_mla_cache cache = *args.main_cache;
    struct timer timer;
    int repetitions = device->gpu ? 20 : 1;
    cache.indices += token * cache.indices_token_stride;
    args.main_cache = &cache;
    args.q_latent = (const uint16_t *)args.q_latent + token * args.q_latent_token_stride;
    args.out = (uint16_t *)args.out + token * args.out_token_stride;
    args.num_tokens = args.q_len = 1;
    decode(session, &args);
    timer_start(device, &timer);
    for (int i = 0; i < repetitions; i++)
        decode(session, &args);
    timer_stop(device, &timer);
    return timer_microseconds(device, &timer) / repetitions;
}

/* errors: [tokens, heads]; those of the token are sorted. */
static void print_row(struct session *session, const struct attention_file *file, const sparse_mla_decode_args *args,
                      const uint16_t *q, int64_t token, double *errors)
{
    double *row = errors + token * file->heads;
    double microseconds = time_token(session, *args, token);
    qsort(row, (size_t)file->heads, sizeof *row, compare_doubles);
    printf("%5lld %6lld %16.3f %15.1e %8.1f\n", (long long)token, (long long)count_keys(file, token),
           max_probability(file, token, q), row[file->heads - 1], microseconds);
}

static bool judge(double *errors, int64_t count, int format)
{
    struct bounds bounds = bounds_of(format);
    bool ok = true;
    for (int64_t i = 0; i < count; i++)
        ok &= errors[i] <= bounds.max; /* false for NaN */
    qsort(errors, (size_t)count, sizeof *errors, compare_doubles);
    double median = 0.5 * (errors[count / 2] + errors[(count - 1) / 2]);
    ok &= median <= bounds.median;
    printf("relative error per head: max %.1e (bound %.1e), median %.1e (bound %.1e): %s\n", errors[count - 1],
           bounds.max, median, bounds.median, ok ? "ok" : "MISMATCH");
    return ok;
}

struct check {
    struct kv_cache cache;
    sparse_mla_decode_args args; /* points into cache */
    size_t out_bytes;
    uint16_t *q, *out; /* host copies */
    double *errors;    /* [tokens, heads] */
};

static void check_open(struct check *check, const struct device *device, const struct attention_file *file, int format)
{
    int64_t rows = file->tokens * file->heads;
    size_t q_bytes = (size_t)(rows * (file->latent_dim + file->rope_dim)) * sizeof(uint16_t);
    check->out_bytes = (size_t)(rows * file->latent_dim) * sizeof(uint16_t);
    check->out = host_alloc(check->out_bytes);
    check->errors = host_alloc((size_t)rows * sizeof(double));
    check->q = absorb_queries(file);
    kv_cache_create(&check->cache, device, format, file->keys, (int)file->latent_dim, (int)file->rope_dim);
    fill_cache(&check->cache, device, file);
    check->cache.view.indices =
        device_upload(device, file->indices, (size_t)(file->tokens * file->topk) * sizeof(int32_t));
    check->cache.view.indices_token_stride = file->topk;
    check->cache.view.topk = (int32_t)file->topk;
    fill_args(&check->args, file, &check->cache.view);
    check->args.q_latent = device_upload(device, check->q, q_bytes);
    check->args.out = device_alloc(device, check->out_bytes);
}

static void check_close(struct check *check, const struct device *device)
{
    device_free(device, check->args.out);
    device_free(device, (void *)check->args.q_latent);
    device_free(device, (void *)check->cache.view.indices);
    kv_cache_destroy(&check->cache, device);
    free(check->errors);
    free(check->out);
    free(check->q);
}

bool check_attention(struct session *session, const struct attention_file *file, int format)
{
    int64_t rows = file->tokens * file->heads;
    struct check check;
    if (format == SPARSE_MLA_FP8_DS_MLA && file->latent_dim != 512)
        fail("fp8_ds_mla holds 512 latent dims, this file has %lld: try --kv bf16", (long long)file->latent_dim);
    check_open(&check, &session->device, file, format);
    printf("\n%s cache, %d-slot pages in shuffled order\n", format_name(format), check.cache.view.page_size);
    session_prepare(session, &check.args);
    decode(session, &check.args);
    device_read(&session->device, check.out, check.args.out, check.out_bytes);
    for (int64_t i = 0; i < rows; i++)
        check.errors[i] = relative_error(file, i / file->heads, i % file->heads, check.out + i * file->latent_dim);
    printf("token   keys  max probability  relative error       us\n");
    for (int64_t token = 0; token < file->tokens && token < PRINTED_TOKENS; token++)
        print_row(session, file, &check.args, check.q, token, check.errors);
    bool ok = judge(check.errors, rows, format);
    check_close(&check, &session->device);
    return ok;
}
