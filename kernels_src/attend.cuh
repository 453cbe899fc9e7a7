// SPDX-License-Identifier: Apache-2.0
// One tile of 16 keys: scores, softmax weights, output.
//
// Scores are in base 2: s = softmax scale * log2(e) * (q . k). The softmax keeps, per head, a reference m and the sum of
// p = 2^(s - m). m is not the maximum but only moved when something outgrows its format, so most tiles rescale nothing.
//
// f16 operands are kept in range by powers of two. Queries: one per head and scale group, undone in the score. Weights
// of fp8 rows carry the key's value scale: x = p * scale * f, with f per head and scale group, undone at the end. After
// a rescale the largest x (and p) is 2^-4; it may grow to 2 before the next one, and what is 2^-20 of it still counts.

// The rope part and the low terms lie in shared memory: registers are short.
struct query_fragments {
    u32 latent[WARP_SCALE_GROUPS][GROUP_STEPS][N_TILES][2];
};

// Output of a warp, unnormalised: C fragments. Index [n][c] elsewhere: head 8 * n + 2 * t + c of its head group.
struct output_fragments {
    float of[WARP_VALUE_TILES][N_TILES][4];
};

constexpr int ROPE_LOW = RING_WARPS * ROPE_STEPS * N_TILES * 32; // from a high term of the rope to its low one

// Where a warp works: constant over its life.
struct warp_place {
    int lane, g, t;
    int half;          // which part of the dims
    u64 *pair_barrier; // of the two warps of a head group: both have stored their scores
    float *query_factor; // [head of group][scale group]
    float *rope_factor;  // [head of group][half]
    word_pair *rope_query;     // of this lane, [term][rope step][n], 32 apart
    word_pair *query_low;      // of this lane, low terms of the latent, [step][n], 32 apart
    float *value_factor;       // [head of group][scale group of warp]
    float *reference;          // [head of group]
    float *sum;                // of p over this lane's keys, [n][c]
    float *exchange, *exchange_other;
};

// Key scales of rows g and g + 8.
struct key_scales {
    float of[2][WARP_SCALE_GROUPS];
};

SMLA_FN key_scales load_key_scales(const u8 *tile, const warp_place &at)
{
    key_scales scale;
    for (int r = 0; r < 2; r++) {
        const float *from =
            (const float *)(tile + (at.g + 8 * r) * ROW_BYTES + SCALE_OFFSET) + at.half * WARP_SCALE_GROUPS;
        for (int b = 0; b < WARP_SCALE_GROUPS; b++)
            scale.of[r][b] = FP8 ? from[b] : 1.0f;
    }
    return scale;
}

// A fragments of 32 fp8 dims from the words of one ldmatrix: two k-steps of a product with rows on M.
SMLA_FN void widen_rows(u32 (&a)[2][4], const u32 (&word)[4])
{
    for (int step = 0; step < 2; step++) {
        a[step][0] = e4m3_low_to_f16x2(word[2 * step]);
        a[step][1] = e4m3_low_to_f16x2(word[2 * step + 1]);
        a[step][2] = e4m3_high_to_f16x2(word[2 * step]);
        a[step][3] = e4m3_high_to_f16x2(word[2 * step + 1]);
    }
}

// The same from transposed words: two output tiles of 16 dims each.
SMLA_FN void widen_columns(u32 (&a)[2][4], const u32 (&word)[4])
{
    for (int tile = 0; tile < 2; tile++)
        for (int keys = 0; keys < 2; keys++) {
            const u32 paired = permute_bytes(word[2 * tile + keys], 0, 0x3120);
            a[tile][2 * keys] = e4m3_low_to_f16x2(paired);
            a[tile][2 * keys + 1] = e4m3_high_to_f16x2(paired);
        }
}

SMLA_FN void mma_latent(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2])
{
    if (BF16)
        mma_bf16(c, a, b);
    else
        mma_f16(c, a, b);
}

SMLA_FN void mma_rope(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2])
{
    if (F16)
        mma_f16(c, a, b);
    else
        mma_bf16(c, a, b);
}

// One k-step of the latent dims.
SMLA_FN void latent_step(float (&c)[N_TILES][4], const u32 (&a)[4], const query_fragments &q, int b, int k,
                         const warp_place &at)
{
#pragma unroll
    for (int n = 0; n < N_TILES; n++) {
        mma_latent(c[n], a, q.latent[b][k][n]);
        if (LATENT_TERMS == 2) {
            const word_pair low = at.query_low[((b * GROUP_STEPS + k) * N_TILES + n) * 32];
            mma_latent(c[n], a, {low.x, low.y});
        }
    }
}

// Partial sums of the latent dims, one accumulator per scale group.
SMLA_FN void latent_products(float (&c)[WARP_SCALE_GROUPS][N_TILES][4], const query_fragments &q, u32 rows,
                             const warp_place &at)
{
    if (FP8) {
#pragma unroll
        for (int k = 0; k < GROUP_STEPS; k += 2)
#pragma unroll
            for (int b = 0; b < WARP_SCALE_GROUPS; b++) {
                u32 word[4], a[2][4];
                ldmatrix_x4(word, rows + b * SCALE_GROUP_DIMS + k * 16);
                widen_rows(a, word);
#pragma unroll
                for (int step = 0; step < 2; step++)
                    latent_step(c[b], a[step], q, b, k + step, at);
            }
    } else {
#pragma unroll
        for (int k = 0; k < GROUP_STEPS; k++)
#pragma unroll
            for (int b = 0; b < WARP_SCALE_GROUPS; b++) {
                u32 a[4];
                ldmatrix_x4(a, rows + (b * SCALE_GROUP_DIMS + k * 16) * 2);
                latent_step(c[b], a, q, b, k, at);
            }
    }
}

// The products, with the scales of keys and queries, into the scores.
SMLA_FN void add_products(float (&s)[N_TILES][4], const float (&product)[WARP_SCALE_GROUPS][N_TILES][4],
                          const key_scales &scale, const warp_place &at, float scale_log2)
{
#pragma unroll
    for (int n = 0; n < N_TILES; n++)
#pragma unroll
        for (int c = 0; c < 2; c++)
#pragma unroll
            for (int b = 0; b < WARP_SCALE_GROUPS; b++) {
                const int head = 8 * n + 2 * at.t + c;
                const float f =
                    BF16 ? scale_log2 : at.query_factor[head * SCALE_GROUPS + at.half * WARP_SCALE_GROUPS + b];
                s[n][c] += product[b][n][c] * (FP8 ? scale.of[0][b] * f : f);
                s[n][2 + c] += product[b][n][2 + c] * (FP8 ? scale.of[1][b] * f : f);
            }
}

SMLA_FN void rope_scores(float (&s)[N_TILES][4], u32 lane_row, const warp_place &at, float scale_log2)
{
    for (int n = 0; n < N_TILES; n++)
        for (int z = 0; z < 4; z++)
            s[n][z] = 0;
#pragma unroll
    for (int k = 0; k < ROPE_STEPS; k++) {
        u32 a[4];
        ldmatrix_x4(a, lane_row + ROPE_OFFSET + (at.half * ROPE_STEPS + k) * 32);
#pragma unroll
        for (int n = 0; n < N_TILES; n++) {
            const word_pair b = at.rope_query[(k * N_TILES + n) * 32];
            mma_rope(s[n], a, {b.x, b.y});
            if (ROPE_TERMS == 2) {
                const word_pair low = at.rope_query[ROPE_LOW + (k * N_TILES + n) * 32];
                mma_rope(s[n], a, {low.x, low.y});
            }
        }
    }
#pragma unroll
    for (int n = 0; ROPE && n < N_TILES; n++)
#pragma unroll
        for (int z = 0; z < 4; z++)
            s[n][z] *= F16 ? at.rope_factor[(8 * n + 2 * at.t + z % 2) * DIM_SPLIT + at.half] : scale_log2;
}

// s[n]: C fragments of this warp's dims, in base 2, not yet masked. Returns the key scales of the tile.
SMLA_FN key_scales partial_scores(float (&s)[N_TILES][4], const query_fragments &q, const u8 *tile,
                                  const warp_place &at, float scale_log2)
{
    const u32 lane_row = shared_address(tile) + (at.lane & 15) * ROW_BYTES + (at.lane >> 4) * 16;
    float product[WARP_SCALE_GROUPS][N_TILES][4] = {};
    rope_scores(s, lane_row, at, scale_log2);
    latent_products(product, q, lane_row + at.half * (LATENT / DIM_SPLIT) * ELEMENT_BYTES, at);
    const key_scales scale = load_key_scales(tile, at); // not before: registers are short
    add_products(s, product, scale, at, scale_log2);
    return scale;
}

// Adds the other warp's part of the dims. `parity` alternates from call to call, from 0: a buffer is written again only
// after the barrier that follows its reading.
SMLA_FN void exchange_scores(float (&s)[N_TILES][4], const warp_place &at, int parity)
{
    float4_t *mine = (float4_t *)(at.exchange + parity * EXCHANGE_FLOATS) + at.lane;
    const float4_t *theirs = (const float4_t *)(at.exchange_other + parity * EXCHANGE_FLOATS) + at.lane;
#pragma unroll
    for (int n = 0; n < N_TILES; n++)
        mine[32 * n] = float4_t{s[n][0], s[n][1], s[n][2], s[n][3]};
    mbarrier_arrive(at.pair_barrier);
    mbarrier_wait(at.pair_barrier, parity);
#pragma unroll
    for (int n = 0; n < N_TILES; n++) {
        const float4_t other = theirs[32 * n];
        s[n][0] += other.x;
        s[n][1] += other.y;
        s[n][2] += other.z;
        s[n][3] += other.w;
    }
}

SMLA_FN void mask_scores(float (&s)[N_TILES][4], u32 valid, const warp_place &at)
{
    const bool first = valid >> at.g & 1, second = valid >> (at.g + 8) & 1;
#pragma unroll
    for (int n = 0; n < N_TILES; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            s[n][c] = first ? s[n][c] : -infinity();
            s[n][2 + c] = second ? s[n][2 + c] : -infinity();
        }
}

// Packed weights [set][n][row g, row g + 8], heads 2t and 2t + 1 in a word. Sets: one per scale group for fp8; high and
// low part for bf16, whose 8 bits alone would double the error of the result; one for f16.
constexpr int WEIGHT_SETS = FP8 ? WARP_SCALE_GROUPS : BF16 ? 2 : 1;
struct weights {
    u32 word[WEIGHT_SETS][N_TILES][2];
    float p[N_TILES][4];
};

// Returns non-zero when a weight reached 2, the sign to rescale: bit 14 of an f16 or bf16, bit 30 of a float. The value
// factor is large where weights or scales were small; AFTER_RESCALE a p of zero must not meet its product with a large
// scale, which may be infinite. Before, that only looks like a weight that is too large.
template <bool AFTER_RESCALE>
SMLA_FN u32 make_weights(weights &w, const float (&s)[N_TILES][4], const key_scales &scale, const warp_place &at)
{
    u32 packed = 0, plain = 0;
#pragma unroll
    for (int n = 0; n < N_TILES; n++) {
        float(&p)[4] = w.p[n];
#pragma unroll
        for (int z = 0; z < 4; z++) {
            p[z] = exp2_fast(s[n][z] - at.reference[8 * n + 2 * at.t + (z & 1)]);
            plain |= as_bits(p[z]);
        }
#pragma unroll
        for (int set = 0; set < WEIGHT_SETS; set++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float x = p[2 * r], y = p[2 * r + 1];
                u32 &word = w.word[set][n][r];
                if (FP8) {
                    const float *f = at.value_factor + (8 * n + 2 * at.t) * WARP_SCALE_GROUPS + set;
                    if (AFTER_RESCALE)
                        word = pack_f16(x * scale.of[r][set] * f[0], y * scale.of[r][set] * f[WARP_SCALE_GROUPS]);
                    else
                        word =
                            pack_f16(x * (scale.of[r][set] * f[0]), y * (scale.of[r][set] * f[WARP_SCALE_GROUPS]));
                } else if (F16) {
                    word = pack_f16(x, y);
                } else if (set == 0) {
                    word = pack_bf16(x, y);
                } else {
                    const u32 high = w.word[0][n][r];
                    word = pack_bf16(x - bf16_low(high), y - bf16_high(high));
                }
                packed |= word;
            }
    }
    return (packed & 0x40004000u) | (plain & 0x40000000u);
}

SMLA_FN float largest_of_tile(float own)
{
    for (int mask = 4; mask < 32; mask *= 2)
        own = larger(own, shuffle_xor(own, mask));
    return own;
}

// Moves the references so that the largest weight of this tile becomes 2^-4 and nothing held outgrows that.
SMLA_FN void rescale(output_fragments &out, const float (&s)[N_TILES][4], const key_scales &scale,
                     const warp_place &at)
{
#pragma unroll
    for (int n = 0; n < N_TILES; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float &reference = at.reference[8 * n + 2 * at.t + c];
            const float before = reference;
            const float after = larger(before, largest_of_tile(larger(s[n][c], s[n][2 + c])) + 4.0f);
            const float shrink = exp2_fast(before - after);
            sync_warp(); // every lane of this head has read it
            reference = after;
            at.sum[2 * n + c] *= shrink;
            float change[WARP_SCALE_GROUPS];
            float *factor = at.value_factor + (8 * n + 2 * at.t + c) * WARP_SCALE_GROUPS;
#pragma unroll
            for (int b = 0; b < WARP_SCALE_GROUPS; b++) {
                change[b] = shrink;
                if (FP8) {
                    const float p0 = exp2_fast(s[n][c] - after), p1 = exp2_fast(s[n][2 + c] - after);
                    const float x0 = p0 * scale.of[0][b], x1 = p1 * scale.of[1][b];
                    const float largest = largest_of_tile(larger(larger(x0, -x0), larger(x1, -x1)));
                    const float old = factor[b];
                    const float kept = power_of_two_below(old * exp2_fast(after - before));
                    const float now = smaller(power_of_two_to_sixteenth(largest), kept);
                    sync_warp(); // likewise
                    factor[b] = now;
                    change[b] = shrink * (now * inverse_power_of_two(old));
                }
            }
#pragma unroll
            for (int i = 0; i < WARP_VALUE_TILES; i++) {
                const float by = change[FP8 ? i * 16 / SCALE_GROUP_DIMS : 0];
                out.of[i][n][c] *= by;
                out.of[i][n][2 + c] *= by;
            }
        }
    sync_warp();
}

// out += V^T . weights
SMLA_FN void add_values(output_fragments &out, const weights &w, const u8 *tile, const warp_place &at)
{
    u32 b[WEIGHT_SETS][N_TILES][2];
#pragma unroll
    for (int set = 0; set < WEIGHT_SETS; set++)
#pragma unroll
        for (int n = 0; n < N_TILES; n++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                b[set][n][r] = transpose_8x8(w.word[set][n][r]);

    const u32 rows = shared_address(tile) + (at.lane & 15) * ROW_BYTES + (at.lane >> 4) * 16 +
                     at.half * (LATENT / DIM_SPLIT) * ELEMENT_BYTES;
    if (FP8) {
#pragma unroll
        for (int i = 0; i < WARP_VALUE_TILES; i += 2) {
            u32 word[4], a[2][4];
            ldmatrix_x4_trans(word, rows + i * 16);
            widen_columns(a, word);
            const int set = i * 16 / SCALE_GROUP_DIMS % WEIGHT_SETS;
#pragma unroll
            for (int n = 0; n < N_TILES; n++) {
                mma_f16(out.of[i][n], a[0], b[set][n]);
                mma_f16(out.of[i + 1][n], a[1], b[set][n]);
            }
        }
    } else {
#pragma unroll
        for (int i = 0; i < WARP_VALUE_TILES; i++) {
            u32 word[4];
            ldmatrix_x4_trans(word, rows + i * 32);
            const u32 a[4] = {word[0], word[2], word[1], word[3]};
#pragma unroll
            for (int n = 0; n < N_TILES; n++)
#pragma unroll
                for (int set = 0; set < WEIGHT_SETS; set++)
                    mma_latent(out.of[i][n], a, b[set][n]);
        }
    }
}

SMLA_FN void attend_tile(output_fragments &out, const query_fragments &q, const u8 *tile, u32 valid, int parity,
                         const warp_place &at, float scale_log2)
{
    float s[N_TILES][4];
    const key_scales scale = partial_scores(s, q, tile, at, scale_log2);
    if (DIM_SPLIT == 2)
        exchange_scores(s, at, parity);
    mask_scores(s, valid, at);
    weights w;
    if (any_lane(make_weights<false>(w, s, scale, at) != 0)) {
        rescale(out, s, scale, at);
        make_weights<true>(w, s, scale, at);
    }
#pragma unroll
    for (int n = 0; n < N_TILES; n++)
#pragma unroll
        for (int c = 0; c < 2; c++)
            at.sum[2 * n + c] += w.p[n][c] + w.p[n][2 + c];
    add_values(out, w, tile, at);
}
