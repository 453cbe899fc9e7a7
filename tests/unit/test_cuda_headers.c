/* SPDX-License-Identifier: Apache-2.0 */
/* driver.h and nvrtc.h say the same as cuda.h and nvrtc.h, where those are installed. */
#include "driver.h"
#include "nvrtc.h"

#include <stddef.h>

#ifdef SMLA_CUDA_NVRTC_H /* NVRTC's header by its path: ours has the same name */
#include <cuda.h>
#include <cudaTypedefs.h>
#include SMLA_CUDA_NVRTC_H

#define SAME(ours, theirs) _Static_assert((long long)(ours) == (long long)(theirs), #ours " is not " #theirs)
#define SAME_FIELD(our_struct, our_field, their_struct, their_field)                                                   \
    SAME(offsetof(our_struct, our_field), offsetof(their_struct, their_field));                                        \
    SAME(sizeof((our_struct *)0)->our_field, sizeof((their_struct *)0)->their_field)

SAME(SMLA_CU_SUCCESS, CUDA_SUCCESS);
SAME(SMLA_CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME(SMLA_CU_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME(SMLA_CU_INVALID_IMAGE, CUDA_ERROR_INVALID_IMAGE);
SAME(SMLA_CU_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT);
SAME(SMLA_CU_NO_BINARY_FOR_GPU, CUDA_ERROR_NO_BINARY_FOR_GPU);
SAME(SMLA_CU_UNSUPPORTED_PTX_VERSION, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
SAME(SMLA_CU_MULTIPROCESSOR_COUNT, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(SMLA_CU_MEMORY_CLOCK_RATE, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
SAME(SMLA_CU_MEMORY_BUS_WIDTH, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
SAME(SMLA_CU_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(SMLA_CU_COMPUTE_CAPABILITY_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(SMLA_CU_SHARED_PER_BLOCK_OPTIN, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
SAME(SMLA_CU_FUNC_NUM_REGS, CU_FUNC_ATTRIBUTE_NUM_REGS);
SAME(SMLA_CU_FUNC_NON_PORTABLE_CLUSTER, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED);
SAME(SMLA_CU_LAUNCH_CLUSTER_DIMENSION, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
SAME(SMLA_CU_FUNC_MAX_DYNAMIC_SHARED, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME(SMLA_CU_CAPTURE_NONE, CU_STREAM_CAPTURE_STATUS_NONE);
SAME(SMLA_CU_RESOURCE_TYPE_SM, CU_DEV_RESOURCE_TYPE_SM);
SAME(SMLA_NVRTC_SUCCESS, NVRTC_SUCCESS);
SAME(SMLA_NVRTC_OUT_OF_MEMORY, NVRTC_ERROR_OUT_OF_MEMORY);
SAME(SMLA_NVRTC_COMPILATION, NVRTC_ERROR_COMPILATION);

SAME(sizeof(struct smla_cu_launch_config), sizeof(CUlaunchConfig));
SAME_FIELD(struct smla_cu_launch_config, grid_x, CUlaunchConfig, gridDimX);
SAME_FIELD(struct smla_cu_launch_config, grid_z, CUlaunchConfig, gridDimZ);
SAME_FIELD(struct smla_cu_launch_config, block_x, CUlaunchConfig, blockDimX);
SAME_FIELD(struct smla_cu_launch_config, block_z, CUlaunchConfig, blockDimZ);
SAME_FIELD(struct smla_cu_launch_config, shared_bytes, CUlaunchConfig, sharedMemBytes);
SAME_FIELD(struct smla_cu_launch_config, stream, CUlaunchConfig, hStream);
SAME_FIELD(struct smla_cu_launch_config, attributes, CUlaunchConfig, attrs);
SAME_FIELD(struct smla_cu_launch_config, num_attributes, CUlaunchConfig, numAttrs);

/* The result types and handles that the table writes as int, unsigned long long and pointers. */
SAME(sizeof(CUresult), sizeof(int));
SAME(sizeof(CUdevice), sizeof(int));
SAME(sizeof(CUdeviceptr), sizeof(unsigned long long));
SAME(sizeof(nvrtcResult), sizeof(int));

/* These typedefs exist, so each signature is of the version that src/driver.c asks for. */
struct versions {
    PFN_cuInit_v2000 init;
    PFN_cuDriverGetVersion_v2020 driver_get_version;
    PFN_cuGetErrorName_v6000 get_error_name;
    PFN_cuDeviceGetAttribute_v2000 device_get_attribute;
    PFN_cuDeviceGetName_v2000 device_get_name;
    PFN_cuCtxGetCurrent_v4000 ctx_get_current;
    PFN_cuCtxPushCurrent_v4000 ctx_push_current;
    PFN_cuCtxPopCurrent_v4000 ctx_pop_current;
    PFN_cuCtxGetDevice_v2000 ctx_get_device;
    PFN_cuCtxGetId_v12000 ctx_get_id;
    PFN_cuStreamGetCtx_v9020 stream_get_ctx;
    PFN_cuStreamIsCapturing_v10000 stream_is_capturing;
    PFN_cuModuleLoadData_v2000 module_load_data;
    PFN_cuModuleUnload_v2000 module_unload;
    PFN_cuModuleGetFunction_v2000 module_get_function;
    PFN_cuFuncGetAttribute_v2020 func_get_attribute;
    PFN_cuFuncSetAttribute_v9000 func_set_attribute;
    PFN_cuLaunchKernelEx_v11060 launch_kernel_ex;
    PFN_cuMemsetD8Async_v3020 memset_d8_async;
    PFN_cuStreamSynchronize_v2000 stream_synchronize;
    PFN_cuMemcpyDtoH_v3020 memcpy_d_to_h;
    PFN_cuGetProcAddress_v12000 get_proc_address;
};

#if CUDA_VERSION >= 12040
SAME_FIELD(struct smla_cu_resource, type, CUdevResource_v1, type);
SAME(offsetof(struct smla_cu_resource, sm_count), offsetof(CUdevResource_v1, sm.smCount));
_Static_assert(sizeof(struct smla_cu_resource) >= sizeof(CUdevResource_v1), "the driver would write past our struct");
#endif

int main(void)
{
    return 0; /* all of it is checked by the compiler */
}
#else
int main(void)
{
    return 77; /* skipped */
}
#endif
