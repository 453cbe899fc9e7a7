/* SPDX-License-Identifier: Apache-2.0 */
/* A call that the library dumped to a safetensors file. Trusts nothing in the file. */
#ifndef CLI_CALL_FILE_H
#define CLI_CALL_FILE_H

#include "cli.h"
#include "safetensors.h"

enum { MAX_PLACED = 20 };

/* Bytes of the file, and where they go: `rows` runs of `width` bytes, at offsets that `step` gives. */
struct placed {
    const unsigned char *data;
    int64_t rows, width;
    int64_t extents[3], steps[3]; /* bytes from one run to the next, innermost last; the extents' product is `rows` */
    int64_t bytes;                /* of the whole, with gaps */
    const void **pointer;         /* in args or caches of the file */
};

struct call_file {
    struct safetensors tensors;
    sparse_mla_decode_args args; /* pointers are NULL */
    sparse_mla_cache caches[2];
    struct placed placed[MAX_PLACED];
    int num_placed;
    const unsigned char *out, *lse; /* NULL: not stored */
    size_t lse_bytes;
    int64_t out_span, lse_span; /* bytes of the outputs with gaps */
    bool same_host;             /* made by the host backend of this version of the library */
    char error[640];
};

struct loaded_call {
    sparse_mla_decode_args args;
    sparse_mla_cache caches[2];
    void *owned[MAX_PLACED + 4];
    int num_owned;
    size_t out_bytes, lse_bytes;
};

/* On failure a sentence is in `error`, and nothing needs to be closed. */
bool call_file_open(struct call_file *file, const char *path);
void call_file_close(struct call_file *file);

/* Everything where the device's backend reads it; outputs are full of NaN. */
void call_file_load(const struct call_file *file, const struct device *device, struct loaded_call *loaded);
void call_file_unload(const struct device *device, struct loaded_call *loaded);

#endif
