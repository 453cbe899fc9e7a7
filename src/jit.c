/* SPDX-License-Identifier: Apache-2.0 */
#include "jit.h"

#include "sources.h"

#include <stdlib.h>

struct loaded {
    struct loaded *next;
    unsigned long long context_id;
    struct smla_kernel kernel;
};

/* One program for one compute capability. While `busy`, cubin, target and compiled belong to one thread. */
struct smla_jit_slot {
    struct smla_jit_slot *next;
    struct smla_program program;
    int wanted; /* compute capability asked for */

    bool busy;
    unsigned failures; /* how often getting a cubin has failed: waiters see that it did meanwhile */
    sparse_mla_status status;
    char sentence[512];
    struct loaded *loaded;

    struct smla_cubin cubin;
    int target;    /* what the cubin was compiled for: `wanted`, or lower where NVRTC does not know that */
    bool compiled; /* by this process, so not to be compiled again if the driver refuses it */
};

/* What a thread may do for a slot that it works on. */
struct request {
    const struct smla_driver *driver; /* NULL: no loading */
    const struct smla_place *place;
    int driver_version;       /* limits the choice of NVRTC; 0: none */
    bool exact;               /* no target below the wanted one */
    const char *no_compiling; /* why not; NULL: may compile */
};

sparse_mla_status smla_jit_init(struct smla_jit *jit, const struct smla_log *log, struct smla_cache *cache,
                                smla_nvrtc_open_fn open_nvrtc, const char *nvrtc_path, const char *nvrtc_path_from,
                                bool fail_on_miss)
{
    memset(jit, 0, sizeof *jit);
    jit->log = log;
    jit->cache = cache;
    jit->open_nvrtc = open_nvrtc;
    jit->nvrtc_path = nvrtc_path;
    jit->nvrtc_path_from = nvrtc_path_from;
    jit->fail_on_miss = fail_on_miss;
    if (pthread_mutex_init(&jit->mutex, NULL) != 0)
        return smla_fail(SPARSE_MLA_OUT_OF_MEMORY, "no memory for a mutex");
    if (pthread_mutex_init(&jit->nvrtc_mutex, NULL) != 0) {
        pthread_mutex_destroy(&jit->mutex);
        return smla_fail(SPARSE_MLA_OUT_OF_MEMORY, "no memory for a mutex");
    }
    if (pthread_cond_init(&jit->idle, NULL) != 0) {
        pthread_mutex_destroy(&jit->nvrtc_mutex);
        pthread_mutex_destroy(&jit->mutex);
        return smla_fail(SPARSE_MLA_OUT_OF_MEMORY, "no memory for a condition variable");
    }
    return SPARSE_MLA_OK;
}

void smla_jit_finish(struct smla_jit *jit)
{
    while (jit->slots) {
        struct smla_jit_slot *slot = jit->slots;
        jit->slots = slot->next;
        while (slot->loaded) {
            struct loaded *loaded = slot->loaded;
            slot->loaded = loaded->next;
            free(loaded);
        }
        smla_cubin_free(&slot->cubin);
        free(slot);
    }
    pthread_cond_destroy(&jit->idle);
    pthread_mutex_destroy(&jit->nvrtc_mutex);
    pthread_mutex_destroy(&jit->mutex);
}

/* ---- getting a cubin ---- */

static sparse_mla_status nvrtc_ready(struct smla_jit *jit, int driver_version)
{
    sparse_mla_status status = SPARSE_MLA_OK;
    pthread_mutex_lock(&jit->nvrtc_mutex);
    if (!jit->nvrtc.version) {
        status = jit->open_nvrtc(&jit->nvrtc, jit->nvrtc_path, driver_version, jit->log);
        if (status != SPARSE_MLA_OK)
            jit->nvrtc.version = 0;
        if (status != SPARSE_MLA_OK && jit->nvrtc_path)
            (void)smla_fail(status, "%s is %s: %s", jit->nvrtc_path_from, jit->nvrtc_path, sparse_mla_last_error());
    }
    pthread_mutex_unlock(&jit->nvrtc_mutex);
    return status;
}

int smla_jit_nvrtc_version(struct smla_jit *jit, int driver_version)
{
    return nvrtc_ready(jit, driver_version) == SPARSE_MLA_OK ? jit->nvrtc.version : 0;
}

static void make_key(const struct smla_program *program, int target, struct smla_key *key)
{
    char name[SMLA_VARIANT_NAME_MAX];
    struct smla_options_list options;
    smla_program_name(program, name);
    smla_compile_options(&options, program);
    smla_key_make(key, smla_source_digest, target, &options, name);
}

static bool find_on_disk(struct smla_jit *jit, struct smla_jit_slot *slot, int target, bool again)
{
    struct smla_key key;
    make_key(&slot->program, target, &key);
    if (!smla_cache_find(jit->cache, &key, again, &slot->cubin))
        return false;
    slot->target = target;
    slot->compiled = false;
    return true;
}

/* Without NVRTC a cubin of a lower minor number, as a seed directory may hold it, is better than nothing. */
static sparse_mla_status find_lower(struct smla_jit *jit, struct smla_jit_slot *slot, const struct request *request,
                                    sparse_mla_status status)
{
    char name[SMLA_VARIANT_NAME_MAX];
    for (int target = slot->wanted - 1; !request->exact && target >= slot->wanted / 10 * 10; target--)
        if (find_on_disk(jit, slot, target, false))
            return SPARSE_MLA_OK;
    smla_program_name(&slot->program, name);
    return smla_fail(status, "no cache holds %s for sm_%d, and %s", name, slot->wanted, sparse_mla_last_error());
}

static sparse_mla_status compile(struct smla_jit *jit, struct smla_jit_slot *slot, int target)
{
    struct smla_key key;
    sparse_mla_status status = smla_compile(&jit->nvrtc, jit->log, &slot->program, target, &slot->cubin);
    if (status != SPARSE_MLA_OK)
        return status;
    slot->target = target;
    slot->compiled = true;
    make_key(&slot->program, target, &key);
    smla_cache_store(jit->cache, &key, &slot->cubin);
    return SPARSE_MLA_OK;
}

/* With the lock between processes, so that the others find on disk what this one compiles. */
static sparse_mla_status compile_locked(struct smla_jit *jit, struct smla_jit_slot *slot, const struct request *request,
                                        bool trust_disk)
{
    int target;
    if (trust_disk && find_on_disk(jit, slot, slot->wanted, true))
        return SPARSE_MLA_OK;
    sparse_mla_status status = nvrtc_ready(jit, request->driver_version);
    if (status != SPARSE_MLA_OK)
        return find_lower(jit, slot, request, status);
    status = smla_nvrtc_target(&jit->nvrtc, slot->wanted, request->exact, &target);
    if (status != SPARSE_MLA_OK)
        return status;
    if (trust_disk && target != slot->wanted && find_on_disk(jit, slot, target, false))
        return SPARSE_MLA_OK;
    return compile(jit, slot, target);
}

static sparse_mla_status get_cubin(struct smla_jit *jit, struct smla_jit_slot *slot, const struct request *request,
                                   bool trust_disk)
{
    char name[SMLA_VARIANT_NAME_MAX];
    struct smla_key key;
    if (trust_disk && find_on_disk(jit, slot, slot->wanted, false))
        return SPARSE_MLA_OK;
    if (request->no_compiling) {
        smla_program_name(&slot->program, name);
        return smla_fail(SPARSE_MLA_NOT_READY, "%s for sm_%d is in no cache and is not compiled %s", name, slot->wanted,
                         request->no_compiling);
    }
    make_key(&slot->program, slot->wanted, &key);
    int lock = smla_cache_lock(jit->cache, &key);
    sparse_mla_status status = compile_locked(jit, slot, request, trust_disk);
    smla_cache_unlock(jit->cache, lock);
    return status;
}

/* ---- loading it ---- */

static void drop_cubin(struct smla_jit *jit, struct smla_jit_slot *slot)
{
    struct smla_key key;
    smla_log(jit->log, SPARSE_MLA_LOG_WARNING, "cached kernel dropped: %s", sparse_mla_last_error());
    make_key(&slot->program, slot->target, &key);
    smla_cache_drop(jit->cache, &key);
    smla_cubin_free(&slot->cubin);
}

static sparse_mla_status keep_on_disk(struct smla_jit *jit, const struct smla_jit_slot *slot)
{
    char name[SMLA_VARIANT_NAME_MAX];
    struct smla_key key;
    struct smla_cubin cubin;
    make_key(&slot->program, slot->target, &key);
    bool found = smla_cache_find(jit->cache, &key, true, &cubin);
    smla_cubin_free(&cubin);
    const char *reason = found ? NULL : smla_cache_store(jit->cache, &key, &slot->cubin);
    if (!reason)
        return SPARSE_MLA_OK;
    smla_program_name(&slot->program, name);
    return smla_fail(SPARSE_MLA_CACHE_ERROR, "%s for sm_%d cannot be written to the cache directory %s: %s", name,
                     slot->target, jit->cache->dir, reason);
}

/* Cubin and, with a driver, kernel. A cubin from a cache that the driver refuses is replaced once. */
static sparse_mla_status make_ready(struct smla_jit *jit, struct smla_jit_slot *slot, const struct request *request,
                                    struct smla_kernel *kernel)
{
    char name[SMLA_VARIANT_NAME_MAX];
    bool refused, trust_disk = true;
    smla_program_name(&slot->program, name);
    if (request->exact && slot->target != slot->wanted)
        smla_cubin_free(&slot->cubin);
    for (;;) {
        sparse_mla_status status = SPARSE_MLA_OK;
        if (!slot->cubin.data)
            status = get_cubin(jit, slot, request, trust_disk);
        if (status == SPARSE_MLA_OK && request->exact)
            status = keep_on_disk(jit, slot);
        if (status != SPARSE_MLA_OK || !request->driver)
            return status;
        status = smla_kernel_load(request->driver, request->place, slot->cubin.data, name,
                                  smla_program_shared_bytes(&slot->program), kernel, &refused);
        if (!refused || slot->compiled)
            return status;
        drop_cubin(jit, slot);
        trust_disk = false;
    }
}

/* ---- one thread per slot ---- */

static struct smla_jit_slot *find_slot(const struct smla_jit *jit, const struct smla_program *program, int wanted)
{
    struct smla_jit_slot *slot = jit->slots;
    while (slot && (slot->wanted != wanted || memcmp(&slot->program, program, sizeof *program) != 0))
        slot = slot->next;
    return slot;
}

static struct smla_jit_slot *find_or_add_slot(struct smla_jit *jit, const struct smla_program *program, int wanted)
{
    struct smla_jit_slot *slot = find_slot(jit, program, wanted);
    if (!slot && (slot = calloc(1, sizeof *slot))) {
        slot->program = *program;
        slot->wanted = wanted;
        slot->next = jit->slots;
        jit->slots = slot;
    }
    return slot;
}

static const struct smla_kernel *find_loaded(const struct smla_jit_slot *slot, const struct smla_place *place)
{
    struct loaded *loaded = slot ? slot->loaded : NULL;
    while (loaded && (!place || loaded->context_id != place->context_id))
        loaded = loaded->next;
    return loaded ? &loaded->kernel : NULL;
}

/* Waits, under the mutex, while another thread works on the slot; its failure to get a cubin is ours too, unless
 * it was not allowed to compile and we are. */
static sparse_mla_status wait_idle(struct smla_jit *jit, struct smla_jit_slot *slot, const struct request *request)
{
    unsigned seen = slot->failures;
    while (slot->busy) {
        pthread_cond_wait(&jit->idle, &jit->mutex);
        if (slot->failures != seen && (slot->status != SPARSE_MLA_NOT_READY || request->no_compiling))
            return smla_fail(slot->status, "%s", slot->sentence);
        seen = slot->failures;
    }
    return SPARSE_MLA_OK;
}

static sparse_mla_status finish_work(struct smla_jit_slot *slot, const struct request *request,
                                     sparse_mla_status status, const struct smla_kernel *kernel)
{
    if (status != SPARSE_MLA_OK) {
        if (!slot->cubin.data) {
            slot->failures++;
            slot->status = status;
            strncpy(slot->sentence, sparse_mla_last_error(), sizeof slot->sentence - 1);
        }
        return status;
    }
    if (!request->driver)
        return SPARSE_MLA_OK;
    struct loaded *loaded = calloc(1, sizeof *loaded);
    if (!loaded)
        return smla_fail(SPARSE_MLA_OUT_OF_MEMORY, "no memory for a table of kernels");
    *loaded = (struct loaded){slot->loaded, request->place->context_id, *kernel};
    slot->loaded = loaded;
    return SPARSE_MLA_OK;
}

static sparse_mla_status work(struct smla_jit *jit, const struct smla_program *program, int wanted,
                              const struct request *request, struct smla_kernel *kernel)
{
    sparse_mla_status status;
    pthread_mutex_lock(&jit->mutex);
    struct smla_jit_slot *slot = find_or_add_slot(jit, program, wanted);
    if (!slot)
        status = smla_fail(SPARSE_MLA_OUT_OF_MEMORY, "no memory for a table of kernels");
    else
        status = wait_idle(jit, slot, request);
    const struct smla_kernel *loaded = status == SPARSE_MLA_OK ? find_loaded(slot, request->place) : NULL;
    if (loaded) {
        *kernel = *loaded;
    } else if (status == SPARSE_MLA_OK) {
        slot->busy = true;
        pthread_mutex_unlock(&jit->mutex);
        status = make_ready(jit, slot, request, kernel);
        pthread_mutex_lock(&jit->mutex);
        slot->busy = false;
        status = finish_work(slot, request, status, kernel);
        pthread_cond_broadcast(&jit->idle);
    }
    pthread_mutex_unlock(&jit->mutex);
    return status;
}

/* ---- the interface ---- */

sparse_mla_status smla_jit_get(struct smla_jit *jit, const struct smla_driver *driver, const struct smla_place *place,
                               const struct smla_program *program, int compute_capability, struct smla_kernel *kernel)
{
    pthread_mutex_lock(&jit->mutex);
    const struct smla_kernel *loaded = find_loaded(find_slot(jit, program, compute_capability), place);
    if (loaded)
        *kernel = *loaded;
    pthread_mutex_unlock(&jit->mutex);
    if (loaded)
        return SPARSE_MLA_OK;

    struct request request = {.driver = driver, .place = place, .driver_version = driver->version};
    if (jit->fail_on_miss)
        request.no_compiling = "because options.on_miss is FAIL";
    else if (smla_kernel_capturing(driver, place))
        request.no_compiling = program->kind == SMLA_PROGRAM_DECODE
                                   ? "during stream capture; call sparse_mla_decode_prepare() before it"
                                   : "during stream capture; call sparse_mla_tools_prepare() before it";
    return work(jit, program, compute_capability, &request, kernel);
}

sparse_mla_status smla_jit_warm(struct smla_jit *jit, const struct smla_program *program, int target,
                                int driver_version)
{
    const struct request request = {.driver_version = driver_version, .exact = true};
    struct smla_kernel unused;
    return work(jit, program, target, &request, &unused);
}

int smla_jit_peek(struct smla_jit *jit, const struct smla_place *place, const struct smla_program *program,
                  int compute_capability, int *registers)
{
    struct smla_key key;
    struct smla_cubin cubin;
    pthread_mutex_lock(&jit->mutex);
    const struct smla_jit_slot *slot = find_slot(jit, program, compute_capability);
    const struct smla_kernel *loaded = find_loaded(slot, place);
    bool in_memory = loaded || (slot && !slot->busy && slot->cubin.data);
    *registers = loaded ? loaded->registers : 0;
    pthread_mutex_unlock(&jit->mutex);
    if (in_memory)
        return 2;
    make_key(program, compute_capability, &key);
    bool on_disk = smla_cache_find(jit->cache, &key, false, &cubin);
    smla_cubin_free(&cubin);
    return on_disk;
}
