// SPDX-License-Identifier: Apache-2.0
// What went wrong, in words: kind, thread, block, source line, seed.
#include "machine.h"

#include "emulator.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>

static std::string last_report;
extern uint64_t emulator_seed;

const char *emulator_report(void)
{
    return last_report.c_str();
}

void clear_report()
{
    last_report.clear();
}

static std::string format(const char *text, va_list arguments)
{
    char line[2000];
    vsnprintf(line, sizeof line, text, arguments);
    return line;
}

static std::string format(const char *text, ...) __attribute__((format(printf, 1, 2)));
static std::string format(const char *text, ...)
{
    va_list arguments;
    va_start(arguments, text);
    const std::string line = format(text, arguments);
    va_end(arguments);
    return line;
}

std::string who(const thread &t)
{
    return format("thread %d (warp %d, lane %d) of block (%d, %d)", t.index, t.warp->index, t.lane, t.block->x,
                  t.block->y);
}

std::string who(const epoch &e)
{
    const u32 threads = running->threads, per_token = running->grid_y / running->cluster_y, number = e.cluster - 1;
    if (e.clock == 0)
        return "the host";
    if (e.actor >= threads * running->cluster_y)
        return "a copy";
    const u32 index = e.actor % threads;
    return format("thread %u (warp %u, lane %u) of block (%u, %u)", index, index / 32, index % 32, number / per_token,
                  number % per_token * running->cluster_y + e.actor / threads);
}

// The source line of a call's return address, with the functions that it was inlined into.
std::string where(const void *pc)
{
    Dl_info info;
    if (!pc || !dladdr(pc, &info) || !info.dli_fname)
        return "an unknown place";
    const uintptr_t offset = (uintptr_t)pc - (uintptr_t)info.dli_fbase - 1;
    const std::string plain = format("%s+0x%zx", info.dli_fname, (size_t)offset);
    FILE *pipe = popen(format("addr2line -Cfisp -e %s 0x%zx 2>/dev/null", info.dli_fname, (size_t)offset).c_str(), "r");
    std::string lines;
    char line[1000];
    while (pipe && fgets(line, sizeof line, pipe)) {
        std::string one = line;
        const size_t begin = one.find(" (inlined by) ") == 0 ? 14 : 0, at = one.rfind(" at "),
                     name = one.find('(', begin);
        if (at == std::string::npos)
            continue;
        one.pop_back();
        if (one.find("device.cuh") != std::string::npos)
            continue;
        lines +=
            (lines.empty() ? "" : " < ") + one.substr(at + 4) + " " + one.substr(begin, std::min(at, name) - begin);
    }
    if (pipe)
        pclose(pipe);
    return lines.empty() ? plain : lines;
}

[[noreturn]] static void fail(const std::string &text)
{
    last_report = text + format("\n    kernel %s, seed %llu (EMULATOR_SEED=%llu runs it alone)\n", running->name,
                                (unsigned long long)emulator_seed, (unsigned long long)emulator_seed);
    fprintf(stderr, "emulator: %s", last_report.c_str());
    for (; current;)
        fiber_leave(current->stack);
    throw failed_launch();
}

void report(const char *kind, const thread *t, const void *pc, const char *text, ...)
{
    va_list arguments;
    va_start(arguments, text);
    std::string all = std::string(kind) + ": " + format(text, arguments);
    va_end(arguments);
    if (t)
        all += "\n    by " + who(*t);
    if (pc)
        all += "\n    at " + where(pc);
    fail(all);
}

static std::string lanes_waiting(const warp &w)
{
    std::map<std::pair<std::string, const void *>, u32> groups;
    for (int i = 0; i < 32; i++) {
        const thread &t = w.lanes[i];
        std::string why = t.exited ? "has returned" : t.waits;
        if (!t.exited && t.barrier)
            why += format(" at shared offset %u, parity %u; %d of %d arrivals and %lld bytes are missing",
                          t.barrier->offset, t.parity, t.barrier->pending, t.barrier->expected,
                          (long long)t.barrier->bytes);
        groups[{why, t.exited ? nullptr : t.pc}] |= 1u << i;
    }
    std::string text;
    for (const auto &[group, lanes] : groups)
        text += format("\n    block (%d, %d) warp %d lanes %08x: %s", w.block->x, w.block->y, w.index, lanes,
                       group.first.c_str()) +
                (group.second ? "\n        at " + where(group.second) : "");
    return text;
}

void report_deadlock()
{
    std::string text = "deadlock: nobody can go on";
    for (const auto &c : running->clusters)
        for (const auto &b : c->blocks)
            for (const warp &w : b->warps)
                if (w.exited != ALL_LANES)
                    text += lanes_waiting(w);
    fail(text);
}
