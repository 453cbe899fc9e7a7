// SPDX-License-Identifier: Apache-2.0
// Runs a grid: which thread goes on, and when copies land, is up to the seed.
#include "machine.h"

#include "emulator.h"

#include <algorithm>
#include <csignal>
#include <sys/time.h>
#if defined(__x86_64__)
#include <ucontext.h>
#endif

constexpr u32 STAY = 8;             // a warp is left before its lanes all wait once in so many switches
constexpr u64 SLICE = 4096;         // steps after which a thread gives way even if it waits for nothing
constexpr u64 STEP_BUDGET = 500000; // of a thread; the tests need some 10000

launch *running;
thread *current;
u32 launch_number;
static volatile u64 steps_of_all;

// ---- chance

static u64 next_random()
{
    u64 x = running->random += 0x9E3779B97F4A7C15u; // splitmix64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

u32 random_below(u32 n)
{
    return (u32)((next_random() >> 32) * n >> 32);
}

// ---- waiting

static bool ready(const thread &t)
{
    return t.warp->ready >> t.lane & 1;
}

void prepare_wait(thread &t, const char *why, const void *pc)
{
    t.waits = why;
    t.pc = pc;
    t.warp->ready &= ~(1u << t.lane);
}

void rest()
{
    thread &t = *current;
    while (!ready(t))
        fiber_leave(t.stack);
}

void wake(thread &t)
{
    if (t.exited)
        return;
    t.warp->ready |= 1u << t.lane;
    if (!t.warp->listed) {
        t.warp->listed = true;
        running->ready.push_back(t.warp);
    }
}

// Lets others go first, now and then.
void give_way(const void *pc)
{
    count_step(pc);
    if (random_below(4) == 0)
        fiber_leave(current->stack);
}

void count_step(const void *pc)
{
    thread &t = *current;
    t.steps++;
    steps_of_all = steps_of_all + 1;
    if (!t.repeated.empty())
        check_repeated(t);
    if (t.steps > STEP_BUDGET)
        report("spin", &t, pc, "%llu steps and no end", (unsigned long long)t.steps);
    if (t.steps % SLICE == 0 && ready(t)) // else it is at work for a collective
        fiber_leave(t.stack);
}

// ---- a watchdog for loops that neither access memory nor call anything

static void tick(int, siginfo_t *, void *context)
{
    static u64 seen;
    static int idle;
    idle = steps_of_all == seen && current ? idle + 1 : 0;
    seen = steps_of_all;
    if (idle < 3)
        return;
    idle = 0;
    const void *pc = nullptr;
#if defined(__x86_64__)
    pc = (const char *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] + 1;
#else
    (void)context;
#endif
    report("spin", current, pc, "seconds of computing without an access or a call");
}

// Its signal may be left for good, by a report: so it is not blocked meanwhile.
static void start_watchdog()
{
    static bool started;
    if (started)
        return;
    started = true;
    struct sigaction action = {};
    action.sa_sigaction = tick;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART;
    sigaction(SIGVTALRM, &action, nullptr);
    const itimerval second = {{1, 0}, {1, 0}}; // of this process's own time
    setitimer(ITIMER_VIRTUAL, &second, nullptr);
}

// ---- starting and ending

static void run_thread()
{
    running->entry(running->params.data());
    thread &t = *current;
    warp &w = *t.warp;
    if (w.arrived)
        report("collective", &t, nullptr, "returned, while the lanes %08x of its warp are in a collective\n    at %s",
               w.arrived, where(w.lanes[__builtin_ctz(w.arrived)].pc).c_str());
    const named_barrier &all = t.block->named[0];
    if (!all.arrived.empty())
        report("collective", &t, nullptr, "returned, while warp %d of its block waits for all of it\n    at %s",
               all.arrived[0]->index, where(all.arrived[0]->lanes[0].pc).c_str());
    t.exited = true;
    w.exited |= 1u << t.lane;
    w.ready &= ~(1u << t.lane);
    if (--t.block->running == 0) {
        check_exit(*t.block);
        t.block->cluster->running--;
    }
    fiber_leave(t.stack);
}

static void start_block(cluster &c, int x, int y, int rank)
{
    auto b = std::make_unique<block>();
    b->cluster = &c;
    b->x = x;
    b->y = y;
    b->rank = rank;
    b->shared = take_slot(*b);
    b->words.resize(running->shared_bytes / 4 + 1);
    b->threads.resize(running->threads);
    b->warps.resize(running->threads / 32);
    b->running = (int)running->threads;
    for (size_t i = 0; i < b->threads.size(); i++) {
        thread &t = b->threads[i];
        t.block = b.get();
        t.warp = &b->warps[i / 32];
        t.index = (int)i;
        t.lane = (int)i % 32;
        t.actor = (u32)(rank * running->threads + i);
        t.clock.raise(t.actor, 1);
        fiber_make(t.stack, run_thread);
    }
    for (size_t i = 0; i < b->warps.size(); i++) {
        warp &w = b->warps[i];
        w.block = b.get();
        w.index = (int)i;
        w.lanes = &b->threads[32 * i];
        w.priority = random_below(1000);
        w.listed = true;
        running->ready.push_back(&w);
    }
    c.blocks.push_back(std::move(b));
}

static void start_cluster(u32 number)
{
    const u32 per_token = running->grid_y / running->cluster_y;
    auto c = std::make_unique<cluster>();
    c->id = number + 1;
    c->actors = running->cluster_y * running->threads;
    c->running = (int)running->cluster_y;
    for (u32 rank = 0; rank < running->cluster_y; rank++)
        start_block(*c, (int)(number / per_token), (int)(number % per_token * running->cluster_y + rank), (int)rank);
    running->clusters.push_back(std::move(c));
}

static void end_cluster(cluster &c)
{
    for (auto &b : c.blocks) {
        for (thread &t : b->threads)
            fiber_free(t.stack);
        release_slot(*b);
    }
    for (size_t i = 0; i < running->ready.size();) {
        const bool own = running->ready[i]->block->cluster == &c;
        running->ready[i] = own ? running->ready.back() : running->ready[i];
        if (own)
            running->ready.pop_back();
        else
            i++;
    }
}

static void end_finished()
{
    auto &all = running->clusters;
    for (size_t i = 0; i < all.size(); i++)
        if (all[i]->running == 0) {
            end_cluster(*all[i]);
            all.erase(all.begin() + (ptrdiff_t)i--);
        }
}

// ---- the loop

static void go_on(thread &t)
{
    current = &t;
    fiber_enter(t.stack);
    current = nullptr;
    if (*emulator_report())
        throw failed_launch();
}

static warp *choose_warp()
{
    auto &list = running->ready;
    while (!list.empty()) {
        size_t chosen = random_below((u32)list.size());
        if (running->by_priority)
            for (size_t i = 0; i < list.size(); i++)
                chosen = list[i]->priority > list[chosen]->priority ? i : chosen;
        warp *w = list[chosen];
        if (w->ready) {
            if (running->by_priority && random_below(64) == 0)
                w->priority = random_below(1000);
            return w;
        }
        w->listed = false;
        list[chosen] = list.back();
        list.pop_back();
    }
    return nullptr;
}

static void run_warp(warp &w)
{
    do {
        u32 lanes = w.ready;
        for (u32 skip = random_below((u32)__builtin_popcount(lanes)); skip > 0; skip--)
            lanes &= lanes - 1;
        go_on(w.lanes[__builtin_ctz(lanes)]);
    } while (w.ready && random_below(STAY) != 0);
}

static void land_some()
{
    while (running->laziness && !running->copies.empty() && random_below(running->laziness) == 0)
        land(random_below((u32)running->copies.size()));
}

static void run_grid(std::vector<u32> &waiting, size_t resident)
{
    for (;;) {
        end_finished();
        while (!waiting.empty() && running->clusters.size() < resident) {
            start_cluster(waiting.back());
            waiting.pop_back();
        }
        if (running->clusters.empty())
            return;
        land_some();
        if (warp *w = choose_warp())
            run_warp(*w);
        else if (!running->copies.empty())
            land(random_below((u32)running->copies.size()));
        else if (std::all_of(running->clusters.begin(), running->clusters.end(),
                             [](const auto &c) { return c->running != 0; }))
            report_deadlock();
    }
}

// Clusters start in the order of the seed, some of them at a time: no block may rely on another to have started.
bool run_launch(launch &l, const std::string &broken_limit)
{
    static const u32 laziness[] = {2, 8, 64, 0};
    running = &l;
    launch_number++;
    start_watchdog();
    l.laziness = laziness[random_below(4)];
    l.by_priority = random_below(2);
    std::vector<u32> waiting;
    for (u32 i = 0; i < l.grid_x * (l.grid_y / l.cluster_y); i++)
        waiting.push_back(i);
    for (size_t i = waiting.size(); i > 1; i--)
        std::swap(waiting[i - 1], waiting[random_below((u32)i)]);
    bool failed = false;
    try {
        if (!broken_limit.empty())
            report("limits", nullptr, nullptr, "%s", broken_limit.c_str());
        run_grid(waiting, 1 + random_below(3));
    } catch (const failed_launch &) {
        failed = true;
        for (auto &c : l.clusters)
            end_cluster(*c);
    }
    running = nullptr;
    current = nullptr;
    return !failed;
}
