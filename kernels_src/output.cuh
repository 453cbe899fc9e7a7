// SPDX-License-Identifier: Apache-2.0
// From a warp's unnormalised output to the caller's tensors, or to the partial result of a block that has a part of the
// keys. The key groups of a block add theirs through shared memory.

// Where results go: the caller's out, or this block's partial.
struct destination {
    u8 *first; // head 0 of the block
    i64 head_stride; // elements
    int dtype;
    int heads; // of the block that exist
};

SMLA_FN void store_pair(const destination &to, int head, int dim, float x, float y)
{
    const i64 element = head * to.head_stride + dim;
    if (head >= to.heads)
        return;
    if (to.dtype == SMLA_F32) {
        float *out = (float *)to.first + element;
        out[0] = x;
        out[1] = y;
    } else {
        *(u32 *)(to.first + 2 * element) = to.dtype == SMLA_BF16 ? pack_bf16(x, y) : pack_f16(x, y);
    }
}

SMLA_FN void store_four(const destination &to, int head, int dim, const float4_t &v)
{
    const i64 element = head * to.head_stride + dim;
    if (head >= to.heads)
        return;
    if (to.dtype == SMLA_F32)
        *(float4_t *)(to.first + 4 * element) = v;
    else if (to.dtype == SMLA_BF16)
        *(word_pair *)(to.first + 2 * element) = {pack_bf16(v.x, v.y), pack_bf16(v.z, v.w)};
    else
        *(word_pair *)(to.first + 2 * element) = {pack_f16(v.x, v.y), pack_f16(v.z, v.w)};
}

// One C fragment of the output, two neighbouring dims at a time. Flat rows have dims g and g + 8 in a lane: even and odd
// g trade one of them.
SMLA_FN void store_fragment(const destination &to, int first_head, int first_dim, const float4_t &c,
                            const warp_place &at)
{
    const int head = first_head + 2 * at.t;
    if (FP8) {
        store_pair(to, head, first_dim + 2 * at.g, c.x, c.z);
        store_pair(to, head + 1, first_dim + 2 * at.g, c.y, c.w);
    } else {
        const bool odd = at.g & 1;
        const float x = shuffle_xor(odd ? c.x : c.z, 4), y = shuffle_xor(odd ? c.y : c.w, 4);
        const int dim = first_dim + (odd ? 8 + at.g - 1 : at.g);
        store_pair(to, head, dim, odd ? x : c.x, odd ? c.z : x);
        store_pair(to, head + 1, dim, odd ? y : c.y, odd ? c.w : y);
    }
}

// ---- the caller's view of a row: sink, lse, empty rows

// What the sink leaves of the output; lse2 is in base 2, without the sink.
SMLA_FN float sink_factor(const smla_params &p, int head, float lse2)
{
    return p.sink ? reciprocal(1.0f + exp2_fast(load_constant(p.sink + head) * LOG2_E - lse2)) : 1.0f;
}

SMLA_FN void store_lse(const smla_params &p, const block_place &block, int head, float lse2)
{
    if (!p.lse)
        return;
    const bool empty = lse2 == -infinity();
    if (p.sink && (p.flags & SMLA_LSE_WITH_SINK)) {
        const float sink2 = load_constant(p.sink + head) * LOG2_E;
        const float high = larger(lse2, sink2), low = smaller(lse2, sink2);
        if (sink2 != sink2)
            lse2 = sink2;
        else if (empty || (low == -infinity() && lse2 == lse2))
            lse2 = high;
        else if (lse2 == lse2 && high < infinity())
            lse2 = high + log2_fast(1.0f + exp2_fast(low - high));
        else
            lse2 = lse2 == lse2 ? high : lse2;
    } else if (empty && (p.flags & SMLA_LSE_EMPTY_POSINF)) {
        lse2 = infinity();
    }
    const smla_strides &stride = p.lse_stride;
    p.lse[block.request * stride.request + block.position * stride.token + head * stride.head] =
        p.flags & SMLA_LSE_BASE2 ? lse2 : lse2 * LN_2;
}

SMLA_FN destination caller_output(const smla_params &p, const block_place &block)
{
    const smla_strides &stride = p.out_stride;
    const i64 element =
        block.request * stride.request + block.position * stride.token + block.first_head * stride.head;
    return {(u8 *)p.out + element * (p.out_dtype == SMLA_F32 ? 4 : 2), stride.head, p.out_dtype,
            p.num_heads - block.first_head};
}

// ---- parts

// Index of a part in the workspace, in units of HEADS heads.
SMLA_FN i64 part_index(const smla_params &p, int row, int split)
{
    return (i64)row * p.num_splits + split;
}

SMLA_FN destination partial_output(const smla_params &p, const block_place &block)
{
    return {(u8 *)(p.partials + part_index(p, block.row, block.split) * (HEADS * LATENT)), LATENT, SMLA_F32,
            p.num_heads - block.first_head};
}

// ---- heads: softmax sums of the block's key groups, and what multiplies each output

struct head_total {
    float reference, sum; // then: reference of the block, factor of the output
};

SMLA_FN head_total *totals_of(int warp)
{
    return (head_total *)(shared_buffer() + STATS_AT) + warp * GROUP_HEADS;
}

SMLA_FN float *part_lse()
{
    return (float *)(shared_buffer() + PART_LSE_AT);
}

SMLA_FN float sum_of_tile(float own)
{
    for (int mask = 4; mask < 32; mask *= 2)
        own += shuffle_xor(own, mask);
    return own;
}

// One thread per head and half: totals over the key groups, left in place of the first group's. Stores the lse of the
// row, or of this part.
SMLA_FN void finish_head(const smla_params &p, const block_place &block, int rank, int head_of_group)
{
    head_total *first = totals_of(rank) + head_of_group;
    constexpr int STEP = RING_WARPS * GROUP_HEADS;
    float reference = LOWEST, sum = 0;
    for (int group = 0; group < KEY_GROUPS; group++)
        reference = larger(reference, first[group * STEP].reference);
    for (int group = 0; group < KEY_GROUPS; group++)
        sum += first[group * STEP].sum * exp2_fast(first[group * STEP].reference - reference);
    const int in_block = rank / DIM_SPLIT * GROUP_HEADS + head_of_group, head = block.first_head + in_block;
    if (head >= p.num_heads)
        return;
    const float lse2 = sum == 0.0f ? -infinity() : reference + log2_fast(sum);
    float factor = sum == 0.0f ? 0.0f : reciprocal(sum) * p.value_scale;
    if (sum != 0.0f && p.num_splits == 1)
        factor *= sink_factor(p, head, lse2);
    *first = {reference, factor};
    if (rank % DIM_SPLIT != 0)
        return;
    if (p.num_splits == 1)
        store_lse(p, block, head, lse2);
    else if (p.clustered)
        part_lse()[in_block] = lse2;
    else
        p.partial_lse[part_index(p, block.row, block.split) * HEADS + in_block] = lse2;
}

// Every warp of the block takes part.
SMLA_FN void finish_heads(const smla_params &p, const block_place &block, int warp, const warp_place &at)
{
#pragma unroll
    for (int n = 0; n < N_TILES; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const int head = 8 * n + 2 * at.t + c;
            const float sum = sum_of_tile(at.sum[2 * n + c]);
            if (at.g == 0)
                totals_of(warp)[head] = {at.reference[head], sum};
        }
    sync_block();
    if (thread_index() < RING_WARPS * GROUP_HEADS)
        finish_head(p, block, thread_index() / GROUP_HEADS, thread_index() % GROUP_HEADS);
    sync_block();
}

// Brings the output to its final size: to the block's reference, value factors taken out, divided by the sum.
SMLA_FN void scale_output(output_fragments &out, int warp, const warp_place &at)
{
#pragma unroll
    for (int n = 0; n < N_TILES; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const int head = 8 * n + 2 * at.t + c;
            const head_total total = totals_of(warp % RING_WARPS)[head];
            const float scale = exp2_fast(at.reference[head] - total.reference) * total.sum;
            float by[WARP_SCALE_GROUPS];
            for (int b = 0; b < WARP_SCALE_GROUPS; b++)
                by[b] = FP8 ? inverse_power_of_two(at.value_factor[head * WARP_SCALE_GROUPS + b]) * scale
                            : scale;
#pragma unroll
            for (int i = 0; i < WARP_VALUE_TILES; i++) {
                out.of[i][n][c] *= by[i * 16 / SCALE_GROUP_DIMS];
                out.of[i][n][2 + c] *= by[i * 16 / SCALE_GROUP_DIMS];
            }
        }
}

// ---- output

// Outputs pass through the ring's bytes: every warp puts a round of its fragments there, and then each takes some units
// (a fragment of a place in the key group) from all key groups, in order.
constexpr int UNITS = RING_WARPS * ROUND_FRAGMENTS;

SMLA_FN float4_t *staged_unit(int unit, int lane)
{
    return (float4_t *)(shared_buffer() + RING_AT) + unit * 32 + lane;
}

template <int ROUND> SMLA_FN void stage_output(const output_fragments &out, int warp, const warp_place &at)
{
    sync_block();
#pragma unroll
    for (int i = 0; i < ROUND_FRAGMENTS; i++) {
        const int fragment = ROUND * ROUND_FRAGMENTS + i;
        const float(&c)[4] = out.of[fragment / N_TILES][fragment % N_TILES];
        *staged_unit(warp * ROUND_FRAGMENTS + i, at.lane) = float4_t{c[0], c[1], c[2], c[3]};
    }
    sync_block();
}

SMLA_FN float4_t sum_of_unit(int unit, int lane)
{
    float4_t sum = *staged_unit(unit, lane);
#pragma unroll
    for (int group = 1; group < KEY_GROUPS; group++) {
        const float4_t part = *staged_unit(group * UNITS + unit, lane);
        sum = float4_t{sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w};
    }
    return sum;
}

SMLA_FN int head_of_unit(int unit, int round)
{
    const int fragment = round * ROUND_FRAGMENTS + unit % ROUND_FRAGMENTS;
    return unit / ROUND_FRAGMENTS / DIM_SPLIT * GROUP_HEADS + fragment % N_TILES * 8;
}

SMLA_FN void store_unit(const destination &to, int unit, int round, const float4_t &value, const warp_place &at)
{
    const int rank = unit / ROUND_FRAGMENTS, fragment = round * ROUND_FRAGMENTS + unit % ROUND_FRAGMENTS;
    const int dim = rank % DIM_SPLIT * (LATENT / DIM_SPLIT) + fragment / N_TILES * 16;
    store_fragment(to, head_of_unit(unit, round), dim, value, at);
}

template <int ROUND>
SMLA_FN void store_rounds(const output_fragments &out, const destination &to, int warp, const warp_place &at)
{
    if constexpr (ROUND < OUT_ROUNDS) {
        stage_output<ROUND>(out, warp, at);
#pragma unroll 1
        for (int unit = warp; unit < UNITS; unit += WARPS)
            store_unit(to, unit, ROUND, sum_of_unit(unit, at.lane), at);
        store_rounds<ROUND + 1>(out, to, warp, at);
    }
}
