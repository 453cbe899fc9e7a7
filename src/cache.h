/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled kernels in a directory, and read-only seed directories after it.
 *
 * May be stale, full, read-only, corrupt or absent: that costs one warning in the log and never a call. Files
 * and directories that are symlinks, foreign or writable by others are not used. Any number of threads and
 * processes may use one directory; a reader sees a whole entry or none. Thread-safe. */
#ifndef SMLA_CACHE_H
#define SMLA_CACHE_H

#include "entry.h"
#include "fs.h"

#include <stdatomic.h>

#define SMLA_CACHE_DEFAULT_CAP (UINT64_C(256) << 20)
#define SMLA_CACHE_LOCK_MS 60000

typedef const char *(*smla_environment_fn)(const char *name);

struct smla_cache {
    const struct smla_fs *fs;
    const struct smla_log *log;
    char *dir;         /* NULL: memory only */
    char *seeds;       /* colon-separated; NULL: none */
    uint64_t cap;      /* bytes */
    bool forbidden;    /* memory only because the caller said so */
    int lock_ms;       /* longest wait for another process */
    atomic_int warned; /* trouble with the directory is told once */
    atomic_uint temporaries;
};

/* Chooses the directory (sparse_mla_options.cache_dir) and seeds; touches no file. */
sparse_mla_status smla_cache_init(struct smla_cache *cache, const struct smla_fs *fs, const struct smla_log *log,
                                  const sparse_mla_options *options, smla_environment_fn environment);
void smla_cache_finish(struct smla_cache *cache);

/* True with a copy of the kernel. `again`: a repeated look, whose warnings have been given. */
bool smla_cache_find(struct smla_cache *cache, const struct smla_key *key, bool again, struct smla_cubin *cubin);

/* Publishes a kernel, then evicts the longest unused ones down to the cap. NULL, or why not. */
const char *smla_cache_store(struct smla_cache *cache, const struct smla_key *key, const struct smla_cubin *cubin);

/* Deletes an entry of the directory. */
void smla_cache_drop(struct smla_cache *cache, const struct smla_key *key);

/* Waits for other processes that compile this key. A handle for smla_cache_unlock(), or -1: go on without. */
int smla_cache_lock(struct smla_cache *cache, const struct smla_key *key);
void smla_cache_unlock(struct smla_cache *cache, int handle);

/* Makes the directory if need be. INVALID_ARGUMENT or CACHE_ERROR when there is none. */
sparse_mla_status smla_cache_require(struct smla_cache *cache);

/* As in sparsemla.h. */
sparse_mla_status smla_cache_list(struct smla_cache *cache, sparse_mla_cache_entry_fn visit, void *user);
sparse_mla_status smla_cache_check(struct smla_cache *cache, uint32_t *bad);
sparse_mla_status smla_cache_clear(struct smla_cache *cache);

#endif
