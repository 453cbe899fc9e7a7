// SPDX-License-Identifier: Apache-2.0
// Collectives of a warp: all 32 lanes meet, the last to come does the work.
#include "machine.h"

#include "number.h"

#include <cstring>

#define PC __builtin_return_address(0)

static const char *const names[] = {"nothing",
                                    "sync_warp",
                                    "vote",
                                    "shuffle",
                                    "elect",
                                    "ldmatrix",
                                    "ldmatrix",
                                    "movmatrix",
                                    "mma",
                                    "mma",
                                    "named barrier",
                                    "barrier of the cluster",
                                    "barrier of the cluster"};

// The first of a set of lanes.
static thread &lane_of(warp &w, u32 lanes)
{
    return w.lanes[__builtin_ctz(lanes)];
}

void meet(thread &t, collective what, const void *pc)
{
    warp &w = *t.warp;
    count_step(pc);
    if (w.exited)
        report("collective", &t, pc, "%s of a warp of which the lanes %08x have returned", names[what], w.exited);
    if (w.arrived && w.what != what) {
        thread &other = lane_of(w, w.arrived);
        report("collective", &t, pc, "%s, while the lanes %08x of its warp are in %s\n    at %s", names[what],
               w.arrived, names[w.what], where(other.pc).c_str());
    }
    w.what = what;
    w.arrived |= 1u << t.lane;
    prepare_wait(t, names[what], pc);
    if (w.arrived == ALL_LANES) {
        w.arrived = 0;
        finish_collective(w);
    }
    rest();
}

// ---- matrix fragments; layouts as drawn in kernels_src/variant.cuh

static void load_matrices(warp &w, bool transposed)
{
    uint16_t element[4][8][8];
    for (int i = 0; i < 32; i++) {
        thread &t = w.lanes[i];
        const u32 address = (u32)t.in[0] - SHARED_BASE;
        if (address >= running->shared_bytes)
            report("outside", &t, t.pc, "ldmatrix of a row at 0x%x", address);
        if (address % 16 != 0)
            report("misaligned", &t, t.pc, "ldmatrix of a row at offset %u", address);
        touch(t, w.block->shared + address, 16, READ, t.pc);
        memcpy(element[i / 8][i % 8], w.block->shared + address, 16);
    }
    for (int i = 0; i < 32; i++)
        for (int m = 0; m < 4; m++) {
            const int g = i / 4, t = i % 4 * 2;
            w.lanes[i].a[m] = transposed ? element[m][t][g] | (u32)element[m][t + 1][g] << 16
                                         : element[m][g][t] | (u32)element[m][g][t + 1] << 16;
        }
}

static void transpose(warp &w)
{
    uint16_t element[8][8];
    for (int i = 0; i < 32; i++) {
        element[i / 4][i % 4 * 2] = (uint16_t)w.lanes[i].in[0];
        element[i / 4][i % 4 * 2 + 1] = (uint16_t)(w.lanes[i].in[0] >> 16);
    }
    for (int i = 0; i < 32; i++)
        w.lanes[i].out = element[i % 4 * 2][i / 4] | (u32)element[i % 4 * 2 + 1][i / 4] << 16;
}

static void multiply(warp &w, bool bf16)
{
    float a[16][16], b[16][8];
    const auto value = [bf16](u32 half) {
        return bf16 ? smla_from_bf16((uint16_t)half) : smla_from_f16((uint16_t)half);
    };
    for (int i = 0; i < 32; i++) {
        const thread &t = w.lanes[i];
        const int g = i / 4, k = i % 4 * 2;
        for (int word = 0; word < 4; word++)
            for (int half = 0; half < 2; half++)
                a[g + word % 2 * 8][k + word / 2 * 8 + half] = value(t.a[word] >> 16 * half);
        for (int word = 0; word < 2; word++)
            for (int half = 0; half < 2; half++)
                b[k + word * 8 + half][g] = value((u32)t.in[word] >> 16 * half);
    }
    float product[16][8] = {};
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < 16; k++)
            for (int column = 0; column < 8; column++)
                product[row][column] += a[row][k] * b[k][column];
    for (int i = 0; i < 32; i++)
        for (int n = 0; n < 4; n++)
            w.lanes[i].c[n] += product[i / 4 + n / 2 * 8][i % 4 * 2 + n % 2];
}

// ---- the rest

static void vote(warp &w)
{
    u32 ballot = 0;
    for (int i = 0; i < 32; i++)
        ballot |= (u32)(w.lanes[i].in[0] != 0) << i;
    for (int i = 0; i < 32; i++)
        w.lanes[i].out = ballot;
}

static void exchange(warp &w)
{
    for (int i = 0; i < 32; i++) {
        const u64 source = w.lanes[i].in[1];
        if (source > 31)
            report("collective", &w.lanes[i], w.lanes[i].pc, "shuffle from lane %llu", (unsigned long long)source);
        w.lanes[i].out = w.lanes[source].in[0];
    }
}

static void name_barrier(warp &w)
{
    for (int i = 1; i < 32; i++)
        if (w.lanes[i].in[0] != w.lanes[0].in[0] || w.lanes[i].in[1] != w.lanes[0].in[1])
            report("barrier", &w.lanes[i], w.lanes[i].pc, "lanes of a warp name different barriers: %d and %d",
                   (int)w.lanes[i].in[0], (int)w.lanes[0].in[0]);
    arrive_named(w, (int)w.lanes[0].in[0], (int)w.lanes[0].in[1]);
}

void finish_collective(warp &w)
{
    switch (w.what) {
    case SYNC_WARP:
        join_and_wake({&w}, true);
        return;
    case SYNC_NAMED:
        name_barrier(w);
        return;
    case SYNC_CLUSTER:
    case SYNC_CLUSTER_RELAXED:
        arrive_cluster(w, w.what == SYNC_CLUSTER);
        return;
    case BALLOT:
        vote(w);
        break;
    case SHUFFLE:
        exchange(w);
        break;
    case ELECT: { // any lane: code must not rely on which
        const u32 elected = random_below(32);
        for (u32 i = 0; i < 32; i++)
            w.lanes[i].out = i == elected;
        break;
    }
    case LDMATRIX:
    case LDMATRIX_TRANS:
        load_matrices(w, w.what == LDMATRIX_TRANS);
        break;
    case MOVMATRIX:
        transpose(w);
        break;
    default:
        multiply(w, w.what == MMA_BF16);
    }
    join_and_wake({&w}, false);
}

int emu_thread_index(void)
{
    return current->index;
}
int emu_block_x(void)
{
    return current->block->x;
}
int emu_block_y(void)
{
    return current->block->y;
}

void emu_sync_warp(void)
{
    meet(*current, SYNC_WARP, PC);
}

unsigned emu_ballot(int predicate)
{
    current->in[0] = predicate != 0;
    meet(*current, BALLOT, PC);
    return (unsigned)current->out;
}

unsigned long long emu_shuffle(unsigned long long value, int source_lane)
{
    current->in[0] = value;
    current->in[1] = (u32)source_lane;
    meet(*current, SHUFFLE, PC);
    return current->out;
}

int emu_elect(void)
{
    meet(*current, ELECT, PC);
    return (int)current->out;
}

emu_words emu_ldmatrix(unsigned address, int transposed)
{
    current->in[0] = address;
    meet(*current, transposed ? LDMATRIX_TRANS : LDMATRIX, PC);
    return current->a;
}

unsigned emu_movmatrix(unsigned word)
{
    current->in[0] = word;
    meet(*current, MOVMATRIX, PC);
    return (unsigned)current->out;
}

emu_floats emu_mma(emu_floats c, emu_words a, unsigned b0, unsigned b1, int bf16)
{
    current->c = c;
    current->a = a;
    current->in[0] = b0;
    current->in[1] = b1;
    meet(*current, bf16 ? MMA_BF16 : MMA_F16, PC);
    return current->c;
}
