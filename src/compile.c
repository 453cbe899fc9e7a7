/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "compile.h"

#include "sources.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define NO_CACHE_SINCE 12090
#define HEADERS_MAX 32
#define LOG_LINE 400

void smla_compile_options(struct smla_options_list *options, const struct smla_program *program)
{
    memset(options, 0, sizeof *options);
    options->count = smla_program_defines(program, options->text);
    strcpy(options->text[options->count++], "--std=c++17");
    strcpy(options->text[options->count++], "-minimal");
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void log_lines(const struct smla_log *log, sparse_mla_log_level level, const char *text)
{
    while (*text) {
        size_t length = strcspn(text, "\n");
        if (length)
            smla_log(log, level, "nvrtc: %.*s", length < LOG_LINE ? (int)length : LOG_LINE, text);
        text += length + (text[length] != 0);
    }
}

/* The first line that says error goes to WARNING, everything to DEBUG. */
static void log_output(const struct smla_nvrtc *nvrtc, const struct smla_log *log, struct _nvrtcProgram *program,
                       bool failed)
{
    size_t size = 0;
    if (nvrtc->get_program_log_size(program, &size) != SMLA_NVRTC_SUCCESS || size < 2)
        return;
    char *text = calloc(size + 1, 1);
    if (text && nvrtc->get_program_log(program, text) == SMLA_NVRTC_SUCCESS) {
        const char *error = strstr(text, "error");
        if (failed) {
            while (error && error > text && error[-1] != '\n')
                error--;
            const char *first = error ? error : text;
            smla_log(log, SPARSE_MLA_LOG_WARNING, "nvrtc: %.*s", (int)strcspn(first, "\n"), first);
        }
        log_lines(log, SPARSE_MLA_LOG_DEBUG, text);
    }
    free(text);
}

static sparse_mla_status nvrtc_fail(const struct smla_nvrtc *nvrtc, int result, const char *what, const char *name)
{
    sparse_mla_status status =
        result == SMLA_NVRTC_OUT_OF_MEMORY ? SPARSE_MLA_OUT_OF_MEMORY : SPARSE_MLA_COMPILE_FAILED;
    return smla_fail(status, "NVRTC %d.%d failed to %s %s: %s (%d)%s", nvrtc->version / 1000,
                     nvrtc->version % 1000 / 10, what, name, nvrtc->get_error_string(result), result,
                     result == SMLA_NVRTC_COMPILATION ? "; the log callback has its output" : "");
}

static int compile(const struct smla_nvrtc *nvrtc, struct _nvrtcProgram *source, const struct smla_program *program,
                   int target)
{
    struct smla_options_list list;
    const char *options[SMLA_OPTIONS_MAX + 4];
    char arch[32];
    int count = 0;
    smla_compile_options(&list, program);
    for (int i = 0; i < list.count; i++)
        options[count++] = list.text[i];
    snprintf(arch, sizeof arch, "-arch=sm_%d", target);
    options[count++] = arch;
    /* Else NVRTC raises the stack limit of the whole process while it compiles. */
    options[count++] = "-modify-stack-limit=false";
    if (nvrtc->version >= NO_CACHE_SINCE)
        options[count++] = "-no-cache";
    return nvrtc->compile_program(source, count, options);
}

static int take_cubin(const struct smla_nvrtc *nvrtc, struct _nvrtcProgram *program, struct smla_cubin *cubin)
{
    size_t size = 0;
    int result = nvrtc->get_cubin_size(program, &size);
    if (result != SMLA_NVRTC_SUCCESS)
        return result;
    char *data = malloc(size ? size : 1);
    if (!data)
        return SMLA_NVRTC_OUT_OF_MEMORY;
    result = nvrtc->get_cubin(program, data);
    if (result != SMLA_NVRTC_SUCCESS) {
        free(data);
        return result;
    }
    *cubin = (struct smla_cubin){data, size, nvrtc->version};
    return SMLA_NVRTC_SUCCESS;
}

static int create(const struct smla_nvrtc *nvrtc, struct _nvrtcProgram **program)
{
    const char *texts[HEADERS_MAX], *names[HEADERS_MAX];
    int headers = smla_source_count - 1;
    if (headers > HEADERS_MAX)
        return SMLA_NVRTC_OUT_OF_MEMORY;
    for (int i = 0; i < headers; i++) {
        texts[i] = smla_sources[i + 1].text;
        names[i] = smla_sources[i + 1].name;
    }
    return nvrtc->create_program(program, smla_sources[0].text, smla_sources[0].name, headers, texts, names);
}

sparse_mla_status smla_compile(const struct smla_nvrtc *nvrtc, const struct smla_log *log,
                               const struct smla_program *program, int target, struct smla_cubin *cubin)
{
    char name[SMLA_VARIANT_NAME_MAX];
    struct _nvrtcProgram *source = NULL;
    double start = seconds();
    memset(cubin, 0, sizeof *cubin);
    smla_program_name(program, name);

    int result = create(nvrtc, &source);
    if (result != SMLA_NVRTC_SUCCESS)
        return nvrtc_fail(nvrtc, result, "start on", name);
    sparse_mla_status status = SPARSE_MLA_OK;
    result = compile(nvrtc, source, program, target);
    log_output(nvrtc, log, source, result != SMLA_NVRTC_SUCCESS);
    if (result != SMLA_NVRTC_SUCCESS)
        status = nvrtc_fail(nvrtc, result, "compile", name);
    else if ((result = take_cubin(nvrtc, source, cubin)) != SMLA_NVRTC_SUCCESS)
        status = nvrtc_fail(nvrtc, result, "hand over", name);
    nvrtc->destroy_program(&source);
    if (status == SPARSE_MLA_OK)
        smla_log(log, SPARSE_MLA_LOG_INFO, "compiled %s for sm_%d with NVRTC %d.%d in %.2f s, %zu bytes", name, target,
                 nvrtc->version / 1000, nvrtc->version % 1000 / 10, seconds() - start, cubin->size);
    return status;
}
