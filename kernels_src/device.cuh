// SPDX-License-Identifier: Apache-2.0
// Everything that only a GPU has: PTX, thread indices, shared memory, barriers, warp collectives. Nothing else in this
// folder contains any of it, so a second implementation of this one file runs the kernels elsewhere. The others ask
// SMLA_BULK and SMLA_PROFILE what there is.

#define SMLA_FN static __device__ __forceinline__
#define SMLA_KERNEL(name, threads, blocks_per_sm)                                                                      \
    extern "C" __global__ void __launch_bounds__(threads, blocks_per_sm) name(const __grid_constant__ smla_params p)
#define SMLA_TOOL_KERNEL(name, params, threads)                                                                        \
    extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ params p)

// Whether rows come by bulk copies or 16 bytes at a time.
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

SMLA_FN int thread_index()
{
    return (int)threadIdx.x;
}
SMLA_FN int block_token()
{
    return (int)blockIdx.x;
}
SMLA_FN int block_part()
{
    return (int)blockIdx.y;
}

SMLA_FN u8 *shared_buffer()
{
    extern __shared__ __align__(128) u8 smla_shared[];
    return smla_shared;
}
SMLA_FN u32 shared_address(const void *pointer)
{
    return (u32)__cvta_generic_to_shared(pointer);
}

// ---- programmatic launch

// Returns once the kernels that this one may overlap with are done: before it, no memory of the caller is touched.
SMLA_FN void wait_for_earlier_kernels()
{
#if SMLA_BULK
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- synchronisation within a block

SMLA_FN void sync_block()
{
    __syncthreads();
}
SMLA_FN void sync_warp()
{
    __syncwarp();
}
SMLA_FN bool any_lane(bool predicate)
{
    return __any_sync(0xFFFFFFFFu, predicate);
}
SMLA_FN u32 ballot(bool predicate)
{
    return __ballot_sync(0xFFFFFFFFu, predicate);
}
SMLA_FN float shuffle_xor(float value, int mask)
{
    return __shfl_xor_sync(0xFFFFFFFFu, value, mask);
}
SMLA_FN i64 shuffle(i64 value, int lane)
{
    return __shfl_sync(0xFFFFFFFFu, value, lane);
}
// A value that all lanes share, told to the compiler so that it needs no register per lane.
SMLA_FN int uniform(int value)
{
    return __shfl_sync(0xFFFFFFFFu, value, 0);
}
// The same value, of which the compiler knows nothing: what depends on it is computed here and not kept from before.
SMLA_FN int opaque(int value)
{
    asm volatile("" : "+r"(value));
    return value;
}
SMLA_FN int count_bits(u32 word)
{
    return __popc(word);
}

// ---- mbarriers: `expected` arrivals complete a phase; waiting on the parity of a phase returns once it is complete

SMLA_FN void mbarrier_init(u64 *barrier, int expected)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(expected) : "memory");
}
SMLA_FN void mbarrier_arrive(u64 *barrier)
{
    asm volatile("{.reg .b64 state; mbarrier.arrive.shared.b64 state, [%0];}" ::"r"(shared_address(barrier))
                 : "memory");
}
SMLA_FN void mbarrier_wait(u64 *barrier, u32 parity)
{
#if SMLA_PROFILE >= 3
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(shared_address(barrier)), "r"(parity) : "memory");
#else
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again: mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(shared_address(barrier)), "r"(parity) : "memory");
#endif
}

// ---- copies from global to shared memory

#if SMLA_BULK
SMLA_FN void mbarrier_init_fence()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// One arrival that also announces `bytes` of bulk copies to come.
SMLA_FN void mbarrier_arrive_expect(u64 *barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}
// True in one lane. The compiler knows that, and that instructions under it need no loop over lanes.
SMLA_FN bool elect_lane()
{
    u32 elected;
    asm volatile("{.reg .pred p; elect.sync _|p, 0xFFFFFFFF; selp.u32 %0, 1, 0, p;}" : "=r"(elected));
    return elected;
}
SMLA_FN void bulk_copy(void *shared, const void *global, int bytes, u64 *barrier)
{
    asm volatile("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(shared)),
                 "l"(global), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}
// Orders this thread's ordinary shared stores before later bulk copies to the same bytes.
SMLA_FN void fence_bulk_copies()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
#else
SMLA_FN void mbarrier_init_fence()
{
}
SMLA_FN void fence_bulk_copies()
{
}
#endif
// 4, 8 or 16 bytes; zeros, and nothing is read, unless `there`.
template <int BYTES> SMLA_FN void copy_async(void *shared, const void *global, bool there)
{
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
                     "r"(there ? 16 : 0)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(shared)), "l"(global),
                     "n"(BYTES), "r"(there ? BYTES : 0)
                     : "memory");
}
// One arrival once all earlier copy_async() of this thread have landed.
SMLA_FN void mbarrier_arrive_copies(u64 *barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// ---- clusters: blocks (token, part) .. that run at the same time and read each other's shared memory

#if SMLA_BULK
SMLA_FN void sync_cluster()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// The same for blocks that have only read from each other: their stores may still be under way.
SMLA_FN void sync_cluster_readers()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
// Address of the same place in another block of the cluster.
SMLA_FN u32 cluster_address(const void *own, int block)
{
    u32 address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(own)), "r"(block));
    return address;
}
SMLA_FN float load_cluster(u32 address)
{
    float v;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
    return v;
}
SMLA_FN float4_t load_cluster_16(u32 address)
{
    float4_t v;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}
#endif

// ---- matrix instructions; layouts are drawn in variant.cuh

SMLA_FN void ldmatrix_x4(u32 (&word)[4], u32 address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                 : "r"(address)
                 : "memory");
}
SMLA_FN void ldmatrix_x4_trans(u32 (&word)[4], u32 address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                 : "r"(address)
                 : "memory");
}
SMLA_FN u32 transpose_8x8(u32 word)
{
    u32 out;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(word));
    return out;
}
SMLA_FN void mma_f16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
SMLA_FN void mma_bf16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// ---- arithmetic

SMLA_FN u32 permute_bytes(u32 low, u32 high, u32 selector)
{
    return __byte_perm(low, high, selector);
}
SMLA_FN float as_float(u32 bits)
{
    return __uint_as_float(bits);
}
SMLA_FN u32 as_bits(float value)
{
    return __float_as_uint(value);
}
// The larger one; a NaN loses.
SMLA_FN float larger(float a, float b)
{
    return fmaxf(a, b);
}
SMLA_FN float smaller(float a, float b)
{
    return fminf(a, b);
}
SMLA_FN float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
SMLA_FN float reciprocal(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// Within 2^-22 of the logarithm.
SMLA_FN float log2_fast(float x)
{
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// Two floats to two halves of a word, round to nearest even, first one low.
SMLA_FN u32 pack_f16(float low, float high)
{
    u32 out;
    asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(out) : "f"(low), "f"(high));
    return out;
}
SMLA_FN u32 pack_bf16(float low, float high)
{
    u32 out;
    asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(out) : "f"(low), "f"(high));
    return out;
}
SMLA_FN float f16_low(u32 word)
{
    float out;
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low;}" : "=f"(out) : "r"(word));
    return out;
}
SMLA_FN float f16_high(u32 word)
{
    return f16_low(word >> 16);
}
SMLA_FN u32 multiply_f16x2(u32 a, u32 b)
{
    u32 out;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    return out;
}
#if SMLA_PROFILE != 1
// e4m3 bytes 0 and 1 (or 2 and 3) to two f16, exactly; 0x7F and 0xFF to NaN.
SMLA_FN u32 e4m3_low_to_f16x2(u32 bytes)
{
    u32 out;
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.rn.f16x2.e4m3x2 %0, low;}" : "=r"(out) : "r"(bytes));
    return out;
}
SMLA_FN u32 e4m3_high_to_f16x2(u32 bytes)
{
    u32 out;
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.rn.f16x2.e4m3x2 %0, high;}" : "=r"(out) : "r"(bytes));
    return out;
}
#endif

// ---- global memory

// For what no thread of the grid writes.
template <typename T> SMLA_FN T load_constant(const T *pointer)
{
    return __ldg(pointer);
}
struct alignas(8) word_pair {
    u32 x, y;
};
SMLA_FN word_pair load_constant_8(const void *pointer)
{
    const uint2 v = __ldg((const uint2 *)pointer);
    return {v.x, v.y};
}
// 16 bytes of a partial result that another block wrote before its arrive_at_counter().
SMLA_FN float4_t load_partial(const float *pointer)
{
    const float4 v = __ldcg((const float4 *)pointer);
    return {v.x, v.y, v.z, v.w};
}
SMLA_FN float load_partial_1(const float *pointer)
{
    return __ldcg(pointer);
}
SMLA_FN void atomic_increment(u32 *counter)
{
    atomicAdd(counter, 1u);
}
// Publishes this thread's view of memory, counts one arrival and returns how many came before.
SMLA_FN u32 arrive_at_counter(u32 *counter)
{
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before;
}
