/* SPDX-License-Identifier: Apache-2.0 */
/* The cache writer of the examples: rounding, records, pages. */
#include "kv_cache.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static float e4m3_value(int code)
{
    int exponent = code >> 3 & 15, mantissa = code & 7;
    float value = exponent ? ldexpf((float)(8 + mantissa), exponent - 10) : ldexpf((float)mantissa, -9);
    return code & 0x80 ? -value : value;
}

static void e4m3_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (int code = 0; code < 0x7E; code++) {
        float low = e4m3_value(code), high = e4m3_value(code + 1), middle = 0.5f * (low + high);
        assert_int_equal(float_to_e4m3(low), code);
        assert_int_equal(float_to_e4m3(-low), code | 0x80);
        assert_int_equal(float_to_e4m3(middle), code + (code & 1));
        assert_int_equal(float_to_e4m3(nextafterf(middle, low)), code);
        assert_int_equal(float_to_e4m3(nextafterf(middle, high)), code + 1);
    }
}

static void e4m3_saturates(void **state)
{
    (void)state;
    assert_int_equal(float_to_e4m3(448.0f), 0x7E);
    assert_int_equal(float_to_e4m3(1e30f), 0x7E);
    assert_int_equal(float_to_e4m3(-INFINITY), 0xFE);
    assert_int_equal(float_to_e4m3(NAN) & 0x7F, 0x7F);
}

static void bf16_rounds_to_nearest_even(void **state)
{
    (void)state;
    assert_int_equal(float_to_bf16(1.0f), 0x3F80);
    assert_int_equal(float_to_bf16(1.0f + 0x1p-8f), 0x3F80);
    assert_int_equal(float_to_bf16(1.0f + 0x3p-8f), 0x3F82);
    assert_int_equal(float_to_bf16(FLT_MAX), 0x7F80);
    assert_true(isnan(bf16_to_float(float_to_bf16(NAN))));
    for (uint32_t bits = 0; bits < 0x7F80; bits++)
        assert_int_equal(float_to_bf16(bf16_to_float((uint16_t)bits)), bits);
}

static void fp8_record_has_four_scales_and_the_rope(void **state)
{
    (void)state;
    float latent[512] = {0}, rope[64], scales[4];
    unsigned char record[656];
    latent[0] = 896.0f; /* amax / 448 = 2 */
    latent[1] = -1.0f;
    latent[128] = 448.0f;
    latent[511] = 0x1p-20f;
    for (int i = 0; i < 64; i++)
        rope[i] = (float)i;
    write_fp8_ds_mla(record, latent, rope, 64);
    memcpy(scales, record + 512, sizeof scales);
    assert_true(scales[0] == 2.0f && scales[1] == 1.0f && scales[2] == FLT_MIN && scales[3] == 0x1p-20f / 448.0f);
    assert_int_equal(record[0], 0x7E);
    assert_int_equal(record[1], 0xB0); /* -0.5 */
    assert_int_equal(record[511], 0x7E);
    for (int i = 0; i < 64; i++)
        assert_int_equal(record[528 + 2 * i] | record[529 + 2 * i] << 8, float_to_bf16((float)i));
}

static void pages_are_a_permutation(void **state)
{
    (void)state;
    enum { POSITIONS = 1000, PAGES = 16 };
    struct device device;
    struct kv_cache cache;
    bool seen[PAGES] = {false}, moved = false;
    float row[576] = {0};
    device_open_host(&device);
    kv_cache_create(&cache, &device, SPARSE_MLA_FLAT_BF16, POSITIONS, 512, 64);
    assert_int_equal(cache.view.num_slots, PAGES * 64);
    for (int i = 0; i < PAGES; i++) {
        assert_false(seen[cache.block_table[i]]);
        seen[cache.block_table[i]] = true;
        moved |= cache.block_table[i] != i;
    }
    assert_true(moved);
    assert_int_equal(kv_cache_put(&cache, 999, row, row), (cache.block_table[15] * 64 + 999 % 64) * 1152);
    kv_cache_destroy(&cache, &device);
    device_close(&device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(e4m3_rounds_to_nearest_even), cmocka_unit_test(e4m3_saturates),
        cmocka_unit_test(bf16_rounds_to_nearest_even), cmocka_unit_test(fp8_record_has_four_scales_and_the_rope),
        cmocka_unit_test(pages_are_a_permutation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
