# SPDX-License-Identifier: Apache-2.0
"""Runs the tool in an environment of its own; what the tests of the tool share."""
import argparse
import json
import os
import shutil
import subprocess
import tempfile
import unittest

parser = argparse.ArgumentParser()
parser.add_argument("--tool", required=True)
parser.add_argument("--source", required=True)
parser.add_argument("--fake-cuda", required=True)
parser.add_argument("--preload", default="")
parser.add_argument("--dump-calls")
ARGUMENTS = parser.parse_args()

NO_NVRTC = {"SPARSEMLA_NVRTC": "/nonexistent/libnvrtc.so"}


class ToolTest(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.cache = os.path.join(self.root, "cache")

    def tearDown(self):
        shutil.rmtree(self.root)

    def run_tool(self, *arguments, fake_cc=0, fake_shared=101376, user=None, **environment):
        """With a driver that finds no device, or one of compute capability fake_cc; home and cache are the test's."""
        inherited = {name: os.environ[name] for name in ("PATH", "SPARSEMLA_NVRTC", "LD_LIBRARY_PATH", "ASAN_OPTIONS",
                                                         "LSAN_OPTIONS", "UBSAN_OPTIONS") if name in os.environ}
        path = os.path.dirname(ARGUMENTS.fake_cuda) + ":" + inherited.pop("LD_LIBRARY_PATH", "")
        return subprocess.run([ARGUMENTS.tool, *arguments], capture_output=True, text=True, timeout=250,
                              errors="backslashreplace", stdin=subprocess.DEVNULL, user=user,
                              env={**inherited, "LD_LIBRARY_PATH": path.rstrip(":"), "HOME": self.root,
                                   "FAKE_CC": str(fake_cc), "FAKE_SHARED": str(fake_shared), **environment})

    def output(self, *arguments, **settings):
        run = self.run_tool(*arguments, **settings)
        self.assertEqual((run.returncode, run.stderr), (0, ""), run)
        return run.stdout

    def data(self, *arguments, **settings):
        return json.loads(self.output(*arguments, "--json", **settings))

    def fails(self, status, sentence, *arguments, **settings):
        run = self.run_tool(*arguments, **settings)
        self.assertEqual(run.returncode, status, run)
        self.assertIn(sentence, run.stderr)
        return run
