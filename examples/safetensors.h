/* SPDX-License-Identifier: Apache-2.0 */
/* A reader for safetensors files: a length, a JSON header, then the bytes of the tensors. Trusts nothing in the file:
 * what does not fit together is refused with a sentence in `error`, which begins with the name of the file. */
#ifndef EXAMPLES_SAFETENSORS_H
#define EXAMPLES_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SAFETENSORS_MAX_DIMS = 4 };

struct safetensors {
    unsigned char *bytes; /* the whole file */
    size_t data_offset;   /* where the header ends */
    size_t data_size;
    struct cJSON *header;
    const char *path; /* the caller's */
    char error[512];
};

struct safetensors_tensor {
    const char *dtype; /* as in the file: "F32", "BF16", "I32"; the size of the data fits it */
    int num_dims;
    int64_t dims[SAFETENSORS_MAX_DIMS];
    int64_t count;             /* product of dims */
    const unsigned char *data; /* little-endian, not aligned */
};

/* On failure nothing needs to be closed. The path must stay valid as long as the file is open. */
bool safetensors_open(struct safetensors *file, const char *path);
void safetensors_close(struct safetensors *file);

/* Valid until the file is closed. */
bool safetensors_find(struct safetensors *file, const char *name, struct safetensors_tensor *tensor);

/* A string of the header's __metadata__; NULL when there is none. */
const char *safetensors_metadata(const struct safetensors *file, const char *key);

#endif
