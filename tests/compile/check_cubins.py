#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles every shipped program for the targets given and checks the cubins.

Registers, local memory, shared memory (static and dynamic) and code size stand in table.csv, which names the NVRTC that
made it. That version must give the very same numbers, code size apart, and registers within 1: one sm_86 kernel was seen
with 253 and with 254. To any other version they are upper limits, with some slack for registers, code and spilled
registers: 12.8 spills two where 13.0 spills none. --update writes the table. --prefix takes the programs whose name begins so.

nvdisasm is $NVDISASM, else that of PATH, of the PyPI package nvidia-cuda-nvdisasm or of /usr/local/cuda.
Exit status 77 (skipped): there is no nvdisasm, no NVRTC, or none for the target.
"""
import argparse
import concurrent.futures
import csv
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from cubin import Cubin
from sass import Program

SKIPPED = 77
COLUMNS = ("registers", "local", "shared", "code")
CODE_SLACK = 1.1
REGISTER_NOISE = 1
REGISTER_SLACK = 16  # another compiler counts differently; what must be resident fits all the same, see check_cubin()
LOCAL_SLACK = 16  # four spilled registers
LOCAL_LIMIT = 64
SMALL_SHARED = {86, 89, 120, 121}  # 100 KiB per SM, 1 of them reserved for the driver
SMALL_SHARED_LIMIT = 101376
REGISTERS_PER_SM = 65536


class Skip(Exception):
    pass


def find_nvdisasm():
    found = os.environ.get("NVDISASM") or shutil.which("nvdisasm")
    packages = (path for folder in sys.path for path in pathlib.Path(folder or ".").glob("nvidia/*/bin/nvdisasm"))
    found = found or next(packages, "/usr/local/cuda/bin/nvdisasm")
    if not os.access(found, os.X_OK):
        raise Skip("skipped: there is no nvdisasm ($NVDISASM, PATH, PyPI's nvidia-cuda-nvdisasm)")
    return found


def build(compiler, target, folder, prefix):
    """[(variant, threads, blocks per SM, dynamic shared bytes)] in the order of the planner's list."""
    result = subprocess.run([compiler, str(target), folder, prefix], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True)
    if result.returncode == SKIPPED:
        raise Skip(f"sm_{target}: {result.stderr.strip()}")
    if result.returncode:
        sys.exit(f"sm_{target}: {result.stderr}")
    return [(name, *map(int, numbers)) for name, *numbers in map(str.split, result.stdout.splitlines())]


def check_code(program, target, name, exactly):
    if not name.startswith("sparse_mla_decode_"):
        if exactly and (local := program.opcodes & {"LDL", "STL"}):
            yield f"it accesses local memory: {', '.join(sorted(local))}"
        return
    loop = {program.instructions[i].opcode for i in program.loops_with("HMMA")}
    record, query = name.split("_")[3], name.split("_")[6]
    copy = "UBLKCP" if target >= 90 and record != "q8" else "LDGSTS"  # rows of q8_0 are aligned to 4 bytes
    if not loop:
        yield "no loop has HMMA"
    elif copy not in loop:
        yield f"the key loop has no {copy}"
    # Rows that are widened, and queries of two terms, ask for more than there is: LOCAL_LIMIT alone holds for them.
    short = record in ("e4m3", "v4", "q8") or query != "qbf16"
    if exactly and (local := loop & {"LDL", "STL"}) and not short:
        yield f"the key loop accesses local memory: {', '.join(sorted(local))}"


def check_cubin(cubin, target, threads, blocks):
    if cubin.calls_driver:
        yield "it has a __cuda_syscall"
    if cubin.local > LOCAL_LIMIT:
        yield f"{cubin.local} bytes of local memory, at most {LOCAL_LIMIT} are allowed"
    if target in SMALL_SHARED and cubin.shared > SMALL_SHARED_LIMIT:
        yield f"{cubin.shared} bytes of shared memory, at most {SMALL_SHARED_LIMIT} are allowed"
    granted = (cubin.registers + 7) // 8 * 8
    if not 0 < cubin.registers <= 255 or granted * threads * blocks > REGISTERS_PER_SM:
        yield f"{cubin.registers} registers do not fit with {blocks} blocks of {threads} threads"


def check_row(cubin, row, exactly):
    """Against a row of the table."""
    recorded = {column: int(row[column]) for column in COLUMNS}
    limits = {**recorded, "code": recorded["code"] * CODE_SLACK}
    limits["registers"] += REGISTER_NOISE if exactly else REGISTER_SLACK
    limits["local"] += 0 if exactly else LOCAL_SLACK
    for column in COLUMNS:
        value = getattr(cubin, column)
        least = recorded[column] - REGISTER_NOISE if column == "registers" else recorded[column]
        if value > limits[column] or exactly and column != "code" and value < least:
            yield f"{column} is {value}, the table says {recorded[column]}"


def check_target(options, nvdisasm, table, target):
    """(problems, rows of the table, NVRTC version)"""
    problems, rows, compilers = [], [], set()
    with tempfile.TemporaryDirectory() as folder:
        for name, threads, blocks, dynamic in build(options.compiler, target, folder, options.prefix):
            path = pathlib.Path(folder, name + ".cubin")
            cubin = Cubin(path.read_bytes(), target)
            cubin.shared += dynamic
            compilers.add(cubin.compiler)
            listing = subprocess.run([nvdisasm, "-c", path], stdout=subprocess.PIPE, check=True, text=True).stdout
            rows.append((target, name, *(getattr(cubin, column) for column in COLUMNS)))
            exactly = options.update or cubin.compiler == table.compiler
            found = [*check_code(Program(listing), target, name, exactly), *check_cubin(cubin, target, threads, blocks)]
            row = table.rows.get((str(target), name))
            if not options.update:
                found += check_row(cubin, row, exactly) if row else ["it is not in the table"]
            problems += [f"sm_{target} {name}: {problem}" for problem in found]
    listed = {name for of, name in table.rows if of == str(target) and name.startswith(options.prefix)}
    gone = listed - {row[1] for row in rows}
    if not options.update:
        problems += [f"sm_{target} {name}: in the table, but not shipped" for name in sorted(gone)]
    return problems, rows, compilers


class Table:
    """First line: "# NVRTC VERSION"."""

    def __init__(self, path):
        self.compiler, self.rows = None, {}
        if path.exists():
            with open(path, newline="") as file:
                self.compiler = file.readline().split()[-1]
                self.rows = {(row["target"], row["variant"]): row for row in csv.DictReader(file)}


def write_table(path, compilers, rows):
    if len(compilers) != 1:
        sys.exit(f"one NVRTC makes a table, not {sorted(compilers)}")
    with open(path, "w", newline="") as file:
        file.write(f"# NVRTC {compilers.pop()}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("target", "variant", *COLUMNS))
        writer.writerows(sorted(rows, key=lambda row: row[0]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--compiler", required=True, help="the program compile_variants")
    parser.add_argument("--table", required=True, type=pathlib.Path)
    parser.add_argument("--prefix", default="", help="of the names of the programs; not with --update")
    parser.add_argument("--update", action="store_true", help="write the table, of all these targets")
    parser.add_argument("targets", type=int, nargs="+")
    options = parser.parse_args()
    if options.update and options.prefix:
        parser.error("--update writes the whole table")
    nvdisasm, table = find_nvdisasm(), Table(options.table)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda target: check_target(options, nvdisasm, table, target), options.targets))
    problems, rows, compilers = [], [], set()
    for result in results:
        problems += result[0]
        rows += result[1]
        compilers |= result[2]
    print(f"{len(rows)} cubins of NVRTC {', '.join(sorted(compilers))}, the table is of {table.compiler}")
    print("\n".join(problems))
    if options.update:
        write_table(options.table, compilers, rows)
    return 1 if problems else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Skip as reason:
        print(reason)
        sys.exit(SKIPPED)
