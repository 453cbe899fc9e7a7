// SPDX-License-Identifier: Apache-2.0
// Number formats: exact conversions, and the powers of two that keep f16 operands in range.

constexpr float LOWEST = -3.402823466e38f;
constexpr float LOG2_E = 1.4426950408889634f;
constexpr float LN_2 = 0.6931471805599453f;

SMLA_FN float infinity()
{
    return as_float(0x7F800000u);
}

#if SMLA_PROFILE == 1
// Without the conversion instruction. `spread` has an e4m3 byte in the upper half of each 16-bit half. Its exponent and
// mantissa moved to f16's place are the value times 2^-8; NaN is the one pattern that carries into bit 14.
SMLA_FN u32 e4m3_spread_to_f16x2(u32 spread)
{
    const u32 magnitude = (spread & 0x7F007F00u) >> 1;
    const u32 nan = (magnitude + 0x00800080u) & 0x40004000u;
    return multiply_f16x2((spread & 0x80008000u) | magnitude | nan | (nan - (nan >> 4)), 0x5C005C00u);
}
SMLA_FN u32 e4m3_low_to_f16x2(u32 bytes)
{
    return e4m3_spread_to_f16x2(permute_bytes(bytes, 0, 0x1404));
}
SMLA_FN u32 e4m3_high_to_f16x2(u32 bytes)
{
    return e4m3_spread_to_f16x2(permute_bytes(bytes, 0, 0x3424));
}
#endif

SMLA_FN float bf16_low(u32 word)
{
    return as_float(word << 16);
}
SMLA_FN float bf16_high(u32 word)
{
    return as_float(word & 0xFFFF0000u);
}

// 2^(byte - 127); 255 is NaN.
SMLA_FN float ue8m0_to_float(u32 byte)
{
    return as_float(byte == 0 ? 0x00400000u : byte == 255 ? 0x7FC00000u : byte << 23);
}

// A power of two that brings `largest` into [2^10, 2^11), and its inverse. Anything down to 2^-24 of the largest is then
// a normal f16. Zero, NaN and infinity get some finite pair.
struct exponent_pair {
    float factor, inverse;
};
SMLA_FN exponent_pair normalising_exponent(float largest)
{
    int exponent = (int)(as_bits(largest) >> 23 & 0xFF);
    exponent = exponent < 11 ? 11 : exponent > 254 ? 254 : exponent;
    return {as_float((u32)(264 - exponent) << 23), as_float((u32)(exponent - 10) << 23)};
}

// The largest power of two not above x > 0, kept within 2^-126 .. 2^120.
SMLA_FN float power_of_two_below(float x)
{
    return larger(smaller(as_float(as_bits(x) & 0x7F800000u), 1.329227995784916e36f), 1.1754943508222875e-38f);
}

// A power of two p with 2^-5 < p * x <= 2^-4 or so, for x >= 0; 2^120 for x = 0.
SMLA_FN float power_of_two_to_sixteenth(float x)
{
    const int exponent = 254 - 5 - (int)(as_bits(x) >> 23);
    return as_float((u32)(exponent < 1 ? 1 : exponent > 247 ? 247 : exponent) << 23);
}

// Exact between 2^-126 and 2^126.
SMLA_FN float inverse_power_of_two(float x)
{
    return as_float((254u << 23) - as_bits(x));
}
