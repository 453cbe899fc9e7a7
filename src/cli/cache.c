/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "cli.h"
#include "report.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* In what state an entry is, and how many are in which. */
enum state { USABLE, OTHER, DAMAGED, STATES };
static const char *const state_names[] = {"ok", "other version", "unusable"};

struct visit {
    struct report *report; /* NULL: only counts */
    bool bad_only;
    int count[STATES];
    long long bytes;
};

static enum state state_of(const sparse_mla_cache_entry *entry)
{
    return entry->valid ? USABLE : *entry->variant ? OTHER : DAMAGED;
}

static int visit_entry(void *user, const sparse_mla_cache_entry *entry)
{
    struct visit *visit = user;
    const enum state state = state_of(entry);
    char used[32] = "", nvrtc[16] = "";
    const time_t time = (time_t)entry->last_used;
    struct tm utc;
    visit->count[state]++;
    visit->bytes += (long long)entry->bytes;
    if (!visit->report || (visit->bad_only && state == USABLE))
        return 0;
    if (gmtime_r(&time, &utc))
        strftime(used, sizeof used, "%Y-%m-%dT%H:%M:%SZ", &utc);
    if (entry->nvrtc_version)
        snprintf(nvrtc, sizeof nvrtc, "%d.%d", (int)entry->nvrtc_version / 1000, (int)entry->nvrtc_version % 1000 / 10);
    report_row(visit->report);
    report_text(visit->report, "state", -13, state_names[state]);
    report_text(visit->report, "target", -6, *entry->target ? entry->target : NULL);
    report_text(visit->report, "nvrtc", -5, *nvrtc ? nvrtc : NULL);
    report_whole(visit->report, "bytes", 8, (long long)entry->bytes);
    report_text(visit->report, "last_used", -20, used);
    report_text(visit->report, "file", -37, entry->file);
    report_text(visit->report, "variant", -1, *entry->variant ? entry->variant : NULL);
    return 0;
}

static int count_all(const struct visit *visit)
{
    return visit->count[USABLE] + visit->count[OTHER] + visit->count[DAMAGED];
}

static void print_summary(const struct visit *visit, const char *folder)
{
    printf("%s: %d entries, %lld bytes", folder, count_all(visit), visit->bytes);
    if (visit->count[OTHER])
        printf(", %d of another version of the library", visit->count[OTHER]);
    if (visit->count[DAMAGED])
        printf(", %d damaged or of another schema", visit->count[DAMAGED]);
    putchar('\n');
}

static sparse_mla_status list(sparse_mla_context *context, const struct settings *settings, const char *folder)
{
    struct report report;
    struct visit visit = {.report = &report};
    report_begin(&report, REPORT_TABLE, settings->json);
    const sparse_mla_status status = sparse_mla_cache_list(context, visit_entry, &visit);
    report_end(&report);
    if (status == SPARSE_MLA_OK && !settings->json)
        print_summary(&visit, folder);
    return status;
}

/* Prints what is bad; *bad receives the number of damaged ones. */
static sparse_mla_status check(sparse_mla_context *context, const struct settings *settings, const char *folder,
                               uint32_t *bad)
{
    struct report report;
    struct visit visit = {.report = settings->json ? NULL : &report, .bad_only = true};
    sparse_mla_status status = sparse_mla_cache_check(context, bad);
    if (status != SPARSE_MLA_OK)
        return status;
    report_begin(&report, settings->json ? REPORT_RECORD : REPORT_TABLE, settings->json);
    status = sparse_mla_cache_list(context, visit_entry, &visit);
    if (settings->json) {
        report_text(&report, "directory", 0, folder);
        report_whole(&report, "entries", 0, count_all(&visit));
        report_whole(&report, "bytes", 0, visit.bytes);
        report_whole(&report, "other_version", 0, visit.count[OTHER]);
        report_whole(&report, "damaged", 0, *bad);
    }
    report_end(&report);
    if (!settings->json)
        printf("%s: %d entries, %lld bytes, %u damaged\n", folder, count_all(&visit), visit.bytes, (unsigned)*bad);
    return status;
}

static sparse_mla_status clear(sparse_mla_context *context, const struct settings *settings, const char *folder)
{
    struct visit before = {0}, after = {0};
    struct report report;
    (void)sparse_mla_cache_list(context, visit_entry, &before);
    const sparse_mla_status status = sparse_mla_cache_clear(context);
    if (status != SPARSE_MLA_OK)
        return status;
    (void)sparse_mla_cache_list(context, visit_entry, &after);
    if (settings->json) {
        report_begin(&report, REPORT_RECORD, true);
        report_text(&report, "directory", 0, folder);
        report_whole(&report, "deleted", 0, count_all(&before) - count_all(&after));
        report_whole(&report, "bytes", 0, before.bytes - after.bytes);
        report_end(&report);
    } else {
        printf("%s: %d entries deleted, %lld bytes\n", folder, count_all(&before) - count_all(&after),
               before.bytes - after.bytes);
    }
    return status;
}

int run_cache(const struct settings *settings)
{
    sparse_mla_options options;
    sparse_mla_context *context;
    uint32_t bad = 0;
    char *folder = cache_directory(settings);
    if (!folder) {
        fputs(
            "sparsemla cache: there is no cache directory: --cache, SPARSEMLA_CACHE_DIR, XDG_CACHE_HOME and HOME name "
            "none\n",
            stderr);
        return EXIT_FAILED;
    }
    fill_options(settings, folder, &options);
    sparse_mla_status status = sparse_mla_create(&options, &context);
    if (status == SPARSE_MLA_OK) {
        status = strcmp(settings->action, "list") == 0    ? list(context, settings, folder)
                 : strcmp(settings->action, "check") == 0 ? check(context, settings, folder, &bad)
                                                          : clear(context, settings, folder);
    }
    const int result = status != SPARSE_MLA_OK ? report_failure(settings, status) : bad ? EXIT_FAILED : EXIT_FINE;
    sparse_mla_destroy(context);
    free(folder);
    return result;
}
