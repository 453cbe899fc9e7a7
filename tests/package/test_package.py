# SPDX-License-Identifier: Apache-2.0
"""Uses the library as its users do: installed and found by pkg-config, and as a Meson subproject."""
import glob
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD = sys.argv[1:3]
HERE = os.path.dirname(os.path.abspath(__file__))
MINIMAL = [os.path.join(SOURCE, "examples", name) for name in ("minimal.c", "device.c")]
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def run(*command, **environment):
    result = subprocess.run(command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode != 0:
        raise AssertionError(f"{' '.join(command)} exited with {result.returncode}:\n{result.stdout}")
    return result.stdout


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp()
        run("meson", "install", "-C", BUILD, "--no-rebuild", "--destdir", cls.root)
        (cls.pc,) = glob.glob(cls.root + "/**/sparsemla.pc", recursive=True)
        (library,) = glob.glob(cls.root + "/**/libsparsemla.so", recursive=True)
        cls.libdir = os.path.dirname(library)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.root)

    def pkg_config(self, *options):
        return run("pkg-config", *options, "sparsemla", PKG_CONFIG_PATH=os.path.dirname(self.pc),
                   PKG_CONFIG_SYSROOT_DIR=self.root, PKG_CONFIG_ALLOW_SYSTEM_CFLAGS="1",
                   PKG_CONFIG_ALLOW_SYSTEM_LIBS="1").split()

    def build_and_run(self, *command):
        program = os.path.join(self.root, "program")
        run(*command, "-o", program)
        return run(program, LD_LIBRARY_PATH=self.libdir, SPARSEMLA_CACHE_DIR=self.root + "/cache")

    def test_needs_no_other_package(self):
        with open(self.pc) as file:
            self.assertNotIn("Requires", file.read())

    def test_c(self):
        output = self.build_and_run("gcc", "-std=c11", *WARNINGS, *MINIMAL, *self.pkg_config("--cflags", "--libs"),
                                    "-lm", "-ldl")
        self.assertIn("out 0x4000", output)

    def test_static(self):
        archive = os.path.join(self.libdir, "libsparsemla.a")
        flags = [archive if flag == "-lsparsemla" else flag
                 for flag in self.pkg_config("--cflags", "--libs", "--static")]
        self.assertIn(archive, flags)
        self.assertIn("out 0x4000", self.build_and_run("gcc", "-std=c11", *MINIMAL, *flags, "-lm", "-ldl"))

    def test_cpp(self):
        caller = os.path.join(HERE, "consumer", "caller.cpp")
        output = self.build_and_run("g++", "-std=c++11", *WARNINGS, caller, *self.pkg_config("--cflags", "--libs"))
        self.assertIn("out 0x3f80", output)


class Subproject(unittest.TestCase):
    def test_consumer(self):
        with tempfile.TemporaryDirectory() as root:
            project, build = os.path.join(root, "consumer"), os.path.join(root, "build")
            shutil.copytree(os.path.join(HERE, "consumer"), project)
            os.mkdir(os.path.join(project, "subprojects"))
            os.symlink(SOURCE, os.path.join(project, "subprojects", "sparsemla"))
            run("meson", "setup", "--buildtype=debug", build, project)
            run("meson", "test", "-C", build)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
