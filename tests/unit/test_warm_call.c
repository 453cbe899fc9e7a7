/* SPDX-License-Identifier: Apache-2.0 */
/* What a warm sparse_mla_decode() leaves alone: the heap, the environment, files, and of the driver all but four
 * functions. The linker hands every call of these functions to the wrappers below. */
#include "fake.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static int allocations, environment_reads;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *pointer, size_t bytes);
void __real_free(void *pointer);
char *__real_getenv(const char *name);
char *__real_secure_getenv(const char *name);

void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *pointer, size_t bytes);
void __wrap_free(void *pointer);
char *__wrap_getenv(const char *name);
char *__wrap_secure_getenv(const char *name);

void *__wrap_malloc(size_t bytes)
{
    allocations++;
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    allocations++;
    return __real_calloc(count, bytes);
}

void *__wrap_realloc(void *pointer, size_t bytes)
{
    allocations++;
    return __real_realloc(pointer, bytes);
}

void __wrap_free(void *pointer)
{
    allocations++;
    __real_free(pointer);
}

char *__wrap_getenv(const char *name)
{
    environment_reads++;
    return __real_getenv(name);
}

char *__wrap_secure_getenv(const char *name)
{
    environment_reads++;
    return __real_secure_getenv(name);
}

static void count_nothing(sparse_mla_context *context, const sparse_mla_decode_args *args)
{
    const int launches = fake.launches, loads = fake.loads, files = fake.fs_calls, compiles = fake.compiles;
    allocations = environment_reads = 0;
    assert_int_equal(sparse_mla_decode(context, args, NULL), SPARSE_MLA_OK);
    assert_int_equal(allocations, 0);
    assert_int_equal(environment_reads, 0);
    assert_int_equal(fake.fs_calls, files);
    assert_int_equal(fake.loads, loads);
    assert_int_equal(fake.compiles, compiles);
    assert_int_equal(fake.launches, launches + 1);
}

static void a_warm_call_only_launches(void **state)
{
    static const int heads[] = {8, 16, 64}, tokens[] = {1, 16, 300};
    sparse_mla_options options;
    sparse_mla_context *context;
    sparse_mla_decode_args args;
    sparse_mla_cache cache;
    (void)state;
    sparse_mla_options_init(&options);
    options.no_disk_cache = 1;
    fake_reset();
    assert_int_equal(smla_context_create(&options, &fake_edges, &context), SPARSE_MLA_OK);
    fake_glm5(&args, &cache);
    for (size_t h = 0; h < sizeof heads / sizeof *heads; h++) {
        args.num_heads = heads[h];
        args.q_latent_request_stride = args.q_latent_token_stride = (int64_t)heads[h] * 576;
        args.out_request_stride = args.out_token_stride = (int64_t)heads[h] * 512;
        allocations = 0;
        assert_int_equal(sparse_mla_decode(context, &args, NULL), SPARSE_MLA_OK);
        assert_true(allocations > 0); /* a cold one allocates: the wrappers are in place */
        for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++) {
            args.num_tokens = tokens[t];
            count_nothing(context, &args);
        }
    }
    sparse_mla_destroy(context);
}

static void the_environment_is_read_once(void **state)
{
    sparse_mla_context *context;
    (void)state;
    environment_reads = 0;
    assert_int_equal(sparse_mla_create(NULL, &context), SPARSE_MLA_OK);
    assert_true(environment_reads > 0);
    sparse_mla_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_warm_call_only_launches),
        cmocka_unit_test(the_environment_is_read_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
