/* SPDX-License-Identifier: Apache-2.0 */
/* The one argument of each kernel beside decode. Read by the C library and by NVRTC, after params.h: plain types, no
 * includes. tests/unit/test_tools.c freezes the sizes. */
#ifndef SMLA_TOOLS_PARAMS_H
#define SMLA_TOOLS_PARAMS_H

#define SMLA_MERGE_THREADS 128
#define SMLA_SLOTS_THREADS 256
#define SMLA_SLOTS_SHARED_BYTES (4 * (SMLA_SLOTS_THREADS / 32)) /* dynamic */
#define SMLA_APPEND_THREADS 128

/* The bit of sparse_mla_merge_args.flags that is not one of decode's. */
#define SMLA_PART_LSE_BASE2 32u

/* Values of sparse_mla_scale_rule. */
#define SMLA_SCALE_AMAX 1
#define SMLA_SCALE_POW2 2
#define SMLA_SCALE_V4 3

/* Kinds of record that are written: each turns a segment of dims into bytes in its own way. */
#define SMLA_SEGMENT_BF16 0
#define SMLA_SEGMENT_F16 1
#define SMLA_SEGMENT_E4M3 2       /* x / tensor_scale */
#define SMLA_SEGMENT_E4M3_FLOAT 3 /* x / scale, scale stored as float32 */
#define SMLA_SEGMENT_E4M3_UE8M0 4 /* x / scale, scale stored as its exponent */
#define SMLA_SEGMENT_Q8_0 5       /* 32 dims, 34 bytes */
#define SMLA_UE8M0_ROW_BYTES 8    /* scales of a slot, with padding */

struct smla_merge_params {
    const void *part_out;
    const float *part_lse;
    void *out;
    float *lse;        /* NULL: not wanted */
    const float *sink; /* NULL: none */
    long long part_out_stride, part_out_token_stride, part_out_head_stride; /* elements, all of them */
    long long part_lse_stride, part_lse_token_stride, part_lse_head_stride;
    long long out_token_stride, out_head_stride, lse_token_stride, lse_head_stride;
    long long rows; /* num_tokens * num_heads */
    int num_parts, num_heads, value_dim;
    int part_dtype, out_dtype;
    unsigned flags;  /* of sparse_mla_merge_args */
    unsigned blocks; /* of the grid: a block goes on with the rows that many blocks further */
    int reserved;
};

struct smla_slots_params {
    const int *indices; /* NULL: column j is position j */
    const int *lengths; /* NULL: topk */
    const int *block_table; /* NULL: indices are slots */
    const int *request_of_token; /* NULL: t / q_len */
    const unsigned short *mask; /* NULL: none */
    int *slots;
    int *counts;           /* NULL: not wanted */
    unsigned *fault_count; /* NULL: not wanted */
    long long num_slots;
    long long indices_request_stride, indices_token_stride, block_table_stride; /* elements, all of them */
    long long mask_request_stride, mask_token_stride, slots_request_stride, slots_token_stride;
    int q_len, topk, page_size, num_requests;
    int lengths_per_request, block_table_width, mask_width, compact;
};

struct smla_append_params {
    unsigned char *data; /* slot 0, latent_offset_bytes included */
    const void *latent, *rope;
    const long long *slots;
    unsigned *fault_count; /* NULL: not wanted */
    long long num_slots;
    long long page_stride, row_stride;     /* bytes */
    long long latent_stride, rope_stride;  /* elements */
    long long rope_at;                     /* bytes from the latent to the rope */
    long long scales_at;                   /* FLOAT: bytes from the latent to its scales; UE8M0: from a page to its */
    int num_rows, page_size;
    int latent_segment, rope_segment; /* SMLA_SEGMENT_... */
    int latent_width, rope_width;     /* dims of a segment: 32, 64 or 128 */
    int latent_segments, rope_segments;
    int src_dtype, scale_rule;
    float tensor_scale;
    unsigned blocks; /* of the grid */
};

#endif
