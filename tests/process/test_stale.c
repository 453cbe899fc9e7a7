/* SPDX-License-Identifier: Apache-2.0 */
/* Whole entries that are not ours, in our entry's place; clocks that jump. */
#define _GNU_SOURCE
#include "process.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static long clock_offset;

/* The library's clock, in place of libc's. Files have the true times. */
time_t time(time_t *out)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    now.tv_sec += clock_offset;
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}

static unsigned char bytes[8192];
static size_t size;
static char path[256];

static void read_entry(struct smla_entry *entry)
{
    process_entry_path(path);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    assert_int_equal(smla_entry_parse(bytes, size, entry), SMLA_ENTRY_OK);
}

static void write_file(const void *data, size_t length)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, length, file), length);
    fclose(file);
}

/* Writes, under the entry's own name, one that says WRONG and differs in its key or its NVRTC version. */
static void plant(const char *from, const char *to, int nvrtc_version, const char *image)
{
    struct smla_entry entry;
    struct smla_key key = {0};
    size_t length;
    read_entry(&entry);
    memcpy(key.bytes, entry.key, entry.key_size);
    key.size = entry.key_size;
    if (from) {
        unsigned char *at = memmem(key.bytes, key.size, from, strlen(from));
        assert_non_null(at);
        memcpy(at, to, strlen(to));
    }
    const struct smla_cubin cubin = {(void *)(uintptr_t)image, strlen(image) + 1, nvrtc_version};
    void *other = smla_entry_write(&key, &cubin, &length);
    write_file(other, length);
    free(other);
}

static void expect_replaced(void)
{
    assert_int_equal(process_call(), 1);
    assert_int_equal(process_tally->warnings, 0); /* nobody's mistake */
    assert_int_equal(process_call(), 0);
}

static void entries_of_others_are_misses(void **state)
{
    struct smla_entry entry;
    char digest[4] = "";
    (void)state;
    assert_int_equal(process_call(), 1);
    plant("sm_90", "sm_80", 13000, "WRONG");
    expect_replaced();
    plant("sm_90", "sm_90a", 13000, "WRONG"); /* runs into the next part's length */
    expect_replaced();
    plant("sm_90", "sm_9", 13000, "cubin sm_90 #1"); /* the same key: a hit */
    assert_int_equal(process_call(), 0);
    plant("-DSMLA_STAGES=", "-DSMLA_STAGEZ=", 13000, "WRONG");
    expect_replaced();
    read_entry(&entry);
    memcpy(digest, entry.key + 9, 2); /* after the schema's length and digit and the digest's length */
    digest[0] = digest[0] == '0' ? '1' : '0';
    plant((char[]){(char)entry.key[9], (char)entry.key[10], 0}, digest, 13000, "WRONG");
    expect_replaced();
    plant("1", "2", 13000, "WRONG"); /* the schema inside the key */
    expect_replaced();
    read_entry(&entry);
    bytes[8] = 2; /* the schema of the entry */
    write_file(bytes, size);
    expect_replaced();
}

static void another_nvrtc_is_a_hit_until_the_driver_refuses_it(void **state)
{
    struct smla_entry entry;
    (void)state;
    assert_int_equal(process_call(), 1);
    plant(NULL, NULL, 12090, "cubin sm_90 #1");
    assert_int_equal(process_call(), 0);
    fake.refusals = 1;
    assert_int_equal(process_call(), 1);
    assert_int_equal(process_tally->warnings, 1);
    fake.refusals = 0;
    read_entry(&entry);
    assert_int_equal(entry.nvrtc_version, 13000);
    assert_int_equal(process_call(), 0);
}

/* The hash works in blocks and long strides: the unit tests see only its short forms. */
static void an_entry_as_large_as_a_kernel_betrays_every_change(void **state)
{
    enum { LARGE = 20000 };
    static unsigned char image[LARGE];
    struct smla_key key;
    struct smla_entry entry;
    size_t length;
    (void)state;
    srand(1);
    for (size_t i = 0; i < LARGE; i++)
        image[i] = (unsigned char)rand();
    process_key(&key, 1);
    unsigned char *whole = smla_entry_write(&key, &(struct smla_cubin){image, LARGE, 13000}, &length);
    assert_non_null(whole);
    for (size_t i = 0; i < length; i++) {
        const unsigned char change = (unsigned char)(1 + rand() % 255);
        whole[i] ^= change;
        assert_int_not_equal(smla_entry_parse(whole, length, &entry), SMLA_ENTRY_OK);
        whole[i] ^= change;
        assert_int_equal(smla_entry_parse(whole, i, &entry), SMLA_ENTRY_DAMAGED);
    }
    assert_int_equal(smla_entry_parse(whole, length, &entry), SMLA_ENTRY_OK);
    free(whole);
}

static void stored_files_outlive_jumps_of_the_clock(void **state)
{
    struct smla_cache cache;
    (void)state;
    process_open_cache(&cache);
    for (int jump = -1; jump <= 1; jump++) {
        clock_offset = jump * 315360000L;
        assert_null(process_store(&cache, 1 + jump, 1, 1000));
        for (int number = 0; number <= 1 + jump; number++)
            assert_int_equal(process_find(&cache, number), 1);
        assert_int_equal(process_call() >= 0, 1);
    }
    clock_offset = 0;
    assert_int_equal(process_call(), 0);
    assert_int_equal(fake.warnings, 0);
    smla_cache_finish(&cache);
}

/* The clock jumps while one writes, and another takes its temporary file for a dead process's. */
static void jump_and_evict(const char *operation)
{
    struct smla_cache other;
    if (strcmp(operation, "rename") != 0)
        return;
    fake.fs_hook = NULL;
    clock_offset = 315360000L;
    process_open_cache(&other);
    if (process_store(&other, 7, 7, 100))
        abort();
    smla_cache_finish(&other);
}

static void a_writer_whose_file_is_swept_away_still_serves(void **state)
{
    struct smla_cache cache;
    (void)state;
    fake.fs_hook = jump_and_evict;
    assert_int_equal(process_call(), 1);
    assert_int_equal(process_tally->warnings, 1);
    fake.fs_hook = NULL;
    process_open_cache(&cache);
    assert_int_equal(process_find(&cache, 7), 1);
    smla_cache_finish(&cache);
    assert_int_equal(process_call(), 1); /* it is not on disk */
    assert_int_equal(process_call(), 0);
    clock_offset = 0;
}

#define WITH_WORLD(function) cmocka_unit_test_setup_teardown(function, process_set_up, process_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_WORLD(entries_of_others_are_misses),
        WITH_WORLD(another_nvrtc_is_a_hit_until_the_driver_refuses_it),
        WITH_WORLD(an_entry_as_large_as_a_kernel_betrays_every_change),
        WITH_WORLD(stored_files_outlive_jumps_of_the_clock),
        WITH_WORLD(a_writer_whose_file_is_swept_away_still_serves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
