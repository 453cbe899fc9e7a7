/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts of both backends, streams and workspaces for the tests of this folder, and lists of cases that run on all
 * processors. */
#ifndef TESTS_GPU_RUNNER_H
#define TESTS_GPU_RUNNER_H

#include "cuda.h"
#include "problem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { WORKSPACE_BYTES = 64 << 20 };

extern struct CUstream_st *stream;
extern sparse_mla_context *host_context;

/* Profiles 1 (sm80) to 4 (sm120) that this device can run; index 0 is AUTO. NULL: it cannot. */
extern sparse_mla_context *contexts[5];
extern const char *const profile_names[5];

/* Opens everything or ends the program with 77. */
void runner_open(void);

/* A workspace of WORKSPACE_BYTES, NaN but for its counters. */
void *runner_workspace(void);

/* Fills the shared memory of every SM with 0xFF. */
void runner_poison_shared(struct CUstream_st *on);

/* Poisons shared memory and outputs, runs the problem on `stream`, waits, asserts OK. */
void runner_decode(sparse_mla_context *context, struct problem *problem);

/* What a thread needs for calls of its own. */
struct lane {
    struct CUstream_st *stream;
    void *workspace; /* of WORKSPACE_BYTES */
    struct arena *arena;
};

/* Calls job(lane, i, user) for every i below count, on as many threads as there are processors or
 * SPARSEMLA_TEST_THREADS says, 16 at most. */
void runner_parallel(int64_t count, void (*job)(struct lane *lane, int64_t i, void *user), void *user);

struct test_case {
    int profile; /* not run where contexts[profile] is NULL */
    struct spec spec;
    int samples; /* tokens that are compared, 0: all */
    double most; /* relative error, 0: what the output's type suggests */
    struct errors errors;
    bool failed;
};

struct case_list {
    struct test_case *cases;
    int count;
};

void runner_add(struct case_list *list, int profile, const struct spec *spec, int samples, double most);
/* Runs all, reports every case that is wrong and fails the test if one is. */
void runner_run(struct case_list *list);
void runner_drop(struct case_list *list);

/* A list of one. */
struct errors runner_case(int profile, const struct spec *spec, int samples, double most);

#endif
