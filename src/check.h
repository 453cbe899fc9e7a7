/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of sparsemla.h that several calls share. Every failure is INVALID_ARGUMENT unless said otherwise, with a
 * sentence that begins with `where` and `name`. */
#ifndef SMLA_CHECK_H
#define SMLA_CHECK_H

#include "base.h"

enum smla_need { SMLA_OPTIONAL, SMLA_REQUIRED };

sparse_mla_status smla_invalid_integer(const char *where, const char *name, int64_t value, const char *allowed);
sparse_mla_status smla_invalid_pointer(const char *where, const char *name, const void *pointer, const char *allowed);

/* Sizes of the public structs in the first release, 0.1.0, for good: no header is older, so no size is smaller. */
enum {
    SMLA_CACHE_FIRST_SIZE = 120,
    SMLA_DECODE_ARGS_FIRST_SIZE = 240,
    SMLA_OPTIONS_FIRST_SIZE = 72,
    SMLA_PLAN_INFO_FIRST_SIZE = 184,
    SMLA_DEVICE_FIRST_SIZE = 160,
    SMLA_MERGE_ARGS_FIRST_SIZE = 160,
    SMLA_MAP_SLOTS_ARGS_FIRST_SIZE = 176,
    SMLA_CACHE_APPEND_ARGS_FIRST_SIZE = 88
};

/* Refuses a struct_size that no header has: below `first`, no multiple of 8, beyond all reason. `known`: this
 * library's. */
sparse_mla_status smla_check_struct_size(size_t size, size_t known, size_t first, const char *name);

/* Over defaults in `to`, copies what the caller's header has of a struct, of which this library knows `known` bytes.
 * UNSUPPORTED for fields of newer headers that are not 0. */
sparse_mla_status smla_copy_struct(void *to, size_t known, size_t first, const void *from, const char *name);

int smla_dtype_bytes(int32_t dtype);
sparse_mla_status smla_check_dtype(const char *name, int32_t dtype);

struct smla_pointer {
    const char *name;
    const void *pointer;
    enum smla_need need;
    int alignment;
};

sparse_mla_status smla_check_pointers(const char *where, const struct smla_pointer *pointers, size_t count);

/* A stride over `extent` steps of at least `least` units each: bytes, or elements of up to 8. Nobody takes a step along
 * an extent of 1. */
sparse_mla_status smla_check_stride(const char *where, const char *name, int64_t stride, int64_t extent, int64_t least,
                                    int64_t multiple, const char *unit);

/* Format, dims, offsets, pages, slots and tensor scale of a cache; fills in both offsets. */
sparse_mla_status smla_check_record(sparse_mla_cache *cache, int32_t latent_dim, int32_t rope_dim, const char *where);

/* "sm_120" -> 120. UNSUPPORTED below sm_80. */
sparse_mla_status smla_check_target(const char *target, int *capability);

#endif
