/* SPDX-License-Identifier: Apache-2.0 */
#include "fake.h"

#include <stdio.h>

static int result_of(const char *function)
{
    return fake.failing && strcmp(fake.failing, function) == 0 ? fake.failing_result : SMLA_CU_SUCCESS;
}

static int fake_init(unsigned flags)
{
    (void)flags;
    return result_of("cuInit");
}

static int fake_driver_get_version(int *version)
{
    *version = fake.driver_version;
    return result_of("cuDriverGetVersion");
}

static int fake_get_error_name(int result, const char **name)
{
    (void)result;
    *name = "CUDA_ERROR_FAKE";
    return SMLA_CU_SUCCESS;
}

static int fake_device_get_attribute(int *value, int attribute, int device)
{
    (void)device;
    switch (attribute) {
    case SMLA_CU_MULTIPROCESSOR_COUNT:
        *value = 132;
        break;
    case SMLA_CU_MEMORY_CLOCK_RATE:
        *value = 3201000;
        break;
    case SMLA_CU_MEMORY_BUS_WIDTH:
        *value = 6144;
        break;
    case SMLA_CU_COMPUTE_CAPABILITY_MAJOR:
        *value = fake.capability / 10;
        break;
    case SMLA_CU_COMPUTE_CAPABILITY_MINOR:
        *value = fake.capability % 10;
        break;
    case SMLA_CU_SHARED_PER_BLOCK_OPTIN:
        *value = 232448;
        break;
    default:
        return 1;
    }
    return result_of("cuDeviceGetAttribute");
}

static int fake_device_get_name(char *name, int length, int device)
{
    (void)device;
    snprintf(name, (size_t)length, "Fake GPU");
    return result_of("cuDeviceGetName");
}

static int fake_ctx_get_current(struct CUctx_st **context)
{
    *context = fake.current;
    return result_of("cuCtxGetCurrent");
}

static int fake_ctx_push_current(struct CUctx_st *context)
{
    (void)context;
    if (result_of("cuCtxPushCurrent") == SMLA_CU_SUCCESS)
        fake.pushes++;
    return result_of("cuCtxPushCurrent");
}

static int fake_ctx_pop_current(struct CUctx_st **context)
{
    *context = fake.of_stream;
    fake.pops++;
    return SMLA_CU_SUCCESS;
}

static int fake_ctx_get_device(int *device)
{
    *device = 0;
    return result_of("cuCtxGetDevice");
}

static int fake_ctx_get_id(struct CUctx_st *context, unsigned long long *id)
{
    *id = (unsigned long long)(uintptr_t)context;
    return result_of("cuCtxGetId");
}

static int fake_stream_get_ctx(struct CUstream_st *stream, struct CUctx_st **context)
{
    (void)stream;
    *context = fake.of_stream;
    return result_of("cuStreamGetCtx");
}

static int fake_stream_is_capturing(struct CUstream_st *stream, int *status)
{
    (void)stream;
    *status = fake.capture;
    return result_of("cuStreamIsCapturing");
}

static int fake_module_load_data(struct CUmod_st **module, const void *image)
{
    static char some_module;
    fake.loads++;
    snprintf(fake.loaded, sizeof fake.loaded, "%s", (const char *)image);
    *module = (struct CUmod_st *)&some_module;
    if (fake.refusals > 0) {
        fake.refusals--;
        return fake.refusal_result;
    }
    return result_of("cuModuleLoadData");
}

static int fake_module_unload(struct CUmod_st *module)
{
    (void)module;
    fake.unloads++;
    return SMLA_CU_SUCCESS;
}

static int fake_module_get_function(struct CUfunc_st **function, struct CUmod_st *module, const char *name)
{
    static char names[64][128]; /* a function is where its name is */
    int n = 0;
    (void)module;
    pthread_mutex_lock(&fake.mutex);
    while (n < 63 && names[n][0] && strcmp(names[n], name) != 0)
        n++;
    snprintf(names[n], sizeof names[n], "%s", name);
    snprintf(fake.entry_point, sizeof fake.entry_point, "%s", name);
    pthread_mutex_unlock(&fake.mutex);
    *function = (struct CUfunc_st *)names[n];
    return result_of("cuModuleGetFunction");
}

static int fake_func_get_attribute(int *value, int attribute, struct CUfunc_st *function)
{
    (void)function;
    *value = attribute == SMLA_CU_FUNC_NUM_REGS ? 168 : -1;
    return result_of("cuFuncGetAttribute");
}

static int fake_func_set_attribute(struct CUfunc_st *function, int attribute, int value)
{
    (void)function;
    if (attribute == SMLA_CU_FUNC_MAX_DYNAMIC_SHARED)
        fake.dynamic_shared = value;
    return result_of("cuFuncSetAttribute");
}

static void keep_params(const void *params)
{
    if (strcmp(fake.launched, "sparse_mla_merge") == 0)
        memcpy(&fake.merge_params, params, sizeof fake.merge_params);
    else if (strcmp(fake.launched, "sparse_mla_map_slots") == 0)
        memcpy(&fake.slots_params, params, sizeof fake.slots_params);
    else if (strcmp(fake.launched, "sparse_mla_cache_append") == 0)
        memcpy(&fake.append_params, params, sizeof fake.append_params);
    else
        memcpy(&fake.params, params, sizeof fake.params);
}

static int fake_launch_kernel_ex(const struct smla_cu_launch_config *config, struct CUfunc_st *function, void **params,
                                 void **extra)
{
    if (result_of("cuLaunchKernelEx") != SMLA_CU_SUCCESS || extra)
        return fake.failing_result;
    pthread_mutex_lock(&fake.mutex);
    fake.launches++;
    fake.config = *config;
    if (config->num_attributes)
        fake.attribute = *config->attributes;
    snprintf(fake.launched, sizeof fake.launched, "%s", (const char *)function);
    keep_params(params[0]);
    pthread_mutex_unlock(&fake.mutex);
    return SMLA_CU_SUCCESS;
}

static int fake_memset_d8_async(unsigned long long pointer, unsigned char value, size_t bytes,
                                struct CUstream_st *stream)
{
    (void)stream;
    fake.zeroed_at = value == 0 ? pointer : 0;
    fake.zeroed_bytes = bytes;
    return result_of("cuMemsetD8Async");
}

static int fake_stream_synchronize(struct CUstream_st *stream)
{
    (void)stream;
    return result_of("cuStreamSynchronize");
}

/* The fake device's memory is the host's. */
static int fake_memcpy_d_to_h(void *to, unsigned long long from, size_t bytes)
{
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return result_of("cuMemcpyDtoH");
}

static int fake_ctx_get_dev_resource(struct CUctx_st *context, struct smla_cu_resource *resource, int type)
{
    (void)context;
    resource->type = type;
    resource->sm_count = (unsigned)fake.green_sms;
    return result_of("cuCtxGetDevResource");
}

void fake_driver(struct smla_driver *driver)
{
    *driver = (struct smla_driver){
        .init = fake_init,
        .driver_get_version = fake_driver_get_version,
        .get_error_name = fake_get_error_name,
        .device_get_attribute = fake_device_get_attribute,
        .device_get_name = fake_device_get_name,
        .ctx_get_current = fake_ctx_get_current,
        .ctx_push_current = fake_ctx_push_current,
        .ctx_pop_current = fake_ctx_pop_current,
        .ctx_get_device = fake_ctx_get_device,
        .ctx_get_id = fake_ctx_get_id,
        .stream_get_ctx = fake_stream_get_ctx,
        .stream_is_capturing = fake_stream_is_capturing,
        .module_load_data = fake_module_load_data,
        .module_unload = fake_module_unload,
        .module_get_function = fake_module_get_function,
        .func_get_attribute = fake_func_get_attribute,
        .func_set_attribute = fake_func_set_attribute,
        .launch_kernel_ex = fake_launch_kernel_ex,
        .memset_d8_async = fake_memset_d8_async,
        .stream_synchronize = fake_stream_synchronize,
        .memcpy_d_to_h = fake_memcpy_d_to_h,
        .ctx_get_dev_resource = fake.green_sms ? fake_ctx_get_dev_resource : NULL,
    };
}
