#!/usr/bin/env python3
"""scripts/bench-gpu up to the point where a GPU is needed: a whole run on the emulated GPU with tiny
models, steps that fail without losing the others, the archive, and what its report makes of recorded
numbers.

usage: test_bench_gpu.py BUILD EMULATED_DRIVER
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "scripts" / "bench-gpu"
DRIVER = sys.argv.pop()
BUILD = pathlib.Path(sys.argv.pop()).resolve()
sys.path.insert(0, str(ROOT / "scripts"))

import bench_gpu_models as models  # noqa: E402
import bench_gpu_pack as pack  # noqa: E402
import bench_gpu_report as report  # noqa: E402


# As llama-bench prints them: each test's time is in its numbers, and placing nothing by hand is slowest.
FAKE_PEER = """#!{python}
import json, sys
words = sys.argv[1:]
def after(name):
    return words[words.index(name) + 1] if name in words else ""
tests = [(int(p), 0) for p in after("-p").split(",") if p != "0"] + [(0, int(n)) for n in [after("-n")] if n != "0"]
tests += [tuple(map(int, after("-pg").split(",")))] if "-pg" in words else []
if "-ot" in words:
    sys.exit("no such tensor")
slow = 3 if "-ngl" in words and after("-ngl") != "99" else 1
print(json.dumps([{{"n_prompt": p, "n_gen": n, "samples_ns": [slow * 10**9, slow * (p + n) * 10**9, 10**12]}}
                  for p, n in tests]))
"""


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def bench(self, *words, driver=DRIVER):
        env = {**os.environ, "OATO_CUDA_DRIVER": driver, "OATO_CUDA_BLAS": driver}
        r = subprocess.run([str(w) for w in (SCRIPT, *words)], env=env, capture_output=True, text=True,
                           timeout=300, check=False)
        return r

    def trial(self, *words, **more):
        return self.bench("--run", "--quick", "--build", BUILD, "--work", self.folder, *words, **more)

    def content(self):
        with open(self.folder / "out/gpu.json", encoding="utf-8") as f:
            return json.load(f)


class Runs(Folder):
    def test_a_whole_run_on_the_emulated_gpu(self):
        r = self.trial()
        self.assertEqual(r.returncode, 0, r.stderr)
        steps = self.content()["steps"]
        self.assertEqual({s["state"] for s in steps.values()}, {"done"})
        self.assertEqual(set(steps), {"about", "tests", "kernels", "models", "logits", "agreement", "full-Q4_0",
                                      "hybrid-0.5"})
        self.assertGreater(steps["tests"]["result"]["test_cuda_ops"]["passed"], 5)
        self.assertLess(steps["logits"]["result"]["kl"], 0.0039)
        self.assertGreater(steps["hybrid-0.5"]["result"]["request_s"]["oato"], 0)
        self.assertTrue(0 < steps["hybrid-0.5"]["result"]["cpu_idle"] < 1)
        agreement = steps["agreement"]["result"]
        self.assertEqual(agreement["CPU"]["on_gpu"], 0)
        self.assertTrue(0 < agreement["both"]["on_gpu"] < agreement["GPU"]["on_gpu"] <= 1)
        for one in agreement.values():
            self.assertTrue(0 < one["kl"] < 0.0039 and one["same_bits"])
        text = (self.folder / "out/gpu.md").read_text(encoding="utf-8")
        self.assertIn("A trial", text)
        self.assertRegex(text, r"mul_mat/F16.* TFLOP/s, cuBLAS")
        for name in ("attention/F16", "top_k/", "listed/Q4_0", "columns/F16"):
            self.assertIn(f"| {name}", text)
        self.assertNotIn(str(self.folder), text + json.dumps(self.content()))
        xml.etree.ElementTree.parse(self.folder / "out/gpu.svg")
        refused = self.bench("--report", self.folder / "out")
        self.assertIn("no measurement", refused.stderr)
        self.assertEqual(refused.returncode, 1)
        # What is done is kept; what is not, is done anew.
        (self.folder / "steps/kernels.json").write_text('{"state": "failed", "why": "no luck"}')
        r = self.trial("--resume", "--only", "kernels")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual(re.findall(r"^ +\d+ s  (\S+)$", r.stderr, re.M), ["kernels"])
        self.assertEqual(set(self.content()["steps"]), set(steps))

    def test_the_peer_is_asked_for_the_same(self):
        fake = self.folder / "llama-bench"
        fake.write_text(FAKE_PEER.format(python=sys.executable))
        fake.chmod(0o755)
        r = self.trial("--only", "models,hybrid")
        self.assertEqual(r.returncode, 0, r.stderr)
        r = self.trial("--resume", "--only", "full,hybrid", "--llama-bench", fake)
        self.assertEqual(r.returncode, 0, r.stderr)
        full = self.content()["steps"]["full-Q4_0"]["result"]
        self.assertEqual(full["llama.cpp"], {"prefill": 1.0, "long": 1.0, "decode": 1.0})
        self.assertEqual(set(full["oato"]), {"prefill", "long", "decode"})
        hybrid = self.content()["steps"]["hybrid-0.5"]["result"]
        times = hybrid["request_s"]
        self.assertEqual(times.pop("--fit on"), 19.0)
        self.assertGreater(times.pop("oato"), 0)
        self.assertEqual(list(times.values()), [3 * 19.0])
        self.assertEqual(len(hybrid["failed"]), 1)
        self.assertIn("no such tensor", *hybrid["failed"].values())
        text = (self.folder / "out/gpu.md").read_text(encoding="utf-8")
        self.assertIn(f"| 19.000 | 57.000 ({next(iter(times))}) |", text)

    def test_a_step_that_fails_loses_no_other(self):
        build = self.folder / "build"
        (build / "tests").mkdir(parents=True)
        (build / "bin").mkdir()
        for name in ("kernels", "executor"):
            (build / "tests" / name).symlink_to(BUILD / "tests" / name)
        for name in pack.PROGRAMS:
            (build / "bin" / name).symlink_to(BUILD / "bin" / name)
        (build / "bin/oato-bench-cuda").unlink()
        (build / "bin/oato-bench-cuda").write_text("#!/bin/sh\necho it burns >&2\nexit 5\n")
        (build / "bin/oato-bench-cuda").chmod(0o755)
        r = self.trial("--build", build, "--only", "kernels,models,logits")
        self.assertEqual(r.returncode, 1)
        steps = self.content()["steps"]
        self.assertEqual(steps["kernels"]["why"], "oato-bench-cuda ended with 5: it burns")
        self.assertEqual(steps["logits"]["state"], "done")
        self.assertIn("Not measured: kernels", (self.folder / "out/gpu.md").read_text(encoding="utf-8"))

    def test_no_time_and_no_gpu_are_told(self):
        r = self.trial("--minutes", "0.03", "--only", "tests")
        self.assertEqual(r.returncode, 1)
        self.assertRegex(self.content()["steps"]["tests"]["why"], "took more than|no time")
        r = self.trial("--only", "full,hybrid")
        self.assertEqual(r.returncode, 1)
        self.assertIn("its model was not made", r.stderr)
        self.assertNotIn(str(self.folder), json.dumps(self.content()))
        r = self.trial("--only", "kernels", driver="/nonexistent.so")
        self.assertEqual(r.returncode, 1)
        self.assertIn("nonexistent", self.content()["steps"]["kernels"]["why"])

    def test_wrong_usage(self):
        for words in ([], ["--run", "--report", "x"], ["--pack"]):
            self.assertNotEqual(self.bench(*words).returncode, 0)


class Archive(Folder):
    def test_it_runs_where_it_is_unpacked(self):
        archive = self.folder / "gpu.tar.xz"
        r = self.bench("--pack", archive, "--build", BUILD, "--no-peer")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("gpu.tar.xz, compressed", r.stdout)
        with tarfile.open(archive) as f:
            f.extractall(self.folder)
        top = self.folder / "bench-gpu"
        self.assertTrue(list((top / "lib").glob("libhwloc*")))
        self.assertFalse(list((top / "lib").glob("libc.*")))
        r = subprocess.run([top / "scripts/bench-gpu", "--run", "--quick", "--only", "models,logits", "--work",
                            self.folder], env={"PATH": os.environ["PATH"], "OATO_CUDA_DRIVER": DRIVER},
                           capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual(self.content()["steps"]["logits"]["state"], "done")

    def test_too_much_is_refused_and_nothing_is_left(self):
        archive = self.folder / "gpu.tar.xz"
        program = ("import sys; sys.path.insert(0, sys.argv[1]); import bench_gpu_pack as p; p.PACK_MOST = 1000;"
                   "p.make_pack(*sys.argv[2:5], peer=False)")
        r = subprocess.run([sys.executable, "-B", "-c", program, ROOT / "scripts", ROOT, BUILD, archive],
                           capture_output=True, text=True, check=False)
        self.assertIn("can be carried", r.stderr)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_the_peer_without_what_other_machines_need(self):
        peer = self.folder / "from"
        for name in pack.PEER_PARTS:
            (peer / name).mkdir(parents=True)
        for name in ("tools/ui", "tools/llama-bench", "ggml/src/ggml-vulkan", "ggml/src/ggml-cuda"):
            (peer / name).mkdir(parents=True)
        pack.copy_peer(peer, self.folder / "to")
        self.assertTrue((self.folder / "to/ggml/src/ggml-cuda").exists())
        self.assertTrue((self.folder / "to/tools/llama-bench").exists())
        self.assertFalse((self.folder / "to/ggml/src/ggml-vulkan").exists())
        self.assertFalse((self.folder / "to/tools/ui").exists())


class Models(Folder):
    def test_sizes_of_tensors(self):
        path = self.folder / "m.gguf"
        subprocess.run([BUILD / "bin/oato-make-model", *"--layers 2 --width 256 --ffn 512 --heads 4 --kv-heads 2 "
                        "--vocab 512 --type Q4_0 -o".split(), path], check=True, capture_output=True)
        sizes = models.tensor_bytes(path)
        self.assertEqual(sizes["blk.1.ffn_up.weight"], 256 * 512 * 18 // 32)
        self.assertEqual(sizes["token_embd.weight"], 256 * 512 * 18 // 32)
        self.assertEqual(models.layer_bytes(sizes, "^ffn_(up|gate|down)"), [3 * 256 * 512 * 18 // 32] * 2)
        path.write_bytes(b"GGUG")
        with self.assertRaises(models.Failed):
            models.tensor_bytes(path)

    def test_placements_by_hand_fill_the_memory(self):
        tensors = {"token_embd.weight": 50, "output.weight": 60}
        for i in range(4):
            tensors.update({f"blk.{i}.attn_q.weight": 30, f"blk.{i}.ffn_up.weight": 70})
        # A layer is 100 and 5 of KV; the output goes last with whole layers, first with attention.
        self.assertEqual(models.hand_set(tensors, 104, 5), {"-ngl 0": ["-ngl", "0"]})
        self.assertIn("-ngl 2", models.hand_set(tensors, 314, 5))
        self.assertIn("-ngl 3", models.hand_set(tensors, 315, 5))
        self.assertIn("-ngl 5", models.hand_set(tensors, 480, 5))
        by_tensor = models.hand_set(tensors, 4 * 35 + 60 + 2 * 70, 5)["-ot ffn of 2 layers=CPU"]
        self.assertEqual(by_tensor[-1], r"^blk\.(0|1)\.ffn_(up|gate|down)\.weight$=CPU")

    def test_logits_apart(self):
        same = models.compare_logits([0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0], [0, 1])
        self.assertAlmostEqual(same["kl"], 0)
        self.assertEqual((same["rows"], same["nmse"], same["same_top"], same["perplexity_ratio"]), (2, 0, 1, 1))
        # p = (1/4, 3/4), q = (1/2, 1/2): sum of p log(p / q); of the second id 3/4 became 1/2.
        apart = models.compare_logits([0.0, 1.0986122886681098] * 2, [0.5, 0.5] * 2, [0, 1])
        self.assertAlmostEqual(apart["kl"], 0.13081203594113697)
        self.assertEqual(apart["same_top"], 0)
        self.assertAlmostEqual(apart["perplexity_ratio"], 1.5)
        with self.assertRaises(models.Failed):
            models.compare_logits([1.0], [1.0, 2.0], [0])


class Report(unittest.TestCase):
    CASE = {"op": "mul_mat/Q4_0/k4096/n14336", "type": "Q4_0", "k": 4096, "n": 14336, "class": "q8b32",
            "bytes": 33030144}
    RATIOS = {"prefill": 1.05, "decode": 0.8}

    def content(self, **steps):
        return {"about": {"gpu": {}, "devices": ["cuda:0 A GPU"], "cpu": "A CPU", "threads": 16, "revision": "r",
                          "date": "d"},
                "steps": {name: {"state": "done", "result": result} for name, result in steps.items()}}

    def line(self, text, begin):
        return next(line for line in text.splitlines() if line.startswith(begin))

    def test_products_are_judged_by_a_copy(self):
        for ns, words in ((13700, "holds"), (20645, "**missed**")):
            case = {**self.CASE, "rows": 1, "ns": ns, "bytes_per_s": 33030144e9 / ns, "of_copy": 33030144 / ns / 3000,
                    "flops_per_s": 2e9 * 4096 * 14336 / ns}
            content = self.content(kernels={"copy_bytes_per_s": 3e12, "cases": [case]})
            line = self.line(report.markdown(content), "| mul_mat/Q4_0")
            self.assertIn(f"{33030144 / ns:.0f} GB/s", line)
            self.assertIn(words, line)
            xml.etree.ElementTree.fromstring(report.picture(content))

    def test_a_product_is_judged_without_packing(self):
        case = {**self.CASE, "rows": 1, "ns": 20645, "bytes_per_s": 1.6e12, "of_copy": 0.53, "packed_ns": 13700,
                "packed_of_copy": 0.8037, "flops_per_s": 5.7e12}
        text = report.markdown(self.content(kernels={"copy_bytes_per_s": 3e12, "cases": [case]}))
        line = self.line(text, "| mul_mat/Q4_0")
        self.assertIn("1600 GB/s, 53 % (80 %)", line)
        self.assertIn("holds", line)

    def test_cublas_stands_beside_our_kernels(self):
        case = {**self.CASE, "op": "mul_mat/F16/k64/n64", "type": "F16", "class": "f16", "rows": 512, "ns": 1000,
                "bytes_per_s": 1e12, "of_copy": 0.3, "flops_per_s": 345.6e12}
        kernels = {"copy_bytes_per_s": 3e12, "cublas": 130102,
                   "cases": [case, {**case, "class": "f16.cublas", "flops_per_s": 678.9e12}]}
        text = report.markdown(self.content(kernels=kernels))
        self.assertIn("cuBLAS 13.1.2 stands behind ours", text)
        self.assertIn("| 345.6 TFLOP/s, cuBLAS 678.9 |", self.line(text, "| mul_mat/F16/k64/n64"))
        self.assertEqual(report.picture(self.content(kernels=kernels)).count("F16, 512 rows"), 1)
        text = report.markdown(self.content(kernels={**kernels, "cublas": 0, "cases": [case]}))
        self.assertIn("cuBLAS was not found", text)
        self.assertIn("| 345.6 TFLOP/s |", self.line(text, "| mul_mat/F16/k64/n64"))

    def test_full_gpu_against_the_peer(self):
        full = {"oato": {"prefill": 9000, "decode": 240, "long": 8000},
                "llama.cpp": {"prefill": 10000, "decode": 160, "long": 8000},
                "prompt": 512, "long": 4096, "weight_bytes": 5e9, "predicted_over_measured": self.RATIOS}
        text = report.markdown(self.content(**{"full-Q4_0": full,
                                               "kernels": {"copy_bytes_per_s": 3e12, "cases": []}}))
        decode = self.line(text, "| Q4_0 | decode")
        self.assertIn("| 1.50 | 40 % | decode 0.80 | ≥ 1.5 × llama.cpp | holds |", decode)
        self.assertIn("| 0.90 | – | prefill 1.05 | ≥ 1 × llama.cpp | **missed** |", self.line(text, "| Q4_0 | prefill 512"))
        self.assertIn("| 1.00 |", self.line(text, "| Q4_0 | prefill 4096"))
        self.assertIn("Predictions within 10 %: 0 of 1", text)
        del full["llama.cpp"]
        text = report.markdown(self.content(**{"full-Q4_0": full}))
        self.assertIn("| 240.0 | – | – | – |", self.line(text, "| Q4_0 | decode"))

    def test_hybrid_against_fit_and_the_best_by_hand(self):
        hybrid = {"share": 0.5, "prompt": 512, "generate": 32, "predicted_over_measured": {"prefill": 1.0, "decode": 0.95},
                  "request_s": {"oato": 2.0, "--fit on": 2.6, "-ngl 12": 3.0, "-ot x": 2.2},
                  "cpu_idle": 0.2, "decode_ns": {"cpu:0": 5, "cuda:0": 6}}
        text = report.markdown(self.content(**{"hybrid-0.5": hybrid}))
        self.assertIn("| 2.000 | 2.600 | 2.200 (-ot x) | 1.30 | 1.10 | 20 % |", self.line(text, "| 50 %"))
        self.assertIn("≥ 1.25 × --fit on | holds |", self.line(text, "| 50 %"))
        self.assertIn("Predictions within 10 %: 1 of 1", text)
        hybrid["decode_ns"]["cpu:0"] = 7  # the longer one must not wait so long
        text = report.markdown(self.content(**{"hybrid-0.5": hybrid}))
        self.assertIn("≥ 1.25 × --fit on | **missed** |", self.line(text, "| 50 %"))

    def test_agreement_is_judged_by_all_three(self):
        good = {"rows": 384, "kl": 0.002, "perplexity_ratio": 1.001, "on_gpu": 0.5, "runs": 10, "same_bits": True}
        for change, words in (({}, "holds"), ({"kl": 0.004}, "missed"), ({"same_bits": False}, "missed"),
                              ({"perplexity_ratio": 1.007}, "missed"), ({"perplexity_ratio": 0.997}, "holds")):
            text = report.markdown(self.content(agreement={"CPU": good, "both": {**good, **change}}))
            line = text.splitlines()[-3]
            self.assertIn("50 % of its memory on the GPU, 384 tokens", line)
            self.assertIn(words, line)

    def test_what_is_missing_is_named(self):
        content = self.content()
        content["steps"]["peer"] = {"state": "failed", "why": "no compiler"}
        self.assertIn("- Not measured: peer: no compiler", report.markdown(content))


if __name__ == "__main__":
    unittest.main()
