/* SPDX-License-Identifier: Apache-2.0 */
/* The models whose calls the tool knows, and such a call as arguments of the library. */
#ifndef CLI_MODELS_H
#define CLI_MODELS_H

#include <sparsemla/sparsemla.h>

#include <stddef.h>
#include <stdio.h>

enum { MAX_FORMATS = 3, MAX_WIDTHS = 2 };

/* Columns of the two caches; 0: none. */
struct width {
    int topk, extra;
};

struct model {
    const char *name, *about;
    int latent_dim, rope_dim, value_dim;
    int head_dim; /* before absorption: scale = 1 / sqrt(head_dim) */
    int heads;    /* of the whole model */
    int q_dtype, out_dtype;
    int formats[MAX_FORMATS], num_formats; /* as engines keep its cache */
    struct width widths[MAX_WIDTHS];
    int num_widths;
};

extern const struct model models[]; /* ends with a name of NULL */

/* Indexed by sparse_mla_format and sparse_mla_dtype; end with NULL. */
extern const char *const format_names[], *const dtype_names[];

struct shape {
    const struct model *model;
    int format, heads, tokens, q_dtype, out_dtype;
    struct width width;
};

/* Tensors without gaps and pages of 64 slots. args points into the struct. */
struct call {
    sparse_mla_cache caches[2];
    sparse_mla_decode_args args;
};

/* No pointers yet; num_slots is that of both caches. */
void call_init(struct call *call, const struct shape *shape, int64_t num_slots);

int record_bytes(int format, const struct model *model);
int dtype_bytes(int dtype);

/* "128 + 512", or "2048" without a second cache. */
const char *width_text(struct width width, char text[32]);

#endif
