/* SPDX-License-Identifier: Apache-2.0 */
/* The host backend on calls at random: every field that a call may have, in any combination. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "host_world.h"

static void draw_cache(struct world *draw, struct cache_shape *cache, int format)
{
    static const int pages[] = {1, 2, 3, 16, 61, 64, 256};
    *cache = (struct cache_shape){.format = format, .page_size = pages[below(draw, 7)]};
    cache->slots = 1 + below(draw, 120);
    cache->topk = 1 + below(draw, 50);
    cache->rope_first = is_flat(format) && below(draw, 2);
    cache->table = below(draw, 2);
    cache->dense = below(draw, 4) == 0;
}

static struct shape draw_shape(struct world *draw)
{
    static const int of_512_and_64[] = {SPARSE_MLA_FP8_DS_MLA, SPARSE_MLA_FLAT_BF16, SPARSE_MLA_FLAT_F16,
                                        SPARSE_MLA_FLAT_E4M3, SPARSE_MLA_Q8_0};
    struct shape shape = small(below(draw, FORMATS));
    int other = shape.cache[0].format;
    shape.requests = 1 + below(draw, 3);
    shape.q_len = 1 + below(draw, 3);
    shape.heads = 1 + below(draw, 18);
    shape.q_dtype = below(draw, 3);
    shape.out_dtype = below(draw, 3);
    shape.one_view = below(draw, 2);
    shape.sink = below(draw, 2);
    shape.caches = 1 + below(draw, 2);
    if (other == SPARSE_MLA_FLAT_BF16 || other == SPARSE_MLA_FLAT_F16) {
        shape.latent_dim = 64 * (1 + below(draw, 8));
        shape.rope_dim = 32 * below(draw, 3);
        other = below(draw, 2) ? SPARSE_MLA_FLAT_BF16 : SPARSE_MLA_FLAT_F16;
    } else if (other != SPARSE_MLA_FP8_V4 && other != SPARSE_MLA_FP8_DS_MLA_NOPE) {
        other = of_512_and_64[below(draw, 5)];
    }
    draw_cache(draw, &shape.cache[0], shape.cache[0].format);
    draw_cache(draw, &shape.cache[1], other);
    shape.seed = draw->random;
    return shape;
}

/* Lengths, requests, odd indices, holes in tables, sinks and flags, in memory that check() will have to respect. */
static void draw_arguments(struct world *draw, struct world *w, int32_t lengths[2][9], int32_t requests[9])
{
    static const float sinks[] = {INFINITY, -INFINITY, NAN, 40, -40};
    const int T = w->args.num_tokens, R = T / w->args.q_len;
    for (int c = 0; c < 2 && (c == 0 || w->args.extra_cache); c++) {
        sparse_mla_cache *cache = &w->cache[c];
        for (int i = 0; i < 9; i++)
            lengths[c][i] = below(draw, 6) ? below(draw, cache->topk + 5) - 2 : below(draw, 2) ? INT32_MAX : INT32_MIN;
        cache->lengths = below(draw, 3) ? lengths[c] : NULL;
        cache->length_mode = below(draw, 2);
        for (int i = 0; i < 4; i++) {
            int32_t *index = &w->indices[c][below(draw, R) * cache->indices_request_stride + below(draw, cache->topk)];
            *index = below(draw, 2) ? (int)cache->num_slots + below(draw, 3) : INT32_MAX - below(draw, 2);
        }
        if (below(draw, 2))
            w->table[c][below(draw, R) * cache->block_table_stride + below(draw, cache->block_table_width)] =
                below(draw, 2) ? -1 : cache->block_table_width;
        cache->num_slots -= below(draw, 3) == 0 && cache->num_slots > 1;
    }
    for (int t = 0; t < 9; t++)
        requests[t] = below(draw, R + 2) - 1;
    w->args.request_of_token = below(draw, 2) ? requests : NULL;
    w->args.num_requests = below(draw, 2) ? R : 0;
    w->args.flags = (uint32_t)below(draw, 32);
    w->args.scale = (float)(uniform(draw) * (below(draw, 5) ? 0.1 : 1000));
    if (below(draw, 2))
        w->sink[below(draw, w->args.num_heads)] = sinks[below(draw, 5)];
    if (below(draw, 5) == 0)
        w->args.lse = NULL;
}

static void calls_at_random(void **state)
{
    struct world draw = {.random = 0xD1B54A32D192ED03u};
    (void)state;
    for (int i = 0; i < 300; i++) {
        const struct shape shape = draw_shape(&draw);
        int32_t lengths[2][9], requests[9];
        struct world w;
        build(&w, &shape);
        draw_arguments(&draw, &w, lengths, requests);
        check(&w);
        destroy(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(calls_at_random)};
    return cmocka_run_group_tests_name("host_random", tests, NULL, NULL);
}
