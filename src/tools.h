/* SPDX-License-Identifier: Apache-2.0 */
/* The calls beside decode: merging, slot mapping and cache writing. Each has one file with its checks, its host backend
 * and the parameters of its kernel; tools.c has the public functions. */
#ifndef SMLA_TOOLS_H
#define SMLA_TOOLS_H

#include "format.h"

#include "tools_params.h"

/* Each _check() makes a copy at this library's size, checks every rule of sparsemla.h and fills in defaults. The others
 * take a checked copy of at least one token or row. */

sparse_mla_status smla_merge_check(sparse_mla_merge_args *to, const sparse_mla_merge_args *args);
void smla_merge_host(const sparse_mla_merge_args *args);
void smla_merge_params(struct smla_merge_params *params, const sparse_mla_merge_args *args);

/* num_requests is filled in. */
sparse_mla_status smla_slots_check(sparse_mla_map_slots_args *to, const sparse_mla_map_slots_args *args);
void smla_slots_host(const sparse_mla_map_slots_args *args);
void smla_slots_params(struct smla_slots_params *params, const sparse_mla_map_slots_args *args);

struct smla_append {
    sparse_mla_cache_append_args args; /* cache is NULL: the copy below is used; scale_rule is not DEFAULT */
    sparse_mla_cache cache;            /* rope_offset_bytes >= 0 */
};

sparse_mla_status smla_append_check(struct smla_append *to, const sparse_mla_cache_append_args *args);
void smla_append_host(const struct smla_append *append);
void smla_append_params(struct smla_append_params *params, const struct smla_append *append);

#endif
