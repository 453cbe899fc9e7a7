/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SMLA_FUZZ_TARGET_H
#define SMLA_FUZZ_TARGET_H

#include <stddef.h>
#include <stdint.h>

/* Returns 0, whatever the bytes; traps when the library does not keep what it promises. As libFuzzer wants it. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(condition) ((condition) ? (void)0 : __builtin_trap())

#endif
