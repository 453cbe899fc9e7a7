/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "fake.h"

#include "sources.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static char root[64];
static char dir[128];

static int set_up(void **state)
{
    (void)state;
    fake_reset();
    fake_make_dir(root);
    snprintf(dir, sizeof dir, "%s/a/cache", root);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    fake_remove_dir(root);
    return 0;
}

static void open_cache(struct smla_cache *cache, const char *seeds)
{
    sparse_mla_options options;
    sparse_mla_options_init(&options);
    options.cache_dir = dir;
    options.seed_path = seeds;
    assert_int_equal(smla_cache_init(cache, &fake_fs, &fake_log, &options, fake_environment), SPARSE_MLA_OK);
}

static void make_key(struct smla_key *key, int number)
{
    struct smla_options_list options = {.count = 1};
    snprintf(options.text[0], sizeof options.text[0], "-DNUMBER=%d", number);
    smla_key_make(key, smla_source_digest, 120, &options, "sparse_mla_decode_x");
}

static void store(struct smla_cache *cache, int number, const char *text)
{
    struct smla_key key;
    const struct smla_cubin cubin = {(void *)(uintptr_t)text, strlen(text) + 1, 12090};
    make_key(&key, number);
    smla_cache_store(cache, &key, &cubin);
}

/* What the cache holds under a number; NULL on a miss. */
static const char *find(struct smla_cache *cache, int number)
{
    static char text[256];
    struct smla_key key;
    struct smla_cubin cubin;
    make_key(&key, number);
    if (!smla_cache_find(cache, &key, false, &cubin)) {
        assert_null(cubin.data);
        return NULL;
    }
    assert_int_equal(cubin.nvrtc_version, 12090);
    snprintf(text, sizeof text, "%.*s", (int)cubin.size, (const char *)cubin.data);
    smla_cubin_free(&cubin);
    return text;
}

static void path_of(int number, char path[256])
{
    struct smla_key key;
    make_key(&key, number);
    snprintf(path, 256, "%s/%s", dir, key.file);
}

/* ---- choosing ---- */

static void choose(const char *option, bool no_disk, const char *expected)
{
    struct smla_cache cache;
    sparse_mla_options options;
    sparse_mla_options_init(&options);
    options.cache_dir = option;
    options.no_disk_cache = no_disk;
    assert_int_equal(smla_cache_init(&cache, &fake_fs, &fake_log, &options, fake_environment), SPARSE_MLA_OK);
    if (expected)
        assert_string_equal(cache.dir, expected);
    else
        assert_null(cache.dir);
    smla_cache_finish(&cache);
}

static void the_directory_is_the_first_that_is_named(void **state)
{
    (void)state;
    choose(NULL, false, NULL);
    fake.environment[0][0] = "HOME", fake.environment[0][1] = "/home/me";
    choose(NULL, false, "/home/me/.cache/sparsemla");
    fake.environment[1][0] = "XDG_CACHE_HOME", fake.environment[1][1] = "relative";
    choose(NULL, false, "/home/me/.cache/sparsemla");
    fake.environment[1][1] = "";
    choose(NULL, false, "/home/me/.cache/sparsemla");
    fake.environment[1][1] = "/xdg";
    choose(NULL, false, "/xdg/sparsemla");
    fake.environment[2][0] = "SPARSEMLA_CACHE_DIR", fake.environment[2][1] = "/mine";
    choose(NULL, false, "/mine");
    choose("/option", false, "/option");
    choose("/option", true, NULL);
    assert_int_equal(fake.fs_calls, 0);
}

/* ---- using ---- */

static void what_is_stored_is_found(void **state)
{
    struct smla_cache cache;
    struct stat status;
    char path[256];
    (void)state;
    open_cache(&cache, NULL);
    assert_null(find(&cache, 1));
    assert_int_equal(fake.warnings, 0);
    store(&cache, 1, "one");
    store(&cache, 2, "two");
    assert_string_equal(find(&cache, 1), "one");
    assert_string_equal(find(&cache, 2), "two");
    store(&cache, 1, "uno");
    assert_string_equal(find(&cache, 1), "uno");
    assert_int_equal(fake.warnings, 0);
    assert_int_equal(stat(dir, &status), 0);
    assert_int_equal(status.st_mode & 07777, 0700);
    path_of(1, path);
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 07777, 0600);
    smla_cache_finish(&cache);
}

static void a_directory_below_nothing_costs_one_warning(void **state)
{
    struct smla_cache cache;
    (void)state;
    strcpy(dir, "/proc/no/such/place");
    open_cache(&cache, NULL);
    store(&cache, 1, "one");
    store(&cache, 2, "two");
    assert_null(find(&cache, 1));
    assert_int_equal(fake.warnings, 1);
    assert_true(fake_logged("cannot use directory /proc/no/such/place"));
    smla_cache_finish(&cache);
}

static void damage_of_every_byte_is_a_miss_and_is_repaired(void **state)
{
    struct smla_cache cache;
    char path[256];
    (void)state;
    open_cache(&cache, NULL);
    store(&cache, 1, "a kernel");
    path_of(1, path);
    FILE *file = fopen(path, "rb");
    unsigned char bytes[1024];
    size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    for (size_t i = 0; i <= size; i++) {
        file = fopen(path, "wb");
        bytes[i] ^= 1; /* at the end: one byte too many */
        assert_int_equal(fwrite(bytes, 1, i < size ? size : size + 1, file), i < size ? size : size + 1);
        bytes[i] ^= 1;
        fclose(file);
        assert_null(find(&cache, 1));
    }
    for (size_t length = 0; length < size; length++) {
        assert_int_equal(truncate(path, (off_t)length), 0);
        assert_null(find(&cache, 1));
        store(&cache, 1, "a kernel");
    }
    assert_string_equal(find(&cache, 1), "a kernel");
    smla_cache_finish(&cache);
}

static void an_entry_of_another_key_is_a_miss(void **state)
{
    struct smla_cache cache;
    char one[256], two[256];
    (void)state;
    open_cache(&cache, NULL);
    store(&cache, 1, "one");
    path_of(1, one);
    path_of(2, two);
    assert_int_equal(rename(one, two), 0);
    assert_null(find(&cache, 2));
    smla_cache_finish(&cache);
}

/* ---- trust ---- */

static void refuse(struct smla_cache *cache)
{
    fake.warnings = 0;
    atomic_store(&cache->warned, 0);
    assert_null(find(cache, 1));
    assert_int_equal(fake.warnings, 1);
}

static void what_others_may_write_is_not_used(void **state)
{
    struct smla_cache cache;
    char path[256], elsewhere[256];
    (void)state;
    open_cache(&cache, NULL);
    store(&cache, 1, "one");
    path_of(1, path);
    snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", root);

    assert_int_equal(chmod(path, 0620), 0);
    refuse(&cache);
    assert_true(fake_logged(".cubin is not used: others than its owner may write to it"));
    assert_int_equal(chmod(path, 0602), 0);
    refuse(&cache);
    assert_int_equal(chmod(path, 0644), 0);
    assert_string_equal(find(&cache, 1), "one");
    assert_int_equal(chmod(dir, 0770), 0);
    refuse(&cache);
    assert_int_equal(chmod(dir, 0700), 0);

    assert_int_equal(rename(path, elsewhere), 0);
    assert_int_equal(symlink(elsewhere, path), 0);
    refuse(&cache);
    assert_true(fake_logged(".cubin is not used: it is a symbolic link"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    refuse(&cache);
    assert_true(fake_logged(".cubin is not used: it is not a regular file"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    refuse(&cache);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(rename(elsewhere, path), 0);
    assert_string_equal(find(&cache, 1), "one");

    assert_int_equal(rename(dir, elsewhere), 0);
    assert_int_equal(symlink(elsewhere, dir), 0);
    refuse(&cache);
    smla_cache_finish(&cache);
}

static void a_foreign_owner_is_not_trusted(void **state)
{
    struct smla_cache cache;
    char path[256];
    (void)state;
    if (geteuid() != 0)
        skip();
    open_cache(&cache, NULL);
    store(&cache, 1, "one");
    path_of(1, path);
    assert_int_equal(chown(path, 12345, 0), 0);
    refuse(&cache);
    assert_int_equal(chown(path, 0, 0), 0);
    assert_int_equal(chown(dir, 12345, 0), 0);
    refuse(&cache);
    smla_cache_finish(&cache);
}

/* One place after another where the directory should be, and what the warning and the sentence say of it. */
static void expect_trouble(struct smla_cache *cache, const char *reason)
{
    uint32_t bad;
    char text[512];
    snprintf(text, sizeof text, "cannot use directory %s: %s; going on without it", dir, reason);
    refuse(cache);
    assert_true(fake_logged(text));
    snprintf(text, sizeof text,
             "the cache directory %s cannot be used: %s; options.cache_dir or SPARSEMLA_CACHE_DIR may name another",
             dir, reason);
    assert_int_equal(smla_cache_require(cache), SPARSE_MLA_CACHE_ERROR);
    assert_string_equal(sparse_mla_last_error(), text);
    snprintf(text, sizeof text, "the cache directory %s cannot be read: %s", dir, reason);
    assert_int_equal(smla_cache_check(cache, &bad), SPARSE_MLA_CACHE_ERROR);
    assert_string_equal(sparse_mla_last_error(), text);
    assert_int_equal(smla_cache_clear(cache), SPARSE_MLA_CACHE_ERROR);
    assert_string_equal(sparse_mla_last_error(), text);
}

static void what_is_wrong_with_the_directory_is_said(void **state)
{
    struct smla_cache cache;
    char elsewhere[256], below[256];
    (void)state;
    open_cache(&cache, NULL);
    assert_int_equal(smla_cache_require(&cache), SPARSE_MLA_OK);
    assert_int_equal(access(dir, F_OK), 0);
    assert_int_equal(chmod(dir, 0720), 0);
    expect_trouble(&cache, "others than its owner may write to it, which chmod go-w ends");
    assert_int_equal(chmod(dir, 0700), 0);
    if (geteuid() == 0) {
        assert_int_equal(chown(dir, 12345, 0), 0);
        expect_trouble(&cache, "it belongs to another user");
    }
    snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", root);
    assert_int_equal(rename(dir, elsewhere), 0);
    assert_int_equal(symlink(elsewhere, dir), 0);
    expect_trouble(&cache, "it is a symbolic link");
    assert_int_equal(unlink(dir), 0);
    close(creat(dir, 0600));
    expect_trouble(&cache, "it is not a directory");
    smla_cache_finish(&cache);
    snprintf(below, sizeof below, "%s/below", dir);
    strcpy(dir, below);
    open_cache(&cache, NULL);
    expect_trouble(&cache, "a part of its path is not a directory");
    smla_cache_finish(&cache);
}

static void no_directory_is_said_too(void **state)
{
    struct smla_cache cache;
    sparse_mla_options options;
    (void)state;
    sparse_mla_options_init(&options);
    for (int no_disk = 0; no_disk < 2; no_disk++) {
        options.no_disk_cache = no_disk;
        assert_int_equal(smla_cache_init(&cache, &fake_fs, &fake_log, &options, fake_environment), SPARSE_MLA_OK);
        assert_int_equal(smla_cache_require(&cache), no_disk ? SPARSE_MLA_INVALID_ARGUMENT : SPARSE_MLA_CACHE_ERROR);
        assert_string_equal(sparse_mla_last_error(),
                            no_disk ? "there is no cache directory: options.no_disk_cache is set"
                                    : "there is no cache directory: options.cache_dir, SPARSEMLA_CACHE_DIR, "
                                      "XDG_CACHE_HOME and HOME name none");
        smla_cache_finish(&cache);
    }
}

static void an_oversized_file_is_not_read(void **state)
{
    struct smla_cache cache;
    char path[256];
    (void)state;
    open_cache(&cache, NULL);
    store(&cache, 1, "one");
    path_of(1, path);
    assert_int_equal(truncate(path, (off_t)1 << 40), 0);
    refuse(&cache);
    smla_cache_finish(&cache);
}

/* ---- faults ---- */

static void every_fault_is_one_warning_and_no_harm(void **state)
{
    static const struct {
        const char *operation;
        int error;
        bool writes; /* so that the store is in vain */
    } faults[] = {
        {"mkdir", EACCES, true}, {"open", EROFS, true},   {"write", ENOSPC, true}, {"write", EIO, true},
        {"fsync", EIO, true},    {"close", EDQUOT, true}, {"rename", EIO, true},   {"open_dir", EACCES, true},
        {"fstat", EIO, true},    {"list", EIO, false},    {"stat_at", EIO, false}, {"touch", EPERM, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        struct smla_cache cache;
        fake_remove_dir(root);
        assert_int_equal(mkdir(root, 0700), 0);
        fake_reset();
        open_cache(&cache, NULL);
        fake.fs_failing = faults[i].operation;
        fake.fs_errno = faults[i].error;
        store(&cache, 1, "one");
        store(&cache, 1, "one");
        assert_int_equal(fake.warnings, faults[i].writes);
        fake.fs_failing = NULL;
        const char *text = find(&cache, 1);
        if (faults[i].writes)
            assert_null(text);
        else
            assert_string_equal(text, "one");
        store(&cache, 1, "one");
        assert_string_equal(find(&cache, 1), "one");
        smla_cache_finish(&cache);
    }
}

static int count_temporaries(void *user, const char *name)
{
    *(int *)user += strncmp(name, ".tmp-", 5) == 0;
    return 0;
}

static void a_failed_store_leaves_no_temporary_file(void **state)
{
    struct smla_cache cache;
    int count = 0;
    (void)state;
    open_cache(&cache, NULL);
    store(&cache, 1, "one");
    fake.fs_failing = "write";
    store(&cache, 2, "two");
    int fd = smla_fs_system.open_dir(dir);
    assert_int_equal(smla_fs_system.list(fd, count_temporaries, &count), 0);
    assert_int_equal(count, 0);
    close(fd);
    smla_cache_finish(&cache);
}

static void an_unreadable_entry_is_a_miss(void **state)
{
    static const char *const operations[] = {"open", "fstat", "read"};
    struct smla_cache cache;
    (void)state;
    open_cache(&cache, NULL);
    store(&cache, 1, "one");
    for (size_t i = 0; i < 3; i++) {
        fake.fs_failing = operations[i];
        refuse(&cache);
        fake.fs_failing = NULL;
        assert_string_equal(find(&cache, 1), "one");
    }
    smla_cache_finish(&cache);
}

/* ---- seeds ---- */

static void seeds_are_searched_and_never_written(void **state)
{
    struct smla_cache cache, seed;
    char seeds[512], path[256], own[128];
    struct stat before, after;
    (void)state;
    open_cache(&seed, NULL);
    store(&seed, 1, "seed");
    path_of(1, path);
    const struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    assert_int_equal(stat(path, &before), 0);

    snprintf(own, sizeof own, "%s/own", root);
    snprintf(seeds, sizeof seeds, "/no/such/seed::%s", dir);
    strcpy(dir, own);
    open_cache(&cache, seeds);
    assert_string_equal(find(&cache, 1), "seed");
    store(&cache, 1, "own");
    assert_string_equal(find(&cache, 1), "own");
    assert_string_equal(find(&seed, 1), "seed");
    smla_cache_finish(&seed);
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    struct smla_key key;
    make_key(&key, 1);
    smla_cache_drop(&cache, &key);
    assert_string_equal(find(&cache, 1), "seed");
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(before.st_mtime, after.st_mtime);
    assert_int_equal(fake.warnings, 0);
    smla_cache_finish(&cache);
}

/* ---- eviction ---- */

static void age(int number, int seconds)
{
    char path[256];
    const struct timespec times[2] = {{.tv_sec = 1000000000 - seconds}, {.tv_sec = 1000000000 - seconds}};
    path_of(number, path);
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void the_longest_unused_are_evicted(void **state)
{
    struct smla_cache cache;
    struct stat status;
    char path[256];
    (void)state;
    open_cache(&cache, NULL);
    for (int i = 1; i <= 3; i++)
        store(&cache, i, "same size");
    age(1, 300);
    age(2, 200);
    age(3, 100);
    assert_non_null(find(&cache, 1)); /* a use: now 2 is the oldest */
    path_of(1, path);
    assert_int_equal(stat(path, &status), 0);
    cache.cap = 3 * (uint64_t)status.st_size;
    store(&cache, 4, "same size");
    assert_null(find(&cache, 2));
    assert_non_null(find(&cache, 1));
    assert_non_null(find(&cache, 3));
    assert_non_null(find(&cache, 4));
    cache.cap = 1;
    store(&cache, 5, "same size");
    assert_non_null(find(&cache, 5)); /* never the one just made */
    for (int i = 1; i <= 4; i++)
        assert_null(find(&cache, i));
    smla_cache_finish(&cache);
}

static void dead_temporaries_go_and_strangers_stay(void **state)
{
    struct smla_cache cache;
    char paths[3][256];
    static const char *const names[] = {".tmp-1-0-1", ".tmp-2-0-2", "notes.txt"};
    const struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    (void)state;
    open_cache(&cache, NULL);
    store(&cache, 1, "one");
    for (int i = 0; i < 3; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/%s", dir, names[i]);
        close(creat(paths[i], 0600));
    }
    assert_int_equal(utimensat(AT_FDCWD, paths[0], old, 0), 0);
    cache.cap = 1;
    store(&cache, 2, "two");
    assert_int_equal(access(paths[0], F_OK), -1);
    assert_int_equal(access(paths[1], F_OK), 0);
    assert_int_equal(access(paths[2], F_OK), 0);
    smla_cache_finish(&cache);
}

/* ---- the lock ---- */

static void the_lock_excludes_one_key_and_is_bounded(void **state)
{
    struct smla_cache cache, other;
    struct smla_key one, two;
    (void)state;
    open_cache(&cache, NULL);
    open_cache(&other, NULL);
    other.lock_ms = 40;
    make_key(&one, 1);
    make_key(&two, 2);
    int first = smla_cache_lock(&cache, &one);
    assert_true(first >= 0);
    int second = smla_cache_lock(&other, &two);
    assert_true(second >= 0);
    smla_cache_unlock(&other, second);
    assert_int_equal(smla_cache_lock(&other, &one), -1);
    assert_true(fake_logged("cannot lock"));
    smla_cache_unlock(&cache, first);
    second = smla_cache_lock(&other, &one);
    assert_true(second >= 0);
    smla_cache_unlock(&other, second);
    smla_cache_unlock(&other, -1);
    fake.fs_failing = "lock";
    fake.fs_errno = ENOLCK;
    assert_int_equal(smla_cache_lock(&cache, &one), -1);
    smla_cache_finish(&cache);
    smla_cache_finish(&other);
}

/* ---- listing ---- */

struct seen {
    int count, valid, stop_after;
    sparse_mla_cache_entry last_valid;
};

static int see(void *user, const sparse_mla_cache_entry *entry)
{
    struct seen *seen = user;
    seen->count++;
    if (entry->valid) {
        seen->valid++;
        seen->last_valid = *entry;
    }
    return seen->count == seen->stop_after;
}

static void entries_are_listed_checked_and_cleared(void **state)
{
    struct smla_cache cache;
    struct smla_key key;
    struct seen seen = {0};
    uint32_t bad = 99;
    char path[256];
    (void)state;
    open_cache(&cache, NULL);
    assert_int_equal(smla_cache_list(&cache, see, &seen), SPARSE_MLA_OK);
    assert_int_equal(seen.count, 0);
    for (int i = 1; i <= 3; i++)
        store(&cache, i, "kernel");
    const struct smla_options_list options = {{"-DA"}, 1};
    const struct smla_cubin cubin = {(char[]){"old"}, 4, 12080};
    smla_key_make(&key, "digest of other sources", 90, &options, "old_kernel");
    smla_cache_store(&cache, &key, &cubin);
    path_of(1, path);
    assert_int_equal(truncate(path, 60), 0);

    assert_int_equal(smla_cache_list(&cache, see, &seen), SPARSE_MLA_OK);
    assert_int_equal(seen.count, 4);
    assert_int_equal(seen.valid, 2);
    assert_string_equal(seen.last_valid.variant, "sparse_mla_decode_x");
    assert_string_equal(seen.last_valid.target, "sm_120");
    assert_int_equal(seen.last_valid.nvrtc_version, 12090);
    assert_int_equal(seen.last_valid.struct_size, sizeof(sparse_mla_cache_entry));
    assert_true(seen.last_valid.last_used > 1000000000);
    seen = (struct seen){.stop_after = 2};
    assert_int_equal(smla_cache_list(&cache, see, &seen), SPARSE_MLA_OK);
    assert_int_equal(seen.count, 2);

    assert_int_equal(smla_cache_check(&cache, &bad), SPARSE_MLA_OK);
    assert_int_equal(bad, 1);
    assert_int_equal(smla_cache_clear(&cache), SPARSE_MLA_OK);
    assert_null(find(&cache, 2));
    fake.fs_failing = "list";
    assert_int_equal(smla_cache_check(&cache, &bad), SPARSE_MLA_CACHE_ERROR);
    assert_non_null(strstr(sparse_mla_last_error(), dir));
    smla_cache_finish(&cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_directory_is_the_first_that_is_named),
        cmocka_unit_test(what_is_stored_is_found),
        cmocka_unit_test(a_directory_below_nothing_costs_one_warning),
        cmocka_unit_test(damage_of_every_byte_is_a_miss_and_is_repaired),
        cmocka_unit_test(an_entry_of_another_key_is_a_miss),
        cmocka_unit_test(what_others_may_write_is_not_used),
        cmocka_unit_test(a_foreign_owner_is_not_trusted),
        cmocka_unit_test(what_is_wrong_with_the_directory_is_said),
        cmocka_unit_test(no_directory_is_said_too),
        cmocka_unit_test(an_oversized_file_is_not_read),
        cmocka_unit_test(every_fault_is_one_warning_and_no_harm),
        cmocka_unit_test(a_failed_store_leaves_no_temporary_file),
        cmocka_unit_test(an_unreadable_entry_is_a_miss),
        cmocka_unit_test(seeds_are_searched_and_never_written),
        cmocka_unit_test(the_longest_unused_are_evicted),
        cmocka_unit_test(dead_temporaries_go_and_strangers_stay),
        cmocka_unit_test(the_lock_excludes_one_key_and_is_bounded),
        cmocka_unit_test(entries_are_listed_checked_and_cleared),
    };
    struct CMUnitTest with_world[sizeof tests / sizeof tests[0]];
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        with_world[i] = tests[i];
        with_world[i].setup_func = set_up;
        with_world[i].teardown_func = tear_down;
    }
    return cmocka_run_group_tests(with_world, NULL, NULL);
}
