// SPDX-License-Identifier: Apache-2.0
// Kernels that break one rule of the emulator each, and some that look like it and do not. rules.c says what is reported.
// Blocks have 4096 bytes of shared memory.

struct rule_params {
    unsigned *words; // 64 of them, all zero
    unsigned *untouched; // 64 that nobody has written
};

#include "device.cuh"

#define RULE(name) SMLA_TOOL_KERNEL(name, rule_params, 64)

SMLA_FN u32 *cells()
{
    return (u32 *)shared_buffer();
}
SMLA_FN u64 *barriers()
{
    return (u64 *)(shared_buffer() + 2048);
}
SMLA_FN int lane()
{
    return thread_index() & 31;
}
SMLA_FN int warp()
{
    return thread_index() >> 5;
}

SMLA_FN void sync_pair(int id)
{
    emu_sync_named(id, 64);
}

// ---- nothing wrong

RULE(copies_and_barriers)
{
    if (thread_index() == 0) {
        mbarrier_init(barriers(), 1);
        mbarrier_init(barriers() + 1, 64);
    }
    sync_block();
    if (thread_index() == 0) {
        mbarrier_arrive_expect(barriers(), 64);
        bulk_copy(cells(), p.words, 64, barriers());
    }
    copy_async<4>(cells() + 64 + thread_index(), p.words + thread_index(), true);
    mbarrier_arrive_copies(barriers() + 1);
    mbarrier_wait(barriers(), 0);
    mbarrier_wait(barriers() + 1, 0);
    p.words[thread_index()] = cells()[thread_index() & 15] + cells()[64 + (thread_index() ^ 33)];
}
RULE(lanes_store_the_same)
{
    cells()[warp()] = 7;
    sync_warp();
    p.words[thread_index()] = cells()[warp()];
}
RULE(last_block_reads) // two blocks
{
    if (thread_index() == 0) {
        p.words[block_token()] = 1;
        if (arrive_at_counter(p.words + 8) == 1)
            p.words[9] = p.words[0] + p.words[1];
    }
}

// ---- memory

RULE(outside_read)
{
    cells()[thread_index()] = p.words[thread_index() + 1];
}
RULE(outside_write)
{
    p.words[thread_index() + 1] = 1;
}
RULE(outside_shared)
{
    cells()[1023 + warp()] = 1;
}
RULE(outside_copy)
{
    copy_async<16>(cells() + 4 * thread_index(), p.words + thread_index() / 2 * 4, true);
}
RULE(misaligned)
{
    const word_pair v = *(const word_pair *)(p.words + thread_index() % 3);
    cells()[thread_index()] = v.x + v.y;
}
RULE(unwritten_shared)
{
    p.words[thread_index()] = cells()[thread_index()];
}
RULE(unwritten_global)
{
    p.words[thread_index()] = p.untouched[thread_index()];
}
RULE(constant)
{
    p.words[thread_index()] = load_constant(p.words + 63 - thread_index());
}
RULE(early)
{
    p.words[thread_index()] = 1;
    wait_for_earlier_kernels();
}

// ---- order

RULE(race_of_warps)
{
    cells()[63 - thread_index()] = 0;
    sync_block();
    cells()[thread_index()] = 1;
    sync_warp();
    p.words[thread_index()] = cells()[63 - thread_index()];
}
RULE(race_of_lanes)
{
    cells()[thread_index()] = 1;
    ballot(true); // orders no memory
    p.words[thread_index()] = cells()[thread_index() ^ 1];
}
RULE(race_after_read)
{
    cells()[thread_index()] = 1;
    sync_block();
    const u32 other = cells()[63 - thread_index()];
    sync_warp();
    cells()[thread_index()] = other + 1;
}
RULE(race_of_values)
{
    cells()[warp()] = (u32)lane();
    sync_warp();
}
RULE(race_of_blocks) // two blocks
{
    if (thread_index() == 0)
        p.words[0] = 1;
}
RULE(race_with_counter) // two blocks
{
    p.words[block_token()] = 1;
    if (thread_index() == 63) // of which the others' stores are not part
        if (arrive_at_counter(p.words + 8) == 1)
            p.words[9] = p.words[0] + p.words[1];
}
RULE(unfenced)
{
    if (thread_index() == 0)
        mbarrier_init(barriers(), 1);
    cells()[thread_index()] = 1;
    sync_block();
    if (thread_index() == 0) {
        mbarrier_arrive_expect(barriers(), 16);
        bulk_copy(cells(), p.words, 16, barriers());
    }
    mbarrier_wait(barriers(), 0);
}

// ---- copies

RULE(bulk_copy_without_wait)
{
    if (thread_index() == 0)
        mbarrier_init(barriers(), 1);
    sync_block();
    if (thread_index() == 0) {
        mbarrier_arrive_expect(barriers(), 16);
        bulk_copy(cells(), p.words, 16, barriers());
    }
    sync_block();
    p.words[thread_index()] = cells()[0];
    mbarrier_wait(barriers(), 0);
}
RULE(own_copy_without_wait)
{
    if (thread_index() == 0)
        mbarrier_init(barriers(), 64);
    sync_block();
    copy_async<4>(cells() + thread_index(), p.words + thread_index(), true);
    mbarrier_arrive_copies(barriers());
    p.words[thread_index()] = cells()[thread_index()];
    mbarrier_wait(barriers(), 0);
}
RULE(copy_at_exit)
{
    copy_async<4>(cells() + thread_index(), p.words + thread_index(), true);
}
RULE(fewer_bytes_announced)
{
    if (thread_index() == 0) {
        mbarrier_init(barriers(), 1);
        mbarrier_arrive_expect(barriers(), 16);
        bulk_copy(cells(), p.words, 32, barriers());
        bulk_copy(cells() + 16, p.words, 16, barriers());
        mbarrier_wait(barriers(), 0);
    }
}

// ---- warps

RULE(half_a_warp)
{
    if (lane() < 16)
        sync_warp();
}
RULE(mixed_collectives)
{
    if (lane() < 16)
        sync_warp();
    else
        ballot(true);
}
RULE(block_without_a_warp)
{
    if (warp() == 0)
        sync_block();
}

// ---- barriers

RULE(barrier_nobody_completes)
{
    if (thread_index() == 0)
        mbarrier_init(barriers(), 2);
    sync_block();
    if (thread_index() == 0)
        mbarrier_arrive(barriers());
    mbarrier_wait(barriers(), 0);
}
RULE(partner_never_comes)
{
    if (warp() == 0)
        sync_pair(1);
}
RULE(counts_differ)
{
    emu_sync_named(1, warp() == 0 ? 64 : 96);
}
SMLA_TOOL_KERNEL(third_warp, rule_params, 96)
{
    sync_block();
    if (warp() < 2)
        sync_pair(1);
    if (warp() > 0)
        sync_pair(1);
}
RULE(id_16)
{
    sync_pair(16);
}
RULE(too_many_arrivals)
{
    if (thread_index() == 0) {
        mbarrier_init(barriers(), 1);
        mbarrier_arrive_expect(barriers(), 16);
        mbarrier_arrive(barriers());
    }
}
RULE(no_init)
{
    mbarrier_arrive(barriers());
}
RULE(init_not_seen)
{
    if (thread_index() == 0)
        mbarrier_init(barriers(), 2);
    ballot(true);
    if (lane() == 1 && warp() == 0)
        mbarrier_arrive(barriers());
}
RULE(init_twice)
{
    if (thread_index() == 0) {
        mbarrier_init(barriers(), 2);
        mbarrier_init(barriers(), 2);
    }
}
RULE(store_to_mbarrier)
{
    if (thread_index() == 0) {
        mbarrier_init(barriers(), 2);
        *(u32 *)barriers() = 0;
    }
}
RULE(spin)
{
    while (thread_index() == 0 && p.words[1] == 0)
        opaque(thread_index());
}
RULE(spin_in_registers)
{
    if (thread_index() == 0)
        while (p.words[1] == 0) // read once, says the compiler
            ;
}

// ---- clusters of two blocks

RULE(cluster_race)
{
    cells()[thread_index()] = 1;
    sync_cluster_readers(); // orders no memory
    p.words[block_part()] = as_bits(load_cluster(cluster_address(cells(), 1 - block_part())));
}
RULE(cluster_gone)
{
    cells()[thread_index()] = 1;
    sync_cluster();
    if (block_part() == 0 && thread_index() == 0)
        p.words[0] = as_bits(load_cluster(cluster_address(cells(), 1)));
}

// ---- limits; this one does nothing

RULE(limits)
{
}
SMLA_TOOL_KERNEL(named_barriers, rule_params, 64)
{
    for (int id = 1; id < 14; id++)
        sync_pair(id);
}
