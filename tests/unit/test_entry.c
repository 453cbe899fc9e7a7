/* SPDX-License-Identifier: Apache-2.0 */
#include "entry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static const char payload[] = "\177ELF of a kernel";

static unsigned char *write_entry(struct smla_key *key, size_t *size)
{
    static const struct smla_options_list options = {{"-DA=1"}, 1};
    const struct smla_cubin cubin = {(void *)(uintptr_t)payload, sizeof payload, 12080};
    smla_key_make(key, "0123456789abcdef0123456789abcdef", 120, &options, "name");
    unsigned char *bytes = smla_entry_write(key, &cubin, size);
    assert_non_null(bytes);
    return bytes;
}

static void what_was_written_comes_back(void **state)
{
    struct smla_key key;
    struct smla_entry entry;
    size_t size;
    (void)state;
    unsigned char *bytes = write_entry(&key, &size);
    assert_int_equal(size, SMLA_ENTRY_HEADER + key.size + sizeof payload);
    assert_int_equal(smla_entry_parse(bytes, size, &entry), SMLA_ENTRY_OK);
    assert_int_equal(entry.nvrtc_version, 12080);
    assert_int_equal(entry.key_size, key.size);
    assert_memory_equal(entry.key, key.bytes, key.size);
    assert_int_equal(entry.cubin_size, sizeof payload);
    assert_memory_equal(entry.cubin, payload, sizeof payload);
    free(bytes);
}

static void every_flipped_bit_is_noticed(void **state)
{
    struct smla_key key;
    struct smla_entry entry;
    size_t size;
    (void)state;
    unsigned char *bytes = write_entry(&key, &size);
    for (size_t bit = 0; bit < 8 * size; bit++) {
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        bool schema = bit / 8 >= 8 && bit / 8 < 12;
        assert_int_equal(smla_entry_parse(bytes, size, &entry), schema ? SMLA_ENTRY_OTHER_SCHEMA : SMLA_ENTRY_DAMAGED);
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    assert_int_equal(smla_entry_parse(bytes, size, &entry), SMLA_ENTRY_OK);
    free(bytes);
}

static void every_other_length_is_noticed(void **state)
{
    struct smla_key key;
    struct smla_entry entry;
    size_t size;
    (void)state;
    unsigned char *bytes = write_entry(&key, &size);
    for (size_t length = 0; length < size; length++) {
        /* A copy of exactly that length: an address sanitizer sees what is read behind it. */
        unsigned char *cut = malloc(length ? length : 1);
        memcpy(cut, bytes, length);
        assert_int_equal(smla_entry_parse(cut, length, &entry), SMLA_ENTRY_DAMAGED);
        free(cut);
    }
    unsigned char *longer = calloc(size + 1, 1);
    memcpy(longer, bytes, size);
    assert_int_equal(smla_entry_parse(longer, size + 1, &entry), SMLA_ENTRY_DAMAGED);
    free(longer);
    free(bytes);
}

static void sizes_that_overflow_are_noticed(void **state)
{
    struct smla_key key;
    struct smla_entry entry;
    size_t size;
    (void)state;
    unsigned char *bytes = write_entry(&key, &size);
    /* key_size + cubin_size is right modulo 2^64. */
    uint64_t huge = (uint64_t)(size - SMLA_ENTRY_HEADER) - UINT64_C(0xffffffff);
    memset(bytes + 16, 0xff, 4);
    for (int i = 0; i < 8; i++)
        bytes[24 + i] = (unsigned char)(huge >> (8 * i));
    assert_int_equal(smla_entry_parse(bytes, size, &entry), SMLA_ENTRY_DAMAGED);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_written_comes_back),
        cmocka_unit_test(every_flipped_bit_is_noticed),
        cmocka_unit_test(every_other_length_is_noticed),
        cmocka_unit_test(sizes_that_overflow_are_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
