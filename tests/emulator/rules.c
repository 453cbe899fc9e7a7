/* SPDX-License-Identifier: Apache-2.0 */
/* Every report of the emulator, by kernels that break one rule each: rules FILE, FILE being rules.cu. */
#include "emulator.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { SEEDS = 5, WORDS = 64 };

struct rule_params {
    void *words, *untouched;
};

static const struct rule {
    const char *kernel, *kind; /* NULL: no report */
    const char * or ;          /* what some schedules make of it */
    unsigned blocks, cluster, threads, shared_bytes;
    bool overlapped;
} rules[] = {
    {.kernel = "copies_and_barriers"},
    {.kernel = "lanes_store_the_same"},
    {.kernel = "last_block_reads", .blocks = 2},
    {.kernel = "outside_read", .kind = "outside"},
    {.kernel = "outside_write", .kind = "outside"},
    {.kernel = "outside_shared", .kind = "outside"},
    {.kernel = "outside_copy", .kind = "outside"},
    {.kernel = "misaligned", .kind = "misaligned"},
    {.kernel = "unwritten_shared", .kind = "unwritten"},
    {.kernel = "unwritten_global", .kind = "unwritten"},
    {.kernel = "constant", .kind = "constant"},
    {.kernel = "early", .kind = "early", .overlapped = true},
    {.kernel = "early"},
    {.kernel = "race_of_warps", .kind = "race"},
    {.kernel = "race_of_lanes", .kind = "race"},
    {.kernel = "race_after_read", .kind = "race"},
    {.kernel = "race_of_values", .kind = "race"},
    {.kernel = "race_of_blocks", .kind = "race", .blocks = 2},
    {.kernel = "race_with_counter", .kind = "race", .blocks = 2},
    {.kernel = "unfenced", .kind = "proxy"},
    {.kernel = "bulk_copy_without_wait", .kind = "copy"},
    {.kernel = "own_copy_without_wait", .kind = "copy"},
    {.kernel = "copy_at_exit", .kind = "copy"},
    {.kernel = "fewer_bytes_announced", .kind = "barrier", .or = "copy"},
    {.kernel = "half_a_warp", .kind = "collective"},
    {.kernel = "mixed_collectives", .kind = "collective"},
    {.kernel = "block_without_a_warp", .kind = "collective"},
    {.kernel = "barrier_nobody_completes", .kind = "deadlock"},
    {.kernel = "partner_never_comes", .kind = "deadlock"},
    {.kernel = "counts_differ", .kind = "barrier"},
    {.kernel = "third_warp", .kind = "barrier", .or = "deadlock", .threads = 96},
    {.kernel = "id_16", .kind = "barrier"},
    {.kernel = "too_many_arrivals", .kind = "barrier"},
    {.kernel = "no_init", .kind = "barrier"},
    {.kernel = "init_not_seen", .kind = "barrier"},
    {.kernel = "init_twice", .kind = "barrier"},
    {.kernel = "store_to_mbarrier", .kind = "barrier"},
    {.kernel = "spin", .kind = "spin"},
    {.kernel = "spin_in_registers", .kind = "spin"},
    {.kernel = "cluster_race", .kind = "race", .cluster = 2},
    {.kernel = "cluster_gone", .kind = "cluster", .cluster = 2},
    {.kernel = "limits", .shared_bytes = 101376},
    {.kernel = "limits", .kind = "limits", .shared_bytes = 101377},
    {.kernel = "limits", .kind = "limits", .threads = 128},
    {.kernel = "limits", .kind = "limits", .cluster = 9},
    {.kernel = "named_barriers"},
};

static bool run(void *module, const struct rule *rule, uint64_t seed)
{
    const struct rule_params params = {emulator_alloc(4 * WORDS, 0), emulator_alloc(4 * WORDS, 0)};
    const unsigned cluster = rule->cluster ? rule->cluster : 1;
    const struct emulator_grid grid = {.x = rule->blocks ? rule->blocks : 1,
                                       .y = cluster,
                                       .cluster_y = cluster,
                                       .threads = rule->threads ? rule->threads : 64,
                                       .shared_bytes = rule->shared_bytes ? rule->shared_bytes : 4096,
                                       .overlapped = rule->overlapped};
    memset(params.words, 0, 4 * WORDS);
    emulator_mark(params.words, 4 * WORDS, true);
    emulator_set_seed(seed);
    const bool done = emulator_run(module, rule->kernel, &grid, &params);
    emulator_free(params.words);
    emulator_free(params.untouched);
    return done;
}

static bool is_kind(const char *report, const char *kind)
{
    return kind && strncmp(report, kind, strlen(kind)) == 0 && report[strlen(kind)] == ':';
}

/* A report names the rule and, but for limits, who and where. */
static bool as_expected(const struct rule *rule, bool done)
{
    const char *report = emulator_report();
    if (!rule->kind)
        return done && !*report;
    if (done || !(is_kind(report, rule->kind) || is_kind(report, rule->or)))
        return false;
    return strcmp(rule->kind, "limits") == 0 ||
           (strstr(report, "block (") && (strstr(report, "kernel.cu:") || strstr(report, "returned")));
}

int main(int argc, char **argv)
{
    void *module = argc > 1 ? emulator_compile(argv[1], SPARSE_MLA_PROFILE_SM120) : NULL;
    int wrong = 0, missed;
    if (!module)
        return 2;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const struct rule *rule = &rules[i];
        missed = 0;
        const uint64_t seeds = rule->kind && strcmp(rule->kind, "spin") == 0 ? 1 : SEEDS;
        for (uint64_t seed = 0; seed < seeds; seed++)
            missed += !as_expected(rule, run(module, rule, seed));
        printf("%s %s: %s\n", missed ? "WRONG" : "ok", rule->kernel, rule->kind ? rule->kind : "no report");
        wrong += missed != 0;
    }
    return wrong != 0;
}
