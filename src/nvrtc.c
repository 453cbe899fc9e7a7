/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "nvrtc.h"

#include <dlfcn.h>
#include <stdio.h>

#define NEWEST_MAJOR 15 /* tried first when no driver limits the choice */
#define OLDEST_MAJOR (SMLA_NVRTC_FLOOR / 1000)
#define PATH_MAX_BYTES 4096
#define ARCHS_MAX 64

static bool fill(struct smla_nvrtc *nvrtc, void *library)
{
    const struct {
        void *slot;
        const char *name;
    } functions[] = {
        {&nvrtc->get_version, "nvrtcVersion"},
        {&nvrtc->get_error_string, "nvrtcGetErrorString"},
        {&nvrtc->get_num_supported_archs, "nvrtcGetNumSupportedArchs"},
        {&nvrtc->get_supported_archs, "nvrtcGetSupportedArchs"},
        {&nvrtc->create_program, "nvrtcCreateProgram"},
        {&nvrtc->destroy_program, "nvrtcDestroyProgram"},
        {&nvrtc->compile_program, "nvrtcCompileProgram"},
        {&nvrtc->get_cubin_size, "nvrtcGetCUBINSize"},
        {&nvrtc->get_cubin, "nvrtcGetCUBIN"},
        {&nvrtc->get_program_log_size, "nvrtcGetProgramLogSize"},
        {&nvrtc->get_program_log, "nvrtcGetProgramLog"},
    };
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *symbol = dlsym(library, functions[i].name);
        if (!symbol)
            return false;
        memcpy(functions[i].slot, &symbol, sizeof symbol);
    }
    return true;
}

/* NVRTC opens its builtins by bare name, which the loader finds only if they are loaded already. */
static void load_builtins(const struct smla_nvrtc *nvrtc)
{
    char path[PATH_MAX_BYTES];
    void *symbol;
    Dl_info info;
    memcpy(&symbol, &nvrtc->get_version, sizeof symbol);
    if (!dladdr(symbol, &info) || !info.dli_fname)
        return;
    const char *slash = strrchr(info.dli_fname, '/');
    int folder = slash ? (int)(slash - info.dli_fname) + 1 : 0;
    int length = snprintf(path, sizeof path, "%.*slibnvrtc-builtins.so.%d.%d", folder, info.dli_fname,
                          nvrtc->version / 1000, nvrtc->version % 1000 / 10);
    if (length > 0 && (size_t)length < sizeof path)
        (void)dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

sparse_mla_status smla_nvrtc_start(struct smla_nvrtc *nvrtc, const char *path)
{
    int major = 0, minor = 0;
    if (nvrtc->get_version(&major, &minor) != SMLA_NVRTC_SUCCESS)
        return smla_fail(SPARSE_MLA_NO_COMPILER, "NVRTC (%s) does not tell its version", path);
    int version = 1000 * major + 10 * minor;
    if (version < SMLA_NVRTC_FLOOR)
        return smla_fail(SPARSE_MLA_COMPILER_TOO_OLD, "NVRTC (%s) is version %d.%d; %d.%d or newer is needed", path,
                         major, minor, SMLA_NVRTC_FLOOR / 1000, SMLA_NVRTC_FLOOR % 1000 / 10);
    nvrtc->version = version;
    return SPARSE_MLA_OK;
}

/* `newest_major`: 0 for any. A library that is not taken stays loaded: unloading NVRTC is not safe. */
static sparse_mla_status try_path(struct smla_nvrtc *nvrtc, const char *path, int newest_major)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return smla_fail(SPARSE_MLA_NO_COMPILER, "NVRTC cannot be loaded: %s", dlerror());
    if (!fill(nvrtc, library))
        return smla_fail(SPARSE_MLA_NO_COMPILER, "%s is not NVRTC: it lacks a function of NVRTC 12.8", path);
    sparse_mla_status status = smla_nvrtc_start(nvrtc, path);
    if (status != SPARSE_MLA_OK)
        return status;
    if (newest_major && nvrtc->version / 1000 > newest_major) {
        nvrtc->version = 0;
        return smla_fail(SPARSE_MLA_NO_COMPILER, "NVRTC (%s) is newer than the driver, which takes up to %d.x", path,
                         newest_major);
    }
    load_builtins(nvrtc);
    return SPARSE_MLA_OK;
}

static sparse_mla_status search(struct smla_nvrtc *nvrtc, int newest_major, char *path, size_t size)
{
    static const char *const folders[] = {"", "/usr/local/cuda/lib64/"};
    bool too_old = false;
    int first = newest_major ? newest_major : NEWEST_MAJOR;
    for (int major = first; major >= OLDEST_MAJOR - 1; major--) {
        for (int folder = 0; folder < 2; folder++) {
            if (major >= OLDEST_MAJOR)
                snprintf(path, size, "%slibnvrtc.so.%d", folders[folder], major);
            else
                snprintf(path, size, "%slibnvrtc.so", folders[folder]);
            sparse_mla_status status = try_path(nvrtc, path, newest_major);
            if (status == SPARSE_MLA_OK)
                return status;
            too_old |= status == SPARSE_MLA_COMPILER_TOO_OLD;
        }
    }
    if (too_old)
        return smla_fail(SPARSE_MLA_COMPILER_TOO_OLD, "every NVRTC found is older than %d.%d, which is needed",
                         SMLA_NVRTC_FLOOR / 1000, SMLA_NVRTC_FLOOR % 1000 / 10);
    return smla_fail(SPARSE_MLA_NO_COMPILER,
                     "no NVRTC (libnvrtc.so.%d or older, from %d.%d on) is found by the loader or in "
                     "/usr/local/cuda/lib64; SPARSEMLA_NVRTC or options.nvrtc_path may name one",
                     first, SMLA_NVRTC_FLOOR / 1000, SMLA_NVRTC_FLOOR % 1000 / 10);
}

sparse_mla_status smla_nvrtc_open(struct smla_nvrtc *nvrtc, const char *path, int driver_version,
                                  const struct smla_log *log)
{
    char found[64];
    memset(nvrtc, 0, sizeof *nvrtc);
    sparse_mla_status status;
    if (path) {
        status = try_path(nvrtc, path, 0);
    } else {
        status = search(nvrtc, driver_version / 1000, found, sizeof found);
        path = found;
    }
    if (status == SPARSE_MLA_OK)
        smla_log(log, SPARSE_MLA_LOG_INFO, "NVRTC %d.%d loaded: %s", nvrtc->version / 1000, nvrtc->version % 1000 / 10,
                 path);
    return status;
}

sparse_mla_status smla_nvrtc_target(const struct smla_nvrtc *nvrtc, int wanted, bool exact, int *target)
{
    int archs[ARCHS_MAX] = {0};
    int count = 0, best = 0;
    if (nvrtc->get_num_supported_archs(&count) != SMLA_NVRTC_SUCCESS || count < 0 || count > ARCHS_MAX ||
        nvrtc->get_supported_archs(archs) != SMLA_NVRTC_SUCCESS)
        return smla_fail(SPARSE_MLA_COMPILE_FAILED, "NVRTC %d.%d does not tell which architectures it supports",
                         nvrtc->version / 1000, nvrtc->version % 1000 / 10);
    for (int i = 0; i < count; i++) {
        bool usable = archs[i] == wanted || (!exact && archs[i] / 10 == wanted / 10 && archs[i] < wanted);
        if (usable && archs[i] > best)
            best = archs[i];
    }
    if (!best) {
        bool newer = count > 0 && wanted > archs[count - 1];
        return smla_fail(newer ? SPARSE_MLA_COMPILER_TOO_OLD : SPARSE_MLA_UNSUPPORTED,
                         "NVRTC %d.%d cannot compile for sm_%d; its architectures go from sm_%d to sm_%d",
                         nvrtc->version / 1000, nvrtc->version % 1000 / 10, wanted, count ? archs[0] : 0,
                         count ? archs[count - 1] : 0);
    }
    *target = best;
    return SPARSE_MLA_OK;
}
