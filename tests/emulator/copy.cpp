// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies. The words of a destination are marked when the copy starts: whoever touches them before having
// waited for it is reported, whether the bytes are there already or not. When they come is up to the seed.
#include "machine.h"

#include "emulator.h"

#include <algorithm>
#include <cstring>

#define PC __builtin_return_address(0)

static void check_source(thread &t, const void *from, int bytes, size_t alignment, const void *pc)
{
    if ((uintptr_t)from % alignment != 0)
        report("misaligned", &t, pc, "copy from %p, which is not a multiple of %zu", from, alignment);
    check_early(t, pc);
    if (!emulator_written(from, (size_t)bytes))
        report("outside", &t, pc, "copy of %d bytes from %p: not within any allocation, or not all written", bytes,
               from);
}

// `bulk`: the copy does not see ordinary stores that were not fenced.
static void mark_destination(thread &t, u32 offset, int bytes, const epoch &when, bool bulk, const void *pc)
{
    for (u32 at = offset; at < offset + (u32)bytes; at += 4) {
        word &w = shared_word(*t.block, at);
        const void *address = t.block->shared + at;
        w.launch = launch_number;
        check_write(t, w, address, 4, pc);
        if (bulk && w.write.when.clock != 0 && !w.copied && !(w.fenced && t.clock.of(w.write.when.actor) >= w.fence))
            report("proxy", &t, pc, "bulk copy to %p over the store by %s, which was not fenced against it\n    at %s",
                   address, who(w.write.when).c_str(), where(w.write.pc).c_str());
        set_written(w, when, pc);
        w.copied = true;
    }
}

// ---- cp.async

void emu_copy(void *shared, const void *global, int bytes, int there)
{
    thread &t = *current;
    const void *pc = PC;
    count_step(pc);
    const u32 offset = offset_of(t, shared, (size_t)bytes, (size_t)bytes, pc);
    if (there)
        check_source(t, global, bytes, (size_t)bytes, pc);
    if (!t.copy_actor)
        t.copy_actor = t.block->cluster->actors++;
    mark_destination(t, offset, bytes, {t.block->cluster->id, t.copy_actor, t.copy_sequence}, false, pc);
    t.copies[t.copy_sequence]++;
    const uint8_t *from = there ? (const uint8_t *)global : nullptr;
    running->copies.push_back({t.block, offset, from, bytes, nullptr, 0, &t, t.copy_sequence, pc});
}

// Makes those arrivals of a thread whose copies have all landed.
static void arrive_for_copies(thread &t)
{
    while (!t.copy_arrivals.empty()) {
        const auto [sequence, barrier] = t.copy_arrivals.front();
        if (!t.copies.empty() && t.copies.begin()->first <= sequence)
            return;
        vector_clock seen;
        if (t.copy_actor)
            seen.raise(t.copy_actor, sequence);
        t.copy_arrivals.pop_front();
        arrive(t, *barrier, seen, t.pc);
    }
}

void emu_mbarrier_arrive_copies(void *pointer)
{
    thread &t = *current;
    const void *pc = t.pc = PC;
    give_way(pc);
    t.copy_arrivals.push_back({t.copy_sequence++, &mbarrier_at(t, pointer, pc)});
    arrive_for_copies(t);
}

// ---- bulk copies

void emu_bulk_copy(void *shared, const void *global, int bytes, void *barrier)
{
    thread &t = *current;
    const void *pc = PC;
    give_way(pc);
    const u32 offset = offset_of(t, shared, (size_t)bytes, 16, pc);
    if (bytes <= 0 || bytes % 16 != 0)
        report("misaligned", &t, pc, "bulk copy of %d bytes", bytes);
    check_source(t, global, bytes, 16, pc);
    mbarrier &b = mbarrier_at(t, barrier, pc);
    if (!b.copy_actor)
        b.copy_actor = t.block->cluster->actors++;
    mark_destination(t, offset, bytes, {t.block->cluster->id, b.copy_actor, b.phase + 1}, true, pc);
    running->copies.push_back({t.block, offset, (const uint8_t *)global, bytes, &b, b.phase, &t, 0, pc});
}

void emu_fence_bulk_copies(void)
{
    thread &t = *current;
    t.clock.raise(t.actor, t.clock.of(t.actor) + 1);
    for (word *w : t.unfenced)
        if (w->write.when.actor == t.actor && !w->copied) {
            w->fenced = true;
            w->fence = t.clock.of(t.actor);
        }
    t.unfenced.clear();
}

// ---- landing

void land(size_t which)
{
    const copy c = running->copies[which];
    running->copies[which] = running->copies.back();
    running->copies.pop_back();
    if (c.from)
        memcpy(c.to->shared + c.offset, c.from, (size_t)c.bytes);
    else
        memset(c.to->shared + c.offset, 0, (size_t)c.bytes);
    if (!c.barrier) {
        auto left = c.issuer->copies.find(c.sequence);
        if (--left->second == 0)
            c.issuer->copies.erase(left);
        arrive_for_copies(*c.issuer);
        return;
    }
    if (c.barrier->phase != c.phase)
        report(
            "barrier", c.issuer, c.pc,
            "a bulk copy of phase %u of the mbarrier at shared offset %u lands in phase %u: fewer bytes were announced",
            c.phase, c.barrier->offset, c.barrier->phase);
    c.barrier->bytes -= c.bytes;
    if (c.barrier->pending == 0 && c.barrier->bytes < 0)
        report("barrier", c.issuer, c.pc, "more bytes land at the mbarrier at shared offset %u than were announced",
               c.barrier->offset);
    settle(*c.to, *c.barrier);
}
