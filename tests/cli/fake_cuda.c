/* SPDX-License-Identifier: Apache-2.0 */
/* A libcuda.so.1 with one device that computes nothing: of compute capability $FAKE_CC, with $FAKE_SHARED bytes of
 * shared memory for a block. Its memory is the host's. */
#define _POSIX_C_SOURCE 200809L
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

static int number(const char *name)
{
    const char *text = getenv(name);
    return text ? atoi(text) : 0;
}

EXPORT int cuInit(unsigned flags)
{
    (void)flags;
    return number("FAKE_CC") ? 0 : 100;
}

EXPORT int cuDeviceGetCount(int *count)
{
    *count = 1;
    return 0;
}

EXPORT int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return 0;
}

EXPORT int cuDevicePrimaryCtxRetain(void **context, int device)
{
    static char primary;
    (void)device;
    *context = &primary;
    return 0;
}

EXPORT int cuCtxSetCurrent(void *context)
{
    (void)context;
    return 0;
}

EXPORT int cuStreamCreate(void **stream, unsigned flags)
{
    static char first;
    (void)flags;
    *stream = &first;
    return 0;
}

EXPORT int cuMemAlloc_v2(uint64_t *pointer, size_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 256, bytes) != 0)
        return 2;
    *pointer = (uintptr_t)memory;
    return 0;
}

EXPORT int cuMemFree_v2(uint64_t pointer)
{
    free((void *)(uintptr_t)pointer);
    return 0;
}

EXPORT int cuMemcpyHtoDAsync_v2(uint64_t target, const void *source, size_t bytes, void *stream)
{
    (void)stream;
    memcpy((void *)(uintptr_t)target, source, bytes);
    return 0;
}

EXPORT int cuMemcpyDtoH_v2(void *target, uint64_t source, size_t bytes)
{
    memcpy(target, (void *)(uintptr_t)source, bytes);
    return 0;
}

EXPORT int cuEventElapsedTime(float *milliseconds, void *start, void *stop)
{
    (void)start;
    (void)stop;
    *milliseconds = 1;
    return 0;
}

static int succeed(void)
{
    return 0;
}

#define SUCCEEDS(name)                                                                                                 \
    EXPORT int name(void)                                                                                              \
    {                                                                                                                  \
        return 0;                                                                                                      \
    }
SUCCEEDS(cuStreamDestroy_v2)
SUCCEEDS(cuStreamSynchronize)
SUCCEEDS(cuEventCreate)
SUCCEEDS(cuEventRecord)
SUCCEEDS(cuEventSynchronize)
SUCCEEDS(cuEventDestroy_v2)

static int get_version(int *version)
{
    *version = 13000;
    return 0;
}

static int get_error_name(int result, const char **name)
{
    (void)result;
    *name = "CUDA_ERROR_OF_THE_FAKE";
    return 0;
}

static int get_attribute(int *value, int attribute, int device)
{
    (void)device;
    *value = attribute == 16   ? 170      /* multiprocessors */
             : attribute == 36 ? 14001000 /* kHz of memory, */
             : attribute == 37 ? 512      /* of so many bits: 1792 GB/s */
             : attribute == 75 ? number("FAKE_CC") / 10
             : attribute == 76 ? number("FAKE_CC") % 10
             : attribute == 97 ? number("FAKE_SHARED")
                               : 0;
    return 0;
}

static int get_name(char *name, int size, int device)
{
    (void)device;
    snprintf(name, (size_t)size, "Fake \"GPU\"");
    return 0;
}

static int give_context(void **context)
{
    return cuDevicePrimaryCtxRetain(context, 0);
}

static int give_stream_context(void *stream, void **context)
{
    (void)stream;
    return give_context(context);
}

static int give_device(int *device)
{
    return cuDeviceGet(device, 0);
}

static int give_id(void *context, unsigned long long *id)
{
    (void)context;
    *id = 1;
    return 0;
}

static int give_capture(void *stream, int *status)
{
    (void)stream;
    *status = 0;
    return 0;
}

EXPORT int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *found)
{
    static const struct {
        const char *name;
        void *function;
    } table[] = {
        {"cuInit", (void *)cuInit},
        {"cuDriverGetVersion", (void *)get_version},
        {"cuGetErrorName", (void *)get_error_name},
        {"cuDeviceGetAttribute", (void *)get_attribute},
        {"cuDeviceGetName", (void *)get_name},
        {"cuCtxGetCurrent", (void *)give_context},
        {"cuCtxGetDevice", (void *)give_device},
        {"cuCtxGetId", (void *)give_id},
        {"cuStreamGetCtx", (void *)give_stream_context},
        {"cuStreamIsCapturing", (void *)give_capture},
    };
    (void)version;
    (void)flags;
    (void)found;
    *function = strcmp(name, "cuCtxGetDevResource") == 0 ? NULL : (void *)succeed;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(table[i].name, name) == 0)
            *function = table[i].function;
    return *function ? 0 : 500;
}
