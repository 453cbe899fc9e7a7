/* SPDX-License-Identifier: Apache-2.0 */
/* The table of record layouts: what validation, the host backend and the planner know of a format.
 *
 * To add a record:
 * - include/sparsemla/sparsemla.h: its number at the end of sparse_mla_format, with its bytes in words, and the number
 *   again in tests/abi/layout.c.
 * - format.c: an entry of the table and the reader beside it, which is what the GPU is compared with. Rules that no
 *   field of smla_format can express are in smla_check_record() (check.c).
 * - append.c and kernels_src/tool_append.cuh: how it is written, unless it is made of kinds of segments that exist.
 * - variant.c and kernels_src/variant.cuh: its name in the names of kernels, and how a row lies in shared memory;
 *   kernels_src/copy.cuh: how it gets there, and how it is widened to elements of 16 bits.
 * - tests/unit/naive.h, naive_row(): the record once more, as plainly as possible, and tests/unit/host_world.h,
 *   fill_record(): how to make one up. The suites "format", "host" and "host_inputs" then run over it.
 * - tests/gpu/problem_cache.c: record_of(), write_row() and key_factor(), and a line of `caches` in test_small.c.
 * - README.md: the tables of formats. */
#ifndef SMLA_FORMAT_H
#define SMLA_FORMAT_H

#include "call.h"

enum { SMLA_ROW_DIMS_MAX = 576 };

struct smla_format {
    const char *name;       /* in sentences and variant names: "fp8_ds_mla" */
    int flat_element_bytes; /* flat formats, whose latent and rope are runs of bytes at any offset: bytes per element
                             * beside scales; else 0 */
    int latent_dim;         /* fixed formats: the only latent_dim; 0: any multiple of 64 to 512 */
    int rope_mask;          /* bit n: rope_dim 32 * n is supported */
    const char *rope_dims;  /* the same in words: "64 or 0" */
    bool rope_is_value;     /* value_dim is latent_dim + rope_dim, not latent_dim */
    int rope_offset;        /* fixed formats: where the rope begins in a record; without rope nothing past it is read */
    int record_bytes;       /* fixed formats: what must fit in row_stride_bytes with rope */
    int alignment;          /* of data, strides and offsets, bytes */
    int scale_block;        /* dims per scale; 0: none */
    int block_scale_bytes;  /* flat formats: of the scale in front of each such block; 0: none */
    int page_scale_bytes;   /* of the scales of a slot, which lie behind the rows of a page; 0: none. row_stride_bytes
                             * is then record_bytes */

    int latent_segment; /* SMLA_SEGMENT_..., tools_params.h: how rows are written */
    int rope_segment;

    /* Writes the latent, then the rope, of a slot below num_slots. `cache` is that of a call. */
    void (*read)(double *row, const sparse_mla_cache *cache, int64_t slot, int latent_dim, int rope_dim);
};

/* NULL for a value outside sparse_mla_format. */
const struct smla_format *smla_format_get(int32_t format);

/* Bytes of so many neighbouring dims of a flat format. */
int32_t smla_format_run_bytes(const struct smla_format *format, int32_t dims);

/* Bytes of a record that are read, from its first byte: row strides must not be smaller. `cache` is that of a call. */
int64_t smla_format_read_bytes(const sparse_mla_cache *cache, int32_t latent_dim, int32_t rope_dim);

/* The same of a page: that of one record, or with scales behind the rows the whole page. */
int64_t smla_format_page_bytes(const sparse_mla_cache *cache, int32_t latent_dim, int32_t rope_dim);

#endif
