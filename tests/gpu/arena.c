/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "cuda.h"
#include "problem_parts.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { GUARD = 1024, MAX_BLOCKS = 32, PLACE = 256 };

struct block {
    const char *name;
    size_t at, bytes;
    bool sparse;
};

struct mark {
    size_t at, bytes;
};

struct arena {
    struct CUstream_st *stream;
    unsigned char *host, *back; /* address space; pages come when touched */
    unsigned char *device;
    size_t size, used, device_size;
    struct block blocks[MAX_BLOCKS];
    int num_blocks;
    struct mark *marks; /* of the sparse blocks */
    size_t num_marks, max_marks;
    bool tight;
};

static unsigned char *reserve(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return memory;
}

struct arena *arena_new(struct CUstream_st *stream, size_t bytes)
{
    struct arena *arena = calloc(1, sizeof *arena);
    if (!arena)
        exit(1);
    arena->stream = stream;
    arena->size = bytes;
    arena->host = reserve(bytes);
    arena->back = reserve(bytes);
    return arena;
}

void arena_free(struct arena *arena)
{
    munmap(arena->host, arena->size);
    munmap(arena->back, arena->size);
    cuda_free(arena->device);
    free(arena->marks);
    free(arena);
}

void arena_clear(struct arena *arena, bool tight)
{
    arena->used = 0;
    arena->num_blocks = 0;
    arena->num_marks = 0;
    arena->tight = tight;
}

/* Guards and gaps are filled here, the block by the caller. */
static unsigned char *take(struct arena *arena, const char *name, size_t bytes, size_t alignment, bool sparse)
{
    size_t at = (arena->used + GUARD + PLACE - 1) / PLACE * PLACE + (arena->tight ? alignment : 0);
    if (at + bytes + GUARD + PLACE > arena->size || arena->num_blocks == MAX_BLOCKS) {
        fprintf(stderr, "the arena of %zu bytes has no room for %zu of %s\n", arena->size, bytes, name);
        exit(1);
    }
    memset(arena->host + arena->used, 0xFF, at - arena->used);
    memset(arena->host + at + bytes, 0xFF, GUARD);
    arena->blocks[arena->num_blocks++] = (struct block){name, at, bytes, sparse};
    arena->used = at + bytes + GUARD;
    return arena->host + at;
}

void *arena_take(struct arena *arena, const char *name, size_t bytes, size_t alignment)
{
    return memset(take(arena, name, bytes, alignment, false), 0xFF, bytes);
}

void *arena_take_sparse(struct arena *arena, const char *name, size_t bytes, size_t alignment)
{
    return take(arena, name, bytes, alignment, true);
}

void arena_mark(struct arena *arena, const void *host, size_t bytes)
{
    if (!arena->blocks[arena->num_blocks - 1].sparse)
        return;
    if (arena->num_marks == arena->max_marks) {
        arena->max_marks = 2 * arena->max_marks + 64;
        arena->marks = realloc(arena->marks, arena->max_marks * sizeof *arena->marks);
        if (!arena->marks)
            exit(1);
    }
    arena->marks[arena->num_marks++] = (struct mark){arena_offset(arena, host), bytes};
}

size_t arena_offset(const struct arena *arena, const void *host)
{
    return (size_t)((const unsigned char *)host - arena->host);
}

void *arena_device(const struct arena *arena, const void *host)
{
    return host ? arena->device + arena_offset(arena, host) : NULL;
}

static void upload(struct arena *arena, size_t from, size_t to)
{
    if (to > from)
        CUDA(cuMemcpyHtoDAsync_v2((uintptr_t)arena->device + from, arena->host + from, to - from, arena->stream));
}

void arena_upload(struct arena *arena, const void *host, size_t bytes)
{
    const size_t at = arena_offset(arena, host);
    upload(arena, at, at + bytes);
}

void arena_upload_from(struct arena *arena, size_t offset)
{
    size_t from = offset;
    for (int i = 0; i < arena->num_blocks; i++) {
        const struct block *block = &arena->blocks[i];
        if (!block->sparse || block->at < offset)
            continue;
        upload(arena, from, block->at);
        from = block->at + block->bytes;
    }
    upload(arena, from, arena->used);
    CUDA(cuStreamSynchronize(arena->stream));
}

void arena_upload_all(struct arena *arena)
{
    if (arena->used > arena->device_size) {
        cuda_free(arena->device);
        arena->device_size = arena->used;
        arena->device = cuda_alloc(arena->used);
    }
    for (int i = 0; i < arena->num_blocks; i++)
        if (arena->blocks[i].sparse) {
            CUDA(cuMemsetD8_v2((uintptr_t)arena->device + arena->blocks[i].at, 0xFF, arena->blocks[i].bytes));
            CUDA(cuStreamSynchronize(NULL));
        }
    for (size_t i = 0; i < arena->num_marks; i++)
        upload(arena, arena->marks[i].at, arena->marks[i].at + arena->marks[i].bytes);
    arena_upload_from(arena, 0);
}

static void read_range(struct arena *arena, size_t from, size_t to)
{
    if (to > from)
        CUDA(cuMemcpyDtoHAsync_v2(arena->back + from, (uintptr_t)arena->device + from, to - from, arena->stream));
}

unsigned char *arena_read_back(struct arena *arena)
{
    size_t from = 0;
    for (int i = 0; i < arena->num_blocks; i++)
        if (arena->blocks[i].sparse) {
            read_range(arena, from, arena->blocks[i].at);
            from = arena->blocks[i].at + arena->blocks[i].bytes;
        }
    read_range(arena, from, arena->used);
    CUDA(cuStreamSynchronize(arena->stream));
    return arena->back;
}

static bool range_changed(const struct arena *arena, const char *what, const char *name, size_t from, size_t to)
{
    if (to <= from || memcmp(arena->host + from, arena->back + from, to - from) == 0)
        return false;
    size_t at = from;
    while (arena->host[at] == arena->back[at])
        at++;
    fprintf(stderr, "written to: byte %zu of %zu %s %s\n", at - from, to - from, what, name);
    return true;
}

long arena_changed(const struct arena *arena)
{
    long changed = 0;
    size_t from = 0;
    for (int i = 0; i < arena->num_blocks; i++) {
        const struct block *block = &arena->blocks[i];
        changed += range_changed(arena, "before", block->name, from, block->at);
        from = block->at + block->bytes;
        if (!block->sparse)
            changed += range_changed(arena, "of", block->name, block->at, from);
    }
    return changed + range_changed(arena, "behind", "everything", from, arena->used);
}
