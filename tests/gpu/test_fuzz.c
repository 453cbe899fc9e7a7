/* SPDX-License-Identifier: Apache-2.0 */
/* Small random calls against the host backend:
 *
 *     test_gpu_fuzz [SEED [COUNT]]
 *
 * runs the cases of COUNT seeds from SEED on (1; 2000, or SPARSEMLA_FUZZ_COUNT). A failure prints its seed:
 * test_gpu_fuzz SEED runs that case alone. SPARSEMLA_TEST_THREADS=1 runs one case at a time. */
#include "draw.h"
#include "runner.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TAIL = 4096, ENOUGH_FAILURES = 20 };

struct fuzz {
    uint64_t first;
    int64_t count;
    atomic_llong done, failed;
    bool progress;
};

/* One case under way. */
struct trial {
    struct lane *lane;
    struct problem p;
    sparse_mla_context *context;
    int profile;
    uint64_t seed;
};

static bool fail_trial(const struct trial *t, const char *why)
{
    char text[768];
    spec_describe(&t->p.spec, text, sizeof text);
    fprintf(stderr, "seed %llu profile %s: %s: %s\n", (unsigned long long)t->seed, profile_names[t->profile], why,
            text);
    return false;
}

static bool run_args(const struct trial *t, const sparse_mla_decode_args *args)
{
    if (sparse_mla_decode(t->context, args, t->lane->stream) != SPARSE_MLA_OK)
        return fail_trial(t, sparse_mla_last_error());
    if (cuda.cuStreamSynchronize(t->lane->stream) != 0) {
        fail_trial(t, "a CUDA error, of this case or one beside it");
        exit(1);
    }
    return true;
}

/* Exactly as much as the library asks for, and a guard behind. */
static bool give_workspace(struct trial *t)
{
    sparse_mla_decode_args *args = &t->p.device;
    if (sparse_mla_decode_workspace(t->context, args, t->lane->stream, &args->workspace_size) != SPARSE_MLA_OK)
        return fail_trial(t, sparse_mla_last_error());
    if (args->workspace_size > WORKSPACE_BYTES)
        return fail_trial(t, "a workspace of more than 64 MiB");
    args->workspace = args->workspace_size ? t->lane->workspace : NULL;
    return true;
}

static unsigned char *behind_workspace(const struct trial *t)
{
    const sparse_mla_decode_args *args = &t->p.device;
    return args->workspace && args->workspace_size + TAIL <= WORKSPACE_BYTES
               ? (unsigned char *)args->workspace + args->workspace_size
               : NULL;
}

static void guard_workspace(const struct trial *t)
{
    unsigned char poison[TAIL];
    unsigned char *behind = behind_workspace(t);
    memset(poison, 0xFF, TAIL);
    if (!behind)
        return;
    CUDA(cuMemcpyHtoDAsync_v2((uintptr_t)behind, poison, TAIL, t->lane->stream));
    CUDA(cuStreamSynchronize(t->lane->stream));
}

static bool check_workspace(const struct trial *t)
{
    unsigned char tail[TAIL];
    const unsigned char *behind = behind_workspace(t);
    if (!behind)
        return true;
    CUDA(cuMemcpyDtoHAsync_v2(tail, (uintptr_t)behind, TAIL, t->lane->stream));
    CUDA(cuStreamSynchronize(t->lane->stream));
    for (int i = 0; i < TAIL; i++)
        if (tail[i] != 0xFF)
            return fail_trial(t, "written behind the workspace");
    return true;
}

/* The device's out, then lse, as they lie in the arena. */
static unsigned char *read_outputs(const struct trial *t)
{
    const struct problem *p = &t->p;
    unsigned char *bytes = malloc(p->out_bytes + p->lse_bytes);
    if (!bytes)
        exit(1);
    CUDA(cuMemcpyDtoHAsync_v2(bytes, (uintptr_t)p->device.out, p->out_bytes, t->lane->stream));
    if (p->device.lse)
        CUDA(cuMemcpyDtoHAsync_v2(bytes + p->out_bytes, (uintptr_t)p->device.lse, p->lse_bytes, t->lane->stream));
    else
        memset(bytes + p->out_bytes, 0xFF, p->lse_bytes);
    CUDA(cuStreamSynchronize(t->lane->stream));
    return bytes;
}

/* The same call has the same bits. */
static bool check_repeat(struct trial *t)
{
    const size_t bytes = t->p.out_bytes + t->p.lse_bytes;
    unsigned char *first = read_outputs(t);
    problem_poison(&t->p);
    bool good = run_args(t, &t->p.device);
    unsigned char *again = read_outputs(t);
    if (good && memcmp(first, again, bytes) != 0)
        good = fail_trial(t, "the same call had other bits");
    free(first);
    free(again);
    return good;
}

/* With BATCH_INVARIANT a token alone has the bits that it has among others: each is run again in the place where it is.
 */
static bool check_alone(struct trial *t)
{
    const size_t bytes = t->p.out_bytes + t->p.lse_bytes;
    unsigned char *together = read_outputs(t);
    problem_poison(&t->p);
    bool good = true;
    for (int token = 0; token < t->p.spec.tokens && good; token++) {
        struct part part;
        part_init(&part, &t->p.device, token, 1, 0, t->p.spec.heads);
        good = run_args(t, &part.args);
    }
    unsigned char *alone = read_outputs(t);
    if (good && memcmp(together, alone, bytes) != 0)
        good = fail_trial(t, "a token alone had other bits");
    free(together);
    free(alone);
    return good;
}

static bool check_values(struct trial *t)
{
    const struct errors e = problem_compare(&t->p, host_context, 0);
    /* Rows with a key or two have few values, whose rounding has no average: only what is beyond it counts. */
    const double most = 2 * problem_tolerance(&t->p.spec);
    char why[200];
    if (problem_within(&t->p.spec, &e, most))
        return true;
    snprintf(why, sizeof why, "relative %.2e group %.2e beyond rounding %.2e group %.2e lse %.2e special %ld",
             e.relative, e.worst_group, e.beyond, e.group_beyond, e.lse, e.special_bad);
    return fail_trial(t, why);
}

static bool run_trial(struct trial *t, const struct spec *spec)
{
    problem_init_in(&t->p, spec, t->lane->arena);
    t->p.threads = 1;
    if (!give_workspace(t))
        return false;
    guard_workspace(t);
    if (t->seed % 4 == 0)
        runner_poison_shared(t->lane->stream);
    if (!run_args(t, &t->p.device))
        return false;
    if (spec->flags & SPARSE_MLA_BATCH_INVARIANT ? !check_alone(t) : t->seed % 4 == 1 && !check_repeat(t))
        return false;
    return check_values(t) && check_workspace(t);
}

static void run_seed(struct lane *lane, int64_t i, void *user)
{
    struct fuzz *fuzz = user;
    struct spec spec;
    struct trial t = {.lane = lane, .seed = fuzz->first + (uint64_t)i};
    if (atomic_load(&fuzz->failed) >= ENOUGH_FAILURES)
        return;
    t.profile = draw_case(&spec, t.seed);
    t.profile = contexts[t.profile] ? t.profile : 0;
    t.context = contexts[t.profile];
    if (!run_trial(&t, &spec))
        atomic_fetch_add(&fuzz->failed, 1);
    const long long done = atomic_fetch_add(&fuzz->done, 1) + 1;
    if (fuzz->progress && done % 256 == 0)
        fprintf(stderr, "\r%lld", done);
}

int main(int argc, char **argv)
{
    const char *count = getenv("SPARSEMLA_FUZZ_COUNT");
    struct fuzz fuzz = {.first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1,
                        .count = argc > 2   ? atoll(argv[2])
                                 : argc > 1 ? 1
                                 : count    ? atoll(count)
                                            : 2000,
                        .progress = isatty(2)};
    runner_open();
    runner_parallel(fuzz.count, run_seed, &fuzz);
    printf("%lld cases of seeds %llu to %llu, %lld failed%s\n", (long long)fuzz.done, (unsigned long long)fuzz.first,
           (unsigned long long)fuzz.first + (unsigned long long)fuzz.count - 1, (long long)fuzz.failed,
           fuzz.done < fuzz.count ? ": stopped" : "");
    return fuzz.failed > 0;
}
