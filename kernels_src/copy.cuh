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

SMLA_FN const smla_cache_params &cache_of(const smla_params &p, int which)
{
    return CACHES == 2 && which ? p.extra : p.cache;
}

// What a token attends to in one cache.
struct key_list {
    const int *indices; // NULL: column j is position j
    const int *table;   // block table row; NULL: positions are slots
    int length;
};

// The columns of one token that this block handles. Those of the main cache come first, whole tiles of them where others
// follow, then those of the extra cache.
struct key_range {
    key_list list[CACHES];
    int begin, end; // columns
};

SMLA_FN key_list list_of_token(const smla_cache_params &cache, const block_place &block, int request)
{
    key_list list = {nullptr, nullptr, cache.topk};
    if (cache.lengths) {
        const int given = load_constant(cache.lengths + (cache.lengths_per_request ? request : block.token));
        list.length = uniform(given < 0 ? 0 : given < cache.topk ? given : cache.topk);
    }
    if (cache.indices)
        list.indices = cache.indices + block.request * cache.indices_request_stride +
                       block.position * cache.indices_token_stride;
    if (cache.block_table)
        list.table = cache.block_table + request * cache.block_table_stride;
    list.indices = (const int *)shuffle((i64)list.indices, 0); // all lanes have the same: it needs no register per lane
    list.table = (const int *)shuffle((i64)list.table, 0);
    return list;
}

// Columns of the main cache, as they are numbered where those of the extra cache follow.
SMLA_FN u32 main_columns(const key_range &keys)
{
    return ((u32)keys.list[0].length + TILE - 1) / TILE * TILE;
}

SMLA_FN key_range token_keys(const smla_params &p, const block_place &block)
{
    const int request =
        p.request_of_token ? uniform(load_constant(p.request_of_token + block.token)) : block.request;
    key_range keys = {};
    if (request < 0 || request >= p.num_requests)
        return keys;
    for (int c = 0; c < CACHES; c++)
        keys.list[c] = list_of_token(cache_of(p, c), block, request);
    const u32 length =
        CACHES == 2 ? main_columns(keys) + (u32)keys.list[CACHES - 1].length : (u32)keys.list[0].length;

    // Equal parts in units of one tile per key group; a function of the row's own length and the number of splits.
    constexpr int UNIT = TILE * KEY_GROUPS;
    const int units = (int)((length + UNIT - 1) / UNIT);
    const i64 part = (i64)((units + p.num_splits - 1) / p.num_splits) * UNIT;
    const i64 begin = block.split * part, end = begin + part;
    keys.begin = uniform(begin < length ? (int)begin : (int)length);
    keys.end = uniform(end < length ? (int)end : (int)length);
    return keys;
}

// The cache that a tile is from, by its first column.
SMLA_FN int cache_of_column(const key_range &keys, u32 first)
{
    return CACHES == 2 && first >= main_columns(keys);
}

// By value: an index into registers would put them in memory.
SMLA_FN key_list list_of_cache(const key_range &keys, int which)
{
    if (CACHES == 2 && which)
        return keys.list[CACHES - 1];
    return keys.list[0];
}

// What the index list says of a column; -1 past the end.
SMLA_FN int column_index(const key_range &keys, u32 first, int lane)
{
    const int which = cache_of_column(keys, first);
    const u32 skipped = which ? main_columns(keys) : 0, column = first + (u32)lane - skipped;
    const key_list list = list_of_cache(keys, which);
    if (first + (u32)lane >= (u32)keys.end || (CACHES == 2 && column >= (u32)list.length))
        return -1;
    return list.indices ? load_constant(list.indices + column) : (int)column;
}

// Where a row is; NULL when it is masked.
struct row_place {
    const u8 *data, *scales; // scales: FP8_V4 only
};

// The place of the row that an index names. The blocks of the first heads count a fault for a slot or page that is not
// there.
SMLA_FN row_place place_of_row(const smla_params &p, const key_range &keys, int which, int index)
{
    const smla_cache_params &cache = cache_of(p, which);
    const int *table = list_of_cache(keys, which).table;
    if (index < 0)
        return {nullptr, nullptr};
    u32 page = (u32)((u64)(u32)index * cache.page_multiplier >> cache.page_shift);
    const u32 row = (u32)index - page * (u32)cache.page_size;
    bool there = true;
    if (table) {
        there = page < (u32)cache.block_table_width;
        const int entry = there ? load_constant(table + page) : -1;
        there = entry >= 0;
        page = (u32)entry;
    }
    if (!there || (i64)page * cache.page_size + row >= cache.num_slots) {
        if (p.fault_count && block_part() < p.num_splits)
            atomic_increment(p.fault_count);
        return {nullptr, nullptr};
    }
    const u8 *data = cache.data + (i64)page * cache.page_stride;
    return {data + (i64)row * cache.row_stride, data + cache.scales_at + (i64)row * 8};
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
// Of WIDENED stages: every warp of the ring has done its rows.
SMLA_FN u64 *ready_barrier(int stage)
{
    return full_barrier(2 * KEY_GROUPS * STAGES + stage);
}
SMLA_FN u64 *pair_barrier(int pair)
{
    return (u64 *)(shared_buffer() + PAIR_BARRIERS_AT) + pair;
}
// Bit r: row r of the tile is a valid key.
SMLA_FN u32 *mask_of(int stage)
{
    return (u32 *)(shared_buffer() + MASKS_AT) + stage;
}

// Whether lanes copy 16 bytes, or fewer, at a time: everything, V4's scales, or the rows of Q8, which are aligned to 4 bytes.
constexpr bool LANE_COPIES = !SMLA_BULK || V4 || Q8;

// Before the block's first barrier.
SMLA_FN void init_rings()
{
    const int i = thread_index();
    if (DIM_SPLIT == 2 && i < WARPS / 2)
        mbarrier_init(pair_barrier(i), 64);
    if (i >= KEY_GROUPS * STAGES)
        return;
    mbarrier_init(full_barrier(i), LANE_COPIES ? 33 : 1); // 33: every lane's copies, and lane 0
    mbarrier_init(empty_barrier(i), RING_WARPS);
    if (WIDENED)
        mbarrier_init(ready_barrier(i), 32 * RING_WARPS);
    mbarrier_init_fence();
}

SMLA_FN void zero_row(u8 *row, int lane)
{
    for (int unit = lane; unit < ROW_UNITS; unit += 32)
        *(float4_t *)(row + unit * 16) = float4_t{0, 0, 0, 0};
}

// ---- copies

// RAW_BYTES of every row, zeros of a masked one, in units of UNIT bytes, a unit a lane. `apart`: as in copy_tile().
template <int UNIT>
SMLA_FN void copy_rows_by_lanes(u8 *tile, const u8 *row, u32 valid, bool apart, i64 rope_at, int lane)
{
    constexpr int UNITS = RAW_BYTES / UNIT; // of a row
    // The whole warp takes every turn, for the shuffle.
#pragma unroll 4
    for (int first = 0; first < TILE * UNITS; first += 32) {
        const int unit = first + lane, r = unit / UNITS, at = (unit - r * UNITS) * UNIT;
        const u8 *source = (const u8 *)shuffle((i64)row, r & 15) + at;
        if (apart && at >= RAW_ROPE_AT)
            source += rope_at - RAW_ROPE_AT;
        if (r < TILE)
            copy_async<UNIT>(tile + r * ROW_BYTES + RAW_AT + at, source, valid >> r & 1);
    }
}

#if SMLA_BULK
// BYTES of every valid row, from `row` on, to where they belong in a tile.
template <int BYTES> SMLA_FN void copy_rows_in_bulk(u8 *to, const u8 *row, u32 valid, u64 *barrier)
{
    const bool elected = elect_lane();
#pragma unroll 8
    for (int r = 0; r < TILE; r++) {
        const u8 *source = (const u8 *)shuffle((i64)row, r);
        if (elected && (valid >> r & 1))
            bulk_copy(to + r * ROW_BYTES, source, BYTES, barrier);
    }
}
#endif

// Starts the copies of one tile into a free stage. Lanes 0 to 15 bring the place of their row. A masked row reads as zero,
// scales included: its weight of zero alone would not do, since stale bytes may be NaN. A tile without a valid key is
// left as it is and its mask says so. `any_row` stands for masked sources, of which nothing is read. `rope_at`: from a
// row's latent to its rope.
SMLA_FN void copy_tile(int stage, const row_place &place, const u8 *any_row, i64 rope_at, int lane)
{
    u8 *tile = tile_of(stage);
    u64 *full = full_barrier(stage);
    const bool apart = FLAT && ROPE > 0 && rope_at != RAW_ROPE_AT; // two pieces
    const u32 valid = ballot(lane < TILE && place.data != nullptr);
    if (lane == 0)
        *mask_of(stage) = valid;
    if (V4 && (valid >> lane & 1))
        copy_async<8>(tile + lane * ROW_BYTES + ROW_READ, place.scales, true);
#if SMLA_BULK
    if (!Q8) {
        if (!WIDENED && valid != 0 && valid != 0xFFFF) {
            for (int r = 0; r < TILE; r++)
                if (!(valid >> r & 1))
                    zero_row(tile + r * ROW_BYTES, lane);
            fence_bulk_copies();
        }
        sync_warp();
        if (lane == 0)
            mbarrier_arrive_expect(full, count_bits(valid) * RAW_BYTES);
        sync_warp();
        if (apart) {
            copy_rows_in_bulk<RAW_ROPE_AT>(tile + RAW_AT, place.data, valid, full);
            copy_rows_in_bulk<RAW_BYTES - RAW_ROPE_AT>(tile + RAW_AT + RAW_ROPE_AT, place.data + rope_at, valid, full);
        } else {
            copy_rows_in_bulk<RAW_BYTES>(tile + RAW_AT, place.data, valid, full);
        }
        if (V4)
            mbarrier_arrive_copies(full);
        return;
    }
#endif
    if (valid != 0)
        copy_rows_by_lanes<Q8 ? 4 : 16>(tile, place.data ? place.data : any_row, valid, apart, rope_at, lane);
    mbarrier_arrive_copies(full);
    if (lane == 0)
        mbarrier_arrive(full);
}

// ---- widening: e4m3, or q8_0, to 16-bit elements, 8 dims at a time

struct raw_unit {
    u32 word[2];
    u32 scale;
};

SMLA_FN raw_unit read_raw_unit(const u8 *row, int unit)
{
    const u8 *from = row + RAW_AT + unit * 8;
    raw_unit raw = {};
    if (Q8) {
        const u16 *block = (const u16 *)(row + RAW_AT + unit / 4 * 34), *value = block + 1 + unit % 4 * 4;
        raw.scale = block[0];
        raw.word[0] = (u32)value[0] | (u32)value[1] << 16;
        raw.word[1] = (u32)value[2] | (u32)value[3] << 16;
    } else {
        const word_pair both = *(const word_pair *)from;
        raw.word[0] = both.x;
        raw.word[1] = both.y;
        if (V4)
            raw.scale = row[ROW_READ + unit / 8];
    }
    return raw;
}

SMLA_FN float int8_of(u32 word, int byte)
{
    return (float)(signed char)(word >> 8 * byte);
}

// Four elements to two words.
SMLA_FN void widen(u32 *out, u32 bytes, u32 scale)
{
    if (Q8) {
        const float d = f16_low(scale);
        out[0] = pack_f16(int8_of(bytes, 0) * d, int8_of(bytes, 1) * d);
        out[1] = pack_f16(int8_of(bytes, 2) * d, int8_of(bytes, 3) * d);
        return;
    }
    out[0] = e4m3_low_to_f16x2(bytes);
    out[1] = e4m3_high_to_f16x2(bytes);
    if (V4) {
        const float by = ue8m0_to_float(scale);
        for (int i = 0; i < 2; i++)
            out[i] = pack_bf16(f16_low(out[i]) * by, f16_high(out[i]) * by);
    }
}

// ROWS rows of a tile, from `first` on, RING_WARPS apart. Everything is read before anything is written.
template <int ROWS> SMLA_FN void widen_rows(u8 *tile, u32 valid, int first, int lane)
{
    constexpr int TURNS = (WIDENED_UNITS + 31) / 32;
    raw_unit raw[ROWS][TURNS];
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            const int r = first + i * RING_WARPS, unit = turn * 32 + lane;
            raw[i][turn] = {};
            if (unit < WIDENED_UNITS && r < TILE && (valid >> r & 1))
                raw[i][turn] = read_raw_unit(tile + r * ROW_BYTES, unit);
        }
    sync_warp();
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const int r = first + i * RING_WARPS;
        u8 *row = tile + r * ROW_BYTES;
        if (r >= TILE)
            break;
        if (!(valid >> r & 1)) {
            zero_row(row, lane);
            continue;
        }
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            const int unit = turn * 32 + lane;
            u32 out[4];
            widen(out, raw[i][turn].word[0], raw[i][turn].scale);
            widen(out + 2, raw[i][turn].word[1], raw[i][turn].scale);
            if (unit < WIDENED_UNITS)
                *(word_quad *)(row + unit * 16) = word_quad{out[0], out[1], out[2], out[3]};
        }
    }
}

// This warp's rows of a tile that has landed.
SMLA_FN void widen_tile(int stage, u32 phase, int rank, int lane)
{
    constexpr int ROWS = RING_WARPS < 8 ? 2 : TILE / RING_WARPS;
    mbarrier_wait(full_barrier(stage), phase);
    const u32 valid = *mask_of(stage);
    if (valid != 0)
        for (int first = rank; first < TILE; first += ROWS * RING_WARPS)
            widen_rows<ROWS>(tile_of(stage), valid, first, lane);
    fence_bulk_copies();
    mbarrier_arrive(ready_barrier(stage)); // every lane, for its own stores
}
