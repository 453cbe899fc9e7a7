// SPDX-License-Identifier: Apache-2.0
#include "fiber.h"

#include <cstdlib>
#include <sys/mman.h>
#include <vector>

static std::vector<char *> unused_stacks;

static char *take_stack()
{
    constexpr size_t GUARD = 64 << 10; // a page, of whatever size
    if (!unused_stacks.empty()) {
        char *stack = unused_stacks.back();
        unused_stacks.pop_back();
        return stack;
    }
    void *block = mmap(nullptr, GUARD + FIBER_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED || mprotect(block, GUARD, PROT_NONE) != 0)
        abort();
    return (char *)block + GUARD;
}

#if defined(__x86_64__)

// Saves the registers that a function must preserve on the stack, and the stack pointer in *rdi; takes up rsi.
asm(R"(
.text
.type emulator_switch, @function
emulator_switch:
    pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
    ret
)");
extern "C" void emulator_switch(void **save, void *take);
static void *outside;

void fiber_make(fiber &f, void (*entry)())
{
    f.stack = take_stack();
    void **top = (void **)(f.stack + FIBER_STACK) - 2; // as after a call: entry() sees 16n + 8
    top[0] = (void *)entry;
    top[1] = nullptr;
    f.saved = top - 6;
}

void fiber_enter(fiber &f)
{
    emulator_switch(&outside, f.saved);
}

void fiber_leave(fiber &f)
{
    emulator_switch(&f.saved, outside);
}

static void free_saved(fiber &)
{
}

#else

#include <ucontext.h>

static ucontext_t outside;

void fiber_make(fiber &f, void (*entry)())
{
    f.stack = take_stack();
    ucontext_t *context = new ucontext_t;
    getcontext(context);
    context->uc_stack.ss_sp = f.stack;
    context->uc_stack.ss_size = FIBER_STACK;
    context->uc_link = nullptr;
    makecontext(context, entry, 0);
    f.saved = context;
}

void fiber_enter(fiber &f)
{
    swapcontext(&outside, (ucontext_t *)f.saved);
}

void fiber_leave(fiber &f)
{
    swapcontext((ucontext_t *)f.saved, &outside);
}

static void free_saved(fiber &f)
{
    delete (ucontext_t *)f.saved;
}

#endif

void fiber_free(fiber &f)
{
    if (!f.stack)
        return;
    free_saved(f);
    unused_stacks.push_back(f.stack);
    f.stack = nullptr;
}
