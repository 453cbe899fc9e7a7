/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls: check, plan, get the kernel, launch. */
#include "check.h"
#include "context.h"
#include "cost.h"
#include "host.h"
#include "launch.h"

#include <stdio.h>

/* Everything that a call on the CUDA backend is made of. */
struct prepared {
    struct smla_call call;
    struct smla_place place;
    struct smla_device_facts facts;
    struct smla_plan plan;
};

static sparse_mla_status check_context(const sparse_mla_context *context)
{
    if (!context)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "context is NULL; sparse_mla_create() makes one");
    return SPARSE_MLA_OK;
}

static sparse_mla_status check_result(const void *pointer, const char *name)
{
    if (!pointer)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "%s is NULL; it receives the result", name);
    return SPARSE_MLA_OK;
}

static sparse_mla_status check_call(const sparse_mla_context *context, struct smla_call *call,
                                    const sparse_mla_decode_args *args, enum smla_check check)
{
    sparse_mla_status status = check_context(context);
    return status == SPARSE_MLA_OK ? smla_call_init(call, args, check) : status;
}

/* For a checked call of at least one token. */
static sparse_mla_status plan_call(sparse_mla_context *context, struct prepared *p, struct CUstream_st *stream)
{
    sparse_mla_status status = smla_context_place(context, stream, &p->place, &p->facts);
    return status == SPARSE_MLA_OK ? smla_plan_make(&p->plan, &p->call, &p->facts, context->profile) : status;
}

static sparse_mla_status launch(sparse_mla_context *context, const struct prepared *p)
{
    const struct smla_program program = smla_program_of_variant(&p->plan.variant);
    struct smla_kernel kernel;
    struct smla_params params;
    sparse_mla_status status = smla_launch_check(&p->call, &p->plan);
    if (status == SPARSE_MLA_OK)
        status =
            smla_jit_get(&context->jit, &context->driver, &p->place, &program, p->facts.compute_capability, &kernel);
    if (status != SPARSE_MLA_OK)
        return status;
    smla_launch_params(&params, &p->call, &p->plan);
    return smla_kernel_launch(&context->driver, &p->place, &kernel, &p->plan, &params);
}

static sparse_mla_status run(sparse_mla_context *context, const struct prepared *p)
{
    return context->backend == SPARSE_MLA_BACKEND_HOST ? smla_host_decode(&p->call) : launch(context, p);
}

static sparse_mla_status run_dumped(sparse_mla_context *context, const struct prepared *p)
{
    const struct smla_driver *driver = context->backend == SPARSE_MLA_BACKEND_HOST ? NULL : &context->driver;
    struct smla_recording *recording = smla_dump_begin(&context->dump, &p->call, driver, &p->place);
    const sparse_mla_status status = run(context, p);
    smla_dump_end(&context->dump, recording, status);
    return status;
}

sparse_mla_status sparse_mla_decode(sparse_mla_context *context, const sparse_mla_decode_args *args,
                                    struct CUstream_st *stream)
{
    struct prepared p;
    sparse_mla_status status = check_call(context, &p.call, args, SMLA_CHECK_POINTERS);
    if (status != SPARSE_MLA_OK || p.call.args.num_tokens == 0)
        return status;
    if (context->backend != SPARSE_MLA_BACKEND_HOST)
        status = plan_call(context, &p, stream);
    if (status != SPARSE_MLA_OK)
        return status;
    return context->dump.dir ? run_dumped(context, &p) : run(context, &p);
}

sparse_mla_status sparse_mla_decode_prepare(sparse_mla_context *context, const sparse_mla_decode_args *args,
                                            struct CUstream_st *stream)
{
    struct prepared p;
    struct smla_variant variant;
    struct smla_kernel kernel;
    sparse_mla_status status = check_call(context, &p.call, args, SMLA_CHECK_SHAPES);
    if (status != SPARSE_MLA_OK || p.call.args.num_tokens == 0 || context->backend == SPARSE_MLA_BACKEND_HOST)
        return status;
    status = plan_call(context, &p, stream);
    for (int n = 0; status == SPARSE_MLA_OK && smla_plan_variant(&p.call, &p.facts, context->profile, n, &variant);
         n++) {
        const struct smla_program program = smla_program_of_variant(&variant);
        status = smla_jit_get(&context->jit, &context->driver, &p.place, &program, p.facts.compute_capability, &kernel);
    }
    return status;
}

sparse_mla_status sparse_mla_decode_workspace(sparse_mla_context *context, const sparse_mla_decode_args *args,
                                              struct CUstream_st *stream, size_t *bytes)
{
    struct prepared p;
    sparse_mla_status status = check_result(bytes, "bytes");
    if (status != SPARSE_MLA_OK)
        return status;
    *bytes = 0;
    status = check_call(context, &p.call, args, SMLA_CHECK_SHAPES);
    if (status != SPARSE_MLA_OK || p.call.args.num_tokens == 0 || context->backend == SPARSE_MLA_BACKEND_HOST)
        return status;
    status = smla_context_place(context, stream, &p.place, &p.facts);
    return status == SPARSE_MLA_OK ? smla_plan_workspace(bytes, &p.call, &p.facts, context->profile) : status;
}

sparse_mla_status sparse_mla_workspace_init(sparse_mla_context *context, void *workspace, size_t bytes,
                                            struct CUstream_st *stream)
{
    struct smla_place place;
    struct smla_device_facts facts;
    sparse_mla_status status = check_context(context);
    if (status != SPARSE_MLA_OK || bytes == 0 || context->backend == SPARSE_MLA_BACKEND_HOST)
        return status;
    if (!workspace || (uintptr_t)workspace % SMLA_WORKSPACE_ALIGNMENT != 0)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "workspace is %p; it must be device memory aligned to %d bytes",
                         workspace, SMLA_WORKSPACE_ALIGNMENT);
    if (bytes < SMLA_COUNTER_BYTES)
        return smla_fail(SPARSE_MLA_WORKSPACE_TOO_SMALL, "bytes is %zu; a workspace has at least %d", bytes,
                         SMLA_COUNTER_BYTES);
    status = smla_context_place(context, stream, &place, &facts);
    return status == SPARSE_MLA_OK ? smla_kernel_zero(&context->driver, &place, workspace, SMLA_COUNTER_BYTES) : status;
}

static void describe_plan(sparse_mla_context *context, const struct prepared *p, sparse_mla_plan_info *info)
{
    const struct smla_plan *plan = &p->plan;
    const struct smla_program program = smla_program_of_variant(&plan->variant);
    int registers;
    smla_variant_name(&plan->variant, info->variant);
    info->grid_x = plan->grid_x;
    info->grid_y = plan->grid_y;
    info->block_threads = (uint32_t)smla_variant_threads(&plan->variant);
    info->num_splits = (uint32_t)plan->num_splits;
    info->shared_bytes = (uint32_t)plan->shared_bytes;
    info->blocks_per_sm = (uint32_t)plan->variant.blocks_per_sm;
    info->stages = (uint32_t)(plan->variant.stages * plan->variant.key_groups);
    info->workspace_bytes = plan->workspace_bytes;
    info->cached = smla_jit_peek(&context->jit, &p->place, &program, p->facts.compute_capability, &registers);
    info->registers = (uint32_t)registers;
    info->predicted_us = smla_cost_predict(plan, &p->call, &p->facts, &info->limit);
}

/* Hands a result out at the size that the caller knows. */
static void hand_out(void *out, size_t out_size, const void *result, size_t result_size)
{
    size_t size = out_size < result_size ? out_size : result_size;
    memcpy((char *)out + sizeof(size_t), (const char *)result + sizeof(size_t), size - sizeof(size_t));
}

sparse_mla_status sparse_mla_decode_explain(sparse_mla_context *context, const sparse_mla_decode_args *args,
                                            struct CUstream_st *stream, sparse_mla_plan_info *info)
{
    struct prepared p;
    sparse_mla_plan_info result;
    sparse_mla_plan_info_init(&result);
    sparse_mla_status status = check_result(info, "info");
    if (status == SPARSE_MLA_OK)
        status = smla_check_struct_size(info->struct_size, sizeof *info, SMLA_PLAN_INFO_FIRST_SIZE, "info");
    if (status == SPARSE_MLA_OK)
        status = check_call(context, &p.call, args, SMLA_CHECK_SHAPES);
    if (status != SPARSE_MLA_OK)
        return status;
    if (context->backend == SPARSE_MLA_BACKEND_HOST) {
        snprintf(result.variant, sizeof result.variant, "host");
    } else {
        status = plan_call(context, &p, stream);
        if (status != SPARSE_MLA_OK)
            return status;
        describe_plan(context, &p, &result);
    }
    hand_out(info, info->struct_size, &result, sizeof result);
    return SPARSE_MLA_OK;
}

/* What the planner asks of a device, for one that is not here. Variants do not depend on the SM count. */
static struct smla_device_facts facts_of_target(int capability)
{
    return (struct smla_device_facts){.compute_capability = capability,
                                      .sm_count = 1,
                                      .shared_per_block = smla_profile_shared_limit(smla_profile_of(capability))};
}

sparse_mla_status sparse_mla_warm(sparse_mla_context *context, const sparse_mla_decode_args *args, const char *target)
{
    struct prepared p;
    struct smla_variant variant;
    int capability = 0;
    sparse_mla_status status = check_call(context, &p.call, args, SMLA_CHECK_SHAPES);
    if (status == SPARSE_MLA_OK)
        status = smla_check_target(target, &capability);
    if (status == SPARSE_MLA_OK)
        status = smla_cache_require(&context->cache);
    if (status != SPARSE_MLA_OK || p.call.args.num_tokens == 0)
        return status;
    /* A driver, where there is one, limits which NVRTC may be used. */
    int driver_version = smla_context_driver(context) == SPARSE_MLA_OK ? context->driver.version : 0;
    p.facts = facts_of_target(capability);
    status = smla_plan_make(&p.plan, &p.call, &p.facts, context->profile);
    for (int n = 0; status == SPARSE_MLA_OK && smla_plan_variant(&p.call, &p.facts, context->profile, n, &variant);
         n++) {
        const struct smla_program program = smla_program_of_variant(&variant);
        status = smla_jit_warm(&context->jit, &program, capability, driver_version);
    }
    return status;
}

sparse_mla_status sparse_mla_cache_list(sparse_mla_context *context, sparse_mla_cache_entry_fn visit, void *user)
{
    sparse_mla_status status = check_context(context);
    if (status == SPARSE_MLA_OK && !visit)
        status = smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "visit is NULL; it receives the entries");
    return status == SPARSE_MLA_OK ? smla_cache_list(&context->cache, visit, user) : status;
}

sparse_mla_status sparse_mla_cache_check(sparse_mla_context *context, uint32_t *bad)
{
    sparse_mla_status status = check_context(context);
    if (status == SPARSE_MLA_OK)
        status = check_result(bad, "bad");
    return status == SPARSE_MLA_OK ? smla_cache_check(&context->cache, bad) : status;
}

sparse_mla_status sparse_mla_cache_clear(sparse_mla_context *context)
{
    sparse_mla_status status = check_context(context);
    return status == SPARSE_MLA_OK ? smla_cache_clear(&context->cache) : status;
}

sparse_mla_status sparse_mla_device_info(sparse_mla_context *context, struct CUstream_st *stream,
                                         sparse_mla_device *info)
{
    struct smla_place place;
    struct smla_device_facts facts;
    sparse_mla_device result;
    sparse_mla_device_init(&result);
    sparse_mla_status status = check_context(context);
    if (status == SPARSE_MLA_OK)
        status = check_result(info, "info");
    if (status == SPARSE_MLA_OK)
        status = smla_check_struct_size(info->struct_size, sizeof *info, SMLA_DEVICE_FIRST_SIZE, "info");
    if (status == SPARSE_MLA_OK)
        status = smla_context_place(context, stream, &place, &facts);
    if (status == SPARSE_MLA_OK)
        status = smla_kernel_device_name(&context->driver, &place, result.name, (int)sizeof result.name);
    if (status != SPARSE_MLA_OK)
        return status;
    result.compute_capability = facts.compute_capability;
    result.sm_count = facts.sm_count;
    result.shared_bytes_per_block = facts.shared_per_block;
    result.driver_version = context->driver.version;
    result.nvrtc_version = smla_jit_nvrtc_version(&context->jit, context->driver.version);
    result.profile = smla_profile_of(facts.compute_capability);
    hand_out(info, info->struct_size, &result, sizeof result);
    return SPARSE_MLA_OK;
}
