/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls beside decode: check, get the kernel, launch. */
#include "tools.h"

#include "check.h"
#include "context.h"

enum { BLOCKS_MAX = 1 << 20, WARP = 32 };

static sparse_mla_status check_context(const sparse_mla_context *context)
{
    if (!context)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "context is NULL; sparse_mla_create() makes one");
    return SPARSE_MLA_OK;
}

/* The kernel of a tool for the device of `stream`, loaded or compiled if need be. */
static sparse_mla_status get_kernel(sparse_mla_context *context, struct CUstream_st *stream,
                                    const struct smla_program *program, struct smla_place *place,
                                    struct smla_kernel *kernel)
{
    struct smla_device_facts facts;
    sparse_mla_status status = smla_context_place(context, stream, place, &facts);
    if (status != SPARSE_MLA_OK)
        return status;
    if (smla_profile_of(facts.compute_capability) == SPARSE_MLA_PROFILE_AUTO)
        return smla_fail(SPARSE_MLA_UNSUPPORTED, "the device has compute capability %d.%d: 8.0 or more is needed",
                         facts.compute_capability / 10, facts.compute_capability % 10);
    return smla_jit_get(&context->jit, &context->driver, place, program, facts.compute_capability, kernel);
}

static sparse_mla_status run(sparse_mla_context *context, struct CUstream_st *stream, int kind, unsigned blocks,
                             void *params)
{
    const struct smla_program program = smla_program_of_tool(kind);
    struct smla_place place;
    struct smla_kernel kernel;
    sparse_mla_status status = get_kernel(context, stream, &program, &place, &kernel);
    if (status != SPARSE_MLA_OK)
        return status;
    return smla_kernel_launch_tool(&context->driver, &place, &kernel, &program, blocks, params);
}

/* For one warp per unit of work; what is beyond the grid is done by the same blocks. */
static unsigned blocks_for(int64_t units, int threads)
{
    const int64_t blocks = (units + threads / WARP - 1) / (threads / WARP);
    return blocks < BLOCKS_MAX ? (unsigned)blocks : BLOCKS_MAX;
}

sparse_mla_status sparse_mla_merge(sparse_mla_context *context, const sparse_mla_merge_args *args,
                                   struct CUstream_st *stream)
{
    sparse_mla_merge_args merge;
    struct smla_merge_params params;
    sparse_mla_status status = check_context(context);
    if (status == SPARSE_MLA_OK)
        status = smla_merge_check(&merge, args);
    if (status != SPARSE_MLA_OK || merge.num_tokens == 0)
        return status;
    if (context->backend == SPARSE_MLA_BACKEND_HOST) {
        smla_merge_host(&merge);
        return SPARSE_MLA_OK;
    }
    smla_merge_params(&params, &merge);
    params.blocks = blocks_for(params.rows, SMLA_MERGE_THREADS);
    return run(context, stream, SMLA_PROGRAM_MERGE, params.blocks, &params);
}

sparse_mla_status sparse_mla_map_slots(sparse_mla_context *context, const sparse_mla_map_slots_args *args,
                                       struct CUstream_st *stream)
{
    sparse_mla_map_slots_args map;
    struct smla_slots_params params;
    sparse_mla_status status = check_context(context);
    if (status == SPARSE_MLA_OK)
        status = smla_slots_check(&map, args);
    if (status != SPARSE_MLA_OK || map.num_tokens == 0)
        return status;
    if (context->backend == SPARSE_MLA_BACKEND_HOST) {
        smla_slots_host(&map);
        return SPARSE_MLA_OK;
    }
    smla_slots_params(&params, &map);
    return run(context, stream, SMLA_PROGRAM_SLOTS, (unsigned)map.num_tokens, &params);
}

sparse_mla_status sparse_mla_cache_append(sparse_mla_context *context, const sparse_mla_cache_append_args *args,
                                          struct CUstream_st *stream)
{
    struct smla_append append;
    struct smla_append_params params;
    sparse_mla_status status = check_context(context);
    if (status == SPARSE_MLA_OK)
        status = smla_append_check(&append, args);
    if (status != SPARSE_MLA_OK || append.args.num_rows == 0)
        return status;
    if (context->backend == SPARSE_MLA_BACKEND_HOST) {
        smla_append_host(&append);
        return SPARSE_MLA_OK;
    }
    smla_append_params(&params, &append);
    params.blocks =
        blocks_for((int64_t)params.num_rows * (params.latent_segments + params.rope_segments), SMLA_APPEND_THREADS);
    return run(context, stream, SMLA_PROGRAM_APPEND, params.blocks, &params);
}

sparse_mla_status sparse_mla_tools_prepare(sparse_mla_context *context, struct CUstream_st *stream)
{
    sparse_mla_status status = check_context(context);
    if (status != SPARSE_MLA_OK || context->backend == SPARSE_MLA_BACKEND_HOST)
        return status;
    for (int kind = SMLA_PROGRAM_DECODE + 1; status == SPARSE_MLA_OK && kind < SMLA_PROGRAMS; kind++) {
        const struct smla_program program = smla_program_of_tool(kind);
        struct smla_place place;
        struct smla_kernel kernel;
        status = get_kernel(context, stream, &program, &place, &kernel);
    }
    return status;
}

sparse_mla_status sparse_mla_tools_warm(sparse_mla_context *context, const char *target)
{
    int capability = 0;
    sparse_mla_status status = check_context(context);
    if (status == SPARSE_MLA_OK)
        status = smla_check_target(target, &capability);
    if (status == SPARSE_MLA_OK)
        status = smla_cache_require(&context->cache);
    if (status != SPARSE_MLA_OK)
        return status;
    /* A driver, where there is one, limits which NVRTC may be used. */
    const int driver_version = smla_context_driver(context) == SPARSE_MLA_OK ? context->driver.version : 0;
    for (int kind = SMLA_PROGRAM_DECODE + 1; status == SPARSE_MLA_OK && kind < SMLA_PROGRAMS; kind++) {
        const struct smla_program program = smla_program_of_tool(kind);
        status = smla_jit_warm(&context->jit, &program, capability, driver_version);
    }
    return status;
}
