/* SPDX-License-Identifier: Apache-2.0 */
#include "draw.h"

#include <string.h>

/* What is compiled in, but for the profile. */
static const struct combination {
    int format, latent, rope, q_dtype;
    int caches, octets; /* of heads */
    int columns;        /* up to 128, 512, 2048, or more: 0 */
} combinations[] = {
    {SPARSE_MLA_FP8_DS_MLA, 512, 64, SPARSE_MLA_BF16, 1, 1, 128},
    {SPARSE_MLA_FP8_DS_MLA, 512, 64, SPARSE_MLA_BF16, 1, 2, 512},
    {SPARSE_MLA_FP8_DS_MLA, 512, 64, SPARSE_MLA_BF16, 1, 3, 128},
    {SPARSE_MLA_FP8_DS_MLA, 512, 64, SPARSE_MLA_BF16, 1, 8, 128},
    {SPARSE_MLA_FP8_DS_MLA, 512, 64, SPARSE_MLA_BF16, 1, 16, 128},
    {SPARSE_MLA_FP8_DS_MLA, 512, 64, SPARSE_MLA_BF16, 1, 1, 2048},
    {SPARSE_MLA_FP8_DS_MLA, 512, 64, SPARSE_MLA_BF16, 1, 1, 0},
    {SPARSE_MLA_FP8_DS_MLA, 512, 64, SPARSE_MLA_BF16, 2, 1, 512},
    {SPARSE_MLA_FP8_DS_MLA, 512, 64, SPARSE_MLA_BF16, 2, 4, 128},
    {SPARSE_MLA_FP8_DS_MLA, 512, 64, SPARSE_MLA_F16, 1, 1, 128},
    {SPARSE_MLA_FP8_DS_MLA, 512, 64, SPARSE_MLA_F32, 1, 2, 128},
    {SPARSE_MLA_FP8_DS_MLA, 512, 0, SPARSE_MLA_BF16, 1, 1, 128},
    {SPARSE_MLA_FP8_DS_MLA, 512, 0, SPARSE_MLA_BF16, 1, 4, 128},
    {SPARSE_MLA_FP8_DS_MLA, 512, 0, SPARSE_MLA_BF16, 2, 1, 128},
    {SPARSE_MLA_FP8_DS_MLA, 512, 0, SPARSE_MLA_F16, 1, 2, 512},
    {SPARSE_MLA_FP8_DS_MLA_NOPE, 512, 0, SPARSE_MLA_BF16, 1, 1, 512},
    {SPARSE_MLA_FLAT_BF16, 512, 64, SPARSE_MLA_BF16, 1, 1, 128},
    {SPARSE_MLA_FLAT_BF16, 512, 64, SPARSE_MLA_BF16, 1, 8, 128},
    {SPARSE_MLA_FLAT_BF16, 512, 64, SPARSE_MLA_BF16, 2, 1, 128},
    {SPARSE_MLA_FLAT_BF16, 512, 64, SPARSE_MLA_F16, 1, 2, 128},
    {SPARSE_MLA_FLAT_BF16, 512, 64, SPARSE_MLA_F32, 1, 1, 512},
    {SPARSE_MLA_FLAT_BF16, 512, 0, SPARSE_MLA_BF16, 1, 1, 128},
    {SPARSE_MLA_FLAT_BF16, 256, 32, SPARSE_MLA_F32, 1, 3, 128},
    {SPARSE_MLA_FLAT_BF16, 64, 64, SPARSE_MLA_BF16, 1, 1, 128},
    {SPARSE_MLA_FLAT_F16, 512, 64, SPARSE_MLA_BF16, 1, 1, 512},
    {SPARSE_MLA_FLAT_F16, 512, 64, SPARSE_MLA_F16, 1, 2, 128},
    {SPARSE_MLA_FLAT_F16, 512, 64, SPARSE_MLA_F32, 1, 1, 128},
    {SPARSE_MLA_FLAT_F16, 512, 64, SPARSE_MLA_F32, 2, 1, 128},
    {SPARSE_MLA_FLAT_F16, 384, 32, SPARSE_MLA_F16, 2, 1, 128},
    {SPARSE_MLA_FLAT_F16, 192, 0, SPARSE_MLA_BF16, 1, 1, 128},
    {SPARSE_MLA_FLAT_E4M3, 512, 64, SPARSE_MLA_BF16, 1, 1, 128},
    {SPARSE_MLA_FLAT_E4M3, 512, 64, SPARSE_MLA_BF16, 2, 1, 512},
    {SPARSE_MLA_FLAT_E4M3, 512, 64, SPARSE_MLA_F16, 1, 8, 128},
    {SPARSE_MLA_FLAT_E4M3, 512, 64, SPARSE_MLA_F32, 1, 2, 128},
    {SPARSE_MLA_FP8_V4, 448, 64, SPARSE_MLA_BF16, 1, 1, 128},
    {SPARSE_MLA_FP8_V4, 448, 64, SPARSE_MLA_BF16, 1, 16, 128},
    {SPARSE_MLA_FP8_V4, 448, 64, SPARSE_MLA_BF16, 2, 1, 512},
    {SPARSE_MLA_FP8_V4, 448, 64, SPARSE_MLA_BF16, 2, 2, 2048},
    {SPARSE_MLA_FP8_V4, 448, 64, SPARSE_MLA_BF16, 2, 8, 128},
    {SPARSE_MLA_FP8_V4, 448, 64, SPARSE_MLA_F16, 2, 1, 128},
    {SPARSE_MLA_FP8_V4, 448, 64, SPARSE_MLA_F32, 1, 1, 128},
    {SPARSE_MLA_Q8_0, 512, 64, SPARSE_MLA_BF16, 1, 2, 128},
    {SPARSE_MLA_Q8_0, 512, 64, SPARSE_MLA_F16, 2, 1, 128},
    {SPARSE_MLA_Q8_0, 512, 64, SPARSE_MLA_F32, 1, 1, 128},
    {SPARSE_MLA_Q8_0, 512, 64, SPARSE_MLA_F32, 1, 8, 128},
    {SPARSE_MLA_Q8_0, 512, 64, SPARSE_MLA_F32, 2, 1, 512},
};

enum { MAX_TOKENS = 8, MAX_WORK = 12000 }; /* tokens * heads * columns */

static bool one_in(uint64_t *state, int n)
{
    return random_below(state, n) == 0;
}

#define ONE_OF(state, choices) (choices)[random_below(state, (int)(sizeof(choices) / sizeof *(choices)))]

static void draw_widths(struct spec *spec, const struct combination *c, uint64_t *state)
{
    const bool two = c->caches == 2;
    spec->main.topk = 1 + random_below(state, two ? 64 : 128);
    switch (c->columns) {
    case 128:
        spec->extra.topk = two ? 1 + random_below(state, 64) : 0;
        return;
    case 512:
        *(two ? &spec->extra.topk : &spec->main.topk) = 129 + random_below(state, 172);
        return;
    case 2048:
        *(two ? &spec->extra.topk : &spec->main.topk) = 513 + random_below(state, 100);
        return;
    default:
        *(two ? &spec->extra.topk : &spec->main.topk) = 2049 + random_below(state, 100);
    }
}

static void draw_keys(struct key_spec *keys, const struct spec *spec, uint64_t *state)
{
    static const int page_sizes[] = {1, 2, 3, 16, 32, 61, 64, 64, 69, 128, 256, 1000};
    static const double masked[] = {0, 0, 0, 0.1, 0.1, 0.5, 0.5, 0.95, 1}, past[] = {0, 0, 0, 0.02, 0.3};
    const int unit = spec->format == SPARSE_MLA_Q8_0 ? 4 : 16;
    keys->slots = one_in(state, 50) ? NO_SLOTS : 1 + random_below(state, one_in(state, 5) ? 16 : 512);
    keys->page_size = ONE_OF(state, page_sizes);
    keys->record = one_in(state, 2) ? RECORD_PLAIN : random_below(state, RECORDS);
    keys->row_pad = one_in(state, 2) ? 0 : unit * random_below(state, 5);
    keys->page_pad = one_in(state, 2) ? 0 : one_in(state, 3) ? PAGES_OF_576 : unit * random_below(state, 9);
    keys->index_pad = one_in(state, 2) ? 0 : random_below(state, 8);
    keys->masked = ONE_OF(state, masked);
    keys->past = ONE_OF(state, past);
    keys->lengths = random_below(state, 3);
    keys->table = one_in(state, 3);
    keys->dense = one_in(state, 7);
    keys->no_tail = spec->format == SPARSE_MLA_FP8_DS_MLA && spec->rope == 0 && one_in(state, 2);
}

/* Scales so far apart leave the range of 16-bit floats. */
static int draw_scales(const struct spec *spec, uint64_t *state)
{
    const bool narrow = spec->q_dtype == SPARSE_MLA_F16 || spec->out_dtype == SPARSE_MLA_F16;
    return one_in(state, 2) ? SCALES_AMAX : random_below(state, narrow ? SCALES_POW2 + 1 : SCALES_KEYS + 1);
}

static void draw_data(struct spec *spec, uint64_t *state)
{
    static const double tensor_scales[] = {0, 0, 1, -0.0123, 0.003};
    spec->out_dtype = random_below(state, 3);
    spec->scales = draw_scales(spec, state);
    spec->tensor_scale = ONE_OF(state, tensor_scales);
    spec->clamp = one_in(state, 4);
    spec->key_size = one_in(state, 4) ? 0.1 : 1;
    if (spec->format != SPARSE_MLA_Q8_0 && one_in(state, 5)) /* Q8_0 is rounded */
        spec->score_size = 6;
    spec->nan_rows = one_in(state, 8) ? 0.01 : 0;
    spec->sink = !(spec->nan_rows > 0) && one_in(state, 2); /* what +inf makes of a NaN is nowhere said */
}

static void draw_tensors(struct spec *spec, uint64_t *state)
{
    spec->q_layout = random_below(state, LAYOUTS);
    spec->out_layout = random_below(state, LAYOUTS);
    spec->lse_layout = random_below(state, LAYOUTS);
    spec->q_views = one_in(state, 2);
    spec->no_lse = one_in(state, 20);
    spec->no_faults = one_in(state, 10);
    spec->odd_strides = one_in(state, 3);
}

static uint32_t draw_flags(uint64_t *state)
{
    uint32_t flags = one_in(state, 2) ? (uint32_t)random_below(state, 8) : 0; /* the three of the lse */
    if (one_in(state, 4))
        flags |= SPARSE_MLA_BATCH_INVARIANT;
    if (one_in(state, 4))
        flags |= SPARSE_MLA_PROGRAMMATIC_LAUNCH;
    return flags;
}

static void draw_tokens(struct spec *spec, uint64_t *state)
{
    static const int q_lens[] = {1, 1, 1, 2, 3, 4};
    const int work = spec->heads * (spec->main.topk + spec->extra.topk);
    const int most = work * MAX_TOKENS <= MAX_WORK ? MAX_TOKENS : work < MAX_WORK ? MAX_WORK / work : 1;
    do
        spec->q_len = ONE_OF(state, q_lens);
    while (spec->q_len > most);
    spec->tokens = spec->q_len * (1 + random_below(state, most / spec->q_len));
    spec->requests = one_in(state, 4) ? 1 + random_below(state, 6) : 0;
}

int draw_case(struct spec *spec, uint64_t seed)
{
    uint64_t state = (seed + 1) * 0xD1342543DE82EF95ull;
    for (int i = 0; i < 8; i++)
        random_uniform(&state);
    const struct combination *c = &ONE_OF(&state, combinations);
    memset(spec, 0, sizeof *spec);
    spec->format = c->format;
    spec->latent = c->latent;
    spec->rope = c->rope;
    spec->q_dtype = c->q_dtype;
    spec->heads = 8 * c->octets - (one_in(&state, 2) ? random_below(&state, 8) : 0);
    draw_widths(spec, c, &state);
    draw_tokens(spec, &state);
    draw_keys(&spec->main, spec, &state);
    if (spec->extra.topk)
        draw_keys(&spec->extra, spec, &state);
    draw_data(spec, &state);
    draw_tensors(spec, &state);
    spec->flags = draw_flags(&state);
    spec->seed = seed;
    return 1 + random_below(&state, 4);
}
