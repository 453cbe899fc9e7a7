/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments and device facts -> variant, grid, splits, workspace. Pure. */
#ifndef SMLA_PLAN_H
#define SMLA_PLAN_H

#include "call.h"
#include "variant.h"

struct smla_device_facts {
    int compute_capability; /* 10 * major + minor */
    int sm_count;
    int shared_per_block; /* opt-in limit, bytes */
    int memory_gbps;      /* peak of the device's memory, GB/s; 0: not known */
};

struct smla_plan {
    struct smla_variant variant;
    int head_blocks; /* blocks that share a token's heads */
    int num_splits;  /* blocks that share a token's keys */
    int max_cluster; /* parts that can be a cluster on this device; 1: none */
    bool clustered;  /* those blocks are a cluster and merge in shared memory: no workspace */
    bool overlapped; /* programmatic stream serialization: may start while earlier kernels end */
    int shared_bytes;
    uint32_t grid_x;         /* num_tokens */
    uint32_t grid_y;         /* head_blocks * num_splits */
    uint64_t partial_floats; /* of the workspace, behind the counters; the lse of partials included */
    size_t workspace_bytes;  /* 0: no split, no workspace needed */
};

/* Columns of a token's row: those of the main cache, in whole tiles where others follow, and those of the extra one. */
int64_t smla_plan_columns(const struct smla_call *call);

/* The profile that AUTO means on a device, by compute capability; AUTO itself when there is none. */
int smla_profile_of(int compute_capability);

/* `profile` as in sparse_mla_options. UNSUPPORTED with a sentence for what no kernel does. */
sparse_mla_status smla_plan_make(struct smla_plan *plan, const struct smla_call *call,
                                 const struct smla_device_facts *device, int profile);

/* Another variant, or another number of splits, for a plan, and all that follows from it: the steps of
 * smla_plan_make(), and benchmarks. */
void smla_plan_set_variant(struct smla_plan *plan, const struct smla_call *call, const struct smla_device_facts *device,
                           const struct smla_variant *variant);
void smla_plan_set_splits(struct smla_plan *plan, int num_splits);

/* The n-th distinct variant that smla_plan_make() can choose for 1 .. num_tokens tokens; false past the last. */
bool smla_plan_variant(const struct smla_call *call, const struct smla_device_facts *device, int profile, int n,
                       struct smla_variant *variant);

/* The variants that are built and checked ahead for every architecture, chosen as smla_plan_make() would for one of
 * the models that README.md lists; false past the last. */
bool smla_plan_shipped(int profile, int n, struct smla_variant *variant);

/* Bytes that serve 1 .. num_tokens tokens. */
sparse_mla_status smla_plan_workspace(size_t *bytes, const struct smla_call *call,
                                      const struct smla_device_facts *device, int profile);

#endif
