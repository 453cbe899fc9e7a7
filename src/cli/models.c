/* SPDX-License-Identifier: Apache-2.0 */
#include "models.h"

#include <math.h>

enum { PAGE = 64, V4_ROW = 576 };

const struct model models[] = {
    {"glm-5",
     "GLM-5, 5.1, 5.2, 5.3",
     512,
     64,
     512,
     256,
     64,
     SPARSE_MLA_BF16,
     SPARSE_MLA_BF16,
     {SPARSE_MLA_FP8_DS_MLA, SPARSE_MLA_FLAT_BF16},
     2,
     {{2048, 0}},
     1},
    {"glm-5.3-flash",
     "GLM-5.3-Flash, rope-free, top-k with a tail",
     512,
     0,
     512,
     256,
     64,
     SPARSE_MLA_BF16,
     SPARSE_MLA_BF16,
     {SPARSE_MLA_FP8_DS_MLA, SPARSE_MLA_FP8_DS_MLA_NOPE, SPARSE_MLA_FLAT_BF16},
     3,
     {{2051, 0}, {2176, 0}},
     2},
    {"deepseek-v3.2",
     "DeepSeek-V3.2",
     512,
     64,
     512,
     192,
     128,
     SPARSE_MLA_BF16,
     SPARSE_MLA_BF16,
     {SPARSE_MLA_FP8_DS_MLA, SPARSE_MLA_FLAT_BF16},
     2,
     {{2048, 0}},
     1},
    {"deepseek-v4-flash",
     "DeepSeek-V4-Flash, two caches",
     448,
     64,
     512,
     512,
     64,
     SPARSE_MLA_BF16,
     SPARSE_MLA_BF16,
     {SPARSE_MLA_FP8_V4},
     1,
     {{128, 512}},
     1},
    {"deepseek-v4-pro",
     "DeepSeek-V4-Pro, two caches",
     448,
     64,
     512,
     512,
     128,
     SPARSE_MLA_BF16,
     SPARSE_MLA_BF16,
     {SPARSE_MLA_FP8_V4},
     1,
     {{128, 1024}, {128, 8320}},
     2},
    {"llama.cpp",
     "llama.cpp and ik_llama.cpp: float32 queries",
     512,
     64,
     512,
     256,
     64,
     SPARSE_MLA_F32,
     SPARSE_MLA_F32,
     {SPARSE_MLA_FLAT_F16, SPARSE_MLA_Q8_0},
     2,
     {{2048, 0}},
     1},
    {0},
};

const char *const format_names[] = {"fp8_ds_mla", "fp8_ds_mla_nope", "bf16", "f16", "e4m3", "v4", "q8_0", NULL};
const char *const dtype_names[] = {"bf16", "f16", "f32", NULL};

int dtype_bytes(int dtype)
{
    return dtype == SPARSE_MLA_F32 ? 4 : 2;
}

int record_bytes(int format, const struct model *model)
{
    const int dims = model->latent_dim + model->rope_dim;
    switch (format) {
    case SPARSE_MLA_FP8_DS_MLA:
        return 656;
    case SPARSE_MLA_FP8_DS_MLA_NOPE:
        return 528;
    case SPARSE_MLA_FLAT_E4M3:
        return dims;
    case SPARSE_MLA_FP8_V4:
        return 584;
    case SPARSE_MLA_Q8_0:
        return dims / 32 * 34;
    default:
        return 2 * dims;
    }
}

static void cache_init(sparse_mla_cache *cache, const struct shape *shape, int topk, int64_t num_slots)
{
    const int bytes = record_bytes(shape->format, shape->model);
    sparse_mla_cache_init(cache);
    cache->format = shape->format;
    cache->num_slots = num_slots;
    cache->page_size = PAGE;
    cache->row_stride_bytes = shape->format == SPARSE_MLA_FP8_V4 ? V4_ROW : bytes;
    cache->page_stride_bytes = (int64_t)PAGE * bytes;
    cache->tensor_scale = shape->format == SPARSE_MLA_FLAT_E4M3 ? 0.5f : 0;
    cache->topk = topk;
    cache->indices_request_stride = cache->indices_token_stride = topk;
}

void call_init(struct call *call, const struct shape *shape, int64_t num_slots)
{
    const struct model *model = shape->model;
    const int64_t q_row = model->latent_dim + model->rope_dim;
    sparse_mla_decode_args *args = &call->args;
    cache_init(&call->caches[0], shape, shape->width.topk, num_slots);
    cache_init(&call->caches[1], shape, shape->width.extra, num_slots);
    sparse_mla_decode_args_init(args);
    args->num_tokens = shape->tokens;
    args->num_heads = shape->heads;
    args->latent_dim = model->latent_dim;
    args->rope_dim = model->rope_dim;
    args->value_dim = model->value_dim;
    args->scale = 1 / sqrtf((float)model->head_dim);
    args->q_dtype = shape->q_dtype;
    args->out_dtype = shape->out_dtype;
    args->q_latent_head_stride = q_row;
    args->q_latent_token_stride = args->q_latent_request_stride = q_row * shape->heads;
    args->main_cache = &call->caches[0];
    args->extra_cache = shape->width.extra ? &call->caches[1] : NULL;
    args->out_head_stride = model->value_dim;
    args->out_token_stride = args->out_request_stride = (int64_t)model->value_dim * shape->heads;
    args->lse_head_stride = 1;
    args->lse_token_stride = args->lse_request_stride = shape->heads;
}

const char *width_text(struct width width, char text[32])
{
    if (width.extra)
        snprintf(text, 32, "%d + %d", width.topk, width.extra);
    else
        snprintf(text, 32, "%d", width.topk);
    return text;
}
