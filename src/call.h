/* SPDX-License-Identifier: Apache-2.0 */
/* A call after validation: every default filled in, every struct at this library's size. */
#ifndef SMLA_CALL_H
#define SMLA_CALL_H

#include "base.h"

#include <stdbool.h>

struct smla_call {
    /* main_cache and extra_cache are NULL: the copies below are used.
     * q_rope and its strides are filled in, num_requests is at least 1 unless num_tokens is 0. */
    sparse_mla_decode_args args;
    sparse_mla_cache main_cache, extra_cache; /* rope_offset_bytes >= 0 */
    bool has_extra;
};

enum smla_check {
    SMLA_CHECK_SHAPES,  /* data pointers may be NULL and are not looked at: prepare, workspace, explain, warm */
    SMLA_CHECK_POINTERS /* decode */
};

/* Checks every rule of sparsemla.h that needs no device. What a backend cannot do is the backend's to refuse. */
sparse_mla_status smla_call_init(struct smla_call *call, const sparse_mla_decode_args *args, enum smla_check check);

#endif
