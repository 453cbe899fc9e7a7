/* SPDX-License-Identifier: Apache-2.0 */
#include "problem.h"

#include <stdlib.h>

uint32_t random_word(uint64_t *state) /* xorshift64* */
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (uint32_t)(*state * 0x2545F4914F6CDD1DULL >> 32);
}

void random_bf16(uint16_t *values, size_t count, uint64_t *state)
{
    for (size_t i = 0; i < count; i++) {
        const float value = (float)(int32_t)random_word(state) * 0x1p-30f;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        values[i] = (uint16_t)(bits >> 16);
    }
}

static void *own(struct problem *problem, void *pointer)
{
    problem->owned[problem->num_owned++] = pointer;
    return pointer;
}

static void *reserve(struct problem *problem, size_t bytes)
{
    return own(problem, device_alloc(&problem->session->device, bytes));
}

void *problem_upload(struct problem *problem, const void *data, size_t bytes)
{
    return own(problem, device_upload(&problem->session->device, data, bytes));
}

/* Every byte the same: 0, or 0xFF, which is NaN in every type. */
static void *upload_filled(struct problem *problem, int byte, size_t bytes)
{
    void *values = host_alloc(bytes);
    if (byte)
        memset(values, byte, bytes);
    void *pointer = problem_upload(problem, values, bytes);
    free(values);
    return pointer;
}

static sparse_mla_status add_workspace(struct problem *problem)
{
    const struct session *session = problem->session;
    sparse_mla_decode_args *args = &problem->call.args;
    const sparse_mla_status status =
        sparse_mla_decode_workspace(session->context, args, session->device.stream, &args->workspace_size);
    if (status != SPARSE_MLA_OK || args->workspace_size == 0)
        return status;
    args->workspace = reserve(problem, args->workspace_size);
    return sparse_mla_workspace_init(session->context, args->workspace, args->workspace_size, session->device.stream);
}

sparse_mla_status problem_init(struct problem *problem, const struct session *session, const struct shape *shape,
                               int64_t num_slots)
{
    sparse_mla_decode_args *args = &problem->call.args;
    const size_t rows = (size_t)shape->tokens * (size_t)shape->heads;
    *problem = (struct problem){.session = session, .shape = *shape};
    call_init(&problem->call, shape, num_slots);
    const sparse_mla_cache *cache = problem->call.caches;
    problem->pool_bytes =
        (size_t)((num_slots + cache->page_size - 1) / cache->page_size) * (size_t)cache->page_stride_bytes;
    problem->call.caches[0].data = upload_filled(problem, 0, problem->pool_bytes);
    if (shape->width.extra)
        problem->call.caches[1].data = upload_filled(problem, 0, problem->pool_bytes);
    args->out =
        upload_filled(problem, 0xFF, rows * (size_t)shape->model->value_dim * (size_t)dtype_bytes(shape->out_dtype));
    args->lse = upload_filled(problem, 0xFF, rows * sizeof *args->lse);
    return add_workspace(problem);
}

void problem_free(struct problem *problem)
{
    while (problem->num_owned)
        device_free(&problem->session->device, problem->owned[--problem->num_owned]);
}

sparse_mla_status problem_append(struct problem *problem, int cache, const uint16_t *rows, const int64_t *slots,
                                 int count)
{
    const struct session *session = problem->session;
    const struct model *model = problem->shape.model;
    sparse_mla_cache_append_args args;
    sparse_mla_cache_append_args_init(&args);
    args.num_rows = count;
    args.latent_dim = model->latent_dim;
    args.rope_dim = model->rope_dim;
    args.latent = rows;
    args.latent_stride = args.rope_stride = model->latent_dim + model->rope_dim;
    args.rope = model->rope_dim ? rows + model->latent_dim : NULL;
    args.slots = slots;
    args.cache = &problem->call.caches[cache];
    return sparse_mla_cache_append(session->context, &args, session->device.stream);
}
