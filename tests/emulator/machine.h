/* SPDX-License-Identifier: Apache-2.0 */
/* The emulated GPU: a grid of clusters of blocks of warps of threads, their memory, and who has seen what of it.
 *
 * Order of events: every thread has a vector clock over the actors of its cluster. Actors are its threads, and further
 * ones for what completes on its own: the bulk copies of one mbarrier, the cp.async copies of one thread, and arrivals
 * at counters of other clusters. An access is allowed when the clock has reached the epoch of every access to the same
 * aligned word (4 bytes) that it conflicts with. */
#ifndef EMULATOR_MACHINE_H
#define EMULATOR_MACHINE_H

#include "fiber.h"
#include "hooks.h"

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

typedef uint32_t u32;
typedef uint64_t u64;

constexpr u32 ALL_LANES = 0xFFFFFFFFu;
constexpr u32 SHARED_BASE = 1024; /* of 32-bit shared addresses: what the driver reserves; 0 is nobody's */
constexpr u32 SLOT_BYTES = 256 << 10;
constexpr int NAMED_BARRIERS = 16;

struct vector_clock {
    std::vector<u32> at;
    u32 of(u32 actor) const
    {
        return actor < at.size() ? at[actor] : 0;
    }
    void raise(u32 actor, u32 value);
    void join(const vector_clock &other);
};

/* ---- memory */

struct epoch {
    u32 cluster = 0, actor = 0, clock = 0; /* clock 0: before the launch */
};

struct access_mark {
    epoch when;
    const void *pc = nullptr;
};

/* What is known of an aligned word of shared or global memory. */
struct word {
    u32 launch = 0; /* marks of earlier launches count for nothing */
    bool written = false;
    bool atomic = false;   /* the last write was one */
    bool constant = false; /* read as what no thread of the grid writes */
    bool barrier = false;  /* half of an mbarrier */
    bool copied = false;   /* the last write was a copy's */
    bool fenced = false;   /* the writer fenced its store against bulk copies, at its clock ... */
    u32 fence = 0;
    access_mark write;
    std::vector<access_mark> reads; /* since that write, of which none comes after another */
};

struct allocation {
    uintptr_t base;
    size_t bytes, unit; /* bytes that an element of `words` is about: 4, or 1 where threads store single bytes */
    std::vector<word> words;
    uintptr_t begin(uintptr_t address) const
    {
        return address & ~(uintptr_t)(unit - 1);
    }
    word &at(uintptr_t address)
    {
        return words[(begin(address) - begin(base)) >> (unit == 4 ? 2 : 0)];
    }
};

enum access_kind { READ, CONSTANT_READ, WRITE, ATOMIC };

/* ---- threads */

/* Lanes of a warp may store to one address in one instruction if they store the same: checked at the next step. */
struct repeated_store {
    const uint8_t *address;
    u32 value, bytes;
    access_mark other;
    const void *pc;
};

struct thread {
    fiber stack;
    struct block *block;
    struct warp *warp;
    int index, lane;
    u32 actor;
    vector_clock clock;
    const void *pc = nullptr; /* of the operation it waits in or performs */
    const char *waits = "has not started";
    struct mbarrier *barrier = nullptr; /* that it waits for */
    u32 parity = 0;
    bool exited = false, waited = false; /* waited: for the kernels before this one */
    u64 steps = 0;                       /* accesses and operations */
    std::vector<repeated_store> repeated;
    std::vector<word *> unfenced;          /* shared words stored since its last fence */
    u32 copy_actor = 0, copy_sequence = 1; /* cp.async: copies before the n-th arrival have clock n */
    std::map<u32, int> copies;             /* under way, by sequence */
    std::deque<std::pair<u32, struct mbarrier *>> copy_arrivals; /* not yet made */
    u64 in[3];                                                   /* of the collective it takes part in */
    emu_words a;
    emu_floats c;
    u64 out;
};

enum collective {
    NONE,
    SYNC_WARP,
    BALLOT,
    SHUFFLE,
    ELECT,
    LDMATRIX,
    LDMATRIX_TRANS,
    MOVMATRIX,
    MMA_F16,
    MMA_BF16,
    SYNC_NAMED,
    SYNC_CLUSTER,
    SYNC_CLUSTER_RELAXED
};

struct warp {
    struct block *block;
    int index;
    thread *lanes; /* 32 */
    u32 ready = ALL_LANES, exited = 0, arrived = 0;
    collective what = NONE;
    bool listed = false;
    u32 priority = 0;
};

struct mbarrier {
    u32 offset; /* in shared memory */
    int expected, pending;
    int64_t bytes = 0; /* announced and not yet come */
    u32 phase = 0;
    u32 copy_actor = 0;          /* bulk copies of phase n have clock n + 1 */
    vector_clock arriving, done; /* of the arrivals of this phase, and of the last */
};

struct named_barrier {
    int threads = 0;
    std::vector<warp *> arrived;
    u64 users = 0; /* warps of its last use, since the last sync of the block */
};

struct block {
    struct cluster *cluster;
    int x, y, rank, slot;
    uint8_t *shared;
    std::vector<word> words;
    std::vector<thread> threads;
    std::vector<warp> warps;
    std::map<u32, std::unique_ptr<mbarrier>> mbarriers; /* by offset */
    named_barrier named[NAMED_BARRIERS];
    u32 ids_used = 0;
    int read_after = -1; /* barriers of the cluster before another block last read from this one */
    int running;
};

struct cluster {
    u32 id; /* 1 .. */
    std::vector<std::unique_ptr<block>> blocks;
    u32 actors = 0;
    std::vector<warp *> arrived;             /* at the barrier of the cluster ... */
    u32 barriers = 0;                        /* that has been passed so often */
    std::map<size_t, u32> publication_actor; /* arrival at a counter -> actor that stands for it here */
    int running;
};

/* An arrival at a counter in global memory: what its thread had seen. */
struct publication {
    u32 cluster;
    vector_clock clock;
    std::vector<size_t> known; /* earlier publications */
};

struct copy {
    block *to;
    u32 offset;
    const uint8_t *from; /* NULL: zeros */
    int bytes;
    mbarrier *barrier; /* bulk copies */
    u32 phase;
    thread *issuer;
    u32 sequence; /* cp.async */
    const void *pc;
};

/* A grid that is running. */
struct launch {
    const char *name;
    void (*entry)(const void *params);
    const emu_kernel *kernel;
    std::vector<uint8_t> params;
    unsigned grid_x, grid_y, cluster_y, threads, shared_bytes;
    u64 random;
    bool overlapped; /* may start before the kernels before it are done */
    u32 laziness;    /* a copy lands before one in so many switches; 0: when nothing else can run */
    bool by_priority;
    std::vector<std::unique_ptr<cluster>> clusters; /* running */
    std::vector<warp *> ready;
    std::vector<copy> copies;
    std::vector<publication> publications;
    std::map<const void *, std::vector<size_t>> counters;
};

extern launch *running; /* NULL: none */
extern thread *current; /* NULL: the scheduler */
extern u32 launch_number;

/* schedule.cpp */
u32 random_below(u32 n);
void prepare_wait(thread &t, const char *why, const void *pc);
void rest(); /* until woken, which may have happened since prepare_wait() */
void wake(thread &t);
void give_way(const void *pc);
void count_step(const void *pc);
bool run_launch(launch &l, const std::string &broken_limit); /* false: a report was made */

/* memory.cpp */
bool happened(const epoch &e, const thread &t);
void touch(thread &t, const void *address, size_t bytes, access_kind kind, const void *pc);
void touch_shared(thread &t, block &of, u32 offset, u32 bytes, access_kind kind, const void *pc);
void check_early(thread &t, const void *pc);
void check_repeated(thread &t);
word &shared_word(block &b, u32 offset);
void check_write(thread &t, word &w, const void *address, u32 bytes, const void *pc);
void set_written(word &w, const epoch &when, const void *pc);
uint8_t *take_slot(block &b);
void release_slot(block &b);
u32 offset_of(thread &t, const void *shared, size_t bytes, size_t alignment, const void *pc);

/* warp.cpp, barrier.cpp, copy.cpp */
void meet(thread &t, collective what, const void *pc);
void finish_collective(warp &w);
void join_and_wake(const std::vector<warp *> &warps, bool orders_memory);
void arrive_named(warp &w, int id, int threads);
void arrive_cluster(warp &w, bool orders_memory);
mbarrier &mbarrier_at(thread &t, const void *pointer, const void *pc);
void arrive(thread &t, mbarrier &b, const vector_clock &seen, const void *pc);
void settle(block &own, mbarrier &b);
void land(size_t which);
void check_exit(block &b);

/* report.cpp: prints, keeps the text for emulator_report(), and ends the launch */
[[noreturn]] void report(const char *kind, const thread *t, const void *pc, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
std::string who(const thread &t);
std::string who(const epoch &e);
std::string where(const void *pc);
[[noreturn]] void report_deadlock();
struct failed_launch {
}; /* thrown in the scheduler */

#endif
