/* SPDX-License-Identifier: Apache-2.0 */
/* A random decode call, its tensors on host and device, and the comparison of the CUDA backend with the host backend,
 * whose accumulation is float64.
 *
 * All buffers of a problem lie in one arena, at the same offsets on host and device, with guards between them. What a
 * call must neither read nor write is 0xFF: NaN in every float format here. After a call everything in the arena but
 * the rows of the outputs must be as it was. */
#ifndef TESTS_GPU_PROBLEM_H
#define TESTS_GPU_PROBLEM_H

#include <sparsemla/sparsemla.h>

#include <stdbool.h>

struct CUstream_st;

/* What becomes of the key scales of N(0, 1) rows; the queries are scaled against it, so that scores stay of order 1.
 * Formats without scales of their own look at none of it. */
enum scale_kind {
    SCALES_AMAX,   /* amax / 448, any float32 (FP8_V4: a power of two) */
    SCALES_POW2,   /* rounded up to a power of two */
    SCALES_GROUPS, /* groups times 2^-20, 2^-7, 2^7, 2^20 */
    SCALES_UP,     /* all times 2^60 */
    SCALES_DOWN,   /* all times 2^-60 */
    SCALES_KEYS    /* every key and group times its own power of two, 2^-20 .. 2^20 */
};

/* Of q, out and lse; all but the first with gaps. */
enum layout {
    LAYOUT_PLAIN,       /* [request, token, head, dim] */
    LAYOUT_PADDED,      /* the same */
    LAYOUT_HEADS_FIRST, /* [head, request, token, dim] */
    LAYOUT_TOKENS_LAST, /* [request, head, token, dim] */
    LAYOUTS
};

/* Flat formats and Q8_0. */
enum record_kind {
    RECORD_PLAIN,       /* latent, rope */
    RECORD_ROPE_FIRST,  /* rope, latent */
    RECORD_APART,       /* gap, latent, gap, rope, gap */
    RECORD_APART_FIRST, /* gap, rope, gap, latent, gap */
    RECORDS
};

enum lengths_kind { LENGTHS_NONE, LENGTHS_PER_TOKEN, LENGTHS_PER_REQUEST };

enum { NO_SLOTS = -1, PAGES_OF_576 = -1 };

/* One cache and the keys that are chosen in it. */
struct key_spec {
    int topk;      /* 0 for extra: no second cache */
    int slots;     /* 0: 4096 */
    int page_size; /* 0: 64 */
    int record;    /* enum record_kind */
    int row_pad;   /* bytes behind a record, not for FP8_V4 */
    int page_pad;  /* bytes behind a page. PAGES_OF_576: what makes it a multiple of 576 */
    int index_pad; /* elements behind a row of indices, or of the block table */
    double masked; /* part of the indices that is negative */
    double past;   /* part of the indices that is >= num_slots */
    int lengths;   /* enum lengths_kind: random, some <= 0, some above topk; what lies behind is garbage */
    bool table;    /* positions and a block table, some of whose entries are negative or too large */
    bool dense;    /* no indices */
    bool no_tail;  /* FP8_DS_MLA with rope 0: as FP8_DS_MLA_NOPE, whatever the other cache is */
};

struct spec {
    int tokens, q_len; /* q_len 0: 1 */
    int heads, format, latent, rope;
    struct key_spec main, extra;
    int scales;          /* enum scale_kind */
    double tensor_scale; /* FLAT_E4M3; 0: one that suits N(0, key_size) */
    double key_size;     /* standard deviation of keys; 0: 1 */
    double score_size;   /* standard deviation of scores, about; 0: 1. Not with clamp */
    double nan_rows;     /* part of the selected rows with a NaN somewhere */
    bool clamp;          /* FlashMLA's inputs: q clamped to 1, keys clamped to 1 */
    int q_dtype, out_dtype;
    int q_layout, out_layout, lse_layout; /* enum layout */
    bool q_views;                         /* latent and rope of q are two tensors */
    int requests;                         /* > 0: so many, and request_of_token, some of it out of range */
    bool sink;                            /* some +inf, some -inf */
    bool no_lse, no_faults;               /* NULL */
    bool odd_strides;                     /* strides of which no step is taken hold garbage */
    uint32_t flags;
    uint64_t seed;
};

/* Memory of problems, one at a time. */
struct arena;
struct arena *arena_new(struct CUstream_st *stream, size_t bytes); /* at most so much; taken as needed */
void arena_free(struct arena *arena);

struct problem {
    struct spec spec; /* defaults filled in */
    int value;        /* dims of out */
    struct arena *arena;
    bool own_arena;
    int threads;                               /* of problem_compare(); 0: all processors */
    sparse_mla_cache host_cache, device_cache; /* main */
    sparse_mla_cache host_extra, device_extra;
    sparse_mla_decode_args host, device; /* the same call; the host's outputs are what the device's become at first */
    size_t out_bytes, lse_bytes;
    size_t outputs_at; /* in the arena: out, lse, fault word */
    uint32_t faults;   /* of the compared tokens, by the host backend */
};

/* Also uploads. Pointers in the workspace fields are left NULL. */
void problem_init(struct problem *problem, const struct spec *spec);
/* The same in an arena that the caller keeps, whose last problem is over. */
void problem_init_in(struct problem *problem, const struct spec *spec, struct arena *arena);
void problem_free(struct problem *problem);

/* Uploads all inputs again. */
void problem_upload(struct problem *problem);

/* Fills the device's outputs with 0xFF again and zeroes the fault word. */
void problem_poison(struct problem *problem);

/* Where the host has a slot; what lies at the same place of the device. */
unsigned char *problem_row(const sparse_mla_cache *cache, int64_t slot);
void *problem_device(const struct problem *problem, const void *host);

/* Part of a call, of the host or of the device: `count` tokens (1, or whole requests) and some heads. */
struct part {
    sparse_mla_decode_args args;
    sparse_mla_cache main, extra;
};
void part_init(struct part *part, const sparse_mla_decode_args *args, int token, int count, int head, int heads);

struct errors {
    double relative;       /* L2 of out over everything */
    double elements;       /* that carry it: (sum of squares)^2 / sum of fourth powers */
    double beyond;         /* the same without half a unit in the last place of each element of out */
    double worst_group;    /* the same over 128 dims at a time (FP8_V4: 64), the largest */
    double group_beyond;   /* both */
    double worst_head;     /* per head, the largest */
    double lse;            /* largest |difference| / max(1, |lse|) */
    double cosine;         /* 1 - 2 xy / (xx + yy) */
    long flashmla_bad;     /* elements outside FlashMLA's |err| < 1e-3 or rel < 2.01 / 128 */
    long flashmla_lse_bad; /* outside 1e-6 or rel 8.01 / 65536 */
    long special_bad;      /* NaN, infinity or zero rows that differ; rows not written; other bytes that were; faults */
};

/* Waits for the device, reads its outputs and compares `samples` tokens (0: all) with the host backend. */
struct errors problem_compare(struct problem *problem, sparse_mla_context *host_context, int samples);

/* Relative error that a call may have, by the type of its output. */
double problem_tolerance(const struct spec *spec);
bool problem_within(const struct spec *spec, const struct errors *errors, double most);

/* One line with everything that is not at its default. */
void spec_describe(const struct spec *spec, char *text, size_t size);

double random_uniform(uint64_t *state); /* [0, 1) */
int random_below(uint64_t *state, int n);
double random_normal(uint64_t *state);

#endif
