/* SPDX-License-Identifier: Apache-2.0 */
/* What the embedded sources are compiled into: a variant of decode or one of the kernels beside it. Pure. */
#ifndef SMLA_PROGRAM_H
#define SMLA_PROGRAM_H

#include "variant.h"

enum { /* which part of root.cu: the value of SMLA_PROGRAM there */
       SMLA_PROGRAM_DECODE = 0,
       SMLA_PROGRAM_MERGE = 1,
       SMLA_PROGRAM_SLOTS = 2,
       SMLA_PROGRAM_APPEND = 3,
       SMLA_PROGRAMS = 4
};

/* Compared byte by byte. */
struct smla_program {
    int kind;                    /* SMLA_PROGRAM_... */
    struct smla_variant variant; /* of DECODE; else all zero: a call's shapes are run-time parameters */
};

struct smla_program smla_program_of_variant(const struct smla_variant *variant);

/* MERGE, SLOTS or APPEND. */
struct smla_program smla_program_of_tool(int kind);

/* Writes the kernel's name, as smla_variant_name(). */
void smla_program_name(const struct smla_program *program, char name[SMLA_VARIANT_NAME_MAX]);

/* Writes the ordered compiler options "-DSMLA_...=..."; returns how many. */
int smla_program_defines(const struct smla_program *program, char defines[SMLA_VARIANT_DEFINES][SMLA_DEFINE_MAX]);

int smla_program_threads(const struct smla_program *program);      /* per block */
int smla_program_shared_bytes(const struct smla_program *program); /* dynamic, per block */

#endif
