/* SPDX-License-Identifier: Apache-2.0 */
/* Loaded kernels: the only user of the driver table. */
#ifndef SMLA_KERNEL_H
#define SMLA_KERNEL_H

#include "driver.h"
#include "plan.h"
#include "program.h"

/* Where a call runs: a stream and what belongs to it. */
struct smla_place {
    struct CUstream_st *stream;
    struct CUctx_st *context;
    unsigned long long context_id; /* never reused, unlike the pointer */
};

struct smla_kernel {
    struct CUfunc_st *function; /* NULL: none */
    int registers;              /* per thread */
};

/* Stream and context of a call. INVALID_ARGUMENT when a NULL stream has no current context. */
sparse_mla_status smla_kernel_place(const struct smla_driver *driver, struct CUstream_st *stream,
                                    struct smla_place *place);

sparse_mla_status smla_kernel_facts(const struct smla_driver *driver, const struct smla_place *place,
                                    struct smla_device_facts *facts);

sparse_mla_status smla_kernel_device_name(const struct smla_driver *driver, const struct smla_place *place, char *name,
                                          int size);

/* True during a capture, and when the driver will not say. */
bool smla_kernel_capturing(const struct smla_driver *driver, const struct smla_place *place);

/* Loads a cubin into the place's context and finds the kernel `name` in it. `refused` tells a cubin that this
 * driver or device cannot take (status DRIVER_TOO_OLD) from every other failure. The module is never unloaded
 * once its kernel has been handed out. */
sparse_mla_status smla_kernel_load(const struct smla_driver *driver, const struct smla_place *place, const void *cubin,
                                   const char *name, int shared_bytes, struct smla_kernel *kernel, bool *refused);

/* `params` is the kernel's only argument, read before this returns. */
sparse_mla_status smla_kernel_launch(const struct smla_driver *driver, const struct smla_place *place,
                                     const struct smla_kernel *kernel, const struct smla_plan *plan, void *params);

/* The same for a program that is not decode: `blocks` of its threads. */
sparse_mla_status smla_kernel_launch_tool(const struct smla_driver *driver, const struct smla_place *place,
                                          const struct smla_kernel *kernel, const struct smla_program *program,
                                          unsigned blocks, void *params);

/* Zeroes device memory in stream order. */
sparse_mla_status smla_kernel_zero(const struct smla_driver *driver, const struct smla_place *place, void *pointer,
                                   size_t bytes);

/* Waits for all work of the stream. */
sparse_mla_status smla_kernel_wait(const struct smla_driver *driver, const struct smla_place *place);

/* Copies device memory to the host, at once. */
sparse_mla_status smla_kernel_read(const struct smla_driver *driver, const struct smla_place *place, void *to,
                                   const void *from, size_t bytes);

#endif
