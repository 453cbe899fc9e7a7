/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel variant: everything that is compiled in. Canonical name <-> struct <-> list of -D options. Pure. */
#ifndef SMLA_VARIANT_H
#define SMLA_VARIANT_H

#include "base.h"

#include <stdbool.h>

#define SMLA_VARIANT_NAME_MAX 128
#define SMLA_VARIANT_DEFINES 14
#define SMLA_DEFINE_MAX 160
#define SMLA_TILE 16        /* keys */
#define SMLA_MAX_WARPS 8    /* per block, of 255 registers: one SM's worth */
#define SMLA_MAX_STAGES 16  /* per key group */
#define SMLA_MAX_CLUSTER 16 /* parts of a token that are one cluster; as in kernels_src/variant.cuh */

struct smla_variant {
    int format; /* sparse_mla_format; FP8_DS_MLA_NOPE is FP8_DS_MLA with rope_dim 0 */
    int latent_dim;
    int rope_dim;
    int query;       /* sparse_mla_dtype of q: float32, and float16 for bf16 operands, need a second term */
    int caches;      /* 2: one softmax over main_cache and extra_cache */
    int head_groups; /* per block; a group is 8 * dim_split heads */
    int dim_split;   /* warps that share a head group: 1 or 2 */
    int key_groups;  /* per block; each walks its own stream of key tiles */
    int stages;      /* 16-key tiles of shared memory per key group */
    int blocks_per_sm;
    int topk_max; /* largest width served; 0: any */
    int profile;  /* sparse_mla_profile, never AUTO */
};

/* Writes the kernel's name, at most SMLA_VARIANT_NAME_MAX bytes with its NUL. */
void smla_variant_name(const struct smla_variant *variant, char name[SMLA_VARIANT_NAME_MAX]);

/* Inverse of smla_variant_name(); false unless `name` is exactly what it would write for a valid variant. */
bool smla_variant_parse(const char *name, struct smla_variant *variant);

/* Writes the ordered compiler options "-DSMLA_...=..."; returns how many. */
int smla_variant_defines(const struct smla_variant *variant, char defines[SMLA_VARIANT_DEFINES][SMLA_DEFINE_MAX]);

/* Every field in range, and the block within the limits of its profile. */
bool smla_variant_valid(const struct smla_variant *variant);

int smla_variant_warps(const struct smla_variant *variant); /* per block */
int smla_variant_threads(const struct smla_variant *variant);
int smla_variant_tile_bytes(const struct smla_variant *variant);   /* 16 rows in shared memory */
int smla_variant_heads(const struct smla_variant *variant);        /* per block */
int smla_variant_value_dim(const struct smla_variant *variant);    /* dims of a head's output */
int smla_variant_shared_bytes(const struct smla_variant *variant); /* dynamic, per block */

/* Shared memory that one block of this profile may have, bytes. */
int smla_profile_shared_limit(int profile);

#endif
