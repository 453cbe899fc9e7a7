/* SPDX-License-Identifier: Apache-2.0 */
/* Small random calls of every kind, each from a seed. Knows nothing of devices. */
#ifndef TESTS_GPU_DRAW_H
#define TESTS_GPU_DRAW_H

#include "problem.h"

/* The same case for the same seed, always. Returns a profile, 1 to 4. Combinations of what is compiled in come from a
 * list of some 50, so that the number of kernels stays bounded. */
int draw_case(struct spec *spec, uint64_t seed);

#endif
