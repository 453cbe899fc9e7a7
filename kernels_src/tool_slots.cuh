// SPDX-License-Identifier: Apache-2.0
// sparse_mla_map_slots(): a block per token. Its warps take neighbouring stretches of columns, so that the order of the
// columns is that of warp, step and lane.

constexpr int SLOTS_WARPS = SMLA_SLOTS_THREADS / 32;
constexpr int SLOTS_STEPS = 8; // of 32 columns, per warp and round
constexpr int WARP_COLUMNS = 32 * SLOTS_STEPS;
constexpr u32 ROUND_COLUMNS = SLOTS_WARPS * WARP_COLUMNS;

// A token's rows of the tensors.
struct token_rows {
    const int *indices, *table; // NULL as in smla_slots_params
    const u16 *mask;
    int *slots;
    int length; // 0 .. topk
};

SMLA_FN token_rows rows_of(const smla_slots_params &p, int token)
{
    const i64 row = token / p.q_len, position = token % p.q_len;
    const i64 request = p.request_of_token ? load_constant(p.request_of_token + token) : row;
    token_rows rows = {};
    rows.slots = p.slots + row * p.slots_request_stride + position * p.slots_token_stride;
    if (request < 0 || request >= p.num_requests)
        return rows;
    rows.length = p.topk;
    if (p.lengths) {
        const int length = load_constant(p.lengths + (p.lengths_per_request ? request : (i64)token));
        rows.length = length < 0 ? 0 : length < p.topk ? length : p.topk;
    }
    if (p.indices)
        rows.indices = p.indices + row * p.indices_request_stride + position * p.indices_token_stride;
    if (p.block_table)
        rows.table = p.block_table + request * p.block_table_stride;
    if (p.mask)
        rows.mask = p.mask + row * p.mask_request_stride + position * p.mask_token_stride;
    return rows;
}

// The slot of an index that is not negative; num_slots or more when there is none.
SMLA_FN i64 slot_of_index(const smla_slots_params &p, const token_rows &rows, int index)
{
    if (rows.mask && index >= p.mask_width)
        return p.num_slots;
    if (!rows.table)
        return index;
    const int page = index / p.page_size;
    const int entry = page < p.block_table_width ? load_constant(rows.table + page) : -1;
    return entry < 0 ? p.num_slots : (i64)entry * p.page_size + index % p.page_size;
}

// -1: masked, or past the length.
SMLA_FN int slot_of_column(const smla_slots_params &p, const token_rows &rows, u32 column)
{
    const u32 negative_infinity = 0xFC00; // as f16
    if (column >= (u32)rows.length)
        return -1;
    const int index = rows.indices ? load_constant(rows.indices + column) : (int)column;
    if (index < 0 || (rows.mask && index < p.mask_width && load_constant(rows.mask + index) == negative_infinity))
        return -1;
    const i64 slot = slot_of_index(p, rows, index);
    if (slot < p.num_slots)
        return (int)slot;
    if (p.fault_count)
        atomic_increment(p.fault_count);
    return -1;
}

// How many valid slots of this round stand before each of this lane's; the round's total is the result.
SMLA_FN u32 rank_slots(const int (&slot)[SLOTS_STEPS], u32 (&before)[SLOTS_STEPS], int warp, int lane)
{
    u32 *totals = (u32 *)shared_buffer();
    u32 own = 0, all = 0, earlier = 0;
#pragma unroll
    for (int i = 0; i < SLOTS_STEPS; i++) {
        const u32 valid = ballot(slot[i] >= 0);
        before[i] = own + (u32)count_bits(valid & ((1u << lane) - 1));
        own += (u32)count_bits(valid);
    }
    if (lane == 0)
        totals[warp] = own;
    sync_block();
#pragma unroll
    for (int i = 0; i < SLOTS_WARPS; i++) {
        earlier += i < warp ? totals[i] : 0;
        all += totals[i];
    }
    sync_block();
#pragma unroll
    for (int i = 0; i < SLOTS_STEPS; i++)
        before[i] += earlier;
    return all;
}

SMLA_TOOL_KERNEL(SMLA_NAME, smla_slots_params, SMLA_SLOTS_THREADS)
{
    const int warp = thread_index() / 32, lane = thread_index() % 32;
    const token_rows rows = rows_of(p, block_token());
    const u32 topk = (u32)p.topk, end = p.compact ? (u32)rows.length : topk;
    u32 count = 0;
    for (u32 first = 0; first < end; first += ROUND_COLUMNS) {
        const u32 column = first + (u32)(warp * WARP_COLUMNS + lane);
        int slot[SLOTS_STEPS];
        u32 before[SLOTS_STEPS];
#pragma unroll
        for (int i = 0; i < SLOTS_STEPS; i++)
            slot[i] = slot_of_column(p, rows, column + 32 * (u32)i);
#pragma unroll
        for (int i = 0; i < SLOTS_STEPS; i++)
            if (!p.compact && column + 32 * (u32)i < topk)
                rows.slots[column + 32 * (u32)i] = slot[i];
        if (!p.compact && !p.counts)
            continue;
        const u32 valid = rank_slots(slot, before, warp, lane);
#pragma unroll
        for (int i = 0; i < SLOTS_STEPS; i++)
            if (p.compact && slot[i] >= 0)
                rows.slots[count + before[i]] = slot[i];
        count += valid;
    }
    for (u32 column = count + (u32)thread_index(); p.compact && column < topk; column += SMLA_SLOTS_THREADS)
        rows.slots[column] = -1;
    if (p.counts && thread_index() == 0)
        p.counts[block_token()] = (int)count;
}
