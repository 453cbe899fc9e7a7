/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "device.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The part of the driver API that is used here; cuda.h is not needed for it. */
#define DRIVER_FUNCTIONS(X)                                                                                            \
    X(cuInit, (unsigned flags))                                                                                        \
    X(cuDeviceGetCount, (int *count))                                                                                  \
    X(cuDeviceGet, (int *device, int ordinal))                                                                         \
    X(cuDevicePrimaryCtxRetain, (void **context, int device))                                                          \
    X(cuCtxSetCurrent, (void *context))                                                                                \
    X(cuStreamCreate, (struct CUstream_st * *stream, unsigned flags))                                                  \
    X(cuStreamDestroy_v2, (struct CUstream_st * stream))                                                               \
    X(cuStreamSynchronize, (struct CUstream_st * stream))                                                              \
    X(cuMemAlloc_v2, (uint64_t * pointer, size_t bytes))                                                               \
    X(cuMemFree_v2, (uint64_t pointer))                                                                                \
    X(cuMemcpyHtoDAsync_v2, (uint64_t target, const void *source, size_t bytes, struct CUstream_st *stream))           \
    X(cuMemcpyDtoH_v2, (void *target, uint64_t source, size_t bytes))                                                  \
    X(cuEventCreate, (void **event, unsigned flags))                                                                   \
    X(cuEventRecord, (void *event, struct CUstream_st *stream))                                                        \
    X(cuEventSynchronize, (void *event))                                                                               \
    X(cuEventElapsedTime, (float *milliseconds, void *start, void *stop))                                              \
    X(cuEventDestroy_v2, (void *event))

#define DECLARE(name, parameters) int(*name) parameters;
static struct {
    DRIVER_FUNCTIONS(DECLARE)
} driver;

#define CHECK(call) check(driver.call, #call)

void fail(const char *format, ...)
{
    va_list list;
    fflush(stdout);
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fputc('\n', stderr);
    exit(1);
}

static void check(int result, const char *call)
{
    if (result != 0)
        fail("CUDA error %d from %s", result, call);
}

void *host_alloc(size_t bytes)
{
    void *pointer = calloc(bytes ? bytes : 1, 1);
    if (!pointer)
        fail("no memory for %zu bytes", bytes);
    return pointer;
}

static bool load_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library)
        return false;
#define LOAD(name, parameters)                                                                                         \
    *(void **)&driver.name = dlsym(library, #name);                                                                    \
    if (!driver.name)                                                                                                  \
        return false;
    DRIVER_FUNCTIONS(LOAD)
    return true;
}

bool device_open_gpu(struct device *device)
{
    int count = 0, ordinal = 0;
    void *context = NULL;
    *device = (struct device){.gpu = true};
    if (!load_driver() || driver.cuInit(0) != 0 || driver.cuDeviceGetCount(&count) != 0 || count == 0)
        return false;
    CHECK(cuDeviceGet(&ordinal, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, ordinal));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&device->stream, 0));
    return true;
}

void device_open_host(struct device *device)
{
    *device = (struct device){.gpu = false};
}

/* The primary context stays: it belongs to the process. */
void device_close(struct device *device)
{
    if (device->gpu)
        CHECK(cuStreamDestroy_v2(device->stream));
}

void *device_alloc(const struct device *device, size_t bytes)
{
    uint64_t address = 0;
    if (!device->gpu) {
        void *pointer = NULL;
        if (posix_memalign(&pointer, 256, bytes ? bytes : 1) != 0)
            fail("no memory for %zu bytes", bytes);
        return pointer;
    }
    CHECK(cuMemAlloc_v2(&address, bytes ? bytes : 1));
    return (void *)(uintptr_t)address;
}

void device_free(const struct device *device, void *pointer)
{
    if (!device->gpu)
        free(pointer);
    else if (pointer)
        CHECK(cuMemFree_v2((uintptr_t)pointer));
}

void device_write(const struct device *device, void *target, const void *source, size_t bytes)
{
    if (bytes == 0)
        return;
    if (!device->gpu)
        memcpy(target, source, bytes);
    else /* pageable memory has been staged when this returns */
        CHECK(cuMemcpyHtoDAsync_v2((uintptr_t)target, source, bytes, device->stream));
}

void *device_upload(const struct device *device, const void *data, size_t bytes)
{
    void *pointer = device_alloc(device, bytes);
    device_write(device, pointer, data, bytes);
    return pointer;
}

void device_read(const struct device *device, void *target, const void *source, size_t bytes)
{
    if (!device->gpu) {
        memcpy(target, source, bytes);
        return;
    }
    CHECK(cuStreamSynchronize(device->stream));
    CHECK(cuMemcpyDtoH_v2(target, (uintptr_t)source, bytes));
}

double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

void timer_start(const struct device *device, struct timer *timer)
{
    *timer = (struct timer){.seconds = now()};
    if (device->gpu) {
        CHECK(cuEventCreate(&timer->start, 0));
        CHECK(cuEventCreate(&timer->stop, 0));
        CHECK(cuEventRecord(timer->start, device->stream));
    }
}

void timer_stop(const struct device *device, struct timer *timer)
{
    if (device->gpu)
        CHECK(cuEventRecord(timer->stop, device->stream));
    else
        timer->seconds = now() - timer->seconds;
}

double timer_microseconds(const struct device *device, struct timer *timer)
{
    float milliseconds = 0;
    if (!device->gpu)
        return 1e6 * timer->seconds;
    CHECK(cuEventSynchronize(timer->stop));
    CHECK(cuEventElapsedTime(&milliseconds, timer->start, timer->stop));
    CHECK(cuEventDestroy_v2(timer->start));
    CHECK(cuEventDestroy_v2(timer->stop));
    return 1e3 * (double)milliseconds;
}
