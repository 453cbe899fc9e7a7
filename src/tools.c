/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls beside decode: check, get the kernel, launch. */
#include "tools.h"

#include "context.h"

static sparse_mla_status check_context(const sparse_mla_context *context)
{
    if (!context)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "context is NULL; sparse_mla_create() makes one");
    return SPARSE_MLA_OK;
}

static sparse_mla_status only_host(void)
{
    return smla_fail(SPARSE_MLA_UNSUPPORTED, "options.backend is 0 (CUDA): this call has only the host backend yet");
}

sparse_mla_status sparse_mla_merge(sparse_mla_context *context, const sparse_mla_merge_args *args,
                                   struct CUstream_st *stream)
{
    sparse_mla_merge_args merge;
    (void)stream;
    sparse_mla_status status = check_context(context);
    if (status == SPARSE_MLA_OK)
        status = smla_merge_check(&merge, args);
    if (status != SPARSE_MLA_OK || merge.num_tokens == 0)
        return status;
    if (context->backend != SPARSE_MLA_BACKEND_HOST)
        return only_host();
    smla_merge_host(&merge);
    return SPARSE_MLA_OK;
}

sparse_mla_status sparse_mla_map_slots(sparse_mla_context *context, const sparse_mla_map_slots_args *args,
                                       struct CUstream_st *stream)
{
    sparse_mla_map_slots_args map;
    (void)stream;
    sparse_mla_status status = check_context(context);
    if (status == SPARSE_MLA_OK)
        status = smla_slots_check(&map, args);
    if (status != SPARSE_MLA_OK || map.num_tokens == 0)
        return status;
    if (context->backend != SPARSE_MLA_BACKEND_HOST)
        return only_host();
    smla_slots_host(&map);
    return SPARSE_MLA_OK;
}

sparse_mla_status sparse_mla_cache_append(sparse_mla_context *context, const sparse_mla_cache_append_args *args,
                                          struct CUstream_st *stream)
{
    struct smla_append append;
    (void)stream;
    sparse_mla_status status = check_context(context);
    if (status == SPARSE_MLA_OK)
        status = smla_append_check(&append, args);
    if (status != SPARSE_MLA_OK || append.args.num_rows == 0)
        return status;
    if (context->backend != SPARSE_MLA_BACKEND_HOST)
        return only_host();
    smla_append_host(&append);
    return SPARSE_MLA_OK;
}

sparse_mla_status sparse_mla_tools_prepare(sparse_mla_context *context, struct CUstream_st *stream)
{
    (void)stream;
    return check_context(context);
}

sparse_mla_status sparse_mla_tools_warm(sparse_mla_context *context, const char *target)
{
    (void)target;
    return check_context(context);
}
