// SPDX-License-Identifier: Apache-2.0
// sparse_mla_cache_append(): a warp per segment of a row. A segment is what shares a scale; lane l has its dims l, l + 32
// and so on. Every number is float32 and rounded as in src/append.c, to the byte.

constexpr int APPEND_WARPS = SMLA_APPEND_THREADS / 32;
constexpr int LANE_DIMS = 4; // a segment has up to 128 dims

struct segment_values {
    float of[LANE_DIMS]; // 0 past the width
};

SMLA_FN float load_element(const void *tensor, int dtype, i64 element)
{
    if (dtype == SMLA_F32)
        return load_constant((const float *)tensor + element);
    const u32 half = load_constant((const u16 *)tensor + element);
    return dtype == SMLA_BF16 ? as_float(half << 16) : f16_low(half);
}

SMLA_FN segment_values load_segment(const void *tensor, int dtype, i64 first, int width, int lane)
{
    segment_values v;
#pragma unroll
    for (int i = 0; i < LANE_DIMS; i++)
        v.of[i] = 32 * i < width ? load_element(tensor, dtype, first + 32 * i + lane) : 0.0f;
    return v;
}

SMLA_FN float magnitude_of(float value)
{
    return as_float(as_bits(value) & 0x7FFFFFFFu);
}

// Of the segment; NaN does not count.
SMLA_FN float largest_magnitude(const segment_values &v)
{
    float largest = 0;
#pragma unroll
    for (int i = 0; i < LANE_DIMS; i++)
        largest = magnitude_of(v.of[i]) > largest ? magnitude_of(v.of[i]) : largest;
    for (int mask = 1; mask < 32; mask *= 2)
        largest = larger(largest, shuffle_xor(largest, mask));
    return largest;
}

// ---- numbers

SMLA_FN u32 to_bf16(float value)
{
    return value == value ? pack_bf16(value, 0.0f) & 0xFFFF : 0x7FC0;
}
SMLA_FN u32 to_f16(float value)
{
    return value == value ? pack_f16(value, 0.0f) & 0xFFFF : 0x7E00;
}

// To nearest even, saturating. Integer operations: below sm_89 there is no instruction for it.
SMLA_FN u32 to_e4m3(float value)
{
    const float magnitude = magnitude_of(value);
    const u32 bits = as_bits(magnitude), sign = as_bits(value) >> 24 & 0x80;
    const u32 normal = ((bits + 0x7FFFF + (bits >> 20 & 1)) >> 20) - ((127 - 7) << 3);
    const u32 subnormal = as_bits(magnitude + 16384.0f) & 0xFF; // beside 2^14 a float has steps of 2^-9
    const u32 number = magnitude < 0.015625f ? subnormal : normal;
    return value == value ? sign | (magnitude >= 448.0f ? 0x7E : number) : 0x7F;
}

// The smallest power of two that is not below a normal number or infinity.
SMLA_FN float power_of_two_from(float value)
{
    return as_float((as_bits(value) + 0x7FFFFF) & 0x7F800000);
}

SMLA_FN float scale_of(int rule, float amax)
{
    if (rule == SMLA_SCALE_AMAX)
        return larger(amax / 448.0f, 1.17549435e-38f);
    return power_of_two_from(rule == SMLA_SCALE_POW2 ? larger(amax / 448.0f, 1e-4f) : larger(amax, 1e-4f) / 448.0f);
}

// ---- segments

SMLA_FN void write_e4m3(u8 *to, const segment_values &v, int width, float scale, int lane)
{
#pragma unroll
    for (int i = 0; i < LANE_DIMS; i++)
        if (32 * i < width)
            to[32 * i + lane] = (u8)to_e4m3(v.of[i] / scale);
}

SMLA_FN void write_16_bit(u8 *to, const segment_values &v, int width, bool bf16, int lane)
{
#pragma unroll
    for (int i = 0; i < LANE_DIMS; i++)
        if (32 * i < width)
            ((u16 *)to)[32 * i + lane] = (u16)(bf16 ? to_bf16(v.of[i]) : to_f16(v.of[i]));
}

// Halves away from 0, at most 127 in magnitude; NaN gives 0. Without a difference that a product could be fused into.
SMLA_FN int round_to_int8(float value)
{
    const float magnitude = magnitude_of(value);
    if (!(magnitude < 127.0f))
        return magnitude >= 127.0f ? (value < 0.0f ? -127 : 127) : 0;
    const int whole = (int)magnitude;
    const int rounded = magnitude >= (float)whole + 0.5f ? whole + 1 : whole;
    return value < 0.0f ? -rounded : rounded;
}

SMLA_FN void write_q8_0(u8 *to, const segment_values &v, int lane)
{
    const bool finite = !any_lane(!(magnitude_of(v.of[0]) < infinity()));
    const float d = largest_magnitude(v) / 127.0f;
    const float inverse = d != 0.0f ? 1.0f / d : 0.0f; // infinite for the smallest subnormals
    if (lane == 0)
        *(u16 *)to = (u16)(finite ? to_f16(d) : 0x7E00);
    to[2 + lane] = (u8)(finite ? round_to_int8(v.of[0] * inverse) : 0);
}

// `scale_to`: where the scale of the segment goes, if it has one.
SMLA_FN void write_segment(const smla_append_params &p, int kind, u8 *to, u8 *scale_to, const segment_values &v,
                           int width, int lane)
{
    if (kind == SMLA_SEGMENT_BF16 || kind == SMLA_SEGMENT_F16) {
        write_16_bit(to, v, width, kind == SMLA_SEGMENT_BF16, lane);
    } else if (kind == SMLA_SEGMENT_Q8_0) {
        write_q8_0(to, v, lane);
    } else {
        float scale = p.tensor_scale;
        if (kind != SMLA_SEGMENT_E4M3)
            scale = scale_of(p.scale_rule, largest_magnitude(v));
        if (kind == SMLA_SEGMENT_E4M3_UE8M0)
            scale = smaller(scale, 1.7014118346046923e38f); // 2^127
        write_e4m3(to, v, width, scale, lane);
        if (kind == SMLA_SEGMENT_E4M3_FLOAT && lane == 0)
            *(float *)scale_to = scale;
        if (kind == SMLA_SEGMENT_E4M3_UE8M0 && lane == 0)
            *scale_to = (u8)(as_bits(scale) >> 23);
    }
}

SMLA_FN int segment_bytes(int kind, int width)
{
    if (kind == SMLA_SEGMENT_Q8_0)
        return width + 2;
    return kind == SMLA_SEGMENT_BF16 || kind == SMLA_SEGMENT_F16 ? 2 * width : width;
}

SMLA_FN void append_segment(const smla_append_params &p, i64 row, int slot, int segment, int lane)
{
    const int page_row = slot % p.page_size;
    u8 *page = p.data + slot / p.page_size * p.page_stride, *record = page + page_row * p.row_stride;
    const int rope_segment = segment - p.latent_segments;
    if (rope_segment >= 0) {
        u8 *to = record + p.rope_at + rope_segment * segment_bytes(p.rope_segment, p.rope_width);
        const i64 first = row * p.rope_stride + rope_segment * p.rope_width;
        write_segment(p, p.rope_segment, to, to, load_segment(p.rope, p.src_dtype, first, p.rope_width, lane),
                      p.rope_width, lane);
        return;
    }
    u8 *to = record + segment * segment_bytes(p.latent_segment, p.latent_width);
    u8 *scale_to = record + p.scales_at + 4 * segment;
    if (p.latent_segment == SMLA_SEGMENT_E4M3_UE8M0) {
        u8 *scales = page + p.scales_at + page_row * SMLA_UE8M0_ROW_BYTES;
        scale_to = scales + segment;
        if (segment == 0 && lane >= p.latent_segments && lane < SMLA_UE8M0_ROW_BYTES)
            scales[lane] = 0;
    }
    const i64 first = row * p.latent_stride + segment * p.latent_width;
    write_segment(p, p.latent_segment, to, scale_to, load_segment(p.latent, p.src_dtype, first, p.latent_width, lane),
                  p.latent_width, lane);
}

SMLA_TOOL_KERNEL(SMLA_NAME, smla_append_params, SMLA_APPEND_THREADS)
{
    const int warp = thread_index() / 32, lane = thread_index() % 32;
    const int segments = p.latent_segments + p.rope_segments;
    const i64 units = (i64)p.num_rows * segments;
    for (i64 unit = (i64)block_token() * APPEND_WARPS + warp; unit < units; unit += (i64)p.blocks * APPEND_WARPS) {
        const i64 row = unit / segments, slot = load_constant(p.slots + row);
        const int segment = (int)(unit % segments);
        if (slot >= 0 && slot < p.num_slots)
            append_segment(p, row, (int)slot, segment, lane);
        else if (slot >= 0 && segment == 0 && lane == 0 && p.fault_count)
            atomic_increment(p.fault_count);
    }
}
