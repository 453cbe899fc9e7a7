// SPDX-License-Identifier: Apache-2.0
// A C++ user of the library: the header, the linkage, and one call.
#include <sparsemla/sparsemla.h>

#include <cstdint>
#include <cstdio>
#include <vector>

int main()
{
    // One key, with weight 1: the output is its latent, 512 times 1.0.
    std::vector<std::uint16_t> record(576, 0x3f80), query(576, 0x3f80), out(512, 0);

    sparse_mla_options options;
    sparse_mla_options_init(&options);
    options.backend = SPARSE_MLA_BACKEND_HOST;
    sparse_mla_context *context = nullptr;
    sparse_mla_status status = sparse_mla_create(&options, &context);

    sparse_mla_cache cache;
    sparse_mla_cache_init(&cache);
    cache.format = SPARSE_MLA_FLAT_BF16;
    cache.data = record.data();
    cache.num_slots = cache.topk = cache.page_size = 1;
    cache.row_stride_bytes = cache.page_stride_bytes = 1152;

    sparse_mla_decode_args args;
    sparse_mla_decode_args_init(&args);
    args.num_tokens = args.num_heads = 1;
    args.latent_dim = args.value_dim = 512;
    args.rope_dim = 64;
    args.scale = 0.0625f;
    args.main_cache = &cache;
    args.q_latent = query.data();
    args.out = out.data();
    if (status == SPARSE_MLA_OK)
        status = sparse_mla_decode(context, &args, nullptr);
    if (status != SPARSE_MLA_OK)
        std::fprintf(stderr, "%s\n", sparse_mla_last_error());
    sparse_mla_destroy(context);

    std::printf("version %d, out 0x%04x (1 in bf16 is 0x3f80)\n", sparse_mla_version(), unsigned{out[511]});
    return status == SPARSE_MLA_OK && out[0] == 0x3f80 && out[511] == 0x3f80 ? 0 : 1;
}
