/* SPDX-License-Identifier: Apache-2.0 */
/* The shortest caller: one token, 8 heads, three keys of a paged bf16 cache. The queries are zero, so every key weighs
 * a third and the output is the mean of the three rows: 2. */
#include "device.h"

#include <sparsemla/sparsemla.h>

#include <math.h>
#include <stdio.h>

enum { HEADS = 8, LATENT = 512, ROPE = 64, SLOTS = 256, TOPK = 4 };

static uint16_t rows[SLOTS][LATENT + ROPE], query[HEADS][LATENT + ROPE], out[HEADS][LATENT];
static float lse[HEADS];
static const int32_t indices[TOPK] = {3, 200, 10, -1};            /* -1: no key */
static const uint16_t one_two_three[] = {0x3f80, 0x4000, 0x4040}; /* in bf16 */

static void check(sparse_mla_status status)
{
    if (status != SPARSE_MLA_OK)
        fail("%s", sparse_mla_last_error());
}

int main(void)
{
    for (int i = 0; i < 3; i++)
        for (int dim = 0; dim < LATENT; dim++)
            rows[indices[i]][dim] = one_two_three[i];

    struct device device;
    sparse_mla_options options;
    sparse_mla_options_init(&options);
    if (!device_open_gpu(&device)) {
        device_open_host(&device);
        options.backend = SPARSE_MLA_BACKEND_HOST;
    }

    sparse_mla_cache cache;
    sparse_mla_cache_init(&cache); /* pages of 64 slots */
    cache.format = SPARSE_MLA_FLAT_BF16;
    cache.data = device_upload(&device, rows, sizeof rows);
    cache.num_slots = SLOTS;
    cache.row_stride_bytes = sizeof rows[0];
    cache.page_stride_bytes = cache.page_size * cache.row_stride_bytes;
    cache.indices = device_upload(&device, indices, sizeof indices);
    cache.topk = TOPK;

    sparse_mla_decode_args args;
    sparse_mla_decode_args_init(&args);
    args.num_tokens = 1;
    args.num_heads = HEADS;
    args.latent_dim = args.value_dim = LATENT;
    args.rope_dim = ROPE;
    args.scale = 0.0625f;
    args.main_cache = &cache;
    args.q_latent = device_upload(&device, query, sizeof query); /* the rope part lies behind each latent part */
    args.q_latent_head_stride = LATENT + ROPE;
    args.out = device_alloc(&device, sizeof out);
    args.out_head_stride = LATENT;
    args.lse = device_alloc(&device, sizeof lse);
    args.lse_head_stride = 1;

    sparse_mla_context *context;
    check(sparse_mla_create(&options, &context));
    check(sparse_mla_decode_workspace(context, &args, device.stream, &args.workspace_size));
    args.workspace = device_alloc(&device, args.workspace_size);
    check(sparse_mla_workspace_init(context, args.workspace, args.workspace_size, device.stream));
    check(sparse_mla_decode(context, &args, device.stream));
    device_read(&device, out, args.out, sizeof out);
    device_read(&device, lse, args.lse, sizeof lse);
    const void *pointers[] = {cache.data, cache.indices, args.q_latent, args.out, args.lse, args.workspace};
    for (int i = 0; i < 6; i++)
        device_free(&device, (void *)pointers[i]);
    sparse_mla_destroy(context);
    device_close(&device);

    printf("out 0x%04x (2 in bf16 is 0x4000), lse %.4f (ln 3 is 1.0986)\n", out[7][511], lse[7]);
    return out[7][511] == 0x4000 && fabsf(lse[7] - logf(3)) < 1e-5f ? 0 : 1;
}
