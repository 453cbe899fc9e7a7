/* SPDX-License-Identifier: Apache-2.0 */
/* compile_variants TARGET FOLDER    compiles the shipped variants for sm_TARGET: FOLDER/<variant>.cubin, and to stdout
 * a line "<variant> <threads> <blocks per SM> <dynamic shared bytes>" for each compile_variants --defines        prints
 * the compiler options of every shipped variant, one variant a line
 *
 * Exit status 77: there is no NVRTC, or none for this target. */
#include "compile.h"
#include "plan.h"

#include <stdio.h>
#include <stdlib.h>

enum { SKIPPED = 77 };

/* The n-th shipped variant; false past the last, *again when an earlier one is the same. */
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

static int print_defines(void)
{
    char defines[SMLA_VARIANT_DEFINES][SMLA_DEFINE_MAX];
    struct smla_variant variant;
    bool again;
    for (int profile = SPARSE_MLA_PROFILE_SM80; profile <= SPARSE_MLA_PROFILE_SM120; profile++)
        for (int n = 0; shipped(profile, n, &variant, &again); n++) {
            if (again)
                continue;
            int count = smla_variant_defines(&variant, defines);
            for (int i = 0; i < count; i++)
                printf("%s%c", defines[i], i + 1 < count ? ' ' : '\n');
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

static bool build(const struct smla_nvrtc *nvrtc, const struct smla_variant *variant, int target, const char *folder)
{
    const struct smla_log log = {print_log, NULL};
    char name[SMLA_VARIANT_NAME_MAX];
    struct smla_cubin cubin;
    smla_variant_name(variant, name);
    if (smla_compile(nvrtc, &log, variant, target, &cubin) != SPARSE_MLA_OK) {
        fprintf(stderr, "%s\n", sparse_mla_last_error());
        return false;
    }
    bool written = write_cubin(folder, name, &cubin);
    free(cubin.data);
    if (written)
        printf("%s %d %d %d\n", name, smla_variant_threads(variant), variant->blocks_per_sm,
               smla_variant_shared_bytes(variant));
    else
        perror(folder);
    return written;
}

static int build_all(int wanted, const char *folder)
{
    const struct smla_log log = {print_log, NULL};
    struct smla_nvrtc nvrtc;
    struct smla_variant variant;
    int target, failed = 0;
    bool again;
    if (smla_nvrtc_open(&nvrtc, getenv("SPARSEMLA_NVRTC"), 0, &log) != SPARSE_MLA_OK ||
        smla_nvrtc_target(&nvrtc, wanted, true, &target) != SPARSE_MLA_OK) {
        fprintf(stderr, "skipped: %s\n", sparse_mla_last_error());
        return SKIPPED;
    }
    for (int n = 0; shipped(smla_profile_of(target), n, &variant, &again); n++)
        failed += !again && !build(&nvrtc, &variant, target, folder);
    return failed ? 1 : 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--defines") == 0)
        return print_defines();
    if (argc == 3)
        return build_all(atoi(argv[1]), argv[2]);
    fprintf(stderr, "usage: %s TARGET FOLDER | --defines\n", argv[0]);
    return 2;
}
