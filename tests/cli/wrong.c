/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded before the library: makes the first context that computes compute wrongly, once. $WRONG says what is wrong:
 * out, nan, lse or records. For pointers of the host. */
#define _GNU_SOURCE
#include <sparsemla/sparsemla.h>

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>

typedef sparse_mla_status (*decode_fn)(sparse_mla_context *, const sparse_mla_decode_args *, struct CUstream_st *);
typedef sparse_mla_status (*append_fn)(sparse_mla_context *, const sparse_mla_cache_append_args *,
                                       struct CUstream_st *);

/* Once, and only in the call that $WRONG names. */
static int is_wrong(const char *what)
{
    static int done;
    const char *wrong = getenv("WRONG");
    return wrong && strcmp(wrong, what) == 0 && !done++;
}

sparse_mla_status sparse_mla_decode(sparse_mla_context *context, const sparse_mla_decode_args *args,
                                    struct CUstream_st *stream)
{
    decode_fn real;
    *(void **)&real = dlsym(RTLD_NEXT, "sparse_mla_decode");
    const sparse_mla_status status = real(context, args, stream);
    float *out = args->out;
    if (is_wrong("out"))
        out[7] += 1;
    if (is_wrong("nan"))
        out[7] = NAN;
    if (is_wrong("lse"))
        args->lse[1] += 0.01f;
    return status;
}

sparse_mla_status sparse_mla_cache_append(sparse_mla_context *context, const sparse_mla_cache_append_args *args,
                                          struct CUstream_st *stream)
{
    append_fn real;
    *(void **)&real = dlsym(RTLD_NEXT, "sparse_mla_cache_append");
    const sparse_mla_status status = real(context, args, stream);
    unsigned char *records = (unsigned char *)args->cache->data;
    if (is_wrong("records")) /* the lowest bit of a number */
        records[100] ^= 1;
    return status;
}
