/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BAR = 30 };

static bool progress_shown;

bool show_progress(int done, int of, const char *what)
{
    const int full = of ? BAR * done / of : BAR;
    if (!isatty(STDERR_FILENO))
        return false;
    fprintf(stderr, "\r[");
    for (int i = 0; i < BAR; i++)
        fputc(i < full ? '#' : '.', stderr);
    fprintf(stderr, "] %d / %d  %s\033[K", done, of, what);
    progress_shown = true;
    return true;
}

void hide_progress(void)
{
    if (progress_shown)
        fputs("\r\033[K", stderr);
    progress_shown = false;
}

static void print_log(void *user, sparse_mla_log_level level, const char *message)
{
    const struct settings *settings = user;
    if (level != SPARSE_MLA_LOG_WARNING && !settings->verbose)
        return;
    hide_progress();
    fprintf(stderr, "sparsemla %s: %s\n", settings->command->name, message);
}

int report_failure(const struct settings *settings, sparse_mla_status status)
{
    hide_progress();
    fflush(stdout);
    fprintf(stderr, "sparsemla %s: %s\n", settings->command->name, sparse_mla_last_error());
    return status == SPARSE_MLA_NO_DRIVER || status == SPARSE_MLA_NO_COMPILER ? EXIT_NOT_HERE : EXIT_FAILED;
}

char *cache_directory(const struct settings *settings)
{
    const char *folder = settings->cache, *name = "";
    char *path = NULL;
    if (!folder || !*folder)
        folder = secure_getenv("SPARSEMLA_CACHE_DIR");
    if ((!folder || !*folder) && (folder = secure_getenv("XDG_CACHE_HOME")) && *folder) {
        name = "/sparsemla";
        if (*folder != '/')
            folder = NULL;
    }
    if ((!folder || !*folder) && (folder = secure_getenv("HOME")))
        name = "/.cache/sparsemla";
    if (!folder || !*folder)
        return NULL;
    const size_t size = strlen(folder) + strlen(name) + 1;
    path = host_alloc(size);
    snprintf(path, size, "%s%s", folder, name);
    return path;
}

void fill_options(const struct settings *settings, const char *cache, sparse_mla_options *options)
{
    sparse_mla_options_init(options);
    options->backend = settings->backend;
    options->profile = settings->profile;
    options->cache_dir = cache;
    options->nvrtc_path = settings->nvrtc;
    options->log = print_log;
    options->log_user = (void *)settings;
}

/* Why there is no GPU, in the library's words. */
static int report_no_gpu(const struct session *session, const struct settings *settings)
{
    sparse_mla_device info;
    sparse_mla_device_init(&info);
    const sparse_mla_status status = sparse_mla_device_info(session->context, NULL, &info);
    if (status == SPARSE_MLA_NO_DRIVER || status == SPARSE_MLA_DRIVER_TOO_OLD)
        (void)report_failure(settings, status);
    else
        fprintf(stderr, "sparsemla %s: no GPU can be used through libcuda.so.1\n", settings->command->name);
    return EXIT_NOT_HERE;
}

int session_open(struct session *session, const struct settings *settings)
{
    sparse_mla_options options;
    char *cache = cache_directory(settings);
    fill_options(settings, cache, &options);
    const sparse_mla_status status = sparse_mla_create(&options, &session->context);
    free(cache);
    if (status != SPARSE_MLA_OK)
        return report_failure(settings, status);
    if (settings->backend == SPARSE_MLA_BACKEND_HOST) {
        device_open_host(&session->device);
        return EXIT_FINE;
    }
    if (device_open_gpu(&session->device))
        return EXIT_FINE;
    const int result = report_no_gpu(session, settings);
    sparse_mla_destroy(session->context);
    return result;
}

void session_close(struct session *session)
{
    sparse_mla_destroy(session->context);
    device_close(&session->device);
}

static int at_least_one(int count)
{
    return count ? count : 1;
}

static int count_formats(const struct settings *settings)
{
    return settings->formats.count ? settings->formats.count : settings->model->num_formats;
}

static int count_widths(const struct settings *settings)
{
    return settings->topk ? 1 : settings->model->num_widths;
}

int count_shapes(const struct settings *settings)
{
    return count_formats(settings) * count_widths(settings) * at_least_one(settings->heads.count);
}

struct shape nth_shape(const struct settings *settings, int n, int tokens)
{
    const struct model *model = settings->model;
    const int heads = n % at_least_one(settings->heads.count);
    n /= at_least_one(settings->heads.count);
    struct shape shape = {.model = model, .tokens = tokens, .width = model->widths[n % count_widths(settings)]};
    if (settings->topk)
        shape.width.topk = settings->topk;
    n /= count_widths(settings);
    shape.format = settings->formats.count ? settings->formats.values[n] : model->formats[n];
    shape.heads = settings->heads.count ? settings->heads.values[heads] : model->heads / 8;
    shape.q_dtype = settings->q_dtype >= 0 ? settings->q_dtype : model->q_dtype;
    shape.out_dtype = model->out_dtype;
    return shape;
}
