/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>

#define LEGACY_STREAM 1 /* CU_GET_PROC_ADDRESS_LEGACY_STREAM: a NULL stream is the legacy one */

typedef int (*get_proc_address_fn)(const char *symbol, void **function, int version, uint64_t flags, int *found);

static void *look_up(get_proc_address_fn get, const char *name, int version)
{
    void *function = NULL;
    int found = 0;
    if (get(name, &function, version, LEGACY_STREAM, &found) != SMLA_CU_SUCCESS)
        return NULL;
    return function;
}

/* The version with each name is that of the signature in driver.h. */
static const char *fill(struct smla_driver *driver, get_proc_address_fn get)
{
    const struct {
        void *slot;
        const char *name;
        int version;
    } functions[] = {
        {&driver->init, "cuInit", 2000},
        {&driver->driver_get_version, "cuDriverGetVersion", 2020},
        {&driver->get_error_name, "cuGetErrorName", 6000},
        {&driver->device_get_attribute, "cuDeviceGetAttribute", 2000},
        {&driver->device_get_name, "cuDeviceGetName", 2000},
        {&driver->ctx_get_current, "cuCtxGetCurrent", 4000},
        {&driver->ctx_push_current, "cuCtxPushCurrent", 4000},
        {&driver->ctx_pop_current, "cuCtxPopCurrent", 4000},
        {&driver->ctx_get_device, "cuCtxGetDevice", 2000},
        {&driver->ctx_get_id, "cuCtxGetId", 12000},
        {&driver->stream_get_ctx, "cuStreamGetCtx", 9020},
        {&driver->stream_is_capturing, "cuStreamIsCapturing", 10000},
        {&driver->module_load_data, "cuModuleLoadData", 2000},
        {&driver->module_unload, "cuModuleUnload", 2000},
        {&driver->module_get_function, "cuModuleGetFunction", 2000},
        {&driver->func_get_attribute, "cuFuncGetAttribute", 2020},
        {&driver->func_set_attribute, "cuFuncSetAttribute", 9000},
        {&driver->launch_kernel_ex, "cuLaunchKernelEx", 11060},
        {&driver->memset_d8_async, "cuMemsetD8Async", 3020},
        {&driver->stream_synchronize, "cuStreamSynchronize", 2000},
        {&driver->memcpy_d_to_h, "cuMemcpyDtoH", 3020},
    };
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *function = look_up(get, functions[i].name, functions[i].version);
        if (!function)
            return functions[i].name;
        memcpy(functions[i].slot, &function, sizeof function);
    }
    void *optional = look_up(get, "cuCtxGetDevResource", 12040);
    memcpy(&driver->ctx_get_dev_resource, &optional, sizeof optional);
    return NULL;
}

sparse_mla_status smla_driver_start(struct smla_driver *driver)
{
    int version = 0;
    int result = driver->driver_get_version(&version);
    if (result != SMLA_CU_SUCCESS)
        return smla_driver_fail(driver, result, "cuDriverGetVersion");
    if (version < SMLA_DRIVER_FLOOR)
        return smla_fail(SPARSE_MLA_DRIVER_TOO_OLD, "the CUDA driver is version %d.%d; %d.%d or newer is needed",
                         version / 1000, version % 1000 / 10, SMLA_DRIVER_FLOOR / 1000, SMLA_DRIVER_FLOOR % 1000 / 10);
    result = driver->init(0);
    if (result == SMLA_CU_NO_DEVICE)
        return smla_fail(SPARSE_MLA_NO_DRIVER, "the CUDA driver finds no device");
    if (result != SMLA_CU_SUCCESS) {
        (void)smla_driver_fail(driver, result, "cuInit");
        return smla_fail(SPARSE_MLA_NO_DRIVER, "the CUDA driver cannot be used: %s", sparse_mla_last_error());
    }
    driver->version = version;
    return SPARSE_MLA_OK;
}

sparse_mla_status smla_driver_open(struct smla_driver *driver)
{
    get_proc_address_fn get;
    memset(driver, 0, sizeof *driver);
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return smla_fail(SPARSE_MLA_NO_DRIVER, "the CUDA driver cannot be loaded: %s", dlerror());
    void *symbol = dlsym(library, "cuGetProcAddress_v2");
    if (!symbol)
        return smla_fail(SPARSE_MLA_DRIVER_TOO_OLD,
                         "the CUDA driver (libcuda.so.1) has no cuGetProcAddress_v2; %d.%d or newer is needed",
                         SMLA_DRIVER_FLOOR / 1000, SMLA_DRIVER_FLOOR % 1000 / 10);
    memcpy(&get, &symbol, sizeof get);
    const char *missing = fill(driver, get);
    if (missing)
        return smla_fail(SPARSE_MLA_DRIVER_TOO_OLD, "the CUDA driver has no %s; %d.%d or newer is needed", missing,
                         SMLA_DRIVER_FLOOR / 1000, SMLA_DRIVER_FLOOR % 1000 / 10);
    return smla_driver_start(driver);
}

sparse_mla_status smla_driver_fail(const struct smla_driver *driver, int result, const char *function)
{
    const char *name = NULL;
    if (driver->get_error_name(result, &name) != SMLA_CU_SUCCESS || !name)
        name = "unknown error";
    return smla_fail(result == SMLA_CU_OUT_OF_MEMORY ? SPARSE_MLA_OUT_OF_MEMORY : SPARSE_MLA_DRIVER_ERROR,
                     "%s failed: %s (%d)", function, name, result);
}
