/* SPDX-License-Identifier: Apache-2.0 */
/* compile_variants TARGET FOLDER    compiles the shipped programs for sm_TARGET, all or those whose name begins with
 *                  [PREFIX]         PREFIX: FOLDER/<name>.cubin, and to stdout for each a line
 *                                   "<name> <threads> <blocks per SM> <dynamic shared bytes>"
 * compile_variants --defines        prints the compiler options of every shipped program, one program a line
 *
 * Exit status 77: there is no NVRTC, or none for this target. */
#include "compile.h"
#include "plan.h"

#include <stdio.h>
#include <stdlib.h>

enum { SKIPPED = 77 };

/* The n-th shipped variant of decode; false past the last, *again when an earlier one is the same. */
static bool shipped(int profile, int n, struct smla_variant *variant, bool *again)
{
    struct smla_variant earlier;
    *again = false;
    if (!smla_plan_shipped(profile, n, variant))
        return false;
    for (int i = 0; i < n && !*again; i++)
        *again = smla_plan_shipped(profile, i, &earlier) && memcmp(&earlier, variant, sizeof earlier) == 0;
    return true;
}

static void print_program(const struct smla_program *program)
{
    char defines[SMLA_VARIANT_DEFINES][SMLA_DEFINE_MAX];
    const int count = smla_program_defines(program, defines);
    for (int i = 0; i < count; i++)
        printf("%s%c", defines[i], i + 1 < count ? ' ' : '\n');
}

static int print_defines(void)
{
    struct smla_program program = {0};
    bool again;
    for (int profile = SPARSE_MLA_PROFILE_SM80; profile <= SPARSE_MLA_PROFILE_SM120; profile++)
        for (int n = 0; shipped(profile, n, &program.variant, &again); n++)
            if (!again)
                print_program(&program);
    for (int kind = SMLA_PROGRAM_DECODE + 1; kind < SMLA_PROGRAMS; kind++) {
        program = smla_program_of_tool(kind);
        print_program(&program);
    }
    return 0;
}

static void print_log(void *user, sparse_mla_log_level level, const char *message)
{
    (void)user;
    (void)level;
    fprintf(stderr, "%s\n", message);
}

static bool write_cubin(const char *folder, const char *name, const struct smla_cubin *cubin)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.cubin", folder, name);
    FILE *file = fopen(path, "wb");
    if (!file)
        return false;
    bool written = fwrite(cubin->data, 1, cubin->size, file) == cubin->size;
    return fclose(file) == 0 && written;
}

/* What is to be built, and where to. */
struct order {
    struct smla_nvrtc nvrtc;
    int target;
    const char *folder, *prefix;
};

static bool build(const struct order *order, const struct smla_program *program)
{
    const struct smla_log log = {print_log, NULL};
    char name[SMLA_VARIANT_NAME_MAX];
    struct smla_cubin cubin;
    smla_program_name(program, name);
    if (strncmp(name, order->prefix, strlen(order->prefix)) != 0)
        return true;
    if (smla_compile(&order->nvrtc, &log, program, order->target, &cubin) != SPARSE_MLA_OK) {
        fprintf(stderr, "%s\n", sparse_mla_last_error());
        return false;
    }
    bool written = write_cubin(order->folder, name, &cubin);
    free(cubin.data);
    if (written)
        printf("%s %d %d %d\n", name, smla_program_threads(program),
               program->kind == SMLA_PROGRAM_DECODE ? program->variant.blocks_per_sm : 1,
               smla_program_shared_bytes(program));
    else
        perror(order->folder);
    return written;
}

/* One architecture of each profile gets every variant; of the others, fp8_ds_mla is enough to see them differ. */
static bool has_all(int target)
{
    return target == 80 || target == 89 || target == 90 || target == 120;
}

static int build_all(int wanted, const char *folder, const char *prefix)
{
    const struct smla_log log = {print_log, NULL};
    struct order order = {.folder = folder, .prefix = prefix};
    struct smla_program program = {0};
    int failed = 0;
    bool again;
    if (smla_nvrtc_open(&order.nvrtc, getenv("SPARSEMLA_NVRTC"), 0, &log) != SPARSE_MLA_OK ||
        smla_nvrtc_target(&order.nvrtc, wanted, true, &order.target) != SPARSE_MLA_OK) {
        fprintf(stderr, "skipped: %s\n", sparse_mla_last_error());
        return SKIPPED;
    }
    for (int n = 0; shipped(smla_profile_of(order.target), n, &program.variant, &again); n++)
        if (!again && (has_all(wanted) || program.variant.format == SPARSE_MLA_FP8_DS_MLA))
            failed += !build(&order, &program);
    for (int kind = SMLA_PROGRAM_DECODE + 1; kind < SMLA_PROGRAMS; kind++) {
        program = smla_program_of_tool(kind);
        failed += !build(&order, &program);
    }
    return failed ? 1 : 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--defines") == 0)
        return print_defines();
    if (argc == 3 || argc == 4)
        return build_all(atoi(argv[1]), argv[2], argc == 4 ? argv[3] : "");
    fprintf(stderr, "usage: %s TARGET FOLDER [PREFIX] | --defines\n", argv[0]);
    return 2;
}
