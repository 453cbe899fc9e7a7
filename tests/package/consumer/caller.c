/* SPDX-License-Identifier: Apache-2.0 */
/* A C user of the library. Two keys of 1 and of 3 and a query of 0: the output is their mean, lse is ln 2. */
#include <sparsemla/sparsemla.h>

#include <stdio.h>

int main(void)
{
    static uint16_t rows[2][512], query[512], out[512];
    static const int32_t indices[] = {1, -1, 0};
    float lse = 0;
    for (int dim = 0; dim < 512; dim++) {
        rows[0][dim] = 0x3f80;
        rows[1][dim] = 0x4040;
    }

    sparse_mla_options options;
    sparse_mla_options_init(&options);
    options.backend = SPARSE_MLA_BACKEND_HOST;
    sparse_mla_context *context;
    sparse_mla_status status = sparse_mla_create(&options, &context);

    sparse_mla_cache cache;
    sparse_mla_cache_init(&cache);
    cache.format = SPARSE_MLA_FLAT_BF16;
    cache.data = rows;
    cache.num_slots = 2;
    cache.indices = indices;
    cache.topk = 3;
    cache.row_stride_bytes = sizeof rows[0];
    cache.page_stride_bytes = sizeof rows;

    sparse_mla_decode_args args;
    sparse_mla_decode_args_init(&args);
    args.num_tokens = args.num_heads = 1;
    args.latent_dim = args.value_dim = 512;
    args.scale = 0.0625f;
    args.main_cache = &cache;
    args.q_latent = query;
    args.out = out;
    args.lse = &lse;
    if (status == SPARSE_MLA_OK)
        status = sparse_mla_decode(context, &args, NULL);
    if (status != SPARSE_MLA_OK)
        fprintf(stderr, "%s\n", sparse_mla_last_error());
    sparse_mla_destroy(context);

    printf("version %d, out 0x%04x (2 in bf16 is 0x4000), lse %.4f\n", sparse_mla_version(), (unsigned)out[511], lse);
    return status == SPARSE_MLA_OK && out[0] == 0x4000 && out[511] == 0x4000 && lse > 0.69314f && lse < 0.69316f ? 0
                                                                                                                 : 1;
}
