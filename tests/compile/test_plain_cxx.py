# SPDX-License-Identifier: Apache-2.0
"""The kernel sources are plain C++ but for device.cuh."""
import argparse
import pathlib
import re
import subprocess
import unittest

parser = argparse.ArgumentParser()
for option in ("--cxx", "--kernels", "--variants"):
    parser.add_argument(option, required=True)
OPTIONS = parser.parse_args()
KERNELS = pathlib.Path(OPTIONS.kernels)
# A parameter may be for one of two kinds of copies only.
STRICT = ["-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-unused-function",
          "-Wno-unused-parameter"]
GPU_ONLY = (r"\basm\b|\b__\w+|\b(thread|block)(Idx|Dim)\b|\bgridDim\b|\bwarpSize\b|\batomic[A-Z]\w*|"
            r"\b(cvta|ldmatrix|mbarrier|cp\.async|mma\.sync)\.\w+")


def code_of(path):
    """The text without comments; lines stay where they are."""
    def blank(comment):
        return "\n" * comment.group().count("\n")
    return re.sub(r"/\*.*?\*/|//[^\n]*", blank, path.read_text(), flags=re.S)


def variants():
    """The options of every shipped variant."""
    lines = subprocess.run([OPTIONS.variants, "--defines"], stdout=subprocess.PIPE, check=True, text=True).stdout
    return [line.split() for line in lines.splitlines()]


# What stands in for the macros of device.cuh.
MACROS = r"""
#define SMLA_FN static inline
#define SMLA_KERNEL(name, threads, blocks_per_sm)                                       \
    static_assert((threads) % 32 == 0 && (threads) * (blocks_per_sm) <= 1024, "block"); \
    extern "C" void name(const smla_params &p);                                         \
    extern "C" void name(const smla_params &p)
#define SMLA_TOOL_KERNEL(name, params, threads)              \
    static_assert((threads) % 32 == 0 && (threads) <= 1024, "block"); \
    extern "C" void name(const params &p);                   \
    extern "C" void name(const params &p)
"""
MACRO = re.compile(r"^#define SMLA_(?:FN|KERNEL|TOOL_KERNEL)\b(?:[^\n]*\\\n)*[^\n]*\n", re.M)
FUNCTION = re.compile(r"^((?:template <[^\n]*>\s+)?)SMLA_FN ([^{;]*?)\s*\{.*?^\}\n", re.M | re.S)


def declarations():
    """device.cuh without the bodies of its functions."""
    return MACROS + FUNCTION.sub(r"\1\2;\n", MACRO.sub("", code_of(KERNELS / "device.cuh")))


def program():
    """root.cu, with nothing but declarations from device.cuh."""
    return (KERNELS / "root.cu").read_text().replace('#include "device.cuh"', declarations())


def compile_program(options, text):
    return subprocess.run([OPTIONS.cxx, *STRICT, *options, "-I", KERNELS, "-x", "c++", "-"], input=text,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


class PlainCxx(unittest.TestCase):
    def test_only_one_file_needs_a_gpu(self):
        files = [path for path in sorted(KERNELS.iterdir()) if path.suffix in (".cu", ".cuh", ".h")]
        self.assertIn(KERNELS / "device.cuh", files)
        for path in files:
            found = [line for line in code_of(path).splitlines() if re.search(GPU_ONLY, line)]
            if path.name == "device.cuh":
                self.assertNotEqual(found, [])  # or the pattern says nothing
            else:
                self.assertEqual(found, [], path.name)

    def test_only_the_program_includes(self):
        for path in sorted(KERNELS.glob("*.*h")):
            self.assertNotRegex(code_of(path), r"#\s*include", path.name)

    def test_a_host_compiler_accepts_the_rest(self):
        if not OPTIONS.cxx:
            self.skipTest("no C++ compiler")
        self.assertNotRegex(declarations(), GPU_ONLY)
        text = program()
        for options in variants():
            result = compile_program(options, text)
            self.assertEqual(result.returncode, 0, f"{options[0]}\n{result.stdout}")
        wrong = compile_program(options, text + "int wrong = thread_index(0);")
        self.assertIn("too many arguments", wrong.stdout)  # or the declarations say nothing


if __name__ == "__main__":
    unittest.main(argv=[__file__], verbosity=2)
