/* SPDX-License-Identifier: Apache-2.0 */
/* Directories and files that belong to others, are links, pipes or closed: a call works, and leaves them alone.
 * Run by root, whom modes do not stop, the callers are an ordinary user. */
#define _GNU_SOURCE
#include "process.h"

#include <errno.h>
#include <grp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { USER = 65534, STRANGER = 65533 };

static char outside[128];

static int set_up(void **state)
{
    const int result = process_set_up(state);
    snprintf(outside, sizeof outside, "%s/outside", process_root);
    return result || chmod(process_root, 0755) || mkdir(outside, 0755);
}

static bool live_as_user(int number)
{
    (void)number;
    if (geteuid() == 0 && (setgroups(0, NULL) || setgid(USER) || setuid(USER)))
        return false;
    return process_life(1);
}

/* How often a first call of the ordinary user compiled; -1: it failed. */
static int call(void)
{
    process_forget();
    return process_crowd(1, live_as_user) ? -1 : process_tally->compiles;
}

/* An own directory of the user, with the entry in it. */
static void fill(void)
{
    if (geteuid() == 0) {
        assert_int_equal(mkdir(process_dir, 0700), 0);
        assert_int_equal(chown(process_dir, USER, USER), 0);
    }
    assert_int_equal(call(), 1);
    assert_int_equal(process_tally->warnings, 0);
    assert_int_equal(call(), 0);
}

static void empty(void)
{
    fake_remove_dir(process_dir);
    fake_remove_dir(outside);
    assert_int_equal(mkdir(outside, 0755), 0);
}

static void needs_root(void)
{
    if (geteuid() != 0)
        skip();
}

static void expect_unusable(void)
{
    for (int i = 0; i < 2; i++) {
        assert_int_equal(call(), 1);
        assert_int_equal(process_tally->warnings, 1);
    }
}

static void a_closed_directory_is_read_if_it_can_be(void **state)
{
    (void)state;
    fill();
    assert_int_equal(chmod(process_dir, 0500), 0);
    assert_int_equal(call(), 0);
    assert_int_equal(process_tally->warnings, 0);
    fake.capability = 80; /* another key, so a miss */
    process_forget();
    assert_int_equal(process_crowd(1, live_as_user), 1); /* the image is of sm_80, which a life does not expect */
    assert_int_equal(process_tally->compiles, 1);
    assert_int_equal(process_tally->launches, 1);
    fake.capability = 90;
    assert_int_equal(process_count(process_dir, ""), 2); /* the entry and the lock */
    assert_int_equal(chmod(process_dir, 0000), 0);
    expect_unusable();
    assert_int_equal(chmod(process_dir, 0700), 0);
}

/* The reason is that of the parent which is not there. */
static bool live_denied(int number)
{
    return live_as_user(number) && fake_logged("/outside/no/home: Permission denied; going on without it");
}

static void no_directory_can_be_made(void **state)
{
    static char below[160];
    (void)state;
    assert_int_equal(chmod(outside, 0555), 0);
    snprintf(below, sizeof below, "%s/no/home", outside);
    process_options.cache_dir = below;
    expect_unusable();
    assert_int_equal(process_crowd(1, live_denied), 0);
    process_options.cache_dir = NULL;
    fake.environment[0][0] = "HOME", fake.environment[0][1] = "/dev/null";
    expect_unusable();
    fake.environment[0][0] = NULL;
    fake.environment[0][1] = NULL;
}

static void directories_of_others_are_not_used(void **state)
{
    char path[256];
    (void)state;
    needs_root();
    fill();
    process_entry_path(path);
    static const struct {
        uid_t owner;
        mode_t mode;
    } cases[] = {{0, 0755}, {0, 0777}, {STRANGER, 0777}, {USER, 0770}, {USER, 0707}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(chown(process_dir, cases[i].owner, USER), 0);
        assert_int_equal(chmod(process_dir, cases[i].mode), 0);
        expect_unusable();
    }
    assert_int_equal(process_count(process_dir, ""), 2);
    assert_int_equal(chown(process_dir, USER, USER), 0);
    assert_int_equal(chmod(process_dir, 0700), 0);
    static const uid_t owners[] = {0, STRANGER};
    for (size_t i = 0; i < 2; i++) { /* an entry of another is replaced */
        assert_int_equal(chown(path, owners[i], USER), 0);
        assert_int_equal(chmod(path, 0644), 0);
        assert_int_equal(call(), 1);
        assert_int_equal(process_tally->warnings, 1);
        assert_int_equal(call(), 0);
    }
}

static void seeds_of_root_are_used_and_no_others(void **state)
{
    static char seed[128];
    char command[512];
    struct stat before, after;
    (void)state;
    needs_root();
    fill();
    snprintf(seed, sizeof seed, "%s/seed", process_root);
    assert_int_equal(rename(process_dir, seed), 0);
    snprintf(command, sizeof command, "chown -R 0:0 %s && chmod 755 %s && chmod 644 %s/*", seed, seed, seed);
    assert_int_equal(system(command), 0);
    process_options.seed_path = seed;
    assert_int_equal(stat(seed, &before), 0);
    assert_int_equal(call(), 0);
    assert_int_equal(process_tally->warnings, 0);
    assert_int_equal(stat(seed, &after), 0);
    assert_int_equal(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);
    assert_int_equal(process_count(seed, ""), 2);
    assert_int_equal(chmod(seed, 0775), 0);
    assert_int_equal(call(), 1);
    assert_true(process_tally->warnings >= 1);
    assert_int_equal(chmod(seed, 0755), 0);
    assert_int_equal(chown(seed, STRANGER, 0), 0);
    assert_int_equal(call(), 1);
}

/* Something else in place of the entry and of the lock: not used, not followed, and replaced where that is possible. */
static void links_are_not_followed(void **state)
{
    char path[256], elsewhere[256], lock[256], command[4096];
    (void)state;
    fill();
    process_entry_path(path);
    snprintf(lock, sizeof lock, "%s/lock", process_dir);
    snprintf(elsewhere, sizeof elsewhere, "%s/file", outside);
    snprintf(command, sizeof command, "mv %s %s && cp -p %s %s.copy && ln -s %s %s && rm %s && ln -s %s/made %s", path,
             elsewhere, elsewhere, elsewhere, elsewhere, path, lock, outside, lock);
    assert_int_equal(system(command), 0);
    assert_int_equal(call(), 1);
    assert_true(process_tally->warnings >= 1);
    assert_int_equal(process_count(outside, "made"), 0);
    snprintf(command, sizeof command, "cmp %s %s.copy && test -f %s && test ! -L %s", elsewhere, elsewhere, path, path);
    assert_int_equal(system(command), 0);
    assert_int_equal(call(), 0);
}

static void a_linked_directory_is_not_entered(void **state)
{
    static char with_slash[128];
    (void)state;
    assert_int_equal(symlink(outside, process_dir), 0);
    if (geteuid() == 0)
        assert_int_equal(chown(outside, USER, USER), 0);
    expect_unusable();
    snprintf(with_slash, sizeof with_slash, "%s//", process_dir); /* which asks the system to follow it */
    process_options.cache_dir = with_slash;
    expect_unusable();
    assert_int_equal(process_count(outside, ""), 0);
    assert_int_equal(unlink(process_dir), 0);
}

static void pipes_do_not_hang(void **state)
{
    char path[256], command[4096];
    (void)state;
    fill();
    process_entry_path(path);
    snprintf(command, sizeof command, "cd %s && rm lock %s && mkfifo -m 600 lock %s", process_dir, path, path);
    assert_int_equal(system(command), 0);
    if (geteuid() == 0)
        assert_int_equal(chown(path, USER, USER), 0);
    assert_int_equal(call(), 1);
    assert_true(process_tally->warnings >= 1);
    assert_int_equal(call(), 0);
    snprintf(command, sizeof command, "rm %s && mkdir %s", path, path);
    assert_int_equal(system(command), 0);
    for (int i = 0; i < 2; i++) { /* a directory cannot be replaced */
        assert_int_equal(call(), 1);
        assert_int_equal(process_tally->warnings, 2); /* not read, not written */
    }
}

static void every_operation_may_fail_in_every_way(void **state)
{
    static const char *const operations[] = {"mkdir",   "open_dir", "open",  "close",  "fstat",
                                             "stat_at", "read",     "write", "fsync",  "rename",
                                             "unlink",  "touch",    "lock",  "unlock", "list"};
    static const int errors[] = {ENOSPC, EROFS, EIO, EACCES, ENOLCK, EMFILE, ESTALE};
    (void)state;
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
        for (size_t e = 0; e < sizeof errors / sizeof *errors; e++) {
            empty();
            fake.fs_failing = operations[i];
            fake.fs_errno = errors[e];
            assert_int_equal(process_call(), 1);
            const int again = process_call();
            assert_true(again == 0 || again == 1);
            fake.fs_failing = NULL;
            assert_true(process_call() >= 0);
            assert_int_equal(process_call(), 0);
        }
}

#define WITH_WORLD(function) cmocka_unit_test_setup_teardown(function, set_up, process_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_WORLD(a_closed_directory_is_read_if_it_can_be),
        WITH_WORLD(no_directory_can_be_made),
        WITH_WORLD(directories_of_others_are_not_used),
        WITH_WORLD(seeds_of_root_are_used_and_no_others),
        WITH_WORLD(links_are_not_followed),
        WITH_WORLD(a_linked_directory_is_not_entered),
        WITH_WORLD(pipes_do_not_hang),
        WITH_WORLD(every_operation_may_fail_in_every_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
