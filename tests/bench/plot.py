#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws results.svg from results.csv: the fraction of the read floor that a call reaches, over tokens and heads.

plot.py writes it beside itself; plot.py FILE writes FILE.
"""
import math
import pathlib
import sys

import results

PANELS = (("best for this card", results.BEST), ("sm_120 code path, forced", results.SM120))
# Dark enough for white, and told apart without red and green (after Okabe and Ito); each line has its name beside it.
COLOURS = {8: "#0072b2", 16: "#b35900", 32: "#00795a", 64: "#8a4f8f", 128: "#000000"}
WIDTH, HEIGHT, LEFT, TOP, PANEL_WIDTH, PANEL_HEIGHT, PITCH = 890, 366, 84, 64, 276, 236, 434
TOKENS = 1, 16, 64, 128, 256


def text(x, y, words, anchor="middle", colour="#24292f", size=12, extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" font-size="{size}"{extra}>{words}</text>'


def line(x1, y1, x2, y2):
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="#d0d7de"/>'


def panel(left, title, medians, floors):
    def x(tokens):
        return left + PANEL_WIDTH * math.log2(tokens) / math.log2(TOKENS[-1])

    def y(fraction):
        return TOP + PANEL_HEIGHT * (1 - fraction)

    yield text(left, TOP - 14, title, "start", size=13, extra=' font-weight="bold"')
    for percent in range(0, 101, 25):
        yield line(left, y(percent / 100), left + PANEL_WIDTH, y(percent / 100))
        yield text(left - 8, y(percent / 100) + 4, f"{percent} %", "end")
    for tokens in TOKENS:
        yield text(x(tokens), TOP + PANEL_HEIGHT + 18, tokens)
    yield text(left + PANEL_WIDTH / 2, TOP + PANEL_HEIGHT + 38, "tokens in a call")
    turn = f' transform="rotate(-90 {left - 56} {TOP + PANEL_HEIGHT / 2})"'
    yield text(left - 56, TOP + PANEL_HEIGHT / 2, "of the read floor", extra=turn)
    for heads, colour in COLOURS.items():
        points = [(x(t), y(float(floors[t]) / float(medians[heads, t]))) for t in TOKENS]
        path = "L".join(f"{a:.1f} {b:.1f}" for a, b in points)
        yield f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        yield from (f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in points)
        yield text(points[-1][0] + 8, points[-1][1] + 4, f"{heads} heads", "start", colour)


def draw(groups):
    floors = results.floors(groups[results.BEST])
    yield (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
           'font-family="system-ui, sans-serif">')
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#ffffff"/>'  # of its own, whatever the page has
    yield text(LEFT, 26, "Read floor (time to only read the selected rows) / time of the call; H200, fp8_ds_mla, top-k 2048", "start", size=14)
    for n, (title, command) in enumerate(PANELS):
        yield from panel(LEFT + n * PITCH, title, results.medians(groups[command]), floors)
    yield "</svg>"


def main():
    path = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).with_name("results.svg")
    path.write_text("\n".join(draw(results.read())) + "\n")


if __name__ == "__main__":
    main()
