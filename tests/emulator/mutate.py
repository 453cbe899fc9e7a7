#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Breaks the kernels in one place at a time; the emulator must say so:

    mutate.py GRID TOOLS KERNELS [--some N | NAME...]

GRID is the program of grid.c, TOOLS that of tools.c, KERNELS the folder kernels_src. Every mutation replaces one piece of text, found exactly
once, in a copy of KERNELS, and names where the emulator must notice and what it must say. --some N runs N of them, other
ones every time the kernels change. README.md of this folder has the table.
"""
import argparse
import collections
import concurrent.futures
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

Mutation = collections.namedtuple("Mutation", "name file old new device test kinds")
TIMEOUT = 200  # seconds
WORKERS = 2

MUTATIONS = [
    # Barriers and waits that are not there, or too early.
    Mutation("staged outputs are read without a barrier", "output.cuh",
             "float4_t{c[0], c[1], c[2], c[3]};\n    }\n    sync_block();", "float4_t{c[0], c[1], c[2], c[3]};\n    }",
             "90", "head_counts", "race unwritten"),
    Mutation("totals are read without a barrier", "output.cuh",
             "    sync_block();\n    if (thread_index() < RING_WARPS * GROUP_HEADS)",
             "    if (thread_index() < RING_WARPS * GROUP_HEADS)", "120", "head_counts", "race unwritten"),
    Mutation("a tile is used before its phase", "decode.cuh",
             "mbarrier_wait(WIDENED ? ready_barrier(here) : full_barrier(here), phase);",
             "mbarrier_wait(WIDENED ? ready_barrier(here) : full_barrier(here), phase ^ 1);", "80", "head_counts",
             "race copy unwritten"),
    Mutation("a stage is refilled without waiting for its readers", "decode.cuh",
             "mbarrier_wait(empty_barrier(walk.first_stage + refill), wrapped ? phase ^ 1 : phase);", "", "89",
             "long_rows", "race copy"),
    Mutation("a stage is released while lanes still read it", "decode.cuh",
             "        sync_warp();\n        if (at.lane == 0)\n            mbarrier_arrive(empty_barrier(here));",
             "        if (at.lane == 0)\n            mbarrier_arrive(empty_barrier(here));", "120", "long_rows", "race"),
    Mutation("the stage to refill is off by one", "decode.cuh", "const int refill = stage - REFILL_LAG +",
             "const int refill = stage + 1 - REFILL_LAG +", "90", "long_rows", "race copy barrier deadlock"),
    Mutation("scores of a pair of warps are read without waiting", "attend.cuh",
             "    mbarrier_wait(at.pair_barrier, parity);\n", "", "120", "head_counts", "race unwritten"),
    Mutation("both buffers of a pair of warps are one", "attend.cuh",
             "float4_t *mine = (float4_t *)(at.exchange + parity * EXCHANGE_FLOATS) + at.lane;\n"
             "    const float4_t *theirs = (const float4_t *)(at.exchange_other + parity * EXCHANGE_FLOATS) + at.lane;",
             "float4_t *mine = (float4_t *)at.exchange + at.lane;\n"
             "    const float4_t *theirs = (const float4_t *)at.exchange_other + at.lane;", "80", "long_rows", "race"),
    Mutation("a reference is moved before every lane has read it", "attend.cuh",
             "            sync_warp(); // every lane of this head has read it\n", "", "89", "head_counts", "race"),
    # Copies.
    Mutation("zeros of masked rows are not fenced", "copy.cuh",
             "                    zero_row(tile + r * ROW_BYTES, lane);\n            fence_bulk_copies();",
             "                    zero_row(tile + r * ROW_BYTES, lane);", "90", "long_rows", "proxy"),
    Mutation("widened rows are not fenced", "copy.cuh", "    fence_bulk_copies();\n    mbarrier_arrive(ready_barrier(stage));",
             "    mbarrier_arrive(ready_barrier(stage));", "120", "long_rows", "proxy"),
    Mutation("masked rows keep what was there", "copy.cuh",
             "                    zero_row(tile + r * ROW_BYTES, lane);\n            fence_bulk_copies();",
             "                    ;\n            fence_bulk_copies();", "120", "head_counts", "unwritten"),
    Mutation("fewer bytes are announced than come", "copy.cuh", "count_bits(valid) * RAW_BYTES",
             "count_bits(valid) * (RAW_BYTES - 16)", "90", "head_counts", "barrier copy"),
    Mutation("the mask of a tile is stored after the arrival", "copy.cuh",
             "    if (lane == 0)\n        *mask_of(stage) = valid;\n", "    if (lane == 31)\n        *mask_of(stage) = valid;\n",
             "80", "head_counts", "race unwritten"),
    # What is read.
    Mutation("masked keys count", "attend.cuh", "s[n][c] = first ? s[n][c] : -infinity();", "", "89", "head_counts",
             "values"),
    Mutation("heads that do not exist are read from q", "decode.cuh",
             "    head = head < p.num_heads ? head : p.num_heads - 1;\n", "", "80", "head_counts", "outside"),
    Mutation("indices are read past the end", "copy.cuh",
             "first + (u32)lane >= (u32)keys.end || ", "", "120", "head_counts", "outside"),
    # Warps and blocks that part.
    Mutation("one lane enters a collective", "decode.cuh",
             "        sync_warp();\n        if (at.lane == 0)\n            mbarrier_arrive(empty_barrier(here));",
             "        if (at.lane == 0) {\n            sync_warp();\n            mbarrier_arrive(empty_barrier(here));\n"
             "        }", "89", "head_counts", "collective"),
    Mutation("one warp more is waited for than arrives", "copy.cuh", "mbarrier_init(empty_barrier(i), RING_WARPS);",
             "mbarrier_init(empty_barrier(i), RING_WARPS + 1);", "120", "long_rows", "deadlock"),
    Mutation("one warp skips a barrier of the block", "output.cuh",
             "    sync_block();\n    if (thread_index() < RING_WARPS * GROUP_HEADS)",
             "    if (warp != 0)\n        sync_block();\n    if (thread_index() < RING_WARPS * GROUP_HEADS)", "90",
             "head_counts", "deadlock collective race unwritten"),
    # Merges.
    Mutation("the last block but one merges", "merge.cuh", "== (u32)p.num_splits - 1;", "== (u32)p.num_splits - 2;",
             "120", "wide", "race unwritten"),
    Mutation("a block arrives before all of it has stored", "merge.cuh",
             "    sync_block();\n    if (thread_index() == 0)\n        *is_last",
             "    if (thread_index() == 0)\n        *is_last", "120", "wide", "race unwritten"),
    Mutation("blocks that are not last wait for ever", "merge.cuh", "    if (!*is_last)\n        return;",
             "    while (!*is_last)\n        ;", "80", "wide", "spin"),
    Mutation("the counter is left as it is", "merge.cuh",
             "    if (thread_index() == 0)\n        p.counters[block.row] = 0;\n", "", "89", "wide", "counters"),
    Mutation("a cluster merges without waiting", "merge.cuh", "        sync_cluster();\n        if (ROUND == 0) {",
             "        if (ROUND == 0) {", "120", "head_counts", "race unwritten"),
    Mutation("between rounds, a cluster does not order its memory", "merge.cuh",
             "            sync_cluster();\n        else", "            sync_cluster_readers();\n        else", "120",
             "head_counts", "race"),
    Mutation("blocks of a cluster return while others read", "merge.cuh", "        else\n            sync_cluster_readers();",
             "", "90", "head_counts", "cluster"),
    # Launches.
    Mutation("memory is touched without the wait for earlier kernels", "decode.cuh",
             "    if (p.flags & SMLA_PROGRAMMATIC_LAUNCH)\n        wait_for_earlier_kernels();\n", "", "90", "launch_flags",
             "early"),
    # Beside decode.
    Mutation("totals of warps are read without a barrier", "tool_slots.cuh",
             "        totals[warp] = own;\n    sync_block();\n", "        totals[warp] = own;\n", "120", "slots",
             "race unwritten"),
    Mutation("totals of warps are overwritten while others read", "tool_slots.cuh",
             "    sync_block();\n#pragma unroll\n    for (int i = 0; i < SLOTS_STEPS; i++)\n        before[i] += earlier;",
             "    for (int i = 0; i < SLOTS_STEPS; i++)\n        before[i] += earlier;", "80", "slots", "race"),
    Mutation("columns past the length are looked at", "tool_slots.cuh", "column >= (u32)rows.length", "false", "80",
             "slots", "values outside"),
    Mutation("the mask is read past its width", "tool_slots.cuh", "index < p.mask_width && ", "", "120", "slots",
             "outside values"),
    Mutation("slots past the cache are written", "tool_append.cuh", "slot >= 0 && slot < p.num_slots", "slot >= 0", "120",
             "append", "outside"),
    Mutation("a scale is that of one lane's dims", "tool_append.cuh",
             "    for (int mask = 1; mask < 32; mask *= 2)\n        largest = larger(largest, shuffle_xor(largest, mask));\n",
             "", "80", "append", "values"),
    Mutation("units of work are taken twice", "tool_append.cuh", "unit += (i64)p.blocks * APPEND_WARPS",
             "unit += APPEND_WARPS", "120", "append", "race"),
    Mutation("empty parts are read", "tool_merge.cuh", "w == 0.0f || ", "", "120", "merge", "values"),
    Mutation("dims past the last are merged", "tool_merge.cuh", "if (first + i * 128 < p.value_dim)", "if (true)", "80",
             "merge", "values outside race"),
]


def check_texts(kernels):
    """Ends the program if a text is not there exactly once."""
    counts = [(m, (kernels / m.file).read_text().count(m.old)) for m in MUTATIONS]
    wrong = [f"{m.name}: its text is {count} times in {m.file}" for m, count in counts if count != 1]
    if wrong:
        sys.exit("\n".join(wrong))


def mutated(kernels, mutation, folder):
    shutil.copytree(kernels, folder)
    path = folder / mutation.file
    path.write_text(path.read_text().replace(mutation.old, mutation.new))


def kind_of(output):
    """What the last complaint, which ended the test, is about."""
    found = re.findall(r"emulator: (\w+):|(values): |(0x[0-9a-f]+ != 0)", output)
    return "nothing" if not found else found[-1][0] or found[-1][1] or "counters"


def run(programs, kernels, mutation):
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch) / "kernels"
        mutated(kernels, mutation, folder)
        environment = {**os.environ, "EMULATOR_KERNELS": str(folder), "EMULATOR_CACHE_DIR": ""}
        try:
            program = programs[mutation.file.startswith("tool_")]
            result = subprocess.run([program, mutation.device, "test_" + mutation.test], env=environment, timeout=TIMEOUT,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        except subprocess.TimeoutExpired:
            return "timeout", ""
    return ("nothing" if result.returncode == 0 else kind_of(result.stdout)), result.stdout


def choose(some, kernels):
    digest = hashlib.sha256()
    for path in sorted(kernels.iterdir()):
        digest.update(path.read_bytes())
    first = int.from_bytes(digest.digest()[:4], "big") % len(MUTATIONS)
    step = max(1, len(MUTATIONS) // some)
    return [MUTATIONS[(first + i * step) % len(MUTATIONS)] for i in range(some)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("grid")
    parser.add_argument("tools")
    parser.add_argument("kernels", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--some", type=int)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    chosen = [m for m in MUTATIONS if not options.names or m.name in options.names]
    if options.some:
        chosen = choose(options.some, options.kernels)
    check_texts(options.kernels)
    missed = 0
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        results = pool.map(lambda m: run((options.grid, options.tools), options.kernels, m), chosen)
        for mutation, (kind, output) in zip(chosen, results):
            caught = kind in mutation.kinds.split()
            missed += not caught
            print(f"{'caught' if caught else 'MISSED'} | {mutation.name} | sm_{mutation.device} {mutation.test} | {kind}",
                  flush=True)
            if options.verbose or not caught:
                print(output[-3000:], flush=True)
    return missed != 0 or not chosen


if __name__ == "__main__":
    sys.exit(main())
