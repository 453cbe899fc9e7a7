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

    def test_when(self):
        for word in "", "every":
            self.dump(SPARSEMLA_DUMP=os.path.join(self.root, "when" + word), SPARSEMLA_DUMP_WHEN=word)
            self.assertEqual(len(os.listdir(os.path.join(self.root, "when" + word))), 16)
        for word in "faults", "FAULT", "every,fault":
            log = self.dump(SPARSEMLA_DUMP=self.folder, SPARSEMLA_DUMP_WHEN=word)
            self.assertEqual(log, f'0 SPARSEMLA_DUMP_WHEN is "{word}"; allowed: every, fault; no call will be dumped\n')
            self.assertFalse(os.path.exists(self.folder))
        self.assertEqual(self.dump(SPARSEMLA_DUMP_WHEN="faults"), "")
        self.assertIn("a call was dumped", self.dump(self.folder, SPARSEMLA_DUMP_WHEN="faults"))

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
        run = self.replay(self.write(joined(header, changed)), 1)
        row, = json.loads(run.stdout)
        self.assertEqual((row["token"], row["head"], row["dim"], row["differing"], row["result"]),
                         (token, head, dim, 1, "FAIL"))
        own, stored = (struct.unpack("<f", data[at:at + 4])[0] for data in (tensors, changed))
        self.assertEqual(run.stderr, f"sparsemla replay: out[1, 7, 345] is {own:.9g}; stored: {stored:.9g}\n")

    def test_changed_lse(self):
        self.dump(self.folder)
        header, tensors = split(contents(self.files()[0]))
        at = header["lse"]["data_offsets"][0] + 4 * header["lse"]["shape"][1] + 1
        run = self.replay(self.write(joined(header, tensors[:at] + bytes([tensors[at] ^ 1]) + tensors[at + 1:])), 1)
        row, = json.loads(run.stdout)
        self.assertEqual((row["token"], row["head"], row["dim"], row["differing"]), (1, 0, "lse", 1))
        self.assertIn("sparsemla replay: lse[1, 0] is ", run.stderr)

    def test_changed_input(self):
        """The sign of a query, the exponent of a scale, a key, a length, a page: outputs differ."""
        self.dump(self.folder)
        for path, name, byte, mask in ((0, "q_latent", 1, 0x80), (0, "q_rope", 1, 0x80), (0, "sink", 3, 0x80),
                                       (0, "main.indices", 12, 2), (0, "main.lengths", 12, 32), (0, "main.rows", 515, 4),
                                       (1, "main.block_table", 0, 1)):
            header, tensors = split(contents(self.files()[path]))
            slot, = struct.unpack_from("<i", tensors, header["main.indices"]["data_offsets"][0] + 12)
            at = header[name]["data_offsets"][0] + byte + (656 * slot if name == "main.rows" else 0)
            with self.subTest(name):
                run = self.replay(self.write(joined(header, tensors[:at] + bytes([tensors[at] ^ mask]) + tensors[at + 1:])), 1)
                self.assertRegex(run.stderr, r"^sparsemla replay: (out\[\d+, \d+, \d+\]|lse\[\d+, \d+\]) is .*; stored: ")

    def test_missing_tensor(self):
        self.dump(self.folder)
        for path in self.files()[:2]:
            header, tensors = split(contents(path))
            names = header["__metadata__"]["tensors"].split()
            self.assertEqual({*names, "__metadata__"}, {*header})
            for name in names:
                altered = {other: value for other, value in header.items() if other != name}
                self.assertEqual(self.refused(joined(altered, tensors)).stderr,
                                 f"sparsemla replay: {self.bad}: no tensor named {name}\n")

    def test_other_dtype(self):
        self.dump(self.folder)
        header, tensors = split(contents(self.files()[1]))
        others = {"U8": "I8", "I32": "F32", "F32": "I32", "BF16": "F16", "F16": "BF16"}
        for name in header["__metadata__"]["tensors"].split():
            dtype = header[name]["dtype"]
            run = self.refused(joined({**header, name: {**header[name], "dtype": others[dtype]}}, tensors))
            self.assertEqual(run.stderr, f"sparsemla replay: {self.bad}: {name} is {others[dtype]}; it must be {dtype}\n")

    def test_without_outputs(self):
        """As after an error of the driver."""
        self.dump(self.folder)
        header, tensors = split(contents(self.files()[0]))
        del header["out"], header["lse"]
        header["__metadata__"]["tensors"] = header["__metadata__"]["tensors"].replace(" out lse", "")
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
        header, tensors = split(data)
        start = len(data) - len(tensors)
        for size in [0, 7, 8, 9, 100, start - 1]:
            run = self.refused(data[:size])
            self.assertEqual(run.returncode, 1, size)
            self.assertIn("bad.safetensors: ", run.stderr)
        for name, tensor in header.items():
            if name != "__metadata__":
                run = self.refused(data[:start + tensor["data_offsets"][1] - 1])
                self.assertEqual((run.returncode, run.stdout), (1, ""))
                self.assertIn(f"bad.safetensors: {name}: data_offsets do not lie within", run.stderr)
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
