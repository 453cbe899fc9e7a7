/* SPDX-License-Identifier: Apache-2.0 */
/* sparse_mla_create() with the emulator's driver and compiler. */
#include "emulator.h"

#include "context.h"

sparse_mla_status emulator_open_driver(struct smla_driver *driver);
sparse_mla_status emulator_open_nvrtc(struct smla_nvrtc *nvrtc, const char *path, int driver_version,
                                      const struct smla_log *log);
const char *emulator_cache_dir(void);

static const char *no_environment(const char *name)
{
    (void)name;
    return NULL;
}

sparse_mla_status emulator_create(const sparse_mla_options *given, sparse_mla_context **context)
{
    static const struct smla_edges edges = {&smla_fs_system, no_environment, emulator_open_driver, emulator_open_nvrtc};
    sparse_mla_options options;
    sparse_mla_options_init(&options);
    if (given)
        options = *given;
    if (!options.cache_dir)
        options.cache_dir = emulator_cache_dir();
    options.no_disk_cache = !options.cache_dir;
    return smla_context_create(&options, &edges, context);
}
