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

SMLA_FN key_list list_of_token(const smla_params &p, const smla_cache_params &cache, const block_place &block, int request)
{
    key_list list = {nullptr, nullptr, cache.topk};
    if (cache.lengths) {
        const int given = load_constant(cache.lengths + (cache.lengths_per_request ? request : block.token));
        list.length = given < 0 ? 0 : given < cache.topk ? given : cache.topk;
    }
    if (cache.indices)
        list.indices = cache.indices + block.request * cache.indices_request_stride +
                       block.position * cache.indices_token_stride;
    if (cache.block_table)
        list.table = cache.block_table + request * cache.block_table_stride;
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
        keys.list[c] = list_of_token(p, p.cache[c], block, request);
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
    if (column + skipped >= (u32)keys.end || column >= (u32)list.length)
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
    const smla_cache_params &cache = p.cache[which];
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
    mbarrier_init(full_barrier(i), SMLA_BULK || CONVERTED ? 1 : 33); // 33: every lane's copies and lane 0's mask
    mbarrier_init(empty_barrier(i), RING_WARPS);
    mbarrier_init_fence();
}

SMLA_FN void zero_row(u8 *row, int lane)
{
    for (int unit = lane; unit < ROW_UNITS; unit += 32)
        *(float4_t *)(row + unit * 16) = float4_t{0, 0, 0, 0};
}

// ---- rows that are converted on their way: 8 dims at a time

constexpr int CONVERTED_UNITS = (LATENT + ROPE) / 8; // of a row

struct raw_unit {
    u32 word[4];
    u32 scale;
};

// 4 bytes at an even address.
SMLA_FN u32 load_unaligned(const u8 *from)
{
    const u16 *half = (const u16 *)from;
    return (u32)load_constant(half) | (u32)load_constant(half + 1) << 16;
}

SMLA_FN raw_unit load_raw_unit(const row_place &row, int unit)
{
    constexpr int ROPE_UNIT = V4 ? SMLA_LATENT / 8 : CONVERTED_UNITS; // from here on: bf16
    raw_unit raw = {};
    if (Q8) {
        const u8 *block = row.data + unit / 4 * 34;
        raw.scale = load_constant((const u16 *)block);
        raw.word[0] = load_unaligned(block + 2 + unit % 4 * 8);
        raw.word[1] = load_unaligned(block + 6 + unit % 4 * 8);
        return raw;
    }
    const u8 *from = row.data + unit * 8 + (unit >= ROPE_UNIT ? (unit - ROPE_UNIT) * 8 : 0);
    const word_pair first = load_constant_8(from);
    raw.word[0] = first.x;
    raw.word[1] = first.y;
    if (V4 && unit >= ROPE_UNIT) {
        const word_pair second = load_constant_8(from + 8);
        raw.word[2] = second.x;
        raw.word[3] = second.y;
        raw.scale = ~0u;
    } else if (V4) {
        raw.scale = load_constant(row.scales + unit / 8);
    }
    return raw;
}

// Four e4m3 to two words of bf16, times a power of two.
SMLA_FN void convert_v4(u32 *out, u32 bytes, float scale)
{
    const u32 low = e4m3_low_to_f16x2(bytes), high = e4m3_high_to_f16x2(bytes);
    out[0] = pack_bf16(f16_low(low) * scale, f16_high(low) * scale);
    out[1] = pack_bf16(f16_low(high) * scale, f16_high(high) * scale);
}

SMLA_FN float int8_of(u32 word, int byte)
{
    return (float)(signed char)(word >> 8 * byte);
}

SMLA_FN void convert_q8(u32 *out, u32 bytes, float scale)
{
    out[0] = pack_f16(int8_of(bytes, 0) * scale, int8_of(bytes, 1) * scale);
    out[1] = pack_f16(int8_of(bytes, 2) * scale, int8_of(bytes, 3) * scale);
}

// To 16 bytes of a row in shared memory.
SMLA_FN void convert_unit(u32 (&out)[4], const raw_unit &raw)
{
    for (int i = 0; i < 2; i++) {
        if (Q8) {
            convert_q8(out + 2 * i, raw.word[i], f16_low(raw.scale));
        } else if (E4M3) {
            out[2 * i] = e4m3_low_to_f16x2(raw.word[i]);
            out[2 * i + 1] = e4m3_high_to_f16x2(raw.word[i]);
        } else if (raw.scale == ~0u) {
            out[2 * i] = raw.word[2 * i];
            out[2 * i + 1] = raw.word[2 * i + 1];
        } else {
            convert_v4(out + 2 * i, raw.word[i], ue8m0_to_float(raw.scale));
        }
    }
}

// Lanes 0 to 15 bring the place of their row. Rows that are masked become zero.
SMLA_FN void convert_tile(u8 *tile, const row_place &row, u32 valid, int lane)
{
    constexpr int BATCH = 4; // loads under way
#pragma unroll 1
    for (int first = lane; first - lane < TILE * CONVERTED_UNITS; first += 32 * BATCH) {
        raw_unit raw[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int r = (first + 32 * i) / CONVERTED_UNITS, unit = first + 32 * i - r * CONVERTED_UNITS;
            const row_place source = {(const u8 *)shuffle((i64)row.data, r & 15),
                                      V4 ? (const u8 *)shuffle((i64)row.scales, r & 15) : nullptr};
            raw[i] = raw_unit{};
            if (r < TILE && (valid >> r & 1))
                raw[i] = load_raw_unit(source, unit);
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int r = (first + 32 * i) / CONVERTED_UNITS, unit = first + 32 * i - r * CONVERTED_UNITS;
            u32 out[4];
            convert_unit(out, raw[i]);
            if (r < TILE)
                *(word_quad *)(tile + r * ROW_BYTES + unit * 16) = word_quad{out[0], out[1], out[2], out[3]};
        }
    }
}

// ---- tiles

// Starts the copies of one tile into a free stage. Lanes 0 to 15 bring the place of their row. A masked row reads as zero,
// scales included: its weight of zero alone would not do, since stale bytes may be NaN. A tile without a valid key is
// left as it is and its mask says so. `any_row` stands for masked sources, of which nothing is read. `rope_at`: from a
// row's latent to its rope.
SMLA_FN void copy_tile(int stage, const row_place &place, const u8 *any_row, i64 rope_at, int lane)
{
    u8 *tile = tile_of(stage);
    const u32 valid = ballot(lane < TILE && place.data != nullptr);
    if (lane == 0)
        *mask_of(stage) = valid;
    if (CONVERTED) {
        if (valid != 0)
            convert_tile(tile, place, valid, lane);
        sync_warp();
        if (lane == 0)
            mbarrier_arrive(full_barrier(stage));
        return;
    }
    const bool apart = !FP8 && ROPE > 0 && rope_at != ROPE_OFFSET;
    const u8 *row = place.data ? place.data : any_row;
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
    const int bytes = apart ? ROPE_OFFSET : ROW_READ;
#pragma unroll 8
    for (int r = 0; r < TILE; r++) {
        const u8 *source = (const u8 *)shuffle((i64)row, r);
        if (elected && (valid >> r & 1)) {
            bulk_copy(tile + r * ROW_BYTES, source, bytes, full_barrier(stage));
            if (apart)
                bulk_copy(tile + r * ROW_BYTES + ROPE_OFFSET, source + rope_at, 2 * ROPE, full_barrier(stage));
        }
    }
#else
    if (valid != 0) {
        // The whole warp takes every turn, for the shuffle.
#pragma unroll 4
        for (int first = 0; first < TILE * ROW_UNITS; first += 32) {
            const int unit = first + lane, r = unit / ROW_UNITS, at = (unit - r * ROW_UNITS) * 16;
            const u8 *source = (const u8 *)shuffle((i64)row, r & 15) + at;
            if (apart && at >= ROPE_OFFSET)
                source += rope_at - ROPE_OFFSET;
            if (unit < TILE * ROW_UNITS)
                copy16(tile + r * ROW_BYTES + at, source, valid >> r & 1 ? 16 : 0);
        }
    }
    mbarrier_arrive_copies(full_barrier(stage));
    if (lane == 0)
        mbarrier_arrive(full_barrier(stage));
#endif
}
