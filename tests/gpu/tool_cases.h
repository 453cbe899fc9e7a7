/* SPDX-License-Identifier: Apache-2.0 */
/* Calls at random beside decode - cache append, slot mapping, merge - on a device and on the host backend: records and
 * slots must be the same to the byte, merged outputs within rounding.
 *
 * All tensors of a call lie in one block of host memory with 0xFF (NaN, -1) between them, and their images on the
 * device. Both backends work on theirs, then the blocks are compared: what neither may write is still the same. */
#ifndef TESTS_GPU_TOOL_CASES_H
#define TESTS_GPU_TOOL_CASES_H

#include "problem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* The half of the device: the program's. */
struct tool_device {
    sparse_mla_context *context, *host; /* of it, and of the host backend */
    struct CUstream_st *stream;
    void (*clear)(void);
    void (*take)(size_t at, size_t bytes); /* a tensor's place in the block */
    void *(*address)(size_t at);
    void (*upload)(void);   /* all tensors */
    void (*download)(void); /* to block.read_back, after the call */
    void (*before)(void);   /* a call */
};
extern struct tool_device tool_device;

#define TOOL_BLOCK_BYTES ((size_t)96 << 20)
extern struct tool_block {
    unsigned char *host, *read_back;
    size_t used;
} tool_block;

void tool_clear(void);

/* Host memory of a tensor; its address is a multiple of `alignment` and of no more. */
void *tool_take(size_t bytes, size_t alignment);
void *tool_on_device(const void *host); /* NULL: NULL */

void tool_ok(sparse_mla_status status);
/* After the device's results are back and the host's turn. */
void tool_compare(const char *what);

int tool_below(int limit); /* a random number */

/* What the numbers of a source are. */
enum numbers {
    NORMAL, /* N(0, 1) times a power of two per 32 dims, some zeros */
    BITS,   /* any bits: NaN, infinities, subnormals of the source's type */
    NUMBERS
};

void tool_fill_source(void *to, int dtype, int64_t count, int numbers);
void tool_fill_cache(sparse_mla_cache *cache, int format, int latent, int rope, int page_size, int64_t num_slots);
void tool_append_case(int format, int latent, int rope, int dtype, int rule, int rows, int page_size, int numbers);

/* What records there are, and the scale rules that they take. Ends with a latent of 0. */
extern const struct tool_record {
    int format, latent, rope, first_rule, last_rule;
} tool_records[];

enum {
    WITH_TABLE = 1,
    WITH_LENGTHS = 2,
    PER_REQUEST = 4,
    WITH_REQUESTS = 8,
    WITH_MASK = 16,
    COMPACT = 32,
    WITH_COUNTS = 64,
    DENSE = 128,
    SLOT_OPTIONS = 256
};

void tool_fill_slots(sparse_mla_map_slots_args *args, int options);
void tool_slots_case(int requests, int q_len, int topk, int page_size, int options);

struct merge_spec {
    int parts, tokens, heads, dim, part_dtype, out_dtype;
    uint32_t flags;
    bool sink, lse;
    int empty; /* one of so many parts; 0: none */
};

void tool_fill_merge(sparse_mla_merge_args *args, const struct merge_spec *spec);
sparse_mla_merge_args tool_merge_on_device(const sparse_mla_merge_args *args);
/* Then makes the results the same, so that all else can be compared to the byte. */
void tool_compare_merged(const sparse_mla_merge_args *args, const char *what);
void tool_merge_case(const struct merge_spec *spec);

#endif
