# SPDX-License-Identifier: Apache-2.0
"""results.csv, the picture drawn from it and the numbers of README.md say the same."""
import pathlib
import re
import sys
import unittest

import plot
import results

HERE = pathlib.Path(__file__).parent
README = pathlib.Path(__file__).parents[2].joinpath("README.md").read_text()
HEADS = 8, 16, 32, 64, 128
ROW_BYTES = {"fp8": 656, "bf16": 1152, "e4m3": 576, "v4": 576, "q8": 612}  # as in bench.c
GROUPS = results.read()


def table(first_cells):
    """The rows below the header that begins so: [cell]."""
    lines = README[README.index(first_cells):].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")]
            for line in lines[:next(i for i, line in enumerate(lines) if not line.startswith("|"))]]


class Results(unittest.TestCase):
    def test_columns_are_those_of_bench(self):
        self.assertIn('printf("' + ",".join(results.COLUMNS) + '\\n")', HERE.joinpath("bench.c").read_text())
        self.assertEqual(HERE.joinpath("results.csv").read_text().splitlines()[1], ",".join(results.COLUMNS))

    def test_rates_follow_from_medians(self):
        for command, rows in GROUPS.items():
            columns = 640 if "v4" in command else 2048
            for row in rows:
                record = row["variant"].split("_")[3]
                latent, us, tokens = 448 if record == "v4" else 512, float(row["us_median"]), int(row["tokens"])
                gbps = tokens * columns * ROW_BYTES[record] / us / 1e3
                tflops = 2 * tokens * int(row["heads"]) * columns * (latent + 64 + 512) / us / 1e6
                self.assertEqual((row["GBps"], row["TFLOPS"]), (f"{gbps:.0f}", f"{tflops:.1f}"), row)

    def test_picture(self):
        drawn = "\n".join(plot.draw(GROUPS)) + "\n"
        self.assertEqual(HERE.joinpath("results.svg").read_text(), drawn, "run plot.py")


class Readme(unittest.TestCase):
    def check_table(self, first_cells, command, with_floor):
        medians, floors = results.medians(GROUPS[command]), results.floors(GROUPS[command])
        expected = [[str(t), *([floors[t]] if with_floor else []), *(medians[h, t] for h in HEADS)]
                    for t in (1, 16, 64, 128, 256)]
        self.assertEqual(table(first_cells), expected)
        self.assertEqual(len(medians), len(HEADS) * len(expected))

    def test_best(self):
        self.check_table("| tokens | read floor | 8 heads |", results.BEST, True)

    def test_sm120(self):
        self.check_table("| tokens | 8 heads |", results.SM120, False)

    def test_text(self):
        """Groups of one table row each: "a / b / c us", or "a and b us" of one number of tokens."""
        words = re.sub(r"\s+", " ", README)
        for command in set(GROUPS) - {results.BEST, results.SM120}:
            medians = results.medians(GROUPS[command])
            for heads in {heads for heads, _ in medians}:
                series = " / ".join(us for (h, _), us in medians.items() if h == heads)
                self.assertRegex(words, rf"\D{re.escape(series)} (us|with|for|and)\b", command)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
