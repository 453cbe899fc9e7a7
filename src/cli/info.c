/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "cli.h"
#include "report.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SENTENCE = 1024 };

struct found {
    bool gpu;
    sparse_mla_device device;
    char no_gpu[SENTENCE]; /* why there is none */
    bool nvrtc;
    char nvrtc_version[16], nvrtc_library[SENTENCE];
    char nvrtc_sentence[SENTENCE]; /* the architectures that it knows, or why there is none */
};

static void keep_sentence(char sentence[SENTENCE])
{
    snprintf(sentence, SENTENCE, "%s", sparse_mla_last_error());
}

/* Which NVRTC was loaded is only told to the log. */
static void take_log(void *user, sparse_mla_log_level level, const char *message)
{
    struct found *found = user;
    int major, minor, path = 0;
    (void)level;
    if (sscanf(message, "NVRTC %d.%d loaded: %n", &major, &minor, &path) != 2 || !path)
        return;
    found->nvrtc = true;
    snprintf(found->nvrtc_version, sizeof found->nvrtc_version, "%d.%d", major, minor);
    snprintf(found->nvrtc_library, sizeof found->nvrtc_library, "%s", message + path);
}

/* Asks for an architecture that there is not: the refusal says what NVRTC can compile for, or why there is none. Only
 * an empty cache makes the library ask NVRTC. */
static void probe_compiler(const struct settings *settings, struct found *found)
{
    char folder[] = "/tmp/sparsemla-info-XXXXXX", lock[sizeof folder + 8];
    sparse_mla_options options;
    sparse_mla_context *context;
    if (!mkdtemp(folder)) {
        snprintf(found->nvrtc_sentence, SENTENCE, "NVRTC cannot be tried: %s: %s", folder, strerror(errno));
        return;
    }
    fill_options(settings, folder, &options);
    options.seed_path = "";
    options.log = take_log;
    options.log_user = found;
    if (sparse_mla_create(&options, &context) != SPARSE_MLA_OK ||
        sparse_mla_tools_warm(context, "sm_999") != SPARSE_MLA_OK)
        keep_sentence(found->nvrtc_sentence);
    sparse_mla_destroy(context);
    snprintf(lock, sizeof lock, "%s/lock", folder);
    (void)unlink(lock);
    (void)rmdir(folder);
}

static void probe_device(struct device *device, sparse_mla_context *context, struct found *found)
{
    found->gpu = device_open_gpu(device);
    sparse_mla_device_init(&found->device);
    if (sparse_mla_device_info(context, found->gpu ? device->stream : NULL, &found->device) == SPARSE_MLA_OK)
        return;
    keep_sentence(found->no_gpu);
    if (found->gpu)
        device_close(device);
    found->gpu = false;
}

static void print_version(struct report *report, const char *name, int version)
{
    char text[24];
    snprintf(text, sizeof text, "%d.%d", version / 1000, version % 1000 / 10);
    report_text(report, name, 0, text);
}

static void print_device(struct report *report, const struct found *found)
{
    const sparse_mla_device *device = &found->device;
    char capability[24];
    report_group(report, "device");
    report_truth(report, "available", 0, found->gpu);
    if (found->gpu) {
        snprintf(capability, sizeof capability, "%d.%d", (int)device->compute_capability / 10,
                 (int)device->compute_capability % 10);
        report_text(report, "name", 0, device->name);
        report_text(report, "compute_capability", 0, capability);
        report_whole(report, "multiprocessors", 0, device->sm_count);
        report_whole(report, "shared_bytes_per_block", 0, device->shared_bytes_per_block);
        print_version(report, "driver", device->driver_version);
    } else {
        report_text(report, "reason", 0, found->no_gpu);
    }
    report_group_end(report);
}

static void print_compiler(struct report *report, const struct found *found)
{
    report_group(report, "compiler");
    report_truth(report, "available", 0, found->nvrtc);
    if (found->nvrtc) {
        report_text(report, "nvrtc", 0, found->nvrtc_version);
        report_text(report, "library", 0, found->nvrtc_library);
        const char *archs = strstr(found->nvrtc_sentence, "go from ");
        report_text(report, "architectures", 0, archs ? archs + strlen("go from ") : NULL);
    } else {
        report_text(report, "reason", 0, found->nvrtc_sentence);
    }
    report_group_end(report);
}

struct sizes {
    long long entries, bytes;
};

static int add_entry(void *user, const sparse_mla_cache_entry *entry)
{
    struct sizes *sizes = user;
    sizes->entries++;
    sizes->bytes += (long long)entry->bytes;
    return 0;
}

static void print_cache(struct report *report, sparse_mla_context *context, const char *folder)
{
    struct sizes sizes = {0};
    report_group(report, "cache");
    report_text(report, "directory", 0, folder);
    if (sparse_mla_cache_list(context, add_entry, &sizes) == SPARSE_MLA_OK) {
        report_whole(report, "entries", 0, sizes.entries);
        report_whole(report, "bytes", 0, sizes.bytes);
    } else {
        report_text(report, "reason", 0, sparse_mla_last_error());
    }
    report_group_end(report);
}

/* Whether the device takes a model's calls in the first of its formats: "yes", or why not. */
static const char *model_answer(sparse_mla_context *context, const struct device *device, const struct model *model,
                                bool nvrtc)
{
    const struct settings settings = {.model = model, .q_dtype = -1};
    const struct shape shape = nth_shape(&settings, 0, 1);
    struct call call;
    sparse_mla_plan_info plan;
    sparse_mla_plan_info_init(&plan);
    call_init(&call, &shape, 1 << 20);
    if (sparse_mla_decode_explain(context, &call.args, device->stream, &plan) != SPARSE_MLA_OK)
        return sparse_mla_last_error();
    return plan.cached ? "yes, from the cache"
           : nvrtc     ? "yes, compiled on first use"
                       : "no: it is in no cache, and there is no NVRTC to compile it";
}

static void print_answer(struct report *report, const char *name, const char *why_not)
{
    char text[SENTENCE + 8] = "yes";
    if (why_not)
        snprintf(text, sizeof text, "no: %s", why_not);
    report_text(report, name, 0, text);
}

static const char *why_no_cuda(const struct found *found)
{
    if (!found->gpu)
        return found->no_gpu;
    return found->device.profile ? NULL : "compute capability 8.0 or more is needed";
}

static void print_supported(struct report *report, sparse_mla_context *context, const struct device *device,
                            const struct found *found)
{
    report_group(report, "supported");
    report_text(report, "host_backend", 0, "yes");
    print_answer(report, "warm", found->nvrtc ? NULL : found->nvrtc_sentence);
    print_answer(report, "cuda_backend", why_no_cuda(found));
    for (const struct model *model = models; found->gpu && model->name; model++)
        report_text(report, model->name, 0, model_answer(context, device, model, found->nvrtc));
    report_group_end(report);
}

int run_info(const struct settings *settings)
{
    static struct found found;
    const int version = sparse_mla_version();
    char *folder = cache_directory(settings), text[32];
    struct device device;
    sparse_mla_options options;
    sparse_mla_context *context;
    struct report report;
    fill_options(settings, folder, &options);
    const sparse_mla_status status = sparse_mla_create(&options, &context);
    if (status != SPARSE_MLA_OK) {
        free(folder);
        return report_failure(settings, status);
    }
    probe_device(&device, context, &found);
    probe_compiler(settings, &found);
    report_begin(&report, REPORT_RECORD, settings->json);
    snprintf(text, sizeof text, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    report_text(&report, "version", 0, text);
    print_device(&report, &found);
    print_compiler(&report, &found);
    print_cache(&report, context, folder);
    print_supported(&report, context, &device, &found);
    report_end(&report);
    sparse_mla_destroy(context);
    if (found.gpu)
        device_close(&device);
    free(folder);
    return EXIT_FINE;
}
