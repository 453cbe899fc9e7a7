/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "process.h"

#include "sources.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct process_tally *process_tally;
char process_root[64];
char process_dir[96];
sparse_mla_options process_options;

static sparse_mla_context *context;
static atomic_int right;

int process_set_up(void **state)
{
    (void)state;
    fake_reset();
    fake_make_dir(process_root);
    snprintf(process_dir, sizeof process_dir, "%s/cache", process_root);
    sparse_mla_options_init(&process_options);
    process_options.cache_dir = process_dir;
    process_options.log = fake_log_line;
    process_tally = mmap(NULL, sizeof *process_tally, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return process_tally == MAP_FAILED;
}

int process_tear_down(void **state)
{
    (void)state;
    munmap(process_tally, sizeof *process_tally);
    fake_remove_dir(process_root);
    return 0;
}

void process_forget(void)
{
    memset(process_tally, 0, sizeof *process_tally);
}

sparse_mla_status process_decode(sparse_mla_context *in)
{
    sparse_mla_cache cache;
    sparse_mla_decode_args args;
    fake_glm5(&args, &cache);
    return sparse_mla_decode(in, &args, fake_address(6));
}

static void *decode_in_thread(void *unused)
{
    (void)unused;
    if (process_decode(context) == SPARSE_MLA_OK)
        atomic_fetch_add(&right, 1);
    else
        fprintf(stderr, "%s\n", sparse_mla_last_error());
    return NULL;
}

static void add_up(void)
{
    atomic_fetch_add(&process_tally->compiles, fake.compiles);
    atomic_fetch_add(&process_tally->launches, fake.launches);
    atomic_fetch_add(&process_tally->warnings, fake.warnings);
}

bool process_life(int threads)
{
    pthread_t ids[64];
    fake.compiles = fake.nvrtc_opens = 0;
    fake.loads = fake.launches = fake.warnings = 0;
    fake.loaded[0] = 0;
    right = 0;
    if (smla_context_create(&process_options, &fake_edges, &context) != SPARSE_MLA_OK)
        return false;
    for (int i = 1; i < threads; i++)
        if (pthread_create(&ids[i], NULL, decode_in_thread, NULL) != 0)
            return false;
    decode_in_thread(NULL);
    for (int i = 1; i < threads; i++)
        pthread_join(ids[i], NULL);
    sparse_mla_destroy(context);
    add_up();
    return right == threads && fake.launches == threads && strcmp(fake.loaded, "cubin sm_90 #1") == 0;
}

int process_crowd(int count, bool (*body)(int number))
{
    int failed = 0;
    for (int i = 0; i < count; i++) {
        pid_t pid = fork();
        if (pid == 0)
            _exit(!body(i));
        failed += pid < 0;
    }
    for (int status; wait(&status) > 0;)
        failed += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    return failed;
}

static bool live_once(int number)
{
    (void)number;
    return process_life(1);
}

int process_call(void)
{
    process_forget();
    return process_crowd(1, live_once) ? -1 : process_tally->compiles;
}

void process_open_cache(struct smla_cache *cache)
{
    if (smla_cache_init(cache, &fake_fs, &fake_log, &process_options, fake_environment) != SPARSE_MLA_OK)
        abort();
}

void process_key(struct smla_key *key, int number)
{
    struct smla_options_list options = {.count = 1};
    snprintf(options.text[0], sizeof options.text[0], "-DNUMBER=%d", number);
    smla_key_make(key, smla_source_digest, 120, &options, "sparse_mla_decode_x");
}

/* Two numbers in front, the key's and the seed; every byte after them follows from both and its place. */
static unsigned char byte_at(uint64_t number, uint64_t seed, size_t at)
{
    return (unsigned char)((number * 7919 + seed * 104729 + at) * UINT64_C(0x9e3779b97f4a7c15) >> 56);
}

const char *process_store(struct smla_cache *cache, int number, uint64_t seed, size_t size)
{
    struct smla_key key;
    struct smla_cubin cubin = {malloc(size), size, 13000};
    unsigned char *bytes = cubin.data;
    if (!bytes || size < 16)
        abort();
    memcpy(bytes, &(uint64_t){(uint64_t)number}, 8);
    memcpy(bytes + 8, &seed, 8);
    for (size_t i = 16; i < size; i++)
        bytes[i] = byte_at((uint64_t)number, seed, i);
    process_key(&key, number);
    const char *reason = smla_cache_store(cache, &key, &cubin);
    smla_cubin_free(&cubin);
    return reason;
}

int process_find(struct smla_cache *cache, int number)
{
    struct smla_key key;
    struct smla_cubin cubin;
    uint64_t head[2];
    process_key(&key, number);
    if (!smla_cache_find(cache, &key, false, &cubin))
        return 0;
    const unsigned char *bytes = cubin.data;
    bool whole = cubin.size >= sizeof head && cubin.nvrtc_version == 13000;
    if (whole)
        memcpy(head, bytes, sizeof head);
    for (size_t i = sizeof head; whole && i < cubin.size; i++)
        whole = bytes[i] == byte_at((uint64_t)number, head[1], i);
    whole = whole && head[0] == (uint64_t)number;
    smla_cubin_free(&cubin);
    return whole ? 1 : -1;
}

void process_entry_path(char path[256])
{
    struct dirent *entry;
    DIR *stream = opendir(process_dir);
    path[0] = 0;
    while (stream && (entry = readdir(stream)))
        if (smla_key_is_file(entry->d_name))
            snprintf(path, 256, "%s/%.64s", process_dir, entry->d_name);
    if (stream)
        closedir(stream);
}

int process_count(const char *dir, const char *prefix)
{
    struct dirent *entry;
    int count = 0;
    DIR *stream = opendir(dir);
    while (stream && (entry = readdir(stream)))
        count += strncmp(entry->d_name, prefix, strlen(prefix)) == 0 && strcmp(entry->d_name, ".") != 0 &&
                 strcmp(entry->d_name, "..") != 0;
    if (stream)
        closedir(stream);
    return count;
}
