#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the kernel sources as a C file: embed.py OUTPUT.c ROOT.cu HEADERS...

The first file is the program, the others are headers that it includes by name. The digest covers names and
contents, so that a cache entry made from other sources is never a hit. Declarations: src/sources.h.
"""
import hashlib
import os
import sys


def digest(files):
    """128 bits over every name and content, each framed by its length."""
    state = hashlib.sha256()
    for name, text in files:
        for part in (name.encode(), text):
            state.update(len(part).to_bytes(8, "little"))
            state.update(part)
    return state.hexdigest()[:32]


def array(index, text):
    """Numbers, not a string literal: C11 promises only 4095 characters for those."""
    numbers = [str(byte) for byte in text] + ["0"]
    lines = [",".join(numbers[i : i + 32]) for i in range(0, len(numbers), 32)]
    return f"static const char text_{index}[] = {{\n" + ",\n".join(lines) + "};\n"


def main(output, paths):
    files = []
    for path in paths:
        with open(path, "rb") as file:
            text = file.read()
        if not text.isascii():
            sys.exit(f"{path}: kernel sources are ASCII")
        files.append((os.path.basename(path), text))
    with open(output, "w", encoding="ascii") as out:
        out.write('/* Made by kernels_src/embed.py. */\n#include "sources.h"\n\n')
        for index, (_, text) in enumerate(files):
            out.write(array(index, text))
        out.write("\nconst struct smla_source smla_sources[] = {\n")
        for index, (name, text) in enumerate(files):
            out.write(f'    {{"{name}", text_{index}, {len(text)}}},\n')
        out.write(f"}};\nconst int smla_source_count = {len(files)};\n")
        out.write(f'const char smla_source_digest[] = "{digest(files)}";\n')


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
