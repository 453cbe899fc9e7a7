/* SPDX-License-Identifier: Apache-2.0 */
/* A context on the host backend for all tests of a program. */
#ifndef HOST_CONTEXT_H
#define HOST_CONTEXT_H

#include <sparsemla/sparsemla.h>

static sparse_mla_context *context;

static inline int open_context(void **state)
{
    sparse_mla_options options;
    (void)state;
    sparse_mla_options_init(&options);
    options.backend = SPARSE_MLA_BACKEND_HOST;
    return sparse_mla_create(&options, &context) != SPARSE_MLA_OK;
}

static inline int close_context(void **state)
{
    (void)state;
    sparse_mla_destroy(context);
    return 0;
}

#endif
