// SPDX-License-Identifier: Apache-2.0
// The parts of a token (splits) become one row: in a cluster, through shared memory, every block finishes its share;
// otherwise through the workspace, where the last block to arrive merges all of them, in the order of the parts.

// ---- merge of the parts of a row in a cluster: every block finishes its share of the units

#if SMLA_BULK
// [head][part], with the sink in it; the first block stores the lse. Every block computes all of them.
SMLA_FN void weigh_cluster(const smla_params &p, const block_place &block, float *weight)
{
    const int head = thread_index();
    if (head >= HEADS)
        return;
    if (block.first_head + head >= p.num_heads) { // read beside its neighbours, for nobody
        for (int part = 0; part < p.num_splits; part++)
            weight[head * MAX_CLUSTER + part] = 0;
        return;
    }
    float own[MAX_CLUSTER], largest = LOWEST, sum = 0;
#pragma unroll
    for (int part = 0; part < MAX_CLUSTER; part++) {
        own[part] = part < p.num_splits ? load_cluster(cluster_address(part_lse() + head, part)) : -infinity();
        largest = larger(largest, own[part]);
    }
#pragma unroll
    for (int part = 0; part < MAX_CLUSTER; part++)
        sum += own[part] = exp2_fast(own[part] - largest);
    const float lse2 = sum == 0.0f ? -infinity() : largest + log2_fast(sum);
    const float factor = sum == 0.0f ? 0.0f : sink_factor(p, block.first_head + head, lse2) * reciprocal(sum);
#pragma unroll
    for (int part = 0; part < MAX_CLUSTER; part++)
        weight[head * MAX_CLUSTER + part] = own[part] * factor;
    if (block.split == 0)
        store_lse(p, block, block.first_head + head, lse2);
}

SMLA_FN float4_t merge_unit(const smla_params &p, const float *weight, int unit, int round, const warp_place &at)
{
    const float *own = weight + (head_of_unit(unit, round) + 2 * at.t) * MAX_CLUSTER, *next = own + MAX_CLUSTER;
    float4_t sum = {0, 0, 0, 0};
#pragma unroll
    for (int part = 0; part < MAX_CLUSTER; part++) {
        if (part >= p.num_splits)
            continue;
        const float4_t v = load_cluster_16(cluster_address(staged_unit(unit, at.lane), part));
        sum = float4_t{sum.x + own[part] * v.x, sum.y + next[part] * v.y, sum.z + own[part] * v.z,
                       sum.w + next[part] * v.w};
    }
    return sum;
}

template <int ROUND>
SMLA_FN void merge_rounds(const output_fragments &out, const smla_params &p, const block_place &block, int warp,
                          const warp_place &at)
{
    if constexpr (ROUND < OUT_ROUNDS) {
        float *weight = (float *)(shared_buffer() + WEIGHTS_AT);
        stage_output<ROUND>(out, warp, at);
#pragma unroll 1
        for (int unit = warp; KEY_GROUPS > 1 && unit < UNITS; unit += WARPS)
            *staged_unit(unit, at.lane) = sum_of_unit(unit, at.lane);
        sync_cluster();
        if (ROUND == 0) {
            weigh_cluster(p, block, weight);
            sync_block();
        }
        const destination to = caller_output(p, block);
#pragma unroll 1
        for (int unit = warp * p.num_splits + block.split; unit < UNITS; unit += WARPS * p.num_splits)
            if (head_of_unit(unit, ROUND) < to.heads)
                store_unit(to, unit, ROUND, merge_unit(p, weight, unit, ROUND, at), at);
        // Nobody overwrites what another still reads, or leaves before it is read: what was read has been stored, so
        // the last time needs no ordering of memory.
        if (ROUND + 1 < OUT_ROUNDS)
            sync_cluster();
        else
            sync_cluster_readers();
        merge_rounds<ROUND + 1>(out, p, block, warp, at);
    }
}
#endif

// ---- merge of the parts of a row through the workspace

// One lane's part of a head, or several in turn where the width is not bounded.
constexpr int MAX_PARTS = TOPK_MAX ? 32 : 1 << 20;

// The lse of every part becomes its weight, [head][split], with the sink in it; stores the lse of the row.
SMLA_FN void weigh_parts(const smla_params &p, float *weight, const block_place &block, int warp, int lane)
{
    const int parts = p.num_splits < MAX_PARTS ? p.num_splits : MAX_PARTS;
    for (int head = warp; head < HEADS && block.first_head + head < p.num_heads; head += WARPS) {
        float *own = weight + head * parts;
        float largest = LOWEST, sum = 0;
        for (int split = lane; split < parts; split += 32)
            largest = larger(largest, own[split]);
        for (int mask = 1; mask < 32; mask *= 2)
            largest = larger(largest, shuffle_xor(largest, mask));
        for (int split = lane; split < parts; split += 32)
            sum += own[split] = exp2_fast(own[split] - largest);
        for (int mask = 1; mask < 32; mask *= 2)
            sum += shuffle_xor(sum, mask);
        const float lse2 = sum == 0.0f ? -infinity() : largest + log2_fast(sum);
        const float factor = sum == 0.0f ? 0.0f : sink_factor(p, block.first_head + head, lse2) / sum;
        for (int split = lane; split < parts; split += 32)
            own[split] *= factor;
        if (lane == 0)
            store_lse(p, block, block.first_head + head, lse2);
    }
}

// Sums MERGE_UNITS groups of 4 dims at a time, so that as many loads are under way. A part of weight 0 is not read.
constexpr int MERGE_UNITS = 8;
constexpr int HEAD_UNITS = LATENT / 4;

SMLA_FN void merge_units(const smla_params &p, const float *weight, const float *parts, int first,
                         const destination &to)
{
    float4_t sum[MERGE_UNITS] = {};
#pragma unroll 2
    for (int split = 0; split < p.num_splits; split++) {
#pragma unroll
        for (int i = 0; i < MERGE_UNITS; i++) {
            const int unit = first + i * THREADS, head = unit / HEAD_UNITS;
            const float w = head < to.heads && head < HEADS ? weight[head * p.num_splits + split] : 0.0f;
            const float *from = parts + (i64)split * (HEADS * LATENT) + unit * 4;
            const float4_t part = w != 0.0f ? load_partial(from) : float4_t{0, 0, 0, 0};
            sum[i] = float4_t{sum[i].x + w * part.x, sum[i].y + w * part.y, sum[i].z + w * part.z,
                              sum[i].w + w * part.w};
        }
    }
#pragma unroll
    for (int i = 0; i < MERGE_UNITS; i++) {
        const int unit = first + i * THREADS, head = unit / HEAD_UNITS, dim = unit % HEAD_UNITS * 4;
        if (head < HEADS)
            store_four(to, head, dim, sum[i]);
    }
}

// By the last block of a row: the sum of its parts, in the order of the parts.
SMLA_FN void merge_parts(const smla_params &p, const block_place &block, int warp, int lane)
{
    float *weight = (float *)(shared_buffer() + RING_AT);
    const float *lse = p.partial_lse + part_index(p, block.row, 0) * HEADS;
    for (int i = thread_index(); i < HEADS * p.num_splits; i += THREADS)
        if (block.first_head + i % HEADS < p.num_heads)
            weight[i % HEADS * p.num_splits + i / HEADS] = load_partial_1(lse + i);
    sync_block();
    weigh_parts(p, weight, block, warp, lane);
    sync_block();
    const destination to = caller_output(p, block);
    const float *parts = p.partials + part_index(p, block.row, 0) * (HEADS * LATENT);
    for (int first = thread_index(); first < HEADS * HEAD_UNITS; first += THREADS * MERGE_UNITS)
        merge_units(p, weight, parts, first, to);
}

// Stores this block's part and, in the last block of the row to do so, the merged row.
SMLA_FN void finish_part(const smla_params &p, const block_place &block, int warp, int lane)
{
    u32 *is_last = (u32 *)(shared_buffer() + FLAG_AT);
    sync_block();
    if (thread_index() == 0)
        *is_last = arrive_at_counter(p.counters + block.row) == (u32)p.num_splits - 1;
    sync_block();
    if (!*is_last)
        return;
    merge_parts(p, block, warp, lane);
    if (thread_index() == 0)
        p.counters[block.row] = 0;
}
