/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "cache.h"

#include "sources.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define PATH_MAX_BYTES 4096
#define TEMPORARY_PREFIX ".tmp-"
#define TEMPORARY_LIFE 3600 /* seconds after which its writer is dead */
#define LOCK_FILE "lock"
#define LOCK_POLL_MS 20

/* ---- choosing the directory ---- */

static const char *text_or_null(const char *text)
{
    return text && *text ? text : NULL;
}

/* Length of a path without slashes at its end, which would make the system follow a symbolic link there. */
static size_t trimmed(const char *path, size_t length)
{
    while (length > 1 && path[length - 1] == '/')
        length--;
    return length;
}

static char *join(const char *folder, const char *name)
{
    size_t size = strlen(folder) + strlen(name) + 1;
    char *path = malloc(size);
    if (path) {
        snprintf(path, size, "%s%s", folder, name);
        path[trimmed(path, size - 1)] = 0;
    }
    return path;
}

sparse_mla_status smla_cache_init(struct smla_cache *cache, const struct smla_fs *fs, const struct smla_log *log,
                                  const sparse_mla_options *options, smla_environment_fn environment)
{
    const char *folder = text_or_null(options->cache_dir), *name = "";
    const char *seeds = options->seed_path ? options->seed_path : environment("SPARSEMLA_SEED_PATH");
    memset(cache, 0, sizeof *cache);
    cache->fs = fs;
    cache->log = log;
    cache->cap = options->cache_size_cap ? options->cache_size_cap : SMLA_CACHE_DEFAULT_CAP;
    cache->lock_ms = SMLA_CACHE_LOCK_MS;
    if (!folder)
        folder = text_or_null(environment("SPARSEMLA_CACHE_DIR"));
    if (!folder && (folder = text_or_null(environment("XDG_CACHE_HOME")))) {
        name = "/sparsemla";
        folder = folder[0] == '/' ? folder : NULL; /* the XDG rule: relative paths are ignored */
    }
    if (!folder && (folder = text_or_null(environment("HOME"))))
        name = "/.cache/sparsemla";
    cache->forbidden = options->no_disk_cache != 0;
    if (cache->forbidden)
        folder = NULL;
    cache->dir = folder ? join(folder, name) : NULL;
    cache->seeds = text_or_null(seeds) ? strdup(seeds) : NULL;
    if ((folder && !cache->dir) || (text_or_null(seeds) && !cache->seeds)) {
        smla_cache_finish(cache);
        return smla_fail(SPARSE_MLA_OUT_OF_MEMORY, "no memory for the name of the cache directory");
    }
    return SPARSE_MLA_OK;
}

void smla_cache_finish(struct smla_cache *cache)
{
    free(cache->dir);
    free(cache->seeds);
    cache->dir = cache->seeds = NULL;
}

/* ---- opening ---- */

/* One warning for a directory that cannot be used; the rest is detail. */
static void warn_once(struct smla_cache *cache, const char *what, const char *path, const char *reason)
{
    int told = atomic_exchange(&cache->warned, 1);
    smla_log(cache->log, told ? SPARSE_MLA_LOG_DEBUG : SPARSE_MLA_LOG_WARNING, "cache: %s %s: %s; going on without it",
             what, path, reason);
}

/* Why a directory cannot be used. */
static const char *reason_of(const struct smla_cache *cache, const char *path, bool seed, int error)
{
    return smla_fs_reason(cache->fs, AT_FDCWD, path, seed, error);
}

/* The cache directory, made if need be. NULL, or why there is none. */
static const char *open_own_dir(const struct smla_cache *cache, int *dir)
{
    *dir = -1;
    if (!cache->dir)
        return cache->forbidden ? "options.no_disk_cache is set"
                                : "options.cache_dir, SPARSEMLA_CACHE_DIR, XDG_CACHE_HOME and HOME name none";
    int error = smla_fs_open_trusted(cache->fs, cache->dir, false, dir);
    if (error == ENOENT) {
        error = smla_fs_make_dirs(cache->fs, cache->dir);
        if (!error)
            error = smla_fs_open_trusted(cache->fs, cache->dir, false, dir);
    }
    return error ? reason_of(cache, cache->dir, false, error) : NULL;
}

/* The same with a warning. */
static const char *use_own_dir(struct smla_cache *cache, int *dir)
{
    const char *reason = open_own_dir(cache, dir);
    if (reason && cache->dir)
        warn_once(cache, "cannot use directory", cache->dir, reason);
    return reason;
}

sparse_mla_status smla_cache_require(struct smla_cache *cache)
{
    int dir;
    const char *reason = open_own_dir(cache, &dir);
    if (!reason) {
        cache->fs->close(dir);
        return SPARSE_MLA_OK;
    }
    if (cache->dir)
        return smla_fail(SPARSE_MLA_CACHE_ERROR,
                         "the cache directory %s cannot be used: %s; options.cache_dir or SPARSEMLA_CACHE_DIR may name "
                         "another",
                         cache->dir, reason);
    return smla_fail(cache->forbidden ? SPARSE_MLA_INVALID_ARGUMENT : SPARSE_MLA_CACHE_ERROR,
                     "there is no cache directory: %s", reason);
}

/* ---- finding ---- */

static bool take(struct smla_cache *cache, const char *path, const struct smla_key *key, bool again,
                 const struct smla_fs_contents *file, struct smla_cubin *cubin)
{
    struct smla_entry entry;
    enum smla_entry_result result = smla_entry_parse(file->data, file->size, &entry);
    if (result == SMLA_ENTRY_DAMAGED)
        smla_log(cache->log, again ? SPARSE_MLA_LOG_DEBUG : SPARSE_MLA_LOG_WARNING,
                 "cache: %s/%s is damaged and not used", path, key->file);
    if (result != SMLA_ENTRY_OK || entry.key_size != key->size || memcmp(entry.key, key->bytes, key->size) != 0)
        return false;
    cubin->data = malloc(entry.cubin_size);
    if (!cubin->data)
        return false;
    memcpy(cubin->data, entry.cubin, entry.cubin_size);
    cubin->size = entry.cubin_size;
    cubin->nvrtc_version = entry.nvrtc_version;
    return true;
}

static bool find_in(struct smla_cache *cache, const char *path, bool seed, const struct smla_key *key, bool again,
                    struct smla_cubin *cubin)
{
    struct smla_fs_contents file;
    int dir;
    int error = smla_fs_open_trusted(cache->fs, path, seed, &dir);
    if (error) {
        if (error != ENOENT)
            warn_once(cache, "cannot use directory", path, reason_of(cache, path, seed, error));
        return false;
    }
    error = smla_fs_read_trusted(cache->fs, dir, key->file, seed, !seed, SMLA_ENTRY_MAX, &file);
    if (error && error != ENOENT)
        smla_log(cache->log, again ? SPARSE_MLA_LOG_DEBUG : SPARSE_MLA_LOG_WARNING, "cache: %s/%s is not used: %s",
                 path, key->file, smla_fs_reason(cache->fs, dir, key->file, seed, error));
    bool found = !error && take(cache, path, key, again, &file, cubin);
    if (found)
        smla_log(cache->log, SPARSE_MLA_LOG_INFO, "cache: hit %s/%s", path, key->file);
    free(file.data);
    cache->fs->close(dir);
    return found;
}

bool smla_cache_find(struct smla_cache *cache, const struct smla_key *key, bool again, struct smla_cubin *cubin)
{
    char path[PATH_MAX_BYTES];
    memset(cubin, 0, sizeof *cubin);
    if (cache->dir && find_in(cache, cache->dir, false, key, again, cubin))
        return true;
    for (const char *seed = cache->seeds; seed && *seed;) {
        size_t length = strcspn(seed, ":");
        if (length && length < sizeof path) {
            snprintf(path, sizeof path, "%.*s", (int)trimmed(seed, length), seed);
            if (find_in(cache, path, true, key, again, cubin))
                return true;
        }
        seed += length + (seed[length] == ':');
    }
    return false;
}

/* ---- writing ---- */

static bool is_dead_temporary(const struct smla_fs_file *file)
{
    return strncmp(file->name, TEMPORARY_PREFIX, strlen(TEMPORARY_PREFIX)) == 0 &&
           time(NULL) - file->last_used > TEMPORARY_LIFE;
}

static void evict(struct smla_cache *cache, int dir, const char *keep)
{
    struct smla_fs_file *files;
    size_t count;
    uint64_t total = 0;
    (void)smla_fs_list(cache->fs, dir, &files, &count);
    for (size_t i = 0; i < count; i++) {
        if (is_dead_temporary(&files[i]))
            (void)cache->fs->unlink(dir, files[i].name);
        total += smla_key_is_file(files[i].name) ? files[i].bytes : 0;
    }
    for (size_t i = 0; i < count && total > cache->cap; i++)
        if (smla_key_is_file(files[i].name) && strcmp(files[i].name, keep) != 0 &&
            (cache->fs->unlink(dir, files[i].name) == 0 || errno == ENOENT)) /* or another process was faster */
            total -= files[i].bytes;
    free(files);
}

const char *smla_cache_store(struct smla_cache *cache, const struct smla_key *key, const struct smla_cubin *cubin)
{
    char temporary[96];
    struct timespec now;
    size_t size;
    int dir;
    const char *reason = use_own_dir(cache, &dir);
    if (reason)
        return reason;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(temporary, sizeof temporary, TEMPORARY_PREFIX "%ld-%u-%lld%09ld", (long)getpid(),
             atomic_fetch_add(&cache->temporaries, 1u), (long long)now.tv_sec, now.tv_nsec);
    void *bytes = smla_entry_write(key, cubin, &size);
    int error = bytes ? smla_fs_publish(cache->fs, dir, temporary, key->file, bytes, size) : ENOMEM;
    free(bytes);
    if (error)
        warn_once(cache, "cannot write to", cache->dir, reason = strerror(error));
    else
        evict(cache, dir, key->file);
    cache->fs->close(dir);
    return reason;
}

void smla_cache_drop(struct smla_cache *cache, const struct smla_key *key)
{
    int dir;
    if (use_own_dir(cache, &dir))
        return;
    if (cache->fs->unlink(dir, key->file) != 0 && errno != ENOENT)
        warn_once(cache, "cannot delete from", cache->dir, strerror(errno));
    cache->fs->close(dir);
}

/* ---- the lock between processes ---- */

/* 0 or an errno; ETIMEDOUT when another holds it all the time. */
static int wait_for_lock(struct smla_cache *cache, int fd, uint64_t byte)
{
    const struct timespec pause = {.tv_nsec = LOCK_POLL_MS * 1000000L};
    for (int waited = 0; cache->fs->lock(fd, byte) != 0; waited += LOCK_POLL_MS) {
        if (errno != EAGAIN && errno != EINTR)
            return errno;
        if (waited >= cache->lock_ms)
            return ETIMEDOUT;
        nanosleep(&pause, NULL);
    }
    return 0;
}

int smla_cache_lock(struct smla_cache *cache, const struct smla_key *key)
{
    int dir;
    if (use_own_dir(cache, &dir))
        return -1;
    int fd = cache->fs->open(dir, LOCK_FILE, O_RDWR | O_CREAT | O_NONBLOCK, 0600);
    int error = fd < 0 ? errno : wait_for_lock(cache, fd, key->hash);
    if (error) {
        warn_once(cache, "cannot lock", cache->dir, strerror(error));
        if (fd >= 0)
            cache->fs->close(fd);
        fd = -1;
    }
    cache->fs->close(dir);
    return fd;
}

void smla_cache_unlock(struct smla_cache *cache, int handle)
{
    if (handle < 0)
        return;
    (void)cache->fs->unlock(handle);
    cache->fs->close(handle);
}

/* ---- what the tool shows ---- */

static sparse_mla_status list_own(struct smla_cache *cache, int *dir, struct smla_fs_file **files, size_t *count)
{
    *files = NULL;
    *count = 0;
    *dir = -1;
    if (!cache->dir)
        return SPARSE_MLA_OK;
    int error = smla_fs_open_trusted(cache->fs, cache->dir, false, dir);
    if (!error)
        error = smla_fs_list(cache->fs, *dir, files, count);
    if (error && error != ENOENT)
        return smla_fail(SPARSE_MLA_CACHE_ERROR, "the cache directory %s cannot be read: %s", cache->dir,
                         reason_of(cache, cache->dir, false, error));
    return SPARSE_MLA_OK;
}

static void end_list(struct smla_cache *cache, int dir, struct smla_fs_file *files)
{
    free(files);
    if (dir >= 0)
        cache->fs->close(dir);
}

/* False for a damaged file. */
static bool describe(struct smla_cache *cache, int dir, const struct smla_fs_file *file, sparse_mla_cache_entry *entry)
{
    struct smla_fs_contents contents;
    struct smla_entry parsed;
    struct smla_key_parts parts;
    *entry = (sparse_mla_cache_entry){.struct_size = sizeof *entry, .bytes = file->bytes, .last_used = file->last_used};
    snprintf(entry->file, sizeof entry->file, "%s", file->name);
    if (smla_fs_read_trusted(cache->fs, dir, file->name, false, false, SMLA_ENTRY_MAX, &contents) != 0)
        return false;
    enum smla_entry_result result = smla_entry_parse(contents.data, contents.size, &parsed);
    if (result == SMLA_ENTRY_OK && smla_key_parse(parsed.key, parsed.key_size, &parts)) {
        snprintf(entry->variant, sizeof entry->variant, "%s", parts.variant);
        snprintf(entry->target, sizeof entry->target, "%s", parts.target);
        entry->valid = strcmp(parts.digest, smla_source_digest) == 0;
        entry->nvrtc_version = parsed.nvrtc_version;
    }
    free(contents.data);
    return result != SMLA_ENTRY_DAMAGED;
}

sparse_mla_status smla_cache_list(struct smla_cache *cache, sparse_mla_cache_entry_fn visit, void *user)
{
    sparse_mla_cache_entry entry;
    struct smla_fs_file *files;
    size_t count;
    int dir;
    sparse_mla_status status = list_own(cache, &dir, &files, &count);
    for (size_t i = 0; i < count; i++) {
        if (!smla_key_is_file(files[i].name))
            continue;
        (void)describe(cache, dir, &files[i], &entry);
        if (visit(user, &entry) != 0)
            break;
    }
    end_list(cache, dir, files);
    return status;
}

sparse_mla_status smla_cache_check(struct smla_cache *cache, uint32_t *bad)
{
    sparse_mla_cache_entry entry;
    struct smla_fs_file *files;
    size_t count;
    int dir;
    *bad = 0;
    sparse_mla_status status = list_own(cache, &dir, &files, &count);
    for (size_t i = 0; i < count; i++)
        *bad += smla_key_is_file(files[i].name) && !describe(cache, dir, &files[i], &entry);
    end_list(cache, dir, files);
    return status;
}

sparse_mla_status smla_cache_clear(struct smla_cache *cache)
{
    struct smla_fs_file *files;
    size_t count;
    int dir;
    sparse_mla_status status = list_own(cache, &dir, &files, &count);
    for (size_t i = 0; i < count; i++)
        if ((smla_key_is_file(files[i].name) || is_dead_temporary(&files[i])) &&
            cache->fs->unlink(dir, files[i].name) != 0 && errno != ENOENT)
            status = smla_fail(SPARSE_MLA_CACHE_ERROR, "%s/%s cannot be deleted: %s", cache->dir, files[i].name,
                               strerror(errno));
    end_list(cache, dir, files);
    return status;
}
