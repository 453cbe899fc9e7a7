/* SPDX-License-Identifier: Apache-2.0 */
/* The model's side of sparse MLA decode, on tensors from a file: what happens to the queries before the call and to
 * its output after it, and the attention that must come out. */
#ifndef EXAMPLES_ATTENTION_FILE_H
#define EXAMPLES_ATTENTION_FILE_H

#include <stdint.h>

/* Tensors of one layer, one group of heads, one sequence; tests/golden/README.md describes them. F32 and BF16 are
 * read, topk is I32. The scale is __metadata__.scale, else 1 / sqrt(nope_dim + rope_dim). */
struct attention_file {
    int64_t tokens, heads, keys, topk;
    int64_t nope_dim, rope_dim, latent_dim, value_dim;
    float scale;
    float *q_nope;    /* [tokens, heads, nope_dim] */
    float *q_rope;    /* [tokens, heads, rope_dim] */
    float *latent;    /* [keys, latent_dim] */
    float *k_rope;    /* [keys, rope_dim] */
    float *w_uk;      /* [heads, nope_dim, latent_dim] */
    float *w_uv;      /* [heads, value_dim, latent_dim] */
    float *attention; /* [tokens, heads, value_dim] */
    int32_t *indices; /* [tokens, topk], -1 where there are fewer keys */
};

/* What is wrong with the file ends the program with a sentence. */
void attention_file_load(struct attention_file *file, const char *path);
void attention_file_free(struct attention_file *file);

/* [tokens, heads, latent_dim + rope_dim] in bf16, to be freed: q_nope times w_uk, then q_rope. */
uint16_t *absorb_queries(const struct attention_file *file);

/* |w_uv * out - attention| / |attention| of one head, given its latent_dim bf16 outputs. */
double relative_error(const struct attention_file *file, int64_t token, int64_t head, const uint16_t *out);

int64_t count_keys(const struct attention_file *file, int64_t token);
/* The largest softmax weight that any head gives to a key; q as absorb_queries() made it. */
double max_probability(const struct attention_file *file, int64_t token, const uint16_t *q);

#endif
