/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "cuda.h"

#include "nvrtc.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

struct cuda cuda;
static void *context;

void cuda_check(int result, const char *call, const char *file, int line)
{
    if (result == 0)
        return;
    fprintf(stderr, "%s:%d: CUDA error %d from %s\n", file, line, result, call);
    exit(1);
}

static _Noreturn void skip(const char *why)
{
    printf("skipped: %s\n", why);
    exit(77);
}

struct CUstream_st *cuda_open(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    struct CUstream_st *stream;
    int count = 0;
    if (!library)
        skip("no libcuda.so.1");
#define LOAD(name, parameters) *(void **)&cuda.name = dlsym(library, #name);
    CUDA_FUNCTIONS(LOAD)
    if (cuda.cuInit(0) != 0 || cuda.cuDeviceGetCount(&count) != 0 || count == 0)
        skip("no CUDA device");
    CUDA(cuDevicePrimaryCtxRetain(&context, 0));
    cuda_attach();
    CUDA(cuStreamCreate(&stream, 1));
    return stream;
}

void cuda_attach(void)
{
    CUDA(cuCtxSetCurrent(context));
}

void *cuda_alloc(size_t bytes)
{
    cu_pointer pointer;
    CUDA(cuMemAlloc_v2(&pointer, bytes ? bytes : 1));
    CUDA(cuMemsetD8_v2(pointer, 0xFF, bytes ? bytes : 1));
    CUDA(cuCtxSynchronize());
    return (void *)(uintptr_t)pointer;
}

void *cuda_upload(const void *data, size_t bytes)
{
    void *pointer = cuda_alloc(bytes);
    if (bytes)
        CUDA(cuMemcpyHtoD_v2((uintptr_t)pointer, data, bytes));
    return pointer;
}

void cuda_free(void *pointer)
{
    if (pointer)
        CUDA(cuMemFree_v2((uintptr_t)pointer));
}

void *cuda_compile(const char *source, const char *name)
{
    struct smla_nvrtc nvrtc = {0};
    struct smla_log silent = {0};
    struct _nvrtcProgram *program;
    int major, minor;
    size_t bytes;
    void *module, *function;
    char arch[32];
    if (smla_nvrtc_open(&nvrtc, getenv("SPARSEMLA_NVRTC"), 0, &silent) != SPARSE_MLA_OK)
        return NULL;
    CUDA(cuDeviceGetAttribute(&major, 75, 0));
    CUDA(cuDeviceGetAttribute(&minor, 76, 0));
    snprintf(arch, sizeof arch, "-arch=sm_%d%d", major, minor);
    const char *options[] = {arch};
    if (nvrtc.create_program(&program, source, name, 0, NULL, NULL) != 0 ||
        nvrtc.compile_program(program, 1, options) != 0 || nvrtc.get_cubin_size(program, &bytes) != 0) {
        fprintf(stderr, "cannot compile %s\n", name);
        exit(1);
    }
    char *cubin = malloc(bytes);
    if (!cubin || nvrtc.get_cubin(program, cubin) != 0)
        exit(1);
    CUDA(cuModuleLoadData(&module, cubin));
    CUDA(cuModuleGetFunction(&function, module, name));
    free(cubin);
    nvrtc.destroy_program(&program);
    return function;
}
