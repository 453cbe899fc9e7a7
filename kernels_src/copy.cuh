// SPDX-License-Identifier: Apache-2.0
// From a token to its keys: which columns this block reads, which slot each names, and the ring that brings the rows in.

// What a block works on.
struct block_place {
    int token, request, position; // token = request * q_len + position
    int first_head, split;
    int row; // of parts and counters: token * head blocks + head block
};

SMLA_FN block_place place_of_block(const smla_params &p)
{
    const int token = block_token(), request = token / p.q_len, head_block = block_part() / p.num_splits;
    return {token,
            request,
            token - request * p.q_len,
            head_block * HEADS,
            block_part() - head_block * p.num_splits,
            token * ((p.num_heads + HEADS - 1) / HEADS) + head_block};
}

// The columns of one token that this block handles.
struct key_range {
    const int *indices; // of the token; NULL: column j is position j
    const int *table;   // block table row of the token; NULL: positions are slots
    int begin, end;     // columns
};

SMLA_FN key_range token_keys(const smla_params &p, const block_place &block)
{
    const smla_cache_params &cache = p.cache;
    const int request =
        p.request_of_token ? uniform(load_constant(p.request_of_token + block.token)) : block.request;
    key_range keys = {nullptr, nullptr, 0, 0};
    if (request < 0 || request >= p.num_requests)
        return keys;
    int length = cache.topk;
    if (cache.lengths) {
        const int given = load_constant(cache.lengths + (cache.lengths_per_request ? request : block.token));
        length = given < 0 ? 0 : given < length ? given : length;
    }
    if (cache.indices)
        keys.indices = cache.indices + block.request * cache.indices_request_stride +
                       block.position * cache.indices_token_stride;
    if (cache.block_table)
        keys.table = cache.block_table + request * cache.block_table_stride;

    // Equal parts in units of one tile per key group; a function of the row's own length and the number of splits.
    constexpr int UNIT = TILE * KEY_GROUPS;
    const int units = (int)(((u32)length + UNIT - 1) / UNIT);
    const i64 part = (i64)((units + p.num_splits - 1) / p.num_splits) * UNIT;
    const i64 begin = block.split * part, end = begin + part;
    keys.begin = uniform(begin < length ? (int)begin : length);
    keys.end = uniform(end < length ? (int)end : length);
    return keys;
}

// What the index list says of a column; -1 past the end.
SMLA_FN int column_index(const key_range &keys, u32 column)
{
    if (column >= (u32)keys.end)
        return -1;
    return keys.indices ? load_constant(keys.indices + column) : (int)column;
}

// Address of the row that an index names; NULL when it is masked. The blocks of the first heads count a fault for a slot
// or page that is not there.
SMLA_FN const u8 *row_address(const smla_params &p, const key_range &keys, int index)
{
    const smla_cache_params &cache = p.cache;
    if (index < 0)
        return nullptr;
    u32 page = (u32)((u64)(u32)index * cache.page_multiplier >> cache.page_shift);
    const u32 row = (u32)index - page * (u32)cache.page_size;
    bool there = true;
    if (keys.table) {
        there = page < (u32)cache.block_table_width;
        const int entry = there ? load_constant(keys.table + page) : -1;
        there = entry >= 0;
        page = (u32)entry;
    }
    if (!there || (i64)page * cache.page_size + row >= cache.num_slots) {
        if (p.fault_count && block_part() < p.num_splits)
            atomic_increment(p.fault_count);
        return nullptr;
    }
    return cache.data + (i64)page * cache.page_stride + (i64)row * cache.row_stride;
}

// A stage of a key group: its number among all stages of the block.
SMLA_FN u8 *tile_of(int stage)
{
    return shared_buffer() + RING_AT + stage * TILE_BYTES;
}
SMLA_FN u64 *full_barrier(int stage)
{
    return (u64 *)(shared_buffer() + BARRIERS_AT) + stage;
}
SMLA_FN u64 *empty_barrier(int stage)
{
    return full_barrier(KEY_GROUPS * STAGES + stage);
}
// Bit r: row r of the tile is a valid key.
SMLA_FN u32 *mask_of(int stage)
{
    return (u32 *)(shared_buffer() + MASKS_AT) + stage;
}

// Before the block's first barrier.
SMLA_FN void init_rings()
{
    const int i = thread_index();
    if (i >= KEY_GROUPS * STAGES)
        return;
    mbarrier_init(full_barrier(i), SMLA_BULK ? 1 : 33); // 33: every lane's copies and lane 0's mask
    mbarrier_init(empty_barrier(i), RING_WARPS);
    mbarrier_init_fence();
}

SMLA_FN void zero_row(u8 *row, int lane)
{
    for (int unit = lane; unit < ROW_UNITS; unit += 32)
        *(float4_t *)(row + unit * 16) = float4_t{0, 0, 0, 0};
}

// Starts the copies of one tile into a free stage. Lanes 0 to 15 bring the address of their row, or NULL. A masked row
// reads as zero, scales included: its weight of zero alone would not do, since stale bytes may be NaN. A tile without
// a valid key is left as it is and its mask says so. `any_row` stands for masked sources, of which nothing is read.
SMLA_FN void copy_tile(int stage, const u8 *row, const u8 *any_row, int lane)
{
    u8 *tile = tile_of(stage);
    const u32 valid = ballot(lane < TILE && row != nullptr);
    row = row ? row : any_row;
    if (lane == 0)
        *mask_of(stage) = valid;
#if SMLA_BULK
    if (valid != 0 && valid != 0xFFFF) {
        for (int r = 0; r < TILE; r++)
            if (!(valid >> r & 1))
                zero_row(tile + r * ROW_BYTES, lane);
        fence_bulk_copies();
    }
    sync_warp();
    if (lane == 0)
        mbarrier_arrive_expect(full_barrier(stage), count_bits(valid) * ROW_READ);
    sync_warp();
    const bool elected = elect_lane();
#pragma unroll 8
    for (int r = 0; r < TILE; r++) {
        const u8 *source = (const u8 *)shuffle((i64)row, r);
        if (elected && (valid >> r & 1))
            bulk_copy(tile + r * ROW_BYTES, source, ROW_READ, full_barrier(stage));
    }
#else
    if (valid != 0) {
        // The whole warp takes every turn, for the shuffle.
#pragma unroll 4
        for (int first = 0; first < TILE * ROW_UNITS; first += 32) {
            const int unit = first + lane, r = unit / ROW_UNITS, at = (unit - r * ROW_UNITS) * 16;
            const u8 *source = (const u8 *)shuffle((i64)row, r & 15);
            if (unit < TILE * ROW_UNITS)
                copy16(tile + r * ROW_BYTES + at, source + at, valid >> r & 1 ? 16 : 0);
        }
    }
    mbarrier_arrive_copies(full_barrier(stage));
    if (lane == 0)
        mbarrier_arrive(full_barrier(stage));
#endif
}
