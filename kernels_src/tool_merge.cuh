// SPDX-License-Identifier: Apache-2.0
// sparse_mla_merge(): a warp per token and head. Every lane computes the weights of all parts and then owns some dims.

constexpr int MERGE_WARPS = SMLA_MERGE_THREADS / 32;
constexpr int MERGE_UNITS = 4; // groups of 4 dims that a lane has under way

// Element is a multiple of 4.
SMLA_FN float4_t load_four(const void *tensor, int dtype, i64 element)
{
    if (dtype == SMLA_F32)
        return *(const float4_t *)((const float *)tensor + element);
    const word_pair w = load_constant_8((const u8 *)tensor + 2 * element);
    if (dtype == SMLA_BF16)
        return {bf16_low(w.x), bf16_high(w.x), bf16_low(w.y), bf16_high(w.y)};
    return {f16_low(w.x), f16_high(w.x), f16_low(w.y), f16_high(w.y)};
}

SMLA_FN void store_four(void *tensor, int dtype, i64 element, const float4_t &v)
{
    u8 *to = (u8 *)tensor + 2 * element;
    if (dtype == SMLA_F32)
        *(float4_t *)((float *)tensor + element) = v;
    else if (dtype == SMLA_BF16)
        *(word_pair *)to = {pack_bf16(v.x, v.y), pack_bf16(v.z, v.w)};
    else
        *(word_pair *)to = {pack_f16(v.x, v.y), pack_f16(v.z, v.w)};
}

// What a warp knows of its row.
struct merge_row {
    i64 token, head;
    const float *lse; // of the first part
    float unit;       // of the lse of a part, in base 2
    float largest;    // -inf: all parts are empty
};

// -inf for a part that is empty.
SMLA_FN float part_lse(const smla_merge_params &p, const merge_row &row, int part)
{
    const float lse = load_constant(row.lse + part * p.part_lse_stride);
    return lse < infinity() ? lse : -infinity();
}

// Relative to the largest; 0 below 2^-126.
SMLA_FN float part_weight(const smla_merge_params &p, const merge_row &row, int part)
{
    return row.largest > -infinity() ? exp2_fast((part_lse(p, row, part) - row.largest) * row.unit) : 0.0f;
}

SMLA_FN merge_row start_row(const smla_merge_params &p, i64 index)
{
    merge_row row;
    row.token = index / p.num_heads;
    row.head = index % p.num_heads;
    row.lse = p.part_lse + row.token * p.part_lse_token_stride + row.head * p.part_lse_head_stride;
    row.unit = p.flags & SMLA_PART_LSE_BASE2 ? 1.0f : LOG2_E;
    row.largest = -infinity();
    for (int part = 0; part < p.num_parts; part++)
        row.largest = larger(row.largest, part_lse(p, row, part));
    return row;
}

// `lse` is the natural one, without the sink.
SMLA_FN void store_lse(const smla_merge_params &p, const merge_row &row, float lse, float sink)
{
    const bool empty = lse == -infinity();
    if (p.sink && (p.flags & SMLA_LSE_WITH_SINK)) {
        const float high = larger(lse, sink), low = smaller(lse, sink);
        if (sink != sink)
            lse = sink;
        else if (low == -infinity() || high == infinity())
            lse = high;
        else
            lse = high + LN_2 * log2_fast(1.0f + exp2_fast((low - high) * LOG2_E));
    } else if (empty && (p.flags & SMLA_LSE_EMPTY_POSINF)) {
        lse = infinity();
    }
    p.lse[row.token * p.lse_token_stride + row.head * p.lse_head_stride] =
        p.flags & SMLA_LSE_BASE2 ? lse * LOG2_E : lse;
}

// What the weighted sums are multiplied by. Also stores the lse.
SMLA_FN float finish_row(const smla_merge_params &p, const merge_row &row, int lane)
{
    const bool empty = row.largest == -infinity();
    const float sink = p.sink ? load_constant(p.sink + row.head) : -infinity();
    float sum = 0;
    for (int part = 0; part < p.num_parts; part++)
        sum += part_weight(p, row, part);
    float lse = -infinity();
    if (!empty)
        lse = p.flags & SMLA_PART_LSE_BASE2 ? (row.largest + log2_fast(sum)) * LN_2
                                            : row.largest + log2_fast(sum) * LN_2;
    if (p.lse && lane == 0)
        store_lse(p, row, lse, sink);
    const float left = p.sink ? 1.0f / (1.0f + exp2_fast((sink - lse) * LOG2_E)) : 1.0f;
    return empty ? 0.0f : left / sum;
}

SMLA_FN void merge_dims(const smla_merge_params &p, const merge_row &row, float factor, int first)
{
    const i64 from = row.token * p.part_out_token_stride + row.head * p.part_out_head_stride;
    const i64 to = row.token * p.out_token_stride + row.head * p.out_head_stride;
    float4_t sum[MERGE_UNITS] = {};
#pragma unroll 2
    for (int part = 0; part < p.num_parts; part++) {
        const float w = part_weight(p, row, part);
#pragma unroll
        for (int i = 0; i < MERGE_UNITS; i++) {
            const int dim = first + i * 128;
            if (w == 0.0f || dim >= p.value_dim)
                continue;
            const float4_t v = load_four(p.part_out, p.part_dtype, part * p.part_out_stride + from + dim);
            sum[i] = {sum[i].x + w * v.x, sum[i].y + w * v.y, sum[i].z + w * v.z, sum[i].w + w * v.w};
        }
    }
#pragma unroll
    for (int i = 0; i < MERGE_UNITS; i++) {
        const float4_t v = {sum[i].x * factor, sum[i].y * factor, sum[i].z * factor, sum[i].w * factor};
        if (first + i * 128 < p.value_dim)
            store_four(p.out, p.out_dtype, to + first + i * 128, v);
    }
}

SMLA_TOOL_KERNEL(SMLA_NAME, smla_merge_params, SMLA_MERGE_THREADS)
{
    const int warp = thread_index() / 32, lane = thread_index() % 32;
    for (i64 index = (i64)block_token() * MERGE_WARPS + warp; index < p.rows; index += (i64)p.blocks * MERGE_WARPS) {
        const merge_row row = start_row(p, index);
        const float factor = finish_row(p, row, lane);
        for (int first = 4 * lane; first < p.value_dim; first += 128 * MERGE_UNITS)
            merge_dims(p, row, factor, first);
    }
}
