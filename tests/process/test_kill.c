/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that are killed while they write: what others find is whole, or nothing. */
#define _GNU_SOURCE
#include "process.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { KILLS = 2000, KEYS = 4, LONGEST_US = 8000 };

static int die_at, operations;

static void die(const char *operation)
{
    (void)operation;
    if (++operations == die_at)
        raise(SIGKILL);
}

/* Before each of its file operations, one after another. */
static void a_call_may_die_at_every_step(void **state)
{
    int status;
    (void)state;
    for (die_at = 1;; die_at++) {
        fake_remove_dir(process_dir);
        pid_t pid = fork();
        if (pid == 0) {
            fake.fs_hook = die;
            _exit(!process_life(1));
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (WIFEXITED(status))
            break;
        const int compiles = process_call();
        assert_true(compiles == 0 || compiles == 1);
        assert_int_equal(process_tally->warnings, 0);
        assert_int_equal(process_call(), 0);
    }
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_true(die_at > 20); /* open, lock, eight writes or so, sync, rename ... */
}

static void write_for_ever(int round)
{
    struct smla_cache cache;
    srand((unsigned)round);
    process_options.log = NULL;
    process_open_cache(&cache);
    for (uint64_t seed = (uint64_t)round << 32;; seed++)
        (void)process_store(&cache, rand() % KEYS, seed, 16 + (size_t)rand() % 20000);
}

static void age_temporaries(void)
{
    char command[256];
    snprintf(command, sizeof command, "touch -d 2001-01-01 %s/.tmp-*", process_dir);
    assert_int_equal(system(command), 0);
}

static void a_writer_may_die_at_any_moment(void **state)
{
    struct smla_cache cache;
    int found = 0;
    (void)state;
    process_open_cache(&cache);
    srand(1);
    for (int round = 0; round < KILLS; round++) {
        pid_t pid = fork();
        if (pid == 0)
            write_for_ever(round);
        usleep((useconds_t)(rand() % LONGEST_US));
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        for (int number = 0; number < KEYS; number++) {
            const int result = process_find(&cache, number);
            assert_int_not_equal(result, -1);
            found += result;
        }
        assert_int_equal(fake.warnings, 0);
    }
    assert_true(found > KILLS);                                    /* they did write */
    assert_true(process_count(process_dir, ".tmp-") > KILLS / 20); /* and were killed while they did */
    age_temporaries();
    assert_null(process_store(&cache, 0, 1, 100));
    assert_int_equal(process_count(process_dir, ".tmp-"), 0);
    smla_cache_finish(&cache);
}

#define WITH_WORLD(function) cmocka_unit_test_setup_teardown(function, process_set_up, process_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_WORLD(a_call_may_die_at_every_step),
        WITH_WORLD(a_writer_may_die_at_any_moment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
