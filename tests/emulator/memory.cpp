// SPDX-License-Identifier: Apache-2.0
// Global and shared memory, and the rules for every access to it.
#include "machine.h"

#include "emulator.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <sys/mman.h>

constexpr size_t ARENA_BYTES = (size_t)1 << 36; // of addresses; only what is used costs memory
constexpr size_t GAP = 4096;                    // at least, between allocations
constexpr int SLOTS = 64;

static uint8_t *arena, *slots;
static size_t arena_used;
static std::map<uintptr_t, std::unique_ptr<allocation>> allocations; // by base
static block *slot_owner[SLOTS];

static uint8_t *reserve(size_t bytes)
{
    void *p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        abort();
    return (uint8_t *)p;
}

// ---- allocations

static void *allocate(size_t bytes, size_t offset, size_t unit)
{
    if (!arena)
        arena = reserve(ARENA_BYTES);
    auto a = std::make_unique<allocation>();
    a->base = (uintptr_t)arena + arena_used + offset;
    a->bytes = bytes;
    a->unit = unit;
    a->words.resize((a->begin(a->base + bytes + unit - 1) - a->begin(a->base)) / unit);
    arena_used += (offset + bytes + 2 * GAP - 1) / GAP * GAP; // never handed out again: a use after free is outside
    if (arena_used > ARENA_BYTES)
        abort();
    void *pointer = (void *)a->base;
    memset(pointer, 0xFF, bytes);
    allocations[a->base] = std::move(a);
    return pointer;
}

void *emulator_alloc(size_t bytes, size_t offset)
{
    return allocate(bytes, offset, 4);
}

void *emulator_alloc_bytes(size_t bytes, size_t offset)
{
    return allocate(bytes, offset, 1);
}

static allocation *find_allocation(uintptr_t address)
{
    auto after = allocations.upper_bound(address);
    if (after == allocations.begin())
        return nullptr;
    allocation *a = std::prev(after)->second.get();
    return address - a->base < a->bytes ? a : nullptr;
}

void emulator_free(void *pointer)
{
    allocation *a = find_allocation((uintptr_t)pointer);
    if (!a)
        return;
    const uintptr_t base = a->base;
    const size_t bytes = a->bytes;
    allocations.erase(base);
    madvise((void *)(base / GAP * GAP), (base % GAP + bytes + GAP - 1) / GAP * GAP, MADV_DONTNEED);
}

bool emulator_mark(void *pointer, size_t bytes, bool written)
{
    const uintptr_t address = (uintptr_t)pointer;
    allocation *a = find_allocation(address);
    if (bytes == 0)
        return true;
    if (!a || address + bytes > a->base + a->bytes)
        return false;
    for (uintptr_t at = a->begin(address); at < address + bytes; at += a->unit)
        a->at(at).written = written;
    return true;
}

bool emulator_written(const void *pointer, size_t bytes)
{
    const uintptr_t address = (uintptr_t)pointer;
    allocation *a = find_allocation(address);
    if (!a || address + bytes > a->base + a->bytes)
        return false;
    for (uintptr_t at = a->begin(address); at < address + bytes; at += a->unit)
        if (!a->at(at).written)
            return false;
    return true;
}

// ---- shared memory: every running block has a slot of addresses

uint8_t *take_slot(block &b)
{
    if (!slots)
        slots = reserve((size_t)SLOTS * SLOT_BYTES);
    for (b.slot = 0; slot_owner[b.slot]; b.slot++)
        if (b.slot == SLOTS - 1)
            abort();
    slot_owner[b.slot] = &b;
    uint8_t *shared = slots + (size_t)b.slot * SLOT_BYTES;
    memset(shared, 0xFF, running->shared_bytes);
    return shared;
}

void release_slot(block &b)
{
    slot_owner[b.slot] = nullptr;
}

// Offset in the shared memory of t's block, or a report.
u32 offset_of(thread &t, const void *shared, size_t bytes, size_t alignment, const void *pc)
{
    const uintptr_t offset = (uintptr_t)shared - (uintptr_t)t.block->shared;
    if (offset >= running->shared_bytes || offset + bytes > running->shared_bytes)
        report("outside", &t, pc, "%zu bytes at %p are not within the block's %u bytes of shared memory", bytes, shared,
               running->shared_bytes);
    if (offset % alignment != 0)
        report("misaligned", &t, pc, "shared offset %zu is not a multiple of %zu", (size_t)offset, alignment);
    return (u32)offset;
}

unsigned char *emu_shared_buffer(void)
{
    return current->block->shared;
}

unsigned emu_shared_address(const void *pointer)
{
    return SHARED_BASE + offset_of(*current, pointer, 1, 1, __builtin_return_address(0));
}

word &shared_word(block &b, u32 offset)
{
    return b.words[offset / 4];
}

// ---- order

void vector_clock::raise(u32 actor, u32 value)
{
    if (actor >= at.size())
        at.resize(actor + 1);
    at[actor] = std::max(at[actor], value);
}

#if defined(__x86_64__)
__attribute__((target_clones("avx2", "default"))) // half of the emulator's time otherwise
#endif
void vector_clock::join(const vector_clock &other)
{
    if (other.at.size() > at.size())
        at.resize(other.at.size());
    for (size_t i = 0; i < other.at.size(); i++)
        at[i] = at[i] > other.at[i] ? at[i] : other.at[i];
}

// Whether an access of that epoch comes before what t does now.
bool happened(const epoch &e, const thread &t)
{
    const cluster &c = *t.block->cluster;
    if (e.clock == 0)
        return true;
    if (e.cluster == c.id)
        return t.clock.of(e.actor) >= e.clock;
    for (const auto &[number, actor] : c.publication_actor) {
        const publication &p = running->publications[number];
        if (p.cluster == e.cluster && t.clock.of(actor) && p.clock.of(e.actor) >= e.clock)
            return true;
    }
    return false;
}

static void renew(word &w)
{
    if (w.launch == launch_number)
        return;
    w.launch = launch_number;
    w.atomic = w.constant = w.copied = false;
    w.write = access_mark();
    w.reads.clear();
}

static const char *name_of(access_kind kind)
{
    return kind == WRITE ? "write to" : kind == ATOMIC ? "atomic on" : "read of";
}

[[noreturn]] static void report_race(thread &t, access_kind kind, const char *before, const access_mark &other,
                                     const void *address, const void *pc)
{
    report("race", &t, pc, "%s %p without a synchronisation after the %s by %s\n    at %s", name_of(kind), address,
           before, who(other.when).c_str(), where(other.pc).c_str());
}

static void check_after_write(thread &t, const word &w, access_kind kind, const void *address, const void *pc)
{
    if (w.barrier)
        report("barrier", &t, pc, "%s %p, which is part of an mbarrier", name_of(kind), address);
    if (happened(w.write.when, t) || (kind == ATOMIC && w.atomic))
        return;
    if (w.copied)
        report("copy", &t, pc, "%s %p, the destination of a copy that was not waited for, started\n    at %s",
               name_of(kind), address, where(w.write.pc).c_str());
    report_race(t, kind, w.atomic ? "atomic" : "write", w.write, address, pc);
}

static bool repeats(thread &t, const word &w, const void *pc)
{
    const epoch &other = w.write.when;
    return w.write.pc == pc && !w.copied && !w.atomic && other.cluster == t.block->cluster->id &&
           other.actor - t.warp->lanes[0].actor < 32 && !happened(other, t);
}

void check_repeated(thread &t)
{
    std::vector<repeated_store> all;
    all.swap(t.repeated);
    for (const repeated_store &r : all)
        if (memcmp(r.address, &r.value, r.bytes) != 0)
            report_race(t, WRITE, "write of another value", r.other, r.address, r.pc);
}

void check_write(thread &t, word &w, const void *address, u32 bytes, const void *pc)
{
    if (repeats(t, w, pc)) {
        t.repeated.push_back({(const uint8_t *)address, 0, bytes, w.write, pc});
        memcpy(&t.repeated.back().value, address, bytes);
    } else {
        check_after_write(t, w, WRITE, address, pc);
    }
    for (const access_mark &r : w.reads)
        if (!happened(r.when, t))
            report_race(t, WRITE, "read", r, address, pc);
}

void set_written(word &w, const epoch &when, const void *pc)
{
    w.written = true;
    w.atomic = w.copied = w.fenced = false;
    w.write = {when, pc};
    w.reads.clear();
}

static void add_read(thread &t, word &w, const epoch &now, const void *pc)
{
    size_t kept = 0;
    for (access_mark &r : w.reads)
        if (r.when.cluster != now.cluster || (r.when.actor != now.actor && t.clock.of(r.when.actor) < r.when.clock))
            w.reads[kept++] = r;
    w.reads.resize(kept);
    w.reads.push_back({now, pc});
}

static void touch_word(thread &t, word &w, access_kind kind, const void *address, u32 bytes, bool shared,
                       const void *pc)
{
    const epoch now = {t.block->cluster->id, t.actor, t.clock.of(t.actor)};
    renew(w);
    if (kind == WRITE || kind == ATOMIC) {
        if (w.constant)
            report("constant", &t, pc, "%s %p, which was read as constant memory in this launch", name_of(kind),
                   address);
        if (kind == WRITE) {
            check_write(t, w, address, bytes, pc);
        } else {
            check_after_write(t, w, kind, address, pc);
            if (!w.written)
                report("unwritten", &t, pc, "atomic on %p, which nobody has written", address);
        }
        set_written(w, now, pc);
        w.atomic = kind == ATOMIC;
        if (shared)
            t.unfenced.push_back(&w);
        return;
    }
    if (kind == CONSTANT_READ) {
        if (w.write.when.clock != 0)
            report("constant", &t, pc, "constant read of %p, which %s has written\n    at %s", address,
                   who(w.write.when).c_str(), where(w.write.pc).c_str());
        w.constant = true;
    }
    if (!w.written)
        report("unwritten", &t, pc, "read of %p, which nobody has written", address);
    check_after_write(t, w, kind, address, pc);
    if (shared || !w.constant)
        add_read(t, w, now, pc);
}

// ---- accesses

void check_early(thread &t, const void *pc)
{
    if (running->overlapped && !t.waited)
        report("early", &t, pc, "memory of the caller is touched before the wait for earlier kernels");
}

void emu_wait_for_earlier_kernels(void)
{
    current->waited = true;
}

static bool in_module(const void *address, const void *pc)
{
    Dl_info data, code;
    return dladdr(address, &data) && dladdr(pc, &code) && data.dli_fbase == code.dli_fbase;
}

static bool in_params(uintptr_t address, size_t bytes)
{
    const uintptr_t offset = address - (uintptr_t)running->params.data();
    return offset < running->params.size() && offset + bytes <= running->params.size();
}

void touch_shared(thread &t, block &of, u32 offset, u32 bytes, access_kind kind, const void *pc)
{
    for (u32 at = offset & ~3u; at < offset + bytes; at += 4)
        touch_word(t, of.words[at / 4], kind, of.shared + at, 4, true, pc);
}

void touch(thread &t, const void *pointer, size_t bytes, access_kind kind, const void *pc)
{
    const uintptr_t address = (uintptr_t)pointer;
    if (fiber_owns(t.stack, pointer))
        return;
    count_step(pc);
    if ((bytes & (bytes - 1)) == 0 && bytes <= 16 && address % bytes != 0)
        report("misaligned", &t, pc, "%s %zu bytes at %p", name_of(kind), bytes, pointer);
    if (address - (uintptr_t)slots < (size_t)SLOTS * SLOT_BYTES) {
        touch_shared(t, *t.block, offset_of(t, pointer, bytes, 1, pc), (u32)bytes, kind, pc);
        return;
    }
    allocation *a = find_allocation(address);
    if (a)
        check_early(t, pc);
    if (!a || address + bytes > a->base + a->bytes) {
        if (kind == READ && (in_params(address, bytes) || in_module(pointer, pc)))
            return;
        report("outside", &t, pc, "%s %zu bytes at %p: not within any allocation%s", name_of(kind), bytes, pointer,
               a ? ", but at the end of one" : "");
    }
    for (uintptr_t at = a->begin(address); at < address + bytes; at += a->unit)
        touch_word(t, a->at(at), kind, (const void *)at, (u32)a->unit, false, pc);
}

// ---- what g++ -fsanitize=thread calls before every load and store

#define PC __builtin_return_address(0)
#define HOOKS(size)                                                                                                    \
    extern "C" void __tsan_read##size(void *address)                                                                   \
    {                                                                                                                  \
        touch(*current, address, size, READ, PC);                                                                      \
    }                                                                                                                  \
    extern "C" void __tsan_write##size(void *address)                                                                  \
    {                                                                                                                  \
        touch(*current, address, size, WRITE, PC);                                                                     \
    }                                                                                                                  \
    extern "C" void __tsan_unaligned_read##size(void *address)                                                         \
    {                                                                                                                  \
        touch(*current, address, size, READ, PC);                                                                      \
    }                                                                                                                  \
    extern "C" void __tsan_unaligned_write##size(void *address)                                                        \
    {                                                                                                                  \
        touch(*current, address, size, WRITE, PC);                                                                     \
    }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)

extern "C" void __tsan_read_range(void *address, size_t bytes)
{
    touch(*current, address, bytes, READ, PC);
}
extern "C" void __tsan_write_range(void *address, size_t bytes)
{
    touch(*current, address, bytes, WRITE, PC);
}
extern "C" void __tsan_init()
{
}

void emu_constant_load(const void *pointer, int bytes)
{
    touch(*current, pointer, (size_t)bytes, CONSTANT_READ, PC);
}

// Publishes what this thread has seen and takes in what those saw that came before.
static void order_by_counter(thread &t, const void *counter)
{
    cluster &own = *t.block->cluster;
    std::vector<size_t> &earlier = running->counters[counter];
    publication mine = {own.id, vector_clock(), {}};
    for (const auto &[number, actor] : own.publication_actor)
        if (t.clock.of(actor))
            mine.known.push_back(number);
    for (size_t number : earlier) {
        std::vector<size_t> seen = running->publications[number].known;
        seen.push_back(number);
        for (size_t one : seen) {
            u32 &actor = own.publication_actor[one];
            actor = actor ? actor : own.actors++;
            t.clock.raise(actor, 1);
            if (running->publications[one].cluster == own.id)
                t.clock.join(running->publications[one].clock);
        }
    }
    mine.clock = t.clock;
    earlier.push_back(running->publications.size());
    running->publications.push_back(mine);
    t.clock.raise(t.actor, t.clock.of(t.actor) + 1);
}

unsigned emu_atomic_add(unsigned *counter, unsigned value, int orders_memory)
{
    thread &t = *current;
    const void *pc = PC;
    give_way(pc);
    touch(t, counter, sizeof *counter, ATOMIC, pc);
    if (orders_memory)
        order_by_counter(t, counter);
    const unsigned before = *counter;
    *counter = before + value;
    return before;
}
