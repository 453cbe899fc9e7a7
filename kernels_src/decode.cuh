// SPDX-License-Identifier: Apache-2.0
// The kernel: block (token, head block * num_splits + split) of the grid.

// ---- queries

// A query row is a head's latent dims and its rope dims.
struct query_row {
    const u8 *latent, *rope;
};

constexpr int QUERY_BYTES = QUERY_F32 ? 4 : 2; // of an element

// Heads that do not exist get another's query: their columns go nowhere.
SMLA_FN query_row query_of_head(const smla_params &p, const block_place &block, int head)
{
    const smla_strides &l = p.q_latent_stride, &r = p.q_rope_stride;
    head = head < p.num_heads ? head : p.num_heads - 1;
    return {(const u8 *)p.q_latent +
                QUERY_BYTES * (block.request * l.request + block.position * l.token + head * l.head),
            (const u8 *)p.q_rope +
                QUERY_BYTES * (block.request * r.request + block.position * r.token + head * r.head)};
}

// Four dims of a head at this lane: k 2t, 2t+1, 2t+8, 2t+9 as drawn in variant.cuh.
struct query_step {
    u32 word[QUERY_BYTES];
};

struct raw_query {
    query_step latent[WARP_SCALE_GROUPS][GROUP_STEPS][N_TILES];
    query_step rope[ROPE_STEPS ? ROPE_STEPS : 1][N_TILES];
};

SMLA_FN query_step load_query_step(const u8 *dims, int t, bool fp8_order)
{
    query_step step;
    const u8 *first = dims + (fp8_order ? 4 : 2) * t * QUERY_BYTES;
    const u8 *second = first + (fp8_order ? 2 : 8) * QUERY_BYTES;
    if (QUERY_F32) {
        const word_pair a = load_constant_8(first), b = load_constant_8(second);
        step.word[0] = a.x;
        step.word[1] = a.y;
        step.word[QUERY_BYTES - 2] = b.x;
        step.word[QUERY_BYTES - 1] = b.y;
    } else if (fp8_order) {
        const word_pair both = load_constant_8(first);
        step.word[0] = both.x;
        step.word[1] = both.y;
    } else {
        step.word[0] = load_constant((const u32 *)first);
        step.word[1] = load_constant((const u32 *)second);
    }
    return step;
}

SMLA_FN float query_value(const query_step &step, int i)
{
    const u32 word = step.word[QUERY_F32 ? i : i / 2];
    if (QUERY_F32)
        return as_float(word);
    if (QUERY_F16)
        return i % 2 ? f16_high(word) : f16_low(word);
    return i % 2 ? bf16_high(word) : bf16_low(word);
}

// The warp's heads: first_head .. first_head + GROUP_HEADS - 1.
SMLA_FN void load_query(raw_query &q, const smla_params &p, const block_place &block, int first_head,
                        const warp_place &at)
{
#pragma unroll
    for (int n = 0; n < N_TILES; n++) {
        const query_row row = query_of_head(p, block, first_head + 8 * n + at.g);
#pragma unroll
        for (int b = 0; b < WARP_SCALE_GROUPS; b++)
#pragma unroll
            for (int k = 0; k < GROUP_STEPS; k++) {
                const int dim = at.half * (LATENT / DIM_SPLIT) + b * SCALE_GROUP_DIMS + k * 16;
                const u8 *dims = V4 && dim >= SMLA_LATENT ? row.rope + (dim - SMLA_LATENT) * QUERY_BYTES
                                                          : row.latent + dim * QUERY_BYTES;
                q.latent[b][k][n] = load_query_step(dims, at.t, FP8);
            }
#pragma unroll
        for (int k = 0; k < ROPE_STEPS; k++)
            q.rope[k][n] =
                load_query_step(row.rope + (at.half * ROPE_STEPS + k) * 16 * QUERY_BYTES, at.t, false);
    }
}

// The power of two that brings the largest element of a head's steps into range; the 4 lanes of a head agree.
template <int STEPS> SMLA_FN exponent_pair exponent_of(const query_step (&step)[STEPS][N_TILES], int n)
{
    float own = 0;
#pragma unroll
    for (int k = 0; k < STEPS; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float value = query_value(step[k][n], i);
            own = larger(own, larger(value, -value));
        }
    own = larger(own, shuffle_xor(own, 1));
    return normalising_exponent(larger(own, shuffle_xor(own, 2)));
}

// An operand of an MMA, and what its rounding left.
struct query_terms {
    word_pair high, low;
};

template <bool TO_F16> SMLA_FN query_terms query_operand(const query_step &step, float factor)
{
    query_terms terms;
    float value[4], rest[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        value[i] = query_value(step, i) * factor;
    if (!TO_F16 && !QUERY_F16 && !QUERY_F32) {
        terms.high = {step.word[0], step.word[1]}; // bf16 as it is
    } else if (TO_F16) {
        terms.high = {pack_f16(value[0], value[1]), pack_f16(value[2], value[3])};
        rest[0] = value[0] - f16_low(terms.high.x);
        rest[1] = value[1] - f16_high(terms.high.x);
        rest[2] = value[2] - f16_low(terms.high.y);
        rest[3] = value[3] - f16_high(terms.high.y);
        terms.low = {pack_f16(rest[0], rest[1]), pack_f16(rest[2], rest[3])};
    } else {
        terms.high = {pack_bf16(value[0], value[1]), pack_bf16(value[2], value[3])};
        rest[0] = value[0] - bf16_low(terms.high.x);
        rest[1] = value[1] - bf16_high(terms.high.x);
        rest[2] = value[2] - bf16_low(terms.high.y);
        rest[3] = value[3] - bf16_high(terms.high.y);
        terms.low = {pack_bf16(rest[0], rest[1]), pack_bf16(rest[2], rest[3])};
    }
    return terms;
}

// What all key groups share is written by the first of them (`shares`).
SMLA_FN void prepare_latent_query(query_fragments &q, const raw_query &raw, bool shares, const warp_place &at,
                                  float scale_log2)
{
#pragma unroll
    for (int n = 0; n < N_TILES; n++)
#pragma unroll
        for (int b = 0; b < WARP_SCALE_GROUPS; b++) {
            exponent_pair e = {1.0f, 1.0f};
            if (!BF16)
                e = exponent_of<GROUP_STEPS>(raw.latent[b], n);
#pragma unroll
            for (int k = 0; k < GROUP_STEPS; k++) {
                const query_terms terms = query_operand<!BF16>(raw.latent[b][k][n], e.factor);
                q.latent[b][k][n][0] = terms.high.x;
                q.latent[b][k][n][1] = terms.high.y;
                if (LATENT_TERMS == 2 && shares)
                    at.query_low[((b * GROUP_STEPS + k) * N_TILES + n) * 32] = terms.low;
            }
            if (!BF16 && shares && at.t == 0)
                at.query_factor[(8 * n + at.g) * SCALE_GROUPS + at.half * WARP_SCALE_GROUPS + b] =
                    e.inverse * scale_log2;
        }
}

// The halves of the rope dims are normalised apart.
SMLA_FN void prepare_rope_query(const raw_query &raw, bool shares, const warp_place &at, float scale_log2)
{
    if (!shares)
        return;
#pragma unroll
    for (int n = 0; ROPE && n < N_TILES; n++) {
        exponent_pair e = {1.0f, 1.0f};
        if (F16)
            e = exponent_of(raw.rope, n);
#pragma unroll
        for (int k = 0; k < ROPE_STEPS; k++) {
            const query_terms terms = query_operand<F16>(raw.rope[k][n], e.factor);
            at.rope_query[(k * N_TILES + n) * 32] = terms.high;
            if (ROPE_TERMS == 2)
                at.rope_query[ROPE_LOW + (k * N_TILES + n) * 32] = terms.low;
        }
        if (F16 && at.t == 0)
            at.rope_factor[(8 * n + at.g) * DIM_SPLIT + at.half] = e.inverse * scale_log2;
    }
}

// ---- the warp

SMLA_FN warp_place place_of(int warp, int lane)
{
    u8 *shared = shared_buffer();
    const int group = warp % RING_WARPS / DIM_SPLIT;
    warp_place at;
    at.lane = lane;
    at.g = lane >> 2;
    at.t = lane & 3;
    at.half = warp % DIM_SPLIT;
    at.pair_barrier = pair_barrier(warp / 2);
    at.query_factor = (float *)(shared + QUERY_FACTOR_AT) + group * GROUP_HEADS * SCALE_GROUPS;
    at.rope_factor = (float *)(shared + ROPE_FACTOR_AT) + group * GROUP_HEADS * DIM_SPLIT;
    at.rope_query = (word_pair *)(shared + ROPE_QUERY_AT) + warp % RING_WARPS * ROPE_STEPS * N_TILES * 32 + lane;
    at.query_low =
        (word_pair *)(shared + QUERY_LOW_AT) + warp % RING_WARPS * WARP_SCALE_GROUPS * GROUP_STEPS * N_TILES * 32 + lane;
    at.value_factor = (float *)(shared + VALUE_FACTOR_AT) + warp * 32;
    at.reference = (float *)(shared + REFERENCE_AT) + warp * GROUP_HEADS;
    at.sum = (float *)(shared + SUM_AT) + (warp * 32 + lane) * 2 * N_TILES;
    at.exchange = (float *)(shared + EXCHANGE_AT) + warp * 2 * EXCHANGE_FLOATS;
    at.exchange_other = (float *)(shared + EXCHANGE_AT) + (warp ^ 1) * 2 * EXCHANGE_FLOATS;
    return at;
}

SMLA_FN void init_state(output_fragments &out, const warp_place &at)
{
#pragma unroll
    for (int n = 0; n < N_TILES; n++) {
        at.sum[2 * n] = at.sum[2 * n + 1] = 0;
#pragma unroll
        for (int i = 0; i < WARP_VALUE_TILES; i++)
#pragma unroll
            for (int z = 0; z < 4; z++)
                out.of[i][n][z] = 0;
    }
    at.value_factor[at.lane] = power_of_two_below(infinity());
    if (at.lane < GROUP_HEADS)
        at.reference[at.lane] = LOWEST;
}

// Walks the tiles of a key group. The warps of its ring take turns in copying: tile c is copied by warp c % RING_WARPS,
// COPY_AHEAD tiles before it is used, with indices loaded two turns earlier.
struct tile_walk {
    int key_group, rank, first_stage;
    int tiles;
    int index, later; // of this lane's row in the next tile that this warp copies, and in the one after that
};

SMLA_FN u32 first_column(const tile_walk &walk, const key_range &keys, int tile)
{
    return (u32)keys.begin + (u32)(tile * KEY_GROUPS + walk.key_group) * TILE;
}

SMLA_FN int load_index(const tile_walk &walk, const key_range &keys, int tile, int lane)
{
    return lane < TILE ? column_index(keys, first_column(walk, keys, tile), lane) : -1;
}

SMLA_FN void copy_next(tile_walk &walk, const smla_params &p, const key_range &keys, int tile, int stage, int lane)
{
    const int index = walk.index, which = cache_of_column(keys, first_column(walk, keys, tile));
    walk.index = walk.later;
    walk.later = load_index(walk, keys, tile + 2 * RING_WARPS, lane);
    const smla_cache_params &cache = cache_of(p, which);
    copy_tile(walk.first_stage + stage, place_of_row(p, keys, which, index), cache.data, cache.rope_at, lane);
}

SMLA_FN tile_walk start_walk(const key_range &keys, int warp, int lane)
{
    const int all_tiles = (int)(((u32)(keys.end - keys.begin) + TILE - 1) / TILE);
    const int key_group = warp / RING_WARPS;
    tile_walk walk = {key_group, warp % RING_WARPS, key_group * STAGES, 0, -1, -1};
    walk.tiles = (all_tiles - key_group + KEY_GROUPS - 1) / KEY_GROUPS;
    walk.index = load_index(walk, keys, walk.rank, lane);
    walk.later = load_index(walk, keys, walk.rank + RING_WARPS, lane);
    return walk;
}

// Fills the ring.
SMLA_FN void copy_first(tile_walk &walk, const smla_params &p, const key_range &keys, int lane)
{
    for (int tile = walk.rank; tile < STAGES && tile < walk.tiles; tile += RING_WARPS)
        copy_next(walk, p, keys, tile, tile, lane);
}

// The main loop of a warp: copies its share of the tiles and attends to all of them, or only copies when its heads do
// not exist. The order of waits bounds them: a tile's stage is refilled by tile + STAGES, whose copying warp waits only
// for warps that are at most COPY_AHEAD tiles behind, and those wait only for copies already under way.
SMLA_FN void walk_tiles(output_fragments &out, const query_fragments &q, tile_walk &walk, const smla_params &p,
                        const key_range &keys, bool active, const warp_place &at)
{
    int stage = 0, phase = 0, parity = 0;
    if (WIDENED && WIDEN_AHEAD == 1 && walk.tiles > 0)
        widen_tile(walk.first_stage, 0, walk.rank, at.lane);
    for (int tile = 0; tile < walk.tiles; tile++) {
        const int ahead = tile + COPY_AHEAD;
        if (ahead >= STAGES && ahead < walk.tiles && ahead % RING_WARPS == walk.rank) {
            const bool wrapped = stage < REFILL_LAG;
            const int refill = stage - REFILL_LAG + (wrapped ? STAGES : 0);
            mbarrier_wait(empty_barrier(walk.first_stage + refill), wrapped ? phase ^ 1 : phase);
            copy_next(walk, p, keys, ahead, refill, at.lane);
        }
        const int here = walk.first_stage + stage;
        if (WIDENED && tile + WIDEN_AHEAD < walk.tiles) {
            const bool wrapped = stage + WIDEN_AHEAD == STAGES;
            const int next = wrapped ? 0 : stage + WIDEN_AHEAD;
            widen_tile(walk.first_stage + next, wrapped ? phase ^ 1 : phase, walk.rank, at.lane);
        }
        mbarrier_wait(WIDENED ? ready_barrier(here) : full_barrier(here), phase);
        const u32 valid = *mask_of(here);
        if (active && valid) {
            attend_tile(out, q, tile_of(here), valid, parity, at, p.scale_log2);
            parity ^= 1;
        }
        sync_warp();
        if (at.lane == 0)
            mbarrier_arrive(empty_barrier(here));
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
}

SMLA_KERNEL(SMLA_NAME, THREADS, SMLA_BLOCKS_PER_SM)
{
    if (p.flags & SMLA_PROGRAMMATIC_LAUNCH)
        wait_for_earlier_kernels();
    const int warp = uniform(thread_index() / 32);
    const warp_place at = place_of(warp, thread_index() % 32);
    const block_place block = place_of_block(p);
    const int group_head = warp % RING_WARPS / DIM_SPLIT * GROUP_HEADS;
    const bool active = block.first_head + group_head < p.num_heads;

    const key_range keys = token_keys(p, block);
    tile_walk walk = start_walk(keys, warp, at.lane);
    raw_query raw; // under way while the first rows are
    load_query(raw, p, block, block.first_head + group_head, at);
    init_rings();
    sync_block();
    copy_first(walk, p, keys, at.lane);

    query_fragments q;
    prepare_latent_query(q, raw, warp < RING_WARPS, at, p.scale_log2);
    prepare_rope_query(raw, warp < RING_WARPS, at, p.scale_log2);
    output_fragments out;
    init_state(out, at);
    sync_block();
    walk_tiles(out, q, walk, p, keys, active, at);

    const warp_place after = place_of(opaque(warp), opaque(at.lane)); // rather than keeping addresses all along
    finish_heads(p, block, warp, after);
    scale_output(out, warp, after);
    if (p.num_splits == 1) {
        store_rounds<0>(out, caller_output(p, block), warp, after);
        return;
    }
#if SMLA_BULK
    if (p.clustered) {
        merge_rounds<0>(out, p, block, warp, after);
        return;
    }
#endif
    store_rounds<0>(out, partial_output(p, block), warp, after);
    finish_part(p, block, warp, after.lane);
}
