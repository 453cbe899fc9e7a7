/* SPDX-License-Identifier: Apache-2.0 */
/* Lives of processes that share a cache directory. They are forked: what a test sets in `fake` and
 * `process_options` holds in all of them. */
#ifndef SMLA_PROCESS_H
#define SMLA_PROCESS_H

#include "fake.h"

/* What all processes did together since process_set_up() or process_forget(). */
struct process_tally {
    atomic_int compiles, launches, warnings;
};

extern struct process_tally *process_tally;
extern char process_root[64]; /* a new directory, and one in it that does not exist yet */
extern char process_dir[96];
extern sparse_mla_options process_options;

/* For cmocka. */
int process_set_up(void **state);
int process_tear_down(void **state);
void process_forget(void);

/* A call of GLM-5 on one of eight GPUs, four tokens. */
sparse_mla_status process_decode(sparse_mla_context *in);

/* A life: a context, a decode call by each of `threads`, and the end. True if all calls launched the right kernel. */
bool process_life(int threads);

/* Runs `count` processes at once; how many of them ended otherwise than by returning true. */
int process_crowd(int count, bool (*body)(int number));

/* A cold or warm first call in a process of its own: it must come out right; how often it compiled, or -1. */
int process_call(void);

/* A cache in the directory, and entries whose bytes say whether they are whole and of that key. */
void process_open_cache(struct smla_cache *cache);
void process_key(struct smla_key *key, int number);
const char *process_store(struct smla_cache *cache, int number, uint64_t seed, size_t size);

/* 1 a whole kernel of that key, 0 a miss, -1 something else. */
int process_find(struct smla_cache *cache, int number);

/* Path of the only entry in the directory. */
void process_entry_path(char path[256]);

/* Files in a directory whose names begin so. */
int process_count(const char *dir, const char *prefix);

#endif
