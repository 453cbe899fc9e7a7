/* SPDX-License-Identifier: Apache-2.0 */
/* The embedded kernel sources; kernels_src/embed.py writes the definitions at build time. */
#ifndef SMLA_SOURCES_H
#define SMLA_SOURCES_H

#include <stddef.h>

struct smla_source {
    const char *name; /* as in #include "name" */
    const char *text; /* NUL-terminated */
    size_t length;    /* without the NUL */
};

extern const struct smla_source smla_sources[]; /* the first is the program, the others its headers */
extern const int smla_source_count;
extern const char smla_source_digest[]; /* 32 hex digits over all names and contents */

#endif
