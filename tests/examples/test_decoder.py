# SPDX-License-Identifier: Apache-2.0
"""Runs the decoder example: the right table for a right file, a sentence and status 1 for a wrong one."""
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

DECODER = sys.argv[1]
SHAPES = {
    "q_nope": (3, 5, 32), "q_rope": (3, 5, 64), "latent": (70, 512), "k_rope": (70, 64), "w_uk": (5, 32, 512),
    "w_uv": (5, 48, 512), "attention": (3, 5, 48), "topk": (3, 9),
}


def tensors(change=None):
    """Zero queries and equal rows of ones: every head's attention is the row sums of w_uv, here 512 / 1024."""
    values = {"latent": 1.0, "w_uv": 1 / 1024, "attention": 0.5}
    header, data = {}, b""
    for name, shape in SHAPES.items():
        count = 1
        for dim in shape:
            count *= dim
        if name == "topk":
            raw = struct.pack(f"<{count}i", *([0, 69, 3, -1, -1, 7, 7, 64, 12] * 3))
        else:
            raw = struct.pack("<f", values.get(name, 0.0)) * count
        dtype = "I32" if name == "topk" else "F32"
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    if change:
        change(header)
    return header, data


def pack(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


class Decoder(unittest.TestCase):
    def decode(self, content, *options):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "file.safetensors")
            with open(path, "wb") as file:
                file.write(content)
            self.path = path
            return subprocess.run([DECODER, path, "--backend", "host", *options], capture_output=True, text=True,
                                  timeout=60)

    def refused(self, content, sentence):
        run = self.decode(content)
        self.assertEqual(run.returncode, 1, run)
        self.assertIn(sentence, run.stderr)
        self.assertTrue(run.stderr.startswith(self.path + ": "), run.stderr)
        self.assertEqual(run.stderr.count("\n"), 1, run.stderr)

    def refused_header(self, change, sentence):
        self.refused(pack(*tensors(change)), sentence)

    def test_golden(self):
        run = subprocess.run([DECODER, "--backend", "host"], capture_output=True, text=True, timeout=100)
        self.assertEqual(run.returncode, 0, run)
        self.assertEqual(run.stderr, "")
        rows = [line.split() for line in run.stdout.splitlines() if len(line.split()) == 5 and line.split()[0] in "0123"]
        self.assertEqual([row[:2] for row in rows], [["0", "2048"], ["1", "2048"], ["2", "2048"], ["3", "1501"]] * 2)
        self.assertEqual([row[2] for row in rows], ["0.733", "0.520", "0.802", "0.422"] * 2)
        self.assertEqual(run.stdout.count(": ok"), 2)
        self.assertEqual(run.stdout.count("us per token"), 2)

    def test_other_sizes(self):
        for kv in "fp8", "bf16":
            run = self.decode(pack(*tensors()), "--kv", kv)
            self.assertEqual(run.returncode, 0, run)
            self.assertIn("3 tokens, 5 heads, 70 keys, top-k 9", run.stdout)

    def test_mismatch(self):
        header, data = tensors()
        begin = header["attention"]["data_offsets"][0]
        run = self.decode(pack(header, data[:begin] + struct.pack("<f", 0.6) + data[begin + 4:]), "--kv", "bf16")
        self.assertEqual(run.returncode, 1, run)
        self.assertIn("MISMATCH", run.stdout)

    def test_nan_is_a_mismatch(self):
        header, data = tensors()
        begin = header["attention"]["data_offsets"][0]
        run = self.decode(pack(header, data[:begin] + struct.pack("<f", float("nan")) + data[begin + 4:]))
        self.assertEqual(run.returncode, 1, run)

    def test_usage(self):
        self.assertEqual(subprocess.run([DECODER, "--help"], capture_output=True).returncode, 0)
        for arguments in ["--kv", "fp4"], ["--backend", "tpu"], ["--nonsense"], ["one", "two"]:
            self.assertEqual(subprocess.run([DECODER, *arguments], capture_output=True).returncode, 2)

    def test_no_file(self):
        run = subprocess.run([DECODER, "/nonexistent/file"], capture_output=True, text=True)
        self.assertEqual((run.returncode, run.stderr), (1, "/nonexistent/file: No such file or directory\n"))

    def test_truncated(self):
        whole = pack(*tensors())
        for size, sentence in (0, "too few"), (7, "too few"), (100, "header of"), (len(whole) - 1, "do not lie within"):
            self.refused(whole[:size], sentence)

    def test_header_length(self):
        header, data = tensors()
        body = pack(header, data)[8:]
        for length in 2**64 - 1, 2**63, 2**32, len(body) + 1:
            self.refused(struct.pack("<Q", length) + body, "header of")
        for length in 0, 1, 20:
            self.refused(struct.pack("<Q", length) + body, "not a JSON object")

    def test_header_text(self):
        for text in b"", b"[]", b"null", b"{", b'{"a":1}}', b"[" * 100000, b"\xff" * 64:
            self.refused(pack(text, b""), "JSON object" if text != b'{"a":1}}' else "no tensor named")

    def test_missing_tensor(self):
        for name in SHAPES:
            self.refused_header(lambda header: header.pop(name), f"no tensor named {name}")

    def test_wrong_entry(self):
        for entry in None, 5, [], {}, "F32":
            self.refused_header(lambda header: header.update(latent=entry), "latent: unknown dtype")

    def test_offsets(self):
        for offsets in ([-4, 0], [0, 2**62], [1e300, 1e301], [8, 4], [0.5, 4.5], ["0", "4"], [0], [0, 1, 2], None,
                        [2**53, 2**53 + 4]):
            self.refused_header(lambda header: header["w_uk"].update(data_offsets=offsets), "do not lie within")

    def test_shape(self):
        for shape in None, [1, 1, 1, 1, 1], [-1, 70, 512], [1.5, 2], ["70", 512], [2**40, 2**40]:
            self.refused_header(lambda header: header["latent"].update(shape=shape), "the shape is not")
        for shape in [70, 511], [2**31, 2**31], [0, 512], [2**53, 1]:
            self.refused_header(lambda header: header["latent"].update(shape=shape), "do not fit")
        self.refused_header(lambda header: header["latent"].update(shape=[70 * 512]), "latent has 1 dimensions, not 2")
        self.refused_header(lambda header: header["k_rope"].update(shape=[35, 128]), "dimension 0 of k_rope is 35")

    def test_empty_dimension(self):
        empty = {"dtype": "F32", "shape": [3, 5, 0], "data_offsets": [0, 0]}
        change = {"q_nope": empty, "w_uk": dict(empty, shape=[5, 0, 512])}
        self.refused_header(lambda header: header.update(change), "0 nope dims")

    def test_dtype(self):
        for dtype, sentence in ("F31", "unknown dtype"), ("I32", "not F32 or BF16"), ("F64", "do not fit"):
            self.refused_header(lambda header: header["q_nope"].update(dtype=dtype), sentence)
        self.refused_header(lambda header: header["topk"].update(dtype="F32"), "topk is F32, not I32")

    def test_scale(self):
        for scale in "", "x", "1x", "nan", "inf":
            self.refused_header(lambda header: header.update(__metadata__={"scale": scale}), "not a number")
        self.assertEqual(self.decode(pack(*tensors(lambda header: header.update(__metadata__={"scale": "0.1"})))).returncode,
                         0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
