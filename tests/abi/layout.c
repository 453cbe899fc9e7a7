/* SPDX-License-Identifier: Apache-2.0 */
/* Where every field of every public struct lies, for good: programs built against any released header rely on it.
 * Fields are only ever added at an end; sizes then grow and nothing else here changes. Compiling this is the test. */
#include <sparsemla/sparsemla.h>

#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), "size of " #type)
#define FIELD(type, field, offset) _Static_assert(offsetof(type, field) == (offset), "offset of " #type "." #field)
#define VALUE(name, number) _Static_assert((name) == (number), "value of " #name)

SIZE(sparse_mla_cache, 120);
FIELD(sparse_mla_cache, struct_size, 0);
FIELD(sparse_mla_cache, data, 8);
FIELD(sparse_mla_cache, num_slots, 16);
FIELD(sparse_mla_cache, page_stride_bytes, 24);
FIELD(sparse_mla_cache, row_stride_bytes, 32);
FIELD(sparse_mla_cache, format, 40);
FIELD(sparse_mla_cache, page_size, 44);
FIELD(sparse_mla_cache, latent_offset_bytes, 48);
FIELD(sparse_mla_cache, rope_offset_bytes, 52);
FIELD(sparse_mla_cache, tensor_scale, 56);
FIELD(sparse_mla_cache, topk, 60);
FIELD(sparse_mla_cache, indices, 64);
FIELD(sparse_mla_cache, indices_request_stride, 72);
FIELD(sparse_mla_cache, indices_token_stride, 80);
FIELD(sparse_mla_cache, lengths, 88);
FIELD(sparse_mla_cache, length_mode, 96);
FIELD(sparse_mla_cache, block_table_width, 100);
FIELD(sparse_mla_cache, block_table, 104);
FIELD(sparse_mla_cache, block_table_stride, 112);

SIZE(sparse_mla_decode_args, 240);
FIELD(sparse_mla_decode_args, struct_size, 0);
FIELD(sparse_mla_decode_args, num_tokens, 8);
FIELD(sparse_mla_decode_args, q_len, 12);
FIELD(sparse_mla_decode_args, num_heads, 16);
FIELD(sparse_mla_decode_args, latent_dim, 20);
FIELD(sparse_mla_decode_args, rope_dim, 24);
FIELD(sparse_mla_decode_args, value_dim, 28);
FIELD(sparse_mla_decode_args, scale, 32);
FIELD(sparse_mla_decode_args, flags, 36);
FIELD(sparse_mla_decode_args, q_dtype, 40);
FIELD(sparse_mla_decode_args, out_dtype, 44);
FIELD(sparse_mla_decode_args, q_latent, 48);
FIELD(sparse_mla_decode_args, q_rope, 56);
FIELD(sparse_mla_decode_args, q_latent_request_stride, 64);
FIELD(sparse_mla_decode_args, q_latent_token_stride, 72);
FIELD(sparse_mla_decode_args, q_latent_head_stride, 80);
FIELD(sparse_mla_decode_args, q_rope_request_stride, 88);
FIELD(sparse_mla_decode_args, q_rope_token_stride, 96);
FIELD(sparse_mla_decode_args, q_rope_head_stride, 104);
FIELD(sparse_mla_decode_args, main_cache, 112);
FIELD(sparse_mla_decode_args, extra_cache, 120);
FIELD(sparse_mla_decode_args, out, 128);
FIELD(sparse_mla_decode_args, out_request_stride, 136);
FIELD(sparse_mla_decode_args, out_token_stride, 144);
FIELD(sparse_mla_decode_args, out_head_stride, 152);
FIELD(sparse_mla_decode_args, lse, 160);
FIELD(sparse_mla_decode_args, lse_request_stride, 168);
FIELD(sparse_mla_decode_args, lse_token_stride, 176);
FIELD(sparse_mla_decode_args, lse_head_stride, 184);
FIELD(sparse_mla_decode_args, sink, 192);
FIELD(sparse_mla_decode_args, request_of_token, 200);
FIELD(sparse_mla_decode_args, num_requests, 208);
FIELD(sparse_mla_decode_args, reserved, 212);
FIELD(sparse_mla_decode_args, workspace, 216);
FIELD(sparse_mla_decode_args, workspace_size, 224);
FIELD(sparse_mla_decode_args, fault_count, 232);

SIZE(sparse_mla_options, 72);
FIELD(sparse_mla_options, struct_size, 0);
FIELD(sparse_mla_options, backend, 8);
FIELD(sparse_mla_options, on_miss, 12);
FIELD(sparse_mla_options, profile, 16);
FIELD(sparse_mla_options, no_disk_cache, 20);
FIELD(sparse_mla_options, cache_dir, 24);
FIELD(sparse_mla_options, seed_path, 32);
FIELD(sparse_mla_options, nvrtc_path, 40);
FIELD(sparse_mla_options, cache_size_cap, 48);
FIELD(sparse_mla_options, log, 56);
FIELD(sparse_mla_options, log_user, 64);

SIZE(sparse_mla_plan_info, 184);
FIELD(sparse_mla_plan_info, struct_size, 0);
FIELD(sparse_mla_plan_info, variant, 8);
FIELD(sparse_mla_plan_info, grid_x, 136);
FIELD(sparse_mla_plan_info, grid_y, 140);
FIELD(sparse_mla_plan_info, block_threads, 144);
FIELD(sparse_mla_plan_info, num_splits, 148);
FIELD(sparse_mla_plan_info, shared_bytes, 152);
FIELD(sparse_mla_plan_info, blocks_per_sm, 156);
FIELD(sparse_mla_plan_info, stages, 160);
FIELD(sparse_mla_plan_info, registers, 164);
FIELD(sparse_mla_plan_info, workspace_bytes, 168);
FIELD(sparse_mla_plan_info, cached, 176);
FIELD(sparse_mla_plan_info, reserved, 180);

SIZE(sparse_mla_cache_entry, 240);
FIELD(sparse_mla_cache_entry, struct_size, 0);
FIELD(sparse_mla_cache_entry, variant, 8);
FIELD(sparse_mla_cache_entry, target, 136);
FIELD(sparse_mla_cache_entry, file, 152);
FIELD(sparse_mla_cache_entry, bytes, 216);
FIELD(sparse_mla_cache_entry, last_used, 224);
FIELD(sparse_mla_cache_entry, valid, 232);
FIELD(sparse_mla_cache_entry, nvrtc_version, 236);

SIZE(sparse_mla_device, 160);
FIELD(sparse_mla_device, struct_size, 0);
FIELD(sparse_mla_device, name, 8);
FIELD(sparse_mla_device, compute_capability, 136);
FIELD(sparse_mla_device, sm_count, 140);
FIELD(sparse_mla_device, shared_bytes_per_block, 144);
FIELD(sparse_mla_device, driver_version, 148);
FIELD(sparse_mla_device, nvrtc_version, 152);
FIELD(sparse_mla_device, profile, 156);

/* Values of enums are as much a part of it. */
VALUE(SPARSE_MLA_OK, 0);
VALUE(SPARSE_MLA_INVALID_ARGUMENT, 1);
VALUE(SPARSE_MLA_UNSUPPORTED, 2);
VALUE(SPARSE_MLA_NO_DRIVER, 3);
VALUE(SPARSE_MLA_DRIVER_TOO_OLD, 4);
VALUE(SPARSE_MLA_DRIVER_ERROR, 5);
VALUE(SPARSE_MLA_NO_COMPILER, 6);
VALUE(SPARSE_MLA_COMPILER_TOO_OLD, 7);
VALUE(SPARSE_MLA_COMPILE_FAILED, 8);
VALUE(SPARSE_MLA_NOT_READY, 9);
VALUE(SPARSE_MLA_OUT_OF_MEMORY, 10);
VALUE(SPARSE_MLA_WORKSPACE_TOO_SMALL, 11);
VALUE(SPARSE_MLA_CACHE_ERROR, 12);
VALUE(SPARSE_MLA_BF16, 0);
VALUE(SPARSE_MLA_F16, 1);
VALUE(SPARSE_MLA_F32, 2);
VALUE(SPARSE_MLA_FP8_DS_MLA, 0);
VALUE(SPARSE_MLA_FP8_DS_MLA_NOPE, 1);
VALUE(SPARSE_MLA_FLAT_BF16, 2);
VALUE(SPARSE_MLA_FLAT_F16, 3);
VALUE(SPARSE_MLA_FLAT_E4M3, 4);
VALUE(SPARSE_MLA_FP8_V4, 5);
VALUE(SPARSE_MLA_Q8_0, 6);
VALUE(SPARSE_MLA_LENGTH_PER_TOKEN, 0);
VALUE(SPARSE_MLA_LENGTH_PER_REQUEST, 1);
VALUE(SPARSE_MLA_LSE_BASE2, 1 << 0);
VALUE(SPARSE_MLA_LSE_WITH_SINK, 1 << 1);
VALUE(SPARSE_MLA_LSE_EMPTY_POSINF, 1 << 2);
VALUE(SPARSE_MLA_BATCH_INVARIANT, 1 << 3);
VALUE(SPARSE_MLA_PROGRAMMATIC_LAUNCH, 1 << 4);
VALUE(SPARSE_MLA_BACKEND_CUDA, 0);
VALUE(SPARSE_MLA_BACKEND_HOST, 1);
VALUE(SPARSE_MLA_ON_MISS_COMPILE, 0);
VALUE(SPARSE_MLA_ON_MISS_FAIL, 1);
VALUE(SPARSE_MLA_PROFILE_AUTO, 0);
VALUE(SPARSE_MLA_PROFILE_SM80, 1);
VALUE(SPARSE_MLA_PROFILE_SM89, 2);
VALUE(SPARSE_MLA_PROFILE_SM90, 3);
VALUE(SPARSE_MLA_PROFILE_SM120, 4);
VALUE(SPARSE_MLA_LOG_WARNING, 0);
VALUE(SPARSE_MLA_LOG_INFO, 1);
VALUE(SPARSE_MLA_LOG_DEBUG, 2);

int main(void)
{
    return 0;
}
