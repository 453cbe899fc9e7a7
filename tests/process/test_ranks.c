/* SPDX-License-Identifier: Apache-2.0 */
/* Many processes and threads on one cold key: one compile where the lock works, right calls where it does not. */
#define _GNU_SOURCE
#include "process.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PROCESSES = 64, THREADS = 16 };

static bool rank(int number)
{
    (void)number;
    return process_life(THREADS);
}

static bool single(int number)
{
    (void)number;
    return process_life(1);
}

static void the_lock_makes_it_one_compile(void **state)
{
    (void)state;
    fake.compile_ms = 200;
    assert_int_equal(process_crowd(PROCESSES, rank), 0);
    assert_int_equal(process_tally->compiles, 1);
    assert_int_equal(process_tally->launches, PROCESSES * THREADS);
    assert_int_equal(process_tally->warnings, 0);
}

static void without_locks_all_are_right(void **state)
{
    static const int errors[] = {ENOLCK, EOPNOTSUPP, EINVAL};
    (void)state;
    fake.compile_ms = 50;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        fake.fs_failing = "lock";
        fake.fs_errno = errors[i];
        process_forget();
        fake_remove_dir(process_dir);
        assert_int_equal(process_crowd(PROCESSES, single), 0);
        assert_true(process_tally->compiles > 1); /* or the lock still worked */
        assert_int_equal(process_tally->warnings, process_tally->compiles);
        assert_int_equal(process_count(process_dir, ".tmp-"), 0);
        fake.fs_failing = NULL;
        assert_int_equal(process_call(), 0);
    }
}

static int hold(struct smla_cache *cache)
{
    struct smla_key key;
    process_key(&key, 1);
    return smla_cache_lock(cache, &key);
}

static void lock_path(char path[128])
{
    snprintf(path, 128, "%s/lock", process_dir);
}

static bool delete_or_live(int number)
{
    char path[128];
    lock_path(path);
    for (int i = 0; number == 0 && i < 300; i++) {
        (void)unlink(path);
        usleep(1000);
    }
    return number == 0 || process_life(1);
}

static void a_lock_file_that_vanishes_does_no_harm(void **state)
{
    (void)state;
    fake.compile_ms = 50;
    assert_int_equal(process_crowd(32, delete_or_live), 0);
    assert_true(process_tally->compiles >= 1);
    assert_int_equal(process_tally->launches, 31);
    assert_int_equal(process_call(), 0);
}

static void a_dead_process_holds_no_lock(void **state)
{
    struct smla_cache cache;
    int status;
    (void)state;
    pid_t pid = fork();
    if (pid == 0) {
        process_open_cache(&cache);
        if (hold(&cache) >= 0)
            raise(SIGKILL);
        _exit(1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    process_open_cache(&cache);
    cache.lock_ms = 0;
    int handle = hold(&cache);
    assert_true(handle >= 0);
    smla_cache_unlock(&cache, handle);
    smla_cache_finish(&cache);
}

/* As when an engine forks its workers while another thread compiles. */
static void a_forked_child_keeps_no_lock(void **state)
{
    struct smla_cache cache;
    (void)state;
    process_open_cache(&cache);
    cache.lock_ms = 0;
    int handle = hold(&cache);
    assert_true(handle >= 0);
    pid_t pid = fork();
    if (pid == 0) {
        pause();
        _exit(0);
    }
    assert_int_equal(hold(&cache), -1);
    smla_cache_unlock(&cache, handle);
    handle = hold(&cache);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_true(handle >= 0);
    smla_cache_unlock(&cache, handle);
    smla_cache_finish(&cache);
}

static void a_process_that_dies_compiling_is_replaced(void **state)
{
    (void)state;
    fake.compile_ms = 500;
    pid_t pid = fork();
    if (pid == 0)
        _exit(!process_life(1));
    usleep(200000);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    fake.compile_ms = 20;
    assert_int_equal(process_crowd(8, single), 0);
    assert_int_equal(process_tally->compiles, 1);
    assert_int_equal(process_tally->warnings, 0);
}

#define WITH_WORLD(function) cmocka_unit_test_setup_teardown(function, process_set_up, process_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_WORLD(the_lock_makes_it_one_compile),          WITH_WORLD(without_locks_all_are_right),
        WITH_WORLD(a_lock_file_that_vanishes_does_no_harm), WITH_WORLD(a_dead_process_holds_no_lock),
        WITH_WORLD(a_forked_child_keeps_no_lock),           WITH_WORLD(a_process_that_dies_compiling_is_replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
