# SPDX-License-Identifier: Apache-2.0
"""The rules of this source tree that a search can check."""
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(sys.argv[1])
# The command-line tool is a program: it may print and exit.
LIBRARY = [path for path in sorted((ROOT / "src").rglob("*.[ch]")) if "cli" not in path.parts]
PROGRAMS = [path for folder in ("examples", "src/cli") for path in sorted((ROOT / folder).rglob("*.[ch]"))]
HEADERS = sorted((ROOT / "include").rglob("*.h"))
KERNELS = sorted((ROOT / "kernels_src").iterdir())


def code_of(path):
    """The text without comments and string literals; lines stay where they are."""
    def blank(match):
        return "\n" * match.group().count("\n")
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', blank, path.read_text(), flags=re.S)


class Style(unittest.TestCase):
    def search(self, pattern, paths, text=code_of):
        hits = [f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
                for path in paths for number, line in enumerate(text(path).splitlines(), 1) if re.search(pattern, line)]
        self.assertEqual(hits, [])

    def test_files_are_there(self):
        self.assertGreater(min(map(len, (LIBRARY, PROGRAMS, HEADERS, KERNELS))), 0)

    def test_files_stay_short(self):
        long = [f"{path.relative_to(ROOT)}: {lines} lines" for path in LIBRARY + PROGRAMS + KERNELS
                if (lines := path.read_text().count("\n")) > 400]
        self.assertEqual(long, [])

    def test_library_neither_exits_nor_prints(self):
        self.search(r"\b(exit|_exit|quick_exit|abort|assert|printf|fprintf|puts|fputs|putchar|perror)\s*\(", LIBRARY)

    def test_library_does_not_trust_the_environment_of_setuid_programs(self):
        self.search(r"\bgetenv\s*\(", LIBRARY)

    def test_no_cuda_headers(self):
        self.search(r'#\s*include\s*[<"](cuda|nvrtc\.h>|cooperative_groups|mma\.h)', LIBRARY + PROGRAMS + HEADERS,
                    text=pathlib.Path.read_text)

    def test_kernels_include_no_system_header(self):
        self.search(r"#\s*include\s*<", KERNELS)

    def test_every_file_names_its_licence(self):
        bare = [str(path.relative_to(ROOT)) for path in LIBRARY + PROGRAMS + HEADERS
                if "SPDX-License-Identifier: Apache-2.0" not in path.read_text().splitlines()[0]]
        self.assertEqual(bare, [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
