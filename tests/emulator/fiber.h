/* SPDX-License-Identifier: Apache-2.0 */
/* Fibers: one stack per emulated thread, switched by hand. One OS thread runs them all. */
#ifndef EMULATOR_FIBER_H
#define EMULATOR_FIBER_H

#include <cstddef>
#include <cstdint>

struct fiber {
    char *stack = nullptr; /* lowest address; a page that cannot be touched lies below it */
    void *saved = nullptr; /* stack pointer or ucontext_t while it does not run */
};

constexpr size_t FIBER_STACK = 128 << 10;

/* `entry` must never return: its last act is fiber_leave(). */
void fiber_make(fiber &f, void (*entry)());
void fiber_free(fiber &f);  /* in any state */
void fiber_enter(fiber &f); /* from outside all fibers, until it leaves */
void fiber_leave(fiber &f); /* from within it */

inline bool fiber_owns(const fiber &f, const void *address)
{
    return (uintptr_t)address - (uintptr_t)f.stack < FIBER_STACK;
}

#endif
