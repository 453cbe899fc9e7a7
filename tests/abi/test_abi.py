# SPDX-License-Identifier: Apache-2.0
"""What a program that uses the library can see of it: the header on its own, and the names in the binaries."""
import argparse
import pathlib
import re
import subprocess
import tempfile
import unittest

parser = argparse.ArgumentParser()
for option in ("--cc", "--cxx", "--nm", "--readelf", "--include", "--shared", "--static"):
    parser.add_argument(option)
OPTIONS = parser.parse_args()
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]


def run(*command):
    return subprocess.run(command, capture_output=True, text=True)


def compile_alone(compiler, language, *flags, text="#include <sparsemla/sparsemla.h>\n"):
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "alone.src")
        source.write_text(text)
        return run(*compiler.split(), "-x", language, *flags, *STRICT, "-I", OPTIONS.include, str(source))


class Header(unittest.TestCase):
    def accepts(self, *arguments):
        result = compile_alone(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_alone_in_c11(self):
        self.accepts(OPTIONS.cc, "c", "-std=c11")

    def test_alone_in_cxx11(self):
        if not OPTIONS.cxx:
            self.skipTest("no C++ compiler")
        self.accepts(OPTIONS.cxx, "c++", "-std=c++11")

    def test_structs_have_no_padding(self):
        self.accepts(OPTIONS.cc, "c", "-std=c11", "-Wpadded")
        padded = compile_alone(OPTIONS.cc, "c", "-std=c11", "-Wpadded", text="struct s { char c; int i; };\n")
        self.assertNotEqual(padded.returncode, 0)  # or the line above says nothing


class Binary(unittest.TestCase):
    def dynamic(self, tag):
        text = run(OPTIONS.readelf, "-d", OPTIONS.shared).stdout
        return re.findall(rf"\({tag}\).*\[(.*)\]", text)

    def test_exports_are_the_functions_of_the_header(self):
        lines = run(OPTIONS.nm, "-D", "--defined-only", "--with-symbol-versions", OPTIONS.shared).stdout.splitlines()
        names = [line.split()[-1] for line in lines if line.split()[-2] != "A"]
        self.assertEqual([name for name in names if not name.endswith("@@SPARSEMLA_0")], [])
        exports = {name.split("@")[0] for name in names}
        header = pathlib.Path(OPTIONS.include, "sparsemla", "sparsemla.h").read_text()
        declared = set(re.findall(r"^SPARSE_MLA_API [^;(]*?\b(sparse_mla_\w+)\(", header, re.M))
        self.assertGreater(len(declared), 10)
        self.assertEqual(exports, declared)

    def test_needs_only_the_c_library(self):
        allowed = re.compile(r"lib(c|m)\.so\.\d+|ld-linux.*|lib(dl|pthread)\.so\.\d+")
        needed = self.dynamic("NEEDED")
        self.assertIn("libc.so.6", needed)
        self.assertEqual([name for name in needed if not allowed.fullmatch(name)], [])

    def test_looks_for_libraries_nowhere_of_its_own(self):
        self.assertEqual(self.dynamic("RPATH") + self.dynamic("RUNPATH"), [])

    def test_soname(self):
        self.assertEqual(self.dynamic("SONAME"), ["libsparsemla.so.0"])

    def test_everything_with_linkage_has_a_prefix(self):
        lines = run(OPTIONS.nm, "-g", "--defined-only", OPTIONS.static).stdout.splitlines()
        names = [line.split()[-1] for line in lines if len(line.split()) == 3]
        self.assertIn("sparse_mla_decode", names)
        self.assertEqual([name for name in names if not re.match(r"(sparse_mla|smla)_", name)], [])


if __name__ == "__main__":
    unittest.main(argv=["test_abi"])
