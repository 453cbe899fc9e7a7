/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel.h"

/* Makes the place's context current; `pushed` says whether leave() has something to undo. */
static sparse_mla_status enter(const struct smla_driver *driver, const struct smla_place *place, bool *pushed)
{
    struct CUctx_st *current = NULL;
    *pushed = false;
    int result = driver->ctx_get_current(&current);
    if (result != SMLA_CU_SUCCESS)
        return smla_driver_fail(driver, result, "cuCtxGetCurrent");
    if (current == place->context)
        return SPARSE_MLA_OK;
    result = driver->ctx_push_current(place->context);
    if (result != SMLA_CU_SUCCESS)
        return smla_driver_fail(driver, result, "cuCtxPushCurrent");
    *pushed = true;
    return SPARSE_MLA_OK;
}

static void leave(const struct smla_driver *driver, bool pushed)
{
    struct CUctx_st *popped;
    if (pushed)
        (void)driver->ctx_pop_current(&popped);
}

sparse_mla_status smla_kernel_place(const struct smla_driver *driver, struct CUstream_st *stream,
                                    struct smla_place *place)
{
    *place = (struct smla_place){.stream = stream};
    int result = driver->stream_get_ctx(stream, &place->context);
    if (result == SMLA_CU_INVALID_CONTEXT || (result == SMLA_CU_SUCCESS && !place->context))
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT,
                         "no CUDA context is current on this thread and stream %p does not bring one", (void *)stream);
    if (result != SMLA_CU_SUCCESS)
        return smla_driver_fail(driver, result, "cuStreamGetCtx");
    result = driver->ctx_get_id(place->context, &place->context_id);
    if (result != SMLA_CU_SUCCESS)
        return smla_driver_fail(driver, result, "cuCtxGetId");
    return SPARSE_MLA_OK;
}

/* Memory transfers twice per clock. Nothing depends on it but what explain() tells. */
static int memory_gbps(const struct smla_driver *driver, int device)
{
    int clock = 0, width = 0;
    if (driver->device_get_attribute(&clock, SMLA_CU_MEMORY_CLOCK_RATE, device) != SMLA_CU_SUCCESS ||
        driver->device_get_attribute(&width, SMLA_CU_MEMORY_BUS_WIDTH, device) != SMLA_CU_SUCCESS)
        return 0;
    return (int)((int64_t)clock * 2 * width / 8 / 1000000);
}

static int read_facts(const struct smla_driver *driver, const struct smla_place *place, int device,
                      struct smla_device_facts *facts)
{
    int major = 0, minor = 0;
    const struct {
        int attribute;
        int *value;
    } wanted[] = {
        {SMLA_CU_COMPUTE_CAPABILITY_MAJOR, &major},
        {SMLA_CU_COMPUTE_CAPABILITY_MINOR, &minor},
        {SMLA_CU_MULTIPROCESSOR_COUNT, &facts->sm_count},
        {SMLA_CU_SHARED_PER_BLOCK_OPTIN, &facts->shared_per_block},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        int result = driver->device_get_attribute(wanted[i].value, wanted[i].attribute, device);
        if (result != SMLA_CU_SUCCESS)
            return result;
    }
    facts->compute_capability = 10 * major + minor;
    facts->memory_gbps = memory_gbps(driver, device);

    struct smla_cu_resource resource = {0};
    if (driver->ctx_get_dev_resource &&
        driver->ctx_get_dev_resource(place->context, &resource, SMLA_CU_RESOURCE_TYPE_SM) == SMLA_CU_SUCCESS &&
        resource.type == SMLA_CU_RESOURCE_TYPE_SM && resource.sm_count > 0)
        facts->sm_count = (int)resource.sm_count;
    return SMLA_CU_SUCCESS;
}

sparse_mla_status smla_kernel_facts(const struct smla_driver *driver, const struct smla_place *place,
                                    struct smla_device_facts *facts)
{
    int device = 0;
    bool pushed;
    memset(facts, 0, sizeof *facts);
    sparse_mla_status status = enter(driver, place, &pushed);
    if (status != SPARSE_MLA_OK)
        return status;
    int result = driver->ctx_get_device(&device);
    if (result != SMLA_CU_SUCCESS)
        status = smla_driver_fail(driver, result, "cuCtxGetDevice");
    else if ((result = read_facts(driver, place, device, facts)) != SMLA_CU_SUCCESS)
        status = smla_driver_fail(driver, result, "cuDeviceGetAttribute");
    leave(driver, pushed);
    return status;
}

sparse_mla_status smla_kernel_device_name(const struct smla_driver *driver, const struct smla_place *place, char *name,
                                          int size)
{
    int device = 0;
    bool pushed;
    sparse_mla_status status = enter(driver, place, &pushed);
    if (status != SPARSE_MLA_OK)
        return status;
    int result = driver->ctx_get_device(&device);
    if (result != SMLA_CU_SUCCESS)
        status = smla_driver_fail(driver, result, "cuCtxGetDevice");
    else if ((result = driver->device_get_name(name, size, device)) != SMLA_CU_SUCCESS)
        status = smla_driver_fail(driver, result, "cuDeviceGetName");
    leave(driver, pushed);
    return status;
}

bool smla_kernel_capturing(const struct smla_driver *driver, const struct smla_place *place)
{
    int capture = SMLA_CU_CAPTURE_NONE;
    return driver->stream_is_capturing(place->stream, &capture) != SMLA_CU_SUCCESS || capture != SMLA_CU_CAPTURE_NONE;
}

static sparse_mla_status take_function(const struct smla_driver *driver, struct CUmod_st *module, const char *name,
                                       int shared_bytes, struct smla_kernel *kernel)
{
    int result = driver->module_get_function(&kernel->function, module, name);
    if (result != SMLA_CU_SUCCESS)
        return smla_driver_fail(driver, result, "cuModuleGetFunction");
    result = driver->func_set_attribute(kernel->function, SMLA_CU_FUNC_MAX_DYNAMIC_SHARED, shared_bytes);
    if (result != SMLA_CU_SUCCESS)
        return smla_driver_fail(driver, result, "cuFuncSetAttribute");
    /* Refused where there are no clusters; where there are, a launch that needs it would say so. */
    driver->func_set_attribute(kernel->function, SMLA_CU_FUNC_NON_PORTABLE_CLUSTER, 1);
    result = driver->func_get_attribute(&kernel->registers, SMLA_CU_FUNC_NUM_REGS, kernel->function);
    if (result != SMLA_CU_SUCCESS)
        return smla_driver_fail(driver, result, "cuFuncGetAttribute");
    return SPARSE_MLA_OK;
}

static sparse_mla_status load_fail(const struct smla_driver *driver, int result, const char *name, bool *refused)
{
    sparse_mla_status status = smla_driver_fail(driver, result, "cuModuleLoadData");
    *refused = result == SMLA_CU_INVALID_IMAGE || result == SMLA_CU_NO_BINARY_FOR_GPU ||
               result == SMLA_CU_UNSUPPORTED_PTX_VERSION;
    if (!*refused)
        return status;
    return smla_fail(SPARSE_MLA_DRIVER_TOO_OLD, "CUDA driver %d.%d refuses the compiled kernel %s: %s",
                     driver->version / 1000, driver->version % 1000 / 10, name, sparse_mla_last_error());
}

sparse_mla_status smla_kernel_load(const struct smla_driver *driver, const struct smla_place *place, const void *cubin,
                                   const char *name, int shared_bytes, struct smla_kernel *kernel, bool *refused)
{
    struct CUmod_st *module = NULL;
    bool pushed;
    *refused = false;
    memset(kernel, 0, sizeof *kernel);
    sparse_mla_status status = enter(driver, place, &pushed);
    if (status != SPARSE_MLA_OK)
        return status;
    int result = driver->module_load_data(&module, cubin);
    if (result != SMLA_CU_SUCCESS) {
        status = load_fail(driver, result, name, refused);
    } else {
        status = take_function(driver, module, name, shared_bytes, kernel);
        if (status != SPARSE_MLA_OK)
            (void)driver->module_unload(module);
    }
    leave(driver, pushed);
    return status;
}

static sparse_mla_status launch(const struct smla_driver *driver, const struct smla_place *place,
                                const struct smla_kernel *kernel, const struct smla_cu_launch_config *config,
                                void *params)
{
    bool pushed;
    sparse_mla_status status = enter(driver, place, &pushed);
    if (status != SPARSE_MLA_OK)
        return status;
    int result = driver->launch_kernel_ex(config, kernel->function, &params, NULL);
    if (result != SMLA_CU_SUCCESS)
        status = smla_driver_fail(driver, result, "cuLaunchKernelEx");
    leave(driver, pushed);
    return status;
}

sparse_mla_status smla_kernel_launch(const struct smla_driver *driver, const struct smla_place *place,
                                     const struct smla_kernel *kernel, const struct smla_plan *plan, void *params)
{
    struct smla_cu_launch_attribute attributes[2];
    unsigned count = 0;
    if (plan->clustered)
        attributes[count++] = (struct smla_cu_launch_attribute){.id = SMLA_CU_LAUNCH_CLUSTER_DIMENSION,
                                                                .value.cluster = {1, (unsigned)plan->num_splits, 1}};
    if (plan->overlapped)
        attributes[count++] =
            (struct smla_cu_launch_attribute){.id = SMLA_CU_LAUNCH_PROGRAMMATIC_SERIALIZATION, .value.allowed = 1};
    const struct smla_cu_launch_config config = {
        .grid_x = plan->grid_x,
        .grid_y = plan->grid_y,
        .grid_z = 1,
        .block_x = (unsigned)smla_variant_threads(&plan->variant),
        .block_y = 1,
        .block_z = 1,
        .shared_bytes = (unsigned)plan->shared_bytes,
        .stream = place->stream,
        .attributes = attributes,
        .num_attributes = count,
    };
    return launch(driver, place, kernel, &config, params);
}

sparse_mla_status smla_kernel_launch_tool(const struct smla_driver *driver, const struct smla_place *place,
                                          const struct smla_kernel *kernel, const struct smla_program *program,
                                          unsigned blocks, void *params)
{
    const struct smla_cu_launch_config config = {
        .grid_x = blocks,
        .grid_y = 1,
        .grid_z = 1,
        .block_x = (unsigned)smla_program_threads(program),
        .block_y = 1,
        .block_z = 1,
        .shared_bytes = (unsigned)smla_program_shared_bytes(program),
        .stream = place->stream,
    };
    return launch(driver, place, kernel, &config, params);
}

sparse_mla_status smla_kernel_zero(const struct smla_driver *driver, const struct smla_place *place, void *pointer,
                                   size_t bytes)
{
    bool pushed;
    sparse_mla_status status = enter(driver, place, &pushed);
    if (status != SPARSE_MLA_OK)
        return status;
    int result = driver->memset_d8_async((unsigned long long)(uintptr_t)pointer, 0, bytes, place->stream);
    if (result != SMLA_CU_SUCCESS)
        status = smla_driver_fail(driver, result, "cuMemsetD8Async");
    leave(driver, pushed);
    return status;
}

sparse_mla_status smla_kernel_wait(const struct smla_driver *driver, const struct smla_place *place)
{
    bool pushed;
    sparse_mla_status status = enter(driver, place, &pushed);
    if (status != SPARSE_MLA_OK)
        return status;
    const int result = driver->stream_synchronize(place->stream);
    leave(driver, pushed);
    return result == SMLA_CU_SUCCESS ? SPARSE_MLA_OK : smla_driver_fail(driver, result, "cuStreamSynchronize");
}

sparse_mla_status smla_kernel_read(const struct smla_driver *driver, const struct smla_place *place, void *to,
                                   const void *from, size_t bytes)
{
    bool pushed;
    sparse_mla_status status = enter(driver, place, &pushed);
    if (status != SPARSE_MLA_OK)
        return status;
    const int result = driver->memcpy_d_to_h(to, (uintptr_t)from, bytes);
    leave(driver, pushed);
    return result == SMLA_CU_SUCCESS ? SPARSE_MLA_OK : smla_driver_fail(driver, result, "cuMemcpyDtoH");
}
