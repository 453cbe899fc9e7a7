/* SPDX-License-Identifier: Apache-2.0 */
/* Nanoseconds of the processor per warm sparse_mla_decode(), on a fake driver whose functions return at once: what a
 * call costs above those of the driver (cuStreamGetCtx, cuCtxGetId, cuCtxGetCurrent and cuLaunchKernelEx). Median,
 * least and most of the batches. CSV on standard output. */
#include "../unit/fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { BATCHES = 31, CALLS = 20000 };

static int launch_nothing(const struct smla_cu_launch_config *config, struct CUfunc_st *function, void **params,
                          void **extra)
{
    (void)config, (void)function, (void)params, (void)extra;
    return SMLA_CU_SUCCESS;
}

static void call(sparse_mla_context *context, const sparse_mla_decode_args *args)
{
    if (sparse_mla_decode(context, args, NULL) == SPARSE_MLA_OK)
        return;
    fprintf(stderr, "%s\n", sparse_mla_last_error());
    exit(1);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e9 * (double)time.tv_sec + (double)time.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(sparse_mla_context *context, int heads, int tokens)
{
    sparse_mla_cache cache;
    sparse_mla_decode_args args;
    double times[BATCHES];
    fake_glm5(&args, &cache);
    args.num_tokens = tokens;
    args.num_heads = heads;
    args.q_latent_request_stride = args.q_latent_token_stride = (int64_t)heads * 576;
    args.out_request_stride = args.out_token_stride = (int64_t)heads * 512;
    call(context, &args); /* compiles */
    context->driver.launch_kernel_ex = launch_nothing;
    for (int batch = 0; batch < BATCHES; batch++) {
        const double start = now();
        for (int i = 0; i < CALLS; i++)
            call(context, &args);
        times[batch] = (now() - start) / CALLS;
    }
    qsort(times, BATCHES, sizeof *times, compare);
    printf("%d,%d,%.0f,%.0f,%.0f\n", heads, tokens, times[BATCHES / 2], times[0], times[BATCHES - 1]);
}

int main(void)
{
    static const int heads[] = {8, 64, 128}, tokens[] = {1, 16, 64, 128, 256};
    sparse_mla_options options;
    sparse_mla_context *context;
    sparse_mla_options_init(&options);
    options.no_disk_cache = 1;
    fake_reset();
    if (smla_context_create(&options, &fake_edges, &context) != SPARSE_MLA_OK)
        return 1;
    printf("heads,tokens,ns_median,ns_min,ns_max\n");
    for (size_t h = 0; h < sizeof heads / sizeof *heads; h++)
        for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++)
            measure(context, heads[h], tokens[t]);
    sparse_mla_destroy(context);
    return 0;
}
