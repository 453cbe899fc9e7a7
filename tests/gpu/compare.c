/* SPDX-License-Identifier: Apache-2.0 */
/* The comparison of a problem's outputs with the host backend, on all processors. */
#include "cuda.h"
#include "number.h"
#include "problem_parts.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEADS = 8, VALUE_MAX = 512, MAX_THREADS = 64 };

struct sums {
    double difference, reference, product, own;
    double beyond; /* of differences without what rounding to the output's type may add */
    double fourth; /* powers of the reference */
};

/* Up to eight heads of one token at a time go to whoever is free. */
struct comparison {
    struct problem *p;
    sparse_mla_context *context;
    const unsigned char *out, *lse; /* the device's, read back; lse may be NULL */
    int samples, chunks;            /* chunks of heads per token */
    atomic_int next;
};

struct worker {
    struct comparison *all;
    struct errors errors;
    struct sums sums;
    uint32_t faults;
    _Alignas(16) float out[HEADS * VALUE_MAX];
    float lse[HEADS];
};

/* Half of the unit in the last place. */
static double half_unit(double value, int dtype)
{
    uint64_t bits;
    double power;
    memcpy(&bits, &value, sizeof bits);
    bits &= 0x7FF0000000000000u;
    memcpy(&power, &bits, sizeof power);
    return dtype == SPARSE_MLA_BF16  ? power * 0x1p-8
           : dtype == SPARSE_MLA_F16 ? fmax(power, 0x1p-14) * 0x1p-11
                                     : power * 0x1p-24;
}

static void add(struct sums *sums, double own, double reference, int dtype)
{
    const double off = fabs(own - reference), beyond = fmax(0, off - half_unit(own, dtype));
    const double normal = dtype == SPARSE_MLA_F16 ? fmax(0, off - 0x1p-25) : off; /* its subnormals are coarse */
    sums->difference += normal * normal;
    sums->beyond += beyond * beyond;
    sums->reference += reference * reference;
    sums->fourth += reference * reference * reference * reference;
    sums->product += own * reference;
    sums->own += own * own;
}

static void add_sums(struct sums *to, const struct sums *from)
{
    to->difference += from->difference;
    to->beyond += from->beyond;
    to->reference += from->reference;
    to->fourth += from->fourth;
    to->product += from->product;
    to->own += from->own;
}

static double relative(double difference, double reference)
{
    return reference > 0 ? sqrt(difference / reference) : difference > 0 ? INFINITY : 0;
}

static bool poisoned(const void *element, int dtype)
{
    static const unsigned char poison[4] = {0xFF, 0xFF, 0xFF, 0xFF};
    return memcmp(element, poison, (size_t)dtype_bytes(dtype)) == 0;
}

static bool same_special(double own, double reference)
{
    return own == reference || (isnan(own) && isnan(reference));
}

static void compare_lse(struct errors *errors, float value, double reference)
{
    const double own = (double)value;
    if (!isfinite(own) || !isfinite(reference)) {
        errors->special_bad += !same_special(own, reference);
        return;
    }
    const double difference = fabs(own - reference);
    errors->lse = fmax(errors->lse, difference / fmax(1, fabs(reference)));
    errors->flashmla_lse_bad += !(difference < 1e-6 || difference < 8.01 / 65536 * fabs(reference));
}

static void compare_row(struct worker *w, const void *own_row, const float *reference)
{
    const struct problem *p = w->all->p;
    const int dtype = p->spec.out_dtype, width = p->spec.format == SPARSE_MLA_FP8_V4 ? 64 : 128;
    struct sums head = {0}, group = {0};
    for (int d = 0; d < p->value; d++) {
        const double own = smla_load(own_row, dtype, d), expected = (double)reference[d];
        if (!isfinite(own) || !isfinite(expected)) {
            w->errors.special_bad +=
                !same_special(own, expected) || poisoned((const char *)own_row + d * dtype_bytes(dtype), dtype);
            continue;
        }
        const double off = fabs(own - expected);
        w->errors.flashmla_bad += !(off < 1e-3 || off < 2.01 / 128 * fabs(expected));
        add(&group, own, expected, dtype);
        if (d % width == width - 1 || d == p->value - 1) {
            w->errors.worst_group = fmax(w->errors.worst_group, relative(group.difference, group.reference));
            w->errors.group_beyond = fmax(w->errors.group_beyond, relative(group.beyond, group.reference));
            add_sums(&head, &group);
            group = (struct sums){0};
        }
    }
    w->errors.worst_head = fmax(w->errors.worst_head, relative(head.difference, head.reference));
    add_sums(&w->sums, &head);
}

static int64_t out_at(const sparse_mla_decode_args *a, int token, int head)
{
    return token / a->q_len * a->out_request_stride + token % a->q_len * a->out_token_stride +
           head * a->out_head_stride;
}

static int64_t lse_at(const sparse_mla_decode_args *a, int token, int head)
{
    return token / a->q_len * a->lse_request_stride + token % a->q_len * a->lse_token_stride +
           head * a->lse_head_stride;
}

static void compare_part(struct worker *w, int token, int head, int heads)
{
    const struct problem *p = w->all->p;
    struct part part;
    uint32_t faults = 0;
    part_init(&part, &p->host, token, 1, head, heads);
    part.args.out_dtype = SPARSE_MLA_F32;
    part.args.out = w->out;
    part.args.out_head_stride = p->value;
    part.args.lse = w->lse;
    part.args.lse_head_stride = 1;
    part.args.fault_count = &faults;
    if (sparse_mla_decode(w->all->context, &part.args, NULL) != SPARSE_MLA_OK) {
        fprintf(stderr, "host backend: %s\n", sparse_mla_last_error());
        exit(1);
    }
    w->faults += head == 0 ? faults : 0;
    for (int h = 0; h < heads; h++) {
        const int64_t at = out_at(&p->host, token, head + h) * dtype_bytes(p->spec.out_dtype);
        compare_row(w, w->all->out + at, w->out + h * p->value);
        if (w->all->lse) {
            float lse;
            memcpy(&lse, w->all->lse + 4 * lse_at(&p->host, token, head + h), sizeof lse);
            compare_lse(&w->errors, lse, (double)w->lse[h]);
        }
    }
}

static void *work(void *argument)
{
    struct worker *w = argument;
    const struct comparison *all = w->all;
    const int tokens = all->p->spec.tokens, all_heads = all->p->spec.heads;
    for (int i; (i = atomic_fetch_add(&w->all->next, 1)) < all->samples * all->chunks;) {
        const int64_t sample = i / all->chunks;
        const int token = (int)(sample * (tokens - 1) / (all->samples > 1 ? all->samples - 1 : 1));
        const int head = i % all->chunks * HEADS;
        compare_part(w, token, head, all_heads - head < HEADS ? all_heads - head : HEADS);
    }
    return NULL;
}

static int count_threads(const struct comparison *all)
{
    long threads = all->p->threads ? all->p->threads : sysconf(_SC_NPROCESSORS_ONLN);
    if (threads > all->samples * all->chunks)
        threads = all->samples * all->chunks;
    return threads > MAX_THREADS ? MAX_THREADS : threads < 1 ? 1 : (int)threads;
}

static void merge(struct errors *to, const struct errors *from)
{
    to->group_beyond = fmax(to->group_beyond, from->group_beyond);
    to->worst_group = fmax(to->worst_group, from->worst_group);
    to->worst_head = fmax(to->worst_head, from->worst_head);
    to->lse = fmax(to->lse, from->lse);
    to->flashmla_bad += from->flashmla_bad;
    to->flashmla_lse_bad += from->flashmla_lse_bad;
    to->special_bad += from->special_bad;
}

static struct errors compare_samples(struct comparison *all)
{
    const int threads = count_threads(all);
    struct worker *workers = calloc((size_t)threads, sizeof *workers);
    pthread_t ids[MAX_THREADS];
    struct errors errors = {0};
    struct sums sums = {0};
    if (!workers)
        exit(1);
    for (int i = 0; i < threads; i++)
        workers[i].all = all;
    for (int i = 1; i < threads; i++)
        if (pthread_create(&ids[i], NULL, work, &workers[i]) != 0)
            exit(1);
    work(&workers[0]);
    all->p->faults = 0;
    for (int i = 0; i < threads; i++) {
        if (i > 0)
            pthread_join(ids[i], NULL);
        merge(&errors, &workers[i].errors);
        add_sums(&sums, &workers[i].sums);
        all->p->faults += workers[i].faults;
    }
    free(workers);
    errors.relative = relative(sums.difference, sums.reference);
    errors.beyond = relative(sums.beyond, sums.reference);
    errors.elements = sums.fourth > 0 ? sums.reference * sums.reference / sums.fourth : 1;
    errors.cosine = sums.own + sums.reference > 0 ? 1 - 2 * sums.product / (sums.own + sums.reference) : 0;
    return errors;
}

/* Takes back what a call may write: whatever then differs from what was uploaded is wrong. */
static long count_changes(struct problem *p, unsigned char *back, bool all_tokens)
{
    const sparse_mla_decode_args *a = &p->host;
    const int bytes = dtype_bytes(p->spec.out_dtype);
    long bad = 0;
    for (int t = 0; t < p->spec.tokens; t++)
        for (int h = 0; h < p->spec.heads; h++) {
            memset(back + arena_offset(p->arena, a->out) + out_at(a, t, h) * bytes, 0xFF,
                   (size_t)p->value * (size_t)bytes);
            if (a->lse)
                memset(back + arena_offset(p->arena, a->lse) + 4 * lse_at(a, t, h), 0xFF, 4);
        }
    if (a->fault_count) {
        uint32_t faults;
        unsigned char *word = back + arena_offset(p->arena, a->fault_count);
        memcpy(&faults, word, sizeof faults);
        memset(word, 0, sizeof faults);
        if (all_tokens && faults != p->faults) {
            fprintf(stderr, "%u faults, not %u\n", faults, p->faults);
            bad++;
        }
    }
    return bad + arena_changed(p->arena);
}

struct errors problem_compare(struct problem *p, sparse_mla_context *host_context, int samples)
{
    if (p->own_arena)
        CUDA(cuCtxSynchronize());
    unsigned char *back = arena_read_back(p->arena);
    const bool all_tokens = samples == 0 || samples >= p->spec.tokens;
    struct comparison all = {.p = p,
                             .context = host_context,
                             .out = back + arena_offset(p->arena, p->host.out),
                             .lse = p->host.lse ? back + arena_offset(p->arena, p->host.lse) : NULL,
                             .samples = all_tokens ? p->spec.tokens : samples,
                             .chunks = (p->spec.heads + HEADS - 1) / HEADS};
    struct errors errors = compare_samples(&all);
    errors.special_bad += count_changes(p, back, all_tokens);
    return errors;
}

/* Relative errors of float32 outputs, and of others beside their own rounding. */
static const double BEYOND = 5.0e-4;

double problem_tolerance(const struct spec *spec)
{
    return spec->out_dtype == SPARSE_MLA_BF16 ? 2.0e-3 : BEYOND;
}

/* Q8_0 rows are rounded to f16 on the way to the tensor cores. */
static double lse_tolerance(const struct spec *spec)
{
    return (spec->format == SPARSE_MLA_Q8_0 ? 1.2e-3 : 2e-5) * fmax(1, spec->score_size);
}

bool problem_within(const struct spec *spec, const struct errors *e, double most)
{
    /* What rounding the output costs on average; of few elements the average may be more. */
    const double few = fmin(2, fmax(1, 0.875 + 6.5 / sqrt(e->elements)));
    return e->special_bad == 0 && e->relative <= few * most && e->worst_group <= 2 * few * most &&
           e->beyond <= BEYOND && e->group_beyond <= 2 * BEYOND && e->lse <= lse_tolerance(spec);
}
