/* SPDX-License-Identifier: Apache-2.0 */
#include "format.h"

#include "naive.h"
#include "number.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { FORMATS = SPARSE_MLA_Q8_0 + 1 };

static bool same(double a, double b)
{
    return (isnan(a) && isnan(b)) || (a == b && signbit(a) == signbit(b));
}

static void every_format_has_an_entry(void **state)
{
    (void)state;
    for (int i = 0; i < FORMATS; i++) {
        const struct smla_format *format = smla_format_get(i);
        assert_non_null(format);
        assert_non_null(format->name);
        assert_non_null(format->rope_dims);
        assert_true(format->rope_mask != 0);
        for (int other = 0; other < i; other++)
            assert_string_not_equal(format->name, smla_format_get(other)->name);
    }
    assert_null(smla_format_get(-1));
    assert_null(smla_format_get(FORMATS));
    assert_null(smla_format_get(INT32_MIN));
    assert_null(smla_format_get(INT32_MAX));
}

static void alignment_is_16_but_for_q8_0(void **state)
{
    (void)state;
    for (int i = 0; i < FORMATS; i++)
        assert_int_equal(smla_format_get(i)->alignment, i == SPARSE_MLA_Q8_0 ? 4 : 16);
}

static void host_reads_every_format(void **state)
{
    (void)state;
    for (int i = 0; i < FORMATS; i++)
        assert_non_null(smla_format_get(i)->read);
}

static int64_t read_bytes(int format, int latent_offset, int rope_offset, int latent_dim, int rope_dim)
{
    sparse_mla_cache cache;
    sparse_mla_cache_init(&cache);
    cache.format = format;
    cache.latent_offset_bytes = latent_offset;
    cache.rope_offset_bytes = rope_offset;
    return smla_format_read_bytes(&cache, latent_dim, rope_dim);
}

static void read_bytes_are_those_of_the_records(void **state)
{
    (void)state;
    assert_int_equal(read_bytes(SPARSE_MLA_FP8_DS_MLA, 0, 528, 512, 64), 656);
    assert_int_equal(read_bytes(SPARSE_MLA_FP8_DS_MLA, 0, 528, 512, 0), 528);
    assert_int_equal(read_bytes(SPARSE_MLA_FP8_DS_MLA_NOPE, 0, 528, 512, 0), 528);
    assert_int_equal(read_bytes(SPARSE_MLA_FLAT_E4M3, 0, 512, 512, 64), 576);
    assert_int_equal(read_bytes(SPARSE_MLA_FP8_V4, 0, 448, 448, 64), 576);
    assert_int_equal(read_bytes(SPARSE_MLA_Q8_0, 0, 544, 512, 64), 612);
    assert_int_equal(read_bytes(SPARSE_MLA_FLAT_BF16, 0, 1024, 512, 64), 1152);
    assert_int_equal(read_bytes(SPARSE_MLA_FLAT_BF16, 0, 1024, 512, 0), 1024);
    assert_int_equal(read_bytes(SPARSE_MLA_FLAT_F16, 128, 0, 512, 64), 1152);
    assert_int_equal(read_bytes(SPARSE_MLA_FLAT_F16, 16, 512, 192, 32), 576);
    assert_int_equal(read_bytes(SPARSE_MLA_FLAT_E4M3, 64, 0, 512, 64), 576);
    assert_int_equal(read_bytes(SPARSE_MLA_Q8_0, 68, 0, 512, 64), 612);
    assert_int_equal(read_bytes(SPARSE_MLA_Q8_0, 72, 0, 512, 64), 616);
}

static void page_bytes_are_those_of_a_record_or_of_all(void **state)
{
    static const int pages[] = {1, 2, 64, 256};
    sparse_mla_cache cache;
    (void)state;
    sparse_mla_cache_init(&cache);
    for (int i = 0; i < 4; i++) {
        cache.page_size = pages[i];
        cache.format = SPARSE_MLA_FP8_V4;
        assert_int_equal(smla_format_page_bytes(&cache, 448, 64), 584 * pages[i]);
        cache.format = SPARSE_MLA_FP8_DS_MLA;
        assert_int_equal(smla_format_page_bytes(&cache, 512, 64), 656);
    }
    cache.page_size = INT32_MAX;
    cache.format = SPARSE_MLA_FP8_V4;
    assert_int_equal(smla_format_page_bytes(&cache, 448, 64), 584 * (int64_t)INT32_MAX);
}

/* All bytes as latent, four scales apart by far. */
static void every_e4m3_is_exact_under_any_scale(void **state)
{
    static const float scales[4] = {1.0f, 0x1.23456p-60f, 0x1.fffffep+60f, 0x1p-126f};
    static unsigned char record[656];
    double row[NAIVE_DIMS_MAX];
    sparse_mla_cache cache;
    (void)state;
    sparse_mla_cache_init(&cache);
    cache.data = record;
    memcpy(record + 512, scales, sizeof scales);
    for (int rotate = 0; rotate < 256; rotate += 128) {
        for (int i = 0; i < 512; i++)
            record[i] = (unsigned char)(i + rotate);
        smla_format_get(SPARSE_MLA_FP8_DS_MLA)->read(row, &cache, 0, 512, 64);
        for (int i = 0; i < 512; i++)
            assert_true(same(row[i], naive_e4m3(record[i]) * (double)scales[i / 128]));
    }
}

static void every_e4m3_of_a_tensor_is_exact(void **state)
{
    static const float scales[] = {1.0f, -0x1.23456p-60f, 0x1.fffffep+60f, 0x1p-126f, 0};
    unsigned char record[576];
    double row[NAIVE_DIMS_MAX];
    sparse_mla_cache cache;
    (void)state;
    sparse_mla_cache_init(&cache);
    cache.format = SPARSE_MLA_FLAT_E4M3;
    cache.data = record;
    for (int i = 0; i < 576; i++)
        record[i] = (unsigned char)(i * 7);
    for (int i = 0; i < 5; i++)
        for (int rope_first = 0; rope_first < 2; rope_first++) {
            cache.tensor_scale = scales[i];
            cache.latent_offset_bytes = rope_first ? 64 : 0;
            cache.rope_offset_bytes = rope_first ? 0 : 512;
            smla_format_get(SPARSE_MLA_FLAT_E4M3)->read(row, &cache, 0, 512, 64);
            for (int j = 0; j < 576; j++) {
                const int at = !rope_first ? j : j < 512 ? j + 64 : j - 512;
                assert_true(same(row[j], naive_e4m3(record[at]) * (double)scales[i]));
            }
        }
}

/* The last two slots of the second page, under every scale byte; all else is NaN. */
static void v4_scales_lie_behind_the_rows(void **state)
{
    static const int pages[] = {1, 2, 3, 64, 256};
    double row[NAIVE_DIMS_MAX];
    sparse_mla_cache cache;
    (void)state;
    sparse_mla_cache_init(&cache);
    cache.format = SPARSE_MLA_FP8_V4;
    cache.rope_offset_bytes = 448;
    cache.row_stride_bytes = 576;
    for (int i = 0; i < 5; i++) {
        const int page_size = pages[i], last = 2 * page_size - 1;
        const int stride = (page_size * 584 + 575) / 576 * 576;
        unsigned char *data = malloc((size_t)(2 * stride));
        cache.data = data;
        cache.page_size = page_size;
        cache.page_stride_bytes = stride;
        for (int first = 0; first < 256; first += 7) {
            unsigned char *record = data + stride + (page_size - 1) * 576;
            unsigned char *scales = data + stride + page_size * 576 + (page_size - 1) * 8;
            memset(data, 0xFF, (size_t)(2 * stride));
            for (int j = 0; j < 7; j++)
                scales[j] = (unsigned char)(first + j);
            for (int j = 0; j < 576; j++)
                record[j] = (unsigned char)(5 * j + first);
            smla_format_get(SPARSE_MLA_FP8_V4)->read(row, &cache, last, 448, 64);
            for (int j = 0; j < 448; j++)
                assert_true(same(row[j], naive_e4m3(record[j]) * naive_ue8m0(scales[j / 64])));
            for (int j = 0; j < 64; j++)
                assert_true(same(row[448 + j], naive_number(record + 448, SPARSE_MLA_BF16, j)));
        }
        free(data);
    }
}

/* Every d, and every number of the eight bits. */
static void every_block_of_q8_0_is_exact(void **state)
{
    unsigned char record[612];
    double row[NAIVE_DIMS_MAX];
    sparse_mla_cache cache;
    (void)state;
    sparse_mla_cache_init(&cache);
    cache.format = SPARSE_MLA_Q8_0;
    cache.data = record;
    cache.rope_offset_bytes = 544;
    for (int first = 0; first < 65536; first += 18) {
        for (int block = 0; block < 18; block++) {
            const uint16_t d = (uint16_t)(first + block);
            memcpy(record + 34 * block, &d, 2);
            for (int i = 0; i < 32; i++)
                record[34 * block + 2 + i] = (unsigned char)(32 * block + i + first);
        }
        smla_format_get(SPARSE_MLA_Q8_0)->read(row, &cache, 0, 512, 64);
        for (int i = 0; i < 576; i++) {
            const int byte = record[i / 32 * 34 + 2 + i % 32], q = byte < 128 ? byte : byte - 256;
            assert_true(same(row[i], naive_number(record + i / 32 * 34, SPARSE_MLA_F16, 0) * q));
        }
    }
}

static void every_16_bit_number_is_exact(int format, int dtype)
{
    uint16_t bits[512];
    double row[NAIVE_DIMS_MAX];
    sparse_mla_cache cache;
    sparse_mla_cache_init(&cache);
    cache.data = bits;
    cache.rope_offset_bytes = 0;
    for (int first = 0; first < 65536; first += 512) {
        for (int i = 0; i < 512; i++)
            bits[i] = (uint16_t)(first + i);
        smla_format_get(format)->read(row, &cache, 0, 512, 64);
        for (int i = 0; i < NAIVE_DIMS_MAX; i++)
            assert_true(same(row[i], naive_number(bits, dtype, i < 512 ? i : i - 512)));
    }
}

static void every_bf16_is_exact(void **state)
{
    (void)state;
    every_16_bit_number_is_exact(SPARSE_MLA_FLAT_BF16, SPARSE_MLA_BF16);
}

static void every_f16_is_exact(void **state)
{
    (void)state;
    every_16_bit_number_is_exact(SPARSE_MLA_FLAT_F16, SPARSE_MLA_F16);
}

/* Between all neighbours: what is nearer wins, and of a tie the even one, however close a double comes to it. */
static void rounds_to_nearest_even(uint16_t (*narrow)(double), int dtype, uint16_t infinity)
{
    for (unsigned i = 0; i < infinity; i++) {
        const uint16_t pair[2] = {(uint16_t)i, (uint16_t)(i + 1)};
        const double low = naive_number(pair, dtype, 0);
        const uint16_t even = pair[i & 1];
        /* Above the largest number lies what would follow it if the exponents went on. */
        const double high = pair[1] == infinity ? 2 * low - naive_number(&(uint16_t){(uint16_t)(i - 1)}, dtype, 0)
                                                : naive_number(pair, dtype, 1);
        const double middle = (low + high) / 2;
        assert_int_equal(narrow(low), pair[0]);
        assert_int_equal(narrow(middle), even);
        assert_int_equal(narrow(nextafter(middle, low)), pair[0]);
        assert_int_equal(narrow(nextafter(middle, high)), pair[1]);
        assert_int_equal(narrow(-middle), even | 0x8000);
        assert_int_equal(narrow(-nextafter(middle, high)), pair[1] | 0x8000);
    }
    assert_int_equal(narrow((double)INFINITY), infinity);
    assert_int_equal(narrow((double)-INFINITY), infinity | 0x8000);
    assert_int_equal(narrow(1e300), infinity);
    assert_int_equal(narrow(1e-300), 0);
    assert_int_equal(narrow(-0.0), 0x8000);
    assert_true((narrow((double)NAN) & 0x7FFF) > infinity);
}

static void bf16_rounds_to_nearest_even(void **state)
{
    (void)state;
    rounds_to_nearest_even(smla_to_bf16, SPARSE_MLA_BF16, 0x7F80);
}

static void f16_rounds_to_nearest_even(void **state)
{
    (void)state;
    rounds_to_nearest_even(smla_to_f16, SPARSE_MLA_F16, 0x7C00);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_has_an_entry),
        cmocka_unit_test(alignment_is_16_but_for_q8_0),
        cmocka_unit_test(host_reads_every_format),
        cmocka_unit_test(read_bytes_are_those_of_the_records),
        cmocka_unit_test(page_bytes_are_those_of_a_record_or_of_all),
        cmocka_unit_test(every_e4m3_is_exact_under_any_scale),
        cmocka_unit_test(every_e4m3_of_a_tensor_is_exact),
        cmocka_unit_test(v4_scales_lie_behind_the_rows),
        cmocka_unit_test(every_block_of_q8_0_is_exact),
        cmocka_unit_test(every_bf16_is_exact),
        cmocka_unit_test(every_f16_is_exact),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
        cmocka_unit_test(f16_rounds_to_nearest_even),
    };
    return cmocka_run_group_tests_name("format", tests, NULL, NULL);
}
