/* SPDX-License-Identifier: Apache-2.0 */
#include "runner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { WORKSPACE_BYTES = 64 << 20, POISON_BYTES = 200 * 1024 };

struct CUstream_st *stream;
sparse_mla_context *host_context;
sparse_mla_context *contexts[5];
const char *const profile_names[5] = {"auto", "sm80", "sm89", "sm90", "sm120"};
static void *workspace, *poison;

static void print_log(void *user, sparse_mla_log_level level, const char *message)
{
    (void)user;
    if (level == SPARSE_MLA_LOG_WARNING)
        print_message("warning: %s\n", message);
}

static sparse_mla_context *open_context(int backend, int profile)
{
    sparse_mla_options options;
    sparse_mla_context *context;
    sparse_mla_options_init(&options);
    options.backend = backend;
    options.profile = profile;
    options.log = print_log;
    if (sparse_mla_create(&options, &context) != SPARSE_MLA_OK) {
        fprintf(stderr, "%s\n", sparse_mla_last_error());
        exit(1);
    }
    return context;
}

void runner_open(void)
{
    int major, shared;
    stream = cuda_open();
    CUDA(cuDeviceGetAttribute(&major, 75, 0));
    CUDA(cuDeviceGetAttribute(&shared, 97, 0));
    host_context = open_context(SPARSE_MLA_BACKEND_HOST, 0);
    for (int profile = 0; profile < 5; profile++)
        if (profile <= 1 || major >= 9)
            if (profile != SPARSE_MLA_PROFILE_SM90 || shared >= 232448)
                contexts[profile] = open_context(SPARSE_MLA_BACKEND_CUDA, profile);
    poison = cuda_compile("extern \"C\" __global__ void fill(unsigned words) { extern __shared__ unsigned s[];"
                          "for (unsigned i = threadIdx.x; i < words; i += blockDim.x) s[i] = 0x7F7F7F7Fu;"
                          "__syncthreads(); if (s[threadIdx.x] == 1) __trap(); }",
                          "fill");
    if (poison && shared > POISON_BYTES)
        CUDA(cuFuncSetAttribute(poison, 8, POISON_BYTES));
}

void *runner_workspace(void)
{
    if (!workspace) {
        workspace = cuda_alloc(WORKSPACE_BYTES);
        assert_int_equal(sparse_mla_workspace_init(contexts[0], workspace, WORKSPACE_BYTES, stream), SPARSE_MLA_OK);
    }
    return workspace;
}

void runner_poison_shared(void)
{
    unsigned words = POISON_BYTES / 4;
    void *params[] = {&words};
    if (poison)
        CUDA(cuLaunchKernel(poison, 1024, 1, 1, 256, 1, 1, POISON_BYTES, stream, params, NULL));
}

void runner_decode(sparse_mla_context *context, struct problem *p)
{
    problem_poison(p);
    runner_poison_shared();
    p->device.workspace = runner_workspace();
    p->device.workspace_size = WORKSPACE_BYTES;
    const sparse_mla_status status = sparse_mla_decode(context, &p->device, stream);
    if (status != SPARSE_MLA_OK)
        fail_msg("%s", sparse_mla_last_error());
    CUDA(cuStreamSynchronize(stream));
}

struct errors runner_case(int profile, const struct spec *spec, int samples, double most)
{
    struct problem p;
    problem_init(&p, spec);
    runner_decode(contexts[profile], &p);
    const struct errors e = problem_compare(&p, host_context, samples);
    if (e.special_bad || !(e.relative <= most) || !(e.worst_group <= 2 * most) || !(e.lse <= 2e-5)) {
        print_message("profile %s format %d latent %d rope %d heads %d tokens %d topk %d page %d scales %d out %d seed "
                      "%llu: relative %.2e worst group %.2e head %.2e lse %.2e special %ld\n",
                      profile_names[profile], spec->format, spec->latent, spec->rope, spec->heads, spec->tokens,
                      spec->topk, spec->page_size, spec->scales, spec->out_dtype, (unsigned long long)spec->seed,
                      e.relative, e.worst_group, e.worst_head, e.lse, e.special_bad);
        fail();
    }
    if (samples == 0 || samples >= spec->tokens) {
        uint32_t faults;
        CUDA(cuMemcpyDtoH_v2(&faults, (uintptr_t)p.device.fault_count, sizeof faults));
        assert_int_equal(faults, p.faults);
    }
    problem_free(&p);
    return e;
}
