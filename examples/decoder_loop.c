/* SPDX-License-Identifier: Apache-2.0 */
#include "decoder.h"

#include <stdio.h>
#include <stdlib.h>

/* GLM-5 on one of 8 GPUs. */
enum { HEADS = 8, LATENT = 512, ROPE = 64, TOPK = 2048 };

struct loop {
    int64_t capacity; /* of the cache, positions */
    int steps;        /* the context grows from capacity - steps to capacity */
    struct kv_cache cache;
    sparse_mla_decode_args args; /* points into cache */
    int32_t *indices;            /* [steps, TOPK], where the backend works */
    uint64_t random;
};

/* Uniform in [-1, 1). */
static void fill_random(float *values, int count, uint64_t *state)
{
    for (int i = 0; i < count; i++)
        values[i] = (float)(int32_t)random_bits(state) * 0x1p-31f;
}

static int64_t append_row(struct loop *loop, int64_t position)
{
    float row[LATENT + ROPE];
    fill_random(row, LATENT + ROPE, &loop->random);
    return kv_cache_put(&loop->cache, position, row, row + LATENT);
}

/* In place of an indexer, for every step: one key from each of TOPK equal parts of the context, and the newest. */
static int32_t *select_keys(struct loop *loop, const struct device *device)
{
    size_t bytes = (size_t)loop->steps * TOPK * sizeof(int32_t);
    int32_t *indices = host_alloc(bytes), *next = indices;
    for (int step = 0; step < loop->steps; step++) {
        int64_t context = loop->capacity - loop->steps + step + 1;
        for (int64_t i = 0; i < TOPK; i++) {
            int64_t begin = i * context / TOPK, end = (i + 1) * context / TOPK;
            *next++ = (int32_t)(begin + (int64_t)(random_bits(&loop->random) % (uint64_t)(end - begin)));
        }
        next[-1] = (int32_t)(context - 1);
    }
    int32_t *uploaded = device_upload(device, indices, bytes);
    free(indices);
    return uploaded;
}

static void *random_queries(const struct device *device, uint64_t *state)
{
    float values[HEADS * (LATENT + ROPE)];
    uint16_t q[HEADS * (LATENT + ROPE)];
    fill_random(values, HEADS * (LATENT + ROPE), state);
    for (int i = 0; i < HEADS * (LATENT + ROPE); i++)
        q[i] = float_to_bf16(values[i]);
    return device_upload(device, q, sizeof q);
}

static void loop_open(struct loop *loop, const struct device *device, int format)
{
    sparse_mla_decode_args *args = &loop->args;
    loop->capacity = device->gpu ? 131072 : 16384;
    loop->steps = device->gpu ? 512 : 64;
    loop->random = 1;
    kv_cache_create(&loop->cache, device, format, loop->capacity, LATENT, ROPE);
    loop->indices = select_keys(loop, device);
    loop->cache.view.topk = TOPK;
    sparse_mla_decode_args_init(args);
    args->num_tokens = 1;
    args->num_heads = HEADS;
    args->latent_dim = args->value_dim = LATENT;
    args->rope_dim = ROPE;
    args->scale = 0.0625f;
    args->main_cache = &loop->cache.view;
    args->q_latent = random_queries(device, &loop->random);
    args->q_latent_head_stride = LATENT + ROPE;
    args->out = device_alloc(device, HEADS * LATENT * sizeof(uint16_t));
    args->out_head_stride = LATENT;
}

static void loop_close(struct loop *loop, const struct device *device)
{
    device_free(device, loop->args.out);
    device_free(device, (void *)loop->args.q_latent);
    device_free(device, loop->indices);
    kv_cache_destroy(&loop->cache, device);
}

static void fill_context(struct loop *loop, const struct device *device)
{
    int64_t context = loop->capacity - loop->steps;
    for (int64_t position = 0; position < context; position++) {
        append_row(loop, position);
        if (position % 1024 == 0)
            show_progress("filling the cache", position, context);
    }
    show_progress("filling the cache", context, context);
    kv_cache_upload(&loop->cache, device);
}

/* Microseconds per token, with the token's row joining the cache before its call or with the call alone. Nothing in
 * between waits for the GPU. */
static double run_steps(struct loop *loop, struct session *session, bool append)
{
    const struct device *device = &session->device;
    struct timer timer;
    timer_start(device, &timer);
    for (int step = 0; step < loop->steps; step++) {
        if (append)
            kv_cache_upload_record(&loop->cache, device, append_row(loop, loop->capacity - loop->steps + step));
        loop->cache.view.indices = loop->indices + (int64_t)step * TOPK;
        check_status(sparse_mla_decode(session->context, &loop->args, device->stream));
    }
    timer_stop(device, &timer);
    return timer_microseconds(device, &timer) / loop->steps;
}

void run_decode_loop(struct session *session, int format)
{
    const struct device *device = &session->device;
    struct loop loop;
    loop_open(&loop, device, format);
    fill_context(&loop, device);
    printf("\ndecode loop: %s cache of %lld tokens%s, %d heads, %d keys per token\n", format_name(format),
           (long long)loop.capacity, device->gpu ? "" : " (131072 on a GPU)", HEADS, TOPK);
    session_prepare(session, &loop.args);
    double appending = run_steps(&loop, session, true);
    double alone = run_steps(&loop, session, false);
    printf("%.1f us per token, %.2f GB/s of cache read; %.1f us with appending its row (%d steps)\n", alone,
           TOPK * (double)loop.cache.view.row_stride_bytes / alone * 1e-3, appending, loop.steps);
    loop_close(&loop, device);
}
