/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "context.h"

#include "check.h"

#include <stdlib.h>

struct smla_seen {
    struct smla_seen *next;
    unsigned long long context_id;
    struct smla_device_facts facts;
};

static const char *system_environment(const char *name)
{
    return secure_getenv(name);
}

/* The caller's options at this library's size. */
static sparse_mla_status read_options(const sparse_mla_options *given, sparse_mla_options *options)
{
    sparse_mla_options_init(options);
    if (!given)
        return SPARSE_MLA_OK;
    return smla_copy_struct(options, sizeof *options, SMLA_OPTIONS_FIRST_SIZE, given, "options");
}

static sparse_mla_status check_options(const sparse_mla_options *options)
{
    const struct {
        const char *name, *allowed;
        int value, last;
    } rules[] = {
        {"backend", "0 (CUDA) or 1 (HOST)", options->backend, SPARSE_MLA_BACKEND_HOST},
        {"on_miss", "0 (COMPILE) or 1 (FAIL)", options->on_miss, SPARSE_MLA_ON_MISS_FAIL},
        {"profile", "0 (AUTO) to 4 (SM120)", options->profile, SPARSE_MLA_PROFILE_SM120},
        {"dump_when", "0 (EVERY_CALL) or 1 (ON_FAULT)", options->dump_when, SPARSE_MLA_DUMP_ON_FAULT},
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        if (rules[i].value < 0 || rules[i].value > rules[i].last)
            return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "options.%s is %d; allowed: %s", rules[i].name,
                             rules[i].value, rules[i].allowed);
    return SPARSE_MLA_OK;
}

/* Of the environment; NULL: nothing is to be dumped. */
static const char *dump_dir(const struct smla_edges *edges, const struct smla_log *log, bool *faults_only)
{
    const char *dir = edges->environment("SPARSEMLA_DUMP"), *when = edges->environment("SPARSEMLA_DUMP_WHEN");
    if (!dir || !*dir)
        return NULL;
    *faults_only = when && strcmp(when, "fault") == 0;
    if (*faults_only || !when || !*when || strcmp(when, "every") == 0)
        return dir;
    smla_log(log, SPARSE_MLA_LOG_WARNING,
             "SPARSEMLA_DUMP_WHEN is \"%s\"; allowed: every, fault; no call will be dumped", when);
    return NULL;
}

static sparse_mla_status fill_dump(struct smla_dump *dump, const sparse_mla_options *options,
                                   const struct smla_edges *edges, const struct smla_log *log)
{
    dump->fs = edges->fs;
    dump->log = log;
    dump->faults_only = options->dump_when == SPARSE_MLA_DUMP_ON_FAULT;
    const char *dir = options->dump_dir ? options->dump_dir : dump_dir(edges, log, &dump->faults_only);
    if (dir && *dir && !(dump->dir = strdup(dir)))
        return smla_fail(SPARSE_MLA_OUT_OF_MEMORY, "no memory for options.dump_dir");
    return SPARSE_MLA_OK;
}

static sparse_mla_status fill(sparse_mla_context *context, const sparse_mla_options *options,
                              const struct smla_edges *edges)
{
    const char *nvrtc_path = options->nvrtc_path ? options->nvrtc_path : edges->environment("SPARSEMLA_NVRTC");
    context->nvrtc_path_from = options->nvrtc_path ? "options.nvrtc_path" : "SPARSEMLA_NVRTC";
    context->backend = options->backend;
    context->profile = options->profile;
    context->log = (struct smla_log){options->log, options->log_user};
    context->open_driver = edges->open_driver;
    if (nvrtc_path && *nvrtc_path && !(context->nvrtc_path = strdup(nvrtc_path)))
        return smla_fail(SPARSE_MLA_OUT_OF_MEMORY, "no memory for options.nvrtc_path");
    const sparse_mla_status status = fill_dump(&context->dump, options, edges, &context->log);
    if (status != SPARSE_MLA_OK)
        return status;
    return smla_cache_init(&context->cache, edges->fs, &context->log, options, edges->environment);
}

sparse_mla_status smla_context_create(const sparse_mla_options *given, const struct smla_edges *edges,
                                      sparse_mla_context **out)
{
    sparse_mla_options options;
    sparse_mla_context *context = NULL;
    if (!out)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "context is NULL; it must point to a sparse_mla_context *");
    *out = NULL;
    sparse_mla_status status = read_options(given, &options);
    if (status == SPARSE_MLA_OK)
        status = check_options(&options);
    if (status != SPARSE_MLA_OK)
        return status;
    context = calloc(1, sizeof *context);
    if (!context || pthread_mutex_init(&context->mutex, NULL) != 0) {
        free(context);
        return smla_fail(SPARSE_MLA_OUT_OF_MEMORY, "no memory for a context");
    }
    status = fill(context, &options, edges);
    if (status == SPARSE_MLA_OK)
        status = smla_jit_init(&context->jit, &context->log, &context->cache, edges->open_nvrtc, context->nvrtc_path,
                               context->nvrtc_path_from, options.on_miss == SPARSE_MLA_ON_MISS_FAIL);
    if (status != SPARSE_MLA_OK) {
        smla_cache_finish(&context->cache);
        pthread_mutex_destroy(&context->mutex);
        free(context->nvrtc_path);
        free(context->dump.dir);
        free(context);
        return status;
    }
    *out = context;
    return SPARSE_MLA_OK;
}

sparse_mla_status sparse_mla_create(const sparse_mla_options *options, sparse_mla_context **context)
{
    static const struct smla_edges edges = {&smla_fs_system, system_environment, smla_driver_open, smla_nvrtc_open};
    return smla_context_create(options, &edges, context);
}

void sparse_mla_destroy(sparse_mla_context *context)
{
    if (!context)
        return;
    smla_jit_finish(&context->jit);
    smla_cache_finish(&context->cache);
    while (context->seen) {
        struct smla_seen *seen = context->seen;
        context->seen = seen->next;
        free(seen);
    }
    pthread_mutex_destroy(&context->mutex);
    free(context->nvrtc_path);
    free(context->dump.dir);
    free(context);
}

sparse_mla_status smla_context_driver(sparse_mla_context *context)
{
    sparse_mla_status status = SPARSE_MLA_OK;
    pthread_mutex_lock(&context->mutex);
    if (!context->driver.version) {
        status = context->open_driver(&context->driver);
        if (status != SPARSE_MLA_OK)
            context->driver.version = 0;
    }
    pthread_mutex_unlock(&context->mutex);
    return status;
}

static const struct smla_seen *find_seen(const sparse_mla_context *context, unsigned long long context_id)
{
    const struct smla_seen *seen = context->seen;
    while (seen && seen->context_id != context_id)
        seen = seen->next;
    return seen;
}

static sparse_mla_status remember(sparse_mla_context *context, unsigned long long context_id,
                                  const struct smla_device_facts *facts)
{
    struct smla_seen *seen = malloc(sizeof *seen);
    if (!seen)
        return smla_fail(SPARSE_MLA_OUT_OF_MEMORY, "no memory for a table of devices");
    pthread_mutex_lock(&context->mutex);
    *seen = (struct smla_seen){context->seen, context_id, *facts};
    context->seen = seen;
    pthread_mutex_unlock(&context->mutex);
    return SPARSE_MLA_OK;
}

sparse_mla_status smla_context_place(sparse_mla_context *context, struct CUstream_st *stream, struct smla_place *place,
                                     struct smla_device_facts *facts)
{
    sparse_mla_status status = smla_context_driver(context);
    if (status == SPARSE_MLA_OK)
        status = smla_kernel_place(&context->driver, stream, place);
    if (status != SPARSE_MLA_OK)
        return status;
    pthread_mutex_lock(&context->mutex);
    const struct smla_seen *seen = find_seen(context, place->context_id);
    if (seen)
        *facts = seen->facts;
    pthread_mutex_unlock(&context->mutex);
    if (seen)
        return SPARSE_MLA_OK;
    status = smla_kernel_facts(&context->driver, place, facts);
    return status == SPARSE_MLA_OK ? remember(context, place->context_id, facts) : status;
}
