/* SPDX-License-Identifier: Apache-2.0 */
/* A directory at its size cap: some write and evict while others read. */
#define _GNU_SOURCE
#include "process.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

enum { WRITERS = 4, READERS = 4, KEYS = 40, CAP = 100000, STORES = 100, LOOKS = 3000 };

/* Tallied as launches: hits; as compiles: misses. */
static bool write_or_read(int number)
{
    struct smla_cache cache;
    bool right = true;
    srand((unsigned)number);
    process_open_cache(&cache);
    for (int i = 0; number < WRITERS && i < STORES; i++)
        right = !process_store(&cache, rand() % KEYS, (uint64_t)rand(), 4000 + (size_t)rand() % 8000) && right;
    for (int i = 0; number >= WRITERS && i < LOOKS; i++) {
        const int result = process_find(&cache, rand() % KEYS);
        atomic_fetch_add(result ? &process_tally->launches : &process_tally->compiles, 1);
        right = right && result >= 0;
    }
    atomic_fetch_add(&process_tally->warnings, fake.warnings);
    smla_cache_finish(&cache);
    return right;
}

static int add_bytes(void *user, const sparse_mla_cache_entry *entry)
{
    *(uint64_t *)user += entry->bytes;
    return 0;
}

static void eviction_harms_no_reader(void **state)
{
    struct smla_cache cache;
    uint64_t bytes = 0;
    uint32_t bad = 1;
    (void)state;
    process_options.cache_size_cap = CAP;
    assert_int_equal(process_crowd(WRITERS + READERS, write_or_read), 0);
    assert_int_equal(process_tally->warnings, 0);
    assert_true(process_tally->launches > 0);
    assert_true(process_tally->compiles > 0);
    process_open_cache(&cache);
    assert_null(process_store(&cache, 0, 1, 5000));
    assert_int_equal(smla_cache_list(&cache, add_bytes, &bytes), SPARSE_MLA_OK);
    assert_true(bytes <= CAP);
    assert_true(bytes > CAP - 13000); /* no more than need be is evicted */
    assert_int_equal(smla_cache_check(&cache, &bad), SPARSE_MLA_OK);
    assert_int_equal(bad, 0);
    smla_cache_finish(&cache);
}

/* Another process evicts the same file first: that is no reason to evict one more. */
static void evict_from_outside(const char *operation)
{
    char command[256];
    if (strcmp(operation, "unlink") != 0)
        return;
    fake.fs_hook = NULL;
    snprintf(command, sizeof command, "rm \"$(ls -tr %s/*.cubin | head -1)\"", process_dir);
    if (system(command) != 0)
        abort();
}

static void two_that_evict_evict_once(void **state)
{
    struct smla_cache cache;
    (void)state;
    process_options.cache_size_cap = 3 * 5100 + 1000;
    process_open_cache(&cache);
    for (int number = 0; number < 3; number++) {
        char command[256];
        struct smla_key key;
        process_key(&key, number);
        assert_null(process_store(&cache, number, 1, 5000));
        snprintf(command, sizeof command, "touch -d 2001-01-0%d %s/%s", number + 1, process_dir, key.file);
        assert_int_equal(system(command), 0);
    }
    fake.fs_hook = evict_from_outside;
    assert_null(process_store(&cache, 3, 1, 5000));
    assert_null(fake.fs_hook);
    assert_int_equal(process_find(&cache, 0), 0);
    for (int number = 1; number < 4; number++)
        assert_int_equal(process_find(&cache, number), 1);
    smla_cache_finish(&cache);
}

#define WITH_WORLD(function) cmocka_unit_test_setup_teardown(function, process_set_up, process_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_WORLD(eviction_harms_no_reader),
        WITH_WORLD(two_that_evict_evict_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
