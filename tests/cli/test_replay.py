# SPDX-License-Identifier: Apache-2.0
"""Calls that the library dumps on the host backend, run again by the tool."""
import json
import os
import random
import struct
import subprocess
import unittest

from tool import ARGUMENTS, ToolTest


def contents(path):
    with open(path, "rb") as file:
        return file.read()


def split(data):
    size, = struct.unpack("<Q", data[:8])
    return json.loads(data[8:8 + size]), data[8 + size:]


def joined(header, tensors):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + tensors


class Replay(ToolTest):
    def dump(self, *arguments, **environment):
        run = subprocess.run([ARGUMENTS.dump_calls, *arguments], capture_output=True, text=True,
                             env={**os.environ, **environment})
        self.assertEqual(run.returncode, 0, run)
        return run.stderr

    def setUp(self):
        super().setUp()
        self.folder = os.path.join(self.root, "dump", "here")
        self.bad = os.path.join(self.root, "bad.safetensors")

    def files(self):
        return [os.path.join(self.folder, name) for name in sorted(os.listdir(self.folder))]

    def replay(self, path, status=0):
        run = self.run_tool("replay", path, "--backend", "host", "--json")
        self.assertEqual(run.returncode, status, run)
        return run

    def write(self, data):
        with open(self.bad, "wb") as file:
            file.write(data)
        return self.bad

    def test_all_calls(self):
        self.dump(self.folder)
        self.assertEqual(len(self.files()), 16)
        for path in self.files():
            self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
            row, = json.loads(self.replay(path).stdout)
            self.assertEqual((row["compared_with"], row["differing"], row["due"], row["result"]),
                             ("stored", 0, "same bits", "pass"))

    def test_only_touched_records(self):
        self.dump(self.folder)
        header, _ = split(contents(self.files()[0]))
        pages = int(header["__metadata__"]["main.num_slots"])
        self.assertEqual(header["main.rows"]["shape"][0], pages)
        self.assertLess(pages, 150)

    def test_environment(self):
        log = self.dump(SPARSEMLA_DUMP=self.folder, SPARSEMLA_DUMP_WHEN="fault")
        self.assertEqual(len(self.files()), 13)
        self.assertEqual(log.count("a call was dumped to"), 13)
        for path in self.files():
            self.assertGreater(int(split(contents(path))[0]["__metadata__"]["faults"]), 0)

    def test_directory_of_others(self):
        os.makedirs(self.folder)
        os.chmod(self.folder, 0o777)
        self.assertIn("cannot be dumped", self.dump(self.folder))
        self.assertEqual(self.files(), [])

    def test_changed_output(self):
        self.dump(self.folder)
        header, tensors = split(contents(self.files()[0]))
        token, head, dim = 1, 7, 345
        dims = header["out"]["shape"]
        at = header["out"]["data_offsets"][0] + 4 * ((token * dims[1] + head) * dims[2] + dim)
        changed = tensors[:at] + bytes([tensors[at] ^ 1]) + tensors[at + 1:]
        row, = json.loads(self.replay(self.write(joined(header, changed)), 1).stdout)
        self.assertEqual((row["token"], row["head"], row["dim"], row["differing"], row["result"]),
                         (token, head, dim, 1, "FAIL"))

    def test_missing_output(self):
        self.dump(self.folder)
        header, tensors = split(contents(self.files()[0]))
        del header["out"]
        row, = json.loads(self.replay(self.write(joined(header, tensors))).stdout)
        self.assertEqual(row["compared_with"], "host backend")

    def test_without_gpu(self):
        self.dump(self.folder)
        self.fails(77, "finds no device", "replay", self.files()[0])

    def refused(self, data):
        run = self.run_tool("replay", self.write(data), "--backend", "host")
        self.assertIn(run.returncode, (0, 1), run)
        self.assertNotIn("Sanitizer", run.stderr)
        return run

    def test_truncated(self):
        self.dump(self.folder)
        data = contents(self.files()[0])
        for size in [0, 7, 8, 9, 100, len(data) // 2, len(data) - 1]:
            run = self.refused(data[:size])
            self.assertEqual(run.returncode, 1, size)
            self.assertIn("bad.safetensors: ", run.stderr)
        self.fails(1, "No such file", "replay", self.root + "/none", "--backend", "host")

    def test_altered(self):
        """Every number of the metadata replaced in turn: refused, or the outputs differ, and nothing else happens."""
        self.dump(self.folder)
        header, tensors = split(contents(self.files()[1]))
        for key in header["__metadata__"]:
            for value in "-1", "7", "9223372036854775807":
                altered = {**header, "__metadata__": {**header["__metadata__"], key: value}}
                self.refused(joined(altered, tensors))
        for name in header:
            if name != "__metadata__":
                altered = {**header, name: {**header[name], "shape": [1], "data_offsets": [0, 1], "dtype": "U8"}}
                self.assertEqual(self.refused(joined(altered, tensors)).returncode, 1, name)

    def test_random_bytes(self):
        self.dump(self.folder)
        data = contents(self.files()[3])
        size, = struct.unpack("<Q", data[:8])
        numbers = random.Random(1)
        for _ in range(40):
            at = numbers.randrange(8 + size)
            self.refused(data[:at] + bytes([numbers.randrange(256)]) + data[at + 1:])


if __name__ == "__main__":
    unittest.main(argv=["test_replay.py"])
