/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA driver as a table of functions, filled from libcuda.so.1 at run time or by a test.
 *
 * The types, constants and signatures are those of cuda.h, under names of our own so that both can be
 * included; tests/unit/test_abi_cuda.c compares them where cuda.h is installed. */
#ifndef SMLA_DRIVER_H
#define SMLA_DRIVER_H

#include "base.h"

#define SMLA_DRIVER_FLOOR 12000

struct CUctx_st;
struct CUmod_st;
struct CUfunc_st;

enum { /* CUresult */
       SMLA_CU_SUCCESS = 0,
       SMLA_CU_OUT_OF_MEMORY = 2,
       SMLA_CU_NO_DEVICE = 100,
       SMLA_CU_INVALID_IMAGE = 200,
       SMLA_CU_INVALID_CONTEXT = 201,
       SMLA_CU_NO_BINARY_FOR_GPU = 209,
       SMLA_CU_UNSUPPORTED_PTX_VERSION = 222
};

enum { /* CUdevice_attribute */
       SMLA_CU_MULTIPROCESSOR_COUNT = 16,
       SMLA_CU_MEMORY_CLOCK_RATE = 36, /* kHz */
       SMLA_CU_MEMORY_BUS_WIDTH = 37,  /* bits */
       SMLA_CU_COMPUTE_CAPABILITY_MAJOR = 75,
       SMLA_CU_COMPUTE_CAPABILITY_MINOR = 76,
       SMLA_CU_SHARED_PER_BLOCK_OPTIN = 97
};

enum { /* CUfunction_attribute */
       SMLA_CU_FUNC_NUM_REGS = 4,
       SMLA_CU_FUNC_MAX_DYNAMIC_SHARED = 8,
       SMLA_CU_FUNC_NON_PORTABLE_CLUSTER = 14
};

enum {
    SMLA_CU_CAPTURE_NONE = 0,             /* CUstreamCaptureStatus */
    SMLA_CU_RESOURCE_TYPE_SM = 1,         /* CUdevResourceType */
    SMLA_CU_LAUNCH_CLUSTER_DIMENSION = 4, /* CUlaunchAttributeID */
    SMLA_CU_LAUNCH_PROGRAMMATIC_SERIALIZATION = 6
};

struct smla_cu_resource { /* CUdevResource */
    int type;
    unsigned char padding[92];
    unsigned sm_count;
    unsigned char rest[44];
};

struct smla_cu_launch_attribute { /* CUlaunchAttribute */
    int id;
    char padding[4];
    union { /* CUlaunchAttributeValue */
        char size[64];
        struct {
            unsigned x, y, z;
        } cluster;
        int allowed;
    } value;
};

struct smla_cu_launch_config { /* CUlaunchConfig */
    unsigned grid_x, grid_y, grid_z;
    unsigned block_x, block_y, block_z;
    unsigned shared_bytes;
    struct CUstream_st *stream;
    struct smla_cu_launch_attribute *attributes;
    unsigned num_attributes;
};

struct smla_driver {
    int version; /* 1000 * major + 10 * minor */

    int (*init)(unsigned flags);
    int (*driver_get_version)(int *version);
    int (*get_error_name)(int result, const char **name);
    int (*device_get_attribute)(int *value, int attribute, int device);
    int (*device_get_name)(char *name, int length, int device);
    int (*ctx_get_current)(struct CUctx_st **context);
    int (*ctx_push_current)(struct CUctx_st *context);
    int (*ctx_pop_current)(struct CUctx_st **context);
    int (*ctx_get_device)(int *device); /* of the current context */
    int (*ctx_get_id)(struct CUctx_st *context, unsigned long long *id);
    int (*stream_get_ctx)(struct CUstream_st *stream, struct CUctx_st **context);
    int (*stream_is_capturing)(struct CUstream_st *stream, int *status);
    int (*module_load_data)(struct CUmod_st **module, const void *image);
    int (*module_unload)(struct CUmod_st *module);
    int (*module_get_function)(struct CUfunc_st **function, struct CUmod_st *module, const char *name);
    int (*func_get_attribute)(int *value, int attribute, struct CUfunc_st *function);
    int (*func_set_attribute)(struct CUfunc_st *function, int attribute, int value);
    int (*launch_kernel_ex)(const struct smla_cu_launch_config *config, struct CUfunc_st *function, void **params,
                            void **extra);
    int (*memset_d8_async)(unsigned long long pointer, unsigned char value, size_t bytes, struct CUstream_st *stream);

    /* Only to dump calls. */
    int (*stream_synchronize)(struct CUstream_st *stream);
    int (*memcpy_d_to_h)(void *to, unsigned long long from, size_t bytes);

    /* NULL before driver 12.4. With a green context: its share of the multiprocessors. */
    int (*ctx_get_dev_resource)(struct CUctx_st *context, struct smla_cu_resource *resource, int type);
};

/* Loads libcuda.so.1, fills the table and initialises the driver. NO_DRIVER, DRIVER_TOO_OLD, DRIVER_ERROR. */
sparse_mla_status smla_driver_open(struct smla_driver *driver);

/* The second half of smla_driver_open(): version and initialisation of a table whose functions are filled in. */
sparse_mla_status smla_driver_start(struct smla_driver *driver);

/* Failure of a driver function: OUT_OF_MEMORY or DRIVER_ERROR, with the function's and the error's name. */
sparse_mla_status smla_driver_fail(const struct smla_driver *driver, int result, const char *function);

#endif
