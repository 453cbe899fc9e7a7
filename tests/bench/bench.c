/* SPDX-License-Identifier: Apache-2.0 */
/* Microseconds per decode call: replays of a captured graph over rotating inputs larger than the L2, median of the
 * replays, beside the time of a kernel that only reads the same rows. CSV on standard output.
 *
 *   bench [--heads 8,64] [--tokens 1,16,64,128,256] [--format fp8|bf16|f16|e4m3|v4|q8]
 *         [--profile auto|sm80|sm89|sm90|sm120] [--topk 2048] [--extra 0] [--ragged] [--invariant] [--splits N]
 *         [--variant NAME]
 *
 * --extra: columns of a second cache. --ragged: lengths uniform in 1 .. topk; the floor is that of half the columns.
 */
#define _GNU_SOURCE
#include "../gpu/cuda.h"

#include "context.h"
#include "launch.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LIST = 16, REPLAYS = 15, MAX_SETS = 64 };

static const char source[] =
    "extern \"C\" __global__ void fill(unsigned char *pool, unsigned long long rows, int row_bytes, int kind) {\n"
    "  unsigned long long r = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;\n"
    "  if (r >= rows) return;\n"
    "  unsigned long long s = r * 0x9E3779B97F4A7C15ull + 12345;\n"
    "  unsigned *row = (unsigned *)(pool + r * row_bytes);\n"
    "  for (int i = 0; i < row_bytes / 4; i++) {\n"
    "    s ^= s << 13; s ^= s >> 7; s ^= s << 17;\n"
    "    unsigned w = (unsigned)(s >> 32);\n"
    /* fp8: e4m3 up to 240 of either sign, scales near 2^-8; 16-bit elements below 2 of either sign; other records:
     * bytes that are small as an element and as a scale */
    "    if (kind > 3) w = (w & 0x0F0F0F0Fu) | 0x30303030u;\n"
    "    else if (!kind && i < 128) w &= 0xF7F7F7F7u;\n"
    "    else if (!kind && i < 132) w = 0x3B800000u | (w & 0x7FFFFFu);\n"
    "    else w = (w & 0x80FF80FFu) | 0x3F003F00u;\n"
    "    row[i] = w;\n"
    "  }\n"
    "}\n"
    "extern \"C\" __global__ void __launch_bounds__(256) read_rows(const unsigned char *pool, const int *indices,\n"
    "    int topk, int row_bytes, unsigned *out) {\n"
    "  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = (topk + gridDim.y - 1) / gridDim.y;\n"
    "  int begin = blockIdx.y * part, end = min(begin + part, topk), units = row_bytes / 16;\n"
    "  unsigned x = 0;\n"
    "  for (int j = begin + warp * 4; j < end; j += 32) {\n"
    "    uint4 v[4], w[4];\n"
    "    for (int i = 0; i < 4; i++) {\n"
    "      int index = indices[(size_t)blockIdx.x * topk + min(j + i, end - 1)];\n"
    "      const uint4 *row = (const uint4 *)(pool + (size_t)index * row_bytes);\n"
    "      v[i] = __ldg(row + lane);\n"
    "      w[i] = lane + 32 < units ? __ldg(row + lane + 32) : v[i];\n"
    "    }\n"
    "    for (int i = 0; i < 4; i++)\n"
    "      x ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w ^ w[i].x ^ w[i].y ^ w[i].z ^ w[i].w;\n"
    "  }\n"
    "  if (x == 0x12345678u) out[threadIdx.x] = x;\n"
    "}\n";

struct settings {
    int heads[MAX_LIST], tokens[MAX_LIST], num_heads, num_tokens;
    int format, profile, topk, extra, splits, row_bytes, columns;
    bool ragged;
    uint32_t flags;
    struct smla_variant variant; /* latent_dim 0: the planner's */
};

struct bench {
    struct settings settings;
    struct CUstream_st *stream;
    sparse_mla_context *context;
    void *read_rows, *pool, *out, *q, *lse, *workspace;
    size_t workspace_bytes;
    uint64_t rows;
    int32_t *indices; /* device, [set][token][columns] */
    int32_t *lengths; /* device, [set][token] */
    int sets;
};

static void check(sparse_mla_status status)
{
    if (status == SPARSE_MLA_OK)
        return;
    fprintf(stderr, "%s: %s\n", sparse_mla_status_string(status), sparse_mla_last_error());
    exit(1);
}

static int parse_list(int *list, const char *text)
{
    int count = 0;
    char *copy = strdup(text), *rest = copy, *item;
    while (copy && (item = strsep(&rest, ",")) && count < MAX_LIST)
        list[count++] = atoi(item);
    free(copy);
    return count;
}

static int find(const char *const *names, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (names[i] && strcmp(names[i], name) == 0)
            return i;
    fprintf(stderr, "unknown name %s\n", name);
    exit(2);
}

static struct settings parse(int argc, char **argv)
{
    static const char *const formats[] = {"fp8", NULL, "bf16", "f16", "e4m3", "v4", "q8"};
    static const int row_bytes[] = {656, 0, 1152, 1152, 576, 576, 612};
    static const char *const profiles[] = {"auto", "sm80", "sm89", "sm90", "sm120"};
    static const struct option options[] = {{"heads", 1, 0, 'h'},     {"tokens", 1, 0, 't'}, {"format", 1, 0, 'f'},
                                            {"profile", 1, 0, 'p'},   {"topk", 1, 0, 'k'},   {"splits", 1, 0, 's'},
                                            {"variant", 1, 0, 'v'},   {"extra", 1, 0, 'x'},  {"ragged", 0, 0, 'r'},
                                            {"invariant", 0, 0, 'i'}, {0, 0, 0, 0}};
    struct settings s = {.topk = 2048};
    int option;
    s.num_heads = parse_list(s.heads, "8,16,64,128");
    s.num_tokens = parse_list(s.tokens, "1,16,64,128,256");
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1)
        switch (option) {
        case 'h':
            s.num_heads = parse_list(s.heads, optarg);
            break;
        case 't':
            s.num_tokens = parse_list(s.tokens, optarg);
            break;
        case 'f':
            s.format = find(formats, 7, optarg);
            break;
        case 'p':
            s.profile = find(profiles, 5, optarg);
            break;
        case 'k':
            s.topk = atoi(optarg);
            break;
        case 'x':
            s.extra = atoi(optarg);
            break;
        case 'r':
            s.ragged = true;
            break;
        case 'i':
            s.flags |= SPARSE_MLA_BATCH_INVARIANT;
            break;
        case 's':
            s.splits = atoi(optarg);
            break;
        case 'v':
            if (!smla_variant_parse(optarg, &s.variant)) {
                fprintf(stderr, "no variant %s\n", optarg);
                exit(2);
            }
            break;
        default:
            exit(2);
        }
    s.row_bytes = row_bytes[s.format];
    s.columns = s.topk + s.extra;
    return s;
}

static void open_bench(struct bench *b)
{
    sparse_mla_options options;
    const struct settings *s = &b->settings;
    b->stream = cuda_open();
    sparse_mla_options_init(&options);
    options.profile = s->profile;
    check(sparse_mla_create(&options, &b->context));
    void *fill = cuda_compile(source, "fill");
    b->read_rows = cuda_compile(source, "read_rows");
    if (!fill || !b->read_rows) {
        fprintf(stderr, "NVRTC is needed\n");
        exit(1);
    }
    b->rows = (uint64_t)6 << 30;
    b->rows /= (uint64_t)s->row_bytes;
    b->rows -= b->rows % 64;
    const uint64_t bytes = b->rows * (uint64_t)s->row_bytes + (s->format == SPARSE_MLA_FP8_V4 ? b->rows * 9 : 0);
    b->pool = cuda_alloc(bytes);
    int row_bytes = s->row_bytes, kind = s->format;
    uint64_t filled = bytes / (uint64_t)row_bytes;
    void *params[] = {&b->pool, &filled, &row_bytes, &kind};
    CUDA(cuLaunchKernel(fill, (unsigned)(filled / 256 + 1), 1, 1, 256, 1, 1, 0, b->stream, params, NULL));
    b->workspace_bytes = 64 << 20;
    b->workspace = cuda_alloc(b->workspace_bytes);
    check(sparse_mla_workspace_init(b->context, b->workspace, b->workspace_bytes, b->stream));
    CUDA(cuStreamSynchronize(b->stream));
}

static void make_inputs(struct bench *b, int heads, int tokens)
{
    const struct settings *s = &b->settings;
    const size_t columns = (size_t)tokens * (size_t)s->columns, elements = (size_t)tokens * (size_t)heads * 576;
    uint64_t seed = 88172645463325252ull;
    const double bytes = (double)columns * s->row_bytes;
    b->sets = 600e6 / bytes < 2 ? 2 : 600e6 / bytes > MAX_SETS ? MAX_SETS : (int)(600e6 / bytes) + 1;
    int32_t *indices = malloc(sizeof *indices * columns * (size_t)b->sets);
    uint16_t *q = malloc(2 * elements);
    if (!indices || !q)
        exit(1);
    for (size_t i = 0; i < columns * (size_t)b->sets; i++) {
        seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
        indices[i] = (int32_t)((seed >> 32) * b->rows >> 32);
    }
    for (size_t i = 0; i < elements; i++) {
        seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
        q[i] = (uint16_t)((seed >> 40 & 0x80FF) | 0x3F00); /* bf16 between 0.5 and 2, either sign */
    }
    int32_t *lengths = malloc(sizeof *lengths * (size_t)tokens * (size_t)b->sets);
    if (!lengths)
        exit(1);
    for (size_t i = 0; i < (size_t)tokens * (size_t)b->sets; i++) {
        seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
        lengths[i] = 1 + (int32_t)((seed >> 32) * (uint64_t)s->topk >> 32);
    }
    b->lengths = cuda_upload(lengths, sizeof *lengths * (size_t)tokens * (size_t)b->sets);
    free(lengths);
    b->indices = cuda_upload(indices, sizeof *indices * columns * (size_t)b->sets);
    b->q = cuda_upload(q, 2 * elements);
    b->out = cuda_alloc((size_t)tokens * (size_t)heads * 1024);
    free(indices);
    free(q);
}

static void free_inputs(struct bench *b)
{
    cuda_free(b->indices);
    cuda_free(b->lengths);
    cuda_free(b->q);
    cuda_free(b->out);
}

/* caches: main and extra. */
static void fill_args(const struct bench *b, sparse_mla_decode_args *a, sparse_mla_cache cache[2], int heads,
                      int tokens, int set)
{
    const struct settings *s = &b->settings;
    const bool v4 = s->format == SPARSE_MLA_FP8_V4;
    sparse_mla_cache_init(cache);
    cache->format = s->format;
    cache->data = b->pool;
    cache->num_slots = (int64_t)b->rows;
    cache->row_stride_bytes = s->row_bytes;
    cache->page_stride_bytes = v4 ? 65 * 576 : 64 * s->row_bytes;
    cache->topk = s->topk;
    cache->indices = b->indices + (int64_t)set * tokens * s->columns;
    cache->indices_request_stride = cache->indices_token_stride = s->columns;
    cache->lengths = s->ragged ? b->lengths + (int64_t)set * tokens : NULL;
    cache[1] = cache[0];
    cache[1].topk = s->extra;
    cache[1].indices += s->topk;
    cache[1].lengths = NULL;
    sparse_mla_decode_args_init(a);
    a->num_tokens = tokens;
    a->num_heads = heads;
    a->value_dim = 512;
    a->latent_dim = v4 ? 448 : 512;
    a->rope_dim = 64;
    a->flags = s->flags;
    a->scale = 0.0625f;
    a->q_latent = b->q;
    a->q_latent_request_stride = a->q_latent_token_stride = (int64_t)heads * 576;
    a->q_latent_head_stride = 576;
    a->main_cache = cache;
    a->extra_cache = s->extra ? cache + 1 : NULL;
    a->out = b->out;
    a->out_request_stride = a->out_token_stride = (int64_t)heads * 512;
    a->out_head_stride = 512;
    a->workspace = b->workspace;
    a->workspace_size = b->workspace_bytes;
}

/* What sparse_mla_decode() does, with another variant or number of splits. */
static struct smla_plan decode_as_told(struct bench *b, const sparse_mla_decode_args *args, bool launch)
{
    const struct settings *s = &b->settings;
    struct sparse_mla_context *context = b->context;
    struct smla_call call;
    struct smla_place place;
    struct smla_device_facts facts;
    struct smla_plan plan;
    struct smla_kernel kernel;
    struct smla_params params;
    check(smla_call_init(&call, args, SMLA_CHECK_POINTERS));
    check(smla_context_place(context, b->stream, &place, &facts));
    check(smla_plan_make(&plan, &call, &facts, context->profile));
    if (s->variant.latent_dim)
        smla_plan_set_variant(&plan, &call, &facts, &s->variant);
    if (s->splits)
        smla_plan_set_splits(&plan, s->splits);
    if (!launch)
        return plan;
    check(smla_launch_check(&call, &plan));
    const struct smla_program program = smla_program_of_variant(&plan.variant);
    check(smla_jit_get(&context->jit, &context->driver, &place, &program, facts.compute_capability, &kernel));
    smla_launch_params(&params, &call, &plan);
    check(smla_kernel_launch(&context->driver, &place, &kernel, &plan, &params));
    return plan;
}

static void launch_decode(struct bench *b, int heads, int tokens, int set)
{
    sparse_mla_cache caches[2];
    sparse_mla_decode_args args;
    fill_args(b, &args, caches, heads, tokens, set);
    if (b->settings.splits || b->settings.variant.latent_dim)
        decode_as_told(b, &args, true);
    else
        check(sparse_mla_decode(b->context, &args, b->stream));
}

static void launch_read(struct bench *b, int tokens, int set)
{
    const struct settings *s = &b->settings;
    const int32_t *indices = b->indices + (int64_t)set * tokens * s->columns;
    int topk = s->ragged ? s->columns / 2 : s->columns, row_bytes = s->row_bytes & ~15;
    const unsigned parts = tokens >= 128 ? 8 : tokens >= 16 ? 16 : 64;
    void *params[] = {&b->pool, &indices, &topk, &row_bytes, &b->out};
    CUDA(cuLaunchKernel(b->read_rows, (unsigned)tokens, parts, 1, 256, 1, 1, 0, b->stream, params, NULL));
}

static int compare_floats(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Sorted microseconds per launch of REPLAYS replays. */
static void time_launches(struct bench *b, int heads, int tokens, float times[REPLAYS])
{
    void *graph, *exec, *start, *stop;
    const int launches = b->sets > 20 ? b->sets : 20;
    if (heads)
        launch_decode(b, heads, tokens, 0); /* compiles */
    CUDA(cuStreamSynchronize(b->stream));
    CUDA(cuStreamBeginCapture_v2(b->stream, 2));
    for (int i = 0; i < launches; i++)
        if (heads)
            launch_decode(b, heads, tokens, i % b->sets);
        else
            launch_read(b, tokens, i % b->sets);
    CUDA(cuStreamEndCapture(b->stream, &graph));
    CUDA(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CUDA(cuEventCreate(&start, 0));
    CUDA(cuEventCreate(&stop, 0));
    for (int i = 0; i < REPLAYS + 2; i++) {
        float milliseconds;
        CUDA(cuEventRecord(start, b->stream));
        CUDA(cuGraphLaunch(exec, b->stream));
        CUDA(cuEventRecord(stop, b->stream));
        CUDA(cuEventSynchronize(stop));
        CUDA(cuEventElapsedTime(&milliseconds, start, stop));
        if (i >= 2)
            times[i - 2] = milliseconds * 1000 / (float)launches;
    }
    CUDA(cuGraphExecDestroy(exec));
    CUDA(cuGraphDestroy(graph));
    qsort(times, REPLAYS, sizeof *times, compare_floats);
}

static void measure(struct bench *b, int heads, int tokens)
{
    const struct settings *s = &b->settings;
    sparse_mla_cache caches[2];
    sparse_mla_decode_args args;
    char name[SMLA_VARIANT_NAME_MAX];
    float own[REPLAYS], floor_times[REPLAYS];
    make_inputs(b, heads, tokens);
    time_launches(b, heads, tokens, own);
    time_launches(b, 0, tokens, floor_times);
    fill_args(b, &args, caches, heads, tokens, 0);
    const struct smla_plan plan = decode_as_told(b, &args, false);
    smla_variant_name(&plan.variant, name);
    const double median = own[REPLAYS / 2], bytes = (double)tokens * s->columns * s->row_bytes;
    const double flops = 2.0 * tokens * heads * s->columns * (args.latent_dim + 64 + 512);
    printf("%s,%d,%d,%d,%.2f,%.2f,%.2f,%.2f,%.0f,%.1f\n", name, heads, tokens, plan.num_splits, median, own[0],
           own[REPLAYS - 1], floor_times[REPLAYS / 2], bytes / median / 1e3, flops / median / 1e6);
    fflush(stdout);
    free_inputs(b);
}

int main(int argc, char **argv)
{
    struct bench b = {.settings = parse(argc, argv)};
    open_bench(&b);
    printf("variant,heads,tokens,splits,us_median,us_min,us_max,read_floor_us,GBps,TFLOPS\n");
    for (int h = 0; h < b.settings.num_heads; h++)
        for (int t = 0; t < b.settings.num_tokens; t++)
            measure(&b, b.settings.heads[h], b.settings.tokens[t]);
    return 0;
}
