# SPDX-License-Identifier: Apache-2.0
"""The tool without a GPU and without compiling anything."""
import os
import re
import subprocess
import unittest

from tool import ARGUMENTS, NO_NVRTC, ToolTest

COMMANDS = "info", "warm", "explain", "verify", "bench", "replay", "cache"
MODELS = "glm-5", "glm-5.3-flash", "deepseek-v3.2", "deepseek-v4-flash", "deepseek-v4-pro", "llama.cpp"
FORMATS = "fp8_ds_mla", "fp8_ds_mla_nope", "bf16", "f16", "e4m3", "v4", "q8_0"


def read(*path):
    with open(os.path.join(ARGUMENTS.source, *path)) as file:
        return file.read()


class Usage(ToolTest):
    def wrong(self, sentence, *arguments):
        run = self.fails(2, sentence, *arguments)
        self.assertEqual(run.stdout, "")

    def test_help(self):
        text = self.output("--help")
        for command in COMMANDS:
            self.assertRegex(text, rf"(?m)^  {command} ")
            self.assertTrue(self.output(command, "--help").startswith(f"Usage: sparsemla {command}"))

    def test_version(self):
        header = read("include", "sparsemla", "sparsemla.h")
        numbers = re.findall(r"#define SPARSE_MLA_VERSION_\w+ (\d+)", header)
        self.assertEqual(self.output("--version"), f"sparsemla {'.'.join(numbers)}\n")

    def test_unknown(self):
        self.wrong("Usage: sparsemla COMMAND")
        self.wrong('the command is "frob"', "frob")
        self.wrong('the option is "--frob"', "--frob")
        for command in COMMANDS:
            words = {"cache": ["list"], "replay": ["file"]}.get(command, [])
            self.wrong('the option is "--frob"', command, *words, "--frob")
            self.wrong(f"Usage: sparsemla {command}", command, *words, "--frob")
            self.wrong('"frob" is one word too many', command, *words, "frob")

    def test_options_of_other_commands(self):
        self.wrong('the option is "--arch"', "info", "--arch", "sm_90")
        self.wrong('the option is "--share"', "cache", "list", "--share")

    def test_other_spellings(self):
        self.wrong('the option is "-x"', "info", "-x")
        self.wrong('the option is "-x"', "cache", "list", "-xy")
        self.wrong('the option is "-j"', "info", "-j")
        self.wrong('the option is "--json=5"', "info", "--json=5")
        self.assertEqual(self.output("info", "--js", "--cache=" + self.cache), self.output("info", "--json", "--cache",
                                                                                           self.cache))
        self.wrong('"x" is one word too many', "info", "--", "x")

    def test_values(self):
        warm = "warm", "--model", "glm-5", "--arch"
        self.wrong('--model is "gpt"; allowed: ' + ", ".join(MODELS), "warm", "--model", "gpt")
        for arch in "120", "sm_", "sm_1x0", "sm_9", "sm_1200", "sm_90a", "", "sm_90,":
            self.wrong("allowed: sm_80 and higher, as in sm_120", *warm, arch)
        for heads in "0", "129", "-8", "8x", "", "8,,16", "99999999999999999999":
            self.wrong("allowed: 1 to 128", *warm, "sm_90", "--heads", heads)
        self.wrong("names more than 16", *warm, "sm_90", "--heads", ",".join("8" * 17))
        self.wrong('--format is "fp4"; allowed: ' + ", ".join(FORMATS), *warm, "sm_90", "--format", "bf16,fp4")
        self.wrong('--q-dtype is "fp8"; allowed: bf16, f16, f32', *warm, "sm_90", "--q-dtype", "fp8")
        self.wrong('--topk is "0"; allowed: 1 to 1048576', *warm, "sm_90", "--topk", "0")
        self.wrong('--cache is ""; allowed: a path', *warm, "sm_90", "--cache", "")
        self.wrong('--tokens is "0"; allowed: 1 to 1048576', "bench", "--model", "glm-5", "--tokens", "0")
        self.wrong('--backend is "tpu"; allowed: cuda, host', "verify", "--backend", "tpu")
        self.wrong('--profile is "sm70"; allowed: auto, sm80', "verify", "--profile", "sm70")
        self.wrong("--model lacks its value", "explain", "--model")

    def test_missing(self):
        self.wrong("--model is missing", "warm", "--arch", "sm_90")
        self.wrong("--arch is missing", "warm", "--model", "glm-5")
        for command in "explain", "bench":
            self.wrong("--model is missing", command)
        for words in [], ["frob"], [""], ["lis"]:
            self.wrong("allowed: list,check,clear", "cache", *words)


class Pages(ToolTest):
    """The manual page and the completion name what --help names."""

    def options(self, command):
        return re.findall(r"(?m)^  (--[a-z-]+) ", self.output(command, "--help"))

    def test_manual(self):
        page = read("man", "sparsemla.1").replace("\\-", "-")
        for word in [*MODELS, *FORMATS]:
            self.assertRegex(page, rf"[ \"]{re.escape(word)}[ \"\n]")
        for command in COMMANDS:
            self.assertRegex(page, rf"(?m)^\.B {command}\b")
            for option in self.options(command):
                self.assertRegex(page, rf'(?m)^\.BI? "?{option}\b')

    def test_manual_is_clean(self):
        try:
            run = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z", os.path.join(ARGUMENTS.source, "man/sparsemla.1")],
                                 capture_output=True, text=True)
        except FileNotFoundError:
            self.skipTest("no groff")
        self.assertEqual((run.returncode, run.stderr), (0, ""))

    def complete(self, *words):
        script = ('source "$1"; shift; COMP_WORDS=(sparsemla "$@"); COMP_CWORD=$#; _sparsemla; '
                  'printf "%s\\n" "${COMPREPLY[@]}"')
        path = os.path.join(ARGUMENTS.source, "src/cli/completion.bash")
        run = subprocess.run(["bash", "-c", script, "bash", path, *words], capture_output=True, text=True)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        return run.stdout.split()

    def test_completion(self):
        self.assertEqual(self.complete(""), [*COMMANDS, "--help", "--version"])
        for command in COMMANDS:
            self.assertEqual(self.complete(command, "--"), self.options(command))
        self.assertEqual(self.complete("cache", ""), ["list", "check", "clear", *self.options("cache")])
        self.assertEqual(self.complete("warm", "--model", ""), list(MODELS))
        self.assertEqual(self.complete("warm", "--format", ""), list(FORMATS))
        self.assertEqual(self.complete("warm", "--arch", "sm_90,sm_12"), ["sm_90,sm_120", "sm_90,sm_121"])


class NoGpu(ToolTest):
    sentence = "the CUDA driver finds no device"

    def test_info(self):
        for arguments in {}, NO_NVRTC:
            text = self.output("info", **arguments)
            self.assertIn(self.sentence, text)
            data = self.data("info", **arguments)
            self.assertEqual(data["device"], {"available": False, "reason": self.sentence})
            self.assertEqual(data["cache"], {"directory": self.root + "/.cache/sparsemla", "entries": 0, "bytes": 0})
            self.assertEqual(data["supported"]["cuda_backend"], "no: " + self.sentence)
            self.assertEqual(data["supported"]["host_backend"], "yes")
        self.assertEqual(os.listdir(self.root), [])

    def test_info_without_nvrtc(self):
        data = self.data("info", **NO_NVRTC)
        self.assertFalse(data["compiler"]["available"])
        self.assertIn("/nonexistent/libnvrtc.so", data["compiler"]["reason"])
        self.assertIn("/nonexistent/libnvrtc.so", data["supported"]["warm"])

    def test_not_here(self):
        for command in ["explain", "--model", "glm-5"], ["verify"], ["bench", "--model", "glm-5"]:
            for json in [], ["--json"]:
                run = self.fails(77, f"sparsemla {command[0]}: {self.sentence}\n", *command, *json)
                self.assertEqual(run.stdout, "")

    def test_warm_without_nvrtc(self):
        self.fails(77, "SPARSEMLA_NVRTC is /nonexistent/libnvrtc.so", "warm", "--model", "glm-5", "--arch", "sm_120",
                   "--cache", self.cache, **NO_NVRTC)
        self.fails(77, "options.nvrtc_path is /nothing", "warm", "--model", "glm-5", "--arch", "sm_120", "--cache",
                   self.cache, "--nvrtc", "/nothing")

    def test_warm_refused(self):
        warm = "warm", "--model", "glm-5", "--cache", self.cache, "--arch"
        self.fails(1, 'target is "sm_75"; sm_80 or higher is needed', *warm, "sm_75")
        self.fails(1, "fp8_v4 has 448", *warm, "sm_90", "--format", "v4")
        os.mkdir(self.cache)
        os.chmod(self.cache, 0o777)
        self.fails(1, f"the cache directory {self.cache} cannot be used", *warm, "sm_90")

    def test_cache_directory(self):
        for expected, environment in (
                ("/.cache/sparsemla", {}),
                ("/xdg/sparsemla", {"XDG_CACHE_HOME": self.root + "/xdg"}),
                ("/own", {"XDG_CACHE_HOME": self.root + "/xdg", "SPARSEMLA_CACHE_DIR": self.root + "/own"})):
            self.assertEqual(self.data("info", **environment)["cache"]["directory"], self.root + expected)
            self.assertEqual(self.data("info", "--cache", self.cache, **environment)["cache"]["directory"], self.cache)
        relative = self.data("info", XDG_CACHE_HOME="relative")
        self.assertEqual(relative["cache"]["directory"], self.root + "/.cache/sparsemla")
        self.assertIsNone(self.data("info", HOME="")["cache"]["directory"])
        for action in "list", "check", "clear":
            self.fails(1, "there is no cache directory", "cache", action, HOME="")
        self.fails(1, "there is no cache directory", "warm", "--model", "glm-5", "--arch", "sm_90", HOME="")

    def test_empty_cache(self):
        self.assertEqual(self.data("cache", "list", "--cache", self.cache), [])
        self.assertEqual(self.output("cache", "list", "--cache", self.cache), self.cache + ": 0 entries, 0 bytes\n")
        self.assertEqual(self.data("cache", "check", "--cache", self.cache)["damaged"], 0)
        self.assertEqual(self.data("cache", "clear", "--cache", self.cache)["deleted"], 0)
        self.assertFalse(os.path.exists(self.cache))

    def test_odd_path(self):
        name = self.root + '/a "b"\\c\n\t\x01é'
        self.assertEqual(self.data("info", "--cache", name)["cache"]["directory"], name)

    def test_untrusted_cache(self):
        os.mkdir(self.cache)
        os.chmod(self.cache, 0o777)
        for action in "list", "check", "clear":
            self.fails(1, "cannot be read", "cache", action, "--cache", self.cache)
        self.assertIn("cannot be read", self.data("info", "--cache", self.cache)["cache"]["reason"])

    def test_full_output(self):
        with open("/dev/full", "w") as full:
            run = subprocess.run([ARGUMENTS.tool, "info"], stdout=full, stderr=subprocess.PIPE, text=True,
                                 env={**os.environ, "HOME": self.root})
        self.assertEqual((run.returncode, run.stderr), (1, "sparsemla info: standard output cannot be written\n"))


class Host(ToolTest):
    def verify(self, **environment):
        run = self.run_tool("verify", "--backend", "host", **environment)
        rows = [line.split() for line in run.stdout.splitlines()]
        self.assertEqual(rows[0][-1], "result")
        return run, rows[1:-1]

    def test_verify(self):
        run, rows = self.verify()
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertEqual({row[1] for row in rows}, set(FORMATS))
        self.assertEqual({row[-1] for row in rows}, {"pass"})
        self.assertFalse(os.path.exists(self.root + "/.cache"))
        data = self.data("verify", "--backend", "host")
        self.assertEqual([row["result"] for row in data], ["pass"] * len(rows))

    def test_verify_finds_mistakes(self):
        if not ARGUMENTS.preload:
            self.skipTest("calls of the library cannot be replaced in this build")
        for wrong in "out", "nan", "lse", "records":
            run, rows = self.verify(LD_PRELOAD=ARGUMENTS.preload, WRONG=wrong)
            self.assertEqual(run.returncode, 1, run)
            self.assertEqual([row[-1] for row in rows].count("FAIL"), 1, rows)
            self.assertIn(f"{len(rows) - 1} of {len(rows)} passed", run.stdout)
        self.assertEqual([row[-2] for row in rows].count("differ"), 1, rows)

    def test_bench(self):
        data = self.data("bench", "--model", "glm-5.3-flash", "--backend", "host", "--tokens", "1,2", "--format",
                         "fp8_ds_mla_nope", "--heads", "1")
        self.assertEqual([(row["heads"], row["tokens"], row["topk"]) for row in data],
                         [(1, 1, "2051"), (1, 2, "2051"), (1, 1, "2176"), (1, 2, "2176")])
        self.assertGreater(min(row["microseconds"] for row in data), 0)
        for model in MODELS:
            text = self.output("bench", "--model", model, "--backend", "host", "--heads", "1", "--topk", "16")
            self.assertIn(model, text)

    def test_refused_call(self):
        self.fails(1, "fp8_v4 has 448", "bench", "--model", "glm-5", "--backend", "host", "--format", "v4")


class FakeGpu(ToolTest):
    """On a driver that computes nothing."""

    def test_info(self):
        data = self.data("info", fake_cc=120, **NO_NVRTC)
        self.assertEqual(data["device"], {"available": True, "name": 'Fake "GPU"', "compute_capability": "12.0",
                                          "multiprocessors": 170, "shared_bytes_per_block": 101376, "driver": "13.0"})
        self.assertEqual(data["supported"]["cuda_backend"], "yes")
        for model in MODELS:
            self.assertEqual(data["supported"][model], "no: it is in no cache, and there is no NVRTC to compile it")

    def test_info_of_an_old_gpu(self):
        supported = self.data("info", fake_cc=75)["supported"]
        self.assertIn("8.0 or more is needed", supported["cuda_backend"])
        self.assertIn("8.0 or more is needed", supported["glm-5"])

    def test_explain(self):
        data = self.data("explain", "--model", "glm-5", "--heads", "8,64", "--tokens", "1,256", fake_cc=120)
        self.assertEqual([(plan["format"], plan["heads"], plan["tokens"]) for plan in data],
                         [(f, h, t) for f in ("fp8_ds_mla", "bf16") for h in (8, 64) for t in (1, 256)])
        for plan in data:
            self.assertRegex(plan["variant"], r"^sparse_mla_decode_\w+_sm120$")
            self.assertEqual(plan["grid_x"], plan["tokens"])
            self.assertLessEqual(plan["shared_bytes_per_block"], 101376)
            self.assertEqual(plan["kernel"], "would be compiled")
        fp8 = [(plan["limit"], plan["predicted_us"]) for plan in data if plan["format"] == "fp8_ds_mla"]
        self.assertEqual(fp8, [("latency", 14.3), ("memory", 231), ("latency", 36), ("memory", 384)])
        text = self.output("explain", "--model", "glm-5", "--format", "bf16", "--tokens", "1,256", fake_cc=120)
        self.assertEqual(text.count("variant"), 2)
        self.assertEqual(text.count("\n\n"), 1)

    def test_every_model(self):
        for model in MODELS:
            for cc, shared in (80, 166912), (89, 101376), (90, 232448), (120, 101376):
                self.assertGreater(len(self.data("explain", "--model", model, fake_cc=cc, fake_shared=shared)), 0)

    def test_profile(self):
        explain = "explain", "--model", "glm-5", "--format", "bf16", "--profile"
        plan, = self.data(*explain, "sm120", fake_cc=90, fake_shared=232448)
        self.assertTrue(plan["variant"].endswith("_sm120"))
        self.fails(1, "cannot run its instructions", *explain, "sm120", fake_cc=89)

    def test_refused_call(self):
        run = self.fails(1, "fp8_v4 has 448", "explain", "--model", "glm-5", "--format", "v4", "--json", fake_cc=90,
                         fake_shared=232448)
        self.assertEqual(run.stdout.split(), ["[", "]"])

    def test_needs_a_compiler(self):
        for command in ["verify"], ["bench", "--model", "glm-5"]:
            self.fails(77, "/nonexistent/libnvrtc.so", *command, fake_cc=120, **NO_NVRTC)


if __name__ == "__main__":
    unittest.main(argv=["test_cli.py"])
