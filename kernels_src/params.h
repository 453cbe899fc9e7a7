/* SPDX-License-Identifier: Apache-2.0 */
/* The one argument of every decode kernel. Read by the C library and by NVRTC: plain types, no includes.
 * A new field goes here and into launch parameters (src/launch.c); tests/unit/test_plan.c freezes the size. */
#ifndef SMLA_PARAMS_H
#define SMLA_PARAMS_H

#define SMLA_COUNTER_BYTES 65536 /* at the front of a workspace: one zero counter per split token */

/* Values of sparse_mla_dtype. */
#define SMLA_BF16 0
#define SMLA_F16 1
#define SMLA_F32 2

/* Bits of sparse_mla_decode_args.flags that a kernel looks at. */
#define SMLA_LSE_BASE2 1u
#define SMLA_LSE_WITH_SINK 2u
#define SMLA_LSE_EMPTY_POSINF 4u
#define SMLA_PROGRAMMATIC_LAUNCH 16u

struct smla_strides { /* elements */
    long long request, token, head;
};

struct smla_cache_params {
    const unsigned char *data;
    const int *indices;     /* NULL: key j is position j */
    const int *lengths;     /* NULL: topk */
    const int *block_table; /* NULL: indices are slots */
    long long num_slots;
    long long page_stride, row_stride; /* bytes */
    long long indices_request_stride, indices_token_stride, block_table_stride;
    int page_size, topk, lengths_per_request, block_table_width;
    /* position / page_size == position * page_multiplier >> page_shift, for 0 <= position < 2^31 */
    unsigned page_multiplier;
    int page_shift;
    long long rope_at;   /* flat formats: bytes from a row's latent to its rope */
    long long scales_at; /* FP8_V4: bytes from a page to its scales, 8 per row */
};

struct smla_params {
    struct smla_cache_params cache;
    const void *q_latent, *q_rope;
    void *out;
    float *lse;                  /* NULL: not wanted */
    const float *sink;           /* NULL: none */
    const int *request_of_token; /* NULL: t / q_len */
    unsigned *fault_count;       /* NULL: not wanted */
    unsigned *counters;          /* workspace front, all zero between launches */
    float *partials;             /* [token * head_blocks + block][split][head of block][value dim], then lse */
    float *partial_lse;          /* base 2, [token * head_blocks + block][split][head of block] */
    struct smla_strides q_latent_stride, q_rope_stride, out_stride, lse_stride;
    float scale_log2;  /* softmax scale * log2(e) * tensor scale */
    float value_scale; /* tensor scale; 1 for formats without one */
    int q_len, num_heads, num_requests, num_splits;
    int out_dtype;
    unsigned flags; /* of sparse_mla_decode_args */
    int clustered; /* the parts of a token are a cluster and merge without the workspace */
    int reserved;
    struct smla_cache_params extra; /* of kernels for two caches; last, where no other kernel reads */
};

#endif
