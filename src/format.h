/* SPDX-License-Identifier: Apache-2.0 */
/* The table of record layouts: what validation, the host backend and the planner know of a format.
 * A new record is one entry of the table in format.c and, to be read by the host backend, one reader beside it. */
#ifndef SMLA_FORMAT_H
#define SMLA_FORMAT_H

#include "call.h"

enum { SMLA_ROW_DIMS_MAX = 576 };

struct smla_format {
    const char *name;       /* in sentences and variant names: "fp8_ds_mla" */
    int flat_element_bytes; /* flat formats: bytes per element; else 0 */
    int latent_dim;         /* fixed formats: the only latent_dim; 0: any multiple of 64 to 512 */
    int rope_mask;          /* bit n: rope_dim 32 * n is supported */
    const char *rope_dims;  /* the same in words: "64 or 0" */
    bool rope_is_value;     /* value_dim is latent_dim + rope_dim, not latent_dim */
    int rope_offset;        /* fixed formats: where the rope begins in a record; without rope nothing past it is read */
    int record_bytes;       /* fixed formats: what must fit in row_stride_bytes with rope */
    int alignment;          /* of data and strides, bytes */
    int scale_block;        /* dims per scale; 0: none */

    /* Writes the latent, then the rope, of a slot below num_slots. NULL: the host backend does not read it. */
    void (*read)(double *row, const sparse_mla_cache *cache, int64_t slot, int latent_dim, int rope_dim);
};

/* NULL for a value outside sparse_mla_format. */
const struct smla_format *smla_format_get(int32_t format);

/* Bytes of a record that are read, from its first byte: row strides must not be smaller. `cache` is that of a call. */
int64_t smla_format_read_bytes(const sparse_mla_cache *cache, int32_t latent_dim, int32_t rope_dim);

#endif
