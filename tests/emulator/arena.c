/* SPDX-License-Identifier: Apache-2.0 */
/* tests/gpu/arena.c for the emulator: every buffer of a problem is a device allocation of exactly its size, and of a
 * cache only the rows that some token selects can be read. */
#include "../gpu/problem_parts.h"

#include "../gpu/cuda.h"
#include "emulator.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MAX_BLOCKS = 32, PLACE = 256, HOST_BYTES = 1 << 26 };

struct block {
    size_t at, bytes;
    bool marked; /* only parts of it are uploaded */
    unsigned char *device;
};

struct arena {
    unsigned char *host, *back;
    size_t used;
    struct block blocks[MAX_BLOCKS];
    int num_blocks;
    bool tight;
    struct {
        size_t at, bytes;
    } marks[1 << 16];
    int num_marks;
};

static void free_blocks(struct arena *arena)
{
    for (int i = 0; i < arena->num_blocks; i++)
        emulator_free(arena->blocks[i].device);
    arena->num_blocks = 0;
}

struct arena *arena_new(struct CUstream_st *stream, size_t bytes)
{
    struct arena *arena = calloc(1, sizeof *arena);
    (void)stream, (void)bytes;
    if (!arena || !(arena->host = calloc(1, HOST_BYTES)) || !(arena->back = calloc(1, HOST_BYTES)))
        exit(1);
    return arena;
}

void arena_free(struct arena *arena)
{
    free_blocks(arena);
    free(arena->host);
    free(arena->back);
    free(arena);
}

void arena_clear(struct arena *arena, bool tight)
{
    free_blocks(arena);
    arena->used = 0;
    arena->num_marks = 0;
    arena->tight = tight;
}

void *arena_take(struct arena *arena, const char *name, size_t bytes, size_t alignment)
{
    const size_t at = arena->used + (arena->tight ? alignment : 0);
    if (at + bytes + 2 * PLACE > HOST_BYTES || arena->num_blocks == MAX_BLOCKS)
        exit(1);
    arena->blocks[arena->num_blocks++] =
        (struct block){at, bytes, strcmp(name, "cache") == 0, emulator_alloc(bytes, at % PLACE)};
    arena->used = (at + bytes + PLACE) / PLACE * PLACE;
    return memset(arena->host + at, 0xFF, bytes);
}

void *arena_take_sparse(struct arena *arena, const char *name, size_t bytes, size_t alignment)
{
    return arena_take(arena, name, bytes, alignment);
}

void arena_mark(struct arena *arena, const void *host, size_t bytes)
{
    if (arena->num_marks == (int)(sizeof arena->marks / sizeof *arena->marks))
        exit(1);
    arena->marks[arena->num_marks].at = arena_offset(arena, host);
    arena->marks[arena->num_marks++].bytes = bytes;
}

size_t arena_offset(const struct arena *arena, const void *host)
{
    return (size_t)((const unsigned char *)host - arena->host);
}

void *arena_device(const struct arena *arena, const void *host)
{
    const size_t at = arena_offset(arena, host);
    for (int i = 0; host && i < arena->num_blocks; i++)
        if (at - arena->blocks[i].at <= arena->blocks[i].bytes)
            return arena->blocks[i].device + (at - arena->blocks[i].at);
    return NULL;
}

void arena_upload(struct arena *arena, const void *host, size_t bytes)
{
    unsigned char *device = arena_device(arena, host);
    memcpy(device, host, bytes);
    emulator_mark(device, bytes, true);
}

/* Blocks before `offset` stay as they are. */
void arena_upload_from(struct arena *arena, size_t offset)
{
    for (int i = 0; i < arena->num_blocks; i++) {
        const struct block *block = &arena->blocks[i];
        if (block->at >= offset && !block->marked)
            arena_upload(arena, arena->host + block->at, block->bytes);
    }
}

void arena_upload_all(struct arena *arena)
{
    arena_upload_from(arena, 0);
    for (int i = 0; i < arena->num_marks; i++)
        arena_upload(arena, arena->host + arena->marks[i].at, arena->marks[i].bytes);
}

unsigned char *arena_read_back(struct arena *arena)
{
    for (int i = 0; i < arena->num_blocks; i++)
        memcpy(arena->back + arena->blocks[i].at, arena->blocks[i].device, arena->blocks[i].bytes);
    return arena->back;
}

long arena_changed(const struct arena *arena)
{
    long changed = 0;
    for (int i = 0; i < arena->num_blocks; i++) {
        const struct block *block = &arena->blocks[i];
        changed += memcmp(arena->host + block->at, arena->back + block->at, block->bytes) != 0;
    }
    return changed;
}

/* ---- what the other files of tests/gpu ask of cuda.h */

static int synchronize(void)
{
    return 0;
}

struct cuda cuda = {.cuCtxSynchronize = synchronize};

void cuda_check(int result, const char *call, const char *file, int line)
{
    if (result != 0)
        fprintf(stderr, "%s:%d: %s\n", file, line, call);
}
