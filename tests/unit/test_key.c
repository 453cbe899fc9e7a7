/* SPDX-License-Identifier: Apache-2.0 */
#include "key.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static const struct smla_options_list two = {{"-DA=1", "-DB=2"}, 2};

static void make(struct smla_key *key, const char *digest, int target, const struct smla_options_list *options,
                 const char *name)
{
    smla_key_make(key, digest, target, options, name);
}

static void a_key_is_frozen(void **state)
{
    static const char expected[] = "\1\0\0\0"
                                   "1"
                                   "\2\0\0\0"
                                   "ab"
                                   "\6\0\0\0"
                                   "sm_120"
                                   "\5\0\0\0"
                                   "-DA=1"
                                   "\5\0\0\0"
                                   "-DB=2"
                                   "\4\0\0\0"
                                   "name";
    struct smla_key key;
    (void)state;
    make(&key, "ab", 120, &two, "name");
    assert_int_equal(key.size, sizeof expected - 1);
    assert_memory_equal(key.bytes, expected, key.size);
    /* Of these very bytes: the hash function and the byte order of its digits may not change unnoticed. */
    assert_string_equal(key.file, "4e54c7361b2624349b4f38138121fd3d.cubin");
    assert_true(smla_key_is_file(key.file));
}

static void every_part_makes_a_difference(void **state)
{
    const struct smla_options_list swapped = {{"-DB=2", "-DA=1"}, 2}, joined = {{"-DA=1-DB=2"}, 1};
    struct smla_key base, other[6];
    (void)state;
    make(&base, "ab", 120, &two, "name");
    make(&other[0], "ac", 120, &two, "name");
    make(&other[1], "ab", 121, &two, "name");
    make(&other[2], "ab", 120, &swapped, "name");
    make(&other[3], "ab", 120, &joined, "name");
    make(&other[4], "ab", 120, &two, "name2");
    make(&other[5], "abs", 120, &two, "name");
    for (int i = 0; i < 6; i++) {
        assert_string_not_equal(base.file, other[i].file);
        assert_true(base.size != other[i].size || memcmp(base.bytes, other[i].bytes, base.size) != 0);
    }
}

static void parts_come_back(void **state)
{
    struct smla_key key;
    struct smla_key_parts parts;
    (void)state;
    make(&key, "0123456789abcdef0123456789abcdef", 90, &two, "sparse_mla_decode_x");
    assert_true(smla_key_parse(key.bytes, key.size, &parts));
    assert_string_equal(parts.digest, "0123456789abcdef0123456789abcdef");
    assert_string_equal(parts.target, "sm_90");
    assert_string_equal(parts.variant, "sparse_mla_decode_x");
}

static void odd_bytes_are_no_key(void **state)
{
    struct smla_key key;
    struct smla_key_parts parts;
    (void)state;
    make(&key, "ab", 120, &two, "name");
    size_t without_options = 5 + 6 + 10; /* schema, digest, target: the name is missing */
    for (size_t size = 0; size < key.size; size++) {
        bool ends_a_part = size == without_options + 9 || size == without_options + 18;
        assert_int_equal(smla_key_parse(key.bytes, size, &parts), ends_a_part);
    }
    key.bytes[3] = 0x80; /* a part of 2^31 bytes */
    assert_false(smla_key_parse(key.bytes, key.size, &parts));
    make(&key, "ab", 120, &two, "name");
    key.bytes[4] = '2'; /* another schema */
    assert_false(smla_key_parse(key.bytes, key.size, &parts));
    make(&key, "ab", 120, &two, "name");
    key.bytes[key.size - 2] = 0; /* a NUL within a name */
    assert_false(smla_key_parse(key.bytes, key.size, &parts));
}

static void a_full_key_stays_within_bounds(void **state)
{
    struct smla_options_list options = {.count = SMLA_OPTIONS_MAX};
    struct smla_key key;
    (void)state;
    for (int i = 0; i < SMLA_OPTIONS_MAX; i++)
        memset(options.text[i], 'x', SMLA_DEFINE_MAX - 1);
    make(&key, "0123456789abcdef0123456789abcdef", 120, &options, "n");
    assert_int_equal(key.size, 5 + 36 + 10 + SMLA_OPTIONS_MAX * (SMLA_DEFINE_MAX + 3) + 5);
    assert_true(key.size <= SMLA_KEY_MAX);
}

static void file_names_are_recognised(void **state)
{
    (void)state;
    assert_true(smla_key_is_file("0123456789abcdef0123456789abcdef.cubin"));
    assert_false(smla_key_is_file("0123456789abcdef0123456789abcde.cubin"));
    assert_false(smla_key_is_file("0123456789ABCDEF0123456789abcdef.cubin"));
    assert_false(smla_key_is_file("0123456789abcdef0123456789abcdef.cubin2"));
    assert_false(smla_key_is_file(".tmp-1-1-1"));
    assert_false(smla_key_is_file("lock"));
    assert_false(smla_key_is_file(""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_is_frozen),           cmocka_unit_test(every_part_makes_a_difference),
        cmocka_unit_test(parts_come_back),           cmocka_unit_test(odd_bytes_are_no_key),
        cmocka_unit_test(file_names_are_recognised), cmocka_unit_test(a_full_key_stays_within_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
