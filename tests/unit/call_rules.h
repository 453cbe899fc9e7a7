/* SPDX-License-Identifier: Apache-2.0 */
/* Every way to break a rule of sparse_mla_decode_args, for test_call.c: X(name, what to break, the sentence). `f` is
 * its fixture, which holds a valid call before. */
#ifndef CALL_RULES_H
#define CALL_RULES_H

#define SCALAR_RULES(X)                                                                                                \
    X(num_tokens_negative, f.args.num_tokens = -4, "num_tokens is -4: 0 or more are supported")                        \
    X(q_len_zero, f.args.q_len = 0, "q_len is 0: it must be at least 1")                                               \
    X(q_len_uneven, f.args.q_len = 3, "q_len is 3: it must divide num_tokens, which is 4")                             \
    X(num_heads_zero, f.args.num_heads = 0, "num_heads is 0: 1 to 128 are supported")                                  \
    X(num_heads_129, f.args.num_heads = 129, "num_heads is 129: 1 to 128 are supported")                               \
    X(scale_nan, f.args.scale = NAN, "scale is nan: it must be finite")                                                \
    X(scale_inf, f.args.scale = -INFINITY, "scale is -inf: it must be finite")                                         \
    X(flags_unknown, f.args.flags = 0x21, "flags is 0x21: bits 0x20 are not known")                                    \
    X(q_dtype_3, f.args.q_dtype = 3, "q_dtype is 3: 0 (bf16), 1 (f16) and 2 (f32) are supported")                      \
    X(q_dtype_negative, f.args.q_dtype = -1, "q_dtype is -1: 0 (bf16), 1 (f16) and 2 (f32) are supported")             \
    X(out_dtype_3, f.args.out_dtype = 3, "out_dtype is 3: 0 (bf16), 1 (f16) and 2 (f32) are supported")                \
    X(out_dtype_negative, f.args.out_dtype = -1, "out_dtype is -1: 0 (bf16), 1 (f16) and 2 (f32) are supported")       \
    X(num_requests_negative, f.args.num_requests = -1, "num_requests is -1: it must be 0 or more")                     \
    X(reserved_used, f.args.reserved = 7, "reserved is 7: it must be 0")                                               \
    X(main_cache_missing, f.args.main_cache = NULL, "main_cache is NULL: it is required")

#define DIM_RULES(X)                                                                                                   \
    X(latent_of_fp8, f.args.latent_dim = 448, "latent_dim is 448: fp8_ds_mla has 512")                                 \
    X(rope_of_fp8, f.args.rope_dim = 32, "rope_dim is 32: fp8_ds_mla has 64 or 0")                                     \
    X(rope_negative, f.args.rope_dim = -64, "rope_dim is -64: fp8_ds_mla has 64 or 0")                                 \
    X(rope_of_528, f.main.format = SPARSE_MLA_FP8_DS_MLA_NOPE, "rope_dim is 64: fp8_ds_mla_nope has 0")                \
    X(value_of_fp8, f.args.value_dim = 576, "value_dim is 576: fp8_ds_mla with these dims has 512")                    \
    X(latent_of_v4, f.main.format = SPARSE_MLA_FP8_V4, "latent_dim is 512: fp8_v4 has 448")                            \
    X(latent_of_q8_0, (f.main.format = SPARSE_MLA_Q8_0, f.args.latent_dim = 64), "latent_dim is 64: q8_0 has 512")     \
    X(rope_of_e4m3, (f.main.format = SPARSE_MLA_FLAT_E4M3, f.args.rope_dim = 0), "rope_dim is 0: flat_e4m3 has 64")    \
    X(latent_576_of_flat, (fill_flat(&f), f.args.latent_dim = 576),                                                    \
      "latent_dim is 576: flat_f16 has a multiple of 64 from 64 to 512")                                               \
    X(latent_0_of_flat, (fill_flat(&f), f.args.latent_dim = 0),                                                        \
      "latent_dim is 0: flat_f16 has a multiple of 64 from 64 to 512")                                                 \
    X(latent_96_of_flat, (fill_flat(&f), f.args.latent_dim = 96),                                                      \
      "latent_dim is 96: flat_f16 has a multiple of 64 from 64 to 512")                                                \
    X(rope_of_flat, (fill_flat(&f), f.args.rope_dim = 96), "rope_dim is 96: flat_f16 has 64, 32 or 0")                 \
    X(value_of_v4, (fill_v4(&f), f.args.value_dim = 448), "value_dim is 448: fp8_v4 with these dims has 512")          \
    X(dims_of_extra, f.extra.format = SPARSE_MLA_FP8_DS_MLA_NOPE, "rope_dim is 64: fp8_ds_mla_nope has 0")

#define CACHE_RULES(X)                                                                                                 \
    X(format_7, f.main.format = 7, "main_cache.format is 7: it must be a sparse_mla_format, 0 to 6")                   \
    X(format_negative, f.extra.format = -1, "extra_cache.format is -1: it must be a sparse_mla_format, 0 to 6")        \
    X(latent_offset_of_fp8, f.main.latent_offset_bytes = 16,                                                           \
      "main_cache.latent_offset_bytes is 16: only flat formats and q8_0 take another than 0")                          \
    X(rope_offset_of_fp8, f.main.rope_offset_bytes = 512,                                                              \
      "main_cache.rope_offset_bytes is 512: only flat formats and q8_0 take another than -1")                          \
    X(latent_offset_odd, f.extra.latent_offset_bytes = 8,                                                              \
      "extra_cache.latent_offset_bytes is 8: it must be a multiple of 16 from 0 to 2^20")                              \
    X(latent_offset_negative, f.extra.latent_offset_bytes = -16,                                                       \
      "extra_cache.latent_offset_bytes is -16: it must be a multiple of 16 from 0 to 2^20")                            \
    X(latent_offset_huge, f.extra.latent_offset_bytes = 0x7ffffff0,                                                    \
      "extra_cache.latent_offset_bytes is 2147483632: it must be a multiple of 16 from 0 to 2^20")                     \
    X(rope_offset_odd, f.extra.rope_offset_bytes = 1032,                                                               \
      "extra_cache.rope_offset_bytes is 1032: it must be -1 or a multiple of 16 from 0 to 2^21")                       \
    X(rope_offset_negative, f.extra.rope_offset_bytes = -16,                                                           \
      "extra_cache.rope_offset_bytes is -16: it must be -1 or a multiple of 16 from 0 to 2^21")                        \
    X(rope_offset_huge, f.extra.rope_offset_bytes = 0x7ffffff0,                                                        \
      "extra_cache.rope_offset_bytes is 2147483632: it must be -1 or a multiple of 16 from 0 to 2^21")                 \
    X(rope_over_latent, f.extra.rope_offset_bytes = 0,                                                                 \
      "extra_cache.rope_offset_bytes is 0: the rope would overlap the latent, which is bytes 0 to 1023")               \
    X(latent_over_rope, (f.extra.rope_offset_bytes = 0, f.extra.latent_offset_bytes = 112),                            \
      "extra_cache.rope_offset_bytes is 0: the rope would overlap the latent, which is bytes 112 to 1135")             \
    X(num_slots_negative, f.main.num_slots = -1, "main_cache.num_slots is -1: 0 to 2^31 - 1 are supported")            \
    X(num_slots_huge, f.main.num_slots = 1LL << 31, "main_cache.num_slots is 2147483648: 0 to 2^31 - 1 are supported") \
    X(page_size_zero, f.main.page_size = 0, "main_cache.page_size is 0: it must be at least 1")                        \
    X(row_stride_small, f.main.row_stride_bytes = 640,                                                                 \
      "main_cache.row_stride_bytes is 640: it must be at least 656, in bytes")                                         \
    X(row_stride_negative, f.main.row_stride_bytes = -656,                                                             \
      "main_cache.row_stride_bytes is -656: it must be at least 656, in bytes")                                        \
    X(row_stride_odd, f.main.row_stride_bytes = 660,                                                                   \
      "main_cache.row_stride_bytes is 660: it must be a multiple of 16, in bytes")                                     \
    X(row_stride_of_offset, (f.extra.latent_offset_bytes = 128, f.extra.rope_offset_bytes = 1152),                     \
      "extra_cache.row_stride_bytes is 1152: it must be at least 1280, in bytes")                                      \
    X(row_stride_huge, f.main.row_stride_bytes = 1LL << 60,                                                            \
      "main_cache.row_stride_bytes is 1152921504606846976: 64 such steps are more than 2^58 bytes")                    \
    X(page_stride_zero, f.main.page_stride_bytes = 0,                                                                  \
      "main_cache.page_stride_bytes is 0: it must be at least 656, in bytes")                                          \
    X(page_stride_negative, f.main.page_stride_bytes = -41984,                                                         \
      "main_cache.page_stride_bytes is -41984: it must be at least 656, in bytes")                                     \
    X(page_stride_odd, f.main.page_stride_bytes = 41992,                                                               \
      "main_cache.page_stride_bytes is 41992: it must be a multiple of 16, in bytes")                                  \
    X(page_stride_huge, f.main.page_stride_bytes = INT64_MAX - 15,                                                     \
      "main_cache.page_stride_bytes is 9223372036854775792: 16 such steps are more than 2^58 bytes")                   \
    X(tensor_scale_nan, (fill_least(&f), f.main.format = SPARSE_MLA_FLAT_E4M3, f.main.tensor_scale = NAN),             \
      "main_cache.tensor_scale is nan: it must be finite")                                                             \
    X(row_stride_of_v4, (fill_v4(&f), f.main.row_stride_bytes = 592),                                                  \
      "main_cache.row_stride_bytes is 592: it must be 576, since the scales of fp8_v4 follow the rows of a page")      \
    X(row_stride_of_v4_small, (fill_v4(&f), f.main.row_stride_bytes = 560),                                            \
      "main_cache.row_stride_bytes is 560: it must be at least 576, in bytes")                                         \
    X(row_stride_of_v4_single, (fill_v4(&f), f.main.page_size = 1, f.main.row_stride_bytes = 584),                     \
      "main_cache.row_stride_bytes is 584: it must be 576, since the scales of fp8_v4 follow the rows of a page")      \
    X(page_stride_of_v4, (fill_v4(&f), f.main.page_stride_bytes = 64 * 584 - 16),                                      \
      "main_cache.page_stride_bytes is 37360: it must be at least 37376, in bytes")                                    \
    X(page_stride_of_v4_odd, (fill_v4(&f), f.main.page_stride_bytes = 64 * 584 + 8),                                   \
      "main_cache.page_stride_bytes is 37384: it must be a multiple of 16, in bytes")                                  \
    X(page_stride_of_v4_pair, (fill_v4(&f), f.main.page_size = 2, f.main.page_stride_bytes = 1152),                    \
      "main_cache.page_stride_bytes is 1152: it must be at least 1168, in bytes")                                      \
    X(rope_offset_of_v4, (fill_v4(&f), f.main.rope_offset_bytes = 0),                                                  \
      "main_cache.rope_offset_bytes is 0: only flat formats and q8_0 take another than -1")                            \
    X(data_of_v4_odd, (fill_v4(&f), f.main.data = AT(0x1008)),                                                         \
      "main_cache.data is 0x1008: it must be aligned to 16 bytes")                                                     \
    X(latent_offset_of_q8_0, (fill_q8_0(&f), f.main.latent_offset_bytes = 2),                                          \
      "main_cache.latent_offset_bytes is 2: it must be a multiple of 4 from 0 to 2^20")                                \
    X(rope_offset_of_q8_0, (fill_q8_0(&f), f.main.rope_offset_bytes = 546),                                            \
      "main_cache.rope_offset_bytes is 546: it must be -1 or a multiple of 4 from 0 to 2^21")                          \
    X(rope_over_latent_of_q8_0, (fill_q8_0(&f), f.main.rope_offset_bytes = 540),                                       \
      "main_cache.rope_offset_bytes is 540: the rope would overlap the latent, which is bytes 0 to 543")               \
    X(latent_over_rope_of_q8_0, (fill_q8_0(&f), f.main.rope_offset_bytes = 0, f.main.latent_offset_bytes = 64),        \
      "main_cache.rope_offset_bytes is 0: the rope would overlap the latent, which is bytes 64 to 607")                \
    X(row_stride_of_q8_0, (fill_q8_0(&f), f.main.row_stride_bytes = 608),                                              \
      "main_cache.row_stride_bytes is 608: it must be at least 612, in bytes")                                         \
    X(row_stride_of_q8_0_odd, (fill_q8_0(&f), f.main.row_stride_bytes = 614),                                          \
      "main_cache.row_stride_bytes is 614: it must be a multiple of 4, in bytes")                                      \
    X(rope_offset_of_e4m3, (fill_least(&f), f.main.format = SPARSE_MLA_FLAT_E4M3, f.main.rope_offset_bytes = 504),     \
      "main_cache.rope_offset_bytes is 504: it must be -1 or a multiple of 16 from 0 to 2^21")                         \
    X(topk_zero, f.main.topk = 0, "main_cache.topk is 0: it must be at least 1")                                       \
    X(extra_topk_negative, f.extra.topk = -5, "extra_cache.topk is -5: it must be at least 1")                         \
    X(length_mode_2, f.main.length_mode = 2,                                                                           \
      "main_cache.length_mode is 2: 0 (per token) and 1 (per request) are supported")                                  \
    X(length_mode_negative, f.main.length_mode = -1,                                                                   \
      "main_cache.length_mode is -1: 0 (per token) and 1 (per request) are supported")                                 \
    X(indices_request_stride, f.main.indices_request_stride = 0,                                                       \
      "main_cache.indices_request_stride is 0: it must be at least 2048, in elements")                                 \
    X(indices_token_stride, f.extra.indices_token_stride = 2047,                                                       \
      "extra_cache.indices_token_stride is 2047: it must be at least 2048, in elements")                               \
    X(block_table_width, f.main.block_table_width = 0, "main_cache.block_table_width is 0: it must be at least 1")     \
    X(block_table_stride, f.main.block_table_stride = 15,                                                              \
      "main_cache.block_table_stride is 15: it must be at least 16, in elements")

#define STRIDE_RULES(X)                                                                                                \
    X(q_latent_request_stride, f.args.q_latent_request_stride = 0,                                                     \
      "q_latent_request_stride is 0: it must be at least 512, in elements")                                            \
    X(q_latent_token_stride, f.args.q_latent_token_stride = 516,                                                       \
      "q_latent_token_stride is 516: it must be a multiple of 8, in elements")                                         \
    X(q_latent_head_stride, f.args.q_latent_head_stride = 448,                                                         \
      "q_latent_head_stride is 448: it must be at least 512, in elements")                                             \
    X(q_latent_huge, f.args.q_latent_request_stride = INT64_MAX - 7,                                                   \
      "q_latent_request_stride is 9223372036854775800: 2 such steps are more than 2^58 elements")                      \
    X(q_latent_f32, (f.args.q_dtype = SPARSE_MLA_F32, f.args.q_latent_head_stride = 514),                              \
      "q_latent_head_stride is 514: it must be a multiple of 4, in elements")                                          \
    X(q_in_one, f.args.q_rope = NULL, "q_latent_head_stride is 512: it must be at least 576, in elements")             \
    X(q_rope_request_stride, f.args.q_rope_request_stride = 63,                                                        \
      "q_rope_request_stride is 63: it must be at least 64, in elements")                                              \
    X(q_rope_token_stride, f.args.q_rope_token_stride = 68,                                                            \
      "q_rope_token_stride is 68: it must be a multiple of 8, in elements")                                            \
    X(q_rope_head_stride, f.args.q_rope_head_stride = 0,                                                               \
      "q_rope_head_stride is 0: it must be at least 64, in elements")                                                  \
    X(out_request_stride, f.args.out_request_stride = 1,                                                               \
      "out_request_stride is 1: it must be at least 512, in elements")                                                 \
    X(out_token_stride, f.args.out_token_stride = -4096,                                                               \
      "out_token_stride is -4096: it must be at least 512, in elements")                                               \
    X(out_head_stride, f.args.out_head_stride = 516,                                                                   \
      "out_head_stride is 516: it must be a multiple of 8, in elements")                                               \
    X(out_huge_in_bytes, (f.args.out_dtype = SPARSE_MLA_F32, f.args.out_request_stride = 1LL << 59),                   \
      "out_request_stride is 576460752303423488: 2 such steps are more than 2^58 elements")                            \
    X(lse_request_stride, f.args.lse_request_stride = 0,                                                               \
      "lse_request_stride is 0: it must be at least 1, in elements")                                                   \
    X(lse_token_stride, f.args.lse_token_stride = -8, "lse_token_stride is -8: it must be at least 1, in elements")    \
    X(lse_head_stride, f.args.lse_head_stride = 0, "lse_head_stride is 0: it must be at least 1, in elements")

#define POINTER_RULES(X)                                                                                               \
    X(q_latent_null, f.args.q_latent = NULL, "q_latent is NULL: it is required")                                       \
    X(q_latent_odd, f.args.q_latent = AT(0x1008), "q_latent is 0x1008: it must be aligned to 16 bytes")                \
    X(q_rope_odd, f.args.q_rope = AT(0x1008), "q_rope is 0x1008: it must be aligned to 16 bytes")                      \
    X(out_null, f.args.out = NULL, "out is NULL: it is required")                                                      \
    X(out_odd, f.args.out = AT(0x1008), "out is 0x1008: it must be aligned to 16 bytes")                               \
    X(lse_odd, f.args.lse = AT(0x1002), "lse is 0x1002: it must be aligned to 4 bytes")                                \
    X(sink_odd, f.args.sink = AT(0x1001), "sink is 0x1001: it must be aligned to 4 bytes")                             \
    X(request_of_token_odd, f.args.request_of_token = AT(0x1002),                                                      \
      "request_of_token is 0x1002: it must be aligned to 4 bytes")                                                     \
    X(fault_count_odd, f.args.fault_count = AT(0x1002), "fault_count is 0x1002: it must be aligned to 4 bytes")        \
    X(data_null, f.main.data = NULL, "main_cache.data is NULL: it is required")                                        \
    X(data_odd, f.main.data = AT(0x1008), "main_cache.data is 0x1008: it must be aligned to 16 bytes")                 \
    X(indices_odd, f.main.indices = AT(0x1002), "main_cache.indices is 0x1002: it must be aligned to 4 bytes")         \
    X(lengths_odd, f.main.lengths = AT(0x1002), "main_cache.lengths is 0x1002: it must be aligned to 4 bytes")         \
    X(block_table_odd, f.main.block_table = AT(0x1002),                                                                \
      "main_cache.block_table is 0x1002: it must be aligned to 4 bytes")                                               \
    X(extra_data_null, f.extra.data = NULL, "extra_cache.data is NULL: it is required")                                \
    X(extra_data_odd, f.extra.data = AT(0x1004), "extra_cache.data is 0x1004: it must be aligned to 16 bytes")

#define RULES(X) SCALAR_RULES(X) DIM_RULES(X) CACHE_RULES(X) STRIDE_RULES(X) POINTER_RULES(X)

#endif
