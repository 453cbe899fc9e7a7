/* SPDX-License-Identifier: Apache-2.0 */
#include "base.h"

#include <stdarg.h>
#include <stdio.h>

#define SENTENCE_MAX 512
#define LOG_LINE_MAX 1024

static _Thread_local char sentence[SENTENCE_MAX];

sparse_mla_status smla_fail(sparse_mla_status status, const char *format, ...)
{
    /* Through a copy: an argument may be the last sentence itself. */
    char text[SENTENCE_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    memcpy(sentence, text, sizeof text);
    return status;
}

void smla_log(const struct smla_log *log, sparse_mla_log_level level, const char *format, ...)
{
    char text[LOG_LINE_MAX];
    va_list args;
    if (!log || !log->fn)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    log->fn(log->user, level, text);
}

const char *sparse_mla_last_error(void)
{
    return sentence;
}

const char *sparse_mla_status_string(sparse_mla_status status)
{
    static const char *const names[] = {
        [SPARSE_MLA_OK] = "OK",
        [SPARSE_MLA_INVALID_ARGUMENT] = "INVALID_ARGUMENT",
        [SPARSE_MLA_UNSUPPORTED] = "UNSUPPORTED",
        [SPARSE_MLA_NO_DRIVER] = "NO_DRIVER",
        [SPARSE_MLA_DRIVER_TOO_OLD] = "DRIVER_TOO_OLD",
        [SPARSE_MLA_DRIVER_ERROR] = "DRIVER_ERROR",
        [SPARSE_MLA_NO_COMPILER] = "NO_COMPILER",
        [SPARSE_MLA_COMPILER_TOO_OLD] = "COMPILER_TOO_OLD",
        [SPARSE_MLA_COMPILE_FAILED] = "COMPILE_FAILED",
        [SPARSE_MLA_NOT_READY] = "NOT_READY",
        [SPARSE_MLA_OUT_OF_MEMORY] = "OUT_OF_MEMORY",
        [SPARSE_MLA_WORKSPACE_TOO_SMALL] = "WORKSPACE_TOO_SMALL",
        [SPARSE_MLA_CACHE_ERROR] = "CACHE_ERROR",
    };
    unsigned index = (unsigned)status;
    return index < sizeof names / sizeof names[0] ? names[index] : "UNKNOWN";
}

int sparse_mla_version(void)
{
    return 10000 * SPARSE_MLA_VERSION_MAJOR + 100 * SPARSE_MLA_VERSION_MINOR + SPARSE_MLA_VERSION_PATCH;
}
