// SPDX-License-Identifier: Apache-2.0
// What is compiled in, and where everything lies.
//
// A block serves HEADS heads of one token over one part of its keys. Its warps form KEY_GROUPS key groups; each walks its
// own stream of tiles of 16 keys through a ring of STAGES shared-memory stages. Within a key group, HEAD_GROUPS head
// groups of DIM_SPLIT warps each: the warps of a head group share N_TILES * 8 heads and split the dims of every row, for
// the scores (partial sums, exchanged) and for the output (each owns its value dims).
//
// Keys are the rows (M) and heads the columns (N) of every product. With lane = 4 * g + t, an m16n8k16 fragment is
//
//     A: a[0] = (row g,   k 2t..2t+1)   a[2] = (row g,   k 2t+8..2t+9)      C: c[0] = (row g,   column 2t)
//        a[1] = (row g+8, k 2t..2t+1)   a[3] = (row g+8, k 2t+8..2t+9)         c[1] = (row g,   column 2t+1)
//     B: b[0] = (k 2t..2t+1, column g)  b[1] = (k 2t+8..2t+9, column g)        c[2], c[3]: the same of row g+8
//
//     S^T [16 keys x heads]  = K [16 keys x dims] . Q^T            A: ldmatrix of rows as they lie
//     O^T [dims x heads]    += V^T [dims x 16 keys] . P^T          A: ldmatrix.trans of the same rows; B: C of S^T,
//                                                                     transposed in registers
//
// e4m3 rows: a 32-bit word of ldmatrix holds 4 neighbouring dims 4t..4t+3. They become k 2t, 2t+1, 2t+8, 2t+9, and Q is
// stored in that order, so no lane exchanges anything. Transposed, a word holds dims 2g, 2g+1 of two keys; dim 2g goes
// to output row g and 2g+1 to row g+8.

// Records, by value of sparse_mla_format.
constexpr bool FP8 = SMLA_FORMAT == 0;
constexpr bool E4M3 = SMLA_FORMAT == 4; // exact in f16
constexpr bool V4 = SMLA_FORMAT == 5;   // exact in bf16
constexpr bool Q8 = SMLA_FORMAT == 6;   // rounded to f16
constexpr bool BF16 = SMLA_FORMAT == 2 || V4;
constexpr bool F16 = SMLA_FORMAT == 3 || E4M3 || Q8; // not the rope of FP8, which is bf16

// "Latent" are the dims that are key and value. V4's rope is both.
constexpr int LATENT = V4 ? SMLA_LATENT + SMLA_ROPE : SMLA_LATENT;
constexpr int ROPE = V4 ? 0 : SMLA_ROPE;
constexpr int CACHES = SMLA_CACHES; // 2: main and extra

// Queries. Where an MMA operand would round one, it gets a second, low term.
constexpr bool QUERY_F16 = SMLA_QUERY == SMLA_F16;
constexpr bool QUERY_F32 = SMLA_QUERY == SMLA_F32;
constexpr int LATENT_TERMS = QUERY_F32 || (QUERY_F16 && BF16) ? 2 : 1;
constexpr int ROPE_TERMS = QUERY_F32 || (QUERY_F16 && !F16) ? 2 : 1;

constexpr int HEAD_GROUPS = SMLA_HEAD_GROUPS;
constexpr int DIM_SPLIT = SMLA_DIM_SPLIT;
constexpr int KEY_GROUPS = SMLA_KEY_GROUPS;
constexpr int STAGES = SMLA_STAGES;
constexpr int TOPK_MAX = SMLA_TOPK_MAX; // 0: any

// Products read rows of e4m3 (FP8, converted at each use) or of 16-bit elements. What comes in as neither is WIDENED in
// place, once, by the warps that share a ring. FP8 is not: its rows would take twice the shared memory and bandwidth,
// which costs more than the conversions (64 heads: 1.24 times the time on an H200).
constexpr bool WIDENED = E4M3 || V4 || Q8;

constexpr int TILE = 16; // keys
constexpr int N_TILES = DIM_SPLIT;
constexpr int GROUP_HEADS = 8 * N_TILES;
constexpr int HEADS = HEAD_GROUPS * GROUP_HEADS;
constexpr int RING_WARPS = HEAD_GROUPS * DIM_SPLIT;
constexpr int WARPS = KEY_GROUPS * RING_WARPS;
constexpr int THREADS = 32 * WARPS;

// The latent dims are handled in 4 scale groups, each with its own key scale (fp8), query exponent and accumulator.
constexpr int SCALE_GROUPS = 4;
constexpr int WARP_SCALE_GROUPS = SCALE_GROUPS / DIM_SPLIT;
constexpr int SCALE_GROUP_DIMS = LATENT / SCALE_GROUPS;
constexpr int GROUP_STEPS = SCALE_GROUP_DIMS / 16; // of k = 16
constexpr int ROPE_STEPS = ROPE / DIM_SPLIT / 16;
constexpr int WARP_VALUE_TILES = LATENT / DIM_SPLIT / 16; // of 16 dims

// A row in shared memory: latent, scales (fp8), rope. An odd number of 16-byte units keeps ldmatrix free of conflicts.
constexpr int ELEMENT_BYTES = FP8 ? 1 : 2;
constexpr int SCALE_OFFSET = LATENT * ELEMENT_BYTES;
constexpr int ROPE_OFFSET = SCALE_OFFSET + (FP8 ? 4 * SCALE_GROUPS : 0);
constexpr int ROW_READ = ROPE_OFFSET + 2 * ROPE;
constexpr int ROW_UNITS = ROW_READ / 16;
constexpr int ROW_BYTES = (ROW_UNITS | 1) * 16;
constexpr int TILE_BYTES = TILE * ROW_BYTES;

// What is copied of a record ends where its row does, so that what is not widened (the rope of V4) lies where it belongs.
// The scales of V4 lie behind the row.
constexpr int RAW_BYTES = Q8 ? (LATENT + ROPE) / 32 * 34 : E4M3 ? LATENT + ROPE : V4 ? SMLA_LATENT + 2 * SMLA_ROPE
                                                                          : ROW_READ;
constexpr int RAW_AT = ROW_READ - RAW_BYTES;
constexpr int RAW_ROPE_AT = Q8 ? LATENT / 32 * 34 : E4M3 ? LATENT : ROPE_OFFSET; // from RAW_AT
constexpr bool FLAT = !FP8 && !V4;                                               // latent and rope at any offset
constexpr int WIDENED_UNITS = (V4 ? SMLA_LATENT : LATENT + ROPE) / 8; // of 8 dims
static_assert(!V4 || ROW_BYTES >= ROW_READ + 8, "scales of V4");

// Up to so many parts of a token are a cluster (where there are clusters).
constexpr int MAX_CLUSTER = 16;

// A stage is refilled REFILL_LAG tiles after its tile: a warp alone with its ring knows that it is done with the last
// one; where several share a ring, refilling the last one would make the copying warp wait for the slowest.
constexpr int REFILL_LAG = RING_WARPS == 1 || STAGES < 5 ? 1 : STAGES < 8 ? 2 : 3;
constexpr int COPY_AHEAD = STAGES - REFILL_LAG;

// Where several warps widen, they do so a tile ahead, not to wait for each other.
constexpr int WIDEN_AHEAD = RING_WARPS == 1 || STAGES < 3 ? 0 : 1;

// Shared memory, in this order. src/variant.c computes the same total.
constexpr int RING_AT = 0;
constexpr int EXCHANGE_AT = RING_AT + KEY_GROUPS * STAGES * TILE_BYTES; // partial scores, two buffers per warp
constexpr int EXCHANGE_FLOATS = DIM_SPLIT == 1 ? 0 : 32 * 4 * N_TILES;
constexpr int QUERY_FACTOR_AT = EXCHANGE_AT + WARPS * 2 * 4 * EXCHANGE_FLOATS; // [head][scale group]
constexpr int ROPE_FACTOR_AT = QUERY_FACTOR_AT + 4 * HEADS * SCALE_GROUPS;     // [head][half]
constexpr int ROPE_QUERY_AT = ROPE_FACTOR_AT + 4 * HEADS * DIM_SPLIT; // fragments of [term][head][rope dim], 16 bits
constexpr int QUERY_LOW_AT = ROPE_QUERY_AT + 2 * ROPE_TERMS * HEADS * ROPE; // low terms of [head][latent dim], likewise
constexpr int VALUE_FACTOR_AT = QUERY_LOW_AT + 2 * (LATENT_TERMS - 1) * HEADS * LATENT; // [warp][head of group][its scale
                                                                                        // group]
constexpr int REFERENCE_AT = VALUE_FACTOR_AT + 4 * WARPS * 32;          // [warp][head of group]
constexpr int SUM_AT = REFERENCE_AT + 4 * WARPS * GROUP_HEADS;          // [warp][lane][n][c]
constexpr int STATS_AT = SUM_AT + 4 * WARPS * 32 * 2 * N_TILES;         // [warp][head of group] head_total
constexpr int BARRIERS_AT = STATS_AT + 8 * WARPS * GROUP_HEADS;   // full, empty, ready: [key group][stage]
constexpr int PAIR_BARRIERS_AT = BARRIERS_AT + 24 * KEY_GROUPS * STAGES; // [pair of warps]
constexpr int MASKS_AT = PAIR_BARRIERS_AT + 8 * WARPS; // [key group][stage]
constexpr int PART_LSE_AT = MASKS_AT + 4 * KEY_GROUPS * STAGES; // [head], of this block's part
constexpr int WEIGHTS_AT = PART_LSE_AT + 4 * HEADS;               // [head][part of the cluster]
constexpr int FLAG_AT = WEIGHTS_AT + 4 * HEADS * MAX_CLUSTER;
constexpr int SHARED_BYTES = FLAG_AT + 16;
static_assert(SHARED_BYTES == SMLA_SHARED_BYTES, "src/variant.c and this file disagree");
static_assert(COPY_AHEAD >= 1, "too few stages");
static_assert(GROUP_HEADS * WARP_SCALE_GROUPS == 32, "a value factor per lane");

// At the end the warps' outputs pass through the bytes of the ring, a float4 per lane and fragment, in as many rounds as
// it takes.
constexpr int OUT_FRAGMENTS = WARP_VALUE_TILES * N_TILES;
constexpr int OUT_BYTES = WARPS * OUT_FRAGMENTS * 512;
constexpr int OUT_ROUNDS = OUT_BYTES <= EXCHANGE_AT ? 1 : OUT_BYTES <= 2 * EXCHANGE_AT ? 2 : 4;
constexpr int ROUND_FRAGMENTS = OUT_FRAGMENTS / OUT_ROUNDS;
static_assert(ROUND_FRAGMENTS * OUT_ROUNDS == OUT_FRAGMENTS && OUT_BYTES <= OUT_ROUNDS * EXCHANGE_AT, "rounds");
static_assert(SCALE_GROUP_DIMS % 16 == 0 && (!FP8 || SCALE_GROUP_DIMS == 128), "latent dims");
static_assert(ROPE % (16 * DIM_SPLIT) == 0, "rope dims");
