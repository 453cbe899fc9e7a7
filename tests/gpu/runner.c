/* SPDX-License-Identifier: Apache-2.0 */
#include "runner.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_LANES = 16 };

static const size_t ARENA_BYTES = (size_t)64 << 30;

struct CUstream_st *stream;
sparse_mla_context *host_context;
sparse_mla_context *contexts[5];
const char *const profile_names[5] = {"auto", "sm80", "sm89", "sm90", "sm120"};
static void *workspace, *poison;
static int poison_bytes; /* of shared memory per block */

static void print_log(void *user, sparse_mla_log_level level, const char *message)
{
    (void)user;
    if (level == SPARSE_MLA_LOG_WARNING)
        fprintf(stderr, "warning: %s\n", message);
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
                          "for (unsigned i = threadIdx.x; i < words; i += blockDim.x) s[i] = ~0u;"
                          "__syncthreads(); if (s[threadIdx.x] == 1) __trap(); }",
                          "fill");
    poison_bytes = shared < 200 * 1024 ? shared : 200 * 1024;
    if (poison)
        CUDA(cuFuncSetAttribute(poison, 8, poison_bytes));
}

static void *new_workspace(struct CUstream_st *on)
{
    void *memory = cuda_alloc(WORKSPACE_BYTES);
    if (sparse_mla_workspace_init(contexts[0], memory, WORKSPACE_BYTES, on) != SPARSE_MLA_OK) {
        fprintf(stderr, "%s\n", sparse_mla_last_error());
        exit(1);
    }
    return memory;
}

void *runner_workspace(void)
{
    if (!workspace)
        workspace = new_workspace(stream);
    return workspace;
}

void runner_poison_shared(struct CUstream_st *on)
{
    unsigned words = (unsigned)poison_bytes / 4;
    void *params[] = {&words};
    if (poison)
        CUDA(cuLaunchKernel(poison, 1024, 1, 1, 256, 1, 1, (unsigned)poison_bytes, on, params, NULL));
}

void runner_decode(sparse_mla_context *context, struct problem *p)
{
    problem_poison(p);
    runner_poison_shared(stream);
    p->device.workspace = runner_workspace();
    p->device.workspace_size = WORKSPACE_BYTES;
    const sparse_mla_status status = sparse_mla_decode(context, &p->device, stream);
    if (status != SPARSE_MLA_OK)
        fail_msg("%s", sparse_mla_last_error());
    CUDA(cuStreamSynchronize(stream));
}

/* ---- threads */

struct parallel {
    int64_t count;
    void (*job)(struct lane *lane, int64_t i, void *user);
    void *user;
    atomic_llong next;
};

struct thread {
    pthread_t id;
    struct parallel *all;
    struct lane *lane;
};

/* They last as long as the program. */
static struct lane lanes[MAX_LANES];

static void open_lane(struct lane *lane)
{
    if (lane->stream)
        return;
    CUDA(cuStreamCreate(&lane->stream, 1));
    lane->workspace = new_workspace(lane->stream);
    lane->arena = arena_new(lane->stream, ARENA_BYTES);
}

static void *run_thread(void *argument)
{
    struct thread *thread = argument;
    struct parallel *all = thread->all;
    cuda_attach();
    open_lane(thread->lane);
    for (int64_t i; (i = atomic_fetch_add(&all->next, 1)) < all->count;)
        all->job(thread->lane, i, all->user);
    return NULL;
}

void runner_parallel(int64_t count, void (*job)(struct lane *lane, int64_t i, void *user), void *user)
{
    struct parallel all = {.count = count, .job = job, .user = user};
    struct thread threads[MAX_LANES];
    const char *limit = getenv("SPARSEMLA_TEST_THREADS");
    const long processors = limit ? atoi(limit) : sysconf(_SC_NPROCESSORS_ONLN);
    int n = processors < 1 ? 1 : processors > MAX_LANES ? MAX_LANES : (int)processors;
    n = n > count ? (int)count : n;
    for (int i = 0; i < n; i++) {
        threads[i] = (struct thread){.all = &all, .lane = &lanes[i]};
        if (pthread_create(&threads[i].id, NULL, run_thread, &threads[i]) != 0)
            exit(1);
    }
    for (int i = 0; i < n; i++)
        pthread_join(threads[i].id, NULL);
}

/* ---- cases */

void runner_add(struct case_list *list, int profile, const struct spec *spec, int samples, double most)
{
    if (!contexts[profile])
        return;
    if ((list->count & (list->count - 1)) == 0) { /* at powers of two */
        list->cases = realloc(list->cases, sizeof *list->cases * (size_t)(list->count ? 2 * list->count : 1));
        if (!list->cases)
            exit(1);
    }
    list->cases[list->count++] = (struct test_case){
        .profile = profile, .spec = *spec, .samples = samples, .most = most > 0 ? most : problem_tolerance(spec)};
}

static void report(const struct test_case *c, const char *why)
{
    char text[768];
    const struct errors *e = &c->errors;
    spec_describe(&c->spec, text, sizeof text);
    fprintf(stderr,
            "profile %s %s: %s relative %.2e worst group %.2e head %.2e beyond rounding %.2e group %.2e lse %.2e "
            "special %ld, allowed %.1e\n",
            profile_names[c->profile], text, why, e->relative, e->worst_group, e->worst_head, e->beyond,
            e->group_beyond, e->lse, e->special_bad, c->most);
}

static void run_case(struct lane *lane, int64_t i, void *user)
{
    const struct case_list *list = user;
    struct test_case *c = &list->cases[i];
    struct problem p;
    problem_init_in(&p, &c->spec, lane->arena);
    p.threads = list->count > 1 ? 1 : 0;
    p.device.workspace = lane->workspace;
    p.device.workspace_size = WORKSPACE_BYTES;
    runner_poison_shared(lane->stream);
    if (sparse_mla_decode(contexts[c->profile], &p.device, lane->stream) != SPARSE_MLA_OK) {
        c->failed = true;
        report(c, sparse_mla_last_error());
        return;
    }
    if (cuda.cuStreamSynchronize(lane->stream) != 0) {
        report(c, "a CUDA error, of this case or one beside it (SPARSEMLA_TEST_THREADS=1 tells):");
        exit(1);
    }
    c->errors = problem_compare(&p, host_context, c->samples);
    c->failed = !problem_within(&c->spec, &c->errors, c->most);
    if (c->failed)
        report(c, "");
}

void runner_run(struct case_list *list)
{
    int failed = 0;
    runner_parallel(list->count, run_case, list);
    for (int i = 0; i < list->count; i++)
        failed += list->cases[i].failed;
    if (failed)
        fail_msg("%d of %d cases", failed, list->count);
}

void runner_drop(struct case_list *list)
{
    free(list->cases);
    *list = (struct case_list){0};
}

struct errors runner_case(int profile, const struct spec *spec, int samples, double most)
{
    struct case_list list = {0};
    struct errors errors = {0};
    runner_add(&list, profile, spec, samples, most);
    runner_run(&list);
    if (list.count)
        errors = list.cases[0].errors;
    runner_drop(&list);
    return errors;
}
