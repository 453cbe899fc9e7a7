/* SPDX-License-Identifier: Apache-2.0 */
#include "program.h"

#include "tools_params.h"

#include <stdio.h>

static const struct {
    const char *name;
    int threads, shared_bytes;
} tools[SMLA_PROGRAMS] = {
    [SMLA_PROGRAM_MERGE] = {"sparse_mla_merge", SMLA_MERGE_THREADS, 0},
    [SMLA_PROGRAM_SLOTS] = {"sparse_mla_map_slots", SMLA_SLOTS_THREADS, SMLA_SLOTS_SHARED_BYTES},
    [SMLA_PROGRAM_APPEND] = {"sparse_mla_cache_append", SMLA_APPEND_THREADS, 0},
};

struct smla_program smla_program_of_variant(const struct smla_variant *variant)
{
    return (struct smla_program){SMLA_PROGRAM_DECODE, *variant};
}

struct smla_program smla_program_of_tool(int kind)
{
    return (struct smla_program){.kind = kind};
}

void smla_program_name(const struct smla_program *program, char name[SMLA_VARIANT_NAME_MAX])
{
    if (program->kind == SMLA_PROGRAM_DECODE)
        smla_variant_name(&program->variant, name);
    else
        snprintf(name, SMLA_VARIANT_NAME_MAX, "%s", tools[program->kind].name);
}

int smla_program_defines(const struct smla_program *program, char defines[SMLA_VARIANT_DEFINES][SMLA_DEFINE_MAX])
{
    if (program->kind == SMLA_PROGRAM_DECODE)
        return smla_variant_defines(&program->variant, defines);
    snprintf(defines[0], SMLA_DEFINE_MAX, "-DSMLA_NAME=%s", tools[program->kind].name);
    snprintf(defines[1], SMLA_DEFINE_MAX, "-DSMLA_PROGRAM=%d", program->kind);
    return 2;
}

int smla_program_threads(const struct smla_program *program)
{
    return program->kind == SMLA_PROGRAM_DECODE ? smla_variant_threads(&program->variant)
                                                : tools[program->kind].threads;
}

int smla_program_shared_bytes(const struct smla_program *program)
{
    return program->kind == SMLA_PROGRAM_DECODE ? smla_variant_shared_bytes(&program->variant)
                                                : tools[program->kind].shared_bytes;
}
