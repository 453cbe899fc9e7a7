// SPDX-License-Identifier: Apache-2.0
// The second implementation of kernels_src/device.cuh, for the emulator: the same functions by name and meaning. Those
// that involve other threads or memory are calls into the emulator; arithmetic is done here.
#include "hooks.h"
#include "number.h"

#define SMLA_FN static inline __attribute__((always_inline))
#define SMLA_KERNEL(name, threads, blocks_per_sm) EMULATED_KERNEL(name, smla_params, threads, blocks_per_sm)
#define SMLA_TOOL_KERNEL(name, params, threads) EMULATED_KERNEL(name, params, threads, 1)
// Through a macro of its own, so that `name` may be a macro. Some kernels have the name of a public function.
#define EMULATED_KERNEL(name, params, threads, blocks_per_sm)                                                          \
    extern "C" const emu_kernel name##_kernel;                                                                         \
    const emu_kernel name##_kernel = {threads, blocks_per_sm, EMULATED_PROFILE, (int)sizeof(params)};                  \
    extern "C" void name##_entry(const params &p)
// Programs that have no profile of their own run on any device.
#ifdef SMLA_PROFILE
#define EMULATED_PROFILE SMLA_PROFILE
#else
#define EMULATED_PROFILE 1
#endif

#define SMLA_BULK (SMLA_PROFILE >= 3)

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned u32;
typedef unsigned long long u64;
typedef long long i64;

struct alignas(16) float4_t {
    float x, y, z, w;
};

struct alignas(16) word_quad {
    u32 x, y, z, w;
};

SMLA_FN void wait_for_earlier_kernels()
{
#if SMLA_BULK
    emu_wait_for_earlier_kernels();
#endif
}

SMLA_FN int thread_index()
{
    return emu_thread_index();
}
SMLA_FN int block_token()
{
    return emu_block_x();
}
SMLA_FN int block_part()
{
    return emu_block_y();
}
SMLA_FN u8 *shared_buffer()
{
    return emu_shared_buffer();
}
SMLA_FN u32 shared_address(const void *pointer)
{
    return emu_shared_address(pointer);
}

// ---- synchronisation within a block

SMLA_FN void sync_block()
{
    emu_sync_block();
}
SMLA_FN void sync_warp()
{
    emu_sync_warp();
}
SMLA_FN bool any_lane(bool predicate)
{
    return emu_ballot(predicate) != 0;
}
SMLA_FN u32 ballot(bool predicate)
{
    return emu_ballot(predicate);
}
SMLA_FN float as_float(u32 bits)
{
    return __builtin_bit_cast(float, bits);
}
SMLA_FN u32 as_bits(float value)
{
    return __builtin_bit_cast(u32, value);
}
SMLA_FN float shuffle_xor(float value, int mask)
{
    return as_float((u32)emu_shuffle(as_bits(value), (emu_thread_index() & 31) ^ mask));
}
SMLA_FN i64 shuffle(i64 value, int lane)
{
    return (i64)emu_shuffle((u64)value, lane);
}
SMLA_FN int uniform(int value)
{
    return (int)(u32)emu_shuffle((u32)value, 0);
}
SMLA_FN int opaque(int value)
{
    return value;
}
SMLA_FN int count_bits(u32 word)
{
    return __builtin_popcount(word);
}

// ---- mbarriers

SMLA_FN void mbarrier_init(u64 *barrier, int expected)
{
    emu_mbarrier_init(barrier, expected);
}
SMLA_FN void mbarrier_arrive(u64 *barrier)
{
    emu_mbarrier_arrive(barrier, 0);
}
SMLA_FN void mbarrier_wait(u64 *barrier, u32 parity)
{
    emu_mbarrier_wait(barrier, parity);
}
SMLA_FN void mbarrier_init_fence() // matters between blocks only; none initialises another's barriers
{
}

// ---- copies from global to shared memory

#if SMLA_BULK
SMLA_FN void mbarrier_arrive_expect(u64 *barrier, int bytes)
{
    emu_mbarrier_arrive(barrier, bytes);
}
SMLA_FN bool elect_lane()
{
    return emu_elect();
}
SMLA_FN void bulk_copy(void *shared, const void *global, int bytes, u64 *barrier)
{
    emu_bulk_copy(shared, global, bytes, barrier);
}
SMLA_FN void fence_bulk_copies()
{
    emu_fence_bulk_copies();
}
#else
SMLA_FN void fence_bulk_copies()
{
}
#endif
template <int BYTES> SMLA_FN void copy_async(void *shared, const void *global, bool there)
{
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async");
    emu_copy(shared, global, BYTES, there);
}
SMLA_FN void mbarrier_arrive_copies(u64 *barrier)
{
    emu_mbarrier_arrive_copies(barrier);
}

// ---- clusters

#if SMLA_BULK
SMLA_FN void sync_cluster()
{
    emu_sync_cluster(1);
}
SMLA_FN void sync_cluster_readers()
{
    emu_sync_cluster(0);
}
SMLA_FN u32 cluster_address(const void *own, int block)
{
    return emu_cluster_address(own, block);
}
SMLA_FN float load_cluster(u32 address)
{
    return as_float(emu_load_cluster(address, 4)[0]);
}
SMLA_FN float4_t load_cluster_16(u32 address)
{
    const emu_words v = emu_load_cluster(address, 16);
    return {as_float(v[0]), as_float(v[1]), as_float(v[2]), as_float(v[3])};
}
#endif

// ---- matrix instructions

SMLA_FN void ldmatrix_x4(u32 (&word)[4], u32 address)
{
    const emu_words v = emu_ldmatrix(address, 0);
    for (int i = 0; i < 4; i++)
        word[i] = v[i];
}
SMLA_FN void ldmatrix_x4_trans(u32 (&word)[4], u32 address)
{
    const emu_words v = emu_ldmatrix(address, 1);
    for (int i = 0; i < 4; i++)
        word[i] = v[i];
}
SMLA_FN u32 transpose_8x8(u32 word)
{
    return emu_movmatrix(word);
}
SMLA_FN void emulated_mma(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2], int bf16)
{
    const emu_floats v = emu_mma(emu_floats{c[0], c[1], c[2], c[3]}, emu_words{a[0], a[1], a[2], a[3]}, b[0], b[1], bf16);
    for (int i = 0; i < 4; i++)
        c[i] = v[i];
}
SMLA_FN void mma_f16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2])
{
    emulated_mma(c, a, b, 0);
}
SMLA_FN void mma_bf16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2])
{
    emulated_mma(c, a, b, 1);
}

// ---- arithmetic

SMLA_FN u32 permute_bytes(u32 low, u32 high, u32 selector)
{
    const u64 bytes = (u64)high << 32 | low;
    u32 out = 0;
    for (int i = 0; i < 4; i++)
        out |= (u32)(bytes >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i;
    return out;
}
SMLA_FN float larger(float a, float b)
{
    return a != a || b > a ? b : a;
}
SMLA_FN float smaller(float a, float b)
{
    return a != a || b < a ? b : a;
}
// "ftz": subnormal operands and results of the fast functions are zero.
SMLA_FN float flushed(float x)
{
    return __builtin_fabsf(x) < 1.1754943508222875e-38f ? __builtin_copysignf(0.0f, x) : x;
}
SMLA_FN float exp2_fast(float x)
{
    return flushed(__builtin_exp2f(flushed(x)));
}
SMLA_FN float reciprocal(float x)
{
    return flushed(1.0f / flushed(x));
}
SMLA_FN float log2_fast(float x)
{
    return __builtin_log2f(flushed(x));
}
SMLA_FN u32 pack_f16(float low, float high)
{
    return (u32)smla_to_f16(high) << 16 | smla_to_f16(low);
}
SMLA_FN u32 pack_bf16(float low, float high)
{
    return (u32)smla_to_bf16(high) << 16 | smla_to_bf16(low);
}
SMLA_FN float f16_low(u32 word)
{
    return smla_from_f16((u16)word);
}
SMLA_FN float f16_high(u32 word)
{
    return smla_from_f16((u16)(word >> 16));
}
SMLA_FN u32 multiply_f16x2(u32 a, u32 b)
{
    const double low = (double)smla_from_f16((uint16_t)a) * smla_from_f16((uint16_t)b);
    const double high = (double)smla_from_f16((uint16_t)(a >> 16)) * smla_from_f16((uint16_t)(b >> 16));
    return (u32)smla_to_f16(high) << 16 | smla_to_f16(low);
}
#if SMLA_PROFILE != 1
SMLA_FN u32 e4m3_to_f16(u32 byte)
{
    const u32 sign = (byte & 0x80) << 8, exponent = byte >> 3 & 15, mantissa = byte & 7;
    if ((byte & 0x7F) == 0x7F)
        return sign | 0x7FFF;
    if (exponent != 0)
        return sign | (exponent + 8) << 10 | mantissa << 7;
    // mantissa * 2^-9, a digit of the constant's 16 bits each
    const u64 low = 0x1E001C0018000000u, high = 0x2300220021002000u;
    return sign | (u32)((mantissa < 4 ? low : high) >> 16 * (mantissa & 3) & 0xFFFF);
}
SMLA_FN u32 e4m3_low_to_f16x2(u32 bytes)
{
    return e4m3_to_f16(bytes & 0xFF) | e4m3_to_f16(bytes >> 8 & 0xFF) << 16;
}
SMLA_FN u32 e4m3_high_to_f16x2(u32 bytes)
{
    return e4m3_low_to_f16x2(bytes >> 16);
}
#endif

// ---- global memory

template <typename T> SMLA_FN T load_constant(const T *pointer)
{
    emu_constant_load(pointer, sizeof(T));
    return *pointer;
}
struct alignas(8) word_pair {
    u32 x, y;
};
SMLA_FN word_pair load_constant_8(const void *pointer)
{
    emu_constant_load(pointer, 8);
    return *(const word_pair *)pointer;
}
SMLA_FN float4_t load_partial(const float *pointer)
{
    return *(const float4_t *)pointer;
}
SMLA_FN float load_partial_1(const float *pointer)
{
    return *pointer;
}
SMLA_FN void atomic_increment(u32 *counter)
{
    emu_atomic_add(counter, 1, 0);
}
SMLA_FN u32 arrive_at_counter(u32 *counter)
{
    return emu_atomic_add(counter, 1, 1);
}
