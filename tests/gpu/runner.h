/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts of both backends, a stream and a workspace for the tests of this folder. */
#ifndef TESTS_GPU_RUNNER_H
#define TESTS_GPU_RUNNER_H

#include "cuda.h"
#include "problem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

extern struct CUstream_st *stream;
extern sparse_mla_context *host_context;

/* Profiles 1 (sm80) to 4 (sm120) that this device can run; index 0 is AUTO. NULL: it cannot. */
extern sparse_mla_context *contexts[5];
extern const char *const profile_names[5];

/* Opens everything or ends the program with 77. */
void runner_open(void);

/* A workspace of 64 MiB, NaN but for its counters. */
void *runner_workspace(void);

/* Fills the shared memory of every SM with 0x7F bytes, which are NaN as e4m3, bf16, f16 and float. */
void runner_poison_shared(void);

/* Poisons shared memory and outputs, runs the problem, asserts OK. */
void runner_decode(sparse_mla_context *context, struct problem *problem);

/* One case from spec to errors; fails the test unless specials agree and the relative errors are at most `most`. */
struct errors runner_case(int profile, const struct spec *spec, int samples, double most);

#endif
