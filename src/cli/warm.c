/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_TOKENS = 16384 };

/* Every architecture gets the shapes of the command line, then the kernels beside decode. */
struct job {
    char target[16];
    struct shape shape;
    bool tools;
};

static int count_jobs(const struct settings *settings)
{
    return settings->archs.count * (count_shapes(settings) + 1);
}

static struct job nth_job(const struct settings *settings, int n)
{
    const int shapes = count_shapes(settings), shape = n % (shapes + 1);
    struct job job = {.tools = shape == shapes};
    snprintf(job.target, sizeof job.target, "sm_%d", settings->archs.values[n / (shapes + 1)]);
    if (!job.tools)
        job.shape = nth_shape(settings, shape, MOST_TOKENS);
    return job;
}

static const char *describe(const struct job *job, char text[128])
{
    char width[32];
    if (job->tools)
        snprintf(text, 128, "%-7s append, merge, slot mapping", job->target);
    else
        snprintf(text, 128, "%-7s %-15s %3d heads, top-k %-10s %s queries", job->target,
                 format_names[job->shape.format], job->shape.heads, width_text(job->shape.width, width),
                 dtype_names[job->shape.q_dtype]);
    return text;
}

static sparse_mla_status run_job(sparse_mla_context *context, const struct job *job)
{
    struct call call;
    if (job->tools)
        return sparse_mla_tools_warm(context, job->target);
    call_init(&call, &job->shape, 1 << 20);
    return sparse_mla_warm(context, &call.args, job->target);
}

static sparse_mla_status run_jobs(sparse_mla_context *context, const struct settings *settings)
{
    const int count = count_jobs(settings);
    sparse_mla_status status = SPARSE_MLA_OK;
    char text[128];
    for (int n = 0; status == SPARSE_MLA_OK && n < count; n++) {
        const struct job job = nth_job(settings, n);
        describe(&job, text);
        show_progress(n, count, text);
        const double start = now();
        status = run_job(context, &job);
        hide_progress();
        if (status == SPARSE_MLA_OK)
            printf("%-72s %6.2f s\n", text, now() - start);
        fflush(stdout);
    }
    return status;
}

/* What is in the directory, and what of it cannot be made readable for all. */
struct contents {
    int entries, dir; /* dir -1: modes stay */
    int error;
    long long bytes;
};

static int visit_entry(void *user, const sparse_mla_cache_entry *entry)
{
    struct contents *contents = user;
    contents->entries++;
    contents->bytes += (long long)entry->bytes;
    if (contents->dir >= 0 && fchmodat(contents->dir, entry->file, 0644, 0) != 0)
        contents->error = errno;
    return 0;
}

static bool share(const char *folder, sparse_mla_context *context)
{
    struct contents contents = {.dir = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)};
    if (contents.dir < 0 || fchmod(contents.dir, 0755) != 0)
        contents.error = errno;
    else
        (void)sparse_mla_cache_list(context, visit_entry, &contents);
    if (contents.dir >= 0)
        close(contents.dir);
    if (contents.error)
        fprintf(stderr, "sparsemla warm: --share: %s cannot be made readable for all: %s\n", folder,
                strerror(contents.error));
    return contents.error == 0;
}

static int finish(sparse_mla_context *context, const struct settings *settings, const char *folder)
{
    struct contents contents = {.dir = -1};
    if (settings->share && !share(folder, context))
        return EXIT_FAILED;
    const sparse_mla_status status = sparse_mla_cache_list(context, visit_entry, &contents);
    if (status != SPARSE_MLA_OK)
        return report_failure(settings, status);
    printf("%s: %d kernels, %lld bytes\n", folder, contents.entries, contents.bytes);
    return EXIT_FINE;
}

int run_warm(const struct settings *settings)
{
    struct settings all = *settings;
    sparse_mla_options options;
    sparse_mla_context *context;
    char *folder = cache_directory(settings);
    if (!all.heads.count) /* on eight GPUs, four, two and one */
        for (int gpus = 8; gpus; gpus /= 2)
            all.heads.values[all.heads.count++] = all.model->heads / gpus;
    fill_options(&all, folder, &options);
    options.seed_path = "";              /* the directory is to be complete by itself */
    options.cache_size_cap = UINT64_MAX; /* and to stay so */
    sparse_mla_status status = sparse_mla_create(&options, &context);
    if (status == SPARSE_MLA_OK)
        status = run_jobs(context, &all);
    const int result = status == SPARSE_MLA_OK ? finish(context, &all, folder) : report_failure(&all, status);
    sparse_mla_destroy(context);
    free(folder);
    return result;
}
