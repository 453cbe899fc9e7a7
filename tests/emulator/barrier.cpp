// SPDX-License-Identifier: Apache-2.0
// Barriers of a block and of a cluster, mbarriers, and what a block must leave in order.
#include "machine.h"

#include <cstdint>

#define PC __builtin_return_address(0)

// ---- barriers of whole warps

// Everything that these warps' threads saw before, all of them have seen after.
void join_and_wake(const std::vector<warp *> &warps, bool orders_memory)
{
    vector_clock joint;
    for (warp *w : warps)
        for (int i = 0; orders_memory && i < 32; i++)
            joint.join(w->lanes[i].clock);
    for (warp *w : warps)
        for (int i = 0; i < 32; i++) {
            thread &t = w->lanes[i];
            if (orders_memory) {
                t.clock = joint;
                t.clock.at[t.actor]++;
            }
            wake(t);
        }
}

static u64 users_of(const named_barrier &b)
{
    u64 users = 0;
    for (const warp *w : b.arrived)
        users |= (u64)1 << w->index;
    return users;
}

// Barrier 0 is that of the whole block.
void arrive_named(warp &w, int id, int threads)
{
    block &b = *w.block;
    thread &t = w.lanes[0];
    if (id < 0 || id >= NAMED_BARRIERS)
        report("barrier", &t, t.pc, "named barrier %d: ids go from 0 to %d", id, NAMED_BARRIERS - 1);
    named_barrier &n = b.named[id];
    b.ids_used |= 1u << id;
    if (!n.arrived.empty() && n.threads != threads)
        report("barrier", &t, t.pc, "named barrier %d for %d threads, while warp %d waits there for %d", id, threads,
               n.arrived[0]->index, n.threads);
    for (const warp &other : b.warps)
        if (id == 0 && other.exited)
            report("collective", &t, t.pc, "barrier of the whole block, of which warp %d has returned", other.index);
    n.threads = threads;
    n.arrived.push_back(&w);
    if ((int)n.arrived.size() * 32 < threads)
        return;
    const u64 users = users_of(n);
    if (n.users && n.users != users)
        report("barrier", &t, t.pc,
               "named barrier %d is shared by the warps of mask %llx, and was by %llx since the block last met", id,
               (unsigned long long)users, (unsigned long long)n.users);
    n.users = users;
    if (id == 0)
        for (named_barrier &other : b.named)
            other.users = 0;
    std::vector<warp *> warps;
    warps.swap(n.arrived);
    join_and_wake(warps, true);
}

void arrive_cluster(warp &w, bool orders_memory)
{
    cluster &c = *w.block->cluster;
    if (!c.arrived.empty() && c.arrived[0]->what != w.what)
        report("barrier", &w.lanes[0], w.lanes[0].pc, "one warp of the cluster arrives with release, another relaxed");
    c.arrived.push_back(&w);
    size_t expected = 0; // warps that have returned are not waited for
    for (const auto &b : c.blocks)
        for (const warp &one : b->warps)
            expected += one.exited != ALL_LANES;
    if (c.arrived.size() < expected)
        return;
    std::vector<warp *> warps;
    warps.swap(c.arrived);
    c.barriers++;
    join_and_wake(warps, orders_memory);
}

void emu_sync_block(void)
{
    current->in[0] = 0;
    current->in[1] = running->threads;
    meet(*current, SYNC_NAMED, PC);
}

void emu_sync_named(int id, int threads)
{
    const void *pc = PC;
    if (id == 0)
        report("barrier", current, pc, "named barrier 0 is that of the whole block");
    current->in[0] = (u32)id;
    current->in[1] = (u32)threads;
    meet(*current, SYNC_NAMED, pc);
}

void emu_sync_cluster(int orders_memory)
{
    meet(*current, orders_memory ? SYNC_CLUSTER : SYNC_CLUSTER_RELAXED, PC);
}

// ---- shared memory of other blocks of the cluster: 32-bit addresses with the rank, from 1 on, in the top byte

unsigned emu_cluster_address(const void *own, int rank)
{
    const void *pc = PC;
    const u32 offset = offset_of(*current, own, 1, 1, pc);
    if (rank < 0 || rank >= (int)current->block->cluster->blocks.size())
        report("outside", current, pc, "address in block %d of a cluster of %zu", rank,
               current->block->cluster->blocks.size());
    return (u32)(rank + 1) << 24 | (offset + SHARED_BASE);
}

emu_words emu_load_cluster(unsigned address, int bytes)
{
    thread &t = *current;
    const void *pc = PC;
    cluster &c = *t.block->cluster;
    const u32 rank = address >> 24, offset = (address & 0xFFFFFF) - SHARED_BASE;
    if (rank == 0 || rank > c.blocks.size() || offset + (u32)bytes > running->shared_bytes)
        report("outside", &t, pc, "cluster load of %d bytes at 0x%x", bytes, address);
    if (offset % (u32)bytes != 0)
        report("misaligned", &t, pc, "cluster load of %d bytes at 0x%x", bytes, address);
    block &b = *c.blocks[rank - 1];
    if (b.running == 0)
        report("cluster", &t, pc, "load from block (%d, %d), which has returned", b.x, b.y);
    b.read_after = (int)c.barriers;
    emu_words out = {};
    count_step(pc);
    touch_shared(t, b, offset, (u32)bytes, READ, pc);
    for (int i = 0; i < bytes / 4; i++)
        out[i] = *(const u32 *)(b.shared + offset + 4 * i);
    return out;
}

// ---- mbarriers

static void check_mbarrier_word(thread &t, u32 offset, const void *pc)
{
    const word &w = shared_word(*t.block, offset);
    if (!happened(w.write.when, t))
        report("barrier", &t, pc, "the mbarrier at shared offset %u is used without a synchronisation after its init",
               offset);
}

mbarrier &mbarrier_at(thread &t, const void *pointer, const void *pc)
{
    const u32 offset = offset_of(t, pointer, 8, 8, pc);
    auto found = t.block->mbarriers.find(offset);
    if (found == t.block->mbarriers.end())
        report("barrier", &t, pc, "there is no mbarrier at shared offset %u", offset);
    check_mbarrier_word(t, offset, pc);
    return *found->second;
}

void emu_mbarrier_init(void *pointer, int expected)
{
    thread &t = *current;
    const void *pc = PC;
    const u32 offset = offset_of(t, pointer, 8, 8, pc);
    if (t.block->mbarriers.count(offset))
        report("barrier", &t, pc, "the mbarrier at shared offset %u is initialised again", offset);
    if (expected < 1 || expected > (1 << 20) - 1)
        report("barrier", &t, pc, "an mbarrier for %d arrivals", expected);
    touch(t, pointer, 8, WRITE, pc);
    shared_word(*t.block, offset).barrier = shared_word(*t.block, offset + 4).barrier = true;
    auto b = std::make_unique<mbarrier>();
    b->offset = offset;
    b->expected = b->pending = expected;
    t.block->mbarriers[offset] = std::move(b);
}

// Completes the phase if nothing is missing.
void settle(block &own, mbarrier &b)
{
    if (b.pending != 0 || b.bytes != 0)
        return;
    b.phase++;
    b.pending = b.expected;
    b.done = b.arriving;
    b.arriving = vector_clock();
    if (b.copy_actor)
        b.done.raise(b.copy_actor, b.phase);
    for (thread &t : own.threads)
        if (t.barrier == &b && (b.phase & 1) != t.parity)
            wake(t);
}

void arrive(thread &t, mbarrier &b, const vector_clock &seen, const void *pc)
{
    if (b.pending == 0)
        report("barrier", &t, pc, "arrival at the mbarrier at shared offset %u, whose phase %u has had all its %d",
               b.offset, b.phase, b.expected);
    b.pending--;
    b.arriving.join(seen);
    settle(*t.block, b);
}

void emu_mbarrier_arrive(void *pointer, int bytes)
{
    thread &t = *current;
    const void *pc = PC;
    give_way(pc);
    mbarrier &b = mbarrier_at(t, pointer, pc);
    b.bytes += bytes;
    arrive(t, b, t.clock, pc);
    t.clock.raise(t.actor, t.clock.of(t.actor) + 1);
}

void emu_mbarrier_wait(void *pointer, unsigned parity)
{
    thread &t = *current;
    const void *pc = PC;
    give_way(pc);
    mbarrier &b = mbarrier_at(t, pointer, pc);
    if (parity > 1)
        report("barrier", &t, pc, "parity %u", parity);
    t.barrier = &b;
    t.parity = parity;
    while ((b.phase & 1) == parity) {
        prepare_wait(t, "mbarrier", pc);
        rest();
    }
    t.barrier = nullptr;
    t.clock.join(b.done);
}

// ---- the end of a block

void check_exit(block &b)
{
    static const int barriers_per_sm = 24;
    for (const copy &c : running->copies)
        if (c.to == &b)
            report("copy", c.issuer, c.pc, "a copy to shared offset %u is under way when its block returns", c.offset);
    if (b.read_after == (int)b.cluster->barriers)
        report("cluster", current, nullptr,
               "block returned without a barrier of the cluster after others read from it");
    const int ids = __builtin_popcount(b.ids_used), blocks = running->kernel->blocks_per_sm;
    if (running->kernel->profile == 4 && ids * blocks > barriers_per_sm)
        report("limits", nullptr, nullptr, "%d named barriers in each of %d blocks: a multiprocessor has %d", ids,
               blocks, barriers_per_sm);
}
