# SPDX-License-Identifier: Apache-2.0
"""Warms a directory with NVRTC and uses it: as a cache, as a seed, damaged. Without NVRTC: exit status 77."""
import os
import pty
import shutil
import subprocess
import sys
import tempfile
import unittest

from tool import ARGUMENTS, NO_NVRTC, ToolTest

SM120 = ["warm", "--model", "glm-5", "--arch", "sm_120", "--heads", "8"]
TOOLS = {"sparse_mla_cache_append", "sparse_mla_merge", "sparse_mla_map_slots"}


class Warm(ToolTest):
    @classmethod
    def setUpClass(cls):
        cls.warmed = os.path.join(tempfile.mkdtemp(), "warmed")
        case = ToolTest()
        case.root = os.path.dirname(cls.warmed)
        cls.result = case.run_tool(*SM120, "--cache", cls.warmed)
        if cls.result.returncode == 77:
            print(cls.result.stderr)
            sys.exit(77)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(os.path.dirname(cls.warmed))

    def setUp(self):
        super().setUp()
        shutil.copytree(self.warmed, self.cache)
        os.chmod(self.cache, 0o700)

    def entries(self, *arguments):
        return self.data("cache", "list", "--cache", self.cache, *arguments)

    def state(self):
        files = {name: os.stat(os.path.join(self.cache, name)) for name in os.listdir(self.cache)}
        return {name: (status.st_mtime_ns, status.st_size) for name, status in files.items()}

    def test_output(self):
        self.assertEqual((self.result.returncode, self.result.stderr), (0, ""), self.result)
        lines = self.result.stdout.splitlines()
        self.assertEqual([line.split()[:2] for line in lines[:-1]],
                         [["sm_120", "fp8_ds_mla"], ["sm_120", "bf16"], ["sm_120", "append,"]])
        self.assertRegex(lines[-1], r"warmed: 5 kernels, \d+ bytes$")

    def test_list(self):
        entries = self.entries()
        self.assertEqual(len(entries), 5)
        for entry in entries:
            self.assertEqual((entry["state"], entry["target"]), ("ok", "sm_120"))
            self.assertEqual(entry["bytes"], os.path.getsize(os.path.join(self.cache, entry["file"])))
        self.assertLess(TOOLS, {entry["variant"] for entry in entries})
        text = self.output("cache", "list", "--cache", self.cache)
        self.assertEqual(text.count("sm_120 "), 5)
        info = self.data("info", "--cache", self.cache)["cache"]
        self.assertEqual((info["entries"], info["bytes"]), (5, sum(entry["bytes"] for entry in entries)))

    def test_again_without_nvrtc(self):
        text = self.output(*SM120, "--cache", self.cache, **NO_NVRTC)
        self.assertIn(": 5 kernels", text)

    def test_as_a_seed(self):
        """Found from another, empty cache, with neither NVRTC nor a write to the seed."""
        os.remove(self.cache + "/lock")
        os.chmod(self.cache, 0o500)
        before = self.state()
        seed = {"SPARSEMLA_SEED_PATH": "/nonexistent:" + self.cache, **NO_NVRTC}
        explain = "explain", "--model", "glm-5", "--heads", "8", "--cache", self.root + "/empty"
        self.assertEqual([plan["kernel"] for plan in self.data(*explain, fake_cc=120, **seed)], ["on disk"] * 2)
        self.assertEqual([plan["kernel"] for plan in self.data(*explain, fake_cc=121, **seed)], ["would be compiled"] * 2)
        supported = self.data("info", "--cache", self.root + "/empty", fake_cc=120, **seed)["supported"]
        self.assertEqual(supported["glm-5"], "yes, from the cache")
        self.assertFalse(os.path.exists(self.root + "/empty"))
        self.fails(77, "/nonexistent/libnvrtc.so", *SM120, "--cache", self.root + "/copy", **seed)
        self.assertEqual(self.state(), before)
        os.chmod(self.cache, 0o700)

    def test_bench_from_a_seed(self):
        """The fake driver loads any kernel and launches none: all else of `bench` runs."""
        row, = self.data("bench", "--model", "glm-5", "--format", "bf16", "--heads", "8", "--cache", self.root + "/empty",
                         fake_cc=120, SPARSEMLA_SEED_PATH=self.cache, **NO_NVRTC)
        self.assertEqual((row["format"], row["heads"], row["tokens"]), ("bf16", 8, 1))

    def test_share(self):
        for name in os.listdir(self.cache):
            os.chmod(os.path.join(self.cache, name), 0o600)
        self.output(*SM120, "--cache", self.cache, "--share", **NO_NVRTC)
        self.assertEqual(os.stat(self.cache).st_mode & 0o777, 0o755)
        for entry in self.entries():
            self.assertEqual(os.stat(os.path.join(self.cache, entry["file"])).st_mode & 0o777, 0o644)

    @unittest.skipIf(os.getuid() != 0, "not root")
    def test_seed_of_root_for_another_user(self):
        self.output(*SM120, "--cache", self.cache, "--share", **NO_NVRTC)
        os.chmod(self.root, 0o755)
        try:
            run = self.run_tool("explain", "--model", "glm-5", "--cache", self.root + "/none", "--json", fake_cc=120,
                                user=65534, SPARSEMLA_SEED_PATH=self.cache)
        except PermissionError:
            self.skipTest("another user may not run the tool here")
        if run.returncode == 127:
            self.skipTest(run.stderr)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertEqual(run.stdout.count("on disk"), 2)

    def test_damaged(self):
        victim, other = sorted(entry["file"] for entry in self.entries())[:2]
        with open(os.path.join(self.cache, victim), "r+b") as file:
            file.seek(-5, os.SEEK_END)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 1]))
        os.truncate(os.path.join(self.cache, other), 20)
        states = {entry["file"]: (entry["state"], entry["variant"]) for entry in self.entries()}
        self.assertEqual([states[victim], states[other]], [("unusable", None)] * 2)
        self.assertEqual([state for state, _ in states.values()].count("ok"), 3)
        run = self.fails(1, "", "cache", "check", "--cache", self.cache)
        self.assertIn("5 entries", run.stdout)
        self.assertIn("2 damaged", run.stdout)
        self.assertIn(victim, run.stdout)
        self.assertEqual(run.stdout.count("sm_120"), 0)
        run = self.run_tool("cache", "check", "--cache", self.cache, "--json")
        self.assertEqual(run.returncode, 1)
        self.assertIn('"damaged": 2', run.stdout)
        run = self.run_tool(*SM120, "--cache", self.cache)
        self.assertEqual(run.returncode, 0, run)
        self.assertEqual(run.stderr.count("is damaged and not used"), 2)
        self.assertEqual(self.data("cache", "check", "--cache", self.cache)["damaged"], 0)

    def test_check(self):
        self.assertEqual(self.output("cache", "check", "--cache", self.cache).count("\n"), 1)
        data = self.data("cache", "check", "--cache", self.cache)
        self.assertEqual((data["entries"], data["damaged"], data["other_version"]), (5, 0, 0))

    def test_clear(self):
        data = self.data("cache", "clear", "--cache", self.cache)
        self.assertEqual((data["directory"], data["deleted"]), (self.cache, 5))
        self.assertEqual(self.entries(), [])
        self.assertIn("0 entries deleted", self.output("cache", "clear", "--cache", self.cache))

    def test_progress_on_a_terminal(self):
        main, terminal = pty.openpty()
        run = subprocess.run([ARGUMENTS.tool, *SM120, "--cache", self.cache], stdout=subprocess.PIPE, stderr=terminal,
                             env={**os.environ, **NO_NVRTC}, timeout=60)
        os.close(terminal)
        shown = os.read(main, 1 << 16).decode()
        os.close(main)
        self.assertEqual(run.returncode, 0)
        self.assertIn("] 0 / 3  sm_120", shown)
        self.assertIn("] 2 / 3  sm_120", shown)
        self.assertTrue(shown.endswith("\r\x1b[K"))

    def test_verbose(self):
        run = self.run_tool(*SM120, "--cache", self.cache, "--verbose")
        self.assertEqual(run.returncode, 0)
        self.assertGreaterEqual(run.stderr.count("sparsemla warm: cache: hit"), 5, run.stderr)

    def test_unknown_architecture(self):
        self.fails(1, "cannot compile for sm_999; its architectures go from", "warm", "--model", "glm-5", "--arch", "sm_999",
                   "--cache", self.cache)


if __name__ == "__main__":
    unittest.main(argv=["test_warm.py"])
