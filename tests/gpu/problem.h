/* SPDX-License-Identifier: Apache-2.0 */
/* A random decode call, its tensors on host and device, and the comparison of the CUDA backend with the host backend,
 * whose accumulation is float64. Everything that a call must not read, or must not write, is NaN (0xFF). */
#ifndef TESTS_GPU_PROBLEM_H
#define TESTS_GPU_PROBLEM_H

#include <sparsemla/sparsemla.h>

#include <stdbool.h>

/* What becomes of the key scales of N(0, 1) rows; the queries are scaled against it, so that scores stay of order 1. */
enum scale_kind {
    SCALES_AMAX,   /* amax / 448, any float32 */
    SCALES_POW2,   /* rounded up to a power of two */
    SCALES_GROUPS, /* groups times 2^-20, 2^-7, 2^7, 2^20 */
    SCALES_UP,     /* all times 2^60 */
    SCALES_DOWN,   /* all times 2^-60 */
    SCALES_KEYS    /* every key and group times its own power of two, 2^-20 .. 2^20 */
};

struct spec {
    int tokens, q_len; /* q_len 0: 1 */
    int heads, format, latent, rope, topk;
    int page_size; /* 0: 64 */
    int slots;     /* 0: 4096 */
    int scales;    /* enum scale_kind */
    int out_dtype;
    double masked;    /* part of the indices that is negative */
    double past;      /* part of the indices that is >= num_slots */
    double key_size;  /* standard deviation of keys; 0: 1 */
    bool clamp;       /* FlashMLA's inputs: q clamped to 1, keys clamped to 1 */
    bool lengths;     /* random, some <= 0, some above topk; what lies behind is garbage */
    bool per_request; /* lengths per request */
    bool sink;        /* some +inf, some -inf */
    bool strided;     /* rows of q, out, lse and indices apart, heads before tokens, q in two views */
    bool table;       /* positions and a block table */
    bool dense;       /* no indices */
    uint32_t flags;
    uint64_t seed;
};

struct problem {
    struct spec spec;
    sparse_mla_cache host_cache, device_cache;
    sparse_mla_decode_args host, device; /* host: out is float32 */
    size_t out_bytes, lse_bytes;
    void *blocks[16]; /* host allocations */
    void *device_blocks[16];
    int num_blocks, num_device_blocks;
    uint32_t faults;
};

/* Also uploads. Pointers in the workspace fields are left NULL. */
void problem_init(struct problem *problem, const struct spec *spec);
void problem_free(struct problem *problem);

struct errors {
    double relative;       /* L2 of out over everything */
    double worst_group;    /* the same over 128 dims at a time, the largest */
    double worst_head;     /* per head, the largest */
    double lse;            /* largest |difference| / max(1, |lse|) */
    double cosine;         /* 1 - 2 xy / (xx + yy) */
    long flashmla_bad;     /* elements outside FlashMLA's |err| < 1e-3 or rel < 2.01 / 128 */
    long flashmla_lse_bad; /* outside 1e-6 or rel 8.01 / 65536 */
    long special_bad;      /* NaN, infinity or zero rows that differ; bytes written that must not be */
};

/* Reads the device's out and lse and compares `samples` tokens (0: all) with the host backend. */
struct errors problem_compare(struct problem *problem, sparse_mla_context *host_context, int samples);

/* Fills the device's out and lse with 0xFF again. */
void problem_poison(struct problem *problem);

double random_uniform(uint64_t *state); /* [0, 1) */
double random_normal(uint64_t *state);

#endif
