/* SPDX-License-Identifier: Apache-2.0 */
/* A real file system that is full, then read-only. Exits with 77 (skipped) where none may be mounted. */
#define _GNU_SOURCE
#include "process.h"

#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cmocka.h>

static void a_full_disk_then_a_read_only_one(void **state)
{
    char ballast[128], block[4096] = {0};
    (void)state;
    snprintf(ballast, sizeof ballast, "%s/ballast", process_dir);
    int fd = open(ballast, O_WRONLY | O_CREAT, 0600);
    while (write(fd, block, sizeof block) > 0)
        ;
    close(fd);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(process_call(), 1);
        assert_int_equal(process_tally->warnings, 1);
    }
    assert_int_equal(process_count(process_dir, ".tmp-"), 0);
    assert_int_equal(truncate(ballast, 0), 0);
    assert_int_equal(process_call(), 1);
    assert_int_equal(process_tally->warnings, 0);

    assert_int_equal(mount("none", process_dir, "tmpfs", MS_REMOUNT | MS_RDONLY, NULL), 0);
    assert_int_equal(process_call(), 0);
    assert_int_equal(process_tally->warnings, 0);
    assert_int_equal(mount("none", process_dir, "tmpfs", MS_REMOUNT, NULL), 0);
    fake_remove_dir(process_dir); /* what is in it */
    assert_int_equal(mount("none", process_dir, "tmpfs", MS_REMOUNT | MS_RDONLY, NULL), 0);
    assert_int_equal(process_call(), 1);
    assert_int_equal(process_tally->warnings, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_full_disk_then_a_read_only_one)};
    int status = 77;
    process_set_up(NULL);
    /* In a name space of its own, so that it ends with this process. */
    if ((unshare(CLONE_NEWNS) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0) &&
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 && mkdir(process_dir, 0700) == 0 &&
        mount("none", process_dir, "tmpfs", 0, "size=64k,mode=0700") == 0) {
        status = cmocka_run_group_tests(tests, NULL, NULL);
        umount(process_dir);
    } else {
        perror("no file system may be mounted here");
    }
    process_tear_down(NULL);
    return status;
}
