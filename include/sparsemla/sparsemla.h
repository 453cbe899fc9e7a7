/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * libsparsemla: sparse multi-head latent attention (MLA) decode for C and C++.
 *
 * For every query token t and head h, over the keys that the token's row of indices names:
 *
 *     valid(j)  <=>  j < length[t]  and  0 <= slot(j) < num_slots
 *     s_j  = scale * (q[t][h] . k[slot(j)])             over the latent and the rope dims
 *     lse  = ln(sum over valid j of exp(s_j))
 *     out  = sum over valid j of exp(s_j - lse) * v[slot(j)]    v: the value dims of the same row
 *     sink:  out *= 1 / (1 + exp(sink[h] - lse));  lse itself stays as it is
 *
 * This is the absorbed form of MLA (DeepSeek-V2, arXiv 2405.04434, section 2.1): q has been multiplied by
 * W_UK, out is still to be multiplied by W_UV. There is no causal mask: the index list is the mask. The order
 * of the indices is irrelevant and duplicates count twice.
 *
 * Conventions of this header
 * - T = num_tokens, H = num_heads. Tokens are numbered (request, position): t = request * q_len + position,
 *   T = requests * q_len. Ragged callers use q_len = 1, where a token is a request.
 * - Tensor strides are int64 and count elements. Cache strides are int64 bytes and say so in their names. A stride is
 *   looked at only where there is a second step to take, and is then no smaller than what one step holds.
 * - Structs begin with their size and are filled by their inline _init() function; newer libraries append
 *   fields, so a program built against an older header keeps working. struct_size is what sizeof gave with the
 *   caller's header: never less than in the first release (0.1.0), a multiple of 8. Fields that it does not reach
 *   have their defaults. Past what this library knows, what it reads must be 0 (else SPARSE_MLA_UNSUPPORTED) and
 *   what it would write is left alone.
 * - Pointers are device pointers with the CUDA backend and host pointers with the host backend.
 * - "Optional" pointers may be NULL; all others may not.
 * - Functions that return sparse_mla_status leave a sentence for sparse_mla_last_error() when they fail.
 *   A failed call changes neither the context nor the workspace nor any output. Each names what it returns, where "a
 *   status of the driver" is NO_DRIVER, DRIVER_TOO_OLD, DRIVER_ERROR or OUT_OF_MEMORY, and "of the compiler" is
 *   NO_COMPILER, COMPILER_TOO_OLD, COMPILE_FAILED or OUT_OF_MEMORY. The host backend gives neither, but OUT_OF_MEMORY.
 * - Nothing in this library exits, aborts or prints. The environment is read by sparse_mla_create() only.
 */
#ifndef SPARSEMLA_H
#define SPARSEMLA_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SPARSE_MLA_API __attribute__((visibility("default")))
#else
#define SPARSE_MLA_API
#endif

/** Version of this header, first number: that of the SONAME. sparse_mla_version() is the version of the library. */
#define SPARSE_MLA_VERSION_MAJOR 0
#define SPARSE_MLA_VERSION_MINOR 1 /**< second number */
#define SPARSE_MLA_VERSION_PATCH 0 /**< third number */

/** A CUDA stream: CUstream and cudaStream_t are both `struct CUstream_st *`, so no cuda.h is needed here. */
struct CUstream_st;

/** Result of a call. Values never change; new ones are added at the end. */
typedef enum sparse_mla_status {
    SPARSE_MLA_OK = 0,
    SPARSE_MLA_INVALID_ARGUMENT = 1,     /**< an argument breaks a rule of this header */
    SPARSE_MLA_UNSUPPORTED = 2,          /**< valid, but not by this version, backend or device */
    SPARSE_MLA_NO_DRIVER = 3,            /**< libcuda.so.1 is missing or has no usable device */
    SPARSE_MLA_DRIVER_TOO_OLD = 4,       /**< the driver cannot run what this call needs */
    SPARSE_MLA_DRIVER_ERROR = 5,         /**< a driver call failed; the sentence has its name and number */
    SPARSE_MLA_NO_COMPILER = 6,          /**< NVRTC is missing and no cache holds the kernel */
    SPARSE_MLA_COMPILER_TOO_OLD = 7,     /**< NVRTC is older than 12.8 or does not know the architecture */
    SPARSE_MLA_COMPILE_FAILED = 8,       /**< NVRTC refused the source; the log callback has its output */
    SPARSE_MLA_NOT_READY = 9,            /**< cold kernel under on_miss = FAIL or during stream capture */
    SPARSE_MLA_OUT_OF_MEMORY = 10,       /**< host or device allocation failed */
    SPARSE_MLA_WORKSPACE_TOO_SMALL = 11, /**< see sparse_mla_decode_workspace() */
    SPARSE_MLA_CACHE_ERROR = 12          /**< the cache directory cannot be used; never of a decode or prepare */
} sparse_mla_status;

/** Element type of a tensor. */
typedef enum sparse_mla_dtype { SPARSE_MLA_BF16 = 0, SPARSE_MLA_F16 = 1, SPARSE_MLA_F32 = 2 } sparse_mla_dtype;

/**
 * Record layout of a cache: the bytes of one slot (one key).
 *
 * The supported pairs of latent_dim + rope_dim stand with each. "e4m3" is the finite fp8 format (0x7F and 0xFF
 * are NaN); its scales multiply and are read as full float32.
 */
typedef enum sparse_mla_format {
    /** 656 bytes, 512 + 64: 512 e4m3 latent, 4 float32 scales (one per 128 dims), 64 bf16 rope.
     *  512 + 0 (rope-free models): the last 128 bytes of a record are never read. */
    SPARSE_MLA_FP8_DS_MLA = 0,
    /** 528 bytes, 512 + 0: the same without the rope tail. */
    SPARSE_MLA_FP8_DS_MLA_NOPE = 1,
    /** Flat bf16: latent (a multiple of 64, to 512) and rope (0, 32 or 64) at byte offsets of the record. */
    SPARSE_MLA_FLAT_BF16 = 2,
    /** Flat f16, as above. */
    SPARSE_MLA_FLAT_F16 = 3,
    /** 576 bytes, 512 + 64: all e4m3, one float32 scale for the tensor (cache.tensor_scale). Latent and rope at byte
     *  offsets of the record, as above. */
    SPARSE_MLA_FLAT_E4M3 = 4,
    /** DeepSeek-V4, 584 bytes, 448 + 64, value = all 512 dims: per page first page_size rows of 576 bytes (448
     *  e4m3, 64 bf16 rope), then page_size * 8 bytes of scales (7 ue8m0, one per 64 dims, and a pad byte). The ue8m0
     *  byte e is 2^(e - 127), 255 is NaN. row_stride_bytes must be 576, for any page_size; page_stride_bytes at least
     *  page_size * 584 and a multiple of 16. (DeepSeek's own pages are padded to a multiple of 576: page_size 2 has
     *  1168 bytes and a stride of 1728.) */
    SPARSE_MLA_FP8_V4 = 5,
    /** ggml q8_0, 612 bytes, 512 + 64: blocks of 34 bytes = float16 d, int8[32]; value d * q. Latent and rope at byte
     *  offsets of the record, as above, but multiples of 4; ggml engines with the rope first have rope_offset_bytes 0
     *  and latent_offset_bytes 68. */
    SPARSE_MLA_Q8_0 = 6
} sparse_mla_format;

/** What sparse_mla_cache.lengths is indexed by. */
typedef enum sparse_mla_length_mode {
    SPARSE_MLA_LENGTH_PER_TOKEN = 0,  /**< lengths[t] */
    SPARSE_MLA_LENGTH_PER_REQUEST = 1 /**< lengths[request_of_token ? request_of_token[t] : t / q_len] */
} sparse_mla_length_mode;

/** Bits of sparse_mla_decode_args.flags. */
enum {
    SPARSE_MLA_LSE_BASE2 = 1 << 0,          /**< lse in base 2 instead of base e */
    SPARSE_MLA_LSE_WITH_SINK = 1 << 1,      /**< lse = ln(exp(lse) + exp(sink)); of an empty row: sink */
    SPARSE_MLA_LSE_EMPTY_POSINF = 1 << 2,   /**< lse of an empty row is +inf (FlashMLA), not -inf */
    SPARSE_MLA_BATCH_INVARIANT = 1 << 3,    /**< a token's bits depend on no other token and not on T */
    SPARSE_MLA_PROGRAMMATIC_LAUNCH = 1 << 4 /**< launch with programmatic stream serialization */
};

/** A bit of sparse_mla_merge_args.flags, beside the SPARSE_MLA_LSE_ bits above. */
enum {
    SPARSE_MLA_PART_LSE_BASE2 = 1 << 5 /**< part_lse is in base 2 instead of base e */
};

/**
 * How sparse_mla_cache_append() chooses the scale of a block of dims from amax, the largest magnitude in it (NaN
 * does not count). All of it is float32, divisions are correctly rounded and powers of two exact.
 */
typedef enum sparse_mla_scale_rule {
    SPARSE_MLA_SCALE_DEFAULT = 0, /**< fp8_ds_mla: AMAX, fp8_v4: V4; formats without block scales take only this */
    SPARSE_MLA_SCALE_AMAX = 1,    /**< max(amax / 448, FLT_MIN), as vLLM's writer; not for FP8_V4 */
    SPARSE_MLA_SCALE_POW2 = 2,    /**< 2^ceil(log2(max(amax / 448, 1e-4))), as DeepSeek's and FlashMLA's */
    SPARSE_MLA_SCALE_V4 = 3       /**< 2^ceil(log2(max(amax, 1e-4) / 448)), DeepSeek-V4's */
} sparse_mla_scale_rule;

/**
 * A paged latent KV cache and the keys that each token attends to in it.
 *
 * Address of a slot: data + (slot / page_size) * page_stride_bytes + (slot % page_size) * row_stride_bytes.
 * data and both strides are multiples of 16 bytes (SPARSE_MLA_Q8_0: 4 bytes); indices, lengths and block_table
 * are aligned to 4 bytes. Two caches of a call may differ in everything, but both have its latent_dim, rope_dim and
 * value_dim.
 */
typedef struct sparse_mla_cache {
    size_t struct_size;          /**< sizeof(sparse_mla_cache); set by sparse_mla_cache_init() */
    const void *data;            /**< first byte of slot 0; may be NULL when num_slots is 0 */
    int64_t num_slots;           /**< 0 .. 2^31 - 1; slots at or past it are masked and count as faults */
    int64_t page_stride_bytes;   /**< from one page to the next; not necessarily page_size * row_stride_bytes */
    int64_t row_stride_bytes;    /**< from one slot to the next within a page */
    int32_t format;              /**< sparse_mla_format */
    int32_t page_size;           /**< slots per page, any positive number */
    int32_t latent_offset_bytes; /**< SPARSE_MLA_FLAT_* and Q8_0: where the latent begins in a record, a multiple of
                                  *   16 (Q8_0: 4); else 0 */
    int32_t rope_offset_bytes;   /**< the same of the rope, which may come first; -1: behind the latent; else -1 */
    float tensor_scale;          /**< SPARSE_MLA_FLAT_E4M3: the scale of the tensor; else unused */
    int32_t topk;                /**< width of a row of indices; without indices: the largest length, >= 1 */

    /** int32 [T, topk], optional. Physical slots, or positions when block_table is given. Negative: masked.
     *  NULL: key j is position (or slot) j, that is, dense decode. */
    const int32_t *indices;
    int64_t indices_request_stride; /**< elements from one request to the next */
    int64_t indices_token_stride;   /**< elements from one token of a request to the next */

    /** int32, optional (NULL: every row has topk columns). Columns at or past the length are never read;
     *  <= 0: an empty row; > topk counts as topk. */
    const int32_t *lengths;
    int32_t length_mode; /**< sparse_mla_length_mode */

    int32_t block_table_width; /**< pages per row of block_table */
    /** int32 [num_requests, block_table_width], optional: slot = block_table[request][pos / page_size] *
     *  page_size + pos % page_size, where request is request_of_token[t] or t / q_len. A position past the
     *  row or a negative entry is masked and counts as a fault. */
    const int32_t *block_table;
    int64_t block_table_stride; /**< elements from one request's row to the next */
} sparse_mla_cache;

/** Arguments of sparse_mla_decode(). Fill once, then update pointers and num_tokens. */
typedef struct sparse_mla_decode_args {
    size_t struct_size; /**< sizeof(sparse_mla_decode_args); set by sparse_mla_decode_args_init() */

    int32_t num_tokens; /**< T, 0 or more; 0 succeeds, launches nothing and looks at no data pointer */
    int32_t q_len;      /**< tokens per request, 1 or more; divides num_tokens */
    int32_t num_heads;  /**< H, 1 .. 128 */
    int32_t latent_dim; /**< dims of the compressed KV: 512 (flat formats: any multiple of 64 to 512) */
    int32_t rope_dim;   /**< dims of the rotated key part: 64 or 0 (flat formats: 64, 32 or 0) */
    int32_t value_dim;  /**< dims of out: latent_dim (SPARSE_MLA_FP8_V4: latent_dim + rope_dim) */
    float scale;        /**< softmax scale, of the un-absorbed head: GLM-5 1/sqrt(192 + 64); finite */
    uint32_t flags;     /**< SPARSE_MLA_LSE_BASE2 and the others above */

    int32_t q_dtype;   /**< sparse_mla_dtype of both parts of q */
    int32_t out_dtype; /**< sparse_mla_dtype of out */

    /** [T, H, latent_dim] absorbed queries, last dim contiguous, 16-byte aligned, strides multiples of 16
     *  bytes. */
    const void *q_latent;
    /** [T, H, rope_dim] rotated queries, likewise. NULL: the rope_dim elements behind q_latent's row, as in
     *  one [T, H, latent_dim + rope_dim] tensor; its strides are then those of q_latent. */
    const void *q_rope;
    int64_t q_latent_request_stride; /**< elements */
    int64_t q_latent_token_stride;   /**< elements */
    int64_t q_latent_head_stride;    /**< elements */
    int64_t q_rope_request_stride;   /**< elements */
    int64_t q_rope_token_stride;     /**< elements */
    int64_t q_rope_head_stride;      /**< elements */

    const sparse_mla_cache *main_cache;  /**< the cache */
    const sparse_mla_cache *extra_cache; /**< optional second cache (DeepSeek-V4): one softmax over both */

    void *out;                  /**< [T, H, value_dim], last dim contiguous, 16-byte aligned as q; overlaps no input */
    int64_t out_request_stride; /**< elements */
    int64_t out_token_stride;   /**< elements */
    int64_t out_head_stride;    /**< elements */

    float *lse;                 /**< float32 [T, H], optional; 4-byte aligned; overlaps no input */
    int64_t lse_request_stride; /**< elements */
    int64_t lse_token_stride;   /**< elements */
    int64_t lse_head_stride;    /**< elements */

    const float *sink; /**< float32 [H], optional: attention sink, a logit in base e. +inf: out = 0 */

    /** int32 [T], optional: row of block_table and of per-request lengths for each token (NULL: t / q_len).
     *  Outside 0 .. num_requests - 1: an empty row. */
    const int32_t *request_of_token;
    int32_t num_requests; /**< rows of block_table and of per-request lengths; 0: num_tokens / q_len */

    int32_t reserved; /**< 0 */

    /** Device memory, 256-byte aligned, of sparse_mla_decode_workspace() bytes, prepared once by
     *  sparse_mla_workspace_init(). Serves any sequence of calls in one stream; calls that may run at the
     *  same time need one each. The host backend needs none, and NULL will do where that
     *  function answers 0. */
    void *workspace;
    size_t workspace_size; /**< bytes */

    /** uint32, optional, zeroed by the caller: grows by one per slot >= num_slots or block-table miss. */
    uint32_t *fault_count;
} sparse_mla_decode_args;

/** Arguments of sparse_mla_merge(). n = num_parts, D = value_dim. */
typedef struct sparse_mla_merge_args {
    size_t struct_size; /**< sizeof(sparse_mla_merge_args); set by sparse_mla_merge_args_init() */

    int32_t num_parts;  /**< n, 1 or more: ranks of context parallelism */
    int32_t num_tokens; /**< T, 0 or more; 0 succeeds, launches nothing and looks at no data pointer */
    int32_t num_heads;  /**< H, 1 or more */
    int32_t value_dim;  /**< D, a multiple of 8 from 8 to 65536 */
    uint32_t flags;     /**< SPARSE_MLA_LSE_BASE2, _LSE_WITH_SINK, _LSE_EMPTY_POSINF: of lse, as for decode;
                         *   SPARSE_MLA_PART_LSE_BASE2: of part_lse */
    int32_t part_dtype; /**< sparse_mla_dtype of part_out */
    int32_t out_dtype;  /**< sparse_mla_dtype of out */
    int32_t reserved;   /**< 0 */

    /** [n, T, H, D] outputs made without the sink, last dim contiguous, 16-byte aligned, strides multiples of 16
     *  bytes */
    const void *part_out;
    int64_t part_out_stride;       /**< elements from one part to the next */
    int64_t part_out_token_stride; /**< elements */
    int64_t part_out_head_stride;  /**< elements */

    /** float32 [n, T, H], 4-byte aligned, without the sink. -inf, +inf or NaN: the part is empty and its output not
     *  read */
    const float *part_lse;
    int64_t part_lse_stride;       /**< elements from one part to the next */
    int64_t part_lse_token_stride; /**< elements */
    int64_t part_lse_head_stride;  /**< elements */

    void *out;                /**< [T, H, D], last dim contiguous, aligned as part_out; overlaps no input */
    int64_t out_token_stride; /**< elements */
    int64_t out_head_stride;  /**< elements */

    float *lse;               /**< float32 [T, H], optional; 4-byte aligned; overlaps no input */
    int64_t lse_token_stride; /**< elements */
    int64_t lse_head_stride;  /**< elements */

    const float *sink; /**< float32 [H], optional: attention sink, a logit in base e. +inf: out = 0 */
} sparse_mla_merge_args;

/** Arguments of sparse_mla_map_slots(). Tokens, requests, lengths and block table are those of sparse_mla_decode(). */
typedef struct sparse_mla_map_slots_args {
    size_t struct_size; /**< sizeof(sparse_mla_map_slots_args); set by sparse_mla_map_slots_args_init() */

    int32_t num_tokens; /**< T, 0 or more; 0 succeeds, launches nothing and looks at no data pointer */
    int32_t q_len;      /**< tokens per request, 1 or more; divides num_tokens */
    int32_t topk;       /**< columns of indices and slots, 1 or more */
    int32_t page_size;  /**< slots per page of the cache, 1 or more */
    int64_t num_slots;  /**< of the cache, 0 .. 2^31 - 1; slots at or past it are masked and count as faults */

    /** int32 [T, topk], optional: request-local positions, or slots when block_table is NULL; negative: masked.
     *  NULL: column j is position j. */
    const int32_t *indices;
    int64_t indices_request_stride; /**< elements from one request to the next */
    int64_t indices_token_stride;   /**< elements from one token of a request to the next */

    const int32_t *lengths; /**< int32, optional: as sparse_mla_cache.lengths; columns at or past it are not read */
    int32_t length_mode;    /**< sparse_mla_length_mode */

    int32_t block_table_width;  /**< pages per row of block_table */
    const int32_t *block_table; /**< int32 [num_requests, block_table_width], optional: as in sparse_mla_cache */
    int64_t block_table_stride; /**< elements from one request's row to the next */

    const int32_t *request_of_token; /**< int32 [T], optional: as in sparse_mla_decode_args */
    int32_t num_requests;            /**< as in sparse_mla_decode_args; 0: num_tokens / q_len */

    int32_t mask_width; /**< positions per row of mask, 1 or more */
    /** float16 [T, mask_width], optional, 2-byte aligned: additive attention mask as llama.cpp has it, looked up at
     *  each index. -inf: masked, without a fault. Any other value counts as 0: nothing is added to scores. An index
     *  at or past mask_width is masked and counts as a fault. */
    const uint16_t *mask;
    int64_t mask_request_stride; /**< elements from one request to the next */
    int64_t mask_token_stride;   /**< elements from one token of a request to the next */

    /** int32 [T, topk]: receives slots, and -1 for all that is masked or past the length; overlaps no input */
    int32_t *slots;
    int64_t slots_request_stride; /**< elements from one request to the next */
    int64_t slots_token_stride;   /**< elements from one token of a request to the next */

    /** int32 [T], optional: receives how many slots of each row are valid. After compaction these are the lengths, per
     *  token, for sparse_mla_decode(). Overlaps no input. */
    int32_t *counts;
    int32_t compact;  /**< non-zero: the valid slots of a row come first, in the order of their columns */
    int32_t reserved; /**< 0 */

    /** uint32, optional, zeroed by the caller: grows by one per slot >= num_slots, block-table or mask miss. */
    uint32_t *fault_count;
} sparse_mla_map_slots_args;

/** Arguments of sparse_mla_cache_append(). N = num_rows. */
typedef struct sparse_mla_cache_append_args {
    size_t struct_size; /**< sizeof(sparse_mla_cache_append_args); set by sparse_mla_cache_append_args_init() */

    int32_t num_rows;   /**< N, 0 or more; 0 succeeds, launches nothing and looks at no data pointer */
    int32_t latent_dim; /**< as in sparse_mla_decode_args: what the cache's format has */
    int32_t rope_dim;   /**< likewise. FP8_DS_MLA with 0 leaves the last 128 bytes of a record as they are */
    int32_t src_dtype;  /**< sparse_mla_dtype of latent and rope */
    int32_t scale_rule; /**< sparse_mla_scale_rule */
    int32_t reserved;   /**< 0 */

    const void *latent;    /**< [N, latent_dim], last dim contiguous, aligned to its elements */
    int64_t latent_stride; /**< elements from one row to the next */
    const void *rope;      /**< [N, rope_dim], likewise; may be NULL when rope_dim is 0 */
    int64_t rope_stride;   /**< elements from one row to the next */

    /** int64 [N], 8-byte aligned: where each row goes. Negative: nowhere. >= num_slots: nowhere, and a fault. No slot
     *  twice. */
    const int64_t *slots;

    /** The cache, whose data is written: format, pages, strides, offsets and tensor_scale (FLAT_E4M3: not 0) count;
     * what stands from topk on is not looked at. */
    const sparse_mla_cache *cache;

    uint32_t *fault_count; /**< uint32, optional, zeroed by the caller: grows by one per slot >= num_slots */
} sparse_mla_cache_append_args;

/** Which implementation a context runs. */
typedef enum sparse_mla_backend {
    SPARSE_MLA_BACKEND_CUDA = 0, /**< kernels compiled for the stream's device */
    SPARSE_MLA_BACKEND_HOST = 1  /**< plain C on host pointers: reference, fallback, debugging aid */
} sparse_mla_backend;

/** What a call does when its kernel is in no cache. */
typedef enum sparse_mla_on_miss {
    SPARSE_MLA_ON_MISS_COMPILE = 0, /**< compile it (seconds), except during stream capture */
    SPARSE_MLA_ON_MISS_FAIL = 1     /**< return SPARSE_MLA_NOT_READY */
} sparse_mla_on_miss;

/** Code path and limits. AUTO follows the device; the others force a path on any device that can run it. */
typedef enum sparse_mla_profile {
    SPARSE_MLA_PROFILE_AUTO = 0, /**< that of the device, see sparse_mla_device.profile */
    SPARSE_MLA_PROFILE_SM80 = 1, /**< cp.async, integer fp8 conversion, 99 KiB of shared memory */
    SPARSE_MLA_PROFILE_SM89 = 2, /**< cp.async, hardware fp8 conversion, 99 KiB */
    SPARSE_MLA_PROFILE_SM90 = 3, /**< bulk copies, 227 KiB */
    SPARSE_MLA_PROFILE_SM120 = 4 /**< bulk copies, 99 KiB */
} sparse_mla_profile;

/** Severity of a log message. */
typedef enum sparse_mla_log_level {
    SPARSE_MLA_LOG_WARNING = 0, /**< something degraded: a cache that cannot be written, a dropped cubin */
    SPARSE_MLA_LOG_INFO = 1,    /**< compiles, loads, chosen files */
    SPARSE_MLA_LOG_DEBUG = 2    /**< NVRTC's output, every plan */
} sparse_mla_log_level;

/** Receives one line without a newline. Called on the thread of the call that logs; must not call back. */
typedef void (*sparse_mla_log_fn)(void *user, sparse_mla_log_level level, const char *message);

/** Which decodes are dumped. */
typedef enum sparse_mla_dump_when {
    SPARSE_MLA_DUMP_EVERY_CALL = 0,
    SPARSE_MLA_DUMP_ON_FAULT = 1 /**< those with a slot >= num_slots, a block-table miss or a driver error */
} sparse_mla_dump_when;

/** Options of sparse_mla_create(). Strings are copied. */
typedef struct sparse_mla_options {
    size_t struct_size;    /**< sizeof(sparse_mla_options); set by sparse_mla_options_init() */
    int32_t backend;       /**< sparse_mla_backend */
    int32_t on_miss;       /**< sparse_mla_on_miss */
    int32_t profile;       /**< sparse_mla_profile */
    int32_t no_disk_cache; /**< non-zero: keep compiled kernels in memory only */
    /** Directory of compiled kernels. NULL: $SPARSEMLA_CACHE_DIR, else $XDG_CACHE_HOME/sparsemla, else
     *  $HOME/.cache/sparsemla, else memory only. Created with mode 0700. */
    const char *cache_dir;
    /** Colon-separated directories searched read-only after cache_dir; owned by root or this user and not
     *  writable by others. NULL: $SPARSEMLA_SEED_PATH. */
    const char *seed_path;
    /** Path of libnvrtc.so. NULL: $SPARSEMLA_NVRTC, else the newest that the loader finds. */
    const char *nvrtc_path;
    uint64_t cache_size_cap; /**< bytes kept in cache_dir, oldest use evicted first; 0: 256 MiB */
    sparse_mla_log_fn log;   /**< optional */
    void *log_user;          /**< handed to log */
    /** For debugging: a directory, made with mode 0700, to which decodes are dumped, the first 16 of a context, each a
     *  safetensors file (mode 0600, at most 1 GiB) that `sparsemla replay` runs again. The caller waits for the stream,
     *  twice. Calls of a stream that is being captured are not dumped; trouble is logged and never makes a call fail.
     *  Must be this user's and not writable by others. NULL: $SPARSEMLA_DUMP, and then $SPARSEMLA_DUMP_WHEN ("every",
     *  the default, or "fault"; at another word nothing is dumped and a warning is logged) in place of dump_when;
     *  neither: nothing is dumped. */
    const char *dump_dir;
    int32_t dump_when; /**< sparse_mla_dump_when */
    int32_t reserved;  /**< 0 */
} sparse_mla_options;

/** A context: kernels, caches and settings for any number of devices. Thread-safe; one per process is enough. */
typedef struct sparse_mla_context sparse_mla_context;

/** What a call is expected to wait for most, as sparse_mla_plan_info.predicted_us is made. Values never change. */
typedef enum sparse_mla_limit {
    SPARSE_MLA_LIMIT_NONE = 0,   /**< the host backend, or no token */
    SPARSE_MLA_LIMIT_MEMORY = 1, /**< reading the rows is half of the time or more */
    SPARSE_MLA_LIMIT_TENSOR = 2, /**< neither: what multiprocessors do for each key, conversions and products */
    SPARSE_MLA_LIMIT_LATENCY = 3 /**< not memory, but blocks take longer to start, end and merge than over their keys,
                                  *   or there are fewer than one for two multiprocessors */
} sparse_mla_limit;

/** What sparse_mla_decode_explain() reports: the plan of a call. */
typedef struct sparse_mla_plan_info {
    size_t struct_size;       /**< sizeof(sparse_mla_plan_info); set by sparse_mla_plan_info_init() */
    char variant[128];        /**< kernel name: the same string in profiler, log, cache and tool */
    uint32_t grid_x;          /**< thread blocks along x */
    uint32_t grid_y;          /**< thread blocks along y */
    uint32_t block_threads;   /**< threads per block */
    uint32_t num_splits;      /**< parts that a token's keys are cut into; merged in the same launch */
    uint32_t shared_bytes;    /**< dynamic shared memory per block */
    uint32_t blocks_per_sm;   /**< resident blocks that the plan counts on */
    uint32_t stages;          /**< 16-key stages in flight per block */
    uint32_t registers;       /**< per thread; 0 until the kernel is loaded */
    uint64_t workspace_bytes; /**< what this call needs */
    int32_t cached;           /**< 0: would compile, 1: on disk, 2: in memory */
    int32_t reserved;         /**< 0 */
    int32_t limit;            /**< sparse_mla_limit: what the call is expected to wait for most */

    /** Microseconds on the GPU that the planner expects of the call with rows of full length, none in the L2 cache; 0
     *  with the host backend. It is what the planner chooses splits by: waves of blocks, each the time to start and end
     *  a block and that of its turns over tiles of keys, and then a merge; but no less than to read the rows at 83 % of
     *  the peak of the device's memory. The constants are those of one H200, where measured times of fp8_ds_mla with
     *  2048 keys, 8 to 128 heads and 1 to 256 tokens (README.md) are met to -27 % .. +11 %; its sm_120 code path, which
     *  there may have two blocks on a multiprocessor, to +66 % in one case. Elsewhere it is no more than a guess: that
     *  such multiprocessors are as fast as an H200's. */
    float predicted_us;
} sparse_mla_plan_info;

/** One entry of the cache directory. */
typedef struct sparse_mla_cache_entry {
    size_t struct_size;    /**< sizeof(sparse_mla_cache_entry) */
    char variant[128];     /**< kernel name; empty for a damaged entry */
    char target[16];       /**< "sm_120" */
    char file[64];         /**< file name in the directory */
    uint64_t bytes;        /**< size of the file */
    int64_t last_used;     /**< seconds since 1970 */
    int32_t valid;         /**< 0: damaged, from another schema, or not made by this library's sources */
    int32_t nvrtc_version; /**< 1000 * major + 10 * minor of the compiler that made it */
} sparse_mla_cache_entry;

/** Receives one entry; return non-zero to stop. */
typedef int (*sparse_mla_cache_entry_fn)(void *user, const sparse_mla_cache_entry *entry);

/** What sparse_mla_device_info() reports. */
typedef struct sparse_mla_device {
    size_t struct_size;             /**< sizeof(sparse_mla_device); set by sparse_mla_device_init() */
    char name[128];                 /**< the driver's name of the device */
    int32_t compute_capability;     /**< 10 * major + minor: 120 */
    int32_t sm_count;               /**< multiprocessors */
    int32_t shared_bytes_per_block; /**< opt-in limit */
    int32_t driver_version;         /**< 1000 * major + 10 * minor: 13000 */
    int32_t nvrtc_version;          /**< 1000 * major + 10 * minor; 0: no NVRTC found */
    int32_t profile;                /**< sparse_mla_profile that AUTO means here */
} sparse_mla_device;

/** Fills with zeros and defaults: page_size 64, rope behind the latent. */
static inline void sparse_mla_cache_init(sparse_mla_cache *cache)
{
    memset(cache, 0, sizeof *cache);
    cache->struct_size = sizeof *cache;
    cache->page_size = 64;
    cache->rope_offset_bytes = -1;
    cache->tensor_scale = 1.0f;
}

/** Fills with zeros and defaults: one token per request, bf16 q and out. */
static inline void sparse_mla_decode_args_init(sparse_mla_decode_args *args)
{
    memset(args, 0, sizeof *args);
    args->struct_size = sizeof *args;
    args->q_len = 1;
}

/** Fills with zeros and defaults: one part, bf16 part_out and out. */
static inline void sparse_mla_merge_args_init(sparse_mla_merge_args *args)
{
    memset(args, 0, sizeof *args);
    args->struct_size = sizeof *args;
    args->num_parts = 1;
}

/** Fills with zeros and defaults: one token per request, page_size 64. */
static inline void sparse_mla_map_slots_args_init(sparse_mla_map_slots_args *args)
{
    memset(args, 0, sizeof *args);
    args->struct_size = sizeof *args;
    args->q_len = 1;
    args->page_size = 64;
}

/** Fills with zeros and defaults: bf16 source, the format's own scale rule. */
static inline void sparse_mla_cache_append_args_init(sparse_mla_cache_append_args *args)
{
    memset(args, 0, sizeof *args);
    args->struct_size = sizeof *args;
}

/** Fills with zeros and defaults: CUDA backend, compile on a miss, profile of the device. */
static inline void sparse_mla_options_init(sparse_mla_options *options)
{
    memset(options, 0, sizeof *options);
    options->struct_size = sizeof *options;
}

/** Fills with zeros: for sparse_mla_decode_explain() to write to. */
static inline void sparse_mla_plan_info_init(sparse_mla_plan_info *info)
{
    memset(info, 0, sizeof *info);
    info->struct_size = sizeof *info;
}

/** Fills with zeros: for sparse_mla_device_info() to write to. */
static inline void sparse_mla_device_init(sparse_mla_device *device)
{
    memset(device, 0, sizeof *device);
    device->struct_size = sizeof *device;
}

/**
 * Makes a context. Loads neither driver nor NVRTC: both are opened by the first call that needs them, so this
 * succeeds on a machine that has neither.
 *
 * @param options  NULL: all defaults
 * @param context  receives the context; NULL on failure
 * @return OK, INVALID_ARGUMENT, UNSUPPORTED, OUT_OF_MEMORY
 */
SPARSE_MLA_API sparse_mla_status sparse_mla_create(const sparse_mla_options *options, sparse_mla_context **context);

/**
 * Frees a context; NULL is allowed. No other call may be using it. Loaded modules stay loaded, since captured
 * graphs and launched work may still need them.
 */
SPARSE_MLA_API void sparse_mla_destroy(sparse_mla_context *context);

/**
 * Sparse MLA decode: checks the arguments, plans, launches on `stream` and returns. The first call of a variant
 * compiles it or loads it from the cache (prepare ahead: sparse_mla_decode_prepare()). During stream capture a
 * cold kernel is loaded from memory or disk but never compiled: SPARSE_MLA_NOT_READY then.
 *
 * The same call gives the same bits every time. The device, its context and its SM count are those of `stream`;
 * NULL is the legacy stream of the current context. Thread-safety: any thread, any number at a time, each with
 * its own workspace.
 *
 * With the host backend the work is done when the call returns and `stream` is ignored.
 *
 * @return OK, INVALID_ARGUMENT, UNSUPPORTED, WORKSPACE_TOO_SMALL, NOT_READY, a status of the driver or of the compiler
 */
SPARSE_MLA_API sparse_mla_status sparse_mla_decode(sparse_mla_context *context, const sparse_mla_decode_args *args,
                                                   struct CUstream_st *stream);

/**
 * Compiles or loads every variant that sparse_mla_decode() can choose for 1 .. args->num_tokens tokens of these
 * arguments. Data pointers are not read and may be NULL.
 *
 * @return as sparse_mla_decode(), but never WORKSPACE_TOO_SMALL
 */
SPARSE_MLA_API sparse_mla_status sparse_mla_decode_prepare(sparse_mla_context *context,
                                                           const sparse_mla_decode_args *args,
                                                           struct CUstream_st *stream);

/**
 * Bytes of workspace that serve every call with 1 .. args->num_tokens tokens of these arguments, whatever the
 * lengths. Never shrinks as num_tokens grows; at most 64 MiB; 0 with the host backend. Data pointers are not
 * read and may be NULL. After a failure `bytes` is 0.
 *
 * @return OK, INVALID_ARGUMENT, UNSUPPORTED, a status of the driver
 */
SPARSE_MLA_API sparse_mla_status sparse_mla_decode_workspace(sparse_mla_context *context,
                                                             const sparse_mla_decode_args *args,
                                                             struct CUstream_st *stream, size_t *bytes);

/**
 * Prepares a workspace, once after its allocation: zeroes, on `stream`, the counters at its front. Every decode
 * leaves them zero. The rest may hold anything. Does nothing for 0 bytes or with the host backend.
 *
 * @return OK, INVALID_ARGUMENT, WORKSPACE_TOO_SMALL, a status of the driver
 */
SPARSE_MLA_API sparse_mla_status sparse_mla_workspace_init(sparse_mla_context *context, void *workspace, size_t bytes,
                                                           struct CUstream_st *stream);

/**
 * Plans a call without running it. Data pointers are not read and may be NULL. With the host backend the variant is
 * "host" and all else 0.
 *
 * @return OK, INVALID_ARGUMENT, UNSUPPORTED, a status of the driver
 */
SPARSE_MLA_API sparse_mla_status sparse_mla_decode_explain(sparse_mla_context *context,
                                                           const sparse_mla_decode_args *args,
                                                           struct CUstream_st *stream, sparse_mla_plan_info *info);

/**
 * Merges the outputs of n ranks of context parallelism, each over its share of the keys, into what one call over all
 * keys gives. For every token and head, with natural logarithms:
 *
 *     lse = ln(sum over parts i that are not empty of exp(part_lse[i]))
 *     out = sum over these i, in order, of exp(part_lse[i] - lse) * part_out[i]
 *     sink:  out *= 1 / (1 + exp(sink[h] - lse));  lse itself stays as it is, unless SPARSE_MLA_LSE_WITH_SINK
 *
 * All empty: out = 0 and the lse of an empty row of sparse_mla_decode(). Sums are float32 or better; a part whose
 * exp(part_lse[i]) is below 2^-126 of the largest is not read. Streams, threads, cold kernels and the host backend are
 * as with sparse_mla_decode(); to load the kernel ahead: sparse_mla_tools_prepare(). Needs no workspace.
 *
 * @return OK, INVALID_ARGUMENT, UNSUPPORTED, NOT_READY, a status of the driver or of the compiler
 */
SPARSE_MLA_API sparse_mla_status sparse_mla_merge(sparse_mla_context *context, const sparse_mla_merge_args *args,
                                                  struct CUstream_st *stream);

/**
 * Maps request-local positions to physical slots, once for the many layers that share indices: the same block-table
 * rule, masking and faults as sparse_mla_decode(), whose indices the result can be. Every column of `slots` is written.
 * Streams, threads and cold kernels are as with sparse_mla_merge().
 *
 * @return as sparse_mla_merge()
 */
SPARSE_MLA_API sparse_mla_status sparse_mla_map_slots(sparse_mla_context *context,
                                                      const sparse_mla_map_slots_args *args,
                                                      struct CUstream_st *stream);

/**
 * Writes rows of latent and rope into a paged cache, in any sparse_mla_format:
 *
 * - fp8_ds_mla, fp8_v4: per block of 128 or 64 dims scale = scale_rule(amax), then e4m3(x / scale); rope in bf16. The
 * pad byte of fp8_v4's scales is written 0.
 * - flat bf16 and f16: rounded. Flat e4m3: e4m3(x / tensor_scale), rope too.
 * - q8_0: ggml's quantize_row_q8_0_ref: d = amax / 127, round(x * (1 / d)), halves away from 0, d in f16. A block with
 * a NaN or an infinity is written as d = NaN.
 *
 * Rounding is to nearest even. e4m3 saturates at +-448 and keeps NaN, bf16 and f16 keep both NaN and infinity; all NaN
 * become one. Bytes outside the records are left as they are. CUDA and host backend write the same bytes. Streams,
 * threads and cold kernels are as with sparse_mla_merge().
 *
 * @return as sparse_mla_merge()
 */
SPARSE_MLA_API sparse_mla_status sparse_mla_cache_append(sparse_mla_context *context,
                                                         const sparse_mla_cache_append_args *args,
                                                         struct CUstream_st *stream);

/**
 * Compiles or loads the kernels of sparse_mla_merge(), sparse_mla_map_slots() and sparse_mla_cache_append(), one each.
 * sparse_mla_decode_prepare() leaves them alone. Does nothing with the host backend.
 *
 * @return as sparse_mla_merge()
 */
SPARSE_MLA_API sparse_mla_status sparse_mla_tools_prepare(sparse_mla_context *context, struct CUstream_st *stream);

/**
 * Compiles into the disk cache, for any architecture and without a GPU, every variant that
 * sparse_mla_decode() can choose for 1 .. args->num_tokens tokens of these arguments. A kernel that cannot be
 * written there is a failure: SPARSE_MLA_CACHE_ERROR, or SPARSE_MLA_INVALID_ARGUMENT with options.no_disk_cache.
 *
 * @param context  either backend, though with the host backend it will not run what it compiles
 * @param args     as for sparse_mla_decode_prepare()
 * @param target   "sm_120" and the like: what NVRTC supports
 * @return OK, INVALID_ARGUMENT, UNSUPPORTED, CACHE_ERROR, a status of the compiler
 */
SPARSE_MLA_API sparse_mla_status sparse_mla_warm(sparse_mla_context *context, const sparse_mla_decode_args *args,
                                                 const char *target);

/**
 * Compiles into the disk cache, for any architecture and without a GPU, the kernels of sparse_mla_tools_prepare().
 *
 * @return as sparse_mla_warm(), whose target this is
 */
SPARSE_MLA_API sparse_mla_status sparse_mla_tools_warm(sparse_mla_context *context, const char *target);

/**
 * Visits the entries of the cache directory, in no order. This and the next two: a directory that does not exist is
 * empty; one that may not be trusted or cannot be read is SPARSE_MLA_CACHE_ERROR.
 *
 * @return OK, INVALID_ARGUMENT, CACHE_ERROR
 */
SPARSE_MLA_API sparse_mla_status sparse_mla_cache_list(sparse_mla_context *context, sparse_mla_cache_entry_fn visit,
                                                       void *user);

/**
 * Reads every entry in full; `bad` receives the number of damaged ones.
 *
 * @return OK, INVALID_ARGUMENT, CACHE_ERROR
 */
SPARSE_MLA_API sparse_mla_status sparse_mla_cache_check(sparse_mla_context *context, uint32_t *bad);

/**
 * Deletes every entry of the cache directory; kernels in memory stay usable.
 *
 * @return OK, INVALID_ARGUMENT; CACHE_ERROR when one cannot be deleted, after the others
 */
SPARSE_MLA_API sparse_mla_status sparse_mla_cache_clear(sparse_mla_context *context);

/**
 * Describes the device of `stream`; NULL is the legacy stream of the current context.
 *
 * @return OK, INVALID_ARGUMENT, UNSUPPORTED, a status of the driver
 */
SPARSE_MLA_API sparse_mla_status sparse_mla_device_info(sparse_mla_context *context, struct CUstream_st *stream,
                                                        sparse_mla_device *info);

/** The status as one word: "INVALID_ARGUMENT". Never NULL. */
SPARSE_MLA_API const char *sparse_mla_status_string(sparse_mla_status status);

/** This thread's last failure in one sentence: argument, value, what is allowed. Valid until this thread's next
 *  call. Never NULL. */
SPARSE_MLA_API const char *sparse_mla_last_error(void);

/** 10000 * major + 100 * minor + patch of the library. */
SPARSE_MLA_API int sparse_mla_version(void);

#ifdef __cplusplus
}
#endif
#endif
