# SPDX-License-Identifier: Apache-2.0
"""results.csv: what bench wrote, in groups, each below a line "# bench OPTIONS" that says how it was called."""
import csv
import pathlib

COLUMNS = "variant,heads,tokens,splits,us_median,us_min,us_max,read_floor_us,GBps,TFLOPS".split(",")
BEST = "bench --heads 8,16,32,64,128"
SM120 = BEST + " --profile sm120"


def read(path=pathlib.Path(__file__).with_name("results.csv")):
    """Command -> [row], every value a string and "" where there is none."""
    groups, rows = {}, None
    lines = path.read_text().splitlines()
    for line in lines[2:]:
        if line.startswith("# "):
            rows = groups.setdefault(line[2:], [])
        else:
            rows += csv.DictReader([lines[1], line])
    return groups


def medians(rows):
    """(heads, tokens) -> microseconds, as text."""
    return {(int(row["heads"]), int(row["tokens"])): row["us_median"] for row in rows}


def floors(rows):
    """tokens -> microseconds of a kernel that only reads, as text. It depends on nothing else."""
    return {int(row["tokens"]): row["read_floor_us"] for row in rows if row["read_floor_us"]}
