# SPDX-License-Identifier: Apache-2.0
"""Uses the library as its users do, each time for a decode on the host whose values the program checks: installed and
found by pkg-config or CMake, where it was installed and moved from there; as a Meson subproject; and from a tarball.

test_package.py SOURCE BUILD installed|cmake|subproject|tarball
Exit status 77 (skipped): there is no cmake, or no git checkout to pack."""
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD, CHOSEN = sys.argv[1:4]
SKIPPED = 77
CONSUMER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "consumer")
CALLER_C, CALLER_CPP = (os.path.join(CONSUMER, name) for name in ("caller.c", "caller.cpp"))
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def attempt(*command, **environment):
    return subprocess.run(command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run(*command, **environment):
    result = attempt(*command, **environment)
    if result.returncode != 0:
        raise AssertionError(f"{' '.join(command)} exited with {result.returncode}:\n{result.stdout}")
    return result.stdout


def project_version():
    with open(os.path.join(BUILD, "meson-info", "intro-projectinfo.json")) as file:
        return json.load(file)["version"]


class InTree(unittest.TestCase):
    """With an installed tree, moved after the installation: nothing may remember where it was."""

    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.root)
        staged, cls.prefix = cls.root + "/staged", cls.root + "/moved"
        run("meson", "install", "-C", BUILD, "--no-rebuild", "--destdir", staged)
        (header,) = glob.glob(staged + "/**/sparsemla/sparsemla.h", recursive=True)
        prefix = os.path.dirname(os.path.dirname(os.path.dirname(header)))
        os.rename(prefix, cls.prefix)
        left = [name for _, _, names in os.walk(staged) for name in names]
        assert not left, f"installed outside the prefix: {left}"
        cls.libdir = os.path.dirname(cls.find("libsparsemla.so"))

    @classmethod
    def find(cls, name):
        (path,) = glob.glob(f"{cls.prefix}/**/{name}", recursive=True)
        return path

    def check(self, program, value):
        output = run(program, LD_LIBRARY_PATH=self.libdir)
        major, minor, patch = map(int, project_version().split("."))
        self.assertIn(f"version {10000 * major + 100 * minor + patch}, out {value} ", output)


class Installed(InTree):
    def pkg_config(self, *options):
        folder = os.path.dirname(self.find("sparsemla.pc"))
        return run("pkg-config", f"--define-variable=prefix={self.prefix}", *options, "sparsemla",
                   PKG_CONFIG_PATH=folder).split()

    def build(self, *command):
        program = os.path.join(self.root, "program")
        run(*command, "-o", program)
        return program

    def test_every_kind_of_file(self):
        for name in ("libsparsemla.so.0", "libsparsemla.a", "sparsemla-config-version.cmake"):
            self.find(name)

    def test_package_file(self):
        self.assertEqual(self.pkg_config("--modversion"), [project_version()])
        with open(self.find("sparsemla.pc")) as file:
            self.assertNotIn("Requires", file.read())
        self.assertEqual(set(self.pkg_config("--libs")), {"-L" + self.libdir, "-lsparsemla"})
        self.assertLessEqual({"-lsparsemla", "-lm", "-pthread"}, set(self.pkg_config("--libs", "--static")))

    def test_c(self):
        program = self.build("gcc", "-std=c11", *WARNINGS, CALLER_C, *self.pkg_config("--cflags", "--libs"))
        self.check(program, "0x4000")
        self.assertIn("[libsparsemla.so.0]", run("readelf", "-d", program))

    def test_static(self):
        flags = ["-l:libsparsemla.a" if flag == "-lsparsemla" else flag
                 for flag in self.pkg_config("--cflags", "--libs", "--static")]
        program = self.build("gcc", "-std=c11", *WARNINGS, CALLER_C, *flags)
        self.check(program, "0x4000")
        self.assertNotIn("libsparsemla", run("readelf", "-d", program))

    def test_cpp(self):
        self.check(self.build("g++", "-std=c++11", *WARNINGS, CALLER_CPP, *self.pkg_config("--cflags", "--libs")),
                   "0x3f80")

    def test_tool(self):
        if os.path.exists(os.path.join(BUILD, "src", "cli", "sparsemla")):
            tool = os.path.join(self.prefix, "bin", "sparsemla")
            self.assertIn(project_version(), run(tool, "--version", LD_LIBRARY_PATH=self.libdir))


class Cmake(InTree):
    def configure(self, wanted):
        folder = os.path.join(self.root, "cmake-" + wanted)
        return folder, attempt("cmake", "-S", CONSUMER, "-B", folder, f"-DCMAKE_PREFIX_PATH={self.prefix}",
                               f"-DWANTED={wanted}", "-DCMAKE_VERBOSE_MAKEFILE=ON")

    def test_caller(self):
        folder, result = self.configure(project_version())
        self.assertEqual(result.returncode, 0, result.stdout)
        run("cmake", "--build", folder)
        self.check(folder + "/caller.c.out", "0x4000")
        self.check(folder + "/caller.cpp.out", "0x3f80")

    def test_versions(self):
        major, minor, patch = map(int, project_version().split("."))
        self.assertEqual(self.configure(f"{major}.{minor}")[1].returncode, 0)
        for other in (f"{major}.{minor}.{patch + 1}", f"{major}.{minor + 1}", f"{major + 1}.0"):
            _, result = self.configure(other)
            self.assertNotEqual(result.returncode, 0, other)
            self.assertIn(f"version: {project_version()}", result.stdout)


class Subproject(unittest.TestCase):
    def test_consumer(self):
        with tempfile.TemporaryDirectory() as root:
            project, build = os.path.join(root, "consumer"), os.path.join(root, "build")
            shutil.copytree(CONSUMER, project)
            os.mkdir(os.path.join(project, "subprojects"))
            os.symlink(SOURCE, os.path.join(project, "subprojects", "sparsemla"))
            run("meson", "setup", "--buildtype=debug", build, project)
            run("meson", "test", "-C", build)


class Tarball(unittest.TestCase):
    def test_builds_and_tests_itself(self):
        with tempfile.TemporaryDirectory() as root:
            build = os.path.join(root, "dist")
            options = ["-Dexamples=false", "-Dtool=false"]
            # A build folder of its own: the one in use is not to be touched by a test.
            run("meson", "setup", *options, build, SOURCE)
            run("meson", "dist", "-C", build, "--no-tests", "--allow-dirty", "--formats", "xztar")
            name = "sparsemla-" + project_version()
            shutil.unpack_archive(f"{build}/meson-dist/{name}.tar.xz", root)
            run("meson", "setup", "--buildtype=debug", *options, root + "/build", f"{root}/{name}")
            run("meson", "test", "-C", root + "/build", "--suite", "unit")
            with open(root + "/build/meson-logs/testlog.json") as file:
                results = [json.loads(line)["result"] for line in file]
            self.assertGreater(len(results), 10)
            self.assertEqual(set(results) - {"OK", "SKIP"}, set())


def skip_reason():
    if CHOSEN == "cmake" and not shutil.which("cmake"):
        return "there is no cmake"
    if CHOSEN == "tarball" and not shutil.which("git"):
        return "there is no git"
    if CHOSEN == "tarball" and attempt("git", "-C", SOURCE, "ls-files", "--error-unmatch", "meson.build").returncode:
        return "this is no git checkout"
    return None


if __name__ == "__main__":
    if reason := skip_reason():
        print("skipped:", reason)
        sys.exit(SKIPPED)
    unittest.main(argv=[sys.argv[0], CHOSEN.capitalize()])
