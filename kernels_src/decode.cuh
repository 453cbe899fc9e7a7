// SPDX-License-Identifier: Apache-2.0
// The kernel: block (token, head block * num_splits + split) of the grid.

// Largest magnitude of the 128 dims (or LATENT / 4) of a scale group in one head; all 4 lanes of the head agree.
SMLA_FN float largest_of_head(float own)
{
    own = larger(own, shuffle_xor(own, 1));
    return larger(own, shuffle_xor(own, 2));
}

SMLA_FN float magnitude(u32 two_bf16)
{
    return larger(as_float(two_bf16 << 16 & 0x7FFFFFFFu), as_float(two_bf16 & 0x7FFF0000u));
}

// Two bf16 as MMA operand of a flat f16 or fp8 row: f16, times a power of two.
SMLA_FN u32 normalise(u32 two_bf16, float factor)
{
    return pack_f16(bf16_low(two_bf16) * factor, bf16_high(two_bf16) * factor);
}

// Words of one k-step of a head's query at this lane: dims as drawn in variant.cuh. Heads that do not exist are 0.
SMLA_FN void load_query_step(u32 (&b)[2], const u8 *dims, int t, bool fp8_order, bool exists)
{
    word_pair pair;
    if (fp8_order)
        pair = load_constant_8(dims + 8 * t);
    else
        pair = {load_constant((const u32 *)(dims + 4 * t)), load_constant((const u32 *)(dims + 4 * t + 16))};
    b[0] = exists ? pair.x : 0;
    b[1] = exists ? pair.y : 0;
}

SMLA_FN void load_latent_query(query_fragments &q, const u8 *head, int n, bool exists, float *factor,
                               const warp_place &at, float scale_log2)
{
    const u8 *dims = head + at.half * (LATENT / DIM_SPLIT) * 2;
#pragma unroll
    for (int b = 0; b < WARP_SCALE_GROUPS; b++) {
        float largest = 0;
#pragma unroll
        for (int k = 0; k < GROUP_STEPS; k++) {
            u32(&word)[2] = q.latent[b][k][n];
            load_query_step(word, dims + (b * SCALE_GROUP_DIMS + k * 16) * 2, at.t, FP8, exists);
            largest = larger(largest, larger(magnitude(word[0]), magnitude(word[1])));
        }
        if (BF16)
            continue;
        const exponent_pair e = normalising_exponent(largest_of_head(largest));
#pragma unroll
        for (int k = 0; k < GROUP_STEPS; k++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                q.latent[b][k][n][i] = normalise(q.latent[b][k][n][i], e.factor);
        if (at.t == 0)
            factor[(8 * n + at.g) * SCALE_GROUPS + at.half * WARP_SCALE_GROUPS + b] = e.inverse * scale_log2;
    }
}

SMLA_FN void load_rope_query(const u8 *head, int n, bool exists, float *factor, const warp_place &at, float scale_log2)
{
    u32 word[ROPE_STEPS ? ROPE_STEPS : 1][2];
    float largest = 0;
#pragma unroll
    for (int k = 0; k < ROPE_STEPS; k++) {
        load_query_step(word[k], head + (at.half * ROPE_STEPS + k) * 32, at.t, false, exists);
        largest = larger(largest, larger(magnitude(word[k][0]), magnitude(word[k][1])));
    }
    const exponent_pair e = normalising_exponent(largest_of_head(largest));
#pragma unroll
    for (int k = 0; k < ROPE_STEPS; k++)
        at.rope_query[(k * N_TILES + n) * 32] =
            F16 ? word_pair{normalise(word[k][0], e.factor), normalise(word[k][1], e.factor)}
                : word_pair{word[k][0], word[k][1]};
    if (F16 && at.t == 0) // the halves of the rope dims are normalised apart
        factor[(8 * n + at.g) * DIM_SPLIT + at.half] = e.inverse * scale_log2;
}

// The warp's heads: first_head .. first_head + GROUP_HEADS - 1.
SMLA_FN void load_query(query_fragments &q, const smla_params &p, int token, int first_head, const warp_place &at)
{
    const int row = token / p.q_len, position = token - row * p.q_len;
#pragma unroll
    for (int n = 0; n < N_TILES; n++) {
        const int wanted = first_head + 8 * n + at.g;
        const bool exists = wanted < p.num_heads;
        const int head = exists ? wanted : first_head; // some head that may be read
        const smla_strides &l = p.q_latent_stride, &r = p.q_rope_stride;
        load_latent_query(q, (const u8 *)p.q_latent + 2 * (row * l.request + position * l.token + head * l.head), n,
                          exists, (float *)at.query_factor, at, p.scale_log2);
        if (ROPE)
            load_rope_query((const u8 *)p.q_rope + 2 * (row * r.request + position * r.token + head * r.head), n,
                            exists, (float *)at.rope_factor, at, p.scale_log2);
    }
}

SMLA_FN warp_place place_of(int warp, int lane)
{
    u8 *shared = shared_buffer();
    const int group = warp % RING_WARPS / DIM_SPLIT;
    warp_place at;
    at.lane = lane;
    at.g = lane >> 2;
    at.t = lane & 3;
    at.half = warp % DIM_SPLIT;
    at.pair_barrier = 1 + warp / 2;
    at.query_factor = (float *)(shared + QUERY_FACTOR_AT) + group * GROUP_HEADS * SCALE_GROUPS;
    at.rope_factor = (float *)(shared + ROPE_FACTOR_AT) + group * GROUP_HEADS * DIM_SPLIT;
    at.rope_query = (word_pair *)(shared + ROPE_QUERY_AT) + warp % RING_WARPS * ROPE_STEPS * N_TILES * 32 + lane;
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
// COPY_AHEAD tiles before it is used, with indices loaded one turn earlier.
struct tile_walk {
    key_ring ring;
    int key_group, rank;
    int tiles;
    int index; // of this lane's row in the next tile that this warp copies
};

SMLA_FN void load_indices(tile_walk &walk, const key_range &keys, int tile, int lane)
{
    walk.index = lane < TILE ? column_index(keys, keys.begin + (tile * KEY_GROUPS + walk.key_group) * TILE + lane) : -1;
}

SMLA_FN void copy_next(tile_walk &walk, const smla_params &p, const key_range &keys, int tile, int stage, int lane)
{
    copy_tile(walk.ring, stage, row_address(p, keys, walk.index), p.cache.data, lane);
    load_indices(walk, keys, tile + RING_WARPS, lane);
}

// Starts the first COPY_AHEAD tiles.
SMLA_FN tile_walk start_walk(const smla_params &p, const key_range &keys, int warp, int lane)
{
    const int all_tiles = (keys.end - keys.begin + TILE - 1) / TILE;
    const int key_group = warp / RING_WARPS;
    tile_walk walk = {ring_of(key_group), key_group, warp % RING_WARPS, 0, -1};
    walk.tiles = (all_tiles - key_group + KEY_GROUPS - 1) / KEY_GROUPS;
    load_indices(walk, keys, walk.rank, lane);
    for (int tile = walk.rank; tile < COPY_AHEAD && tile < walk.tiles; tile += RING_WARPS)
        copy_next(walk, p, keys, tile, tile, lane);
    return walk;
}

// The main loop of a warp: copies its share of the tiles and attends to all of them, or only copies when its heads do
// not exist. The order of waits bounds them: a tile's stage is refilled by tile + STAGES, whose copying warp waits only
// for warps that are at most COPY_AHEAD tiles behind, and those wait only for copies already under way.
SMLA_FN void walk_tiles(output_fragments &out, const query_fragments &q, tile_walk &walk, const smla_params &p,
                        const key_range &keys, bool active, const warp_place &at)
{
    const key_ring &ring = walk.ring;
    int stage = 0, phase = 0, parity = 0;
    for (int tile = 0; tile < walk.tiles; tile++) {
        const int ahead = tile + COPY_AHEAD;
        if (ahead < walk.tiles && ahead % RING_WARPS == walk.rank) {
            const bool wrapped = stage < REFILL_LAG;
            const int refill = stage - REFILL_LAG + (wrapped ? STAGES : 0);
            if (ahead >= STAGES)
                mbarrier_wait(ring.empty + refill, wrapped ? phase ^ 1 : phase);
            copy_next(walk, p, keys, ahead, refill, at.lane);
        }
        mbarrier_wait(ring.full + stage, phase);
        const u32 valid = ring.masks[stage];
        if (active && valid) {
            attend_tile(out, q, ring.tiles + stage * TILE_BYTES, valid, parity, at, p.scale_log2);
            parity ^= 1;
        }
        sync_warp();
        if (at.lane == 0)
            mbarrier_arrive(ring.empty + stage);
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
}

SMLA_KERNEL(SMLA_NAME, THREADS, SMLA_BLOCKS_PER_SM)
{
    const int warp = uniform(thread_index() / 32);
    const warp_place at = place_of(warp, thread_index() % 32);
    const block_place block = place_of_block(p);
    const int group_head = warp % RING_WARPS / DIM_SPLIT * GROUP_HEADS;
    const bool active = block.first_head + group_head < p.num_heads;
    if (thread_index() == 0)
        init_rings();
    sync_block();

    const key_range keys = token_keys(p, block.token, block.split);
    tile_walk walk = start_walk(p, keys, warp, at.lane);
    output_fragments out;
    query_fragments q;
    init_state(out, at);
    if (active)
        load_query(q, p, block.token, block.first_head + group_head, at);
    sync_block();
    walk_tiles(out, q, walk, p, keys, active, at);

    finish_heads(p, block, warp, at);
    scale_output(out, warp, at);
    const bool whole = p.num_splits == 1;
    store_output(out, whole ? caller_output(p, block.token, block.first_head) : partial_output(p, block), warp, at);
    if (!whole)
        finish_part(p, block, warp, at.lane);
}
