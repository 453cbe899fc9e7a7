/* SPDX-License-Identifier: Apache-2.0 */
/* The driver functions that tests and benchmarks need, from libcuda.so.1. A failure ends the program. */
#ifndef TESTS_GPU_CUDA_H
#define TESTS_GPU_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct CUstream_st;
typedef uint64_t cu_pointer;

#define CUDA_FUNCTIONS(X)                                                                                              \
    X(cuInit, (unsigned flags))                                                                                        \
    X(cuDeviceGetCount, (int *count))                                                                                  \
    X(cuDeviceGetName, (char *name, int length, int device))                                                           \
    X(cuDeviceGetAttribute, (int *value, int attribute, int device))                                                   \
    X(cuDevicePrimaryCtxRetain, (void **context, int device))                                                          \
    X(cuCtxSetCurrent, (void *context))                                                                                \
    X(cuCtxSynchronize, (void))                                                                                        \
    X(cuStreamCreate, (struct CUstream_st * *stream, unsigned flags))                                                  \
    X(cuStreamSynchronize, (struct CUstream_st * stream))                                                              \
    X(cuStreamBeginCapture_v2, (struct CUstream_st * stream, int mode))                                                \
    X(cuStreamEndCapture, (struct CUstream_st * stream, void **graph))                                                 \
    X(cuGraphInstantiateWithFlags, (void **exec, void *graph, unsigned long long flags))                               \
    X(cuGraphLaunch, (void *exec, struct CUstream_st *stream))                                                         \
    X(cuGraphExecDestroy, (void *exec))                                                                                \
    X(cuGraphDestroy, (void *graph))                                                                                   \
    X(cuMemAlloc_v2, (cu_pointer * pointer, size_t bytes))                                                             \
    X(cuMemFree_v2, (cu_pointer pointer))                                                                              \
    X(cuMemcpyHtoD_v2, (cu_pointer target, const void *source, size_t bytes))                                          \
    X(cuMemcpyDtoH_v2, (void *target, cu_pointer source, size_t bytes))                                                \
    X(cuMemcpyHtoDAsync_v2, (cu_pointer target, const void *source, size_t bytes, struct CUstream_st *stream))         \
    X(cuMemcpyDtoHAsync_v2, (void *target, cu_pointer source, size_t bytes, struct CUstream_st *stream))               \
    X(cuMemGetInfo_v2, (size_t * free, size_t * total))                                                                \
    X(cuMemsetD8_v2, (cu_pointer pointer, unsigned char value, size_t bytes))                                          \
    X(cuEventCreate, (void **event, unsigned flags))                                                                   \
    X(cuEventRecord, (void *event, struct CUstream_st *stream))                                                        \
    X(cuEventSynchronize, (void *event))                                                                               \
    X(cuEventElapsedTime, (float *milliseconds, void *start, void *stop))                                              \
    X(cuModuleLoadData, (void **module, const void *image))                                                            \
    X(cuModuleGetFunction, (void **function, void *module, const char *name))                                          \
    X(cuFuncSetAttribute, (void *function, int attribute, int value))                                                  \
    X(cuLaunchKernel,                                                                                                  \
      (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,          \
       unsigned block_z, unsigned shared_bytes, struct CUstream_st *stream, void **params, void **extra))

#define CUDA_DECLARE(name, parameters) int(*name) parameters;
extern struct cuda {
    CUDA_FUNCTIONS(CUDA_DECLARE)
} cuda;

#define CUDA(call) cuda_check(cuda.call, #call, __FILE__, __LINE__)
void cuda_check(int result, const char *call, const char *file, int line);

/* Context of the first GPU and a stream; ends the program with status 77 (skipped) where there is none. */
struct CUstream_st *cuda_open(void);

/* Makes that context the calling thread's. */
void cuda_attach(void);

/* Filled with 0xFF: NaN in every float format here. */
void *cuda_alloc(size_t bytes);
void *cuda_upload(const void *data, size_t bytes);
void cuda_free(void *pointer);

/* A kernel of CUDA source, through NVRTC, for this device; NULL where there is no NVRTC. */
void *cuda_compile(const char *source, const char *name);

#endif
