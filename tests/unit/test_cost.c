/* SPDX-License-Identifier: Apache-2.0 */
/* What sparse_mla_decode_explain() expects of a call, and how far that is from what was measured. */
#include "cost.h"

#include "plan_calls.h"

#include <math.h>

enum { MEMORY = SPARSE_MLA_LIMIT_MEMORY, TENSOR = SPARSE_MLA_LIMIT_TENSOR, LATENCY = SPARSE_MLA_LIMIT_LATENCY };
enum { SM90 = SPARSE_MLA_PROFILE_SM90, SM120 = SPARSE_MLA_PROFILE_SM120 };

struct expected {
    int profile, num_tokens, num_heads;
    double measured, predicted; /* us; README.md's tables */
    int limit;
};

static float predict(const struct shape *shape, const struct smla_device_facts *device, int profile, int32_t *limit)
{
    const struct smla_call call = call_of(shape);
    const struct smla_plan plan = plan_of(shape, device, profile);
    return smla_cost_predict(&plan, &call, device, limit);
}

static struct shape glm5(int num_tokens, int num_heads)
{
    return (struct shape){SPARSE_MLA_FP8_DS_MLA, 512, 64, num_heads, 2048, num_tokens, 0, 0};
}

static void an_h200_is_met(void **state)
{
    static const struct expected table[] = {
        {SM90, 1, 8, 11.1, 11.5, LATENCY},     {SM90, 1, 16, 15.1, 12.2, LATENCY},
        {SM90, 1, 32, 19.3, 16.4, LATENCY},    {SM90, 1, 64, 25.5, 24.8, LATENCY},
        {SM90, 1, 128, 28.4, 29.0, LATENCY},   {SM90, 16, 8, 17.7, 12.9, LATENCY},
        {SM90, 16, 16, 22.8, 17.8, LATENCY},   {SM90, 16, 32, 30.6, 26.2, TENSOR},
        {SM90, 16, 64, 44, 44.4, TENSOR},      {SM90, 16, 128, 71.3, 73.8, TENSOR},
        {SM90, 64, 8, 34.5, 31.1, MEMORY},     {SM90, 64, 16, 41.7, 31.8, MEMORY},
        {SM90, 64, 32, 65.2, 55.6, TENSOR},    {SM90, 64, 64, 102, 103.2, TENSOR},
        {SM90, 64, 128, 176, 191.8, TENSOR},   {SM90, 128, 8, 55.6, 52.5, MEMORY},
        {SM90, 128, 16, 65.8, 53.2, MEMORY},   {SM90, 128, 32, 107, 99.4, TENSOR},
        {SM90, 128, 64, 177, 191.8, TENSOR},   {SM90, 128, 128, 352, 383.6, TENSOR},
        {SM90, 256, 8, 101, 97.3, MEMORY},     {SM90, 256, 16, 128, 106.4, MEMORY},
        {SM90, 256, 32, 209, 198.8, TENSOR},   {SM90, 256, 64, 352, 383.6, TENSOR},
        {SM90, 256, 128, 701, 767.2, TENSOR},  {SM120, 1, 8, 14.3, 14.3, LATENCY},
        {SM120, 1, 16, 19.4, 20.6, LATENCY},   {SM120, 1, 32, 29, 22.0, LATENCY},
        {SM120, 1, 64, 37, 36.0, LATENCY},     {SM120, 1, 128, 37.1, 36.0, LATENCY},
        {SM120, 16, 8, 18.6, 17.1, LATENCY},   {SM120, 16, 16, 24.2, 24.8, TENSOR},
        {SM120, 16, 32, 34.7, 26.2, TENSOR},   {SM120, 16, 64, 46.1, 44.4, TENSOR},
        {SM120, 16, 128, 72.7, 73.8, TENSOR},  {SM120, 64, 8, 34.5, 31.1, MEMORY},
        {SM120, 64, 16, 53.8, 54.2, TENSOR},   {SM120, 64, 32, 72.6, 55.6, TENSOR},
        {SM120, 64, 64, 102, 103.2, TENSOR},   {SM120, 64, 128, 175, 191.8, TENSOR},
        {SM120, 128, 8, 55.8, 52.5, MEMORY},   {SM120, 128, 16, 91.8, 98.0, TENSOR},
        {SM120, 128, 32, 122, 99.4, TENSOR},   {SM120, 128, 64, 175, 191.8, TENSOR},
        {SM120, 128, 128, 346, 383.6, TENSOR}, {SM120, 256, 8, 101, 105.0, MEMORY},
        {SM120, 256, 16, 118, 196.0, TENSOR},  {SM120, 256, 32, 241, 198.8, TENSOR},
        {SM120, 256, 64, 346, 383.6, TENSOR},  {SM120, 256, 128, 689, 767.2, TENSOR},
    };
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const struct expected *e = &table[i];
        const struct shape shape = glm5(e->num_tokens, e->num_heads);
        int32_t limit = -1;
        const double us = (double)predict(&shape, &devices[SM90], e->profile, &limit), ratio = us / e->measured;
        if (us < e->predicted - 0.06 || us > e->predicted + 0.06 || limit != e->limit)
            print_error("sm%d, %d tokens, %d heads: %.1f us, limit %d\n", e->profile == SM90 ? 90 : 120, e->num_tokens,
                        e->num_heads, us, limit);
        assert_true(us > e->predicted - 0.06 && us < e->predicted + 0.06);
        assert_int_equal(limit, e->limit);
        /* As the header says. The one case: two blocks of 16 heads on a multiprocessor, as no sm_120 card has them. */
        const bool two_blocks = e->profile == SM120 && e->num_tokens == 256 && e->num_heads == 16;
        assert_true(ratio > 0.725 && ratio < (two_blocks ? 1.665 : 1.115));
    }
}

/* Half the work for each key, or half the memory: the limit moves. */
static void memory_is_a_floor(void **state)
{
    const struct shape shape = glm5(256, 64);
    struct smla_device_facts device = devices[SM120];
    int32_t limit;
    (void)state;
    /* 256 * 2048 rows of 656 bytes at 83 % of 1792 GB/s: 231.2 us; two waves of 12.6 us and 128 turns: 383.6 us */
    assert_true(fabs((double)predict(&shape, &device, SM120, &limit) - 383.6) < 0.06);
    assert_int_equal(limit, MEMORY);
    device.memory_gbps = 3584;
    assert_true(fabs((double)predict(&shape, &device, SM120, &limit) - 383.6) < 0.06);
    assert_int_equal(limit, TENSOR);
    device.memory_gbps = 896; /* 462.4 us */
    assert_true(fabs((double)predict(&shape, &device, SM120, &limit) - 462.4) < 0.1);
    assert_int_equal(limit, MEMORY);
    device.memory_gbps = 0; /* not known */
    assert_true(fabs((double)predict(&shape, &device, SM120, &limit) - 383.6) < 0.06);
    assert_int_equal(limit, TENSOR);
}

/* Bytes of each record that are read, at 83 GB/s: a row of 2048 keys and 128 more of the extra cache. */
static void every_record_has_its_bytes(void **state)
{
    static const struct {
        struct shape shape;
        int bytes;
    } rows[] = {{{SPARSE_MLA_FP8_DS_MLA, 512, 64, 8, 2048, 1000, 0, 0}, 656 * 2048},
                {{SPARSE_MLA_FP8_DS_MLA, 512, 0, 8, 2048, 1000, 0, 0}, 528 * 2048},
                {{SPARSE_MLA_FLAT_BF16, 512, 64, 8, 2048, 1000, 0, 0}, 1152 * 2048},
                {{SPARSE_MLA_Q8_0, 512, 64, 8, 2048, 1000, 2, 0}, 612 * 2048},
                {{SPARSE_MLA_FP8_V4, 448, 64, 8, 2048, 1000, 0, 128}, 584 * (2048 + 128)}};
    struct smla_device_facts device = devices[SM90];
    int32_t limit;
    (void)state;
    device.memory_gbps = 100;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const double us = (double)predict(&rows[i].shape, &device, SM90, &limit);
        assert_true(fabs(us / (rows[i].bytes / 83.0) - 1) < 1e-5);
        assert_int_equal(limit, MEMORY);
    }
}

/* 10 tokens in 6 parts are 60 blocks, 11 are 66: as many as half of the multiprocessors. */
static void few_blocks_are_latency(void **state)
{
    const struct shape ten = glm5(10, 16), eleven = glm5(11, 16);
    int32_t limit;
    (void)state;
    assert_true(fabs((double)predict(&ten, &devices[SM90], SM120, &limit) - 24.8) < 0.06);
    assert_int_equal(limit, LATENCY);
    assert_true(fabs((double)predict(&eleven, &devices[SM90], SM120, &limit) - 24.8) < 0.06);
    assert_int_equal(limit, TENSOR);
}

static void no_token_takes_no_time(void **state)
{
    const struct shape shape = glm5(0, 8);
    int32_t limit = -1;
    (void)state;
    assert_true(predict(&shape, &devices[SM90], SM90, &limit) == 0);
    assert_int_equal(limit, SPARSE_MLA_LIMIT_NONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_h200_is_met),
        cmocka_unit_test(memory_is_a_floor),
        cmocka_unit_test(every_record_has_its_bytes),
        cmocka_unit_test(few_blocks_are_latency),
        cmocka_unit_test(no_token_takes_no_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
