/* SPDX-License-Identifier: Apache-2.0 */
/* Memory and time where a backend works: on a GPU through libcuda.so.1, or on the host. A program that uses the
 * CUDA runtime has cudaMalloc, cudaMemcpyAsync and cudaEventRecord in these places. */
#ifndef EXAMPLES_DEVICE_H
#define EXAMPLES_DEVICE_H

#include <stdbool.h>
#include <stddef.h>

struct CUstream_st;

struct device {
    bool gpu;                   /* false: all pointers are host pointers and all work is done at once */
    struct CUstream_st *stream; /* NULL on the host */
};

/* Prints one sentence on standard error and exits with status 1. */
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Zeroed host memory; fails when there is none. */
void *host_alloc(size_t bytes);

/* The first GPU, its primary context and a new stream; false when there is no driver or no GPU. */
bool device_open_gpu(struct device *device);
void device_open_host(struct device *device);
void device_close(struct device *device);

/* 256-byte aligned. What fails here ends the program. */
void *device_alloc(const struct device *device, size_t bytes);
void *device_upload(const struct device *device, const void *data, size_t bytes); /* allocates and writes */
void device_free(const struct device *device, void *pointer);

/* Copies in stream order; `source` may be reused at once. */
void device_write(const struct device *device, void *target, const void *source, size_t bytes);
/* Waits for the stream and copies. */
void device_read(const struct device *device, void *target, const void *source, size_t bytes);

struct timer {
    void *start, *stop; /* events; NULL on the host */
    double seconds;     /* host only */
};

void timer_start(const struct device *device, struct timer *timer);
void timer_stop(const struct device *device, struct timer *timer);
/* Waits for the work in between and ends the timer. */
double timer_microseconds(const struct device *device, struct timer *timer);

/* A clock, in seconds. */
double now(void);

#endif
