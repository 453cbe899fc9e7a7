/* SPDX-License-Identifier: Apache-2.0 */
/* The same calls on the emulator and on a GPU: built once with each, as emulator_outputs and gpu_outputs.
 *
 *     ..._outputs write FILE [CASES]   runs CASES random calls of tests/gpu/draw.h, 80 if not given, and stores out and
 * lse
 *     ..._outputs compare FILE FILE    compares two such files, the GPU's last
 *
 * Inputs follow from the number of a case. Both plan for the same device, an H200: 132 multiprocessors, sm_90. */
#include "../gpu/problem_parts.h"

#include "../gpu/cuda.h"
#include "../gpu/draw.h"
#ifndef OUTPUTS_OF_GPU
#include "emulator.h"
#endif

#include "number.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = 80, COMPUTE_CAPABILITY = 90, MULTIPROCESSORS = 132 };

/* In front of a case's out [tokens][heads][value], then its lse [tokens][heads], as float32. */
struct header {
    int32_t seed, profile, tokens, heads, value;
};

#define EXPECT(condition)                                                                                              \
    ((condition)                                                                                                       \
         ? (void)0                                                                                                     \
         : (fprintf(stderr, "%s:%d: %s; %s\n", __FILE__, __LINE__, #condition, sparse_mla_last_error()), exit(1)))

/* ---- the backend */

static struct CUstream_st *stream;

#ifdef OUTPUTS_OF_GPU
static void open_backend(void)
{
    int major, minor, multiprocessors;
    stream = cuda_open();
    CUDA(cuDeviceGetAttribute(&major, 75, 0));
    CUDA(cuDeviceGetAttribute(&minor, 76, 0));
    CUDA(cuDeviceGetAttribute(&multiprocessors, 16, 0));
    if (10 * major + minor != COMPUTE_CAPABILITY || multiprocessors != MULTIPROCESSORS)
        fprintf(stderr, "this is no H200: calls may be split in other ways than the emulator's\n");
}

static sparse_mla_status create(const sparse_mla_options *options, sparse_mla_context **context)
{
    return sparse_mla_create(options, context);
}

static void *allocate(size_t bytes)
{
    return cuda_alloc(bytes);
}

static void release(void *pointer)
{
    CUDA(cuStreamSynchronize(stream));
    cuda_free(pointer);
}
#else
static void open_backend(void)
{
    emulator_set_device(COMPUTE_CAPABILITY, MULTIPROCESSORS);
}

static sparse_mla_status create(const sparse_mla_options *options, sparse_mla_context **context)
{
    return emulator_create(options, context);
}

static void *allocate(size_t bytes)
{
    return emulator_alloc(bytes, 0);
}

static void release(void *pointer)
{
    emulator_free(pointer);
}
#endif

/* ---- writing */

static float element(const void *tensor, int dtype, int64_t index)
{
    if (dtype == SPARSE_MLA_F32)
        return ((const float *)tensor)[index];
    const uint16_t half = ((const uint16_t *)tensor)[index];
    return dtype == SPARSE_MLA_BF16 ? smla_from_bf16(half) : smla_from_f16(half);
}

static void write_outputs(FILE *file, struct problem *p, const struct header *header)
{
    const sparse_mla_decode_args *a = &p->host;
    const unsigned char *back = arena_read_back(p->arena);
    const void *out = back + arena_offset(p->arena, a->out);
    const float *lse = a->lse ? (const float *)(back + arena_offset(p->arena, a->lse)) : NULL;
    EXPECT(fwrite(header, sizeof *header, 1, file) == 1);
    for (int pass = 0; pass < 2; pass++)
        for (int t = 0; t < header->tokens; t++)
            for (int h = 0; h < header->heads; h++) {
                const int64_t row = t / a->q_len, position = t % a->q_len;
                const int64_t at =
                    row * a->out_request_stride + position * a->out_token_stride + h * a->out_head_stride;
                const int64_t lse_at =
                    row * a->lse_request_stride + position * a->lse_token_stride + h * a->lse_head_stride;
                for (int d = 0; d < (pass ? 1 : header->value); d++) {
                    const float x = !pass ? element(out, p->spec.out_dtype, at + d) : lse ? lse[lse_at] : 0;
                    EXPECT(fwrite(&x, sizeof x, 1, file) == 1);
                }
            }
}

static void run_case(FILE *file, sparse_mla_context *const contexts[5], int seed)
{
    struct spec spec;
    struct problem p;
    const int profile = draw_case(&spec, (uint64_t)seed);
    problem_init(&p, &spec);
    const struct header header = {seed, profile, spec.tokens, spec.heads, p.value};
    EXPECT(sparse_mla_decode_workspace(contexts[profile], &p.device, stream, &p.device.workspace_size) ==
           SPARSE_MLA_OK);
    const size_t bytes = p.device.workspace_size;
    p.device.workspace = bytes ? allocate(bytes) : NULL;
    if (bytes)
        EXPECT(sparse_mla_workspace_init(contexts[profile], p.device.workspace, bytes, stream) == SPARSE_MLA_OK);
    EXPECT(sparse_mla_decode(contexts[profile], &p.device, stream) == SPARSE_MLA_OK);
    release(p.device.workspace);
    write_outputs(file, &p, &header);
    problem_free(&p);
}

static int write_file(const char *path, int cases)
{
    sparse_mla_context *contexts[5] = {NULL};
    FILE *file = fopen(path, "wb");
    EXPECT(file);
    open_backend();
    for (int profile = 1; profile < 5; profile++) {
        sparse_mla_options options;
        sparse_mla_options_init(&options);
        options.profile = profile;
        EXPECT(create(&options, &contexts[profile]) == SPARSE_MLA_OK);
    }
    for (int seed = 0; seed < cases; seed++)
        run_case(file, contexts, seed);
    printf("%d cases\n", cases);
    return fclose(file) != 0;
}

/* ---- comparing */

struct difference {
    double relative; /* L2 */
    double element;  /* largest, in units of what is allowed */
    double lse;      /* likewise */
    long special;    /* NaN or infinity in one and not in the other */
};

static float *read_floats(FILE *file, size_t count)
{
    float *values = malloc(sizeof(float) * count);
    EXPECT(values && fread(values, sizeof(float), count, file) == count);
    return values;
}

/* Of elements: 2^-7 of it and 2^-12 of the largest in its row. */
static void compare_row(struct difference *d, double *sums, const float *a, const float *b, int count)
{
    double largest = 0;
    for (int i = 0; i < count; i++)
        largest = isfinite(b[i]) ? fmax(largest, fabs(b[i])) : largest;
    for (int i = 0; i < count; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i])) {
            d->special += !(a[i] == b[i] || (isnan(a[i]) && isnan(b[i])));
            continue;
        }
        const double off = fabs((double)a[i] - b[i]), allowed = 0x1p-7 * fabs(b[i]) + 0x1p-12 * largest;
        d->element = off > 0 ? fmax(d->element, off / allowed) : d->element;
        sums[0] += off * off;
        sums[1] += (double)b[i] * b[i];
    }
}

static void compare_lse(struct difference *d, float a, float b)
{
    if (!isfinite(a) || !isfinite(b))
        d->special += !(a == b || (isnan(a) && isnan(b)));
    else
        d->lse = fmax(d->lse, fabs((double)a - b) / (1e-4 * fmax(1, fabs(b))));
}

static struct difference compare_case(FILE *const files[2], const struct header *header)
{
    const size_t rows = (size_t)header->tokens * (size_t)header->heads, value = (size_t)header->value;
    struct difference d = {0};
    double sums[2] = {0};
    float *read[2];
    for (int i = 0; i < 2; i++)
        read[i] = read_floats(files[i], rows * (value + 1));
    for (size_t row = 0; row < rows; row++) {
        compare_row(&d, sums, read[0] + row * value, read[1] + row * value, header->value);
        compare_lse(&d, read[0][rows * value + row], read[1][rows * value + row]);
    }
    d.relative = sums[1] > 0 ? sqrt(sums[0] / sums[1]) : sums[0] > 0 ? INFINITY : 0;
    free(read[0]);
    free(read[1]);
    return d;
}

static int compare_files(const char *const paths[2])
{
    FILE *files[2] = {fopen(paths[0], "rb"), fopen(paths[1], "rb")};
    struct header headers[2];
    struct difference worst = {0};
    int cases = 0, bad = 0;
    EXPECT(files[0] && files[1]);
    while (fread(&headers[0], sizeof headers[0], 1, files[0]) == 1) {
        EXPECT(fread(&headers[1], sizeof headers[1], 1, files[1]) == 1);
        EXPECT(memcmp(&headers[0], &headers[1], sizeof headers[0]) == 0);
        const struct difference d = compare_case(files, &headers[0]);
        const bool wrong = d.special || d.element > 1 || d.lse > 1 || d.relative > 5e-4;
        if (wrong)
            printf("case %d profile %d: relative %.2e element %.2f lse %.2f special %ld\n", (int)headers[0].seed,
                   (int)headers[0].profile, d.relative, d.element, d.lse, d.special);
        worst.relative = fmax(worst.relative, d.relative);
        worst.element = fmax(worst.element, d.element);
        worst.lse = fmax(worst.lse, d.lse);
        cases++;
        bad += wrong;
    }
    printf("%d cases, %d outside: relative L2 up to %.2e (5e-4), elements up to %.2f and lse up to %.2f of what is "
           "allowed\n",
           cases, bad, worst.relative, worst.element, worst.lse);
    return bad != 0 || cases == 0;
}

int main(int argc, char **argv)
{
    if (argc >= 3 && strcmp(argv[1], "write") == 0)
        return write_file(argv[2], argc > 3 ? atoi(argv[3]) : CASES);
    if (argc == 4 && strcmp(argv[1], "compare") == 0)
        return compare_files((const char *const[]){argv[2], argv[3]});
    fprintf(stderr, "usage: write FILE [CASES], or compare FILE FILE\n");
    return 2;
}
