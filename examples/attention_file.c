/* SPDX-License-Identifier: Apache-2.0 */
#include "attention_file.h"

#include "device.h"
#include "kv_cache.h"
#include "safetensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A dimension that several tensors share takes its value from the first. */
static void bind_dims(const struct safetensors *from, const struct safetensors_tensor *tensor, const char *name,
                      int num_dims, int64_t *const dims[])
{
    if (tensor->num_dims != num_dims)
        fail("%s: %s has %d dimensions, not %d", from->path, name, tensor->num_dims, num_dims);
    for (int i = 0; i < num_dims; i++) {
        if (*dims[i] < 0)
            *dims[i] = tensor->dims[i];
        if (*dims[i] != tensor->dims[i])
            fail("%s: dimension %d of %s is %lld, but %lld in tensors before it", from->path, i, name,
                 (long long)tensor->dims[i], (long long)*dims[i]);
    }
}

static float *load_floats(struct safetensors *from, const char *name, int num_dims, int64_t *const dims[])
{
    struct safetensors_tensor tensor;
    if (!safetensors_find(from, name, &tensor))
        fail("%s", from->error);
    bind_dims(from, &tensor, name, num_dims, dims);
    float *values = host_alloc((size_t)tensor.count * sizeof(float));
    if (strcmp(tensor.dtype, "F32") == 0) {
        memcpy(values, tensor.data, (size_t)tensor.count * sizeof(float));
    } else if (strcmp(tensor.dtype, "BF16") == 0) {
        for (int64_t i = 0; i < tensor.count; i++)
            values[i] = bf16_to_float((uint16_t)(tensor.data[2 * i] | tensor.data[2 * i + 1] << 8));
    } else {
        fail("%s: %s is %s, not F32 or BF16", from->path, name, tensor.dtype);
    }
    return values;
}

static int32_t *load_indices(struct safetensors *from, const char *name, int num_dims, int64_t *const dims[])
{
    struct safetensors_tensor tensor;
    if (!safetensors_find(from, name, &tensor))
        fail("%s", from->error);
    bind_dims(from, &tensor, name, num_dims, dims);
    if (strcmp(tensor.dtype, "I32") != 0)
        fail("%s: %s is %s, not I32", from->path, name, tensor.dtype);
    int32_t *values = host_alloc((size_t)tensor.count * sizeof(int32_t));
    memcpy(values, tensor.data, (size_t)tensor.count * sizeof(int32_t));
    return values;
}

static float load_scale(const struct safetensors *from, const struct attention_file *file)
{
    const char *text = safetensors_metadata(from, "scale");
    char *end = NULL;
    if (!text)
        return 1.0f / sqrtf((float)(file->nope_dim + file->rope_dim));
    float scale = strtof(text, &end);
    if (end == text || *end != '\0' || !isfinite(scale))
        fail("%s: __metadata__.scale is \"%.40s\", not a number", from->path, text);
    return scale;
}

static void require(const char *path, const char *name, int64_t value, int64_t min, int64_t max)
{
    if (value < min || value > max)
        fail("%s: the file has %lld %s; %lld to %lld are possible", path, (long long)value, name, (long long)min,
             (long long)max);
}

/* Where each size is needed from memory, so that products of them cannot overflow later. */
static void require_sizes(const struct attention_file *file, const char *path)
{
    require(path, "tokens", file->tokens, 1, INT32_MAX);
    require(path, "heads", file->heads, 1, 128);
    require(path, "keys", file->keys, 1, INT32_MAX);
    require(path, "columns of topk", file->topk, 1, INT32_MAX);
    require(path, "nope dims", file->nope_dim, 1, 65536);
    require(path, "rope dims", file->rope_dim, 0, 64);
    require(path, "latent dims", file->latent_dim, 1, 512);
    require(path, "value dims", file->value_dim, 1, 65536);
}

void attention_file_load(struct attention_file *file, const char *path)
{
    struct safetensors from;
    int64_t *tokens = &file->tokens, *heads = &file->heads, *keys = &file->keys, *topk = &file->topk;
    int64_t *nope = &file->nope_dim, *rope = &file->rope_dim, *latent = &file->latent_dim, *value = &file->value_dim;
    *tokens = *heads = *keys = *topk = *nope = *rope = *latent = *value = -1;
    if (!safetensors_open(&from, path))
        fail("%s", from.error);
    file->q_nope = load_floats(&from, "q_nope", 3, (int64_t *[]){tokens, heads, nope});
    file->q_rope = load_floats(&from, "q_rope", 3, (int64_t *[]){tokens, heads, rope});
    file->latent = load_floats(&from, "latent", 2, (int64_t *[]){keys, latent});
    file->k_rope = load_floats(&from, "k_rope", 2, (int64_t *[]){keys, rope});
    file->w_uk = load_floats(&from, "w_uk", 3, (int64_t *[]){heads, nope, latent});
    file->w_uv = load_floats(&from, "w_uv", 3, (int64_t *[]){heads, value, latent});
    file->attention = load_floats(&from, "attention", 3, (int64_t *[]){tokens, heads, value});
    file->indices = load_indices(&from, "topk", 2, (int64_t *[]){tokens, topk});
    require_sizes(file, path);
    file->scale = load_scale(&from, file);
    safetensors_close(&from);
}

void attention_file_free(struct attention_file *file)
{
    free(file->q_nope);
    free(file->q_rope);
    free(file->latent);
    free(file->k_rope);
    free(file->w_uk);
    free(file->w_uv);
    free(file->attention);
    free(file->indices);
}

static void absorb_head(const struct attention_file *file, int64_t token, int64_t head, float *absorbed, uint16_t *q)
{
    int64_t row = token * file->heads + head, latent = file->latent_dim;
    memset(absorbed, 0, (size_t)latent * sizeof *absorbed);
    for (int64_t n = 0; n < file->nope_dim; n++) {
        float factor = file->q_nope[row * file->nope_dim + n];
        const float *weights = file->w_uk + (head * file->nope_dim + n) * latent;
        for (int64_t i = 0; i < latent; i++)
            absorbed[i] += factor * weights[i];
    }
    for (int64_t i = 0; i < latent; i++)
        q[i] = float_to_bf16(absorbed[i]);
    for (int64_t i = 0; i < file->rope_dim; i++)
        q[latent + i] = float_to_bf16(file->q_rope[row * file->rope_dim + i]);
}

uint16_t *absorb_queries(const struct attention_file *file)
{
    int64_t width = file->latent_dim + file->rope_dim;
    uint16_t *q = host_alloc((size_t)(file->tokens * file->heads * width) * sizeof *q);
    float *absorbed = host_alloc((size_t)file->latent_dim * sizeof *absorbed);
    for (int64_t token = 0; token < file->tokens; token++)
        for (int64_t head = 0; head < file->heads; head++)
            absorb_head(file, token, head, absorbed, q + (token * file->heads + head) * width);
    free(absorbed);
    return q;
}

double relative_error(const struct attention_file *file, int64_t token, int64_t head, const uint16_t *out)
{
    const float *expected = file->attention + (token * file->heads + head) * file->value_dim;
    double error = 0, norm = 0;
    for (int64_t v = 0; v < file->value_dim; v++) {
        const float *weights = file->w_uv + (head * file->value_dim + v) * file->latent_dim;
        double value = 0;
        for (int64_t i = 0; i < file->latent_dim; i++)
            value += weights[i] * bf16_to_float(out[i]);
        error += (value - expected[v]) * (value - expected[v]);
        norm += (double)expected[v] * expected[v];
    }
    return error == 0 ? 0 : sqrt(error / norm);
}

static bool is_key(const struct attention_file *file, int32_t index)
{
    return index >= 0 && index < file->keys;
}

int64_t count_keys(const struct attention_file *file, int64_t token)
{
    int64_t count = 0;
    for (int64_t i = 0; i < file->topk; i++)
        count += is_key(file, file->indices[token * file->topk + i]);
    return count;
}

static float logit(const struct attention_file *file, const uint16_t *q, int64_t key)
{
    const float *latent = file->latent + key * file->latent_dim, *rope = file->k_rope + key * file->rope_dim;
    float sum = 0;
    for (int64_t i = 0; i < file->latent_dim; i++)
        sum += bf16_to_float(q[i]) * latent[i];
    for (int64_t i = 0; i < file->rope_dim; i++)
        sum += bf16_to_float(q[file->latent_dim + i]) * rope[i];
    return file->scale * sum;
}

double max_probability(const struct attention_file *file, int64_t token, const uint16_t *q)
{
    double best = 0;
    for (int64_t head = 0; head < file->heads; head++) {
        const uint16_t *row = q + (token * file->heads + head) * (file->latent_dim + file->rope_dim);
        float max = -INFINITY;
        double sum = 0; /* of exp(logit - max) */
        for (int64_t i = 0; i < file->topk; i++) {
            int32_t key = file->indices[token * file->topk + i];
            if (!is_key(file, key))
                continue;
            float s = logit(file, row, key);
            sum = s > max ? sum * exp(max - s) + 1 : sum + exp(s - max);
            max = fmaxf(max, s);
        }
        best = fmax(best, sum > 0 ? 1 / sum : 0);
    }
    return best;
}
