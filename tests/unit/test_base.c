/* SPDX-License-Identifier: Apache-2.0 */
#include "base.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static void a_failure_leaves_its_sentence(void **state)
{
    (void)state;
    assert_int_equal(smla_fail(SPARSE_MLA_UNSUPPORTED, "topk is %d; allowed: %s", 7, "8"), SPARSE_MLA_UNSUPPORTED);
    assert_string_equal(sparse_mla_last_error(), "topk is 7; allowed: 8");
    smla_fail(SPARSE_MLA_UNSUPPORTED, "because %s", sparse_mla_last_error());
    assert_string_equal(sparse_mla_last_error(), "because topk is 7; allowed: 8");
}

static void a_long_sentence_is_cut(void **state)
{
    char text[2000];
    (void)state;
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    smla_fail(SPARSE_MLA_UNSUPPORTED, "%s", text);
    assert_int_equal(strlen(sparse_mla_last_error()), 511);
}

static void *fail_elsewhere(void *unused)
{
    assert_string_equal(sparse_mla_last_error(), "");
    smla_fail(SPARSE_MLA_UNSUPPORTED, "elsewhere");
    return unused;
}

static void sentences_belong_to_threads(void **state)
{
    pthread_t thread;
    (void)state;
    smla_fail(SPARSE_MLA_UNSUPPORTED, "here");
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_string_equal(sparse_mla_last_error(), "here");
}

static void every_status_has_a_word(void **state)
{
    (void)state;
    assert_string_equal(sparse_mla_status_string(SPARSE_MLA_OK), "OK");
    assert_string_equal(sparse_mla_status_string(SPARSE_MLA_COMPILER_TOO_OLD), "COMPILER_TOO_OLD");
    for (int i = 0; i <= SPARSE_MLA_CACHE_ERROR; i++)
        assert_string_not_equal(sparse_mla_status_string((sparse_mla_status)i), "UNKNOWN");
    assert_string_equal(sparse_mla_status_string((sparse_mla_status)(SPARSE_MLA_CACHE_ERROR + 1)), "UNKNOWN");
    assert_string_equal(sparse_mla_status_string((sparse_mla_status)-1), "UNKNOWN");
}

static void take_line(void *user, sparse_mla_log_level level, const char *message)
{
    snprintf(user, 64, "%d %s", (int)level, message);
}

static void the_log_may_be_absent(void **state)
{
    char line[64] = "";
    const struct smla_log log = {take_line, line}, silent = {NULL, NULL};
    (void)state;
    smla_log(NULL, SPARSE_MLA_LOG_WARNING, "nobody");
    smla_log(&silent, SPARSE_MLA_LOG_WARNING, "nobody");
    smla_log(&log, SPARSE_MLA_LOG_INFO, "%d files", 3);
    assert_string_equal(line, "1 3 files");
}

static void the_version_is_that_of_the_header(void **state)
{
    (void)state;
    assert_int_equal(sparse_mla_version(),
                     10000 * SPARSE_MLA_VERSION_MAJOR + 100 * SPARSE_MLA_VERSION_MINOR + SPARSE_MLA_VERSION_PATCH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failure_leaves_its_sentence), cmocka_unit_test(a_long_sentence_is_cut),
        cmocka_unit_test(sentences_belong_to_threads),   cmocka_unit_test(every_status_has_a_word),
        cmocka_unit_test(the_log_may_be_absent),         cmocka_unit_test(the_version_is_that_of_the_header),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
